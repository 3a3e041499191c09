/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end of a connection: asked of the kernel once, at accept, and fixed for the
 * life of the session. It is the process that connected; a child that inherited the socket does not
 * count.
 */
#ifndef GPUMEMD_IDENTITY_H
#define GPUMEMD_IDENTITY_H

#include <stdbool.h>
#include <sys/types.h>

struct identity {
        pid_t pid; /* as this process's pid namespace names it; for people only */
        uid_t uid;
        gid_t gid;
        int pidfd; /* owned; -1 if none */
};

void identity_init(struct identity *identity);

/* 0; -ESRCH if the process is gone already; other negative errno. */
int identity_of_peer(struct identity *identity, int socket);

/* Idempotent. */
void identity_deinit(struct identity *identity);

/* Has the process ended? */
bool identity_has_exited(const struct identity *identity);

#endif
