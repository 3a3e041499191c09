/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/wire/lock_order.h"

#ifdef GPUMEM_LOCK_CHECK

#include <stdio.h>
#include <stdlib.h>

struct held {
        const void *lock;
        unsigned rank;
        const char *what;
};

/* In the order in which they were taken, so ranks grow. */
static _Thread_local struct held held[LOCK_ORDER_DEPTH];
static _Thread_local unsigned depth;

static _Noreturn void broken(const char *how, const char *what, const struct held *other)
{
        fprintf(stderr, "lock order: %s: %s", how, what);
        if (other)
                fprintf(stderr, ", holding %s", other->what);
        fputc('\n', stderr);
        abort();
}

void lock_order_take(const void *lock, unsigned rank, const char *what)
{
        for (unsigned i = 0; i < depth; i++)
                if (held[i].lock == lock)
                        broken("taken twice", what, &held[i]);
        /* Equal ranks, too: two pools' locks are never held together. */
        if (depth > 0 && held[depth - 1].rank >= rank)
                broken("taken out of order", what, &held[depth - 1]);
        if (depth == LOCK_ORDER_DEPTH)
                broken("too many", what, &held[depth - 1]);
        held[depth++] = (struct held){.lock = lock, .rank = rank, .what = what};
}

void lock_order_release(const void *lock, const char *what)
{
        unsigned i = depth;

        while (i > 0 && held[i - 1].lock != lock)
                i--;
        if (i == 0)
                broken("released but not held", what, NULL);
        for (; i < depth; i++)
                held[i - 1] = held[i];
        depth--;
}

void lock_order_sleep(const void *lock, const char *what)
{
        if (depth == 0)
                broken("sleeping without the lock", what, NULL);
        for (unsigned i = 0; i < depth; i++)
                if (held[i].lock != lock)
                        broken("sleeping", what, &held[i]);
}

void lock_order_none(const char *what)
{
        if (depth > 0)
                broken("waiting for another process", what, &held[depth - 1]);
}

#endif
