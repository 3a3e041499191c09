/* SPDX-License-Identifier: Apache-2.0 */
/* libgpumem against a real daemon on the simulated driver: sessions, buffers, pools, the shapes of
 * errors. */
#include <CUnit/Basic.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/client_test.h"

#define MIB (UINT64_C(1) << 20)

static struct daemon_process *process;

static int start_daemon(void)
{
        const struct daemon_options options = {.memory_bytes = 64 * MIB, .frame_bytes = 2 * MIB};

        return daemon_process_start(&process, &options);
}

static int stop_daemon(void)
{
        process = daemon_process_free(process);
        return 0;
}

static void test_connect(void)
{
        struct gpumem *session = client_test_connect(process, "basic");
        struct gpumem_info info;

        CU_ASSERT_EQUAL(gpumem_get_info(session, &info), 0);
        CU_ASSERT_EQUAL(info.frame_bytes, 2 * MIB);
        CU_ASSERT(info.device_bytes > 0 && info.device_bytes <= 64 * MIB);
        CU_ASSERT_EQUAL(info.session_bytes, 0);
        CU_ASSERT_EQUAL(info.available_bytes, info.device_bytes);
        CU_ASSERT(info.session > 0);
        CU_ASSERT_PTR_NULL(gpumem_disconnect(session));
        CU_ASSERT_PTR_NULL(gpumem_disconnect(NULL));
        client_test_check(process);
}

static void test_connect_errors(void)
{
        struct gpumem_options options = {.size = sizeof(options),
                                         .driver = GPUMEM_DRIVER_SIMULATOR};
        char library[4096];
        struct gpumem *session;

        daemon_process_product("libcuda-sim.so", library, sizeof(library));
        options.driver_library = library;
        options.socket_path = "/nonexistent/client.sock";
        CU_ASSERT_EQUAL(gpumem_connect(&session, &options), GPUMEM_E_DOWN);
        CU_ASSERT_PTR_NULL(session);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "/nonexistent/client.sock"));
        options.socket_path = daemon_process_client_socket(process);
        options.device = 7;
        CU_ASSERT_EQUAL(gpumem_connect(&session, &options), GPUMEM_E_NOT_FOUND);
        options.device = 0;
        options.driver_library = "/nonexistent/libcuda-sim.so";
        CU_ASSERT_EQUAL(gpumem_connect(&session, &options), GPUMEM_E_UNSUPPORTED);
        options.driver_library = library;
        options.size = 8;
        CU_ASSERT_EQUAL(gpumem_connect(&session, &options), GPUMEM_E_INVALID);
        options.size = sizeof(options);
        options.name = "a name of more than sixty-three bytes is refused, not cut off; it is";
        CU_ASSERT_EQUAL(gpumem_connect(&session, &options), GPUMEM_E_INVALID);
        options.name = "control\ncharacter";
        CU_ASSERT_EQUAL(gpumem_connect(&session, &options), GPUMEM_E_INVALID);
        options.name = NULL;
        CU_ASSERT_EQUAL(gpumem_connect(&session, &options), 0);
        gpumem_disconnect(session);
        CU_ASSERT_EQUAL(gpumem_connect(NULL, &options), GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_get_info(NULL, NULL), GPUMEM_E_INVALID);
        client_test_check(process);
}

