/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evacuation: live pages of sparse units move so that the units can be given back, and what they
 * hold moves with them; not under a pin that may write them; a failed copy changes nothing.
 */
#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/kv_evacuate.h"
#include "tests/support/client_test.h"

#define MIB      (UINT64_C(1) << 20)
#define PER_UNIT 16u /* pages of 128 KiB in units of 2 MiB */
#define LAYERS   4u
#define UNITS    8u
#define SEQS     (PER_UNIT * UNITS)

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

struct fixture {
        struct gpumem *session;
        struct gpumem_kv *kv;
        struct gpumem_kv_geometry geometry;
        gpumem_seq seqs[SEQS];
        uint64_t marks[SEQS]; /* what their only page holds */
};

static void open_pool(struct fixture *f, uint32_t idle_trim_ms)
{
        struct gpumem_kv_options options = client_test_kv_options();

        memset(f, 0, sizeof(*f));
        f->session = client_test_connect(process, "evacuate");
        options.layers = LAYERS;
        options.kv_heads = 4;
        options.key_dim = options.value_dim = 128;
        options.max_sequences = 4 * SEQS;
        options.idle_trim_ms = idle_trim_ms;
        CLIENT_TEST_OK(gpumem_kv_create(f->session, &options, &f->kv));
        gpumem_kv_get_geometry(f->kv, &f->geometry);
        CU_ASSERT_EQUAL_FATAL(f->geometry.pages_per_unit, PER_UNIT);
}

static void close_pool(struct fixture *f)
{
        CU_ASSERT_EQUAL(page_allocator_check(&f->kv->pages), 0);
        CLIENT_TEST_OK(gpumem_kv_free(f->kv));
        gpumem_disconnect(f->session);
        client_test_check(process);
}

static uint64_t *page_part(const struct fixture *f, uint32_t page, uint32_t layer)
{
        const struct gpumem_kv_geometry *g = &f->geometry;
        uint64_t address =
                g->base +
                (uint64_t)gpumem_page_unit(page, g->slot_bits) * (uint64_t)g->unit_stride +
                layer * (uint64_t)g->layer_stride +
                (uint64_t)gpumem_page_slot(page, g->slot_bits) * (uint64_t)g->page_stride;

        return driver.driver->host_view(address, (size_t)g->page_stride);
}

static void paint(const struct fixture *f, uint32_t page, uint64_t mark)
{
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
                uint64_t *part = page_part(f, page, layer);

                for (size_t i = 0; i < (size_t)f->geometry.page_stride / 8; i++)
                        part[i] = mark * (layer + 1) + i;
        }
}

static bool is_painted(const struct fixture *f, uint32_t page, uint64_t mark)
{
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
                const uint64_t *part = page_part(f, page, layer);

                for (size_t i = 0; i < (size_t)f->geometry.page_stride / 8; i++)
                        if (part[i] != mark * (layer + 1) + i)
                                return false;
        }
        return true;
}

static struct gpumem_batch *begin(struct fixture *f, gpumem_seq seq, uint32_t tokens)
{
        struct gpumem_batch *batch = NULL;

        CLIENT_TEST_OK(gpumem_batch_begin(f->kv, &seq, 1, &tokens, driver.stream, 2000, &batch));
        return batch;
}

/* The page that the sequence's only one is now, looked at through a batch. */
static uint32_t page_of(struct fixture *f, gpumem_seq seq)
{
        struct gpumem_batch *batch = begin(f, seq, 0);
        uint32_t page = gpumem_batch_get_view(batch)->indices[0];

        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        client_test_synchronize(&driver);
        return page;
}

static void check_contents(struct fixture *f)
{
        for (uint32_t i = 0; i < SEQS; i++)
                if (f->seqs[i])
                        CU_ASSERT(is_painted(f, page_of(f, f->seqs[i]), f->marks[i]));
}

static void make_sequence(struct fixture *f, uint32_t i)
{
        struct gpumem_batch *batch;

        CLIENT_TEST_OK(gpumem_seq_create(f->kv, &f->seqs[i]));
        f->marks[i] = 1000003 * (i + 1);
        batch = begin(f, f->seqs[i], 16);
        paint(f, gpumem_batch_get_view(batch)->indices[0], f->marks[i]);
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
}

