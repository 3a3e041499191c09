/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment makes of a simulated machine: latency profiles, memory that returns late,
 * sparse memory, and the limit on mappings.
 *
 * Each case is a process of its own, this program again: `--child WHAT`. Its exit status is 0 or
 * the number of the step that was not as it should be.
 */
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/support/sim_test.h"

#define GRANULE (64 * KIB)

static char directory[64];

/* In a child: the step's number is the exit status. */
#define STEP(number, condition)                                                                    \
        do {                                                                                       \
                if (!(condition)) {                                                                \
                        fprintf(stderr, "step %d: %s is false (%s)\n", number, #condition,         \
                                cuda->error_detail());                                             \
                        return number;                                                             \
                }                                                                                  \
        } while (0)

static double now_us(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* --- children ------------------------------------------------------------------------------------
 */

/* Mean microseconds of the calls of 40 rounds. */
struct times {
        double reserve, create, map, set_access, unmap, release;
};

static struct times measure(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        const int rounds = 40;
        struct times sum = {0};
        int i;

        for (i = 0; i < rounds; i++) {
                CUmemGenericAllocationHandle handle;
                double t[7];
                CUdeviceptr va;

                t[0] = now_us();
                REQUIRE(cuda->mem_address_reserve(&va, GRANULE, 0, 0, 0));
                t[1] = now_us();
                REQUIRE(cuda->mem_create(&handle, GRANULE, &properties, 0));
                t[2] = now_us();
                REQUIRE(cuda->mem_map(va, GRANULE, 0, handle, 0));
                t[3] = now_us();
                REQUIRE(cuda->mem_set_access(va, GRANULE, &sim_test_read_write, 1));
                t[4] = now_us();
                REQUIRE(cuda->mem_unmap(va, GRANULE));
                t[5] = now_us();
                REQUIRE(cuda->mem_release(handle));
                t[6] = now_us();
                REQUIRE(cuda->mem_address_free(va, GRANULE));
                sum.reserve += (t[1] - t[0]) / rounds;
                sum.create += (t[2] - t[1]) / rounds;
                sum.map += (t[3] - t[2]) / rounds;
                sum.set_access += (t[4] - t[3]) / rounds;
                sum.unmap += (t[5] - t[4]) / rounds;
                sum.release += (t[6] - t[5]) / rounds;
        }
        return sum;
}

/* Never faster than the profile. How much slower is up to the machine this runs on. */
static int child_a100(void)
{
        struct times times;

        sim_test_start();
        times = measure();
        printf("\n    mean us: reserve %.1f, create %.1f, map %.1f, set access %.1f, unmap %.1f\n  ",
               times.reserve, times.create, times.map, times.set_access, times.unmap);
        STEP(1, times.create >= 193);
        STEP(2, times.map >= 1.5);
        STEP(3, times.set_access >= 36);
        STEP(4, times.unmap >= 26);
        STEP(5, times.reserve >= 19);
        return 0;
}

/* A file of one's own: "release = 3000", and calls by their name. */
static int child_file(void)
{
        struct times times;
        double start;

        sim_test_start();
        times = measure();
        STEP(1, times.release >= 3000);
        STEP(2, times.reserve < 3000);
        start = now_us();
        REQUIRE(cuda->mem_alloc(&(CUdeviceptr){0}, 1));
        STEP(3, now_us() - start >= 5000);
        /* A call that fails takes no time. */
        start = now_us();
        STEP(4, cuda->mem_release(12345) == CUDA_ERROR_INVALID_VALUE);
        STEP(5, now_us() - start < 3000);
        return 0;
}

static int child_init_fails(const char *expected)
{
        sim_test_open();
        STEP(1, cuda->init(0) == CUDA_ERROR_INVALID_VALUE);
        STEP(2, strstr(cuda->error_detail(), expected) != NULL);
        return 0;
}

static int child_hold(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;

        sim_test_start();
        REQUIRE(cuda->mem_create(&handle, 4 * GRANULE, &properties, 0));
        if (write(STDOUT_FILENO, "r", 1) != 1)
                return 1;
        for (;;)
                pause();
}

static pid_t spawn(const char *what, int *output);

/* With late_return = 60000: a killed process's memory is not there at once, and is there later. */
static int child_late(void)
{
        size_t before;
        double start;
        int output, status;
        pid_t child;
        char byte;

        sim_test_start();
        before = sim_test_free_bytes();
        child = spawn("hold", &output);
        STEP(1, read(output, &byte, 1) == 1);
        STEP(2, sim_test_free_bytes() == before - 4 * GRANULE);
        start = now_us();
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        while (sim_test_free_bytes() != before) {
                STEP(3, now_us() - start < 20e6);
                sim_test_sleep_ms(1);
        }
        STEP(4, now_us() - start >= 60000);
        return 0;
}

/* More than there is. */
static int child_sparse(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        const size_t bytes = 40ull << 30;
        unsigned char byte = 7;
        CUdeviceptr va;
        char name[100];

        sim_test_start();
        REQUIRE(cuda->device_get_name(name, sizeof(name), 0));
        STEP(1, strstr(name, "sparse") != NULL);
        REQUIRE(cuda->mem_create(&handle, bytes, &properties, 0));
        STEP(2, sim_test_free_bytes() == 8ull << 30);
        REQUIRE(cuda->mem_address_reserve(&va, bytes, 0, 0, 0));
        REQUIRE(cuda->mem_map(va, bytes, 0, handle, 0));
        REQUIRE(cuda->mem_set_access(va, bytes, &sim_test_read_write, 1));
        REQUIRE(cuda->memcpy_htod(va + bytes - 1, &byte, 1));
        byte = 0;
        REQUIRE(cuda->memcpy_dtoh(&byte, va + bytes - 1, 1));
        STEP(3, byte == 7);
        REQUIRE(cuda->memcpy_dtoh(&byte, va, 1));
        STEP(4, byte == 0); /* the exception: not committed, hence not poisoned */
        return 0;
}

static size_t mappings_allowed(void)
{
        FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
        size_t limit = 0;

        if (file) {
                if (fscanf(file, "%zu", &limit) != 1)
                        limit = 0;
                fclose(file);
        }
        return limit;
}

/*
 * The kernel's limit on mappings: a clear error, nothing half done, and what is there can be taken
 * away again.
 */
static int child_mappings(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        const size_t granule = 4096, most = 70000;
        CUmemGenericAllocationHandle handle, other;
        CUresult result = CUDA_SUCCESS;
        size_t count = 0, i;
        CUdeviceptr va;

        if (mappings_allowed() >= most) {
                printf("\n  skipped: vm.max_map_count is raised here, reaching it takes too long\n  ");
                return 0;
        }
        sim_test_start();
        REQUIRE(cuda->mem_create(&handle, granule, &properties, 0));
        REQUIRE(cuda->mem_address_reserve(&va, most * granule, 0, 0, 0));
        while (count < most) {
                result = cuda->mem_map(va + count * granule, granule, 0, handle, 0);
                if (result != CUDA_SUCCESS)
                        break;
                count++;
        }
        STEP(1, result == CUDA_ERROR_OPERATING_SYSTEM);
        STEP(2, strstr(cuda->error_detail(), "max_map_count") != NULL);
        STEP(3, count > 10000);
        /* Still at the limit, not beyond, and the failed call left nothing. */
        STEP(4, cuda->mem_map(va + count * granule, granule, 0, handle, 0) ==
                        CUDA_ERROR_OPERATING_SYSTEM);
        STEP(5, cuda->mem_unmap(va + count * granule, granule) == CUDA_ERROR_INVALID_VALUE);
        /* Other calls go on. */
        STEP(6, cuda->mem_create(&other, granule, &properties, 0) == CUDA_SUCCESS);
        STEP(7, cuda->mem_release(other) == CUDA_SUCCESS);
        for (i = 0; i < count; i++)
                STEP(8, cuda->mem_unmap(va + i * granule, granule) == CUDA_SUCCESS);
        STEP(9, cuda->mem_map(va, granule, 0, handle, 0) == CUDA_SUCCESS);
        STEP(10, cuda->mem_set_access(va, granule, &sim_test_read_write, 1) == CUDA_SUCCESS);
        STEP(11, cuda->memset_d8(va, 1, granule) == CUDA_SUCCESS);
        STEP(12, cuda->mem_unmap(va, granule) == CUDA_SUCCESS);
        STEP(13, cuda->mem_address_free(va, most * granule) == CUDA_SUCCESS);
        STEP(14, cuda->mem_release(handle) == CUDA_SUCCESS);
        return 0;
}

/* Every open memory handle takes a descriptor: running out of them says so. */
static int child_descriptors(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handles[200], handle;
        struct rlimit limit = {.rlim_cur = 64, .rlim_max = 64};
        CUresult result = CUDA_SUCCESS;
        size_t count = 0, before;

        sim_test_start();
        before = sim_test_free_bytes();
        setrlimit(RLIMIT_NOFILE, &limit);
        while (count < 200) {
                result = cuda->mem_create(&handles[count], GRANULE, &properties, 0);
                if (result != CUDA_SUCCESS)
                        break;
                count++;
        }
        STEP(1, result == CUDA_ERROR_OPERATING_SYSTEM);
        STEP(2, strstr(cuda->error_detail(), "descriptor") != NULL);
        STEP(3, cuda->mem_release(handles[--count]) == CUDA_SUCCESS);
        STEP(4, cuda->mem_create(&handle, GRANULE, &properties, 0) == CUDA_SUCCESS);
        STEP(5, cuda->mem_release(handle) == CUDA_SUCCESS);
        while (count > 0)
                STEP(6, cuda->mem_release(handles[--count]) == CUDA_SUCCESS);
        STEP(7, sim_test_free_bytes() == before);
        return 0;
}

static int child_main(const char *what)
{
        if (strcmp(what, "a100") == 0)
                return child_a100();
        if (strcmp(what, "file") == 0)
                return child_file();
        if (strcmp(what, "no-such") == 0)
                return child_init_fails("there is no no-such.profile");
        if (strcmp(what, "bad-file") == 0)
                return child_init_fails("bad.profile:2 is not");
        if (strcmp(what, "bad-sparse") == 0)
                return child_init_fails("GPUMEM_SIM_SPARSE=yes");
        if (strcmp(what, "hold") == 0)
                return child_hold();
        if (strcmp(what, "late") == 0)
                return child_late();
        if (strcmp(what, "sparse") == 0)
                return child_sparse();
        if (strcmp(what, "mappings") == 0)
                return child_mappings();
        if (strcmp(what, "descriptors") == 0)
                return child_descriptors();
        return 99;
}

/* --- tests ---------------------------------------------------------------------------------------
 */

/* `output` may be NULL: the child's standard output is ours then. */
static pid_t spawn(const char *what, int *output)
{
        char program[] = "/proc/self/exe", option[] = "--child", argument[16];
        char *arguments[] = {program, option, argument, NULL};
        int ends[2] = {-1, -1};
        pid_t child;

        if (output && pipe(ends) != 0)
                exit(2);
        snprintf(argument, sizeof(argument), "%s", what);
        fflush(stdout);
        child = fork();
        if (child == 0) {
                if (output)
                        dup2(ends[1], STDOUT_FILENO);
                execv(program, arguments);
                _exit(127);
        }
        if (output) {
                close(ends[1]);
                *output = ends[0];
        }
        return child;
}

/* One child with one variable set differently. */
static void run(const char *what, const char *variable, const char *value)
{
        const char *old = variable ? getenv(variable) : NULL;
        char saved[128] = "";
        int status = -1;
        pid_t child;

        if (old)
                snprintf(saved, sizeof(saved), "%s", old);
        if (variable)
                sim_test_set(variable, value);
        child = spawn(what, NULL);
        if (variable && old)
                sim_test_set(variable, saved);
        else if (variable)
                unsetenv(variable);
        CU_ASSERT_FATAL(child > 0);
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        CU_ASSERT(WIFEXITED(status));
        CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
}

static void write_file(const char *name, const char *text, char path[128])
{
        FILE *file;

        snprintf(path, 128, "%s/%s", directory, name);
        file = fopen(path, "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        fputs(text, file);
        fclose(file);
}

static void test_a100(void)
{
        run("a100", "GPUMEM_SIM_PROFILE", "a100");
}

static void test_file(void)
{
        char path[128];

        write_file("own.profile", "# mine\n\nrelease=3000 # slow\n  cuMemAlloc = 5000\n", path);
        run("file", "GPUMEM_SIM_PROFILE", path);
        write_file("bad.profile", "create = 1\ncreate = soon\n", path);
        run("bad-file", "GPUMEM_SIM_PROFILE", path);
        run("no-such", "GPUMEM_SIM_PROFILE", "no-such");
}

static void test_late_return(void)
{
        char path[128];

        write_file("late.profile", "late_return = 60000\n", path);
        run("late", "GPUMEM_SIM_PROFILE", path);
}

static void test_sparse(void)
{
        char saved[32];

        snprintf(saved, sizeof(saved), "%s", getenv("GPUMEM_SIM_MEMORY"));
        sim_test_set("GPUMEM_SIM_MEMORY", "48G");
        run("sparse", "GPUMEM_SIM_SPARSE", "1");
        sim_test_set("GPUMEM_SIM_MEMORY", saved);
        run("bad-sparse", "GPUMEM_SIM_SPARSE", "yes");
}

static void test_mappings(void)
{
        run("mappings", "GPUMEM_SIM_GRANULARITY", "4K");
}

static void test_descriptors(void)
{
        run("descriptors", NULL, NULL);
}

int main(int argc, char **argv)
{
        CU_pSuite suite;

        if (argc == 3 && strcmp(argv[1], "--child") == 0)
                return child_main(argv[2]);
        sim_test_environment(directory, "32M", "64K");
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("machines by environment", NULL, NULL);
        CU_add_test(suite, "latencies of an A100", test_a100);
        CU_add_test(suite, "a profile of one's own", test_file);
        CU_add_test(suite, "memory that returns late", test_late_return);
        CU_add_test(suite, "sparse memory", test_sparse);
        CU_add_test(suite, "the limit on mappings", test_mappings);
        CU_add_test(suite, "the limit on descriptors", test_descriptors);
        return sim_test_finish(directory);
}
