/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the daemon: one request outstanding, its reply read by whoever waits for it.
 *
 * Turns. A thread takes the turn, sends, reads until its reply is there, and passes the turn to the
 * longest waiting thread. Events that come in between are kept; the session's own thread picks up
 * those that come when nobody asks anything. A turn is held for one round trip at most, so long
 * waits for memory are made of short ones (frames.c).
 *
 * Late replies. A request that is not answered by its deadline fails with GPUMEM_E_TIMEOUT, and the
 * answer is still owed: the next turn first waits for it and passes it to connection.late, which
 * undoes what it granted.
 *
 * Restarts. When another daemon takes over (RESUMED), whoever waits for an answer asks for it again
 * or sends the request again, whichever the protocol says; a late request is kept for that. What
 * comes twice is dropped.
 *
 * The end. Once the peer is gone or has broken the protocol the connection is down for good, and
 * every request, now and later, fails with GPUMEM_E_DOWN at once.
 */
#ifndef LIBCLIENT_CONNECTION_H
#define LIBCLIENT_CONNECTION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <gpumem/gpumem.h>
#include <gpumem/protocol.h>

#include "libclient/wire/lock_order.h"
#include "libclient/wire/wire.h"

/* The library's locks, in their order; session.h says what each covers. */
enum client_lock {
        LOCK_SESSION = 10,
        LOCK_POOL = 20,
        LOCK_GATE = 30,
        LOCK_CONNECTION = 40,
        LOCK_OWED = 50,
};

struct connection_waiter;

/* A received message, at the largest; aligned for every struct of the protocol. */
union connection_message {
        struct gpumem_message_header header;
        struct gpumem_message_error error;
        struct gpumem_message_hello_reply hello_reply;
        struct gpumem_message_object_create_reply object_create_reply;
        struct gpumem_message_grant_reply grant_reply;
        struct gpumem_message_return_reply return_reply;
        struct gpumem_message_meminfo_reply meminfo_reply;
        struct gpumem_message_event_reclaim event_reclaim;
        struct gpumem_message_event_device event_device;
        struct gpumem_message_event_resumed event_resumed;
        unsigned char bytes[GPUMEM_MESSAGE_MAX];
};

/* What the daemon has said by events and nobody has looked at yet. */
struct connection_events {
        bool reclaim;
        uint64_t reclaim_bytes; /* with reclaim: 0 means whatever is idle */
        uint32_t device_state;  /* 0, 1 degraded, 2 lost */
};

struct client_connection {
        int fd;
        uint32_t timeout_ms;

        pthread_mutex_t lock; /* covers what follows, except where "turn" is said */
        pthread_cond_t passed;
        bool taken;
        TAILQ_HEAD(connection_waiters, connection_waiter) waiters;
        bool down;
        struct connection_events events;

        uint32_t serial;      /* turn: of the last request */
        uint32_t late_serial; /* turn: of a request whose reply is still owed; 0: none */
        struct gpumem_message_header *late_request; /* turn: a copy of it, to be sent again */
        bool resumed; /* turn: another daemon has taken over; answers may come twice */
        uint32_t socket_timeout_ms;        /* turn: what the socket is set to */
        union connection_message *message; /* turn: the last message received */
        struct wire_fds fds;               /* turn: its descriptors */

        /* turn: a reply that came after its deadline; may use client_connection_exchange(). */
        void (*late)(void *userdata, union connection_message *reply, struct wire_fds *fds);
        /* Called without locks when events were kept. May be NULL. */
        void (*notify)(void *userdata);
        void *userdata;
};

/* Connects to a SOCK_SEQPACKET socket. GPUMEM_E_DOWN and GPUMEM_E_PERMISSION name the path and
 * why. */
int client_connection_init(struct client_connection *connection, const char *path,
                           uint32_t timeout_ms);
/* Takes a connected socket instead. */
int client_connection_init_consume_fd(struct client_connection *connection, int fd,
                                      uint32_t timeout_ms);
/* Nobody may hold or wait for the turn. Idempotent after an init. */
void client_connection_deinit(struct client_connection *connection);

/* The turn, at most until the deadline. GPUMEM_E_DOWN, GPUMEM_E_TIMEOUT. */
int client_connection_take_turn(struct client_connection *connection, uint64_t deadline_ns);
/* Only if it is free. */
bool client_connection_try_turn(struct client_connection *connection);
void client_connection_pass_turn(struct client_connection *connection);

/*
 * With the turn held: sends a request (its header's serial is filled in) and waits for the reply,
 * timeout_ms + extra_ms. 0: connection->message is the reply to that request and of the right type,
 * checked by wire_check(), connection->fds its descriptors, until the turn is passed. An ERROR
 * reply becomes its code, and its text the thread's message.
 */
int client_connection_exchange(struct client_connection *connection,
                               struct gpumem_message_header *request, uint32_t extra_ms);

/* Turn, exchange, copy of the fixed part of the reply, and turn passed: for requests without
 * descriptors. */
int client_connection_request(struct client_connection *connection,
                              struct gpumem_message_header *request, void *reply,
                              size_t reply_size);

/* With the turn held: reads what is there without waiting. GPUMEM_E_DOWN when the peer is gone. */
int client_connection_drain(struct client_connection *connection);

/* Takes what events have said since the last call; true: there was something. */
bool client_connection_take_events(struct client_connection *connection,
                                   struct connection_events *events);
/* Is there something to take? */
bool client_connection_has_events(struct client_connection *connection);
bool client_connection_is_down(struct client_connection *connection);

#endif
