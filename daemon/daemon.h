/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon: devices, sessions and tenants, and the event loop that runs them all. Everything here
 * belongs to the loop's thread; worker threads see only frames handed to them (frame.h, worker.h).
 *
 * Ownership: a device owns its frames, workers and driver context; a session its connection,
 * objects and identity; an object the list of frames granted to it; a tenant what is charged to it
 * and the frames it returned. Nothing is freed while the loop still looks at it: a closed session
 * is unlinked at once and freed by the reaper in a later turn.
 */
#ifndef GPUMEMD_DAEMON_H
#define GPUMEMD_DAEMON_H

#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "daemon/config.h"
#include "daemon/crash.h"
#include "daemon/list.h"
#include "daemon/log.h"
#include "libclient/driver/driver.h"

struct acceptor;
struct admin;
struct keeper_link;
struct listener;
struct notify;
struct state;
struct takeover;

struct daemon {
        struct config config;
        struct log log;
        sd_event *event;
        struct driver *driver;           /* what was opened as configured; NULL if it was given */
        const struct driver *driver_use; /* the table that is used */

        uint64_t epoch_ns;   /* CLOCK_REALTIME at the start */
        uint64_t started_us; /* CLOCK_MONOTONIC at the start */
        struct list devices; /* struct device.link, in the driver's order */
        uint32_t devices_count;
        struct list sessions; /* struct session.link, by number; closed ones that drain included */
        uint32_t sessions_count;
        uint64_t sessions_last; /* the number of the newest */
        struct list tenants;    /* struct tenant.link */
        uint32_t tenants_last;  /* the number of the newest */

        struct list dead; /* struct session.link: closed, drained, to be freed by the reaper */
        sd_event_source *reaper;

        struct listener *clients; /* client.sock */
        struct acceptor *acceptor;
        struct listener *admins; /* admin.sock, bound here and served by `admin` */
        struct admin *admin;

        struct notify *notify;      /* while it runs: what the service manager is told; or NULL */
        struct state *state;        /* what the next daemon sees; NULL at the very end */
        struct keeper_link *keeper; /* NULL: nothing outlives this daemon */
        struct takeover *takeover;  /* while the start goes on: what the last daemon left */
        uint64_t generation;        /* how many daemons this one has taken over from, in a row */
        bool leaving;               /* it ends, and a next one shall find everything */
        bool ending;                /* it ends: nothing is written to any frame any more */
        struct crash_points crash_points;

        uint8_t *buffer;               /* GPUMEM_MESSAGE_MAX bytes: the message being handled */
        struct log_limit accept_limit; /* trouble at accept */
        bool ready;                    /* memory is there and it was said */
};

/*
 * Opens the driver and all devices, and starts filling. `driver` is borrowed; NULL opens the one
 * that is configured. No sockets yet. 0 or negative errno; what went wrong is in the log.
 */
int daemon_new(struct daemon **out, const struct config *config, int log_fd,
               const struct driver *driver);

/* The same with a keeper: `keeper` (taken, also on failure) holds `held` descriptors, with which it
 * goes on where the last daemon ended. */
int daemon_new_with_keeper(struct daemon **out, const struct config *config, int log_fd,
                           const struct driver *driver, struct keeper_link *keeper, uint64_t held);

/* A tenant's number. */
uint32_t daemon_next_tenant(struct daemon *daemon);

/* Serves client.sock and admin.sock: those that were passed (activation.h), else those that the
 * last daemon made, else made here. 0 or negative errno (-EADDRINUSE: another daemon). */
int daemon_listen(struct daemon *daemon);

/* Runs until SIGTERM or SIGINT (which must be blocked in all threads) or a failure of the loop:
 * 0 or negative errno. */
int daemon_run(struct daemon *daemon);

/* Closes all sessions, frees all memory, removes the sockets; with a keeper that is a service of
 * its own it only lets go of them, and they stay. Returns NULL; NULL is fine. */
struct daemon *daemon_free(struct daemon *daemon);

/* Called by a device whenever its fresh pool may have become full: says once that memory is ready.
 */
void daemon_check_ready(struct daemon *daemon);

/*
 * The debug check (`gpumemctl debug check`): counts everything again and compares. Changes nothing.
 * Returns how many things do not add up, 0 if all is well; `report` (NUL-terminated, cut to `size`)
 * has one line per problem, or one per device saying what was counted.
 */
int daemon_check(struct daemon *daemon, char *report, size_t size);

#endif
