/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/frame_pool.h"
#include "tests/support/core.h"
#include "tests/support/daemon_unit.h"

static struct raw_client a, b;
static uint64_t ids[512], more[512];

static void test_grant_and_return(void)
{
        struct gpumem_message_meminfo_reply info;
        uint64_t object;

        core_start(16, 2, 4);
        core_join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        /* More than is fresh: the daemon makes the rest, even if nobody waits. */
        CU_ASSERT_EQUAL(raw_grant(&a, object, 16, 0, ids), 0);
        CU_ASSERT_EQUAL(core.device->table.states[FRAME_GRANTED], 16);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.device_bytes, 16 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.session_bytes, 16 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.tenant_bytes, 16 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.available_bytes, 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, more), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "'a' (pid "));
        CU_ASSERT_EQUAL(raw_return(&a, object, 4, ids), 0);
        CU_ASSERT_EQUAL(core_check(), 0);
        /* They stay the tenant's, charged, and come back scrubbed. */
        CU_ASSERT(CORE_UNTIL(core.device->table.states[FRAME_READY] == 4));
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_MEMSET), 4);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 12 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.tenant_bytes, 16 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.available_bytes, 4 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, more), 0);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_CREATE), 16);
        CU_ASSERT_EQUAL(raw_object_destroy(&a, object), 0);
        CU_ASSERT(CORE_UNTIL(core.device->table.states[FRAME_READY] == 16));
        raw_close(&a);
        CU_ASSERT(CORE_UNTIL(core.daemon->sessions_count == 0));
        /* The last session is gone: its tenant's memory is released, and the pool filled anew. */
        CU_ASSERT(CORE_UNTIL(core.device->table.states[FRAME_FREE] == 12 &&
                             core.device->fresh.count == 4));
        CU_ASSERT(list_is_empty(&core.daemon->tenants));
        core_stop();
}

static void test_refusals(void)
{
        uint64_t object, units;

        core_start(8, 1, 2);
        core_join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 0, 10, &object), CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_object_create(&a, 254, 300, &object), CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_object_create(&a, 4, 3, &object), CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 6, &object), 0);
        CU_ASSERT_EQUAL(raw_object_create(&a, 3, UINT64_MAX, &units), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object + 1, 1, 0, ids), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 7, 0, ids), CODE(GPUMEM_E_NO_MEMORY));
        CU_ASSERT_EQUAL(raw_grant(&a, units, 9, 0, ids), CODE(GPUMEM_E_NO_MEMORY));
        CU_ASSERT_EQUAL(raw_grant(&a, units, 4, 0, ids), CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 60001, ids), CODE(GPUMEM_E_INVALID));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, units, 3, 0, more), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 3, 0, ids), CODE(GPUMEM_E_NO_MEMORY));
        /* Returns: foreign, unknown, doubled, no multiple. Nothing moves. */
        CU_ASSERT_EQUAL(raw_return(&a, object, 3, more), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(raw_return(&a, units, 2, more), CODE(GPUMEM_E_INVALID));
        more[5] = UINT64_MAX;
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, more + 5), CODE(GPUMEM_E_NOT_FOUND));
        ids[2] = ids[0];
        CU_ASSERT_EQUAL(raw_return(&a, object, 3, ids), CODE(GPUMEM_E_INVALID));
        ids[2] = 8;
        CU_ASSERT_EQUAL(raw_return(&a, object, 3, ids), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(core.device->table.states[FRAME_GRANTED], 7);
        CU_ASSERT_EQUAL(core_check(), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, ids), CODE(GPUMEM_E_NOT_FOUND));
        raw_close(&a);
        core_stop();
}

