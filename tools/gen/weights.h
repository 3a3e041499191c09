/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape and the weights of a llama-architecture model.
 *
 * Weights are found in a GGUF file, and then copied once to where the model computes: device memory
 * (in an order and alignment that weights_plan() fixes) or plain memory. Anything in the file that
 * would change the result and is not implemented is refused, by name: an unknown llama.* key or an
 * unknown tensor is not ignored.
 */
#ifndef GPUMEM_GEN_WEIGHTS_H
#define GPUMEM_GEN_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/gen/error.h"
#include "tools/gen/gguf.h"

/* Limits that a file must keep; those of heads and head dimensions are the attention kernels'. */
#define MODEL_LAYERS_MAX   1024
#define MODEL_WIDTH_MAX    65536
#define MODEL_HEADS_MAX    1024
#define MODEL_KV_HEADS_MAX 256
#define MODEL_HEAD_DIM_MAX 256
#define MODEL_HIDDEN_MAX   (1u << 20)
#define MODEL_CONTEXT_MAX  (1u << 24)

struct model_shape {
        uint32_t layers;
        uint32_t width;              /* of the residual stream: embedding_length */
        uint32_t hidden;             /* of the feed-forward part */
        uint32_t heads, kv_heads;    /* heads is a multiple of kv_heads */
        uint32_t key_dim, value_dim; /* per head */
        uint32_t rope_dim;           /* leading dimensions of a head that turn; even */
        float rope_base;
        float norm_epsilon;
        uint32_t context; /* positions the model was trained for */
        uint32_t vocabulary;
};

/* A matrix [rows][columns] in row-major order, or a vector (rows = 1). */
struct weight {
        const struct gguf_tensor *tensor; /* where it comes from; valid while the file is open */
        enum gguf_tensor_type type;
        uint32_t rows, columns;
        uint64_t offset;  /* in the copy, a multiple of WEIGHTS_ALIGNMENT */
        const void *data; /* NULL until weights_bind() */
};

#define WEIGHTS_ALIGNMENT 64

struct layer_weights {
        struct weight attention_norm;
        struct weight query, key, value, attention_output;
        struct weight feed_norm;
        struct weight gate, up, down;
};

struct weights {
        struct model_shape shape;
        struct weight embedding;
        struct weight output_norm;
        struct weight output; /* the same as embedding where the file ties them */
        bool output_tied;
        struct layer_weights *layers;
        uint64_t bytes; /* of the copy */
};

/* Reads the shape and finds every tensor. -EINVAL: a key or tensor is missing, misshapen or not
 * understood; error names it. vocabulary: what the tokenizer has, the embedding must agree. */
int weights_new(struct weights **out, const struct gguf *gguf, uint32_t vocabulary,
                struct gen_error *error);
struct weights *weights_free(struct weights *weights);

/* Calls `copy` once for each tensor: its bytes in the file go to offset of the copy. Stops at the
 * first result that is not 0 and returns it. The file must still be open. */
int weights_copy(const struct weights *weights,
                 int (*copy)(void *context, uint64_t offset, const void *data, uint64_t bytes),
                 void *context);
/* The copy lies at `base` (aligned to WEIGHTS_ALIGNMENT): sets the data pointers. From here on the
 * file may be closed. */
void weights_bind(struct weights *weights, const void *base);

/* Of the cache: K and V of one token in all layers, f16. */
uint64_t model_shape_token_bytes(const struct model_shape *shape);

#endif
