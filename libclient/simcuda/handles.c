/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/sim.h"

#include <stdlib.h>

#define HANDLES_MAX   (1u << 20)
#define HANDLE_STRIDE 16u

static bool handle_index(const struct sim_handles *table, uint64_t handle, uint32_t *index)
{
        uint64_t base = (uint64_t)table->kind << 32;
        uint64_t offset = handle - base;

        if (handle <= base || offset % HANDLE_STRIDE != 0 || offset / HANDLE_STRIDE > table->used)
                return false;
        *index = (uint32_t)(offset / HANDLE_STRIDE) - 1;
        return true;
}

static bool grow(struct sim_handles *table)
{
        uint32_t capacity = table->capacity ? table->capacity * 2 : 64;
        void **items;
        uint32_t *next_free;

        if (capacity > HANDLES_MAX)
                return false;
        items = realloc(table->items, capacity * sizeof(*items));
        if (!items)
                return false;
        table->items = items;
        next_free = realloc(table->next_free, capacity * sizeof(*next_free));
        if (!next_free)
                return false;
        table->next_free = next_free;
        table->capacity = capacity;
        return true;
}

uint64_t sim_handles_add(struct sim_handles *table, void *item)
{
        uint32_t index;

        if (table->first_free != 0) {
                index = table->first_free - 1;
                table->first_free = table->next_free[index];
        } else {
                if (table->used == table->capacity && !grow(table))
                        return 0;
                index = table->used++;
        }
        table->items[index] = item;
        return ((uint64_t)table->kind << 32) + (uint64_t)(index + 1) * HANDLE_STRIDE;
}

void *sim_handles_get(const struct sim_handles *table, uint64_t handle)
{
        uint32_t index;

        return handle_index(table, handle, &index) ? table->items[index] : NULL;
}

void sim_handles_remove(struct sim_handles *table, uint64_t handle)
{
        uint32_t index;

        if (!handle_index(table, handle, &index) || !table->items[index])
                return;
        table->items[index] = NULL;
        table->next_free[index] = table->first_free;
        table->first_free = index + 1;
}
