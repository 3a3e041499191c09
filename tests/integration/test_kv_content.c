/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What pages hold: a small engine runs batches through the public API, with forks, truncations and
 * recycled pages, and every attention row is compared, bit by bit, with the same kernels on plain
 * contiguous memory that each sequence has for itself.
 */
#include <CUnit/Basic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/support/client_test.h"

#define MIB       (UINT64_C(1) << 20)
#define LAYERS    2u
#define KV_HEADS  2u
#define Q_HEADS   4u
#define KEY_DIM   8u
#define VALUE_DIM 16u
#define TOKENS    400u /* most a sequence has here */
#define BATCH     512u /* most new tokens in a batch */
#define SEQUENCES 12

static struct daemon_process *process;
static struct client_test_driver driver;

/* A sequence as it should be. */
struct model {
        gpumem_seq seq; /* 0: not alive */
        uint32_t tokens;
        unsigned char *plain; /* [LAYERS][KV_HEADS]{K[TOKENS][KEY_DIM], V[TOKENS][VALUE_DIM]} */
};

#define TILE_BYTES  (TOKENS * (KEY_DIM + VALUE_DIM) * 2)
#define PLAIN_BYTES ((size_t)LAYERS * KV_HEADS * TILE_BYTES)

struct engine {
        struct gpumem *session;
        struct gpumem_kv *kv;
        struct gpumem_kv_geometry geometry;
        struct gpumem_buffer *buffer;
        unsigned char *host; /* of the buffer */
        struct model models[SEQUENCES];
        uint64_t random;
        unsigned char poison;
        uint32_t poisoned_units; /* filled once, when they came */
        uint64_t rows, digest;
};

/* Where operands lie in the buffer. */
#define KEY_AT   UINT64_C(0)
#define VALUE_AT (KEY_AT + BATCH * KV_HEADS * KEY_DIM * 4)
#define Q_AT     (VALUE_AT + BATCH * KV_HEADS * VALUE_DIM * 4)
#define OUT_AT   (Q_AT + BATCH * Q_HEADS * KEY_DIM * 4)
#define LSE_AT   (OUT_AT + BATCH * Q_HEADS * VALUE_DIM * 4)
#define END_AT   (LSE_AT + BATCH * Q_HEADS * 4)

static uint32_t random_below(struct engine *e, uint32_t n)
{
        e->random = e->random * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(((e->random >> 32) * n) >> 32);
}

static float random_float(struct engine *e)
{
        return (float)random_below(e, 20001) / 10000.0f - 1.0f;
}

static struct kernel_kv plain_kv(const struct model *m)
{
        return (struct kernel_kv){
                .base = m->plain,
                .layer_stride = KV_HEADS * TILE_BYTES,
                .page_stride = PLAIN_BYTES,
                .unit_stride = PLAIN_BYTES,
                .head_stride = TILE_BYTES,
                .value_offset = TOKENS * KEY_DIM * 2,
                .slot_bits = 0,
                .page_tokens = TOKENS,
                .kv_heads = KV_HEADS,
                .key_dim = KEY_DIM,
                .value_dim = VALUE_DIM,
        };
}

static struct engine *engine_new(uint64_t seed, unsigned char poison, uint32_t page_tokens)
{
        struct gpumem_kv_options options = client_test_kv_options();
        struct engine *e = calloc(1, sizeof(*e));

        CU_ASSERT_PTR_NOT_NULL_FATAL(e);
        e->random = seed;
        e->poison = poison;
        e->session = client_test_connect(process, "content");
        options.page_tokens = page_tokens;
        options.max_sequences = SEQUENCES;
        options.max_sequence_tokens = TOKENS;
        options.max_bytes = 16 * MIB;
        CLIENT_TEST_OK(gpumem_kv_create(e->session, &options, &e->kv));
        gpumem_kv_get_geometry(e->kv, &e->geometry);
        CLIENT_TEST_OK(gpumem_buffer_create(e->session, END_AT, "operands", 1000, &e->buffer));
        CLIENT_TEST_OK(gpumem_host_view(e->session, gpumem_buffer_address(e->buffer), END_AT,
                                        (void **)&e->host));
        return e;
}

