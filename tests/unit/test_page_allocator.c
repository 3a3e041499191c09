/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/page_allocator.c against a naive model, and its promises one by one. */
#include <CUnit/Basic.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/page_allocator.h"

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return (uint32_t)((random_state >> 16) % n);
}

static void test_first_page_is_zero(void)
{
        struct page_allocator a;
        uint32_t page;

        /* C06: page 0 is an ordinary page. */
        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 4, 3, 2, 0), 0);
        CU_ASSERT_EQUAL(page_allocator_alloc(&a), GPUMEM_PAGE_NONE);
        CU_ASSERT_EQUAL(page_allocator_add_unit(&a, 0), 0);
        page = page_allocator_alloc(&a);
        CU_ASSERT_EQUAL(page, 0);
        CU_ASSERT_EQUAL(page_allocator_references(&a, 0), 1);
        CU_ASSERT(page_allocator_writable(&a, 0));
        CU_ASSERT_EQUAL(page_allocator_release(&a, 0, 0), 0);
        CU_ASSERT_EQUAL(page_allocator_free(&a), 3);
        page_allocator_deinit(&a);
}

static void test_limits(void)
{
        struct page_allocator a;

        CU_ASSERT_EQUAL(page_allocator_init(&a, 0, 3, 2, 0), -EINVAL);
        CU_ASSERT_EQUAL(page_allocator_init(&a, 1, 0, 2, 0), -EINVAL);
        CU_ASSERT_EQUAL(page_allocator_init(&a, 1, 5, 2, 0), -EINVAL);
        CU_ASSERT_EQUAL(page_allocator_init(&a, 1, 1, 0, 8), -EINVAL);
        CU_ASSERT_EQUAL(page_allocator_init(&a, (1u << 29) + 1, 1, 0, 0), -EINVAL);
        /* GPUMEM_PAGE_NONE must not be an id: the last page of the last class. */
        CU_ASSERT_EQUAL(page_allocator_init(&a, 2, 1u << 28, 28, 7), -EINVAL);
        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 2, (1u << 28) - 1, 28, 7), 0);
        page_allocator_deinit(&a);
        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 2, 4, 2, 5), 0);
        CU_ASSERT_EQUAL(page_allocator_add_unit(&a, 2), -EINVAL);
        CU_ASSERT_EQUAL(page_allocator_remove_unit(&a, 1), -ENOENT);
        CU_ASSERT_EQUAL(page_allocator_add_unit(&a, 1), 0);
        CU_ASSERT_EQUAL(page_allocator_add_unit(&a, 1), -EEXIST);
        /* The class is in the id. */
        CU_ASSERT_EQUAL(gpumem_page_class(page_allocator_alloc(&a)), 5);
        CU_ASSERT_EQUAL(page_allocator_remove_unit(&a, 1), -EBUSY);
        page_allocator_deinit(&a);
}

/* C24: a double free changes nothing. */
static void test_double_free(void)
{
        struct page_allocator a;
        uint32_t page;

        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 1, 8, 3, 0), 0);
        page_allocator_add_unit(&a, 0);
        page = page_allocator_alloc(&a);
        CU_ASSERT_EQUAL(page_allocator_reference(&a, page), 0);
        CU_ASSERT_FALSE(page_allocator_writable(&a, page));
        CU_ASSERT_EQUAL(a.pages_shared, 1);
        CU_ASSERT_EQUAL(page_allocator_release(&a, page, 0), 1);
        CU_ASSERT_EQUAL(a.pages_shared, 0);
        CU_ASSERT_EQUAL(page_allocator_release(&a, page, 7), 0);
        CU_ASSERT_EQUAL(page_allocator_release(&a, page, 7), -EINVAL);
        CU_ASSERT_EQUAL(page_allocator_reference(&a, page), -EINVAL);
        CU_ASSERT_EQUAL(a.pages_retiring, 1);
        page_allocator_retire(&a, 8);
        CU_ASSERT_EQUAL(page_allocator_release(&a, page, 0), -EINVAL);
        CU_ASSERT_EQUAL(page_allocator_free(&a), 8);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        page_allocator_deinit(&a);
}

