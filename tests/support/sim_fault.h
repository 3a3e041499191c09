/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator's controls for tests (libclient/simcuda/gpumem_sim.h), from the library of a driver
 * table. Ends the process if the library is no simulator of this version.
 */
#ifndef GPUMEM_TESTS_SUPPORT_SIM_FAULT_H
#define GPUMEM_TESTS_SUPPORT_SIM_FAULT_H

#include <stdint.h>

#include "libclient/driver/driver.h"

struct sim_control {
        CUresult (*fault)(const char *rules);
        uint64_t (*fault_hits)(void);
        CUresult (*fault_machine)(const char *rules);
        uint64_t (*fault_machine_hits)(void);
        CUresult (*lose_device)(int device, CUresult error);
};

struct sim_control sim_control_of(const struct driver *driver);

#endif
