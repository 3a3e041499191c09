/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants: whom the rules make of a client, and what a limit lets it have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/identity.h"
#include "daemon/session.h"
#include "daemon/tenant.h"
#include "tests/support/core.h"
#include "tests/support/daemon_unit.h"

#define FRAMES(n) ((n)*FAKE_GRANULARITY)

static struct config config;
static struct raw_client a, b, c;
static uint64_t ids[512], more[512];
static char why[512];

static int key(struct tenant_rules *rules, const char *name, const char *key_name,
               const char *value)
{
        return tenant_rules_key(rules, name, key_name, value, 7, why, sizeof(why));
}

static const char *match(const struct tenant_rules *rules, const char *unit, const char *cgroup,
                         uid_t uid, gid_t gid)
{
        gid_t groups[] = {5000, gid};
        struct identity identity = {
                .uid = uid,
                .gid = 100,
                .groups = groups,
                .groups_count = 2,
                .unit = (char *)unit,
                .cgroup = (char *)cgroup,
                .pidfd = -1,
        };
        const struct tenant_rule *rule = tenant_rules_match(rules, &identity);

        return rule ? rule->name : "";
}

/* Order of the file, all kinds of key together, one value of each kind. */
static void test_rules(void)
{
        static struct tenant_rules rules;

        rules = (struct tenant_rules){0};
        CU_ASSERT_EQUAL(key(&rules, "chat", "unit", "vllm@*.service sglang.service"), 0);
        CU_ASSERT_EQUAL(key(&rules, "chat", "uid", "1000-1999"), 0);
        CU_ASSERT_EQUAL(key(&rules, "pods", "cgroup", "/kubepods*"), 0);
        CU_ASSERT_EQUAL(key(&rules, "people", "gid", "7"), 0);
        CU_ASSERT_EQUAL(key(&rules, "people", "gid", "9"), 0);
        CU_ASSERT_EQUAL(key(&rules, "rest", "cgroup", "*"), 0);
        CU_ASSERT_EQUAL(key(&rules, "uid-3", "max", "1G"), 0);
        CU_ASSERT_EQUAL(rules.rules_count, 5);

        CU_ASSERT_STRING_EQUAL(match(&rules, "vllm@a.service", "/s", 1000, 0), "chat");
        CU_ASSERT_STRING_EQUAL(match(&rules, "sglang.service", "/s", 1999, 0), "chat");
        CU_ASSERT_STRING_EQUAL(match(&rules, "sglang.service", "/s", 2000, 0), "rest");
        CU_ASSERT_STRING_EQUAL(match(&rules, NULL, "/kubepods.slice/pod1/x", 5, 7), "pods");
        CU_ASSERT_STRING_EQUAL(match(&rules, NULL, "/a/kubepods", 5, 7), "people");
        CU_ASSERT_STRING_EQUAL(match(&rules, NULL, NULL, 5, 9), "people");
        CU_ASSERT_STRING_EQUAL(match(&rules, NULL, NULL, 5, 8), "");
        CU_ASSERT_STRING_EQUAL(match(&rules, NULL, "/", 3, 8), "rest");

        CU_ASSERT_EQUAL(tenant_rules_find(&rules, "uid-3")->max_bytes, UINT64_C(1) << 30);
        CU_ASSERT_EQUAL(tenant_rules_find(&rules, "chat")->max_bytes, TENANT_NO_LIMIT);
        CU_ASSERT_PTR_NULL(tenant_rules_find(&rules, "cha"));
}

/* At the limits of the tables. */
static void test_rules_full(void)
{
        static struct tenant_rules rules;
        char name[32];

        rules = (struct tenant_rules){0};
        for (int i = 0; i < TENANT_RULES_MAX; i++) {
                snprintf(name, sizeof(name), "t%d", i);
                CU_ASSERT_EQUAL(key(&rules, name, "uid", "1 2 3 4"), 0);
        }
        CU_ASSERT(key(&rules, "one-more", "uid", "1") < 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "more than 64"));
        CU_ASSERT(key(&rules, "t0", "uid", "1") < 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "more than 256"));
        CU_ASSERT_EQUAL(rules.rules_count, TENANT_RULES_MAX);
}

static void limit(uint64_t frames)
{
        core_config(&config, 2, 4);
        CU_ASSERT_EQUAL(key(&config.tenants, "small", "uid", "77"), 0);
        config.tenants.rules[0].max_bytes = FRAMES(frames);
}

