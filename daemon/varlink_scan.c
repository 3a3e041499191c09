/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at a message before it is parsed. The parser makes an object of up to a kilobyte from two
 * bytes ("{}"), so a message within its size limit could still cost hundreds of megabytes. Counting
 * needs no parser: outside of strings, every value but the first follows an opening bracket or a
 * comma.
 */
#include "daemon/varlink_internal.h"

#include <errno.h>

int varlink_scan(const char *text, size_t length, unsigned int depth, unsigned int values)
{
        unsigned int nesting = 0, count = 1;
        bool in_string = false;

        for (size_t i = 0; i < length; i++) {
                char c = text[i];

                if (in_string) {
                        if (c == '\\')
                                i++; /* whatever is escaped, it does not end the string */
                        else if (c == '"')
                                in_string = false;
                        continue;
                }
                switch (c) {
                case '"':
                        in_string = true;
                        break;
                case '{':
                case '[':
                        if (++nesting > depth || ++count > values)
                                return -E2BIG;
                        break;
                case '}':
                case ']':
                        if (nesting > 0)
                                nesting--;
                        break;
                case ',':
                        if (++count > values)
                                return -E2BIG;
                        break;
                default:
                        break;
                }
        }
        return 0;
}
