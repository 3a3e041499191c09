/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills. Device ranges are checked when the operation runs, as a GPU does; a range that
 * the context's device may not access is an illegal access and poisons the context.
 *
 * Asynchronous copies keep to the documentation where it is exact and are no kinder: from pinned
 * memory the source is read when the copy runs; from pageable memory it is staged before the call
 * returns; to pageable memory the call returns when the copy is done.
 */
#include "libclient/simcuda/memory.h"

#include <stdlib.h>
#include <string.h>

#include "libclient/simcuda/stream.h"
#include "libclient/simcuda/window.h"

/* Either a host pointer or a device address. */
struct side {
        bool device;
        uint64_t address;
        size_t pitch;
};

struct copy {
        struct operation operation;
        struct side destination, source;
        size_t width, height;
        void *staged; /* a copy of pageable source memory */
};

struct fill {
        struct operation operation;
        uint64_t address;
        size_t pitch, width, height; /* width in elements */
        unsigned int element_bytes;
        uint32_t value;
};

/* Host address of one row, or NULL when the device may not access it so. */
static unsigned char *row_of(const struct context *context, const struct side *side, size_t row,
                             size_t width, bool write)
{
        uint64_t address = side->address + row * side->pitch;
        bool accessible;

        if (!side->device)
                return (unsigned char *)(uintptr_t)address;
        pthread_mutex_lock(&sim.memory_lock);
        accessible = window_accessible(context->device, address, width, write);
        pthread_mutex_unlock(&sim.memory_lock);
        return accessible ? window_alias(address, width) : NULL;
}

static CUresult run_copy(struct context *context, struct operation *operation)
{
        const struct copy *copy = (const struct copy *)operation;
        size_t row;

        for (row = 0; row < copy->height; row++) {
                unsigned char *destination =
                        row_of(context, &copy->destination, row, copy->width, true);
                const unsigned char *source =
                        row_of(context, &copy->source, row, copy->width, false);

                if (!destination || !source)
                        return CUDA_ERROR_ILLEGAL_ADDRESS;
                memmove(destination, source, copy->width);
        }
        return CUDA_SUCCESS;
}

static void discard_copy(struct operation *operation)
{
        free(((struct copy *)operation)->staged);
}

/* Whether the rows' bytes can be named without wrapping around. */
static bool rows_fit(const struct side *side, size_t width, size_t height)
{
        uint64_t span;

        return side->pitch >= width && !__builtin_mul_overflow(side->pitch, height - 1, &span) &&
               !__builtin_add_overflow(span, width, &span) && span <= UINT64_MAX - side->address;
}

static CUresult copy_rows(struct side destination, struct side source, size_t width, size_t height,
                          CUstream stream, bool asynchronous)
{
        struct context *context;
        struct copy *copy;
        bool wait = !asynchronous;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (width == 0 || height == 0)
                return CUDA_SUCCESS;
        if (destination.address == 0 || source.address == 0 ||
            !rows_fit(&destination, width, height) || !rows_fit(&source, width, height))
                return CUDA_ERROR_INVALID_VALUE;

        copy = calloc(1, sizeof(*copy));
        if (!copy)
                return CUDA_ERROR_OUT_OF_MEMORY;
        copy->operation.run = run_copy;
        copy->operation.discard = discard_copy;
        copy->destination = destination;
        copy->source = source;
        copy->width = width;
        copy->height = height;

        if (asynchronous && !destination.device &&
            !memory_is_pinned(destination.address, destination.pitch * (height - 1) + width))
                wait = true;
        if (asynchronous && !source.device &&
            !memory_is_pinned(source.address, source.pitch * (height - 1) + width)) {
                size_t span = source.pitch * (height - 1) + width;

                copy->staged = malloc(span);
                if (!copy->staged) {
                        free(copy);
                        return CUDA_ERROR_OUT_OF_MEMORY;
                }
                memcpy(copy->staged, (const void *)(uintptr_t)source.address, span);
                copy->source.address = (uint64_t)(uintptr_t)copy->staged;
        }
        return wait ? stream_run(context, stream, &copy->operation)
                    : stream_submit(context, stream, &copy->operation);
}

static struct side host_side(const void *pointer, size_t pitch)
{
        return (struct side){.address = (uint64_t)(uintptr_t)pointer, .pitch = pitch};
}

static struct side device_side(CUdeviceptr pointer, size_t pitch)
{
        return (struct side){.device = true, .address = pointer, .pitch = pitch};
}

