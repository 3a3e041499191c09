/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/memory.h"

#include <stdlib.h>
#include <string.h>

#include "libclient/simcuda/stream.h"
#include "libclient/simcuda/window.h"

#define PINNED_MAX 65536u
#define HOST_PAGE  4096u

/* One cuMemAlloc. It takes whole granules, with an address range of its own. */
struct device_memory {
        struct device_memory *next;
        const struct context *context;
        uint64_t address, bytes, asked;
};

struct pinned {
        uint64_t start, bytes;
        bool allocated; /* by cuMemHostAlloc: cuMemFreeHost frees it */
};

/* Memory lock. */
static struct device_memory *memories;
static struct pinned *pinned; /* sorted by start */
static uint32_t pinned_count, pinned_capacity;

/* --- device memory -------------------------------------------------------------------------------
 */

/* Memory lock held; ends the allocation's handle in every case: the mapping keeps it. */
static CUresult map_new(struct device_memory *memory, struct allocation *allocation)
{
        const uint8_t devices[1] = {(uint8_t)allocation->device};
        const uint8_t flags[1] = {CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CUresult result;

        result = window_reserve(memory->bytes, 0, 0, true, &memory->address);
        if (result == CUDA_SUCCESS) {
                result = window_map(memory->address, memory->bytes, allocation, true);
                if (result == CUDA_SUCCESS) {
                        result = window_set_access(memory->address, memory->bytes, true, devices,
                                                   flags, 1);
                        if (result != CUDA_SUCCESS)
                                window_unmap(memory->address, memory->bytes, true);
                }
                if (result != CUDA_SUCCESS)
                        window_unreserve(memory->address, memory->bytes, true);
        }
        store_end_handle(allocation);
        return result;
}

SIM_API(cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes), (out, bytes))
{
        struct device_memory *memory;
        struct allocation *allocation;
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!out || bytes == 0)
                return CUDA_ERROR_INVALID_VALUE;
        if (bytes > UINT64_MAX - sim.config.granularity)
                return CUDA_ERROR_OUT_OF_MEMORY;
        memory = malloc(sizeof(*memory));
        if (!memory)
                return CUDA_ERROR_OUT_OF_MEMORY;
        memory->context = context;
        memory->asked = bytes;
        memory->bytes = (bytes + sim.config.granularity - 1) & ~(sim.config.granularity - 1);
        if (memory->bytes > sim.config.memory_bytes) {
                free(memory);
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY, "%zu bytes are more than the device has",
                                bytes);
        }

        result = store_create(context->device, memory->bytes, CU_MEM_HANDLE_TYPE_NONE, false,
                              &allocation);
        if (result == CUDA_SUCCESS) {
                pthread_mutex_lock(&sim.memory_lock);
                result = map_new(memory, allocation);
                if (result == CUDA_SUCCESS) {
                        memory->next = memories;
                        memories = memory;
                        *out = memory->address;
                }
                pthread_mutex_unlock(&sim.memory_lock);
                store_sweep();
        }
        if (result != CUDA_SUCCESS)
                free(memory);
        return result;
}
SIM_ALIAS(cuMemAlloc, cuMemAlloc_v2);

/* Memory lock held. */
static CUresult end_memory(struct device_memory **link)
{
        struct device_memory *memory = *link;
        CUresult result;

        result = window_unmap(memory->address, memory->bytes, true);
        if (result != CUDA_SUCCESS)
                return result;
        window_unreserve(memory->address, memory->bytes, true);
        *link = memory->next;
        free(memory);
        return CUDA_SUCCESS;
}

/* As the real one, it waits for the context's work first: a kernel may still be using the memory.
 */
SIM_API(cuMemFree_v2, (CUdeviceptr address), (address))
{
        struct device_memory **link;
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (address == 0)
                return CUDA_SUCCESS;
        result = streams_of_context_synchronize(context);
        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.memory_lock);
        for (link = &memories; *link && (*link)->address != address; link = &(*link)->next)
                ;
        result = *link ? end_memory(link) : CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_unlock(&sim.memory_lock);
        store_sweep();
        return result;
}
SIM_ALIAS(cuMemFree, cuMemFree_v2);

