/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences against a model, while another thread makes pages move all the time. Every token of a
 * sequence is a number, written on the stream in all layers of its page; the model is a plain array
 * of them. What batches read on the stream, overlapping, must be what the model says, whatever was
 * forked, truncated, freed and evacuated meanwhile. The seed is printed; GPUMEM_TEST_SEED repeats.
 */
#include <CUnit/Basic.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/kv_evacuate.h"
#include "tests/support/client_test.h"

#define MIB       (UINT64_C(1) << 20)
#define LAYERS    4u
#define SEQUENCES 40u
#define TOKENS    100u /* most in a sequence */
#define BATCH     6u   /* most sequences in a batch */
#define WORDS     8192u
#define STEPS     1500

/*
 * A batch that begins while pages are copied may write further tokens into one of them, on its own
 * stream. The copy then reads what is being written, and is thrown away: no race that matters, on a
 * device. ThreadSanitizer sees the simulator's memmove; what was copied is compared all the same.
 */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
        return "race:run_copy\n";
}

static struct daemon_process *process;
static struct client_test_driver driver;

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

struct model {
        gpumem_seq seq; /* 0: not alive */
        uint32_t tokens;
        uint64_t values[TOKENS];
};

struct world {
        struct gpumem *session;
        struct gpumem_kv *kv;
        struct gpumem_kv_geometry geometry;
        struct model models[SEQUENCES];
        uint64_t random;

        /* What copies on the stream read from and write to, until it is synchronised. */
        uint64_t words[WORDS], expected[WORDS];
        bool is_read[WORDS];
        uint32_t used;
        uint64_t read, wrong, next_value;

        uint64_t trim_random; /* the trimming thread's */
        atomic_bool stop;
        atomic_uint trims, failed_trims;
};

static uint32_t below(uint64_t *random, uint32_t n)
{
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(((*random >> 32) * n) >> 32);
}

static CUdeviceptr place_of(const struct world *w, uint32_t page, uint32_t layer, uint32_t token)
{
        return kv_page_address(w->kv, page) + layer * (uint64_t)w->geometry.layer_stride +
               token % 16 * ((uint64_t)w->geometry.page_stride / 16);
}

/* The stream to its end, and all that was read on it compared. */
static void settle(struct world *w)
{
        client_test_synchronize(&driver);
        for (uint32_t i = 0; i < w->used; i++) {
                w->read += w->is_read[i];
                w->wrong += w->is_read[i] && w->words[i] != w->expected[i];
        }
        w->used = 0;
}

static void write_token(struct world *w, uint32_t page, uint32_t token, uint64_t value)
{
        w->is_read[w->used] = false;
        w->words[w->used] = value;
        for (uint32_t layer = 0; layer < LAYERS; layer++)
                CU_ASSERT_EQUAL(driver.driver->memcpy_htod_async(place_of(w, page, layer, token),
                                                                 &w->words[w->used], 8,
                                                                 driver.stream),
                                CUDA_SUCCESS);
        w->used++;
}

static void read_token(struct world *w, uint32_t page, uint32_t token, uint64_t value)
{
        w->is_read[w->used] = true;
        w->expected[w->used] = value;
        w->words[w->used] = 0;
        CU_ASSERT_EQUAL(driver.driver->memcpy_dtoh_async(
                                &w->words[w->used],
                                place_of(w, page, below(&w->random, LAYERS), token), 8,
                                driver.stream),
                        CUDA_SUCCESS);
        w->used++;
}

