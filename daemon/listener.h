/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening Unix sockets: made with their mode and group before anybody can connect, never in place
 * of one that is alive, removed at the end if they are still ours.
 */
#ifndef GPUMEMD_LISTENER_H
#define GPUMEMD_LISTENER_H

#include <stdint.h>
#include <sys/types.h>

#include "daemon/log.h"

struct listener;

/*
 * Makes a socket of `type` (SOCK_STREAM, SOCK_SEQPACKET) at `path`. If `group` exists, the socket
 * is given to it with mode 0660, else (or with NULL) it is the owner's with 0600. A missing
 * directory is made (one level, 0755). A stale socket is replaced.
 *
 * 0; -EADDRINUSE: somebody listens there, or what is there is no socket; other negative errno. What
 * went wrong is logged.
 */
int listener_new(struct listener **out, const char *path, int type, const char *group,
                 struct log *log);

/*
 * Takes a listening socket that somebody else made and keeps (systemd): it is served as it is, and
 * its path stays. 0 or -ENOMEM; then the socket is closed.
 */
int listener_given_consume_fd(struct listener **out, int fd);

/* Takes a listening socket that another daemon made at `path`. -ENOENT: it is not there; then the
 * socket is closed. */
int listener_adopt_consume_fd(struct listener **out, int fd, const char *path);

/* The path stays when it is freed: a next daemon has the socket. NULL is fine. */
void listener_leave(struct listener *listener);

/* Closes, and removes the path if it is still the one that was made. Returns NULL; NULL is fine. */
struct listener *listener_free(struct listener *listener);

/* The listening descriptor; owned by the listener, not blocking. */
int listener_fd(const struct listener *listener);

/* Where it listens; empty if it has no path. */
const char *listener_path(const struct listener *listener);

#endif
