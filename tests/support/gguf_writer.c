/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gguf_writer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/f16.h"

static void append(struct gguf_bytes *to, const void *data, size_t bytes)
{
        if (to->bytes + bytes > to->capacity) {
                to->capacity = (to->bytes + bytes) * 2;
                to->data = realloc(to->data, to->capacity);
                if (!to->data) {
                        perror("gguf_writer");
                        exit(1);
                }
        }
        if (bytes)
                memcpy(to->data + to->bytes, data, bytes);
        to->bytes += bytes;
}

static void append_u32(struct gguf_bytes *to, uint32_t value)
{
        append(to, &value, sizeof(value));
}

static void append_u64(struct gguf_bytes *to, uint64_t value)
{
        append(to, &value, sizeof(value));
}

static void append_string(struct gguf_bytes *to, const char *text)
{
        append_u64(to, strlen(text));
        append(to, text, strlen(text));
}

static void pad(struct gguf_bytes *to, size_t alignment)
{
        static const unsigned char zero;

        while (to->bytes % alignment)
                append(to, &zero, 1);
}

void gguf_writer_init(struct gguf_writer *writer)
{
        *writer = (struct gguf_writer){.alignment = 32, .version = 3};
}

void gguf_writer_deinit(struct gguf_writer *writer)
{
        free(writer->keys.data);
        free(writer->tensors.data);
        free(writer->data.data);
        *writer = (struct gguf_writer){0};
}

void gguf_writer_raw(struct gguf_writer *writer, const char *key, uint32_t type, const void *value,
                     size_t bytes)
{
        append_string(&writer->keys, key);
        append_u32(&writer->keys, type);
        append(&writer->keys, value, bytes);
        writer->keys_count++;
}

void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value)
{
        gguf_writer_raw(writer, key, 4, &value, sizeof(value));
}

void gguf_writer_f32(struct gguf_writer *writer, const char *key, float value)
{
        gguf_writer_raw(writer, key, 6, &value, sizeof(value));
}

void gguf_writer_bool(struct gguf_writer *writer, const char *key, bool value)
{
        const unsigned char byte = value;

        gguf_writer_raw(writer, key, 7, &byte, 1);
}

void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value)
{
        gguf_writer_raw(writer, key, 8, NULL, 0);
        append_string(&writer->keys, value);
}

static void begin_array(struct gguf_writer *writer, const char *key, uint32_t type, uint64_t count)
{
        gguf_writer_raw(writer, key, 9, NULL, 0);
        append_u32(&writer->keys, type);
        append_u64(&writer->keys, count);
}

void gguf_writer_strings(struct gguf_writer *writer, const char *key, const char *const *values,
                         uint64_t count)
{
        begin_array(writer, key, 8, count);
        for (uint64_t i = 0; i < count; i++)
                append_string(&writer->keys, values[i]);
}

void gguf_writer_f32s(struct gguf_writer *writer, const char *key, const float *values,
                      uint64_t count)
{
        begin_array(writer, key, 6, count);
        append(&writer->keys, values, count * sizeof(values[0]));
}

void gguf_writer_i32s(struct gguf_writer *writer, const char *key, const int32_t *values,
                      uint64_t count)
{
        begin_array(writer, key, 5, count);
        append(&writer->keys, values, count * sizeof(values[0]));
}

void gguf_writer_tensor_raw(struct gguf_writer *writer, const char *name,
                            const uint64_t *dimensions, uint32_t count, uint32_t type,
                            uint64_t offset)
{
        append_string(&writer->tensors, name);
        append_u32(&writer->tensors, count);
        for (uint32_t i = 0; i < count; i++)
                append_u64(&writer->tensors, dimensions[i]);
        append_u32(&writer->tensors, type);
        append_u64(&writer->tensors, offset);
        writer->tensors_count++;
}

void gguf_writer_tensor(struct gguf_writer *writer, const char *name, const uint64_t *dimensions,
                        uint32_t count, uint32_t type, const void *data, size_t bytes)
{
        gguf_writer_tensor_raw(writer, name, dimensions, count, type, writer->data.bytes);
        append(&writer->data, data, bytes);
        pad(&writer->data, writer->alignment);
}

