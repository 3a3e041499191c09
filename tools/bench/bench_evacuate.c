/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory comes back, and how soon, from an engine whose pool holds one live page in each
 * of its units, when other sessions ask for everything that is free, all at once.
 *
 * Expected before measuring: the daemon asks at once, the library's thread copies one page a unit
 * (some 64 KiB each, one round of copies for all), and gives back 64 units a message: a few
 * milliseconds for the copies, and some 50 us of unmapping for each unit. All of it but the last
 * unit's free pages comes back; 95 % is the mark. Content is compared afterwards.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libclient/context_scope.h"
#include "libclient/kv.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_daemon.h"

#define FRAME_BYTES (UINT64_C(2) << 20)
#define PAGE_TOKENS 16
#define TAKERS_MAX  8
#define WAIT_NS     UINT64_C(1000000000)

struct engine {
        struct gpumem *session;
        struct gpumem_kv *kv;
        struct gpumem_kv_geometry geometry;
        CUstream stream;
        gpumem_seq *seqs; /* 0: freed */
        uint32_t count;
};

static uint64_t *first_word(const struct engine *e, uint32_t page)
{
        return e->session->driver->host_view(kv_page_address(e->kv, page),
                                             (size_t)e->geometry.page_stride);
}

/* The page of a sequence, through a batch; what it holds becomes, or is compared with, `mark`. */
static int with_page(struct engine *e, uint32_t i, uint32_t tokens, uint32_t *page, bool *same)
{
        struct gpumem_batch *batch;
        int error = gpumem_batch_begin(e->kv, &e->seqs[i], 1, &tokens, e->stream, 5000, &batch);

        if (error < 0)
                return error;
        *page = gpumem_batch_get_view(batch)->indices[0];
        if (tokens > 0)
                *first_word(e, *page) = UINT64_C(0x9e3779b97f4a7c15) * (i + 1);
        *same = *first_word(e, *page) == UINT64_C(0x9e3779b97f4a7c15) * (i + 1);
        error = gpumem_batch_end(batch, e->stream);
        if (error == 0 && e->session->driver->stream_synchronize(e->stream) != CUDA_SUCCESS)
                error = GPUMEM_E_DEVICE;
        return error;
}

/* Fills `units` units with sequences of a page each and frees all but one in each unit. */
static int make_sparse(struct engine *e, uint32_t units)
{
        uint8_t *kept = calloc(e->geometry.units_max, 1);
        int error = kept ? 0 : -ENOMEM;

        e->count = units * e->geometry.pages_per_unit;
        e->seqs = calloc(e->count, sizeof(*e->seqs));
        if (!e->seqs)
                error = -ENOMEM;
        for (uint32_t i = 0; error == 0 && i < e->count; i++) {
                uint32_t page;
                bool same;

                error = gpumem_seq_create(e->kv, &e->seqs[i]);
                if (error == 0)
                        error = with_page(e, i, PAGE_TOKENS, &page, &same);
        }
        for (uint32_t i = 0; error == 0 && i < e->count; i++) {
                uint32_t page;
                bool same;

                error = with_page(e, i, 0, &page, &same);
                if (error < 0 || !kept[gpumem_page_unit(page, e->geometry.slot_bits)]++)
                        continue;
                error = gpumem_seq_free(e->kv, e->seqs[i]);
                e->seqs[i] = 0;
        }
        free(kept);
        return error;
}

static int count_changed(struct engine *e, uint32_t *changed)
{
        int error = 0;

        *changed = 0;
        for (uint32_t i = 0; error == 0 && i < e->count; i++) {
                uint32_t page;
                bool same = true;

                if (e->seqs[i] == 0)
                        continue;
                error = with_page(e, i, 0, &page, &same);
                *changed += !same;
        }
        return error;
}

struct figures {
        uint64_t free_bytes, returned_bytes, granted_bytes;
        double seconds; /* until 95 % were returned; 0 if never */
        uint32_t changed;
};

