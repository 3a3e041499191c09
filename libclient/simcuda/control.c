/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libclient/simcuda/directory.h"
#include "libclient/simcuda/profile.h"

#define CONTROL_MAGIC UINT64_C(0x316d69736d757067) /* "gpumsim1" */
/* Bytes of the control file's lock space; they need not exist as data. */
#define LOCK_PROCESSES 16

#define NO_PROCESS UINT32_MAX

struct machine machine = {.directory = -1, .file = -1, .process = NO_PROCESS};

/* --- slots --------------------------------------------------------------------------------------
 */

void control_lock(void)
{
        struct control *control = machine.control;
        uint32_t i, process;
        uint64_t word;

        if (pthread_mutex_lock(&control->lock) != EOWNERDEAD)
                return;

        /* Somebody died in here. States of slots and bitmaps are single stores; the rest is
         * derived. */
        pthread_mutex_consistent(&control->lock);
        memset(control->used_bytes, 0, sizeof(control->used_bytes));
        memset(control->bucket, 0, sizeof(control->bucket));
        control->free_slot = 0;
        control->unsure = 0;
        for (i = 1; i <= control->slots_used; i++)
                control->slot[i].holders = 0;
        for (process = 0; process < CONTROL_PROCESSES; process++) {
                if (!control->attached[process])
                        continue;
                for (i = 0; i <= control->slots_used / 64; i++)
                        for (word = control->held[process][i]; word != 0; word &= word - 1)
                                control->slot[i * 64 + (uint32_t)__builtin_ctzll(word)].holders++;
        }
        for (i = 1; i <= control->slots_used; i++) {
                struct slot *slot = &control->slot[i];

                if (slot->state == SLOT_FREE) {
                        slot->next = control->free_slot;
                        control->free_slot = i;
                        continue;
                }
                control->used_bytes[slot->device % SIM_DEVICES_MAX] += slot->bytes;
                slot->unsure = 0;
                if (slot->state == SLOT_LIVE) {
                        control_publish(i, slot->inode);
                        if (slot->holders == 0)
                                control_set_unsure(i, true);
                }
        }
}

void control_unlock(void)
{
        pthread_mutex_unlock(&machine.control->lock);
}

uint32_t control_take_slot(void)
{
        struct control *control = machine.control;
        uint32_t index = control->free_slot;

        if (index != 0) {
                control->free_slot = control->slot[index].next;
                return index;
        }
        if (control->slots_used + 1 >= CONTROL_SLOTS)
                return 0;
        return ++control->slots_used;
}

void control_free_slot(uint32_t index)
{
        struct control *control = machine.control;
        struct slot *slot = &control->slot[index];

        control->used_bytes[slot->device] -= slot->bytes;
        slot->state = SLOT_FREE;
        slot->next = control->free_slot;
        control->free_slot = index;
}

static uint32_t bucket_of(uint64_t inode)
{
        return (uint32_t)((inode * UINT64_C(0x9e3779b97f4a7c15)) >> 48) % CONTROL_BUCKETS;
}

uint32_t control_find(uint64_t inode)
{
        struct control *control = machine.control;
        uint32_t index = control->bucket[bucket_of(inode)];

        while (index != 0 && control->slot[index].inode != inode)
                index = control->slot[index].next;
        return index;
}

void control_publish(uint32_t index, uint64_t inode)
{
        struct control *control = machine.control;
        uint32_t *head = &control->bucket[bucket_of(inode)];

        control->slot[index].inode = inode;
        control->slot[index].next = *head;
        control->slot[index].state = SLOT_LIVE;
        *head = index;
}

void control_unpublish(uint32_t index)
{
        struct control *control = machine.control;
        uint32_t *link = &control->bucket[bucket_of(control->slot[index].inode)];

        while (*link != 0 && *link != index)
                link = &control->slot[*link].next;
        if (*link == index)
                *link = control->slot[index].next;
        control_set_unsure(index, false);
        control->slot[index].owner = machine.process;
        control->slot[index].state = SLOT_FREEING;
}

