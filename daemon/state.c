/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/state.h"

#define PAGE  4096
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static uint64_t pages(uint64_t bytes)
{
        return (bytes + PAGE - 1) / PAGE * PAGE;
}

static int map(struct state *state)
{
        void *base = mmap(NULL, state->size, PROT_READ | PROT_WRITE, MAP_SHARED, state->fd, 0);

        if (base == MAP_FAILED)
                return -errno;
        state->base = base;
        state->header = base;
        return 0;
}

struct state *state_free(struct state *state)
{
        if (!state)
                return NULL;
        if (state->base)
                munmap(state->base, state->size);
        if (state->fd >= 0)
                close(state->fd);
        free(state);
        return NULL;
}

static struct state_device *device_record(const struct state *state, uint32_t slot)
{
        return (struct state_device *)(void *)(state->base + state->header->devices_offset +
                                               (uint64_t)slot * state->header->device_size);
}

static struct state_session *session_record(const struct state *state, uint32_t index)
{
        return (struct state_session *)(void *)(state->base + state->header->sessions_offset +
                                                index * state->header->session_stride);
}

int state_new(struct state **out, const struct state_plan *plan)
{
        struct state *state;
        struct state_header header = {
                .magic = STATE_MAGIC,
                .version = STATE_VERSION,
                .frame_size = sizeof(struct state_frame),
                .session_size = sizeof(struct state_session),
                .device_size = sizeof(struct state_device),
                .sessions_max = plan->sessions_max,
                .devices_max = STATE_DEVICES_MAX,
                .devices_offset = sizeof(header),
                .session_stride = pages(sizeof(struct state_session)),
        };
        uint64_t offsets[STATE_DEVICES_MAX];
        int r;

        *out = NULL;
        header.size = pages(header.devices_offset +
                            sizeof(struct state_device) * (uint64_t)STATE_DEVICES_MAX);
        for (uint32_t i = 0; i < STATE_DEVICES_MAX; i++) {
                offsets[i] = header.size;
                header.size +=
                        pages((uint64_t)plan->devices[i].frames * sizeof(struct state_frame));
        }
        header.sessions_offset = header.size;
        header.size += header.session_stride * plan->sessions_max;

        state = calloc(1, sizeof(*state));
        if (!state)
                return -ENOMEM;
        state->size = header.size;
        state->fd = memfd_create("gpumemd-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (state->fd < 0 || ftruncate(state->fd, (off_t)header.size) < 0 ||
            fcntl(state->fd, F_ADD_SEALS, SEALS) < 0) {
                r = -errno;
                state_free(state);
                return r;
        }
        r = map(state);
        if (r < 0) {
                state_free(state);
                return r;
        }
        *state->header = header;
        for (uint32_t i = 0; i < STATE_DEVICES_MAX; i++) {
                struct state_device *device = device_record(state, i);

                if (plan->devices[i].frames == 0)
                        continue;
                memcpy(device->uuid, plan->devices[i].uuid, sizeof(device->uuid));
                device->frames = plan->devices[i].frames;
                device->frame_bytes = plan->devices[i].frame_bytes;
                device->frames_offset = offsets[i];
                __atomic_store_n(&device->in_use, 1, __ATOMIC_RELEASE);
        }
        *out = state;
        return 0;
}

void state_complete(struct state *state)
{
        __atomic_store_n(&state->header->complete, 1, __ATOMIC_RELEASE);
}

/* --- what another daemon left --------------------------------------------------------------------
 */

/* Does an array of `count` records lie within the memfd, aligned? */
static bool lies_within(const struct state *state, uint64_t offset, uint64_t count, uint64_t stride)
{
        return offset % 8 == 0 && stride % 8 == 0 && offset <= state->size &&
               (count == 0 || stride <= (state->size - offset) / count);
}

static const char *check_header(const struct state *state)
{
        const struct state_header *header = state->header;

        if (header->size != state->size)
                return "its size is not what it says";
        if (!header->complete)
                return "it was never completed";
        if (header->frame_size != sizeof(struct state_frame) ||
            header->session_size != sizeof(struct state_session) ||
            header->device_size != sizeof(struct state_device) ||
            header->session_stride < header->session_size)
                return "its records do not have the size of this version's";
        if (header->devices_max > STATE_DEVICES_MAX ||
            !lies_within(state, header->devices_offset, header->devices_max, header->device_size) ||
            header->sessions_max > 65536 * 2 ||
            !lies_within(state, header->sessions_offset, header->sessions_max,
                         header->session_stride))
                return "its tables lie outside it";
        return NULL;
}

int state_open_consume_fd(struct state **out, int fd, char *why, size_t size)
{
        struct state *state = calloc(1, sizeof(*state));
        const char *problem = NULL;
        struct stat status;
        int seals, r;

        *out = NULL;
        if (!state) {
                close(fd);
                return -ENOMEM;
        }
        state->fd = fd;
        seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &status) < 0)
                problem = "it is no sealed memory file";
        else if ((uint64_t)status.st_size < sizeof(struct state_header))
                problem = "it is too short";
        if (problem) {
                snprintf(why, size, "%s", problem);
                state_free(state);
                return STATE_E_BROKEN;
        }
        state->size = (size_t)status.st_size;
        r = map(state);
        if (r < 0) {
                snprintf(why, size, "it cannot be mapped");
                state_free(state);
                return r;
        }
        if (!state->header || state->header->magic != STATE_MAGIC || state->header->version == 0) {
                snprintf(why, size, "it does not begin as a state does");
                state_free(state);
                return STATE_E_BROKEN;
        }
        if (state->header->version > STATE_VERSION) {
                snprintf(why, size,
                         "it is of version %u, this daemon knows up to %d: install the newer "
                         "daemon again, or stop the keeper (that frees all memory and ends all "
                         "sessions)",
                         state->header->version, STATE_VERSION);
                state_free(state);
                return STATE_E_NEWER;
        }
        problem = check_header(state);
        if (problem) {
                snprintf(why, size, "%s", problem);
                state_free(state);
                return STATE_E_BROKEN;
        }
        *out = state;
        return 0;
}

