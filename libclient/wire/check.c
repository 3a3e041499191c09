/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every message looks like: one table for both sides and for the names of the types.
 */
#include <errno.h>
#include <string.h>

#include "libclient/wire/wire.h"

/* Where to find a field that a type does not have. */
#define NONE UINT16_MAX

/* How many descriptors a type carries. */
enum fds_rule {
        FDS_NONE,
        FDS_PER_FRAME, /* one per id */
};

struct shape {
        const char *name;
        uint16_t type;
        uint8_t direction; /* enum wire_direction */
        uint8_t fds;       /* enum fds_rule */
        uint16_t size;     /* of the struct; of the part before frame_ids where it has ids */
        uint16_t count;    /* offset of the uint32_t that counts frame_ids; NONE: no ids */
        uint16_t counted;  /* offset of a uint32_t with bounds but no ids behind it; or NONE */
        uint16_t limit;    /* highest value of that count; the lowest is 1 */
        uint16_t reserved; /* offset of a uint32_t that must be zero; or NONE */
        uint16_t text;     /* offset of a name or text; or NONE */
        uint16_t text_size;
};

#define SHAPE(type_, direction_, struct_)                                                          \
        .name = #type_, .type = GPUMEM_MESSAGE_##type_, .direction = direction_,                   \
        .size = sizeof(struct struct_)
#define BARE                .count = NONE, .counted = NONE, .reserved = NONE, .text = NONE
#define AT(struct_, field_) offsetof(struct struct_, field_)

static const struct shape shapes[] = {
        {SHAPE(ERROR, WIRE_TO_CLIENT, gpumem_message_error), .count = NONE, .counted = NONE,
         .reserved = AT(gpumem_message_error, reserved), .text = AT(gpumem_message_error, text),
         .text_size = GPUMEM_TEXT_MAX},
        {SHAPE(HELLO, WIRE_TO_DAEMON, gpumem_message_hello), .count = NONE, .counted = NONE,
         .reserved = AT(gpumem_message_hello, reserved), .text = AT(gpumem_message_hello, name),
         .text_size = GPUMEM_NAME_MAX},
        {SHAPE(HELLO_REPLY, WIRE_TO_CLIENT, gpumem_message_hello_reply), BARE},
        {SHAPE(OBJECT_CREATE, WIRE_TO_DAEMON, gpumem_message_object_create), .count = NONE,
         .counted = NONE, .reserved = NONE, .text = AT(gpumem_message_object_create, name),
         .text_size = GPUMEM_NAME_MAX},
        {SHAPE(OBJECT_CREATE_REPLY, WIRE_TO_CLIENT, gpumem_message_object_create_reply), BARE},
        {SHAPE(OBJECT_DESTROY, WIRE_TO_DAEMON, gpumem_message_object_destroy), BARE},
        {SHAPE(OBJECT_DESTROY_REPLY, WIRE_TO_CLIENT, gpumem_message_object_destroy_reply), BARE},
        {SHAPE(GRANT, WIRE_TO_DAEMON, gpumem_message_grant), .count = NONE,
         .counted = AT(gpumem_message_grant, frames), .limit = GPUMEM_MESSAGE_FDS_MAX,
         .reserved = NONE, .text = NONE},
        {SHAPE(GRANT_REPLY, WIRE_TO_CLIENT, gpumem_message_grant_reply), .fds = FDS_PER_FRAME,
         .count = AT(gpumem_message_grant_reply, frames), .counted = NONE,
         .limit = GPUMEM_MESSAGE_FDS_MAX, .reserved = AT(gpumem_message_grant_reply, reserved),
         .text = NONE},
        {SHAPE(RETURN, WIRE_TO_DAEMON, gpumem_message_return),
         .count = AT(gpumem_message_return, frames), .counted = NONE,
         .limit = GPUMEM_RETURN_FRAMES_MAX, .reserved = AT(gpumem_message_return, reserved),
         .text = NONE},
        {SHAPE(RETURN_REPLY, WIRE_TO_CLIENT, gpumem_message_return_reply), BARE},
        {SHAPE(MEMINFO, WIRE_TO_DAEMON, gpumem_message_meminfo), BARE},
        {SHAPE(MEMINFO_REPLY, WIRE_TO_CLIENT, gpumem_message_meminfo_reply), BARE},
        {SHAPE(REPLAY, WIRE_TO_DAEMON, gpumem_message_replay), BARE},
        {SHAPE(EVENT_RESUMED, WIRE_TO_CLIENT, gpumem_message_event_resumed), .count = NONE,
         .counted = NONE, .reserved = AT(gpumem_message_event_resumed, reserved), .text = NONE},
        {SHAPE(EVENT_RECLAIM, WIRE_TO_CLIENT, gpumem_message_event_reclaim), BARE},
        {SHAPE(EVENT_DEVICE, WIRE_TO_CLIENT, gpumem_message_event_device), .count = NONE,
         .counted = NONE, .reserved = AT(gpumem_message_event_device, reserved), .text = NONE},
};

