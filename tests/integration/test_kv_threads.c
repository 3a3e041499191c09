/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads on one session: each has sequences and a stream of its own and runs batches on
 * shared pools, with little memory, so that growing, trimming, waiting and AGAIN happen all the
 * time beside the session's own thread. Run it under ThreadSanitizer.
 */
#include <CUnit/Basic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client_test.h"

/*
 * A batch may write later tokens of a page while evacuation copies it on another stream; that copy
 * is thrown away. ThreadSanitizer sees the simulator's memmove (test_kv_evacuate_model.c compares
 * what was copied).
 */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
        return "race:run_copy\n";
}

#define MIB     (UINT64_C(1) << 20)
#define THREADS 4
#define SEQS    4
#define ROUNDS  120

static struct daemon_process *process;

static int start(void)
{
        const struct daemon_options options = {.memory_bytes = 32 * MIB, .frame_bytes = 2 * MIB};

        return daemon_process_start(&process, &options);
}

static int stop(void)
{
        process = daemon_process_free(process);
        return 0;
}

struct shared {
        struct gpumem *session;
        struct gpumem_kv *pools[2];
        struct gpumem_kv_geometry geometry;
        struct client_test_driver driver;
        atomic_uint batches, again, faults;
};

struct worker {
        struct shared *shared;
        uint64_t random;
        pthread_t thread;
        unsigned number;
};

static uint32_t random_below(struct worker *w, uint32_t n)
{
        w->random = w->random * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(((w->random >> 32) * n) >> 32);
}

/* CUnit's assertions are not for several threads: faults are counted and said. */
#define EXPECT(condition)                                                                          \
        do {                                                                                       \
                if (!(condition)) {                                                                \
                        fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,         \
                                gpumem_error_message());                                           \
                        atomic_fetch_add(&w->shared->faults, 1);                                   \
                }                                                                                  \
        } while (0)

/* Host functions stand for kernels: each writes its mark into the tokens of its batch, and looks
 * that the tokens of earlier batches still have theirs. */
struct job {
        struct worker *worker;
        const struct gpumem_batch_view *view;
        unsigned char *base;
        struct gpumem_kv_geometry geometry;
        uint32_t mark;
};

static uint32_t *token_at(const struct job *job, uint32_t page, uint32_t offset)
{
        return (uint32_t *)(void *)(job->base +
                                    (uint64_t)gpumem_page_unit(page, job->geometry.slot_bits) *
                                            (uint64_t)job->geometry.unit_stride +
                                    (uint64_t)gpumem_page_slot(page, job->geometry.slot_bits) *
                                            (uint64_t)job->geometry.page_stride) +
               offset;
}

static void kernel(void *userdata)
{
        struct job *job = userdata;
        struct worker *w = job->worker;
        const struct gpumem_batch_view *view = job->view;

        for (uint32_t s = 0; s < view->sequences; s++) {
                uint32_t fresh = view->q_indptr[s + 1] - view->q_indptr[s];

                for (uint32_t t = 0; t < view->kv_len[s]; t++) {
                        uint32_t page = view->indices[view->indptr[s] + t / 16];
                        uint32_t *token = token_at(job, page, t % 16);

                        if (t + fresh >= view->kv_len[s])
                                *token = job->mark;
                        else
                                EXPECT(*token == job->mark);
                }
        }
        free(job);
}

static void launch(struct worker *w, struct gpumem_batch *batch, unsigned pool, CUstream stream)
{
        struct shared *shared = w->shared;
        struct job *job = calloc(1, sizeof(*job));

        job->worker = w;
        job->view = gpumem_batch_get_view(batch);
        gpumem_kv_get_geometry(shared->pools[pool], &job->geometry);
        job->base = shared->driver.driver->host_view(
                job->geometry.base, job->geometry.units_max * (uint64_t)job->geometry.unit_stride);
        /* One mark a thread: nobody else's batches may ever have written there. */
        job->mark = 0x1000 + w->number;
        EXPECT(shared->driver.driver->launch_host_func(stream, kernel, job) == CUDA_SUCCESS);
}

