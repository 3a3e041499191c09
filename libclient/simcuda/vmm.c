/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual memory management calls. All take one lock (creating and deleting memory, which take
 * long, happen outside it), none waits for streams: who unmaps memory that a kernel uses gets the
 * illegal access, as on hardware.
 *
 * Stricter than the documentation where it leaves room: sizes and addresses of everything are
 * multiples of the granularity, reservations included; a mapping lies within one reservation; an
 * allocation is mapped from its start (offset 0); cuMemUnmap and cuMemSetAccess take exactly whole
 * mappings, one or several that touch; a released handle's value is the next to be reused.
 */
#include "libclient/simcuda/context.h"
#include "libclient/simcuda/control.h"
#include "libclient/simcuda/window.h"

static struct sim_handles memory_handles = {.kind = SIM_HANDLE_MEMORY}; /* memory lock */

/* What every call here asks first. */
static CUresult vmm_enter(void)
{
        CUresult result = sim_enter();

        return result == CUDA_SUCCESS ? context_sticky() : result;
}

#define VMM_ENTER()                                                                                \
        do {                                                                                       \
                CUresult enter_result_ = vmm_enter();                                              \
                if (enter_result_ != CUDA_SUCCESS)                                                 \
                        return enter_result_;                                                      \
        } while (0)

static CUresult check_properties(const CUmemAllocationProp *properties)
{
        if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
                return CUDA_ERROR_INVALID_VALUE;
        switch (properties->location.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE:
                break;
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
                return sim_fail(CUDA_ERROR_NOT_SUPPORTED,
                                "the simulator creates memory on devices only");
        default:
                return CUDA_ERROR_INVALID_VALUE;
        }
        if (!sim_device_valid(properties->location.id))
                return CUDA_ERROR_INVALID_DEVICE;
        if (control_lost_error(properties->location.id) != CUDA_SUCCESS)
                return sim_fail(control_lost_error(properties->location.id), "device %d is lost",
                                properties->location.id);
        switch (properties->requestedHandleTypes) {
        case CU_MEM_HANDLE_TYPE_NONE:
        case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
                break;
        case CU_MEM_HANDLE_TYPE_WIN32:
        case CU_MEM_HANDLE_TYPE_WIN32_KMT:
        case CU_MEM_HANDLE_TYPE_FABRIC:
                return CUDA_ERROR_NOT_SUPPORTED;
        default:
                return CUDA_ERROR_INVALID_VALUE;
        }
        if (properties->win32HandleMetaData || properties->allocFlags.compressionType > 1 ||
            properties->allocFlags.gpuDirectRDMACapable > 1)
                return CUDA_ERROR_INVALID_VALUE;
        if (properties->allocFlags.usage != 0)
                return CUDA_ERROR_NOT_SUPPORTED;
        return CUDA_SUCCESS;
}

SIM_API(cuMemGetAllocationGranularity,
        (size_t * granularity, const CUmemAllocationProp *properties,
         CUmemAllocationGranularity_flags option),
        (granularity, properties, option))
{
        CUresult result;

        VMM_ENTER();
        result = check_properties(properties);
        if (result != CUDA_SUCCESS)
                return result;
        if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                             option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
                return CUDA_ERROR_INVALID_VALUE;
        *granularity = sim.config.granularity;
        return CUDA_SUCCESS;
}

SIM_API(cuMemAddressReserve,
        (CUdeviceptr * out, size_t bytes, size_t alignment, CUdeviceptr hint,
         unsigned long long flags),
        (out, bytes, alignment, hint, flags))
{
        uint64_t address;
        CUresult result;

        VMM_ENTER();
        if (!out || flags != 0 || (alignment & (alignment - 1)) != 0 || hint % 4096 != 0)
                return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&sim.memory_lock);
        result = window_reserve(bytes, alignment, hint, false, &address);
        pthread_mutex_unlock(&sim.memory_lock);
        if (result == CUDA_SUCCESS)
                *out = address;
        return result;
}

SIM_API(cuMemAddressFree, (CUdeviceptr address, size_t bytes), (address, bytes))
{
        CUresult result;

        VMM_ENTER();
        pthread_mutex_lock(&sim.memory_lock);
        result = window_unreserve(address, bytes, false);
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}

/* Memory lock held. Gives a handle to an allocation whose handle was counted; undoes that on
 * failure. */
static CUresult give_handle(struct allocation *allocation, CUmemGenericAllocationHandle *out)
{
        uint64_t handle = sim_handles_add(&memory_handles, allocation);

        if (handle == 0) {
                store_end_handle(allocation);
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY, "too many memory handles");
        }
        *out = handle;
        return CUDA_SUCCESS;
}

SIM_API(cuMemCreate,
        (CUmemGenericAllocationHandle * out, size_t bytes, const CUmemAllocationProp *properties,
         unsigned long long flags),
        (out, bytes, properties, flags))
{
        struct allocation *allocation;
        CUresult result;

        VMM_ENTER();
        if (!out || flags != 0 || bytes == 0 || bytes % sim.config.granularity != 0)
                return CUDA_ERROR_INVALID_VALUE;
        result = check_properties(properties);
        if (result != CUDA_SUCCESS)
                return result;
        result = store_create(properties->location.id, bytes,
                              (uint32_t)properties->requestedHandleTypes,
                              properties->allocFlags.gpuDirectRDMACapable, &allocation);
        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.memory_lock);
        result = give_handle(allocation, out);
        pthread_mutex_unlock(&sim.memory_lock);
        store_sweep();
        return result;
}

