/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static _Thread_local char detail[512];

SIM_EXPORT const char *gpumem_sim_error_detail(void);

void sim_explain(const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(detail, sizeof(detail), format, arguments);
        va_end(arguments);
}

/* What went wrong last in this thread, where a CUresult cannot say it; empty when there is nothing
 * to add. */
const char *gpumem_sim_error_detail(void)
{
        return detail;
}

static const struct {
        CUresult result;
        const char *name, *text;
} errors[] = {
        {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
#define ERROR(name, text)                                                                          \
        {                                                                                          \
                name, #name, text                                                                  \
        }
        ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
        ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
        ERROR(CUDA_ERROR_NOT_INITIALIZED, "the driver is not initialised in this process"),
        ERROR(CUDA_ERROR_DEINITIALIZED, "the driver is shutting down"),
        ERROR(CUDA_ERROR_STUB_LIBRARY, "a stub library was loaded"),
        ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is busy or unavailable"),
        ERROR(CUDA_ERROR_NO_DEVICE, "there is no device"),
        ERROR(CUDA_ERROR_INVALID_DEVICE, "no such device"),
        ERROR(CUDA_ERROR_INVALID_IMAGE, "invalid device code image"),
        ERROR(CUDA_ERROR_INVALID_CONTEXT, "no valid context is current"),
        ERROR(CUDA_ERROR_MAP_FAILED, "mapping failed"),
        ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping failed"),
        ERROR(CUDA_ERROR_ALREADY_MAPPED, "already mapped"),
        ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no code for this device"),
        ERROR(CUDA_ERROR_NOT_MAPPED, "not mapped"),
        ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable memory error"),
        ERROR(CUDA_ERROR_INVALID_PTX, "invalid PTX"),
        ERROR(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "there is no compiler for PTX"),
        ERROR(CUDA_ERROR_CONTAINED, "a contained memory error ended the context"),
        ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
        ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "a shared object failed to initialise"),
        ERROR(CUDA_ERROR_OPERATING_SYSTEM, "a call of the operating system failed"),
        ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid handle"),
        ERROR(CUDA_ERROR_ILLEGAL_STATE, "illegal state for this call"),
        ERROR(CUDA_ERROR_NOT_FOUND, "not found"),
        ERROR(CUDA_ERROR_NOT_READY, "not finished yet"),
        ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal device address was accessed"),
        ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources for a launch"),
        ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "a kernel ran too long"),
        ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is active"),
        ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed"),
        ERROR(CUDA_ERROR_ASSERT, "a device assertion failed"),
        ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory is registered already"),
        ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory is not registered"),
        ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "device stack error"),
        ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "illegal device instruction"),
        ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned device address"),
        ERROR(CUDA_ERROR_INVALID_ADDRESS_SPACE, "wrong address space"),
        ERROR(CUDA_ERROR_INVALID_PC, "invalid program counter"),
        ERROR(CUDA_ERROR_LAUNCH_FAILED, "a kernel failed"),
        ERROR(CUDA_ERROR_NOT_PERMITTED, "not permitted here"),
        ERROR(CUDA_ERROR_NOT_SUPPORTED, "not supported"),
        ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "the system is not ready"),
        ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
              "this process and the running machine disagree about the driver"),
        ERROR(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "no compatibility mode for this device"),
        ERROR(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client was terminated"),
        ERROR(CUDA_ERROR_TIMEOUT, "timeout"),
        ERROR(CUDA_ERROR_EXTERNAL_DEVICE, "error of an external device"),
        ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef ERROR
};

static size_t find(CUresult result)
{
        size_t i;

        for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
                if (errors[i].result == result)
                        return i;
        return SIZE_MAX;
}

bool sim_error_parse(const char *text, CUresult *out)
{
        static const char prefix[] = "CUDA_ERROR_";
        char *end;
        long number;
        size_t i;

        if (text[0] >= '0' && text[0] <= '9') {
                number = strtol(text, &end, 10);
                if (*end != '\0' || number > 99999)
                        return false;
                *out = (CUresult)number;
                return true;
        }
        for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
                const char *name = errors[i].name;

                if (strcasecmp(text, name) == 0 || (strncmp(name, prefix, strlen(prefix)) == 0 &&
                                                    strcasecmp(text, name + strlen(prefix)) == 0)) {
                        *out = errors[i].result;
                        return true;
                }
        }
        return false;
}

SIM_API_PLAIN(cuGetErrorName, (CUresult result, const char **name))
{
        size_t i = find(result);

        if (!name)
                return CUDA_ERROR_INVALID_VALUE;
        *name = i == SIZE_MAX ? NULL : errors[i].name;
        return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API_PLAIN(cuGetErrorString, (CUresult result, const char **text))
{
        size_t i = find(result);

        if (!text)
                return CUDA_ERROR_INVALID_VALUE;
        *text = i == SIZE_MAX ? NULL : errors[i].text;
        return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
