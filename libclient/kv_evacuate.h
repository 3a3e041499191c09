/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evacuation: the live pages of sparse units are moved into other units of the pool, so that the
 * sparse ones can be given back. One live page must not hold a unit.
 *
 * Which units: those with the fewest live pages first, as many as the free pages of the others can
 * take in. Not a unit with a page that a pin may still write or that is retiring, nor one that is
 * publishable (others may come to read it), nor one that is full. Where to: the fullest units, as
 * the page allocator has it.
 *
 * How: the victims are closed in the allocator, new pages taken, the copies put on a stream of the
 * pool's own under a pin of their own, and the lock is let go. Nobody waits meanwhile: sequences
 * stay where they are, batches may begin and be handed the old pages. Once the copies are done,
 * with the lock again, each move is looked at anew. It counts only if every holder of the old page
 * is one that was seen at the start and none of them was in a batch since; otherwise the new page
 * is let go (a batch may have written to the old one while it was copied) and the old one stays
 * what it was. If it counts, the new page takes the old one's place in the lists of its holders,
 * and the old page retires after the pins of that moment. A copy that fails, or is not over by the
 * deadline, leaves everything as before.
 *
 * Why this is a safe point: a page id reaches a kernel only by a batch, which has a copy of the
 * lists of its sequences and a pin. A batch that has begun keeps reading the old page, which stays
 * mapped until its pin is over; one that begins after the move reads the new one.
 *
 * The reverse map from a page to its holders is made when it is needed, from the sequences' lists:
 * O(pages in use) for each call of kv_evacuate(), nothing for an allocation.
 */
#ifndef LIBCLIENT_KV_EVACUATE_H
#define LIBCLIENT_KV_EVACUATE_H

#include "libclient/kv.h"

/* Empties up to `units` units. *emptied: those that hold no live page any more; they are empty, or
 * will be when pins are over. 0, GPUMEM_E_DEVICE, GPUMEM_E_TIMEOUT (a copy was not over in time),
 * GPUMEM_E_NO_MEMORY (host), GPUMEM_E_AGAIN (too many pins). Call without locks. */
int kv_evacuate(struct gpumem_kv *kv, uint64_t units, uint32_t *emptied);

/* As kv_give_back(), and evacuates sparse units as long as that is not enough. */
int kv_shrink(struct gpumem_kv *kv, uint64_t units, uint64_t *bytes);

/* The pool's copying stream is no more; when the pool is freed. The context is current. */
void kv_evacuate_deinit(struct gpumem_kv *kv);

#endif
