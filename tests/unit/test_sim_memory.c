/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, contexts, cuMemAlloc, pinned memory, copies and fills of the simulator. */
#include "tests/support/sim_test.h"

#define GRANULE (64 * KIB)

static char directory[64];

static void test_device(void)
{
        CUuuid uuid = {{0}}, again = {{1}};
        int count = 0, value = -7, version = 0;
        size_t total = 0;
        char name[64];
        CUdevice device = -1;

        OK(cuda->driver_get_version(&version));
        CU_ASSERT(version >= 12000);
        OK(cuda->device_get_count(&count));
        CU_ASSERT_EQUAL(count, 1);
        OK(cuda->device_get(&device, 0));
        EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda->device_get(&device, 1));
        EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda->device_get(&device, -1));
        CU_ASSERT_EQUAL(device, 0);
        OK(cuda->device_get_name(name, sizeof(name), device));
        CU_ASSERT_PTR_NOT_NULL(strstr(name, "simulated"));
        OK(cuda->device_get_name(name, 4, device));
        CU_ASSERT_EQUAL(strlen(name), 3);
        OK(cuda->device_get_uuid(&uuid, device));
        OK(cuda->device_get_uuid(&again, device));
        CU_ASSERT_EQUAL(memcmp(&uuid, &again, sizeof(uuid)), 0);
        OK(cuda->device_total_mem(&total, device));
        CU_ASSERT_EQUAL(total, 16 * MIB);
        OK(cuda->device_get_attribute(
                &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
        CU_ASSERT_EQUAL(value, 1);
        OK(cuda->device_get_attribute(
                &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device));
        CU_ASSERT_EQUAL(value, 1);
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->device_get_attribute(&value, (CUdevice_attribute)0, device));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->init(1));
        OK(cuda->init(0));
}

static void test_contexts(void)
{
        CUcontext primary, seen = NULL;
        CUdevice device = -1;
        size_t unused;

        OK(cuda->device_primary_ctx_retain(&primary, 0));
        CU_ASSERT_PTR_EQUAL(primary, sim_test_context);
        OK(cuda->ctx_push_current(primary));
        OK(cuda->ctx_get_current(&seen));
        CU_ASSERT_PTR_EQUAL(seen, primary);
        OK(cuda->ctx_get_device(&device));
        CU_ASSERT_EQUAL(device, 0);
        OK(cuda->ctx_pop_current(&seen));
        CU_ASSERT_PTR_EQUAL(seen, primary);
        OK(cuda->device_primary_ctx_release(0));
        EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda->device_primary_ctx_release(5));
        EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda->ctx_push_current((CUcontext)(uintptr_t)0x1234));
        EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda->ctx_set_current((CUcontext)(uintptr_t)0x1234));

        OK(cuda->ctx_set_current(NULL));
        EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda->mem_get_info(&unused, &unused));
        EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda->ctx_synchronize());
        EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda->ctx_pop_current(&seen));
        OK(cuda->ctx_get_current(&seen));
        CU_ASSERT_PTR_NULL(seen);
        OK(cuda->ctx_set_current(sim_test_context));
}

static void test_context_end(void)
{
        size_t before = sim_test_free_bytes(), unused;
        CUdeviceptr memory;
        CUstream stream;
        CUevent event;
        CUcontext next;

        OK(cuda->mem_alloc(&memory, 1000));
        OK(cuda->stream_create(&stream, 0));
        OK(cuda->event_create(&event, 0));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before - GRANULE);
        /* The last release ends the context with all it owns; the handle does not come back to
         * life. */
        OK(cuda->device_primary_ctx_release(0));
        EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuda->mem_get_info(&unused, &unused));
        EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda->device_primary_ctx_release(0));
        OK(cuda->device_primary_ctx_retain(&next, 0));
        CU_ASSERT_PTR_NOT_EQUAL(next, sim_test_context);
        EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuda->mem_get_info(&unused, &unused));
        sim_test_context = next;
        OK(cuda->ctx_set_current(next));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->stream_synchronize(stream));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->event_query(event));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_free(memory));
}

