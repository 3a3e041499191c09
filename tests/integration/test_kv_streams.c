/* SPDX-License-Identifier: Apache-2.0 */
/* A pool used from two streams, one of which is held up: what its work reads stays as it is. */
#include <CUnit/Basic.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/client_test.h"

enum { DIM = 8, SLOTS = 12, SLOT_BYTES = 65536 };

static struct daemon_process *process;
static struct client_test_driver driver; /* its stream is the one that is held up */
static CUstream other;
static struct gpumem *session;
static struct gpumem_buffer *operands;
static unsigned char *host;

static int open_all(void)
{
        const struct daemon_options options = {.memory_bytes = 64 << 20, .frame_bytes = 2 << 20};

        if (daemon_process_start(&process, &options) < 0 || client_test_driver_open(&driver) < 0)
                return -1;
        return driver.driver->stream_create(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS ? 0
                                                                                            : -1;
}

static int close_all(void)
{
        driver.driver->stream_destroy(other);
        client_test_driver_close(&driver);
        process = daemon_process_free(process);
        return 0;
}

static struct gpumem_kv *start(void)
{
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv *kv;
        void *view;

        options.layers = 1;
        options.kv_heads = 1;
        options.key_dim = options.value_dim = DIM;
        options.reserve_units = UINT32_MAX;
        session = client_test_connect(process, "streams");
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        CLIENT_TEST_OK(
                gpumem_buffer_create(session, SLOTS * SLOT_BYTES, "operands", 1000, &operands));
        CLIENT_TEST_OK(gpumem_host_view(session, gpumem_buffer_address(operands),
                                        SLOTS * SLOT_BYTES, &view));
        host = view;
        memset(host, 0, SLOTS * SLOT_BYTES);
        return kv;
}

static void stop(struct gpumem_kv *kv)
{
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        gpumem_buffer_free(operands);
        CU_ASSERT_PTR_NULL(gpumem_disconnect(session));
        client_test_check(process);
}

static float *floats(int slot)
{
        return (float *)(void *)(host + slot * SLOT_BYTES);
}

static struct gpumem_tensor tensor(int slot)
{
        return (struct gpumem_tensor){
                .address = gpumem_buffer_address(operands) + (uint64_t)slot * SLOT_BYTES,
                .heads = 1,
                .dim = DIM,
        };
}

/* Adds tokens with keys 0 and all values `value`. With `attend` the first token's attention, the
 * mean of all values, comes to slot + 3; slots from `slot` on are used. */
static void append(struct gpumem_kv *kv, gpumem_seq seq, uint32_t tokens, float value,
                   CUstream stream, int slot, bool attend)
{
        const struct gpumem_tensor key = tensor(slot), values = tensor(slot + 1);
        const struct gpumem_attn attention = {.q = tensor(slot + 2), .out = tensor(slot + 3)};
        struct gpumem_batch *batch;

        for (uint32_t i = 0; i < tokens * DIM; i++)
                floats(slot + 1)[i] = value;
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &tokens, stream, 1000, &batch));
        CLIENT_TEST_OK(gpumem_kv_write(batch, 0, &key, &values, stream));
        if (attend)
                CLIENT_TEST_OK(gpumem_attn_decode(batch, 0, &attention, stream));
        CLIENT_TEST_OK(gpumem_batch_end(batch, stream));
}

/* The child's attention is queued; then the child goes, which leaves its pages to the parent, and
 * the parent's new tokens come from another stream. */
static void test_reader_of_freed(void)
{
        struct gpumem_kv *kv = start();
        struct client_test_gate *gate;
        struct gpumem_kv_stats stats;
        gpumem_seq parent, child;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &parent));
        append(kv, parent, 32, 1, driver.stream, 0, false);
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_seq_fork(kv, parent, driver.stream, &child));
        gate = client_test_gate_close(&driver);
        append(kv, child, 1, 1, driver.stream, 4, true);
        CLIENT_TEST_OK(gpumem_seq_free(kv, child));
        CLIENT_TEST_OK(gpumem_seq_truncate(kv, parent, 20));
        append(kv, parent, 12, 1000, other, 8, false);
        CU_ASSERT_EQUAL(driver.driver->stream_synchronize(other), CUDA_SUCCESS);
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CU_ASSERT_DOUBLE_EQUAL(floats(7)[0], 1, 0.001);
        /* When that is over the page is the parent's, and is written in place. */
        CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        CU_ASSERT_EQUAL(stats.copies, 1);
        CU_ASSERT_EQUAL(stats.pages_shared, 0);
        CLIENT_TEST_OK(gpumem_seq_truncate(kv, parent, 20));
        append(kv, parent, 1, 1, other, 8, true);
        CU_ASSERT_EQUAL(driver.driver->stream_synchronize(other), CUDA_SUCCESS);
        CU_ASSERT_DOUBLE_EQUAL(floats(11)[0], 1, 0.001);
        CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        CU_ASSERT_EQUAL(stats.copies, 1);
        CLIENT_TEST_OK(gpumem_seq_free(kv, parent));
        stop(kv);
}

/* A copy on write is queued, which leaves the page to the other holder. */
static void test_copy_of_shared(void)
{
        struct gpumem_kv *kv = start();
        struct client_test_gate *gate;
        gpumem_seq parent, child;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &parent));
        append(kv, parent, 32, 1, driver.stream, 0, false);
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_seq_fork(kv, parent, driver.stream, &child));
        CLIENT_TEST_OK(gpumem_seq_truncate(kv, parent, 20));
        CLIENT_TEST_OK(gpumem_seq_truncate(kv, child, 20));
        gate = client_test_gate_close(&driver);
        append(kv, child, 1, 1, driver.stream, 4, true);
        CLIENT_TEST_OK(gpumem_seq_truncate(kv, parent, 17));
        append(kv, parent, 3, 1000, other, 8, false);
        CU_ASSERT_EQUAL(driver.driver->stream_synchronize(other), CUDA_SUCCESS);
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CU_ASSERT_DOUBLE_EQUAL(floats(7)[0], 1, 0.001);
        stop(kv);
}

