/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/sequence.c over a page allocator and a fake memory: each page has an array of token
 * values. Random operations run beside a naive model in which every sequence has its own values.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/sequence.h"

#define SHIFT     2 /* 4 tokens a page */
#define T         (1u << SHIFT)
#define UNITS     6u
#define PER_UNIT  7u
#define BITS      3u
#define SEQUENCES 9u
#define TOKENS    60u

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return (uint32_t)((random_state >> 16) % n);
}

struct world {
        struct page_allocator pages;
        struct sequence_table table;
        uint32_t memory[UNITS << BITS][T];
        uint64_t pin; /* newest; pins end when the test says so */
        struct {
                gpumem_seq handle; /* 0: not alive */
                uint32_t tokens;
                uint32_t values[TOKENS];
        } model[SEQUENCES];
        uint32_t next_value;
};

static void world_init(struct world *w)
{
        memset(w, 0, sizeof(*w));
        CU_ASSERT_EQUAL_FATAL(page_allocator_init(&w->pages, UNITS, PER_UNIT, BITS, 0), 0);
        CU_ASSERT_EQUAL_FATAL(sequence_table_init(&w->table, &w->pages, SEQUENCES, SHIFT, TOKENS),
                              0);
        for (uint32_t unit = 0; unit < UNITS; unit++)
                page_allocator_add_unit(&w->pages, unit);
        w->next_value = 1;
}

static void world_deinit(struct world *w)
{
        sequence_table_deinit(&w->table);
        page_allocator_deinit(&w->pages);
}

static void copy_memory(struct world *w, const struct page_copy *copy)
{
        memcpy(w->memory[copy->to], w->memory[copy->from], sizeof(w->memory[0]));
}

/* Adds tokens and writes them; only pages of one reference are written. */
static bool lengthen(struct world *w, uint32_t i, uint32_t n)
{
        struct sequence *s = sequence_find(&w->table, w->model[i].handle);
        int64_t need = sequence_need(&w->table, s, n);
        uint64_t free_before = page_allocator_free(&w->pages);
        struct page_copy copy;
        uint32_t before;

        if (need < 0) {
                CU_ASSERT(w->model[i].tokens + n > TOKENS);
                return false;
        }
        if ((uint64_t)need > free_before)
                return false;
        CU_ASSERT_EQUAL_FATAL(sequence_reserve(&w->table, s, n), 0);
        before = s->tokens;
        sequence_lengthen(&w->table, s, n, &copy);
        /* It took what it said. */
        CU_ASSERT_EQUAL(page_allocator_free(&w->pages), free_before - (uint64_t)need);
        if (copy.from != GPUMEM_PAGE_NONE) {
                if (random_below(5) == 0) {
                        /* The copy cannot be submitted: all is as it was. */
                        sequence_copy_undo(&w->table, &copy, 0);
                        sequence_truncate(&w->table, s, before, 0);
                        CU_ASSERT_EQUAL(page_allocator_free(&w->pages), free_before);
                        return false;
                }
                copy_memory(w, &copy);
                sequence_copy_done(&w->table, &copy, w->pin);
        }
        for (uint32_t t = before; t < before + n; t++) {
                uint32_t page = s->pages[t >> SHIFT];

                CU_ASSERT(page_allocator_writable(&w->pages, page));
                w->memory[page][t % T] = w->next_value;
                w->model[i].values[t] = w->next_value++;
        }
        w->model[i].tokens += n;
        return true;
}

static bool fork_into(struct world *w, uint32_t from, uint32_t to)
{
        struct sequence *parent = sequence_find(&w->table, w->model[from].handle), *child;
        struct page_copy copy;

        if (sequence_fork_need(&w->table, parent) > page_allocator_free(&w->pages))
                return false;
        CU_ASSERT_EQUAL_FATAL(sequence_fork(&w->table, parent, &child, &copy), 0);
        if (copy.from != GPUMEM_PAGE_NONE) {
                copy_memory(w, &copy);
                sequence_copy_done(&w->table, &copy, w->pin);
        }
        w->model[to] = w->model[from];
        w->model[to].handle = sequence_handle(&w->table, child);
        return true;
}

