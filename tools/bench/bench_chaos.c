/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that are killed at any point. Several work at once, each an engine on the library (pools,
 * batches, buffers) or a client that speaks the wire protocol and hands its descriptors to another
 * process; one after the other is killed and replaced. After each death all accounts must add up,
 * and what it held must soon be dirty or free, whatever the dead has left behind: children with
 * copies of all descriptors, another process that maps what was given back.
 *
 * This process loads no driver, so that its children can: a driver does not survive fork().
 *
 * Expected before measuring: the daemon learns of a death by the pidfd and takes the frames back in
 * the same turn of its loop, well under a millisecond; what is measured is that, a poll every half
 * millisecond, and the time the kernel takes to end a process with a hundred mappings.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/driver/driver.h"
#include "libclient/session.h"
#include "libclient/wire/wire.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_daemon.h"

#define GRANULARITY (UINT64_C(64) << 10)
#define FRAMES      2048
#define AT_ONCE     4
#define LIFE_US_MAX 30000 /* a client lives so long at most */
#define LEFT_BEHIND 8     /* so many groups of children and helpers live on for a while */
#define HELD_FRAMES 16    /* that a helper maps */
#define GONE_MS     10000 /* no client's memory may take so long */
#define SETTLE_MS   20000
#define TENANT_GID  64001 /* and the one after it; groups that nobody is in */

enum kind {
        KIND_PLAIN,   /* an engine */
        KIND_STOPPED, /* an engine that is stopped first */
        KIND_FORKING, /* an engine whose child lives on, with all descriptors */
        KIND_HELPED,  /* another process maps what it was granted and has given back */
        KINDS,
};

static const char *const kind_names[KINDS] = {"plain", "stopped", "forking", "helped"};

struct victim {
        pid_t pid; /* and process group */
        pid_t helper;
        enum kind kind;
        uint64_t kill_ns;
};

struct chaos {
        const struct bench_options *options;
        struct bench_daemon daemon;
        uint8_t uuid[16];
        uint64_t random;
        struct victim victims[AT_ONCE];
        struct {
                pid_t group, helper;
        } left[LEFT_BEHIND];
        uint32_t next_left;

        struct samples gone_ms;
        uint64_t kills[KINDS], holding, checks_failed, late, crashed;
        bool tenants; /* clients are of two, so that frames are released and made anew */
        uint64_t withheld_max, withheld_end, leaked_frames;
};

/* --- an engine ------------------------------------------------------------------------------- */

static uint32_t below(uint64_t *random, uint32_t n)
{
        return (uint32_t)(bench_random(random) % n);
}

static void work_on_pool(struct gpumem_kv *kv, gpumem_seq *seqs, uint32_t count, uint64_t *random)
{
        uint32_t i = below(random, count), tokens = below(random, 200);
        struct gpumem_batch *batch;
        uint64_t bytes;

        switch (below(random, 8)) {
        case 0:
                gpumem_kv_trim(kv, &bytes);
                return;
        case 1:
        case 2:
                if (seqs[i])
                        gpumem_seq_free(kv, seqs[i]);
                seqs[i] = 0;
                return;
        default:
                if (!seqs[i] && gpumem_seq_create(kv, &seqs[i]) < 0)
                        return;
                if (gpumem_batch_begin(kv, &seqs[i], 1, &tokens, NULL, 0, &batch) == 0)
                        gpumem_batch_end(batch, NULL);
        }
}

