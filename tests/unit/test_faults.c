/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C02 and C03 for the whole daemon: every driver call and every allocation that a grant, a return,
 * a release or a start is made of fails once. The client gets its answer or a typed error, nothing
 * ends, the accounts hold, and who comes next is served.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/core.h"
#include "tests/support/daemon_unit.h"

static struct raw_client a, b;
static uint64_t ids[64], more[64];

/* --- allocations that fail ---------------------------------------------------------------------
 */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/* The sanitizers' own allocator is in the way. */
#define CAN_FAIL_ALLOCATIONS 0
#else
#define CAN_FAIL_ALLOCATIONS 1

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
#endif

/* Of this thread; the workers' are not touched. */
static _Thread_local bool armed;
static _Thread_local unsigned countdown, hits;

static inline bool fails_now(void)
{
        if (!armed || countdown == 0 || --countdown > 0)
                return false;
        hits++;
        errno = ENOMEM;
        return true;
}

#if CAN_FAIL_ALLOCATIONS
/* (Visible, so that libsystemd's are these as well.) */
#define VISIBLE __attribute__((visibility("default")))

VISIBLE void *malloc(size_t size)
{
        return fails_now() ? NULL : __libc_malloc(size);
}

VISIBLE void *calloc(size_t count, size_t size)
{
        return fails_now() ? NULL : __libc_calloc(count, size);
}

VISIBLE void *realloc(void *memory, size_t size)
{
        return fails_now() ? NULL : __libc_realloc(memory, size);
}
#endif

/* The loop's turn, with the allocations that are to fail. */
static void armed_turn(void *userdata)
{
        armed = true;
        core_turn(userdata);
        armed = false;
}

static void skip_allocations(void)
{
        printf("skipped: a sanitizer's allocator cannot be made to fail here ");
}

/* A start that fails leaves nothing. */
static void test_start(void)
{
        unsigned nth = 0;
        int r;

        if (!CAN_FAIL_ALLOCATIONS) {
                skip_allocations();
                return;
        }
        do {
                const struct driver *driver = fake_driver_open(8);
                int fds = unit_count_fds();
                struct daemon *daemon;
                static struct config config;

                core_config(&config, 0, 0);
                countdown = ++nth;
                hits = 0;
                armed = true;
                r = daemon_new(&daemon, &config, -1, driver);
                armed = false;
                /* (libsystemd does without some.) */
                if (r == 0)
                        daemon_free(daemon);
                else /* a thread without a stack is EAGAIN */
                        CU_ASSERT(r == -ENOMEM || r == -EAGAIN);
                CU_ASSERT_EQUAL(fake_driver_contexts(), 0);
                CU_ASSERT_EQUAL(fake_driver_reservations(), 0);
                CU_ASSERT_EQUAL(unit_count_fds(), fds);
        } while (hits > 0 && nth < 1000);
        CU_ASSERT(nth > 20);
        CU_ASSERT_EQUAL(r, 0);
}

enum request {
        REQUEST_CONNECT,
        REQUEST_CREATE,
        REQUEST_GRANT,
        REQUEST_WAIT,
        REQUEST_RETURN,
        REQUEST_DESTROY,
        REQUEST_LEAVE,
        REQUEST_COUNT,
};

static int ask(enum request request, uint64_t object)
{
        uint64_t other;
        int pair[2], r;

        switch (request) {
        case REQUEST_CONNECT:
                CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair),
                                      0);
                raw_attach(&b, pair[0]);
                b.pump = armed_turn;
                armed = true;
                r = session_new_consume_fd(core.daemon, pair[1]);
                armed = false;
                if (r == 0)
                        r = raw_hello(&b, core.device->uuid, FAKE_GRANULARITY, "b");
                raw_close(&b);
                return r;
        case REQUEST_CREATE:
                return raw_object_create(&a, 1, 8, &other);
        case REQUEST_GRANT:
                return raw_grant(&a, object, 4, 0, more);
        case REQUEST_WAIT:
                return raw_grant(&a, object, 7, 20, more);
        case REQUEST_RETURN:
                return raw_return(&a, object, 2, ids);
        case REQUEST_DESTROY:
                return raw_object_destroy(&a, object);
        case REQUEST_LEAVE:
                raw_close(&a);
                for (int i = 0; i < 5; i++)
                        armed_turn(NULL);
                return 0;
        case REQUEST_COUNT:
                break;
        }
        return -EINVAL;
}

/* Is this an answer that a client may get? */
static bool is_typed(int r)
{
        return r == 0 || r == CODE(GPUMEM_E_NO_MEMORY) || r == CODE(GPUMEM_E_AGAIN) ||
               r == CODE(GPUMEM_E_TIMEOUT) || r == CODE(GPUMEM_E_DEVICE) || r == -ECONNRESET ||
               r == -EPIPE || r == -ENOMEM;
}

static void test_requests(void)
{
        if (!CAN_FAIL_ALLOCATIONS) {
                skip_allocations();
                return;
        }
        for (int request = 0; request < REQUEST_COUNT; request++) {
                for (unsigned nth = 1; nth < 200; nth++) {
                        uint64_t object;
                        int r;

                        core_start(8, 2, 4);
                        core_join(&a, "a");
                        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 8, &object), 0);
                        CU_ASSERT_EQUAL(raw_grant(&a, object, 2, 0, ids), 0);
                        a.pump = armed_turn;
                        countdown = nth;
                        hits = 0;
                        r = ask((enum request)request, object);
                        countdown = 0;
                        a.pump = core_turn;
                        if (!is_typed(r)) {
                                printf("request %d, allocation %u: %d\n", request, nth, r);
                                CU_FAIL("not an answer");
                        }
                        CU_ASSERT(CORE_UNTIL(core_workers_idle()));
                        CU_ASSERT_EQUAL(core_check(), 0);
                        core_join(&b, "b");
                        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 8, &object), 0);
                        CU_ASSERT_EQUAL(raw_grant(&b, object, 1, 1000, more), 0);
                        raw_close(&a);
                        raw_close(&b);
                        core_stop();
                        if (hits == 0)
                                break;
                }
        }
}

