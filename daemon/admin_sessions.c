/* SPDX-License-Identifier: Apache-2.0 */
/* io.gpumemd.ListSessions: who is connected and what they hold. */
#include "daemon/admin_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device.h"
#include "daemon/object.h"
#include "daemon/session.h"
#include "daemon/tenant.h"

/* What one reply may hold. A client can make OBJECTS_MAX objects in every session, so without a
 * bound it would decide how long the loop is busy and how large the answer gets. */
enum {
        SESSIONS_PER_REPLY = 512,
        OBJECTS_PER_REPLY = 2048,
};

/*
 * The name of the process's current program, as it chose to call itself. False if there is no such
 * process any more: the pid may name another by then, so the pidfd is asked after reading.
 */
static bool read_comm(const struct identity *identity, char *comm, size_t size)
{
        char path[32];
        ssize_t n;
        int fd;

        snprintf(path, sizeof(path), "/proc/%d/comm", (int)identity->pid);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return false;
        n = read(fd, comm, size - 1);
        close(fd);
        if (n <= 0 || identity_has_exited(identity))
                return false;
        comm[n] = '\0';
        comm[strcspn(comm, "\n")] = '\0';
        return true;
}

static const char *state_name(const struct session *session)
{
        switch (session->state) {
        case SESSION_NEW:
                return "connecting";
        case SESSION_OPEN:
                return grant_is_waiting(&session->wait) ? "waiting" : "connected";
        case SESSION_DRAINING:
        case SESSION_DEAD:
        default:
                return "draining";
        }
}

static void add_object(struct admin_reply *reply, json_object *list, const struct object *object,
                       uint64_t frame_bytes)
{
        json_object *entry = admin_append_object(reply, list);

        admin_add_int(reply, entry, "object", object->id);
        admin_add_text(reply, entry, "kind", object_kind_name(object->kind));
        admin_add_text(reply, entry, "name", object->name);
        admin_add_int(reply, entry, "frames", object->frames.count);
        admin_add_int(reply, entry, "frames_max", object->frames_max);
        admin_add_int(reply, entry, "bytes", object->frames.count * frame_bytes);
}

static void add_session(struct admin_reply *reply, json_object *list, const struct session *session)
{
        json_object *entry = admin_append_object(reply, list), *objects;
        uint64_t frame_bytes = session->device != NULL ? session->device->table.frame_bytes : 0;
        uint64_t frames = session->frames + session->draining.count;
        char comm[64];

        admin_add_int(reply, entry, "session", session->number);
        admin_add_int(reply, entry, "pid", (uint64_t)session->identity.pid);
        admin_add_int(reply, entry, "uid", session->identity.uid);
        if (read_comm(&session->identity, comm, sizeof(comm)))
                admin_add_text(reply, entry, "comm", comm);
        admin_add_text(reply, entry, "engine", session->name);
        admin_add_text(reply, entry, "tenant", session->tenant->name);
        if (session->device != NULL)
                admin_add_text(reply, entry, "device", session->device->uuid_text);
        admin_add_text(reply, entry, "state", state_name(session));
        admin_add_int(reply, entry, "frames", frames);
        admin_add_int(reply, entry, "bytes", frames * frame_bytes);
        admin_add_int(reply, entry, "connected_us", session->connected_us);
        objects = admin_add_array(reply, entry, "objects");
        for (uint32_t i = 0; i < session->objects.capacity; i++) {
                const struct object *object = session->objects.slots[i];

                if (object != NULL)
                        add_object(reply, objects, object, frame_bytes);
        }
}

int admin_list_sessions(struct varlink_call *call, json_object *parameters, void *userdata)
{
        struct daemon *daemon = userdata;
        int64_t after = json_object_get_int64(json_object_object_get(parameters, "after"));
        unsigned int sessions = 0, objects = 0;
        uint64_t last = 0;
        struct admin_reply reply;
        json_object *list;
        bool complete = true;

        if (after < 0)
                return varlink_call_error_invalid_parameter(call, "after");
        admin_reply_init(&reply);
        list = admin_add_array(&reply, reply.parameters, "sessions");
        list_for_each(node, &daemon->sessions)
        {
                const struct session *session = list_entry(node, struct session, link);

                if (session->number <= (uint64_t)after)
                        continue;
                if (sessions == SESSIONS_PER_REPLY ||
                    (sessions > 0 && objects + session->objects.count > OBJECTS_PER_REPLY)) {
                        complete = false;
                        break;
                }
                add_session(&reply, list, session);
                sessions++;
                objects += session->objects.count;
                last = session->number;
        }
        if (!complete)
                admin_add_int(&reply, reply.parameters, "next", last);
        return admin_reply_send(&reply, call);
}
