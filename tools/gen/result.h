/* SPDX-License-Identifier: Apache-2.0 */
/* What a run leaves behind: a JSON file, and the comparison with that of another run. */
#ifndef GPUMEM_GEN_RESULT_H
#define GPUMEM_GEN_RESULT_H

#include <stdbool.h>
#include <stdint.h>

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

/* Writes the file whole or not at all (a temporary name beside it, then rename). */
int result_write(const struct result *result, const char *path, struct gen_error *error);

/* Holds the requests against the file that result_write() made in another run. 0: the same prompts
 * and tokens; RESULT_E_DIFFERENT: the first difference is in error; negative errno: the file cannot
 * be read, or is no such file. */
#define RESULT_E_DIFFERENT 1
int result_compare(const struct request_list *requests, const char *path, struct gen_error *error);

#endif
