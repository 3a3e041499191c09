/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "daemon/log.h"

/* Under PIPE_BUF, so that a line is written whole or not at all. */
#define LINE_MAX_BYTES 2048

struct line {
        char bytes[LINE_MAX_BYTES];
        size_t length;
};

static const char *const level_names[LOG_LEVEL_COUNT] = {
        [LOG_LEVEL_ERROR] = "error",
        [LOG_LEVEL_WARNING] = "warning",
        [LOG_LEVEL_INFO] = "info",
        [LOG_LEVEL_DEBUG] = "debug",
};

static const int level_priorities[LOG_LEVEL_COUNT] = {
        [LOG_LEVEL_ERROR] = LOG_ERR,
        [LOG_LEVEL_WARNING] = LOG_WARNING,
        [LOG_LEVEL_INFO] = LOG_INFO,
        [LOG_LEVEL_DEBUG] = LOG_DEBUG,
};

const char *log_level_name(enum log_level level)
{
        return (unsigned)level < LOG_LEVEL_COUNT ? level_names[level] : "unknown";
}

int log_level_parse(const char *word, enum log_level *out)
{
        for (unsigned i = 0; i < LOG_LEVEL_COUNT; i++) {
                if (strcmp(word, level_names[i]) == 0) {
                        *out = (enum log_level)i;
                        return 0;
                }
        }
        return -EINVAL;
}

void log_init(struct log *log, int fd, enum log_level level)
{
        *log = (struct log){.fd = fd, .level = level};
        /* Without the journal's socket, lines do. */
        if (fd >= 0)
                journal_open(&log->journal, fd, JOURNAL_SOCKET);
}

void log_deinit(struct log *log)
{
        journal_close(&log->journal);
}

/* What does not fit is cut; one byte stays free for the newline. */
static void put(struct line *line, const char *bytes, size_t length)
{
        size_t room = sizeof(line->bytes) - 1 - line->length;

        if (length > room)
                length = room;
        memcpy(line->bytes + line->length, bytes, length);
        line->length += length;
}

static void put_text(struct line *line, const char *text)
{
        put(line, text, strlen(text));
}

static bool needs_quotes(const char *text)
{
        if (!*text)
                return true;
        for (const unsigned char *c = (const unsigned char *)text; *c; c++)
                if (*c <= ' ' || *c == '"' || *c == '\\' || *c == '=' || *c == 0x7f)
                        return true;
        return false;
}

/* Values come from clients too: nothing in them may end the line or look like another field. */
static void put_value(struct line *line, const char *text)
{
        if (!needs_quotes(text)) {
                put_text(line, text);
                return;
        }
        put(line, "\"", 1);
        for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
                char escaped[8];

                if (*c == '"' || *c == '\\') {
                        escaped[0] = '\\';
                        escaped[1] = (char)*c;
                        put(line, escaped, 2);
                } else if (*c < ' ' || *c == 0x7f) {
                        snprintf(escaped, sizeof(escaped), "\\x%02x", *c);
                        put_text(line, escaped);
                } else {
                        put(line, (const char *)c, 1);
                }
        }
        put(line, "\"", 1);
}

static void put_field(struct line *line, const struct log_field *field)
{
        char number[32];

        if (field->kind == LOG_FIELD_MESSAGE_ID)
                return;
        put(line, " ", 1);
        put_text(line, field->key);
        put(line, "=", 1);
        switch (field->kind) {
        case LOG_FIELD_MESSAGE_ID:
        case LOG_FIELD_TEXT:
                put_value(line, field->text ? field->text : "");
                break;
        case LOG_FIELD_UNSIGNED:
                snprintf(number, sizeof(number), "%" PRIu64, field->u);
                put_text(line, number);
                break;
        case LOG_FIELD_SIGNED:
                snprintf(number, sizeof(number), "%" PRId64, field->i);
                put_text(line, number);
                break;
        }
}

static bool writable(int fd)
{
        struct pollfd poller = {.fd = fd, .events = POLLOUT};

        return poll(&poller, 1, 0) > 0 && (poller.revents & POLLOUT);
}

/* true: nothing more is to be done with it. */
static bool write_to_journal(struct log *log, enum log_level level, const struct line *line,
                             size_t sentence, const struct log_field *fields)
{
        int r;

        if (!log->journal.open)
                return false;
        r = journal_send(&log->journal, level_priorities[level], line->bytes + sentence,
                         line->length - sentence, fields, log->dropped);
        if (r == 0)
                log->dropped = 0;
        else if (r == -EAGAIN)
                log->dropped++;
        /* Otherwise it is not there: what reads the descriptor may be. */
        return r == 0 || r == -EAGAIN;
}

void log_write(struct log *log, enum log_level level, const char *message,
               const struct log_field *fields)
{
        struct line line;
        size_t sentence;

        line.length = 0;
        if (level > log->level || log->fd < 0)
                return;
        put_text(&line, "gpumemd: ");
        put_text(&line, log_level_name(level));
        put_text(&line, ": ");
        sentence = line.length;
        put_text(&line, message);
        for (const struct log_field *field = fields; field && field->key; field++)
                put_field(&line, field);
        if (write_to_journal(log, level, &line, sentence, fields))
                return;
        if (log->dropped > 0)
                put_field(&line, &(struct log_field)LOG_U64("lines_dropped_before", log->dropped));
        line.bytes[line.length++] = '\n';
        if (!writable(log->fd) || write(log->fd, line.bytes, line.length) != (ssize_t)line.length) {
                log->dropped++;
                return;
        }
        log->dropped = 0;
}

bool log_limit_allow(struct log_limit *limit, uint64_t now_ns, uint64_t *suppressed)
{
        if (limit->window_ns == 0 || now_ns - limit->window_ns >= LOG_LIMIT_WINDOW_NS) {
                limit->window_ns = now_ns;
                limit->written = 0;
        }
        if (limit->written >= LOG_LIMIT_BURST) {
                limit->suppressed++;
                return false;
        }
        limit->written++;
        *suppressed = limit->suppressed;
        limit->suppressed = 0;
        return true;
}
