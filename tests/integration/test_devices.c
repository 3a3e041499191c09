/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two devices in one daemon: each with its own settings, figures, limits and end. One process has
 * sessions on both.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <json-c/json.h>

#include "libclient/wire/wire.h"
#include "tests/support/client_test.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/raw_client.h"
#include "tests/support/sim_fault.h"

#define CODE(error) (-(error))
#define KIB         UINT64_C(1024)
#define MIB         (1024 * KIB)
#define MEMORY      (4 * MIB)

static struct daemon_process *process;
static struct client_test_driver driver;
static struct sim_control control;
static struct raw_client first, second;
static uint8_t uuids[2][16];
static uint64_t ids[256], more[256];

static int start(void)
{
        const struct daemon_options options = {
                .memory_bytes = MEMORY,
                .frame_bytes = 64 * KIB,
                .config = "[device 1]\n"
                          "frame_size = 128K\n"
                          "[tenant uid-0]\n"
                          "max = 3M\n",
        };
        char *reply, *at;
        int r;

        setenv("GPUMEM_SIM_DEVICES", "2", 1);
        if (daemon_process_start(&process, &options) < 0 || client_test_driver_open(&driver) < 0)
                return -1;
        r = daemon_process_call(process, "io.gpumemd.GetStatus", NULL, &reply);
        if (r < 0)
                return -1;
        at = reply;
        for (int i = 0; i < 2; i++) {
                at = strstr(at, "\"uuid\"");
                if (!at || raw_parse_uuid(at, uuids[i]) < 0)
                        return -1;
                at += 6;
        }
        free(reply);
        return 0;
}

static int end(void)
{
        client_test_driver_close(&driver);
        process = daemon_process_free(process);
        return 0;
}

static void join(struct raw_client *client, int device, const char *name)
{
        CU_ASSERT_EQUAL_FATAL(raw_connect(client, daemon_process_client_socket(process)), 0);
        CU_ASSERT_EQUAL_FATAL(raw_hello(client, uuids[device], 4096, name), 0);
}

static int64_t state_of(int device, const char *state)
{
        json_object *status, *frames = NULL, *value = NULL, *devices = NULL;
        int64_t count = -1;
        char *reply;

        if (daemon_process_call(process, "io.gpumemd.GetStatus", NULL, &reply) < 0)
                return -1;
        status = json_tokener_parse(reply);
        free(reply);
        json_object_object_get_ex(status, "parameters", &devices);
        json_object_object_get_ex(devices, "devices", &devices);
        if (json_object_object_get_ex(json_object_array_get_idx(devices, (size_t)device), "frames",
                                      &frames) &&
            json_object_object_get_ex(frames, state, &value))
                count = json_object_get_int64(value);
        json_object_put(status);
        return count;
}

