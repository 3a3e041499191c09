/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admin interface: io.gpumemd (include/gpumem/io.gpumemd.varlink) served on admin.sock. All
 * methods read; none changes anything. Who may connect is decided by the socket's owner and mode.
 */
#ifndef GPUMEMD_ADMIN_H
#define GPUMEMD_ADMIN_H

struct admin;
struct daemon;

/*
 * Serve @daemon's state on @listen_fd (borrowed: the caller keeps it open until admin_free() and
 * closes it), on the daemon's event loop. 0 or negative errno.
 */
int admin_new(struct admin **out, struct daemon *daemon, int listen_fd);

/* Closes all admin connections. Returns NULL; NULL is fine. Before daemon and loop are freed. */
struct admin *admin_free(struct admin *admin);

/* The interface definition, NUL-terminated: the text of io.gpumemd.varlink. */
extern const char admin_interface_text[];

#endif
