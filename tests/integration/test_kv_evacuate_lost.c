/* SPDX-License-Identifier: Apache-2.0 */
/* C26: copies of an evacuation that were submitted and take long, or fail on the device: the pages
 * stay where they are, and nobody waits for ever. */
#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/kv_evacuate.h"
#include "tests/support/client_test.h"
#include "tests/support/sim_fault.h"

#define MIB (UINT64_C(1) << 20)

static struct daemon_process *process;
static struct client_test_driver driver;

static int start(void)
{
        const struct daemon_options options = {.memory_bytes = 64 * MIB, .frame_bytes = 2 * MIB};
        int r = daemon_process_start(&process, &options);

        return r < 0 ? r : client_test_driver_open(&driver);
}

/* The context is lost by now: its stream cannot be destroyed any more. */
static int stop(void)
{
        CUcontext context;

        process = daemon_process_free(process);
        driver.driver->ctx_pop_current(&context);
        driver.driver = driver_free(driver.driver);
        return 0;
}

static gpumem_seq make_sequence(struct gpumem_kv *kv, uint32_t pages)
{
        gpumem_seq seq;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 16 * pages, driver.stream, 1000));
        return seq;
}

/* Two units with a page each. */
static struct gpumem_kv *make_sparse(struct gpumem *session, gpumem_seq seqs[2])
{
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_kv *kv;
        gpumem_seq between;

        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        gpumem_kv_get_geometry(kv, &g);
        seqs[0] = make_sequence(kv, 1);
        between = make_sequence(kv, g.pages_per_unit);
        seqs[1] = make_sequence(kv, 1);
        CLIENT_TEST_OK(gpumem_seq_free(kv, between));
        CU_ASSERT_EQUAL_FATAL(kv->units_mapped, 2);
        return kv;
}

static uint32_t page_of(struct gpumem_kv *kv, gpumem_seq seq)
{
        return sequence_find(&kv->sequences, seq)->pages[0];
}

/* Not over by the session's deadline: told, and undone. The new pages wait for the copies. */
static void test_slow(void)
{
        struct gpumem *session = client_test_connect_with(process, "slow", 100);
        struct sim_control control = sim_control_of(driver.driver);
        struct gpumem_kv_stats stats;
        gpumem_seq seqs[2];
        struct gpumem_kv *kv = make_sparse(session, seqs);
        uint32_t pages[2] = {page_of(kv, seqs[0]), page_of(kv, seqs[1])};
        uint64_t bytes, end;

        CU_ASSERT_EQUAL(control.fault("operation delay=400000"), CUDA_SUCCESS);
        CU_ASSERT_EQUAL(gpumem_kv_trim(kv, &bytes), GPUMEM_E_TIMEOUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "device"));
        CU_ASSERT_EQUAL(bytes, 0);
        CU_ASSERT_EQUAL(page_of(kv, seqs[0]), pages[0]);
        CU_ASSERT_EQUAL(page_of(kv, seqs[1]), pages[1]);
        CU_ASSERT_EQUAL(kv->pages.pages_closed, 0);
        CU_ASSERT_EQUAL(kv->pages.pages_retiring, 1);
        end = client_test_now_ms() + 5000;
        do {
                client_test_pause_ms(10);
                CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        } while (stats.pins > 0 && client_test_now_ms() < end);
        CU_ASSERT_EQUAL(stats.pages_retiring, 0);
        CU_ASSERT_EQUAL(control.fault(NULL), CUDA_SUCCESS);
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 2 * MIB);
        CU_ASSERT_EQUAL(page_allocator_check(&kv->pages), 0);
        gpumem_disconnect(session);
        client_test_check(process);
}

static void test_lost(void)
{
        static struct gpumem *session; /* what is stranded stays reachable */
        struct sim_control control = sim_control_of(driver.driver);
        gpumem_seq seqs[2];
        struct gpumem_kv *kv;
        uint32_t pages[2];
        uint64_t bytes;

        session = client_test_connect_with(process, "lost", 500);
        kv = make_sparse(session, seqs);
        client_test_synchronize(&driver);
        pages[0] = page_of(kv, seqs[0]);
        pages[1] = page_of(kv, seqs[1]);
        CU_ASSERT_EQUAL(control.fault("operation sticky"), CUDA_SUCCESS);
        CU_ASSERT_EQUAL(gpumem_kv_trim(kv, &bytes), GPUMEM_E_DEVICE);
        CU_ASSERT_EQUAL(control.fault_hits(), 1);
        CU_ASSERT_EQUAL(bytes, 0);
        CU_ASSERT_EQUAL(page_of(kv, seqs[0]), pages[0]);
        CU_ASSERT_EQUAL(page_of(kv, seqs[1]), pages[1]);
        CU_ASSERT_EQUAL(kv->units_mapped, 2);
        CU_ASSERT_EQUAL(kv->pages.pages_closed, 0);
        CU_ASSERT_EQUAL(page_allocator_check(&kv->pages), 0);
        CU_ASSERT_EQUAL(gpumem_kv_trim(kv, &bytes), GPUMEM_E_DEVICE);
        gpumem_disconnect(session);
        CU_ASSERT_EQUAL(daemon_process_alive(process), 1);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: evacuation on a device that fails", start, stop);
        CU_add_test(suite, "C14 copies that take too long", test_slow);
        CU_add_test(suite, "C26 copies that fail", test_lost); /* last: the context is lost */
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
