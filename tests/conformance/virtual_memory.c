/* SPDX-License-Identifier: Apache-2.0 */
/* Reserving, creating, mapping, and the ends of each. */
#include "tests/conformance/conformance.h"

static void granularity(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run);
        size_t minimum = 0, recommended = 0;

        OK("minimum", run->cuda->mem_get_allocation_granularity(&minimum, &properties,
                                                                CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        CHECK("a power of two", minimum != 0 && (minimum & (minimum - 1)) == 0);
        OK("recommended", run->cuda->mem_get_allocation_granularity(
                                  &recommended, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
        CHECK("a multiple of the minimum", recommended >= minimum && recommended % minimum == 0);
        EXPECT("nowhere",
               run->cuda->mem_get_allocation_granularity(NULL, &properties,
                                                         CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("of nothing",
               run->cuda->mem_get_allocation_granularity(&minimum, NULL,
                                                         CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               CUDA_ERROR_INVALID_VALUE);
}

static void reserve(struct run *run)
{
        const struct driver *cuda = run->cuda;
        const size_t granule = run->granule;
        CUdeviceptr first, second;

        OK("reserve", cuda->mem_address_reserve(&first, 3 * granule, 0, 0, 0));
        CHECK("aligned to the granularity", first != 0 && first % granule == 0);
        OK("aligned", cuda->mem_address_reserve(&second, granule, 64 * granule, 0, 0));
        CHECK("as asked", second % (64 * granule) == 0);
        CHECK("apart", second >= first + 3 * granule || second + granule <= first);
        OK("free", cuda->mem_address_free(second, granule));
        OK("a hint that is taken", cuda->mem_address_reserve(&second, granule, 0, first, 0));
        CHECK("elsewhere", second >= first + 3 * granule || second + granule <= first);
        OK("free it", cuda->mem_address_free(second, granule));
        EXPECT("no bytes", cuda->mem_address_reserve(&second, 0, 0, 0, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("an odd size", cuda->mem_address_reserve(&second, granule + 1, 0, 0, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("an alignment that is none", cuda->mem_address_reserve(&second, granule, 3, 0, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("flags", cuda->mem_address_reserve(&second, granule, 0, 0, 1ull << 40),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("nowhere", cuda->mem_address_reserve(NULL, granule, 0, 0, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("free a part", cuda->mem_address_free(first, granule), CUDA_ERROR_INVALID_VALUE);
        OK("free all of it", cuda->mem_address_free(first, 3 * granule));
        EXPECT("free again", cuda->mem_address_free(first, 3 * granule), CUDA_ERROR_INVALID_VALUE);
}

/* Address space is not memory. */
static void reserve_much(struct run *run)
{
        size_t before = free_bytes(run), total;
        CUdeviceptr address;

        NEED(run->cuda->device_total_mem(&total, run->device));
        total = total / run->granule * run->granule * 4;
        OK("four times the device", run->cuda->mem_address_reserve(&address, total, 0, 0, 0));
        CHECK("costs no memory", free_bytes(run) == before);
        OK("free", run->cuda->mem_address_free(address, total));
}

static void create(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run), seen;
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle, other;
        const size_t bytes = 4 * run->granule;
        size_t before, total;

        before = free_bytes(run);
        OK("create", cuda->mem_create(&handle, bytes, &properties, 0));
        CHECK("charged at once", free_bytes(run) <= before - bytes);
        OK("properties", cuda->mem_get_allocation_properties(&seen, handle));
        CHECK("as asked", seen.type == properties.type &&
                                  seen.location.type == properties.location.type &&
                                  seen.location.id == properties.location.id &&
                                  seen.requestedHandleTypes == properties.requestedHandleTypes);
        OK("release", cuda->mem_release(handle));
        CHECK("back at once", free_bytes(run) >= before);
        EXPECT("release again", cuda->mem_release(handle), CUDA_ERROR_INVALID_VALUE);
        EXPECT("release nothing", cuda->mem_release(0), CUDA_ERROR_INVALID_VALUE);
        EXPECT("no bytes", cuda->mem_create(&other, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE);
        EXPECT("an odd size", cuda->mem_create(&other, run->granule + 4096, &properties, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("no properties", cuda->mem_create(&other, run->granule, NULL, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("flags", cuda->mem_create(&other, run->granule, &properties, 1),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("nowhere", cuda->mem_create(NULL, run->granule, &properties, 0),
               CUDA_ERROR_INVALID_VALUE);
        NEED(cuda->device_total_mem(&total, run->device));
        EXPECT("more than there is",
               cuda->mem_create(&other, total / run->granule * run->granule + 64 * run->granule,
                                &properties, 0),
               CUDA_ERROR_OUT_OF_MEMORY);
        properties.location.id = 4711;
        EXPECT("of no device", cuda->mem_create(&other, run->granule, &properties, 0),
               CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE);
        properties = device_memory(run);
        properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
        EXPECT("of no type", cuda->mem_create(&other, run->granule, &properties, 0),
               CUDA_ERROR_INVALID_VALUE);
        OK("no sticky error", cuda->ctx_synchronize());
}

static void map(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run);
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        const size_t granule = run->granule;
        CUdeviceptr address;

        NEED(cuda->mem_create(&handle, 2 * granule, &properties, 0));
        NEED(cuda->mem_address_reserve(&address, 4 * granule, 0, 0, 0));
        EXPECT("at an offset", cuda->mem_map(address, granule, granule, handle, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("flags", cuda->mem_map(address, 2 * granule, 0, handle, 1),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("no bytes", cuda->mem_map(address, 0, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
        EXPECT("more than there is", cuda->mem_map(address, 3 * granule, 0, handle, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("an odd size", cuda->mem_map(address, granule + 4096, 0, handle, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("an odd address", cuda->mem_map(address + 4096, granule, 0, handle, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("beyond the range", cuda->mem_map(address + 3 * granule, 2 * granule, 0, handle, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("no handle", cuda->mem_map(address, 2 * granule, 0, 0x7777, 0),
               CUDA_ERROR_INVALID_VALUE);
        OK("map", cuda->mem_map(address + granule, 2 * granule, 0, handle, 0));
        EXPECT("over it", cuda->mem_map(address, 2 * granule, 0, handle, 0),
               CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_ALREADY_MAPPED);
        EXPECT("free addresses in use", cuda->mem_address_free(address, 4 * granule),
               CUDA_ERROR_INVALID_VALUE);
        OK("unmap", cuda->mem_unmap(address + granule, 2 * granule));
        OK("free them now", cuda->mem_address_free(address, 4 * granule));
        EXPECT("where nothing is reserved", cuda->mem_map(address, 2 * granule, 0, handle, 0),
               CUDA_ERROR_INVALID_VALUE);
        OK("release", cuda->mem_release(handle));
}

static void unmap(struct run *run)
{
        const struct driver *cuda = run->cuda;
        const size_t granule = run->granule;
        CUmemAllocationProp properties = device_memory(run);
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;

        NEED(cuda->mem_create(&handle, 2 * granule, &properties, 0));
        NEED(cuda->mem_address_reserve(&address, 6 * granule, 0, 0, 0));
        EXPECT("nothing mapped", cuda->mem_unmap(address, granule), CUDA_ERROR_INVALID_VALUE);
        NEED(cuda->mem_map(address, 2 * granule, 0, handle, 0));
        NEED(cuda->mem_map(address + 2 * granule, 2 * granule, 0, handle, 0));
        EXPECT("a part of a mapping", cuda->mem_unmap(address, granule), CUDA_ERROR_INVALID_VALUE);
        EXPECT("a mapping and a half", cuda->mem_unmap(address, 3 * granule),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("a mapping and a gap", cuda->mem_unmap(address + 2 * granule, 4 * granule),
               CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS);
        EXPECT("two that touch", cuda->mem_unmap(address, 4 * granule), CUDA_SUCCESS,
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("again", cuda->mem_unmap(address, 4 * granule), CUDA_ERROR_INVALID_VALUE);
        OK("release", cuda->mem_release(handle));
}

static void mapping_keeps_memory(struct run *run)
{
        CUmemAccessDesc access = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CUmemAllocationProp properties = device_memory(run);
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle, again;
        unsigned char byte = 0;
        CUdeviceptr address;
        size_t before = free_bytes(run);

        NEED(cuda->mem_create(&handle, run->granule, &properties, 0));
        NEED(cuda->mem_address_reserve(&address, run->granule, 0, 0, 0));
        NEED(cuda->mem_map(address, run->granule, 0, handle, 0));
        OK("release", cuda->mem_release(handle));
        CHECK("still charged", free_bytes(run) <= before - run->granule);
        OK("set access", cuda->mem_set_access(address, run->granule, &access, 1));
        OK("use it", cuda->memset_d8(address, 9, run->granule));
        OK("get a handle again",
           cuda->mem_retain_allocation_handle(&again, (void *)(uintptr_t)(address + 100)));
        OK("unmap", cuda->mem_unmap(address, run->granule));
        CHECK("still charged for the handle", free_bytes(run) <= before - run->granule);
        OK("map again", cuda->mem_map(address, run->granule, 0, again, 0));
        OK("set access again", cuda->mem_set_access(address, run->granule, &access, 1));
        OK("read", cuda->memcpy_dtoh(&byte, address + run->granule - 1, 1));
        CHECK("the same contents", byte == 9);
        OK("unmap again", cuda->mem_unmap(address, run->granule));
        OK("release again", cuda->mem_release(again));
        CHECK("now it is back", free_bytes(run) >= before);
        EXPECT("a handle of nothing",
               cuda->mem_retain_allocation_handle(&again, (void *)(uintptr_t)address),
               CUDA_ERROR_INVALID_VALUE);
}

static void two_addresses(struct run *run)
{
        CUmemAccessDesc access = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CUmemAllocationProp properties = device_memory(run);
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        unsigned char byte = 0;
        CUdeviceptr address;

        NEED(cuda->mem_create(&handle, run->granule, &properties, 0));
        NEED(cuda->mem_address_reserve(&address, 2 * run->granule, 0, 0, 0));
        OK("map", cuda->mem_map(address, run->granule, 0, handle, 0));
        OK("map once more", cuda->mem_map(address + run->granule, run->granule, 0, handle, 0));
        OK("one set access for both", cuda->mem_set_access(address, 2 * run->granule, &access, 1));
        NEED(cuda->memset_d8(address + 11, 77, 1));
        NEED(cuda->ctx_synchronize());
        NEED(cuda->memcpy_dtoh(&byte, address + run->granule + 11, 1));
        CHECK("the same memory", byte == 77);
}

/* Mapping neither waits for streams nor disturbs them. */
static void beside_work(struct run *run)
{
        CUdeviceptr address;
        CUstream stream;

        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->launch_host_func(stream, host_sleep, (void *)(intptr_t)200));
        address = map_granules(run, 2);
        NEED_TRUE(address != 0);
        unmap_granules(run, address, 2);
        EXPECT("the stream is still at work", run->cuda->stream_query(stream), CUDA_ERROR_NOT_READY,
               CUDA_SUCCESS);
        OK("wait", run->cuda->stream_synchronize(stream));
}

static void many(struct run *run)
{
        size_t before = free_bytes(run), i;
        CUdeviceptr address[64];

        for (i = 0; i < 64; i++) {
                address[i] = map_granules(run, 4);
                NEED_TRUE(address[i] != 0);
        }
        CHECK("256 granules charged", free_bytes(run) <= before - 256 * run->granule);
        for (i = 0; i < 64; i++)
                unmap_granules(run, address[i], 4);
        CHECK("all back", free_bytes(run) >= before);
}

const struct test tests_of_virtual_memory[] = {
        {"virtual_memory.granularity", granularity},
        {"virtual_memory.reserve", reserve},
        {"virtual_memory.reserve_much", reserve_much},
        {"virtual_memory.create", create},
        {"virtual_memory.map", map},
        {"virtual_memory.unmap", unmap},
        {"virtual_memory.mapping_keeps_memory", mapping_keeps_memory},
        {"virtual_memory.two_addresses", two_addresses},
        {"virtual_memory.beside_work", beside_work},
        {"virtual_memory.many", many},
        {NULL, NULL},
};
