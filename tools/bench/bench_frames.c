/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon's bookkeeping costs: memory for 131,072 frames, and whether a grant gets dearer
 * with their number.
 *
 * The daemon runs in a child of this process, with its loop, sessions, queue, pools, accounts,
 * state and worker threads, on a driver that does nothing (null_driver.h); the client sits at the
 * other end of a socketpair, in the same thread. One daemon has both devices, so samples can
 * alternate.
 *
 * Expected before measuring: 64 bytes a frame and 40 in the state, 13 MiB with the rest; a return
 * and a grant touch some ten cache lines each that the larger table does not have in cache, about
 * 1 us, of a round trip of some 20.
 */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/session.h"
#include "daemon/state.h"
#include "libclient/wire/wire.h"
#include "tools/bench/bench.h"
#include "tools/bench/null_driver.h"

struct figures {
        int error; /* negative errno */
        uint64_t bookkeeping_bytes, heap_bytes, state_bytes;
        double few_median_us, few_p99_us, many_median_us, many_p99_us;
        uint64_t samples;
};

struct client {
        int fd;
        uint32_t serial;
        uint64_t object;
        uint64_t *held; /* ids of the frames that it has */
        size_t held_count;
};

static uint64_t heap_in_use(void)
{
        struct mallinfo2 info = mallinfo2();

        return info.uordblks + info.hblkhd;
}

/* Sends a request and runs the daemon until its reply is there. */
static int call(struct daemon *daemon, struct client *client, void *message, void *reply,
                size_t size)
{
        struct gpumem_message_header *header = message;
        uint64_t deadline = wire_deadline_ns(20000);
        struct wire_fds fds;
        size_t length;
        int r;

        header->serial = ++client->serial;
        r = wire_send(client->fd, message, header->length, 0);
        while (r == 0) {
                sd_event_run(daemon->event, 0);
                r = wire_receive(client->fd, reply, size, &fds, &length, MSG_DONTWAIT);
                if (r == -EAGAIN)
                        r = wire_now_ns() < deadline ? 0 : -ETIMEDOUT;
                else if (r == 0) {
                        wire_fds_deinit(&fds);
                        return ((struct gpumem_message_header *)reply)->type == GPUMEM_MESSAGE_ERROR
                                       ? -EPROTO
                                       : 0;
                }
        }
        return r > 0 ? -EPROTO : r;
}

static _Alignas(8) unsigned char reply[GPUMEM_MESSAGE_MAX];

static int grant(struct daemon *daemon, struct client *client, uint32_t frames)
{
        struct gpumem_message_grant request = {
                .object = client->object, .frames = frames, .wait_ms = 10000};
        const struct gpumem_message_grant_reply *granted = (const void *)reply;
        int r;

        wire_message_init(&request, GPUMEM_MESSAGE_GRANT, 0);
        r = call(daemon, client, &request, reply, sizeof(reply));
        for (uint32_t i = 0; r == 0 && i < frames; i++)
                client->held[client->held_count++] = granted->frame_ids[i];
        return r;
}

/* Any of those it has. */
static int return_one(struct daemon *daemon, struct client *client, uint64_t *seed)
{
        struct {
                struct gpumem_message_return message;
                uint64_t id;
        } request = {.message = {.object = client->object, .frames = 1}};
        size_t which;

        if (client->held_count == 0)
                return -EINVAL;
        which = bench_random(seed) % client->held_count;
        request.id = client->held[which];
        client->held[which] = client->held[--client->held_count];
        wire_header_init(&request.message.header, GPUMEM_MESSAGE_RETURN, sizeof(request), 0, 0);
        return call(daemon, client, &request, reply, sizeof(reply));
}

static int join(struct daemon *daemon, struct client *client, const struct device *device)
{
        struct gpumem_message_hello hello = {
                .magic = GPUMEM_PROTOCOL_MAGIC,
                .version_min = GPUMEM_PROTOCOL_VERSION_MIN,
                .version_max = GPUMEM_PROTOCOL_VERSION_MAX,
                .driver_kind = GPUMEM_DRIVER_SIMULATED,
                .granularity = NULL_FRAME_BYTES,
                .name = "gpumem-bench",
        };
        struct gpumem_message_object_create create = {
                .kind = GPUMEM_OBJECT_BUFFER,
                .unit_frames = 1,
                .frames_max = device->table.count,
                .name = "bench",
        };
        int pair[2], r;

        client->held = calloc(device->table.count, sizeof(*client->held));
        if (!client->held)
                return -ENOMEM;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return -errno;
        client->fd = pair[0];
        r = session_new_consume_fd(daemon, pair[1]);
        if (r < 0)
                return r;
        memcpy(hello.device_uuid, device->uuid, sizeof(hello.device_uuid));
        wire_message_init(&hello, GPUMEM_MESSAGE_HELLO, 0);
        r = call(daemon, client, &hello, reply, sizeof(reply));
        if (r == 0) {
                wire_message_init(&create, GPUMEM_MESSAGE_OBJECT_CREATE, 0);
                r = call(daemon, client, &create, reply, sizeof(reply));
                client->object = ((struct gpumem_message_object_create_reply *)reply)->object;
        }
        while (r == 0 && client->held_count < device->table.count / 2) {
                size_t missing = device->table.count / 2 - client->held_count;

                r = grant(daemon, client,
                          missing < GPUMEM_MESSAGE_FDS_MAX ? (uint32_t)missing
                                                           : GPUMEM_MESSAGE_FDS_MAX);
        }
        return r;
}

