/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/state.h"
#include "tests/support/core.h"
#include "tests/support/daemon_unit.h"

struct core core;

void core_turn(void *unused)
{
        (void)unused;
        /* Long enough not to spin, short enough not to matter. */
        sd_event_run(core.daemon->event, 1000);
}

bool core_workers_idle(void)
{
        return core.device->table.works[FRAME_IDLE] == core.device->table.count;
}

void core_config(struct config *config, uint32_t watermark_low, uint32_t watermark_high)
{
        config_init(config);
        config->gpu_memory_utilization = 1.0;
        config->log_level = LOG_LEVEL_DEBUG;
        config->max_clients = 64;
        config->devices_count = 1;
        config->devices[0] = (struct config_device){
                .match = "*",
                .watermark_low = watermark_low,
                .watermark_high = watermark_high,
                .given = UINT32_MAX,
        };
}

void core_start_with(const struct config *config, uint32_t frames)
{
        uint32_t fresh = config->devices[0].watermark_high;
        struct device *device;

        core = (struct core){.fds_before = unit_count_fds()};
        CU_ASSERT_EQUAL_FATAL(daemon_new(&core.daemon, config, -1, fake_driver_open(frames)), 0);
        device = list_entry(core.daemon->devices.next, struct device, link);
        core.device = device;
        device_wake(device);
        CU_ASSERT(CORE_UNTIL(device->fresh.count == fresh && core_workers_idle()));
}

void core_start(uint32_t frames, uint32_t watermark_low, uint32_t watermark_high)
{
        struct config config;

        core_config(&config, watermark_low, watermark_high);
        core_start_with(&config, frames);
}

void core_run(uint32_t ms)
{
        uint64_t deadline = wire_deadline_ns(ms);

        while (wire_now_ns() < deadline)
                core_turn(NULL);
}

int core_check(void)
{
        char report[4096];
        int problems = daemon_check(core.daemon, report, sizeof(report));

        if (problems)
                printf("\n%s", report);
        return problems;
}

void core_stop(void)
{
        CU_ASSERT_EQUAL(core_check(), 0);
        core.daemon = daemon_free(core.daemon);
        core.device = NULL;
        CU_ASSERT_EQUAL(fake_driver_allocations(), 0);
        CU_ASSERT_EQUAL(fake_driver_mappings(), 0);
        CU_ASSERT_EQUAL(fake_driver_reservations(), 0);
        CU_ASSERT_EQUAL(fake_driver_contexts(), 0);
        CU_ASSERT_EQUAL(fake_driver_misuses(), 0);
        CU_ASSERT_EQUAL(unit_count_fds(), core.fds_before);
}

void core_connect(struct raw_client *client)
{
        int pair[2];

        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        raw_attach(client, pair[0]);
        client->pump = core_turn;
        CU_ASSERT_EQUAL_FATAL(session_new_consume_fd(core.daemon, pair[1]), 0);
}

void core_join(struct raw_client *client, const char *name)
{
        core_connect(client);
        CU_ASSERT_EQUAL_FATAL(raw_hello(client, core.device->uuid, FAKE_GRANULARITY, name), 0);
}

struct session *core_session(void)
{
        return list_entry(core.daemon->sessions.previous, struct session, link);
}

void core_join_user(struct raw_client *client, const char *name, uid_t uid)
{
        core_connect(client);
        core_pretend_user(uid);
        CU_ASSERT_EQUAL_FATAL(raw_hello(client, core.device->uuid, FAKE_GRANULARITY, name), 0);
}

void core_pretend_user(uid_t uid)
{
        struct session *session = core_session();
        struct tenant *before = session->tenant;

        session->identity.uid = uid;
        CU_ASSERT_EQUAL_FATAL(tenant_get(&session->tenant, core.daemon, &session->identity), 0);
        if (session->device)
                CU_ASSERT_EQUAL_FATAL(
                        tenant_device_get(&session->allotment, session->tenant, session->device),
                        0);
        if (session->record) {
                session->record->tenant = session->tenant->number;
                snprintf(session->record->tenant_name, sizeof(session->record->tenant_name), "%s",
                         session->tenant->name);
        }
        session->tenant->sessions++;
        before->sessions--;
        tenant_forget(before);
}

void core_ask(struct raw_client *client, uint64_t object, uint32_t frames, uint32_t wait_ms)
{
        struct gpumem_message_grant message = {
                .object = object, .frames = frames, .wait_ms = wait_ms};

        wire_message_init(&message, GPUMEM_MESSAGE_GRANT, 0);
        CU_ASSERT_EQUAL(raw_send(client, &message), 0);
}
