/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the service manager is told (sd_notify(3)): READY=1 when memory is ready, STATUS= with a
 * line for `systemctl status`, WATCHDOG=1 as long as the loop turns, STOPPING=1. Without a manager
 * (NOTIFY_SOCKET is not set) nothing here does anything.
 */
#ifndef GPUMEMD_NOTIFY_H
#define GPUMEMD_NOTIFY_H

struct daemon;
struct notify;

/* The status line is looked at after each turn of the loop in which something happened, and sent
 * when it has changed, at most once in this time. An idle daemon sends nothing. */
#define NOTIFY_STATUS_INTERVAL_US UINT64_C(1000000)

/*
 * Joins the daemon's loop. *out is NULL if nobody wants to be told. The watchdog, if the manager
 * asked for one (WATCHDOG_USEC), is served by the loop from now on. 0 or negative errno.
 */
int notify_new(struct notify **out, struct daemon *daemon);

/* Leaves the loop. Returns NULL; NULL is fine. */
struct notify *notify_free(struct notify *notify);

/* READY=1, with the status. NULL is fine, also below. */
void notify_ready(struct notify *notify);

/* STOPPING=1; `why` becomes part of the status. */
void notify_stopping(struct notify *notify, const char *why);

#endif
