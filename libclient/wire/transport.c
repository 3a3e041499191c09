/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "libclient/wire/wire.h"

/* Room for the most descriptors that Linux lets one message carry, so MSG_CTRUNC can only mean that
 * they could not be installed. */
union control {
        char bytes[CMSG_SPACE(sizeof(int) * GPUMEM_MESSAGE_FDS_MAX)];
        struct cmsghdr alignment;
};

void wire_fds_deinit(struct wire_fds *set)
{
        for (uint32_t i = 0; i < set->count; i++)
                if (set->fds[i] >= 0)
                        close(set->fds[i]);
        set->count = 0;
}

int wire_fds_take(struct wire_fds *set, uint32_t index)
{
        int fd;

        if (index >= set->count)
                return -1;
        fd = set->fds[index];
        set->fds[index] = -1;
        return fd;
}

void wire_header_init(struct gpumem_message_header *header, uint16_t type, uint32_t length,
                      uint16_t fds, uint32_t serial)
{
        *header = (struct gpumem_message_header){
                .length = length,
                .type = type,
                .fds = fds,
                .serial = serial,
        };
}

int wire_send_with_fds(int socket, const void *message, size_t length, const int *fds,
                       size_t fds_count, int flags)
{
        union control control;
        struct iovec vector = {.iov_base = (void *)message, .iov_len = length};
        struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
        ssize_t sent;

        if (length < sizeof(struct gpumem_message_header) || length > GPUMEM_MESSAGE_MAX)
                return -EMSGSIZE;
        if (fds_count > GPUMEM_MESSAGE_FDS_MAX)
                return -E2BIG;
        if (fds_count > 0) {
                size_t bytes = sizeof(int) * fds_count;
                struct cmsghdr *cmsg = &control.alignment;

                memset(cmsg, 0, sizeof(*cmsg));
                cmsg->cmsg_level = SOL_SOCKET;
                cmsg->cmsg_type = SCM_RIGHTS;
                cmsg->cmsg_len = CMSG_LEN(bytes);
                memcpy(CMSG_DATA(cmsg), fds, bytes);
                header.msg_control = &control;
                header.msg_controllen = CMSG_SPACE(bytes);
        }
        do
                sent = sendmsg(socket, &header, flags | MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent < 0)
                return -errno;
        /* SOCK_SEQPACKET keeps packets whole; anything else here is not such a socket. */
        return (size_t)sent == length ? 0 : -EPROTOTYPE;
}

int wire_send_consume_fds(int socket, const void *message, size_t length, const int *fds,
                          size_t fds_count, int flags)
{
        int r = wire_send_with_fds(socket, message, length, fds, fds_count, flags);

        for (size_t i = 0; i < fds_count; i++)
                if (fds[i] >= 0)
                        close(fds[i]);
        return r;
}

/* Moves every descriptor out of the control data. Control data other than descriptors is not asked
 * for by any socket of ours and is ignored. */
static void collect_fds(struct msghdr *header, struct wire_fds *set)
{
        for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(header); cmsg; cmsg = CMSG_NXTHDR(header, cmsg)) {
                size_t count;

                if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
                        continue;
                count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < count; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(fd));
                        if (set->count < GPUMEM_MESSAGE_FDS_MAX)
                                set->fds[set->count++] = fd;
                        else
                                close(fd);
                }
        }
}

int wire_receive(int socket, void *buffer, size_t size, struct wire_fds *set, size_t *length,
                 int flags)
{
        union control control;
        struct iovec vector = {.iov_base = buffer, .iov_len = size};
        struct msghdr header = {
                .msg_iov = &vector,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control),
        };
        ssize_t received;

        set->count = 0;
        *length = 0;
        do
                received = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
        while (received < 0 && errno == EINTR);
        if (received < 0)
                return errno == ECONNRESET ? WIRE_CLOSED : -errno;
        if (header.msg_controllen > 0)
                collect_fds(&header, set);
        if (header.msg_flags & MSG_TRUNC) {
                wire_fds_deinit(set);
                return WIRE_TRUNCATED;
        }
        if (header.msg_flags & MSG_CTRUNC) {
                wire_fds_deinit(set);
                return WIRE_FDS_LOST;
        }
        if (received == 0) {
                wire_fds_deinit(set);
                return WIRE_CLOSED;
        }
        *length = (size_t)received;
        return 0;
}

int wire_set_timeout(int socket, uint32_t timeout_ms)
{
        struct timeval timeout = {
                .tv_sec = timeout_ms / 1000,
                .tv_usec = (suseconds_t)(timeout_ms % 1000) * 1000,
        };

        if (setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0)
                return -errno;
        if (setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0)
                return -errno;
        return 0;
}

uint64_t wire_now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t wire_deadline_ns(uint32_t ms)
{
        return wire_now_ns() + (uint64_t)ms * 1000000u;
}

int wire_wait(int socket, short events, uint64_t deadline_ns)
{
        for (;;) {
                struct pollfd poller = {.fd = socket, .events = events};
                uint64_t now = wire_now_ns();
                uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
                struct timespec timeout = {
                        .tv_sec = (time_t)(left / 1000000000u),
                        .tv_nsec = (long)(left % 1000000000u),
                };
                int r = ppoll(&poller, 1, &timeout, NULL);

                if (r > 0)
                        return poller.revents & POLLNVAL ? -EBADF : 0;
                if (r == 0)
                        return -ETIMEDOUT;
                if (errno != EINTR)
                        return -errno;
        }
}

int wire_receive_until(int socket, void *buffer, size_t size, struct wire_fds *set, size_t *length,
                       uint64_t deadline_ns)
{
        for (;;) {
                int r = wire_wait(socket, POLLIN, deadline_ns);

                if (r < 0) {
                        set->count = 0;
                        *length = 0;
                        return r;
                }
                r = wire_receive(socket, buffer, size, set, length, MSG_DONTWAIT);
                if (r != -EAGAIN)
                        return r;
        }
}
