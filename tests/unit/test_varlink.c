/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Varlink server over socket pairs and a listening socket: well-formed calls, malformed ones,
 * and peers that misbehave. The test is the peer; the loop runs only when the test lets it.
 */
#include "daemon/varlink.h"
#include "daemon/varlink_internal.h"

#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* --- an interface to serve --- */

struct service {
        unsigned int echoes;
        struct varlink_peer peer;
        int second_answer; /* what answering twice returned */
};

static int handle_echo(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct service *service = userdata;

        service->echoes++;
        service->peer = *varlink_call_peer(call);
        return varlink_call_reply(call, json_object_get(parameters));
}

static int handle_count(struct varlink_call *call, json_object *parameters, void *userdata)
{
        int64_t to = json_object_get_int64(json_object_object_get(parameters, "to"));

        (void)userdata;
        if (to < 1)
                return varlink_call_error_invalid_parameter(call, "to");
        if (!varlink_call_wants_more(call)) {
                if (varlink_call_reply_continues(call, NULL) != -EINVAL)
                        return -EPROTO;
                return varlink_call_error(call, "org.varlink.service.ExpectedMore", NULL);
        }
        for (int64_t i = 1; i <= to; i++) {
                json_object *reply = json_object_new_object();
                int r;

                json_object_object_add(reply, "n", json_object_new_int64(i));
                r = i < to ? varlink_call_reply_continues(call, reply)
                           : varlink_call_reply(call, reply);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int handle_big(struct varlink_call *call, json_object *parameters, void *userdata)
{
        size_t bytes = (size_t)json_object_get_int64(json_object_object_get(parameters, "bytes"));
        json_object *reply = json_object_new_object();
        char *text = malloc(bytes + 1);

        (void)userdata;
        memset(text, 'x', bytes);
        json_object_object_add(reply, "text", json_object_new_string_len(text, (int)bytes));
        free(text);
        varlink_call_reply(call, reply); /* a method that does not look whether it worked */
        return 0;
}

static int handle_fail(struct varlink_call *call, json_object *parameters, void *userdata)
{
        (void)call;
        (void)parameters;
        (void)userdata;
        return -EHOSTUNREACH;
}

static int handle_silent(struct varlink_call *call, json_object *parameters, void *userdata)
{
        (void)call;
        (void)parameters;
        (void)userdata;
        return 0;
}

static int handle_twice(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct service *service = userdata;
        int r = varlink_call_reply(call, NULL);

        (void)parameters;
        service->second_answer = varlink_call_reply(call, json_object_new_object());
        return r;
}

static const struct varlink_parameter echo_parameters[] = {
        {"text", json_type_string, true},
        {"number", json_type_int, false},
        {0},
};
static const struct varlink_parameter count_parameters[] = {{"to", json_type_int, true}, {0}};
static const struct varlink_parameter big_parameters[] = {{"bytes", json_type_int, true}, {0}};
static const struct varlink_method methods[] = {
        {"Echo", echo_parameters, handle_echo},
        {"Count", count_parameters, handle_count},
        {"Big", big_parameters, handle_big},
        {"Fail", NULL, handle_fail},
        {"Silent", NULL, handle_silent},
        {"Twice", NULL, handle_twice},
        {"Later", NULL, NULL},
        {0},
};
static const struct varlink_interface interfaces[] = {
        {"com.example.test", "interface com.example.test\n", methods},
        {0},
};
static const struct varlink_identity identity = {"vendor", "product", "1.2.3",
                                                 "https://example.com"};

/* --- a test's world --- */

struct world {
        sd_event *event;
        struct varlink_server *server;
        struct service service;
        int peer; /* the test's end of a connection */
};

static void world_open_with(struct world *w, const struct varlink_limits *limits, int listen_fd)
{
        memset(w, 0, sizeof(*w));
        w->peer = -1;
        CU_ASSERT_FATAL(sd_event_new(&w->event) >= 0);
        CU_ASSERT_EQUAL_FATAL(varlink_server_new(&w->server, w->event, listen_fd, &identity,
                                                 interfaces, limits, &w->service),
                              0);
}

static int world_connect(struct world *w)
{
        int fds[2];

        CU_ASSERT_EQUAL_FATAL(
                socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        CU_ASSERT_EQUAL(varlink_server_add_connection_consume_fd(w->server, fds[0]), 0);
        return fds[1];
}

static void world_open(struct world *w)
{
        world_open_with(w, NULL, -1);
        w->peer = world_connect(w);
}

static void world_close(struct world *w)
{
        w->server = varlink_server_free(w->server);
        sd_event_unref(w->event);
        if (w->peer >= 0)
                close(w->peer);
}

/* Let the loop do all it can do without waiting. */
static void world_settle(struct world *w)
{
        for (int i = 0; i < 10000; i++) {
                if (sd_event_run(w->event, 0) <= 0)
                        return;
        }
        CU_FAIL("the loop does not come to rest");
}

static void world_run_for(struct world *w, uint64_t us)
{
        uint64_t start, now;
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        start = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
        do {
                sd_event_run(w->event, 1000);
                clock_gettime(CLOCK_MONOTONIC, &t);
                now = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
        } while (now - start < us);
}

static unsigned int world_connections(const struct world *w)
{
        struct varlink_statistics statistics;

        varlink_server_statistics(w->server, &statistics);
        return statistics.connections;
}

static void put(int fd, const void *data, size_t length)
{
        CU_ASSERT_EQUAL_FATAL(send(fd, data, length, MSG_NOSIGNAL), (ssize_t)length);
}

/* A message with its NUL: the string's own. */
static void say(int fd, const char *message)
{
        put(fd, message, strlen(message) + 1);
}

/* The next message from the server, or NULL if there is none now. Freed by the caller. */
static char *take(struct world *w, int fd)
{
        static const size_t capacity = 32 * 1024 * 1024;
        char *text = malloc(capacity);
        size_t length = 0;

        for (int idle = 0; idle < 3;) {
                /* Look, then take up to the NUL and no further. */
                ssize_t n = recv(fd, text + length, capacity - length, MSG_PEEK);
                char *nul = n > 0 ? memchr(text + length, '\0', (size_t)n) : NULL;

                if (n > 0) {
                        idle = 0;
                        if (nul != NULL)
                                n = nul + 1 - (text + length);
                        if (recv(fd, text + length, (size_t)n, 0) != n)
                                break;
                        length += (size_t)n;
                        if (nul != NULL)
                                return text;
                        continue;
                }
                if (n == 0)
                        break;
                world_settle(w);
                idle++;
        }
        CU_ASSERT_EQUAL(length, 0); /* no half message */
        free(text);
        return NULL;
}

static bool is_closed(struct world *w, int fd)
{
        char c;
        ssize_t n;

        world_settle(w);
        n = recv(fd, &c, 1, MSG_PEEK);
        return n == 0 || (n < 0 && errno != EAGAIN);
}

/* Expect exactly @expected as the next message. */
static void expect(struct world *w, int fd, const char *expected)
{
        char *text = take(w, fd);

        CU_ASSERT_PTR_NOT_NULL_FATAL(text);
        if (strcmp(text, expected) != 0)
                fprintf(stderr, "\nexpected %s\n     got %s\n", expected, text);
        CU_ASSERT_STRING_EQUAL(text, expected);
        free(text);
}

#define ECHO(text)   "{\"method\":\"com.example.test.Echo\",\"parameters\":{\"text\":\"" text "\"}}"
#define ECHOED(text) "{\"parameters\":{\"text\":\"" text "\"}}"

/* --- well-formed calls --- */

static void test_call(void)
{
        struct world w;

        world_open(&w);
        say(w.peer, ECHO("hello"));
        expect(&w, w.peer, ECHOED("hello"));
        CU_ASSERT_EQUAL(w.service.echoes, 1);
        CU_ASSERT_EQUAL(w.service.peer.pid, getpid());
        CU_ASSERT_EQUAL(w.service.peer.uid, getuid());
        CU_ASSERT_EQUAL(w.service.peer.gid, getgid());
        world_close(&w);
}

static void test_split_and_joined(void)
{
        const char *message = ECHO("a");
        const char two[] = ECHO("b") "\0" ECHO("c"); /* with its own NUL: two messages */
        struct world w;

        world_open(&w);
        for (size_t i = 0; i < strlen(message); i++) {
                put(w.peer, message + i, 1);
                world_settle(&w);
                CU_ASSERT_EQUAL(w.service.echoes, 0);
        }
        put(w.peer, "", 1); /* the NUL alone */
        expect(&w, w.peer, ECHOED("a"));

        put(w.peer, two, sizeof(two));
        expect(&w, w.peer, ECHOED("b"));
        expect(&w, w.peer, ECHOED("c"));

        /* One and a half, then the rest. */
        put(w.peer, two, sizeof(two) - 5);
        expect(&w, w.peer, ECHOED("b"));
        CU_ASSERT_PTR_NULL(take(&w, w.peer));
        put(w.peer, two + sizeof(two) - 5, 5);
        expect(&w, w.peer, ECHOED("c"));
        world_close(&w);
}

static void test_many_in_a_packet(void)
{
        struct world w;

        world_open(&w);
        for (int i = 0; i < 100; i++)
                say(w.peer, ECHO("x"));
        for (int i = 0; i < 100; i++)
                expect(&w, w.peer, ECHOED("x"));
        CU_ASSERT_EQUAL(w.service.echoes, 100);
        CU_ASSERT_PTR_NULL(take(&w, w.peer));
        world_close(&w);
}

static void test_whitespace_and_flags(void)
{
        struct world w;

        world_open(&w);
        say(w.peer, " {\"method\" : \"com.example.test.Echo\",\n\"parameters\": {\"text\": \"x\", "
                    "\"number\": null},\"more\":null,\"oneway\":false,\"upgrade\":false} \n");
        expect(&w, w.peer, "{\"parameters\":{\"text\":\"x\",\"number\":null}}");
        say(w.peer, "{\"method\":\"com.example.test.Twice\"}");
        expect(&w, w.peer, "{\"parameters\":{}}");
        CU_ASSERT_EQUAL(w.service.second_answer, -EALREADY);
        CU_ASSERT_PTR_NULL(take(&w, w.peer));
        world_close(&w);
}

static void test_more(void)
{
        struct world w;

        world_open(&w);
        say(w.peer,
            "{\"method\":\"com.example.test.Count\",\"parameters\":{\"to\":3},\"more\":true}");
        say(w.peer, ECHO("after"));
        expect(&w, w.peer, "{\"parameters\":{\"n\":1},\"continues\":true}");
        expect(&w, w.peer, "{\"parameters\":{\"n\":2},\"continues\":true}");
        expect(&w, w.peer, "{\"parameters\":{\"n\":3}}");
        expect(&w, w.peer, ECHOED("after"));

        say(w.peer, "{\"method\":\"com.example.test.Count\",\"parameters\":{\"to\":3}}");
        expect(&w, w.peer, "{\"error\":\"org.varlink.service.ExpectedMore\",\"parameters\":{}}");
        world_close(&w);
}

static void test_oneway(void)
{
        struct world w;

        world_open(&w);
        say(w.peer, "{\"method\":\"com.example.test.Echo\",\"parameters\":{\"text\":\"x\"},"
                    "\"oneway\":true}");
        say(w.peer, "{\"method\":\"com.example.test.None\",\"oneway\":true}");
        say(w.peer, "{\"method\":\"com.example.test.Fail\",\"oneway\":true}");
        say(w.peer, ECHO("next"));
        expect(&w, w.peer, ECHOED("next"));
        CU_ASSERT_EQUAL(w.service.echoes, 2);
        CU_ASSERT_PTR_NULL(take(&w, w.peer));
        world_close(&w);
}

static void test_service_interface(void)
{
        struct world w;
        char *text;

        world_open(&w);
        say(w.peer, "{\"method\":\"org.varlink.service.GetInfo\"}");
        expect(&w, w.peer,
               "{\"parameters\":{\"vendor\":\"vendor\",\"product\":\"product\",\"version\":\"1.2.3\","
               "\"url\":\"https://example.com\",\"interfaces\":[\"org.varlink.service\","
               "\"com.example.test\"]}}");
        say(w.peer, "{\"method\":\"org.varlink.service.GetInterfaceDescription\",\"parameters\":"
                    "{\"interface\":\"com.example.test\"}}");
        expect(&w, w.peer, "{\"parameters\":{\"description\":\"interface com.example.test\\n\"}}");
        say(w.peer, "{\"method\":\"org.varlink.service.GetInterfaceDescription\",\"parameters\":"
                    "{\"interface\":\"org.varlink.service\"}}");
        text = take(&w, w.peer);
        CU_ASSERT_PTR_NOT_NULL_FATAL(text);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "interface org.varlink.service\\n"));
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "error InvalidParameter (parameter: string)"));
        free(text);
        say(w.peer, "{\"method\":\"org.varlink.service.GetInterfaceDescription\",\"parameters\":"
                    "{\"interface\":\"com.example.other\"}}");
        expect(&w, w.peer,
               "{\"error\":\"org.varlink.service.InterfaceNotFound\",\"parameters\":{"
               "\"interface\":\"com.example.other\"}}");
        say(w.peer, "{\"method\":\"org.varlink.service.GetInterfaceDescription\"}");
        expect(&w, w.peer,
               "{\"error\":\"org.varlink.service.InvalidParameter\",\"parameters\":{"
               "\"parameter\":\"interface\"}}");
        world_close(&w);
}