/* All UNITS units full, a sequence of one page each; then only `keep` a unit are left. */
static void make_sparse(struct fixture *f, uint32_t keep)
{
        uint32_t kept[64] = {0};
        struct gpumem_kv_stats stats;

        for (uint32_t i = 0; i < SEQS; i++)
                make_sequence(f, i);
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_kv_get_stats(f->kv, &stats));
        CU_ASSERT_EQUAL_FATAL(stats.units_mapped, UNITS);
        for (uint32_t i = 0; i < SEQS; i++) {
                uint32_t unit = gpumem_page_unit(page_of(f, f->seqs[i]), f->geometry.slot_bits);

                if (kept[unit]++ < keep)
                        continue;
                CLIENT_TEST_OK(gpumem_seq_free(f->kv, f->seqs[i]));
                f->seqs[i] = 0;
        }
}

static uint32_t units_mapped(struct fixture *f)
{
        struct gpumem_kv_stats stats;

        CLIENT_TEST_OK(gpumem_kv_get_stats(f->kv, &stats));
        return stats.units_mapped;
}

/* One live page in each unit, two, and more than the others can take in. */
static void test_trim(void)
{
        static const struct {
                uint32_t keep, left;
        } cases[] = {{1, 1}, {2, 1}, {3, 2}, {8, 4}, {15, 8}, {16, 8}};

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct fixture f;
                uint64_t bytes;

                open_pool(&f, UINT32_MAX);
                make_sparse(&f, cases[i].keep);
                CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
                CU_ASSERT_EQUAL(bytes, (UNITS - cases[i].left) * 2 * MIB);
                CU_ASSERT_EQUAL(units_mapped(&f), cases[i].left);
                CU_ASSERT_EQUAL(f.kv->pages_moved, (UNITS - cases[i].left) * cases[i].keep);
                check_contents(&f);
                CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
                CU_ASSERT_EQUAL(bytes, 0);
                close_pool(&f);
        }
}

/* A page that several sequences share moves once, for all of them, and stays shared. */
static void test_shared(void)
{
        struct gpumem_kv_stats before, after;
        struct gpumem_batch *batch;
        gpumem_seq forks[UNITS][2];
        struct fixture f;
        uint64_t bytes;

        open_pool(&f, UINT32_MAX);
        make_sparse(&f, 1);
        for (uint32_t i = 0, n = 0; i < SEQS; i++) {
                if (!f.seqs[i])
                        continue;
                CLIENT_TEST_OK(gpumem_seq_fork(f.kv, f.seqs[i], driver.stream, &forks[n][0]));
                CLIENT_TEST_OK(gpumem_seq_fork(f.kv, forks[n][0], driver.stream, &forks[n][1]));
                n++;
        }
        CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &before));
        CU_ASSERT_EQUAL(before.pages_shared, UNITS);
        CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
        CU_ASSERT_EQUAL(bytes, (UNITS - 1) * 2 * MIB);
        CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &after));
        CU_ASSERT_EQUAL(after.pages_shared, UNITS);
        CU_ASSERT_EQUAL(after.pages_used, before.pages_used);
        CU_ASSERT_EQUAL(after.copies, before.copies);
        check_contents(&f);
        for (uint32_t i = 0, n = 0; i < SEQS; i++) {
                uint32_t page;

                if (!f.seqs[i])
                        continue;
                page = page_of(&f, f.seqs[i]);
                CU_ASSERT_EQUAL(page_of(&f, forks[n][0]), page);
                CU_ASSERT_EQUAL(page_of(&f, forks[n][1]), page);
                CU_ASSERT_EQUAL(page_allocator_references(&f.kv->pages, page), 3);
                /* Shared still means: not written. */
                CLIENT_TEST_OK(gpumem_seq_truncate(f.kv, forks[n][0], 15));
                batch = begin(&f, forks[n][0], 1);
                CU_ASSERT_NOT_EQUAL(gpumem_batch_get_view(batch)->indices[0], page);
                CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
                n++;
        }
        client_test_synchronize(&driver);
        close_pool(&f);
}

/* What an open batch, or one whose stream is not there yet, may write stays where it is. */
static void test_pinned(void)
{
        struct client_test_gate *gate;
        struct gpumem_batch *batch;
        struct fixture f;
        uint32_t pinned = 0, page;
        uint64_t bytes;

        open_pool(&f, UINT32_MAX);
        make_sparse(&f, 1);
        while (!f.seqs[pinned])
                pinned++;
        batch = begin(&f, f.seqs[pinned], 0);
        page = gpumem_batch_get_view(batch)->indices[0];
        CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
        /* The old pages of the others retire after this batch, which began before. */
        CU_ASSERT_EQUAL(bytes, 0);
        CU_ASSERT_EQUAL(units_mapped(&f), UNITS);
        CU_ASSERT_EQUAL(f.kv->pages_moved, UNITS - 1);
        CU_ASSERT(is_painted(&f, page, f.marks[pinned]));
        gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 0);
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
        CU_ASSERT_EQUAL(bytes, (UNITS - 1) * 2 * MIB);
        CU_ASSERT_EQUAL(page_of(&f, f.seqs[pinned]), page);
        check_contents(&f);
        close_pool(&f);
}

