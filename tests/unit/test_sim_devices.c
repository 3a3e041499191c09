/* SPDX-License-Identifier: Apache-2.0 */
/* A machine with two simulated devices: capacity, access and errors of one are not the other's. */
#include "tests/support/sim_test.h"

#define GRANULE (64 * KIB)
#define MEMORY  (1 * MIB)

static char directory[64];
static CUcontext contexts[2];

static size_t free_bytes(int device)
{
        size_t unused = 0, total = 0;

        OK(cuda->ctx_set_current(contexts[device]));
        OK(cuda->mem_get_info(&unused, &total));
        CU_ASSERT_EQUAL(total, MEMORY);
        return unused;
}

static void test_identity(void)
{
        CUuuid first, second;
        int count = 0;

        OK(cuda->device_get_count(&count));
        CU_ASSERT_EQUAL(count, 2);
        OK(cuda->device_get_uuid(&first, 0));
        OK(cuda->device_get_uuid(&second, 1));
        CU_ASSERT_NOT_EQUAL(memcmp(&first, &second, sizeof(first)), 0);
        CU_ASSERT_PTR_NOT_EQUAL(contexts[0], contexts[1]);
}

static void test_capacity(void)
{
        CUmemAllocationProp properties = sim_test_properties(), seen;
        CUmemGenericAllocationHandle handle, other;

        properties.location.id = 1;
        OK(cuda->mem_create(&handle, MEMORY, &properties, 0));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuda->mem_create(&other, GRANULE, &properties, 0));
        CU_ASSERT_EQUAL(free_bytes(0), MEMORY);
        CU_ASSERT_EQUAL(free_bytes(1), 0);
        OK(cuda->mem_get_allocation_properties(&seen, handle));
        CU_ASSERT_EQUAL(seen.location.id, 1);
        OK(cuda->mem_release(handle));
        CU_ASSERT_EQUAL(free_bytes(1), MEMORY);
        properties.location.id = 2;
        EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda->mem_create(&handle, GRANULE, &properties, 0));
}

/* Memory of device 0 is device 1's only where access says so; the error is the one's who had none.
 */
static void test_access(void)
{
        CUmemAccessDesc both[2] = {sim_test_read_write, sim_test_read_only};
        CUmemLocation one = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
        unsigned long long flags = 99;
        unsigned char byte = 7;
        CUdeviceptr va;

        OK(cuda->ctx_set_current(contexts[0]));
        va = sim_test_map(GRANULE, 1);
        OK(cuda->memcpy_htod(va, &byte, 1));
        OK(cuda->mem_get_access(&flags, &one, va));
        CU_ASSERT_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);

        both[1].location.id = 1;
        OK(cuda->mem_set_access(va, GRANULE, both, 2));
        OK(cuda->ctx_set_current(contexts[1]));
        byte = 0;
        OK(cuda->memcpy_dtoh(&byte, va, 1));
        CU_ASSERT_EQUAL(byte, 7);
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->memcpy_htod(va, &byte, 1));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->ctx_synchronize());

        OK(cuda->ctx_set_current(contexts[0]));
        OK(cuda->ctx_synchronize());
        OK(cuda->memcpy_htod(va, &byte, 1));
        sim_test_unmap(va, GRANULE);
        OK(cuda->device_primary_ctx_reset(1));
        OK(cuda->device_primary_ctx_retain(&contexts[1], 1));
        CU_ASSERT_EQUAL(free_bytes(1), MEMORY);
}

/* Streams and events belong to their context; waiting for an event of another one is allowed. */
static void test_contexts_do_not_mix(void)
{
        CUstream stream, other;
        CUevent event;

        OK(cuda->ctx_set_current(contexts[0]));
        OK(cuda->stream_create(&stream, 0));
        OK(cuda->event_create(&event, 0));
        OK(cuda->event_record(event, stream));
        OK(cuda->ctx_set_current(contexts[1]));
        OK(cuda->stream_create(&other, 0));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->stream_synchronize(stream));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->event_record(event, other));
        OK(cuda->stream_wait_event(other, event, 0));
        OK(cuda->stream_synchronize(other));
        OK(cuda->stream_destroy(other));
        OK(cuda->ctx_set_current(contexts[0]));
        OK(cuda->stream_destroy(stream));
        OK(cuda->event_destroy(event));
}

int main(void)
{
        CU_pSuite suite;

        sim_test_environment(directory, "1M", "64K");
        sim_test_set("GPUMEM_SIM_DEVICES", "2");
        sim_test_start();
        contexts[0] = sim_test_context;
        REQUIRE(cuda->device_primary_ctx_retain(&contexts[1], 1));
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("two simulated devices", NULL, NULL);
        CU_add_test(suite, "identity", test_identity);
        CU_add_test(suite, "capacity", test_capacity);
        CU_add_test(suite, "access", test_access);
        CU_add_test(suite, "contexts do not mix", test_contexts_do_not_mix);
        return sim_test_finish(directory);
}
