/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The debug check: everything that is counted twice is counted again and compared. Each list is
 * walked, so a frame in the wrong list, in two, or in none is found too.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/kept.h"
#include "daemon/session.h"
#include "daemon/tenant.h"

struct check {
        struct daemon *daemon;
        char *report;
        size_t size, length;
        int problems;
        struct device *device; /* the one that is looked at */
        uint8_t *seen;         /* [table.count]: how often a list led to this frame */
};

__attribute__((format(printf, 2, 0))) static void say(struct check *check, const char *format,
                                                      va_list arguments)
{
        int n;

        if (check->length + 1 >= check->size)
                return;
        n = vsnprintf(check->report + check->length, check->size - check->length, format,
                      arguments);
        if (n < 0)
                return;
        check->length += (size_t)n;
        if (check->length + 1 < check->size) {
                check->report[check->length++] = '\n';
                check->report[check->length] = '\0';
        } else {
                check->length = check->size - 1;
        }
}

__attribute__((format(printf, 2, 3))) static void problem(struct check *check, const char *format,
                                                          ...)
{
        va_list arguments;

        check->problems++;
        va_start(arguments, format);
        say(check, format, arguments);
        va_end(arguments);
}

__attribute__((format(printf, 2, 3))) static void note(struct check *check, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        say(check, format, arguments);
        va_end(arguments);
}

static void compare(struct check *check, const char *what, uint64_t counted, uint64_t kept)
{
        if (counted != kept)
                problem(check, "%s: %s: counted %" PRIu64 ", kept %" PRIu64,
                        check->device ? check->device->uuid_text : "daemon", what, counted, kept);
}

/* Walks a list whose frames must all be idle, in `state`, and belong to `owner`. */
static void walk(struct check *check, const char *name, const struct frame_list *list,
                 enum frame_state state, const void *owner, const struct account *account)
{
        const struct frame_table *table = &check->device->table;
        uint32_t number = list->first, previous = FRAME_NONE, count = 0;

        while (number != FRAME_NONE) {
                const struct frame *frame;

                if (number >= table->count || count >= table->count) {
                        problem(check, "%s: list %s is broken at frame %" PRIu32,
                                check->device->uuid_text, name, number);
                        return;
                }
                frame = &table->frames[number];
                if (check->seen[number]++ > 0)
                        problem(check, "frame %" PRIu32 " is in list %s and in another", number,
                                name);
                if (frame->state != state)
                        problem(check, "frame %" PRIu32 " in list %s is %s", number, name,
                                frame_state_name((enum frame_state)frame->state));
                if (frame->work != FRAME_IDLE)
                        problem(check, "frame %" PRIu32 " in list %s is at work %d", number, name,
                                frame->work);
                if (frame->previous != previous)
                        problem(check, "frame %" PRIu32 " in list %s has a wrong back link", number,
                                name);
                if ((state == FRAME_GRANTED ? (const void *)frame->object
                                            : (const void *)frame->tenant) != owner)
                        problem(check, "frame %" PRIu32 " in list %s points to another owner",
                                number, name);
                if (frame->charge.account != account ||
                    (account && frame->charge.bytes != table->frame_bytes))
                        problem(check, "frame %" PRIu32 " in list %s is charged wrongly", number,
                                name);
                if ((frame->fd >= 0) != (state != FRAME_FREE && state != FRAME_QUARANTINED) &&
                    state != FRAME_QUARANTINED)
                        problem(check, "frame %" PRIu32 " in list %s %s a descriptor", number, name,
                                frame->fd >= 0 ? "has" : "lacks");
                if (frame->marked)
                        problem(check, "frame %" PRIu32 " in list %s is marked", number, name);
                previous = number;
                number = frame->next;
                count++;
        }
        if (list->last != previous || list->count != count)
                problem(check, "%s: list %s: counted %" PRIu32 ", kept %" PRIu32,
                        check->device->uuid_text, name, count, list->count);
}

