/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that does not answer for a while: what could not be told to it is told when it does, and
 * nothing is lost. */
#include <CUnit/Basic.h>
#include <signal.h>
#include <string.h>

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

/* Stops the daemon with a request outstanding, so that nothing more can be sent. */
static void silence(struct gpumem *session)
{
        struct gpumem_info info;

        CU_ASSERT_EQUAL_FATAL(kill(daemon_process_daemon(process), SIGSTOP), 0);
        CU_ASSERT_EQUAL(gpumem_get_info(session, &info), GPUMEM_E_TIMEOUT);
}

static void wake(void)
{
        CU_ASSERT_EQUAL_FATAL(kill(daemon_process_daemon(process), SIGCONT), 0);
}

/* Does the session come to hold so much without any request for memory? Waits for what the
 * session's own thread does; asks only then, for what a request settles must not hide it. */
static bool comes_to(struct gpumem *session, uint64_t bytes)
{
        client_test_pause_ms(500);
        return client_test_wait_bytes(session, bytes, 3000);
}

static void test_units(void)
{
        struct gpumem *session = client_test_connect_with(process, "owed", 200);
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry geometry;
        struct gpumem_kv_stats stats;
        struct gpumem_kv *kv;
        uint64_t bytes = 1;
        gpumem_seq seq;

        options.max_bytes = 4 * MIB;
        options.reserve_units = options.idle_trim_ms = UINT32_MAX;
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        gpumem_kv_get_geometry(kv, &geometry);
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        for (int round = 0; round < 2; round++) {
                CLIENT_TEST_OK(gpumem_seq_append(
                        kv, seq, (geometry.pages_per_unit + 1) * geometry.page_tokens,
                        driver.stream, 2000));
                CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
                CU_ASSERT_EQUAL(stats.granted_bytes, 4 * MIB);
                client_test_synchronize(&driver);
                CLIENT_TEST_OK(gpumem_seq_truncate(kv, seq, 0));
                silence(session);
                CU_ASSERT_EQUAL(gpumem_kv_trim(kv, &bytes), GPUMEM_E_TIMEOUT);
                /* They are unmapped, and not given back. */
                CU_ASSERT_EQUAL(bytes, 0);
                CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
                CU_ASSERT_EQUAL(stats.units_mapped, 0);
                CU_ASSERT_EQUAL(stats.granted_bytes, 4 * MIB);
                CU_ASSERT_EQUAL(stats.units_returned, 2 * (uint64_t)round);
                wake();
                if (round == 1)
                        break;
                CU_ASSERT_TRUE(comes_to(session, 0));
                CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
                CU_ASSERT_EQUAL(stats.granted_bytes, 0);
                CU_ASSERT_EQUAL(stats.units_returned, 2);
        }
        /* Asking for memory tells it first: the pool is at its limit otherwise. */
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 1, driver.stream, 2000));
        CLIENT_TEST_OK(gpumem_seq_free(kv, seq));
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 0);
        /* The pool itself. */
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 1, driver.stream, 2000));
        silence(session);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        wake();
        CU_ASSERT_TRUE(comes_to(session, 0));
        gpumem_disconnect(session);
        client_test_check(process);
}

static void test_buffers(void)
{
        struct gpumem *session = client_test_connect_with(process, "owed", 200);
        struct gpumem_buffer *buffer;

        CLIENT_TEST_OK(gpumem_buffer_create(session, 8 * MIB, "b", 1000, &buffer));
        silence(session);
        CU_ASSERT_PTR_NULL(gpumem_buffer_free(buffer));
        wake();
        CU_ASSERT_TRUE(comes_to(session, 0));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* A grant whose reply nobody waits for any more goes back while the session lives on. */
static void test_late_grant(void)
{
        struct gpumem *session = client_test_connect_with(process, "owed", 200);
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv *kv;
        gpumem_seq seq;

        options.reserve_units = options.idle_trim_ms = UINT32_MAX;
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CU_ASSERT_EQUAL_FATAL(kill(daemon_process_daemon(process), SIGSTOP), 0);
        CU_ASSERT_EQUAL(gpumem_seq_append(kv, seq, 1, driver.stream, 0), GPUMEM_E_TIMEOUT);
        wake();
        CU_ASSERT_TRUE(comes_to(session, 0));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 1, driver.stream, 1000));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 2 * MIB);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        gpumem_disconnect(session);
        client_test_check(process);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("what the daemon is owed", start, stop);
        CU_add_test(suite, "C14 units of a pool, and the pool", test_units);
        CU_add_test(suite, "C14 buffers", test_buffers);
        CU_add_test(suite, "C14 a late grant", test_late_grant);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