static void test_alloc(void)
{
        size_t before = sim_test_free_bytes();
        CUmemGenericAllocationHandle handle;
        CUdeviceptr first, second;
        unsigned char bytes[100];
        size_t i, wrong = 0;

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_alloc(NULL, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_alloc(&first, 0));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuda->mem_alloc(&first, SIZE_MAX));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuda->mem_alloc(&first, 17 * MIB));
        OK(cuda->mem_alloc(&first, 100));
        OK(cuda->mem_alloc(&second, GRANULE + 1));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before - 3 * GRANULE);
        OK(cuda->memcpy_dtoh(bytes, first, sizeof(bytes)));
        for (i = 0; i < sizeof(bytes); i++)
                wrong += bytes[i] != 0xff;
        CU_ASSERT_EQUAL(wrong, 0);

        /* The two ways to memory do not mix. */
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_unmap(first, GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_address_free(first, GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_retain_allocation_handle(&handle, (void *)(uintptr_t)first));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->mem_set_access(first, GRANULE, &sim_test_read_only, 1));

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_free(first + 1));
        OK(cuda->mem_free(first));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_free(first));
        OK(cuda->mem_free(0));
        OK(cuda->mem_free(second));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);
}

static void test_pinned(void)
{
        static unsigned char buffer[8192];
        unsigned int type = 0;
        void *memory = NULL;

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_host_alloc(&memory, 0, 0));
        OK(cuda->mem_host_alloc(&memory, 5000, CU_MEMHOSTALLOC_PORTABLE));
        CU_ASSERT_EQUAL(((unsigned char *)memory)[4999], 0xff);
        OK(cuda->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       (uintptr_t)memory + 10));
        CU_ASSERT_EQUAL(type, CU_MEMORYTYPE_HOST);
        EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
               cuda->mem_host_register((char *)memory + 4096, 100, 0));
        EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuda->mem_host_unregister(memory));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_free_host((char *)memory + 1));
        OK(cuda->mem_free_host(memory));

        OK(cuda->mem_host_register(buffer, 4096, 0));
        EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuda->mem_host_register(buffer, 4096, 0));
        EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
               cuda->mem_host_register(buffer + 4095, 4096, 0));
        OK(cuda->mem_host_register(buffer + 4096, 4096, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_free_host(buffer));
        OK(cuda->mem_host_unregister(buffer));
        EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuda->mem_host_unregister(buffer));
        OK(cuda->mem_host_unregister(buffer + 4096));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_host_register(NULL, 4096, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->mem_host_register(buffer, 0, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                           (uintptr_t)buffer));
}

static void test_pointer_attributes(void)
{
        CUdeviceptr va = sim_test_map(GRANULE, 2), seen = 0;
        unsigned int number = 99;
        size_t bytes = 0;
        int device = -1;

        OK(cuda->pointer_get_attribute(&number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, va + 7));
        CU_ASSERT_EQUAL(number, CU_MEMORYTYPE_DEVICE);
        OK(cuda->pointer_get_attribute(&number, CU_POINTER_ATTRIBUTE_MAPPED, va + 7));
        CU_ASSERT_EQUAL(number, 1);
        OK(cuda->pointer_get_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, va));
        CU_ASSERT_EQUAL(device, 0);
        OK(cuda->pointer_get_attribute(&seen, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, va + GRANULE));
        CU_ASSERT_EQUAL(seen, va);
        OK(cuda->pointer_get_attribute(&seen, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                       va + GRANULE + 9));
        CU_ASSERT_EQUAL(seen, va + GRANULE);
        OK(cuda->pointer_get_attribute(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, va));
        CU_ASSERT_EQUAL(bytes, GRANULE);
        OK(cuda->mem_unmap(va, 2 * GRANULE));
        OK(cuda->pointer_get_attribute(&number, CU_POINTER_ATTRIBUTE_MAPPED, va));
        CU_ASSERT_EQUAL(number, 0);
        OK(cuda->mem_address_free(va, 2 * GRANULE));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->pointer_get_attribute(&number, CU_POINTER_ATTRIBUTE_MAPPED, va));
}

static void fill_bytes(unsigned char *bytes, size_t count, unsigned int seed)
{
        size_t i;

        for (i = 0; i < count; i++)
                bytes[i] = (unsigned char)(i * 31 + seed);
}

