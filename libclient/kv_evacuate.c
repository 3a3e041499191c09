/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/error.h"
#include "libclient/kv_evacuate.h"

#define NONE PAGE_ALLOCATOR_NONE

/* Most pages moved at once: it bounds the time between closing a unit and knowing. */
#define MOVES_MAX 4096

/* A place in a sequence's list where the page stands. */
struct holder {
        uint32_t place, generation; /* of the sequence */
        uint32_t index;
        uint32_t next; /* holder of the same page, or NONE */
};

struct move {
        uint32_t from, to;
        uint32_t holders; /* so many */
        uint32_t first;   /* of them */
};

/* A unit that may be emptied. */
struct victim {
        uint32_t unit;
        uint32_t held;
        uint32_t first_move;
        bool given_up; /* some page of it has a holder that is not known, or its move did not count
                        */
};

struct evacuation {
        struct gpumem_kv *kv;
        uint64_t pin;
        struct victim *victims;
        uint32_t victim_count;
        uint32_t *victim_of; /* by unit: which victim, or NONE */
        struct move *moves;  /* of a victim's pages in their order */
        uint32_t move_count;
        uint32_t *move_of; /* [victim_count][pages_per_unit] */
        struct holder *holders;
        uint32_t holder_count, holder_size;
};

static void forget(struct evacuation *e)
{
        free(e->victims);
        free(e->victim_of);
        free(e->moves);
        free(e->move_of);
        free(e->holders);
}

static uint32_t unit_of(const struct evacuation *e, uint32_t page)
{
        return gpumem_page_unit(page, e->kv->geometry.layout.slot_bits);
}

static uint32_t slot_of(const struct evacuation *e, uint32_t page)
{
        return gpumem_page_slot(page, e->kv->geometry.layout.slot_bits);
}

/* May a pin still write the sequence's pages? */
static bool is_pinned(const struct gpumem_kv *kv, const struct sequence *sequence)
{
        return sequence->last_pin >= kv->pins.oldest;
}

static int compare_victims(const void *a, const void *b)
{
        const struct victim *left = a, *right = b;

        if (left->held != right->held)
                return left->held < right->held ? -1 : 1;
        return left->unit < right->unit ? -1 : left->unit > right->unit;
}

/* Marks the units that a pinned sequence has pages in. */
static void mark_pinned(struct evacuation *e, uint32_t *marks)
{
        const struct sequence_table *table = &e->kv->sequences;

        for (uint32_t i = 0; i < table->unused; i++) {
                const struct sequence *sequence = &table->sequences[i];

                if (sequence->generation == 0 || !is_pinned(e->kv, sequence))
                        continue;
                for (uint32_t p = 0; p < sequence->pages_count; p++)
                        marks[unit_of(e, sequence->pages[p])] = 1;
        }
}

static bool is_candidate(const struct gpumem_kv *kv, uint32_t unit)
{
        const struct page_unit *entry = page_allocator_unit(&kv->pages, unit);

        return kv->units[unit].state == KV_UNIT_MAPPED && !kv->units[unit].publishable &&
               entry->bucket != PAGE_BUCKET_CLOSED && entry->held > 0 &&
               entry->held < kv->pages.pages_per_unit &&
               entry->held == page_allocator_unit_used(&kv->pages, unit);
}

/* Which units, fewest live pages first, as long as the others have room for what is moved.
 * 0, or GPUMEM_E_NO_MEMORY. */