/* C09: from the first grant on; C08: and the client is told what it may have. */
static void test_max(void)
{
        struct gpumem_message_meminfo_reply info;
        uint64_t object, other;

        limit(6);
        core_start_with(&config, 32);
        core_join_user(&a, "a", 77);
        CU_ASSERT_STRING_EQUAL(core_session()->tenant->name, "small");
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.available_bytes, FRAMES(6));
        CU_ASSERT_EQUAL(info.device_bytes, FRAMES(32));

        CU_ASSERT_EQUAL(raw_grant(&a, object, 7, 0, ids), CODE(GPUMEM_E_NO_MEMORY));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "tenant 'small' may have 384 KiB"));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 5, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 2, 0, more), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "is charged 320 KiB"));
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.available_bytes, FRAMES(1));
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, ids + 5), 0);

        /* A second session of the tenant shares the limit, another tenant does not. */
        core_join_user(&b, "b", 77);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&b, other, 1, 0, more), CODE(GPUMEM_E_AGAIN));
        core_join_user(&c, "c", 78);
        CU_ASSERT_EQUAL(raw_object_create(&c, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&c, other, 20, 0, more), 0);

        /* Returned frames stay charged and are used again. */
        CU_ASSERT_EQUAL(raw_return(&a, object, 6, ids), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 6, 0, ids), 0);
        CU_ASSERT_EQUAL(core_session()->tenant->sessions, 1);
        CU_ASSERT_EQUAL(core_check(), 0);
        raw_close(&a);
        raw_close(&b);
        raw_close(&c);
        core_stop();
}

/* Never above the limit on the way, either: what is being scrubbed counts. */
static void test_charged(void)
{
        struct tenant_device *part;
        uint64_t object;

        limit(6);
        core_start_with(&config, 32);
        core_join_user(&a, "a", 77);
        part = core_session()->allotment;
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        for (int round = 0; round < 50; round++) {
                CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 1000, ids), 0);
                CU_ASSERT(tenant_device_charged(part) <= 6);
                CU_ASSERT_EQUAL(raw_return(&a, object, 4, ids), 0);
                CU_ASSERT_EQUAL(raw_grant(&a, object, 6, 1000, ids), 0);
                CU_ASSERT_EQUAL(tenant_device_charged(part), 6);
                CU_ASSERT_EQUAL(raw_return(&a, object, 6, ids), 0);
        }
        raw_close(&a);
        core_stop();
}

static int send_grant(struct raw_client *client, uint64_t object, uint32_t frames, uint32_t wait_ms)
{
        struct gpumem_message_grant message = {
                .header = {.length = sizeof(message), .type = GPUMEM_MESSAGE_GRANT},
                .object = object,
                .frames = frames,
                .wait_ms = wait_ms,
        };

        return raw_send(client, &message);
}

