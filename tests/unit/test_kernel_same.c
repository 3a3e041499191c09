/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The determinism contract of kernels.h: a row has the same bits whoever computed it, in whatever
 * company, on any number of threads, from pages of any size.
 */
#include <fenv.h>
#include <stdlib.h>

#include "tests/support/kernel_test.h"

#define SEQUENCES 5
static const uint32_t kv_len[SEQUENCES] = {300, 1, 129, 640, 31};
static const uint32_t q_len[SEQUENCES] = {140, 1, 40, 3, 31};

static struct oracle_options usual(uint32_t group, uint32_t key_dim, uint32_t value_dim)
{
        return (struct oracle_options){.kv_heads = 2,
                                       .group = group,
                                       .key_dim = key_dim,
                                       .value_dim = value_dim,
                                       .page_tokens = 16,
                                       .sequences = SEQUENCES,
                                       .kv_len = kv_len,
                                       .q_len = q_len,
                                       .poison = ORACLE_POISON_NAN,
                                       .seed = 99};
}

static const struct {
        uint32_t group, key_dim, value_dim;
} shapes[] = {{4, 128, 128}, {1, 64, 64}, {3, 72, 40}, {7, 16, 24}, {2, 256, 16}};

static void run_with(struct oracle_case *c, enum kernel_isa isa, unsigned threads,
                     enum kernel_test_how how)
{
        struct kernel_pool *pool = NULL;

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, threads), 0);
        kernel_test_run(c, isa, pool, how);
        kernel_pool_free(pool);
}

static void test_decode_and_prefill(void)
{
        for (size_t i = 0; i < COUNT_OF(shapes); i++) {
                struct oracle_options o =
                        usual(shapes[i].group, shapes[i].key_dim, shapes[i].value_dim);
                struct oracle_case a, b;

                oracle_case_init(&a, &o);
                oracle_case_init(&b, &o);
                FOR_EACH_ISA(isa)
                {
                        kernel_test_run(&a, (enum kernel_isa)isa, NULL, BY_DECODE);
                        kernel_test_run(&b, (enum kernel_isa)isa, NULL, BY_PREFILL);
                        CU_ASSERT(kernel_test_same_bits(&a, &b));
                }
                oracle_case_deinit(&a);
                oracle_case_deinit(&b);
        }
}

static void test_threads(void)
{
        static const unsigned threads[] = {2, 4, 16};
        struct oracle_options o = usual(4, 64, 64);
        struct oracle_case a, b;

        oracle_case_init(&a, &o);
        oracle_case_init(&b, &o);
        FOR_EACH_ISA(isa)
        {
                run_with(&a, (enum kernel_isa)isa, 1, BY_DECODE);
                for (size_t i = 0; i < COUNT_OF(threads); i++) {
                        for (int how = BY_DECODE; how <= BY_PREFILL; how++) {
                                run_with(&b, (enum kernel_isa)isa, threads[i],
                                         (enum kernel_test_how)how);
                                CU_ASSERT(kernel_test_same_bits(&a, &b));
                        }
                }
        }
        oracle_case_deinit(&a);
        oracle_case_deinit(&b);
}

/* One long sequence and many threads: its partials are split, its heads are split. */
static void test_threads_one_sequence(void)
{
        static const uint32_t length[] = {3000};
        static const unsigned threads[] = {2, 3, 4, 7, 32};
        struct oracle_options o = {.kv_heads = 4,
                                   .group = 2,
                                   .key_dim = 64,
                                   .page_tokens = 32,
                                   .sequences = 1,
                                   .kv_len = length,
                                   .poison = ORACLE_POISON_NAN};
        struct oracle_case a, b;

        oracle_case_init(&a, &o);
        oracle_case_init(&b, &o);
        FOR_EACH_ISA(isa)
        {
                run_with(&a, (enum kernel_isa)isa, 1, BY_DECODE);
                CU_ASSERT_EQUAL(oracle_errors(&a), 0);
                for (size_t i = 0; i < COUNT_OF(threads); i++) {
                        for (int how = BY_DECODE; how <= BY_PREFILL; how++) {
                                run_with(&b, (enum kernel_isa)isa, threads[i],
                                         (enum kernel_test_how)how);
                                CU_ASSERT(kernel_test_same_bits(&a, &b));
                        }
                }
        }
        oracle_case_deinit(&a);
        oracle_case_deinit(&b);
}

/* 1024 tokens a page: every sequence is contiguous. */
static void test_page_sizes(void)
{
        static const uint32_t pages[] = {32, 64, 128, 1024, 1, 24};
        struct oracle_options o = usual(3, 72, 40);
        struct oracle_case a;

        oracle_case_init(&a, &o);
        o.shuffle = true;
        FOR_EACH_ISA(isa)
        {
                kernel_test_run(&a, (enum kernel_isa)isa, NULL, BY_DECODE);
                for (size_t i = 0; i < COUNT_OF(pages); i++) {
                        struct oracle_case b;

                        o.page_tokens = pages[i];
                        oracle_case_init(&b, &o);
                        kernel_test_run(&b, (enum kernel_isa)isa, NULL, BY_DECODE);
                        CU_ASSERT(kernel_test_same_bits(&a, &b));
                        if (pages[i] == 64 || pages[i] == 24) {
                                kernel_test_run(&b, (enum kernel_isa)isa, NULL, BY_PREFILL);
                                CU_ASSERT(kernel_test_same_bits(&a, &b));
                        }
                        oracle_case_deinit(&b);
                }
        }
        oracle_case_deinit(&a);
}

