/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Withheld memory: what was released to the driver and did not become free, because somebody still
 * maps it or has a descriptor of it. It cannot be given to anybody, so it stays charged to the
 * tenant that had it until free memory grows by it; or until all processes are dead that are known
 * to have held frames of that tenant. Then it is somebody unknown who holds it, and after a moment
 * (drivers may return a dead process's memory late) it counts as used outside the daemon.
 *
 * Free memory is measured on the creator's thread, where all creating and releasing is done, so
 * that the daemon's own doing is known exactly: before the first of a burst of releases (of one
 * tenant's frames) and after the last. What came back in between is that burst's; growth beyond it,
 * or seen later, goes to whoever's memory is withheld longest. Use from outside that grows in just
 * that moment is taken for withheld memory, and is put right when it shrinks or its time is over.
 *
 * While anything is withheld, measuring is repeated, less and less often.
 */
#ifndef GPUMEMD_WITHHELD_H
#define GPUMEMD_WITHHELD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "daemon/account.h"
#include "libclient/driver/driver.h"

struct device;
struct frame;
struct tenant_device;

/* How often it is looked again: doubled from the first to the last. */
#define WITHHELD_CHECK_MIN_MS 1
#define WITHHELD_CHECK_MAX_MS 500

/* How long memory without a known holder is waited for. */
#define WITHHELD_ORPHAN_MS 2000

struct withheld {
        /* The loop's. */
        uint64_t bytes;       /* all tenants together */
        uint64_t unmeasured;  /* released, and not measured yet: most likely free */
        uint64_t extra_taken; /* growth of free memory that the last releases do not explain */
        sd_event_source *timer;
        uint64_t interval_ms;

        /* The creator thread's. */
        bool measured; /* last_free means something */
        uint64_t last_free, last_ns, cost_ns;
        struct tenant_device *tenant; /* of the burst; NULL: there is none */
        uint64_t burst_ns;
        bool exhausted;    /* the last try to create found no memory */
        uint64_t released; /* bytes, since the last measurement */
        uint64_t created;  /* likewise */
        uint64_t dropped;  /* likewise: what was nobody's */

        /* Between them. */
        pthread_mutex_t mutex;
        bool mutex_made;
        uint64_t extra;
        bool wanted;         /* the loop asks for a measurement */
        bool free_known;     /* since the loop looked last */
        uint64_t free_bytes; /* at the last one */
        CUresult error;      /* of one that failed since the loop looked last */
};

/* 0 or negative errno. */
int withheld_start(struct device *device);
/* Workers are stopped. Nothing is withheld afterwards. */
void withheld_stop(struct device *device);

/* --- on the creator's thread --- */

/* Around creating or releasing one frame: `tenant` is whose it was, NULL when it is created or was
 * nobody's. Where no memory is found that is measured too, for what is used outside the daemon. */
void withheld_before(struct device *device, struct tenant_device *tenant);
void withheld_after(struct device *device, struct tenant_device *tenant, const struct frame *frame);

/* Nothing is left to do: ends the burst. True: something was measured. */
bool withheld_idle(struct device *device);

/* --- on the loop --- */

/* Takes what was measured. After worker_collect(), which resets what announces it. */
void withheld_take(struct device *device);

/* A frame was released: its charge is refunded, and charged again if measuring says that it is
 * withheld. Until then it counts where it would be an error to think it free. */
void withheld_add(struct tenant_device *tenant, struct charge *charge);

/* What was taken. May free tenants. */
void withheld_apply(struct device *device);

/* In frames, rounded up: what is known not to have come back; and with what is not measured yet. */
uint64_t withheld_frames(const struct device *device);
uint64_t withheld_frames_at_most(const struct device *device);

#endif