/* C14: a wait ends at its deadline and says whom it waited for. */
static void test_deadline(void)
{
        uint64_t mine, other, started;

        core_start(8, 1, 2);
        core_join(&a, "hog \"A\"");
        core_join(&b, "b");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &mine), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 6, 0, ids), 0);
        started = wire_now_ns();
        CU_ASSERT_EQUAL(raw_grant(&b, other, 3, 60, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT(wire_now_ns() - started >= 60000000u);
        CU_ASSERT_PTR_NOT_NULL(strstr(b.text, "'hog \"A\"' (pid "));
        CU_ASSERT_PTR_NOT_NULL(strstr(b.text, "holds 384 KiB"));
        CU_ASSERT_EQUAL(core.device->timeouts, 1);
        /* And the one who holds was asked to give back. */
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 0));
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 1, 0, ids + 6), 0);
        CU_ASSERT(a.reclaim_events >= 1);
        raw_close(&a);
        raw_close(&b);
        core_stop();
}

/* First come, first served: a small request does not pass a large one. */
static void test_queue(void)
{
        struct raw_client c;
        uint64_t object[3];

        core_start(8, 1, 2);
        core_join(&a, "a");
        core_join(&b, "b");
        core_join(&c, "c");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object[0]), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &object[1]), 0);
        CU_ASSERT_EQUAL(raw_object_create(&c, 1, 100, &object[2]), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object[0], 7, 0, ids), 0);
        core_ask(&b, object[1], 4, 10000);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 1));
        /* One is left, and there, but it is spoken for. */
        CU_ASSERT(CORE_UNTIL(core.device->fresh.count == 1));
        CU_ASSERT_EQUAL(raw_grant(&c, object[2], 1, 0, more), CODE(GPUMEM_E_AGAIN));
        core_ask(&c, object[2], 1, 10000);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 2));
        CU_ASSERT_EQUAL(core.device->queue.frames, 5);
        CU_ASSERT_EQUAL(core_check(), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object[0], 2, ids), 0);
        CU_ASSERT_EQUAL(core.device->queue.count, 2);
        CU_ASSERT_EQUAL(raw_return(&a, object[0], 2, ids + 2), 0);
        CU_ASSERT_EQUAL(raw_receive(&b, 10000), 0);
        CU_ASSERT_EQUAL(raw_receive(&c, 10000), 0);
        CU_ASSERT_EQUAL(core.device->table.states[FRAME_GRANTED], 8);
        /* Who leaves the queue lets the next one through. */
        core_ask(&b, object[1], 4, 10000);
        core_ask(&c, object[2], 1, 10000);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 2));
        CU_ASSERT_EQUAL(raw_return(&a, object[0], 2, ids + 4), 0);
        CU_ASSERT_EQUAL(core.device->queue.count, 2);
        raw_close(&b);
        CU_ASSERT_EQUAL(raw_receive(&c, 10000), 0);
        CU_ASSERT_EQUAL(core.device->queue.count, 0);
        raw_close(&a);
        raw_close(&c);
        core_stop();
}

