/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/keeper_link.h"
#include "libclient/wire/wire.h"

/* Between two tries to start or reach a keeper, from the second on. */
#define RETRY_US UINT64_C(100000)
#define RETRY_MS 2
#define SEND_MS  1000

/* The descriptor under which a keeper that is started finds the socket. */
#define ADOPT_FD 3

extern char **environ;

struct operation {
        STAILQ_ENTRY(operation) link;
        uint16_t type;
        int fd;
        uint32_t kind;
        uint64_t id;
        uint32_t serial; /* of the message it went with */
        keeper_done_t *done;
        void *userdata;
};
STAILQ_HEAD(operations, operation);

struct keeper_link {
        int fd; /* -1: no keeper now */
        struct keeper_link_options options;
        uint32_t serial;      /* of the last message */
        uint32_t outstanding; /* messages not yet answered */
        struct operations queue, sent;
        pid_t child; /* a keeper that we started; 0: none */

        sd_event *event; /* NULL before the start */
        sd_event_source *io, *retry;
        struct log *log;
        void (*hand_over)(void *userdata);
        void *userdata;
        uint64_t lost_us; /* when the last keeper was lost */
        bool stopping;
};

/* --- one message and its answer, waiting --------------------------------------------------------
 */

static void header_init(struct keeper_link *link, struct keeper_message *message, uint16_t type,
                        uint16_t count, uint64_t value)
{
        message->header = (struct keeper_header){
                .length = (uint32_t)(sizeof(message->header) + count * sizeof(message->entries[0])),
                .type = type,
                .count = count,
                .serial = ++link->serial,
                .value = value,
        };
}

static int call(struct keeper_link *link, struct keeper_message *message, struct wire_fds *set)
{
        uint64_t deadline = wire_deadline_ns(KEEPER_ANSWER_MS);
        const struct keeper_header request = message->header;
        size_t length;
        int r;

        r = wire_send(link->fd, message, message->header.length, 0);
        if (r < 0)
                return r;
        r = wire_receive_until(link->fd, message, sizeof(*message), set, &length, deadline);
        if (r != 0)
                return r < 0 ? r : -ECONNRESET;
        if (length < sizeof(message->header) || message->header.length != length ||
            message->header.serial != request.serial || message->header.type != request.type ||
            message->header.count > KEEPER_ENTRIES_MAX ||
            length !=
                    sizeof(message->header) + message->header.count * sizeof(message->entries[0]) ||
            set->count != message->header.count) {
                wire_fds_deinit(set);
                return -EPROTO;
        }
        return message->header.result;
}

static void hello_init(struct keeper_link *link, struct keeper_message *message)
{
        header_init(link, message, KEEPER_HELLO, 1, KEEPER_MAGIC);
        message->entries[0] = (struct keeper_entry){.version = KEEPER_VERSION};
}

static int connect_to(const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd, r;

        if (strlen(path) >= sizeof(address.sun_path))
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, strlen(path) + 1);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                r = -errno;
                close(fd);
                return r;
        }
        return fd;
}

int keeper_link_new_consume_fd(struct keeper_link **out, int fd,
                               const struct keeper_link_options *options, uint64_t *held)
{
        struct keeper_link *link = calloc(1, sizeof(*link));
        struct keeper_message message;
        struct wire_fds set;
        int r;

        *out = NULL;
        if (!link) {
                if (fd >= 0)
                        close(fd);
                return -ENOMEM;
        }
        link->fd = fd;
        link->options = *options;
        STAILQ_INIT(&link->queue);
        STAILQ_INIT(&link->sent);
        if (fd < 0) {
                link->fd = connect_to(options->path);
                if (link->fd < 0) {
                        r = link->fd;
                        keeper_link_free(link);
                        return r;
                }
        } else {
                fcntl(fd, F_SETFD, FD_CLOEXEC);
        }
        hello_init(link, &message);
        r = call(link, &message, &set);
        if (r < 0) {
                keeper_link_free(link);
                return r;
        }
        *held = message.header.value;
        *out = link;
        return 0;
}

int keeper_link_fetch(struct keeper_link *link,
                      void (*take)(void *userdata, uint32_t kind, uint64_t id, int fd),
                      void *userdata)
{
        uint64_t deadline = wire_deadline_ns(KEEPER_ANSWER_MS), cursor = 0;

        do {
                struct keeper_message message;
                struct wire_fds set;
                int r;

                header_init(link, &message, KEEPER_FETCH, 0, cursor);
                r = call(link, &message, &set);
                if (r == -EAGAIN && wire_now_ns() < deadline) {
                        const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};

                        nanosleep(&pause, NULL);
                        continue;
                }
                if (r < 0)
                        return r;
                for (uint32_t i = 0; i < message.header.count; i++)
                        take(userdata, message.entries[i].kind, message.entries[i].id,
                             wire_fds_take(&set, i));
                cursor = message.header.value;
        } while (cursor != 0);
        return 0;
}

