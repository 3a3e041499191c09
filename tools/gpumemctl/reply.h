/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading an answer of the daemon. The first thing that is missing or of another type is noted;
 * what is read then is zero, empty or NULL, so that a command can read on and ask once at the end.
 */
#ifndef GPUMEMCTL_REPLY_H
#define GPUMEMCTL_REPLY_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/gpumemctl/outcome.h"

struct ctl_reader {
        const char *missing; /* name of the first member that was not as expected, or NULL */
};

int64_t ctl_read_int(struct ctl_reader *reader, json_object *object, const char *key);
bool ctl_read_bool(struct ctl_reader *reader, json_object *object, const char *key);
/* Borrowed from @object. */
const char *ctl_read_text(struct ctl_reader *reader, json_object *object, const char *key);
/* The same for a member that may be absent: NULL then. */
const char *ctl_read_optional_text(struct ctl_reader *reader, json_object *object, const char *key);
json_object *ctl_read_object(struct ctl_reader *reader, json_object *object, const char *key);
json_object *ctl_read_array(struct ctl_reader *reader, json_object *object, const char *key);

/* Number of members of an array that was read; 0 for NULL. */
size_t ctl_array_length(json_object *array);

/* CTL_OK if all was there, else CTL_UNREACHABLE with a sentence. */
enum ctl_outcome ctl_reader_finish(const struct ctl_reader *reader, struct ctl_error *error);

#endif
