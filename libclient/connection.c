/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "libclient/connection.h"
#include "libclient/error.h"

/* A thread that waits for the turn; on its stack. */
struct connection_waiter {
        TAILQ_ENTRY(connection_waiter) link;
        bool passed; /* the turn is this one's now */
};

int client_connection_init_consume_fd(struct client_connection *connection, int fd,
                                      uint32_t timeout_ms)
{
        pthread_condattr_t attributes;

        memset(connection, 0, sizeof(*connection));
        connection->fd = fd;
        connection->timeout_ms = timeout_ms;
        TAILQ_INIT(&connection->waiters);
        wire_fds_init(&connection->fds);
        pthread_mutex_init(&connection->lock, NULL);
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&connection->passed, &attributes);
        pthread_condattr_destroy(&attributes);
        connection->message = malloc(sizeof(*connection->message));
        if (!connection->message) {
                client_connection_deinit(connection);
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a connection");
        }
        return 0;
}

/* Why, and what to do about it. */
static int cannot_connect(const char *path, int error)
{
        switch (error) {
        case EACCES:
        case EPERM:
                return client_error(GPUMEM_E_PERMISSION,
                                    "no permission to connect to gpumemd at %s: the user must be "
                                    "in the socket's group (gpumem, unless the configuration names "
                                    "another; a new membership counts from the next login)",
                                    path);
        case ENOENT:
        case ECONNREFUSED:
                return client_error(GPUMEM_E_DOWN,
                                    "cannot connect to gpumemd at %s: %s; is gpumemd running?",
                                    path, strerror(error));
        default:
                return client_error(GPUMEM_E_DOWN, "cannot connect to gpumemd at %s: %s", path,
                                    strerror(error));
        }
}

int client_connection_init(struct client_connection *connection, const char *path,
                           uint32_t timeout_ms)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct timeval timeout = {.tv_sec = timeout_ms / 1000,
                                  .tv_usec = (suseconds_t)(timeout_ms % 1000) * 1000};
        int fd, error;

        memset(connection, 0, sizeof(*connection));
        connection->fd = -1;
        if (strlen(path) >= sizeof(address.sun_path))
                return client_error(GPUMEM_E_INVALID,
                                    "socket path %s is too long; a socket's path has at most %zu "
                                    "bytes",
                                    path, sizeof(address.sun_path) - 1);
        memcpy(address.sun_path, path, strlen(path) + 1);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0) {
                error = errno;
                return client_error(GPUMEM_E_DOWN, "cannot make a socket: %s", strerror(error));
        }
        /* Bounds the connect itself, which waits while the daemon's backlog is full. */
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
        while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                if (errno == EINTR)
                        continue;
                error = errno;
                close(fd);
                if (error == EAGAIN)
                        return client_error(GPUMEM_E_TIMEOUT,
                                            "gpumemd does not accept connections at %s", path);
                return cannot_connect(path, error);
        }
        return client_connection_init_consume_fd(connection, fd, timeout_ms);
}

static void forget_late(struct client_connection *connection)
{
        free(connection->late_request);
        connection->late_request = NULL;
        connection->late_serial = 0;
}

void client_connection_deinit(struct client_connection *connection)
{
        if (connection->fd < 0)
                return;
        wire_fds_deinit(&connection->fds);
        /* A child that was forked may have the descriptor as well. */
        shutdown(connection->fd, SHUT_RDWR);
        close(connection->fd);
        connection->fd = -1;
        free(connection->message);
        connection->message = NULL;
        forget_late(connection);
        pthread_cond_destroy(&connection->passed);
        pthread_mutex_destroy(&connection->lock);
}

static int down_error(void)
{
        return client_error(GPUMEM_E_DOWN,
                            "the connection to gpumemd is gone; mapped memory stays usable, "
                            "nothing new can be had in this session");
}

bool client_connection_is_down(struct client_connection *connection)
{
        bool down;

        lock_take(&connection->lock, LOCK_CONNECTION);
        down = connection->down;
        lock_release(&connection->lock);
        return down;
}

static void set_down(struct client_connection *connection)
{
        lock_take(&connection->lock, LOCK_CONNECTION);
        connection->down = true;
        lock_release(&connection->lock);
        /* The daemon shall know as well; the number stays ours until deinit. */
        shutdown(connection->fd, SHUT_RDWR);
}

