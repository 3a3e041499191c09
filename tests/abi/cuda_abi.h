/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUMEM_TESTS_ABI_CUDA_ABI_H
#define GPUMEM_TESTS_ABI_CUDA_ABI_H

#include <stddef.h>

/* One fact about the ABI: a constant's value, a type's size and alignment, a field's offset and
 * size. */
struct abi_fact {
        const char *name;
        unsigned long long first, second;
};

/* Both in the order of cuda_abi_list.h. The toolkit's table is empty where there was no cuda.h. */
extern const struct abi_fact abi_ours[];
extern const size_t abi_ours_count;
extern const struct abi_fact abi_toolkit[];
extern const size_t abi_toolkit_count;

#define ABI_VALUE(constant) {#constant, (unsigned long long)(constant), 0},
#define ABI_TYPE(type)      {#type, sizeof(type), _Alignof(type)},
#define ABI_FIELD(type, field)                                                                     \
        {#type "." #field, offsetof(type, field), sizeof(((type *)0)->field)},

#endif
