/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/call.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "libclient/simcuda/context.h"
#include "libclient/simcuda/inject.h"
#include "libclient/simcuda/profile.h"

/* Sleeping is this exact at best; the rest of a wait is spent looking at the clock. */
#define SLEEP_SLACK_NS 120000u

/* How many entries this thread is inside of. */
static _Thread_local __attribute__((tls_model("initial-exec"))) unsigned int depth;

static uint64_t now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool sim_call_is(const char *entry, const char *call)
{
        size_t length = strlen(call);

        if (strncmp(entry, call, length) != 0)
                return false;
        entry += length;
        return entry[0] == '\0' || (entry[0] == '_' && entry[1] == 'v' && entry[2] >= '0' &&
                                    entry[2] <= '9' && entry[3] == '\0');
}

bool sim_call_begin(struct sim_call *call, const char *name)
{
        call->outermost = depth == 0;
        call->latency_ns = 0;
        if (call->outermost) {
                call->result = inject_before(name);
                if (call->result != CUDA_SUCCESS)
                        return false;
                call->latency_ns = profile_latency_ns(name);
                if (call->latency_ns != 0)
                        call->started_ns = now_ns();
        }
        depth++;
        return true;
}

/*
 * A driver serves one memory call of a process at a time: the latencies of calls that come together
 * add up. Returns when the one that began at `started_ns` is over.
 */
static uint64_t end_of_turn(uint64_t started_ns, uint32_t latency_ns)
{
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static uint64_t busy_until; /* under the lock */
        uint64_t end;

        pthread_mutex_lock(&lock);
        if (busy_until < started_ns)
                busy_until = started_ns;
        busy_until += latency_ns;
        end = busy_until;
        pthread_mutex_unlock(&lock);
        return end;
}

static void wait_until(uint64_t end)
{
        uint64_t now = now_ns();

        if (now + SLEEP_SLACK_NS < end) {
                struct timespec until = {.tv_sec = (time_t)((end - SLEEP_SLACK_NS) / 1000000000u),
                                         .tv_nsec = (long)((end - SLEEP_SLACK_NS) % 1000000000u)};

                clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        }
        while (now_ns() < end)
                ;
}

CUresult sim_call_end(struct sim_call *call, CUresult result)
{
        depth--;
        if (call->latency_ns != 0 && result == CUDA_SUCCESS)
                wait_until(end_of_turn(call->started_ns, call->latency_ns));
        return result;
}