bool client_connection_try_turn(struct client_connection *connection)
{
        bool got;

        lock_take(&connection->lock, LOCK_CONNECTION);
        got = !connection->taken && !connection->down;
        if (got)
                connection->taken = true;
        lock_release(&connection->lock);
        return got;
}

int client_connection_take_turn(struct client_connection *connection, uint64_t deadline_ns)
{
        struct connection_waiter waiter = {.passed = false};
        struct timespec deadline = {
                .tv_sec = (time_t)(deadline_ns / 1000000000u),
                .tv_nsec = (long)(deadline_ns % 1000000000u),
        };
        int r = 0;

        lock_none_held("the turn of the connection");
        lock_take(&connection->lock, LOCK_CONNECTION);
        if (connection->down) {
                r = down_error();
        } else if (!connection->taken) {
                connection->taken = true;
        } else {
                TAILQ_INSERT_TAIL(&connection->waiters, &waiter, link);
                while (!waiter.passed && r != ETIMEDOUT)
                        r = lock_wait_until(&connection->passed, &connection->lock, &deadline);
                if (waiter.passed) {
                        r = 0;
                } else {
                        TAILQ_REMOVE(&connection->waiters, &waiter, link);
                        r = client_error(GPUMEM_E_TIMEOUT,
                                         "another thread of this session waits for gpumemd, which "
                                         "does not answer");
                }
        }
        lock_release(&connection->lock);
        return r;
}

void client_connection_pass_turn(struct client_connection *connection)
{
        struct connection_waiter *waiter;
        bool notify;

        wire_fds_deinit(&connection->fds);
        lock_take(&connection->lock, LOCK_CONNECTION);
        waiter = TAILQ_FIRST(&connection->waiters);
        if (waiter) {
                TAILQ_REMOVE(&connection->waiters, waiter, link);
                waiter->passed = true;
                pthread_cond_broadcast(&connection->passed);
        } else {
                connection->taken = false;
        }
        notify = connection->events.reclaim || connection->events.device_state != 0;
        lock_release(&connection->lock);
        if (notify && connection->notify)
                connection->notify(connection->userdata);
}

static void keep_event(struct client_connection *connection, const union connection_message *event)
{
        struct connection_events *events = &connection->events;

        lock_take(&connection->lock, LOCK_CONNECTION);
        switch (event->header.type) {
        case GPUMEM_MESSAGE_EVENT_RECLAIM:
                /* 0 is "whatever is idle": more than any number. */
                if (event->event_reclaim.bytes == 0 ||
                    (events->reclaim && events->reclaim_bytes == 0))
                        events->reclaim_bytes = 0;
                else if (!events->reclaim || events->reclaim_bytes < event->event_reclaim.bytes)
                        events->reclaim_bytes = event->event_reclaim.bytes;
                events->reclaim = true;
                break;
        case GPUMEM_MESSAGE_EVENT_DEVICE:
                events->device_state = event->event_device.state;
                break;
        }
        lock_release(&connection->lock);
}

bool client_connection_take_events(struct client_connection *connection,
                                   struct connection_events *events)
{
        lock_take(&connection->lock, LOCK_CONNECTION);
        *events = connection->events;
        memset(&connection->events, 0, sizeof(connection->events));
        lock_release(&connection->lock);
        return events->reclaim || events->device_state != 0;
}

bool client_connection_has_events(struct client_connection *connection)
{
        bool has;

        lock_take(&connection->lock, LOCK_CONNECTION);
        has = connection->events.reclaim || connection->events.device_state != 0;
        lock_release(&connection->lock);
        return has;
}

/* Receives one message. 0; 1: none by the socket's timeout (or at all, with MSG_DONTWAIT);
 * GPUMEM_E_DOWN. */
