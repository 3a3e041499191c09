/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the parts of gpumem-gen report failure: 0 or a negative errno as the result, and one sentence
 * for people in a struct gen_error that the caller brought. Parts never print and never exit.
 */
#ifndef GPUMEM_GEN_ERROR_H
#define GPUMEM_GEN_ERROR_H

#include <stddef.h>

struct gen_error {
        char text[640];
};

/* Writes the sentence (error may be NULL) and returns `result`, so that a caller can say
 * `return gen_fail(error, -EINVAL, ...)`. */
int gen_fail(struct gen_error *error, int result, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* A copy of hostile bytes fit for a message: at most `capacity` bytes with the NUL, control and
 * non-ASCII bytes as \xNN, "..." where cut short. Returns `out`. */
const char *gen_printable(char *out, size_t capacity, const void *data, size_t bytes);

#endif
