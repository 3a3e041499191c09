/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's end of the connection to its keeper (keeper/protocol.h).
 *
 * At the start the link is asked synchronously (hello, fetch). Once it is started it belongs to the
 * loop: puts and drops are queued, sent in order without waiting, as many to a message as possible,
 * and `done` is called when the keeper has answered. `done` may be NULL.
 *
 * When the keeper dies, another is started (or, where it is a service of its own, waited for), is
 * handed everything anew by the daemon's `hand_over`, and what was asked of the dead one is
 * settled: drops are done, since it held nothing any more; puts with a `done` are sent to the new
 * one; the others are part of what is handed over.
 *
 * Descriptors stay the caller's and must stay open until they are dropped or the put was answered.
 */
#ifndef GPUMEMD_KEEPER_LINK_H
#define GPUMEMD_KEEPER_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "daemon/keeper/protocol.h"
#include "daemon/log.h"

struct keeper_link;

/* How long the keeper may take to answer at the start. */
#define KEEPER_ANSWER_MS 10000

struct keeper_link_options {
        const char *path;       /* where the keeper listens; NULL: it started the daemon */
        const char *keeper;     /* with path NULL: the program to start another with */
        char *const *arguments; /* and the daemon's own command, for it to repeat */
};

/* Says hello over a connected socket (taken), or connects to options->path. *held: how many
 * descriptors there are to fetch. `options` and what it points to must outlive the link. 0; -EBUSY:
 * another daemon lives; other negative errno. */
int keeper_link_new_consume_fd(struct keeper_link **out, int fd,
                               const struct keeper_link_options *options, uint64_t *held);

/* Fetches everything; the callback takes each descriptor. 0 or negative errno. */
int keeper_link_fetch(struct keeper_link *link,
                      void (*take)(void *userdata, uint32_t kind, uint64_t id, int fd),
                      void *userdata);

typedef void keeper_done_t(void *userdata, uint64_t id, int result);

/* From now on in the loop. `hand_over` puts everything that a new keeper shall hold. */
int keeper_link_start(struct keeper_link *link, sd_event *event, struct log *log,
                      void (*hand_over)(void *userdata), void *userdata);

/* Without waiting for anything that is outstanding. Returns NULL; NULL is fine. */
struct keeper_link *keeper_link_free(struct keeper_link *link);

/* 0, or -ENOMEM: nothing is queued and `done` will not be called. */
int keeper_link_put(struct keeper_link *link, uint32_t kind, uint64_t id, int fd,
                    keeper_done_t *done, void *userdata);
int keeper_link_drop(struct keeper_link *link, uint32_t kind, uint64_t id, keeper_done_t *done,
                     void *userdata);
/* Waits until everything that is queued was sent (which is when it is safe), a second at most: not
 * at all unless the keeper is behind. `done` of what was sent before may be called. */
void keeper_link_send_all(struct keeper_link *link);

int keeper_link_ready(struct keeper_link *link);
/* Sent at once, behind what is queued, as far as the socket takes it. */
void keeper_link_stop(struct keeper_link *link);

/* Does the keeper end with the daemon (it started it), so that nothing outlives a clean stop? */
bool keeper_link_is_own(const struct keeper_link *link);

/* Is nothing queued or unanswered? (For checks.) */
bool keeper_link_is_idle(const struct keeper_link *link);

#endif
