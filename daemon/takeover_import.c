/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "daemon/crash.h"
#include "daemon/frame_memory.h"
#include "daemon/takeover_internal.h"

static bool slot_is_taken(const struct takeover *takeover, const struct daemon *daemon,
                          uint32_t slot)
{
        if (takeover && slot < STATE_DEVICES_MAX && takeover->devices[slot].there)
                return true;
        list_for_each(node, &daemon->devices) if (list_entry(node, struct device, link)->slot ==
                                                  slot) return true;
        return false;
}

bool takeover_geometry(struct takeover *takeover, struct device *device, uint64_t *frame_bytes,
                       uint64_t *frames)
{
        uint64_t held = 0;

        for (uint32_t slot = 0; takeover && slot < STATE_DEVICES_MAX; slot++) {
                struct left_device *left = &takeover->devices[slot];

                if (!left->there || left->used ||
                    memcmp(left->record.uuid, device->uuid, sizeof(device->uuid)) != 0)
                        continue;
                if (*frame_bytes != left->record.frame_bytes)
                        log_warning(takeover->log,
                                    "frame_size stays as it was until the keeper is stopped",
                                    LOG_TEXT("device", device->uuid_text),
                                    LOG_U64("frame_bytes", left->record.frame_bytes));
                left->used = true;
                device->slot = slot;
                for (uint32_t i = 0; i < left->record.frames; i++)
                        if (left->fds[i] >= 0)
                                held += left->record.frame_bytes;
                device->outside_bytes -=
                        held < device->outside_bytes ? held : device->outside_bytes;
                *frame_bytes = left->record.frame_bytes;
                *frames = left->record.frames;
                return true;
        }
        device->slot = 0;
        while (slot_is_taken(takeover, device->daemon, device->slot))
                device->slot++;
        return false;
}

/* Undoes the mapping of frames that could not be made accessible. */
static void give_up(struct takeover *takeover, struct device *device, struct left_device *left,
                    uint32_t number, bool mapped)
{
        const struct driver *driver = device->memory.driver;
        struct frame *frame = &device->table.frames[number];
        struct left_session *session =
                takeover_find_session(takeover, left->frames[number].session);

        if (mapped)
                driver->mem_unmap(frame_memory_address(&device->memory, number),
                                  device->table.frame_bytes);
        if (frame->handle)
                driver->mem_release(frame->handle);
        frame->handle = 0;
        if (session && (left->frames[number].state == FRAME_GRANTED ||
                        left->frames[number].state == FRAME_DRAINING))
                session->broken = true;
        left->frames[number].state = FRAME_FREE;
        takeover->frames_lost++;
}

static CUresult import(struct device *device, uint32_t number, int fd)
{
        const struct driver *driver = device->memory.driver;
        struct frame *frame = &device->table.frames[number];
        CUresult error;

        error = driver->mem_import_from_shareable_handle(&frame->handle, (void *)(intptr_t)fd,
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (error != CUDA_SUCCESS) {
                frame->handle = 0;
                return error;
        }
        return driver->mem_map(frame_memory_address(&device->memory, number),
                               device->table.frame_bytes, 0, frame->handle, 0);
}

/* Makes frames [first, end) accessible: together, or one by one if that fails. */
static void set_access(struct takeover *takeover, struct device *device, struct left_device *left,
                       uint32_t first, uint32_t end)
{
        const struct driver *driver = device->memory.driver;
        CUmemAccessDesc access = {
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->memory.device},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };

        if (first == end || driver->mem_set_access(frame_memory_address(&device->memory, first),
                                                   (end - first) * device->table.frame_bytes,
                                                   &access, 1) == CUDA_SUCCESS)
                return;
        for (uint32_t i = first; i < end; i++)
                if (driver->mem_set_access(frame_memory_address(&device->memory, i),
                                           device->table.frame_bytes, &access, 1) != CUDA_SUCCESS)
                        give_up(takeover, device, left, i, true);
}

int takeover_import(struct takeover *takeover, struct device *device)
{
        struct left_device *left;
        uint32_t first = 0;

        if (!takeover || !takeover->devices[device->slot].used)
                return 0;
        left = &takeover->devices[device->slot];
        for (uint32_t i = 0; i < left->record.frames; i++) {
                CUresult error;

                if (left->frames[i].state == FRAME_FREE) {
                        set_access(takeover, device, left, first, i);
                        first = i + 1;
                        continue;
                }
                error = import(device, i, left->fds[i]);
                if (error != CUDA_SUCCESS) {
                        log_error(
                                takeover->log, "a frame cannot be imported again",
                                LOG_TEXT("device", device->uuid_text), LOG_U64("frame", i),
                                LOG_TEXT("error", driver_error_name(device->memory.driver, error)));
                        give_up(takeover, device, left, i, false);
                        set_access(takeover, device, left, first, i);
                        first = i + 1;
                }
        }
        set_access(takeover, device, left, first, left->record.frames);
        crash_point(device->daemon, "takeover-imported");
        return 0;
}

void takeover_release_import(struct device *device, uint32_t number)
{
        const struct driver *driver = device->memory.driver;
        struct frame *frame = &device->table.frames[number];

        driver->mem_unmap(frame_memory_address(&device->memory, number), device->table.frame_bytes);
        driver->mem_release(frame->handle);
        frame->handle = 0;
}
