/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants: all or nothing, first come first served. A request that can be met from what is there is
 * answered at once. One that needs only the daemon's own work (creating, scrubbing, releasing)
 * waits for that, whatever its wait_ms. One that needs somebody to give something back waits until
 * its deadline, or is refused at once if it does not want to wait.
 *
 * One that its tenant's limit does not let through waits for its own tenant only (or is refused),
 * and those of other tenants pass it by.
 *
 * Places. A client may cut a long wait into short ones. So a wait that ends without memory keeps
 * its place for GRANT_PLACE_MS: the session that asks for the same again within that time goes on
 * where it was, and nobody behind it has taken what gathered meanwhile. A session has one place;
 * asking for anything else gives it up.
 *
 * Reservations. What gathers for a wait is kept from those behind it, but only for GRANT_RESERVE_MS
 * from its first asking: then those who can be met pass it. A session whose reservation ran out
 * gets the next one once it has been granted something, or after GRANT_RESERVE_PAUSE_MS, so that
 * nobody can keep memory idle by asking for more than there is.
 */
#ifndef GPUMEMD_GRANT_H
#define GPUMEMD_GRANT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/device.h"
#include "daemon/object.h"

struct session;

/* How long a grant waits for nothing but the daemon's own work. */
#define GRANT_WORK_MS 10000

#define GRANT_PLACE_MS         250
#define GRANT_RESERVE_MS       2000
#define GRANT_RESERVE_PAUSE_MS 20000

/* A session's waiting grant; embedded in it. */
struct grant_wait {
        struct list link; /* in the device's queue; linked to itself when nothing waits */
        bool held;        /* in the queue of those whose tenant's limit holds them back */
        bool away;        /* refused for now; its place is kept until deadline_ns */
        struct session *session;
        struct object *object;
        uint32_t frames;
        uint32_t wait_ms;
        uint64_t asked_ns; /* first, if it asked again */
        uint64_t deadline_ns;
        uint64_t reserves_until_ns; /* those behind it wait until then, too; 0: they do not */
        uint64_t reserve_next_ns;   /* no reservation for this session before; 0: at any time */
};

void grant_queue_init(struct grant_queue *queue);
/* 0 or negative errno. */
int grant_queue_start(struct device *device);
void grant_queue_stop(struct device *device);

void grant_wait_init(struct grant_wait *wait, struct session *session);
/* Is it in the queue, waiting or with a place kept? */
static inline bool grant_is_queued(const struct grant_wait *wait)
{
        return !list_is_empty(&wait->link);
}
static inline bool grant_is_waiting(const struct grant_wait *wait)
{
        return grant_is_queued(wait) && !wait->away;
}

/* Answers the session's request, now or later: it always gets exactly one reply. */
void grant_request(struct session *session, uint64_t object, uint32_t frames, uint32_t wait_ms);

/* Takes a waiting grant, or the place kept for one, out of the queue without an answer (the session
 * is closing, or the object goes). */
void grant_cancel(struct device *device, struct grant_wait *wait);

/* Answers, in order, those who wait and can now be met, and those who cannot be met any more. Call
 * after frames became available or stopped being obtainable. */
void grant_run(struct device *device);

#endif
