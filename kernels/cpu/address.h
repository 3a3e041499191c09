/* SPDX-License-Identifier: Apache-2.0 */
/* From page id to tile. The one place where strides are multiplied, all of it in 64 bits. */
#ifndef GPUMEM_KERNELS_CPU_ADDRESS_H
#define GPUMEM_KERNELS_CPU_ADDRESS_H

#include "kernels/kernels.h"

#define KERNEL_PAGE_INDEX_BITS 29
#define KERNEL_PAGE_NONE       0xffffffffu

/* The K tile of a page, for one layer and head; its V tile lies kv->value_offset further. */
static inline unsigned char *kernel_key_tile(const struct kernel_kv *kv, uint32_t layer,
                                             uint32_t page, uint32_t head)
{
        uint32_t index = page & ((1u << KERNEL_PAGE_INDEX_BITS) - 1);
        int64_t unit = index >> kv->slot_bits;
        int64_t slot = index & ((1u << kv->slot_bits) - 1);

        return kv->base + (unit * kv->unit_stride + (int64_t)layer * kv->layer_stride +
                           slot * kv->page_stride + (int64_t)head * kv->head_stride);
}

#endif
