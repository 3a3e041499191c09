/* SPDX-License-Identifier: Apache-2.0 */
/* Decode and prefill on every instruction set against float64, over the shapes that break kernels.
 */
#include <math.h>

#include "tests/support/kernel_test.h"

static struct kernel_pool *pool;

static void expect(const struct oracle_options *options)
{
        struct oracle_case c;

        oracle_case_init(&c, options);
        kernel_test_against_float64(&c, pool);
        oracle_case_deinit(&c);
}

static void test_dimensions(void)
{
        static const uint32_t dims[] = {64, 80, 96, 128, 192, 256};
        static const uint32_t kv_len[] = {1, 17, 131};

        for (size_t i = 0; i < COUNT_OF(dims); i++)
                expect(&(struct oracle_options){.kv_heads = 2,
                                                .group = 4,
                                                .key_dim = dims[i],
                                                .page_tokens = 16,
                                                .sequences = 3,
                                                .kv_len = kv_len,
                                                .poison = ORACLE_POISON_NAN,
                                                .shuffle = true,
                                                .seed = i});
}

/* Every legal dimension, and a value dimension that differs. */
static void test_odd_dimensions(void)
{
        static const uint32_t kv_len[] = {5, 37};

        for (uint32_t dim = 8; dim <= 256; dim += 8)
                expect(&(struct oracle_options){.kv_heads = 1,
                                                .group = 1 + dim / 8 % 5,
                                                .key_dim = dim,
                                                .value_dim = 264 - dim,
                                                .page_tokens = 16,
                                                .sequences = 2,
                                                .kv_len = kv_len,
                                                .poison = ORACLE_POISON_NAN,
                                                .seed = dim});
}

static void test_groups(void)
{
        static const uint32_t kv_len[] = {3, 33, 140};
        static const uint32_t q_len[] = {1, 5, 2};

        for (uint32_t group = 1; group <= 16; group++)
                expect(&(struct oracle_options){.kv_heads = 2,
                                                .group = group,
                                                .key_dim = 64,
                                                .value_dim = group % 2 ? 128 : 48,
                                                .page_tokens = 16,
                                                .sequences = 3,
                                                .kv_len = kv_len,
                                                .q_len = q_len,
                                                .poison = ORACLE_POISON_NAN,
                                                .seed = group});
}

/* More query heads on one KV head than a block of rows has. */
static void test_large_group(void)
{
        static const uint32_t kv_len[] = {20, 130};
        static const uint32_t q_len[] = {3, 1};

        expect(&(struct oracle_options){.kv_heads = 1,
                                        .group = 71,
                                        .key_dim = 64,
                                        .page_tokens = 16,
                                        .sequences = 2,
                                        .kv_len = kv_len,
                                        .q_len = q_len,
                                        .poison = ORACLE_POISON_NAN});
}

static void test_lengths(void)
{
        static const uint32_t kv_len[] = {0, 1, 15, 16, 17, 127, 128, 129, 0, 255, 256, 257, 500};
        static const uint32_t pages[] = {16, 32, 64, 128, 1, 7, 200};

        for (size_t i = 0; i < COUNT_OF(pages); i++)
                expect(&(struct oracle_options){.kv_heads = 1,
                                                .group = 2,
                                                .key_dim = 32,
                                                .page_tokens = pages[i],
                                                .sequences = COUNT_OF(kv_len),
                                                .kv_len = kv_len,
                                                .poison = ORACLE_POISON_NAN,
                                                .padding = 1,
                                                .shuffle = true});
}

/* From a chunk at the end of a context to more queries than keys, whose first rows are empty. */
static void test_query_lengths(void)
{
        static const uint32_t kv_len[] = {200, 129, 128, 300, 40, 0, 3, 1, 150};
        static const uint32_t q_len[] = {200, 2, 128, 33, 41, 4, 10, 0, 65};

        expect(&(struct oracle_options){.kv_heads = 2,
                                        .group = 3,
                                        .key_dim = 64,
                                        .page_tokens = 16,
                                        .sequences = COUNT_OF(kv_len),
                                        .kv_len = kv_len,
                                        .q_len = q_len,
                                        .poison = ORACLE_POISON_NAN,
                                        .shuffle = true});
}

static void test_types(void)
{
        static const uint32_t kv_len[] = {70, 130};

        for (int q = KERNEL_F32; q <= KERNEL_F16; q++)
                for (int out = KERNEL_F32; out <= KERNEL_F16; out++)
                        expect(&(struct oracle_options){.kv_heads = 2,
                                                        .group = 2,
                                                        .key_dim = 72,
                                                        .value_dim = 40,
                                                        .page_tokens = 32,
                                                        .sequences = 2,
                                                        .kv_len = kv_len,
                                                        .q_type = (enum kernel_type)q,
                                                        .out_type = (enum kernel_type)out,
                                                        .poison = ORACLE_POISON_NAN});
}

