/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the admin interface share: admin.c (server, status, check), admin_memory.c,
 * admin_sessions.c, admin_tenants.c (the methods of those names), admin_json.c (building replies).
 */
#ifndef GPUMEMD_ADMIN_INTERNAL_H
#define GPUMEMD_ADMIN_INTERNAL_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/daemon.h"
#include "daemon/frame.h"
#include "daemon/varlink.h"

/*
 * A reply under construction. The first allocation that fails is remembered and everything after it
 * does nothing, so that a method builds on and asks once, in admin_reply_send(). Where a container
 * is NULL (it could not be made), adding to it is harmless.
 */
struct admin_reply {
        json_object *parameters; /* the reply's own object */
        bool failed;
};

void admin_reply_init(struct admin_reply *reply);

/* Send it as the answer to @call, or drop it: 0 or negative errno, -ENOMEM if it is incomplete. */
int admin_reply_send(struct admin_reply *reply, struct varlink_call *call);

/* Add a member to an object. Text that is not UTF-8 has its bytes above ASCII replaced by '?'. */
void admin_add_int(struct admin_reply *reply, json_object *object, const char *key, uint64_t value);
void admin_add_bool(struct admin_reply *reply, json_object *object, const char *key, bool value);
void admin_add_text(struct admin_reply *reply, json_object *object, const char *key,
                    const char *value);
/* The new member, owned by @object; NULL on failure. */
json_object *admin_add_object(struct admin_reply *reply, json_object *object, const char *key);
json_object *admin_add_array(struct admin_reply *reply, json_object *object, const char *key);

/* Add a member to an array. */
json_object *admin_append_object(struct admin_reply *reply, json_object *array);
void admin_append_text(struct admin_reply *reply, json_object *array, const char *value);

/* A member of type FrameStates: the counts, each times @factor. */
void admin_add_frame_states(struct admin_reply *reply, json_object *object, const char *key,
                            const struct frame_table *table, uint64_t factor);

struct tenant_device;

/* Fills an object of type TenantMemory. */
void admin_add_tenant_memory(struct admin_reply *reply, json_object *object,
                             const struct tenant_device *part);

/* The methods; see io.gpumemd.varlink. @userdata is the struct admin's daemon. */
int admin_get_mem_info(struct varlink_call *call, json_object *parameters, void *userdata);
int admin_list_sessions(struct varlink_call *call, json_object *parameters, void *userdata);
int admin_list_tenants(struct varlink_call *call, json_object *parameters, void *userdata);

#endif
