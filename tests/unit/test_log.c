/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/text.h"
#include "tests/support/daemon_unit.h"

static int pair[2];
static struct log logger;
static char text[8192];

static void open_log(enum log_level level)
{
        if (pipe2(pair, O_NONBLOCK | O_CLOEXEC) < 0)
                abort();
        log_init(&logger, pair[1], level);
}

static void close_log(void)
{
        close(pair[0]);
        close(pair[1]);
}

/* What was written since the last call. */
static const char *written(void)
{
        ssize_t n = read(pair[0], text, sizeof(text) - 1);

        text[n > 0 ? n : 0] = '\0';
        return text;
}

static void test_lines(void)
{
        open_log(LOG_LEVEL_INFO);
        log_info(&logger, "no fields");
        CU_ASSERT_STRING_EQUAL(written(), "gpumemd: info: no fields\n");
        log_error(&logger, "a sentence", LOG_U64("frames", UINT64_MAX), LOG_I64("pid", -3),
                  LOG_TEXT("name", "plain"), LOG_TEXT("empty", ""), LOG_TEXT("null", NULL));
        CU_ASSERT_STRING_EQUAL(written(), "gpumemd: error: a sentence frames=18446744073709551615 "
                                          "pid=-3 name=plain empty=\"\" null=\"\"\n");
        log_debug(&logger, "not this");
        CU_ASSERT_STRING_EQUAL(written(), "");
        log_warning(&logger, "this");
        CU_ASSERT_STRING_EQUAL(written(), "gpumemd: warning: this\n");
        close_log();
}

/* Nothing that a client chose can end a line or look like a field of ours. */
static void test_hostile_values(void)
{
        open_log(LOG_LEVEL_INFO);
        log_info(&logger, "x", LOG_TEXT("name", "a\ngpumemd: error: fake uid=0"));
        CU_ASSERT_STRING_EQUAL(written(),
                               "gpumemd: info: x name=\"a\\x0agpumemd: error: fake uid=0\"\n");
        log_info(&logger, "x", LOG_TEXT("name", "q\"uote\\ \x1b[31m\x7f"));
        CU_ASSERT_STRING_EQUAL(written(),
                               "gpumemd: info: x name=\"q\\\"uote\\\\ \\x1b[31m\\x7f\"\n");
        log_info(&logger, "x", LOG_TEXT("name", "uid=0"));
        CU_ASSERT_STRING_EQUAL(written(), "gpumemd: info: x name=\"uid=0\"\n");
        close_log();
}

static void test_long_values(void)
{
        char value[5000];

        open_log(LOG_LEVEL_INFO);
        memset(value, '\n', sizeof(value) - 1);
        value[sizeof(value) - 1] = '\0';
        log_info(&logger, "x", LOG_TEXT("name", value));
        written();
        CU_ASSERT(strlen(text) <= 2048);
        CU_ASSERT_EQUAL(text[strlen(text) - 1], '\n');
        CU_ASSERT_EQUAL(strchr(text, '\n') - text, (long)strlen(text) - 1);
        close_log();
}

/* A reader that does not read costs lines, never time; and it is told. */
static void test_stalled(void)
{
        int lines = 0;

        open_log(LOG_LEVEL_INFO);
        fcntl(pair[1], F_SETFL, 0); /* blocking, as stderr is */
        while (logger.dropped == 0 && lines++ < 100000)
                log_info(&logger, "a line that fills the pipe");
        log_info(&logger, "another");
        CU_ASSERT_EQUAL(logger.dropped, 2);
        while (read(pair[0], text, sizeof(text)) > 0)
                ;
        log_info(&logger, "again");
        CU_ASSERT_STRING_EQUAL(written(), "gpumemd: info: again lines_dropped_before=2\n");
        log_info(&logger, "again");
        CU_ASSERT_STRING_EQUAL(written(), "gpumemd: info: again\n");
        close_log();
}

static void test_levels(void)
{
        enum log_level level = LOG_LEVEL_ERROR;

        CU_ASSERT_EQUAL(log_level_parse("debug", &level), 0);
        CU_ASSERT_EQUAL(level, LOG_LEVEL_DEBUG);
        CU_ASSERT_EQUAL(log_level_parse("DEBUG", &level), -EINVAL);
        CU_ASSERT_EQUAL(log_level_parse("", &level), -EINVAL);
        CU_ASSERT_EQUAL(level, LOG_LEVEL_DEBUG);
        CU_ASSERT_STRING_EQUAL(log_level_name(LOG_LEVEL_WARNING), "warning");
        CU_ASSERT_STRING_EQUAL(log_level_name(LOG_LEVEL_COUNT), "unknown");
}

static void test_limit(void)
{
        struct log_limit limit = {0};
        uint64_t now = 1, suppressed = 99, allowed = 0;

        for (int i = 0; i < 100; i++)
                allowed += log_limit_allow(&limit, now++, &suppressed);
        CU_ASSERT_EQUAL(allowed, LOG_LIMIT_BURST);
        CU_ASSERT_EQUAL(suppressed, 0);
        CU_ASSERT(log_limit_allow(&limit, 1 + LOG_LIMIT_WINDOW_NS, &suppressed));
        CU_ASSERT_EQUAL(suppressed, 100 - LOG_LIMIT_BURST);
        CU_ASSERT(log_limit_allow(&limit, 2 + LOG_LIMIT_WINDOW_NS, &suppressed));
        CU_ASSERT_EQUAL(suppressed, 0);
}

static void test_bytes(void)
{
        static const struct {
                uint64_t bytes;
                const char *text;
        } cases[] = {
                {0, "0 B"},
                {1023, "1023 B"},
                {1024, "1 KiB"},
                {1536, "1.5 KiB"},
                {UINT64_C(512) << 20, "512 MiB"},
                {UINT64_C(80) << 30, "80 GiB"},
                {UINT64_MAX, "16777215.9 TiB"},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                char out[TEXT_BYTES_MAX];

                text_bytes(out, cases[i].bytes);
                CU_ASSERT_STRING_EQUAL(out, cases[i].text);
        }
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"lines", test_lines},
                {"values from clients", test_hostile_values},
                {"long values", test_long_values},
                {"a reader that does not read", test_stalled},
                {"levels", test_levels},
                {"limits", test_limit},
                {"sizes for people", test_bytes},
        };

        return UNIT_RUN("log", tests);
}
