/* SPDX-License-Identifier: Apache-2.0 */
/* Pools growing and shrinking against a real daemon: exhaustion, trimming, pins, several pools and
 * sessions. */
#include <CUnit/Basic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/client_test.h"

#define MIB    (UINT64_C(1) << 20)
#define DEVICE (64 * MIB)

static struct daemon_process *process;
static struct client_test_driver driver;

static int start(void)
{
        const struct daemon_options options = {.memory_bytes = DEVICE, .frame_bytes = 2 * MIB};
        int r = daemon_process_start(&process, &options);

        return r < 0 ? r : client_test_driver_open(&driver);
}

static int stop(void)
{
        int r = client_test_driver_close(&driver);

        process = daemon_process_free(process);
        return r;
}

static struct gpumem_kv_stats stats_of(struct gpumem_kv *kv)
{
        struct gpumem_kv_stats stats = {0};

        CU_ASSERT_EQUAL(gpumem_kv_get_stats(kv, &stats), 0);
        return stats;
}

static struct gpumem_kv *make_pool(struct gpumem *session, const struct gpumem_kv_options *options,
                                   struct gpumem_kv_geometry *geometry)
{
        struct gpumem_kv *kv = NULL;

        CLIENT_TEST_OK(gpumem_kv_create(session, options, &kv));
        gpumem_kv_get_geometry(kv, geometry);
        return kv;
}

/* Memory comes when it is needed and goes when it is not. */
static void test_grow_and_trim(void)
{
        struct gpumem *session = client_test_connect(process, "grow");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_kv *kv = make_pool(session, &options, &g);
        uint64_t unit = g.unit_frames * g.frame_bytes, bytes;
        uint32_t unit_tokens = g.pages_per_unit * g.page_tokens, length;
        gpumem_seq seqs[4];

        CU_ASSERT_EQUAL(client_test_session_bytes(session), 0);
        for (int i = 0; i < 4; i++)
                CLIENT_TEST_OK(gpumem_seq_create(kv, &seqs[i]));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 0);
        CLIENT_TEST_OK(gpumem_seq_append(kv, seqs[0], 1, NULL, 0));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), unit);
        CU_ASSERT_EQUAL(stats_of(kv).pages_used, 1);
        CLIENT_TEST_OK(gpumem_seq_append(kv, seqs[0], 15, NULL, 0));
        CU_ASSERT_EQUAL(stats_of(kv).pages_used, 1);
        CLIENT_TEST_OK(gpumem_seq_append(kv, seqs[0], unit_tokens, NULL, 0));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 2 * unit);
        CU_ASSERT_EQUAL(stats_of(kv).tokens, 16 + unit_tokens);
        CLIENT_TEST_OK(gpumem_seq_append(kv, seqs[1], 3 * unit_tokens, NULL, 0));
        CU_ASSERT_EQUAL(stats_of(kv).units_mapped, 5);
        CU_ASSERT_EQUAL(stats_of(kv).granted_bytes, 5 * unit);

        /* Nothing to trim beyond nothing; then three units' worth. */
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 0);
        CLIENT_TEST_OK(gpumem_seq_free(kv, seqs[1]));
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 3 * unit);
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 2 * unit);
        CU_ASSERT_EQUAL(stats_of(kv).units_returned, 3);
        CU_ASSERT_EQUAL(stats_of(kv).granted_bytes_peak, 5 * unit);
        CLIENT_TEST_OK(gpumem_seq_truncate(kv, seqs[0], 5));
        CU_ASSERT_EQUAL(stats_of(kv).pages_used, 1);
        CLIENT_TEST_OK(gpumem_seq_length(kv, seqs[0], &length));
        CU_ASSERT_EQUAL(length, 5);
        CLIENT_TEST_OK(gpumem_kv_trim(kv, NULL));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), unit);

        /* Stale handles. */
        CU_ASSERT_EQUAL(gpumem_seq_free(kv, seqs[1]), GPUMEM_E_NOT_FOUND);
        CU_ASSERT_EQUAL(gpumem_seq_append(kv, seqs[1], 1, NULL, 0), GPUMEM_E_NOT_FOUND);
        CU_ASSERT_EQUAL(gpumem_seq_length(kv, 0, &length), GPUMEM_E_NOT_FOUND);
        CU_ASSERT_EQUAL(gpumem_seq_length(kv, UINT64_MAX, &length), GPUMEM_E_NOT_FOUND);
        CU_ASSERT_EQUAL(gpumem_seq_truncate(kv, seqs[0], 6), GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_seq_append(kv, seqs[0], options.max_sequence_tokens, NULL, 0),
                        GPUMEM_E_INVALID);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 0);
        gpumem_disconnect(session);
        client_test_check(process);
}

