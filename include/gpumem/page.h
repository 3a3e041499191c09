/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page ids. A page id is 32 bits: class (3) | unit | slot, where the slot has slot_bits bits, a
 * property of the class's geometry. GPUMEM_PAGE_NONE is never allocated; no other id is special (0
 * is an ordinary page).
 */
#ifndef GPUMEM_PAGE_H
#define GPUMEM_PAGE_H

#include <stdint.h>

#define GPUMEM_PAGE_NONE        UINT32_C(0xffffffff)
#define GPUMEM_PAGE_CLASS_BITS  3
#define GPUMEM_PAGE_CLASS_SHIFT (32 - GPUMEM_PAGE_CLASS_BITS)
#define GPUMEM_PAGE_INDEX_MASK  ((UINT32_C(1) << GPUMEM_PAGE_CLASS_SHIFT) - 1)

static inline uint32_t gpumem_page_id(uint32_t page_class, uint32_t unit, uint32_t slot,
                                      uint32_t slot_bits)
{
        return page_class << GPUMEM_PAGE_CLASS_SHIFT | unit << slot_bits | slot;
}

static inline uint32_t gpumem_page_class(uint32_t id)
{
        return id >> GPUMEM_PAGE_CLASS_SHIFT;
}

static inline uint32_t gpumem_page_unit(uint32_t id, uint32_t slot_bits)
{
        return (id & GPUMEM_PAGE_INDEX_MASK) >> slot_bits;
}

static inline uint32_t gpumem_page_slot(uint32_t id, uint32_t slot_bits)
{
        return id & ((UINT32_C(1) << slot_bits) - 1);
}

#endif
