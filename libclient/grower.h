/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session's own thread. It fetches units ahead of need, gives back what is idle, and reads
 * events when nobody else reads the connection. It never maps anything (that happens where the
 * engine allows it: batch_begin, seq_append, safe_point), and unmaps only units that no page and no
 * pin holds.
 *
 * Per pool, while it is in use: empty units plus ready ones are kept at reserve_units; when the
 * daemon has none to give, the next attempt waits a while. Units beyond the reserve that were empty
 * for all of the last idle_trim_ms are given back; all empty ones, the reserve included, when the
 * pool had no batch for that long, and then sparse units are evacuated and given back as well. On a
 * reclaim event empty units go at once, then sparse ones, and the reserve is not fetched again for
 * a second. What is still wanting then, because batches hold the sparse units' pages, is moved as
 * the next batches begin. What the daemon could not be told (owed.h) is told as soon as it answers.
 */
#ifndef LIBCLIENT_GROWER_H
#define LIBCLIENT_GROWER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct gpumem;

struct grower {
        struct gpumem *session;
        pthread_t thread;
        int wake_fd; /* eventfd */
        atomic_bool stop;
        atomic_bool woken; /* wake_fd was written and not read since */
        bool running;
        atomic_ullong wanted_bytes; /* asked back and not given yet */
        atomic_ullong wanted_until_ns;
};

void grower_init(struct grower *grower);
/* GPUMEM_E_NO_MEMORY: no thread or descriptor. */
int grower_start(struct grower *grower, struct gpumem *session);
/* Joins the thread; what it was doing with the daemon is bounded by the session's timeout. */
void grower_stop(struct grower *grower);
void grower_deinit(struct grower *grower);

/* There may be something to do. Any thread, no system call if it was woken already. */
void grower_wake(struct grower *grower);

/* gpumem_safe_point(): maps what is ready, then serves a reclaim that was asked for. */
int grower_safe_point(struct gpumem *session);

/* Gives back up to `bytes` (0: all) of what is idle in the session's pools, `except` left alone,
 * and fetches no reserves for a while. `evacuate`: sparse units, too, which takes some copying.
 * Returns what went. Call without locks. */
struct gpumem_kv;
uint64_t grower_reclaim(struct gpumem *session, const struct gpumem_kv *except, uint64_t bytes,
                        bool evacuate);

/* A batch of this pool is about to begin. If memory is wanted and nothing of the pool is in use
 * now, empties a few of its sparse units; the session's thread gives them back. Call without
 * locks, with the context current. */
void grower_batch_boundary(struct gpumem_kv *kv);

#endif