/* C11 and C08: what is done on one is not seen on the other, and each has its own frame size. */
static void test_apart(void)
{
        const struct gpumem_message_hello_reply *hello = (const void *)first.message;
        struct gpumem_message_meminfo_reply info;
        uint64_t one, two;

        join(&first, 0, "first");
        CU_ASSERT_EQUAL(hello->frame_bytes, 64 * KIB);
        CU_ASSERT_EQUAL(memcmp(hello->device_uuid, uuids[0], 16), 0);
        join(&second, 1, "second");
        hello = (const void *)second.message;
        CU_ASSERT_EQUAL(hello->frame_bytes, 128 * KIB);
        CU_ASSERT_EQUAL(memcmp(hello->device_uuid, uuids[1], 16), 0);
        CU_ASSERT_EQUAL(raw_object_create(&first, 1, 256, &one), 0);
        CU_ASSERT_EQUAL(raw_object_create(&second, 1, 256, &two), 0);

        CU_ASSERT_EQUAL(raw_grant(&first, one, 40, 5000, ids), 0);
        CU_ASSERT_EQUAL(raw_meminfo(&second, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 0);
        CU_ASSERT_EQUAL(info.device_bytes, MEMORY);
        CU_ASSERT_EQUAL(raw_grant(&second, two, 10, 5000, more), 0);
        CU_ASSERT_EQUAL(state_of(0, "granted"), 40);
        CU_ASSERT_EQUAL(state_of(1, "granted"), 10);
        CU_ASSERT_EQUAL(raw_meminfo(&first, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 40 * 64 * KIB);
        CU_ASSERT_EQUAL(info.tenant_bytes, 40 * 64 * KIB + 10 * 128 * KIB);

        /* The limit is for each device. */
        if (getuid() == 0) {
                CU_ASSERT_EQUAL(info.available_bytes, 8 * 64 * KIB);
                CU_ASSERT_EQUAL(raw_grant(&first, one, 9, 0, ids + 40), CODE(GPUMEM_E_AGAIN));
                CU_ASSERT_EQUAL(raw_grant(&second, two, 14, 5000, more + 10), 0);
                CU_ASSERT_EQUAL(raw_grant(&second, two, 1, 0, more + 24), CODE(GPUMEM_E_AGAIN));
                CU_ASSERT_EQUAL(raw_return(&second, two, 14, more + 10), 0);
        }
        /* An id is the device's: the other session does not hold it. */
        CU_ASSERT_EQUAL(raw_return(&second, two, 1, &ids[39]), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(raw_return(&first, one, 40, ids), 0);
        CU_ASSERT_EQUAL(state_of(1, "granted"), 10);
        raw_close(&first);
        CU_ASSERT_EQUAL(raw_meminfo(&second, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 10 * 128 * KIB);
        raw_close(&second);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
}

/* A device that is not there: the answer names those that are. */
static void test_unknown(void)
{
        uint8_t uuid[16] = {0};

        CU_ASSERT_EQUAL_FATAL(raw_connect(&first, daemon_process_client_socket(process)), 0);
        CU_ASSERT_EQUAL(raw_hello(&first, uuid, 4096, "lost"), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_PTR_NOT_NULL(strstr(first.text, ", GPU-"));
        /* And it may ask again. */
        CU_ASSERT_EQUAL(raw_hello(&first, uuids[1], 4096, "found"), 0);
        raw_close(&first);
}

/* Two sessions of the library in one process, a buffer on each, with contents. */
static void test_library(void)
{
        struct gpumem_options options = {
                .size = sizeof(options),
                .socket_path = daemon_process_client_socket(process),
                .name = "both",
                .driver = GPUMEM_DRIVER_SIMULATOR,
        };
        struct gpumem *sessions[2];
        struct gpumem_buffer *buffers[2];
        unsigned char *views[2];

        for (int i = 0; i < 2; i++) {
                struct gpumem_info info;

                options.device = i;
                CLIENT_TEST_OK(gpumem_connect(&sessions[i], &options));
                CLIENT_TEST_OK(gpumem_get_info(sessions[i], &info));
                CU_ASSERT_EQUAL(memcmp(info.device_uuid, uuids[i], 16), 0);
                CLIENT_TEST_OK(gpumem_buffer_create(sessions[i], MIB, "b", 5000, &buffers[i]));
                CLIENT_TEST_OK(gpumem_host_view(sessions[i], gpumem_buffer_address(buffers[i]), MIB,
                                                (void **)&views[i]));
                memset(views[i], 0x11 * (i + 1), MIB);
        }
        for (int i = 0; i < 2; i++) {
                CU_ASSERT_EQUAL(views[i][0], 0x11 * (i + 1));
                CU_ASSERT_EQUAL(memcmp(views[i], views[i] + 1, MIB - 1), 0);
                CU_ASSERT_EQUAL(client_test_session_bytes(sessions[i]), MIB);
        }
        gpumem_buffer_free(buffers[0]);
        CU_ASSERT_EQUAL(client_test_session_bytes(sessions[0]), 0);
        CU_ASSERT_EQUAL(client_test_session_bytes(sessions[1]), MIB);
        gpumem_disconnect(sessions[1]);
        CU_ASSERT_EQUAL(client_test_session_bytes(sessions[0]), 0);
        gpumem_disconnect(sessions[0]);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
}

/* One is lost: who is on it is told, and refused; the other is not touched. The last test. */
static void test_lost(void)
{
        struct gpumem_message_meminfo_reply info;
        uint64_t one, two, deadline;
        int64_t sessions;
        char *reply;

        join(&first, 0, "first");
        join(&second, 1, "second");
        CU_ASSERT_EQUAL(raw_object_create(&first, 1, 256, &one), 0);
        CU_ASSERT_EQUAL(raw_object_create(&second, 1, 256, &two), 0);
        CU_ASSERT_EQUAL(raw_grant(&first, one, 20, 5000, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&second, two, 10, 5000, more), 0);
        CU_ASSERT_EQUAL(control.lose_device(1, CUDA_ERROR_DEVICE_UNAVAILABLE), 0);
        CU_ASSERT_EQUAL(raw_return(&second, two, 4, more), 0); /* they cannot be scrubbed */
        deadline = wire_deadline_ns(10000);
        do {
                CU_ASSERT_EQUAL(raw_meminfo(&second, &info), 0);
        } while (second.device_events == 0 && wire_now_ns() < deadline);
        CU_ASSERT_EQUAL(second.device_events, 1);
        CU_ASSERT_EQUAL(raw_grant(&second, two, 1, 1000, more), CODE(GPUMEM_E_DEVICE));
        CU_ASSERT_EQUAL(raw_meminfo(&second, &info), 0);
        CU_ASSERT_EQUAL(info.available_bytes, 0);

        CU_ASSERT_EQUAL(raw_return(&first, one, 10, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&first, one, 30, 5000, ids), 0);
        CU_ASSERT_EQUAL(first.device_events, 0);
        CU_ASSERT_EQUAL(daemon_process_call(process, "io.gpumemd.GetStatus", NULL, &reply), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(reply, "\"state\":\"ok\""));
        CU_ASSERT_PTR_NOT_NULL(strstr(reply, "\"state\":\"lost\""));
        free(reply);
        raw_close(&second);
        CU_ASSERT_EQUAL_FATAL(raw_connect(&second, daemon_process_client_socket(process)), 0);
        CU_ASSERT_EQUAL(raw_hello(&second, uuids[1], 4096, "late"), CODE(GPUMEM_E_DEVICE));
        raw_close(&second);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        raw_close(&first);
        join(&first, 0, "again");
        CU_ASSERT_EQUAL(
                daemon_process_number(process, "io.gpumemd.GetStatus", "sessions", &sessions), 0);
        raw_close(&first);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"apart (C11)", test_apart},
                {"no such device", test_unknown},
                {"the library on both", test_library},
                {"one is lost", test_lost},
        };
        int status;

        if (start() < 0)
                return 1;
        control = sim_control_of(driver.driver);
        status = UNIT_RUN("devices", tests);
        end();
        return status;
}
