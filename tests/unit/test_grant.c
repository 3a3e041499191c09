/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole daemon in this process, on a driver that keeps books and fails when told to: grants,
 * the filler, tenants, deadlines, driver failures. Clients are raw and connected by socketpairs.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/frame_pool.h"
#include "daemon/session.h"
#include "libclient/wire/wire.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/fake_driver.h"
#include "tests/support/raw_client.h"

#define CODE(error) (-(error))

static struct daemon *instance;
static struct device *device;
static int log_fd = -1, fds_before;

static void pump(void *userdata)
{
        (void)userdata;
        /* Long enough not to spin, short enough not to matter. */
        sd_event_run(instance->event, 1000);
}

/* Runs the loop until `condition` holds; what it was in the end. */
#define UNTIL(condition)                                                                           \
        ({                                                                                         \
                uint64_t deadline_ = wire_deadline_ns(10000);                                      \
                while (!(condition) && wire_now_ns() < deadline_)                                  \
                        pump(NULL);                                                                \
                (condition);                                                                       \
        })

static bool workers_idle(void)
{
        return device->table.works[FRAME_IDLE] == device->table.count;
}

static void start(uint32_t frames, uint32_t low, uint32_t high)
{
        struct config config;

        fds_before = unit_count_fds();
        config_init(&config);
        config.gpu_memory_utilization = 1.0;
        config.log_level = LOG_LEVEL_DEBUG;
        config.max_clients = 64;
        config.devices_count = 1;
        config.devices[0] = (struct config_device){
                .match = "*",
                .watermark_low = low,
                .watermark_high = high,
                .given = UINT32_MAX,
        };
        instance = NULL;
        device = NULL;
        CU_ASSERT_EQUAL_FATAL(daemon_new(&instance, &config, log_fd, fake_driver_open(frames)), 0);
        device = list_entry(instance->devices.next, struct device, link);
        device_wake(device);
        CU_ASSERT(UNTIL(device->fresh.count == high && workers_idle()));
}

static int check(void)
{
        char report[4096];
        int problems = daemon_check(instance, report, sizeof(report));

        if (problems)
                printf("\n%s", report);
        return problems;
}

/* Every test ends here: nothing is left of anything. */
static void stop(void)
{
        CU_ASSERT_EQUAL(check(), 0);
        instance = daemon_free(instance);
        CU_ASSERT_EQUAL(fake_driver_allocations(), 0);
        CU_ASSERT_EQUAL(fake_driver_mappings(), 0);
        CU_ASSERT_EQUAL(fake_driver_reservations(), 0);
        CU_ASSERT_EQUAL(fake_driver_contexts(), 0);
        CU_ASSERT_EQUAL(fake_driver_misuses(), 0);
        CU_ASSERT_EQUAL(unit_count_fds(), fds_before);
}

static void join(struct raw_client *client, const char *name)
{
        int pair[2];

        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        raw_attach(client, pair[0]);
        client->pump = pump;
        CU_ASSERT_EQUAL_FATAL(session_new_consume_fd(instance, pair[1]), 0);
        CU_ASSERT_EQUAL_FATAL(raw_hello(client, device->uuid, FAKE_GRANULARITY, name), 0);
}

/* Makes the newest session another user's: what the kernel would say of another process. */
static void pretend_user(uid_t uid)
{
        struct session *session = list_entry(instance->sessions.previous, struct session, link);
        struct tenant *before = session->tenant;

        CU_ASSERT_EQUAL_FATAL(tenant_get(&session->tenant, instance, uid), 0);
        CU_ASSERT_EQUAL_FATAL(
                tenant_device_get(&session->allotment, session->tenant, session->device), 0);
        session->tenant->sessions++;
        before->sessions--;
        tenant_forget(before);
}

static struct raw_client a, b;
static uint64_t ids[512], more[512];