/* --- the queue -----------------------------------------------------------------------------------
 */

static void lose_keeper(struct keeper_link *link);

/* Takes operations of one type off the queue into one message. */
static uint32_t take_batch(struct keeper_link *link, struct keeper_message *message, int *fds,
                           struct operations *batch)
{
        uint16_t type = STAILQ_FIRST(&link->queue)->type;
        uint32_t most = type == KEEPER_PUT || type == KEEPER_DROP ? KEEPER_ENTRIES_MAX : 1;
        struct operation *operation;
        uint32_t count = 0;

        STAILQ_INIT(batch);
        while (count < most && (operation = STAILQ_FIRST(&link->queue)) &&
               operation->type == type) {
                STAILQ_REMOVE_HEAD(&link->queue, link);
                STAILQ_INSERT_TAIL(batch, operation, link);
                message->entries[count] =
                        (struct keeper_entry){.id = operation->id, .kind = operation->kind};
                fds[count++] = operation->fd;
        }
        if (type == KEEPER_HELLO) {
                hello_init(link, message);
                return count;
        }
        header_init(link, message, type,
                    type == KEEPER_PUT || type == KEEPER_DROP ? (uint16_t)count : 0, 0);
        return count;
}

static void flush(struct keeper_link *link)
{
        while (link->fd >= 0 && !STAILQ_EMPTY(&link->queue) &&
               link->outstanding < KEEPER_OUTSTANDING_MAX) {
                struct keeper_message message;
                struct operations batch;
                struct operation *operation;
                int fds[KEEPER_ENTRIES_MAX];
                uint32_t count = take_batch(link, &message, fds, &batch);
                int r;

                r = wire_send_with_fds(link->fd, &message, message.header.length, fds,
                                       message.header.type == KEEPER_PUT ? count : 0, MSG_DONTWAIT);
                if (r < 0) {
                        /* (A full queue, or too many descriptors in flight: answers will make
                         * room, or the timer tries again.) */
                        STAILQ_CONCAT(&batch, &link->queue);
                        STAILQ_CONCAT(&link->queue, &batch);
                        if (r != -EAGAIN && r != -ETOOMANYREFS) {
                                lose_keeper(link);
                        } else if (link->outstanding == 0 && link->retry) {
                                sd_event_source_set_time_relative(link->retry, RETRY_MS * 1000);
                                sd_event_source_set_enabled(link->retry, SD_EVENT_ONESHOT);
                        }
                        return;
                }
                link->outstanding++;
                for (operation = STAILQ_FIRST(&batch); operation;
                     operation = STAILQ_NEXT(operation, link))
                        operation->serial = message.header.serial;
                STAILQ_CONCAT(&link->sent, &batch);
        }
}

static int enqueue(struct keeper_link *link, const struct operation *wanted)
{
        struct operation *operation = malloc(sizeof(*operation));

        if (!operation)
                return -ENOMEM;
        *operation = *wanted;
        STAILQ_INSERT_TAIL(&link->queue, operation, link);
        return 0;
}

int keeper_link_put(struct keeper_link *link, uint32_t kind, uint64_t id, int fd,
                    keeper_done_t *done, void *userdata)
{
        int r = enqueue(link, &(struct operation){.type = KEEPER_PUT,
                                                  .fd = fd,
                                                  .kind = kind,
                                                  .id = id,
                                                  .done = done,
                                                  .userdata = userdata});

        flush(link);
        return r;
}

int keeper_link_drop(struct keeper_link *link, uint32_t kind, uint64_t id, keeper_done_t *done,
                     void *userdata)
{
        struct operation *operation, *next;
        int r;

        /* What was not sent yet need not be. (Its descriptor is about to be closed.) */
        for (operation = STAILQ_FIRST(&link->queue); operation; operation = next) {
                next = STAILQ_NEXT(operation, link);
                if (operation->type == KEEPER_PUT && operation->kind == kind &&
                    operation->id == id) {
                        STAILQ_REMOVE(&link->queue, operation, operation, link);
                        free(operation);
                }
        }
        r = enqueue(link, &(struct operation){.type = KEEPER_DROP,
                                              .fd = -1,
                                              .kind = kind,
                                              .id = id,
                                              .done = done,
                                              .userdata = userdata});
        flush(link);
        return r;
}

int keeper_link_ready(struct keeper_link *link)
{
        int r = enqueue(link, &(struct operation){.type = KEEPER_READY, .fd = -1});

        flush(link);
        return r;
}

