/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gpumemctl/reply.h"

static json_object *find(struct ctl_reader *reader, json_object *object, const char *key,
                         json_type type)
{
        json_object *value = NULL;

        if (json_object_is_type(object, json_type_object))
                value = json_object_object_get(object, key);
        if (value != NULL && json_object_is_type(value, type))
                return value;
        if (reader->missing == NULL)
                reader->missing = key;
        return NULL;
}

int64_t ctl_read_int(struct ctl_reader *reader, json_object *object, const char *key)
{
        return json_object_get_int64(find(reader, object, key, json_type_int));
}

bool ctl_read_bool(struct ctl_reader *reader, json_object *object, const char *key)
{
        return json_object_get_boolean(find(reader, object, key, json_type_boolean));
}

const char *ctl_read_text(struct ctl_reader *reader, json_object *object, const char *key)
{
        json_object *value = find(reader, object, key, json_type_string);

        return value != NULL ? json_object_get_string(value) : "";
}

const char *ctl_read_optional_text(struct ctl_reader *reader, json_object *object, const char *key)
{
        if (json_object_is_type(object, json_type_object) &&
            json_object_object_get(object, key) == NULL)
                return NULL;
        return ctl_read_text(reader, object, key);
}

json_object *ctl_read_object(struct ctl_reader *reader, json_object *object, const char *key)
{
        return find(reader, object, key, json_type_object);
}

json_object *ctl_read_array(struct ctl_reader *reader, json_object *object, const char *key)
{
        return find(reader, object, key, json_type_array);
}

size_t ctl_array_length(json_object *array)
{
        return array != NULL ? json_object_array_length(array) : 0;
}

enum ctl_outcome ctl_reader_finish(const struct ctl_reader *reader, struct ctl_error *error)
{
        if (reader->missing == NULL)
                return CTL_OK;
        return ctl_fail(error, CTL_UNREACHABLE,
                        "the daemon's answer has no usable \"%s\". Daemon and gpumemctl are "
                        "probably of different versions.",
                        reader->missing);
}
