/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C40: page id x stride beyond 32 bits. A pool of 16 TiB of address space, of which a few pages are
 * ever touched: a product of unit, slot or layer with its stride, or a slot number, formed in 32
 * bits lands in memory that holds zeros.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/support/kernel_test.h"

#define POOL_BYTES (16ull << 40)
#define DIM        64
#define PAGE       16
#define HEADS      4
#define LAYERS     2
#define LAYER      1

struct large {
        struct kernel_kv kv;
        unsigned char *memory;
        uint32_t pages[4];
};

/* A size that a sanitizer or a limit on address space may refuse; false then. */
static bool large_init(struct large *large)
{
        large->memory = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (large->memory == MAP_FAILED)
                return false;
        large->kv = (struct kernel_kv){
                .base = large->memory,
                .slot_bits = 20,
                .page_tokens = PAGE,
                .kv_heads = HEADS,
                .key_dim = DIM,
                .value_dim = DIM,
                .value_offset = PAGE * DIM * 2,
        };
        large->kv.head_stride = 2 * large->kv.value_offset;
        large->kv.page_stride = HEADS * large->kv.head_stride;
        large->kv.layer_stride = large->kv.page_stride << 20;    /* 16 GiB */
        large->kv.unit_stride = large->kv.layer_stride * LAYERS; /* 32 GiB */
        /* Class bits must not count. The highest unit and slot, the lowest, and some between. */
        large->pages[0] = 0x3fffffff;
        large->pages[1] = 0xe0000000u | 1 << 20 | 0x80000;
        large->pages[2] = 0;
        large->pages[3] = 256 << 20 | 0x40001;
        return true;
}

static unsigned char *expected_tile(const struct large *large, uint32_t page, uint32_t layer,
                                    uint32_t head)
{
        unsigned __int128 at =
                (unsigned __int128)((page & 0x1fffffff) >> 20) *
                        (unsigned __int128)large->kv.unit_stride +
                (unsigned __int128)layer * (unsigned __int128)large->kv.layer_stride +
                (unsigned __int128)(page & 0xfffff) * (unsigned __int128)large->kv.page_stride +
                (unsigned __int128)head * (unsigned __int128)large->kv.head_stride;

        return large->memory + (size_t)at;
}

#define TOKENS 60

static void test_c40(void)
{
        static float key[TOKENS][HEADS][DIM], value[TOKENS][HEADS][DIM];
        static float q[HEADS * 2][DIM], out[HEADS * 2][DIM], lse[HEADS * 2];
        uint32_t kv_len[] = {TOKENS}, plain_len[] = {TOKENS}, indptr[] = {0, 4};
        int64_t slots[TOKENS];
        uint64_t state = 40;
        struct large large;
        struct oracle_case plain;

        if (!large_init(&large)) {
                fprintf(stderr, "skipped: no 16 TiB of address space here\n");
                CU_PASS("skipped");
                return;
        }
        for (size_t i = 0; i < sizeof(key) / sizeof(float); i++) {
                (&key[0][0][0])[i] = (float)(int32_t)oracle_random(&state) * 0x1p-30f;
                (&value[0][0][0])[i] = (float)(int32_t)oracle_random(&state) * 0x1p-30f;
        }
        for (size_t i = 0; i < sizeof(q) / sizeof(float); i++)
                (&q[0][0])[i] = (float)(int32_t)oracle_random(&state) * 0x1p-30f;
        for (int t = 0; t < TOKENS; t++)
                slots[t] = (int64_t)large.pages[t / PAGE] * PAGE + t % PAGE;

        /* The same numbers in a small pool. */
        oracle_case_init(&plain, &(struct oracle_options){.kv_heads = HEADS,
                                                          .group = 2,
                                                          .key_dim = DIM,
                                                          .page_tokens = PAGE,
                                                          .sequences = 1,
                                                          .kv_len = plain_len});
        memcpy(plain.q, q, sizeof(q));

        FOR_EACH_ISA(isa)
        {
                unsigned misplaced = 0;
                struct kernel_write write = {
                        .kv = large.kv,
                        .layer = LAYER,
                        .tokens = TOKENS,
                        .slot_mapping = slots,
                        .key = key,
                        .value = value,
                        .key_token_stride = sizeof(key[0]),
                        .key_head_stride = sizeof(key[0][0]),
                        .value_token_stride = sizeof(value[0]),
                        .value_head_stride = sizeof(value[0][0]),
                };
                struct kernel_attention attention = plain.args;

                CU_ASSERT_EQUAL_FATAL(kernel_write_check(&write), KERNEL_OK);
                CU_ASSERT_EQUAL(kernel_cpu_kv_write_isa((enum kernel_isa)isa, NULL, &write), 0);
                for (uint32_t t = 0; t < TOKENS; t++) {
                        for (uint32_t h = 0; h < HEADS; h++) {
                                const unsigned char *tile =
                                        expected_tile(&large, large.pages[t / PAGE], LAYER, h);
                                const uint16_t *k =
                                        (const uint16_t *)(const void *)tile + t % PAGE * DIM;
                                const uint16_t *v = k + PAGE * DIM;

                                for (uint32_t d = 0; d < DIM; d++) {
                                        misplaced += k[d] != oracle_f32_to_f16(key[t][h][d]);
                                        misplaced += v[d] != oracle_f32_to_f16(value[t][h][d]);
                                }
                                memcpy(oracle_vector(&plain, 0, t, h, false), k, DIM * 2);
                                memcpy(oracle_vector(&plain, 0, t, h, true), v, DIM * 2);
                        }
                }
                CU_ASSERT_EQUAL(misplaced, 0);

                attention.kv = large.kv;
                attention.layer = LAYER;
                attention.indptr = indptr;
                attention.indices = large.pages;
                attention.kv_len = kv_len;
                attention.out = out;
                attention.lse = lse;
                CU_ASSERT_EQUAL_FATAL(kernel_attention_check(&attention), KERNEL_OK);
                for (int how = BY_DECODE; how <= BY_PREFILL; how++) {
                        kernel_test_run(&plain, (enum kernel_isa)isa, NULL,
                                        (enum kernel_test_how)how);
                        CU_ASSERT_EQUAL(oracle_errors(&plain), 0);
                        memset(out, 0, sizeof(out));
                        if (how == BY_DECODE) {
                                kernel_cpu_attention_decode_isa((enum kernel_isa)isa, NULL,
                                                                &attention);
                        } else {
                                kernel_cpu_attention_prefill_isa((enum kernel_isa)isa, NULL,
                                                                 &attention);
                        }
                        CU_ASSERT(memcmp((const void *)out, (const void *)plain.out, sizeof(out)) ==
                                  0);
                        CU_ASSERT(memcmp((const void *)lse, (const void *)plain.lse, sizeof(lse)) ==
                                  0);
                }
        }
        oracle_case_deinit(&plain);
        munmap(large.memory, POOL_BYTES);
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"C40 page id x stride beyond 2^32", test_c40},
        };

        return kernel_test_main("kernel addresses", tests, COUNT_OF(tests));
}
