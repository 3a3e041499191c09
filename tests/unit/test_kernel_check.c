/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/check.c: what is refused before any work, and that what lies just inside the limits
 * is not. */
#include <errno.h>

#include "tests/support/kernel_test.h"

static const uint32_t lengths[] = {33, 0, 16};
static const uint32_t queries[] = {2, 1, 1};

static struct oracle_options small_options(void)
{
        return (struct oracle_options){.kv_heads = 2,
                                       .group = 2,
                                       .key_dim = 16,
                                       .page_tokens = 16,
                                       .sequences = 3,
                                       .kv_len = lengths,
                                       .q_len = queries,
                                       .padding = 1};
}

static void test_dimensions(void)
{
        static const struct {
                uint32_t dim;
                int check;
        } cases[] = {
                {0, KERNEL_E_SHAPE},   {4, KERNEL_E_SHAPE},   {8, KERNEL_OK},
                {12, KERNEL_E_SHAPE},  {256, KERNEL_OK},      {257, KERNEL_E_SHAPE},
                {264, KERNEL_E_SHAPE}, {100, KERNEL_E_SHAPE}, {0x80000008u, KERNEL_E_SHAPE},
        };
        struct oracle_case c;

        oracle_case_init(&c, &(struct oracle_options){.kv_heads = 1,
                                                      .group = 1,
                                                      .key_dim = 8,
                                                      .page_tokens = 1,
                                                      .sequences = 1,
                                                      .kv_len = lengths + 1});
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
                struct kernel_attention args = c.args;

                args.kv.key_dim = cases[i].dim;
                CU_ASSERT_EQUAL(kernel_attention_check(&args), cases[i].check);
                args = c.args;
                args.kv.value_dim = cases[i].dim;
                CU_ASSERT_EQUAL(kernel_attention_check(&args), cases[i].check);
        }
        oracle_case_deinit(&c);
}

#define EXPECT_SHAPE(field, value)                                                                 \
        do {                                                                                       \
                struct kernel_attention args = c.args;                                             \
                args.field = (value);                                                              \
                CU_ASSERT_EQUAL(kernel_attention_check(&args), KERNEL_E_SHAPE);                    \
        } while (0)

static void test_shapes(void)
{
        struct oracle_options options = small_options();
        struct oracle_case c;

        oracle_case_init(&c, &options);
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_OK);
        EXPECT_SHAPE(q_heads, 0);
        EXPECT_SHAPE(q_heads, 3);
        EXPECT_SHAPE(q_heads, 65538);
        EXPECT_SHAPE(kv.kv_heads, 0);
        EXPECT_SHAPE(kv.kv_heads, 3);
        EXPECT_SHAPE(kv.page_tokens, 0);
        EXPECT_SHAPE(kv.slot_bits, 30);
        EXPECT_SHAPE(kv.page_stride, c.args.kv.page_stride + 1);
        EXPECT_SHAPE(kv.value_offset, c.args.kv.value_offset - 1);
        EXPECT_SHAPE(q_type, (enum kernel_type)2);
        EXPECT_SHAPE(out_type, (enum kernel_type)7);
        EXPECT_SHAPE(q_token_stride, c.args.q_token_stride + 2);
        EXPECT_SHAPE(out_head_stride, c.args.out_head_stride - 2);
        oracle_case_deinit(&c);
}

#define EXPECT_POINTER(field, value)                                                               \
        do {                                                                                       \
                struct kernel_attention args = c.args;                                             \
                args.field = (value);                                                              \
                CU_ASSERT_EQUAL(kernel_attention_check(&args), KERNEL_E_POINTER);                  \
        } while (0)

static void test_pointers(void)
{
        struct oracle_options options = small_options();
        struct kernel_attention empty;
        struct oracle_case c;

        oracle_case_init(&c, &options);
        CU_ASSERT_EQUAL(kernel_attention_check(NULL), KERNEL_E_POINTER);
        EXPECT_POINTER(kv.base, NULL);
        EXPECT_POINTER(kv.base, c.args.kv.base + 1);
        EXPECT_POINTER(indptr, NULL);
        EXPECT_POINTER(indices, NULL);
        EXPECT_POINTER(kv_len, NULL);
        EXPECT_POINTER(q, NULL);
        EXPECT_POINTER(q, (const char *)c.q + 2);
        EXPECT_POINTER(out, NULL);
        EXPECT_POINTER(lse, (float *)(void *)((char *)c.lse + 2));

        /* An empty batch needs nothing. */
        empty = c.args;
        empty.sequences = 0;
        empty.indptr = empty.indices = empty.kv_len = empty.q_indptr = NULL;
        empty.q = empty.out = NULL;
        empty.lse = NULL;
        CU_ASSERT_EQUAL(kernel_attention_check(&empty), KERNEL_OK);
        CU_ASSERT_EQUAL(kernel_cpu_attention_decode(NULL, &empty), 0);
        CU_ASSERT_EQUAL(kernel_cpu_attention_prefill(NULL, &empty), 0);
        oracle_case_deinit(&c);
}

static void test_offsets(void)
{
        struct oracle_options options = small_options();
        struct oracle_case c;

        oracle_case_init(&c, &options);
        c.indptr[0] = 1;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_E_INDPTR);
        c.indptr[0] = 0;
        c.indptr[1] += 100;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_E_INDPTR);
        c.indptr[1] -= 100;
        c.q_indptr[2] = 0;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_E_INDPTR);
        c.q_indptr[2] = 3;
        c.q_indptr[0] = 1;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_E_INDPTR);
        c.q_indptr[0] = 0;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_OK);
        oracle_case_deinit(&c);
}

/* C41: a kernel must not read a table past its row's end. Refused, since what follows is another
 * row. */
