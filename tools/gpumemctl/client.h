/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Varlink client on one connection to the daemon's admin socket, with one deadline for
 * everything.
 */
#ifndef GPUMEMCTL_CLIENT_H
#define GPUMEMCTL_CLIENT_H

#include <json-c/json.h>
#include <stdint.h>

#include "tools/gpumemctl/outcome.h"

/* No answer of the daemon comes near it; what does, does not come from gpumemd. */
#define CTL_REPLY_BYTES_MAX (32 * 1024 * 1024)

struct ctl_client;

/*
 * Connect to @path; all calls together have @timeout_ms from now. CTL_OK, or CTL_UNREACHABLE with a
 * sentence that names the path and what to do, or CTL_USAGE if no socket can have that path.
 */
enum ctl_outcome ctl_client_new(struct ctl_client **out, const char *path, uint64_t timeout_ms,
                                struct ctl_error *error);

/* The same on a connected stream socket, which it takes. For tests. */
enum ctl_outcome ctl_client_new_consume_fd(struct ctl_client **out, int fd, const char *path,
                                           uint64_t timeout_ms, struct ctl_error *error);

struct ctl_client *ctl_client_free(struct ctl_client *client);

/*
 * Call @method (full name) with @parameters (taken in any case; NULL: none). The reply's parameters
 * go to *@reply, an object the caller puts. CTL_OK; CTL_REFUSED if the daemon answered with an
 * error; CTL_UNREACHABLE if it did not answer in time or not sensibly (the connection is then of no
 * use).
 */
enum ctl_outcome ctl_client_call(struct ctl_client *client, const char *method,
                                 json_object *parameters, json_object **reply,
                                 struct ctl_error *error);

#endif
