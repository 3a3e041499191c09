/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prompt and what was generated after it; the same for the paged engine and the reference, so
 * that both stop by the same rules.
 */
#ifndef GPUMEM_GEN_REQUEST_H
#define GPUMEM_GEN_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/gen/error.h"

#define REQUESTS_MAX           (1u << 20)
#define PROMPTS_FILE_BYTES_MAX (UINT64_C(256) << 20)

struct tokenizer;

enum request_finish {
        REQUEST_UNFINISHED = 0,
        REQUEST_EOS,     /* the model ended its text; the end token is the last one */
        REQUEST_LENGTH,  /* as many new tokens as were asked for */
        REQUEST_CONTEXT, /* prompt and new tokens have reached the longest sequence */
};
const char *request_finish_name(enum request_finish finish);

enum request_state {
        REQUEST_WAITING, /* holds no memory: not begun, or preempted */
        REQUEST_RUNNING,
        REQUEST_DONE,
};

struct request {
        char *text; /* the prompt, NUL-terminated (and may hold NULs) */
        size_t text_bytes;
        uint32_t *tokens; /* [tokens_max] the prompt's, then the generated ones */
        uint32_t prompt_tokens;
        uint32_t count; /* of tokens so far */
        uint32_t tokens_max;
        enum request_finish finish;

        /* The scheduler's. */
        enum request_state state;
        uint64_t sequence; /* gpumem_seq while running; 0: none yet */
        uint32_t computed; /* tokens whose keys and values are in the cache */
        uint32_t preemptions;
};

struct request_list {
        struct request *items;
        uint32_t count;
        uint32_t capacity;
};

struct request_limits {
        uint32_t max_new_tokens;
        uint32_t max_sequence_tokens; /* prompt and generated tokens together */
};

/* Adds a prompt (copied). 0, -E2BIG: REQUESTS_MAX; -ENOMEM. */
int request_list_add(struct request_list *list, const char *text, size_t bytes);
/* Adds a prompt for each line of a file (an empty line is an empty prompt), which may be a pipe or
 * a terminal as well, to its end. Negative errno with a message; -EINTR: a signal came while it was
 * waited for. */
int request_list_read(struct request_list *list, const char *path, struct gen_error *error);
/* Turns the texts into tokens. -EINVAL: a prompt leaves no room for a new token, or has no token at
 * all; the message names it. */
int request_list_encode(struct request_list *list, const struct tokenizer *tokenizer,
                        const struct request_limits *limits, struct gen_error *error);
void request_list_deinit(struct request_list *list);

/* Takes the next token and decides whether it was the last. */
void request_append(struct request *request, const struct tokenizer *tokenizer,
                    const struct request_limits *limits, uint32_t token);

static inline uint32_t request_generated(const struct request *request)
{
        return request->count - request->prompt_tokens;
}

#endif
