/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many clients: 1,000 connections from ten processes, all open at once, that take and return frames
 * and leave, some in the middle; twice, and then everything must be as it was before.
 *
 * The clients speak the wire protocol and map nothing: what is looked at is the daemon. Frames are
 * small, so that there is one for each at least and the simulated device stays small.
 *
 * Expected before measuring: no errors, nothing leaked; the daemon's memory grows in the first
 * round by what the allocator keeps of 1,000 sessions, and in the second not at all.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/wire/wire.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_daemon.h"

#define PROCESSES   10
#define CLIENTS     1000
#define GRANULARITY (UINT64_C(64) << 10)
#define FRAMES      2048
#define FRAMES_MAX  3 /* taken by one client at once, at most (when it is its turn) */
#define WAIT_MS     20000
#define LEAVES_RAW  8 /* one in so many leaves with frames in hand */

struct tally {
        _Atomic uint64_t connected, grants, returns, errors;
        _Atomic uint32_t arrived; /* processes whose clients are all connected */
};

struct client {
        int fd;
        uint32_t serial;
        uint64_t object;
        uint64_t ids[FRAMES_MAX];
        uint32_t held;
};

struct counts {
        uint64_t rss;         /* bytes of anonymous memory */
        int64_t descriptors;  /* those of frames aside */
        uint64_t frames_held; /* not free, fresh or ready */
        uint64_t sessions;
};

/* --- a client --- */

static int call(struct client *client, void *message, void *reply, size_t size)
{
        struct gpumem_message_header *header = message;
        const struct gpumem_message_header *answer = reply;
        uint64_t deadline = wire_deadline_ns(2 * WAIT_MS);
        struct wire_fds fds;
        size_t length;
        int r;

        header->serial = ++client->serial;
        r = wire_send(client->fd, message, header->length, 0);
        do {
                if (r == 0)
                        r = wire_receive_until(client->fd, reply, size, &fds, &length, deadline);
                if (r != 0)
                        return r > 0 ? -EPROTO : r;
                wire_fds_deinit(&fds);
        } while (answer->type & GPUMEM_MESSAGE_EVENT);
        return answer->type == GPUMEM_MESSAGE_ERROR ? -EREMOTEIO : 0;
}

static _Alignas(8) unsigned char reply[GPUMEM_MESSAGE_MAX];