/* --- calls that are wrong in themselves: an error, and the connection goes on --- */

#define INVALID(name)                                                                               \
        "{\"error\":\"org.varlink.service.InvalidParameter\",\"parameters\":{\"parameter\":\"" name \
        "\"}}"

static void test_call_errors(void)
{
        static const struct {
                const char *call, *answer;
        } cases[] = {
                {"{\"method\":\"com.example.test.Nothing\"}",
                 "{\"error\":\"org.varlink.service.MethodNotFound\",\"parameters\":{\"method\":"
                 "\"com.example.test.Nothing\"}}"},
                {"{\"method\":\"com.example.test.Later\"}",
                 "{\"error\":\"org.varlink.service.MethodNotImplemented\",\"parameters\":{"
                 "\"method\":\"com.example.test.Later\"}}"},
                {"{\"method\":\"com.example.none.Echo\"}",
                 "{\"error\":\"org.varlink.service.InterfaceNotFound\",\"parameters\":{"
                 "\"interface\":\"com.example.none\"}}"},
                {"{\"method\":\"com.example.tes.Echo\"}",
                 "{\"error\":\"org.varlink.service.InterfaceNotFound\",\"parameters\":{"
                 "\"interface\":\"com.example.tes\"}}"},
                {"{\"method\":\"Echo\"}", INVALID("method")},
                {"{\"method\":\".Echo\"}", INVALID("method")},
                {"{\"method\":\"com.example.test.\"}", INVALID("method")},
                {"{\"method\":\"\"}", INVALID("method")},
                {"{\"method\":\"com.example.test.Echo\\u0000x\"}", INVALID("method")},
                {"{\"method\":\"com.example.test.Echo\",\"parameters\":[]}", INVALID("parameters")},
                {"{\"method\":\"com.example.test.Echo\",\"parameters\":\"x\"}",
                 INVALID("parameters")},
                {"{\"method\":\"com.example.test.Echo\"}", INVALID("text")},
                {"{\"method\":\"com.example.test.Echo\",\"parameters\":{}}", INVALID("text")},
                {"{\"method\":\"com.example.test.Echo\",\"parameters\":{\"text\":null}}",
                 INVALID("text")},
                {"{\"method\":\"com.example.test.Echo\",\"parameters\":{\"text\":1}}",
                 INVALID("text")},
                {"{\"method\":\"com.example.test.Echo\",\"parameters\":{\"text\":\"x\",\"other\":1}}",
                 INVALID("other")},
                {"{\"method\":\"com.example.test.Echo\",\"parameters\":{\"text\":\"x\",\"number\":"
                 "1.5}}",
                 INVALID("number")},
                {"{\"method\":\"com.example.test.Fail\",\"parameters\":{\"x\":1}}", INVALID("x")},
                {"{\"method\":\"com.example.test.Count\",\"parameters\":{\"to\":0},\"more\":true}",
                 INVALID("to")},
                {"{\"method\":\"com.example.test.Echo\",\"upgrade\":true}", INVALID("upgrade")},
                {"{\"method\":\"com.example.test.Fail\"}",
                 "{\"error\":\"com.example.test.InternalError\",\"parameters\":{\"code\":113,"
                 "\"message\":\"No route to host\"}}"},
                {"{\"method\":\"com.example.test.Silent\"}",
                 "{\"error\":\"com.example.test.InternalError\",\"parameters\":{\"code\":5,"
                 "\"message\":\"Input/output error\"}}"},
        };
        struct world w;

        world_open(&w);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                say(w.peer, cases[i].call);
                expect(&w, w.peer, cases[i].answer);
        }
        CU_ASSERT_EQUAL(w.service.echoes, 0);
        say(w.peer, ECHO("still here"));
        expect(&w, w.peer, ECHOED("still here"));
        world_close(&w);
}

