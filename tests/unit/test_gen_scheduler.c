/* SPDX-License-Identifier: Apache-2.0 */
/* tools/gen/scheduler.c: what a step holds, in which order, and what preemption does to it. */
#include <CUnit/Basic.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gen/scheduler.h"

static const struct request_limits limits = {.max_new_tokens = 4, .max_sequence_tokens = 1000};

/* Requests with prompts of these lengths. */
static void requests_init(struct request_list *list, const uint32_t *prompts, uint32_t count)
{
        *list = (struct request_list){0};
        for (uint32_t i = 0; i < count; i++) {
                CU_ASSERT_EQUAL_FATAL(request_list_add(list, "", 0), 0);
                list->items[i].tokens = calloc(prompts[i] + limits.max_new_tokens, 4);
                CU_ASSERT_PTR_NOT_NULL_FATAL(list->items[i].tokens);
                list->items[i].prompt_tokens = list->items[i].count = prompts[i];
                list->items[i].tokens_max = prompts[i] + limits.max_new_tokens;
        }
}

static void count_finished(void *context, struct request *request)
{
        (void)request;
        ++*(uint32_t *)context;
}

/* Computes the plan; every token that comes out is 7. Returns how many requests finished. */
static uint32_t compute(struct scheduler *scheduler)
{
        static const uint32_t next[] = {7, 7, 7, 7, 7, 7, 7, 7};
        uint32_t finished = 0;

        scheduler_computed(scheduler, NULL, &limits, next, count_finished, &finished);
        return finished;
}

/* The plan as "index:tokens ...", a star behind what is fresh. */
static const char *describe(struct scheduler *scheduler)
{
        static char text[256];
        const struct scheduler_plan *plan = scheduler_next(scheduler);
        size_t at = 0;
        uint32_t tokens = 0;

        text[0] = '\0';
        for (uint32_t i = 0; plan && i < plan->count; i++) {
                const struct scheduler_entry *entry = &plan->entries[i];

                at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%td:%u%s", i ? " " : "",
                                       entry->request - scheduler->requests->items, entry->tokens,
                                       entry->fresh ? "*" : "");
                tokens += entry->tokens;
        }
        if (plan)
                CU_ASSERT_EQUAL(tokens, plan->tokens);
        return text;
}

#define ASSERT_PLAN(scheduler, expected)                                                           \
        do {                                                                                       \
                const char *text = describe(scheduler);                                            \
                if (strcmp(text, expected))                                                        \
                        fprintf(stderr, "\n\"%s\" instead of \"%s\"\n", text, expected);           \
                CU_ASSERT_STRING_EQUAL(text, expected);                                            \
        } while (0)

static void test_order(void)
{
        static const uint32_t prompts[] = {3, 10, 2, 1, 1};
        struct request_list list;
        struct scheduler scheduler;

        requests_init(&list, prompts, 5);
        CU_ASSERT_EQUAL_FATAL(scheduler_init(&scheduler, &list, 3, 8), 0);
        /* First come, first served; the budget cuts the second prompt into chunks. */
        ASSERT_PLAN(&scheduler, "0:3* 1:5*");
        CU_ASSERT(!scheduler.plan.decode_only);
        compute(&scheduler);
        /* Generating goes first, then the rest of the prompt, then a newcomer. */
        ASSERT_PLAN(&scheduler, "0:1 1:5 2:2*");
        compute(&scheduler);
        ASSERT_PLAN(&scheduler, "0:1 1:1 2:1");
        CU_ASSERT(scheduler.plan.decode_only);
        CU_ASSERT_EQUAL(compute(&scheduler), 0);
        ASSERT_PLAN(&scheduler, "0:1 1:1 2:1");
        CU_ASSERT_EQUAL(compute(&scheduler), 1); /* 0 has its four */
        CU_ASSERT_EQUAL(list.items[0].finish, REQUEST_LENGTH);
        /* Its place is taken in the next step. */
        ASSERT_PLAN(&scheduler, "1:1 2:1 3:1*");
        CU_ASSERT_EQUAL(compute(&scheduler), 2);
        ASSERT_PLAN(&scheduler, "3:1 4:1*");
        while (scheduler_next(&scheduler))
                compute(&scheduler);
        for (uint32_t i = 0; i < 5; i++) {
                CU_ASSERT_EQUAL(request_generated(&list.items[i]), 4);
                CU_ASSERT_EQUAL(list.items[i].state, REQUEST_DONE);
        }
        scheduler_deinit(&scheduler);
        request_list_deinit(&list);
}

/* Whatever is being read, those that generate get their token. */
static void test_budget(void)
{
        static const uint32_t prompts[] = {1, 1, 1, 100};
        struct request_list list;
        struct scheduler scheduler;

        requests_init(&list, prompts, 4);
        CU_ASSERT_EQUAL_FATAL(scheduler_init(&scheduler, &list, 4, 4), 0);
        ASSERT_PLAN(&scheduler, "0:1* 1:1* 2:1* 3:1*");
        compute(&scheduler);
        ASSERT_PLAN(&scheduler, "0:1 1:1 2:1 3:1");
        compute(&scheduler);
        ASSERT_PLAN(&scheduler, "0:1 1:1 2:1 3:1");
        compute(&scheduler);
        ASSERT_PLAN(&scheduler, "0:1 1:1 2:1 3:1");
        CU_ASSERT_EQUAL(compute(&scheduler), 3);
        ASSERT_PLAN(&scheduler, "3:4");
        scheduler_deinit(&scheduler);
        request_list_deinit(&list);
}

