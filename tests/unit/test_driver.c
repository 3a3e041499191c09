/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/sim_test.h"

static char directory[64];

static void test_simulated_table_is_complete(void)
{
        char why[256] = "old";
        struct driver *driver;
        size_t entries = 0;
        void *member;

        CU_ASSERT_EQUAL_FATAL(driver_open(&driver, DRIVER_SIMULATED, NULL, why, sizeof(why)), 0);
        CU_ASSERT_STRING_EQUAL(why, "");
        CU_ASSERT_EQUAL(driver->kind, DRIVER_SIMULATED);
        CU_ASSERT_PTR_NOT_NULL(driver->host_view);
        CU_ASSERT_PTR_NOT_NULL(driver->error_detail);
#define DRIVER_ENTRY(name, symbol, parameters)                                                     \
        memcpy(&member, &driver->name, sizeof(member));                                            \
        CU_ASSERT_PTR_NOT_NULL(member);                                                            \
        entries++;
#define DRIVER_ENTRY_OR(name, symbol, older, parameters) DRIVER_ENTRY(name, symbol, parameters)
#define DRIVER_ENTRY_OPTIONAL                            DRIVER_ENTRY
#include "libclient/driver/entries.h"
#undef DRIVER_ENTRY
#undef DRIVER_ENTRY_OR
#undef DRIVER_ENTRY_OPTIONAL
        CU_ASSERT(entries > 60);
        CU_ASSERT_PTR_NULL(driver_free(driver));
        CU_ASSERT_PTR_NULL(driver_free(NULL));
}

static void test_missing_library(void)
{
        struct driver *driver;
        char why[256];

        CU_ASSERT_EQUAL(driver_open(&driver, DRIVER_SIMULATED, "/nonexistent/libcuda-sim.so", why,
                                    sizeof(why)),
                        -ENOENT);
        CU_ASSERT_PTR_NULL(driver);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "/nonexistent/libcuda-sim.so cannot be loaded: "));
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "GPUMEM_SIM_LIBRARY"));

        CU_ASSERT_EQUAL(
                driver_open(&driver, DRIVER_CUDA, "/nonexistent/libcuda.so.1", why, sizeof(why)),
                -ENOENT);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "set driver = simulated"));

        /* A short buffer is cut, not overrun; none is allowed. */
        CU_ASSERT_EQUAL(driver_open(&driver, DRIVER_CUDA, "/nonexistent", why, 8), -ENOENT);
        CU_ASSERT_EQUAL(strlen(why), 7);
        CU_ASSERT_EQUAL(driver_open(&driver, DRIVER_CUDA, "/nonexistent", NULL, 0), -ENOENT);
}

/* A library that is no driver must not be taken for one, and never silently replaced by a
 * simulation. */
static void test_not_a_driver(void)
{
        struct driver *driver;
        char why[256];

        CU_ASSERT_EQUAL(driver_open(&driver, DRIVER_CUDA, "libc.so.6", why, sizeof(why)), -ENOSYS);
        CU_ASSERT_PTR_NULL(driver);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "it has no cuInit"));
        CU_ASSERT_EQUAL(driver_open(&driver, DRIVER_SIMULATED, "libc.so.6", why, sizeof(why)),
                        -ENOSYS);
        CU_ASSERT_EQUAL(driver_open(&driver, (enum driver_kind)0, NULL, why, sizeof(why)), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "cuda or simulated"));
}

