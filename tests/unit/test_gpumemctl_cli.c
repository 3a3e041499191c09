/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpumemctl from its command line to its output, against a stand-in for the daemon that answers
 * with fixed bytes: exit statuses, sentences, tables, JSON, and answers that are wrong.
 */
#include "tools/gpumemctl/cli.h"
#include "tools/gpumemctl/outcome.h"

#include <CUnit/Basic.h>
#include <errno.h>
#include <json-c/json.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* --- a daemon that says what it is told to --- */

struct stand_in {
        char directory[64];
        struct sockaddr_un address;
        int listen_fd;
        pthread_t thread;
        const char *const *answers; /* one per call, each with its NUL; NULL: close */
        size_t answer_count;
        bool split; /* byte by byte */
        char calls[4096];
};

static void *stand_in_run(void *userdata)
{
        struct stand_in *s = userdata;
        int fd = accept(s->listen_fd, NULL, NULL);
        size_t used = 0;

        for (size_t i = 0; fd >= 0 && i < s->answer_count; i++) {
                char c = 'x';

                while (c != '\0') {
                        if (recv(fd, &c, 1, 0) != 1 || used + 2 >= sizeof(s->calls))
                                goto out;
                        s->calls[used++] = c != '\0' ? c : '\n';
                }
                if (s->answers[i] == NULL)
                        break;
                if (!s->split) {
                        send(fd, s->answers[i], strlen(s->answers[i]) + 1, MSG_NOSIGNAL);
                        continue;
                }
                for (size_t k = 0; k <= strlen(s->answers[i]); k++)
                        send(fd, s->answers[i] + k, 1, MSG_NOSIGNAL);
        }
out:
        s->calls[used] = '\0';
        if (fd >= 0)
                close(fd);
        return NULL;
}

static void stand_in_bind(struct stand_in *s)
{
        memset(s, 0, sizeof(*s));
        strcpy(s->directory, "/tmp/gpumemctl-XXXXXX");
        CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(s->directory));
        s->address.sun_family = AF_UNIX;
        snprintf(s->address.sun_path, sizeof(s->address.sun_path), "%s/admin.sock", s->directory);
        s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CU_ASSERT_EQUAL_FATAL(
                bind(s->listen_fd, (struct sockaddr *)&s->address, sizeof(s->address)), 0);
}

static void stand_in_start(struct stand_in *s, const char *const *answers, size_t count)
{
        stand_in_bind(s);
        s->answers = answers;
        s->answer_count = count;
        CU_ASSERT_EQUAL_FATAL(listen(s->listen_fd, 4), 0);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&s->thread, NULL, stand_in_run, s), 0);
}

static void stand_in_remove(struct stand_in *s)
{
        close(s->listen_fd);
        unlink(s->address.sun_path);
        rmdir(s->directory);
}

static void stand_in_stop(struct stand_in *s)
{
        shutdown(s->listen_fd, SHUT_RDWR); /* ends an accept that nobody came for */
        pthread_join(s->thread, NULL);
        stand_in_remove(s);
}

/* --- running --- */

struct result {
        int status;
        char *out, *messages;
};

static struct result run(const char *word, ...)
{
        struct result result;
        size_t out_size, messages_size;
        FILE *out = open_memstream(&result.out, &out_size);
        FILE *messages = open_memstream(&result.messages, &messages_size);
        char *argv[16] = {(char *)(uintptr_t) "gpumemctl"};
        int argc = 1;
        va_list words;

        va_start(words, word);
        for (; word != NULL; word = va_arg(words, const char *))
                argv[argc++] = (char *)(uintptr_t)word;
        va_end(words);
        result.status = ctl_run(argc, argv, out, messages);
        fclose(out);
        fclose(messages);
        return result;
}

static void result_free(struct result *result)
{
        free(result->out);
        free(result->messages);
}

