/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

SIM_API(cuGetProcAddress_v2, (const char *symbol, void **function, int cuda_version, uint64_t flags,
                              CUdriverProcAddressQueryResult *status));
SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version,
                                     uint64_t flags);

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

/*
 * Symbols are asked for by their plain name. There is one version of each entry here: the one with
 * the highest suffix, exported under both names. cuGetProcAddress is the exception: its form
 * changed in 12.0.
 */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
        char name[96];
        void *library, *found = NULL;

        if (status)
                *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        if (!symbol || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
                return CUDA_ERROR_INVALID_VALUE;
        *function = NULL;
        library = self();
        if (library && strncmp(symbol, "cu", 2) == 0) {
                if (strcmp(symbol, "cuGetProcAddress") != 0 || cuda_version >= 12000) {
                        snprintf(name, sizeof(name), "%.80s_v2", symbol);
                        found = dlsym(library, name);
                }
                if (!found)
                        found = dlsym(library, symbol);
        }
        if (!found)
                return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
        if (status)
                *status = CU_GET_PROC_ADDRESS_SUCCESS;
        *function = found;
        return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, uint64_t flags)
{
        return cuGetProcAddress_v2(symbol, function, cuda_version, flags, NULL);
}
