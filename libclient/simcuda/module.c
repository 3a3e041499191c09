/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device code. There is nothing here that could run it, so these calls answer as a driver does that
 * finds no code for its device in what it is given: arguments are checked, images are recognised,
 * and no module, hence no function, ever comes to be.
 */
#include "libclient/simcuda/context.h"

#include <string.h>

#define MAGIC_FATBIN         UINT32_C(0xba55ed50)
#define MAGIC_FATBIN_WRAPPER UINT32_C(0x466243b1)

static CUresult load(CUmodule *module, const void *image)
{
        struct context *context;
        uint32_t magic;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!module || !image)
                return CUDA_ERROR_INVALID_VALUE;
        memcpy(&magic, image, sizeof(magic));
        if (memcmp(image, "\177ELF", 4) == 0 || magic == MAGIC_FATBIN ||
            magic == MAGIC_FATBIN_WRAPPER)
                return sim_fail(CUDA_ERROR_NO_BINARY_FOR_GPU,
                                "the simulator runs no device code: kernels run on the CPU");
        /* PTX is text. */
        if (memcmp(image, ".ver", 4) == 0 || memcmp(image, "//", 2) == 0)
                return sim_fail(CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
                                "the simulator compiles no PTX: kernels run on the CPU");
        return CUDA_ERROR_INVALID_IMAGE;
}

SIM_API(cuModuleLoadData, (CUmodule * module, const void *image), (module, image))
{
        return load(module, image);
}

SIM_API(cuModuleLoadDataEx,
        (CUmodule * module, const void *image, unsigned int options, CUjit_option *names,
         void **values),
        (module, image, options, names, values))
{
        return options != 0 && (!names || !values) ? CUDA_ERROR_INVALID_VALUE : load(module, image);
}

SIM_API(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image))
{
        return load(module, image);
}

/* No handle of a module or function is valid. */
static CUresult no_such_handle(void)
{
        struct context *context;
        CUresult result = context_enter(&context);

        return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_HANDLE : result;
}

SIM_API(cuModuleUnload, (CUmodule module), (module))
{
        (void)module;
        return no_such_handle();
}

SIM_API(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
        (function, module, name))
{
        (void)module;
        return function && name ? no_such_handle() : CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuModuleGetGlobal_v2,
        (CUdeviceptr * address, size_t *bytes, CUmodule module, const char *name),
        (address, bytes, module, name))
{
        (void)module;
        return (address || bytes) && name ? no_such_handle() : CUDA_ERROR_INVALID_VALUE;
}
SIM_ALIAS(cuModuleGetGlobal, cuModuleGetGlobal_v2);

SIM_API(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function),
        (value, attribute, function))
{
        (void)attribute;
        (void)function;
        return value ? no_such_handle() : CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value),
        (function, attribute, value))
{
        (void)function;
        (void)attribute;
        (void)value;
        return no_such_handle();
}

SIM_API(cuLaunchKernel,
        (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
         unsigned int block_x, unsigned int block_y, unsigned int block_z,
         unsigned int shared_bytes, CUstream stream, void **parameters, void **extra),
        (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
         parameters, extra))
{
        (void)function;
        (void)grid_x;
        (void)grid_y;
        (void)grid_z;
        (void)block_x;
        (void)block_y;
        (void)block_z;
        (void)shared_bytes;
        (void)stream;
        (void)parameters;
        (void)extra;
        return no_such_handle();
}