/* Every sequence holds its values; every page has as many references as lists that name it. */
static void check_world(struct world *w)
{
        uint32_t references[UNITS << BITS] = {0};
        uint64_t tokens = 0, shared = 0;
        uint32_t alive = 0;

        for (uint32_t i = 0; i < SEQUENCES; i++) {
                struct sequence *s;

                if (w->model[i].handle == 0)
                        continue;
                alive++;
                s = sequence_find(&w->table, w->model[i].handle);
                CU_ASSERT_PTR_NOT_NULL_FATAL(s);
                CU_ASSERT_EQUAL_FATAL(s->tokens, w->model[i].tokens);
                CU_ASSERT_EQUAL(s->pages_count, (s->tokens + T - 1) / T);
                tokens += s->tokens;
                for (uint32_t t = 0; t < s->tokens; t++)
                        CU_ASSERT_EQUAL(w->memory[s->pages[t >> SHIFT]][t % T],
                                        w->model[i].values[t]);
                for (uint32_t p = 0; p < s->pages_count; p++)
                        references[s->pages[p]]++;
        }
        for (uint32_t p = 0; p < UNITS << BITS; p++) {
                CU_ASSERT_EQUAL(page_allocator_references(&w->pages, p), references[p]);
                shared += references[p] > 1;
        }
        CU_ASSERT_EQUAL(w->pages.pages_shared, shared);
        CU_ASSERT_EQUAL(w->table.tokens, tokens);
        CU_ASSERT_EQUAL(w->table.alive, alive);
        CU_ASSERT_EQUAL(page_allocator_check(&w->pages), 0);
}

static void run_random(uint64_t seed)
{
        struct world w;

        random_state = seed;
        world_init(&w);
        for (int step = 0; step < 8000; step++) {
                uint32_t i = random_below(SEQUENCES), j = random_below(SEQUENCES);
                bool alive = w.model[i].handle != 0;
                struct sequence *s;

                switch (random_below(9)) {
                case 0:
                        if (!alive) {
                                CU_ASSERT_EQUAL_FATAL(sequence_create(&w.table, &s), 0);
                                w.model[i].handle = sequence_handle(&w.table, s);
                                w.model[i].tokens = 0;
                        }
                        break;
                case 1:
                        if (alive) {
                                gpumem_seq handle = w.model[i].handle;

                                sequence_free(&w.table, sequence_find(&w.table, handle), w.pin);
                                w.model[i].handle = 0;
                                /* Stale from now on. */
                                CU_ASSERT_PTR_NULL(sequence_find(&w.table, handle));
                        }
                        break;
                case 2:
                case 3:
                        if (alive && w.model[j].handle == 0)
                                fork_into(&w, i, j);
                        break;
                case 4:
                        if (alive) {
                                uint32_t tokens = random_below(w.model[i].tokens + 1);

                                sequence_truncate(&w.table,
                                                  sequence_find(&w.table, w.model[i].handle),
                                                  tokens, w.pin);
                                w.model[i].tokens = tokens;
                        }
                        break;
                case 5:
                        /* All pins so far have ended. */
                        page_allocator_retire(&w.pages, w.pin + 1);
                        w.pin++;
                        break;
                default:
                        if (alive)
                                lengthen(&w, i, random_below(11));
                }
                if (step % 20 == 0)
                        check_world(&w);
        }
        check_world(&w);
        world_deinit(&w);
}

static void test_random(void)
{
        for (uint64_t seed = 1; seed <= 8; seed++) {
                printf("seed %llu ", (unsigned long long)seed * 104729);
                run_random(seed * 104729);
        }
}