static bool has(const char *text, const char *part)
{
        if (strstr(text, part) != NULL)
                return true;
        fprintf(stderr, "\nno \"%s\" in \"%s\"\n", part, text);
        return false;
}

/* Run @word (and "check" for debug) against one answer. */
static struct result ask(const char *word, const char *answer)
{
        struct stand_in s;
        struct result result;

        stand_in_start(&s, &answer, 1);
        result = run(word, "--socket", s.address.sun_path, "--timeout", "5",
                     strcmp(word, "debug") == 0 ? "check" : NULL, NULL);
        stand_in_stop(&s);
        return result;
}

/* --- the command line --- */

static void test_usage(void)
{
        static const struct {
                const char *words[5];
                const char *sentence;
        } cases[] = {
                {{NULL}, "a command is missing"},
                {{"top", NULL}, "\"top\" is no command"},
                {{"set", "x", NULL}, "\"set\" is no command"},
                {{"debug", NULL}, "debug wants a second word: check"},
                {{"debug", "walk", NULL}, "\"walk\" is no command of debug"},
                {{"debug", "check", "now", NULL}, "\"now\" is too much"},
                {{"status", "now", NULL}, "\"now\" is too much"},
                {{"status", "--what", NULL}, "--what is no option"},
                {{"status", "--json=1", NULL}, "--json=1 is no option"},
                {{"status", "--socket", NULL}, "--socket wants a value"},
                {{"status", "--objects", NULL}, "--objects is for ps"},
                {{"ps", "--device", "x", NULL}, "--device is for meminfo"},
                {{"status", "--timeout", "", NULL}, "--timeout wants seconds"},
                {{"status", "--timeout", "0", NULL}, "--timeout wants seconds"},
                {{"status", "--timeout", "-1", NULL}, "--timeout wants seconds"},
                {{"status", "--timeout", "1s", NULL}, "--timeout wants seconds"},
                {{"status", "--timeout", "1.2.3", NULL}, "--timeout wants seconds"},
                {{"status", "--timeout", "inf", NULL}, "--timeout wants seconds"},
                {{"status", "--timeout", "86401", NULL}, "--timeout wants seconds"},
                {{"status", "--socket", "", NULL}, "1 to 107 bytes"},
                {{"\x1b[2J", NULL}, "\"?[2J\" is no command"},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                const char *const *w = cases[i].words;
                struct result result = run(w[0], w[0] ? w[1] : NULL, w[0] && w[1] ? w[2] : NULL,
                                           w[0] && w[1] && w[2] ? w[3] : NULL, NULL);

                CU_ASSERT_EQUAL(result.status, CTL_USAGE);
                CU_ASSERT_STRING_EQUAL(result.out, "");
                CU_ASSERT(has(result.messages, cases[i].sentence));
                CU_ASSERT(has(result.messages, "gpumemctl --help"));
                result_free(&result);
        }
        char path[200];
        memset(path, 'p', sizeof(path));
        path[199] = '\0';
        struct result result = run("status", "--socket", path, NULL);
        CU_ASSERT_EQUAL(result.status, CTL_USAGE);
        result_free(&result);
}

static void test_help(void)
{
        struct result result = run("--help", NULL);

        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT_STRING_EQUAL(result.messages, "");
        CU_ASSERT(has(result.out, "\n  status "));
        CU_ASSERT(has(result.out, "\n  ps "));
        CU_ASSERT(has(result.out, "\n  meminfo "));
        CU_ASSERT(has(result.out, "\n  debug check "));
        CU_ASSERT_PTR_NULL(strstr(result.out, "  top "));
        result_free(&result);
        result = run("--version", NULL);
        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT_STRING_EQUAL(result.out, "gpumemctl " GPUMEM_VERSION "\n");
        result_free(&result);
}

/* --- reaching the daemon --- */

