/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF is read in place: little-endian machines only"
#endif

struct gguf {
        const unsigned char *data;
        uint64_t bytes;
        bool mapped; /* data is ours to unmap */
        struct gguf_key *keys;
        size_t keys_count;
        struct gguf_tensor *tensors;
        size_t tensors_count;
        /* The same in order of name, for look-ups and to find duplicates. */
        const struct gguf_key **keys_by_name;
        const struct gguf_tensor **tensors_by_name;
};

/* Where the parser stands. Every read goes through reader_take(). */
struct reader {
        const unsigned char *data;
        uint64_t bytes;
        uint64_t at;
        struct gen_error *error;
};

static const struct {
        const char *name;
        uint8_t bytes; /* of one value; 0: variable */
} types[] = {
        [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
        [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
        [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
        [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
        [GGUF_F64] = {"f64", 8},
};
#define TYPES (sizeof(types) / sizeof(types[0]))

const char *gguf_type_name(enum gguf_type type)
{
        return (unsigned)type < TYPES ? types[type].name : "unknown";
}

uint32_t gguf_load_u32(const unsigned char *at)
{
        uint32_t value;

        memcpy(&value, at, sizeof(value));
        return value;
}

float gguf_load_f32(const unsigned char *at)
{
        float value;

        memcpy(&value, at, sizeof(value));
        return value;
}

static uint64_t load_u64(const unsigned char *at)
{
        uint64_t value;

        memcpy(&value, at, sizeof(value));
        return value;
}

/* The next `bytes` bytes, or NULL with the error set: what names what was being read. */
static const unsigned char *reader_take(struct reader *reader, uint64_t bytes, const char *what)
{
        const unsigned char *here = reader->data + reader->at;

        if (bytes > reader->bytes - reader->at) {
                gen_fail(reader->error, -EINVAL,
                         "byte %" PRIu64 ": %s needs %" PRIu64 " bytes, the file has %" PRIu64
                         " left: truncated or corrupt",
                         reader->at, what, bytes, reader->bytes - reader->at);
                return NULL;
        }
        reader->at += bytes;
        return here;
}

static int read_u32(struct reader *reader, const char *what, uint32_t *out)
{
        const unsigned char *at = reader_take(reader, 4, what);

        if (!at)
                return -EINVAL;
        *out = gguf_load_u32(at);
        return 0;
}

static int read_u64(struct reader *reader, const char *what, uint64_t *out)
{
        const unsigned char *at = reader_take(reader, 8, what);

        if (!at)
                return -EINVAL;
        *out = load_u64(at);
        return 0;
}

static int read_string(struct reader *reader, const char *what, struct gguf_string *out)
{
        uint64_t bytes;
        const unsigned char *data;
        int r = read_u64(reader, what, &bytes);

        if (r < 0)
                return r;
        data = reader_take(reader, bytes, what);
        if (!data)
                return -EINVAL;
        *out = (struct gguf_string){(const char *)data, bytes};
        return 0;
}

static bool name_is_plain(struct gguf_string name)
{
        if (!name.bytes)
                return false;
        for (uint64_t i = 0; i < name.bytes; i++)
                if ((unsigned char)name.data[i] <= 0x20 || (unsigned char)name.data[i] >= 0x7f)
                        return false;
        return true;
}

static int check_bools(struct reader *reader, const char *key, const unsigned char *data,
                       uint64_t count)
{
        for (uint64_t i = 0; i < count; i++)
                if (data[i] > 1)
                        return gen_fail(reader->error, -EINVAL,
                                        "byte %" PRIu64 ": key %s: %u is not a bool",
                                        (uint64_t)(data + i - reader->data), key, data[i]);
        return 0;
}

/* `what` is the printable name of the key. */
static int read_array(struct reader *reader, const char *what, struct gguf_key *key)
{
        uint32_t type;
        int r;

        r = read_u32(reader, what, &type);
        if (r < 0)
                return r;
        if (type == GGUF_ARRAY || type >= TYPES)
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64 ": key %s: array of %s (type %" PRIu32 ")",
                                reader->at - 4, what,
                                type == GGUF_ARRAY ? "arrays" : "an unknown type", type);
        key->item_type = (enum gguf_type)type;
        r = read_u64(reader, what, &key->count);
        if (r < 0)
                return r;
        /* Before any walk or product: an item takes at least its fixed size, a string its length
         * field. */
        const uint64_t least = types[type].bytes ? types[type].bytes : 8;

        if (key->count > (reader->bytes - reader->at) / least)
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64 ": key %s: %" PRIu64
                                " items of type %s do not fit into the %" PRIu64 " bytes left",
                                reader->at - 8, what, key->count, types[type].name,
                                reader->bytes - reader->at);
        key->data = reader->data + reader->at;
        if (type == GGUF_STRING) {
                for (uint64_t i = 0; i < key->count; i++) {
                        struct gguf_string item;

                        r = read_string(reader, what, &item);
                        if (r < 0)
                                return r;
                }
                return 0;
        }
        if (!reader_take(reader, key->count * types[type].bytes, what))
                return -EINVAL;
        return type == GGUF_BOOL ? check_bools(reader, what, key->data, key->count) : 0;
}

static int read_key(struct reader *reader, struct gguf_key *key)
{
        char name[128];
        uint32_t type;
        const uint64_t start = reader->at;
        int r;

        r = read_string(reader, "the name of a key", &key->name);
        if (r < 0)
                return r;
        gen_printable(name, sizeof(name), key->name.data, key->name.bytes);
        if (key->name.bytes > GGUF_KEY_BYTES_MAX)
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64 ": the name of a key has %" PRIu64
                                " bytes, at most %d are allowed",
                                start, key->name.bytes, GGUF_KEY_BYTES_MAX);
        if (!name_is_plain(key->name))
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64
                                ": the name of a key is empty or not plain ASCII: \"%s\"",
                                start, name);
        r = read_u32(reader, name, &type);
        if (r < 0)
                return r;
        if (type >= TYPES)
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64 ": key %s has unknown type %" PRIu32,
                                reader->at - 4, name, type);
        key->type = key->item_type = (enum gguf_type)type;
        key->count = 1;
        key->at = reader->at;
        key->data = reader->data + reader->at;
        if (type == GGUF_ARRAY)
                return read_array(reader, name, key);
        if (type == GGUF_STRING) {
                struct gguf_string value;

                return read_string(reader, name, &value);
        }
        if (!reader_take(reader, types[type].bytes, name))
                return -EINVAL;
        return type == GGUF_BOOL ? check_bools(reader, name, key->data, 1) : 0;
}