static void engine_free(struct engine *e)
{
        for (int i = 0; i < SEQUENCES; i++)
                free(e->models[i].plain);
        CLIENT_TEST_OK(gpumem_kv_free(e->kv));
        gpumem_buffer_free(e->buffer);
        gpumem_disconnect(e->session);
        free(e);
}

static struct model *create(struct engine *e)
{
        struct model *m = e->models;

        while (m < e->models + SEQUENCES && m->seq != 0)
                m++;
        if (m == e->models + SEQUENCES)
                return NULL;
        CLIENT_TEST_OK(gpumem_seq_create(e->kv, &m->seq));
        m->tokens = 0;
        if (!m->plain)
                m->plain = malloc(PLAIN_BYTES);
        memset(m->plain, 0x11, PLAIN_BYTES);
        return m;
}

static struct model *fork_of(struct engine *e, const struct model *parent)
{
        struct model *m = e->models;

        while (m < e->models + SEQUENCES && m->seq != 0)
                m++;
        if (m == e->models + SEQUENCES)
                return NULL;
        CLIENT_TEST_OK(gpumem_seq_fork(e->kv, parent->seq, driver.stream, &m->seq));
        m->tokens = parent->tokens;
        if (!m->plain)
                m->plain = malloc(PLAIN_BYTES);
        memcpy(m->plain, parent->plain, PLAIN_BYTES);
        return m;
}

static void forget(struct engine *e, struct model *m)
{
        CLIENT_TEST_OK(gpumem_seq_free(e->kv, m->seq));
        m->seq = 0;
}

static void truncate_to(struct engine *e, struct model *m, uint32_t tokens)
{
        CLIENT_TEST_OK(gpumem_seq_truncate(e->kv, m->seq, tokens));
        m->tokens = tokens;
}

/* Everything in a unit that is there for the first time. */
static void poison_new_units(struct engine *e)
{
        struct gpumem_kv_stats stats;
        uint64_t unit = (uint64_t)e->geometry.unit_stride;
        void *host;

        CLIENT_TEST_OK(gpumem_kv_get_stats(e->kv, &stats));
        for (; e->poisoned_units < stats.units_mapped; e->poisoned_units++) {
                CLIENT_TEST_OK(gpumem_host_view(
                        e->session, e->geometry.base + e->poisoned_units * unit, unit, &host));
                memset(host, e->poison, unit);
        }
}

/* Rows of sequence `m` in the batch at [first, first+count), against the plain cache. */
static void compare(struct engine *e, const struct model *m, uint32_t layer, uint32_t first,
                    uint32_t count)
{
        const uint32_t indptr[2] = {0, 1}, indices[1] = {0}, kv_len[1] = {m->tokens},
                       q_indptr[2] = {0, count};
        float *out = malloc((size_t)count * Q_HEADS * VALUE_DIM * 4);
        float *lse = malloc((size_t)count * Q_HEADS * 4);
        const struct kernel_attention args = {
                .kv = plain_kv(m),
                .layer = layer,
                .sequences = 1,
                .indptr = indptr,
                .indices = indices,
                .kv_len = kv_len,
                .q_indptr = q_indptr,
                .q_heads = Q_HEADS,
                .scale = 1.0f / sqrtf((float)KEY_DIM),
                .q_type = KERNEL_F32,
                .out_type = KERNEL_F32,
                .q = e->host + Q_AT + (size_t)first * Q_HEADS * KEY_DIM * 4,
                .out = out,
                .lse = lse,
                .q_token_stride = Q_HEADS * KEY_DIM * 4,
                .q_head_stride = KEY_DIM * 4,
                .out_token_stride = Q_HEADS * VALUE_DIM * 4,
                .out_head_stride = VALUE_DIM * 4,
        };
        const unsigned char *got = e->host + OUT_AT + (size_t)first * Q_HEADS * VALUE_DIM * 4;
        const unsigned char *got_lse = e->host + LSE_AT + (size_t)first * Q_HEADS * 4;
        size_t bytes = (size_t)count * Q_HEADS * VALUE_DIM * 4;

        CU_ASSERT_EQUAL_FATAL(kernel_attention_check(&args), KERNEL_OK);
        CU_ASSERT_EQUAL_FATAL(kernel_cpu_attention_prefill(NULL, &args), 0);
        CU_ASSERT_EQUAL(memcmp(out, got, bytes), 0);
        CU_ASSERT_EQUAL(memcmp(lse, got_lse, (size_t)count * Q_HEADS * 4), 0);
        for (size_t i = 0; i < bytes; i++)
                e->digest = (e->digest ^ got[i]) * 0x100000001b3u;
        e->rows += count;
        free(out);
        free(lse);
}

