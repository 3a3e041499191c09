/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper by itself, with made-up daemons, and as a service beside a real one. Daemons are
 * processes of their own, since the keeper serves one process at a time.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/keeper_link.h"
#include "daemon/state.h"
#include "libclient/wire/wire.h"
#include "tests/support/daemon_process.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/raw_client.h"

#define FRAMES 600 /* more than two messages hold */

static char directory[64], path[96];
static pid_t keeper;

static void pause_ms(long ms)
{
        const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

        nanosleep(&pause, NULL);
}

static void start_keeper(void)
{
        char program[PATH_MAX];

        CU_ASSERT_EQUAL_FATAL(daemon_process_product("gpumemd-keeper", program, sizeof(program)),
                              0);
        keeper = fork();
        CU_ASSERT_FATAL(keeper >= 0);
        if (keeper == 0) {
                int null = open("/dev/null", O_WRONLY);

                dup2(null, STDERR_FILENO);
                execl(program, program, "--listen", path, (char *)NULL);
                _exit(127);
        }
        for (int i = 0; i < 500; i++) {
                struct sockaddr_un address = {.sun_family = AF_UNIX};
                int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r;

                snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
                r = connect(fd, (struct sockaddr *)&address, sizeof(address));
                close(fd);
                if (r == 0)
                        return;
                pause_ms(10);
        }
        CU_FAIL_FATAL("the keeper did not start");
}

static void stop_keeper(void)
{
        int status = -1;

        kill(keeper, SIGTERM);
        waitpid(keeper, &status, 0);
        CU_ASSERT_EQUAL(status, 0);
        CU_ASSERT_EQUAL(access(path, F_OK), -1);
}

