/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/gen/matmul.c and operations.c: against sums in f64, and that a row's result depends on
 * nothing but the row: the promise that makes batched and single runs the same.
 */
#include <CUnit/Basic.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/f16.h"
#include "tools/gen/matmul.h"
#include "tools/gen/operations.h"

struct problem {
        struct weight weight;
        void *data;
        float *x, *out;
        uint32_t tokens;
};

static float uniform(uint64_t *state)
{
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (float)((double)(*state >> 40) * 0x1p-23 - 1);
}

static void problem_init(struct problem *problem, uint32_t rows, uint32_t columns, uint32_t tokens,
                         bool f16)
{
        uint64_t state = rows * 1000003u + columns * 1009u + tokens * 2 + f16;
        const size_t elements = (size_t)rows * columns;

        *problem = (struct problem){
                .weight = {.type = f16 ? GGUF_TENSOR_F16 : GGUF_TENSOR_F32,
                           .rows = rows,
                           .columns = columns},
                .data = malloc(elements * 4),
                .x = malloc((size_t)tokens * columns * 4),
                .out = malloc((size_t)tokens * rows * 4),
                .tokens = tokens,
        };
        CU_ASSERT_FATAL(problem->data && problem->x && problem->out);
        for (size_t i = 0; i < elements; i++) {
                if (f16)
                        ((uint16_t *)problem->data)[i] = kernel_f32_to_f16(uniform(&state));
                else
                        ((float *)problem->data)[i] = uniform(&state);
        }
        for (size_t i = 0; i < (size_t)tokens * columns; i++)
                problem->x[i] = uniform(&state);
        problem->weight.data = problem->data;
}

static void problem_deinit(struct problem *problem)
{
        free(problem->data);
        free(problem->x);
        free(problem->out);
}

static void run(const struct problem *problem, struct kernel_pool *pool, enum kernel_isa isa,
                uint32_t first, uint32_t tokens, float *out, bool add)
{
        const struct matmul args = {
                .weight = &problem->weight,
                .x = problem->x + (size_t)first * problem->weight.columns,
                .out = out,
                .tokens = tokens,
                .add = add,
        };

        matmul_run(pool, isa, &args);
}

static double weight_at(const struct problem *problem, size_t index)
{
        return problem->weight.type == GGUF_TENSOR_F16
                       ? (double)kernel_f16_to_f32(((const uint16_t *)problem->data)[index])
                       : (double)((const float *)problem->data)[index];
}

/* Each result within the error that so many roundings can make. */
static void assert_close(const struct problem *problem)
{
        const uint32_t columns = problem->weight.columns, rows = problem->weight.rows;
        double worst = 0;

        for (uint32_t t = 0; t < problem->tokens; t++) {
                for (uint32_t r = 0; r < rows; r++) {
                        double sum = 0, size = 0;

                        for (uint32_t c = 0; c < columns; c++) {
                                const double product = weight_at(problem, (size_t)r * columns + c) *
                                                       (double)problem->x[t * columns + c];

                                sum += product;
                                size += fabs(product);
                        }
                        const double error =
                                fabs((double)problem->out[(size_t)t * rows + r] - sum) /
                                (size * FLT_EPSILON + DBL_MIN);

                        worst = error > worst ? error : worst;
                }
        }
        /* Additions per lane, the tree, the product. */
        CU_ASSERT(worst <= columns / MATMUL_LANES + 6.0);
}

static const enum kernel_isa isas[] = {KERNEL_ISA_PORTABLE, KERNEL_ISA_AVX512};

static bool have(enum kernel_isa isa)
{
        return isa == KERNEL_ISA_PORTABLE ||
               (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
}

static const uint32_t shapes[][3] = {
        /* rows, columns, tokens; the last one is large enough for threads */
        {1, 1, 1},    {1, 15, 2},     {3, 16, 3},     {4, 17, 4},     {5, 31, 5},
        {8, 32, 1},   {9, 33, 7},     {31, 48, 8},    {33, 100, 9},   {64, 448, 13},
        {7, 5000, 4}, {100, 256, 70}, {300, 257, 33}, {700, 1000, 9},
};

static void test_against_f64(void)
{
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
                for (int f16 = 0; f16 < 2; f16++) {
                        struct problem problem;

                        problem_init(&problem, shapes[i][0], shapes[i][1], shapes[i][2], f16);
                        for (size_t j = 0; j < 2; j++) {
                                if (!have(isas[j]))
                                        continue;
                                run(&problem, NULL, isas[j], 0, problem.tokens, problem.out, false);
                                assert_close(&problem);
                        }
                        problem_deinit(&problem);
                }
        }
}