/* One batch: new tokens are drawn, or are all NaN, written to both caches, and attended to. */
static void run_batch(struct engine *e, struct model *const *members, uint32_t count,
                      const uint32_t *each, bool nan)
{
        gpumem_address base = gpumem_buffer_address(e->buffer);
        const struct gpumem_tensor key = {.address = base + KEY_AT,
                                          .type = GPUMEM_TYPE_F32,
                                          .heads = KV_HEADS,
                                          .dim = KEY_DIM};
        const struct gpumem_tensor value = {.address = base + VALUE_AT,
                                            .type = GPUMEM_TYPE_F32,
                                            .heads = KV_HEADS,
                                            .dim = VALUE_DIM};
        const struct gpumem_attn attention = {
                .q = {.address = base + Q_AT,
                      .type = GPUMEM_TYPE_F32,
                      .heads = Q_HEADS,
                      .dim = KEY_DIM},
                .out = {.address = base + OUT_AT,
                        .type = GPUMEM_TYPE_F32,
                        .heads = Q_HEADS,
                        .dim = VALUE_DIM},
                .lse = base + LSE_AT,
        };
        float *keys = (float *)(void *)(e->host + KEY_AT);
        float *values = (float *)(void *)(e->host + VALUE_AT);
        float *queries = (float *)(void *)(e->host + Q_AT);
        const struct gpumem_batch_view *view;
        struct gpumem_batch *batch;
        gpumem_seq seqs[SEQUENCES];
        uint32_t longest = 0;

        for (uint32_t i = 0; i < count; i++) {
                seqs[i] = members[i]->seq;
                longest = each[i] > longest ? each[i] : longest;
        }
        CLIENT_TEST_OK(gpumem_batch_begin(e->kv, seqs, count, each, driver.stream, 2000, &batch));
        view = gpumem_batch_get_view(batch);
        CU_ASSERT_FATAL(view->tokens <= BATCH);
        /* Copies on write come first: poison must not overtake them. */
        client_test_synchronize(&driver);
        poison_new_units(e);
        for (uint32_t i = 0; i < view->tokens * Q_HEADS * KEY_DIM; i++)
                queries[i] = random_float(e) * 3;
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
                for (uint32_t i = 0; i < view->tokens * KV_HEADS * KEY_DIM; i++)
                        keys[i] = nan ? NAN : random_float(e);
                for (uint32_t i = 0; i < view->tokens * KV_HEADS * VALUE_DIM; i++)
                        values[i] = nan ? NAN : random_float(e);
                memset(e->host + OUT_AT, 0x77, END_AT - OUT_AT);
                CLIENT_TEST_OK(gpumem_kv_write(batch, layer, &key, &value, driver.stream));
                if (longest <= 1 && random_below(e, 2))
                        CLIENT_TEST_OK(gpumem_attn_decode(batch, layer, &attention, driver.stream));
                else
                        CLIENT_TEST_OK(
                                gpumem_attn_prefill(batch, layer, &attention, driver.stream));
                client_test_synchronize(&driver);
                for (uint32_t i = 0; i < count; i++) {
                        uint32_t first = view->q_indptr[i];
                        int64_t slots[BATCH];
                        const struct kernel_write write = {
                                .kv = plain_kv(members[i]),
                                .layer = layer,
                                .tokens = each[i],
                                .slot_mapping = slots,
                                .type = KERNEL_F32,
                                .key = keys + (size_t)first * KV_HEADS * KEY_DIM,
                                .value = values + (size_t)first * KV_HEADS * VALUE_DIM,
                                .key_token_stride = KV_HEADS * KEY_DIM * 4,
                                .key_head_stride = KEY_DIM * 4,
                                .value_token_stride = KV_HEADS * VALUE_DIM * 4,
                                .value_head_stride = VALUE_DIM * 4,
                        };

                        for (uint32_t t = 0; t < each[i]; t++)
                                slots[t] = view->positions[first + t];
                        if (layer == 0)
                                members[i]->tokens += each[i];
                        if (each[i] == 0)
                                continue;
                        CU_ASSERT_EQUAL_FATAL(kernel_write_check(&write), KERNEL_OK);
                        CU_ASSERT_EQUAL_FATAL(kernel_cpu_kv_write(NULL, &write), 0);
                        compare(e, members[i], layer, first, each[i]);
                }
        }
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
}

