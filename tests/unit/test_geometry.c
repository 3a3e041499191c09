/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/geometry.c: how pages lie in units. */
#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/error.h"
#include "libclient/geometry.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static struct gpumem_kv_options options_of(uint32_t layers, uint32_t heads, uint32_t key_dim,
                                           uint32_t value_dim, uint32_t page_tokens)
{
        return (struct gpumem_kv_options){
                .size = sizeof(struct gpumem_kv_options),
                .layers = layers,
                .kv_heads = heads,
                .key_dim = key_dim,
                .value_dim = value_dim,
                .page_tokens = page_tokens,
                .max_sequences = 64,
                .max_sequence_tokens = 4096,
        };
}

static void test_known_shape(void)
{
        /* A 32-layer model with 8 KV heads of 128: 2 MiB a page of 16 tokens. */
        struct gpumem_kv_options options = options_of(32, 8, 128, 128, 16);
        struct geometry geometry;

        CU_ASSERT_EQUAL_FATAL(geometry_compute(&geometry, &options, 2 * MIB, 80 * GIB), 0);
        CU_ASSERT_EQUAL(geometry.layout.value_offset, 4096);
        CU_ASSERT_EQUAL(geometry.layout.head_stride, 8192);
        CU_ASSERT_EQUAL(geometry.layout.page_stride, 65536);
        CU_ASSERT_EQUAL(geometry.layout.page_bytes, 2 * MIB);
        CU_ASSERT_EQUAL(geometry.layout.unit_frames, 1);
        CU_ASSERT_EQUAL(geometry.layout.pages_per_unit, 1);
        CU_ASSERT_EQUAL(geometry.layout.slot_bits, 0);
        CU_ASSERT_EQUAL(geometry.layout.unit_remainder_bytes, 0);
        CU_ASSERT_EQUAL(geometry.layout.units_max, 64 * 256);
        CU_ASSERT_EQUAL(geometry.sequence_pages_max, 256);
}

/* The tile of every (unit, layer, slot, head) lies inside its unit, aligned, and no two overlap. */
static void test_tiles_are_disjoint(void)
{
        static const uint32_t shapes[][5] = {
                {3, 2, 8, 16, 16}, {5, 3, 24, 8, 32}, {2, 1, 128, 64, 64}, {7, 4, 40, 40, 16}};

        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
                struct gpumem_kv_options options = options_of(
                        shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], shapes[s][4]);
                struct gpumem_kv_geometry *l;
                struct geometry geometry;
                unsigned char *unit;
                uint64_t tiles = 0, bytes = 0;

                CU_ASSERT_EQUAL_FATAL(geometry_compute(&geometry, &options, 65536, GIB), 0);
                l = &geometry.layout;
                unit = calloc(1, geometry.unit_bytes);
                CU_ASSERT_PTR_NOT_NULL_FATAL(unit);
                for (uint32_t layer = 0; layer < l->layers; layer++)
                        for (uint32_t slot = 0; slot < l->pages_per_unit; slot++)
                                for (uint32_t head = 0; head < l->kv_heads; head++) {
                                        uint64_t at = layer * (uint64_t)l->layer_stride +
                                                      slot * (uint64_t)l->page_stride +
                                                      head * (uint64_t)l->head_stride;
                                        uint64_t key = (uint64_t)l->page_tokens * l->key_dim * 2;
                                        uint64_t value =
                                                (uint64_t)l->page_tokens * l->value_dim * 2;
                                        uint64_t v = at + (uint64_t)l->value_offset;

                                        CU_ASSERT_EQUAL(at % 128, 0);
                                        CU_ASSERT_EQUAL(v % 128, 0);
                                        CU_ASSERT_FATAL(v + value <= geometry.unit_bytes);
                                        CU_ASSERT(at + key <= v);
                                        for (uint64_t i = 0; i < key; i++)
                                                bytes += unit[at + i]++;
                                        for (uint64_t i = 0; i < value; i++)
                                                bytes += unit[v + i]++;
                                        tiles++;
                                }
                CU_ASSERT_EQUAL(bytes, 0); /* no byte was in two tiles */
                CU_ASSERT_EQUAL(tiles, (uint64_t)l->layers * l->pages_per_unit * l->kv_heads);
                CU_ASSERT_EQUAL(l->unit_remainder_bytes + l->pages_per_unit * l->page_bytes,
                                geometry.unit_bytes);
                /* One layer's consecutive pages are adjacent. */
                CU_ASSERT_EQUAL(l->layer_stride, l->page_stride * l->pages_per_unit);
                CU_ASSERT(l->pages_per_unit <= 1u << l->slot_bits);
                CU_ASSERT(l->slot_bits == 0 || l->pages_per_unit > 1u << (l->slot_bits - 1));
                free(unit);
        }
}