static int receive(struct client_connection *connection, int flags)
{
        size_t length;
        int r;

        wire_fds_deinit(&connection->fds);
        r = wire_receive(connection->fd, connection->message, sizeof(*connection->message),
                         &connection->fds, &length, flags);
        /* Said once when the peer has closed without reading everything; what it sent before is
         * still there. */
        if (r == -ECONNRESET)
                r = wire_receive(connection->fd, connection->message, sizeof(*connection->message),
                                 &connection->fds, &length, flags);
        if (r == -EAGAIN)
                return 1;
        if (r == 0)
                r = wire_check(connection->message, length, connection->fds.count, WIRE_TO_CLIENT);
        if (r == 0)
                return 0;
        wire_fds_deinit(&connection->fds);
        set_down(connection);
        if (r < 0)
                return client_error(GPUMEM_E_DOWN, "cannot read from gpumemd: %s", strerror(-r));
        if (r == WIRE_CLOSED)
                return client_error(GPUMEM_E_DOWN, "gpumemd has closed the connection");
        return client_error(GPUMEM_E_DOWN, "gpumemd sent what the protocol does not allow: %s",
                            wire_problem_text(r));
}

/* Another daemon serves this connection. `request` is what is waited for; NULL: nothing. */
static int resume(struct client_connection *connection, const struct gpumem_message_header *request)
{
        struct gpumem_message_replay replay;
        int r;

        connection->resumed = true;
        if (!request)
                return 0;
        if (connection->message->event_resumed.serial == request->serial) {
                wire_message_init(&replay, GPUMEM_MESSAGE_REPLAY, request->serial);
                r = wire_send(connection->fd, &replay, sizeof(replay), 0);
        } else {
                r = wire_send(connection->fd, request, request->length, 0);
        }
        if (r == 0)
                return 0;
        set_down(connection);
        return client_error(GPUMEM_E_DOWN, "cannot write to the new gpumemd: %s", strerror(-r));
}

/* Looks at a message that is not the answer. 0: it was an event, or came twice. */
static int pass_over(struct client_connection *connection,
                     const struct gpumem_message_header *request)
{
        const struct gpumem_message_header *header = &connection->message->header;

        if (header->type == GPUMEM_MESSAGE_EVENT_RESUMED)
                return resume(connection, request);
        if (header->serial == 0) {
                keep_event(connection, connection->message);
                return 0;
        }
        if (connection->resumed && (int32_t)(connection->serial - header->serial) >= 0)
                return 0; /* (Its descriptors are closed by the next receive.) */
        set_down(connection);
        return client_error(GPUMEM_E_DOWN, "gpumemd answered request %u, which was not asked",
                            header->serial);
}

/* Receives until the reply to the request is there; keeps events. 0, GPUMEM_E_TIMEOUT,
 * GPUMEM_E_DOWN. */
static int receive_reply(struct client_connection *connection,
                         const struct gpumem_message_header *request, uint64_t deadline_ns)
{
        for (;;) {
                int r = receive(connection, 0);

                if (r < 0)
                        return r;
                if (r == 0 && connection->message->header.serial == request->serial)
                        return 0;
                if (r > 0 || wire_now_ns() >= deadline_ns) {
                        if (r == 0)
                                r = pass_over(connection, request);
                        return r < 0 ? r
                                     : client_error(GPUMEM_E_TIMEOUT, "gpumemd does not answer");
                }
                r = pass_over(connection, request);
                if (r < 0)
                        return r;
        }
}

static void set_socket_timeout(struct client_connection *connection, uint32_t timeout_ms)
{
        if (connection->socket_timeout_ms != timeout_ms &&
            wire_set_timeout(connection->fd, timeout_ms) == 0)
                connection->socket_timeout_ms = timeout_ms;
}

/* The request was not answered in time: its answer is owed. */
static void keep_late(struct client_connection *connection,
                      const struct gpumem_message_header *request)
{
        connection->late_request = malloc(request->length);
        if (!connection->late_request) {
                /* Without it the connection could not outlive a restart any more. */
                set_down(connection);
                return;
        }
        memcpy(connection->late_request, request, request->length);
        connection->late_serial = request->serial;
}

/* The reply that is still owed. */
static int settle_late(struct client_connection *connection, uint64_t deadline_ns)
{
        int r;

        if (connection->late_serial == 0)
                return 0;
        r = receive_reply(connection, connection->late_request, deadline_ns);
        if (r < 0)
                return r;
        forget_late(connection);
        if (connection->late && connection->message->header.type != GPUMEM_MESSAGE_ERROR)
                connection->late(connection->userdata, connection->message, &connection->fds);
        /* It may have asked something itself, which is outstanding now. */
        if (connection->late_serial != 0)
                return client_error(GPUMEM_E_TIMEOUT, "gpumemd answers, but late");
        return client_connection_is_down(connection) ? down_error() : 0;
}

