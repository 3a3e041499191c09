/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/sequence.h"

static uint32_t pages_for(const struct sequence_table *table, uint64_t tokens)
{
        return (uint32_t)((tokens + (UINT64_C(1) << table->page_shift) - 1) >> table->page_shift);
}

static bool tail_is_partial(const struct sequence_table *table, const struct sequence *sequence)
{
        return sequence->tokens & ((UINT32_C(1) << table->page_shift) - 1);
}

int sequence_table_init(struct sequence_table *table, struct page_allocator *pages, uint32_t size,
                        uint32_t page_shift, uint32_t tokens_max)
{
        memset(table, 0, sizeof(*table));
        table->pages = pages;
        table->size = size;
        table->page_shift = page_shift;
        table->tokens_max = tokens_max;
        table->first_free = UINT32_MAX;
        table->sequences = calloc(size, sizeof(*table->sequences));
        return table->sequences ? 0 : -ENOMEM;
}

void sequence_table_start(struct sequence_table *table, uint32_t generation)
{
        table->generation = generation;
}

void sequence_table_deinit(struct sequence_table *table)
{
        for (uint32_t i = 0; table->sequences && i < table->unused; i++)
                free(table->sequences[i].pages);
        free(table->sequences);
        table->sequences = NULL;
}

gpumem_seq sequence_handle(const struct sequence_table *table, const struct sequence *sequence)
{
        return (uint64_t)sequence->generation << 32 | (uint32_t)(sequence - table->sequences);
}

struct sequence *sequence_find(struct sequence_table *table, gpumem_seq handle)
{
        uint32_t place = (uint32_t)handle;
        uint32_t generation = (uint32_t)(handle >> 32);

        if (generation == 0 || place >= table->unused ||
            table->sequences[place].generation != generation)
                return NULL;
        return &table->sequences[place];
}

int sequence_create(struct sequence_table *table, struct sequence **out)
{
        struct sequence *sequence;

        if (table->first_free != UINT32_MAX) {
                sequence = &table->sequences[table->first_free];
                table->first_free = sequence->next_free;
        } else if (table->unused < table->size) {
                sequence = &table->sequences[table->unused++];
        } else {
                return -ENFILE;
        }
        /* 0 is never a generation, so 0 is never a handle. */
        if (++table->generation == 0)
                table->generation = 1;
        sequence->generation = table->generation;
        sequence->tokens = 0;
        sequence->pages_count = 0;
        sequence->batch = 0;
        sequence->last_pin = 0;
        table->alive++;
        *out = sequence;
        return 0;
}

void sequence_free(struct sequence_table *table, struct sequence *sequence, uint64_t stamp)
{
        sequence_truncate(table, sequence, 0, stamp);
        free(sequence->pages);
        sequence->pages = NULL;
        sequence->pages_size = 0;
        sequence->generation = 0;
        sequence->batch = 0;
        sequence->next_free = table->first_free;
        table->first_free = (uint32_t)(sequence - table->sequences);
        table->alive--;
}

/* A last page that would be written and is not this sequence's alone. */
static bool tail_needs_copy(const struct sequence_table *table, const struct sequence *sequence,
                            uint32_t tokens)
{
        return tokens > 0 && tail_is_partial(table, sequence) &&
               !page_allocator_writable(table->pages, sequence->pages[sequence->pages_count - 1]);
}

int64_t sequence_need(const struct sequence_table *table, const struct sequence *sequence,
                      uint32_t tokens)
{
        uint64_t sum = (uint64_t)sequence->tokens + tokens;

        if (sum > table->tokens_max)
                return -EOVERFLOW;
        return (int64_t)pages_for(table, sum) - sequence->pages_count +
               tail_needs_copy(table, sequence, tokens);
}

