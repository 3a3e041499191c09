/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/notify.h"

struct notify {
        struct daemon *daemon;
        sd_event_source *post;  /* after each turn */
        sd_event_source *timer; /* armed while a change waits for its time */
        char sent[256];         /* the last status */
        bool waiting;           /* the timer is armed */
        bool stopping;
};

static void format_status(const struct notify *notify, char *text, size_t size)
{
        const struct daemon *daemon = notify->daemon;
        uint64_t frames = 0, granted = 0, fresh = 0, quarantined = 0;
        uint32_t broken = 0;
        size_t length;

        list_for_each(node, &daemon->devices)
        {
                const struct device *device = list_entry(node, struct device, link);

                frames += device->table.count;
                granted += device->table.states[FRAME_GRANTED];
                fresh += device->table.states[FRAME_FRESH];
                quarantined += device->table.states[FRAME_QUARANTINED];
                broken += device->state != DEVICE_OK;
        }
        length = (size_t)snprintf(text, size,
                                  "%s%" PRIu32 " devices, %" PRIu64 " frames (%" PRIu64
                                  " granted, %" PRIu64 " fresh), %" PRIu32 " sessions",
                                  daemon->ready ? "" : "preparing memory: ", daemon->devices_count,
                                  frames, granted, fresh, daemon->sessions_count);
        if (length < size && (broken > 0 || quarantined > 0))
                snprintf(text + length, size - length,
                         "; %" PRIu32 " devices in trouble, %" PRIu64 " frames quarantined", broken,
                         quarantined);
}

static void send_status(struct notify *notify, const char *assignments)
{
        format_status(notify, notify->sent, sizeof(notify->sent));
        sd_notifyf(false, "%sSTATUS=%s", assignments, notify->sent);
        /* The next change waits. */
        if (sd_event_source_set_time_relative(notify->timer, NOTIFY_STATUS_INTERVAL_US) >= 0 &&
            sd_event_source_set_enabled(notify->timer, SD_EVENT_ONESHOT) >= 0)
                notify->waiting = true;
}

static bool has_changed(const struct notify *notify)
{
        char now[sizeof(notify->sent)];

        format_status(notify, now, sizeof(now));
        return strcmp(now, notify->sent) != 0;
}

static int on_timer(sd_event_source *source, uint64_t now_us, void *userdata)
{
        struct notify *notify = userdata;

        (void)source;
        (void)now_us;
        notify->waiting = false;
        if (!notify->stopping && has_changed(notify))
                send_status(notify, "");
        return 0;
}

static int on_post(sd_event_source *source, void *userdata)
{
        struct notify *notify = userdata;

        (void)source;
        if (!notify->waiting && !notify->stopping && has_changed(notify))
                send_status(notify, "");
        return 0;
}

int notify_new(struct notify **out, struct daemon *daemon)
{
        struct notify *notify;
        int r;

        *out = NULL;
        if (!getenv("NOTIFY_SOCKET"))
                return 0;
        notify = calloc(1, sizeof(*notify));
        if (!notify)
                return -ENOMEM;
        notify->daemon = daemon;
        r = sd_event_add_post(daemon->event, &notify->post, on_post, notify);
        if (r >= 0) /* clients first */
                r = sd_event_source_set_priority(notify->post, SD_EVENT_PRIORITY_IDLE);
        if (r >= 0)
                r = sd_event_add_time_relative(daemon->event, &notify->timer, CLOCK_MONOTONIC, 0,
                                               NOTIFY_STATUS_INTERVAL_US / 10, on_timer, notify);
        if (r >= 0)
                r = sd_event_source_set_enabled(notify->timer, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_set_watchdog(daemon->event, true);
        if (r < 0) {
                notify_free(notify);
                return r;
        }
        *out = notify;
        return 0;
}

struct notify *notify_free(struct notify *notify)
{
        if (!notify)
                return NULL;
        sd_event_source_disable_unref(notify->post);
        sd_event_source_disable_unref(notify->timer);
        free(notify);
        return NULL;
}

void notify_ready(struct notify *notify)
{
        if (notify)
                send_status(notify, "READY=1\n");
}

void notify_stopping(struct notify *notify, const char *why)
{
        if (!notify || notify->stopping)
                return;
        notify->stopping = true;
        sd_notifyf(false, "STOPPING=1\nSTATUS=stopping: %s", why);
}
