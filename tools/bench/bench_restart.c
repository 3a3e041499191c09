/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon killed again and again under engines that work. An engine is a process with its own
 * session: it keeps a set of buffers that nothing may change, makes, fills, checks and frees
 * others, and from time to time compares what it holds with what the daemon says that it holds.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpumem/gpumem.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_daemon.h"

#define ENGINES      8
#define FRAMES       2000
#define FRAME_BYTES  (UINT64_C(64) << 10)
#define KILLS        100
#define KILLS_QUICK  5
#define KEPT         25 /* buffers that an engine keeps */
#define KEPT_FRAMES  8  /* of each */
#define CHURN        6  /* buffers that come and go */
#define CHURN_FRAMES 6  /* of each, at most */
#define FRESH        32
#define CHECK_EVERY  16 /* operations between two comparisons with the daemon */
#define WAIT_MS      10000
#define PATIENCE_NS  UINT64_C(30000000000)

struct engine_shared {
        atomic_ullong operations;
        atomic_ullong bytes_changed, requests_lost, requests_doubled;
        atomic_ullong longest_ns;
        atomic_int ready; /* all kept buffers are filled */
};

struct shared {
        atomic_int stop;
        struct engine_shared engines[ENGINES];
};

struct engine {
        struct engine_shared *shared;
        struct gpumem *session;
        uint64_t random;
        struct {
                struct gpumem_buffer *buffer;
                uint64_t seed;
                uint32_t frames;
        } buffers[KEPT + CHURN];
        uint64_t frames; /* what it holds */
};

static void pause_us(long us)
{
        const struct timespec pause = {.tv_nsec = us * 1000};

        nanosleep(&pause, NULL);
}

/* Notes how long a call took, and whether it failed. */
static int called(struct engine *engine, uint64_t start_ns, int result, const char *what)
{
        uint64_t took = bench_now_ns() - start_ns;

        if (took > atomic_load(&engine->shared->longest_ns))
                atomic_store(&engine->shared->longest_ns, took);
        atomic_fetch_add(&engine->shared->operations, 1);
        if (result < 0) {
                atomic_fetch_add(&engine->shared->requests_lost, 1);
                fprintf(stderr, "gpumem-bench restart: %s: %s: %s\n", what,
                        gpumem_error_name(result), gpumem_error_message());
        }
        return result;
}

/* Writes a buffer's pattern, or counts the bytes that differ from it. */
static void pattern(struct engine *engine, uint32_t slot, int check)
{
        struct gpumem_buffer *buffer = engine->buffers[slot].buffer;
        size_t words = gpumem_buffer_bytes(buffer) / sizeof(uint64_t);
        uint64_t state = engine->buffers[slot].seed, changed = 0, *at;
        void *view;

        if (gpumem_host_view(engine->session, gpumem_buffer_address(buffer),
                             gpumem_buffer_bytes(buffer), &view) < 0) {
                atomic_fetch_add(&engine->shared->bytes_changed, gpumem_buffer_bytes(buffer));
                return;
        }
        at = view;
        for (size_t i = 0; i < words; i++) {
                uint64_t value = bench_random(&state);

                if (!check)
                        at[i] = value;
                else if (at[i] != value)
                        changed += sizeof(value);
        }
        atomic_fetch_add(&engine->shared->bytes_changed, changed);
}

static int take(struct engine *engine, uint32_t slot, uint32_t frames)
{
        uint64_t start = bench_now_ns();
        int r = gpumem_buffer_create(engine->session, frames * FRAME_BYTES, "bench", WAIT_MS,
                                     &engine->buffers[slot].buffer);

        if (called(engine, start, r, "gpumem_buffer_create") < 0)
                return r;
        engine->buffers[slot].seed = bench_random(&engine->random);
        engine->buffers[slot].frames = frames;
        engine->frames += frames;
        pattern(engine, slot, 0);
        return 0;
}

static void give(struct engine *engine, uint32_t slot)
{
        uint64_t start;

        pattern(engine, slot, 1);
        start = bench_now_ns();
        engine->buffers[slot].buffer = gpumem_buffer_free(engine->buffers[slot].buffer);
        called(engine, start, 0, "gpumem_buffer_free");
        engine->frames -= engine->buffers[slot].frames;
}

