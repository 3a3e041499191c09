/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpumemctl and the admin socket of a real daemon: what is shown is what is there, the answers are
 * those of the interface definition, a foreign Varlink client understands them, and nothing that
 * arrives on the socket disturbs anybody.
 */
#include "tests/support/daemon_process.h"
#include "tests/support/varlink_definition.h"

#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <gpumem/protocol.h>
#include <json-c/json.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/wire/wire.h"

enum { WAIT_MS = 10000 };

static uint64_t now_ms(void)
{
        return wire_now_ns() / 1000000;
}

static void pause_ms(unsigned int ms)
{
        const struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};

        nanosleep(&pause, NULL);
}

/* --- running gpumemctl --- */

struct result {
        int status;
        char *output; /* both streams, NUL-terminated */
};

/* Runs a program (found by PATH) with its output collected; `argv` ends with NULL. At most 20 s. */
static struct result run_program(const char *path, char *const argv[])
{
        struct result result = {-1, NULL};
        size_t length = 0, capacity = 1 << 20;
        uint64_t end = now_ms() + 20000;
        int pipe_fds[2], status;
        pid_t pid;

        result.output = calloc(1, capacity);
        CU_ASSERT_PTR_NOT_NULL_FATAL(result.output);
        CU_ASSERT_EQUAL_FATAL(pipe2(pipe_fds, O_CLOEXEC), 0);
        pid = fork();
        CU_ASSERT_FATAL(pid >= 0);
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                dup2(pipe_fds[1], 1);
                dup2(pipe_fds[1], 2);
                execvp(path, argv);
                _exit(127);
        }
        close(pipe_fds[1]);
        for (;;) {
                struct pollfd watched = {pipe_fds[0], POLLIN, 0};
                uint64_t now = now_ms();
                ssize_t n;

                if (now >= end || poll(&watched, 1, (int)(end - now)) == 0) {
                        kill(pid, SIGKILL);
                        CU_FAIL("a program did not end");
                        break;
                }
                n = read(pipe_fds[0], result.output + length, capacity - 1 - length);
                if (n <= 0)
                        break;
                length += (size_t)n;
        }
        close(pipe_fds[0]);
        CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
        result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        return result;
}

static struct result ctl(const struct daemon_process *daemon, const char *word, ...)
{
        char path[4096];
        char *argv[16] = {path, (char *)(uintptr_t) "--socket",
                          (char *)(uintptr_t)daemon_process_admin_socket(daemon)};
        int argc = 3;
        va_list words;

        CU_ASSERT_EQUAL_FATAL(daemon_process_product("gpumemctl", path, sizeof(path)), 0);
        va_start(words, word);
        for (; word != NULL; word = va_arg(words, const char *))
                argv[argc++] = (char *)(uintptr_t)word;
        va_end(words);
        return run_program(path, argv);
}

static bool has(const char *text, const char *part)
{
        if (strstr(text, part) != NULL)
                return true;
        fprintf(stderr, "\nno \"%s\" in \"%s\"\n", part, text);
        return false;
}

/* A command with --json, parsed; the caller puts it. */
static json_object *ctl_json(const struct daemon_process *daemon, const char *word,
                             const char *second)
{
        struct result result = ctl(daemon, "--json", word, second, NULL);
        json_object *json = json_tokener_parse(result.output);

        CU_ASSERT_EQUAL(result.status, 0);
        if (json == NULL)
                fprintf(stderr, "\nnot JSON: %s\n", result.output);
        CU_ASSERT_PTR_NOT_NULL_FATAL(json);
        free(result.output);
        return json;
}

static json_object *member(json_object *object, const char *key)
{
        json_object *value = json_object_object_get(object, key);

        CU_ASSERT_PTR_NOT_NULL_FATAL(value);
        return value;
}

static int64_t number(json_object *object, const char *key)
{
        return json_object_get_int64(member(object, key));
}

