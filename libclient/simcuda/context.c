/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/context.h"

#include <string.h>

#include "libclient/simcuda/control.h"
#include "libclient/simcuda/fault.h"
#include "libclient/simcuda/stream.h"

#define CONTEXTS_MAX 64 /* the first SIM_DEVICES_MAX are the primary contexts */
#define STACK_MAX    64

static struct context contexts[CONTEXTS_MAX];
static pthread_cond_t ended =
        PTHREAD_COND_INITIALIZER; /* work lock: some context's `ending` is over */

/* The contexts of this thread, innermost last; handles, so that a destroyed one is noticed. */
static _Thread_local struct {
        CUcontext handle[STACK_MAX];
        unsigned int depth;
} current;
static _Thread_local bool in_host_function;

CUcontext context_handle(const struct context *context)
{
        uint64_t index = (uint64_t)(context - contexts);
        uint64_t value = ((uint64_t)SIM_HANDLE_CONTEXT << 40) |
                         ((uint64_t)context->generation << 12) | (index << 4);

        return (CUcontext)(uintptr_t)value;
}

/* Work lock held. NULL for handles of no living context. */
static struct context *find(CUcontext handle)
{
        struct context *context = &contexts[((uintptr_t)handle >> 4) & 0xff];

        if (!handle || context >= &contexts[CONTEXTS_MAX] || !context->alive ||
            context_handle(context) != handle)
                return NULL;
        return context;
}

bool context_in_host_function(bool on)
{
        bool before = in_host_function;

        in_host_function = on;
        return before;
}

CUresult sim_enter(void)
{
        switch (atomic_load_explicit(&sim.state, memory_order_acquire)) {
        case SIM_READY:
                return in_host_function ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
        case SIM_CLOSED:
                return CUDA_ERROR_DEINITIALIZED;
        default:
                return CUDA_ERROR_NOT_INITIALIZED;
        }
}

struct context *context_current(void)
{
        struct context *context = NULL;

        if (current.depth > 0) {
                pthread_mutex_lock(&sim.work_lock);
                context = find(current.handle[current.depth - 1]);
                pthread_mutex_unlock(&sim.work_lock);
        }
        return context;
}

CUresult context_enter(struct context **out)
{
        CUresult result = sim_enter();

        *out = NULL;
        if (result != CUDA_SUCCESS)
                return result;
        if (current.depth == 0 || !current.handle[current.depth - 1])
                return CUDA_ERROR_INVALID_CONTEXT;
        *out = context_current();
        if (!*out)
                return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        return (CUresult)atomic_load(&(*out)->error);
}

CUresult context_sticky(void)
{
        struct context *context = context_current();
        uint32_t i;

        if (context)
                return (CUresult)atomic_load(&context->error);
        for (i = 0; i < SIM_DEVICES_MAX; i++) {
                int error = atomic_load(&contexts[i].error);

                if (error != CUDA_SUCCESS && atomic_load(&contexts[i].alive))
                        return (CUresult)error;
        }
        return CUDA_SUCCESS;
}

void context_poison(struct context *context, CUresult error)
{
        int none = CUDA_SUCCESS;

        atomic_compare_exchange_strong(&context->error, &none, (int)error);
}

void context_poison_all(CUresult error)
{
        uint32_t i;

        for (i = 0; i < CONTEXTS_MAX; i++)
                if (atomic_load(&contexts[i].alive))
                        context_poison(&contexts[i], error);
}

void context_poison_current(CUresult error)
{
        struct context *context = context_current();

        if (context)
                context_poison(context, error);
        else
                context_poison_all(error);
}

void contexts_lose_devices(uint32_t lost)
{
        uint32_t i;

        pthread_mutex_lock(&sim.work_lock);
        for (i = 0; i < CONTEXTS_MAX; i++)
                if (contexts[i].alive && (lost & (UINT32_C(1) << contexts[i].device)))
                        context_poison(&contexts[i], control_lost_error(contexts[i].device));
        pthread_mutex_unlock(&sim.work_lock);
}

/* Work lock held. */
static CUresult start(struct context *context, int device, bool primary)
{
        CUresult result = control_lost_error(device);

        if (result != CUDA_SUCCESS)
                return sim_fail(result, "device %d is lost", device);
        context->device = device;
        context->primary = primary;
        context->generation++;
        atomic_store(&context->error, CUDA_SUCCESS);
        result = stream_new_null(context);
        context->alive = result == CUDA_SUCCESS;
        return result;
}

/* Without locks, `ending` set: lets queued work finish, then frees what the context owned. */
static void finish(struct context *context)
{
        bool poisoned = atomic_load(&context->error) != CUDA_SUCCESS;

        streams_of_context_end(context);
        memory_free_of_context(context);
        if (poisoned)
                fault_clear();
        pthread_mutex_lock(&sim.work_lock);
        atomic_store(&context->error, CUDA_SUCCESS);
        context->ending = false;
        pthread_cond_broadcast(&ended);
        pthread_mutex_unlock(&sim.work_lock);
}

SIM_API(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device), (out, device))
{
        struct context *context;
        CUresult result = CUDA_SUCCESS;

        SIM_ENTER();
        if (!out)
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        context = &contexts[device];
        pthread_mutex_lock(&sim.work_lock);
        while (context->ending)
                pthread_cond_wait(&ended, &sim.work_lock);
        if (!context->alive)
                result = start(context, device, true);
        if (result == CUDA_SUCCESS) {
                context->references++;
                *out = context_handle(context);
        }
        pthread_mutex_unlock(&sim.work_lock);
        return result;
}

