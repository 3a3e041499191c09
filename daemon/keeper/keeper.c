/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keeper/keeper.h"
#include "libclient/wire/wire.h"

/* Linux 6.5; older headers lack it. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* Messages read from one connection before the others get their turn. */
#define BATCH 64

void keeper_log(const char *level, const char *format, ...)
{
        char text[512];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        dprintf(STDERR_FILENO, "gpumemd-keeper: %s: %s\n", level, text);
}

void keeper_init(struct keeper *keeper)
{
        *keeper = (struct keeper){.listen_fd = -1, .signal_fd = -1, .daemon_pidfd = -1};
        holdings_init(&keeper->holdings);
        for (int i = 0; i < KEEPER_CONNECTIONS_MAX; i++)
                keeper->connections[i] = (struct keeper_connection){.fd = -1, .pidfd = -1};
}

static void close_connection(struct keeper_connection *connection)
{
        if (connection->fd >= 0)
                close(connection->fd);
        if (connection->pidfd >= 0)
                close(connection->pidfd);
        *connection = (struct keeper_connection){.fd = -1, .pidfd = -1};
}

void keeper_deinit(struct keeper *keeper)
{
        for (int i = 0; i < KEEPER_CONNECTIONS_MAX; i++)
                close_connection(&keeper->connections[i]);
        holdings_deinit(&keeper->holdings);
        if (keeper->listen_fd >= 0)
                close(keeper->listen_fd);
        if (keeper->signal_fd >= 0)
                close(keeper->signal_fd);
        if (keeper->daemon_pidfd >= 0)
                close(keeper->daemon_pidfd);
        keeper->listen_fd = keeper->signal_fd = keeper->daemon_pidfd = -1;
}

static bool has_ended(int pidfd)
{
        struct pollfd poller = {.fd = pidfd, .events = POLLIN};

        return poll(&poller, 1, 0) > 0 && poller.revents != 0;
}

int keeper_add_consume_fd(struct keeper *keeper, int fd)
{
        struct keeper_connection *connection = NULL;
        struct ucred peer;
        socklen_t length = sizeof(peer);
        int pidfd = -1, r;

        for (int i = 0; i < KEEPER_CONNECTIONS_MAX && !connection; i++)
                if (keeper->connections[i].fd < 0)
                        connection = &keeper->connections[i];
        r = -EUSERS;
        if (!connection)
                goto fail;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) {
                r = -errno;
                goto fail;
        }
        r = -EPERM;
        if (peer.uid != geteuid())
                goto fail;
        length = sizeof(pidfd);
        if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) < 0)
                pidfd = pidfd_open(peer.pid, 0);
        r = -ESRCH;
        if (pidfd < 0)
                goto fail;
        *connection = (struct keeper_connection){.fd = fd, .pidfd = pidfd, .pid = peer.pid};
        return 0;

fail:
        close(fd);
        return r;
}

/* --- requests ------------------------------------------------------------------------------------
 */

static int reply(struct keeper_connection *connection, struct keeper_message *message,
                 const int *fds)
{
        size_t count = message->header.count;
        size_t length = sizeof(message->header) + count * sizeof(message->entries[0]);
        int r;

        message->header.length = (uint32_t)length;
        r = wire_send_with_fds(connection->fd, message, length, fds, fds ? count : 0, MSG_DONTWAIT);
        if (r == -ETOOMANYREFS && fds) {
                /* The kernel limits descriptors in flight: those before these must be read first.
                 */
                message->header.result = -EAGAIN;
                message->header.count = 0;
                message->header.length = sizeof(message->header);
                r = wire_send(connection->fd, message, sizeof(message->header), MSG_DONTWAIT);
        }
        return r;
}

static int hello(struct keeper *keeper, struct keeper_connection *connection,
                 struct keeper_message *message)
{
        if (message->header.value != KEEPER_MAGIC || message->header.count != 1 ||
            message->entries[0].version != KEEPER_VERSION) {
                message->header.result = -EPROTONOSUPPORT;
        } else if (keeper->daemon_pidfd >= 0 && !has_ended(keeper->daemon_pidfd) &&
                   keeper->daemon_pid != connection->pid) {
                keeper_log("warning", "process %d wants to be the daemon while process %d is",
                           (int)connection->pid, (int)keeper->daemon_pid);
                message->header.result = -EBUSY;
        } else {
                int pidfd = fcntl(connection->pidfd, F_DUPFD_CLOEXEC, 0);

                if (pidfd < 0)
                        return -errno;
                if (keeper->daemon_pidfd >= 0)
                        close(keeper->daemon_pidfd);
                /* A connection that this process had before is over. */
                for (int i = 0; i < KEEPER_CONNECTIONS_MAX; i++)
                        if (keeper->connections[i].is_daemon)
                                close_connection(&keeper->connections[i]);
                keeper->daemon_pidfd = pidfd;
                keeper->daemon_pid = connection->pid;
                connection->is_daemon = true;
                message->header.value = keeper->holdings.count;
        }
        message->header.count = 0;
        return reply(connection, message, NULL);
}

