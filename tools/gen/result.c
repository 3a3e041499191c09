/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/result.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/gen/tokenizer.h"

uint64_t result_static_bytes(const struct result *result)
{
        return (uint64_t)result->max_sequences * result->max_sequence_tokens *
               result->totals->token_bytes;
}

int result_text(const struct request *request, const struct tokenizer *tokenizer, char **text,
                size_t *bytes)
{
        return tokenizer_decode(tokenizer, request->tokens + request->prompt_tokens,
                                request_generated(request), false, text, bytes);
}

/* Length of the valid UTF-8 character at text, 0 if there is none. */
static size_t utf8_character(const unsigned char *text, size_t bytes)
{
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        size_t length;
        uint32_t code;

        if (text[0] < 0x80)
                return 1;
        if (text[0] < 0xc2 || text[0] > 0xf4)
                return 0;
        length = text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
        if (length > bytes)
                return 0;
        code = text[0] & (0x7fu >> length);
        for (size_t i = 1; i < length; i++) {
                if ((text[i] & 0xc0) != 0x80)
                        return 0;
                code = code << 6 | (text[i] & 0x3f);
        }
        if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
                return 0;
        return length;
}

/* JSON strings are UTF-8: what is not (a model may stop inside a character) becomes U+FFFD. The
 * tokens beside the text say it exactly. */
static json_object *json_text(const char *text, size_t bytes)
{
        char *clean = malloc(bytes * 3 + 1), *end = clean;
        json_object *object;

        if (!clean)
                return NULL;
        for (size_t at = 0; at < bytes;) {
                const size_t length = utf8_character((const unsigned char *)text + at, bytes - at);

                if (length) {
                        memcpy(end, text + at, length);
                        end += length;
                        at += length;
                } else {
                        memcpy(end, "\xef\xbf\xbd", 3);
                        end += 3;
                        at++;
                }
        }
        object = json_object_new_string_len(clean, (int)(end - clean));
        free(clean);
        return object;
}

/* Adds a value and takes it; false if there is none for want of memory. */
static bool add(json_object *object, const char *key, json_object *value)
{
        if (value && !json_object_object_add(object, key, value))
                return true;
        json_object_put(value);
        return false;
}

static bool add_number(json_object *object, const char *key, uint64_t value)
{
        return add(object, key, json_object_new_int64((int64_t)value));
}

static json_object *describe_request(const struct request *request,
                                     const struct tokenizer *tokenizer)
{
        json_object *object = json_object_new_object(), *tokens = json_object_new_array();
        char *text = NULL;
        size_t bytes;
        bool good;

        good = object && tokens && result_text(request, tokenizer, &text, &bytes) >= 0;
        for (uint32_t i = request->prompt_tokens; good && i < request->count; i++) {
                json_object *token = json_object_new_int64(request->tokens[i]);

                good = token && !json_object_array_add(tokens, token);
                if (!good)
                        json_object_put(token);
        }
        good = good && add(object, "prompt", json_text(request->text, request->text_bytes)) &&
               add_number(object, "prompt_tokens", request->prompt_tokens) &&
               add(object, "text", json_text(text, bytes)) &&
               add(object, "finish",
                   json_object_new_string(request_finish_name(request->finish))) &&
               add_number(object, "preemptions", request->preemptions);
        free(text);
        if (!good) {
                json_object_put(tokens);
                json_object_put(object);
                return NULL;
        }
        if (!add(object, "tokens", tokens)) {
                json_object_put(object);
                return NULL;
        }
        return object;
}