/* C23: fork at every fill level of the last page. */
static void test_fork_levels(void)
{
        for (uint32_t fill = 0; fill <= 2 * T; fill++) {
                struct world w;
                struct sequence *s;

                random_state = 3; /* no undo here, by this seed or the next */
                world_init(&w);
                CU_ASSERT_EQUAL_FATAL(sequence_create(&w.table, &s), 0);
                w.model[0].handle = sequence_handle(&w.table, s);
                CU_ASSERT(lengthen(&w, 0, fill));
                CU_ASSERT_EQUAL(sequence_fork_need(&w.table, s), fill % T != 0);
                CU_ASSERT(fork_into(&w, 0, 1));
                CU_ASSERT_EQUAL(w.pages.pages_shared, fill / T);
                check_world(&w);
                lengthen(&w, 1, 1);
                lengthen(&w, 0, 2);
                check_world(&w);
                world_deinit(&w);
        }
}

/* C24: fork after truncate names no freed page; shared pages are freed once. */
static void test_fork_after_truncate(void)
{
        struct sequence *s;
        struct world w;

        world_init(&w);
        CU_ASSERT_EQUAL_FATAL(sequence_create(&w.table, &s), 0);
        w.model[0].handle = sequence_handle(&w.table, s);
        for (uint32_t keep = 0; keep <= 12; keep++) {
                while (w.model[0].tokens < 12)
                        lengthen(&w, 0, 12 - w.model[0].tokens);
                sequence_truncate(&w.table, sequence_find(&w.table, w.model[0].handle), keep, 0);
                w.model[0].tokens = keep;
                CU_ASSERT(fork_into(&w, 0, 1));
                check_world(&w);
                sequence_free(&w.table, sequence_find(&w.table, w.model[1].handle), 0);
                w.model[1].handle = 0;
                check_world(&w);
        }
        sequence_free(&w.table, sequence_find(&w.table, w.model[0].handle), 0);
        w.model[0].handle = 0;
        CU_ASSERT_EQUAL(page_allocator_free(&w.pages), UNITS * PER_UNIT);
        check_world(&w);
        world_deinit(&w);
}

static void test_limits(void)
{
        struct sequence *made[SEQUENCES], *s;
        struct page_copy copy;
        struct world w;

        world_init(&w);
        CU_ASSERT_PTR_NULL(sequence_find(&w.table, 0));
        for (uint32_t i = 0; i < SEQUENCES; i++) {
                CU_ASSERT_EQUAL(sequence_create(&w.table, &made[i]), 0);
                CU_ASSERT_NOT_EQUAL(sequence_handle(&w.table, made[i]), 0);
        }
        CU_ASSERT_EQUAL(sequence_create(&w.table, &s), -ENFILE);
        CU_ASSERT_EQUAL(sequence_fork(&w.table, made[0], &s, &copy), -ENFILE);
        CU_ASSERT_EQUAL(sequence_need(&w.table, made[0], TOKENS), TOKENS / T);
        CU_ASSERT_EQUAL(sequence_need(&w.table, made[0], TOKENS + 1), -EOVERFLOW);
        CU_ASSERT_EQUAL(sequence_need(&w.table, made[0], UINT32_MAX), -EOVERFLOW);
        CU_ASSERT_PTR_NULL(sequence_find(&w.table, UINT64_C(1) << 32 | SEQUENCES));
        /* Generations wrap past 0. */
        sequence_free(&w.table, made[4], 0);
        w.table.generation = UINT32_MAX;
        CU_ASSERT_EQUAL(sequence_create(&w.table, &s), 0);
        CU_ASSERT_EQUAL(s->generation, 1);
        /* Marks. */
        sequence_mark_begin(&w.table);
        CU_ASSERT(sequence_mark(&w.table, made[0]));
        CU_ASSERT(sequence_mark(&w.table, made[1]));
        CU_ASSERT_FALSE(sequence_mark(&w.table, made[0]));
        sequence_mark_begin(&w.table);
        CU_ASSERT(sequence_mark(&w.table, made[0]));
        world_deinit(&w);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("sequences", NULL, NULL);
        CU_add_test(suite, "random operations against a model", test_random);
        CU_add_test(suite, "C23 fork at every fill level", test_fork_levels);
        CU_add_test(suite, "C24 fork after truncate", test_fork_after_truncate);
        CU_add_test(suite, "limits and handles", test_limits);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
