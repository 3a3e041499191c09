/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/gen/gguf.c against good files and every kind of broken one. A broken file lies in memory
 * that ends where the file ends, with an unmapped page behind it: a read past the end is a crash.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/gguf_writer.h"
#include "tools/gen/gguf.h"
#include "tools/gen/tokenizer.h"
#include "tools/gen/weights.h"

/* Memory that ends before a page without access. */
struct guarded {
        unsigned char *map, *end;
        size_t bytes;
};

static void guarded_init(struct guarded *guarded, size_t bytes)
{
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);

        guarded->bytes = (bytes + page - 1) / page * page + page;
        guarded->map = mmap(NULL, guarded->bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CU_ASSERT_FATAL(guarded->map != MAP_FAILED);
        guarded->end = guarded->map + guarded->bytes - page;
        CU_ASSERT_FATAL(!mprotect(guarded->end, page, PROT_NONE));
}

static void guarded_deinit(struct guarded *guarded)
{
        munmap(guarded->map, guarded->bytes);
}

/* Parses a copy that ends at the guard; reads all of what it says is there. */
static int parse_guarded(struct guarded *guarded, const unsigned char *data, size_t bytes,
                         struct gen_error *error)
{
        struct gguf *gguf;
        unsigned char *copy = guarded->end - bytes;
        int r;

        memset(error, 0, sizeof(*error));
        if (bytes)
                memcpy(copy, data, bytes);
        r = gguf_parse(&gguf, copy, bytes, error);
        if (!r) {
                volatile unsigned char sum = 0;

                for (size_t i = 0; i < gguf_tensors(gguf); i++) {
                        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);

                        for (uint64_t j = 0; j < tensor->bytes; j++)
                                sum = (unsigned char)(sum + tensor->data[j]);
                }
                gguf_free(gguf);
        }
        return r;
}

/* The file is refused, and the refusal speaks of `about`. */
static void assert_refused(const struct gguf_bytes *file, const char *about)
{
        struct guarded guarded;
        struct gen_error error;

        guarded_init(&guarded, file->bytes);
        CU_ASSERT_EQUAL(parse_guarded(&guarded, file->data, file->bytes, &error), -EINVAL);
        if (!strstr(error.text, about)) {
                fprintf(stderr, "\n\"%s\" does not speak of \"%s\"\n", error.text, about);
                CU_FAIL("the refusal says something else");
        }
        guarded_deinit(&guarded);
}

static void assert_writer_refused(struct gguf_writer *writer, const char *about)
{
        struct gguf_bytes file = gguf_writer_finish(writer);

        assert_refused(&file, about);
        free(file.data);
        gguf_writer_deinit(writer);
}

/* The small model with some bytes overwritten. */
static void assert_patch_refused(size_t at, const void *patch, size_t bytes, const char *about)
{
        struct gguf_bytes file = gguf_model_file(&gguf_model_small);

        CU_ASSERT_FATAL(at + bytes <= file.bytes);
        memcpy(file.data + at, patch, bytes);
        assert_refused(&file, about);
        free(file.data);
}

