/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/crash.h"
#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/filler.h"
#include "daemon/frame_pool.h"
#include "daemon/kept.h"
#include "daemon/request.h"
#include "daemon/tenant.h"
#include "libclient/wire/wire.h"

/* --- HELLO --- */

static void describe_devices(const struct daemon *daemon, char *text, size_t size)
{
        size_t length = 0;

        text[0] = '\0';
        list_for_each(node, &daemon->devices)
        {
                const struct device *device = list_entry(node, struct device, link);
                int n;

                if (length >= size)
                        return;
                n = snprintf(text + length, size - length, "%s%s", length ? ", " : "",
                             device->uuid_text);
                if (n < 0)
                        return;
                length += (size_t)n;
        }
}

static void hello_accept(struct session *session, struct device *device,
                         struct tenant_device *allotment, const char *name)
{
        struct daemon *daemon = session->daemon;
        struct gpumem_message_hello_reply reply = {
                .version = GPUMEM_PROTOCOL_VERSION_MAX,
                .features = session->resumable ? GPUMEM_FEATURE_RESUME : 0,
                .driver_kind = daemon->driver_use->kind,
                .frame_bytes = device->table.frame_bytes,
                .device_bytes = device_managed_bytes(device),
                .session = session->number,
                .epoch = daemon->epoch_ns,
                .objects_max = OBJECTS_MAX,
                .device_flags = device->flags,
        };

        memcpy(reply.device_uuid, device->uuid, sizeof(reply.device_uuid));
        snprintf(session->name, sizeof(session->name), "%s", name);
        session->hello_timer = sd_event_source_disable_unref(session->hello_timer);
        session->device = device;
        session->allotment = allotment;
        session->state = SESSION_OPEN;
        list_append(&device->sessions, &session->device_link);
        device->sessions_count++;
        log_info(&daemon->log, "session opened", LOG_ID(MESSAGE_ID_SESSION_OPENED),
                 LOG_U64("session", session->number), LOG_I64("pid", session->identity.pid),
                 LOG_U64("uid", session->identity.uid), LOG_TEXT("engine", session->name),
                 LOG_TEXT("device", device->uuid_text));
        session_reply(session, &reply, GPUMEM_MESSAGE_HELLO_REPLY, sizeof(reply), NULL, 0);
        if (device->state != DEVICE_OK && session->state == SESSION_OPEN)
                session_send_device(session);
}

static void handle_hello(struct session *session, const struct gpumem_message_hello *hello)
{
        struct daemon *daemon = session->daemon;
        struct tenant_device *allotment;
        struct device *device;

        if (session->state != SESSION_NEW) {
                session_refuse(session, GPUMEM_E_STATE, "HELLO was said before");
                return;
        }
        if (hello->magic != GPUMEM_PROTOCOL_MAGIC) {
                session_protocol_error(session, WIRE_PROBLEM_COUNT, "HELLO with a wrong magic");
                return;
        }
        if (hello->version_min > hello->version_max ||
            hello->version_min > GPUMEM_PROTOCOL_VERSION_MAX ||
            hello->version_max < GPUMEM_PROTOCOL_VERSION_MIN) {
                session_refuse(session, GPUMEM_E_MISMATCH,
                               "the client speaks versions %" PRIu32 " to %" PRIu32
                               ", the daemon %d to %d",
                               hello->version_min, hello->version_max, GPUMEM_PROTOCOL_VERSION_MIN,
                               GPUMEM_PROTOCOL_VERSION_MAX);
                return;
        }
        if (hello->driver_kind != (uint32_t)daemon->driver_use->kind) {
                session_refuse(session, GPUMEM_E_MISMATCH,
                               "the client uses the %s driver, the daemon the %s one",
                               driver_kind_name((enum driver_kind)hello->driver_kind),
                               driver_kind_name(daemon->driver_use->kind));
                return;
        }
        device = device_find(daemon, hello->device_uuid);
        if (!device) {
                char devices[GPUMEM_TEXT_MAX - 160], wanted[sizeof(device->uuid_text)];

                describe_devices(daemon, devices, sizeof(devices));
                device_format_uuid(hello->device_uuid, wanted);
                session_refuse(session, GPUMEM_E_NOT_FOUND,
                               "the client's device %s is none of the daemon's%s; the daemon "
                               "manages %s",
                               wanted,
                               hello->driver_kind == DRIVER_SIMULATED
                                       ? " (simulated: both sides need the same GPUMEM_SIM_DIR)"
                                       : "",
                               devices);
                return;
        }
        if (hello->granularity == 0 || device->table.frame_bytes % hello->granularity != 0) {
                session_refuse(session, GPUMEM_E_MISMATCH,
                               "the client's granularity of %" PRIu64
                               " bytes does not divide the frame of %" PRIu64 " bytes",
                               hello->granularity, device->table.frame_bytes);
                return;
        }
        if (device->state == DEVICE_LOST) {
                session_refuse(session, GPUMEM_E_DEVICE, "the device is lost: %s", device->trouble);
                return;
        }
        if (tenant_device_get(&allotment, session->tenant, device) < 0) {
                session_refuse(session, GPUMEM_E_NO_MEMORY, "the daemon is out of host memory");
                return;
        }
        if (kept_session_new(session, device, hello->name,
                             hello->features & GPUMEM_FEATURE_RESUME) < 0) {
                session_refuse(session, GPUMEM_E_LIMIT, "too many sessions");
                return;
        }
        hello_accept(session, device, allotment, hello->name);
}

