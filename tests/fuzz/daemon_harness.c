/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>

#include "daemon/session.h"
#include "libclient/wire/wire.h"
#include "tests/fuzz/daemon_harness.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/fake_driver.h"

/* Counting descriptors takes longer than most inputs. */
#define COUNT_EVERY 64

static struct daemon *instance;
static unsigned descriptors, inputs;

/* A frame's descriptor comes and goes with its memory. */
static unsigned count_descriptors(void)
{
        return fuzz_count_descriptors() - fake_driver_allocations();
}

struct device *harness_device(void)
{
        return list_entry(instance->devices.next, struct device, link);
}

static bool workers_are_idle(void)
{
        const struct device *device = harness_device();

        return device->table.works[FRAME_IDLE] == device->table.count;
}

void harness_run(void)
{
        uint64_t deadline_ns = wire_deadline_ns(10000);

        for (;;) {
                int r = sd_event_run(instance->event, workers_are_idle() ? 0 : 1000);

                FUZZ_REQUIRE(r >= 0);
                if (r == 0 && workers_are_idle())
                        return;
                FUZZ_REQUIRE(wire_now_ns() < deadline_ns);
        }
}

static void start(void)
{
        static int log_fd = -1;
        static struct config config;

        if (log_fd < 0)
                log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        config_init(&config);
        config.gpu_memory_utilization = 1.0;
        config.log_level = LOG_LEVEL_DEBUG;
        config.max_clients = 8;
        config.devices_count = 1;
        config.devices[0] = (struct config_device){
                .match = "*",
                .watermark_low = 3,
                .watermark_high = 6,
                .given = UINT32_MAX,
        };
        FUZZ_REQUIRE(daemon_new(&instance, &config, log_fd, fake_driver_open(HARNESS_FRAMES)) == 0);
        device_wake(harness_device());
        harness_run();
        FUZZ_REQUIRE(harness_device()->fresh.count == 6);
        descriptors = count_descriptors();
}

struct daemon *harness_daemon(void)
{
        if (!instance)
                start();
        return instance;
}

bool harness_is_unharmed(void)
{
        const struct device *device = harness_device();

        return device->state == DEVICE_OK && device->quarantined.count == 0 &&
               device->backoff_until_ns == 0;
}

static void require_clean(void)
{
        const struct device *device = harness_device();
        char report[4096];
        int problems = daemon_check(instance, report, sizeof(report));

        if (problems)
                fprintf(stderr, "%s", report);
        FUZZ_REQUIRE(problems == 0);
        FUZZ_REQUIRE(instance->sessions_count == 0);
        FUZZ_REQUIRE(device->table.states[FRAME_GRANTED] == 0);
        FUZZ_REQUIRE(device->table.states[FRAME_DRAINING] == 0);
        FUZZ_REQUIRE(device->queue.count == 0);
}

void harness_settle(void)
{
        for (enum fake_call call = 0; call < FAKE_CALL_COUNT; call++)
                fake_driver_fail(call, 0, 0, CUDA_SUCCESS);
        session_close_all(instance);
        device_wake(harness_device());
        harness_run();
        require_clean();
        /* (What could not be unmapped is released nevertheless, which the fake driver notes.) */
        FUZZ_REQUIRE(fake_driver_misuses() == 0 || harness_device()->quarantined.count > 0);
        if (harness_is_unharmed()) {
                if (++inputs % COUNT_EVERY == 0)
                        FUZZ_REQUIRE(count_descriptors() == descriptors);
                return;
        }
        instance = daemon_free(instance);
        FUZZ_REQUIRE(fake_driver_reservations() == 0 && fake_driver_contexts() == 0);
}
