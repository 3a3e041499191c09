/* SPDX-License-Identifier: Apache-2.0 */
/* A pool's life, and what can be asked about it. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/batch.h"
#include "libclient/context_wait.h"
#include "libclient/error.h"
#include "libclient/kv_evacuate.h"

#define DEFAULT_IDLE_TRIM_MS 2000

int kv_check(const struct gpumem_kv *kv)
{
        if (!kv)
                return client_error(GPUMEM_E_INVALID, "the pool is NULL");
        return session_check(kv->session);
}

int kv_check_context(const struct gpumem_kv *kv)
{
        if (kv->pins.lost == CUDA_SUCCESS)
                return 0;
        return client_error(GPUMEM_E_DEVICE,
                            "the context is lost since a kernel or copy failed with %s; only a new "
                            "process, or a reset of the context, helps",
                            driver_error_name(kv->session->driver, kv->pins.lost));
}

void kv_touch(struct gpumem_kv *kv)
{
        kv->last_use_ns = wire_now_ns();
        if (!kv->active) {
                kv->active = true;
                kv->window_ns = kv->last_use_ns;
                kv->pages.units_empty_min = kv->pages.units_empty;
                /* It has to see to it that this ends. */
                grower_wake(&kv->session->grower);
        }
}

void kv_look_ahead(struct gpumem_kv *kv)
{
        /* What was long in coming may have been overtaken by the end of an idle time. */
        kv->loose = true;
        if (kv->pages.units_empty + kv->units_ready + kv->units_asked < kv->reserve_units)
                grower_wake(&kv->session->grower);
}

/* From wherever creation got to; nothing is mapped, nothing ready, no pin outstanding. */
static void discard(struct gpumem_kv *kv)
{
        if (!kv->units_stuck)
                address_space_deinit(&kv->space);
        kv_evacuate_deinit(kv);
        for (uint32_t unit = 0; kv->units && unit < kv->geometry.layout.units_max; unit++)
                free(kv->units[unit].frames);
        free(kv->units);
        pin_table_deinit(&kv->pins);
        sequence_table_deinit(&kv->sequences);
        page_allocator_deinit(&kv->pages);
        pthread_cond_destroy(&kv->changed);
        pthread_mutex_destroy(&kv->lock);
        free(kv);
}

/* Where the pool's handles begin: far from where those of other pools do, earlier ones at the same
 * address and other sessions' among them, so that a handle is good in its own pool only. */
static uint32_t first_generation(const struct gpumem_kv *kv)
{
        uint64_t mixed = kv->object * UINT64_C(0x9e3779b97f4a7c15);

        mixed ^= kv->session->hello.session * UINT64_C(0xd6e8feb86659fd93);
        mixed ^= (uintptr_t)kv;
        mixed ^= mixed >> 32;
        mixed *= UINT64_C(0xd6e8feb86659fd93);
        return (uint32_t)(mixed >> 32);
}

static int create(struct gpumem_kv *kv, const struct gpumem_kv_options *options)
{
        struct gpumem *session = kv->session;
        struct gpumem_kv_geometry *layout = &kv->geometry.layout;
        int r;

        r = geometry_compute(&kv->geometry, options, session->hello.frame_bytes,
                             session->hello.device_bytes);
        if (r < 0)
                return r;
        kv->reserve_units = options->reserve_units == UINT32_MAX ? 0
                            : options->reserve_units == 0        ? 1
                                                                 : options->reserve_units;
        kv->idle_trim_ms = options->idle_trim_ms ? options->idle_trim_ms : DEFAULT_IDLE_TRIM_MS;
        if (page_allocator_init(&kv->pages, layout->units_max, layout->pages_per_unit,
                                layout->slot_bits, layout->page_class) < 0 ||
            sequence_table_init(&kv->sequences, &kv->pages, options->max_sequences,
                                kv->geometry.page_shift, options->max_sequence_tokens) < 0 ||
            !(kv->units = calloc(layout->units_max, sizeof(*kv->units))))
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for %" PRIu64 " pages",
                                    kv->geometry.pages_max);
        r = pin_table_init(&kv->pins, session->driver, session->context, &session->pins,
                           batch_pin_over);
        if (r < 0)
                return r;
        r = address_space_init(&kv->space, session->driver, session->device,
                               kv->geometry.range_bytes, layout->frame_bytes);
        if (r < 0)
                return r;
        layout->base = kv->space.base;
        r = session_object_create(session, GPUMEM_OBJECT_KV_POOL, layout->unit_frames,
                                  (uint64_t)layout->units_max * layout->unit_frames, options->name,
                                  &kv->object);
        if (r == 0)
                sequence_table_start(&kv->sequences, first_generation(kv));
        return r;
}