static int put(struct keeper *keeper, struct keeper_connection *connection,
               struct keeper_message *message, struct wire_fds *set)
{
        uint32_t count = message->header.count;
        int r;

        if (set->count != count)
                return -EPROTO;
        r = holdings_reserve(&keeper->holdings, message->entries, count);
        for (uint32_t i = 0; i < count && r == 0; i++)
                holdings_put_consume_fd(&keeper->holdings, message->entries[i].kind,
                                        message->entries[i].id, wire_fds_take(set, i));
        if (r < 0)
                keeper_log("error", "%u descriptors cannot be held: %s", count, strerror(-r));
        message->header.result = r;
        message->header.count = 0;
        return reply(connection, message, NULL);
}

static int drop(struct keeper *keeper, struct keeper_connection *connection,
                struct keeper_message *message)
{
        for (uint32_t i = 0; i < message->header.count; i++)
                holdings_drop(&keeper->holdings, message->entries[i].kind, message->entries[i].id);
        message->header.count = 0;
        return reply(connection, message, NULL);
}

static int fetch(struct keeper *keeper, struct keeper_connection *connection,
                 struct keeper_message *message)
{
        uint64_t cursor = message->header.value;
        int fds[KEEPER_ENTRIES_MAX];
        uint16_t count = 0;

        while (cursor < keeper->holdings.count && count < KEEPER_ENTRIES_MAX) {
                const struct holding *holding = &keeper->holdings.table[cursor++];

                message->entries[count] =
                        (struct keeper_entry){.id = holding->id, .kind = holding->kind};
                fds[count++] = holding->fd;
        }
        message->header.value = cursor < keeper->holdings.count ? cursor : 0;
        message->header.count = count;
        return reply(connection, message, count > 0 ? fds : NULL);
}

static int handle(struct keeper *keeper, struct keeper_connection *connection,
                  struct keeper_message *message, size_t length, struct wire_fds *set)
{
        const struct keeper_header *header = &message->header;

        if (length < sizeof(*header) || header->length != length ||
            header->count > KEEPER_ENTRIES_MAX || header->result != 0 ||
            length != sizeof(*header) + header->count * sizeof(message->entries[0]) ||
            (set->count > 0 && header->type != KEEPER_PUT))
                return -EPROTO;
        if (connection->is_daemon == (header->type == KEEPER_HELLO))
                return -EPROTO;
        switch ((enum keeper_type)header->type) {
        case KEEPER_HELLO:
                return hello(keeper, connection, message);
        case KEEPER_PUT:
                return put(keeper, connection, message, set);
        case KEEPER_DROP:
                return drop(keeper, connection, message);
        case KEEPER_FETCH:
                return fetch(keeper, connection, message);
        case KEEPER_RESET:
                holdings_deinit(&keeper->holdings);
                message->header.count = 0;
                return reply(connection, message, NULL);
        case KEEPER_READY:
                keeper->supervisor.ready = keeper->supervisor.was_ready = true;
                message->header.count = 0;
                return reply(connection, message, NULL);
        case KEEPER_STOP:
                keeper->supervisor.told_to_stop = true;
                message->header.count = 0;
                return reply(connection, message, NULL);
        }
        return -EPROTO;
}

