/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Injected faults of the simulator: by call of this process, by environment, and by the machine's
 * file, which reaches processes that are running already.
 *
 * Other processes are this program again: `--child WHAT`.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "tests/support/sim_fault.h"
#include "tests/support/sim_test.h"

#define GRANULE (64 * KIB)
#define MEMORY  (16 * MIB)

static char directory[64];
static struct sim_control control;

static CUresult create(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        CUresult result = cuda->mem_create(&handle, GRANULE, &properties, 0);

        if (result == CUDA_SUCCESS)
                OK(cuda->mem_release(handle));
        return result;
}

static void revive(void)
{
        OK(cuda->device_primary_ctx_reset(0));
        OK(cuda->device_primary_ctx_retain(&sim_test_context, 0));
        OK(cuda->ctx_set_current(sim_test_context));
}

static double now_us(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* --- rules of a process --------------------------------------------------------------------------
 */

static void test_nth(void)
{
        size_t before = sim_test_free_bytes();

        OK(control.fault("cuMemCreate nth=3 times=2 error=out_of_memory"));
        OK(create());
        OK(create());
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, create());
        CU_ASSERT_PTR_NOT_NULL(strstr(cuda->error_detail(), "injected"));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, create());
        OK(create());
        CU_ASSERT_EQUAL(control.fault_hits(), 2);
        /* A call that fails so has done nothing. */
        CU_ASSERT_EQUAL(sim_test_free_bytes(), before);

        OK(control.fault("cuMemCreate times=all error=999;cuMemGetInfo_v2 error=OPERATING_SYSTEM"));
        EXPECT(CUDA_ERROR_UNKNOWN, create());
        EXPECT(CUDA_ERROR_UNKNOWN, create());
        EXPECT(CUDA_ERROR_OPERATING_SYSTEM, cuda->mem_get_info(&before, &before));
        OK(control.fault(NULL));
        OK(create());
        CU_ASSERT_EQUAL(control.fault_hits(), 0);
}

/* "*" is every call, "cuMem*" every call that begins so; a call made by another call is part of it.
 */
static void test_prefixes(void)
{
        CUstream stream;
        int count;

        OK(control.fault("cuMem* times=all error=CUDA_ERROR_TIMEOUT"));
        EXPECT(CUDA_ERROR_TIMEOUT, create());
        OK(cuda->device_get_count(&count));
        OK(control.fault("* nth=2"));
        OK(cuda->device_get_count(&count));
        EXPECT(CUDA_ERROR_UNKNOWN, cuda->device_get_count(&count));
        OK(cuda->device_get_count(&count));
        OK(control.fault("cuStreamCreateWithPriority"));
        OK(cuda->stream_create(&stream, 0)); /* made of the other one */
        OK(control.fault(""));
        OK(cuda->stream_destroy(stream));
}

static void test_delay(void)
{
        double start;

        OK(control.fault("cuDeviceGetCount delay=20000"));
        start = now_us();
        OK(cuda->device_get_count(&(int){0}));
        CU_ASSERT(now_us() - start >= 20000);
        OK(cuda->device_get_count(&(int){0}));
        CU_ASSERT_EQUAL(control.fault_hits(), 1);
        OK(control.fault("cuDeviceGetCount delay=10 error=TIMEOUT"));
        EXPECT(CUDA_ERROR_TIMEOUT, cuda->device_get_count(&(int){0}));
        OK(control.fault(NULL));
}

static void test_probability(void)
{
        unsigned int failed = 0, i;

        OK(control.fault("cuDeviceGetCount times=all one_in=4"));
        for (i = 0; i < 4000; i++)
                failed += cuda->device_get_count(&(int){0}) != CUDA_SUCCESS;
        CU_ASSERT(failed > 800 && failed < 1200);
        CU_ASSERT_EQUAL(control.fault_hits(), failed);
        OK(control.fault(NULL));
}

static void test_sticky(void)
{
        CUdeviceptr va = sim_test_map(GRANULE, 1);

        OK(control.fault("cuMemsetD8 sticky"));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->memset_d8(va, 1, 1));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->ctx_synchronize());
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, create());
        OK(control.fault(NULL));
        EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuda->ctx_synchronize());
        revive();
        OK(cuda->memset_d8(va, 1, 1));
        sim_test_unmap(va, GRANULE);
}

