/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpumem-bench: each figure is a ratio inside one run, or (page allocation) a few cache lines'
 * time.
 *
 * A bench measures, fills a JSON object and returns; main.c adds the machine and prints. Whatever a
 * figure is compared with (the floor) is measured in the same run, interleaved with it, so that a
 * noisy or slow machine moves both.
 */
#ifndef GPUMEM_BENCH_H
#define GPUMEM_BENCH_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_options {
        bool quick;        /* fewer samples; for tests that the bench works, not for figures */
        uint64_t seed;     /* printed, so that a run can be repeated */
        const char *build; /* where gpumemd and libcuda-sim.so lie */
};

/* Fills `out` with "parameters" and the figures. 0, or a negative errno after saying why on stderr.
 */
int bench_alloc(const struct bench_options *options, struct json_object *out);
int bench_grant(const struct bench_options *options, struct json_object *out);
int bench_restart(const struct bench_options *options, struct json_object *out);
int bench_frames(const struct bench_options *options, struct json_object *out);
int bench_clients(const struct bench_options *options, struct json_object *out);
int bench_evacuate(const struct bench_options *options, struct json_object *out);
int bench_chaos(const struct bench_options *options, struct json_object *out);

uint64_t bench_now_ns(void);

/* splitmix64 (Steele, Lea, Flood 2014): the next number of a seeded stream. */
uint64_t bench_random(uint64_t *state);

/* A growing list of samples; quantiles sort it. */
struct samples {
        double *values;
        size_t count, capacity;
};
int samples_init(struct samples *samples, size_t capacity); /* -ENOMEM */
void samples_deinit(struct samples *samples);
void samples_add(struct samples *samples, double value);    /* dropped beyond capacity */
double samples_quantile(struct samples *samples, double q); /* nearest rank; 0 when empty */

/* The machine a run was made on: CPU model, CPUs, kernel. */
struct json_object *bench_machine(void);

#endif
