/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the keeper holds: descriptors by kind and id, in a table that is dense (so that it can be
 * read by a cursor) with an index of hashes beside it. Each kind has its limit.
 */
#ifndef GPUMEMD_KEEPER_HOLDINGS_H
#define GPUMEMD_KEEPER_HOLDINGS_H

#include <stdint.h>

#include "daemon/keeper/protocol.h"

#define HOLDINGS_FRAMES_MAX   (UINT32_C(1) << 20)
#define HOLDINGS_SESSIONS_MAX UINT32_C(65536)
#define HOLDINGS_LISTEN_MAX   8
#define HOLDINGS_STATE_MAX    1

struct holding {
        uint64_t id;
        uint32_t kind;
        int fd;
};

struct holdings {
        struct holding *table; /* [count] */
        uint32_t count, capacity;
        uint32_t *index; /* [index_size], a power of two: position + 1, 0 where free */
        uint32_t index_size;
        uint32_t kinds[KEEPER_KIND_COUNT]; /* how many of each */
};

void holdings_init(struct holdings *holdings);
/* Closes everything. Idempotent. */
void holdings_deinit(struct holdings *holdings);

/* Would `count` entries fit? 0, -EINVAL (a kind that does not exist), -E2BIG, -ENOMEM. After 0 that
 * many puts succeed. */
int holdings_reserve(struct holdings *holdings, const struct keeper_entry *entries, uint32_t count);

/* Takes the descriptor; what was there is closed. After holdings_reserve(). */
void holdings_put_consume_fd(struct holdings *holdings, uint32_t kind, uint64_t id, int fd);

/* Closes it, if it is there. */
void holdings_drop(struct holdings *holdings, uint32_t kind, uint64_t id);

/* NULL if there is none. Valid until the next put or drop. */
const struct holding *holdings_find(const struct holdings *holdings, uint32_t kind, uint64_t id);

#endif
