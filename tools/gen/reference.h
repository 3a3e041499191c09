/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference run: one sequence at a time on a plain contiguous cache in plain memory, without
 * daemon, pool or batches. Keys and values are rounded as the pool rounds them, and the attention
 * kernels promise that a row's result depends on its query and its keys and values alone; so on one
 * instruction set the paged engine must produce exactly these tokens.
 */
#ifndef GPUMEM_GEN_REFERENCE_H
#define GPUMEM_GEN_REFERENCE_H

#include "tools/gen/error.h"
#include "tools/gen/model.h"
#include "tools/gen/request.h"
#include "tools/gen/run.h"

struct reference_options {
        struct request_limits limits;
        uint32_t chunk_tokens; /* of a prompt computed at once; 1.. */
};

/* A model with a contiguous cache for one sequence. */
struct reference;

/* chunk_tokens: the most that one step computes. -ENOMEM. The model must outlive it. */
int reference_new(struct reference **out, const struct model *model, uint32_t max_sequence_tokens,
                  uint32_t chunk_tokens);
struct reference *reference_free(struct reference *reference);

/* Computes tokens [done, done+count) of a sequence whose first `done` tokens it has computed; *next
 * is what follows the last one, or MODEL_NO_TOKEN. Negative errno. */
int reference_step(struct reference *reference, const uint32_t *tokens, uint32_t done,
                   uint32_t count, uint32_t *next);
/* After a step: [vocabulary], what `next` was chosen from. */
const float *reference_logits(const struct reference *reference);

/* Completes all requests, in order. 0 (also when stopped by a hook), -ENOMEM, or -EDOM: the model's
 * output is not a number. */
int reference_run(const struct model *model, const struct tokenizer *tokenizer,
                  struct request_list *requests, const struct reference_options *options,
                  const struct run_hooks *hooks, struct run_totals *totals,
                  struct gen_error *error);

#endif
