/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands. Each asks the daemon, and writes to @out either the daemon's answer as JSON or a
 * table for people, once it has the whole answer.
 */
#ifndef GPUMEMCTL_COMMAND_H
#define GPUMEMCTL_COMMAND_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdio.h>

#include "tools/gpumemctl/client.h"
#include "tools/gpumemctl/outcome.h"

struct ctl_options {
        bool json;
        bool objects;       /* ps: the objects of each session, too */
        const char *device; /* meminfo: only this one; NULL: all */
};

struct ctl_context {
        struct ctl_client *client;
        struct ctl_options options;
        FILE *out;
        struct ctl_error *error;
};

enum ctl_outcome ctl_command_status(struct ctl_context *context);
enum ctl_outcome ctl_command_ps(struct ctl_context *context);
enum ctl_outcome ctl_command_meminfo(struct ctl_context *context);
enum ctl_outcome ctl_command_tenants(struct ctl_context *context);
enum ctl_outcome ctl_command_debug_check(struct ctl_context *context);

/* For the commands: write @object as JSON. */
enum ctl_outcome ctl_print_json(struct ctl_context *context, json_object *object);

#endif
