/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgpumem under a hostile daemon. Input: what the engine does, then the messages that the daemon
 * has for it, valid, mutated or raw, with any descriptors (some of them real exports of the
 * simulated driver). All are sent as soon as the library connects, and the connection ends behind
 * them. Whatever comes, every call returns a documented result, and when the session is closed no
 * descriptor and no driver object is left.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <gpumem/gpumem.h>

#include "libclient/driver/driver.h"
#include "libclient/wire/wire.h"
#include "tests/fuzz/fuzz.h"

enum {
        MESSAGES_MAX = 24,
        EXPORTS = 8,
        GRANULARITY = 65536,
        COUNT_EVERY = 64,
};

struct scripted {
        _Alignas(8) unsigned char bytes[4096];
        size_t length;
        uint32_t fds;
};

static struct {
        char directory[64];
        struct sockaddr_un address;
        int listener;
        struct driver *driver;
        CUdevice device;
        CUuuid uuid;
        int exports[EXPORTS];
        unsigned descriptors, inputs;

        pthread_mutex_t mutex; /* of what follows */
        struct scripted messages[MESSAGES_MAX];
        unsigned count;
        int connection; /* -1: none */
} peer = {.mutex = PTHREAD_MUTEX_INITIALIZER, .connection = -1};

/* --- the daemon ----------------------------------------------------------------------------------
 */

