/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding. The symbols of a stretch of text form a doubly linked list; a heap holds the merges
 * that are possible, the best one on top. Merging makes older entries of both neighbours stale: an
 * entry remembers how long its symbols were together, and counts only if they still are. So a text
 * of n symbols costs O(n log n) look-ups.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gen/tokenizer.h"
#include "tools/gen/vocabulary.h"

#define NO_SYMBOL UINT32_MAX

struct symbol {
        const char *text;
        uint32_t bytes; /* 0: merged into its left neighbour */
        uint32_t left, right;
};

struct merge {
        float score;
        uint32_t left, right;
        uint32_t bytes; /* of both together */
};

struct encoder {
        const struct tokenizer *tokenizer;
        uint32_t *tokens;
        size_t count, capacity;
        /* Of the current stretch. */
        char *escaped;
        struct symbol *symbols;
        struct merge *heap;
        size_t heap_count, heap_capacity;
        bool after_special; /* nothing, or a special token, stands before this stretch */
};

static int emit(struct encoder *encoder, uint32_t token)
{
        if (encoder->count == encoder->capacity) {
                const size_t capacity = encoder->capacity ? encoder->capacity * 2 : 64;
                uint32_t *tokens = realloc(encoder->tokens, capacity * sizeof(tokens[0]));

                if (!tokens)
                        return -ENOMEM;
                encoder->tokens = tokens;
                encoder->capacity = capacity;
        }
        encoder->tokens[encoder->count++] = token;
        return 0;
}