static json_object *first(json_object *object, const char *key)
{
        json_object *list = member(object, key);

        CU_ASSERT_FATAL(json_object_array_length(list) > 0);
        return json_object_array_get_idx(list, 0);
}

static void expect_sound(struct daemon_process *daemon)
{
        struct result result = ctl(daemon, "debug", "check", NULL);

        CU_ASSERT(daemon_process_alive(daemon));
        CU_ASSERT_EQUAL(result.status, 0);
        CU_ASSERT(has(result.output, "ok: everything adds up\n"));
        free(result.output);
}

static struct daemon_process *start(const struct daemon_options *options)
{
        struct daemon_process *daemon = NULL;

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&daemon, options), 0);
        return daemon;
}

static void stop(struct daemon_process *daemon)
{
        expect_sound(daemon);
        CU_ASSERT_EQUAL(daemon_process_stop(daemon), 0);
        daemon_process_free(daemon);
}

/* --- a client of the daemon, by the wire --- */

struct client {
        int fd;
        uint32_t serial;
        uint64_t session;
        uint64_t frame_bytes;
};

/* One request and its reply into `reply`, descriptors closed. Returns the reply's type. */
static uint16_t request(struct client *client, void *message, size_t length, uint16_t type,
                        void *reply, size_t size)
{
        struct gpumem_message_header *header = reply;
        struct wire_fds fds;
        size_t got;

        wire_fds_init(&fds);
        wire_header_init(message, type, (uint32_t)length, 0, ++client->serial);
        CU_ASSERT_EQUAL_FATAL(wire_send(client->fd, message, length, 0), 0);
        do {
                CU_ASSERT_EQUAL_FATAL(wire_receive_until(client->fd, reply, size, &fds, &got,
                                                         wire_deadline_ns(WAIT_MS)),
                                      0);
                wire_fds_deinit(&fds);
        } while (header->serial == 0); /* an event */
        return header->type;
}

static int connect_to(const char *path, int type)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        CU_ASSERT_FATAL(fd >= 0);
        CU_ASSERT_EQUAL_FATAL(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        return fd;
}

static void parse_uuid(const char *text, uint8_t uuid[16])
{
        size_t digits = 0;

        if (strncmp(text, "GPU-", 4) == 0)
                text += 4;
        memset(uuid, 0, 16);
        for (; *text != '\0' && digits < 32; text++) {
                unsigned int value;
                char digit[2] = {*text, '\0'};

                if (*text == '-')
                        continue;
                CU_ASSERT_EQUAL_FATAL(sscanf(digit, "%x", &value), 1);
                uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | value);
                digits++;
        }
        CU_ASSERT_EQUAL_FATAL(digits, 32);
}

static void client_open(struct client *client, struct daemon_process *daemon, const char *name)
{
        json_object *status = ctl_json(daemon, "status", NULL);
        json_object *device = first(status, "devices");
        struct gpumem_message_hello hello = {
                .magic = GPUMEM_PROTOCOL_MAGIC,
                .version_min = GPUMEM_PROTOCOL_VERSION_MIN,
                .version_max = GPUMEM_PROTOCOL_VERSION_MAX,
                .driver_kind = GPUMEM_DRIVER_SIMULATED,
                .granularity = (uint64_t)number(device, "frame_bytes"),
        };
        struct gpumem_message_hello_reply reply;
        union {
                struct gpumem_message_header header;
                uint64_t words[GPUMEM_MESSAGE_MAX / 8];
        } *buffer = malloc(sizeof(*buffer));

        *client = (struct client){
                .fd = connect_to(daemon_process_client_socket(daemon), SOCK_SEQPACKET)};
        parse_uuid(json_object_get_string(member(device, "uuid")), hello.device_uuid);
        snprintf(hello.name, sizeof(hello.name), "%s", name);
        CU_ASSERT_EQUAL_FATAL(request(client, &hello, sizeof(hello), GPUMEM_MESSAGE_HELLO, buffer,
                                      sizeof(*buffer)),
                              GPUMEM_MESSAGE_HELLO_REPLY);
        memcpy(&reply, buffer, sizeof(reply));
        client->session = reply.session;
        client->frame_bytes = reply.frame_bytes;
        free(buffer);
        json_object_put(status);
}

