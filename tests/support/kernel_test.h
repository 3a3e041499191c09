/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel tests share: running a case on each instruction set, and being a CUnit program.
 */
#ifndef GPUMEM_TESTS_KERNEL_TEST_H
#define GPUMEM_TESTS_KERNEL_TEST_H

#include <CUnit/Basic.h>
#include <string.h>

#include "kernels/cpu/tile.h"
#include "tests/support/oracle.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const enum kernel_isa kernel_test_isas[] = {KERNEL_ISA_PORTABLE, KERNEL_ISA_AVX512};

/* for (each instruction set that this machine has) */
#define FOR_EACH_ISA(isa)                                                                          \
        for (size_t isa##_i = 0, isa = 0;                                                          \
             isa##_i < COUNT_OF(kernel_test_isas) && (isa = kernel_test_isas[isa##_i], true);      \
             isa##_i++)                                                                            \
                if (kernel_tile_ops((enum kernel_isa)isa))

enum kernel_test_how {
        BY_DECODE,
        BY_PREFILL,
};

/* Checks the operands, clears the results and runs. */
static inline void kernel_test_run(struct oracle_case *c, enum kernel_isa isa,
                                   struct kernel_pool *pool, enum kernel_test_how how)
{
        oracle_case_reset(c);
        CU_ASSERT_EQUAL_FATAL(kernel_attention_check(&c->args), KERNEL_OK);
        if (how == BY_DECODE) {
                CU_ASSERT_EQUAL(kernel_cpu_attention_decode_isa(isa, pool, &c->args), 0);
        } else {
                CU_ASSERT_EQUAL(kernel_cpu_attention_prefill_isa(isa, pool, &c->args), 0);
        }
}

/* Runs a case on every instruction set, by decode and by prefill, against float64. */
static inline void kernel_test_against_float64(struct oracle_case *c, struct kernel_pool *pool)
{
        FOR_EACH_ISA(isa)
        {
                kernel_test_run(c, (enum kernel_isa)isa, pool, BY_DECODE);
                CU_ASSERT_EQUAL(oracle_errors(c), 0);
                kernel_test_run(c, (enum kernel_isa)isa, pool, BY_PREFILL);
                CU_ASSERT_EQUAL(oracle_errors(c), 0);
        }
}

static inline bool kernel_test_same_bits(const struct oracle_case *a, const struct oracle_case *b)
{
        return oracle_out_bytes(a) == oracle_out_bytes(b) &&
               memcmp(a->out, b->out, oracle_out_bytes(a)) == 0 &&
               memcmp(a->lse, b->lse, oracle_lse_bytes(a)) == 0;
}

struct kernel_test {
        const char *name;
        CU_TestFunc run;
};

static inline int kernel_test_main(const char *suite_name, const struct kernel_test *tests,
                                   size_t count)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 2;
        suite = CU_add_suite(suite_name, NULL, NULL);
        for (size_t i = 0; suite && i < count; i++)
                if (!CU_add_test(suite, tests[i].name, tests[i].run))
                        suite = NULL;
        if (!suite) {
                CU_cleanup_registry();
                return 2;
        }
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}

#endif
