/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admin socket. Input: how the bytes are cut, then the bytes that a peer sends. Whatever is
 * answered is one JSON object per NUL, with parameters; a peer that behaves is answered afterwards.
 */
#include <errno.h>
#include <json-c/json.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/admin.h"
#include "tests/fuzz/daemon_harness.h"
#include "tests/fuzz/fuzz.h"

#define PIECES_MAX 64

static const char good[] = "{\"method\":\"io.gpumemd.GetStatus\"}";

static char answers[1u << 20];
static size_t answers_bytes;

static void require_answer(const char *text, size_t length)
{
        struct json_tokener *tokener = json_tokener_new();
        json_object *object;

        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
        object = json_tokener_parse_ex(tokener, text, (int)length);
        FUZZ_REQUIRE(json_object_is_type(object, json_type_object));
        FUZZ_REQUIRE(json_tokener_get_parse_end(tokener) == length);
        FUZZ_REQUIRE(json_object_is_type(json_object_object_get(object, "parameters"),
                                         json_type_object));
        json_object_put(object);
        json_tokener_free(tokener);
}

/* How many whole answers there are; all of them are right. */
static unsigned check_answers(void)
{
        size_t begin = 0;
        unsigned count = 0;

        for (;;) {
                const char *end = memchr(answers + begin, '\0', answers_bytes - begin);

                if (!end)
                        return count;
                require_answer(answers + begin, (size_t)(end - answers) - begin);
                begin = (size_t)(end - answers) + 1;
                count++;
        }
}

static void collect(int fd)
{
        while (answers_bytes < sizeof(answers)) {
                ssize_t n = recv(fd, answers + answers_bytes, sizeof(answers) - answers_bytes,
                                 MSG_DONTWAIT);

                if (n <= 0)
                        return;
                answers_bytes += (size_t)n;
        }
}

static int listen_somewhere(struct sockaddr_un *address, socklen_t *length)
{
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        *address = (struct sockaddr_un){.sun_family = AF_UNIX};
        /* The kernel chooses a name. */
        FUZZ_REQUIRE(fd >= 0);
        FUZZ_REQUIRE(bind(fd, (struct sockaddr *)address, sizeof(sa_family_t)) == 0);
        FUZZ_REQUIRE(listen(fd, 8) == 0);
        *length = sizeof(*address);
        FUZZ_REQUIRE(getsockname(fd, (struct sockaddr *)address, length) == 0);
        return fd;
}

static void talk(const struct sockaddr_un *address, socklen_t length, const void *bytes,
                 size_t size, size_t piece)
{
        struct fuzz_input input = {bytes, size};
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        answers_bytes = 0;
        FUZZ_REQUIRE(fd >= 0 && connect(fd, (const struct sockaddr *)address, length) == 0);
        while (input.left > 0) {
                size_t part = input.left < piece ? input.left : piece;
                ssize_t n = send(fd, input.at, part, MSG_DONTWAIT | MSG_NOSIGNAL);

                if (n < 0 && errno != EAGAIN)
                        break;
                if (n > 0)
                        fuzz_take(&input, (size_t)n);
                harness_run();
                collect(fd);
                if (n < 0)
                        break;
        }
        shutdown(fd, SHUT_WR);
        harness_run();
        collect(fd);
        close(fd);
        harness_run();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static struct sockaddr_un address;
        static socklen_t length;
        static struct admin *admin;
        struct fuzz_input input = {data, size};
        size_t piece = fuzz_u8(&input);

        if (!admin)
                FUZZ_REQUIRE(admin_new(&admin, harness_daemon(),
                                       listen_somewhere(&address, &length)) == 0);
        /* Byte by byte as well, but not for long. */
        piece = piece == 0 ? SIZE_MAX : piece + input.left / PIECES_MAX;
        talk(&address, length, input.at, input.left, piece);
        check_answers();
        talk(&address, length, good, sizeof(good), SIZE_MAX);
        FUZZ_REQUIRE(check_answers() == 1);
        FUZZ_REQUIRE(strstr(answers, "\"fresh\":6"));
        return 0;
}