static uint64_t client_object(struct client *client, uint32_t kind, uint64_t frames_max,
                              const char *name)
{
        struct gpumem_message_object_create create = {
                .kind = kind, .unit_frames = 1, .frames_max = frames_max};
        union {
                struct gpumem_message_object_create_reply reply;
                uint64_t words[GPUMEM_MESSAGE_MAX / 8];
        } *buffer = malloc(sizeof(*buffer));
        uint64_t object;

        snprintf(create.name, sizeof(create.name), "%s", name);
        CU_ASSERT_EQUAL_FATAL(request(client, &create, sizeof(create), GPUMEM_MESSAGE_OBJECT_CREATE,
                                      buffer, sizeof(*buffer)),
                              GPUMEM_MESSAGE_OBJECT_CREATE_REPLY);
        object = buffer->reply.object;
        free(buffer);
        return object;
}

static void client_grant(struct client *client, uint64_t object, uint32_t frames)
{
        struct gpumem_message_grant grant = {.object = object, .frames = frames};
        union {
                struct gpumem_message_header header;
                uint64_t words[GPUMEM_MESSAGE_MAX / 8];
        } *buffer = malloc(sizeof(*buffer));

        CU_ASSERT_EQUAL_FATAL(request(client, &grant, sizeof(grant), GPUMEM_MESSAGE_GRANT, buffer,
                                      sizeof(*buffer)),
                              GPUMEM_MESSAGE_GRANT_REPLY);
        free(buffer);
}

/* --- tests --- */

static void test_idle(void)
{
        struct daemon_options options = {.memory_bytes = UINT64_C(64) << 20};
        struct daemon_process *daemon = start(&options);
        json_object *json, *device;
        struct result result;

        json = ctl_json(daemon, "status", NULL);
        device = first(json, "devices");
        CU_ASSERT_EQUAL(number(json, "sessions"), 0);
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(json, "driver")), "simulated");
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(device, "state")), "ok");
        CU_ASSERT(number(device, "managed_bytes") > 0);
        CU_ASSERT(number(device, "managed_bytes") <= INT64_C(64) << 20);
        CU_ASSERT_EQUAL(number(device, "total_bytes"), INT64_C(64) << 20);
        json_object_put(json);

        result = ctl(daemon, "status", NULL);
        CU_ASSERT_EQUAL(result.status, 0);
        CU_ASSERT(has(result.output, "driver simulated"));
        CU_ASSERT(has(result.output, "  ok "));
        CU_ASSERT(has(result.output, " 64 MiB "));
        free(result.output);
        result = ctl(daemon, "ps", NULL);
        CU_ASSERT_EQUAL(result.status, 0);
        CU_ASSERT_STRING_EQUAL(result.output, "no sessions\n");
        free(result.output);
        result = ctl(daemon, "tenants", NULL);
        CU_ASSERT_EQUAL(result.status, 0);
        free(result.output);
        result = ctl(daemon, "meminfo", NULL);
        CU_ASSERT_EQUAL(result.status, 0);
        CU_ASSERT(has(result.output, "no tenant holds memory"));
        free(result.output);
        result = ctl(daemon, "meminfo", "--device", "GPU-none", NULL);
        CU_ASSERT_EQUAL(result.status, 1);
        CU_ASSERT(has(result.output, "no device \"GPU-none\""));
        free(result.output);
        stop(daemon);
}

