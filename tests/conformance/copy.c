/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills. */
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/conformance.h"

static void fill_pattern(unsigned char *bytes, size_t count, unsigned int seed)
{
        size_t i;

        for (i = 0; i < count; i++)
                bytes[i] = (unsigned char)((i * 131 + seed) >> 3);
}

static void across_mappings(struct run *run)
{
        const size_t bytes = 2 * run->granule + 100;
        CUdeviceptr address = map_granules(run, 4);
        unsigned char *out = malloc(bytes), *in = calloc(1, bytes);

        NEED_TRUE(address != 0 && out && in);
        fill_pattern(out, bytes, 7);
        OK("to the device", run->cuda->memcpy_htod(address + 33, out, bytes));
        OK("on the device",
           run->cuda->memcpy_dtod(address + run->granule + 61, address + 33, run->granule));
        OK("from the device",
           run->cuda->memcpy_dtoh(in, address + run->granule + 61, run->granule));
        CHECK("the same bytes", memcmp(in, out, run->granule) == 0);
        free(out);
        free(in);
}

static void nothing_at_all(struct run *run)
{
        CUdeviceptr address = map_granules(run, 1);
        char byte = 1;

        NEED_TRUE(address != 0);
        OK("no bytes to the device", run->cuda->memcpy_htod(address, &byte, 0));
        OK("no bytes from it", run->cuda->memcpy_dtoh(&byte, address, 0));
        OK("fill no bytes", run->cuda->memset_d8(address, 1, 0));
        EXPECT("from nowhere", run->cuda->memcpy_htod(address, NULL, 1), CUDA_ERROR_INVALID_VALUE);
        EXPECT("to nowhere", run->cuda->memcpy_dtoh(NULL, address, 1), CUDA_ERROR_INVALID_VALUE);
}

static void asynchronous(struct run *run)
{
        CUdeviceptr address = map_granules(run, 2);
        void *from, *to;
        CUstream stream;

        NEED_TRUE(address != 0);
        NEED(run->cuda->mem_host_alloc(&from, run->granule, 0));
        NEED(run->cuda->mem_host_alloc(&to, run->granule, 0));
        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        fill_pattern(from, run->granule, 3);
        memset(to, 0, run->granule);
        OK("to the device", run->cuda->memcpy_htod_async(address, from, run->granule, stream));
        OK("on the device",
           run->cuda->memcpy_dtod_async(address + run->granule, address, run->granule, stream));
        OK("from the device",
           run->cuda->memcpy_dtoh_async(to, address + run->granule, run->granule, stream));
        OK("wait", run->cuda->stream_synchronize(stream));
        CHECK("the same bytes", memcmp(from, to, run->granule) == 0);
}

/* Pinned memory is read when the copy runs, pageable memory before the call returns. */
static void when_sources_are_read(struct run *run)
{
        unsigned char pageable[256], seen[2] = {0, 0};
        CUdeviceptr address = map_granules(run, 1);
        volatile unsigned char *pinned;
        void *memory;
        CUstream stream;

        NEED_TRUE(address != 0);
        NEED(run->cuda->mem_host_alloc(&memory, 256, 0));
        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        pinned = memory;
        pinned[0] = 1;
        NEED(run->cuda->launch_host_func(stream, host_sleep, (void *)(intptr_t)100));
        OK("from pinned memory", run->cuda->memcpy_htod_async(address, memory, 1, stream));
        pinned[0] = 2;
        memset(pageable, 1, sizeof(pageable));
        OK("from pageable memory", run->cuda->memcpy_htod_async(address + 1, pageable, 1, stream));
        memset(pageable, 2, sizeof(pageable));
        OK("wait", run->cuda->stream_synchronize(stream));
        NEED(run->cuda->memcpy_dtoh(seen, address, 2));
        OBSERVE("pinned: what it held when the copy ran", seen[0] == 2);
        CHECK("pageable: what it held at the call", seen[1] == 1);
}

static void two_dimensions(struct run *run)
{
        unsigned char host[10 * 8], back[10 * 8];
        CUdeviceptr address = map_granules(run, 1);
        CUDA_MEMCPY2D copy;
        size_t x, y, wrong = 0;

        NEED_TRUE(address != 0);
        fill_pattern(host, sizeof(host), 1);
        memset(back, 0, sizeof(back));
        memset(&copy, 0, sizeof(copy));
        copy.srcMemoryType = CU_MEMORYTYPE_HOST;
        copy.srcHost = host;
        copy.srcPitch = 10;
        copy.srcXInBytes = 2;
        copy.srcY = 1;
        copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.dstDevice = address;
        copy.dstPitch = 512;
        copy.dstXInBytes = 7;
        copy.dstY = 4;
        copy.WidthInBytes = 5;
        copy.Height = 3;
        OK("to the device", run->cuda->memcpy_2d(&copy));
        memset(&copy, 0, sizeof(copy));
        copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = address;
        copy.srcPitch = 512;
        copy.srcXInBytes = 7;
        copy.srcY = 4;
        copy.dstMemoryType = CU_MEMORYTYPE_HOST;
        copy.dstHost = back;
        copy.dstPitch = 10;
        copy.WidthInBytes = 5;
        copy.Height = 3;
        OK("from the device", run->cuda->memcpy_2d_async(&copy, NULL));
        OK("wait", run->cuda->stream_synchronize(NULL));
        for (y = 0; y < 3; y++)
                for (x = 0; x < 5; x++)
                        wrong += back[y * 10 + x] != host[(y + 1) * 10 + x + 2];
        CHECK("the rectangle", wrong == 0);
        copy.srcPitch = 4;
        EXPECT("a pitch below the width", run->cuda->memcpy_2d(&copy), CUDA_ERROR_INVALID_VALUE);
        EXPECT("nothing", run->cuda->memcpy_2d(NULL), CUDA_ERROR_INVALID_VALUE);
}

static void fills(struct run *run)
{
        uint32_t words[64];
        CUdeviceptr address = map_granules(run, 1);
        CUstream stream;

        NEED_TRUE(address != 0);
        NEED(run->cuda->stream_create(&stream, 0));
        OK("words", run->cuda->memset_d32(address, 0x01020304, 64));
        OK("bytes", run->cuda->memset_d8(address + 5, 0xee, 2));
        OK("words in a stream", run->cuda->memset_d32_async(address + 16, 9, 4, stream));
        OK("bytes in a stream", run->cuda->memset_d8_async(address + 255, 0x77, 1, stream));
        OK("wait", run->cuda->ctx_synchronize());
        NEED(run->cuda->memcpy_dtoh(words, address, sizeof(words)));
        CHECK("the right bytes", words[0] == 0x01020304 && words[1] == 0x01eeee04 &&
                                         words[4] == 9 && words[7] == 9 && words[8] == 0x01020304 &&
                                         words[63] == 0x77020304);
        EXPECT("words at an odd address", run->cuda->memset_d32(address + 2, 0, 1),
               CUDA_ERROR_INVALID_VALUE);
}

const struct test tests_of_copies[] = {
        {"copy.across_mappings", across_mappings},
        {"copy.nothing_at_all", nothing_at_all},
        {"copy.asynchronous", asynchronous},
        {"copy.when_sources_are_read", when_sources_are_read},
        {"copy.two_dimensions", two_dimensions},
        {"copy.fills", fills},
        {NULL, NULL},
};
