/* SPDX-License-Identifier: Apache-2.0 */
/* gpumemctl tenants: who is charged for what, and what each may have. */
#include "tools/gpumemctl/command.h"

#include <inttypes.h>

#include "tools/gpumemctl/reply.h"
#include "tools/gpumemctl/table.h"
#include "tools/gpumemctl/text.h"

static const struct ctl_column columns[] = {
        {"TENANT", false},  {"SESSIONS", true},  {"DEVICE", false},  {"MAX", true},
        {"CHARGED", true},  {"GRANTED", true},   {"READY", true},    {"DIRTY", true},
        {"DRAINING", true}, {"RELEASING", true}, {"WITHHELD", true}, {"AVAILABLE", true},
        {"WAITING", true},  {NULL, false},
};

/* What a tenant without a device shows there. */
enum { DEVICE_COLUMNS = 9 };

static void add_head(struct ctl_reader *reader, struct ctl_table *table, json_object *tenant,
                     const char *device)
{
        char number[CTL_NUMBER_MAX];

        ctl_table_add(table, "%s", ctl_read_text(reader, tenant, "tenant"));
        ctl_table_add(table, "%" PRId64, ctl_read_int(reader, tenant, "sessions"));
        ctl_table_add(table, "%s", device);
        if (json_object_object_get_ex(tenant, "max_bytes", NULL))
                ctl_table_add(table, "%s",
                              ctl_format_bytes(number, ctl_read_int(reader, tenant, "max_bytes")));
        else
                ctl_table_add(table, "%s", "max");
}

static void add_device(struct ctl_reader *reader, struct ctl_table *table, json_object *tenant,
                       json_object *device)
{
        static const char *const keys[] = {"charged_bytes", "granted_bytes",  "ready_bytes",
                                           "dirty_bytes",   "draining_bytes", "releasing_bytes",
                                           "withheld_bytes"};
        json_object *memory = ctl_read_object(reader, device, "memory");
        char number[CTL_NUMBER_MAX];

        add_head(reader, table, tenant, ctl_read_text(reader, device, "device"));
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
                ctl_table_add(table, "%s",
                              ctl_format_bytes(number, ctl_read_int(reader, memory, keys[i])));
        ctl_table_add(table, "%s",
                      ctl_format_bytes(number, ctl_read_int(reader, device, "available_bytes")));
        ctl_table_add(table, "%" PRId64, ctl_read_int(reader, device, "waiting_grants"));
}

static enum ctl_outcome print(struct ctl_context *context, json_object *reply)
{
        struct ctl_reader reader = {0};
        json_object *tenants = ctl_read_array(&reader, reply, "tenants");
        bool complete = ctl_read_bool(&reader, reply, "complete");
        struct ctl_table table;
        enum ctl_outcome outcome;

        ctl_table_init(&table, columns);
        for (size_t i = 0; i < ctl_array_length(tenants); i++) {
                json_object *tenant = json_object_array_get_idx(tenants, i);
                json_object *devices = ctl_read_array(&reader, tenant, "devices");

                for (size_t k = 0; k < ctl_array_length(devices); k++)
                        add_device(&reader, &table, tenant, json_object_array_get_idx(devices, k));
                if (ctl_array_length(devices) > 0)
                        continue;
                add_head(&reader, &table, tenant, "-");
                for (int k = 0; k < DEVICE_COLUMNS; k++)
                        ctl_table_add(&table, "%s", "-");
        }
        outcome = ctl_reader_finish(&reader, context->error);
        if (outcome == CTL_OK && table.failed)
                outcome = ctl_fail(context->error, CTL_REFUSED, "out of memory.");
        if (outcome == CTL_OK) {
                if (table.cell_count > 0)
                        ctl_table_print(&table, context->out, 0);
                else
                        fprintf(context->out, "no tenants\n");
                if (!complete)
                        fprintf(context->out, "(and more)\n");
        }
        ctl_table_deinit(&table);
        return outcome;
}

enum ctl_outcome ctl_command_tenants(struct ctl_context *context)
{
        json_object *reply;
        enum ctl_outcome outcome = ctl_client_call(context->client, "io.gpumemd.ListTenants", NULL,
                                                   &reply, context->error);

        if (outcome != CTL_OK)
                return outcome;
        outcome = context->options.json ? ctl_print_json(context, reply) : print(context, reply);
        json_object_put(reply);
        return outcome;
}