/* C64: what is shown is what is there, before and after. */
static void test_sessions(void)
{
        struct daemon_process *daemon = start(NULL);
        json_object *json, *session, *object, *device, *tenant;
        struct client engine, other;
        uint64_t buffer, pool, end;
        struct result result;
        char expected[256];

        client_open(&engine, daemon, "engine \xc3\xa9");
        client_open(&other, daemon, "other");
        buffer = client_object(&engine, GPUMEM_OBJECT_BUFFER, 4, "weights");
        pool = client_object(&engine, GPUMEM_OBJECT_KV_POOL, 8, "");
        client_grant(&engine, buffer, 3);
        client_grant(&engine, pool, 2);

        json = ctl_json(daemon, "ps", NULL);
        CU_ASSERT_EQUAL(json_object_array_length(member(json, "sessions")), 2);
        session = first(json, "sessions");
        CU_ASSERT_EQUAL(number(session, "session"), (int64_t)engine.session);
        CU_ASSERT_EQUAL(number(session, "pid"), getpid());
        CU_ASSERT_EQUAL(number(session, "uid"), getuid());
        CU_ASSERT_EQUAL(number(session, "frames"), 5);
        CU_ASSERT_EQUAL(number(session, "bytes"), (int64_t)(5 * engine.frame_bytes));
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(session, "engine")),
                               "engine \xc3\xa9");
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(session, "comm")), "test_gpumemctl");
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(session, "state")), "connected");
        CU_ASSERT_EQUAL(json_object_array_length(member(session, "objects")), 2);
        object = first(session, "objects");
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(object, "name")), "weights");
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(object, "kind")), "buffer");
        CU_ASSERT_EQUAL(number(object, "frames"), 3);
        CU_ASSERT_EQUAL(number(object, "frames_max"), 4);
        CU_ASSERT_EQUAL(number(object, "bytes"), (int64_t)(3 * engine.frame_bytes));
        json_object_put(json);

        result = ctl(daemon, "ps", "--objects", NULL);
        CU_ASSERT_EQUAL(result.status, 0);
        CU_ASSERT(has(result.output, "engine \xc3\xa9"));
        CU_ASSERT(has(result.output, "kv_pool"));
        CU_ASSERT(has(result.output, "weights"));
        free(result.output);

        json = ctl_json(daemon, "meminfo", NULL);
        device = first(json, "devices");
        CU_ASSERT_EQUAL(number(member(device, "frames"), "granted"), 5);
        CU_ASSERT_EQUAL(number(member(device, "bytes"), "granted"),
                        (int64_t)(5 * engine.frame_bytes));
        CU_ASSERT_EQUAL(number(device, "fresh_low_frames"), 4);
        CU_ASSERT_EQUAL(number(device, "fresh_high_frames"), 8);
        tenant = first(device, "tenants");
        snprintf(expected, sizeof(expected), "uid-%u", getuid());
        CU_ASSERT_STRING_EQUAL(json_object_get_string(member(tenant, "tenant")), expected);
        CU_ASSERT_EQUAL(number(tenant, "charged_bytes"), (int64_t)(5 * engine.frame_bytes));
        json_object_put(json);
        expect_sound(daemon);

        /* A closed connection of a process that lives: draining, and still charged. */
        close(engine.fd);
        end = now_ms() + WAIT_MS;
        for (bool draining = false; !draining;) {
                json = ctl_json(daemon, "ps", NULL);
                draining = strcmp(json_object_get_string(member(first(json, "sessions"), "state")),
                                  "draining") == 0;
                if (draining) {
                        CU_ASSERT_EQUAL(number(first(json, "sessions"), "frames"), 5);
                        CU_ASSERT_EQUAL(number(first(json, "sessions"), "session"),
                                        (int64_t)engine.session);
                }
                json_object_put(json);
                CU_ASSERT_FATAL(now_ms() < end);
        }
        json = ctl_json(daemon, "meminfo", NULL);
        device = first(json, "devices");
        CU_ASSERT_EQUAL(number(member(device, "frames"), "granted"), 0);
        CU_ASSERT_EQUAL(number(member(device, "frames"), "draining"), 5);
        tenant = first(device, "tenants");
        CU_ASSERT_EQUAL(number(tenant, "charged_bytes"), (int64_t)(5 * engine.frame_bytes));
        CU_ASSERT_EQUAL(number(tenant, "draining_bytes"), (int64_t)(5 * engine.frame_bytes));
        json_object_put(json);
        close(other.fd);
        stop(daemon);
}

