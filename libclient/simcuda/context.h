/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts. A context owns streams and events and the memory of cuMemAlloc; virtual memory belongs
 * to the process. An illegal access poisons a context: from then on every call that meets it
 * returns the sticky error, its queued work is dropped, and only cuDevicePrimaryCtxReset (or the
 * end of the context) clears it. The process lives on.
 *
 * The structures are static and outlive their contexts; a handle carries a generation, so a stale
 * one is recognised. Everything but `error` is written under sim.work_lock.
 */
#ifndef GPUMEM_SIMCUDA_CONTEXT_H
#define GPUMEM_SIMCUDA_CONTEXT_H

#include "libclient/simcuda/sim.h"

struct stream;

struct context {
        _Atomic(int) error; /* sticky CUresult */
        _Atomic(bool) alive;
        bool ending; /* its streams and memory are being ended; it may not start again yet */
        uint32_t generation;
        uint32_t references; /* primary: retains */
        int device;
        bool primary;
        struct stream *null_stream;
        struct stream *streams; /* all, the null stream included */
};

/*
 * What an entry that works in a context asks first: sim_enter(), a current context that is alive,
 * and that context's sticky error.
 */
CUresult context_enter(struct context **out);
/* The sticky error a VMM call meets: of the current context, else of any primary context. */
CUresult context_sticky(void);
/* The current context of this thread if it is alive, else NULL. */
struct context *context_current(void);
CUcontext context_handle(const struct context *context);

/* The first error stays. Async-signal-safe. */
void context_poison(struct context *context, CUresult error);
/* Poisons every living context; for accesses whose context nobody knows. Async-signal-safe. */
void context_poison_all(CUresult error);

/* Without locks: poisons the current context of this thread, or all if there is none. */
void context_poison_current(CUresult error);
/* Without locks: poisons every living context on one of these devices (a bit mask) with the error
 * the machine notes for it. */
void contexts_lose_devices(uint32_t lost);
/* Marks this thread as running a host function; returns what it was before. */
bool context_in_host_function(bool on);

/* cuMemAlloc's memory of a context, ended with it (memory.c). No lock held. */
void memory_free_of_context(const struct context *context);

#endif
