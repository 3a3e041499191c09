/* SPDX-License-Identifier: Apache-2.0 */
/* gpumemctl debug check: the daemon counts everything again; what does not add up is printed. */
#include "tools/gpumemctl/command.h"

#include "tools/gpumemctl/reply.h"
#include "tools/gpumemctl/text.h"

static void print_lines(FILE *out, json_object *report)
{
        char line[1024];

        for (size_t i = 0; i < ctl_array_length(report); i++) {
                const char *text = json_object_get_string(json_object_array_get_idx(report, i));

                fprintf(out, "  %s\n", ctl_printable(line, sizeof(line), text ? text : "?"));
        }
}

enum ctl_outcome ctl_command_debug_check(struct ctl_context *context)
{
        struct ctl_reader reader = {0};
        json_object *reply, *report;
        enum ctl_outcome outcome;
        bool ok;

        outcome = ctl_client_call(context->client, "io.gpumemd.DebugCheck", NULL, &reply,
                                  context->error);
        if (outcome != CTL_OK)
                return outcome;
        ok = ctl_read_bool(&reader, reply, "ok");
        report = ctl_read_array(&reader, reply, "report");
        outcome = ctl_reader_finish(&reader, context->error);
        if (outcome == CTL_OK && context->options.json) {
                outcome = ctl_print_json(context, reply);
        } else if (outcome == CTL_OK) {
                fprintf(context->out, ok ? "ok: everything adds up\n" : "this does not add up:\n");
                print_lines(context->out, report);
        }
        if (outcome == CTL_OK && !ok)
                outcome = ctl_fail(context->error, CTL_REFUSED,
                                   "the check found %zu fault%s. This is a bug in gpumemd; please "
                                   "keep its log.",
                                   ctl_array_length(report),
                                   ctl_array_length(report) == 1 ? "" : "s");
        json_object_put(reply);
        return outcome;
}
