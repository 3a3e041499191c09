/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda-sim.so: a CUDA driver without a GPU. It offers the driver's ABI by symbol name, keeps
 * device memory in files of a tmpfs directory that all processes of the simulated machine share,
 * runs streams on worker threads, and is stricter than hardware wherever the documentation leaves
 * room.
 *
 * One concept per file:
 *
 *   config     what the environment says the machine looks like
 *   control    the file all processes share: capacity, allocation slots, who is attached
 *   store      one allocation: its file, its lock, its lifetime across processes
 *   window     device address space of this process: addresses, the alias, mappings
 *   vmm        cuMemCreate, cuMemMap and their relatives
 *   memory     cuMemAlloc, pinned host memory, pointer attributes
 *   context    primary and own contexts, the current one, sticky errors
 *   stream     ordered asynchronous work on worker threads; event
 *   copy       copies and fills
 *   fault      the simulated Xid: illegal access through the alias
 *   device     cuInit, devices, fork and exit
 *   symbol     cuGetProcAddress
 *   call       what happens around every entry: injected faults, latency
 *   inject     the rules of injected faults
 *   profile    latencies measured on a real card
 *   module     device code: there is nothing to run it
 *   error      names, texts, the detail a CUresult cannot carry
 *
 * Process-wide state (`sim`) is what any driver library has behind its C ABI.
 *
 * Locks, in the order in which they may be taken:
 *   1. sim.work_lock   contexts, streams, events, their handle tables
 *   2. sim.memory_lock memory handles, allocations, reservations, mappings, pinned ranges
 *   3. control->lock   the shared control file (process-shared, robust)
 * The locks of inject and call are taken before or after these, never with one held.
 * No user code (host function, copy) runs under any of them, and the memory lock is never held
 * while waiting for work, so VMM calls neither synchronise with streams nor wait for them.
 */
#ifndef GPUMEM_SIMCUDA_SIM_H
#define GPUMEM_SIMCUDA_SIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/driver/cuda_abi.h"
#include "libclient/simcuda/call.h"

#define SIM_DEVICES_MAX    16
#define SIM_DRIVER_VERSION 12040
/* Every byte of new memory: a NaN as f16, bf16 and f32, -1 as an integer, no page id. */
#define SIM_POISON 0xff

#define SIM_EXPORT __attribute__((visibility("default")))
/* Declares and defines an exported entry, so that no entry lacks a prototype. */
#define SIM_API_PLAIN(name, parameters)                                                            \
        SIM_EXPORT CUresult name parameters;                                                       \
        CUresult name parameters
/*
 * The same for all entries that act: faults are injected and a profile's latency is added around
 * what follows (call.h). `arguments` are the parameters' names.
 */
#define SIM_API(name, parameters, arguments)                                                       \
        static CUresult name##_body parameters;                                                    \
        SIM_EXPORT CUresult name parameters;                                                       \
        CUresult name parameters                                                                   \
        {                                                                                          \
                struct sim_call call_;                                                             \
                                                                                                   \
                if (!sim_call_begin(&call_, #name))                                                \
                        return call_.result;                                                       \
                return sim_call_end(&call_, name##_body arguments);                                \
        }                                                                                          \
        static CUresult name##_body parameters
/* Exports the same entry under another name (the ABI's names with and without version suffix). */
#define SIM_ALIAS(alias_name, name)                                                                \
        extern __typeof(name) alias_name __attribute__((alias(#name), visibility("default")))

/* --- config -------------------------------------------------------------------------------------
 */

struct sim_config {
        char directory[256];
        unsigned int mode; /* of the directory, where it is made here */
        char group[64];    /* its group; empty: the process's */
        uint32_t devices;
        uint64_t memory_bytes; /* per device */
        uint64_t granularity;
        uint64_t seed;       /* 0: no artificial delays */
        uint32_t pause_us;   /* longest of them */
        bool sparse;         /* memory is not committed, and zero instead of poison */
        bool machine_is_set; /* the environment names devices, memory or granularity itself */
};

/* Reads the environment. CUDA_ERROR_INVALID_VALUE with a detail names the variable that is wrong.
 */
CUresult sim_config_read(struct sim_config *config);

/* --- error --------------------------------------------------------------------------------------
 */

/* Remembers a sentence for gpumem_sim_error_detail() of this thread. */
__attribute__((format(printf, 1, 2))) void sim_explain(const char *format, ...);
/* `return sim_fail(result, "why %d", ...)`: a macro, so that it is plain that it returns `result`.
 */
#define sim_fail(result, ...) (sim_explain(__VA_ARGS__), (result))

/* A result by name ("CUDA_ERROR_OUT_OF_MEMORY" or "out_of_memory") or number. */
bool sim_error_parse(const char *text, CUresult *out);

/* --- handle tables ------------------------------------------------------------------------------
 */

/*
 * Handles are small numbers dressed up so that dereferencing one crashes and handles of one kind
 * never pass for another. A freed value is the next to be given out: whoever caches by value,
 * notices.
 */
enum sim_handle_kind {
        SIM_HANDLE_STREAM = 0x51,
        SIM_HANDLE_EVENT = 0x52,
        SIM_HANDLE_CONTEXT = 0x53,
        SIM_HANDLE_MEMORY = 0x54,
};

struct sim_handles {
        enum sim_handle_kind kind;
        void **items;        /* NULL: free */
        uint32_t *next_free; /* index + 1 */
        uint32_t capacity, used, first_free;
};

/* The new handle, or 0 when memory or the table's limit (2^20) is exhausted. `item` is not NULL. */
uint64_t sim_handles_add(struct sim_handles *table, void *item);
/* NULL for values that are no live handle of this table. */
void *sim_handles_get(const struct sim_handles *table, uint64_t handle);
void sim_handles_remove(struct sim_handles *table, uint64_t handle);

/* --- the process --------------------------------------------------------------------------------
 */

enum sim_state {
        SIM_UNUSED = 0, /* cuInit has not succeeded yet */
        SIM_READY,
        SIM_FORKED, /* a child of a process that was READY: every call fails, as on hardware */
        SIM_CLOSED, /* the process is exiting */
};

struct sim {
        _Atomic(int) state;
        struct sim_config config;
        pthread_mutex_t work_lock;
        pthread_mutex_t memory_lock;
};
extern struct sim sim;

/* What every entry but the exempt ones asks first: ready, and not inside a host function. */
CUresult sim_enter(void);
#define SIM_ENTER()                                                                                \
        do {                                                                                       \
                CUresult enter_result_ = sim_enter();                                              \
                if (enter_result_ != CUDA_SUCCESS)                                                 \
                        return enter_result_;                                                      \
        } while (0)

bool sim_device_valid(CUdevice device);

#endif
