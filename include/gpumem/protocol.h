/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire protocol between libgpumem and gpumemd, on client.sock (SOCK_SEQPACKET).
 *
 * Shape. One packet is one message: a header and a body, little-endian, every struct a multiple of
 * 8 bytes, no padding that is not named; reserved fields are zero and checked. `length` is the
 * packet's own length and must equal what arrived. At most GPUMEM_MESSAGE_MAX bytes and
 * GPUMEM_MESSAGE_FDS_MAX descriptors a message; `fds` states how many descriptors come along and
 * must equal what arrived.
 *
 * Order. A session is one connection for one device of one process. The client sends HELLO first
 * and once (a HELLO that was refused may be said again). After that it has one request outstanding
 * at a time; each request gets one reply with the request's serial: the matching *_REPLY, or ERROR.
 * Serials start at 1 and grow by 1; after UINT32_MAX comes 1. Events come from the daemon at any
 * time, with serial 0, and are never answered. A client that is turned away (too many of them) gets
 * ERROR with serial 1 and the connection is closed, perhaps before HELLO could be sent: a client
 * whose HELLO cannot be sent (EPIPE) reads what is there first.
 *
 * Trust. The daemon believes nothing in a message that it cannot check; who the client is, it asks
 * the kernel. A malformed message (wrong length, count, descriptor count, reserved bit) gets ERROR
 * with GPUMEM_E_PROTOCOL and the connection is closed; a well-formed request that cannot be met
 * gets ERROR with the reason and the connection goes on. An ERROR for a grant means that nothing
 * was granted.
 *
 * Restart. Where the feature RESUME is in force, the connection outlives the daemon. A daemon that
 * takes over from one that died sends RESUMED first, with the serial of the last request that was
 * carried out. If the client waits for the answer to that one, it asks for it with REPLAY (under
 * the serial of the request) unless it has come meanwhile; if it waits for the answer to a later
 * one, it sends that request again, unchanged. After a RESUMED either side may see a message twice:
 * the daemon ignores a request with the serial of the last one, the client an answer that it does
 * not wait for, and closes its descriptors.
 *
 * Descriptors. A frame's descriptor is a driver export (cuMemExportToShareableHandle): import it,
 * then close it. It is opaque.
 *
 * Handles. Object ids are per session and never reused within it; frame ids are the daemon's frame
 * numbers on that device. Naming an object or a frame that the session does not hold is
 * GPUMEM_E_NOT_FOUND.
 */
#ifndef GPUMEM_PROTOCOL_H
#define GPUMEM_PROTOCOL_H

#include <stdint.h>

#include <gpumem/error.h>

#define GPUMEM_PROTOCOL_MAGIC       UINT64_C(0x31444d454d555047) /* "GPUMEMD1", little-endian */
#define GPUMEM_PROTOCOL_VERSION_MIN 1
#define GPUMEM_PROTOCOL_VERSION_MAX 1

#define GPUMEM_MESSAGE_MAX     65536
#define GPUMEM_MESSAGE_FDS_MAX 253 /* SCM_MAX_FD of Linux */
#define GPUMEM_NAME_MAX                                                                            \
        64 /* with the terminating NUL, which must be there; UTF-8 without control characters */
#define GPUMEM_TEXT_MAX 512

/* Message types. Requests are even, the reply to request t is t + 1; ERROR answers any request.
 * Events have the top bit. */
enum gpumem_message_type {
        GPUMEM_MESSAGE_ERROR = 1,
        GPUMEM_MESSAGE_HELLO = 2,
        GPUMEM_MESSAGE_HELLO_REPLY = 3,
        GPUMEM_MESSAGE_OBJECT_CREATE = 4,
        GPUMEM_MESSAGE_OBJECT_CREATE_REPLY = 5,
        GPUMEM_MESSAGE_OBJECT_DESTROY = 6,
        GPUMEM_MESSAGE_OBJECT_DESTROY_REPLY = 7,
        GPUMEM_MESSAGE_GRANT = 8,
        GPUMEM_MESSAGE_GRANT_REPLY = 9,
        GPUMEM_MESSAGE_RETURN = 10,
        GPUMEM_MESSAGE_RETURN_REPLY = 11,
        GPUMEM_MESSAGE_MEMINFO = 12,
        GPUMEM_MESSAGE_MEMINFO_REPLY = 13,
        GPUMEM_MESSAGE_REPLAY = 14, /* answered by what was answered before, whatever it was */

        GPUMEM_MESSAGE_EVENT = 0x8000,
        GPUMEM_MESSAGE_EVENT_RECLAIM = 0x8002, /* please return what you do not use */
        GPUMEM_MESSAGE_EVENT_DEVICE = 0x8004,  /* the device is degraded or lost */
        GPUMEM_MESSAGE_EVENT_RESUMED = 0x8006, /* another daemon has taken over */
};

struct gpumem_message_header {
        uint32_t length; /* of the whole packet, header included */
        uint16_t type;   /* enum gpumem_message_type */
        uint16_t fds;    /* descriptors that come with it */
        uint32_t serial;
        uint32_t flags; /* zero in this version */
};

/* ERROR: why a request was refused. */
struct gpumem_message_error {
        struct gpumem_message_header header;
        uint32_t code; /* positive value of enum gpumem_error */
        uint32_t reserved;
        char text[GPUMEM_TEXT_MAX]; /* what was wrong and what to do; NUL-terminated */
};

enum gpumem_driver_kind {
        GPUMEM_DRIVER_CUDA = 1,
        GPUMEM_DRIVER_SIMULATED = 2,
};

