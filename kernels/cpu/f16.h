/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f16 <-> f32 in software, for the portable kernels and as the definition the others must match.
 *
 * To f16: round to nearest, ties to even; denormals are kept; from 65520 upwards infinity. Every
 * NaN becomes 0x7fff: that is what PTX's cvt.rn.f16.f32 makes of one, and x86 (which keeps sign and
 * payload) is bent to it, so that CPU and GPU write the same bytes. To f32: exact; a NaN stays one.
 * Both compute every case and select by masks, so that compilers vectorise loops over them (they
 * may not turn a condition into a selection where one side could raise a floating point exception).
 * They need the default floating point environment (no flushing of denormals), see
 * kernel_lanes_run().
 */
#ifndef GPUMEM_KERNELS_CPU_F16_H
#define GPUMEM_KERNELS_CPU_F16_H

#include <stdint.h>
#include <string.h>

#define KERNEL_F16_NAN 0x7fff

static inline uint32_t kernel_bits_of_f32(float value)
{
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        return bits;
}

static inline float kernel_f32_of_bits(uint32_t bits)
{
        float value;

        memcpy(&value, &bits, sizeof(value));
        return value;
}

/* a if the condition holds, else b. */
static inline uint32_t kernel_select(int condition, uint32_t a, uint32_t b)
{
        uint32_t mask = 0u - (uint32_t)condition;

        return (a & mask) | (b & ~mask);
}

static inline float kernel_f16_to_f32(uint16_t half)
{
        uint32_t sign = (uint32_t)(half & 0x8000) << 16;
        uint32_t magnitude = half & 0x7fff;
        /* Moves the exponent's bias from 15 to 127; infinities and NaN are moved to the top. */
        uint32_t normal = (magnitude << 13) + 0x38000000u +
                          kernel_select(magnitude >= 0x7c00, 0x38000000u, 0);
        uint32_t denormal = kernel_bits_of_f32((float)(int32_t)magnitude * 0x1p-24f);

        return kernel_f32_of_bits(sign | kernel_select(magnitude < 0x400, denormal, normal));
}

static inline uint16_t kernel_f32_to_f16(float value)
{
        uint32_t bits = kernel_bits_of_f32(value);
        uint32_t sign = (bits >> 16) & 0x8000;
        uint32_t magnitude = bits & 0x7fffffff;
        /* Adding a half of the last place kept, less one if that place is even, rounds; a carry
         * runs into the exponent, as it should, up to infinity. */
        uint32_t normal = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
        /* The last place of 0.5 is the last place of an f16 denormal, so this addition rounds to
         * it. */
        uint32_t denormal = kernel_bits_of_f32(kernel_f32_of_bits(magnitude) + 0.5f) - 0x3f000000u;
        uint32_t half = kernel_select(magnitude < 0x38800000u, denormal, normal);

        half = kernel_select(magnitude >= 0x47800000u, 0x7c00, half) | sign;
        return (uint16_t)kernel_select(magnitude > 0x7f800000u, KERNEL_F16_NAN, half);
}

#endif
