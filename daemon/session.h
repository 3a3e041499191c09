/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: one connection of one process, for one device.
 *
 * A session is closed when its connection ends, when it breaks the protocol, or when its process
 * ends. Closing takes effect at once: the socket is gone, its objects too. Frames that it held are
 * dirty if the process is dead, else draining until the pidfd says so; until then the struct stays
 * in the daemon's list. Freeing is left to the reaper, so a session may be closed from anywhere.
 */
#ifndef GPUMEMD_SESSION_H
#define GPUMEMD_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include <gpumem/protocol.h>

#include "daemon/frame.h"
#include "daemon/grant.h"
#include "daemon/identity.h"
#include "daemon/list.h"
#include "daemon/object.h"

struct daemon;
struct device;
struct state_session;
struct tenant;
struct tenant_device;

/* Who connects and says nothing is closed after this. */
#define SESSION_HELLO_MS 5000

enum session_state {
        SESSION_NEW,      /* connected; HELLO has not been accepted; no device yet */
        SESSION_OPEN,     /* past HELLO */
        SESSION_DRAINING, /* closed; its process lives and may still map frames */
        SESSION_DEAD,     /* closed; in the daemon's list of the dead, for the reaper */
};

/* The one reply that the peer's queue had no room for. Frames in it are granted: only their
 * descriptors are still to be delivered. */
struct session_output {
        void *message; /* NULL: none */
        size_t length;
        int *fds; /* the frames', borrowed */
        size_t fds_count;
};

struct session {
        struct list link;        /* in the daemon's list; in its list of the dead */
        struct list device_link; /* in the device's list while open */
        struct daemon *daemon;
        uint64_t number;
        enum session_state state;

        struct tenant *tenant;           /* from accept on, until dead */
        bool counted;                    /* in tenant->sessions */
        struct device *device;           /* from HELLO on */
        struct tenant_device *allotment; /* the tenant's part on that device */
        struct identity identity;
        char name[GPUMEM_NAME_MAX]; /* what the engine calls itself; unchecked but well-formed */
        uint64_t connected_us;      /* CLOCK_REALTIME */

        int fd;
        sd_event_source *io, *exit, *hello_timer;
        uint32_t serial;  /* of the last request */
        bool outstanding; /* that request has no answer yet */
        struct session_output output;
        bool reclaim_pending, device_pending; /* events that the queue had no room for */
        uint64_t reclaim_bytes;

        struct object_table objects;
        uint64_t frames;            /* granted, all objects together */
        bool held;                  /* there were any, ever */
        struct frame_list draining; /* after closing */
        struct grant_wait wait;

        struct state_session *record; /* what the next daemon sees; NULL before HELLO */
        uint64_t ticket;              /* of the last committed request (state.h) */
        bool resumable;               /* the feature is in force */
        bool resumed;            /* it came from another daemon: duplicates are to be expected */
        bool resumed_pending;    /* EVENT_RESUMED is still to be sent, before anything else */
        uint32_t resumed_serial; /* and says this */

        uint32_t problems_logged; /* bit per kind: each is logged once a session */
};

/* Takes a connected socket. 0; negative errno: the socket is closed and there is no session. */
int session_new_consume_fd(struct daemon *daemon, int fd);

/* The session that a record describes, in another daemon's time. `fd` (taken; -1: the connection
 * did not outlive it) is its socket, `identity` its process (taken). It is open and holds no frames
 * yet; session_resume() or session_close() comes next. 0 or negative errno. */
int session_restore_consume_fd(struct session **out, struct daemon *daemon, struct device *device,
                               const struct state_session *old, int fd,
                               const struct identity *identity);

/* Tells the client, and serves it from now on. */
void session_resume(struct session *session);

/* Answers REPLAY: sends the committed reply once more. */
void session_replay(struct session *session);

/* Closes it; `why` is for the log. Idempotent. */
void session_close(struct session *session, const char *why);

/* Frees all that are dead. */
void session_reap(struct daemon *daemon);

/* Closes every session and frees it, whether its process lives or not: the end of the daemon. */
void session_close_all(struct daemon *daemon);

/* --- answers --- */

/* Sends the reply to the outstanding request; `message` has room for its header, which is filled
 * in. -ETOOMANYREFS: nothing was sent, the request is still outstanding. Otherwise 0: sent, queued,
 * or the session is closed. */
int session_reply(struct session *session, void *message, uint16_t type, size_t length,
                  const int *fds, size_t fds_count);

/* Answers the outstanding request with ERROR. `code` is an enum gpumem_error. */
__attribute__((format(printf, 3, 4))) void session_refuse(struct session *session, int code,
                                                          const char *format, ...);

/* Events: sent at once, or when the peer has room; of each kind the latest is enough. */
void session_send_reclaim(struct session *session, uint64_t bytes);
void session_send_device(struct session *session);

/* --- for request.c --- */

/* The peer broke the protocol: typed error, log (lossily), close. */
__attribute__((format(printf, 3, 4))) void
session_protocol_error(struct session *session, int problem, const char *format, ...);

#endif
