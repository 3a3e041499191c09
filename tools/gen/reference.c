/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/reference.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct reference {
        const struct model *model;
        struct model_plan plan;
        unsigned char *activations;
        unsigned char *cache;
        struct kernel_kv kv;
        int64_t *slots;     /* [chunk] */
        uint32_t *position; /* [chunk] */
};

static void *allocate(uint64_t bytes)
{
        return aligned_alloc(128, (bytes + 127) & ~UINT64_C(127));
}

struct reference *reference_free(struct reference *reference)
{
        if (!reference)
                return NULL;
        free(reference->activations);
        free(reference->cache);
        free(reference->slots);
        free(reference->position);
        free(reference);
        return NULL;
}

int reference_new(struct reference **out, const struct model *model, uint32_t max_sequence_tokens,
                  uint32_t chunk_tokens)
{
        const struct model_shape *shape = &model->weights->shape;
        const uint64_t tokens = max_sequence_tokens;
        const uint64_t cache_bytes = tokens * model_shape_token_bytes(shape);
        struct reference *reference = calloc(1, sizeof(*reference));

        *out = NULL;
        if (!reference)
                return -ENOMEM;
        reference->model = model;
        model_plan_init(&reference->plan, shape, chunk_tokens, 1);
        reference->activations = allocate(reference->plan.bytes);
        reference->cache = allocate(cache_bytes);
        reference->slots = calloc(chunk_tokens, sizeof(reference->slots[0]));
        reference->position = calloc(chunk_tokens, sizeof(reference->position[0]));
        if (!reference->activations || !reference->cache || !reference->slots ||
            !reference->position) {
                reference_free(reference);
                return -ENOMEM;
        }
        /* NaN, as in the simulator: what is read before it was written must show. */
        memset(reference->cache, 0xff, cache_bytes);
        /* One unit with one page that holds the longest sequence: id 0. */
        reference->kv = (struct kernel_kv){
                .base = reference->cache,
                .layer_stride = (int64_t)(tokens * shape->kv_heads *
                                          (shape->key_dim + shape->value_dim) * 2),
                .head_stride = (int64_t)(tokens * (shape->key_dim + shape->value_dim) * 2),
                .value_offset = (int64_t)(tokens * shape->key_dim * 2),
                .page_tokens = max_sequence_tokens,
                .kv_heads = shape->kv_heads,
                .key_dim = shape->key_dim,
                .value_dim = shape->value_dim,
        };
        *out = reference;
        return 0;
}

const float *reference_logits(const struct reference *reference)
{
        return (const float *)(const void *)(reference->activations + reference->plan.logits);
}

static int attend(struct reference *reference, const struct model_batch *batch, uint32_t layer,
                  uint32_t length)
{
        const struct model_shape *shape = &reference->model->weights->shape;
        const struct model_plan *plan = &reference->plan;
        struct kernel_pool *pool = reference->model->pool;
        const uint32_t indptr[2] = {0, 1}, indices[1] = {0}, q_indptr[2] = {0, batch->tokens};
        const int64_t query_stride = (int64_t)sizeof(float) * shape->key_dim;
        const int64_t value_stride = (int64_t)sizeof(float) * shape->value_dim;
        const struct kernel_write write = {
                .kv = reference->kv,
                .layer = layer,
                .tokens = batch->tokens,
                .slot_mapping = reference->slots,
                .type = KERNEL_F32,
                .key = model_at(batch, plan->key),
                .value = model_at(batch, plan->value),
                .key_token_stride = query_stride * shape->kv_heads,
                .key_head_stride = query_stride,
                .value_token_stride = value_stride * shape->kv_heads,
                .value_head_stride = value_stride,
        };
        const struct kernel_attention attention = {
                .kv = reference->kv,
                .layer = layer,
                .sequences = 1,
                .indptr = indptr,
                .indices = indices,
                .kv_len = &length,
                .q_indptr = batch->tokens == 1 ? NULL : q_indptr,
                .q_heads = shape->heads,
                .scale = model_attention_scale(shape),
                .q_type = KERNEL_F32,
                .out_type = KERNEL_F32,
                .q = model_at(batch, plan->query),
                .out = model_at(batch, plan->attention),
                .q_token_stride = query_stride * shape->heads,
                .q_head_stride = query_stride,
                .out_token_stride = value_stride * shape->heads,
                .out_head_stride = value_stride,
        };
        int r;

        if (kernel_write_check(&write) || kernel_attention_check(&attention))
                return -EINVAL;
        r = kernel_cpu_kv_write(pool, &write);
        if (r < 0)
                return r;
        return batch->tokens == 1 ? kernel_cpu_attention_decode(pool, &attention)
                                  : kernel_cpu_attention_prefill(pool, &attention);
}

