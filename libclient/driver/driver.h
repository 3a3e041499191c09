/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one way to CUDA, for daemon and library alike: a table of function pointers filled from the
 * driver library that was configured. Which driver it is, is asked once, at driver_open(); nothing
 * above the table may look at `kind` except to print it or to compare both sides of a hello.
 *
 * A driver table is immutable after driver_open() and may be used from any thread. Members keep the
 * driver's own calling convention: they return CUresult, which driver_errno() turns into this
 * project's.
 */
#ifndef GPUMEM_LIBCLIENT_DRIVER_DRIVER_H
#define GPUMEM_LIBCLIENT_DRIVER_DRIVER_H

#include <stdbool.h>

#include "libclient/driver/cuda_abi.h"

/* The values travel in hello: never renumber. */
enum driver_kind {
        DRIVER_CUDA = 1,      /* libcuda.so.1, a real GPU */
        DRIVER_SIMULATED = 2, /* libcuda-sim.so, ours */
};

struct driver {
        enum driver_kind kind;
        void *library; /* dlopen handle */

#define DRIVER_ENTRY(member, symbol, parameters)           CUresult(*member) parameters;
#define DRIVER_ENTRY_OR(member, symbol, older, parameters) CUresult(*member) parameters;
#define DRIVER_ENTRY_OPTIONAL(member, symbol, parameters)                                          \
        CUresult(*member) parameters; /* or NULL */
#include "libclient/driver/entries.h"
#undef DRIVER_ENTRY
#undef DRIVER_ENTRY_OR
#undef DRIVER_ENTRY_OPTIONAL

        /*
         * NULL on real drivers. Where it exists, kernels run on the CPU, as host functions in
         * stream order, on the address it gives for a device range. It answers for any range inside
         * the address space the driver hands out, mapped or not (NULL outside it): touching what is
         * not mapped there is the simulated illegal access.
         */
        void *(*host_view)(CUdeviceptr address, size_t bytes);

        /*
         * Optional: a sentence about the last failure of this thread that a CUresult cannot carry
         * (which limit was hit, which file could not be opened). Never NULL-returning where it
         * exists.
         */
        const char *(*error_detail)(void);
};

/*
 * Loads a driver and fills the table; does not call cuInit. `path` names the library, or is NULL
 * for the default: libcuda.so.1, or for the simulated kind $GPUMEM_SIM_LIBRARY, else libcuda-sim.so
 * as the loader finds it, else beside the running executable, else beside the library this code is
 * part of.
 *
 * 0, or -ENOENT (no library), -ENOSYS (an entry is missing), -EINVAL (kind), -ENOMEM; `why` then
 * holds one sentence for a person, with what to do about it.
 */
int driver_open(struct driver **out, enum driver_kind kind, const char *path, char *why,
                size_t why_size);

/*
 * Frees the table. The library itself stays loaded: drivers keep threads and handlers that must not
 * lose their code. NULL is allowed; returns NULL.
 */
struct driver *driver_free(struct driver *driver);

/* "cuda" or "simulated", as in the configuration; "unknown" for other values. */
const char *driver_kind_name(enum driver_kind kind);
/* The kind a configuration word names: 0, or -EINVAL. */
int driver_kind_parse(const char *word, enum driver_kind *out);

/* Is this the error of a context (or device) that is lost: it stays, and nothing runs any more?
 * Other errors are the call's own. */
bool driver_error_is_sticky(CUresult result);

/* The driver's name of a result ("CUDA_ERROR_OUT_OF_MEMORY"); never NULL, valid for ever. */
const char *driver_error_name(const struct driver *driver, CUresult result);

/*
 * A result as negative errno, 0 for success. CUDA_ERROR_NOT_READY is -EAGAIN, so a query
 * distinguishes "not yet" from failure.
 */
int driver_errno(CUresult result);

#endif