static void test_good(void)
{
        struct gguf_bytes file = gguf_model_file(&gguf_model_small);
        char *path = gguf_bytes_save(&file);
        struct gguf *gguf;
        struct gen_error error = {0};
        const struct gguf_key *array;
        struct gguf_string text;
        const struct gguf_tensor *tensor;
        uint64_t number;
        float real;

        CU_ASSERT_EQUAL_FATAL(gguf_open(&gguf, path, &error), 0);
        CU_ASSERT_EQUAL(gguf_keys(gguf), 12 + 7);
        CU_ASSERT_EQUAL(gguf_tensors(gguf), 2 + 9 * 2);
        CU_ASSERT_EQUAL(gguf_get_u64(gguf, "llama.block_count", 1, 10, &number, &error), 0);
        CU_ASSERT_EQUAL(number, 2);
        CU_ASSERT_EQUAL(gguf_get_f32(gguf, "llama.rope.freq_base", &real, &error), 0);
        CU_ASSERT_EQUAL(real, 10000.0f);
        CU_ASSERT_EQUAL(gguf_get_string(gguf, "general.architecture", &text, &error), 0);
        CU_ASSERT(gguf_string_is(text, "llama"));
        CU_ASSERT_EQUAL(gguf_get_array(gguf, "tokenizer.ggml.scores", GGUF_F32, &array, &error), 0);
        CU_ASSERT_EQUAL(array->count, GGUF_TOKENIZER_TOKENS);
        tensor = gguf_find_tensor(gguf, "blk.1.ffn_down.weight");
        CU_ASSERT_PTR_NOT_NULL_FATAL(tensor);
        CU_ASSERT_EQUAL(tensor->dimension[0], gguf_model_small.hidden);
        CU_ASSERT_EQUAL(tensor->dimension[1], gguf_model_small.width);
        CU_ASSERT_EQUAL(tensor->bytes, 2 * 56 * 32);
        CU_ASSERT_PTR_NULL(gguf_find_tensor(gguf, "blk.2.ffn_down.weight"));
        CU_ASSERT_PTR_NULL(gguf_find(gguf, "llama.block"));

        /* Typed reads that must not succeed. */
        CU_ASSERT_EQUAL(gguf_get_u64(gguf, "no.such", 0, 1, &number, &error), GGUF_E_MISSING);
        CU_ASSERT(strstr(error.text, "no.such") != NULL);
        CU_ASSERT_EQUAL(gguf_get_u64(gguf, "llama.block_count", 3, 9, &number, &error), -EINVAL);
        CU_ASSERT(strstr(error.text, "is 2, allowed are 3 to 9") != NULL);
        CU_ASSERT_EQUAL(gguf_get_u64(gguf, "general.architecture", 0, 9, &number, &error), -EINVAL);
        CU_ASSERT_EQUAL(gguf_get_f32(gguf, "llama.block_count", &real, &error), -EINVAL);
        CU_ASSERT_EQUAL(gguf_get_array(gguf, "tokenizer.ggml.tokens", GGUF_F32, &array, &error),
                        -EINVAL);
        gguf_free(gguf);
        unlink(path);
        free(path);
        free(file.data);
}

static void test_no_file(void)
{
        struct gguf *gguf;
        struct gen_error error = {0};
        struct gguf_bytes empty = {0};
        char *path = gguf_bytes_save(&empty);

        CU_ASSERT_EQUAL(gguf_open(&gguf, "/no/such/file", &error), -ENOENT);
        CU_ASSERT(strstr(error.text, "/no/such/file") != NULL);
        CU_ASSERT_EQUAL(gguf_open(&gguf, "/tmp", &error), -EINVAL);
        CU_ASSERT(strstr(error.text, "not a regular file") != NULL);
        CU_ASSERT_EQUAL(gguf_open(&gguf, path, &error), -EINVAL);
        CU_ASSERT(strstr(error.text, "magic") != NULL);
        CU_ASSERT_PTR_NULL(gguf);
        unlink(path);
        free(path);
}

/* Cut at every byte: refused, until only the padding behind the last tensor is missing. */
static void test_truncated(void)
{
        struct gguf_model model = gguf_model_small;
        struct gguf_bytes file;
        struct gguf *gguf;
        struct gen_error error;
        struct guarded guarded;
        size_t needed = 0, accepted = 0;

        model.layers = 1;
        model.width = 8;
        model.heads = model.kv_heads = 1;
        model.hidden = 9; /* rows that are no multiple of the alignment */
        file = gguf_model_file(&model);
        CU_ASSERT_EQUAL_FATAL(gguf_parse(&gguf, file.data, file.bytes, &error), 0);
        for (size_t i = 0; i < gguf_tensors(gguf); i++) {
                const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
                const size_t end = (size_t)(tensor->data - file.data) + tensor->bytes;

                needed = end > needed ? end : needed;
        }
        gguf_free(gguf);
        guarded_init(&guarded, file.bytes);
        for (size_t bytes = 0; bytes <= file.bytes; bytes++) {
                const int r = parse_guarded(&guarded, file.data, bytes, &error);

                if (r != (bytes < needed ? -EINVAL : 0)) {
                        fprintf(stderr, "\ncut at %zu: %d, %s\n", bytes, r, error.text);
                        CU_FAIL("a truncated file");
                }
                accepted += !r;
        }
        CU_ASSERT_EQUAL(accepted, file.bytes - needed + 1);
        guarded_deinit(&guarded);
        free(file.data);
}

/* Every byte of the header turned over, one at a time, in three ways: any answer, but an answer;
 * and if the file is accepted, the layers above hold as well. */
