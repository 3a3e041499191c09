/* SPDX-License-Identifier: Apache-2.0 */
/* Units of a pool: how they come, get mapped, and go. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "libclient/error.h"
#include "libclient/kv.h"

void kv_poll(struct gpumem_kv *kv)
{
        pin_poll(&kv->pins);
        page_allocator_retire(&kv->pages, kv->pins.oldest);
}

uint32_t kv_units_granted(const struct gpumem_kv *kv)
{
        return kv->units_mapped + kv->units_leaving + kv->units_stuck + kv->units_lost +
               kv->units_ready + owed_sets(&kv->session->owed, kv->object);
}

uint32_t kv_room(const struct gpumem_kv *kv)
{
        uint32_t taken = kv_units_granted(kv) + kv->units_asked;
        uint32_t most = kv->geometry.layout.units_max;

        return taken < most ? most - taken : 0;
}

static uint32_t absent_unit(struct gpumem_kv *kv)
{
        while (kv->unit_hint < kv->geometry.layout.units_max &&
               kv->units[kv->unit_hint].state != KV_UNIT_ABSENT)
                kv->unit_hint++;
        return kv->unit_hint < kv->geometry.layout.units_max ? kv->unit_hint : PAGE_ALLOCATOR_NONE;
}

static void note_peak(struct gpumem_kv *kv)
{
        uint64_t bytes = (uint64_t)(kv->units_mapped + kv->units_leaving + kv->units_stuck +
                                    kv->units_ready) *
                         kv->geometry.unit_bytes;

        if (bytes > kv->granted_bytes_peak)
                kv->granted_bytes_peak = bytes;
}

/* Where mappings may not change beside kernels: closes the gate if no pin is held. */
static bool gate_close(struct gpumem_kv *kv)
{
        if (!session_is_gated(kv->session))
                return true;
        lock_take(&kv->session->gate, LOCK_GATE);
        if (atomic_load(&kv->session->pins) == 0)
                return true;
        lock_release(&kv->session->gate);
        return false;
}

static void gate_open(struct gpumem_kv *kv)
{
        if (session_is_gated(kv->session))
                lock_release(&kv->session->gate);
}

/* One ready set becomes a unit. 0, 1 (nothing ready, no unit absent, or not now), or
 * GPUMEM_E_DEVICE: the set is ready as before, or stuck. */
static int map_one(struct gpumem_kv *kv)
{
        struct granted *set = STAILQ_FIRST(&kv->ready);
        uint32_t unit = absent_unit(kv);
        bool stuck;
        int r;

        if (!set || unit == PAGE_ALLOCATOR_NONE || !gate_close(kv))
                return 1;
        r = address_space_map(&kv->space, unit * kv->geometry.unit_bytes, set, &stuck);
        gate_open(kv);
        if (r < 0 && !stuck)
                return r;
        STAILQ_REMOVE_HEAD(&kv->ready, link);
        kv->units_ready--;
        kv->units[unit].frames = set;
        if (r < 0) {
                kv->units[unit].state = KV_UNIT_STUCK;
                kv->units_stuck++;
                return r;
        }
        kv->units[unit].state = KV_UNIT_MAPPED;
        kv->units_mapped++;
        page_allocator_add_unit(&kv->pages, unit);
        return 0;
}

int kv_map_ready(struct gpumem_kv *kv)
{
        int r;

        do
                r = map_one(kv);
        while (r == 0);
        return r < 0 ? r : 0;
}

