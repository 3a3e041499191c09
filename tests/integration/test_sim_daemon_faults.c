/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults injected into a running daemon through the machine's rules: its n-th driver call fails,
 * for every n of a session's life. Whatever the client is told, the daemon lives, its accounts add
 * up, and memory is there again afterwards.
 */
#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/client_test.h"
#include "tests/support/sim_fault.h"

#define MIB    (UINT64_C(1) << 20)
#define DEVICE (32 * MIB)
#define FRAME  MIB

enum { LIFE_SERVED = 0, LIFE_REFUSED = 10 };

static struct daemon_process *process;
static struct client_test_driver driver;
static struct sim_control control;

static int start(void)
{
        const struct daemon_options options = {.memory_bytes = DEVICE,
                                               .frame_bytes = FRAME,
                                               .watermark_low = 1,
                                               .watermark_high = 2};

        if (daemon_process_start(&process, &options) < 0 || client_test_driver_open(&driver) < 0)
                return -1;
        control = sim_control_of(driver.driver);
        return 0;
}

static int stop(void)
{
        int r = client_test_driver_close(&driver);

        process = daemon_process_free(process);
        return r;
}

static void set_rule(const char *rule)
{
        CUresult result = control.fault_machine(rule);

        if (result != CUDA_SUCCESS)
                fprintf(stderr, "%s: %s\n", rule, driver.driver->error_detail());
        CU_ASSERT_EQUAL_FATAL(result, CUDA_SUCCESS);
}

/* A session takes more frames than are kept ready, and gives them back. 0 or the error. */
static int one_life(unsigned int frames)
{
        struct gpumem *session = client_test_connect(process, "faults");
        struct gpumem_buffer *buffer = NULL;
        int r = gpumem_buffer_create(session, frames * FRAME, "buffer", 300, &buffer);

        if (r == 0)
                gpumem_buffer_free(buffer);
        gpumem_disconnect(session);
        return r;
}

static void check_accounts(const char *rule)
{
        char report[1024] = "";
        int r = daemon_process_check(process, report, sizeof(report));

        if (r != 0)
                fprintf(stderr, "after %s: debug check %d: %s\n", rule, r, report);
        CU_ASSERT_EQUAL(r, 0);
        CU_ASSERT_FATAL(daemon_process_alive(process));
}

/* Until all of the device can be had: what was broken is mended. */
static void check_all_memory(const char *rule)
{
        struct gpumem *session = client_test_connect(process, "all");
        struct gpumem_buffer *buffer = NULL;
        int r = gpumem_buffer_create(session, DEVICE - 2 * FRAME, "all", 5000, &buffer);

        if (r != 0)
                fprintf(stderr, "after %s: %s\n", rule, gpumem_error_message());
        CU_ASSERT_EQUAL(r, 0);
        gpumem_buffer_free(buffer);
        gpumem_disconnect(session);
}

/* Memory that cannot be made: the client is told, or waits until it can; then all is as before.
 * Each session asks for more than the ones before gave back. */
static void test_out_of_memory(void)
{
        unsigned int n;
        char rule[128];

        for (n = 1; n <= 3; n++) {
                snprintf(rule, sizeof(rule),
                         "cuMemCreate times=%u error=out_of_memory process=gpumemd", n);
                set_rule(rule);
                one_life(6 + 5 * n);
                CU_ASSERT(control.fault_machine_hits() > 0);
                check_accounts(rule);
        }
        set_rule("cuMemCreate times=all error=out_of_memory process=gpumemd");
        CU_ASSERT_EQUAL(one_life(28), GPUMEM_E_AGAIN);
        CU_ASSERT(control.fault_machine_hits() > 0);
        check_accounts("out of memory");
        set_rule("");
        check_all_memory("out of memory");
}

static void test_slow_driver(void)
{
        set_rule("cuMem* times=all delay=3000 process=gpumemd");
        CU_ASSERT_EQUAL(one_life(6), 0);
        CU_ASSERT(control.fault_machine_hits() > 0);
        set_rule("");
        check_accounts("delay");
        check_all_memory("delay");
}

