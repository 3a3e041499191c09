/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that strays poisons the context (the simulated Xid): the library answers typed errors
 * and ends in time; nothing crashes. And a kernel that fails by itself is told once. */
#include <CUnit/Basic.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/kv.h"
#include "tests/support/client_test.h"

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

/* Host memory that a kernel could not get shows in the next batch, once. */
static void test_kernel_error(void)
{
        struct gpumem *session = client_test_connect(process, "kernel");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_batch *batch;
        struct gpumem_kv *kv;
        uint32_t each = 1;
        gpumem_seq seq;

        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        atomic_store(&kv->kernel_error, -ENOMEM);
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &batch),
                        GPUMEM_E_DEVICE);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "kernel"));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &batch));
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        gpumem_disconnect(session);
        client_test_check(process);
}

static void stray(void *userdata)
{
        *(volatile char *)userdata = 1;
}

static void test_stray_kernel(void)
{
        static struct gpumem *session; /* what is stranded stays reachable */
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_buffer *buffer, *other;
        struct gpumem_batch *batch, *next;
        struct gpumem_kv *kv;
        uint32_t each = 100;
        uint64_t started;
        gpumem_seq seq, fork;
        int r;

        session = client_test_connect_with(process, "stray", 500);
        CLIENT_TEST_OK(gpumem_buffer_create(session, MIB, NULL, 0, &buffer));
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        gpumem_kv_get_geometry(kv, &g);
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &batch));
        /* C13: addresses that are reserved and not mapped are nobody's. */
        CU_ASSERT_EQUAL_FATAL(
                driver.driver->launch_host_func(
                        driver.stream, stray,
                        driver.driver->host_view(g.base + 2 * (uint64_t)g.unit_stride, 1)),
                CUDA_SUCCESS);
        CU_ASSERT_NOT_EQUAL(driver.driver->stream_synchronize(driver.stream), CUDA_SUCCESS);
        started = client_test_now_ms();
        CU_ASSERT_EQUAL(gpumem_batch_end(batch, driver.stream), GPUMEM_E_DEVICE);
        CU_ASSERT(strlen(gpumem_error_message()) > 10);
        r = gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &next);
        CU_ASSERT_EQUAL(r, GPUMEM_E_DEVICE);
        CU_ASSERT_EQUAL(gpumem_seq_fork(kv, seq, driver.stream, &fork), GPUMEM_E_DEVICE);
        CU_ASSERT_EQUAL(gpumem_buffer_create(session, MIB, NULL, 0, &other), GPUMEM_E_DEVICE);
        CU_ASSERT_EQUAL(gpumem_seq_free(kv, seq), 0);
        gpumem_disconnect(session);
        CU_ASSERT(client_test_now_ms() - started < 20000);
        CU_ASSERT_EQUAL(daemon_process_alive(process), 1);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: the device fails", start, stop);
        CU_add_test(suite, "a kernel's own failure is told once", test_kernel_error);
        CU_add_test(suite, "C13 a stray kernel", test_stray_kernel); /* last: the context is lost */
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