static void extend(struct engine *e, struct model *m, uint32_t tokens)
{
        run_batch(e, &m, 1, &tokens, false);
}

/* C23: fork at every fill level of the last page; both go on, with different tokens, and neither
 * sees the other's. */
static void test_fork_fill_levels(void)
{
        static const uint32_t page_sizes[] = {16, 32};

        for (size_t p = 0; p < 2; p++) {
                struct engine *e = engine_new(77 + p, 0xff, page_sizes[p]);

                for (uint32_t fill = 0; fill <= 2 * page_sizes[p]; fill++) {
                        struct model *parent = create(e), *child, *grandchild;
                        struct gpumem_kv_stats stats;

                        extend(e, parent, fill);
                        child = fork_of(e, parent);
                        CU_ASSERT_PTR_NOT_NULL_FATAL(child);
                        CLIENT_TEST_OK(gpumem_kv_get_stats(e->kv, &stats));
                        CU_ASSERT_EQUAL(stats.pages_shared, fill / page_sizes[p]);
                        extend(e, child, 1);
                        extend(e, parent, 1);
                        grandchild = fork_of(e, child);
                        extend(e, child, 3);
                        extend(e, grandchild, page_sizes[p]);
                        extend(e, parent, 2);
                        forget(e, parent);
                        extend(e, child, 1);
                        forget(e, child);
                        extend(e, grandchild, 1);
                        forget(e, grandchild);
                }
                engine_free(e);
        }
        client_test_check(process);
}

/* C24, C23: truncations into shared pages make a shared last page that is partly filled: writing it
 * copies it. */
static void test_truncate_into_shared(void)
{
        struct engine *e = engine_new(99, 0xff, 16);

        for (uint32_t keep = 1; keep <= 48; keep++) {
                struct model *a = create(e), *b, *c;
                struct gpumem_kv_stats before, after;

                extend(e, a, 48);
                b = fork_of(e, a);
                c = fork_of(e, b);
                truncate_to(e, a, keep);
                truncate_to(e, b, keep);
                CLIENT_TEST_OK(gpumem_kv_get_stats(e->kv, &before));
                /* In one batch: both write what was the same page. */
                run_batch(e, (struct model *[]){a, b}, 2, (uint32_t[]){1, 2}, false);
                CLIENT_TEST_OK(gpumem_kv_get_stats(e->kv, &after));
                CU_ASSERT_EQUAL(after.copies - before.copies, keep % 16 ? 2 : 0);
                extend(e, c, 1);
                forget(e, c);
                truncate_to(e, b, 0);
                extend(e, a, 20);
                extend(e, b, 20);
                forget(e, a);
                extend(e, b, 1);
                forget(e, b);
                CLIENT_TEST_OK(gpumem_kv_get_stats(e->kv, &after));
                CU_ASSERT_EQUAL(after.pages_used, 0);
        }
        engine_free(e);
        client_test_check(process);
}

