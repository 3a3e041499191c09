/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of the daemon. Input: a list of steps by up to three clients (connect, send a valid, a
 * mutated or a raw message with any descriptors, read answers or not, hang up, die) and by the
 * driver (the n-th call fails). Whatever they are, every answer is well-formed and belongs to the
 * client's last request; afterwards the daemon's books are right, nothing is granted to anybody,
 * and a client that behaves is served.
 */
#include <errno.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/session.h"
#include "libclient/wire/wire.h"
#include "tests/fuzz/daemon_harness.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/fake_driver.h"

enum {
        CLIENTS = 3,
        STEPS_MAX = 64,
        HANDLES_MAX = 8,
        FRAMES_MAX = HARNESS_FRAMES,
        SEND_BUFFER_BYTES = 4096,
};

struct client {
        int fd;    /* -1: not connected */
        int exits; /* stands for the pidfd; -1 if there never was a connection */
        bool reads;
        bool broken;               /* sent what the daemon may end the connection for */
        uint32_t serial, answered; /* of the last request, of the last answer */
        uint64_t objects[HANDLES_MAX];
        uint64_t frames[FRAMES_MAX];
        uint32_t objects_count, frames_count;
};

static struct client clients[CLIENTS];
static _Alignas(8) unsigned char message[GPUMEM_MESSAGE_MAX + 64], answer[GPUMEM_MESSAGE_MAX];

/* A pair of sockets whose peer the daemon sees as another user for each client, where this process
 * may change its own; of this thread alone, which glibc's setresuid() would not do. */
static int make_pair(unsigned index, int pair[2])
{
        int r;

        syscall(SYS_setresuid, -1, 1000 + index, -1);
        r = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
        syscall(SYS_setresuid, -1, getuid(), -1);
        return r;
}

static void hang_up(struct client *client)
{
        if (client->fd >= 0)
                close(client->fd);
        client->fd = -1;
}

static void die(struct client *client)
{
        hang_up(client);
        if (client->exits >= 0) {
                eventfd_write(client->exits, 1);
                close(client->exits);
        }
        client->exits = -1;
}

static void connect_client(unsigned index)
{
        struct client *client = &clients[index];
        struct daemon *daemon = harness_daemon();
        struct session *session;
        int pair[2], bytes = SEND_BUFFER_BYTES;

        /* The former process lives on in vain: its frames drain until the end. */
        hang_up(client);
        if (client->exits >= 0)
                close(client->exits);
        FUZZ_REQUIRE(make_pair(index, pair) == 0);
        /* Few answers fill the queue of a client that does not read. */
        setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
        *client = (struct client){.fd = pair[0], .exits = -1, .reads = true};
        if (session_new_consume_fd(daemon, pair[1]) < 0) {
                client->broken = true; /* turned away: answered before it asked */
                return;
        }
        session = list_entry(daemon->sessions.previous, struct session, link);
        client->exits = eventfd(0, EFD_CLOEXEC);
        FUZZ_REQUIRE(client->exits >= 0);
        /* This process does not die; what the daemon watches in its place can. */
        close(session->identity.pidfd);
        session->identity.pidfd = dup(client->exits);
        FUZZ_REQUIRE(sd_event_source_set_io_fd(session->exit, session->identity.pidfd) >= 0);
}

/* --- answers -------------------------------------------------------------------------------------
 */

static void learn(struct client *client)
{
        const struct gpumem_message_header *header = (void *)answer;
        const struct gpumem_message_grant_reply *grant = (void *)answer;
        const struct gpumem_message_object_create_reply *create = (void *)answer;

        if (header->type == GPUMEM_MESSAGE_OBJECT_CREATE_REPLY)
                client->objects[client->objects_count++ % HANDLES_MAX] = create->object;
        if (header->type == GPUMEM_MESSAGE_GRANT_REPLY)
                for (uint32_t i = 0; i < grant->frames; i++) {
                        FUZZ_REQUIRE(grant->frame_ids[i] < HARNESS_FRAMES);
                        client->frames[client->frames_count++ % FRAMES_MAX] = grant->frame_ids[i];
                }
}

static void read_answers(struct client *client)
{
        const struct gpumem_message_header *header = (void *)answer;

        while (client->fd >= 0) {
                struct wire_fds set;
                size_t length;
                int r = wire_receive(client->fd, answer, sizeof(answer), &set, &length,
                                     MSG_DONTWAIT);

                if (r == -EAGAIN)
                        return;
                if (r == WIRE_CLOSED) {
                        hang_up(client);
                        return;
                }
                FUZZ_REQUIRE(r == 0);
                if (getenv("FUZZ_SHOW"))
                        fprintf(stderr, "client %td: serial %u: %s %u\n", client - clients,
                                client->serial, wire_type_text(header->type), header->serial);
                r = wire_check(answer, length, set.count, WIRE_TO_CLIENT);
                /* A broken message is answered under its own serial, which may be 0. */
                FUZZ_REQUIRE(r == WIRE_OK || (r == WIRE_BAD_SERIAL && client->broken));
                FUZZ_REQUIRE(header->type & GPUMEM_MESSAGE_EVENT ||
                             header->serial == client->serial || client->broken);
                if (header->serial != 0)
                        client->answered = header->serial;
                learn(client);
                wire_fds_deinit(&set);
        }
}

