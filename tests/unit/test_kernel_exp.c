/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/exp.h: every 61st float from -0 to -104, every one of some stretches, and the special
 * values. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/f16.h"
#include "tests/support/kernel_test.h"

/* In units of the last place of the right result; results under FLT_MIN must be 0. */
static double error_of(const struct kernel_tile_ops *ops, float x)
{
        double want = exp((double)x);
        float have = ops->exponential(x);
        int exponent;

        if (want < (double)FLT_MIN * (1 - 1e-7))
                return have == 0.0f ? 0 : INFINITY;
        frexp(want, &exponent);
        if (have == 0.0f && want < (double)FLT_MIN * (1 + 1e-7))
                return 0;
        return fabs((double)have - want) / ldexp(1, exponent - 24);
}

static double worst(const struct kernel_tile_ops *ops, float from, float to, uint32_t step)
{
        double error = 0;

        for (uint32_t bits = kernel_bits_of_f32(from); bits <= kernel_bits_of_f32(to); bits += step)
                error = fmax(error, error_of(ops, kernel_f32_of_bits(bits)));
        return error;
}

static void test_error(void)
{
        FOR_EACH_ISA(isa)
        {
                const struct kernel_tile_ops *ops = kernel_tile_ops((enum kernel_isa)isa);

                CU_ASSERT(worst(ops, -0.0f, -104.0f, 997) <= 1.5);
                CU_ASSERT(worst(ops, -0x1p-8f, -104.0f, 211) <= 1.5);
                CU_ASSERT(worst(ops, -0.34f, -0.35f, 1) <= 1.5);
                CU_ASSERT(worst(ops, -87.2f, -87.5f, 1) <= 1.5);
        }
}

static void test_special(void)
{
        FOR_EACH_ISA(isa)
        {
                const struct kernel_tile_ops *ops = kernel_tile_ops((enum kernel_isa)isa);

                CU_ASSERT(ops->exponential(0.0f) == 1.0f);
                CU_ASSERT(ops->exponential(-0.0f) == 1.0f);
                CU_ASSERT(ops->exponential(-INFINITY) == 0.0f);
                CU_ASSERT(ops->exponential(-FLT_MAX) == 0.0f);
                CU_ASSERT(ops->exponential(-1e9f) == 0.0f);
                CU_ASSERT(isnan(ops->exponential(NAN)));
                CU_ASSERT(isnan(ops->exponential(-NAN)));
        }
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"at most 1.5 units in the last place", test_error},
                {"zero, infinity, NaN", test_special},
        };

        return kernel_test_main("kernel exponential", tests, COUNT_OF(tests));
}
