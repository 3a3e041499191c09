/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys of the architecture that are read below, or that cannot change the result. */
static const char *const known_keys[] = {
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.attention.value_length",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.expert_count",      /* only 0 */
        "llama.expert_used_count", /* only 0 */
        "llama.feed_forward_length",
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "llama.rope.scaling.type", /* only "none" */
        "llama.vocab_size",
};

static int check_keys(const struct gguf *gguf, struct gen_error *error)
{
        static const char prefix[] = "llama.";

        for (size_t i = 0; i < gguf_keys(gguf); i++) {
                const struct gguf_key *key = gguf_key_at(gguf, i);
                char name[128];
                bool known = false;

                if (key->name.bytes < sizeof(prefix) - 1 ||
                    memcmp(key->name.data, prefix, sizeof(prefix) - 1))
                        continue;
                for (size_t j = 0; j < sizeof(known_keys) / sizeof(known_keys[0]) && !known; j++)
                        known = gguf_string_is(key->name, known_keys[j]);
                if (!known)
                        return gen_fail(
                                error, -EINVAL,
                                "byte %" PRIu64 ": key %s is not understood, and ignoring it could "
                                "change what the model says",
                                key->at,
                                gen_printable(name, sizeof(name), key->name.data, key->name.bytes));
        }
        return 0;
}

static int required(const struct gguf *gguf, const char *name, uint32_t minimum, uint32_t maximum,
                    uint32_t *out, struct gen_error *error)
{
        uint64_t value;

        if (gguf_get_u64(gguf, name, minimum, maximum, &value, error))
                return -EINVAL;
        *out = (uint32_t)value;
        return 0;
}

static int optional(const struct gguf *gguf, const char *name, uint32_t minimum, uint32_t maximum,
                    uint32_t otherwise, uint32_t *out, struct gen_error *error)
{
        uint64_t value;
        const int r = gguf_get_u64(gguf, name, minimum, maximum, &value, error);

        if (r < 0)
                return r;
        *out = r == GGUF_E_MISSING ? otherwise : (uint32_t)value;
        return 0;
}

static int check_architecture(const struct gguf *gguf, struct gen_error *error)
{
        struct gguf_string text;
        uint32_t experts;
        char shown[64];
        int r;

        if (gguf_get_string(gguf, "general.architecture", &text, error))
                return -EINVAL;
        if (!gguf_string_is(text, "llama"))
                return gen_fail(error, -EINVAL,
                                "key general.architecture is \"%s\"; only \"llama\" is understood",
                                gen_printable(shown, sizeof(shown), text.data, text.bytes));
        r = gguf_get_string(gguf, "llama.rope.scaling.type", &text, error);
        if (r < 0)
                return r;
        if (!r && !gguf_string_is(text, "none"))
                return gen_fail(error, -EINVAL,
                                "key llama.rope.scaling.type is \"%s\"; only \"none\" is "
                                "understood",
                                gen_printable(shown, sizeof(shown), text.data, text.bytes));
        r = optional(gguf, "llama.expert_count", 0, 0, 0, &experts, error);
        if (r < 0)
                return r;
        r = optional(gguf, "llama.expert_used_count", 0, 0, 0, &experts, error);
        if (r < 0)
                return r;
        return check_keys(gguf, error);
}

static int check_head_dim(const char *what, uint32_t dim, struct gen_error *error)
{
        if (dim < 8 || dim > MODEL_HEAD_DIM_MAX || dim % 8)
                return gen_fail(error, -EINVAL,
                                "%s is %" PRIu32
                                " per head; the attention kernels take multiples of 8 up to %d",
                                what, dim, MODEL_HEAD_DIM_MAX);
        return 0;
}