/* Taking and putting back moves no unit between lists, wherever the fill level stands. */
static void test_lifo_moves_nothing(void)
{
        struct page_allocator a;
        uint32_t held[256];
        int moves = 0;

        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 4, 64, 6, 0), 0);
        for (uint32_t unit = 0; unit < 4; unit++)
                page_allocator_add_unit(&a, unit);
        for (uint32_t level = 0; level < 256; level++) {
                uint32_t before[4] = {0};

                /* The first time may settle things; from then on nothing moves. */
                for (int round = 0; round < 4; round++) {
                        uint32_t page = page_allocator_alloc(&a);
                        uint32_t unit = gpumem_page_unit(page, 6);

                        if (round > 0 && unit < 4 && page_allocator_unit(&a, unit)->held > 1)
                                moves += before[unit] != page_allocator_unit(&a, unit)->bucket;
                        for (uint32_t i = 0; i < 4; i++)
                                before[i] = page_allocator_unit(&a, i)->bucket;
                        page_allocator_release(&a, page, 0);
                        for (uint32_t i = 0; i < 4; i++)
                                if (round > 0 && page_allocator_unit(&a, i)->held > 0)
                                        moves += before[i] != page_allocator_unit(&a, i)->bucket;
                }
                held[level] = page_allocator_alloc(&a);
                CU_ASSERT_NOT_EQUAL_FATAL(held[level], GPUMEM_PAGE_NONE);
        }
        CU_ASSERT_EQUAL(moves, 0);
        CU_ASSERT_EQUAL(page_allocator_alloc(&a), GPUMEM_PAGE_NONE);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        page_allocator_deinit(&a);
}

/* Sparse units empty out: after a random shrink to a third, refilling and freeing at random lets
 * units fall empty that a scattered allocation would keep. */
static void test_prefers_fullest(void)
{
        struct page_allocator a;
        uint32_t *held = malloc((64 * 64 + 1) * sizeof(*held));
        uint32_t count = 0;

        random_state = 88172645463325252u;
        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 64, 64, 6, 0), 0);
        for (uint32_t unit = 0; unit < 64; unit++)
                page_allocator_add_unit(&a, unit);
        while ((held[count] = page_allocator_alloc(&a)) != GPUMEM_PAGE_NONE)
                count++;
        CU_ASSERT_EQUAL(count, 64 * 64);
        while (count > 64 * 20) {
                uint32_t i = random_below(count);

                page_allocator_release(&a, held[i], 0);
                held[i] = held[--count];
        }
        CU_ASSERT(a.units_empty < 4);
        for (int i = 0; i < 200000; i++) {
                uint32_t k = random_below(count);

                page_allocator_release(&a, held[k], 0);
                held[k] = page_allocator_alloc(&a);
        }
        /* 20 units' worth of pages on 64 units. */
        CU_ASSERT(a.units_empty >= 36);
        printf("%u of 64 units empty with 20 units of pages ", a.units_empty);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        free(held);
        page_allocator_deinit(&a);
}

