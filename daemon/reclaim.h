/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Getting memory back from those who have it. In this release that is asking: sessions on the
 * device are sent EVENT_RECLAIM and return the idle reserves they keep.
 */
#ifndef GPUMEMD_RECLAIM_H
#define GPUMEMD_RECLAIM_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/device.h"

struct session;

/* Sessions are not asked more often than this, so that one client cannot make others busy. */
#define RECLAIM_INTERVAL_MS 100

/* And an ask within this time of the last is for at least twice as many frames: a grant is at most
 * one message's worth, and a client that needs much comes again and again. */
#define RECLAIM_FORGET_MS 400

/* Asks all sessions of the device that hold frames, except `except` (may be NULL), for at least
 * `frames` frames. */
void reclaim_ask(struct device *device, const struct session *except, uint64_t frames);

/* The same, of one tenant's sessions only: its limit is reached. */
void reclaim_ask_tenant(struct tenant_device *tenant, const struct session *except,
                        uint64_t frames);

/* Writes who holds most on the device: "engine 'a' (pid 12, uid 0) 512 MiB, ...": the three
 * largest. */
void reclaim_describe_holders(const struct device *device, char *text, size_t size);

#endif