static void test_buffers(void)
{
        struct gpumem *session = client_test_connect(process, "buffers");
        struct gpumem_buffer *a, *b, *c;
        struct gpumem_info info;
        unsigned char *host;

        CLIENT_TEST_OK(gpumem_get_info(session, &info));
        CLIENT_TEST_OK(gpumem_buffer_create(session, 3 * MIB, "a", 0, &a));
        CU_ASSERT_EQUAL(gpumem_buffer_bytes(a), 4 * MIB);
        CU_ASSERT_NOT_EQUAL(gpumem_buffer_address(a), 0);
        CU_ASSERT_EQUAL(gpumem_buffer_create(session, 0, NULL, 0, &b), GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_buffer_create(session, UINT64_MAX, NULL, 0, &b), GPUMEM_E_NO_MEMORY);
        /* All that is left, in one buffer; then nothing is left. */
        CLIENT_TEST_OK(gpumem_buffer_create(session, info.device_bytes - 4 * MIB, NULL, 0, &b));
        CU_ASSERT_EQUAL(gpumem_buffer_create(session, 1, NULL, 0, &c), GPUMEM_E_AGAIN);
        CU_ASSERT_PTR_NULL(c);
        CU_ASSERT(strlen(gpumem_error_message()) > 10);
        CU_ASSERT_EQUAL(gpumem_buffer_create(session, 1, NULL, 300, &c), GPUMEM_E_AGAIN);
        CU_ASSERT_EQUAL(client_test_session_bytes(session), info.device_bytes);

        CLIENT_TEST_OK(gpumem_host_view(session, gpumem_buffer_address(b), gpumem_buffer_bytes(b),
                                        (void **)&host));
        memset(host, 0x5a, gpumem_buffer_bytes(b));
        CU_ASSERT_EQUAL(gpumem_host_view(session, gpumem_buffer_address(b) + 1,
                                         gpumem_buffer_bytes(b), (void **)&host),
                        GPUMEM_E_INVALID);
        CU_ASSERT_EQUAL(gpumem_host_view(session, 4096, 1, (void **)&host), GPUMEM_E_INVALID);
        CU_ASSERT_PTR_NULL(gpumem_buffer_free(b));
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 4 * MIB);
        /* What was freed comes back, contents not anybody's. */
        CU_ASSERT_EQUAL(gpumem_buffer_create(session, 8 * MIB, "again", 2000, &c), 0);
        gpumem_buffer_free(c);
        gpumem_buffer_free(NULL);
        gpumem_disconnect(session); /* frees a */
        client_test_check(process);
}

/* C08, C01 in the client: what one session has is what the other cannot have. */
static void test_two_sessions(void)
{
        struct gpumem *one = client_test_connect(process, "one");
        struct gpumem *two = client_test_connect(process, "two");
        struct gpumem_buffer *a, *b;
        struct gpumem_info info;

        CLIENT_TEST_OK(gpumem_buffer_create(one, 20 * MIB, "a", 0, &a));
        CU_ASSERT_EQUAL(client_test_session_bytes(one), 20 * MIB);
        CU_ASSERT_EQUAL(client_test_session_bytes(two), 0);
        CU_ASSERT_EQUAL(gpumem_get_info(two, &info), 0);
        CU_ASSERT_EQUAL(info.available_bytes, info.device_bytes - 20 * MIB);
        CU_ASSERT_EQUAL(info.tenant_bytes, 20 * MIB);
        CU_ASSERT_EQUAL(gpumem_buffer_create(two, info.available_bytes + 1, NULL, 0, &b),
                        GPUMEM_E_AGAIN);
        /* A waiting session gets it when the other lets go. */
        gpumem_buffer_free(a);
        CU_ASSERT_EQUAL(gpumem_buffer_create(two, info.device_bytes, NULL, 5000, &b), 0);
        gpumem_disconnect(one);
        gpumem_disconnect(two);
        client_test_check(process);
}

