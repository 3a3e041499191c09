/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/core.h"
#include "tests/support/daemon_unit.h"

static struct raw_client a, b;
static uint64_t ids[512];

/* C02 at the daemon: each driver call of making frames fails; the client sees a typed answer or
 * nothing at all, and the accounts are as before. */
static void test_create_fails(void)
{
        static const enum fake_call calls[] = {FAKE_CREATE, FAKE_EXPORT, FAKE_MAP, FAKE_SET_ACCESS};
        struct gpumem_message_meminfo_reply before, after;
        uint64_t object;

        for (size_t i = 0; i < 4; i++) {
                for (uint32_t nth = 1; nth <= 4; nth++) {
                        core_start(8, 0, 0);
                        core_join(&a, "a");
                        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
                        CU_ASSERT_EQUAL(raw_meminfo(&a, &before), 0);
                        fake_driver_fail(calls[i], nth, 1, CUDA_ERROR_UNKNOWN);
                        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), CODE(GPUMEM_E_DEVICE));
                        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "CUDA_ERROR_INJECTED"));
                        CU_ASSERT_EQUAL(core.device->state, DEVICE_DEGRADED);
                        CU_ASSERT(CORE_UNTIL(core_workers_idle()));
                        CU_ASSERT_EQUAL(core.device->table.states[FRAME_GRANTED], 0);
                        CU_ASSERT_EQUAL(core.device->table.states[FRAME_QUARANTINED], 0);
                        CU_ASSERT_EQUAL(core_check(), 0);
                        /* It was told, and after a pause it works again. */
                        CU_ASSERT_EQUAL(raw_meminfo(&a, &after), 0);
                        CU_ASSERT_EQUAL(after.session_bytes, before.session_bytes);
                        CU_ASSERT_EQUAL(after.tenant_bytes, before.tenant_bytes);
                        CU_ASSERT_EQUAL(a.device_events, 1);
                        CU_ASSERT_EQUAL(raw_grant(&a, object, 8, 5000, ids), 0);
                        raw_close(&a);
                        core_stop();
                }
        }
}

/* C03: no memory is an answer, not an end; and it comes back when there is some. */
static void test_out_of_memory(void)
{
        uint64_t object;

        core_start(8, 0, 0);
        fake_driver_use_outside(5);
        core_join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "outside the daemon"));
        CU_ASSERT_EQUAL(core.device->state, DEVICE_OK);
        CU_ASSERT_EQUAL(core.device->outside_bytes, 5 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 50, ids), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 3, 0, ids), 0);
        CU_ASSERT_EQUAL(core_check(), 0);
        core_ask(&a, object, 4, 10000);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 1));
        fake_driver_use_outside(0);
        CU_ASSERT_EQUAL(raw_receive(&a, 10000), 0);
        CU_ASSERT_EQUAL(core.device->outside_bytes, 0);
        raw_close(&a);
        core_stop();
}

/* What cannot be undone is never used again, and adds up. */
static void test_quarantine(void)
{
        uint64_t object;

        core_start(4, 0, 0);
        core_join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), 0);
        fake_driver_fail(FAKE_MEMSET, 1, 1, CUDA_ERROR_UNKNOWN);
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, ids), 0);
        CU_ASSERT(CORE_UNTIL(core.device->table.states[FRAME_QUARANTINED] == 1));
        CU_ASSERT_EQUAL(core.device->state, DEVICE_DEGRADED);
        CU_ASSERT_EQUAL(core_check(), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, ids), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_EQUAL(raw_return(&a, object, 3, ids + 1), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 100, ids), CODE(GPUMEM_E_NO_MEMORY));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 3, 100, ids), 0);
        raw_close(&a);
        core_stop();
}

static void test_lost(void)
{
        uint64_t object;

        core_start(8, 0, 0);
        core_join(&a, "a");
        core_join(&b, "b");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 2, 0, ids), 0);
        fake_driver_fail(FAKE_SYNCHRONIZE, 1, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, ids), 0);
        CU_ASSERT(CORE_UNTIL(core.device->state == DEVICE_LOST));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 1000, ids), CODE(GPUMEM_E_DEVICE));
        CU_ASSERT_EQUAL(a.device_events, 1);
        CU_ASSERT_EQUAL(raw_hello(&b, core.device->uuid, FAKE_GRANULARITY, "b"),
                        CODE(GPUMEM_E_STATE));
        CU_ASSERT_EQUAL(b.device_events, 1);
        CU_ASSERT_EQUAL(core_check(), 0);
        raw_close(&a);
        raw_close(&b);
        core_stop();
}

/* The pool is refilled between the watermarks, off the path of who asks. */
static void test_watermarks(void)
{
        uint64_t object;

        core_start(32, 3, 6);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_CREATE), 6);
        core_join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 3, 0, ids), 0);
        CU_ASSERT(CORE_UNTIL(core_workers_idle()));
        CU_ASSERT_EQUAL(core.device->fresh.count, 3); /* not under low */
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, ids), 0);
        CU_ASSERT(CORE_UNTIL(core.device->fresh.count == 6));
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_CREATE), 10);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 20, 0, ids), 0);
        CU_ASSERT(CORE_UNTIL(core.device->fresh.count == 6));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 6, 0, ids), 0);
        CU_ASSERT(CORE_UNTIL(core_workers_idle()));
        CU_ASSERT_EQUAL(core.device->table.states[FRAME_FREE], 0);
        raw_close(&a);
        core_stop();
}

static void test_start_fails(void)
{
        static const enum fake_call calls[] = {FAKE_CONTEXT, FAKE_RESERVE};
        int before = unit_count_fds();
        struct config config;
        struct daemon *daemon;

        config_init(&config);
        for (size_t i = 0; i < 2; i++) {
                const struct driver *driver = fake_driver_open(8);

                fake_driver_fail(calls[i], 1, 1, CUDA_ERROR_UNKNOWN);
                CU_ASSERT_EQUAL(daemon_new(&daemon, &config, -1, driver), -EIO);
                CU_ASSERT_PTR_NULL(daemon);
                CU_ASSERT_EQUAL(fake_driver_contexts(), 0);
                CU_ASSERT_EQUAL(fake_driver_reservations(), 0);
                CU_ASSERT_EQUAL(unit_count_fds(), before);
        }
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"C02 making frames fails", test_create_fails},
                {"C03 out of memory", test_out_of_memory},
                {"quarantine", test_quarantine},
                {"a lost device", test_lost},
                {"watermarks", test_watermarks},
                {"a start that fails", test_start_fails},
        };

        return UNIT_RUN("device", tests);
}
