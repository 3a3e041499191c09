/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SIM_API_PLAIN(cuGetProcAddress_v2, (const char *symbol, void **function, int cuda_version,
                                    uint64_t flags, CUdriverProcAddressQueryResult *status));
SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version,
                                     uint64_t flags);

/*
 * The CUDA version in which an entry appeared, with the signature it has here; sorted by name. Who
 * asks for an older one means a signature that is not here. Entries not listed have been there from
 * the beginning, as far as anybody still asks.
 */
static const struct {
        const char *name;
        int version;
} introduced[] = {
        {"cuCtxCreate", 3020},
        {"cuCtxDestroy", 4000},
        {"cuCtxGetCurrent", 4000},
        {"cuCtxGetFlags", 7000},
        {"cuCtxGetStreamPriorityRange", 5050},
        {"cuCtxPopCurrent", 4000},
        {"cuCtxPushCurrent", 4000},
        {"cuCtxSetCurrent", 4000},
        {"cuDeviceGetUuid", 9020},
        {"cuDevicePrimaryCtxGetState", 7000},
        {"cuDevicePrimaryCtxRelease", 11000},
        {"cuDevicePrimaryCtxReset", 11000},
        {"cuDevicePrimaryCtxRetain", 7000},
        {"cuDevicePrimaryCtxSetFlags", 11000},
        {"cuDeviceTotalMem", 3020},
        {"cuEventDestroy", 4000},
        {"cuEventRecordWithFlags", 11010},
        {"cuGetErrorName", 6000},
        {"cuGetErrorString", 6000},
        {"cuGetProcAddress", 11030},
        {"cuLaunchHostFunc", 10000},
        {"cuLaunchKernel", 4000},
        {"cuMemAddressFree", 10020},
        {"cuMemAddressReserve", 10020},
        {"cuMemAlloc", 3020},
        {"cuMemAllocHost", 3020},
        {"cuMemCreate", 10020},
        {"cuMemExportToShareableHandle", 10020},
        {"cuMemFree", 3020},
        {"cuMemGetAccess", 10020},
        {"cuMemGetAddressRange", 3020},
        {"cuMemGetAllocationGranularity", 10020},
        {"cuMemGetAllocationPropertiesFromHandle", 10020},
        {"cuMemGetInfo", 3020},
        {"cuMemHostGetDevicePointer", 3020},
        {"cuMemHostRegister", 6050},
        {"cuMemHostUnregister", 4000},
        {"cuMemImportFromShareableHandle", 10020},
        {"cuMemMap", 10020},
        {"cuMemRelease", 10020},
        {"cuMemRetainAllocationHandle", 11000},
        {"cuMemSetAccess", 10020},
        {"cuMemUnmap", 10020},
        {"cuMemcpy", 4000},
        {"cuMemcpy2D", 3020},
        {"cuMemcpy2DAsync", 3020},
        {"cuMemcpyAsync", 4000},
        {"cuMemcpyDtoD", 3020},
        {"cuMemcpyDtoDAsync", 3020},
        {"cuMemcpyDtoH", 3020},
        {"cuMemcpyDtoHAsync", 3020},
        {"cuMemcpyHtoD", 3020},
        {"cuMemcpyHtoDAsync", 3020},
        {"cuModuleGetGlobal", 3020},
        {"cuPointerGetAttribute", 4000},
        {"cuStreamCreateWithPriority", 5050},
        {"cuStreamDestroy", 4000},
        {"cuStreamGetCtx", 9020},
};

static int compare(const void *name, const void *entry)
{
        return strcmp(name, *(const char *const *)entry);
}

static int version_of(const char *symbol)
{
        const char *const *entry =
                bsearch(symbol, introduced, sizeof(introduced) / sizeof(introduced[0]),
                        sizeof(introduced[0]), compare);
        size_t index;

        if (!entry)
                return 0;
        index = (size_t)((const char *)entry - (const char *)introduced) / sizeof(introduced[0]);
        return introduced[index].version;
}

/*
 * Entries whose NULL stream means another stream with per-thread default streams. The variants that
 * mean it so are not here (CU_STREAM_PER_THREAD as an argument is).
 */
static bool depends_on_default_stream(const char *symbol)
{
        static const char *const names[] = {
                "cuMemcpy",      "cuMemset",          "cuStreamSynchronize",
                "cuStreamQuery", "cuStreamWaitEvent", "cuStreamGet",
                "cuEventRecord", "cuLaunch",          "cuStreamAddCallback"};
        size_t i;

        for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                if (strncmp(symbol, names[i], strlen(names[i])) == 0)
                        return true;
        return false;
}

/* This library, wherever it was loaded from; it stays loaded (its code runs here). */
static void *self(void)
{
        Dl_info information;
        void *library;

        if (dladdr((void *)&cuGetProcAddress_v2, &information) == 0)
                return NULL;
        library = dlopen(information.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        if (library)
                dlclose(library);
        return library;
}

static void *look_up(const char *symbol, int cuda_version)
{
        void *library = self(), *found = NULL;
        char name[96];

        if (!library || strncmp(symbol, "cu", 2) != 0)
                return NULL;
        if (strcmp(symbol, "cuGetProcAddress") != 0 || cuda_version >= 12000) {
                snprintf(name, sizeof(name), "%.80s_v2", symbol);
                found = dlsym(library, name);
        }
        return found ? found : dlsym(library, symbol);
}

/*
 * Symbols are asked for by their plain name. There is one version of each entry here: the one with
 * the highest suffix, exported under both names. cuGetProcAddress is the exception: its form
 * changed in 12.0.
 */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
        CUdriverProcAddressQueryResult answer = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        void *found;

        if (status)
                *status = answer;
        if (!symbol || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
                return CUDA_ERROR_INVALID_VALUE;
        *function = NULL;
        if (cuda_version > SIM_DRIVER_VERSION)
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "%s of CUDA %d was asked for, this driver is of %d", symbol,
                                cuda_version, SIM_DRIVER_VERSION);
        found = look_up(symbol, cuda_version);
        if (found && flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM &&
            depends_on_default_stream(symbol)) {
                sim_explain("the simulator has no %s for per-thread default streams", symbol);
                found = NULL;
        } else if (found && version_of(symbol) > cuda_version) {
                answer = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
                found = NULL;
        } else if (found) {
                answer = CU_GET_PROC_ADDRESS_SUCCESS;
        }
        if (status)
                *status = answer;
        *function = found;
        return found || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, uint64_t flags)
{
        return cuGetProcAddress_v2(symbol, function, cuda_version, flags, NULL);
}
