/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiles that a work item reads, in one of two orders. An item WORKs through a partial's K
 * tiles, and, its weights being known, through its V tiles. Memory is fastest in STREAM order: all
 * of a page, K and V of one head after the other. A partial has as many steps in either order, so a
 * second walk that fetches in stream order, half a partial's steps ahead of the first, has
 * everything there in time: K step i needs what it fetched as step 2i.
 *
 * In both, a page comes before the next page, a head before the next head, and a tile is cut in
 * pieces of at most step_tokens tokens.
 */
#ifndef GPUMEM_KERNELS_CPU_WALK_H
#define GPUMEM_KERNELS_CPU_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/cut.h"

enum walk_order {
        WALK_WORK,
        WALK_STREAM,
};

enum walk_begins {
        WALK_BEGINS_NOTHING,
        WALK_BEGINS_KEYS,   /* the first step of a partial */
        WALK_BEGINS_VALUES, /* in work order, its first V step: all its scores are there */
};

struct walk_step {
        const uint16_t *tile; /* the first token's vector */
        size_t bytes;
        uint32_t partial;
        uint32_t offset; /* of the first token in the partial */
        uint32_t tokens;
        uint32_t head; /* within the item */
        bool value;
        enum walk_begins begins;
        bool ends; /* in work order, the last step of the partial */
};

struct walk {
        enum walk_order order;
        const struct kernel_kv *kv;
        const uint32_t *pages;
        uint32_t layer;
        uint32_t first_head, heads;
        uint32_t step_tokens;
        uint32_t partial, partial_end;
        int64_t visible; /* tokens that the item's last row sees */
        /* The next step: */
        bool value;
        uint32_t offset; /* in the partial */
        uint32_t tokens; /* of the partial, in the page at hand, from offset */
        uint32_t head;
        uint32_t piece; /* tokens of the tile at hand that are done */
        const unsigned char *tile;
};

void walk_begin(struct walk *walk, enum walk_order order, const struct kernel_attention *args,
                const struct cut_item *item, uint32_t step_tokens);
/* False when there is nothing left. */
bool walk_next(struct walk *walk, struct walk_step *step);

/* How many K steps the walk's partial has. */
uint32_t walk_key_steps(const struct walk *walk);

#endif
