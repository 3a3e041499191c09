/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/matmul.h"

#include "kernels/cpu/f16.h"

#define LANES       MATMUL_LANES
#define BLOCK_ROWS  32 /* per piece of work: f16 rows of 4096 columns fill half of an L2 */
#define TILE_TOKENS 4

/* Under this many products (some 100 us) waking threads costs more than they save, above all on a
 * machine where others work too. */
#define SERIAL_PRODUCTS (UINT64_C(1) << 22)

static inline float sum_lanes(const float *lane)
{
        float eight[8], four[4];

        for (int i = 0; i < 8; i++)
                eight[i] = lane[i] + lane[i + 8];
        for (int i = 0; i < 4; i++)
                four[i] = eight[i] + eight[i + 4];
        return (four[0] + four[2]) + (four[1] + four[3]);
}

static inline void load_lanes(const struct weight *weight, const void *row, uint32_t column,
                              uint32_t count, float *lane)
{
        if (weight->type == GGUF_TENSOR_F16) {
                const uint16_t *half = (const uint16_t *)row + column;

                for (uint32_t i = 0; i < count; i++)
                        lane[i] = kernel_f16_to_f32(half[i]);
        } else {
                const float *full = (const float *)row + column;

                for (uint32_t i = 0; i < count; i++)
                        lane[i] = full[i];
        }
}

void matmul_rows_portable(const struct matmul *args, uint32_t first, uint32_t rows)
{
        const struct weight *weight = args->weight;
        const uint32_t columns = weight->columns;
        const size_t row_bytes = (size_t)columns * (weight->type == GGUF_TENSOR_F16 ? 2 : 4);

        for (uint32_t token = 0; token < args->tokens; token += TILE_TOKENS) {
                const uint32_t left = args->tokens - token;
                const uint32_t tokens = left < TILE_TOKENS ? left : TILE_TOKENS;

                for (uint32_t row = first; row < first + rows; row++) {
                        const unsigned char *data =
                                (const unsigned char *)weight->data + row * row_bytes;
                        float sums[TILE_TOKENS][LANES] = {{0}};
                        uint32_t column = 0;

                        for (; column + LANES <= columns; column += LANES) {
                                float w[LANES];

                                load_lanes(weight, data, column, LANES, w);
                                for (uint32_t t = 0; t < tokens; t++) {
                                        const float *x =
                                                args->x + (size_t)(token + t) * columns + column;

                                        for (int i = 0; i < LANES; i++)
                                                sums[t][i] += w[i] * x[i];
                                }
                        }
                        if (column < columns) {
                                float w[LANES];

                                load_lanes(weight, data, column, columns - column, w);
                                for (uint32_t t = 0; t < tokens; t++) {
                                        const float *x =
                                                args->x + (size_t)(token + t) * columns + column;

                                        for (uint32_t i = 0; i < columns - column; i++)
                                                sums[t][i] += w[i] * x[i];
                                }
                        }
                        for (uint32_t t = 0; t < tokens; t++) {
                                float *out = args->out + (size_t)(token + t) * weight->rows + row;
                                const float sum = sum_lanes(sums[t]);

                                *out = args->add ? *out + sum : sum;
                        }
                }
        }
}

struct work {
        const struct matmul *args;
        void (*rows)(const struct matmul *args, uint32_t first, uint32_t rows);
};

static void run_block(void *context, size_t index)
{
        const struct work *work = context;
        const uint32_t first = (uint32_t)index * BLOCK_ROWS;
        const uint32_t left = work->args->weight->rows - first;

        work->rows(work->args, first, left < BLOCK_ROWS ? left : BLOCK_ROWS);
}

void matmul_run(struct kernel_pool *pool, enum kernel_isa isa, const struct matmul *args)
{
        struct work work = {args, matmul_rows_portable};
        const uint32_t rows = args->weight->rows;

#ifdef __x86_64__
        if (isa == KERNEL_ISA_AVX512)
                work.rows = matmul_rows_avx512;
#else
        (void)isa;
#endif
        if (!pool || (uint64_t)rows * args->weight->columns * args->tokens < SERIAL_PRODUCTS)
                work.rows(args, 0, rows);
        else
                kernel_pool_run(pool, run_block, &work, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS);
}
