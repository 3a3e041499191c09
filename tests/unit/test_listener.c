/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/identity.h"
#include "daemon/listener.h"
#include "tests/support/daemon_unit.h"

static char directory[] = "/tmp/gpumem-test-listener-XXXXXX";
static char path[sizeof(directory) + 32];
static struct log logger = {.fd = -1};

static void test_made_and_removed(void)
{
        struct listener *listener;
        struct stat status;
        int before = unit_count_fds();

        CU_ASSERT_EQUAL_FATAL(listener_new(&listener, path, SOCK_SEQPACKET, NULL, &logger), 0);
        CU_ASSERT_EQUAL(stat(path, &status), 0);
        CU_ASSERT(S_ISSOCK(status.st_mode));
        CU_ASSERT_EQUAL(status.st_mode & 0777, 0600);
        CU_ASSERT(fcntl(listener_fd(listener), F_GETFL) & O_NONBLOCK);
        CU_ASSERT(fcntl(listener_fd(listener), F_GETFD) & FD_CLOEXEC);
        CU_ASSERT_PTR_NULL(listener_free(listener));
        CU_ASSERT_EQUAL(access(path, F_OK), -1);
        CU_ASSERT_PTR_NULL(listener_free(NULL));
        CU_ASSERT_EQUAL(unit_count_fds(), before);
}

static void test_group(void)
{
        struct listener *listener;
        struct stat status;

        /* Every system has this group; none has that one. */
        CU_ASSERT_EQUAL_FATAL(listener_new(&listener, path, SOCK_STREAM, "no such group", &logger),
                              0);
        CU_ASSERT_EQUAL(stat(path, &status), 0);
        CU_ASSERT_EQUAL(status.st_mode & 0777, 0600);
        listener_free(listener);
        if (geteuid() != 0)
                return;
        CU_ASSERT_EQUAL_FATAL(listener_new(&listener, path, SOCK_STREAM, "daemon", &logger), 0);
        CU_ASSERT_EQUAL(stat(path, &status), 0);
        CU_ASSERT_EQUAL(status.st_mode & 0777, 0660);
        CU_ASSERT_NOT_EQUAL(status.st_gid, 0);
        listener_free(listener);
}

static void test_only_one(void)
{
        struct listener *listener, *other;

        CU_ASSERT_EQUAL_FATAL(listener_new(&listener, path, SOCK_SEQPACKET, NULL, &logger), 0);
        CU_ASSERT_EQUAL(listener_new(&other, path, SOCK_SEQPACKET, NULL, &logger), -EADDRINUSE);
        CU_ASSERT_EQUAL(listener_new(&other, path, SOCK_STREAM, NULL, &logger), -EADDRINUSE);
        CU_ASSERT_PTR_NULL(other);
        CU_ASSERT_EQUAL(access(path, F_OK), 0);
        listener_free(listener);
}

static void test_stale(void)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct listener *listener;
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        CU_ASSERT_EQUAL_FATAL(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        close(fd);
        CU_ASSERT_EQUAL(access(path, F_OK), 0);
        CU_ASSERT_EQUAL_FATAL(listener_new(&listener, path, SOCK_SEQPACKET, NULL, &logger), 0);
        listener_free(listener);
}

/* Whatever else is there stays there. */
static void test_no_socket(void)
{
        struct listener *listener;
        int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

        CU_ASSERT_EQUAL(listener_new(&listener, path, SOCK_SEQPACKET, NULL, &logger), -EADDRINUSE);
        CU_ASSERT_EQUAL(access(path, F_OK), 0);
        close(fd);
        unlink(path);
        CU_ASSERT_EQUAL(symlink("/nonexistent", path), 0);
        CU_ASSERT_EQUAL(listener_new(&listener, path, SOCK_SEQPACKET, NULL, &logger), -EADDRINUSE);
        unlink(path);
}

/* At the end a path that somebody else made meanwhile is not removed. */
static void test_replaced(void)
{
        struct listener *listener;
        int fd;

        CU_ASSERT_EQUAL_FATAL(listener_new(&listener, path, SOCK_SEQPACKET, NULL, &logger), 0);
        unlink(path);
        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        listener_free(listener);
        CU_ASSERT_EQUAL(access(path, F_OK), 0);
        close(fd);
        unlink(path);
}

