/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/connection.c against a scripted peer on a socket pair: replies that are late, wrong or
 * missing, events in between, several threads. */
#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/connection.h"

struct peer {
        int fd;
        struct client_connection connection;
};

static unsigned late_count, notify_count;
static uint16_t late_type;

static void late(void *userdata, union connection_message *reply, struct wire_fds *fds)
{
        (void)userdata;
        late_count++;
        late_type = reply->header.type;
        wire_fds_deinit(fds);
}

static void notify(void *userdata)
{
        (void)userdata;
        notify_count++;
}

static void open_pair(struct peer *peer, uint32_t timeout_ms)
{
        int fds[2];

        late_count = notify_count = 0;
        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
        peer->fd = fds[0];
        CU_ASSERT_EQUAL_FATAL(
                client_connection_init_consume_fd(&peer->connection, fds[1], timeout_ms), 0);
        peer->connection.late = late;
        peer->connection.notify = notify;
}

static void close_pair(struct peer *peer)
{
        client_connection_deinit(&peer->connection);
        client_connection_deinit(&peer->connection); /* idempotent */
        if (peer->fd >= 0)
                close(peer->fd);
}

static void send_meminfo_reply(int fd, uint32_t serial, uint64_t device_bytes)
{
        struct gpumem_message_meminfo_reply reply = {.device_bytes = device_bytes};

        wire_message_init(&reply, GPUMEM_MESSAGE_MEMINFO_REPLY, serial);
        wire_send(fd, &reply, sizeof(reply), 0);
}

static void send_reclaim(int fd, uint64_t bytes)
{
        struct gpumem_message_event_reclaim event = {.bytes = bytes};

        wire_message_init(&event, GPUMEM_MESSAGE_EVENT_RECLAIM, 0);
        wire_send(fd, &event, sizeof(event), 0);
}

static int ask(struct peer *peer, uint64_t *device_bytes)
{
        struct gpumem_message_meminfo request;
        struct gpumem_message_meminfo_reply reply = {.device_bytes = 0};
        int r;

        wire_message_init(&request, GPUMEM_MESSAGE_MEMINFO, 0);
        r = client_connection_request(&peer->connection, &request.header, &reply, sizeof(reply));
        *device_bytes = reply.device_bytes;
        return r;
}

static uint32_t read_serial(int fd)
{
        union connection_message *message = malloc(sizeof(*message));
        struct wire_fds fds;
        uint32_t serial = 0;
        size_t length;

        wire_fds_init(&fds);
        if (wire_receive(fd, message, sizeof(*message), &fds, &length, 0) == 0)
                serial = message->header.serial;
        wire_fds_deinit(&fds);
        free(message);
        return serial;
}

/* The peer's replies may lie in the socket before they are asked for: serials are known. */
static void test_replies_and_events(void)
{
        struct connection_events events;
        struct peer peer;
        uint64_t bytes;

        open_pair(&peer, 1000);
        send_reclaim(peer.fd, 100);
        send_reclaim(peer.fd, 500);
        send_reclaim(peer.fd, 300);
        send_meminfo_reply(peer.fd, 1, 42);
        CU_ASSERT_EQUAL(ask(&peer, &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 42);
        CU_ASSERT_EQUAL(read_serial(peer.fd), 1);
        CU_ASSERT_EQUAL(notify_count, 1);
        CU_ASSERT(client_connection_has_events(&peer.connection));
        CU_ASSERT(client_connection_take_events(&peer.connection, &events));
        CU_ASSERT(events.reclaim);
        CU_ASSERT_EQUAL(events.reclaim_bytes, 500);
        CU_ASSERT_FALSE(client_connection_take_events(&peer.connection, &events));
        /* 0 is everything, whatever else was said. */
        send_reclaim(peer.fd, 100);
        send_reclaim(peer.fd, 0);
        send_reclaim(peer.fd, 300);
        CU_ASSERT_FATAL(client_connection_try_turn(&peer.connection));
        CU_ASSERT_EQUAL(client_connection_drain(&peer.connection), 0);
        client_connection_pass_turn(&peer.connection);
        CU_ASSERT(client_connection_take_events(&peer.connection, &events));
        CU_ASSERT_EQUAL(events.reclaim_bytes, 0);
        close_pair(&peer);
}

static void test_error_reply(void)
{
        struct gpumem_message_error error = {.code = -GPUMEM_E_PERMISSION};
        struct peer peer;
        uint64_t bytes;

        open_pair(&peer, 1000);
        strcpy(error.text, "not on a Sunday");
        wire_message_init(&error, GPUMEM_MESSAGE_ERROR, 1);
        wire_send(peer.fd, &error, sizeof(error), 0);
        CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_PERMISSION);
        CU_ASSERT_STRING_EQUAL(gpumem_error_message(), "not on a Sunday");
        /* The connection goes on. */
        send_meminfo_reply(peer.fd, 2, 7);
        CU_ASSERT_EQUAL(ask(&peer, &bytes), 0);
        close_pair(&peer);
}

