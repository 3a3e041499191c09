/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libclient/buffer.h"
#include "libclient/context_scope.h"
#include "libclient/error.h"
#include "libclient/kv.h"
#include "libclient/session.h"

#define DEFAULT_SOCKET     "/run/gpumem/client.sock"
#define DEFAULT_TIMEOUT_MS 10000
#define TIMEOUT_MAX_MS     3600000
#define HELLO_ATTEMPTS     5
#define HELLO_AGAIN_MS     20

int session_check(const struct gpumem *session)
{
        if (!session)
                return client_error(GPUMEM_E_INVALID, "the session is NULL");
        if (session->pid != getpid())
                return client_error(GPUMEM_E_FORKED,
                                    "this session belongs to process %d, and this is a fork() of "
                                    "it, where the driver cannot be used: exec a program, and "
                                    "connect in that",
                                    (int)session->pid);
        return 0;
}

int session_copy_name(char *field, const char *name)
{
        memset(field, 0, GPUMEM_NAME_MAX);
        if (!name)
                return 0;
        if (strlen(name) >= GPUMEM_NAME_MAX)
                return client_error(GPUMEM_E_INVALID, "a name has at most %d bytes",
                                    GPUMEM_NAME_MAX - 1);
        memcpy(field, name, strlen(name) + 1);
        if (wire_text_check(field, GPUMEM_NAME_MAX, 0) != WIRE_OK)
                return client_error(GPUMEM_E_INVALID,
                                    "a name must be UTF-8 without control characters");
        return 0;
}

int session_object_create(struct gpumem *session, enum gpumem_object_kind kind,
                          uint32_t unit_frames, uint64_t frames_max, const char *name,
                          uint64_t *object)
{
        struct gpumem_message_object_create request = {
                .kind = kind,
                .unit_frames = unit_frames,
                .frames_max = frames_max,
        };
        struct gpumem_message_object_create_reply reply;
        int r;

        wire_message_init(&request, GPUMEM_MESSAGE_OBJECT_CREATE, 0);
        r = session_copy_name(request.name, name);
        if (r < 0)
                return r;
        r = client_connection_request(&session->connection, &request.header, &reply, sizeof(reply));
        if (r == 0)
                *object = reply.object;
        return r;
}

void session_object_destroy(struct gpumem *session, uint64_t object)
{
        owed_destroy(&session->owed, object);
        owed_tell(session);
}

int session_kernels(struct gpumem *session, struct kernel_pool **out)
{
        int r = 0;

        lock_take(&session->lock, LOCK_SESSION);
        if (!session->kernels) {
                r = kernel_pool_new(&session->kernels, session->cpu_threads);
                if (r < 0)
                        r = client_error(GPUMEM_E_NO_MEMORY, "cannot start kernel threads: %s",
                                         strerror(-r));
        }
        *out = session->kernels;
        lock_release(&session->lock);
        return r;
}

struct gpumem_kv *session_next_pool(struct gpumem *session, struct gpumem_kv *kv)
{
        struct gpumem_kv *next;

        lock_take(&session->lock, LOCK_SESSION);
        next = kv ? TAILQ_NEXT(kv, link) : TAILQ_FIRST(&session->pools);
        while (next && next->closing)
                next = TAILQ_NEXT(next, link);
        if (next)
                next->users++;
        if (kv && --kv->users == 0)
                pthread_cond_broadcast(&session->released);
        lock_release(&session->lock);
        return next;
}

void session_leave_pool(struct gpumem_kv *kv)
{
        struct gpumem *session = kv->session;

        lock_take(&session->lock, LOCK_SESSION);
        if (--kv->users == 0)
                pthread_cond_broadcast(&session->released);
        lock_release(&session->lock);
}

unsigned session_poll(struct gpumem *session)
{
        CONTEXT_SCOPE(scope, session->driver, session->context);

        if (scope.result == CUDA_SUCCESS && atomic_load(&session->pins) > 0)
                for (struct gpumem_kv *kv = session_next_pool(session, NULL); kv;
                     kv = session_next_pool(session, kv)) {
                        lock_take(&kv->lock, LOCK_POOL);
                        kv_poll(kv);
                        lock_release(&kv->lock);
                }
        return session_pins(session);
}

