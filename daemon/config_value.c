/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/config_value.h"

int config_parse_count(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *out)
{
        char *end;
        unsigned long long value;

        if (text[0] < '0' || text[0] > '9')
                return -EINVAL;
        errno = 0;
        value = strtoull(text, &end, 10);
        if (errno || *end)
                return -EINVAL;
        if (value < minimum || value > maximum)
                return -ERANGE;
        *out = value;
        return 0;
}

int config_parse_bytes(const char *text, uint64_t *out)
{
        static const char suffixes[] = "KMGT";
        unsigned shift = 0;
        unsigned long long value;
        const char *suffix;
        char *end;

        if (text[0] < '0' || text[0] > '9')
                return -EINVAL;
        errno = 0;
        value = strtoull(text, &end, 10);
        if (errno)
                return -ERANGE;
        while (*end == ' ')
                end++;
        if (*end) {
                suffix = strchr(suffixes, *end & ~0x20);
                if (suffix) {
                        shift = 10 * (unsigned)(suffix - suffixes + 1);
                        end++;
                        /* "MB" may mean powers of 1000: nobody shall have to guess. */
                        if (*end == 'i') {
                                end++;
                                if (*end == 'B')
                                        end++;
                        }
                }
                if (*end)
                        return -EINVAL;
        }
        if (value > UINT64_MAX >> shift)
                return -ERANGE;
        *out = (uint64_t)value << shift;
        return 0;
}

int config_parse_bool(const char *text, bool *out)
{
        if (strcmp(text, "yes") == 0)
                *out = true;
        else if (strcmp(text, "no") == 0)
                *out = false;
        else
                return -EINVAL;
        return 0;
}

int config_parse_fraction(const char *text, double *out)
{
        char *end;
        double value;

        /* No "inf", "nan" or hexadecimal. */
        if (strspn(text, "0123456789.") != strlen(text) || !*text)
                return -EINVAL;
        errno = 0;
        value = strtod(text, &end);
        if (errno || *end || !(value > 0.0) || value > 1.0)
                return -EINVAL;
        *out = value;
        return 0;
}

int config_parse_path(const char *text, char *out, size_t size)
{
        if (text[0] != '/' || strlen(text) >= size)
                return -EINVAL;
        memcpy(out, text, strlen(text) + 1);
        return 0;
}

int config_parse_mode(const char *text, uint32_t *out)
{
        char *end;
        unsigned long value = strtoul(text, &end, 8);

        if (text[0] < '0' || text[0] > '7' || *end)
                return -EINVAL;
        if (value != 0700 && value != 0770 && value != 0777)
                return -ERANGE;
        *out = (uint32_t)value;
        return 0;
}

int config_parse_name(const char *text, char *out, size_t size)
{
        size_t length = strlen(text);

        if (length == 0 || length >= size || text[0] == '-')
                return -EINVAL;
        for (size_t i = 0; i < length; i++)
                if (!isalnum((unsigned char)text[i]) && !strchr("_-.$", text[i]))
                        return -EINVAL;
        memcpy(out, text, length + 1);
        return 0;
}
