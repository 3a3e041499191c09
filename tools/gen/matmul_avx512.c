/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of R rows times T tokens: each weight is loaded (and converted) once per T tokens, each
 * activation once per R rows, and R*T independent sums hide the latency of the fused multiply-add.
 * The shape of a tile does not touch the order inside a dot product (matmul.h).
 */
#include "tools/gen/matmul.h"

#ifdef __AVX512F__
#include <immintrin.h>

static inline __attribute__((always_inline)) __m512 load_weights(const void *row, uint32_t column,
                                                                 __mmask16 mask, const bool half)
{
        if (half)
                return _mm512_cvtph_ps(
                        _mm256_maskz_loadu_epi16(mask, (const uint16_t *)row + column));
        return _mm512_maskz_loadu_ps(mask, (const float *)row + column);
}

static inline float sum_lanes(__m512 sum)
{
        const __m256 eight =
                _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
        const __m128 four =
                _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline __attribute__((always_inline)) void
step(const unsigned char *data, size_t row_bytes, const float *x, uint32_t columns, uint32_t column,
     __mmask16 mask, __m512 (*sums)[4], const int R, const int T, const bool half)
{
        __m512 w[8];

#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
                w[r] = load_weights(data + r * row_bytes, column, mask, half);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
                const __m512 v = _mm512_maskz_loadu_ps(mask, x + (size_t)t * columns + column);

#pragma GCC unroll 8
                for (int r = 0; r < R; r++)
                        sums[r][t] = _mm512_fmadd_ps(w[r], v, sums[r][t]);
        }
}

/* R <= 8, T <= 4, all three constants where it is inlined. */
static inline __attribute__((always_inline)) void tile(const struct matmul *args, uint32_t row,
                                                       uint32_t token, const int R, const int T,
                                                       const bool half)
{
        const uint32_t columns = args->weight->columns;
        const size_t row_bytes = (size_t)columns * (half ? 2 : 4);
        const unsigned char *data = (const unsigned char *)args->weight->data + row * row_bytes;
        const float *x = args->x + (size_t)token * columns;
        __m512 sums[8][4];
        uint32_t column = 0;

#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int t = 0; t < T; t++)
                        sums[r][t] = _mm512_setzero_ps();
        for (; column + MATMUL_LANES <= columns; column += MATMUL_LANES)
                step(data, row_bytes, x, columns, column, 0xffff, sums, R, T, half);
        /* Lanes beyond the row stay as they are: 0 * 0 is added. */
        if (column < columns)
                step(data, row_bytes, x, columns, column,
                     (__mmask16)((1u << (columns - column)) - 1), sums, R, T, half);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
                for (int t = 0; t < T; t++) {
                        float *out = args->out + (size_t)(token + t) * args->weight->rows + row + r;
                        const float sum = sum_lanes(sums[r][t]);

                        *out = args->add ? *out + sum : sum;
                }
        }
}

static inline __attribute__((always_inline)) void rows_of(const struct matmul *args, uint32_t first,
                                                          uint32_t rows, const bool half)
{
        uint32_t token = 0, row;

        for (; token + 4 <= args->tokens; token += 4) {
                for (row = first; row + 4 <= first + rows; row += 4)
                        tile(args, row, token, 4, 4, half);
                for (; row < first + rows; row++)
                        tile(args, row, token, 1, 4, half);
        }
        for (; token < args->tokens; token++) {
                for (row = first; row + 8 <= first + rows; row += 8)
                        tile(args, row, token, 8, 1, half);
                for (; row < first + rows; row++)
                        tile(args, row, token, 1, 1, half);
        }
}

void matmul_rows_avx512(const struct matmul *args, uint32_t first, uint32_t rows)
{
        if (args->weight->type == GGUF_TENSOR_F16)
                rows_of(args, first, rows, true);
        else
                rows_of(args, first, rows, false);
}
#endif
