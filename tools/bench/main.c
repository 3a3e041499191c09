/* SPDX-License-Identifier: Apache-2.0 */
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench.h"

static const struct {
        const char *name;
        int (*run)(const struct bench_options *options, struct json_object *out);
        const char *what;
} benches[] = {
        {"alloc", bench_alloc,
         "allocate and free a page: LIFO, and random at 90 % full, for 1k, 32k and 1M pages"},
        {"grant", bench_grant,
         "a grant of 1 and of 64 frames over a bare socket round trip with as many descriptors and mmaps"},
        {"restart", bench_restart,
         "8 engines on 2,000 frames while the daemon is killed 100 times: what changed, was lost, stalled"},
        {"frames", bench_frames,
         "the daemon's bookkeeping for 131,072 frames on a driver that does nothing: bytes, and the cost of a grant over that with 1,024"},
        {"clients", bench_clients,
         "1,000 clients connect, take and return frames: errors, and what is left of them"},
        {"chaos", bench_chaos,
         "10,000 clients killed at random points: are accounts exact, when is their memory back"},
        {"evacuate", bench_evacuate,
         "what a pool with one live page a unit gives back when another engine wants everything"},
};

static void usage(FILE *to)
{
        fprintf(to, "usage: gpumem-bench BENCH [--json] [--quick] [--seed N]\n\n");
        for (size_t i = 0; i < sizeof(benches) / sizeof(benches[0]); i++)
                fprintf(to, "  %-8s %s\n", benches[i].name, benches[i].what);
        fprintf(to, "\n  --json   one JSON object on standard output (otherwise indented)\n"
                    "  --quick  few samples: shows that the bench works, says nothing about speed\n"
                    "  --seed N seed of the random workloads (default 1)\n");
}

int main(int argc, char **argv)
{
        static const struct option long_options[] = {
                {"json", no_argument, NULL, 'j'},       {"quick", no_argument, NULL, 'q'},
                {"seed", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'},
                {"version", no_argument, NULL, 'V'},    {0},
        };
        struct bench_options options = {.seed = 1};
        char self[PATH_MAX];
        bool json = false;
        ssize_t n;
        int option;

        while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
                char *end = NULL;

                switch (option) {
                case 'j':
                        json = true;
                        break;
                case 'q':
                        options.quick = true;
                        break;
                case 's':
                        options.seed = strtoull(optarg, &end, 0);
                        if (*optarg == '\0' || *end != '\0') {
                                fprintf(stderr, "gpumem-bench: --seed wants a number, not '%s'\n",
                                        optarg);
                                return 2;
                        }
                        break;
                case 'h':
                        usage(stdout);
                        return 0;
                case 'V':
                        puts("gpumem-bench " GPUMEM_VERSION);
                        return 0;
                default:
                        usage(stderr);
                        return 2;
                }
        }
        if (optind != argc - 1) {
                usage(stderr);
                return 2;
        }
        n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        self[n > 0 ? n : 0] = '\0';
        options.build = dirname(self);

        for (size_t i = 0; i < sizeof(benches) / sizeof(benches[0]); i++) {
                struct json_object *out;
                int error;

                if (strcmp(argv[optind], benches[i].name) != 0)
                        continue;
                out = json_object_new_object();
                json_object_object_add(out, "bench", json_object_new_string(benches[i].name));
                json_object_object_add(out, "version", json_object_new_string(GPUMEM_VERSION));
                json_object_object_add(out, "machine", bench_machine());
                json_object_object_add(out, "quick", json_object_new_boolean(options.quick));
                json_object_object_add(out, "seed", json_object_new_int64((int64_t)options.seed));
                error = benches[i].run(&options, out);
                if (error == 0)
                        puts(json_object_to_json_string_ext(out, json ? JSON_C_TO_STRING_PLAIN
                                                                      : JSON_C_TO_STRING_PRETTY));
                json_object_put(out);
                return error ? 1 : 0;
        }
        fprintf(stderr, "gpumem-bench: no bench named '%s'\n", argv[optind]);
        usage(stderr);
        return 2;
}
