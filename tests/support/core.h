/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole daemon inside a test program, on a driver that keeps books and fails when told to
 * (fake_driver.h). Clients are raw and connected by socketpairs; while they wait for an answer they
 * run the loop. One at a time.
 */
#ifndef TESTS_SUPPORT_CORE_H
#define TESTS_SUPPORT_CORE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include <CUnit/CUnit.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/session.h"
#include "daemon/tenant.h"
#include "libclient/wire/wire.h"
#include "tests/support/fake_driver.h"
#include "tests/support/raw_client.h"

/* An enum gpumem_error as raw_client.h's functions return it. */
#define CODE(error) (-(error))

/* Between core_start() and core_stop(). */
struct core {
        struct daemon *daemon;
        struct device *device;
        int fds_before;
};
extern struct core core;

/* A daemon on a device of `frames` frames of FAKE_GRANULARITY; returns with the pool filled. Fails
 * the test if that does not work. */
void core_start(uint32_t frames, uint32_t watermark_low, uint32_t watermark_high);

/* The configuration that core_start() uses, to be changed for core_start_with(). */
void core_config(struct config *config, uint32_t watermark_low, uint32_t watermark_high);
void core_start_with(const struct config *config, uint32_t frames);

/* Everything adds up, and after the end nothing is left: no allocation, mapping, descriptor. */
void core_stop(void);

/* The debug check; prints what is wrong. */
int core_check(void);

/* Connects a client; core_join() also says HELLO. */
void core_connect(struct raw_client *client);
void core_join(struct raw_client *client, const char *name);

/* The same as another user: the tenant is that user's (or its rule's) from HELLO on. */
void core_join_user(struct raw_client *client, const char *name, uid_t uid);

/* Makes the newest session another user's: what the kernel would say of another process. It must
 * not hold anything yet. */
void core_pretend_user(uid_t uid);

/* Sends a GRANT without waiting for its answer. */
void core_ask(struct raw_client *client, uint64_t object, uint32_t frames, uint32_t wait_ms);

/* One turn of the loop, at most a millisecond. */
void core_turn(void *unused);

/* Turns for that long. */
void core_run(uint32_t ms);

/* No worker has a frame. */
bool core_workers_idle(void);

/* Runs the loop until `condition` holds, at most 10 s; what it was in the end. */
#define CORE_UNTIL(condition)                                                                      \
        ({                                                                                         \
                uint64_t deadline_ = wire_deadline_ns(10000);                                      \
                while (!(condition) && wire_now_ns() < deadline_)                                  \
                        core_turn(NULL);                                                           \
                (condition);                                                                       \
        })

/* The newest session. */
struct session *core_session(void);

#endif