size_t gguf_writer_data_at(const struct gguf_writer *writer)
{
        const size_t header = 24 + writer->keys.bytes + writer->tensors.bytes;

        return (header + writer->alignment - 1) / writer->alignment * writer->alignment;
}

struct gguf_bytes gguf_writer_finish(const struct gguf_writer *writer)
{
        struct gguf_bytes out = {0};

        append(&out, "GGUF", 4);
        append_u32(&out, writer->version);
        append_u64(&out, writer->tensors_count);
        append_u64(&out, writer->keys_count);
        append(&out, writer->keys.data, writer->keys.bytes);
        append(&out, writer->tensors.data, writer->tensors.bytes);
        pad(&out, writer->alignment);
        append(&out, writer->data.data, writer->data.bytes);
        return out;
}

char *gguf_bytes_save(const struct gguf_bytes *bytes)
{
        char *path = strdup("/tmp/gpumem-test-XXXXXX");
        const int fd = path ? mkstemp(path) : -1;

        if (fd < 0 || write(fd, bytes->data, bytes->bytes) != (ssize_t)bytes->bytes) {
                perror("gguf_bytes_save");
                exit(1);
        }
        close(fd);
        return path;
}

/* --- small models -------------------------------------------------------------------------------
 */

const struct gguf_model gguf_model_small = {
        .layers = 2,
        .width = 32,
        .hidden = 56,
        .heads = 4,
        .kv_heads = 2,
        .key_dim = 16,
        .value_dim = 8,
        .rope_dim = 12,
        .context = 256,
        .tied = true,
        .seed = 1,
};

void gguf_writer_tokenizer(struct gguf_writer *writer)
{
        /* U+2581 is a space. Better scores merge first. */
        static const struct {
                const char *text;
                float score;
        } pieces[] = {
                {"\xe2\x96\x81", -10},
                {"a", -11},
                {"b", -12},
                {"c", -13},
                {"h", -14},
                {"e", -15},
                {"l", -16},
                {"o", -17},
                {"he", -1},
                {"ll", -2},
                {"hell", -3},
                {"\xe2\x96\x81hell", -5},
                {"ab", -4},
                {"bc", -4},
                {"\xc3\xa9", -18},
                {"abc", -6},
        };
        const size_t count = sizeof(pieces) / sizeof(pieces[0]);
        const char *texts[GGUF_TOKENIZER_TOKENS] = {"<unk>", "<s>", "</s>"};
        float scores[GGUF_TOKENIZER_TOKENS] = {0};
        int32_t kinds[GGUF_TOKENIZER_TOKENS] = {2, 3, 3};
        char bytes[256][8];

        for (int i = 0; i < 256; i++) {
                snprintf(bytes[i], sizeof(bytes[i]), "<0x%02X>", (unsigned)i);
                texts[3 + i] = bytes[i];
                kinds[3 + i] = 6;
        }
        for (size_t i = 0; i < count; i++) {
                texts[259 + i] = pieces[i].text;
                scores[259 + i] = pieces[i].score;
                kinds[259 + i] = 1;
        }
        gguf_writer_string(writer, "tokenizer.ggml.model", "llama");
        gguf_writer_strings(writer, "tokenizer.ggml.tokens", texts, GGUF_TOKENIZER_TOKENS);
        gguf_writer_f32s(writer, "tokenizer.ggml.scores", scores, GGUF_TOKENIZER_TOKENS);
        gguf_writer_i32s(writer, "tokenizer.ggml.token_type", kinds, GGUF_TOKENIZER_TOKENS);
        gguf_writer_u32(writer, "tokenizer.ggml.unknown_token_id", 0);
        gguf_writer_u32(writer, "tokenizer.ggml.bos_token_id", 1);
        gguf_writer_u32(writer, "tokenizer.ggml.eos_token_id", 2);
}