/* Exhaustion is a typed answer and changes nothing; what is freed elsewhere is had. */
static void test_exhaustion(void)
{
        struct gpumem *session = client_test_connect(process, "exhaust");
        struct gpumem *other = client_test_connect(process, "other");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_kv *kv = make_pool(session, &options, &g);
        uint64_t unit = g.unit_frames * g.frame_bytes;
        uint32_t unit_tokens = g.pages_per_unit * g.page_tokens, each[2], length;
        struct gpumem_kv_stats before, after;
        struct gpumem_buffer *buffer;
        struct gpumem_batch *batch;
        gpumem_seq seqs[2];
        uint64_t started;

        CLIENT_TEST_OK(gpumem_buffer_create(other, DEVICE - 4 * unit, "most", 0, &buffer));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seqs[0]));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seqs[1]));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seqs[0], 2 * unit_tokens, NULL, 0));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seqs[1], unit_tokens + 1, NULL, 0));
        before = stats_of(kv);
        CU_ASSERT_EQUAL(before.units_mapped, 4);
        each[0] = 1;
        each[1] = unit_tokens;
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, seqs, 2, each, driver.stream, 0, &batch),
                        GPUMEM_E_AGAIN);
        CU_ASSERT_PTR_NULL(batch);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "pages are needed"));
        after = stats_of(kv);
        before.grow_waits = after.grow_waits;
        CU_ASSERT_EQUAL(memcmp(&before, &after, sizeof(before)), 0);
        CLIENT_TEST_OK(gpumem_seq_length(kv, seqs[0], &length));
        CU_ASSERT_EQUAL(length, 2 * unit_tokens);

        /* Waiting has an end... */
        started = client_test_now_ms();
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, seqs, 2, each, driver.stream, 350, &batch),
                        GPUMEM_E_AGAIN);
        CU_ASSERT(client_test_now_ms() - started >= 340);
        CU_ASSERT(client_test_now_ms() - started < 3000);
        /* ...and does not happen beside a pin of this session. */
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seqs[1], 1, each, driver.stream, 0, &batch));
        started = client_test_now_ms();
        CU_ASSERT_EQUAL(gpumem_seq_append(kv, seqs[0], unit_tokens, driver.stream, 5000),
                        GPUMEM_E_AGAIN);
        CU_ASSERT(client_test_now_ms() - started < 4000);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "pin"));
        CLIENT_TEST_OK(gpumem_batch_cancel(batch, driver.stream));
        client_test_synchronize(&driver);

        /* More than the pool may ever hold is another answer. */
        CU_ASSERT_EQUAL(gpumem_seq_truncate(kv, seqs[0], 0), 0);
        each[0] = options.max_sequence_tokens;
        gpumem_buffer_free(buffer);
        CLIENT_TEST_OK(gpumem_batch_begin(kv, seqs, 2, each, driver.stream, 5000, &batch));
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_kv_free(kv));

        options.max_bytes = 2 * unit;
        kv = make_pool(session, &options, &g);
        CU_ASSERT_EQUAL(g.units_max, 2);
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seqs[0]));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seqs[1]));
        CU_ASSERT_EQUAL(gpumem_seq_append(kv, seqs[0], 2 * unit_tokens + 1, NULL, 5000),
                        GPUMEM_E_NO_MEMORY);
        CLIENT_TEST_OK(gpumem_seq_append(kv, seqs[0], unit_tokens, NULL, 5000));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seqs[1], unit_tokens, NULL, 5000));
        each[0] = each[1] = 1;
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, seqs, 1, each, driver.stream, 5000, &batch),
                        GPUMEM_E_AGAIN); /* it could, if the other sequence went */
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, seqs, 2, each, driver.stream, 5000, &batch),
                        GPUMEM_E_NO_MEMORY);
        CLIENT_TEST_OK(gpumem_seq_free(kv, seqs[1]));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, seqs, 1, each, driver.stream, 0, &batch));
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        gpumem_disconnect(session); /* frees the pool */
        gpumem_disconnect(other);
        client_test_check(process);
}

