/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/crash.h"
#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/filler.h"
#include "daemon/frame_pool.h"
#include "daemon/kept.h"
#include "daemon/request.h"
#include "daemon/session.h"
#include "daemon/state.h"
#include "daemon/tenant.h"
#include "daemon/tenant_holder.h"
#include "libclient/wire/wire.h"

/* A socket's queue holds fewer small packets than this. */
#define CLOSE_PACKETS_MAX 1024

/* --- output --- */

static void output_clear(struct session_output *output)
{
        free(output->message);
        free(output->fds);
        *output = (struct session_output){0};
}

static bool wants_to_send(const struct session *session)
{
        return session->output.message || session->reclaim_pending || session->device_pending ||
               session->resumed_pending;
}

/* Reading goes on while output waits: a second request then is a breach of the protocol, and the
 * end of the connection shows. */
static void watch_output(struct session *session)
{
        if (!session->io)
                return;
        sd_event_source_set_io_events(session->io,
                                      EPOLLIN | (wants_to_send(session) ? EPOLLOUT : 0));
}

static int output_keep(struct session *session, const void *message, size_t length, const int *fds,
                       size_t fds_count)
{
        struct session_output *output = &session->output;

        output->message = malloc(length);
        output->fds = fds_count > 0 ? malloc(fds_count * sizeof(*fds)) : NULL;
        if (!output->message || (fds_count > 0 && !output->fds)) {
                output_clear(output);
                return -ENOMEM;
        }
        memcpy(output->message, message, length);
        if (fds_count > 0)
                memcpy(output->fds, fds, fds_count * sizeof(*fds));
        output->length = length;
        output->fds_count = fds_count;
        watch_output(session);
        return 0;
}

static int send_resumed(struct session *session)
{
        struct gpumem_message_event_resumed message = {
                .epoch = session->daemon->epoch_ns,
                .serial = session->resumed_serial,
        };
        int r;

        if (!session->resumed_pending)
                return 0;
        wire_message_init(&message, GPUMEM_MESSAGE_EVENT_RESUMED, 0);
        r = wire_send(session->fd, &message, sizeof(message), MSG_DONTWAIT);
        session->resumed_pending = r != 0;
        return r;
}

static int send_reply(struct session *session, void *message, size_t length, const int *fds,
                      size_t fds_count)
{
        int r;

        r = send_resumed(session);
        if (r == 0)
                r = wire_send_with_fds(session->fd, message, length, fds, fds_count, MSG_DONTWAIT);
        if (r == -ETOOMANYREFS)
                return r;
        crash_point(session->daemon, "reply-sent");
        session->outstanding = false;
        if (r == -EAGAIN) {
                session->outstanding = true;
                r = output_keep(session, message, length, fds, fds_count);
        }
        if (r < 0)
                session_close(session, strerror(-r));
        return 0;
}

int session_reply(struct session *session, void *message, uint16_t type, size_t length,
                  const int *fds, size_t fds_count)
{
        if (session->fd < 0)
                return 0;
        wire_header_init(message, type, (uint32_t)length, (uint16_t)fds_count, session->serial);
        kept_session_commit(session, message, length);
        return send_reply(session, message, length, fds, fds_count);
}

void session_replay(struct session *session)
{
        const struct state_reply *reply =
                session->record ? state_committed_reply(session->record) : NULL;
        union {
                struct gpumem_message_header header;
                struct gpumem_message_grant_reply grant;
                uint8_t bytes[sizeof(reply->message)];
        } message;
        int fds[GPUMEM_MESSAGE_FDS_MAX];
        uint32_t count = 0;

        if (session->outstanding) /* it is on its way */
                return;
        if (!reply || reply->serial != session->serial) {
                session_close(session, "there is no answer to send again");
                return;
        }
        memcpy(message.bytes, reply->message, reply->length);
        if (message.header.type == GPUMEM_MESSAGE_GRANT_REPLY) {
                const struct frame_table *table = &session->device->table;

                for (; count < message.grant.frames && count < GPUMEM_MESSAGE_FDS_MAX; count++) {
                        uint64_t id = message.grant.frame_ids[count];

                        if (id >= table->count || table->frames[id].state != FRAME_GRANTED ||
                            table->frames[id].object->session != session) {
                                session_close(session, "granted frames are gone");
                                return;
                        }
                        fds[count] = table->frames[id].fd;
                }
        }
        if (send_reply(session, &message, reply->length, fds, count) == -ETOOMANYREFS)
                session_close(session, "too many descriptors are on their way");
}

