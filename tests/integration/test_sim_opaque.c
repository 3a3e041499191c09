/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exported descriptors are opaque. Daemon and client run on a simulator whose descriptors are
 * sockets (tests/opaque): nothing above the driver can have looked at them, mapped them or compared
 * them, and everything still works. The conformance suite says that the driver beneath still is
 * one.
 */
#include <CUnit/Basic.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/client_test.h"

#define MIB    (UINT64_C(1) << 20)
#define DEVICE (64 * MIB)
#define POSIX  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static char library[4096];
static struct daemon_process *process;

static int start(void)
{
        static char config[4200];
        const struct daemon_options options = {
                .memory_bytes = DEVICE, .frame_bytes = MIB, .keeper = true, .config = config};
        char path[4096];

        if (daemon_process_product("tests/libopaque-driver.so", path, sizeof(path)) < 0 ||
            !realpath(path, library))
                return -1;
        snprintf(config, sizeof(config), "[gpumemd]\ndriver_library = %s\n", library);
        return daemon_process_start(&process, &options);
}

static int stop(void)
{
        process = daemon_process_free(process);
        return 0;
}

static struct gpumem *connect_opaque(const char *name)
{
        struct gpumem_options options = {.size = sizeof(options),
                                         .name = name,
                                         .socket_path = daemon_process_client_socket(process),
                                         .driver = GPUMEM_DRIVER_SIMULATOR,
                                         .driver_library = library};
        struct gpumem *session = NULL;

        CLIENT_TEST_OK(gpumem_connect(&session, &options));
        return session;
}

