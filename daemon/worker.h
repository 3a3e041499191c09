/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that works on frames, so that slow driver calls stay out of the event loop. The loop
 * pushes frame numbers; the thread takes a batch, runs the work, and puts them into the done list;
 * the eventfd becomes readable when that list was empty before, and the loop collects it.
 *
 * A frame in a worker belongs to it from push to collect (see frame.h). One mutex guards both lists
 * and the links of the frames in them; it is held for a few instructions and never during work.
 */
#ifndef GPUMEMD_WORKER_H
#define GPUMEMD_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/frame.h"

#define WORKER_BATCH_MAX 32

struct worker;

struct worker_work {
        const char *name; /* of the thread, at most 15 bytes */
        size_t batch;     /* frames handed to run() at once; 1..WORKER_BATCH_MAX */
        void *userdata;
        /* On the worker's thread: before the first batch (negative errno ends the thread and
         * worker_new() fails with it), for every batch, after the last. start and stop may be NULL.
         */
        int (*start)(void *userdata);
        void (*run)(void *userdata, const uint32_t *numbers, size_t count);
        void (*stop)(void *userdata);
        /* When nothing is left to do, once after the last batch and after worker_poke(). True makes
         * worker_fd() readable. May be NULL. */
        bool (*idle)(void *userdata);
};

/* 0 or negative errno. `table` must outlive the worker. Signals are blocked in the thread. */
int worker_new(struct worker **out, struct frame_table *table, const struct worker_work *work);

/* Ends the thread after the batch it is on; what it did not get to is left undone. Frames not
 * collected stay in no list. Returns NULL; NULL is fine. */
struct worker *worker_free(struct worker *worker);

/* Hands frames over. From the loop's thread. */
void worker_push(struct worker *worker, uint32_t number);

/* Lets the thread run idle() as soon as it has nothing else to do. */
void worker_poke(struct worker *worker);

/* Moves what is done to `done` (an initialised list) and resets the eventfd. */
void worker_collect(struct worker *worker, struct frame_list *done);

/* Readable when there is something to collect; owned by the worker. */
int worker_fd(const struct worker *worker);

#endif