static void refuse(struct session *session, int code, const char *format, va_list arguments)
{
        struct gpumem_message_error message = {.code = (uint32_t)-code};

        vsnprintf(message.text, sizeof(message.text), format, arguments);
        session_reply(session, &message, GPUMEM_MESSAGE_ERROR, sizeof(message), NULL, 0);
}

void session_refuse(struct session *session, int code, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        refuse(session, code, format, arguments);
        va_end(arguments);
}

static int send_reclaim(struct session *session)
{
        struct gpumem_message_event_reclaim message = {.bytes = session->reclaim_bytes};

        wire_message_init(&message, GPUMEM_MESSAGE_EVENT_RECLAIM, 0);
        return wire_send(session->fd, &message, sizeof(message), MSG_DONTWAIT);
}

static int send_device(struct session *session)
{
        struct gpumem_message_event_device message = {
                .state = session->device->state == DEVICE_LOST ? 2 : 1,
        };

        wire_message_init(&message, GPUMEM_MESSAGE_EVENT_DEVICE, 0);
        return wire_send(session->fd, &message, sizeof(message), MSG_DONTWAIT);
}

/* Sends what waits, until the peer's queue is full. 0, or negative errno: the connection is broken.
 */
static int flush(struct session *session)
{
        int r = send_resumed(session);

        if (r == 0 && session->output.message) {
                r = wire_send_with_fds(session->fd, session->output.message, session->output.length,
                                       session->output.fds, session->output.fds_count,
                                       MSG_DONTWAIT);
                if (r == 0) {
                        output_clear(&session->output);
                        session->outstanding = false;
                }
        }
        if (r == 0 && session->device_pending) {
                r = send_device(session);
                session->device_pending = r != 0;
        }
        if (r == 0 && session->reclaim_pending) {
                r = send_reclaim(session);
                session->reclaim_pending = r != 0;
        }
        watch_output(session);
        return r == -EAGAIN ? 0 : r;
}

static void send_events(struct session *session)
{
        int r;

        if (session->state != SESSION_OPEN || session->output.message)
                return;
        r = flush(session);
        if (r < 0)
                session_close(session, strerror(-r));
}

void session_send_reclaim(struct session *session, uint64_t bytes)
{
        session->reclaim_bytes = bytes;
        session->reclaim_pending = true;
        send_events(session);
}

void session_send_device(struct session *session)
{
        session->device_pending = true;
        send_events(session);
}

void session_protocol_error(struct session *session, int problem, const char *format, ...)
{
        char text[GPUMEM_TEXT_MAX];
        uint32_t bit = UINT32_C(1) << (problem & 31);
        uint64_t suppressed;
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        if (!(session->problems_logged & bit) &&
            log_limit_allow(&session->tenant->misbehaviour, wire_now_ns(), &suppressed)) {
                session->problems_logged |= bit;
                log_warning(&session->daemon->log, "a client broke the protocol",
                            LOG_ID(MESSAGE_ID_CLIENT_MISBEHAVED),
                            LOG_U64("session", session->number),
                            LOG_I64("pid", session->identity.pid),
                            LOG_U64("uid", session->identity.uid), LOG_TEXT("problem", text),
                            LOG_U64("suppressed", suppressed));
        }
        if (!session->output.message)
                session_refuse(session, GPUMEM_E_PROTOCOL, "%s", text);
        session_close(session, "protocol");
}

/* --- input --- */