static bool describe_totals(json_object *object, const struct result *result)
{
        const struct run_totals *totals = result->totals;
        const double rate =
                totals->seconds > 0 ? (double)totals->generated_tokens / totals->seconds : 0;
        const struct {
                const char *key;
                uint64_t value;
        } numbers[] = {
                {"steps", totals->steps},
                {"prompt_tokens", totals->prompt_tokens},
                {"generated_tokens", totals->generated_tokens},
                {"computed_tokens", totals->computed_tokens},
                {"preemptions", totals->preemptions},
                {"recomputed_tokens", totals->recomputed_tokens},
                {"max_sequences", result->max_sequences},
                {"max_sequence_tokens", result->max_sequence_tokens},
                {"max_new_tokens", result->max_new_tokens},
                {"token_bytes", totals->token_bytes},
                {"static_reservation_bytes", result_static_bytes(result)},
                {"weight_bytes", totals->weight_bytes},
                {"activation_bytes", totals->activation_bytes},
                {"page_tokens", totals->page_tokens},
                {"page_bytes", totals->page_bytes},
                {"pages_per_unit", totals->pages_per_unit},
                {"unit_bytes", totals->unit_bytes},
                {"frame_bytes", totals->frame_bytes},
                {"granted_bytes_peak", totals->granted_bytes_peak},
                {"pages_used_peak", totals->pages_used_peak},
                {"pages_total_peak", totals->pages_total_peak},
                {"tokens_peak", totals->tokens_peak},
                {"sequences_peak", totals->sequences_peak},
                {"units_grown", totals->units_grown},
                {"units_returned", totals->units_returned},
                {"grow_waits", totals->grow_waits},
                {"copies", totals->copies},
        };

        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
                if (!add_number(object, numbers[i].key, numbers[i].value))
                        return false;
        return add(object, "seconds", json_object_new_double(totals->seconds)) &&
               add(object, "tokens_per_second", json_object_new_double(rate));
}

static json_object *describe(const struct result *result)
{
        json_object *root = json_object_new_object(), *list = NULL, *totals = NULL;

        if (!root || !add(root, "mode", json_object_new_string(result->mode)) ||
            !add(root, "model", json_text(result->model, strlen(result->model))) ||
            !add(root, "isa", json_object_new_string(result->isa)) ||
            !add(root, "complete", json_object_new_boolean(result->complete)))
                goto fail;
        list = json_object_new_array();
        if (!add(root, "prompts", list))
                goto fail;
        for (uint32_t i = 0; i < result->requests->count; i++) {
                json_object *one = describe_request(&result->requests->items[i], result->tokenizer);

                if (!one || json_object_array_add(list, one)) {
                        json_object_put(one);
                        goto fail;
                }
        }
        totals = json_object_new_object();
        if (!add(root, "totals", totals) || !describe_totals(totals, result))
                goto fail;
        return root;
fail:
        json_object_put(root);
        return NULL;
}

/* Where symbolic links lead, so that it is not a link that is replaced; the path itself where there
 * is nothing yet. */
static char *resolve(const char *path)
{
        char *real = realpath(path, NULL);

        return real || errno != ENOENT ? real : strdup(path);
}

int result_file_open(struct result_file *file, const char *path, struct gen_error *error)
{
        struct stat status;
        int r = 0;

        *file = (struct result_file){0};
        /* Of a pipe that /dev/stdout names there is no other path. */
        if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
                file->file = S_ISDIR(status.st_mode) ? NULL : fopen(path, "we");
                if (!file->file)
                        r = S_ISDIR(status.st_mode) ? -EISDIR : -errno;
        } else {
                file->path = resolve(path);
                if (!file->path)
                        r = -errno;
                else if (asprintf(&file->temporary, "%s.%ld.tmp", file->path, (long)getpid()) < 0) {
                        file->temporary = NULL;
                        r = -ENOMEM;
                } else if (!(file->file = fopen(file->temporary, "we"))) {
                        r = -errno;
                        free(file->temporary);
                        file->temporary = NULL;
                }
        }
        if (r < 0) {
                gen_fail(error, r, "--json %s: %s", path, strerror(-r));
                result_file_close(file);
        }
        return r;
}

/* Text and a newline, and the end of the file. */
static int write_text(struct result_file *file, const char *text)
{
        int r = 0;

        errno = 0;
        if (fputs(text, file->file) < 0 || fputc('\n', file->file) == EOF || fflush(file->file))
                r = errno ? -errno : -EIO;
        if (fclose(file->file) && !r)
                r = errno ? -errno : -EIO;
        file->file = NULL;
        return r;
}

int result_file_write(struct result_file *file, const struct result *result,
                      struct gen_error *error)
{
        json_object *root = describe(result);
        const char *text =
                root ? json_object_to_json_string_ext(root, JSON_C_TO_STRING_NOSLASHESCAPE |
                                                                    JSON_C_TO_STRING_PRETTY |
                                                                    JSON_C_TO_STRING_SPACED)
                     : NULL;
        int r = text ? write_text(file, text) : -ENOMEM;

