/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end of a connection: asked of the kernel once, at accept, and fixed for the
 * life of the session. It is the process that connected; a child that inherited the socket does not
 * count, and what the process joins or leaves later (control group, groups) does not either.
 */
#ifndef GPUMEMD_IDENTITY_H
#define GPUMEMD_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct identity {
        pid_t pid; /* as this process's pid namespace names it; for people only; 0: it has none */
        uid_t uid;
        gid_t gid;
        gid_t *groups; /* the supplementary ones; owned */
        size_t groups_count;
        char *unit;   /* its systemd system unit, "vllm.service"; owned; NULL: none */
        char *cgroup; /* path of its control group, "/system.slice/..."; owned; NULL: unknown */
        int pidfd;    /* owned; -1 if none */
};

void identity_init(struct identity *identity);

/* 0; -ESRCH if the process is gone already; other negative errno: nothing is owned. */
int identity_of_peer(struct identity *identity, int socket);

/* Idempotent. */
void identity_deinit(struct identity *identity);

/* Has the process ended? */
bool identity_has_exited(const struct identity *identity);

#endif
