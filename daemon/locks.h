/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's locks. Nearly everything is the event loop's alone and has none; what the worker
 * threads share with it has. In the order in which they may be taken; none is held across a driver
 * call.
 */
#ifndef GPUMEMD_LOCKS_H
#define GPUMEMD_LOCKS_H

#include "libclient/wire/lock_order.h"

enum daemon_lock {
        LOCK_WORKER = 10, /* worker.mutex: its queues and its state; two workers' never together */
        LOCK_WITHHELD = 20, /* withheld.mutex: what the creator has measured, for the loop */
};

#endif
