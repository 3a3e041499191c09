/* SPDX-License-Identifier: Apache-2.0 */
/* gpumemctl ps: the sessions, one line each, and with --objects what each holds. */
#include "tools/gpumemctl/command.h"

#include <inttypes.h>
#include <string.h>

#include "tools/gpumemctl/reply.h"
#include "tools/gpumemctl/table.h"
#include "tools/gpumemctl/text.h"

static const struct ctl_column session_columns[] = {
        {"SESSION", true}, {"PID", true},    {"UID", true},     {"COMMAND", false},
        {"ENGINE", false}, {"STATE", false}, {"OBJECTS", true}, {"FRAMES", true},
        {"MEMORY", true},  {"SINCE", false}, {"TENANT", false}, {"DEVICE", false},
        {NULL, false},
};

static const struct ctl_column object_columns[] = {
        {"SESSION", true}, {"OBJECT", true}, {"KIND", false}, {"FRAMES", true},
        {"MAXIMUM", true}, {"MEMORY", true}, {"NAME", false}, {NULL, false},
};

/* All pages of the answer, joined in one object {"sessions": [...]}. */
static enum ctl_outcome fetch(struct ctl_context *context, json_object **out)
{
        json_object *all = json_object_new_object(), *sessions = json_object_new_array();
        enum ctl_outcome outcome = CTL_OK;
        int64_t after = -1;

        if (all == NULL || sessions == NULL ||
            json_object_object_add(all, "sessions", sessions) < 0)
                outcome = ctl_fail(context->error, CTL_REFUSED, "out of memory.");
        while (outcome == CTL_OK) {
                struct ctl_reader reader = {0};
                json_object *parameters = NULL, *reply, *page;
                int64_t next = -1;

                if (after >= 0) {
                        parameters = json_object_new_object();
                        json_object_object_add(parameters, "after", json_object_new_int64(after));
                }
                outcome = ctl_client_call(context->client, "io.gpumemd.ListSessions", parameters,
                                          &reply, context->error);
                if (outcome != CTL_OK)
                        break;
                page = ctl_read_array(&reader, reply, "sessions");
                for (size_t i = 0; i < ctl_array_length(page); i++)
                        json_object_array_add(sessions,
                                              json_object_get(json_object_array_get_idx(page, i)));
                if (json_object_object_get(reply, "next") != NULL)
                        next = ctl_read_int(&reader, reply, "next");
                json_object_put(reply);
                outcome = ctl_reader_finish(&reader, context->error);
                if (next < 0)
                        break;
                /* Numbers only grow, so this ends. */
                if (next <= after && outcome == CTL_OK)
                        outcome = ctl_fail(context->error, CTL_UNREACHABLE,
                                           "the daemon's list of sessions runs in a circle.");
                after = next;
        }
        if (outcome == CTL_OK)
                *out = all;
        else
                json_object_put(all);
        return outcome;
}

static void add_session(struct ctl_reader *reader, struct ctl_table *table, json_object *session)
{
        const char *comm = ctl_read_optional_text(reader, session, "comm");
        const char *engine = ctl_read_text(reader, session, "engine");
        const char *device = ctl_read_optional_text(reader, session, "device");
        char number[CTL_NUMBER_MAX];

        ctl_table_add(table, "%" PRId64, ctl_read_int(reader, session, "session"));
        ctl_table_add(table, "%" PRId64, ctl_read_int(reader, session, "pid"));
        ctl_table_add(table, "%" PRId64, ctl_read_int(reader, session, "uid"));
        ctl_table_add(table, "%s", comm != NULL ? comm : "-");
        ctl_table_add(table, "%s", engine[0] != '\0' ? engine : "-");
        ctl_table_add(table, "%s", ctl_read_text(reader, session, "state"));
        ctl_table_add(table, "%zu", ctl_array_length(ctl_read_array(reader, session, "objects")));
        ctl_table_add(table, "%" PRId64, ctl_read_int(reader, session, "frames"));
        ctl_table_add(table, "%s",
                      ctl_format_bytes(number, ctl_read_int(reader, session, "bytes")));
        ctl_table_add(table, "%s",
                      ctl_format_time(number, ctl_read_int(reader, session, "connected_us")));
        ctl_table_add(table, "%s", ctl_read_text(reader, session, "tenant"));
        ctl_table_add(table, "%s", device != NULL ? device : "-");
}

static void add_objects(struct ctl_reader *reader, struct ctl_table *table, json_object *session)
{
        json_object *objects = ctl_read_array(reader, session, "objects");
        int64_t number = ctl_read_int(reader, session, "session");
        char bytes[CTL_NUMBER_MAX];

        for (size_t i = 0; i < ctl_array_length(objects); i++) {
                json_object *object = json_object_array_get_idx(objects, i);
                const char *name = ctl_read_text(reader, object, "name");

                ctl_table_add(table, "%" PRId64, number);
                ctl_table_add(table, "%" PRId64, ctl_read_int(reader, object, "object"));
                ctl_table_add(table, "%s", ctl_read_text(reader, object, "kind"));
                ctl_table_add(table, "%" PRId64, ctl_read_int(reader, object, "frames"));
                ctl_table_add(table, "%" PRId64, ctl_read_int(reader, object, "frames_max"));
                ctl_table_add(table, "%s",
                              ctl_format_bytes(bytes, ctl_read_int(reader, object, "bytes")));
                ctl_table_add(table, "%s", name[0] != '\0' ? name : "-");
        }
}

static enum ctl_outcome print(struct ctl_context *context, json_object *all)
{
        struct ctl_reader reader = {0};
        struct ctl_table sessions, objects;
        json_object *list = ctl_read_array(&reader, all, "sessions");
        enum ctl_outcome outcome;

        ctl_table_init(&sessions, session_columns);
        ctl_table_init(&objects, object_columns);
        for (size_t i = 0; i < ctl_array_length(list); i++) {
                json_object *session = json_object_array_get_idx(list, i);

                add_session(&reader, &sessions, session);
                if (context->options.objects)
                        add_objects(&reader, &objects, session);
        }
        outcome = ctl_reader_finish(&reader, context->error);
        if (outcome == CTL_OK && (sessions.failed || objects.failed))
                outcome = ctl_fail(context->error, CTL_REFUSED, "out of memory.");
        if (outcome == CTL_OK && ctl_array_length(list) == 0)
                fprintf(context->out, "no sessions\n");
        else if (outcome == CTL_OK)
                ctl_table_print(&sessions, context->out, 0);
        if (outcome == CTL_OK && objects.cell_count > 0) {
                fputc('\n', context->out);
                ctl_table_print(&objects, context->out, 0);
        }
        ctl_table_deinit(&sessions);
        ctl_table_deinit(&objects);
        return outcome;
}

enum ctl_outcome ctl_command_ps(struct ctl_context *context)
{
        json_object *all;
        enum ctl_outcome outcome = fetch(context, &all);

        if (outcome != CTL_OK)
                return outcome;
        outcome = context->options.json ? ctl_print_json(context, all) : print(context, all);
        json_object_put(all);
        return outcome;
}
