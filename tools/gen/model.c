/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/model.h"

#include <math.h>

#include "tools/gen/matmul.h"
#include "tools/gen/operations.h"

/* Under this many elements the small operations are done by the calling thread. */
#define SERIAL_ELEMENTS (1u << 16)

static uint64_t take(struct model_plan *plan, uint64_t rows, uint64_t columns)
{
        const uint64_t offset = plan->bytes;

        plan->bytes += (rows * columns * sizeof(float) + 63) & ~UINT64_C(63);
        return offset;
}

void model_plan_init(struct model_plan *plan, const struct model_shape *shape, uint32_t tokens_max,
                     uint32_t outputs_max)
{
        *plan = (struct model_plan){.tokens_max = tokens_max, .outputs_max = outputs_max};
        plan->residual = take(plan, tokens_max, shape->width);
        plan->normed = take(plan, tokens_max, shape->width);
        plan->query = take(plan, tokens_max, (uint64_t)shape->heads * shape->key_dim);
        plan->key = take(plan, tokens_max, (uint64_t)shape->kv_heads * shape->key_dim);
        plan->value = take(plan, tokens_max, (uint64_t)shape->kv_heads * shape->value_dim);
        plan->attention = take(plan, tokens_max, (uint64_t)shape->heads * shape->value_dim);
        plan->gate = take(plan, tokens_max, shape->hidden);
        plan->up = take(plan, tokens_max, shape->hidden);
        plan->rope = take(plan, tokens_max, shape->rope_dim);
        plan->output_rows = take(plan, outputs_max, shape->width);
        plan->logits = take(plan, outputs_max, shape->vocabulary);
}

float model_attention_scale(const struct model_shape *shape)
{
        return 1.0f / sqrtf((float)shape->key_dim);
}

/* What a task for each token (or output) needs to know. */
struct task {
        const struct model *model;
        const struct model_batch *batch;
        uint32_t layer;
};

/* `elements`: that one call works on, roughly. */
static void for_each_token(const struct task *task, void (*run)(void *task, size_t token),
                           uint32_t count, uint64_t elements)
{
        struct kernel_pool *pool = task->model->pool;

        if (pool && count * elements >= SERIAL_ELEMENTS) {
                kernel_pool_run(pool, run, (void *)task, count);
        } else {
                for (uint32_t i = 0; i < count; i++)
                        run((void *)task, i);
        }
}

static void multiply(const struct task *task, const struct weight *weight, uint64_t from,
                     uint64_t to, uint32_t rows, bool add)
{
        const struct matmul args = {
                .weight = weight,
                .x = model_at(task->batch, from),
                .out = model_at(task->batch, to),
                .tokens = rows,
                .add = add,
        };

        matmul_run(task->model->pool, task->model->isa, &args);
}

static void embed_token(void *context, size_t token)
{
        const struct task *task = context;
        const struct model_batch *batch = task->batch;
        const struct weights *weights = task->model->weights;
        const struct model_shape *shape = &weights->shape;

        operation_row(&weights->embedding, batch->token[token],
                      model_at(batch, batch->plan->residual) + token * shape->width);
        operation_rope_table(shape->rope_base, shape->rope_dim, batch->position[token],
                             model_at(batch, batch->plan->rope) + token * shape->rope_dim);
}

static void norm_for_attention(void *context, size_t token)
{
        const struct task *task = context;
        const struct model_batch *batch = task->batch;
        const struct weights *weights = task->model->weights;
        const size_t at = token * weights->shape.width;

        operation_rms_norm(&weights->layers[task->layer].attention_norm,
                           weights->shape.norm_epsilon, model_at(batch, batch->plan->residual) + at,
                           model_at(batch, batch->plan->normed) + at);
}

static void norm_for_feed(void *context, size_t token)
{
        const struct task *task = context;
        const struct model_batch *batch = task->batch;
        const struct weights *weights = task->model->weights;
        const size_t at = token * weights->shape.width;

        operation_rms_norm(&weights->layers[task->layer].feed_norm, weights->shape.norm_epsilon,
                           model_at(batch, batch->plan->residual) + at,
                           model_at(batch, batch->plan->normed) + at);
}

