/* SPDX-License-Identifier: Apache-2.0 */
/* KV write: the right bytes at the right places, and no other byte touched. */
#include <math.h>
#include <stdlib.h>

#include "tests/support/kernel_test.h"

#define TOKENS 37
#define HEADS  3

struct fixture {
        struct oracle_case c; /* lends its pool; its contents are wiped */
        struct kernel_write args;
        int64_t slots[TOKENS];
        void *key, *value;
        uint16_t *want; /* what the pool should hold */
};

static const uint32_t fixture_len[] = {160};

static uint16_t stored_as(const struct fixture *f, const void *from, size_t i)
{
        if (f->args.type == KERNEL_F16)
                return ((const uint16_t *)from)[i];
        return oracle_f32_to_f16(((const float *)from)[i]);
}

/* Distinct slots over all pages in no order, every fifth token skipped. */
static void fixture_init(struct fixture *f, uint32_t key_dim, uint32_t value_dim,
                         uint32_t page_tokens, enum kernel_type type, uint64_t gap)
{
        size_t size = type == KERNEL_F16 ? 2 : 4;
        struct kernel_write *args = &f->args;
        uint64_t state = key_dim * 1000 + value_dim;

        oracle_case_init(&f->c, &(struct oracle_options){.kv_heads = HEADS,
                                                         .group = 1,
                                                         .key_dim = key_dim,
                                                         .value_dim = value_dim,
                                                         .page_tokens = page_tokens,
                                                         .sequences = 1,
                                                         .kv_len = fixture_len,
                                                         .shuffle = true});
        *args = (struct kernel_write){.kv = f->c.args.kv,
                                      .layer = f->c.args.layer,
                                      .tokens = TOKENS,
                                      .slot_mapping = f->slots,
                                      .type = type};
        args->key_head_stride = (int64_t)(size * (key_dim + gap));
        args->value_head_stride = (int64_t)(size * (value_dim + gap));
        args->key_token_stride = args->key_head_stride * HEADS + (int64_t)(size * gap);
        args->value_token_stride = args->value_head_stride * HEADS + (int64_t)(size * gap);
        f->key = malloc((size_t)args->key_token_stride * TOKENS);
        f->value = malloc((size_t)args->value_token_stride * TOKENS);
        for (int which = 0; which < 2; which++) {
                void *to = which ? f->value : f->key;
                size_t count = (size_t)(which ? args->value_token_stride : args->key_token_stride) *
                               TOKENS / size;

                for (size_t i = 0; i < count; i++) {
                        float x = (float)(int32_t)oracle_random(&state) * 0x1p-28f;

                        if (type == KERNEL_F16)
                                ((uint16_t *)to)[i] = oracle_f32_to_f16(x);
                        else
                                ((float *)to)[i] = x;
                }
        }
        args->key = f->key;
        args->value = f->value;

        for (size_t i = 0; i < f->c.pool_bytes / 2; i++)
                f->c.pool[i] = 0xabcd;
        for (uint32_t t = 0; t < TOKENS; t++) {
                uint32_t position = t * 4 + t % 3;

                f->slots[t] =
                        t % 5 == 4 ? -1
                                   : (int64_t)f->c.indices[position / page_tokens] * page_tokens +
                                             position % page_tokens;
                for (uint32_t h = 0; h < HEADS && f->slots[t] >= 0; h++) {
                        uint16_t *k = oracle_vector(&f->c, 0, position, h, false);
                        uint16_t *v = oracle_vector(&f->c, 0, position, h, true);

                        for (uint32_t d = 0; d < key_dim; d++)
                                k[d] = stored_as(f, f->key,
                                                 (size_t)(t * args->key_token_stride +
                                                          h * args->key_head_stride) /
                                                                 size +
                                                         d);
                        for (uint32_t d = 0; d < value_dim; d++)
                                v[d] = stored_as(f, f->value,
                                                 (size_t)(t * args->value_token_stride +
                                                          h * args->value_head_stride) /
                                                                 size +
                                                         d);
                }
        }
        f->want = malloc(f->c.pool_bytes);
        memcpy(f->want, f->c.pool, f->c.pool_bytes);
}

