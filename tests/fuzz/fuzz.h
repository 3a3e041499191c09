/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every fuzz target shares: its entry, and reading decisions from the input. A target is
 * linked with libFuzzer by `make fuzz`, and with replay.c by `make test`; it keeps its state in
 * static variables, as the entry has no other place for it.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* libFuzzer's. Returns 0; whatever is wrong ends the process. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold whatever the input: a finding if it does not. */
#define FUZZ_REQUIRE(condition)                                                                    \
        do {                                                                                       \
                if (!(condition)) {                                                                \
                        fprintf(stderr, "%s:%d: %s: does not hold: %s\n", __FILE__, __LINE__,      \
                                __func__, #condition);                                             \
                        abort();                                                                   \
                }                                                                                  \
        } while (0)

/* How many descriptors this process has open, without pipes: the fuzzer talks to its symbolizer
 * through some, and nothing that is tested has any. */
unsigned fuzz_count_descriptors(void);

struct fuzz_input {
        const uint8_t *at;
        size_t left;
};

static inline const uint8_t *fuzz_take(struct fuzz_input *input, size_t bytes)
{
        const uint8_t *at = input->at;

        FUZZ_REQUIRE(bytes <= input->left);
        input->at += bytes;
        input->left -= bytes;
        return at;
}

/* Numbers; what the input no longer has is zero. */
static inline uint64_t fuzz_number(struct fuzz_input *input, size_t bytes)
{
        size_t there = input->left < bytes ? input->left : bytes;
        uint64_t value = 0;

        memcpy(&value, fuzz_take(input, there), there);
        return value;
}

static inline uint8_t fuzz_u8(struct fuzz_input *input)
{
        return (uint8_t)fuzz_number(input, 1);
}

static inline uint16_t fuzz_u16(struct fuzz_input *input)
{
        return (uint16_t)fuzz_number(input, 2);
}

static inline uint32_t fuzz_u32(struct fuzz_input *input)
{
        return (uint32_t)fuzz_number(input, 4);
}

/* A copy that ends where its allocation ends, so that reading past it is seen. */
static inline void *fuzz_copy(const void *data, size_t bytes)
{
        void *copy = malloc(bytes ? bytes : 1);

        FUZZ_REQUIRE(copy);
        if (bytes)
                memcpy(copy, data, bytes);
        return copy;
}

#endif