static void random_step(struct engine *e)
{
        struct model *m = &e->models[random_below(e, SEQUENCES)];
        struct model *members[SEQUENCES];
        uint32_t each[SEQUENCES], count = 0, sum = 0;

        switch (random_below(e, 10)) {
        case 0:
                create(e);
                return;
        case 1:
                if (m->seq)
                        forget(e, m);
                return;
        case 2:
                if (m->seq)
                        fork_of(e, m);
                return;
        case 3:
                if (m->seq)
                        truncate_to(e, m, random_below(e, m->tokens + 1));
                return;
        case 4:
                /* NaN passes through a page, which is then given to others. */
                if (m->seq && m->tokens + 20 <= TOKENS) {
                        uint32_t keep = m->tokens;

                        run_batch(e, &m, 1, (uint32_t[]){20}, true);
                        truncate_to(e, m, keep);
                }
                return;
        default:
                for (m = e->models; m < e->models + SEQUENCES; m++) {
                        uint32_t n = random_below(e, 4) ? 1 : random_below(e, 40);

                        if (!m->seq || m->tokens + n > TOKENS || random_below(e, 3) == 0 ||
                            sum + n > BATCH)
                                continue;
                        members[count] = m;
                        each[count++] = n;
                        sum += n;
                }
                if (count > 0)
                        run_batch(e, members, count, each, false);
        }
}

static uint64_t run_random(uint64_t seed, unsigned char poison)
{
        struct engine *e = engine_new(seed, poison, 16);
        struct gpumem_kv_stats stats;
        uint64_t digest;

        for (int step = 0; step < 250; step++)
                random_step(e);
        for (int i = 0; i < SEQUENCES; i++)
                if (e->models[i].seq)
                        forget(e, &e->models[i]);
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_kv_get_stats(e->kv, &stats));
        CU_ASSERT_EQUAL(stats.pages_used, 0);
        CU_ASSERT_EQUAL(stats.pages_retiring, 0);
        CU_ASSERT_EQUAL(stats.tokens, 0);
        digest = e->digest;
        engine_free(e);
        return digest;
}

/* C27: recycled pages carry NaN; results are the same bits as with zeroes. */
static void test_random(void)
{
        for (uint64_t seed = 1; seed <= 3; seed++) {
                uint64_t with_nan, with_zero;

                printf("seed %llu ", (unsigned long long)seed * 1009);
                with_nan = run_random(seed * 1009, 0xff);
                with_zero = run_random(seed * 1009, 0x00);
                CU_ASSERT_EQUAL(with_nan, with_zero);
        }
        client_test_check(process);
}

