/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the daemon: takes memory, fills it by the driver, reads it back. Driven by lines on
 * standard input: "check" reads it again, the end of input ends it. One line of JSON each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gpumem/gpumem.h>

#include "tests/gpu/gpu_check.h"

static size_t wrong_bytes(const struct check *check, CUdeviceptr address, size_t bytes,
                          unsigned char pattern)
{
        const size_t part = 16 * MIB;
        unsigned char *host = malloc(part);
        size_t at, i, wrong = 0;

        if (!host)
                return bytes;
        for (at = 0; at < bytes; at += part) {
                size_t length = bytes - at < part ? bytes - at : part;

                NEED(memcpy_dtoh(host, address + at, length));
                for (i = 0; i < length; i++)
                        wrong += host[i] != pattern;
        }
        free(host);
        return wrong;
}

int part_client(const struct check *check, const char *socket_path, uint64_t mib)
{
        struct gpumem_options options = {
                .size = sizeof(options),
                .name = "gpu-check",
                .socket_path = socket_path,
                .driver = check->cuda->host_view ? GPUMEM_DRIVER_SIMULATOR : GPUMEM_DRIVER_LIBCUDA,
        };
        unsigned char pattern = (unsigned char)(getpid() % 251 + 1);
        struct gpumem_buffer *buffer;
        struct gpumem *session;
        double start = now_us();
        size_t bytes, wrong;
        char line[64];

        if (strcmp(check->driver, "cuda") != 0 && strcmp(check->driver, "simulated") != 0)
                options.driver_library = check->driver;
        if (gpumem_connect(&session, &options) != 0) {
                printf("{\"error\":\"connect: %s\"}\n", gpumem_error_message());
                return 1;
        }
        if (gpumem_buffer_create(session, mib * MIB, "gpu-check", 10000, &buffer) != 0) {
                printf("{\"error\":\"buffer: %s\"}\n", gpumem_error_message());
                return 1;
        }
        start = now_us() - start;
        bytes = gpumem_buffer_bytes(buffer);
        NEED(memset_d8(gpumem_buffer_address(buffer), pattern, bytes));
        NEED(ctx_synchronize());
        do {
                wrong = wrong_bytes(check, gpumem_buffer_address(buffer), bytes, pattern);
                printf("{\"bytes\":%zu,\"pattern\":%u,\"wrong_bytes\":%zu,\"connect_and_grant_us\":"
                       "%.1f}\n",
                       bytes, pattern, wrong, start);
                fflush(stdout);
        } while (wrong == 0 && fgets(line, sizeof(line), stdin));
        gpumem_buffer_free(buffer);
        gpumem_disconnect(session);
        return wrong != 0;
}