unsigned session_pins(struct gpumem *session)
{
        unsigned own = atomic_load(&session->own_pins);
        unsigned all = atomic_load(&session->pins);

        return all > own ? all - own : 0;
}

int session_gate_close(struct gpumem *session, uint64_t deadline_ns)
{
        if (!session_is_gated(session))
                return 0;
        for (;;) {
                unsigned pins = session_poll(session);

                lock_take(&session->gate, LOCK_GATE);
                if (atomic_load(&session->pins) == 0)
                        return 0;
                lock_release(&session->gate);
                if (wire_now_ns() >= deadline_ns)
                        return client_error(GPUMEM_E_AGAIN,
                                            "this device's mappings cannot change beside kernels, "
                                            "and the session holds %u pins: wait for their streams",
                                            pins);
                nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        }
}

void session_gate_open(struct gpumem *session)
{
        if (session_is_gated(session))
                lock_release(&session->gate);
}

/* --- connect -------------------------------------------------------------------------------- */

static int open_driver(struct gpumem *session, const struct gpumem_options *options)
{
        enum driver_kind kind = DRIVER_CUDA;
        const char *word;
        char why[512];
        int r;

        switch (options->driver) {
        case GPUMEM_DRIVER_DEFAULT:
                word = getenv("GPUMEM_DRIVER");
                if (word && *word && driver_kind_parse(word, &kind) < 0)
                        return client_error(GPUMEM_E_INVALID,
                                            "GPUMEM_DRIVER is \"%s\"; it must be cuda or simulated",
                                            word);
                break;
        case GPUMEM_DRIVER_LIBCUDA:
                kind = DRIVER_CUDA;
                break;
        case GPUMEM_DRIVER_SIMULATOR:
                kind = DRIVER_SIMULATED;
                break;
        default:
                return client_error(GPUMEM_E_INVALID, "options.driver is %d", (int)options->driver);
        }
        r = driver_open(&session->driver, kind, options->driver_library, why, sizeof(why));
        if (r == -ENOMEM)
                return client_error(GPUMEM_E_NO_MEMORY, "%s", why);
        if (r < 0)
                return client_error(GPUMEM_E_UNSUPPORTED, "%s", why);
        return 0;
}

static int driver_failed(struct gpumem *session, CUresult result, const char *call)
{
        return client_error_driver(session->driver, result, call);
}