/* C04, the part that exists: a batch is prepared on the CPU, and stalls; memory is asked for. The
 * unit stays until the stream got there, then it goes. */
static void test_pin_holds_units(void)
{
        struct gpumem *session = client_test_connect(process, "pins");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_kv *kv = make_pool(session, &options, &g);
        uint64_t unit = g.unit_frames * g.frame_bytes, bytes;
        const struct gpumem_batch_view *view;
        struct client_test_gate *gate;
        struct gpumem_batch *batch;
        struct gpumem_kv_stats s;
        uint32_t each = 40, page;
        gpumem_seq seq, next;
        void *host;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &batch));
        view = gpumem_batch_get_view(batch);
        CU_ASSERT_EQUAL_FATAL(view->indptr[1], 3);
        page = view->indices[0];
        /* The sequence is gone, its pages are not. */
        CLIENT_TEST_OK(gpumem_seq_free(kv, seq));
        s = stats_of(kv);
        CU_ASSERT_EQUAL(s.pages_used, 0);
        CU_ASSERT_EQUAL(s.pages_retiring, 3);
        CU_ASSERT_EQUAL(s.pins, 1);
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 0);
        CLIENT_TEST_OK(gpumem_safe_point(session));
        CLIENT_TEST_OK(gpumem_host_view(
                session, g.base + gpumem_page_unit(page, g.slot_bits) * unit, unit, &host));
        CU_ASSERT_EQUAL(gpumem_kv_free(kv), GPUMEM_E_BUSY);
        /* Pages freed under a pin are not handed out while it lasts. */
        CLIENT_TEST_OK(gpumem_seq_create(kv, &next));
        for (uint32_t n = 0; n < g.pages_per_unit - 3; n++)
                CLIENT_TEST_OK(gpumem_seq_append(kv, next, 16, driver.stream, 0));
        CU_ASSERT_EQUAL(stats_of(kv).units_mapped, 1);
        CLIENT_TEST_OK(gpumem_seq_append(kv, next, 16, driver.stream, 0));
        CU_ASSERT_EQUAL(stats_of(kv).units_mapped, 2);
        CLIENT_TEST_OK(gpumem_seq_free(kv, next));

        gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        /* Ended for the host, not for the stream. */
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 0);
        CU_ASSERT_EQUAL(stats_of(kv).pins, 1);
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CU_ASSERT_EQUAL(stats_of(kv).pins, 0);
        CU_ASSERT_EQUAL(stats_of(kv).pages_retiring, 0);
        CLIENT_TEST_OK(gpumem_kv_trim(kv, &bytes));
        CU_ASSERT_EQUAL(bytes, 2 * unit);
        CU_ASSERT_EQUAL(gpumem_host_view(session, g.base, 1, &host), GPUMEM_E_INVALID);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* A stream that does not get there: the pool lives on, and is freed later. */
static void test_free_waits(void)
{
        struct gpumem *session = client_test_connect_with(process, "slow", 300);
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_kv *kv = make_pool(session, &options, &g);
        struct client_test_gate *gate;
        struct gpumem_batch *batch;
        uint32_t each = 1;
        uint64_t started;
        gpumem_seq seq;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &batch));
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        started = client_test_now_ms();
        CU_ASSERT_EQUAL(gpumem_kv_free(kv), GPUMEM_E_TIMEOUT);
        CU_ASSERT(client_test_now_ms() - started < 3000);
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 1, driver.stream, 0));
        client_test_gate_open(gate);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* C11: two pools and two sessions in one process keep their own accounts. */