/* A closed unit hands out nothing, whatever comes and goes, until it is empty or opened. */
static void test_close(void)
{
        static const uint32_t per_units[] = {5, 64, 100, 5000};

        for (size_t p = 0; p < sizeof(per_units) / sizeof(per_units[0]); p++) {
                uint32_t per_unit = per_units[p], count = 0, page;
                uint32_t *held = malloc((8 * (size_t)per_unit + 1) * sizeof(*held));
                uint32_t emptied = 0, reopened = 0;
                struct page_allocator a;

                random_state = 1181783497276652981u + p;
                CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 8, per_unit, 13, 0), 0);
                CU_ASSERT_EQUAL(page_allocator_close_unit(&a, 0), -ENOENT);
                for (uint32_t unit = 0; unit < 8; unit++)
                        page_allocator_add_unit(&a, unit);
                CU_ASSERT_EQUAL(page_allocator_close_unit(&a, 0), -EINVAL);
                CU_ASSERT_EQUAL(page_allocator_close_unit(&a, 8), -EINVAL);
                for (int i = 0; i < 20000; i++) {
                        uint32_t unit = random_below(8);
                        struct page_unit *entry = page_allocator_unit(&a, unit);
                        bool closed = entry->bucket == PAGE_BUCKET_CLOSED;
                        uint32_t chance = random_below(per_unit * 4);

                        if (chance == 0 && entry->held > 0) {
                                CU_ASSERT_EQUAL(page_allocator_close_unit(&a, unit),
                                                closed ? -EALREADY : 0);
                                CU_ASSERT_EQUAL(page_allocator_remove_unit(&a, unit), -EBUSY);
                        } else if (chance == 1) {
                                page_allocator_open_unit(&a, unit);
                                reopened += closed;
                        } else if (chance % 2 == 0 || i % 2000 > 1000) {
                                uint64_t had = page_allocator_free(&a);

                                page = page_allocator_alloc(&a);
                                CU_ASSERT_EQUAL(page != GPUMEM_PAGE_NONE, had > 0);
                                if (page == GPUMEM_PAGE_NONE)
                                        continue;
                                entry = page_allocator_unit(&a, gpumem_page_unit(page, 13));
                                CU_ASSERT_NOT_EQUAL(entry->bucket, PAGE_BUCKET_CLOSED);
                                CU_ASSERT_EQUAL(page_allocator_free(&a), had - 1);
                                held[count++] = page;
                        } else if (count > 0) {
                                uint32_t victim = random_below(count);
                                uint32_t of = gpumem_page_unit(held[victim], 13);
                                bool was =
                                        page_allocator_unit(&a, of)->bucket == PAGE_BUCKET_CLOSED;

                                CU_ASSERT_EQUAL(page_allocator_release(&a, held[victim], 0), 0);
                                held[victim] = held[--count];
                                emptied += was && page_allocator_unit(&a, of)->held == 0;
                        }
                        if (i % 500 == 0)
                                CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
                }
                page_allocator_open_all(&a);
                CU_ASSERT_EQUAL(a.pages_closed, 0);
                CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
                CU_ASSERT(reopened > 0 || per_unit == 5000);
                CU_ASSERT(emptied > 0 || per_unit > 64);
                for (uint32_t unit = 0; unit < 8; unit++) {
                        uint32_t used = 0;

                        for (uint32_t i = 0; i < count; i++)
                                used += gpumem_page_unit(held[i], 13) == unit;
                        CU_ASSERT_EQUAL(page_allocator_unit_used(&a, unit), used);
                }
                page_allocator_deinit(&a);
                free(held);
        }
}

