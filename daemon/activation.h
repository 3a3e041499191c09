/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening sockets that were made by somebody else, systemd for one (sd_listen_fds(3)): recognised
 * by their names, "client" and "admin" (FileDescriptorName= of the socket units). They are served
 * as they are: never bound, chmodded or removed by the daemon.
 */
#ifndef GPUMEMD_ACTIVATION_H
#define GPUMEMD_ACTIVATION_H

#include <stdbool.h>

#include "daemon/log.h"

#define ACTIVATION_CLIENT "client"
#define ACTIVATION_ADMIN  "admin"

struct activation {
        int client_fd, admin_fd; /* -1: not given */
};

/*
 * Takes what this process was given, so that nothing started later takes it again (the environment
 * is cleaned). Descriptors are close-on-exec and not blocking from now on. Nothing given is no
 * error.
 *
 * 0; -EINVAL: a name that is not known, or one given twice; -ENOTSOCK: not a listening Unix socket
 * of the kind that its name wants. Then what is wrong is logged, and everything given is closed.
 */
int activation_take(struct activation *activation, struct log *log);

/* Closes what is still there. Idempotent. */
void activation_deinit(struct activation *activation);

/* Has this process been given any? (Before activation_take().) */
bool activation_is_pending(void);

#endif
