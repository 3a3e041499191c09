/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/activation.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/keeper_link.h"

enum {
        OPTION_CONFIG = 256,
        OPTION_CHECK,
        OPTION_NO_KEEPER,
        OPTION_KEEPER_FD,
        OPTION_HELP,
        OPTION_VERSION,
};

static const struct option options[] = {
        {"config", required_argument, NULL, OPTION_CONFIG},
        {"check-config", no_argument, NULL, OPTION_CHECK},
        {"no-keeper", no_argument, NULL, OPTION_NO_KEEPER},
        {"keeper-fd", required_argument, NULL, OPTION_KEEPER_FD}, /* the keeper passes it */
        {"help", no_argument, NULL, OPTION_HELP},
        {"version", no_argument, NULL, OPTION_VERSION},
        {NULL, 0, NULL, 0},
};

static void usage(FILE *stream)
{
        fputs("gpumemd [--config FILE] [--no-keeper] [--check-config]\n"
              "Owns the memory of this machine's GPUs and hands it out to inference engines.\n"
              "\n"
              "  --config FILE    read FILE instead of " CONFIG_PATH_DEFAULT "\n"
              "  --no-keeper      run in one process: a crash takes all memory and sessions along\n"
              "  --check-config   read the configuration, say what is wrong with it, and exit\n"
              "  --help           show this\n"
              "  --version        show the version\n"
              "\n"
              "See gpumemd(8) and gpumemd.conf(5).\n",
              stream);
}

static bool default_is_missing(void)
{
        return access(CONFIG_PATH_DEFAULT, F_OK) < 0 && errno == ENOENT;
}

/* A missing file is an error only if it was asked for. */
static int read_config(struct config *config, const char *path)
{
        char why[16384], *line, *rest = why;
        int r;

        config_init(config);
        if (!path && default_is_missing())
                r = config_read_drop_ins(config, CONFIG_PATH_DEFAULT, why, sizeof(why));
        else
                r = config_read(config, path ? path : CONFIG_PATH_DEFAULT, why, sizeof(why));
        while (r < 0 && (line = strsep(&rest, "\n")))
                fprintf(stderr, "gpumemd: error: %s\n", line);
        return r;
}

/* --check-config: what was read was right. What else there is to say about it. */
static void report_config(const struct config *config, const char *path)
{
        const char *slow = config_slow_simulator(config);

        if (!path && default_is_missing())
                printf("%s: not there, the defaults apply%s\n", CONFIG_PATH_DEFAULT,
                       access(CONFIG_PATH_DEFAULT ".d", F_OK) == 0
                               ? ", and what is in " CONFIG_PATH_DEFAULT ".d"
                               : "");
        else
                printf("%s: ok\n", path ? path : CONFIG_PATH_DEFAULT);
        for (uint32_t i = 0; i < config->devices_count; i++)
                if (strcmp(config->devices[i].match, "*") != 0)
                        printf("note: [device %s]: whether there is such a device is known at the "
                               "start only\n",
                               config->devices[i].match);
        if (slow)
                printf("warning: %s is not on a tmpfs: simulated memory may be as slow as a disk\n",
                       slow);
}

/* The keeper lies beside this program, or where programs are found. */
static void find_keeper(char *path, size_t size)
{
        char self[PATH_MAX - 32], *slash;
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

        snprintf(path, size, "gpumemd-keeper");
        if (n <= 0)
                return;
        self[n] = '\0';
        slash = strrchr(self, '/');
        if (slash)
                snprintf(path, size, "%.*s/gpumemd-keeper", (int)(slash - self), self);
}

/* What the keeper runs: this program, under its full path, with what it was told. */
struct command {
        char self[PATH_MAX];
        char *arguments[64];
};

static int command_init(struct command *command, int argc, char **argv)
{
        ssize_t n = readlink("/proc/self/exe", command->self, sizeof(command->self) - 1);
        size_t count = 0;

        if (n <= 0 || argc > 48)
                return -E2BIG;
        command->self[n] = '\0';
        command->arguments[count++] = command->self;
        for (int i = 1; i < argc; i++) {
                if (strcmp(argv[i], "--keeper-fd") == 0 && i + 1 < argc) {
                        i++;
                        continue;
                }
                command->arguments[count++] = argv[i];
        }
        command->arguments[count++] = (char *)"--keeper-fd";
        command->arguments[count++] = (char *)"3";
        command->arguments[count] = NULL;
        return 0;
}

/* This process becomes the keeper, which starts the daemon. Returns only if that fails. */
static int become_keeper(const char *keeper, const struct command *command)
{
        char *arguments[72] = {(char *)keeper, (char *)"--"};

        for (size_t i = 0; i < 64 && command->arguments[i]; i++)
                arguments[2 + i] = command->arguments[i];
        execvp(keeper, arguments);
        fprintf(stderr,
                "gpumemd: error: %s cannot be run: %s (keeper = no does without, but then a crash "
                "loses all memory and sessions)\n",
                keeper, strerror(errno));
        return 1;
}

