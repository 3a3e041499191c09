/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over paged KV: running one work item, and the two phases of a call.
 *
 * Decode and prefill are the same computation, cut up differently (cut.c). An item is a range of a
 * sequence's queries x a range of KV heads x a range of partials. If it has all the partials its
 * rows may see, it merges each as it comes and writes the output; else it stores each partial's (m,
 * l, acc), and a second phase merges them in index order. Either way the same numbers are merged by
 * the same function in the same order, so that how the work was cut does not show in a result.
 *
 * Inside a partial an item walks page by page, over all its heads before the next page (they are
 * neighbours in memory), first over the K tiles, then, the weights being known, over the V tiles. A
 * second walk runs ahead of the first and names what to fetch.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/address.h"
#include "kernels/cpu/cut.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/walk.h"

/* Steps that are fetched before the first is worked on. */
#define SCOUT_START 4

/* Rows' running result: out = acc / sum at the end. An empty one is (-inf, 0, 0). */
struct state {
        float *maximum; /* [rows] */
        float *sum;     /* [rows] */
        float *acc;     /* [rows][kernel_padded(value_dim)] */
};

struct scratch {
        float *query; /* [rows][kernel_padded(key_dim)] */
        float *score; /* [rows][KERNEL_SCORE_STRIDE] */
        struct state part;
        struct state total;
        uint32_t *visible; /* [rows of one head] tokens of the partial at hand */
        uint32_t *limit;   /* [rows of one head] tokens of the tile at hand */
};

struct attention_job {
        const struct kernel_attention *args;
        const struct kernel_tile_ops *ops;
        const struct cut *cut;
        unsigned char *scratch; /* one stretch per lane */
        size_t scratch_bytes;
        float *stored;
};

static size_t round_up(size_t bytes)
{
        return (bytes + KERNEL_ALIGN - 1) / KERNEL_ALIGN * KERNEL_ALIGN;
}

static void *take(unsigned char **at, size_t bytes)
{
        unsigned char *taken = *at;

        *at += round_up(bytes);
        return taken;
}

/* Lays a scratch out at memory; returns the bytes it needs. With memory = NULL it only counts. */
static size_t scratch_lay(struct scratch *scratch, unsigned char *memory,
                          const struct kernel_kv *kv, size_t rows)
{
        unsigned char *at = memory ? memory : (unsigned char *)(uintptr_t)KERNEL_ALIGN;
        unsigned char *start = at;
        size_t key_dim = kernel_padded(kv->key_dim);
        size_t value_dim = kernel_padded(kv->value_dim);

        scratch->query = take(&at, rows * key_dim * sizeof(float));
        scratch->score = take(&at, rows * KERNEL_SCORE_STRIDE * sizeof(float));
        scratch->part.acc = take(&at, rows * value_dim * sizeof(float));
        scratch->part.maximum = take(&at, rows * sizeof(float));
        scratch->part.sum = take(&at, rows * sizeof(float));
        scratch->total.acc = take(&at, rows * value_dim * sizeof(float));
        scratch->total.maximum = take(&at, rows * sizeof(float));
        scratch->total.sum = take(&at, rows * sizeof(float));
        scratch->visible = take(&at, rows * sizeof(uint32_t));
        scratch->limit = take(&at, rows * sizeof(uint32_t));
        return (size_t)(at - start);
}

/* The state of one partial of a cut item, in the memory shared by the items of its group. */
static struct state stored_state(const struct attention_job *job, const struct cut_item *item,
                                 uint32_t partial)
{
        size_t rows = cut_item_rows(job->cut, item);
        size_t value_dim = kernel_padded(job->args->kv.value_dim);
        float *at = job->stored + item->stored +
                    partial * cut_state_floats(rows, job->args->kv.value_dim);
        struct state state = {.acc = at, .maximum = at + rows * value_dim};

        state.sum = state.maximum + rows;
        return state;
}

