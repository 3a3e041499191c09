/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "tests/support/fake_driver.h"

/* Where the one address space is. */
#define BASE UINT64_C(0x700000000000)

struct allocation {
        bool exists, mapped, accessible;
        CUmemGenericAllocationHandle handle;
};

static struct {
        pthread_mutex_t mutex;
        uint32_t frames, outside;
        uint32_t to_hold, held;
        uint32_t create_delay_ms;
        struct allocation allocations[FAKE_ALLOCATIONS_MAX];
        /* mapped_by[place]: index + 1 of the allocation mapped there */
        uint32_t mapped_by[FAKE_ALLOCATIONS_MAX];
        uint64_t next_handle;
        uint32_t existing, mappings, reservations, contexts, misuses;
        uint64_t calls[FAKE_CALL_COUNT];
        uint32_t fail_in[FAKE_CALL_COUNT], fail_times[FAKE_CALL_COUNT];
        CUresult fail_error[FAKE_CALL_COUNT];
} fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Counts a call; the error it has to return. The mutex is held from here to leave(). */
static CUresult enter(enum fake_call call)
{
        pthread_mutex_lock(&fake.mutex);
        fake.calls[call]++;
        if (fake.fail_times[call] == 0)
                return CUDA_SUCCESS;
        if (fake.fail_in[call] > 1) {
                fake.fail_in[call]--;
                return CUDA_SUCCESS;
        }
        fake.fail_times[call]--;
        return fake.fail_error[call];
}

static CUresult leave(CUresult result)
{
        pthread_mutex_unlock(&fake.mutex);
        return result;
}

static CUresult misuse(CUresult result)
{
        fake.misuses++;
        return result;
}

static struct allocation *find(CUmemGenericAllocationHandle handle)
{
        for (uint32_t i = 0; i < FAKE_ALLOCATIONS_MAX; i++)
                if (fake.allocations[i].exists && fake.allocations[i].handle == handle)
                        return &fake.allocations[i];
        return NULL;
}

/* The place an address names; FAKE_ALLOCATIONS_MAX if it names none. */
static uint32_t place_of(CUdeviceptr address, size_t bytes)
{
        if (address < BASE || (address - BASE) % FAKE_GRANULARITY != 0 ||
            bytes != FAKE_GRANULARITY ||
            (address - BASE) / FAKE_GRANULARITY >= FAKE_ALLOCATIONS_MAX)
                return FAKE_ALLOCATIONS_MAX;
        return (uint32_t)((address - BASE) / FAKE_GRANULARITY);
}

static CUresult fake_init(unsigned int flags)
{
        (void)flags;
        return CUDA_SUCCESS;
}

static CUresult fake_error_name(CUresult error, const char **name)
{
        *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                                  : "CUDA_ERROR_INJECTED";
        return CUDA_SUCCESS;
}

static CUresult fake_device_count(int *count)
{
        *count = 1;
        return CUDA_SUCCESS;
}

static CUresult fake_device_get(CUdevice *device, int ordinal)
{
        *device = ordinal;
        return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult fake_device_name(char *name, int length, CUdevice device)
{
        (void)device;
        snprintf(name, (size_t)length, "fake");
        return CUDA_SUCCESS;
}

static CUresult fake_device_uuid(CUuuid *uuid, CUdevice device)
{
        (void)device;
        memset(uuid->bytes, 0x5a, sizeof(uuid->bytes));
        return CUDA_SUCCESS;
}

static CUresult fake_device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
        (void)attribute;
        (void)device;
        *value = 9;
        return CUDA_SUCCESS;
}

static CUresult fake_total_mem(size_t *bytes, CUdevice device)
{
        (void)device;
        *bytes = fake.frames * FAKE_GRANULARITY;
        return CUDA_SUCCESS;
}

static CUresult fake_mem_get_info(size_t *free_bytes, size_t *total)
{
        CUresult error = enter(FAKE_INFO);

        if (error != CUDA_SUCCESS)
                return leave(error);
        *total = fake.frames * FAKE_GRANULARITY;
        *free_bytes = (fake.frames - fake.existing - fake.outside - fake.held) * FAKE_GRANULARITY;
        return leave(CUDA_SUCCESS);
}