/* Features: bits both sides have are in force. */
#define GPUMEM_FEATURE_RESUME UINT64_C(1) /* the connection outlives the daemon */

struct gpumem_message_hello {
        struct gpumem_message_header header;
        uint64_t magic;
        uint32_t version_min, version_max; /* what the client speaks */
        uint64_t features;
        uint32_t driver_kind; /* enum gpumem_driver_kind */
        uint32_t reserved;
        uint8_t device_uuid[16]; /* the device this session is for */
        uint64_t granularity; /* allocation granularity the client's driver reports for it, bytes */
        char name[GPUMEM_NAME_MAX]; /* what the engine calls itself; for people only */
};

struct gpumem_message_hello_reply {
        struct gpumem_message_header header;
        uint64_t features;
        uint32_t version;
        uint32_t driver_kind;
        uint8_t device_uuid[16];
        uint64_t frame_bytes;  /* size of a frame on this device */
        uint64_t device_bytes; /* what the daemon manages on it */
        uint64_t session;      /* the session's number, as gpumemctl ps shows it */
        uint64_t epoch; /* start of the daemon, ns of CLOCK_REALTIME: differs after a restart */
        uint32_t objects_max;  /* objects this session may have at once */
        uint32_t device_flags; /* GPUMEM_DEVICE_* */
};
#define GPUMEM_DEVICE_NO_EDIT_BESIDE_KERNELS                                                       \
        1u /* mapping changes must wait until no pin of the process is held on the device */

enum gpumem_object_kind {
        GPUMEM_OBJECT_BUFFER = 1,
        GPUMEM_OBJECT_KV_POOL = 2,
};

struct gpumem_message_object_create {
        struct gpumem_message_header header;
        uint32_t kind; /* enum gpumem_object_kind */
        uint32_t
                unit_frames; /* grants and returns are multiples of it; 1..GPUMEM_MESSAGE_FDS_MAX */
        uint64_t frames_max; /* the object never holds more; 1.. */
        char name[GPUMEM_NAME_MAX];
};

struct gpumem_message_object_create_reply {
        struct gpumem_message_header header;
        uint64_t object;
};

/* OBJECT_DESTROY: all frames that the object still holds are returned. The client has unmapped and
 * released them. */
struct gpumem_message_object_destroy {
        struct gpumem_message_header header;
        uint64_t object;
};

struct gpumem_message_object_destroy_reply {
        struct gpumem_message_header header;
        uint64_t frames; /* how many came back */
};

/* GRANT: all-or-nothing. wait_ms = 0: answer at once (GPUMEM_E_AGAIN if memory is short); otherwise
 * the request is queued, first come first served, until its deadline (then GPUMEM_E_TIMEOUT, naming
 * who holds the memory). Asked again at once, for the same object and number, it has its old place.
 * One that cannot be met holds back those behind it for two seconds at most (grant.h has the rule).
 * More than the object or the device can ever have is GPUMEM_E_NO_MEMORY at once. A client must not
 * wait while it holds a pin. */
#define GPUMEM_GRANT_WAIT_MAX_MS 60000
struct gpumem_message_grant {
        struct gpumem_message_header header;
        uint64_t object;
        uint32_t frames; /* 1..GPUMEM_MESSAGE_FDS_MAX, a multiple of the object's unit_frames */
        uint32_t wait_ms;
};

/* One descriptor per frame, in the order of the ids. */
struct gpumem_message_grant_reply {
        struct gpumem_message_header header;
        uint64_t object;
        uint32_t frames;
        uint32_t reserved;
        uint64_t frame_ids[]; /* [frames] */
};

/* RETURN: the client has unmapped and released these frames. All or nothing: one foreign or doubled
 * id refuses the message. */
struct gpumem_message_return {
        struct gpumem_message_header header;
        uint64_t object;
        uint32_t frames; /* 1..GPUMEM_RETURN_FRAMES_MAX */
        uint32_t reserved;
        uint64_t frame_ids[]; /* [frames] */
};
#define GPUMEM_RETURN_FRAMES_MAX 4096

struct gpumem_message_return_reply {
        struct gpumem_message_header header;
        uint64_t frames;
};

/* MEMINFO: what this client may have, not what the device has. */
struct gpumem_message_meminfo {
        struct gpumem_message_header header;
};

struct gpumem_message_meminfo_reply {
        struct gpumem_message_header header;
        uint64_t device_bytes;    /* managed by the daemon on this device */
        uint64_t session_bytes;   /* granted to this session */
        uint64_t tenant_bytes;    /* charged to its tenant */
        uint64_t available_bytes; /* what a grant could give this session now, without waiting for
                                     anybody */
};

/* REPLAY: the answer to the last request, once more; its header has that request's serial. Only
 * after RESUMED named that serial. */
struct gpumem_message_replay {
        struct gpumem_message_header header;
};

struct gpumem_message_event_resumed {
        struct gpumem_message_header header;
        uint64_t epoch;  /* start of this daemon, as in HELLO_REPLY */
        uint32_t serial; /* of the last request of this session that was carried out */
        uint32_t reserved;
};

struct gpumem_message_event_reclaim {
        struct gpumem_message_header header;
        uint64_t bytes; /* how much is wanted; 0: whatever is idle */
};

struct gpumem_message_event_device {
        struct gpumem_message_header header;
        uint32_t state; /* 1 degraded, 2 lost */
        uint32_t reserved;
};

#endif