/* 0 and *out NULL: there is to be none. Errors are said. */
static int open_keeper(struct keeper_link **out, const struct config *config,
                       const struct keeper_link_options *link, int fd, uint64_t *held)
{
        int r;

        *out = NULL;
        if (fd < 0 && !link->path)
                return 0;
        r = keeper_link_new_consume_fd(out, fd, link, held);
        if (r < 0)
                fprintf(stderr, "gpumemd: error: the keeper at %s cannot be used: %s\n",
                        link->path ? config->keeper_socket : "--keeper-fd",
                        r == -EBUSY ? "it serves another daemon" : strerror(-r));
        return r;
}

/*
 * A service manager starts again at once, as a crash of a running daemon wants it. What cannot even
 * start is not to be tried (and logged) fifty times a second: it takes its time to fail.
 */
static int fail_to_start(int status)
{
        const struct timespec pause = {.tv_sec = 1};

        if (getenv("NOTIFY_SOCKET"))
                nanosleep(&pause, NULL);
        return status;
}

static int run(const struct config *config, const struct keeper_link_options *link, int fd)
{
        struct keeper_link *keeper;
        struct daemon *daemon;
        uint64_t held = 0;
        sigset_t stop;
        int r;

        /* Before any thread: all inherit that the loop alone takes these. */
        sigemptyset(&stop);
        sigaddset(&stop, SIGTERM);
        sigaddset(&stop, SIGINT);
        sigprocmask(SIG_BLOCK, &stop, NULL);
        signal(SIGPIPE, SIG_IGN);

        r = open_keeper(&keeper, config, link, fd, &held);
        if (r < 0)
                return 1;
        r = daemon_new_with_keeper(&daemon, config, STDERR_FILENO, NULL, keeper, held);
        if (r < 0)
                return 1;
        r = daemon_listen(daemon);
        if (r >= 0)
                r = daemon_run(daemon);
        if (r < 0)
                log_error(&daemon->log, "the daemon ends", LOG_TEXT("error", strerror(-r)));
        daemon_free(daemon);
        return r < 0 ? 1 : 0;
}

/* The same without a keeper that would start it again. */
static int run_alone(const struct config *config, const struct keeper_link_options *link)
{
        int status = run(config, link, -1);

        return status == 0 ? 0 : fail_to_start(status);
}

int main(int argc, char **argv)
{
        struct keeper_link_options keeper = {0};
        char keeper_path[PATH_MAX];
        struct command command;
        struct config config;
        const char *path = NULL;
        bool check = false, no_keeper = false;
        int option, keeper_fd = -1;

        while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
                switch (option) {
                case OPTION_CONFIG:
                        path = optarg;
                        break;
                case OPTION_CHECK:
                        check = true;
                        break;
                case OPTION_NO_KEEPER:
                        no_keeper = true;
                        break;
                case OPTION_KEEPER_FD:
                        keeper_fd = atoi(optarg);
                        break;
                case OPTION_HELP:
                        usage(stdout);
                        return 0;
                case OPTION_VERSION:
                        puts("gpumemd " GPUMEM_VERSION);
                        return 0;
                default:
                        usage(stderr);
                        return 2;
                }
        }
        if (optind < argc) {
                fprintf(stderr, "gpumemd: error: '%s' is not understood: there are only options\n",
                        argv[optind]);
                usage(stderr);
                return 2;
        }
        if (read_config(&config, path) < 0)
                return check || keeper_fd >= 0 ? 2 : fail_to_start(2);
        if (check) {
                report_config(&config, path);
                return 0;
        }
        if (no_keeper)
                return run_alone(&config, &keeper);
        if (getenv("GPUMEM_KEEPER_SOCKET"))
                snprintf(config.keeper_socket, sizeof(config.keeper_socket), "%s",
                         getenv("GPUMEM_KEEPER_SOCKET"));
        if (config.keeper_socket[0]) {
                keeper.path = config.keeper_socket;
                return run_alone(&config, &keeper);
        }
        /* Who passes sockets starts this process again, not a keeper of ours. */
        if ((!config.keeper || activation_is_pending()) && keeper_fd < 0)
                return run_alone(&config, &keeper);
        find_keeper(keeper_path, sizeof(keeper_path));
        if (command_init(&command, argc, argv) < 0) {
                fprintf(stderr, "gpumemd: error: too many arguments\n");
                return 2;
        }
        if (keeper_fd < 0)
                return become_keeper(keeper_path, &command);
        keeper.keeper = keeper_path;
        keeper.arguments = command.arguments;
        return run(&config, &keeper, keeper_fd);
}
