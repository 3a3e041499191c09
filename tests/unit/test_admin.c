/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admin interface: its definition, the building of its replies, and gpumemctl asking a daemon
 * that is made up here, so that its books can be made wrong.
 */
#include "daemon/admin.h"
#include "daemon/admin_internal.h"
#include "tests/support/varlink_definition.h"

#include "daemon/device.h"
#include "daemon/session.h"
#include "tools/gpumemctl/cli.h"

#include <CUnit/Basic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFINITION_PATH "include/gpumem/io.gpumemd.varlink"

/* What is built in is what is in the tree. */
static void test_text(void)
{
        FILE *file = fopen(DEFINITION_PATH, "re");
        char text[65536];
        size_t length;

        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        length = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
        text[length] = '\0';
        CU_ASSERT(length > 1000);
        CU_ASSERT_STRING_EQUAL(admin_interface_text, text);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "\ninterface io.gpumemd\n"));
}

static int check(enum varlink_part part, const char *name, const char *json)
{
        json_object *parameters = json_tokener_parse(json);
        char why[256] = "";
        int r;

        CU_ASSERT_PTR_NOT_NULL_FATAL(parameters);
        r = varlink_definition_check(admin_interface_text, part, name, parameters, why,
                                     sizeof(why));
        json_object_put(parameters);
        CU_ASSERT_EQUAL(r != 0, why[0] != '\0');
        return r;
}

#define TENANT                                                                                     \
        "\"tenant\":\"a\",\"charged_bytes\":1,\"granted_bytes\":1,\"draining_bytes\":0,"           \
        "\"ready_bytes\":0,\"dirty_bytes\":0,\"releasing_bytes\":0,"                               \
        "\"withheld_bytes\":0"
#define STATES                                                                                     \
        "{\"free\":1,\"fresh\":1,\"granted\":1,\"dirty\":1,\"ready\":1,\"draining\":1,"            \
        "\"quarantined\":1}"
#define MEMORY(bytes, tenants)                                                                               \
        "{\"devices\":[{\"uuid\":\"a\",\"name\":\"b\",\"frame_bytes\":" bytes                                \
        ",\"total_bytes\":1,\"managed_bytes\":1,\"withheld_bytes\":1,\"outside_bytes\":1,\"frames\":" STATES \
        ",\"bytes\":" STATES                                                                                 \
        ",\"fresh_low_frames\":1,\"fresh_high_frames\":1,\"tenants\":[" tenants "]}]}"