/* Works until it is killed. */
static _Noreturn void run_engine(enum kind kind, uint64_t seed)
{
        const struct gpumem_options options = {
                .size = sizeof(options), .name = "chaos", .driver = GPUMEM_DRIVER_SIMULATOR};
        const struct gpumem_kv_options kv_options = {
                .size = sizeof(kv_options),
                .name = "chaos",
                .layers = 2,
                .kv_heads = 2,
                .key_dim = 32,
                .value_dim = 32,
                .page_tokens = 16,
                .max_sequences = 16,
                .max_sequence_tokens = 4096,
                .idle_trim_ms = 5,
        };
        struct gpumem_buffer *buffers[8] = {NULL};
        uint32_t fork_at = kind == KIND_FORKING ? below(&seed, 40) : UINT32_MAX;
        gpumem_seq seqs[16] = {0};
        struct gpumem *session;
        struct gpumem_kv *kv;

        if (gpumem_connect(&session, &options) < 0 ||
            gpumem_kv_create(session, &kv_options, &kv) < 0)
                for (;;)
                        pause();
        for (uint32_t step = 0;; step++) {
                uint32_t i = below(&seed, 8);

                if (step == fork_at && fork() == 0)
                        for (;;)
                                pause();
                if (below(&seed, 3) != 0) {
                        work_on_pool(kv, seqs, 16, &seed);
                } else if (buffers[i]) {
                        buffers[i] = gpumem_buffer_free(buffers[i]);
                } else {
                        gpumem_buffer_create(session, GRANULARITY * (1 + below(&seed, 32)), "chaos",
                                             0, &buffers[i]);
                }
        }
}

/* --- a client with a helper ------------------------------------------------------------------ */

/* Imports and maps what comes through the socket, and keeps it until it is killed. */
static _Noreturn void run_helper(int socket)
{
        struct gpumem_message_header header;
        struct driver *driver = NULL;
        struct wire_fds fds;
        CUcontext context;
        CUdevice device;
        char why[256];
        size_t length;

        wire_fds_init(&fds);
        if (driver_open(&driver, DRIVER_SIMULATED, NULL, why, sizeof(why)) == 0 &&
            driver->init(0) == CUDA_SUCCESS && driver->device_get(&device, 0) == CUDA_SUCCESS &&
            driver->device_primary_ctx_retain(&context, device) == CUDA_SUCCESS &&
            driver->ctx_push_current(context) == CUDA_SUCCESS &&
            wire_receive(socket, &header, sizeof(header), &fds, &length, 0) == 0) {
                const CUmemAccessDesc access = {
                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                };
                CUdeviceptr base = 0;

                driver->mem_address_reserve(&base, fds.count * GRANULARITY, 0, 0, 0);
                for (uint32_t i = 0; i < fds.count; i++) {
                        CUmemGenericAllocationHandle handle;

                        if (driver->mem_import_from_shareable_handle(
                                    &handle, (void *)(intptr_t)fds.fds[i],
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS &&
                            driver->mem_map(base + i * GRANULARITY, GRANULARITY, 0, handle, 0) ==
                                    CUDA_SUCCESS)
                                driver->mem_set_access(base + i * GRANULARITY, GRANULARITY, &access,
                                                       1);
                }
        }
        for (;;)
                pause();
}

/* A request and its reply, on the client's own connection. */
static int call(int fd, uint32_t *serial, void *message, void *reply, struct wire_fds *fds)
{
        struct gpumem_message_header *header = message;
        size_t length;
        int r;

        header->serial = ++*serial;
        r = wire_send(fd, message, header->length, 0);
        do {
                wire_fds_deinit(fds);
                if (r == 0)
                        r = wire_receive(fd, reply, GPUMEM_MESSAGE_MAX, fds, &length, 0);
        } while (r == 0 && (((struct gpumem_message_header *)reply)->type & GPUMEM_MESSAGE_EVENT));
        return r == 0 && ((struct gpumem_message_header *)reply)->type == GPUMEM_MESSAGE_ERROR
                       ? -EREMOTEIO
                       : r;
}

/* Takes frames, hands their descriptors to the helper, gives half of them back, and so on. */
static _Noreturn void run_helped(const struct chaos *chaos, int helper, uint64_t seed)
{
        static _Alignas(8) unsigned char reply[GPUMEM_MESSAGE_MAX];
        struct gpumem_message_hello hello = {
                .magic = GPUMEM_PROTOCOL_MAGIC,
                .version_min = GPUMEM_PROTOCOL_VERSION_MIN,
                .version_max = GPUMEM_PROTOCOL_VERSION_MAX,
                .driver_kind = GPUMEM_DRIVER_SIMULATED,
                .granularity = GRANULARITY,
                .name = "chaos",
        };
        struct gpumem_message_object_create create = {
                .kind = GPUMEM_OBJECT_BUFFER, .unit_frames = 1, .frames_max = FRAMES};
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        uint32_t serial = 0;
        struct wire_fds fds;
        uint64_t object = 0;
        int r = -1;

        wire_fds_init(&fds);
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", chaos->daemon.client_socket);
        memcpy(hello.device_uuid, chaos->uuid, sizeof(hello.device_uuid));
        if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
                wire_message_init(&hello, GPUMEM_MESSAGE_HELLO, 0);
                r = call(fd, &serial, &hello, reply, &fds);
                wire_message_init(&create, GPUMEM_MESSAGE_OBJECT_CREATE, 0);
                if (r == 0)
                        r = call(fd, &serial, &create, reply, &fds);
                object = ((struct gpumem_message_object_create_reply *)(void *)reply)->object;
        }
        while (r == 0) {
                const struct gpumem_message_grant_reply *granted = (const void *)reply;
                struct gpumem_message_grant grant = {.object = object,
                                                     .frames = 1 + below(&seed, HELD_FRAMES)};
                struct {
                        struct gpumem_message_return message;
                        uint64_t ids[HELD_FRAMES];
                } back = {.message = {.object = object}};

                wire_message_init(&grant, GPUMEM_MESSAGE_GRANT, 0);
                if (call(fd, &serial, &grant, reply, &fds) < 0)
                        continue;
                back.message.frames = (grant.frames + 1) / 2;
                memcpy(back.ids, granted->frame_ids, back.message.frames * sizeof(back.ids[0]));
                if (helper >= 0) {
                        struct gpumem_message_header header;

                        wire_header_init(&header, 0, sizeof(header), 0, 0);
                        wire_send_with_fds(helper, &header, sizeof(header), fds.fds, fds.count, 0);
                        helper = -1;
                }
                wire_header_init(&back.message.header, GPUMEM_MESSAGE_RETURN,
                                 (uint32_t)(sizeof(back.message) +
                                            back.message.frames * sizeof(back.ids[0])),
                                 0, 0);
                if (call(fd, &serial, &back, reply, &fds) < 0)
                        break;
        }
        for (;;)
                pause();
}