static int choose(struct evacuation *e, uint64_t units)
{
        struct gpumem_kv *kv = e->kv;
        uint32_t units_max = kv->geometry.layout.units_max;
        uint32_t per_unit = kv->pages.pages_per_unit;
        uint64_t room = 0, moving = 0;
        uint32_t count = 0;

        e->victims = malloc((kv->units_mapped + 1) * sizeof(*e->victims));
        e->victim_of = calloc(units_max, sizeof(*e->victim_of));
        if (!e->victims || !e->victim_of)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for an evacuation");
        mark_pinned(e, e->victim_of);
        for (uint32_t unit = 0; unit < units_max; unit++) {
                const struct page_unit *entry = page_allocator_unit(&kv->pages, unit);

                /* Empty units are to go: nothing is moved into them. */
                if (kv->units[unit].state == KV_UNIT_MAPPED && entry->held > 0 &&
                    entry->bucket != PAGE_BUCKET_CLOSED)
                        room += per_unit - entry->held;
                if (is_candidate(kv, unit) && !e->victim_of[unit])
                        e->victims[count++] = (struct victim){.unit = unit, .held = entry->held};
                e->victim_of[unit] = NONE;
        }
        qsort(e->victims, count, sizeof(*e->victims), compare_victims);
        while (e->victim_count < count && e->victim_count < units) {
                struct victim *victim = &e->victims[e->victim_count];

                room -= per_unit - victim->held;
                moving += victim->held;
                if (moving > room || (e->victim_count > 0 && moving > MOVES_MAX))
                        break;
                e->victim_of[victim->unit] = e->victim_count++;
        }
        return 0;
}

/* A move for each live page of the victims, without holders yet. */
static int list_moves(struct evacuation *e)
{
        const struct page_allocator *pages = &e->kv->pages;
        uint32_t total = 0;

        for (uint32_t i = 0; i < e->victim_count; i++)
                total += e->victims[i].held;
        e->moves = calloc(total, sizeof(*e->moves));
        e->move_of = malloc((size_t)e->victim_count * pages->pages_per_unit * sizeof(*e->move_of));
        e->holder_size = 2 * total;
        e->holders = malloc(e->holder_size * sizeof(*e->holders));
        if (!e->moves || !e->move_of || !e->holders)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for an evacuation");
        for (uint32_t i = 0; i < e->victim_count; i++) {
                uint32_t unit = e->victims[i].unit;

                e->victims[i].first_move = e->move_count;
                for (uint32_t slot = 0; slot < pages->pages_per_unit; slot++) {
                        uint32_t page = pages->class_bits |
                                        (uint32_t)((uint64_t)unit << pages->slot_bits | slot);

                        if (page_allocator_references(pages, page) == 0)
                                continue;
                        e->move_of[i * pages->pages_per_unit + slot] = e->move_count;
                        e->moves[e->move_count++] =
                                (struct move){.from = page, .to = GPUMEM_PAGE_NONE, .first = NONE};
                }
        }
        return 0;
}

static int add_holder(struct evacuation *e, struct move *move, const struct holder *holder)
{
        if (e->holder_count == e->holder_size) {
                struct holder *grown =
                        realloc(e->holders, 2 * (size_t)e->holder_size * sizeof(*grown));

                if (!grown)
                        return client_error(GPUMEM_E_NO_MEMORY, "host memory for an evacuation");
                e->holders = grown;
                e->holder_size *= 2;
        }
        e->holders[e->holder_count] = *holder;
        e->holders[e->holder_count].next = move->first;
        move->first = e->holder_count++;
        move->holders++;
        return 0;
}

/* The reverse map: which sequences hold the victims' pages. */
static int find_holders(struct evacuation *e)
{
        const struct sequence_table *table = &e->kv->sequences;
        uint32_t per_unit = e->kv->pages.pages_per_unit;
        int r = 0;

        for (uint32_t place = 0; place < table->unused; place++) {
                const struct sequence *sequence = &table->sequences[place];

                if (sequence->generation == 0 || is_pinned(e->kv, sequence))
                        continue;
                for (uint32_t index = 0; index < sequence->pages_count && r == 0; index++) {
                        uint32_t page = sequence->pages[index];
                        uint32_t victim = e->victim_of[unit_of(e, page)];
                        const struct holder holder = {
                                .place = place,
                                .generation = sequence->generation,
                                .index = index,
                        };

                        if (victim == NONE)
                                continue;
                        r = add_holder(e,
                                       &e->moves[e->move_of[victim * per_unit + slot_of(e, page)]],
                                       &holder);
                }
        }
        return r;
}