static void test_long_names(void)
{
        char call[1024], name[400];
        struct world w;

        world_open(&w);
        memset(name, 'n', sizeof(name));
        snprintf(call, sizeof(call), "{\"method\":\"com.example.test.%.*s\"}", 300, name);
        say(w.peer, call);
        expect(&w, w.peer, INVALID("method"));
        snprintf(call, sizeof(call),
                 "{\"method\":\"com.example.test.Echo\",\"parameters\":{\"text\":\"\",\"%.*s\":1}}",
                 300, name);
        say(w.peer, call);
        expect(&w, w.peer, INVALID("parameters"));
        world_close(&w);
}

/* --- what is no call: closed, and nobody else notices --- */

static void test_not_a_call(void)
{
        static const char *const messages[] = {
                "",
                " ",
                "hello",
                "{",
                "}",
                "[]",
                "null",
                "true",
                "17",
                "\"com.example.test.Echo\"",
                "{}",
                "{\"method\":null}",
                "{\"method\":7}",
                "{\"method\":[\"com.example.test.Echo\"]}",
                "{\"parameters\":{}}",
                "{\"method\":\"com.example.test.Echo\",\"more\":1}",
                "{\"method\":\"com.example.test.Echo\",\"oneway\":\"yes\"}",
                "{\"method\":\"com.example.test.Echo\",\"upgrade\":{}}",
                "{'method':'com.example.test.Echo'}",
                "{\"method\":\"com.example.test.Echo\",}",
                "{\"method\":\"com.example.test.Echo\"} x",
                "{\"method\":\"com.example.test.Echo\"}{}",
                "{\"method\":\"com.example.test.\xff\xfe\"}",
                "{\"method\":\"com.example.test.Echo",
                "/* */ {\"method\":\"com.example.test.Echo\"}",
        };
        struct varlink_statistics statistics;
        struct world w;

        world_open(&w);
        for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
                int peer = world_connect(&w);

                say(peer, ECHO("before"));
                say(peer, messages[i]);
                say(peer, ECHO("after"));
                expect(&w, peer, ECHOED("before"));
                if (!is_closed(&w, peer))
                        fprintf(stderr, "\nnot closed after: %s\n", messages[i]);
                CU_ASSERT(is_closed(&w, peer));
                close(peer);
                CU_ASSERT_EQUAL(world_connections(&w), 1);
        }
        varlink_server_statistics(w.server, &statistics);
        CU_ASSERT_EQUAL(statistics.closed_for_protocol, sizeof(messages) / sizeof(messages[0]));
        CU_ASSERT_EQUAL(w.service.echoes, sizeof(messages) / sizeof(messages[0]));
        say(w.peer, ECHO("bystander"));
        expect(&w, w.peer, ECHOED("bystander"));
        world_close(&w);
}