static int reserve_pages(const struct sequence_table *table, struct sequence *sequence,
                         uint32_t pages)
{
        uint32_t size = sequence->pages_size ? sequence->pages_size : 8;
        uint32_t most = pages_for(table, table->tokens_max);
        uint32_t *grown;

        if (pages <= sequence->pages_size)
                return 0;
        while (size < pages)
                size *= 2;
        if (size > most)
                size = most;
        grown = realloc(sequence->pages, size * sizeof(*grown));
        if (!grown)
                return -ENOMEM;
        sequence->pages = grown;
        sequence->pages_size = size;
        return 0;
}

int sequence_reserve(struct sequence_table *table, struct sequence *sequence, uint32_t tokens)
{
        return reserve_pages(table, sequence,
                             pages_for(table, (uint64_t)sequence->tokens + tokens));
}

void sequence_lengthen(struct sequence_table *table, struct sequence *sequence, uint32_t tokens,
                       struct page_copy *copy)
{
        uint32_t count = pages_for(table, (uint64_t)sequence->tokens + tokens);

        copy->from = GPUMEM_PAGE_NONE;
        if (tail_needs_copy(table, sequence, tokens)) {
                copy->sequence = sequence;
                copy->index = sequence->pages_count - 1;
                copy->from = sequence->pages[copy->index];
                copy->to = page_allocator_alloc(table->pages);
                sequence->pages[copy->index] = copy->to;
        }
        while (sequence->pages_count < count)
                sequence->pages[sequence->pages_count++] = page_allocator_alloc(table->pages);
        sequence->tokens += tokens;
        table->tokens += tokens;
}

void sequence_truncate(struct sequence_table *table, struct sequence *sequence, uint32_t tokens,
                       uint64_t stamp)
{
        uint32_t count = pages_for(table, tokens);

        while (sequence->pages_count > count)
                page_allocator_release(table->pages, sequence->pages[--sequence->pages_count],
                                       stamp);
        table->tokens -= sequence->tokens - tokens;
        sequence->tokens = tokens;
}

uint32_t sequence_fork_need(const struct sequence_table *table, const struct sequence *parent)
{
        return tail_is_partial(table, parent);
}

int sequence_fork(struct sequence_table *table, struct sequence *parent, struct sequence **out,
                  struct page_copy *copy)
{
        struct sequence *child;
        uint32_t shared = parent->pages_count;
        int r;

        copy->from = GPUMEM_PAGE_NONE;
        r = sequence_create(table, &child);
        if (r < 0)
                return r;
        r = reserve_pages(table, child, parent->pages_count);
        if (r < 0) {
                sequence_free(table, child, 0);
                return r;
        }
        if (tail_is_partial(table, parent))
                shared--;
        for (uint32_t i = 0; i < shared; i++) {
                page_allocator_reference(table->pages, parent->pages[i]);
                child->pages[i] = parent->pages[i];
        }
        if (shared < parent->pages_count) {
                copy->sequence = child;
                copy->index = shared;
                copy->from = parent->pages[shared];
                copy->to = page_allocator_alloc(table->pages);
                page_allocator_reference(table->pages, copy->from);
                child->pages[shared] = copy->to;
        }
        child->pages_count = parent->pages_count;
        child->tokens = parent->tokens;
        child->last_pin = parent->last_pin;
        table->tokens += child->tokens;
        *out = child;
        return 0;
}

void sequence_copy_done(struct sequence_table *table, const struct page_copy *copy, uint64_t stamp)
{
        page_allocator_release(table->pages, copy->from, stamp);
}

void sequence_copy_undo(struct sequence_table *table, const struct page_copy *copy, uint64_t stamp)
{
        copy->sequence->pages[copy->index] = copy->from;
        page_allocator_release(table->pages, copy->to, stamp);
}

void sequence_mark_begin(struct sequence_table *table)
{
        table->mark++;
}

bool sequence_mark(struct sequence_table *table, struct sequence *sequence)
{
        if (sequence->mark == table->mark)
                return false;
        sequence->mark = table->mark;
        return true;
}
