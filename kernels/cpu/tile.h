/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loops, one table of them per instruction set; attention.c and write.c hold everything
 * else.
 *
 * Vectors in scratch memory (queries, accumulators) are f32, padded with zeros to a multiple of
 * KERNEL_LANES and aligned to KERNEL_ALIGN. Rows are query rows (one token, one query head) of ONE
 * KV head. A tile is some tokens of one page: contiguous f16 vectors of the head's dimension, and
 * nothing beyond the tokens given is read.
 */
#ifndef GPUMEM_KERNELS_CPU_TILE_H
#define GPUMEM_KERNELS_CPU_TILE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define KERNEL_LANES 16
#define KERNEL_ALIGN 64
/* Scores of a row: one partial's, and room for the last block of scores() to run over. */
#define KERNEL_SCORE_STRIDE (GPUMEM_PARTIAL_TOKENS + KERNEL_LANES)

static inline uint32_t kernel_padded(uint32_t dim)
{
        return (dim + KERNEL_LANES - 1) / KERNEL_LANES * KERNEL_LANES;
}

/* Memory that will be read soon; fetched ahead while a tile is worked on. Never dereferenced, so it
 * may be anything. */
struct kernel_ahead {
        uintptr_t at;
        uintptr_t end;
};

struct kernel_tile_ops {
        /* Has memory fetched, all at once. */
        void (*fetch)(const void *at, size_t bytes);

        /* count elements of type to f32, padding with zeros. */
        void (*load)(float *to, const void *from, enum kernel_type type, uint32_t count);
        /* numbers/divisor, count of them, to type. */
        void (*store)(void *to, const float *from, float divisor, enum kernel_type type,
                      uint32_t count);
        /* count elements of type to f16, as kernel_f32_to_f16() does. */
        void (*narrow)(uint16_t *to, const void *from, enum kernel_type type, uint32_t count);

        /* score[row * KERNEL_SCORE_STRIDE + t] = scale * dot(query row, key t). Elements of score
         * from tokens up to the next multiple of KERNEL_LANES may be overwritten with anything. */
        void (*scores)(const uint16_t *key, uint32_t tokens, uint32_t dim, const float *query,
                       uint32_t rows, float scale, float *score, struct kernel_ahead *ahead);

        /* The first tokens scores of one row become weights exp(score - maximum), where maximum is
         * the largest score, but at least -FLT_MAX (a row all -inf has weights 0). NaN scores give
         * NaN weights. *sum is the weights' sum: lane t % KERNEL_LANES adds in token order, then
         * the lanes are folded 8, 4, 2, 1 apart. */
        void (*softmax)(float *score, uint32_t tokens, float *maximum, float *sum);

        /* acc[row] += weight[row][t] * value t, t in 0..limit[row]-1 in that order. limit does not
         * fall from row to row. weight's row stride is KERNEL_SCORE_STRIDE, acc's is
         * kernel_padded(dim). */
        void (*accumulate)(const uint16_t *value, uint32_t dim, const float *weight,
                           const uint32_t *limit, uint32_t rows, float *acc,
                           struct kernel_ahead *ahead);

        /* to = to * to_factor + from * from_factor, count padded. */
        void (*merge)(float *to, float to_factor, const float *from, float from_factor,
                      uint32_t count);

        /* exp() of this instruction set, for the merge's factors and for tests. */
        float (*exponential)(float x);
};

extern const struct kernel_tile_ops kernel_tile_portable;
#if defined(__x86_64__)
extern const struct kernel_tile_ops kernel_tile_avx512;
#endif

/* The table for an instruction set; NULL if the machine lacks it. */
const struct kernel_tile_ops *kernel_tile_ops(enum kernel_isa isa);

/* --- running work on lanes
 * ------------------------------------------------------------------------ */

/* Calls fn(arg, lane, i) for every i below count, on at most lanes threads at once; lane < lanes,
 * and one lane is only on one thread at a time, so scratch memory belongs to a lane. The floating
 * point environment is the default one inside: a program's rounding mode, flushing of denormals and
 * traps do not reach the results. */
void kernel_lanes_run(struct kernel_pool *pool, unsigned lanes,
                      void (*fn)(void *arg, unsigned lane, size_t i), void *arg, size_t count);

#endif
