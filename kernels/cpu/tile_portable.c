/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loops in plain C. Sums run in KERNEL_LANES lanes with separate multiplication and
 * addition; the loops over lanes are written so that the compiler makes vectors of whatever width
 * it may use.
 */
#include <float.h>
#include <math.h>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/tile.h"

#define DIM_LIMIT 256

/* Four floats: the width that every 64-bit instruction set has. */
typedef float quad __attribute__((vector_size(16)));
#define QUADS (KERNEL_LANES / 4)

static quad quad_load(const float *from)
{
        quad q;

        memcpy(&q, from, sizeof(q));
        return q;
}

static void widen(float *to, const uint16_t *from, uint32_t count)
{
        for (uint32_t i = 0; i < count; i++)
                to[i] = kernel_f16_to_f32(from[i]);
}

static void portable_load(float *to, const void *from, enum kernel_type type, uint32_t count)
{
        if (type == KERNEL_F16)
                widen(to, from, count);
        else
                memcpy(to, from, count * sizeof(float));
        for (uint32_t i = count; i < kernel_padded(count); i++)
                to[i] = 0.0f;
}

static void portable_store(void *to, const float *from, float divisor, enum kernel_type type,
                           uint32_t count)
{
        if (type == KERNEL_F16) {
                uint16_t *half = to;

                for (uint32_t i = 0; i < count; i++)
                        half[i] = kernel_f32_to_f16(from[i] / divisor);
        } else {
                float *single = to;

                for (uint32_t i = 0; i < count; i++)
                        single[i] = from[i] / divisor;
        }
}

static void portable_narrow(uint16_t *to, const void *from, enum kernel_type type, uint32_t count)
{
        if (type == KERNEL_F16) {
                memcpy(to, from, count * sizeof(*to));
        } else {
                const float *single = from;

                for (uint32_t i = 0; i < count; i++)
                        to[i] = kernel_f32_to_f16(single[i]);
        }
}

/* Lanes 8, 4, 2 and 1 apart. */
static float lanes_fold(const quad lanes[QUADS])
{
        quad half = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);

        return (half[0] + half[2]) + (half[1] + half[3]);
}

static float dot(const float *a, const float *b, uint32_t padded)
{
        quad lanes[QUADS] = {0};

        for (uint32_t d = 0; d < padded; d += KERNEL_LANES)
                for (int k = 0; k < QUADS; k++)
                        lanes[k] += quad_load(a + d + 4 * k) * quad_load(b + d + 4 * k);
        return lanes_fold(lanes);
}

static void dot_two(const float *a, const float *b, const float *key, uint32_t padded, float out[2])
{
        quad first[QUADS] = {0};
        quad second[QUADS] = {0};

        for (uint32_t d = 0; d < padded; d += KERNEL_LANES) {
                for (int k = 0; k < QUADS; k++) {
                        quad q = quad_load(key + d + 4 * k);

                        first[k] += quad_load(a + d + 4 * k) * q;
                        second[k] += quad_load(b + d + 4 * k) * q;
                }
        }
        out[0] = lanes_fold(first);
        out[1] = lanes_fold(second);
}

static void fetch(struct kernel_ahead *ahead, uint32_t bytes)
{
        for (uint32_t i = 0; i < bytes && ahead->at < ahead->end; i += KERNEL_ALIGN) {
                __builtin_prefetch((const void *)ahead->at, 0, 2);
                ahead->at += KERNEL_ALIGN;
        }
}

static void portable_fetch(const void *at, size_t bytes)
{
        for (size_t i = 0; i < bytes; i += KERNEL_ALIGN)
                __builtin_prefetch((const char *)at + i, 0, 2);
}

static void portable_scores(const uint16_t *key, uint32_t tokens, uint32_t dim, const float *query,
                            uint32_t rows, float scale, float *score, struct kernel_ahead *ahead)
{
        float wide[DIM_LIMIT] __attribute__((aligned(KERNEL_ALIGN))) = {0};
        uint32_t padded = kernel_padded(dim);

        for (uint32_t t = 0; t < tokens; t++) {
                uint32_t r = 0;

                fetch(ahead, dim * sizeof(*key));
                widen(wide, key + (size_t)t * dim, dim);
                for (; r + 2 <= rows; r += 2) {
                        const float *q = query + (size_t)r * padded;
                        float *s = score + (size_t)r * KERNEL_SCORE_STRIDE + t;
                        float two[2];

                        dot_two(q, q + padded, wide, padded, two);
                        s[0] = two[0] * scale;
                        s[KERNEL_SCORE_STRIDE] = two[1] * scale;
                }
                if (r < rows)
                        score[(size_t)r * KERNEL_SCORE_STRIDE + t] =
                                dot(query + (size_t)r * padded, wide, padded) * scale;
        }
}

static void portable_softmax(float *score, uint32_t tokens, float *maximum, float *sum)
{
        quad lanes[QUADS] = {0};
        float most[4] = {-FLT_MAX, -FLT_MAX, -FLT_MAX, -FLT_MAX};
        float m;

        /* A NaN is larger than nothing. Four at a time, so that one comparison need not wait for
         * the last. */
        for (uint32_t t = 0; t < tokens; t++)
                most[t % 4] = score[t] > most[t % 4] ? score[t] : most[t % 4];
        for (int i = 1; i < 4; i++)
                most[0] = most[i] > most[0] ? most[i] : most[0];
        m = most[0];
        for (uint32_t t = 0; t < tokens; t++)
                score[t] = kernel_exp(score[t] - m);
        /* Adding the zero of a token that is not there changes nothing. */
        for (uint32_t t = tokens; t % KERNEL_LANES != 0; t++)
                score[t] = 0.0f;
        for (uint32_t t = 0; t < tokens; t += KERNEL_LANES)
                for (int k = 0; k < QUADS; k++)
                        lanes[k] += quad_load(score + t + 4 * k);
        *maximum = m;
        *sum = lanes_fold(lanes);
}

static void add_scaled(float *acc, const float *value, float weight, uint32_t padded)
{
        for (uint32_t d = 0; d < padded; d++)
                acc[d] += value[d] * weight;
}

static void portable_accumulate(const uint16_t *value, uint32_t dim, const float *weight,
                                const uint32_t *limit, uint32_t rows, float *acc,
                                struct kernel_ahead *ahead)
{
        float wide[DIM_LIMIT] __attribute__((aligned(KERNEL_ALIGN))) = {0};
        uint32_t padded = kernel_padded(dim);
        uint32_t first = 0;

        for (uint32_t t = 0; t < limit[rows - 1]; t++) {
                while (limit[first] <= t)
                        first++;
                fetch(ahead, dim * sizeof(*value));
                widen(wide, value + (size_t)t * dim, dim);
                for (uint32_t r = first; r < rows; r++)
                        add_scaled(acc + (size_t)r * padded, wide,
                                   weight[(size_t)r * KERNEL_SCORE_STRIDE + t], padded);
        }
}

static void portable_merge(float *to, float to_factor, const float *from, float from_factor,
                           uint32_t count)
{
        for (uint32_t i = 0; i < count; i++)
                to[i] = to[i] * to_factor + from[i] * from_factor;
}

const struct kernel_tile_ops kernel_tile_portable = {
        .fetch = portable_fetch,
        .load = portable_load,
        .store = portable_store,
        .narrow = portable_narrow,
        .scores = portable_scores,
        .softmax = portable_softmax,
        .accumulate = portable_accumulate,
        .merge = portable_merge,
        .exponential = kernel_exp,
};