static void test_retreat(void)
{
        static const uint32_t prompts[] = {2, 3, 2, 1};
        struct request_list list;
        struct scheduler scheduler;

        requests_init(&list, prompts, 4);
        CU_ASSERT_EQUAL_FATAL(scheduler_init(&scheduler, &list, 3, 16), 0);
        ASSERT_PLAN(&scheduler, "0:2* 1:3* 2:2*");
        /* The last one is taken back before it computed anything. */
        CU_ASSERT_PTR_EQUAL(scheduler_retreat(&scheduler, false), &list.items[2]);
        CU_ASSERT_EQUAL(scheduler.preemptions, 0);
        /* Nobody is admitted for a while, and those admitted already are no longer fresh. */
        ASSERT_PLAN(&scheduler, "0:2 1:3");
        compute(&scheduler);
        ASSERT_PLAN(&scheduler, "0:1 1:1");
        compute(&scheduler);
        /* A preempted one comes back with what it had generated, before any later one. */
        describe(&scheduler);
        CU_ASSERT_PTR_EQUAL(scheduler_retreat(&scheduler, true), &list.items[1]);
        CU_ASSERT_EQUAL(list.items[1].preemptions, 1);
        CU_ASSERT_EQUAL(list.items[1].count, 5);
        CU_ASSERT_EQUAL(scheduler.recomputed_tokens, 4);
        ASSERT_PLAN(&scheduler, "0:1");
        compute(&scheduler);
        ASSERT_PLAN(&scheduler, "0:1");
        CU_ASSERT_EQUAL(compute(&scheduler), 1); /* a request is done: admission goes on */
        ASSERT_PLAN(&scheduler, "1:5* 2:2* 3:1*");
        compute(&scheduler);
        CU_ASSERT_EQUAL(request_generated(&list.items[1]), 3);
        CU_ASSERT_EQUAL(list.items[1].tokens[5], 7);
        scheduler_deinit(&scheduler);
        request_list_deinit(&list);
}

static void test_hold(void)
{
        static const uint32_t prompts[] = {1, 1};
        struct request_limits long_limits = {.max_new_tokens = 1000, .max_sequence_tokens = 1000};
        static const uint32_t next[2] = {7, 7};
        struct request_list list;
        struct scheduler scheduler;
        uint32_t finished = 0, steps = 0;

        requests_init(&list, prompts, 2);
        for (int i = 0; i < 2; i++) {
                list.items[i].tokens = realloc(list.items[i].tokens, 1001 * 4);
                CU_ASSERT_PTR_NOT_NULL_FATAL(list.items[i].tokens);
        }
        CU_ASSERT_EQUAL_FATAL(scheduler_init(&scheduler, &list, 2, 16), 0);
        ASSERT_PLAN(&scheduler, "0:1* 1:1*");
        scheduler_retreat(&scheduler, false);
        while (scheduler_next(&scheduler)->count == 1 && steps < 1000) {
                scheduler_computed(&scheduler, NULL, &long_limits, next, count_finished, &finished);
                steps++;
        }
        CU_ASSERT_EQUAL(steps, SCHEDULER_HOLD_STEPS);
        /* When nothing runs, one is tried at once. */
        scheduler_retreat(&scheduler, false);
        scheduler_retreat(&scheduler, true);
        CU_ASSERT_PTR_NULL(scheduler_retreat(&scheduler, true));
        ASSERT_PLAN(&scheduler, "0:16*");
        scheduler_deinit(&scheduler);
        request_list_deinit(&list);
}

/* The three ways to end. */
static void test_finish(void)
{
        static const uint32_t prompts[] = {5};
        const struct request_limits short_limits = {.max_new_tokens = 4, .max_sequence_tokens = 7};
        struct request_list list;

        requests_init(&list, prompts, 1);
        request_append(&list.items[0], NULL, &short_limits, 3);
        CU_ASSERT_EQUAL(list.items[0].finish, REQUEST_UNFINISHED);
        request_append(&list.items[0], NULL, &short_limits, 3);
        CU_ASSERT_EQUAL(list.items[0].finish, REQUEST_CONTEXT);
        request_list_deinit(&list);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("gen scheduler", NULL, NULL);
        if (!suite || !CU_add_test(suite, "order", test_order) ||
            !CU_add_test(suite, "budget", test_budget) ||
            !CU_add_test(suite, "preemption", test_retreat) ||
            !CU_add_test(suite, "hold", test_hold) || !CU_add_test(suite, "finish", test_finish))
                return 1;
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures() + CU_get_number_of_tests_failed();
        CU_cleanup_registry();
        return failures ? 1 : 0;
}
