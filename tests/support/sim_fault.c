/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/sim_fault.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void load(const struct driver *driver, const char *name, void *member)
{
        void *address = dlsym(driver->library, name);

        if (!address) {
                fprintf(stderr, "the simulator has no %s\n", name);
                exit(2);
        }
        memcpy(member, &address, sizeof(address));
}

struct sim_control sim_control_of(const struct driver *driver)
{
        struct sim_control control;

        load(driver, "gpumem_sim_fault", &control.fault);
        load(driver, "gpumem_sim_fault_hits", &control.fault_hits);
        load(driver, "gpumem_sim_fault_machine", &control.fault_machine);
        load(driver, "gpumem_sim_fault_machine_hits", &control.fault_machine_hits);
        load(driver, "gpumem_sim_lose_device", &control.lose_device);
        return control;
}