/* Reads what is there, to the end of the batch or of the connection. */
static void serve(struct keeper *keeper, struct keeper_connection *connection)
{
        bool closed = false;

        for (int i = 0; i < BATCH && connection->fd >= 0; i++) {
                struct keeper_message message;
                struct wire_fds set;
                size_t length;
                int r;

                message.header = (struct keeper_header){0};
                r = wire_receive(connection->fd, &message, sizeof(message), &set, &length,
                                 MSG_DONTWAIT);
                if (r == -EAGAIN)
                        return;
                if (r == WIRE_CLOSED) {
                        /* A daemon that dies with answers unread resets the connection, which is
                         * said once, before what it had sent: only the second time is the end. */
                        if (closed)
                                close_connection(connection);
                        closed = true;
                        continue;
                }
                closed = false;
                if (r == WIRE_FDS_LOST) {
                        /* No room for them (RLIMIT_NOFILE): they are not held. */
                        message.header.result = -EMFILE;
                        message.header.count = 0;
                        r = reply(connection, &message, NULL);
                        keeper_log("error", "descriptors cannot be held: %s", strerror(EMFILE));
                } else if (r == 0) {
                        r = handle(keeper, connection, &message, length, &set);
                        wire_fds_deinit(&set);
                } else if (r > 0) {
                        r = -EPROTO;
                }
                /* Whoever does not wait for the answer is gone, but what it sent still counts. */
                if (r == 0 || r == -EPIPE || r == -ECONNRESET)
                        continue;
                keeper_log("warning", "the connection of process %d is closed: %s",
                           (int)connection->pid, strerror(-r));
                close_connection(connection);
        }
}

/* --- the daemon's life ---------------------------------------------------------------------------
 */

/* Sockets that the daemon did not take down itself. */
static void unlink_listeners(const struct keeper *keeper)
{
        for (uint64_t id = 0; id < HOLDINGS_LISTEN_MAX; id++) {
                const struct holding *holding = holdings_find(&keeper->holdings, KEEPER_LISTEN, id);
                struct sockaddr_un address = {0};
                socklen_t length = sizeof(address);

                if (holding &&
                    getsockname(holding->fd, (struct sockaddr *)&address, &length) == 0 &&
                    length > sizeof(sa_family_t) && address.sun_path[0] == '/')
                        unlink(address.sun_path);
        }
}

/* The exit status to end with, or -1 to go on. */
static int on_daemon_ended(struct keeper *keeper)
{
        struct supervisor *supervisor = &keeper->supervisor;
        uint64_t now = wire_now_ns();
        int status = 0;
        bool ours;

        /* What it sent before it died is still in the queue. */
        for (int i = 0; i < KEEPER_CONNECTIONS_MAX; i++) {
                struct keeper_connection *connection = &keeper->connections[i];

                if (!connection->is_daemon)
                        continue;
                while (connection->fd >= 0 && connection->is_daemon) {
                        struct pollfd poller = {.fd = connection->fd, .events = POLLIN};

                        if (poll(&poller, 1, 0) <= 0)
                                break;
                        serve(keeper, connection);
                }
                close_connection(connection);
        }
        if (keeper->daemon_pidfd >= 0)
                close(keeper->daemon_pidfd);
        keeper->daemon_pidfd = -1;
        ours = supervisor_reap(supervisor, &status);
        if (!supervisor->arguments) {
                keeper_log("info", "the daemon (process %d) is gone; %u descriptors are kept",
                           (int)keeper->daemon_pid, keeper->holdings.count);
                return -1;
        }
        if (supervisor->told_to_stop || keeper->stopping)
                return ours && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        if (!supervisor_died(supervisor, now))
                return ours && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (now - supervisor->logged_ns > UINT64_C(1000000000)) {
                supervisor->logged_ns = now;
                keeper_log("warning",
                           "the daemon (process %d) has died (%s %d); %u descriptors are kept, "
                           "another is started",
                           (int)keeper->daemon_pid,
                           !ours                 ? "status"
                           : WIFSIGNALED(status) ? "signal"
                                                 : "exit status",
                           !ours                 ? 0
                           : WIFSIGNALED(status) ? WTERMSIG(status)
                                                 : WEXITSTATUS(status),
                           keeper->holdings.count);
        }
        return -1;
}

static void start_daemon(struct keeper *keeper)
{
        struct supervisor *supervisor = &keeper->supervisor;
        int fd, pidfd, r;

        r = supervisor_start(supervisor, &fd);
        if (r == 0) {
                pidfd = pidfd_open(supervisor->child, 0);
                if (pidfd < 0) {
                        r = -errno;
                        close(fd);
                        kill(supervisor->child, SIGKILL);
                }
        }
        if (r == 0) {
                /* The pair is made here, so the kernel names us as the peer: what is known of the
                 * child is better. */
                for (int i = 0; i < KEEPER_CONNECTIONS_MAX; i++) {
                        struct keeper_connection *connection = &keeper->connections[i];

                        if (connection->fd >= 0)
                                continue;
                        *connection = (struct keeper_connection){
                                .fd = fd, .pidfd = pidfd, .pid = supervisor->child};
                        keeper->daemon_pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
                        keeper->daemon_pid = supervisor->child;
                        return;
                }
                r = -EUSERS;
                close(fd);
                close(pidfd);
                kill(supervisor->child, SIGKILL);
        }
        keeper_log("error", "the daemon cannot be started: %s", strerror(-r));
        supervisor_died(supervisor, wire_now_ns());
}

