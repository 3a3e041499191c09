/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/driver/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUDA_LIBRARY      "libcuda.so.1"
#define SIMULATED_LIBRARY "libcuda-sim.so"

__attribute__((format(printf, 3, 4))) static void explain(char *why, size_t why_size,
                                                          const char *format, ...)
{
        va_list arguments;

        if (!why || why_size == 0)
                return;
        va_start(arguments, format);
        vsnprintf(why, why_size, format, arguments);
        va_end(arguments);
}

/* dlerror() clears itself and may be NULL when another call came between. */
static const char *loader_error(void)
{
        const char *text = dlerror();

        return text ? text : "unknown error of the dynamic loader";
}

/* Tries DIRECTORY-OF(file)/SIMULATED_LIBRARY. */
static void *open_beside(const char *file)
{
        char path[PATH_MAX];
        const char *slash = strrchr(file, '/');
        int length;

        if (!slash)
                return NULL;
        length = snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - file), file,
                          SIMULATED_LIBRARY);
        if (length < 0 || (size_t)length >= sizeof(path) || access(path, R_OK) != 0)
                return NULL;
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_simulated_default(void)
{
        char executable[PATH_MAX];
        ssize_t length;
        Dl_info self;
        void *library = dlopen(SIMULATED_LIBRARY, RTLD_NOW | RTLD_LOCAL);

        if (library)
                return library;

        length = readlink("/proc/self/exe", executable, sizeof(executable) - 1);
        if (length > 0) {
                executable[length] = '\0';
                library = open_beside(executable);
                if (library)
                        return library;
        }
        if (dladdr((void *)&driver_open, &self) != 0 && self.dli_fname)
                library = open_beside(self.dli_fname);
        return library;
}

static void *open_library(enum driver_kind kind, const char *path, char *why, size_t why_size)
{
        void *library;

        if (path && path[0] == '\0')
                path = NULL;
        if (!path && kind == DRIVER_SIMULATED) {
                path = secure_getenv("GPUMEM_SIM_LIBRARY");
                if (path && path[0] == '\0')
                        path = NULL;
        }

        if (path)
                library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        else if (kind == DRIVER_SIMULATED)
                library = open_simulated_default();
        else
                library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (library)
                return library;

        if (kind == DRIVER_CUDA)
                explain(why, why_size,
                        "%s cannot be loaded: %s; install the NVIDIA driver or set driver = simulated",
                        path ? path : CUDA_LIBRARY, loader_error());
        else
                explain(why, why_size,
                        "%s cannot be loaded: %s; name it in GPUMEM_SIM_LIBRARY or put it beside the program",
                        path ? path : SIMULATED_LIBRARY, loader_error());
        return NULL;
}

/* Stores the address of `symbol` (or `fallback`) in a table member; false when neither exists. */
static int load_entry(void *library, const char *symbol, const char *fallback, void *member)
{
        void *address = dlsym(library, symbol);

        if (!address && fallback)
                address = dlsym(library, fallback);
        /* POSIX promises that function and object pointers are of one size and representation. */
        memcpy(member, &address, sizeof(address));
        return address != NULL;
}

