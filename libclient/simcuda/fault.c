/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/fault.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libclient/simcuda/stream.h"
#include "libclient/simcuda/window.h"

#define PAGE_BYTES  4096u
#define SCRATCH_MAX 32768u /* pages; behind it the process dies as it would without us */

static struct sigaction previous;
static _Atomic(uintptr_t) scratch[SCRATCH_MAX];
static _Atomic(uint32_t) scratch_count;

static void pass_on(int number, siginfo_t *information, void *machine_context)
{
        if (previous.sa_flags & SA_SIGINFO) {
                previous.sa_sigaction(number, information, machine_context);
        } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
                previous.sa_handler(number);
        } else {
                /* Returning runs into the same fault again, now with the default's consequences. */
                struct sigaction standard = {.sa_handler = SIG_DFL};

                sigaction(number, &standard, NULL);
        }
}

static void on_fault(int number, siginfo_t *information, void *machine_context)
{
        int saved_errno = errno;
        uintptr_t page = (uintptr_t)information->si_addr & ~(uintptr_t)(PAGE_BYTES - 1);
        struct context *context;
        uint32_t index;

        /* Sent by kill() rather than by the MMU, or not ours. */
        if (information->si_code <= 0 || !window_holds_alias(information->si_addr) ||
            atomic_load(&sim.state) != SIM_READY)
                goto not_ours;
        index = atomic_fetch_add(&scratch_count, 1);
        if (index >= SCRATCH_MAX)
                goto not_ours;
        /* The system call itself: sanitizers' interceptors are not for signal handlers. */
        if (syscall(SYS_mmap, page, (size_t)PAGE_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == -1)
                goto not_ours;
        atomic_store(&scratch[index], page);

        context = stream_running_context();
        if (context)
                context_poison(context, CUDA_ERROR_ILLEGAL_ADDRESS);
        else /* a helper thread of some kernel */
                context_poison_all(CUDA_ERROR_ILLEGAL_ADDRESS);
        errno = saved_errno;
        return;

not_ours:
        errno = saved_errno;
        pass_on(number, information, machine_context);
}

CUresult fault_install(void)
{
        struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};

        action.sa_sigaction = on_fault;
        sigemptyset(&action.sa_mask);
        if (sigaction(SIGSEGV, &action, &previous) != 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "SIGSEGV handler: %s",
                                strerror(errno));
        return CUDA_SUCCESS;
}

void fault_clear(void)
{
        uint32_t count = atomic_load(&scratch_count), i;

        pthread_mutex_lock(&sim.memory_lock);
        for (i = 0; i < count && i < SCRATCH_MAX; i++) {
                uintptr_t page = atomic_exchange(&scratch[i], 0);

                if (page != 0)
                        window_restore_page(page);
        }
        atomic_store(&scratch_count, 0);
        pthread_mutex_unlock(&sim.memory_lock);
}
