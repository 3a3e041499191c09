/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's last error, in words. Every failing public call ends in client_error(), so
 * that a code never travels without a sentence that names the thing and what to do about it.
 */
#ifndef LIBCLIENT_ERROR_H
#define LIBCLIENT_ERROR_H

#include <gpumem/gpumem.h>

#include "libclient/driver/driver.h"

/* Keeps the sentence; the value is `error` (a negative enum gpumem_error). A macro, so that who
 * reads the call, man or analyser, sees which value it has. */
#define client_error(error, ...) (client_message_set(__VA_ARGS__), (error))
void client_message_set(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The sentence across calls that may fail themselves while they undo. */
struct client_message {
        char text[1024];
};
struct client_message client_message_keep(void);
int client_message_restore(int error, const struct client_message *kept);

/* Puts "context: " before the sentence that is there; the value is `error`. */
#define client_error_prefix(error, ...) (client_message_prefix(__VA_ARGS__), (error))
void client_message_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A failed driver call: GPUMEM_E_DEVICE, with the driver's name of the result and its own words. */
#define client_error_driver(driver, result, call)                                                  \
        (client_message_driver((driver), (result), (call)), GPUMEM_E_DEVICE)
void client_message_driver(const struct driver *driver, CUresult result, const char *call);

#endif