static int client_open(struct client *client, const char *path, const uint8_t uuid[16])
{
        struct gpumem_message_hello hello = {
                .magic = GPUMEM_PROTOCOL_MAGIC,
                .version_min = GPUMEM_PROTOCOL_VERSION_MIN,
                .version_max = GPUMEM_PROTOCOL_VERSION_MAX,
                .driver_kind = GPUMEM_DRIVER_SIMULATED,
                .granularity = GRANULARITY,
                .name = "gpumem-bench",
        };
        struct gpumem_message_object_create create = {
                .kind = GPUMEM_OBJECT_BUFFER,
                .unit_frames = 1,
                .frames_max = FRAMES_MAX,
                .name = "bench",
        };
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int r;

        *client = (struct client){.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
        if (client->fd < 0)
                return -errno;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        if (connect(client->fd, (struct sockaddr *)&address, sizeof(address)) < 0)
                return -errno;
        memcpy(hello.device_uuid, uuid, sizeof(hello.device_uuid));
        wire_message_init(&hello, GPUMEM_MESSAGE_HELLO, 0);
        r = call(client, &hello, reply, sizeof(reply));
        if (r == 0) {
                wire_message_init(&create, GPUMEM_MESSAGE_OBJECT_CREATE, 0);
                r = call(client, &create, reply, sizeof(reply));
                client->object = ((struct gpumem_message_object_create_reply *)reply)->object;
        }
        return r;
}

static int client_take(struct client *client, uint32_t frames)
{
        struct gpumem_message_grant request = {
                .object = client->object, .frames = frames, .wait_ms = WAIT_MS};
        const struct gpumem_message_grant_reply *granted = (const void *)reply;
        int r;

        wire_message_init(&request, GPUMEM_MESSAGE_GRANT, 0);
        r = call(client, &request, reply, sizeof(reply));
        for (uint32_t i = 0; r == 0 && i < frames; i++)
                client->ids[client->held++] = granted->frame_ids[i];
        return r;
}

static int client_give(struct client *client)
{
        struct {
                struct gpumem_message_return message;
                uint64_t ids[FRAMES_MAX];
        } request = {.message = {.object = client->object, .frames = client->held}};
        size_t length = sizeof(request.message) + client->held * sizeof(request.ids[0]);

        memcpy(request.ids, client->ids, sizeof(request.ids));
        client->held = 0;
        wire_header_init(&request.message.header, GPUMEM_MESSAGE_RETURN, (uint32_t)length, 0, 0);
        return call(client, &request, reply, sizeof(reply));
}

/* One process's clients, from connecting to leaving. */
static void run_clients(const char *path, const uint8_t uuid[16], uint64_t seed, uint32_t turns,
                        struct tally *tally)
{
        static struct client clients[CLIENTS / PROCESSES];
        const size_t count = CLIENTS / PROCESSES;

        for (size_t i = 0; i < count; i++) {
                if (client_open(&clients[i], path, uuid) == 0)
                        tally->connected++;
                else
                        tally->errors++;
        }
        /* All are there before anyone goes on. */
        tally->arrived++;
        for (int i = 0; i < 60000 && tally->arrived % PROCESSES != 0; i++)
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        /* Everyone has a frame, and some more for a moment. */
        for (size_t i = 0; i < count; i++) {
                tally->errors += client_take(&clients[i], 1) < 0;
                tally->grants++;
        }
        for (uint32_t turn = 0; turn < turns; turn++) {
                struct client *client = &clients[bench_random(&seed) % count];
                uint32_t more = (uint32_t)(bench_random(&seed) % FRAMES_MAX);

                if (more > 0) {
                        tally->errors += client_take(client, more) < 0;
                        tally->grants++;
                }
                tally->errors += client_give(client) < 0;
                tally->returns++;
                tally->errors += client_take(client, 1) < 0;
                tally->grants++;
        }
        for (size_t i = 0; i < count; i++) {
                if (i % LEAVES_RAW != 0) {
                        tally->errors += client_give(&clients[i]) < 0;
                        tally->returns++;
                }
                close(clients[i].fd);
        }
}

static int run_round(const struct bench_options *options, const struct bench_daemon *daemon,
                     const uint8_t uuid[16], uint32_t round, struct tally *tally)
{
        int r = 0;

        for (int i = 0; i < PROCESSES; i++) {
                pid_t pid = fork();

                if (pid < 0)
                        return -errno;
                if (pid == 0) {
                        run_clients(daemon->client_socket, uuid,
                                    options->seed + round * 1000 + (uint64_t)i,
                                    options->quick ? 50 : 500, tally);
                        _exit(0);
                }
        }
        for (int i = 0; i < PROCESSES; i++) {
                int status;

                if (wait(&status) < 0 || status != 0)
                        r = -ECHILD;
        }
        return r;
}

/* --- what the daemon has --- */

static struct json_object *member(struct json_object *object, const char *key)
{
        struct json_object *value = NULL;

        return json_object_object_get_ex(object, key, &value) ? value : NULL;
}

static struct json_object *first_device(struct json_object *answer)
{
        struct json_object *devices = member(answer, "devices");

        return devices && json_object_array_length(devices) > 0
                       ? json_object_array_get_idx(devices, 0)
                       : NULL;
}

static uint64_t count_descriptors(pid_t pid)
{
        char path[64];
        uint64_t count = 0;
        DIR *directory;

        snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
        directory = opendir(path);
        while (directory && readdir(directory))
                count++;
        if (directory)
                closedir(directory);
        return count > 2 ? count - 2 : 0;
}

static uint64_t anonymous_memory(pid_t pid)
{
        unsigned long long kib = 0;
        char path[64], line[256];
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
        file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file))
                if (sscanf(line, "RssAnon: %llu kB", &kib) == 1)
                        break;
        if (file)
                fclose(file);
        return kib * 1024;
}

static int count(const struct bench_daemon *daemon, struct counts *counts)
{
        struct json_object *status = bench_daemon_ask(daemon, "GetStatus");
        struct json_object *frames = member(first_device(status), "frames");
        uint64_t states[7], exported = 0;
        static const char *const names[] = {"free",  "fresh",    "ready",      "granted",
                                            "dirty", "draining", "quarantined"};

        if (!frames)
                return -EPROTO;
        for (size_t i = 0; i < 7; i++) {
                states[i] = (uint64_t)json_object_get_int64(member(frames, names[i]));
                exported += i > 0 ? states[i] : 0;
        }
        counts->sessions = (uint64_t)json_object_get_int64(member(status, "sessions"));
        counts->frames_held = states[3] + states[4] + states[5] + states[6];
        counts->descriptors = (int64_t)count_descriptors(daemon->pid) - (int64_t)exported;
        counts->rss = anonymous_memory(daemon->pid);
        json_object_put(status);
        return 0;
}