static void test_depth_and_values(void)
{
        char *text = malloc(100000);
        size_t length;
        struct world w;

        world_open(&w);
        /* Brackets inside a string are text. */
        length = (size_t)sprintf(text, "{\"method\":\"com.example.test.Echo\",\"parameters\":{"
                                       "\"text\":\"\\\"");
        memset(text + length, '[', 50000);
        strcpy(text + length + 50000, "\"}}");
        say(w.peer, text);
        world_settle(&w);
        CU_ASSERT_EQUAL(w.service.echoes, 1);
        free(take(&w, w.peer));

        /* Too deep. */
        int peer = world_connect(&w);
        memset(text, '[', 50000);
        text[50000] = '\0';
        say(peer, text);
        CU_ASSERT(is_closed(&w, peer));
        close(peer);

        /* At the depth limit (16 with the message itself), and one more. */
        for (unsigned int over = 0; over < 2; over++) {
                peer = world_connect(&w);
                length = (size_t)sprintf(text, "{\"method\":\"com.example.test.Echo\",\"x\":");
                memset(text + length, '[', 15 + over);
                memset(text + length + 15 + over, ']', 15 + over);
                strcpy(text + length + 2 * (15 + over), "}");
                say(peer, text);
                if (over == 0)
                        expect(&w, peer, INVALID("text"));
                else
                        CU_ASSERT(is_closed(&w, peer));
                close(peer);
        }

        /* Many small objects: cheap to send, dear to parse. */
        peer = world_connect(&w);
        length = (size_t)sprintf(text, "{\"method\":\"com.example.test.Echo\",\"x\":[");
        for (unsigned int i = 0; i < 20000; i++)
                length += (size_t)sprintf(text + length, "{},");
        strcpy(text + length, "0]}");
        say(peer, text);
        CU_ASSERT(is_closed(&w, peer));
        close(peer);
        world_close(&w);
        free(text);

        CU_ASSERT_EQUAL(varlink_scan("[1,2]", 5, 1, 3), 0);
        CU_ASSERT_EQUAL(varlink_scan("[1,2]", 5, 1, 2), -E2BIG);
        CU_ASSERT_EQUAL(varlink_scan("[[]]", 4, 1, 100), -E2BIG);
        CU_ASSERT_EQUAL(varlink_scan("\"\\", 2, 1, 1), 0); /* ends inside an escape */
        CU_ASSERT_EQUAL(varlink_scan("]]]]", 4, 1, 1), 0);
}