/* Wrong operands are refused on the host, before anything is on the stream. */
static void test_operands(void)
{
        struct engine *e = engine_new(5, 0xff, 16);
        gpumem_address base = gpumem_buffer_address(e->buffer);
        const struct gpumem_tensor good = {
                .address = base, .type = GPUMEM_TYPE_F16, .heads = KV_HEADS, .dim = KEY_DIM};
        const struct gpumem_tensor good_value = {
                .address = base, .type = GPUMEM_TYPE_F16, .heads = KV_HEADS, .dim = VALUE_DIM};
        const struct gpumem_attn good_attn = {
                .q = {.address = base, .heads = Q_HEADS, .dim = KEY_DIM},
                .out = {.address = base, .heads = Q_HEADS, .dim = VALUE_DIM},
        };
        struct model *m = create(e);
        struct gpumem_tensor t;
        struct gpumem_attn a;
        struct gpumem_batch *batch;
        uint32_t two = 2;

        CLIENT_TEST_OK(gpumem_batch_begin(e->kv, &m->seq, 1, &two, driver.stream, 0, &batch));
#define WRITE_REFUSED(field, wrong)                                                                \
        t = good;                                                                                  \
        t.field = wrong;                                                                           \
        CU_ASSERT_EQUAL(gpumem_kv_write(batch, 0, &t, &good_value, driver.stream), GPUMEM_E_INVALID)
        WRITE_REFUSED(heads, 3);
        WRITE_REFUSED(heads, 0);
        WRITE_REFUSED(dim, 16);
        WRITE_REFUSED(type, (enum gpumem_type)9);
        WRITE_REFUSED(type, GPUMEM_TYPE_F32); /* not the value's */
        WRITE_REFUSED(token_stride, -2);
        WRITE_REFUSED(token_stride, INT64_MAX - 1);
        WRITE_REFUSED(head_stride, 3);
        WRITE_REFUSED(address, 0);
        WRITE_REFUSED(address, 1);
        WRITE_REFUSED(address, UINT64_MAX - 1);
        CU_ASSERT_EQUAL(gpumem_kv_write(batch, LAYERS, &good, &good_value, driver.stream),
                        GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_kv_write(NULL, 0, &good, &good_value, driver.stream),
                        GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_kv_write(batch, 0, NULL, &good_value, driver.stream),
                        GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_attn_decode(batch, 0, &good_attn, driver.stream),
                        GPUMEM_E_INVALID); /* two new tokens */
        CU_ASSERT_EQUAL(gpumem_attn_prefill(batch, 0, NULL, driver.stream), GPUMEM_E_INVALID);
        a = good_attn;
        a.q.heads = 3;
        CU_ASSERT_EQUAL(gpumem_attn_prefill(batch, 0, &a, driver.stream), GPUMEM_E_INVALID);
        a = good_attn;
        a.out.heads = 2;
        CU_ASSERT_EQUAL(gpumem_attn_prefill(batch, 0, &a, driver.stream), GPUMEM_E_INVALID);
        a = good_attn;
        a.lse = 4096;
        CU_ASSERT_EQUAL(gpumem_attn_prefill(batch, 0, &a, driver.stream), GPUMEM_E_INVALID);
        a = good_attn;
        a.out.dim = KEY_DIM;
        CU_ASSERT_EQUAL(gpumem_attn_prefill(batch, 0, &a, driver.stream), GPUMEM_E_INVALID);
        CLIENT_TEST_OK(gpumem_batch_cancel(batch, driver.stream));
        engine_free(e);
        client_test_check(process);
}

/* The view stays readable for host functions that were enqueued before the end of the batch. */
struct late_reader {
        const struct gpumem_batch_view *view;
        uint64_t sum;
};

static void read_view(void *userdata)
{
        struct late_reader *reader = userdata;

        for (uint32_t i = 0; i < reader->view->tokens; i++)
                reader->sum += (uint64_t)reader->view->slot_mapping[i] + reader->view->positions[i];
}

static void test_view_lives(void)
{
        struct engine *e = engine_new(6, 0xff, 16);
        struct client_test_gate *gate;
        struct late_reader reader = {0};
        struct gpumem_batch *batch, *other;
        struct model *m = create(e), *n = create(e);
        uint32_t each = 300;
        uint64_t expected = 0;

        CLIENT_TEST_OK(gpumem_batch_begin(e->kv, &m->seq, 1, &each, driver.stream, 0, &batch));
        reader.view = gpumem_batch_get_view(batch);
        for (uint32_t i = 0; i < each; i++)
                expected += (uint64_t)reader.view->slot_mapping[i] + i;
        gate = client_test_gate_close(&driver);
        CU_ASSERT_EQUAL_FATAL(driver.driver->launch_host_func(driver.stream, read_view, &reader),
                              CUDA_SUCCESS);
        CLIENT_TEST_OK(gpumem_batch_end(batch, driver.stream));
        CLIENT_TEST_OK(gpumem_batch_begin(e->kv, &n->seq, 1, &each, driver.stream, 0, &other));
        CLIENT_TEST_OK(gpumem_batch_end(other, driver.stream));
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CU_ASSERT_EQUAL(reader.sum, expected);
        engine_free(e);
        client_test_check(process);
}

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

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: what pages hold", start, stop);
        CU_add_test(suite, "C23 fork at every fill level", test_fork_fill_levels);
        CU_add_test(suite, "C23 C24 truncation into shared pages", test_truncate_into_shared);
        CU_add_test(suite, "C27 random use, NaN or zero beneath", test_random);
        CU_add_test(suite, "wrong operands", test_operands);
        CU_add_test(suite, "the view lives until the stream got there", test_view_lives);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
