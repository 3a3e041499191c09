/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/page_allocator.h"

#define NONE PAGE_ALLOCATOR_NONE

/* A page, taken apart. */
struct place {
        uint32_t index; /* id without class */
        uint32_t unit;
        uint32_t group_number;
        struct page_unit *entry;
        struct page_group *group;
        uint64_t bit;
};

static inline struct place place_of(const struct page_allocator *allocator, uint32_t index)
{
        uint32_t slot = index & ((UINT32_C(1) << allocator->slot_bits) - 1);
        struct place place = {
                .index = index,
                .unit = index >> allocator->slot_bits,
                .group_number = slot / 64,
                .bit = UINT64_C(1) << slot % 64,
        };

        place.entry = page_allocator_unit(allocator, place.unit);
        place.group = page_allocator_group(allocator, place.entry, place.group_number);
        return place;
}

int page_allocator_init(struct page_allocator *allocator, uint32_t units_max,
                        uint32_t pages_per_unit, uint32_t slot_bits, uint32_t page_class)
{
        uint64_t entries;

        memset(allocator, 0, sizeof(*allocator));
        if (units_max == 0 || pages_per_unit == 0 || slot_bits > GPUMEM_PAGE_CLASS_SHIFT ||
            page_class >= 1u << GPUMEM_PAGE_CLASS_BITS ||
            (UINT64_C(1) << slot_bits) < pages_per_unit)
                return -EINVAL;
        entries = (uint64_t)units_max << slot_bits;
        if (entries > (UINT64_C(1) << GPUMEM_PAGE_CLASS_SHIFT))
                return -EINVAL;
        /* The last index of the last class would be GPUMEM_PAGE_NONE. */
        if (page_class == (1u << GPUMEM_PAGE_CLASS_BITS) - 1 &&
            ((uint64_t)(units_max - 1) << slot_bits | (pages_per_unit - 1)) ==
                    GPUMEM_PAGE_INDEX_MASK)
                return -EINVAL;

        allocator->units_max = units_max;
        allocator->pages_per_unit = pages_per_unit;
        allocator->slot_bits = slot_bits;
        allocator->class_bits = page_class << GPUMEM_PAGE_CLASS_SHIFT;
        allocator->sixteenths = (UINT64_C(16) << 32) / pages_per_unit;
        allocator->groups = (pages_per_unit + 63) / 64;
        allocator->summary_words = allocator->groups > 1 ? (allocator->groups + 63) / 64 : 0;
        allocator->unit_size = sizeof(struct page_unit) +
                               allocator->summary_words * sizeof(uint64_t) +
                               allocator->groups * sizeof(struct page_group);
        for (uint32_t bucket = 0; bucket < PAGE_BUCKETS; bucket++)
                allocator->heads[bucket] = NONE;
        allocator->retiring.head = allocator->retiring.tail = NONE;
        allocator->settling.head = allocator->settling.tail = NONE;

        /* Zero pages come from the kernel when they are touched: what no unit uses costs nothing.
         */
        allocator->units = calloc(units_max, allocator->unit_size);
        allocator->detail = calloc(entries, sizeof(*allocator->detail));
        allocator->settle = calloc(entries, sizeof(*allocator->settle));
        if (!allocator->units || !allocator->detail || !allocator->settle) {
                page_allocator_deinit(allocator);
                return -ENOMEM;
        }
        return 0;
}

void page_allocator_deinit(struct page_allocator *allocator)
{
        free(allocator->units);
        free(allocator->detail);
        free(allocator->settle);
        allocator->units = NULL;
        allocator->detail = NULL;
        allocator->settle = NULL;
}

static void list_insert(struct page_allocator *allocator, uint32_t unit, struct page_unit *entry,
                        uint32_t bucket)
{
        uint32_t head = allocator->heads[bucket];

        entry->bucket = bucket;
        entry->previous = NONE;
        entry->next = head;
        if (head != NONE)
                page_allocator_unit(allocator, head)->previous = unit;
        allocator->heads[bucket] = unit;
        allocator->nonempty |= 1u << bucket;
}

