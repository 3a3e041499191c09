/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Continuous batching: which tokens of which requests the next step computes. It knows nothing of
 * devices and holds no memory; the engine asks it for a plan, tries it, and says how it went.
 *
 * Requests are served first come, first served, in the order of the list. A running request needs
 * its tokens [computed, count) computed; when that is done its next token is known. One left is
 * decode, more is (chunked) prefill: of a prompt, or of everything after a preemption. A plan holds
 *   1. one token for every running request that has one left, so that long prompts do not hold up
 *      those that are generating;
 *   2. chunks of the others, oldest first, as the token budget allows;
 *   3. newly admitted requests, in order, while sequences and budget last.
 *
 * Every running request stands before every waiting one in the list, finished ones aside; so the
 * youngest is the last running one, and a preempted request is the next to be admitted.
 */
#ifndef GPUMEM_GEN_SCHEDULER_H
#define GPUMEM_GEN_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/gen/request.h"

/* Steps without admission after memory was short: to admit what must be taken back at once costs
 * everyone time. A request that finishes ends it. */
#define SCHEDULER_HOLD_STEPS 16

struct scheduler_entry {
        struct request *request;
        uint32_t tokens; /* >= 1, from request->computed on */
        bool fresh;      /* admitted by this plan */
};

struct scheduler_plan {
        struct scheduler_entry *entries; /* [max_sequences], in the order of the list */
        uint32_t count;
        uint32_t tokens;
        bool decode_only; /* one token each */
};

struct scheduler {
        struct request_list *requests;
        uint32_t max_sequences;
        uint32_t max_batch_tokens; /* >= max_sequences */
        struct request **running;  /* oldest first */
        uint32_t running_count;
        uint32_t next; /* no request before this one is waiting */
        uint32_t hold; /* steps until the next admission, while something runs */
        uint64_t preemptions;
        uint64_t recomputed_tokens; /* that preempted requests had computed */
        struct scheduler_plan plan;
};

/* -ENOMEM. The requests must be encoded, and outlive the scheduler. */
int scheduler_init(struct scheduler *scheduler, struct request_list *requests,
                   uint32_t max_sequences, uint32_t max_batch_tokens);
void scheduler_deinit(struct scheduler *scheduler);

/* The next step; NULL when every request is done. Valid until the next call. Requests that it
 * admits are running from here on. */
const struct scheduler_plan *scheduler_next(struct scheduler *scheduler);

/* Puts the request that entered last back to wait: it has computed nothing from here on. Returns
 * it, so that the caller can free its sequence; NULL if nothing runs. `count`: it counts as a
 * preemption. The plan is void. */
struct request *scheduler_retreat(struct scheduler *scheduler, bool count);

/* The plan was computed: next[i] is the token after entry i if that entry reached the end of its
 * request (others are not read). finished() is called for each request that is done. */
void scheduler_computed(struct scheduler *scheduler, const struct tokenizer *tokenizer,
                        const struct request_limits *limits, const uint32_t *next,
                        void (*finished)(void *context, struct request *request), void *context);

/* Whether an entry, once computed, yields a token. */
static inline bool scheduler_entry_yields(const struct scheduler_entry *entry)
{
        return entry->request->computed + entry->tokens == entry->request->count;
}

#endif
