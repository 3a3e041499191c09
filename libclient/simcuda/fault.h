/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated Xid. A CPU kernel (or a copy whose memory vanished under it) that touches the alias
 * of an address it may not touch faults; the handler puts a page of scratch there so that the
 * kernel comes to its end, and poisons the context. Faults anywhere else go to whoever handled
 * SIGSEGV before.
 *
 * A program that installs its own SIGSEGV handler after cuInit without chaining takes this away.
 */
#ifndef GPUMEM_SIMCUDA_FAULT_H
#define GPUMEM_SIMCUDA_FAULT_H

#include "libclient/simcuda/sim.h"

CUresult fault_install(void);
/* Takes the scratch pages away again, when a poisoned context has ended. No lock held. */
void fault_clear(void);

#endif