static void list_remove(struct page_allocator *allocator, const struct page_unit *entry)
{
        uint32_t bucket = entry->bucket;

        if (entry->previous != NONE)
                page_allocator_unit(allocator, entry->previous)->next = entry->next;
        else
                allocator->heads[bucket] = entry->next;
        if (entry->next != NONE)
                page_allocator_unit(allocator, entry->next)->previous = entry->previous;
        if (allocator->heads[bucket] == NONE)
                allocator->nonempty &= ~(1u << bucket);
}

/* Fullness in sixteenths, rounded down: 0..16. */
static inline uint32_t fullness(const struct page_allocator *allocator, uint32_t held)
{
        return (uint32_t)((held * allocator->sixteenths) >> 32);
}

/* The bucket of a unit that holds pages. */
static inline uint32_t bucket_for(const struct page_allocator *allocator, uint32_t held)
{
        uint32_t eighth = fullness(allocator, held) / 2;

        return PAGE_BUCKET_EIGHTH + (eighth < 7 ? eighth : 7);
}

/* Eighth e covers sixteenths [2e, 2e+2); a unit leaves it only half an eighth beyond. */
static inline bool bucket_fits(uint32_t bucket, uint32_t sixteenth)
{
        uint32_t low = 2 * (bucket - PAGE_BUCKET_EIGHTH);

        return sixteenth + 1 >= low && sixteenth <= low + 2;
}

/* Puts a unit where it belongs after `held` changed. Unlisted units come back only with a free
 * page. */
static inline void refile(struct page_allocator *allocator, uint32_t unit, struct page_unit *entry)
{
        uint32_t bucket;

        if (entry->held == 0)
                bucket = PAGE_BUCKET_EMPTY;
        else if (entry->bucket >= PAGE_BUCKET_EIGHTH && entry->bucket < PAGE_BUCKETS &&
                 bucket_fits(entry->bucket, fullness(allocator, entry->held)))
                return;
        else
                bucket = bucket_for(allocator, entry->held);
        if (entry->bucket == bucket)
                return;
        if (entry->bucket != PAGE_BUCKET_UNLISTED)
                list_remove(allocator, entry);
        list_insert(allocator, unit, entry, bucket);
}

int page_allocator_add_unit(struct page_allocator *allocator, uint32_t unit)
{
        struct page_unit *entry;
        struct page_group *groups;

        if (unit >= allocator->units_max)
                return -EINVAL;
        entry = page_allocator_unit(allocator, unit);
        if (entry->bucket != PAGE_BUCKET_ABSENT)
                return -EEXIST;
        entry->held = 0;
        groups = page_allocator_group(allocator, entry, 0);
        for (uint32_t i = 0; i < allocator->groups; i++) {
                groups[i] = (struct page_group){0, 0};
                if (allocator->summary_words > 0)
                        entry->words[i / 64] |= UINT64_C(1) << i % 64;
        }
        if (allocator->pages_per_unit % 64 != 0) {
                uint64_t beyond = ~UINT64_C(0) << allocator->pages_per_unit % 64;

                groups[allocator->groups - 1] = (struct page_group){beyond, beyond};
        }
        list_insert(allocator, unit, entry, PAGE_BUCKET_EMPTY);
        allocator->units_present++;
        allocator->units_empty++;
        return 0;
}

int page_allocator_remove_unit(struct page_allocator *allocator, uint32_t unit)
{
        struct page_unit *entry;

        if (unit >= allocator->units_max)
                return -EINVAL;
        entry = page_allocator_unit(allocator, unit);
        if (entry->bucket == PAGE_BUCKET_ABSENT)
                return -ENOENT;
        if (entry->held > 0)
                return -EBUSY;
        list_remove(allocator, entry);
        entry->bucket = PAGE_BUCKET_ABSENT;
        allocator->units_present--;
        allocator->units_empty--;
        if (allocator->units_empty_min > allocator->units_empty)
                allocator->units_empty_min = allocator->units_empty;
        return 0;
}

