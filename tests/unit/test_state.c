/* SPDX-License-Identifier: Apache-2.0 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/state.h"
#include "libclient/wire/wire.h"
#include "tests/support/daemon_unit.h"

#define FRAMES 100

static struct state *make(void)
{
        static struct state_plan plan = {.sessions_max = 3};
        struct state *state;

        plan.devices[1].frames = FRAMES;
        plan.devices[1].frame_bytes = 65536;
        plan.devices[5].frames = 1;
        plan.devices[5].frame_bytes = 4096;
        CU_ASSERT_EQUAL_FATAL(state_new(&state, &plan), 0);
        state->header->sessions_last = 10;
        state->header->tenants_last = 2;
        return state;
}

static int reopen(const struct state *state, struct state **out)
{
        char why[256];

        return state_open_consume_fd(out, fcntl(state->fd, F_DUPFD_CLOEXEC, 0), why, sizeof(why));
}

static void commit(struct state_session *session, uint64_t ticket, uint32_t serial)
{
        struct gpumem_message_return_reply reply = {.frames = serial};

        wire_message_init(&reply, GPUMEM_MESSAGE_RETURN_REPLY, serial);
        state_session_commit(session, ticket, serial, &reply, sizeof(reply));
}

static void test_layout(void)
{
        struct state *state = make(), *other;
        struct state_device device;
        struct state_frame frame;

        /* Not before it is complete. */
        CU_ASSERT_EQUAL(reopen(state, &other), STATE_E_BROKEN);
        state_complete(state);
        CU_ASSERT_EQUAL_FATAL(reopen(state, &other), 0);
        CU_ASSERT_FALSE(state_read_device(other, 0, &device));
        CU_ASSERT_TRUE(state_read_device(other, 1, &device));
        CU_ASSERT_EQUAL(device.frames, FRAMES);
        CU_ASSERT_FALSE(state_read_device(other, STATE_DEVICES_MAX, &device));
        for (uint32_t i = 0; i < FRAMES; i++)
                state_frames(state, 1)[i].session = i;
        for (uint32_t i = 0; i < FRAMES; i++) {
                state_read_frame(other, &device, i, &frame);
                CU_ASSERT_EQUAL(frame.session, i);
                CU_ASSERT_EQUAL(frame.state, FRAME_FREE);
        }
        /* The size is sealed. */
        CU_ASSERT_EQUAL(ftruncate(state->fd, 4096), -1);
        CU_ASSERT_EQUAL(ftruncate(state->fd, (off_t)state->size + 4096), -1);
        state_free(other);
        state_free(state);
}