GPUMEM_API int gpumem_kv_create(struct gpumem *session, const struct gpumem_kv_options *options,
                                struct gpumem_kv **out)
{
        pthread_condattr_t attributes;
        struct gpumem_kv *kv;
        int r;

        r = session_check(session);
        if (r < 0)
                return r;
        if (!out || !options)
                return client_error(GPUMEM_E_INVALID, "options or out is NULL");
        *out = NULL;
        if (options->size != sizeof(*options))
                return client_error(GPUMEM_E_INVALID,
                                    "options.size is %zu; this library's struct has %zu bytes",
                                    options->size, sizeof(*options));
        kv = calloc(1, sizeof(*kv));
        if (!kv)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a pool");
        kv->session = session;
        STAILQ_INIT(&kv->ready);
        pthread_mutex_init(&kv->lock, NULL);
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&kv->changed, &attributes);
        pthread_condattr_destroy(&attributes);

        CONTEXT_SCOPE(scope, session->driver, session->context);
        if (scope.result != CUDA_SUCCESS)
                r = client_error_driver(session->driver, scope.result, "cuCtxPushCurrent");
        else
                r = create(kv, options);
        if (r < 0) {
                discard(kv);
                return r;
        }
        lock_take(&session->lock, LOCK_SESSION);
        TAILQ_INSERT_TAIL(&session->pools, kv, link);
        lock_release(&session->lock);
        *out = kv;
        return 0;
}

/* Keeps walks over the session's pools away, and waits until the last one has left: from then on
 * the pool is the caller's alone. GPUMEM_E_TIMEOUT: one does not, and walks are let in again. */
static int shut_out_walks(struct gpumem_kv *kv)
{
        /* A walk may wait for the daemon, and for copies, each within the session's timeout. */
        uint64_t deadline_ns = wire_deadline_ns(3 * kv->session->timeout_ms);
        const struct timespec deadline = {
                .tv_sec = (time_t)(deadline_ns / 1000000000u),
                .tv_nsec = (long)(deadline_ns % 1000000000u),
        };
        int r = 0;

        lock_take(&kv->session->lock, LOCK_SESSION);
        kv->closing = true;
        while (kv->users > 0 && r == 0)
                r = lock_wait_until(&kv->session->released, &kv->session->lock, &deadline);
        if (kv->users > 0)
                kv->closing = false;
        r = kv->users > 0 ? client_error(GPUMEM_E_TIMEOUT,
                                         "%u threads of the session still work on the pool: they "
                                         "wait for gpumemd or for the device",
                                         kv->users)
                          : 0;
        lock_release(&kv->session->lock);
        return r;
}

static void let_in_walks(struct gpumem_kv *kv)
{
        lock_take(&kv->session->lock, LOCK_SESSION);
        kv->closing = false;
        lock_release(&kv->session->lock);
}

/* Until every pin is over and every kernel has run. */
static int wait_for_streams(struct gpumem_kv *kv)
{
        uint64_t deadline_ns = session_deadline_ns(kv->session);
        long pause_ns = 20000;

        for (;;) {
                uint64_t pins;
                uint32_t kernels = atomic_load(&kv->kernels_queued);

                lock_take(&kv->lock, LOCK_POOL);
                kv_poll(kv);
                pins = pin_outstanding(&kv->pins);
                lock_release(&kv->lock);
                if (pins == 0 && kernels == 0)
                        return 0;
                if (wire_now_ns() >= deadline_ns)
                        return client_error(GPUMEM_E_TIMEOUT,
                                            "%" PRIu64 " pins and %u kernels of the pool were not "
                                            "over after %u ms: a stream does not get there",
                                            pins, kernels, kv->session->timeout_ms);
                nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
                if (pause_ns < 1000000)
                        pause_ns *= 2;
        }
}

/* Begun batches that nobody will end: whatever was submitted for them is waited for instead.
 * GPUMEM_E_TIMEOUT: it does not end; the thread that waits uses nothing but the driver. */
