/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that send what they must not, against a real daemon. After each: the connection got a
 * typed error or was closed, the debug check is clean, a neighbour that behaves notices nothing,
 * and a new client is served.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/wire/wire.h"
#include "tests/support/daemon_process.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/raw_client.h"

#define CODE(error) (-(error))
#define FRAME       (UINT64_C(64) << 10)
#define FRAMES      64

static struct daemon_process *process;
static struct raw_client good, bad;
static uint64_t good_object, good_ids[4];
static uint8_t uuid[16];

/* The neighbour still has what it had, and everything adds up. */
static void still_fine(void)
{
        struct gpumem_message_meminfo_reply info;
        static struct raw_client fresh;
        uint64_t object, id;

        CU_ASSERT(daemon_process_alive(process));
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        CU_ASSERT_EQUAL(raw_meminfo(&good, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 4 * FRAME);
        CU_ASSERT_EQUAL(raw_open(&fresh, process, "fresh"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&fresh, 1, 8, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&fresh, object, 1, 1000, &id), 0);
        CU_ASSERT_EQUAL(raw_return(&fresh, object, 1, &id), 0);
        raw_close(&fresh);
}

static void connect_bad(void)
{
        CU_ASSERT_EQUAL_FATAL(raw_connect(&bad, daemon_process_client_socket(process)), 0);
}

static void open_bad(void)
{
        CU_ASSERT_EQUAL_FATAL(raw_open(&bad, process, "bad"), 0);
}

/* The daemon answers PROTOCOL (or nothing) and closes. */
static void expect_closed(void)
{
        int r;

        bad.serial = 0; /* whatever serial the error has */
        for (int i = 0; i < 100; i++) {
                struct wire_fds set;
                size_t length;

                r = wire_receive_until(bad.fd, bad.message, sizeof(bad.message), &set, &length,
                                       wire_deadline_ns(10000));
                wire_fds_deinit(&set);
                if (r != 0)
                        break;
                if (((struct gpumem_message_header *)(void *)bad.message)->type ==
                    GPUMEM_MESSAGE_ERROR)
                        CU_ASSERT_EQUAL(((struct gpumem_message_error *)(void *)bad.message)->code,
                                        CODE(GPUMEM_E_PROTOCOL));
        }
        CU_ASSERT_EQUAL(r, WIRE_CLOSED);
        raw_close(&bad);
}

static void send_bytes(const void *bytes, size_t length)
{
        ssize_t sent = send(bad.fd, bytes, length, MSG_NOSIGNAL);

        CU_ASSERT(sent == (ssize_t)length);
}

static int wait_for(pid_t pid)
{
        int status = -1;

        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        return status;
}

/* Frames of a closed session stay out of use while its process lives, so what ends with frames in
 * hand runs in a process of its own. */
static void in_child(void (*run)(void))
{
        pid_t pid = fork();

        if (pid == 0) {
                unsigned before = CU_get_number_of_failure_records();

                run();
                fflush(stdout);
                _exit(CU_get_number_of_failure_records() > before);
        }
        CU_ASSERT_EQUAL(wait_for(pid), 0);
        still_fine();
}

/* --- malformed --- */

/* A valid message of each request type, with room behind it. */
static size_t valid(uint16_t type, void *buffer)
{
        size_t length = 0;

        memset(buffer, 0, GPUMEM_MESSAGE_MAX);
        switch (type) {
        case GPUMEM_MESSAGE_HELLO: {
                struct gpumem_message_hello *hello = buffer;

                length = sizeof(*hello);
                hello->magic = GPUMEM_PROTOCOL_MAGIC;
                hello->version_min = hello->version_max = 1;
                hello->driver_kind = GPUMEM_DRIVER_SIMULATED;
                hello->granularity = 4096;
                memcpy(hello->device_uuid, uuid, sizeof(uuid));
                break;
        }
        case GPUMEM_MESSAGE_OBJECT_CREATE: {
                struct gpumem_message_object_create *create = buffer;

                length = sizeof(*create);
                create->kind = GPUMEM_OBJECT_BUFFER;
                create->unit_frames = create->frames_max = 1;
                break;
        }
        case GPUMEM_MESSAGE_OBJECT_DESTROY:
                length = sizeof(struct gpumem_message_object_destroy);
                break;
        case GPUMEM_MESSAGE_GRANT:
                length = sizeof(struct gpumem_message_grant);
                ((struct gpumem_message_grant *)buffer)->frames = 1;
                break;
        case GPUMEM_MESSAGE_RETURN:
                length = sizeof(struct gpumem_message_return) + 8;
                ((struct gpumem_message_return *)buffer)->frames = 1;
                break;
        case GPUMEM_MESSAGE_MEMINFO:
                length = sizeof(struct gpumem_message_meminfo);
                break;
        }
        wire_header_init(buffer, type, (uint32_t)length, 0, bad.serial + 1);
        return length;
}

static const uint16_t requests[] = {
        GPUMEM_MESSAGE_HELLO, GPUMEM_MESSAGE_OBJECT_CREATE, GPUMEM_MESSAGE_OBJECT_DESTROY,
        GPUMEM_MESSAGE_GRANT, GPUMEM_MESSAGE_RETURN,        GPUMEM_MESSAGE_MEMINFO,
};
#define REQUESTS (sizeof(requests) / sizeof(requests[0]))

static _Alignas(8) unsigned char buffer[GPUMEM_MESSAGE_MAX + 4096];

static void test_lengths(void)
{
        for (size_t i = 0; i < REQUESTS; i++) {
                static const int off[] = {-16, -8, -1, 1, 8, 4096};

                for (size_t j = 0; j < sizeof(off) / sizeof(off[0]); j++) {
                        size_t length;

                        /* the packet differs from what it states */
                        open_bad();
                        length = valid(requests[i], buffer);
                        if ((int)length + off[j] > 0)
                                send_bytes(buffer, length + (size_t)off[j]);
                        else
                                send_bytes(buffer, 3);
                        expect_closed();
                        /* both are wrong together */
                        open_bad();
                        length = valid(requests[i], buffer);
                        if ((int)length + off[j] < 16)
                                length = 8;
                        else
                                length += (size_t)off[j];
                        ((struct gpumem_message_header *)(void *)buffer)->length = (uint32_t)length;
                        send_bytes(buffer, length);
                        expect_closed();
                }
        }
        still_fine();
}

static void test_truncated_and_oversized(void)
{
        for (size_t length = 1; length < 16; length++) {
                open_bad();
                valid(GPUMEM_MESSAGE_MEMINFO, buffer);
                send_bytes(buffer, length);
                expect_closed();
        }
        open_bad();
        valid(GPUMEM_MESSAGE_MEMINFO, buffer);
        send_bytes(buffer, GPUMEM_MESSAGE_MAX);
        expect_closed();
        open_bad();
        ((struct gpumem_message_header *)(void *)buffer)->length = GPUMEM_MESSAGE_MAX + 4096;
        send_bytes(buffer, GPUMEM_MESSAGE_MAX + 4096);
        expect_closed();
        open_bad();
        send_bytes(buffer, 0);
        expect_closed();
        still_fine();
}

static void test_headers(void)
{
        struct gpumem_message_header *header = (void *)buffer;

        for (size_t i = 0; i < REQUESTS; i++) {
                for (int what = 0; what < 5; what++) {
                        size_t length;

                        open_bad();
                        length = valid(requests[i], buffer);
                        if (what == 0)
                                header->flags = 1;
                        else if (what == 1)
                                header->fds = 1; /* none come along */
                        else if (what == 2)
                                header->serial = 0;
                        else if (what == 3)
                                header->serial += 1;
                        else
                                header->type |= 1; /* a reply */
                        send_bytes(buffer, length);
                        expect_closed();
                }
        }
        for (uint32_t type = 14; type < 65536; type += 97) {
                open_bad();
                valid(GPUMEM_MESSAGE_MEMINFO, buffer);
                header->type = (uint16_t)type;
                send_bytes(buffer, 16);
                expect_closed();
        }
        still_fine();
}

static void test_counts(void)
{
        static const uint32_t counts[] = {0, 254, 4097, 0x20000001u, 0x80000000u, UINT32_MAX};
        struct gpumem_message_grant *grant = (void *)buffer;
        struct gpumem_message_return *message = (void *)buffer;

        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
                size_t length;

                open_bad();
                length = valid(GPUMEM_MESSAGE_GRANT, buffer);
                grant->frames = counts[i];
                send_bytes(buffer, length);
                expect_closed();
                open_bad();
                length = valid(GPUMEM_MESSAGE_RETURN, buffer);
                message->frames = counts[i];
                send_bytes(buffer, length);
                expect_closed();
        }
        still_fine();
}