void memory_free_of_context(const struct context *context)
{
        struct device_memory **link;

        pthread_mutex_lock(&sim.memory_lock);
        for (link = &memories; *link;)
                if ((*link)->context != context || end_memory(link) != CUDA_SUCCESS)
                        link = &(*link)->next;
        pthread_mutex_unlock(&sim.memory_lock);
        store_sweep();
}

SIM_API(cuMemGetInfo_v2, (size_t * free_bytes, size_t *total_bytes), (free_bytes, total_bytes))
{
        struct context *context;
        uint64_t unused, total;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        store_info(context->device, &unused, &total);
        if (free_bytes)
                *free_bytes = unused;
        if (total_bytes)
                *total_bytes = total;
        return CUDA_SUCCESS;
}
SIM_ALIAS(cuMemGetInfo, cuMemGetInfo_v2);

SIM_API(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *bytes, CUdeviceptr address),
        (base, bytes, address))
{
        const struct mapping *mapping;
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.memory_lock);
        mapping = window_mapping(address);
        if (mapping) {
                if (base)
                        *base = mapping->address;
                if (bytes)
                        *bytes = mapping->bytes;
        } else {
                result = CUDA_ERROR_NOT_FOUND;
        }
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}
SIM_ALIAS(cuMemGetAddressRange, cuMemGetAddressRange_v2);

/* --- pinned host memory -------------------------------------------------------------------------
 */

/* Index of the first range that starts after `address`. */
static uint32_t pinned_after(uint64_t address)
{
        uint32_t low = 0, high = pinned_count;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (pinned[middle].start <= address)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static CUresult pin(uint64_t start, uint64_t bytes, bool allocated)
{
        uint32_t i = pinned_after(start);

        if ((i > 0 && pinned[i - 1].start + pinned[i - 1].bytes > start) ||
            (i < pinned_count && pinned[i].start < start + bytes))
                return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        if (pinned_count == pinned_capacity) {
                uint32_t capacity = pinned_capacity ? pinned_capacity * 2 : 64;
                struct pinned *grown;

                if (capacity > PINNED_MAX)
                        return sim_fail(CUDA_ERROR_OUT_OF_MEMORY, "more than %u pinned ranges",
                                        PINNED_MAX);
                grown = realloc(pinned, capacity * sizeof(*grown));
                if (!grown)
                        return CUDA_ERROR_OUT_OF_MEMORY;
                pinned = grown;
                pinned_capacity = capacity;
        }
        memmove(&pinned[i + 1], &pinned[i], (pinned_count - i) * sizeof(*pinned));
        pinned[i] = (struct pinned){.start = start, .bytes = bytes, .allocated = allocated};
        pinned_count++;
        return CUDA_SUCCESS;
}

/* Takes the range that starts there off the list; false if there is none of that sort. */
static bool unpin(uint64_t start, bool allocated)
{
        uint32_t i = pinned_after(start);

        if (i == 0 || pinned[i - 1].start != start || pinned[i - 1].allocated != allocated)
                return false;
        pinned_count--;
        memmove(&pinned[i - 1], &pinned[i], (pinned_count - (i - 1)) * sizeof(*pinned));
        return true;
}

bool memory_is_pinned(uint64_t address, uint64_t bytes)
{
        bool result;
        uint32_t i;

        pthread_mutex_lock(&sim.memory_lock);
        i = pinned_after(address);
        result = i > 0 && address - pinned[i - 1].start <= pinned[i - 1].bytes &&
                 bytes <= pinned[i - 1].bytes - (address - pinned[i - 1].start);
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}

SIM_API(cuMemHostAlloc, (void **out, size_t bytes, unsigned int flags), (out, bytes, flags))
{
        struct context *context;
        void *memory = NULL;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!out || bytes == 0 || (flags & ~7u))
                return CUDA_ERROR_INVALID_VALUE;
        if (posix_memalign(&memory, HOST_PAGE, bytes) != 0)
                return CUDA_ERROR_OUT_OF_MEMORY;
        memset(memory, SIM_POISON, bytes);
        pthread_mutex_lock(&sim.memory_lock);
        result = pin((uint64_t)(uintptr_t)memory, bytes, true);
        pthread_mutex_unlock(&sim.memory_lock);
        if (result != CUDA_SUCCESS) {
                free(memory);
                return result;
        }
        *out = memory;
        return CUDA_SUCCESS;
}

