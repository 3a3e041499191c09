/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies as measured on a real card, from a small file (README.md has its format). Read once, by
 * the first cuInit; GPUMEM_SIM_PROFILE names it: "none" (or unset), a name ("a100": looked for
 * beside the library, in profiles/ and ../share/gpumem/profiles/), or a path.
 */
#ifndef GPUMEM_SIMCUDA_PROFILE_H
#define GPUMEM_SIMCUDA_PROFILE_H

#include "libclient/simcuda/sim.h"

/* CUDA_ERROR_INVALID_VALUE with a detail: no such file, or a line of it is wrong. */
CUresult profile_read(void);
/* How long a call of that name takes; 0 where the profile says nothing. */
uint32_t profile_latency_ns(const char *call);
/* How long the memory of a process that was killed takes to come back. */
uint64_t profile_late_return_ns(void);

#endif
