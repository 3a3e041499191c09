/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sequence does not own never touches it: bytes of free pages, page tails, other layers and
 * side data are NaN in one run and zero in another, and the results have the same bits. C43: NaN
 * times the zero weight of a masked position is NaN.
 */
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/kernel_test.h"

static struct kernel_pool *pool;

static void expect_same(struct oracle_options *o)
{
        struct oracle_case nan, zero;

        o->poison = ORACLE_POISON_NAN;
        oracle_case_init(&nan, o);
        o->poison = ORACLE_POISON_ZERO;
        oracle_case_init(&zero, o);
        FOR_EACH_ISA(isa)
        {
                for (int how = BY_DECODE; how <= BY_PREFILL; how++) {
                        kernel_test_run(&nan, (enum kernel_isa)isa, pool,
                                        (enum kernel_test_how)how);
                        kernel_test_run(&zero, (enum kernel_isa)isa, pool,
                                        (enum kernel_test_how)how);
                        CU_ASSERT(kernel_test_same_bits(&nan, &zero));
                        CU_ASSERT_EQUAL(oracle_errors(&nan), 0);
                }
        }
        oracle_case_deinit(&nan);
        oracle_case_deinit(&zero);
}

static void test_c43_poison(void)
{
        static const uint32_t kv_len[] = {1, 15, 16, 17, 127, 128, 129, 250, 0};
        static const uint32_t q_len[] = {1, 3, 16, 2, 20, 1, 66, 9, 2};
        static const uint32_t pages[] = {16, 32, 64, 128};
        static const uint32_t dims[][2] = {{64, 64}, {128, 128}, {72, 24}, {40, 88}};

        for (size_t i = 0; i < COUNT_OF(pages); i++) {
                struct oracle_options o = {.kv_heads = 2,
                                           .group = 1 + (uint32_t)i,
                                           .key_dim = dims[i][0],
                                           .value_dim = dims[i][1],
                                           .page_tokens = pages[i],
                                           .sequences = COUNT_OF(kv_len),
                                           .kv_len = kv_len,
                                           .q_len = q_len,
                                           .padding = 2,
                                           .shuffle = true,
                                           .seed = i};

                expect_same(&o);
                o.q_len = NULL;
                o.share = true;
                expect_same(&o);
        }
}

/* A NaN in one sequence's last token: that sequence alone is NaN, and of it only the queries that
 * see the token. */
static void test_c43_one_nan(void)
{
        static const uint32_t kv_len[] = {40, 140, 33};
        static const uint32_t q_len[] = {4, 70, 5};
        struct oracle_options o = {.kv_heads = 2,
                                   .group = 3,
                                   .key_dim = 64,
                                   .page_tokens = 16,
                                   .sequences = 3,
                                   .kv_len = kv_len,
                                   .q_len = q_len};

        for (int in_value = 0; in_value < 2; in_value++) {
                struct oracle_case clean, c;
                uint32_t last;

                oracle_case_init(&clean, &o);
                oracle_case_init(&c, &o);
                oracle_vector(&c, 1, 139, 1, in_value)[17] = 0x7e00;
                last = c.q_indptr[2] - 1;
                FOR_EACH_ISA(isa)
                {
                        for (int how = BY_DECODE; how <= BY_PREFILL; how++) {
                                unsigned touched = 0;

                                kernel_test_run(&clean, (enum kernel_isa)isa, pool,
                                                (enum kernel_test_how)how);
                                kernel_test_run(&c, (enum kernel_isa)isa, pool,
                                                (enum kernel_test_how)how);
                                CU_ASSERT_EQUAL(oracle_errors(&c), 0);
                                for (uint32_t t = 0; t < c.q_tokens; t++) {
                                        for (uint32_t h = 0; h < 6; h++) {
                                                bool sees = t == last && h >= 3;

                                                for (uint32_t d = 0; d < 64; d++) {
                                                        float x = oracle_out(&c, t, h, d);
                                                        bool hit = sees && (!in_value || d == 17);

                                                        touched += hit ? !isnan(x)
                                                                       : x != oracle_out(&clean, t,
                                                                                         h, d);
                                                }
                                        }
                                }
                                CU_ASSERT_EQUAL(touched, 0);
                        }
                }
                oracle_case_deinit(&clean);
                oracle_case_deinit(&c);
        }
}

/* A page whose last token in use ends where the mapping ends: reading a byte further crashes. */
static void test_guard(void)
{
        static const uint32_t dims[] = {8, 24, 64, 72, 128, 200, 256};
        size_t size = (size_t)sysconf(_SC_PAGESIZE);
        size_t room = 64 * size;
        unsigned char *memory =
                mmap(NULL, room + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        CU_ASSERT_FATAL(memory != MAP_FAILED);
        CU_ASSERT_EQUAL_FATAL(mprotect(memory + room, size, PROT_NONE), 0);
        for (size_t i = 0; i < COUNT_OF(dims); i++) {
                for (uint32_t length = 1; length <= 17; length++) {
                        for (uint32_t group = 1; group <= 5; group++) {
                                static float q[5 * 256], out[5 * 256];
                                uint32_t indptr[] = {0, 1}, indices[] = {0};
                                uint32_t bytes = length * dims[i] * 2;
                                struct kernel_attention args = {
                                        .kv = {.page_tokens = 32,
                                               .kv_heads = 1,
                                               .key_dim = dims[i],
                                               .value_dim = dims[i]},
                                        .sequences = 1,
                                        .indptr = indptr,
                                        .indices = indices,
                                        .kv_len = &length,
                                        .q_heads = group,
                                        .scale = 1,
                                        .q = q,
                                        .out = out,
                                        .q_head_stride = 1024,
                                        .out_head_stride = 1024,
                                };

                                /* Once the K tile at the end, once the V tile. */
                                for (int value = 0; value < 2; value++) {
                                        args.kv.base = memory + room - bytes - (value ? 32768 : 0);
                                        args.kv.value_offset = value ? 32768 : -32768;
                                        FOR_EACH_ISA(isa)
                                        CU_ASSERT_EQUAL(kernel_cpu_attention_decode_isa(
                                                                (enum kernel_isa)isa, NULL, &args),
                                                        0);
                                }
                        }
                }
        }
        munmap(memory, room + size);
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"C43 poison in every byte not owned", test_c43_poison},
                {"C43 one NaN", test_c43_one_nan},
                {"nothing read past the last token", test_guard},
        };
        int r;

        if (kernel_pool_new(&pool, 2) != 0)
                return 2;
        r = kernel_test_main("kernel poison", tests, COUNT_OF(tests));
        kernel_pool_free(pool);
        return r;
}
