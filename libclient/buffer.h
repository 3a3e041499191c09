/* SPDX-License-Identifier: Apache-2.0 */
/* A buffer: an object of whole frames, mapped at one address from creation to the end. */
#ifndef LIBCLIENT_BUFFER_H
#define LIBCLIENT_BUFFER_H

#include "libclient/address_space.h"
#include "libclient/session.h"

struct gpumem_buffer {
        TAILQ_ENTRY(gpumem_buffer) link; /* gpumem.buffers */
        struct gpumem *session;
        uint64_t object; /* the daemon's; 0 before */
        struct address_space space;
        struct granted_list frames; /* in the order of their addresses */
        bool stuck;                 /* something could not be unmapped: nothing is given back */
};

/* Unmaps buffers that were freed while mappings could not change, if they can now. Is there one
 * left? Call without locks. */
bool buffers_leave(struct gpumem *session);

/* Frees the child's copy after a fork(), unlinked: host memory only. */
void buffer_forget(struct gpumem_buffer *buffer);

#endif