/* --- driver calls that fail --------------------------------------------------------------------
 */

/* Everything that frames go through: two tenants, one after the other in the same memory. */
static void go_round(void)
{
        uint64_t mine, other;
        int r;

        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 8, &mine), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 2, 8, &other), 0);
        r = raw_grant(&a, mine, 6, 200, ids);
        CU_ASSERT(is_typed(r));
        CU_ASSERT_EQUAL(core_check(), 0);
        if (r == 0) {
                CU_ASSERT_EQUAL(raw_return(&a, mine, 4, ids), 0);
                CU_ASSERT_EQUAL(core_check(), 0);
        }
        r = raw_grant(&a, mine, 1, 200, ids + 8);
        CU_ASSERT(is_typed(r));
        r = raw_grant(&b, other, 4, 200, more);
        CU_ASSERT(is_typed(r));
        CU_ASSERT_EQUAL(core_check(), 0);
        if (r == 0)
                CU_ASSERT_EQUAL(raw_return(&b, other, 4, more), 0);
        CU_ASSERT_EQUAL(raw_object_destroy(&a, mine), 0);
        CU_ASSERT_EQUAL(raw_object_destroy(&b, other), 0);
        CU_ASSERT_EQUAL(core_check(), 0);
}

/* The accounts of both tenants hold what frames and withheld memory are charged to them. */
static uint64_t charged(void)
{
        uint64_t bytes = 0;

        list_for_each(node, &core.daemon->tenants) bytes +=
                list_entry(node, struct tenant, link)->account.bytes;
        return bytes;
}

static void test_driver(enum fake_call call, CUresult error, bool sticky)
{
        for (uint32_t nth = 1; nth <= 8; nth++) {
                const uint32_t *states;
                uint32_t lost;

                core_start(8, 0, 0);
                core_join_user(&a, "a", 77);
                core_join_user(&b, "b", 78);
                fake_driver_fail(call, nth, 1, error);
                go_round();
                CU_ASSERT(CORE_UNTIL(core_workers_idle() || core.device->state == DEVICE_LOST));
                fake_driver_fail(call, 1, 0, error); /* not any more */
                if (sticky && core.device->state == DEVICE_LOST) {
                        CU_ASSERT_EQUAL(raw_meminfo(&a, &(struct gpumem_message_meminfo_reply){0}),
                                        0);
                        CU_ASSERT_EQUAL(a.device_events, 1);
                } else {
                        /* Again, without a failure: everybody gets something. */
                        uint64_t object;
                        uint32_t usable;

                        CU_ASSERT(CORE_UNTIL(core_workers_idle()));
                        usable = 8 - core.device->table.states[FRAME_QUARANTINED];
                        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 8, &object), 0);
                        CU_ASSERT_EQUAL(raw_grant(&b, object, usable, 10000, more), 0);
                        CU_ASSERT_EQUAL(raw_return(&b, object, usable, more), 0);
                }
                raw_close(&a);
                raw_close(&b);
                CU_ASSERT(CORE_UNTIL(
                        core.daemon->sessions_count == 0 &&
                        (core.device->state == DEVICE_LOST ||
                         (core_workers_idle() && list_is_empty(&core.daemon->tenants)))));
                states = core.device->table.states;
                CU_ASSERT_EQUAL(states[FRAME_GRANTED] + states[FRAME_DRAINING], 0);
                CU_ASSERT(states[FRAME_QUARANTINED] <= WORKER_BATCH_MAX);
                if (core.device->state != DEVICE_LOST)
                        CU_ASSERT_EQUAL(charged(), 0);
                lost = states[FRAME_QUARANTINED];
                CU_ASSERT_EQUAL(core_check(), 0);
                core.daemon = daemon_free(core.daemon);
                /* What could not be undone is all that is left. */
                CU_ASSERT(fake_driver_allocations() <= lost);
                CU_ASSERT(fake_driver_mappings() <= lost);
                CU_ASSERT_EQUAL(fake_driver_contexts(), 0);
                CU_ASSERT_EQUAL(unit_count_fds(), core.fds_before);
        }
}

static void test_driver_calls(void)
{
        static const enum fake_call calls[] = {FAKE_CREATE,     FAKE_EXPORT,      FAKE_MAP,
                                               FAKE_SET_ACCESS, FAKE_UNMAP,       FAKE_RELEASE,
                                               FAKE_MEMSET,     FAKE_SYNCHRONIZE, FAKE_INFO};

        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
                test_driver(calls[i], CUDA_ERROR_UNKNOWN, false);
                test_driver(calls[i], CUDA_ERROR_OUT_OF_MEMORY, false);
                test_driver(calls[i], CUDA_ERROR_ILLEGAL_ADDRESS, true);
        }
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"each allocation of a start fails", test_start},
                {"each allocation of a request fails (C03)", test_requests},
                {"each driver call fails (C02)", test_driver_calls},
        };

        return UNIT_RUN("faults", tests);
}
