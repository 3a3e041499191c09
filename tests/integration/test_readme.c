/* SPDX-License-Identifier: Apache-2.0 */
/* The README's C example is compiled and run as it stands there. Run from the top of the tree. */
#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/daemon_process.h"

static const char *build_folder(void)
{
        const char *build = getenv("GPUMEM_BUILD");

        return build ? build : "build";
}

/* Copies the first ```c block of README.md; the number of its lines. */
static int extract(const char *path)
{
        FILE *in = fopen("README.md", "re"), *out = fopen(path, "we");
        int lines = 0, inside = 0;
        char line[1024];

        while (in && out && fgets(line, sizeof(line), in)) {
                if (!inside && strcmp(line, "```c\n") == 0)
                        inside = 1;
                else if (inside && strcmp(line, "```\n") == 0)
                        break;
                else if (inside) {
                        fputs(line, out);
                        lines++;
                }
        }
        if (in)
                fclose(in);
        if (out)
                fclose(out);
        return lines;
}

static void test_example(void)
{
        struct daemon_process *daemon = NULL;
        char folder[] = "/tmp/gpumem-readme.XXXXXX", source[64], command[2048], line[256] = "";
        const char *build = build_folder(), *cc = getenv("CC");
        /* A sanitized library wants a program built the same way. */
        const char *flags = strstr(build, "address")  ? "-fsanitize=address,undefined"
                            : strstr(build, "thread") ? "-fsanitize=thread"
                                                      : "";
        float out, value;
        FILE *program;

        CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
        snprintf(source, sizeof(source), "%s/example.c", folder);
        CU_ASSERT_TRUE(extract(source) > 40);
        snprintf(
                command, sizeof(command),
                "%s -std=gnu11 -Wall -Wextra -Werror %s -Iinclude %s -L%s -lgpumem -Wl,-rpath,$PWD/%s "
                "-o %s/example",
                cc && *cc ? cc : "cc", flags, source, build, build, folder);
        CU_ASSERT_EQUAL_FATAL(system(command), 0);

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&daemon, NULL), 0);
        setenv("GPUMEM_SOCKET", daemon_process_client_socket(daemon), 1);
        setenv("GPUMEM_DRIVER", "simulated", 1);
        snprintf(command, sizeof(command), "%s/example", folder);
        program = popen(command, "re");
        CU_ASSERT_PTR_NOT_NULL_FATAL(program);
        CU_ASSERT_PTR_NOT_NULL(fgets(line, sizeof(line), program));
        CU_ASSERT_EQUAL(pclose(program), 0);
        CU_ASSERT_EQUAL_FATAL(
                sscanf(line, "out[0] = %f (token 0 sees only itself: its value, %f)", &out, &value),
                2);
        CU_ASSERT_DOUBLE_EQUAL(out, value, 1e-3);
        CU_ASSERT_EQUAL(daemon_process_check(daemon, NULL, 0), 0);
        daemon_process_free(daemon);

        snprintf(command, sizeof(command), "rm -r %s", folder);
        CU_ASSERT_EQUAL(system(command), 0);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return CU_get_error();
        suite = CU_add_suite("README", NULL, NULL);
        CU_add_test(suite, "the C example compiles without a warning and does what it says",
                    test_example);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures ? 1 : 0;
}