int page_allocator_close_unit(struct page_allocator *allocator, uint32_t unit)
{
        struct page_unit *entry;

        if (unit >= allocator->units_max)
                return -EINVAL;
        entry = page_allocator_unit(allocator, unit);
        if (entry->bucket == PAGE_BUCKET_ABSENT)
                return -ENOENT;
        if (entry->bucket == PAGE_BUCKET_CLOSED)
                return -EALREADY;
        if (entry->held == 0)
                return -EINVAL;
        if (entry->bucket != PAGE_BUCKET_UNLISTED)
                list_remove(allocator, entry);
        entry->bucket = PAGE_BUCKET_CLOSED;
        allocator->pages_closed += allocator->pages_per_unit - entry->held;
        return 0;
}

void page_allocator_open_unit(struct page_allocator *allocator, uint32_t unit)
{
        struct page_unit *entry = page_allocator_unit(allocator, unit);

        if (entry->bucket != PAGE_BUCKET_CLOSED)
                return;
        allocator->pages_closed -= allocator->pages_per_unit - entry->held;
        list_insert(allocator, unit, entry, bucket_for(allocator, entry->held));
}

void page_allocator_open_all(struct page_allocator *allocator)
{
        for (uint32_t unit = 0; unit < allocator->units_max && allocator->pages_closed > 0; unit++)
                page_allocator_open_unit(allocator, unit);
}

uint32_t page_allocator_unit_used(const struct page_allocator *allocator, uint32_t unit)
{
        struct page_unit *entry = page_allocator_unit(allocator, unit);
        uint32_t used = 0;

        if (entry->bucket == PAGE_BUCKET_ABSENT)
                return 0;
        for (uint32_t i = 0; i < allocator->groups; i++)
                used += (uint32_t)__builtin_popcountll(
                        page_allocator_group(allocator, entry, i)->used);
        /* Bits beyond the unit's pages are set in the last group. */
        return used - (allocator->groups * 64 - allocator->pages_per_unit);
}

uint32_t page_allocator_empty_unit(const struct page_allocator *allocator)
{
        return allocator->heads[PAGE_BUCKET_EMPTY];
}

/* A group of the unit that has a free page; there is one. */
static inline uint32_t group_with_room(const struct page_allocator *allocator,
                                       const struct page_unit *entry)
{
        uint32_t word = 0;

        if (allocator->summary_words == 0)
                return 0;
        while (entry->words[word] == 0)
                word++;
        return word * 64 + (uint32_t)__builtin_ctzll(entry->words[word]);
}

uint32_t page_allocator_alloc(struct page_allocator *allocator)
{
        while (allocator->nonempty) {
                uint32_t bucket = 31 - (uint32_t)__builtin_clz(allocator->nonempty);
                uint32_t unit = allocator->heads[bucket];
                struct page_unit *entry = page_allocator_unit(allocator, unit);
                struct page_group *group;
                uint32_t number, slot;

                if (entry->held == allocator->pages_per_unit) {
                        list_remove(allocator, entry);
                        entry->bucket = PAGE_BUCKET_UNLISTED;
                        continue;
                }
                number = group_with_room(allocator, entry);
                group = page_allocator_group(allocator, entry, number);
                slot = (uint32_t)__builtin_ctzll(~(group->used | group->more));
                group->used |= UINT64_C(1) << slot;
                if (allocator->summary_words > 0 && ~(group->used | group->more) == 0)
                        entry->words[number / 64] &= ~(UINT64_C(1) << number % 64);
                allocator->pages_held++;
                if (entry->held++ == 0) {
                        allocator->units_empty--;
                        if (allocator->units_empty < allocator->units_empty_min)
                                allocator->units_empty_min = allocator->units_empty;
                }
                refile(allocator, unit, entry);
                /* 64 bits before it is formed, though ids fit in 32 by construction. */
                return allocator->class_bits |
                       (uint32_t)((uint64_t)unit << allocator->slot_bits | (number * 64 + slot));
        }
        return GPUMEM_PAGE_NONE;
}

int page_allocator_reference(struct page_allocator *allocator, uint32_t page)
{
        struct place place = place_of(allocator, page_allocator_index(page));

        if (!(place.group->used & place.bit))
                return -EINVAL;
        if (!(place.group->more & place.bit)) {
                place.group->more |= place.bit;
                allocator->detail[place.index] = 2;
                allocator->pages_shared++;
                return 0;
        }
        if ((allocator->detail[place.index] & PAGE_REFERENCES_MAX) == PAGE_REFERENCES_MAX)
                return -EOVERFLOW;
        /* (It may have settled with one.) */
        if ((++allocator->detail[place.index] & PAGE_REFERENCES_MAX) == 2)
                allocator->pages_shared++;
        return 0;
}

