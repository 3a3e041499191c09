/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants: who is charged, and who may have whose returned frames. In this release there is one per
 * user id. A tenant exists as long as it has sessions or anything is charged to it.
 *
 * Frames that a tenant returns stay with it, per device, and are given out again only to itself.
 * They leave it by being released to the driver, when another tenant needs the memory or when the
 * tenant's last session is gone.
 */
#ifndef GPUMEMD_TENANT_H
#define GPUMEMD_TENANT_H

#include <stdint.h>
#include <sys/types.h>

#include "daemon/account.h"
#include "daemon/frame.h"
#include "daemon/list.h"
#include "daemon/log.h"

struct daemon;
struct device;
struct state_session;

struct tenant {
        struct list link; /* in the daemon's list */
        uint32_t number;  /* never given again, not by a later daemon either */
        uid_t uid;
        char name[32]; /* "uid-1000" */
        struct account account;
        uint32_t sessions;   /* those whose process lives, closed ones included */
        struct list devices; /* struct tenant_device */
        struct log_limit misbehaviour;
};

/* What a tenant has on one device besides what its objects hold. */
struct tenant_device {
        struct list tenant_link, device_link;
        struct tenant *tenant;
        struct device *device;
        struct frame_list dirty; /* waiting for a scrubber */
        struct frame_list ready;
        uint32_t scrubbing, releasing; /* frames that a worker has */
        uint32_t draining;             /* in the lists of closed sessions */
        uint64_t granted;              /* in objects */
        uint64_t wanted;               /* frames that its waiting grants ask for */
};

/* The tenant of `uid`, made if need be. 0 or -ENOMEM. */
int tenant_get(struct tenant **out, struct daemon *daemon, uid_t uid);

/* The tenant that a session of another daemon had, under its number. 0, -ENOMEM or -EBADMSG (the
 * records contradict each other). */
int tenant_restore(struct tenant **out, struct daemon *daemon, const struct state_session *old);

/* Its part on a device, made if need be. 0 or -ENOMEM. */
int tenant_device_get(struct tenant_device **out, struct tenant *tenant, struct device *device);

/* Frees the tenant if nothing needs it any more. */
void tenant_forget(struct tenant *tenant);

#endif
