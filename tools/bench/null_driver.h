/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that does nothing, so that what remains is the daemon's own work. Two devices, of
 * NULL_FRAMES_FEW and NULL_FRAMES_MANY frames. Every export is the same descriptor: nothing that
 * closes frames may be called, so a process that used it just exits.
 */
#ifndef GPUMEM_BENCH_NULL_DRIVER_H
#define GPUMEM_BENCH_NULL_DRIVER_H

#include <stdint.h>

#include "libclient/driver/driver.h"

#define NULL_FRAME_BYTES (UINT64_C(2) << 20)
#define NULL_FRAMES_FEW  1024
#define NULL_FRAMES_MANY 131072

/* `fd` is what every frame is exported as. */
const struct driver *null_driver(int fd);

#endif
