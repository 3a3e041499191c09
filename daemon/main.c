/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/daemon.h"

enum {
        OPTION_CONFIG = 256,
        OPTION_CHECK,
        OPTION_HELP,
        OPTION_VERSION,
};

static const struct option options[] = {
        {"config", required_argument, NULL, OPTION_CONFIG},
        {"check-config", no_argument, NULL, OPTION_CHECK},
        {"help", no_argument, NULL, OPTION_HELP},
        {"version", no_argument, NULL, OPTION_VERSION},
        {NULL, 0, NULL, 0},
};

static void usage(FILE *stream)
{
        fputs("gpumemd [--config FILE] [--check-config]\n"
              "Owns the memory of this machine's GPUs and hands it out to inference engines.\n"
              "\n"
              "  --config FILE    read FILE instead of " CONFIG_PATH_DEFAULT "\n"
              "  --check-config   read the configuration, say what is wrong with it, and exit\n"
              "  --help           show this\n"
              "  --version        show the version\n"
              "\n"
              "See gpumemd(8) and gpumemd.conf(5).\n",
              stream);
}

/* A missing file is an error only if it was asked for. */
static int read_config(struct config *config, const char *path)
{
        char why[1024];
        int r;

        config_init(config);
        if (!path && access(CONFIG_PATH_DEFAULT, F_OK) < 0 && errno == ENOENT)
                return 0;
        r = config_read(config, path ? path : CONFIG_PATH_DEFAULT, why, sizeof(why));
        if (r < 0)
                fprintf(stderr, "gpumemd: error: %s\n", why);
        return r;
}

static int run(const struct config *config)
{
        struct daemon *daemon;
        sigset_t stop;
        int r;

        /* Before any thread: all inherit that the loop alone takes these. */
        sigemptyset(&stop);
        sigaddset(&stop, SIGTERM);
        sigaddset(&stop, SIGINT);
        sigprocmask(SIG_BLOCK, &stop, NULL);
        signal(SIGPIPE, SIG_IGN);

        r = daemon_new(&daemon, config, STDERR_FILENO, NULL);
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

int main(int argc, char **argv)
{
        struct config config;
        const char *path = NULL;
        bool check = false;
        int option;

        while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
                switch (option) {
                case OPTION_CONFIG:
                        path = optarg;
                        break;
                case OPTION_CHECK:
                        check = true;
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
                usage(stderr);
                return 2;
        }
        if (read_config(&config, path) < 0)
                return 2;
        if (check) {
                printf("%s: ok\n", path ? path : CONFIG_PATH_DEFAULT);
                return 0;
        }
        return run(&config);
}
