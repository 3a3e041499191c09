/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of CUDA: its session with the daemon, a stream in the device's primary context
 * (which the library uses as well), and device memory that the CPU can reach. For use by one
 * thread, on which the context stays current.
 */
#ifndef GPUMEM_GEN_DEVICE_H
#define GPUMEM_GEN_DEVICE_H

#include <gpumem/gpumem.h>
#include <stdbool.h>

#include "libclient/driver/driver.h"
#include "tools/gen/engine.h"

struct device {
        struct driver *driver;
        struct gpumem *session;
        CUdevice ordinal;
        CUcontext context; /* retained */
        CUstream stream;
};

/* A range of device memory and the address at which host functions reach it. */
struct device_buffer {
        struct gpumem_buffer *buffer;
        gpumem_address address;
        unsigned char *host;
};

/* On failure the device can be given to device_deinit() all the same. */
enum engine_failure device_init(struct device *device, const struct engine_options *options,
                                struct gen_error *error);
void device_deinit(struct device *device); /* idempotent; frees buffers of the session too */

/* Says what a failing call of the library had to say, and classifies it. */
enum engine_failure device_fail(struct gen_error *error, int result, const char *what);

/* Whether `bytes` more can never be had: with what this session holds they exceed the whole device,
 * whoever else goes. Then error says so. */
bool device_is_too_small(const struct device *device, uint64_t bytes, const char *what,
                         struct gen_error *error);

/* Waits for memory as engine.h says: in slices, asking hooks->stopped in between. */
enum engine_failure device_buffer_init(struct device_buffer *buffer, struct device *device,
                                       uint64_t bytes, const char *name, uint32_t timeout_s,
                                       const struct run_hooks *hooks, struct gen_error *error);
void device_buffer_deinit(struct device_buffer *buffer);

/* Enqueues a copy; `data` must stay until the stream was synchronised. */
enum engine_failure device_upload(struct device *device, gpumem_address to, const void *data,
                                  uint64_t bytes, struct gen_error *error);
/* Enqueues a function that computes on the CPU; it must not call CUDA. */
enum engine_failure device_launch(struct device *device, void (*run)(void *argument),
                                  void *argument, struct gen_error *error);
enum engine_failure device_synchronize(struct device *device, struct gen_error *error);

#endif