/* The smallest unit within the bound, against a search in floating point. */
static void test_unit_search(void)
{
        uint64_t seed = 20240611;

        printf("seed %llu ", (unsigned long long)seed);
        for (int i = 0; i < 20000; i++) {
                uint64_t frame, page;
                uint32_t permille, best, frames, expected = 0;

                seed = seed * 6364136223846793005u + 1442695040888963407u;
                frame = (UINT64_C(1) << (16 + (seed >> 60))) >> 4;
                page = ((seed >> 20) % (frame * 60)) / 128 * 128 + 128;
                permille = (uint32_t)(seed >> 50) % 30 + 1;
                frames = geometry_unit_frames(page, frame, permille, &best);
                for (uint32_t k = 1; k <= 253 && expected == 0; k++) {
                        uint64_t pages = k * frame / page;

                        if (pages > 0 &&
                            (k * frame - pages * page) * 1000 <= (uint64_t)permille * k * frame)
                                expected = k;
                }
                CU_ASSERT_EQUAL(frames, expected);
                CU_ASSERT_EQUAL(frames == 0, best > permille);
                /* With the default bound every page that fits finds a unit. */
                CU_ASSERT(page > 253 * frame || geometry_unit_frames(page, frame, 10, &best) != 0);
        }
}

static void test_limits(void)
{
        struct gpumem_kv_options good = options_of(4, 2, 64, 64, 16), options;
        struct geometry geometry;

        CU_ASSERT_EQUAL(geometry_compute(&geometry, &good, 2 * MIB, GIB), 0);
#define REFUSED(field, value, code)                                                                \
        options = good;                                                                            \
        options.field = value;                                                                     \
        CU_ASSERT_EQUAL(geometry_compute(&geometry, &options, 2 * MIB, GIB), code);                \
        CU_ASSERT_PTR_NOT_NULL(strstr(gpumem_error_message(), #field));
        REFUSED(layers, 0, GPUMEM_E_INVALID)
        REFUSED(layers, 1025, GPUMEM_E_INVALID)
        REFUSED(kv_heads, 0, GPUMEM_E_INVALID)
        REFUSED(kv_heads, 257, GPUMEM_E_INVALID)
        REFUSED(key_dim, 0, GPUMEM_E_INVALID)
        REFUSED(key_dim, 12, GPUMEM_E_INVALID)
        REFUSED(key_dim, 1032, GPUMEM_E_INVALID)
        REFUSED(value_dim, 7, GPUMEM_E_INVALID)
        REFUSED(page_tokens, 8, GPUMEM_E_INVALID)
        REFUSED(page_tokens, 48, GPUMEM_E_INVALID)
        REFUSED(page_tokens, 256, GPUMEM_E_INVALID)
        REFUSED(max_sequences, 0, GPUMEM_E_INVALID)
        REFUSED(max_sequences, 65537, GPUMEM_E_INVALID)
        REFUSED(max_sequence_tokens, 0, GPUMEM_E_INVALID)
        REFUSED(max_sequence_tokens, (1u << 24) + 1, GPUMEM_E_INVALID)
        REFUSED(remainder_permille, 1001, GPUMEM_E_INVALID)
        REFUSED(max_bytes, 4096, GPUMEM_E_INVALID)
        REFUSED(format, (enum gpumem_format)7, GPUMEM_E_INVALID)
#undef REFUSED
        /* A page that no message can carry the frames of. */
        options = options_of(1024, 256, 1024, 1024, 128);
        CU_ASSERT_EQUAL(geometry_compute(&geometry, &options, 2 * MIB, 80 * GIB), GPUMEM_E_INVALID);
        /* A unit that the device does not have. */
        options = options_of(64, 16, 256, 256, 128);
        CU_ASSERT_EQUAL(geometry_compute(&geometry, &options, 2 * MIB, 4 * MIB), GPUMEM_E_INVALID);
        /* More pages than ids: 2^29. */
        options = options_of(1, 1, 8, 8, 16);
        options.max_sequences = 65536;
        options.max_sequence_tokens = 1u << 24;
        CU_ASSERT_EQUAL(geometry_compute(&geometry, &options, 2 * MIB, UINT64_C(1) << 45),
                        GPUMEM_E_LIMIT);
        /* The same on a device that cannot hold them is fine: nothing beyond it is reserved. */
        CU_ASSERT_EQUAL(geometry_compute(&geometry, &options, 2 * MIB, GIB), 0);
        CU_ASSERT_EQUAL(geometry.range_bytes, GIB);
        CU_ASSERT_EQUAL(geometry_compute(&geometry, &options, 0, GIB), GPUMEM_E_LIMIT);
        CU_ASSERT_EQUAL(geometry_compute(&geometry, &options, UINT64_C(1) << 60, UINT64_MAX),
                        GPUMEM_E_LIMIT);
}

static void test_max_bytes(void)
{
        struct gpumem_kv_options options = options_of(4, 2, 64, 64, 16);
        struct geometry geometry;

        options.max_bytes = 7 * MIB;
        CU_ASSERT_EQUAL_FATAL(geometry_compute(&geometry, &options, 2 * MIB, GIB), 0);
        CU_ASSERT_EQUAL(geometry.layout.units_max, 3);
        CU_ASSERT_EQUAL(geometry.range_bytes, 6 * MIB);
        CU_ASSERT_EQUAL(geometry.pages_max, 3 * geometry.layout.pages_per_unit);
        /* More than the device has is the device. */
        options.max_bytes = 80 * GIB;
        CU_ASSERT_EQUAL_FATAL(geometry_compute(&geometry, &options, 2 * MIB, 9 * MIB), 0);
        CU_ASSERT_EQUAL(geometry.layout.units_max, 4);
}

/* C40: strides times indices beyond 32 bits are formed in 64. */
static void test_large_strides(void)
{
        struct gpumem_kv_options options = options_of(128, 16, 256, 256, 128);
        struct geometry geometry;

        CU_ASSERT_EQUAL_FATAL(geometry_compute(&geometry, &options, 16 * MIB, 1000 * GIB), 0);
        CU_ASSERT(geometry.layout.unit_stride > 0);
        CU_ASSERT_EQUAL(geometry.layout.page_bytes, UINT64_C(128) * 16 * 128 * 512 * 2);
        CU_ASSERT(geometry.range_bytes > UINT64_C(1) << 33);
        CU_ASSERT_EQUAL((uint64_t)geometry.layout.unit_stride, geometry.unit_bytes);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("geometry", NULL, NULL);
        CU_add_test(suite, "a known shape", test_known_shape);
        CU_add_test(suite, "tiles are inside, aligned, disjoint", test_tiles_are_disjoint);
        CU_add_test(suite, "smallest unit within the bound", test_unit_search);
        CU_add_test(suite, "limits name the field", test_limits);
        CU_add_test(suite, "max_bytes and the device bound the pool", test_max_bytes);
        CU_add_test(suite, "C40 strides beyond 32 bits", test_large_strides);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
