/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch: one pin, and the arrays that kernels eat, in one allocation. It lives until the pin is
 * over and every kernel that was put on a stream for it has run: each of them holds a reference.
 */
#ifndef LIBCLIENT_BATCH_H
#define LIBCLIENT_BATCH_H

#include "libclient/kv.h"

struct gpumem_batch {
        struct gpumem_kv *kv;
        uint64_t pin;
        atomic_uint references;
        uint32_t longest; /* most new tokens of one sequence */
        struct gpumem_batch_view view;
        gpumem_seq *handles; /* [view.sequences] */
};

void batch_reference(struct gpumem_batch *batch);
/* Frees it with the last one. */
void batch_unreference(struct gpumem_batch *batch);

/* The payload of a pin is over: pin_table.over. */
void batch_pin_over(void *payload);

#endif
