/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a pool's pages lie in memory: from a shape (layers, heads, dims, page tokens) and the size of
 * a frame to strides, unit size and limits. Pure arithmetic; every product is checked in 64 bits.
 *
 * From the outside: unit, layer, slot, head, K | V. A tile is page_tokens rows of f16, rounded up
 * to GEOMETRY_ALIGNMENT bytes, so every tile is aligned to that. Inside a unit one layer's pages
 * are adjacent. What a unit's pages do not fill is at its end.
 */
#ifndef LIBCLIENT_GEOMETRY_H
#define LIBCLIENT_GEOMETRY_H

#include <gpumem/gpumem.h>

#define GEOMETRY_ALIGNMENT          128
#define GEOMETRY_UNIT_FRAMES_MAX    253 /* one grant, one message */
#define GEOMETRY_REMAINDER_PERMILLE 10
#define GEOMETRY_LAYERS_MAX         1024
#define GEOMETRY_KV_HEADS_MAX       256
#define GEOMETRY_DIM_MAX            1024
#define GEOMETRY_SEQUENCES_MAX      65536
#define GEOMETRY_TOKENS_MAX         (UINT32_C(1) << 24)
/* Address space that one class may reserve: 2^46 bytes is a quarter of what x86 gives a process. */
#define GEOMETRY_RANGE_BYTES_MAX (UINT64_C(1) << 46)

struct geometry {
        struct gpumem_kv_geometry layout; /* base is 0 until the range is reserved */
        uint64_t unit_bytes;
        uint64_t range_bytes;        /* units_max * unit_bytes */
        uint64_t pages_max;          /* units_max * pages_per_unit */
        uint32_t sequence_pages_max; /* of one sequence of max_sequence_tokens */
        uint32_t page_shift;         /* log2(page_tokens) */
};

/*
 * `device_bytes` is what the daemon manages: no pool can hold more. Returns 0, or sets the thread's
 * error and returns GPUMEM_E_INVALID (a field out of range, named; a page larger than the largest
 * unit; no unit within the remainder bound) or GPUMEM_E_LIMIT (page ids or addresses overflow).
 */
int geometry_compute(struct geometry *out, const struct gpumem_kv_options *options,
                     uint64_t frame_bytes, uint64_t device_bytes);

/* The smallest unit of whole frames whose remainder is at most remainder_permille/1000 of it; 0 if
 * there is none; then *best_permille is the smallest share there is, rounded up (1001: no page
 * fits). */
uint32_t geometry_unit_frames(uint64_t page_bytes, uint64_t frame_bytes,
                              uint32_t remainder_permille, uint32_t *best_permille);

#endif