static void test_reserved_and_names(void)
{
        struct gpumem_message_hello *hello = (void *)buffer;
        struct gpumem_message_object_create *create = (void *)buffer;
        struct gpumem_message_return *message = (void *)buffer;
        size_t length;

        connect_bad();
        length = valid(GPUMEM_MESSAGE_HELLO, buffer);
        hello->reserved = 1;
        send_bytes(buffer, length);
        expect_closed();
        connect_bad();
        length = valid(GPUMEM_MESSAGE_HELLO, buffer);
        hello->magic ^= 1;
        send_bytes(buffer, length);
        expect_closed();
        connect_bad();
        length = valid(GPUMEM_MESSAGE_HELLO, buffer);
        memset(hello->name, 'x', sizeof(hello->name)); /* not terminated */
        send_bytes(buffer, length);
        expect_closed();
        open_bad();
        length = valid(GPUMEM_MESSAGE_OBJECT_CREATE, buffer);
        strcpy(create->name, "a\x1b[31m");
        send_bytes(buffer, length);
        expect_closed();
        open_bad();
        length = valid(GPUMEM_MESSAGE_RETURN, buffer);
        message->reserved = 7;
        send_bytes(buffer, length);
        expect_closed();
        still_fine();
}

/* Descriptors where none belong: refused, and not kept. */
static void test_descriptors(void)
{
        char path[64];
        int fds[GPUMEM_MESSAGE_FDS_MAX], pair[2];

        CU_ASSERT_EQUAL_FATAL(pipe2(pair, O_CLOEXEC), 0);
        for (size_t i = 0; i < GPUMEM_MESSAGE_FDS_MAX; i++)
                fds[i] = pair[1];
        for (size_t i = 0; i < REQUESTS; i++) {
                for (int stated = 0; stated < 2; stated++) {
                        struct gpumem_message_header *header = (void *)buffer;
                        size_t count = i % 2 ? GPUMEM_MESSAGE_FDS_MAX : 1;
                        size_t length;

                        open_bad();
                        length = valid(requests[i], buffer);
                        if (stated)
                                header->fds = (uint16_t)count;
                        CU_ASSERT_EQUAL(wire_send_with_fds(bad.fd, buffer, length, fds, count, 0),
                                        0);
                        expect_closed();
                }
        }
        /* With data that is no message at all. */
        open_bad();
        CU_ASSERT_EQUAL(wire_send_with_fds(bad.fd, buffer, 60000, fds, 200, 0), 0);
        expect_closed();
        still_fine();
        /* Nobody but this process has the pipe's writing end: reading sees the end. */
        close(pair[1]);
        fcntl(pair[0], F_SETFL, O_NONBLOCK);
        CU_ASSERT_EQUAL(read(pair[0], path, 1), 0);
        close(pair[0]);
}

