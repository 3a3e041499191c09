/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/operations.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/f16.h"
#include "tools/gen/weights.h"

static inline float element(const struct weight *weight, size_t index)
{
        if (weight->type == GGUF_TENSOR_F16)
                return kernel_f16_to_f32(((const uint16_t *)weight->data)[index]);
        return ((const float *)weight->data)[index];
}

void operation_rms_norm(const struct weight *scale, float epsilon, const float *x, float *out)
{
        const uint32_t count = scale->columns;
        double squares = 0;
        float factor;

        for (uint32_t i = 0; i < count; i++)
                squares += (double)x[i] * (double)x[i];
        factor = (float)(1 / sqrt(squares / count + (double)epsilon));
        for (uint32_t i = 0; i < count; i++)
                out[i] = x[i] * factor * element(scale, i);
}

void operation_rope_table(float base, uint32_t dim, uint32_t position, float *table)
{
        for (uint32_t i = 0; i < dim; i += 2) {
                const double angle = position * pow((double)base, -(double)i / dim);

                table[i] = (float)cos(angle);
                table[i + 1] = (float)sin(angle);
        }
}

void operation_rope(const float *table, uint32_t dim, float *heads, uint32_t count,
                    uint32_t head_dim)
{
        for (uint32_t h = 0; h < count; h++, heads += head_dim) {
                for (uint32_t i = 0; i < dim; i += 2) {
                        const float a = heads[i], b = heads[i + 1];

                        heads[i] = a * table[i] - b * table[i + 1];
                        heads[i + 1] = a * table[i + 1] + b * table[i];
                }
        }
}

void operation_swiglu(float *gate, const float *up, size_t count)
{
        for (size_t i = 0; i < count; i++) {
                const float x = gate[i];
                /* Of a number <= 0, so it cannot overflow. */
                const float e = kernel_exp(-fabsf(x));

                gate[i] = x * (x < 0 ? e : 1.0f) / (1.0f + e) * up[i];
        }
}

void operation_row(const struct weight *weight, uint32_t row, float *out)
{
        const size_t first = (size_t)row * weight->columns;

        for (uint32_t i = 0; i < weight->columns; i++)
                out[i] = element(weight, first + i);
}

uint32_t operation_argmax(const float *values, uint32_t count)
{
        uint32_t best = UINT32_MAX;

        for (uint32_t i = 0; i < count; i++) {
                if (isnan(values[i]) || values[i] == INFINITY)
                        return UINT32_MAX;
                if (values[i] > -INFINITY && (best == UINT32_MAX || values[i] > values[best]))
                        best = i;
        }
        return best;
}