static void test_unreachable(void)
{
        struct stand_in s;
        struct result result;

        result = run("status", "--socket", "/nonexistent/admin.sock", NULL);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT_STRING_EQUAL(result.out, "");
        CU_ASSERT(has(result.messages, "cannot reach gpumemd at /nonexistent/admin.sock"));
        CU_ASSERT(has(result.messages, "--socket PATH"));
        result_free(&result);

        stand_in_bind(&s); /* bound, not listening */
        result = run("status", "--socket", s.address.sun_path, NULL);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT(has(result.messages, "nobody listens there"));
        result_free(&result);
        /* By environment. */
        setenv(CTL_SOCKET_ENVIRONMENT, s.address.sun_path, 1);
        result = run("status", NULL);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT(has(result.messages, s.address.sun_path));
        unsetenv(CTL_SOCKET_ENVIRONMENT);
        result_free(&result);
        stand_in_remove(&s);
        result = run("status", NULL);
        CU_ASSERT(result.status == CTL_UNREACHABLE || result.status == CTL_OK);
        if (result.status == CTL_UNREACHABLE)
                CU_ASSERT(has(result.messages, CTL_SOCKET_DEFAULT));
        result_free(&result);

        /* What is no socket at all, whether we may write to it or not. */
        result = run("status", "--socket", "/etc/passwd", NULL);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT(has(result.messages, "/etc/passwd: that is a file, not a socket"));
        result_free(&result);
        result = run("status", "--socket", "/tmp", NULL);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT(has(result.messages, "/tmp: that is a directory, not a socket"));
        result_free(&result);

        /* A socket of the other kind: the clients' one. */
        stand_in_bind(&s);
        close(s.listen_fd);
        unlink(s.address.sun_path);
        s.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CU_ASSERT_EQUAL_FATAL(bind(s.listen_fd, (struct sockaddr *)&s.address, sizeof(s.address)),
                              0);
        listen(s.listen_fd, 1);
        result = run("status", "--socket", s.address.sun_path, NULL);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT(has(result.messages, "another kind"));
        result_free(&result);
        stand_in_remove(&s);
}

