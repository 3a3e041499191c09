/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_check() in both directions. Input: direction, number of descriptors, the message. After
 * WIRE_OK everything that its contract allows to be read is read.
 */
#include "libclient/wire/wire.h"
#include "tests/fuzz/fuzz.h"

static void read_ids(const uint64_t *ids, uint32_t count)
{
        volatile uint64_t sum = 0;

        for (uint32_t i = 0; i < count; i++)
                sum = sum + ids[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct fuzz_input input = {data, size};
        enum wire_direction direction = fuzz_u8(&input) & 1 ? WIRE_TO_CLIENT : WIRE_TO_DAEMON;
        size_t fds = fuzz_u8(&input), length = input.left;
        void *message = fuzz_copy(input.at, length);
        const struct gpumem_message_header *header = message;
        int problem = wire_check(message, length, fds, direction);

        FUZZ_REQUIRE(problem >= WIRE_OK && problem < WIRE_PROBLEM_COUNT);
        FUZZ_REQUIRE(*wire_problem_text(problem));
        if (problem == WIRE_OK) {
                FUZZ_REQUIRE(header->length == length && header->fds == fds);
                FUZZ_REQUIRE(strcmp(wire_type_text(header->type), "unknown") != 0);
                FUZZ_REQUIRE(length % 8 == 0);
                switch ((enum gpumem_message_type)header->type) {
                case GPUMEM_MESSAGE_ERROR: {
                        const struct gpumem_message_error *error = message;

                        FUZZ_REQUIRE(strlen(error->text) < sizeof(error->text));
                        FUZZ_REQUIRE(*wire_error_text((int)error->code));
                        break;
                }
                case GPUMEM_MESSAGE_HELLO: {
                        const struct gpumem_message_hello *hello = message;

                        FUZZ_REQUIRE(strlen(hello->name) < sizeof(hello->name));
                        break;
                }
                case GPUMEM_MESSAGE_OBJECT_CREATE: {
                        const struct gpumem_message_object_create *create = message;

                        FUZZ_REQUIRE(strlen(create->name) < sizeof(create->name));
                        break;
                }
                case GPUMEM_MESSAGE_GRANT_REPLY: {
                        const struct gpumem_message_grant_reply *reply = message;

                        FUZZ_REQUIRE(reply->frames == fds);
                        read_ids(reply->frame_ids, reply->frames);
                        break;
                }
                case GPUMEM_MESSAGE_RETURN: {
                        const struct gpumem_message_return *request = message;

                        FUZZ_REQUIRE(request->frames <= GPUMEM_RETURN_FRAMES_MAX);
                        read_ids(request->frame_ids, request->frames);
                        break;
                }
                default:
                        break;
                }
        }
        wire_text_check((const char *)input.at, input.left, fds & 1);
        free(message);
        return 0;
}
