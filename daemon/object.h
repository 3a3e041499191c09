/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects: sets of frames with one owner and one lifetime. In this release every object belongs to
 * one session and dies with it.
 */
#ifndef GPUMEMD_OBJECT_H
#define GPUMEMD_OBJECT_H

#include <stdint.h>

#include <gpumem/protocol.h>

#include "daemon/frame.h"

struct session;
struct state_object;

struct object {
        struct session *session;
        uint64_t id;
        uint32_t kind; /* enum gpumem_object_kind */
        uint32_t unit_frames;
        uint64_t frames_max;
        struct frame_list frames; /* granted to it */
        char name[GPUMEM_NAME_MAX];
};

/* Objects of one session. An id is a slot in the table and a number that never comes back, so that
 * it is found at once and never reused. */
#define OBJECTS_MAX      256 /* per session */
#define OBJECT_SLOT_BITS 8
_Static_assert(OBJECTS_MAX <= 1 << OBJECT_SLOT_BITS, "an id names every slot");

struct object_table {
        struct object **slots; /* [capacity], NULL where free */
        uint32_t capacity;
        uint32_t count;
        uint64_t last; /* how many were ever made */
};

enum {
        OBJECT_E_TABLE_FULL = 1,
};

void object_table_init(struct object_table *table);
/* All objects are gone, or (at the end of the daemon) hold no frames. Idempotent. */
void object_table_deinit(struct object_table *table);

/* A new object without frames. 0, OBJECT_E_TABLE_FULL or -ENOMEM. */
int object_new(struct object **out, struct object_table *table, struct session *session,
               uint32_t kind, uint32_t unit_frames, uint64_t frames_max, const char *name);

/* The object that a record of another daemon describes, under its id. 0, OBJECT_E_TABLE_FULL (the
 * id's slot does not exist or is taken), -EBADMSG (the record makes no sense) or -ENOMEM. */
int object_restore(struct object_table *table, struct session *session,
                   const struct state_object *record);

/* It must hold no frames. Returns NULL; NULL is fine. */
struct object *object_free(struct object *object, struct object_table *table);

/* NULL if there is none of that id. */
struct object *object_find(const struct object_table *table, uint64_t id);

const char *object_kind_name(uint32_t kind);

#endif
