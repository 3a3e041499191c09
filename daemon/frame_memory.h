/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's side of a frame: allocation, export, and its place in the direct map. These calls
 * are slow and may block; they run on worker threads (and at shutdown), never in the event loop.
 *
 * Every failure leaves one of two conditions: everything undone (FRAME_EXHAUSTED, FRAME_FAILED), or
 * unknown (FRAME_STUCK), and then the frame must never be used again.
 */
#ifndef GPUMEMD_FRAME_MEMORY_H
#define GPUMEMD_FRAME_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/frame.h"
#include "libclient/driver/driver.h"

/* What the calls need to know of a device. Immutable once workers run. */
struct frame_memory {
        const struct driver *driver;
        CUcontext context;
        CUdevice device;
        CUdeviceptr base; /* of the direct map */
        uint64_t frame_bytes;
        bool gpu_direct_rdma;
};

/* How the daemon allocates; the same for the granularity query and for creation. */
CUmemAllocationProp frame_memory_properties(CUdevice device, bool gpu_direct_rdma);

/* Where frame `number` lies in the direct map. */
CUdeviceptr frame_memory_address(const struct frame_memory *memory, uint32_t number);

/*
 * Each sets frame->outcome, and on failure frame->error and frame->step; returns the outcome.
 *
 * create: on FRAME_DONE handle and fd are valid and the frame is mapped read-write; on
 * FRAME_EXHAUSTED and FRAME_FAILED fd is -1 and nothing exists. release: on FRAME_DONE fd is -1 and
 * nothing exists; otherwise FRAME_STUCK.
 */
enum frame_outcome frame_memory_create(const struct frame_memory *memory, struct frame *frame,
                                       uint32_t number);
enum frame_outcome frame_memory_release(const struct frame_memory *memory, struct frame *frame,
                                        uint32_t number);

/* Overwrites the contents of `count` frames with zeroes and waits until that is done. Sets the
 * outcome of each: FRAME_DONE or FRAME_FAILED. */
void frame_memory_scrub(const struct frame_memory *memory, struct frame_table *table,
                        const uint32_t *numbers, size_t count, CUstream stream);

/* Does this result mean that the context is dead and every later call will fail? */
bool frame_memory_error_is_sticky(CUresult error);

#endif
