/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structured messages: a level, a sentence, and fields as key=value, one line each on a descriptor
 * (stderr). Logging never blocks the daemon: a line that the descriptor does not take at once is
 * dropped, and the next line that gets through says how many were. Only the loop's thread logs.
 *
 * If the descriptor leads to the systemd journal, the same messages go there as structured entries
 * instead (journal.h).
 */
#ifndef GPUMEMD_LOG_H
#define GPUMEMD_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/journal.h"

enum log_level {
        LOG_LEVEL_ERROR,   /* something is lost or refused for good; a person should look */
        LOG_LEVEL_WARNING, /* something went wrong and was coped with */
        LOG_LEVEL_INFO,    /* life of the daemon, devices and sessions */
        LOG_LEVEL_DEBUG,   /* every decision */
        LOG_LEVEL_COUNT,
};

struct log {
        int fd;
        enum log_level level; /* the least urgent level that is written */
        uint64_t dropped;
        struct journal journal; /* in use if fd is the journal's */
};

enum log_field_kind {
        LOG_FIELD_TEXT,
        LOG_FIELD_UNSIGNED,
        LOG_FIELD_SIGNED,
        LOG_FIELD_MESSAGE_ID, /* for the journal only */
};

/* Keys are words of lower-case letters and underscores. Values may be anything: they are quoted and
 * escaped as needed. */
struct log_field {
        const char *key;
        enum log_field_kind kind;
        union {
                const char *text;
                uint64_t u;
                int64_t i;
        };
};

#define LOG_TEXT(key_, value_)                                                                     \
        {                                                                                          \
                .key = (key_), .kind = LOG_FIELD_TEXT, .text = (value_)                            \
        }
#define LOG_U64(key_, value_)                                                                      \
        {                                                                                          \
                .key = (key_), .kind = LOG_FIELD_UNSIGNED, .u = (value_)                           \
        }
#define LOG_I64(key_, value_)                                                                      \
        {                                                                                          \
                .key = (key_), .kind = LOG_FIELD_SIGNED, .i = (value_)                             \
        }

/* What kind of event it is: one of journal.h's MESSAGE_ID_*. */
#define LOG_ID(id_)                                                                                \
        {                                                                                          \
                .key = "message_id", .kind = LOG_FIELD_MESSAGE_ID, .text = (id_)                   \
        }

/* `fd` is borrowed. -1: nothing is written. */
void log_init(struct log *log, int fd, enum log_level level);

/* Idempotent. */
void log_deinit(struct log *log);

/* `fields` ends with a field whose key is NULL. */
void log_write(struct log *log, enum log_level level, const char *message,
               const struct log_field *fields);

/* log_at(log, level, "sentence", LOG_U64("frames", 3), ...). (The sentence stands first in the
 * array so that there may be no fields without C23's help.) */
#define log_at(log_, level_, message_, ...)                                                        \
        do {                                                                                       \
                const struct log_field log_fields_[] = {                                           \
                        LOG_TEXT("message", (message_)), ##__VA_ARGS__, {.key = NULL}};            \
                if ((level_) <= (log_)->level)                                                     \
                        log_write((log_), (level_), (message_), log_fields_ + 1);                  \
        } while (0)
#define log_error(log_, ...)   log_at(log_, LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(log_, ...) log_at(log_, LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(log_, ...)    log_at(log_, LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(log_, ...)   log_at(log_, LOG_LEVEL_DEBUG, __VA_ARGS__)

/* "error", "warning", "info", "debug". */
const char *log_level_name(enum log_level level);
/* 0 or -EINVAL. */
int log_level_parse(const char *word, enum log_level *out);

/*
 * How often one origin of trouble may be logged: LOG_LIMIT_BURST lines in LOG_LIMIT_WINDOW_NS, the
 * rest is counted. Zeroed is ready.
 */
#define LOG_LIMIT_BURST     8
#define LOG_LIMIT_WINDOW_NS UINT64_C(30000000000)
struct log_limit {
        uint64_t window_ns; /* start of the window */
        uint32_t written;
        uint64_t suppressed; /* since the last line */
};

/* May a line be written now? If so, *suppressed says how many were not since the last one. */
bool log_limit_allow(struct log_limit *limit, uint64_t now_ns, uint64_t *suppressed);

#endif
