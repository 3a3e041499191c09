/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libclient/error.h"

/* A daemon's text, and some words of ours before it. */
#define MESSAGE_SIZE sizeof(((struct client_message *)0)->text)

static _Thread_local char message[MESSAGE_SIZE];

struct client_message client_message_keep(void)
{
        struct client_message kept;

        memcpy(kept.text, message, sizeof(kept.text));
        return kept;
}

int client_message_restore(int error, const struct client_message *kept)
{
        memcpy(message, kept->text, sizeof(message));
        return error;
}

void client_message_set(const char *format, ...)
{
        /* Formatted aside: the arguments may point into the message itself. */
        char text[MESSAGE_SIZE];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        memcpy(message, text, sizeof(message));
}

void client_message_prefix(const char *format, ...)
{
        char text[MESSAGE_SIZE];
        va_list arguments;
        size_t used;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        used = strlen(text);
        if (used + 2 < sizeof(text)) {
                memcpy(text + used, ": ", 2);
                used += 2;
                /* What does not fit is cut off. */
                memcpy(text + used, message, sizeof(text) - used);
                text[sizeof(text) - 1] = '\0';
        }
        memcpy(message, text, sizeof(message));
}

void client_message_driver(const struct driver *driver, CUresult result, const char *call)
{
        const char *detail = driver->error_detail ? driver->error_detail() : "";

        client_message_set("%s failed: %s%s%s", call, driver_error_name(driver, result),
                           *detail ? ": " : "", detail);
}

GPUMEM_API const char *gpumem_error_message(void)
{
        return message;
}

GPUMEM_API const char *gpumem_error_name(int error)
{
        switch (error) {
        case GPUMEM_OK:
                return "GPUMEM_OK";
        case GPUMEM_E_INVALID:
                return "GPUMEM_E_INVALID";
        case GPUMEM_E_AGAIN:
                return "GPUMEM_E_AGAIN";
        case GPUMEM_E_NO_MEMORY:
                return "GPUMEM_E_NO_MEMORY";
        case GPUMEM_E_DOWN:
                return "GPUMEM_E_DOWN";
        case GPUMEM_E_UNSUPPORTED:
                return "GPUMEM_E_UNSUPPORTED";
        case GPUMEM_E_TIMEOUT:
                return "GPUMEM_E_TIMEOUT";
        case GPUMEM_E_PROTOCOL:
                return "GPUMEM_E_PROTOCOL";
        case GPUMEM_E_NOT_FOUND:
                return "GPUMEM_E_NOT_FOUND";
        case GPUMEM_E_BUSY:
                return "GPUMEM_E_BUSY";
        case GPUMEM_E_LIMIT:
                return "GPUMEM_E_LIMIT";
        case GPUMEM_E_PERMISSION:
                return "GPUMEM_E_PERMISSION";
        case GPUMEM_E_DEVICE:
                return "GPUMEM_E_DEVICE";
        case GPUMEM_E_MISMATCH:
                return "GPUMEM_E_MISMATCH";
        case GPUMEM_E_FORKED:
                return "GPUMEM_E_FORKED";
        case GPUMEM_E_STATE:
                return "GPUMEM_E_STATE";
        default:
                return "unknown";
        }
}

GPUMEM_API const char *gpumem_version(void)
{
        return GPUMEM_VERSION;
}
