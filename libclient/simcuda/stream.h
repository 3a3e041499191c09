/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: work in order, one worker thread each, started with the first work. Between operations a
 * worker may pause for a random moment (seeded; GPUMEM_SIM_SEED=0 never), so that programs which
 * rely on luck meet their race here and not on a GPU.
 *
 * The null stream (handle NULL or CU_STREAM_LEGACY) is the legacy default stream: its operations
 * start after everything submitted earlier to the context's blocking streams, and later work of
 * blocking streams starts after them. Streams created with CU_STREAM_NON_BLOCKING take no part in
 * that. CU_STREAM_PER_THREAD is a blocking stream of the calling thread, one per context.
 *
 * Synchronous calls are null stream operations that the caller runs itself when nothing is before
 * them.
 *
 * A stream holds at most STREAM_PENDING_MAX operations; submitting more waits, as on hardware.
 */
#ifndef GPUMEM_SIMCUDA_STREAM_H
#define GPUMEM_SIMCUDA_STREAM_H

#include "libclient/simcuda/context.h"

#define STREAM_PENDING_MAX 1024
#define STREAMS_MAX        1024 /* per context */

struct operation;
/* Runs without locks, on a worker or the calling thread. An error other than success poisons the
 * context. */
typedef CUresult (*operation_run)(struct context *context, struct operation *operation);

/* Embedded first in what a submitter allocates with malloc; freed with free() when it has run. */
struct operation {
        struct operation *next;
        operation_run run;
        /* With the work lock held: when the sequence is known, and before free(), run or not. May
         * be NULL. */
        void (*placed)(struct operation *operation, struct stream *stream);
        void (*discard)(struct operation *operation);
        uint64_t sequence;
        struct dependency *dependencies; /* a list */
};

CUresult stream_new_null(struct context *context); /* work lock held */
/* Without locks. */
void streams_of_context_end(struct context *context);
CUresult streams_of_context_synchronize(struct context *context);

/* Takes the operation in every case. Returns at once unless the stream is full. */
CUresult stream_submit(struct context *context, CUstream handle, struct operation *operation);
/* As stream_submit() on the given stream, but waits until it has run, and returns the context's
 * state. */
CUresult stream_run(struct context *context, CUstream handle, struct operation *operation);
/* Waits for everything submitted to a stream so far. */
CUresult stream_wait(struct context *context, CUstream handle);

/* For events; work lock held. */
void stream_ref(struct stream *stream);
void stream_unref(struct stream *stream);
bool stream_reached(const struct stream *stream, uint64_t sequence);
void stream_wait_until(struct stream *stream, uint64_t sequence);
struct context *stream_context(const struct stream *stream);
/* The operation, not yet submitted, shall not start before that point of a stream. False: no
 * memory. */
bool stream_depend(struct operation *operation, struct stream *stream, uint64_t sequence);

/* The context whose operation runs on this thread, or NULL. */
struct context *stream_running_context(void);

#endif
