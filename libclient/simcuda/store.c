/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libclient/simcuda/control.h"

#define POISON_CHUNK 65536
#define POISON_PARTS 32

static const unsigned char poison[POISON_CHUNK] = {[0 ... POISON_CHUNK - 1] = SIM_POISON};

/* This process's allocations by slot. */
static struct allocation *local[CONTROL_SLOTS];
/* What this thread ended and nobody else holds: charged until store_sweep() has deleted the files.
 */
static _Thread_local struct allocation *doomed;

/*
 * Commits the file's memory by writing the poison: nothing can be missing later (no SIGBUS), and
 * nobody gets to rely on zeroes.
 */
static int commit(int fd, uint64_t bytes)
{
        struct iovec parts[POISON_PARTS];
        uint64_t offset = 0;

        while (offset < bytes) {
                uint64_t planned = 0;
                int count = 0;
                ssize_t written;

                while (count < POISON_PARTS && offset + planned < bytes) {
                        uint64_t part = bytes - offset - planned;

                        if (part > POISON_CHUNK)
                                part = POISON_CHUNK;
                        /* writev() takes its source without const, and does not write to it. */
                        parts[count].iov_base = (void *)(uintptr_t)poison;
                        parts[count].iov_len = part;
                        planned += part;
                        count++;
                }
                written = pwritev(fd, parts, count, (off_t)offset);
                if (written < 0 && errno == EINTR)
                        continue;
                if (written <= 0)
                        return written < 0 ? -errno : -ENOSPC;
                offset += (uint64_t)written;
        }
        return 0;
}

static CUresult system_error(int error, const char *what)
{
        switch (error) {
        case ENOSPC:
        case ENOMEM:
        case EDQUOT:
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY, "%s in %s: %s (host memory is short)",
                                what, sim.config.directory, strerror(error));
        case EMFILE:
        case ENFILE:
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM,
                                "%s in %s: %s (every open memory handle takes a descriptor: raise "
                                "the limit, or release handles once mapped)",
                                what, sim.config.directory, strerror(error));
        default:
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "%s in %s: %s", what,
                                sim.config.directory, strerror(error));
        }
}

/* The lock that says "somebody keeps this"; shared, so that a file may be opened a second time. */
static int keep(int fd)
{
        struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};

        return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : -errno;
}

/* Makes, locks and fills the backing file of a slot in state CREATING. Descriptor or negative
 * errno. */
static int create_file(uint32_t slot, uint64_t bytes, uint64_t *inode)
{
        struct stat status;
        char name[24];
        int fd, result;

        slot_name(slot, name);
        fd = openat(machine.directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                    machine.mode);
        if (fd < 0 && errno == EEXIST && unlinkat(machine.directory, name, 0) == 0)
                fd = openat(machine.directory, name,
                            O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, machine.mode);
        if (fd < 0)
                return -errno;
        result = keep(fd);
        if (result == 0 && (machine.mode & 0066) != 0 && fchmod(fd, machine.mode) != 0)
                result = -errno;
        if (result == 0 && sim.config.sparse)
                result = ftruncate(fd, (off_t)bytes) == 0 ? 0 : -errno;
        else if (result == 0)
                result = commit(fd, bytes);
        if (result == 0 && fstat(fd, &status) != 0)
                result = -errno;
        if (result != 0) {
                unlinkat(machine.directory, name, 0);
                close(fd);
                return result;
        }
        *inode = status.st_ino;
        return fd;
}

/* Charges `bytes` and takes a slot for them. */
static CUresult take_slot(int device, uint64_t bytes, uint32_t *out)
{
        struct control *control = machine.control;
        CUresult result = CUDA_SUCCESS;
        struct slot *slot;

        control_lock();
        if (bytes > control->memory_bytes - control->used_bytes[device]) {
                result = sim_fail(
                        CUDA_ERROR_OUT_OF_MEMORY, "simulated device %d has %llu of %llu bytes free",
                        device,
                        (unsigned long long)(control->memory_bytes - control->used_bytes[device]),
                        (unsigned long long)control->memory_bytes);
        } else {
                *out = control_take_slot();
                if (*out == 0) {
                        result = sim_fail(CUDA_ERROR_OPERATING_SYSTEM,
                                          "the simulated machine has room for %u allocations",
                                          CONTROL_SLOTS - 1);
                } else {
                        slot = &control->slot[*out];
                        *slot = (struct slot){.bytes = bytes,
                                              .owner = machine.process,
                                              .device = (uint8_t)device};
                        slot->state = SLOT_CREATING;
                        control->used_bytes[device] += bytes;
                }
        }
        control_unlock();
        return result;
}

static void give_slot_back(uint32_t slot)
{
        control_lock();
        control_free_slot(slot);
        control_unlock();
}

CUresult store_create(int device, uint64_t bytes, uint32_t handle_types, bool rdma,
                      struct allocation **out)
{
        struct allocation *allocation = malloc(sizeof(*allocation));
        uint64_t inode = 0;
        CUresult result;
        uint32_t index;
        int fd;

        *out = NULL;
        if (!allocation)
                return CUDA_ERROR_OUT_OF_MEMORY;
        result = take_slot(device, bytes, &index);
        if (result != CUDA_SUCCESS) {
                /* What died since the last look may be enough. */
                control_reclaim();
                result = take_slot(device, bytes, &index);
        }
        if (result != CUDA_SUCCESS) {
                free(allocation);
                return result;
        }
        fd = create_file(index, bytes, &inode);
        if (fd < 0) {
                give_slot_back(index);
                free(allocation);
                return system_error(-fd, "cannot create an allocation");
        }

