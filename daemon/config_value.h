/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of the configuration, from text. Each leaves *out alone unless it returns 0; -EINVAL is
 * what is not of that kind at all, -ERANGE what is out of bounds. (Sizes are in config.h.)
 */
#ifndef GPUMEMD_CONFIG_VALUE_H
#define GPUMEMD_CONFIG_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int config_parse_count(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *out);
int config_parse_bool(const char *text, bool *out);       /* yes or no */
int config_parse_fraction(const char *text, double *out); /* above 0, at most 1 */
int config_parse_path(const char *text, char *out, size_t size);
/* A directory's: 0700, 0770 or 0777. */
int config_parse_mode(const char *text, uint32_t *out);
/* A user's or group's, by the characters that useradd(8) allows. */
int config_parse_name(const char *text, char *out, size_t size);

#endif
