/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of the simulated driver share: a machine of their own in a fresh directory, the driver
 * table, and assertions that print the names of results.
 */
#ifndef GPUMEM_TESTS_SUPPORT_SIM_TEST_H
#define GPUMEM_TESTS_SUPPORT_SIM_TEST_H

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <CUnit/Basic.h>

#include "libclient/driver/driver.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)

#define SIM_TEST_UNUSED __attribute__((unused))

/* The driver under test and this process's primary context of device 0. */
static SIM_TEST_UNUSED struct driver *cuda;
static SIM_TEST_UNUSED CUcontext sim_test_context;

#define EXPECT(expected, call)                                                                     \
        do {                                                                                       \
                CUresult result_ = (call), expected_ = (expected);                                 \
                if (result_ != expected_)                                                          \
                        printf("\n  %s:%d: %s\n    is %s, not %s (%s)\n", __FILE__, __LINE__,      \
                               #call, driver_error_name(cuda, result_),                            \
                               driver_error_name(cuda, expected_), cuda->error_detail());          \
                CU_ASSERT_EQUAL(result_, expected_);                                               \
        } while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)

/* For steps without which nothing makes sense, and for processes that run no CUnit tests. */
#define REQUIRE(call)                                                                              \
        do {                                                                                       \
                CUresult result_ = (call);                                                         \
                if (result_ != CUDA_SUCCESS) {                                                     \
                        fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call,         \
                                driver_error_name(cuda, result_), cuda->error_detail());           \
                        exit(2);                                                                   \
                }                                                                                  \
        } while (0)

static inline void sim_test_set(const char *name, const char *value)
{
        if (setenv(name, value, 1) != 0) {
                perror("setenv");
                exit(2);
        }
}

/* Environment for a machine of its own. Children inherit it. */
static inline void sim_test_environment(char directory[64], const char *memory,
                                        const char *granularity)
{
        const char *build = getenv("GPUMEM_BUILD");
        char library[PATH_MAX];

        strcpy(directory, "/dev/shm/gpumem-test-XXXXXX");
        if (!mkdtemp(directory)) {
                perror(directory);
                exit(2);
        }
        snprintf(library, sizeof(library), "%s/libcuda-sim.so", build ? build : "build");
        sim_test_set("GPUMEM_SIM_LIBRARY", library);
        sim_test_set("GPUMEM_SIM_DIR", directory);
        sim_test_set("GPUMEM_SIM_MEMORY", memory);
        sim_test_set("GPUMEM_SIM_GRANULARITY", granularity);
        unsetenv("GPUMEM_SIM_DEVICES");
}

static inline void sim_test_open(void)
{
        char why[512];

        if (driver_open(&cuda, DRIVER_SIMULATED, NULL, why, sizeof(why)) != 0) {
                fprintf(stderr, "%s\n", why);
                exit(2);
        }
}

/* Opens, initialises and makes the primary context current; ends the process if that fails. */
static inline void sim_test_start(void)
{
        CUresult result;

        sim_test_open();
        result = cuda->init(0);
        if (result == CUDA_SUCCESS)
                result = cuda->device_primary_ctx_retain(&sim_test_context, 0);
        if (result == CUDA_SUCCESS)
                result = cuda->ctx_set_current(sim_test_context);
        if (result != CUDA_SUCCESS) {
                fprintf(stderr, "%s: %s\n", driver_error_name(cuda, result), cuda->error_detail());
                exit(2);
        }
}

/* Number of files in a directory, "." and ".." aside. */
static inline int sim_test_count_files(const char *directory)
{
        DIR *stream = opendir(directory);
        int count = 0;

        if (!stream)
                return -1;
        while (readdir(stream))
                count++;
        closedir(stream);
        return count - 2;
}

static inline void sim_test_remove(const char *directory)
{
        DIR *stream = opendir(directory);
        struct dirent *entry;

        if (!stream)
                return;
        while ((entry = readdir(stream)) != NULL)
                unlinkat(dirfd(stream), entry->d_name, 0);
        closedir(stream);
        rmdir(directory);
}

static inline size_t sim_test_free_bytes(void)
{
        size_t unused = 0, total;

        REQUIRE(cuda->mem_get_info(&unused, &total));
        return unused;
}

static inline void sim_test_sleep_ms(long milliseconds)
{
        struct timespec pause = {.tv_sec = milliseconds / 1000,
                                 .tv_nsec = milliseconds % 1000 * 1000000L};

        nanosleep(&pause, NULL);
}

static inline CUmemAllocationProp sim_test_properties(void)
{
        return (CUmemAllocationProp){
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
        };
}

static SIM_TEST_UNUSED const CUmemAccessDesc sim_test_read_write = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};
static SIM_TEST_UNUSED const CUmemAccessDesc sim_test_read_only = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READ,
};

/* A reserved range with memory mapped read-write all over it, in pieces. */
static inline CUdeviceptr sim_test_map(size_t piece_bytes, size_t pieces)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address = 0;
        size_t i;

        REQUIRE(cuda->mem_address_reserve(&address, piece_bytes * pieces, 0, 0, 0));
        for (i = 0; i < pieces; i++) {
                REQUIRE(cuda->mem_create(&handle, piece_bytes, &properties, 0));
                REQUIRE(cuda->mem_map(address + i * piece_bytes, piece_bytes, 0, handle, 0));
                REQUIRE(cuda->mem_release(handle));
        }
        REQUIRE(cuda->mem_set_access(address, piece_bytes * pieces, &sim_test_read_write, 1));
        return address;
}

static inline void sim_test_unmap(CUdeviceptr address, size_t bytes)
{
        OK(cuda->mem_unmap(address, bytes));
        OK(cuda->mem_address_free(address, bytes));
}

/* Runs what was registered and returns main's exit status. */
static inline int sim_test_finish(const char *directory)
{
        unsigned int failures;

        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        sim_test_remove(directory);
        driver_free(cuda);
        return failures != 0;
}

#endif