static void test_two_pools_two_sessions(void)
{
        struct gpumem *one = client_test_connect(process, "one");
        struct gpumem *two = client_test_connect(process, "two");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g, h;
        struct gpumem_kv *pools[3];
        gpumem_seq seqs[3];
        uint64_t unit, other_unit, bytes;
        uint32_t length;

        pools[0] = make_pool(one, &options, &g);
        options.layers = 5;
        options.page_tokens = 32;
        pools[1] = make_pool(one, &options, &h);
        options = client_test_kv_options();
        pools[2] = make_pool(two, &options, &g);
        gpumem_kv_get_geometry(pools[0], &g);
        unit = g.unit_frames * g.frame_bytes;
        other_unit = h.unit_frames * h.frame_bytes;
        for (int i = 0; i < 3; i++)
                CLIENT_TEST_OK(gpumem_seq_create(pools[i], &seqs[i]));
        CLIENT_TEST_OK(gpumem_seq_append(pools[0], seqs[0], g.pages_per_unit * 16 + 1, NULL, 0));
        CLIENT_TEST_OK(gpumem_seq_append(pools[1], seqs[1], 1, NULL, 0));
        CLIENT_TEST_OK(gpumem_seq_append(pools[2], seqs[2], 20, NULL, 0));
        CU_ASSERT_EQUAL(client_test_session_bytes(one), 2 * unit + other_unit);
        CU_ASSERT_EQUAL(client_test_session_bytes(two), unit);
        CU_ASSERT_EQUAL(stats_of(pools[0]).units_mapped, 2);
        CU_ASSERT_EQUAL(stats_of(pools[1]).units_mapped, 1);
        CU_ASSERT_EQUAL(stats_of(pools[2]).tokens, 20);
        CLIENT_TEST_OK(gpumem_seq_free(pools[0], seqs[0]));
        CLIENT_TEST_OK(gpumem_kv_trim(pools[0], &bytes));
        CU_ASSERT_EQUAL(bytes, 2 * unit);
        CU_ASSERT_EQUAL(client_test_session_bytes(one), other_unit);
        CU_ASSERT_EQUAL(client_test_session_bytes(two), unit);
        gpumem_disconnect(one);
        CU_ASSERT_EQUAL(client_test_session_bytes(two), unit);
        CLIENT_TEST_OK(gpumem_seq_length(pools[2], seqs[2], &length));
        CU_ASSERT_EQUAL(length, 20);
        gpumem_disconnect(two);
        client_test_check(process);
}

/* Memory that lies idle in one pool of a session is had by its other pools and buffers. */
static void test_own_idle_memory(void)
{
        struct gpumem *session = client_test_connect(process, "own");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_kv *idle = make_pool(session, &options, &g);
        struct gpumem_kv *needy = make_pool(session, &options, &g);
        uint32_t unit_tokens = g.pages_per_unit * g.page_tokens;
        struct gpumem_buffer *buffer, *small;
        gpumem_seq seq, want;

        CLIENT_TEST_OK(gpumem_seq_create(idle, &seq));
        CLIENT_TEST_OK(gpumem_seq_append(idle, seq, 4 * unit_tokens, NULL, 0));
        CLIENT_TEST_OK(gpumem_buffer_create(session, DEVICE - client_test_session_bytes(session),
                                            "rest", 0, &buffer));
        CLIENT_TEST_OK(gpumem_seq_create(needy, &want));
        CU_ASSERT_EQUAL(gpumem_seq_append(needy, want, 1, NULL, 0), GPUMEM_E_AGAIN);
        CLIENT_TEST_OK(gpumem_seq_free(idle, seq));
        CLIENT_TEST_OK(gpumem_seq_append(needy, want, unit_tokens, NULL, 3000));
        CLIENT_TEST_OK(gpumem_buffer_create(session, 2 * MIB, "small", 3000, &small));
        CU_ASSERT(stats_of(idle).units_returned >= 2);
        gpumem_disconnect(session);
        client_test_check(process);
}