/* The tensor's entry; its data is placed later, when the start of the data is known (`bytes` and
 * `offset` are set here). */
static int read_tensor(struct reader *reader, struct gguf_tensor *tensor, uint64_t *offset)
{
        struct gguf_string name;
        char what[128];
        uint32_t type;
        uint64_t elements = 1, element_bytes;
        const uint64_t start = reader->at;
        int r;

        r = read_string(reader, "the name of a tensor", &name);
        if (r < 0)
                return r;
        gen_printable(what, sizeof(what), name.data, name.bytes);
        if (name.bytes > GGUF_NAME_BYTES_MAX || !name_is_plain(name))
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64 ": the name of a tensor must be plain ASCII of "
                                "1 to %d bytes, not \"%s\" (%" PRIu64 " bytes)",
                                start, GGUF_NAME_BYTES_MAX, what, name.bytes);
        memcpy(tensor->name, name.data, name.bytes);
        tensor->name[name.bytes] = '\0';

        r = read_u32(reader, what, &tensor->dimensions);
        if (r < 0)
                return r;
        if (tensor->dimensions < 1 || tensor->dimensions > GGUF_DIMENSIONS_MAX)
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64 ": tensor %s has %" PRIu32
                                " dimensions, 1 to %d are allowed",
                                reader->at - 4, what, tensor->dimensions, GGUF_DIMENSIONS_MAX);
        for (uint32_t i = 0; i < GGUF_DIMENSIONS_MAX; i++)
                tensor->dimension[i] = 1;
        for (uint32_t i = 0; i < tensor->dimensions; i++) {
                r = read_u64(reader, what, &tensor->dimension[i]);
                if (r < 0)
                        return r;
                if (!tensor->dimension[i] ||
                    __builtin_mul_overflow(elements, tensor->dimension[i], &elements))
                        return gen_fail(reader->error, -EINVAL,
                                        "byte %" PRIu64 ": tensor %s: dimension %" PRIu32
                                        " is %" PRIu64 ", %s",
                                        reader->at - 8, what, i, tensor->dimension[i],
                                        tensor->dimension[i] ? "the product overflows"
                                                             : "must not be zero");
        }
        r = read_u32(reader, what, &type);
        if (r < 0)
                return r;
        switch (type) {
        case GGUF_TENSOR_F32:
                element_bytes = 4;
                break;
        case GGUF_TENSOR_F16:
                element_bytes = 2;
                break;
        default:
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64 ": tensor %s has type %" PRIu32
                                "; only f32 (0) and f16 (1) are understood",
                                reader->at - 4, what, type);
        }
        tensor->type = (enum gguf_tensor_type)type;
        if (__builtin_mul_overflow(elements, element_bytes, &tensor->bytes))
                return gen_fail(reader->error, -EINVAL,
                                "byte %" PRIu64 ": tensor %s: %" PRIu64
                                " elements overflow its size in bytes",
                                reader->at - 4, what, elements);
        return read_u64(reader, what, offset);
}