/* Rows of sequence b in a must be the first of `part`, a case of that sequence (up to some length)
 * alone. */
static void expect_rows(const struct oracle_case *whole, uint32_t first,
                        const struct oracle_case *part)
{
        size_t row_out = (size_t)whole->args.out_token_stride;
        size_t row_lse = whole->args.q_heads * sizeof(float);

        CU_ASSERT(memcmp((char *)whole->out + first * row_out, part->out, oracle_out_bytes(part)) ==
                  0);
        CU_ASSERT(memcmp((char *)whole->lse + first * row_lse, part->lse, oracle_lse_bytes(part)) ==
                  0);
}

static void test_batch_of_one(void)
{
        struct oracle_options o = usual(4, 64, 64);
        struct oracle_case all;

        oracle_case_init(&all, &o);
        FOR_EACH_ISA(isa)
        {
                kernel_test_run(&all, (enum kernel_isa)isa, NULL, BY_PREFILL);
                for (uint32_t b = 0; b < SEQUENCES; b++) {
                        struct oracle_options one = o;
                        struct oracle_case alone;

                        one.sequences = 1;
                        one.kv_len = kv_len + b;
                        one.q_len = q_len + b;
                        one.names = &b;
                        oracle_case_init(&alone, &one);
                        for (int how = BY_DECODE; how <= BY_PREFILL; how++) {
                                run_with(&alone, (enum kernel_isa)isa, 2,
                                         (enum kernel_test_how)how);
                                expect_rows(&all, all.q_indptr[b], &alone);
                        }
                        oracle_case_deinit(&alone);
                }
        }
        oracle_case_deinit(&all);
}

/* The prompt in chunks of some size, or token by token by decode, as the cache grows. */
static void test_chunks(void)
{
        static const uint32_t chunks[] = {1, 37, 64, 128, 299};
        static const uint32_t length = 300;
        struct oracle_options o = {.kv_heads = 2,
                                   .group = 2,
                                   .key_dim = 64,
                                   .page_tokens = 16,
                                   .sequences = 1,
                                   .kv_len = &length,
                                   .q_len = &length,
                                   .poison = ORACLE_POISON_NAN};
        struct oracle_case whole;

        oracle_case_init(&whole, &o);
        FOR_EACH_ISA(isa)
        {
                kernel_test_run(&whole, (enum kernel_isa)isa, NULL, BY_PREFILL);
                for (size_t i = 0; i < COUNT_OF(chunks); i++) {
                        for (uint32_t done = 0; done < length; done += chunks[i]) {
                                uint32_t n = length - done < chunks[i] ? length - done : chunks[i];
                                uint32_t end = done + n;
                                struct oracle_options part = o;
                                struct oracle_case c;

                                /* Single tokens: the first few, and around the end of a partial. */
                                if (chunks[i] == 1 && done > 3 && (done < 120 || done > 136))
                                        continue;
                                part.kv_len = &end;
                                part.q_len = n == 1 ? NULL : &n;
                                oracle_case_init(&c, &part);
                                kernel_test_run(&c, (enum kernel_isa)isa, NULL,
                                                n == 1 ? BY_DECODE : BY_PREFILL);
                                expect_rows(&whole, done, &c);
                                oracle_case_deinit(&c);
                        }
                }
        }
        oracle_case_deinit(&whole);
}

/* A program that rounds upwards gets the results of one that does not. */
static void test_environment(void)
{
        struct oracle_options o = usual(2, 64, 64);
        struct oracle_case a, b;

        oracle_case_init(&a, &o);
        oracle_case_init(&b, &o);
        FOR_EACH_ISA(isa)
        {
                run_with(&a, (enum kernel_isa)isa, 1, BY_DECODE);
                fesetround(FE_UPWARD);
                run_with(&b, (enum kernel_isa)isa, 2, BY_PREFILL);
                fesetround(FE_TONEAREST);
                CU_ASSERT(kernel_test_same_bits(&a, &b));
        }
        oracle_case_deinit(&a);
        oracle_case_deinit(&b);
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"decode and prefill", test_decode_and_prefill},
                {"numbers of threads", test_threads},
                {"numbers of threads, one sequence", test_threads_one_sequence},
                {"page sizes, contiguous", test_page_sizes},
                {"alone and in a batch", test_batch_of_one},
                {"chunks of a prompt", test_chunks},
                {"rounding mode of the program", test_environment},
        };

        return kernel_test_main("kernel determinism", tests, COUNT_OF(tests));
}