static void test_garbage(void)
{
        unsigned seed = 12345;

        for (int i = 0; i < 300; i++) {
                size_t length;

                if (i % 2)
                        open_bad();
                else
                        connect_bad();
                seed = seed * 1103515245u + 12345u;
                length = 1 + seed % (i % 3 ? 200 : 60000);
                for (size_t j = 0; j < length; j++) {
                        seed = seed * 1103515245u + 12345u;
                        buffer[j] = (unsigned char)(seed >> 16);
                }
                /* Half of them look right at first sight. */
                if (length >= 16 && i % 4 < 2)
                        wire_header_init((void *)buffer, requests[(unsigned)i % REQUESTS],
                                         (uint32_t)length, 0, bad.serial + 1);
                send_bytes(buffer, length);
                if (i % 4 == 3)
                        raw_close(&bad);
                else if (i % 4 == 2)
                        expect_closed();
                raw_close(&bad);
        }
        still_fine();
}

/* --- well-formed, but wrong --- */

static void test_order(void)
{
        for (size_t i = 1; i < REQUESTS; i++) {
                connect_bad();
                valid(requests[i], buffer);
                CU_ASSERT_EQUAL(raw_call(&bad, buffer), CODE(GPUMEM_E_STATE));
                /* the connection goes on */
                CU_ASSERT_EQUAL(raw_hello(&bad, uuid, 4096, "late"), 0);
                CU_ASSERT_EQUAL(raw_hello(&bad, uuid, 4096, "twice"), CODE(GPUMEM_E_STATE));
                raw_close(&bad);
        }
        still_fine();
}

