/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins: "these pages are in use until this stream reaches this point".
 *
 * A pin begins when a batch is handed out, is ended by the caller (an event is recorded on its
 * stream), and is over when the event has happened. Pins are numbered as they begin, from 1, and
 * the table knows the oldest that is not over: whatever was freed while pins up to number n had
 * begun may be used again once `oldest` is above n. That is also why a unit needs no pin count of
 * its own: a page that a pin may reach is used or retiring, and a unit with neither has no pin.
 *
 *   begun  --pin_end()-->  ended  --its event happened, seen by pin_poll()-->  over
 *
 * If its event cannot be recorded (a stream that is gone, for one) nobody knows where in which
 * stream the pin's work ends: it is adrift, and over when all work that was submitted to the
 * context by then has been waited for. Only an error that the context never recovers from means
 * that nothing runs any more.
 *
 * The pool's lock covers the table; the session's context must be current in every call. The
 * session-wide count is atomic: it answers "does this session hold a pin" without a lock.
 */
#ifndef LIBCLIENT_PIN_H
#define LIBCLIENT_PIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/driver/driver.h"

/* Pins between the oldest that is not over and the newest; a power of two. */
#define PIN_WINDOW 1024

enum pin_state {
        PIN_OVER = 0,
        PIN_BEGUN,     /* no event yet: whoever holds it may still submit work */
        PIN_ENDED,     /* its event is recorded */
        PIN_ADRIFT,    /* ended without an event: the context is waited for */
        PIN_ABANDONED, /* nothing runs under it any more */
};

struct pin {
        CUevent event;
        enum pin_state state;
        uint64_t drift; /* adrift: its number among such */
        void *payload;
};

struct context_wait;

struct pin_table {
        const struct driver *driver;
        CUcontext context;
        atomic_uint *session_pins;
        void (*over)(void *payload); /* called once for each pin that is over, pool lock held */
        struct pin *ring;            /* [PIN_WINDOW], number n at n % PIN_WINDOW */
        uint64_t oldest;             /* number of the oldest pin that is not over, or next */
        uint64_t next;               /* number of the pin that begins next */
        uint32_t begun;              /* pins in state PIN_BEGUN */
        CUevent *spare;              /* [PIN_WINDOW] events for use again */
        uint32_t spare_count;
        struct context_wait *wait;                       /* for pins that are adrift, or NULL */
        uint64_t drift_newest, drift_waited, drift_over; /* which were, are waited for, are over */
        CUresult lost; /* the context's sticky error, once it was seen; CUDA_SUCCESS before */
};

/* 0 or GPUMEM_E_NO_MEMORY. */
int pin_table_init(struct pin_table *table, const struct driver *driver, CUcontext context,
                   atomic_uint *session_pins, void (*over)(void *payload));
/* Destroys the events. Every pin must be over. */
void pin_table_deinit(struct pin_table *table);

/* GPUMEM_E_AGAIN: PIN_WINDOW pins are not over. GPUMEM_E_DEVICE. On failure the payload stays the
 * caller's. */
int pin_begin(struct pin_table *table, void *payload, uint64_t *number);

/* The pin is over when `stream` gets here. If the event cannot be recorded it is over when all of
 * the context's work of now is; does not wait for that. GPUMEM_E_INVALID: the stream is none of the
 * context's; GPUMEM_E_DEVICE. */
int pin_end(struct pin_table *table, uint64_t number, CUstream stream);

/* A pin under which nothing was submitted is over at once. */
void pin_drop(struct pin_table *table, uint64_t number);

/* Pins that have begun and that nobody will end, after all streams were waited for. */
void pin_abandon(struct pin_table *table);

/* Finds out what is over, oldest first. O(pins that became over). */
void pin_poll(struct pin_table *table);

/* Has what was submitted under this pin, which was ended, been done, whatever older pins do? 0; 1:
 * not yet; GPUMEM_E_DEVICE: it failed, or the context is lost. */
int pin_query(struct pin_table *table, uint64_t number);

/* Pins not known to be over. */
static inline uint64_t pin_outstanding(const struct pin_table *table)
{
        return table->next - table->oldest;
}

/* What a page freed now has to wait for: 0 (nothing), or the number of the newest pin. */
static inline uint64_t pin_stamp(const struct pin_table *table)
{
        return table->oldest == table->next ? 0 : table->next - 1;
}

#endif