/* Until nobody is there and nothing moves; then what there is. */
static int settle(const struct bench_daemon *daemon, struct counts *counts)
{
        uint64_t deadline = bench_now_ns() + UINT64_C(20000000000);
        struct counts before = {.rss = 1};
        int r;

        do {
                nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
                bench_daemon_settle(daemon);
                r = count(daemon, counts);
                if (r < 0 || (counts->sessions == 0 && counts->frames_held == 0 &&
                              memcmp(&before, counts, sizeof(before)) == 0))
                        return r;
                before = *counts;
        } while (bench_now_ns() < deadline);
        return 0; /* the figures show it */
}

static int find_uuid(const struct bench_daemon *daemon, uint8_t uuid[16])
{
        struct json_object *status = bench_daemon_ask(daemon, "GetStatus");
        const char *text = json_object_get_string(member(first_device(status), "uuid"));
        size_t n = 0;

        for (const char *c = text ? text + 4 : ""; *c && n < 16; c++) {
                unsigned byte;

                if (*c == '-')
                        continue;
                if (sscanf(c, "%2x", &byte) != 1)
                        break;
                uuid[n++] = (uint8_t)byte;
                c++;
        }
        json_object_put(status);
        return n == 16 ? 0 : -EPROTO;
}

static void add(struct json_object *out, const char *key, int64_t value)
{
        json_object_object_add(out, key, json_object_new_int64(value));
}

static int measure(const struct bench_options *options, const struct bench_daemon *daemon,
                   struct tally *tally, struct json_object *out)
{
        struct counts start = {0}, before = {0}, after = {0};
        uint8_t uuid[16];
        int r = find_uuid(daemon, uuid);

        if (r == 0)
                r = settle(daemon, &start);
        if (r == 0)
                r = run_round(options, daemon, uuid, 0, tally);
        if (r == 0)
                r = settle(daemon, &before);
        for (uint32_t round = 1; r == 0 && round < 3; round++)
                r = run_round(options, daemon, uuid, round, tally);
        if (r == 0)
                r = settle(daemon, &after);
        if (r < 0)
                return r;
        add(out, "connected", (int64_t)tally->connected);
        add(out, "grants", (int64_t)tally->grants);
        add(out, "returns", (int64_t)tally->returns);
        add(out, "errors", (int64_t)tally->errors);
        add(out, "leaked_sessions", (int64_t)after.sessions);
        add(out, "leaked_frames", (int64_t)after.frames_held);
        add(out, "leaked_descriptors", after.descriptors - start.descriptors);
        add(out, "rss_start", (int64_t)start.rss);
        add(out, "rss_before", (int64_t)before.rss);
        add(out, "rss_after", (int64_t)after.rss);
        add(out, "rss_growth", (int64_t)after.rss - (int64_t)before.rss);
        return 0;
}

int bench_clients(const struct bench_options *options, struct json_object *out)
{
        const struct bench_daemon_options daemon_options = {
                .build = options->build,
                .memory_bytes = FRAMES * GRANULARITY,
                .frame_bytes = GRANULARITY,
                .fresh_frames = 64,
        };
        struct json_object *parameters = json_object_new_object();
        struct bench_daemon daemon = {0};
        struct tally *tally;
        char granularity[32];
        int error;

        add(parameters, "clients", CLIENTS);
        add(parameters, "processes", PROCESSES);
        add(parameters, "rounds", 3);
        add(parameters, "frames", FRAMES);
        json_object_object_add(out, "parameters", parameters);
        tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0);
        if (tally == MAP_FAILED)
                return -errno;
        snprintf(granularity, sizeof(granularity), "%llu", (unsigned long long)GRANULARITY);
        setenv("GPUMEM_SIM_GRANULARITY", granularity, 1);
        error = bench_daemon_start(&daemon, &daemon_options);
        if (error == 0) {
                error = measure(options, &daemon, tally, out);
                if (error < 0)
                        fprintf(stderr, "gpumem-bench clients: %s\n", strerror(-error));
        }
        bench_daemon_stop(&daemon);
        munmap(tally, sizeof(*tally));
        return error;
}
