/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants: who is charged, and who may have whose returned frames. Whom a client belongs to is
 * decided once, when it connects: by the rules of the configuration (tenant_rule.h), else by its
 * user id. A tenant exists as long as it has sessions or anything is charged to it.
 *
 * Frames that a tenant returns stay with it, per device, and are given out again only to itself.
 * They leave it by being released to the driver, when another tenant needs the memory or when the
 * tenant's last session is gone; what the driver does not give back then is withheld (withheld.h)
 * and stays charged to it.
 *
 * A limit (max) is on everything that is charged to the tenant on a device: what it holds, what it
 * returned and still has, what is on its way to the driver, what is withheld. It holds at the
 * moment of a grant; lowering it takes nothing that is held, but what was returned is released
 * until the tenant is under it.
 */
#ifndef GPUMEMD_TENANT_H
#define GPUMEMD_TENANT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/account.h"
#include "daemon/frame.h"
#include "daemon/list.h"
#include "daemon/log.h"
#include "daemon/tenant_rule.h"

struct daemon;
struct device;
struct state_session;
struct identity;

struct tenant {
        struct list link; /* in the daemon's list */
        struct daemon *daemon;
        uint32_t number;            /* never given again, not by a later daemon either */
        char name[TENANT_NAME_MAX]; /* of its rule, or "uid-1000" */
        uint64_t max_bytes;         /* on each device; TENANT_NO_LIMIT */
        struct account account;     /* all devices together */
        uint32_t sessions;          /* those whose process lives, closed ones included */
        struct list devices;        /* struct tenant_device */
        struct list holders;        /* tenant_holder.c */
        uint32_t holders_count;
        bool holders_uncounted; /* there are more than can be watched */
        struct log_limit misbehaviour;
};

/* What measuring says of a tenant's releases, in bytes. */
struct withheld_measure {
        uint64_t released; /* so much of what was released is covered */
        uint64_t back;     /* and so much of that is free */
};

/* What a tenant has on one device besides what its objects hold. Counts are frames. */
struct tenant_device {
        struct list tenant_link, device_link;
        struct tenant *tenant;
        struct device *device;
        struct frame_list dirty; /* waiting for a scrubber */
        struct frame_list ready;
        uint32_t scrubbing, releasing; /* frames that a worker has */
        uint32_t draining;             /* in the lists of closed sessions */
        uint64_t granted;              /* in objects */
        uint64_t wanted;          /* what its waiting grants ask for, as far as its limit lets it
                                     have them now */
        uint32_t held;            /* waiting grants that its limit holds back */
        bool stuck;               /* scratch of grant.c: one of them was passed over */
        uint64_t reclaim_next_ns; /* its sessions are not asked to give back before */

        struct charge withheld;     /* bytes released that did not become free */
        uint64_t unmeasured;        /* bytes released that no measurement has covered yet */
        uint64_t withheld_since_ns; /* since there are any */
        uint64_t withheld_session;  /* the newest session when there were last more of them */
        uint64_t orphaned_ns;       /* since when nobody is known who could hold them; 0: not */
        struct withheld_measure measured; /* withheld.c's mutex; from the creator's thread */
        struct withheld_measure taken;    /* those that the loop has got */
};

/* The tenant of a client, made if need be. 0 or -ENOMEM. */
int tenant_get(struct tenant **out, struct daemon *daemon, const struct identity *identity);

/* The tenant of that name, made if need be: for who has the name from an earlier life. 0 or
 * -ENOMEM. */
int tenant_get_named(struct tenant **out, struct daemon *daemon, const char *name);

/* The tenant that a session of another daemon had, under its number. 0, -ENOMEM or -EBADMSG (the
 * records contradict each other). */
int tenant_restore(struct tenant **out, struct daemon *daemon, const struct state_session *old);

/* NULL: there is none of that name. */
struct tenant *tenant_find(struct daemon *daemon, const char *name);

/* Its part on a device, made if need be. 0 or -ENOMEM. */
int tenant_device_get(struct tenant_device **out, struct tenant *tenant, struct device *device);

/* Frees the tenant if nothing needs it any more. */
void tenant_forget(struct tenant *tenant);

/* Changes what it may have on each device; holds from the next grant on. Those who wait for the
 * limit are answered if there is room now; what it returned is released as far as it is above. */
void tenant_set_max(struct tenant *tenant, uint64_t max_bytes);

/* --- limits, in frames of the device --- */

/* TENANT_NO_LIMIT: none. */
uint64_t tenant_device_max(const struct tenant_device *part);

/* Withheld bytes, rounded up. */
uint64_t tenant_device_withheld(const struct tenant_device *part);

/* All that is charged to it. */
uint64_t tenant_device_charged(const struct tenant_device *part);

/* How many more it may hold, when what it returned has come to use again: nobody of it has to give
 * anything back for that. UINT64_MAX: no limit. */
uint64_t tenant_device_may_hold(const struct tenant_device *part);

/* How many it may be given that are not charged to it yet. UINT64_MAX: no limit. */
uint64_t tenant_device_may_charge(const struct tenant_device *part);

#endif