/* Whatever the peer sends that it should not: DOWN, now and from then on; descriptors are closed.
 */
static void test_garbage(void)
{
        struct gpumem_message_meminfo_reply reply = {0};
        struct gpumem_message_return_reply other = {0};
        struct gpumem_message_error error = {.code = 3};
        unsigned char bytes[64] = {0};

        for (int what = 0; what < 9; what++) {
                struct peer peer;
                uint64_t value;
                int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

                open_pair(&peer, 300);
                wire_message_init(&reply, GPUMEM_MESSAGE_MEMINFO_REPLY, 1);
                wire_message_init(&other, GPUMEM_MESSAGE_RETURN_REPLY, 1);
                wire_message_init(&error, GPUMEM_MESSAGE_ERROR, 1);
                switch (what) {
                case 0:
                        wire_send(peer.fd, bytes, sizeof(bytes), 0);
                        break;
                case 1: /* shorter than it says */
                        wire_send(peer.fd, &reply, sizeof(reply) - 8, 0);
                        break;
                case 2: /* another request's serial */
                        reply.header.serial = 5;
                        wire_send(peer.fd, &reply, sizeof(reply), 0);
                        break;
                case 3: /* another request's type */
                        wire_send(peer.fd, &other, sizeof(other), 0);
                        break;
                case 4: /* a descriptor that it does not say */
                        wire_send_with_fds(peer.fd, &reply, sizeof(reply), &fd, 1, 0);
                        break;
                case 5: /* a text without end */
                        memset(error.text, 'x', sizeof(error.text));
                        wire_send(peer.fd, &error, sizeof(error), 0);
                        break;
                case 6: /* a request */
                        wire_message_init(&reply, GPUMEM_MESSAGE_MEMINFO, 1);
                        wire_send(peer.fd, &reply, sizeof(struct gpumem_message_meminfo), 0);
                        break;
                case 7: /* half a header */
                        CU_ASSERT_EQUAL(send(peer.fd, &reply, 9, 0), 9);
                        break;
                case 8: /* gone */
                        close(peer.fd);
                        peer.fd = -1;
                        break;
                }
                CU_ASSERT_EQUAL(ask(&peer, &value), GPUMEM_E_DOWN);
                if (!client_connection_is_down(&peer.connection))
                        fprintf(stderr, "case %d: %s ", what, gpumem_error_message());
                CU_ASSERT(strlen(gpumem_error_message()) > 10);
                CU_ASSERT_EQUAL(ask(&peer, &value), GPUMEM_E_DOWN);
                CU_ASSERT(client_connection_is_down(&peer.connection));
                CU_ASSERT_FALSE(client_connection_try_turn(&peer.connection));
                close_pair(&peer);
                close(fd);
        }
}

static struct client_connection *late_connection;

/* Asks something itself, and gets no answer in time. */
static void late_asks(void *userdata, union connection_message *reply, struct wire_fds *fds)
{
        struct gpumem_message_meminfo request;

        late(userdata, reply, fds);
        if (late_count > 1)
                return;
        wire_message_init(&request, GPUMEM_MESSAGE_MEMINFO, 0);
        CU_ASSERT_EQUAL(client_connection_exchange(late_connection, &request.header, 0),
                        GPUMEM_E_TIMEOUT);
}

/* One request is outstanding, whatever the handler of a late reply does. */
static void test_late_twice(void)
{
        struct peer peer;
        uint64_t bytes;

        open_pair(&peer, 150);
        late_connection = &peer.connection;
        peer.connection.late = late_asks;
        CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_TIMEOUT);
        CU_ASSERT_EQUAL(read_serial(peer.fd), 1);
        send_meminfo_reply(peer.fd, 1, 1);
        CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_TIMEOUT);
        CU_ASSERT_EQUAL(late_count, 1);
        /* The handler's request, and no other. */
        CU_ASSERT_EQUAL(read_serial(peer.fd), 2);
        CU_ASSERT_EQUAL(recv(peer.fd, &bytes, sizeof(bytes), MSG_DONTWAIT), -1);
        send_meminfo_reply(peer.fd, 2, 2);
        send_meminfo_reply(peer.fd, 3, 3);
        CU_ASSERT_EQUAL(ask(&peer, &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 3);
        CU_ASSERT_EQUAL(late_count, 2);
        close_pair(&peer);
}

/* C14: no answer costs the deadline; the late answer is settled before the next request, whether
 * somebody asks or the session's thread listens. */
