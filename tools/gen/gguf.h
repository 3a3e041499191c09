/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of GGUF files (versions 2 and 3, little-endian), the model format of llama.cpp.
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 *
 *     magic "GGUF" | version u32 | tensor count u64 | key count u64
 *     keys:    name string | type u32 | value        (string: u64 bytes, then the bytes)
 *     tensors: name string | dimensions u32 | u64 each | type u32 | offset u64 from the data
 *     padding to general.alignment (32 if not said)
 *     data
 *
 * The file is hostile. Everything is checked once, when it is opened, against the bytes that are
 * there: afterwards every string, array and tensor lies inside the mapping, names are unique,
 * tensors are aligned and do not overlap. A refusal says what is wrong and where (byte offset, key
 * or tensor name). What a file lacks at its end may only be padding that nothing uses.
 *
 * Nothing is copied: strings and data point into the mapping and live as long as it does. Whoever
 * shortens the file while it is mapped gets SIGBUS, as with any mapped file; copy what must last.
 */
#ifndef GPUMEM_GEN_GGUF_H
#define GPUMEM_GEN_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/gen/error.h"

#define GGUF_KEYS_MAX       65536
#define GGUF_TENSORS_MAX    65536
#define GGUF_NAME_BYTES_MAX 64    /* of a tensor */
#define GGUF_KEY_BYTES_MAX  65535 /* the format's own limit */
#define GGUF_DIMENSIONS_MAX 4

enum gguf_type {
        GGUF_U8 = 0,
        GGUF_I8 = 1,
        GGUF_U16 = 2,
        GGUF_I16 = 3,
        GGUF_U32 = 4,
        GGUF_I32 = 5,
        GGUF_F32 = 6,
        GGUF_BOOL = 7,
        GGUF_STRING = 8,
        GGUF_ARRAY = 9,
        GGUF_U64 = 10,
        GGUF_I64 = 11,
        GGUF_F64 = 12,
};

/* Tensor types of the format that this reader knows the size of. Others (the quantised ones) are
 * refused by number. */
enum gguf_tensor_type {
        GGUF_TENSOR_F32 = 0,
        GGUF_TENSOR_F16 = 1,
};

struct gguf_string {
        const char *data; /* not NUL-terminated */
        uint64_t bytes;
};

struct gguf_key {
        struct gguf_string name;
        enum gguf_type type;
        enum gguf_type item_type;  /* of an array's items; else = type */
        uint64_t count;            /* items of an array; else 1 */
        const unsigned char *data; /* first byte of the value (of the first item) */
        uint64_t at;               /* where in the file the value begins */
};

struct gguf_tensor {
        char name[GGUF_NAME_BYTES_MAX + 1];
        uint32_t dimensions;
        uint64_t dimension[GGUF_DIMENSIONS_MAX]; /* first one contiguous; unused ones are 1 */
        enum gguf_tensor_type type;
        const unsigned char *data;
        uint64_t bytes;
};

struct gguf;

/* Maps and checks a file. -EINVAL: refused, error says why; other negative errno: it could not be
 * read. */
int gguf_open(struct gguf **out, const char *path, struct gen_error *error);
/* The same on bytes in memory, which must outlive the result. */
int gguf_parse(struct gguf **out, const void *data, size_t bytes, struct gen_error *error);
struct gguf *gguf_free(struct gguf *gguf);

size_t gguf_keys(const struct gguf *gguf);
const struct gguf_key *gguf_key_at(const struct gguf *gguf, size_t index);
const struct gguf_key *gguf_find(const struct gguf *gguf, const char *name); /* NULL: none */

size_t gguf_tensors(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t index);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name);

/* Typed reads. GGUF_E_MISSING: no such key (the error text says so too, for callers that need it).
 * -EINVAL: another type, or out of bounds. Integers may be stored in any width. */
#define GGUF_E_MISSING 1
int gguf_get_u64(const struct gguf *gguf, const char *name, uint64_t minimum, uint64_t maximum,
                 uint64_t *out, struct gen_error *error);
int gguf_get_f32(const struct gguf *gguf, const char *name, float *out, struct gen_error *error);
int gguf_get_bool(const struct gguf *gguf, const char *name, bool *out, struct gen_error *error);
int gguf_get_string(const struct gguf *gguf, const char *name, struct gguf_string *out,
                    struct gen_error *error);
/* An array with items of exactly this type. */
int gguf_get_array(const struct gguf *gguf, const char *name, enum gguf_type item_type,
                   const struct gguf_key **out, struct gen_error *error);

/* Walks the strings of an array: *cursor starts at key->data and moves on. The caller counts (the
 * array was checked when the file was opened). */
struct gguf_string gguf_next_string(const unsigned char **cursor);

bool gguf_string_is(struct gguf_string string, const char *text);

/* Little-endian loads from anywhere. */
uint32_t gguf_load_u32(const unsigned char *at);
float gguf_load_f32(const unsigned char *at);

const char *gguf_type_name(enum gguf_type type);

#endif