/* Send as much as goes in while the loop runs; how much went. */
static size_t push(struct world *w, int fd, const char *data, size_t length)
{
        size_t sent = 0;

        while (sent < length) {
                ssize_t n = send(fd, data + sent, length - sent, MSG_NOSIGNAL);

                if (n > 0)
                        sent += (size_t)n;
                else if (n < 0 && errno == EAGAIN)
                        world_settle(w);
                else
                        break;
        }
        return sent;
}

static void test_message_size(void)
{
        size_t limit = varlink_limits_default.message_bytes;
        char *text = malloc(limit + 2);
        struct varlink_statistics statistics;
        struct world w;
        int peer;

        world_open(&w);
        /* Exactly the limit with its NUL. */
        memset(text, ' ', limit + 2);
        memcpy(text + limit - 1 - strlen(ECHO("x")), ECHO("x"), strlen(ECHO("x")) + 1);
        CU_ASSERT_EQUAL(push(&w, w.peer, text, limit), limit);
        expect(&w, w.peer, ECHOED("x"));

        /* One byte more. */
        peer = world_connect(&w);
        memmove(text + 1, text, limit);
        push(&w, peer, text, limit + 1);
        CU_ASSERT(is_closed(&w, peer));
        CU_ASSERT_EQUAL(world_connections(&w), 1);
        CU_ASSERT_EQUAL(w.service.echoes, 1);
        close(peer);

        /* Two megabytes without a NUL. */
        peer = world_connect(&w);
        memset(text, 'z', limit);
        push(&w, peer, text, limit);
        push(&w, peer, text, limit);
        world_settle(&w);
        CU_ASSERT_EQUAL(world_connections(&w), 1);
        close(peer);
        varlink_server_statistics(w.server, &statistics);
        CU_ASSERT_EQUAL(statistics.closed_for_protocol, 2);

        say(w.peer, ECHO("fine"));
        expect(&w, w.peer, ECHOED("fine"));
        world_close(&w);
        free(text);
}

