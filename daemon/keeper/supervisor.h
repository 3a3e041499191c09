/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting the daemon and starting it again, where no service manager does.
 *
 * A daemon that was in service (READY) is started again at once when it dies, unless many died one
 * right after another; one that dies before it was in service after a pause that doubles from
 * SUPERVISOR_PAUSE_MIN_MS to SUPERVISOR_PAUSE_MAX_MS. It is never given up, with one exception: as
 * long as no daemon has ever been in service there is nothing to lose, so the first one's failure
 * is final and its exit status the keeper's.
 */
#ifndef GPUMEMD_KEEPER_SUPERVISOR_H
#define GPUMEMD_KEEPER_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SUPERVISOR_PAUSE_MIN_MS 20
#define SUPERVISOR_PAUSE_MAX_MS 2000
/* More deaths in service than this within a second: a pause, so that nothing spins. */
#define SUPERVISOR_BURST   20
#define SUPERVISOR_STOP_MS 30000 /* for the daemon to end after SIGTERM; then SIGKILL */

/* The descriptor under which a daemon finds its keeper's socket. */
#define SUPERVISOR_DAEMON_FD 3

struct supervisor {
        char **arguments;  /* of the daemon, argv[0] is its path; NULL: nothing is supervised */
        bool adopted;      /* somebody was in service before this keeper was */
        bool was_ready;    /* some daemon has been in service */
        bool ready;        /* this one is */
        bool told_to_stop; /* by it: STOP */
        pid_t child;       /* started by us and not yet waited for; 0: none */
        uint32_t early_deaths;
        uint64_t window_ns; /* of the burst */
        uint32_t deaths;    /* in it */
        uint64_t start_ns;  /* when to start the next; 0: not */
        uint64_t kill_ns;   /* when to SIGKILL it; 0: not */
        uint64_t logged_ns;
};

/* Starts the daemon: its end of a new connection is *fd. 0 or negative errno. */
int supervisor_start(struct supervisor *supervisor, int *fd);

/* The daemon has died (at `now_ns`). true: it will be started again at start_ns. */
bool supervisor_died(struct supervisor *supervisor, uint64_t now_ns);

/* Waits for our child without blocking. true: it has ended, with *status. */
bool supervisor_reap(struct supervisor *supervisor, int *status);

#endif