static void test_c41_length(void)
{
        struct oracle_options options = small_options();
        struct oracle_case c;

        options.padding = 0;
        oracle_case_init(&c, &options);
        c.kv_len[0] = 48; /* fills its 3 pages */
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_OK);
        c.kv_len[0] = 49;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_E_LENGTH);
        c.kv_len[0] = UINT32_MAX;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_E_LENGTH);
        c.kv_len[0] = 33;
        c.kv_len[1] = 1; /* has no page */
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_E_LENGTH);
        c.kv_len[1] = 0;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_OK);
        oracle_case_deinit(&c);
}

/* C41, C42: the last page may be full or hold one token, never none; rows longer than their
 * sequence are fine, and what stands in their padding does not matter. */
static void test_c42_padding(void)
{
        struct oracle_options options = small_options();
        struct oracle_case c;

        options.padding = 3;
        oracle_case_init(&c, &options);
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_OK);
        kernel_test_against_float64(&c, NULL);
        /* The first padding entry comes into use. */
        c.kv_len[0] = 49;
        CU_ASSERT_EQUAL(kernel_attention_check(&c.args), KERNEL_E_PAGE);
        oracle_case_deinit(&c);
}

static void test_write(void)
{
        static unsigned char pool[4096] __attribute__((aligned(64)));
        static float new[64];
        int64_t slots[2] = {0, -1};
        struct kernel_write args = {
                .kv = {.base = pool,
                       .page_tokens = 4,
                       .kv_heads = 1,
                       .key_dim = 8,
                       .value_dim = 8,
                       .page_stride = 128,
                       .value_offset = 64,
                       .slot_bits = 3},
                .tokens = 2,
                .slot_mapping = slots,
                .key = new,
                .value = new,
                .key_token_stride = 32,
                .value_token_stride = 32,
        };
        struct kernel_write bad;

        CU_ASSERT_EQUAL(kernel_write_check(&args), KERNEL_OK);
        CU_ASSERT_EQUAL(kernel_write_check(NULL), KERNEL_E_POINTER);
        slots[1] = -2;
        CU_ASSERT_EQUAL(kernel_write_check(&args), KERNEL_E_SLOT);
        slots[1] = INT64_MIN;
        CU_ASSERT_EQUAL(kernel_write_check(&args), KERNEL_E_SLOT);
        slots[1] = INT64_MAX;
        CU_ASSERT_EQUAL(kernel_write_check(&args), KERNEL_E_SLOT);
        slots[1] = 4 * (int64_t)0xffffffff;
        CU_ASSERT_EQUAL(kernel_write_check(&args), KERNEL_E_SLOT);
        slots[1] = 4 * (int64_t)0xffffffff - 1;
        CU_ASSERT_EQUAL(kernel_write_check(&args), KERNEL_OK);
        bad = args;
        bad.slot_mapping = NULL;
        CU_ASSERT_EQUAL(kernel_write_check(&bad), KERNEL_E_POINTER);
        bad = args;
        bad.key = NULL;
        CU_ASSERT_EQUAL(kernel_write_check(&bad), KERNEL_E_POINTER);
        bad = args;
        bad.value = (char *)new + 2;
        CU_ASSERT_EQUAL(kernel_write_check(&bad), KERNEL_E_POINTER);
        bad = args;
        bad.type = (enum kernel_type)3;
        CU_ASSERT_EQUAL(kernel_write_check(&bad), KERNEL_E_SHAPE);
        bad = args;
        bad.key_token_stride = 33;
        CU_ASSERT_EQUAL(kernel_write_check(&bad), KERNEL_E_SHAPE);
        bad = args;
        bad.kv.value_dim = 9;
        CU_ASSERT_EQUAL(kernel_write_check(&bad), KERNEL_E_SHAPE);
        bad = args;
        bad.tokens = 0;
        bad.slot_mapping = NULL;
        bad.key = bad.value = NULL;
        CU_ASSERT_EQUAL(kernel_write_check(&bad), KERNEL_OK);
        CU_ASSERT_EQUAL(kernel_cpu_kv_write(NULL, &bad), 0);
}

static void test_text(void)
{
        for (int check = KERNEL_OK; check <= KERNEL_E_PAGE; check++)
                for (int other = KERNEL_OK; other < check; other++)
                        CU_ASSERT_STRING_NOT_EQUAL(kernel_check_text(check),
                                                   kernel_check_text(other));
        CU_ASSERT_STRING_EQUAL(kernel_check_text(99), "unknown");
}

static void test_isa(void)
{
        struct kernel_attention empty = {.kv = {.kv_heads = 1}, .q_heads = 1};

        CU_ASSERT_PTR_NOT_NULL(kernel_tile_ops(kernel_cpu_isa()));
        CU_ASSERT_STRING_EQUAL(kernel_isa_name(KERNEL_ISA_PORTABLE), "portable");
        CU_ASSERT_STRING_EQUAL(kernel_isa_name(KERNEL_ISA_AVX512), "avx512");
        CU_ASSERT_EQUAL(kernel_cpu_attention_decode_isa((enum kernel_isa)1, NULL, &empty),
                        -EOPNOTSUPP);
        CU_ASSERT_EQUAL(kernel_cpu_attention_prefill_isa((enum kernel_isa)1, NULL, &empty),
                        -EOPNOTSUPP);
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"dimensions", test_dimensions},
                {"shapes", test_shapes},
                {"pointers", test_pointers},
                {"offsets", test_offsets},
                {"C41 length beyond the table", test_c41_length},
                {"C41 C42 padded rows", test_c42_padding},
                {"KV write", test_write},
                {"texts", test_text},
                {"instruction sets", test_isa},
        };

        return kernel_test_main("kernel check", tests, COUNT_OF(tests));
}