/* Closes the victims and takes new pages. There is room: choose() has counted. */
static void take_places(struct evacuation *e)
{
        struct page_allocator *pages = &e->kv->pages;

        for (uint32_t i = 0; i < e->victim_count; i++) {
                struct victim *victim = &e->victims[i];

                for (uint32_t m = 0; m < victim->held && !victim->given_up; m++) {
                        const struct move *move = &e->moves[victim->first_move + m];

                        /* Somebody else holds it, too: an evacuation that is under way. */
                        victim->given_up =
                                page_allocator_references(pages, move->from) != move->holders;
                }
                if (!victim->given_up)
                        page_allocator_close_unit(pages, victim->unit);
        }
        for (uint32_t i = 0; i < e->victim_count; i++)
                for (uint32_t m = 0; m < e->victims[i].held && !e->victims[i].given_up; m++)
                        e->moves[e->victims[i].first_move + m].to = page_allocator_alloc(pages);
}

/* Nothing is moved: what was taken is let go. */
static void undo(struct evacuation *e)
{
        struct page_allocator *pages = &e->kv->pages;

        for (uint32_t m = 0; m < e->move_count; m++)
                if (e->moves[m].to != GPUMEM_PAGE_NONE)
                        page_allocator_release(pages, e->moves[m].to, pin_stamp(&e->kv->pins));
        for (uint32_t i = 0; i < e->victim_count; i++)
                if (!e->victims[i].given_up)
                        page_allocator_open_unit(pages, e->victims[i].unit);
}

/* Puts the copies on the pool's stream, under a pin. */
static int submit(struct evacuation *e)
{
        struct gpumem_kv *kv = e->kv;
        CUresult result;
        int r, ended;

        if (!kv->evacuation_stream) {
                result = kv->session->driver->stream_create(&kv->evacuation_stream,
                                                            CU_STREAM_NON_BLOCKING);
                if (result != CUDA_SUCCESS) {
                        kv->evacuation_stream = NULL;
                        return client_error_driver(kv->session->driver, result, "cuStreamCreate");
                }
        }
        atomic_fetch_add(&kv->session->own_pins, 1);
        r = kv_pin(kv, NULL, &e->pin);
        if (r < 0) {
                atomic_fetch_sub(&kv->session->own_pins, 1);
                return r;
        }
        for (uint32_t m = 0; m < e->move_count && r == 0; m++)
                if (e->moves[m].to != GPUMEM_PAGE_NONE)
                        r = kv_copy_page(kv, e->moves[m].from, e->moves[m].to,
                                         kv->evacuation_stream);
        if (r < 0) {
                struct client_message why = client_message_keep();

                /* Some may be under way: the pin covers them. */
                pin_end(&kv->pins, e->pin, kv->evacuation_stream);
                return client_message_restore(r, &why);
        }
        ended = pin_end(&kv->pins, e->pin, kv->evacuation_stream);
        /* (The stream is the pool's own: whatever it is, it is no wrong argument.) */
        return ended < 0 ? GPUMEM_E_DEVICE : 0;
}

/* Until the copies are done, with the lock taken again and again. */
static int wait_for_copies(struct evacuation *e)
{
        struct gpumem_kv *kv = e->kv;
        uint64_t deadline_ns = session_deadline_ns(kv->session);
        long pause_ns = 20000;

        for (;;) {
                int r = pin_query(&kv->pins, e->pin);

                if (r <= 0)
                        return r;
                if (wire_now_ns() >= deadline_ns)
                        return client_error(GPUMEM_E_TIMEOUT,
                                            "the copies of pages that make room for others were "
                                            "not over after %u ms: the device does not get there",
                                            kv->session->timeout_ms);
                lock_release(&kv->lock);
                nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
                lock_take(&kv->lock, LOCK_POOL);
                if (pause_ns < 1000000)
                        pause_ns *= 2;
        }
}

/* The sequence in whose list the page still stands, untouched since the copy; or NULL. */
static struct sequence *still_holds(struct evacuation *e, const struct move *move,
                                    const struct holder *holder)
{
        struct sequence *sequence = &e->kv->sequences.sequences[holder->place];

        if (sequence->generation != holder->generation || holder->index >= sequence->pages_count ||
            sequence->pages[holder->index] != move->from || sequence->last_pin > e->pin)
                return NULL;
        return sequence;
}

