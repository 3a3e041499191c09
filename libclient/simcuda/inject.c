/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libclient/simcuda/context.h"
#include "libclient/simcuda/control.h"
#include "libclient/simcuda/gpumem_sim.h"
#include "libclient/simcuda/rule.h"

#define FILE_NAME     "fault"
#define FILE_NAME_NEW "fault.new"

SIM_EXPORT CUresult gpumem_sim_fault(const char *rules);
SIM_EXPORT CUresult gpumem_sim_fault_machine(const char *rules);
SIM_EXPORT uint64_t gpumem_sim_fault_hits(void);
SIM_EXPORT uint64_t gpumem_sim_fault_machine_hits(void);
SIM_EXPORT CUresult gpumem_sim_lose_device(int device, CUresult error);

static struct {
        pthread_mutex_t lock;
        pthread_once_t once;
        struct rules own, shared;
        CUresult environment;      /* what reading GPUMEM_SIM_FAULT gave */
        char environment_why[256]; /* and its detail */
        bool shared_is_bad;        /* the file cannot be read: every call says so */
        struct timespec seen_time; /* of the file as read */
        uint64_t seen_inode, seen_bytes;
        _Atomic(uint32_t) seen_generation;
        _Atomic(int64_t) looked_ns; /* when the file was looked at last */
        _Atomic(bool) active;       /* there are rules */
        _Atomic(uint64_t) hits;
} inject = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static bool is_ready(void)
{
        return atomic_load_explicit(&sim.state, memory_order_acquire) == SIM_READY;
}

/* Lock held. */
static void update_active(void)
{
        atomic_store(&inject.active,
                     inject.own.count + inject.shared.count != 0 || inject.shared_is_bad);
}

static void read_environment(void)
{
        const char *text = getenv("GPUMEM_SIM_FAULT");

        inject.environment = rules_parse(text, &inject.own);
        if (inject.environment != CUDA_SUCCESS)
                snprintf(inject.environment_why, sizeof(inject.environment_why), "%s",
                         gpumem_sim_error_detail());
        update_active();
}

CUresult inject_environment(void)
{
        pthread_once(&inject.once, read_environment);
        if (inject.environment != CUDA_SUCCESS)
                sim_explain("GPUMEM_SIM_FAULT: %s", inject.environment_why);
        return inject.environment;
}