static int compare_strings(struct gguf_string a, struct gguf_string b)
{
        const int order = memcmp(a.data, b.data, a.bytes < b.bytes ? a.bytes : b.bytes);

        return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_keys(const void *left, const void *right)
{
        const struct gguf_key *const *a = left, *const *b = right;

        return compare_strings((*a)->name, (*b)->name);
}

static int compare_tensors(const void *left, const void *right)
{
        const struct gguf_tensor *const *a = left, *const *b = right;

        return strcmp((*a)->name, (*b)->name);
}

static int compare_places(const void *left, const void *right)
{
        const struct gguf_tensor *const *a = left, *const *b = right;

        return ((*a)->data > (*b)->data) - ((*a)->data < (*b)->data);
}

static int index_keys(struct gguf *gguf, struct gen_error *error)
{
        char name[128];

        for (size_t i = 0; i < gguf->keys_count; i++)
                gguf->keys_by_name[i] = &gguf->keys[i];
        if (gguf->keys_count)
                qsort(gguf->keys_by_name, gguf->keys_count, sizeof(gguf->keys_by_name[0]),
                      compare_keys);
        for (size_t i = 1; i < gguf->keys_count; i++) {
                const struct gguf_key *key = gguf->keys_by_name[i];

                if (!compare_strings(key->name, gguf->keys_by_name[i - 1]->name))
                        return gen_fail(
                                error, -EINVAL, "byte %" PRIu64 ": key %s occurs twice", key->at,
                                gen_printable(name, sizeof(name), key->name.data, key->name.bytes));
        }
        return 0;
}

/* Duplicate names, then overlaps (the index is sorted by place first, then by name). */
static int index_tensors(struct gguf *gguf, struct gen_error *error)
{
        const struct gguf_tensor **index = gguf->tensors_by_name;

        for (size_t i = 0; i < gguf->tensors_count; i++)
                index[i] = &gguf->tensors[i];
        if (gguf->tensors_count)
                qsort(index, gguf->tensors_count, sizeof(index[0]), compare_places);
        for (size_t i = 1; i < gguf->tensors_count; i++)
                if (index[i]->data < index[i - 1]->data + index[i - 1]->bytes)
                        return gen_fail(error, -EINVAL,
                                        "byte %" PRIu64
                                        ": tensor %s begins inside the data of tensor %s",
                                        (uint64_t)(index[i]->data - gguf->data), index[i]->name,
                                        index[i - 1]->name);
        if (gguf->tensors_count)
                qsort(index, gguf->tensors_count, sizeof(index[0]), compare_tensors);
        for (size_t i = 1; i < gguf->tensors_count; i++)
                if (!strcmp(index[i]->name, index[i - 1]->name))
                        return gen_fail(error, -EINVAL, "tensor %s occurs twice", index[i]->name);
        return 0;
}

static int read_alignment(const struct gguf *gguf, uint64_t *out, struct gen_error *error)
{
        int r = gguf_get_u64(gguf, "general.alignment", 1, 1 << 20, out, error);

        if (r == GGUF_E_MISSING)
                *out = 32;
        else if (r < 0)
                return r;
        if (*out % 8 || (*out & (*out - 1)))
                return gen_fail(error, -EINVAL,
                                "key general.alignment is %" PRIu64
                                ", must be a power of two and a multiple of 8",
                                *out);
        return 0;
}

static int place_tensors(struct gguf *gguf, const uint64_t *offsets, uint64_t header_bytes,
                         struct gen_error *error)
{
        uint64_t alignment, start;
        int r = read_alignment(gguf, &alignment, error);

        if (r < 0)
                return r;
        /* No overflow: header_bytes is within the file, alignment small. */
        start = (header_bytes + alignment - 1) & ~(alignment - 1);
        for (size_t i = 0; i < gguf->tensors_count; i++) {
                struct gguf_tensor *tensor = &gguf->tensors[i];

                if (offsets[i] % alignment)
                        return gen_fail(error, -EINVAL,
                                        "tensor %s: offset %" PRIu64
                                        " is not a multiple of the alignment %" PRIu64,
                                        tensor->name, offsets[i], alignment);
                if (start > gguf->bytes || offsets[i] > gguf->bytes - start ||
                    tensor->bytes > gguf->bytes - start - offsets[i])
                        return gen_fail(error, -EINVAL,
                                        "tensor %s: %" PRIu64 " bytes at offset %" PRIu64
                                        " of the data (which begins at byte %" PRIu64
                                        ") reach beyond the end of the file at byte %" PRIu64
                                        ": truncated or corrupt",
                                        tensor->name, tensor->bytes, offsets[i], start,
                                        gguf->bytes);
                tensor->data = gguf->data + start + offsets[i];
        }
        return 0;
}

static int read_counts(struct reader *reader, uint64_t *tensors, uint64_t *keys)
{
        const unsigned char *magic = reader_take(reader, 4, "the magic number");
        uint32_t version;
        char seen[32];
        int r;

        if (!magic)
                return -EINVAL;
        if (memcmp(magic, "GGUF", 4))
                return gen_fail(reader->error, -EINVAL,
                                "byte 0: not a GGUF file: begins with \"%s\", not \"GGUF\"",
                                gen_printable(seen, sizeof(seen), magic, 4));
        r = read_u32(reader, "the version", &version);
        if (r < 0)
                return r;
        if (version != 2 && version != 3)
                return gen_fail(reader->error, -EINVAL, "byte 4: GGUF version %" PRIu32 "%s",
                                version,
                                version == __builtin_bswap32(2) || version == __builtin_bswap32(3)
                                        ? ": a big-endian file; only little-endian is understood"
                                        : "; 2 and 3 are understood");
        r = read_u64(reader, "the number of tensors", tensors);
        if (r < 0)
                return r;
        r = read_u64(reader, "the number of keys", keys);
        if (r < 0)
                return r;
        /* The least entry: a tensor's name length, dimensions, one dimension, type and offset; a
         * key's name length, type and a byte. */
        if (*tensors > GGUF_TENSORS_MAX || *tensors > (reader->bytes - reader->at) / 32)
                return gen_fail(reader->error, -EINVAL,
                                "byte 8: %" PRIu64 " tensors; the limit is %d, and %" PRIu64
                                " bytes are left",
                                *tensors, GGUF_TENSORS_MAX, reader->bytes - reader->at);
        if (*keys > GGUF_KEYS_MAX || *keys > (reader->bytes - reader->at) / 13)
                return gen_fail(reader->error, -EINVAL,
                                "byte 16: %" PRIu64 " keys; the limit is %d, and %" PRIu64
                                " bytes are left",
                                *keys, GGUF_KEYS_MAX, reader->bytes - reader->at);
        return 0;
}

static int parse(struct gguf *gguf, struct gen_error *error)
{
        struct reader reader = {.data = gguf->data, .bytes = gguf->bytes, .error = error};
        uint64_t tensors = 0, keys = 0, *offsets;
        int r;

        r = read_counts(&reader, &tensors, &keys);
        if (r < 0)
                return r;
        gguf->keys = calloc(keys + 1, sizeof(gguf->keys[0]));
        gguf->keys_by_name = calloc(keys + 1, sizeof(gguf->keys_by_name[0]));
        gguf->tensors = calloc(tensors + 1, sizeof(gguf->tensors[0]));
        gguf->tensors_by_name = calloc(tensors + 1, sizeof(gguf->tensors_by_name[0]));
        offsets = calloc(tensors + 1, sizeof(offsets[0]));
        if (!gguf->keys || !gguf->keys_by_name || !gguf->tensors || !gguf->tensors_by_name ||
            !offsets) {
                free(offsets);
                return gen_fail(error, -ENOMEM, "out of memory for the file's index");
        }
        for (; gguf->keys_count < keys && r >= 0; gguf->keys_count++)
                r = read_key(&reader, &gguf->keys[gguf->keys_count]);
        if (r >= 0)
                r = index_keys(gguf, error);
        for (; gguf->tensors_count < tensors && r >= 0; gguf->tensors_count++)
                r = read_tensor(&reader, &gguf->tensors[gguf->tensors_count],
                                &offsets[gguf->tensors_count]);
        if (r >= 0)
                r = place_tensors(gguf, offsets, reader.at, error);
        if (r >= 0)
                r = index_tensors(gguf, error);
        free(offsets);
        return r;
}

int gguf_parse(struct gguf **out, const void *data, size_t bytes, struct gen_error *error)
{
        struct gguf *gguf = calloc(1, sizeof(*gguf));
        int r;

        *out = NULL;
        if (!gguf)
                return gen_fail(error, -ENOMEM, "out of memory");
        gguf->data = data;
        gguf->bytes = bytes;
        r = parse(gguf, error);
        if (r < 0) {
                gguf_free(gguf);
                return r;
        }
        *out = gguf;
        return 0;
}

int gguf_open(struct gguf **out, const char *path, struct gen_error *error)
{
        struct gguf *gguf;
        struct gen_error inner = {0};
        struct stat status;
        void *data = NULL;
        int fd, r;

        *out = NULL;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us up */
        if (fd < 0)
                return gen_fail(error, -errno, "%s: %s", path, strerror(errno));
        if (fstat(fd, &status) < 0) {
                r = gen_fail(error, -errno, "%s: %s", path, strerror(errno));
                close(fd);
                return r;
        }
        if (!S_ISREG(status.st_mode)) {
                close(fd);
                return gen_fail(error, -EINVAL, "%s: not a regular file", path);
        }
        if (status.st_size > 0) {
                data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
                if (data == MAP_FAILED) {
                        r = gen_fail(error, -errno, "%s: mmap: %s", path, strerror(errno));
                        close(fd);
                        return r;
                }
        }
        close(fd);
        r = gguf_parse(&gguf, data, (size_t)status.st_size, &inner);
        if (!gguf) {
                if (data)
                        munmap(data, (size_t)status.st_size);
                return gen_fail(error, r, "%s: %s", path, inner.text);
        }
        gguf->mapped = true;
        *out = gguf;
        return 0;
}

struct gguf *gguf_free(struct gguf *gguf)
{
        if (!gguf)
                return NULL;
        if (gguf->mapped)
                munmap((void *)gguf->data, gguf->bytes);
        free(gguf->keys);
        free(gguf->keys_by_name);
        free(gguf->tensors);
        free(gguf->tensors_by_name);
        free(gguf);
        return NULL;
}

size_t gguf_keys(const struct gguf *gguf)
{
        return gguf->keys_count;
}

const struct gguf_key *gguf_key_at(const struct gguf *gguf, size_t index)
{
        return &gguf->keys[index];
}

const struct gguf_key *gguf_find(const struct gguf *gguf, const char *name)
{
        const struct gguf_key wanted = {.name = {name, strlen(name)}}, *pointer = &wanted;
        const struct gguf_key **found;

        if (!gguf->keys_count)
                return NULL;
        found = bsearch(&pointer, gguf->keys_by_name, gguf->keys_count,
                        sizeof(gguf->keys_by_name[0]), compare_keys);
        return found ? *found : NULL;
}

size_t gguf_tensors(const struct gguf *gguf)
{
        return gguf->tensors_count;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t index)
{
        return &gguf->tensors[index];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name)
{
        size_t low = 0, high = gguf->tensors_count;

        while (low < high) {
                const size_t middle = low + (high - low) / 2;
                const int order = strcmp(gguf->tensors_by_name[middle]->name, name);

                if (!order)
                        return gguf->tensors_by_name[middle];
                if (order < 0)
                        low = middle + 1;
                else
                        high = middle;
        }
        return NULL;
}