static void compare(struct engine *engine)
{
        uint64_t start = bench_now_ns(), said;
        struct gpumem_info info;
        int r = gpumem_get_info(engine->session, &info);

        if (called(engine, start, r, "gpumem_get_info") < 0)
                return;
        said = info.session_bytes / FRAME_BYTES;
        if (said > engine->frames)
                atomic_fetch_add(&engine->shared->requests_doubled, said - engine->frames);
        else if (said < engine->frames)
                atomic_fetch_add(&engine->shared->requests_lost, engine->frames - said);
}

static void churn(struct engine *engine, atomic_int *stop)
{
        for (uint64_t operation = 1; !atomic_load(stop); operation++) {
                uint32_t slot = KEPT + (uint32_t)(bench_random(&engine->random) % CHURN);

                if (engine->buffers[slot].buffer)
                        give(engine, slot);
                else
                        take(engine, slot,
                             1 + (uint32_t)(bench_random(&engine->random) % CHURN_FRAMES));
                pattern(engine, (uint32_t)(bench_random(&engine->random) % KEPT), 1);
                if (operation % CHECK_EVERY == 0)
                        compare(engine);
                pause_us(500); /* a kernel's worth */
        }
}

static int run_engine(struct shared *shared, int index, uint64_t seed)
{
        const struct gpumem_options options = {
                .size = sizeof(options),
                .name = "gpumem-bench",
                .driver = GPUMEM_DRIVER_SIMULATOR,
                .timeout_ms = WAIT_MS,
        };
        struct engine engine = {
                .shared = &shared->engines[index],
                .random = seed * ENGINES + (uint64_t)index,
        };

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (gpumem_connect(&engine.session, &options) < 0) {
                fprintf(stderr, "gpumem-bench restart: %s\n", gpumem_error_message());
                return 1;
        }
        for (uint32_t slot = 0; slot < KEPT; slot++)
                if (take(&engine, slot, KEPT_FRAMES) < 0)
                        return 1;
        atomic_store(&engine.shared->ready, 1);
        churn(&engine, &shared->stop);
        for (uint32_t slot = 0; slot < KEPT + CHURN; slot++)
                if (engine.buffers[slot].buffer)
                        give(&engine, slot);
        compare(&engine);
        gpumem_disconnect(engine.session);
        return 0;
}

/* Until every engine has had two answers more than in `before`: the daemon that is there now
 * serves. */
static int wait_served(struct shared *shared, const pid_t *engines)
{
        unsigned long long before[ENGINES];
        uint64_t deadline = bench_now_ns() + PATIENCE_NS;

        for (int i = 0; i < ENGINES; i++)
                before[i] = atomic_load(&shared->engines[i].operations);
        for (int i = 0; i < ENGINES; i++) {
                while (atomic_load(&shared->engines[i].operations) < before[i] + 2) {
                        if (bench_now_ns() > deadline || kill(engines[i], 0) < 0)
                                return -ETIMEDOUT;
                        pause_us(200);
                }
        }
        return 0;
}

static int kill_again_and_again(struct bench_daemon *daemon, struct shared *shared,
                                const pid_t *engines, int kills, uint64_t *random)
{
        pid_t last = 0;

        for (int i = 0; i < kills; i++) {
                uint64_t deadline = bench_now_ns() + PATIENCE_NS;
                pid_t pid;
                int r;

                while ((pid = bench_daemon_pid(daemon)) == 0 || pid == last) {
                        if (bench_now_ns() > deadline)
                                return -ETIMEDOUT;
                        pause_us(200);
                }
                r = wait_served(shared, engines);
                if (r < 0)
                        return r;
                pause_us((long)(bench_random(random) % 20000));
                if (kill(pid, SIGKILL) < 0)
                        return -errno;
                last = pid;
        }
        return wait_served(shared, engines);
}

/* Everything is back: a session can have all that the daemon manages. */
static uint64_t leaked(void)
{
        const struct gpumem_options options = {.size = sizeof(options),
                                               .driver = GPUMEM_DRIVER_SIMULATOR};
        struct gpumem_info info = {0};
        struct gpumem *session;

        if (gpumem_connect(&session, &options) < 0)
                return FRAMES;
        for (int i = 0; i < 500; i++) {
                if (gpumem_get_info(session, &info) == 0 &&
                    info.available_bytes == info.device_bytes)
                        break;
                pause_us(10000);
        }
        gpumem_disconnect(session);
        return info.device_bytes ? (info.device_bytes - info.available_bytes) / FRAME_BYTES
                                 : FRAMES;
}