/* A page freed under pins comes back when the last of them has ended, not earlier. */
static void test_retire(void)
{
        struct page_allocator a;
        uint32_t pages[8];

        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 2, 4, 2, 0), 0);
        page_allocator_add_unit(&a, 0);
        page_allocator_add_unit(&a, 1);
        for (int i = 0; i < 8; i++)
                pages[i] = page_allocator_alloc(&a);
        for (int i = 0; i < 4; i++)
                page_allocator_release(&a, pages[i], (uint64_t)i + 1);
        CU_ASSERT_EQUAL(page_allocator_alloc(&a), GPUMEM_PAGE_NONE);
        CU_ASSERT_EQUAL(page_allocator_remove_unit(&a, gpumem_page_unit(pages[0], 2)), -EBUSY);
        page_allocator_retire(&a, 1);
        CU_ASSERT_EQUAL(a.pages_retiring, 4);
        page_allocator_retire(&a, 3);
        CU_ASSERT_EQUAL(a.pages_retiring, 2);
        CU_ASSERT_EQUAL(page_allocator_free(&a), 2);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        /* More distinct stamps than segments: the youngest wait longer, none is early. */
        page_allocator_retire(&a, 100);
        for (int i = 0; i < 4; i++)
                page_allocator_release(&a, pages[i + 4], 0);
        CU_ASSERT_EQUAL(page_allocator_free(&a), 8);
        for (uint64_t stamp = 200; stamp < 208; stamp++)
                page_allocator_release(&a, page_allocator_alloc(&a), stamp);
        page_allocator_retire(&a, 204);
        CU_ASSERT_EQUAL(page_allocator_free(&a), 4);
        page_allocator_retire(&a, 208);
        CU_ASSERT_EQUAL(page_allocator_free(&a), 8);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        page_allocator_deinit(&a);
}

/* A page that falls to one reference stays as it is while work may read it by the one that went. */
static void test_settle(void)
{
        struct page_allocator a;
        uint32_t page, other;

        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 1, 4, 2, 0), 0);
        page_allocator_add_unit(&a, 0);
        page = page_allocator_alloc(&a);
        other = page_allocator_alloc(&a);
        CU_ASSERT_TRUE(page_allocator_writable(&a, page));
        CU_ASSERT_EQUAL(page_allocator_reference(&a, page), 0);
        CU_ASSERT_EQUAL(page_allocator_release(&a, page, 3), 1);
        CU_ASSERT_FALSE(page_allocator_writable(&a, page));
        CU_ASSERT_EQUAL(a.pages_shared, 0);
        CU_ASSERT_EQUAL(a.pages_settling, 1);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        page_allocator_retire(&a, 3);
        CU_ASSERT_FALSE(page_allocator_writable(&a, page));
        /* Another one comes and goes meanwhile: its readers count, too. */
        CU_ASSERT_EQUAL(page_allocator_reference(&a, page), 0);
        CU_ASSERT_EQUAL(page_allocator_references(&a, page), 2);
        CU_ASSERT_EQUAL(page_allocator_release(&a, page, 5), 1);
        CU_ASSERT_EQUAL(page_allocator_reference(&a, other), 0);
        CU_ASSERT_EQUAL(page_allocator_release(&a, other, 7), 1);
        page_allocator_retire(&a, 5);
        CU_ASSERT_FALSE(page_allocator_writable(&a, page));
        page_allocator_retire(&a, 8);
        CU_ASSERT_TRUE(page_allocator_writable(&a, page));
        CU_ASSERT_TRUE(page_allocator_writable(&a, other));
        CU_ASSERT_EQUAL(a.pages_settling, 0);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        /* The last reference goes while it settles: it retires, with no pin left to wait for, too.
         */
        page_allocator_reference(&a, page);
        page_allocator_release(&a, page, 9);
        CU_ASSERT_EQUAL(page_allocator_release(&a, page, 0), 0);
        CU_ASSERT_EQUAL(a.pages_retiring, 1);
        CU_ASSERT_EQUAL(page_allocator_release(&a, page, 9), -EINVAL);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        page_allocator_retire(&a, 10);
        CU_ASSERT_EQUAL(page_allocator_free(&a), 3);
        /* Without pins it may be written at once. */
        page_allocator_reference(&a, other);
        page_allocator_release(&a, other, 0);
        CU_ASSERT_TRUE(page_allocator_writable(&a, other));
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        page_allocator_deinit(&a);
}