/* The premise: what this driver exports can be neither measured nor mapped. */
static void test_descriptors_are_sockets(void)
{
        CUmemAllocationProp properties = {
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = POSIX,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
        };
        CUmemGenericAllocationHandle handle, import;
        struct driver *driver;
        struct stat status;
        char why[256];
        int fd = -1;

        CU_ASSERT_EQUAL_FATAL(driver_open(&driver, DRIVER_SIMULATED, library, why, sizeof(why)), 0);
        CU_ASSERT_EQUAL_FATAL(driver->init(0), CUDA_SUCCESS);
        CU_ASSERT_EQUAL_FATAL(driver->mem_create(&handle, MIB, &properties, 0), CUDA_SUCCESS);
        CU_ASSERT_EQUAL_FATAL(driver->mem_export_to_shareable_handle(&fd, handle, POSIX, 0),
                              CUDA_SUCCESS);
        CU_ASSERT_EQUAL(fstat(fd, &status), 0);
        CU_ASSERT(S_ISSOCK(status.st_mode));
        CU_ASSERT_EQUAL(status.st_size, 0);
        CU_ASSERT(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
        /* Not used up by an import. */
        CU_ASSERT_EQUAL(
                driver->mem_import_from_shareable_handle(&import, (void *)(intptr_t)fd, POSIX),
                CUDA_SUCCESS);
        CU_ASSERT_EQUAL(driver->mem_release(import), CUDA_SUCCESS);
        CU_ASSERT_EQUAL(
                driver->mem_import_from_shareable_handle(&import, (void *)(intptr_t)fd, POSIX),
                CUDA_SUCCESS);
        CU_ASSERT_EQUAL(driver->mem_release(import), CUDA_SUCCESS);
        CU_ASSERT_EQUAL(driver->mem_release(handle), CUDA_SUCCESS);
        close(fd);
        driver_free(driver);
}

static void test_buffers(void)
{
        struct gpumem *session = connect_opaque("buffers");
        unsigned char *host = NULL;
        struct gpumem_buffer *buffer;
        int round;

        for (round = 0; round < 3; round++) {
                CLIENT_TEST_OK(gpumem_buffer_create(session, 20 * MIB, "buffer", 2000, &buffer));
                CLIENT_TEST_OK(gpumem_host_view(session, gpumem_buffer_address(buffer), 20 * MIB,
                                                (void **)&host));
                CU_ASSERT_PTR_NOT_NULL_FATAL(host);
                memset(host, round, 20 * MIB);
                CU_ASSERT_EQUAL(host[19 * MIB + 5], round);
                CU_ASSERT_EQUAL(client_test_session_bytes(session), 20 * MIB);
                gpumem_buffer_free(buffer);
        }
        CU_ASSERT_PTR_NULL(gpumem_disconnect(session));
        client_test_check(process);
}

/* A pool that grows over several units, is written to, and gives them back. */
static void test_pool(void)
{
        struct gpumem *session = connect_opaque("pool");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_kv_geometry geometry;
        struct gpumem_kv_stats stats = {0};
        struct gpumem_kv *kv = NULL;
        uint32_t tokens;
        gpumem_seq seq;

        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        gpumem_kv_get_geometry(kv, &geometry);
        tokens = 3 * geometry.pages_per_unit * geometry.page_tokens;
        if (tokens > options.max_sequence_tokens)
                tokens = options.max_sequence_tokens;
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        while (tokens > 0) {
                struct gpumem_batch *batch;
                uint32_t part = tokens < 512 ? tokens : 512;

                CLIENT_TEST_OK(gpumem_batch_begin(kv, &seq, 1, &part, NULL, 2000, &batch));
                CLIENT_TEST_OK(gpumem_batch_end(batch, NULL));
                tokens -= part;
        }
        CU_ASSERT_EQUAL(gpumem_kv_get_stats(kv, &stats), 0);
        CU_ASSERT(client_test_session_bytes(session) > 0);
        CLIENT_TEST_OK(gpumem_kv_free(kv));
        CU_ASSERT_PTR_NULL(gpumem_disconnect(session));
        client_test_check(process);
}

/* A killed client's frames come back and are given out again. */
static void test_kill(void)
{
        struct gpumem *session;
        struct gpumem_buffer *buffer;
        int ends[2], status;
        char byte = 0;
        pid_t child;

        CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
        fflush(stdout);
        child = fork();
        if (child == 0) {
                char program[] = "/proc/self/exe", option[] = "--hold", path[128], descriptor[16];
                char *arguments[] = {program, option, path, library, descriptor, NULL};

                snprintf(path, sizeof(path), "%s", daemon_process_client_socket(process));
                snprintf(descriptor, sizeof(descriptor), "%d", ends[1]);
                execv(program, arguments);
                _exit(127);
        }
        close(ends[1]);
        CU_ASSERT_EQUAL(read(ends[0], &byte, 1), 1);
        CU_ASSERT_EQUAL(byte, 'r');
        kill(child, SIGKILL);
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        close(ends[0]);
        session = connect_opaque("after");
        CLIENT_TEST_OK(gpumem_buffer_create(session, 40 * MIB, "all of it", 10000, &buffer));
        gpumem_buffer_free(buffer);
        CU_ASSERT_PTR_NULL(gpumem_disconnect(session));
        client_test_check(process);
}

/* The other process of test_kill. */
static int hold(const char *socket_path, const char *driver_library, int descriptor)
{
        struct gpumem_options options = {.size = sizeof(options),
                                         .name = "hold",
                                         .socket_path = socket_path,
                                         .driver = GPUMEM_DRIVER_SIMULATOR,
                                         .driver_library = driver_library};
        struct gpumem_buffer *buffer;
        struct gpumem *session;

        if (gpumem_connect(&session, &options) != 0 ||
            gpumem_buffer_create(session, 40 * MIB, "held", 10000, &buffer) != 0) {
                fprintf(stderr, "%s\n", gpumem_error_message());
                return 1;
        }
        if (write(descriptor, "r", 1) != 1)
                return 1;
        for (;;)
                pause();
}

static void test_conformance(void)
{
        char command[8400], suite[4096], line[256], last[256] = "";
        FILE *stream;

        daemon_process_product("cuda-conformance", suite, sizeof(suite));
        /* On a machine of its own. */
        snprintf(command, sizeof(command), "unset GPUMEM_SIM_DIR; exec %s --driver %s", suite,
                 library);
        stream = popen(command, "r");
        CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
        while (fgets(line, sizeof(line), stream)) {
                if (strncmp(line, "not ok", 6) == 0)
                        fprintf(stderr, "%s", line);
                strcpy(last, line);
        }
        CU_ASSERT_EQUAL(pclose(stream), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(last, " passed, 0 failed"));
}

int main(int argc, char **argv)
{
        unsigned int failures;
        CU_pSuite suite;

        if (argc == 5 && strcmp(argv[1], "--hold") == 0)
                return hold(argv[2], argv[3], (int)strtol(argv[4], NULL, 10));
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("opaque descriptors", start, stop);
        CU_add_test(suite, "what is exported is a socket", test_descriptors_are_sockets);
        CU_add_test(suite, "buffers", test_buffers);
        CU_add_test(suite, "a pool", test_pool);
        CU_add_test(suite, "a killed client", test_kill);
        CU_add_test(suite, "conformance", test_conformance);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
        CU_cleanup_registry();
        return failures != 0;
}
