/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C13: stray accesses must fault. Host code that touches a device address dies; a kernel or copy
 * that touches what is not mapped (or not so) poisons its context and nothing else.
 *
 * Cases in which a process must die run in this program again, with an argument.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "tests/support/sim_test.h"

#define GRANULE       (64 * KIB)
#define SURVIVED      42
#define OWN_HANDLER   7
#define CHILD_WAIT_MS 60000

static char directory[64];

/* --- processes that must die
 * ---------------------------------------------------------------------- */

static void own_handler(int number)
{
        (void)number;
        _exit(OWN_HANDLER);
}

static int child_main(const char *what)
{
        struct sigaction action = {.sa_handler = own_handler};
        volatile uintptr_t elsewhere = 64; /* volatile: the compiler knows that nothing is there */
        CUdeviceptr va;

        if (strcmp(what, "chain") == 0)
                sigaction(SIGSEGV, &action, NULL);
        sim_test_start();
        va = sim_test_map(GRANULE, 1);
        if (strcmp(what, "read") == 0)
                (void)*(volatile unsigned char *)(uintptr_t)va;
        else if (strcmp(what, "write") == 0)
                *(volatile unsigned char *)(uintptr_t)va = 1;
        else if (strcmp(what, "chain") == 0 || strcmp(what, "elsewhere") == 0)
                *(volatile unsigned char *)elsewhere = 1;
        return SURVIVED;
}

/* Wait status of this program run with `--child what`. */
static int run_child(const char *what)
{
        int status = -1, waited = 0;
        pid_t child = fork();

        if (child == 0) {
                char program[] = "/proc/self/exe", option[] = "--child", argument[16];
                char *arguments[] = {program, option, argument, NULL};
                int null = open("/dev/null", O_WRONLY);

                snprintf(argument, sizeof(argument), "%s", what);
                dup2(null, STDERR_FILENO);
                /* The death as the kernel reports it, not as a sanitizer tells it. */
                setenv("ASAN_OPTIONS", "handle_segv=0:detect_leaks=0", 1);
                setenv("TSAN_OPTIONS", "handle_segv=0", 1);
                execv(program, arguments);
                _exit(127);
        }
        CU_ASSERT_FATAL(child > 0);
        while (waitpid(child, &status, WNOHANG) == 0) {
                sim_test_sleep_ms(5);
                waited += 5;
                if (waited > CHILD_WAIT_MS)
                        kill(child, SIGKILL);
        }
        return status;
}

static void test_host_access_dies(void)
{
        static const char *const ways[] = {"read", "write", "elsewhere"};
        size_t i;

        for (i = 0; i < 3; i++) {
                int status = run_child(ways[i]);

                CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        }
}

static void test_other_faults_go_to_the_program(void)
{
        int status = run_child("chain");

        CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == OWN_HANDLER);
}

/* --- kernels
 * --------------------------------------------------------------------------------------- */

struct kernel {
        volatile unsigned char *at;
        bool write;
        atomic_int finished;
};

static void touch(void *argument)
{
        struct kernel *kernel = argument;

        if (kernel->write)
                *kernel->at = 0x77;
        else
                (void)*kernel->at;
        atomic_store(&kernel->finished, 1);
}

static void set_flag(void *argument)
{
        atomic_store((atomic_int *)argument, 1);
}

static void reset(void)
{
        OK(cuda->device_primary_ctx_reset(0));
        OK(cuda->device_primary_ctx_retain(&sim_test_context, 0));
        OK(cuda->ctx_set_current(sim_test_context));
        OK(cuda->ctx_synchronize());
}

/* One stray access by a kernel: the process lives, the context is poisoned, later calls say so. */
static void stray_kernel(CUdeviceptr address, bool write)
{
        CUmemAllocationProp properties = sim_test_properties();
        struct kernel kernel = {.at = cuda->host_view(address, 1), .write = write};
        CUmemGenericAllocationHandle handle;
        atomic_int behind = 0;
        CUdeviceptr pointer;
        CUstream stream;
        CUevent event;
        char byte = 0;

        CU_ASSERT_PTR_NOT_NULL_FATAL(kernel.at);
        OK(cuda->stream_create(&stream, 0));
        OK(cuda->event_create(&event, 0));
        OK(cuda->launch_host_func(stream, touch, &kernel));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->stream_synchronize(stream));
        CU_ASSERT_EQUAL(atomic_load(&kernel.finished), 1);

        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->stream_synchronize(stream));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->stream_query(stream));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->launch_host_func(stream, set_flag, &behind));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->event_record(event, stream));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->event_query(event));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->ctx_synchronize());
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->mem_alloc(&pointer, 1));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->memcpy_htod(address, &byte, 1));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->mem_create(&handle, GRANULE, &properties, 0));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->mem_address_reserve(&pointer, GRANULE, 0, 0, 0));
        CU_ASSERT_EQUAL(atomic_load(&behind), 0);
        reset();
}

