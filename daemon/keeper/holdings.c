/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/keeper/holdings.h"

static const uint32_t limits[KEEPER_KIND_COUNT] = {
        [KEEPER_FRAME] = HOLDINGS_FRAMES_MAX,   [KEEPER_STATE] = HOLDINGS_STATE_MAX,
        [KEEPER_LISTEN] = HOLDINGS_LISTEN_MAX,  [KEEPER_SESSION] = HOLDINGS_SESSIONS_MAX,
        [KEEPER_PIDFD] = HOLDINGS_SESSIONS_MAX,
};

void holdings_init(struct holdings *holdings)
{
        *holdings = (struct holdings){0};
}

void holdings_deinit(struct holdings *holdings)
{
        for (uint32_t i = 0; i < holdings->count; i++)
                close(holdings->table[i].fd);
        free(holdings->table);
        free(holdings->index);
        holdings_init(holdings);
}

static uint32_t hash(uint32_t kind, uint64_t id)
{
        uint64_t x = (id ^ (uint64_t)kind << 56) * UINT64_C(0x9e3779b97f4a7c15);

        return (uint32_t)(x >> 32) ^ (uint32_t)x;
}

/* The place of an entry in the index, or the free place where it would go. */
static uint32_t place_of(const struct holdings *holdings, uint32_t kind, uint64_t id)
{
        uint32_t mask = holdings->index_size - 1, place = hash(kind, id) & mask;

        for (;; place = (place + 1) & mask) {
                const struct holding *holding;

                if (holdings->index[place] == 0)
                        return place;
                holding = &holdings->table[holdings->index[place] - 1];
                if (holding->kind == kind && holding->id == id)
                        return place;
        }
}

const struct holding *holdings_find(const struct holdings *holdings, uint32_t kind, uint64_t id)
{
        uint32_t place;

        if (holdings->count == 0)
                return NULL;
        place = place_of(holdings, kind, id);
        return holdings->index[place] ? &holdings->table[holdings->index[place] - 1] : NULL;
}

/* At least half of the index stays free, so that a search ends soon. */
static int grow(struct holdings *holdings, uint32_t wanted)
{
        uint32_t capacity = holdings->capacity ? holdings->capacity : 256, size;
        struct holding *table;
        uint32_t *index;

        if (wanted <= holdings->capacity)
                return 0;
        while (capacity < wanted)
                capacity *= 2;
        size = capacity * 2;
        index = calloc(size, sizeof(*index));
        table = index ? reallocarray(holdings->table, capacity, sizeof(*table)) : NULL;
        if (!table) {
                free(index);
                return -ENOMEM;
        }
        free(holdings->index);
        holdings->table = table;
        holdings->capacity = capacity;
        holdings->index = index;
        holdings->index_size = size;
        for (uint32_t i = 0; i < holdings->count; i++)
                index[place_of(holdings, table[i].kind, table[i].id)] = i + 1;
        return 0;
}

int holdings_reserve(struct holdings *holdings, const struct keeper_entry *entries, uint32_t count)
{
        uint32_t more[KEEPER_KIND_COUNT] = {0};

        for (uint32_t i = 0; i < count; i++) {
                uint32_t kind = entries[i].kind;

                if (kind == 0 || kind >= KEEPER_KIND_COUNT)
                        return -EINVAL;
                if (!holdings_find(holdings, kind, entries[i].id))
                        more[kind]++;
        }
        for (uint32_t kind = 1; kind < KEEPER_KIND_COUNT; kind++)
                if (more[kind] > limits[kind] - holdings->kinds[kind])
                        return -E2BIG;
        return grow(holdings, holdings->count + count);
}

void holdings_put_consume_fd(struct holdings *holdings, uint32_t kind, uint64_t id, int fd)
{
        uint32_t place = place_of(holdings, kind, id);

        if (holdings->index[place]) {
                struct holding *holding = &holdings->table[holdings->index[place] - 1];

                close(holding->fd);
                holding->fd = fd;
                return;
        }
        holdings->table[holdings->count++] = (struct holding){.id = id, .kind = kind, .fd = fd};
        holdings->index[place] = holdings->count;
        holdings->kinds[kind]++;
}

/* Closes the gap that a taken place leaves in a chain of collisions (linear probing). */
static void close_gap(struct holdings *holdings, uint32_t gap)
{
        uint32_t mask = holdings->index_size - 1, place = gap;

        for (;;) {
                const struct holding *holding;
                uint32_t home;

                holdings->index[gap] = 0;
                do {
                        place = (place + 1) & mask;
                        if (holdings->index[place] == 0)
                                return;
                        holding = &holdings->table[holdings->index[place] - 1];
                        home = hash(holding->kind, holding->id) & mask;
                        /* It may move up unless its home lies after the gap. */
                } while (((place - home) & mask) < ((place - gap) & mask));
                holdings->index[gap] = holdings->index[place];
                gap = place;
        }
}

void holdings_drop(struct holdings *holdings, uint32_t kind, uint64_t id)
{
        uint32_t place, position, last;

        if (holdings->count == 0)
                return;
        place = place_of(holdings, kind, id);
        if (holdings->index[place] == 0)
                return;
        position = holdings->index[place] - 1;
        close(holdings->table[position].fd);
        holdings->kinds[kind]--;
        close_gap(holdings, place);
        last = --holdings->count;
        if (position != last) {
                /* The last one moves into its row. (Its place is found before it moves.) */
                place = place_of(holdings, holdings->table[last].kind, holdings->table[last].id);
                holdings->table[position] = holdings->table[last];
                holdings->index[place] = position + 1;
        }
}