/* C07: what an idle engine does not use goes by itself; another session sees it. */
static void test_idle_trim(void)
{
        struct gpumem *session = client_test_connect(process, "idle");
        struct gpumem *watcher = client_test_connect(process, "watcher");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_info info = {0};
        struct gpumem_batch *batch;
        struct gpumem_kv *kv;
        uint64_t unit, end;
        uint32_t each = 1;
        gpumem_seq keep, go;

        options.reserve_units = 2;
        options.idle_trim_ms =
                1000; /* long enough to see the reserve before it goes, on a slow machine too */
        kv = make_pool(session, &options, &g);
        unit = g.unit_frames * g.frame_bytes;
        client_test_pause_ms(50);
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 0); /* no reserve before first use */
        CLIENT_TEST_OK(gpumem_seq_create(kv, &keep));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &go));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &keep, 1, &each, driver.stream, 0, &batch));
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        /* The reserve comes by itself. */
        CU_ASSERT(client_test_wait_bytes(session, 3 * unit, 3000));
        end = client_test_now_ms() + 3000;
        while (stats_of(kv).units_ready < 2 && client_test_now_ms() < end)
                client_test_pause_ms(1);               /* granted, and on its way */
        CU_ASSERT_EQUAL(stats_of(kv).units_mapped, 1); /* nothing is mapped on its own */
        CU_ASSERT_EQUAL(stats_of(kv).units_ready, 2);
        CLIENT_TEST_OK(gpumem_safe_point(session));
        CU_ASSERT_EQUAL(stats_of(kv).units_mapped, 3);
        /* And goes, as do units that fell empty; the one with a page stays. */
        CLIENT_TEST_OK(gpumem_seq_append(kv, go, 4 * g.pages_per_unit * g.page_tokens, NULL, 1000));
        CLIENT_TEST_OK(gpumem_seq_free(kv, go));
        end = client_test_now_ms() + 5000;
        do {
                client_test_pause_ms(10);
                CLIENT_TEST_OK(gpumem_get_info(watcher, &info));
        } while (info.available_bytes != info.device_bytes - unit && client_test_now_ms() < end);
        CU_ASSERT_EQUAL(info.available_bytes, info.device_bytes - unit);
        CU_ASSERT_EQUAL(client_test_session_bytes(session), unit);
        CU_ASSERT_EQUAL(stats_of(kv).units_ready, 0);
        CU_ASSERT_EQUAL(stats_of(kv).units_mapped, 1);
        gpumem_disconnect(session);
        gpumem_disconnect(watcher);
        client_test_check(process);
}

/* A neighbour's need is served from idle reserves without any call by their owner. */
static void test_reclaim_event(void)
{
        struct gpumem *session = client_test_connect(process, "rich");
        struct gpumem *poor = client_test_connect(process, "poor");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_buffer *buffer;
        struct gpumem_kv *kv;
        gpumem_seq seq;

        options.max_sequence_tokens = 1 << 20;
        kv = make_pool(session, &options, &g);
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq,
                                         (uint32_t)(40 * MIB / g.frame_bytes / g.unit_frames) *
                                                 g.pages_per_unit * g.page_tokens,
                                         NULL, 0));
        CLIENT_TEST_OK(gpumem_seq_truncate(kv, seq, 1));
        CU_ASSERT(client_test_session_bytes(session) >= 36 * MIB);
        CLIENT_TEST_OK(gpumem_buffer_create(poor, 50 * MIB, "much", 5000, &buffer));
        CU_ASSERT(client_test_session_bytes(session) <= 14 * MIB);
        gpumem_disconnect(session);
        gpumem_disconnect(poor);
        client_test_check(process);
}

