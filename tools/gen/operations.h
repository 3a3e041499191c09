/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The small operations of a llama block, one token at a time. Plain C with one fixed order of
 * operations, the same on every instruction set.
 */
#ifndef GPUMEM_GEN_OPERATIONS_H
#define GPUMEM_GEN_OPERATIONS_H

#include <stddef.h>
#include <stdint.h>

struct weight;

/* out[i] = x[i] / sqrt(mean(x^2) + epsilon) * scale[i]; the mean is summed in f64. out may be x. */
void operation_rms_norm(const struct weight *scale, float epsilon, const float *x, float *out);

/* Writes cos and sin of the angles of one position: table[2*i] and table[2*i+1] for pair i, angle
 * position / base^(2*i/dim). table: [dim]. */
void operation_rope_table(float base, uint32_t dim, uint32_t position, float *table);
/* Turns pairs (2i, 2i+1) of the leading `dim` elements of each head ("NORM" order of llama.cpp,
 * https://arxiv.org/abs/2104.09864). */
void operation_rope(const float *table, uint32_t dim, float *heads, uint32_t count,
                    uint32_t head_dim);

/* gate[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)). */
void operation_swiglu(float *gate, const float *up, size_t count);

/* A row of a matrix as f32. */
void operation_row(const struct weight *weight, uint32_t row, float *out);

/* The index of the largest value, the lowest among equals; UINT32_MAX if a value is NaN or +inf, or
 * all are -inf: then the model computed nonsense and there is no answer. */
uint32_t operation_argmax(const float *values, uint32_t count);

#endif
