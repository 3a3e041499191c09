/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/frame.h"
#include "daemon/state.h"

int frame_table_init(struct frame_table *table, uint32_t count, uint64_t frame_bytes,
                     struct frame_list *free_list)
{
        *table = (struct frame_table){.frame_bytes = frame_bytes};
        frame_list_init(free_list);
        if (count == FRAME_NONE)
                return -EINVAL;
        table->frames = calloc(count > 0 ? count : 1, sizeof(*table->frames));
        if (!table->frames)
                return -ENOMEM;
        table->count = count;
        table->states[FRAME_FREE] = count;
        table->works[FRAME_IDLE] = count;
        for (uint32_t i = 0; i < count; i++) {
                table->frames[i].fd = -1;
                frame_list_append(table, free_list, i);
        }
        return 0;
}

void frame_table_deinit(struct frame_table *table)
{
        free(table->frames);
        *table = (struct frame_table){0};
}

void frame_list_append(struct frame_table *table, struct frame_list *list, uint32_t number)
{
        struct frame *frame = &table->frames[number];

        frame->next = FRAME_NONE;
        frame->previous = list->last;
        if (list->last != FRAME_NONE)
                table->frames[list->last].next = number;
        else
                list->first = number;
        list->last = number;
        list->count++;
}

void frame_list_push(struct frame_table *table, struct frame_list *list, uint32_t number)
{
        struct frame *frame = &table->frames[number];

        frame->previous = FRAME_NONE;
        frame->next = list->first;
        if (list->first != FRAME_NONE)
                table->frames[list->first].previous = number;
        else
                list->last = number;
        list->first = number;
        list->count++;
}

void frame_list_remove(struct frame_table *table, struct frame_list *list, uint32_t number)
{
        struct frame *frame = &table->frames[number];

        if (frame->previous != FRAME_NONE)
                table->frames[frame->previous].next = frame->next;
        else
                list->first = frame->next;
        if (frame->next != FRAME_NONE)
                table->frames[frame->next].previous = frame->previous;
        else
                list->last = frame->previous;
        frame->next = frame->previous = FRAME_NONE;
        list->count--;
}

uint32_t frame_list_pop(struct frame_table *table, struct frame_list *list)
{
        uint32_t number = list->first;

        if (number != FRAME_NONE)
                frame_list_remove(table, list, number);
        return number;
}

void frame_set_state(struct frame_table *table, uint32_t number, enum frame_state state)
{
        struct frame *frame = &table->frames[number];

        table->states[frame->state]--;
        table->states[state]++;
        frame->state = (uint8_t)state;
        if (table->records)
                state_store_u8(&table->records[number].state, (uint8_t)state);
}

void frame_record_grant(struct frame_table *table, uint32_t number, uint32_t tenant,
                        uint64_t session, uint64_t object, uint64_t ticket)
{
        struct state_frame *record = table->records ? &table->records[number] : NULL;

        if (!record)
                return;
        record->previous = table->frames[number].state;
        record->tenant = tenant;
        record->session = session;
        record->object = object;
        record->ticket = ticket;
}

void frame_record_return(struct frame_table *table, uint32_t number, uint64_t ticket)
{
        if (table->records)
                __atomic_store_n(&table->records[number].ticket, ticket, __ATOMIC_RELEASE);
}

void frame_set_work(struct frame_table *table, uint32_t number, enum frame_work work)
{
        struct frame *frame = &table->frames[number];

        table->works[frame->work]--;
        table->works[work]++;
        frame->work = (uint8_t)work;
        if (table->records && work == FRAME_RELEASING)
                state_store_u8(&table->records[number].state, STATE_RELEASING);
}

const char *frame_state_name(enum frame_state state)
{
        static const char *const names[FRAME_STATE_COUNT] = {
                [FRAME_FREE] = "free",
                [FRAME_FRESH] = "fresh",
                [FRAME_GRANTED] = "granted",
                [FRAME_DIRTY] = "dirty",
                [FRAME_READY] = "ready",
                [FRAME_DRAINING] = "draining",
                [FRAME_QUARANTINED] = "quarantined",
        };

        return (unsigned)state < FRAME_STATE_COUNT ? names[state] : "unknown";
}

const char *frame_step_name(enum frame_step step)
{
        static const char *const names[FRAME_STEP_COUNT] = {
                [FRAME_STEP_NONE] = "none",
                [FRAME_STEP_CREATE] = "cuMemCreate",
                [FRAME_STEP_EXPORT] = "cuMemExportToShareableHandle",
                [FRAME_STEP_MAP] = "cuMemMap",
                [FRAME_STEP_SET_ACCESS] = "cuMemSetAccess",
                [FRAME_STEP_UNMAP] = "cuMemUnmap",
                [FRAME_STEP_RELEASE] = "cuMemRelease",
                [FRAME_STEP_SCRUB] = "cuMemsetD8Async",
        };

        return (unsigned)step < FRAME_STEP_COUNT ? names[step] : "unknown";
}
