/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver table that keeps books instead of memory: what was created, exported, mapped and
 * scrubbed, checked call by call (a double release, a map over a map, an unmap of nothing are
 * counted as misuse). The n-th call of any kind can be made to fail. One device, one process; calls
 * may come from any thread.
 */
#ifndef TESTS_SUPPORT_FAKE_DRIVER_H
#define TESTS_SUPPORT_FAKE_DRIVER_H

#include <stdint.h>

#include "libclient/driver/driver.h"

enum fake_call {
        FAKE_CREATE,
        FAKE_EXPORT,
        FAKE_MAP,
        FAKE_SET_ACCESS,
        FAKE_UNMAP,
        FAKE_RELEASE,
        FAKE_MEMSET,
        FAKE_SYNCHRONIZE,
        FAKE_RESERVE,
        FAKE_CONTEXT,
        FAKE_IMPORT, /* of any descriptor: it counts as another's memory */
        FAKE_INFO,   /* cuMemGetInfo */
        FAKE_CALL_COUNT,
};

#define FAKE_GRANULARITY     (UINT64_C(64) << 10)
#define FAKE_ALLOCATIONS_MAX 4096

/* Starts anew: a device of `frames` granules. */
const struct driver *fake_driver_open(uint32_t frames);

/* The `nth` call of this kind from now on (1: the next) and the `times - 1` after it return
 * `error`. */
void fake_driver_fail(enum fake_call call, uint32_t nth, uint32_t times, CUresult error);

/* Calls of this kind so far, failed ones included. */
uint64_t fake_driver_calls(enum fake_call call);

/* What exists now. */
uint32_t fake_driver_allocations(void);
uint32_t fake_driver_mappings(void);
uint32_t fake_driver_reservations(void);
uint32_t fake_driver_contexts(void);
uint32_t fake_driver_misuses(void); /* wrong calls that a real driver would refuse or worse */

/* Memory used by somebody else: creating fails with OUT_OF_MEMORY as if it were there. */
void fake_driver_use_outside(uint32_t frames);

/* The memory of the next `frames` allocations that are released is not free after it: somebody else
 * still maps it. */
void fake_driver_hold(uint32_t frames);
/* And now it is. */
void fake_driver_let_go(uint32_t frames);
uint32_t fake_driver_held(void);

/* Creating takes this long. */
void fake_driver_delay_create(uint32_t ms);

#endif
