/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpumem/protocol.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/filler.h"
#include "daemon/grant.h"
#include "daemon/session.h"
#include "daemon/takeover.h"
#include "libclient/wire/wire.h"

/* Pool of fresh frames where the configuration says auto: a share of the device, and not more. */
#define WATERMARK_LOW_SHARE  8
#define WATERMARK_LOW_MAX    32
#define WATERMARK_HIGH_SHARE 4
#define WATERMARK_HIGH_MAX   64

/* On compute capabilities below this, mapping changes beside running kernels are not trusted. */
#define EDIT_BESIDE_KERNELS_MAJOR 8

uint64_t device_frame_bytes_auto(uint64_t total_bytes, uint64_t granularity)
{
        uint64_t bytes = granularity;

        if (granularity == 0 || (granularity & (granularity - 1)) != 0)
                return 0;
        while (bytes < total_bytes / 16384 + (total_bytes % 16384 != 0))
                bytes *= 2;
        return bytes;
}

const char *device_state_name(enum device_state state)
{
        switch (state) {
        case DEVICE_OK:
                return "ok";
        case DEVICE_DEGRADED:
                return "degraded";
        case DEVICE_LOST:
                return "lost";
        }
        return "unknown";
}

/* A driver call at start-up failed: say which. */
static int opening_failed(struct device *device, const char *call, CUresult error)
{
        const struct driver *driver = device->memory.driver;

        log_error(&device->daemon->log, "a device cannot be opened",
                  LOG_U64("index", device->index), LOG_TEXT("call", call),
                  LOG_TEXT("error", driver_error_name(driver, error)),
                  LOG_TEXT("detail", driver->error_detail ? driver->error_detail() : ""));
        return driver_errno(error);
}

void device_format_uuid(const uint8_t uuid[16], char text[DEVICE_UUID_TEXT])
{
        const uint8_t *u = uuid;

        snprintf(text, DEVICE_UUID_TEXT,
                 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
                 u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
                 u[14], u[15]);
}

static int identify(struct device *device)
{
        const struct driver *driver = device->memory.driver;
        CUdevice *ordinal = &device->memory.device;
        CUresult error;
        CUuuid uuid;
        int major = 0;

        error = driver->device_get(ordinal, (int)device->index);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuDeviceGet", error);
        error = driver->device_get_uuid(&uuid, *ordinal);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuDeviceGetUuid", error);
        memcpy(device->uuid, uuid.bytes, sizeof(device->uuid));
        device_format_uuid(device->uuid, device->uuid_text);
        error = driver->device_get_name(device->name, sizeof(device->name) - 1, *ordinal);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuDeviceGetName", error);
        error = driver->device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                             *ordinal);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuDeviceGetAttribute", error);
        if (major < EDIT_BESIDE_KERNELS_MAJOR)
                device->flags |= GPUMEM_DEVICE_NO_EDIT_BESIDE_KERNELS;
        return 0;
}