/* One batch: new tokens are written, then every token of every member is read. */
static void run_batch(struct world *w, struct model *const *members, uint32_t count,
                      const uint32_t *each)
{
        const struct gpumem_batch_view *view;
        struct gpumem_batch *batch = NULL;
        gpumem_seq seqs[BATCH];
        bool cancel = below(&w->random, 12) == 0;
        int r = GPUMEM_E_AGAIN;

        if (w->used + BATCH * 2 * TOKENS > WORDS)
                settle(w);
        for (uint32_t i = 0; i < count; i++)
                seqs[i] = members[i]->seq;
        for (int i = 0; i < 200 && r == GPUMEM_E_AGAIN; i++) {
                r = gpumem_batch_begin(w->kv, seqs, count, each, driver.stream, 0, &batch);
                if (r == GPUMEM_E_AGAIN) {
                        settle(w);
                        client_test_pause_ms(2);
                }
        }
        CLIENT_TEST_OK(r);
        view = gpumem_batch_get_view(batch);
        for (uint32_t i = 0; i < count; i++) {
                const uint32_t *pages = view->indices + view->indptr[i];
                uint64_t values[TOKENS];

                memcpy(values, members[i]->values, sizeof(values));
                CU_ASSERT_EQUAL_FATAL(view->kv_len[i], members[i]->tokens + each[i]);
                for (uint32_t t = members[i]->tokens; t < view->kv_len[i]; t++) {
                        values[t] = ++w->next_value;
                        write_token(w, pages[t / 16], t, values[t]);
                }
                for (uint32_t t = 0; t < view->kv_len[i]; t++)
                        read_token(w, pages[t / 16], t, values[t]);
                if (cancel)
                        continue;
                memcpy(members[i]->values, values, sizeof(values));
                members[i]->tokens = view->kv_len[i];
        }
        /* Held a while: pages move beside open batches as well. */
        if (below(&w->random, 8) == 0)
                nanosleep(&(struct timespec){.tv_nsec = 1000 * (long)below(&w->random, 2000)},
                          NULL);
        CLIENT_TEST_OK((cancel ? gpumem_batch_cancel : gpumem_batch_end)(batch, driver.stream));
}

static struct model *unused(struct world *w)
{
        for (uint32_t i = 0; i < SEQUENCES; i++)
                if (!w->models[i].seq)
                        return &w->models[i];
        return NULL;
}

static void step(struct world *w)
{
        struct model *m = &w->models[below(&w->random, SEQUENCES)], *other = unused(w);
        struct model *members[BATCH];
        uint32_t each[BATCH], count = 0;
        int r;

        switch (below(&w->random, 12)) {
        case 0:
        case 1:
                if (other) {
                        CLIENT_TEST_OK(gpumem_seq_create(w->kv, &other->seq));
                        other->tokens = 0;
                }
                return;
        case 2:
                if (m->seq)
                        CLIENT_TEST_OK(gpumem_seq_free(w->kv, m->seq));
                m->seq = 0;
                return;
        case 3:
                if (!m->seq || !other)
                        return;
                r = gpumem_seq_fork(w->kv, m->seq, driver.stream, &other->seq);
                if (r == GPUMEM_E_AGAIN)
                        return;
                CLIENT_TEST_OK(r);
                other->tokens = m->tokens;
                memcpy(other->values, m->values, sizeof(m->values));
                return;
        case 4:
                if (m->seq) {
                        m->tokens = below(&w->random, m->tokens + 1);
                        CLIENT_TEST_OK(gpumem_seq_truncate(w->kv, m->seq, m->tokens));
                }
                return;
        case 5:
                settle(w);
                /* Idle for a moment, now and then. */
                if (below(&w->random, 4) == 0)
                        client_test_pause_ms(3);
                return;
        default:
                for (uint32_t i = 0; i < SEQUENCES && count < BATCH; i++) {
                        uint32_t n = below(&w->random, 3) ? 1 : below(&w->random, 30);

                        if (!w->models[i].seq || below(&w->random, 4) ||
                            w->models[i].tokens + n > TOKENS)
                                continue;
                        members[count] = &w->models[i];
                        each[count++] = n;
                }
                if (count > 0)
                        run_batch(w, members, count, each);
        }
}