static void add_takeover(const struct bench_daemon *daemon, struct json_object *out)
{
        char path[128], line[1024];
        struct samples samples;
        FILE *file;

        snprintf(path, sizeof(path), "%s/log", daemon->directory);
        file = fopen(path, "re");
        if (samples_init(&samples, KILLS) == 0) {
                while (file && fgets(line, sizeof(line), file)) {
                        const char *us = strstr(line, " us=");

                        if (us && strstr(line, "taken over"))
                                samples_add(&samples, strtod(us + 4, NULL) / 1000);
                }
                json_object_object_add(out, "takeover_ms_median",
                                       json_object_new_double(samples_quantile(&samples, 0.5)));
                json_object_object_add(out, "takeover_ms_p99",
                                       json_object_new_double(samples_quantile(&samples, 0.99)));
                samples_deinit(&samples);
        }
        if (file)
                fclose(file);
}

static int measure(struct bench_daemon *daemon, struct shared *shared, int kills, uint64_t seed,
                   struct json_object *out)
{
        unsigned long long changed = 0, lost = 0, doubled = 0, longest = 0, operations = 0;
        pid_t engines[ENGINES] = {0};
        uint64_t random = seed;
        int r = 0;

        for (int i = 0; i < ENGINES && r == 0; i++) {
                engines[i] = fork();
                if (engines[i] == 0)
                        _exit(run_engine(shared, i, seed));
                if (engines[i] < 0)
                        r = -errno;
        }
        for (int i = 0; i < ENGINES && r == 0; i++) {
                uint64_t deadline = bench_now_ns() + PATIENCE_NS;

                while (!atomic_load(&shared->engines[i].ready) && bench_now_ns() < deadline)
                        pause_us(1000);
        }
        for (int i = 0; i < ENGINES; i++)
                atomic_store(&shared->engines[i].longest_ns, 0);
        if (r == 0)
                r = kill_again_and_again(daemon, shared, engines, kills, &random);
        for (int i = 0; i < ENGINES; i++) {
                unsigned long long one = atomic_load(&shared->engines[i].longest_ns);

                longest = one > longest ? one : longest;
        }
        atomic_store(&shared->stop, 1);
        for (int i = 0; i < ENGINES; i++) {
                int status = 0;

                if (engines[i] <= 0)
                        continue;
                waitpid(engines[i], &status, 0);
                if (status != 0 && r == 0)
                        r = -ECHILD;
                changed += atomic_load(&shared->engines[i].bytes_changed);
                lost += atomic_load(&shared->engines[i].requests_lost);
                doubled += atomic_load(&shared->engines[i].requests_doubled);
                operations += atomic_load(&shared->engines[i].operations);
        }
        json_object_object_add(out, "kills", json_object_new_int(kills));
        json_object_object_add(out, "operations", json_object_new_int64((int64_t)operations));
        json_object_object_add(out, "bytes_changed", json_object_new_int64((int64_t)changed));
        json_object_object_add(out, "frames_leaked", json_object_new_int64((int64_t)leaked()));
        json_object_object_add(out, "requests_lost", json_object_new_int64((int64_t)lost));
        json_object_object_add(out, "requests_doubled", json_object_new_int64((int64_t)doubled));
        json_object_object_add(out, "longest_stall_ms",
                               json_object_new_double((double)longest / 1e6));
        add_takeover(daemon, out);
        return r;
}

int bench_restart(const struct bench_options *options, struct json_object *out)
{
        const struct bench_daemon_options daemon_options = {
                .build = options->build,
                .memory_bytes = FRAMES * FRAME_BYTES,
                .frame_bytes = FRAME_BYTES,
                .granularity = FRAME_BYTES,
                .fresh_frames = FRESH,
        };
        struct json_object *parameters = json_object_new_object();
        struct bench_daemon daemon = {0};
        struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        int r;

        json_object_object_add(parameters, "engines", json_object_new_int(ENGINES));
        json_object_object_add(parameters, "frames", json_object_new_int(FRAMES));
        json_object_object_add(parameters, "frame_bytes",
                               json_object_new_int64((int64_t)FRAME_BYTES));
        json_object_object_add(parameters, "driver", json_object_new_string("simulated"));
        json_object_object_add(out, "parameters", parameters);
        if (shared == MAP_FAILED)
                return -errno;
        r = bench_daemon_start(&daemon, &daemon_options);
        if (r == 0)
                r = measure(&daemon, shared, options->quick ? KILLS_QUICK : KILLS, options->seed,
                            out);
        if (r < 0)
                fprintf(stderr, "gpumem-bench restart: %s\n", strerror(-r));
        bench_daemon_stop(&daemon);
        munmap(shared, sizeof(*shared));
        return r;
}