/* A batch reads a page whose sequence is freed meanwhile; a fork keeps the page alive, and may
 * move: the batch still finds the old one. */
static void test_reader_in_flight(void)
{
        struct client_test_gate *gate;
        struct gpumem_batch *batch;
        struct fixture f;
        uint32_t reader = 0, page;
        gpumem_seq fork;
        uint64_t bytes;

        open_pool(&f, UINT32_MAX);
        make_sparse(&f, 1);
        while (!f.seqs[reader])
                reader++;
        CLIENT_TEST_OK(gpumem_seq_fork(f.kv, f.seqs[reader], driver.stream, &fork));
        batch = begin(&f, f.seqs[reader], 0);
        page = gpumem_batch_get_view(batch)->indices[0];
        gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        CLIENT_TEST_OK(gpumem_seq_free(f.kv, f.seqs[reader]));
        f.seqs[reader] = fork;
        CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 0);
        CU_ASSERT_EQUAL(f.kv->pages_moved, UNITS - 1);
        CU_ASSERT(is_painted(&f, page, f.marks[reader]));
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
        CU_ASSERT_EQUAL(bytes, (UNITS - 1) * 2 * MIB);
        check_contents(&f);
        close_pool(&f);
}

static void test_publishable(void)
{
        struct fixture f;
        uint64_t bytes;

        open_pool(&f, UINT32_MAX);
        make_sparse(&f, 1);
        for (uint32_t unit = 0; unit < UNITS; unit++)
                f.kv->units[unit].publishable = unit % 2;
        CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
        CU_ASSERT_EQUAL(bytes, UNITS / 2 * 2 * MIB);
        for (uint32_t unit = 0; unit < UNITS; unit++)
                CU_ASSERT(f.kv->units[unit].state == (unit % 2 ? KV_UNIT_MAPPED : KV_UNIT_ABSENT));
        check_contents(&f);
        close_pool(&f);
}

/* --- failures -------------------------------------------------------------------------------- */

static struct driver real;
static uint32_t copies, fail_copy; /* the n-th */

static CUresult failing_copy(const CUDA_MEMCPY2D *copy, CUstream stream)
{
        return ++copies == fail_copy ? CUDA_ERROR_INVALID_VALUE
                                     : real.memcpy_2d_async(copy, stream);
}

static CUresult failing_stream_create(CUstream *stream, unsigned int flags)
{
        (void)stream;
        (void)flags;
        return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult failing_event_record(CUevent event, CUstream stream)
{
        (void)event;
        (void)stream;
        return CUDA_ERROR_INVALID_HANDLE;
}

/* C26: whichever copy fails, all pages are where they were, and the next attempt succeeds. */
static void test_failures(void)
{
        for (uint32_t fail = 1; fail <= UNITS + 1; fail++) {
                struct gpumem_kv_stats before, after;
                uint32_t pages[SEQS] = {0};
                struct fixture f;
                uint64_t bytes;

                open_pool(&f, UINT32_MAX);
                make_sparse(&f, 1);
                for (uint32_t i = 0; i < SEQS; i++)
                        if (f.seqs[i])
                                pages[i] = page_of(&f, f.seqs[i]);
                CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &before));
                real = *f.session->driver;
                copies = 0;
                fail_copy = fail;
                if (fail < UNITS)
                        f.session->driver->memcpy_2d_async = failing_copy;
                else if (fail == UNITS)
                        f.session->driver->stream_create = failing_stream_create;
                else
                        f.session->driver->event_record = failing_event_record;
                CU_ASSERT_EQUAL(gpumem_kv_trim(f.kv, &bytes), GPUMEM_E_DEVICE);
                CU_ASSERT_EQUAL(bytes, 0);
                /* (Only what was changed: a thread that waits for the context reads the rest.) */
                f.session->driver->memcpy_2d_async = real.memcpy_2d_async;
                f.session->driver->stream_create = real.stream_create;
                f.session->driver->event_record = real.event_record;
                CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &after));
                for (int i = 0; i < 1000 && after.pins > 0; i++) {
                        client_test_pause_ms(2); /* copies that were under way */
                        CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &after));
                }
                CU_ASSERT_EQUAL(after.pages_used, before.pages_used);
                CU_ASSERT_EQUAL(after.units_mapped, UNITS);
                CU_ASSERT_EQUAL(f.kv->pages.pages_closed, 0);
                CU_ASSERT_EQUAL(atomic_load(&f.session->own_pins), 0);
                for (uint32_t i = 0; i < SEQS; i++)
                        if (f.seqs[i])
                                CU_ASSERT_EQUAL(page_of(&f, f.seqs[i]), pages[i]);
                check_contents(&f);
                CLIENT_TEST_OK(gpumem_kv_trim(f.kv, &bytes));
                CU_ASSERT_EQUAL(bytes, (UNITS - 1) * 2 * MIB);
                check_contents(&f);
                close_pool(&f);
        }
}

