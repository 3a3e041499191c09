/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc's memory, pinned host memory, what a pointer is. */
#ifndef GPUMEM_SIMCUDA_MEMORY_H
#define GPUMEM_SIMCUDA_MEMORY_H

#include "libclient/simcuda/context.h"

/* Whether a host range lies in one pinned range. Takes the memory lock. */
bool memory_is_pinned(uint64_t address, uint64_t bytes);

#endif
