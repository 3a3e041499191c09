/* SPDX-License-Identifier: Apache-2.0 */
/* The same table as cuda_abi_ours.c, from the toolkit's cuda.h; and the entries' signatures against
 * it. */
#include <stdint.h>

#include "tests/abi/cuda_abi.h"

#ifdef HAVE_CUDA_H
#include <cuda.h>

const struct abi_fact abi_toolkit[] = {
#include "tests/abi/cuda_abi_list.h"
};
const size_t abi_toolkit_count = sizeof(abi_toolkit) / sizeof(abi_toolkit[0]);

/* A table member with another signature than the driver's entry does not compile. */
#define CHECK_ENTRY(symbol, parameters)                                                            \
        _Static_assert(__builtin_types_compatible_p(CUresult parameters, __typeof__(symbol)),      \
                       "entries.h has another signature than cuda.h");
#define DRIVER_ENTRY(member, symbol, parameters)           CHECK_ENTRY(symbol, parameters)
#define DRIVER_ENTRY_OR(member, symbol, older, parameters) CHECK_ENTRY(symbol, parameters)
#define DRIVER_ENTRY_OPTIONAL(member, symbol, parameters)  CHECK_ENTRY(symbol, parameters)
#include "libclient/driver/entries.h"

#else

const struct abi_fact abi_toolkit[1];
const size_t abi_toolkit_count = 0;

#endif