static void merge_row(const struct kernel_tile_ops *ops, struct state *to, size_t to_row,
                      const struct state *from, size_t from_row, uint32_t padded)
{
        float a = to->maximum[to_row];
        float b = from->maximum[from_row];
        float m = a > b ? a : b;
        float to_factor, from_factor;

        /* b is never -inf (softmax() sees to that), so a - m is -inf at worst, not NaN; two empty
         * rows are never merged (C44). */
        to_factor = ops->exponential(a - m);
        from_factor = ops->exponential(b - m);
        to->maximum[to_row] = m;
        to->sum[to_row] = to->sum[to_row] * to_factor + from->sum[from_row] * from_factor;
        ops->merge(to->acc + to_row * padded, to_factor, from->acc + from_row * padded, from_factor,
                   padded);
}

/* Where query row `row` of head `head` (row = token, then query head of the group) lies in an
 * operand. */
static int64_t row_offset(const struct attention_job *job, const struct cut_item *item,
                          uint32_t head, uint32_t row, int64_t token_stride, int64_t head_stride)
{
        const struct kernel_attention *args = job->args;
        uint32_t group = job->cut->group;
        int64_t first = args->q_indptr ? args->q_indptr[item->sequence] : item->sequence;
        int64_t token = first + item->first_query + row / group;
        int64_t q_head = (int64_t)(item->first_head + head) * group + row % group;

        return token * token_stride + q_head * head_stride;
}

static void row_finish(const struct attention_job *job, const struct cut_item *item, uint32_t head,
                       uint32_t row, const struct state *total, size_t total_row)
{
        const struct kernel_attention *args = job->args;
        uint32_t padded = kernel_padded(args->kv.value_dim);
        float sum = total->sum[total_row];
        char *out = (char *)args->out +
                    row_offset(job, item, head, row, args->out_token_stride, args->out_head_stride);

        /* No weight at all: acc is 0, or NaN where a value was, and lse comes to -inf. */
        job->ops->store(out, total->acc + total_row * padded, sum == 0.0f ? 1.0f : sum,
                        args->out_type, args->kv.value_dim);
        if (args->lse)
                args->lse[row_offset(job, item, head, row, args->q_heads, 1)] =
                        total->maximum[total_row] + logf(sum);
}

/* How many tokens of a partial each row of a head sees; the rows' positions do not fall, so neither
 * do these. */
static void visible_set(const struct attention_job *job, const struct cut_item *item,
                        uint32_t partial, uint32_t rows, uint32_t *visible)
{
        int64_t before = (int64_t)partial * GPUMEM_PARTIAL_TOKENS;

        for (uint32_t row = 0; row < rows; row++) {
                int64_t query = (int64_t)item->first_query + row / job->cut->group;
                int64_t n = cut_visible(job->args, item->sequence, query) - before;

                if (n < 0)
                        n = 0;
                visible[row] = n < GPUMEM_PARTIAL_TOKENS ? (uint32_t)n : GPUMEM_PARTIAL_TOKENS;
        }
}

static void tile_scores(const struct attention_job *job, struct scratch *scratch,
                        const struct walk_step *step, uint32_t rows, struct kernel_ahead *ahead)
{
        const struct kernel_attention *args = job->args;
        uint32_t row = 0;
        size_t first;

        while (scratch->visible[row] <= step->offset)
                row++;
        first = (size_t)step->head * rows + row;
        job->ops->scores(step->tile, step->tokens, args->kv.key_dim,
                         scratch->query + first * kernel_padded(args->kv.key_dim), rows - row,
                         args->scale, scratch->score + first * KERNEL_SCORE_STRIDE + step->offset,
                         ahead);
}

static void tile_accumulate(const struct attention_job *job, struct scratch *scratch,
                            const struct state *part, const struct walk_step *step, uint32_t rows,
                            struct kernel_ahead *ahead)
{
        const struct kernel_attention *args = job->args;
        uint32_t row = 0;
        size_t first;

        while (scratch->visible[row] <= step->offset)
                row++;
        for (uint32_t i = row; i < rows; i++) {
                uint32_t n = scratch->visible[i] - step->offset;

                scratch->limit[i] = n < step->tokens ? n : step->tokens;
        }
        first = (size_t)step->head * rows + row;
        job->ops->accumulate(step->tile, args->kv.value_dim,
                             scratch->score + first * KERNEL_SCORE_STRIDE + step->offset,
                             scratch->limit + row, rows - row,
                             part->acc + first * kernel_padded(args->kv.value_dim), ahead);
}

