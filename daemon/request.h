/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: what each message of protocol.h does. Everything in a message is checked here or in
 * wire_check() before it is used.
 */
#ifndef GPUMEMD_REQUEST_H
#define GPUMEMD_REQUEST_H

#include <stddef.h>

#include "daemon/session.h"

/* Handles one packet as it arrived; it may end with the session closed. `buffer` is 8-byte aligned.
 */
void request_handle(struct session *session, const void *buffer, size_t length, size_t fds_count);

#endif
