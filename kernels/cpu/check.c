/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels rely on, checked before any work. A table shorter than its kv_len is refused
 * here: a kernel would read past a row's end (C41), and whatever page id it found there it would
 * follow.
 */
#include <stdbool.h>

#include "kernels/cpu/address.h"

#define HEADS_LIMIT 65536

static bool dimension_ok(uint32_t dim)
{
        return dim >= 8 && dim <= 256 && dim % 8 == 0;
}

static uint32_t type_size(enum kernel_type type)
{
        return type == KERNEL_F16 ? 2 : 4;
}

static bool type_ok(enum kernel_type type)
{
        return type == KERNEL_F32 || type == KERNEL_F16;
}

static bool aligned(const void *pointer, uint32_t size)
{
        return (uintptr_t)pointer % size == 0;
}

static int kv_check(const struct kernel_kv *kv)
{
        int64_t strides = kv->unit_stride | kv->layer_stride | kv->page_stride | kv->head_stride |
                          kv->value_offset;

        if (!kv->base || !aligned(kv->base, 2))
                return KERNEL_E_POINTER;
        if (!dimension_ok(kv->key_dim) || !dimension_ok(kv->value_dim) || kv->page_tokens == 0 ||
            kv->kv_heads == 0 || kv->kv_heads > HEADS_LIMIT ||
            kv->slot_bits > KERNEL_PAGE_INDEX_BITS || strides % 2 != 0)
                return KERNEL_E_SHAPE;
        return KERNEL_OK;
}

static bool offsets_ok(const uint32_t *offsets, uint32_t count)
{
        if (offsets[0] != 0)
                return false;
        for (uint32_t i = 0; i < count; i++)
                if (offsets[i + 1] < offsets[i])
                        return false;
        return true;
}

int kernel_attention_check(const struct kernel_attention *args)
{
        uint32_t size_q, size_out, tokens;
        int r;

        if (!args)
                return KERNEL_E_POINTER;
        r = kv_check(&args->kv);
        if (r != KERNEL_OK)
                return r;
        if (!type_ok(args->q_type) || !type_ok(args->out_type) || args->q_heads == 0 ||
            args->q_heads > HEADS_LIMIT || args->q_heads % args->kv.kv_heads != 0)
                return KERNEL_E_SHAPE;
        size_q = type_size(args->q_type);
        size_out = type_size(args->out_type);
        if (args->q_token_stride % size_q != 0 || args->q_head_stride % size_q != 0 ||
            args->out_token_stride % size_out != 0 || args->out_head_stride % size_out != 0)
                return KERNEL_E_SHAPE;
        if (args->sequences == 0)
                return KERNEL_OK;
        if (!args->indptr || !args->kv_len)
                return KERNEL_E_POINTER;
        if (!offsets_ok(args->indptr, args->sequences) ||
            (args->q_indptr && !offsets_ok(args->q_indptr, args->sequences)))
                return KERNEL_E_INDPTR;

        tokens = args->q_indptr ? args->q_indptr[args->sequences] : args->sequences;
        if (tokens > 0 && (!args->q || !args->out || !aligned(args->q, size_q) ||
                           !aligned(args->out, size_out) || !aligned(args->lse, sizeof(float))))
                return KERNEL_E_POINTER;
        for (uint32_t b = 0; b < args->sequences; b++) {
                uint64_t pages = args->indptr[b + 1] - args->indptr[b];
                uint64_t used = ((uint64_t)args->kv_len[b] + args->kv.page_tokens - 1) /
                                args->kv.page_tokens;

                if (used > pages)
                        return KERNEL_E_LENGTH;
                if (used > 0 && !args->indices)
                        return KERNEL_E_POINTER;
                for (uint64_t i = 0; i < used; i++)
                        if (args->indices[args->indptr[b] + i] == KERNEL_PAGE_NONE)
                                return KERNEL_E_PAGE;
        }
        return KERNEL_OK;
}

int kernel_write_check(const struct kernel_write *args)
{
        uint32_t size;
        int r;

        if (!args)
                return KERNEL_E_POINTER;
        r = kv_check(&args->kv);
        if (r != KERNEL_OK)
                return r;
        if (!type_ok(args->type))
                return KERNEL_E_SHAPE;
        size = type_size(args->type);
        if (args->key_token_stride % size != 0 || args->key_head_stride % size != 0 ||
            args->value_token_stride % size != 0 || args->value_head_stride % size != 0)
                return KERNEL_E_SHAPE;
        if (args->tokens == 0)
                return KERNEL_OK;
        if (!args->slot_mapping || !args->key || !args->value || !aligned(args->key, size) ||
            !aligned(args->value, size))
                return KERNEL_E_POINTER;
        for (uint32_t i = 0; i < args->tokens; i++)
                if (args->slot_mapping[i] < -1 ||
                    args->slot_mapping[i] / args->kv.page_tokens >= KERNEL_PAGE_NONE)
                        return KERNEL_E_SLOT;
        return KERNEL_OK;
}

const char *kernel_check_text(int check)
{
        switch (check) {
        case KERNEL_OK:
                return "fine";
        case KERNEL_E_SHAPE:
                return "a dimension, head count, stride or type is outside the limits";
        case KERNEL_E_INDPTR:
                return "offsets do not rise from 0";
        case KERNEL_E_LENGTH:
                return "a sequence is longer than its pages";
        case KERNEL_E_SLOT:
                return "a slot is below -1 or beyond the last page id";
        case KERNEL_E_POINTER:
                return "an operand is missing or misaligned";
        case KERNEL_E_PAGE:
                return "a page id within a sequence's length is none";
        }
        return "unknown";
}