/* What a stream runs fails later than the call that submitted it, and poisons. */
static void test_operation(void)
{
        CUdeviceptr va = sim_test_map(GRANULE, 1);
        unsigned char *view = cuda->host_view(va, GRANULE);
        CUstream stream;

        OK(cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        OK(control.fault("operation nth=2 error=ECC_UNCORRECTABLE"));
        OK(cuda->memset_d8_async(va, 1, 1, stream));
        OK(cuda->memset_d8_async(va + 1, 1, 1, stream));
        EXPECT(CUDA_ERROR_ECC_UNCORRECTABLE, cuda->stream_synchronize(stream));
        CU_ASSERT_EQUAL(view[0], 1);
        CU_ASSERT_EQUAL(view[1], 0xff);
        OK(control.fault(NULL));
        EXPECT(CUDA_ERROR_ECC_UNCORRECTABLE, cuda->ctx_synchronize());
        revive();
        sim_test_unmap(va, GRANULE);
}

static void test_bad_rules(void)
{
        static const char *const bad[] = {
                "malloc",
                "cuMemCreate nth=0",
                "cuMemCreate nth",
                "cuMemCreate nth=x",
                "cuMemCreate times=0",
                "cuMemCreate error=",
                "cuMemCreate error=CUDA_ERROR_NO_SUCH_THING",
                "cuMemCreate delay=-1",
                "cuMemCreate delay=99999999999",
                "cuMemCreate sticky=1",
                "cuMemCreate frequency=2",
                "cuMemCreate process=",
                "cuMemCreate; printf",
        };
        char long_rule[200], *many = malloc(8192);
        size_t i;

        CU_ASSERT_PTR_NOT_NULL_FATAL(many);
        OK(control.fault("cuMemCreate error=2"));
        for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                EXPECT(CUDA_ERROR_INVALID_VALUE, control.fault(bad[i]));
                CU_ASSERT(cuda->error_detail()[0] != '\0');
        }
        memset(long_rule, 'u', sizeof(long_rule));
        memcpy(long_rule, "cu", 2);
        long_rule[sizeof(long_rule) - 1] = '\0';
        EXPECT(CUDA_ERROR_INVALID_VALUE, control.fault(long_rule));
        many[0] = '\0';
        for (i = 0; i < 33; i++)
                strcat(many, "cuMemMap\n");
        EXPECT(CUDA_ERROR_INVALID_VALUE, control.fault(many));
        memset(many, ' ', 8191);
        many[8191] = '\0';
        EXPECT(CUDA_ERROR_INVALID_VALUE, control.fault(many));
        free(many);
        /* What cannot be read changes nothing. */
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, create());
        OK(control.fault("  # nothing\n\n ; ;# cuMemCreate\n"));
        OK(create());
}

/* --- a lost device -------------------------------------------------------------------------------
 */

static void test_lost_device(void)
{
        CUdeviceptr va = sim_test_map(GRANULE, 1);
        CUcontext context;

        OK(control.fault("cuMemsetD8 lost"));
        EXPECT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuda->memset_d8(va, 1, 1));
        OK(control.fault(NULL));
        EXPECT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuda->ctx_synchronize());
        EXPECT(CUDA_ERROR_DEVICE_UNAVAILABLE, create());
        /* Unlike after a poisoning, a new context does not help. */
        OK(cuda->device_primary_ctx_reset(0));
        EXPECT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuda->device_primary_ctx_retain(&context, 0));
        OK(control.lose_device(0, CUDA_SUCCESS));
        revive();
        OK(cuda->memset_d8(va, 1, 1));
        sim_test_unmap(va, GRANULE);
        EXPECT(CUDA_ERROR_INVALID_DEVICE, control.lose_device(1, CUDA_ERROR_UNKNOWN));
}

/* --- other processes -----------------------------------------------------------------------------
 */

struct child {
        pid_t process;
        int to, from;
};

/* Says 'y' or 'n' for each byte it gets: whether cuMemCreate succeeds. */
static int child_answer(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        char byte;

        while (read(STDIN_FILENO, &byte, 1) == 1) {
                byte = cuda->mem_create(&handle, GRANULE, &properties, 0) == CUDA_SUCCESS &&
                                       cuda->mem_release(handle) == CUDA_SUCCESS
                               ? 'y'
                               : 'n';
                if (write(3, &byte, 1) != 1)
                        return 1;
        }
        return 0;
}

static int child_main(const char *what)
{
        if (strcmp(what, "environment") == 0) {
                CUresult result;

                sim_test_open();
                result = cuda->init(0);
                return result == CUDA_ERROR_NO_DEVICE       ? 10
                       : result == CUDA_ERROR_INVALID_VALUE ? 11
                                                            : 12;
        }
        sim_test_start();
        return child_answer();
}

static struct child spawn(const char *what)
{
        struct child child;
        int to[2], from[2];