static void test_segments_overflow(void)
{
        struct page_allocator a;
        uint32_t pages[300];

        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, 1, 300, 9, 0), 0);
        page_allocator_add_unit(&a, 0);
        for (int i = 0; i < 300; i++)
                pages[i] = page_allocator_alloc(&a);
        for (int i = 0; i < 300; i++)
                page_allocator_release(&a, pages[i], (uint64_t)i + 1);
        for (uint64_t oldest = 1; oldest <= 301; oldest++) {
                page_allocator_retire(&a, oldest);
                CU_ASSERT_FATAL(page_allocator_free(&a) < oldest); /* none early */
        }
        CU_ASSERT_EQUAL(page_allocator_free(&a), 300);
        CU_ASSERT_EQUAL(page_allocator_check(&a), 0);
        page_allocator_deinit(&a);
}

/* --- the model: an array of references and stamps ------------------------------------------- */

#define MODEL_UNITS 13
#define MODEL_PAGES 11 /* a unit */
#define MODEL_BITS  4

struct model {
        bool present[MODEL_UNITS];
        uint32_t references[MODEL_UNITS][MODEL_PAGES];
        uint64_t stamp[MODEL_UNITS][MODEL_PAGES]; /* retiring, if not 0 */
        uint64_t lost[MODEL_UNITS][MODEL_PAGES];  /* stamp of the newest reference that went */
};

/* Nobody writes a page that work may still read; and when no work is left, its only holder may. */
static void model_writable(const struct model *m, const struct page_allocator *a, uint64_t oldest,
                           uint64_t newest)
{
        for (uint32_t unit = 0; unit < MODEL_UNITS; unit++)
                for (uint32_t slot = 0; slot < MODEL_PAGES && m->present[unit]; slot++) {
                        bool one = m->references[unit][slot] == 1;
                        bool writable = page_allocator_writable(
                                a, gpumem_page_id(3, unit, slot, MODEL_BITS));

                        if (!one || m->lost[unit][slot] >= oldest)
                                CU_ASSERT_FALSE(writable);
                        if (one && oldest > newest)
                                CU_ASSERT_TRUE(writable);
                }
}

static uint32_t model_count(const struct model *m, int what)
{
        uint32_t n = 0;

        for (int unit = 0; unit < MODEL_UNITS; unit++)
                for (int slot = 0; slot < MODEL_PAGES && m->present[unit]; slot++) {
                        bool used = m->references[unit][slot] > 0;
                        bool retiring = m->stamp[unit][slot] > 0;

                        n += what == 0   ? !used && !retiring
                             : what == 1 ? m->references[unit][slot] > 1
                                         : retiring;
                }
        return n;
}

