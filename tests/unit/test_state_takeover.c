/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takeovers by whole daemons, one process after another, each with a driver that keeps books,
 * beside a real keeper. Between two of them the state is changed at random, or the driver fails:
 * the next daemon must start, be served, and find that everything adds up.
 *
 * The test is the client of all of them: sockets of its own, which the daemons are given.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/keeper_link.h"
#include "daemon/session.h"
#include "daemon/state.h"
#include "libclient/wire/wire.h"
#include "tests/support/daemon_process.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/fake_driver.h"
#include "tests/support/raw_client.h"

/* Each round is a process of its own, and ThreadSanitizer makes starting one slow. */
#ifdef __SANITIZE_THREAD__
#define ROUNDS 20
#else
#define ROUNDS 250
#endif

#define FRAMES  48
#define CLIENTS 3
/* A session whose serial was changed may wait for ever. */
#define ANSWER_MS 300

enum {
        DAEMON_OK = 0,
        DAEMON_REFUSED = 3, /* it did not start */
};

static char directory[64], path[96];
static pid_t keeper;

static struct connected {
        struct raw_client raw;
        bool open;
        uint64_t object;
        uint64_t ids[FRAMES];
        uint32_t count;
} clients[CLIENTS];

static void pause_ms(long ms)
{
        const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

        nanosleep(&pause, NULL);
}

static uint64_t next(uint64_t *state)
{
        uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64 */

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

static void stop_keeper(void)
{
        if (keeper <= 0)
                return;
        kill(keeper, SIGKILL);
        waitpid(keeper, NULL, 0);
        keeper = 0;
}

static void start_keeper(void)
{
        char program[PATH_MAX];

        CU_ASSERT_EQUAL_FATAL(daemon_process_product("gpumemd-keeper", program, sizeof(program)),
                              0);
        keeper = fork();
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

/* --- the daemon's side ---------------------------------------------------------------------------
 */

struct order {
        uint64_t seed;
        int corrupt;            /* how many places of the state to change before dying */
        enum fake_call failing; /* FAKE_CALL_COUNT: none */
        uint32_t nth, times;
};

static int on_control(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
        char byte;

        (void)revents;
        (void)userdata;
        /* 'c': somebody connects (a descriptor follows); 'e': the end. */
        if (recv(fd, &byte, 1, MSG_PEEK) <= 0 || byte == 'e')
                return sd_event_exit(sd_event_source_get_event(source), 0);
        return 0;
}

static void corrupt(struct state *state, uint64_t seed, int places)
{
        const struct state_header header = *state->header; /* as it was */
        struct state_device device;
        uint64_t random = seed;

        if (!state_read_device(state, 0, &device))
                return;
        for (int i = 0; i < places; i++) {
                size_t from = 0, size = state->size, at;

                switch (next(&random) % 4) {
                case 0:
                        from = device.frames_offset;
                        size = device.frames * sizeof(struct state_frame);
                        break;
                case 1:
                        from = header.sessions_offset;
                        size = sizeof(struct state_session) -
                               sizeof(((struct state_session *)0)->objects);
                        break;
                case 2:
                        from = header.sessions_offset + offsetof(struct state_session, objects);
                        size = 2 * sizeof(struct state_object);
                        break;
                default:
                        size = sizeof(*state->header) + sizeof(struct state_device);
                        break;
                }
                if (from > state->size || size > state->size - from || size == 0)
                        continue;
                at = from + next(&random) % size;
                state->base[at] = next(&random) % 2 ? (uint8_t)next(&random)
                                                    : (uint8_t)(state->base[at] ^ 1u);
        }
}

static _Noreturn void run_daemon(const struct order *order, int control, const int *sockets)
{
        const struct keeper_link_options options = {.path = path};
        const struct driver *driver = fake_driver_open(FRAMES);
        struct keeper_link *link;
        struct config config;
        struct daemon *daemon;
        char report[4096];
        uint64_t held;

        alarm(60);
        config_init(&config);
        config.gpu_memory_utilization = 1.0;
        config.log_level = LOG_LEVEL_ERROR;
        config.max_clients = 16;
        config.devices_count = 1;
        config.devices[0] = (struct config_device){
                .match = "*", .watermark_low = 2, .watermark_high = 4, .given = UINT32_MAX};
        if (keeper_link_new_consume_fd(&link, -1, &options, &held) < 0)
                _exit(2);
        if (order->failing != FAKE_CALL_COUNT)
                fake_driver_fail(order->failing, order->nth, order->times, CUDA_ERROR_UNKNOWN);
        if (daemon_new_with_keeper(&daemon, &config, -1, driver, link, held) < 0)
                _exit(DAEMON_REFUSED);
        for (int i = 0; i < CLIENTS; i++)
                if (sockets[i] >= 0 && session_new_consume_fd(daemon, sockets[i]) < 0)
                        _exit(4);
        if (daemon_check(daemon, report, sizeof(report)) != 0) {
                fprintf(stderr, "after the takeover: %s", report);
                _exit(5);
        }
        device_wake(list_entry(daemon->devices.next, struct device, link));
        if (sd_event_add_io(daemon->event, NULL, control, EPOLLIN, on_control, daemon) < 0 ||
            sd_event_loop(daemon->event) < 0)
                _exit(6);
        if (daemon_check(daemon, report, sizeof(report)) != 0) {
                fprintf(stderr, "at the end: %s", report);
                _exit(7);
        }
        if (fake_driver_misuses() != 0)
                _exit(8);
        corrupt(daemon->state, order->seed, order->corrupt);
        _exit(DAEMON_OK); /* no farewell */
}

/* --- the clients' side ---------------------------------------------------------------------------
 */

static void forget(struct connected *client)
{
        if (client->open)
                raw_close(&client->raw);
        client->open = false;
        client->count = 0;
}

/* A few requests of one client; whatever goes wrong (its state may be nonsense) ends its session.
 */
static void work(struct connected *client, uint64_t *random)
{
        uint64_t ids[8];

        for (int i = 0; i < 4; i++) {
                uint32_t count = 1 + (uint32_t)(next(random) % 4);
                int r;

                if (next(random) % 2 && client->count + count <= FRAMES) {
                        r = raw_grant(&client->raw, client->object, count, 0, ids);
                        if (r == 0) {
                                memcpy(client->ids + client->count, ids, count * sizeof(ids[0]));
                                client->count += count;
                        }
                } else {
                        if (count > client->count)
                                continue;
                        client->count -= count;
                        r = raw_return(&client->raw, client->object, count,
                                       client->ids + client->count);
                }
                if (r != 0 && r != -GPUMEM_E_AGAIN) {
                        forget(client);
                        return;
                }
        }
}

/* One daemon's life. Returns its exit status. */
static int generation(const struct order *order, uint64_t *random)
{
        static const uint8_t uuid[16] = {0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a,
                                         0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a};
        int sockets[CLIENTS], control[2], status = -1;
        pid_t pid;

        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control), 0);
        for (int i = 0; i < CLIENTS; i++) {
                int pair[2];

                sockets[i] = -1;
                if (clients[i].open)
                        continue;
                CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair),
                                      0);
                raw_attach(&clients[i].raw, pair[0]);
                clients[i].raw.features = GPUMEM_FEATURE_RESUME;
                clients[i].raw.timeout_ms = ANSWER_MS;
                clients[i].count = 0;
                sockets[i] = pair[1];
        }
        pid = fork();
        CU_ASSERT_FATAL(pid >= 0);
        if (pid == 0) {
                close(control[0]);
                for (int i = 0; i < CLIENTS; i++)
                        close(clients[i].raw.fd);
                run_daemon(order, control[1], sockets);
        }
        close(control[1]);
        for (int i = 0; i < CLIENTS; i++) {
                if (sockets[i] < 0)
                        continue;
                close(sockets[i]);
                clients[i].open = true;
                if (raw_hello(&clients[i].raw, uuid, FAKE_GRANULARITY, "client") != 0 ||
                    raw_object_create(&clients[i].raw, 1, 1000, &clients[i].object) != 0)
                        forget(&clients[i]);
        }
        for (int i = 0; i < CLIENTS; i++)
                if (clients[i].open)
                        work(&clients[i], random);
        if (send(control[0], "e", 1, MSG_NOSIGNAL) < 0) {
                /* (it is gone already) */
        }
        waitpid(pid, &status, 0);
        close(control[0]);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void start_anew(void)
{
        for (int i = 0; i < CLIENTS; i++)
                forget(&clients[i]);
        stop_keeper();
        start_keeper();
}

