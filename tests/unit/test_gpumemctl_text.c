/* SPDX-License-Identifier: Apache-2.0 */
/* gpumemctl's numbers, foreign text and tables. */
#include "tools/gpumemctl/table.h"
#include "tools/gpumemctl/text.h"

#include <CUnit/Basic.h>
#include <stdlib.h>
#include <string.h>

static void test_bytes(void)
{
        static const struct {
                int64_t bytes;
                const char *text;
        } cases[] = {
                {0, "0 B"},
                {1, "1 B"},
                {1023, "1023 B"},
                {1024, "1 KiB"},
                {1025, "1.0 KiB"}, /* not exact, and says so */
                {1536, "1.5 KiB"},
                {2 * 1024 * 1024, "2 MiB"},
                {INT64_C(1024) * 1024 * 1024 - 1, "1.0 GiB"}, /* rounds into the next unit */
                {INT64_C(80) << 30, "80 GiB"},
                {(INT64_C(80) << 30) - (INT64_C(800) << 20), "79.2 GiB"},
                {INT64_C(1) << 50, "1 PiB"},
                {INT64_MAX, "8.0 EiB"},
                {-1536, "-1.5 KiB"},
                {INT64_MIN, "-8 EiB"},
        };
        char out[CTL_NUMBER_MAX];

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
                CU_ASSERT_STRING_EQUAL(ctl_format_bytes(out, cases[i].bytes), cases[i].text);
}

static void test_duration(void)
{
        char out[CTL_NUMBER_MAX];

        CU_ASSERT_STRING_EQUAL(ctl_format_duration(out, -5), "0 s");
        CU_ASSERT_STRING_EQUAL(ctl_format_duration(out, 0), "0.0 s");
        CU_ASSERT_STRING_EQUAL(ctl_format_duration(out, 59999999), "59.9 s");
        CU_ASSERT_STRING_EQUAL(ctl_format_duration(out, 60000000), "1 min 0 s");
        CU_ASSERT_STRING_EQUAL(ctl_format_duration(out, INT64_C(3600000000)), "1 h 0 min");
        CU_ASSERT_STRING_EQUAL(
                ctl_format_duration(out, INT64_C(86400000000) * 12 + INT64_C(3600000000) * 3),
                "12 d 3 h");
        CU_ASSERT(strlen(ctl_format_duration(out, INT64_MAX)) < CTL_NUMBER_MAX);
}

static void test_time(void)
{
        char out[CTL_NUMBER_MAX];

        setenv("TZ", "UTC", 1);
        CU_ASSERT_STRING_EQUAL(ctl_format_time(out, INT64_C(1764424192000000)),
                               "2025-11-29 13:49:52");
        CU_ASSERT(strlen(ctl_format_time(out, INT64_MAX)) < CTL_NUMBER_MAX);
        CU_ASSERT(strlen(ctl_format_time(out, INT64_MIN)) < CTL_NUMBER_MAX);
}

static void test_printable(void)
{
        char out[64], small[4];

        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "plain text"), "plain text");
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "gr\xc3\xbc\xc3\x9f"),
                               "gr\xc3\xbc\xc3\x9f");
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "\x1b[31mred\n\r\t\x7f"),
                               "?[31mred????");
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out),
                                             "\xc2\x9b"
                                             "31m"),
                               "?31m"); /* C1 */
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out),
                                             "a\xe2\x80\xae"
                                             "b"),
                               "a?b"); /* RLO */
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "\xff\xfe"), "??");
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "\xc0\x80"), "??"); /* overlong */
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "\xed\xa0\x80"),
                               "???");                                          /* surrogate */
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "x\xc3"), "x?"); /* cut short */
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "\xf4\x90\x80\x80"), "????");
        CU_ASSERT_STRING_EQUAL(ctl_printable(out, sizeof(out), "\xf0\x9f\x98\x80"),
                               "\xf0\x9f\x98\x80");
        CU_ASSERT_STRING_EQUAL(ctl_printable(small, sizeof(small), "abcdef"), "abc");
        CU_ASSERT_STRING_EQUAL(ctl_printable(small, sizeof(small), "ab\xc3\xbc"), "ab");
        CU_ASSERT_STRING_EQUAL(ctl_printable(small, 1, "ab"), "");
        CU_ASSERT_EQUAL(ctl_width("gr\xc3\xbc\xc3\x9f"), 4);
}

static const struct ctl_column columns[] = {
        {"NAME", false}, {"SIZE", true}, {"NOTE", false}, {NULL, false}};

static char *print(const struct ctl_table *table, int indent)
{
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);

        ctl_table_print(table, out, indent);
        fclose(out);
        return text;
}

static void test_table(void)
{
        struct ctl_table table;
        char *text;

        ctl_table_init(&table, columns);
        text = print(&table, 0);
        CU_ASSERT_STRING_EQUAL(text, "NAME  SIZE  NOTE\n");
        free(text);

        ctl_table_add(&table, "gr\xc3\xbc\xc3\x9f"
                              "e");
        ctl_table_add(&table, "%d", 7);
        ctl_table_add(&table, "%s", "");
        ctl_table_add(&table, "a\nb");
        ctl_table_add(&table, "%s", "");
        ctl_table_add(&table, "last");
        ctl_table_add(&table, "partial");
        text = print(&table, 2);
        CU_ASSERT_STRING_EQUAL(text, "  NAME     SIZE  NOTE\n"
                                     "  gr\xc3\xbc\xc3\x9f"
                                     "e       7\n"
                                     "  a?b            last\n"
                                     "  partial\n");
        free(text);
        CU_ASSERT_FALSE(table.failed);
        ctl_table_deinit(&table);
        ctl_table_deinit(&table);
}

static void test_large_table(void)
{
        char long_text[2000];
        struct ctl_table table;
        char *text;

        memset(long_text, 'x', sizeof(long_text) - 1);
        long_text[sizeof(long_text) - 1] = '\0';
        ctl_table_init(&table, columns);
        for (int i = 0; i < 3000; i++)
                ctl_table_add(&table, "%d", i);
        ctl_table_add(&table, "%s", long_text); /* cut, not overrun */
        text = print(&table, 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "  2998  2999\n"));
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "xxxx"));
        free(text);
        ctl_table_deinit(&table);
}

int main(void)
{
        CU_pSuite suite;
        unsigned int failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("gpumemctl text", NULL, NULL);
        CU_add_test(suite, "bytes", test_bytes);
        CU_add_test(suite, "durations", test_duration);
        CU_add_test(suite, "times", test_time);
        CU_add_test(suite, "foreign text", test_printable);
        CU_add_test(suite, "table", test_table);
        CU_add_test(suite, "large table", test_large_table);
        CU_basic_set_mode(CU_BRM_NORMAL);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures > 0;
}
