/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices: one GPU each, real or simulated. A device owns its context, the direct map, the table of
 * frames and the two worker threads (one creates and releases frames, one scrubs).
 *
 * Lifecycle of its memory:
 *
 *   free --creator--> fresh --grant--> granted --return--> dirty --scrubber--> ready --grant-->
 * granted ^                                    |                  |                   | | +---
 * draining -----+                   |
 *    +-------------------------------creator (release)-------+-------------------+
 *
 * frame_pool.c moves frames along the arrows, filler.c decides which and when, grant.c queues those
 * who wait.
 */
#ifndef GPUMEMD_DEVICE_H
#define GPUMEMD_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "daemon/config.h"
#include "daemon/frame.h"
#include "daemon/frame_memory.h"
#include "daemon/list.h"
#include "daemon/tenant.h"
#include "daemon/withheld.h"
#include "daemon/worker.h"

#define DEVICE_UUID_TEXT 48 /* bytes of a UUID as text, its NUL included */

struct daemon;

enum device_state {
        DEVICE_OK,
        DEVICE_DEGRADED, /* a driver call failed; what is there is still given out */
        DEVICE_LOST,     /* the context is dead; nothing is given out any more */
};

/* Those who wait for frames, first come first served; and those whose own tenant's limit holds them
 * back, who stand in nobody's way. */
struct grant_queue {
        struct list waits; /* struct grant_wait.link, in the order of asking */
        uint32_t count;
        uint64_t frames;  /* what they ask for, together */
        struct list held; /* struct grant_wait.link, in the order of asking */
        uint32_t held_count;
        sd_event_source *timer; /* armed for the earliest deadline, or for asking again */
};

struct device {
        struct list link; /* in the daemon's list */
        struct daemon *daemon;
        unsigned index; /* the driver's ordinal */
        uint32_t slot;  /* its place in the state; stays its own from daemon to daemon */
        uint8_t uuid[16];
        char uuid_text[DEVICE_UUID_TEXT];
        char name[128];
        uint32_t flags; /* GPUMEM_DEVICE_* */
        enum device_state state;
        char trouble[160]; /* the last failure of a driver call */
        struct log_limit trouble_limit;

        uint64_t total_bytes;   /* what the driver says the device has */
        uint64_t outside_bytes; /* in use outside the daemon when it was last measured */
        struct withheld withheld;
        uint64_t granularity;
        struct frame_memory memory;
        uint64_t mapped_bytes; /* size of the direct map's reservation; 0: none */
        bool context_retained;

        struct frame_table table;
        struct frame_list free, fresh, quarantined;

        struct worker *creator, *scrubber;
        sd_event_source *creator_source, *scrubber_source;
        CUstream scrub_stream; /* the scrubber's */

        uint32_t watermark_low, watermark_high; /* of the fresh pool, frames */
        bool refilling;                         /* between falling under low and reaching high */
        uint64_t backoff_until_ns;              /* no creating before; 0: none */
        uint64_t backoff_ns;                    /* how long the last pause was */
        bool exhausted;                         /* the pause is because the driver has no memory */
        sd_event_source *backoff_timer;

        sd_event_source *turn; /* oneshot: run the queue and the filler in the next turn */
        struct grant_queue queue;
        uint64_t reclaim_next_ns; /* sessions are not asked to give back before */
        uint64_t reclaim_frames;  /* so many were asked for then */

        struct list tenants;  /* struct tenant_device.device_link */
        struct list sessions; /* struct session.device_link: those past hello, open */
        uint32_t sessions_count;

        uint64_t grants, granted_frames, returned_frames; /* since the start */
        uint64_t timeouts, refusals;
};

/* Opens the driver's device `index` and starts its workers. Errors are logged. 0 or negative errno.
 */
int device_new(struct device **out, struct daemon *daemon, unsigned index);

/* No sessions may be left. Frees every frame. Returns NULL; NULL is fine. */
struct device *device_free(struct device *device);

/* The device of that UUID, or NULL. */
struct device *device_find(struct daemon *daemon, const uint8_t uuid[16]);

/* "GPU-...", as the driver's own tools write it. */
void device_format_uuid(const uint8_t uuid[16], char text[DEVICE_UUID_TEXT]);

/* What the daemon manages on it. */
static inline uint64_t device_managed_bytes(const struct device *device)
{
        return device->table.count * device->table.frame_bytes;
}

/* What the keeper calls a frame of it. */
static inline uint64_t device_keeper_id(const struct device *device, uint32_t number)
{
        return (uint64_t)device->slot << 32 | number;
}

/* Marks the device for good (a state never gets better), logs it and tells its sessions. */
void device_report_failure(struct device *device, enum device_state state, const char *what,
                           CUresult error);

/* Lets queue and filler run in the loop's next turn. */
void device_wake(struct device *device);

/* The size of a frame where the configuration says auto (DESIGN 1): 0 if there is none. */
uint64_t device_frame_bytes_auto(uint64_t total_bytes, uint64_t granularity);

const char *device_state_name(enum device_state state);

#endif
