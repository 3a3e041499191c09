/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KV pool: one object at the daemon, one reserved address range, units that come and go in it,
 * and what lives on their pages. The parts are files of their own (geometry, page_allocator,
 * sequence, pin, batch); this header joins them.
 *
 * States of a unit
 *   absent   nothing there
 *   mapped   its pages are in the allocator
 *   leaving  taken out of the allocator, being unmapped and returned, without the lock
 *   stuck    the driver would not unmap it: never used again, never returned
 * A set of frames that is granted and imported but has no unit yet is "ready".
 */
#ifndef LIBCLIENT_KV_H
#define LIBCLIENT_KV_H

#include "libclient/address_space.h"
#include "libclient/context_scope.h"
#include "libclient/geometry.h"
#include "libclient/page_allocator.h"
#include "libclient/pin.h"
#include "libclient/sequence.h"
#include "libclient/session.h"

enum kv_unit_state {
        KV_UNIT_ABSENT = 0,
        KV_UNIT_MAPPED,
        KV_UNIT_LEAVING,
        KV_UNIT_STUCK,
};

struct kv_unit {
        enum kv_unit_state state;
        bool publishable;       /* others may come to read it: never evacuated */
        struct granted *frames; /* mapped or leaving */
};

struct gpumem_kv {
        TAILQ_ENTRY(gpumem_kv) link; /* gpumem.pools; gpumem.lock */
        uint32_t users;              /* gpumem.lock: walks that stand on it */
        bool closing;                /* gpumem.lock: no walk comes here any more */

        struct gpumem *session;
        uint64_t object; /* the daemon's */
        struct geometry geometry;
        uint32_t reserve_units;
        uint32_t idle_trim_ms; /* UINT32_MAX: never */
        struct address_space space;

        pthread_mutex_t lock;   /* covers what follows */
        pthread_cond_t changed; /* a unit is no longer leaving */
        struct page_allocator pages;
        struct sequence_table sequences;
        struct pin_table pins;
        struct kv_unit *units;
        uint32_t unit_hint; /* no unit below is absent */
        uint32_t units_mapped, units_leaving, units_stuck;
        uint32_t units_lost;  /* unmapped, but the driver would not let go of them */
        uint32_t units_asked; /* a grant for them is under way */
        uint32_t waiters;     /* of which so many threads wait for memory that others hold */
        struct granted_list ready;
        uint32_t units_ready;

        bool active;                  /* had a batch since it was last trimmed as idle */
        bool loose;                   /* pages may have become free since it was trimmed as idle */
        uint64_t last_use_ns;         /* of the last batch or append */
        uint64_t window_ns;           /* when pages.units_empty_min was last reset */
        uint64_t fetch_not_before_ns; /* the grower leaves the daemon alone until then */
        uint32_t fetch_pause_ms;

        CUstream evacuation_stream; /* made when first needed */

        uint64_t granted_bytes_peak, units_grown, units_returned, grow_waits, copies;
        uint64_t pages_moved;

        atomic_int kernel_error;    /* -errno of a kernel that failed, until batch_begin tells */
        atomic_uint kernels_queued; /* host functions that have not run yet */
};

/* 0, or GPUMEM_E_INVALID (NULL), GPUMEM_E_FORKED. */
int kv_check(const struct gpumem_kv *kv);

/* gpumem_kv_free(); `force`: begun batches are no obstacle (disconnect: nobody will end them). */
int kv_destroy(struct gpumem_kv *kv, bool force);

/* Is the range within mapped units? Takes the pool's lock. */
bool kv_covers(struct gpumem_kv *kv, uint64_t address, uint64_t bytes);

/* --- units (kv_units.c) ------------------------------------------ */

/*
 * At least `pages` free pages, with the lock held and the context current: retires, maps ready
 * units, and asks the daemon for what is missing. 0: they are there. 1: the lock was dropped on
 * the way; look at everything anew, and call again. GPUMEM_E_AGAIN: short now (waited until
 * deadline_ns, 0 being not at all; never while the session holds a pin); *full: because the pool
 * has all the units it may have. GPUMEM_E_NO_MEMORY: more than it may ever hold. GPUMEM_E_DEVICE
 * and others.
 */
int kv_provide(struct gpumem_kv *kv, uint64_t pages, uint64_t deadline_ns, bool *full);
/* GPUMEM_E_NO_MEMORY, in words. */
int kv_too_large(const struct gpumem_kv *kv, uint64_t pages);

/* Maps every ready set for which there is an absent unit; lock held, context current. Stops
 * silently where mappings may not change now. */
int kv_map_ready(struct gpumem_kv *kv);

/* Asks the daemon for up to `units` units and keeps them ready; without the lock. *got says how
 * many. */
int kv_fetch(struct gpumem_kv *kv, uint32_t units, uint64_t deadline_ns, uint32_t *got);

/* Units whose frames the daemon has granted and not got back; lock held. */
uint32_t kv_units_granted(const struct gpumem_kv *kv);
/* How many more units the pool may ask for; lock held. */
uint32_t kv_room(const struct gpumem_kv *kv);

/* Gives back ready sets and empty units, at most `units`; without the lock. Stops silently where
 * mappings may not change now. *bytes: what went back. */
int kv_give_back(struct gpumem_kv *kv, uint64_t units, uint64_t *bytes);

/* The end of the pool, which is the caller's alone by now: everything is unmapped and its handles
 * released, without telling the daemon unit by unit (the object's destruction does). */
void kv_release_units(struct gpumem_kv *kv);

/* Learns which pins are over, and frees what waited for them; lock held, context current. */
void kv_poll(struct gpumem_kv *kv);

/* Is the context usable, as far as the pool's pins have shown? 0 or GPUMEM_E_DEVICE; lock held. */
int kv_check_context(const struct gpumem_kv *kv);

/* The pool is in use now; lock held. */
void kv_touch(struct gpumem_kv *kv);
/* Wakes the grower if there is less ahead than the reserve; lock held. */
void kv_look_ahead(struct gpumem_kv *kv);

/* --- pins and copies (batch.c) ----------------------------------- */

/* As pin_begin(), and keeps out a change of mappings where that matters. */
int kv_pin(struct gpumem_kv *kv, void *payload, uint64_t *number);

/* Puts the copy of a page on the stream; lock held, context current. GPUMEM_E_DEVICE. */
int kv_copy_page(struct gpumem_kv *kv, uint32_t from, uint32_t to, gpumem_stream stream);

static inline gpumem_address kv_page_address(const struct gpumem_kv *kv, uint32_t page)
{
        const struct gpumem_kv_geometry *layout = &kv->geometry.layout;

        return layout->base +
               (uint64_t)gpumem_page_unit(page, layout->slot_bits) * (uint64_t)layout->unit_stride +
               (uint64_t)gpumem_page_slot(page, layout->slot_bits) * (uint64_t)layout->page_stride;
}

#endif