static void test_grant_and_return(void)
{
        struct gpumem_message_meminfo_reply info;
        uint64_t object;

        start(16, 2, 4);
        join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        /* More than is fresh: the daemon makes the rest, even if nobody waits. */
        CU_ASSERT_EQUAL(raw_grant(&a, object, 16, 0, ids), 0);
        CU_ASSERT_EQUAL(device->table.states[FRAME_GRANTED], 16);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.device_bytes, 16 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.session_bytes, 16 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.tenant_bytes, 16 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.available_bytes, 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, more), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "'a' (pid "));
        CU_ASSERT_EQUAL(raw_return(&a, object, 4, ids), 0);
        CU_ASSERT_EQUAL(check(), 0);
        /* They stay the tenant's, charged, and come back scrubbed. */
        CU_ASSERT(UNTIL(device->table.states[FRAME_READY] == 4));
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_MEMSET), 4);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 12 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.tenant_bytes, 16 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(info.available_bytes, 4 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, more), 0);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_CREATE), 16);
        CU_ASSERT_EQUAL(raw_object_destroy(&a, object), 0);
        CU_ASSERT(UNTIL(device->table.states[FRAME_READY] == 16));
        raw_close(&a);
        CU_ASSERT(UNTIL(instance->sessions_count == 0));
        /* The last session is gone: its tenant's memory is released, and the pool filled anew. */
        CU_ASSERT(UNTIL(device->table.states[FRAME_FREE] == 12 && device->fresh.count == 4));
        CU_ASSERT(list_is_empty(&instance->tenants));
        stop();
}

static void test_refusals(void)
{
        uint64_t object, units;

        start(8, 1, 2);
        join(&a, "a");
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
        CU_ASSERT_EQUAL(device->table.states[FRAME_GRANTED], 7);
        CU_ASSERT_EQUAL(check(), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, ids), CODE(GPUMEM_E_NOT_FOUND));
        raw_close(&a);
        stop();
}

static void test_object_table(void)
{
        uint64_t object, first = 0;

        start(8, 1, 2);
        join(&a, "a");
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
        stop();
}

/* C11: two sessions with two objects each, in one process. */
static void test_accounts_apart(void)
{
        uint64_t object[2][2];
        struct gpumem_message_meminfo_reply info;

        start(32, 2, 4);
        join(&a, "a");
        join(&b, "b");
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
        CU_ASSERT(UNTIL(device->sessions_count == 1));
        CU_ASSERT_EQUAL(raw_meminfo(&b, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 7 * FAKE_GRANULARITY);
        /* Its process (this one) lives: what a held may still be mapped. */
        CU_ASSERT_EQUAL(device->table.states[FRAME_DRAINING], 3);
        CU_ASSERT_EQUAL(check(), 0);
        raw_close(&b);
        stop();
}

/* Sends a grant without waiting for its answer. */
static void ask(struct raw_client *client, uint64_t object, uint32_t frames, uint32_t wait_ms)
{
        struct gpumem_message_grant message = {
                .object = object, .frames = frames, .wait_ms = wait_ms};

        wire_message_init(&message, GPUMEM_MESSAGE_GRANT, 0);
        CU_ASSERT_EQUAL(raw_send(client, &message), 0);
}

/* C14: a wait ends at its deadline and says whom it waited for. */
static void test_deadline(void)
{
        uint64_t mine, other, started;

        start(8, 1, 2);
        join(&a, "hog \"A\"");
        join(&b, "b");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &mine), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 6, 0, ids), 0);
        started = wire_now_ns();
        CU_ASSERT_EQUAL(raw_grant(&b, other, 3, 60, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT(wire_now_ns() - started >= 60000000u);
        CU_ASSERT_PTR_NOT_NULL(strstr(b.text, "'hog \"A\"' (pid "));
        CU_ASSERT_PTR_NOT_NULL(strstr(b.text, "holds 384 KiB"));
        CU_ASSERT_EQUAL(device->timeouts, 1);
        /* And the one who holds was asked to give back. */
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 1, 0, ids + 6), 0);
        CU_ASSERT(a.reclaim_events >= 1);
        raw_close(&a);
        raw_close(&b);
        stop();
}

