/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's last error, in words. Every failing public call ends in client_error(), so
 * that a code never travels without a sentence that names the thing and what to do about it.
 */
#ifndef LIBCLIENT_ERROR_H
#define LIBCLIENT_ERROR_H

#include <gpumem/gpumem.h>

#include "libclient/driver/driver.h"

/* Keeps the sentence and returns `error` (a negative enum gpumem_error). */
int client_error(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The sentence across calls that may fail themselves while they undo. */
struct client_message {
        char text[1024];
};
struct client_message client_message_keep(void);
int client_message_restore(int error, const struct client_message *kept);

/* Puts "context: " before the sentence that is there, and returns `error`. */
int client_error_prefix(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A failed driver call: GPUMEM_E_DEVICE, with the driver's name of the result and its own words. */
int client_error_driver(const struct driver *driver, CUresult result, const char *call);

#endif
