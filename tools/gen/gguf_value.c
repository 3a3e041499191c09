/* SPDX-License-Identifier: Apache-2.0 */
/* Typed access to the keys of a GGUF file that has been checked. */
#include "tools/gen/gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Finds the key, or says that it is missing. */
static const struct gguf_key *find(const struct gguf *gguf, const char *name,
                                   struct gen_error *error)
{
        const struct gguf_key *key = gguf_find(gguf, name);

        if (!key)
                gen_fail(error, GGUF_E_MISSING, "key %s is missing", name);
        return key;
}

static int wrong_type(const struct gguf_key *key, const char *name, const char *wanted,
                      struct gen_error *error)
{
        return gen_fail(error, -EINVAL, "byte %" PRIu64 ": key %s is %s%s, must be %s", key->at,
                        name, key->type == GGUF_ARRAY ? "an array of " : "of type ",
                        gguf_type_name(key->item_type), wanted);
}

/* Whether the value is an integer, and if it is not negative, which. */
static bool load_integer(const struct gguf_key *key, bool *negative, uint64_t *out)
{
        int64_t value = 0;

        *negative = false;
        switch (key->type) {
        case GGUF_U8:
                *out = key->data[0];
                return true;
        case GGUF_U16: {
                uint16_t narrow;

                memcpy(&narrow, key->data, sizeof(narrow));
                *out = narrow;
                return true;
        }
        case GGUF_U32:
                *out = gguf_load_u32(key->data);
                return true;
        case GGUF_U64:
                memcpy(out, key->data, sizeof(*out));
                return true;
        case GGUF_I8:
                value = key->data[0] < 128 ? key->data[0] : key->data[0] - 256;
                break;
        case GGUF_I16: {
                int16_t narrow;

                memcpy(&narrow, key->data, sizeof(narrow));
                value = narrow;
                break;
        }
        case GGUF_I32:
                value = (int32_t)gguf_load_u32(key->data);
                break;
        case GGUF_I64:
                memcpy(&value, key->data, sizeof(value));
                break;
        case GGUF_F32:
        case GGUF_BOOL:
        case GGUF_STRING:
        case GGUF_ARRAY:
        case GGUF_F64:
                return false;
        }
        *negative = value < 0;
        *out = (uint64_t)value;
        return true;
}

int gguf_get_u64(const struct gguf *gguf, const char *name, uint64_t minimum, uint64_t maximum,
                 uint64_t *out, struct gen_error *error)
{
        const struct gguf_key *key = find(gguf, name, error);
        bool negative;

        if (!key)
                return GGUF_E_MISSING;
        if (!load_integer(key, &negative, out))
                return wrong_type(key, name, "an integer", error);
        if (negative || *out < minimum || *out > maximum)
                return gen_fail(error, -EINVAL,
                                "byte %" PRIu64 ": key %s is %s%" PRIu64 ", allowed are %" PRIu64
                                " to %" PRIu64,
                                key->at, name, negative ? "-" : "", negative ? -*out : *out,
                                minimum, maximum);
        return 0;
}

int gguf_get_f32(const struct gguf *gguf, const char *name, float *out, struct gen_error *error)
{
        const struct gguf_key *key = find(gguf, name, error);

        if (!key)
                return GGUF_E_MISSING;
        if (key->type == GGUF_F32) {
                *out = gguf_load_f32(key->data);
                return 0;
        }
        if (key->type == GGUF_F64) {
                double wide;

                memcpy(&wide, key->data, sizeof(wide));
                *out = (float)wide;
                return 0;
        }
        return wrong_type(key, name, "f32 or f64", error);
}

int gguf_get_bool(const struct gguf *gguf, const char *name, bool *out, struct gen_error *error)
{
        const struct gguf_key *key = find(gguf, name, error);

        if (!key)
                return GGUF_E_MISSING;
        if (key->type != GGUF_BOOL)
                return wrong_type(key, name, "a bool", error);
        *out = key->data[0] != 0;
        return 0;
}

int gguf_get_string(const struct gguf *gguf, const char *name, struct gguf_string *out,
                    struct gen_error *error)
{
        const struct gguf_key *key = find(gguf, name, error);
        const unsigned char *cursor;

        if (!key)
                return GGUF_E_MISSING;
        if (key->type != GGUF_STRING)
                return wrong_type(key, name, "a string", error);
        cursor = key->data;
        *out = gguf_next_string(&cursor);
        return 0;
}

int gguf_get_array(const struct gguf *gguf, const char *name, enum gguf_type item_type,
                   const struct gguf_key **out, struct gen_error *error)
{
        const struct gguf_key *key = find(gguf, name, error);

        if (!key)
                return GGUF_E_MISSING;
        if (key->type != GGUF_ARRAY || key->item_type != item_type) {
                char wanted[32];

                snprintf(wanted, sizeof(wanted), "an array of %s", gguf_type_name(item_type));
                return wrong_type(key, name, wanted, error);
        }
        *out = key;
        return 0;
}

struct gguf_string gguf_next_string(const unsigned char **cursor)
{
        struct gguf_string string;

        memcpy(&string.bytes, *cursor, sizeof(string.bytes));
        string.data = (const char *)*cursor + 8;
        *cursor += 8 + string.bytes;
        return string;
}

bool gguf_string_is(struct gguf_string string, const char *text)
{
        return string.bytes == strlen(text) && !memcmp(string.data, text, string.bytes);
}
