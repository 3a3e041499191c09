/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C02, C03: a failure at each driver call. The library's driver table is replaced by one that lets
 * the n-th call of a set fail, for every n until the whole run needs fewer calls. Whatever fails,
 * the error is typed, nothing is half done, the same work succeeds afterwards, and in the end the
 * daemon has everything back.
 */
#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int stop(void)
{
        int r = client_test_driver_close(&driver);

        process = daemon_process_free(process);
        return r;
}

/* --- a table that fails ---------------------------------------------------------------------- */

static struct driver real;
static atomic_uint calls;
static atomic_uint fail_at;  /* 0: never */
static atomic_uint fail_all; /* from fail_at on */
static const char *failed_call;

static bool fails(const char *call)
{
        unsigned at = atomic_load(&fail_at), n;

        if (at == 0)
                return false;
        n = atomic_fetch_add(&calls, 1) + 1;
        if (n < at || (n > at && !atomic_load(&fail_all)))
                return false;
        failed_call = call;
        return true;
}

#define FAILING(name, result, parameters, arguments)                                               \
        static CUresult fail_##name parameters                                                     \
        {                                                                                          \
                return fails(#name) ? result : real.name arguments;                                \
        }
FAILING(mem_import_from_shareable_handle, CUDA_ERROR_OUT_OF_MEMORY,
        (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type),
        (handle, shareable, type))
FAILING(mem_address_reserve, CUDA_ERROR_OUT_OF_MEMORY,
        (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr hint,
         unsigned long long flags),
        (address, bytes, alignment, hint, flags))
FAILING(mem_map, CUDA_ERROR_INVALID_VALUE,
        (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
         unsigned long long flags),
        (address, bytes, offset, handle, flags))
FAILING(mem_set_access, CUDA_ERROR_OUT_OF_MEMORY,
        (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *descriptions, size_t count),
        (address, bytes, descriptions, count))
FAILING(event_create, CUDA_ERROR_OUT_OF_MEMORY, (CUevent * event, unsigned int flags),
        (event, flags))
FAILING(event_record, CUDA_ERROR_INVALID_HANDLE, (CUevent event, CUstream stream), (event, stream))
FAILING(memcpy_2d_async, CUDA_ERROR_INVALID_VALUE, (const CUDA_MEMCPY2D *copy, CUstream stream),
        (copy, stream))
FAILING(ctx_push_current, CUDA_ERROR_INVALID_CONTEXT, (CUcontext context), (context))
FAILING(mem_unmap, CUDA_ERROR_UNKNOWN, (CUdeviceptr address, size_t bytes), (address, bytes))
FAILING(mem_release, CUDA_ERROR_UNKNOWN, (CUmemGenericAllocationHandle handle), (handle))

static void make_acquiring_fail(struct driver *table)
{
        real = *table;
        table->mem_import_from_shareable_handle = fail_mem_import_from_shareable_handle;
        table->mem_address_reserve = fail_mem_address_reserve;
        table->mem_map = fail_mem_map;
        table->mem_set_access = fail_mem_set_access;
        table->event_create = fail_event_create;
        table->event_record = fail_event_record;
        table->memcpy_2d_async = fail_memcpy_2d_async;
        table->ctx_push_current = fail_ctx_push_current;
}

static void arm(unsigned at, bool all)
{
        atomic_store(&calls, 0);
        atomic_store(&fail_all, all);
        atomic_store(&fail_at, at);
        failed_call = NULL;
}

/* --- the work ----------------------------------------------------------------------------------
 */

struct work {
        struct gpumem *session;
        struct gpumem_kv *kv;
        struct gpumem_kv_geometry geometry;
        struct gpumem_buffer *buffer;
        gpumem_seq seqs[3];
};

/* Frames that the library says it has, and what the daemon says. */
static void check_accounts(struct work *w)
{
        struct gpumem_kv_stats stats = {0};
        uint64_t bytes = w->buffer ? gpumem_buffer_bytes(w->buffer) : 0;

        if (w->kv) {
                CU_ASSERT_EQUAL(gpumem_kv_get_stats(w->kv, &stats), 0);
                CU_ASSERT_EQUAL(page_allocator_check(&w->kv->pages), 0);
                CU_ASSERT_EQUAL(stats.pages_total, stats.units_mapped * w->geometry.pages_per_unit);
                bytes += stats.granted_bytes;
        }
        CU_ASSERT_EQUAL(client_test_session_bytes(w->session), bytes);
}

/* Does step `n`; each is one public call that may fail. Returns its result, or 1 past the last. */
static int do_step(struct work *w, int n)
{
        struct gpumem_kv_options options = client_test_kv_options();
        uint32_t unit = w->geometry.pages_per_unit * w->geometry.page_tokens;
        const uint32_t each[2] = {3, 4};
        struct gpumem_batch *batch;
        int r;

        switch (n) {
        case 0:
                return gpumem_buffer_create(w->session, 5 * MIB, "b", 0, &w->buffer);
        case 1:
                /* Layers and dims that make units of several frames. */
                options.layers = 11;
                options.key_dim = 256;
                options.value_dim = 72;
                options.kv_heads = 7;
                options.max_bytes = 40 * MIB;
                return gpumem_kv_create(w->session, &options, &w->kv);
        case 2:
                gpumem_kv_get_geometry(w->kv, &w->geometry);
                CU_ASSERT(w->geometry.unit_frames > 1);
                return gpumem_seq_create(w->kv, &w->seqs[0]);
        case 3:
                return gpumem_seq_append(w->kv, w->seqs[0], unit + 20, driver.stream, 0);
        case 4:
                return gpumem_seq_fork(w->kv, w->seqs[0], driver.stream, &w->seqs[1]);
        case 5:
                return gpumem_seq_truncate(w->kv, w->seqs[0], 20);
        case 6:
                return gpumem_seq_truncate(w->kv, w->seqs[1], 20);
        case 7: {
                /* Both sequences' last page is one: two copies on write. */
                r = gpumem_batch_begin(w->kv, w->seqs, 2, each, driver.stream, 0, &batch);
                if (r < 0)
                        return r;
                /* The end of a batch is its end, whatever comes of it. */
                r = gpumem_batch_end(batch, driver.stream);
                CU_ASSERT(r == 0 || r == GPUMEM_E_DEVICE || r == GPUMEM_E_INVALID);
                return 0;
        }
        case 8:
                return gpumem_seq_append(w->kv, w->seqs[1], 30, driver.stream, 0);
        default:
                return 1;
        }
}

/* Lengths after step n has succeeded. */
static void check_lengths(struct work *w, int n)
{
        uint32_t unit = w->geometry.pages_per_unit * w->geometry.page_tokens, length;

        if (n >= 3) {
                CU_ASSERT_EQUAL(gpumem_seq_length(w->kv, w->seqs[0], &length), 0);
                CU_ASSERT_EQUAL(length, n >= 7 ? 23 : n >= 5 ? 20 : unit + 20);
        }
        if (n >= 4) {
                CU_ASSERT_EQUAL(gpumem_seq_length(w->kv, w->seqs[1], &length), 0);
                CU_ASSERT_EQUAL(length, n >= 8 ? 54 : n >= 7 ? 24 : n >= 6 ? 20 : unit + 20);
        }
}

/* The whole work with the n-th call failing once (or from then on, until the step is repeated). */
static bool run_with_failure(unsigned at, bool all, unsigned *failures)
{
        struct work w = {.session = client_test_connect(process, "failing")};
        bool reached = false;

        make_acquiring_fail(w.session->driver);
        arm(at, all);
        for (int n = 0;; n++) {
                struct gpumem_kv_stats before = {0}, after = {0};
                unsigned armed = atomic_load(&fail_at);
                int r;

                if (w.kv) {
                        atomic_store(&fail_at, 0);
                        CU_ASSERT_EQUAL(gpumem_kv_get_stats(w.kv, &before), 0);
                        atomic_store(&fail_at, armed);
                }
                r = do_step(&w, n);
                if (r > 0)
                        break;
                if (r == 0) {
                        reached |= failed_call != NULL;
                        if (failed_call && all)
                                arm(0, false);
                        armed = atomic_load(&fail_at);
                        atomic_store(&fail_at, 0);
                        check_lengths(&w, n);
                        atomic_store(&fail_at, armed);
                        continue;
                }
                /* Typed, said, and nothing moved. */
                reached = true;
                ++*failures;
                CU_ASSERT_EQUAL(r, GPUMEM_E_DEVICE);
                CU_ASSERT(strlen(gpumem_error_message()) > 10);
                CU_ASSERT_PTR_NOT_NULL(failed_call);
                arm(0, false);
                client_test_synchronize(&driver);
                if (w.kv && before.units_mapped + before.units_ready > 0) {
                        /* A pin without an event is over when the context was waited for. */
                        for (int i = 0; i < 1000; i++) {
                                CU_ASSERT_EQUAL(gpumem_kv_get_stats(w.kv, &after), 0);
                                if (after.pins == 0)
                                        break;
                                client_test_pause_ms(1);
                        }
                        CU_ASSERT_EQUAL(after.pages_used, before.pages_used);
                        CU_ASSERT_EQUAL(after.pages_shared, before.pages_shared);
                        CU_ASSERT_EQUAL(after.tokens, before.tokens);
                        CU_ASSERT_EQUAL(after.sequences, before.sequences);
                        CU_ASSERT_EQUAL(after.pins, 0);
                        CU_ASSERT_EQUAL(after.pages_retiring, 0);
                }
                check_accounts(&w);
                check_lengths(&w, n - 1);
                /* The same again succeeds. */
                r = do_step(&w, n);
                if (r != 0)
                        fprintf(stderr, "step %d after failure %u: %s\n", n, at,
                                gpumem_error_message());
                CU_ASSERT_EQUAL_FATAL(r, 0);
                check_lengths(&w, n);
        }
        arm(0, false);
        check_accounts(&w);
        *w.session->driver = real;
        client_test_synchronize(&driver);
        gpumem_disconnect(w.session);
        return reached;
}

static void test_every_call_once(void)
{
        unsigned at = 1, failures = 0;

        while (run_with_failure(at, false, &failures))
                at++;
        printf("%u calls, %u failed steps ", at - 1, failures);
        CU_ASSERT(at > 40);
        CU_ASSERT(failures > 30);
        client_test_check(process);
}

static void test_every_call_from_then_on(void)
{
        unsigned at = 1, failures = 0;

        while (run_with_failure(at, true, &failures))
                at++;
        printf("%u calls, %u failed steps ", at - 1, failures);
        CU_ASSERT(at > 40);
        client_test_check(process);
}

/* What cannot be unmapped or released is not given back and not used again; everything else goes
 * on. (The daemon has those frames back when this process ends.) */
static void test_stuck(void)
{
        for (int what = 0; what < 2; what++) {
                struct gpumem *session = client_test_connect(process, "stuck");
                struct gpumem_kv_options options = client_test_kv_options();
                struct gpumem_kv_geometry g;
                struct gpumem_kv_stats stats;
                struct gpumem_kv *kv;
                gpumem_seq seq;
                uint64_t bytes, unit;

                options.max_bytes = 8 * MIB;
                CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
                gpumem_kv_get_geometry(kv, &g);
                unit = g.unit_frames * g.frame_bytes;
                CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
                CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 2 * g.pages_per_unit * 16, NULL, 0));
                CLIENT_TEST_OK(gpumem_seq_truncate(kv, seq, 0));
                real = *session->driver;
                if (what == 0)
                        session->driver->mem_unmap = fail_mem_unmap;
                else
                        session->driver->mem_release = fail_mem_release;
                arm(1, false);
                CU_ASSERT_EQUAL(gpumem_kv_trim(kv, &bytes), GPUMEM_E_DEVICE);
                arm(0, false);
                *session->driver = real;
                CLIENT_TEST_OK(gpumem_kv_get_stats(kv, &stats));
                CU_ASSERT_EQUAL(bytes, unit);
                CU_ASSERT_EQUAL(stats.granted_bytes, unit);
                CU_ASSERT_EQUAL(client_test_session_bytes(session), unit);
                CU_ASSERT_EQUAL(page_allocator_check(&kv->pages), 0);
                CLIENT_TEST_OK(gpumem_seq_append(kv, seq, g.pages_per_unit * 16, NULL, 0));
                CLIENT_TEST_OK(gpumem_kv_free(kv));
                gpumem_disconnect(session);
                CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        }
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: failing driver calls", start, stop);
        CU_add_test(suite, "C02 every call fails once", test_every_call_once);
        CU_add_test(suite, "C02 every call fails from then on", test_every_call_from_then_on);
        CU_add_test(suite, "what is stuck is kept", test_stuck);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
