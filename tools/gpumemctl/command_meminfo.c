/* SPDX-License-Identifier: Apache-2.0 */
/* gpumemctl meminfo: where the memory of each device is. */
#include "tools/gpumemctl/command.h"

#include <inttypes.h>

#include "tools/gpumemctl/reply.h"
#include "tools/gpumemctl/table.h"
#include "tools/gpumemctl/text.h"

static const struct ctl_column untitled_columns[] = {
        {"", false}, {"", true}, {"", true}, {"", false}, {NULL, false}};

static const struct ctl_column tenant_columns[] = {
        {"TENANT", false},   {"CHARGED", true},  {"GRANTED", true},
        {"READY", true},     {"DIRTY", true},    {"DRAINING", true},
        {"RELEASING", true}, {"WITHHELD", true}, {NULL, false},
};

/* The states of a frame in the order of its life, and what each means. */
static const struct {
        const char *key, *meaning;
} states[] = {
        {"free", "no memory behind it yet"},
        {"fresh", "never held, for anybody"},
        {"granted", "held by sessions"},
        {"dirty", "returned, to be scrubbed"},
        {"ready", "scrubbed, for its tenant"},
        {"draining", "disconnected, process not yet dead"},
        {"quarantined", "failed, not used again"},
};

static void add_size(struct ctl_reader *reader, struct ctl_table *table, const char *title,
                     json_object *device, const char *key, const char *meaning)
{
        char bytes[CTL_NUMBER_MAX];

        ctl_table_add(table, "%s", title);
        ctl_table_add(table, "%s", ctl_format_bytes(bytes, ctl_read_int(reader, device, key)));
        ctl_table_add(table, "%s", "");
        ctl_table_add(table, "%s", meaning);
}

static void add_memory(struct ctl_reader *reader, struct ctl_table *table, json_object *device)
{
        json_object *frames = ctl_read_object(reader, device, "frames");
        json_object *bytes = ctl_read_object(reader, device, "bytes");
        char number[CTL_NUMBER_MAX];

        add_size(reader, table, "total", device, "total_bytes", "what the driver says it has");
        add_size(reader, table, "outside", device, "outside_bytes", "used by others");
        add_size(reader, table, "withheld", device, "withheld_bytes",
                 "returned, but still mapped by somebody");
        add_size(reader, table, "managed", device, "managed_bytes", "what gpumemd may use");
        add_size(reader, table, "frame", device, "frame_bytes", "smallest unit handed out");
        for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
                int64_t count = ctl_read_int(reader, frames, states[i].key);

                ctl_table_add(table, "%s", states[i].key);
                ctl_table_add(table, "%s",
                              ctl_format_bytes(number, ctl_read_int(reader, bytes, states[i].key)));
                ctl_table_add(table, "%" PRId64 " %s", count, count == 1 ? "frame " : "frames");
                if (i == 1) /* the fresh pool has watermarks */
                        ctl_table_add(table, "%s; filled below %" PRId64 ", up to %" PRId64,
                                      states[i].meaning,
                                      ctl_read_int(reader, device, "fresh_low_frames"),
                                      ctl_read_int(reader, device, "fresh_high_frames"));
                else
                        ctl_table_add(table, "%s", states[i].meaning);
        }
}

static void add_tenants(struct ctl_reader *reader, struct ctl_table *table, json_object *device)
{
        static const char *const keys[] = {"charged_bytes", "granted_bytes",  "ready_bytes",
                                           "dirty_bytes",   "draining_bytes", "releasing_bytes",
                                           "withheld_bytes"};
        json_object *tenants = ctl_read_array(reader, device, "tenants");
        char number[CTL_NUMBER_MAX];

        for (size_t i = 0; i < ctl_array_length(tenants); i++) {
                json_object *tenant = json_object_array_get_idx(tenants, i);

                ctl_table_add(table, "%s", ctl_read_text(reader, tenant, "tenant"));
                for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
                        ctl_table_add(
                                table, "%s",
                                ctl_format_bytes(number, ctl_read_int(reader, tenant, keys[k])));
        }
}

static enum ctl_outcome print_device(struct ctl_context *context, json_object *device)
{
        struct ctl_reader reader = {0};
        struct ctl_table memory, tenants;
        char uuid[128], name[128];
        enum ctl_outcome outcome;

        ctl_table_init(&memory, untitled_columns);
        ctl_table_init(&tenants, tenant_columns);
        ctl_printable(uuid, sizeof(uuid), ctl_read_text(&reader, device, "uuid"));
        ctl_printable(name, sizeof(name), ctl_read_text(&reader, device, "name"));
        add_memory(&reader, &memory, device);
        add_tenants(&reader, &tenants, device);
        outcome = ctl_reader_finish(&reader, context->error);
        if (outcome == CTL_OK && (memory.failed || tenants.failed))
                outcome = ctl_fail(context->error, CTL_REFUSED, "out of memory.");
        if (outcome == CTL_OK) {
                fprintf(context->out, "%s (%s)\n", uuid, name);
                ctl_table_print(&memory, context->out, 2);
                fputc('\n', context->out);
                if (tenants.cell_count > 0)
                        ctl_table_print(&tenants, context->out, 2);
                else
                        fprintf(context->out, "  no tenant holds memory\n");
        }
        ctl_table_deinit(&memory);
        ctl_table_deinit(&tenants);
        return outcome;
}

static enum ctl_outcome print(struct ctl_context *context, json_object *reply)
{
        struct ctl_reader reader = {0};
        json_object *devices = ctl_read_array(&reader, reply, "devices");
        enum ctl_outcome outcome = ctl_reader_finish(&reader, context->error);

        for (size_t i = 0; outcome == CTL_OK && i < ctl_array_length(devices); i++) {
                if (i > 0)
                        fputc('\n', context->out);
                outcome = print_device(context, json_object_array_get_idx(devices, i));
        }
        return outcome;
}

enum ctl_outcome ctl_command_meminfo(struct ctl_context *context)
{
        json_object *parameters = NULL, *reply;
        enum ctl_outcome outcome;

        if (context->options.device != NULL) {
                parameters = json_object_new_object();
                json_object_object_add(parameters, "device",
                                       json_object_new_string(context->options.device));
        }
        outcome = ctl_client_call(context->client, "io.gpumemd.GetMemInfo", parameters, &reply,
                                  context->error);
        if (outcome != CTL_OK)
                return outcome;
        outcome = context->options.json ? ctl_print_json(context, reply) : print(context, reply);
        json_object_put(reply);
        return outcome;
}