/* First come, first served: a small request does not pass a large one. */
static void test_queue(void)
{
        struct raw_client c;
        uint64_t object[3];

        start(8, 1, 2);
        join(&a, "a");
        join(&b, "b");
        join(&c, "c");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object[0]), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &object[1]), 0);
        CU_ASSERT_EQUAL(raw_object_create(&c, 1, 100, &object[2]), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object[0], 7, 0, ids), 0);
        ask(&b, object[1], 4, 10000);
        CU_ASSERT(UNTIL(device->queue.count == 1));
        /* One is left, but it is spoken for. */
        CU_ASSERT_EQUAL(raw_grant(&c, object[2], 1, 0, more), CODE(GPUMEM_E_AGAIN));
        ask(&c, object[2], 1, 10000);
        CU_ASSERT(UNTIL(device->queue.count == 2));
        CU_ASSERT_EQUAL(device->queue.frames, 5);
        CU_ASSERT_EQUAL(check(), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object[0], 2, ids), 0);
        CU_ASSERT_EQUAL(device->queue.count, 2);
        CU_ASSERT_EQUAL(raw_return(&a, object[0], 2, ids + 2), 0);
        CU_ASSERT_EQUAL(raw_receive(&b, 10000), 0);
        CU_ASSERT_EQUAL(raw_receive(&c, 10000), 0);
        CU_ASSERT_EQUAL(device->table.states[FRAME_GRANTED], 8);
        /* Who leaves the queue lets the next one through. */
        ask(&b, object[1], 4, 10000);
        ask(&c, object[2], 1, 10000);
        CU_ASSERT(UNTIL(device->queue.count == 2));
        CU_ASSERT_EQUAL(raw_return(&a, object[0], 2, ids + 4), 0);
        CU_ASSERT_EQUAL(device->queue.count, 2);
        raw_close(&b);
        CU_ASSERT_EQUAL(raw_receive(&c, 10000), 0);
        CU_ASSERT_EQUAL(device->queue.count, 0);
        raw_close(&a);
        raw_close(&c);
        stop();
}

/* A second request while one waits breaks the protocol; the queue is left in order. */
static void test_impatient(void)
{
        struct gpumem_message_meminfo message;
        uint64_t object;

        start(4, 1, 1);
        join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), 0);
        ask(&a, object, 2, 10000);
        CU_ASSERT(UNTIL(device->queue.count == 1));
        wire_message_init(&message, GPUMEM_MESSAGE_MEMINFO, 0);
        CU_ASSERT_EQUAL(raw_send(&a, &message), 0);
        a.serial--; /* the error answers the request that was outstanding */
        CU_ASSERT_EQUAL(raw_receive(&a, 1000), CODE(GPUMEM_E_PROTOCOL));
        CU_ASSERT_EQUAL(raw_receive(&a, 1000), -ECONNRESET);
        CU_ASSERT_EQUAL(device->queue.count, 0);
        raw_close(&a);
        stop();
}

/* A frame never changes tenant: what one returned is released and made anew for the other. */
static void test_tenants(void)
{
        uint64_t mine, other;
        struct gpumem_message_meminfo_reply info;

        start(8, 0, 0);
        join(&a, "a");
        join(&b, "b");
        pretend_user(4242);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &mine), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 8, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, mine, 6, ids), 0);
        CU_ASSERT(UNTIL(device->table.states[FRAME_READY] == 6));
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
        CU_ASSERT_EQUAL(check(), 0);
        raw_close(&a);
        raw_close(&b);
        stop();
}

/* Each waits for what only the other's returned frames can give: the first in line gets it. */
static void test_tenants_wait_for_each_other(void)
{
        uint64_t mine, other;

        start(8, 0, 0);
        join(&a, "a");
        join(&b, "b");
        pretend_user(4242);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &mine), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, mine, 4, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&b, other, 4, 0, more), 0);
        CU_ASSERT_EQUAL(raw_return(&a, mine, 3, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&b, other, 3, more), 0);
        CU_ASSERT(UNTIL(device->table.states[FRAME_READY] == 6));
        ask(&a, mine, 5, 10000);
        ask(&b, other, 5, 200);
        CU_ASSERT_EQUAL(raw_receive(&a, 5000), 0);
        CU_ASSERT_EQUAL(raw_receive(&b, 5000), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(check(), 0);
        raw_close(&a);
        raw_close(&b);
        stop();
}

/* C02 at the daemon: each driver call of making frames fails; the client sees a typed answer or
 * nothing at all, and the accounts are as before. */