/* Lock held. Reads the machine's file, if there is one. */
static void read_file(void)
{
        int fd = openat(machine.directory, FILE_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        char text[RULES_TEXT_MAX] = "";
        struct stat status = {0};
        ssize_t length = 0;

        if (fd >= 0) {
                if (fstat(fd, &status) == 0)
                        length = read(fd, text, sizeof(text));
                close(fd);
        }
        inject.seen_time = status.st_mtim;
        inject.seen_inode = status.st_ino;
        inject.seen_bytes = (uint64_t)status.st_size;
        inject.shared.count = 0;
        inject.shared_is_bad = length < 0 || length == (ssize_t)sizeof(text);
        if (!inject.shared_is_bad)
                inject.shared_is_bad = rules_parse(text, &inject.shared) != CUDA_SUCCESS;
        update_active();
}

/* Lock held. */
static bool file_has_changed(void)
{
        struct stat status;

        if (fstatat(machine.directory, FILE_NAME, &status, AT_SYMLINK_NOFOLLOW) != 0)
                return inject.seen_inode != 0;
        return status.st_ino != inject.seen_inode ||
               (uint64_t)status.st_size != inject.seen_bytes ||
               status.st_mtim.tv_sec != inject.seen_time.tv_sec ||
               status.st_mtim.tv_nsec != inject.seen_time.tv_nsec;
}

/*
 * A new generation is seen by the next call; a file written by hand when the coarse clock ticks
 * (every few milliseconds), so that calls need not ask the kernel each time.
 */
static void look_at_file(void)
{
        uint32_t generation =
                atomic_load_explicit(&machine.control->fault_generation, memory_order_acquire);
        struct timespec now;
        int64_t tick;

        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
        tick = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
        if (generation == atomic_load_explicit(&inject.seen_generation, memory_order_relaxed) &&
            tick == atomic_load_explicit(&inject.looked_ns, memory_order_relaxed))
                return;
        pthread_mutex_lock(&inject.lock);
        if (generation != atomic_load(&inject.seen_generation) || file_has_changed()) {
                read_file();
                atomic_store(&inject.seen_generation, generation);
        }
        atomic_store(&inject.looked_ns, tick);
        pthread_mutex_unlock(&inject.lock);
}

/* What the rules together want. */
struct verdict {
        CUresult error;
        bool sticky, lost;
        uint64_t delay_us;
};

/* Lock held. Hits of a set. */
static uint64_t judge(struct rules *rules, const char *call, struct verdict *verdict)
{
        uint64_t hits = 0;
        uint32_t i;

        for (i = 0; i < rules->count; i++) {
                struct rule *rule = &rules->rule[i];

                if (!rule_hits(rule, call))
                        continue;
                hits++;
                verdict->delay_us += rule->delay_us;
                if (verdict->error == CUDA_SUCCESS && rule->error != CUDA_SUCCESS) {
                        verdict->error = rule->error;
                        verdict->sticky = rule->sticky;
                        verdict->lost = rule->lost;
                }
        }
        return hits;
}

/* What happens to a call; without locks. */
static struct verdict apply(const char *call)
{
        struct verdict verdict = {.error = CUDA_SUCCESS};
        uint64_t shared_hits = 0;
        bool bad;

        pthread_mutex_lock(&inject.lock);
        bad = inject.shared_is_bad && is_ready();
        if (!bad) {
                atomic_fetch_add(&inject.hits, judge(&inject.own, call, &verdict));
                if (is_ready())
                        shared_hits = judge(&inject.shared, call, &verdict);
        }
        pthread_mutex_unlock(&inject.lock);
        if (shared_hits != 0)
                atomic_fetch_add(&machine.control->fault_hits, shared_hits);
        if (bad) {
                verdict.error =
                        sim_fail(CUDA_ERROR_INVALID_VALUE, "%s/%s has a rule that cannot be read",
                                 sim.config.directory, FILE_NAME);
        } else if (verdict.error != CUDA_SUCCESS) {
                sim_explain("an injected fault of %s", call);
        }
        if (verdict.delay_us != 0) {
                struct timespec pause = {.tv_sec = (time_t)(verdict.delay_us / 1000000),
                                         .tv_nsec = (long)(verdict.delay_us % 1000000) * 1000};

                while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
                        ;
        }
        return verdict;
}

static void lose(int device, CUresult error)
{
        uint32_t bit = UINT32_C(1) << device;

        control_lock();
        machine.control->lost_error[device] = (int)error;
        control_unlock();
        if (error != CUDA_SUCCESS)
                atomic_fetch_or(&machine.control->lost, bit);
        else
                atomic_fetch_and(&machine.control->lost, ~bit);
}

CUresult inject_before(const char *call)
{
        const struct context *context;
        struct verdict verdict;
        uint32_t lost;

        /* In a forked child nothing happens anyway, and the lock may be held for ever. */
        if (atomic_load_explicit(&sim.state, memory_order_acquire) == SIM_FORKED)
                return CUDA_SUCCESS;
        pthread_once(&inject.once, read_environment);
        if (is_ready()) {
                look_at_file();
                lost = atomic_load_explicit(&machine.control->lost, memory_order_relaxed);
                if (lost != 0)
                        contexts_lose_devices(lost);
        }
        if (!atomic_load_explicit(&inject.active, memory_order_relaxed))
                return CUDA_SUCCESS;
        verdict = apply(call);
        if (!is_ready() || (!verdict.sticky && !verdict.lost))
                return verdict.error;
        context = context_current();
        if (verdict.lost) {
                lose(context ? context->device : 0, verdict.error);
                contexts_lose_devices(atomic_load(&machine.control->lost));
        } else {
                context_poison_current(verdict.error);
        }
        return verdict.error;
}

CUresult inject_operation(struct context *context)
{
        struct verdict verdict;

        if (!atomic_load_explicit(&inject.active, memory_order_relaxed) || !is_ready())
                return CUDA_SUCCESS;
        verdict = apply("operation");
        if (verdict.lost)
                lose(context->device, verdict.error);
        return verdict.error;
}

/* --- for tests -----------------------------------------------------------------------------------
 */

CUresult gpumem_sim_fault(const char *rules)
{
        struct rules parsed;
        CUresult result;

        pthread_once(&inject.once, read_environment);
        result = rules_parse(rules, &parsed);
        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&inject.lock);
        inject.own = parsed;
        inject.environment = CUDA_SUCCESS;
        atomic_store(&inject.hits, 0);
        update_active();
        pthread_mutex_unlock(&inject.lock);
        return CUDA_SUCCESS;
}

uint64_t gpumem_sim_fault_hits(void)
{
        return atomic_load(&inject.hits);
}

static CUresult write_file(const char *rules)
{
        size_t length = strlen(rules);
        int fd;

        if (length == 0) {
                if (unlinkat(machine.directory, FILE_NAME, 0) != 0 && errno != ENOENT)
                        return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "%s: %s", FILE_NAME,
                                        strerror(errno));
                return CUDA_SUCCESS;
        }
        fd = openat(machine.directory, FILE_NAME_NEW,
                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, machine.mode);
        if (fd < 0 || write(fd, rules, length) != (ssize_t)length ||
            renameat(machine.directory, FILE_NAME_NEW, machine.directory, FILE_NAME) != 0) {
                int error = errno;

                if (fd >= 0)
                        close(fd);
                unlinkat(machine.directory, FILE_NAME_NEW, 0);
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "%s/%s: %s", sim.config.directory,
                                FILE_NAME_NEW, strerror(error));
        }
        close(fd);
        return CUDA_SUCCESS;
}

CUresult gpumem_sim_fault_machine(const char *rules)
{
        struct rules parsed;
        CUresult result;

        if (!is_ready())
                return CUDA_ERROR_NOT_INITIALIZED;
        result = rules_parse(rules, &parsed);
        if (result == CUDA_SUCCESS)
                result = write_file(rules ? rules : "");
        if (result != CUDA_SUCCESS)
                return result;
        atomic_store(&machine.control->fault_hits, 0);
        atomic_fetch_add(&machine.control->fault_generation, 1);
        return CUDA_SUCCESS;
}

uint64_t gpumem_sim_fault_machine_hits(void)
{
        return is_ready() ? atomic_load(&machine.control->fault_hits) : 0;
}

CUresult gpumem_sim_lose_device(int device, CUresult error)
{
        if (!is_ready())
                return CUDA_ERROR_NOT_INITIALIZED;
        if (!sim_device_valid(device))
                return CUDA_ERROR_INVALID_DEVICE;
        lose(device, error);
        return CUDA_SUCCESS;
}
