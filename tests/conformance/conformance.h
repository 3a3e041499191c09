/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite: one test per documented behaviour of the driver calls that this project
 * uses. It runs on the simulator and on a real libcuda.so.1 and is the measure of the one against
 * the other: every step of a test notes what it saw, so that two runs can be compared line by line.
 *
 * A step names the result that the documentation gives, first, and behind it those that it leaves
 * room for. The simulator has to answer with the first; a real driver with any of them.
 *
 * Every test runs in a process of its own (this program again), with the driver initialised and the
 * primary context of device 0 current. What a test leaves behind ends with that process.
 */
#ifndef GPUMEM_TESTS_CONFORMANCE_H
#define GPUMEM_TESTS_CONFORMANCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "libclient/driver/driver.h"

struct run {
        const struct driver *cuda;
        bool strict; /* a simulator: the first result only */
        CUdevice device;
        CUcontext context;
        size_t granule; /* smallest allocation */
        bool failed, skipped;
        int notes; /* descriptor for what is seen */
};

struct test {
        const char *name; /* area.behaviour */
        void (*function)(struct run *run);
};

/* A group of tests per file, ended by a NULL name. */
extern const struct test tests_of_devices[], tests_of_contexts[], tests_of_memory[],
        tests_of_copies[], tests_of_streams[], tests_of_events[], tests_of_virtual_memory[],
        tests_of_access[], tests_of_sharing[], tests_of_faults[];

/* One step: `got` must be one of the results. Notes it; returns whether it was. */
bool step_result(struct run *run, const char *step, CUresult got, const CUresult *documented,
                 size_t count);
/* One step that sees a condition. With `free_choice`, a real driver may answer either way. */
bool step_check(struct run *run, const char *step, bool holds, bool free_choice);
/* Something without which the test makes no sense. */
bool step_need(struct run *run, const char *call, CUresult got);
/* The test cannot say anything on this machine. */
void step_skip(struct run *run, const char *why);

#define RESULTS(...)                                                                               \
        (const CUresult[]){__VA_ARGS__}, sizeof((const CUresult[]){__VA_ARGS__}) / sizeof(CUresult)
#define EXPECT(step, call, ...)  step_result(run, step, call, RESULTS(__VA_ARGS__))
#define OK(step, call)           EXPECT(step, call, CUDA_SUCCESS)
#define CHECK(step, condition)   step_check(run, step, condition, false)
#define OBSERVE(step, condition) step_check(run, step, condition, true)
#define NEED(call)                                                                                 \
        do {                                                                                       \
                if (!step_need(run, #call, call))                                                  \
                        return;                                                                    \
        } while (0)
#define NEED_TRUE(condition)                                                                       \
        do {                                                                                       \
                if (!step_need(run, #condition,                                                    \
                               (condition) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM))          \
                        return;                                                                    \
        } while (0)

/* --- what tests share ---------------------------------------------------------------------------
 */

/* Exportable memory of the device. */
CUmemAllocationProp device_memory(const struct run *run);
CUmemAccessDesc access_of(const struct run *run, CUmemAccess_flags flags);
/* A reserved range of `granules`, each mapped to memory of its own, accessible. 0 on failure. */
CUdeviceptr map_granules(struct run *run, size_t granules);
void unmap_granules(struct run *run, CUdeviceptr address, size_t granules);
/* Free bytes of the device as the driver tells them. */
size_t free_bytes(struct run *run);
/* Polls until so many bytes are free, at most `ms`. */
bool wait_for_free_bytes(struct run *run, size_t bytes, int ms);
void sleep_ms(long ms);
/* A function of the device's stream that returns `ms` later. */
void host_sleep(void *ms);

/* --- other processes -----------------------------------------------------------------------------
 *
 * A peer is this program again, running peer_main()'s case `what`. Both ends speak in single bytes,
 * with or without a descriptor.
 */

struct peer {
        pid_t process;
        int socket;
};

bool peer_start(struct peer *peer, const char *what);
bool peer_say(int socket, char byte, int fd); /* fd -1: none */
/* The next byte; 0 when the other is gone or says nothing for 20 s. `fd` may be NULL. */
char peer_hear(int socket, int *fd);
/* Wait status, after closing the socket. `signal_number` 0: it ends by itself. */
int peer_end(struct peer *peer, int signal_number);
/* What a peer does; its exit status. `run` is ready unless `what` begins with "bare-". */
int peer_main(struct run *run, const char *what, int socket);

#endif
