/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemSetAccess and what follows from it. */
#include "tests/conformance/conformance.h"

static void set_and_get(struct run *run)
{
        const CUmemAccessDesc read_write = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                              read_only = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READ);
        CUmemLocation location = read_write.location;
        CUdeviceptr address = map_granules(run, 4);
        const struct driver *cuda = run->cuda;
        unsigned long long flags = 99;
        CUmemAccessDesc wrong;

        NEED_TRUE(address != 0);
        OK("get", cuda->mem_get_access(&flags, &location, address + run->granule));
        CHECK("read-write", flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        EXPECT("read only for two of four",
               cuda->mem_set_access(address + run->granule, 2 * run->granule, &read_only, 1),
               CUDA_SUCCESS, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE);
        OK("get its neighbour", cuda->mem_get_access(&flags, &location, address));
        CHECK("untouched", flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        OK("read-write again", cuda->mem_set_access(address, 4 * run->granule, &read_write, 1));
        EXPECT("a part of a mapping", cuda->mem_set_access(address, 4096, &read_write, 1),
               CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS);
        EXPECT("beyond what is mapped",
               cuda->mem_set_access(address, 5 * run->granule, &read_write, 1),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("no descriptions", cuda->mem_set_access(address, run->granule, NULL, 1),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("count 0", cuda->mem_set_access(address, run->granule, &read_write, 0),
               CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS);
        wrong = read_write;
        wrong.location.id = 4711;
        EXPECT("of no device", cuda->mem_set_access(address, run->granule, &wrong, 1),
               CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE);
        wrong = read_write;
        wrong.flags = (CUmemAccess_flags)2;
        EXPECT("flags", cuda->mem_set_access(address, run->granule, &wrong, 1),
               CUDA_ERROR_INVALID_VALUE);
        unmap_granules(run, address, 4);
        EXPECT("get of nothing", cuda->mem_get_access(&flags, &location, address),
               CUDA_ERROR_INVALID_VALUE);
}

static void none_at_first(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run);
        CUmemLocation location = properties.location;
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        unsigned long long flags = 99;
        CUdeviceptr address;

        NEED(cuda->mem_create(&handle, run->granule, &properties, 0));
        NEED(cuda->mem_address_reserve(&address, run->granule, 0, 0, 0));
        NEED(cuda->mem_map(address, run->granule, 0, handle, 0));
        OK("get", cuda->mem_get_access(&flags, &location, address));
        CHECK("no access", flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

const struct test tests_of_access[] = {
        {"access.set_and_get", set_and_get},
        {"access.none_at_first", none_at_first},
        {NULL, NULL},
};
