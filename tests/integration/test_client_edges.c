/* SPDX-License-Identifier: Apache-2.0 */
/* Edges of the client library: handles of other pools, children, devices whose mappings may not
 * change beside kernels, figures that must add up, an environment that makes no sense. */
#include <CUnit/Basic.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tests/support/client_test.h"

#define MIB UINT64_C(1048576)

static struct daemon_process *process;
static struct client_test_driver driver;

static int start(void)
{
        const struct daemon_options options = {.memory_bytes = 64 * MIB, .frame_bytes = 2 * MIB};
        int r = daemon_process_start(&process, &options);

        return r < 0 ? r : client_test_driver_open(&driver);
}

static int stop(void)
{
        int r = client_test_driver_close(&driver);

        process = daemon_process_free(process);
        return r;
}

static struct gpumem_kv *pool_of(struct gpumem *session)
{
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv *kv;

        options.reserve_units = options.idle_trim_ms = UINT32_MAX;
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        return kv;
}

/* A handle is good in the pool that made it, and in no other: not in one beside it, not in one that
 * comes later. */
static void test_foreign_handles(void)
{
        struct gpumem *session = client_test_connect(process, "handles");
        struct gpumem_kv *one = pool_of(session), *two = pool_of(session);
        gpumem_seq first[64], second[64];
        uint32_t length;

        for (int i = 0; i < 64; i++) {
                if (gpumem_seq_create(one, &first[i]) != 0 ||
                    gpumem_seq_create(two, &second[i]) != 0) {
                        first[i] = second[i] = 0;
                        break;
                }
                CU_ASSERT_EQUAL(gpumem_seq_free(two, first[i]), GPUMEM_E_NOT_FOUND);
                CU_ASSERT_EQUAL(gpumem_seq_length(one, second[i], &length), GPUMEM_E_NOT_FOUND);
                CLIENT_TEST_OK(gpumem_seq_length(two, second[i], &length));
        }
        CLIENT_TEST_OK(gpumem_kv_free(one));
        one = pool_of(session);
        CLIENT_TEST_OK(gpumem_seq_create(one, &second[0]));
        CU_ASSERT_EQUAL(gpumem_seq_length(one, first[0], &length), GPUMEM_E_NOT_FOUND);
        CLIENT_TEST_OK(gpumem_kv_free(one));
        CLIENT_TEST_OK(gpumem_kv_free(two));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* Sessions of this name that the daemon shows. */
static int sessions_named(const char *name)
{
        char *reply, *at, word[64];
        int count = 0;

        CU_ASSERT_EQUAL_FATAL(daemon_process_call(process, "io.gpumemd.ListSessions", NULL, &reply),
                              0);
        snprintf(word, sizeof(word), "\"%s\"", name);
        for (at = reply; (at = strstr(at, word)); at++)
                count++;
        free(reply);
        return count;
}

/* The session ends with gpumem_disconnect(), though a child has its descriptor, too. */
static void test_disconnect_beside_child(void)
{
        struct gpumem *session = client_test_connect(process, "parent");
        int fd[2];
        pid_t child;

        CU_ASSERT_EQUAL_FATAL(pipe(fd), 0);
        child = fork();
        if (child == 0) {
                char byte;

                close(fd[1]);
                _exit(read(fd[0], &byte, 1) == 0 ? 0 : 1);
        }
        CU_ASSERT_FATAL(child > 0);
        close(fd[0]);
        CU_ASSERT_EQUAL(sessions_named("parent"), 1);
        gpumem_disconnect(session);
        for (int i = 0; i < 200 && sessions_named("parent") > 0; i++)
                client_test_pause_ms(5);
        CU_ASSERT_EQUAL(sessions_named("parent"), 0);
        CU_ASSERT_EQUAL(waitpid(child, NULL, WNOHANG), 0); /* it is still there */
        close(fd[1]);
        waitpid(child, NULL, 0);
        client_test_check(process);
}

/* A buffer that is freed beside a kernel goes when mappings may change. */
static void test_gated_buffer(void)
{
        struct gpumem *session = client_test_connect_with(process, "gated", 200);
        struct client_test_gate *gate;
        struct gpumem_buffer *buffer;
        struct gpumem_batch *batch;
        const uint32_t tokens = 1;
        struct gpumem_kv *kv;
        gpumem_seq seq;

        client_test_gate_mappings(session);
        kv = pool_of(session);
        CLIENT_TEST_OK(gpumem_buffer_create(session, 4 * MIB, "b", 1000, &buffer));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &tokens, driver.stream, 1000, &batch));
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        CU_ASSERT_PTR_NULL(gpumem_buffer_free(buffer));
        CLIENT_TEST_OK(gpumem_safe_point(session));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 6 * MIB);
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_safe_point(session));
        CU_ASSERT_TRUE(client_test_wait_bytes(session, 2 * MIB, 2000));
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* Units that came, less those that went, are those that are here, mapped or not. */
static void test_unit_counts(void)
{
        struct gpumem *session = client_test_connect(process, "counts");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_stats stats = {0};
        struct gpumem_kv *kv;
        uint64_t bytes;
        gpumem_seq seq;

        options.reserve_units = 3;
        options.idle_trim_ms = UINT32_MAX;
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 1, driver.stream, 1000));
        for (int i = 0; i < 400 && stats.units_ready < 3; i++) {
                client_test_pause_ms(5);
                CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        }
        CU_ASSERT_EQUAL(stats.units_ready, 3);
        CU_ASSERT_EQUAL(stats.units_grown - stats.units_returned, 4);
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        CU_ASSERT(stats.units_returned >= 3);
        CU_ASSERT_EQUAL((stats.units_grown - stats.units_returned) * 2 * MIB, stats.granted_bytes);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* A pool in use keeps its reserve, and gives back what is beyond it. */