/* --- requests ------------------------------------------------------------------------------------
 */

static uint64_t object_of(const struct client *client, uint8_t choice)
{
        uint32_t count = client->objects_count < HANDLES_MAX ? client->objects_count : HANDLES_MAX;

        return count == 0 ? choice : client->objects[choice % count];
}

static uint64_t frame_of(const struct client *client, uint8_t choice)
{
        uint32_t count = client->frames_count < FRAMES_MAX ? client->frames_count : FRAMES_MAX;

        return count == 0 || choice & 0x80 ? choice & 0x7f : client->frames[choice % count];
}

/* A valid message of the type, filled in from the input; its length. */
static size_t compose(struct client *client, struct fuzz_input *input, uint16_t type)
{
        union {
                struct gpumem_message_hello *hello;
                struct gpumem_message_object_create *create;
                struct gpumem_message_object_destroy *destroy;
                struct gpumem_message_grant *grant;
                struct gpumem_message_return *give_back;
        } m = {(void *)message};
        size_t length = sizeof(struct gpumem_message_meminfo);
        uint8_t count;

        memset(message, 0, sizeof(struct gpumem_message_hello));
        switch (type) {
        case GPUMEM_MESSAGE_HELLO:
                length = sizeof(*m.hello);
                m.hello->magic = GPUMEM_PROTOCOL_MAGIC;
                m.hello->version_min = GPUMEM_PROTOCOL_VERSION_MIN;
                m.hello->version_max = GPUMEM_PROTOCOL_VERSION_MAX;
                m.hello->driver_kind = GPUMEM_DRIVER_SIMULATED;
                memcpy(m.hello->device_uuid, harness_device()->uuid, 16);
                m.hello->granularity = FAKE_GRANULARITY;
                strcpy(m.hello->name, "fuzz");
                break;
        case GPUMEM_MESSAGE_OBJECT_CREATE:
                length = sizeof(*m.create);
                m.create->kind = 1 + fuzz_u8(input) % 2;
                m.create->unit_frames = fuzz_u8(input);
                m.create->frames_max = fuzz_u8(input);
                break;
        case GPUMEM_MESSAGE_OBJECT_DESTROY:
                length = sizeof(*m.destroy);
                m.destroy->object = object_of(client, fuzz_u8(input));
                break;
        case GPUMEM_MESSAGE_GRANT:
                length = sizeof(*m.grant);
                m.grant->object = object_of(client, fuzz_u8(input));
                m.grant->frames = fuzz_u8(input);
                m.grant->wait_ms = fuzz_u8(input) & 1 ? GPUMEM_GRANT_WAIT_MAX_MS : 0;
                break;
        case GPUMEM_MESSAGE_RETURN:
                m.give_back->object = object_of(client, fuzz_u8(input));
                count = fuzz_u8(input) % (2 * FRAMES_MAX);
                m.give_back->frames = count;
                length = sizeof(*m.give_back) + count * sizeof(uint64_t);
                for (uint8_t i = 0; i < count; i++)
                        m.give_back->frame_ids[i] = frame_of(client, fuzz_u8(input));
                break;
        default:
                break;
        }
        wire_header_init((void *)message, type, (uint32_t)length, 0, client->serial + 1);
        return length;
}

static void send_packet(struct client *client, size_t length, uint8_t fds_count)
{
        static int fds[256];
        const struct gpumem_message_header *header = (void *)message;
        union {
                char bytes[CMSG_SPACE(sizeof(int) * 253)];
                struct cmsghdr alignment;
        } control;
        struct iovec vector = {.iov_base = message, .iov_len = length};
        struct msghdr packet = {.msg_iov = &vector, .msg_iovlen = 1};

        if (client->fd < 0)
                return;
        if (client->answered != client->serial)
                client->broken = true; /* two requests at a time */
        if (fds_count > 253)
                fds_count = 253;
        if (fds_count > 0) {
                struct cmsghdr *cmsg = &control.alignment;

                for (unsigned i = 0; i < fds_count; i++)
                        fds[i] = client->fd;
                cmsg->cmsg_level = SOL_SOCKET;
                cmsg->cmsg_type = SCM_RIGHTS;
                cmsg->cmsg_len = CMSG_LEN(sizeof(int) * fds_count);
                memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * fds_count);
                packet.msg_control = &control;
                packet.msg_controllen = CMSG_SPACE(sizeof(int) * fds_count);
        }
        if (getenv("FUZZ_SHOW"))
                fprintf(stderr, "client %td: %s, %zu bytes, %u descriptors\n", client - clients,
                        wire_type_text(header->type), length, fds_count);
        if (sendmsg(client->fd, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length &&
            length >= sizeof(*header))
                client->serial = header->serial;
}

enum { MUTATE = 1, DESCRIPTORS = 2, RESIZE = 4, RAW = 8 };

