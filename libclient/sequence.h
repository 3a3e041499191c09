/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences: lists of pages over a page allocator. Pure data: what has to be copied in device
 * memory is handed to the caller as a struct page_copy.
 *
 * What holds between calls: a sequence of n tokens has exactly ceil(n / page_tokens) pages and one
 * reference on each. Pages are shared between sequences (fork); the page that is only partly
 * filled may be shared too (a fork, then truncations). It is never written while shared, nor while
 * work may still read it by a reference that is gone (page_allocator_writable()):
 * sequence_lengthen() is the only place where tokens are added, and it replaces such a last page
 * by a copy before it does.
 *
 * Lengthening cannot fail half-way: sequence_need() counts pages, sequence_reserve() makes room in
 * the list, and only then sequence_lengthen() runs, with that many pages free in the allocator.
 *
 * `stamp`: what a page that loses a reference waits for, see page_allocator_release().
 *
 * Not thread-safe: the pool's lock covers it.
 */
#ifndef LIBCLIENT_SEQUENCE_H
#define LIBCLIENT_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include <gpumem/gpumem.h>

#include "libclient/page_allocator.h"

struct sequence {
        uint32_t generation; /* the handle's upper half; 0 while the place is free */
        uint32_t tokens;
        uint32_t pages_count;
        uint32_t pages_size; /* allocated entries of pages[] */
        uint32_t *pages;
        uint64_t batch;     /* number of the pin of the open batch it is in; 0: none */
        uint64_t mark;      /* see sequence_mark() */
        uint64_t last_pin;  /* no pin above this number has written its pages; forks inherit it */
        uint32_t next_free; /* place */
};

struct sequence_table {
        struct page_allocator *pages;
        struct sequence *sequences;
        uint32_t size; /* places */
        uint32_t alive;
        uint32_t unused;     /* places from here on were never used */
        uint32_t first_free; /* or UINT32_MAX */
        uint32_t page_shift;
        uint32_t tokens_max; /* of one sequence */
        uint32_t generation; /* of the youngest */
        uint64_t mark;
        uint64_t tokens; /* sum over all */
};

/*
 * "Copy page from to page to, before to is written or read." The record owns a reference of `from`
 * until the copy is enqueued (sequence_copy_done) or could not be (sequence_copy_undo).
 */
struct page_copy {
        struct sequence *sequence;
        uint32_t index; /* of the page in the sequence */
        uint32_t from, to;
};

/* 0 or -ENOMEM. */
int sequence_table_init(struct sequence_table *table, struct page_allocator *pages, uint32_t size,
                        uint32_t page_shift, uint32_t tokens_max);
/* Generations begin after this one; before the first sequence is made. */
void sequence_table_start(struct sequence_table *table, uint32_t generation);
void sequence_table_deinit(struct sequence_table *table); /* references are not released */

/* NULL: stale, or never a sequence. */
struct sequence *sequence_find(struct sequence_table *table, gpumem_seq handle);
gpumem_seq sequence_handle(const struct sequence_table *table, const struct sequence *sequence);

/* -ENFILE: the table is full. */
int sequence_create(struct sequence_table *table, struct sequence **out);
void sequence_free(struct sequence_table *table, struct sequence *sequence, uint64_t stamp);

/* Pages to be allocated to add `tokens`: those for the new tokens, and one if the last page is
 * shared and would be written. The sum must be within tokens_max (else -EOVERFLOW). */
int64_t sequence_need(const struct sequence_table *table, const struct sequence *sequence,
                      uint32_t tokens);
/* Room in the list for `tokens` more: 0 or -ENOMEM. */
int sequence_reserve(struct sequence_table *table, struct sequence *sequence, uint32_t tokens);
/* copy->from is GPUMEM_PAGE_NONE if nothing has to be copied. Call sequence_copy_done() or _undo()
 * otherwise. */
void sequence_lengthen(struct sequence_table *table, struct sequence *sequence, uint32_t tokens,
                       struct page_copy *copy);
void sequence_truncate(struct sequence_table *table, struct sequence *sequence, uint32_t tokens,
                       uint64_t stamp);

/* Pages to be allocated for a fork: 1 if the last page is partly filled. */
uint32_t sequence_fork_need(const struct sequence_table *table, const struct sequence *parent);
/* Full pages are shared; a partly filled last one is to be copied, as above. -ENFILE, -ENOMEM:
 * nothing was done. */
int sequence_fork(struct sequence_table *table, struct sequence *parent, struct sequence **out,
                  struct page_copy *copy);

/* The copy is on its stream: the old page is let go. */
void sequence_copy_done(struct sequence_table *table, const struct page_copy *copy, uint64_t stamp);
/* The copy could not be submitted: the old page is put back. */
void sequence_copy_undo(struct sequence_table *table, const struct page_copy *copy, uint64_t stamp);

/* Finding out whether a list names a sequence twice: begin, then mark each; false: already
 * marked since. */
void sequence_mark_begin(struct sequence_table *table);
bool sequence_mark(struct sequence_table *table, struct sequence *sequence);

#endif
