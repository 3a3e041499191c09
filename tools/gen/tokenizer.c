/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary and decoding; tokenizer_encode.c has the merging. */
#include "tools/gen/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gen/gguf.h"
#include "tools/gen/vocabulary.h"

static int compare_pieces(const struct vocabulary_piece *a, const struct vocabulary_piece *b)
{
        const int order = memcmp(a->text, b->text, a->bytes < b->bytes ? a->bytes : b->bytes);

        return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_by_text(const void *left, const void *right)
{
        const struct vocabulary_piece *const *a = left, *const *b = right;

        return compare_pieces(*a, *b);
}

/* Longest first, so that a user-defined token is found before one that is part of it. */
static int compare_by_length(const void *left, const void *right)
{
        const struct vocabulary_piece *const *a = left, *const *b = right;

        if ((*a)->bytes != (*b)->bytes)
                return (*a)->bytes < (*b)->bytes ? 1 : -1;
        return ((*a) > (*b)) - ((*a) < (*b));
}

uint32_t vocabulary_find(const struct tokenizer *tokenizer, const char *text, size_t bytes)
{
        struct vocabulary_piece wanted = {.text = text, .bytes = (uint32_t)bytes};
        size_t low = 0, high = tokenizer->sorted_count;

        if (bytes > tokenizer->longest)
                return TOKENIZER_NONE;
        while (low < high) {
                const size_t middle = low + (high - low) / 2;
                const int order = compare_pieces(tokenizer->sorted[middle], &wanted);

                if (!order)
                        return (uint32_t)(tokenizer->sorted[middle] - tokenizer->pieces);
                if (order < 0)
                        low = middle + 1;
                else
                        high = middle;
        }
        return TOKENIZER_NONE;
}

static int hex_digit(char digit)
{
        if (digit >= '0' && digit <= '9')
                return digit - '0';
        if (digit >= 'A' && digit <= 'F')
                return digit - 'A' + 10;
        if (digit >= 'a' && digit <= 'f')
                return digit - 'a' + 10;
        return -1;
}

/* The byte that "<0x41>" stands for, or -1. */
static int byte_of_piece(const struct vocabulary_piece *piece)
{
        if (piece->bytes != 6 || memcmp(piece->text, "<0x", 3) || piece->text[5] != '>')
                return -1;
        const int high = hex_digit(piece->text[3]), low = hex_digit(piece->text[4]);

        return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static int optional_token(const struct gguf *gguf, const char *key, uint32_t tokens, uint32_t *out,
                          struct gen_error *error)
{
        uint64_t value;
        const int r = gguf_get_u64(gguf, key, 0, tokens - 1, &value, error);

        if (r < 0)
                return r;
        *out = r == GGUF_E_MISSING ? TOKENIZER_NONE : (uint32_t)value;
        return 0;
}

static int optional_bool(const struct gguf *gguf, const char *key, bool otherwise, bool *out,
                         struct gen_error *error)
{
        const int r = gguf_get_bool(gguf, key, out, error);

        if (r == GGUF_E_MISSING)
                *out = otherwise;
        return r < 0 ? r : 0;
}

static int read_settings(struct tokenizer *tokenizer, const struct gguf *gguf,
                         struct gen_error *error)
{
        const uint32_t tokens = tokenizer->tokens;
        int r;

        r = optional_token(gguf, "tokenizer.ggml.bos_token_id", tokens, &tokenizer->bos, error);
        if (r < 0)
                return r;
        r = optional_token(gguf, "tokenizer.ggml.eos_token_id", tokens, &tokenizer->eos, error);
        if (r < 0)
                return r;
        r = optional_token(gguf, "tokenizer.ggml.eot_token_id", tokens, &tokenizer->eot, error);
        if (r < 0)
                return r;
        r = optional_token(gguf, "tokenizer.ggml.unknown_token_id", tokens, &tokenizer->unknown,
                           error);
        if (r < 0)
                return r;
        r = optional_bool(gguf, "tokenizer.ggml.add_bos_token", true, &tokenizer->add_bos, error);
        if (r < 0)
                return r;
        r = optional_bool(gguf, "tokenizer.ggml.add_eos_token", false, &tokenizer->add_eos, error);
        if (r < 0)
                return r;
        r = optional_bool(gguf, "tokenizer.ggml.add_space_prefix", true,
                          &tokenizer->add_space_prefix, error);
        if (r < 0)
                return r;
        if (tokenizer->add_bos && tokenizer->bos == TOKENIZER_NONE)
                return gen_fail(error, -EINVAL,
                                "key tokenizer.ggml.bos_token_id is missing, and texts are to "
                                "begin with that token");
        if (tokenizer->add_eos && tokenizer->eos == TOKENIZER_NONE)
                return gen_fail(error, -EINVAL,
                                "key tokenizer.ggml.eos_token_id is missing, and "
                                "tokenizer.ggml.add_eos_token wants it");
        return 0;
}

/* Copies the texts of the pieces, with their scores and kinds. */
static int read_pieces(struct tokenizer *tokenizer, const struct gguf_key *texts,
                       const struct gguf_key *scores, const struct gguf_key *kinds,
                       struct gen_error *error)
{
        const unsigned char *cursor = texts->data;
        size_t total = 0;
        char *text;

        for (uint64_t i = 0; i < texts->count; i++) {
                const struct gguf_string piece = gguf_next_string(&cursor);

                if (piece.bytes > VOCABULARY_PIECE_BYTES_MAX)
                        return gen_fail(error, -EINVAL,
                                        "token %" PRIu64 " has %" PRIu64
                                        " bytes, at most %d are allowed",
                                        i, piece.bytes, VOCABULARY_PIECE_BYTES_MAX);
                total += piece.bytes;
        }
        tokenizer->pieces = calloc(texts->count, sizeof(tokenizer->pieces[0]));
        tokenizer->text = malloc(total + 1);
        if (!tokenizer->pieces || !tokenizer->text)
                return gen_fail(error, -ENOMEM, "out of memory for the vocabulary");
        text = tokenizer->text;
        cursor = texts->data;
        for (uint64_t i = 0; i < texts->count; i++) {
                const struct gguf_string from = gguf_next_string(&cursor);
                struct vocabulary_piece *piece = &tokenizer->pieces[i];
                const uint32_t kind = gguf_load_u32(kinds->data + i * 4);

                memcpy(text, from.data, from.bytes);
                piece->text = text;
                piece->bytes = (uint32_t)from.bytes;
                text += from.bytes;
                piece->score = gguf_load_f32(scores->data + i * 4);
                if (isnan(piece->score))
                        return gen_fail(error, -EINVAL,
                                        "the score of token %" PRIu64 " is not a number", i);
                if (kind < VOCABULARY_NORMAL || kind > VOCABULARY_BYTE)
                        return gen_fail(error, -EINVAL,
                                        "token %" PRIu64 " has unknown type %" PRIu32, i, kind);
                piece->kind = (enum vocabulary_kind)kind;
        }
        return 0;
}

static int index_bytes(struct tokenizer *tokenizer, struct gen_error *error)
{
        for (int i = 0; i < 256; i++)
                tokenizer->byte_tokens[i] = TOKENIZER_NONE;
        for (uint32_t i = 0; i < tokenizer->tokens; i++) {
                const struct vocabulary_piece *piece = &tokenizer->pieces[i];
                char text[64];
                int byte;

                if (piece->kind != VOCABULARY_BYTE)
                        continue;
                byte = byte_of_piece(piece);
                if (byte < 0 || tokenizer->byte_tokens[byte] != TOKENIZER_NONE)
                        return gen_fail(
                                error, -EINVAL,
                                "token %" PRIu32 " is a byte token, but its text \"%s\" %s", i,
                                gen_printable(text, sizeof(text), piece->text, piece->bytes),
                                byte < 0 ? "is not of the form <0x41>" : "occurs twice");
                tokenizer->byte_tokens[byte] = i;
        }
        for (int i = 0; i < 256; i++)
                if (tokenizer->byte_tokens[i] == TOKENIZER_NONE &&
                    tokenizer->unknown == TOKENIZER_NONE)
                        return gen_fail(error, -EINVAL,
                                        "there is no token for byte 0x%02x, and key "
                                        "tokenizer.ggml.unknown_token_id is missing",
                                        (unsigned)i);
        return 0;
}

static int index_pieces(struct tokenizer *tokenizer, struct gen_error *error)
{
        tokenizer->sorted = calloc(tokenizer->tokens, sizeof(tokenizer->sorted[0]));
        tokenizer->user = calloc(tokenizer->tokens, sizeof(tokenizer->user[0]));
        if (!tokenizer->sorted || !tokenizer->user)
                return gen_fail(error, -ENOMEM, "out of memory for the vocabulary");
        for (uint32_t i = 0; i < tokenizer->tokens; i++) {
                const struct vocabulary_piece *piece = &tokenizer->pieces[i];

                if ((piece->kind != VOCABULARY_NORMAL && piece->kind != VOCABULARY_USER) ||
                    !piece->bytes)
                        continue;
                tokenizer->sorted[tokenizer->sorted_count++] = piece;
                if (piece->kind == VOCABULARY_USER)
                        tokenizer->user[tokenizer->user_count++] = piece;
                if (piece->bytes > tokenizer->longest)
                        tokenizer->longest = piece->bytes;
        }
        if (tokenizer->sorted_count)
                qsort(tokenizer->sorted, tokenizer->sorted_count, sizeof(tokenizer->sorted[0]),
                      compare_by_text);
        if (tokenizer->user_count)
                qsort(tokenizer->user, tokenizer->user_count, sizeof(tokenizer->user[0]),
                      compare_by_length);
        if (tokenizer->user_count > VOCABULARY_USER_MAX)
                return gen_fail(error, -EINVAL, "%zu user-defined tokens; the limit is %d",
                                tokenizer->user_count, VOCABULARY_USER_MAX);
        for (size_t i = 1; i < tokenizer->sorted_count; i++) {
                const struct vocabulary_piece *a = tokenizer->sorted[i - 1];
                const struct vocabulary_piece *b = tokenizer->sorted[i];
                char text[64];

                if (!compare_pieces(a, b))
                        return gen_fail(error, -EINVAL,
                                        "tokens %td and %td have the same text "
                                        "\"%s\"",
                                        a - tokenizer->pieces, b - tokenizer->pieces,
                                        gen_printable(text, sizeof(text), a->text, a->bytes));
        }
        return 0;
}

static int load(struct tokenizer *tokenizer, const struct gguf *gguf, struct gen_error *error)
{
        const struct gguf_key *texts, *scores, *kinds;
        struct gguf_string model;
        char text[64];
        int r;

        r = gguf_get_string(gguf, "tokenizer.ggml.model", &model, error);
        if (r)
                return -EINVAL;
        if (!gguf_string_is(model, "llama"))
                return gen_fail(error, -EINVAL,
                                "key tokenizer.ggml.model is \"%s\"; only \"llama\" "
                                "(SentencePiece BPE) is understood",
                                gen_printable(text, sizeof(text), model.data, model.bytes));
        if (gguf_get_array(gguf, "tokenizer.ggml.tokens", GGUF_STRING, &texts, error) ||
            gguf_get_array(gguf, "tokenizer.ggml.scores", GGUF_F32, &scores, error) ||
            gguf_get_array(gguf, "tokenizer.ggml.token_type", GGUF_I32, &kinds, error))
                return -EINVAL;
        if (!texts->count || texts->count > TOKENIZER_TOKENS_MAX)
                return gen_fail(error, -EINVAL,
                                "the vocabulary has %" PRIu64 " tokens, allowed are 1 to %u",
                                texts->count, TOKENIZER_TOKENS_MAX);
        if (scores->count != texts->count || kinds->count != texts->count)
                return gen_fail(error, -EINVAL,
                                "the vocabulary has %" PRIu64 " tokens, %" PRIu64
                                " scores and %" PRIu64 " types: the numbers must be equal",
                                texts->count, scores->count, kinds->count);
        tokenizer->tokens = (uint32_t)texts->count;
        r = read_settings(tokenizer, gguf, error);
        if (r < 0)
                return r;
        r = read_pieces(tokenizer, texts, scores, kinds, error);
        if (r < 0)
                return r;
        r = index_bytes(tokenizer, error);
        if (r < 0)
                return r;
        return index_pieces(tokenizer, error);
}

int tokenizer_new(struct tokenizer **out, const struct gguf *gguf, struct gen_error *error)
{
        struct tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
        int r;

        *out = NULL;
        if (!tokenizer)
                return gen_fail(error, -ENOMEM, "out of memory");
        r = load(tokenizer, gguf, error);
        if (r < 0) {
                tokenizer_free(tokenizer);
                return r;
        }
        *out = tokenizer;
        return 0;
}

struct tokenizer *tokenizer_free(struct tokenizer *tokenizer)
{
        if (!tokenizer)
                return NULL;
        free(tokenizer->pieces);
        free(tokenizer->text);
        free(tokenizer->sorted);
        free(tokenizer->user);
        free(tokenizer);
        return NULL;
}

uint32_t tokenizer_tokens(const struct tokenizer *tokenizer)
{
        return tokenizer->tokens;
}

uint32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
        return tokenizer->bos;
}

uint32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
        return tokenizer->eos;
}

