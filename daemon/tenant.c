/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/state.h"
#include "daemon/tenant.h"

int tenant_get(struct tenant **out, struct daemon *daemon, uid_t uid)
{
        struct tenant *tenant;

        list_for_each(node, &daemon->tenants)
        {
                tenant = list_entry(node, struct tenant, link);
                if (tenant->uid == uid) {
                        *out = tenant;
                        return 0;
                }
        }
        tenant = calloc(1, sizeof(*tenant));
        if (!tenant)
                return -ENOMEM;
        tenant->uid = uid;
        tenant->number = daemon_next_tenant(daemon);
        snprintf(tenant->name, sizeof(tenant->name), "uid-%u", (unsigned)uid);
        list_init(&tenant->devices);
        list_append(&daemon->tenants, &tenant->link);
        *out = tenant;
        return 0;
}

int tenant_restore(struct tenant **out, struct daemon *daemon, const struct state_session *old)
{
        int r = tenant_get(out, daemon, old->uid);

        if (r < 0)
                return r;
        (*out)->number = old->tenant;
        return 0;
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