/* --- objects --- */

static void handle_object_create(struct session *session,
                                 const struct gpumem_message_object_create *message)
{
        struct gpumem_message_object_create_reply reply = {0};
        struct object *object;
        int r;

        if (message->kind != GPUMEM_OBJECT_BUFFER && message->kind != GPUMEM_OBJECT_KV_POOL) {
                session_refuse(session, GPUMEM_E_INVALID, "object kind %" PRIu32 " does not exist",
                               message->kind);
                return;
        }
        if (message->unit_frames < 1 || message->unit_frames > GPUMEM_MESSAGE_FDS_MAX ||
            message->frames_max < message->unit_frames) {
                session_refuse(session, GPUMEM_E_INVALID,
                               "a unit of %" PRIu32 " frames and at most %" PRIu64
                               ": the unit must be 1 to %d frames, the most at least one unit",
                               message->unit_frames, message->frames_max, GPUMEM_MESSAGE_FDS_MAX);
                return;
        }
        r = object_new(&object, &session->objects, session, message->kind, message->unit_frames,
                       message->frames_max, message->name);
        if (r == OBJECT_E_TABLE_FULL) {
                session_refuse(session, GPUMEM_E_LIMIT, "a session may have %d objects",
                               OBJECTS_MAX);
                return;
        }
        if (r < 0) {
                session_refuse(session, GPUMEM_E_NO_MEMORY, "the daemon is out of host memory");
                return;
        }
        reply.object = object->id;
        kept_object_new(session, object);
        session_reply(session, &reply, GPUMEM_MESSAGE_OBJECT_CREATE_REPLY, sizeof(reply), NULL, 0);
}

static void handle_object_destroy(struct session *session,
                                  const struct gpumem_message_object_destroy *message)
{
        struct gpumem_message_object_destroy_reply reply = {0};
        struct device *device = session->device;
        struct object *object = object_find(&session->objects, message->object);

        if (!object) {
                session_refuse(session, GPUMEM_E_NOT_FOUND, "no object %" PRIu64, message->object);
                return;
        }
        reply.frames = object->frames.count;
        if (session->wait.object == object)
                grant_cancel(device, &session->wait);
        kept_object_free(session, object);
        while (object->frames.count > 0)
                frame_pool_return(device, session->allotment, object, object->frames.first);
        object_free(object, &session->objects);
        session_reply(session, &reply, GPUMEM_MESSAGE_OBJECT_DESTROY_REPLY, sizeof(reply), NULL, 0);
        grant_run(device);
}

/* --- frames --- */

static void handle_grant(struct session *session, const struct gpumem_message_grant *message)
{
        grant_request(session, message->object, message->frames, message->wait_ms);
}

static void unmark(struct frame_table *table, const uint64_t *ids, uint32_t count)
{
        for (uint32_t i = 0; i < count; i++)
                table->frames[ids[i]].marked = 0;
}

