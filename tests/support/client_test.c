/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/client_test.h"

#include <CUnit/CUnit.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/session.h"

uint64_t client_test_now_ms(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void client_test_pause_ms(long ms)
{
        struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

        while (nanosleep(&left, &left) < 0)
                continue;
}

struct daemon_process *client_test_start(uint64_t memory_bytes)
{
        const struct daemon_options options = {.memory_bytes = memory_bytes,
                                               .frame_bytes = UINT64_C(2) << 20};
        struct daemon_process *daemon = NULL;

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&daemon, &options), 0);
        return daemon;
}

void client_test_check(struct daemon_process *daemon)
{
        struct gpumem *session = client_test_connect(daemon, "check");
        struct gpumem_info info = {0};
        char report[2048] = "";
        int r;

        /* What a session that has just gone held may be on its way for a moment. */
        for (int i = 0; i < 200; i++) {
                CU_ASSERT_EQUAL_FATAL(gpumem_get_info(session, &info), 0);
                if (info.available_bytes == info.device_bytes)
                        break;
                client_test_pause_ms(10);
        }
        CU_ASSERT_EQUAL(info.available_bytes, info.device_bytes);
        gpumem_disconnect(session);
        r = daemon_process_check(daemon, report, sizeof(report));
        if (r != 0)
                fprintf(stderr, "debug check: %d %s\n", r, report);
        CU_ASSERT_EQUAL(r, 0);
}

void client_test_stop_after(struct daemon_process *daemon, long ms)
{
        pid_t child = fork();

        CU_ASSERT_FATAL(child >= 0);
        if (child == 0) {
                /* Twice, so that nobody has to wait for it. */
                if (fork() == 0) {
                        client_test_pause_ms(ms);
                        kill(daemon_process_pid(daemon), SIGSTOP);
                }
                _exit(0);
        }
        waitpid(child, NULL, 0);
}

struct gpumem *client_test_connect_with(struct daemon_process *daemon, const char *name,
                                        uint32_t timeout_ms)
{
        struct gpumem_options options = {
                .size = sizeof(options),
                .socket_path = daemon_process_client_socket(daemon),
                .name = name,
                .driver = GPUMEM_DRIVER_SIMULATOR,
                .timeout_ms = timeout_ms,
                .cpu_threads = 2,
        };
        struct gpumem *session = NULL;
        char library[4096];
        int r;

        CU_ASSERT_EQUAL_FATAL(daemon_process_product("libcuda-sim.so", library, sizeof(library)),
                              0);
        options.driver_library = library;
        r = gpumem_connect(&session, &options);
        if (r < 0)
                fprintf(stderr, "connect: %s: %s\n", gpumem_error_name(r), gpumem_error_message());
        CU_ASSERT_EQUAL_FATAL(r, 0);
        return session;
}

struct gpumem *client_test_connect(struct daemon_process *daemon, const char *name)
{
        return client_test_connect_with(daemon, name, 0);
}

void client_test_gate_mappings(struct gpumem *session)
{
        session->hello.device_flags |= GPUMEM_DEVICE_NO_EDIT_BESIDE_KERNELS;
}

uint64_t client_test_session_bytes(struct gpumem *session)
{
        struct gpumem_info info = {0};

        CU_ASSERT_EQUAL(gpumem_get_info(session, &info), 0);
        return info.session_bytes;
}

void client_test_settle(struct gpumem *session)
{
        struct gpumem_info info;

        for (int i = 0; i < 500 && gpumem_get_info(session, &info) < 0; i++)
                client_test_pause_ms(10);
}

bool client_test_wait_bytes(struct gpumem *session, uint64_t bytes, uint64_t ms)
{
        uint64_t end = client_test_now_ms() + ms;

        while (client_test_session_bytes(session) != bytes) {
                if (client_test_now_ms() >= end)
                        return false;
                client_test_pause_ms(5);
        }
        return true;
}

struct gpumem_kv_options client_test_kv_options(void)
{
        return (struct gpumem_kv_options){
                .size = sizeof(struct gpumem_kv_options),
                .name = "test",
                .layers = 2,
                .kv_heads = 2,
                .key_dim = 8,
                .value_dim = 16,
                .page_tokens = 16,
                .max_sequences = 32,
                .max_sequence_tokens = 65536,
                .reserve_units = UINT32_MAX,
                .idle_trim_ms = UINT32_MAX,
        };
}

int client_test_driver_open(struct client_test_driver *out)
{
        char library[4096], why[512] = "";
        struct driver *driver = NULL;

        if (daemon_process_product("libcuda-sim.so", library, sizeof(library)) < 0)
                return -1;
        if (driver_open(&driver, DRIVER_SIMULATED, library, why, sizeof(why)) < 0) {
                fprintf(stderr, "%s\n", why);
                return -1;
        }
        out->driver = driver;
        if (driver->init(0) || driver->device_get(&out->device, 0) ||
            driver->device_primary_ctx_retain(&out->context, out->device) ||
            driver->ctx_push_current(out->context) ||
            driver->stream_create(&out->stream, CU_STREAM_NON_BLOCKING)) {
                fprintf(stderr, "%s\n", driver->error_detail ? driver->error_detail() : "driver");
                return -1;
        }
        return 0;
}

int client_test_driver_close(struct client_test_driver *driver)
{
        CUcontext context;

        if (driver->driver->stream_destroy(driver->stream) ||
            driver->driver->ctx_pop_current(&context) ||
            driver->driver->device_primary_ctx_release(driver->device))
                return -1;
        driver->driver = driver_free(driver->driver);
        return 0;
}

void client_test_synchronize(struct client_test_driver *driver)
{
        CU_ASSERT_EQUAL(driver->driver->stream_synchronize(driver->stream), CUDA_SUCCESS);
}

struct client_test_gate {
        sem_t open;
        sem_t passed;
};

static void wait_at_gate(void *userdata)
{
        struct client_test_gate *gate = userdata;

        while (sem_wait(&gate->open) < 0)
                continue;
        sem_post(&gate->passed);
}

struct client_test_gate *client_test_gate_close(struct client_test_driver *driver)
{
        struct client_test_gate *gate = calloc(1, sizeof(*gate));

        CU_ASSERT_PTR_NOT_NULL_FATAL(gate);
        sem_init(&gate->open, 0, 0);
        sem_init(&gate->passed, 0, 0);
        CU_ASSERT_EQUAL_FATAL(driver->driver->launch_host_func(driver->stream, wait_at_gate, gate),
                              CUDA_SUCCESS);
        return gate;
}

void client_test_gate_open(struct client_test_gate *gate)
{
        sem_post(&gate->open);
        while (sem_wait(&gate->passed) < 0)
                continue;
        sem_destroy(&gate->open);
        sem_destroy(&gate->passed);
        free(gate);
}