/* More than one reply holds: the tool asks on, and shows each session once, in order. */
static void test_many_objects(void)
{
        enum { SESSIONS = 9, OBJECTS = 256 };
        struct daemon_process *daemon = start(NULL);
        struct client clients[SESSIONS];
        json_object *json, *reply, *list;
        char *text;

        for (int i = 0; i < SESSIONS; i++) {
                client_open(&clients[i], daemon, "many");
                for (int k = 0; k < OBJECTS; k++)
                        client_object(&clients[i], GPUMEM_OBJECT_BUFFER, 1, "object");
        }
        CU_ASSERT_EQUAL_FATAL(daemon_process_call(daemon, "io.gpumemd.ListSessions", NULL, &text),
                              0);
        reply = json_tokener_parse(text);
        free(text);
        CU_ASSERT_PTR_NOT_NULL_FATAL(reply);
        list = member(member(reply, "parameters"), "sessions");
        CU_ASSERT_EQUAL(json_object_array_length(list), 8);
        CU_ASSERT_EQUAL(number(member(reply, "parameters"), "next"), (int64_t)clients[7].session);
        json_object_put(reply);

        json = ctl_json(daemon, "ps", NULL);
        list = member(json, "sessions");
        CU_ASSERT_EQUAL_FATAL(json_object_array_length(list), SESSIONS);
        for (int i = 0; i < SESSIONS; i++) {
                json_object *session = json_object_array_get_idx(list, (size_t)i);

                CU_ASSERT_EQUAL(number(session, "session"), (int64_t)clients[i].session);
                CU_ASSERT_EQUAL(json_object_array_length(member(session, "objects")), OBJECTS);
                close(clients[i].fd);
        }
        json_object_put(json);
        stop(daemon);
}

/* Every reply is what the interface declares, and the daemon tells that interface. */
static void test_definition(void)
{
        static const struct {
                const char *method, *parameters, *error;
        } calls[] = {
                {"GetStatus", NULL, NULL},
                {"ListSessions", NULL, NULL},
                {"ListSessions", "{\"after\":0}", NULL},
                {"ListSessions", "{\"after\":9223372036854775807}", NULL},
                {"GetMemInfo", NULL, NULL},
                {"ListTenants", NULL, NULL},
                {"GetMemInfo", "{\"device\":\"none\"}", "DeviceNotFound"},
                {"DebugCheck", NULL, NULL},
        };
        struct daemon_process *daemon = start(NULL);
        struct client client;
        json_object *reply;
        char *text, *definition, why[256] = "", method[64];
        uint64_t object;
        int silent;

        CU_ASSERT_EQUAL_FATAL(daemon_process_call(daemon,
                                                  "org.varlink.service.GetInterfaceDescription",
                                                  "{\"interface\":\"io.gpumemd\"}", &text),
                              0);
        reply = json_tokener_parse(text);
        free(text);
        definition =
                strdup(json_object_get_string(member(member(reply, "parameters"), "description")));
        json_object_put(reply);
        CU_ASSERT(has(definition, "interface io.gpumemd\n"));

        client_open(&client, daemon, "engine");
        object = client_object(&client, GPUMEM_OBJECT_KV_POOL, 8, "pool");
        client_grant(&client, object, 2);
        silent = connect_to(daemon_process_client_socket(daemon), SOCK_SEQPACKET);
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
                json_object *error;
                int r;

                snprintf(method, sizeof(method), "io.gpumemd.%s", calls[i].method);
                CU_ASSERT_EQUAL_FATAL(
                        daemon_process_call(daemon, method, calls[i].parameters, &text), 0);
                reply = json_tokener_parse(text);
                CU_ASSERT_PTR_NOT_NULL_FATAL(reply);
                error = json_object_object_get(reply, "error");
                CU_ASSERT_EQUAL(error != NULL, calls[i].error != NULL);
                r = varlink_definition_check(definition,
                                             calls[i].error ? VARLINK_ERROR : VARLINK_OUTPUT,
                                             calls[i].error ? calls[i].error : calls[i].method,
                                             member(reply, "parameters"), why, sizeof(why));
                if (r != 0)
                        fprintf(stderr, "\n%s: %s: %s\n", calls[i].method, why, text);
                CU_ASSERT_EQUAL(r, 0);
                json_object_put(reply);
                free(text);
        }
        CU_ASSERT_EQUAL_FATAL(
                daemon_process_call(daemon, "io.gpumemd.ListSessions", "{\"after\":-1}", &text), 0);
        CU_ASSERT(has(text, "org.varlink.service.InvalidParameter"));
        free(text);
        close(silent);
        close(client.fd);
        free(definition);
        stop(daemon);
}

