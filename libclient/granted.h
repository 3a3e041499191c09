/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that the daemon has granted to this process and that are imported: physical memory without
 * an address. Whoever holds a struct granted maps it (address_space.h), and in the end unmaps it
 * and gives it back. Giving back is: release the handles, then RETURN; the frame ids are the
 * daemon's. What it cannot be told now is owed (owed.h).
 */
#ifndef LIBCLIENT_GRANTED_H
#define LIBCLIENT_GRANTED_H

#include <stdint.h>
#include <sys/queue.h>

#include <gpumem/protocol.h>

#include "libclient/connection.h"
#include "libclient/driver/driver.h"

struct gpumem;

struct granted_frame {
        uint64_t id;
        CUmemGenericAllocationHandle handle;
};

struct granted {
        STAILQ_ENTRY(granted) link;
        uint64_t object; /* while it is owed */
        uint32_t count;  /* owed, and 0: the object is to be destroyed */
        struct granted_frame frames[];
};

STAILQ_HEAD(granted_list, granted);

/*
 * Asks for `sets` times `frames` frames of an object (together at most GPUMEM_MESSAGE_FDS_MAX) and
 * appends them to the list as that many sets: all, or none. Waits until `deadline_ns` for memory
 * that others hold (0: does not wait), in slices, so that the session's other requests get their
 * turns, and not while the session holds a pin.
 *
 * GPUMEM_E_AGAIN: memory is short, the message has the daemon's words. Otherwise the daemon's code,
 * GPUMEM_E_DOWN, GPUMEM_E_TIMEOUT (the daemon does not answer), GPUMEM_E_DEVICE (import failed; the
 * frames went back), GPUMEM_E_NO_MEMORY. Call without locks.
 */
int granted_request(struct gpumem *session, uint64_t object, uint32_t sets, uint32_t frames,
                    uint64_t deadline_ns, struct granted_list *list);

/* Releases the handles of every set and gives the frames back; frees and empties the list. A set
 * whose handle cannot be released is kept from the daemon (it may still be in use) and lost to this
 * session: GPUMEM_E_DEVICE. GPUMEM_E_DOWN. GPUMEM_E_TIMEOUT: the daemon will be told later. Call
 * without locks. */
int granted_return(struct gpumem *session, uint64_t object, struct granted_list *list);

/* The first half: releases the handles. Sets whose handles cannot be released are freed and counted
 * in *lost; the others stay in the list. 0 or GPUMEM_E_DEVICE. */
int granted_release(struct gpumem *session, struct granted_list *list, uint32_t *lost);

/* The second half: RETURN for sets whose handles are released; empties the list. As
 * granted_return(); *untold: so many of them the daemon does not know to be returned yet. Call
 * without locks. */
int granted_tell(struct gpumem *session, uint64_t object, struct granted_list *list,
                 uint32_t *untold);

/* Frees the sets, nothing else. */
void granted_list_free(struct granted_list *list);

/* connection.late: owes what a late reply has granted or made. */
void granted_late(void *userdata, union connection_message *reply, struct wire_fds *fds);

#endif