int reference_step(struct reference *reference, const uint32_t *tokens, uint32_t done,
                   uint32_t count, uint32_t *next)
{
        const uint32_t last = count - 1;
        const struct model_batch batch = {
                .plan = &reference->plan,
                .base = reference->activations,
                .tokens = count,
                .token = tokens + done,
                .position = reference->position,
                .outputs = 1,
                .output_row = &last,
                .next = next,
        };

        for (uint32_t i = 0; i < count; i++) {
                reference->position[i] = done + i;
                reference->slots[i] = done + i;
        }
        model_begin(reference->model, &batch);
        for (uint32_t layer = 0; layer < reference->model->weights->shape.layers; layer++) {
                const int r = attend(reference, &batch, layer, done + count);

                if (r < 0)
                        return r;
                model_layer(reference->model, &batch, layer);
        }
        model_finish(reference->model, &batch);
        return 0;
}

/* One more step of a request. */
static int advance(struct reference *reference, const struct tokenizer *tokenizer,
                   struct request *request, const struct reference_options *options,
                   struct run_totals *totals)
{
        const uint32_t left = request->count - request->computed;
        const uint32_t count = left < options->chunk_tokens ? left : options->chunk_tokens;
        uint32_t next;
        const int r = reference_step(reference, request->tokens, request->computed, count, &next);

        if (r < 0)
                return r;
        request->computed += count;
        totals->steps++;
        totals->computed_tokens += count;
        if (request->computed < request->count)
                return 0;
        if (next == MODEL_NO_TOKEN)
                return -EDOM;
        request_append(request, tokenizer, &options->limits, next);
        totals->generated_tokens++;
        return 0;
}

int reference_run(const struct model *model, const struct tokenizer *tokenizer,
                  struct request_list *requests, const struct reference_options *options,
                  const struct run_hooks *hooks, struct run_totals *totals, struct gen_error *error)
{
        struct reference *reference;
        int r = reference_new(&reference, model, options->limits.max_sequence_tokens,
                              options->chunk_tokens);

        if (r < 0)
                return gen_fail(error, r,
                                "out of memory for a cache of %" PRIu32
                                " tokens (--max-sequence-tokens)",
                                options->limits.max_sequence_tokens);
        totals->token_bytes = model_shape_token_bytes(&model->weights->shape);
        totals->weight_bytes = model->weights->bytes;
        totals->activation_bytes = reference->plan.bytes;
        for (uint32_t i = 0; i < requests->count && r >= 0; i++) {
                struct request *request = &requests->items[i];

                totals->prompt_tokens += request->prompt_tokens;
                while (!request->finish && !hooks->stopped(hooks->context)) {
                        r = advance(reference, tokenizer, request, options, totals);
                        if (r < 0) {
                                gen_fail(error, r, "prompt %" PRIu32 ": %s", i + 1,
                                         r == -EDOM ? "the model's output is not a number"
                                                    : strerror(-r));
                                break;
                        }
                        hooks->stepped(hooks->context, totals);
                }
        }
        reference_free(reference);
        return r;
}
