/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of threads that run one job at a time.
 *
 * The caller publishes a job under the lock, wakes the workers and takes indices itself; indices
 * are handed out by one atomic counter. A worker is counted into a job under the lock before it
 * touches it, so the caller, which closes the job and waits for that count to fall to zero, may let
 * the job (it lies on its stack) go out of scope. Workers sleep on a condition variable; nothing
 * spins.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/kernels.h"

#define POOL_THREADS_LIMIT 1024

struct pool_job {
        void (*fn)(void *arg, size_t i);
        void *arg;
        size_t count;
        atomic_size_t next;
};

struct kernel_pool {
        pthread_mutex_t turn; /* held by the caller whose job runs; before lock */
        pthread_mutex_t lock;
        pthread_cond_t wake;  /* workers: a job came, or stop */
        pthread_cond_t idle;  /* caller: the last worker left the job */
        struct pool_job *job; /* lock; NULL once no worker may join */
        uint64_t serial;  /* lock; of the newest job, so that a worker joins each at most once */
        unsigned wanted;  /* lock; how many more workers may join */
        unsigned inside;  /* lock; workers in the job */
        bool stop;        /* lock */
        unsigned threads; /* with the caller; fixed */
        unsigned started; /* workers that exist; fixed after kernel_pool_new() */
        pthread_t workers[];
};

static void job_work(struct pool_job *job)
{
        for (;;) {
                size_t i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);

                if (i >= job->count)
                        return;
                job->fn(job->arg, i);
        }
}

static void *worker_main(void *arg)
{
        struct kernel_pool *pool = arg;
        uint64_t seen = 0;

        pthread_mutex_lock(&pool->lock);
        for (;;) {
                struct pool_job *job;

                while (!pool->stop && (!pool->job || pool->serial == seen || pool->wanted == 0))
                        pthread_cond_wait(&pool->wake, &pool->lock);
                if (pool->stop)
                        break;
                job = pool->job;
                seen = pool->serial;
                pool->wanted--;
                pool->inside++;
                pthread_mutex_unlock(&pool->lock);

                job_work(job);

                pthread_mutex_lock(&pool->lock);
                if (--pool->inside == 0)
                        pthread_cond_signal(&pool->idle);
        }
        pthread_mutex_unlock(&pool->lock);
        return NULL;
}

static unsigned threads_available(void)
{
        cpu_set_t set;
        int n = 0;

        if (sched_getaffinity(0, sizeof(set), &set) == 0)
                n = CPU_COUNT(&set);
        return n > 0 ? (unsigned)n : 1;
}

/* Workers leave signals to the program's own threads, except those that a thread raises by what it
 * does: the simulator answers a bad device address through SIGSEGV. */
static void signals_block(sigset_t *old)
{
        sigset_t set;

        sigfillset(&set);
        sigdelset(&set, SIGSEGV);
        sigdelset(&set, SIGBUS);
        sigdelset(&set, SIGFPE);
        sigdelset(&set, SIGILL);
        sigdelset(&set, SIGTRAP);
        pthread_sigmask(SIG_SETMASK, &set, old);
}

int kernel_pool_new(struct kernel_pool **out, unsigned threads)
{
        struct kernel_pool *pool;
        sigset_t old;
        int r = 0;

        *out = NULL;
        if (threads == 0)
                threads = threads_available();
        if (threads > POOL_THREADS_LIMIT)
                threads = POOL_THREADS_LIMIT;

        pool = calloc(1, sizeof(*pool) + (threads - 1) * sizeof(pool->workers[0]));
        if (!pool)
                return -ENOMEM;
        pool->threads = threads;
        pthread_mutex_init(&pool->turn, NULL);
        pthread_mutex_init(&pool->lock, NULL);
        pthread_cond_init(&pool->wake, NULL);
        pthread_cond_init(&pool->idle, NULL);

        signals_block(&old);
        while (pool->started < threads - 1) {
                r = pthread_create(&pool->workers[pool->started], NULL, worker_main, pool);
                if (r != 0)
                        break;
                pool->started++;
        }
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r != 0) {
                kernel_pool_free(pool);
                return -r;
        }
        *out = pool;
        return 0;
}

struct kernel_pool *kernel_pool_free(struct kernel_pool *pool)
{
        if (!pool)
                return NULL;
        pthread_mutex_lock(&pool->lock);
        pool->stop = true;
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
        for (unsigned i = 0; i < pool->started; i++)
                pthread_join(pool->workers[i], NULL);
        pthread_cond_destroy(&pool->idle);
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->lock);
        pthread_mutex_destroy(&pool->turn);
        free(pool);
        return NULL;
}

unsigned kernel_pool_threads(const struct kernel_pool *pool)
{
        return pool ? pool->threads : 1;
}

void kernel_pool_run(struct kernel_pool *pool, void (*fn)(void *arg, size_t i), void *arg,
                     size_t count)
{
        struct pool_job job = {.fn = fn, .arg = arg, .count = count};
        unsigned helpers;

        atomic_init(&job.next, 0);
        if (!pool || pool->started == 0 || count <= 1) {
                job_work(&job);
                return;
        }
        helpers = count - 1 < pool->started ? (unsigned)(count - 1) : pool->started;

        pthread_mutex_lock(&pool->turn);
        pthread_mutex_lock(&pool->lock);
        pool->job = &job;
        pool->serial++;
        pool->wanted = helpers;
        if (helpers == pool->started) {
                pthread_cond_broadcast(&pool->wake);
        } else {
                for (unsigned i = 0; i < helpers; i++)
                        pthread_cond_signal(&pool->wake);
        }
        pthread_mutex_unlock(&pool->lock);

        job_work(&job);

        /* All indices are taken: whoever has not joined need not, whoever has is waited for. */
        pthread_mutex_lock(&pool->lock);
        pool->job = NULL;
        while (pool->inside > 0)
                pthread_cond_wait(&pool->idle, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
        pthread_mutex_unlock(&pool->turn);
}
