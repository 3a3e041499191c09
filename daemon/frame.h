/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames: the smallest physical units that the daemon hands out, one cuMemCreate handle each, in
 * one table per device, named by their number in it. The frame's place in the device's direct map
 * is base + number * frame_bytes.
 *
 * A frame is in exactly one state, and in exactly one list at a time:
 *
 *   free         the device's free list              nobody is charged
 *   fresh        the device's pool of fresh frames   nobody is charged
 *   granted      the list of the object holding it   charged to the object's tenant
 *   dirty, ready the tenant's lists on the device    charged to that tenant
 *   draining     the list of the closed session      charged to its tenant
 *   quarantined  the device's list                   nobody is charged
 *
 * While a worker thread works on it (`work` is not FRAME_IDLE) the frame is in that worker's queue
 * instead, keeps state and charge until the work is done, and its `handle`, `fd`, links and outcome
 * belong to the worker. Everything else belongs to the loop's thread.
 */
#ifndef GPUMEMD_FRAME_H
#define GPUMEMD_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/account.h"
#include "libclient/driver/driver.h"

struct object;
struct state_frame;
struct tenant_device;

enum frame_state {
        FRAME_FREE,        /* no allocation exists: no handle, no descriptor, not mapped */
        FRAME_FRESH,       /* created, exported, in the direct map; nobody ever held it; any tenant
                              may have it */
        FRAME_GRANTED,     /* an object holds it; the client may map it and write to it */
        FRAME_DIRTY,       /* returned by its tenant, with what was written in it */
        FRAME_READY,       /* returned and scrubbed; its tenant, and only its tenant, may have it
                              again */
        FRAME_DRAINING,    /* its session is closed, but the process lives and may still map it */
        FRAME_QUARANTINED, /* a driver call that had to be undone could not be; never used again */
        FRAME_STATE_COUNT,
};

enum frame_work {
        FRAME_IDLE,
        FRAME_CREATING,  /* free -> fresh */
        FRAME_SCRUBBING, /* dirty -> ready */
        FRAME_RELEASING, /* fresh, dirty, ready -> free */
        FRAME_WORK_COUNT,
};

/* The driver calls a frame's life consists of. */
enum frame_step {
        FRAME_STEP_NONE,
        FRAME_STEP_CREATE,
        FRAME_STEP_EXPORT,
        FRAME_STEP_MAP,
        FRAME_STEP_SET_ACCESS,
        FRAME_STEP_UNMAP,
        FRAME_STEP_RELEASE,
        FRAME_STEP_SCRUB,
        FRAME_STEP_COUNT,
};

/* What came of a worker's work. */
enum frame_outcome {
        FRAME_DONE,      /* as intended */
        FRAME_EXHAUSTED, /* the driver has no memory; the frame is as it was */
        FRAME_FAILED,    /* a driver call failed and was undone; the frame is as it was */
        FRAME_STUCK,     /* a driver call failed and the frame's true condition is unknown */
};

#define FRAME_NONE UINT32_MAX

/* At most 64 bytes: there are up to 131,072 of them on a device. */
struct frame {
        CUmemGenericAllocationHandle handle; /* valid iff fd >= 0 */
        struct charge charge;                /* to the tenant, from grant until free */
        union {
                struct object *object;        /* granted: who holds it */
                struct tenant_device *tenant; /* dirty, ready, draining: whose it is */
        };
        uint32_t next, previous; /* in its list; FRAME_NONE at the ends */
        int fd;                  /* the export, made once and sent as often as granted; -1 */
        uint16_t error;          /* outcome other than FRAME_DONE: the CUresult */
        uint8_t state;           /* enum frame_state */
        uint8_t work;            /* enum frame_work */
        uint8_t outcome;         /* enum frame_outcome of the last work */
        uint8_t step;            /* enum frame_step at which it failed */
        uint8_t marked;          /* scratch of whoever walks a list of ids; zero otherwise */
        uint8_t reserved;
};

_Static_assert(sizeof(struct frame) <= 64, "frames are many");

/* First in, first out, unless pushed to the front. */
struct frame_list {
        uint32_t first, last;
        uint32_t count;
};

struct frame_table {
        struct frame *frames;
        uint32_t count;
        uint64_t frame_bytes;
        uint32_t states[FRAME_STATE_COUNT]; /* how many frames are in each state */
        uint32_t works[FRAME_WORK_COUNT];   /* and under each kind of work */
        struct state_frame *records; /* [count]: what the next daemon sees (state.h); or NULL */
};

/* All frames are free and in `free_list`. -ENOMEM; then the table is empty and deinit is harmless.
 */
int frame_table_init(struct frame_table *table, uint32_t count, uint64_t frame_bytes,
                     struct frame_list *free_list);
void frame_table_deinit(struct frame_table *table);

static inline void frame_list_init(struct frame_list *list)
{
        *list = (struct frame_list){.first = FRAME_NONE, .last = FRAME_NONE};
}

/* O(1) each. The frame must be in no list (append, push) or in this one (remove). */
void frame_list_append(struct frame_table *table, struct frame_list *list, uint32_t number);
void frame_list_push(struct frame_table *table, struct frame_list *list, uint32_t number);
void frame_list_remove(struct frame_table *table, struct frame_list *list, uint32_t number);
/* The first frame, taken out; FRAME_NONE if there is none. */
uint32_t frame_list_pop(struct frame_table *table, struct frame_list *list);

/* Changes state or work, the counters, and the frame's record. The caller moves it between lists.
 */
void frame_set_state(struct frame_table *table, uint32_t number, enum frame_state state);
void frame_set_work(struct frame_table *table, uint32_t number, enum frame_work work);

/* What a frame's record says beside its state, before the state is changed to granted; and that a
 * request gave it back. `ticket`: see state.h. */
void frame_record_grant(struct frame_table *table, uint32_t number, uint32_t tenant,
                        uint64_t session, uint64_t object, uint64_t ticket);
void frame_record_return(struct frame_table *table, uint32_t number, uint64_t ticket);

const char *frame_state_name(enum frame_state state);
const char *frame_step_name(enum frame_step step);

#endif
