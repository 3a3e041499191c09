/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on where another daemon ended.
 *
 *   takeover_new()       fetches all descriptors from the keeper and reads the state; decides for
 * every frame and session what shall become of it takeover_geometry()  a device that had frames
 * keeps their size and number takeover_import()    imports its frames and maps them in the direct
 * map takeover_rebuild()   makes tenants, sessions, objects and lists, and writes them into the new
 * state takeover_finish()    the new state is in the keeper: what does not belong to anything is
 * dropped, closed sessions go on draining, clients are told
 *
 * Until the keeper has the new state nothing is changed that the old one describes, so a crash in
 * here costs nothing but another takeover. Whatever does not add up (a descriptor that no record
 * names, a record without its descriptor, a frame of an object that does not exist) is released and
 * counted in the log.
 */
#ifndef GPUMEMD_TAKEOVER_H
#define GPUMEMD_TAKEOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/daemon.h"

struct device;
struct takeover;

/* From daemon->keeper. 0; -EPROTONOSUPPORT: a newer daemon's state, which stays as it is; other
 * negative errno. Logged. */
int takeover_new(struct takeover **out, struct daemon *daemon);

/* Closes what was not taken. Returns NULL; NULL is fine. */
struct takeover *takeover_free(struct takeover *takeover);

/* The takeover may be NULL in what follows: nothing was left. */

/* Sets device->slot. true: the device had frames; *frame_bytes and *frames are theirs. */
bool takeover_geometry(struct takeover *takeover, struct device *device, uint64_t *frame_bytes,
                       uint64_t *frames);

/* The device's table is there and the direct map reserved. A frame that cannot be imported is given
 * up; 0 or negative errno. */
int takeover_import(struct takeover *takeover, struct device *device);

/* How many sessions there will be. */
uint32_t takeover_sessions(const struct takeover *takeover);

/* 0 or negative errno. */
int takeover_rebuild(struct takeover *takeover, struct daemon *daemon);
void takeover_finish(struct takeover *takeover, struct daemon *daemon);

/* The listening socket of that id (keeper/protocol.h), the caller's now; -1: there is none. */
int takeover_listener(struct takeover *takeover, uint64_t id);

#endif
