/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "daemon/worker.h"
#include "tests/support/daemon_unit.h"

#define FRAMES 200

static struct frame_table table;
static struct frame_list free_list;
static atomic_uint runs, largest, starts, stops;
static atomic_bool slow;

static int on_start(void *userdata)
{
        starts++;
        return userdata ? *(int *)userdata : 0;
}

static void on_run(void *userdata, const uint32_t *numbers, size_t count)
{
        (void)userdata;
        runs++;
        if (count > largest)
                largest = (unsigned)count;
        for (size_t i = 0; i < count; i++)
                table.frames[numbers[i]].error = (uint16_t)(numbers[i] + 1);
        if (slow)
                nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void on_stop(void *userdata)
{
        (void)userdata;
        stops++;
}

static void reset(void)
{
        runs = largest = starts = stops = 0;
        slow = false;
        CU_ASSERT_EQUAL_FATAL(frame_table_init(&table, FRAMES, 4096, &free_list), 0);
}

static struct worker *make(size_t batch)
{
        const struct worker_work work = {
                .name = "test",
                .batch = batch,
                .start = on_start,
                .run = on_run,
                .stop = on_stop,
        };
        struct worker *worker;

        CU_ASSERT_EQUAL_FATAL(worker_new(&worker, &table, &work), 0);
        return worker;
}

static uint32_t collect(struct worker *worker, uint32_t expected)
{
        uint32_t total = 0;

        while (total < expected) {
                struct pollfd poller = {.fd = worker_fd(worker), .events = POLLIN};
                struct frame_list done;
                uint32_t number;

                if (poll(&poller, 1, 10000) <= 0)
                        break;
                worker_collect(worker, &done);
                while ((number = frame_list_pop(&table, &done)) != FRAME_NONE) {
                        CU_ASSERT_EQUAL(table.frames[number].error, number + 1);
                        total++;
                }
        }
        return total;
}

static void test_all_are_done(void)
{
        static const size_t batches[] = {1, 7, WORKER_BATCH_MAX};

        for (size_t i = 0; i < 3; i++) {
                struct worker *worker;
                struct frame_list done;

                reset();
                worker = make(batches[i]);
                for (uint32_t round = 0; round < 5; round++) {
                        for (uint32_t j = 0; j < FRAMES; j++)
                                worker_push(worker, j);
                        CU_ASSERT_EQUAL(collect(worker, FRAMES), FRAMES);
                }
                CU_ASSERT(largest <= batches[i]);
                worker_collect(worker, &done);
                CU_ASSERT_EQUAL(done.count, 0);
                CU_ASSERT_PTR_NULL(worker_free(worker));
                CU_ASSERT_EQUAL(starts, 1);
                CU_ASSERT_EQUAL(stops, 1);
                frame_table_deinit(&table);
        }
}

/* The eventfd is readable exactly while there is something to collect. */
static void test_event(void)
{
        struct pollfd poller = {.events = POLLIN};
        struct worker *worker;

        reset();
        worker = make(4);
        poller.fd = worker_fd(worker);
        CU_ASSERT_EQUAL(poll(&poller, 1, 20), 0);
        worker_push(worker, 3);
        CU_ASSERT_EQUAL(poll(&poller, 1, 10000), 1);
        CU_ASSERT_EQUAL(collect(worker, 1), 1);
        CU_ASSERT_EQUAL(poll(&poller, 1, 20), 0);
        worker_free(worker);
        frame_table_deinit(&table);
}

/* Ending does not wait for all that was pushed. */
static void test_end_in_the_middle(void)
{
        struct worker *worker;

        reset();
        slow = true;
        worker = make(1);
        for (uint32_t i = 0; i < FRAMES; i++)
                worker_push(worker, i);
        worker_free(worker);
        CU_ASSERT(runs < FRAMES);
        CU_ASSERT_EQUAL(stops, 1);
        frame_table_deinit(&table);
}

static void test_start_fails(void)
{
        int error = -EIO, before = unit_count_fds();
        struct worker_work work = {
                .name = "test",
                .batch = 1,
                .userdata = &error,
                .start = on_start,
                .run = on_run,
                .stop = on_stop,
        };
        struct worker *worker;

        reset();
        CU_ASSERT_EQUAL(worker_new(&worker, &table, &work), -EIO);
        CU_ASSERT_PTR_NULL(worker);
        CU_ASSERT_EQUAL(stops, 0);
        work.batch = 0;
        CU_ASSERT_EQUAL(worker_new(&worker, &table, &work), -EINVAL);
        work.batch = WORKER_BATCH_MAX + 1;
        CU_ASSERT_EQUAL(worker_new(&worker, &table, &work), -EINVAL);
        CU_ASSERT_EQUAL(unit_count_fds(), before);
        CU_ASSERT_PTR_NULL(worker_free(NULL));
        frame_table_deinit(&table);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"all that is pushed is done", test_all_are_done},
                {"the event", test_event},
                {"ending in the middle", test_end_in_the_middle},
                {"a start that fails", test_start_fails},
        };

        return UNIT_RUN("worker", tests);
}