bool tokenizer_ends(const struct tokenizer *tokenizer, uint32_t token)
{
        return token == tokenizer->eos || token == tokenizer->eot;
}

/* Writes what a piece stands for (never more bytes than its own, or 3) and returns the end. */
static char *decode_piece(const struct vocabulary_piece *piece, char *out)
{
        static const char unknown[3] = {'\xe2', '\x96', '\x85'}; /* U+2585 */

        switch (piece->kind) {
        case VOCABULARY_NORMAL:
                for (uint32_t i = 0; i < piece->bytes;) {
                        if (piece->bytes - i >= 3 &&
                            !memcmp(piece->text + i, VOCABULARY_SPACE, 3)) {
                                *out++ = ' ';
                                i += 3;
                        } else {
                                *out++ = piece->text[i++];
                        }
                }
                return out;
        case VOCABULARY_USER:
                memcpy(out, piece->text, piece->bytes);
                return out + piece->bytes;
        case VOCABULARY_BYTE:
                *out = (char)byte_of_piece(piece);
                return out + 1;
        case VOCABULARY_UNKNOWN:
                memcpy(out, unknown, sizeof(unknown));
                return out + sizeof(unknown);
        case VOCABULARY_CONTROL:
        case VOCABULARY_UNUSED:
                break;
        }
        return out;
}

int tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *tokens, size_t count,
                     bool strip_prefix, char **text, size_t *bytes)
{
        size_t most = 1;
        char *out, *end;

        for (size_t i = 0; i < count; i++) {
                if (tokens[i] >= tokenizer->tokens)
                        return -EINVAL;
                most += tokenizer->pieces[tokens[i]].bytes + 3;
        }
        out = end = malloc(most);
        if (!out)
                return -ENOMEM;
        for (size_t i = 0; i < count; i++)
                end = decode_piece(&tokenizer->pieces[tokens[i]], end);
        if (strip_prefix && tokenizer->add_space_prefix && end > out && *out == ' ') {
                memmove(out, out + 1, (size_t)(end - out) - 1);
                end--;
        }
        *end = '\0';
        *text = out;
        *bytes = (size_t)(end - out);
        return 0;
}