static void receive(struct session *session)
{
        struct daemon *daemon = session->daemon;
        struct wire_fds set;
        size_t length, fds_count;
        int r;

        r = wire_receive(session->fd, daemon->buffer, GPUMEM_MESSAGE_MAX, &set, &length,
                         MSG_DONTWAIT);
        if (r == -EAGAIN)
                return;
        if (r < 0) {
                session_close(session, strerror(-r));
                return;
        }
        if (r == WIRE_CLOSED) {
                session_close(session, "closed by the client");
                return;
        }
        if (r > 0) {
                session_protocol_error(session, r, "%s", wire_problem_text(r));
                return;
        }
        /* No request carries descriptors: they are counted, closed, and the count is refused. */
        fds_count = set.count;
        wire_fds_deinit(&set);
        request_handle(session, daemon->buffer, length, fds_count);
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
        struct session *session = userdata;

        (void)source;
        (void)fd;
        if (revents & EPOLLOUT) {
                int r = flush(session);

                if (r < 0) {
                        session_close(session, strerror(-r));
                        return 0;
                }
        }
        if (revents & EPOLLIN)
                receive(session);
        else if (revents & (EPOLLHUP | EPOLLERR))
                session_close(session, "closed by the client");
        return 0;
}

static int on_hello_late(sd_event_source *source, uint64_t now_us, void *userdata)
{
        (void)source;
        (void)now_us;
        session_close(userdata, "no HELLO in time");
        return 0;
}

/* --- life --- */

/* The tenant counts this session no more; what the last one leaves behind is not worth scrubbing.
 */
static void leave_tenant(struct session *session)
{
        if (!session->counted)
                return;
        session->counted = false;
        if (--session->tenant->sessions > 0)
                return;
        list_for_each(node, &session->tenant->devices)
        {
                struct tenant_device *part = list_entry(node, struct tenant_device, tenant_link);

                filler_tenant_left(part->device, part);
        }
}

static void become_dead(struct session *session)
{
        struct daemon *daemon = session->daemon;

        session->state = SESSION_DEAD;
        kept_session_free(session);
        session->exit = sd_event_source_disable_unref(session->exit);
        list_unlink(&session->link);
        list_append(&daemon->dead, &session->link);
        daemon->sessions_count--;
        if (daemon->reaper)
                sd_event_source_set_enabled(daemon->reaper, SD_EVENT_ONESHOT);
        if (session->held && !identity_has_exited(&session->identity))
                tenant_add_holder(session->tenant, &session->identity);
        leave_tenant(session);
        tenant_forget(session->tenant);
        session->tenant = NULL;
        session->allotment = NULL;
}

static int on_exit_of_process(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
        struct session *session = userdata;

        (void)source;
        (void)fd;
        (void)revents;
        if (session->state != SESSION_DRAINING) {
                session_close(session, "the process ended");
                return 0;
        }
        leave_tenant(session);
        frame_pool_drained(session->device, session->allotment, &session->draining);
        device_wake(session->device);
        become_dead(session);
        return 0;
}

static void give_up_frames(struct session *session, bool exited)
{
        for (uint32_t i = 0; i < session->objects.capacity; i++) {
                struct object *object = session->objects.slots[i];

                while (object && object->frames.count > 0) {
                        if (exited)
                                frame_pool_return(session->device, session->allotment, object,
                                                  object->frames.first);
                        else
                                frame_pool_drain(session->device, session->allotment, object,
                                                 &session->draining, object->frames.first);
                }
        }
        object_table_deinit(&session->objects);
}

/* Packets that are left unread when the socket closes would make the kernel reset the connection,
 * and the peer would not see the ERROR that was just sent. */
static void close_socket(int fd)
{
        char byte;

        shutdown(fd, SHUT_RD);
        for (int i = 0; i < CLOSE_PACKETS_MAX; i++)
                if (recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) <= 0)
                        break;
        /* (The keeper may have it open as well.) */
        shutdown(fd, SHUT_WR);
        close(fd);
}

