/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "daemon/frame_memory.h"

CUmemAllocationProp frame_memory_properties(CUdevice device, bool gpu_direct_rdma)
{
        return (CUmemAllocationProp){
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                .allocFlags = {.gpuDirectRDMACapable = gpu_direct_rdma},
        };
}

CUdeviceptr frame_memory_address(const struct frame_memory *memory, uint32_t number)
{
        return memory->base + number * memory->frame_bytes;
}

static enum frame_outcome failed(struct frame *frame, enum frame_step step, CUresult error,
                                 bool undone)
{
        frame->step = (uint8_t)step;
        frame->error = (uint16_t)error;
        if (!undone)
                frame->outcome = FRAME_STUCK;
        else if (error == CUDA_ERROR_OUT_OF_MEMORY)
                frame->outcome = FRAME_EXHAUSTED;
        else
                frame->outcome = FRAME_FAILED;
        return (enum frame_outcome)frame->outcome;
}

static enum frame_outcome done(struct frame *frame)
{
        frame->step = FRAME_STEP_NONE;
        frame->error = 0;
        frame->outcome = FRAME_DONE;
        return FRAME_DONE;
}

enum frame_outcome frame_memory_create(const struct frame_memory *memory, struct frame *frame,
                                       uint32_t number)
{
        const struct driver *driver = memory->driver;
        CUmemAllocationProp properties =
                frame_memory_properties(memory->device, memory->gpu_direct_rdma);
        CUmemAccessDesc access = {
                .location = properties.location,
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        CUdeviceptr address = frame_memory_address(memory, number);
        CUmemGenericAllocationHandle handle;
        enum frame_step step;
        CUresult error;
        bool undone = true;
        int fd = -1;

        error = driver->mem_create(&handle, memory->frame_bytes, &properties, 0);
        if (error != CUDA_SUCCESS)
                return failed(frame, FRAME_STEP_CREATE, error, true);

        step = FRAME_STEP_EXPORT;
        error = driver->mem_export_to_shareable_handle(&fd, handle,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (error != CUDA_SUCCESS)
                goto release;
        step = FRAME_STEP_MAP;
        error = driver->mem_map(address, memory->frame_bytes, 0, handle, 0);
        if (error != CUDA_SUCCESS)
                goto close;
        step = FRAME_STEP_SET_ACCESS;
        error = driver->mem_set_access(address, memory->frame_bytes, &access, 1);
        if (error != CUDA_SUCCESS)
                goto unmap;
        frame->handle = handle;
        frame->fd = fd;
        return done(frame);

unmap:
        undone = driver->mem_unmap(address, memory->frame_bytes) == CUDA_SUCCESS;
close:
        close(fd);
release:
        if (driver->mem_release(handle) != CUDA_SUCCESS)
                undone = false;
        return failed(frame, step, error, undone);
}

enum frame_outcome frame_memory_release(const struct frame_memory *memory, struct frame *frame,
                                        uint32_t number)
{
        const struct driver *driver = memory->driver;
        CUdeviceptr address = frame_memory_address(memory, number);
        enum frame_step step = FRAME_STEP_UNMAP;
        CUresult error, later;

        /* Whatever fails, the rest is still tried: the less is left behind the better. */
        error = driver->mem_unmap(address, memory->frame_bytes);
        close(frame->fd);
        frame->fd = -1;
        later = driver->mem_release(frame->handle);
        frame->handle = 0;
        if (error == CUDA_SUCCESS && later != CUDA_SUCCESS) {
                error = later;
                step = FRAME_STEP_RELEASE;
        }
        return error == CUDA_SUCCESS ? done(frame) : failed(frame, step, error, false);
}

void frame_memory_scrub(const struct frame_memory *memory, struct frame_table *table,
                        const uint32_t *numbers, size_t count, CUstream stream)
{
        const struct driver *driver = memory->driver;
        CUresult error;

        for (size_t i = 0; i < count; i++) {
                error = driver->memset_d8_async(frame_memory_address(memory, numbers[i]), 0,
                                                memory->frame_bytes, stream);
                if (error == CUDA_SUCCESS)
                        done(&table->frames[numbers[i]]);
                else
                        failed(&table->frames[numbers[i]], FRAME_STEP_SCRUB, error, true);
        }
        error = driver->stream_synchronize(stream);
        if (error == CUDA_SUCCESS)
                return;
        /* Which of them it was cannot be told. */
        for (size_t i = 0; i < count; i++)
                failed(&table->frames[numbers[i]], FRAME_STEP_SCRUB, error, true);
}

bool frame_memory_error_is_sticky(CUresult error)
{
        switch (error) {
        case CUDA_ERROR_DEINITIALIZED:
        case CUDA_ERROR_DEVICE_UNAVAILABLE:
        case CUDA_ERROR_NO_DEVICE:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_CONTAINED:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_MPS_CLIENT_TERMINATED:
        case CUDA_ERROR_EXTERNAL_DEVICE:
                return true;
        default:
                return false;
        }
}
