/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The filler decides what the worker threads do: create fresh frames between the watermarks and for
 * those who wait, scrub what was returned, release what idle tenants keep when others need it.
 *
 * Order in which memory is made available (each line is tried before the next):
 *   1. frames that exist and are free to have (fresh, the tenant's own ready)   no work
 *   2. the tenant's own dirty frames                                           scrub
 *   3. free frames                                                             create
 *   4. ready, then dirty frames of the tenant with the most that nobody of it   release, then
 * create waits for
 *   5. idle reserves inside clients                                            ask (reclaim.c)
 */
#ifndef GPUMEMD_FILLER_H
#define GPUMEMD_FILLER_H

#include "daemon/device.h"

/* How long creation pauses after it failed: doubled from the first to the last. */
#define FILLER_BACKOFF_MIN_MS 100
#define FILLER_BACKOFF_MAX_MS 5000

/* Starts and stops the workers of a device. */
int filler_start(struct device *device);
void filler_stop(struct device *device);

/* Gives the workers what there is to do. Call after anything changed; cheap when nothing is. */
void filler_run(struct device *device);

/* A frame was put at the end of the tenant's dirty list. */
void filler_frame_dirty(struct device *device, struct tenant_device *tenant);

/* The tenant's last session is gone: what it returned is released. */
void filler_tenant_left(struct device *device, struct tenant_device *tenant);

/* The tenant's limit was lowered: what it returned is released as far as it has too much. */
void filler_trim_tenant(struct device *device, struct tenant_device *tenant);

/* Is the fresh pool filled, or as full as it can get for now? */
bool filler_is_settled(const struct device *device);

#endif
