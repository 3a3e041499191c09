/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a tokenizer, shared by its two files. */
#ifndef GPUMEM_GEN_VOCABULARY_H
#define GPUMEM_GEN_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOCABULARY_PIECE_BYTES_MAX 65536
#define VOCABULARY_USER_MAX        4096
#define VOCABULARY_SPACE           "\xe2\x96\x81" /* U+2581, a space inside a piece */

/* Values of tokenizer.ggml.token_type. */
enum vocabulary_kind {
        VOCABULARY_NORMAL = 1,  /* made by merging */
        VOCABULARY_UNKNOWN = 2, /* what neither pieces nor bytes can spell */
        VOCABULARY_CONTROL = 3, /* never made from text, never shown */
        VOCABULARY_USER = 4,    /* cut out of the text before anything is merged */
        VOCABULARY_UNUSED = 5,
        VOCABULARY_BYTE = 6, /* "<0x41>" */
};

struct vocabulary_piece {
        const char *text; /* not NUL-terminated */
        uint32_t bytes;
        enum vocabulary_kind kind;
        float score;
};

struct tokenizer {
        struct vocabulary_piece *pieces; /* [tokens] */
        uint32_t tokens;
        char *text; /* of all pieces */
        /* The normal and user-defined pieces by text. Sorted rather than hashed: a hostile file
         * cannot make look-ups slow. */
        const struct vocabulary_piece **sorted;
        size_t sorted_count;
        uint32_t longest;                     /* bytes of the longest of them */
        const struct vocabulary_piece **user; /* user-defined ones, longest first */
        size_t user_count;
        uint32_t byte_tokens[256];
        uint32_t bos, eos, eot, unknown; /* or TOKENIZER_NONE */
        bool add_bos, add_eos, add_space_prefix;
};

/* The normal or user-defined token with this text, or TOKENIZER_NONE. */
uint32_t vocabulary_find(const struct tokenizer *tokenizer, const char *text, size_t bytes);

#endif
