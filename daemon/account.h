/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounts and receipts. What is charged carries its receipt (struct charge) inside itself; taking
 * the receipt back refunds exactly what was charged, to whom it was charged. An account that goes
 * away must be balanced.
 */
#ifndef GPUMEMD_ACCOUNT_H
#define GPUMEMD_ACCOUNT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct account {
        uint64_t bytes;   /* sum of all receipts */
        uint64_t charges; /* how many receipts are out */
};

struct charge {
        struct account *account; /* NULL: nothing is charged */
        uint64_t bytes;
};

static inline bool account_is_balanced(const struct account *account)
{
        return account->bytes == 0 && account->charges == 0;
}

/* Nothing may be charged to this receipt yet. */
static inline void charge_take(struct charge *charge, struct account *account, uint64_t bytes)
{
        assert(!charge->account);
        charge->account = account;
        charge->bytes = bytes;
        account->bytes += bytes;
        account->charges++;
}

/* A receipt whose amount changes: what a tenant no longer has and the driver has not given back.
 * Zeroed, it is an empty one. */
static inline void charge_grow(struct charge *charge, struct account *account, uint64_t bytes)
{
        if (bytes == 0)
                return;
        if (!charge->account)
                charge_take(charge, account, 0);
        assert(charge->account == account);
        charge->bytes += bytes;
        account->bytes += bytes;
}

static inline void charge_refund(struct charge *charge);

/* Refunds a part of it, at most all; an empty receipt is no receipt. */
static inline void charge_shrink(struct charge *charge, uint64_t bytes)
{
        assert(bytes <= charge->bytes);
        if (bytes == charge->bytes) {
                charge_refund(charge);
                return;
        }
        charge->bytes -= bytes;
        charge->account->bytes -= bytes;
}

/* Idempotent. */
static inline void charge_refund(struct charge *charge)
{
        struct account *account = charge->account;

        if (!account)
                return;
        assert(account->bytes >= charge->bytes && account->charges > 0);
        account->bytes -= charge->bytes;
        account->charges--;
        charge->account = NULL;
        charge->bytes = 0;
}

#endif