/* Raw bytes on the admin socket: whatever they are, a client's session and the tool go on. */
static void test_hostile(void)
{
        static const char *const texts[] = {
                "GET / HTTP/1.1\r\n\r\n",
                "{\"method\":\"io.gpumemd.GetStatus\"",
                "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
                "{\"method\":\"io.gpumemd.GetStatus\",\"parameters\":{\"x\":1}}",
                "{\"method\":\"io.gpumemd.ListSessions\",\"parameters\":{\"after\":{}}}",
                "{\"method\":\"io.gpumemd.GetMemInfo\",\"parameters\":{\"device\":\"\\u0000\"}}",
                "{\"method\":\"io.gpumemd.DebugCheck\",\"oneway\":true}",
                "\xff\xfe\xfd",
        };
        struct daemon_process *daemon = start(NULL);
        const char *path = daemon_process_admin_socket(daemon);
        static char block[65536];
        struct client client;
        uint64_t object;
        int fds[100];

        client_open(&client, daemon, "bystander");
        object = client_object(&client, GPUMEM_OBJECT_BUFFER, 4, "");
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
                for (int with_nul = 0; with_nul < 2; with_nul++) {
                        int fd = connect_to(path, SOCK_STREAM);

                        send(fd, texts[i], strlen(texts[i]) + (size_t)with_nul, MSG_NOSIGNAL);
                        pause_ms(10);
                        close(fd);
                }
        }
        /* Four megabytes without an end: cut off, not stored. */
        memset(block, 'z', sizeof(block));
        fds[0] = connect_to(path, SOCK_STREAM);
        for (int i = 0; i < 64; i++) {
                if (send(fds[0], block, sizeof(block), MSG_NOSIGNAL) < 0)
                        break;
        }
        CU_ASSERT(send(fds[0], block, sizeof(block), MSG_NOSIGNAL) < 0);
        close(fds[0]);
        expect_sound(daemon);
        client_grant(&client, object, 1);

        /* More connections than it takes, each with half a call. */
        for (int i = 0; i < 100; i++) {
                fds[i] = connect_to(path, SOCK_STREAM);
                send(fds[i], "{\"meth", 6, MSG_NOSIGNAL);
        }
        client_grant(&client, object, 1);
        for (int i = 0; i < 100; i++)
                close(fds[i]);
        pause_ms(50);
        expect_sound(daemon);

        /* Somebody who asks and never reads. */
        fds[0] = connect_to(path, SOCK_STREAM);
        fcntl(fds[0], F_SETFL, O_NONBLOCK);
        for (int i = 0; i < 20000; i++) {
                static const char call[] = "{\"method\":\"io.gpumemd.GetMemInfo\"}";

                if (send(fds[0], call, sizeof(call), MSG_NOSIGNAL) < 0)
                        break;
        }
        client_grant(&client, object, 1);
        expect_sound(daemon);
        close(fds[0]);
        close(client.fd);
        stop(daemon);
}