static void test_fork(void)
{
        struct gpumem *session = client_test_connect(process, "forks");
        struct gpumem_kv_options options = client_test_kv_options();
        char library[4096];
        const struct gpumem_options connect = {
                .size = sizeof(connect),
                .socket_path = daemon_process_client_socket(process),
                .driver = GPUMEM_DRIVER_SIMULATOR,
                .driver_library = library,
        };
        const struct gpumem_tensor any = {.heads = 2};
        const struct gpumem_attn attn = {.q = any};
        struct gpumem_buffer *buffer, *rest;
        struct gpumem_batch *open;
        struct gpumem_kv *kv;
        gpumem_seq seq, busy;
        uint32_t two = 2;
        void *host;
        int status;
        pid_t child;

        daemon_process_product("libcuda-sim.so", library, sizeof(library));
        CLIENT_TEST_OK(gpumem_buffer_create(session, 2 * MIB, "a", 0, &buffer));
        CLIENT_TEST_OK(gpumem_buffer_create(session, 2 * MIB, "rest", 0, &rest));
        CLIENT_TEST_OK(gpumem_host_view(session, gpumem_buffer_address(buffer), 2 * MIB, &host));
        memcpy(host, "still here", 10);
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 40, NULL, 1000));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &busy));
        CLIENT_TEST_OK(gpumem_batch_begin(kv, &busy, 1, &two, NULL, 1000, &open));
        child = fork();
        CU_ASSERT_FATAL(child >= 0);
        if (child == 0) {
                struct gpumem_info info;
                struct gpumem_kv_stats stats;
                struct gpumem_buffer *other;
                struct gpumem_batch *batch;
                uint32_t one = 1;
                gpumem_seq made;
                bool good = true;

                good &= gpumem_get_info(session, &info) == GPUMEM_E_FORKED;
                good &= gpumem_safe_point(session) == GPUMEM_E_FORKED;
                good &= gpumem_buffer_create(session, 1, NULL, 0, &other) == GPUMEM_E_FORKED;
                good &= gpumem_seq_create(kv, &made) == GPUMEM_E_FORKED;
                good &= gpumem_seq_append(kv, seq, 1, NULL, 0) == GPUMEM_E_FORKED;
                good &= gpumem_batch_begin(kv, &seq, 1, &one, NULL, 0, &batch) == GPUMEM_E_FORKED;
                good &= gpumem_kv_get_stats(kv, &stats) == GPUMEM_E_FORKED;
                good &= gpumem_kv_write(open, 0, &any, &any, NULL) == GPUMEM_E_FORKED;
                good &= gpumem_attn_decode(open, 0, &attn, NULL) == GPUMEM_E_FORKED;
                good &= gpumem_attn_prefill(open, 0, &attn, NULL) == GPUMEM_E_FORKED;
                good &= gpumem_batch_end(open, NULL) == GPUMEM_E_FORKED;
                good &= gpumem_batch_cancel(open, NULL) == GPUMEM_E_FORKED;
                good &= gpumem_batch_get_view(open)->tokens == 2;
                good &= gpumem_kv_free(kv) == GPUMEM_E_FORKED;
                good &= strstr(gpumem_error_message(), "fork") != NULL;
                good &= strstr(gpumem_error_message(), "exec") != NULL;
                good &= gpumem_buffer_bytes(buffer) == 2 * MIB;
                gpumem_buffer_free(buffer);
                /* `rest` is freed with the session. */
                gpumem_disconnect(session);
                good &= gpumem_connect(&session, &connect) == GPUMEM_E_DEVICE;
                _exit(good ? 0 : 1);
        }
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        /* The parent is unharmed, and so is what it holds. */
        CLIENT_TEST_OK(gpumem_host_view(session, gpumem_buffer_address(buffer), 2 * MIB, &host));
        CU_ASSERT_EQUAL(memcmp(host, "still here", 10), 0);
        CU_ASSERT(client_test_session_bytes(session) >= 6 * MIB);
        gpumem_buffer_free(rest);
        CLIENT_TEST_OK(gpumem_batch_cancel(open, NULL));
        CU_ASSERT_EQUAL(gpumem_seq_append(kv, seq, 100, NULL, 1000), 0);
        CU_ASSERT_EQUAL(gpumem_kv_free(kv), 0);
        CU_ASSERT_EQUAL(client_test_session_bytes(session), 2 * MIB);
        gpumem_disconnect(session);
        client_test_check(process);
}

/* The daemon is killed: typed errors at once, no hang, no crash; mapped memory stays usable. */
static void test_daemon_killed(void)
{
        struct gpumem *session = client_test_connect(process, "bereft");
        struct gpumem_kv_options options = client_test_kv_options();
        struct gpumem_buffer *buffer, *other;
        struct gpumem_kv *kv;
        struct gpumem_info info;
        unsigned char *host;
        gpumem_seq seq;
        uint64_t start;

        CLIENT_TEST_OK(gpumem_buffer_create(session, 2 * MIB, "a", 0, &buffer));
        CLIENT_TEST_OK(
                gpumem_host_view(session, gpumem_buffer_address(buffer), 2 * MIB, (void **)&host));
        host[0] = 1;
        CLIENT_TEST_OK(gpumem_kv_create(session, &options, &kv));
        CLIENT_TEST_OK(gpumem_seq_create(kv, &seq));
        CLIENT_TEST_OK(gpumem_seq_append(kv, seq, 40, NULL, 1000));
        kill(daemon_process_pid(process), SIGKILL);
        while (daemon_process_alive(process))
                client_test_pause_ms(5);
        start = client_test_now_ms();
        CU_ASSERT_EQUAL(gpumem_get_info(session, &info), GPUMEM_E_DOWN);
        CU_ASSERT_EQUAL(gpumem_get_info(session, &info), GPUMEM_E_DOWN);
        CU_ASSERT_EQUAL(gpumem_buffer_create(session, 2 * MIB, "b", 30000, &other), GPUMEM_E_DOWN);
        CU_ASSERT(client_test_now_ms() - start < 5000);
        CU_ASSERT_EQUAL(host[0], 1);
        host[2 * MIB - 1] = 2;
        /* What needs no daemon goes on. */
        CU_ASSERT_EQUAL(gpumem_seq_append(kv, seq, 1, NULL, 0), 0);
        CU_ASSERT_EQUAL(gpumem_seq_free(kv, seq), 0);
        CU_ASSERT_EQUAL(gpumem_kv_free(kv), 0);
        gpumem_disconnect(session);
        CU_ASSERT(client_test_now_ms() - start < 9000);
}