static void test_random_bytes(void)
{
        uint32_t state = 12345;
        struct world w;

        world_open(&w);
        for (int round = 0; round < 500; round++) {
                unsigned char junk[512];
                int peer = world_connect(&w);

                for (size_t i = 0; i < sizeof(junk); i++) {
                        static const char alphabet[] =
                                "{}[]\":,\\ \n0truefalsnul\0methodparameters.";

                        state = state * 1664525 + 1013904223;
                        junk[i] =
                                (round & 1)
                                        ? (unsigned char)(state >> 24)
                                        : (unsigned char)alphabet[(state >> 16) % sizeof(alphabet)];
                }
                push(&w, peer, (const char *)junk, sizeof(junk));
                world_settle(&w);
                close(peer);
                world_settle(&w);
        }
        CU_ASSERT_EQUAL(world_connections(&w), 1);
        CU_ASSERT_EQUAL(w.service.echoes, 0);
        say(w.peer, ECHO("fine"));
        expect(&w, w.peer, ECHOED("fine"));
        world_close(&w);
}

/* --- peers that come, go and hang --- */

static void test_half_close(void)
{
        struct world w;

        world_open(&w);
        say(w.peer, ECHO("last words"));
        put(w.peer, "{\"meth", 7); /* never finished */
        shutdown(w.peer, SHUT_WR);
        expect(&w, w.peer, ECHOED("last words"));
        CU_ASSERT(is_closed(&w, w.peer));
        CU_ASSERT_EQUAL(world_connections(&w), 0);
        world_close(&w);
}

static void test_gone_before_answer(void)
{
        struct world w;

        world_open(&w);
        for (int i = 0; i < 50; i++)
                say(w.peer, ECHO("x"));
        close(w.peer);
        w.peer = -1;
        world_settle(&w);
        CU_ASSERT_EQUAL(world_connections(&w), 0);
        world_close(&w);

        /* oneway calls of somebody who left at once are still carried out. */
        world_open(&w);
        say(w.peer, "{\"method\":\"com.example.test.Echo\",\"parameters\":{\"text\":\"x\"},"
                    "\"oneway\":true}");
        close(w.peer);
        w.peer = -1;
        world_settle(&w);
        CU_ASSERT_EQUAL(w.service.echoes, 1);
        CU_ASSERT_EQUAL(world_connections(&w), 0);
        world_close(&w);
}

static const char big_call[] =
        "{\"method\":\"com.example.test.Big\",\"parameters\":{\"bytes\":100000}}";

/* It is not read from while it does not read, so its calls do not pile up; then it is closed. */
static void test_does_not_read(void)
{
        struct varlink_limits limits = varlink_limits_default;
        struct varlink_statistics statistics;
        struct world w;
        int bystander;

        limits.stall_us = 100 * 1000;
        world_open_with(&w, &limits, -1);
        w.peer = world_connect(&w);
        bystander = world_connect(&w);
        for (int i = 0; i < 1000; i++) {
                if (send(w.peer, big_call, sizeof(big_call), MSG_NOSIGNAL) < 0)
                        break;
                world_settle(&w);
        }
        varlink_server_statistics(w.server, &statistics);
        CU_ASSERT(statistics.calls < 10);
        CU_ASSERT_EQUAL(statistics.connections, 2);
        say(bystander, ECHO("me too"));
        expect(&w, bystander, ECHOED("me too"));
        world_run_for(&w, 150 * 1000);
        varlink_server_statistics(w.server, &statistics);
        CU_ASSERT_EQUAL(statistics.closed_for_stalling, 1);
        CU_ASSERT_EQUAL(statistics.connections, 1);
        close(bystander);
        world_close(&w);
}

/* All its calls lie here already: answering stops all the same. */
static void test_does_not_read_a_packet(void)
{
        struct varlink_statistics statistics;
        struct world w;

        world_open(&w);
        for (int i = 0; i < 100; i++)
                put(w.peer, big_call, sizeof(big_call));
        world_settle(&w);
        varlink_server_statistics(w.server, &statistics);
        CU_ASSERT(statistics.calls >= 2);
        CU_ASSERT(statistics.calls < 10);
        CU_ASSERT_EQUAL(statistics.connections, 1);
        world_close(&w);
}

/* Slow is not stalled: as long as something moves, it may take longer than the limit. */
static void test_reads_slowly(void)
{
        struct varlink_limits limits = varlink_limits_default;
        size_t received = 0,
               expected = 10 * (100000 + strlen("{\"parameters\":{\"text\":\"\"}}") + 1);
        char *chunk = malloc(expected);
        struct world w;

        limits.stall_us = 200 * 1000;
        world_open_with(&w, &limits, -1);
        w.peer = world_connect(&w);
        for (int i = 0; i < 10; i++)
                put(w.peer, big_call, sizeof(big_call));
        for (int i = 0; i < 100 && received < expected; i++) {
                ssize_t n;

                world_run_for(&w, 50 * 1000);
                n = recv(w.peer, chunk, 100000, 0);
                CU_ASSERT_FATAL(n > 0);
                received += (size_t)n;
        }
        CU_ASSERT_EQUAL(received, expected);
        CU_ASSERT_EQUAL(world_connections(&w), 1);
        free(chunk);
        world_close(&w);
}

