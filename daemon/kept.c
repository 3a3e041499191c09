/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/crash.h"
#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/keeper_link.h"
#include "daemon/kept.h"
#include "daemon/listener.h"
#include "daemon/state.h"
#include "daemon/tenant.h"

/* Closed sessions and those being restored, beyond the clients that are allowed. */
#define SESSIONS_SPARE 16

/* --- sessions ------------------------------------------------------------------------------------
 */

int kept_session_new(struct session *session, struct device *device, const char *name, bool resume)
{
        struct daemon *daemon = session->daemon;
        struct state_session *record = state_session_take(daemon->state, session->number);

        if (!record)
                return -ENOSPC;
        record->device = device->slot;
        record->connected_us = session->connected_us;
        record->tenant = session->tenant->number;
        record->pid = session->identity.pid;
        record->uid = session->identity.uid;
        record->gid = session->identity.gid;
        record->resumable = session->resumable = resume && daemon->keeper;
        snprintf(record->name, sizeof(record->name), "%s", name);
        snprintf(record->tenant_name, sizeof(record->tenant_name), "%s", session->tenant->name);
        session->record = record;
        session->ticket = 0;
        /* A crash before the first commit leaves a record that says nothing, and descriptors that
         * belong to nothing: the client connects again. */
        if (daemon->keeper) {
                keeper_link_put(daemon->keeper, KEEPER_PIDFD, session->number,
                                session->identity.pidfd, NULL, NULL);
                if (session->resumable)
                        keeper_link_put(daemon->keeper, KEEPER_SESSION, session->number,
                                        session->fd, NULL, NULL);
                keeper_link_send_all(daemon->keeper);
        }
        crash_point(daemon, "session-kept");
        state_session_set(record, STATE_SESSION_OPEN);
        return 0;
}

void kept_session_restore(struct session *session, const struct state_session *old)
{
        struct state_session *record = session->record;

        record->device = session->device->slot;
        record->commit = old->commit;
        record->objects_last = old->objects_last;
        record->connected_us = old->connected_us;
        record->tenant = session->tenant->number;
        record->resumable = old->resumable;
        record->pid = old->pid;
        record->uid = old->uid;
        record->gid = old->gid;
        memcpy(record->name, old->name, sizeof(record->name));
        memcpy(record->tenant_name, old->tenant_name, sizeof(record->tenant_name));
        record->replies[old->commit & 1] = old->replies[old->commit & 1];
        for (uint32_t slot = 0; slot < STATE_OBJECTS_MAX; slot++) {
                if (!state_object_exists(old, &old->objects[slot]))
                        continue;
                record->objects[slot] = old->objects[slot];
                record->objects[slot].created = record->objects[slot].destroyed = 0;
        }
        state_session_set(record, STATE_SESSION_OPEN);
}

void kept_session_close(struct session *session)
{
        if (session->record)
                state_session_set(session->record, STATE_SESSION_CLOSED);
        crash_point(session->daemon, "session-closed");
        if (session->daemon->keeper && session->resumable)
                keeper_link_drop(session->daemon->keeper, KEEPER_SESSION, session->number, NULL,
                                 NULL);
}

void kept_session_free(struct session *session)
{
        if (!session->record)
                return;
        state_session_release(session->daemon->state, session->record);
        session->record = NULL;
        if (session->daemon->keeper)
                keeper_link_drop(session->daemon->keeper, KEEPER_PIDFD, session->number, NULL,
                                 NULL);
}

void kept_session_commit(struct session *session, const void *reply, size_t length)
{
        if (!session->record)
                return;
        crash_point(session->daemon, "before-commit");
        state_session_commit(session->record, ++session->ticket, session->serial, reply, length);
        crash_point(session->daemon, "after-commit");
}

void kept_object_new(struct session *session, const struct object *object)
{
        struct state_object record = {
                .id = object->id,
                .kind = object->kind,
                .unit_frames = object->unit_frames,
                .frames_max = object->frames_max,
                .created = session->ticket + 1,
        };

        if (!session->record)
                return;
        memcpy(record.name, object->name, sizeof(record.name));
        state_object_create(session->record, object->id & (STATE_OBJECTS_MAX - 1), &record);
}

void kept_object_free(struct session *session, const struct object *object)
{
        struct state_object *record;

        if (!session->record)
                return;
        record = &session->record->objects[object->id & (STATE_OBJECTS_MAX - 1)];
        __atomic_store_n(&record->destroyed, session->ticket + 1, __ATOMIC_RELEASE);
}

/* --- keeper and state ----------------------------------------------------------------------------
 */