        control_lock();
        machine.control->slot[index].handle_types = handle_types;
        machine.control->slot[index].rdma = rdma;
        control_publish(index, inode);
        control_hold(index);
        control_unlock();

        *allocation = (struct allocation){.slot = index,
                                          .device = device,
                                          .bytes = bytes,
                                          .fd = fd,
                                          .handles = 1,
                                          .handle_types = handle_types,
                                          .rdma = rdma};
        pthread_mutex_lock(&sim.memory_lock);
        local[index] = allocation;
        pthread_mutex_unlock(&sim.memory_lock);
        *out = allocation;
        return CUDA_SUCCESS;
}

CUresult store_import(int fd, struct allocation **out)
{
        struct allocation *allocation;
        const struct slot *slot;
        struct stat status;
        uint32_t index;
        int copy;

        *out = NULL;
        if (fstat(fd, &status) != 0 || (uint64_t)status.st_dev != machine.device_number)
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "descriptor %d is no allocation of the machine in %s", fd,
                                sim.config.directory);

        control_lock();
        index = control_find(status.st_ino);
        if (index == 0) {
                control_unlock();
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "descriptor %d is no allocation of the machine in %s", fd,
                                sim.config.directory);
        }
        allocation = local[index];
        if (allocation) {
                control_unlock();
                CUresult result = store_retain(allocation);

                if (result == CUDA_SUCCESS)
                        *out = allocation;
                return result;
        }
        control_hold(index);
        control_unlock();

        allocation = malloc(sizeof(*allocation));
        copy = allocation ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
        if (copy < 0) {
                int error = allocation ? errno : ENOMEM;

                free(allocation);
                control_lock();
                control_let_go(index);
                if (machine.control->slot[index].holders == 0)
                        control_set_unsure(index, true);
                control_unlock();
                return system_error(error, "cannot import an allocation");
        }
        slot = &machine.control->slot[index]; /* held: these fields do not change */
        *allocation = (struct allocation){.slot = index,
                                          .device = slot->device,
                                          .bytes = slot->bytes,
                                          .fd = copy,
                                          .handles = 1,
                                          .handle_types = slot->handle_types,
                                          .rdma = slot->rdma};
        local[index] = allocation;
        *out = allocation;
        return CUDA_SUCCESS;
}

CUresult store_retain(struct allocation *allocation)
{
        char name[24];
        int fd, result;

        if (allocation->fd < 0) {
                slot_name(allocation->slot, name);
                fd = openat(machine.directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
                if (fd < 0)
                        return system_error(errno, "cannot reopen an allocation");
                result = keep(fd);
                if (result < 0) {
                        close(fd);
                        return system_error(-result, "cannot lock an allocation");
                }
                allocation->fd = fd;
        }
        allocation->handles++;
        return CUDA_SUCCESS;
}

CUresult store_export(struct allocation *allocation, int *fd)
{
        /* First the note, then the descriptor: a death in between leaves only a test too many. */
        control_lock();
        machine.control->slot[allocation->slot].exported = 1;
        control_unlock();
        *fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 3);
        if (*fd < 0)
                return system_error(errno, "cannot export an allocation");
        return CUDA_SUCCESS;
}

/* Nothing in this process holds it any more: descriptor closed, mappings gone. */
static void leave(struct allocation *allocation)
{
        uint32_t index = allocation->slot;
        const struct slot *slot = &machine.control->slot[index];
        bool last = false;

        local[index] = NULL;
        control_lock();
        control_let_go(index);
        if (slot->holders == 0) {
                last = !slot->exported || !slot_is_kept(index);
                if (last)
                        control_unpublish(index);
                else
                        control_set_unsure(index, true);
        }
        control_unlock();
        if (last) {
                allocation->next_doomed = doomed;
                doomed = allocation;
        } else {
                free(allocation);
        }
}

void store_sweep(void)
{
        while (doomed) {
                struct allocation *allocation = doomed;
                char name[24];

                doomed = allocation->next_doomed;
                slot_name(allocation->slot, name);
                unlinkat(machine.directory, name, 0);
                give_slot_back(allocation->slot);
                free(allocation);
        }
}

void store_end_handle(struct allocation *allocation)
{
        if (--allocation->handles != 0)
                return;
        close(allocation->fd);
        allocation->fd = -1;
        if (allocation->mappings == 0)
                leave(allocation);
}

void store_end_mapping(struct allocation *allocation)
{
        if (--allocation->mappings == 0 && allocation->handles == 0)
                leave(allocation);
}

void store_info(int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
        control_reclaim();
        control_lock();
        *total_bytes = machine.control->memory_bytes;
        *free_bytes = *total_bytes - machine.control->used_bytes[device];
        control_unlock();
}

void store_goodbye(void)
{
        uint32_t index;
        char name[24];

        for (index = 1; index <= machine.control->slots_used && index < CONTROL_SLOTS; index++) {
                const struct slot *slot = &machine.control->slot[index];
                bool ours;

                if (!local[index])
                        continue;
                control_lock();
                control_let_go(index);
                ours = slot->holders == 0 && !slot->exported;
                if (ours)
                        control_unpublish(index);
                else if (slot->holders == 0)
                        control_set_unsure(index, true);
                control_unlock();
                if (!ours)
                        continue;
                slot_name(index, name);
                unlinkat(machine.directory, name, 0);
                give_slot_back(index);
        }
}