static int read_floats(struct model_shape *shape, const struct gguf *gguf, struct gen_error *error)
{
        int r;

        if (gguf_get_f32(gguf, "llama.attention.layer_norm_rms_epsilon", &shape->norm_epsilon,
                         error))
                return -EINVAL;
        if (!(shape->norm_epsilon >= 0 && shape->norm_epsilon <= 1))
                return gen_fail(error, -EINVAL,
                                "key llama.attention.layer_norm_rms_epsilon is %g, allowed are 0 "
                                "to 1",
                                (double)shape->norm_epsilon);
        r = gguf_get_f32(gguf, "llama.rope.freq_base", &shape->rope_base, error);
        if (r < 0)
                return r;
        if (r == GGUF_E_MISSING)
                shape->rope_base = 10000;
        if (!(shape->rope_base >= 1 && isfinite(shape->rope_base)))
                return gen_fail(error, -EINVAL,
                                "key llama.rope.freq_base is %g, must be finite and at least 1",
                                (double)shape->rope_base);
        return 0;
}

static int read_shape(struct model_shape *shape, const struct gguf *gguf, uint32_t vocabulary,
                      struct gen_error *error)
{
        uint32_t named_vocabulary;
        int r;

        if (required(gguf, "llama.block_count", 1, MODEL_LAYERS_MAX, &shape->layers, error) ||
            required(gguf, "llama.embedding_length", 1, MODEL_WIDTH_MAX, &shape->width, error) ||
            required(gguf, "llama.feed_forward_length", 1, MODEL_HIDDEN_MAX, &shape->hidden,
                     error) ||
            required(gguf, "llama.attention.head_count", 1, MODEL_HEADS_MAX, &shape->heads,
                     error) ||
            required(gguf, "llama.context_length", 1, MODEL_CONTEXT_MAX, &shape->context, error))
                return -EINVAL;
        r = optional(gguf, "llama.attention.head_count_kv", 1, MODEL_KV_HEADS_MAX, shape->heads,
                     &shape->kv_heads, error);
        if (r < 0)
                return r;
        if (shape->kv_heads > MODEL_KV_HEADS_MAX || shape->heads % shape->kv_heads)
                return gen_fail(error, -EINVAL,
                                "%" PRIu32 " query heads cannot share %" PRIu32
                                " KV heads (at most %d, and a divisor)",
                                shape->heads, shape->kv_heads, MODEL_KV_HEADS_MAX);
        if (shape->width % shape->heads && (!gguf_find(gguf, "llama.attention.key_length") ||
                                            !gguf_find(gguf, "llama.attention.value_length")))
                return gen_fail(error, -EINVAL,
                                "key llama.embedding_length %" PRIu32
                                " is not a multiple of %" PRIu32
                                " heads, and the head dimensions are not given",
                                shape->width, shape->heads);
        r = optional(gguf, "llama.attention.key_length", 1, MODEL_WIDTH_MAX,
                     shape->width / shape->heads, &shape->key_dim, error);
        if (r < 0)
                return r;
        r = optional(gguf, "llama.attention.value_length", 1, MODEL_WIDTH_MAX,
                     shape->width / shape->heads, &shape->value_dim, error);
        if (r < 0)
                return r;
        r = check_head_dim("the key length", shape->key_dim, error);
        if (r < 0)
                return r;
        r = check_head_dim("the value length", shape->value_dim, error);
        if (r < 0)
                return r;
        r = optional(gguf, "llama.rope.dimension_count", 2, shape->key_dim, shape->key_dim,
                     &shape->rope_dim, error);
        if (r < 0)
                return r;
        if (shape->rope_dim % 2)
                return gen_fail(error, -EINVAL,
                                "key llama.rope.dimension_count is %" PRIu32 ", must be even",
                                shape->rope_dim);
        shape->vocabulary = vocabulary;
        r = optional(gguf, "llama.vocab_size", 1, UINT32_MAX, vocabulary, &named_vocabulary, error);
        if (r < 0)
                return r;
        if (named_vocabulary != vocabulary)
                return gen_fail(error, -EINVAL,
                                "key llama.vocab_size is %" PRIu32 ", the tokenizer has %" PRIu32
                                " tokens",
                                named_vocabulary, vocabulary);
        return read_floats(shape, gguf, error);
}