void kept_hand_over(void *userdata)
{
        struct daemon *daemon = userdata;
        struct keeper_link *keeper = daemon->keeper;

        keeper_link_put(keeper, KEEPER_STATE, 0, daemon->state->fd, NULL, NULL);
        if (daemon->clients)
                keeper_link_put(keeper, KEEPER_LISTEN, 0, listener_fd(daemon->clients), NULL, NULL);
        if (daemon->admins)
                keeper_link_put(keeper, KEEPER_LISTEN, 1, listener_fd(daemon->admins), NULL, NULL);
        list_for_each(node, &daemon->sessions)
        {
                const struct session *session = list_entry(node, struct session, link);

                if (!session->record)
                        continue;
                keeper_link_put(keeper, KEEPER_PIDFD, session->number, session->identity.pidfd,
                                NULL, NULL);
                if (session->resumable && session->fd >= 0)
                        keeper_link_put(keeper, KEEPER_SESSION, session->number, session->fd, NULL,
                                        NULL);
        }
        list_for_each(node, &daemon->devices)
        {
                const struct device *device = list_entry(node, struct device, link);

                for (uint32_t i = 0; i < device->table.count; i++) {
                        const struct frame *frame = &device->table.frames[i];

                        /* (A worker has the descriptor of what it creates or releases.) */
                        if (frame->work == FRAME_CREATING || frame->work == FRAME_RELEASING ||
                            frame->fd < 0)
                                continue;
                        keeper_link_put(keeper, KEEPER_FRAME, device_keeper_id(device, i),
                                        frame->fd, NULL, NULL);
                }
        }
}

int kept_start(struct daemon *daemon, uint32_t sessions_extra)
{
        struct state_plan plan = {
                .sessions_max = daemon->config.max_clients + sessions_extra + SESSIONS_SPARE,
        };
        int r;

        list_for_each(node, &daemon->devices)
        {
                const struct device *device = list_entry(node, struct device, link);

                if (device->slot >= STATE_DEVICES_MAX)
                        return -E2BIG;
                memcpy(plan.devices[device->slot].uuid, device->uuid, sizeof(device->uuid));
                plan.devices[device->slot].frames = device->table.count;
                plan.devices[device->slot].frame_bytes = device->table.frame_bytes;
        }
        r = state_new(&daemon->state, &plan);
        if (r < 0)
                return r;
        daemon->state->header->generation = daemon->generation;
        daemon->state->header->tenants_last = daemon->tenants_last;
        daemon->state->header->sessions_last = daemon->sessions_last;
        list_for_each(node, &daemon->devices)
        {
                struct device *device = list_entry(node, struct device, link);

                device->table.records = state_frames(daemon->state, device->slot);
        }
        return 0;
}

void kept_stop(struct daemon *daemon, bool leave)
{
        daemon->leaving = leave;
        if (daemon->keeper && !leave)
                keeper_link_stop(daemon->keeper);
        daemon->keeper = keeper_link_free(daemon->keeper);
        list_for_each(node, &daemon->sessions) list_entry(node, struct session, link)->record =
                NULL;
        list_for_each(node, &daemon->devices) list_entry(node, struct device, link)->table.records =
                NULL;
        daemon->state = state_free(daemon->state);
}

uint32_t kept_check(struct daemon *daemon)
{
        uint32_t problems = 0;

        list_for_each(node, &daemon->devices)
        {
                const struct device *device = list_entry(node, struct device, link);

                for (uint32_t i = 0; device->table.records && i < device->table.count; i++) {
                        const struct frame *frame = &device->table.frames[i];
                        const struct state_frame *record = &device->table.records[i];

                        if (record->state !=
                            (frame->work == FRAME_RELEASING ? STATE_RELEASING : frame->state))
                                problems++;
                        else if (frame->state == FRAME_GRANTED &&
                                 (record->session != frame->object->session->number ||
                                  record->object != frame->object->id ||
                                  record->ticket > frame->object->session->ticket + 1))
                                problems++;
                }
        }
        list_for_each(node, &daemon->sessions)
        {
                const struct session *session = list_entry(node, struct session, link);
                const struct state_session *record = session->record;

                if (!record)
                        problems += daemon->state && session->device != NULL;
                else if (record->number != session->number || record->commit != session->ticket ||
                         record->tenant != session->tenant->number ||
                         record->state != (session->state == SESSION_OPEN ? STATE_SESSION_OPEN
                                                                          : STATE_SESSION_CLOSED))
                        problems++;
        }
        return problems;
}
