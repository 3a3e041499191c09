/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/context_scope.h"
#include "libclient/error.h"
#include "libclient/session.h"

/* How long one GRANT waits at the daemon: what another thread of the session may have to wait for
 * its turn. */
#define SLICE_MS 200

void granted_list_free(struct granted_list *list)
{
        struct granted *set;

        while ((set = STAILQ_FIRST(list))) {
                STAILQ_REMOVE_HEAD(list, link);
                free(set);
        }
}

int granted_release(struct gpumem *session, struct granted_list *list, uint32_t *lost)
{
        CONTEXT_SCOPE(scope, session->driver, session->context);
        struct granted_list released = STAILQ_HEAD_INITIALIZER(released);
        struct granted *set;
        int r = 0;

        *lost = 0;
        while ((set = STAILQ_FIRST(list))) {
                bool clean = true;

                STAILQ_REMOVE_HEAD(list, link);
                for (uint32_t i = 0; i < set->count; i++) {
                        CUresult result = session->driver->mem_release(set->frames[i].handle);

                        if (result != CUDA_SUCCESS) {
                                clean = false;
                                r = client_error_driver(session->driver, result, "cuMemRelease");
                        }
                }
                if (clean)
                        STAILQ_INSERT_TAIL(&released, set, link);
                else
                        free(set);
                *lost += !clean;
        }
        STAILQ_CONCAT(list, &released);
        return r;
}

/* One RETURN; the turn is held. */
static int send_return(struct client_connection *connection, uint64_t object, const uint64_t *ids,
                       uint32_t count)
{
        size_t length = sizeof(struct gpumem_message_return) + count * sizeof(*ids);
        struct gpumem_message_return *request = calloc(1, length);
        int r;

        if (!request)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a message");
        wire_header_init(&request->header, GPUMEM_MESSAGE_RETURN, (uint32_t)length, 0, 0);
        request->object = object;
        request->frames = count;
        memcpy(request->frame_ids, ids, count * sizeof(*ids));
        r = client_connection_exchange(connection, &request->header, 0);
        free(request);
        return r;
}

int granted_return(struct gpumem *session, uint64_t object, struct granted_list *list)
{
        uint32_t lost;
        int released = granted_release(session, list, &lost);
        int told = granted_tell(session, object, list);

        return told < 0 ? told : released;
}

int granted_tell(struct gpumem *session, uint64_t object, struct granted_list *list)
{
        struct client_connection *connection = &session->connection;
        struct granted *set;
        uint64_t *ids;
        uint32_t count = 0;
        int r = 0;

        if (STAILQ_EMPTY(list))
                return 0;
        ids = malloc(GPUMEM_RETURN_FRAMES_MAX * sizeof(*ids));
        if (!ids) {
                granted_list_free(list);
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a message");
        }
        STAILQ_FOREACH(set, list, link)
        {
                if (count + set->count > GPUMEM_RETURN_FRAMES_MAX)
                        break;
                for (uint32_t i = 0; i < set->count; i++)
                        ids[count++] = set->frames[i].id;
        }
        while (count > 0 && r == 0) {
                r = client_connection_take_turn(connection,
                                                wire_deadline_ns(connection->timeout_ms));
                if (r == 0) {
                        r = send_return(connection, object, ids, count);
                        client_connection_pass_turn(connection);
                }
                while (count > 0) {
                        struct granted *first = STAILQ_FIRST(list);

                        count -= first->count;
                        STAILQ_REMOVE_HEAD(list, link);
                        free(first);
                }
                STAILQ_FOREACH(set, list, link)
                {
                        if (count + set->count > GPUMEM_RETURN_FRAMES_MAX)
                                break;
                        for (uint32_t i = 0; i < set->count; i++)
                                ids[count++] = set->frames[i].id;
                }
        }
        granted_list_free(list);
        free(ids);
        return r;
}

void granted_late(void *userdata, union connection_message *reply, struct wire_fds *fds)
{
        struct gpumem *session = userdata;

        switch (reply->header.type) {
        case GPUMEM_MESSAGE_GRANT_REPLY: {
                uint32_t count = reply->grant_reply.frames;
                uint64_t object = reply->grant_reply.object;
                uint64_t ids[GPUMEM_MESSAGE_FDS_MAX];

                wire_fds_deinit(fds);
                memcpy(ids, reply->grant_reply.frame_ids, count * sizeof(*ids));
                send_return(&session->connection, object, ids, count);
                break;
        }
        case GPUMEM_MESSAGE_OBJECT_CREATE_REPLY: {
                struct gpumem_message_object_destroy request = {
                        .object = reply->object_create_reply.object,
                };

                wire_message_init(&request, GPUMEM_MESSAGE_OBJECT_DESTROY, 0);
                client_connection_exchange(&session->connection, &request.header, 0);
                break;
        }
        }
}

/* Imports `sets` sets and closes the descriptors. On failure nothing stays imported, or *stuck says
 * that the driver would not let go of something. */