/* --- who is killed --------------------------------------------------------------------------- */

static void end_group(pid_t group, pid_t helper)
{
        if (group > 0)
                kill(-group, SIGKILL);
        if (helper > 0)
                kill(helper, SIGKILL);
}

/* Those that were ended since, and children whose parents were. A client that ended by itself is an
 * error: they work until they are killed. -ECHILD: the daemon's keeper has ended. */
static int reap(struct chaos *chaos)
{
        int status;
        pid_t pid;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
                if (pid == chaos->daemon.pid) {
                        chaos->daemon.pid = 0;
                        return -ECHILD;
                }
                for (int i = 0; i < LEFT_BEHIND; i++)
                        if (pid == chaos->left[i].helper)
                                chaos->left[i].helper = 0;
                for (int i = 0; i < AT_ONCE; i++) {
                        if (pid == chaos->victims[i].helper)
                                chaos->victims[i].helper = 0;
                        if (pid != chaos->victims[i].pid)
                                continue;
                        if (chaos->crashed++ == 0)
                                fprintf(stderr, "gpumem-bench chaos: a client ended: status %d\n",
                                        status);
                        kill(-pid, SIGKILL);
                        chaos->victims[i].pid = 0;
                        if (chaos->victims[i].helper > 0)
                                kill(chaos->victims[i].helper, SIGKILL);
                }
        }
        return 0;
}