/* Open and closed sessions that have frames of this device. */
static void check_sessions(struct check *check)
{
        struct device *device = check->device;
        uint64_t waiting = 0, wanted = 0;
        uint32_t open = 0;

        list_for_each(node, &check->daemon->sessions)
        {
                struct session *session = list_entry(node, struct session, link);
                uint64_t frames = 0;
                uint32_t objects = 0;

                if (session->device != device)
                        continue;
                if (session->state == SESSION_OPEN)
                        open++;
                for (uint32_t i = 0; i < session->objects.capacity; i++) {
                        const struct object *object = session->objects.slots[i];

                        if (!object)
                                continue;
                        objects++;
                        if (object->session != session)
                                problem(check, "object %" PRIu64 " points to another session",
                                        object->id);
                        if (object->frames.count > object->frames_max)
                                problem(check, "object %" PRIu64 " holds more than its most",
                                        object->id);
                        walk(check, "granted", &object->frames, FRAME_GRANTED, object,
                             &session->tenant->account);
                        frames += object->frames.count;
                }
                walk(check, "draining", &session->draining, FRAME_DRAINING, session->allotment,
                     &session->tenant->account);
                compare(check, "frames of a session", frames, session->frames);
                compare(check, "objects of a session", objects, session->objects.count);
                if (grant_is_queued(&session->wait)) {
                        waiting++;
                        if (!session->wait.held)
                                wanted += session->wait.frames;
                        if (session->state != SESSION_OPEN ||
                            (!session->wait.away && !session->outstanding))
                                problem(check, "session %" PRIu64 " waits without a request",
                                        session->number);
                }
        }
        compare(check, "open sessions", open, device->sessions_count);
        compare(check, "waiting grants", waiting,
                (uint64_t)device->queue.count + device->queue.held_count);
        compare(check, "frames waited for", wanted, device->queue.frames);
}

static void check_tenants(struct check *check)
{
        struct device *device = check->device;
        uint64_t scrubbing = 0, releasing = 0, granted = 0, draining = 0, wanted = 0, held = 0,
                 withheld = 0;

        list_for_each(node, &device->tenants)
        {
                struct tenant_device *part = list_entry(node, struct tenant_device, device_link);

                walk(check, "dirty", &part->dirty, FRAME_DIRTY, part, &part->tenant->account);
                walk(check, "ready", &part->ready, FRAME_READY, part, &part->tenant->account);
                scrubbing += part->scrubbing;
                releasing += part->releasing;
                granted += part->granted;
                draining += part->draining;
                wanted += part->wanted;
                held += part->held;
                withheld += part->withheld.bytes;
        }
        compare(check, "frames being scrubbed", scrubbing, device->table.works[FRAME_SCRUBBING]);
        compare(check, "frames being released", releasing, device->table.works[FRAME_RELEASING]);
        compare(check, "granted frames of tenants", granted, device->table.states[FRAME_GRANTED]);
        compare(check, "draining frames of tenants", draining,
                device->table.states[FRAME_DRAINING]);
        compare(check, "frames waited for by tenants", wanted, device->queue.frames);
        compare(check, "withheld bytes of tenants", withheld, device->withheld.bytes);
        compare(check, "grants held back by limits", held, device->queue.held_count);
}

static void check_frames(struct check *check)
{
        const struct frame_table *table = &check->device->table;
        uint32_t states[FRAME_STATE_COUNT] = {0}, works[FRAME_WORK_COUNT] = {0}, sum = 0;

        for (uint32_t i = 0; i < table->count; i++) {
                const struct frame *frame = &table->frames[i];

                if (frame->state >= FRAME_STATE_COUNT || frame->work >= FRAME_WORK_COUNT) {
                        problem(check, "frame %" PRIu32 " is in no state", i);
                        continue;
                }
                states[frame->state]++;
                works[frame->work]++;
                if (check->seen[i] != (frame->work == FRAME_IDLE))
                        problem(check, "frame %" PRIu32 " (%s, work %d) is in %d lists", i,
                                frame_state_name((enum frame_state)frame->state), frame->work,
                                check->seen[i]);
        }
        for (unsigned i = 0; i < FRAME_STATE_COUNT; i++) {
                compare(check, frame_state_name((enum frame_state)i), states[i], table->states[i]);
                sum += table->states[i];
        }
        for (unsigned i = 0; i < FRAME_WORK_COUNT; i++)
                compare(check, "frames at work", works[i], table->works[i]);
        compare(check, "all states together", sum, table->count);
}

