/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where frames are and how they move: between the fresh pool, tenants' lists and objects. Each
 * function keeps state, list, charge and counters together, so none can be forgotten. No driver
 * calls; O(1) a frame.
 */
#ifndef GPUMEMD_FRAME_POOL_H
#define GPUMEMD_FRAME_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/device.h"
#include "daemon/object.h"

/* Can `frames` be had by this tenant at once, its limit included? */
bool frame_pool_has(const struct device *device, const struct tenant_device *tenant,
                    uint32_t frames);

/*
 * How many frames can be given out without anybody having to return one: those that are there, and
 * those that the daemon's own work (creating, scrubbing, releasing) will make.
 */
uint64_t frame_pool_supply(const struct device *device);

/* The same, less what waiting grants ask for and within the tenant's limit: what is left for the
 * next of it who asks. */
uint64_t frame_pool_obtainable(const struct device *device, const struct tenant_device *tenant);

/*
 * Grants `frames` frames (frame_pool_has() holds) to an object: the tenant's ready ones first, then
 * fresh ones. Fills ids[] and fds[] (borrowed: the descriptors stay the frames'). Returns how many
 * of them, the first ones, had been ready.
 */
uint32_t frame_pool_grant(struct device *device, struct tenant_device *tenant,
                          struct object *object, uint32_t frames, uint64_t *ids, int *fds);

/* Undoes the grant just made, in which nothing reached the client: everything is as before it. */
void frame_pool_undo(struct device *device, struct tenant_device *tenant, struct object *object,
                     const uint64_t *ids, uint32_t frames, uint32_t ready);

/* A granted frame comes back: dirty, and to the scrubber (or to be released, if its tenant has no
 * session left). */
void frame_pool_return(struct device *device, struct tenant_device *tenant, struct object *object,
                       uint32_t number);

/* A granted frame's session is closed while its process lives. */
void frame_pool_drain(struct device *device, struct tenant_device *tenant, struct object *object,
                      struct frame_list *draining, uint32_t number);

/* The process has ended: everything draining is dirty. */
void frame_pool_drained(struct device *device, struct tenant_device *tenant,
                        struct frame_list *draining);

/* Takes the frame out of use for ever; it is in no list. */
void frame_pool_quarantine(struct device *device, uint32_t number);

#endif