static void test_surplus(void)
{
        struct gpumem *session = client_test_connect(process, "surplus");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry geometry;
        struct gpumem_kv_stats stats = {0};
        struct gpumem_kv *kv;
        gpumem_seq seq, busy;
        uint64_t end;

        options.reserve_units = 1;
        options.idle_trim_ms = 100;
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        gpumem_kv_get_geometry(kv, &geometry);
        CLIENT_TEST_OK(gpumem_seq_create(kv, &busy));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_seq_append(kv, busy, 1, driver.stream, 1000));
        for (int i = 0; i < 5; i++)
                CLIENT_TEST_OK(gpumem_seq_append(kv, seq,
                                                 geometry.pages_per_unit * geometry.page_tokens,
                                                 driver.stream, 1000));
        CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        CU_ASSERT(stats.units_mapped >= 6);
        CLIENT_TEST_OK(gpumem_seq_free(kv, seq));
        end = client_test_now_ms() + 5000;
        do {
                CLIENT_TEST_OK(gpumem_seq_truncate(kv, busy, 0));
                CLIENT_TEST_OK(gpumem_seq_append(kv, busy, 1, driver.stream, 1000));
                client_test_pause_ms(10);
                CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        } while (stats.units_mapped + stats.units_ready > 2 && client_test_now_ms() < end);
        CU_ASSERT_EQUAL(stats.units_mapped + stats.units_ready, 2);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* GPUMEM_CPU_ISA is heeded, and what it cannot be is said. */
static void test_cpu_isa(void)
{
        struct gpumem_options options = {.size = sizeof(options)};
        struct gpumem *session;
        pid_t child;
        int status = -1;

        setenv("GPUMEM_CPU_ISA", "bogus", 1);
        CU_ASSERT_EQUAL(gpumem_connect(&session, &options), GPUMEM_E_INVALID);
        CU_ASSERT_PTR_NULL(session);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "bogus"));
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "portable or avx512"));
        setenv("GPUMEM_CPU_ISA", "portable", 1);
        gpumem_disconnect(client_test_connect(process, "portable"));
        /* Decided once a process: in one that has not asked yet. */
        child = fork();
        if (child == 0)
                _exit(kernel_cpu_isa() == KERNEL_ISA_PORTABLE ? 0 : 1);
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        CU_ASSERT_EQUAL(status, 0);
        unsetenv("GPUMEM_CPU_ISA");
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("edges", start, stop);
        /* First: no kernel has run in this process. */
        CU_add_test(suite, "the environment's instruction set", test_cpu_isa);
        CU_add_test(suite, "handles of other pools", test_foreign_handles);
        CU_add_test(suite, "disconnect beside a child", test_disconnect_beside_child);
        CU_add_test(suite, "a buffer freed beside a kernel", test_gated_buffer);
        CU_add_test(suite, "units beyond the reserve", test_surplus);
        CU_add_test(suite, "units that come and go", test_unit_counts);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
