/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "libclient/buffer.h"
#include "libclient/context_scope.h"
#include "libclient/error.h"

/* Every frame, or none. A buffer larger than one message is several grants; those that were had are
 * given back before waiting for the next, so that two sessions never wait for what the other holds.
 */
static int fetch_frames(struct gpumem_buffer *buffer, uint64_t frames, uint64_t deadline_ns)
{
        bool asked = false;

        for (;;) {
                uint64_t left = frames;
                int r = 0;

                while (left > 0 && r == 0) {
                        uint32_t chunk = left < GPUMEM_MESSAGE_FDS_MAX ? (uint32_t)left
                                                                       : GPUMEM_MESSAGE_FDS_MAX;

                        /* Only the first grant may wait. */
                        r = granted_request(buffer->session, buffer->object, 1, chunk,
                                            left == frames && asked ? deadline_ns : 0,
                                            &buffer->frames);
                        if (r == 0)
                                left -= chunk;
                }
                if (r == 0)
                        return 0;
                if (left < frames) {
                        struct client_message why = client_message_keep();

                        granted_return(buffer->session, buffer->object, &buffer->frames);
                        client_message_restore(r, &why);
                }
                if (r != GPUMEM_E_AGAIN)
                        return r;
                if (!asked) {
                        /* What this session has lying idle comes first. */
                        struct client_message why = client_message_keep();

                        asked = true;
                        if (grower_reclaim(buffer->session, NULL,
                                           frames * buffer->session->hello.frame_bytes,
                                           deadline_ns > 0) > 0 ||
                            deadline_ns > 0)
                                continue;
                        return client_message_restore(r, &why);
                }
                if (wire_now_ns() >= deadline_ns || session_poll(buffer->session) > 0)
                        return r;
                /* There was memory, but not enough: let others move before trying anew. */
                nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
}

static int map_frames(struct gpumem_buffer *buffer)
{
        uint64_t offset = 0;
        struct granted *set;
        int r;

        STAILQ_FOREACH(set, &buffer->frames, link)
        {
                /* cppcheck-suppress uninitvar */
                r = address_space_map(&buffer->space, offset, set, &buffer->stuck);
                if (r < 0)
                        break;
                offset += set->count * buffer->space.frame_bytes;
        }
        if (!set)
                return 0;
        if (address_space_unmap(&buffer->space, 0, (uint32_t)(offset / buffer->space.frame_bytes)) <
            0)
                buffer->stuck = true;
        return r;
}

/* From wherever creation got to, with nothing mapped any more (or stuck). */
static void discard(struct gpumem_buffer *buffer)
{
        CONTEXT_SCOPE(scope, buffer->session->driver, buffer->session->context);
        uint32_t lost;

        if (!buffer->stuck && granted_release(buffer->session, &buffer->frames, &lost) < 0)
                buffer->stuck = true;
        /* What may still be mapped is kept until the session ends: a returned frame must not be. */
        if (!buffer->stuck) {
                address_space_deinit(&buffer->space);
                if (buffer->object != 0)
                        session_object_destroy(buffer->session, buffer->object);
        }
        granted_list_free(&buffer->frames);
        free(buffer);
}

static int create(struct gpumem_buffer *buffer, uint64_t bytes, const char *name, uint32_t wait_ms)
{
        struct gpumem *session = buffer->session;
        uint64_t frame_bytes = session->hello.frame_bytes;
        uint64_t frames = (bytes - 1) / frame_bytes + 1;
        uint64_t deadline_ns = wait_ms ? wire_deadline_ns(wait_ms) : 0;
        int r;

        r = session_object_create(session, GPUMEM_OBJECT_BUFFER, 1, frames, name, &buffer->object);
        if (r < 0)
                return r;
        r = fetch_frames(buffer, frames, deadline_ns);
        if (r < 0)
                return r;

        CONTEXT_SCOPE(scope, session->driver, session->context);
        if (scope.result != CUDA_SUCCESS)
                return client_error_driver(session->driver, scope.result, "cuCtxPushCurrent");
        r = address_space_init(&buffer->space, session->driver, session->device,
                               frames * frame_bytes, frame_bytes);
        if (r < 0)
                return r;
        r = session_gate_close(session, 0);
        if (r < 0)
                return r;
        r = map_frames(buffer);
        session_gate_open(session);
        return r;
}

GPUMEM_API int gpumem_buffer_create(struct gpumem *session, uint64_t bytes, const char *name,
                                    uint32_t wait_ms, struct gpumem_buffer **out)
{
        struct gpumem_buffer *buffer;
        int r;

        r = session_check(session);
        if (r < 0)
                return r;
        if (!out)
                return client_error(GPUMEM_E_INVALID, "out is NULL");
        *out = NULL;
        if (bytes == 0)
                return client_error(GPUMEM_E_INVALID, "bytes is 0");
        if (bytes > session->hello.device_bytes)
                return client_error(GPUMEM_E_NO_MEMORY,
                                    "%" PRIu64 " bytes are more than the %" PRIu64
                                    " that gpumemd has on this device",
                                    bytes, session->hello.device_bytes);
        buffer = calloc(1, sizeof(*buffer));
        if (!buffer)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a buffer");
        buffer->session = session;
        STAILQ_INIT(&buffer->frames);
        r = create(buffer, bytes, name, wait_ms);
        if (r < 0) {
                struct client_message why = client_message_keep();

                discard(buffer);
                return client_message_restore(r, &why);
        }
        lock_take(&session->lock, LOCK_SESSION);
        TAILQ_INSERT_TAIL(&session->buffers, buffer, link);
        lock_release(&session->lock);
        *out = buffer;
        return 0;
}

/* Unmaps it, and it is no more. False: mappings could not change until the deadline. */
static bool leave(struct gpumem_buffer *buffer, uint64_t deadline_ns)
{
        struct gpumem *session = buffer->session;
        CONTEXT_SCOPE(scope, session->driver, session->context);

        if (session_gate_close(session, deadline_ns) < 0)
                return false;
        if (address_space_unmap(&buffer->space, 0,
                                (uint32_t)(buffer->space.bytes / buffer->space.frame_bytes)) < 0)
                buffer->stuck = true;
        session_gate_open(session);
        discard(buffer);
        return true;
}

void buffer_forget(struct gpumem_buffer *buffer)
{
        granted_list_free(&buffer->frames);
        free(buffer);
}

GPUMEM_API struct gpumem_buffer *gpumem_buffer_free(struct gpumem_buffer *buffer)
{
        if (!buffer)
                return NULL;
        if (session_check(buffer->session) < 0) {
                /* A child's copy. If another thread held the lock at the fork, the list may be
                 * half-done, and the copy stays. */
                if (pthread_mutex_trylock(&buffer->session->lock) == 0) {
                        TAILQ_REMOVE(&buffer->session->buffers, buffer, link);
                        pthread_mutex_unlock(&buffer->session->lock);
                        buffer_forget(buffer);
                }
                return NULL;
        }
        lock_take(&buffer->session->lock, LOCK_SESSION);
        TAILQ_REMOVE(&buffer->session->buffers, buffer, link);
        lock_release(&buffer->session->lock);
        if (!leave(buffer, session_deadline_ns(buffer->session))) {
                struct gpumem *session = buffer->session;

                lock_take(&session->lock, LOCK_SESSION);
                TAILQ_INSERT_TAIL(&session->leaving, buffer, link);
                lock_release(&session->lock);
                grower_wake(&session->grower);
        }
        return NULL;
}

bool buffers_leave(struct gpumem *session)
{
        struct gpumem_buffer *buffer;

        for (;;) {
                lock_take(&session->lock, LOCK_SESSION);
                buffer = TAILQ_FIRST(&session->leaving);
                if (buffer)
                        TAILQ_REMOVE(&session->leaving, buffer, link);
                lock_release(&session->lock);
                if (!buffer)
                        return false;
                if (leave(buffer, 0))
                        continue;
                lock_take(&session->lock, LOCK_SESSION);
                TAILQ_INSERT_HEAD(&session->leaving, buffer, link);
                lock_release(&session->lock);
                return true;
        }
}

GPUMEM_API gpumem_address gpumem_buffer_address(const struct gpumem_buffer *buffer)
{
        return buffer ? buffer->space.base : 0;
}

GPUMEM_API uint64_t gpumem_buffer_bytes(const struct gpumem_buffer *buffer)
{
        return buffer ? buffer->space.bytes : 0;
}
