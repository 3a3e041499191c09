/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/filler.h"
#include "daemon/grant.h"
#include "daemon/identity.h"
#include "daemon/state.h"
#include "daemon/tenant.h"
#include "daemon/tenant_holder.h"

struct tenant *tenant_find(struct daemon *daemon, const char *name)
{
        list_for_each(node, &daemon->tenants)
        {
                struct tenant *tenant = list_entry(node, struct tenant, link);

                if (strcmp(tenant->name, name) == 0)
                        return tenant;
        }
        return NULL;
}

int tenant_get_named(struct tenant **out, struct daemon *daemon, const char *name)
{
        const struct tenant_rule *rule = tenant_rules_find(&daemon->config.tenants, name);
        struct tenant *tenant = tenant_find(daemon, name);

        *out = tenant;
        if (tenant)
                return 0;
        tenant = calloc(1, sizeof(*tenant));
        if (!tenant)
                return -ENOMEM;
        tenant->daemon = daemon;
        tenant->number = daemon_next_tenant(daemon);
        snprintf(tenant->name, sizeof(tenant->name), "%s", name);
        tenant->max_bytes = rule ? rule->max_bytes : TENANT_NO_LIMIT;
        list_init(&tenant->devices);
        list_init(&tenant->holders);
        list_append(&daemon->tenants, &tenant->link);
        *out = tenant;
        return 0;
}

int tenant_restore(struct tenant **out, struct daemon *daemon, const struct state_session *old)
{
        int r = tenant_name_is_valid(old->tenant_name)
                        ? tenant_get_named(out, daemon, old->tenant_name)
                        : -EBADMSG;

        if (r < 0)
                return r;
        (*out)->number = old->tenant;
        return 0;
}

int tenant_get(struct tenant **out, struct daemon *daemon, const struct identity *identity)
{
        const struct tenant_rule *rule = tenant_rules_match(&daemon->config.tenants, identity);
        char name[TENANT_NAME_MAX];

        snprintf(name, sizeof(name), TENANT_DEFAULT_PREFIX "%u", (unsigned)identity->uid);
        return tenant_get_named(out, daemon, rule ? rule->name : name);
}

int tenant_device_get(struct tenant_device **out, struct tenant *tenant, struct device *device)
{
        struct tenant_device *part;

        list_for_each(node, &tenant->devices)
        {
                part = list_entry(node, struct tenant_device, tenant_link);
                if (part->device == device) {
                        *out = part;
                        return 0;
                }
        }
        part = calloc(1, sizeof(*part));
        if (!part)
                return -ENOMEM;
        part->tenant = tenant;
        part->device = device;
        frame_list_init(&part->dirty);
        frame_list_init(&part->ready);
        list_append(&tenant->devices, &part->tenant_link);
        list_append(&device->tenants, &part->device_link);
        *out = part;
        return 0;
}

void tenant_forget(struct tenant *tenant)
{
        if (tenant->sessions > 0 || !account_is_balanced(&tenant->account))
                return;
        list_for_each(node,
                      &tenant->devices) if (list_entry(node, struct tenant_device, tenant_link)
                                                    ->unmeasured > 0) return;
        tenant_forget_holders(tenant);
        list_for_each_safe(node, &tenant->devices)
        {
                struct tenant_device *part = list_entry(node, struct tenant_device, tenant_link);

                list_unlink(&part->tenant_link);
                list_unlink(&part->device_link);
                free(part);
        }
        list_unlink(&tenant->link);
        free(tenant);
}

void tenant_set_max(struct tenant *tenant, uint64_t max_bytes)
{
        tenant->max_bytes = max_bytes;
        list_for_each(node, &tenant->devices)
        {
                struct tenant_device *part = list_entry(node, struct tenant_device, tenant_link);

                filler_trim_tenant(part->device, part);
                device_wake(part->device);
        }
}

uint64_t tenant_device_max(const struct tenant_device *part)
{
        if (part->tenant->max_bytes == TENANT_NO_LIMIT)
                return TENANT_NO_LIMIT;
        return part->tenant->max_bytes / part->device->table.frame_bytes;
}

uint64_t tenant_device_withheld(const struct tenant_device *part)
{
        uint64_t frame_bytes = part->device->table.frame_bytes;

        return (part->withheld.bytes + frame_bytes - 1) / frame_bytes;
}

uint64_t tenant_device_charged(const struct tenant_device *part)
{
        return part->granted + part->draining + part->ready.count + part->dirty.count +
               part->scrubbing + part->releasing + tenant_device_withheld(part);
}

static uint64_t room(const struct tenant_device *part, uint64_t used)
{
        uint64_t max = tenant_device_max(part);

        if (max == TENANT_NO_LIMIT)
                return UINT64_MAX;
        return max > used ? max - used : 0;
}

uint64_t tenant_device_may_hold(const struct tenant_device *part)
{
        return room(part, part->granted + part->draining + tenant_device_withheld(part));
}

uint64_t tenant_device_may_charge(const struct tenant_device *part)
{
        uint64_t unmeasured = part->unmeasured / part->device->table.frame_bytes;

        return room(part, tenant_device_charged(part) + unmeasured);
}