static void check_device(struct check *check, struct device *device)
{
        const uint32_t *states = device->table.states;
        int before = check->problems;

        check->device = device;
        check->seen = calloc(device->table.count, 1);
        if (!check->seen) {
                problem(check, "%s: no host memory for the check", device->uuid_text);
                check->device = NULL;
                return;
        }
        walk(check, "free", &device->free, FRAME_FREE, NULL, NULL);
        walk(check, "fresh", &device->fresh, FRAME_FRESH, NULL, NULL);
        walk(check, "quarantined", &device->quarantined, FRAME_QUARANTINED, NULL, NULL);
        check_sessions(check);
        check_tenants(check);
        check_frames(check);
        if (check->problems == before)
                note(check,
                     "%s: %" PRIu32 " frames = free %" PRIu32 " + fresh %" PRIu32
                     " + granted %" PRIu32 " + dirty %" PRIu32 " + ready %" PRIu32
                     " + draining %" PRIu32 " + quarantined %" PRIu32,
                     device->uuid_text, device->table.count, states[FRAME_FREE],
                     states[FRAME_FRESH], states[FRAME_GRANTED], states[FRAME_DIRTY],
                     states[FRAME_READY], states[FRAME_DRAINING], states[FRAME_QUARANTINED]);
        free(check->seen);
        check->seen = NULL;
        check->device = NULL;
}

/* Receipts against accounts, sessions against tenants. */
static void check_accounts(struct check *check)
{
        uint32_t sessions = 0, of_tenants = 0, seen = 0;

        list_for_each(node, &check->daemon->sessions) sessions++;
        compare(check, "sessions", sessions, check->daemon->sessions_count);
        list_for_each(node, &check->daemon->tenants)
        {
                struct tenant *tenant = list_entry(node, struct tenant, link);
                uint64_t bytes = 0, charges = 0;

                list_for_each(other, &check->daemon->devices)
                {
                        const struct device *device = list_entry(other, struct device, link);

                        for (uint32_t i = 0; i < device->table.count; i++) {
                                const struct charge *charge = &device->table.frames[i].charge;

                                if (charge->account != &tenant->account)
                                        continue;
                                bytes += charge->bytes;
                                charges++;
                        }
                }
                list_for_each(other, &tenant->devices)
                {
                        const struct charge *charge =
                                &list_entry(other, struct tenant_device, tenant_link)->withheld;

                        bytes += charge->bytes;
                        charges += charge->account != NULL;
                }
                if (bytes != tenant->account.bytes || charges != tenant->account.charges)
                        problem(check,
                                "tenant %s: receipts say %" PRIu64 " bytes, the account %" PRIu64,
                                tenant->name, bytes, tenant->account.bytes);
                of_tenants += tenant->sessions;
                seen = 0;
                list_for_each(other, &check->daemon->sessions) seen +=
                        list_entry(other, struct session, link)->tenant == tenant;
                if (seen != tenant->sessions)
                        problem(check, "tenant %s: %" PRIu32 " sessions counted, %" PRIu32 " kept",
                                tenant->name, seen, tenant->sessions);
        }
        compare(check, "sessions of tenants", of_tenants, sessions);
}

int daemon_check(struct daemon *daemon, char *report, size_t size)
{
        struct check check = {.daemon = daemon, .report = report, .size = size};

        if (size > 0)
                report[0] = '\0';
        list_for_each(node, &daemon->devices)
                check_device(&check, list_entry(node, struct device, link));
        check_accounts(&check);
        compare(&check, "records that differ from what they stand for", kept_check(daemon), 0);
        return check.problems;
}
