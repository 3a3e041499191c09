/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending, receiving and checking the messages of include/gpumem/protocol.h. Both sides use it, so
 * that there is one table of what a message may look like.
 *
 * Errors: 0 is success; a negative value is an errno from the kernel; a positive value is one of
 * enum wire_problem: something the peer did. Nothing here logs, waits without bound or keeps state;
 * every function may be called from any thread (on different sockets, or with sends on one thread
 * and receives on another).
 *
 * Descriptors: `_with_fds` borrows, `_consume_fds` takes. What wire_receive() puts into a struct
 * wire_fds belongs to the set until wire_fds_take(); wire_fds_deinit() closes the rest.
 */
#ifndef LIBCLIENT_WIRE_WIRE_H
#define LIBCLIENT_WIRE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <gpumem/protocol.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the wire protocol is little-endian and so is every host it is built for");

enum wire_problem {
        WIRE_OK = 0,
        WIRE_CLOSED,     /* the peer closed its end (or sent an empty packet, which is as good) */
        WIRE_TRUNCATED,  /* the packet is larger than a message may be */
        WIRE_FDS_LOST,   /* descriptors came that this process has no room for (RLIMIT_NOFILE), or
                            more of them than a message may carry */
        WIRE_BAD_LENGTH, /* shorter than a header, stated length differs from what arrived, or not
                            the length of this type with this count */
        WIRE_BAD_TYPE,   /* unknown, or not for this direction */
        WIRE_BAD_FLAGS,  /* a flag or reserved field is not zero */
        WIRE_BAD_SERIAL, /* zero in a request or reply, or not zero in an event */
        WIRE_BAD_FDS,    /* stated number of descriptors differs from what arrived, or from what
                            this type carries */
        WIRE_BAD_COUNT,  /* a count is zero or above its limit */
        WIRE_BAD_TEXT, /* a name or text is not terminated, not UTF-8, or has control characters */
        WIRE_PROBLEM_COUNT,
};

/* What the problem is, for people; never NULL. */
const char *wire_problem_text(int problem);

/* "GRANT", "GRANT_REPLY", ...; "unknown" for others. */
const char *wire_type_text(uint16_t type);

/* "GPUMEM_E_AGAIN", ... for either sign of a code; "unknown" for others. */
const char *wire_error_text(int code);

/* --- descriptor sets --- */

/* Descriptors that came with one message; entries that were taken are -1. */
struct wire_fds {
        uint32_t count;
        int fds[GPUMEM_MESSAGE_FDS_MAX];
};

/* Only `count` needs a value before first use. */
static inline void wire_fds_init(struct wire_fds *set)
{
        set->count = 0;
}

/* Closes what was not taken; idempotent. */
void wire_fds_deinit(struct wire_fds *set);

/* Passes descriptor `index` to the caller; -1 if there is none or it was taken before. */
int wire_fds_take(struct wire_fds *set, uint32_t index);

/* --- transport --- */

void wire_header_init(struct gpumem_message_header *header, uint16_t type, uint32_t length,
                      uint16_t fds, uint32_t serial);

/* Fills the header of a fixed-size message without descriptors. */
#define wire_message_init(message, message_type, serial)                                           \
        wire_header_init(&(message)->header, (message_type), sizeof(*(message)), 0, (serial))

/* Sends one packet. `flags` is 0 or MSG_DONTWAIT (then -EAGAIN if the peer's queue is full). The
 * descriptors stay the caller's. Never raises SIGPIPE: a gone peer is -EPIPE. */
int wire_send_with_fds(int socket, const void *message, size_t length, const int *fds,
                       size_t fds_count, int flags);

/* As above, and closes the descriptors whatever comes of it. */
int wire_send_consume_fds(int socket, const void *message, size_t length, const int *fds,
                          size_t fds_count, int flags);

static inline int wire_send(int socket, const void *message, size_t length, int flags)
{
        return wire_send_with_fds(socket, message, length, NULL, 0, flags);
}

/*
 * Receives one packet into `buffer` of `size` bytes (at least a header; GPUMEM_MESSAGE_MAX takes
 * any message). `flags` is 0 or MSG_DONTWAIT. On success *length is its length and `set` owns its
 * descriptors (close-on-exec). On any other outcome the set is empty and what had arrived is
 * closed: -EAGAIN    nothing there (MSG_DONTWAIT), or the socket's receive timeout passed
 *   WIRE_CLOSED, WIRE_TRUNCATED, WIRE_FDS_LOST
 * Says nothing about the contents: see wire_check().
 */
int wire_receive(int socket, void *buffer, size_t size, struct wire_fds *set, size_t *length,
                 int flags);

/* Bounds blocking receives (SO_RCVTIMEO) and sends (SO_SNDTIMEO): they end with -EAGAIN. One system
 * call a round trip instead of two with poll. 0: without bound. */
int wire_set_timeout(int socket, uint32_t timeout_ms);

/* CLOCK_MONOTONIC now, and the moment `ms` from now, in nanoseconds. */
uint64_t wire_now_ns(void);
uint64_t wire_deadline_ns(uint32_t ms);

/* Waits for POLLIN or POLLOUT (or the peer's end) until the deadline; -ETIMEDOUT when it passes.
 * Restarts after signals. */
int wire_wait(int socket, short events, uint64_t deadline_ns);

/* wire_wait(), then wire_receive(); -ETIMEDOUT when the deadline passes. */
int wire_receive_until(int socket, void *buffer, size_t size, struct wire_fds *set, size_t *length,
                       uint64_t deadline_ns);

/* --- checking --- */

enum wire_direction {
        WIRE_TO_DAEMON, /* requests */
        WIRE_TO_CLIENT, /* replies, ERROR and events */
};

/*
 * Is this a well-formed message of that direction? Checks everything that does not depend on who
 * sent it: header, exact length for its type and count, number of descriptors, counts against their
 * limits, reserved fields, names and texts. Returns WIRE_OK or the first problem. `message` must be
 * 8-byte aligned. After WIRE_OK the struct of its type may be read, with frame_ids[0..frames).
 */
int wire_check(const void *message, size_t length, size_t fds_count, enum wire_direction direction);

/* Is `text` NUL-terminated within `size` bytes, UTF-8, without control characters? WIRE_OK or
 * WIRE_BAD_TEXT. (ERROR texts may hold newlines: `multiline`.) */
int wire_text_check(const char *text, size_t size, int multiline);

#endif
