/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/object.h"
#include "daemon/state.h"

void object_table_init(struct object_table *table)
{
        *table = (struct object_table){0};
}

void object_table_deinit(struct object_table *table)
{
        for (uint32_t i = 0; i < table->capacity; i++)
                object_free(table->slots[i], table);
        free(table->slots);
        object_table_init(table);
}

static int table_grow(struct object_table *table)
{
        uint32_t capacity = table->capacity ? table->capacity * 2 : 8;
        struct object **slots;

        if (table->capacity >= OBJECTS_MAX)
                return OBJECT_E_TABLE_FULL;
        if (capacity > OBJECTS_MAX)
                capacity = OBJECTS_MAX;
        slots = reallocarray(table->slots, capacity, sizeof(*slots));
        if (!slots)
                return -ENOMEM;
        memset(slots + table->capacity, 0, (capacity - table->capacity) * sizeof(*slots));
        table->slots = slots;
        table->capacity = capacity;
        return 0;
}

int object_new(struct object **out, struct object_table *table, struct session *session,
               uint32_t kind, uint32_t unit_frames, uint64_t frames_max, const char *name)
{
        struct object *object;
        uint32_t slot = 0;
        int r;

        *out = NULL;
        if (table->count == table->capacity) {
                r = table_grow(table);
                if (r != 0)
                        return r;
        }
        while (table->slots[slot])
                slot++;
        object = calloc(1, sizeof(*object));
        if (!object)
                return -ENOMEM;
        object->session = session;
        object->id = ++table->last << OBJECT_SLOT_BITS | slot;
        object->kind = kind;
        object->unit_frames = unit_frames;
        object->frames_max = frames_max;
        frame_list_init(&object->frames);
        snprintf(object->name, sizeof(object->name), "%s", name);
        table->slots[slot] = object;
        table->count++;
        *out = object;
        return 0;
}

int object_restore(struct object_table *table, struct session *session,
                   const struct state_object *record)
{
        uint32_t slot = record->id & ((1u << OBJECT_SLOT_BITS) - 1);
        struct object *object;

        if (!memchr(record->name, 0, sizeof(record->name)) || record->id >> OBJECT_SLOT_BITS == 0 ||
            record->id >> OBJECT_SLOT_BITS > table->last ||
            (record->kind != GPUMEM_OBJECT_BUFFER && record->kind != GPUMEM_OBJECT_KV_POOL) ||
            record->unit_frames < 1 || record->unit_frames > GPUMEM_MESSAGE_FDS_MAX)
                return -EBADMSG;
        while (slot >= table->capacity) {
                int r = table_grow(table);

                if (r != 0)
                        return r;
        }
        if (table->slots[slot])
                return OBJECT_E_TABLE_FULL;
        object = calloc(1, sizeof(*object));
        if (!object)
                return -ENOMEM;
        object->session = session;
        object->id = record->id;
        object->kind = record->kind;
        object->unit_frames = record->unit_frames;
        object->frames_max = record->frames_max;
        frame_list_init(&object->frames);
        memcpy(object->name, record->name, sizeof(object->name));
        table->slots[slot] = object;
        table->count++;
        return 0;
}

struct object *object_free(struct object *object, struct object_table *table)
{
        if (!object)
                return NULL;
        assert(object->frames.count == 0);
        table->slots[object->id & ((1u << OBJECT_SLOT_BITS) - 1)] = NULL;
        table->count--;
        free(object);
        return NULL;
}

struct object *object_find(const struct object_table *table, uint64_t id)
{
        uint64_t slot = id & ((1u << OBJECT_SLOT_BITS) - 1);
        struct object *object;

        if (slot >= table->capacity)
                return NULL;
        object = table->slots[slot];
        return object && object->id == id ? object : NULL;
}

const char *object_kind_name(uint32_t kind)
{
        switch (kind) {
        case GPUMEM_OBJECT_BUFFER:
                return "buffer";
        case GPUMEM_OBJECT_KV_POOL:
                return "kv_pool";
        default:
                return "unknown";
        }
}
