/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libclient/wire/wire.h"
#include "tests/support/daemon_unit.h"

/* --- every type, well-formed --- */

/* What a well-formed message of each type is, said here a second time and independently of the
 * table under test. */
static const struct specimen {
        uint16_t type;
        enum wire_direction direction;
        size_t size;    /* without ids */
        size_t counter; /* offset of a count; 0: none */
        uint32_t most;  /* highest count */
        int has_ids;
        int fds_per_id;
        size_t reserved; /* offset; 0: none */
        size_t text;     /* offset; 0: none */
        size_t text_size;
} specimens[] = {
        {GPUMEM_MESSAGE_ERROR, WIRE_TO_CLIENT, 536, 0, 0, 0, 0, 20, 24, 512},
        {GPUMEM_MESSAGE_HELLO, WIRE_TO_DAEMON, 136, 0, 0, 0, 0, 44, 72, 64},
        {GPUMEM_MESSAGE_HELLO_REPLY, WIRE_TO_CLIENT, 88, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_OBJECT_CREATE, WIRE_TO_DAEMON, 96, 0, 0, 0, 0, 0, 32, 64},
        {GPUMEM_MESSAGE_OBJECT_CREATE_REPLY, WIRE_TO_CLIENT, 24, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_OBJECT_DESTROY, WIRE_TO_DAEMON, 24, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_OBJECT_DESTROY_REPLY, WIRE_TO_CLIENT, 24, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_GRANT, WIRE_TO_DAEMON, 32, 24, 253, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_GRANT_REPLY, WIRE_TO_CLIENT, 32, 24, 253, 1, 1, 28, 0, 0},
        {GPUMEM_MESSAGE_RETURN, WIRE_TO_DAEMON, 32, 24, 4096, 1, 0, 28, 0, 0},
        {GPUMEM_MESSAGE_RETURN_REPLY, WIRE_TO_CLIENT, 24, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_MEMINFO, WIRE_TO_DAEMON, 16, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_MEMINFO_REPLY, WIRE_TO_CLIENT, 48, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_REPLAY, WIRE_TO_DAEMON, 16, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_EVENT_RESUMED, WIRE_TO_CLIENT, 32, 0, 0, 0, 0, 28, 0, 0},
        {GPUMEM_MESSAGE_EVENT_RECLAIM, WIRE_TO_CLIENT, 24, 0, 0, 0, 0, 0, 0, 0},
        {GPUMEM_MESSAGE_EVENT_DEVICE, WIRE_TO_CLIENT, 24, 0, 0, 0, 0, 20, 0, 0},
};
#define SPECIMENS (sizeof(specimens) / sizeof(specimens[0]))

static _Alignas(8) unsigned char buffer[GPUMEM_MESSAGE_MAX + 64];

static struct gpumem_message_header *header(void)
{
        return (struct gpumem_message_header *)(void *)buffer;
}

static void put32(size_t offset, uint32_t value)
{
        memcpy(buffer + offset, &value, sizeof(value));
}

/* Makes specimen `s` with `count` ids; returns length, *fds is what has to come along. */
static size_t make(const struct specimen *s, uint32_t count, size_t *fds)
{
        size_t length = s->size + (s->has_ids ? count * sizeof(uint64_t) : 0);

        memset(buffer, 0, sizeof(buffer));
        *fds = s->fds_per_id ? count : 0;
        wire_header_init(header(), s->type, (uint32_t)length, (uint16_t)*fds,
                         s->type & GPUMEM_MESSAGE_EVENT ? 0 : 7);
        if (s->counter)
                put32(s->counter, count);
        return length;
}

static void test_well_formed(void)
{
        for (size_t i = 0; i < SPECIMENS; i++) {
                const struct specimen *s = &specimens[i];
                size_t fds, length = make(s, 1, &fds);

                CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_OK);
                if (s->counter) {
                        length = make(s, s->most, &fds);
                        CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_OK);
                }
        }
        CU_ASSERT_EQUAL(sizeof(struct gpumem_message_error), 536);
        CU_ASSERT_EQUAL(sizeof(struct gpumem_message_hello), 136);
        CU_ASSERT_EQUAL(sizeof(struct gpumem_message_hello_reply), 88);
}

static void test_wrong_direction(void)
{
        for (size_t i = 0; i < SPECIMENS; i++) {
                const struct specimen *s = &specimens[i];
                size_t fds, length = make(s, 1, &fds);

                CU_ASSERT_EQUAL(wire_check(buffer, length, fds,
                                           s->direction == WIRE_TO_CLIENT ? WIRE_TO_DAEMON
                                                                          : WIRE_TO_CLIENT),
                                WIRE_BAD_TYPE);
        }
}