static void *keep_trimming(void *userdata)
{
        struct world *w = userdata;
        uint64_t random = w->trim_random, bytes;

        while (!atomic_load(&w->stop)) {
                int r = gpumem_kv_trim(w->kv, &bytes);

                atomic_fetch_add(&w->trims, 1);
                if (r != 0) {
                        fprintf(stderr, "trim: %s: %s\n", gpumem_error_name(r),
                                gpumem_error_message());
                        atomic_fetch_add(&w->failed_trims, 1);
                }
                nanosleep(&(struct timespec){.tv_nsec = 1000 * (long)below(&random, 3000)}, NULL);
        }
        return NULL;
}

static void run_world(uint64_t seed, const char *gated)
{
        struct gpumem_kv_options options = client_test_kv_options();
        struct world *w = calloc(1, sizeof(*w));
        struct gpumem_kv_stats stats;
        pthread_t thread;

        CU_ASSERT_PTR_NOT_NULL_FATAL(w);
        w->random = seed;
        w->trim_random = seed ^ 0x5deece66d;
        w->session = client_test_connect(process, "model");
        if (gated)
                client_test_gate_mappings(w->session);
        options.layers = LAYERS;
        options.kv_heads = 4;
        options.key_dim = options.value_dim = 128;
        options.max_sequences = SEQUENCES;
        options.max_sequence_tokens = TOKENS;
        options.max_bytes = 56 * MIB;
        CLIENT_TEST_OK(gpumem_kv_create(w->session, &options, &w->kv));
        gpumem_kv_get_geometry(w->kv, &w->geometry);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, keep_trimming, w), 0);
        for (int i = 0; i < STEPS; i++) {
                step(w);
                if (i % 100 == 0) {
                        lock_take(&w->kv->lock, LOCK_POOL);
                        CU_ASSERT_EQUAL(page_allocator_check(&w->kv->pages), 0);
                        lock_release(&w->kv->lock);
                }
        }
        settle(w);
        atomic_store(&w->stop, true);
        pthread_join(thread, NULL);
        /* All of it once more, at rest. */
        for (uint32_t i = 0; i < SEQUENCES; i++) {
                struct model *m = &w->models[i];
                uint32_t none = 0;

                if (m->seq)
                        run_batch(w, &m, 1, &none);
        }
        settle(w);
        CU_ASSERT_EQUAL(w->wrong, 0);
        CU_ASSERT_EQUAL(atomic_load(&w->failed_trims), 0);
        CU_ASSERT(w->kv->pages_moved > 0);
        for (uint32_t i = 0; i < SEQUENCES; i++)
                if (w->models[i].seq)
                        CLIENT_TEST_OK(gpumem_seq_free(w->kv, w->models[i].seq));
        CLIENT_TEST_OK(gpumem_kv_get_stats(w->kv, &stats));
        CU_ASSERT_EQUAL(stats.pages_used, 0);
        CU_ASSERT_EQUAL(w->kv->pages.pages_closed, 0);
        CU_ASSERT_EQUAL(page_allocator_check(&w->kv->pages), 0);
        printf("seed %" PRIu64 ": %" PRIu64 " tokens read, %" PRIu64 " wrong, %" PRIu64
               " pages moved in %u trims; ",
               seed, w->read, w->wrong, w->kv->pages_moved, atomic_load(&w->trims));
        fflush(stdout);
        CLIENT_TEST_OK(gpumem_kv_free(w->kv));
        gpumem_disconnect(w->session);
        free(w);
        client_test_check(process);
}

static uint64_t seed_of_the_day(void)
{
        const char *word = getenv("GPUMEM_TEST_SEED");

        return word ? strtoull(word, NULL, 0) : client_test_now_ms();
}

static void test_seeds(void)
{
        static const uint64_t seeds[] = {1, 2};

        for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++)
                run_world(seeds[i], NULL);
        run_world(seed_of_the_day(), NULL);
}

/* Where mappings may not change beside kernels. */
static void test_gated(void)
{
        run_world(3, "gated");
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: evacuation against a model", start, stop);
        CU_add_test(suite, "C23, C26 random steps while pages move", test_seeds);
        CU_add_test(suite, "mappings that may not change beside kernels", test_gated);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
