/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int gen_fail(struct gen_error *error, int result, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        if (error)
                vsnprintf(error->text, sizeof(error->text), format, args);
        va_end(args);
        return result;
}

const char *gen_printable(char *out, size_t capacity, const void *data, size_t bytes)
{
        static const char digits[] = "0123456789abcdef";
        const unsigned char *in = data;
        size_t at = 0;

        if (!capacity)
                return out;
        for (size_t i = 0; i < bytes; i++) {
                const int plain = in[i] >= 0x20 && in[i] < 0x7f && in[i] != '\\';
                const size_t need = plain ? 1 : 4;

                /* Room is kept for the dots and the NUL. */
                if (at + need + 4 > capacity) {
                        const size_t dots = capacity - 1 - at < 3 ? capacity - 1 - at : 3;

                        memset(out + at, '.', dots);
                        at += dots;
                        break;
                }
                if (plain) {
                        out[at++] = (char)in[i];
                } else {
                        out[at++] = '\\';
                        out[at++] = 'x';
                        out[at++] = digits[in[i] >> 4];
                        out[at++] = digits[in[i] & 15];
                }
        }
        out[at] = '\0';
        return out;
}
