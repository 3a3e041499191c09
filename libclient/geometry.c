/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "libclient/error.h"
#include "libclient/geometry.h"

static uint64_t align_up(uint64_t bytes)
{
        return (bytes + GEOMETRY_ALIGNMENT - 1) / GEOMETRY_ALIGNMENT * GEOMETRY_ALIGNMENT;
}

static int check_range(const char *field, uint64_t value, uint64_t low, uint64_t high)
{
        if (value >= low && value <= high)
                return 0;
        return client_error(GPUMEM_E_INVALID, "%s is %" PRIu64 "; it must be %" PRIu64 "..%" PRIu64,
                            field, value, low, high);
}

static int check_dim(const char *field, uint32_t value)
{
        int r = check_range(field, value, 8, GEOMETRY_DIM_MAX);

        if (r < 0)
                return r;
        if (value % 8 != 0)
                return client_error(GPUMEM_E_INVALID, "%s is %u; it must be a multiple of 8", field,
                                    value);
        return 0;
}

static int check_options(const struct gpumem_kv_options *options)
{
        int r;

        if ((r = check_range("layers", options->layers, 1, GEOMETRY_LAYERS_MAX)) < 0 ||
            (r = check_range("kv_heads", options->kv_heads, 1, GEOMETRY_KV_HEADS_MAX)) < 0 ||
            (r = check_dim("key_dim", options->key_dim)) < 0 ||
            (r = check_dim("value_dim", options->value_dim)) < 0 ||
            (r = check_range("max_sequences", options->max_sequences, 1, GEOMETRY_SEQUENCES_MAX)) <
                    0 ||
            (r = check_range("max_sequence_tokens", options->max_sequence_tokens, 1,
                             GEOMETRY_TOKENS_MAX)) < 0 ||
            (r = check_range("remainder_permille", options->remainder_permille, 0, 1000)) < 0)
                return r;
        if (options->format != GPUMEM_FORMAT_F16)
                return client_error(GPUMEM_E_INVALID, "format %d is not one of this release",
                                    (int)options->format);
        switch (options->page_tokens) {
        case 0:
        case 16:
        case 32:
        case 64:
        case 128:
                return 0;
        default:
                return client_error(GPUMEM_E_INVALID,
                                    "page_tokens is %u; it must be 16, 32, 64 or 128",
                                    options->page_tokens);
        }
}

uint32_t geometry_unit_frames(uint64_t page_bytes, uint64_t frame_bytes,
                              uint32_t remainder_permille, uint32_t *best_permille)
{
        uint32_t best = 1001;

        if (page_bytes == 0 || frame_bytes == 0) {
                *best_permille = best;
                return 0;
        }
        for (uint32_t frames = 1; frames <= GEOMETRY_UNIT_FRAMES_MAX; frames++) {
                uint64_t unit = frames * frame_bytes;
                uint64_t remainder = unit % page_bytes;
                uint32_t share;

                if (unit < page_bytes)
                        continue;
                /* Rounded up: "within the bound" is exact. */
                share = (uint32_t)(((unsigned __int128)remainder * 1000 + unit - 1) / unit);
                if (share < best)
                        best = share;
                if (share <= remainder_permille) {
                        *best_permille = share;
                        return frames;
                }
        }
        *best_permille = best;
        return 0;
}

static uint32_t bits_for(uint64_t count)
{
        uint32_t bits = 0;

        while ((UINT64_C(1) << bits) < count)
                bits++;
        return bits;
}

