/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and the current one. */
#include <pthread.h>

#include "tests/conformance/conformance.h"

static void primary_is_one(struct run *run)
{
        CUcontext again = NULL;

        OK("retain again", run->cuda->device_primary_ctx_retain(&again, run->device));
        CHECK("the same context", again == run->context);
        OK("release", run->cuda->device_primary_ctx_release(run->device));
        OK("still alive", run->cuda->ctx_synchronize());
        EXPECT("of no device", run->cuda->device_primary_ctx_retain(&again, 4711),
               CUDA_ERROR_INVALID_DEVICE);
        EXPECT("nowhere", run->cuda->device_primary_ctx_retain(NULL, run->device),
               CUDA_ERROR_INVALID_VALUE);
}

static void last_release(struct run *run)
{
        CUdeviceptr pointer;

        OK("release", run->cuda->device_primary_ctx_release(run->device));
        EXPECT("the context is gone", run->cuda->mem_alloc(&pointer, 1),
               CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT);
        EXPECT("one release too many", run->cuda->device_primary_ctx_release(run->device),
               CUDA_ERROR_INVALID_CONTEXT);
        OK("retain", run->cuda->device_primary_ctx_retain(&run->context, run->device));
        OK("set current", run->cuda->ctx_set_current(run->context));
        OK("alive", run->cuda->ctx_synchronize());
}

static void current_stack(struct run *run)
{
        CUcontext context = NULL;
        CUdevice device = -1;

        OK("get", run->cuda->ctx_get_current(&context));
        CHECK("the primary context", context == run->context);
        OK("device", run->cuda->ctx_get_device(&device));
        CHECK("its device", device == run->device);
        OK("push", run->cuda->ctx_push_current(run->context));
        OK("pop", run->cuda->ctx_pop_current(&context));
        CHECK("what was pushed", context == run->context);
        OK("still current", run->cuda->ctx_get_current(&context));
        CHECK("the one below", context == run->context);
        OK("none", run->cuda->ctx_set_current(NULL));
        OK("get none", run->cuda->ctx_get_current(&context));
        CHECK("NULL", context == NULL);
        EXPECT("pop from nothing", run->cuda->ctx_pop_current(&context),
               CUDA_ERROR_INVALID_CONTEXT);
        EXPECT("push nothing", run->cuda->ctx_push_current(NULL), CUDA_ERROR_INVALID_CONTEXT,
               CUDA_ERROR_INVALID_VALUE);
}

static void without_context(struct run *run)
{
        CUdeviceptr pointer;
        CUstream stream;
        CUevent event;
        size_t bytes;

        NEED(run->cuda->ctx_set_current(NULL));
        EXPECT("cuMemAlloc", run->cuda->mem_alloc(&pointer, 1), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT("cuMemGetInfo", run->cuda->mem_get_info(&bytes, &bytes), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT("cuStreamCreate", run->cuda->stream_create(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT("cuEventCreate", run->cuda->event_create(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT("cuCtxSynchronize", run->cuda->ctx_synchronize(), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT("cuCtxGetDevice", run->cuda->ctx_get_device(&run->device),
               CUDA_ERROR_INVALID_CONTEXT);
}

/* The virtual memory calls need no current context. */
static void virtual_memory_without_context(struct run *run)
{
        CUmemAccessDesc access = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CUmemAllocationProp properties = device_memory(run);
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;

        NEED(run->cuda->ctx_set_current(NULL));
        OK("reserve", run->cuda->mem_address_reserve(&address, run->granule, 0, 0, 0));
        OK("create", run->cuda->mem_create(&handle, run->granule, &properties, 0));
        OK("map", run->cuda->mem_map(address, run->granule, 0, handle, 0));
        OK("set access", run->cuda->mem_set_access(address, run->granule, &access, 1));
        OK("unmap", run->cuda->mem_unmap(address, run->granule));
        OK("release", run->cuda->mem_release(handle));
        OK("free", run->cuda->mem_address_free(address, run->granule));
}

static void *current_of_thread(void *argument)
{
        struct run *run = argument;
        CUcontext context = run->context;

        return run->cuda->ctx_get_current(&context) == CUDA_SUCCESS && context == NULL ? NULL : run;
}

/* The current context is the thread's. */
static void per_thread(struct run *run)
{
        pthread_t thread;
        void *wrong = run;

        NEED_TRUE(pthread_create(&thread, NULL, current_of_thread, run) == 0);
        pthread_join(thread, &wrong);
        CHECK("a new thread has none", wrong == NULL);
}

/* cuDevicePrimaryCtxReset frees what cuMemAlloc gave; virtual memory belongs to the process. */
static void reset(struct run *run)
{
        CUdeviceptr pointer, address = map_granules(run, 1);
        unsigned char byte = 77;
        size_t before;

        NEED_TRUE(address != 0);
        NEED(run->cuda->memset_d8(address, 5, run->granule));
        NEED(run->cuda->mem_alloc(&pointer, 8 * run->granule));
        before = free_bytes(run);
        OK("reset", run->cuda->device_primary_ctx_reset(run->device));
        NEED(run->cuda->device_primary_ctx_retain(&run->context, run->device));
        NEED(run->cuda->ctx_set_current(run->context));
        CHECK("memory of cuMemAlloc came back", free_bytes(run) >= before + 8 * run->granule);
        EXPECT("mapped memory is still there", run->cuda->memcpy_dtoh(&byte, address, 1),
               CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_ILLEGAL_ADDRESS);
        OBSERVE("with its contents", byte == 5);
}

const struct test tests_of_contexts[] = {
        {"context.primary_is_one", primary_is_one},
        {"context.last_release", last_release},
        {"context.current_stack", current_stack},
        {"context.without", without_context},
        {"context.virtual_memory_without", virtual_memory_without_context},
        {"context.per_thread", per_thread},
        {"context.reset", reset},
        {NULL, NULL},
};
