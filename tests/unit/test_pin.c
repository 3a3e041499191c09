/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/pin.c over a driver whose events happen when the test says so. */
#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/error.h"
#include "libclient/pin.h"

/* An event is an index into this table. */
#define EVENTS 4096
static struct {
        bool exists, recorded, happened;
} events[EVENTS];
static unsigned created, destroyed;
static atomic_uint synchronized; /* calls that have returned */
static atomic_bool context_busy, context_lost;
static bool create_fails, record_fails, query_fails;

static CUresult event_create(CUevent *event, unsigned int flags)
{
        CU_ASSERT_EQUAL(flags, CU_EVENT_DISABLE_TIMING);
        if (create_fails)
                return CUDA_ERROR_OUT_OF_MEMORY;
        CU_ASSERT_FATAL(created + 1 < EVENTS);
        created++;
        events[created].exists = true;
        *event = (CUevent)(uintptr_t)created;
        return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
        CU_ASSERT(events[(uintptr_t)event].exists);
        events[(uintptr_t)event].exists = false;
        destroyed++;
        return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
        (void)stream;
        if (record_fails)
                return CUDA_ERROR_INVALID_HANDLE;
        events[(uintptr_t)event].recorded = true;
        events[(uintptr_t)event].happened = false;
        return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
        CU_ASSERT(events[(uintptr_t)event].recorded);
        if (query_fails)
                return CUDA_ERROR_ILLEGAL_ADDRESS;
        return events[(uintptr_t)event].happened ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult ctx_synchronize(void)
{
        while (atomic_load(&context_busy))
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        atomic_fetch_add(&synchronized, 1);
        return atomic_load(&context_lost) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

static CUresult ctx_push(CUcontext context)
{
        (void)context;
        return CUDA_SUCCESS;
}

static CUresult ctx_pop(CUcontext *context)
{
        *context = NULL;
        return CUDA_SUCCESS;
}

static CUresult get_error_name(CUresult error, const char **name)
{
        (void)error;
        *name = "CUDA_ERROR_TEST";
        return CUDA_SUCCESS;
}

static const struct driver fake = {
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_query = event_query,
        .ctx_synchronize = ctx_synchronize,
        .ctx_push_current = ctx_push,
        .ctx_pop_current = ctx_pop,
        .get_error_name = get_error_name,
};

static unsigned over_count;
static int payloads[64];

static void over(void *payload)
{
        ++*(int *)payload;
        over_count++;
}

static atomic_uint session_pins;

static void begin(struct pin_table *table, uint64_t expected)
{
        uint64_t number = 0;

        CU_ASSERT_EQUAL_FATAL(pin_begin(table, &payloads[expected % 64], &number), 0);
        CU_ASSERT_EQUAL_FATAL(number, expected);
}

static void happen(struct pin_table *table, uint64_t number)
{
        events[(uintptr_t)table->ring[number % PIN_WINDOW].event].happened = true;
}

static void init(struct pin_table *table)
{
        memset(events, 0, sizeof(events));
        memset(payloads, 0, sizeof(payloads));
        created = destroyed = over_count = 0;
        atomic_store(&synchronized, 0);
        atomic_store(&context_busy, false);
        atomic_store(&context_lost, false);
        create_fails = record_fails = query_fails = false;
        CU_ASSERT_EQUAL_FATAL(pin_table_init(table, &fake, NULL, &session_pins, over), 0);
}

static void done(struct pin_table *table)
{
        CU_ASSERT_EQUAL(pin_outstanding(table), 0);
        CU_ASSERT_EQUAL(atomic_load(&session_pins), 0);
        pin_table_deinit(table);
        CU_ASSERT_EQUAL(created, destroyed); /* no event leaks */
}

static void test_order(void)
{
        struct pin_table table;

        init(&table);
        CU_ASSERT_EQUAL(pin_stamp(&table), 0);
        begin(&table, 1);
        begin(&table, 2);
        begin(&table, 3);
        CU_ASSERT_EQUAL(pin_stamp(&table), 3);
        CU_ASSERT_EQUAL(table.begun, 3);
        CU_ASSERT_EQUAL(atomic_load(&session_pins), 3);
        /* Ended and happened out of order: the oldest that is not over decides. */
        CU_ASSERT_EQUAL(pin_end(&table, 3, NULL), 0);
        CU_ASSERT_EQUAL(pin_end(&table, 2, NULL), 0);
        happen(&table, 3);
        happen(&table, 2);
        pin_poll(&table);
        CU_ASSERT_EQUAL(table.oldest, 1);
        CU_ASSERT_EQUAL(pin_end(&table, 1, NULL), 0);
        pin_poll(&table);
        CU_ASSERT_EQUAL(table.oldest, 1);
        CU_ASSERT_EQUAL(over_count, 0);
        happen(&table, 1);
        pin_poll(&table);
        CU_ASSERT_EQUAL(table.oldest, 4);
        CU_ASSERT_EQUAL(over_count, 3);
        CU_ASSERT(payloads[1] == 1 && payloads[2] == 1 && payloads[3] == 1);
        CU_ASSERT_EQUAL(pin_stamp(&table), 0);
        /* Events are used again. */
        begin(&table, 4);
        CU_ASSERT_EQUAL(created, 3);
        pin_drop(&table, 4);
        CU_ASSERT_EQUAL(pin_outstanding(&table), 0);
        done(&table);
}

/* The table has an end, and it is a typed one. */
static void test_window(void)
{
        struct pin_table table;
        uint64_t number;

        init(&table);
        for (uint64_t n = 1; n <= PIN_WINDOW; n++)
                begin(&table, n);
        CU_ASSERT_EQUAL(pin_begin(&table, NULL, &number), GPUMEM_E_AGAIN);
        CU_ASSERT_EQUAL(pin_end(&table, 1, NULL), 0);
        CU_ASSERT_EQUAL(pin_begin(&table, NULL, &number), GPUMEM_E_AGAIN);
        happen(&table, 1);
        begin(&table, PIN_WINDOW + 1);
        for (uint64_t n = 2; n <= PIN_WINDOW + 1; n++) {
                CU_ASSERT_EQUAL(pin_end(&table, n, NULL), 0);
                happen(&table, n);
        }
        pin_poll(&table);
        CU_ASSERT_EQUAL(created, PIN_WINDOW);
        done(&table);
}

/* Polls until so many pins are outstanding, for a second. */
static bool wait_outstanding(struct pin_table *table, uint64_t expected)
{
        for (int i = 0; i < 1000; i++) {
                pin_poll(table);
                if (pin_outstanding(table) == expected)
                        return true;
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        return false;
}

/* No event: the pin lasts until the context was waited for since, and nothing is lost. */
static void test_adrift(void)
{
        struct pin_table table;

        init(&table);
        begin(&table, 1);
        begin(&table, 2);
        atomic_store(&context_busy, true);
        record_fails = true;
        CU_ASSERT_EQUAL(pin_end(&table, 1, NULL), GPUMEM_E_INVALID);
        record_fails = false;
        CU_ASSERT_EQUAL(pin_query(&table, 1), 1);
        CU_ASSERT_FALSE(wait_outstanding(&table, 1));
        CU_ASSERT_EQUAL(table.lost, CUDA_SUCCESS);
        CU_ASSERT_EQUAL(over_count, 0);
        /* What is adrift only now is not covered by the wait that is under way. */
        record_fails = true;
        CU_ASSERT_EQUAL(pin_end(&table, 2, NULL), GPUMEM_E_INVALID);
        record_fails = false;
        atomic_store(&context_busy, false);
        CU_ASSERT_TRUE(wait_outstanding(&table, 0));
        CU_ASSERT_EQUAL(atomic_load(&synchronized), 2);
        CU_ASSERT_EQUAL(over_count, 2);
        CU_ASSERT_EQUAL(table.lost, CUDA_SUCCESS);
        /* The wait finds out that the context is lost. */
        begin(&table, 3);
        atomic_store(&context_lost, true);
        record_fails = true;
        CU_ASSERT_EQUAL(pin_end(&table, 3, NULL), GPUMEM_E_INVALID);
        record_fails = false;
        CU_ASSERT_TRUE(wait_outstanding(&table, 0));
        CU_ASSERT_EQUAL(table.lost, CUDA_ERROR_LAUNCH_FAILED);
        done(&table);
}

static void test_failures(void)
{
        struct pin_table table;
        uint64_t number;

        init(&table);
        create_fails = true;
        CU_ASSERT_EQUAL(pin_begin(&table, NULL, &number), GPUMEM_E_DEVICE);
        CU_ASSERT_EQUAL(pin_outstanding(&table), 0);
        create_fails = false;
        /* A lost context is the end of every pin. */
        begin(&table, 1);
        CU_ASSERT_EQUAL(pin_end(&table, 1, NULL), 0);
        pin_poll(&table);
        CU_ASSERT_EQUAL(pin_outstanding(&table), 1);
        CU_ASSERT_EQUAL(table.lost, CUDA_SUCCESS);
        query_fails = true;
        pin_poll(&table);
        CU_ASSERT_EQUAL(table.lost, CUDA_ERROR_ILLEGAL_ADDRESS);
        CU_ASSERT_EQUAL(pin_outstanding(&table), 0);
        /* Begun, and nobody will end it. */
        query_fails = false;
        begin(&table, 2);
        begin(&table, 3);
        CU_ASSERT_EQUAL(pin_end(&table, 3, NULL), 0);
        pin_abandon(&table);
        CU_ASSERT_EQUAL(pin_outstanding(&table), 1);
        CU_ASSERT_EQUAL(table.begun, 0);
        happen(&table, 3);
        pin_poll(&table);
        done(&table);
}

/* Random order of begin, end and happen, against sets. */
static void test_random(void)
{
        struct pin_table table;
        uint64_t state[2000] = {0}; /* 1 begun, 2 ended, 3 happened */
        uint64_t newest = 0, random = 12345;

        printf("seed 12345 ");
        init(&table);
        for (int step = 0; step < 20000; step++) {
                uint64_t n, oldest = 1;

                random = random * 6364136223846793005u + 1442695040888963407u;
                n = newest > 20 ? newest - 20 + (random >> 33) % 20 + 1
                    : newest    ? (random >> 33) % newest + 1
                                : 0;
                if ((random >> 60) % 4 == 0 && newest < 1999 && pin_outstanding(&table) < 100)
                        begin(&table, ++newest), state[newest] = 1;
                else if (n > 0 && state[n] == 1) {
                        CU_ASSERT_EQUAL(pin_end(&table, n, NULL), 0);
                        state[n] = 2;
                } else if (n > 0 && state[n] == 2) {
                        happen(&table, n);
                        state[n] = 3;
                }
                if ((random >> 40) % 3 == 0) {
                        pin_poll(&table);
                        while (oldest <= newest && state[oldest] == 3)
                                oldest++;
                        CU_ASSERT_EQUAL(table.oldest, oldest);
                }
        }
        for (uint64_t n = 1; n <= newest; n++) {
                if (state[n] == 1)
                        CU_ASSERT_EQUAL(pin_end(&table, n, NULL), 0);
                if (state[n] < 3)
                        happen(&table, n);
        }
        pin_poll(&table);
        CU_ASSERT_EQUAL(over_count, newest);
        done(&table);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("pins", NULL, NULL);
        CU_add_test(suite, "the oldest decides", test_order);
        CU_add_test(suite, "the table is bounded", test_window);
        CU_add_test(suite, "a pin whose end is not known", test_adrift);
        CU_add_test(suite, "driver failures", test_failures);
        CU_add_test(suite, "random order", test_random);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