/* --- memory that is asked back --------------------------------------------------------------- */

/* Another session wants all that is free: it comes within its patience. */
static void test_reclaim(void)
{
        struct gpumem_buffer *buffer;
        struct gpumem *other;
        struct fixture f;

        open_pool(&f, UINT32_MAX);
        make_sparse(&f, 1);
        other = client_test_connect(process, "wants");
        CLIENT_TEST_OK(gpumem_buffer_create(other, 62 * MIB, "all", 1000, &buffer));
        CU_ASSERT_EQUAL(units_mapped(&f), 1);
        check_contents(&f);
        gpumem_buffer_free(buffer);
        gpumem_disconnect(other);
        close_pool(&f);
}

static void *want_all(void *userdata)
{
        struct gpumem_buffer **buffer = userdata;
        struct gpumem *other = client_test_connect(process, "wants");

        CLIENT_TEST_OK(gpumem_buffer_create(other, 62 * MIB, "all", 5000, buffer));
        return other;
}

/* The engine runs all the time, with every sequence in every batch: pages move between batches. */
static void test_busy_engine(void)
{
        struct gpumem_buffer *buffer = NULL;
        const uint32_t none[UNITS] = {0};
        gpumem_seq all[UNITS];
        uint64_t end;
        struct fixture f;
        pthread_t thread;
        void *other;

        open_pool(&f, UINT32_MAX);
        make_sparse(&f, 1);
        for (uint32_t i = 0, n = 0; i < SEQS; i++)
                if (f.seqs[i])
                        all[n++] = f.seqs[i];
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, want_all, &buffer), 0);
        end = client_test_now_ms() + 5000;
        while (units_mapped(&f) > 1 && client_test_now_ms() < end) {
                struct gpumem_batch *batch;

                CLIENT_TEST_OK(
                        gpumem_batch_begin(f.kv, all, UNITS, none, driver.stream, 0, &batch));
                client_test_pause_ms(3);
                CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
                client_test_synchronize(&driver);
        }
        CU_ASSERT_EQUAL(units_mapped(&f), 1);
        pthread_join(thread, &other);
        check_contents(&f);
        gpumem_buffer_free(buffer);
        gpumem_disconnect(other);
        close_pool(&f);
}

/* Nothing happens for idle_trim_ms: the pool shrinks to what it holds. */
static void test_idle(void)
{
        struct fixture f;

        open_pool(&f, 100);
        make_sparse(&f, 1);
        CU_ASSERT(client_test_wait_bytes(f.session, 2 * MIB, 2000));
        check_contents(&f);
        /* What is let go of without a batch, after the pool was trimmed, goes as well. */
        client_test_pause_ms(300);
        for (uint32_t i = 0; i < SEQS; i++)
                if (f.seqs[i])
                        CLIENT_TEST_OK(gpumem_seq_free(f.kv, f.seqs[i]));
        CU_ASSERT(client_test_wait_bytes(f.session, 0, 3000));
        close_pool(&f);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: evacuation", start, stop);
        CU_add_test(suite, "trim", test_trim);
        CU_add_test(suite, "shared pages", test_shared);
        CU_add_test(suite, "pinned pages stay", test_pinned);
        CU_add_test(suite, "readers in flight", test_reader_in_flight);
        CU_add_test(suite, "publishable units stay", test_publishable);
        CU_add_test(suite, "C26 copies that fail", test_failures);
        CU_add_test(suite, "asked back", test_reclaim);
        CU_add_test(suite, "asked back from a busy engine", test_busy_engine);
        CU_add_test(suite, "idle", test_idle);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