static void run_model(uint64_t seed, uint64_t pins_max)
{
        struct page_allocator a;
        struct model *m = calloc(1, sizeof(*m));
        uint64_t oldest = 1, newest = 0; /* pins [oldest, newest] are outstanding */

        random_state = seed;
        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&a, MODEL_UNITS, MODEL_PAGES, MODEL_BITS, 3), 0);
        for (int step = 0; step < 30000; step++) {
                uint32_t unit = random_below(MODEL_UNITS), slot = random_below(MODEL_PAGES);
                uint32_t page = gpumem_page_id(3, unit, slot, MODEL_BITS);
                uint64_t stamp = newest >= oldest ? newest : 0;
                uint32_t held = 0;
                int64_t r;

                switch (random_below(12)) {
                case 0:
                        r = page_allocator_add_unit(&a, unit);
                        CU_ASSERT_EQUAL(r, m->present[unit] ? -EEXIST : 0);
                        m->present[unit] = true;
                        break;
                case 1:
                        for (int i = 0; i < MODEL_PAGES; i++)
                                held += m->references[unit][i] > 0 || m->stamp[unit][i] > 0;
                        r = page_allocator_remove_unit(&a, unit);
                        if (pins_max < PAGE_ALLOCATOR_SEGMENTS || r == 0)
                                CU_ASSERT_EQUAL(r, !m->present[unit] ? -ENOENT : held ? -EBUSY : 0);
                        if (r == 0)
                                m->present[unit] = false;
                        break;
                case 2:
                        newest += newest - oldest + 1 < pins_max;
                        break;
                case 3:
                        if (oldest <= newest)
                                oldest++;
                        page_allocator_retire(&a, oldest);
                        for (unit = 0; unit < MODEL_UNITS; unit++)
                                for (slot = 0; slot < MODEL_PAGES; slot++)
                                        if (m->stamp[unit][slot] < oldest)
                                                m->stamp[unit][slot] = 0;
                        break;
                case 4:
                        r = page_allocator_reference(&a, page);
                        CU_ASSERT_EQUAL(r, m->references[unit][slot] > 0 ? 0 : -EINVAL);
                        m->references[unit][slot] += r == 0;
                        break;
                case 5:
                case 6:
                case 7:
                        r = page_allocator_release(&a, page, stamp);
                        CU_ASSERT_EQUAL(r, m->references[unit][slot] > 0
                                                   ? (int64_t)m->references[unit][slot] - 1
                                                   : -EINVAL);
                        if (r >= 0 && --m->references[unit][slot] == 0)
                                m->stamp[unit][slot] = stamp;
                        if (r >= 0)
                                m->lost[unit][slot] = stamp;
                        break;
                default:
                        page = page_allocator_alloc(&a);
                        if (page == GPUMEM_PAGE_NONE) {
                                CU_ASSERT(pins_max >= PAGE_ALLOCATOR_SEGMENTS ||
                                          model_count(m, 0) == 0);
                                break;
                        }
                        unit = gpumem_page_unit(page, MODEL_BITS);
                        slot = gpumem_page_slot(page, MODEL_BITS);
                        CU_ASSERT_FATAL(unit < MODEL_UNITS && slot < MODEL_PAGES);
                        CU_ASSERT(m->present[unit]);
                        CU_ASSERT_EQUAL(gpumem_page_class(page), 3);
                        /* Owned by nobody, and waited for by nobody. */
                        CU_ASSERT_EQUAL(m->references[unit][slot], 0);
                        CU_ASSERT_EQUAL(m->stamp[unit][slot], 0);
                        m->references[unit][slot] = 1;
                        m->lost[unit][slot] = 0;
                }
                if (step % 50 == 0) {
                        CU_ASSERT_EQUAL_FATAL(page_allocator_check(&a), 0);
                        model_writable(m, &a, oldest, newest);
                }
                /* More pins than segments: some pages wait longer than in the model. */
                if (step % 50 == 0 && pins_max < PAGE_ALLOCATOR_SEGMENTS) {
                        CU_ASSERT_EQUAL(page_allocator_free(&a), model_count(m, 0));
                        CU_ASSERT_EQUAL(a.pages_shared, model_count(m, 1));
                        CU_ASSERT_EQUAL(a.pages_retiring, model_count(m, 2));
                }
        }
        page_allocator_deinit(&a);
        free(m);
}

static void test_model(void)
{
        for (uint64_t seed = 1; seed <= 8; seed++) {
                printf("seed %llu ", (unsigned long long)seed * 7919);
                run_model(seed * 7919, seed % 2 ? PAGE_ALLOCATOR_SEGMENTS - 2 : 1000);
        }
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("page allocator", NULL, NULL);
        CU_add_test(suite, "C06 page 0 is an ordinary page", test_first_page_is_zero);
        CU_add_test(suite, "limits", test_limits);
        CU_add_test(suite, "C24 double free changes nothing", test_double_free);
        CU_add_test(suite, "LIFO use moves nothing", test_lifo_moves_nothing);
        CU_add_test(suite, "sparse units empty out", test_prefers_fullest);
        CU_add_test(suite, "closed units", test_close);
        CU_add_test(suite, "freed pages wait for pins", test_retire);
        CU_add_test(suite, "a page that was shared settles", test_settle);
        CU_add_test(suite, "more pins than segments", test_segments_overflow);
        CU_add_test(suite, "random operations against a model", test_model);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