static int open_device(struct gpumem *session, int ordinal, struct gpumem_message_hello *hello)
{
        const struct driver *driver = session->driver;
        CUmemAllocationProp properties = {
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        };
        int count = 0, managed = 0, exports = 0;
        size_t granularity = 0;
        CUresult result;
        CUuuid uuid;

        if ((result = driver->init(0)) != CUDA_SUCCESS)
                return driver_failed(session, result, "cuInit");
        if ((result = driver->device_get_count(&count)) != CUDA_SUCCESS)
                return driver_failed(session, result, "cuDeviceGetCount");
        if (ordinal < 0 || ordinal >= count)
                return client_error(GPUMEM_E_NOT_FOUND,
                                    "options.device is %d; the driver has %d devices", ordinal,
                                    count);
        if ((result = driver->device_get(&session->device, ordinal)) != CUDA_SUCCESS)
                return driver_failed(session, result, "cuDeviceGet");
        if ((result = driver->device_get_uuid(&uuid, session->device)) != CUDA_SUCCESS)
                return driver_failed(session, result, "cuDeviceGetUuid");
        driver->device_get_attribute(
                &managed, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, session->device);
        driver->device_get_attribute(
                &exports, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                session->device);
        if (!managed || !exports)
                return client_error(GPUMEM_E_UNSUPPORTED,
                                    "device %d has no virtual memory management with file "
                                    "descriptors",
                                    ordinal);
        properties.location.id = session->device;
        result = driver->mem_get_allocation_granularity(&granularity, &properties,
                                                        CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        if (result != CUDA_SUCCESS)
                return driver_failed(session, result, "cuMemGetAllocationGranularity");
        result = driver->device_primary_ctx_retain(&session->context, session->device);
        if (result != CUDA_SUCCESS) {
                session->context = NULL;
                return driver_failed(session, result, "cuDevicePrimaryCtxRetain");
        }
        memcpy(hello->device_uuid, uuid.bytes, sizeof(hello->device_uuid));
        hello->granularity = granularity;
        hello->driver_kind = (uint32_t)driver->kind;
        return 0;
}

static int say_hello(struct gpumem *session, struct gpumem_message_hello *hello)
{
        struct gpumem_message_hello_reply *reply = &session->hello;
        int r;

        hello->magic = GPUMEM_PROTOCOL_MAGIC;
        hello->version_min = GPUMEM_PROTOCOL_VERSION_MIN;
        hello->version_max = GPUMEM_PROTOCOL_VERSION_MAX;
        hello->features = GPUMEM_FEATURE_RESUME;
        wire_message_init(hello, GPUMEM_MESSAGE_HELLO, 0);
        r = client_connection_request(&session->connection, &hello->header, reply, sizeof(*reply));
        if (r < 0)
                return r;
        if (reply->version < GPUMEM_PROTOCOL_VERSION_MIN ||
            reply->version > GPUMEM_PROTOCOL_VERSION_MAX)
                return client_error(GPUMEM_E_MISMATCH,
                                    "gpumemd speaks protocol version %u, this library %d..%d",
                                    reply->version, GPUMEM_PROTOCOL_VERSION_MIN,
                                    GPUMEM_PROTOCOL_VERSION_MAX);
        if (reply->driver_kind != hello->driver_kind ||
            memcmp(reply->device_uuid, hello->device_uuid, sizeof(reply->device_uuid)) != 0)
                return client_error(GPUMEM_E_MISMATCH,
                                    "gpumemd's driver or device is not this session's");
        if (reply->frame_bytes == 0 || reply->frame_bytes % hello->granularity != 0)
                return client_error(GPUMEM_E_MISMATCH,
                                    "gpumemd's frames of %" PRIu64
                                    " bytes are no multiple of this driver's granularity, %" PRIu64,
                                    reply->frame_bytes, hello->granularity);
        return 0;
}

static void notify(void *userdata)
{
        struct gpumem *session = userdata;

        grower_wake(&session->grower);
}

static int connect_session(struct gpumem *session, const struct gpumem_options *options)
{
        struct gpumem_message_hello hello = {.driver_kind = 0};
        const char *path = options->socket_path;
        int r;

        r = session_copy_name(hello.name,
                              options->name ? options->name : program_invocation_short_name);
        if (r < 0 && options->name)
                return r;
        if (r < 0)
                memset(hello.name, 0, sizeof(hello.name));
        r = open_driver(session, options);
        if (r < 0)
                return r;
        r = open_device(session, options->device, &hello);
        if (r < 0)
                return r;
        if (!path)
                path = getenv("GPUMEM_SOCKET");
        if (!path || !*path)
                path = DEFAULT_SOCKET;
        for (unsigned attempt = 1;; attempt++) {
                const struct timespec pause = {.tv_nsec = HELLO_AGAIN_MS * 1000000L};

                r = client_connection_init(&session->connection, path, session->timeout_ms);
                if (r < 0)
                        return r;
                session->connected = true;
                session->connection.late = granted_late;
                session->connection.notify = notify;
                session->connection.userdata = session;
                r = say_hello(session, &hello);
                if (r >= 0)
                        break;
                /* A daemon that is killed before it has accepted a connection takes it along;
                 * there is nothing in it yet, so another is as good. */
                if (r != GPUMEM_E_DOWN || attempt == HELLO_ATTEMPTS)
                        return r;
                client_connection_deinit(&session->connection);
                session->connected = false;
                nanosleep(&pause, NULL);
        }
        r = grower_start(&session->grower, session);
        if (r < 0)
                return r;
        session->growing = true;
        return 0;
}

/* Undoes connect_session(), from wherever it got to. */
static void close_session(struct gpumem *session)
{
        if (session->growing)
                grower_stop(&session->grower);
        grower_deinit(&session->grower);
        owed_deinit(&session->owed);
        if (session->kernels)
                kernel_pool_free(session->kernels);
        if (session->connected)
                client_connection_deinit(&session->connection);
        if (session->context)
                session->driver->device_primary_ctx_release(session->device);
        driver_free(session->driver);
        pthread_cond_destroy(&session->released);
        pthread_mutex_destroy(&session->lock);
        pthread_mutex_destroy(&session->gate);
        free(session);
}

GPUMEM_API int gpumem_connect(struct gpumem **out, const struct gpumem_options *options)
{
        struct gpumem_options defaults = {.size = sizeof(defaults)};
        pthread_condattr_t attributes;
        struct gpumem *session;
        int r;

        if (!out)
                return client_error(GPUMEM_E_INVALID, "out is NULL");
        *out = NULL;
        if (!options)
                options = &defaults;
        if (options->size != sizeof(*options))
                return client_error(GPUMEM_E_INVALID,
                                    "options.size is %zu; this library's struct has %zu bytes",
                                    options->size, sizeof(*options));
        if (options->timeout_ms > TIMEOUT_MAX_MS)
                return client_error(GPUMEM_E_INVALID, "timeout_ms is at most %d", TIMEOUT_MAX_MS);
        if (options->cpu_threads > 1024)
                return client_error(GPUMEM_E_INVALID, "cpu_threads is at most 1024");
        if (kernel_cpu_isa_mistake())
                return client_error(GPUMEM_E_INVALID,
                                    "GPUMEM_CPU_ISA is \"%s\"; it must be " KERNEL_ISA_NAMES,
                                    kernel_cpu_isa_mistake());
        session = calloc(1, sizeof(*session));
        if (!session)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a session");
        session->pid = getpid();
        session->timeout_ms = options->timeout_ms ? options->timeout_ms : DEFAULT_TIMEOUT_MS;
        session->cpu_threads = options->cpu_threads;
        session->connection.fd = -1;
        TAILQ_INIT(&session->pools);
        TAILQ_INIT(&session->stranded);
        TAILQ_INIT(&session->buffers);
        TAILQ_INIT(&session->leaving);
        pthread_mutex_init(&session->gate, NULL);
        pthread_mutex_init(&session->lock, NULL);
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&session->released, &attributes);
        pthread_condattr_destroy(&attributes);
        owed_init(&session->owed);
        grower_init(&session->grower);

        r = connect_session(session, options);
        if (r < 0) {
                close_session(session);
                return r;
        }
        *out = session;
        return 0;
}