/* --- one daemon per fault ------------------------------------------------------------------------
 */

/* The client, a process of its own: this one's simulator belongs to the first daemon's machine. */
static int life_main(const char *socket_path)
{
        struct gpumem_options options = {.size = sizeof(options),
                                         .name = "life",
                                         .socket_path = socket_path,
                                         .driver = GPUMEM_DRIVER_SIMULATOR};
        struct gpumem_buffer *buffer = NULL;
        struct gpumem *session;
        int r = gpumem_connect(&session, &options);

        if (r != 0)
                return LIFE_REFUSED;
        r = gpumem_buffer_create(session, 6 * FRAME, "buffer", 300, &buffer);
        if (r == 0)
                gpumem_buffer_free(buffer);
        gpumem_disconnect(session);
        return r == 0 ? LIFE_SERVED : LIFE_REFUSED;
}

static int run_life(const char *socket_path)
{
        int status = -1;
        pid_t child;

        fflush(stdout);
        child = fork();
        if (child == 0) {
                char program[] = "/proc/self/exe", option[] = "--life", path[128];
                char *arguments[] = {program, option, path, NULL};

                snprintf(path, sizeof(path), "%s", socket_path);
                execv(program, arguments);
                _exit(127);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
                return -1;
        return WEXITSTATUS(status);
}

/* The n-th such call of a daemon fails, from its start on: it may refuse to start, or serve nobody,
 * but it lives and its accounts add up. */
static void one_daemon(const char *rule, unsigned int *refused, unsigned int *served)
{
        const struct daemon_options options = {.memory_bytes = DEVICE,
                                               .frame_bytes = FRAME,
                                               .watermark_low = 1,
                                               .watermark_high = 2};
        struct daemon_process *daemon = NULL;
        char report[1024] = "";
        int r, life;

        setenv("GPUMEM_SIM_FAULT", rule, 1);
        r = daemon_process_start(&daemon, &options);
        unsetenv("GPUMEM_SIM_FAULT");
        CU_ASSERT_EQUAL(r, 0);
        if (r != 0)
                return;
        life = run_life(daemon_process_client_socket(daemon));
        CU_ASSERT(life == LIFE_SERVED || life == LIFE_REFUSED);
        *served += life == LIFE_SERVED;
        *refused += life == LIFE_REFUSED;
        r = daemon_process_check(daemon, report, sizeof(report));
        if (r != 0)
                fprintf(stderr, "%s: debug check %d: %s\n", rule, r, report);
        CU_ASSERT_EQUAL(r, 0);
        CU_ASSERT(daemon_process_alive(daemon));
        daemon_process_free(daemon);
}

static void test_unknown_errors(void)
{
        static const char *const calls[] = {"cuMemCreate",    "cuMemExportToShareableHandle",
                                            "cuMemMap",       "cuMemSetAccess",
                                            "cuMemUnmap",     "cuMemRelease",
                                            "cuMemsetD8Async"};
        unsigned int refused = 0, served = 0, n;
        char rule[128];
        size_t i;

        for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
                for (n = 1; n <= 9; n += 2) {
                        snprintf(rule, sizeof(rule), "%s nth=%u error=unknown process=gpumemd",
                                 calls[i], n);
                        one_daemon(rule, &refused, &served);
                }
        printf("\n    %u daemons: %u served, %u refused with an error\n  ", served + refused,
               served, refused);
        CU_ASSERT(served > 0 && refused > 0);
}

int main(int argc, char **argv)
{
        unsigned int failures;
        CU_pSuite suite;

        if (argc == 3 && strcmp(argv[1], "--life") == 0)
                return life_main(argv[2]);

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("faults in a running daemon", start, stop);
        CU_add_test(suite, "out of memory at each creation", test_out_of_memory);
        /* From here on all memory has been made once. */
        CU_add_test(suite, "a slow driver", test_slow_driver);
        CU_add_test(suite, "unknown errors at each call", test_unknown_errors);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
        CU_cleanup_registry();
        return failures != 0;
}