static void close_connection(struct session *session)
{
        session->io = sd_event_source_disable_unref(session->io);
        session->hello_timer = sd_event_source_disable_unref(session->hello_timer);
        if (session->fd >= 0 && session->daemon->leaving)
                close(session->fd);
        else if (session->fd >= 0)
                close_socket(session->fd);
        session->fd = -1;
        session->outstanding = false;
        output_clear(&session->output);
}

void session_close(struct session *session, const char *why)
{
        bool exited;

        if (session->state == SESSION_DRAINING || session->state == SESSION_DEAD)
                return;
        exited = identity_has_exited(&session->identity);
        if (!session->daemon->leaving) {
                log_at(&session->daemon->log,
                       session->state == SESSION_OPEN ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG,
                       "session closed", LOG_ID(MESSAGE_ID_SESSION_CLOSED),
                       LOG_U64("session", session->number), LOG_I64("pid", session->identity.pid),
                       LOG_TEXT("engine", session->name), LOG_TEXT("why", why),
                       LOG_TEXT("process", exited ? "ended" : "alive"),
                       LOG_U64("frames", session->frames));
                kept_session_close(session);
        }
        close_connection(session);
        if (session->device) {
                grant_cancel(session->device, &session->wait);
                list_unlink(&session->device_link);
                session->device->sessions_count--;
                if (exited)
                        leave_tenant(session);
                give_up_frames(session, exited);
                device_wake(session->device);
        }
        if (session->draining.count > 0)
                session->state = SESSION_DRAINING;
        else
                become_dead(session);
}

static void session_free(struct session *session)
{
        close_connection(session);
        session->exit = sd_event_source_disable_unref(session->exit);
        identity_deinit(&session->identity);
        object_table_deinit(&session->objects);
        list_unlink(&session->link);
        free(session);
}

void session_reap(struct daemon *daemon)
{
        list_for_each_safe(node, &daemon->dead)
                session_free(list_entry(node, struct session, link));
}

void session_close_all(struct daemon *daemon)
{
        list_for_each_safe(node, &daemon->sessions)
        {
                struct session *session = list_entry(node, struct session, link);

                session_close(session, "the daemon stops");
                if (session->state == SESSION_DRAINING) {
                        frame_pool_drained(session->device, session->allotment, &session->draining);
                        become_dead(session);
                }
        }
        session_reap(daemon);
}