/* In a child, where the parent's threads and driver are not: lets go of the descriptor, so that
 * this process does not keep the parent's connection open, and of what is plain memory. */
static void forget_session(struct gpumem *session)
{
        struct gpumem_buffer *buffer;

        close(session->connection.fd);
        /* If another thread held the lock at the fork, what it covers is half-done: it stays. */
        if (pthread_mutex_trylock(&session->lock) != 0)
                return;
        while ((buffer = TAILQ_FIRST(&session->buffers))) {
                TAILQ_REMOVE(&session->buffers, buffer, link);
                buffer_forget(buffer);
        }
        pthread_mutex_unlock(&session->lock);
        /* Of pools and the connection it is not known whether a thread was at work in them. */
        free(session);
}

GPUMEM_API struct gpumem *gpumem_disconnect(struct gpumem *session)
{
        struct gpumem_kv *kv;
        struct gpumem_buffer *buffer;

        if (!session)
                return NULL;
        if (session->pid != getpid()) {
                forget_session(session);
                return NULL;
        }
        while ((kv = TAILQ_FIRST(&session->pools))) {
                if (kv_destroy(kv, true) < 0) {
                        /* A stream still uses it. Its memory stays mapped, and is the daemon's
                         * again when this process ends. */
                        TAILQ_REMOVE(&session->pools, kv, link);
                        TAILQ_INSERT_TAIL(&session->stranded, kv, link);
                }
        }
        if (TAILQ_EMPTY(&session->stranded) || !session_is_gated(session)) {
                while ((buffer = TAILQ_FIRST(&session->buffers)))
                        gpumem_buffer_free(buffer);
                buffers_leave(session);
        }
        if (!TAILQ_EMPTY(&session->stranded)) {
                /* Kernels may still come to the session's memory, too: it stays. */
                grower_stop(&session->grower);
                client_connection_deinit(&session->connection);
                return NULL;
        }
        close_session(session);
        return NULL;
}

