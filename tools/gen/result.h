/* SPDX-License-Identifier: Apache-2.0 */
/* What a run leaves behind: a JSON file, and the comparison with that of another run. */
#ifndef GPUMEM_GEN_RESULT_H
#define GPUMEM_GEN_RESULT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/gen/error.h"
#include "tools/gen/request.h"
#include "tools/gen/run.h"

struct result {
        const char *mode; /* "paged" or "reference" */
        const char *model;
        const char *isa;
        bool complete; /* not interrupted */
        uint32_t max_sequences;
        uint32_t max_sequence_tokens;
        uint32_t max_new_tokens;
        const struct request_list *requests;
        const struct tokenizer *tokenizer;
        const struct run_totals *totals;
};

/* What a cache reserved in advance for the longest sequences would take. */
uint64_t result_static_bytes(const struct result *result);

/* The text of the generated tokens, to be freed; 0 or negative errno. */
int result_text(const struct request *request, const struct tokenizer *tokenizer, char **text,
                size_t *bytes);

/*
 * Where a result will go. It is opened before the work, so that a path that cannot be written is
 * found then: a file that is there or not yet appears whole or not at all (a temporary name beside
 * it, then rename); what else there is, a pipe or a device, is written to.
 */
struct result_file {
        FILE *file;
        char *path;      /* the path behind symbolic links */
        char *temporary; /* NULL: it is written to directly */
};

/* 0, or negative errno with a message. */
int result_file_open(struct result_file *file, const char *path, struct gen_error *error);
/* Writes, and takes the file's name. */
int result_file_write(struct result_file *file, const struct result *result,
                      struct gen_error *error);
/* Idempotent; nothing is left if nothing was written. */
void result_file_close(struct result_file *file);

/* Holds the requests against the file that result_file_write() made in another run. 0: the same
 * prompts and tokens; RESULT_E_DIFFERENT: the first difference is in error; negative errno: the
 * file cannot be read, or is no such file. */
#define RESULT_E_DIFFERENT 1
int result_compare(const struct request_list *requests, const char *path, struct gen_error *error);

#endif