static void test_wrong_length(void)
{
        for (size_t i = 0; i < SPECIMENS; i++) {
                const struct specimen *s = &specimens[i];
                size_t fds, length = make(s, 3, &fds);

                /* What arrived and what is stated differ. */
                CU_ASSERT_EQUAL(wire_check(buffer, length - 1, fds, s->direction), WIRE_BAD_LENGTH);
                CU_ASSERT_EQUAL(wire_check(buffer, length + 8, fds, s->direction), WIRE_BAD_LENGTH);
                /* Every stated length that is shorter or a little longer, consistently. */
                for (size_t other = 0; other <= length + 16; other++) {
                        if (other == length)
                                continue;
                        header()->length = (uint32_t)other;
                        CU_ASSERT_EQUAL(wire_check(buffer, other, fds, s->direction),
                                        WIRE_BAD_LENGTH);
                }
        }
        CU_ASSERT_EQUAL(wire_check(buffer, 0, 0, WIRE_TO_DAEMON), WIRE_BAD_LENGTH);
        memset(buffer, 0, sizeof(buffer));
        header()->length = GPUMEM_MESSAGE_MAX + 8;
        CU_ASSERT_EQUAL(wire_check(buffer, GPUMEM_MESSAGE_MAX + 8, 0, WIRE_TO_DAEMON),
                        WIRE_BAD_LENGTH);
}

static void test_wrong_type(void)
{
        memset(buffer, 0, sizeof(buffer));
        for (uint32_t type = 0; type <= UINT16_MAX; type++) {
                int known = 0;

                for (size_t i = 0; i < SPECIMENS; i++)
                        known |= specimens[i].type == type;
                wire_header_init(header(), (uint16_t)type, 16, 0, 1);
                if (known)
                        continue;
                if (wire_check(buffer, 16, 0, WIRE_TO_DAEMON) != WIRE_BAD_TYPE ||
                    wire_check(buffer, 16, 0, WIRE_TO_CLIENT) != WIRE_BAD_TYPE)
                        CU_FAIL("an unknown type passed");
        }
}

static void test_wrong_flags_and_reserved(void)
{
        for (size_t i = 0; i < SPECIMENS; i++) {
                const struct specimen *s = &specimens[i];
                size_t fds, length = make(s, 1, &fds);

                for (unsigned bit = 0; bit < 32; bit++) {
                        header()->flags = UINT32_C(1) << bit;
                        CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction),
                                        WIRE_BAD_FLAGS);
                }
                header()->flags = 0;
                if (!s->reserved)
                        continue;
                put32(s->reserved, 0x10000);
                CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_BAD_FLAGS);
        }
}

static void test_wrong_fds(void)
{
        for (size_t i = 0; i < SPECIMENS; i++) {
                const struct specimen *s = &specimens[i];
                size_t fds, length = make(s, 5, &fds);

                /* Stated and arrived differ. */
                CU_ASSERT_EQUAL(wire_check(buffer, length, fds + 1, s->direction), WIRE_BAD_FDS);
                if (fds > 0)
                        CU_ASSERT_EQUAL(wire_check(buffer, length, fds - 1, s->direction),
                                        WIRE_BAD_FDS);
                /* They agree with each other, but not with the message. */
                header()->fds = (uint16_t)(fds + 1);
                CU_ASSERT_EQUAL(wire_check(buffer, length, fds + 1, s->direction), WIRE_BAD_FDS);
                if (fds > 0) {
                        header()->fds = 0;
                        CU_ASSERT_EQUAL(wire_check(buffer, length, 0, s->direction), WIRE_BAD_FDS);
                }
        }
}

static void test_wrong_count(void)
{
        static const uint32_t ids[] = {0, 1};

        for (size_t i = 0; i < SPECIMENS; i++) {
                const struct specimen *s = &specimens[i];
                size_t fds, length;

                if (!s->counter)
                        continue;
                for (size_t j = 0; j < 2; j++) {
                        length = make(s, ids[j], &fds);
                        put32(s->counter, 0);
                        CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction),
                                        WIRE_BAD_COUNT);
                        put32(s->counter, s->most + 1);
                        CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction),
                                        WIRE_BAD_COUNT);
                        /* Times eight, these are small again in 32 bits. */
                        put32(s->counter, UINT32_C(0x20000001));
                        CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction),
                                        WIRE_BAD_COUNT);
                        put32(s->counter, UINT32_MAX);
                        CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction),
                                        WIRE_BAD_COUNT);
                }
                if (s->has_ids) {
                        length = make(s, 4, &fds);
                        put32(s->counter, 3);
                        CU_ASSERT_NOT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_OK);
                        put32(s->counter, 5);
                        CU_ASSERT_NOT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_OK);
                }
        }
}

