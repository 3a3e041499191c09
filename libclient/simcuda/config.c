/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MEMORY      (UINT64_C(1) << 30)
#define DEFAULT_GRANULARITY (UINT64_C(2) << 20)
#define DEFAULT_PAUSE_US    200
#define PAUSE_US_MAX        1000000
#define PAGE_BYTES          4096
#define DEFAULT_MODE        0700

static const char *variable(const char *name)
{
        const char *value = getenv(name);

        return value && value[0] != '\0' ? value : NULL;
}

/* A number with an optional K, M, G or T (powers of 1024). */
static bool parse_number(const char *text, uint64_t *out)
{
        char *end;
        unsigned int shift = 0;
        unsigned long long value;

        if (text[0] < '0' || text[0] > '9')
                return false;
        errno = 0;
        value = strtoull(text, &end, 0);
        if (errno != 0)
                return false;
        switch (*end) {
        case 'K':
        case 'k':
                shift = 10;
                break;
        case 'M':
        case 'm':
                shift = 20;
                break;
        case 'G':
        case 'g':
                shift = 30;
                break;
        case 'T':
        case 't':
                shift = 40;
                break;
        default:
                break;
        }
        if (shift != 0)
                end++;
        if (*end != '\0' || value > (UINT64_MAX >> shift))
                return false;
        *out = (uint64_t)value << shift;
        return true;
}

static CUresult read_number(const char *name, uint64_t minimum, uint64_t maximum, uint64_t *out,
                            bool *is_set)
{
        const char *text = variable(name);

        if (!text)
                return CUDA_SUCCESS;
        if (!parse_number(text, out) || *out < minimum || *out > maximum)
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "%s=%s is not a number from %llu to %llu (K, M, G, T allowed)",
                                name, text, (unsigned long long)minimum,
                                (unsigned long long)maximum);
        if (is_set)
                *is_set = true;
        return CUDA_SUCCESS;
}

/* Who may use a machine that is made here. */
static CUresult read_access(struct sim_config *config)
{
        const char *mode = variable("GPUMEM_SIM_MODE"), *group = variable("GPUMEM_SIM_GROUP");

        config->mode = group ? DEFAULT_MODE | 0070 : DEFAULT_MODE;
        if (mode) {
                char *end;
                unsigned long value = strtoul(mode, &end, 8);

                /* Its owner needs all of it; others need all of it or nothing. */
                if (mode[0] < '0' || mode[0] > '7' || *end != '\0' ||
                    (value != 0700 && value != 0770 && value != 0777))
                        return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                        "GPUMEM_SIM_MODE=%s is not 0700, 0770 or 0777", mode);
                config->mode = (unsigned int)value;
        }
        if (group && (size_t)snprintf(config->group, sizeof(config->group), "%s", group) >=
                             sizeof(config->group))
                return sim_fail(CUDA_ERROR_INVALID_VALUE, "GPUMEM_SIM_GROUP is too long");
        return CUDA_SUCCESS;
}

CUresult sim_config_read(struct sim_config *config)
{
        const char *directory = variable("GPUMEM_SIM_DIR");
        uint64_t devices = 1, sparse = 0, pause_us = DEFAULT_PAUSE_US;
        CUresult result;
        int length;

        *config = (struct sim_config){
                .memory_bytes = DEFAULT_MEMORY,
                .granularity = DEFAULT_GRANULARITY,
                .seed = 1,
        };

        if (directory)
                length = snprintf(config->directory, sizeof(config->directory), "%s", directory);
        else
                length = snprintf(config->directory, sizeof(config->directory),
                                  "/dev/shm/gpumem-sim-%u", (unsigned int)geteuid());
        if (length < 0 || (size_t)length >= sizeof(config->directory))
                return sim_fail(CUDA_ERROR_INVALID_VALUE, "GPUMEM_SIM_DIR is too long");

        result = read_access(config);
        if (result != CUDA_SUCCESS)
                return result;
        result = read_number("GPUMEM_SIM_DEVICES", 1, SIM_DEVICES_MAX, &devices,
                             &config->machine_is_set);
        if (result == CUDA_SUCCESS)
                result = read_number("GPUMEM_SIM_MEMORY", PAGE_BYTES, UINT64_C(1) << 42,
                                     &config->memory_bytes, &config->machine_is_set);
        if (result == CUDA_SUCCESS)
                result = read_number("GPUMEM_SIM_GRANULARITY", PAGE_BYTES, UINT64_C(1) << 30,
                                     &config->granularity, &config->machine_is_set);
        if (result == CUDA_SUCCESS)
                result = read_number("GPUMEM_SIM_SPARSE", 0, 1, &sparse, &config->machine_is_set);
        if (result == CUDA_SUCCESS)
                result = read_number("GPUMEM_SIM_SEED", 0, UINT64_MAX, &config->seed, NULL);
        if (result == CUDA_SUCCESS)
                result = read_number("GPUMEM_SIM_PAUSE_US", 1, PAUSE_US_MAX, &pause_us, NULL);
        if (result != CUDA_SUCCESS)
                return result;

        if (config->granularity & (config->granularity - 1))
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "GPUMEM_SIM_GRANULARITY=%llu is not a power of two",
                                (unsigned long long)config->granularity);
        if (config->memory_bytes < config->granularity)
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "GPUMEM_SIM_MEMORY=%llu is less than one granule "
                                "(GPUMEM_SIM_GRANULARITY=%llu)",
                                (unsigned long long)config->memory_bytes,
                                (unsigned long long)config->granularity);
        config->devices = (uint32_t)devices;
        config->sparse = sparse != 0;
        config->pause_us = (uint32_t)pause_us;
        return CUDA_SUCCESS;
}