static void partial_begin(const struct attention_job *job, const struct cut_item *item,
                          uint32_t partial, uint32_t rows, struct scratch *scratch,
                          struct state *part)
{
        size_t all = (size_t)rows * item->heads;

        *part = item->whole ? scratch->part : stored_state(job, item, partial);
        visible_set(job, item, partial, rows, scratch->visible);
        memset(part->acc, 0, all * kernel_padded(job->args->kv.value_dim) * sizeof(float));
}

static void partial_softmax(const struct attention_job *job, const struct cut_item *item,
                            uint32_t rows, struct scratch *scratch, struct state *part)
{
        for (uint32_t head = 0; head < item->heads; head++) {
                for (uint32_t row = 0; row < rows; row++) {
                        size_t i = (size_t)head * rows + row;

                        if (scratch->visible[row] > 0)
                                job->ops->softmax(scratch->score + i * KERNEL_SCORE_STRIDE,
                                                  scratch->visible[row], &part->maximum[i],
                                                  &part->sum[i]);
                }
        }
}

static void partial_end(const struct attention_job *job, const struct cut_item *item, uint32_t rows,
                        struct scratch *scratch, struct state *part)
{
        uint32_t padded = kernel_padded(job->args->kv.value_dim);

        if (!item->whole)
                return;
        for (uint32_t head = 0; head < item->heads; head++) {
                for (uint32_t row = 0; row < rows; row++) {
                        size_t i = (size_t)head * rows + row;

                        if (scratch->visible[row] > 0)
                                merge_row(job->ops, &scratch->total, i, part, i, padded);
                }
        }
}

static void state_clear(struct state *state, size_t rows, uint32_t padded)
{
        for (size_t i = 0; i < rows; i++) {
                state->maximum[i] = -INFINITY;
                state->sum[i] = 0.0f;
        }
        memset(state->acc, 0, rows * padded * sizeof(float));
}

static void queries_load(const struct attention_job *job, const struct cut_item *item,
                         uint32_t rows, float *query)
{
        const struct kernel_attention *args = job->args;

        for (uint32_t head = 0; head < item->heads; head++) {
                for (uint32_t row = 0; row < rows; row++) {
                        const char *from = (const char *)args->q + row_offset(job, item, head, row,
                                                                              args->q_token_stride,
                                                                              args->q_head_stride);

                        job->ops->load(query, from, args->q_type, args->kv.key_dim);
                        query += kernel_padded(args->kv.key_dim);
                }
        }
}

static void item_partials(const struct attention_job *job, const struct cut_item *item,
                          uint32_t rows, struct scratch *scratch)
{
        struct walk walk, scout;
        struct walk_step step, next;
        struct state part = scratch->part;
        uint32_t lead = 0, lead_wanted;

        walk_begin(&walk, WALK_WORK, job->args, item, job->cut->step_tokens);
        walk_begin(&scout, WALK_STREAM, job->args, item, job->cut->step_tokens);
        lead_wanted = walk_key_steps(&walk);
        for (; lead < SCOUT_START && walk_next(&scout, &next); lead++)
                job->ops->fetch(next.tile, next.bytes);

        while (walk_next(&walk, &step)) {
                struct kernel_ahead ahead = {0, 0};

                if (lead < lead_wanted && walk_next(&scout, &next)) {
                        job->ops->fetch(next.tile, next.bytes);
                        lead++;
                }
                if (walk_next(&scout, &next)) {
                        ahead.at = (uintptr_t)next.tile;
                        ahead.end = ahead.at + next.bytes;
                }
                if (step.begins == WALK_BEGINS_KEYS)
                        partial_begin(job, item, step.partial, rows, scratch, &part);
                else if (step.begins == WALK_BEGINS_VALUES)
                        partial_softmax(job, item, rows, scratch, &part);

                if (step.value)
                        tile_accumulate(job, scratch, &part, &step, rows, &ahead);
                else
                        tile_scores(job, scratch, &step, rows, &ahead);
                if (step.ends)
                        partial_end(job, item, rows, scratch, &part);
        }
}

