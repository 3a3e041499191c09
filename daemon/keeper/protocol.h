/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between gpumemd and gpumemd-keeper (SOCK_SEQPACKET, one machine, one user).
 *
 * The keeper holds descriptors by (kind, id) and knows nothing else about them. One packet is one
 * message; each request gets exactly one reply, with its serial, in the order of the requests, so a
 * daemon may have several outstanding (at most KEEPER_OUTSTANDING_MAX: then a reply always has
 * room). A request that is not understood ends the connection.
 *
 *   HELLO  once, first                          reply: how many descriptors are held
 *   PUT    entries, one descriptor each         held when the reply says 0; what was held under the
 *                                               same kind and id is closed. All or nothing.
 *   DROP   entries                              closed when the reply comes; what is not held is
 *                                               no error
 *   FETCH  a cursor, 0 at first                 entries with copies of their descriptors and the
 *                                               next cursor, 0 at the end. Between two FETCHes of
 *                                               one pass nothing may be PUT or DROPped.
 *   RESET  lets go of everything                before a daemon hands over anew what it has
 *   READY  the daemon is in service             a death after this is answered at once
 *   STOP   the daemon ends on purpose           a keeper that started the daemon ends after it and
 *                                               lets go of everything
 *
 * A descriptor whose PUT was sent is safe: if the daemon dies then, the keeper still reads what is
 * in its queue before it sees the end of the connection.
 *
 * One daemon at a time: HELLO is answered -EBUSY while the process that said HELLO before lives and
 * is another one. Who connects must have the keeper's own user id.
 */
#ifndef GPUMEMD_KEEPER_PROTOCOL_H
#define GPUMEMD_KEEPER_PROTOCOL_H

#include <stdint.h>

#define KEEPER_MAGIC           UINT64_C(0x3152504b4d4d5047)
#define KEEPER_VERSION         1
#define KEEPER_ENTRIES_MAX     253 /* descriptors in one message */
#define KEEPER_OUTSTANDING_MAX 64

enum keeper_kind {
        KEEPER_FRAME = 1,   /* id: device << 32 | frame number */
        KEEPER_STATE = 2,   /* id: 0; the daemon's state (daemon/state.h) */
        KEEPER_LISTEN = 3,  /* id: 0 client.sock, 1 admin.sock */
        KEEPER_SESSION = 4, /* id: the session's number; its socket */
        KEEPER_PIDFD = 5,   /* id: the session's number; its process */
        KEEPER_KIND_COUNT,
};

enum keeper_type {
        KEEPER_HELLO = 1,
        KEEPER_PUT,
        KEEPER_DROP,
        KEEPER_FETCH,
        KEEPER_RESET,
        KEEPER_READY,
        KEEPER_STOP,
};

struct keeper_header {
        uint32_t length; /* of the whole packet */
        uint16_t type;   /* a reply has its request's */
        uint16_t count;  /* entries that follow */
        uint32_t serial; /* a reply has its request's */
        int32_t result;  /* replies: 0 or negative errno; requests: 0 */
        uint64_t value;  /* HELLO: magic, reply: descriptors held; FETCH: cursor, reply: the next */
};

struct keeper_entry {
        uint64_t id;
        uint32_t kind;    /* enum keeper_kind */
        uint32_t version; /* HELLO's one entry: KEEPER_VERSION; otherwise 0 */
};

struct keeper_message {
        struct keeper_header header;
        struct keeper_entry entries[KEEPER_ENTRIES_MAX];
};

#endif
