/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Withheld memory: what is released and does not become free is charged to who had it, given to
 * nobody, and found again when it comes back.
 */
#include <string.h>

#include "daemon/session.h"
#include "daemon/tenant.h"
#include "daemon/tenant_holder.h"
#include "tests/support/core.h"
#include "tests/support/daemon_unit.h"

#define FRAMES(n) ((n)*FAKE_GRANULARITY)

static struct config config;
static struct raw_client a, b;
static struct tenant_device *part_a, *part_b;
static uint64_t object_a, object_b, ids[512], more[512];

/* Two tenants on a device of 16 frames, nothing fresh beyond what is asked for. */
static void start(void)
{
        core_config(&config, 0, 0);
        core_start_with(&config, 16);
        core_join_user(&a, "a", 77);
        part_a = core_session()->allotment;
        core_join_user(&b, "b", 78);
        part_b = core_session()->allotment;
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object_a), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &object_b), 0);
}

static void stop(void)
{
        raw_close(&a);
        raw_close(&b);
        core_stop();
}

static int send_grant(struct raw_client *client, uint64_t object, uint32_t frames)
{
        struct gpumem_message_grant message = {
                .header = {.length = sizeof(message), .type = GPUMEM_MESSAGE_GRANT},
                .object = object,
                .frames = frames,
                .wait_ms = 20000,
        };

        return raw_send(client, &message);
}

/* Without anybody who holds it, released memory is free at once. */
static void test_nothing(void)
{
        start();
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 10, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object_a, 10, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 16, 0, more), 0);
        CU_ASSERT_EQUAL(core.device->withheld.bytes, 0);
        CU_ASSERT_EQUAL(part_a->tenant->account.bytes, 0);
        CU_ASSERT_EQUAL(core.device->outside_bytes, 0);
        stop();
}

/* Some of it is still mapped: it stays the old tenant's, and comes to others when it is let go. */
static void test_withheld(void)
{
        struct gpumem_message_meminfo_reply info;

        start();
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 10, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object_a, 10, ids), 0);
        fake_driver_hold(3);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 13, 0, more), 0);
        CU_ASSERT(CORE_UNTIL(core_workers_idle() && part_a->withheld.bytes == FRAMES(3)));
        CU_ASSERT_EQUAL(part_a->tenant->account.bytes, FRAMES(3));
        CU_ASSERT_EQUAL(part_b->tenant->account.bytes, FRAMES(13));
        CU_ASSERT_EQUAL(core.device->outside_bytes, 0);
        CU_ASSERT_EQUAL(core_check(), 0);
        CU_ASSERT_EQUAL(raw_meminfo(&b, &info), 0);
        CU_ASSERT_EQUAL(info.available_bytes, 0);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.tenant_bytes, FRAMES(3));
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 1, 0, more + 13), CODE(GPUMEM_E_AGAIN));

        /* One who waits gets it as it comes. */
        CU_ASSERT_EQUAL(send_grant(&b, object_b, 2), 0);
        core_run(20);
        CU_ASSERT_EQUAL(core.device->queue.count, 1);
        fake_driver_let_go(1);
        CU_ASSERT(CORE_UNTIL(part_a->withheld.bytes == FRAMES(2)));
        fake_driver_let_go(2);
        CU_ASSERT_EQUAL(raw_receive(&b, 5000), 0);
        CU_ASSERT(CORE_UNTIL(core.device->withheld.bytes == 0));
        CU_ASSERT_EQUAL(part_a->tenant->account.bytes, 0);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 1, 0, more), 0);
        stop();
}

/* Each burst of releases is measured for itself: what another tenant's gives back is not taken for
 * what is withheld longer. */
static void test_whose(void)
{
        start();
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 4, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 12, 0, more), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object_a, 4, ids), 0);
        fake_driver_hold(2);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 2, 0, more + 12), 0);
        CU_ASSERT(CORE_UNTIL(part_a->withheld.bytes == FRAMES(2)));
        for (int round = 0; round < 20; round++) {
                CU_ASSERT_EQUAL(raw_return(&b, object_b, 10, more), 0);
                CU_ASSERT_EQUAL(raw_grant(&a, object_a, 10, 0, ids), 0);
                CU_ASSERT(CORE_UNTIL(part_b->withheld.bytes == 0));
                CU_ASSERT_EQUAL(part_a->withheld.bytes, FRAMES(2));
                CU_ASSERT_EQUAL(raw_return(&a, object_a, 10, ids), 0);
                CU_ASSERT_EQUAL(raw_grant(&b, object_b, 10, 0, more), 0);
                CU_ASSERT(CORE_UNTIL(part_a->withheld.bytes == FRAMES(2)));
        }
        CU_ASSERT_EQUAL(core_check(), 0);
        fake_driver_let_go(2);
        CU_ASSERT(CORE_UNTIL(core.device->withheld.bytes == 0));
        stop();
}