/* An ERROR as the result of a call. A code that this library does not know (0 included) must not
 * become a success or a number that callers do not expect. */
static int refused(const struct gpumem_message_error *error)
{
        int code = error->code <= INT_MAX ? -(int)error->code : 0;

        if (code == 0 || strcmp(gpumem_error_name(code), "unknown") == 0)
                return client_error(GPUMEM_E_PROTOCOL,
                                    "gpumemd refused with the unknown code %u: %s", error->code,
                                    error->text);
        return client_error(code, "%s", *error->text ? error->text : "gpumemd gives no reason");
}

/* The daemon has closed, and the request was not sent. Why is in the socket if it turned the
 * session away: the ERROR's code; GPUMEM_E_DOWN otherwise. The connection is down either way. */
static int last_words(struct client_connection *connection, uint32_t serial)
{
        for (;;) {
                int r = receive(connection, MSG_DONTWAIT);

                if (r != 0) {
                        set_down(connection);
                        return r < 0 ? r : down_error();
                }
                if (connection->message->header.type != GPUMEM_MESSAGE_ERROR ||
                    connection->message->header.serial != serial)
                        continue;
                set_down(connection);
                return refused(&connection->message->error);
        }
}

int client_connection_exchange(struct client_connection *connection,
                               struct gpumem_message_header *request, uint32_t extra_ms)
{
        uint32_t timeout_ms = connection->timeout_ms + extra_ms;
        uint64_t deadline_ns = wire_deadline_ns(timeout_ms);
        uint32_t before;
        int r;

        lock_none_held("the daemon's reply");
        if (client_connection_is_down(connection))
                return down_error();
        request->serial = 0;
        set_socket_timeout(connection, timeout_ms);
        r = settle_late(connection, deadline_ns);
        if (r < 0)
                return r;
        set_socket_timeout(connection, timeout_ms); /* (late() may have set it) */
        before = connection->serial;
        if (++connection->serial == 0)
                connection->serial = 1;
        request->serial = connection->serial;
        r = wire_send(connection->fd, request, request->length, 0);
        if (r == -EAGAIN) { /* the queue is full: it was not sent */
                connection->serial = before;
                return client_error(GPUMEM_E_TIMEOUT, "gpumemd does not read its socket");
        }
        if (r == -EPIPE || r == -ECONNRESET)
                return last_words(connection, request->serial);
        if (r < 0) {
                set_down(connection);
                return client_error(GPUMEM_E_DOWN, "cannot write to gpumemd: %s", strerror(-r));
        }
        r = receive_reply(connection, request, deadline_ns);
        if (r == GPUMEM_E_TIMEOUT) {
                keep_late(connection, request);
                return client_error(GPUMEM_E_TIMEOUT, "gpumemd has not answered %s for %u ms",
                                    wire_type_text(request->type), timeout_ms);
        }
        if (r < 0)
                return r;
        if (connection->message->header.type == GPUMEM_MESSAGE_ERROR)
                return refused(&connection->message->error);
        if (connection->message->header.type == request->type + 1)
                return 0;
        set_down(connection);
        return client_error(GPUMEM_E_DOWN, "gpumemd answered %s with %s",
                            wire_type_text(request->type),
                            wire_type_text(connection->message->header.type));
}

int client_connection_request(struct client_connection *connection,
                              struct gpumem_message_header *request, void *reply, size_t reply_size)
{
        int r;

        r = client_connection_take_turn(connection, wire_deadline_ns(connection->timeout_ms));
        if (r < 0)
                return r;
        r = client_connection_exchange(connection, request, 0);
        if (r == 0)
                memcpy(reply, connection->message, reply_size);
        client_connection_pass_turn(connection);
        return r;
}

int client_connection_drain(struct client_connection *connection)
{
        for (;;) {
                int r = receive(connection, MSG_DONTWAIT);

                if (r != 0)
                        return r < 0 ? r : 0;
                if (connection->late_serial != 0 &&
                    connection->message->header.serial == connection->late_serial) {
                        forget_late(connection);
                        if (connection->late &&
                            connection->message->header.type != GPUMEM_MESSAGE_ERROR)
                                connection->late(connection->userdata, connection->message,
                                                 &connection->fds);
                        continue;
                }
                r = pass_over(connection, connection->late_request);
                if (r < 0)
                        return r;
        }
}