static void test_reads_late(void)
{
        struct world w;

        world_open(&w);
        for (int i = 0; i < 40; i++)
                put(w.peer, big_call, sizeof(big_call));
        world_settle(&w);
        for (int i = 0; i < 40; i++) {
                char *text = take(&w, w.peer);

                CU_ASSERT_PTR_NOT_NULL_FATAL(text);
                CU_ASSERT(strlen(text) > 100000);
                free(text);
        }
        CU_ASSERT_EQUAL(world_connections(&w), 1);
        world_close(&w);
}

static void test_output_limit(void)
{
        struct varlink_limits limits = varlink_limits_default;
        struct world w;
        int bystander;

        limits.output_bytes = 50000;
        world_open_with(&w, &limits, -1);
        w.peer = world_connect(&w);
        bystander = world_connect(&w);
        say(w.peer, big_call);
        CU_ASSERT(is_closed(&w, w.peer));
        CU_ASSERT_EQUAL(world_connections(&w), 1);

        /* The same by many replies to one call. */
        close(w.peer);
        w.peer = world_connect(&w);
        say(w.peer, "{\"method\":\"com.example.test.Count\",\"parameters\":{\"to\":100000},"
                    "\"more\":true}");
        world_settle(&w);
        CU_ASSERT_EQUAL(world_connections(&w), 1);
        say(bystander, ECHO("fine"));
        expect(&w, bystander, ECHOED("fine"));
        close(bystander);
        world_close(&w);
}

static void test_unfinished_message(void)
{
        struct varlink_limits limits = varlink_limits_default;
        struct world w;
        int idle;

        limits.stall_us = 50 * 1000;
        world_open_with(&w, &limits, -1);
        w.peer = world_connect(&w);
        idle = world_connect(&w); /* says nothing: that is allowed */
        for (int i = 0; i < 15; i++) {
                /* Dripping does not help. */
                if (send(w.peer, "x", 1, MSG_NOSIGNAL) < 0)
                        break;
                world_run_for(&w, 10 * 1000);
        }
        CU_ASSERT_EQUAL(world_connections(&w), 1);
        say(idle, ECHO("fine"));
        expect(&w, idle, ECHOED("fine"));
        close(idle);
        world_close(&w);
}

static void test_descriptors_are_dropped(void)
{
        char control[CMSG_SPACE(sizeof(int))];
        const char message[] = ECHO("x");
        struct iovec iov = {(void *)(uintptr_t)message, sizeof(message)};
        struct msghdr header = {.msg_iov = &iov,
                                .msg_iovlen = 1,
                                .msg_control = control,
                                .msg_controllen = sizeof(control)};
        int fds[2], before, after;
        struct world w;

        world_open(&w);
        CU_ASSERT_EQUAL_FATAL(pipe2(fds, O_CLOEXEC), 0);
        memset(control, 0, sizeof(control));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fds[1], sizeof(int));
        before = dup(0);
        close(before);
        CU_ASSERT_EQUAL(sendmsg(w.peer, &header, MSG_NOSIGNAL), (ssize_t)sizeof(message));
        expect(&w, w.peer, ECHOED("x"));
        after = dup(0);
        close(after);
        CU_ASSERT_EQUAL(before, after);
        /* The last copy is ours: closing it is the end of the pipe. */
        close(fds[1]);
        char byte;
        CU_ASSERT_EQUAL(read(fds[0], &byte, 1), 0);
        close(fds[0]);
        world_close(&w);
}

/* --- listening --- */

static int listen_somewhere(struct sockaddr_un *address, socklen_t *length)
{
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        memset(address, 0, sizeof(*address));
        address->sun_family = AF_UNIX;
        *length = sizeof(address->sun_family); /* autobind: an abstract address nobody has */
        CU_ASSERT_EQUAL_FATAL(bind(fd, (struct sockaddr *)address, *length), 0);
        CU_ASSERT_EQUAL_FATAL(listen(fd, 128), 0);
        *length = sizeof(*address);
        CU_ASSERT_EQUAL_FATAL(getsockname(fd, (struct sockaddr *)address, length), 0);
        return fd;
}

static int dial(const struct sockaddr_un *address, socklen_t length)
{
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        CU_ASSERT_EQUAL_FATAL(connect(fd, (const struct sockaddr *)address, length), 0);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        return fd;
}

