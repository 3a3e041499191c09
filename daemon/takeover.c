/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/crash.h"
#include "daemon/device.h"
#include "daemon/frame_pool.h"
#include "daemon/keeper_link.h"
#include "daemon/session.h"
#include "daemon/state.h"
#include "daemon/takeover.h"
#include "daemon/takeover_internal.h"
#include "libclient/wire/wire.h"

/* --- what the keeper had -------------------------------------------------------------------------
 */

static void take(void *userdata, uint32_t kind, uint64_t id, int fd)
{
        struct takeover *takeover = userdata;

        if (takeover->count == takeover->capacity) {
                size_t capacity = takeover->capacity ? takeover->capacity * 2 : 1024;
                struct kept *more = reallocarray(takeover->kept, capacity, sizeof(*more));

                if (!more) {
                        takeover->out_of_memory = true;
                        close(fd);
                        return;
                }
                takeover->kept = more;
                takeover->capacity = capacity;
        }
        takeover->kept[takeover->count++] = (struct kept){.id = id, .kind = kind, .fd = fd};
}

static int compare_kept(const void *a, const void *b)
{
        const struct kept *x = a, *y = b;

        if (x->kind != y->kind)
                return x->kind < y->kind ? -1 : 1;
        return x->id < y->id ? -1 : x->id > y->id;
}

static int compare_sessions(const void *a, const void *b)
{
        const struct left_session *x = a, *y = b;

        return x->record->number < y->record->number   ? -1
               : x->record->number > y->record->number ? 1
                                                       : 0;
}

/* The descriptor, the caller's now; -1 if there is none. */
static int kept_take(struct takeover *takeover, uint32_t kind, uint64_t id)
{
        struct kept key = {.id = id, .kind = kind}, *found;
        int fd;

        if (takeover->count == 0)
                return -1;
        found = bsearch(&key, takeover->kept, takeover->count, sizeof(key), compare_kept);
        if (!found)
                return -1;
        fd = found->fd;
        found->fd = -1;
        return fd;
}

struct left_session *takeover_find_session(const struct takeover *takeover, uint64_t number)
{
        struct state_session record = {.number = number};
        struct left_session key = {.record = &record};

        if (takeover->sessions_count == 0)
                return NULL;
        return bsearch(&key, takeover->sessions, takeover->sessions_count, sizeof(key),
                       compare_sessions);
}

/* --- what shall become of it ---------------------------------------------------------------------
 */

static int read_sessions(struct takeover *takeover)
{
        uint32_t most = takeover->state->header->sessions_max, kept = 0;

        takeover->sessions = calloc(most > 0 ? most : 1, sizeof(*takeover->sessions));
        if (!takeover->sessions)
                return -ENOMEM;
        for (uint32_t i = 0; i < most; i++) {
                const struct state_session *record = state_read_session(takeover->state, i);

                if (record)
                        takeover->sessions[takeover->sessions_count++].record = record;
        }
        qsort(takeover->sessions, takeover->sessions_count, sizeof(*takeover->sessions),
              compare_sessions);
        for (uint32_t i = 0; i < takeover->sessions_count; i++) {
                /* (Two of one number: the state is corrupt. One is as good as the other.) */
                if (kept > 0 && takeover->sessions[kept - 1].record->number ==
                                        takeover->sessions[i].record->number)
                        continue;
                takeover->sessions[kept++] = takeover->sessions[i];
        }
        takeover->sessions_count = kept;
        return 0;
}

static bool has_object(const struct state_session *session, uint64_t id)
{
        const struct state_object *object = &session->objects[id & (STATE_OBJECTS_MAX - 1)];

        return object->id == id && state_object_exists(session, object);
}

static bool tenant_has_session(const struct takeover *takeover, uint32_t tenant)
{
        for (uint32_t i = 0; i < takeover->sessions_count; i++)
                if (takeover->sessions[i].record->tenant == tenant)
                        return true;
        return false;
}