int geometry_compute(struct geometry *out, const struct gpumem_kv_options *options,
                     uint64_t frame_bytes, uint64_t device_bytes)
{
        struct gpumem_kv_geometry *layout = &out->layout;
        uint64_t key_tile, value_tile, units, units_wanted;
        uint32_t permille, best;
        int r;

        memset(out, 0, sizeof(*out));
        r = check_options(options);
        if (r < 0)
                return r;
        permille = options->remainder_permille ? options->remainder_permille
                                               : GEOMETRY_REMAINDER_PERMILLE;

        layout->layers = options->layers;
        layout->kv_heads = options->kv_heads;
        layout->key_dim = options->key_dim;
        layout->value_dim = options->value_dim;
        layout->page_tokens = options->page_tokens ? options->page_tokens : 16;
        layout->frame_bytes = frame_bytes;
        layout->page_class = 0;
        out->page_shift = bits_for(layout->page_tokens);
        out->sequence_pages_max =
                (options->max_sequence_tokens + layout->page_tokens - 1) >> out->page_shift;

        /* Within the limits above a page has at most 2^39 bytes. */
        key_tile = align_up((uint64_t)layout->page_tokens * layout->key_dim * 2);
        value_tile = align_up((uint64_t)layout->page_tokens * layout->value_dim * 2);
        layout->value_offset = (int64_t)key_tile;
        layout->head_stride = (int64_t)(key_tile + value_tile);
        layout->page_stride = layout->head_stride * layout->kv_heads;
        layout->page_bytes = (uint64_t)layout->page_stride * layout->layers;

        if (layout->page_bytes == 0 || frame_bytes == 0 ||
            frame_bytes > GEOMETRY_RANGE_BYTES_MAX / GEOMETRY_UNIT_FRAMES_MAX)
                return client_error(GPUMEM_E_LIMIT, "a frame of %" PRIu64 " bytes is not usable",
                                    frame_bytes);
        layout->unit_frames =
                geometry_unit_frames(layout->page_bytes, frame_bytes, permille, &best);
        if (layout->unit_frames == 0 && best > 1000)
                return client_error(GPUMEM_E_INVALID,
                                    "a page of %u tokens has %" PRIu64
                                    " bytes, more than the largest unit of %u frames of %" PRIu64
                                    " bytes; use a smaller page_tokens",
                                    layout->page_tokens, layout->page_bytes,
                                    GEOMETRY_UNIT_FRAMES_MAX, frame_bytes);
        if (layout->unit_frames == 0)
                return client_error(GPUMEM_E_INVALID,
                                    "remainder_permille is %u; with pages of %" PRIu64
                                    " bytes and frames of %" PRIu64
                                    " bytes the smallest possible is %u",
                                    permille, layout->page_bytes, frame_bytes, best);

        out->unit_bytes = layout->unit_frames * frame_bytes;
        layout->pages_per_unit = 0;
        if (out->unit_bytes / layout->page_bytes > GPUMEM_PAGE_INDEX_MASK)
                return client_error(GPUMEM_E_LIMIT, "more pages in a unit than page ids");
        layout->pages_per_unit = (uint32_t)(out->unit_bytes / layout->page_bytes);
        layout->unit_remainder_bytes =
                out->unit_bytes - layout->pages_per_unit * layout->page_bytes;
        layout->slot_bits = bits_for(layout->pages_per_unit);
        layout->layer_stride = layout->page_stride * layout->pages_per_unit;
        layout->unit_stride = (int64_t)out->unit_bytes;

        /* At most 2^16 sequences of at most 2^20 pages. */
        units_wanted = ((uint64_t)options->max_sequences * out->sequence_pages_max +
                        layout->pages_per_unit - 1) /
                       layout->pages_per_unit;
        if (options->max_bytes != 0) {
                units_wanted = options->max_bytes / out->unit_bytes;
                if (units_wanted == 0)
                        return client_error(GPUMEM_E_INVALID,
                                            "max_bytes is %" PRIu64 ", less than one unit of "
                                            "%" PRIu64 " bytes",
                                            options->max_bytes, out->unit_bytes);
        }
        units = device_bytes / out->unit_bytes;
        if (units == 0)
                return client_error(GPUMEM_E_INVALID,
                                    "one unit of this pool has %" PRIu64
                                    " bytes, the device only %" PRIu64,
                                    out->unit_bytes, device_bytes);
        if (units > units_wanted)
                units = units_wanted;

        /* No id may be GPUMEM_PAGE_NONE; that could only be the last page of class 7. */
        if (units > (UINT64_C(1) << (GPUMEM_PAGE_CLASS_SHIFT - layout->slot_bits)))
                return client_error(GPUMEM_E_LIMIT,
                                    "%" PRIu64 " units of %u pages are more than page ids can "
                                    "name; use a larger page_tokens, or a smaller max_bytes",
                                    units, layout->pages_per_unit);
        if (units > GEOMETRY_RANGE_BYTES_MAX / out->unit_bytes)
                return client_error(GPUMEM_E_LIMIT,
                                    "%" PRIu64 " units of %" PRIu64
                                    " bytes need more addresses than a process has",
                                    units, out->unit_bytes);
        layout->units_max = (uint32_t)units;
        out->range_bytes = units * out->unit_bytes;
        out->pages_max = units * layout->pages_per_unit;
        return 0;
}
