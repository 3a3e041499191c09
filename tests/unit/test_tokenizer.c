/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/gen/tokenizer.c on a small vocabulary whose merges can be followed by hand, and on the
 * model of tests/data, where the expected tokens were produced by SentencePiece
 * (tools/tinylm/train.py holds its own reader against it).
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/gguf_writer.h"
#include "tools/gen/gguf.h"
#include "tools/gen/request.h"
#include "tools/gen/tokenizer.h"

#define MODEL "tests/data/tinylm-f16.gguf"

/* Of the small vocabulary (gguf_writer_tokenizer). */
enum {
        BYTE = 3,
        SPACE = 259,
        A,
        B,
        C,
        H,
        E,
        L,
        O,
        HE,
        LL,
        HELL,
        SPACE_HELL,
        AB,
        BC,
        E_ACUTE,
        ABC,
};

static struct tokenizer *tokenizer_of(struct gguf_writer *writer, struct gen_error *error)
{
        struct gguf_bytes file = gguf_writer_finish(writer);
        struct tokenizer *tokenizer = NULL;
        struct gguf *gguf;

        CU_ASSERT_EQUAL_FATAL(gguf_parse(&gguf, file.data, file.bytes, error), 0);
        CU_ASSERT_EQUAL(tokenizer_new(&tokenizer, gguf, error), tokenizer ? 0 : -EINVAL);
        gguf_free(gguf);
        free(file.data); /* the tokenizer has copied what it needs */
        gguf_writer_deinit(writer);
        return tokenizer;
}

static struct tokenizer *small_tokenizer(void)
{
        struct gguf_writer writer;
        struct gen_error error = {0};
        struct tokenizer *tokenizer;

        gguf_writer_init(&writer);
        gguf_writer_tokenizer(&writer);
        tokenizer = tokenizer_of(&writer, &error);
        CU_ASSERT_PTR_NOT_NULL_FATAL(tokenizer);
        return tokenizer;
}

static struct tokenizer *shipped_tokenizer(void)
{
        struct gen_error error = {0};
        struct tokenizer *tokenizer;
        struct gguf *gguf;

        CU_ASSERT_EQUAL_FATAL(gguf_open(&gguf, MODEL, &error), 0);
        CU_ASSERT_EQUAL_FATAL(tokenizer_new(&tokenizer, gguf, &error), 0);
        gguf_free(gguf);
        return tokenizer;
}

static void assert_encoded(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                           const uint32_t *expected, size_t expected_count)
{
        uint32_t *tokens;
        size_t count;

        CU_ASSERT_EQUAL_FATAL(tokenizer_encode(tokenizer, text, bytes, true, &tokens, &count), 0);
        CU_ASSERT_EQUAL(count, expected_count);
        if (count == expected_count)
                CU_ASSERT(!memcmp(tokens, expected, count * sizeof(tokens[0])));
        free(tokens);
}

