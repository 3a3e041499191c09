/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gpumemctl/text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *ctl_format_bytes(char out[CTL_NUMBER_MAX], int64_t bytes)
{
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
        const char *sign = bytes < 0 ? "-" : "";
        uint64_t magnitude = bytes < 0 ? -(uint64_t)bytes : (uint64_t)bytes;
        uint64_t one = 1, whole, tenths;
        size_t unit = 0;

        while (magnitude / one >= 1024) {
                one *= 1024;
                unit++;
        }
        whole = magnitude / one;
        if (magnitude % one == 0) {
                snprintf(out, CTL_NUMBER_MAX, "%s%" PRIu64 " %s", sign, whole, units[unit]);
                return out;
        }
        /* To the nearest tenth; one is a multiple of 1024 here, so remainder * 10 may overflow only
         * above EiB / 10, where a float is exact enough. */
        tenths = (uint64_t)((double)(magnitude % one) * 10.0 / (double)one + 0.5);
        if (tenths == 10) {
                whole++;
                tenths = 0;
        }
        if (whole == 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
                whole = 1;
                unit++;
        }
        snprintf(out, CTL_NUMBER_MAX, "%s%" PRIu64 ".%" PRIu64 " %s", sign, whole, tenths,
                 units[unit]);
        return out;
}

const char *ctl_format_duration(char out[CTL_NUMBER_MAX], int64_t us)
{
        int64_t seconds = us / 1000000;

        if (us < 0)
                snprintf(out, CTL_NUMBER_MAX, "0 s");
        else if (seconds < 60)
                snprintf(out, CTL_NUMBER_MAX, "%" PRId64 ".%" PRId64 " s", seconds,
                         us / 100000 % 10);
        else if (seconds < 3600)
                snprintf(out, CTL_NUMBER_MAX, "%" PRId64 " min %" PRId64 " s", seconds / 60,
                         seconds % 60);
        else if (seconds < 86400)
                snprintf(out, CTL_NUMBER_MAX, "%" PRId64 " h %" PRId64 " min", seconds / 3600,
                         seconds / 60 % 60);
        else
                snprintf(out, CTL_NUMBER_MAX, "%" PRId64 " d %" PRId64 " h", seconds / 86400,
                         seconds / 3600 % 24);
        return out;
}

const char *ctl_format_time(char out[CTL_NUMBER_MAX], int64_t us)
{
        time_t seconds = us / 1000000;
        struct tm broken_down;

        if (localtime_r(&seconds, &broken_down) == NULL ||
            strftime(out, CTL_NUMBER_MAX, "%Y-%m-%d %H:%M:%S", &broken_down) == 0)
                snprintf(out, CTL_NUMBER_MAX, "?");
        return out;
}

/* The length of the UTF-8 sequence at @text and its code point; 0 if it is not one. */
static size_t decode(const unsigned char *text, uint32_t *code)
{
        static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
        size_t length;

        if (text[0] < 0x80) {
                *code = text[0];
                return 1;
        }
        if ((text[0] & 0xe0) == 0xc0)
                length = 2;
        else if ((text[0] & 0xf0) == 0xe0)
                length = 3;
        else if ((text[0] & 0xf8) == 0xf0)
                length = 4;
        else
                return 0;
        *code = text[0] & (0x7fu >> length);
        for (size_t i = 1; i < length; i++) {
                if ((text[i] & 0xc0) != 0x80) /* the NUL ends here, too */
                        return 0;
                *code = *code << 6 | (text[i] & 0x3f);
        }
        if (*code < smallest[length] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000))
                return 0;
        return length;
}

static bool is_harmless(uint32_t code)
{
        if (code < 0x20 || (code >= 0x7f && code < 0xa0))
                return false; /* C0, DEL, C1 */
        if (code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
            (code >= 0x2066 && code <= 0x2069))
                return false; /* line separators, direction of writing */
        return true;
}

const char *ctl_printable(char *out, size_t capacity, const char *text)
{
        const unsigned char *in = (const unsigned char *)text;
        size_t used = 0;

        if (capacity == 0)
                return out;
        while (*in != '\0') {
                uint32_t code = 0;
                size_t length = decode(in, &code);
                bool keep = length > 0 && is_harmless(code);
                size_t needed = keep ? length : 1;

                if (used + needed >= capacity)
                        break;
                if (keep)
                        memcpy(out + used, in, length);
                else
                        out[used] = '?';
                used += needed;
                in += length > 0 ? length : 1;
        }
        out[used] = '\0';
        return out;
}

size_t ctl_width(const char *text)
{
        size_t width = 0;

        for (; *text != '\0'; text++)
                width += ((unsigned char)*text & 0xc0) != 0x80;
        return width;
}
