/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kernel is given, and what it finds: the inside of tiles as gpumem.h describes it (this is
 * read here as an engine with kernels of its own would, by the public headers alone), and operands
 * whose bytes are not where they may be.
 */
#include <CUnit/Basic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client_test.h"

#define MIB       (UINT64_C(1) << 20)
#define LAYERS    2u
#define KV_HEADS  2u
#define Q_HEADS   6u
#define KEY_DIM   8u
#define VALUE_DIM 16u
#define TOKENS    37u

static struct daemon_process *process;
static struct client_test_driver driver;

struct fixture {
        struct gpumem *session;
        struct gpumem_kv *kv;
        struct gpumem_kv_geometry g;
        struct gpumem_buffer *buffer;
        gpumem_address base;
        unsigned char *host;
        gpumem_seq seq;
        struct gpumem_batch *batch;
};

static void set_up(struct fixture *f)
{
        struct gpumem_kv_options options = client_test_kv_options();
        uint32_t tokens = TOKENS;

        memset(f, 0, sizeof(*f));
        f->session = client_test_connect(process, "operands");
        CLIENT_TEST_OK(gpumem_kv_create(f->session, &options, &f->kv));
        gpumem_kv_get_geometry(f->kv, &f->g);
        CU_ASSERT_FATAL(f->g.layers == LAYERS && f->g.kv_heads == KV_HEADS &&
                        f->g.key_dim == KEY_DIM && f->g.value_dim == VALUE_DIM);
        CLIENT_TEST_OK(gpumem_buffer_create(f->session, 2 * MIB, "operands", 1000, &f->buffer));
        CU_ASSERT_EQUAL_FATAL(gpumem_buffer_bytes(f->buffer), 2 * MIB);
        f->base = gpumem_buffer_address(f->buffer);
        CLIENT_TEST_OK(gpumem_host_view(f->session, f->base, 2 * MIB, (void **)&f->host));
        CLIENT_TEST_OK(gpumem_seq_create(f->kv, &f->seq));
        CLIENT_TEST_OK(gpumem_batch_begin(f->kv, &f->seq, 1, &tokens, driver.stream, 0, &f->batch));
}

static void tear_down(struct fixture *f)
{
        CLIENT_TEST_OK(gpumem_batch_end(f->batch, driver.stream));
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_kv_free(f->kv));
        gpumem_buffer_free(f->buffer);
        gpumem_disconnect(f->session);
        client_test_check(process);
}

/* An f16 that is no NaN and no infinity, other for every element. */
static uint16_t element(uint32_t layer, uint32_t token, uint32_t head, uint32_t d, bool value)
{
        return (uint16_t)(0x3000 + (value ? 0x400 : 0) +
                          (layer * 331 + token * 37 + head * 17 + d * 3) % 0x400);
}

/* By the words of gpumem.h. */
static gpumem_address key_tile(const struct gpumem_kv_geometry *g, uint32_t page, uint32_t layer,
                               uint32_t head)
{
        return g->base + gpumem_page_unit(page, g->slot_bits) * (uint64_t)g->unit_stride +
               layer * (uint64_t)g->layer_stride +
               gpumem_page_slot(page, g->slot_bits) * (uint64_t)g->page_stride +
               head * (uint64_t)g->head_stride;
}

static void check_tile(struct fixture *f, uint32_t layer, uint32_t token, uint32_t head)
{
        const struct gpumem_batch_view *view = gpumem_batch_get_view(f->batch);
        uint32_t page = view->indices[token / f->g.page_tokens], row = token % f->g.page_tokens;
        gpumem_address key = key_tile(&f->g, page, layer, head);
        uint16_t *k, *v;

        CU_ASSERT_EQUAL(key % 128, 0);
        CU_ASSERT_EQUAL((key + (uint64_t)f->g.value_offset) % 128, 0);
        CLIENT_TEST_OK(
                gpumem_host_view(f->session, key, f->g.page_tokens * KEY_DIM * 2ul, (void **)&k));
        CLIENT_TEST_OK(gpumem_host_view(f->session, key + (uint64_t)f->g.value_offset,
                                        f->g.page_tokens * VALUE_DIM * 2ul, (void **)&v));
        for (uint32_t d = 0; d < KEY_DIM; d++)
                CU_ASSERT_EQUAL(k[row * KEY_DIM + d], element(layer, token, head, d, false));
        for (uint32_t d = 0; d < VALUE_DIM; d++)
                CU_ASSERT_EQUAL(v[row * VALUE_DIM + d], element(layer, token, head, d, true));
}

