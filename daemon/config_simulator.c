/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <libgen.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#include "daemon/config.h"

static int export_number(const char *name, uint64_t value)
{
        char text[32];

        if (value == 0)
                return 0;
        snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
        return setenv(name, text, 1) < 0 ? -errno : 0;
}

int config_export_simulator(const struct config *config)
{
        char mode[16];
        int r;

        if (config->simulator_directory[0] &&
            setenv("GPUMEM_SIM_DIR", config->simulator_directory, 1) < 0)
                return -errno;
        if (config->simulator_group[0] &&
            setenv("GPUMEM_SIM_GROUP", config->simulator_group, 1) < 0)
                return -errno;
        snprintf(mode, sizeof(mode), "0%o", config->simulator_mode);
        if (config->simulator_mode && setenv("GPUMEM_SIM_MODE", mode, 1) < 0)
                return -errno;
        r = export_number("GPUMEM_SIM_MEMORY", config->simulator_memory);
        if (r == 0)
                r = export_number("GPUMEM_SIM_GRANULARITY", config->simulator_granularity);
        if (r == 0)
                r = export_number("GPUMEM_SIM_DEVICES", config->simulator_devices);
        return r;
}

const char *config_slow_simulator(const struct config *config)
{
        const char *directory = config->simulator_directory;
        char copy[PATH_MAX];
        struct statfs status;

        if (!directory[0])
                directory = getenv("GPUMEM_SIM_DIR");
        /* The simulator's default is in /dev/shm. */
        if (config->driver != DRIVER_SIMULATED || !directory || !directory[0])
                return NULL;
        if (statfs(directory, &status) < 0) {
                /* It is to be made. If that cannot be, the simulator says so. */
                snprintf(copy, sizeof(copy), "%s", directory);
                if (statfs(dirname(copy), &status) < 0)
                        return NULL;
        }
        if (status.f_type == TMPFS_MAGIC)
                return NULL;
        return directory;
}
