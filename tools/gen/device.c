/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/device.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SLICE_MS 200 /* of a wait for memory, between two looks at hooks->stopped */

enum engine_failure device_fail(struct gen_error *error, int result, const char *what)
{
        gen_fail(error, result, "%s: %s: %s", what, gpumem_error_name(result),
                 gpumem_error_message());
        switch (result) {
        case GPUMEM_E_AGAIN:
        case GPUMEM_E_NO_MEMORY:
        case GPUMEM_E_LIMIT:
                return ENGINE_MEMORY;
        case GPUMEM_E_DOWN:
        case GPUMEM_E_PROTOCOL:
        case GPUMEM_E_PERMISSION:
        case GPUMEM_E_MISMATCH:
        case GPUMEM_E_TIMEOUT:
                return ENGINE_DAEMON;
        default:
                return ENGINE_OTHER;
        }
}

static enum engine_failure driver_fail(struct device *device, CUresult result, const char *what,
                                       struct gen_error *error)
{
        const char *detail = device->driver->error_detail ? device->driver->error_detail() : "";

        gen_fail(error, driver_errno(result), "%s: %s%s%s", what,
                 driver_error_name(device->driver, result), *detail ? ": " : "", detail);
        return result == CUDA_ERROR_OUT_OF_MEMORY ? ENGINE_MEMORY : ENGINE_OTHER;
}

static enum engine_failure open_driver(struct device *device, const struct engine_options *options,
                                       struct gen_error *error)
{
        const enum driver_kind kind =
                options->driver == GPUMEM_DRIVER_SIMULATOR ? DRIVER_SIMULATED : DRIVER_CUDA;
        char why[400];
        CUresult result;
        int count;

        if (driver_open(&device->driver, kind, NULL, why, sizeof(why)) < 0) {
                gen_fail(error, -ENOENT, "driver: %s", why);
                return ENGINE_OTHER;
        }
        if (!device->driver->host_view) {
                gen_fail(error, -ENOSYS,
                         "the %s driver runs kernels on a GPU, and there are no matrix kernels for "
                         "a GPU yet",
                         driver_kind_name(kind));
                return ENGINE_UNSUPPORTED;
        }
        result = device->driver->init(0);
        if (result)
                return driver_fail(device, result, "cuInit", error);
        result = device->driver->device_get_count(&count);
        if (result)
                return driver_fail(device, result, "cuDeviceGetCount", error);
        if (options->device >= (uint32_t)count) {
                gen_fail(error, -ENODEV, "there is no device %" PRIu32 ": the driver has %d",
                         options->device, count);
                return ENGINE_OTHER;
        }
        result = device->driver->device_get(&device->ordinal, (int)options->device);
        return result ? driver_fail(device, result, "cuDeviceGet", error) : ENGINE_OK;
}

static enum engine_failure open_stream(struct device *device, struct gen_error *error)
{
        CUresult result =
                device->driver->device_primary_ctx_retain(&device->context, device->ordinal);

        if (result) {
                device->context = NULL;
                return driver_fail(device, result, "cuDevicePrimaryCtxRetain", error);
        }
        result = device->driver->ctx_set_current(device->context);
        if (result)
                return driver_fail(device, result, "cuCtxSetCurrent", error);
        result = device->driver->stream_create(&device->stream, CU_STREAM_NON_BLOCKING);
        if (result) {
                device->stream = NULL;
                return driver_fail(device, result, "cuStreamCreate", error);
        }
        return ENGINE_OK;
}

enum engine_failure device_init(struct device *device, const struct engine_options *options,
                                struct gen_error *error)
{
        const struct gpumem_options connect = {
                .size = sizeof(connect),
                .socket_path = options->socket,
                .name = options->name,
                .driver = options->driver,
                .device = (int)options->device,
                .cpu_threads = options->threads,
        };
        enum engine_failure failure;
        int r;

        *device = (struct device){0};
        failure = open_driver(device, options, error);
        if (failure)
                return failure;
        r = gpumem_connect(&device->session, &connect);
        if (r < 0) {
                device->session = NULL;
                if (r == GPUMEM_E_DOWN) {
                        gen_fail(error, r,
                                 "%s (start gpumemd, or name its socket with --socket or "
                                 "GPUMEM_SOCKET, or run without it with --reference)",
                                 gpumem_error_message());
                        return ENGINE_DAEMON;
                }
                return device_fail(error, r, "gpumemd");
        }
        return open_stream(device, error);
}

