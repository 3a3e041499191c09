/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/null_driver.h"

static struct null_device {
        uint64_t frames;
        _Atomic uint64_t created;
} devices[2] = {{.frames = NULL_FRAMES_FEW}, {.frames = NULL_FRAMES_MANY}};

static int shared_fd = -1;
static _Thread_local struct null_device *current;

static CUresult null_init(unsigned int flags)
{
        (void)flags;
        return CUDA_SUCCESS;
}

static CUresult null_error_name(CUresult error, const char **name)
{
        (void)error;
        *name = "CUDA_ERROR";
        return CUDA_SUCCESS;
}

static CUresult null_count(int *count)
{
        *count = 2;
        return CUDA_SUCCESS;
}

static CUresult null_get(CUdevice *device, int ordinal)
{
        *device = ordinal;
        return CUDA_SUCCESS;
}

static CUresult null_name(char *name, int length, CUdevice device)
{
        snprintf(name, (size_t)length, "null %d", device);
        return CUDA_SUCCESS;
}

static CUresult null_uuid(CUuuid *uuid, CUdevice device)
{
        memset(uuid->bytes, 0x10 + device, sizeof(uuid->bytes));
        return CUDA_SUCCESS;
}

static CUresult null_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
        (void)attribute;
        (void)device;
        *value = 9;
        return CUDA_SUCCESS;
}

static CUresult null_total(size_t *bytes, CUdevice device)
{
        *bytes = devices[device].frames * NULL_FRAME_BYTES;
        return CUDA_SUCCESS;
}

static CUresult null_retain(CUcontext *context, CUdevice device)
{
        *context = (CUcontext)(void *)&devices[device];
        return CUDA_SUCCESS;
}

static CUresult null_release_context(CUdevice device)
{
        (void)device;
        return CUDA_SUCCESS;
}

static CUresult null_set_current(CUcontext context)
{
        current = (struct null_device *)(void *)context;
        return CUDA_SUCCESS;
}

static CUresult null_info(size_t *free_bytes, size_t *total)
{
        *total = current->frames * NULL_FRAME_BYTES;
        *free_bytes = *total - current->created * NULL_FRAME_BYTES;
        return CUDA_SUCCESS;
}

static CUresult null_granularity(size_t *granularity, const CUmemAllocationProp *properties,
                                 CUmemAllocationGranularity_flags option)
{
        (void)properties;
        (void)option;
        *granularity = NULL_FRAME_BYTES;
        return CUDA_SUCCESS;
}

static CUresult null_reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags)
{
        (void)bytes;
        (void)alignment;
        (void)hint;
        (void)flags;
        *address = UINT64_C(1) << 40;
        return CUDA_SUCCESS;
}

static CUresult null_free(CUdeviceptr address, size_t bytes)
{
        (void)address;
        (void)bytes;
        return CUDA_SUCCESS;
}

static CUresult null_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *properties, unsigned long long flags)
{
        (void)bytes;
        (void)properties;
        (void)flags;
        *handle = ++current->created;
        return CUDA_SUCCESS;
}

static CUresult null_release(CUmemGenericAllocationHandle handle)
{
        (void)handle;
        return CUDA_SUCCESS;
}

static CUresult null_export(void *shareable, CUmemGenericAllocationHandle handle,
                            CUmemAllocationHandleType type, unsigned long long flags)
{
        (void)handle;
        (void)type;
        (void)flags;
        memcpy(shareable, &shared_fd, sizeof(shared_fd));
        return CUDA_SUCCESS;
}

static CUresult null_map(CUdeviceptr address, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
        (void)address;
        (void)bytes;
        (void)offset;
        (void)handle;
        (void)flags;
        return CUDA_SUCCESS;
}

static CUresult null_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *descriptions,
                            size_t count)
{
        (void)address;
        (void)bytes;
        (void)descriptions;
        (void)count;
        return CUDA_SUCCESS;
}

static CUresult null_memset(CUdeviceptr destination, unsigned char value, size_t count,
                            CUstream stream)
{
        (void)destination;
        (void)value;
        (void)count;
        (void)stream;
        return CUDA_SUCCESS;
}

static CUresult null_stream_create(CUstream *stream, unsigned int flags)
{
        (void)flags;
        *stream = (CUstream)(void *)&devices;
        return CUDA_SUCCESS;
}

static CUresult null_stream(CUstream stream)
{
        (void)stream;
        return CUDA_SUCCESS;
}

static const struct driver table = {
        .kind = DRIVER_SIMULATED,
        .init = null_init,
        .get_error_name = null_error_name,
        .device_get_count = null_count,
        .device_get = null_get,
        .device_get_name = null_name,
        .device_get_uuid = null_uuid,
        .device_get_attribute = null_attribute,
        .device_total_mem = null_total,
        .device_primary_ctx_retain = null_retain,
        .device_primary_ctx_release = null_release_context,
        .ctx_set_current = null_set_current,
        .mem_get_info = null_info,
        .mem_get_allocation_granularity = null_granularity,
        .mem_address_reserve = null_reserve,
        .mem_address_free = null_free,
        .mem_create = null_create,
        .mem_release = null_release,
        .mem_export_to_shareable_handle = null_export,
        .mem_map = null_map,
        .mem_unmap = null_free,
        .mem_set_access = null_access,
        .memset_d8_async = null_memset,
        .stream_create = null_stream_create,
        .stream_destroy = null_stream,
        .stream_synchronize = null_stream,
};

const struct driver *null_driver(int fd)
{
        shared_fd = fd;
        return &table;
}
