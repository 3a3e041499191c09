/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/accept.h"
#include "daemon/daemon.h"
#include "daemon/session.h"
#include "libclient/wire/wire.h"

/* Connections taken in one turn: sessions that work are served in between. */
#define ACCEPT_BATCH 16

struct acceptor {
        struct daemon *daemon;
        int fd; /* borrowed */
        sd_event_source *io, *pause;
};

static void complain(struct acceptor *acceptor, const char *what, int error)
{
        struct daemon *daemon = acceptor->daemon;
        uint64_t suppressed;

        if (log_limit_allow(&daemon->accept_limit, wire_now_ns(), &suppressed))
                log_warning(&daemon->log, what, LOG_ID(MESSAGE_ID_CLIENT_REFUSED),
                            LOG_TEXT("error", strerror(-error)),
                            LOG_U64("sessions", daemon->sessions_count),
                            LOG_U64("suppressed", suppressed));
}

static void pause_accepting(struct acceptor *acceptor)
{
        sd_event_source_set_enabled(acceptor->io, SD_EVENT_OFF);
        sd_event_source_set_time_relative(acceptor->pause, ACCEPT_PAUSE_MS * UINT64_C(1000));
        sd_event_source_set_enabled(acceptor->pause, SD_EVENT_ONESHOT);
}

static int on_pause_over(sd_event_source *source, uint64_t now_us, void *userdata)
{
        struct acceptor *acceptor = userdata;

        (void)source;
        (void)now_us;
        return sd_event_source_set_enabled(acceptor->io, SD_EVENT_ON);
}

static int on_connect(sd_event_source *source, int listen_fd, uint32_t revents, void *userdata)
{
        struct acceptor *acceptor = userdata;

        (void)source;
        (void)revents;
        for (int i = 0; i < ACCEPT_BATCH; i++) {
                int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                int r = fd < 0 ? -errno : session_new_consume_fd(acceptor->daemon, fd);

                if (r >= 0)
                        continue;
                if (fd < 0 && (r == -EAGAIN || r == -EINTR || r == -ECONNABORTED))
                        return 0;
                complain(acceptor,
                         fd < 0 ? "a client cannot be accepted" : "a client was turned away", r);
                if (r == -EMFILE || r == -ENFILE || r == -ENOBUFS || r == -ENOMEM || fd < 0) {
                        pause_accepting(acceptor);
                        return 0;
                }
        }
        return 0;
}

int acceptor_new(struct acceptor **out, struct daemon *daemon, int listen_fd)
{
        struct acceptor *acceptor = calloc(1, sizeof(*acceptor));
        int r;

        *out = NULL;
        if (!acceptor)
                return -ENOMEM;
        acceptor->daemon = daemon;
        acceptor->fd = listen_fd;
        r = sd_event_add_time(daemon->event, &acceptor->pause, CLOCK_MONOTONIC, 0, 1000,
                              on_pause_over, acceptor);
        if (r >= 0)
                r = sd_event_source_set_enabled(acceptor->pause, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_io(daemon->event, &acceptor->io, listen_fd, EPOLLIN, on_connect,
                                    acceptor);
        if (r < 0) {
                acceptor_free(acceptor);
                return r;
        }
        *out = acceptor;
        return 0;
}

struct acceptor *acceptor_free(struct acceptor *acceptor)
{
        if (!acceptor)
                return NULL;
        sd_event_source_disable_unref(acceptor->io);
        sd_event_source_disable_unref(acceptor->pause);
        free(acceptor);
        return NULL;
}