static void test_batches(void)
{
        struct gpumem *session = client_test_connect(process, "batches");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        const struct gpumem_batch_view *view;
        struct gpumem_batch *batch, *second;
        struct gpumem_kv *kv;
        gpumem_seq seqs[3], made[8];
        uint32_t each[3] = {17, 0, 5}, length;

        options.max_sequences = 8;
        kv = make_pool(session, &options, &g);
        for (int i = 0; i < 3; i++)
                CLIENT_TEST_OK(gpumem_seq_create(kv, &seqs[i]));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, seqs, 3, each, driver.stream, 0, &batch));
        view = gpumem_batch_get_view(batch);
        CU_ASSERT_EQUAL(view->sequences, 3);
        CU_ASSERT_EQUAL(view->tokens, 22);
        CU_ASSERT_EQUAL(view->indptr[0], 0);
        CU_ASSERT_EQUAL(view->indptr[1], 2);
        CU_ASSERT_EQUAL(view->indptr[2], 2);
        CU_ASSERT_EQUAL(view->indptr[3], 3);
        CU_ASSERT_EQUAL(view->kv_len[0], 17);
        CU_ASSERT_EQUAL(view->kv_len[1], 0);
        CU_ASSERT_EQUAL(view->kv_len[2], 5);
        CU_ASSERT_EQUAL(view->q_indptr[3], 22);
        for (uint32_t t = 0; t < 17; t++) {
                CU_ASSERT_EQUAL(view->positions[t], t);
                CU_ASSERT_EQUAL(view->slot_mapping[t],
                                (int64_t)view->indices[t / 16] * 16 + t % 16);
        }
        CU_ASSERT_EQUAL(view->positions[17], 0);
        /* While it is open its sequences belong to it. */
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, &seqs[1], 1, each, driver.stream, 0, &second),
                        GPUMEM_E_BUSY);
        CU_ASSERT_EQUAL(gpumem_seq_append(kv, seqs[0], 1, driver.stream, 0), GPUMEM_E_BUSY);
        CU_ASSERT_EQUAL(gpumem_seq_truncate(kv, seqs[0], 1), GPUMEM_E_BUSY);
        CU_ASSERT_EQUAL(gpumem_seq_fork(kv, seqs[0], driver.stream, &made[0]), GPUMEM_E_BUSY);
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));

        /* Cancelled: lengths as before. A sequence that was freed meanwhile is left out. */
        each[0] = 100;
        each[1] = 3;
        CLIENT_TEST_OK(gpumem_batch_begin(kv, seqs, 3, each, driver.stream, 0, &batch));
        CLIENT_TEST_OK(gpumem_seq_free(kv, seqs[2]));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seqs[2]));
        CLIENT_TEST_OK(gpumem_batch_cancel(batch, driver.stream));
        CLIENT_TEST_OK(gpumem_seq_length(kv, seqs[0], &length));
        CU_ASSERT_EQUAL(length, 17);
        CLIENT_TEST_OK(gpumem_seq_length(kv, seqs[1], &length));
        CU_ASSERT_EQUAL(length, 0);
        client_test_synchronize(&driver);
        CU_ASSERT_EQUAL(stats_of(kv).pages_used, 2);
        CU_ASSERT_EQUAL(stats_of(kv).tokens, 17);

        /* Wrong use. */
        seqs[1] = seqs[0];
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, seqs, 2, each, driver.stream, 0, &batch),
                        GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, seqs, 0, each, driver.stream, 0, &batch),
                        GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, seqs, 9, each, driver.stream, 0, &batch),
                        GPUMEM_E_INVALID);
        each[0] = options.max_sequence_tokens;
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, seqs, 1, each, driver.stream, 0, &batch),
                        GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_batch_begin(kv, NULL, 1, each, driver.stream, 0, &batch),
                        GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_batch_end(NULL, driver.stream), GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(stats_of(kv).tokens, 17);
        /* C62: the table of sequences has an end. */
        for (int i = 0; i < 5; i++)
                CLIENT_TEST_OK(gpumem_seq_create(kv, &made[i]));
        CU_ASSERT_EQUAL(gpumem_seq_create(kv, &made[6]), GPUMEM_E_LIMIT);
        CU_ASSERT_EQUAL(gpumem_seq_fork(kv, seqs[0], driver.stream, &made[6]), GPUMEM_E_LIMIT);
        CLIENT_TEST_OK(gpumem_seq_free(kv, made[3]));
        CLIENT_TEST_OK(gpumem_seq_fork(kv, seqs[0], driver.stream, &made[6]));
        client_test_synchronize(&driver);
        CU_ASSERT_EQUAL(stats_of(kv).pages_used, 3);
        CU_ASSERT_EQUAL(stats_of(kv).pages_shared, 1);
        CU_ASSERT_EQUAL(stats_of(kv).copies, 1);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* A session that is closed with a batch begun, and with a stream still at work. */