static void test_hello(void)
{
        struct gpumem_message_hello *hello = (void *)buffer;

        connect_bad();
        valid(GPUMEM_MESSAGE_HELLO, buffer);
        hello->version_min = 2;
        hello->version_max = 9;
        CU_ASSERT_EQUAL(raw_call(&bad, buffer), CODE(GPUMEM_E_MISMATCH));
        valid(GPUMEM_MESSAGE_HELLO, buffer);
        hello->version_min = 3;
        hello->version_max = 1;
        CU_ASSERT_EQUAL(raw_call(&bad, buffer), CODE(GPUMEM_E_MISMATCH));
        valid(GPUMEM_MESSAGE_HELLO, buffer);
        hello->driver_kind = GPUMEM_DRIVER_CUDA;
        CU_ASSERT_EQUAL(raw_call(&bad, buffer), CODE(GPUMEM_E_MISMATCH));
        CU_ASSERT_PTR_NOT_NULL(strstr(bad.text, "simulated"));
        valid(GPUMEM_MESSAGE_HELLO, buffer);
        hello->driver_kind = UINT32_MAX;
        CU_ASSERT_EQUAL(raw_call(&bad, buffer), CODE(GPUMEM_E_MISMATCH));
        valid(GPUMEM_MESSAGE_HELLO, buffer);
        hello->device_uuid[0] ^= 0xff;
        CU_ASSERT_EQUAL(raw_call(&bad, buffer), CODE(GPUMEM_E_NOT_FOUND));
        valid(GPUMEM_MESSAGE_HELLO, buffer);
        hello->granularity = UINT64_MAX;
        CU_ASSERT_EQUAL(raw_call(&bad, buffer), CODE(GPUMEM_E_MISMATCH));
        raw_close(&bad);
        still_fine();
}

static void test_handles(void)
{
        static const uint64_t objects[] = {0, 1, UINT64_MAX, UINT64_MAX - 255, UINT64_C(1) << 63};
        uint64_t object, ids[8], wrong[8];

        open_bad();
        CU_ASSERT_EQUAL(raw_object_create(&bad, 1, UINT64_MAX, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&bad, object, 4, 0, ids), 0);
        for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
                CU_ASSERT_EQUAL(raw_grant(&bad, objects[i], 1, 0, wrong), CODE(GPUMEM_E_NOT_FOUND));
                CU_ASSERT_EQUAL(raw_return(&bad, objects[i], 1, ids), CODE(GPUMEM_E_NOT_FOUND));
                CU_ASSERT_EQUAL(raw_object_destroy(&bad, objects[i]), CODE(GPUMEM_E_NOT_FOUND));
        }
        /* Frames: the neighbour's, none at all, far out, doubled. */
        for (size_t i = 0; i < 5; i++) {
                static const uint64_t out[] = {FRAMES, UINT32_MAX, UINT64_C(1) << 32, UINT64_MAX};

                memcpy(wrong, ids, sizeof(wrong));
                wrong[3] = i == 0 ? good_ids[0] : out[i - 1];
                CU_ASSERT_EQUAL(raw_return(&bad, object, 4, wrong), CODE(GPUMEM_E_NOT_FOUND));
        }
        memcpy(wrong, ids, sizeof(wrong));
        wrong[3] = wrong[0];
        CU_ASSERT_EQUAL(raw_return(&bad, object, 4, wrong), CODE(GPUMEM_E_INVALID));
        /* All of that moved nothing. C24: a second return of the same is refused. */
        CU_ASSERT_EQUAL(raw_return(&bad, object, 4, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&bad, object, 4, ids), CODE(GPUMEM_E_NOT_FOUND));
        raw_close(&bad);
        still_fine();
}

