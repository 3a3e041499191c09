/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "daemon/crash.h"
#include "daemon/daemon.h"
#include "daemon/filler.h"
#include "daemon/frame_pool.h"
#include "daemon/grant.h"
#include "daemon/reclaim.h"
#include "daemon/session.h"
#include "daemon/text.h"
#include "libclient/wire/wire.h"

#define NS_PER_MS UINT64_C(1000000)

void grant_queue_init(struct grant_queue *queue)
{
        *queue = (struct grant_queue){0};
        list_init(&queue->waits);
        list_init(&queue->held);
}

void grant_wait_init(struct grant_wait *wait, struct session *session)
{
        *wait = (struct grant_wait){.session = session};
        list_init(&wait->link);
}

static void earliest(const struct list *waits, uint64_t *next)
{
        uint64_t now = wire_now_ns();

        list_for_each(node, waits)
        {
                const struct grant_wait *wait = list_entry(node, struct grant_wait, link);

                if (wait->deadline_ns < *next)
                        *next = wait->deadline_ns;
                if (wait->reserves_until_ns > now && wait->reserves_until_ns < *next)
                        *next = wait->reserves_until_ns;
        }
}

static bool reserves(const struct grant_wait *wait)
{
        return wait->reserves_until_ns > wire_now_ns();
}

/* What is kept for waits in the queue, and who is the first of them (may be NULL). */
static uint64_t reserved_frames(const struct device *device, const struct grant_wait **first)
{
        uint64_t frames = 0;

        *first = NULL;
        list_for_each(node, &device->queue.waits)
        {
                const struct grant_wait *wait = list_entry(node, struct grant_wait, link);

                if (!reserves(wait))
                        continue;
                if (!*first)
                        *first = wait;
                frames += wait->frames;
        }
        return frames;
}

/* Arms the timer for what is due next: the earliest deadline, or asking for memory again. */
static void arm_timer(struct device *device)
{
        uint64_t next = UINT64_MAX;

        if (device->queue.count + device->queue.held_count == 0) {
                sd_event_source_set_enabled(device->queue.timer, SD_EVENT_OFF);
                return;
        }
        earliest(&device->queue.waits, &next);
        earliest(&device->queue.held, &next);
        if (device->queue.count > 0 && device->reclaim_next_ns > wire_now_ns() &&
            device->reclaim_next_ns < next)
                next = device->reclaim_next_ns;
        if (device->queue.held_count > 0 && wire_now_ns() + RECLAIM_INTERVAL_MS * NS_PER_MS < next)
                next = wire_now_ns() + RECLAIM_INTERVAL_MS * NS_PER_MS;
        sd_event_source_set_time(device->queue.timer, next / 1000 + 1);
        sd_event_source_set_enabled(device->queue.timer, SD_EVENT_ONESHOT);
}

/* Keeps the order of asking: one that its limit held back does not go to the end for that. */
static void insert(struct list *waits, struct grant_wait *wait)
{
        struct list *after = waits->previous;

        while (after != waits &&
               list_entry(after, struct grant_wait, link)->asked_ns > wait->asked_ns)
                after = after->previous;
        list_append(after->next, &wait->link);
}

static void enqueue(struct device *device, struct grant_wait *wait, bool held)
{
        wait->held = held;
        insert(held ? &device->queue.held : &device->queue.waits, wait);
        if (held) {
                device->queue.held_count++;
                wait->session->allotment->held++;
        } else {
                device->queue.count++;
                device->queue.frames += wait->frames;
                wait->session->allotment->wanted += wait->frames;
        }
}

static void dequeue(struct device *device, struct grant_wait *wait)
{
        list_unlink(&wait->link);
        if (wait->held) {
                device->queue.held_count--;
                wait->session->allotment->held--;
        } else {
                device->queue.count--;
                device->queue.frames -= wait->frames;
                wait->session->allotment->wanted -= wait->frames;
        }
}