static void test_late(void)
{
        struct peer peer;
        uint64_t bytes, start;

        open_pair(&peer, 150);
        start = wire_now_ns();
        CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_TIMEOUT);
        CU_ASSERT(wire_now_ns() - start >= 140000000u);
        CU_ASSERT(wire_now_ns() - start < 2000000000u);
        /* Still nothing: the second request is not even sent. */
        CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_TIMEOUT);
        CU_ASSERT_EQUAL(read_serial(peer.fd), 1);
        send_meminfo_reply(peer.fd, 1, 1);
        send_meminfo_reply(peer.fd, 2, 2);
        CU_ASSERT_EQUAL(ask(&peer, &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 2);
        CU_ASSERT_EQUAL(late_count, 1);
        CU_ASSERT_EQUAL(late_type, GPUMEM_MESSAGE_MEMINFO_REPLY);

        CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_TIMEOUT);
        send_meminfo_reply(peer.fd, 3, 3);
        CU_ASSERT_FATAL(client_connection_try_turn(&peer.connection));
        CU_ASSERT_EQUAL(client_connection_drain(&peer.connection), 0);
        client_connection_pass_turn(&peer.connection);
        CU_ASSERT_EQUAL(late_count, 2);
        send_meminfo_reply(peer.fd, 4, 4);
        CU_ASSERT_EQUAL(ask(&peer, &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 4);
        /* An answer that nobody is owed is a fault. */
        send_meminfo_reply(peer.fd, 9, 4);
        CU_ASSERT_FATAL(client_connection_try_turn(&peer.connection));
        CU_ASSERT_EQUAL(client_connection_drain(&peer.connection), GPUMEM_E_DOWN);
        client_connection_pass_turn(&peer.connection);
        close_pair(&peer);
}

/* Turns go round in the order of waiting, and waiting has an end. */
static void test_turn_deadline(void)
{
        struct peer peer;
        uint64_t start;

        open_pair(&peer, 1000);
        CU_ASSERT_FATAL(client_connection_try_turn(&peer.connection));
        CU_ASSERT_FALSE(client_connection_try_turn(&peer.connection));
        start = wire_now_ns();
        CU_ASSERT_EQUAL(client_connection_take_turn(&peer.connection, wire_deadline_ns(100)),
                        GPUMEM_E_TIMEOUT);
        CU_ASSERT(wire_now_ns() - start < 2000000000u);
        client_connection_pass_turn(&peer.connection);
        CU_ASSERT_EQUAL(client_connection_take_turn(&peer.connection, wire_deadline_ns(100)), 0);
        client_connection_pass_turn(&peer.connection);
        close_pair(&peer);
}

#define ASKERS 4
#define ASKS   300

static void *echo(void *userdata)
{
        struct peer *peer = userdata;
        uint32_t serial;

        while ((serial = read_serial(peer->fd)) != 0) {
                if (serial % 7 == 0)
                        send_reclaim(peer->fd, serial);
                send_meminfo_reply(peer->fd, serial, serial);
        }
        return NULL;
}

static atomic_uint wrong;

static void *ask_often(void *userdata)
{
        uint64_t bytes;

        for (int i = 0; i < ASKS; i++)
                if (ask(userdata, &bytes) != 0 || bytes == 0)
                        atomic_fetch_add(&wrong, 1);
        return NULL;
}

static void test_threads(void)
{
        pthread_t server, askers[ASKERS];
        struct peer peer;

        atomic_store(&wrong, 0);
        open_pair(&peer, 5000);
        peer.connection.notify = NULL;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&server, NULL, echo, &peer), 0);
        for (int i = 0; i < ASKERS; i++)
                CU_ASSERT_EQUAL_FATAL(pthread_create(&askers[i], NULL, ask_often, &peer), 0);
        for (int i = 0; i < ASKERS; i++)
                pthread_join(askers[i], NULL);
        CU_ASSERT_EQUAL(atomic_load(&wrong), 0);
        CU_ASSERT_EQUAL(peer.connection.serial, ASKERS * ASKS);
        client_connection_deinit(&peer.connection);
        pthread_join(server, NULL);
        close_pair(&peer);
}

/* A peer that does not read: what could not be sent was not asked, so its serial comes again. */
static void test_queue_full(void)
{
        unsigned char filler[sizeof(struct gpumem_message_header)] = {0};
        struct peer peer;
        uint64_t bytes;
        int filled = 0;

        open_pair(&peer, 50);
        while (send(peer.connection.fd, filler, sizeof(filler), MSG_DONTWAIT) > 0)
                filled++;
        CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_TIMEOUT);
        CU_ASSERT_STRING_EQUAL(gpumem_error_message(), "gpumemd does not read its socket");
        CU_ASSERT_EQUAL(peer.connection.serial, 0);
        for (int i = 0; i < filled; i++)
                CU_ASSERT_EQUAL(recv(peer.fd, filler, sizeof(filler), 0), sizeof(filler));
        send_meminfo_reply(peer.fd, 1, 9);
        CU_ASSERT_EQUAL(ask(&peer, &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 9);
        CU_ASSERT_EQUAL(read_serial(peer.fd), 1);
        close_pair(&peer);
}