static int sample(struct daemon *daemon, struct client *client, uint64_t *seed, double *us)
{
        uint64_t start = bench_now_ns();
        int r = return_one(daemon, client, seed);

        if (r == 0)
                r = grant(daemon, client, 1);
        *us = (double)(bench_now_ns() - start) / 1000;
        return r;
}

static int fill(struct daemon *daemon)
{
        uint64_t deadline = wire_deadline_ns(60000);

        list_for_each(node, &daemon->devices)
        {
                struct device *device = list_entry(node, struct device, link);

                device_wake(device);
                while (device->fresh.count < device->table.count) {
                        if (wire_now_ns() > deadline)
                                return -ETIMEDOUT;
                        sd_event_run(daemon->event, 1000);
                }
        }
        return 0;
}

static int measure(const struct bench_options *options, struct figures *figures)
{
        size_t rounds = options->quick ? 500 : 30000;
        uint64_t seed = options->seed, heap = heap_in_use();
        static struct client few, many; /* to the end of this process */
        struct samples of_few, of_many;
        struct daemon *daemon;
        struct config config;
        struct stat status;
        int r;

        config_init(&config);
        config.gpu_memory_utilization = 1.0;
        config.log_level = LOG_LEVEL_ERROR;
        config.driver = DRIVER_SIMULATED;
        config.devices_count = 1;
        config.devices[0] = (struct config_device){
                .match = "*",
                .frame_bytes = NULL_FRAME_BYTES,
                .watermark_low = NULL_FRAMES_MANY,
                .watermark_high = NULL_FRAMES_MANY,
                .given = UINT32_MAX,
        };
        r = daemon_new(&daemon, &config, STDERR_FILENO,
                       null_driver(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
        if (r == 0)
                r = fill(daemon);
        if (r < 0)
                return r;
        figures->heap_bytes = heap_in_use() - heap;
        r = join(daemon, &few, list_entry(daemon->devices.next, struct device, link));
        if (r == 0)
                r = join(daemon, &many, list_entry(daemon->devices.previous, struct device, link));
        if (r == 0)
                r = samples_init(&of_few, rounds);
        if (r == 0)
                r = samples_init(&of_many, rounds);
        for (size_t i = 0; r == 0 && i < rounds + rounds / 10; i++) {
                double us_few = 0, us_many = 0;

                r = sample(daemon, &few, &seed, &us_few);
                if (r == 0)
                        r = sample(daemon, &many, &seed, &us_many);
                if (r < 0 || i < rounds / 10) /* the first tenth warms up */
                        continue;
                samples_add(&of_few, us_few);
                samples_add(&of_many, us_many);
        }
        if (r < 0)
                return r;
        /* The state is sparse: what is there of it counts. */
        if (daemon->state && fstat(daemon->state->fd, &status) == 0)
                figures->state_bytes = (uint64_t)status.st_blocks * 512;
        figures->bookkeeping_bytes = figures->heap_bytes + figures->state_bytes;
        figures->few_median_us = samples_quantile(&of_few, 0.5);
        figures->few_p99_us = samples_quantile(&of_few, 0.99);
        figures->many_median_us = samples_quantile(&of_many, 0.5);
        figures->many_p99_us = samples_quantile(&of_many, 0.99);
        figures->samples = rounds;
        return daemon_check(daemon, (char *)reply, sizeof(reply)) == 0 ? 0 : -EUCLEAN;
}

static void add_double(struct json_object *out, const char *key, double value)
{
        json_object_object_add(out, key, json_object_new_double(value));
}

static void add_int(struct json_object *out, const char *key, uint64_t value)
{
        json_object_object_add(out, key, json_object_new_int64((int64_t)value));
}

int bench_frames(const struct bench_options *options, struct json_object *out)
{
        struct json_object *parameters = json_object_new_object();
        struct figures *figures;
        int status, error = 0;
        pid_t pid;

        figures = mmap(NULL, sizeof(*figures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0);
        if (figures == MAP_FAILED)
                return -errno;
        figures->error = -ECHILD; /* unless it says otherwise */
        pid = fork();
        if (pid == 0) {
                figures->error = measure(options, figures);
                _exit(0); /* not the ordinary end: every frame has the same descriptor */
        }
        if (pid < 0 || waitpid(pid, &status, 0) < 0)
                error = -errno;
        else
                error = figures->error;
        json_object_object_add(out, "parameters", parameters);
        if (error < 0) {
                fprintf(stderr, "gpumem-bench frames: %s\n", strerror(-error));
        } else {
                add_int(parameters, "frames_few", NULL_FRAMES_FEW);
                add_int(parameters, "frames_many", NULL_FRAMES_MANY);
                add_int(parameters, "samples", figures->samples);
                add_int(out, "bookkeeping_bytes", figures->bookkeeping_bytes);
                add_int(out, "heap_bytes", figures->heap_bytes);
                add_int(out, "state_bytes", figures->state_bytes);
                add_double(out, "few_median_us", figures->few_median_us);
                add_double(out, "few_p99_us", figures->few_p99_us);
                add_double(out, "many_median_us", figures->many_median_us);
                add_double(out, "many_p99_us", figures->many_p99_us);
                add_double(out, "grant_ratio", figures->many_median_us / figures->few_median_us);
        }
        munmap(figures, sizeof(*figures));
        return error;
}
