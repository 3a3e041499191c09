/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/locks.h"
#include "daemon/worker.h"

struct worker {
        struct frame_table *table; /* its counters are the loop's; the worker only follows links */
        struct worker_work work;
        int fd;

        pthread_mutex_t mutex;
        pthread_cond_t changed;     /* todo, stopping, or started */
        struct frame_list todo;     /* mutex */
        struct frame_list finished; /* mutex */
        bool waiting;               /* mutex: the thread sleeps on `changed` */
        bool idled;                 /* mutex: idle() has run since there was something to do */
        bool stopping;              /* mutex */
        bool started;               /* mutex */
        int start_error;            /* mutex */

        bool mutex_made, condition_made, thread_made;
        pthread_t thread;
};

static size_t take_batch(struct worker *worker, uint32_t *numbers)
{
        size_t count = 0;

        while (count < worker->work.batch && worker->todo.count > 0)
                numbers[count++] = frame_list_pop(worker->table, &worker->todo);
        return count;
}

static void run_idle(struct worker *worker)
{
        bool look;

        worker->idled = true;
        lock_release(&worker->mutex);
        look = worker->work.idle(worker->work.userdata);
        lock_take(&worker->mutex, LOCK_WORKER);
        if (look)
                eventfd_write(worker->fd, 1);
}

static void *worker_main(void *argument)
{
        struct worker *worker = argument;
        uint32_t numbers[WORKER_BATCH_MAX];
        int r = worker->work.start ? worker->work.start(worker->work.userdata) : 0;

        lock_take(&worker->mutex, LOCK_WORKER);
        worker->started = true;
        worker->start_error = r;
        pthread_cond_broadcast(&worker->changed);
        while (r == 0) {
                size_t count;
                bool first;

                while (!worker->stopping && worker->todo.count == 0) {
                        if (worker->work.idle && !worker->idled) {
                                run_idle(worker);
                                continue;
                        }
                        worker->waiting = true;
                        lock_wait(&worker->changed, &worker->mutex);
                        worker->waiting = false;
                }
                if (worker->stopping)
                        break;
                count = take_batch(worker, numbers);
                worker->idled = false;
                lock_release(&worker->mutex);

                worker->work.run(worker->work.userdata, numbers, count);

                lock_take(&worker->mutex, LOCK_WORKER);
                first = worker->finished.count == 0;
                for (size_t i = 0; i < count; i++)
                        frame_list_append(worker->table, &worker->finished, numbers[i]);
                if (first)
                        eventfd_write(worker->fd, 1);
        }
        lock_release(&worker->mutex);
        if (r == 0 && worker->work.stop)
                worker->work.stop(worker->work.userdata);
        return NULL;
}

static int start_thread(struct worker *worker)
{
        sigset_t all, before;
        int r;

        sigfillset(&all);
        /* Faults stay deliverable: the simulated driver's handler needs them. */
        sigdelset(&all, SIGSEGV);
        sigdelset(&all, SIGBUS);
        sigdelset(&all, SIGFPE);
        sigdelset(&all, SIGILL);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&worker->thread, NULL, worker_main, worker);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r != 0)
                return -r;
        worker->thread_made = true;
        pthread_setname_np(worker->thread, worker->work.name);

        lock_take(&worker->mutex, LOCK_WORKER);
        while (!worker->started)
                lock_wait(&worker->changed, &worker->mutex);
        r = worker->start_error;
        lock_release(&worker->mutex);
        return r;
}

int worker_new(struct worker **out, struct frame_table *table, const struct worker_work *work)
{
        struct worker *worker;
        int r;

        *out = NULL;
        if (work->batch < 1 || work->batch > WORKER_BATCH_MAX)
                return -EINVAL;
        worker = calloc(1, sizeof(*worker));
        if (!worker)
                return -ENOMEM;
        worker->table = table;
        worker->idled = true;
        worker->work = *work;
        worker->fd = -1;
        frame_list_init(&worker->todo);
        frame_list_init(&worker->finished);

        r = -pthread_mutex_init(&worker->mutex, NULL);
        if (r < 0)
                goto fail;
        worker->mutex_made = true;
        r = -pthread_cond_init(&worker->changed, NULL);
        if (r < 0)
                goto fail;
        worker->condition_made = true;
        worker->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (worker->fd < 0) {
                r = -errno;
                goto fail;
        }
        r = start_thread(worker);
        if (r < 0)
                goto fail;
        *out = worker;
        return 0;

fail:
        worker_free(worker);
        return r;
}

struct worker *worker_free(struct worker *worker)
{
        if (!worker)
                return NULL;
        if (worker->thread_made) {
                lock_take(&worker->mutex, LOCK_WORKER);
                worker->stopping = true;
                pthread_cond_broadcast(&worker->changed);
                lock_release(&worker->mutex);
                pthread_join(worker->thread, NULL);
        }
        if (worker->fd >= 0)
                close(worker->fd);
        if (worker->condition_made)
                pthread_cond_destroy(&worker->changed);
        if (worker->mutex_made)
                pthread_mutex_destroy(&worker->mutex);
        free(worker);
        return NULL;
}

void worker_push(struct worker *worker, uint32_t number)
{
        bool wake;

        lock_take(&worker->mutex, LOCK_WORKER);
        frame_list_append(worker->table, &worker->todo, number);
        wake = worker->waiting;
        worker->waiting = false; /* one signal is enough */
        lock_release(&worker->mutex);
        if (wake)
                pthread_cond_signal(&worker->changed);
}

void worker_poke(struct worker *worker)
{
        lock_take(&worker->mutex, LOCK_WORKER);
        worker->idled = false;
        lock_release(&worker->mutex);
        pthread_cond_signal(&worker->changed);
}

void worker_collect(struct worker *worker, struct frame_list *done)
{
        eventfd_t ignored;

        lock_take(&worker->mutex, LOCK_WORKER);
        eventfd_read(worker->fd, &ignored);
        *done = worker->finished;
        frame_list_init(&worker->finished);
        lock_release(&worker->mutex);
}

int worker_fd(const struct worker *worker)
{
        return worker->fd;
}