static void test_copies(void)
{
        static unsigned char in[3 * GRANULE], out[3 * GRANULE];
        CUdeviceptr from = sim_test_map(GRANULE, 3), to = sim_test_map(GRANULE, 3);
        CUstream stream;

        OK(cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        fill_bytes(in, sizeof(in), 1);
        /* Across three mappings, at odd places. */
        OK(cuda->memcpy_htod(from + 3, in, sizeof(in) - 3));
        OK(cuda->memcpy_dtod(to + 5, from + 3, sizeof(in) - 5));
        OK(cuda->memcpy_dtoh(out, to + 5, sizeof(in) - 5));
        CU_ASSERT_EQUAL(memcmp(in, out, sizeof(in) - 5), 0);
        OK(cuda->memcpy_htod(from, in, 0));

        fill_bytes(in, sizeof(in), 2);
        OK(cuda->memcpy_htod_async(from, in, sizeof(in), stream));
        OK(cuda->memcpy_dtod_async(to, from, sizeof(in), stream));
        memset(out, 0, sizeof(out));
        OK(cuda->memcpy_dtoh_async(out, to, sizeof(in), stream));
        OK(cuda->stream_synchronize(stream));
        CU_ASSERT_EQUAL(memcmp(in, out, sizeof(in)), 0);

        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->memcpy_htod(0, in, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->memcpy_htod(from, NULL, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->memcpy_htod(UINT64_MAX - 3, in, 8));
        OK(cuda->stream_destroy(stream));
        sim_test_unmap(from, 3 * GRANULE);
        sim_test_unmap(to, 3 * GRANULE);
}

static void test_copies_2d(void)
{
        unsigned char in[8][16], out[8][16], expected[8][16];
        CUdeviceptr device = sim_test_map(GRANULE, 1);
        CUDA_MEMCPY2D copy;
        CUstream stream;
        size_t y;

        OK(cuda->stream_create(&stream, 0));
        fill_bytes(&in[0][0], sizeof(in), 3);
        OK(cuda->memset_d8(device, 0, GRANULE));

        /* Rectangle 5 x 3 at (2, 1) of the host goes to (7, 4) of a pitch of 100 on the device ...
         */
        copy = (CUDA_MEMCPY2D){.srcXInBytes = 2,
                               .srcY = 1,
                               .srcMemoryType = CU_MEMORYTYPE_HOST,
                               .srcHost = in,
                               .srcPitch = 16,
                               .dstXInBytes = 7,
                               .dstY = 4,
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = device,
                               .dstPitch = 100,
                               .WidthInBytes = 5,
                               .Height = 3};
        OK(cuda->memcpy_2d(&copy));
        /* ... and back to (0, 2). */
        copy = (CUDA_MEMCPY2D){.srcXInBytes = 7,
                               .srcY = 4,
                               .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = device,
                               .srcPitch = 100,
                               .dstY = 2,
                               .dstMemoryType = CU_MEMORYTYPE_HOST,
                               .dstHost = out,
                               .dstPitch = 16,
                               .WidthInBytes = 5,
                               .Height = 3};
        memset(out, 0xee, sizeof(out));
        memset(expected, 0xee, sizeof(expected));
        for (y = 0; y < 3; y++)
                memcpy(&expected[2 + y][0], &in[1 + y][2], 5);
        OK(cuda->memcpy_2d_async(&copy, stream));
        OK(cuda->stream_synchronize(stream));
        CU_ASSERT_EQUAL(memcmp(out, expected, sizeof(out)), 0);
        /* Nothing beside the rectangle was written on the device. */
        OK(cuda->memcpy_dtoh(&out[0][0], device + 4 * 100 + 7 - 1, 7));
        CU_ASSERT_EQUAL(out[0][0], 0);
        CU_ASSERT_EQUAL(out[0][1], in[1][2]);
        CU_ASSERT_EQUAL(out[0][6], 0);

        copy.srcPitch = 11; /* shorter than x + width */
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->memcpy_2d(&copy));
        copy.srcPitch = 100;
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuda->memcpy_2d(&copy));
        copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.Height = SIZE_MAX / 50; /* the rows' span wraps around */
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->memcpy_2d(&copy));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->memcpy_2d(NULL));
        copy.Height = 0;
        OK(cuda->memcpy_2d(&copy));
        OK(cuda->stream_destroy(stream));
        sim_test_unmap(device, GRANULE);
}

static void test_fills(void)
{
        CUdeviceptr device = sim_test_map(GRANULE, 1);
        uint32_t *view = cuda->host_view(device, GRANULE);
        CUstream stream;

        OK(cuda->stream_create(&stream, 0));
        OK(cuda->memset_d8(device, 0x5a, 8));
        OK(cuda->memset_d32(device + 8, 0x01020304, 2));
        CU_ASSERT_EQUAL(view[1], 0x5a5a5a5a);
        CU_ASSERT_EQUAL(view[2], 0x01020304);
        CU_ASSERT_EQUAL(view[3], 0x01020304);
        CU_ASSERT_EQUAL(view[4], 0xffffffff);
        OK(cuda->memset_d32_async(device, 7, GRANULE / 4, stream));
        OK(cuda->memset_d8_async(device + GRANULE - 1, 9, 1, stream));
        OK(cuda->stream_synchronize(stream));
        CU_ASSERT_EQUAL(view[0], 7);
        CU_ASSERT_EQUAL(view[GRANULE / 4 - 1], 0x09000007);
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->memset_d32(device + 2, 7, 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->memset_d32(device, 7, SIZE_MAX / 2));
        OK(cuda->memset_d8(device, 1, 0));
        OK(cuda->stream_destroy(stream));
        sim_test_unmap(device, GRANULE);
}

