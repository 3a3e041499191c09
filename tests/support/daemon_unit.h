/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon's unit tests share: a table of tests, and counting this process's descriptors. */
#ifndef TESTS_SUPPORT_DAEMON_UNIT_H
#define TESTS_SUPPORT_DAEMON_UNIT_H

#include <CUnit/Basic.h>
#include <dirent.h>
#include <stddef.h>

struct unit_test {
        const char *name;
        void (*run)(void);
};

/* Runs a suite; the exit status of the program. */
static inline int unit_run(const char *suite_name, const struct unit_test *tests, size_t count)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 2;
        suite = CU_add_suite(suite_name, NULL, NULL);
        if (!suite)
                return 2;
        for (size_t i = 0; i < count; i++)
                if (!CU_add_test(suite, tests[i].name, tests[i].run))
                        return 2;
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures > 0 ? 1 : 0;
}

#define UNIT_RUN(suite_name, tests) unit_run(suite_name, tests, sizeof(tests) / sizeof((tests)[0]))

/* How many descriptors this process has open (the one that counts is not counted). */
static inline int unit_count_fds(void)
{
        DIR *directory = opendir("/proc/self/fd");
        int count = 0;

        while (directory && readdir(directory))
                count++;
        if (directory)
                closedir(directory);
        return count - 3; /* ".", "..", the directory's own */
}

#endif
