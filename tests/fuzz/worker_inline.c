/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/worker.h without threads, linked in place of daemon/worker.c: what was pushed is worked on
 * when the loop collects it. An input then does the same every time, and runs some ten times as
 * fast; what the threads do to each other is the unit tests' business, under ThreadSanitizer.
 */
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/worker.h"
#include "tests/fuzz/fuzz.h"

struct worker {
        struct frame_table *table;
        struct worker_work work;
        struct frame_list todo;
        int fd;
};

int worker_new(struct worker **out, struct frame_table *table, const struct worker_work *work)
{
        struct worker *worker = calloc(1, sizeof(*worker));
        int r;

        FUZZ_REQUIRE(worker);
        worker->table = table;
        worker->work = *work;
        frame_list_init(&worker->todo);
        worker->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        FUZZ_REQUIRE(worker->fd >= 0);
        r = work->start ? work->start(work->userdata) : 0;
        if (r < 0) {
                close(worker->fd);
                free(worker);
                return r;
        }
        *out = worker;
        return 0;
}

struct worker *worker_free(struct worker *worker)
{
        if (!worker)
                return NULL;
        if (worker->work.stop)
                worker->work.stop(worker->work.userdata);
        close(worker->fd);
        free(worker);
        return NULL;
}

void worker_push(struct worker *worker, uint32_t number)
{
        frame_list_append(worker->table, &worker->todo, number);
        eventfd_write(worker->fd, 1);
}

void worker_poke(struct worker *worker)
{
        eventfd_write(worker->fd, 1);
}

void worker_collect(struct worker *worker, struct frame_list *done)
{
        uint32_t numbers[WORKER_BATCH_MAX];
        eventfd_t ignored;

        eventfd_read(worker->fd, &ignored);
        frame_list_init(done);
        while (worker->todo.count > 0) {
                size_t count = 0;

                while (count < worker->work.batch && worker->todo.count > 0)
                        numbers[count++] = frame_list_pop(worker->table, &worker->todo);
                worker->work.run(worker->work.userdata, numbers, count);
                for (size_t i = 0; i < count; i++)
                        frame_list_append(worker->table, done, numbers[i]);
        }
        if (worker->work.idle)
                worker->work.idle(worker->work.userdata);
}

int worker_fd(const struct worker *worker)
{
        return worker->fd;
}