static uint64_t now_ms(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void test_timeout(void)
{
        struct stand_in s;
        struct result result;
        uint64_t start = now_ms();
        int fds[4];

        stand_in_bind(&s);
        CU_ASSERT_EQUAL_FATAL(listen(s.listen_fd, 0), 0); /* takes one that nobody accepts */
        result = run("status", "--timeout", "0.2", "--socket", s.address.sun_path, NULL);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT(has(result.messages, "did not answer within 0.200 s"));
        CU_ASSERT(now_ms() - start >= 200);
        CU_ASSERT(now_ms() - start < 5000);
        result_free(&result);

        /* The backlog is full: connecting waits, too. */
        for (int i = 0; i < 4; i++) {
                fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
                if (connect(fds[i], (struct sockaddr *)&s.address, sizeof(s.address)) < 0)
                        CU_ASSERT_EQUAL(errno, EAGAIN);
        }
        start = now_ms();
        result = run("status", "--timeout", "0.2", "--socket", s.address.sun_path, NULL);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT(now_ms() - start >= 200);
        CU_ASSERT(now_ms() - start < 5000);
        result_free(&result);
        for (int i = 0; i < 4; i++)
                close(fds[i]);
        stand_in_remove(&s);
}

/* --- answers --- */

#define FRAMES                                                                                     \
        "{\"free\":10,\"fresh\":4,\"granted\":16,\"dirty\":1,\"ready\":1,\"draining\":0,"          \
        "\"quarantined\":0}"
#define FRAME_BYTES                                                                                \
        "{\"free\":20971520,\"fresh\":8388608,\"granted\":33554432,\"dirty\":2097152,"             \
        "\"ready\":2097152,\"draining\":0,\"quarantined\":0}"
#define DEVICE                                                                                     \
        "\"uuid\":\"GPU-1\",\"name\":\"simulated\",\"frame_bytes\":2097152,"                       \
        "\"total_bytes\":134217728,\"managed_bytes\":67108864,\"outside_bytes\":0,"                \
        "\"withheld_bytes\":0,"                                                                    \
        "\"frames\":" FRAMES

static const char status_answer[] =
        "{\"parameters\":{\"version\":\"0.1.0\",\"uptime_us\":192000000,\"epoch\":17,"
        "\"driver\":\"simulated\",\"devices\":[{" DEVICE
        ",\"state\":\"degraded\",\"trouble\":\"cuMemMap\\nfailed\",\"sessions\":2,\"waiting_grants\":1}],\"sessions\":2,"
        "\"waiting_grants\":1}}";

static void test_status(void)
{
        struct result result = ask("status", status_answer);

        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT_STRING_EQUAL(result.messages, "");
        CU_ASSERT(has(result.out, "\nGPU-1 is degraded: cuMemMap?failed\n"));
        CU_ASSERT(has(result.out, "gpumemd 0.1.0, driver simulated, up 3 min 12 s\n"));
        CU_ASSERT(has(result.out, "sessions 2, grants waiting 1\n"));
        CU_ASSERT(
                has(result.out,
                    "DEVICE  NAME       STATE     FRAME    TOTAL  MANAGED  OUTSIDE  SESSIONS  "
                    "WAITING\n"
                    "GPU-1   simulated  degraded  2 MiB  128 MiB   64 MiB      0 B         2       "
                    " 1\n"));
        CU_ASSERT(has(result.out,
                      "DEVICE  FREE  FRESH  GRANTED  DIRTY  READY  DRAINING  QUARANTINED\n"
                      "GPU-1     10      4       16      1      1         0            0\n"));
        result_free(&result);
}

static void test_json(void)
{
        const char *answer = status_answer;
        struct stand_in s;
        struct result result;
        json_object *json;

        stand_in_start(&s, &answer, 1);
        s.split = true;
        result = run("--json", "status", "--socket", s.address.sun_path, NULL);
        stand_in_stop(&s);
        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT_STRING_EQUAL(s.calls, "{\"method\":\"io.gpumemd.GetStatus\"}\n");
        json = json_tokener_parse(result.out);
        CU_ASSERT_PTR_NOT_NULL_FATAL(json);
        CU_ASSERT_EQUAL(json_object_get_int(json_object_object_get(json, "sessions")), 2);
        json_object_put(json);
        result_free(&result);
}

#define SESSION(number)                                                                            \
        "{\"session\":" number ",\"pid\":42,\"uid\":1000,\"comm\":\"gpumem-gen\",\"engine\":"      \
        "\"e\\u001b[1mvil\",\"tenant\":\"uid-1000\",\"device\":\"GPU-1\",\"frames\":16,"           \
        "\"bytes\":33554432,\"connected_us\":1764424192000000,\"state\":\"waiting\","              \
        "\"objects\":[{\"object\":1,\"kind\":\"kv_pool\",\"name\":\"kv\",\"frames\":12,"           \
        "\"frames_max\":24,\"bytes\":25165824},{\"object\":2,\"kind\":\"buffer\",\"name\":\"\","   \
        "\"frames\":4,\"frames_max\":4,\"bytes\":8388608}]}"
/* Without what may be absent. */
#define SESSION_BARE(number)                                                                       \
        "{\"session\":" number ",\"pid\":43,\"uid\":1000,\"engine\":\"\",\"tenant\":\"uid-1000\"," \
        "\"frames\":0,\"bytes\":0,\"connected_us\":1764424192000000,\"state\":\"connecting\","     \
        "\"objects\":[]}"

static void test_ps(void)
{
        static const char *const answers[] = {
                "{\"parameters\":{\"sessions\":[" SESSION("1") "," SESSION("2") "],\"next\":2}}",
                "{\"parameters\":{\"sessions\":[" SESSION_BARE("7") "]}}",
        };
        struct stand_in s;
        struct result result;

        setenv("TZ", "UTC", 1);
        stand_in_start(&s, answers, 2);
        result = run("ps", "--objects", "--socket", s.address.sun_path, NULL);
        stand_in_stop(&s);
        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT_STRING_EQUAL(
                s.calls, "{\"method\":\"io.gpumemd.ListSessions\"}\n"
                         "{\"method\":\"io.gpumemd.ListSessions\",\"parameters\":{\"after\":2}}\n");
        CU_ASSERT(has(
                result.out,
                "SESSION  PID   UID  COMMAND     ENGINE    STATE       OBJECTS  FRAMES  MEMORY  "
                "SINCE                TENANT    DEVICE\n"
                "      1   42  1000  gpumem-gen  e?[1mvil  waiting           2      16  32 MiB  "
                "2025-11-29 13:49:52  uid-1000  GPU-1\n"));
        CU_ASSERT(has(
                result.out,
                "      7   43  1000  -           -         connecting        0       0     0 B  "
                "2025-11-29 13:49:52  uid-1000  -\n"));
        CU_ASSERT(has(result.out, "SESSION  OBJECT  KIND     FRAMES  MAXIMUM  MEMORY  NAME\n"
                                  "      1       1  kv_pool      12       24  24 MiB  kv\n"
                                  "      1       2  buffer        4        4   8 MiB  -\n"
                                  "      2       1  kv_pool"));
        CU_ASSERT_PTR_NULL(strchr(result.out, '\x1b'));
        result_free(&result);

        stand_in_start(&s, answers, 2);
        result = run("ps", "--json", "--socket", s.address.sun_path, NULL);
        stand_in_stop(&s);
        CU_ASSERT_EQUAL(result.status, CTL_OK);
        json_object *json = json_tokener_parse(result.out);
        CU_ASSERT_PTR_NOT_NULL_FATAL(json);
        CU_ASSERT_EQUAL(json_object_array_length(json_object_object_get(json, "sessions")), 3);
        json_object_put(json);
        result_free(&result);

        result = ask("ps", "{\"parameters\":{\"sessions\":[]}}");
        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT_STRING_EQUAL(result.out, "no sessions\n");
        result_free(&result);
}

/* A daemon gone mad must not keep us for ever. */
static void test_ps_in_a_circle(void)
{
        static const char *const answers[] = {
                "{\"parameters\":{\"sessions\":[],\"next\":2}}",
                "{\"parameters\":{\"sessions\":[],\"next\":2}}",
        };
        struct stand_in s;
        struct result result;

        stand_in_start(&s, answers, 2);
        result = run("ps", "--socket", s.address.sun_path, NULL);
        stand_in_stop(&s);
        CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
        CU_ASSERT_STRING_EQUAL(result.out, "");
        CU_ASSERT(has(result.messages, "circle"));
        result_free(&result);
}

static void test_meminfo(void)
{
        const char *answer = "{\"parameters\":{\"devices\":[{" DEVICE ",\"bytes\":" FRAME_BYTES
                             ",\"fresh_low_frames\":4,\"fresh_high_frames\":8,\"tenants\":[{"
                             "\"tenant\":\"uid-1000\",\"charged_bytes\":37748736,\"granted_bytes\":"
                             "33554432,\"ready_bytes\":2097152,\"dirty_bytes\":2097152,"
                             "\"draining_bytes\":0,\"releasing_bytes\":0,"
                             "\"withheld_bytes\":1048576}]}]}}";
        struct stand_in s;
        struct result result;

        stand_in_start(&s, &answer, 1);
        result = run("meminfo", "--device", "GPU-1", "--socket", s.address.sun_path, NULL);
        stand_in_stop(&s);
        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT_STRING_EQUAL(
                s.calls,
                "{\"method\":\"io.gpumemd.GetMemInfo\",\"parameters\":{\"device\":\"GPU-1\"}}\n");
        CU_ASSERT(has(result.out, "GPU-1 (simulated)\n"));
        CU_ASSERT(has(result.out, "  granted       32 MiB  16 frames  held by sessions\n"));
        CU_ASSERT(has(result.out, "filled below 4, up to 8\n"));
        CU_ASSERT(
                has(result.out,
                    "  TENANT    CHARGED  GRANTED  READY  DIRTY  DRAINING  RELEASING  WITHHELD\n"
                    "  uid-1000   36 MiB   32 MiB  2 MiB  2 MiB       0 B        0 B     1 MiB\n"));
        result_free(&result);
}

static void test_tenants(void)
{
        struct result result = ask(
                "tenants",
                "{\"parameters\":{\"complete\":true,\"tenants\":[{\"tenant\":\"chat\",\"max_bytes\":"
                "2097152,\"charged_bytes\":2097152,\"sessions\":2,\"devices\":[{\"device\":\"GPU-1\","
                "\"memory\":{\"tenant\":\"chat\",\"charged_bytes\":2097152,\"granted_bytes\":1048576,"
                "\"ready_bytes\":0,\"dirty_bytes\":0,\"draining_bytes\":0,\"releasing_bytes\":0,"
                "\"withheld_bytes\":1048576},\"available_bytes\":0,\"waiting_grants\":1}]},"
                "{\"tenant\":\"idle\",\"charged_bytes\":0,\"sessions\":0,\"devices\":[]}]}}");

        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT(has(result.out,
                      "TENANT  SESSIONS  DEVICE    MAX  CHARGED  GRANTED  READY  DIRTY  "
                      "DRAINING  RELEASING  WITHHELD  AVAILABLE  WAITING\n"
                      "chat           2  GPU-1   2 MiB    2 MiB    1 MiB    0 B    0 B  "
                      "     0 B        0 B     1 MiB        0 B        1\n"
                      "idle           0  -         max        -"));
        result_free(&result);

        result = ask("tenants", "{\"parameters\":{\"tenants\":[],\"complete\":false}}");
        CU_ASSERT_STRING_EQUAL(result.out, "no tenants\n(and more)\n");
        result_free(&result);
}

static void test_check(void)
{
        struct result result;

        result = ask("debug", "{\"parameters\":{\"ok\":true,\"report\":[\"32 frames\"]}}");
        CU_ASSERT_EQUAL(result.status, CTL_OK);
        CU_ASSERT_STRING_EQUAL(result.out, "ok: everything adds up\n  32 frames\n");
        CU_ASSERT_STRING_EQUAL(result.messages, "");
        result_free(&result);

        result = ask("debug", "{\"parameters\":{\"ok\":false,\"report\":[\"31 of 32 frames\","
                              "\"uid-7 is charged too much\"]}}");
        CU_ASSERT_EQUAL(result.status, CTL_REFUSED);
        CU_ASSERT_STRING_EQUAL(result.out, "this does not add up:\n  31 of 32 frames\n"
                                           "  uid-7 is charged too much\n");
        CU_ASSERT(has(result.messages, "found 2 faults"));
        result_free(&result);
}

static void test_errors(void)
{
        static const struct {
                const char *answer, *sentence;
        } cases[] = {
                {"{\"error\":\"org.varlink.service.MethodNotFound\",\"parameters\":{\"method\":"
                 "\"io.gpumemd.GetStatus\"}}",
                 "does not know io.gpumemd.GetStatus"},
                {"{\"error\":\"org.varlink.service.InvalidParameter\",\"parameters\":{"
                 "\"parameter\":\"x\\u0007\"}}",
                 "the parameter \"x?\""},
                {"{\"error\":\"io.gpumemd.DeviceNotFound\",\"parameters\":{\"device\":\"GPU-9\"}}",
                 "no device \"GPU-9\""},
                {"{\"error\":\"io.gpumemd.InternalError\",\"parameters\":{\"code\":12,"
                 "\"message\":\"Cannot allocate memory\"}}",
                 "Cannot allocate memory"},
                {"{\"error\":\"io.gpumemd.InternalError\"}", "could not answer: ?"},
                {"{\"error\":\"com.example.\\u001bOther\",\"parameters\":{\"a\":1}}",
                 "com.example.?Other"},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct result result = ask("status", cases[i].answer);

                CU_ASSERT_EQUAL(result.status, CTL_REFUSED);
                CU_ASSERT_STRING_EQUAL(result.out, "");
                CU_ASSERT(has(result.messages, cases[i].sentence));
                result_free(&result);
        }
}

static void test_nonsense(void)
{
        static const struct {
                const char *answer, *sentence;
        } cases[] = {
                {NULL, "closed the connection without an answer"},
                {"", "is not gpumemd"},
                {"HTTP/1.1 400 Bad Request", "is not gpumemd"},
                {"[]", "is not gpumemd"},
                {"{\"parameters\":[]}", "parameters are not an object"},
                {"{\"error\":5}", "the error has no name"},
                {"{\"parameters\":{},\"continues\":true}", "more answers"},
                {"{}", "no usable \"devices\""},
                {"{\"parameters\":{\"devices\":[]}}", "no usable \"version\""},
                {"{\"parameters\":{\"devices\":[7],\"version\":\"\",\"driver\":\"\",\"uptime_us\":1,"
                 "\"sessions\":1,\"waiting_grants\":0}}",
                 "no usable \"frames\""},
                {"{\"parameters\":{\"devices\":[],\"version\":\"\",\"driver\":\"\",\"uptime_us\":\"1"
                 "\",\"sessions\":1,\"waiting_grants\":0}}",
                 "no usable \"uptime_us\""},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct result result = ask("status", cases[i].answer);

                CU_ASSERT_EQUAL(result.status, CTL_UNREACHABLE);
                CU_ASSERT_STRING_EQUAL(result.out, "");
                CU_ASSERT(has(result.messages, cases[i].sentence));
                result_free(&result);
        }
}

/* C64: said done although nothing was written. */
static void test_full_disk(void)
{
        const char *answer = status_answer;
        char *messages = NULL;
        size_t size;
        FILE *out = fopen("/dev/full", "w"), *messages_file = open_memstream(&messages, &size);
        struct stand_in s;
        char *argv[] = {(char *)(uintptr_t) "gpumemctl", (char *)(uintptr_t) "status",
                        (char *)(uintptr_t) "--socket", s.address.sun_path, NULL};

        CU_ASSERT_PTR_NOT_NULL_FATAL(out);
        stand_in_start(&s, &answer, 1);
        CU_ASSERT_EQUAL(ctl_run(4, argv, out, messages_file), CTL_REFUSED);
        stand_in_stop(&s);
        fclose(out);
        fclose(messages_file);
        CU_ASSERT(has(messages, "cannot write the output"));
        free(messages);
}

int main(void)
{
        CU_pSuite suite;
        unsigned int failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("gpumemctl", NULL, NULL);
        CU_add_test(suite, "wrong command lines", test_usage);
        CU_add_test(suite, "help", test_help);
        CU_add_test(suite, "daemon not there", test_unreachable);
        CU_add_test(suite, "timeout", test_timeout);
        CU_add_test(suite, "status", test_status);
        CU_add_test(suite, "json", test_json);
        CU_add_test(suite, "ps", test_ps);
        CU_add_test(suite, "ps in a circle", test_ps_in_a_circle);
        CU_add_test(suite, "meminfo", test_meminfo);
        CU_add_test(suite, "tenants", test_tenants);
        CU_add_test(suite, "debug check", test_check);
        CU_add_test(suite, "errors of the daemon", test_errors);
        CU_add_test(suite, "answers that make no sense", test_nonsense);
        CU_add_test(suite, "C64 output not written", test_full_disk);
        CU_basic_set_mode(CU_BRM_NORMAL);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures > 0;
}