/* A closed unit has one page less; the last one opens it. Rare, so out of the way of the rest. */
static __attribute__((noinline)) void freed_in_closed(struct page_allocator *allocator,
                                                      const struct place *place)
{
        allocator->pages_closed++;
        if (place->entry->held > 0)
                return;
        allocator->pages_closed -= allocator->pages_per_unit;
        allocator->units_empty++;
        list_insert(allocator, place->unit, place->entry, PAGE_BUCKET_EMPTY);
}

/* Used or retiring becomes free. */
static inline void make_free(struct page_allocator *allocator, const struct place *place)
{
        place->group->used &= ~place->bit;
        place->group->more &= ~place->bit;
        if (allocator->summary_words > 0)
                place->entry->words[place->group_number / 64] |= UINT64_C(1)
                                                                 << place->group_number % 64;
        allocator->pages_held--;
        place->entry->held--;
        if (__builtin_expect(place->entry->bucket == PAGE_BUCKET_CLOSED, 0)) {
                freed_in_closed(allocator, place);
                return;
        }
        if (place->entry->held == 0)
                allocator->units_empty++;
        refile(allocator, place->unit, place->entry);
}

static void queue_push(struct page_queue *queue, uint32_t *links, uint32_t index, uint64_t stamp)
{
        struct page_segment *segment = NULL;

        if (queue->segment_count > 0)
                segment = &queue->segments[(queue->segment_first + queue->segment_count - 1) %
                                           PAGE_ALLOCATOR_SEGMENTS];
        if (segment && segment->stamp < stamp && queue->segment_count == PAGE_ALLOCATOR_SEGMENTS) {
                /* No room for one more: let the youngest wait a little longer than it must. */
                segment->stamp = stamp;
        } else if (!segment || segment->stamp < stamp) {
                segment = &queue->segments[(queue->segment_first + queue->segment_count) %
                                           PAGE_ALLOCATOR_SEGMENTS];
                segment->stamp = stamp;
                segment->pages = 0;
                queue->segment_count++;
        }
        segment->pages++;

        links[index] = NONE;
        if (queue->tail != NONE)
                links[queue->tail] = index;
        else
                queue->head = index;
        queue->tail = index;
}

/* A page begins to settle, or has to do it again. */
static void settle(struct page_allocator *allocator, uint32_t index, uint64_t stamp)
{
        struct page_queue *settling = &allocator->settling, *retiring = &allocator->retiring;
        uint32_t youngest =
                (settling->segment_first + settling->segment_count - 1) % PAGE_ALLOCATOR_SEGMENTS;
        bool full = settling->segment_count == PAGE_ALLOCATOR_SEGMENTS;
        uint64_t before = full ? settling->segments[youngest].stamp : stamp;

        queue_push(settling, allocator->settle, index, stamp);
        /* If the youngest wait longer now, then so do those of them that are retiring already: a
         * page is through this queue before it is free. */
        for (uint32_t i = 0; before < stamp && i < retiring->segment_count; i++) {
                struct page_segment *segment = &retiring->segments[(retiring->segment_first + i) %
                                                                   PAGE_ALLOCATOR_SEGMENTS];

                if (segment->stamp >= before && segment->stamp < stamp)
                        segment->stamp = stamp;
        }
}

/* The next page that waited for pins below `oldest` only, or NONE. */
static uint32_t queue_pop(struct page_queue *queue, const uint32_t *links, uint64_t oldest)
{
        struct page_segment *segment = &queue->segments[queue->segment_first];
        uint32_t index = queue->head;

        if (queue->segment_count == 0 || segment->stamp >= oldest)
                return NONE;
        queue->head = links[index];
        if (queue->head == NONE)
                queue->tail = NONE;
        if (--segment->pages == 0) {
                queue->segment_first = (queue->segment_first + 1) % PAGE_ALLOCATOR_SEGMENTS;
                queue->segment_count--;
        }
        return index;
}