static void test_directory(void)
{
        char below[sizeof(path) + 16], deep[sizeof(path) + 32], *slash;
        struct listener *listener;

        snprintf(below, sizeof(below), "%s/made/x", directory);
        snprintf(deep, sizeof(deep), "%s/not/made/x", directory);
        CU_ASSERT_EQUAL(listener_new(&listener, deep, SOCK_SEQPACKET, NULL, &logger), -ENOENT);
        CU_ASSERT_EQUAL_FATAL(listener_new(&listener, below, SOCK_SEQPACKET, NULL, &logger), 0);
        listener_free(listener);
        slash = strrchr(below, '/');
        *slash = '\0';
        CU_ASSERT_EQUAL(rmdir(below), 0);
}

static void test_long_path(void)
{
        char name[200];
        struct listener *listener;

        memset(name, 'x', sizeof(name) - 1);
        name[0] = '/';
        name[sizeof(name) - 1] = '\0';
        CU_ASSERT_EQUAL(listener_new(&listener, name, SOCK_STREAM, NULL, &logger), -ENAMETOOLONG);
}

static void test_identity(void)
{
        struct identity identity;
        int pair[2], ready[2], before = unit_count_fds();
        char byte;
        pid_t pid;

        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        CU_ASSERT_EQUAL(identity_of_peer(&identity, pair[0]), 0);
        CU_ASSERT_EQUAL(identity.pid, getpid());
        CU_ASSERT_EQUAL(identity.uid, geteuid());
        CU_ASSERT_EQUAL(identity.gid, getegid());
        CU_ASSERT_FALSE(identity_has_exited(&identity));
        identity_deinit(&identity);
        identity_deinit(&identity);
        CU_ASSERT_FALSE(identity_has_exited(&identity));
        close(pair[0]);
        close(pair[1]);
        CU_ASSERT_EQUAL(unit_count_fds(), before);

        /* The process that connected, dead while a child of it holds the socket. */
        {
                struct sockaddr_un address = {.sun_family = AF_UNIX};
                struct listener *listener;
                int fd, hold[2];

                snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
                CU_ASSERT_EQUAL_FATAL(listener_new(&listener, path, SOCK_SEQPACKET, NULL, &logger),
                                      0);
                CU_ASSERT_EQUAL_FATAL(pipe(ready) | pipe(hold), 0);
                pid = fork();
                if (pid == 0) {
                        int client = socket(AF_UNIX, SOCK_SEQPACKET, 0);

                        close(hold[1]);
                        if (connect(client, (struct sockaddr *)&address, sizeof(address)) < 0)
                                _exit(1);
                        if (fork() == 0) {
                                if (read(hold[0], &byte, 1) != 0)
                                        _exit(1);
                                _exit(0);
                        }
                        if (write(ready[1], "r", 1) != 1 || read(hold[0], &byte, 1) != 1)
                                _exit(1);
                        _exit(0);
                }
                CU_ASSERT_EQUAL(read(ready[0], &byte, 1), 1);
                fd = accept4(listener_fd(listener), NULL, NULL, SOCK_CLOEXEC);
                CU_ASSERT(fd >= 0);
                CU_ASSERT_EQUAL(identity_of_peer(&identity, fd), 0);
                CU_ASSERT_EQUAL(identity.pid, pid);
                kill(pid, SIGKILL);
                waitpid(pid, NULL, 0);
                CU_ASSERT(identity_has_exited(&identity));
                identity_deinit(&identity);
                close(fd);
                close(hold[0]);
                close(hold[1]);
                close(ready[0]);
                close(ready[1]);
                listener_free(listener);
        }
        CU_ASSERT_EQUAL(unit_count_fds(), before);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"made and removed", test_made_and_removed},
                {"mode and group", test_group},
                {"only one listens", test_only_one},
                {"a stale socket is replaced", test_stale},
                {"what is no socket stays", test_no_socket},
                {"what somebody else made stays", test_replaced},
                {"the directory", test_directory},
                {"a long path", test_long_path},
                {"who connected", test_identity},
        };
        int status;

        if (!mkdtemp(directory))
                return 2;
        snprintf(path, sizeof(path), "%s/socket", directory);
        status = UNIT_RUN("listener", tests);
        rmdir(directory);
        return status;
}
