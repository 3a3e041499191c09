/* SPDX-License-Identifier: Apache-2.0 */
/* libgpumem.so exports the public API, all of it and nothing else; the header is C and C++ by
 * itself; the library has its soname. */
#include <CUnit/Basic.h>
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/daemon_process.h"

#define NAMES_MAX 256

static char declared[NAMES_MAX][64], exported[NAMES_MAX][64];
static int declared_count, exported_count;

/* Names of functions marked GPUMEM_API in the public header. */
static void read_header(void)
{
        FILE *file = fopen("include/gpumem/gpumem.h", "r");
        char *text = calloc(1, 1 << 20), *at;

        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        CU_ASSERT_PTR_NOT_NULL_FATAL(text);
        CU_ASSERT_FATAL(fread(text, 1, (1 << 20) - 1, file) > 1000);
        fclose(file);
        at = strstr(text, "#define GPUMEM_API");
        CU_ASSERT_PTR_NOT_NULL_FATAL(at);
        at += strlen("#define GPUMEM_API");
        while ((at = strstr(at, "GPUMEM_API"))) {
                char *open = strchr(at, '('), *start;

                CU_ASSERT_PTR_NOT_NULL_FATAL(open);
                start = open;
                while (start > at && (isalnum((unsigned char)start[-1]) || start[-1] == '_'))
                        start--;
                CU_ASSERT_FATAL(declared_count < NAMES_MAX);
                snprintf(declared[declared_count++], 64, "%.*s", (int)(open - start), start);
                at = open;
        }
        free(text);
}

static void read_library(const char *path)
{
        char command[4200], line[512];
        FILE *pipe;

        snprintf(command, sizeof(command), "nm -D --defined-only '%s'", path);
        pipe = popen(command, "r");
        CU_ASSERT_PTR_NOT_NULL_FATAL(pipe);
        while (fgets(line, sizeof(line), pipe)) {
                char name[256], type;

                if (sscanf(line, "%*s %c %255s", &type, name) != 2)
                        continue;
                CU_ASSERT_FATAL(exported_count < NAMES_MAX);
                snprintf(exported[exported_count++], 64, "%.63s", name);
        }
        CU_ASSERT_EQUAL(pclose(pipe), 0);
}

static int find(char names[][64], int count, const char *name)
{
        for (int i = 0; i < count; i++)
                if (strcmp(names[i], name) == 0)
                        return 1;
        return 0;
}

static void test_exports(void)
{
        char path[4096];

        CU_ASSERT_EQUAL_FATAL(daemon_process_product("libgpumem.so", path, sizeof(path)), 0);
        read_header();
        read_library(path);
        CU_ASSERT(declared_count >= 30);
        for (int i = 0; i < declared_count; i++)
                if (!find(exported, exported_count, declared[i])) {
                        printf("%s is declared and not exported ", declared[i]);
                        CU_FAIL("missing");
                }
        for (int i = 0; i < exported_count; i++)
                /* Sanitizers add symbols of their own. */
                if (!find(declared, declared_count, exported[i]) &&
                    strncmp(exported[i], "__", 2) != 0) {
                        printf("%s is exported and not declared ", exported[i]);
                        CU_FAIL("too much");
                }
}

static void test_soname(void)
{
        char path[4096], command[4300];

        CU_ASSERT_EQUAL_FATAL(daemon_process_product("libgpumem.so", path, sizeof(path)), 0);
        snprintf(command, sizeof(command), "readelf -d '%s' | grep -q 'SONAME.*libgpumem\\.so\\.0'",
                 path);
        CU_ASSERT_EQUAL(system(command), 0);
}

static void test_header_alone(void)
{
        const char *cc = getenv("CC") && *getenv("CC") ? getenv("CC") : "cc";
        char command[1024];

        snprintf(command, sizeof(command),
                 "printf '#include <gpumem/gpumem.h>\\nint main(void){return 0;}\\n' | %s -std=c11 "
                 "-Wall -Wextra -Werror -pedantic -Iinclude -x c -fsyntax-only -",
                 cc);
        CU_ASSERT_EQUAL(system(command), 0);
        if (system("command -v c++ >/dev/null") == 0)
                CU_ASSERT_EQUAL(system("printf '#include <gpumem/gpumem.h>\\nint main(){return "
                                       "0;}\\n' | c++ -std=c++11 -Wall -Wextra -Werror -Iinclude "
                                       "-x c++ -fsyntax-only -"),
                                0);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("libgpumem.so", NULL, NULL);
        CU_add_test(suite, "exports the API and nothing else", test_exports);
        CU_add_test(suite, "has a soname", test_soname);
        CU_add_test(suite, "the header stands alone", test_header_alone);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
