/* SPDX-License-Identifier: Apache-2.0 */
/* gpumemctl status: what runs, and the devices at a glance. */
#include "tools/gpumemctl/command.h"

#include <inttypes.h>
#include <string.h>

#include "tools/gpumemctl/reply.h"
#include "tools/gpumemctl/table.h"
#include "tools/gpumemctl/text.h"

static const struct ctl_column device_columns[] = {
        {"DEVICE", false}, {"NAME", false},   {"STATE", false},  {"FRAME", true},
        {"TOTAL", true},   {"MANAGED", true}, {"OUTSIDE", true}, {"SESSIONS", true},
        {"WAITING", true}, {NULL, false},
};

static const struct ctl_column frame_columns[] = {
        {"DEVICE", false},  {"FREE", true},        {"FRESH", true},
        {"GRANTED", true},  {"DIRTY", true},       {"READY", true},
        {"DRAINING", true}, {"QUARANTINED", true}, {NULL, false},
};

static const struct ctl_column trouble_columns[] = {{"", false}, {NULL, false}};

/* A line about a device that is not ok. */
static void add_trouble(struct ctl_reader *reader, struct ctl_table *troubles, json_object *device)
{
        const char *trouble = ctl_read_optional_text(reader, device, "trouble");
        const char *state = ctl_read_text(reader, device, "state");

        if (strcmp(state, "ok") != 0)
                ctl_table_add(troubles, "%s is %s: %s", ctl_read_text(reader, device, "uuid"),
                              state, trouble != NULL ? trouble : "the log says why");
}

static void add_device(struct ctl_reader *reader, struct ctl_table *devices,
                       struct ctl_table *frames, json_object *device)
{
        static const char *const states[] = {"free",  "fresh",    "granted",    "dirty",
                                             "ready", "draining", "quarantined"};
        static const char *const sizes[] = {"frame_bytes", "total_bytes", "managed_bytes",
                                            "outside_bytes"};
        json_object *counts = ctl_read_object(reader, device, "frames");
        char number[CTL_NUMBER_MAX];

        ctl_table_add(devices, "%s", ctl_read_text(reader, device, "uuid"));
        ctl_table_add(devices, "%s", ctl_read_text(reader, device, "name"));
        ctl_table_add(devices, "%s", ctl_read_text(reader, device, "state"));
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
                ctl_table_add(devices, "%s",
                              ctl_format_bytes(number, ctl_read_int(reader, device, sizes[i])));
        ctl_table_add(devices, "%" PRId64, ctl_read_int(reader, device, "sessions"));
        ctl_table_add(devices, "%" PRId64, ctl_read_int(reader, device, "waiting_grants"));

        ctl_table_add(frames, "%s", ctl_read_text(reader, device, "uuid"));
        for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
                ctl_table_add(frames, "%" PRId64, ctl_read_int(reader, counts, states[i]));
}

static enum ctl_outcome print(struct ctl_context *context, json_object *reply)
{
        struct ctl_reader reader = {0};
        struct ctl_table devices, frames, troubles;
        json_object *list = ctl_read_array(&reader, reply, "devices");
        char version[64], driver[64], uptime[CTL_NUMBER_MAX];
        int64_t sessions, waiting;
        enum ctl_outcome outcome;

        ctl_table_init(&devices, device_columns);
        ctl_table_init(&frames, frame_columns);
        ctl_table_init(&troubles, trouble_columns);
        ctl_printable(version, sizeof(version), ctl_read_text(&reader, reply, "version"));
        ctl_printable(driver, sizeof(driver), ctl_read_text(&reader, reply, "driver"));
        ctl_format_duration(uptime, ctl_read_int(&reader, reply, "uptime_us"));
        sessions = ctl_read_int(&reader, reply, "sessions");
        waiting = ctl_read_int(&reader, reply, "waiting_grants");
        for (size_t i = 0; i < ctl_array_length(list); i++) {
                json_object *device = json_object_array_get_idx(list, i);

                add_device(&reader, &devices, &frames, device);
                add_trouble(&reader, &troubles, device);
        }

        outcome = ctl_reader_finish(&reader, context->error);
        if (outcome == CTL_OK && (devices.failed || frames.failed || troubles.failed))
                outcome = ctl_fail(context->error, CTL_REFUSED, "out of memory.");
        if (outcome == CTL_OK) {
                fprintf(context->out, "gpumemd %s, driver %s, up %s\n", version, driver, uptime);
                fprintf(context->out, "sessions %" PRId64 ", grants waiting %" PRId64 "\n\n",
                        sessions, waiting);
                ctl_table_print(&devices, context->out, 0);
                fprintf(context->out, "\nFrames by state\n");
                ctl_table_print(&frames, context->out, 0);
                if (troubles.cell_count > 0) {
                        fputc('\n', context->out);
                        ctl_table_print(&troubles, context->out, 0);
                }
        }
        ctl_table_deinit(&devices);
        ctl_table_deinit(&frames);
        ctl_table_deinit(&troubles);
        return outcome;
}

enum ctl_outcome ctl_command_status(struct ctl_context *context)
{
        json_object *reply;
        enum ctl_outcome outcome;

        outcome = ctl_client_call(context->client, "io.gpumemd.GetStatus", NULL, &reply,
                                  context->error);
        if (outcome != CTL_OK)
                return outcome;
        outcome = context->options.json ? ctl_print_json(context, reply) : print(context, reply);
        json_object_put(reply);
        return outcome;
}
