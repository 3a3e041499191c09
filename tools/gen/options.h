/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of gpumem-gen. */
#ifndef GPUMEM_GEN_OPTIONS_H
#define GPUMEM_GEN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/gen/error.h"

/* Exit codes; the man page lists them. */
enum gen_exit {
        GEN_EXIT_OK = 0,
        GEN_EXIT_DIFFERENT = 1,   /* --expect: another run produced something else */
        GEN_EXIT_UNSUPPORTED = 2, /* a real GPU: there are no matrix kernels for it yet */
        GEN_EXIT_USAGE = 3,       /* the command line, or a prompt, is wrong */
        GEN_EXIT_MODEL = 4,       /* the model file is missing, broken or not understood */
        GEN_EXIT_DAEMON = 5,      /* gpumemd cannot be reached, refused us, or went away */
        GEN_EXIT_MEMORY = 6,      /* the device (or host) is too small, or memory did not come */
        GEN_EXIT_FAILURE = 7,  /* anything else: driver, output file, a model that computes NaN */
        GEN_EXIT_SIGNAL = 128, /* plus the number: ended by SIGINT or SIGTERM */
};

#define OPTIONS_PROMPTS_MAX 4096 /* of --prompt and --prompts on one command line */

enum options_driver {
        OPTIONS_DRIVER_CUDA,
        OPTIONS_DRIVER_SIMULATED,
};

struct options {
        const char *model;
        struct {
                const char *value;
                bool file;
        } prompts[OPTIONS_PROMPTS_MAX];
        uint32_t prompts_count;

        uint32_t max_new_tokens;
        uint32_t max_sequences;
        uint32_t max_batch_tokens;
        uint32_t max_sequence_tokens; /* 0: the smaller of the model's context and 2048 */
        uint32_t page_tokens;         /* 0: the library's default */
        uint64_t kv_max_bytes;        /* 0: no limit of our own */
        uint32_t memory_timeout_s;

        const char *socket; /* NULL: the library's default */
        const char *name;
        enum options_driver driver;
        uint32_t device;
        uint32_t threads; /* 0: one per CPU */

        const char *json;
        const char *expect;
        uint32_t step_delay_ms;
        uint32_t progress; /* tokens between two lines; 0: none */
        bool reference;
        bool quiet;

        bool help, version; /* print that and nothing else */
};

/* Fills options; strings point into argv. -EINVAL with a message. */
int options_parse(struct options *options, int argc, char **argv, struct gen_error *error);
void options_help(FILE *out);

#endif