/* Every element that gpumem_kv_write() wrote is where the header says. */
static void test_tiles(void)
{
        struct fixture f;
        struct gpumem_tensor key, value;
        uint16_t *keys, *values;

        set_up(&f);
        key = (struct gpumem_tensor){
                .address = f.base, .type = GPUMEM_TYPE_F16, .heads = KV_HEADS, .dim = KEY_DIM};
        value = (struct gpumem_tensor){.address = f.base + MIB,
                                       .type = GPUMEM_TYPE_F16,
                                       .heads = KV_HEADS,
                                       .dim = VALUE_DIM};
        keys = (uint16_t *)(void *)f.host;
        values = (uint16_t *)(void *)(f.host + MIB);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
                for (uint32_t t = 0; t < TOKENS; t++)
                        for (uint32_t h = 0; h < KV_HEADS; h++) {
                                for (uint32_t d = 0; d < KEY_DIM; d++)
                                        keys[(t * KV_HEADS + h) * KEY_DIM + d] =
                                                element(layer, t, h, d, false);
                                for (uint32_t d = 0; d < VALUE_DIM; d++)
                                        values[(t * KV_HEADS + h) * VALUE_DIM + d] =
                                                element(layer, t, h, d, true);
                        }
                CLIENT_TEST_OK(gpumem_kv_write(f.batch, layer, &key, &value, driver.stream));
                client_test_synchronize(&driver);
        }
        for (uint32_t layer = 0; layer < LAYERS; layer++)
                for (uint32_t t = 0; t < TOKENS; t++)
                        for (uint32_t h = 0; h < KV_HEADS; h++)
                                check_tile(&f, layer, t, h);
        tear_down(&f);
}

/* The first token sees one key, so that its out is that token's value: of KV head
 * h / (q_heads / kv_heads), exactly, from f16 queries to f32 results and the other way round, heads
 * within tokens and tokens within heads. */
static void test_heads_and_types(void)
{
        struct fixture f;
        struct gpumem_tensor key, value;
        struct gpumem_attn attn;
        uint16_t *values, *half;
        float *out;

        set_up(&f);
        key = (struct gpumem_tensor){
                .address = f.base, .type = GPUMEM_TYPE_F16, .heads = KV_HEADS, .dim = KEY_DIM};
        value = key;
        value.dim = VALUE_DIM;
        values = (uint16_t *)(void *)f.host;
        memset(f.host, 0, 2 * MIB);
        for (uint32_t i = 0; i < TOKENS * KV_HEADS * VALUE_DIM; i++)
                values[i] =
                        (uint16_t)(0x3c00 + i % VALUE_DIM + (i / VALUE_DIM % KV_HEADS ? 64 : 0));
        CLIENT_TEST_OK(gpumem_kv_write(f.batch, 1, &key, &value, driver.stream));
        attn = (struct gpumem_attn){
                .q = {.address = f.base, .type = GPUMEM_TYPE_F16, .heads = Q_HEADS, .dim = KEY_DIM},
                .out = {.address = f.base + MIB,
                        .type = GPUMEM_TYPE_F32,
                        .heads = Q_HEADS,
                        .dim = VALUE_DIM,
                        .token_stride = VALUE_DIM * 4,
                        .head_stride = TOKENS * VALUE_DIM * 4},
                .scale = 0.5f,
        };
        CLIENT_TEST_OK(gpumem_attn_prefill(f.batch, 1, &attn, driver.stream));
        client_test_synchronize(&driver);
        out = (float *)(void *)(f.host + MIB);
        for (uint32_t h = 0; h < Q_HEADS; h++)
                for (uint32_t d = 0; d < VALUE_DIM; d++)
                        /* 0x3c00 is 1; the next f16 are 1/1024 apart. */
                        CU_ASSERT_EQUAL(out[h * TOKENS * VALUE_DIM + d],
                                        1 + (float)(d + (h >= 3 ? 64 : 0)) / 1024);
        attn.q.type = GPUMEM_TYPE_F32;
        attn.q.address = f.base + MIB / 2; /* zeros */
        attn.out = (struct gpumem_tensor){.address = f.base + MIB,
                                          .type = GPUMEM_TYPE_F16,
                                          .heads = Q_HEADS,
                                          .dim = VALUE_DIM};
        CLIENT_TEST_OK(gpumem_attn_prefill(f.batch, 1, &attn, driver.stream));
        client_test_synchronize(&driver);
        half = (uint16_t *)(void *)(f.host + MIB);
        for (uint32_t h = 0; h < Q_HEADS; h++)
                for (uint32_t d = 0; d < VALUE_DIM; d++)
                        CU_ASSERT_EQUAL(half[h * VALUE_DIM + d], 0x3c00 + d + (h >= 3 ? 64 : 0));
        tear_down(&f);
}