GPUMEM_API int gpumem_get_info(struct gpumem *session, struct gpumem_info *out)
{
        struct gpumem_message_meminfo request;
        struct gpumem_message_meminfo_reply reply;
        int r;

        r = session_check(session);
        if (r < 0)
                return r;
        if (!out)
                return client_error(GPUMEM_E_INVALID, "out is NULL");
        wire_message_init(&request, GPUMEM_MESSAGE_MEMINFO, 0);
        r = client_connection_request(&session->connection, &request.header, &reply, sizeof(reply));
        if (r < 0)
                return r;
        memset(out, 0, sizeof(*out));
        out->session = session->hello.session;
        memcpy(out->device_uuid, session->hello.device_uuid, sizeof(out->device_uuid));
        out->frame_bytes = session->hello.frame_bytes;
        out->device_bytes = reply.device_bytes;
        out->session_bytes = reply.session_bytes;
        out->tenant_bytes = reply.tenant_bytes;
        out->available_bytes = reply.available_bytes;
        return 0;
}

GPUMEM_API int gpumem_safe_point(struct gpumem *session)
{
        int r;

        r = session_check(session);
        if (r < 0)
                return r;
        return grower_safe_point(session);
}

static bool touches(const struct address_space *space, uint64_t address, uint64_t bytes)
{
        /* The analyser does not see what a list's loop reads. */
        /* cppcheck-suppress [uninitvar, ctuuninitvar] */
        return address < space->base + space->bytes && space->base < address + bytes;
}

static bool contains(const struct address_space *space, uint64_t address, uint64_t bytes)
{
        return address >= space->base && address + bytes <= space->base + space->bytes;
}

enum session_range session_range(struct gpumem *session, uint64_t address, uint64_t bytes)
{
        enum session_range range = SESSION_RANGE_OUTSIDE;
        const struct gpumem_buffer *buffer;
        struct gpumem_kv *kv;

        if (bytes > UINT64_MAX - address)
                return SESSION_RANGE_ACROSS;
        lock_take(&session->lock, LOCK_SESSION);
        /* What is reserved does not overlap: the first that it touches decides. */
        TAILQ_FOREACH(buffer, &session->buffers, link)
        {
                if (!touches(&buffer->space, address, bytes))
                        continue;
                range = contains(&buffer->space, address, bytes) ? SESSION_RANGE_WITHIN
                                                                 : SESSION_RANGE_ACROSS;
                break;
        }
        TAILQ_FOREACH(kv, &session->pools, link)
        {
                if (range != SESSION_RANGE_OUTSIDE)
                        break;
                if (touches(&kv->space, address, bytes))
                        range = kv_covers(kv, address, bytes) ? SESSION_RANGE_WITHIN
                                                              : SESSION_RANGE_ACROSS;
        }
        lock_release(&session->lock);
        return range;
}

GPUMEM_API int gpumem_host_view(struct gpumem *session, gpumem_address address, size_t bytes,
                                void **out)
{
        int r;

        r = session_check(session);
        if (r < 0)
                return r;
        if (!out || bytes == 0)
                return client_error(GPUMEM_E_INVALID, "out is NULL or bytes is 0");
        if (!session->driver->host_view)
                return client_error(GPUMEM_E_UNSUPPORTED,
                                    "device memory has host addresses on the simulated driver "
                                    "only");
        if (session_range(session, address, bytes) != SESSION_RANGE_WITHIN)
                return client_error(GPUMEM_E_INVALID,
                                    "%zu bytes at 0x%" PRIx64
                                    " are not within a buffer or a mapped part of a pool",
                                    bytes, address);
        *out = session->driver->host_view(address, bytes);
        if (!*out)
                return client_error(GPUMEM_E_DEVICE, "the simulator has no host address for it");
        return 0;
}