int kv_fetch(struct gpumem_kv *kv, uint32_t units, uint64_t deadline_ns, uint32_t *got)
{
        uint32_t frames = kv->geometry.layout.unit_frames;
        uint32_t most = GPUMEM_MESSAGE_FDS_MAX / frames;
        struct granted_list list = STAILQ_HEAD_INITIALIZER(list);
        int r;

        *got = 0;
        if (units > most)
                units = most;
        lock_take(&kv->lock, LOCK_POOL);
        if (units > kv_room(kv))
                units = kv_room(kv);
        kv->units_asked += units;
        kv->waiters += deadline_ns != 0;
        lock_release(&kv->lock);

        r = 0;
        if (units > 0)
                r = granted_request(kv->session, kv->object, units, frames, deadline_ns, &list);

        lock_take(&kv->lock, LOCK_POOL);
        kv->units_asked -= units;
        kv->waiters -= deadline_ns != 0;
        if (r == 0) {
                STAILQ_CONCAT(&kv->ready, &list);
                kv->units_ready += units;
                kv->units_grown += units;
                *got = units;
                note_peak(kv);
        }
        lock_release(&kv->lock);
        return r;
}

int kv_too_large(const struct gpumem_kv *kv, uint64_t pages)
{
        return client_error(GPUMEM_E_NO_MEMORY,
                            "%" PRIu64 " pages are needed; the pool never holds more than %" PRIu64
                            " (max_bytes, or the device)",
                            pages, kv->geometry.pages_max);
}

/* Why there is nothing to ask the daemon for. */
static int explain_full(struct gpumem_kv *kv, uint64_t pages)
{
        return client_error(GPUMEM_E_AGAIN,
                            "%" PRIu64 " pages are needed, %" PRIu64 " are free and %" PRIu64
                            " wait for streams; the pool holds all %u units of its max_bytes: "
                            "free or shorten sequences",
                            pages, page_allocator_free(&kv->pages), kv->pages.pages_retiring,
                            kv->geometry.layout.units_max);
}

/* A unit on its way out will make room; bounded by the session's timeout. */
static int wait_for_leaving(struct gpumem_kv *kv)
{
        uint64_t deadline_ns = session_deadline_ns(kv->session);
        struct timespec deadline = {
                .tv_sec = (time_t)(deadline_ns / 1000000000u),
                .tv_nsec = (long)(deadline_ns % 1000000000u),
        };

        if (lock_wait_until(&kv->changed, &kv->lock, &deadline) == ETIMEDOUT)
                return client_error(GPUMEM_E_TIMEOUT,
                                    "units that are being given back have not gone for %u ms",
                                    kv->session->timeout_ms);
        return 1;
}

/* Units have gone, but the daemon does not know yet, and would not grant others for them. */
static int tell_what_is_owed(struct gpumem_kv *kv)
{
        int r;

        lock_release(&kv->lock);
        r = owed_tell(kv->session);
        lock_take(&kv->lock, LOCK_POOL);
        return r < 0 && owed_sets(&kv->session->owed, kv->object) > 0 ? r : 1;
}