static void test_create_fails(void)
{
        static const enum fake_call calls[] = {FAKE_CREATE, FAKE_EXPORT, FAKE_MAP, FAKE_SET_ACCESS};
        struct gpumem_message_meminfo_reply before, after;
        uint64_t object;

        for (size_t i = 0; i < 4; i++) {
                for (uint32_t nth = 1; nth <= 4; nth++) {
                        start(8, 0, 0);
                        join(&a, "a");
                        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
                        CU_ASSERT_EQUAL(raw_meminfo(&a, &before), 0);
                        fake_driver_fail(calls[i], nth, 1, CUDA_ERROR_UNKNOWN);
                        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), CODE(GPUMEM_E_DEVICE));
                        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "CUDA_ERROR_INJECTED"));
                        CU_ASSERT_EQUAL(device->state, DEVICE_DEGRADED);
                        CU_ASSERT(UNTIL(workers_idle()));
                        CU_ASSERT_EQUAL(device->table.states[FRAME_GRANTED], 0);
                        CU_ASSERT_EQUAL(device->table.states[FRAME_QUARANTINED], 0);
                        CU_ASSERT_EQUAL(check(), 0);
                        /* It was told, and after a pause it works again. */
                        CU_ASSERT_EQUAL(raw_meminfo(&a, &after), 0);
                        CU_ASSERT_EQUAL(after.session_bytes, before.session_bytes);
                        CU_ASSERT_EQUAL(after.tenant_bytes, before.tenant_bytes);
                        CU_ASSERT_EQUAL(a.device_events, 1);
                        CU_ASSERT_EQUAL(raw_grant(&a, object, 8, 5000, ids), 0);
                        raw_close(&a);
                        stop();
                }
        }
}

/* C03: no memory is an answer, not an end; and it comes back when there is some. */
static void test_out_of_memory(void)
{
        uint64_t object;

        start(8, 0, 0);
        fake_driver_use_outside(5);
        join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "outside the daemon"));
        CU_ASSERT_EQUAL(device->state, DEVICE_OK);
        CU_ASSERT_EQUAL(device->outside_bytes, 5 * FAKE_GRANULARITY);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 50, ids), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 3, 0, ids), 0);
        CU_ASSERT_EQUAL(check(), 0);
        ask(&a, object, 4, 10000);
        CU_ASSERT(UNTIL(device->queue.count == 1));
        fake_driver_use_outside(0);
        CU_ASSERT_EQUAL(raw_receive(&a, 10000), 0);
        CU_ASSERT_EQUAL(device->outside_bytes, 0);
        raw_close(&a);
        stop();
}

/* What cannot be undone is never used again, and adds up. */
static void test_quarantine(void)
{
        uint64_t object;

        start(4, 0, 0);
        join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), 0);
        fake_driver_fail(FAKE_MEMSET, 1, 1, CUDA_ERROR_UNKNOWN);
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, ids), 0);
        CU_ASSERT(UNTIL(device->table.states[FRAME_QUARANTINED] == 1));
        CU_ASSERT_EQUAL(device->state, DEVICE_DEGRADED);
        CU_ASSERT_EQUAL(check(), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, ids), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_EQUAL(raw_return(&a, object, 3, ids + 1), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 100, ids), CODE(GPUMEM_E_NO_MEMORY));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 3, 100, ids), 0);
        raw_close(&a);
        stop();
}

static void test_lost(void)
{
        uint64_t object;

        start(8, 0, 0);
        join(&a, "a");
        join(&b, "b");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 2, 0, ids), 0);
        fake_driver_fail(FAKE_SYNCHRONIZE, 1, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
        CU_ASSERT_EQUAL(raw_return(&a, object, 1, ids), 0);
        CU_ASSERT(UNTIL(device->state == DEVICE_LOST));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 1000, ids), CODE(GPUMEM_E_DEVICE));
        CU_ASSERT_EQUAL(a.device_events, 1);
        CU_ASSERT_EQUAL(raw_hello(&b, device->uuid, FAKE_GRANULARITY, "b"), CODE(GPUMEM_E_STATE));
        CU_ASSERT_EQUAL(b.device_events, 1);
        CU_ASSERT_EQUAL(check(), 0);
        raw_close(&a);
        raw_close(&b);
        stop();
}

/* The pool is refilled between the watermarks, off the path of who asks. */
static void test_watermarks(void)
{
        uint64_t object;

        start(32, 3, 6);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_CREATE), 6);
        join(&a, "a");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 3, 0, ids), 0);
        CU_ASSERT(UNTIL(workers_idle()));
        CU_ASSERT_EQUAL(device->fresh.count, 3); /* not under low */
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, ids), 0);
        CU_ASSERT(UNTIL(device->fresh.count == 6));
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_CREATE), 10);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 20, 0, ids), 0);
        CU_ASSERT(UNTIL(device->fresh.count == 6));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 6, 0, ids), 0);
        CU_ASSERT(UNTIL(workers_idle()));
        CU_ASSERT_EQUAL(device->table.states[FRAME_FREE], 0);
        raw_close(&a);
        stop();
}