void device_deinit(struct device *device)
{
        if (!device->driver)
                return;
        if (device->stream) {
                device->driver->stream_synchronize(device->stream);
                device->driver->stream_destroy(device->stream);
        }
        gpumem_disconnect(device->session);
        if (device->context) {
                device->driver->ctx_set_current(NULL);
                device->driver->device_primary_ctx_release(device->ordinal);
        }
        driver_free(device->driver);
        *device = (struct device){0};
}

static double now_seconds(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool device_is_too_small(const struct device *device, uint64_t bytes, const char *what,
                         struct gen_error *error)
{
        struct gpumem_info info;

        if (gpumem_get_info(device->session, &info) < 0 || !info.frame_bytes)
                return false;
        bytes = (bytes + info.frame_bytes - 1) / info.frame_bytes * info.frame_bytes;
        if (bytes <= info.device_bytes && info.session_bytes <= info.device_bytes - bytes)
                return false;
        gen_fail(error, -ENOMEM,
                 "the device is too small for %s: that would be %" PRIu64 " KiB beside the %" PRIu64
                 " KiB that this engine holds, and gpumemd manages %" PRIu64 " KiB",
                 what, bytes >> 10, info.session_bytes >> 10, info.device_bytes >> 10);
        return true;
}

enum engine_failure device_buffer_init(struct device_buffer *buffer, struct device *device,
                                       uint64_t bytes, const char *name, uint32_t timeout_s,
                                       const struct run_hooks *hooks, struct gen_error *error)
{
        const double deadline = now_seconds() + timeout_s;
        void *host = NULL;
        char what[96];
        int r;

        *buffer = (struct device_buffer){0};
        snprintf(what, sizeof(what), "%" PRIu64 " bytes of device memory for %s", bytes, name);
        do {
                if (hooks->stopped(hooks->context))
                        return ENGINE_STOPPED;
                r = gpumem_buffer_create(device->session, bytes, name, SLICE_MS, &buffer->buffer);
                if (r < 0)
                        buffer->buffer = NULL;
                if ((r == GPUMEM_E_AGAIN || r == GPUMEM_E_NO_MEMORY) &&
                    device_is_too_small(device, bytes, name, error))
                        return ENGINE_MEMORY;
        } while (r == GPUMEM_E_AGAIN && now_seconds() < deadline);
        if (r < 0)
                return device_fail(error, r, what);
        buffer->address = gpumem_buffer_address(buffer->buffer);
        r = gpumem_host_view(device->session, buffer->address, bytes, &host);
        if (r < 0) {
                const enum engine_failure failure = device_fail(error, r, what);

                device_buffer_deinit(buffer);
                return r == GPUMEM_E_UNSUPPORTED ? ENGINE_UNSUPPORTED : failure;
        }
        buffer->host = host;
        return ENGINE_OK;
}

void device_buffer_deinit(struct device_buffer *buffer)
{
        gpumem_buffer_free(buffer->buffer);
        *buffer = (struct device_buffer){0};
}

enum engine_failure device_upload(struct device *device, gpumem_address to, const void *data,
                                  uint64_t bytes, struct gen_error *error)
{
        const CUresult result = device->driver->memcpy_htod_async(to, data, bytes, device->stream);

        return result ? driver_fail(device, result, "cuMemcpyHtoDAsync", error) : ENGINE_OK;
}

enum engine_failure device_launch(struct device *device, void (*run)(void *argument),
                                  void *argument, struct gen_error *error)
{
        const CUresult result = device->driver->launch_host_func(device->stream, run, argument);

        return result ? driver_fail(device, result, "cuLaunchHostFunc", error) : ENGINE_OK;
}

enum engine_failure device_synchronize(struct device *device, struct gen_error *error)
{
        const CUresult result = device->driver->stream_synchronize(device->stream);

        return result ? driver_fail(device, result, "cuStreamSynchronize", error) : ENGINE_OK;
}
