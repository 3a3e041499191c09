/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/core.h"
#include "tests/support/daemon_unit.h"

static struct raw_client a, b;
static uint64_t ids[512], more[512];

/* A frame never changes tenant: what one returned is released and made anew for the other. */
static void test_tenants(void)
{
        uint64_t mine, other;
        struct gpumem_message_meminfo_reply info;

        core_start(8, 0, 0);
        core_join(&a, "a");
        core_join(&b, "b");
        core_pretend_user(4242);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &mine), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 8, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, mine, 6, ids), 0);
        CU_ASSERT(CORE_UNTIL(core.device->table.states[FRAME_READY] == 6));
        CU_ASSERT_EQUAL(raw_meminfo(&b, &info), 0);
        CU_ASSERT_EQUAL(info.tenant_bytes, 0);
        CU_ASSERT_EQUAL(info.available_bytes, 6 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_RELEASE), 0);
        CU_ASSERT_EQUAL(raw_grant(&b, other, 4, 0, more), 0);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_RELEASE), 4);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_CREATE), 12);
        CU_ASSERT_EQUAL(raw_meminfo(&b, &info), 0);
        CU_ASSERT_EQUAL(info.tenant_bytes, 4 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.tenant_bytes, 4 * FAKE_GRANULARITY); /* two granted, two ready */
        CU_ASSERT_EQUAL(core_check(), 0);
        raw_close(&a);
        raw_close(&b);
        core_stop();
}

/* What one tenant returns goes to the one who was first in line, even if the tenant waits for it
 * itself, behind: else nobody would ever get it. */
static void test_tenants_wait_for_each_other(void)
{
        static struct raw_client c;
        uint64_t object[3];

        core_start(8, 0, 0);
        core_join(&a, "a");
        core_join(&b, "b");
        core_pretend_user(4242);
        core_join(&c, "c");
        core_pretend_user(4242);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object[0]), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &object[1]), 0);
        CU_ASSERT_EQUAL(raw_object_create(&c, 1, 100, &object[2]), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object[0], 4, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&c, object[2], 4, 0, more), 0);
        core_ask(&a, object[0], 2, 5000);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 1));
        core_ask(&b, object[1], 3, 2000);
        CU_ASSERT(CORE_UNTIL(core.device->queue.count == 2));
        CU_ASSERT_EQUAL(raw_return(&c, object[2], 3, more), 0);
        CU_ASSERT_EQUAL(raw_receive(&a, 1000), 0);
        CU_ASSERT_EQUAL(raw_receive(&b, 5000), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(core_check(), 0);
        raw_close(&a);
        raw_close(&b);
        raw_close(&c);
        core_stop();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"a frame never changes tenant", test_tenants},
                {"tenants do not wait for each other for ever", test_tenants_wait_for_each_other},
        };

        return UNIT_RUN("tenant", tests);
}