static void send_message(int fd, const struct scripted *message)
{
        int fds[GPUMEM_MESSAGE_FDS_MAX];
        union {
                char bytes[CMSG_SPACE(sizeof(fds))];
                struct cmsghdr alignment;
        } control;
        struct iovec vector = {.iov_base = (void *)message->bytes, .iov_len = message->length};
        struct msghdr packet = {.msg_iov = &vector, .msg_iovlen = 1};
        struct cmsghdr *cmsg = &control.alignment;

        for (uint32_t i = 0; i < message->fds; i++)
                fds[i] = i < EXPORTS ? peer.exports[i] : fd;
        if (message->fds > 0) {
                cmsg->cmsg_level = SOL_SOCKET;
                cmsg->cmsg_type = SCM_RIGHTS;
                cmsg->cmsg_len = CMSG_LEN(sizeof(int) * message->fds);
                memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * message->fds);
                packet.msg_control = &control;
                packet.msg_controllen = CMSG_SPACE(sizeof(int) * message->fds);
        }
        (void)!sendmsg(fd, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void *serve(void *unused)
{
        struct pollfd listener = {.fd = peer.listener, .events = POLLIN};

        (void)unused;
        FUZZ_REQUIRE(fcntl(peer.listener, F_SETFL, O_NONBLOCK) == 0);
        for (;;) {
                int fd;

                if (poll(&listener, 1, -1) < 0)
                        continue;
                /* Under the lock, so that who holds it finds no connection half accepted. */
                pthread_mutex_lock(&peer.mutex);
                fd = accept4(peer.listener, NULL, NULL, SOCK_CLOEXEC);
                if (fd < 0) {
                        pthread_mutex_unlock(&peer.mutex);
                        continue;
                }
                /* A client whose connection ended before HELLO was answered makes another. */
                if (peer.connection >= 0)
                        close(peer.connection);
                for (unsigned i = 0; i < peer.count; i++)
                        send_message(fd, &peer.messages[i]);
                shutdown(fd, SHUT_WR);
                peer.connection = fd;
                pthread_mutex_unlock(&peer.mutex);
        }
        return NULL;
}

static void remove_directory(void)
{
        DIR *directory = opendir(peer.directory);
        struct dirent *entry;

        while (directory && (entry = readdir(directory)))
                unlinkat(dirfd(directory), entry->d_name, 0);
        if (directory)
                closedir(directory);
        rmdir(peer.directory);
}

static void require(CUresult result)
{
        if (result != CUDA_SUCCESS)
                fprintf(stderr, "%s (%s)\n", driver_error_name(peer.driver, result),
                        peer.driver->error_detail());
        FUZZ_REQUIRE(result == CUDA_SUCCESS);
}

static void make_exports(void)
{
        CUmemAllocationProp properties = {
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        };

        for (unsigned i = 0; i < EXPORTS; i++) {
                CUmemGenericAllocationHandle handle;

                require(peer.driver->mem_create(&handle, GRANULARITY, &properties, 0));
                require(peer.driver->mem_export_to_shareable_handle(
                        &peer.exports[i], handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
                require(peer.driver->mem_release(handle));
        }
}

static void start(void)
{
        const char *build = getenv("GPUMEM_BUILD");
        char library[PATH_MAX], granularity[16], why[512];
        CUcontext context;
        pthread_t thread;

        strcpy(peer.directory, "/dev/shm/gpumem-fuzz-XXXXXX");
        FUZZ_REQUIRE(mkdtemp(peer.directory));
        atexit(remove_directory);
        snprintf(library, sizeof(library), "%s/libcuda-sim.so", build ? build : "build");
        snprintf(granularity, sizeof(granularity), "%d", GRANULARITY);
        setenv("GPUMEM_SIM_LIBRARY", library, 1);
        setenv("GPUMEM_SIM_DIR", peer.directory, 1);
        setenv("GPUMEM_SIM_MEMORY", "4M", 1);
        setenv("GPUMEM_SIM_GRANULARITY", granularity, 1);
        if (driver_open(&peer.driver, DRIVER_SIMULATED, NULL, why, sizeof(why)) < 0) {
                fprintf(stderr, "%s\n", why);
                FUZZ_REQUIRE(!"the simulated driver");
        }
        require(peer.driver->init(0));
        require(peer.driver->device_get(&peer.device, 0));
        require(peer.driver->device_get_uuid(&peer.uuid, peer.device));
        require(peer.driver->device_primary_ctx_retain(&context, peer.device));
        require(peer.driver->ctx_set_current(context));
        make_exports();

        peer.address.sun_family = AF_UNIX;
        snprintf(peer.address.sun_path, sizeof(peer.address.sun_path), "%s/client.sock",
                 peer.directory);
        peer.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        FUZZ_REQUIRE(bind(peer.listener, (struct sockaddr *)&peer.address, sizeof(peer.address)) ==
                     0);
        FUZZ_REQUIRE(listen(peer.listener, 4) == 0);
        FUZZ_REQUIRE(pthread_create(&thread, NULL, serve, NULL) == 0);
        pthread_detach(thread);
}

/* --- its messages --------------------------------------------------------------------------------
 */

static void compose(struct scripted *m, struct fuzz_input *input, uint16_t type, uint32_t serial)
{
        union {
                struct gpumem_message_error *error;
                struct gpumem_message_hello_reply *hello;
                struct gpumem_message_object_create_reply *create;
                struct gpumem_message_object_destroy_reply *destroy;
                struct gpumem_message_grant_reply *grant;
                struct gpumem_message_return_reply *back;
                struct gpumem_message_meminfo_reply *meminfo;
                struct gpumem_message_event_reclaim *reclaim;
                struct gpumem_message_event_device *state;
        } u = {(void *)m->bytes};

        memset(m->bytes, 0, sizeof(m->bytes));
        m->fds = 0;
        switch (type) {
        case GPUMEM_MESSAGE_ERROR:
                m->length = sizeof(*u.error);
                u.error->code = fuzz_u8(input);
                strcpy(u.error->text, "no");
                break;
        case GPUMEM_MESSAGE_HELLO_REPLY:
                m->length = sizeof(*u.hello);
                u.hello->version = 1;
                u.hello->driver_kind = GPUMEM_DRIVER_SIMULATED;
                memcpy(u.hello->device_uuid, peer.uuid.bytes, 16);
                u.hello->frame_bytes = GRANULARITY;
                u.hello->device_bytes = 64 * GRANULARITY;
                u.hello->device_flags = fuzz_u8(input) & 1;
                break;
        case GPUMEM_MESSAGE_OBJECT_CREATE_REPLY:
                m->length = sizeof(*u.create);
                u.create->object = 1;
                break;
        case GPUMEM_MESSAGE_OBJECT_DESTROY_REPLY:
                m->length = sizeof(*u.destroy);
                break;
        case GPUMEM_MESSAGE_GRANT_REPLY:
                u.grant->object = 1;
                u.grant->frames = fuzz_u8(input);
                if (u.grant->frames > GPUMEM_MESSAGE_FDS_MAX)
                        u.grant->frames = GPUMEM_MESSAGE_FDS_MAX;
                m->fds = u.grant->frames;
                m->length = sizeof(*u.grant) + u.grant->frames * sizeof(uint64_t);
                for (uint32_t i = 0; i < u.grant->frames; i++)
                        u.grant->frame_ids[i] = i;
                break;
        case GPUMEM_MESSAGE_RETURN_REPLY:
                m->length = sizeof(*u.back);
                break;
        case GPUMEM_MESSAGE_MEMINFO_REPLY:
                m->length = sizeof(*u.meminfo);
                break;
        case GPUMEM_MESSAGE_EVENT_RECLAIM:
                m->length = sizeof(*u.reclaim);
                u.reclaim->bytes = fuzz_u16(input);
                break;
        default:
                m->length = sizeof(*u.state);
                u.state->state = fuzz_u8(input);
                break;
        }
        wire_header_init((void *)m->bytes, type, (uint32_t)m->length, (uint16_t)m->fds, serial);
}

enum { MUTATE = 0x10, RESIZE = 0x20, RAW = 0x40, DESCRIPTORS = 0x80 };

/* One byte chooses; what follows depends on it. */
static void script_one(struct scripted *m, struct fuzz_input *input, uint32_t *serial)
{
        static const uint16_t types[] = {
                GPUMEM_MESSAGE_ERROR,
                GPUMEM_MESSAGE_HELLO_REPLY,
                GPUMEM_MESSAGE_OBJECT_CREATE_REPLY,
                GPUMEM_MESSAGE_OBJECT_DESTROY_REPLY,
                GPUMEM_MESSAGE_GRANT_REPLY,
                GPUMEM_MESSAGE_RETURN_REPLY,
                GPUMEM_MESSAGE_MEMINFO_REPLY,
                GPUMEM_MESSAGE_EVENT_RECLAIM,
                GPUMEM_MESSAGE_EVENT_DEVICE,
        };
        uint8_t choice = fuzz_u8(input);
        uint16_t type = types[(choice & 15) % (sizeof(types) / sizeof(types[0]))];

        compose(m, input, type, type & GPUMEM_MESSAGE_EVENT ? 0 : ++*serial);
        if (choice & RAW) {
                m->length = fuzz_u8(input);
                if (m->length > input->left)
                        m->length = input->left;
                memcpy(m->bytes, fuzz_take(input, m->length), m->length);
        }
        if (choice & MUTATE)
                for (uint8_t count = 1 + fuzz_u8(input) % 8; count > 0; count--) {
                        uint16_t at = fuzz_u16(input);

                        if (m->length > 0)
                                m->bytes[at % m->length] = fuzz_u8(input);
                }
        if (choice & RESIZE)
                m->length = fuzz_u16(input) % sizeof(m->bytes);
        if (choice & DESCRIPTORS)
                m->fds = fuzz_u8(input) % (GPUMEM_MESSAGE_FDS_MAX + 1);
}

/* --- the engine ----------------------------------------------------------------------------------
 */

static void expect(int r)
{
        FUZZ_REQUIRE(r <= 0);
        FUZZ_REQUIRE(strcmp(gpumem_error_name(r), "unknown") != 0);
        FUZZ_REQUIRE(r == 0 || *gpumem_error_message());
}

static void use_pool(struct gpumem *session, uint8_t choice)
{
        struct gpumem_kv_options options = {
                .size = sizeof(options),
                .layers = 1,
                .kv_heads = 1,
                .key_dim = 64,
                .value_dim = 64,
                .max_sequences = 4,
                .max_sequence_tokens = 256,
                .reserve_units = choice & 1 ? UINT32_MAX : 1,
                .idle_trim_ms = UINT32_MAX,
        };
        struct gpumem_kv_stats stats;
        struct gpumem_batch *batch;
        struct gpumem_kv *kv;
        gpumem_seq seq = 0;
        uint32_t tokens = 1 + choice;
        int r = gpumem_kv_create(session, &options, &kv);

        expect(r);
        if (r < 0)
                return;
        expect(gpumem_seq_create(kv, &seq));
        r = gpumem_batch_begin(kv, &seq, 1, &tokens, NULL, choice & 2 ? 5 : 0, &batch);
        expect(r);
        if (r == 0)
                expect(gpumem_batch_end(batch, NULL));
        expect(gpumem_safe_point(session));
        expect(gpumem_seq_free(kv, seq));
        expect(gpumem_kv_trim(kv, NULL));
        expect(gpumem_kv_get_stats(kv, &stats));
        if (choice & 4)
                expect(gpumem_kv_free(kv));
}

static void use_session(struct gpumem *session, struct fuzz_input *engine)
{
        struct gpumem_buffer *buffer;
        struct gpumem_info info;

        while (engine->left > 0) {
                uint8_t choice = fuzz_u8(engine);
                int r;

                switch (choice % 4) {
                case 0:
                        expect(gpumem_get_info(session, &info));
                        break;
                case 1:
                        r = gpumem_buffer_create(session, (1 + choice / 4) * GRANULARITY, "b",
                                                 choice & 0x80 ? 5 : 0, &buffer);
                        expect(r);
                        if (r == 0)
                                gpumem_buffer_free(buffer);
                        break;
                case 2:
                        use_pool(session, choice / 4);
                        break;
                default:
                        expect(gpumem_safe_point(session));
                        break;
                }
        }
}

/* Ends the connection as the daemon sees it, once the thread has accepted all that were made. */
static void finish_peer(void)
{
        struct pollfd listener = {.fd = peer.listener, .events = POLLIN};
        bool done = false;

        while (!done) {
                pthread_mutex_lock(&peer.mutex);
                done = peer.connection >= 0 && poll(&listener, 1, 0) == 0;
                if (done) {
                        close(peer.connection);
                        peer.connection = -1;
                }
                pthread_mutex_unlock(&peer.mutex);
                if (!done)
                        sched_yield();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        const struct gpumem_options options = {
                .size = sizeof(options),
                .socket_path = peer.address.sun_path,
                .name = "fuzz",
                .driver = GPUMEM_DRIVER_SIMULATOR,
                .timeout_ms = 2000,
                .cpu_threads = 1,
        };
        struct fuzz_input input = {data, size}, engine;
        struct gpumem *session;
        uint32_t serial = 0;
        int r;

        if (!peer.driver)
                start();
        engine.left = fuzz_u8(&input) % 8;
        if (engine.left > input.left)
                engine.left = input.left;
        engine.at = fuzz_take(&input, engine.left);
        pthread_mutex_lock(&peer.mutex);
        for (peer.count = 0; peer.count < MESSAGES_MAX && input.left > 0; peer.count++)
                script_one(&peer.messages[peer.count], &input, &serial);
        pthread_mutex_unlock(&peer.mutex);

        r = gpumem_connect(&session, &options);
        expect(r);
        if (r == 0) {
                use_session(session, &engine);
                gpumem_disconnect(session);
        }
        finish_peer();
        if (peer.descriptors == 0)
                peer.descriptors = fuzz_count_descriptors();
        if (getenv("FUZZ_SHOW"))
                peer.inputs = COUNT_EVERY - 1; /* count every time */
        if (++peer.inputs % COUNT_EVERY == 0)
                FUZZ_REQUIRE(fuzz_count_descriptors() == peer.descriptors);
        return 0;
}