static int start_victim(struct chaos *chaos, struct victim *victim)
{
        static const enum kind odds[8] = {KIND_PLAIN,   KIND_PLAIN,   KIND_PLAIN,  KIND_PLAIN,
                                          KIND_STOPPED, KIND_FORKING, KIND_HELPED, KIND_HELPED};
        uint64_t seed = bench_random(&chaos->random);
        int pair[2] = {-1, -1};

        *victim = (struct victim){.kind = odds[below(&chaos->random, 8)]};
        victim->kill_ns = bench_now_ns() + 1000 * (uint64_t)below(&chaos->random, LIFE_US_MAX);
        if (victim->kind == KIND_HELPED &&
            socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return -errno;
        if (victim->kind == KIND_HELPED) {
                victim->helper = fork();
                if (victim->helper == 0)
                        run_helper(pair[1]);
        }
        if (victim->helper >= 0)
                victim->pid = fork();
        if (victim->pid == 0 && victim->helper >= 0) {
                setpgid(0, 0);
                if (chaos->tenants && setresgid((gid_t)-1, TENANT_GID + seed % 2, (gid_t)-1) < 0)
                        _exit(1);
                if (victim->kind == KIND_HELPED)
                        run_helped(chaos, pair[0], seed);
                run_engine(victim->kind, seed);
        }
        if (pair[0] >= 0) {
                close(pair[0]);
                close(pair[1]);
        }
        if (victim->pid > 0)
                setpgid(victim->pid, victim->pid);
        return victim->pid > 0 && victim->helper >= 0 ? 0 : -EAGAIN;
}

static struct json_object *member(struct json_object *object, const char *key)
{
        struct json_object *value = NULL;

        return json_object_object_get_ex(object, key, &value) ? value : NULL;
}

/* Frames that sessions of the process hold; -1: it has none. */
static int64_t frames_of(const struct chaos *chaos, pid_t pid)
{
        struct json_object *answer = bench_daemon_ask(&chaos->daemon, "ListSessions");
        struct json_object *list = member(answer, "sessions");
        int64_t frames = -1;

        for (size_t i = 0; list && i < json_object_array_length(list); i++) {
                struct json_object *session = json_object_array_get_idx(list, i);

                if (json_object_get_int64(member(session, "pid")) != pid)
                        continue;
                frames = (frames < 0 ? 0 : frames) +
                         json_object_get_int64(member(session, "frames"));
        }
        json_object_put(answer);
        return frames;
}

static struct json_object *first_device(struct json_object *answer)
{
        struct json_object *devices = member(answer, "devices");

        return devices ? json_object_array_get_idx(devices, 0) : NULL;
}

static void look_at_accounts(struct chaos *chaos)
{
        struct json_object *check = bench_daemon_ask(&chaos->daemon, "DebugCheck");
        struct json_object *status = bench_daemon_ask(&chaos->daemon, "GetStatus");
        struct json_object *device = first_device(status);
        uint64_t withheld = (uint64_t)json_object_get_int64(member(device, "withheld_bytes"));

        if (!json_object_get_boolean(member(check, "ok"))) {
                if (chaos->checks_failed++ == 0)
                        fprintf(stderr, "gpumem-bench chaos: debug check: %s\n",
                                json_object_to_json_string(check));
        }
        if (withheld > chaos->withheld_max)
                chaos->withheld_max = withheld;
        json_object_put(check);
        json_object_put(status);
}

static void kill_victim(struct chaos *chaos, struct victim *victim)
{
        bool stopped = victim->kind == KIND_STOPPED;
        uint64_t start, now;
        int64_t held;

        if (stopped)
                kill(victim->pid, SIGSTOP);
        held = frames_of(chaos, victim->pid);
        start = bench_now_ns();
        kill(victim->pid, SIGKILL);
        chaos->kills[victim->kind]++;
        do {
                nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
                now = bench_now_ns();
        } while (frames_of(chaos, victim->pid) >= 0 && now - start < GONE_MS * UINT64_C(1000000));
        waitpid(victim->pid, NULL, 0);
        /* Who was killed before it had anything says nothing about how soon it comes back. */
        if (held > 0) {
                chaos->holding++;
                samples_add(&chaos->gone_ms, (double)(now - start) / 1e6);
        }
        chaos->late += now - start >= GONE_MS * UINT64_C(1000000);
        look_at_accounts(chaos);
        /* Its children and its helper stay for a while. */
        if (victim->kind == KIND_FORKING || victim->kind == KIND_HELPED) {
                uint32_t slot = chaos->next_left++ % LEFT_BEHIND;

                end_group(chaos->left[slot].group, chaos->left[slot].helper);
                chaos->left[slot].group = victim->kind == KIND_FORKING ? victim->pid : 0;
                chaos->left[slot].helper = victim->helper;
        }
        victim->pid = 0;
}

static int run(struct chaos *chaos, uint64_t kills)
{
        for (uint64_t killed = 0; killed < kills; killed++) {
                struct victim *next = NULL;
                uint64_t now;
                int error = reap(chaos);

                if (error < 0)
                        return error;
                for (int i = 0; i < AT_ONCE; i++) {
                        struct victim *victim = &chaos->victims[i];

                        error = victim->pid ? 0 : start_victim(chaos, victim);
                        if (error < 0)
                                return error;
                        if (!next || victim->kill_ns < next->kill_ns)
                                next = victim;
                }
                now = bench_now_ns();
                if (next->kill_ns > now)
                        nanosleep(&(struct timespec){.tv_nsec = (long)(next->kill_ns - now)}, NULL);
                kill_victim(chaos, next);
        }
        return 0;
}

/* Ends everyone, and waits until the daemon has everything back. */
static void settle(struct chaos *chaos)
{
        uint64_t deadline = bench_now_ns() + SETTLE_MS * UINT64_C(1000000);

        for (int i = 0; i < AT_ONCE; i++)
                end_group(chaos->victims[i].pid, chaos->victims[i].helper);
        for (int i = 0; i < LEFT_BEHIND; i++)
                end_group(chaos->left[i].group, chaos->left[i].helper);
        for (int i = 0; i < AT_ONCE; i++)
                if (chaos->victims[i].pid > 0)
                        waitpid(chaos->victims[i].pid, NULL, 0);
        memset(chaos->victims, 0, sizeof(chaos->victims));
        do {
                int gone = reap(chaos);
                struct json_object *status = bench_daemon_ask(&chaos->daemon, "GetStatus");
                struct json_object *device = first_device(status);
                struct json_object *frames = member(device, "frames");

                chaos->withheld_end =
                        (uint64_t)json_object_get_int64(member(device, "withheld_bytes"));
                chaos->leaked_frames =
                        FRAMES - (uint64_t)(json_object_get_int64(member(frames, "free")) +
                                            json_object_get_int64(member(frames, "fresh")) +
                                            json_object_get_int64(member(frames, "ready")));
                json_object_put(status);
                if (gone < 0 || (chaos->withheld_end == 0 && chaos->leaked_frames == 0))
                        break;
                nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        } while (bench_now_ns() < deadline);
        look_at_accounts(chaos);
}

static int find_uuid(struct chaos *chaos)
{
        struct json_object *status = bench_daemon_ask(&chaos->daemon, "GetStatus");
        const char *text = json_object_get_string(member(first_device(status), "uuid"));
        unsigned byte = 0, digits = 0;
        int n = 0;

        if (text && strncmp(text, "GPU-", 4) == 0)
                text += 4;
        for (; text && *text && n < 16; text++) {
                if (*text == '-')
                        continue;
                byte = byte << 4 | (unsigned)(*text <= '9' ? *text - '0' : (*text | 32) - 'a' + 10);
                if (++digits % 2 == 0)
                        chaos->uuid[n++] = (uint8_t)byte;
        }
        json_object_put(status);
        return n == 16 ? 0 : -EPROTO;
}

static void report(struct chaos *chaos, struct json_object *out)
{
        struct json_object *kinds = json_object_new_object();

        for (int i = 0; i < KINDS; i++)
                json_object_object_add(kinds, kind_names[i],
                                       json_object_new_int64((int64_t)chaos->kills[i]));
        json_object_object_add(out, "kills", kinds);
        json_object_object_add(out, "kills_with_memory",
                               json_object_new_int64((int64_t)chaos->holding));
        json_object_object_add(out, "checks_failed",
                               json_object_new_int64((int64_t)chaos->checks_failed));
        json_object_object_add(out, "clients_crashed",
                               json_object_new_int64((int64_t)chaos->crashed));
        json_object_object_add(out, "dead_memory_median_ms",
                               json_object_new_double(samples_quantile(&chaos->gone_ms, 0.5)));
        json_object_object_add(out, "dead_memory_p99_ms",
                               json_object_new_double(samples_quantile(&chaos->gone_ms, 0.99)));
        json_object_object_add(out, "dead_memory_max_ms",
                               json_object_new_double(samples_quantile(&chaos->gone_ms, 1)));
        json_object_object_add(out, "never_came_back", json_object_new_int64((int64_t)chaos->late));
        json_object_object_add(out, "withheld_bytes_max",
                               json_object_new_int64((int64_t)chaos->withheld_max));
        json_object_object_add(out, "withheld_bytes_end",
                               json_object_new_int64((int64_t)chaos->withheld_end));
        json_object_object_add(out, "leaked_frames",
                               json_object_new_int64((int64_t)chaos->leaked_frames));
}

int bench_chaos(const struct bench_options *options, struct json_object *out)
{
        const uint64_t kills = options->quick ? 50 : 10000;
        const struct bench_daemon_options daemon_options = {
                .build = options->build,
                .memory_bytes = FRAMES * GRANULARITY,
                .frame_bytes = GRANULARITY,
                .granularity = GRANULARITY,
                .fresh_frames = 128,
                .debug = true,
                .more = "[tenant one]\ngid = 64001\n[tenant two]\ngid = 64002\n",
        };
        struct json_object *parameters = json_object_new_object();
        struct chaos *chaos = calloc(1, sizeof(*chaos));
        int error = chaos ? samples_init(&chaos->gone_ms, kills) : -ENOMEM;

        json_object_object_add(parameters, "kills", json_object_new_int64((int64_t)kills));
        json_object_object_add(parameters, "clients_at_once", json_object_new_int(AT_ONCE));
        json_object_object_add(parameters, "frames", json_object_new_int(FRAMES));
        json_object_object_add(parameters, "frame_bytes",
                               json_object_new_int64((int64_t)GRANULARITY));
        json_object_object_add(parameters, "tenants", json_object_new_int(geteuid() == 0 ? 2 : 1));
        json_object_object_add(parameters, "driver", json_object_new_string("simulated"));
        json_object_object_add(out, "parameters", parameters);
        if (error == 0) {
                chaos->options = options;
                chaos->random = options->seed;
                chaos->tenants = geteuid() == 0;
                /* The children of the killed are ours to reap. */
                prctl(PR_SET_CHILD_SUBREAPER, 1);
                error = bench_daemon_start(&chaos->daemon, &daemon_options);
        }
        /* Its sockets are there before its devices are. */
        for (int i = 0; error == 0; i++) {
                error = find_uuid(chaos);
                if (error == 0 || i == 1000)
                        break;
                error = 0;
                nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
        if (error == 0)
                error = run(chaos, kills);
        if (error < 0)
                fprintf(stderr, "gpumem-bench chaos: error %d\n", error);
        if (chaos) {
                if (chaos->daemon.directory[0])
                        settle(chaos);
                report(chaos, out);
                bench_daemon_stop(&chaos->daemon);
                samples_deinit(&chaos->gone_ms);
        }
        free(chaos);
        return error;
}
