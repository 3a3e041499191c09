/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "libclient/address_space.h"
#include "libclient/error.h"

int address_space_init(struct address_space *space, const struct driver *driver, CUdevice device,
                       uint64_t bytes, uint64_t frame_bytes)
{
        CUresult result;

        memset(space, 0, sizeof(*space));
        space->driver = driver;
        space->device = device;
        space->frame_bytes = frame_bytes;
        result = driver->mem_address_reserve(&space->base, bytes, 0, 0, 0);
        if (result != CUDA_SUCCESS) {
                space->base = 0;
                client_message_driver(driver, result, "cuMemAddressReserve");
                return client_error_prefix(GPUMEM_E_DEVICE, "reserving %" PRIu64 " bytes", bytes);
        }
        space->bytes = bytes;
        return 0;
}

void address_space_deinit(struct address_space *space)
{
        if (space->base != 0)
                space->driver->mem_address_free(space->base, space->bytes);
        space->base = 0;
}

int address_space_unmap(struct address_space *space, uint64_t offset, uint32_t count)
{
        int r = 0;

        /* One call a frame: the driver only promises to take back what one map call mapped. */
        for (uint32_t i = 0; i < count; i++) {
                CUresult result = space->driver->mem_unmap(
                        space->base + offset + i * space->frame_bytes, space->frame_bytes);

                if (result != CUDA_SUCCESS)
                        r = client_error_driver(space->driver, result, "cuMemUnmap");
        }
        return r;
}

int address_space_map(struct address_space *space, uint64_t offset, const struct granted *frames,
                      bool *stuck)
{
        const CUmemAccessDesc access = {
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = space->device},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        const char *call = "cuMemMap";
        CUresult result = CUDA_SUCCESS;
        uint32_t mapped;

        *stuck = false;
        for (mapped = 0; mapped < frames->count; mapped++) {
                result = space->driver->mem_map(space->base + offset + mapped * space->frame_bytes,
                                                space->frame_bytes, 0,
                                                frames->frames[mapped].handle, 0);
                if (result != CUDA_SUCCESS)
                        break;
        }
        if (result == CUDA_SUCCESS) {
                call = "cuMemSetAccess";
                result = space->driver->mem_set_access(
                        space->base + offset, frames->count * space->frame_bytes, &access, 1);
        }
        if (result == CUDA_SUCCESS)
                return 0;
        *stuck = address_space_unmap(space, offset, mapped) < 0;
        return client_error_driver(space->driver, result, call);
}