/* Does the tenant's limit let it have these, too, once all before it have got theirs? */
static bool limit_lets(const struct tenant_device *tenant, uint32_t frames)
{
        uint64_t may_hold = tenant_device_may_hold(tenant);

        return may_hold >= tenant->wanted && may_hold - tenant->wanted >= frames;
}

void grant_cancel(struct device *device, struct grant_wait *wait)
{
        if (!grant_is_queued(wait))
                return;
        wait->away = false;
        dequeue(device, wait);
        device_wake(device);
}

/* Grants what frame_pool_has() and sends it. */
static void grant_now(struct session *session, struct object *object, uint32_t frames)
{
        struct {
                struct gpumem_message_grant_reply reply;
                uint64_t ids[GPUMEM_MESSAGE_FDS_MAX];
        } message;
        struct device *device = session->device;
        int fds[GPUMEM_MESSAGE_FDS_MAX];
        uint32_t ready;
        int r;

        ready = frame_pool_grant(device, session->allotment, object, frames, message.ids, fds);
        crash_point(session->daemon, "grant-done");
        message.reply.object = object->id;
        message.reply.frames = frames;
        message.reply.reserved = 0;
        r = session_reply(session, &message, GPUMEM_MESSAGE_GRANT_REPLY,
                          sizeof(message.reply) + frames * sizeof(message.ids[0]), fds, frames);
        if (r == 0) {
                device->grants++;
                device->granted_frames += frames;
                session->wait.reserve_next_ns = 0;
                return;
        }
        /* The kernel limits descriptors in flight per user. */
        crash_point(session->daemon, "grant-undo");
        frame_pool_undo(device, session->allotment, object, message.ids, frames, ready);
        device->refusals++;
        session_refuse(session, GPUMEM_E_AGAIN,
                       "too many descriptors are on their way to clients that do not read them");
}

/* It cannot be had without waiting, and waiting is not wanted or over. */
static void refuse_short(struct session *session, uint32_t frames)
{
        struct device *device = session->device;
        char bytes[TEXT_BYTES_MAX], holders[GPUMEM_TEXT_MAX - 160];
        const struct grant_wait *first;
        uint64_t reserved = reserved_frames(device, &first);

        device->refusals++;
        text_bytes(bytes, frames * device->table.frame_bytes);
        if (first && first->session != session && frames <= frame_pool_supply(device)) {
                session_refuse(session, GPUMEM_E_AGAIN,
                               "%" PRIu32 " frames (%s) cannot be had now: %" PRIu64
                               " frames are kept for those who asked before, first of all engine "
                               "'%s' (pid %d), which waits for %" PRIu32,
                               frames, bytes, reserved, first->session->name,
                               (int)first->session->identity.pid, first->frames);
                return;
        }
        if (device->backoff_until_ns != 0 && !device->exhausted) {
                session_refuse(session, GPUMEM_E_DEVICE,
                               "%" PRIu32 " frames (%s) cannot be made now: %s", frames, bytes,
                               device->trouble);
                return;
        }
        reclaim_describe_holders(device, holders, sizeof(holders));
        session_refuse(session, GPUMEM_E_AGAIN, "%" PRIu32 " frames (%s) cannot be had now%s; %s",
                       frames, bytes,
                       device->exhausted ? " (memory is used outside the daemon)" : "", holders);
}

static void refuse_limit(struct session *session, uint32_t frames, int code, const char *what)
{
        const struct tenant_device *tenant = session->allotment;
        uint64_t frame_bytes = session->device->table.frame_bytes;
        char wanted[TEXT_BYTES_MAX], max[TEXT_BYTES_MAX], charged[TEXT_BYTES_MAX];
        char withheld[TEXT_BYTES_MAX];

        text_bytes(wanted, frames * frame_bytes);
        text_bytes(max, tenant->tenant->max_bytes);
        text_bytes(charged, tenant_device_charged(tenant) * frame_bytes);
        text_bytes(withheld, tenant->withheld.bytes);
        session_refuse(
                session, code,
                "%s%" PRIu32 " frames (%s): tenant '%s' may have %s on this device (max) and "
                "is charged %s%s%s%s",
                what, frames, wanted, tenant->tenant->name, max, charged,
                tenant->withheld.bytes ? ", of which " : "", tenant->withheld.bytes ? withheld : "",
                tenant->withheld.bytes ? " were returned and are still mapped by somebody" : "");
}

