/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon writes into its state and hands to its keeper while it works: sessions and
 * objects. (Frames: frame.c writes their records, filler.c hands over their descriptors.)
 */
#ifndef GPUMEMD_KEPT_H
#define GPUMEMD_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/session.h"

/* The session is about to be accepted for `device`: makes its record and hands over its process,
 * and its socket if it can be `resumed`. 0 or -ENOSPC. */
int kept_session_new(struct session *session, struct device *device, const char *name, bool resume);

/* Its record, from the one that another daemon wrote. */
void kept_session_restore(struct session *session, const struct state_session *old);

/* It is closed: its connection is gone, its frames drain. */
void kept_session_close(struct session *session);

/* It is dead. */
void kept_session_free(struct session *session);

/* The reply to the request that is outstanding; everything that the request did is committed. */
void kept_session_commit(struct session *session, const void *reply, size_t length);

/* Part of the outstanding request. */
void kept_object_new(struct session *session, const struct object *object);
void kept_object_free(struct session *session, const struct object *object);

/* keeper_link.h: hands everything to a new keeper. `userdata` is the daemon. */
void kept_hand_over(void *userdata);

/* Makes the state, for the devices as they are, and lets their tables write to it. */
int kept_start(struct daemon *daemon, uint32_t sessions_extra);

/* The daemon ends: what it does from now on concerns nobody any more. With `leave` a next daemon
 * shall find everything as it is. */
void kept_stop(struct daemon *daemon, bool leave);

/* For the debug check: how many records say something else than what they stand for. */
uint32_t kept_check(struct daemon *daemon);

#endif