/* Without corruption every session goes on for ever. */
static void test_sound(void)
{
        uint64_t random = 11;
        struct order order = {.failing = FAKE_CALL_COUNT};

        start_anew();
        for (int i = 0; i < 25; i++) {
                CU_ASSERT_EQUAL(generation(&order, &random), DAEMON_OK);
                for (int j = 0; j < CLIENTS; j++)
                        CU_ASSERT_TRUE(clients[j].open);
        }
        start_anew();
}

static void test_corruption(void)
{
        uint64_t random = 12;
        unsigned refused = 0;

        start_anew();
        for (int i = 0; i < ROUNDS; i++) {
                const struct order order = {
                        .failing = FAKE_CALL_COUNT,
                        .seed = next(&random),
                        .corrupt = 1 + (int)(next(&random) % 6),
                };
                int r = generation(&order, &random);

                if (r == DAEMON_REFUSED) {
                        /* The version was hit: only a new keeper helps. */
                        refused++;
                        start_anew();
                        continue;
                }
                if (r != DAEMON_OK)
                        fprintf(stderr, "round %d: the daemon ended with %d\n", i, r);
                CU_ASSERT_EQUAL(r, DAEMON_OK);
        }
        CU_ASSERT(refused < 100);
        start_anew();
}

/* Each driver call of a takeover fails once, and from then on: the frames it was for are given up,
 * the sessions that had them are closed, the others go on. */
static void test_driver_failures(void)
{
        static const enum fake_call calls[] = {FAKE_IMPORT, FAKE_MAP, FAKE_SET_ACCESS};
        const struct order sound = {.failing = FAKE_CALL_COUNT};
        uint64_t random = 13;

        for (size_t call = 0; call < 3; call++) {
                for (uint32_t nth = 1; nth <= 12; nth += 1 + nth / 4) {
                        for (uint32_t times = 1; times <= 1000; times += 999) {
                                const struct order order = {
                                        .failing = calls[call], .nth = nth, .times = times};

                                start_anew();
                                CU_ASSERT_EQUAL(generation(&sound, &random), DAEMON_OK);
                                CU_ASSERT_EQUAL(generation(&order, &random), DAEMON_OK);
                                CU_ASSERT_EQUAL(generation(&sound, &random), DAEMON_OK);
                                CU_ASSERT_EQUAL(generation(&sound, &random), DAEMON_OK);
                        }
                }
        }
        start_anew();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"sound", test_sound},
                {"corruption", test_corruption},
                {"failures of the driver", test_driver_failures},
        };
        int r;

        snprintf(directory, sizeof(directory), "/dev/shm/gpumem-test-takeover-XXXXXX");
        if (!mkdtemp(directory))
                return 2;
        snprintf(path, sizeof(path), "%s/keeper.sock", directory);
        r = UNIT_RUN("takeover", tests);
        stop_keeper();
        unlink(path);
        rmdir(directory);
        return r;
}