void keeper_link_stop(struct keeper_link *link)
{
        struct keeper_message message;

        link->stopping = true;
        if (link->fd < 0)
                return;
        flush(link);
        header_init(link, &message, KEEPER_STOP, 0, 0);
        wire_send(link->fd, &message, message.header.length, MSG_DONTWAIT);
}

/* --- answers -------------------------------------------------------------------------------------
 */

/* 0, or negative errno: the connection is no good. */
static int receive(struct keeper_link *link)
{
        struct operation *operation;
        struct keeper_message message;
        struct wire_fds set;
        size_t length;
        int r;

        r = wire_receive(link->fd, &message, sizeof(message), &set, &length, MSG_DONTWAIT);
        if (r != 0)
                return r < 0 ? r : -ECONNRESET;
        wire_fds_deinit(&set);
        operation = STAILQ_FIRST(&link->sent);
        if (length != sizeof(message.header) || message.header.count != 0 || !operation ||
            message.header.serial != operation->serial || message.header.type != operation->type)
                return -EPROTO;
        link->outstanding--;
        if (message.header.type == KEEPER_HELLO && message.header.result < 0)
                return message.header.result;
        if (message.header.type == KEEPER_PUT && message.header.result < 0)
                log_error(link->log, "the keeper does not hold what it was given",
                          LOG_TEXT("error", strerror(-message.header.result)));
        while ((operation = STAILQ_FIRST(&link->sent)) &&
               operation->serial == message.header.serial) {
                STAILQ_REMOVE_HEAD(&link->sent, link);
                if (operation->done)
                        operation->done(operation->userdata, operation->id, message.header.result);
                free(operation);
        }
        return 0;
}

void keeper_link_send_all(struct keeper_link *link)
{
        uint64_t deadline = wire_deadline_ns(SEND_MS);

        flush(link);
        while (link->fd >= 0 && !STAILQ_EMPTY(&link->queue) && wire_now_ns() < deadline) {
                int r = 0;

                if (link->outstanding > 0) {
                        r = wire_wait(link->fd, POLLIN, deadline);
                        if (r == 0)
                                r = receive(link);
                } else {
                        const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};

                        nanosleep(&pause, NULL);
                }
                if (r < 0 && r != -EAGAIN && r != -ETIMEDOUT) {
                        lose_keeper(link);
                        return;
                }
                flush(link);
        }
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
        struct keeper_link *link = userdata;
        int r;

        (void)source;
        (void)fd;
        (void)revents;
        do
                r = receive(link);
        while (r == 0 && link->fd >= 0);
        if (r != -EAGAIN && r < 0) {
                lose_keeper(link);
                return 0;
        }
        flush(link);
        return 0;
}

/* --- another keeper ------------------------------------------------------------------------------
 */

/* What was asked of the one that is gone. */
static void settle(struct keeper_link *link)
{
        struct operations settled = STAILQ_HEAD_INITIALIZER(settled);
        struct operations again = STAILQ_HEAD_INITIALIZER(again);
        struct operation *operation;

        STAILQ_CONCAT(&settled, &link->sent);
        STAILQ_CONCAT(&settled, &link->queue);
        link->outstanding = 0;
        while ((operation = STAILQ_FIRST(&settled))) {
                STAILQ_REMOVE_HEAD(&settled, link);
                if (operation->type == KEEPER_PUT && operation->done) {
                        STAILQ_INSERT_TAIL(&again, operation, link);
                        continue;
                }
                if (operation->type == KEEPER_DROP && operation->done)
                        operation->done(operation->userdata, operation->id, 0);
                free(operation);
        }
        /* (Callbacks may have queued more.) */
        STAILQ_CONCAT(&again, &link->queue);
        STAILQ_CONCAT(&link->queue, &again);
}

static int start_keeper(struct keeper_link *link)
{
        char adopted[16], *arguments[64] = {(char *)link->options.keeper, (char *)"--adopt",
                                            adopted, (char *)"--"};
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        size_t count = 4;
        sigset_t none, all;
        int pair[2], r;

        snprintf(adopted, sizeof(adopted), "%d", ADOPT_FD);
        for (char *const *from = link->options.arguments; *from && count < 63; from++)
                arguments[count++] = *from;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return -errno;
        /* (A dup onto itself would leave close-on-exec set.) */
        if (pair[1] == ADOPT_FD) {
                int moved = fcntl(pair[1], F_DUPFD_CLOEXEC, ADOPT_FD + 1);

                close(pair[1]);
                pair[1] = moved;
        }
        sigemptyset(&none);
        sigfillset(&all);
        sigdelset(&all, SIGKILL);
        sigdelset(&all, SIGSTOP);
        posix_spawn_file_actions_init(&actions);
        posix_spawnattr_init(&attributes);
        posix_spawn_file_actions_adddup2(&actions, pair[1], ADOPT_FD);
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setsigdefault(&attributes, &all);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        r = -posix_spawn(&link->child, link->options.keeper, &actions, &attributes, arguments,
                         environ);
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
        close(pair[1]);
        if (r < 0) {
                link->child = 0;
                close(pair[0]);
                return r;
        }
        return pair[0];
}