/* The definition parses, and the checker of the integration tests can say no. */
static void test_definition(void)
{
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true,\"report\":[\"x\"]}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":1,\"report\":[]}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true,\"report\":[1]}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true,\"report\":{}}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true}"), 1);
        CU_ASSERT_EQUAL(
                check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true,\"report\":[],\"more\":1}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "[]"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "DebugCheck", "{}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "DebugCheck", "{\"x\":1}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "ListSessions", "{}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "ListSessions", "{\"after\":7}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "ListSessions", "{\"after\":\"7\"}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1", "{" TENANT "}")), 0);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1", "")), 0);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1.5", "{" TENANT "}")), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1", "{" TENANT ",\"x\":1}")),
                        1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1", "{\"tenant\":\"a\"}")), 1);
        CU_ASSERT_EQUAL(check(VARLINK_ERROR, "DeviceNotFound", "{\"device\":\"a\"}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_ERROR, "DeviceNotFound", "{}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "NoSuchMethod", "{}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_ERROR, "GetStatus", "{}"), 1);
}

static void test_enumeration(void)
{
        static const char status[] =
                "{\"version\":\"1\",\"uptime_us\":1,\"epoch\":1,\"driver\":\"%s\",\"devices\":[],"
                "\"sessions\":0,\"waiting_grants\":0}";
        char text[512];

        snprintf(text, sizeof(text), status, "simulated");
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetStatus", text), 0);
        snprintf(text, sizeof(text), status, "simulate");
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetStatus", text), 1);
}

static void test_reply_building(void)
{
        static const struct {
                const char *in, *out;
        } texts[] = {
                {"plain", "plain"},
                {"", ""},
                {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
                {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
                {"\xff"
                 "a",
                 "?a"},
                {"cut \xc3", "cut ?"},
                {"cut \xf0\x9f\x98", "cut ???"},
                {"\xc0\x80", "??"},           /* overlong */
                {"\xed\xa0\x80", "???"},      /* surrogate */
                {"\xf4\x90\x80\x80", "????"}, /* beyond the last code point */
                {"\xc3\xbc\xff", "???"},      /* one wrong byte, and none is trusted */
        };
        struct admin_reply reply;
        json_object *list, *parsed;

        admin_reply_init(&reply);
        list = admin_add_array(&reply, reply.parameters, "texts");
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
                admin_append_text(&reply, list, texts[i].in);
        admin_add_int(&reply, reply.parameters, "large", UINT64_MAX);
        CU_ASSERT_FALSE(reply.failed);
        parsed = json_tokener_parse(json_object_to_json_string(reply.parameters));
        CU_ASSERT_PTR_NOT_NULL_FATAL(parsed);
        list = json_object_object_get(parsed, "texts");
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
                CU_ASSERT_STRING_EQUAL(json_object_get_string(json_object_array_get_idx(list, i)),
                                       texts[i].out);
        CU_ASSERT_EQUAL(json_object_get_int64(json_object_object_get(parsed, "large")), INT64_MAX);
        json_object_put(parsed);

        /* A container that could not be made is remembered, and adding to it is harmless. */
        admin_add_int(&reply, NULL, "x", 1);
        CU_ASSERT(reply.failed);
        admin_append_text(&reply, NULL, "x");
        CU_ASSERT_PTR_NULL(admin_append_object(&reply, NULL));
        json_object_put(reply.parameters);
}

/* --- a daemon made up --- */

enum { FRAMES = 4 };

struct world {
        struct daemon daemon;
        struct device device;
        struct driver driver;
        struct admin *admin;
        struct sockaddr_un address;
        int listen_fd;
        char directory[64];
};

static void world_open(struct world *w)
{
        memset(w, 0, sizeof(*w));
        list_init(&w->daemon.devices);
        list_init(&w->daemon.sessions);
        list_init(&w->daemon.tenants);
        list_init(&w->daemon.dead);
        log_init(&w->daemon.log, -1, LOG_LEVEL_ERROR);
        w->driver.kind = DRIVER_CUDA;
        w->daemon.driver_use = &w->driver;
        CU_ASSERT_FATAL(sd_event_new(&w->daemon.event) >= 0);

        w->device.daemon = &w->daemon;
        strcpy(w->device.uuid_text, "GPU-1");
        strcpy(w->device.name, "made \xff up");
        list_init(&w->device.tenants);
        list_init(&w->device.sessions);
        list_init(&w->device.queue.waits);
        frame_list_init(&w->device.fresh);
        frame_list_init(&w->device.quarantined);
        CU_ASSERT_EQUAL_FATAL(frame_table_init(&w->device.table, FRAMES, 2 << 20, &w->device.free),
                              0);
        list_append(&w->daemon.devices, &w->device.link);
        w->daemon.devices_count = 1;

        strcpy(w->directory, "/tmp/admin-XXXXXX");
        CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(w->directory));
        w->address.sun_family = AF_UNIX;
        snprintf(w->address.sun_path, sizeof(w->address.sun_path), "%s/admin.sock", w->directory);
        w->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CU_ASSERT_EQUAL_FATAL(
                bind(w->listen_fd, (struct sockaddr *)&w->address, sizeof(w->address)), 0);
        CU_ASSERT_EQUAL_FATAL(listen(w->listen_fd, 8), 0);
        CU_ASSERT_EQUAL_FATAL(admin_new(&w->admin, &w->daemon, w->listen_fd), 0);
}

static void world_close(struct world *w)
{
        w->admin = admin_free(w->admin);
        close(w->listen_fd);
        unlink(w->address.sun_path);
        rmdir(w->directory);
        frame_table_deinit(&w->device.table);
        sd_event_unref(w->daemon.event);
}

struct asking {
        char *argv[8];
        int argc, status;
        char *out, *messages;
        atomic_bool done;
};

static void *asking_run(void *userdata)
{
        struct asking *asking = userdata;
        size_t out_size, messages_size;
        FILE *out = open_memstream(&asking->out, &out_size);
        FILE *messages = open_memstream(&asking->messages, &messages_size);

        asking->status = ctl_run(asking->argc, asking->argv, out, messages);
        fclose(out);
        fclose(messages);
        atomic_store(&asking->done, true);
        return NULL;
}

/* gpumemctl WORD [SECOND] on a thread, the loop on this one. */
static void ask(struct world *w, struct asking *asking, const char *word, const char *second)
{
        pthread_t thread;

        memset(asking, 0, sizeof(*asking));
        asking->argv[asking->argc++] = (char *)(uintptr_t) "gpumemctl";
        asking->argv[asking->argc++] = (char *)(uintptr_t) "--socket";
        asking->argv[asking->argc++] = w->address.sun_path;
        asking->argv[asking->argc++] = (char *)(uintptr_t)word;
        if (second != NULL)
                asking->argv[asking->argc++] = (char *)(uintptr_t)second;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, asking_run, asking), 0);
        while (!atomic_load(&asking->done))
                CU_ASSERT_FATAL(sd_event_run(w->daemon.event, 10000) >= 0);
        pthread_join(thread, NULL);
}