static void test_daemon_stopped(void)
{
        struct daemon_process *daemon = start(NULL);
        uint64_t start_ms;
        struct result result;
        struct stat info;

        CU_ASSERT_EQUAL(stat(daemon_process_admin_socket(daemon), &info), 0);
        CU_ASSERT_EQUAL(info.st_mode & 07, 0); /* nothing for others */

        CU_ASSERT_EQUAL(kill(daemon_process_pid(daemon), SIGSTOP), 0);
        start_ms = now_ms();
        result = ctl(daemon, "--timeout", "0.3", "status", NULL);
        CU_ASSERT_EQUAL(kill(daemon_process_pid(daemon), SIGCONT), 0);
        CU_ASSERT_EQUAL(result.status, 3);
        CU_ASSERT(now_ms() - start_ms >= 300);
        CU_ASSERT(has(result.output, "did not answer within 0.300 s"));
        free(result.output);
        expect_sound(daemon);

        CU_ASSERT_EQUAL(daemon_process_stop(daemon), 0);
        result = ctl(daemon, "status", NULL);
        CU_ASSERT_EQUAL(result.status, 3);
        CU_ASSERT(has(result.output, "cannot reach gpumemd at "));
        free(result.output);
        daemon_process_free(daemon);
}

/* A client not written by us: the Varlink project's own for Python, where it is installed. */
static void test_foreign_client(void)
{
        static const char script[] =
                "import sys, varlink\n"
                "with varlink.Client('unix:' + sys.argv[1]) as client:\n"
                "    print(sorted(client.get_interfaces()))\n"
                "    with client.open('io.gpumemd') as service:\n"
                "        status = service.GetStatus()\n"
                "        print('devices', len(status['devices']), status['driver'])\n"
                "        print('sessions', service.ListSessions()['sessions'])\n"
                "        print('check', service.DebugCheck()['ok'])\n"
                "        try:\n"
                "            service.GetMemInfo('none')\n"
                "        except varlink.VarlinkError as error:\n"
                "            print('refused', error.error(), error.parameters()['device'])\n"
                "        print('done', len(service.GetMemInfo()['devices']))\n";
        char *const probe[] = {(char *)(uintptr_t) "python3", (char *)(uintptr_t) "-c",
                               (char *)(uintptr_t) "import varlink", NULL};
        struct result result = run_program("python3", probe);
        struct daemon_process *daemon;
        bool there = result.status == 0;

        free(result.output);
        if (!there) {
                fprintf(stderr, "\nSKIP foreign client: python3 has no module varlink (pip install "
                                "varlink)\n");
                return;
        }
        daemon = start(NULL);
        char *const argv[] = {(char *)(uintptr_t) "python3", (char *)(uintptr_t) "-c",
                              (char *)(uintptr_t)script,
                              (char *)(uintptr_t)daemon_process_admin_socket(daemon), NULL};
        result = run_program("python3", argv);
        CU_ASSERT_EQUAL(result.status, 0);
        CU_ASSERT(has(result.output, "['io.gpumemd', 'org.varlink.service']\n"));
        CU_ASSERT(has(result.output, "devices 1 simulated\n"));
        CU_ASSERT(has(result.output, "sessions []\n"));
        CU_ASSERT(has(result.output, "check True\n"));
        CU_ASSERT(has(result.output, "refused io.gpumemd.DeviceNotFound none\n"));
        CU_ASSERT(has(result.output, "done 1\n"));
        free(result.output);
        stop(daemon);
}

int main(void)
{
        CU_pSuite suite;
        unsigned int failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("gpumemctl", NULL, NULL);
        CU_add_test(suite, "an idle daemon", test_idle);
        CU_add_test(suite, "C64 sessions, objects, tenants", test_sessions);
        CU_add_test(suite, "more objects than a reply holds", test_many_objects);
        CU_add_test(suite, "replies and their definition", test_definition);
        CU_add_test(suite, "hostile bytes", test_hostile);
        CU_add_test(suite, "daemon stopped, daemon gone", test_daemon_stopped);
        CU_add_test(suite, "foreign client", test_foreign_client);
        CU_basic_set_mode(CU_BRM_NORMAL);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures > 0;
}
