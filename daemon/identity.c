/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/identity.h"

/* Linux 6.5; older headers lack it. (parisc and sparc number it otherwise.) */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

void identity_init(struct identity *identity)
{
        *identity = (struct identity){.pid = -1, .uid = (uid_t)-1, .gid = (gid_t)-1, .pidfd = -1};
}

void identity_deinit(struct identity *identity)
{
        if (identity->pidfd >= 0)
                close(identity->pidfd);
        identity->pidfd = -1;
}

/*
 * Kernels without SO_PEERPIDFD: open the pid, then make sure that what was opened is still alive
 * and has the peer's user. A pid reused by another process of the same user between its death and
 * this moment would pass; it is the same tenant.
 */
static int open_and_recheck(const struct ucred *peer)
{
        struct stat status;
        char path[32];
        int fd, r;

        if (peer->pid <= 0)
                return -ESRCH;
        fd = pidfd_open(peer->pid, 0);
        if (fd < 0)
                return -errno;
        snprintf(path, sizeof(path), "/proc/%d", (int)peer->pid);
        if (stat(path, &status) < 0) {
                r = errno == ENOENT ? -ESRCH : -errno;
        } else if (pidfd_send_signal(fd, 0, NULL, 0) < 0 && errno != EPERM) {
                r = -errno;
        } else if (status.st_uid != peer->uid && status.st_uid != 0) {
                /* (A process that may not be dumped shows as root's.) */
                r = -ESRCH;
        } else {
                return fd;
        }
        close(fd);
        return r;
}

int identity_of_peer(struct identity *identity, int socket)
{
        struct ucred peer;
        socklen_t length = sizeof(peer);
        int fd;

        identity_init(identity);
        if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
                return -errno;
        length = sizeof(fd);
        if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) < 0) {
                if (errno != ENOPROTOOPT)
                        return errno == EINVAL ? -ESRCH : -errno;
                fd = open_and_recheck(&peer);
                if (fd < 0)
                        return fd;
        }
        identity->pid = peer.pid;
        identity->uid = peer.uid;
        identity->gid = peer.gid;
        identity->pidfd = fd;
        return 0;
}

bool identity_has_exited(const struct identity *identity)
{
        struct pollfd poller = {.fd = identity->pidfd, .events = POLLIN};

        return identity->pidfd >= 0 && poll(&poller, 1, 0) > 0 && poller.revents != 0;
}