/* The daemon turns a session away: it says why and closes, before or after HELLO could be sent. */
static void test_turned_away(void)
{
        for (int unread = 0; unread < 2; unread++) {
                struct gpumem_message_error error = {.code = -GPUMEM_E_LIMIT};
                struct peer peer;
                uint64_t bytes;

                open_pair(&peer, 1000);
                strcpy(error.text, "too many sessions");
                wire_message_init(&error, GPUMEM_MESSAGE_ERROR, 1);
                CU_ASSERT_EQUAL(wire_send(peer.fd, &error, sizeof(error), 0), 0);
                /* Closing with something unread resets the connection, which hides what was said
                 * from those who give up at the first error. */
                if (unread)
                        CU_ASSERT_EQUAL(send(peer.connection.fd, "x", 1, 0), 1);
                close(peer.fd);
                peer.fd = -1;
                CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_LIMIT);
                CU_ASSERT_STRING_EQUAL(gpumem_error_message(), "too many sessions");
                CU_ASSERT(client_connection_is_down(&peer.connection));
                CU_ASSERT_EQUAL(ask(&peer, &bytes), GPUMEM_E_DOWN);
                close_pair(&peer);
        }
}

static void test_connect_path(void)
{
        struct client_connection connection;
        char path[200];

        memset(path, 'a', sizeof(path));
        path[sizeof(path) - 1] = '\0';
        CU_ASSERT_EQUAL(client_connection_init(&connection, path, 100), GPUMEM_E_INVALID);
        client_connection_deinit(&connection);
        CU_ASSERT_EQUAL(client_connection_init(&connection, "/nonexistent", 100), GPUMEM_E_DOWN);
        CU_ASSERT_PTR_NOT_NULL(
                strstr(gpumem_error_message(), "/nonexistent: No such file or directory"));
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "is gpumemd running?"));
        client_connection_deinit(&connection);
}

/* In a process of its own, without the power to pass by a socket's mode: does connecting fail with
 * this result, and these words? */
static bool fails_unprivileged(const char *path, int expected, const char *words)
{
        int status = -1;
        pid_t child = fork();

        CU_ASSERT_FATAL(child >= 0);
        if (child == 0) {
                struct client_connection connection;
                bool good = geteuid() != 0 ||
                            (setresgid(65534, 65534, 65534) == 0 && setgroups(0, NULL) == 0 &&
                             setresuid(65534, 65534, 65534) == 0);

                good = good && client_connection_init(&connection, path, 1000) == expected &&
                       strstr(gpumem_error_message(), path) &&
                       strstr(gpumem_error_message(), words);
                if (!good)
                        fprintf(stderr, "%s\n", gpumem_error_message());
                _exit(good ? 0 : 1);
        }
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        return status == 0;
}

static void test_connect_refused(void)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        char directory[] = "/tmp/gpumem-connect-XXXXXX";
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

        CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(directory));
        CU_ASSERT_EQUAL(chmod(directory, 0711), 0);
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/client.sock", directory);
        CU_ASSERT_EQUAL_FATAL(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        CU_ASSERT_EQUAL(chmod(address.sun_path, 0666), 0);
        /* Nobody listens: what a daemon that was killed leaves behind. */
        CU_ASSERT(fails_unprivileged(address.sun_path, GPUMEM_E_DOWN,
                                     "Connection refused; is gpumemd running?"));
        CU_ASSERT_EQUAL(listen(fd, 1), 0);
        CU_ASSERT_EQUAL(chmod(address.sun_path, 0), 0);
        CU_ASSERT(fails_unprivileged(address.sun_path, GPUMEM_E_PERMISSION, "group (gpumem"));
        close(fd);
        unlink(address.sun_path);
        rmdir(directory);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client connection", NULL, NULL);
        CU_add_test(suite, "replies and events", test_replies_and_events);
        CU_add_test(suite, "errors are typed", test_error_reply);
        CU_add_test(suite, "garbage is the end", test_garbage);
        CU_add_test(suite, "C14 late replies", test_late);
        CU_add_test(suite, "C14 late again", test_late_twice);
        CU_add_test(suite, "C14 turns have deadlines", test_turn_deadline);
        CU_add_test(suite, "four threads", test_threads);
        CU_add_test(suite, "C14 what was not sent was not asked", test_queue_full);
        CU_add_test(suite, "turned away", test_turned_away);
        CU_add_test(suite, "paths", test_connect_path);
        CU_add_test(suite, "no permission, nobody there", test_connect_refused);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