static void test_default_lookup(void)
{
        char saved[PATH_MAX], why[512];
        struct driver *driver;
        CUdevice device;

        snprintf(saved, sizeof(saved), "%s", getenv("GPUMEM_SIM_LIBRARY"));

        /* The environment decides over the loader's path ... */
        sim_test_set("GPUMEM_SIM_LIBRARY", "/nonexistent/from-environment.so");
        CU_ASSERT_EQUAL(driver_open(&driver, DRIVER_SIMULATED, NULL, why, sizeof(why)), -ENOENT);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "from-environment"));
        /* ... and an explicit path over the environment. */
        CU_ASSERT_EQUAL(driver_open(&driver, DRIVER_SIMULATED, saved, why, sizeof(why)), 0);
        driver_free(driver);
        /* The environment is the simulator's business only. */
        CU_ASSERT_NOT_EQUAL(driver_open(&driver, DRIVER_CUDA, "/nonexistent", why, sizeof(why)), 0);
        CU_ASSERT_PTR_NULL(strstr(why, "from-environment"));
        sim_test_set("GPUMEM_SIM_LIBRARY", saved);

        CU_ASSERT_EQUAL_FATAL(driver_open(&driver, DRIVER_SIMULATED, "", why, sizeof(why)), 0);
        /* Loading does not initialise. */
        CU_ASSERT_EQUAL(driver->device_get(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
        driver_free(driver);
}

static void test_kind_names(void)
{
        enum driver_kind kind = DRIVER_CUDA;

        CU_ASSERT_STRING_EQUAL(driver_kind_name(DRIVER_CUDA), "cuda");
        CU_ASSERT_STRING_EQUAL(driver_kind_name(DRIVER_SIMULATED), "simulated");
        CU_ASSERT_STRING_EQUAL(driver_kind_name((enum driver_kind)7), "unknown");
        CU_ASSERT_EQUAL(driver_kind_parse("simulated", &kind), 0);
        CU_ASSERT_EQUAL(kind, DRIVER_SIMULATED);
        CU_ASSERT_EQUAL(driver_kind_parse("cuda", &kind), 0);
        CU_ASSERT_EQUAL(kind, DRIVER_CUDA);
        CU_ASSERT_EQUAL(driver_kind_parse("CUDA", &kind), -EINVAL);
        CU_ASSERT_EQUAL(driver_kind_parse("", &kind), -EINVAL);
        CU_ASSERT_EQUAL(kind, DRIVER_CUDA);
}

static void test_errors(void)
{
        CU_ASSERT_EQUAL(driver_errno(CUDA_SUCCESS), 0);
        CU_ASSERT_EQUAL(driver_errno(CUDA_ERROR_OUT_OF_MEMORY), -ENOMEM);
        CU_ASSERT_EQUAL(driver_errno(CUDA_ERROR_INVALID_VALUE), -EINVAL);
        CU_ASSERT_EQUAL(driver_errno(CUDA_ERROR_NOT_SUPPORTED), -EOPNOTSUPP);
        CU_ASSERT_EQUAL(driver_errno(CUDA_ERROR_NO_DEVICE), -ENODEV);
        CU_ASSERT_EQUAL(driver_errno(CUDA_ERROR_NOT_READY), -EAGAIN);
        CU_ASSERT_EQUAL(driver_errno(CUDA_ERROR_ILLEGAL_ADDRESS), -EFAULT);
        CU_ASSERT_EQUAL(driver_errno(CUDA_ERROR_UNKNOWN), -EIO);
        CU_ASSERT_EQUAL(driver_errno((CUresult)12345), -EIO);

        sim_test_open();
        CU_ASSERT_STRING_EQUAL(driver_error_name(cuda, CUDA_ERROR_OUT_OF_MEMORY),
                               "CUDA_ERROR_OUT_OF_MEMORY");
        CU_ASSERT_STRING_EQUAL(driver_error_name(cuda, CUDA_SUCCESS), "CUDA_SUCCESS");
        CU_ASSERT_PTR_NOT_NULL(strstr(driver_error_name(cuda, (CUresult)12345), "unknown"));
}

int main(void)
{
        CU_pSuite suite;

        sim_test_environment(directory, "8M", "64K");
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("driver", NULL, NULL);
        CU_add_test(suite, "the simulator fills the whole table", test_simulated_table_is_complete);
        CU_add_test(suite, "a missing library is explained", test_missing_library);
        CU_add_test(suite, "a library that is no driver", test_not_a_driver);
        CU_add_test(suite, "where the simulator is looked for", test_default_lookup);
        CU_add_test(suite, "names of kinds", test_kind_names);
        CU_add_test(suite, "results as errno and as names", test_errors);
        return sim_test_finish(directory);
}
