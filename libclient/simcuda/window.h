/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device address space of this process. Two windows of equal size are reserved side by side:
 *
 *   [device_base, device_base + bytes)   device addresses: PROT_NONE for ever, so that host code
 * which dereferences one crashes [alias_base,  alias_base + bytes)    the same memory for copies
 * and CPU kernels, at the constant distance bytes; PROT_NONE wherever nothing is accessible
 *
 * Reservations are ranges of the window; mappings lie inside reservations, on whole granules. All
 * functions need sim.memory_lock except window_alias(), which only reads what never changes after
 * window_open().
 *
 * Limit: the kernel allows a process about 65,530 mappings (vm.max_map_count); each device mapping
 * is one, each gap another. All but 2,048 may be device memory; then mapping is
 * CUDA_ERROR_OPERATING_SYSTEM with a detail, and everything else still works.
 */
#ifndef GPUMEM_SIMCUDA_WINDOW_H
#define GPUMEM_SIMCUDA_WINDOW_H

#include "libclient/simcuda/store.h"

struct mapping {
        struct mapping *next, **link; /* of all: the table is no place leak checkers look at */
        uint64_t address;
        uint64_t bytes;
        struct allocation *allocation;
        bool implicit; /* made by cuMemAlloc: cuMemFree ends it, the VMM calls do not */
        uint8_t access[SIM_DEVICES_MAX]; /* CUmemAccess_flags per device */
};

CUresult window_open(uint64_t granularity, uint64_t total_memory_bytes);
/* In a forked child: device memory is not inherited. */
void window_after_fork(void);

/* The alias of a device range, or NULL when it does not lie within the window. No lock. */
void *window_alias(uint64_t address, uint64_t bytes);
/* Whether a host address lies in the alias window; async-signal-safe. */
bool window_holds_alias(const void *host);

/* `alignment` 0 or a power of two; `hint` is honoured when that range is free. */
CUresult window_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, bool implicit,
                        uint64_t *out);
/* Exactly what was reserved, with nothing mapped in it. */
CUresult window_unreserve(uint64_t address, uint64_t bytes, bool implicit);
/* The reservation around an address: false if there is none. */
bool window_reservation(uint64_t address, uint64_t *start, uint64_t *bytes, bool *implicit);

/* The mapping that contains an address, or NULL. */
struct mapping *window_mapping(uint64_t address);

/* Maps the start of an allocation, without access, into one reservation, where nothing is mapped.
 */
CUresult window_map(uint64_t address, uint64_t bytes, struct allocation *allocation, bool implicit);
/* Ends the mappings that make up the range; it must be exactly whole mappings without gaps. */
CUresult window_unmap(uint64_t address, uint64_t bytes, bool implicit);
/* Sets access for `count` devices on a range of whole mappings without gaps: one system call. */
CUresult window_set_access(uint64_t address, uint64_t bytes, bool implicit, const uint8_t *devices,
                           const uint8_t *flags, size_t count);

/* Puts back, at one page of the alias, what belongs there. */
void window_restore_page(uintptr_t alias_page);

/* Whether a device may read (write) every byte of a range. */
bool window_accessible(int device, uint64_t address, uint64_t bytes, bool write);

#endif