/* Decides for one frame: frame->state is what it shall be. */
static void decide_frame(struct takeover *takeover, uint32_t device, struct state_frame *frame,
                         int fd)
{
        struct left_session *session = takeover_find_session(takeover, frame->session);
        bool existed;

        if (session)
                state_frame_recover(frame, session->record);
        existed = frame->state == FRAME_FRESH || frame->state == FRAME_READY ||
                  frame->state == FRAME_DIRTY || frame->state == FRAME_GRANTED ||
                  frame->state == FRAME_DRAINING;
        if (fd < 0) {
                if (existed) {
                        takeover->frames_lost++;
                        if (session &&
                            (frame->state == FRAME_GRANTED || frame->state == FRAME_DRAINING))
                                session->broken = true;
                }
                frame->state = FRAME_FREE;
                return;
        }
        switch (frame->state) {
        case FRAME_FRESH:
                return;
        case FRAME_READY:
        case FRAME_DIRTY:
                if (tenant_has_session(takeover, frame->tenant))
                        return;
                existed = false; /* its tenant has left: it was to be released anyway */
                break;
        case FRAME_GRANTED:
        case FRAME_DRAINING:
                if (!session || session->record->device != device)
                        break;
                frame->tenant = session->record->tenant;
                if (frame->state == FRAME_GRANTED && session->record->state == STATE_SESSION_OPEN &&
                    has_object(session->record, frame->object))
                        return;
                if (session->record->state == STATE_SESSION_CLOSED) {
                        frame->state = FRAME_DRAINING;
                        return;
                }
                break;
        default: /* free, releasing, quarantined, or nonsense */
                break;
        }
        /* (Nothing holds it that is known: not worth a word if it was on its way.) */
        if (existed)
                takeover->frames_released++;
        frame->state = FRAME_FREE;
}

static int read_device(struct takeover *takeover, uint32_t slot)
{
        struct left_device *device = &takeover->devices[slot];

        if (!state_read_device(takeover->state, slot, &device->record))
                return 0;
        device->frames = calloc(device->record.frames, sizeof(*device->frames));
        device->fds = calloc(device->record.frames, sizeof(*device->fds));
        if (!device->frames || !device->fds)
                return -ENOMEM;
        for (uint32_t i = 0; i < device->record.frames; i++)
                device->fds[i] = -1;
        device->there = true;
        for (uint32_t i = 0; i < device->record.frames; i++) {
                state_read_frame(takeover->state, &device->record, i, &device->frames[i]);
                device->fds[i] = kept_take(takeover, KEEPER_FRAME, (uint64_t)slot << 32 | i);
                decide_frame(takeover, slot, &device->frames[i], device->fds[i]);
        }
        return 0;
}

int takeover_new(struct takeover **out, struct daemon *daemon)
{
        struct takeover *takeover = calloc(1, sizeof(*takeover));
        char why[256];
        int fd, r;

        *out = NULL;
        if (!takeover)
                return -ENOMEM;
        takeover->log = &daemon->log;
        takeover->started_ns = wire_now_ns();
        r = keeper_link_fetch(daemon->keeper, take, takeover);
        if (r == 0 && takeover->out_of_memory)
                r = -ENOMEM;
        if (r < 0) {
                log_error(&daemon->log, "the keeper does not hand back what it holds",
                          LOG_TEXT("error", strerror(-r)));
                takeover_free(takeover);
                return r;
        }
        qsort(takeover->kept, takeover->count, sizeof(*takeover->kept), compare_kept);
        fd = kept_take(takeover, KEEPER_STATE, 0);
        r = fd < 0 ? STATE_E_BROKEN : state_open_consume_fd(&takeover->state, fd, why, sizeof(why));
        if (r == STATE_E_NEWER) {
                log_error(&daemon->log,
                          "the state of the last daemon cannot be read; nothing is touched",
                          LOG_TEXT("why", why));
                takeover_free(takeover);
                return -EPROTONOSUPPORT;
        }
        if (r == STATE_E_BROKEN && fd >= 0)
                log_error(&daemon->log,
                          "the state of the last daemon is unusable; all memory is released",
                          LOG_TEXT("why", why));
        if (r == 0) {
                daemon->generation = ++takeover->state->header->generation;
                daemon->sessions_last = takeover->state->header->sessions_last;
                daemon->tenants_last = takeover->state->header->tenants_last;
                r = read_sessions(takeover);
                for (uint32_t slot = 0; r == 0 && slot < STATE_DEVICES_MAX; slot++)
                        r = read_device(takeover, slot);
        }
        if (r < 0) {
                takeover_free(takeover);
                return r;
        }
        crash_point(daemon, "takeover-read");
        *out = takeover;
        return 0;
}

struct takeover *takeover_free(struct takeover *takeover)
{
        if (!takeover)
                return NULL;
        for (size_t i = 0; i < takeover->count; i++)
                if (takeover->kept[i].fd >= 0)
                        close(takeover->kept[i].fd);
        for (uint32_t slot = 0; slot < STATE_DEVICES_MAX; slot++) {
                struct left_device *device = &takeover->devices[slot];

                for (uint32_t i = 0; device->there && i < device->record.frames; i++)
                        if (device->fds[i] >= 0)
                                close(device->fds[i]);
                free(device->frames);
                free(device->fds);
        }
        free(takeover->kept);
        free(takeover->sessions);
        state_free(takeover->state);
        free(takeover);
        return NULL;
}

int takeover_listener(struct takeover *takeover, uint64_t id)
{
        return takeover ? kept_take(takeover, KEEPER_LISTEN, id) : -1;
}

