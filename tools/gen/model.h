/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model without its attention: what happens between two calls of an attention kernel, for a
 * batch of tokens in any mix of sequences and positions. Who calls it brings the cache:
 *
 *     model_begin()                          embeds; norm, Q, K, V, rotation of layer 0
 *     for each layer: write K and V, attention, model_layer()
 *     model_finish()                         norm, logits, the most likely token
 *
 * A row's results do not depend on the rest of the batch (matmul.h, operations.h), so batched,
 * chunked and one-by-one computation give the same tokens.
 *
 * All functions compute on the CPU on addresses that the caller made readable; they call no CUDA
 * function and may run inside host functions of a stream.
 */
#ifndef GPUMEM_GEN_MODEL_H
#define GPUMEM_GEN_MODEL_H

#include <stdint.h>

#include "kernels/kernels.h"
#include "tools/gen/weights.h"

#define MODEL_NO_TOKEN UINT32_MAX

struct model {
        const struct weights *weights; /* bound */
        struct kernel_pool *pool;      /* may be NULL */
        enum kernel_isa isa;
};

/* Where activations lie, as byte offsets from one base, for at most so many tokens. f32, packed. */
struct model_plan {
        uint32_t tokens_max;
        uint32_t outputs_max;
        uint64_t residual, normed; /* [tokens][width] */
        uint64_t query;            /* [tokens][heads][key_dim] */
        uint64_t key, value;       /* [tokens][kv_heads][key_dim / value_dim] */
        uint64_t attention;        /* [tokens][heads][value_dim] */
        uint64_t gate, up;         /* [tokens][hidden] */
        uint64_t rope;             /* [tokens][rope_dim] */
        uint64_t output_rows;      /* [outputs][width] */
        uint64_t logits;           /* [outputs][vocabulary] */
        uint64_t bytes;
};

void model_plan_init(struct model_plan *plan, const struct model_shape *shape, uint32_t tokens_max,
                     uint32_t outputs_max);

struct model_batch {
        const struct model_plan *plan;
        unsigned char *base; /* of the activations */
        uint32_t tokens;
        const uint32_t *token;    /* [tokens] below the vocabulary's size */
        const uint32_t *position; /* [tokens] */
        uint32_t outputs;
        const uint32_t *output_row; /* [outputs] rows after which the next token is wanted */
        uint32_t *next;             /* [outputs] out; MODEL_NO_TOKEN: the logits are not numbers */
};

/* 1/sqrt(key_dim), in one place so that every caller of an attention kernel gives the same bits. */
float model_attention_scale(const struct model_shape *shape);

void model_begin(const struct model *model, const struct model_batch *batch);
/* Behind the attention of `layer`; leaves Q, K, V of the next layer, if there is one. */
void model_layer(const struct model *model, const struct model_batch *batch, uint32_t layer);
void model_finish(const struct model *model, const struct model_batch *batch);

static inline float *model_at(const struct model_batch *batch, uint64_t offset)
{
        return (float *)(void *)(batch->base + offset);
}

#endif