int kv_provide(struct gpumem_kv *kv, uint64_t pages, uint64_t deadline_ns, bool *full)
{
        uint32_t per_unit = kv->geometry.layout.pages_per_unit;
        uint64_t missing;
        uint32_t units, got;
        int r;

        *full = false;
        if (pages > kv->geometry.pages_max)
                return kv_too_large(kv, pages);
        if (page_allocator_free(&kv->pages) >= pages)
                return 0;
        kv_poll(kv);
        /* Who needs pages comes before who would give units back. */
        if (page_allocator_free(&kv->pages) < pages && kv->pages.pages_closed > 0)
                page_allocator_open_all(&kv->pages);
        r = 0;
        while (page_allocator_free(&kv->pages) < pages && r == 0)
                r = map_one(kv);
        if (r < 0)
                return r;
        if (page_allocator_free(&kv->pages) >= pages)
                return 0;
        if (kv->units_ready > 0 && absent_unit(kv) != PAGE_ALLOCATOR_NONE)
                return client_error(GPUMEM_E_AGAIN,
                                    "this device's mappings cannot change beside kernels, and the "
                                    "session holds %u pins: wait for their streams",
                                    atomic_load(&kv->session->pins));

        missing = pages - page_allocator_free(&kv->pages);
        missing = (missing + per_unit - 1) / per_unit;
        units = kv_room(kv);
        if (units == 0 && kv->units_leaving > 0)
                return wait_for_leaving(kv);
        if (units < missing && owed_sets(&kv->session->owed, kv->object) > 0)
                return tell_what_is_owed(kv);
        if (units < missing && kv->units_leaving == 0 && kv->units_asked == 0) {
                *full = true;
                return explain_full(kv, pages);
        }
        if (units == 0 && kv->waiters > 0 && wire_now_ns() >= deadline_ns)
                return client_error(GPUMEM_E_AGAIN,
                                    "%" PRIu64 " pages are needed, %" PRIu64
                                    " are free, and another thread waits for the pool's last units",
                                    pages, page_allocator_free(&kv->pages));
        if (units == 0) {
                /* Somebody is fetching the last ones: they are ready in a moment. */
                lock_release(&kv->lock);
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
                lock_take(&kv->lock, LOCK_POOL);
                return 1;
        }
        if (units > missing)
                units = (uint32_t)missing;
        kv->grow_waits++;
        lock_release(&kv->lock);
        r = kv_fetch(kv, units, 0, &got);
        if (r == GPUMEM_E_AGAIN) {
                struct client_message why = client_message_keep();

                /* What this session has lying idle elsewhere comes first. */
                if (grower_reclaim(kv->session, kv, units * kv->geometry.unit_bytes,
                                   deadline_ns > 0) > 0 ||
                    deadline_ns > 0)
                        r = kv_fetch(kv, units, deadline_ns, &got);
                else
                        client_message_restore(r, &why);
        }
        lock_take(&kv->lock, LOCK_POOL);
        if (r == GPUMEM_E_AGAIN)
                return client_error_prefix(r,
                                           "%" PRIu64 " pages are needed and %" PRIu64 " are free",
                                           pages, page_allocator_free(&kv->pages));
        return r < 0 ? r : 1;
}

/* Takes a set of frames out: a ready one, or an empty unit (*unit, which is then leaving). */
static struct granted *take_out(struct gpumem_kv *kv, uint32_t *unit)
{
        struct granted *set = STAILQ_FIRST(&kv->ready);

        *unit = PAGE_ALLOCATOR_NONE;
        if (set) {
                STAILQ_REMOVE_HEAD(&kv->ready, link);
                kv->units_ready--;
                return set;
        }
        *unit = page_allocator_empty_unit(&kv->pages);
        if (*unit == PAGE_ALLOCATOR_NONE || page_allocator_remove_unit(&kv->pages, *unit) < 0)
                return NULL;
        kv->units[*unit].state = KV_UNIT_LEAVING;
        kv->units_mapped--;
        kv->units_leaving++;
        return kv->units[*unit].frames;
}

/* A leaving unit is absent now, or stuck. */
static void taken_out(struct gpumem_kv *kv, uint32_t unit, bool stuck)
{
        kv->units_leaving--;
        if (stuck) {
                kv->units[unit].state = KV_UNIT_STUCK;
                kv->units_stuck++;
        } else {
                kv->units[unit].state = KV_UNIT_ABSENT;
                kv->units[unit].frames = NULL;
                if (unit < kv->unit_hint)
                        kv->unit_hint = unit;
        }
        pthread_cond_broadcast(&kv->changed);
}

#define GIVE_BACK_BATCH 64

/* What one round of giving back has in hand. */
struct give_back {
        struct granted_list list;        /* unmapped sets, on their way to the daemon */
        uint32_t units[GIVE_BACK_BATCH]; /* leaving */
        bool stuck[GIVE_BACK_BATCH];
        uint32_t unit_count;
        uint32_t sets; /* in all */
};

