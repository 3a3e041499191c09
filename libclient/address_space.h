/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reserved addresses and what is mapped there. The session's context must be current.
 *
 * Mapping is exact: it maps every frame, or none. Should even taking back what was mapped fail,
 * the outcome says so (`stuck`): then the addresses cannot be used again, and the frames must not
 * be given back, for they may still be mapped.
 */
#ifndef LIBCLIENT_ADDRESS_SPACE_H
#define LIBCLIENT_ADDRESS_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/driver/driver.h"
#include "libclient/granted.h"

struct address_space {
        const struct driver *driver;
        CUdevice device;
        uint64_t frame_bytes;
        CUdeviceptr base; /* 0: nothing reserved */
        uint64_t bytes;
};

/* GPUMEM_E_DEVICE. On failure nothing is reserved and deinit does nothing. */
int address_space_init(struct address_space *space, const struct driver *driver, CUdevice device,
                       uint64_t bytes, uint64_t frame_bytes);
/* Nothing may be mapped in it. Idempotent. */
void address_space_deinit(struct address_space *space);

/* Maps the frames one after the other from base + offset, readable and writable once all are there
 * (one cuMemSetAccess). GPUMEM_E_DEVICE. */
int address_space_map(struct address_space *space, uint64_t offset, const struct granted *frames,
                      bool *stuck);

/* Unmaps `count` frames from base + offset. GPUMEM_E_DEVICE: some may still be mapped. */
int address_space_unmap(struct address_space *space, uint64_t offset, uint32_t count);

#endif
