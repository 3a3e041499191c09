/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes GGUF files into memory, for tests: good ones, and by way of raw entries bad ones. An error
 * (out of memory) ends the test program.
 */
#ifndef TESTS_SUPPORT_GGUF_WRITER_H
#define TESTS_SUPPORT_GGUF_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf_bytes {
        unsigned char *data;
        size_t bytes, capacity;
};

struct gguf_writer {
        struct gguf_bytes keys, tensors, data;
        uint64_t keys_count, tensors_count;
        uint32_t alignment; /* 32 unless set; also pads the data */
        uint32_t version;   /* 3 unless set */
};

void gguf_writer_init(struct gguf_writer *writer);
void gguf_writer_deinit(struct gguf_writer *writer);

void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value);
void gguf_writer_f32(struct gguf_writer *writer, const char *key, float value);
void gguf_writer_bool(struct gguf_writer *writer, const char *key, bool value);
void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value);
void gguf_writer_strings(struct gguf_writer *writer, const char *key, const char *const *values,
                         uint64_t count);
void gguf_writer_f32s(struct gguf_writer *writer, const char *key, const float *values,
                      uint64_t count);
void gguf_writer_i32s(struct gguf_writer *writer, const char *key, const int32_t *values,
                      uint64_t count);
/* A key with any type number and any bytes as its value. */
void gguf_writer_raw(struct gguf_writer *writer, const char *key, uint32_t type, const void *value,
                     size_t bytes);

/* A tensor with its data (the first dimension contiguous), placed behind the previous ones. */
void gguf_writer_tensor(struct gguf_writer *writer, const char *name, const uint64_t *dimensions,
                        uint32_t count, uint32_t type, const void *data, size_t bytes);
/* A tensor's entry alone, with any offset. */
void gguf_writer_tensor_raw(struct gguf_writer *writer, const char *name,
                            const uint64_t *dimensions, uint32_t count, uint32_t type,
                            uint64_t offset);

/* The file so far; data is the caller's to free. The padding behind the last tensor is included. */
struct gguf_bytes gguf_writer_finish(const struct gguf_writer *writer);
/* Offset in that file at which tensor data begins. */
size_t gguf_writer_data_at(const struct gguf_writer *writer);

/* Writes bytes to a new temporary file; returns its path, to be unlinked and freed. */
char *gguf_bytes_save(const struct gguf_bytes *bytes);

/* --- small models -------------------------------------------------------------------------------
 */

struct gguf_model {
        uint32_t layers, width, hidden, heads, kv_heads, key_dim, value_dim, rope_dim, context;
        bool f32;  /* matrices; else f16 */
        bool tied; /* no output.weight */
        uint64_t seed;
};

extern const struct gguf_model gguf_model_small; /* 2 layers, 32 wide, 4 heads on 2 */

/* The tokenizer's keys: "llama", 3 specials, 256 bytes, and some pieces that merge. */
#define GGUF_TOKENIZER_TOKENS 275u
void gguf_writer_tokenizer(struct gguf_writer *writer);
/* Keys of the shape and the tokenizer; then random weights of a size that keeps activations in
 * range. */
void gguf_writer_model_keys(struct gguf_writer *writer, const struct gguf_model *model);
void gguf_writer_model_tensors(struct gguf_writer *writer, const struct gguf_model *model);
/* All of it. */
struct gguf_bytes gguf_model_file(const struct gguf_model *model);

#endif