/* Finds a tensor, holds it against its shape, and gives it its place in the copy. */
static int place(struct weights *weights, const struct gguf *gguf, const char *name, uint32_t rows,
                 uint32_t columns, struct weight *out, struct gen_error *error)
{
        const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);

        if (!tensor)
                return gen_fail(error, -EINVAL, "tensor %s is missing", name);
        if (tensor->dimensions > 2 || tensor->dimension[0] != columns ||
            tensor->dimension[1] != rows)
                return gen_fail(error, -EINVAL,
                                "tensor %s has dimensions %" PRIu64 " x %" PRIu64 "%s, must be "
                                "%" PRIu32 " x %" PRIu32,
                                name, tensor->dimension[0], tensor->dimension[1],
                                tensor->dimensions > 2 ? " x more" : "", columns, rows);
        *out = (struct weight){
                .tensor = tensor,
                .type = tensor->type,
                .rows = rows,
                .columns = columns,
                .offset = weights->bytes,
        };
        /* No overflow: all tensors together are smaller than the file. */
        weights->bytes += (tensor->bytes + WEIGHTS_ALIGNMENT - 1) & -(uint64_t)WEIGHTS_ALIGNMENT;
        return 0;
}

static int place_layer(struct weights *weights, const struct gguf *gguf, uint32_t number,
                       struct gen_error *error)
{
        const struct model_shape *shape = &weights->shape;
        struct layer_weights *layer = &weights->layers[number];
        const struct {
                const char *name;
                uint32_t rows, columns;
                struct weight *weight;
        } parts[] = {
                {"attn_norm", 1, shape->width, &layer->attention_norm},
                {"attn_q", shape->heads * shape->key_dim, shape->width, &layer->query},
                {"attn_k", shape->kv_heads * shape->key_dim, shape->width, &layer->key},
                {"attn_v", shape->kv_heads * shape->value_dim, shape->width, &layer->value},
                {"attn_output", shape->width, shape->heads * shape->value_dim,
                 &layer->attention_output},
                {"ffn_norm", 1, shape->width, &layer->feed_norm},
                {"ffn_gate", shape->hidden, shape->width, &layer->gate},
                {"ffn_up", shape->hidden, shape->width, &layer->up},
                {"ffn_down", shape->width, shape->hidden, &layer->down},
        };

        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
                char name[GGUF_NAME_BYTES_MAX + 1];
                int r;

