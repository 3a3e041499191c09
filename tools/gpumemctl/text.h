/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and foreign text, made fit for a person's terminal.
 */
#ifndef GPUMEMCTL_TEXT_H
#define GPUMEMCTL_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define CTL_NUMBER_MAX 32 /* room for any of the formatted numbers, with the NUL */

/* "0 B", "512 B", "2 MiB", "1.5 GiB": at most one decimal, rounded, none if it is exact. Negative
 * numbers keep their sign. Returns @out. */
const char *ctl_format_bytes(char out[CTL_NUMBER_MAX], int64_t bytes);

/* "4.2 s", "3 min 12 s", "2 h 5 min", "12 d 3 h". Returns @out. */
const char *ctl_format_duration(char out[CTL_NUMBER_MAX], int64_t us);

/* "2026-11-29 13:49:52" in local time, from us since 1970. Returns @out. */
const char *ctl_format_time(char out[CTL_NUMBER_MAX], int64_t us);

/*
 * Copy @text with everything replaced by '?' that could move the cursor, change colours or the
 * direction of writing, or is not UTF-8. Engine names and commands come from whoever connected.
 * Cut at a character if it does not fit. Returns @out.
 */
const char *ctl_printable(char *out, size_t capacity, const char *text);

/* Columns that @text (printable, UTF-8) takes, at one per code point. */
size_t ctl_width(const char *text);

#endif
