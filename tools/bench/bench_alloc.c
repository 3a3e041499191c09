/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page allocation and free, measured at the allocator (libclient/page_allocator.h): a pool takes
 * its lock once a batch, not once a page, and does no system call.
 *
 * Expected before measuring: LIFO use stays in two hot cache lines, some 10 ns whatever the pool's
 * size. Random use frees a page and takes one: the freed page's unit and the unit the next one
 * comes from, with two bits a page beside the unit's head; at 1M pages these are 512 KiB and come
 * from the second-level cache where it is that large. `touch_ns` measures just that, reading and
 * writing the same lines of an equal array in the same random order: what the allocator costs
 * beyond it is its own work, which must not grow with the pool.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "libclient/page_allocator.h"
#include "tools/bench/bench.h"

#define BATCH     16
#define SLOT_BITS 6
#define PER_UNIT  (1u << SLOT_BITS)

struct figures {
        double lifo_median, lifo_p99;
        double random_median, random_p99;
        double touch_median;
};

static int fill(struct page_allocator *allocator, uint32_t units, uint32_t *held, size_t count)
{
        for (uint32_t unit = 0; unit < units; unit++)
                if (page_allocator_add_unit(allocator, unit) < 0)
                        return -EINVAL;
        for (size_t i = 0; i < count; i++) {
                held[i] = page_allocator_alloc(allocator);
                if (held[i] == GPUMEM_PAGE_NONE)
                        return -ENOSPC;
        }
        return 0;
}

static void measure_lifo(struct page_allocator *allocator, size_t batches, struct samples *samples)
{
        for (size_t b = 0; b < batches; b++) {
                uint64_t start = bench_now_ns();

                for (int i = 0; i < BATCH; i++) {
                        uint32_t page = page_allocator_alloc(allocator);

                        page_allocator_release(allocator, page, 0);
                }
                samples_add(samples, (double)(bench_now_ns() - start) / BATCH);
        }
}

/* BATCH different held pages, and where they stand in `held`. */
static void draw(const uint32_t *held, size_t count, uint64_t *seed, size_t *victims,
                 uint32_t *pages)
{
        for (int i = 0; i < BATCH; i++) {
                bool again;

                do {
                        again = false;
                        victims[i] = bench_random(seed) % count;
                        for (int j = 0; j < i; j++)
                                again |= victims[j] == victims[i];
                } while (again);
                pages[i] = held[victims[i]];
        }
}

/* Frees a random held page and takes another in its place; which ones is drawn before the clock
 * starts. */
static void measure_random(struct page_allocator *allocator, uint32_t *held, size_t count,
                           size_t batches, uint64_t *seed, struct samples *samples)
{
        size_t victims[BATCH];
        uint32_t pages[BATCH];

        for (size_t b = 0; b < batches; b++) {
                uint64_t start;

                draw(held, count, seed, victims, pages);
                start = bench_now_ns();
                for (int i = 0; i < BATCH; i++) {
                        page_allocator_release(allocator, pages[i], 0);
                        pages[i] = page_allocator_alloc(allocator);
                }
                samples_add(samples, (double)(bench_now_ns() - start) / BATCH);
                for (int i = 0; i < BATCH; i++)
                        held[victims[i]] = pages[i];
        }
}

/* The same lines in the same order without the allocator: the victim's unit and its page's bits. */
static int measure_touch(const struct page_allocator *allocator, const uint32_t *held, size_t count,
                         size_t batches, uint64_t *seed, struct samples *samples)
{
        struct page_allocator copy = *allocator;
        volatile uint64_t sink = 0;
        size_t victims[BATCH];
        uint32_t drawn[BATCH];

        copy.units = calloc(allocator->units_max, allocator->unit_size);
        if (!copy.units)
                return -ENOMEM;
        for (size_t b = 0; b < batches; b++) {
                uint64_t start;

                draw(held, count, seed, victims, drawn);
                start = bench_now_ns();
                for (int i = 0; i < BATCH; i++) {
                        struct page_unit *unit = page_allocator_unit(&copy, drawn[i] >> SLOT_BITS);
                        struct page_group *group = page_allocator_group(&copy, unit, 0);

                        unit->held++;
                        group->used ^= UINT64_C(1) << drawn[i] % PER_UNIT;
                        sink = sink + group->more;
                }
                samples_add(samples, (double)(bench_now_ns() - start) / BATCH);
        }
        free(copy.units);
        return 0;
}

