/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-login.h>
#include <unistd.h>

#include "daemon/identity.h"

/* Linux 6.5; older headers lack it. (parisc and sparc number it otherwise.) */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

/* A process of more groups than this (the kernel allows 65,536) is matched by its primary one. */
#define GROUPS_MAX 4096

void identity_init(struct identity *identity)
{
        *identity = (struct identity){.pid = -1, .uid = (uid_t)-1, .gid = (gid_t)-1, .pidfd = -1};
}

void identity_deinit(struct identity *identity)
{
        if (identity->pidfd >= 0)
                close(identity->pidfd);
        identity->pidfd = -1;
        free(identity->groups);
        free(identity->unit);
        free(identity->cgroup);
        identity->groups = NULL;
        identity->groups_count = 0;
        identity->unit = identity->cgroup = NULL;
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

static int read_groups(struct identity *identity, int socket)
{
        socklen_t length = 0;

        if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, NULL, &length) < 0 && errno != ERANGE)
                return errno == ENOPROTOOPT || errno == ENODATA ? 0 : -errno;
        if (length == 0 || length > GROUPS_MAX * sizeof(gid_t))
                return 0;
        identity->groups = malloc(length);
        if (!identity->groups)
                return -ENOMEM;
        if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, identity->groups, &length) < 0)
                return -errno;
        identity->groups_count = length / sizeof(gid_t);
        return 0;
}

/* The path in the unified hierarchy, else in systemd's own. NULL: there is none, or no memory. */
static char *find_cgroup(FILE *file)
{
        char *line = NULL, *found = NULL;
        size_t size = 0;

        while (getline(&line, &size, file) >= 0) {
                const char *path = strchr(line, ':');

                path = path ? strchr(path + 1, ':') : NULL;
                if (!path || path[1] != '/')
                        continue;
                line[strcspn(line, "\n")] = '\0';
                if (strncmp(line, "0::", 3) == 0 || (!found && strstr(line, ":name=systemd:"))) {
                        free(found);
                        found = strdup(path + 1);
                        if (line[0] == '0')
                                break;
                }
        }
        free(line);
        return found;
}

/*
 * Unit and control group are looked up by pid, which may name another process by then if this one
 * has ended: the pidfd is asked after reading. (A process in a pid namespace that is not below ours
 * has no pid here; it is matched by its user and groups.) The unit is a system unit only: a user
 * may name its own units as it likes.
 */
static int read_place(struct identity *identity)
{
        char path[32];
        FILE *file;
        int r;

        if (identity->pid <= 0)
                return 0;
        snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)identity->pid);
        file = fopen(path, "re");
        if (file) {
                identity->cgroup = find_cgroup(file);
                fclose(file);
        }
        r = sd_pid_get_unit(identity->pid, &identity->unit);
        if (identity_has_exited(identity))
                return -ESRCH;
        return r == -ENOMEM ? r : 0;
}

int identity_of_peer(struct identity *identity, int socket)
{
        struct ucred peer;
        socklen_t length = sizeof(peer);
        int fd, r;

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
        r = read_groups(identity, socket);
        if (r >= 0)
                r = read_place(identity);
        if (r < 0)
                identity_deinit(identity);
        return r < 0 ? r : 0;
}

bool identity_has_exited(const struct identity *identity)
{
        struct pollfd poller = {.fd = identity->pidfd, .events = POLLIN};

        return identity->pidfd >= 0 && poll(&poller, 1, 0) > 0 && poller.revents != 0;
}
