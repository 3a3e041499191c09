/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>

#include "daemon/filler.h"
#include "daemon/frame_pool.h"
#include "daemon/session.h"

bool frame_pool_has(const struct device *device, const struct tenant_device *tenant,
                    uint32_t frames)
{
        uint32_t fresh = frames > tenant->ready.count ? frames - tenant->ready.count : 0;

        return fresh <= device->fresh.count && frames <= tenant_device_may_hold(tenant) &&
               (fresh == 0 || fresh <= tenant_device_may_charge(tenant));
}

/* Free frames that memory can be had for. */
static uint64_t free_frames(const struct device *device)
{
        uint64_t frames = device->table.states[FRAME_FREE], kept = withheld_frames(device);

        return frames > kept ? frames - kept : 0;
}

uint64_t frame_pool_supply(const struct device *device)
{
        const struct frame_table *table = &device->table;
        uint64_t frames;

        if (device->state == DEVICE_LOST)
                return 0;
        frames = (uint64_t)table->states[FRAME_FRESH] + table->states[FRAME_READY] +
                 table->states[FRAME_DIRTY];
        if (device->backoff_until_ns == 0)
                frames += free_frames(device);
        else
                frames += table->works[FRAME_CREATING];
        return frames;
}

uint64_t frame_pool_obtainable(const struct device *device, const struct tenant_device *tenant)
{
        uint64_t supply = frame_pool_supply(device);
        uint64_t may_hold = tenant_device_may_hold(tenant);

        supply = supply > device->queue.frames ? supply - device->queue.frames : 0;
        may_hold = may_hold > tenant->wanted ? may_hold - tenant->wanted : 0;
        if (tenant->held > 0) /* those who wait for the limit come first */
                return 0;
        return supply < may_hold ? supply : may_hold;
}

uint32_t frame_pool_grant(struct device *device, struct tenant_device *tenant,
                          struct object *object, uint32_t frames, uint64_t *ids, int *fds)
{
        struct frame_table *table = &device->table;
        uint32_t ready = tenant->ready.count < frames ? tenant->ready.count : frames;

        for (uint32_t i = 0; i < frames; i++) {
                struct frame_list *list = i < ready ? &tenant->ready : &device->fresh;
                uint32_t number = frame_list_pop(table, list);
                struct frame *frame = &table->frames[number];

                if (i >= ready)
                        charge_take(&frame->charge, &tenant->tenant->account, table->frame_bytes);
                frame_record_grant(table, number, tenant->tenant->number, object->session->number,
                                   object->id, object->session->ticket + 1);
                frame_set_state(table, number, FRAME_GRANTED);
                frame->object = object;
                frame_list_append(table, &object->frames, number);
                ids[i] = number;
                fds[i] = frame->fd;
        }
        tenant->granted += frames;
        object->session->frames += frames;
        object->session->held = true;
        return ready;
}

void frame_pool_undo(struct device *device, struct tenant_device *tenant, struct object *object,
                     const uint64_t *ids, uint32_t frames, uint32_t ready)
{
        struct frame_table *table = &device->table;

        for (uint32_t i = frames; i-- > 0;) {
                uint32_t number = (uint32_t)ids[i];
                struct frame *frame = &table->frames[number];

                frame_list_remove(table, &object->frames, number);
                frame->object = NULL;
                if (i < ready) {
                        frame->tenant = tenant;
                        frame_set_state(table, number, FRAME_READY);
                        frame_list_push(table, &tenant->ready, number);
                } else {
                        charge_refund(&frame->charge);
                        frame_set_state(table, number, FRAME_FRESH);
                        frame_list_push(table, &device->fresh, number);
                }
        }
        tenant->granted -= frames;
        object->session->frames -= frames;
}

static void leave_object(struct device *device, struct tenant_device *tenant, struct object *object,
                         uint32_t number)
{
        struct frame *frame = &device->table.frames[number];

        assert(frame->state == FRAME_GRANTED && frame->object == object);
        frame_list_remove(&device->table, &object->frames, number);
        frame->tenant = tenant;
        tenant->granted--;
        object->session->frames--;
        device->returned_frames++;
}

static void become_dirty(struct device *device, struct tenant_device *tenant, uint32_t number)
{
        frame_set_state(&device->table, number, FRAME_DIRTY);
        frame_list_append(&device->table, &tenant->dirty, number);
        filler_frame_dirty(device, tenant);
}

void frame_pool_return(struct device *device, struct tenant_device *tenant, struct object *object,
                       uint32_t number)
{
        frame_record_return(&device->table, number, object->session->ticket + 1);
        leave_object(device, tenant, object, number);
        become_dirty(device, tenant, number);
}

void frame_pool_drain(struct device *device, struct tenant_device *tenant, struct object *object,
                      struct frame_list *draining, uint32_t number)
{
        leave_object(device, tenant, object, number);
        frame_set_state(&device->table, number, FRAME_DRAINING);
        frame_list_append(&device->table, draining, number);
        tenant->draining++;
}

void frame_pool_drained(struct device *device, struct tenant_device *tenant,
                        struct frame_list *draining)
{
        uint32_t number;

        while ((number = frame_list_pop(&device->table, draining)) != FRAME_NONE) {
                tenant->draining--;
                become_dirty(device, tenant, number);
        }
}

void frame_pool_quarantine(struct device *device, uint32_t number)
{
        struct frame *frame = &device->table.frames[number];

        charge_refund(&frame->charge);
        frame->tenant = NULL;
        frame_set_state(&device->table, number, FRAME_QUARANTINED);
        frame_list_append(&device->table, &device->quarantined, number);
}
