/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the client library share: a daemon with a small simulated device, a session on
 * it, a driver table of the test's own, small pools. Failures end the test through CUnit. */
#ifndef TESTS_SUPPORT_CLIENT_TEST_H
#define TESTS_SUPPORT_CLIENT_TEST_H

#include <CUnit/CUnit.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <gpumem/gpumem.h>

#include "libclient/driver/driver.h"
#include "tests/support/daemon_process.h"

/* A call that must succeed; says why if it does not. */
#define CLIENT_TEST_OK(call)                                                                       \
        do {                                                                                       \
                int client_test_result = (call);                                                   \
                if (client_test_result != 0)                                                       \
                        fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,                     \
                                gpumem_error_name(client_test_result), gpumem_error_message());    \
                CU_ASSERT_EQUAL_FATAL(client_test_result, 0);                                      \
        } while (0)

/* One daemon a program: the simulator, once loaded, keeps to one simulated machine. */
struct daemon_process *client_test_start(uint64_t memory_bytes);
/* Everything adds up and nobody holds anything any more. */
void client_test_check(struct daemon_process *daemon);
/* SIGSTOP after so many milliseconds, from a process of its own. */
void client_test_stop_after(struct daemon_process *daemon, long ms);

struct gpumem *client_test_connect(struct daemon_process *daemon, const char *name);
struct gpumem *client_test_connect_with(struct daemon_process *daemon, const char *name,
                                        uint32_t timeout_ms);

/* From now on as if the daemon had said that mappings may not change beside kernels. */
void client_test_gate_mappings(struct gpumem *session);

/* What the daemon has granted to the session. */
uint64_t client_test_session_bytes(struct gpumem *session);
/* Until the daemon answers again. */
void client_test_settle(struct gpumem *session);
/* Until the session holds `bytes`, at most ms: false if not. */
bool client_test_wait_bytes(struct gpumem *session, uint64_t bytes, uint64_t ms);

uint64_t client_test_now_ms(void);
void client_test_pause_ms(long ms);

/* 2 layers, 2 heads of 8 and 16, pages of 16 tokens: 3 KiB a page, some hundred pages a unit. */
struct gpumem_kv_options client_test_kv_options(void);

/* The simulated driver with its primary context current in this thread, for streams and copies. */
struct client_test_driver {
        struct driver *driver;
        CUdevice device;
        CUcontext context;
        CUstream stream;
};
/* For a suite's beginning and end, where nothing can be asserted: 0 or -1. */
int client_test_driver_open(struct client_test_driver *out);
int client_test_driver_close(struct client_test_driver *driver);
void client_test_synchronize(struct client_test_driver *driver);

/* Keeps a stream busy until released. */
struct client_test_gate;
struct client_test_gate *client_test_gate_close(struct client_test_driver *driver);
void client_test_gate_open(struct client_test_gate *gate); /* and frees it, once it was passed */

#endif