/* It counts against the limit: returning and keeping gets nobody more. */
static void test_limit(void)
{
        start();
        tenant_set_max(part_a->tenant, FRAMES(6));
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 6, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object_a, 6, ids), 0);
        fake_driver_hold(4);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 12, 0, more), 0);
        CU_ASSERT(CORE_UNTIL(part_a->withheld.bytes >= FRAMES(2)));
        CU_ASSERT_EQUAL(raw_return(&b, object_b, 12, more), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 5, 0, ids), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "still mapped by somebody"));
        CU_ASSERT(tenant_device_charged(part_a) <= 6);
        fake_driver_let_go(fake_driver_held());
        CU_ASSERT(CORE_UNTIL(part_a->withheld.bytes == 0));
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 5, 0, ids), 0);
        stop();
}

/* A tenant without sessions stays as long as a process that held its frames lives (this one, and it
 * is recorded once), and is charged. */
static void test_holder(void)
{
        struct raw_client again;

        start();
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 8, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object_a, 8, ids), 0);
        fake_driver_hold(2);
        core_join_user(&again, "again", 77);
        CU_ASSERT_EQUAL(raw_object_create(&again, 1, 100, &object_a), 0);
        CU_ASSERT_EQUAL(raw_grant(&again, object_a, 1, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&again, object_a, 1, ids), 0);
        raw_close(&a);
        raw_close(&again);
        CU_ASSERT(CORE_UNTIL(part_a->tenant->sessions == 0 && core_workers_idle() &&
                             part_a->withheld.bytes == FRAMES(2)));
        CU_ASSERT_EQUAL(part_a->tenant->holders_count, 1);
        core_run(WITHHELD_ORPHAN_MS + 1000);
        CU_ASSERT_EQUAL(part_a->withheld.bytes, FRAMES(2));
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 15, 0, more), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_EQUAL(core_check(), 0);

        /* As if all of them had died: after a moment nobody is charged any more. */
        tenant_forget_holders(part_a->tenant);
        CU_ASSERT(CORE_UNTIL(core.device->withheld.bytes == 0));
        CU_ASSERT_EQUAL(fake_driver_held(), 2);
        CU_ASSERT_EQUAL(core.device->outside_bytes, FRAMES(2));
        CU_ASSERT_EQUAL(core_check(), 0);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 14, 0, more), 0);
        fake_driver_let_go(2);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 2, 10000, more), 0);
        stop();
}

/* Measuring that fails: the device is degraded, and everything goes on. */
static void test_failure(void)
{
        start();
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 8, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object_a, 8, ids), 0);
        fake_driver_fail(FAKE_INFO, 1, 3, CUDA_ERROR_UNKNOWN);
        CU_ASSERT_EQUAL(raw_grant(&b, object_b, 16, 5000, more), 0);
        CU_ASSERT_EQUAL(core.device->state, DEVICE_DEGRADED);
        CU_ASSERT(CORE_UNTIL(core.device->withheld.bytes == 0));
        CU_ASSERT_EQUAL(part_a->tenant->account.bytes, 0);
        CU_ASSERT_EQUAL(core_check(), 0);
        stop();
}

/* The end of the daemon while memory is withheld. */
static void test_end(void)
{
        start();
        CU_ASSERT_EQUAL(raw_grant(&a, object_a, 8, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object_a, 8, ids), 0);
        fake_driver_hold(8);
        CU_ASSERT_EQUAL(send_grant(&b, object_b, 16), 0);
        CU_ASSERT(CORE_UNTIL(part_a->withheld.bytes > 0));
        stop();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"nobody holds anything", test_nothing},
                {"returned and still mapped", test_withheld},
                {"whose it is", test_whose},
                {"it counts against the limit", test_limit},
                {"holders without a session", test_holder},
                {"measuring fails", test_failure},
                {"the end", test_end},
        };

        return UNIT_RUN("withheld memory", tests);
}
