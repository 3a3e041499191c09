/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as the journal gets them: a socket of our own stands for the journal's. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/log.h"
#include "tests/support/daemon_unit.h"

static char directory[] = "/tmp/gpumem-test-journal-XXXXXX";
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static int receiver = -1, stream[2];
static struct log logger;
static char entry[65536];
static ssize_t entry_length;

static void name_stream(int fd, unsigned long long inode_more)
{
        struct stat status;
        char text[64];

        if (fstat(fd, &status) < 0)
                abort();
        snprintf(text, sizeof(text), "%llu:%llu", (unsigned long long)status.st_dev,
                 (unsigned long long)status.st_ino + inode_more);
        setenv("JOURNAL_STREAM", text, 1);
}

static void open_receiver(void)
{
        receiver = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (receiver < 0 || bind(receiver, (struct sockaddr *)&address, sizeof(address)) < 0)
                abort();
}

static void close_receiver(void)
{
        close(receiver);
        unlink(address.sun_path);
}

static void open_log(void)
{
        if (pipe2(stream, O_NONBLOCK | O_CLOEXEC) < 0)
                abort();
        unsetenv("JOURNAL_STREAM");
        log_init(&logger, stream[1], LOG_LEVEL_INFO);
        CU_ASSERT_FALSE(logger.journal.open);
        name_stream(stream[1], 0);
        CU_ASSERT_EQUAL(journal_open(&logger.journal, stream[1], address.sun_path), 0);
        CU_ASSERT_TRUE(logger.journal.open);
}

static void close_log(void)
{
        log_deinit(&logger);
        CU_ASSERT_FALSE(logger.journal.open);
        log_deinit(&logger);
        close(stream[0]);
        close(stream[1]);
}

static int receive(void)
{
        entry_length = recv(receiver, entry, sizeof(entry), 0);
        return entry_length > 0;
}

/* The value of `name` in the entry; its fields are all NAME, newline, length, value, newline.
 * NULL: it is not there, or the entry is not well-formed. */
static const char *value_of(const char *name)
{
        static char value[16384];
        ssize_t at = 0;

        while (at < entry_length) {
                const char *end = memchr(entry + at, '\n', (size_t)(entry_length - at));
                uint64_t length = 0;
                ssize_t start;
                int found;

                if (!end || entry + entry_length - end < 9)
                        return NULL;
                for (int i = 0; i < 8; i++)
                        length |= (uint64_t)(unsigned char)end[1 + i] << (8 * i);
                start = end - entry + 9;
                if (length >= sizeof(value) || start + (ssize_t)length + 1 > entry_length ||
                    entry[start + (ssize_t)length] != '\n')
                        return NULL;
                found = (size_t)(end - entry - at) == strlen(name) &&
                        memcmp(entry + at, name, strlen(name)) == 0;
                if (found) {
                        memcpy(value, entry + start, length);
                        value[length] = '\0';
                        return value;
                }
                at = start + (ssize_t)length + 1;
        }
        return NULL;
}

static int has(const char *name, const char *value)
{
        const char *got = value_of(name);

        if (got && strcmp(got, value) == 0)
                return 1;
        fprintf(stderr, "%s is '%s', not '%s'\n", name, got ? got : "(missing)", value);
        return 0;
}

static const char *lines(void)
{
        static char text[8192];
        ssize_t n = read(stream[0], text, sizeof(text) - 1);

        text[n > 0 ? n : 0] = '\0';
        return text;
}

static void test_fields(void)
{
        open_receiver();
        open_log();
        log_info(&logger, "a sentence", LOG_ID(MESSAGE_ID_READY), LOG_U64("frames", UINT64_MAX),
                 LOG_I64("pid", -3), LOG_TEXT("name", "two words"), LOG_TEXT("null", NULL));
        CU_ASSERT_FATAL(receive());
        CU_ASSERT(has("MESSAGE", "a sentence frames=18446744073709551615 pid=-3 "
                                 "name=\"two words\" null=\"\""));
        CU_ASSERT(has("MESSAGE_ID", MESSAGE_ID_READY));
        CU_ASSERT(has("PRIORITY", "6"));
        CU_ASSERT(has("SYSLOG_IDENTIFIER", "gpumemd"));
        CU_ASSERT(has("GPUMEM_FRAMES", "18446744073709551615"));
        CU_ASSERT(has("GPUMEM_PID", "-3"));
        CU_ASSERT(has("GPUMEM_NAME", "two words"));
        CU_ASSERT(has("GPUMEM_NULL", ""));
        CU_ASSERT_PTR_NULL(value_of("GPUMEM_MESSAGE_ID"));
        CU_ASSERT_PTR_NULL(value_of("GPUMEM_LINES_DROPPED_BEFORE"));
        CU_ASSERT_STRING_EQUAL(lines(), ""); /* not twice */

        log_error(&logger, "e");
        CU_ASSERT(receive() && has("PRIORITY", "3") && has("MESSAGE", "e"));
        CU_ASSERT_PTR_NULL(value_of("MESSAGE_ID"));
        log_warning(&logger, "w");
        CU_ASSERT(receive() && has("PRIORITY", "4"));
        log_debug(&logger, "d");
        CU_ASSERT_FALSE(receive());
        logger.level = LOG_LEVEL_DEBUG;
        log_debug(&logger, "d");
        CU_ASSERT(receive() && has("PRIORITY", "7"));
        close_log();
        close_receiver();
}

