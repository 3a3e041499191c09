/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the host in stream order; CPU kernels are such. CUDA calls inside them are refused.
 */
#include <stdlib.h>

#include "libclient/simcuda/stream.h"

struct host_function {
        struct operation operation;
        CUhostFn function;
        void *user_data;
};

static CUresult run_host_function(struct context *context, struct operation *operation)
{
        struct host_function *host = (struct host_function *)operation;
        bool before = context_in_host_function(true);

        (void)context;
        host->function(host->user_data);
        context_in_host_function(before);
        return CUDA_SUCCESS;
}

SIM_API(cuLaunchHostFunc, (CUstream handle, CUhostFn function, void *user_data),
        (handle, function, user_data))
{
        struct host_function *host;
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!function)
                return CUDA_ERROR_INVALID_VALUE;
        host = calloc(1, sizeof(*host));
        if (!host)
                return CUDA_ERROR_OUT_OF_MEMORY;
        host->operation.run = run_host_function;
        host->function = function;
        host->user_data = user_data;
        return stream_submit(context, handle, &host->operation);
}
