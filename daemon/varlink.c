/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Varlink server's connections: accepting, collecting messages, pausing and closing peers. What
 * a message means is varlink_call.c's.
 *
 * A connection is freed only at the end of one of its own event callbacks, or with the server, so
 * nothing else can hold a stale pointer to it.
 */
#include "daemon/varlink_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
        READ_BYTES = 64 * 1024,   /* taken from a peer in one turn */
        CALLS_PER_TURN = 16,      /* then the other peers and the rest of the daemon come */
        BUFFER_KEEP_BYTES = 4096, /* an empty buffer larger than this is given back */
        ACCEPTS_PER_TURN = 16,
        ACCEPT_PAUSE_US = 1000 * 1000,
};

const struct varlink_limits varlink_limits_default = {
        .message_bytes = 1024 * 1024,
        .output_bytes = 16 * 1024 * 1024,
        .pause_bytes = 256 * 1024,
        .connections = 64,
        .depth = 16,
        .values = 8192,
        .stall_us = 10 * 1000 * 1000,
};

/* Bytes [begin, end) of @data are in use. */
struct buffer {
        char *data;
        size_t begin, end, capacity;
};

struct varlink_connection {
        struct varlink_server *server;
        struct varlink_connection *previous, *next;
        int fd;
        struct varlink_peer peer;
        sd_event_source *io;
        sd_event_source *resume; /* defer: complete messages are waiting in the input */
        sd_event_source *stall;  /* timer */
        struct buffer input, output;
        size_t scanned;     /* the input up to here, from its begin, has no NUL */
        uint32_t io_events; /* that the loop watches for */
        uint64_t input_deadline, output_deadline; /* us, monotonic; 0: not waiting */
        bool has_message;                         /* the input holds a complete message */
        bool end_of_input;                        /* the peer will send no more */
        bool overflowed; /* an answer did not fit; closed at the next chance */
};

/* --- buffers --- */

static size_t buffer_used(const struct buffer *buffer)
{
        return buffer->end - buffer->begin;
}

static int buffer_reserve(struct buffer *buffer, size_t bytes)
{
        size_t used = buffer_used(buffer), capacity;
        char *data;

        if (buffer->capacity - buffer->end >= bytes)
                return 0;
        if (buffer->begin > 0) {
                memmove(buffer->data, buffer->data + buffer->begin, used);
                buffer->begin = 0;
                buffer->end = used;
                if (buffer->capacity - used >= bytes)
                        return 0;
        }
        capacity = buffer->capacity > 0 ? buffer->capacity : 1024;
        while (capacity - used < bytes)
                capacity *= 2;
        data = realloc(buffer->data, capacity);
        if (data == NULL)
                return -ENOMEM;
        buffer->data = data;
        buffer->capacity = capacity;
        return 0;
}

static void buffer_consume(struct buffer *buffer, size_t bytes)
{
        buffer->begin += bytes;
        if (buffer->begin < buffer->end)
                return;
        buffer->begin = buffer->end = 0;
        if (buffer->capacity > BUFFER_KEEP_BYTES) {
                free(buffer->data);
                *buffer = (struct buffer){0};
        }
}

/* --- connections --- */

struct varlink_server *varlink_connection_server(struct varlink_connection *connection)
{
        return connection->server;
}

const struct varlink_peer *varlink_connection_peer(const struct varlink_connection *connection)
{
        return &connection->peer;
}

int varlink_connection_queue(struct varlink_connection *connection, const char *text, size_t length)
{
        size_t limit = connection->server->limits.output_bytes;
        size_t used = buffer_used(&connection->output);
        int r;

        if (length >= limit || used > limit - length - 1) {
                connection->overflowed = true;
                return -ENOBUFS;
        }
        r = buffer_reserve(&connection->output, length + 1);
        if (r < 0)
                return r;
        memcpy(connection->output.data + connection->output.end, text, length);
        connection->output.data[connection->output.end + length] = '\0';
        connection->output.end += length + 1;
        return 0;
}

static void notice(const struct varlink_server *server, const struct varlink_peer *peer,
                   const char *what)
{
        if (server->notice != NULL)
                server->notice(peer, what, server->userdata);
}

static void connection_free(struct varlink_connection *connection)
{
        struct varlink_server *server = connection->server;

        if (connection->previous != NULL)
                connection->previous->next = connection->next;
        else
                server->connections = connection->next;
        if (connection->next != NULL)
                connection->next->previous = connection->previous;
        server->statistics.connections--;
        sd_event_source_disable_unref(connection->io);
        sd_event_source_disable_unref(connection->resume);
        sd_event_source_disable_unref(connection->stall);
        close(connection->fd);
        free(connection->input.data);
        free(connection->output.data);
        free(connection);
}

