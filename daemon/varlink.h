/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small Varlink server (https://varlink.org): JSON objects, each ended by a NUL byte, on a stream
 * socket, dispatched on an sd-event loop. It knows nothing of GPUs; interfaces are tables of
 * methods given by its user, and org.varlink.service (GetInfo, GetInterfaceDescription) is built
 * in.
 *
 * Life of a call. A message is collected until its NUL, checked lexically (how many values, how
 * deep) before any JSON object is made of it, parsed strictly, matched to a method, its parameters
 * checked against the method's table, and handed to the method, which answers before it returns:
 * any number of varlink_call_reply_continues() if the caller said `more`, then one
 * varlink_call_reply() or varlink_call_error(). A call marked `oneway` is carried out and its
 * answer dropped.
 *
 * A peer that misbehaves costs only itself. What is not a call at all (not JSON, not an object, no
 * method, a flag that is not a boolean, too long, too deep) closes its connection; a call that is
 * wrong in itself (unknown method, unknown, missing or mistyped parameter) is answered with the
 * error org.varlink.service defines for it. A peer that does not read its answers is not read from
 * either, and is closed when nothing moved for `stall_us`; so is one that leaves a message
 * unfinished for that long. Connections have a limit, and no single user other than root may take
 * more than half of what the others leave.
 *
 * Threads: none; everything runs on the loop's thread. A method must not free the server.
 */
#ifndef GPUMEMD_VARLINK_H
#define GPUMEMD_VARLINK_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

struct varlink_server;
struct varlink_call;

/* Who is at the other end, from the kernel, fixed when the connection was accepted. */
struct varlink_peer {
        pid_t pid;
        uid_t uid;
        gid_t gid;
};

/* A parameter that a method knows. Parameters not in the table are refused, and so is one whose
 * type differs; a JSON null counts as absent. */
struct varlink_parameter {
        const char *name; /* NULL ends the table */
        json_type type;
        bool required;
};

/*
 * A method. It answers the call before it returns 0. If it cannot answer for want of memory or for
 * another reason inside the daemon, it returns a negative errno and the server answers with
 * <interface>.InternalError (code: int, message: string), which the interface has to declare.
 * @parameters is an object (empty if the caller sent none), valid during the call only.
 */
struct varlink_method {
        const char *name;                           /* without the interface; NULL ends the table */
        const struct varlink_parameter *parameters; /* NULL: takes none */
        int (*handle)(struct varlink_call *call, json_object *parameters, void *userdata);
};

/* All pointers are borrowed and live as long as the server. */
struct varlink_interface {
        const char *name;
        const char *description; /* the interface definition, word for word */
        const struct varlink_method *methods;
};

struct varlink_identity {
        const char *vendor, *product, *version, *url;
};

struct varlink_limits {
        size_t message_bytes; /* longest message that is accepted, its NUL included */
        size_t output_bytes;  /* answers waiting for one peer to read them; one that would exceed it
                                 closes the connection */
        size_t pause_bytes; /* with this much waiting, no further call of that peer is looked at */
        unsigned int connections;
        unsigned int depth;  /* nesting of objects and arrays */
        unsigned int values; /* of all kinds in one message */
        uint64_t stall_us;   /* unfinished message, or unread answer without progress */
};

extern const struct varlink_limits varlink_limits_default;

struct varlink_statistics {
        unsigned int connections;     /* open now */
        uint64_t accepted;            /* since the start */
        uint64_t refused;             /* closed at accept: table full, share used up, no memory */
        uint64_t closed_for_protocol; /* sent something that is not a call, or too large */
        uint64_t closed_for_stalling; /* did not read, or did not finish a message */
        uint64_t calls;               /* handed to a method or answered with an error */
};

/*
 * Make a server. @listen_fd is borrowed (made non-blocking, open until the server is freed); -1 for
 * a server that only has connections given to it. @interfaces ends with a member whose name is NULL
 * and is borrowed; @identity and @limits (NULL: the defaults) are copied, the strings borrowed.
 * @userdata is handed to every method. 0 or negative errno.
 */
int varlink_server_new(struct varlink_server **out, sd_event *event, int listen_fd,
                       const struct varlink_identity *identity,
                       const struct varlink_interface *interfaces,
                       const struct varlink_limits *limits, void *userdata);

/* Closes all connections. Returns NULL; NULL is fine. */
struct varlink_server *varlink_server_free(struct varlink_server *server);

/* Serve a connected stream socket. Takes @fd in any case, also on error (negative errno). */
int varlink_server_add_connection_consume_fd(struct varlink_server *server, int fd);

void varlink_server_statistics(const struct varlink_server *server, struct varlink_statistics *out);

/* Tell @notice (NULL: nobody) when a peer is refused or closed for what it did; @what is a few
 * words. It must not touch the server. @userdata is the methods' own. */
void varlink_server_on_refusal(struct varlink_server *server,
                               void (*notice)(const struct varlink_peer *peer, const char *what,
                                              void *userdata));

/* --- for methods --- */

const struct varlink_peer *varlink_call_peer(const struct varlink_call *call);

/* The caller accepts several replies. */
bool varlink_call_wants_more(const struct varlink_call *call);

/*
 * Answer. @parameters is taken in any case; NULL stands for an empty object. 0, or a negative errno
 * (-EALREADY: this call was answered; -EINVAL: continues without `more`; -ENOBUFS: the peer has too
 * much unread and is being closed; -ENOMEM). After an error there is nothing left to do but return.
 */
int varlink_call_reply(struct varlink_call *call, json_object *parameters);
int varlink_call_reply_continues(struct varlink_call *call, json_object *parameters);

/* @error is the full name, io.gpumemd.NotFound. Otherwise as varlink_call_reply(). */
int varlink_call_error(struct varlink_call *call, const char *error, json_object *parameters);

/* org.varlink.service.InvalidParameter, for what a table of types cannot say. */
int varlink_call_error_invalid_parameter(struct varlink_call *call, const char *name);

#endif