static void test_every_byte(void)
{
        static const unsigned char flips[] = {0x01, 0x80, 0xff};
        struct gguf_writer writer;
        struct gguf_bytes file;
        struct guarded guarded;
        size_t header, refused = 0;

        gguf_writer_init(&writer);
        gguf_writer_model_keys(&writer, &gguf_model_small);
        gguf_writer_model_tensors(&writer, &gguf_model_small);
        header = gguf_writer_data_at(&writer);
        file = gguf_writer_finish(&writer);
        gguf_writer_deinit(&writer);
        guarded_init(&guarded, file.bytes);
        for (size_t at = 0; at < header; at++) {
                for (size_t i = 0; i < sizeof(flips); i++) {
                        unsigned char *copy = guarded.end - file.bytes;
                        struct gguf *gguf;
                        struct tokenizer *tokenizer = NULL;
                        struct weights *weights = NULL;
                        struct gen_error error = {0};

                        memcpy(copy, file.data, file.bytes);
                        copy[at] ^= flips[i];
                        if (gguf_parse(&gguf, copy, file.bytes, &error) ||
                            tokenizer_new(&tokenizer, gguf, &error) ||
                            weights_new(&weights, gguf, tokenizer_tokens(tokenizer), &error)) {
                                CU_ASSERT(error.text[0] != '\0');
                                refused++;
                        }
                        weights_free(weights);
                        tokenizer_free(tokenizer);
                        gguf_free(gguf);
                }
        }
        CU_ASSERT(refused > header);
        guarded_deinit(&guarded);
        free(file.data);
}

static void test_header(void)
{
        const uint32_t version_1 = 1, version_4 = 4, big_endian = __builtin_bswap32(3);
        const uint64_t many = 65537, absurd = UINT64_MAX;

        assert_patch_refused(0, "GGML", 4, "begins with \"GGML\"");
        assert_patch_refused(0,
                             "\x7f"
                             "ELF",
                             4, "\\x7fELF");
        assert_patch_refused(4, &version_1, 4, "version 1");
        assert_patch_refused(4, &version_4, 4, "version 4");
        assert_patch_refused(4, &big_endian, 4, "big-endian");
        assert_patch_refused(8, &absurd, 8, "byte 8: 18446744073709551615 tensors");
        assert_patch_refused(8, &many, 8, "65537 tensors");
        assert_patch_refused(16, &absurd, 8, "byte 16: 18446744073709551615 keys");
        assert_patch_refused(16, &many, 8, "65537 keys");
        /* The length of the first key. */
        assert_patch_refused(24, &absurd, 8, "byte 32: the name of a key");
}

static void test_version_2(void)
{
        struct gguf_writer writer;
        struct gguf_bytes file;
        struct gguf *gguf;
        struct gen_error error;

        gguf_writer_init(&writer);
        writer.version = 2;
        gguf_writer_string(&writer, "general.architecture", "llama");
        file = gguf_writer_finish(&writer);
        CU_ASSERT_EQUAL(gguf_parse(&gguf, file.data, file.bytes, &error), 0);
        gguf_free(gguf);
        free(file.data);
        gguf_writer_deinit(&writer);
}