/* Where the bytes of an operand may be. */
static void test_ranges(void)
{
        struct fixture f;
        struct gpumem_tensor key, value, t;
        struct gpumem_attn attn, a;
        gpumem_address end;
        CUdeviceptr own;
        uint64_t key_bytes = TOKENS * KV_HEADS * KEY_DIM * 4;

        set_up(&f);
        end = f.base + 2 * MIB;
        key = (struct gpumem_tensor){.address = f.base, .heads = KV_HEADS, .dim = KEY_DIM};
        value = key;
        value.dim = VALUE_DIM;
        attn = (struct gpumem_attn){
                .q = {.address = f.base, .heads = Q_HEADS, .dim = KEY_DIM},
                .out = {.address = f.base + MIB, .heads = Q_HEADS, .dim = VALUE_DIM},
        };
#define WRITE(result)                                                                              \
        CU_ASSERT_EQUAL(gpumem_kv_write(f.batch, 0, &t, &value, driver.stream), result)
#define ATTEND(result) CU_ASSERT_EQUAL(gpumem_attn_prefill(f.batch, 0, &a, driver.stream), result)
        t = key;
        t.address = end - key_bytes; /* up to the last byte */
        WRITE(0);
        t.address += 4;
        WRITE(GPUMEM_E_INVALID);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "key: 2368 bytes"));
        t.address = end - 4;
        WRITE(GPUMEM_E_INVALID);
        t.address = f.base - 4; /* begins outside, ends inside */
        WRITE(GPUMEM_E_INVALID);
        t = key;
        t.token_stride = (int64_t)(2 * MIB / (TOKENS - 1)) / 4 * 4 + 4; /* strides count */
        WRITE(GPUMEM_E_INVALID);
        t.token_stride = (int64_t)(2 * MIB / TOKENS) / 4 * 4;
        WRITE(0);
        t.token_stride = -4;
        WRITE(GPUMEM_E_INVALID);
        t.token_stride = INT64_MAX / 4 * 4;
        WRITE(GPUMEM_E_INVALID);
        t.token_stride = INT64_MAX / TOKENS / 4 * 4; /* no overflow, and beyond all memory */
        WRITE(GPUMEM_E_INVALID);
        t = key;
        t.head_stride = INT64_MAX / 4 * 4;
        WRITE(GPUMEM_E_INVALID);
        /* In the pool: where units are mapped, and no further. */
        t = key;
        t.address = f.g.base;
        WRITE(0);
        t.address = f.g.base + (uint64_t)f.g.unit_stride - 8;
        WRITE(GPUMEM_E_INVALID);
        t.address = f.g.base + (uint64_t)f.g.unit_stride * (f.g.units_max - 1);
        WRITE(GPUMEM_E_INVALID);

        a = attn;
        a.out.address = end - TOKENS * Q_HEADS * VALUE_DIM * 4 + 4;
        ATTEND(GPUMEM_E_INVALID);
        a = attn;
        a.q.address = end - 4;
        ATTEND(GPUMEM_E_INVALID);
        a = attn;
        a.lse = end - TOKENS * Q_HEADS * 4;
        ATTEND(0);
        a.lse += 4;
        ATTEND(GPUMEM_E_INVALID);

        /* Memory of the engine's own is not judged. */
        CU_ASSERT_EQUAL_FATAL(driver.driver->mem_alloc(&own, 2 * MIB), CUDA_SUCCESS);
        t = key;
        t.address = own;
        WRITE(0);
        a = attn;
        a.q.address = own;
        a.out.address = own + MIB;
        ATTEND(0);
        client_test_synchronize(&driver);
        CU_ASSERT_EQUAL(driver.driver->mem_free(own), CUDA_SUCCESS);
        tear_down(&f);
}