/* Pages that several sequences have in common, and one page twice in one table. */
static void test_shared_pages(void)
{
        static const uint32_t kv_len[] = {200, 200, 77, 150};
        struct oracle_options options = {.kv_heads = 2,
                                         .group = 2,
                                         .key_dim = 64,
                                         .page_tokens = 16,
                                         .sequences = 4,
                                         .kv_len = kv_len,
                                         .poison = ORACLE_POISON_NAN,
                                         .shuffle = true,
                                         .share = true};
        struct oracle_case c;

        oracle_case_init(&c, &options);
        CU_ASSERT_EQUAL(c.indices[c.indptr[1]], c.indices[0]);
        c.indices[2] = c.indices[7];
        c.indices[3] = c.indices[7];
        kernel_test_against_float64(&c, pool);
        oracle_case_deinit(&c);
}

/* Strides that leave room between rows, as when q, k and v come from one matrix; lse not wanted. */
static void test_strides(void)
{
        static const uint32_t kv_len[] = {50, 9};
        struct oracle_options options = {.kv_heads = 2,
                                         .group = 2,
                                         .key_dim = 32,
                                         .page_tokens = 16,
                                         .sequences = 2,
                                         .kv_len = kv_len};
        static float q[2 * 1000], out[2 * 900];
        struct oracle_case c;

        oracle_case_init(&c, &options);
        for (uint32_t t = 0; t < 2; t++)
                for (uint32_t h = 0; h < 4; h++)
                        memcpy(q + t * 1000 + h * 50, (float *)c.q + (t * 4 + h) * 32,
                               32 * sizeof(float));
        FOR_EACH_ISA(isa)
        {
                struct kernel_attention args = c.args;
                unsigned touched = 0, different = 0;

                kernel_test_run(&c, (enum kernel_isa)isa, pool, BY_DECODE);
                for (size_t i = 0; i < COUNT_OF(out); i++)
                        out[i] = -7;
                args.q = q;
                args.q_token_stride = 1000 * sizeof(float);
                args.q_head_stride = 50 * sizeof(float);
                args.out = out;
                args.out_token_stride = 900 * sizeof(float);
                args.out_head_stride = 33 * sizeof(float);
                args.lse = NULL;
                CU_ASSERT_EQUAL(kernel_cpu_attention_decode_isa((enum kernel_isa)isa, pool, &args),
                                0);
                for (size_t i = 0; i < COUNT_OF(out); i++) {
                        size_t t = i / 900, h = i % 900 / 33, d = i % 900 % 33;

                        if (h >= 4 || d >= 32)
                                touched += out[i] != -7;
                        else
                                different += out[i] != c.out[(t * 4 + h) * 32 + d];
                }
                CU_ASSERT_EQUAL(touched, 0);
                CU_ASSERT_EQUAL(different, 0);
        }
        oracle_case_deinit(&c);
}

/* Logits of +-6e4: each key is the query, scaled so that the product comes to what is wanted. */
static void test_large_logits(void)
{
        static const float logits[] = {-60000, 60000, -59000, 59999, 0, 60000, -60000, 30000};
        static const uint32_t kv_len[] = {1, 5, 8, 140, 260};
        struct oracle_options options = {.kv_heads = 1,
                                         .group = 3,
                                         .key_dim = 64,
                                         .page_tokens = 16,
                                         .sequences = COUNT_OF(kv_len),
                                         .kv_len = kv_len,
                                         .poison = ORACLE_POISON_NAN};
        struct oracle_case c;

        for (int only = 0; only < 5; only++) {
                oracle_case_init(&c, &options);
                c.args.scale = 1;
                for (uint32_t b = 0; b < options.sequences; b++) {
                        for (uint32_t h = 0; h < 3; h++)
                                for (uint32_t d = 0; d < 64; d++)
                                        oracle_q_set(&c, b, h, d, d % 2 ? 16 : -16);
                        for (uint32_t t = 0; t < kv_len[b]; t++) {
                                /* All kinds; all lowest; all highest; lowest in the first partial
                                 * only. */
                                float logit = only == 0                  ? logits[t % 8]
                                              : only == 1                ? -60000
                                              : only == 2                ? 60000
                                              : (t < 128) == (only == 3) ? -60000
                                                                         : 60000;
                                uint16_t *k = oracle_vector(&c, b, t, 0, false);

                                for (uint32_t d = 0; d < 64; d++)
                                        k[d] = oracle_f32_to_f16(logit / 1024 * (d % 2 ? 1 : -1));
                        }
                }
                kernel_test_against_float64(&c, pool);
                oracle_case_deinit(&c);
        }
}

static void test_constant_rows(void)
{
        static const uint16_t fills[] = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x0001};
        static const uint32_t kv_len[] = {1, 16, 130, 300};
        struct oracle_options options = {.kv_heads = 1,
                                         .group = 2,
                                         .key_dim = 40,
                                         .page_tokens = 16,
                                         .sequences = COUNT_OF(kv_len),
                                         .kv_len = kv_len,
                                         .poison = ORACLE_POISON_NAN};
        struct oracle_case c;

        for (size_t i = 0; i < COUNT_OF(fills); i++) {
                oracle_case_init(&c, &options);
                for (uint32_t b = 0; b < options.sequences; b++) {
                        for (uint32_t t = 0; t < kv_len[b]; t++) {
                                for (uint32_t d = 0; d < 40; d++) {
                                        oracle_vector(&c, b, t, 0, false)[d] =
                                                fills[i] == 0x7bff || fills[i] == 0xfbff ? 0x3c00
                                                                                         : fills[i];
                                        oracle_vector(&c, b, t, 0, true)[d] = fills[i];
                                }
                        }
                }
                kernel_test_against_float64(&c, pool);
                oracle_case_deinit(&c);
        }
}

