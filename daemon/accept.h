/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepting clients. Running out of descriptors or memory does not end the service and does not
 * make it spin: accepting pauses for a moment.
 */
#ifndef GPUMEMD_ACCEPT_H
#define GPUMEMD_ACCEPT_H

struct acceptor;
struct daemon;

#define ACCEPT_PAUSE_MS 100

/* Serves `listen_fd` (borrowed). 0 or negative errno. */
int acceptor_new(struct acceptor **out, struct daemon *daemon, int listen_fd);

/* Returns NULL; NULL is fine. */
struct acceptor *acceptor_free(struct acceptor *acceptor);

#endif
