/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of a takeover share: takeover.c decides and rebuilds, takeover_import.c has
 * the driver's side. */
#ifndef GPUMEMD_TAKEOVER_INTERNAL_H
#define GPUMEMD_TAKEOVER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/device.h"
#include "daemon/state.h"
#include "daemon/takeover.h"

/* A descriptor from the keeper; -1 once it was taken. */
struct kept {
        uint64_t id;
        uint32_t kind;
        int fd;
};

/* A session of the old state. */
struct left_session {
        const struct state_session *record;
        struct session *session; /* the one made of it; NULL: none */
        bool broken;             /* something of it is lost: it is closed */
};

struct left_device {
        struct state_device record;
        bool there;                 /* the state describes it */
        bool used;                  /* the driver still has it */
        struct state_frame *frames; /* [record.frames]: what they shall be; state FREE: nothing */
        int *fds;                   /* [record.frames]; -1: none */
};

struct takeover {
        struct log *log;
        struct state *state; /* the old one; NULL: there was none that could be read */
        struct kept *kept;   /* sorted by kind and id */
        size_t count, capacity;
        bool out_of_memory;
        struct left_session *sessions; /* sorted by number */
        uint32_t sessions_count;
        struct left_device devices[STATE_DEVICES_MAX];
        uint32_t frames_back, frames_released, frames_lost, sessions_lost;
        uint64_t started_ns;
};

/* NULL if there is none of that number. */
struct left_session *takeover_find_session(const struct takeover *takeover, uint64_t number);

/* Undoes the import of a frame that turns out to belong to nothing. */
void takeover_release_import(struct device *device, uint32_t number);

#endif