static void test_keys(void)
{
        static const struct {
                const char *name;
                uint32_t type;
                const char *value;
                size_t bytes;
                const char *about;
        } cases[] = {
                {"a.b", 13, "", 0, "key a.b has unknown type 13"},
                {"a.b", 0xffffffff, "", 0, "key a.b has unknown type 4294967295"},
                {"", 4, "\0\0\0\0", 4, "is empty or not plain"},
                {"a\nb", 4, "\0\0\0\0", 4, "a\\x0ab"},
                {"a.b", 7, "\2", 1, "2 is not a bool"},
                {"a.b", 8, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, "a.b needs 18446744073709551615"},
                /* Arrays: of arrays, of an unknown type, with an absurd number of items. */
                {"a.b", 9, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12, "array of arrays"},
                {"a.b", 9, "\x0d\0\0\0\1\0\0\0\0\0\0\0", 12, "array of an unknown type"},
                {"a.b", 9, "\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12, "do not fit"},
                {"a.b", 9, "\x0a\0\0\0\0\0\0\0\0\0\0\x20", 12, "2305843009213693952 items"},
                {"a.b", 9, "\x08\0\0\0\xff\xff\xff\xff\0\0\0\0", 12, "4294967295 items"},
                {"a.b", 9, "\x08\0\0\0\1\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f", 20,
                 "a.b needs 9223372036854775807"},
                {"a.b", 9, "\x07\0\0\0\2\0\0\0\0\0\0\0\1\3", 14, "3 is not a bool"},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct gguf_writer writer;

                gguf_writer_init(&writer);
                gguf_writer_u32(&writer, "first", 1);
                gguf_writer_raw(&writer, cases[i].name, cases[i].type, cases[i].value,
                                cases[i].bytes);
                assert_writer_refused(&writer, cases[i].about);
        }
}

static void test_duplicates(void)
{
        const uint64_t eight = 8;
        const float data[8] = {0};
        struct gguf_writer writer;

        gguf_writer_init(&writer);
        gguf_writer_u32(&writer, "a.b", 1);
        gguf_writer_u32(&writer, "a.c", 1);
        gguf_writer_f32(&writer, "a.b", 1);
        assert_writer_refused(&writer, "key a.b occurs twice");

        gguf_writer_init(&writer);
        gguf_writer_tensor(&writer, "x", &eight, 1, 0, data, sizeof(data));
        gguf_writer_tensor(&writer, "y", &eight, 1, 0, data, sizeof(data));
        gguf_writer_tensor(&writer, "x", &eight, 1, 0, data, sizeof(data));
        assert_writer_refused(&writer, "tensor x occurs twice");

        gguf_writer_init(&writer);
        gguf_writer_tensor(&writer, "x", &eight, 1, 0, data, sizeof(data));
        gguf_writer_tensor_raw(&writer, "y", &eight, 1, 0, 0);
        assert_writer_refused(&writer, "begins inside the data of tensor");
}

static void test_alignment(void)
{
        static const uint32_t wrong[] = {0, 4, 12, 24, 1u << 21};
        const uint64_t eight = 8;
        const float data[8] = {0};
        struct gguf_writer writer;
        struct gguf_bytes file;
        struct gguf *gguf;
        struct gen_error error = {0};

        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                gguf_writer_init(&writer);
                gguf_writer_u32(&writer, "general.alignment", wrong[i]);
                assert_writer_refused(&writer, "general.alignment");
        }
        gguf_writer_init(&writer);
        writer.alignment = 256;
        gguf_writer_u32(&writer, "general.alignment", 256);
        gguf_writer_tensor(&writer, "x", &eight, 1, 0, data, sizeof(data));
        gguf_writer_tensor(&writer, "y", &eight, 1, 0, data, sizeof(data));
        file = gguf_writer_finish(&writer);
        CU_ASSERT_EQUAL(gguf_parse(&gguf, file.data, file.bytes, &error), 0);
        CU_ASSERT_EQUAL(gguf_find_tensor(gguf, "y")->data - file.data, 512);
        gguf_free(gguf);
        free(file.data);
        gguf_writer_deinit(&writer);
}

static void test_tensors(void)
{
        static const struct {
                const char *name;
                uint64_t dimensions[5];
                uint32_t count, type;
                uint64_t offset;
                const char *about;
        } cases[] = {
                {"", {8}, 1, 0, 0, "name of a tensor"},
                {"0123456789012345678901234567890123456789012345678901234567890123x",
                 {8},
                 1,
                 0,
                 0,
                 "1 to 64 bytes"},
                {"a b", {8}, 1, 0, 0, "\"a b\""},
                {"x", {8}, 0, 0, 0, "tensor x has 0 dimensions"},
                {"x", {1, 1, 1, 1, 1}, 5, 0, 0, "tensor x has 5 dimensions"},
                {"x", {8, 0}, 2, 0, 0, "dimension 1 is 0"},
                {"x", {UINT64_C(1) << 32, UINT64_C(1) << 32}, 2, 0, 0, "the product overflows"},
                {"x", {UINT64_C(1) << 62}, 1, 0, 0, "overflow its size"},
                {"x", {8}, 1, 2, 0, "tensor x has type 2; only f32"},
                {"x", {8}, 1, 0xffffffff, 0, "tensor x has type 4294967295"},
                {"x", {8}, 1, 0, 4, "not a multiple of the alignment"},
                {"x", {8}, 1, 0, 64, "beyond the end of the file"},
                {"x", {17}, 1, 0, 0, "beyond the end of the file"},
                {"x", {8}, 1, 0, UINT64_MAX - 31, "beyond the end of the file"},
                {"x", {UINT64_C(1) << 60}, 1, 0, 32, "beyond the end of the file"},
        };
        const uint64_t eight = 8;
        const float data[8] = {0};

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct gguf_writer writer;

                gguf_writer_init(&writer);
                gguf_writer_tensor_raw(&writer, cases[i].name, cases[i].dimensions, cases[i].count,
                                       cases[i].type, cases[i].offset);
                /* 64 bytes of data in all. */
                gguf_writer_tensor(&writer, "rest", &eight, 1, 0, data, sizeof(data));
                gguf_writer_tensor(&writer, "more", &eight, 1, 0, data, sizeof(data));
                assert_writer_refused(&writer, cases[i].about);
        }
}

