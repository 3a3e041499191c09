/* SPDX-License-Identifier: Apache-2.0 */
/* A buffer of several grants that waits for memory does not hold what it has got so far: two such
 * would wait for each other. */
#include <CUnit/Basic.h>
#include <pthread.h>

#include "tests/support/client_test.h"

#define MIB   UINT64_C(1048576)
#define FRAME UINT64_C(65536)

static struct daemon_process *process;

static int start(void)
{
        const struct daemon_options options = {
                .memory_bytes = 64 * MIB,
                .frame_bytes = FRAME,
                .config = "[simulator]\ngranularity = 64K\n",
        };

        return daemon_process_start(&process, &options);
}

static int stop(void)
{
        process = daemon_process_free(process);
        return 0;
}

struct waiter {
        struct gpumem *session;
        struct gpumem_buffer *buffer;
        int result;
};

static void *wait_for_buffer(void *userdata)
{
        struct waiter *waiter = userdata;

        waiter->result =
                gpumem_buffer_create(waiter->session, 600 * FRAME, "b", 1500, &waiter->buffer);
        return NULL;
}

static void test_partial(void)
{
        /* The first session is the one whose frames are looked at. */
        struct waiter waiter = {.session = client_test_connect(process, "waiter")};
        struct gpumem *hog = client_test_connect(process, "hog");
        struct gpumem_buffer *most;
        struct gpumem_info info;
        unsigned held = 0, none = 0;
        pthread_t thread;

        CLIENT_TEST_OK(gpumem_get_info(hog, &info));
        CU_ASSERT_EQUAL_FATAL(info.frame_bytes, FRAME);
        /* One grant's worth and a little is left: two would be needed. */
        CLIENT_TEST_OK(
                gpumem_buffer_create(hog, info.available_bytes - 300 * FRAME, "most", 1000, &most));
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, wait_for_buffer, &waiter), 0);
        for (int i = 0; i < 100; i++) {
                int64_t frames = -1;

                CU_ASSERT_EQUAL(daemon_process_number(process, "io.gpumemd.ListSessions", "frames",
                                                      &frames),
                                0);
                held += frames > 0;
                /* Before the first grant it has none either. */
                none += frames == 0 && held > 0;
                client_test_pause_ms(9);
        }
        printf("with frames %u times, without %u ", held, none);
        CU_ASSERT(none >= 3);
        pthread_join(thread, NULL);
        CU_ASSERT_EQUAL(waiter.result, GPUMEM_E_AGAIN);
        CU_ASSERT_EQUAL(client_test_session_bytes(waiter.session), 0);
        gpumem_buffer_free(most);
        CLIENT_TEST_OK(
                gpumem_buffer_create(waiter.session, 600 * FRAME, "b", 1000, &waiter.buffer));
        gpumem_buffer_free(waiter.buffer);
        gpumem_disconnect(waiter.session);
        gpumem_disconnect(hog);
        client_test_check(process);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("buffers of several grants", start, stop);
        CU_add_test(suite, "what it has got while it waits", test_partial);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
