/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loops for AVX-512: 16 lanes are one register, multiply-add is fused.
 *
 * Scores: 16 dot products at a time (16 tokens x 1 row, 8 x 2, 4 x 3 or 4 x 4), one register each,
 * then all 16 are folded together into one register of 16 results. A fold adds lanes 8, 4, 2, 1
 * apart whatever place a dot product has in the block, and addition commutes, so a row's scores do
 * not depend on how rows and tokens were blocked. Accumulation: registers hold some rows x some
 * slice of the dimension while the tokens of a tile go by.
 */
#include <float.h>
#include <string.h>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/tile.h"

#define INLINE static inline __attribute__((always_inline))
/* GCC and clang read it the same; the loops below have constant bounds and must become straight
 * code. */
#define UNROLL _Pragma("GCC unroll 16")

/* Up to 16 elements from d on; those past the dimension are zero and not read. */
INLINE __m512 widen(const uint16_t *from, __mmask16 mask)
{
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
}

INLINE __m512 widen_full(const uint16_t *from)
{
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
}

INLINE __mmask16 mask_of(uint32_t count)
{
        return count >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

INLINE __m256i narrow(__m512 x)
{
        __m256i half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

        return _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(KERNEL_F16_NAN));
}

static void avx512_load(float *to, const void *from, enum kernel_type type, uint32_t count)
{
        for (uint32_t d = 0; d < count; d += 16) {
                __mmask16 mask = mask_of(count - d);

                _mm512_store_ps(to + d,
                                type == KERNEL_F16
                                        ? widen((const uint16_t *)from + d, mask)
                                        : _mm512_maskz_loadu_ps(mask, (const float *)from + d));
        }
}

static void avx512_store(void *to, const float *from, float divisor, enum kernel_type type,
                         uint32_t count)
{
        __m512 by = _mm512_set1_ps(divisor);

        for (uint32_t d = 0; d < count; d += 16) {
                __mmask16 mask = mask_of(count - d);
                __m512 x = _mm512_div_ps(_mm512_load_ps(from + d), by);

                if (type == KERNEL_F16)
                        _mm256_mask_storeu_epi16((uint16_t *)to + d, mask, narrow(x));
                else
                        _mm512_mask_storeu_ps((float *)to + d, mask, x);
        }
}

static void avx512_narrow(uint16_t *to, const void *from, enum kernel_type type, uint32_t count)
{
        if (type == KERNEL_F16) {
                memcpy(to, from, count * sizeof(*to));
                return;
        }
        for (uint32_t d = 0; d < count; d += 16) {
                __mmask16 mask = mask_of(count - d);

                _mm256_mask_storeu_epi16(
                        to + d, mask, narrow(_mm512_maskz_loadu_ps(mask, (const float *)from + d)));
        }
}

/* Adds the lanes of one register 8, 4, 2, 1 apart. */
INLINE float fold_one(__m512 x)
{
        x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
        x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
        x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4e));
        x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
        return _mm512_cvtss_f32(x);
}

/*
 * Folds 16 registers at once: lane i of the result is the sum of dots[place(i)]. Each step puts
 * parts of one register beside parts of another and adds: the first two move quarters of a register
 * (lanes 8, then 4 apart), the others lanes inside quarters (2, 1 apart).
 */
INLINE __m512 fold_all(const __m512 dots[16])
{
        __m512 a[8], b[4], c[2];

        UNROLL
        for (int i = 0; i < 8; i++)
                a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(dots[i], dots[i + 8], 0x44),
                                     _mm512_shuffle_f32x4(dots[i], dots[i + 8], 0xee));
        UNROLL
        for (int i = 0; i < 4; i++)
                b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),
                                     _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
        UNROLL
        for (int i = 0; i < 2; i++)
                c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[i], b[i + 2], 0x44),
                                     _mm512_shuffle_ps(b[i], b[i + 2], 0xee));
        return _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88),
                             _mm512_shuffle_ps(c[0], c[1], 0xdd));
}

/* Quarters come out in the order 0, 8, 4, 12, and lanes in them in the order 0, 2, 1, 3. */
INLINE int place(int lane)
{
        return (lane & 4) * 2 + (lane & 8) / 2 + (lane & 1) * 2 + (lane & 2) / 2;
}

