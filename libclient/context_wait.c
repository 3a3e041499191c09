/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/context_scope.h"
#include "libclient/context_wait.h"
#include "libclient/error.h"

struct context_wait {
        atomic_int references; /* the thread's and the owner's */
        const struct driver *driver;
        CUcontext context;
        pthread_t thread;
        CUresult result; /* when the thread has ended */
};

static void unreference(struct context_wait *wait)
{
        if (atomic_fetch_sub(&wait->references, 1) == 1)
                free(wait);
}

static CUresult synchronize(const struct driver *driver, CUcontext context)
{
        CONTEXT_SCOPE(scope, driver, context);

        return scope.result == CUDA_SUCCESS ? driver->ctx_synchronize() : scope.result;
}

static void *run(void *userdata)
{
        struct context_wait *wait = userdata;

        wait->result = synchronize(wait->driver, wait->context);
        unreference(wait);
        return NULL;
}

int context_wait_start(struct context_wait **out, const struct driver *driver, CUcontext context)
{
        struct context_wait *wait = malloc(sizeof(*wait));
        sigset_t all, before;
        int r;

        *out = NULL;
        if (!wait)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a thread");
        *wait = (struct context_wait){.driver = driver, .context = context};
        atomic_init(&wait->references, 2);
        /* The program's signals are for its own threads. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&wait->thread, NULL, run, wait);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r != 0) {
                free(wait);
                return client_error(GPUMEM_E_NO_MEMORY, "cannot start a thread: %s", strerror(r));
        }
        *out = wait;
        return 0;
}

bool context_wait_poll(struct context_wait *wait, CUresult *result)
{
        if (pthread_tryjoin_np(wait->thread, NULL) == EBUSY)
                return false;
        *result = wait->result;
        unreference(wait);
        return true;
}

void context_wait_abandon(struct context_wait *wait)
{
        pthread_detach(wait->thread);
        unreference(wait);
}

void context_wait_join(struct context_wait *wait, uint32_t most_ms)
{
        CUresult result;

        for (uint32_t ms = 0; ms < most_ms; ms++) {
                if (context_wait_poll(wait, &result))
                        return;
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        context_wait_abandon(wait);
}
