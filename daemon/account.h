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