/* C42, C44: no key at all is out = 0 and lse = -inf, on every path, and its neighbours in the batch
 * are whole. */
static void test_c44_empty_rows(void)
{
        static const uint32_t kv_len[] = {0, 20, 0, 2, 700, 0};
        static const uint32_t q_len[] = {1, 1, 3, 5, 703, 0};
        struct oracle_options options = {.kv_heads = 2,
                                         .group = 2,
                                         .key_dim = 16,
                                         .page_tokens = 16,
                                         .sequences = COUNT_OF(kv_len),
                                         .kv_len = kv_len,
                                         .q_len = q_len,
                                         .poison = ORACLE_POISON_NAN};
        struct oracle_case c;

        oracle_case_init(&c, &options);
        kernel_test_against_float64(&c, pool);
        FOR_EACH_ISA(isa)
        {
                for (int how = BY_DECODE; how <= BY_PREFILL; how++) {
                        kernel_test_run(&c, (enum kernel_isa)isa, pool, (enum kernel_test_how)how);
                        for (uint32_t h = 0; h < 4; h++) {
                                CU_ASSERT(oracle_out(&c, 0, h, 3) == 0.0f);
                                CU_ASSERT(isinf(oracle_lse(&c, 0, h)) && oracle_lse(&c, 0, h) < 0);
                                /* The three first of five queries over two keys see none. */
                                CU_ASSERT(isinf(oracle_lse(&c, 5 + 2, h)));
                                CU_ASSERT(isfinite(oracle_lse(&c, 5 + 3, h)));
                        }
                }
        }
        oracle_case_deinit(&c);
}

/* C44: keys at -inf weigh nothing; a row, or a partial, of nothing else is empty, not NaN. */
static void test_c44_infinite_scores(void)
{
        static const uint32_t kv_len[] = {130, 300, 20};
        struct oracle_options options = {.kv_heads = 1,
                                         .group = 2,
                                         .key_dim = 16,
                                         .page_tokens = 16,
                                         .sequences = 3,
                                         .kv_len = kv_len,
                                         .poison = ORACLE_POISON_NAN};
        struct oracle_case c;

        oracle_case_init(&c, &options);
        for (uint32_t b = 0; b < 3; b++)
                for (uint32_t h = 0; h < 2; h++)
                        for (uint32_t d = 0; d < 16; d++)
                                oracle_q_set(&c, b, h, d, 1);
        /* Sequence 0: all. 1: the first two partials, and some of the last. 2: all but one. */
        for (uint32_t b = 0; b < 3; b++)
                for (uint32_t t = 0; t < kv_len[b]; t++)
                        if (b == 0 || (b == 1 && (t < 256 || t % 2)) || (b == 2 && t != 11))
                                oracle_vector(&c, b, t, 0, false)[5] = 0xfc00;
        FOR_EACH_ISA(isa)
        {
                for (int how = BY_DECODE; how <= BY_PREFILL; how++) {
                        unsigned wrong = 0;

                        kernel_test_run(&c, (enum kernel_isa)isa, pool, (enum kernel_test_how)how);
                        for (uint32_t d = 0; d < 16; d++) {
                                const uint16_t *v = oracle_vector(&c, 2, 11, 0, true);

                                wrong += oracle_out(&c, 0, 1, d) != 0.0f;
                                wrong += !isfinite(oracle_out(&c, 1, 1, d));
                                wrong += (double)oracle_out(&c, 2, 1, d) != oracle_f16_to_f64(v[d]);
                        }
                        CU_ASSERT_EQUAL(wrong, 0);
                        CU_ASSERT(isinf(oracle_lse(&c, 0, 0)) && oracle_lse(&c, 0, 0) < 0);
                        CU_ASSERT(isfinite(oracle_lse(&c, 1, 0)));
                }
        }
        oracle_case_deinit(&c);
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"dimensions", test_dimensions},
                {"every dimension, key and value differ", test_odd_dimensions},
                {"1 to 16 query heads per KV head", test_groups},
                {"71 query heads per KV head", test_large_group},
                {"lengths x page sizes", test_lengths},
                {"several queries", test_query_lengths},
                {"query and output types", test_types},
                {"shared and duplicated pages", test_shared_pages},
                {"strides", test_strides},
                {"logits of +-6e4", test_large_logits},
                {"constant and zero rows", test_constant_rows},
                {"C42 C44 empty rows", test_c44_empty_rows},
                {"C44 scores of -inf", test_c44_infinite_scores},
        };
        int r;

        if (kernel_pool_new(&pool, 3) != 0)
                return 2;
        r = kernel_test_main("kernel shapes", tests, COUNT_OF(tests));
        kernel_pool_free(pool);
        return r;
}