static void test_unmapped(void)
{
        CUdeviceptr va;

        OK(cuda->mem_address_reserve(&va, 2 * GRANULE, 0, 0, 0));
        stray_kernel(va, false);
        stray_kernel(va + GRANULE + 5000, true);
        /* The scratch page of one accident does not absorb the next. */
        stray_kernel(va, true);
        OK(cuda->mem_address_free(va, 2 * GRANULE));
        stray_kernel(va, false); /* not even reserved */
}

static void test_after_unmap(void)
{
        CUdeviceptr va = sim_test_map(GRANULE, 2);
        unsigned char *view = cuda->host_view(va, 2 * GRANULE);

        view[0] = 1;
        view[GRANULE] = 2;
        OK(cuda->mem_unmap(va, GRANULE));
        stray_kernel(va, false);
        CU_ASSERT_EQUAL(view[GRANULE], 2); /* the neighbour is untouched */
        OK(cuda->mem_unmap(va + GRANULE, GRANULE));
        OK(cuda->mem_address_free(va, 2 * GRANULE));
}

static void test_without_access(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        unsigned char *view;
        CUdeviceptr va;

        OK(cuda->mem_address_reserve(&va, GRANULE, 0, 0, 0));
        OK(cuda->mem_create(&handle, GRANULE, &properties, 0));
        OK(cuda->mem_map(va, GRANULE, 0, handle, 0));
        OK(cuda->mem_release(handle));
        /* Mapped, but cuMemSetAccess never came. */
        stray_kernel(va, false);

        /* Read-only: reading is right, writing is not and changes nothing. */
        OK(cuda->mem_set_access(va, GRANULE, &sim_test_read_write, 1));
        view = cuda->host_view(va, GRANULE);
        view[100] = 5;
        OK(cuda->mem_set_access(va, GRANULE, &sim_test_read_only, 1));
        CU_ASSERT_EQUAL(view[100], 5);
        stray_kernel(va + 100, true);
        CU_ASSERT_EQUAL(view[100], 5);
        CU_ASSERT_EQUAL(view[0], 0xff);
        sim_test_unmap(va, GRANULE);
}

/* --- copies and fills
 * ------------------------------------------------------------------------------ */

#define STRAY(call)                                                                                \
        do {                                                                                       \
                EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, call);                                          \
                EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->ctx_synchronize());                       \
                reset();                                                                           \
        } while (0)

static void test_copies(void)
{
        static unsigned char host[2 * GRANULE];
        CUdeviceptr va = sim_test_map(GRANULE, 1);
        CUstream stream;

        STRAY(cuda->memcpy_htod(va + 1, host, GRANULE)); /* one byte too far */
        STRAY(cuda->memcpy_dtoh(host, va - 1, 2));
        STRAY(cuda->memcpy_dtod(va, va + GRANULE, 1));
        STRAY(cuda->memcpy_dtoh(host, (CUdeviceptr)(uintptr_t)host, 1)); /* no device address */
        STRAY(cuda->memset_d8(va + GRANULE, 0, 1));
        STRAY(cuda->memset_d32(va, 0, GRANULE / 4 + 1));

        OK(cuda->mem_set_access(va, GRANULE, &sim_test_read_only, 1));
        OK(cuda->memcpy_dtoh(host, va, GRANULE));
        STRAY(cuda->memcpy_htod(va, host, 1));

        /* Asynchronously, the call succeeds and the stream tells. */
        OK(cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuda->memset_d8_async(va + GRANULE, 0, 1, stream));
        STRAY(cuda->stream_synchronize(stream));
        sim_test_unmap(va, GRANULE);
}

/* --- unmapping under a kernel
 * ---------------------------------------------------------------------- */

struct reader {
        volatile unsigned char *at;
        atomic_int started, stop;
};

