/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Injected faults: the rules of this process (GPUMEM_SIM_FAULT, gpumem_sim_fault()) and those of
 * the machine (the file "fault"). gpumem_sim.h has their syntax.
 */
#ifndef GPUMEM_SIMCUDA_INJECT_H
#define GPUMEM_SIMCUDA_INJECT_H

#include "libclient/simcuda/context.h"

/*
 * Applies the rules to a call that is about to happen: waits its delays, poisons what it shall. An
 * error is what the call must return instead of happening. No lock held.
 */
CUresult inject_before(const char *call);
/* The same for an operation that a stream is about to run in a context. */
CUresult inject_operation(struct context *context);
/* What cuInit says if GPUMEM_SIM_FAULT cannot be read. */
CUresult inject_environment(void);

#endif
