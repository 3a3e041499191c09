/* SPDX-License-Identifier: Apache-2.0 */
/* io.gpumemd.ListTenants: who is charged for what, and what each may have. */
#include "daemon/admin_internal.h"

#include "daemon/device.h"
#include "daemon/frame_pool.h"
#include "daemon/grant.h"
#include "daemon/session.h"
#include "daemon/tenant.h"

/* What one reply may hold. */
enum { TENANTS_PER_REPLY = 1024 };

void admin_add_tenant_memory(struct admin_reply *reply, json_object *object,
                             const struct tenant_device *part)
{
        uint64_t frame_bytes = part->device->table.frame_bytes;
        uint64_t dirty = (uint64_t)part->dirty.count + part->scrubbing;
        uint64_t frames =
                part->granted + part->draining + part->ready.count + dirty + part->releasing;

        admin_add_text(reply, object, "tenant", part->tenant->name);
        admin_add_int(reply, object, "charged_bytes", frames * frame_bytes + part->withheld.bytes);
        admin_add_int(reply, object, "granted_bytes", part->granted * frame_bytes);
        admin_add_int(reply, object, "draining_bytes", part->draining * frame_bytes);
        admin_add_int(reply, object, "ready_bytes", part->ready.count * frame_bytes);
        admin_add_int(reply, object, "dirty_bytes", dirty * frame_bytes);
        admin_add_int(reply, object, "releasing_bytes", part->releasing * frame_bytes);
        admin_add_int(reply, object, "withheld_bytes", part->withheld.bytes);
}

/* In absence there is no limit. */
static void add_max(struct admin_reply *reply, json_object *entry, uint64_t max_bytes)
{
        if (max_bytes != TENANT_NO_LIMIT)
                admin_add_int(reply, entry, "max_bytes", max_bytes);
}

static uint32_t waiting_grants(const struct tenant_device *part)
{
        uint32_t count = part->held;

        list_for_each(node, &part->device->queue.waits)
        {
                const struct grant_wait *wait = list_entry(node, struct grant_wait, link);

                count += wait->session->allotment == part;
        }
        return count;
}

static void add_tenant(struct admin_reply *reply, json_object *list, const struct tenant *tenant)
{
        json_object *entry = admin_append_object(reply, list), *devices;

        admin_add_text(reply, entry, "tenant", tenant->name);
        add_max(reply, entry, tenant->max_bytes);
        admin_add_int(reply, entry, "charged_bytes", tenant->account.bytes);
        admin_add_int(reply, entry, "sessions", tenant->sessions);
        devices = admin_add_array(reply, entry, "devices");
        list_for_each(node, &tenant->devices)
        {
                const struct tenant_device *part =
                        list_entry(node, struct tenant_device, tenant_link);
                json_object *device = admin_append_object(reply, devices);

                admin_add_text(reply, device, "device", part->device->uuid_text);
                admin_add_tenant_memory(reply, admin_add_object(reply, device, "memory"), part);
                admin_add_int(reply, device, "available_bytes",
                              frame_pool_obtainable(part->device, part) *
                                      part->device->table.frame_bytes);
                admin_add_int(reply, device, "waiting_grants", waiting_grants(part));
        }
}

/* One of the configuration that has nobody now. */
static void add_rule(struct admin_reply *reply, json_object *list, const struct tenant_rule *rule)
{
        json_object *entry = admin_append_object(reply, list);

        admin_add_text(reply, entry, "tenant", rule->name);
        add_max(reply, entry, rule->max_bytes);
        admin_add_int(reply, entry, "charged_bytes", 0);
        admin_add_int(reply, entry, "sessions", 0);
        admin_add_array(reply, entry, "devices");
}

int admin_list_tenants(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct daemon *daemon = userdata;
        const struct tenant_rules *rules = &daemon->config.tenants;
        struct admin_reply reply;
        uint32_t count = 0;
        json_object *list;

        (void)parameters;
        admin_reply_init(&reply);
        list = admin_add_array(&reply, reply.parameters, "tenants");
        for (uint32_t i = 0; i < rules->rules_count; i++)
                if (!tenant_find(daemon, rules->rules[i].name))
                        add_rule(&reply, list, &rules->rules[i]);
        list_for_each(node, &daemon->tenants)
        {
                if (count++ < TENANTS_PER_REPLY)
                        add_tenant(&reply, list, list_entry(node, struct tenant, link));
        }
        admin_add_bool(&reply, reply.parameters, "complete", count <= TENANTS_PER_REPLY);
        return admin_reply_send(&reply, call);
}
