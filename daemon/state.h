/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's state: what a daemon needs to go on where another was killed at any instruction. It
 * lies in one memfd, which the keeper holds as well (keeper/protocol.h); its size is sealed.
 *
 * What may be relied on. A SIGKILL keeps all stores that were made, in program order (releases, on
 * machines that reorder). So every record has one word that commits what was written before it:
 *
 *   frame     `state`: the other fields are read only as far as the state needs them
 *   object    `id`: not 0 only while the record is complete
 *   session   `state`, once it is open; `commit`, once per request
 *
 * Requests. A request of a session is one transaction, with the ticket `commit + 1`. What it does
 * to frames and objects is marked with that ticket; its reply is written into the one of the two
 * reply records that is not the current one; then `commit` takes the ticket, and then the reply is
 * sent. Whatever carries a ticket above `commit` has not happened and is undone by the next daemon
 * (state_frame_recover(), state_object_exists()); the client is told the serial of the committed
 * reply and asks for it, or sends its request again. There is at most one such transaction a
 * session, so nothing else has happened to those frames since.
 *
 * What the daemon does by itself (creating, scrubbing, releasing, draining) writes the frame's
 * state when it is true: fresh when the keeper has the descriptor, ready when the scrub is over,
 * releasing before the descriptor is dropped, free when everything is gone.
 *
 * Versions. Any change to a record is a new version. A daemon reads its own version and those older
 * ones it has a reader for, and always writes a state of its own version anew, so upgrading is
 * restarting. A daemon that finds a newer version touches nothing and does not start: downgrading
 * is to install the newer daemon again, or to stop the keeper, which frees all memory and ends all
 * sessions.
 */
#ifndef GPUMEMD_STATE_H
#define GPUMEMD_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <gpumem/protocol.h>

#include "daemon/frame.h"

#define STATE_MAGIC       UINT64_C(0x4554415453504d47)
#define STATE_VERSION     1
#define STATE_DEVICES_MAX 64
#define STATE_OBJECTS_MAX 256
#define STATE_TENANT_MAX  128
/* The largest reply: a grant of the most frames. */
#define STATE_REPLY_MAX (sizeof(struct gpumem_message_grant_reply) + 8 * GPUMEM_MESSAGE_FDS_MAX)

/* A frame's state in its record: enum frame_state, and this. */
#define STATE_RELEASING 32

struct state_frame {
        uint8_t state;    /* written last */
        uint8_t previous; /* granted: the state before, fresh or ready */
        uint16_t reserved;
        uint32_t tenant;  /* whose it is: the tenant's number; 0: nobody's */
        uint64_t session; /* granted, draining, dirty: the session's number */
        uint64_t object;
        uint64_t ticket; /* of the request that granted or returned it; 0: no request did */
};

struct state_object {
        uint64_t id; /* written last; 0: none */
        uint32_t kind;
        uint32_t unit_frames;
        uint64_t frames_max;
        uint64_t created, destroyed; /* tickets; destroyed 0: it is not */
        char name[GPUMEM_NAME_MAX];
};

struct state_reply {
        uint32_t serial; /* of the request that it answers */
        uint32_t length;
        uint8_t message[(STATE_REPLY_MAX + 7) / 8 * 8];
};

enum state_session_state {
        STATE_SESSION_NONE,
        STATE_SESSION_OPEN,
        STATE_SESSION_CLOSED, /* its frames drain until the process is dead */
};

struct state_session {
        uint32_t state; /* written last */
        uint32_t device;
        uint64_t number;
        uint64_t commit;
        uint64_t objects_last; /* struct object_table.last */
        uint64_t connected_us;
        uint32_t tenant; /* its number */
        uint32_t resumable;
        int32_t pid;
        uint32_t uid, gid;
        uint32_t reserved;
        char name[GPUMEM_NAME_MAX];
        char tenant_name[STATE_TENANT_MAX];
        struct state_reply replies[2];                  /* the committed one: [commit & 1] */
        struct state_object objects[STATE_OBJECTS_MAX]; /* by slot (object.h) */
};

