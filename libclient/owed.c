/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "libclient/error.h"
#include "libclient/owed.h"
#include "libclient/session.h"

void owed_init(struct owed *owed)
{
        pthread_mutex_init(&owed->lock, NULL);
        STAILQ_INIT(&owed->list);
        atomic_init(&owed->any, false);
}

void owed_deinit(struct owed *owed)
{
        granted_list_free(&owed->list);
        pthread_mutex_destroy(&owed->lock);
}

void owed_return(struct owed *owed, uint64_t object, struct granted_list *list)
{
        struct granted *set;

        if (STAILQ_EMPTY(list))
                return;
        STAILQ_FOREACH(set, list, link)
        {
                set->object = object;
        }
        lock_take(&owed->lock, LOCK_OWED);
        STAILQ_CONCAT(&owed->list, list);
        atomic_store(&owed->any, true);
        lock_release(&owed->lock);
}

void owed_destroy(struct owed *owed, uint64_t object)
{
        struct granted *set = calloc(1, sizeof(*set));

        /* (Without host memory for this the object ends with the session.) */
        if (!set)
                return;
        set->object = object;
        lock_take(&owed->lock, LOCK_OWED);
        STAILQ_INSERT_TAIL(&owed->list, set, link);
        atomic_store(&owed->any, true);
        lock_release(&owed->lock);
}

uint32_t owed_sets(struct owed *owed, uint64_t object)
{
        const struct granted *set;
        uint32_t sets = 0;

        if (!atomic_load(&owed->any))
                return 0;
        lock_take(&owed->lock, LOCK_OWED);
        STAILQ_FOREACH(set, &owed->list, link)
        {
                /* cppcheck-suppress uninitvar */
                sets += set->object == object && set->count > 0;
        }
        lock_release(&owed->lock);
        return sets;
}

/* The first sets of the list that one message can tell; how many. */
static uint32_t gather(struct owed *owed, struct gpumem_message_return *request)
{
        const struct granted *set;
        uint32_t sets = 0;

        lock_take(&owed->lock, LOCK_OWED);
        STAILQ_FOREACH(set, &owed->list, link)
        {
                if (sets == 0)
                        /* cppcheck-suppress uninitvar */
                        request->object = set->object;
                /* cppcheck-suppress uninitvar */
                if (set->object != request->object || (set->count == 0 && sets > 0) ||
                    request->frames + set->count > GPUMEM_RETURN_FRAMES_MAX)
                        break;
                for (uint32_t i = 0; i < set->count; i++)
                        request->frame_ids[request->frames++] = set->frames[i].id;
                sets++;
                if (set->count == 0)
                        break;
        }
        lock_release(&owed->lock);
        return sets;
}

static void drop(struct owed *owed, uint32_t sets)
{
        lock_take(&owed->lock, LOCK_OWED);
        while (sets-- > 0) {
                struct granted *set = STAILQ_FIRST(&owed->list);

                STAILQ_REMOVE_HEAD(&owed->list, link);
                free(set);
        }
        atomic_store(&owed->any, !STAILQ_EMPTY(&owed->list));
        lock_release(&owed->lock);
}

/* 0, or why it was refused; *unsent: the daemon has not got it. */
static int send_first(struct gpumem *session, struct gpumem_message_return *request, bool *unsent)
{
        struct client_connection *connection = &session->connection;
        struct gpumem_message_object_destroy destroy = {.object = request->object};
        struct gpumem_message_header *header = &request->header;
        int r;

        if (request->frames == 0) {
                wire_message_init(&destroy, GPUMEM_MESSAGE_OBJECT_DESTROY, 0);
                header = &destroy.header;
        } else {
                wire_header_init(header, GPUMEM_MESSAGE_RETURN,
                                 (uint32_t)(sizeof(*request) +
                                            request->frames * sizeof(request->frame_ids[0])),
                                 0, 0);
        }
        r = client_connection_exchange(connection, header, 0);
        /* If its reply is late, the daemon has it, or gets it again from us after a restart. */
        *unsent = r == GPUMEM_E_TIMEOUT &&
                  (connection->late_serial == 0 || connection->late_serial != header->serial);
        return r;
}

int owed_send(struct gpumem *session)
{
        struct owed *owed = &session->owed;
        struct gpumem_message_return *request;
        int result = 0;

        if (!atomic_load(&owed->any))
                return 0;
        request =
                malloc(sizeof(*request) + GPUMEM_RETURN_FRAMES_MAX * sizeof(request->frame_ids[0]));
        if (!request)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a message");
        for (;;) {
                bool unsent;
                uint32_t sets;
                int r;

                memset(request, 0, sizeof(*request));
                sets = gather(owed, request);
                if (sets == 0)
                        break;
                r = send_first(session, request, &unsent);
                if (r < 0)
                        result = r;
                if (unsent)
                        break;
                drop(owed, sets);
                if (r == GPUMEM_E_TIMEOUT)
                        break;
        }
        free(request);
        return result;
}

int owed_tell(struct gpumem *session)
{
        struct client_connection *connection = &session->connection;
        int r;

        r = client_connection_take_turn(connection, wire_deadline_ns(connection->timeout_ms));
        if (r == 0) {
                r = owed_send(session);
                client_connection_pass_turn(connection);
        }
        if (atomic_load(&session->owed.any))
                grower_wake(&session->grower);
        return r;
}

bool owed_retry(struct gpumem *session)
{
        struct client_connection *connection = &session->connection;

        if (!atomic_load(&session->owed.any) || client_connection_is_down(connection))
                return false;
        if (client_connection_try_turn(connection)) {
                if (client_connection_drain(connection) == 0 && connection->late_serial == 0)
                        owed_send(session);
                client_connection_pass_turn(connection);
        }
        return atomic_load(&session->owed.any);
}