        json_object_put(root);
        if (!r && file->temporary) {
                if (rename(file->temporary, file->path) < 0) {
                        r = -errno;
                } else {
                        free(file->temporary);
                        file->temporary = NULL;
                }
        }
        if (r < 0)
                gen_fail(error, r, "--json%s%s: %s", file->path ? " " : "",
                         file->path ? file->path : "", strerror(-r));
        return r;
}

void result_file_close(struct result_file *file)
{
        if (file->file)
                fclose(file->file);
        if (file->temporary)
                unlink(file->temporary);
        free(file->temporary);
        free(file->path);
        *file = (struct result_file){0};
}

/* The tokens of prompt `number` (from 0) in the file against the request's. */
static int compare_one(const struct request *request, json_object *other, uint32_t number,
                       struct gen_error *error)
{
        json_object *prompt, *tokens, *mine;
        const uint32_t count = request_generated(request);
        size_t theirs;
        bool same;

        if (!json_object_object_get_ex(other, "prompt", &prompt) ||
            !json_object_is_type(prompt, json_type_string) ||
            !json_object_object_get_ex(other, "tokens", &tokens) ||
            !json_object_is_type(tokens, json_type_array))
                return gen_fail(error, -EINVAL,
                                "prompt %" PRIu32 " lacks its \"prompt\" or its \"tokens\"",
                                number + 1);
        mine = json_text(request->text, request->text_bytes);
        if (!mine)
                return gen_fail(error, -ENOMEM, "out of memory");
        same = json_object_equal(mine, prompt);
        json_object_put(mine);
        if (!same)
                return gen_fail(error, RESULT_E_DIFFERENT, "prompt %" PRIu32 " is another text",
                                number + 1);
        theirs = json_object_array_length(tokens);
        for (uint32_t i = 0; i < count && i < theirs; i++) {
                json_object *token = json_object_array_get_idx(tokens, i);
                const uint32_t here = request->tokens[request->prompt_tokens + i];

                if (!json_object_is_type(token, json_type_int))
                        return gen_fail(error, -EINVAL,
                                        "prompt %" PRIu32 ": token %" PRIu32 " is not a number",
                                        number + 1, i);
                if (json_object_get_int64(token) != here)
                        return gen_fail(error, RESULT_E_DIFFERENT,
                                        "prompt %" PRIu32 ": new token %" PRIu32 " is %" PRIu32
                                        " here, %" PRId64 " there",
                                        number + 1, i, here, json_object_get_int64(token));
        }
        if (count != theirs)
                return gen_fail(error, RESULT_E_DIFFERENT,
                                "prompt %" PRIu32 ": %" PRIu32 " new tokens here, %zu there",
                                number + 1, count, theirs);
        return 0;
}

int result_compare(const struct request_list *requests, const char *path, struct gen_error *error)
{
        json_object *root = json_object_from_file(path), *list, *complete;
        struct gen_error inner = {0};
        int r = 0;

        if (!root)
                return gen_fail(error, -EINVAL, "%s: cannot be read as JSON", path);
        if (!json_object_object_get_ex(root, "prompts", &list) ||
            !json_object_is_type(list, json_type_array)) {
                r = gen_fail(&inner, -EINVAL, "has no \"prompts\": not a result of this program");
        } else if (json_object_object_get_ex(root, "complete", &complete) &&
                   !json_object_get_boolean(complete)) {
                r = gen_fail(&inner, RESULT_E_DIFFERENT, "that run was interrupted");
        } else if (json_object_array_length(list) != requests->count) {
                r = gen_fail(&inner, RESULT_E_DIFFERENT, "%" PRIu32 " prompts here, %zu there",
                             requests->count, json_object_array_length(list));
        }
        for (uint32_t i = 0; i < requests->count && !r; i++)
                r = compare_one(&requests->items[i], json_object_array_get_idx(list, i), i, &inner);
        json_object_put(root);
        return r ? gen_fail(error, r, "%s: %s", path, inner.text) : 0;
}
