/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tools/gen/device.h"
#include "tools/gen/model.h"
#include "tools/gen/scheduler.h"

/* How long a step waits for memory before somebody is preempted for it. */
#define WAIT_MS 50
/* How long the last running sequence waits before it lets go as well; drawn anew each time, between
 * this and twice this, so that two engines do not do it in step. */
#define ALONE_MS 1000

/* A host function of a step: the model's part before the attention of `layer`. */
struct stage {
        struct engine *engine;
        uint32_t layer; /* = layers: the last one */
};

struct engine {
        struct engine_options options;
        struct device device;
        struct kernel_pool *pool;
        struct device_buffer weights, activations;
        struct gpumem_kv *kv;
        struct gpumem_kv_geometry geometry;
        struct model model;
        struct model_plan plan;
        struct stage *stages; /* [layers + 1] */
        uint64_t random;

        /* Of the step under way; host functions read them until the stream is synchronised. */
        struct model_batch batch;
        gpumem_seq *sequences;  /* [max_sequences] */
        uint32_t *tokens_each;  /* [max_sequences] */
        uint32_t *output_row;   /* [max_sequences] */
        uint32_t *output_entry; /* [max_sequences] entry of the plan that an output belongs to */
        uint32_t *next;         /* [max_sequences] by output */
        uint32_t *entry_next;   /* [max_sequences] by entry */
        uint32_t *tokens;       /* [max_batch_tokens] */
};

/* One run. */
struct run {
        struct engine *engine;
        struct scheduler scheduler;
        const struct tokenizer *tokenizer;
        const struct run_hooks *hooks;
        struct run_totals *totals;
        struct gen_error *error;
};