void control_set_unsure(uint32_t index, bool unsure)
{
        struct control *control = machine.control;
        struct slot *slot = &control->slot[index];

        if ((slot->unsure != 0) == unsure)
                return;
        slot->unsure = unsure;
        if (unsure)
                control->unsure++;
        else
                control->unsure--;
}

void control_hold(uint32_t index)
{
        struct control *control = machine.control;

        control->held[machine.process][index / 64] |= UINT64_C(1) << (index % 64);
        control->slot[index].holders++;
        control_set_unsure(index, false);
}

void control_let_go(uint32_t index)
{
        struct control *control = machine.control;

        control->held[machine.process][index / 64] &= ~(UINT64_C(1) << (index % 64));
        control->slot[index].holders--;
}

void slot_name(uint32_t slot, char name[24])
{
        snprintf(name, 24, SLOT_PREFIX "%u", slot);
}

bool slot_is_kept(uint32_t index)
{
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        char name[24];
        bool kept = true;
        int fd;

        slot_name(index, name);
        fd = openat(machine.directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return errno !=
                       ENOENT; /* no descriptor left for the test: assume the best holder */
        if (fcntl(fd, F_OFD_GETLK, &lock) == 0)
                kept = lock.l_type != F_UNLCK;
        close(fd);
        return kept;
}

/* --- processes ----------------------------------------------------------------------------------
 */

static bool range_is_locked(off_t start, off_t length)
{
        struct flock lock = {
                .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length};

        /* If it cannot be asked, nobody may be declared dead. */
        return fcntl(machine.file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void remove_file(uint32_t slot)
{
        char name[24];

        slot_name(slot, name);
        unlinkat(machine.directory, name, 0);
}

/* Lock held. Undoes what a dead process left: its unfinished work, and its share in what it held.
 */
static void bury(uint32_t process)
{
        struct control *control = machine.control;
        uint32_t i, index;
        uint64_t word;

        for (i = 1; i <= control->slots_used; i++) {
                struct slot *slot = &control->slot[i];

                if (slot->owner != process)
                        continue;
                if (slot->state == SLOT_CREATING || slot->state == SLOT_FREEING) {
                        remove_file(i);
                        control_free_slot(i);
                }
        }
        for (i = 0; i <= control->slots_used / 64; i++) {
                for (word = control->held[process][i]; word != 0; word &= word - 1) {
                        index = i * 64 + (uint32_t)__builtin_ctzll(word);
                        if (--control->slot[index].holders == 0)
                                control_set_unsure(index, true);
                }
                control->held[process][i] = 0;
        }
        control->dead_since_ns[process] = 0;
        control->attached[process] = 0;
}

/* Lock held. Whether the memory of a process that is dead has been late for as long as the profile
 * says. */
static bool late_enough(uint32_t process)
{
        uint64_t late_ns = profile_late_return_ns(), now_ns;
        uint64_t *since = &machine.control->dead_since_ns[process];
        struct timespec now;

        if (late_ns == 0)
                return true;
        clock_gettime(CLOCK_MONOTONIC, &now);
        now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        if (*since == 0)
                *since = now_ns;
        return now_ns - *since >= late_ns;
}

void control_reclaim(void)
{
        struct control *control = machine.control;
        uint32_t i;

        control_lock();
        for (i = 0; i < CONTROL_PROCESSES; i++)
                if (control->attached[i] && i != machine.process &&
                    !range_is_locked(LOCK_PROCESSES + (off_t)i, 1) && late_enough(i))
                        bury(i);

        /* One slot per turn of the lock: deleting a file takes as long as its memory is large. */
        for (i = 1; i <= control->slots_used && control->unsure != 0; i++) {
                if (!control->slot[i].unsure || slot_is_kept(i))
                        continue;
                control_unpublish(i);
                control_unlock();
                remove_file(i);
                control_lock();
                control_free_slot(i);
        }
        control_unlock();
}

CUresult control_lost_error(int device)
{
        const struct control *control = machine.control;
        CUresult error;

        if (!(atomic_load(&control->lost) & (UINT32_C(1) << device)))
                return CUDA_SUCCESS;
        error = (CUresult)control->lost_error[device];
        return error == CUDA_SUCCESS ? CUDA_ERROR_DEVICE_UNAVAILABLE : error;
}

void control_detach(void)
{
        control_lock();
        machine.control->attached[machine.process] = 0;
        control_unlock();
        control_after_fork();
}

void control_after_fork(void)
{
        /* The mapping, too, would keep the description and with it the lock on our entry. */
        munmap(machine.control, sizeof(*machine.control));
        machine.control = NULL;
        close(machine.file);
        close(machine.directory);
        machine.file = -1;
        machine.directory = -1;
}

/* --- attaching ----------------------------------------------------------------------------------
 */

static CUresult setup_mutex(struct control *control)
{
        pthread_mutexattr_t attributes;
        int error;

        error = pthread_mutexattr_init(&attributes);
        if (error != 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "mutex: %s", strerror(error));
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        error = pthread_mutex_init(&control->lock, &attributes);
        pthread_mutexattr_destroy(&attributes);
        if (error != 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "mutex: %s", strerror(error));
        return CUDA_SUCCESS;
}

static bool machine_is_empty(const struct control *control)
{
        uint32_t i;

        for (i = 0; i < control->devices && i < SIM_DEVICES_MAX; i++)
                if (control->used_bytes[i] != 0)
                        return false;
        return true;
}

/* Setup lock held, nobody attached, nothing alive: the machine is built from this process's
 * environment. */
static CUresult build_machine(const struct sim_config *config)
{
        struct control *control = machine.control;
        bool known = control->magic == CONTROL_MAGIC && control->layout == sizeof(*control);
        uint8_t identity[sizeof(control->identity)];
        uint8_t temporary = control->temporary;
        CUresult result;
        uint32_t i;

        /* Another size of the machine is still the machine of this directory. */
        if (known)
                memcpy(identity, control->identity, sizeof(identity));
        else if (getrandom(identity, sizeof(identity), 0) != (ssize_t)sizeof(identity))
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "no random numbers: %s",
                                strerror(errno));
        directory_remove_leftovers();
        /* The whole structure may be megabytes of untouched zeroes: clear only what is used. */
        if (ftruncate(machine.file, 0) != 0 ||
            ftruncate(machine.file, (off_t)sizeof(*control)) != 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "%s/%s: %s", config->directory,
                                DIRECTORY_CONTROL, strerror(errno));
        result = setup_mutex(control);
        if (result != CUDA_SUCCESS)
                return result;
        control->devices = config->devices;
        control->granularity = config->granularity;
        control->memory_bytes = config->memory_bytes;
        control->sparse = config->sparse;
        memcpy(control->identity, identity, sizeof(identity));
        control->temporary = known && temporary;
        control->layout = sizeof(*control);
        for (i = 0; i < SIM_DEVICES_MAX; i++)
                control->used_bytes[i] = 0;
        control->magic = CONTROL_MAGIC;
        return CUDA_SUCCESS;
}

static bool same_machine(const struct control *control, const struct sim_config *config)
{
        return control->devices == config->devices && control->granularity == config->granularity &&
               control->memory_bytes == config->memory_bytes &&
               (control->sparse != 0) == config->sparse;
}

/* Setup lock held. Takes a free entry of the process table. */
static CUresult enter_process(void)
{
        struct control *control = machine.control;
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        uint32_t i;

        control_lock();
        for (i = 0; i < CONTROL_PROCESSES; i++) {
                if (control->attached[i])
                        continue;
                lock.l_start = LOCK_PROCESSES + (off_t)i;
                if (fcntl(machine.file, F_OFD_SETLK, &lock) != 0)
                        continue;
                control->attached[i] = 1;
                machine.process = i;
                control_unlock();
                return CUDA_SUCCESS;
        }
        control_unlock();
        return sim_fail(CUDA_ERROR_OPERATING_SYSTEM,
                        "the simulated machine has room for %u processes", CONTROL_PROCESSES);
}

/* Setup lock held. */
static CUresult join_or_build(struct sim_config *config)
{
        struct control *control = machine.control;
        bool alone = !range_is_locked(LOCK_PROCESSES, CONTROL_PROCESSES);
        bool usable = control->magic == CONTROL_MAGIC && control->layout == sizeof(*control);
        CUresult result = CUDA_SUCCESS;

        if (!usable && !alone)
                return sim_fail(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                                "%s is in use by another version of the simulator",
                                config->directory);
        if (!usable)
                result = build_machine(config);
        if (result == CUDA_SUCCESS)
                result = enter_process();
        if (result != CUDA_SUCCESS) {
                /* A table full of the dead is no reason to turn anybody away. */
                if (usable) {
                        control_reclaim();
                        result = enter_process();
                }
                if (result != CUDA_SUCCESS)
                        return result;
        }

        control_reclaim();
        if (alone && !same_machine(control, config) && machine_is_empty(control)) {
                result = build_machine(config);
                if (result == CUDA_SUCCESS)
                        control->attached[machine.process] = 1;
        }
        if (result == CUDA_SUCCESS && config->machine_is_set && !same_machine(control, config)) {
                control->attached[machine.process] = 0;
                result = sim_fail(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                                  "%s is in use as %u devices of %llu bytes, granularity %llu%s: "
                                  "GPUMEM_SIM_* of this process says otherwise",
                                  config->directory, control->devices,
                                  (unsigned long long)control->memory_bytes,
                                  (unsigned long long)control->granularity,
                                  control->sparse ? ", sparse" : "");
        }
        if (result != CUDA_SUCCESS)
                return result;
        config->devices = control->devices;
        config->granularity = control->granularity;
        config->memory_bytes = control->memory_bytes;
        config->sparse = control->sparse != 0;
        return CUDA_SUCCESS;
}

static CUresult map_control(const struct sim_config *config)
{
        struct stat status;
        void *address;

        if (fstat(machine.file, &status) != 0 ||
            (status.st_size < (off_t)sizeof(struct control) &&
             ftruncate(machine.file, (off_t)sizeof(struct control)) != 0))
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "%s/%s: %s", config->directory,
                                DIRECTORY_CONTROL, strerror(errno));
        address = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED,
                       machine.file, 0);
        if (address == MAP_FAILED)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "cannot map %s/%s: %s",
                                config->directory, DIRECTORY_CONTROL, strerror(errno));
        machine.control = address;
        return CUDA_SUCCESS;
}

CUresult control_attach(struct sim_config *config)
{
        bool made;
        CUresult result = directory_open(config, &made);

        if (result == CUDA_SUCCESS) {
                result = map_control(config);
                if (result == CUDA_SUCCESS)
                        result = join_or_build(config);
                if (result == CUDA_SUCCESS && made)
                        machine.control->temporary = 1;
                directory_unlock();
        }
        if (result != CUDA_SUCCESS) {
                if (machine.control)
                        munmap(machine.control, sizeof(*machine.control));
                if (machine.file >= 0)
                        close(machine.file);
                if (machine.directory >= 0)
                        close(machine.directory);
                machine = (struct machine){.directory = -1, .file = -1, .process = NO_PROCESS};
        }
        return result;
}

void control_leave(const struct sim_config *config)
{
        /* Who cannot have the lock at once is not the last one. */
        if (!machine.control->temporary || !directory_try_lock())
                return;
        if (!range_is_locked(LOCK_PROCESSES, CONTROL_PROCESSES)) {
                control_reclaim();
                if (machine_is_empty(machine.control))
                        directory_remove(config);
        }
        directory_unlock();
}