/* Watches what the pool has given back, from a thread of its own. */
struct watch {
        struct gpumem_kv *kv;
        struct figures *figures;
        uint64_t start;
        atomic_bool stop;
};

static void *watch_pool(void *userdata)
{
        struct watch *watch = userdata;
        struct figures *figures = watch->figures;
        struct gpumem_kv_stats stats;
        uint64_t before;

        gpumem_kv_get_stats(watch->kv, &stats);
        before = stats.granted_bytes;
        watch->start = bench_now_ns();
        while (!atomic_load(&watch->stop) && bench_now_ns() - watch->start < WAIT_NS) {
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
                gpumem_kv_get_stats(watch->kv, &stats);
                figures->returned_bytes = before - stats.granted_bytes;
                if (figures->seconds == 0 &&
                    figures->returned_bytes >= figures->free_bytes / 100 * 95)
                        figures->seconds = (double)(bench_now_ns() - watch->start) / 1e9;
        }
        return NULL;
}

/* One of the sessions that together ask for all there is: each for what one grant can carry. */
struct taker {
        const struct gpumem_options *options;
        uint64_t deadline_ns;
        uint32_t frames, got;
        int error;
        pthread_t thread;
};

static void *take(void *userdata)
{
        struct taker *taker = userdata;
        struct granted_list list = STAILQ_HEAD_INITIALIZER(list);
        struct gpumem *session = NULL;
        uint32_t chunk = taker->frames;
        uint64_t object;
        int error = gpumem_connect(&session, taker->options);

        if (error == 0)
                error = session_object_create(session, GPUMEM_OBJECT_BUFFER, 1, taker->frames,
                                              "all", &object);
        /* What is not there when the time is over is taken in smaller pieces. */
        while (error == 0 && taker->got < taker->frames && chunk > 0) {
                uint32_t left = taker->frames - taker->got;
                uint32_t frames = left < chunk ? left : chunk;

                error = granted_request(session, object, 1, frames, taker->deadline_ns, &list);
                if (error == 0)
                        taker->got += frames;
                if (error != GPUMEM_E_AGAIN)
                        continue;
                error = 0;
                chunk = frames / 2;
        }
        taker->error = error;
        if (session && error == 0)
                taker->error = granted_return(session, object, &list);
        granted_list_free(&list);
        gpumem_disconnect(session);
        return NULL;
}

/* Others ask for everything, all at once. */
static int take_all(const struct gpumem_options *options, uint64_t free_bytes,
                    struct figures *figures)
{
        uint32_t left = (uint32_t)(free_bytes / FRAME_BYTES);
        struct taker takers[TAKERS_MAX] = {{.options = NULL}};
        uint32_t count = 0;
        int error = 0;

        for (; left > 0 && count < TAKERS_MAX; count++) {
                takers[count] = (struct taker){
                        .options = options,
                        .deadline_ns = bench_now_ns() + WAIT_NS,
                        .frames = left < GPUMEM_MESSAGE_FDS_MAX ? left : GPUMEM_MESSAGE_FDS_MAX,
                };
                if (pthread_create(&takers[count].thread, NULL, take, &takers[count]) != 0) {
                        error = -EAGAIN;
                        break;
                }
                left -= takers[count].frames;
        }
        for (uint32_t i = 0; i < count; i++) {
                pthread_join(takers[i].thread, NULL);
                figures->granted_bytes += takers[i].got * FRAME_BYTES;
                if (takers[i].error < 0)
                        error = takers[i].error;
        }
        return error;
}

static int measure(struct engine *e, const struct gpumem_options *options, uint32_t units,
                   struct figures *figures)
{
        const struct gpumem_kv_options kv_options = {
                .size = sizeof(kv_options),
                .name = "sparse",
                .layers = 8,
                .kv_heads = 2,
                .key_dim = 64,
                .value_dim = 64,
                .page_tokens = PAGE_TOKENS,
                .max_sequences = 65536,
                .max_sequence_tokens = PAGE_TOKENS,
                .reserve_units = UINT32_MAX,
                .idle_trim_ms = UINT32_MAX,
        };
        struct watch watch = {.figures = figures};
        struct gpumem_info info = {0};
        pthread_t thread;
        int error = gpumem_connect(&e->session, options);

