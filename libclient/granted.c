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

int granted_return(struct gpumem *session, uint64_t object, struct granted_list *list)
{
        uint32_t lost, untold;
        int released = granted_release(session, list, &lost);
        int told = granted_tell(session, object, list, &untold);

        return told < 0 ? told : released;
}

int granted_tell(struct gpumem *session, uint64_t object, struct granted_list *list,
                 uint32_t *untold)
{
        const struct granted *set;
        uint32_t sets = 0;
        int r;

        STAILQ_FOREACH(set, list, link)
        {
                sets++;
        }
        *untold = 0;
        if (sets == 0)
                return 0;
        owed_return(&session->owed, object, list);
        r = owed_tell(session);
        /* What is owed is told in order: these are the last. */
        *untold = owed_sets(&session->owed, object);
        if (*untold > sets)
                *untold = sets;
        return r;
}

/* Frames that were granted but not imported. */
static void owe_ids(struct gpumem *session, uint64_t object, const uint64_t *ids, uint32_t count)
{
        struct granted *set = malloc(sizeof(*set) + count * sizeof(set->frames[0]));
        struct granted_list list = STAILQ_HEAD_INITIALIZER(list);

        /* (Without host memory for this the frames are the daemon's again when the object is
         * destroyed.) */
        if (!set)
                return;
        set->count = count;
        for (uint32_t i = 0; i < count; i++)
                set->frames[i] = (struct granted_frame){.id = ids[i]};
        STAILQ_INSERT_TAIL(&list, set, link);
        owed_return(&session->owed, object, &list);
}

void granted_late(void *userdata, union connection_message *reply, struct wire_fds *fds)
{
        struct gpumem *session = userdata;

        switch (reply->header.type) {
        case GPUMEM_MESSAGE_GRANT_REPLY:
                wire_fds_deinit(fds);
                owe_ids(session, reply->grant_reply.object, reply->grant_reply.frame_ids,
                        reply->grant_reply.frames);
                break;
        case GPUMEM_MESSAGE_OBJECT_CREATE_REPLY:
                owed_destroy(&session->owed, reply->object_create_reply.object);
                break;
        default:
                return;
        }
        /* Whoever has the turn has a request of its own. */
        grower_wake(&session->grower);
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
        /* What is to go back comes first: it may be what is asked for. */
        owed_send(session);
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
        if (r < 0 && !stuck) {
                struct client_message why = client_message_keep();

                owe_ids(session, object, ids, request.frames);
                owed_tell(session);
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