SIM_API(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
{
        struct allocation *allocation;

        VMM_ENTER();
        pthread_mutex_lock(&sim.memory_lock);
        allocation = sim_handles_get(&memory_handles, handle);
        if (allocation) {
                sim_handles_remove(&memory_handles, handle);
                store_end_handle(allocation);
        }
        pthread_mutex_unlock(&sim.memory_lock);
        store_sweep();
        return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuMemMap,
        (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
         unsigned long long flags),
        (address, bytes, offset, handle, flags))
{
        struct allocation *allocation;
        CUresult result;

        VMM_ENTER();
        if (flags != 0 || offset != 0)
                return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&sim.memory_lock);
        allocation = sim_handles_get(&memory_handles, handle);
        result = allocation
                         ? window_map(address, bytes, allocation, false)
                         : sim_fail(CUDA_ERROR_INVALID_VALUE, "%#llx is no memory handle", handle);
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}

SIM_API(cuMemUnmap, (CUdeviceptr address, size_t bytes), (address, bytes))
{
        CUresult result;

        VMM_ENTER();
        pthread_mutex_lock(&sim.memory_lock);
        result = window_unmap(address, bytes, false);
        pthread_mutex_unlock(&sim.memory_lock);
        store_sweep();
        return result;
}

SIM_API(cuMemSetAccess,
        (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *descriptions, size_t count),
        (address, bytes, descriptions, count))
{
        uint8_t devices[SIM_DEVICES_MAX], flags[SIM_DEVICES_MAX];
        CUresult result;
        size_t i;

        VMM_ENTER();
        if (!descriptions || count == 0 || count > SIM_DEVICES_MAX)
                return CUDA_ERROR_INVALID_VALUE;
        for (i = 0; i < count; i++) {
                const CUmemAccessDesc *description = &descriptions[i];

                if (description->location.type == CU_MEM_LOCATION_TYPE_HOST ||
                    description->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
                        return CUDA_ERROR_NOT_SUPPORTED;
                if (description->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
                        return CUDA_ERROR_INVALID_VALUE;
                if (!sim_device_valid(description->location.id))
                        return CUDA_ERROR_INVALID_DEVICE;
                if (description->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
                    description->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
                    description->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                        return CUDA_ERROR_INVALID_VALUE;
                devices[i] = (uint8_t)description->location.id;
                flags[i] = (uint8_t)description->flags;
        }
        pthread_mutex_lock(&sim.memory_lock);
        result = window_set_access(address, bytes, false, devices, flags, count);
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}

SIM_API(cuMemGetAccess,
        (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address),
        (flags, location, address))
{
        const struct mapping *mapping;

        VMM_ENTER();
        if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(location->id))
                return CUDA_ERROR_INVALID_DEVICE;
        pthread_mutex_lock(&sim.memory_lock);
        mapping = window_mapping(address);
        if (mapping)
                *flags = mapping->access[location->id];
        pthread_mutex_unlock(&sim.memory_lock);
        return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuMemExportToShareableHandle,
        (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
         unsigned long long flags),
        (shareable, handle, type, flags))
{
        struct allocation *allocation;
        CUresult result;
        int fd;

        VMM_ENTER();
        if (!shareable || flags != 0)
                return CUDA_ERROR_INVALID_VALUE;
        if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                return type == CU_MEM_HANDLE_TYPE_NONE ? CUDA_ERROR_INVALID_VALUE
                                                       : CUDA_ERROR_NOT_SUPPORTED;
        pthread_mutex_lock(&sim.memory_lock);
        allocation = sim_handles_get(&memory_handles, handle);
        if (!allocation || !(allocation->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
                result = sim_fail(CUDA_ERROR_INVALID_VALUE,
                                  "%#llx is no handle, or was not created for export", handle);
        else
                result = store_export(allocation, &fd);
        pthread_mutex_unlock(&sim.memory_lock);
        if (result == CUDA_SUCCESS)
                *(int *)shareable = fd;
        return result;
}

SIM_API(cuMemImportFromShareableHandle,
        (CUmemGenericAllocationHandle * out, void *shareable, CUmemAllocationHandleType type),
        (out, shareable, type))
{
        struct allocation *allocation;
        CUresult result;

        VMM_ENTER();
        if (!out)
                return CUDA_ERROR_INVALID_VALUE;
        if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                return type == CU_MEM_HANDLE_TYPE_NONE ? CUDA_ERROR_INVALID_VALUE
                                                       : CUDA_ERROR_NOT_SUPPORTED;
        pthread_mutex_lock(&sim.memory_lock);
        result = store_import((int)(intptr_t)shareable, &allocation);
        if (result == CUDA_SUCCESS)
                result = give_handle(allocation, out);
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}

SIM_API(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *address),
        (out, address))
{
        const struct mapping *mapping;
        CUresult result = CUDA_ERROR_INVALID_VALUE;

        VMM_ENTER();
        if (!out)
                return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&sim.memory_lock);
        mapping = window_mapping((uint64_t)(uintptr_t)address);
        if (mapping && !mapping->implicit) {
                result = store_retain(mapping->allocation);
                if (result == CUDA_SUCCESS)
                        result = give_handle(mapping->allocation, out);
        }
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}

SIM_API(cuMemGetAllocationPropertiesFromHandle,
        (CUmemAllocationProp * out, CUmemGenericAllocationHandle handle), (out, handle))
{
        const struct allocation *allocation;

        VMM_ENTER();
        if (!out)
                return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&sim.memory_lock);
        allocation = sim_handles_get(&memory_handles, handle);
        if (allocation)
                *out = (CUmemAllocationProp){
                        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                        .requestedHandleTypes = (CUmemAllocationHandleType)allocation->handle_types,
                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = allocation->device},
                        .allocFlags = {.gpuDirectRDMACapable = allocation->rdma},
                };
        pthread_mutex_unlock(&sim.memory_lock);
        return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
