/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch of the kernels: operands are checked on the host, device addresses become host ones
 * where the driver has them, and the work is put on the stream as a host function, so that it runs
 * in stream order on the session's kernel threads. Where the driver has no host addresses there is
 * no kernel yet.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/batch.h"
#include "libclient/error.h"
#include "libclient/operand.h"

struct kernel_job {
        struct gpumem_batch *batch; /* a reference: its arrays are the kernel's */
        struct kernel_pool *kernels;
        int (*attention)(struct kernel_pool *pool, const struct kernel_attention *args);
        struct kernel_attention attention_args;
        struct kernel_write write_args; /* if attention is NULL */
};

static void run_job(void *userdata)
{
        struct kernel_job *job = userdata;
        struct gpumem_kv *kv = job->batch->kv;
        int r;

        if (job->attention)
                r = job->attention(job->kernels, &job->attention_args);
        else
                r = kernel_cpu_kv_write(job->kernels, &job->write_args);
        if (r < 0)
                atomic_store(&kv->kernel_error, r);
        batch_unreference(job->batch);
        free(job);
        /* Last: kv_destroy() waits for it. */
        atomic_fetch_sub(&kv->kernels_queued, 1);
}

/* Puts the job on the stream; it is the stream's then, or freed. */
static int launch(struct kernel_job *job, gpumem_stream stream)
{
        struct gpumem_kv *kv = job->batch->kv;
        const struct driver *driver = kv->session->driver;
        CUresult result;
        int r;

        CONTEXT_SCOPE(scope, driver, kv->session->context);
        if (scope.result != CUDA_SUCCESS) {
                free(job);
                return client_error_driver(driver, scope.result, "cuCtxPushCurrent");
        }
        r = session_kernels(kv->session, &job->kernels);
        if (r < 0) {
                free(job);
                return r;
        }
        batch_reference(job->batch);
        atomic_fetch_add(&kv->kernels_queued, 1);
        result = driver->launch_host_func(stream, run_job, job);
        if (result == CUDA_SUCCESS)
                return 0;
        atomic_fetch_sub(&kv->kernels_queued, 1);
        batch_unreference(job->batch);
        free(job);
        return client_error_driver(driver, result, "cuLaunchHostFunc");
}

static int check_batch(const struct gpumem_batch *batch, uint32_t layer)
{
        const struct gpumem_kv_geometry *layout;
        int r;

        r = kv_check(batch->kv);
        if (r < 0)
                return r;
        layout = &batch->kv->geometry.layout;
        if (!batch->kv->session->driver->host_view)
                return client_error(GPUMEM_E_UNSUPPORTED,
                                    "no attention kernels exist for the %s driver in this release; "
                                    "they run on the simulated driver only",
                                    driver_kind_name(batch->kv->session->driver->kind));
        if (layout->key_dim > 256 || layout->value_dim > 256)
                return client_error(GPUMEM_E_UNSUPPORTED,
                                    "the kernels take head dimensions up to 256; the pool has %u "
                                    "and %u",
                                    layout->key_dim, layout->value_dim);
        if (layer >= layout->layers)
                return client_error(GPUMEM_E_INVALID, "layer is %u; the pool has %u", layer,
                                    layout->layers);
        return 0;
}

static struct kernel_kv describe_kv(const struct gpumem_kv *kv)
{
        const struct gpumem_kv_geometry *layout = &kv->geometry.layout;

        return (struct kernel_kv){
                .base = kv->session->driver->host_view(layout->base, kv->geometry.range_bytes),
                .unit_stride = layout->unit_stride,
                .layer_stride = layout->layer_stride,
                .page_stride = layout->page_stride,
                .head_stride = layout->head_stride,
                .value_offset = layout->value_offset,
                .slot_bits = layout->slot_bits,
                .page_tokens = layout->page_tokens,
                .kv_heads = layout->kv_heads,
                .key_dim = layout->key_dim,
                .value_dim = layout->value_dim,
        };
}

static int check_failed(int check)
{
        return client_error(GPUMEM_E_INVALID, "%s", kernel_check_text(check));
}

