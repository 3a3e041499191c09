/* SPDX-License-Identifier: Apache-2.0 */
#include <fenv.h>
#include <stdatomic.h>

#include "kernels/cpu/tile.h"

struct lanes_job {
        void (*fn)(void *arg, unsigned lane, size_t i);
        void *arg;
        size_t count;
        atomic_size_t next;
};

static void lane_main(void *arg, size_t lane)
{
        struct lanes_job *job = arg;
        fenv_t environment;

        fegetenv(&environment);
        fesetenv(FE_DFL_ENV);
        for (;;) {
                size_t i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);

                if (i >= job->count)
                        break;
                job->fn(job->arg, (unsigned)lane, i);
        }
        fesetenv(&environment);
}

void kernel_lanes_run(struct kernel_pool *pool, unsigned lanes,
                      void (*fn)(void *arg, unsigned lane, size_t i), void *arg, size_t count)
{
        struct lanes_job job = {.fn = fn, .arg = arg, .count = count};

        atomic_init(&job.next, 0);
        kernel_pool_run(pool, lane_main, &job, lanes < count ? lanes : count);
}