static void *work(void *userdata)
{
        struct worker *w = userdata;
        struct shared *shared = w->shared;
        const struct driver *driver = shared->driver.driver;
        unsigned pool = w->number % 2;
        struct gpumem_kv *kv = shared->pools[pool];
        gpumem_seq seqs[SEQS], fork;
        struct gpumem_kv_stats stats;
        struct gpumem_info info;
        CUcontext context;
        CUstream stream;

        EXPECT(driver->ctx_push_current(shared->driver.context) == CUDA_SUCCESS);
        EXPECT(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        for (int i = 0; i < SEQS; i++)
                EXPECT(gpumem_seq_create(kv, &seqs[i]) == 0);
        for (int round = 0; round < ROUNDS; round++) {
                uint32_t each[SEQS], count = 1 + random_below(w, SEQS);
                struct gpumem_batch *batch;
                int r;

                for (uint32_t i = 0; i < count; i++)
                        each[i] = random_below(w, 4000);
                r = gpumem_batch_begin(kv, seqs, count, each, stream, random_below(w, 20), &batch);
                EXPECT(r == 0 || r == GPUMEM_E_AGAIN);
                if (r == 0) {
                        launch(w, batch, pool, stream);
                        if (random_below(w, 8) == 0)
                                EXPECT(gpumem_safe_point(shared->session) == 0);
                        EXPECT(gpumem_batch_end(batch, stream) == 0);
                        atomic_fetch_add(&shared->batches, 1);
                } else {
                        atomic_fetch_add(&shared->again, 1);
                        for (uint32_t i = 0; i < SEQS; i++)
                                if (random_below(w, 2))
                                        EXPECT(gpumem_seq_truncate(kv, seqs[i], 0) == 0);
                }
                switch (random_below(w, 6)) {
                case 0: {
                        uint32_t i = random_below(w, SEQS), length;

                        EXPECT(gpumem_seq_length(kv, seqs[i], &length) == 0);
                        EXPECT(gpumem_seq_truncate(kv, seqs[i], length / 2) == 0);
                        break;
                }
                case 1: {
                        uint32_t i = random_below(w, SEQS);

                        EXPECT(gpumem_seq_free(kv, seqs[i]) == 0);
                        EXPECT(gpumem_seq_create(kv, &seqs[i]) == 0);
                        break;
                }
                case 2: {
                        uint32_t i = random_below(w, SEQS);

                        r = gpumem_seq_fork(kv, seqs[i], stream, &fork);
                        EXPECT(r == 0 || r == GPUMEM_E_AGAIN);
                        if (r == 0) {
                                EXPECT(gpumem_seq_free(kv, seqs[i]) == 0);
                                seqs[i] = fork;
                        }
                        break;
                }
                case 3:
                        EXPECT(gpumem_kv_trim(kv, NULL) == 0);
                        break;
                case 4:
                        EXPECT(gpumem_kv_get_stats(kv, &stats) == 0);
                        EXPECT(stats.granted_bytes <= 32 * MIB);
                        EXPECT(gpumem_get_info(shared->session, &info) == 0);
                        break;
                }
        }
        for (int i = 0; i < SEQS; i++)
                EXPECT(gpumem_seq_free(kv, seqs[i]) == 0);
        EXPECT(driver->stream_synchronize(stream) == CUDA_SUCCESS);
        EXPECT(driver->stream_destroy(stream) == CUDA_SUCCESS);
        driver->ctx_pop_current(&context);
        return NULL;
}

static void run_threads(bool gated)
{
        struct gpumem_kv_options options = client_test_kv_options();
        struct worker workers[THREADS];
        struct shared shared = {0};
        struct gpumem_kv_stats stats;

        shared.session = client_test_connect(process, "threads");
        if (gated)
                client_test_gate_mappings(shared.session);
        CU_ASSERT_EQUAL_FATAL(client_test_driver_open(&shared.driver), 0);
        options.reserve_units = 1;
        options.idle_trim_ms = 20;
        options.max_sequence_tokens = 1 << 20;
        for (int i = 0; i < 2; i++)
                CLIENT_TEST_OK(gpumem_kv_create(shared.session, &options, &shared.pools[i]));
        for (unsigned i = 0; i < THREADS; i++) {
                workers[i] = (struct worker){.shared = &shared, .random = i + 17, .number = i};
                CU_ASSERT_EQUAL_FATAL(pthread_create(&workers[i].thread, NULL, work, &workers[i]),
                                      0);
        }
        for (unsigned i = 0; i < THREADS; i++)
                pthread_join(workers[i].thread, NULL);
        CU_ASSERT_EQUAL(atomic_load(&shared.faults), 0);
        printf("%u batches, %u times short of memory ", atomic_load(&shared.batches),
               atomic_load(&shared.again));
        /* Where mappings are gated, somebody's pin is in the way most of the time here. */
        CU_ASSERT(atomic_load(&shared.batches) > (gated ? 0 : THREADS * ROUNDS / 20));
        for (int i = 0; i < 2; i++) {
                CLIENT_TEST_OK(gpumem_kv_get_stats(shared.pools[i], &stats));
                CU_ASSERT_EQUAL(stats.pages_used, 0);
                CU_ASSERT_EQUAL(stats.pages_retiring, 0);
                CU_ASSERT_EQUAL(stats.pins, 0);
                CU_ASSERT_EQUAL(stats.tokens, 0);
                CLIENT_TEST_OK(gpumem_kv_free(shared.pools[i]));
        }
        CU_ASSERT_EQUAL(client_test_session_bytes(shared.session), 0);
        CU_ASSERT_EQUAL(client_test_driver_close(&shared.driver), 0);
        gpumem_disconnect(shared.session);
        client_test_check(process);
}

static void test_threads(void)
{
        run_threads(false);
}

/* C05: on a device whose mappings may not change beside kernels they change between them only. */
static void test_threads_gated(void)
{
        run_threads(true);
}

/* Threads that come and go with sessions of their own, while others work. */
static void *connect_often(void *userdata)
{
        atomic_uint *faults = userdata;
        struct gpumem_kv_options options = client_test_kv_options();

        options.reserve_units = 1;
        for (int i = 0; i < 15; i++) {
                struct gpumem_options connect = {.size = sizeof(connect),
                                                 .socket_path =
                                                         daemon_process_client_socket(process),
                                                 .driver = GPUMEM_DRIVER_SIMULATOR};
                char library[4096];
                struct gpumem *session;
                struct gpumem_kv *kv;
                gpumem_seq seq;
                int r;

                daemon_process_product("libcuda-sim.so", library, sizeof(library));
                connect.driver_library = library;
                if (gpumem_connect(&session, &connect) < 0 ||
                    gpumem_kv_create(session, &options, &kv) < 0 ||
                    gpumem_seq_create(kv, &seq) < 0) {
                        atomic_fetch_add(faults, 1);
                        continue;
                }
                r = gpumem_seq_append(kv, seq, 20, NULL, 1000);
                if (r != 0 && r != GPUMEM_E_AGAIN)
                        atomic_fetch_add(faults, 1);
                gpumem_disconnect(session);
        }
        return NULL;
}

static void test_sessions(void)
{
        pthread_t threads[THREADS];
        atomic_uint faults = 0;

        for (int i = 0; i < THREADS; i++)
                CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, connect_often, &faults), 0);
        for (int i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        CU_ASSERT_EQUAL(atomic_load(&faults), 0);
        client_test_check(process);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: threads", start, stop);
        CU_add_test(suite, "four threads, two pools, little memory", test_threads);
        CU_add_test(suite, "C05 the same where mappings are gated", test_threads_gated);
        CU_add_test(suite, "sessions come and go", test_sessions);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