/* Write what is waiting. 0 or negative errno if the connection is broken. */
static int connection_flush(struct varlink_connection *connection, uint64_t now)
{
        struct buffer *output = &connection->output;

        while (buffer_used(output) > 0) {
                ssize_t n = send(connection->fd, output->data + output->begin, buffer_used(output),
                                 MSG_NOSIGNAL | MSG_DONTWAIT);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno == EAGAIN) {
                        if (connection->output_deadline == 0)
                                connection->output_deadline =
                                        now + connection->server->limits.stall_us;
                        return 0;
                }
                if (n < 0)
                        return -errno;
                buffer_consume(output, (size_t)n);
                connection->output_deadline = 0; /* something moved */
        }
        return 0;
}

/* Look for the end of the first message. */
static void connection_find_message(struct varlink_connection *connection)
{
        struct buffer *input = &connection->input;
        size_t used = buffer_used(input);
        const char *nul = NULL;

        if (used > connection->scanned)
                nul = memchr(input->data + input->begin + connection->scanned, '\0',
                             used - connection->scanned);
        connection->has_message = nul != NULL;
        connection->scanned = nul != NULL ? (size_t)(nul - (input->data + input->begin)) : used;
}

/* Take up to READ_BYTES from the peer. Descriptors it sends are dropped by the kernel, as there is
 * nowhere to put them. 0 or negative errno: -EMSGSIZE if a message is too long. */
static int connection_read(struct varlink_connection *connection)
{
        struct buffer *input = &connection->input;
        size_t limit = connection->server->limits.message_bytes;
        size_t used = buffer_used(input);
        size_t wanted = limit - used < READ_BYTES ? limit - used : READ_BYTES;
        ssize_t n;
        int r;

        r = buffer_reserve(input, wanted);
        if (r < 0)
                return r;
        do {
                n = recv(connection->fd, input->data + input->end, wanted, MSG_DONTWAIT);
        } while (n < 0 && errno == EINTR);
        if (n < 0)
                return errno == EAGAIN ? 0 : -errno;
        if (n == 0) {
                connection->end_of_input = true;
                return 0;
        }
        input->end += (size_t)n;
        connection_find_message(connection);
        if (!connection->has_message && buffer_used(input) >= limit)
                return -EMSGSIZE;
        return 0;
}

static bool connection_is_paused(const struct varlink_connection *connection)
{
        return buffer_used(&connection->output) >= connection->server->limits.pause_bytes;
}