_Static_assert(sizeof(struct gpumem_message_return) + 8 * GPUMEM_RETURN_FRAMES_MAX <=
                       GPUMEM_MESSAGE_MAX,
               "a RETURN of the most frames fits a message");
_Static_assert(sizeof(struct gpumem_message_header) == 16 &&
                       sizeof(struct gpumem_message_error) % 8 == 0 &&
                       sizeof(struct gpumem_message_hello) % 8 == 0 &&
                       sizeof(struct gpumem_message_hello_reply) % 8 == 0 &&
                       sizeof(struct gpumem_message_object_create) % 8 == 0 &&
                       sizeof(struct gpumem_message_grant) % 8 == 0 &&
                       sizeof(struct gpumem_message_grant_reply) % 8 == 0 &&
                       sizeof(struct gpumem_message_return) % 8 == 0 &&
                       sizeof(struct gpumem_message_event_device) % 8 == 0,
               "every message is a multiple of 8 bytes");

static const struct shape *shape_find(uint16_t type)
{
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
                if (shapes[i].type == type)
                        return &shapes[i];
        return NULL;
}

static uint32_t field(const void *message, uint16_t offset)
{
        uint32_t value;

        memcpy(&value, (const char *)message + offset, sizeof(value));
        return value;
}

int wire_check(const void *message, size_t length, size_t fds_count, enum wire_direction direction)
{
        const struct gpumem_message_header *header = message;
        const struct shape *shape;
        size_t expected, expected_fds = 0;

        if (length < sizeof(*header) || length > GPUMEM_MESSAGE_MAX || header->length != length)
                return WIRE_BAD_LENGTH;
        shape = shape_find(header->type);
        if (!shape || shape->direction != direction)
                return WIRE_BAD_TYPE;
        if (header->flags != 0)
                return WIRE_BAD_FLAGS;
        if (header->fds != fds_count)
                return WIRE_BAD_FDS;
        if ((header->serial == 0) != ((header->type & GPUMEM_MESSAGE_EVENT) != 0))
                return WIRE_BAD_SERIAL;

        expected = shape->size;
        if (length < expected)
                return WIRE_BAD_LENGTH;
        if (shape->count != NONE || shape->counted != NONE) {
                uint32_t count =
                        field(message, shape->count != NONE ? shape->count : shape->counted);

                if (count < 1 || count > shape->limit)
                        return WIRE_BAD_COUNT;
                if (shape->count != NONE)
                        expected += count * sizeof(uint64_t);
                if (shape->fds == FDS_PER_FRAME)
                        expected_fds = count;
        }
        if (length != expected)
                return WIRE_BAD_LENGTH;
        if (fds_count != expected_fds)
                return WIRE_BAD_FDS;
        if (shape->reserved != NONE && field(message, shape->reserved) != 0)
                return WIRE_BAD_FLAGS;
        if (shape->text != NONE)
                return wire_text_check((const char *)message + shape->text, shape->text_size,
                                       header->type == GPUMEM_MESSAGE_ERROR);
        return WIRE_OK;
}