static void test_wrong_serial(void)
{
        for (size_t i = 0; i < SPECIMENS; i++) {
                const struct specimen *s = &specimens[i];
                size_t fds, length = make(s, 1, &fds);

                header()->serial = s->type & GPUMEM_MESSAGE_EVENT ? 1 : 0;
                CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_BAD_SERIAL);
        }
}

static void test_wrong_text(void)
{
        for (size_t i = 0; i < SPECIMENS; i++) {
                const struct specimen *s = &specimens[i];
                size_t fds, length;

                if (!s->text)
                        continue;
                length = make(s, 1, &fds);
                memset(buffer + s->text, 'a', s->text_size);
                CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_BAD_TEXT);
                buffer[s->text + s->text_size - 1] = '\0';
                CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_OK);
                buffer[s->text + 1] = '\x1b';
                CU_ASSERT_EQUAL(wire_check(buffer, length, fds, s->direction), WIRE_BAD_TEXT);
        }
}

static void test_text(void)
{
        static const char *const good[] = {"",
                                           "engine 7",
                                           "caf\xc3\xa9",
                                           "\xe2\x82\xac",
                                           "\xf0\x9f\x98\x80",
                                           "\xf4\x8f\xbf\xbf"};
        static const char *const bad[] = {
                "\n",
                "a\tb",
                "\x7f",
                "\xc2\x85" /* NEL */,
                "\x80",
                "\xc0\xaf" /* overlong */,
                "\xe0\x80\xaf",
                "\xf0\x80\x80\xaf",
                "\xed\xa0\x80" /* surrogate */,
                "\xf4\x90\x80\x80" /* above U+10FFFF */,
                "\xff",
                "a\xc3",
                "\xe2\x82",
                "\xf0\x9f\x98",
        };
        char text[16];

        for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
                CU_ASSERT_EQUAL(wire_text_check(good[i], strlen(good[i]) + 1, 0), WIRE_OK);
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
                CU_ASSERT_EQUAL(wire_text_check(bad[i], strlen(bad[i]) + 1, 0), WIRE_BAD_TEXT);
        CU_ASSERT_EQUAL(wire_text_check("a\nb", 4, 1), WIRE_OK);
        memset(text, 'x', sizeof(text));
        CU_ASSERT_EQUAL(wire_text_check(text, sizeof(text), 0), WIRE_BAD_TEXT);
}

static void test_names(void)
{
        CU_ASSERT_STRING_EQUAL(wire_type_text(GPUMEM_MESSAGE_GRANT_REPLY), "GRANT_REPLY");
        CU_ASSERT_STRING_EQUAL(wire_type_text(0x7777), "unknown");
        CU_ASSERT_STRING_EQUAL(wire_error_text(GPUMEM_E_STATE), "GPUMEM_E_STATE");
        CU_ASSERT_STRING_EQUAL(wire_error_text(6), "GPUMEM_E_TIMEOUT");
        CU_ASSERT_STRING_EQUAL(wire_error_text(16), "unknown");
        CU_ASSERT_STRING_EQUAL(wire_error_text(INT32_MIN), "unknown");
        for (int i = -1; i <= WIRE_PROBLEM_COUNT; i++)
                CU_ASSERT_PTR_NOT_NULL(wire_problem_text(i));
}

/* --- transport --- */

static int pair[2];

static void open_pair(void)
{
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                abort();
}

static void close_pair(void)
{
        for (int i = 0; i < 2; i++)
                if (pair[i] >= 0)
                        close(pair[i]);
}

static void test_round_trip(void)
{
        struct gpumem_message_grant grant = {.object = 3, .frames = 4, .wait_ms = 5}, other;
        struct wire_fds set;
        size_t length;

        open_pair();
        wire_message_init(&grant, GPUMEM_MESSAGE_GRANT, 9);
        CU_ASSERT_EQUAL(wire_send(pair[0], &grant, sizeof(grant), 0), 0);
        CU_ASSERT_EQUAL(wire_receive(pair[1], &other, sizeof(other), &set, &length, 0), 0);
        CU_ASSERT_EQUAL(length, sizeof(grant));
        CU_ASSERT_EQUAL(memcmp(&grant, &other, sizeof(grant)), 0);
        CU_ASSERT_EQUAL(set.count, 0);
        CU_ASSERT_EQUAL(wire_check(&other, length, 0, WIRE_TO_DAEMON), WIRE_OK);
        CU_ASSERT_EQUAL(wire_receive(pair[1], &other, sizeof(other), &set, &length, MSG_DONTWAIT),
                        -EAGAIN);
        close_pair();
}