static void fixture_deinit(struct fixture *f)
{
        free(f->key);
        free(f->value);
        free(f->want);
        oracle_case_deinit(&f->c);
}

static void expect_written(struct fixture *f, struct kernel_pool *pool)
{
        FOR_EACH_ISA(isa)
        {
                for (size_t i = 0; i < f->c.pool_bytes / 2; i++)
                        f->c.pool[i] = 0xabcd;
                CU_ASSERT_EQUAL_FATAL(kernel_write_check(&f->args), KERNEL_OK);
                CU_ASSERT_EQUAL(kernel_cpu_kv_write_isa((enum kernel_isa)isa, pool, &f->args), 0);
                CU_ASSERT(memcmp(f->c.pool, f->want, f->c.pool_bytes) == 0);
        }
}

static void test_places(void)
{
        static const uint32_t dims[][2] = {{128, 128}, {64, 64}, {8, 8},
                                           {80, 256},  {24, 96}, {40, 200}};
        static const uint32_t pages[] = {16, 32, 5, 128};
        struct kernel_pool *pool = NULL;

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 3), 0);
        for (size_t i = 0; i < COUNT_OF(dims); i++) {
                for (int type = KERNEL_F32; type <= KERNEL_F16; type++) {
                        struct fixture f;

                        fixture_init(&f, dims[i][0], dims[i][1], pages[i % COUNT_OF(pages)],
                                     (enum kernel_type)type, i % 3);
                        expect_written(&f, i % 2 ? pool : NULL);
                        fixture_deinit(&f);
                }
        }
        kernel_pool_free(pool);
}

static void test_all_skipped(void)
{
        struct fixture f;

        fixture_init(&f, 64, 64, 16, KERNEL_F32, 0);
        for (int i = 0; i < TOKENS; i++)
                f.slots[i] = -1;
        for (size_t i = 0; i < f.c.pool_bytes / 2; i++)
                f.want[i] = 0xabcd;
        expect_written(&f, NULL);
        fixture_deinit(&f);
}

/* What is no number has one result on every implementation; f16 is stored as it comes. */
static void test_special(void)
{
        static const float special[] = {NAN,  -NAN,  INFINITY, -INFINITY,
                                        1e6f, -1e6f, 0x1p-24f, -0.0f};
        static const uint16_t want[] = {0x7fff, 0x7fff, 0x7c00, 0xfc00,
                                        0x7c00, 0xfc00, 0x0001, 0x8000};
        static const uint16_t halves[] = {0x7e01, 0xffff, 0x7c00, 0xfc00,
                                          0x7d00, 0x0001, 0x8000, 0x03ff};
        uint16_t pool[64] __attribute__((aligned(64)));
        int64_t slot = 1;
        struct kernel_write args = {
                .kv = {.base = (unsigned char *)pool,
                       .value_offset = 64,
                       .page_tokens = 2,
                       .kv_heads = 1,
                       .key_dim = 8,
                       .value_dim = 8},
                .tokens = 1,
                .slot_mapping = &slot,
                .key = special,
                .value = special,
        };

        FOR_EACH_ISA(isa)
        {
                args.type = KERNEL_F32;
                args.key = args.value = special;
                memset(pool, 0, sizeof(pool));
                CU_ASSERT_EQUAL(kernel_cpu_kv_write_isa((enum kernel_isa)isa, NULL, &args), 0);
                CU_ASSERT(memcmp(pool + 8, want, sizeof(want)) == 0);
                CU_ASSERT(memcmp(pool + 40, want, sizeof(want)) == 0);
                args.type = KERNEL_F16;
                args.key = args.value = halves;
                CU_ASSERT_EQUAL(kernel_cpu_kv_write_isa((enum kernel_isa)isa, NULL, &args), 0);
                CU_ASSERT(memcmp(pool + 8, halves, sizeof(halves)) == 0);
                CU_ASSERT(memcmp(pool + 40, halves, sizeof(halves)) == 0);
                CU_ASSERT_EQUAL(pool[7], 0);
                CU_ASSERT_EQUAL(pool[16], 0);
        }
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"bytes and places, -1 skipped", test_places},
                {"all skipped", test_all_skipped},
                {"NaN and infinity", test_special},
        };

        return kernel_test_main("kernel KV write", tests, COUNT_OF(tests));
}
