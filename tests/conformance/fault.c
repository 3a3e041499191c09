/* SPDX-License-Identifier: Apache-2.0 */
/* Accesses where there is no memory. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/conformance/conformance.h"

/* From the first stray access on, the context answers with its error, until it is reset. */
static void poisoned(struct run *run, CUresult first)
{
        const struct driver *cuda = run->cuda;
        CUdeviceptr pointer;
        CUstream stream;

        EXPECT("the stray access", first, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE);
        if (first == CUDA_ERROR_INVALID_VALUE)
                return; /* seen before it could do harm */
        EXPECT("cuCtxSynchronize", cuda->ctx_synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
        EXPECT("cuMemAlloc", cuda->mem_alloc(&pointer, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
        EXPECT("cuStreamCreate", cuda->stream_create(&stream, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
        EXPECT("reset", cuda->device_primary_ctx_reset(run->device), CUDA_SUCCESS,
               CUDA_ERROR_ILLEGAL_ADDRESS);
        EXPECT("retain", cuda->device_primary_ctx_retain(&run->context, run->device), CUDA_SUCCESS,
               CUDA_ERROR_ILLEGAL_ADDRESS);
        EXPECT("set current", cuda->ctx_set_current(run->context), CUDA_SUCCESS,
               CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_CONTEXT);
        EXPECT("usable again", cuda->ctx_synchronize(), CUDA_SUCCESS, CUDA_ERROR_ILLEGAL_ADDRESS,
               CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static CUresult fill(struct run *run, CUdeviceptr address, size_t bytes)
{
        CUresult result = run->cuda->memset_d8(address, 1, bytes);

        return result == CUDA_SUCCESS ? run->cuda->ctx_synchronize() : result;
}

static void reserved_only(struct run *run)
{
        CUdeviceptr address;

        NEED(run->cuda->mem_address_reserve(&address, run->granule, 0, 0, 0));
        poisoned(run, fill(run, address, run->granule));
}

static void mapped_without_access(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run);
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;

        NEED(run->cuda->mem_create(&handle, run->granule, &properties, 0));
        NEED(run->cuda->mem_address_reserve(&address, run->granule, 0, 0, 0));
        NEED(run->cuda->mem_map(address, run->granule, 0, handle, 0));
        poisoned(run, fill(run, address, run->granule));
}

static void after_unmap(struct run *run)
{
        CUdeviceptr address = map_granules(run, 2);

        NEED_TRUE(address != 0);
        OK("before", fill(run, address, 2 * run->granule));
        NEED(run->cuda->mem_unmap(address, run->granule));
        OK("the neighbour", fill(run, address + run->granule, run->granule));
        poisoned(run, fill(run, address, run->granule));
}

/* Read-only is kept where the driver grants it at all. */
static void read_only(struct run *run)
{
        CUmemAccessDesc access = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READ);
        CUdeviceptr address = map_granules(run, 1);
        CUresult result;
        char byte;

        NEED_TRUE(address != 0);
        result = run->cuda->mem_set_access(address, run->granule, &access, 1);
        EXPECT("set", result, CUDA_SUCCESS, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE);
        if (result != CUDA_SUCCESS)
                return;
        OK("read", run->cuda->memcpy_dtoh(&byte, address, 1));
        poisoned(run, fill(run, address, run->granule));
}

/* Device addresses are not the host's. */
static void host_access(struct run *run)
{
        struct peer peer;
        int status;

        NEED_TRUE(peer_start(&peer, "touch"));
        status = peer_end(&peer, 0);
        CHECK("who touches one dies",
              WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
}

const struct test tests_of_faults[] = {
        {"fault.reserved_only", reserved_only},
        {"fault.mapped_without_access", mapped_without_access},
        {"fault.after_unmap", after_unmap},
        {"fault.read_only", read_only},
        {"fault.host_access", host_access},
        {NULL, NULL},
};
