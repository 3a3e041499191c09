/* SPDX-License-Identifier: Apache-2.0 */
/* KV write: new keys and values go to their pages. */
#include <errno.h>

#include "kernels/cpu/address.h"
#include "kernels/cpu/tile.h"

/* Elements below which a second thread costs more than it saves. */
#define WRITE_ELEMENTS_PER_LANE 16384
#define WRITE_TOKENS_PER_ITEM   16

struct write_job {
        const struct kernel_write *args;
        const struct kernel_tile_ops *ops;
};

static const void *at(const void *base, uint32_t token, int64_t token_stride, uint32_t head,
                      int64_t head_stride)
{
        return (const char *)base + ((int64_t)token * token_stride + (int64_t)head * head_stride);
}

static void write_token(const struct write_job *job, uint32_t token)
{
        const struct kernel_write *args = job->args;
        const struct kernel_kv *kv = &args->kv;
        int64_t slot = args->slot_mapping[token];
        uint32_t page;
        int64_t offset;

        if (slot < 0)
                return;
        page = (uint32_t)(slot / kv->page_tokens);
        offset = slot % kv->page_tokens;
        for (uint32_t head = 0; head < kv->kv_heads; head++) {
                unsigned char *tile = kernel_key_tile(kv, args->layer, page, head);
                uint16_t *key = (uint16_t *)(void *)tile + offset * kv->key_dim;
                uint16_t *value =
                        (uint16_t *)(void *)(tile + kv->value_offset) + offset * kv->value_dim;

                job->ops->narrow(
                        key,
                        at(args->key, token, args->key_token_stride, head, args->key_head_stride),
                        args->type, kv->key_dim);
                job->ops->narrow(value,
                                 at(args->value, token, args->value_token_stride, head,
                                    args->value_head_stride),
                                 args->type, kv->value_dim);
        }
}

static void write_item(void *arg, unsigned lane, size_t i)
{
        struct write_job *job = arg;
        uint64_t first = (uint64_t)i * WRITE_TOKENS_PER_ITEM;

        (void)lane;
        for (uint64_t t = first; t < first + WRITE_TOKENS_PER_ITEM && t < job->args->tokens; t++)
                write_token(job, (uint32_t)t);
}

int kernel_cpu_kv_write_isa(enum kernel_isa isa, struct kernel_pool *pool,
                            const struct kernel_write *args)
{
        struct write_job job = {.args = args, .ops = kernel_tile_ops(isa)};
        size_t items = ((size_t)args->tokens + WRITE_TOKENS_PER_ITEM - 1) / WRITE_TOKENS_PER_ITEM;
        uint64_t elements = (uint64_t)args->tokens * args->kv.kv_heads *
                            (args->kv.key_dim + args->kv.value_dim);
        uint64_t lanes = elements / WRITE_ELEMENTS_PER_LANE + 1;
        unsigned threads = kernel_pool_threads(pool);

        if (!job.ops)
                return -EOPNOTSUPP;
        kernel_lanes_run(pool, lanes < threads ? (unsigned)lanes : threads, write_item, &job,
                         items);
        return 0;
}

int kernel_cpu_kv_write(struct kernel_pool *pool, const struct kernel_write *args)
{
        return kernel_cpu_kv_write_isa(kernel_cpu_isa(), pool, args);
}