static void asking_deinit(struct asking *asking)
{
        free(asking->out);
        free(asking->messages);
}

static bool has(const char *text, const char *part)
{
        if (strstr(text, part) != NULL)
                return true;
        fprintf(stderr, "\nno \"%s\" in \"%s\"\n", part, text);
        return false;
}

static void test_check(void)
{
        struct asking asking;
        struct world w;

        world_open(&w);
        ask(&w, &asking, "debug", "check");
        CU_ASSERT_EQUAL(asking.status, 0);
        CU_ASSERT(has(asking.out, "ok: everything adds up\n"));
        CU_ASSERT_STRING_EQUAL(asking.messages, "");
        asking_deinit(&asking);

        w.device.table.states[FRAME_FREE]--; /* a frame got lost */
        ask(&w, &asking, "debug", "check");
        CU_ASSERT_EQUAL(asking.status, 1);
        CU_ASSERT(has(asking.out, "this does not add up:\n  "));
        CU_ASSERT(has(asking.messages, "the check found"));
        asking_deinit(&asking);
        ask(&w, &asking, "--json", "status");
        CU_ASSERT_EQUAL(asking.status, 0); /* and it goes on answering */
        asking_deinit(&asking);
        w.device.table.states[FRAME_FREE]++;
        world_close(&w);
}

static void test_status(void)
{
        struct asking asking;
        struct world w;

        world_open(&w);
        w.device.total_bytes = UINT64_C(16) << 20;
        ask(&w, &asking, "status", NULL);
        CU_ASSERT_EQUAL(asking.status, 0);
        CU_ASSERT(has(asking.out, "driver cuda"));
        CU_ASSERT(has(asking.out, "GPU-1   made ? up  ok     2 MiB  16 MiB    8 MiB      0 B"));
        CU_ASSERT(has(asking.out, "GPU-1      4      0        0"));
        asking_deinit(&asking);

        w.device.state = DEVICE_DEGRADED;
        strcpy(w.device.trouble, "cuMemCreate: CUDA_ERROR_UNKNOWN");
        ask(&w, &asking, "status", NULL);
        CU_ASSERT(has(asking.out, "GPU-1 is degraded: cuMemCreate: CUDA_ERROR_UNKNOWN\n"));
        asking_deinit(&asking);
        world_close(&w);
}

/* A process that is gone has no name, whatever its number names now. */
static void test_session_of_the_dead(void)
{
        struct tenant tenant = {.name = "uid-0"};
        struct session session = {.number = 7, .state = SESSION_DRAINING, .tenant = &tenant};
        struct asking asking;
        struct world w;
        int fds[2];

        world_open(&w);
        CU_ASSERT_EQUAL_FATAL(pipe(fds), 0);
        session.identity.pid = getpid();
        session.identity.uid = 1000;
        session.identity.pidfd = fds[0]; /* stands for a pidfd: readable once "dead" */
        session.draining.count = 3;
        session.device = &w.device;
        strcpy(session.name, "engine");
        list_append(&w.daemon.sessions, &session.link);
        ask(&w, &asking, "ps", NULL);
        CU_ASSERT_EQUAL(asking.status, 0);
        CU_ASSERT(has(asking.out, "1000  test_admin  engine  draining        0       3   6 MiB"));
        asking_deinit(&asking);
        close(fds[1]);
        ask(&w, &asking, "ps", NULL);
        CU_ASSERT(has(asking.out, "1000  -        engine  draining        0       3   6 MiB"));
        asking_deinit(&asking);
        close(fds[0]);
        world_close(&w);
}

int main(void)
{
        CU_pSuite suite;
        unsigned int failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("admin", NULL, NULL);
        CU_add_test(suite, "built-in definition", test_text);
        CU_add_test(suite, "definition and checker", test_definition);
        CU_add_test(suite, "enumeration", test_enumeration);
        CU_add_test(suite, "building replies", test_reply_building);
        CU_add_test(suite, "check of wrong books", test_check);
        CU_add_test(suite, "status", test_status);
        CU_add_test(suite, "session of a dead process", test_session_of_the_dead);
        CU_basic_set_mode(CU_BRM_NORMAL);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures > 0;
}