uint32_t takeover_sessions(const struct takeover *takeover)
{
        return takeover ? takeover->sessions_count : 0;
}

/* --- sessions and lists --------------------------------------------------------------------------
 */

static struct device *device_of_slot(const struct daemon *daemon, uint32_t slot)
{
        list_for_each(node, &daemon->devices)
        {
                struct device *device = list_entry(node, struct device, link);

                if (device->slot == slot)
                        return device;
        }
        return NULL;
}

/* A session that cannot be made again is as good as dead; its frames find no session and are
 * released. */
static int rebuild_session(struct takeover *takeover, struct daemon *daemon,
                           struct left_session *left)
{
        const struct state_session *record = left->record;
        struct device *device = device_of_slot(daemon, record->device);
        struct identity identity;
        int fd = kept_take(takeover, KEEPER_SESSION, record->number);
        int r;

        identity_init(&identity);
        identity.pidfd = kept_take(takeover, KEEPER_PIDFD, record->number);
        if (identity.pidfd < 0 && fd >= 0)
                identity_of_peer(&identity, fd);
        if (!device || identity.pidfd < 0 || left->broken ||
            record->state == STATE_SESSION_CLOSED || !record->resumable) {
                if (fd >= 0)
                        close(fd);
                fd = -1;
        }
        if (!device || identity.pidfd < 0) {
                identity_deinit(&identity);
                takeover->sessions_lost++;
                return 0;
        }
        identity.pid = record->pid;
        identity.uid = record->uid;
        identity.gid = record->gid;
        r = session_restore_consume_fd(&left->session, daemon, device, record, fd, &identity);
        if (r == -ENOMEM)
                return r;
        if (r < 0)
                takeover->sessions_lost++;
        return 0;
}

static struct tenant_device *allotment_of(struct device *device, uint32_t tenant)
{
        list_for_each(node, &device->tenants)
        {
                struct tenant_device *part = list_entry(node, struct tenant_device, device_link);

                if (part->tenant->number == tenant)
                        return part;
        }
        return NULL;
}

/* Puts a frame into its list, in memory and in the new state. false: it does not belong anywhere.
 */
static bool place_frame(struct takeover *takeover, struct device *device, uint32_t number,
                        const struct state_frame *old)
{
        struct frame_table *table = &device->table;
        struct frame *frame = &table->frames[number];
        struct left_session *left = takeover_find_session(takeover, old->session);
        struct session *session = left ? left->session : NULL;
        struct tenant_device *part;
        struct object *object;

        switch (old->state) {
        case FRAME_FRESH:
                frame_list_remove(table, &device->free, number);
                frame_set_state(table, number, FRAME_FRESH);
                frame_list_append(table, &device->fresh, number);
                return true;
        case FRAME_GRANTED:
                object = session ? object_find(&session->objects, old->object) : NULL;
                if (!object || object->frames.count >= object->frames_max)
                        return false;
                frame_list_remove(table, &device->free, number);
                charge_take(&frame->charge, &session->tenant->account, table->frame_bytes);
                frame_record_grant(table, number, session->tenant->number, session->number,
                                   object->id, 0);
                frame_set_state(table, number, FRAME_GRANTED);
                frame->object = object;
                frame_list_append(table, &object->frames, number);
                session->allotment->granted++;
                session->frames++;
                return true;
        case FRAME_DRAINING:
                if (!session)
                        return false;
                frame_list_remove(table, &device->free, number);
                charge_take(&frame->charge, &session->tenant->account, table->frame_bytes);
                frame_record_grant(table, number, session->tenant->number, session->number, 0, 0);
                frame_set_state(table, number, FRAME_DRAINING);
                frame->tenant = session->allotment;
                frame_list_append(table, &session->draining, number);
                session->allotment->draining++;
                return true;
        case FRAME_DIRTY:
        case FRAME_READY:
                part = allotment_of(device, old->tenant);
                if (!part)
                        return false;
                frame_list_remove(table, &device->free, number);
                charge_take(&frame->charge, &part->tenant->account, table->frame_bytes);
                frame_record_grant(table, number, part->tenant->number, 0, 0, 0);
                frame_set_state(table, number, old->state);
                frame->tenant = part;
                frame_list_append(table, old->state == FRAME_DIRTY ? &part->dirty : &part->ready,
                                  number);
                return true;
        default:
                return false;
        }
}