static CUresult primary_end(CUdevice device, bool reset)
{
        struct context *context;
        bool last = false;

        SIM_ENTER();
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        context = &contexts[device];
        pthread_mutex_lock(&sim.work_lock);
        if (!context->alive) {
                pthread_mutex_unlock(&sim.work_lock);
                return reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
        }
        if (reset || --context->references == 0) {
                context->references = 0;
                context->alive = false;
                context->ending = true;
                last = true;
        }
        pthread_mutex_unlock(&sim.work_lock);
        if (last)
                finish(context);
        return CUDA_SUCCESS;
}

SIM_API(cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device))
{
        return primary_end(device, false);
}
SIM_ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

SIM_API(cuDevicePrimaryCtxReset_v2, (CUdevice device), (device))
{
        return primary_end(device, true);
}
SIM_ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

SIM_API(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags), (device, flags))
{
        SIM_ENTER();
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        return flags & ~(unsigned int)CU_CTX_FLAGS_MASK ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
SIM_ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

SIM_API(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active),
        (device, flags, active))
{
        SIM_ENTER();
        if (!flags || !active)
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        pthread_mutex_lock(&sim.work_lock);
        *flags = CU_CTX_SCHED_AUTO;
        *active = contexts[device].alive;
        pthread_mutex_unlock(&sim.work_lock);
        return CUDA_SUCCESS;
}

static CUresult push(CUcontext handle)
{
        if (current.depth == STACK_MAX)
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY, "%d contexts are on this thread's stack",
                                STACK_MAX);
        current.handle[current.depth++] = handle;
        return CUDA_SUCCESS;
}

SIM_API(cuCtxCreate_v2, (CUcontext * out, unsigned int flags, CUdevice device),
        (out, flags, device))
{
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
        uint32_t i;

        SIM_ENTER();
        if (!out || (flags & ~(unsigned int)CU_CTX_FLAGS_MASK))
                return CUDA_ERROR_INVALID_VALUE;
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        pthread_mutex_lock(&sim.work_lock);
        for (i = SIM_DEVICES_MAX; i < CONTEXTS_MAX; i++) {
                if (contexts[i].alive || contexts[i].ending)
                        continue;
                result = start(&contexts[i], device, false);
                if (result == CUDA_SUCCESS)
                        *out = context_handle(&contexts[i]);
                break;
        }
        pthread_mutex_unlock(&sim.work_lock);
        return result == CUDA_SUCCESS ? push(*out) : result;
}
SIM_ALIAS(cuCtxCreate, cuCtxCreate_v2);

SIM_API(cuCtxDestroy_v2, (CUcontext handle), (handle))
{
        struct context *context;

        SIM_ENTER();
        pthread_mutex_lock(&sim.work_lock);
        context = find(handle);
        if (!context || context->primary) {
                pthread_mutex_unlock(&sim.work_lock);
                return CUDA_ERROR_INVALID_CONTEXT;
        }
        context->alive = false;
        context->ending = true;
        pthread_mutex_unlock(&sim.work_lock);
        finish(context);
        if (current.depth > 0 && current.handle[current.depth - 1] == handle)
                current.depth--;
        return CUDA_SUCCESS;
}
SIM_ALIAS(cuCtxDestroy, cuCtxDestroy_v2);

static bool is_alive(CUcontext handle)
{
        bool alive;

        pthread_mutex_lock(&sim.work_lock);
        alive = find(handle) != NULL;
        pthread_mutex_unlock(&sim.work_lock);
        return alive;
}

SIM_API(cuCtxPushCurrent_v2, (CUcontext handle), (handle))
{
        SIM_ENTER();
        if (!is_alive(handle))
                return CUDA_ERROR_INVALID_CONTEXT;
        return push(handle);
}
SIM_ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);

SIM_API(cuCtxPopCurrent_v2, (CUcontext * out), (out))
{
        SIM_ENTER();
        if (current.depth == 0)
                return CUDA_ERROR_INVALID_CONTEXT;
        current.depth--;
        if (out)
                *out = current.handle[current.depth];
        return CUDA_SUCCESS;
}
SIM_ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);

SIM_API(cuCtxSetCurrent, (CUcontext handle), (handle))
{
        SIM_ENTER();
        if (handle && !is_alive(handle))
                return CUDA_ERROR_INVALID_CONTEXT;
        if (current.depth > 0)
                current.depth--;
        return handle ? push(handle) : CUDA_SUCCESS;
}

SIM_API(cuCtxGetCurrent, (CUcontext * out), (out))
{
        SIM_ENTER();
        if (!out)
                return CUDA_ERROR_INVALID_VALUE;
        *out = current.depth > 0 ? current.handle[current.depth - 1] : NULL;
        return CUDA_SUCCESS;
}

SIM_API(cuCtxGetDevice, (CUdevice * device), (device))
{
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!device)
                return CUDA_ERROR_INVALID_VALUE;
        *device = context->device;
        return CUDA_SUCCESS;
}

SIM_API(cuCtxGetFlags, (unsigned int *flags), (flags))
{
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!flags)
                return CUDA_ERROR_INVALID_VALUE;
        *flags = CU_CTX_SCHED_AUTO;
        return CUDA_SUCCESS;
}

SIM_API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), (least, greatest))
{
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        /* One priority: a pair of zeroes says that priorities are not supported. */
        if (least)
                *least = 0;
        if (greatest)
                *greatest = 0;
        return CUDA_SUCCESS;
}

SIM_API(cuCtxSynchronize, (void), ())
{
        struct context *context;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        return streams_of_context_synchronize(context);
}
