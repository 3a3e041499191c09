/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting a batch into work items, so that every thread has some and no result depends on it.
 */
#ifndef GPUMEM_KERNELS_CPU_CUT_H
#define GPUMEM_KERNELS_CPU_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/tile.h"

enum cut_kind {
        CUT_DECODE, /* few rows: bandwidth counts; items span KV heads, so that pages are read whole
                     */
        CUT_PREFILL, /* many rows: arithmetic counts; items are tiles of queries of one KV head */
};

struct cut_item {
        uint32_t sequence;
        uint32_t first_query, queries; /* within the sequence */
        uint32_t first_head, heads;    /* KV heads */
        uint32_t first_partial, partials;
        bool whole;    /* has all the partials that its rows see, and writes the output */
        size_t stored; /* where its group's partials begin, in floats; only if not whole */
};

/* One KV head of the items that share queries and heads and split the partials. */
struct cut_join {
        size_t item;       /* any of them */
        uint32_t head;     /* within the item */
        uint32_t partials; /* of all of them */
};

struct cut {
        uint32_t group; /* query heads per KV head */
        uint32_t step_tokens;
        unsigned lanes;  /* threads worth using, at least 1 */
        size_t rows_max; /* query rows of the largest item */
        struct cut_item *items;
        size_t item_count;
        struct cut_join *joins;
        size_t join_count;
        size_t stored; /* floats that the stored partials need */
};

/* 0 or -ENOMEM. */
int cut_init(struct cut *cut, const struct kernel_attention *args, enum cut_kind kind,
             unsigned threads);
void cut_deinit(struct cut *cut);

static inline size_t cut_item_rows(const struct cut *cut, const struct cut_item *item)
{
        return (size_t)item->queries * cut->group * item->heads;
}

/* Floats of one partial's state: acc of every row, then all maxima, then all sums; states follow
 * each other aligned. */
static inline size_t cut_state_floats(size_t rows, uint32_t value_dim)
{
        return rows * kernel_padded(value_dim) +
               (2 * rows + KERNEL_LANES - 1) / KERNEL_LANES * KERNEL_LANES;
}

/* How many keys a query of a sequence sees; 0 if it stands before the first. */
static inline int64_t cut_visible(const struct kernel_attention *args, uint32_t sequence,
                                  int64_t query)
{
        int64_t queries = args->q_indptr
                                  ? (int64_t)args->q_indptr[sequence + 1] - args->q_indptr[sequence]
                                  : 1;
        int64_t visible = (int64_t)args->kv_len[sequence] - queries + query + 1;

        return visible > 0 ? visible : 0;
}

#endif