static CUresult fake_granularity(size_t *granularity, const CUmemAllocationProp *properties,
                                 CUmemAllocationGranularity_flags option)
{
        (void)properties;
        (void)option;
        *granularity = FAKE_GRANULARITY;
        return CUDA_SUCCESS;
}

static CUresult fake_ctx_retain(CUcontext *context, CUdevice device)
{
        CUresult error = enter(FAKE_CONTEXT);

        (void)device;
        if (error != CUDA_SUCCESS)
                return leave(error);
        *context = (CUcontext)(void *)&fake;
        fake.contexts++;
        return leave(CUDA_SUCCESS);
}

static CUresult fake_ctx_release(CUdevice device)
{
        (void)device;
        pthread_mutex_lock(&fake.mutex);
        fake.contexts--;
        return leave(CUDA_SUCCESS);
}

static CUresult fake_ctx_set(CUcontext context)
{
        (void)context;
        return CUDA_SUCCESS;
}

static CUresult fake_reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags)
{
        CUresult error = enter(FAKE_RESERVE);

        (void)bytes;
        (void)alignment;
        (void)hint;
        (void)flags;
        if (error != CUDA_SUCCESS)
                return leave(error);
        *address = BASE;
        fake.reservations++;
        return leave(CUDA_SUCCESS);
}

static CUresult fake_address_free(CUdeviceptr address, size_t bytes)
{
        (void)bytes;
        pthread_mutex_lock(&fake.mutex);
        if (address != BASE || fake.reservations == 0)
                return leave(misuse(CUDA_ERROR_INVALID_VALUE));
        fake.reservations--;
        return leave(CUDA_SUCCESS);
}

