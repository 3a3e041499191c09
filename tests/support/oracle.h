/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test cases for the attention kernels, and what is right: float64 over the values as they are
 * stored.
 *
 * A case is a batch of sequences in a pool of pages. What a token holds depends on the seed, its
 * sequence, its position, head and dimension, and on nothing else, so that cases that differ only
 * in page size, placement, batch or poison hold the same keys, values and queries. Every f16 of the
 * pool that no sequence owns (free pages, tails, other layers, padding, side data) is the poison.
 */
#ifndef GPUMEM_TESTS_ORACLE_H
#define GPUMEM_TESTS_ORACLE_H

#include <stdbool.h>

#include "kernels/kernels.h"

#define ORACLE_POISON_NAN  0xffff
#define ORACLE_POISON_ZERO 0x0000

struct oracle_options {
        uint32_t kv_heads, group;    /* query heads = kv_heads * group */
        uint32_t key_dim, value_dim; /* value_dim = 0: as key_dim */
        uint32_t page_tokens;
        uint32_t sequences;
        const uint32_t *kv_len; /* [sequences] */
        const uint32_t *q_len;  /* [sequences]; NULL: one each, and args.q_indptr is NULL */
        const uint32_t
                *names; /* [sequences] what to draw a sequence's numbers from; NULL: its index */
        enum kernel_type q_type, out_type;
        uint16_t poison;
        uint32_t padding; /* page ids beyond its length in each sequence's table, all of them wrong
                           */
        bool shuffle;     /* pages in random places */
        bool share; /* full pages of sequence 0 stand in all others' tables, as far as they go */
        float key_gain; /* 0: 1 */
        uint64_t seed;
};

struct oracle_case {
        struct oracle_options options;
        struct kernel_attention args; /* operands for kernel_cpu_attention_*() */
        uint32_t q_tokens;
        size_t pool_bytes;
        uint16_t *pool;
        uint32_t *indptr, *indices, *kv_len, *q_indptr;
        void *q;
        float *out; /* room for f32; f16 if out_type says so */
        float *lse;
};

void oracle_case_init(struct oracle_case *c, const struct oracle_options *options);
void oracle_case_deinit(struct oracle_case *c);
/* Fills out and lse with a pattern that no kernel leaves behind. */
void oracle_case_reset(struct oracle_case *c);
size_t oracle_out_bytes(const struct oracle_case *c);
size_t oracle_lse_bytes(const struct oracle_case *c);
float oracle_out(const struct oracle_case *c, uint32_t token, uint32_t head, uint32_t d);
float oracle_lse(const struct oracle_case *c, uint32_t token, uint32_t head);

/* A sequence's stored key or value vector. */
uint16_t *oracle_vector(const struct oracle_case *c, uint32_t sequence, uint32_t position,
                        uint32_t head, bool value);
/* A query vector's element, and setting it. */
double oracle_q(const struct oracle_case *c, uint32_t token, uint32_t head, uint32_t d);
void oracle_q_set(struct oracle_case *c, uint32_t token, uint32_t head, uint32_t d, double value);

/*
 * How many elements of out and lse are not what float64 says, the first few printed. An element may
 * be off by eps * sum(p |v|) times 16 + 4 * the largest scale * sum |q k|: f32 rounds every product
 * and sum of a score, and an error of a score is a relative error of its weight; lse by 1e-3
 * (relative above 1). With out_type f16 half a last place more.
 */
unsigned oracle_errors(const struct oracle_case *c);

/* Conversions by the compiler's own type, where it has one. */
double oracle_f16_to_f64(uint16_t half);
uint16_t oracle_f32_to_f16(float value);

uint64_t oracle_random(uint64_t *state);

#endif