static void make_retiring(struct page_allocator *allocator, const struct place *place)
{
        place->group->used &= ~place->bit;
        place->group->more |= place->bit;
        queue_push(&allocator->retiring, allocator->detail, place->index, allocator->stamp);
        allocator->pages_retiring++;
}

/* A page that is shared or settling loses a reference. */
static int64_t release_shared(struct page_allocator *allocator, const struct place *place,
                              uint64_t stamp)
{
        uint32_t *detail = &allocator->detail[place->index];
        uint32_t left = --*detail & PAGE_REFERENCES_MAX;

        if (left == 0) {
                /* It only settled. In its queue it stays: that is before it is free. */
                allocator->pages_settling--;
                make_retiring(allocator, place);
        } else if (left == 1) {
                allocator->pages_shared--;
                if (*detail & PAGE_SETTLING) {
                        if (stamp != 0)
                                *detail |= PAGE_SETTLING_AGAIN;
                } else if (stamp != 0) {
                        *detail |= PAGE_SETTLING;
                        allocator->pages_settling++;
                        settle(allocator, place->index, stamp);
                } else {
                        place->group->more &= ~place->bit;
                }
        }
        return left;
}

int64_t page_allocator_release(struct page_allocator *allocator, uint32_t page, uint64_t stamp)
{
        struct place place = place_of(allocator, page_allocator_index(page));

        if (!(place.group->used & place.bit))
                return -EINVAL;
        if (stamp > allocator->stamp)
                allocator->stamp = stamp;
        if (place.group->more & place.bit)
                return release_shared(allocator, &place, stamp);
        if (stamp == 0)
                make_free(allocator, &place);
        else
                make_retiring(allocator, &place);
        return 0;
}

/* A page is through the queue of those that settle. */
static void settled(struct page_allocator *allocator, uint32_t index)
{
        struct place place = place_of(allocator, index);
        uint32_t *detail = &allocator->detail[index];

        if (!(place.group->used & place.bit))
                return; /* retiring; detail[] is a link */
        if (*detail & PAGE_SETTLING_AGAIN) {
                /* It lost another one since, at the newest stamp or before. */
                *detail &= ~PAGE_SETTLING_AGAIN;
                settle(allocator, index, allocator->stamp);
                return;
        }
        *detail &= ~PAGE_SETTLING;
        allocator->pages_settling--;
        if (*detail == 1)
                place.group->more &= ~place.bit;
}

void page_allocator_retire(struct page_allocator *allocator, uint64_t oldest)
{
        uint32_t index;

        /* First those that settle: no page is free that still stands in that queue. (Its retiring
         * has the later stamp, or the same.) */
        while ((index = queue_pop(&allocator->settling, allocator->settle, oldest)) != NONE)
                settled(allocator, index);
        while ((index = queue_pop(&allocator->retiring, allocator->detail, oldest)) != NONE) {
                struct place place = place_of(allocator, index);

                allocator->pages_retiring--;
                make_free(allocator, &place);
        }
}

/* --- the invariants, for tests and debugging ------------------------------------------------- */

struct page_sums {
        uint64_t used, shared, settling, retiring;
};