static CUresult fake_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *properties, unsigned long long flags)
{
        struct timespec delay = {0};
        CUresult error;

        (void)properties;
        (void)flags;
        pthread_mutex_lock(&fake.mutex);
        delay.tv_nsec = fake.create_delay_ms * 1000000L;
        pthread_mutex_unlock(&fake.mutex);
        if (delay.tv_nsec > 0)
                nanosleep(&delay, NULL);
        error = enter(FAKE_CREATE);
        if (error != CUDA_SUCCESS)
                return leave(error);
        if (bytes != FAKE_GRANULARITY)
                return leave(misuse(CUDA_ERROR_INVALID_VALUE));
        if (fake.existing + fake.outside + fake.held >= fake.frames)
                return leave(CUDA_ERROR_OUT_OF_MEMORY);
        for (uint32_t i = 0; i < FAKE_ALLOCATIONS_MAX; i++) {
                struct allocation *allocation = &fake.allocations[i];

                if (allocation->exists)
                        continue;
                *allocation = (struct allocation){.exists = true, .handle = ++fake.next_handle};
                *handle = allocation->handle;
                fake.existing++;
                return leave(CUDA_SUCCESS);
        }
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult fake_release(CUmemGenericAllocationHandle handle)
{
        CUresult error = enter(FAKE_RELEASE);
        struct allocation *allocation = find(handle);

        if (error != CUDA_SUCCESS)
                return leave(error);
        if (!allocation)
                return leave(misuse(CUDA_ERROR_INVALID_VALUE));
        if (allocation->mapped)
                misuse(CUDA_SUCCESS); /* the daemon always unmaps first, unless that failed */
        allocation->exists = false;
        fake.existing--;
        if (fake.to_hold > 0) {
                fake.to_hold--;
                fake.held++;
        }
        return leave(CUDA_SUCCESS);
}

static CUresult fake_export(void *shareable, CUmemGenericAllocationHandle handle,
                            CUmemAllocationHandleType type, unsigned long long flags)
{
        CUresult error = enter(FAKE_EXPORT);
        int fd;

        (void)flags;
        if (error != CUDA_SUCCESS)
                return leave(error);
        if (!find(handle) || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                return leave(misuse(CUDA_ERROR_INVALID_VALUE));
        fd = eventfd((unsigned)handle, EFD_CLOEXEC);
        if (fd < 0)
                return leave(CUDA_ERROR_OPERATING_SYSTEM);
        memcpy(shareable, &fd, sizeof(fd));
        return leave(CUDA_SUCCESS);
}

static CUresult fake_import(CUmemGenericAllocationHandle *handle, void *shareable,
                            CUmemAllocationHandleType type)
{
        CUresult error = enter(FAKE_IMPORT);

        (void)shareable;
        if (error != CUDA_SUCCESS)
                return leave(error);
        if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                return leave(misuse(CUDA_ERROR_INVALID_VALUE));
        for (uint32_t i = 0; i < FAKE_ALLOCATIONS_MAX; i++) {
                struct allocation *allocation = &fake.allocations[i];

                if (allocation->exists)
                        continue;
                *allocation = (struct allocation){.exists = true, .handle = ++fake.next_handle};
                *handle = allocation->handle;
                fake.existing++;
                return leave(CUDA_SUCCESS);
        }
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult fake_map(CUdeviceptr address, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
        CUresult error = enter(FAKE_MAP);
        struct allocation *allocation = find(handle);
        uint32_t place = place_of(address, bytes);

        (void)flags;
        if (error != CUDA_SUCCESS)
                return leave(error);
        if (!allocation || offset != 0 || place == FAKE_ALLOCATIONS_MAX || fake.mapped_by[place])
                return leave(misuse(CUDA_ERROR_INVALID_VALUE));
        fake.mapped_by[place] = (uint32_t)(allocation - fake.allocations) + 1;
        allocation->mapped = true;
        allocation->accessible = false;
        fake.mappings++;
        return leave(CUDA_SUCCESS);
}

static CUresult fake_unmap(CUdeviceptr address, size_t bytes)
{
        CUresult error = enter(FAKE_UNMAP);
        uint32_t place = place_of(address, bytes);

        if (error != CUDA_SUCCESS)
                return leave(error);
        if (place == FAKE_ALLOCATIONS_MAX || !fake.mapped_by[place])
                return leave(misuse(CUDA_ERROR_INVALID_VALUE));
        fake.allocations[fake.mapped_by[place] - 1].mapped = false;
        fake.mapped_by[place] = 0;
        fake.mappings--;
        return leave(CUDA_SUCCESS);
}

static CUresult fake_set_access(CUdeviceptr address, size_t bytes,
                                const CUmemAccessDesc *descriptions, size_t count)
{
        CUresult error = enter(FAKE_SET_ACCESS);

        if (error != CUDA_SUCCESS)
                return leave(error);
        if (bytes == 0 || bytes % FAKE_GRANULARITY != 0 || count != 1 ||
            descriptions->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                return leave(misuse(CUDA_ERROR_INVALID_VALUE));
        for (size_t done = 0; done < bytes; done += FAKE_GRANULARITY) {
                uint32_t place = place_of(address + done, FAKE_GRANULARITY);

                if (place == FAKE_ALLOCATIONS_MAX || !fake.mapped_by[place])
                        return leave(misuse(CUDA_ERROR_INVALID_VALUE));
                fake.allocations[fake.mapped_by[place] - 1].accessible = true;
        }
        return leave(CUDA_SUCCESS);
}

static CUresult fake_memset(CUdeviceptr destination, unsigned char value, size_t count,
                            CUstream stream)
{
        CUresult error = enter(FAKE_MEMSET);
        uint32_t place = place_of(destination, count);

        (void)value;
        (void)stream;
        if (error != CUDA_SUCCESS)
                return leave(error);
        if (place == FAKE_ALLOCATIONS_MAX || !fake.mapped_by[place] ||
            !fake.allocations[fake.mapped_by[place] - 1].accessible)
                return leave(misuse(CUDA_ERROR_ILLEGAL_ADDRESS));
        return leave(CUDA_SUCCESS);
}

static CUresult fake_stream_create(CUstream *stream, unsigned int flags)
{
        (void)flags;
        *stream = (CUstream)(void *)&fake;
        return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
        (void)stream;
        return CUDA_SUCCESS;
}

static CUresult fake_stream_synchronize(CUstream stream)
{
        (void)stream;
        return leave(enter(FAKE_SYNCHRONIZE));
}

static const struct driver table = {
        .kind = DRIVER_SIMULATED,
        .init = fake_init,
        .get_error_name = fake_error_name,
        .device_get_count = fake_device_count,
        .device_get = fake_device_get,
        .device_get_name = fake_device_name,
        .device_get_uuid = fake_device_uuid,
        .device_get_attribute = fake_device_attribute,
        .device_total_mem = fake_total_mem,
        .device_primary_ctx_retain = fake_ctx_retain,
        .device_primary_ctx_release = fake_ctx_release,
        .ctx_set_current = fake_ctx_set,
        .mem_get_info = fake_mem_get_info,
        .mem_get_allocation_granularity = fake_granularity,
        .mem_address_reserve = fake_reserve,
        .mem_address_free = fake_address_free,
        .mem_create = fake_create,
        .mem_release = fake_release,
        .mem_export_to_shareable_handle = fake_export,
        .mem_import_from_shareable_handle = fake_import,
        .mem_map = fake_map,
        .mem_unmap = fake_unmap,
        .mem_set_access = fake_set_access,
        .memset_d8_async = fake_memset,
        .stream_create = fake_stream_create,
        .stream_destroy = fake_stream_destroy,
        .stream_synchronize = fake_stream_synchronize,
};

const struct driver *fake_driver_open(uint32_t frames)
{
        pthread_mutex_lock(&fake.mutex);
        memset(fake.allocations, 0, sizeof(fake.allocations));
        memset(fake.mapped_by, 0, sizeof(fake.mapped_by));
        memset(fake.calls, 0, sizeof(fake.calls));
        memset(fake.fail_times, 0, sizeof(fake.fail_times));
        fake.frames = frames;
        fake.outside = fake.create_delay_ms = 0;
        fake.to_hold = fake.held = 0;
        fake.existing = fake.mappings = fake.reservations = fake.contexts = fake.misuses = 0;
        pthread_mutex_unlock(&fake.mutex);
        return &table;
}

void fake_driver_fail(enum fake_call call, uint32_t nth, uint32_t times, CUresult error)
{
        pthread_mutex_lock(&fake.mutex);
        fake.fail_in[call] = nth;
        fake.fail_times[call] = times;
        fake.fail_error[call] = error;
        pthread_mutex_unlock(&fake.mutex);
}

uint64_t fake_driver_calls(enum fake_call call)
{
        uint64_t calls;

        pthread_mutex_lock(&fake.mutex);
        calls = fake.calls[call];
        pthread_mutex_unlock(&fake.mutex);
        return calls;
}

static uint32_t read_counter(const uint32_t *counter)
{
        uint32_t value;

        pthread_mutex_lock(&fake.mutex);
        value = *counter;
        pthread_mutex_unlock(&fake.mutex);
        return value;
}

uint32_t fake_driver_allocations(void)
{
        return read_counter(&fake.existing);
}

uint32_t fake_driver_mappings(void)
{
        return read_counter(&fake.mappings);
}

uint32_t fake_driver_reservations(void)
{
        return read_counter(&fake.reservations);
}

uint32_t fake_driver_contexts(void)
{
        return read_counter(&fake.contexts);
}

uint32_t fake_driver_misuses(void)
{
        return read_counter(&fake.misuses);
}

void fake_driver_use_outside(uint32_t frames)
{
        pthread_mutex_lock(&fake.mutex);
        fake.outside = frames;
        pthread_mutex_unlock(&fake.mutex);
}

void fake_driver_hold(uint32_t frames)
{
        pthread_mutex_lock(&fake.mutex);
        fake.to_hold = frames;
        pthread_mutex_unlock(&fake.mutex);
}

void fake_driver_let_go(uint32_t frames)
{
        pthread_mutex_lock(&fake.mutex);
        fake.held -= frames;
        pthread_mutex_unlock(&fake.mutex);
}

uint32_t fake_driver_held(void)
{
        return read_counter(&fake.held);
}

void fake_driver_delay_create(uint32_t ms)
{
        pthread_mutex_lock(&fake.mutex);
        fake.create_delay_ms = ms;
        pthread_mutex_unlock(&fake.mutex);
}