        if (error < 0)
                return error;
        CONTEXT_SCOPE(scope, e->session->driver, e->session->context);
        error = gpumem_kv_create(e->session, &kv_options, &e->kv);
        if (error < 0)
                return error;
        gpumem_kv_get_geometry(e->kv, &e->geometry);
        watch.kv = e->kv;
        if (e->session->driver->stream_create(&e->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
                return GPUMEM_E_DEVICE;
        units /= e->geometry.unit_frames;
        error = make_sparse(e, units);
        if (error == 0)
                error = gpumem_get_info(e->session, &info);
        if (error < 0)
                return error;
        /* A page a unit is live. */
        figures->free_bytes =
                info.device_bytes - units * (uint64_t)e->geometry.page_stride * e->geometry.layers;
        if (pthread_create(&thread, NULL, watch_pool, &watch) != 0)
                return -EAGAIN;
        error = take_all(options, figures->free_bytes, figures);
        atomic_store(&watch.stop, error < 0);
        pthread_join(thread, NULL);
        return error < 0 ? error : count_changed(e, &figures->changed);
}

int bench_evacuate(const struct bench_options *options, struct json_object *out)
{
        const uint32_t frames = options->quick ? 64 : 1024;
        const struct bench_daemon_options daemon_options = {
                .build = options->build,
                .memory_bytes = frames * FRAME_BYTES,
                .frame_bytes = FRAME_BYTES,
                .fresh_frames = 16,
        };
        const struct gpumem_options session_options = {
                .size = sizeof(session_options),
                .name = "gpumem-bench",
                .driver = GPUMEM_DRIVER_SIMULATOR,
        };
        struct json_object *parameters = json_object_new_object();
        struct bench_daemon daemon = {0};
        struct figures figures = {0};
        struct engine e = {0};
        int error;

        json_object_object_add(parameters, "frames", json_object_new_int64(frames));
        json_object_object_add(parameters, "frame_bytes",
                               json_object_new_int64((int64_t)FRAME_BYTES));
        json_object_object_add(parameters, "live_pages_per_unit", json_object_new_int(1));
        json_object_object_add(parameters, "driver", json_object_new_string("simulated"));
        json_object_object_add(out, "parameters", parameters);
        error = bench_daemon_start(&daemon, &daemon_options);
        if (error == 0)
                error = measure(&e, &session_options, frames, &figures);
        if (error < 0)
                fprintf(stderr, "gpumem-bench evacuate: error %d: %s\n", error,
                        gpumem_error_message());
        json_object_object_add(out, "free_bytes",
                               json_object_new_int64((int64_t)figures.free_bytes));
        json_object_object_add(out, "returned_bytes",
                               json_object_new_int64((int64_t)figures.returned_bytes));
        json_object_object_add(out, "returned_share",
                               json_object_new_double(figures.free_bytes
                                                              ? (double)figures.returned_bytes /
                                                                        (double)figures.free_bytes
                                                              : 0));
        json_object_object_add(out, "granted_bytes",
                               json_object_new_int64((int64_t)figures.granted_bytes));
        json_object_object_add(out, "seconds", json_object_new_double(figures.seconds));
        json_object_object_add(out, "pages_moved",
                               json_object_new_int64(e.kv ? (int64_t)e.kv->pages_moved : 0));
        json_object_object_add(out, "pages_changed", json_object_new_int64(figures.changed));
        if (e.stream)
                e.session->driver->stream_destroy(e.stream);
        gpumem_kv_free(e.kv);
        gpumem_disconnect(e.session);
        free(e.seqs);
        bench_daemon_stop(&daemon);
        return error;
}