/* One token at a time, in groups, with threads: the same bits. */
static void test_batch_invariance(void)
{
        struct kernel_pool *pool;

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 3), 0);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
                for (int kind = 0; kind < 4; kind++) {
                        const enum kernel_isa isa = isas[kind / 2];
                        struct problem problem;
                        float *other;
                        size_t bytes;

                        if (!have(isa))
                                continue;
                        problem_init(&problem, shapes[i][0], shapes[i][1], shapes[i][2], kind % 2);
                        bytes = (size_t)problem.tokens * shapes[i][0] * 4;
                        other = malloc(bytes);
                        CU_ASSERT_PTR_NOT_NULL_FATAL(other);
                        run(&problem, NULL, isa, 0, problem.tokens, problem.out, false);
                        run(&problem, pool, isa, 0, problem.tokens, other, false);
                        CU_ASSERT(!memcmp(problem.out, other, bytes));
                        for (uint32_t group = 1; group <= 6; group++) {
                                memset(other, 0xff, bytes);
                                for (uint32_t t = 0; t < problem.tokens; t += group) {
                                        const uint32_t left = problem.tokens - t;

                                        run(&problem, pool, isa, t, left < group ? left : group,
                                            other + (size_t)t * shapes[i][0], false);
                                }
                                CU_ASSERT(!memcmp(problem.out, other, bytes));
                        }
                        free(other);
                        problem_deinit(&problem);
                }
        }
        kernel_pool_free(pool);
}

/* Where a block begins does not matter either. */
static void test_row_invariance(void)
{
        for (int kind = 0; kind < 4; kind++) {
                void (*const rows_of[])(const struct matmul *, uint32_t,
                                        uint32_t) = {matmul_rows_portable, matmul_rows_avx512};
                struct problem problem;
                float other[37 * 5];
                struct matmul args;

                if (!have(isas[kind / 2]))
                        continue;
                problem_init(&problem, 37, 70, 5, kind % 2);
                args = (struct matmul){&problem.weight, problem.x, problem.out, 5, false};
                rows_of[kind / 2](&args, 0, 37);
                for (uint32_t step = 1; step < 12; step++) {
                        memset(other, 0xff, sizeof(other));
                        args.out = other;
                        for (uint32_t r = 0; r < 37; r += step)
                                rows_of[kind / 2](&args, r, 37 - r < step ? 37 - r : step);
                        CU_ASSERT(!memcmp(problem.out, other, sizeof(other)));
                }
                problem_deinit(&problem);
        }
}

static void test_add(void)
{
        for (int kind = 0; kind < 4; kind++) {
                struct problem problem;
                float sums[20 * 6];

                if (!have(isas[kind / 2]))
                        continue;
                problem_init(&problem, 20, 40, 6, kind % 2);
                run(&problem, NULL, isas[kind / 2], 0, 6, problem.out, false);
                for (int i = 0; i < 120; i++)
                        sums[i] = (float)i;
                run(&problem, NULL, isas[kind / 2], 0, 6, sums, true);
                for (int i = 0; i < 120; i++)
                        CU_ASSERT_EQUAL(sums[i], (float)i + problem.out[i]);
                problem_deinit(&problem);
        }
}

/* What lies behind a row is not multiplied by zero: it is not read. */
static void test_tail(void)
{
        for (int kind = 0; kind < 4; kind++) {
                struct problem problem;

                if (!have(isas[kind / 2]))
                        continue;
                problem_init(&problem, 2, 19, 2, kind % 2);
                /* The second row and token are NaN; the first ones end in the middle of a vector.
                 */
                if (kind % 2)
                        memset((uint16_t *)problem.data + 19, 0xff, 19 * 2);
                else
                        memset((float *)problem.data + 19, 0xff, 19 * 4);
                memset(problem.x + 19, 0xff, 19 * 4);
                run(&problem, NULL, isas[kind / 2], 0, 2, problem.out, false);
                CU_ASSERT(isfinite(problem.out[0]));
                CU_ASSERT(isnan(problem.out[1]) && isnan(problem.out[2]) && isnan(problem.out[3]));
                problem_deinit(&problem);
        }
}