/* The new page takes the old one's place, or is let go. */
static bool commit_move(struct evacuation *e, const struct move *move)
{
        struct page_allocator *pages = &e->kv->pages;
        uint64_t stamp = pin_stamp(&e->kv->pins);
        uint32_t holding = 0;

        for (uint32_t h = move->first; h != NONE; h = e->holders[h].next)
                holding += still_holds(e, move, &e->holders[h]) != NULL;
        /* A fork has added a holder, or one has let go (it may have shared what it let go of). */
        if (holding != move->holders || page_allocator_references(pages, move->from) != holding) {
                page_allocator_release(pages, move->to, stamp);
                return false;
        }
        for (uint32_t h = move->first; h != NONE; h = e->holders[h].next) {
                struct sequence *sequence = still_holds(e, move, &e->holders[h]);

                if (h != move->first)
                        page_allocator_reference(pages, move->to);
                sequence->pages[e->holders[h].index] = move->to;
                page_allocator_release(pages, move->from, stamp);
        }
        e->kv->pages_moved++;
        return true;
}

static uint32_t commit(struct evacuation *e)
{
        uint32_t emptied = 0;

        kv_poll(e->kv);
        for (uint32_t i = 0; i < e->victim_count; i++) {
                struct victim *victim = &e->victims[i];

                if (victim->given_up)
                        continue;
                for (uint32_t m = 0; m < victim->held; m++)
                        if (!commit_move(e, &e->moves[victim->first_move + m]))
                                victim->given_up = true;
                /* (A page of it that was freed meanwhile is no reason to keep it.) */
                if (page_allocator_unit_used(&e->kv->pages, victim->unit) > 0)
                        page_allocator_open_unit(&e->kv->pages, victim->unit);
                else
                        emptied++;
        }
        return emptied;
}

static int evacuate_locked(struct evacuation *e, uint64_t units, uint32_t *emptied)
{
        struct gpumem_kv *kv = e->kv;
        int r;

        kv_poll(kv);
        r = kv_check_context(kv);
        if (r == 0)
                r = choose(e, units);
        if (r < 0 || e->victim_count == 0)
                return r;
        r = list_moves(e);
        if (r == 0)
                r = find_holders(e);
        if (r < 0)
                return r;
        take_places(e);
        r = submit(e);
        if (e->pin != 0) {
                if (r == 0)
                        r = wait_for_copies(e);
                atomic_fetch_sub(&kv->session->own_pins, 1);
        }
        if (r < 0) {
                struct client_message why = client_message_keep();

                undo(e);
                return client_message_restore(r, &why);
        }
        *emptied = commit(e);
        return 0;
}

int kv_evacuate(struct gpumem_kv *kv, uint64_t units, uint32_t *emptied)
{
        CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);
        struct evacuation e = {.kv = kv};
        int r;

        *emptied = 0;
        if (scope.result != CUDA_SUCCESS)
                return client_error_driver(kv->session->driver, scope.result, "cuCtxPushCurrent");
        lock_take(&kv->lock, LOCK_POOL);
        r = evacuate_locked(&e, units, emptied);
        lock_release(&kv->lock);
        forget(&e);
        return r;
}

int kv_shrink(struct gpumem_kv *kv, uint64_t units, uint64_t *bytes)
{
        uint64_t given = 0, more;
        int r;

        r = kv_give_back(kv, units, bytes);
        while (r == 0 && (given = *bytes / kv->geometry.unit_bytes) < units) {
                uint32_t emptied;

                r = kv_evacuate(kv, units - given, &emptied);
                if (r < 0 || emptied == 0)
                        break;
                r = kv_give_back(kv, units - given, &more);
                *bytes += more;
                if (more == 0)
                        break;
        }
        return r;
}

void kv_evacuate_deinit(struct gpumem_kv *kv)
{
        if (kv->evacuation_stream)
                kv->session->driver->stream_destroy(kv->evacuation_stream);
        kv->evacuation_stream = NULL;
}