static double now_seconds(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Between low and twice that. */
static uint32_t jitter_ms(struct engine *engine, uint32_t low)
{
        engine->random = engine->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        return low + (uint32_t)((engine->random >> 33) % low);
}

static void sleep_ms(uint32_t ms)
{
        nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

/* --- construction ------------------------------------------------ */

static int allocate_tables(struct engine *engine)
{
        const uint32_t layers = engine->model.weights->shape.layers;
        const uint32_t sequences = engine->options.max_sequences;

        engine->stages = calloc((size_t)layers + 1, sizeof(engine->stages[0]));
        engine->sequences = calloc(sequences, sizeof(engine->sequences[0]));
        engine->tokens_each = calloc(sequences, sizeof(uint32_t));
        engine->output_row = calloc(sequences, sizeof(uint32_t));
        engine->output_entry = calloc(sequences, sizeof(uint32_t));
        engine->next = calloc(sequences, sizeof(uint32_t));
        engine->entry_next = calloc(sequences, sizeof(uint32_t));
        engine->tokens = calloc(engine->options.max_batch_tokens, sizeof(uint32_t));
        if (!engine->stages || !engine->sequences || !engine->tokens_each || !engine->output_row ||
            !engine->output_entry || !engine->next || !engine->entry_next || !engine->tokens)
                return -ENOMEM;
        for (uint32_t i = 0; i <= layers; i++)
                engine->stages[i] = (struct stage){engine, i};
        return kernel_pool_new(&engine->pool, engine->options.threads);
}

struct uploading {
        struct engine *engine;
        struct gen_error *error;
};

static int upload_one(void *context, uint64_t offset, const void *data, uint64_t bytes)
{
        const struct uploading *uploading = context;
        struct engine *engine = uploading->engine;

        return (int)device_upload(&engine->device, engine->weights.address + offset, data, bytes,
                                  uploading->error);
}

static enum engine_failure load_weights(struct engine *engine, struct weights *weights,
                                        const struct run_hooks *hooks, struct gen_error *error)
{
        struct uploading uploading = {engine, error};
        enum engine_failure failure;

        failure = device_buffer_init(&engine->weights, &engine->device, weights->bytes, "weights",
                                     engine->options.memory_timeout_s, hooks, error);
        if (failure)
                return failure;
        failure = (enum engine_failure)weights_copy(weights, upload_one, &uploading);
        if (failure)
                return failure;
        failure = device_synchronize(&engine->device, error);
        if (failure)
                return failure;
        weights_bind(weights, engine->weights.host);
        return ENGINE_OK;
}

/* Is it the limit of our own that the pool was refused for? The unit's size is known once a pool
 * without it has been made. */
static bool limit_is_too_small(const struct engine *engine, struct gpumem_kv_options options,
                               struct gen_error *error)
{
        struct gpumem_kv_geometry geometry;
        struct gpumem_kv *kv;

        if (options.max_bytes == 0)
                return false;
        options.max_bytes = 0;
        if (gpumem_kv_create(engine->device.session, &options, &kv) < 0)
                return false;
        gpumem_kv_get_geometry(kv, &geometry);
        gpumem_kv_free(kv);
        if (engine->options.kv_max_bytes >= (uint64_t)geometry.unit_stride)
                return false;
        gen_fail(error, -EINVAL,
                 "--kv-max-bytes %" PRIu64 " is too small: the cache of this model grows by units "
                 "of %" PRId64 " bytes on this device, and needs at least one",
                 engine->options.kv_max_bytes, geometry.unit_stride);
        return true;
}

static enum engine_failure open_pool(struct engine *engine, struct gen_error *error)
{
        const struct model_shape *shape = &engine->model.weights->shape;
        const struct gpumem_kv_options options = {
                .size = sizeof(options),
                .name = "kv",
                .layers = shape->layers,
                .kv_heads = shape->kv_heads,
                .key_dim = shape->key_dim,
                .value_dim = shape->value_dim,
                .format = GPUMEM_FORMAT_F16,
                .page_tokens = engine->options.page_tokens,
                .max_sequences = engine->options.max_sequences,
                .max_sequence_tokens = engine->options.limits.max_sequence_tokens,
                .max_bytes = engine->options.kv_max_bytes,
        };
        const int r = gpumem_kv_create(engine->device.session, &options, &engine->kv);

        if (r < 0) {
                const enum engine_failure failure = device_fail(error, r, "KV pool");

                engine->kv = NULL;
                if (r == GPUMEM_E_INVALID && limit_is_too_small(engine, options, error))
                        return ENGINE_USAGE;
                return failure;
        }
        gpumem_kv_get_geometry(engine->kv, &engine->geometry);
        return ENGINE_OK;
}

static enum engine_failure build(struct engine *engine, struct weights *weights,
                                 const struct run_hooks *hooks, struct gen_error *error)
{
        enum engine_failure failure;

        if (allocate_tables(engine) < 0) {
                gen_fail(error, -ENOMEM, "out of memory for the engine's tables and threads");
                return ENGINE_MEMORY;
        }
        failure = device_init(&engine->device, &engine->options, error);
        if (failure)
                return failure;
        failure = load_weights(engine, weights, hooks, error);
        if (failure)
                return failure;
        model_plan_init(&engine->plan, &weights->shape, engine->options.max_batch_tokens,
                        engine->options.max_sequences);
        failure = device_buffer_init(&engine->activations, &engine->device, engine->plan.bytes,
                                     "activations", engine->options.memory_timeout_s, hooks, error);
        if (failure)
                return failure;
        return open_pool(engine, error);
}

enum engine_failure engine_new(struct engine **out, struct weights *weights,
                               const struct engine_options *options, const struct run_hooks *hooks,
                               struct gen_error *error)
{
        struct engine *engine = calloc(1, sizeof(*engine));
        enum engine_failure failure;

        *out = NULL;
        if (!engine) {
                gen_fail(error, -ENOMEM, "out of memory");
                return ENGINE_MEMORY;
        }
        engine->options = *options;
        engine->model.weights = weights;
        engine->model.isa = kernel_cpu_isa();
        engine->random = (uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15);
        failure = build(engine, weights, hooks, error);
        if (failure) {
                engine_free(engine);
                return failure;
        }
        engine->model.pool = engine->pool;
        *out = engine;
        return ENGINE_OK;
}

struct engine *engine_free(struct engine *engine)
{
        if (!engine)
                return NULL;
        if (engine->device.stream)
                device_synchronize(&engine->device, NULL);
        /* Where it fails, disconnecting frees the pool all the same. */
        if (engine->kv)
                gpumem_kv_free(engine->kv);
        device_buffer_deinit(&engine->activations);
        device_buffer_deinit(&engine->weights);
        device_deinit(&engine->device);
        kernel_pool_free(engine->pool);
        free(engine->stages);
        free(engine->sequences);
        free(engine->tokens_each);
        free(engine->output_row);
        free(engine->output_entry);
        free(engine->next);
        free(engine->entry_next);
        free(engine->tokens);
        free(engine);
        return NULL;
}

/* --- a step ------------------------------------------------------ */

/* Runs on a thread of the driver, in stream order. */
static void run_stage(void *argument)
{
        const struct stage *stage = argument;
        struct engine *engine = stage->engine;

        if (!stage->layer)
                model_begin(&engine->model, &engine->batch);
        else
                model_layer(&engine->model, &engine->batch, stage->layer - 1);
        if (stage->layer == engine->model.weights->shape.layers)
                model_finish(&engine->model, &engine->batch);
}

/* The host side of the batch: which tokens go in, and after which rows one comes out. */
static void fill_batch(struct engine *engine, const struct scheduler_plan *plan,
                       const struct gpumem_batch_view *view)
{
        uint32_t row = 0, outputs = 0;

        for (uint32_t i = 0; i < plan->count; i++) {
                const struct scheduler_entry *entry = &plan->entries[i];

                memcpy(engine->tokens + row, entry->request->tokens + entry->request->computed,
                       entry->tokens * sizeof(engine->tokens[0]));
                row += entry->tokens;
                if (scheduler_entry_yields(entry)) {
                        engine->output_entry[outputs] = i;
                        engine->output_row[outputs++] = row - 1;
                }
        }
        engine->batch = (struct model_batch){
                .plan = &engine->plan,
                .base = engine->activations.host,
                .tokens = plan->tokens,
                .token = engine->tokens,
                .position = view->positions,
                .outputs = outputs,
                .output_row = engine->output_row,
                .next = engine->next,
        };
}

static struct gpumem_tensor tensor_at(const struct engine *engine, uint64_t offset, uint32_t heads,
                                      uint32_t dim)
{
        return (struct gpumem_tensor){
                .address = engine->activations.address + offset,
                .type = GPUMEM_TYPE_F32,
                .heads = heads,
                .dim = dim,
        };
}

/* Puts the whole step on the stream. */
static enum engine_failure enqueue(struct engine *engine, struct gpumem_batch *batch, bool decode,
                                   struct gen_error *error)
{
        const struct model_shape *shape = &engine->model.weights->shape;
        const struct gpumem_tensor key =
                tensor_at(engine, engine->plan.key, shape->kv_heads, shape->key_dim);
        const struct gpumem_tensor value =
                tensor_at(engine, engine->plan.value, shape->kv_heads, shape->value_dim);
        const struct gpumem_attn attention = {
                .q = tensor_at(engine, engine->plan.query, shape->heads, shape->key_dim),
                .out = tensor_at(engine, engine->plan.attention, shape->heads, shape->value_dim),
                .scale = model_attention_scale(shape),
        };
        const gpumem_stream stream = engine->device.stream;
        enum engine_failure failure =
                device_launch(&engine->device, run_stage, &engine->stages[0], error);

        for (uint32_t layer = 0; layer < shape->layers && !failure; layer++) {
                int r = gpumem_kv_write(batch, layer, &key, &value, stream);

                if (r < 0)
                        return device_fail(error, r, "KV write");
                r = decode ? gpumem_attn_decode(batch, layer, &attention, stream)
                           : gpumem_attn_prefill(batch, layer, &attention, stream);
                if (r < 0)
                        return device_fail(error, r, "attention");
                failure = device_launch(&engine->device, run_stage, &engine->stages[layer + 1],
                                        error);
        }
        return failure;
}

/* Computes a plan for which memory was found. The batch is over afterwards in any case. */
static enum engine_failure compute(struct run *run, const struct scheduler_plan *plan,
                                   struct gpumem_batch *batch)
{
        struct engine *engine = run->engine;
        enum engine_failure failure;
        int r;

        fill_batch(engine, plan, gpumem_batch_get_view(batch));
        failure = enqueue(engine, batch, plan->decode_only, run->error);
        if (failure) {
                gpumem_batch_cancel(batch, engine->device.stream);
                device_synchronize(&engine->device, NULL);
                return failure;
        }
        r = gpumem_batch_end(batch, engine->device.stream);
        failure = device_synchronize(&engine->device, run->error);
        if (!failure && r < 0)
                failure = device_fail(run->error, r, "end of a batch");
        if (failure)
                return failure;
        for (uint32_t i = 0; i < engine->batch.outputs; i++) {
                const uint32_t entry = engine->output_entry[i];

                if (engine->next[i] == MODEL_NO_TOKEN) {
                        gen_fail(run->error, -EDOM,
                                 "prompt %td: the model's output is not a number",
                                 plan->entries[entry].request - run->scheduler.requests->items + 1);
                        return ENGINE_OTHER;
                }
                engine->entry_next[entry] = engine->next[i];
        }
        run->totals->generated_tokens += engine->batch.outputs;
        return ENGINE_OK;
}

/* --- memory ------------------------------------------------------ */

static void free_sequence(void *context, struct request *request)
{
        struct engine *engine = context;

        if (request->sequence)
                gpumem_seq_free(engine->kv, request->sequence);
        request->sequence = 0;
}

/* Puts the youngest back to wait and frees what it holds; it counts as preempted if that means
 * that something will be computed twice. */
static void retreat(struct run *run)
{
        const struct scheduler *scheduler = &run->scheduler;
        struct request *youngest = scheduler->running[scheduler->running_count - 1];

        scheduler_retreat(&run->scheduler, youngest->computed > 0);
        free_sequence(run->engine, youngest);
}

/* Asks for the memory of a plan. GPUMEM_E_*. */
static int begin(struct engine *engine, const struct scheduler_plan *plan, uint32_t wait_ms,
                 struct gpumem_batch **out)
{
        for (uint32_t i = 0; i < plan->count; i++) {
                struct request *request = plan->entries[i].request;

                if (!request->sequence) {
                        gpumem_seq sequence;
                        const int r = gpumem_seq_create(engine->kv, &sequence);

                        if (r < 0)
                                return r;
                        request->sequence = sequence;
                }
                engine->sequences[i] = request->sequence;
                engine->tokens_each[i] = plan->entries[i].tokens;
        }
        return gpumem_batch_begin(engine->kv, engine->sequences, plan->count, engine->tokens_each,
                                  engine->device.stream, wait_ms, out);
}

static bool is_short(int result)
{
        return result == GPUMEM_E_AGAIN || result == GPUMEM_E_NO_MEMORY;
}

/*
 * A plan with memory behind it, as engine.h describes. *plan is NULL when all requests are done.
 * Every turn of the loop takes something back or waits, and the deadline ends it.
 */
static enum engine_failure acquire(struct run *run, const struct scheduler_plan **plan,
                                   struct gpumem_batch **batch)
{
        struct engine *engine = run->engine;
        struct scheduler *scheduler = &run->scheduler;
        const double deadline = now_seconds() + engine->options.memory_timeout_s;
        double let_go = 0;

        for (;;) {
                int r;

                if (run->hooks->stopped(run->hooks->context))
                        return ENGINE_STOPPED;
                *plan = scheduler_next(scheduler);
                if (!*plan)
                        return ENGINE_OK;
                r = begin(engine, *plan, 0, batch);
                if (r < 0 && !is_short(r))
                        return device_fail(run->error, r, "beginning of a batch");
                if (!r)
                        return ENGINE_OK;

                /* The newcomers first: nothing is lost, and the others need not wait. */
                if ((*plan)->entries[(*plan)->count - 1].fresh && !(*plan)->entries[0].fresh) {
                        while (scheduler->running[scheduler->running_count - 1]->computed == 0 &&
                               scheduler->running_count > 1)
                                retreat(run);
                        continue;
                }
                if (r == GPUMEM_E_AGAIN) {
                        r = begin(engine, *plan, WAIT_MS, batch);
                        if (!r)
                                return ENGINE_OK;
                        if (!is_short(r))
                                return device_fail(run->error, r, "beginning of a batch");
                }
                if (scheduler->running_count > 1) {
                        retreat(run);
                        continue;
                }
                /* One is left. It may still be more than the pool, or the device, can ever hold. */
                if (device_is_too_small(&engine->device,
                                        engine->geometry.unit_frames * engine->geometry.frame_bytes,
                                        "another unit of the KV pool for a single sequence",
                                        run->error))
                        return ENGINE_MEMORY;
                if (r == GPUMEM_E_NO_MEMORY || now_seconds() >= deadline)
                        return device_fail(run->error, r, "memory for a single sequence");
                if (!let_go)
                        let_go = now_seconds() + jitter_ms(engine, ALONE_MS) * 1e-3;
                if (now_seconds() >= let_go) {
                        retreat(run);
                        gpumem_kv_trim(engine->kv, NULL);
                        sleep_ms(jitter_ms(engine, ALONE_MS / 10));
                        let_go = 0;
                }
        }
}

/* --- a run ------------------------------------------------------- */

static void note_peak(uint64_t *peak, uint64_t value)
{
        if (value > *peak)
                *peak = value;
}

static void note_statistics(struct run *run)
{
        struct run_totals *totals = run->totals;
        struct gpumem_kv_stats stats;

        totals->preemptions = run->scheduler.preemptions;
        totals->recomputed_tokens = run->scheduler.recomputed_tokens;
        if (gpumem_kv_get_stats(run->engine->kv, &stats) < 0)
                return;
        note_peak(&totals->granted_bytes_peak, stats.granted_bytes_peak);
        note_peak(&totals->pages_used_peak, stats.pages_used);
        note_peak(&totals->pages_total_peak, stats.pages_total);
        note_peak(&totals->tokens_peak, stats.tokens);
        note_peak(&totals->sequences_peak, stats.sequences);
        totals->units_grown = stats.units_grown;
        totals->units_returned = stats.units_returned;
        totals->grow_waits = stats.grow_waits;
        totals->copies = stats.copies;
}

static void describe_engine(const struct engine *engine, struct run_totals *totals)
{
        const struct gpumem_kv_geometry *geometry = &engine->geometry;

        totals->token_bytes = model_shape_token_bytes(&engine->model.weights->shape);
        totals->weight_bytes = gpumem_buffer_bytes(engine->weights.buffer);
        totals->activation_bytes = gpumem_buffer_bytes(engine->activations.buffer);
        totals->page_tokens = geometry->page_tokens;
        totals->page_bytes = geometry->page_bytes;
        totals->pages_per_unit = geometry->pages_per_unit;
        totals->unit_bytes = geometry->unit_frames * geometry->frame_bytes;
        totals->frame_bytes = geometry->frame_bytes;
}

static enum engine_failure run_steps(struct run *run)
{
        struct engine *engine = run->engine;

        for (;;) {
                const struct scheduler_plan *plan;
                struct gpumem_batch *batch = NULL;
                enum engine_failure failure = acquire(run, &plan, &batch);

                if (failure || !plan)
                        return failure;
                failure = compute(run, plan, batch);
                if (failure)
                        return failure;
                run->totals->steps++;
                run->totals->computed_tokens += plan->tokens;
                note_statistics(run);
                scheduler_computed(&run->scheduler, run->tokenizer, &engine->options.limits,
                                   engine->entry_next, free_sequence, engine);
                run->hooks->stepped(run->hooks->context, run->totals);
        }
}

enum engine_failure engine_run(struct engine *engine, const struct tokenizer *tokenizer,
                               struct request_list *requests, const struct run_hooks *hooks,
                               struct run_totals *totals, struct gen_error *error)
{
        struct run run = {
                .engine = engine,
                .tokenizer = tokenizer,
                .hooks = hooks,
                .totals = totals,
                .error = error,
        };
        enum engine_failure failure;

        describe_engine(engine, totals);
        if (scheduler_init(&run.scheduler, requests, engine->options.max_sequences,
                           engine->options.max_batch_tokens) < 0) {
                gen_fail(error, -ENOMEM, "out of memory for the scheduler");
                return ENGINE_MEMORY;
        }
        for (uint32_t i = 0; i < requests->count; i++)
                totals->prompt_tokens += requests->items[i].prompt_tokens;
        failure = run_steps(&run);
        note_statistics(&run);
        for (uint32_t i = 0; i < requests->count; i++)
                free_sequence(engine, &requests->items[i]);
        scheduler_deinit(&run.scheduler);
        return failure == ENGINE_STOPPED ? ENGINE_OK : failure;
}
