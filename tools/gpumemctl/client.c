/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gpumemctl/client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tools/gpumemctl/text.h"

enum {
        REPLY_DEPTH_MAX = 32,
        CONNECT_PAUSE_MS = 20,
        PATH_SHOWN_MAX = 256,
};

struct ctl_client {
        int fd;
        uint64_t deadline_ms, timeout_ms;
        char path[PATH_SHOWN_MAX]; /* for messages */
        char *input;               /* bytes of the reply, and whatever follows it */
        size_t input_bytes, input_capacity;
};

static uint64_t now_ms(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* --- sentences --- */

static enum ctl_outcome fail_connect(const struct ctl_client *client, const char *path, int code,
                                     struct ctl_error *error)
{
        const char *advice;
        struct stat status;

        /* connect() says of these what it says of a socket that nobody listens on, or may not. */
        if ((code == ECONNREFUSED || code == EACCES) && stat(path, &status) == 0 &&
            !S_ISSOCK(status.st_mode))
                return ctl_fail(error, CTL_UNREACHABLE,
                                "cannot reach gpumemd at %s: that is %s, not a socket. Say the "
                                "admin socket's path with --socket or GPUMEM_ADMIN_SOCKET.",
                                client->path,
                                S_ISDIR(status.st_mode)   ? "a directory"
                                : S_ISREG(status.st_mode) ? "a file"
                                                          : "something else");
        switch (code) {
        case ENOENT:
        case ENOTDIR:
                advice =
                        "there is no such socket. Is gpumemd running? If it listens elsewhere, say "
                        "--socket PATH or set GPUMEM_ADMIN_SOCKET.";
                break;
        case ECONNREFUSED:
                advice = "nobody listens there. Start gpumemd.";
                break;
        case EACCES:
        case EPERM:
                advice =
                        "permission denied. Be root, the user who runs gpumemd, or a member of the "
                        "group gpumem-admin (if it has the socket: see gpumemd(8)).";
                break;
        case EPROTOTYPE:
                advice = "that is a socket of another kind. The admin socket is wanted, not the "
                         "clients' one.";
                break;
        default:
                return ctl_fail(error, CTL_UNREACHABLE, "cannot reach gpumemd at %s: %s.",
                                client->path, strerror(code));
        }
        return ctl_fail(error, CTL_UNREACHABLE, "cannot reach gpumemd at %s: %s", client->path,
                        advice);
}

static enum ctl_outcome fail_timeout(const struct ctl_client *client, struct ctl_error *error)
{
        return ctl_fail(error, CTL_UNREACHABLE,
                        "gpumemd at %s did not answer within %llu.%03llu s. It may be stopped or "
                        "very busy; --timeout SECONDS waits longer.",
                        client->path, (unsigned long long)client->timeout_ms / 1000,
                        (unsigned long long)client->timeout_ms % 1000);
}

static enum ctl_outcome fail_closed(const struct ctl_client *client, struct ctl_error *error)
{
        return ctl_fail(error, CTL_UNREACHABLE,
                        "gpumemd at %s closed the connection without an answer. It may have been "
                        "stopped, or too many admin connections are open; try again.",
                        client->path);
}

static enum ctl_outcome fail_nonsense(const struct ctl_client *client, const char *what,
                                      struct ctl_error *error)
{
        return ctl_fail(error, CTL_UNREACHABLE, "what answers at %s is not gpumemd: %s.",
                        client->path, what);
}

/* A member of the error's parameters, fit to print; or "?". */
static const char *member(json_object *parameters, const char *key, char *out, size_t capacity)
{
        json_object *value = json_object_object_get(parameters, key);

        if (value == NULL)
                return "?";
        return ctl_printable(out, capacity, json_object_get_string(value));
}

static enum ctl_outcome fail_refused(const char *method, const char *name, json_object *parameters,
                                     struct ctl_error *error)
{
        char value[256], shown[256];

        if (strcmp(name, "org.varlink.service.MethodNotFound") == 0 ||
            strcmp(name, "org.varlink.service.MethodNotImplemented") == 0 ||
            strcmp(name, "org.varlink.service.InterfaceNotFound") == 0)
                return ctl_fail(error, CTL_REFUSED,
                                "the daemon does not know %s. It is probably older than this "
                                "gpumemctl; restart it after an upgrade.",
                                method);
        if (strcmp(name, "org.varlink.service.InvalidParameter") == 0)
                return ctl_fail(error, CTL_REFUSED,
                                "the daemon does not accept the parameter \"%s\" of %s.",
                                member(parameters, "parameter", value, sizeof(value)), method);
        if (strcmp(name, "io.gpumemd.DeviceNotFound") == 0)
                return ctl_fail(error, CTL_REFUSED,
                                "the daemon has no device \"%s\". gpumemctl status lists them.",
                                member(parameters, "device", value, sizeof(value)));
        if (strcmp(name, "io.gpumemd.InternalError") == 0)
                return ctl_fail(error, CTL_REFUSED,
                                "the daemon could not answer: %s. Its log may say more.",
                                member(parameters, "message", value, sizeof(value)));
        ctl_printable(shown, sizeof(shown), name);
        ctl_printable(value, sizeof(value),
                      parameters != NULL ? json_object_to_json_string(parameters) : "");
        return ctl_fail(error, CTL_REFUSED, "the daemon refused %s: %s %s", method, shown, value);
}

/* --- the connection --- */

/* Wait for @events. CTL_OK or CTL_UNREACHABLE. */
static enum ctl_outcome wait_for(const struct ctl_client *client, short events,
                                 struct ctl_error *error)
{
        for (;;) {
                struct pollfd watched = {client->fd, events, 0};
                uint64_t now = now_ms();
                int n;

                if (now >= client->deadline_ms)
                        return fail_timeout(client, error);
                n = poll(&watched, 1, (int)(client->deadline_ms - now));
                if (n > 0)
                        return CTL_OK;
                if (n < 0 && errno != EINTR)
                        return ctl_fail(error, CTL_UNREACHABLE, "cannot wait for gpumemd: %s.",
                                        strerror(errno));
        }
}

static struct ctl_client *client_alloc(const char *path, uint64_t timeout_ms)
{
        struct ctl_client *client = calloc(1, sizeof(*client));

        if (client == NULL)
                return NULL;
        client->fd = -1;
        client->timeout_ms = timeout_ms;
        client->deadline_ms = now_ms() + timeout_ms;
        ctl_printable(client->path, sizeof(client->path), path);
        return client;
}

enum ctl_outcome ctl_client_new_consume_fd(struct ctl_client **out, int fd, const char *path,
                                           uint64_t timeout_ms, struct ctl_error *error)
{
        struct ctl_client *client = client_alloc(path, timeout_ms);
        int flags = fcntl(fd, F_GETFL);

        if (client == NULL || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
                close(fd);
                ctl_client_free(client);
                return ctl_fail(error, CTL_UNREACHABLE, "cannot use the connection: %s.",
                                strerror(client == NULL ? ENOMEM : errno));
        }
        client->fd = fd;
        *out = client;
        return CTL_OK;
}

enum ctl_outcome ctl_client_new(struct ctl_client **out, const char *path, uint64_t timeout_ms,
                                struct ctl_error *error)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct ctl_client *client = NULL;
        enum ctl_outcome outcome;

        if (path[0] == '\0' || strlen(path) >= sizeof(address.sun_path))
                return ctl_fail(error, CTL_USAGE,
                                "the path of the socket must have 1 to %zu bytes.",
                                sizeof(address.sun_path) - 1);
        memcpy(address.sun_path, path, strlen(path) + 1);
        client = client_alloc(path, timeout_ms);
        if (client == NULL)
                return ctl_fail(error, CTL_UNREACHABLE, "out of memory.");
        client->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (client->fd < 0) {
                outcome = ctl_fail(error, CTL_UNREACHABLE, "cannot make a socket: %s.",
                                   strerror(errno));
                goto fail;
        }
        while (connect(client->fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
                const struct timespec pause = {0, CONNECT_PAUSE_MS * 1000000};

                if (errno == EINTR)
                        continue;
                if (errno != EAGAIN) {
                        outcome = fail_connect(client, path, errno, error);
                        goto fail;
                }
                /* The backlog is full, and poll does not tell when it no longer is. */
                if (now_ms() >= client->deadline_ms) {
                        outcome = fail_timeout(client, error);
                        goto fail;
                }
                nanosleep(&pause, NULL);
        }
        *out = client;
        return CTL_OK;

fail:
        ctl_client_free(client);
        return outcome;
}

struct ctl_client *ctl_client_free(struct ctl_client *client)
{
        if (client == NULL)
                return NULL;
        if (client->fd >= 0)
                close(client->fd);
        free(client->input);
        free(client);
        return NULL;
}

static enum ctl_outcome send_all(const struct ctl_client *client, const char *text, size_t length,
                                 struct ctl_error *error)
{
        size_t sent = 0;

        while (sent < length) {
                ssize_t n = send(client->fd, text + sent, length - sent, MSG_NOSIGNAL);

                if (n >= 0) {
                        sent += (size_t)n;
                } else if (errno == EAGAIN) {
                        enum ctl_outcome outcome = wait_for(client, POLLOUT, error);

                        if (outcome != CTL_OK)
                                return outcome;
                } else if (errno == EPIPE || errno == ECONNRESET) {
                        return fail_closed(client, error);
                } else if (errno != EINTR) {
                        return ctl_fail(error, CTL_UNREACHABLE,
                                        "cannot write to gpumemd at %s: %s.", client->path,
                                        strerror(errno));
                }
        }
        return CTL_OK;
}

/* Collect until there is a NUL; its position goes to *@length. */
static enum ctl_outcome receive(struct ctl_client *client, size_t *length, struct ctl_error *error)
{
        size_t scanned = 0;

        for (;;) {
                char *nul = client->input_bytes > scanned ? memchr(client->input + scanned, '\0',
                                                                   client->input_bytes - scanned)
                                                          : NULL;
                enum ctl_outcome outcome;
                ssize_t n;

                if (nul != NULL) {
                        *length = (size_t)(nul - client->input);
                        return CTL_OK;
                }
                scanned = client->input_bytes;
                if (client->input_bytes >= CTL_REPLY_BYTES_MAX)
                        return fail_nonsense(client, "the answer does not end", error);
                if (client->input_bytes == client->input_capacity) {
                        size_t capacity =
                                client->input_capacity > 0 ? 2 * client->input_capacity : 16 * 1024;
                        char *input = realloc(client->input, capacity);

                        if (input == NULL)
                                return ctl_fail(error, CTL_UNREACHABLE, "out of memory.");
                        client->input = input;
                        client->input_capacity = capacity;
                }
                outcome = wait_for(client, POLLIN, error);
                if (outcome != CTL_OK)
                        return outcome;
                n = recv(client->fd, client->input + client->input_bytes,
                         client->input_capacity - client->input_bytes, 0);
                if (n > 0)
                        client->input_bytes += (size_t)n;
                else if (n == 0 || errno == ECONNRESET)
                        return fail_closed(client, error);
                else if (errno != EINTR && errno != EAGAIN)
                        return ctl_fail(error, CTL_UNREACHABLE,
                                        "cannot read from gpumemd at %s: %s.", client->path,
                                        strerror(errno));
        }
}

/* --- calls --- */

static enum ctl_outcome send_call(struct ctl_client *client, const char *method,
                                  json_object *parameters, struct ctl_error *error)
{
        json_object *call = json_object_new_object();
        json_object *name = json_object_new_string(method);
        enum ctl_outcome outcome;
        const char *text = NULL;
        size_t length;

        if (call != NULL && name != NULL && json_object_object_add(call, "method", name) == 0) {
                name = NULL;
                if (parameters == NULL ||
                    json_object_object_add(call, "parameters", json_object_get(parameters)) == 0)
                        text = json_object_to_json_string_length(call, JSON_C_TO_STRING_PLAIN,
                                                                 &length);
        }
        outcome = text != NULL ? send_all(client, text, length + 1, error)
                               : ctl_fail(error, CTL_UNREACHABLE, "out of memory.");
        json_object_put(name);
        json_object_put(call);
        return outcome;
}

static json_object *parse(const char *text, size_t length)
{
        struct json_tokener *tokener = json_tokener_new_ex(REPLY_DEPTH_MAX);
        json_object *message;

        if (tokener == NULL)
                return NULL;
        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
        message = json_tokener_parse_ex(tokener, text, (int)length);
        if (message != NULL && (json_tokener_get_error(tokener) != json_tokener_success ||
                                json_tokener_get_parse_end(tokener) != length)) {
                json_object_put(message);
                message = NULL;
        }
        json_tokener_free(tokener);
        return message;
}

/* Judge one message: its parameters go to *@reply if it is a reply without error. */
static enum ctl_outcome read_reply(struct ctl_client *client, const char *method,
                                   json_object *message, json_object **reply,
                                   struct ctl_error *error)
{
        json_object *parameters, *name;

        if (message == NULL || !json_object_is_type(message, json_type_object))
                return fail_nonsense(client, "the answer is not a JSON object", error);
        parameters = json_object_object_get(message, "parameters");
        name = json_object_object_get(message, "error");
        if (parameters != NULL && !json_object_is_type(parameters, json_type_object))
                return fail_nonsense(client, "the answer's parameters are not an object", error);
        if (name != NULL) {
                if (!json_object_is_type(name, json_type_string))
                        return fail_nonsense(client, "the error has no name", error);
                return fail_refused(method, json_object_get_string(name), parameters, error);
        }
        if (json_object_get_boolean(json_object_object_get(message, "continues")))
                return fail_nonsense(client, "it announces more answers than were asked for",
                                     error);
        *reply = parameters != NULL ? json_object_get(parameters) : json_object_new_object();
        return *reply != NULL ? CTL_OK : ctl_fail(error, CTL_UNREACHABLE, "out of memory.");
}

enum ctl_outcome ctl_client_call(struct ctl_client *client, const char *method,
                                 json_object *parameters, json_object **reply,
                                 struct ctl_error *error)
{
        enum ctl_outcome outcome;
        json_object *message;
        size_t length = 0;

        outcome = send_call(client, method, parameters, error);
        json_object_put(parameters);
        if (outcome == CTL_OK)
                outcome = receive(client, &length, error);
        if (outcome != CTL_OK)
                return outcome;
        message = parse(client->input, length);
        client->input_bytes -= length + 1;
        memmove(client->input, client->input + length + 1, client->input_bytes);
        outcome = read_reply(client, method, message, reply, error);
        json_object_put(message);
        return outcome;
}