/* Finds another keeper and hands everything over. */
static void find_keeper(struct keeper_link *link)
{
        struct operations waiting = STAILQ_HEAD_INITIALIZER(waiting);
        int r;

        link->fd = link->options.path ? connect_to(link->options.path) : start_keeper(link);
        r = link->fd;
        if (r >= 0)
                r = sd_event_add_io(link->event, &link->io, link->fd, EPOLLIN, on_io, link);
        if (r < 0) {
                if (link->fd >= 0)
                        close(link->fd);
                link->fd = -1;
                sd_event_source_set_time_relative(link->retry, RETRY_US);
                sd_event_source_set_enabled(link->retry, SD_EVENT_ONESHOT);
                return;
        }
        STAILQ_CONCAT(&waiting, &link->queue);
        enqueue(link, &(struct operation){.type = KEEPER_HELLO, .fd = -1});
        enqueue(link, &(struct operation){.type = KEEPER_RESET, .fd = -1});
        link->hand_over(link->userdata);
        STAILQ_CONCAT(&link->queue, &waiting);
        enqueue(link, &(struct operation){.type = KEEPER_READY, .fd = -1});
        log_warning(link->log, "another keeper has been handed everything",
                    LOG_I64("keeper", link->child));
        flush(link);
}

static int on_retry(sd_event_source *source, uint64_t now_us, void *userdata)
{
        struct keeper_link *link = userdata;

        (void)source;
        (void)now_us;
        if (link->fd < 0)
                find_keeper(link);
        else
                flush(link);
        return 0;
}

static void lose_keeper(struct keeper_link *link)
{
        uint64_t now_us = wire_now_ns() / 1000;
        bool soon = now_us - link->lost_us < RETRY_US;

        link->io = sd_event_source_disable_unref(link->io);
        if (link->fd >= 0)
                close(link->fd);
        link->fd = -1;
        if (link->child > 0) {
                /* It is dead or has broken the connection; either way it is not ours any more. */
                kill(link->child, SIGKILL);
                waitpid(link->child, NULL, 0);
                link->child = 0;
        }
        if (!link->event || link->stopping)
                return;
        link->lost_us = now_us;
        if (!soon)
                log_warning(link->log,
                            link->options.path
                                    ? "the keeper is gone; a crash of the daemon would now lose "
                                      "everything until it is back"
                                    : "the keeper is gone; another is started",
                            LOG_TEXT("path", link->options.path ? link->options.path : "-"));
        settle(link);
        sd_event_source_set_time_relative(link->retry, soon ? RETRY_US : 0);
        sd_event_source_set_enabled(link->retry, SD_EVENT_ONESHOT);
}

int keeper_link_start(struct keeper_link *link, sd_event *event, struct log *log,
                      void (*hand_over)(void *userdata), void *userdata)
{
        int r;

        link->log = log;
        link->hand_over = hand_over;
        link->userdata = userdata;
        link->event = sd_event_ref(event);
        r = sd_event_add_time(event, &link->retry, CLOCK_MONOTONIC, 0, 1000, on_retry, link);
        if (r >= 0)
                r = sd_event_source_set_enabled(link->retry, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_io(event, &link->io, link->fd, EPOLLIN, on_io, link);
        return r < 0 ? r : 0;
}

struct keeper_link *keeper_link_free(struct keeper_link *link)
{
        struct operation *operation;

        if (!link)
                return NULL;
        STAILQ_CONCAT(&link->queue, &link->sent);
        while ((operation = STAILQ_FIRST(&link->queue))) {
                STAILQ_REMOVE_HEAD(&link->queue, link);
                free(operation);
        }
        sd_event_source_disable_unref(link->io);
        sd_event_source_disable_unref(link->retry);
        sd_event_unref(link->event);
        if (link->fd >= 0)
                close(link->fd);
        free(link);
        return NULL;
}

bool keeper_link_is_own(const struct keeper_link *link)
{
        return !link->options.path;
}

bool keeper_link_is_idle(const struct keeper_link *link)
{
        return link->fd >= 0 && STAILQ_EMPTY(&link->queue) && STAILQ_EMPTY(&link->sent);
}