int driver_open(struct driver **out, enum driver_kind kind, const char *path, char *why,
                size_t why_size)
{
        struct driver *driver;
        const char *missing = NULL;

        *out = NULL;
        if (why && why_size > 0)
                why[0] = '\0';
        if (kind != DRIVER_CUDA && kind != DRIVER_SIMULATED) {
                explain(why, why_size, "driver kind %d does not exist; it is cuda or simulated",
                        (int)kind);
                return -EINVAL;
        }

        driver = calloc(1, sizeof(*driver));
        if (!driver) {
                explain(why, why_size, "no memory for the driver table");
                return -ENOMEM;
        }
        driver->kind = kind;
        driver->library = open_library(kind, path, why, why_size);
        if (!driver->library) {
                driver_free(driver);
                return -ENOENT;
        }

#define DRIVER_ENTRY_OR(member, symbol, older, parameters)                                         \
        if (!load_entry(driver->library, #symbol, #older, &driver->member) && !missing)            \
                missing = #symbol;
#define DRIVER_ENTRY(member, symbol, parameters)                                                   \
        if (!load_entry(driver->library, #symbol, NULL, &driver->member) && !missing)              \
                missing = #symbol;
#define DRIVER_ENTRY_OPTIONAL(member, symbol, parameters)                                          \
        load_entry(driver->library, #symbol, NULL, &driver->member);
#include "libclient/driver/entries.h"
#undef DRIVER_ENTRY
#undef DRIVER_ENTRY_OR
#undef DRIVER_ENTRY_OPTIONAL
        load_entry(driver->library, "gpumem_sim_host_view", NULL, &driver->host_view);
        load_entry(driver->library, "gpumem_sim_error_detail", NULL, &driver->error_detail);

        if (!missing && kind == DRIVER_SIMULATED && !driver->host_view)
                missing = "gpumem_sim_host_view";
        if (missing) {
                explain(why, why_size,
                        kind == DRIVER_CUDA
                                ? "the NVIDIA driver is too old: it has no %s"
                                : "the library named as simulator is not one: it has no %s",
                        missing);
                driver_free(driver);
                return -ENOSYS;
        }

        *out = driver;
        return 0;
}

struct driver *driver_free(struct driver *driver)
{
        free(driver);
        return NULL;
}

const char *driver_kind_name(enum driver_kind kind)
{
        switch (kind) {
        case DRIVER_CUDA:
                return "cuda";
        case DRIVER_SIMULATED:
                return "simulated";
        }
        return "unknown";
}

int driver_kind_parse(const char *word, enum driver_kind *out)
{
        if (strcmp(word, "cuda") == 0)
                *out = DRIVER_CUDA;
        else if (strcmp(word, "simulated") == 0)
                *out = DRIVER_SIMULATED;
        else
                return -EINVAL;
        return 0;
}

const char *driver_error_name(const struct driver *driver, CUresult result)
{
        const char *name = NULL;

        if (driver->get_error_name(result, &name) != CUDA_SUCCESS || !name)
                return "CUDA_ERROR_(unknown to this driver)";
        return name;
}

int driver_errno(CUresult result)
{
        switch (result) {
        case CUDA_SUCCESS:
                return 0;
        case CUDA_ERROR_INVALID_VALUE:
        case CUDA_ERROR_INVALID_HANDLE:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
                return -EINVAL;
        case CUDA_ERROR_OUT_OF_MEMORY:
                return -ENOMEM;
        case CUDA_ERROR_NOT_READY:
                return -EAGAIN;
        case CUDA_ERROR_NOT_SUPPORTED:
                return -EOPNOTSUPP;
        case CUDA_ERROR_NOT_PERMITTED:
                return -EPERM;
        case CUDA_ERROR_NO_DEVICE:
        case CUDA_ERROR_INVALID_DEVICE:
        case CUDA_ERROR_DEVICE_UNAVAILABLE:
                return -ENODEV;
        case CUDA_ERROR_NOT_FOUND:
        case CUDA_ERROR_FILE_NOT_FOUND:
                return -ENOENT;
        case CUDA_ERROR_ALREADY_MAPPED:
        case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
                return -EEXIST;
        case CUDA_ERROR_NOT_MAPPED:
        case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
                return -ENXIO;
        case CUDA_ERROR_TIMEOUT:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
                return -ETIMEDOUT;
        case CUDA_ERROR_ILLEGAL_ADDRESS:
                return -EFAULT;
        case CUDA_ERROR_NOT_INITIALIZED:
        case CUDA_ERROR_DEINITIALIZED:
                return -ESHUTDOWN;
        default:
                return -EIO;
        }
}

bool driver_error_is_sticky(CUresult result)
{
        switch (result) {
        case CUDA_ERROR_DEINITIALIZED:
        case CUDA_ERROR_DEVICE_UNAVAILABLE:
        case CUDA_ERROR_NO_DEVICE:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_CONTAINED:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_MPS_CLIENT_TERMINATED:
        case CUDA_ERROR_EXTERNAL_DEVICE:
                return true;
        default:
                return false;
        }
}