/* C14: a daemon that does not answer costs a deadline, and is usable again when it does. */
static void test_daemon_stopped(void)
{
        struct gpumem *session = client_test_connect_with(process, "patient", 400);
        struct gpumem_buffer *buffer = NULL;
        struct gpumem_info info;
        uint64_t start;
        int r = 0;

        kill(daemon_process_pid(process), SIGSTOP);
        start = client_test_now_ms();
        CU_ASSERT_EQUAL(gpumem_get_info(session, &info), GPUMEM_E_TIMEOUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), "gpumemd"));
        CU_ASSERT(client_test_now_ms() - start < 5000);
        CU_ASSERT_EQUAL(gpumem_buffer_create(session, 2 * MIB, NULL, 0, &buffer), GPUMEM_E_TIMEOUT);
        CU_ASSERT(client_test_now_ms() - start < 9000);
        kill(daemon_process_pid(process), SIGCONT);
        for (int i = 0; i < 50; i++) {
                r = gpumem_get_info(session, &info);
                if (r == 0)
                        break;
                client_test_pause_ms(20);
        }
        CU_ASSERT_EQUAL(r, 0);
        CU_ASSERT_EQUAL(info.session_bytes, 0);
        CLIENT_TEST_OK(gpumem_buffer_create(session, 2 * MIB, NULL, 0, &buffer));
        gpumem_disconnect(session);
        client_test_check(process);
}

/* A grant that is answered too late does not leak: it is given back. */
static void test_late_grant(void)
{
        struct gpumem *holder = client_test_connect(process, "holder");
        struct gpumem *late = client_test_connect_with(process, "late", 300);
        struct gpumem_buffer *buffer;
        struct gpumem_info info;

        /* The object is made, then the daemon stands still before it can grant. */
        CLIENT_TEST_OK(gpumem_get_info(late, &info));
        for (int i = 0; i < 5; i++) {
                client_test_stop_after(process, i);
                int r = gpumem_buffer_create(late, 6 * MIB, NULL, 0, &buffer);

                client_test_pause_ms(30);
                kill(daemon_process_pid(process), SIGCONT);
                CU_ASSERT(r == 0 || r == GPUMEM_E_TIMEOUT);
                if (r == 0)
                        gpumem_buffer_free(buffer);
                client_test_settle(late);
                CU_ASSERT_TRUE(client_test_wait_bytes(late, 0, 1000));
        }
        gpumem_disconnect(late);
        gpumem_disconnect(holder);
        client_test_check(process);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("client: basics", start_daemon, stop_daemon);
        CU_add_test(suite, "connect and info", test_connect);
        CU_add_test(suite, "connect errors are typed and say why", test_connect_errors);
        CU_add_test(suite, "buffers", test_buffers);
        CU_add_test(suite, "two sessions in one process", test_two_sessions);
        CU_add_test(suite, "fork: FORKED, parent unharmed", test_fork);
        CU_add_test(suite, "C14 daemon stopped: TIMEOUT, then usable", test_daemon_stopped);
        CU_add_test(suite, "a late grant is given back", test_late_grant);
        CU_add_test(suite, "daemon killed: DOWN", test_daemon_killed); /* last, of course */
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
