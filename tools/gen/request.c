/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/request.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/gen/tokenizer.h"

const char *request_finish_name(enum request_finish finish)
{
        switch (finish) {
        case REQUEST_UNFINISHED:
                return "unfinished";
        case REQUEST_EOS:
                return "eos";
        case REQUEST_LENGTH:
                return "length";
        case REQUEST_CONTEXT:
                return "context";
        }
        return "unknown";
}

int request_list_add(struct request_list *list, const char *text, size_t bytes)
{
        char *copy;

        if (list->count == REQUESTS_MAX)
                return -E2BIG;
        if (list->count == list->capacity) {
                const uint32_t capacity = list->capacity ? list->capacity * 2 : 16;
                struct request *items = realloc(list->items, capacity * sizeof(items[0]));

                if (!items)
                        return -ENOMEM;
                list->items = items;
                list->capacity = capacity;
        }
        copy = malloc(bytes + 1);
        if (!copy)
                return -ENOMEM;
        memcpy(copy, text, bytes);
        copy[bytes] = '\0';
        list->items[list->count++] = (struct request){.text = copy, .text_bytes = bytes};
        return 0;
}

/* All that can be read from it, in memory. */
static int slurp(const char *path, char **out, size_t *bytes, struct gen_error *error)
{
        size_t have = 0, room = 0;
        char *data = NULL;
        int r = 0;
        const int fd = open(path, O_RDONLY | O_CLOEXEC);

        if (fd < 0)
                return gen_fail(error, -errno, "%s: %s", path, strerror(errno));
        while (!r) {
                ssize_t n;

                /* One byte more than the limit tells that there is more. */
                if (have == room) {
                        const size_t most = PROMPTS_FILE_BYTES_MAX + 1;
                        const size_t larger = room ? (room < most / 2 ? 2 * room : most) : 65536;
                        char *grown = realloc(data, larger);

                        if (!grown) {
                                r = gen_fail(error, -ENOMEM, "%s: out of memory", path);
                                break;
                        }
                        data = grown;
                        room = larger;
                }
                n = read(fd, data + have, room - have);
                if (!n)
                        break;
                if (n < 0)
                        r = gen_fail(error, -errno, "%s: %s", path, strerror(errno));
                else
                        have += (size_t)n;
                if (have > PROMPTS_FILE_BYTES_MAX)
                        r = gen_fail(error, -EFBIG, "%s: more than %" PRIu64 " MiB of prompts",
                                     path, PROMPTS_FILE_BYTES_MAX >> 20);
        }
        close(fd);
        if (r < 0) {
                free(data);
                return r;
        }
        *out = data;
        *bytes = have;
        return 0;
}

int request_list_read(struct request_list *list, const char *path, struct gen_error *error)
{
        char *data = NULL;
        size_t bytes = 0;
        int r = slurp(path, &data, &bytes, error);

        if (r < 0)
                return r;
        for (size_t at = 0; at < bytes && r >= 0;) {
                const char *end = memchr(data + at, '\n', bytes - at);
                const size_t length = end ? (size_t)(end - data) - at : bytes - at;

                r = request_list_add(list, data + at, length);
                at += length + 1;
        }
        free(data);
        if (r == -E2BIG)
                return gen_fail(error, r, "%s: more than %u prompts", path, REQUESTS_MAX);
        return r < 0 ? gen_fail(error, r, "%s: out of memory", path) : 0;
}

static int encode_one(struct request *request, uint32_t number, const struct tokenizer *tokenizer,
                      const struct request_limits *limits, struct gen_error *error)
{
        uint32_t *tokens, *grown;
        uint64_t most;
        size_t count;
        int r;

        r = tokenizer_encode(tokenizer, request->text, request->text_bytes, true, &tokens, &count);
        if (r < 0)
                return gen_fail(error, r, "prompt %" PRIu32 ": %s", number, strerror(-r));
        if (!count || count >= limits->max_sequence_tokens) {
                free(tokens);
                return gen_fail(error, -EINVAL,
                                "prompt %" PRIu32 " has %zu tokens%s; a sequence holds %" PRIu32
                                " (--max-sequence-tokens) and needs room for a new one",
                                number, count, count ? "" : ", at least one is needed",
                                limits->max_sequence_tokens);
        }
        most = (uint64_t)count + limits->max_new_tokens;
        if (most > limits->max_sequence_tokens)
                most = limits->max_sequence_tokens;
        grown = realloc(tokens, most * sizeof(tokens[0]));
        if (!grown) {
                free(tokens);
                return gen_fail(error, -ENOMEM, "prompt %" PRIu32 ": out of memory", number);
        }
        request->tokens = grown;
        request->tokens_max = (uint32_t)most;
        request->prompt_tokens = request->count = (uint32_t)count;
        return 0;
}

int request_list_encode(struct request_list *list, const struct tokenizer *tokenizer,
                        const struct request_limits *limits, struct gen_error *error)
{
        for (uint32_t i = 0; i < list->count; i++) {
                const int r = encode_one(&list->items[i], i + 1, tokenizer, limits, error);

                if (r < 0)
                        return r;
        }
        return 0;
}

void request_list_deinit(struct request_list *list)
{
        for (uint32_t i = 0; i < list->count; i++) {
                free(list->items[i].text);
                free(list->items[i].tokens);
        }
        free(list->items);
        *list = (struct request_list){0};
}

void request_append(struct request *request, const struct tokenizer *tokenizer,
                    const struct request_limits *limits, uint32_t token)
{
        request->tokens[request->count++] = token;
        if (tokenizer && tokenizer_ends(tokenizer, token))
                request->finish = REQUEST_EOS;
        else if (request_generated(request) >= limits->max_new_tokens)
                request->finish = REQUEST_LENGTH;
        else if (request->count >= limits->max_sequence_tokens)
                request->finish = REQUEST_CONTEXT;
        if (request->finish)
                request->state = REQUEST_DONE;
}