static bool merge_before(const struct merge *a, const struct merge *b)
{
        return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static int heap_push(struct encoder *encoder, struct merge merge)
{
        size_t at;

        if (encoder->heap_count == encoder->heap_capacity) {
                const size_t capacity = encoder->heap_capacity ? encoder->heap_capacity * 2 : 256;
                struct merge *heap = realloc(encoder->heap, capacity * sizeof(heap[0]));

                if (!heap)
                        return -ENOMEM;
                encoder->heap = heap;
                encoder->heap_capacity = capacity;
        }
        at = encoder->heap_count++;
        while (at && merge_before(&merge, &encoder->heap[(at - 1) / 2])) {
                encoder->heap[at] = encoder->heap[(at - 1) / 2];
                at = (at - 1) / 2;
        }
        encoder->heap[at] = merge;
        return 0;
}

static struct merge heap_pop(struct encoder *encoder)
{
        struct merge *heap = encoder->heap;
        const struct merge top = heap[0], last = heap[--encoder->heap_count];
        const size_t count = encoder->heap_count;
        size_t at = 0;

        while (2 * at + 1 < count) {
                size_t child = 2 * at + 1;

                if (child + 1 < count && merge_before(&heap[child + 1], &heap[child]))
                        child++;
                if (!merge_before(&heap[child], &last))
                        break;
                heap[at] = heap[child];
                at = child;
        }
        heap[at] = last;
        return top;
}

/* Notes that the symbols left and right could merge, if the vocabulary has them together. */
static int consider(struct encoder *encoder, uint32_t left, uint32_t right)
{
        const struct symbol *a, *b;
        uint32_t token;

        if (left == NO_SYMBOL || right == NO_SYMBOL)
                return 0;
        a = &encoder->symbols[left];
        b = &encoder->symbols[right];
        /* Neighbours lie next to each other in the text. */
        token = vocabulary_find(encoder->tokenizer, a->text, (size_t)a->bytes + b->bytes);
        if (token == TOKENIZER_NONE)
                return 0;
        return heap_push(encoder, (struct merge){.score = encoder->tokenizer->pieces[token].score,
                                                 .left = left,
                                                 .right = right,
                                                 .bytes = a->bytes + b->bytes});
}

static int merge_all(struct encoder *encoder, uint32_t symbols)
{
        struct symbol *symbol = encoder->symbols;

        encoder->heap_count = 0;
        for (uint32_t i = 1; i < symbols; i++) {
                const int r = consider(encoder, i - 1, i);

                if (r < 0)
                        return r;
        }
        while (encoder->heap_count) {
                const struct merge merge = heap_pop(encoder);
                struct symbol *left = &symbol[merge.left], *right = &symbol[merge.right];
                int r;

                if (!left->bytes || !right->bytes || left->bytes + right->bytes != merge.bytes)
                        continue;
                left->bytes += right->bytes;
                right->bytes = 0;
                left->right = right->right;
                if (right->right != NO_SYMBOL)
                        symbol[right->right].left = merge.left;
                r = consider(encoder, left->left, merge.left);
                if (r < 0)
                        return r;
                r = consider(encoder, merge.left, left->right);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Bytes of the character at `text`: a lead byte and the continuation bytes that follow, no more
 * than it calls for. A lead byte that lacks some does not swallow what comes next: a space, for
 * one, is never cut apart, so there are no more symbols than bytes of the text, and one. */
static uint32_t character_bytes(const char *text, size_t left)
{
        const unsigned char lead = (unsigned char)text[0];
        const uint32_t wanted = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
        uint32_t bytes = 1;

        while (bytes < wanted && bytes < left && ((unsigned char)text[bytes] & 0xc0) == 0x80)
                bytes++;
        return bytes;
}

static uint32_t split(struct encoder *encoder, size_t bytes)
{
        const char *text = encoder->escaped;
        uint32_t count = 0;

        for (size_t at = 0; at < bytes; count++) {
                const uint32_t length = character_bytes(text + at, bytes - at);

                encoder->symbols[count] = (struct symbol){
                        .text = text + at,
                        .bytes = length,
                        .left = count ? count - 1 : NO_SYMBOL,
                        .right = at + length < bytes ? count + 1 : NO_SYMBOL,
                };
                at += length;
        }
        return count;
}

static int emit_symbol(struct encoder *encoder, const struct symbol *symbol)
{
        const uint32_t token = vocabulary_find(encoder->tokenizer, symbol->text, symbol->bytes);

        if (token != TOKENIZER_NONE)
                return emit(encoder, token);
        for (uint32_t i = 0; i < symbol->bytes; i++) {
                uint32_t byte = encoder->tokenizer->byte_tokens[(unsigned char)symbol->text[i]];
                int r;

                if (byte == TOKENIZER_NONE)
                        byte = encoder->tokenizer->unknown;
                r = emit(encoder, byte);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* The text with its spaces escaped, and one in front where it belongs; returns its length. */
static size_t escape(struct encoder *encoder, const char *text, size_t bytes)
{
        size_t length = 0;

        if (encoder->tokenizer->add_space_prefix && encoder->after_special) {
                memcpy(encoder->escaped, VOCABULARY_SPACE, 3);
                length = 3;
        }
        for (size_t i = 0; i < bytes; i++) {
                if (text[i] == ' ') {
                        memcpy(encoder->escaped + length, VOCABULARY_SPACE, 3);
                        length += 3;
                } else {
                        encoder->escaped[length++] = text[i];
                }
        }
        return length;
}

static int encode_symbols(struct encoder *encoder, size_t length)
{
        const uint32_t symbols = split(encoder, length);
        int r = merge_all(encoder, symbols);

        for (uint32_t i = 0; i != NO_SYMBOL && symbols && r >= 0; i = encoder->symbols[i].right)
                r = emit_symbol(encoder, &encoder->symbols[i]);
        return r;
}

/* A stretch without user-defined tokens. */
static int encode_stretch(struct encoder *encoder, const char *text, size_t bytes)
{
        /* Every byte may become the three of U+2581, and one more stands in front. */
        char *escaped = malloc(3 * (bytes + 1));
        struct symbol *symbols = malloc((bytes + 1) * sizeof(symbols[0]));
        int r = -ENOMEM;

        if (escaped && symbols) {
                encoder->escaped = escaped;
                encoder->symbols = symbols;
                r = encode_symbols(encoder, escape(encoder, text, bytes));
        }
        encoder->after_special = false;
        encoder->escaped = NULL;
        encoder->symbols = NULL;
        free(escaped);
        free(symbols);
        return r;
}

/* Cuts the text at user-defined tokens from number `first` on (the longest ones come first). Depth
 * is bounded by VOCABULARY_USER_MAX: each level goes on to the next token. */
static int encode_text(struct encoder *encoder, const char *text, size_t bytes, size_t first)
{
        const struct tokenizer *tokenizer = encoder->tokenizer;
        int r;

        for (; first < tokenizer->user_count && bytes; first++) {
                const struct vocabulary_piece *piece = tokenizer->user[first];
                const char *found;

                while (bytes && (found = memmem(text, bytes, piece->text, piece->bytes))) {
                        r = encode_text(encoder, text, (size_t)(found - text), first + 1);
                        if (r < 0)
                                return r;
                        r = emit(encoder, (uint32_t)(piece - tokenizer->pieces));
                        if (r < 0)
                                return r;
                        encoder->after_special = true;
                        bytes -= (size_t)(found - text) + piece->bytes;
                        text = found + piece->bytes;
                }
        }
        return bytes ? encode_stretch(encoder, text, bytes) : 0;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                     bool with_specials, uint32_t **tokens, size_t *count)
{
        struct encoder encoder = {.tokenizer = tokenizer, .after_special = true};
        int r = 0;

        *tokens = NULL;
        *count = 0;
        if (bytes > TOKENIZER_TEXT_BYTES_MAX)
                return -E2BIG;
        if (with_specials && tokenizer->add_bos)
                r = emit(&encoder, tokenizer->bos);
        if (r >= 0)
                r = encode_text(&encoder, text, bytes, 0);
        if (r >= 0 && with_specials && tokenizer->add_eos)
                r = emit(&encoder, tokenizer->eos);
        if (r >= 0 && !encoder.tokens) {
                encoder.tokens = malloc(sizeof(encoder.tokens[0]));
                r = encoder.tokens ? 0 : -ENOMEM;
        }
        free(encoder.heap);
        if (r < 0) {
                free(encoder.tokens);
                return r;
        }
        *tokens = encoder.tokens;
        *count = encoder.count;
        return 0;
}
