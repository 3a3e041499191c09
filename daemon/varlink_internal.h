/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the Varlink server share: varlink.c (server, connections, buffers),
 * varlink_call.c (from a message to its answer), varlink_scan.c (the look before parsing).
 */
#ifndef GPUMEMD_VARLINK_INTERNAL_H
#define GPUMEMD_VARLINK_INTERNAL_H

#include "daemon/varlink.h"

struct varlink_connection;

struct varlink_server {
        sd_event *event;
        struct varlink_identity identity;
        struct varlink_limits limits;
        struct varlink_statistics statistics;
        const struct varlink_interface *interfaces;
        void *userdata;
        void (*notice)(const struct varlink_peer *peer, const char *what, void *userdata);
        int listen_fd; /* borrowed, -1 if there is none */
        sd_event_source *listen_source;
        sd_event_source
                *listen_pause; /* timer: accept again after the process ran out of descriptors */
        struct varlink_connection *connections; /* doubly linked */
};

/* One call, on the stack of varlink_message_handle(). */
struct varlink_call {
        struct varlink_server *server;
        struct varlink_connection *connection;
        const char *method; /* full name */
        bool more, oneway;
        bool answered; /* the last answer was given (or dropped, if oneway) */
};

/* varlink_scan.c: 0, or -E2BIG if @text nests deeper than @depth or holds more than @values values.
 * Text that is not JSON passes or fails, whichever; what passes costs the parser no more than that.
 */
int varlink_scan(const char *text, size_t length, unsigned int depth, unsigned int values);

/* varlink_call.c: carry out one message (without its NUL). 0; -EBADMSG if it is not a call, other
 * negative errno if the connection cannot go on. */
int varlink_message_handle(struct varlink_connection *connection, const char *text, size_t length);

/* varlink.c, for varlink_call.c */
struct varlink_server *varlink_connection_server(struct varlink_connection *connection);
const struct varlink_peer *varlink_connection_peer(const struct varlink_connection *connection);
/* Queue one message and its NUL. -ENOBUFS: over the limit (the connection will be closed); -ENOMEM.
 */
int varlink_connection_queue(struct varlink_connection *connection, const char *text,
                             size_t length);

/* May a user who has @mine connections open one more, when others have @others of @limit? */
bool varlink_share_allows(unsigned int limit, unsigned int mine, unsigned int others, uid_t uid);

#endif
