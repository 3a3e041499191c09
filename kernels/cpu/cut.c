/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block is what its rows force to stay together unless partials are split: some queries of one
 * sequence and some KV heads. Blocks are enumerated twice, once to count and once to fill, by the
 * same function.
 */
#include "kernels/cpu/cut.h"

#include <errno.h>
#include <stdlib.h>

/* Query rows of one KV head that an item takes at most (one token's rows are never split). */
#define BLOCK_ROWS 64
/* Query rows over all KV heads of a decode item: queries, scores and accumulators should stay near
 * the core. */
#define DECODE_ROWS 128
/* More items than threads, so that the last one to finish does not keep the others waiting long. */
#define ITEMS_PER_LANE 4
/* Multiply-adds below which a second thread costs more than it saves (some ten microseconds). */
#define WORK_PER_LANE (1u << 18)

struct block {
        uint32_t sequence;
        uint32_t first_query, queries;
        uint32_t first_head, heads;
        uint32_t partials;
};

struct plan {
        const struct kernel_attention *args;
        uint32_t group;
        uint32_t queries; /* per block, at most */
        uint32_t heads;   /* likewise */
        uint64_t run;     /* partials per item, at most; longer blocks are cut */
        uint32_t padded;
        /* Sums of what plan_walk() has seen: */
        uint64_t partials; /* times heads */
        uint64_t work;
        size_t items, joins, stored, rows_max;
};

static uint32_t queries_of(const struct kernel_attention *args, uint32_t sequence)
{
        return args->q_indptr ? args->q_indptr[sequence + 1] - args->q_indptr[sequence] : 1;
}

static size_t pieces_of(const struct plan *plan, const struct block *block)
{
        uint64_t pieces = ((uint64_t)block->partials + plan->run - 1) / plan->run;

        return pieces > 1 ? (size_t)pieces : 1;
}

/* Counts a block and, if the cut has room for items, writes its items. */
static void block_add(struct plan *plan, const struct block *block, struct cut *cut)
{
        size_t pieces = pieces_of(plan, block);
        size_t rows = (size_t)block->queries * plan->group * block->heads;
        bool whole = pieces == 1;

        for (size_t i = 0; cut->items && i < pieces; i++) {
                uint32_t first = (uint32_t)(block->partials * (uint64_t)i / pieces);
                uint32_t end = (uint32_t)(block->partials * ((uint64_t)i + 1) / pieces);

                cut->items[plan->items + i] = (struct cut_item){
                        .sequence = block->sequence,
                        .first_query = block->first_query,
                        .queries = block->queries,
                        .first_head = block->first_head,
                        .heads = block->heads,
                        .first_partial = first,
                        .partials = end - first,
                        .whole = whole,
                        .stored = plan->stored,
                };
        }
        for (uint32_t head = 0; !whole && cut->joins && head < block->heads; head++)
                cut->joins[plan->joins + head] = (struct cut_join){
                        .item = plan->items,
                        .head = head,
                        .partials = block->partials,
                };

        plan->items += pieces;
        plan->partials += (uint64_t)block->partials * block->heads;
        plan->work += (uint64_t)block->partials * rows * GPUMEM_PARTIAL_TOKENS * plan->padded;
        if (rows > plan->rows_max)
                plan->rows_max = rows;
        if (!whole) {
                plan->joins += block->heads;
                plan->stored += block->partials * cut_state_floats(rows, plan->args->kv.value_dim);
        }
}

static void plan_walk(struct plan *plan, struct cut *cut)
{
        const struct kernel_attention *args = plan->args;

        plan->partials = 0;
        plan->work = 0;
        plan->items = 0;
        plan->joins = 0;
        plan->stored = 0;
        plan->rows_max = 1;
        for (uint32_t b = 0; b < args->sequences; b++) {
                uint32_t queries = queries_of(args, b);

                for (uint64_t q = 0; q < queries; q += plan->queries) {
                        uint32_t n =
                                queries - q < plan->queries ? queries - (uint32_t)q : plan->queries;
                        int64_t visible = cut_visible(args, b, (int64_t)q + n - 1);

                        for (uint64_t h = 0; h < args->kv.kv_heads; h += plan->heads) {
                                uint32_t left = args->kv.kv_heads - (uint32_t)h;

                                block_add(
                                        plan,
                                        &(struct block){
                                                .sequence = b,
                                                .first_query = (uint32_t)q,
                                                .queries = n,
                                                .first_head = (uint32_t)h,
                                                .heads = left < plan->heads ? left : plan->heads,
                                                .partials = (uint32_t)((visible +
                                                                        GPUMEM_PARTIAL_TOKENS - 1) /
                                                                       GPUMEM_PARTIAL_TOKENS),
                                        },
                                        cut);
                        }
                }
        }
}

static uint32_t at_least_one(uint64_t n, uint32_t most)
{
        return n < 1 ? 1 : n < most ? (uint32_t)n : most;
}

int cut_init(struct cut *cut, const struct kernel_attention *args, enum cut_kind kind,
             unsigned threads)
{
        struct plan plan = {.args = args};
        uint64_t want;

        *cut = (struct cut){.group = args->q_heads / args->kv.kv_heads};
        plan.group = cut->group;
        plan.padded = kernel_padded(args->kv.key_dim) + kernel_padded(args->kv.value_dim);
        plan.queries = at_least_one(BLOCK_ROWS / plan.group, UINT32_MAX);
        plan.heads = 1;
        if (kind == CUT_DECODE) {
                uint32_t longest = 1;

                for (uint32_t b = 0; b < args->sequences; b++)
                        if (queries_of(args, b) > longest)
                                longest = queries_of(args, b);
                if (longest > plan.queries)
                        longest = plan.queries;
                plan.heads = at_least_one(DECODE_ROWS / ((uint64_t)plan.group * longest),
                                          args->kv.kv_heads);
        }
        cut->step_tokens = kind == CUT_DECODE ? 16 : 64;

        /* How much is there, and what is each thread's share? */
        plan.run = UINT64_MAX;
        plan_walk(&plan, cut);
        cut->lanes = at_least_one(plan.work / WORK_PER_LANE, threads);
        want = (uint64_t)cut->lanes * ITEMS_PER_LANE;
        if (cut->lanes > 1 && plan.items < want) {
                uint64_t share = plan.partials / want; /* in partials of one head */

                /* Whole pages if a share has one partial of every head, else fewer heads. */
                plan.heads = at_least_one(share, plan.heads);
                plan.run = share / plan.heads > 0 ? share / plan.heads : 1;
        } else if (cut->lanes > 1) {
                /* Enough items, but one long sequence must not outlast the rest. */
                plan.run = plan.partials / plan.heads / want + 1;
                plan.run *= 2;
        }
        plan_walk(&plan, cut);

        cut->items = calloc(plan.items + 1, sizeof(*cut->items));
        cut->joins = calloc(plan.joins + 1, sizeof(*cut->joins));
        if (!cut->items || !cut->joins) {
                cut_deinit(cut);
                return -ENOMEM;
        }
        plan_walk(&plan, cut);
        cut->item_count = plan.items;
        cut->join_count = plan.joins;
        cut->rows_max = plan.rows_max;
        cut->stored = plan.stored;
        return 0;
}

void cut_deinit(struct cut *cut)
{
        free(cut->items);
        free(cut->joins);
        cut->items = NULL;
        cut->joins = NULL;
}
