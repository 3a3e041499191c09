/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks have ranks: a thread that holds one takes only locks of a higher rank, so no two threads
 * can wait for each other. Which locks there are and what each covers is said where they live
 * (libclient/session.h, daemon/locks.h), by an enum of their ranks; this is what holds the program
 * to it.
 *
 * Where GPUMEM_LOCK_CHECK is defined (builds with sanitizers) every lock is taken through the
 * checker: taking one out of order, or twice, letting one go that is not held, sleeping on a
 * condition or waiting for the other side of a connection with a lock held: each is said on
 * standard error, with both locks, and ends the process. Elsewhere these are the pthread functions
 * and nothing else.
 */
#ifndef GPUMEM_LIBCLIENT_WIRE_LOCK_ORDER_H
#define GPUMEM_LIBCLIENT_WIRE_LOCK_ORDER_H

#include <pthread.h>
#include <time.h>

#ifdef GPUMEM_LOCK_CHECK

/* Most locks that a thread holds at once; more is an error. */
#define LOCK_ORDER_DEPTH 8

void lock_order_take(const void *lock, unsigned rank, const char *what);
void lock_order_release(const void *lock, const char *what);
/* It sleeps on a condition: this lock and no other is held. */
void lock_order_sleep(const void *lock, const char *what);
/* It waits for another process: no lock is held. */
void lock_order_none(const char *what);

#define LOCK_ORDER_STRING_(x) #x
#define LOCK_ORDER_STRING(x)  LOCK_ORDER_STRING_(x)
#define LOCK_ORDER_WHERE(x)   x " at " __FILE__ ":" LOCK_ORDER_STRING(__LINE__)

#define lock_take(mutex, rank)                                                                     \
        (lock_order_take((mutex), (rank), LOCK_ORDER_WHERE(#mutex)), pthread_mutex_lock(mutex))
#define lock_release(mutex)                                                                        \
        (lock_order_release((mutex), LOCK_ORDER_WHERE(#mutex)), pthread_mutex_unlock(mutex))
#define lock_wait(condition, mutex)                                                                \
        (lock_order_sleep((mutex), LOCK_ORDER_WHERE(#condition)),                                  \
         pthread_cond_wait((condition), (mutex)))
#define lock_wait_until(condition, mutex, deadline)                                                \
        (lock_order_sleep((mutex), LOCK_ORDER_WHERE(#condition)),                                  \
         pthread_cond_timedwait((condition), (mutex), (deadline)))
#define lock_none_held(what) lock_order_none(LOCK_ORDER_WHERE(what))

#else

#define lock_take(mutex, rank)      ((void)(rank), pthread_mutex_lock(mutex))
#define lock_release(mutex)         pthread_mutex_unlock(mutex)
#define lock_wait(condition, mutex) pthread_cond_wait((condition), (mutex))
#define lock_wait_until(condition, mutex, deadline)                                                \
        pthread_cond_timedwait((condition), (mutex), (deadline))
#define lock_none_held(what) ((void)0)

#endif

#endif