static int on_signal(struct keeper *keeper)
{
        struct signalfd_siginfo info;
        struct supervisor *supervisor = &keeper->supervisor;

        if (read(keeper->signal_fd, &info, sizeof(info)) != sizeof(info) ||
            info.ssi_signo == SIGCHLD)
                return -1;
        keeper->stopping = true;
        if (supervisor->arguments && keeper->daemon_pidfd >= 0) {
                pidfd_send_signal(keeper->daemon_pidfd, SIGTERM, NULL, 0);
                supervisor->kill_ns = wire_now_ns() + SUPERVISOR_STOP_MS * UINT64_C(1000000);
                return -1;
        }
        keeper_log("info", "stopping; %u descriptors are let go", keeper->holdings.count);
        return 0;
}

/* What is due by the clock. Returns how long the loop may sleep, ms; -1: until something happens.
 */
static int run_clock(struct keeper *keeper)
{
        struct supervisor *supervisor = &keeper->supervisor;
        uint64_t now = wire_now_ns(), next;

        if (supervisor->start_ns != 0 && now >= supervisor->start_ns && !keeper->stopping)
                start_daemon(keeper);
        if (supervisor->kill_ns != 0 && now >= supervisor->kill_ns && keeper->daemon_pidfd >= 0) {
                supervisor->kill_ns = 0;
                pidfd_send_signal(keeper->daemon_pidfd, SIGKILL, NULL, 0);
        }
        next = supervisor->kill_ns ? supervisor->kill_ns : supervisor->start_ns;
        if (next == 0)
                return -1;
        return next > now ? (int)((next - now) / 1000000u) + 1 : 0;
}

int keeper_run(struct keeper *keeper)
{
        enum { SIGNALS, LISTEN, DAEMON, CONNECTIONS };
        int status = -1;

        if (keeper->supervisor.arguments && keeper->daemon_pidfd < 0 && !keeper->supervisor.adopted)
                start_daemon(keeper);
        while (status < 0) {
                struct pollfd pollers[CONNECTIONS + KEEPER_CONNECTIONS_MAX];
                int timeout_ms = run_clock(keeper);

                pollers[SIGNALS] = (struct pollfd){.fd = keeper->signal_fd, .events = POLLIN};
                pollers[LISTEN] = (struct pollfd){.fd = keeper->listen_fd, .events = POLLIN};
                pollers[DAEMON] = (struct pollfd){.fd = keeper->daemon_pidfd, .events = POLLIN};
                for (int i = 0; i < KEEPER_CONNECTIONS_MAX; i++)
                        pollers[CONNECTIONS + i] =
                                (struct pollfd){.fd = keeper->connections[i].fd, .events = POLLIN};
                if (poll(pollers, CONNECTIONS + KEEPER_CONNECTIONS_MAX, timeout_ms) < 0) {
                        if (errno == EINTR)
                                continue;
                        return 1;
                }
                for (int i = 0; i < KEEPER_CONNECTIONS_MAX; i++)
                        if (pollers[CONNECTIONS + i].revents &&
                            keeper->connections[i].fd == pollers[CONNECTIONS + i].fd)
                                serve(keeper, &keeper->connections[i]);
                if (pollers[LISTEN].revents) {
                        int fd = accept4(keeper->listen_fd, NULL, NULL, SOCK_CLOEXEC);

                        if (fd >= 0)
                                keeper_add_consume_fd(keeper, fd);
                }
                if (pollers[DAEMON].revents && keeper->daemon_pidfd == pollers[DAEMON].fd)
                        status = on_daemon_ended(keeper);
                if (status < 0 && pollers[SIGNALS].revents)
                        status = on_signal(keeper);
        }
        if (keeper->supervisor.arguments && !keeper->supervisor.told_to_stop)
                unlink_listeners(keeper);
        return status;
}