static void test_scale_and_rows(void)
{
        struct fixture f;
        struct gpumem_attn attn, a;
        int64_t row = VALUE_DIM * 4;

        set_up(&f);
        attn = (struct gpumem_attn){
                .q = {.address = f.base, .heads = Q_HEADS, .dim = KEY_DIM},
                .out = {.address = f.base + MIB, .heads = Q_HEADS, .dim = VALUE_DIM},
        };
        memset(f.host, 0, MIB);
        a = attn;
        a.scale = NAN;
        ATTEND(GPUMEM_E_INVALID);
        a.scale = -INFINITY;
        ATTEND(GPUMEM_E_INVALID);
        a.scale = 0.25f;
        ATTEND(0);
        a = attn;
        a.out.head_stride = row - 4;
        ATTEND(GPUMEM_E_INVALID);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "overlap"));
        a.out.head_stride = row;
        a.out.token_stride = Q_HEADS * row - 4;
        ATTEND(GPUMEM_E_INVALID);
        a.out.token_stride = row; /* heads and tokens on the same rows */
        ATTEND(GPUMEM_E_INVALID);
        a.out.head_stride = TOKENS * row - 4;
        ATTEND(GPUMEM_E_INVALID);
        a.out.head_stride = TOKENS * row; /* [heads][tokens] */
        ATTEND(0);
        a.out.head_stride = row + 4; /* with room between */
        a.out.token_stride = Q_HEADS * row + 44;
        ATTEND(0);
        /* Queries may share their rows: they are only read. */
        a = attn;
        a.q.token_stride = 4;
        a.q.head_stride = 4;
        ATTEND(0);
        client_test_synchronize(&driver);
        tear_down(&f);
}

/* Pools of larger heads exist; the kernels of this release say that they do not take them. */
static void test_large_heads(void)
{
        struct gpumem *session = client_test_connect(process, "large");
        struct gpumem_kv_options options = client_test_kv_options();
        const struct gpumem_tensor any = {.heads = 2, .dim = 264};
        const struct gpumem_attn attn = {.q = any, .out = any};
        struct gpumem_batch *batch;
        struct gpumem_kv *kv;
        uint32_t tokens = 1;
        gpumem_seq seq;

        options.key_dim = 264;
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &tokens, driver.stream, 1000, &batch));
        CU_ASSERT_EQUAL(gpumem_kv_write(batch, 0, &any, &any, driver.stream), GPUMEM_E_UNSUPPORTED);
        CU_ASSERT_EQUAL(gpumem_attn_decode(batch, 0, &attn, driver.stream), GPUMEM_E_UNSUPPORTED);
        CLIENT_TEST_OK(gpumem_batch_cancel(batch, driver.stream));
        options.key_dim = 1032;
        {
                struct gpumem_kv *other;

                CU_ASSERT_EQUAL(gpumem_kv_create(session, &options, &other), GPUMEM_E_INVALID);
        }
        gpumem_disconnect(session);
        client_test_check(process);
}

/* The copy of a fork is a pin until its stream has made it, and only a fork with a copy is. */
static void test_fork_pins(void)
{
        struct gpumem_kv_stats stats;
        struct client_test_gate *gate;
        struct fixture f;
        gpumem_seq child, full, other;

        set_up(&f);
        CLIENT_TEST_OK(gpumem_batch_end(f.batch, driver.stream));
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &stats));
        CU_ASSERT_EQUAL(stats.pins, 0);
        gate = client_test_gate_close(&driver);
        CLIENT_TEST_OK(gpumem_seq_create(f.kv, &full));
        CLIENT_TEST_OK(gpumem_seq_append(f.kv, full, 2 * f.g.page_tokens, driver.stream, 1000));
        CLIENT_TEST_OK(gpumem_seq_fork(f.kv, full, driver.stream, &other));
        CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &stats));
        CU_ASSERT_EQUAL(stats.pins, 0);
        CU_ASSERT_EQUAL(stats.copies, 0);
        CLIENT_TEST_OK(gpumem_seq_fork(f.kv, f.seq, driver.stream, &child));
        CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &stats));
        CU_ASSERT_EQUAL(stats.pins, 1);
        CU_ASSERT_EQUAL(stats.copies, 1);
        client_test_gate_open(gate);
        client_test_synchronize(&driver);
        CLIENT_TEST_OK(gpumem_kv_get_stats(f.kv, &stats));
        CU_ASSERT_EQUAL(stats.pins, 0);
        CLIENT_TEST_OK(gpumem_kv_free(f.kv));
        gpumem_buffer_free(f.buffer);
        gpumem_disconnect(f.session);
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
        suite = CU_add_suite("client: operands", start, stop);
        CU_add_test(suite, "tiles are as the header says", test_tiles);
        CU_add_test(suite, "heads and types", test_heads_and_types);
        CU_add_test(suite, "operands end where their memory does", test_ranges);
        CU_add_test(suite, "scale, and rows that overlap", test_scale_and_rows);
        CU_add_test(suite, "heads that are too large for kernels", test_large_heads);
        CU_add_test(suite, "a fork's copy is a pin", test_fork_pins);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