                snprintf(name, sizeof(name), "blk.%" PRIu32 ".%s.weight", number, parts[i].name);
                r = place(weights, gguf, name, parts[i].rows, parts[i].columns, parts[i].weight,
                          error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* What the file has and the model above does not use would be ignored: name it. */
static int check_unused(const struct weights *weights, const struct gguf *gguf,
                        struct gen_error *error)
{
        const size_t used = (size_t)weights->shape.layers * 9 + 2 + !weights->output_tied;

        if (gguf_tensors(gguf) == used)
                return 0;
        for (size_t i = 0; i < gguf_tensors(gguf); i++) {
                const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
                bool found = tensor == weights->embedding.tensor ||
                             tensor == weights->output.tensor ||
                             tensor == weights->output_norm.tensor;

                for (uint32_t j = 0; j < weights->shape.layers && !found; j++) {
                        const struct layer_weights *layer = &weights->layers[j];

                        found = tensor == layer->attention_norm.tensor ||
                                tensor == layer->query.tensor || tensor == layer->key.tensor ||
                                tensor == layer->value.tensor ||
                                tensor == layer->attention_output.tensor ||
                                tensor == layer->feed_norm.tensor || tensor == layer->gate.tensor ||
                                tensor == layer->up.tensor || tensor == layer->down.tensor;
                }
                if (!found)
                        return gen_fail(error, -EINVAL,
                                        "tensor %s is not understood, and ignoring it could "
                                        "change what the model says",
                                        tensor->name);
        }
        return 0;
}

static int load(struct weights *weights, const struct gguf *gguf, uint32_t vocabulary,
                struct gen_error *error)
{
        struct model_shape *shape = &weights->shape;
        int r;

        r = check_architecture(gguf, error);
        if (r < 0)
                return r;
        r = read_shape(shape, gguf, vocabulary, error);
        if (r < 0)
                return r;
        weights->layers = calloc(shape->layers, sizeof(weights->layers[0]));
        if (!weights->layers)
                return gen_fail(error, -ENOMEM, "out of memory");
        r = place(weights, gguf, "token_embd.weight", vocabulary, shape->width, &weights->embedding,
                  error);
        if (r < 0)
                return r;
        for (uint32_t i = 0; i < shape->layers; i++) {
                r = place_layer(weights, gguf, i, error);
                if (r < 0)
                        return r;
        }
        r = place(weights, gguf, "output_norm.weight", 1, shape->width, &weights->output_norm,
                  error);
        if (r < 0)
                return r;
        if (gguf_find_tensor(gguf, "output.weight")) {
                r = place(weights, gguf, "output.weight", vocabulary, shape->width,
                          &weights->output, error);
                if (r < 0)
                        return r;
        } else {
                weights->output = weights->embedding;
                weights->output_tied = true;
        }
        return check_unused(weights, gguf, error);
}

int weights_new(struct weights **out, const struct gguf *gguf, uint32_t vocabulary,
                struct gen_error *error)
{
        struct weights *weights = calloc(1, sizeof(*weights));
        int r;

        *out = NULL;
        if (!weights)
                return gen_fail(error, -ENOMEM, "out of memory");
        r = load(weights, gguf, vocabulary, error);
        if (r < 0) {
                weights_free(weights);
                return r;
        }
        *out = weights;
        return 0;
}

struct weights *weights_free(struct weights *weights)
{
        if (!weights)
                return NULL;
        free(weights->layers);
        free(weights);
        return NULL;
}

/* Calls `visit` for every weight that has bytes of its own. */
static int for_each(struct weights *weights, int (*visit)(void *context, struct weight *weight),
                    void *context)
{
        struct weight *outer[] = {&weights->embedding, &weights->output_norm,
                                  weights->output_tied ? NULL : &weights->output};

        for (uint32_t i = 0; i < weights->shape.layers; i++) {
                struct layer_weights *layer = &weights->layers[i];
                struct weight *inner[] = {&layer->attention_norm,
                                          &layer->query,
                                          &layer->key,
                                          &layer->value,
                                          &layer->attention_output,
                                          &layer->feed_norm,
                                          &layer->gate,
                                          &layer->up,
                                          &layer->down};

                for (size_t j = 0; j < sizeof(inner) / sizeof(inner[0]); j++) {
                        const int r = visit(context, inner[j]);

                        if (r)
                                return r;
                }
        }
        for (size_t i = 0; i < sizeof(outer) / sizeof(outer[0]); i++) {
                const int r = outer[i] ? visit(context, outer[i]) : 0;

                if (r)
                        return r;
        }
        return 0;
}

struct copying {
        int (*copy)(void *context, uint64_t offset, const void *data, uint64_t bytes);
        void *context;
};

static int copy_one(void *context, struct weight *weight)
{
        const struct copying *copying = context;

        return copying->copy(copying->context, weight->offset, weight->tensor->data,
                             weight->tensor->bytes);
}

int weights_copy(const struct weights *weights,
                 int (*copy)(void *context, uint64_t offset, const void *data, uint64_t bytes),
                 void *context)
{
        struct copying copying = {copy, context};

        /* The visitor only reads. */
        return for_each((struct weights *)weights, copy_one, &copying);
}

static int bind_one(void *context, struct weight *weight)
{
        weight->data = (const unsigned char *)context + weight->offset;
        return 0;
}

void weights_bind(struct weights *weights, const void *base)
{
        for_each(weights, bind_one, (void *)base);
        if (weights->output_tied)
                weights->output.data = weights->embedding.data;
}

uint64_t model_shape_token_bytes(const struct model_shape *shape)
{
        return (uint64_t)shape->layers * shape->kv_heads * (shape->key_dim + shape->value_dim) * 2;
}