/* Carry out messages that are complete. 0 or negative errno if the connection cannot go on. */
static int connection_process(struct varlink_connection *connection, uint64_t now)
{
        int r;

        for (unsigned int i = 0; i < CALLS_PER_TURN && connection->has_message; i++) {
                size_t length = connection->scanned;

                if (connection_is_paused(connection))
                        break;
                r = varlink_message_handle(
                        connection, connection->input.data + connection->input.begin, length);
                if (r < 0)
                        return r;
                if (connection->overflowed)
                        return -ENOBUFS;
                buffer_consume(&connection->input, length + 1);
                connection->scanned = 0;
                connection_find_message(connection);
                r = connection_flush(connection, now);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Tell the loop what this connection waits for. 0 or negative errno. */
static int connection_update(struct varlink_connection *connection, uint64_t now)
{
        bool paused = connection_is_paused(connection);
        bool reading = !connection->end_of_input && !connection->has_message && !paused;
        uint32_t events = reading ? EPOLLIN : 0;
        uint64_t deadline;
        int r;

        if (buffer_used(&connection->output) > 0)
                events |= EPOLLOUT;
        if (events != connection->io_events) {
                r = sd_event_source_set_io_events(connection->io, events);
                if (r < 0)
                        return r;
                connection->io_events = events;
        }
        r = sd_event_source_set_enabled(connection->resume, connection->has_message && !paused
                                                                    ? SD_EVENT_ONESHOT
                                                                    : SD_EVENT_OFF);
        if (r < 0)
                return r;

        /* Only a peer that we are ready to hear can be late with its message. */
        if (!reading || buffer_used(&connection->input) == 0)
                connection->input_deadline = 0;
        else if (connection->input_deadline == 0)
                connection->input_deadline = now + connection->server->limits.stall_us;

        deadline = connection->input_deadline;
        if (connection->output_deadline != 0 &&
            (deadline == 0 || connection->output_deadline < deadline))
                deadline = connection->output_deadline;
        if (deadline == 0)
                return sd_event_source_set_enabled(connection->stall, SD_EVENT_OFF);
        r = sd_event_source_set_time(connection->stall, deadline);
        if (r < 0)
                return r;
        return sd_event_source_set_enabled(connection->stall, SD_EVENT_ONESHOT);
}

/* Everything a connection does after something happened; it is gone if this fails or if it is done.
 */
static void connection_turn(struct varlink_connection *connection, bool readable)
{
        struct varlink_server *server = connection->server;
        uint64_t now;
        int r;

        r = sd_event_now(server->event, CLOCK_MONOTONIC, &now);
        if (r >= 0)
                r = connection_flush(connection, now);
        if (r >= 0 && readable && !connection->end_of_input && !connection->has_message &&
            !connection_is_paused(connection))
                r = connection_read(connection);
        if (r >= 0)
                r = connection_process(connection, now);
        if (r >= 0 && connection->end_of_input && !connection->has_message &&
            buffer_used(&connection->output) == 0)
                r = -ECONNRESET; /* all said */
        if (r >= 0)
                r = connection_update(connection, now);
        if (r >= 0)
                return;
        if (r == -EBADMSG || r == -EMSGSIZE) {
                server->statistics.closed_for_protocol++;
                notice(server, &connection->peer,
                       r == -EBADMSG ? "sent what is not a call" : "message too long");
        } else if (r == -ENOBUFS) {
                server->statistics.closed_for_stalling++;
                notice(server, &connection->peer, "does not read its answers");
        }
        /* The answers to the calls before the bad one still go out, as far as the peer takes them.
         */
        if (r == -EBADMSG || r == -EMSGSIZE)
                connection_flush(connection, 0);
        connection_free(connection);
}

static int on_io(sd_event_source *source, int fd, uint32_t events, void *userdata)
{
        (void)source;
        (void)fd;
        connection_turn(userdata, (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0);
        return 0;
}

static int on_resume(sd_event_source *source, void *userdata)
{
        (void)source;
        connection_turn(userdata, false);
        return 0;
}

static int on_stall(sd_event_source *source, uint64_t when, void *userdata)
{
        struct varlink_connection *connection = userdata;

        (void)source;
        (void)when;
        connection->server->statistics.closed_for_stalling++;
        notice(connection->server, &connection->peer,
               connection->output_deadline != 0 ? "does not read its answers"
                                                : "does not finish its message");
        connection_free(connection);
        return 0;
}

bool varlink_share_allows(unsigned int limit, unsigned int mine, unsigned int others, uid_t uid)
{
        unsigned int share;

        if (mine + others >= limit)
                return false;
        if (uid == 0)
                return true;
        share = (limit - others) / 2;
        return mine < (share > 0 ? share : 1);
}

static bool has_room_for(const struct varlink_server *server, uid_t uid)
{
        unsigned int mine = 0;

        for (const struct varlink_connection *c = server->connections; c != NULL; c = c->next)
                mine += c->peer.uid == uid;
        return varlink_share_allows(server->limits.connections, mine,
                                    server->statistics.connections - mine, uid);
}

int varlink_server_add_connection_consume_fd(struct varlink_server *server, int fd)
{
        struct varlink_connection *connection;
        struct ucred credentials = {0};
        struct varlink_peer peer;
        socklen_t length = sizeof(credentials);
        int r;

        r = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0 ? -errno : 0;
        peer = (struct varlink_peer){credentials.pid, credentials.uid, credentials.gid};
        if (r < 0)
                goto refuse;
        if (!has_room_for(server, credentials.uid)) {
                r = -EUSERS;
                goto refuse;
        }
        connection = calloc(1, sizeof(*connection));
        if (connection == NULL) {
                r = -ENOMEM;
                goto refuse;
        }
        connection->server = server;
        connection->fd = fd;
        connection->peer = peer;
        connection->next = server->connections;
        if (connection->next != NULL)
                connection->next->previous = connection;
        server->connections = connection;
        server->statistics.connections++;
        server->statistics.accepted++;

        connection->io_events = EPOLLIN;
        r = sd_event_add_io(server->event, &connection->io, fd, EPOLLIN, on_io, connection);
        if (r >= 0)
                r = sd_event_add_defer(server->event, &connection->resume, on_resume, connection);
        if (r >= 0)
                r = sd_event_source_set_enabled(connection->resume, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_time(server->event, &connection->stall, CLOCK_MONOTONIC,
                                      UINT64_MAX, 0, on_stall, connection);
        if (r >= 0)
                r = sd_event_source_set_enabled(connection->stall, SD_EVENT_OFF);
        if (r < 0) {
                server->statistics.accepted--;
                server->statistics.refused++;
                connection_free(connection);
                return r;
        }
        return 0;

refuse:
        server->statistics.refused++;
        notice(server, &peer, r == -EUSERS ? "too many connections" : "no memory for it");
        close(fd);
        return r;
}

/* --- the listening socket --- */

static int on_listen_resume(sd_event_source *source, uint64_t when, void *userdata)
{
        struct varlink_server *server = userdata;

        (void)source;
        (void)when;
        return sd_event_source_set_enabled(server->listen_source, SD_EVENT_ON);
}

/* Out of descriptors or memory: the connection stays in the backlog, so the loop would spin. */
static int pause_listening(struct varlink_server *server)
{
        uint64_t now;
        int r;

        r = sd_event_now(server->event, CLOCK_MONOTONIC, &now);
        if (r >= 0)
                r = sd_event_source_set_time(server->listen_pause, now + ACCEPT_PAUSE_US);
        if (r >= 0)
                r = sd_event_source_set_enabled(server->listen_pause, SD_EVENT_ONESHOT);
        if (r >= 0)
                r = sd_event_source_set_enabled(server->listen_source, SD_EVENT_OFF);
        return r;
}

static int on_listen(sd_event_source *source, int listen_fd, uint32_t events, void *userdata)
{
        struct varlink_server *server = userdata;

        (void)source;
        (void)events;
        for (unsigned int i = 0; i < ACCEPTS_PER_TURN; i++) {
                int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

                if (fd >= 0) {
                        varlink_server_add_connection_consume_fd(server, fd);
                        continue;
                }
                if (errno == EAGAIN)
                        return 0;
                if (errno == EINTR || errno == ECONNABORTED)
                        continue;
                return pause_listening(server);
        }
        return 0;
}

/* --- server --- */

int varlink_server_new(struct varlink_server **out, sd_event *event, int listen_fd,
                       const struct varlink_identity *identity,
                       const struct varlink_interface *interfaces,
                       const struct varlink_limits *limits, void *userdata)
{
        struct varlink_server *server = calloc(1, sizeof(*server));
        int flags, r;

        if (server == NULL)
                return -ENOMEM;
        server->event = sd_event_ref(event);
        server->identity = *identity;
        server->limits = limits != NULL ? *limits : varlink_limits_default;
        server->interfaces = interfaces;
        server->userdata = userdata;
        server->listen_fd = listen_fd;
        if (listen_fd >= 0) {
                flags = fcntl(listen_fd, F_GETFL);
                if (flags < 0 || fcntl(listen_fd, F_SETFL, flags | O_NONBLOCK) < 0) {
                        r = -errno;
                        goto fail;
                }
                r = sd_event_add_io(event, &server->listen_source, listen_fd, EPOLLIN, on_listen,
                                    server);
                if (r >= 0)
                        r = sd_event_add_time(event, &server->listen_pause, CLOCK_MONOTONIC,
                                              UINT64_MAX, 0, on_listen_resume, server);
                if (r >= 0)
                        r = sd_event_source_set_enabled(server->listen_pause, SD_EVENT_OFF);
                if (r < 0)
                        goto fail;
        }
        *out = server;
        return 0;

fail:
        varlink_server_free(server);
        return r;
}

struct varlink_server *varlink_server_free(struct varlink_server *server)
{
        struct varlink_connection *next;

        if (server == NULL)
                return NULL;
        for (struct varlink_connection *c = server->connections; c != NULL; c = next) {
                next = c->next;
                connection_free(c);
        }
        sd_event_source_disable_unref(server->listen_source);
        sd_event_source_disable_unref(server->listen_pause);
        sd_event_unref(server->event);
        free(server);
        return NULL;
}

void varlink_server_statistics(const struct varlink_server *server, struct varlink_statistics *out)
{
        *out = server->statistics;
}

void varlink_server_on_refusal(struct varlink_server *server,
                               void (*notice_function)(const struct varlink_peer *peer,
                                                       const char *what, void *userdata))
{
        server->notice = notice_function;
}
