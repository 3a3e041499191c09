/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/keeper/keeper.h"

/* Descriptors besides what is held. */
#define DESCRIPTORS_MAX (HOLDINGS_FRAMES_MAX + 2 * HOLDINGS_SESSIONS_MAX + 64)

enum {
        OPTION_LISTEN = 256,
        OPTION_ADOPT,
        OPTION_HELP,
        OPTION_VERSION,
};

static const struct option options[] = {
        {"listen", required_argument, NULL, OPTION_LISTEN},
        {"adopt", required_argument, NULL, OPTION_ADOPT},
        {"help", no_argument, NULL, OPTION_HELP},
        {"version", no_argument, NULL, OPTION_VERSION},
        {NULL, 0, NULL, 0},
};

static void usage(FILE *stream)
{
        fputs("gpumemd-keeper [--listen PATH]\n"
              "gpumemd-keeper [--adopt FD] -- GPUMEMD [ARGUMENT...]\n"
              "Keeps what must outlive gpumemd: memory, connections, state.\n"
              "\n"
              "  --listen PATH   serve a daemon that connects there (or a socket that systemd\n"
              "                  passes)\n"
              "  --adopt FD      a daemon that runs already is at the other end of FD\n"
              "  --help          show this\n"
              "  --version       show the version\n"
              "\n"
              "With a command, the keeper starts it and starts it again when it dies.\n"
              "See gpumemd-keeper(8).\n",
              stream);
}

/* As many as may ever be held, or as many as are allowed. */
static void raise_descriptor_limit(void)
{
        struct rlimit limit = {.rlim_cur = DESCRIPTORS_MAX, .rlim_max = DESCRIPTORS_MAX};

        if (setrlimit(RLIMIT_NOFILE, &limit) == 0 || getrlimit(RLIMIT_NOFILE, &limit) < 0)
                return;
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
}

static int watch_signals(struct keeper *keeper)
{
        sigset_t signals;

        sigemptyset(&signals);
        sigaddset(&signals, SIGTERM);
        sigaddset(&signals, SIGINT);
        sigaddset(&signals, SIGCHLD);
        sigprocmask(SIG_BLOCK, &signals, NULL);
        signal(SIGPIPE, SIG_IGN);
        keeper->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
        return keeper->signal_fd < 0 ? -errno : 0;
}

/* A socket that nobody listens on is replaced; one that is alive is not. */
static int listen_at(const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd, r = 0;

        if (strlen(path) >= sizeof(address.sun_path))
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, strlen(path) + 1);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
                r = -EADDRINUSE;
        else if (errno == ECONNREFUSED)
                unlink(path);
        close(fd);
        if (r < 0)
                return r;
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        fchmod(fd, 0600); /* the mode that bind gives the path */
        if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0) {
                r = -errno;
                close(fd);
                return r;
        }
        return fd;
}

/* The socket that systemd passes, or one made at `path`. */
static int open_listener(struct keeper *keeper, const char *path)
{
        int passed = sd_listen_fds(1);

        if (passed == 1) {
                keeper->listen_fd = SD_LISTEN_FDS_START;
                return sd_is_socket_unix(keeper->listen_fd, SOCK_SEQPACKET, 1, NULL, 0) > 0
                               ? 0
                               : -ENOTSOCK;
        }
        if (passed != 0 || !path)
                return passed < 0 ? passed : -EINVAL;
        keeper->listen_fd = listen_at(path);
        return keeper->listen_fd < 0 ? keeper->listen_fd : 0;
}

static int adopt(struct keeper *keeper, const char *text)
{
        char *end;
        long fd = strtol(text, &end, 10);
        int r;

        if (*text == '\0' || *end != '\0' || fd < 3 || fd > 1024 || fcntl((int)fd, F_GETFD) < 0)
                return -EBADF;
        /* Nothing else of the daemon's may stay open here: a driver's descriptor would keep it. */
        for (int other = 3; other < fd; other++)
                close(other);
        close_range((unsigned)fd + 1, ~0u, 0);
        fcntl((int)fd, F_SETFD, FD_CLOEXEC);
        keeper->supervisor.adopted = true;
        r = keeper_add_consume_fd(keeper, (int)fd);
        if (r == 0) {
                keeper->daemon_pidfd = fcntl(keeper->connections[0].pidfd, F_DUPFD_CLOEXEC, 0);
                keeper->daemon_pid = keeper->connections[0].pid;
        }
        return r;
}

int main(int argc, char **argv)
{
        const char *path = NULL, *adopted = NULL;
        struct keeper keeper;
        int option, r, status;

        while ((option = getopt_long(argc, argv, "+", options, NULL)) >= 0) {
                switch (option) {
                case OPTION_LISTEN:
                        path = optarg;
                        break;
                case OPTION_ADOPT:
                        adopted = optarg;
                        break;
                case OPTION_HELP:
                        usage(stdout);
                        return 0;
                case OPTION_VERSION:
                        puts("gpumemd-keeper " GPUMEM_VERSION);
                        return 0;
                default:
                        usage(stderr);
                        return 2;
                }
        }
        if (optind < argc ? path != NULL || argv[optind][0] != '/' : adopted != NULL) {
                usage(stderr);
                return 2;
        }
        keeper_init(&keeper);
        if (optind < argc)
                keeper.supervisor.arguments = argv + optind;
        r = adopted ? adopt(&keeper, adopted) : 0;
        raise_descriptor_limit();
        if (r == 0)
                r = watch_signals(&keeper);
        if (r == 0 && optind == argc)
                r = open_listener(&keeper, path);
        if (r < 0) {
                keeper_log("error", "cannot start: %s", strerror(-r));
                keeper_deinit(&keeper);
                return 1;
        }
        if (optind == argc)
                sd_notify(false, "READY=1\nSTATUS=keeping what gpumemd hands over");
        status = keeper_run(&keeper);
        if (path)
                unlink(path);
        keeper_deinit(&keeper);
        return status;
}
