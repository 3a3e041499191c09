/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model file, as far as gpumem-gen reads it before it computes: keys and tensors, the tokenizer
 * with a text there and back, the model's shape and weights. Input: the file.
 */
#include "tests/fuzz/fuzz.h"
#include "tools/gen/gguf.h"
#include "tools/gen/tokenizer.h"
#include "tools/gen/weights.h"

static const char text[] = "hello he\xc3\xa9llo \xff\xe2\x96\x81 abc\n";

static void use_tokenizer(const struct tokenizer *tokenizer, const struct gguf *gguf)
{
        const uint32_t vocabulary = tokenizer_tokens(tokenizer);
        struct weights *weights;
        struct gen_error error = {0};
        uint32_t *tokens;
        size_t count, bytes;
        char *back;

        FUZZ_REQUIRE(vocabulary > 0 && vocabulary <= TOKENIZER_TOKENS_MAX);
        FUZZ_REQUIRE(tokenizer_encode(tokenizer, text, sizeof(text) - 1, true, &tokens, &count) ==
                     0);
        for (size_t i = 0; i < count; i++)
                FUZZ_REQUIRE(tokens[i] < vocabulary);
        FUZZ_REQUIRE(tokenizer_decode(tokenizer, tokens, count, true, &back, &bytes) == 0);
        FUZZ_REQUIRE(back[bytes] == '\0');
        free(back);
        free(tokens);
        for (uint32_t token = 0; token < vocabulary; token++)
                tokenizer_ends(tokenizer, token);
        if (weights_new(&weights, gguf, vocabulary, &error) == 0)
                weights_free(weights);
        else
                FUZZ_REQUIRE(error.text[0]);
}

static void read_all(const struct gguf *gguf)
{
        volatile unsigned sum = 0;

        for (size_t i = 0; i < gguf_keys(gguf); i++) {
                const struct gguf_key *key = gguf_key_at(gguf, i);
                const unsigned char *cursor = key->data;

                for (uint64_t j = 0; key->item_type == GGUF_STRING && j < key->count; j++) {
                        struct gguf_string string = gguf_next_string(&cursor);

                        for (uint64_t k = 0; k < string.bytes; k++)
                                sum = sum + (unsigned char)string.data[k];
                }
        }
        for (size_t i = 0; i < gguf_tensors(gguf); i++) {
                const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);

                if (tensor->bytes > 0)
                        sum = sum + tensor->data[0] + tensor->data[tensor->bytes - 1];
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        void *file = fuzz_copy(data, size);
        struct gen_error error = {0};
        struct tokenizer *tokenizer;
        struct gguf *gguf;

        if (gguf_parse(&gguf, file, size, &error) == 0) {
                read_all(gguf);
                if (tokenizer_new(&tokenizer, gguf, &error) == 0) {
                        use_tokenizer(tokenizer, gguf);
                        tokenizer_free(tokenizer);
                } else {
                        FUZZ_REQUIRE(error.text[0]);
                }
                gguf_free(gguf);
        } else {
                FUZZ_REQUIRE(error.text[0]);
        }
        free(file);
        return 0;
}