static int import_frames(struct gpumem *session, const uint64_t *ids, struct wire_fds *fds,
                         uint32_t sets, uint32_t frames, struct granted_list *out, bool *stuck)
{
        struct granted_list list = STAILQ_HEAD_INITIALIZER(list);
        uint32_t n = 0, lost;
        int r = 0;

        for (uint32_t i = 0; i < sets && r == 0; i++) {
                struct granted *set = malloc(sizeof(*set) + frames * sizeof(set->frames[0]));

                if (!set) {
                        r = client_error(GPUMEM_E_NO_MEMORY, "host memory for %u frames", frames);
                        break;
                }
                set->count = 0;
                STAILQ_INSERT_TAIL(&list, set, link);
                while (set->count < frames) {
                        struct granted_frame *frame = &set->frames[set->count];
                        int fd = wire_fds_take(fds, n);
                        CUresult result = session->driver->mem_import_from_shareable_handle(
                                &frame->handle, (void *)(intptr_t)fd,
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

                        close(fd);
                        if (result != CUDA_SUCCESS) {
                                r = client_error_driver(session->driver, result,
                                                        "cuMemImportFromShareableHandle");
                                break;
                        }
                        frame->id = ids[n++];
                        set->count++;
                }
        }
        wire_fds_deinit(fds);
        *stuck = false;
        if (r == 0) {
                STAILQ_CONCAT(out, &list);
        } else {
                *stuck = granted_release(session, &list, &lost) < 0;
                granted_list_free(&list);
        }
        return r;
}

/* One GRANT. GPUMEM_E_AGAIN for memory that is short, whichever way the daemon puts it. */
static int request_once(struct gpumem *session, uint64_t object, uint32_t sets, uint32_t frames,
                        uint32_t wait_ms, struct granted_list *list)
{
        struct client_connection *connection = &session->connection;
        struct gpumem_message_grant request = {
                .object = object,
                .frames = sets * frames,
                .wait_ms = wait_ms,
        };
        uint64_t ids[GPUMEM_MESSAGE_FDS_MAX];
        struct wire_fds fds;
        bool stuck;
        int r;

        wire_message_init(&request, GPUMEM_MESSAGE_GRANT, 0);
        wire_fds_init(&fds);
        r = client_connection_take_turn(connection, wire_deadline_ns(connection->timeout_ms));
        if (r < 0)
                return r;
        r = client_connection_exchange(connection, &request.header, wait_ms);
        if (r == 0 && (connection->message->grant_reply.object != object ||
                       connection->message->grant_reply.frames != request.frames)) {
                /* As good as a broken protocol: these are not the frames that were asked for. */
                granted_late(session, connection->message, &connection->fds);
                r = client_error(GPUMEM_E_PROTOCOL, "gpumemd granted something else");
        } else if (r == 0) {
                memcpy(ids, connection->message->grant_reply.frame_ids,
                       request.frames * sizeof(*ids));
                memcpy(fds.fds, connection->fds.fds, connection->fds.count * sizeof(int));
                fds.count = connection->fds.count;
                connection->fds.count = 0;
        } else if (r == GPUMEM_E_TIMEOUT && connection->late_serial == 0) {
                r = GPUMEM_E_AGAIN; /* the daemon's own "not within wait_ms" */
        }
        client_connection_pass_turn(connection);
        if (r != 0)
                return r;

        r = import_frames(session, ids, &fds, sets, frames, list, &stuck);
        if (r < 0 && !stuck &&
            client_connection_take_turn(connection, wire_deadline_ns(connection->timeout_ms)) ==
                    0) {
                struct client_message why = client_message_keep();

                send_return(connection, object, ids, request.frames);
                client_connection_pass_turn(connection);
                client_message_restore(r, &why);
        }
        return r;
}

int granted_request(struct gpumem *session, uint64_t object, uint32_t sets, uint32_t frames,
                    uint64_t deadline_ns, struct granted_list *list)
{
        CONTEXT_SCOPE(scope, session->driver, session->context);
        int r;

        if (scope.result != CUDA_SUCCESS)
                return client_error_driver(session->driver, scope.result, "cuCtxPushCurrent");
        if (atomic_load(&session->device_state) == 2)
                return client_error(GPUMEM_E_DEVICE, "gpumemd says that the device is lost");
        r = request_once(session, object, sets, frames, 0, list);
        while (r == GPUMEM_E_AGAIN) {
                uint64_t now = wire_now_ns();
                uint64_t left_ms;

                if (now >= deadline_ns)
                        return r;
                if (session_poll(session) > 0)
                        return client_error_prefix(
                                GPUMEM_E_AGAIN,
                                "not waiting for memory while this session holds %u pins",
                                session_pins(session));
                left_ms = (deadline_ns - now + 999999) / 1000000;
                r = request_once(session, object, sets, frames,
                                 left_ms < SLICE_MS ? (uint32_t)left_ms : SLICE_MS, list);
        }
        return r;
}
