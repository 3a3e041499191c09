/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages of a pool are free, and how many references the others have. A pure data structure:
 * it knows neither memory nor mappings nor the daemon, and does no system call. The pool adds a
 * unit when it has mapped one and takes it out before it unmaps.
 *
 * States of a page
 *   absent    its unit is not here
 *   free      may be handed out
 *   used      references > 0; written only while references == 1, and not settling
 *   settling  used, and all references but one went while pins were outstanding: work under those
 *             may still read the page, or copy it, by a reference that is gone. Until all pins with
 *             numbers up to its stamp have ended, its holder copies it instead of writing it
 *   retiring  references fell to 0 while pins were outstanding; free again when all pins with
 *             numbers up to its stamp have ended
 *
 * Which page is handed out: one from a fullest unit, so that sparse units empty out and can be
 * given back. Units stand in lists by eighths of fullness, with half an eighth of hysteresis, and a
 * unit that became full stays where it is until somebody looks for a page in it: taking a page and
 * putting it back moves nothing. Empty units have a list of their own, used last.
 *
 * Where the time goes: to cache misses, so everything that an ordinary page needs is two bits
 * beside its unit's 16-byte head. At 64 pages a unit a million pages are 512 KiB of it. A word per
 * page exists for pages that are shared or retiring, and is touched only then; another for pages
 * that settle.
 *
 * Cost: O(1), and two or three cache lines, for every call except init, check and those that say
 * otherwise (a unit of more than 4096 pages adds a scan of one bit per 64 pages). Memory: a quarter
 * of a byte per page and 16 to 24 bytes per unit; 4 bytes per page that is shared or retiring, and
 * 4 per page that settles, by the kernel's page.
 *
 * Not thread-safe: the pool's lock covers it. Every page id is an ordinary one, 0 included.
 */
#ifndef LIBCLIENT_PAGE_ALLOCATOR_H
#define LIBCLIENT_PAGE_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <gpumem/page.h>

#define PAGE_ALLOCATOR_NONE     UINT32_MAX
#define PAGE_ALLOCATOR_SEGMENTS 64

/* Where a unit stands. Memory that was never touched is zero: absent. */
enum page_bucket {
        PAGE_BUCKET_ABSENT = 0,
        PAGE_BUCKET_EMPTY = 1,
        PAGE_BUCKET_EIGHTH = 2,    /* 2..9: eighths of fullness */
        PAGE_BUCKET_UNLISTED = 10, /* full, and somebody has noticed */
        PAGE_BUCKET_CLOSED = 11,   /* holds pages, but hands out none: it is being emptied */
};
#define PAGE_BUCKETS 10 /* those that are lists, and 0 */

/* 64 pages, a bit each in both words:
 *   free: neither; used by one: `used`; shared or settling: both, count in detail[]; retiring:
 *   `more` only.
 * Bits of the last group beyond the unit's pages stay set in both. */
struct page_group {
        uint64_t used;
        uint64_t more;
};

struct page_unit {
        uint32_t next, previous; /* in the list of its bucket */
        uint32_t held;           /* pages used, shared or retiring */
        uint32_t bucket;         /* enum page_bucket */
        /* If there are several groups: a bit for each that has a free page. Then the groups. */
        uint64_t words[];
};

/* Pages that wait for the same pins. */
struct page_segment {
        uint64_t stamp;
        uint64_t pages;
};

/* Pages that wait for pins, oldest stamp first. */
struct page_queue {
        uint32_t head, tail; /* FIFO of page indices through an array of links */
        struct page_segment segments[PAGE_ALLOCATOR_SEGMENTS];
        uint32_t segment_first, segment_count;
};

/* In detail[] of a page that is shared or settling, beside its references. */
#define PAGE_SETTLING       (UINT32_C(1) << 31) /* it stands in the queue of those */
#define PAGE_SETTLING_AGAIN (UINT32_C(1) << 30) /* and has to go through it once more */
#define PAGE_REFERENCES_MAX (PAGE_SETTLING_AGAIN - 1)

struct page_allocator {
        unsigned char *units; /* [units_max] of unit_size bytes, each a struct page_unit */
        /* By page id without its class. */
        uint32_t *detail; /* references and flags, or next retiring page */
        uint32_t *settle; /* next settling page */
        size_t unit_size;
        uint32_t groups;        /* of a unit */
        uint32_t summary_words; /* of a unit; 0 if it has one group */
        uint32_t units_max;
        uint32_t pages_per_unit;
        uint32_t slot_bits;
        uint32_t class_bits; /* the class, where it stands in an id */
        uint64_t sixteenths; /* 2^32 * 16 / pages_per_unit */

        uint32_t heads[PAGE_BUCKETS];
        uint32_t nonempty; /* bit b: heads[b] has a unit */

        struct page_queue retiring; /* through detail[] */
        struct page_queue settling; /* through settle[]; some may have become retiring meanwhile */
        uint64_t stamp;             /* the newest that was given */