static void test_rms_norm(void)
{
        const uint16_t half[3] = {kernel_f32_to_f16(1), kernel_f32_to_f16(2),
                                  kernel_f32_to_f16(-1)};
        const float full[3] = {1, 2, -1}, x[3] = {3, -4, 5}, zero[3] = {0};
        const struct weight scales[2] = {
                {.type = GGUF_TENSOR_F32, .rows = 1, .columns = 3, .data = full},
                {.type = GGUF_TENSOR_F16, .rows = 1, .columns = 3, .data = half}};
        const double root = sqrt(50.0 / 3 + 1e-5);

        for (int i = 0; i < 2; i++) {
                float out[3];

                operation_rms_norm(&scales[i], 1e-5f, x, out);
                for (int j = 0; j < 3; j++)
                        CU_ASSERT_DOUBLE_EQUAL(out[j], (double)x[j] / root * (double)full[j], 1e-6);
                operation_rms_norm(&scales[i], 1e-5f, zero, out);
                CU_ASSERT_EQUAL(out[0], 0.0f);
        }
}

static void test_rope(void)
{
        float table[4], heads[2 * 6] = {1, 2, 3, 4, 5, 6, -1, 0, 0, 1, 7, 8}, before[12];

        memcpy(before, heads, sizeof(heads));
        operation_rope_table(100, 4, 3, table);
        CU_ASSERT_DOUBLE_EQUAL(table[0], cos(3), 1e-7);
        CU_ASSERT_DOUBLE_EQUAL(table[1], sin(3), 1e-7);
        CU_ASSERT_DOUBLE_EQUAL(table[2], cos(0.3), 1e-7); /* 3 / 100^(2/4) */
        CU_ASSERT_DOUBLE_EQUAL(table[3], sin(0.3), 1e-7);
        operation_rope(table, 4, heads, 2, 6);
        for (int h = 0; h < 2; h++) {
                const float *a = before + h * 6, *b = heads + h * 6;

                CU_ASSERT_DOUBLE_EQUAL(b[0], (double)a[0] * cos(3) - (double)a[1] * sin(3), 1e-5);
                CU_ASSERT_DOUBLE_EQUAL(b[1], (double)a[0] * sin(3) + (double)a[1] * cos(3), 1e-5);
                CU_ASSERT_DOUBLE_EQUAL(b[2], (double)a[2] * cos(.3) - (double)a[3] * sin(.3), 1e-5);
                CU_ASSERT_DOUBLE_EQUAL(b[3], (double)a[2] * sin(.3) + (double)a[3] * cos(.3), 1e-5);
                CU_ASSERT_EQUAL(b[4], a[4]);
                CU_ASSERT_EQUAL(b[5], a[5]);
        }
}

static void test_swiglu(void)
{
        static const float xs[] = {0, 1, -1, 10, -10, 88, -88, 1e4f, -1e4f, 1e-20f};

        for (size_t i = 0; i < sizeof(xs) / sizeof(xs[0]); i++) {
                float gate = xs[i];
                const float up = 3;
                const double expected = (double)xs[i] / (1 + exp(-(double)xs[i])) * 3;

                operation_swiglu(&gate, &up, 1);
                CU_ASSERT_DOUBLE_EQUAL(gate, expected, fabs(expected) * 1e-6 + 1e-30);
        }
}

static void test_argmax(void)
{
        const float same[] = {1, 5, 5, 2}, nan[] = {1, NAN, 7}, none[] = {-INFINITY, -INFINITY},
                    some[] = {-INFINITY, -3, -4}, infinite[] = {1, INFINITY};

        CU_ASSERT_EQUAL(operation_argmax(same, 4), 1);
        CU_ASSERT_EQUAL(operation_argmax(nan, 3), UINT32_MAX);
        CU_ASSERT_EQUAL(operation_argmax(none, 2), UINT32_MAX);
        CU_ASSERT_EQUAL(operation_argmax(some, 3), 1);
        CU_ASSERT_EQUAL(operation_argmax(infinite, 2), UINT32_MAX);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("matmul", NULL, NULL);
        if (!suite || !CU_add_test(suite, "against f64", test_against_f64) ||
            !CU_add_test(suite, "whatever the batch", test_batch_invariance) ||
            !CU_add_test(suite, "whatever the block of rows", test_row_invariance) ||
            !CU_add_test(suite, "adding", test_add) || !CU_add_test(suite, "tails", test_tail) ||
            !CU_add_test(suite, "RMS norm", test_rms_norm) ||
            !CU_add_test(suite, "rotation", test_rope) ||
            !CU_add_test(suite, "SwiGLU", test_swiglu) ||
            !CU_add_test(suite, "argmax", test_argmax))
                return 1;
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures() + CU_get_number_of_tests_failed();
        CU_cleanup_registry();
        return failures ? 1 : 0;
}