static uint64_t realtime_us(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Room for one more of this tenant? One who is not root may have half of what the others leave. */
static bool has_room(const struct daemon *daemon, const struct tenant *tenant, uid_t uid)
{
        uint32_t others = daemon->sessions_count - tenant->sessions;

        if (daemon->sessions_count >= daemon->config.max_clients)
                return false;
        return uid == 0 || tenant->sessions < (daemon->config.max_clients - others + 1) / 2;
}

/* No session comes of this connection; the peer is told why. */
static void turn_away(int fd, int code, const char *text)
{
        struct gpumem_message_error message = {.code = (uint32_t)-code};

        snprintf(message.text, sizeof(message.text), "%s", text);
        wire_message_init(&message, GPUMEM_MESSAGE_ERROR, 1);
        wire_send(fd, &message, sizeof(message), MSG_DONTWAIT);
}

static int watch(struct session *session)
{
        sd_event *event = session->daemon->event;
        int r;

        if (session->fd >= 0) {
                r = sd_event_add_io(event, &session->io, session->fd, EPOLLIN, on_io, session);
                if (r < 0)
                        return r;
        }
        r = sd_event_add_io(event, &session->exit, session->identity.pidfd, EPOLLIN,
                            on_exit_of_process, session);
        if (r < 0)
                return r;
        return sd_event_add_time_relative(event, &session->hello_timer, CLOCK_MONOTONIC,
                                          SESSION_HELLO_MS * UINT64_C(1000), 100000, on_hello_late,
                                          session);
}

static struct session *session_alloc(struct daemon *daemon, int fd)
{
        struct session *session = calloc(1, sizeof(*session));

        if (!session)
                return NULL;
        list_init(&session->link);
        list_init(&session->device_link);
        session->daemon = daemon;
        session->fd = fd;
        identity_init(&session->identity);
        object_table_init(&session->objects);
        frame_list_init(&session->draining);
        grant_wait_init(&session->wait, session);
        return session;
}

int session_new_consume_fd(struct daemon *daemon, int fd)
{
        struct session *session = session_alloc(daemon, fd);
        struct tenant *tenant = NULL;
        int r;

        if (!session) {
                close(fd);
                return -ENOMEM;
        }
        session->connected_us = realtime_us();

        r = identity_of_peer(&session->identity, fd);
        if (r < 0)
                goto fail;
        r = tenant_get(&tenant, daemon, &session->identity);
        if (r < 0)
                goto fail;
        if (!has_room(daemon, tenant, session->identity.uid)) {
                turn_away(fd, GPUMEM_E_LIMIT, "too many clients are connected");
                r = -EUSERS;
                goto fail;
        }
        r = watch(session);
        if (r < 0)
                goto fail;
        session->tenant = tenant;
        session->counted = true;
        tenant->sessions++;
        session->number = ++daemon->sessions_last;
        list_append(&daemon->sessions, &session->link);
        daemon->sessions_count++;
        log_debug(&daemon->log, "client connected", LOG_U64("session", session->number),
                  LOG_I64("pid", session->identity.pid), LOG_U64("uid", session->identity.uid));
        return 0;

fail:
        if (tenant)
                tenant_forget(tenant);
        session_free(session);
        return r;
}

static int restore_objects(struct session *session, const struct state_session *old)
{
        session->objects.last = old->objects_last;
        for (uint32_t slot = 0; slot < STATE_OBJECTS_MAX; slot++) {
                const struct state_object *record = &old->objects[slot];
                int r;

                if (!state_object_exists(old, record))
                        continue;
                r = object_restore(&session->objects, session, record);
                if (r != 0)
                        return r < 0 ? r : -EBADMSG;
        }
        return 0;
}

int session_restore_consume_fd(struct session **out, struct daemon *daemon, struct device *device,
                               const struct state_session *old, int fd,
                               const struct identity *identity)
{
        const struct state_reply *reply = state_committed_reply(old);
        struct tenant *tenant = NULL;
        struct session *session = session_alloc(daemon, fd);
        struct identity owned = *identity;
        int r = -ENOMEM;

        *out = NULL;
        if (!session) {
                if (fd >= 0)
                        close(fd);
                identity_deinit(&owned);
                return -ENOMEM;
        }
        session->identity = owned;
        session->number = old->number;
        session->connected_us = old->connected_us;
        snprintf(session->name, sizeof(session->name), "%s", old->name);
        r = reply ? tenant_restore(&tenant, daemon, old) : -EBADMSG;
        if (r == 0)
                r = tenant_device_get(&session->allotment, tenant, device);
        if (r == 0)
                r = restore_objects(session, old);
        if (r == 0) {
                session->record = state_session_take(daemon->state, old->number);
                r = session->record ? watch(session) : -ENOSPC;
        }
        if (r < 0) {
                state_session_release(daemon->state, session->record);
                if (tenant)
                        tenant_forget(tenant);
                session_free(session);
                return r;
        }
        session->hello_timer = sd_event_source_disable_unref(session->hello_timer);
        session->tenant = tenant;
        session->counted = true;
        session->held = true; /* as far as is known */
        tenant->sessions++;
        session->device = device;
        session->state = SESSION_OPEN;
        session->resumable = old->resumable != 0;
        session->resumed = true;
        session->resumed_serial = session->serial = reply->serial;
        session->ticket = old->commit;
        kept_session_restore(session, old);
        list_append(&device->sessions, &session->device_link);
        device->sessions_count++;
        list_append(&daemon->sessions, &session->link);
        daemon->sessions_count++;
        if (daemon->sessions_last < session->number)
                daemon->sessions_last = session->number;
        *out = session;
        return 0;
}

void session_resume(struct session *session)
{
        session->resumed_pending = true;
        if (session->device->state != DEVICE_OK)
                session->device_pending = true;
        send_events(session);
}
