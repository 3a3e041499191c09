/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void admin_reply_init(struct admin_reply *reply)
{
        reply->parameters = json_object_new_object();
        reply->failed = reply->parameters == NULL;
}

int admin_reply_send(struct admin_reply *reply, struct varlink_call *call)
{
        json_object *parameters = reply->parameters;

        reply->parameters = NULL;
        if (!reply->failed)
                return varlink_call_reply(call, parameters);
        json_object_put(parameters);
        return -ENOMEM;
}

/* Takes @value. Returns it if it is now owned by @object. */
static json_object *add(struct admin_reply *reply, json_object *object, const char *key,
                        json_object *value)
{
        if (object != NULL && value != NULL && json_object_object_add(object, key, value) == 0)
                return value;
        reply->failed = true;
        json_object_put(value);
        return NULL;
}

static json_object *append(struct admin_reply *reply, json_object *array, json_object *value)
{
        if (array != NULL && value != NULL && json_object_array_add(array, value) == 0)
                return value;
        reply->failed = true;
        json_object_put(value);
        return NULL;
}

/* Bytes of the UTF-8 sequence at @text, 0 if it is none. */
static size_t sequence(const unsigned char *text)
{
        uint32_t code;
        size_t length;

        if (text[0] < 0x80)
                return 1;
        if (text[0] >= 0xc2 && text[0] <= 0xdf)
                length = 2;
        else if ((text[0] & 0xf0) == 0xe0)
                length = 3;
        else if (text[0] >= 0xf0 && text[0] <= 0xf4)
                length = 4;
        else
                return 0;
        code = text[0] & (0x7fu >> length);
        for (size_t i = 1; i < length; i++) {
                if ((text[i] & 0xc0) != 0x80) /* also at the NUL */
                        return 0;
                code = code << 6 | (text[i] & 0x3f);
        }
        if ((length == 3 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) ||
            (length == 4 && (code < 0x10000 || code > 0x10ffff)))
                return 0;
        return length;
}

static json_object *new_text(const char *value)
{
        const unsigned char *c = (const unsigned char *)value;
        json_object *text;
        size_t length;
        char *copy;

        while (*c != '\0' && (length = sequence(c)) > 0)
                c += length;
        if (*c == '\0')
                return json_object_new_string(value);
        copy = strdup(value);
        if (copy == NULL)
                return NULL;
        for (char *p = copy; *p != '\0'; p++) {
                if ((unsigned char)*p >= 0x80)
                        *p = '?';
        }
        text = json_object_new_string(copy);
        free(copy);
        return text;
}

void admin_add_int(struct admin_reply *reply, json_object *object, const char *key, uint64_t value)
{
        /* Varlink's int is signed; nothing we count comes near the end of it. */
        add(reply, object, key,
            json_object_new_int64(value <= INT64_MAX ? (int64_t)value : INT64_MAX));
}

void admin_add_bool(struct admin_reply *reply, json_object *object, const char *key, bool value)
{
        add(reply, object, key, json_object_new_boolean(value));
}

void admin_add_text(struct admin_reply *reply, json_object *object, const char *key,
                    const char *value)
{
        add(reply, object, key, new_text(value));
}

json_object *admin_add_object(struct admin_reply *reply, json_object *object, const char *key)
{
        return add(reply, object, key, json_object_new_object());
}

json_object *admin_add_array(struct admin_reply *reply, json_object *object, const char *key)
{
        return add(reply, object, key, json_object_new_array());
}

json_object *admin_append_object(struct admin_reply *reply, json_object *array)
{
        return append(reply, array, json_object_new_object());
}

void admin_append_text(struct admin_reply *reply, json_object *array, const char *value)
{
        append(reply, array, new_text(value));
}

void admin_add_frame_states(struct admin_reply *reply, json_object *object, const char *key,
                            const struct frame_table *table, uint64_t factor)
{
        json_object *states = admin_add_object(reply, object, key);

        for (int state = 0; state < FRAME_STATE_COUNT; state++)
                admin_add_int(reply, states, frame_state_name((enum frame_state)state),
                              table->states[state] * factor);
}