/* A fixed number of lines a call, to be mixed with arithmetic; a few lines beyond the end do no
 * harm. */
INLINE void fetch(struct kernel_ahead *ahead, int lines)
{
        if (ahead->at >= ahead->end)
                return;
        UNROLL
        for (int i = 0; i < lines; i++)
                _mm_prefetch((const char *)(ahead->at + (uintptr_t)i * KERNEL_ALIGN), _MM_HINT_T1);
        ahead->at += (uintptr_t)lines * KERNEL_ALIGN;
}

static void avx512_fetch(const void *at, size_t bytes)
{
        for (size_t i = 0; i < bytes; i += KERNEL_ALIGN)
                _mm_prefetch((const char *)at + i, _MM_HINT_T1);
}

INLINE void fetch_rest(struct kernel_ahead *ahead)
{
        while (ahead->at < ahead->end)
                fetch(ahead, 4);
}

/* Tokens of a block with so many rows. */
INLINE int block_tokens(int rows)
{
        return rows == 1 ? 16 : rows == 2 ? 8 : 4;
}

/* Scores of the block_tokens(rows) tokens at key with `rows` rows. Tokens from `tokens` on are not
 * read: the last one stands in for them, since the tile may end there. */
INLINE void scores_block(int rows, const uint16_t *key, uint32_t tokens, uint32_t dim,
                         const float *query, float scale, float *score, struct kernel_ahead *ahead)
{
        const int block = block_tokens(rows);
        const uint32_t padded = kernel_padded(dim);
        const uint32_t full = dim / 16 * 16;
        const uint16_t *k[16];
        __m512 dots[16];
        __m512 s;

        UNROLL
        for (int t = 0; t < block; t++)
                k[t] = key + ((uint32_t)t < tokens ? (uint32_t)t : tokens - 1) * (size_t)dim;
        UNROLL
        for (int i = 0; i < 16; i++)
                dots[i] = _mm512_setzero_ps();

        for (uint32_t d = 0; d < full; d += 16) {
                __m512 q[4];

                fetch(ahead, block / 2);
                UNROLL
                for (int r = 0; r < rows; r++)
                        q[r] = _mm512_load_ps(query + r * padded + d);
                UNROLL
                for (int t = 0; t < block; t++) {
                        __m512 x = widen_full(k[t] + d);

                        UNROLL
                        for (int r = 0; r < rows; r++) {
                                __m512 *dot = &dots[place(r * block + t)];

                                *dot = _mm512_fmadd_ps(x, q[r], *dot);
                        }
                }
        }
        if (full < dim) {
                UNROLL
                for (int t = 0; t < block; t++) {
                        __m512 x = widen(k[t] + full, 0xff);

                        UNROLL
                        for (int r = 0; r < rows; r++) {
                                __m512 *dot = &dots[place(r * block + t)];

                                *dot = _mm512_fmadd_ps(x, _mm512_load_ps(query + r * padded + full),
                                                       *dot);
                        }
                }
        }

        s = _mm512_mul_ps(fold_all(dots), _mm512_set1_ps(scale));
        if (rows == 1) {
                _mm512_storeu_ps(score, s);
        } else if (rows == 2) {
                _mm256_storeu_ps(score, _mm512_castps512_ps256(s));
                _mm256_storeu_ps(score + KERNEL_SCORE_STRIDE, _mm512_extractf32x8_ps(s, 1));
        } else {
                _mm_storeu_ps(score, _mm512_castps512_ps128(s));
                _mm_storeu_ps(score + KERNEL_SCORE_STRIDE, _mm512_extractf32x4_ps(s, 1));
                _mm_storeu_ps(score + 2 * KERNEL_SCORE_STRIDE, _mm512_extractf32x4_ps(s, 2));
                if (rows == 4)
                        _mm_storeu_ps(score + 3 * KERNEL_SCORE_STRIDE,
                                      _mm512_extractf32x4_ps(s, 3));
        }
}