/* A long wait may be made of short ones: the place is kept in between, and so is what gathered. */
static void test_place(void)
{
        struct raw_client c;
        uint64_t object[3];

        core_start(8, 1, 2);
        core_join(&a, "a");
        core_join(&b, "b");
        core_join(&c, "c");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object[0]), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &object[1]), 0);
        CU_ASSERT_EQUAL(raw_object_create(&c, 1, 100, &object[2]), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object[0], 7, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&b, object[1], 4, 60, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(core.device->queue.count, 1);
        CU_ASSERT_EQUAL(core_check(), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object[0], 3, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&c, object[2], 1, 0, more), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_PTR_NOT_NULL(strstr(c.text, "kept for those who asked before"));
        CU_ASSERT_PTR_NOT_NULL(strstr(c.text, "'b'"));
        CU_ASSERT_EQUAL(raw_grant(&b, object[1], 4, 1000, more), 0);
        /* The time is counted from the first asking. */
        CU_ASSERT_EQUAL(raw_grant(&b, object[1], 2, 60, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(raw_grant(&b, object[1], 2, 60, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT(strncmp(b.text, "waited 1", 8) == 0 && strstr(b.text, " ms for 2 frames"));
        /* Asking for something else gives the place up, as time does, and the object's end. */
        CU_ASSERT_EQUAL(raw_grant(&b, object[1], 1, 0, more), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_EQUAL(core.device->queue.count, 0);
        CU_ASSERT_EQUAL(raw_grant(&b, object[1], 2, 60, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(core.device->queue.count, 1);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 0));
        CU_ASSERT_EQUAL(raw_grant(&b, object[1], 2, 60, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(raw_object_destroy(&b, object[1]), 0);
        CU_ASSERT_EQUAL(core.device->queue.count, 0);
        CU_ASSERT_EQUAL(raw_grant(&c, object[2], 4, 1000, more), 0);
        CU_ASSERT_EQUAL(core_check(), 0);
        raw_close(&a);
        raw_close(&b);
        raw_close(&c);
        core_stop();
}

/* Who asks for more than there is keeps memory from others for a while, once. */
static void test_reservation(void)
{
        uint64_t mine, other, started;

        core_start(8, 8, 8);
        core_join(&a, "victim");
        core_join(&b, "hog");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &mine), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 1, 0, ids), 0);
        started = wire_now_ns();
        core_ask(&b, other, 8, 10000);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 1));
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 1, 0, ids + 1), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "'hog'"));
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 1, 8000, ids + 1), 0);
        CU_ASSERT(wire_now_ns() - started >= GRANT_RESERVE_MS * UINT64_C(1000000));
        CU_ASSERT(wire_now_ns() - started < 2 * GRANT_RESERVE_MS * UINT64_C(1000000));
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 1, 0, ids + 2), 0);
        CU_ASSERT_EQUAL(core_check(), 0);
        raw_close(&b);
        /* (The next session is another: closing and coming back costs the hog its place.) */
        core_join(&b, "hog");
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &other), 0);
        core_session()->wait.reserve_next_ns = UINT64_MAX; /* as if it had had one just now */
        CU_ASSERT_EQUAL(raw_grant(&b, other, 8, 60, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 1, 0, ids + 3), 0);
        raw_close(&a);
        raw_close(&b);
        core_stop();
}

/* A grant that did not reach the client leaves no trace: ready frames are ready, fresh ones fresh,
 * in the order in which they were. */
static void test_undo(void)
{
        struct tenant_device *allotment;
        struct object *object;
        uint64_t id, again[8];
        uint32_t ready;
        int fds[8];

        core_start(16, 0, 4);
        core_join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &id), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, id, 3, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, id, 3, ids), 0);
        CU_ASSERT(CORE_UNTIL(core.device->table.states[FRAME_READY] == 3 && core_workers_idle()));
        CU_ASSERT_EQUAL_FATAL(core.device->fresh.count, 1);
        allotment = core_session()->allotment;
        object = object_find(&core_session()->objects, id);
        CU_ASSERT_PTR_NOT_NULL_FATAL(object);
        CU_ASSERT(frame_pool_has(core.device, allotment, 4));
        CU_ASSERT_FALSE(frame_pool_has(core.device, allotment, 5));
        for (int i = 0; i < 2; i++) {
                ready = frame_pool_grant(core.device, allotment, object, 4, i ? again : ids, fds);
                CU_ASSERT_EQUAL(ready, 3);
                CU_ASSERT_EQUAL(core_session()->frames, 4);
                CU_ASSERT_EQUAL(core_session()->tenant->account.charges, 4);
                CU_ASSERT_EQUAL(core_check(), 0);
                frame_pool_undo(core.device, allotment, object, i ? again : ids, 4, ready);
                CU_ASSERT_EQUAL(core_session()->frames, 0);
                CU_ASSERT_EQUAL(core_session()->tenant->account.charges, 3);
                CU_ASSERT_EQUAL(core.device->table.states[FRAME_READY], 3);
                CU_ASSERT_EQUAL(core.device->table.states[FRAME_FRESH], 1);
                CU_ASSERT_EQUAL(core_check(), 0);
        }
        CU_ASSERT_EQUAL(memcmp(ids, again, 4 * sizeof(ids[0])), 0);
        raw_close(&a);
        core_stop();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"grant, return, grant again", test_grant_and_return},
                {"what is refused", test_refusals},
                {"C14 a wait has an end and a reason", test_deadline},
                {"first come, first served", test_queue},
                {"a place is kept", test_place},
                {"a reservation ends", test_reservation},
                {"a grant undone", test_undo},
        };

        return UNIT_RUN("grant", tests);
}