/* The race with the unmapping is the point; ThreadSanitizer would be right to complain. */
__attribute__((no_sanitize("thread"))) static void read_for_ever(void *argument)
{
        struct reader *reader = argument;
        unsigned int i = 0;

        while (!atomic_load(&reader->stop)) {
                (void)reader->at[i++ % GRANULE];
                if (i == GRANULE)
                        atomic_store(&reader->started, 1);
        }
}

/* VMM calls do not wait for kernels: unmapping under one is the kernel's illegal access. */
static void test_unmap_under_a_kernel(void)
{
        struct reader reader = {0};
        CUdeviceptr va = sim_test_map(GRANULE, 1);
        atomic_int behind = 0;
        CUstream stream;

        reader.at = cuda->host_view(va, GRANULE);
        OK(cuda->stream_create(&stream, 0));
        OK(cuda->launch_host_func(stream, read_for_ever, &reader));
        OK(cuda->launch_host_func(stream, set_flag, &behind));
        while (!atomic_load(&reader.started))
                sim_test_sleep_ms(1);
        OK(cuda->mem_unmap(va, GRANULE));
        while (cuda->stream_query(stream) != CUDA_ERROR_ILLEGAL_ADDRESS)
                sim_test_sleep_ms(1);
        atomic_store(&reader.stop, 1);
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->stream_synchronize(stream));
        reset(); /* waits for the kernel and for what was queued behind it, which did not run */
        CU_ASSERT_EQUAL(atomic_load(&behind), 0);
        OK(cuda->mem_address_free(va, GRANULE));
}

/* --- fork
 * ------------------------------------------------------------------------------------------ */

/* In the child of a process that used the device, every call fails and device memory is not there.
 */
static int in_forked_child(CUdeviceptr va)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        size_t unused;
        int count;

        if (cuda->init(0) != CUDA_ERROR_NOT_INITIALIZED)
                return 1;
        if (cuda->device_get_count(&count) != CUDA_ERROR_NOT_INITIALIZED)
                return 2;
        if (cuda->mem_get_info(&unused, &unused) != CUDA_ERROR_NOT_INITIALIZED)
                return 3;
        if (cuda->mem_create(&handle, GRANULE, &properties, 0) != CUDA_ERROR_NOT_INITIALIZED)
                return 4;
        if (cuda->mem_unmap(va, GRANULE) != CUDA_ERROR_NOT_INITIALIZED)
                return 5;
        if (cuda->stream_synchronize(NULL) != CUDA_ERROR_NOT_INITIALIZED)
                return 6;
        if (cuda->host_view(va, 1) != NULL)
                return 7;
        return 0;
}

static void test_fork(void)
{
        CUdeviceptr va = sim_test_map(GRANULE, 1);
        unsigned char *view = cuda->host_view(va, GRANULE);
        int status = -1;
        pid_t child;

        view[9] = 9;
        fflush(stdout);
        child = fork();
        if (child == 0)
                _exit(in_forked_child(va));
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        CU_ASSERT(WIFEXITED(status));
        CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);

        /* The alias is not inherited. */
        child = fork();
        if (child == 0) {
                signal(SIGSEGV, SIG_DFL);
                _exit(view[9] == 9 ? SURVIVED : SURVIVED + 1);
        }
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);

        /* The parent is unharmed. */
        CU_ASSERT_EQUAL(view[9], 9);
        OK(cuda->ctx_synchronize());
        sim_test_unmap(va, GRANULE);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), 16 * MIB);
}

int main(int argc, char **argv)
{
        CU_pSuite suite;

        if (argc == 3 && strcmp(argv[1], "--child") == 0)
                return child_main(argv[2]);
        sim_test_environment(directory, "16M", "64K");
        sim_test_start();
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("simulated faults", NULL, NULL);
        CU_add_test(suite, "C13 host access to device addresses dies", test_host_access_dies);
        CU_add_test(suite, "other faults go to the program", test_other_faults_go_to_the_program);
        CU_add_test(suite, "C13 a kernel on unmapped addresses", test_unmapped);
        CU_add_test(suite, "C13 a kernel on what was unmapped", test_after_unmap);
        CU_add_test(suite, "C13 a kernel without access", test_without_access);
        CU_add_test(suite, "C13 copies and fills", test_copies);
        CU_add_test(suite, "unmapping under a kernel", test_unmap_under_a_kernel);
        CU_add_test(suite, "fork", test_fork);
        return sim_test_finish(directory);
}
