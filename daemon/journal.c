/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/journal.h"
#include "daemon/log.h"

#define ENTRY_MAX_BYTES 8192
#define NAME_MAX_BYTES  64 /* the journal's own limit */

struct entry {
        char bytes[ENTRY_MAX_BYTES];
        size_t length;
};

/* JOURNAL_STREAM is "device:inode" of the descriptor that systemd connected to the journal. A
 * program that was given another stderr since inherits the variable but not the stream. */
static bool is_journal_stream(int fd)
{
        const char *text = getenv("JOURNAL_STREAM");
        unsigned long long device, inode;
        struct stat status;
        int end = 0;

        return text && sscanf(text, "%llu:%llu%n", &device, &inode, &end) == 2 &&
               text[end] == '\0' && fstat(fd, &status) == 0 &&
               (unsigned long long)status.st_dev == device &&
               (unsigned long long)status.st_ino == inode;
}

int journal_open(struct journal *journal, int stream_fd, const char *path)
{
        *journal = (struct journal){.address = {.sun_family = AF_UNIX}};
        if (!is_journal_stream(stream_fd))
                return -ENOENT;
        if (strlen(path) >= sizeof(journal->address.sun_path))
                return -ENAMETOOLONG;
        memcpy(journal->address.sun_path, path, strlen(path) + 1);
        /* Not connected: the journal may be restarted, and its socket made anew. */
        journal->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (journal->fd < 0)
                return -errno;
        journal->open = true;
        return 0;
}

void journal_close(struct journal *journal)
{
        if (journal->open)
                close(journal->fd);
        journal->open = false;
}

/* NAME, newline, length as 64 bits little-endian, value, newline: a value may hold anything. All of
 * it or nothing. */
static void put(struct entry *entry, const char *name, const char *value, size_t length)
{
        size_t name_length = strnlen(name, NAME_MAX_BYTES);
        char *out = entry->bytes + entry->length;

        if (sizeof(entry->bytes) - entry->length < name_length + length + 10)
                return;
        memcpy(out, name, name_length);
        out += name_length;
        *out++ = '\n';
        for (unsigned i = 0; i < 8; i++)
                *out++ = (char)((uint64_t)length >> (8 * i) & 0xff);
        memcpy(out, value, length);
        out[length] = '\n';
        entry->length += name_length + length + 10;
}

static void put_text(struct entry *entry, const char *name, const char *value)
{
        put(entry, name, value, strlen(value));
}

static void put_field(struct entry *entry, const struct log_field *field)
{
        char name[NAME_MAX_BYTES + 1], number[32];
        size_t length;

        if (field->kind == LOG_FIELD_MESSAGE_ID) {
                put_text(entry, "MESSAGE_ID", field->text);
                return;
        }
        length = (size_t)snprintf(name, sizeof(name), "GPUMEM_%s", field->key);
        if (length >= sizeof(name))
                return;
        for (size_t i = 0; i < length; i++)
                name[i] = (char)toupper((unsigned char)name[i]);
        switch (field->kind) {
        case LOG_FIELD_UNSIGNED:
                snprintf(number, sizeof(number), "%" PRIu64, field->u);
                put_text(entry, name, number);
                break;
        case LOG_FIELD_SIGNED:
                snprintf(number, sizeof(number), "%" PRId64, field->i);
                put_text(entry, name, number);
                break;
        case LOG_FIELD_TEXT:
        case LOG_FIELD_MESSAGE_ID:
                put_text(entry, name, field->text ? field->text : "");
                break;
        }
}

int journal_send(struct journal *journal, int priority, const char *message, size_t length,
                 const struct log_field *fields, uint64_t dropped)
{
        struct entry entry;
        char number[32];

        entry.length = 0;
        snprintf(number, sizeof(number), "%d", priority);
        put_text(&entry, "PRIORITY", number);
        put_text(&entry, "SYSLOG_IDENTIFIER", "gpumemd");
        put(&entry, "MESSAGE", message, length);
        for (; fields && fields->key; fields++)
                put_field(&entry, fields);
        if (dropped > 0)
                put_field(&entry, &(struct log_field)LOG_U64("lines_dropped_before", dropped));
        if (sendto(journal->fd, entry.bytes, entry.length, MSG_DONTWAIT | MSG_NOSIGNAL,
                   (const struct sockaddr *)&journal->address, sizeof(journal->address)) < 0)
                return -errno;
        return 0;
}
