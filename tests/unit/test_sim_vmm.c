/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's virtual memory calls: what they check, and that failing ones change nothing. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/support/sim_test.h"

#define GRANULE (64 * KIB)
#define MEMORY  (16 * MIB)

static char directory[64];

static void test_granularity(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        size_t granularity = 0;

        OK(cuda->mem_get_allocation_granularity(&granularity, &properties,
                                                CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        CU_ASSERT_EQUAL(granularity, GRANULE);
        OK(cuda->mem_get_allocation_granularity(&granularity, &properties,
                                                CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_get_allocation_granularity(NULL, &properties,
                                                    CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_get_allocation_granularity(&granularity, &properties,
                                                    (CUmemAllocationGranularity_flags)2));
}

static void test_create_arguments(void)
{
        CUmemGenericAllocationHandle handle = 0;
        CUmemAllocationProp properties;
        size_t before = sim_test_free_bytes();

        properties = sim_test_properties();
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_create(NULL, GRANULE, &properties, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_create(&handle, 0, &properties, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_create(&handle, GRANULE + 4096, &properties, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_create(&handle, GRANULE, NULL, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_create(&handle, GRANULE, &properties, 1));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuda->mem_create(&handle, MEMORY * 2, &properties, 0));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY,
               cuda->mem_create(&handle, UINT64_MAX & ~(GRANULE - 1), &properties, 0));

        properties.location.id = 1;
        EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda->mem_create(&handle, GRANULE, &properties, 0));
        properties.location.id = -1;
        EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda->mem_create(&handle, GRANULE, &properties, 0));
        properties = sim_test_properties();
        properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_create(&handle, GRANULE, &properties, 0));
        properties = sim_test_properties();
        properties.location.type = CU_MEM_LOCATION_TYPE_INVALID;
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_create(&handle, GRANULE, &properties, 0));
        properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
        EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuda->mem_create(&handle, GRANULE, &properties, 0));
        properties = sim_test_properties();
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
        EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuda->mem_create(&handle, GRANULE, &properties, 0));

        CU_ASSERT_EQUAL(handle, 0);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
}

static void test_handles(void)
{
        CUmemAllocationProp properties = sim_test_properties(), seen;
        CUmemGenericAllocationHandle first, second, import;
        size_t before = sim_test_free_bytes();
        int fd = -1;

        OK(cuda->mem_create(&first, GRANULE, &properties, 0));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before - GRANULE);
        OK(cuda->mem_get_allocation_properties(&seen, first));
        CU_ASSERT_EQUAL(seen.type, properties.type);
        CU_ASSERT_EQUAL(seen.requestedHandleTypes, properties.requestedHandleTypes);
        CU_ASSERT_EQUAL(seen.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
        CU_ASSERT_EQUAL(seen.location.id, 0);

        /* Every import is a handle of its own, of the same memory, charged once. */
        OK(cuda->mem_export_to_shareable_handle(&fd, first,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CU_ASSERT(fd >= 0);
        OK(cuda->mem_import_from_shareable_handle(&import, (void *)(intptr_t)fd,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        CU_ASSERT_NOT_EQUAL(import, first);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before - GRANULE);

        OK(cuda->mem_release(first));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_release(first));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_get_allocation_properties(&seen, first));
        /* A freed value is the next to be given out. */
        OK(cuda->mem_create(&second, GRANULE, &properties, 0));
        CU_ASSERT_EQUAL(second, first);
        OK(cuda->mem_release(second));
        OK(cuda->mem_release(import));

        /* The descriptor alone still keeps the memory. */
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before - GRANULE);
        CU_ASSERT_EQUAL(close(fd), 0);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_release(0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_release(12345));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_release(first + 1));
}