static void norm_for_output(void *context, size_t output)
{
        const struct task *task = context;
        const struct model_batch *batch = task->batch;
        const struct weights *weights = task->model->weights;
        const size_t width = weights->shape.width;

        operation_rms_norm(&weights->output_norm, weights->shape.norm_epsilon,
                           model_at(batch, batch->plan->residual) +
                                   batch->output_row[output] * width,
                           model_at(batch, batch->plan->output_rows) + output * width);
}

static void rotate_token(void *context, size_t token)
{
        const struct task *task = context;
        const struct model_batch *batch = task->batch;
        const struct model_shape *shape = &task->model->weights->shape;
        const float *table = model_at(batch, batch->plan->rope) + token * shape->rope_dim;

        operation_rope(table, shape->rope_dim,
                       model_at(batch, batch->plan->query) +
                               token * ((size_t)shape->heads * shape->key_dim),
                       shape->heads, shape->key_dim);
        operation_rope(table, shape->rope_dim,
                       model_at(batch, batch->plan->key) +
                               token * ((size_t)shape->kv_heads * shape->key_dim),
                       shape->kv_heads, shape->key_dim);
}

static void activate_token(void *context, size_t token)
{
        const struct task *task = context;
        const struct model_batch *batch = task->batch;
        const size_t hidden = task->model->weights->shape.hidden;

        operation_swiglu(model_at(batch, batch->plan->gate) + token * hidden,
                         model_at(batch, batch->plan->up) + token * hidden, hidden);
}

static void choose_token(void *context, size_t output)
{
        const struct task *task = context;
        const struct model_batch *batch = task->batch;
        const uint32_t vocabulary = task->model->weights->shape.vocabulary;

        batch->next[output] = operation_argmax(
                model_at(batch, batch->plan->logits) + output * vocabulary, vocabulary);
}

static void prepare_attention(const struct task *task)
{
        const struct model_plan *plan = task->batch->plan;
        const struct model_shape *shape = &task->model->weights->shape;
        const struct layer_weights *layer = &task->model->weights->layers[task->layer];
        const uint32_t tokens = task->batch->tokens;

        for_each_token(task, norm_for_attention, tokens, shape->width);
        multiply(task, &layer->query, plan->normed, plan->query, tokens, false);
        multiply(task, &layer->key, plan->normed, plan->key, tokens, false);
        multiply(task, &layer->value, plan->normed, plan->value, tokens, false);
        for_each_token(task, rotate_token, tokens, (uint64_t)shape->heads * shape->key_dim);
}

void model_begin(const struct model *model, const struct model_batch *batch)
{
        const struct task task = {model, batch, 0};

        for_each_token(&task, embed_token, batch->tokens, model->weights->shape.width);
        prepare_attention(&task);
}

void model_layer(const struct model *model, const struct model_batch *batch, uint32_t number)
{
        struct task task = {model, batch, number};
        const struct model_plan *plan = batch->plan;
        const struct model_shape *shape = &model->weights->shape;
        const struct layer_weights *layer = &model->weights->layers[number];

        multiply(&task, &layer->attention_output, plan->attention, plan->residual, batch->tokens,
                 true);
        for_each_token(&task, norm_for_feed, batch->tokens, shape->width);
        multiply(&task, &layer->gate, plan->normed, plan->gate, batch->tokens, false);
        multiply(&task, &layer->up, plan->normed, plan->up, batch->tokens, false);
        for_each_token(&task, activate_token, batch->tokens, shape->hidden);
        multiply(&task, &layer->down, plan->gate, plan->residual, batch->tokens, true);
        if (number + 1 < shape->layers) {
                task.layer = number + 1;
                prepare_attention(&task);
        }
}

void model_finish(const struct model *model, const struct model_batch *batch)
{
        const struct task task = {model, batch, 0};
        const struct model_shape *shape = &model->weights->shape;

        for_each_token(&task, norm_for_output, batch->outputs, shape->width);
        multiply(&task, &model->weights->output, batch->plan->output_rows, batch->plan->logits,
                 batch->outputs, false);
        for_each_token(&task, choose_token, batch->outputs, shape->vocabulary);
}
