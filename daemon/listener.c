/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/listener.h"

#define LOCK_TRIES   100
#define LOCK_WAIT_MS 20

struct listener {
        int fd;
        char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
        dev_t device;
        ino_t inode; /* of the path that was made; 0: none */
};

static int failed(struct log *log, const char *what, const char *path, int error)
{
        log_error(log, what, LOG_TEXT("path", path), LOG_TEXT("error", strerror(-error)));
        return error;
}

/* Only one daemon at a time looks and binds in a directory. The lock goes with the descriptor. */
static int lock_directory(const char *path, struct log *log)
{
        char copy[sizeof(((struct sockaddr_un *)0)->sun_path)];
        const char *directory;
        int fd;

        snprintf(copy, sizeof(copy), "%s", path);
        directory = dirname(copy);
        if (mkdir(directory, 0755) < 0 && errno != EEXIST)
                return failed(log, "the socket's directory cannot be made", directory, -errno);
        fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return failed(log, "the socket's directory cannot be opened", directory, -errno);
        for (int i = 0; i < LOCK_TRIES; i++) {
                const struct timespec pause = {.tv_nsec = LOCK_WAIT_MS * 1000000L};

                if (flock(fd, LOCK_EX | LOCK_NB) == 0)
                        return fd;
                nanosleep(&pause, NULL);
        }
        close(fd);
        return failed(log, "the socket's directory is locked by another process", directory,
                      -EBUSY);
}

/* 0 if nothing is there any more; -EADDRINUSE if it must stay. */
static int remove_stale(const struct sockaddr_un *address, int type, struct log *log)
{
        struct stat status;
        int fd, r;

        if (lstat(address->sun_path, &status) < 0)
                return errno == ENOENT ? 0
                                       : failed(log, "the socket's path cannot be looked at",
                                                address->sun_path, -errno);
        if (!S_ISSOCK(status.st_mode)) {
                log_error(log, "there is something at the socket's path that is no socket",
                          LOG_TEXT("path", address->sun_path));
                return -EADDRINUSE;
        }
        fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return failed(log, "a socket cannot be made", address->sun_path, -errno);
        r = connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
        close(fd);
        /* Nobody has it open: it was left behind. Any other answer comes from somebody alive. */
        if (r == -ECONNREFUSED) {
                if (unlink(address->sun_path) < 0 && errno != ENOENT)
                        return failed(log, "a stale socket cannot be removed", address->sun_path,
                                      -errno);
                return 0;
        }
        if (r == -ENOENT)
                return 0;
        log_error(log, "another daemon listens there", LOG_TEXT("path", address->sun_path));
        return -EADDRINUSE;
}

static int set_group(const char *path, const char *group, struct log *log)
{
        const struct group *entry = group ? getgrnam(group) : NULL;

        if (!entry)
                return 0;
        if (lchown(path, (uid_t)-1, entry->gr_gid) < 0 || chmod(path, 0660) < 0) {
                /* An ordinary user's daemon may not give it away; it stays the owner's. */
                log_warning(log, "the socket cannot be given to its group", LOG_TEXT("path", path),
                            LOG_TEXT("group", group), LOG_TEXT("error", strerror(errno)));
        }
        return 0;
}

static int bind_and_listen(struct listener *listener, const struct sockaddr_un *address, int type,
                           const char *group, struct log *log)
{
        struct stat status;

        listener->fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (listener->fd < 0)
                return failed(log, "a socket cannot be made", address->sun_path, -errno);
        /* The mode of the socket is the mode that bind gives the path. */
        if (fchmod(listener->fd, 0600) < 0)
                return failed(log, "a socket's mode cannot be set", address->sun_path, -errno);
        if (bind(listener->fd, (const struct sockaddr *)address, sizeof(*address)) < 0)
                return failed(log, "a socket cannot be bound", address->sun_path, -errno);
        if (lstat(address->sun_path, &status) < 0)
                return failed(log, "a socket vanished", address->sun_path, -errno);
        listener->device = status.st_dev;
        listener->inode = status.st_ino;
        set_group(address->sun_path, group, log);
        if (listen(listener->fd, SOMAXCONN) < 0)
                return failed(log, "a socket cannot be listened on", address->sun_path, -errno);
        return 0;
}

int listener_new(struct listener **out, const char *path, int type, const char *group,
                 struct log *log)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct listener *listener;
        int lock, r;

        *out = NULL;
        if (strlen(path) >= sizeof(address.sun_path))
                return failed(log, "a socket's path is too long", path, -ENAMETOOLONG);
        memcpy(address.sun_path, path, strlen(path) + 1);
        listener = calloc(1, sizeof(*listener));
        if (!listener)
                return -ENOMEM;
        listener->fd = -1;
        memcpy(listener->path, address.sun_path, sizeof(listener->path));

        lock = lock_directory(path, log);
        if (lock < 0) {
                listener_free(listener);
                return lock;
        }
        r = remove_stale(&address, type, log);
        if (r == 0)
                r = bind_and_listen(listener, &address, type, group, log);
        close(lock);
        if (r < 0) {
                listener_free(listener);
                return r;
        }
        *out = listener;
        return 0;
}

int listener_given_consume_fd(struct listener **out, int fd)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        socklen_t length = sizeof(address);
        struct listener *listener = calloc(1, sizeof(*listener));

        *out = NULL;
        if (!listener) {
                close(fd);
                return -ENOMEM;
        }
        listener->fd = fd;
        /* A path of full length has no NUL in the address: it is cut. */
        if (getsockname(fd, (struct sockaddr *)&address, &length) == 0)
                memcpy(listener->path, address.sun_path, sizeof(listener->path) - 1);
        *out = listener;
        return 0;
}

int listener_adopt_consume_fd(struct listener **out, int fd, const char *path)
{
        struct listener *listener = calloc(1, sizeof(*listener));
        struct sockaddr_un address;
        socklen_t length = sizeof(address);
        struct stat status;

        *out = NULL;
        memset(&address, 0, sizeof(address));
        if (!listener || getsockname(fd, (struct sockaddr *)&address, &length) < 0 ||
            strncmp(address.sun_path, path, sizeof(address.sun_path)) != 0 ||
            lstat(path, &status) < 0 || !S_ISSOCK(status.st_mode)) {
                free(listener);
                close(fd);
                return -ENOENT;
        }
        listener->fd = fd;
        snprintf(listener->path, sizeof(listener->path), "%s", path);
        listener->device = status.st_dev;
        listener->inode = status.st_ino;
        *out = listener;
        return 0;
}

void listener_leave(struct listener *listener)
{
        if (listener)
                listener->inode = 0;
}

struct listener *listener_free(struct listener *listener)
{
        struct stat status;

        if (!listener)
                return NULL;
        if (listener->inode != 0 && lstat(listener->path, &status) == 0 &&
            status.st_dev == listener->device && status.st_ino == listener->inode)
                unlink(listener->path);
        if (listener->fd >= 0)
                close(listener->fd);
        free(listener);
        return NULL;
}

int listener_fd(const struct listener *listener)
{
        return listener->fd;
}

const char *listener_path(const struct listener *listener)
{
        return listener->path;
}
