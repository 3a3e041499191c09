/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: what it holds, the daemon it serves, and the loop that waits for both (protocol.h).
 * One thread, no waits but the loop's.
 */
#ifndef GPUMEMD_KEEPER_KEEPER_H
#define GPUMEMD_KEEPER_KEEPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/keeper/holdings.h"
#include "daemon/keeper/supervisor.h"

/* Connections at once: the daemon's, and those who try. */
#define KEEPER_CONNECTIONS_MAX 8

struct keeper_connection {
        int fd;    /* -1: free */
        int pidfd; /* of who connected */
        pid_t pid; /* for people */
        bool is_daemon;
};

struct keeper {
        struct holdings holdings;
        struct keeper_connection connections[KEEPER_CONNECTIONS_MAX];
        int listen_fd; /* -1: none */
        int signal_fd; /* SIGTERM, SIGINT, SIGCHLD, which are blocked */
        bool stopping;
        int daemon_pidfd; /* of the process that said HELLO; -1: none, or it is dead */
        pid_t daemon_pid; /* for people */
        struct supervisor supervisor;
};

/* Nothing is open yet. */
void keeper_init(struct keeper *keeper);
/* Lets go of everything it holds. Idempotent. */
void keeper_deinit(struct keeper *keeper);

/* Serves a connected socket; its peer is asked of the kernel. 0 or negative errno; then the socket
 * is closed. */
int keeper_add_consume_fd(struct keeper *keeper, int fd);

/* Until a signal or the daemon's STOP ends it: the exit status. */
int keeper_run(struct keeper *keeper);

__attribute__((format(printf, 2, 3))) void keeper_log(const char *level, const char *format, ...);

#endif
