/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite itself: it must fail where the driver does, and tell what it saw. (That the
 * simulator passes it is a test of its own, the suite.)
 */
#include <json-c/json.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "tests/support/sim_test.h"

/* What the suite prints; *status is its exit status. To be freed. */
static char *suite(const char *environment, const char *arguments, int *status)
{
        const char *build = getenv("GPUMEM_BUILD");
        char command[1024], *text = NULL;
        size_t length = 0, got;
        FILE *stream;

        snprintf(command, sizeof(command), "%s exec %s/cuda-conformance %s 2>/dev/null",
                 environment, build ? build : "build", arguments);
        stream = popen(command, "r");
        CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
        do {
                text = realloc(text, length + 65536);
                CU_ASSERT_PTR_NOT_NULL_FATAL(text);
                got = fread(text + length, 1, 65535, stream);
                length += got;
        } while (got > 0);
        text[length] = '\0';
        *status = pclose(stream);
        *status = WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
        return text;
}

static int lines(const char *text)
{
        int count = 0;

        for (; *text; text++)
                count += *text == '\n';
        return count;
}

static void test_list(void)
{
        int status;
        char *text = suite("", "--list", &status);

        CU_ASSERT_EQUAL(status, 0);
        CU_ASSERT(lines(text) >= 60);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "sharing.outlives_kill\n"));
        free(text);
}

static int number_of(struct json_object *object, const char *key)
{
        struct json_object *member = NULL;

        json_object_object_get_ex(object, key, &member);
        return json_object_get_int(member);
}

static void test_json(void)
{
        struct json_object *object, *tests = NULL, *steps = NULL;
        int status;
        char *text = suite("", "--json --only access.", &status);

        CU_ASSERT_EQUAL(status, 0);
        object = json_tokener_parse(text);
        CU_ASSERT_PTR_NOT_NULL_FATAL(object);
        CU_ASSERT_EQUAL(number_of(object, "passed"), 2);
        CU_ASSERT_EQUAL(number_of(object, "failed"), 0);
        CU_ASSERT(json_object_object_get_ex(object, "tests", &tests));
        CU_ASSERT_EQUAL_FATAL(json_object_array_length(tests), 2);
        json_object_object_get_ex(json_object_array_get_idx(tests, 0), "steps", &steps);
        CU_ASSERT(json_object_array_length(steps) > 8);
        json_object_put(object);
        free(text);
}

/* A driver that fails is not called conforming. */
static void test_failing_driver(void)
{
        int status;
        char *text = suite("GPUMEM_SIM_FAULT='cuMemUnmap error=unknown'",
                           "--only virtual_memory.unmap", &status);

        CU_ASSERT_EQUAL(status, 1);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "not ok 1 virtual_memory.unmap\n"));
        CU_ASSERT_PTR_NOT_NULL(
                strstr(text, "# nothing mapped: CUDA_ERROR_UNKNOWN, not CUDA_ERROR_INVALID_VALUE"));
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n0 passed, 1 failed\n"));
        free(text);

        text = suite("GPUMEM_SIM_FAULT='cuMemImport* error=unknown process=exe'",
                     "--only sharing.between", &status);
        CU_ASSERT_EQUAL(status, 1);
        free(text);
}

/* No driver, no result. */
static void test_missing_driver(void)
{
        int status;
        char *text = suite("", "--driver /nonexistent/libcuda.so.1 --only device.version", &status);

        CU_ASSERT_EQUAL(status, 1);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n0 passed, 1 failed\n"));
        free(text);
        text = suite("", "--only nothing.like.this", &status);
        CU_ASSERT_EQUAL(status, 1);
        free(text);
}

int main(void)
{
        CU_pSuite registered;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        registered = CU_add_suite("the conformance suite", NULL, NULL);
        CU_add_test(registered, "list", test_list);
        CU_add_test(registered, "JSON", test_json);
        CU_add_test(registered, "a driver that fails", test_failing_driver);
        CU_add_test(registered, "a driver that is not there", test_missing_driver);
        return sim_test_finish("/nonexistent");
}