static void refuse_lost(struct session *session)
{
        session->device->refusals++;
        session_refuse(session, GPUMEM_E_DEVICE, "the device is lost: %s",
                       session->device->trouble);
}

static uint32_t usable_frames(const struct device *device)
{
        return device->table.count - device->table.states[FRAME_QUARANTINED];
}

static void refuse_never(struct session *session, uint32_t frames)
{
        session->device->refusals++;
        session_refuse(session, GPUMEM_E_NO_MEMORY,
                       "the device has %" PRIu32 " frames; %" PRIu32 " can never be had",
                       usable_frames(session->device), frames);
}

static void refuse_late(struct session *session, const struct grant_wait *wait)
{
        struct device *device = session->device;
        char bytes[TEXT_BYTES_MAX], holders[GPUMEM_TEXT_MAX - 160];

        device->timeouts++;
        if (wait->held) {
                char waited[64];

                snprintf(waited, sizeof(waited), "waited %" PRIu64 " ms for ",
                         (wire_now_ns() - wait->asked_ns) / NS_PER_MS);
                refuse_limit(session, wait->frames, GPUMEM_E_TIMEOUT, waited);
                return;
        }
        text_bytes(bytes, wait->frames * device->table.frame_bytes);
        reclaim_describe_holders(device, holders, sizeof(holders));
        session_refuse(session, GPUMEM_E_TIMEOUT,
                       "waited %" PRIu64 " ms for %" PRIu32 " frames (%s); %s",
                       (wire_now_ns() - wait->asked_ns) / NS_PER_MS, wait->frames, bytes, holders);
}

void grant_request(struct session *session, uint64_t id, uint32_t frames, uint32_t wait_ms)
{
        struct device *device = session->device;
        struct object *object = object_find(&session->objects, id);
        struct grant_wait *wait = &session->wait;
        uint64_t now = wire_now_ns(), asked_ns = now, reserves_until_ns = 0, supply, reserved;
        const struct grant_wait *first;
        bool held;

        if (grant_is_queued(wait)) { /* a place was kept */
                if (wait->object == object && wait->frames == frames && wait_ms > 0) {
                        asked_ns = wait->asked_ns;
                        reserves_until_ns = wait->reserves_until_ns;
                }
                grant_cancel(device, wait);
        }
        if (asked_ns == now)
                reserves_until_ns =
                        now >= wait->reserve_next_ns ? now + GRANT_RESERVE_MS * NS_PER_MS : 0;
        if (!object) {
                session_refuse(session, GPUMEM_E_NOT_FOUND, "no object %" PRIu64, id);
                return;
        }
        if (frames % object->unit_frames != 0 || wait_ms > GPUMEM_GRANT_WAIT_MAX_MS) {
                session_refuse(session, GPUMEM_E_INVALID,
                               "%" PRIu32 " frames, wait %" PRIu32 " ms: frames must be a multiple "
                               "of the object's unit of %" PRIu32 ", the wait at most %d ms",
                               frames, wait_ms, object->unit_frames, GPUMEM_GRANT_WAIT_MAX_MS);
                return;
        }
        if (frames > object->frames_max - object->frames.count) {
                session_refuse(session, GPUMEM_E_NO_MEMORY,
                               "the object holds %" PRIu32 " frames and may have %" PRIu64
                               "; %" PRIu32 " more are too many",
                               object->frames.count, object->frames_max, frames);
                return;
        }
        if (device->state == DEVICE_LOST) {
                refuse_lost(session);
                return;
        }
        if (frames > usable_frames(device)) {
                refuse_never(session, frames);
                return;
        }
        if (frames > tenant_device_max(session->allotment)) {
                device->refusals++;
                refuse_limit(session, frames, GPUMEM_E_NO_MEMORY, "can never have ");
                return;
        }
        held = session->allotment->held > 0 || !limit_lets(session->allotment, frames);
        /* One that asked before others comes before what is kept for them: the queue decides. */
        reserved = asked_ns == now ? reserved_frames(device, &first) : 0;
        if (!held && reserved == 0 && asked_ns == now &&
            frame_pool_has(device, session->allotment, frames)) {
                grant_now(session, object, frames);
                filler_run(device);
                return;
        }

        supply = frame_pool_supply(device);
        if (held) {
                reclaim_ask_tenant(session->allotment, session, frames);
                if (session->state != SESSION_OPEN)
                        return;
                if (wait_ms == 0) {
                        device->refusals++;
                        refuse_limit(session, frames, GPUMEM_E_AGAIN, "cannot have ");
                        return;
                }
        } else if (reserved + frames > supply) {
                reclaim_ask(device, session, reserved + frames - supply);
                if (session->state != SESSION_OPEN)
                        return;
                if (wait_ms == 0) {
                        refuse_short(session, frames);
                        return;
                }
        }
        wait->object = object;
        wait->frames = frames;
        wait->wait_ms = wait_ms;
        wait->asked_ns = asked_ns;
        wait->deadline_ns = now + (wait_ms > 0 ? wait_ms : (uint64_t)GRANT_WORK_MS) * NS_PER_MS;
        wait->reserves_until_ns = reserves_until_ns;
        if (reserves_until_ns != 0)
                wait->reserve_next_ns = asked_ns + GRANT_RESERVE_PAUSE_MS * NS_PER_MS;
        enqueue(device, wait, held);
        if (asked_ns != now)
                grant_run(device);
        filler_run(device);
        arm_timer(device);
}