static int abandon_batches(struct gpumem_kv *kv)
{
        struct gpumem *session = kv->session;
        uint64_t deadline_ns = session_deadline_ns(session);
        struct context_wait *wait;
        CUresult result;
        int r;

        r = context_wait_start(&wait, session->driver, session->context);
        if (r < 0)
                return r;
        while (!context_wait_poll(wait, &result)) {
                if (wire_now_ns() >= deadline_ns) {
                        context_wait_abandon(wait);
                        return client_error(GPUMEM_E_TIMEOUT,
                                            "the context's streams do not get to their end");
                }
                nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        }
        if (result != CUDA_SUCCESS && !driver_error_is_sticky(result))
                return client_error_driver(session->driver, result, "cuCtxSynchronize");
        lock_take(&kv->lock, LOCK_POOL);
        pin_abandon(&kv->pins);
        lock_release(&kv->lock);
        return 0;
}

int kv_destroy(struct gpumem_kv *kv, bool force)
{
        CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);
        struct gpumem *session = kv->session;
        uint32_t begun;
        int r;

        lock_take(&kv->lock, LOCK_POOL);
        begun = kv->pins.begun;
        lock_release(&kv->lock);
        if (begun > 0 && !force)
                return client_error(GPUMEM_E_BUSY, "%u batches have begun and not ended", begun);
        r = shut_out_walks(kv);
        if (r < 0)
                return r;
        r = begun > 0 ? abandon_batches(kv) : 0;
        if (r == 0)
                r = wait_for_streams(kv);
        if (r < 0) {
                let_in_walks(kv);
                return r;
        }
        r = session_gate_close(session, session_deadline_ns(session));
        if (r < 0) {
                let_in_walks(kv);
                return client_error_prefix(GPUMEM_E_TIMEOUT, "freeing a pool");
        }
        kv_release_units(kv);
        session_gate_open(session);
        lock_take(&session->lock, LOCK_SESSION);
        TAILQ_REMOVE(&session->pools, kv, link);
        lock_release(&session->lock);
        /* What is stuck or lost may still be in use: the object stays until the session's end. */
        if (!kv->units_stuck && !kv->units_lost)
                session_object_destroy(session, kv->object);
        discard(kv);
        return 0;
}

GPUMEM_API int gpumem_kv_free(struct gpumem_kv *kv)
{
        int r;

        if (!kv)
                return 0;
        r = kv_check(kv);
        if (r < 0)
                return r;
        return kv_destroy(kv, false);
}

bool kv_covers(struct gpumem_kv *kv, uint64_t address, uint64_t bytes)
{
        uint64_t offset = address - kv->space.base;
        bool covered = true;

        if (address < kv->space.base || offset >= kv->space.bytes ||
            bytes > kv->space.bytes - offset)
                return false;
        lock_take(&kv->lock, LOCK_POOL);
        for (uint64_t unit = offset / kv->geometry.unit_bytes;
             unit <= (offset + bytes - 1) / kv->geometry.unit_bytes && covered; unit++)
                covered = kv->units[unit].state == KV_UNIT_MAPPED;
        lock_release(&kv->lock);
        return covered;
}

GPUMEM_API void gpumem_kv_get_geometry(const struct gpumem_kv *kv, struct gpumem_kv_geometry *out)
{
        if (!out)
                return;
        memset(out, 0, sizeof(*out));
        if (kv)
                *out = kv->geometry.layout;
}

GPUMEM_API int gpumem_kv_get_stats(struct gpumem_kv *kv, struct gpumem_kv_stats *out)
{
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        if (!out)
                return client_error(GPUMEM_E_INVALID, "out is NULL");
        CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);
        lock_take(&kv->lock, LOCK_POOL);
        if (scope.result == CUDA_SUCCESS)
                kv_poll(kv);
        *out = (struct gpumem_kv_stats){
                .pages_total = page_allocator_total(&kv->pages),
                .pages_used = kv->pages.pages_held - kv->pages.pages_retiring,
                .pages_shared = kv->pages.pages_shared,
                .pages_retiring = kv->pages.pages_retiring,
                .tokens = kv->sequences.tokens,
                .sequences = kv->sequences.alive,
                .units_mapped = kv->units_mapped,
                .units_ready = kv->units_ready,
                .granted_bytes = kv_units_granted(kv) * kv->geometry.unit_bytes,
                .granted_bytes_peak = kv->granted_bytes_peak,
                .units_grown = kv->units_grown,
                .units_returned = kv->units_returned - owed_sets(&kv->session->owed, kv->object),
                .grow_waits = kv->grow_waits,
                .copies = kv->copies,
                .pins = pin_outstanding(&kv->pins),
        };
        lock_release(&kv->lock);
        return 0;
}

GPUMEM_API int gpumem_kv_trim(struct gpumem_kv *kv, uint64_t *bytes)
{
        uint64_t given;
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        r = kv_shrink(kv, UINT64_MAX, &given);
        if (bytes)
                *bytes = given;
        return r;
}
