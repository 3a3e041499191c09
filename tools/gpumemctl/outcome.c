/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gpumemctl/outcome.h"

#include <stdarg.h>
#include <stdio.h>

enum ctl_outcome ctl_fail(struct ctl_error *error, enum ctl_outcome outcome, const char *format,
                          ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(error->text, sizeof(error->text), format, arguments);
        va_end(arguments);
        return outcome;
}
