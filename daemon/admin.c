/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/admin_internal.h"
#include "daemon/device.h"

/* Room for the report of a check; what does not fit is cut by daemon_check(). */
#define REPORT_BYTES (64 * 1024)

struct admin {
        struct daemon *daemon;
        struct varlink_server *server;
        struct log_limit refusals; /* of misbehaving peers */
};

static uint64_t monotonic_us(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void add_device(struct admin_reply *reply, json_object *list, const struct device *device)
{
        json_object *object = admin_append_object(reply, list);

        admin_add_text(reply, object, "uuid", device->uuid_text);
        admin_add_text(reply, object, "name", device->name);
        admin_add_text(reply, object, "state", device_state_name(device->state));
        if (device->state != DEVICE_OK)
                admin_add_text(reply, object, "trouble", device->trouble);
        admin_add_int(reply, object, "frame_bytes", device->table.frame_bytes);
        admin_add_int(reply, object, "total_bytes", device->total_bytes);
        admin_add_int(reply, object, "managed_bytes", device_managed_bytes(device));
        admin_add_int(reply, object, "outside_bytes", device->outside_bytes);
        admin_add_int(reply, object, "withheld_bytes", device->withheld.bytes);
        admin_add_frame_states(reply, object, "frames", &device->table, 1);
        admin_add_int(reply, object, "sessions", device->sessions_count);
        admin_add_int(reply, object, "waiting_grants",
                      (uint64_t)device->queue.count + device->queue.held_count);
}

static int get_status(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct admin *admin = userdata;
        struct daemon *daemon = admin->daemon;
        struct admin_reply reply;
        json_object *devices;
        uint64_t waiting = 0;

        (void)parameters;
        admin_reply_init(&reply);
        admin_add_text(&reply, reply.parameters, "version", GPUMEM_VERSION);
        admin_add_int(&reply, reply.parameters, "uptime_us", monotonic_us() - daemon->started_us);
        admin_add_int(&reply, reply.parameters, "epoch", daemon->epoch_ns);
        admin_add_text(&reply, reply.parameters, "driver",
                       driver_kind_name(daemon->driver_use->kind));
        devices = admin_add_array(&reply, reply.parameters, "devices");
        list_for_each(node, &daemon->devices)
        {
                const struct device *device = list_entry(node, struct device, link);

                add_device(&reply, devices, device);
                waiting += device->queue.count + device->queue.held_count;
        }
        admin_add_int(&reply, reply.parameters, "sessions", daemon->sessions_count);
        admin_add_int(&reply, reply.parameters, "waiting_grants", waiting);
        return admin_reply_send(&reply, call);
}

static int list_sessions(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct admin *admin = userdata;

        return admin_list_sessions(call, parameters, admin->daemon);
}

static int get_mem_info(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct admin *admin = userdata;

        return admin_get_mem_info(call, parameters, admin->daemon);
}

static int list_tenants(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct admin *admin = userdata;

        return admin_list_tenants(call, parameters, admin->daemon);
}

static int debug_check(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct admin *admin = userdata;
        struct admin_reply reply;
        json_object *lines;
        char *report, *rest, *line;
        int faults;

        (void)parameters;
        report = calloc(1, REPORT_BYTES);
        if (report == NULL)
                return -ENOMEM;
        faults = daemon_check(admin->daemon, report, REPORT_BYTES);
        admin_reply_init(&reply);
        admin_add_bool(&reply, reply.parameters, "ok", faults == 0);
        lines = admin_add_array(&reply, reply.parameters, "report");
        for (line = strtok_r(report, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
                admin_append_text(&reply, lines, line);
        free(report);
        return admin_reply_send(&reply, call);
}

static const struct varlink_parameter list_sessions_parameters[] = {
        {"after", json_type_int, false},
        {0},
};

static const struct varlink_parameter get_mem_info_parameters[] = {
        {"device", json_type_string, false},
        {0},
};

static const struct varlink_method methods[] = {
        {"GetStatus", NULL, get_status},
        {"ListSessions", list_sessions_parameters, list_sessions},
        {"GetMemInfo", get_mem_info_parameters, get_mem_info},
        {"ListTenants", NULL, list_tenants},
        {"DebugCheck", NULL, debug_check},
        {0},
};

static const struct varlink_interface interfaces[] = {
        {"io.gpumemd", admin_interface_text, methods},
        {0},
};

static const struct varlink_identity identity = {"gpumemd", "gpumemd", GPUMEM_VERSION, ""};

static void on_refusal(const struct varlink_peer *peer, const char *what, void *userdata)
{
        struct admin *admin = userdata;
        uint64_t suppressed;

        if (!log_limit_allow(&admin->refusals, monotonic_us() * 1000, &suppressed))
                return;
        log_info(&admin->daemon->log, "admin connection closed", LOG_TEXT("reason", what),
                 LOG_I64("pid", peer->pid), LOG_U64("uid", peer->uid),
                 LOG_U64("suppressed", suppressed));
}

int admin_new(struct admin **out, struct daemon *daemon, int listen_fd)
{
        struct admin *admin = calloc(1, sizeof(*admin));
        int r;

        if (admin == NULL)
                return -ENOMEM;
        admin->daemon = daemon;
        r = varlink_server_new(&admin->server, daemon->event, listen_fd, &identity, interfaces,
                               NULL, admin);
        if (r < 0) {
                admin_free(admin);
                return r;
        }
        varlink_server_on_refusal(admin->server, on_refusal);
        *out = admin;
        return 0;
}

struct admin *admin_free(struct admin *admin)
{
        if (admin == NULL)
                return NULL;
        varlink_server_free(admin->server);
        free(admin);
        return NULL;
}