/* Unified addressing: what is not a device address is a host pointer. */
static struct side unified_side(CUdeviceptr pointer, size_t pitch)
{
        return (struct side){
                .device = window_alias(pointer, 1) != NULL, .address = pointer, .pitch = pitch};
}

SIM_API(cuMemcpyHtoD_v2, (CUdeviceptr destination, const void *source, size_t bytes),
        (destination, source, bytes))
{
        return copy_rows(device_side(destination, bytes), host_side(source, bytes), bytes, 1, NULL,
                         false);
}
SIM_ALIAS(cuMemcpyHtoD, cuMemcpyHtoD_v2);

SIM_API(cuMemcpyDtoH_v2, (void *destination, CUdeviceptr source, size_t bytes),
        (destination, source, bytes))
{
        return copy_rows(host_side(destination, bytes), device_side(source, bytes), bytes, 1, NULL,
                         false);
}
SIM_ALIAS(cuMemcpyDtoH, cuMemcpyDtoH_v2);

SIM_API(cuMemcpyDtoD_v2, (CUdeviceptr destination, CUdeviceptr source, size_t bytes),
        (destination, source, bytes))
{
        return copy_rows(device_side(destination, bytes), device_side(source, bytes), bytes, 1,
                         NULL, false);
}
SIM_ALIAS(cuMemcpyDtoD, cuMemcpyDtoD_v2);

SIM_API(cuMemcpy, (CUdeviceptr destination, CUdeviceptr source, size_t bytes),
        (destination, source, bytes))
{
        return copy_rows(unified_side(destination, bytes), unified_side(source, bytes), bytes, 1,
                         NULL, false);
}

SIM_API(cuMemcpyHtoDAsync_v2,
        (CUdeviceptr destination, const void *source, size_t bytes, CUstream stream),
        (destination, source, bytes, stream))
{
        return copy_rows(device_side(destination, bytes), host_side(source, bytes), bytes, 1,
                         stream, true);
}
SIM_ALIAS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2);

SIM_API(cuMemcpyDtoHAsync_v2,
        (void *destination, CUdeviceptr source, size_t bytes, CUstream stream),
        (destination, source, bytes, stream))
{
        return copy_rows(host_side(destination, bytes), device_side(source, bytes), bytes, 1,
                         stream, true);
}
SIM_ALIAS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2);

SIM_API(cuMemcpyDtoDAsync_v2,
        (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream),
        (destination, source, bytes, stream))
{
        return copy_rows(device_side(destination, bytes), device_side(source, bytes), bytes, 1,
                         stream, true);
}
SIM_ALIAS(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2);

SIM_API(cuMemcpyAsync, (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream),
        (destination, source, bytes, stream))
{
        return copy_rows(unified_side(destination, bytes), unified_side(source, bytes), bytes, 1,
                         stream, true);
}

/* One side of a 2-D copy; pitch 0 means that rows lie tight. */
static CUresult side_2d(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y,
                        size_t pitch, size_t width, struct side *out)
{
        uint64_t offset;

        if (pitch == 0)
                pitch = x + width;
        if (x > SIZE_MAX - width || pitch < x + width ||
            __builtin_mul_overflow(y, pitch, &offset) || __builtin_add_overflow(offset, x, &offset))
                return CUDA_ERROR_INVALID_VALUE;
        switch (type) {
        case CU_MEMORYTYPE_HOST:
                *out = host_side(host, pitch);
                break;
        case CU_MEMORYTYPE_DEVICE:
                *out = device_side(device, pitch);
                break;
        case CU_MEMORYTYPE_UNIFIED:
                *out = unified_side(device, pitch);
                break;
        case CU_MEMORYTYPE_ARRAY:
                return sim_fail(CUDA_ERROR_NOT_SUPPORTED, "the simulator has no arrays");
        default:
                return CUDA_ERROR_INVALID_VALUE;
        }
        if (out->address == 0 || __builtin_add_overflow(out->address, offset, &out->address))
                return CUDA_ERROR_INVALID_VALUE;
        return CUDA_SUCCESS;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool asynchronous)
{
        struct side destination, source;
        CUresult result;

        SIM_ENTER();
        if (!copy)
                return CUDA_ERROR_INVALID_VALUE;
        result = side_2d(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes,
                         copy->srcY, copy->srcPitch, copy->WidthInBytes, &source);
        if (result == CUDA_SUCCESS)
                result = side_2d(copy->dstMemoryType, copy->dstHost, copy->dstDevice,
                                 copy->dstXInBytes, copy->dstY, copy->dstPitch, copy->WidthInBytes,
                                 &destination);
        if (result != CUDA_SUCCESS)
                return result;
        return copy_rows(destination, source, copy->WidthInBytes, copy->Height, stream,
                         asynchronous);
}