static void test_descriptors(void)
{
        struct gpumem_message_meminfo message;
        int fds[GPUMEM_MESSAGE_FDS_MAX], before = unit_count_fds(), taken;
        struct wire_fds set;
        size_t length;

        open_pair();
        wire_message_init(&message, GPUMEM_MESSAGE_MEMINFO, 1);
        for (size_t i = 0; i < GPUMEM_MESSAGE_FDS_MAX; i++)
                fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        CU_ASSERT_EQUAL(wire_send_with_fds(pair[0], &message, sizeof(message), fds,
                                           GPUMEM_MESSAGE_FDS_MAX, 0),
                        0);
        CU_ASSERT(fcntl(fds[0], F_GETFD) >= 0); /* borrowed */
        CU_ASSERT_EQUAL(wire_receive(pair[1], buffer, sizeof(buffer), &set, &length, 0), 0);
        CU_ASSERT_EQUAL(set.count, GPUMEM_MESSAGE_FDS_MAX);
        CU_ASSERT(fcntl(set.fds[252], F_GETFD) & FD_CLOEXEC);
        taken = wire_fds_take(&set, 7);
        CU_ASSERT(taken >= 0);
        CU_ASSERT_EQUAL(wire_fds_take(&set, 7), -1);
        CU_ASSERT_EQUAL(wire_fds_take(&set, GPUMEM_MESSAGE_FDS_MAX), -1);
        wire_fds_deinit(&set);
        wire_fds_deinit(&set);
        CU_ASSERT(fcntl(taken, F_GETFD) >= 0);
        close(taken);
        CU_ASSERT_EQUAL(wire_send_consume_fds(pair[0], &message, sizeof(message), fds,
                                              GPUMEM_MESSAGE_FDS_MAX, 0),
                        0);
        CU_ASSERT_EQUAL(unit_count_fds(), before + 2);
        CU_ASSERT_EQUAL(wire_send_with_fds(pair[0], &message, sizeof(message), fds,
                                           GPUMEM_MESSAGE_FDS_MAX + 1, 0),
                        -E2BIG);
        close_pair(); /* with descriptors in flight */
        CU_ASSERT_EQUAL(unit_count_fds(), before);
}

/* More data than a message may have: an error, and nothing is left open. */
static void test_truncated(void)
{
        struct gpumem_message_meminfo small;
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC), before = unit_count_fds();
        struct wire_fds set;
        size_t length;

        open_pair();
        memset(buffer, 0, sizeof(buffer));
        CU_ASSERT_EQUAL(wire_send_with_fds(pair[0], buffer, 4096, &null, 1, 0), 0);
        CU_ASSERT_EQUAL(wire_receive(pair[1], &small, sizeof(small), &set, &length, 0),
                        WIRE_TRUNCATED);
        CU_ASSERT_EQUAL(set.count, 0);
        CU_ASSERT_EQUAL(length, 0);
        CU_ASSERT_EQUAL(unit_count_fds(), before + 2);
        CU_ASSERT_EQUAL(send(pair[0], buffer, GPUMEM_MESSAGE_MAX + 1, 0), GPUMEM_MESSAGE_MAX + 1);
        CU_ASSERT_EQUAL(wire_receive(pair[1], buffer, GPUMEM_MESSAGE_MAX, &set, &length, 0),
                        WIRE_TRUNCATED);
        CU_ASSERT_EQUAL(wire_send(pair[0], buffer, GPUMEM_MESSAGE_MAX + 1, 0), -EMSGSIZE);
        CU_ASSERT_EQUAL(wire_send(pair[0], buffer, 8, 0), -EMSGSIZE);
        close_pair();
        close(null);
}

/* No room for the descriptors in this process: said, and none of those that fit is left. */
static void test_descriptors_lost(void)
{
        struct gpumem_message_meminfo message;
        struct rlimit limit, tight;
        int fds[8], before;
        struct wire_fds set;
        size_t length;

        open_pair();
        wire_message_init(&message, GPUMEM_MESSAGE_MEMINFO, 1);
        for (size_t i = 0; i < 8; i++)
                fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        wire_send_consume_fds(pair[0], &message, sizeof(message), fds, 8, 0);
        before = unit_count_fds();
        getrlimit(RLIMIT_NOFILE, &limit);
        tight = limit;
        tight.rlim_cur = (rlim_t)fds[3]; /* the lowest three are free again */
        setrlimit(RLIMIT_NOFILE, &tight);
        CU_ASSERT_EQUAL(wire_receive(pair[1], &message, sizeof(message), &set, &length, 0),
                        WIRE_FDS_LOST);
        setrlimit(RLIMIT_NOFILE, &limit);
        CU_ASSERT_EQUAL(unit_count_fds(), before);
        close_pair();
}