/* A client's words stay one value, whatever is in them. */
static void test_hostile_values(void)
{
        const char *name = "x\nPRIORITY=0\nMESSAGE_ID\n\x01\x01";

        open_receiver();
        open_log();
        log_info(&logger, "m", LOG_TEXT("name", name));
        CU_ASSERT(receive());
        CU_ASSERT(has("GPUMEM_NAME", name));
        CU_ASSERT(has("PRIORITY", "6"));
        CU_ASSERT_PTR_NULL(value_of("MESSAGE_ID"));
        CU_ASSERT(has("MESSAGE", "m name=\"x\\x0aPRIORITY=0\\x0aMESSAGE_ID\\x0a\\x01\\x01\""));
        close_log();
        close_receiver();
}

static void test_too_long(void)
{
        static char value[10000];

        memset(value, 'v', sizeof(value) - 1);
        open_receiver();
        open_log();
        log_info(&logger, "m", LOG_TEXT("long", value), LOG_U64("after", 7));
        CU_ASSERT(receive());
        CU_ASSERT_PTR_NULL(value_of("GPUMEM_LONG"));
        CU_ASSERT(has("GPUMEM_AFTER", "7"));
        CU_ASSERT_PTR_NOT_NULL(value_of("MESSAGE"));
        CU_ASSERT_EQUAL(strlen(value_of("MESSAGE")) > 1000, 1); /* cut, but there */
        log_write(
                &logger, LOG_LEVEL_INFO, "m",
                (const struct log_field[]){
                        LOG_U64("a_key_that_is_longer_than_the_journal_allows_for_a_field_name", 1),
                        LOG_U64("b", 2),
                        {.key = NULL}});
        CU_ASSERT(receive());
        CU_ASSERT(has("GPUMEM_B", "2"));
        close_log();
        close_receiver();
}

/* A journal that does not read costs entries, never time; the next one says how many. */
static void test_full(void)
{
        unsigned sent = 0, received = 0;
        char number[32];

        open_receiver();
        open_log();
        while (logger.dropped < 5 && sent < 100000) {
                log_info(&logger, "m", LOG_U64("number", sent));
                sent++;
        }
        CU_ASSERT_EQUAL(logger.dropped, 5);
        CU_ASSERT_STRING_EQUAL(lines(), "");
        while (receive())
                received++;
        CU_ASSERT_EQUAL(received, sent - 5);
        log_info(&logger, "again");
        CU_ASSERT(receive());
        snprintf(number, sizeof(number), "%u", 5u);
        CU_ASSERT(has("GPUMEM_LINES_DROPPED_BEFORE", number));
        CU_ASSERT_EQUAL(logger.dropped, 0);
        log_info(&logger, "again");
        CU_ASSERT(receive());
        CU_ASSERT_PTR_NULL(value_of("GPUMEM_LINES_DROPPED_BEFORE"));
        close_log();
        close_receiver();
}

/* No journal any more: lines; and it may come back. */
static void test_away(void)
{
        open_receiver();
        open_log();
        close_receiver();
        log_info(&logger, "x", LOG_ID(MESSAGE_ID_READY), LOG_U64("frames", 1));
        CU_ASSERT_STRING_EQUAL(lines(), "gpumemd: info: x frames=1\n");
        open_receiver();
        log_info(&logger, "y");
        CU_ASSERT_STRING_EQUAL(lines(), "");
        CU_ASSERT(receive() && has("MESSAGE", "y"));
        close_log();
        close_receiver();
}

/* Only the very descriptor that the variable names is the journal's. */
static void test_stream(void)
{
        struct journal journal = {0};
        int pair[2], before = unit_count_fds();

        if (pipe2(pair, O_CLOEXEC) < 0)
                abort();
        unsetenv("JOURNAL_STREAM");
        CU_ASSERT_EQUAL(journal_open(&journal, pair[1], address.sun_path), -ENOENT);
        name_stream(pair[1], 1);
        CU_ASSERT_EQUAL(journal_open(&journal, pair[1], address.sun_path), -ENOENT);
        setenv("JOURNAL_STREAM", "what", 1);
        CU_ASSERT_EQUAL(journal_open(&journal, pair[1], address.sun_path), -ENOENT);
        setenv("JOURNAL_STREAM", "", 1);
        CU_ASSERT_EQUAL(journal_open(&journal, pair[1], address.sun_path), -ENOENT);
        name_stream(pair[1], 0);
        setenv("JOURNAL_STREAM", strcat(strcpy(entry, getenv("JOURNAL_STREAM")), "0x"), 1);
        CU_ASSERT_EQUAL(journal_open(&journal, pair[1], address.sun_path), -ENOENT);
        name_stream(pair[1], 0);
        CU_ASSERT_EQUAL(journal_open(&journal, -1, address.sun_path), -ENOENT);
        memset(entry, 'p', 200);
        entry[200] = '\0';
        CU_ASSERT_EQUAL(journal_open(&journal, pair[1], entry), -ENAMETOOLONG);
        CU_ASSERT_FALSE(journal.open);
        CU_ASSERT_EQUAL(journal_open(&journal, pair[1], address.sun_path), 0);
        CU_ASSERT_TRUE(journal.open);
        journal_close(&journal);
        journal_close(&journal);
        close(pair[0]);
        close(pair[1]);
        unsetenv("JOURNAL_STREAM");
        CU_ASSERT_EQUAL(unit_count_fds(), before);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"fields", test_fields},       {"values from clients", test_hostile_values},
                {"too long", test_too_long},   {"a full queue", test_full},
                {"a journal away", test_away}, {"which descriptor is the journal's", test_stream},
        };
        int status;

        if (!mkdtemp(directory))
                return 2;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", directory);
        status = UNIT_RUN("journal", tests);
        unlink(address.sun_path);
        rmdir(directory);
        return status;
}
