/* SPDX-License-Identifier: Apache-2.0 */
/* io.gpumemd.GetMemInfo: where the memory of each device is. */
#include "daemon/admin_internal.h"

#include <errno.h>
#include <string.h>

#include "daemon/device.h"
#include "daemon/tenant.h"

static void add_device(struct admin_reply *reply, json_object *list, const struct device *device)
{
        json_object *object = admin_append_object(reply, list);
        uint64_t frame_bytes = device->table.frame_bytes;
        json_object *tenants;

        admin_add_text(reply, object, "uuid", device->uuid_text);
        admin_add_text(reply, object, "name", device->name);
        admin_add_int(reply, object, "frame_bytes", frame_bytes);
        admin_add_int(reply, object, "total_bytes", device->total_bytes);
        admin_add_int(reply, object, "managed_bytes", device_managed_bytes(device));
        admin_add_int(reply, object, "outside_bytes", device->outside_bytes);
        admin_add_int(reply, object, "withheld_bytes", device->withheld.bytes);
        admin_add_frame_states(reply, object, "frames", &device->table, 1);
        admin_add_frame_states(reply, object, "bytes", &device->table, frame_bytes);
        admin_add_int(reply, object, "fresh_low_frames", device->watermark_low);
        admin_add_int(reply, object, "fresh_high_frames", device->watermark_high);
        tenants = admin_add_array(reply, object, "tenants");
        list_for_each(node, &device->tenants)
        {
                admin_add_tenant_memory(reply, admin_append_object(reply, tenants),
                                        list_entry(node, struct tenant_device, device_link));
        }
}

/* The daemon has no such device. */
static int refuse_device(struct varlink_call *call, const char *wanted)
{
        struct admin_reply reply;

        admin_reply_init(&reply);
        admin_add_text(&reply, reply.parameters, "device", wanted);
        if (reply.failed) {
                json_object_put(reply.parameters);
                return -ENOMEM;
        }
        return varlink_call_error(call, "io.gpumemd.DeviceNotFound", reply.parameters);
}

int admin_get_mem_info(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct daemon *daemon = userdata;
        json_object *device_wanted = json_object_object_get(parameters, "device");
        const char *wanted = json_object_get_string(device_wanted); /* NULL: all */
        struct admin_reply reply;
        json_object *devices;
        bool found = wanted == NULL;

        /* What is echoed has a bound. */
        if (wanted != NULL && (strlen(wanted) >= sizeof(((struct device *)0)->uuid_text) ||
                               strlen(wanted) != (size_t)json_object_get_string_len(device_wanted)))
                return varlink_call_error_invalid_parameter(call, "device");
        admin_reply_init(&reply);
        devices = admin_add_array(&reply, reply.parameters, "devices");
        list_for_each(node, &daemon->devices)
        {
                const struct device *device = list_entry(node, struct device, link);

                if (wanted == NULL || strcmp(wanted, device->uuid_text) == 0) {
                        add_device(&reply, devices, device);
                        found = true;
                }
        }
        if (found)
                return admin_reply_send(&reply, call);
        json_object_put(reply.parameters);
        return refuse_device(call, wanted);
}