/* A fork's copy of the partial last page is queued; the parent goes back and on. */
static void test_copy_of_fork(void)
{
        struct gpumem_kv *kv = start();
        struct client_test_gate *gate;
        gpumem_seq parent, child;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &parent));
        append(kv, parent, 20, 1, driver.stream, 0, false);
        client_test_synchronize(&driver);
        gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_seq_fork(kv, parent, driver.stream, &child));
        append(kv, child, 1, 1, driver.stream, 4, true);
        CLIENT_TEST_OK(gpumem_seq_truncate(kv, parent, 17));
        append(kv, parent, 3, 1000, other, 8, false);
        CU_ASSERT_EQUAL(driver.driver->stream_synchronize(other), CUDA_SUCCESS);
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CU_ASSERT_DOUBLE_EQUAL(floats(7)[0], 1, 0.001);
        stop(kv);
}

/* Pages of a freed sequence are nobody's while work may read them: new ones go elsewhere. */
static void test_reuse_of_freed(void)
{
        struct gpumem_kv *kv = start();
        struct client_test_gate *gate;
        struct gpumem_kv_stats stats;
        gpumem_seq seq, next;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        append(kv, seq, 32, 1, driver.stream, 0, false);
        client_test_synchronize(&driver);
        gate = client_test_gate_close(&driver);
        append(kv, seq, 1, 1, driver.stream, 4, true);
        CLIENT_TEST_OK(gpumem_seq_free(kv, seq));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &next));
        append(kv, next, 64, 1000, other, 8, false);
        CU_ASSERT_EQUAL(driver.driver->stream_synchronize(other), CUDA_SUCCESS);
        CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        CU_ASSERT_EQUAL(stats.pages_retiring, 3);
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CU_ASSERT_DOUBLE_EQUAL(floats(7)[0], 1, 0.001);
        stop(kv);
}

/* A cancelled batch leaves the sequence as it was: its length, and what it holds. */
static void test_cancel(void)
{
        struct gpumem_kv *kv = start();
        const struct gpumem_tensor key = tensor(0), values = tensor(1);
        const uint32_t tokens = 20;
        struct gpumem_batch *batch;
        gpumem_seq seq;
        uint32_t length = 0;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        append(kv, seq, 20, 1, driver.stream, 0, false);
        client_test_synchronize(&driver);
        for (uint32_t i = 0; i < tokens * DIM; i++)
                floats(1)[i] = 1000;
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &tokens, driver.stream, 1000, &batch));
        CLIENT_TEST_OK(gpumem_kv_write(batch, 0, &key, &values, driver.stream));
        CLIENT_TEST_OK(gpumem_batch_cancel(batch, driver.stream));
        CLIENT_TEST_OK(gpumem_seq_length(kv, seq, &length));
        CU_ASSERT_EQUAL(length, 20);
        append(kv, seq, 1, 1, driver.stream, 4, true);
        client_test_synchronize(&driver);
        CU_ASSERT_DOUBLE_EQUAL(floats(7)[0], 1, 0.001);
        stop(kv);
}

/* The batch's end names a stream that is gone: its work is still pending on another, so it stays
 * pinned, and nothing is lost for good. */
static void test_wrong_stream(void)
{
        struct gpumem_kv *kv = start();
        const struct gpumem_tensor key = tensor(0), values = tensor(1);
        struct client_test_gate *gate;
        struct gpumem_kv_stats stats;
        struct gpumem_batch *batch;
        const uint32_t tokens = 5;
        gpumem_seq seq, next;
        CUstream gone;
        uint64_t bytes = 1;

        CU_ASSERT_EQUAL_FATAL(driver.driver->stream_create(&gone, CU_STREAM_NON_BLOCKING),
                              CUDA_SUCCESS);
        CU_ASSERT_EQUAL_FATAL(driver.driver->stream_destroy(gone), CUDA_SUCCESS);
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &next));
        gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &tokens, driver.stream, 1000, &batch));
        CLIENT_TEST_OK(gpumem_kv_write(batch, 0, &key, &values, driver.stream));
        CU_ASSERT_EQUAL(gpumem_batch_end(batch, gone), GPUMEM_E_INVALID);
        CLIENT_TEST_OK(gpumem_seq_free(kv, seq));
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 0);
        CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        CU_ASSERT_EQUAL(stats.pins, 1);
        /* The pool goes on. */
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &next, 1, &tokens, driver.stream, 0, &batch));
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        for (int i = 0; i < 1000 && stats.pins > 0; i++) {
                client_test_pause_ms(1);
                CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
        }
        CU_ASSERT_EQUAL(stats.pins, 0);
        CU_ASSERT_EQUAL(stats.pages_retiring, 0);
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &next, 1, &tokens, driver.stream, 0, &batch));
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        stop(kv);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("streams", open_all, close_all);
        CU_add_test(suite, "pages of a freed fork that is still read", test_reader_of_freed);
        CU_add_test(suite, "a shared page whose copy is queued", test_copy_of_shared);
        CU_add_test(suite, "a fork's last page whose copy is queued", test_copy_of_fork);
        CU_add_test(suite, "pages of a freed sequence", test_reuse_of_freed);
        CU_add_test(suite, "a cancelled batch", test_cancel);
        CU_add_test(suite, "the wrong stream", test_wrong_stream);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures() + CU_get_number_of_failure_records();
        CU_cleanup_registry();
        return failed ? 1 : 0;
}
