/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/pool.c and lanes.c; meant to be run under ThreadSanitizer too. */
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "tests/support/kernel_test.h"

#define INDICES 1000

struct counts {
        atomic_uint seen[INDICES];
        unsigned
                plain[INDICES]; /* written without a lock: by one thread each, read after the run */
};

static void count_one(void *arg, size_t i)
{
        struct counts *counts = arg;

        atomic_fetch_add(&counts->seen[i], 1);
        counts->plain[i] += 1;
}

static void expect_counts(const struct counts *counts, size_t count, unsigned each)
{
        unsigned wrong = 0;

        for (size_t i = 0; i < INDICES; i++) {
                unsigned want = i < count ? each : 0;

                wrong += atomic_load(&counts->seen[i]) != want || counts->plain[i] != want;
        }
        CU_ASSERT_EQUAL(wrong, 0);
}

static void test_every_index_once(void)
{
        static const unsigned threads[] = {1, 2, 3, 4, 9};
        static const size_t sizes[] = {0, 1, 2, 3, 4, 5, 100, INDICES};

        for (size_t t = 0; t < COUNT_OF(threads); t++) {
                struct kernel_pool *pool = NULL;

                CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, threads[t]), 0);
                CU_ASSERT_EQUAL(kernel_pool_threads(pool), threads[t]);
                for (size_t s = 0; s < COUNT_OF(sizes); s++) {
                        struct counts counts = {0};

                        kernel_pool_run(pool, count_one, &counts, sizes[s]);
                        expect_counts(&counts, sizes[s], 1);
                }
                CU_ASSERT_PTR_NULL(kernel_pool_free(pool));
        }
}

static void test_no_pool(void)
{
        struct counts counts = {0};

        CU_ASSERT_EQUAL(kernel_pool_threads(NULL), 1);
        kernel_pool_run(NULL, count_one, &counts, 10);
        kernel_pool_run(NULL, count_one, &counts, 0);
        expect_counts(&counts, 10, 1);
        CU_ASSERT_PTR_NULL(kernel_pool_free(NULL));
}

static void test_default_size(void)
{
        struct kernel_pool *pool = NULL;

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 0), 0);
        CU_ASSERT(kernel_pool_threads(pool) >= 1);
        kernel_pool_free(pool);
}

/* Jobs so short that workers come late, when the job is over and its stack frame gone. */
static void test_many_short_jobs(void)
{
        struct kernel_pool *pool = NULL;
        struct counts counts = {0};

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 4), 0);
        for (int i = 0; i < 3000; i++)
                kernel_pool_run(pool, count_one, &counts, 5);
        expect_counts(&counts, 5, 3000);
        kernel_pool_free(pool);
}

static void test_free_at_once(void)
{
        for (int i = 0; i < 50; i++) {
                struct kernel_pool *pool = NULL;

                CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 3), 0);
                kernel_pool_free(pool);
        }
}

struct caller {
        struct kernel_pool *pool;
        struct counts counts;
};

static void *caller_main(void *arg)
{
        struct caller *caller = arg;

        for (int i = 0; i < 200; i++)
                kernel_pool_run(caller->pool, count_one, &caller->counts, 20);
        return NULL;
}

static void test_several_callers(void)
{
        static struct caller callers[4];
        struct kernel_pool *pool = NULL;
        pthread_t threads[4];

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 3), 0);
        for (int i = 0; i < 4; i++) {
                callers[i].pool = pool;
                CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, caller_main, &callers[i]),
                                      0);
        }
        for (int i = 0; i < 4; i++) {
                pthread_join(threads[i], NULL);
                expect_counts(&callers[i].counts, 20, 200);
        }
        kernel_pool_free(pool);
}

/* Blocks until all threads are inside, so each takes exactly one index. */
struct gathering {
        pthread_barrier_t barrier;
        pthread_t caller;
        atomic_uint open_to_term, closed_to_segv, workers;
};

static void look_at_signals(void *arg, size_t i)
{
        struct gathering *gathering = arg;
        sigset_t set;

        (void)i;
        pthread_barrier_wait(&gathering->barrier);
        if (pthread_equal(pthread_self(), gathering->caller))
                return;
        pthread_sigmask(SIG_SETMASK, NULL, &set);
        atomic_fetch_add(&gathering->workers, 1);
        atomic_fetch_add(&gathering->open_to_term, !sigismember(&set, SIGTERM));
        atomic_fetch_add(&gathering->closed_to_segv, sigismember(&set, SIGSEGV) == 1);
}

