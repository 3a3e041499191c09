/* SPDX-License-Identifier: Apache-2.0 */
/* Holds our declarations of the CUDA driver ABI against the toolkit's cuda.h, where that is
 * installed. */
#include <stdio.h>
#include <string.h>

#include <CUnit/Basic.h>

#include "tests/abi/cuda_abi.h"

static void test_same_as_toolkit(void)
{
        size_t i;

        if (abi_toolkit_count == 0) {
                printf("\n  skipped: no cuda.h of the CUDA toolkit was found when this was built\n  ");
                return;
        }
        CU_ASSERT_EQUAL_FATAL(abi_ours_count, abi_toolkit_count);
        for (i = 0; i < abi_ours_count; i++) {
                const struct abi_fact *ours = &abi_ours[i], *theirs = &abi_toolkit[i];

                CU_ASSERT_STRING_EQUAL(ours->name, theirs->name);
                if (ours->first != theirs->first || ours->second != theirs->second)
                        printf("\n  %s: ours %llu, %llu; cuda.h %llu, %llu\n", ours->name,
                               ours->first, ours->second, theirs->first, theirs->second);
                CU_ASSERT_EQUAL(ours->first, theirs->first);
                CU_ASSERT_EQUAL(ours->second, theirs->second);
        }
}

static const struct abi_fact *find(const char *name)
{
        size_t i;

        for (i = 0; i < abi_ours_count; i++)
                if (strcmp(abi_ours[i].name, name) == 0)
                        return &abi_ours[i];
        return NULL;
}

/* What x86-64 and AArch64 fix, known without a toolkit. */
static void test_known_facts(void)
{
        static const struct abi_fact known[] = {
                {"CUDA_ERROR_OUT_OF_MEMORY", 2, 0},
                {"CUDA_ERROR_NOT_READY", 600, 0},
                {"CUDA_ERROR_ILLEGAL_ADDRESS", 700, 0},
                {"CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 102, 0},
                {"CU_MEM_ACCESS_FLAGS_PROT_READWRITE", 3, 0},
                {"CUdeviceptr", 8, 8},
                {"CUmemGenericAllocationHandle", 8, 8},
                {"CUresult", 4, 4},
                {"CUuuid", 16, 1},
                {"CUmemAllocationProp", 32, 8},
                {"CUmemAccessDesc", 12, 4},
                {"CUDA_MEMCPY2D", 128, 8},
        };
        size_t i;

        for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
                const struct abi_fact *ours = find(known[i].name);

                CU_ASSERT_PTR_NOT_NULL_FATAL(ours);
                CU_ASSERT_EQUAL(ours->first, known[i].first);
                CU_ASSERT_EQUAL(ours->second, known[i].second);
        }
}

int main(void)
{
        CU_pSuite suite;
        unsigned int failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("cuda abi", NULL, NULL);
        if (!suite || !CU_add_test(suite, "same as the toolkit", test_same_as_toolkit) ||
            !CU_add_test(suite, "known without a toolkit", test_known_facts))
                return 1;
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures != 0;
}
