/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/gpu/check.sh, tried out on the simulator: it must run through, and its JSON must say that
 * it was a simulation. Run from the top of the tree.
 */
#include <CUnit/Basic.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct json_object *member(struct json_object *object, const char *key)
{
        struct json_object *value = NULL;

        json_object_object_get_ex(object, key, &value);
        return value;
}

/* Runs the script; its object in *out (NULL: none). Exit status. */
static int check(const char *environment, struct json_object **out)
{
        char path[] = "/tmp/gpumem-test-check-XXXXXX", command[512];
        const char *build = getenv("GPUMEM_BUILD");
        int fd = mkstemp(path), status;

        CU_ASSERT_FATAL(fd >= 0);
        close(fd);
        snprintf(
                command, sizeof(command),
                "%s sh tests/gpu/check.sh --driver simulated --quick --bin %s --out %s >%s.log 2>&1",
                environment, build ? build : "build", path, path);
        status = system(command);
        *out = json_object_from_file(path);
        if (!*out || status != 0) {
                snprintf(command, sizeof(command), "cat %s.log", path);
                if (system(command) != 0)
                        perror(path);
        }
        unlink(path);
        strcat(strcpy(command, path), ".log");
        unlink(command);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_runs_through(void)
{
        struct json_object *object, *steps;
        int status = check("env -u OUT", &object);

        CU_ASSERT_EQUAL(status, 0);
        CU_ASSERT_PTR_NOT_NULL_FATAL(object);
        CU_ASSERT(json_object_get_boolean(member(object, "simulated")));
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(object, "driver")), "simulated");
        CU_ASSERT_EQUAL(json_object_array_length(member(object, "failed")), 0);
        CU_ASSERT_EQUAL(json_object_array_length(member(object, "differences")), 0);
        CU_ASSERT(json_object_array_length(member(member(object, "latency"), "sizes")) == 2);
        CU_ASSERT(json_object_get_boolean(member(member(object, "outlive"), "after_kill")));
        CU_ASSERT(json_object_get_boolean(member(member(object, "kill"), "all_back")));
        CU_ASSERT(json_object_get_int(member(member(object, "conformance"), "passed")) >= 60);
        /* No kernel ran, and it does not say that one did. */
        CU_ASSERT_PTR_NOT_NULL(member(member(object, "kernels"), "skipped"));
        CU_ASSERT_PTR_NULL(member(member(object, "kernels"), "sees_memory"));
        steps = member(member(object, "daemon"), "steps");
        CU_ASSERT(json_object_object_length(steps) >= 10);
        json_object_object_foreach(steps, key, value)
        {
                if (!json_object_get_boolean(value))
                        printf("\n  %s: false\n", key);
                CU_ASSERT(json_object_get_boolean(value));
        }
        json_object_put(object);
}

/* A driver on which a check does not hold: the script says which, and fails. */
static void test_tells_failures(void)
{
        struct json_object *object;
        int status = check("env -u OUT GPUMEM_SIM_FAULT='cuMemImport* times=all process=gpu-check'",
                           &object);

        CU_ASSERT_EQUAL(status, 1);
        CU_ASSERT_PTR_NOT_NULL_FATAL(object);
        CU_ASSERT(json_object_array_length(member(object, "failed")) > 0);
        CU_ASSERT(!json_object_get_boolean(member(member(object, "outlive"), "after_kill")));
        json_object_put(object);
}

int main(void)
{
        unsigned int failures;
        CU_pSuite suite;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("the GPU check on the simulator", NULL, NULL);
        CU_add_test(suite, "runs through", test_runs_through);
        CU_add_test(suite, "tells failures", test_tells_failures);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures != 0;
}