GPUMEM_API int gpumem_kv_write(struct gpumem_batch *batch, uint32_t layer,
                               const struct gpumem_tensor *key, const struct gpumem_tensor *value,
                               gpumem_stream stream)
{
        const struct gpumem_kv_geometry *layout;
        struct gpumem *session;
        struct operand key_operand, value_operand;
        struct kernel_job *job;
        int r;

        if (!batch || !key || !value)
                return client_error(GPUMEM_E_INVALID, "batch, key or value is NULL");
        r = check_batch(batch, layer);
        if (r < 0)
                return r;
        if (batch->view.tokens == 0)
                return 0;
        layout = &batch->kv->geometry.layout;
        session = batch->kv->session;
        if (key->heads != layout->kv_heads || value->heads != layout->kv_heads)
                return client_error(GPUMEM_E_INVALID,
                                    "key and value have %u and %u heads; the pool has %u",
                                    key->heads, value->heads, layout->kv_heads);
        if (key->type != value->type)
                return client_error(GPUMEM_E_INVALID, "key and value must have one type");
        r = operand_resolve(&key_operand, session, "key", key, batch->view.tokens, layout->key_dim);
        if (r < 0)
                return r;
        r = operand_resolve(&value_operand, session, "value", value, batch->view.tokens,
                            layout->value_dim);
        if (r < 0)
                return r;
        job = calloc(1, sizeof(*job));
        if (!job)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a kernel");
        job->batch = batch;
        job->write_args = (struct kernel_write){
                .kv = describe_kv(batch->kv),
                .layer = layer,
                .tokens = batch->view.tokens,
                .slot_mapping = batch->view.slot_mapping,
                .type = key_operand.type,
                .key = key_operand.data,
                .value = value_operand.data,
                .key_token_stride = key_operand.token_stride,
                .key_head_stride = key_operand.head_stride,
                .value_token_stride = value_operand.token_stride,
                .value_head_stride = value_operand.head_stride,
        };
        r = kernel_write_check(&job->write_args);
        if (r != KERNEL_OK) {
                free(job);
                return check_failed(r);
        }
        return launch(job, stream);
}

static int attend(struct gpumem_batch *batch, uint32_t layer, const struct gpumem_attn *args,
                  gpumem_stream stream,
                  int (*kernel)(struct kernel_pool *pool, const struct kernel_attention *args))
{
        const struct gpumem_kv_geometry *layout;
        struct gpumem *session;
        struct operand q, out;
        struct kernel_job *job;
        float *lse = NULL;
        int r;

        if (!batch || !args)
                return client_error(GPUMEM_E_INVALID, "batch or args is NULL");
        r = check_batch(batch, layer);
        if (r < 0)
                return r;
        layout = &batch->kv->geometry.layout;
        session = batch->kv->session;
        if (args->q.heads == 0 || args->q.heads % layout->kv_heads != 0 ||
            args->out.heads != args->q.heads)
                return client_error(GPUMEM_E_INVALID,
                                    "q and out have %u and %u heads; they must be the same "
                                    "multiple of the pool's %u",
                                    args->q.heads, args->out.heads, layout->kv_heads);
        if (!isfinite(args->scale))
                return client_error(GPUMEM_E_INVALID, "scale is not a finite number");
        if (batch->view.tokens == 0)
                return 0;
        r = operand_resolve(&q, session, "q", &args->q, batch->view.tokens, layout->key_dim);
        if (r < 0)
                return r;
        r = operand_resolve(&out, session, "out", &args->out, batch->view.tokens,
                            layout->value_dim);
        if (r < 0)
                return r;
        r = operand_check_written(&out, "out", &args->out, batch->view.tokens);
        if (r < 0)
                return r;
        if (args->lse != 0) {
                /* Below 2^50 bytes: heads are at most 2^16 by now. */
                r = operand_host(session, "lse", args->lse,
                                 (uint64_t)batch->view.tokens * args->q.heads * sizeof(*lse),
                                 (void **)&lse);
                if (r < 0)
                        return r;
        }
        job = calloc(1, sizeof(*job));
        if (!job)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a kernel");
        job->batch = batch;
        job->attention = kernel;
        job->attention_args = (struct kernel_attention){
                .kv = describe_kv(batch->kv),
                .layer = layer,
                .sequences = batch->view.sequences,
                .indptr = batch->view.indptr,
                .indices = batch->view.indices,
                .kv_len = batch->view.kv_len,
                .q_indptr = batch->view.q_indptr,
                .q_heads = args->q.heads,
                .scale = args->scale != 0 ? args->scale : 1.0f / sqrtf((float)layout->key_dim),
                .q_type = q.type,
                .out_type = out.type,
                .q = q.data,
                .out = out.data,
                .lse = lse,
                .q_token_stride = q.token_stride,
                .q_head_stride = q.head_stride,
                .out_token_stride = out.token_stride,
                .out_head_stride = out.head_stride,
        };
        r = kernel_attention_check(&job->attention_args);
        if (r != KERNEL_OK) {
                free(job);
                return check_failed(r);
        }
        return launch(job, stream);
}

GPUMEM_API int gpumem_attn_decode(struct gpumem_batch *batch, uint32_t layer,
                                  const struct gpumem_attn *args, gpumem_stream stream)
{
        int r;

        if (!batch)
                return client_error(GPUMEM_E_INVALID, "batch is NULL");
        r = kv_check(batch->kv);
        if (r < 0)
                return r;
        if (batch->longest > 1)
                return client_error(GPUMEM_E_INVALID,
                                    "a sequence has %u new tokens; decode takes at most one, use "
                                    "gpumem_attn_prefill",
                                    batch->longest);
        return attend(batch, layer, args, stream, kernel_cpu_attention_decode);
}

GPUMEM_API int gpumem_attn_prefill(struct gpumem_batch *batch, uint32_t layer,
                                   const struct gpumem_attn *args, gpumem_stream stream)
{
        return attend(batch, layer, args, stream, kernel_cpu_attention_prefill);
}