static void test_closed(void)
{
        struct gpumem_message_meminfo message;
        struct wire_fds set;
        size_t length;

        open_pair();
        wire_message_init(&message, GPUMEM_MESSAGE_MEMINFO, 1);
        CU_ASSERT_EQUAL(send(pair[0], buffer, 0, 0), 0); /* an empty packet */
        CU_ASSERT_EQUAL(wire_receive(pair[1], buffer, sizeof(buffer), &set, &length, 0),
                        WIRE_CLOSED);
        wire_send(pair[0], &message, sizeof(message), 0);
        close(pair[0]);
        pair[0] = -1;
        /* What was sent before the end is still there. */
        CU_ASSERT_EQUAL(wire_receive(pair[1], buffer, sizeof(buffer), &set, &length, 0), 0);
        CU_ASSERT_EQUAL(wire_receive(pair[1], buffer, sizeof(buffer), &set, &length, 0),
                        WIRE_CLOSED);
        CU_ASSERT_EQUAL(wire_send(pair[1], &message, sizeof(message), 0), -EPIPE);
        close_pair();
        pair[0] = pair[1] = -1;
}

static void test_full(void)
{
        struct gpumem_message_meminfo message;
        int sent = 0, r;

        open_pair();
        wire_message_init(&message, GPUMEM_MESSAGE_MEMINFO, 1);
        while ((r = wire_send(pair[0], &message, sizeof(message), MSG_DONTWAIT)) == 0 &&
               sent < 1000000)
                sent++;
        CU_ASSERT_EQUAL(r, -EAGAIN);
        CU_ASSERT(sent > 10);
        CU_ASSERT_EQUAL(wire_wait(pair[0], 4 /* POLLOUT */, wire_deadline_ns(10)), -ETIMEDOUT);
        close_pair();
}

static void *send_later(void *argument)
{
        struct gpumem_message_meminfo message;

        (void)argument;
        usleep(20000);
        wire_message_init(&message, GPUMEM_MESSAGE_MEMINFO, 1);
        wire_send(pair[0], &message, sizeof(message), 0);
        return NULL;
}

static void test_deadlines(void)
{
        struct wire_fds set;
        pthread_t thread;
        uint64_t start;
        size_t length;

        open_pair();
        start = wire_now_ns();
        CU_ASSERT_EQUAL(wire_receive_until(pair[1], buffer, sizeof(buffer), &set, &length,
                                           wire_deadline_ns(30)),
                        -ETIMEDOUT);
        CU_ASSERT(wire_now_ns() - start >= 30000000u);
        CU_ASSERT_EQUAL(set.count, 0);
        CU_ASSERT_EQUAL(wire_receive_until(pair[1], buffer, sizeof(buffer), &set, &length, 0),
                        -ETIMEDOUT);
        pthread_create(&thread, NULL, send_later, NULL);
        CU_ASSERT_EQUAL(wire_receive_until(pair[1], buffer, sizeof(buffer), &set, &length,
                                           wire_deadline_ns(10000)),
                        0);
        pthread_join(thread, NULL);
        CU_ASSERT_EQUAL(wire_set_timeout(pair[1], 30), 0);
        start = wire_now_ns();
        CU_ASSERT_EQUAL(wire_receive(pair[1], buffer, sizeof(buffer), &set, &length, 0), -EAGAIN);
        CU_ASSERT(wire_now_ns() - start >= 20000000u);
        close_pair();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"well-formed messages pass", test_well_formed},
                {"wrong direction", test_wrong_direction},
                {"wrong length", test_wrong_length},
                {"unknown types", test_wrong_type},
                {"flags and reserved fields", test_wrong_flags_and_reserved},
                {"wrong number of descriptors", test_wrong_fds},
                {"wrong counts", test_wrong_count},
                {"wrong serials", test_wrong_serial},
                {"wrong texts in messages", test_wrong_text},
                {"what a text may be", test_text},
                {"names for people", test_names},
                {"round trip", test_round_trip},
                {"descriptors: lent, taken, closed", test_descriptors},
                {"truncated packets", test_truncated},
                {"no room for descriptors", test_descriptors_lost},
                {"the peer's end", test_closed},
                {"a full queue", test_full},
                {"deadlines", test_deadlines},
        };

        return UNIT_RUN("wire", tests);
}