void gguf_writer_model_keys(struct gguf_writer *writer, const struct gguf_model *model)
{
        gguf_writer_string(writer, "general.architecture", "llama");
        gguf_writer_u32(writer, "llama.block_count", model->layers);
        gguf_writer_u32(writer, "llama.embedding_length", model->width);
        gguf_writer_u32(writer, "llama.feed_forward_length", model->hidden);
        gguf_writer_u32(writer, "llama.attention.head_count", model->heads);
        gguf_writer_u32(writer, "llama.attention.head_count_kv", model->kv_heads);
        gguf_writer_u32(writer, "llama.attention.key_length", model->key_dim);
        gguf_writer_u32(writer, "llama.attention.value_length", model->value_dim);
        gguf_writer_f32(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
        gguf_writer_u32(writer, "llama.rope.dimension_count", model->rope_dim);
        gguf_writer_f32(writer, "llama.rope.freq_base", 10000);
        gguf_writer_u32(writer, "llama.context_length", model->context);
        gguf_writer_tokenizer(writer);
}

/* In [-1, 1). */
static float uniform(uint64_t *state)
{
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (float)((double)(*state >> 40) * 0x1p-23 - 1);
}

static void random_tensor(struct gguf_writer *writer, const char *name, uint64_t columns,
                          uint64_t rows, bool f32, float centre, float spread, uint64_t *state)
{
        const uint64_t dimensions[2] = {columns, rows};
        const uint32_t count = rows ? 2 : 1;
        const size_t elements = columns * (rows ? rows : 1);
        float *full = malloc(elements * sizeof(full[0]));
        uint16_t *half = malloc(elements * sizeof(half[0]));

        if (!full || !half) {
                perror("gguf_writer");
                exit(1);
        }
        for (size_t i = 0; i < elements; i++) {
                full[i] = centre + spread * uniform(state);
                half[i] = kernel_f32_to_f16(full[i]);
        }
        if (f32)
                gguf_writer_tensor(writer, name, dimensions, count, 0, full, elements * 4);
        else
                gguf_writer_tensor(writer, name, dimensions, count, 1, half, elements * 2);
        free(full);
        free(half);
}

void gguf_writer_model_tensors(struct gguf_writer *writer, const struct gguf_model *model)
{
        uint64_t state = model->seed;
        const float wide = sqrtf(3.0f / (float)model->width);
        const bool f32 = model->f32;

        random_tensor(writer, "token_embd.weight", model->width, GGUF_TOKENIZER_TOKENS, f32, 0, 1,
                      &state);
        for (uint32_t i = 0; i < model->layers; i++) {
                const struct {
                        const char *name;
                        uint32_t columns, rows;
                } parts[] = {
                        {"attn_norm", model->width, 0},
                        {"attn_q", model->width, model->heads * model->key_dim},
                        {"attn_k", model->width, model->kv_heads * model->key_dim},
                        {"attn_v", model->width, model->kv_heads * model->value_dim},
                        {"attn_output", model->heads * model->value_dim, model->width},
                        {"ffn_norm", model->width, 0},
                        {"ffn_gate", model->width, model->hidden},
                        {"ffn_up", model->width, model->hidden},
                        {"ffn_down", model->hidden, model->width},
                };

                for (size_t j = 0; j < sizeof(parts) / sizeof(parts[0]); j++) {
                        char name[64];
                        const bool norm = !parts[j].rows;

                        snprintf(name, sizeof(name), "blk.%" PRIu32 ".%s.weight", i, parts[j].name);
                        random_tensor(writer, name, parts[j].columns, parts[j].rows, f32 || norm,
                                      norm ? 1.0f : 0.0f, norm ? 0.3f : 1.5f * wide, &state);
                }
        }
        random_tensor(writer, "output_norm.weight", model->width, 0, true, 1, 0.3f, &state);
        if (!model->tied)
                random_tensor(writer, "output.weight", model->width, GGUF_TOKENIZER_TOKENS, f32, 0,
                              1, &state);
}

struct gguf_bytes gguf_model_file(const struct gguf_model *model)
{
        struct gguf_writer writer;
        struct gguf_bytes out;

        gguf_writer_init(&writer);
        gguf_writer_model_keys(&writer, model);
        gguf_writer_model_tensors(&writer, model);
        out = gguf_writer_finish(&writer);
        gguf_writer_deinit(&writer);
        return out;
}
