/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention kernels: one specification, several implementations.
 *
 * This header fixes what a kernel computes and how its operands lie in memory. kernels/cpu
 * implements it on host addresses; kernels/cuda implements it on device addresses. Kernels know
 * neither the driver nor the simulator: whoever dispatches them (libclient/attention.c) turns
 * device addresses into host ones.
 *
 * Determinism. On one instruction set a row's result (a row is one query token and one query head)
 * depends on its query, its position, and the keys and values it may see, and on nothing else: not
 * on the batch, the number of threads, the page size, the chunking, or whether decode or prefill
 * computed it. This holds because every implementation does the following in this order:
 *   1. The keys are cut into partials of GPUMEM_PARTIAL_TOKENS tokens at absolute positions
 *      (multiples of it), the last one ending at the row's own position.
 *   2. Inside a partial, scores s_j = scale * dot(q, k_j) are formed (the order of a dot product's
 *      additions depends on the head dimension only); the maximum m is taken; the weights are
 *      p_j = exp(s_j - m); their sum l is formed in 16 lanes (token j in lane j mod 16) that are
 *      folded at the end; the vector acc = sum of p_j v_j is formed in token order.
 *   3. Partials (m, l, acc) are merged one after the other in index order; out = acc / l at the
 *      end. An empty row (no visible key) gives out = 0 and lse = -inf.
 *
 * NaN and infinity. A NaN in a key that a row may see makes its out and lse NaN, a NaN in a value
 * that element of its out. A score of +inf gives NaN; one of -inf is the weight 0. Keys and values
 * that a row may not see never touch it: they are not multiplied by zero. Nothing outside the
 * sequences' tokens (tails of pages, other pages) is read at all. Infinite and NaN inputs of a KV
 * write: kernels/cpu/f16.h.
 */
#ifndef GPUMEM_KERNELS_H
#define GPUMEM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define GPUMEM_PARTIAL_TOKENS 128

/* Element type of a tensor beside the cache (queries, outputs, new keys and values). */
enum kernel_type {
        KERNEL_F32 = 0,
        KERNEL_F16 = 1,
};

/*
 * Where the KV of one class (format) lies. All strides in bytes, elements f16.
 *
 * - A K tile, K[page_tokens][key_dim], is at
 *   base + unit * unit_stride + layer * layer_stride + slot * page_stride + head * head_stride;
 * - its V tile, V[page_tokens][value_dim], is value_offset further.
 *
 * A page id is class (3 bits) | unit | slot (slot_bits) so that unit and slot are
 * (id & 0x1fffffff) >> slot_bits and id & ((1 << slot_bits) - 1). Every product with a stride is
 * formed in 64 bits.
 */
struct kernel_kv {
        unsigned char *base;
        int64_t unit_stride;
        int64_t layer_stride;
        int64_t page_stride;
        int64_t head_stride;
        int64_t value_offset;
        uint32_t slot_bits;
        uint32_t page_tokens; /* any positive number for these kernels; pools use 16, 32, 64, 128 */
        uint32_t kv_heads;
        uint32_t key_dim;   /* 1..256, a multiple of 8 */
        uint32_t value_dim; /* likewise */
};

/* KV write: token i of the new keys and values goes to page slot_mapping[i] / page_tokens at offset
 * slot_mapping[i] % page_tokens, rounded to nearest even; -1 skips the token. No slot may occur
 * twice. */
struct kernel_write {
        struct kernel_kv kv;
        uint32_t layer;
        uint32_t tokens;
        const int64_t *slot_mapping; /* [tokens] */
        enum kernel_type type;
        const void *key;                           /* [tokens][kv_heads][key_dim], strides below */
        const void *value;                         /* [tokens][kv_heads][value_dim] */
        int64_t key_token_stride, key_head_stride; /* bytes */
        int64_t value_token_stride, value_head_stride; /* bytes */
};

/*
 * Attention over a batch in CSR form. Sequence b has kv_len[b] tokens in pages
 * indices[indptr[b]..indptr[b+1]), of which the last q_indptr[b+1]-q_indptr[b] are the queries':
 * query i of sequence b stands at position kv_len[b] - q_len[b] + i and sees the keys 0..that
 * position (causal). kv_len = 0 with q_len > 0 is legal: the rows are empty. q_len > kv_len leaves
 * the first rows empty.
 */
