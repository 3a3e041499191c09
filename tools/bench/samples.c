/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "tools/bench/bench.h"

uint64_t bench_now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t bench_random(uint64_t *state)
{
        uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

int samples_init(struct samples *samples, size_t capacity)
{
        *samples = (struct samples){.capacity = capacity};
        samples->values = malloc(capacity * sizeof(*samples->values));
        return samples->values ? 0 : -ENOMEM;
}

void samples_deinit(struct samples *samples)
{
        free(samples->values);
        *samples = (struct samples){0};
}

void samples_add(struct samples *samples, double value)
{
        if (samples->count < samples->capacity)
                samples->values[samples->count++] = value;
}

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

double samples_quantile(struct samples *samples, double q)
{
        size_t rank;

        if (samples->count == 0)
                return 0;
        qsort(samples->values, samples->count, sizeof(*samples->values), compare_doubles);
        rank = (size_t)ceil(q * (double)samples->count);
        if (rank > 0)
                rank--;
        if (rank >= samples->count)
                rank = samples->count - 1;
        return samples->values[rank];
}