/* A reply that the client does not read costs it one message, and no event is repeated for ever. */
static void test_deaf_client(void)
{
        struct session *session;
        uint64_t object;

        start(8, 0, 0);
        join(&a, "a");
        session = list_entry(instance->sessions.previous, struct session, link);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        for (int i = 0; i < 100000 && !session->reclaim_pending; i++)
                session_send_reclaim(session, 1);
        CU_ASSERT(session->reclaim_pending);
        ask(&a, object, 2, 0);
        CU_ASSERT(UNTIL(session->output.message != NULL));
        CU_ASSERT_EQUAL(session->output.fds_count, 2);
        CU_ASSERT_EQUAL(device->table.states[FRAME_GRANTED], 2);
        for (int i = 0; i < 1000; i++)
                session_send_device(session);
        CU_ASSERT_EQUAL(check(), 0);
        /* It wakes up: everything is still there, in order, once. */
        CU_ASSERT_EQUAL(raw_receive(&a, 5000), 0);
        CU_ASSERT(a.reclaim_events > 10);
        CU_ASSERT(UNTIL(!session->output.message && !session->device_pending &&
                        !session->reclaim_pending));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 2, 0, ids), 0);
        CU_ASSERT_EQUAL(a.device_events, 1);
        raw_close(&a);
        stop();
}

static void test_start_fails(void)
{
        static const enum fake_call calls[] = {FAKE_CONTEXT, FAKE_RESERVE};
        struct config config;

        config_init(&config);
        fds_before = unit_count_fds();
        for (size_t i = 0; i < 2; i++) {
                const struct driver *driver = fake_driver_open(8);

                fake_driver_fail(calls[i], 1, 1, CUDA_ERROR_UNKNOWN);
                CU_ASSERT_EQUAL(daemon_new(&instance, &config, log_fd, driver), -EIO);
                CU_ASSERT_PTR_NULL(instance);
                CU_ASSERT_EQUAL(fake_driver_contexts(), 0);
                CU_ASSERT_EQUAL(fake_driver_reservations(), 0);
                CU_ASSERT_EQUAL(unit_count_fds(), fds_before);
        }
}

static void test_hello(void)
{
        uint8_t other[16] = {1};
        int pair[2];

        start(8, 0, 0);
        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        raw_attach(&a, pair[0]);
        a.pump = pump;
        CU_ASSERT_EQUAL_FATAL(session_new_consume_fd(instance, pair[1]), 0);
        /* A refused HELLO may be said again, better. */
        CU_ASSERT_EQUAL(raw_hello(&a, other, FAKE_GRANULARITY, "a"), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, device->uuid_text));
        CU_ASSERT_EQUAL(raw_hello(&a, device->uuid, FAKE_GRANULARITY * 2, "a"),
                        CODE(GPUMEM_E_MISMATCH));
        CU_ASSERT_EQUAL(raw_hello(&a, device->uuid, 0, "a"), CODE(GPUMEM_E_MISMATCH));
        CU_ASSERT_EQUAL(raw_hello(&a, device->uuid, FAKE_GRANULARITY, "a"), 0);
        CU_ASSERT_EQUAL(raw_hello(&a, device->uuid, FAKE_GRANULARITY, "a"), CODE(GPUMEM_E_STATE));
        raw_close(&a);
        stop();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"grant, return, grant again", test_grant_and_return},
                {"what is refused", test_refusals},
                {"the table of objects", test_object_table},
                {"C11 accounts stay apart", test_accounts_apart},
                {"C14 a wait has an end and a reason", test_deadline},
                {"first come, first served", test_queue},
                {"a second request while one waits", test_impatient},
                {"a frame never changes tenant", test_tenants},
                {"tenants do not wait for each other for ever", test_tenants_wait_for_each_other},
                {"C02 making frames fails", test_create_fails},
                {"C03 out of memory", test_out_of_memory},
                {"quarantine", test_quarantine},
                {"a lost device", test_lost},
                {"watermarks", test_watermarks},
                {"a client that does not read", test_deaf_client},
                {"a start that fails", test_start_fails},
                {"HELLO", test_hello},
        };
        int status;

        log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        status = UNIT_RUN("grant", tests);
        close(log_fd);
        return status;
}