static int check_unit(const struct page_allocator *allocator, struct page_unit *entry,
                      uint32_t unit, struct page_sums *sums)
{
        uint32_t held = 0;

        for (uint32_t i = 0; i < allocator->groups; i++) {
                const struct page_group *group = page_allocator_group(allocator, entry, i);
                bool room = ~(group->used | group->more) != 0;

                if (allocator->summary_words > 0 && (entry->words[i / 64] >> i % 64 & 1) != room)
                        return -EUCLEAN;
                for (uint32_t slot = i * 64; slot < i * 64 + 64; slot++) {
                        bool used = group->used >> slot % 64 & 1;
                        bool more = group->more >> slot % 64 & 1;
                        uint64_t index = (uint64_t)unit << allocator->slot_bits | slot;

                        if (slot >= allocator->pages_per_unit) {
                                if (!used || !more)
                                        return -EUCLEAN;
                                continue;
                        }
                        if (used && more) {
                                uint32_t detail = allocator->detail[index];
                                uint32_t references = detail & PAGE_REFERENCES_MAX;

                                if (references == 0 ||
                                    (references == 1 && !(detail & PAGE_SETTLING)))
                                        return -EUCLEAN;
                                sums->shared += references > 1;
                                sums->settling += (detail & PAGE_SETTLING) != 0;
                        }
                        held += used || more;
                        sums->used += used;
                        sums->retiring += !used && more;
                }
        }
        if (held != entry->held)
                return -EUCLEAN;
        if (entry->bucket == PAGE_BUCKET_UNLISTED)
                return held == allocator->pages_per_unit ? 0 : -EUCLEAN;
        if (entry->bucket == PAGE_BUCKET_CLOSED)
                return held > 0 ? 0 : -EUCLEAN;
        if ((held == 0) != (entry->bucket == PAGE_BUCKET_EMPTY))
                return -EUCLEAN;
        if (held > 0 && !bucket_fits(entry->bucket, fullness(allocator, held)))
                return -EUCLEAN;
        return 0;
}

static int check_lists(const struct page_allocator *allocator, uint32_t *listed)
{
        *listed = 0;
        for (uint32_t bucket = 0; bucket < PAGE_BUCKETS; bucket++) {
                uint32_t previous = NONE;

                if ((allocator->heads[bucket] != NONE) != (allocator->nonempty >> bucket & 1))
                        return -EUCLEAN;
                for (uint32_t unit = allocator->heads[bucket]; unit != NONE;) {
                        const struct page_unit *entry = page_allocator_unit(allocator, unit);

                        if (entry->bucket != bucket || entry->previous != previous ||
                            ++*listed > allocator->units_present)
                                return -EUCLEAN;
                        previous = unit;
                        unit = entry->next;
                }
        }
        return 0;
}

/* Its length, by both counts: links and segments. */
static int check_queue(const struct page_queue *queue, const uint32_t *links, uint64_t most,
                       uint64_t *length)
{
        uint64_t segments = 0;

        *length = 0;
        for (uint32_t i = 0; i < queue->segment_count; i++)
                segments +=
                        queue->segments[(queue->segment_first + i) % PAGE_ALLOCATOR_SEGMENTS].pages;
        for (uint32_t index = queue->head; index != NONE; index = links[index])
                if (++*length > most || *length > segments)
                        return -EUCLEAN;
        return *length == segments ? 0 : -EUCLEAN;
}

int page_allocator_check(const struct page_allocator *allocator)
{
        struct page_sums sums = {0};
        uint64_t held = 0, retiring, settling;
        uint32_t present = 0, empty = 0, unlisted = 0, listed;
        uint64_t closed_free = 0;

        for (uint32_t unit = 0; unit < allocator->units_max; unit++) {
                struct page_unit *entry = page_allocator_unit(allocator, unit);

                if (entry->bucket == PAGE_BUCKET_ABSENT)
                        continue;
                if (check_unit(allocator, entry, unit, &sums) < 0)
                        return -EUCLEAN;
                present++;
                empty += entry->held == 0;
                unlisted += entry->bucket == PAGE_BUCKET_UNLISTED ||
                            entry->bucket == PAGE_BUCKET_CLOSED;
                if (entry->bucket == PAGE_BUCKET_CLOSED)
                        closed_free += allocator->pages_per_unit - entry->held;
                held += entry->held;
        }
        if (check_lists(allocator, &listed) < 0)
                return -EUCLEAN;
        if (check_queue(&allocator->retiring, allocator->detail, allocator->pages_retiring,
                        &retiring) < 0 ||
            check_queue(&allocator->settling, allocator->settle, UINT64_MAX, &settling) < 0)
                return -EUCLEAN;
        if (present != allocator->units_present || empty != allocator->units_empty ||
            held != allocator->pages_held || sums.shared != allocator->pages_shared ||
            sums.retiring != allocator->pages_retiring || retiring != sums.retiring ||
            sums.settling != allocator->pages_settling || settling < sums.settling ||
            closed_free != allocator->pages_closed || listed + unlisted != present)
                return -EUCLEAN;
        return 0;
}
