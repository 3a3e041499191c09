/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holders: processes that were granted frames of a tenant, live, and have no session of it any
 * more. They may still map what they gave back, so what the driver does not return stays charged to
 * their tenant until they are dead. One record per process, at most HOLDERS_MAX per tenant; beyond
 * that it is only known that there are more.
 */
#ifndef GPUMEMD_TENANT_HOLDER_H
#define GPUMEMD_TENANT_HOLDER_H

#include <stdbool.h>

#include "daemon/tenant.h"

#define HOLDERS_MAX 64

struct identity;

/* The last session of this process is gone, and the process lives. Takes over the pidfd. */
void tenant_add_holder(struct tenant *tenant, struct identity *identity);

/* Is there one? */
bool tenant_has_holders(const struct tenant *tenant);

/* Forgets them all. */
void tenant_forget_holders(struct tenant *tenant);

#endif