/* One who waits for its own tenant stands in nobody's way, and keeps its place in it. */
static void test_waiting(void)
{
        uint64_t first, second, other;

        limit(4);
        core_start_with(&config, 16);
        core_join_user(&a, "a", 77);
        core_join_user(&b, "b", 77);
        core_join_user(&c, "c", 78);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &first), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, 100, &second), 0);
        CU_ASSERT_EQUAL(raw_object_create(&c, 1, 100, &other), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, first, 3, 0, ids), 0);
        CU_ASSERT_EQUAL(send_grant(&b, second, 3, 20000), 0);
        CU_ASSERT(CORE_UNTIL(core.device->queue.held_count == 1));
        CU_ASSERT_EQUAL(core_check(), 0);
        /* b was first; a of the same tenant may not pass it even with what would fit. */
        CU_ASSERT_EQUAL(raw_grant(&a, first, 1, 0, more), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_EQUAL(raw_grant(&c, other, 12, 0, more), 0);
        CU_ASSERT_EQUAL(raw_return(&a, first, 2, ids), 0);
        CU_ASSERT_EQUAL(raw_receive(&b, 5000), 0);
        CU_ASSERT_EQUAL(core.device->queue.held_count, 0);
        /* Its deadline is kept, and says why. */
        CU_ASSERT_EQUAL(raw_grant(&b, second, 2, 50, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_PTR_NOT_NULL(strstr(b.text, "may have 256 KiB"));
        /* A session that ends while its grant is held. */
        CU_ASSERT_EQUAL(send_grant(&b, second, 2, 20000), 0);
        CU_ASSERT(CORE_UNTIL(core.device->queue.held_count == 1));
        raw_close(&b);
        CU_ASSERT(CORE_UNTIL(core.device->queue.held_count == 0));
        CU_ASSERT_EQUAL(core_check(), 0);
        raw_close(&a);
        raw_close(&c);
        core_stop();
}

/* C10: lowered below what is held, and restored. */
static void test_change(void)
{
        struct gpumem_message_meminfo_reply info;
        struct tenant_device *part;
        struct tenant *tenant;
        uint64_t object;

        limit(12);
        core_start_with(&config, 16);
        core_join_user(&a, "a", 77);
        part = core_session()->allotment;
        tenant = part->tenant;
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 10, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object, 4, ids + 6), 0);
        CU_ASSERT(CORE_UNTIL(part->ready.count == 4));

        tenant_set_max(tenant, FRAMES(4)); /* six are held, four are ready */
        CU_ASSERT(CORE_UNTIL(tenant_device_charged(part) == 6));
        CU_ASSERT_EQUAL(part->granted, 6);
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.available_bytes, 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, more), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_EQUAL(raw_return(&a, object, 3, ids + 3), 0);
        CU_ASSERT(CORE_UNTIL(tenant_device_charged(part) == 4 && core_workers_idle()));
        CU_ASSERT_EQUAL(part->granted, 3);
        CU_ASSERT_EQUAL(part->ready.count, 1);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, ids + 3), 0);
        CU_ASSERT_EQUAL(core_check(), 0);

        /* Who waits is answered when the limit is lifted. */
        CU_ASSERT_EQUAL(send_grant(&a, object, 4, 20000), 0);
        CU_ASSERT(CORE_UNTIL(core.device->queue.held_count == 1));
        tenant_set_max(tenant, FRAMES(12));
        CU_ASSERT_EQUAL(raw_receive(&a, 5000), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, more), 0);
        CU_ASSERT_EQUAL(tenant_device_charged(part), 12);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 1, 0, more), CODE(GPUMEM_E_AGAIN));
        tenant_set_max(tenant, TENANT_NO_LIMIT);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, more), 0);

        /* Lowered under one who waits: it can never have it now. */
        tenant_set_max(tenant, FRAMES(17));
        CU_ASSERT_EQUAL(send_grant(&a, object, 5, 20000), 0);
        CU_ASSERT(CORE_UNTIL(core.device->queue.held_count == 1));
        tenant_set_max(tenant, FRAMES(3));
        CU_ASSERT_EQUAL(raw_receive(&a, 5000), CODE(GPUMEM_E_NO_MEMORY));
        raw_close(&a);
        core_stop();
}

/* Whom the kernel names: this process, its groups and where it runs. */
static void test_identity(void)
{
        struct identity identity;
        gid_t groups[256];
        int pair[2], count = getgroups(256, groups);

        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        CU_ASSERT_EQUAL_FATAL(identity_of_peer(&identity, pair[0]), 0);
        CU_ASSERT_EQUAL(identity.pid, getpid());
        CU_ASSERT_EQUAL(identity.uid, geteuid());
        CU_ASSERT_EQUAL(identity.gid, getegid());
        CU_ASSERT_EQUAL((int)identity.groups_count, count);
        for (int i = 0; i < count; i++)
                CU_ASSERT_EQUAL(identity.groups[i], groups[i]);
        if (access("/proc/self/cgroup", R_OK) == 0) {
                CU_ASSERT_PTR_NOT_NULL_FATAL(identity.cgroup);
                CU_ASSERT_EQUAL(identity.cgroup[0], '/');
                CU_ASSERT_PTR_NULL(strchr(identity.cgroup, '\n'));
        }
        identity_deinit(&identity);
        identity_deinit(&identity);
        close(pair[0]);
        close(pair[1]);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"rules", test_rules},
                {"more rules than there is room for", test_rules_full},
                {"a limit holds from the first grant (C08, C09)", test_max},
                {"nothing passes the limit on the way", test_charged},
                {"waiting for one's own tenant", test_waiting},
                {"a limit lowered and restored (C10)", test_change},
                {"identity", test_identity},
        };

        return UNIT_RUN("tenants", tests);
}