static void test_export_and_import_arguments(void)
{
        const CUmemAllocationHandleType posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle, import = 0;
        size_t before = sim_test_free_bytes();
        int fd = -1, other;

        OK(cuda->mem_create(&handle, GRANULE, &properties, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_export_to_shareable_handle(NULL, handle, posix, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_export_to_shareable_handle(&fd, handle, posix, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_export_to_shareable_handle(&fd, handle + 16, posix, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_export_to_shareable_handle(&fd, handle, CU_MEM_HANDLE_TYPE_NONE, 0));
        EXPECT(CUDA_ERROR_NOT_SUPPORTED,
               cuda->mem_export_to_shareable_handle(&fd, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
        OK(cuda->mem_release(handle));

        /* What was not made for export is not exported. */
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
        OK(cuda->mem_create(&handle, GRANULE, &properties, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_export_to_shareable_handle(&fd, handle, posix, 0));
        CU_ASSERT_EQUAL(fd, -1);
        OK(cuda->mem_release(handle));

        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_import_from_shareable_handle(&import, (void *)(intptr_t)-1, posix));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_import_from_shareable_handle(&import, (void *)(intptr_t)9999, posix));
        other = open("/dev/null", O_RDWR | O_CLOEXEC);
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_import_from_shareable_handle(&import, (void *)(intptr_t)other, posix));
        close(other);
        other = memfd_create("foreign", MFD_CLOEXEC);
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_import_from_shareable_handle(&import, (void *)(intptr_t)other, posix));
        close(other);
        CU_ASSERT_EQUAL(import, 0);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
}

static void test_import_keeps_the_callers_descriptor(void)
{
        const CUmemAllocationHandleType posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        size_t before = sim_test_free_bytes();
        int fd;

        OK(cuda->mem_create(&handle, GRANULE, &properties, 0));
        OK(cuda->mem_export_to_shareable_handle(&fd, handle, posix, 0));
        OK(cuda->mem_release(handle));
        OK(cuda->mem_import_from_shareable_handle(&handle, (void *)(intptr_t)fd, posix));
        CU_ASSERT(fcntl(fd, F_GETFD) >= 0);
        CU_ASSERT(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        CU_ASSERT_EQUAL(close(fd), 0);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before - GRANULE);
        OK(cuda->mem_release(handle));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
}

static void test_reserve(void)
{
        CUdeviceptr first, second, third;

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_reserve(NULL, GRANULE, 0, 0, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_reserve(&first, 0, 0, 0, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_reserve(&first, GRANULE + 1, 0, 0, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_reserve(&first, GRANULE, 3, 0, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_reserve(&first, GRANULE, 0, 0, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_reserve(&first, 1ull << 60, 0, 0, 0));

        OK(cuda->mem_address_reserve(&first, 3 * GRANULE, 0, 0, 0));
        OK(cuda->mem_address_reserve(&second, GRANULE, 16 * MIB, 0, 0));
        CU_ASSERT_EQUAL(second % (16 * MIB), 0);
        CU_ASSERT(second >= first + 3 * GRANULE || second + GRANULE <= first);
        /* A free hint is honoured, a taken one is only a hint. */
        OK(cuda->mem_address_reserve(&third, GRANULE, 0, second + 100 * GRANULE, 0));
        CU_ASSERT_EQUAL(third, second + 100 * GRANULE);
        OK(cuda->mem_address_free(third, GRANULE));
        OK(cuda->mem_address_reserve(&third, GRANULE, 0, first, 0));
        CU_ASSERT(third >= first + 3 * GRANULE || third + GRANULE <= first);

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_free(first, GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_free(first + GRANULE, 2 * GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_free(0, GRANULE));
        OK(cuda->mem_address_free(first, 3 * GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_free(first, 3 * GRANULE));
        OK(cuda->mem_address_free(second, GRANULE));
        OK(cuda->mem_address_free(third, GRANULE));
}

static void test_map_arguments(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        size_t before = sim_test_free_bytes();
        CUdeviceptr va;

        OK(cuda->mem_create(&handle, 2 * GRANULE, &properties, 0));
        OK(cuda->mem_address_reserve(&va, 4 * GRANULE, 0, 0, 0));

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va, 2 * GRANULE, GRANULE, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va, 2 * GRANULE, 0, handle, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va, 2 * GRANULE, 0, handle + 16, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va, 0, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va, GRANULE + 4096, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va + 4096, GRANULE, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va, 3 * GRANULE, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_map(va + 3 * GRANULE, 2 * GRANULE, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_map(va + 400 * GRANULE, 2 * GRANULE, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(0, 2 * GRANULE, 0, handle, 0));

        OK(cuda->mem_map(va + GRANULE, 2 * GRANULE, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va, 2 * GRANULE, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_map(va + 2 * GRANULE, GRANULE, 0, handle, 0));
        /* The same memory may be mapped twice. */
        OK(cuda->mem_map(va, GRANULE, 0, handle, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_free(va, 4 * GRANULE));

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_unmap(va + 3 * GRANULE, GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_unmap(va + GRANULE, GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_unmap(va + 2 * GRANULE, GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_unmap(va, 2 * GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_unmap(va, 4 * GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_unmap(va, 0));
        OK(cuda->mem_release(handle));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before - 2 * GRANULE);
        OK(cuda->mem_unmap(va, 3 * GRANULE));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_unmap(va, 3 * GRANULE));
        OK(cuda->mem_address_free(va, 4 * GRANULE));
}

static void test_access(void)
{
        CUmemLocation location = sim_test_read_write.location;
        CUmemAccessDesc description;
        CUdeviceptr va = sim_test_map(GRANULE, 4);
        unsigned long long flags = 99;

        OK(cuda->mem_get_access(&flags, &location, va + 3 * GRANULE + 5));
        CU_ASSERT_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        OK(cuda->mem_set_access(va + GRANULE, 2 * GRANULE, &sim_test_read_only, 1));
        OK(cuda->mem_get_access(&flags, &location, va + GRANULE));
        CU_ASSERT_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
        OK(cuda->mem_get_access(&flags, &location, va));
        CU_ASSERT_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_set_access(va, GRANULE, NULL, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_set_access(va, GRANULE, &sim_test_read_only, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_set_access(va, 5 * GRANULE, &sim_test_read_only, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_set_access(va, 4096, &sim_test_read_only, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_set_access(va + 4096, GRANULE, &sim_test_read_only, 1));
        description = sim_test_read_write;
        description.location.id = 1;
        EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda->mem_set_access(va, GRANULE, &description, 1));
        description = sim_test_read_write;
        description.flags = (CUmemAccess_flags)2;
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_set_access(va, GRANULE, &description, 1));

        /* New mappings have no access, whatever was there before. */
        sim_test_unmap(va, 4 * GRANULE);
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_get_access(&flags, &location, va));
}

static void test_retain(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle, again;
        size_t before = sim_test_free_bytes();
        CUdeviceptr va;
        uint32_t value = 1234, seen = 0;

        OK(cuda->mem_address_reserve(&va, 2 * GRANULE, 0, 0, 0));
        OK(cuda->mem_create(&handle, GRANULE, &properties, 0));
        OK(cuda->mem_map(va, GRANULE, 0, handle, 0));
        OK(cuda->mem_release(handle));
        OK(cuda->mem_set_access(va, GRANULE, &sim_test_read_write, 1));
        OK(cuda->memcpy_htod(va + 8, &value, sizeof(value)));

        OK(cuda->mem_retain_allocation_handle(&again, (void *)(uintptr_t)(va + 100)));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_retain_allocation_handle(&handle, (void *)(uintptr_t)(va + GRANULE)));
        OK(cuda->mem_unmap(va, GRANULE));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before - GRANULE);
        OK(cuda->mem_map(va + GRANULE, GRANULE, 0, again, 0));
        OK(cuda->mem_set_access(va + GRANULE, GRANULE, &sim_test_read_write, 1));
        OK(cuda->memcpy_dtoh(&seen, va + GRANULE + 8, sizeof(seen)));
        CU_ASSERT_EQUAL(seen, value);
        OK(cuda->mem_release(again));
        OK(cuda->mem_unmap(va + GRANULE, GRANULE));
        OK(cuda->mem_address_free(va, 2 * GRANULE));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
}

static void test_aliases_share_contents(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        unsigned char *view;
        CUdeviceptr va;

        OK(cuda->mem_address_reserve(&va, 2 * GRANULE, 0, 0, 0));
        OK(cuda->mem_create(&handle, GRANULE, &properties, 0));
        OK(cuda->mem_map(va, GRANULE, 0, handle, 0));
        OK(cuda->mem_map(va + GRANULE, GRANULE, 0, handle, 0));
        OK(cuda->mem_set_access(va, 2 * GRANULE, &sim_test_read_write, 1));
        view = cuda->host_view(va, 2 * GRANULE);
        CU_ASSERT_PTR_NOT_NULL_FATAL(view);
        /* At a constant distance, hence one view of neighbouring mappings. */
        CU_ASSERT_PTR_EQUAL(cuda->host_view(va + GRANULE, 1), view + GRANULE);
        view[17] = 42;
        CU_ASSERT_EQUAL(view[GRANULE + 17], 42);
        CU_ASSERT_PTR_NULL(cuda->host_view(0, 1));
        CU_ASSERT_PTR_NULL(cuda->host_view(va, 1ull << 62));
        CU_ASSERT_PTR_NULL(cuda->host_view((uintptr_t)&va, sizeof(va)));
        OK(cuda->mem_release(handle));
        sim_test_unmap(va, 2 * GRANULE);
}

static void test_new_memory_is_poison(void)
{
        CUdeviceptr va = sim_test_map(GRANULE, 2);
        unsigned char *view = cuda->host_view(va, 2 * GRANULE);
        size_t i, wrong = 0;
        float f;

        for (i = 0; i < 2 * GRANULE; i++)
                wrong += view[i] != 0xff;
        CU_ASSERT_EQUAL(wrong, 0);
        memcpy(&f, view, sizeof(f));
        CU_ASSERT(f != f);
        OK(cuda->memset_d8(va, 0, 2 * GRANULE));
        sim_test_unmap(va, 2 * GRANULE);
        /* Also where the same bytes were zero a moment ago. */
        va = sim_test_map(GRANULE, 2);
        view = cuda->host_view(va, 2 * GRANULE);
        for (i = 0; i < 2 * GRANULE; i++)
                wrong += view[i] != 0xff;
        CU_ASSERT_EQUAL(wrong, 0);
        sim_test_unmap(va, 2 * GRANULE);
}

static void test_capacity(void)
{
        static CUmemGenericAllocationHandle handles[MEMORY / GRANULE];
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle extra;
        size_t total, unused, i;
        CUdeviceptr va;

        OK(cuda->mem_get_info(&unused, &total));
        CU_ASSERT_EQUAL(total, MEMORY);
        CU_ASSERT_EQUAL(unused, MEMORY);
        for (i = 0; i < MEMORY / GRANULE; i++)
                OK(cuda->mem_create(&handles[i], GRANULE, &properties, 0));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), 0);
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuda->mem_create(&extra, GRANULE, &properties, 0));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuda->mem_alloc(&va, 1));
        OK(cuda->mem_release(handles[7]));
        OK(cuda->mem_create(&handles[7], GRANULE, &properties, 0));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuda->mem_create(&extra, GRANULE, &properties, 0));
        for (i = 0; i < MEMORY / GRANULE; i++)
                OK(cuda->mem_release(handles[i]));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY);
        CU_ASSERT_EQUAL(sim_test_count_files(directory), 1); /* the control file */
}

/* --- many threads --------------------------------------------------------------------------------
 */

static atomic_uint wrong_results;

static void *hammer(void *argument)
{
        unsigned int thread = (unsigned int)(uintptr_t)argument, i;
        CUmemAllocationProp properties = sim_test_properties();

        if (cuda->ctx_set_current(sim_test_context) != CUDA_SUCCESS)
                wrong_results++;
        for (i = 0; i < 60; i++) {
                CUmemGenericAllocationHandle handle, import;
                uint32_t value = thread * 1000 + i, seen = 0;
                CUdeviceptr va;
                int fd, wrong = 0;

                wrong |= cuda->mem_create(&handle, GRANULE, &properties, 0);
                wrong |= cuda->mem_export_to_shareable_handle(
                        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
                wrong |= cuda->mem_import_from_shareable_handle(
                        &import, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
                close(fd);
                wrong |= cuda->mem_address_reserve(&va, 2 * GRANULE, 0, 0, 0);
                wrong |= cuda->mem_map(va, GRANULE, 0, handle, 0);
                wrong |= cuda->mem_map(va + GRANULE, GRANULE, 0, import, 0);
                wrong |= cuda->mem_set_access(va, 2 * GRANULE, &sim_test_read_write, 1);
                wrong |= cuda->memcpy_htod(va + 64, &value, sizeof(value));
                wrong |= cuda->mem_release(handle);
                wrong |= cuda->memcpy_dtoh(&seen, va + GRANULE + 64, sizeof(seen));
                wrong |= cuda->mem_release(import);
                wrong |= cuda->mem_unmap(va, 2 * GRANULE);
                wrong |= cuda->mem_address_free(va, 2 * GRANULE);
                if (wrong != 0 || seen != value)
                        wrong_results++;
        }
        return NULL;
}

static void test_threads(void)
{
        pthread_t threads[4];
        size_t before = sim_test_free_bytes(), i;

        for (i = 0; i < 4; i++)
                CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, hammer, (void *)i), 0);
        for (i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        CU_ASSERT_EQUAL(wrong_results, 0);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
}

int main(void)
{
        CU_pSuite suite;

        sim_test_environment(directory, "16M", "64K");
        sim_test_start();
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("simulated virtual memory", NULL, NULL);
        CU_add_test(suite, "granularity", test_granularity);
        CU_add_test(suite, "create: arguments", test_create_arguments);
        CU_add_test(suite, "handles: fresh, recycled, released once", test_handles);
        CU_add_test(suite, "export and import: arguments", test_export_and_import_arguments);
        CU_add_test(suite, "import keeps the caller's descriptor",
                    test_import_keeps_the_callers_descriptor);
        CU_add_test(suite, "reserve and free addresses", test_reserve);
        CU_add_test(suite, "map and unmap: arguments", test_map_arguments);
        CU_add_test(suite, "access", test_access);
        CU_add_test(suite, "a handle from a mapping", test_retain);
        CU_add_test(suite, "two mappings, one memory", test_aliases_share_contents);
        CU_add_test(suite, "new memory is poison, never zero", test_new_memory_is_poison);
        CU_add_test(suite, "capacity", test_capacity);
        CU_add_test(suite, "four threads at once", test_threads);
        return sim_test_finish(directory);
}