INLINE void scores_rows(int rows, const uint16_t *key, uint32_t tokens, uint32_t dim,
                        const float *query, float scale, float *score, struct kernel_ahead *ahead)
{
        const uint32_t block = (uint32_t)block_tokens(rows);
        uint32_t t = 0;

        for (; t + block <= tokens; t += block) {
                scores_block(rows, key + (size_t)t * dim, block, dim, query, scale, score + t,
                             ahead);
        }
        if (t < tokens)
                scores_block(rows, key + (size_t)t * dim, tokens - t, dim, query, scale, score + t,
                             ahead);
}

INLINE void scores_all(const uint16_t *key, uint32_t tokens, uint32_t dim, const float *query,
                       uint32_t rows, float scale, float *score, struct kernel_ahead *ahead)
{
        const size_t padded = kernel_padded(dim);

        for (; rows >= 4; rows -= 4) {
                scores_rows(4, key, tokens, dim, query, scale, score, ahead);
                query += 4 * padded;
                score += 4 * KERNEL_SCORE_STRIDE;
        }
        if (rows == 3)
                scores_rows(3, key, tokens, dim, query, scale, score, ahead);
        else if (rows == 2)
                scores_rows(2, key, tokens, dim, query, scale, score, ahead);
        else if (rows == 1)
                scores_rows(1, key, tokens, dim, query, scale, score, ahead);
        fetch_rest(ahead);
}

static void avx512_scores(const uint16_t *key, uint32_t tokens, uint32_t dim, const float *query,
                          uint32_t rows, float scale, float *score, struct kernel_ahead *ahead)
{
        if (dim == 128)
                scores_all(key, tokens, 128, query, rows, scale, score, ahead);
        else
                scores_all(key, tokens, dim, query, rows, scale, score, ahead);
}

static void avx512_softmax(float *score, uint32_t tokens, float *maximum, float *sum)
{
        __m512 m = _mm512_set1_ps(-FLT_MAX);
        __m512 l = _mm512_setzero_ps();

        /* max(a, b) is b if either is NaN, so a NaN score never becomes the maximum. */
        for (uint32_t t = 0; t < tokens; t += 16) {
                __m512 s = _mm512_loadu_ps(score + t);

                m = _mm512_mask_max_ps(m, mask_of(tokens - t), s, m);
        }
        *maximum = _mm512_reduce_max_ps(m);
        m = _mm512_set1_ps(*maximum);
        for (uint32_t t = 0; t < tokens; t += 16) {
                __m512 p = kernel_exp_x16(_mm512_sub_ps(_mm512_loadu_ps(score + t), m));

                p = _mm512_maskz_mov_ps(mask_of(tokens - t), p);
                _mm512_storeu_ps(score + t, p);
                l = _mm512_add_ps(l, p);
        }
        *sum = fold_one(l);
}

/* acc[rows][chunks * 16] += weight[rows][first..end) * value[first..end)[chunks * 16]; mask is that
 * of the last chunk. */
INLINE void accumulate_block(int rows, int chunks, const uint16_t *value, uint32_t dim,
                             __mmask16 mask, const float *weight, uint32_t first, uint32_t end,
                             float *acc, struct kernel_ahead *ahead)
{
        const uint32_t padded = kernel_padded(dim);
        __m512 sums[4][8];

        UNROLL
        for (int r = 0; r < rows; r++) {
                UNROLL
                for (int c = 0; c < chunks; c++)
                        sums[r][c] = _mm512_load_ps(acc + r * padded + c * 16);
        }
        for (uint32_t t = first; t < end; t++) {
                const uint16_t *v = value + (size_t)t * dim;
                __m512 p[4];

                fetch(ahead, chunks >= 2 ? chunks / 2 : 1);
                UNROLL
                for (int r = 0; r < rows; r++)
                        p[r] = _mm512_set1_ps(weight[r * KERNEL_SCORE_STRIDE + t]);
                UNROLL
                for (int c = 0; c < chunks; c++) {
                        __m512 x =
                                mask == 0xffff ? widen_full(v + c * 16) : widen(v + c * 16, mask);

                        UNROLL
                        for (int r = 0; r < rows; r++)
                                sums[r][c] = _mm512_fmadd_ps(x, p[r], sums[r][c]);
                }
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
                UNROLL
                for (int c = 0; c < chunks; c++)
                        _mm512_store_ps(acc + r * padded + c * 16, sums[r][c]);
        }
}

