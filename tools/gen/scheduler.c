/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/scheduler.h"

#include <errno.h>
#include <stdlib.h>

int scheduler_init(struct scheduler *scheduler, struct request_list *requests,
                   uint32_t max_sequences, uint32_t max_batch_tokens)
{
        *scheduler = (struct scheduler){
                .requests = requests,
                .max_sequences = max_sequences,
                .max_batch_tokens = max_batch_tokens,
        };
        scheduler->running = calloc(max_sequences, sizeof(scheduler->running[0]));
        scheduler->plan.entries = calloc(max_sequences, sizeof(scheduler->plan.entries[0]));
        if (!scheduler->running || !scheduler->plan.entries) {
                scheduler_deinit(scheduler);
                return -ENOMEM;
        }
        return 0;
}

void scheduler_deinit(struct scheduler *scheduler)
{
        free(scheduler->running);
        free(scheduler->plan.entries);
        *scheduler = (struct scheduler){0};
}

static uint32_t left_of(const struct request *request)
{
        return request->count - request->computed;
}

/* Lets the next waiting request in; NULL if there is none, or no room. */
static struct request *admit(struct scheduler *scheduler)
{
        struct request_list *requests = scheduler->requests;
        struct request *request;

        if (scheduler->running_count == scheduler->max_sequences)
                return NULL;
        while (scheduler->next < requests->count &&
               requests->items[scheduler->next].state != REQUEST_WAITING)
                scheduler->next++;
        if (scheduler->next == requests->count)
                return NULL;
        request = &requests->items[scheduler->next++];
        request->state = REQUEST_RUNNING;
        request->computed = 0;
        scheduler->running[scheduler->running_count++] = request;
        return request;
}

static void plan_add(struct scheduler_plan *plan, struct request *request, uint32_t tokens,
                     bool fresh)
{
        plan->entries[plan->count++] = (struct scheduler_entry){
                .request = request,
                .tokens = tokens,
                .fresh = fresh,
        };
        plan->tokens += tokens;
        plan->decode_only = plan->decode_only && tokens == 1;
}

const struct scheduler_plan *scheduler_next(struct scheduler *scheduler)
{
        struct scheduler_plan *plan = &scheduler->plan;
        const uint32_t old = scheduler->running_count;
        uint32_t budget = scheduler->max_batch_tokens; /* for chunks, once single tokens are off */

        plan->count = 0;
        plan->tokens = 0;
        plan->decode_only = true;
        for (uint32_t i = 0; i < old; i++)
                budget -= left_of(scheduler->running[i]) == 1;
        for (uint32_t i = 0; i < old; i++) {
                const uint32_t left = left_of(scheduler->running[i]);
                uint32_t tokens = 1;

                if (left != 1) {
                        tokens = left < budget ? left : budget;
                        budget -= tokens;
                }
                if (tokens)
                        plan_add(plan, scheduler->running[i], tokens, false);
        }
        while (budget && (!scheduler->hold || !scheduler->running_count)) {
                struct request *request = admit(scheduler);
                uint32_t tokens;

                if (!request)
                        break;
                tokens = left_of(request) < budget ? left_of(request) : budget;
                budget -= tokens;
                plan_add(plan, request, tokens, true);
        }
        return plan->count ? plan : NULL;
}

struct request *scheduler_retreat(struct scheduler *scheduler, bool count)
{
        struct request *request;

        if (!scheduler->running_count)
                return NULL;
        request = scheduler->running[--scheduler->running_count];
        if (count) {
                request->preemptions++;
                scheduler->preemptions++;
                scheduler->recomputed_tokens += request->computed;
        }
        request->state = REQUEST_WAITING;
        request->computed = 0;
        /* Everything after it in the list is waiting or done. */
        scheduler->next = (uint32_t)(request - scheduler->requests->items);
        scheduler->hold = SCHEDULER_HOLD_STEPS;
        scheduler->plan.count = 0;
        return request;
}

void scheduler_computed(struct scheduler *scheduler, const struct tokenizer *tokenizer,
                        const struct request_limits *limits, const uint32_t *next,
                        void (*finished)(void *context, struct request *request), void *context)
{
        const struct scheduler_plan *plan = &scheduler->plan;
        uint32_t kept = 0;

        if (scheduler->hold)
                scheduler->hold--;
        for (uint32_t i = 0; i < plan->count; i++) {
                struct request *request = plan->entries[i].request;
                const bool yields = scheduler_entry_yields(&plan->entries[i]);

                request->computed += plan->entries[i].tokens;
                if (yields)
                        request_append(request, tokenizer, limits, next[i]);
        }
        for (uint32_t i = 0; i < scheduler->running_count; i++) {
                struct request *request = scheduler->running[i];

                if (request->state != REQUEST_DONE) {
                        scheduler->running[kept++] = request;
                        continue;
                }
                scheduler->hold = 0;
                finished(context, request);
        }
        scheduler->running_count = kept;
}