/* Takes out at most `most` sets, closes the gate, unmaps, opens it. */
static int take_and_unmap(struct gpumem_kv *kv, struct give_back *round, uint32_t most)
{
        int result = 0;

        STAILQ_INIT(&round->list);
        round->unit_count = round->sets = 0;
        lock_take(&kv->lock, LOCK_POOL);
        kv_poll(kv);
        if (!gate_close(kv)) {
                lock_release(&kv->lock);
                return 0;
        }
        while (round->sets < most) {
                uint32_t unit;
                struct granted *set = take_out(kv, &unit);

                if (!set)
                        break;
                round->sets++;
                if (unit == PAGE_ALLOCATOR_NONE)
                        STAILQ_INSERT_TAIL(&round->list, set, link);
                else
                        round->units[round->unit_count++] = unit;
        }
        lock_release(&kv->lock);

        for (uint32_t i = 0; i < round->unit_count; i++) {
                uint32_t unit = round->units[i];
                struct granted *set = kv->units[unit].frames; /* nobody else's while leaving */
                int r = address_space_unmap(&kv->space, unit * kv->geometry.unit_bytes, set->count);

                round->stuck[i] = r < 0;
                if (r < 0)
                        result = r;
                else
                        STAILQ_INSERT_TAIL(&round->list, set, link);
        }
        gate_open(kv);
        return result;
}

int kv_give_back(struct gpumem_kv *kv, uint64_t units, uint64_t *bytes)
{
        CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);
        int result = 0;

        *bytes = 0;
        if (scope.result != CUDA_SUCCESS)
                return client_error_driver(kv->session->driver, scope.result, "cuCtxPushCurrent");
        while (units > 0) {
                struct give_back round;
                uint32_t most, returned, lost, untold;
                int r;

                /* One RETURN each round: the daemon has them soon, and nobody waits long. */
                most = GPUMEM_RETURN_FRAMES_MAX / kv->geometry.layout.unit_frames;
                most = most < GIVE_BACK_BATCH ? most : GIVE_BACK_BATCH;
                if (most > units)
                        most = (uint32_t)units;
                r = take_and_unmap(kv, &round, most);
                if (r < 0)
                        result = r;
                if (round.sets == 0)
                        break;
                r = granted_release(kv->session, &round.list, &lost);
                if (r < 0)
                        result = r;
                r = granted_tell(kv->session, kv->object, &round.list, &untold);
                if (r < 0)
                        result = r;

                lock_take(&kv->lock, LOCK_POOL);
                returned = round.sets - lost;
                kv->units_lost += lost;
                for (uint32_t i = 0; i < round.unit_count; i++) {
                        taken_out(kv, round.units[i], round.stuck[i]);
                        returned -= round.stuck[i];
                }
                kv->units_returned += returned;
                lock_release(&kv->lock);
                /* (The others count when the daemon knows.) */
                *bytes += (returned - untold) * kv->geometry.unit_bytes;
                units -= round.sets;
                if (round.sets < most)
                        break;
        }
        return result;
}

void kv_release_units(struct gpumem_kv *kv)
{
        struct granted_list list = STAILQ_HEAD_INITIALIZER(list);
        struct granted *set;
        uint32_t lost;

        STAILQ_CONCAT(&list, &kv->ready);
        kv->units_ready = 0;
        for (uint32_t unit = 0; unit < kv->geometry.layout.units_max; unit++) {
                if (kv->units[unit].state != KV_UNIT_MAPPED)
                        continue;
                set = kv->units[unit].frames;
                if (address_space_unmap(&kv->space, unit * kv->geometry.unit_bytes, set->count) <
                    0) {
                        kv->units[unit].state = KV_UNIT_STUCK;
                        kv->units_stuck++;
                        continue;
                }
                kv->units[unit].state = KV_UNIT_ABSENT;
                kv->units[unit].frames = NULL;
                STAILQ_INSERT_TAIL(&list, set, link);
        }
        kv->units_mapped = 0;
        granted_release(kv->session, &list, &lost);
        kv->units_lost += lost;
        granted_list_free(&list);
}