bool state_read_device(const struct state *state, uint32_t slot, struct state_device *out)
{
        if (slot >= state->header->devices_max)
                return false;
        memcpy(out, device_record(state, slot), sizeof(*out));
        return out->in_use == 1 && out->frames > 0 && out->frames <= UINT32_C(1) << 20 &&
               out->frame_bytes >= 4096 && (out->frame_bytes & (out->frame_bytes - 1)) == 0 &&
               out->frame_bytes <= UINT64_C(1) << 40 &&
               lies_within(state, out->frames_offset, out->frames, state->header->frame_size);
}

void state_read_frame(const struct state *state, const struct state_device *device, uint32_t number,
                      struct state_frame *out)
{
        memcpy(out,
               state->base + device->frames_offset + (uint64_t)number * state->header->frame_size,
               sizeof(*out));
}

const struct state_session *state_read_session(const struct state *state, uint32_t index)
{
        const struct state_session *session;
        struct state_device device;

        if (index >= state->header->sessions_max)
                return NULL;
        session = session_record(state, index);
        if ((session->state != STATE_SESSION_OPEN && session->state != STATE_SESSION_CLOSED) ||
            session->number == 0 || session->number > state->header->sessions_last ||
            session->tenant == 0 || session->tenant > state->header->tenants_last ||
            session->commit == 0 || !memchr(session->name, 0, sizeof(session->name)) ||
            !memchr(session->tenant_name, 0, sizeof(session->tenant_name)) ||
            !state_read_device(state, session->device, &device))
                return NULL;
        return session;
}

bool state_object_exists(const struct state_session *session, const struct state_object *object)
{
        return object->id != 0 && object->created <= session->commit &&
               (object->destroyed == 0 || object->destroyed > session->commit);
}

const struct state_reply *state_committed_reply(const struct state_session *session)
{
        const struct state_reply *reply = &session->replies[session->commit & 1];
        struct gpumem_message_header header;

        if (reply->length < sizeof(header) || reply->length > STATE_REPLY_MAX)
                return NULL;
        memcpy(&header, reply->message, sizeof(header));
        return header.length == reply->length && header.serial == reply->serial ? reply : NULL;
}

void state_frame_recover(struct state_frame *frame, const struct state_session *session)
{
        if (session->state != STATE_SESSION_OPEN || frame->ticket <= session->commit)
                return;
        if (frame->state == FRAME_GRANTED)
                frame->state = frame->previous;
        else if (frame->state == FRAME_DIRTY)
                frame->state = FRAME_GRANTED;
        frame->ticket = 0;
}

/* --- writing -------------------------------------------------------------------------------------
 */

struct state_frame *state_frames(struct state *state, uint32_t device)
{
        return (struct state_frame *)(void *)(state->base +
                                              device_record(state, device)->frames_offset);
}

struct state_session *state_session_take(struct state *state, uint64_t number)
{
        uint32_t count = state->header->sessions_max;

        for (uint32_t i = 0; i < count; i++) {
                uint32_t index = (state->sessions_hint + i) % count;
                struct state_session *session = session_record(state, index);

                if (session->number != 0)
                        continue;
                state->sessions_hint = index + 1;
                session->number = number;
                if (state->header->sessions_last < number)
                        state->header->sessions_last = number;
                return session;
        }
        return NULL;
}

void state_session_set(struct state_session *session, enum state_session_state value)
{
        __atomic_store_n(&session->state, (uint32_t)value, __ATOMIC_RELEASE);
}

void state_session_release(struct state *state, struct state_session *session)
{
        if (!session)
                return;
        state_session_set(session, STATE_SESSION_NONE);
        /* Gives the pages back and leaves zeroes. */
        if (madvise(session, state->header->session_stride, MADV_REMOVE) < 0)
                memset(session, 0, sizeof(*session));
}

void state_session_commit(struct state_session *session, uint64_t ticket, uint32_t serial,
                          const void *message, size_t length)
{
        struct state_reply *reply = &session->replies[ticket & 1];

        reply->serial = serial;
        reply->length = (uint32_t)length;
        memcpy(reply->message, message, length < STATE_REPLY_MAX ? length : STATE_REPLY_MAX);
        __atomic_store_n(&session->commit, ticket, __ATOMIC_RELEASE);
}

void state_object_create(struct state_session *session, uint32_t slot,
                         const struct state_object *object)
{
        struct state_object *record = &session->objects[slot];
        uint64_t last = object->id >> 8;

        __atomic_store_n(&record->id, 0, __ATOMIC_RELEASE);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        memcpy((char *)record + sizeof(record->id), (const char *)object + sizeof(object->id),
               sizeof(*object) - sizeof(object->id));
        __atomic_store_n(&record->id, object->id, __ATOMIC_RELEASE);
        if (session->objects_last < last)
                session->objects_last = last;
}