static void test_integers(void)
{
        static const struct {
                uint32_t type;
                const char *bytes;
                size_t count;
        } fives[] = {
                {0, "\5", 1},
                {1, "\5", 1},
                {2, "\5\0", 2},
                {3, "\5\0", 2},
                {4, "\5\0\0\0", 4},
                {5, "\5\0\0\0", 4},
                {10, "\5\0\0\0\0\0\0\0", 8},
                {11, "\5\0\0\0\0\0\0\0", 8},
        };
        struct gguf_writer writer;
        struct gguf_bytes file;
        struct gguf *gguf;
        struct gen_error error = {0};
        uint64_t value;
        char name[16];

        gguf_writer_init(&writer);
        for (size_t i = 0; i < 8; i++) {
                snprintf(name, sizeof(name), "n%zu", i);
                gguf_writer_raw(&writer, name, fives[i].type, fives[i].bytes, fives[i].count);
        }
        gguf_writer_raw(&writer, "minus", 1, "\xff", 1);
        gguf_writer_raw(&writer, "minus64", 11, "\0\0\0\0\0\0\0\x80", 8);
        file = gguf_writer_finish(&writer);
        CU_ASSERT_EQUAL_FATAL(gguf_parse(&gguf, file.data, file.bytes, &error), 0);
        for (size_t i = 0; i < 8; i++) {
                snprintf(name, sizeof(name), "n%zu", i);
                value = 0;
                CU_ASSERT_EQUAL(gguf_get_u64(gguf, name, 5, 5, &value, &error), 0);
                CU_ASSERT_EQUAL(value, 5);
        }
        CU_ASSERT_EQUAL(gguf_get_u64(gguf, "minus", 0, UINT64_MAX, &value, &error), -EINVAL);
        CU_ASSERT(strstr(error.text, "is -1,") != NULL);
        CU_ASSERT_EQUAL(gguf_get_u64(gguf, "minus64", 0, UINT64_MAX, &value, &error), -EINVAL);
        CU_ASSERT(strstr(error.text, "is -9223372036854775808,") != NULL);
        gguf_free(gguf);
        free(file.data);
        gguf_writer_deinit(&writer);
}

static void test_printable(void)
{
        char out[16];

        CU_ASSERT_STRING_EQUAL(gen_printable(out, sizeof(out), "ab\n\\", 4), "ab\\x0a\\x5c");
        CU_ASSERT_STRING_EQUAL(gen_printable(out, sizeof(out), "0123456789abcdefgh", 18),
                               "0123456789ab...");
        CU_ASSERT_STRING_EQUAL(gen_printable(out, 1, "ab", 2), "");
}

int main(void)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("gguf", NULL, NULL);
        if (!suite || !CU_add_test(suite, "a good file", test_good) ||
            !CU_add_test(suite, "no file", test_no_file) ||
            !CU_add_test(suite, "cut at every byte", test_truncated) ||
            !CU_add_test(suite, "every byte of the header turned over", test_every_byte) ||
            !CU_add_test(suite, "the header", test_header) ||
            !CU_add_test(suite, "version 2", test_version_2) ||
            !CU_add_test(suite, "keys", test_keys) ||
            !CU_add_test(suite, "duplicates and overlaps", test_duplicates) ||
            !CU_add_test(suite, "alignment", test_alignment) ||
            !CU_add_test(suite, "tensors", test_tensors) ||
            !CU_add_test(suite, "integers of every width", test_integers) ||
            !CU_add_test(suite, "printable bytes", test_printable))
                return 1;
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures() + CU_get_number_of_tests_failed();
        CU_cleanup_registry();
        return failures ? 1 : 0;
}