static void test_versions(void)
{
        struct state *state = make(), *other;
        char why[256];
        int fd;

        state_complete(state);
        state->header->version = STATE_VERSION + 1;
        /* A newer one may look any way it likes. */
        state->header->frame_size = 1;
        state->header->devices_offset = UINT64_MAX;
        CU_ASSERT_EQUAL(reopen(state, &other), STATE_E_NEWER);
        CU_ASSERT_PTR_NULL(other);
        state->header->version = 0;
        CU_ASSERT_EQUAL(reopen(state, &other), STATE_E_BROKEN);
        state_free(state);

        /* What is no state at all. */
        fd = memfd_create("no-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CU_ASSERT_EQUAL(state_open_consume_fd(&other, fd, why, sizeof(why)), STATE_E_BROKEN);
        fd = memfd_create("no-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CU_ASSERT_EQUAL(ftruncate(fd, 64), 0);
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
        CU_ASSERT_EQUAL(state_open_consume_fd(&other, fd, why, sizeof(why)), STATE_E_BROKEN);
        CU_ASSERT_EQUAL(strcmp(why, "it is too short"), 0);
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        CU_ASSERT_EQUAL(state_open_consume_fd(&other, fd, why, sizeof(why)), STATE_E_BROKEN);
}

static void test_sessions(void)
{
        struct state *state = make();
        struct state_session *a, *b, *c;
        const struct state_reply *reply;

        a = state_session_take(state, 7);
        b = state_session_take(state, 8);
        c = state_session_take(state, 9);
        CU_ASSERT_PTR_NOT_NULL_FATAL(c);
        CU_ASSERT_PTR_NULL(state_session_take(state, 10));
        a->tenant = b->tenant = 1;
        a->device = b->device = 1;
        /* It exists when it is open and something is committed. */
        CU_ASSERT_PTR_NULL(state_read_session(state, 0));
        state_session_set(a, STATE_SESSION_OPEN);
        CU_ASSERT_PTR_NULL(state_read_session(state, 0));
        commit(a, 1, 1);
        CU_ASSERT_PTR_EQUAL(state_read_session(state, 0), a);
        CU_ASSERT_PTR_NULL(state_read_session(state, 1));
        CU_ASSERT_PTR_NULL(state_read_session(state, 3));
        reply = state_committed_reply(a);
        CU_ASSERT_PTR_NOT_NULL_FATAL(reply);
        CU_ASSERT_EQUAL(reply->serial, 1);
        /* The next reply does not touch it until it is committed itself. */
        memset(&a->replies[0], 0xff, sizeof(a->replies[0]));
        CU_ASSERT_EQUAL(state_committed_reply(a)->serial, 1);
        commit(a, 2, 2);
        CU_ASSERT_EQUAL(state_committed_reply(a)->serial, 2);
        /* Nonsense is not a session. */
        a->device = 0;
        CU_ASSERT_PTR_NULL(state_read_session(state, 0));
        a->device = 1;
        a->tenant = 3;
        CU_ASSERT_PTR_NULL(state_read_session(state, 0));
        a->tenant = 1;
        memset(a->name, 'x', sizeof(a->name));
        CU_ASSERT_PTR_NULL(state_read_session(state, 0));
        a->name[0] = '\0';
        a->name[sizeof(a->name) - 1] = '\0';
        CU_ASSERT_PTR_NOT_NULL(state_read_session(state, 0));
        a->replies[0].length = sizeof(a->replies[0].message) + 1;
        CU_ASSERT_PTR_NULL(state_committed_reply(a));
        /* A released record can be taken again, and nothing is left in it. */
        state_session_release(state, b);
        CU_ASSERT_PTR_EQUAL(state_session_take(state, 11), b);
        CU_ASSERT_EQUAL(b->tenant, 0);
        CU_ASSERT_EQUAL(b->commit, 0);
        CU_ASSERT_EQUAL(state->header->sessions_last, 11);
        state_free(state);
}

static void test_undo(void)
{
        struct state *state = make();
        struct state_session *session = state_session_take(state, 7);
        struct state_object object = {.id = 5 << 8 | 3, .created = 4};
        struct state_frame frame;

        state_session_set(session, STATE_SESSION_OPEN);
        commit(session, 3, 3);
        /* Granted by a request that was not committed: as before. */
        for (int committed = 0; committed < 2; committed++) {
                frame = (struct state_frame){
                        .state = FRAME_GRANTED, .previous = FRAME_READY, .ticket = 4};
                state_frame_recover(&frame, session);
                CU_ASSERT_EQUAL(frame.state, committed ? FRAME_GRANTED : FRAME_READY);
                /* Returned by one: still granted. */
                frame = (struct state_frame){
                        .state = FRAME_DIRTY, .previous = FRAME_FRESH, .ticket = 4};
                state_frame_recover(&frame, session);
                CU_ASSERT_EQUAL(frame.state, committed ? FRAME_DIRTY : FRAME_GRANTED);
                /* What has become of it since is what it is. */
                frame = (struct state_frame){.state = FRAME_READY, .ticket = 4};
                state_frame_recover(&frame, session);
                CU_ASSERT_EQUAL(frame.state, FRAME_READY);

                state_object_create(session, 3, &object);
                CU_ASSERT_EQUAL(state_object_exists(session, &session->objects[3]), committed);
                if (!committed)
                        commit(session, 4, 4);
        }
        session->objects[3].destroyed = 5;
        CU_ASSERT_TRUE(state_object_exists(session, &session->objects[3]));
        commit(session, 5, 5);
        CU_ASSERT_FALSE(state_object_exists(session, &session->objects[3]));
        CU_ASSERT_FALSE(state_object_exists(session, &session->objects[2]));
        CU_ASSERT_EQUAL(session->objects_last, 5);
        /* A closed session has no requests to undo. */
        state_session_set(session, STATE_SESSION_CLOSED);
        frame = (struct state_frame){.state = FRAME_DIRTY, .ticket = 6};
        state_frame_recover(&frame, session);
        CU_ASSERT_EQUAL(frame.state, FRAME_DIRTY);
        state_free(state);
}

/* splitmix64 */
static uint64_t next(uint64_t *state)
{
        uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

/* Reads all that there is to read; what comes out does not matter, that nothing is read outside
 * does. */
static uint64_t read_all(const struct state *state)
{
        struct state_device device;
        struct state_frame frame;
        uint64_t sum = 0;

        for (uint32_t slot = 0; slot < STATE_DEVICES_MAX; slot++) {
                if (!state_read_device(state, slot, &device))
                        continue;
                for (uint32_t i = 0; i < device.frames; i++) {
                        state_read_frame(state, &device, i, &frame);
                        sum += frame.state;
                }
        }
        for (uint32_t i = 0; i < state->header->sessions_max; i++) {
                const struct state_session *session = state_read_session(state, i);
                const struct state_reply *reply = session ? state_committed_reply(session) : NULL;

                for (uint32_t slot = 0; session && slot < STATE_OBJECTS_MAX; slot++)
                        sum += state_object_exists(session, &session->objects[slot]);
                for (uint32_t at = 0; reply && at < reply->length; at++)
                        sum += reply->message[at];
        }
        return sum;
}

static void test_corruption(void)
{
        uint64_t random = 1, opened = 0, sum = 0;

        for (int round = 0; round < 3000; round++) {
                struct state *state = make(), *other;
                struct state_session *session = state_session_take(state, 7);
                size_t interesting =
                        round % 3 == 0   ? sizeof(*state->header)
                        : round % 3 == 1 ? state->size
                                         : sizeof(*state->header) +
                                                   STATE_DEVICES_MAX * sizeof(struct state_device);

                session->tenant = session->device = 1;
                state_session_set(session, STATE_SESSION_OPEN);
                commit(session, 1, 1);
                state_complete(state);
                for (uint64_t changes = 1 + next(&random) % 4; changes > 0; changes--) {
                        size_t at = next(&random) % interesting;

                        /* A byte, or a word of ones, zeroes or anything. */
                        state->base[at] ^= (uint8_t)(1u << (next(&random) % 8));
                        if (next(&random) % 2) {
                                uint64_t value = next(&random) % 3 == 0 ? UINT64_MAX
                                                 : next(&random) % 2    ? 0
                                                                        : next(&random);

                                at = at / 8 * 8;
                                memcpy(state->base + at, &value, sizeof(value));
                        }
                }
                if (reopen(state, &other) == 0) {
                        opened++;
                        sum += read_all(other);
                        state_free(other);
                }
                state_free(state);
        }
        /* Both outcomes were seen. */
        CU_ASSERT(opened > 300 && opened < 2900);
        CU_ASSERT(sum > 0);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"layout", test_layout},
                {"versions", test_versions},
                {"sessions and replies", test_sessions},
                {"what was not committed is undone", test_undo},
                {"corruption", test_corruption},
        };

        return UNIT_RUN("state", tests);
}
