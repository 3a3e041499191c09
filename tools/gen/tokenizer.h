/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer that GGUF calls "llama": SentencePiece BPE by scores, with byte fallback.
 *
 * Encoding, as llama.cpp does it: text is cut at user-defined tokens; each stretch gets a space in
 * front (if add_space_prefix says so), spaces become U+2581, and neighbouring symbols, one UTF-8
 * character each at first, are merged for as long as the vocabulary has the result, the best score
 * first, the leftmost among equals. A symbol that the vocabulary lacks becomes byte tokens. Control
 * tokens never come out of text.
 *
 * Any bytes are accepted; invalid UTF-8 takes the way of the byte tokens. Decoding gives the bytes
 * back, except that U+2581 in the text comes back as a space, and that the space put behind a
 * user-defined token stays.
 *
 * Immutable after tokenizer_new(): any thread may use it. It copies what it needs from the file.
 */
#ifndef GPUMEM_GEN_TOKENIZER_H
#define GPUMEM_GEN_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/gen/error.h"

#define TOKENIZER_TOKENS_MAX     (1u << 20)
#define TOKENIZER_TEXT_BYTES_MAX (64u << 20) /* of one text to encode */
#define TOKENIZER_NONE           UINT32_MAX  /* no such token */

struct gguf;
struct tokenizer;

/* -EINVAL: the file's tokenizer is missing, of another kind, or inconsistent. */
int tokenizer_new(struct tokenizer **out, const struct gguf *gguf, struct gen_error *error);
struct tokenizer *tokenizer_free(struct tokenizer *tokenizer);

uint32_t tokenizer_tokens(const struct tokenizer *tokenizer); /* size of the vocabulary */
uint32_t tokenizer_bos(const struct tokenizer *tokenizer);    /* or TOKENIZER_NONE */
uint32_t tokenizer_eos(const struct tokenizer *tokenizer);    /* or TOKENIZER_NONE */
/* Whether this token ends a text: the end of sequence, or the end of turn where there is one. */
bool tokenizer_ends(const struct tokenizer *tokenizer, uint32_t token);

/* The tokens of a text. with_specials: with the beginning (and end) of sequence that the file asks
 * for. *tokens is the caller's to free (never NULL on success). -E2BIG: the text is too long;
 * -ENOMEM. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                     bool with_specials, uint32_t **tokens, size_t *count);

/* The bytes of tokens, NUL-terminated, the caller's to free. Control tokens give nothing, the
 * unknown token U+2585. strip_prefix: at the start of a text, drops the space that encoding put
 * there. -EINVAL: a token is outside the vocabulary; -ENOMEM. */
int tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *tokens, size_t count,
                     bool strip_prefix, char **text, size_t *bytes);

#endif
