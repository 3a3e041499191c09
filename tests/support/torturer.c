/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "libclient/wire/wire.h"
#include "tests/support/torturer.h"

enum {
        CONNECTIONS = 3,
        HANDLES = 4,
        FRAMES = 64,
        PACKET_BYTES = GPUMEM_MESSAGE_MAX + 4096,
        ANSWER_MS = 20000,
        CONNECT_MS = 20000,
};

struct connection {
        int fd; /* -1: none */
        uint32_t serial;
        bool clean;   /* nothing was sent that may end it */
        bool waiting; /* a request is not answered yet */
        bool opened;  /* HELLO was answered */
        uint64_t objects[HANDLES];
        uint32_t objects_count;
        uint64_t granted_object, granted[FRAMES]; /* by the last grant */
        uint32_t granted_count;
};

struct torturer {
        const struct torture *torture;
        uint64_t random;
        struct connection connections[CONNECTIONS];
        struct wire_fds fds;
        int r; /* what the daemon did wrong */
        _Alignas(8) unsigned char packet[PACKET_BYTES], answer[GPUMEM_MESSAGE_MAX];
};

uint64_t torture_random(uint64_t *state)
{
        uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

static uint32_t below(struct torturer *t, uint32_t limit)
{
        return (uint32_t)(torture_random(&t->random) % limit);
}

static bool chance(struct torturer *t, uint32_t of)
{
        return below(t, of) == 0;
}

static void wrong(struct torturer *t, int r, const char *what)
{
        if (t->r == 0)
                fprintf(stderr, "the daemon: %s: %s\n", what, strerror(-r));
        t->r = r;
}

static void hang_up(struct connection *c)
{
        if (c->fd >= 0)
                close(c->fd);
        *c = (struct connection){.fd = -1};
}

static int connect_to(struct torturer *t, const char *path, int type)
{
        const uint64_t deadline_ns = wire_deadline_ns(CONNECT_MS);
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        while (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                if (errno == EINTR || (errno == EAGAIN && wire_now_ns() < deadline_ns))
                        continue;
                wrong(t, -errno, "cannot be connected to");
                close(fd);
                fd = -1;
        }
        return fd;
}

/* --- answers -------------------------------------------------------------------------------------
 */

static void learn(struct torturer *t, struct connection *c)
{
        const struct gpumem_message_header *header = (void *)t->answer;
        const struct gpumem_message_grant_reply *grant = (void *)t->answer;
        const struct gpumem_message_object_create_reply *create = (void *)t->answer;

        c->waiting = false;
        switch (header->type) {
        case GPUMEM_MESSAGE_HELLO_REPLY:
                c->opened = true;
                break;
        case GPUMEM_MESSAGE_OBJECT_CREATE_REPLY:
                c->objects[c->objects_count++ % HANDLES] = create->object;
                break;
        case GPUMEM_MESSAGE_RETURN_REPLY:
                c->granted_count = 0;
                break;
        case GPUMEM_MESSAGE_GRANT_REPLY:
                c->granted_object = grant->object;
                c->granted_count = grant->frames < FRAMES ? grant->frames : FRAMES;
                memcpy(c->granted, grant->frame_ids, c->granted_count * sizeof(uint64_t));
                break;
        default:
                break;
        }
}

/* Reads one message, at most until the deadline. False: there was none. */
static bool read_one(struct torturer *t, struct connection *c, uint64_t deadline_ns)
{
        const struct gpumem_message_header *header = (void *)t->answer;
        size_t length;
        int r = wire_receive_until(c->fd, t->answer, sizeof(t->answer), &t->fds, &length,
                                   deadline_ns);

        if (r == -ETIMEDOUT)
                return false;
        if (r != 0) {
                /* An end is in order if it was earned, or if there is no room for more clients. */
                if (c->clean && c->opened)
                        wrong(t, -ECONNRESET, "closed the connection of a client that behaved");
                hang_up(c);
                return false;
        }
        r = wire_check(t->answer, length, t->fds.count, WIRE_TO_CLIENT);
        if (r != WIRE_OK && (r != WIRE_BAD_SERIAL || c->clean)) {
                fprintf(stderr, "%s: %s\n", wire_type_text(header->type), wire_problem_text(r));
                wrong(t, -EBADMSG, "sent a malformed message");
        }
        wire_fds_deinit(&t->fds);
        if (!(header->type & GPUMEM_MESSAGE_EVENT))
                learn(t, c);
        return true;
}

static void read_answer(struct torturer *t, struct connection *c)
{
        const uint64_t deadline_ns = wire_deadline_ns(ANSWER_MS);

        while (c->fd >= 0 && c->waiting)
                if (!read_one(t, c, deadline_ns) && c->fd >= 0) {
                        wrong(t, -ETIMEDOUT, "does not answer");
                        hang_up(c);
                }
}

/* --- requests ------------------------------------------------------------------------------------
 */

static uint64_t object_of(struct torturer *t, const struct connection *c)
{
        uint32_t count = c->objects_count < HANDLES ? c->objects_count : HANDLES;

        return count == 0 || chance(t, 16) ? below(t, 8) : c->objects[below(t, count)];
}

static size_t compose(struct torturer *t, struct connection *c, uint16_t type)
{
        union {
                struct gpumem_message_hello *hello;
                struct gpumem_message_object_create *create;
                struct gpumem_message_object_destroy *destroy;
                struct gpumem_message_grant *grant;
                struct gpumem_message_return *back;
        } m = {(void *)t->packet};
        uint32_t count;
        size_t length = sizeof(struct gpumem_message_meminfo);

        memset(t->packet, 0, 1024);
        switch (type) {
        case GPUMEM_MESSAGE_HELLO:
                length = sizeof(*m.hello);
                m.hello->magic = GPUMEM_PROTOCOL_MAGIC;
                m.hello->version_min = GPUMEM_PROTOCOL_VERSION_MIN;
                m.hello->version_max = GPUMEM_PROTOCOL_VERSION_MAX;
                m.hello->driver_kind = GPUMEM_DRIVER_SIMULATED;
                memcpy(m.hello->device_uuid, t->torture->device_uuid, 16);
                m.hello->granularity = t->torture->granularity;
                snprintf(m.hello->name, sizeof(m.hello->name), "torturer");
                break;
        case GPUMEM_MESSAGE_OBJECT_CREATE:
                length = sizeof(*m.create);
                m.create->kind = 1 + below(t, 2);
                m.create->unit_frames = chance(t, 4) ? 1 + below(t, 3) : 1;
                m.create->frames_max = 1 + below(t, t->torture->frames);
                break;
        case GPUMEM_MESSAGE_OBJECT_DESTROY:
                length = sizeof(*m.destroy);
                m.destroy->object = object_of(t, c);
                break;
        case GPUMEM_MESSAGE_GRANT:
                length = sizeof(*m.grant);
                m.grant->object = object_of(t, c);
                m.grant->frames = 1 + below(t, chance(t, 8) ? 253 : 12);
                m.grant->wait_ms = chance(t, 2) ? 0 : below(t, 50);
                break;
        case GPUMEM_MESSAGE_RETURN:
                m.back->object = chance(t, 8) ? object_of(t, c) : c->granted_object;
                count = c->granted_count > 0 ? c->granted_count : 1 + below(t, 12);
                if (chance(t, 64))
                        count = GPUMEM_RETURN_FRAMES_MAX;
                m.back->frames = count;
                length = sizeof(*m.back) + count * sizeof(uint64_t);
                for (uint32_t i = 0; i < count; i++)
                        m.back->frame_ids[i] = i < c->granted_count && !chance(t, 64)
                                                       ? c->granted[i]
                                                       : below(t, t->torture->frames * 2);
                break;
        default:
                break;
        }
        wire_header_init((void *)t->packet, type, (uint32_t)length, 0, c->serial + 1);
        return length;
}

/* Descriptors of all sorts, at most what one message may carry. */
static uint32_t open_descriptors(struct torturer *t, const struct connection *c, int *fds)
{
        uint32_t count = 1 + below(t, chance(t, 4) ? GPUMEM_MESSAGE_FDS_MAX : 8);
        int kinds[4] = {
                eventfd(0, EFD_CLOEXEC), memfd_create("torture", MFD_CLOEXEC),
                open("/dev/null", O_RDWR | O_CLOEXEC),
                fcntl(c->fd, F_DUPFD_CLOEXEC, 0), /* the socket itself: a cycle for the kernel */
        };

        for (uint32_t i = 0; i < count; i++)
                fds[i] = kinds[below(t, 4)];
        for (uint32_t i = 0; i < count; i++)
                if (fds[i] < 0)
                        count = i;
        /* The caller closes what it was lent by these. */
        memcpy(fds + GPUMEM_MESSAGE_FDS_MAX, kinds, sizeof(kinds));
        return count;
}

static void transmit(struct torturer *t, struct connection *c, size_t length, bool descriptors)
{
        union {
                char bytes[CMSG_SPACE(sizeof(int) * GPUMEM_MESSAGE_FDS_MAX)];
                struct cmsghdr alignment;
        } control;
        int fds[GPUMEM_MESSAGE_FDS_MAX + 4] = {0};
        struct iovec vector = {.iov_base = t->packet, .iov_len = length};
        struct msghdr packet = {.msg_iov = &vector, .msg_iovlen = 1};
        uint32_t count = descriptors ? open_descriptors(t, c, fds) : 0;

        if (count > 0) {
                struct cmsghdr *cmsg = &control.alignment;

                memset(cmsg, 0, sizeof(*cmsg));
                cmsg->cmsg_level = SOL_SOCKET;
                cmsg->cmsg_type = SCM_RIGHTS;
                cmsg->cmsg_len = CMSG_LEN(sizeof(int) * count);
                memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * count);
                packet.msg_control = &control;
                packet.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        }
        if (sendmsg(c->fd, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
                c->serial++;
                c->waiting = true;
        }
        for (uint32_t i = 0; descriptors && i < 4; i++)
                if (fds[GPUMEM_MESSAGE_FDS_MAX + i] >= 0)
                        close(fds[GPUMEM_MESSAGE_FDS_MAX + i]);
}

/* Spoils the message; its new length. */
static size_t spoil(struct torturer *t, struct connection *c, size_t length)
{
        c->clean = false;
        switch (below(t, 5)) {
        case 0: /* some bytes */
                for (uint32_t i = 1 + below(t, 8); i > 0; i--)
                        t->packet[below(t, (uint32_t)length)] ^= (unsigned char)(1 + below(t, 255));
                return length;
        case 1: /* cut off */
                return below(t, (uint32_t)length);
        case 2: { /* longer than stated, or than a message may be */
                size_t longer = length + below(t, chance(t, 4) ? PACKET_BYTES - 40000 : 64);

                if (longer > PACKET_BYTES)
                        longer = PACKET_BYTES;
                memset(t->packet + length, 0x55, longer - length);
                return longer;
        }
        case 3: /* longer and stated so */
                length += 8;
                memset(t->packet + length - 8, 0, 8);
                ((struct gpumem_message_header *)(void *)t->packet)->length = (uint32_t)length;
                return length;
        default: /* anything */
                length = below(t, 512);
                for (size_t i = 0; i < length; i++)
                        t->packet[i] = (unsigned char)below(t, 256);
                return length;
        }
}

static void request(struct torturer *t, struct connection *c)
{
        /* Each as often as it stands here: objects live long enough to be granted something. */
        static const uint16_t types[] = {
                GPUMEM_MESSAGE_GRANT,          GPUMEM_MESSAGE_GRANT,
                GPUMEM_MESSAGE_GRANT,          GPUMEM_MESSAGE_GRANT,
                GPUMEM_MESSAGE_RETURN,         GPUMEM_MESSAGE_RETURN,
                GPUMEM_MESSAGE_RETURN,         GPUMEM_MESSAGE_OBJECT_CREATE,
                GPUMEM_MESSAGE_OBJECT_CREATE,  GPUMEM_MESSAGE_OBJECT_CREATE,
                GPUMEM_MESSAGE_OBJECT_DESTROY, GPUMEM_MESSAGE_MEMINFO,
        };
        uint16_t type = c->opened ? types[below(t, sizeof(types) / sizeof(types[0]))]
                                  : GPUMEM_MESSAGE_HELLO;
        bool descriptors = chance(t, 96);
        size_t length;

        if (chance(t, 32))
                type = (uint16_t)below(t, 16);
        if (c->waiting || type == GPUMEM_MESSAGE_HELLO || type % 2 != 0 || type > 12 || type == 0 ||
            descriptors)
                c->clean = c->clean && !c->waiting && type == GPUMEM_MESSAGE_HELLO && !descriptors;
        length = compose(t, c, type);
        if (chance(t, 12))
                length = spoil(t, c, length);
        transmit(t, c, length, descriptors);
}

/* --- the admin socket ----------------------------------------------------------------------------
 */

static void bother_admin(struct torturer *t)
{
        static const char *const calls[] = {
                "{\"method\":\"io.gpumemd.GetStatus\"}",
                "{\"method\":\"io.gpumemd.ListSessions\",\"parameters\":{\"after\":1}}",
                "{\"method\":\"io.gpumemd.DebugCheck\",\"oneway\":true}",
                "{\"method\":\"org.varlink.service.GetInfo\",\"more\":true}",
        };
        char text[256];
        int fd = connect_to(t, t->torture->admin_socket, SOCK_STREAM);
        size_t length;

        if (fd < 0)
                return;
        for (uint32_t i = below(t, 6); i > 0; i--) {
                length = strlen(strcpy(text, calls[below(t, 4)])) + 1;
                if (chance(t, 3))
                        text[below(t, (uint32_t)length)] = (char)below(t, 256);
                if (chance(t, 4))
                        length = below(t, (uint32_t)length);
                (void)!send(fd, text, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        /* Answers that are on their way are of no interest. */
        close(fd);
}

/* --- */

static void step(struct torturer *t)
{
        struct connection *c = &t->connections[below(t, CONNECTIONS)];

        if (c->fd < 0) {
                c->fd = connect_to(t, t->torture->client_socket, SOCK_SEQPACKET);
                c->clean = true;
                return;
        }
        switch (below(t, 160)) {
        case 0:
                hang_up(c);
                return;
        case 1:
                shutdown(c->fd, chance(t, 2) ? SHUT_WR : SHUT_RD);
                c->clean = false;
                return;
        case 2:
                bother_admin(t);
                return;
        case 3: /* a slow reader */
                nanosleep(&(struct timespec){.tv_nsec = 1000000 * (long)below(t, 5)}, NULL);
                return;
        case 4: { /* many requests, no answer read */
                uint32_t count = below(t, 8);

                for (uint32_t i = 0; i < count; i++)
                        request(t, c);
                return;
        }
        default:
                request(t, c);
                if (c->clean || chance(t, 2))
                        read_answer(t, c);
                else
                        hang_up(c);
        }
}

int torture_run(const struct torture *torture, uint64_t seed, uint64_t deadline_ns)
{
        struct torturer *t = calloc(1, sizeof(*t));
        int r;

        if (!t)
                return -ENOMEM;
        t->torture = torture;
        t->random = seed;
        for (int i = 0; i < CONNECTIONS; i++)
                t->connections[i].fd = -1;
        while (t->r == 0 && wire_now_ns() < deadline_ns)
                step(t);
        for (int i = 0; i < CONNECTIONS; i++)
                hang_up(&t->connections[i]);
        r = t->r;
        free(t);
        return r;
}