static void send_step(struct client *client, struct fuzz_input *input, uint16_t type)
{
        uint8_t flags = fuzz_u8(input), fds = 0;
        size_t length;

        if (flags & RAW) {
                length = fuzz_u16(input);
                if (length > input->left)
                        length = input->left;
                memcpy(message, fuzz_take(input, length), length);
        } else {
                length = compose(client, input, type);
        }
        if (flags & MUTATE)
                for (uint8_t count = 1 + fuzz_u8(input) % 4; count > 0; count--) {
                        uint16_t at = fuzz_u16(input);

                        if (length > 0)
                                message[at % length] = fuzz_u8(input);
                }
        if (flags & RESIZE) {
                uint16_t size = fuzz_u16(input);

                if (size > length)
                        memset(message + length, 0, size - length);
                length = size;
                if (length >= sizeof(uint32_t) && flags & 0x10)
                        memcpy(message, &(uint32_t){(uint32_t)length}, sizeof(uint32_t));
        }
        if (flags & DESCRIPTORS)
                fds = fuzz_u8(input);
        if (flags & (MUTATE | DESCRIPTORS | RESIZE | RAW))
                client->broken = true;
        send_packet(client, length, fds);
}

static void step(struct fuzz_input *input)
{
        static const uint16_t types[] = {
                GPUMEM_MESSAGE_HELLO, GPUMEM_MESSAGE_OBJECT_CREATE, GPUMEM_MESSAGE_OBJECT_DESTROY,
                GPUMEM_MESSAGE_GRANT, GPUMEM_MESSAGE_RETURN,        GPUMEM_MESSAGE_MEMINFO,
        };
        static const CUresult errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                          CUDA_ERROR_ILLEGAL_ADDRESS};
        uint8_t what = fuzz_u8(input);
        unsigned index = (what >> 4) % CLIENTS;
        struct client *client = &clients[index];

        switch (what & 15) {
        case 0:
                connect_client(index);
                break;
        case 1:
                hang_up(client);
                break;
        case 2:
                die(client);
                break;
        case 3:
                client->reads = !client->reads;
                break;
        case 4: {
                uint8_t call = fuzz_u8(input) % (FAKE_MEMSET + 2), nth = fuzz_u8(input);

                fake_driver_fail(call, nth % 16, 1 + nth / 16 % 4, errors[nth / 64 % 3]);
                break;
        }
        case 5: /* a second message before the daemon looks */
                send_step(client, input, GPUMEM_MESSAGE_MEMINFO);
                client->broken = true;
                return;
        default:
                send_step(client, input, types[(what & 15) % 6]);
                break;
        }
        harness_run();
        for (unsigned i = 0; i < CLIENTS; i++)
                if (clients[i].reads)
                        read_answers(&clients[i]);
}

/* --- a client that behaves -----------------------------------------------------------------------
 */

static const void *ask(struct client *client, uint16_t type, const uint8_t *choices, size_t count)
{
        struct fuzz_input input = {choices, count};
        const struct gpumem_message_header *header = (void *)answer;

        send_packet(client, compose(client, &input, type), 0);
        memset(answer, 0, sizeof(*header));
        harness_run();
        read_answers(client);
        FUZZ_REQUIRE(header->type == type + 1);
        return answer;
}

static void serve_one(void)
{
        struct client *client = &clients[0];
        const struct gpumem_message_meminfo_reply *meminfo;

        connect_client(0);
        ask(client, GPUMEM_MESSAGE_HELLO, NULL, 0);
        ask(client, GPUMEM_MESSAGE_OBJECT_CREATE, (const uint8_t[]){0, 1, 9}, 3);
        ask(client, GPUMEM_MESSAGE_GRANT, (const uint8_t[]){0, 9, 1}, 3);
        FUZZ_REQUIRE(client->frames_count == 9);
        ask(client, GPUMEM_MESSAGE_RETURN, (const uint8_t[]){0, 2, 0, 1}, 4);
        meminfo = ask(client, GPUMEM_MESSAGE_MEMINFO, NULL, 0);
        FUZZ_REQUIRE(meminfo->session_bytes == 7 * FAKE_GRANULARITY);
        ask(client, GPUMEM_MESSAGE_OBJECT_DESTROY, (const uint8_t[]){0}, 1);
}

static void end_all(void)
{
        for (unsigned i = 0; i < CLIENTS; i++) {
                hang_up(&clients[i]);
                harness_run();
                if (clients[i].exits >= 0)
                        close(clients[i].exits);
                clients[i] = (struct client){.fd = -1, .exits = -1};
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct fuzz_input input = {data, size};

        harness_daemon();
        for (unsigned i = 0; i < CLIENTS; i++)
                clients[i] = (struct client){.fd = -1, .exits = -1};
        for (unsigned steps = 0; input.left > 0 && steps < STEPS_MAX; steps++)
                step(&input);
        end_all();
        harness_settle();
        harness_daemon();
        serve_one();
        end_all();
        harness_settle();
        return 0;
}
