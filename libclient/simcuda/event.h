/* SPDX-License-Identifier: Apache-2.0 */
/* Events: points in streams. Recording again moves the event; who waits, waits for the point it
 * saw. */
#ifndef GPUMEM_SIMCUDA_EVENT_H
#define GPUMEM_SIMCUDA_EVENT_H

#include "libclient/simcuda/stream.h"

/* Work lock held: the handles of a context's events end with it. */
void events_of_context_end(struct context *context);

#endif