/* Runs in a process of its own: the exit status is a line number, 0 if all was well. */
static int in_process(int (*daemon)(void))
{
        pid_t pid = fork();
        int status = -1;

        if (pid == 0) {
                alarm(30);
                _exit(daemon() & 255);
        }
        waitpid(pid, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define NEED(condition)                                                                            \
        do {                                                                                       \
                if (!(condition)) {                                                                \
                        fprintf(stderr, "daemon: line %d: %s\n", __LINE__, #condition);            \
                        return __LINE__ % 255 + 1;                                                 \
                }                                                                                  \
        } while (0)

static int join(uint64_t *held)
{
        const struct keeper_link_options options = {.path = path};
        static struct keeper_link *link;

        return keeper_link_new_consume_fd(&link, -1, &options, held);
}

static int new_memfd(uint64_t value)
{
        int fd = memfd_create("frame", MFD_CLOEXEC);

        if (write(fd, &value, sizeof(value)) != sizeof(value)) {
                close(fd);
                return -1;
        }
        return fd;
}

/* One request on a bare socket: the result, or -EPIPE if the keeper closed the connection. */
static int request(int fd, struct keeper_message *message, const int *fds, size_t count,
                   struct wire_fds *set)
{
        uint64_t deadline = wire_deadline_ns(10000);
        size_t length;
        int r = wire_send_with_fds(fd, message, message->header.length, fds, count, 0);

        if (r == 0)
                r = wire_receive_until(fd, message, sizeof(*message), set, &length, deadline);
        if (r != 0)
                return -EPIPE;
        return message->header.result;
}

static void prepare(struct keeper_message *message, uint16_t type, uint16_t count, uint64_t value)
{
        memset(message, 0, sizeof(*message));
        message->header.type = type;
        message->header.count = count;
        message->header.value = value;
        message->header.serial = 7;
        message->header.length =
                (uint32_t)(sizeof(message->header) + count * sizeof(message->entries[0]));
}

static int open_socket(void)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                close(fd);
                return -1;
        }
        return fd;
}

static int say_hello(int fd, uint64_t *held)
{
        struct keeper_message message;
        struct wire_fds set;
        int r;

        prepare(&message, KEEPER_HELLO, 1, KEEPER_MAGIC);
        message.entries[0].version = KEEPER_VERSION;
        r = request(fd, &message, NULL, 0, &set);
        *held = message.header.value;
        return r;
}

/* --- made-up daemons -----------------------------------------------------------------------------
 */

static int daemon_puts(void)
{
        struct keeper_message message;
        struct wire_fds set;
        uint64_t held;
        int fd = open_socket();

        NEED(fd >= 0 && say_hello(fd, &held) == 0 && held == 0);
        for (uint32_t i = 0; i < FRAMES; i++) {
                int frame = new_memfd(i);

                NEED(frame >= 0);
                prepare(&message, KEEPER_PUT, 1, 0);
                message.entries[0] = (struct keeper_entry){.kind = KEEPER_FRAME, .id = i};
                NEED(request(fd, &message, &frame, 1, &set) == 0);
                close(frame);
        }
        /* The same once more takes the place of the first; every third is dropped. */
        for (uint32_t i = 0; i < FRAMES; i += 3) {
                prepare(&message, KEEPER_DROP, 2, 0);
                message.entries[0] = (struct keeper_entry){.kind = KEEPER_FRAME, .id = i};
                message.entries[1] = (struct keeper_entry){.kind = KEEPER_SESSION, .id = i};
                NEED(request(fd, &message, NULL, 0, &set) == 0);
        }
        {
                int frame = new_memfd(1000001);

                prepare(&message, KEEPER_PUT, 1, 0);
                message.entries[0] = (struct keeper_entry){.kind = KEEPER_FRAME, .id = 1};
                NEED(request(fd, &message, &frame, 1, &set) == 0);
        }
        /* Dies without a word. */
        kill(getpid(), SIGKILL);
        return 1;
}

static uint8_t seen[FRAMES];
static uint32_t fetched, wrong;

static void take(void *userdata, uint32_t kind, uint64_t id, int fd)
{
        uint64_t value = 0;

        (void)userdata;
        fetched++;
        if (kind != KEEPER_FRAME || id >= FRAMES || seen[id]++ ||
            pread(fd, &value, sizeof(value), 0) != sizeof(value) ||
            value != (id == 1 ? 1000001 : id))
                wrong++;
        close(fd);
}

static int daemon_fetches(void)
{
        const struct keeper_link_options options = {.path = path};
        struct keeper_link *link;
        uint64_t held;

        NEED(keeper_link_new_consume_fd(&link, -1, &options, &held) == 0);
        NEED(held == FRAMES - FRAMES / 3);
        NEED(keeper_link_fetch(link, take, NULL) == 0);
        NEED(fetched == FRAMES - FRAMES / 3 && wrong == 0);
        for (uint32_t i = 0; i < FRAMES; i++)
                NEED(seen[i] == (i % 3 != 0));
        keeper_link_free(link);
        return 0;
}

static int daemon_counts(void)
{
        uint64_t held;

        NEED(join(&held) == 0);
        return held > 250 ? 250 : (int)held;
}

/* Dies with its answers unread: all that it sent is held, in as many messages as may be out. */
static int daemon_does_not_wait(void)
{
        struct keeper_message message;
        uint64_t held;
        int fd = open_socket();

        NEED(fd >= 0 && say_hello(fd, &held) == 0);
        for (uint32_t i = 0; i < KEEPER_OUTSTANDING_MAX; i++) {
                int frame = new_memfd(i);

                prepare(&message, KEEPER_PUT, 1, 0);
                message.entries[0] = (struct keeper_entry){.kind = KEEPER_FRAME, .id = i};
                NEED(wire_send_with_fds(fd, &message, message.header.length, &frame, 1, 0) == 0);
                close(frame);
        }
        return 0;
}

static void test_sent_is_safe(void)
{
        for (int i = 0; i < 20; i++) {
                start_keeper();
                CU_ASSERT_EQUAL(in_process(daemon_does_not_wait), 0);
                CU_ASSERT_EQUAL(in_process(daemon_counts), KEEPER_OUTSTANDING_MAX);
                stop_keeper();
        }
}

static void test_keeps(void)
{
        start_keeper();
        in_process(daemon_puts);
        CU_ASSERT_EQUAL(in_process(daemon_fetches), 0);
        CU_ASSERT_EQUAL(in_process(daemon_fetches), 0);
        stop_keeper();
        start_keeper();
        CU_ASSERT_EQUAL(in_process(daemon_counts), 0); /* nothing is left */
        stop_keeper();
}

/* --- one at a time -------------------------------------------------------------------------------
 */

static int daemon_is_refused(void)
{
        uint64_t held;

        NEED(join(&held) == -EBUSY);
        return 0;
}

static int daemon_is_taken(void)
{
        uint64_t held;

        NEED(join(&held) == 0);
        /* A second connection of the same process takes over from the first. */
        NEED(join(&held) == 0);
        return 0;
}

static void test_one_daemon(void)
{
        uint64_t held;
        int fd;

        start_keeper();
        fd = open_socket();
        CU_ASSERT_EQUAL(say_hello(fd, &held), 0);
        CU_ASSERT_EQUAL(in_process(daemon_is_refused), 0);
        /* Even without its connection: it lives. */
        close(fd);
        CU_ASSERT_EQUAL(in_process(daemon_is_refused), 0);
        stop_keeper();
        start_keeper();
        CU_ASSERT_EQUAL(in_process(daemon_is_taken), 0);
        CU_ASSERT_EQUAL(in_process(daemon_is_taken), 0);
        stop_keeper();
}

static int daemon_of_another(void)
{
        uint64_t held;
        int fd;

        NEED(setgid(65534) == 0 && setuid(65534) == 0);
        fd = open_socket();
        NEED(fd < 0 || say_hello(fd, &held) == -EPIPE);
        return 0;
}

static void test_other_users(void)
{
        uint64_t held;
        int fd;

        if (geteuid() != 0) {
                printf("skipped: wants root ");
                return;
        }
        start_keeper();
        CU_ASSERT_EQUAL(in_process(daemon_of_another), 0);
        /* Even if the path lets them in. */
        chmod(path, 0666);
        CU_ASSERT_EQUAL(in_process(daemon_of_another), 0);
        fd = open_socket();
        CU_ASSERT_EQUAL(say_hello(fd, &held), 0);
        close(fd);
        stop_keeper();
}

/* --- nonsense ------------------------------------------------------------------------------------
 */

static int daemon_nonsense(void)
{
        struct keeper_message message;
        struct wire_fds set;
        uint64_t held;
        int frame = new_memfd(1), fds[2] = {frame, frame};

        for (int kind = 0; kind < 9; kind++) {
                int fd = open_socket();

                NEED(fd >= 0);
                if (kind > 1)
                        NEED(say_hello(fd, &held) == 0 && held == 0);
                prepare(&message, KEEPER_PUT, 1, 0);
                message.entries[0] = (struct keeper_entry){.kind = KEEPER_FRAME, .id = 1};
                switch (kind) {
                case 0: /* before HELLO */
                        NEED(request(fd, &message, &frame, 1, &set) == -EPIPE);
                        break;
                case 1: /* another version */
                        prepare(&message, KEEPER_HELLO, 1, KEEPER_MAGIC);
                        message.entries[0].version = KEEPER_VERSION + 1;
                        NEED(request(fd, &message, NULL, 0, &set) == -EPROTONOSUPPORT);
                        break;
                case 2: /* fewer descriptors than said */
                        NEED(request(fd, &message, NULL, 0, &set) == -EPIPE);
                        break;
                case 3: /* more */
                        NEED(request(fd, &message, fds, 2, &set) == -EPIPE);
                        break;
                case 4: /* a length that is not its */
                        message.header.length--;
                        NEED(request(fd, &message, &frame, 1, &set) == -EPIPE);
                        break;
                case 5: /* no such type */
                        message.header.type = 99;
                        NEED(request(fd, &message, NULL, 0, &set) == -EPIPE);
                        break;
                case 6: /* no such kind: refused, nothing is held */
                        message.entries[0].kind = KEEPER_KIND_COUNT;
                        NEED(request(fd, &message, &frame, 1, &set) == -EINVAL);
                        break;
                case 7: /* all or nothing: two states are too many */
                        prepare(&message, KEEPER_PUT, 2, 0);
                        message.entries[0] = (struct keeper_entry){.kind = KEEPER_STATE, .id = 0};
                        message.entries[1] = (struct keeper_entry){.kind = KEEPER_STATE, .id = 1};
                        NEED(request(fd, &message, fds, 2, &set) == -E2BIG);
                        break;
                case 8: /* a cursor from nowhere */
                        prepare(&message, KEEPER_FETCH, 0, UINT64_MAX);
                        NEED(request(fd, &message, NULL, 0, &set) == 0);
                        NEED(message.header.count == 0 && message.header.value == 0);
                        break;
                }
                close(fd);
        }
        return 0;
}

static void test_nonsense(void)
{
        start_keeper();
        CU_ASSERT_EQUAL(in_process(daemon_nonsense), 0);
        in_process(daemon_puts);
        CU_ASSERT_EQUAL(in_process(daemon_fetches), 0);
        stop_keeper();
}

/* --- a service beside a real daemon --------------------------------------------------------------
 */

static struct daemon_process *process;
static struct raw_client client;

static int log_says(const char *text)
{
        char line[4096];
        FILE *file = fopen(daemon_process_log(process), "re");
        int found = 0;

        while (file && !found && fgets(line, sizeof(line), file))
                found = strstr(line, text) != NULL;
        if (file)
                fclose(file);
        return found;
}

static int until_log_says(const char *text)
{
        for (int i = 0; i < 500; i++) {
                if (log_says(text))
                        return 1;
                pause_ms(10);
        }
        return 0;
}

static void start_service(void)
{
        const struct daemon_options options = {.memory_bytes = UINT64_C(32) << 20};

        start_keeper();
        setenv("GPUMEM_KEEPER_SOCKET", path, 1);
        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
}

static void stop_service(void)
{
        process = daemon_process_free(process);
        unsetenv("GPUMEM_KEEPER_SOCKET");
        stop_keeper();
}

static int has_granted(int64_t wanted)
{
        int64_t granted = -1;

        daemon_process_number(process, "io.gpumemd.GetStatus", "granted", &granted);
        return granted == wanted;
}

/* Whichever way the daemon ends, connection and memory wait for the next one. */
static void test_service(void)
{
        uint64_t object, ids[4];
        int status;

        start_service();
        CU_ASSERT_EQUAL_FATAL(raw_open_with(&client, process, "raw", GPUMEM_FEATURE_RESUME), 0);
        CU_ASSERT_EQUAL(raw_object_create(&client, 1, 100, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&client, object, 4, 1000, ids), 0);
        for (int i = 0; i < 3; i++) {
                if (i < 2) {
                        kill(daemon_process_pid(process), SIGKILL);
                        while (daemon_process_alive(process))
                                pause_ms(5);
                } else {
                        /* Stopping the daemon keeps everything. */
                        status = daemon_process_stop(process);
                        CU_ASSERT_EQUAL(status, 0);
                        CU_ASSERT_EQUAL(access(daemon_process_client_socket(process), F_OK), 0);
                }
                CU_ASSERT_EQUAL_FATAL(daemon_process_restart(process), 0);
                CU_ASSERT(log_says("sessions=1 frames="));
                CU_ASSERT(has_granted(4));
                CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        }
        /* The client's next request works, and has been told three times. */
        CU_ASSERT_EQUAL(raw_return(&client, object, 1, ids), 0);
        CU_ASSERT_EQUAL(client.resumed_events, 3);
        CU_ASSERT_EQUAL(client.resumed_serial, 3);

        /* The keeper restarts under the daemon, and then the daemon. */
        kill(keeper, SIGKILL);
        waitpid(keeper, NULL, 0);
        CU_ASSERT(until_log_says("the keeper is gone"));
        CU_ASSERT_EQUAL(raw_return(&client, object, 1, ids + 1), 0);
        start_keeper();
        CU_ASSERT(until_log_says("another keeper has been handed everything"));
        pause_ms(100);
        kill(daemon_process_pid(process), SIGKILL);
        while (daemon_process_alive(process))
                pause_ms(5);
        CU_ASSERT_EQUAL_FATAL(daemon_process_restart(process), 0);
        CU_ASSERT(has_granted(2));
        CU_ASSERT_EQUAL(raw_object_destroy(&client, object), 0);
        CU_ASSERT(has_granted(0));
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        raw_close(&client);
        stop_service();
}

/* Asked again by a client, byte for byte: what was answered is answered, nothing is done twice. */
static void test_replay(void)
{
        struct gpumem_message_replay replay;
        struct gpumem_message_grant grant = {.frames = 2, .wait_ms = 1000};
        const struct gpumem_message_grant_reply *reply = (void *)client.message;
        uint64_t ids[2];

        start_service();
        CU_ASSERT_EQUAL_FATAL(raw_open_with(&client, process, "raw", GPUMEM_FEATURE_RESUME), 0);
        CU_ASSERT_EQUAL(raw_object_create(&client, 1, 100, &grant.object), 0);
        client.keep_fds = 1;
        wire_message_init(&grant, GPUMEM_MESSAGE_GRANT, 0);
        CU_ASSERT_EQUAL(raw_call(&client, &grant), 0);
        memcpy(ids, reply->frame_ids, sizeof(ids));
        kill(daemon_process_pid(process), SIGKILL);
        while (daemon_process_alive(process))
                pause_ms(5);
        CU_ASSERT_EQUAL_FATAL(daemon_process_restart(process), 0);
        /* As if the answer had been lost with the daemon. */
        for (int i = 0; i < 2; i++) {
                wire_message_init(&replay, GPUMEM_MESSAGE_REPLAY, client.serial);
                CU_ASSERT_EQUAL(wire_send(client.fd, &replay, sizeof(replay), 0), 0);
                CU_ASSERT_EQUAL(raw_receive(&client, 10000), 0);
                CU_ASSERT_EQUAL(reply->header.type, GPUMEM_MESSAGE_GRANT_REPLY);
                CU_ASSERT_EQUAL(memcmp(ids, reply->frame_ids, sizeof(ids)), 0);
                CU_ASSERT_EQUAL(client.fds_count, 2);
        }
        /* The request once more is not answered, the next one is. */
        CU_ASSERT_EQUAL(wire_send(client.fd, &grant, sizeof(grant), 0), 0);
        CU_ASSERT_EQUAL(raw_return(&client, grant.object, 2, ids), 0);
        CU_ASSERT(has_granted(0));
        /* An answer that is not the last one is not there any more. */
        wire_message_init(&replay, GPUMEM_MESSAGE_REPLAY, client.serial - 1);
        CU_ASSERT_EQUAL(wire_send(client.fd, &replay, sizeof(replay), 0), 0);
        CU_ASSERT(raw_receive(&client, 10000) != 0);
        raw_close(&client);
        stop_service();
}

/* A session without the feature ends with its daemon, but its frames wait for its process. */
static pid_t holder;

static void test_not_resumable(void)
{
        uint64_t object, ids[4];
        int ready[2];
        char byte;

        start_service();
        CU_ASSERT_EQUAL_FATAL(pipe(ready), 0);
        holder = fork();
        if (holder == 0) {
                if (raw_open_with(&client, process, "old", 0) == 0 &&
                    raw_object_create(&client, 1, 100, &object) == 0 &&
                    raw_grant(&client, object, 4, 1000, ids) == 0 && write(ready[1], "x", 1) == 1)
                        pause();
                _exit(1);
        }
        CU_ASSERT_EQUAL(read(ready[0], &byte, 1), 1);
        kill(daemon_process_pid(process), SIGKILL);
        while (daemon_process_alive(process))
                pause_ms(5);
        CU_ASSERT_EQUAL_FATAL(daemon_process_restart(process), 0);
        {
                int64_t draining = -1;

                daemon_process_number(process, "io.gpumemd.GetStatus", "draining", &draining);
                CU_ASSERT_EQUAL(draining, 4);
                CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
                /* And once more, draining already. */
                kill(daemon_process_pid(process), SIGKILL);
                while (daemon_process_alive(process))
                        pause_ms(5);
                CU_ASSERT_EQUAL_FATAL(daemon_process_restart(process), 0);
                daemon_process_number(process, "io.gpumemd.GetStatus", "draining", &draining);
                CU_ASSERT_EQUAL(draining, 4);
                kill(holder, SIGKILL);
                waitpid(holder, NULL, 0);
                for (int i = 0; i < 500 && draining != 0; i++) {
                        daemon_process_number(process, "io.gpumemd.GetStatus", "draining",
                                              &draining);
                        pause_ms(10);
                }
                CU_ASSERT_EQUAL(draining, 0);
        }
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        close(ready[0]);
        close(ready[1]);
        stop_service();
}

static int daemon_leaves_newer_state(void)
{
        struct state_plan plan = {.sessions_max = 4};
        struct keeper_message message;
        struct wire_fds set;
        struct state *state;
        uint64_t held;
        int fd, fds[3];

        NEED(state_new(&state, &plan) == 0);
        state->header->version = STATE_VERSION + 1;
        state_complete(state);
        fd = open_socket();
        NEED(fd >= 0 && say_hello(fd, &held) == 0);
        fds[0] = state->fd;
        fds[1] = new_memfd(1);
        fds[2] = new_memfd(2);
        prepare(&message, KEEPER_PUT, 3, 0);
        message.entries[0] = (struct keeper_entry){.kind = KEEPER_STATE};
        message.entries[1] = (struct keeper_entry){.kind = KEEPER_FRAME, .id = 1};
        message.entries[2] = (struct keeper_entry){.kind = KEEPER_FRAME, .id = 2};
        NEED(request(fd, &message, fds, 3, &set) == 0);
        return 0;
}

/* A daemon that finds what a newer one left does not start and touches nothing. */
static void test_newer_state(void)
{
        start_service();
        CU_ASSERT_EQUAL(daemon_process_stop(process), 0);
        stop_keeper();
        start_keeper();
        CU_ASSERT_EQUAL(in_process(daemon_leaves_newer_state), 0);
        CU_ASSERT_EQUAL(daemon_process_restart(process), -ECHILD);
        CU_ASSERT(log_says("nothing is touched"));
        CU_ASSERT(log_says("install the newer daemon again"));
        CU_ASSERT_EQUAL(in_process(daemon_counts), 3);
        stop_service();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"keeps what it is given", test_keeps},
                {"what was sent is held", test_sent_is_safe},
                {"one daemon at a time", test_one_daemon},
                {"other users", test_other_users},
                {"nonsense", test_nonsense},
                {"a service beside the daemon", test_service},
                {"answers once more", test_replay},
                {"sessions that cannot be resumed", test_not_resumable},
                {"the state of a newer daemon", test_newer_state},
        };
        int r;

        snprintf(directory, sizeof(directory), "/dev/shm/gpumem-test-keeper-XXXXXX");
        if (!mkdtemp(directory))
                return 2;
        snprintf(path, sizeof(path), "%s/keeper.sock", directory);
        r = UNIT_RUN("keeper", tests);
        rmdir(directory);
        return r;
}