static void test_sizes(void)
{
        uint64_t object, ids[256];

        open_bad();
        CU_ASSERT_EQUAL(raw_object_create(&bad, 0, 1, &object), CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_object_create(&bad, 1, 0, &object), CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_object_create(&bad, UINT32_MAX, UINT64_MAX, &object),
                        CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_object_create(&bad, 253, UINT64_MAX, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&bad, object, 253, 0, ids), CODE(GPUMEM_E_NO_MEMORY));
        CU_ASSERT_EQUAL(raw_grant(&bad, object, 252, 0, ids), CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_grant(&bad, object, 253, UINT32_MAX, ids), CODE(GPUMEM_E_INVALID));
        raw_close(&bad);
        still_fine();
}

static void pipeline(void)
{
        uint64_t object, ids[FRAMES];
        struct gpumem_message_grant *grant = (void *)buffer;
        int r;

        open_bad();
        CU_ASSERT_EQUAL(raw_object_create(&bad, 1, FRAMES, &object), 0);
        do
                r = raw_grant(&bad, object, 1, 0, ids);
        while (r == 0);
        CU_ASSERT_EQUAL(r, CODE(GPUMEM_E_AGAIN));
        for (int i = 0; i < 3; i++) {
                valid(GPUMEM_MESSAGE_GRANT, buffer);
                grant->object = object;
                grant->wait_ms = 60000;
                r = raw_send(&bad, buffer);
                /* The second breaks the protocol; the third may find nobody there. */
                CU_ASSERT(r == 0 || (i == 2 && r == -EPIPE));
        }
        expect_closed();
}

static void test_pipelining(void)
{
        in_child(pipeline);
}

/* --- behaviour --- */

