/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One allocation of device memory, as this process sees it: a backing file in the machine's
 * directory, held through a descriptor (while a handle is open) or through mappings. The file's
 * open-file-description lock exists as long as any descriptor, message or mapping of it does, in
 * any process; when the last holder lets go, the file is deleted and its bytes return to the
 * device.
 *
 * All functions need sim.memory_lock unless they say otherwise. Making and deleting files takes as
 * long as the memory is large, so neither happens under that lock.
 */
#ifndef GPUMEM_SIMCUDA_STORE_H
#define GPUMEM_SIMCUDA_STORE_H

#include "libclient/simcuda/sim.h"

struct allocation {
        uint32_t slot;
        int device;
        uint64_t bytes;
        int fd;            /* -1 while no handle is open: mappings keep the file themselves */
        uint32_t handles;  /* memory handles of this process */
        uint32_t mappings; /* mappings of this process, cuMemAlloc's included */
        uint32_t handle_types;
        bool rdma;
        struct allocation *next_doomed;
};

/* A new allocation with one handle counted; its memory is committed and poisoned. Takes the lock
 * itself. */
CUresult store_create(int device, uint64_t bytes, uint32_t handle_types, bool rdma,
                      struct allocation **out);
/* Counts one handle more on what the descriptor stands for; `fd` stays the caller's. */
CUresult store_import(int fd, struct allocation **out);
/* Counts one handle more on an allocation that this process holds. */
CUresult store_retain(struct allocation *allocation);
/* A new descriptor for others, the caller's to close. */
CUresult store_export(struct allocation *allocation, int *fd);

/*
 * Ends one handle or one mapping; the last one frees the allocation in this process. If nobody else
 * has it, its bytes are back on the device after this thread's next store_sweep().
 */
void store_end_handle(struct allocation *allocation);
void store_end_mapping(struct allocation *allocation);
/* Without the lock, behind every entry that may have ended something. */
void store_sweep(void);

/* Free and total bytes of a device, after giving back what died. Does not need the memory lock. */
void store_info(int device, uint64_t *free_bytes, uint64_t *total_bytes);

/* At exit: what nobody else can hold is deleted now, so that nothing waits for the next process. */
void store_goodbye(void);

#endif
