/* SPDX-License-Identifier: Apache-2.0 */
/* f16 <-> f32 on every instruction set against the compiler's own type. */
#include <math.h>

#include "kernels/cpu/f16.h"
#include "tests/support/kernel_test.h"

static bool is_nan16(uint16_t half)
{
        return (half & 0x7fff) > 0x7c00;
}

static void test_every_half(void)
{
        static uint16_t halves[65536], back[65536];
        static float wide[65536];
        unsigned wrong_wide = 0, wrong_back = 0;

        for (uint32_t i = 0; i < 65536; i++)
                halves[i] = (uint16_t)i;
        FOR_EACH_ISA(isa)
        {
                const struct kernel_tile_ops *ops = kernel_tile_ops((enum kernel_isa)isa);

                for (uint32_t i = 0; i < 65536; i += 64) {
                        float row[64] __attribute__((aligned(KERNEL_ALIGN)));

                        ops->load(row, halves + i, KERNEL_F16, 64);
                        memcpy(wide + i, row, sizeof(row));
                }
                ops->narrow(back, wide, KERNEL_F32, 65536);
                for (uint32_t i = 0; i < 65536; i++) {
                        double want = oracle_f16_to_f64((uint16_t)i);

                        if (is_nan16((uint16_t)i)) {
                                wrong_wide += !isnan(wide[i]);
                                wrong_back += back[i] != KERNEL_F16_NAN;
                        } else {
                                wrong_wide += (double)wide[i] != want ||
                                              !signbit(wide[i]) != !signbit(want);
                                wrong_back += back[i] != i;
                        }
                }
        }
        CU_ASSERT_EQUAL(wrong_wide, 0);
        CU_ASSERT_EQUAL(wrong_back, 0);
}

static unsigned narrow_errors(const struct kernel_tile_ops *ops, const float *from, uint32_t count)
{
        uint16_t have[1024];
        unsigned wrong = 0;

        ops->narrow(have, from, KERNEL_F32, count);
        for (uint32_t i = 0; i < count; i++)
                wrong += have[i] != (isnan(from[i]) ? KERNEL_F16_NAN : oracle_f32_to_f16(from[i]));
        return wrong;
}

/* Random bits are mostly too large or too small; half of them get an exponent that f16 knows, or
 * nearly. */
static void test_random_singles(void)
{
        FOR_EACH_ISA(isa)
        {
                uint64_t state = 1;
                unsigned wrong = 0;

                for (int n = 0; n < 2000; n++) {
                        float from[1024];

                        for (int i = 0; i < 1024; i++) {
                                uint64_t r = oracle_random(&state);
                                uint32_t bits = (uint32_t)r;

                                if (r >> 63)
                                        bits = (bits & 0x807fffff) |
                                               (uint32_t)(100 + (r >> 32) % 46) << 23;
                                from[i] = kernel_f32_of_bits(bits);
                        }
                        wrong += narrow_errors(kernel_tile_ops((enum kernel_isa)isa), from, 1024);
                }
                CU_ASSERT_EQUAL(wrong, 0);
        }
}

/* Halfway between every two neighbours, and one f32 step to either side: where rounding is decided.
 */
static void test_ties(void)
{
        FOR_EACH_ISA(isa)
        {
                unsigned wrong = 0;

                for (uint32_t half = 0; half < 0x7c00; half++) {
                        double low = oracle_f16_to_f64((uint16_t)half);
                        double high =
                                half == 0x7bff ? 65536 : oracle_f16_to_f64((uint16_t)(half + 1));
                        float middle = (float)((low + high) / 2);
                        float from[6];

                        from[0] = middle;
                        from[1] = nextafterf(middle, 0);
                        from[2] = nextafterf(middle, INFINITY);
                        for (int i = 0; i < 3; i++)
                                from[3 + i] = -from[i];
                        wrong += narrow_errors(kernel_tile_ops((enum kernel_isa)isa), from, 6);
                }
                CU_ASSERT_EQUAL(wrong, 0);
        }
}

static void test_limits(void)
{
        static const struct {
                float from;
                uint16_t to;
        } cases[] = {
                {0.0f, 0x0000},         {-0.0f, 0x8000},        {65504.0f, 0x7bff},
                {65519.996f, 0x7bff},   {65520.0f, 0x7c00},     {-65520.0f, 0xfc00},
                {1e30f, 0x7c00},        {INFINITY, 0x7c00},     {-INFINITY, 0xfc00},
                {0x1p-24f, 0x0001},     {0x1p-25f, 0x0000},     {0x1.000002p-25f, 0x0001},
                {-0x1p-24f, 0x8001},    {0x1.8p-24f, 0x0002},   {0x1p-14f, 0x0400},
                {0x1.ff8p-15f, 0x03ff}, {0x1.ffcp-15f, 0x0400}, {1e-40f, 0x0000},
                {-1e-40f, 0x8000},      {NAN, KERNEL_F16_NAN},  {-NAN, KERNEL_F16_NAN},
                {1.0f, 0x3c00},         {0x1.002p0f, 0x3c00},   {0x1.006p0f, 0x3c02},
        };

        FOR_EACH_ISA(isa)
        {
                for (size_t i = 0; i < COUNT_OF(cases); i++) {
                        uint16_t to = 0x1234;

                        kernel_tile_ops((enum kernel_isa)isa)
                                ->narrow(&to, &cases[i].from, KERNEL_F32, 1);
                        CU_ASSERT_EQUAL(to, cases[i].to);
                }
        }
}

int main(void)
{
        static const struct kernel_test tests[] = {
                {"every f16 to f32 and back", test_every_half},
                {"two million random f32", test_random_singles},
                {"ties between neighbours", test_ties},
                {"limits", test_limits},
        };

        return kernel_test_main("kernel f16", tests, COUNT_OF(tests));
}
