/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>

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
}

void grant_wait_init(struct grant_wait *wait, struct session *session)
{
        *wait = (struct grant_wait){.session = session};
        list_init(&wait->link);
}

/* Arms the timer for what is due next: the earliest deadline, or asking for memory again. */
static void arm_timer(struct device *device)
{
        uint64_t next = UINT64_MAX;

        if (device->queue.count == 0) {
                sd_event_source_set_enabled(device->queue.timer, SD_EVENT_OFF);
                return;
        }
        list_for_each(node, &device->queue.waits)
        {
                const struct grant_wait *wait = list_entry(node, struct grant_wait, link);

                if (wait->deadline_ns < next)
                        next = wait->deadline_ns;
        }
        if (device->reclaim_next_ns > wire_now_ns() && device->reclaim_next_ns < next)
                next = device->reclaim_next_ns;
        sd_event_source_set_time(device->queue.timer, next / 1000 + 1);
        sd_event_source_set_enabled(device->queue.timer, SD_EVENT_ONESHOT);
}

static void enqueue(struct device *device, struct grant_wait *wait)
{
        list_append(&device->queue.waits, &wait->link);
        device->queue.count++;
        device->queue.frames += wait->frames;
        wait->session->allotment->wanted += wait->frames;
}

static void dequeue(struct device *device, struct grant_wait *wait)
{
        list_unlink(&wait->link);
        device->queue.count--;
        device->queue.frames -= wait->frames;
        wait->session->allotment->wanted -= wait->frames;
}

void grant_cancel(struct device *device, struct grant_wait *wait)
{
        if (!grant_is_waiting(wait))
                return;
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

        device->refusals++;
        text_bytes(bytes, frames * device->table.frame_bytes);
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

static void refuse_lost(struct session *session)
{
        session->device->refusals++;
        session_refuse(session, GPUMEM_E_DEVICE, "the device is lost: %s",
                       session->device->trouble);
}

static void refuse_late(struct session *session, const struct grant_wait *wait)
{
        struct device *device = session->device;
        char bytes[TEXT_BYTES_MAX], holders[GPUMEM_TEXT_MAX - 160];

        device->timeouts++;
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
        uint32_t usable = device->table.count - device->table.states[FRAME_QUARANTINED];
        uint64_t supply, wanted = device->queue.frames + frames;

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
        if (frames > usable) {
                session_refuse(session, GPUMEM_E_NO_MEMORY,
                               "the device has %" PRIu32 " frames; %" PRIu32 " can never be had",
                               usable, frames);
                return;
        }
        if (device->queue.count == 0 && frame_pool_has(device, session->allotment, frames)) {
                grant_now(session, object, frames);
                filler_run(device);
                return;
        }

        supply = frame_pool_supply(device);
        if (wanted > supply) {
                reclaim_ask(device, session, wanted - supply);
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
        wait->asked_ns = wire_now_ns();
        wait->deadline_ns =
                wait->asked_ns + (wait_ms > 0 ? wait_ms : (uint64_t)GRANT_WORK_MS) * NS_PER_MS;
        enqueue(device, wait);
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
                        dequeue(device, wait);
                        refuse_lost(wait->session);
                } else if (wait->wait_ms == 0 && ahead + wait->frames > supply) {
                        dequeue(device, wait);
                        refuse_short(wait->session, wait->frames);
                } else {
                        ahead += wait->frames;
                }
        }
}

void grant_run(struct device *device)
{
        uint32_t before = device->queue.count;

        while (device->queue.count > 0) {
                struct grant_wait *wait =
                        list_entry(device->queue.waits.next, struct grant_wait, link);
                struct session *session = wait->session;

                if (device->state == DEVICE_LOST ||
                    !frame_pool_has(device, session->allotment, wait->frames))
                        break;
                dequeue(device, wait);
                grant_now(session, wait->object, wait->frames);
        }
        if (device->queue.count > 0)
                refuse_impossible(device);
        if (device->queue.count != before)
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
                        ahead += wait->frames;
                        continue;
                }
                /* Nobody has to return anything: the daemon is at it and will soon be done. */
                if (work_ns > now && ahead + wait->frames <= supply) {
                        wait->deadline_ns = work_ns;
                        ahead += wait->frames;
                        continue;
                }
                dequeue(device, wait);
                if (wait->wait_ms > 0)
                        refuse_late(wait->session, wait);
                else
                        refuse_short(wait->session, wait->frames);
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
