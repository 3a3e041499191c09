/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/core.h"
#include "tests/support/daemon_unit.h"

static struct raw_client a, b;
static uint64_t ids[512], more[512];

static void test_hello(void)
{
        uint8_t other[16] = {1};

        core_start(8, 0, 0);
        core_connect(&a);
        /* A refused HELLO may be said again, better. */
        CU_ASSERT_EQUAL(raw_hello(&a, other, FAKE_GRANULARITY, "a"), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, core.device->uuid_text));
        CU_ASSERT_EQUAL(raw_hello(&a, core.device->uuid, FAKE_GRANULARITY * 2, "a"),
                        CODE(GPUMEM_E_MISMATCH));
        CU_ASSERT_EQUAL(raw_hello(&a, core.device->uuid, 0, "a"), CODE(GPUMEM_E_MISMATCH));
        CU_ASSERT_EQUAL(raw_hello(&a, core.device->uuid, FAKE_GRANULARITY, "a"), 0);
        CU_ASSERT_EQUAL(raw_hello(&a, core.device->uuid, FAKE_GRANULARITY, "a"),
                        CODE(GPUMEM_E_STATE));
        raw_close(&a);
        core_stop();
}

static void test_object_table(void)
{
        uint64_t object, first = 0;

        core_start(8, 1, 2);
        core_join(&a, "a");
        for (int i = 0; i < OBJECTS_MAX; i++) {
                CU_ASSERT_EQUAL(raw_object_create(&a, 1, 1, &object), 0);
                if (i == 0)
                        first = object;
        }
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 1, &object), CODE(GPUMEM_E_LIMIT));
        CU_ASSERT_EQUAL(raw_object_destroy(&a, first), 0);
        CU_ASSERT_EQUAL(raw_object_destroy(&a, first), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 1, &object), 0);
        CU_ASSERT_NOT_EQUAL(object, first); /* ids do not come back */
        CU_ASSERT_EQUAL(raw_grant(&a, first, 1, 0, ids), CODE(GPUMEM_E_NOT_FOUND));
        raw_close(&a);
        core_stop();
}

/* C11: two sessions with two objects each, in one process. */
static void test_accounts_apart(void)
{
        uint64_t object[2][2];
        struct gpumem_message_meminfo_reply info;

        core_start(32, 2, 4);
        core_join(&a, "a");
        core_join(&b, "b");
        for (int i = 0; i < 2; i++) {
                CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object[0][i]), 0);
                CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &object[1][i]), 0);
        }
        CU_ASSERT_EQUAL(raw_grant(&a, object[0][0], 3, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object[0][1], 5, 0, ids + 10), 0);
        CU_ASSERT_EQUAL(raw_grant(&b, object[1][0], 7, 0, more), 0);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 8 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.tenant_bytes, 15 * FAKE_GRANULARITY);
        /* The other session's, and the other object's, frames cannot be returned. */
        CU_ASSERT_EQUAL(raw_return(&b, object[1][0], 1, ids), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(raw_return(&a, object[0][1], 1, ids), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(raw_object_destroy(&a, object[0][1]), 0);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 3 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(raw_meminfo(&b, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 7 * FAKE_GRANULARITY);
        raw_close(&a);
        CU_ASSERT(CORE_UNTIL(core.device->sessions_count == 1));
        CU_ASSERT_EQUAL(raw_meminfo(&b, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 7 * FAKE_GRANULARITY);
        /* Its process (this one) lives: what a held may still be mapped. */
        CU_ASSERT_EQUAL(core.device->table.states[FRAME_DRAINING], 3);
        CU_ASSERT_EQUAL(core_check(), 0);
        raw_close(&b);
        core_stop();
}

/* A second request while one waits breaks the protocol; the queue is left in order. */
static void test_impatient(void)
{
        struct gpumem_message_meminfo message;
        uint64_t object;

        core_start(4, 1, 1);
        core_join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), 0);
        core_ask(&a, object, 2, 10000);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 1));
        wire_message_init(&message, GPUMEM_MESSAGE_MEMINFO, 0);
        CU_ASSERT_EQUAL(raw_send(&a, &message), 0);
        a.serial--; /* the error answers the request that was outstanding */
        CU_ASSERT_EQUAL(raw_receive(&a, 1000), CODE(GPUMEM_E_PROTOCOL));
        CU_ASSERT_EQUAL(raw_receive(&a, 1000), -ECONNRESET);
        CU_ASSERT_EQUAL(core.device->queue.count, 0);
        raw_close(&a);
        core_stop();
}

/* A reply that the client does not read costs it one message, and no event is repeated for ever. */
static void test_deaf_client(void)
{
        struct session *session;
        uint64_t object;

        core_start(8, 0, 0);
        core_join(&a, "a");
        session = core_session();
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        for (int i = 0; i < 100000 && !session->reclaim_pending; i++)
                session_send_reclaim(session, 1);
        CU_ASSERT(session->reclaim_pending);
        core_ask(&a, object, 2, 0);
        CU_ASSERT(CORE_UNTIL(session->output.message != NULL));
        CU_ASSERT_EQUAL(session->output.fds_count, 2);
        CU_ASSERT_EQUAL(core.device->table.states[FRAME_GRANTED], 2);
        for (int i = 0; i < 1000; i++)
                session_send_device(session);
        CU_ASSERT_EQUAL(core_check(), 0);
        /* It wakes up: everything is still there, in order, once. */
        CU_ASSERT_EQUAL(raw_receive(&a, 5000), 0);
        CU_ASSERT(a.reclaim_events > 10);
        CU_ASSERT(CORE_UNTIL(!session->output.message && !session->device_pending &&
                             !session->reclaim_pending));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 2, 0, ids), 0);
        CU_ASSERT_EQUAL(a.device_events, 1);
        raw_close(&a);
        core_stop();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"HELLO", test_hello},
                {"the table of objects", test_object_table},
                {"C11 accounts stay apart", test_accounts_apart},
                {"a second request while one waits", test_impatient},
                {"a client that does not read", test_deaf_client},
        };

        return UNIT_RUN("session", tests);
}