SIM_API(cuMemAllocHost_v2, (void **out, size_t bytes), (out, bytes))
{
        return cuMemHostAlloc(out, bytes, 0);
}
SIM_ALIAS(cuMemAllocHost, cuMemAllocHost_v2);

SIM_API(cuMemFreeHost, (void *pointer), (pointer))
{
        struct context *context;
        bool found;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        result = streams_of_context_synchronize(context); /* copies may be on their way */
        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.memory_lock);
        found = unpin((uint64_t)(uintptr_t)pointer, true);
        pthread_mutex_unlock(&sim.memory_lock);
        if (!found)
                return CUDA_ERROR_INVALID_VALUE;
        free(pointer);
        return CUDA_SUCCESS;
}

SIM_API(cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned int flags),
        (pointer, bytes, flags))
{
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!pointer || bytes == 0 || (flags & ~15u) ||
            bytes > UINTPTR_MAX - (uint64_t)(uintptr_t)pointer)
                return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&sim.memory_lock);
        result = pin((uint64_t)(uintptr_t)pointer, bytes, false);
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}
SIM_ALIAS(cuMemHostRegister, cuMemHostRegister_v2);

SIM_API(cuMemHostUnregister, (void *pointer), (pointer))
{
        struct context *context;
        bool found;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.memory_lock);
        found = unpin((uint64_t)(uintptr_t)pointer, false);
        pthread_mutex_unlock(&sim.memory_lock);
        return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

SIM_API(cuMemHostGetDevicePointer_v2, (CUdeviceptr * out, void *pointer, unsigned int flags),
        (out, pointer, flags))
{
        SIM_ENTER();
        if (!out || flags != 0 || !memory_is_pinned((uint64_t)(uintptr_t)pointer, 1))
                return CUDA_ERROR_INVALID_VALUE;
        *out = (uint64_t)(uintptr_t)pointer;
        return CUDA_SUCCESS;
}
SIM_ALIAS(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2);

/* --- what a pointer is ---------------------------------------------------------------------------
 */

static CUresult device_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
        const struct mapping *mapping = window_mapping(address);
        uint64_t start = 0, bytes = 0;
        bool implicit = false;

        if (!window_reservation(address, &start, &bytes, &implicit))
                return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                *(unsigned int *)data = CU_MEMORYTYPE_DEVICE;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
                *(CUdeviceptr *)data = address;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
                *(unsigned int *)data = 0;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
                *(CUdeviceptr *)data = start;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
                *(size_t *)data = bytes;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MAPPED:
                *(unsigned int *)data = mapping != NULL;
                return CUDA_SUCCESS;
        default:
                break;
        }
        if (!mapping)
                return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
                *(int *)data = mapping->allocation->device;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
                *(uint64_t *)data = mapping->allocation->handle_types;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
                *(size_t *)data = mapping->bytes;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
                *(CUdeviceptr *)data = mapping->address;
                return CUDA_SUCCESS;
        default:
                return CUDA_ERROR_NOT_SUPPORTED;
        }
}

SIM_API(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr address),
        (data, attribute, address))
{
        CUresult result;

        SIM_ENTER();
        if (!data)
                return CUDA_ERROR_INVALID_VALUE;
        if (memory_is_pinned(address, 1)) {
                switch (attribute) {
                case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                        *(unsigned int *)data = CU_MEMORYTYPE_HOST;
                        return CUDA_SUCCESS;
                case CU_POINTER_ATTRIBUTE_HOST_POINTER:
                case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
                        *(uint64_t *)data = address;
                        return CUDA_SUCCESS;
                default:
                        return CUDA_ERROR_NOT_SUPPORTED;
                }
        }
        pthread_mutex_lock(&sim.memory_lock);
        result = device_attribute(data, attribute, address);
        pthread_mutex_unlock(&sim.memory_lock);
        return result;
}
