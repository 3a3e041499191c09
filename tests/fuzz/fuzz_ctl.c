/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gpumemctl makes of an answer. Input: command and options, then the bytes that the daemon
 * sends before it closes the connection. A table must not carry control characters to the terminal.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tools/gpumemctl/command.h"

#define ANSWER_BYTES_MAX 65536

static void require_printable(const char *out, size_t bytes)
{
        for (size_t i = 0; i < bytes; i++) {
                unsigned char c = (unsigned char)out[i];

                FUZZ_REQUIRE(c == '\n' || (c >= 0x20 && c != 0x7f));
                FUZZ_REQUIRE(c != 0xc2 || (unsigned char)out[i + 1] >= 0xa0);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        enum ctl_outcome (*const commands[])(struct ctl_context *) = {
                ctl_command_status,
                ctl_command_ps,
                ctl_command_meminfo,
                ctl_command_debug_check,
        };
        struct fuzz_input input = {data, size};
        uint8_t choice = fuzz_u8(&input);
        struct ctl_error error = {0};
        struct ctl_context context = {
                .options = {.json = choice & 4, .objects = choice & 8, .device = NULL},
                .error = &error,
        };
        enum ctl_outcome outcome;
        size_t bytes = input.left < ANSWER_BYTES_MAX ? input.left : ANSWER_BYTES_MAX, out_bytes;
        char *out;
        int pair[2];

        FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        FUZZ_REQUIRE(write(pair[1], input.at, bytes) == (ssize_t)bytes || bytes == 0);
        shutdown(pair[1], SHUT_WR);
        context.out = open_memstream(&out, &out_bytes);
        FUZZ_REQUIRE(context.out);
        FUZZ_REQUIRE(ctl_client_new_consume_fd(&context.client, pair[0], "fuzz", 5000, &error) ==
                     CTL_OK);
        outcome = commands[choice & 3](&context);
        ctl_client_free(context.client);
        close(pair[1]);
        fclose(context.out);

        FUZZ_REQUIRE(outcome == CTL_OK || error.text[0]);
        FUZZ_REQUIRE(strnlen(error.text, sizeof(error.text)) < sizeof(error.text));
        require_printable(error.text, strlen(error.text));
        if (!context.options.json)
                require_printable(out, out_bytes);
        free(out);
        return 0;
}