static void handle_return(struct session *session, const struct gpumem_message_return *message)
{
        struct gpumem_message_return_reply reply = {.frames = message->frames};
        struct device *device = session->device;
        struct frame_table *table = &device->table;
        struct object *object = object_find(&session->objects, message->object);

        if (!object) {
                session_refuse(session, GPUMEM_E_NOT_FOUND, "no object %" PRIu64, message->object);
                return;
        }
        if (message->frames % object->unit_frames != 0) {
                session_refuse(session, GPUMEM_E_INVALID,
                               "%" PRIu32
                               " frames are no multiple of the object's unit of %" PRIu32,
                               message->frames, object->unit_frames);
                return;
        }
        for (uint32_t i = 0; i < message->frames; i++) {
                uint64_t id = message->frame_ids[i];
                bool held = id < table->count && table->frames[id].state == FRAME_GRANTED &&
                            table->frames[id].object == object;

                if (held && !table->frames[id].marked) {
                        table->frames[id].marked = 1;
                        continue;
                }
                unmark(table, message->frame_ids, i);
                if (held)
                        session_refuse(session, GPUMEM_E_INVALID,
                                       "frame %" PRIu64 " is named twice", id);
                else
                        session_refuse(session, GPUMEM_E_NOT_FOUND,
                                       "object %" PRIu64 " does not hold frame %" PRIu64,
                                       object->id, id);
                return;
        }
        unmark(table, message->frame_ids, message->frames);
        for (uint32_t i = 0; i < message->frames; i++)
                frame_pool_return(device, session->allotment, object,
                                  (uint32_t)message->frame_ids[i]);
        crash_point(session->daemon, "return-done");
        session_reply(session, &reply, GPUMEM_MESSAGE_RETURN_REPLY, sizeof(reply), NULL, 0);
        grant_run(device);
}

static void handle_meminfo(struct session *session)
{
        struct device *device = session->device;
        uint64_t frame_bytes = device->table.frame_bytes;
        struct gpumem_message_meminfo_reply reply = {
                .device_bytes = device_managed_bytes(device),
                .session_bytes = session->frames * frame_bytes,
                .tenant_bytes = session->tenant->account.bytes,
                .available_bytes = frame_pool_obtainable(device, session->allotment) * frame_bytes,
        };

        session_reply(session, &reply, GPUMEM_MESSAGE_MEMINFO_REPLY, sizeof(reply), NULL, 0);
}

/* --- dispatch --- */

void request_handle(struct session *session, const void *buffer, size_t length, size_t fds_count)
{
        const struct gpumem_message_header *header = buffer;
        uint32_t expected = session->serial == UINT32_MAX ? 1 : session->serial + 1;
        int problem = wire_check(buffer, length, fds_count, WIRE_TO_DAEMON);

        if (problem == WIRE_OK && session->resumed && header->serial == session->serial) {
                if (header->type == GPUMEM_MESSAGE_REPLAY)
                        session_replay(session);
                return; /* a duplicate: it was carried out, or is being */
        }
        if (session->outstanding) {
                session_protocol_error(session, WIRE_PROBLEM_COUNT + 1,
                                       "a request came while another is outstanding");
                return;
        }
        /* Even a broken message is answered under its own serial, as far as it has one. */
        if (length >= sizeof(*header))
                session->serial = header->serial;
        if (problem != WIRE_OK) {
                session_protocol_error(session, problem, "%s: %s",
                                       length >= sizeof(*header) ? wire_type_text(header->type)
                                                                 : "no header",
                                       wire_problem_text(problem));
                return;
        }
        if (header->serial != expected) {
                session_protocol_error(session, WIRE_BAD_SERIAL,
                                       "serial %" PRIu32 " where %" PRIu32 " was due",
                                       header->serial, expected);
                return;
        }
        session->outstanding = true;
        crash_point(session->daemon, "request-read");
        if (session->state == SESSION_NEW && header->type != GPUMEM_MESSAGE_HELLO) {
                session_refuse(session, GPUMEM_E_STATE, "%s before HELLO",
                               wire_type_text(header->type));
                return;
        }
        switch ((enum gpumem_message_type)header->type) {
        case GPUMEM_MESSAGE_HELLO:
                handle_hello(session, buffer);
                break;
        case GPUMEM_MESSAGE_OBJECT_CREATE:
                handle_object_create(session, buffer);
                break;
        case GPUMEM_MESSAGE_OBJECT_DESTROY:
                handle_object_destroy(session, buffer);
                break;
        case GPUMEM_MESSAGE_GRANT:
                handle_grant(session, buffer);
                break;
        case GPUMEM_MESSAGE_RETURN:
                handle_return(session, buffer);
                break;
        case GPUMEM_MESSAGE_MEMINFO:
                handle_meminfo(session);
                break;
        case GPUMEM_MESSAGE_REPLAY:
                session_protocol_error(session, WIRE_BAD_SERIAL,
                                       "REPLAY of serial %" PRIu32 ", which was not answered",
                                       header->serial);
                break;
        default: /* wire_check() lets only requests through */
                session_protocol_error(session, WIRE_BAD_TYPE, "%s is no request",
                                       wire_type_text(header->type));
                break;
        }
}