static void test_signals(void)
{
        struct gathering gathering = {.caller = pthread_self()};
        struct kernel_pool *pool = NULL;
        sigset_t before, after;

        pthread_sigmask(SIG_SETMASK, NULL, &before);
        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 3), 0);
        pthread_sigmask(SIG_SETMASK, NULL, &after);
        CU_ASSERT_EQUAL(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
        pthread_barrier_init(&gathering.barrier, NULL, 3);
        kernel_pool_run(pool, look_at_signals, &gathering, 3);
        pthread_barrier_destroy(&gathering.barrier);
        kernel_pool_free(pool);
        CU_ASSERT_EQUAL(atomic_load(&gathering.workers), 2);
        CU_ASSERT_EQUAL(atomic_load(&gathering.open_to_term), 0);
        CU_ASSERT_EQUAL(atomic_load(&gathering.closed_to_segv), 0);
}

struct lanes {
        atomic_int busy[3];
        atomic_uint wrong;
        struct counts counts;
};

static void lane_one(void *arg, unsigned lane, size_t i)
{
        struct lanes *lanes = arg;

        if (lane >= 3 || atomic_exchange(&lanes->busy[lane], 1) != 0 ||
            fegetround() != FE_TONEAREST)
                atomic_fetch_add(&lanes->wrong, 1);
        else
                count_one(&lanes->counts, i);
        atomic_store(&lanes->busy[lane], 0);
}

static void test_lanes(void)
{
        static struct lanes lanes;
        struct kernel_pool *pool = NULL;

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 4), 0);
        fesetround(FE_UPWARD);
        kernel_lanes_run(pool, 3, lane_one, &lanes, INDICES);
        CU_ASSERT_EQUAL(fegetround(), FE_UPWARD);
        fesetround(FE_TONEAREST);
        expect_counts(&lanes.counts, INDICES, 1);
        kernel_lanes_run(pool, 3, lane_one, &lanes, 0);
        CU_ASSERT_EQUAL(atomic_load(&lanes.wrong), 0);
        kernel_pool_free(pool);
}

/* A decode and a prefill at once on one pool, both cut in many items. */
struct attention_caller {
        struct kernel_pool *pool;
        struct oracle_case c;
        enum kernel_test_how how;
};

static void *attention_main(void *arg)
{
        struct attention_caller *caller = arg;

        for (int i = 0; i < 3; i++)
                FOR_EACH_ISA(isa)
        kernel_test_run(&caller->c, (enum kernel_isa)isa, caller->pool, caller->how);
        return NULL;
}

static void test_attention(void)
{
        const uint32_t kv_len[] = {700, 1, 300};
        const uint32_t q_len[] = {3, 1, 40};
        struct oracle_options options = {.kv_heads = 2,
                                         .group = 4,
                                         .key_dim = 64,
                                         .page_tokens = 16,
                                         .sequences = 3,
                                         .kv_len = kv_len,
                                         .q_len = q_len,
                                         .poison = ORACLE_POISON_NAN};
        struct attention_caller callers[2] = {{.how = BY_DECODE}, {.how = BY_PREFILL}};
        struct kernel_pool *pool = NULL;
        pthread_t thread;

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 3), 0);
        for (int i = 0; i < 2; i++) {
                callers[i].pool = pool;
                oracle_case_init(&callers[i].c, &options);
        }
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, attention_main, &callers[0]), 0);
        attention_main(&callers[1]);
        pthread_join(thread, NULL);
        CU_ASSERT(kernel_test_same_bits(&callers[0].c, &callers[1].c));
        CU_ASSERT_EQUAL(oracle_errors(&callers[0].c), 0);
        for (int i = 0; i < 2; i++)
                oracle_case_deinit(&callers[i].c);
        kernel_pool_free(pool);
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"every index once", test_every_index_once},
                {"no pool", test_no_pool},
                {"one thread per CPU", test_default_size},
                {"many short jobs", test_many_short_jobs},
                {"freed at once", test_free_at_once},
                {"several callers", test_several_callers},
                {"workers' signals", test_signals},
                {"lanes", test_lanes},
                {"decode and prefill at once", test_attention},
        };

        return kernel_test_main("kernel pool", tests, COUNT_OF(tests));
}