SIM_API(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), (copy))
{
        return copy_2d(copy, NULL, false);
}
SIM_ALIAS(cuMemcpy2D, cuMemcpy2D_v2);
SIM_ALIAS(cuMemcpy2DUnaligned_v2, cuMemcpy2D_v2);
SIM_ALIAS(cuMemcpy2DUnaligned, cuMemcpy2D_v2);

SIM_API(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
{
        return copy_2d(copy, stream, true);
}
SIM_ALIAS(cuMemcpy2DAsync, cuMemcpy2DAsync_v2);

/* --- fills ---------------------------------------------------------------------------------------
 */

static CUresult run_fill(struct context *context, struct operation *operation)
{
        const struct fill *fill = (const struct fill *)operation;
        const struct side side = {.device = true, .address = fill->address, .pitch = fill->pitch};
        size_t bytes = fill->width * fill->element_bytes, row, i;

        for (row = 0; row < fill->height; row++) {
                unsigned char *to = row_of(context, &side, row, bytes, true);

                if (!to)
                        return CUDA_ERROR_ILLEGAL_ADDRESS;
                if (fill->element_bytes == 1)
                        memset(to, (int)(fill->value & 0xff), bytes);
                else
                        for (i = 0; i < fill->width; i++)
                                memcpy(to + i * fill->element_bytes, &fill->value,
                                       fill->element_bytes);
        }
        return CUDA_SUCCESS;
}

static CUresult fill_rows(CUdeviceptr address, size_t pitch, uint32_t value,
                          unsigned int element_bytes, size_t width, size_t height, CUstream stream,
                          bool asynchronous)
{
        const struct side side = {.device = true, .address = address, .pitch = pitch};
        struct context *context;
        struct fill *fill;
        size_t bytes;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (width == 0 || height == 0)
                return CUDA_SUCCESS;
        if (address == 0 || address % element_bytes != 0 ||
            __builtin_mul_overflow(width, element_bytes, &bytes) ||
            (height > 1 && (!rows_fit(&side, bytes, height) || pitch % element_bytes != 0)) ||
            bytes > UINT64_MAX - address)
                return CUDA_ERROR_INVALID_VALUE;
        fill = calloc(1, sizeof(*fill));
        if (!fill)
                return CUDA_ERROR_OUT_OF_MEMORY;
        fill->operation.run = run_fill;
        fill->address = address;
        fill->pitch = pitch;
        fill->width = width;
        fill->height = height;
        fill->element_bytes = element_bytes;
        fill->value = value;
        return asynchronous ? stream_submit(context, stream, &fill->operation)
                            : stream_run(context, stream, &fill->operation);
}

#define FILL(bits, type)                                                                           \
        SIM_API(cuMemsetD##bits##_v2, (CUdeviceptr destination, type value, size_t count),         \
                (destination, value, count))                                                       \
        {                                                                                          \
                return fill_rows(destination, 0, value, bits / 8, count, 1, NULL, false);          \
        }                                                                                          \
        SIM_ALIAS(cuMemsetD##bits, cuMemsetD##bits##_v2);                                          \
        SIM_API(cuMemsetD##bits##Async,                                                            \
                (CUdeviceptr destination, type value, size_t count, CUstream stream),              \
                (destination, value, count, stream))                                               \
        {                                                                                          \
                return fill_rows(destination, 0, value, bits / 8, count, 1, stream, true);         \
        }                                                                                          \
        SIM_API(cuMemsetD2D##bits##_v2,                                                            \
                (CUdeviceptr destination, size_t pitch, type value, size_t width, size_t height),  \
                (destination, pitch, value, width, height))                                        \
        {                                                                                          \
                return fill_rows(destination, pitch, value, bits / 8, width, height, NULL, false); \
        }                                                                                          \
        SIM_ALIAS(cuMemsetD2D##bits, cuMemsetD2D##bits##_v2);                                      \
        SIM_API(cuMemsetD2D##bits##Async,                                                          \
                (CUdeviceptr destination, size_t pitch, type value, size_t width, size_t height,   \
                 CUstream stream),                                                                 \
                (destination, pitch, value, width, height, stream))                                \
        {                                                                                          \
                return fill_rows(destination, pitch, value, bits / 8, width, height, stream,       \
                                 true);                                                            \
        }                                                                                          \
        _Static_assert(bits % 8 == 0, "whole bytes")

FILL(8, unsigned char);
FILL(16, unsigned short);
FILL(32, unsigned int);
