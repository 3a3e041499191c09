/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products of the model: activations f32, weights f32 or f16.
 *
 * Determinism. On one instruction set, out[t][r] depends on row r of the weights and on x[t] and on
 * nothing else: not on the other tokens of the batch, the threads, or where a block begins. Every
 * dot product has the same order of operations: lane i of 16 sums the products of columns i, i+16,
 * i+32 ... in this order, then lanes are added pairwise (i + i+8, + i+4, + i+2, + i+1). With
 * AVX-512 products are fused into the sums, in portable C they are rounded first; so the two differ
 * in the last bits.
 */
#ifndef GPUMEM_GEN_MATMUL_H
#define GPUMEM_GEN_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "tools/gen/weights.h"

#define MATMUL_LANES 16

struct matmul {
        const struct weight *weight; /* bound */
        const float *x;              /* [tokens][weight->columns], packed */
        float *out;                  /* [tokens][weight->rows], packed; must not overlap x */
        uint32_t tokens;
        bool add; /* adds to what out holds */
};

/* out = weight * x for all tokens. pool may be NULL. */
void matmul_run(struct kernel_pool *pool, enum kernel_isa isa, const struct matmul *args);

/* One block of rows, all tokens; what the threads share out. AVX-512's needs a machine that has it.
 */
void matmul_rows_portable(const struct matmul *args, uint32_t first, uint32_t rows);
void matmul_rows_avx512(const struct matmul *args, uint32_t first, uint32_t rows);

#endif