static void test_disconnect_early(void)
{
        struct gpumem *session = client_test_connect(process, "early");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry g;
        struct gpumem_kv *kv = make_pool(session, &options, &g);
        struct gpumem_batch *batch;
        uint32_t each = 33;
        gpumem_seq seq;

        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &batch));
        gpumem_disconnect(session);
        client_test_check(process);
}

struct late_opener {
        struct client_test_gate *gate;
        atomic_bool opened;
};

static void *open_late(void *userdata)
{
        struct late_opener *opener = userdata;

        client_test_pause_ms(150);
        atomic_store(&opener->opened, true);
        client_test_gate_open(opener->gate);
        return NULL;
}

/* A begun batch whose kernels are still to run: closing the session waits for them, though nobody
 * has said on which stream they are; they find their operands, and only then does memory go. */
static void test_disconnect_waits(void)
{
        struct gpumem *session = client_test_connect(process, "abandoned");
        struct gpumem_kv_options options = client_test_kv_options();
        struct late_opener opener = {0};
        struct gpumem_kv_geometry g;
        struct gpumem_kv *kv = make_pool(session, &options, &g);
        struct gpumem_tensor key = {.heads = 2, .dim = 8}, value = {.heads = 2, .dim = 16};
        struct gpumem_buffer *buffer;
        struct gpumem_batch *batch;
        uint32_t each = 33;
        pthread_t thread;
        gpumem_seq seq;

        CLIENT_TEST_OK(gpumem_buffer_create(session, MIB, "operands", 1000, &buffer));
        key.address = value.address = gpumem_buffer_address(buffer);
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &batch));
        opener.gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_kv_write(batch, 0, &key, &value, driver.stream));
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, open_late, &opener), 0);
        gpumem_disconnect(session);
        CU_ASSERT(atomic_load(&opener.opened));
        pthread_join(thread, NULL);
        /* Had the kernel met an address that was unmapped, the context would be poisoned. */
        client_test_synchronize(&driver);
        client_test_check(process);
}

/* C14: closing a session whose stream never gets there has a deadline, too. Its pool is stranded:
 * still mapped, for a kernel may be using it. (Last: the daemon has that memory back only when this
 * process ends.) */
static void test_disconnect_stuck(void)
{
        static struct gpumem *session; /* so that what is stranded is not taken for a leak */
        struct gpumem_kv_options options = client_test_kv_options();
        struct client_test_gate *gate;
        struct gpumem_kv_geometry g;
        struct gpumem_batch *batch;
        struct gpumem_kv *kv;
        uint32_t each = 33;
        uint64_t started;
        gpumem_seq seq;
        char *host;

        session = client_test_connect_with(process, "stuck", 300);
        kv = make_pool(session, &options, &g);
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &each, driver.stream, 0, &batch));
        host = driver.driver->host_view(g.base, g.frame_bytes);
        gate = client_test_gate_close(&driver);
        started = client_test_now_ms();
        gpumem_disconnect(session);
        CU_ASSERT(client_test_now_ms() - started < 5000);
        host[0] = 1;
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        client_test_pause_ms(50); /* the thread that waited ends */
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: pools", start, stop);
        CU_add_test(suite, "grow and trim", test_grow_and_trim);
        CU_add_test(suite, "exhaustion: typed, nothing changed", test_exhaustion);
        CU_add_test(suite, "C04 a pin holds units", test_pin_holds_units);
        CU_add_test(suite, "C14 freeing waits, with a deadline", test_free_waits);
        CU_add_test(suite, "C11 two pools, two sessions", test_two_pools_two_sessions);
        CU_add_test(suite, "a session's own idle memory", test_own_idle_memory);
        CU_add_test(suite, "C07 idle reserves are trimmed", test_idle_trim);
        CU_add_test(suite, "reclaim by event", test_reclaim_event);
        CU_add_test(suite, "batches", test_batches);
        CU_add_test(suite, "disconnect with a batch begun", test_disconnect_early);
        CU_add_test(suite, "disconnect waits for a begun batch's kernels", test_disconnect_waits);
        CU_add_test(suite, "C14 disconnect beside a stuck stream", test_disconnect_stuck);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