static int measure(uint32_t pages, const struct bench_options *options, struct figures *out)
{
        size_t batches = options->quick ? 2000 : 60000;
        size_t count = (size_t)pages * 9 / 10;
        uint32_t units = pages / PER_UNIT;
        struct page_allocator allocator = {0};
        struct samples lifo = {0}, random = {0}, touch = {0}, warm = {0};
        uint64_t seed = options->seed;
        uint32_t *held = malloc(count * sizeof(*held));
        int error = held ? page_allocator_init(&allocator, units, PER_UNIT, SLOT_BITS, 0) : -ENOMEM;

        if (error == 0)
                error = fill(&allocator, units, held, count);
        if (error == 0)
                error = samples_init(&lifo, batches);
        if (error == 0)
                error = samples_init(&random, batches);
        if (error == 0)
                error = samples_init(&touch, batches);
        if (error == 0)
                error = samples_init(&warm, 1);
        if (error == 0) {
                /* Steady state: every page has changed hands a few times before the clock runs. */
                measure_random(&allocator, held, count, 4 * (size_t)pages / BATCH, &seed, &warm);
                measure_random(&allocator, held, count, batches, &seed, &random);
                measure_lifo(&allocator, batches, &lifo);
                error = measure_touch(&allocator, held, count, batches, &seed, &touch);
        }
        if (error == 0 && page_allocator_check(&allocator) < 0)
                error = -EUCLEAN;
        if (error == 0)
                *out = (struct figures){
                        .lifo_median = samples_quantile(&lifo, 0.5),
                        .lifo_p99 = samples_quantile(&lifo, 0.99),
                        .random_median = samples_quantile(&random, 0.5),
                        .random_p99 = samples_quantile(&random, 0.99),
                        .touch_median = samples_quantile(&touch, 0.5),
                };
        samples_deinit(&lifo);
        samples_deinit(&random);
        samples_deinit(&touch);
        samples_deinit(&warm);
        page_allocator_deinit(&allocator);
        free(held);
        return error;
}

static double larger(double a, double b)
{
        return a > b ? a : b;
}

int bench_alloc(const struct bench_options *options, struct json_object *out)
{
        static const uint32_t sizes[] = {1024, 32768, 1048576};
        struct json_object *parameters = json_object_new_object();
        struct json_object *list = json_object_new_array();
        double lifo = 0, random = 0, p99 = 0;

        json_object_object_add(parameters, "batch", json_object_new_int(BATCH));
        json_object_object_add(parameters, "pages_per_unit", json_object_new_int(PER_UNIT));
        json_object_object_add(parameters, "random_fill", json_object_new_double(0.9));
        json_object_object_add(out, "parameters", parameters);
        json_object_object_add(out, "sizes", list);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                struct json_object *entry;
                struct figures figures = {0};
                int error = measure(sizes[i], options, &figures);

                if (error < 0) {
                        fprintf(stderr, "gpumem-bench alloc: %u pages: error %d\n", sizes[i],
                                error);
                        return error;
                }
                entry = json_object_new_object();
                json_object_object_add(entry, "pages", json_object_new_int64(sizes[i]));
                json_object_object_add(entry, "lifo_median_ns",
                                       json_object_new_double(figures.lifo_median));
                json_object_object_add(entry, "lifo_p99_ns",
                                       json_object_new_double(figures.lifo_p99));
                json_object_object_add(entry, "random_median_ns",
                                       json_object_new_double(figures.random_median));
                json_object_object_add(entry, "random_p99_ns",
                                       json_object_new_double(figures.random_p99));
                json_object_object_add(entry, "touch_ns",
                                       json_object_new_double(figures.touch_median));
                json_object_object_add(
                        entry, "random_over_touch",
                        json_object_new_double(figures.random_median / figures.touch_median));
                json_object_array_add(list, entry);
                lifo = larger(lifo, figures.lifo_median);
                random = larger(random, figures.random_median);
                p99 = larger(p99, larger(figures.lifo_p99, figures.random_p99));
        }
        /* The worst of the sizes. */
        json_object_object_add(out, "lifo_median_ns", json_object_new_double(lifo));
        json_object_object_add(out, "random_median_ns", json_object_new_double(random));
        json_object_object_add(out, "p99_ns", json_object_new_double(p99));
        return 0;
}
