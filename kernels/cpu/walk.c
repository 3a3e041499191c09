/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/walk.h"

#include "kernels/cpu/address.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
        return a < b ? a : b;
}

static uint32_t partial_tokens(const struct walk *walk)
{
        int64_t n = walk->visible - (int64_t)walk->partial * GPUMEM_PARTIAL_TOKENS;

        return n < GPUMEM_PARTIAL_TOKENS ? (uint32_t)n : GPUMEM_PARTIAL_TOKENS;
}

static const unsigned char *tile_at(const struct walk *walk)
{
        const struct kernel_kv *kv = walk->kv;
        uint64_t token = (uint64_t)walk->partial * GPUMEM_PARTIAL_TOKENS + walk->offset;
        const unsigned char *tile =
                kernel_key_tile(kv, walk->layer, walk->pages[token / kv->page_tokens],
                                walk->first_head + walk->head);
        uint64_t inside = token % kv->page_tokens;

        return walk->value ? tile + kv->value_offset + inside * kv->value_dim * sizeof(uint16_t)
                           : tile + inside * kv->key_dim * sizeof(uint16_t);
}

/* Sets tokens for the page that offset is in. */
static void page_enter(struct walk *walk)
{
        uint64_t token = (uint64_t)walk->partial * GPUMEM_PARTIAL_TOKENS + walk->offset;
        uint32_t in_page = walk->kv->page_tokens - (uint32_t)(token % walk->kv->page_tokens);

        walk->tokens = smaller(in_page, partial_tokens(walk) - walk->offset);
        walk->head = 0;
        walk->piece = 0;
        walk->tile = tile_at(walk);
}

void walk_begin(struct walk *walk, enum walk_order order, const struct kernel_attention *args,
                const struct cut_item *item, uint32_t step_tokens)
{
        *walk = (struct walk){
                .order = order,
                .kv = &args->kv,
                .pages = args->indices ? args->indices + args->indptr[item->sequence] : NULL,
                .layer = args->layer,
                .first_head = item->first_head,
                .heads = item->heads,
                .step_tokens = step_tokens,
                .partial = item->first_partial,
                .partial_end = item->first_partial + item->partials,
                .visible = cut_visible(args, item->sequence,
                                       (int64_t)item->first_query + item->queries - 1),
        };
        if (walk->partial < walk->partial_end)
                page_enter(walk);
}

/* To the next tile of the page, or false. */
static bool tile_advance(struct walk *walk)
{
        if (walk->order == WALK_STREAM) {
                walk->value = !walk->value;
                if (walk->value)
                        return true;
        }
        return ++walk->head < walk->heads;
}

/* To the next page of the partial or, in work order, to the V tiles of its first one; or false. */
static bool page_advance(struct walk *walk)
{
        walk->offset += walk->tokens;
        if (walk->offset < partial_tokens(walk))
                return true;
        walk->offset = 0;
        if (walk->order == WALK_STREAM)
                return false;
        walk->value = !walk->value;
        return walk->value;
}

static void walk_advance(struct walk *walk, uint32_t tokens)
{
        walk->piece += tokens;
        if (walk->piece < walk->tokens)
                return;
        walk->piece = 0;
        if (tile_advance(walk)) {
                walk->tile = tile_at(walk);
                return;
        }
        if (page_advance(walk) || ++walk->partial < walk->partial_end)
                page_enter(walk);
}

uint32_t walk_key_steps(const struct walk *walk)
{
        uint32_t page = smaller(walk->kv->page_tokens, GPUMEM_PARTIAL_TOKENS);
        uint32_t pages = (GPUMEM_PARTIAL_TOKENS + page - 1) / page;

        return pages * ((page + walk->step_tokens - 1) / walk->step_tokens) * walk->heads;
}

bool walk_next(struct walk *walk, struct walk_step *step)
{
        size_t vector;

        if (walk->partial == walk->partial_end)
                return false;
        vector = (walk->value ? walk->kv->value_dim : walk->kv->key_dim) * sizeof(uint16_t);
        step->tile = (const uint16_t *)(const void *)(walk->tile + walk->piece * vector);
        step->tokens = smaller(walk->tokens - walk->piece, walk->step_tokens);
        step->bytes = step->tokens * vector;
        step->partial = walk->partial;
        step->offset = walk->offset + walk->piece;
        step->head = walk->head;
        step->value = walk->value;
        step->begins = step->offset != 0 || walk->head != 0 ? WALK_BEGINS_NOTHING
                       : walk->value                        ? WALK_BEGINS_VALUES
                                                            : WALK_BEGINS_KEYS;
        walk_advance(walk, step->tokens);
        step->ends = step->value && !walk->value;
        return true;
}