/* Length of the well-formed UTF-8 sequence at `s` (Unicode 15, table 3-7), 0 if there is none; the
 * code point goes to *point. Never reads past a NUL. */
static size_t utf8_next(const unsigned char *s, uint32_t *point)
{
        static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
        size_t length;

        if (s[0] < 0x80) {
                *point = s[0];
                return 1;
        }
        if (s[0] >= 0xc2 && s[0] <= 0xdf) {
                length = 2;
                *point = s[0] & 0x1fu;
        } else if (s[0] >= 0xe0 && s[0] <= 0xef) {
                length = 3;
                *point = s[0] & 0x0fu;
        } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
                length = 4;
                *point = s[0] & 0x07u;
        } else {
                return 0;
        }
        for (size_t i = 1; i < length; i++) {
                if ((s[i] & 0xc0u) != 0x80u)
                        return 0;
                *point = *point << 6 | (s[i] & 0x3fu);
        }
        if (*point < lowest[length] || *point > 0x10ffff || (*point >= 0xd800 && *point <= 0xdfff))
                return 0;
        return length;
}

int wire_text_check(const char *text, size_t size, int multiline)
{
        const unsigned char *s = (const unsigned char *)text;

        if (!memchr(text, 0, size))
                return WIRE_BAD_TEXT;
        while (*s) {
                uint32_t point;
                size_t length = utf8_next(s, &point);

                if (length == 0)
                        return WIRE_BAD_TEXT;
                if ((point < 0x20 && !(multiline && point == '\n')) ||
                    (point >= 0x7f && point <= 0x9f))
                        return WIRE_BAD_TEXT;
                s += length;
        }
        return WIRE_OK;
}

const char *wire_type_text(uint16_t type)
{
        const struct shape *shape = shape_find(type);

        return shape ? shape->name : "unknown";
}

const char *wire_problem_text(int problem)
{
        static const char *const texts[WIRE_PROBLEM_COUNT] = {
                [WIRE_OK] = "well-formed",
                [WIRE_CLOSED] = "the peer closed the connection",
                [WIRE_TRUNCATED] = "the packet is larger than a message may be",
                [WIRE_FDS_LOST] =
                        "descriptors were lost on the way: too many came, or this process "
                        "is at its limit of open files",
                [WIRE_BAD_LENGTH] = "the message's length does not fit its type and count",
                [WIRE_BAD_TYPE] = "unknown message type",
                [WIRE_BAD_FLAGS] = "a flag or reserved field is not zero",
                [WIRE_BAD_SERIAL] = "the serial does not fit the type",
                [WIRE_BAD_FDS] = "the number of descriptors is wrong",
                [WIRE_BAD_COUNT] = "a count is zero or above its limit",
                [WIRE_BAD_TEXT] = "a name is not terminated, not UTF-8, or has control characters",
        };

        if (problem < 0 || problem >= WIRE_PROBLEM_COUNT)
                return "unknown problem";
        return texts[problem];
}

const char *wire_error_text(int code)
{
        static const char *const texts[] = {
                "GPUMEM_OK",          "GPUMEM_E_INVALID",  "GPUMEM_E_AGAIN",
                "GPUMEM_E_NO_MEMORY", "GPUMEM_E_DOWN",     "GPUMEM_E_UNSUPPORTED",
                "GPUMEM_E_TIMEOUT",   "GPUMEM_E_PROTOCOL", "GPUMEM_E_NOT_FOUND",
                "GPUMEM_E_BUSY",      "GPUMEM_E_LIMIT",    "GPUMEM_E_PERMISSION",
                "GPUMEM_E_DEVICE",    "GPUMEM_E_MISMATCH", "GPUMEM_E_FORKED",
                "GPUMEM_E_STATE",
        };
        unsigned index = code < 0 ? 0u - (unsigned)code : (unsigned)code;

        if (index >= sizeof(texts) / sizeof(texts[0]))
                return "unknown";
        return texts[index];
}