        CU_ASSERT_FATAL(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
        fflush(stdout);
        child.process = fork();
        if (child.process == 0) {
                char program[] = "/proc/self/exe", option[] = "--child", argument[16];
                char *arguments[] = {program, option, argument, NULL};

                snprintf(argument, sizeof(argument), "%s", what);
                dup2(to[0], STDIN_FILENO);
                dup2(from[1], 3);
                fcntl(3, F_SETFD, 0);
                execv(program, arguments);
                _exit(127);
        }
        CU_ASSERT_FATAL(child.process > 0);
        close(to[0]);
        close(from[1]);
        child.to = to[1];
        child.from = from[0];
        return child;
}

static char ask(struct child *child)
{
        char byte = '?';

        if (write(child->to, &byte, 1) != 1 || read(child->from, &byte, 1) != 1)
                return 'x';
        return byte;
}

static int end(struct child *child)
{
        int status = -1;

        close(child->to);
        close(child->from);
        while (waitpid(child->process, &status, 0) < 0 && errno == EINTR)
                ;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run(const char *what)
{
        struct child child = spawn(what);

        return end(&child);
}

static void test_environment(void)
{
        sim_test_set("GPUMEM_SIM_FAULT", "cuInit error=NO_DEVICE");
        CU_ASSERT_EQUAL(run("environment"), 10);
        sim_test_set("GPUMEM_SIM_FAULT", "cuInit mistake");
        CU_ASSERT_EQUAL(run("environment"), 11);
        unsetenv("GPUMEM_SIM_FAULT");
        CU_ASSERT_EQUAL(run("environment"), 12);
}

static void test_machine(void)
{
        struct child child = spawn("answer");
        char rules[100], path[128];
        FILE *file;
        int i;

        CU_ASSERT_EQUAL(ask(&child), 'y');
        /* The next call of every process, this one included; each counts its own. */
        OK(control.fault_machine("cuMemCreate nth=2 error=out_of_memory"));
        CU_ASSERT_EQUAL(ask(&child), 'y');
        OK(create());
        CU_ASSERT_EQUAL(ask(&child), 'n');
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, create());
        CU_ASSERT_EQUAL(ask(&child), 'y');
        CU_ASSERT_EQUAL(control.fault_machine_hits(), 2);
        CU_ASSERT_EQUAL(control.fault_hits(), 0);

        /* One process only. */
        snprintf(rules, sizeof(rules), "cuMemCreate times=all process=%d", (int)child.process);
        OK(control.fault_machine(rules));
        CU_ASSERT_EQUAL(ask(&child), 'n');
        OK(create());
        CU_ASSERT_EQUAL(control.fault_machine_hits(), 1);
        OK(control.fault_machine(""));
        CU_ASSERT_EQUAL(ask(&child), 'y');
        CU_ASSERT_EQUAL(sim_test_count_files(directory), 1);

        /* A file written by hand is noticed soon; one that cannot be read is not ignored. */
        snprintf(path, sizeof(path), "%s/fault", directory);
        file = fopen(path, "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        fputs("cuMemCreate times=all\n", file);
        fclose(file);
        for (i = 0; i < 1000 && ask(&child) != 'n'; i++)
                sim_test_sleep_ms(1);
        CU_ASSERT(i < 1000);
        file = fopen(path, "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        fputs("no such rule\n", file);
        fclose(file);
        for (i = 0; i < 1000 && create() != CUDA_ERROR_INVALID_VALUE; i++)
                sim_test_sleep_ms(1);
        CU_ASSERT(i < 1000);
        CU_ASSERT_PTR_NOT_NULL(strstr(cuda->error_detail(), "/fault"));
        OK(control.fault_machine(NULL));
        OK(create());
        CU_ASSERT_EQUAL(ask(&child), 'y');
        CU_ASSERT_EQUAL(end(&child), 0);
}

/* Lost for everybody. */
static void test_lost_elsewhere(void)
{
        struct child child = spawn("answer");

        CU_ASSERT_EQUAL(ask(&child), 'y');
        OK(control.lose_device(0, CUDA_ERROR_UNKNOWN));
        CU_ASSERT_EQUAL(ask(&child), 'n');
        EXPECT(CUDA_ERROR_UNKNOWN, cuda->ctx_synchronize());
        CU_ASSERT_EQUAL(end(&child), 0);
        OK(control.lose_device(0, CUDA_SUCCESS));
        revive();
        OK(create());
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY);
}

int main(int argc, char **argv)
{
        CU_pSuite suite;

        if (argc == 3 && strcmp(argv[1], "--child") == 0)
                return child_main(argv[2]);
        sim_test_environment(directory, "16M", "64K");
        sim_test_start();
        control = sim_control_of(cuda);
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("injected faults of the simulator", NULL, NULL);
        CU_add_test(suite, "the n-th call", test_nth);
        CU_add_test(suite, "calls that begin so", test_prefixes);
        CU_add_test(suite, "delay", test_delay);
        CU_add_test(suite, "probability", test_probability);
        CU_add_test(suite, "sticky errors", test_sticky);
        CU_add_test(suite, "operations of streams", test_operation);
        CU_add_test(suite, "rules that make no sense", test_bad_rules);
        CU_add_test(suite, "a lost device", test_lost_device);
        CU_add_test(suite, "the environment", test_environment);
        CU_add_test(suite, "the machine's rules", test_machine);
        CU_add_test(suite, "a device lost elsewhere", test_lost_elsewhere);
        return sim_test_finish(directory);
}