#define ASSERT_ENCODED(tokenizer, text, ...)                                                       \
        assert_encoded(tokenizer, text, sizeof(text) - 1, (const uint32_t[]){__VA_ARGS__},         \
                       sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void assert_round_trip(const struct tokenizer *tokenizer, const char *text, size_t bytes)
{
        uint32_t *tokens;
        size_t count, back_bytes;
        char *back;

        CU_ASSERT_EQUAL_FATAL(tokenizer_encode(tokenizer, text, bytes, true, &tokens, &count), 0);
        CU_ASSERT_EQUAL_FATAL(tokenizer_decode(tokenizer, tokens, count, true, &back, &back_bytes),
                              0);
        CU_ASSERT_EQUAL(back_bytes, bytes);
        if (back_bytes == bytes)
                CU_ASSERT(!memcmp(back, text, bytes));
        free(back);
        free(tokens);
}

static void test_merges(void)
{
        struct tokenizer *tokenizer = small_tokenizer();

        CU_ASSERT_EQUAL(tokenizer_tokens(tokenizer), GGUF_TOKENIZER_TOKENS);
        ASSERT_ENCODED(tokenizer, "", 1);
        ASSERT_ENCODED(tokenizer, "hello", 1, SPACE_HELL, O);
        ASSERT_ENCODED(tokenizer, " hello", 1, SPACE, SPACE_HELL, O);
        ASSERT_ENCODED(tokenizer, "hel", 1, SPACE, HE, L);
        /* ab and bc have the same score: the leftmost merges, and then abc. */
        ASSERT_ENCODED(tokenizer, "abc", 1, SPACE, ABC);
        ASSERT_ENCODED(tokenizer, "cbc", 1, SPACE, C, BC);
        ASSERT_ENCODED(tokenizer, "abcbc", 1, SPACE, ABC, BC);
        ASSERT_ENCODED(tokenizer, "aabb", 1, SPACE, A, AB, B);
        /* e after h merges before l after e could. */
        ASSERT_ENCODED(tokenizer, "hehell", 1, SPACE, HE, HELL);
        tokenizer_free(tokenizer);
}

static void test_bytes(void)
{
        struct tokenizer *tokenizer = small_tokenizer();

        /* A character of the vocabulary, one that is not, and bytes that are no character. */
        ASSERT_ENCODED(tokenizer, "\xc3\xa9", 1, SPACE, E_ACUTE);
        ASSERT_ENCODED(tokenizer, "\xc3\xa8", 1, SPACE, BYTE + 0xc3, BYTE + 0xa8);
        ASSERT_ENCODED(tokenizer, "a\xff\x80z", 1, SPACE, A, BYTE + 0xff, BYTE + 0x80, BYTE + 'z');
        /* A character cut off by a space, and at the end. */
        ASSERT_ENCODED(tokenizer, "\xf0 \xc3 a", 1, SPACE, BYTE + 0xf0, SPACE, BYTE + 0xc3, SPACE,
                       A);
        ASSERT_ENCODED(tokenizer, "\xf0\x9f", 1, SPACE, BYTE + 0xf0, BYTE + 0x9f);
        ASSERT_ENCODED(tokenizer, "a\0b", 1, SPACE, A, BYTE + 0, B);
        tokenizer_free(tokenizer);
}

static void test_round_trip_random(void)
{
        struct tokenizer *tokenizer = small_tokenizer();
        uint64_t state = 42;

        for (int i = 0; i < 500; i++) {
                static const char letters[] = "abchelo  \xc3\xa9";
                char text[64];
                size_t bytes;

                state = state * UINT64_C(6364136223846793005) + 1;
                bytes = (size_t)(state >> 58);
                for (size_t j = 0; j < bytes; j++) {
                        state = state * UINT64_C(6364136223846793005) + 1;
                        text[j] = i % 2 ? (char)(state >> 56)
                                        : letters[(state >> 40) % (sizeof(letters) - 1)];
                }
                assert_round_trip(tokenizer, text, bytes);
        }
        tokenizer_free(tokenizer);
}

static void test_decode(void)
{
        static const uint32_t tokens[] = {1, SPACE_HELL, O, 0, 2}, out[] = {A, 275};
        struct tokenizer *tokenizer = small_tokenizer();
        char *text;
        size_t bytes;

        CU_ASSERT_EQUAL_FATAL(tokenizer_decode(tokenizer, tokens, 5, false, &text, &bytes), 0);
        CU_ASSERT_STRING_EQUAL(text, " hello\xe2\x96\x85");
        free(text);
        CU_ASSERT_EQUAL_FATAL(tokenizer_decode(tokenizer, tokens, 5, true, &text, &bytes), 0);
        CU_ASSERT_STRING_EQUAL(text, "hello\xe2\x96\x85");
        free(text);
        CU_ASSERT_EQUAL_FATAL(tokenizer_decode(tokenizer, tokens, 0, true, &text, &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 0);
        free(text);
        CU_ASSERT_EQUAL(tokenizer_decode(tokenizer, out, 2, true, &text, &bytes), -EINVAL);
        CU_ASSERT(tokenizer_ends(tokenizer, 2));
        CU_ASSERT(!tokenizer_ends(tokenizer, 1));
        tokenizer_free(tokenizer);
}

/* Settings other than the usual ones, and user-defined tokens. */
static void test_settings(void)
{
        static const char *const texts[] = {"<unk>", "<s>", "</s>", "a", "<x>", "<xx>", "a<x>"};
        static const float scores[] = {0, 0, 0, -1, -2, -3, 0};
        static const int32_t kinds[] = {2, 3, 3, 1, 4, 4, 1};
        struct gguf_writer writer;
        struct gen_error error = {0};
        struct tokenizer *tokenizer;

        gguf_writer_init(&writer);
        gguf_writer_string(&writer, "tokenizer.ggml.model", "llama");
        gguf_writer_strings(&writer, "tokenizer.ggml.tokens", texts, 7);
        gguf_writer_f32s(&writer, "tokenizer.ggml.scores", scores, 7);
        gguf_writer_i32s(&writer, "tokenizer.ggml.token_type", kinds, 7);
        gguf_writer_u32(&writer, "tokenizer.ggml.unknown_token_id", 0);
        gguf_writer_u32(&writer, "tokenizer.ggml.eos_token_id", 2);
        gguf_writer_bool(&writer, "tokenizer.ggml.add_bos_token", false);
        gguf_writer_bool(&writer, "tokenizer.ggml.add_eos_token", true);
        gguf_writer_bool(&writer, "tokenizer.ggml.add_space_prefix", false);
        tokenizer = tokenizer_of(&writer, &error);
        CU_ASSERT_PTR_NOT_NULL_FATAL(tokenizer);
        /* No byte tokens: what is not in the vocabulary is unknown, byte by byte. User-defined
         * tokens are cut out first, though a<x> has the better score. */
        ASSERT_ENCODED(tokenizer, "aa<x>a\xc3\xa9<xx><s>", 3, 3, 4, 3, 0, 0, 5, 0, 0, 0, 2);
        ASSERT_ENCODED(tokenizer, "<x", 0, 0, 2);
        ASSERT_ENCODED(tokenizer, "", 2);
        tokenizer_free(tokenizer);
}

static void refuse(const char *about, const char *model, uint64_t tokens, uint64_t scores,
                   uint64_t kinds, const char *second, float score, int32_t kind, uint32_t bos,
                   bool unknown)
{
        const char *texts[3] = {"<unk>", "x", second};
        const float score_values[3] = {0, 0, score};
        const int32_t kind_values[3] = {2, 1, kind};
        struct gguf_writer writer;
        struct gen_error error = {0};

        gguf_writer_init(&writer);
        gguf_writer_string(&writer, "tokenizer.ggml.model", model);
        gguf_writer_strings(&writer, "tokenizer.ggml.tokens", texts, tokens);
        gguf_writer_f32s(&writer, "tokenizer.ggml.scores", score_values, scores);
        gguf_writer_i32s(&writer, "tokenizer.ggml.token_type", kind_values, kinds);
        gguf_writer_u32(&writer, "tokenizer.ggml.bos_token_id", bos);
        if (unknown)
                gguf_writer_u32(&writer, "tokenizer.ggml.unknown_token_id", 0);
        CU_ASSERT_PTR_NULL(tokenizer_of(&writer, &error));
        if (!strstr(error.text, about)) {
                fprintf(stderr, "\n\"%s\" does not speak of \"%s\"\n", error.text, about);
                CU_FAIL("the refusal says something else");
        }
}

static void test_refusals(void)
{
        struct gguf_writer writer;
        struct gen_error error = {0};

        refuse("\"gpt2\"; only \"llama\"", "gpt2", 3, 3, 3, "y", 0, 1, 1, true);
        refuse("0 tokens", "llama", 0, 0, 0, "y", 0, 1, 0, true);
        refuse("2 scores", "llama", 3, 2, 3, "y", 0, 1, 1, true);
        refuse("2 types", "llama", 3, 3, 2, "y", 0, 1, 1, true);
        refuse("tokens 1 and 2 have the same text \"x\"", "llama", 3, 3, 3, "x", 0, 1, 1, true);
        refuse("score of token 2 is not a number", "llama", 3, 3, 3, "y", NAN, 1, 1, true);
        refuse("token 2 has unknown type 7", "llama", 3, 3, 3, "y", 0, 7, 1, true);
        refuse("token 2 has unknown type 0", "llama", 3, 3, 3, "y", 0, 0, 1, true);
        refuse("not of the form <0x41>", "llama", 3, 3, 3, "y", 0, 6, 1, true);
        refuse("bos_token_id is 3, allowed are 0 to 2", "llama", 3, 3, 3, "y", 0, 1, 3, true);
        refuse("no token for byte 0x00", "llama", 3, 3, 3, "y", 0, 1, 1, false);

        gguf_writer_init(&writer);
        CU_ASSERT_PTR_NULL(tokenizer_of(&writer, &error));
        CU_ASSERT(strstr(error.text, "tokenizer.ggml.model is missing") != NULL);
}

static void test_shipped(void)
{
        struct tokenizer *tokenizer = shipped_tokenizer();

        CU_ASSERT_EQUAL(tokenizer_bos(tokenizer), 1);
        CU_ASSERT_EQUAL(tokenizer_eos(tokenizer), 2);
        ASSERT_ENCODED(tokenizer, " ", 1, 962, 962);
        ASSERT_ENCODED(tokenizer, "  a  b ", 1, 962, 962, 262, 962, 273, 962);
        ASSERT_ENCODED(tokenizer, "caf\xc3\xa9", 1, 472, 975, 198, 172);
        ASSERT_ENCODED(tokenizer, "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e text", 1, 962, 233, 154,
                       168, 233, 159, 175, 235, 173, 161, 319, 963, 1012, 964);
        ASSERT_ENCODED(tokenizer, "tab\tnewline\n", 1, 880, 12, 808, 978, 973, 434, 13);
        ASSERT_ENCODED(tokenizer, "1234", 1, 962, 52, 53, 54, 55);
        ASSERT_ENCODED(tokenizer, "Blessed are they", 1, 375, 973, 410, 285, 425, 338);
        ASSERT_ENCODED(tokenizer, "\xf0\x9f\x98\x80", 1, 962, 243, 162, 155, 131);
        /* U+2581 in the text is a space. */
        ASSERT_ENCODED(tokenizer, "\xe2\x96\x81x", 1, 962, 962, 1012);
        ASSERT_ENCODED(tokenizer, "the LORD's", 1, 261, 345, 1008, 969);
        tokenizer_free(tokenizer);
}

static void test_shipped_prompts(void)
{
        struct tokenizer *tokenizer = shipped_tokenizer();
        struct request_list prompts = {0};
        struct gen_error error = {0};

        CU_ASSERT_EQUAL_FATAL(request_list_read(&prompts, "tests/data/prompts.txt", &error), 0);
        CU_ASSERT(prompts.count >= 32);
        for (uint32_t i = 0; i < prompts.count; i++)
                assert_round_trip(tokenizer, prompts.items[i].text, prompts.items[i].text_bytes);
        request_list_deinit(&prompts);
        tokenizer_free(tokenizer);
}

/* A megabyte without a space: the heap keeps it from being quadratic. */
static void test_long(void)
{
        const size_t bytes = 1 << 20;
        struct tokenizer *tokenizer = shipped_tokenizer();
        char *text = malloc(bytes);

        CU_ASSERT_PTR_NOT_NULL_FATAL(text);
        for (size_t i = 0; i < bytes; i++)
                text[i] = "thelordgod"[i * i % 10];
        assert_round_trip(tokenizer, text, bytes);
        free(text);
        tokenizer_free(tokenizer);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("tokenizer", NULL, NULL);
        if (!suite || !CU_add_test(suite, "merges", test_merges) ||
            !CU_add_test(suite, "bytes", test_bytes) ||
            !CU_add_test(suite, "round trip of random text", test_round_trip_random) ||
            !CU_add_test(suite, "decoding", test_decode) ||
            !CU_add_test(suite, "settings and user-defined tokens", test_settings) ||
            !CU_add_test(suite, "refusals", test_refusals) ||
            !CU_add_test(suite, "the shipped vocabulary", test_shipped) ||
            !CU_add_test(suite, "round trip of the prompts", test_shipped_prompts) ||
            !CU_add_test(suite, "a long text", test_long))
                return 1;
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures() + CU_get_number_of_tests_failed();
        CU_cleanup_registry();
        return failures ? 1 : 0;
}
