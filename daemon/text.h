/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people read them. */
#ifndef GPUMEMD_TEXT_H
#define GPUMEMD_TEXT_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#define TEXT_BYTES_MAX 32

/* "512 MiB", "1.5 GiB", "17 B": exact where it is, else to a tenth. */
static inline void text_bytes(char text[static TEXT_BYTES_MAX], uint64_t bytes)
{
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
        unsigned unit = 0;
        uint64_t whole = bytes, tenths = 0;

        while (whole >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
                tenths = whole % 1024 * 10 / 1024;
                whole /= 1024;
                unit++;
        }
        if (tenths > 0)
                snprintf(text, TEXT_BYTES_MAX, "%" PRIu64 ".%" PRIu64 " %s", whole, tenths,
                         units[unit]);
        else
                snprintf(text, TEXT_BYTES_MAX, "%" PRIu64 " %s", whole, units[unit]);
}

#endif
