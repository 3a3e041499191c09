/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for all work of a context, in a thread of its own: the driver's call has no deadline, and
 * whoever wants to know has other things to do meanwhile.
 */
#ifndef LIBCLIENT_CONTEXT_WAIT_H
#define LIBCLIENT_CONTEXT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/driver/driver.h"

struct context_wait;

/* Waits for what was submitted before. GPUMEM_E_NO_MEMORY. */
int context_wait_start(struct context_wait **out, const struct driver *driver, CUcontext context);
/* Is it over? Then *result is the driver's word, and the wait is freed. */
bool context_wait_poll(struct context_wait *wait, CUresult *result);
/* Nobody wants to know any more. The thread uses nothing but the driver, until it ends. */
void context_wait_abandon(struct context_wait *wait);
/* Waits that long for its end at most, then abandons it. */
void context_wait_join(struct context_wait *wait, uint32_t most_ms);

#endif
