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

static inline bool buffer_covers(const struct gpumem_buffer *buffer, uint64_t address,
                                 uint64_t bytes)
{
        return address >= buffer->space.base &&
               address - buffer->space.base <= buffer->space.bytes &&
               bytes <= buffer->space.bytes - (address - buffer->space.base);
}

#endif
