/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens around every entry that acts. An injected fault (inject.h) may delay the call, make
 * it fail without doing anything, or poison a context; a latency profile (profile.h) lets a call
 * that succeeded take as long as it does on the card that was measured. Entries called by other
 * entries count as part of them.
 *
 * Costs a few loads when neither is in use.
 */
#ifndef GPUMEM_SIMCUDA_CALL_H
#define GPUMEM_SIMCUDA_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/driver/cuda_abi.h"

struct sim_call {
        CUresult result;     /* of a call that must not happen */
        bool outermost;      /* not called by another entry */
        uint32_t latency_ns; /* 0: as fast as it is */
        uint64_t started_ns; /* valid with latency_ns */
};

/* Whether an entry is the call meant: "cuMemAlloc" is cuMemAlloc_v2 as well. */
bool sim_call_is(const char *entry, const char *call);

/* False: the entry returns call->result and does nothing. Else sim_call_end() follows. */
bool sim_call_begin(struct sim_call *call, const char *name);
CUresult sim_call_end(struct sim_call *call, CUresult result);

#endif
