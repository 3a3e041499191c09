/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration file. Input: the file. What is refused is refused with one line that names the
 * file; what is taken is within the documented bounds.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/config.h"
#include "tests/fuzz/fuzz.h"

static void require_sane(const struct config *config)
{
        struct config_device device;

        FUZZ_REQUIRE(config->client_socket[0] && config->admin_socket[0]);
        FUZZ_REQUIRE(strnlen(config->client_socket, sizeof(config->client_socket)) <
                     sizeof(config->client_socket));
        FUZZ_REQUIRE(config->gpu_memory_utilization > 0 && config->gpu_memory_utilization <= 1);
        FUZZ_REQUIRE(config->max_clients >= 1 && config->max_clients <= CONFIG_CLIENTS_MAX);
        FUZZ_REQUIRE(config->devices_count <= CONFIG_DEVICES_MAX);
        for (uint32_t i = 0; i < config->devices_count; i++) {
                uint64_t frame = config->devices[i].frame_bytes;

                FUZZ_REQUIRE((frame & (frame - 1)) == 0);
        }
        device = config_for_device(config, "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a", 0);
        FUZZ_REQUIRE(device.watermark_low_auto || device.watermark_low <= CONFIG_FRAMES_MAX);
        FUZZ_REQUIRE(device.watermark_high_auto || device.watermark_high <= CONFIG_FRAMES_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static struct config config;
        static int file = -1;
        char path[64], why[512] = "", text[64];
        uint64_t bytes;
        size_t length = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
        int r;

        if (file < 0)
                file = memfd_create("config", MFD_CLOEXEC);
        FUZZ_REQUIRE(file >= 0 && ftruncate(file, 0) == 0);
        FUZZ_REQUIRE(pwrite(file, data, size, 0) == (ssize_t)size);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
        config_init(&config);
        r = config_read(&config, path, why, sizeof(why));
        FUZZ_REQUIRE(r <= 0);
        if (r == 0) {
                require_sane(&config);
        } else {
                const char *line = why;
                int lines = 0;

                for (; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL, lines++)
                        FUZZ_REQUIRE(strncmp(line, path, strlen(path)) == 0);
                FUZZ_REQUIRE(lines <= 21);
        }

        memcpy(text, data, length);
        text[length] = '\0';
        r = config_parse_bytes(text, &bytes);
        FUZZ_REQUIRE(r <= 0);
        return 0;
}