static void rebuild_device(struct takeover *takeover, struct device *device)
{
        struct left_device *left = &takeover->devices[device->slot];

        if (!left->used)
                return;
        for (uint32_t i = 0; i < left->record.frames; i++) {
                if (left->frames[i].state == FRAME_FREE)
                        continue;
                if (place_frame(takeover, device, i, &left->frames[i])) {
                        device->table.frames[i].fd = left->fds[i];
                        left->fds[i] = -1;
                        takeover->frames_back++;
                } else {
                        takeover_release_import(device, i);
                        left->frames[i].state = FRAME_FREE;
                        takeover->frames_released++;
                }
        }
}

/* A grant that was taken back when the last daemon was killed: the part of it that is still granted
 * is known to nobody. */
static void finish_undo(struct session *session)
{
        const struct state_reply *reply = state_committed_reply(session->record);
        struct gpumem_message_grant_reply grant;
        struct frame_table *table = &session->device->table;
        uint32_t held = 0;

        if (!reply || reply->length < sizeof(grant))
                return;
        memcpy(&grant, reply->message, sizeof(grant));
        if (grant.header.type != GPUMEM_MESSAGE_GRANT_REPLY ||
            grant.frames > GPUMEM_MESSAGE_FDS_MAX ||
            reply->length < sizeof(grant) + grant.frames * sizeof(uint64_t))
                return;
        for (int pass = 0; pass < 2; pass++) {
                for (uint32_t i = 0; i < grant.frames; i++) {
                        uint64_t id;

                        memcpy(&id, reply->message + sizeof(grant) + i * sizeof(id), sizeof(id));
                        if (id >= table->count || table->frames[id].state != FRAME_GRANTED ||
                            table->frames[id].object->session != session ||
                            table->frames[id].object->id != grant.object)
                                continue;
                        if (pass == 0)
                                held++;
                        else
                                frame_pool_return(session->device, session->allotment,
                                                  table->frames[id].object, (uint32_t)id);
                }
                if (held == grant.frames)
                        return;
        }
        session->serial = session->resumed_serial = grant.header.serial - 1;
}

int takeover_rebuild(struct takeover *takeover, struct daemon *daemon)
{
        for (uint32_t i = 0; i < takeover->sessions_count; i++) {
                int r = rebuild_session(takeover, daemon, &takeover->sessions[i]);

                if (r < 0)
                        return r;
        }
        list_for_each(node, &daemon->devices)
                rebuild_device(takeover, list_entry(node, struct device, link));
        return 0;
}

void takeover_finish(struct takeover *takeover, struct daemon *daemon)
{
        uint32_t dropped = 0;

        if (!takeover)
                return;
        for (size_t i = 0; i < takeover->count; i++) {
                struct kept *kept = &takeover->kept[i];

                if (kept->fd < 0 || kept->kind == KEEPER_LISTEN)
                        continue;
                keeper_link_drop(daemon->keeper, kept->kind, kept->id, NULL, NULL);
                close(kept->fd);
                kept->fd = -1;
                dropped++;
        }
        for (uint32_t slot = 0; slot < STATE_DEVICES_MAX; slot++) {
                struct left_device *left = &takeover->devices[slot];

                for (uint32_t i = 0; left->there && i < left->record.frames; i++) {
                        if (left->fds[i] < 0)
                                continue;
                        keeper_link_drop(daemon->keeper, KEEPER_FRAME, (uint64_t)slot << 32 | i,
                                         NULL, NULL);
                        close(left->fds[i]);
                        left->fds[i] = -1;
                        dropped++;
                }
        }
        for (uint32_t i = 0; i < takeover->sessions_count; i++) {
                struct left_session *left = &takeover->sessions[i];

                if (!left->session) {
                        keeper_link_drop(daemon->keeper, KEEPER_SESSION, left->record->number, NULL,
                                         NULL);
                        keeper_link_drop(daemon->keeper, KEEPER_PIDFD, left->record->number, NULL,
                                         NULL);
                        continue;
                }
                if (left->session->fd < 0) {
                        session_close(left->session, "its connection did not outlive the restart");
                        continue;
                }
                finish_undo(left->session);
                session_resume(left->session);
        }
        /* Scrubs what was being scrubbed, and fills the pool. */
        list_for_each(node, &daemon->devices) device_wake(list_entry(node, struct device, link));
        log_at(takeover->log,
               takeover->frames_released || takeover->frames_lost || takeover->sessions_lost
                       ? LOG_LEVEL_WARNING
                       : LOG_LEVEL_INFO,
               "taken over from the last daemon", LOG_U64("generation", daemon->generation),
               LOG_U64("sessions", daemon->sessions_count),
               LOG_U64("frames", takeover->frames_back), LOG_U64("dropped", dropped),
               LOG_U64("frames_released", takeover->frames_released),
               LOG_U64("frames_lost", takeover->frames_lost),
               LOG_U64("sessions_lost", takeover->sessions_lost),
               LOG_U64("us", (wire_now_ns() - takeover->started_ns) / 1000));
}