static void test_proc_address(void)
{
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        void *function = NULL, *expected;

        OK(cuda->get_proc_address("cuMemAlloc", &function, 12000, 0, &status));
        memcpy(&expected, &cuda->mem_alloc, sizeof(expected));
        CU_ASSERT_PTR_EQUAL(function, expected);
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
        OK(cuda->get_proc_address("cuMemCreate", &function, 12000, 0, NULL));
        memcpy(&expected, &cuda->mem_create, sizeof(expected));
        CU_ASSERT_PTR_EQUAL(function, expected);
        OK(cuda->get_proc_address("cuGetProcAddress", &function, 12000, 0, NULL));
        memcpy(&expected, &cuda->get_proc_address, sizeof(expected));
        CU_ASSERT_PTR_EQUAL(function, expected);
        OK(cuda->get_proc_address("cuNoSuchThing", &function, 12000, 0, &status));
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        CU_ASSERT_PTR_NULL(function);
        EXPECT(CUDA_ERROR_NOT_FOUND, cuda->get_proc_address("printf", &function, 12000, 0, NULL));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->get_proc_address(NULL, &function, 12000, 0, NULL));
}

/* Versions: what did not exist yet, what this driver does not know, and what there is none of. */
static void test_proc_address_versions(void)
{
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        const uint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
        void *function = &status;
        int version;

        OK(cuda->get_proc_address("cuMemCreate", &function, 10010, 0, &status));
        CU_ASSERT_PTR_NULL(function);
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        OK(cuda->get_proc_address("cuMemCreate", &function, 10020, 0, &status));
        CU_ASSERT_PTR_NOT_NULL(function);
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
        OK(cuda->get_proc_address("cuStreamGetCtx", &function, 9010, 0, &status));
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        OK(cuda->get_proc_address("cuCtxCreate", &function, 2000, 0, &status));
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        OK(cuda->get_proc_address("cuInit", &function, 2000, 0, &status));
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
        OK(cuda->driver_get_version(&version));
        OK(cuda->get_proc_address("cuInit", &function, version, 0, &status));
        EXPECT(CUDA_ERROR_INVALID_VALUE,
               cuda->get_proc_address("cuInit", &function, version + 10, 0, &status));

        OK(cuda->get_proc_address("cuMemCreate", &function, 12000, per_thread, &status));
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
        OK(cuda->get_proc_address("cuMemcpyAsync", &function, 12000, per_thread, &status));
        CU_ASSERT_EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        CU_ASSERT_PTR_NULL(function);
}

static void test_device_code(void)
{
        static const char elf[64] = "\177ELF\2\1\1", ptx[] = ".version 7.0\n.target sm_80\n",
                          garbage[] = "garbage";
        CUfunction function = (CUfunction)(uintptr_t)0x1000;
        CUmodule module = (CUmodule)(uintptr_t)0x1000;

        EXPECT(CUDA_ERROR_NO_BINARY_FOR_GPU, cuda->module_load_data(&module, elf));
        EXPECT(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, cuda->module_load_data(&module, ptx));
        EXPECT(CUDA_ERROR_INVALID_IMAGE, cuda->module_load_data(&module, garbage));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->module_load_data(&module, NULL));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuda->module_load_data(NULL, elf));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->module_get_function(&function, module, "kernel"));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->module_unload(module));
        EXPECT(CUDA_ERROR_INVALID_HANDLE,
               cuda->launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        CU_ASSERT_EQUAL((uintptr_t)module, 0x1000);
}

int main(void)
{
        CU_pSuite suite;

        sim_test_environment(directory, "16M", "64K");
        sim_test_start();
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("simulated memory", NULL, NULL);
        CU_add_test(suite, "the device", test_device);
        CU_add_test(suite, "contexts", test_contexts);
        CU_add_test(suite, "the end of a context", test_context_end);
        CU_add_test(suite, "alloc and free", test_alloc);
        CU_add_test(suite, "pinned host memory", test_pinned);
        CU_add_test(suite, "pointer attributes", test_pointer_attributes);
        CU_add_test(suite, "copies", test_copies);
        CU_add_test(suite, "2-D copies", test_copies_2d);
        CU_add_test(suite, "fills", test_fills);
        CU_add_test(suite, "symbols by name", test_proc_address);
        CU_add_test(suite, "symbols by version", test_proc_address_versions);
        CU_add_test(suite, "device code", test_device_code);
        return sim_test_finish(directory);
}