/* Context, sizes and what others use. */
static int measure(struct device *device)
{
        const struct driver *driver = device->memory.driver;
        CUmemAllocationProp properties =
                frame_memory_properties(device->memory.device, device->memory.gpu_direct_rdma);
        size_t total, free_bytes, granularity;
        CUresult error;

        error = driver->device_primary_ctx_retain(&device->memory.context, device->memory.device);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuDevicePrimaryCtxRetain", error);
        device->context_retained = true;
        error = driver->ctx_set_current(device->memory.context);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuCtxSetCurrent", error);
        error = driver->device_total_mem(&total, device->memory.device);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuDeviceTotalMem", error);
        device->total_bytes = total;
        error = driver->mem_get_info(&free_bytes, &total);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuMemGetInfo", error);
        device->outside_bytes =
                device->total_bytes > free_bytes ? device->total_bytes - free_bytes : 0;
        error = driver->mem_get_allocation_granularity(&granularity, &properties,
                                                       CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuMemGetAllocationGranularity", error);
        device->granularity = granularity;
        return 0;
}

/* Size and number of frames. */
static int divide(struct device *device, const struct config_device *config, uint64_t *frames)
{
        uint64_t frame_bytes = config->frame_bytes ? config->frame_bytes
                                                   : device_frame_bytes_auto(device->total_bytes,
                                                                             device->granularity);
        double share = (double)device->total_bytes * device->daemon->config.gpu_memory_utilization;
        uint64_t managed = device->total_bytes - device->outside_bytes;

        if ((double)managed > share)
                managed = (uint64_t)share;
        if (takeover_geometry(device->daemon->takeover, device, &frame_bytes, frames)) {
                device->memory.frame_bytes = frame_bytes;
                if (frame_bytes % device->granularity == 0)
                        return 0;
        }
        if (frame_bytes == 0 || frame_bytes % device->granularity != 0) {
                log_error(&device->daemon->log,
                          "frame_size must be a power of two and a multiple of the driver's "
                          "allocation granularity",
                          LOG_TEXT("device", device->uuid_text), LOG_U64("frame_size", frame_bytes),
                          LOG_U64("granularity", device->granularity));
                return -EINVAL;
        }
        *frames = managed / frame_bytes;
        if (*frames == 0 || *frames > CONFIG_FRAMES_MAX) {
                log_error(&device->daemon->log,
                          *frames == 0 ? "not even one frame is free on the device"
                                       : "too many frames: choose a larger frame_size",
                          LOG_TEXT("device", device->uuid_text),
                          LOG_U64("total_bytes", device->total_bytes),
                          LOG_U64("outside_bytes", device->outside_bytes),
                          LOG_U64("frame_size", frame_bytes), LOG_U64("frames", *frames));
                return *frames == 0 ? -ENOMEM : -E2BIG;
        }
        device->memory.frame_bytes = frame_bytes;
        return 0;
}

static int reserve(struct device *device, uint64_t frames)
{
        uint64_t bytes = frames * device->memory.frame_bytes;
        CUresult error =
                device->memory.driver->mem_address_reserve(&device->memory.base, bytes, 0, 0, 0);

        if (error != CUDA_SUCCESS)
                return opening_failed(device, "cuMemAddressReserve", error);
        device->mapped_bytes = bytes;
        return 0;
}

static uint32_t share_of(uint32_t frames, uint32_t share, uint32_t most)
{
        uint32_t part = frames / share;

        if (part > most)
                part = most;
        return part > 0 ? part : 1;
}

static void set_watermarks(struct device *device, const struct config_device *config)
{
        uint32_t frames = device->table.count;

        device->watermark_low = config->watermark_low_auto
                                        ? share_of(frames, WATERMARK_LOW_SHARE, WATERMARK_LOW_MAX)
                                        : config->watermark_low;
        device->watermark_high =
                config->watermark_high_auto
                        ? share_of(frames, WATERMARK_HIGH_SHARE, WATERMARK_HIGH_MAX)
                        : config->watermark_high;
        if (config->watermark_low_auto && device->watermark_low > device->watermark_high)
                device->watermark_low = device->watermark_high;
        if (device->watermark_high < device->watermark_low)
                device->watermark_high = device->watermark_low;
        if (device->watermark_high > frames)
                device->watermark_high = frames;
        if (device->watermark_low > device->watermark_high)
                device->watermark_low = device->watermark_high;
        /* The pool starts full. */
        device->refilling = device->watermark_high > 0;
}

static int on_turn(sd_event_source *source, void *userdata)
{
        struct device *device = userdata;

        (void)source;
        grant_run(device);
        filler_run(device);
        return 0;
}

void device_wake(struct device *device)
{
        if (device->turn)
                sd_event_source_set_enabled(device->turn, SD_EVENT_ONESHOT);
}

static int open_device(struct device *device)
{
        struct daemon *daemon = device->daemon;
        struct config_device config;
        uint64_t frames;
        int r;

        r = identify(device);
        if (r < 0)
                return r;
        config = config_for_device(&daemon->config, device->uuid_text, device->index);
        device->memory.gpu_direct_rdma = config.gpu_direct_rdma;
        r = measure(device);
        if (r < 0)
                return r;
        r = divide(device, &config, &frames);
        if (r < 0)
                return r;
        r = reserve(device, frames);
        if (r < 0)
                return r;
        r = frame_table_init(&device->table, (uint32_t)frames, device->memory.frame_bytes,
                             &device->free);
        if (r < 0)
                return r;
        r = takeover_import(daemon->takeover, device);
        if (r < 0)
                return r;
        set_watermarks(device, &config);

        r = sd_event_add_defer(daemon->event, &device->turn, on_turn, device);
        if (r < 0)
                return r;
        r = grant_queue_start(device);
        if (r < 0)
                return r;
        return filler_start(device);
}

int device_new(struct device **out, struct daemon *daemon, unsigned index)
{
        struct device *device;
        int r;

        *out = NULL;
        device = calloc(1, sizeof(*device));
        if (!device)
                return -ENOMEM;
        list_init(&device->link);
        list_init(&device->tenants);
        list_init(&device->sessions);
        frame_list_init(&device->free);
        frame_list_init(&device->fresh);
        frame_list_init(&device->quarantined);
        grant_queue_init(&device->queue);
        device->daemon = daemon;
        device->index = index;
        device->memory.driver = daemon->driver_use;

        r = open_device(device);
        if (r < 0) {
                log_error(&daemon->log, "the device is not used", LOG_U64("index", index),
                          LOG_TEXT("error", strerror(-r)));
                device_free(device);
                return r;
        }
        log_info(&daemon->log, "device opened", LOG_ID(MESSAGE_ID_DEVICE_OPENED),
                 LOG_TEXT("device", device->uuid_text), LOG_TEXT("name", device->name),
                 LOG_U64("frame_bytes", device->table.frame_bytes),
                 LOG_U64("frames", device->table.count),
                 LOG_U64("total_bytes", device->total_bytes),
                 LOG_U64("managed_bytes", device_managed_bytes(device)),
                 LOG_U64("outside_bytes", device->outside_bytes),
                 LOG_U64("watermark_low", device->watermark_low),
                 LOG_U64("watermark_high", device->watermark_high));
        *out = device;
        return 0;
}

/* Every allocation that exists is undone; what fails is counted and said. */
static void release_all(struct device *device)
{
        uint32_t failed = 0;

        for (uint32_t i = 0; i < device->table.count; i++) {
                struct frame *frame = &device->table.frames[i];

                charge_refund(&frame->charge);
                if (frame->fd >= 0 && frame_memory_release(&device->memory, frame, i) != FRAME_DONE)
                        failed++;
        }
        if (failed > 0)
                log_error(&device->daemon->log, "frames could not be released",
                          LOG_TEXT("device", device->uuid_text), LOG_U64("frames", failed));
}

/* Frames that were released or scrubbed for tenants are theirs no more. */
static void forget_tenants(struct device *device)
{
        list_for_each_safe(node, &device->tenants)
        {
                struct tenant_device *part = list_entry(node, struct tenant_device, device_link);

                list_unlink(&part->tenant_link);
                list_unlink(&part->device_link);
                tenant_forget(part->tenant);
                free(part);
        }
}

struct device *device_free(struct device *device)
{
        const struct driver *driver;

        if (!device)
                return NULL;
        driver = device->memory.driver;
        filler_stop(device);
        grant_queue_stop(device);
        device->turn = sd_event_source_disable_unref(device->turn);
        if (device->context_retained) {
                driver->ctx_set_current(device->memory.context);
                release_all(device);
                if (device->mapped_bytes > 0)
                        driver->mem_address_free(device->memory.base, device->mapped_bytes);
                driver->ctx_set_current(NULL);
                driver->device_primary_ctx_release(device->memory.device);
        }
        forget_tenants(device);
        frame_table_deinit(&device->table);
        list_unlink(&device->link);
        free(device);
        return NULL;
}

struct device *device_find(struct daemon *daemon, const uint8_t uuid[16])
{
        list_for_each(node, &daemon->devices)
        {
                struct device *device = list_entry(node, struct device, link);

                if (memcmp(device->uuid, uuid, sizeof(device->uuid)) == 0)
                        return device;
        }
        return NULL;
}

void device_report_failure(struct device *device, enum device_state state, const char *what,
                           CUresult error)
{
        const char *name = driver_error_name(device->memory.driver, error);
        uint64_t suppressed = 0;

        if (state > device->state ||
            log_limit_allow(&device->trouble_limit, wire_now_ns(), &suppressed))
                log_error(&device->daemon->log, "a driver call failed",
                          LOG_ID(MESSAGE_ID_DRIVER_FAILED), LOG_TEXT("device", device->uuid_text),
                          LOG_TEXT("call", what), LOG_TEXT("error", name),
                          LOG_TEXT("device_is", device_state_name(state)),
                          LOG_U64("suppressed", suppressed));
        snprintf(device->trouble, sizeof(device->trouble), "%s: %s", what, name);
        if (state <= device->state)
                return;
        device->state = state;
        list_for_each_safe(node, &device->sessions)
                session_send_device(list_entry(node, struct session, device_link));
        device_wake(device);
}