static void test_connection_limit(void)
{
        struct varlink_limits limits = varlink_limits_default;
        unsigned int allowed;
        struct sockaddr_un address;
        socklen_t length;
        int listen_fd = listen_somewhere(&address, &length);
        int fds[8];
        struct varlink_statistics statistics;
        struct world w;

        limits.connections = 4;
        allowed = getuid() == 0 ? 4 : 2;
        world_open_with(&w, &limits, listen_fd);
        for (unsigned int i = 0; i < 8; i++)
                fds[i] = dial(&address, length);
        world_settle(&w);
        for (unsigned int i = 0; i < 8; i++) {
                if (i < allowed) {
                        say(fds[i], ECHO("in"));
                        expect(&w, fds[i], ECHOED("in"));
                } else {
                        CU_ASSERT(is_closed(&w, fds[i]));
                }
        }
        varlink_server_statistics(w.server, &statistics);
        CU_ASSERT_EQUAL(statistics.connections, allowed);
        CU_ASSERT_EQUAL(statistics.refused, 8 - allowed);
        close(fds[0]);
        world_settle(&w);
        fds[0] = dial(&address, length);
        say(fds[0], ECHO("room again"));
        expect(&w, fds[0], ECHOED("room again"));
        for (unsigned int i = 0; i < 8; i++)
                close(fds[i]);
        world_close(&w);
        close(listen_fd);
}

static void test_shares(void)
{
        /* root: to the limit */
        CU_ASSERT(varlink_share_allows(64, 63, 0, 0));
        CU_ASSERT_FALSE(varlink_share_allows(64, 64, 0, 0));
        CU_ASSERT(varlink_share_allows(64, 0, 63, 0));
        CU_ASSERT_FALSE(varlink_share_allows(64, 0, 64, 0));
        /* others: half, then half of the rest */
        CU_ASSERT(varlink_share_allows(64, 31, 0, 1000));
        CU_ASSERT_FALSE(varlink_share_allows(64, 32, 0, 1000));
        CU_ASSERT(varlink_share_allows(64, 15, 32, 1001));
        CU_ASSERT_FALSE(varlink_share_allows(64, 16, 32, 1001));
        /* the last place goes to whoever has none */
        CU_ASSERT(varlink_share_allows(64, 0, 63, 1002));
        CU_ASSERT_FALSE(varlink_share_allows(64, 1, 62, 1002));
}

static void test_out_of_descriptors(void)
{
        struct sockaddr_un address;
        socklen_t length;
        int listen_fd = listen_somewhere(&address, &length);
        struct rlimit old, low;
        struct world w;
        int peer, next;

        world_open_with(&w, NULL, listen_fd);
        world_settle(&w);
        peer = dial(&address, length);
        CU_ASSERT_EQUAL(getrlimit(RLIMIT_NOFILE, &old), 0);
        next = dup(0);
        close(next);
        low = old;
        low.rlim_cur = (rlim_t)next;
        CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &low), 0);
        world_settle(&w); /* fails the test if the loop spins */
        CU_ASSERT_EQUAL(world_connections(&w), 0);
        CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &old), 0);
        say(peer, ECHO("waited"));
        world_run_for(&w, 1100 * 1000);
        expect(&w, peer, ECHOED("waited"));
        close(peer);
        world_close(&w);
        close(listen_fd);
}

int main(void)
{
        CU_pSuite suite;
        unsigned int failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("varlink", NULL, NULL);
        CU_add_test(suite, "a call and its answer", test_call);
        CU_add_test(suite, "split and joined messages", test_split_and_joined);
        CU_add_test(suite, "many calls in a packet", test_many_in_a_packet);
        CU_add_test(suite, "whitespace, null flags, answering twice", test_whitespace_and_flags);
        CU_add_test(suite, "more", test_more);
        CU_add_test(suite, "oneway", test_oneway);
        CU_add_test(suite, "org.varlink.service", test_service_interface);
        CU_add_test(suite, "errors of calls", test_call_errors);
        CU_add_test(suite, "long names", test_long_names);
        CU_add_test(suite, "what is not a call", test_not_a_call);
        CU_add_test(suite, "depth and number of values", test_depth_and_values);
        CU_add_test(suite, "size of a message", test_message_size);
        CU_add_test(suite, "random bytes", test_random_bytes);
        CU_add_test(suite, "half-closed", test_half_close);
        CU_add_test(suite, "gone before the answer", test_gone_before_answer);
        CU_add_test(suite, "does not read", test_does_not_read);
        CU_add_test(suite, "does not read, all in a packet", test_does_not_read_a_packet);
        CU_add_test(suite, "reads slowly", test_reads_slowly);
        CU_add_test(suite, "reads late", test_reads_late);
        CU_add_test(suite, "output limit", test_output_limit);
        CU_add_test(suite, "unfinished message", test_unfinished_message);
        CU_add_test(suite, "descriptors are dropped", test_descriptors_are_dropped);
        CU_add_test(suite, "connection limit", test_connection_limit);
        CU_add_test(suite, "shares of users", test_shares);
        CU_add_test(suite, "out of descriptors", test_out_of_descriptors);
        CU_basic_set_mode(CU_BRM_NORMAL);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures > 0;
}