INLINE void accumulate_rows(int rows, const uint16_t *value, uint32_t dim, const float *weight,
                            uint32_t first, uint32_t end, float *acc, struct kernel_ahead *ahead)
{
        const uint32_t full = dim / 16 * 16;
        uint32_t d = 0;

        for (; rows <= 2 && d + 128 <= full; d += 128)
                accumulate_block(rows, 8, value + d, dim, 0xffff, weight, first, end, acc + d,
                                 ahead);
        for (; d + 64 <= full; d += 64)
                accumulate_block(rows, 4, value + d, dim, 0xffff, weight, first, end, acc + d,
                                 ahead);
        for (; d + 32 <= full; d += 32)
                accumulate_block(rows, 2, value + d, dim, 0xffff, weight, first, end, acc + d,
                                 ahead);
        for (; d + 16 <= full; d += 16)
                accumulate_block(rows, 1, value + d, dim, 0xffff, weight, first, end, acc + d,
                                 ahead);
        if (d < dim)
                accumulate_block(rows, 1, value + d, dim, 0x00ff, weight, first, end, acc + d,
                                 ahead);
}

/* A block of rows together as far as its first row sees, then each of the others alone as far as it
 * does. */
INLINE void accumulate_limits(int rows, const uint16_t *value, uint32_t dim, const float *weight,
                              const uint32_t *limit, float *acc, struct kernel_ahead *ahead)
{
        const size_t padded = kernel_padded(dim);

        accumulate_rows(rows, value, dim, weight, 0, limit[0], acc, ahead);
        for (int r = 1; r < rows; r++)
                if (limit[r] > limit[0])
                        accumulate_rows(1, value, dim, weight + (size_t)r * KERNEL_SCORE_STRIDE,
                                        limit[0], limit[r], acc + (size_t)r * padded, ahead);
}

INLINE void accumulate_all(const uint16_t *value, uint32_t dim, const float *weight,
                           const uint32_t *limit, uint32_t rows, float *acc,
                           struct kernel_ahead *ahead)
{
        const size_t padded = kernel_padded(dim);

        for (; rows >= 4; rows -= 4) {
                accumulate_limits(4, value, dim, weight, limit, acc, ahead);
                weight += 4 * KERNEL_SCORE_STRIDE;
                limit += 4;
                acc += 4 * padded;
        }
        if (rows == 3)
                accumulate_limits(3, value, dim, weight, limit, acc, ahead);
        else if (rows == 2)
                accumulate_limits(2, value, dim, weight, limit, acc, ahead);
        else if (rows == 1)
                accumulate_limits(1, value, dim, weight, limit, acc, ahead);
        fetch_rest(ahead);
}

static void avx512_accumulate(const uint16_t *value, uint32_t dim, const float *weight,
                              const uint32_t *limit, uint32_t rows, float *acc,
                              struct kernel_ahead *ahead)
{
        if (dim == 128)
                accumulate_all(value, 128, weight, limit, rows, acc, ahead);
        else
                accumulate_all(value, dim, weight, limit, rows, acc, ahead);
}

static void avx512_merge(float *to, float to_factor, const float *from, float from_factor,
                         uint32_t count)
{
        __m512 a = _mm512_set1_ps(to_factor);
        __m512 b = _mm512_set1_ps(from_factor);

        for (uint32_t d = 0; d < count; d += 16)
                _mm512_store_ps(to + d, _mm512_fmadd_ps(_mm512_load_ps(from + d), b,
                                                        _mm512_mul_ps(_mm512_load_ps(to + d), a)));
}

static float avx512_exponential(float x)
{
        return _mm512_cvtss_f32(kernel_exp_x16(_mm512_set1_ps(x)));
}

const struct kernel_tile_ops kernel_tile_avx512 = {
        .fetch = avx512_fetch,
        .load = avx512_load,
        .store = avx512_store,
        .narrow = avx512_narrow,
        .scores = avx512_scores,
        .softmax = avx512_softmax,
        .accumulate = avx512_accumulate,
        .merge = avx512_merge,
        .exponential = avx512_exponential,
};