static void attention_item(void *arg, unsigned lane, size_t i)
{
        struct attention_job *job = arg;
        const struct cut_item *item = &job->cut->items[i];
        uint32_t rows = item->queries * job->cut->group;
        struct scratch scratch;

        scratch_lay(&scratch, job->scratch + lane * job->scratch_bytes, &job->args->kv,
                    job->cut->rows_max);
        queries_load(job, item, rows, scratch.query);
        if (item->whole)
                state_clear(&scratch.total, (size_t)rows * item->heads,
                            kernel_padded(job->args->kv.value_dim));
        item_partials(job, item, rows, &scratch);
        if (!item->whole)
                return;
        for (uint32_t head = 0; head < item->heads; head++)
                for (uint32_t row = 0; row < rows; row++)
                        row_finish(job, item, head, row, &scratch.total, (size_t)head * rows + row);
}

/* Second phase, one KV head of one group of cut items: all their partials are stored, in one place.
 */
static void attention_join(void *arg, unsigned lane, size_t i)
{
        struct attention_job *job = arg;
        const struct cut_join *join = &job->cut->joins[i];
        const struct cut_item *item = &job->cut->items[join->item];
        uint32_t rows = item->queries * job->cut->group;
        uint32_t padded = kernel_padded(job->args->kv.value_dim);
        struct scratch scratch;

        scratch_lay(&scratch, job->scratch + lane * job->scratch_bytes, &job->args->kv,
                    job->cut->rows_max);
        state_clear(&scratch.total, rows, padded);
        for (uint32_t partial = 0; partial < join->partials; partial++) {
                struct state part = stored_state(job, item, partial);

                visible_set(job, item, partial, rows, scratch.visible);
                for (uint32_t row = 0; row < rows; row++)
                        if (scratch.visible[row] > 0)
                                merge_row(job->ops, &scratch.total, row, &part,
                                          (size_t)join->head * rows + row, padded);
        }
        for (uint32_t row = 0; row < rows; row++)
                row_finish(job, item, join->head, row, &scratch.total, row);
}

static int attention_run(enum kernel_isa isa, struct kernel_pool *pool,
                         const struct kernel_attention *args, enum cut_kind kind)
{
        struct attention_job job = {.args = args, .ops = kernel_tile_ops(isa)};
        struct scratch unused;
        struct cut cut;
        int r;

        if (!job.ops)
                return -EOPNOTSUPP;
        r = cut_init(&cut, args, kind, kernel_pool_threads(pool));
        if (r < 0)
                return r;
        job.cut = &cut;
        job.scratch_bytes = scratch_lay(&unused, NULL, &args->kv, cut.rows_max);

        r = -ENOMEM;
        job.scratch = aligned_alloc(KERNEL_ALIGN, job.scratch_bytes * cut.lanes);
        if (cut.stored > 0)
                job.stored = aligned_alloc(KERNEL_ALIGN, round_up(cut.stored * sizeof(float)));
        if (job.scratch && (job.stored || cut.stored == 0)) {
                kernel_lanes_run(pool, cut.lanes, attention_item, &job, cut.item_count);
                kernel_lanes_run(pool, cut.lanes, attention_join, &job, cut.join_count);
                r = 0;
        }
        free(job.stored);
        free(job.scratch);
        cut_deinit(&cut);
        return r;
}

int kernel_cpu_attention_decode_isa(enum kernel_isa isa, struct kernel_pool *pool,
                                    const struct kernel_attention *args)
{
        return attention_run(isa, pool, args, CUT_DECODE);
}

int kernel_cpu_attention_prefill_isa(enum kernel_isa isa, struct kernel_pool *pool,
                                     const struct kernel_attention *args)
{
        return attention_run(isa, pool, args, CUT_PREFILL);
}

int kernel_cpu_attention_decode(struct kernel_pool *pool, const struct kernel_attention *args)
{
        return attention_run(kernel_cpu_isa(), pool, args, CUT_DECODE);
}

int kernel_cpu_attention_prefill(struct kernel_pool *pool, const struct kernel_attention *args)
{
        return attention_run(kernel_cpu_isa(), pool, args, CUT_PREFILL);
}