struct kernel_attention {
        struct kernel_kv kv;
        uint32_t layer;
        uint32_t sequences;
        const uint32_t *indptr;   /* [sequences+1] */
        const uint32_t *indices;  /* [indptr[sequences]] page ids */
        const uint32_t *kv_len;   /* [sequences] */
        const uint32_t *q_indptr; /* [sequences+1]; NULL: one query each (decode) */
        uint32_t q_heads; /* a multiple of kv_heads; head h reads KV head h / (q_heads/kv_heads) */
        float scale;      /* usually 1/sqrt(key_dim) */
        enum kernel_type q_type;
        enum kernel_type out_type;
        const void *q; /* [q tokens][q_heads][key_dim] */
        void *out;     /* [q tokens][q_heads][value_dim] */
        float *lse;    /* [q tokens][q_heads], natural logarithm, may be NULL */
        int64_t q_token_stride, q_head_stride;     /* bytes */
        int64_t out_token_stride, out_head_stride; /* bytes */
};

/* Positive outcomes of kernel_*_check: what is wrong with the operands (0: nothing). A check reads
 * every host array once, before any work is started. */
enum kernel_check {
        KERNEL_OK = 0,
        KERNEL_E_SHAPE = 1,   /* a dimension, head count or type outside the limits above */
        KERNEL_E_INDPTR = 2,  /* indptr or q_indptr not monotone from 0 */
        KERNEL_E_LENGTH = 3,  /* kv_len exceeds the pages in the table */
        KERNEL_E_SLOT = 4,    /* slot_mapping below -1, or beyond the last page id */
        KERNEL_E_POINTER = 5, /* NULL or misaligned operand */
        KERNEL_E_PAGE = 6,    /* a page id within kv_len is 0xffffffff, which is never allocated */
};

int kernel_attention_check(const struct kernel_attention *args);
int kernel_write_check(const struct kernel_write *args);
const char *kernel_check_text(int check);

/* --- the CPU implementation -------------------------------------- */

/* A pool of worker threads. kernel_pool_run() may be called from several threads at once; the calls
 * take turns. It must not be called from inside fn. threads = 0: one per available CPU. The caller
 * works too: it is one of the threads. Workers block all signals but those a thread raises itself
 * (SIGSEGV and its like). A NULL pool runs everything on the caller. After fork() a pool is the
 * parent's alone. */
struct kernel_pool;
int kernel_pool_new(struct kernel_pool **out, unsigned threads); /* 0 or -errno */
struct kernel_pool *kernel_pool_free(struct kernel_pool *pool);
unsigned kernel_pool_threads(const struct kernel_pool *pool);
/* Calls fn(arg, i) for every i in 0..count-1, in any order and on any thread, and returns when all
 * are done. */
void kernel_pool_run(struct kernel_pool *pool, void (*fn)(void *arg, size_t i), void *arg,
                     size_t count);

enum kernel_isa {
        KERNEL_ISA_PORTABLE = 0,
        KERNEL_ISA_AVX512 = 2, /* 1 is kept for AVX2 */
};

/* The instruction set in use: the best this machine has, or the one that the environment variable
 * GPUMEM_CPU_ISA (portable, avx512) names, if the machine has it. Decided once. */
enum kernel_isa kernel_cpu_isa(void);
/* Does GPUMEM_CPU_ISA, if it is set, name one of them? NULL: yes; otherwise what it says instead.
 * (A name that this machine does not have is no mistake: it gets the best it has.) */
const char *kernel_cpu_isa_mistake(void);
#define KERNEL_ISA_NAMES "portable or avx512"
const char *kernel_isa_name(enum kernel_isa isa);

/* The operands must have passed the check. pool may be NULL: the calling thread does it all.
 * Scratch memory is allocated inside; -ENOMEM leaves out untouched. Decode and prefill compute the
 * same function; they differ in how work is cut up: decode over (sequence, KV head, partials),
 * prefill over query tiles. Either accepts any q_len. */
int kernel_cpu_kv_write(struct kernel_pool *pool, const struct kernel_write *args);
int kernel_cpu_attention_decode(struct kernel_pool *pool, const struct kernel_attention *args);
int kernel_cpu_attention_prefill(struct kernel_pool *pool, const struct kernel_attention *args);

/* The same with a chosen instruction set, for tests; -EOPNOTSUPP if the machine lacks it. */
int kernel_cpu_kv_write_isa(enum kernel_isa isa, struct kernel_pool *pool,
                            const struct kernel_write *args);
int kernel_cpu_attention_decode_isa(enum kernel_isa isa, struct kernel_pool *pool,
                                    const struct kernel_attention *args);
int kernel_cpu_attention_prefill_isa(enum kernel_isa isa, struct kernel_pool *pool,
                                     const struct kernel_attention *args);

#endif
