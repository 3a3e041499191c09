/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a work item reads tiles: for each partial, first K then V; in each of the two,
 * page by page; in a page, head by head; in a tile, pieces of at most step_tokens tokens.
 */
#ifndef GPUMEM_KERNELS_CPU_WALK_H
#define GPUMEM_KERNELS_CPU_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/cut.h"

/* How many steps the scout is ahead. */
#define WALK_AHEAD 2

enum walk_begins {
        WALK_BEGINS_NOTHING,
        WALK_BEGINS_KEYS,   /* the first step of a partial */
        WALK_BEGINS_VALUES, /* its first V step: all its scores are there */
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
        bool ends; /* the last step of the partial */
};

struct walk {
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

void walk_begin(struct walk *walk, const struct kernel_attention *args, const struct cut_item *item,
                uint32_t step_tokens);
/* False when there is nothing left. */
bool walk_next(struct walk *walk, struct walk_step *step);

#endif
