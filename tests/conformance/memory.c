/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc, pinned host memory, pointer attributes. */
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/conformance.h"

static void alloc_and_free(struct run *run)
{
        const size_t bytes = 16 * run->granule;
        CUdeviceptr pointer = 0;
        size_t before, total;

        NEED(run->cuda->mem_alloc(&pointer, 1)); /* what the first call takes for itself */
        before = free_bytes(run);
        OK("alloc", run->cuda->mem_alloc(&pointer, bytes));
        CHECK("aligned to 256 bytes", pointer != 0 && pointer % 256 == 0);
        CHECK("charged", free_bytes(run) <= before - bytes);
        OK("free", run->cuda->mem_free(pointer));
        CHECK("back", free_bytes(run) >= before);
        EXPECT("free again", run->cuda->mem_free(pointer), CUDA_ERROR_INVALID_VALUE);
        OK("free nothing", run->cuda->mem_free(0));
        EXPECT("no bytes", run->cuda->mem_alloc(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
        EXPECT("nowhere", run->cuda->mem_alloc(NULL, 1), CUDA_ERROR_INVALID_VALUE);
        NEED(run->cuda->device_total_mem(&total, run->device));
        EXPECT("more than there is", run->cuda->mem_alloc(&pointer, total + 1),
               CUDA_ERROR_OUT_OF_MEMORY);
        OK("no sticky error", run->cuda->ctx_synchronize());
}

static void free_inside(struct run *run)
{
        CUdeviceptr pointer;

        NEED(run->cuda->mem_alloc(&pointer, run->granule));
        EXPECT("an address inside", run->cuda->mem_free(pointer + 256), CUDA_ERROR_INVALID_VALUE);
        OK("its start", run->cuda->mem_free(pointer));
}

static void pinned_alloc(struct run *run)
{
        void *memory = NULL;

        OK("alloc", run->cuda->mem_host_alloc(&memory, 5000, 0));
        CHECK("usable by the host", memory && memset(memory, 1, 5000) == memory);
        OK("free", run->cuda->mem_free_host(memory));
        EXPECT("free again", run->cuda->mem_free_host(memory), CUDA_ERROR_INVALID_VALUE);
        OK("portable", run->cuda->mem_host_alloc(&memory, 5000, CU_MEMHOSTALLOC_PORTABLE));
        OK("free portable", run->cuda->mem_free_host(memory));
        EXPECT("no bytes", run->cuda->mem_host_alloc(&memory, 0, 0), CUDA_ERROR_INVALID_VALUE);
        EXPECT("flags", run->cuda->mem_host_alloc(&memory, 1, 0x100), CUDA_ERROR_INVALID_VALUE);
}

static void pinned_register(struct run *run)
{
        const size_t bytes = 65536;
        void *memory = NULL;

        NEED_TRUE(posix_memalign(&memory, 4096, bytes) == 0);
        OK("register", run->cuda->mem_host_register(memory, bytes, 0));
        EXPECT("again", run->cuda->mem_host_register(memory, bytes, 0),
               CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        OK("unregister", run->cuda->mem_host_unregister(memory));
        EXPECT("unregister again", run->cuda->mem_host_unregister(memory),
               CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_INVALID_VALUE);
        EXPECT("nothing", run->cuda->mem_host_register(NULL, bytes, 0), CUDA_ERROR_INVALID_VALUE);
        EXPECT("no bytes", run->cuda->mem_host_register(memory, 0, 0), CUDA_ERROR_INVALID_VALUE);
        free(memory);
}

static void attributes(struct run *run)
{
        unsigned int type = 0;
        unsigned long long address = 0;
        CUdeviceptr pointer, mapped = map_granules(run, 1);
        void *pinned;
        int ordinal = -1;

        NEED_TRUE(mapped != 0);
        NEED(run->cuda->mem_alloc(&pointer, 100));
        NEED(run->cuda->mem_host_alloc(&pinned, 100, 0));
        OK("type of cuMemAlloc's",
           run->cuda->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
        CHECK("device memory", type == CU_MEMORYTYPE_DEVICE);
        OK("type of mapped memory",
           run->cuda->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mapped));
        CHECK("device memory too", type == CU_MEMORYTYPE_DEVICE);
        OK("device of mapped memory",
           run->cuda->pointer_get_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mapped));
        CHECK("ours", ordinal == run->device);
        OK("type of pinned memory",
           run->cuda->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            (CUdeviceptr)(uintptr_t)pinned));
        CHECK("host memory", type == CU_MEMORYTYPE_HOST);
        OK("host pointer of pinned memory",
           run->cuda->pointer_get_attribute(&address, CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                            (CUdeviceptr)(uintptr_t)pinned));
        CHECK("itself", address == (uintptr_t)pinned);
        EXPECT("of the stack",
               run->cuda->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                (CUdeviceptr)(uintptr_t)&pinned),
               CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS); /* with pageable access: success */
        EXPECT("nowhere",
               run->cuda->pointer_get_attribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer),
               CUDA_ERROR_INVALID_VALUE);
}

const struct test tests_of_memory[] = {
        {"memory.alloc_and_free", alloc_and_free}, {"memory.free_inside", free_inside},
        {"memory.pinned_alloc", pinned_alloc},     {"memory.pinned_register", pinned_register},
        {"memory.attributes", attributes},         {NULL, NULL},
};