struct state_device {
        uint8_t uuid[16];
        uint32_t in_use; /* written last */
        uint32_t frames;
        uint64_t frame_bytes;
        uint64_t frames_offset; /* of its struct state_frame[frames], in the memfd */
};

struct state_header {
        uint64_t magic;
        uint32_t version;
        uint32_t complete; /* written last: the state was built to the end */
        uint32_t frame_size, session_size, device_size; /* of one record */
        uint32_t sessions_max;
        uint64_t size; /* of the memfd */
        uint64_t sessions_offset, devices_offset;
        uint64_t session_stride;
        uint64_t generation; /* how many daemons took over before this one */
        uint64_t sessions_last;
        uint32_t tenants_last;
        uint32_t devices_max;
};

struct state {
        int fd;
        uint8_t *base;
        size_t size;
        struct state_header *header;
        uint32_t sessions_hint; /* where the search for a free record begins */
};

struct state_plan {
        uint32_t sessions_max;
        struct {
                uint8_t uuid[16];
                uint32_t frames;
                uint64_t frame_bytes;
        } devices[STATE_DEVICES_MAX]; /* by the device's slot; frames 0: none */
};

/* A new state, in which everything is free; not complete yet. 0, -EINVAL, -E2BIG, other negative
 * errno. */
int state_new(struct state **out, const struct state_plan *plan);

enum {
        STATE_E_NEWER = 1,  /* of a version that this daemon does not know */
        STATE_E_BROKEN = 2, /* no state, cut short, or never completed */
};

/* A state that another daemon left. Takes the descriptor. 0, STATE_E_*, or negative errno; `why`
 * says more. After 0 all offsets and counts of the header are within the memfd. */
int state_open_consume_fd(struct state **out, int fd, char *why, size_t size);

/* Returns NULL; NULL is fine. */
struct state *state_free(struct state *state);

/* The state is whole: another daemon may take it over. */
void state_complete(struct state *state);

/* --- reading what was left; copies, since sizes may differ ------------------------------------ */

/* false: there is no such record in use. */
bool state_read_device(const struct state *state, uint32_t slot, struct state_device *out);
/* `number` is below the device's frames. */
void state_read_frame(const struct state *state, const struct state_device *device, uint32_t number,
                      struct state_frame *out);
/* The record itself, if it is in use and well-formed (names terminated, device there), else NULL.
 * Its objects and replies still have to be looked at. Only of this version (state_session_size()).
 */
const struct state_session *state_read_session(const struct state *state, uint32_t index);

/* Does this object exist, after what was not committed is undone? */
bool state_object_exists(const struct state_session *session, const struct state_object *object);

/* The committed reply; NULL if there is none that makes sense. */
const struct state_reply *state_committed_reply(const struct state_session *session);

/* Undoes what was not committed in a frame of an open session: changes `frame` to what holds. */
void state_frame_recover(struct state_frame *frame, const struct state_session *session);

/* --- writing ---------------------------------------------------------------------------------- */

struct state_frame *state_frames(struct state *state, uint32_t device);

/* A free session record, zeroed but for its number; NULL if there is none. It exists for the next
 * daemon once state_session_set() was called. */
struct state_session *state_session_take(struct state *state, uint64_t number);
void state_session_set(struct state_session *session, enum state_session_state value);
/* Frees the record and its memory. NULL is fine. */
void state_session_release(struct state *state, struct state_session *session);

/* Commits a request and its reply (at most STATE_REPLY_MAX bytes). */
void state_session_commit(struct state_session *session, uint64_t ticket, uint32_t serial,
                          const void *reply, size_t length);

void state_object_create(struct state_session *session, uint32_t slot,
                         const struct state_object *object);

static inline void state_store_u8(uint8_t *word, uint8_t value)
{
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

#endif
