/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one connection to the daemon, one device, one process.
 *
 * Locks, in the order in which they may be taken; a thread that holds one takes only those below
 * (enum client_lock; builds with sanitizers check it, see wire/lock_order.h):
 *
 *   1. gpumem.lock             the lists of pools and buffers; short, never across a driver call
 *   2. gpumem_kv.lock          a pool: its pages, sequences, pins and units. Driver calls that do
 *                              not wait (map, record, query) happen under it. Two pools' locks are
 *                              never held together.
 *   3. gpumem.gate             only where mappings may not change beside kernels: held while a
 *                              mapping changes, and while a pin begins
 *   4. client_connection.lock  the turn and the queue for it; never held across a system call
 *   5. owed.lock               what the daemon has still to be told
 *
 * None of them is held while the daemon is waited for; what is held then is the turn of the
 * connection, which is no lock: it is passed on after one round trip.
 */
#ifndef LIBCLIENT_SESSION_H
#define LIBCLIENT_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>

#include <gpumem/gpumem.h>

#include "kernels/kernels.h"
#include "libclient/connection.h"
#include "libclient/driver/driver.h"
#include "libclient/granted.h"
#include "libclient/grower.h"
#include "libclient/owed.h"

struct gpumem_buffer;
struct gpumem_kv;

TAILQ_HEAD(kv_list, gpumem_kv);
TAILQ_HEAD(buffer_list, gpumem_buffer);

struct gpumem {
        pid_t pid; /* of the process it is valid in */
        struct driver *driver;
        CUdevice device;
        CUcontext context; /* the primary one, retained; NULL before */
        struct client_connection connection;
        bool connected; /* connection was initialised */
        struct gpumem_message_hello_reply hello;
        uint32_t timeout_ms;
        uint32_t cpu_threads;

        atomic_uint pins;         /* pins of all pools that are not known to be over */
        atomic_uint own_pins;     /* of which so many are the library's own, and soon over */
        atomic_uint device_state; /* as EVENT_DEVICE has it: 0, 1 degraded, 2 lost */
        pthread_mutex_t gate;

        pthread_mutex_t lock;    /* covers what follows */
        pthread_cond_t released; /* nobody walks on a pool any more */
        struct kv_list pools;
        struct kv_list stranded; /* left at disconnect: a stream would not end */
        struct buffer_list buffers;
        struct buffer_list leaving;  /* freed, but mappings could not change yet */
        struct kernel_pool *kernels; /* made when first needed */

        struct owed owed; /* has a lock of its own */
        struct grower grower;
        bool growing; /* the thread was started */
};

/* Is the handle good in this process? 0, GPUMEM_E_INVALID (NULL), GPUMEM_E_FORKED. */
int session_check(const struct gpumem *session);

/* May mappings change only while no pin is held? */
static inline bool session_is_gated(const struct gpumem *session)
{
        return session->hello.device_flags & GPUMEM_DEVICE_NO_EDIT_BESIDE_KERNELS;
}

/* The pool after `kv` (NULL: the first) that is not closing; `kv` is let go and the next held, so
 * that it stays until then. session_leave_pool() instead ends a walk early. */
struct gpumem_kv *session_next_pool(struct gpumem *session, struct gpumem_kv *kv);
void session_leave_pool(struct gpumem_kv *kv);

/* Learns of every pool which pins are over; the caller's pins that are left. Call without locks.
 */
unsigned session_poll(struct gpumem *session);

/* The caller's pins that are not known to be over. */
unsigned session_pins(struct gpumem *session);

/* Where mappings may not change beside kernels: keeps pins from beginning, once none is held.
 * Waits for that until the deadline (0: not at all). GPUMEM_E_AGAIN: pins are held, and the gate
 * is open. Call without locks; to be opened by session_gate_open(). Elsewhere both do nothing. */
int session_gate_close(struct gpumem *session, uint64_t deadline_ns);
void session_gate_open(struct gpumem *session);

/* A deadline for waits within the process: timeout_ms from now. */
static inline uint64_t session_deadline_ns(const struct gpumem *session)
{
        return wire_deadline_ns(session->timeout_ms);
}

enum session_range {
        SESSION_RANGE_OUTSIDE, /* touches nothing of the session */
        SESSION_RANGE_WITHIN,  /* one buffer, or mapped units of one pool, covers it */
        SESSION_RANGE_ACROSS,  /* touches one, and goes beyond it, or where nothing is mapped */
};

/* How [address, address+bytes), bytes > 0, lies to the session's memory. No driver call; takes
 * gpumem.lock, and where it touches a pool that pool's. */
enum session_range session_range(struct gpumem *session, uint64_t address, uint64_t bytes);

/* The threads that run CPU kernels. GPUMEM_E_NO_MEMORY. */
int session_kernels(struct gpumem *session, struct kernel_pool **out);

/* OBJECT_CREATE and OBJECT_DESTROY. The latter is owed if the daemon cannot be told now. */
int session_object_create(struct gpumem *session, enum gpumem_object_kind kind,
                          uint32_t unit_frames, uint64_t frames_max, const char *name,
                          uint64_t *object);
void session_object_destroy(struct gpumem *session, uint64_t object);

/* Copies a name for people into a field of GPUMEM_NAME_MAX bytes: GPUMEM_E_INVALID if it is too
 * long or not plain text. NULL: "". */
int session_copy_name(char *field, const char *name);

#endif