/* Never reads: neither replies nor events. Others are asked to give back while it holds frames. */
static void be_deaf(void)
{
        uint64_t object, other, ids[FRAMES];
        static struct raw_client hungry;

        open_bad();
        CU_ASSERT_EQUAL(raw_object_create(&bad, 1, 8, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&bad, object, 4, 0, ids), 0);
        valid(GPUMEM_MESSAGE_MEMINFO, buffer);
        CU_ASSERT_EQUAL(raw_send(&bad, buffer), 0);
        CU_ASSERT_EQUAL(raw_open(&hungry, process, "hungry"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&hungry, 1, FRAMES, &other), 0);
        for (int i = 0; i < 20; i++)
                CU_ASSERT_EQUAL(raw_grant(&hungry, other, FRAMES, 30, ids), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        CU_ASSERT_EQUAL(raw_receive(&bad, 5000), 0);
        CU_ASSERT_EQUAL(raw_object_destroy(&bad, object), 0);
        CU_ASSERT(bad.reclaim_events >= 1);
        raw_close(&hungry);
        raw_close(&bad);
}

static void test_deaf(void)
{
        in_child(be_deaf);
}

/* Says nothing: closed when its time is up; many of them do not keep others out. */
static void test_silent(void)
{
        struct wire_fds set;
        size_t length;
        int fds[20];
        uint64_t start = wire_now_ns();

        for (int i = 0; i < 20; i++) {
                connect_bad();
                fds[i] = bad.fd;
        }
        still_fine();
        CU_ASSERT_EQUAL(wire_receive_until(fds[0], buffer, sizeof(buffer), &set, &length,
                                           wire_deadline_ns(15000)),
                        WIRE_CLOSED);
        CU_ASSERT(wire_now_ns() - start >= UINT64_C(4000000000));
        for (int i = 0; i < 20; i++)
                close(fds[i]);
        still_fine();
}

static int64_t frames_in(const char *state)
{
        int64_t value = -1;

        daemon_process_number(process, "io.gpumemd.GetStatus", state, &value);
        return value;
}

static int wait_until_frames(const char *state, int64_t frames, uint32_t ms)
{
        uint64_t deadline = wire_deadline_ns(ms);

        while (frames_in(state) != frames) {
                const struct timespec pause = {.tv_nsec = 2000000};

                if (wire_now_ns() > deadline)
                        return 0;
                nanosleep(&pause, NULL);
        }
        return 1;
}

/* A child that inherited the socket keeps it open; the process that connected is dead. */
static void test_fork_holds_socket(void)
{
        int ready[2], hold[2];
        char byte;
        pid_t child;

        CU_ASSERT_EQUAL_FATAL(pipe(ready), 0);
        CU_ASSERT_EQUAL_FATAL(pipe(hold), 0);
        child = fork();
        if (child == 0) {
                uint64_t object, ids[8];

                if (raw_open(&bad, process, "forker") != 0 ||
                    raw_object_create(&bad, 1, 8, &object) != 0 ||
                    raw_grant(&bad, object, 8, 1000, ids) != 0)
                        _exit(1);
                if (fork() == 0) {
                        close(hold[1]);
                        if (write(ready[1], "r", 1) == 1 && read(hold[0], &byte, 1) == 0) {
                                /* It tries to go on with a session that is not its own. */
                                struct gpumem_message_meminfo_reply info;

                                raw_meminfo(&bad, &info);
                        }
                        _exit(0);
                }
                _exit(0);
        }
        close(ready[1]);
        close(hold[0]);
        CU_ASSERT_EQUAL(read(ready[0], &byte, 1), 1);
        CU_ASSERT_EQUAL(wait_for(child), 0);
        CU_ASSERT(wait_until_frames("granted", 4, 2000));
        CU_ASSERT(wait_until_frames("draining", 0, 2000));
        still_fine();
        close(hold[1]);
        close(ready[0]);
        still_fine();
}

/* Connects and goes, over and over, in the middle of things. */
static void churn(void)
{
        for (int i = 0; i < 200; i++) {
                uint64_t object, ids[4];

                if (i % 4 == 0) {
                        connect_bad();
                } else {
                        open_bad();
                        if (i % 4 > 1)
                                CU_ASSERT_EQUAL(raw_object_create(&bad, 1, 8, &object), 0);
                        if (i % 4 > 2 && i < 40) {
                                valid(GPUMEM_MESSAGE_GRANT, buffer);
                                ((struct gpumem_message_grant *)(void *)buffer)->object = object;
                                CU_ASSERT_EQUAL(raw_send(&bad, buffer), 0);
                        } else if (i % 4 > 2) {
                                CU_ASSERT_EQUAL(raw_grant(&bad, object, 1, 1000, ids), 0);
                                CU_ASSERT_EQUAL(raw_object_destroy(&bad, object), 0);
                        }
                }
                raw_close(&bad);
        }
}

static void test_churn(void)
{
        in_child(churn);
}

static void test_log_is_bounded(void)
{
        char line[2048];
        FILE *log = fopen(daemon_process_log(process), "r");
        unsigned complaints = 0;

        while (log && fgets(line, sizeof(line), log))
                complaints += strstr(line, "broke the protocol") != NULL;
        if (log)
                fclose(log);
        /* Hundreds of connections broke it; a burst of lines per half minute says so. */
        CU_ASSERT(complaints >= 1);
        CU_ASSERT(complaints <= 64);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"lengths", test_lengths},
                {"truncated and oversized packets", test_truncated_and_oversized},
                {"headers", test_headers},
                {"counts", test_counts},
                {"reserved fields and names", test_reserved_and_names},
                {"descriptors where none belong", test_descriptors},
                {"garbage", test_garbage},
                {"requests out of order", test_order},
                {"HELLO that does not fit", test_hello},
                {"C24 unknown, foreign and doubled handles", test_handles},
                {"sizes out of range", test_sizes},
                {"requests on top of each other", test_pipelining},
                {"a client that does not read", test_deaf},
                {"clients that say nothing", test_silent},
                {"a fork that holds the socket", test_fork_holds_socket},
                {"clients that come and go", test_churn},
                {"the log stays small", test_log_is_bounded},
        };
        const struct daemon_options options = {
                .memory_bytes = FRAMES * FRAME,
                .frame_bytes = FRAME,
        };
        char *reply;
        int status;

        if (daemon_process_start(&process, &options) < 0 ||
            daemon_process_call(process, "io.gpumemd.GetStatus", NULL, &reply) < 0 ||
            raw_parse_uuid(reply, uuid) < 0 || raw_open(&good, process, "good") != 0 ||
            raw_object_create(&good, 1, 8, &good_object) != 0 ||
            raw_grant(&good, good_object, 4, 1000, good_ids) != 0) {
                fprintf(stderr, "the daemon does not serve\n");
                return 2;
        }
        free(reply);
        status = UNIT_RUN("hostile", tests);
        raw_close(&good);
        if (daemon_process_stop(process) != 0) {
                fprintf(stderr, "the daemon did not end well\n");
                status = 1;
        }
        daemon_process_free(process);
        return status;
}