/* Refuses those who did not want to wait for others and would now have to (memory that was to be
 * made could not be). */
static void refuse_impossible(struct device *device)
{
        uint64_t supply = frame_pool_supply(device), ahead = 0;

        list_for_each_safe(node, &device->queue.waits)
        {
                struct grant_wait *wait = list_entry(node, struct grant_wait, link);

                if (device->state == DEVICE_LOST) {
                        bool away = wait->away;

                        grant_cancel(device, wait);
                        if (!away)
                                refuse_lost(wait->session);
                } else if (wait->frames > usable_frames(device)) { /* some failed meanwhile */
                        bool away = wait->away;

                        grant_cancel(device, wait);
                        if (!away)
                                refuse_never(wait->session, wait->frames);
                } else if (wait->wait_ms == 0 && ahead + wait->frames > supply) {
                        dequeue(device, wait);
                        refuse_short(wait->session, wait->frames);
                } else if (reserves(wait)) {
                        ahead += wait->frames;
                }
        }
        if (device->state != DEVICE_LOST)
                return;
        list_for_each_safe(node, &device->queue.held)
        {
                struct grant_wait *wait = list_entry(node, struct grant_wait, link);

                dequeue(device, wait);
                refuse_lost(wait->session);
        }
}

/* Those whom their limit lets through now queue for frames; of one tenant none passes another. */
static void let_through(struct device *device)
{
        list_for_each(node, &device->tenants)
        {
                struct tenant_device *tenant = list_entry(node, struct tenant_device, device_link);

                tenant->stuck = false;
        }
        list_for_each_safe(node, &device->queue.held)
        {
                struct grant_wait *wait = list_entry(node, struct grant_wait, link);
                struct session *session = wait->session;
                struct tenant_device *tenant = session->allotment;

                if (wait->frames > tenant_device_max(tenant)) { /* it was lowered */
                        dequeue(device, wait);
                        device->refusals++;
                        refuse_limit(session, wait->frames, GPUMEM_E_NO_MEMORY, "can never have ");
                } else if (!tenant->stuck && limit_lets(tenant, wait->frames)) {
                        dequeue(device, wait);
                        enqueue(device, wait, false);
                } else {
                        tenant->stuck = true;
                }
        }
}

