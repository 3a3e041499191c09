/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon has still to be told: frames that go back (RETURN) and objects that are no more
 * (DESTROY). Everything of this kind goes through here in its order, so that nothing is lost when
 * the daemon does not answer for a while: what could not be sent stays, and is sent before the next
 * request for memory, or by the session's own thread.
 *
 * The lock covers the list and is held for moments; nothing else is taken under it. Only who holds
 * the connection's turn takes anything off the list.
 */
#ifndef LIBCLIENT_OWED_H
#define LIBCLIENT_OWED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/granted.h"

struct gpumem;

struct owed {
        pthread_mutex_t lock;
        struct granted_list list;
        atomic_bool any; /* the list is not empty */
};

void owed_init(struct owed *owed);
/* Forgets what is left: the connection has ended, and with it everything of the session. */
void owed_deinit(struct owed *owed);

/* Takes the sets over, whose handles are released. */
void owed_return(struct owed *owed, uint64_t object, struct granted_list *list);
/* After what is owed of the object. */
void owed_destroy(struct owed *owed, uint64_t object);

/* Sets of an object that the daemon does not know yet to be returned. */
uint32_t owed_sets(struct owed *owed, uint64_t object);

/* Tells as much as can be told. 0: everything; GPUMEM_E_DOWN, GPUMEM_E_NO_MEMORY, GPUMEM_E_TIMEOUT
 * (what is left is told later). What the daemon refuses is not told again: its code. Call without
 * locks. */
int owed_tell(struct gpumem *session);
/* The same, with the turn held. */
int owed_send(struct gpumem *session);
/* For the session's own thread: tells it if nobody has the turn and no reply is owed. Is there
 * something left? */
bool owed_retry(struct gpumem *session);

#endif
