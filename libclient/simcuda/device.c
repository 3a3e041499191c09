/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/sim.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "libclient/simcuda/control.h"
#include "libclient/simcuda/fault.h"
#include "libclient/simcuda/gpumem_sim.h"
#include "libclient/simcuda/inject.h"
#include "libclient/simcuda/profile.h"
#include "libclient/simcuda/window.h"

#define GOODBYE_WAIT_MS 100

struct sim sim = {
        .work_lock = PTHREAD_MUTEX_INITIALIZER,
        .memory_lock = PTHREAD_MUTEX_INITIALIZER,
};

SIM_EXPORT void *gpumem_sim_host_view(CUdeviceptr address, size_t bytes);

/* A CPU kernel's way to device memory; see driver.h. NULL outside the device address space. */
void *gpumem_sim_host_view(CUdeviceptr address, size_t bytes)
{
        return atomic_load_explicit(&sim.state, memory_order_acquire) == SIM_READY
                       ? window_alias(address, bytes)
                       : NULL;
}

bool sim_device_valid(CUdevice device)
{
        return device >= 0 && (uint32_t)device < sim.config.devices;
}

/* The child of a process that used the device has nothing, and can do nothing, as on hardware. */
static void after_fork_in_child(void)
{
        if (atomic_load(&sim.state) != SIM_READY)
                return;
        atomic_store(&sim.state, SIM_FORKED);
        window_after_fork();
        control_after_fork();
}

static CUresult start(void)
{
        static bool fork_handled; /* under the init lock */
        CUresult result = sim_config_read(&sim.config);

        if (result == CUDA_SUCCESS)
                result = inject_environment();
        if (result == CUDA_SUCCESS)
                result = profile_read();
        if (result != CUDA_SUCCESS)
                return result;
        if (!fork_handled) {
                if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0)
                        return CUDA_ERROR_OUT_OF_MEMORY;
                fork_handled = true;
        }
        result = control_attach(&sim.config);
        if (result != CUDA_SUCCESS)
                return result;
        result = window_open(sim.config.granularity, sim.config.memory_bytes * sim.config.devices);
        if (result == CUDA_SUCCESS)
                result = fault_install();
        if (result != CUDA_SUCCESS) {
                control_detach();
                return result;
        }
        atomic_store_explicit(&sim.state, SIM_READY, memory_order_release);
        return CUDA_SUCCESS;
}

SIM_API(cuInit, (unsigned int flags), (flags))
{
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        CUresult result = CUDA_SUCCESS;

        if (flags != 0)
                return CUDA_ERROR_INVALID_VALUE;
        if (atomic_load(&sim.state) == SIM_FORKED)
                return CUDA_ERROR_NOT_INITIALIZED;
        pthread_mutex_lock(&lock);
        if (atomic_load(&sim.state) == SIM_UNUSED)
                result = start();
        else
                result = sim_enter();
        pthread_mutex_unlock(&lock);
        return result;
}

/* A process that ends in order leaves no memory for others to clean up, as far as it is its own. */
__attribute__((destructor)) static void at_exit(void)
{
        struct timespec deadline;

        if (atomic_load(&sim.state) != SIM_READY)
                return;
        atomic_store(&sim.state, SIM_CLOSED);
        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_nsec += GOODBYE_WAIT_MS * 1000000L;
        if (deadline.tv_nsec >= 1000000000L) {
                deadline.tv_sec++;
                deadline.tv_nsec -= 1000000000L;
        }
        /*
         * Whoever holds the lock this long is stuck; the next process buries us then. It is not
         * given back: threads that are still inside a call must not go on with what is gone. Our
         * entry in the control file stays for the same reason, until the kernel ends us and its
         * lock.
         */
        if (pthread_mutex_timedlock(&sim.memory_lock, &deadline) == 0) {
                store_goodbye();
                control_leave(&sim.config);
        }
}

SIM_API_PLAIN(cuDriverGetVersion, (int *version))
{
        if (!version)
                return CUDA_ERROR_INVALID_VALUE;
        *version = SIM_DRIVER_VERSION;
        return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetCount, (int *count), (count))
{
        SIM_ENTER();
        if (!count)
                return CUDA_ERROR_INVALID_VALUE;
        *count = (int)sim.config.devices;
        return CUDA_SUCCESS;
}

SIM_API(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))
{
        SIM_ENTER();
        if (!device)
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(ordinal))
                return CUDA_ERROR_INVALID_DEVICE;
        *device = ordinal;
        return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetName, (char *name, int length, CUdevice device), (name, length, device))
{
        SIM_ENTER();
        if (!name || length <= 0)
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        snprintf(name, (size_t)length,
                 sim.config.sparse ? "gpumem simulated GPU (sparse)" : "gpumem simulated GPU");
        return CUDA_SUCCESS;
}

/*
 * "gpum", what is the machine's own, and the device's number; in RFC 9562's free form, version 8.
 * All processes of a machine see the same; those of another machine another.
 */
SIM_API(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), (uuid, device))
{
        uint8_t bytes[16] = {'g', 'p', 'u', 'm'};

        SIM_ENTER();
        if (!uuid)
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        memcpy(bytes + 4, machine.control->identity, sizeof(machine.control->identity));
        bytes[6] = 0x80 | (bytes[6] & 0x0f);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        bytes[15] = (uint8_t)device;
        memcpy(uuid->bytes, bytes, sizeof(bytes));
        return CUDA_SUCCESS;
}
SIM_ALIAS(cuDeviceGetUuid, cuDeviceGetUuid_v2);

SIM_API(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), (bytes, device))
{
        SIM_ENTER();
        if (!bytes)
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        *bytes = sim.config.memory_bytes;
        return CUDA_SUCCESS;
}
SIM_ALIAS(cuDeviceTotalMem, cuDeviceTotalMem_v2);

#define ATTRIBUTE_LAST 160 /* beyond what drivers of this version know */

SIM_API(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device),
        (value, attribute, device))
{
        /* An sm_80 in what programs decide by; numbers of a timing model it has none of are 0. */
        static const struct {
                CUdevice_attribute attribute;
                int value;
        } attributes[] = {
                {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
                {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
                {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
                {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 108},
                {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
                {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
                {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
                {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
                {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
                {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 166912},
                {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
                {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
                {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
                {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1},
        };
        size_t i;

        SIM_ENTER();
        if (!value || (int)attribute < 1 || (int)attribute > ATTRIBUTE_LAST)
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? device + 1 : 0;
        for (i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++)
                if (attributes[i].attribute == attribute)
                        *value = attributes[i].value;
        return CUDA_SUCCESS;
}