/* The first in the queue is held back by its limit, which was lowered, or has more withheld. */
static void hold_back(struct device *device, struct grant_wait *wait)
{
        struct session *session = wait->session;

        dequeue(device, wait);
        if (wait->wait_ms > 0 && wait->frames <= tenant_device_max(session->allotment)) {
                enqueue(device, wait, true);
                return;
        }
        device->refusals++;
        refuse_limit(session, wait->frames, GPUMEM_E_AGAIN, "cannot have ");
}

void grant_run(struct device *device)
{
        uint32_t before = device->queue.count + device->queue.held_count;
        bool moved = false;

        if (device->queue.held_count > 0)
                let_through(device);
        list_for_each_safe(node, &device->queue.waits)
        {
                struct grant_wait *wait = list_entry(node, struct grant_wait, link);
                struct session *session = wait->session;

                if (device->state == DEVICE_LOST)
                        break;
                if (wait->away) {
                        if (reserves(wait))
                                break;
                        continue;
                }
                if (wait->frames > tenant_device_may_hold(session->allotment)) {
                        hold_back(device, wait);
                        moved = true;
                        continue;
                }
                if (!frame_pool_has(device, session->allotment, wait->frames)) {
                        if (reserves(wait))
                                break;
                        continue;
                }
                dequeue(device, wait);
                grant_now(session, wait->object, wait->frames);
        }
        if (device->queue.count + device->queue.held_count > 0)
                refuse_impossible(device);
        if (moved || device->queue.count + device->queue.held_count != before)
                arm_timer(device);
}

/* Answers those whose deadline has passed. */
static void refuse_expired(struct device *device)
{
        uint64_t now = wire_now_ns(), supply = frame_pool_supply(device), ahead = 0;

        list_for_each_safe(node, &device->queue.waits)
        {
                struct grant_wait *wait = list_entry(node, struct grant_wait, link);
                uint64_t work_ns = wait->asked_ns + GRANT_WORK_MS * NS_PER_MS;

                if (wait->deadline_ns > now) {
                        if (reserves(wait))
                                ahead += wait->frames;
                        continue;
                }
                if (wait->away) {
                        grant_cancel(device, wait);
                        continue;
                }
                /* Nobody has to return anything: the daemon is at it and will soon be done (if its
                 * last try to make memory did not fail). */
                if (work_ns > now && ahead + wait->frames <= supply && device->backoff_ns == 0) {
                        wait->deadline_ns = work_ns;
                        ahead += wait->frames;
                        continue;
                }
                if (wait->wait_ms == 0) {
                        dequeue(device, wait);
                        refuse_short(wait->session, wait->frames);
                        continue;
                }
                wait->away = true;
                wait->deadline_ns = now + GRANT_PLACE_MS * NS_PER_MS;
                refuse_late(wait->session, wait);
        }
        list_for_each_safe(node, &device->queue.held)
        {
                struct grant_wait *wait = list_entry(node, struct grant_wait, link);

                if (wait->deadline_ns > now)
                        continue;
                dequeue(device, wait);
                refuse_late(wait->session, wait);
        }
}

static int on_timer(sd_event_source *source, uint64_t now_us, void *userdata)
{
        struct device *device = userdata;
        uint64_t supply;

        (void)source;
        (void)now_us;
        refuse_expired(device);
        supply = frame_pool_supply(device);
        if (device->queue.frames > supply)
                reclaim_ask(device, NULL, device->queue.frames - supply);
        list_for_each_safe(node, &device->tenants)
        {
                struct tenant_device *tenant = list_entry(node, struct tenant_device, device_link);

                if (tenant->held > 0)
                        reclaim_ask_tenant(tenant, NULL, tenant->held);
        }
        grant_run(device);
        filler_run(device);
        arm_timer(device);
        return 0;
}

int grant_queue_start(struct device *device)
{
        int r = sd_event_add_time(device->daemon->event, &device->queue.timer, CLOCK_MONOTONIC, 0,
                                  1000, on_timer, device);

        if (r < 0)
                return r;
        return sd_event_source_set_enabled(device->queue.timer, SD_EVENT_OFF);
}

void grant_queue_stop(struct device *device)
{
        device->queue.timer = sd_event_source_disable_unref(device->queue.timer);
}