        uint32_t units_present;
        uint32_t units_empty;
        uint32_t units_empty_min; /* low-water mark; reset it to units_empty to start anew */
        uint64_t pages_held;      /* used, shared or retiring */
        uint64_t pages_shared;    /* with more than one reference */
        uint64_t pages_retiring;
        uint64_t pages_settling; /* in its queue and used */
        uint64_t pages_closed;   /* free, in closed units: not to be had */
};

static inline struct page_unit *page_allocator_unit(const struct page_allocator *allocator,
                                                    uint32_t unit)
{
        return (struct page_unit *)(void *)(allocator->units + unit * allocator->unit_size);
}

static inline struct page_group *page_allocator_group(const struct page_allocator *allocator,
                                                      struct page_unit *unit, uint32_t group)
{
        return (struct page_group *)(void *)&unit->words[allocator->summary_words] + group;
}

/* 0, -ENOMEM, or -EINVAL (the ids do not fit). Starts without units. */
int page_allocator_init(struct page_allocator *allocator, uint32_t units_max,
                        uint32_t pages_per_unit, uint32_t slot_bits, uint32_t page_class);
void page_allocator_deinit(struct page_allocator *allocator);

/* A unit that was absent. 0, -EINVAL (no such unit) or -EEXIST. */
int page_allocator_add_unit(struct page_allocator *allocator, uint32_t unit);
/* Takes a unit out. 0, -EINVAL, -ENOENT (absent), -EBUSY (holds a page, used or retiring). */
int page_allocator_remove_unit(struct page_allocator *allocator, uint32_t unit);
/*
 * Closes a unit that holds pages: none of it is handed out until it is opened again, or its last
 * page has become free; then it is an empty unit like any other. 0, -EINVAL (no such unit, or it
 * is empty), -ENOENT (absent), -EALREADY.
 */
int page_allocator_close_unit(struct page_allocator *allocator, uint32_t unit);
/* Nothing if it is not closed. */
void page_allocator_open_unit(struct page_allocator *allocator, uint32_t unit);
/* Opens all. O(units). */
void page_allocator_open_all(struct page_allocator *allocator);

/* Pages of a unit in use, the retiring ones not among them. O(pages of a unit / 64). */
uint32_t page_allocator_unit_used(const struct page_allocator *allocator, uint32_t unit);

/* An empty unit, or PAGE_ALLOCATOR_NONE. */
uint32_t page_allocator_empty_unit(const struct page_allocator *allocator);

/* A page with one reference, or GPUMEM_PAGE_NONE. */
uint32_t page_allocator_alloc(struct page_allocator *allocator);
/* One more reference: -EINVAL if the page has none, -EOVERFLOW. */
int page_allocator_reference(struct page_allocator *allocator, uint32_t page);
/*
 * One reference less. At 0 the page is free at once if `stamp` is 0, else when pins up to `stamp`
 * have ended (stamps never decrease from call to call, but for 0). At 1 it is writable then, and
 * not before: it settles. Returns the references left, or -EINVAL, and changes nothing, if the page
 * has none: a double free stops here.
 */
int64_t page_allocator_release(struct page_allocator *allocator, uint32_t page, uint64_t stamp);
/* Every pin with a number below `oldest` has ended: frees, and lets be written, what waited for
 * them only. O(such pages). */
void page_allocator_retire(struct page_allocator *allocator, uint64_t oldest);

static inline uint32_t page_allocator_index(uint32_t page)
{
        return page & GPUMEM_PAGE_INDEX_MASK;
}

/* 0: not in use. */
static inline uint32_t page_allocator_references(const struct page_allocator *allocator,
                                                 uint32_t page)
{
        uint32_t index = page_allocator_index(page);
        uint32_t slot = gpumem_page_slot(page, allocator->slot_bits);
        const struct page_group *group = page_allocator_group(
                allocator, page_allocator_unit(allocator, index >> allocator->slot_bits),
                slot / 64);
        uint64_t bit = UINT64_C(1) << slot % 64;

        if (!(group->used & bit))
                return 0;
        return group->more & bit ? allocator->detail[index] & PAGE_REFERENCES_MAX : 1;
}

/* May its holder write it? Only this says so. */
static inline bool page_allocator_writable(const struct page_allocator *allocator, uint32_t page)
{
        uint32_t index = page_allocator_index(page);
        uint32_t slot = gpumem_page_slot(page, allocator->slot_bits);
        const struct page_group *group = page_allocator_group(
                allocator, page_allocator_unit(allocator, index >> allocator->slot_bits),
                slot / 64);
        uint64_t bit = UINT64_C(1) << slot % 64;

        return (group->used & bit) && !(group->more & bit);
}

static inline uint64_t page_allocator_total(const struct page_allocator *allocator)
{
        return (uint64_t)allocator->units_present * allocator->pages_per_unit;
}

static inline uint64_t page_allocator_free(const struct page_allocator *allocator)
{
        return page_allocator_total(allocator) - allocator->pages_held - allocator->pages_closed;
}

/* Walks everything, O(pages): 0, or -EUCLEAN if a count, list or bucket does not fit the rest. */
int page_allocator_check(const struct page_allocator *allocator);

#endif
