/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants: all or nothing, first come first served. A request that can be met from what is there is
 * answered at once. One that needs only the daemon's own work (creating, scrubbing, releasing)
 * waits for that, whatever its wait_ms. One that needs somebody to give something back waits until
 * its deadline, or is refused at once if it does not want to wait.
 *
 * One that its tenant's limit does not let through waits for its own tenant only (or is refused),
 * and those of other tenants pass it by.
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

/* A session's waiting grant; embedded in it. */
struct grant_wait {
        struct list link; /* in the device's queue; linked to itself when nothing waits */
        bool held;        /* in the queue of those whose tenant's limit holds them back */
        struct session *session;
        struct object *object;
        uint32_t frames;
        uint32_t wait_ms;
        uint64_t asked_ns;
        uint64_t deadline_ns;
};

void grant_queue_init(struct grant_queue *queue);
/* 0 or negative errno. */
int grant_queue_start(struct device *device);
void grant_queue_stop(struct device *device);

void grant_wait_init(struct grant_wait *wait, struct session *session);
static inline bool grant_is_waiting(const struct grant_wait *wait)
{
        return !list_is_empty(&wait->link);
}

/* Answers the session's request, now or later: it always gets exactly one reply. */
void grant_request(struct session *session, uint64_t object, uint32_t frames, uint32_t wait_ms);

/* Takes a waiting grant out of the queue without an answer (the session is closing). */
void grant_cancel(struct device *device, struct grant_wait *wait);

/* Answers, in order, those who wait and can now be met, and those who cannot be met any more. Call
 * after frames became available or stopped being obtainable. */
void grant_run(struct device *device);

#endif
