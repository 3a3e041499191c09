/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exponential of all CPU kernels: exp(x) for x <= 0, as 2^n * e^r with n = round(x / ln 2), |r|
 * <= ln 2 / 2.
 *
 * ln 2 is split in two so that n * LN2_HIGH is exact (9 bits times at most 8); e^r = 1 + r + r^2
 * P(r), P of degree 4 interpolated at Chebyshev nodes, relative error 1e-8, under the rounding of
 * f32. Total error at most 1.5 units in the last place (tests/unit/test_kernel_exp.c); results
 * under FLT_MIN are 0, exp(-inf) = 0, exp(0) = 1 exactly, and exp(NaN) = NaN. Without fused
 * multiply-add and with it results may differ in the last place.
 */
#ifndef GPUMEM_KERNELS_CPU_EXP_H
#define GPUMEM_KERNELS_CPU_EXP_H

#include "kernels/cpu/f16.h"

#define KERNEL_EXP_LOG2E    0x1.715476p+0f
#define KERNEL_EXP_LN2_HIGH 0x1.63p-1f
#define KERNEL_EXP_LN2_LOW  -0x1.bd0106p-13f
#define KERNEL_EXP_P0       0x1p-1f
#define KERNEL_EXP_P1       0x1.5554dep-3f
#define KERNEL_EXP_P2       0x1.55551ap-5f
#define KERNEL_EXP_P3       0x1.120b62p-7f
#define KERNEL_EXP_P4       0x1.6d10fcp-10f
/* ln(FLT_MIN), rounded upwards: below it the result would be denormal. */
#define KERNEL_EXP_LOWEST -0x1.5d589ep+6f
/* 1.5 * 2^23: adding it to a small number rounds that to an integer, held in the sum's low bits. */
#define KERNEL_EXP_ROUND 0x1.8p+23f

static inline float kernel_exp(float x)
{
        /* A NaN passes the comparison unharmed. Below the lowest everything up to the last line is
         * garbage. */
        int below = x < KERNEL_EXP_LOWEST;
        float shifted = x * KERNEL_EXP_LOG2E + KERNEL_EXP_ROUND;
        float n = shifted - KERNEL_EXP_ROUND;
        float r = (x - n * KERNEL_EXP_LN2_HIGH) - n * KERNEL_EXP_LN2_LOW;
        float p = KERNEL_EXP_P4;
        uint32_t exponent;

        p = p * r + KERNEL_EXP_P3;
        p = p * r + KERNEL_EXP_P2;
        p = p * r + KERNEL_EXP_P1;
        p = p * r + KERNEL_EXP_P0;
        p = (p * r) * r + r;
        p = p + 1.0f;
        exponent = kernel_bits_of_f32(shifted) - 0x4b400000u + 127u;
        p = p * kernel_f32_of_bits(exponent << 23);
        return kernel_f32_of_bits(kernel_select(below, 0, kernel_bits_of_f32(p)));
}

#ifdef __AVX512F__
#include <immintrin.h>

static inline __m512 kernel_exp_x16(__m512 x)
{
        __mmask16 inside = _mm512_cmp_ps_mask(x, _mm512_set1_ps(KERNEL_EXP_LOWEST), _CMP_NLT_UQ);
        __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(KERNEL_EXP_LOG2E),
                                                 _mm512_set1_ps(KERNEL_EXP_ROUND)),
                                 _mm512_set1_ps(KERNEL_EXP_ROUND));
        __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(KERNEL_EXP_LN2_HIGH), x);
        __m512 p = _mm512_set1_ps(KERNEL_EXP_P4);

        r = _mm512_fnmadd_ps(n, _mm512_set1_ps(KERNEL_EXP_LN2_LOW), r);
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KERNEL_EXP_P3));
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KERNEL_EXP_P2));
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KERNEL_EXP_P1));
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KERNEL_EXP_P0));
        p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r);
        p = _mm512_add_ps(p, _mm512_set1_ps(1.0f));
        /* Lanes below the lowest are garbage until here. */
        return _mm512_maskz_scalef_ps(inside, p, n);
}
#endif

#endif
