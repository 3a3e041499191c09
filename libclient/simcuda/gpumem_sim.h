/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libcuda-sim.so offers beside the driver's ABI, for tests. Reached through dlsym(); nothing
 * but tests and the driver table may use it.
 *
 * Rules of injected faults: one per line or separated by ';', '#' begins a comment.
 *
 *   RULE = CALL [KEY[=VALUE]]...
 *   CALL   name of a driver call, with or without version suffix; a name that ends in '*' stands
 *          for all that begin so; "operation" stands for what streams run (copies, fills, host
 *          functions, events)
 *   nth=N         begins with the N-th such call of the process from now on (default 1)
 *   times=N|all   hits that many calls from there on (default 1)
 *   one_in=N      of those calls, hits each with probability 1/N (by GPUMEM_SIM_SEED)
 *   error=NAME    the call does nothing and returns that: CUDA_ERROR_OUT_OF_MEMORY, out_of_memory
 *                 or 2. Default CUDA_ERROR_UNKNOWN, none if there is a delay
 *   delay=US      the call takes so many microseconds longer
 *   sticky        the error (default CUDA_ERROR_ILLEGAL_ADDRESS) also poisons the current context
 *   lost          the device of the current context is lost, for all processes of the machine
 *                 (default error CUDA_ERROR_DEVICE_UNAVAILABLE), until gpumem_sim_lose_device()
 *                 brings it back
 *   process=WHO   only in processes of that name or number
 *
 *   cuMemCreate nth=3 error=out_of_memory; cuMemMap times=all delay=500; operation nth=10 sticky
 */
#ifndef GPUMEM_SIMCUDA_GPUMEM_SIM_H
#define GPUMEM_SIMCUDA_GPUMEM_SIM_H

#include "libclient/driver/cuda_abi.h"

/* See driver.h. */
void *gpumem_sim_host_view(CUdeviceptr address, size_t bytes);
const char *gpumem_sim_error_detail(void);

/*
 * Replaces this process's rules (those of GPUMEM_SIM_FAULT included); NULL or "" for none.
 * CUDA_ERROR_INVALID_VALUE with a detail if they cannot be read; then nothing changes. Works before
 * cuInit too.
 */
CUresult gpumem_sim_fault(const char *rules);
/* How many calls the rules of this process have hit since they were set. */
uint64_t gpumem_sim_fault_hits(void);

/*
 * The same for all processes of the machine, running and to come, each counting its own calls: the
 * rules go to the file "fault" in GPUMEM_SIM_DIR. They hold from the next call of any process on.
 * (A file written by other means is noticed some milliseconds later.) Needs cuInit.
 */
CUresult gpumem_sim_fault_machine(const char *rules);
/* Hits of these in all processes since this function's brother set them. */
uint64_t gpumem_sim_fault_machine_hits(void);

/*
 * A device is lost: from their next call on, contexts on it are poisoned with `error` in every
 * process, and no new one can be made. CUDA_SUCCESS brings it back (poisoned contexts stay so until
 * they are reset). Its memory stays as it is. Needs cuInit.
 */
CUresult gpumem_sim_lose_device(int device, CUresult error);

#endif
