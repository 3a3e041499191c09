/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/batch.h"
#include "libclient/error.h"

void batch_reference(struct gpumem_batch *batch)
{
        atomic_fetch_add(&batch->references, 1);
}

void batch_unreference(struct gpumem_batch *batch)
{
        if (atomic_fetch_sub(&batch->references, 1) == 1)
                free(batch);
}

void batch_pin_over(void *payload)
{
        batch_unreference(payload);
}

int kv_pin(struct gpumem_kv *kv, void *payload, uint64_t *number)
{
        bool gated = session_is_gated(kv->session);
        int r;

        if (gated)
                lock_take(&kv->session->gate, LOCK_GATE);
        r = pin_begin(&kv->pins, payload, number);
        if (gated)
                lock_release(&kv->session->gate);
        return r;
}

/* A row pitch that every driver takes. */
#define PITCH_MAX INT32_MAX

int kv_copy_page(struct gpumem_kv *kv, uint32_t from, uint32_t to, gpumem_stream stream)
{
        const struct gpumem_kv_geometry *layout = &kv->geometry.layout;
        const struct driver *driver = kv->session->driver;
        CUresult result = CUDA_SUCCESS;

        if (layout->layer_stride <= PITCH_MAX) {
                const CUDA_MEMCPY2D copy = {
                        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = kv_page_address(kv, from),
                        .srcPitch = (size_t)layout->layer_stride,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = kv_page_address(kv, to),
                        .dstPitch = (size_t)layout->layer_stride,
                        .WidthInBytes = (size_t)layout->page_stride,
                        .Height = layout->layers,
                };

                result = driver->memcpy_2d_async(&copy, stream);
                if (result != CUDA_SUCCESS)
                        return client_error_driver(driver, result, "cuMemcpy2DAsync");
        } else {
                for (uint32_t layer = 0; layer < layout->layers && result == CUDA_SUCCESS;
                     layer++) {
                        uint64_t offset = layer * (uint64_t)layout->layer_stride;

                        result = driver->memcpy_dtod_async(kv_page_address(kv, to) + offset,
                                                           kv_page_address(kv, from) + offset,
                                                           (size_t)layout->page_stride, stream);
                }
                if (result != CUDA_SUCCESS)
                        return client_error_driver(driver, result, "cuMemcpyDtoDAsync");
        }
        return 0;
}

/* What a batch takes. */
struct batch_need {
        uint64_t pages;       /* to be allocated */
        uint64_t table_pages; /* in the page tables afterwards */
        uint64_t tokens;
        uint32_t longest;
};

/* Looks at everything, changes nothing. */
static int measure(struct gpumem_kv *kv, const gpumem_seq *seqs, uint32_t sequences,
                   const uint32_t *tokens_each, struct batch_need *need)
{
        memset(need, 0, sizeof(*need));
        sequence_mark_begin(&kv->sequences);
        for (uint32_t i = 0; i < sequences; i++) {
                struct sequence *sequence = sequence_find(&kv->sequences, seqs[i]);
                int64_t pages;

                if (!sequence)
                        return client_error(GPUMEM_E_NOT_FOUND, "seqs[%u] is no sequence", i);
                if (sequence->batch != 0)
                        return client_error(GPUMEM_E_BUSY,
                                            "seqs[%u] is in a batch that has not ended", i);
                if (!sequence_mark(&kv->sequences, sequence))
                        return client_error(GPUMEM_E_INVALID, "seqs[%u] is named twice", i);
                pages = sequence_need(&kv->sequences, sequence, tokens_each[i]);
                if (pages < 0)
                        return client_error(GPUMEM_E_INVALID,
                                            "seqs[%u] has %u tokens; %u more are above "
                                            "max_sequence_tokens, %u",
                                            i, sequence->tokens, tokens_each[i],
                                            kv->sequences.tokens_max);
                need->pages += (uint64_t)pages;
                need->table_pages += ((uint64_t)sequence->tokens + tokens_each[i] +
                                      kv->geometry.layout.page_tokens - 1) >>
                                     kv->geometry.page_shift;
                need->tokens += tokens_each[i];
                if (tokens_each[i] > need->longest)
                        need->longest = tokens_each[i];
        }
        if (need->tokens > UINT32_MAX || need->table_pages > UINT32_MAX)
                return client_error(GPUMEM_E_INVALID, "a batch has at most 2^32-1 tokens");
        return 0;
}

static int compare_pages(const void *a, const void *b)
{
        uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

        return (left > right) - (left < right);
}

/* The pool is full: would the batch fit if it were alone? Shared pages count once. Returns
 * GPUMEM_E_AGAIN with the message that is there, or GPUMEM_E_NO_MEMORY. */
static int judge_full(struct gpumem_kv *kv, const gpumem_seq *seqs, uint32_t sequences,
                      const struct batch_need *need)
{
        uint64_t count = 0, distinct = 0;
        uint32_t *pages;

        /* Pages that settle are copied today; when the pins are over they need no more room. */
        if (kv->pages.pages_settling > 0)
                return GPUMEM_E_AGAIN;
        pages = malloc((need->table_pages + 1) * sizeof(*pages));
        if (!pages)
                return GPUMEM_E_AGAIN;
        for (uint32_t i = 0; i < sequences; i++) {
                const struct sequence *sequence = sequence_find(&kv->sequences, seqs[i]);

                if (sequence->pages_count > 0)
                        memcpy(pages + count, sequence->pages,
                               sequence->pages_count * sizeof(*pages));
                count += sequence->pages_count;
        }
        qsort(pages, count, sizeof(*pages), compare_pages);
        for (uint64_t i = 0; i < count; i++)
                distinct += i == 0 || pages[i] != pages[i - 1];
        free(pages);
        if (distinct + need->pages > kv->geometry.pages_max)
                return kv_too_large(kv, distinct + need->pages);
        return GPUMEM_E_AGAIN;
}

/* One allocation for the batch and its arrays; the widest elements first, so that all are aligned.
 */
static struct gpumem_batch *allocate(struct gpumem_kv *kv, uint32_t sequences,
                                     const struct batch_need *need)
{
        size_t eights = sequences + need->tokens;
        size_t fours = 3 * (size_t)sequences + 2 + need->table_pages + need->tokens;
        struct gpumem_batch *batch = malloc(sizeof(*batch) + eights * 8 + fours * 4);
        uint64_t *next8;
        uint32_t *next4;

        if (!batch)
                return NULL;
        memset(batch, 0, sizeof(*batch));
        batch->kv = kv;
        atomic_init(&batch->references, 1);
        batch->longest = need->longest;
        batch->view.sequences = sequences;
        batch->view.tokens = (uint32_t)need->tokens;
        next8 = (uint64_t *)(batch + 1);
        batch->handles = next8;
        next8 += sequences;
        batch->view.slot_mapping = (int64_t *)next8;
        next8 += need->tokens;
        next4 = (uint32_t *)next8;
        batch->view.indptr = next4;
        next4 += sequences + 1;
        batch->view.q_indptr = next4;
        next4 += sequences + 1;
        batch->view.kv_len = next4;
        next4 += sequences;
        batch->view.indices = next4;
        next4 += need->table_pages;
        batch->view.positions = next4;
        return batch;
}

/* The arrays, from the lengthened sequences. The view is const for everybody else. */
static void fill(struct gpumem_batch *batch, const gpumem_seq *seqs, const uint32_t *tokens_each)
{
        struct gpumem_kv *kv = batch->kv;
        uint32_t *indptr = (uint32_t *)batch->view.indptr;
        uint32_t *q_indptr = (uint32_t *)batch->view.q_indptr;
        uint32_t *kv_len = (uint32_t *)batch->view.kv_len;
        uint32_t *index = (uint32_t *)batch->view.indices;
        uint32_t *position = (uint32_t *)batch->view.positions;
        int64_t *slot = (int64_t *)batch->view.slot_mapping;
        uint32_t shift = kv->geometry.page_shift;
        uint32_t mask = kv->geometry.layout.page_tokens - 1;

        indptr[0] = q_indptr[0] = 0;
        for (uint32_t i = 0; i < batch->view.sequences; i++) {
                struct sequence *sequence = sequence_find(&kv->sequences, seqs[i]);

                sequence->batch = batch->pin;
                sequence->last_pin = batch->pin;
                batch->handles[i] = seqs[i];
                kv_len[i] = sequence->tokens;
                indptr[i + 1] = indptr[i] + sequence->pages_count;
                q_indptr[i + 1] = q_indptr[i] + tokens_each[i];
                if (sequence->pages_count > 0)
                        memcpy(index, sequence->pages, sequence->pages_count * sizeof(*index));
                index += sequence->pages_count;
                for (uint32_t t = sequence->tokens - tokens_each[i]; t < sequence->tokens; t++) {
                        *position++ = t;
                        *slot++ = ((int64_t)sequence->pages[t >> shift] << shift) | (t & mask);
                }
        }
}

/* Copies go to the stream before anything is let go of: on failure all is as it was. */
static int commit(struct gpumem_batch *batch, const gpumem_seq *seqs, const uint32_t *tokens_each,
                  struct page_copy *copies, gpumem_stream stream)
{
        struct gpumem_kv *kv = batch->kv;
        struct sequence_table *table = &kv->sequences;
        uint32_t sequences = batch->view.sequences;
        uint32_t done, count = 0;
        int r = 0;

        for (done = 0; done < sequences && r == 0; done++) {
                struct page_copy *copy = &copies[count];

                sequence_lengthen(table, sequence_find(table, seqs[done]), tokens_each[done], copy);
                if (copy->from == GPUMEM_PAGE_NONE)
                        continue;
                count++;
                r = kv_copy_page(kv, copy->from, copy->to, stream);
        }
        if (r == 0) {
                kv->copies += count;
                for (uint32_t i = 0; i < count; i++)
                        sequence_copy_done(table, &copies[i], batch->pin);
                fill(batch, seqs, tokens_each);
                return 0;
        }
        while (count > 0)
                sequence_copy_undo(table, &copies[--count], batch->pin);
        while (done > 0) {
                struct sequence *sequence = sequence_find(table, seqs[--done]);

                sequence_truncate(table, sequence, sequence->tokens - tokens_each[done],
                                  batch->pin);
        }
        return r;
}

/* With the lock held and enough free pages. */
static int begin(struct gpumem_kv *kv, const gpumem_seq *seqs, uint32_t sequences,
                 const uint32_t *tokens_each, const struct batch_need *need, gpumem_stream stream,
                 struct gpumem_batch **out)
{
        struct page_copy *copies = malloc(sequences * sizeof(*copies));
        struct gpumem_batch *batch = allocate(kv, sequences, need);
        bool room = copies && batch;
        int r = 0;

        for (uint32_t i = 0; i < sequences && room; i++)
                room = sequence_reserve(&kv->sequences, sequence_find(&kv->sequences, seqs[i]),
                                        tokens_each[i]) == 0;
        if (!room)
                client_message_set("host memory for a batch");
        else
                r = kv_pin(kv, batch, &batch->pin);
        if (!room || r < 0) {
                free(batch);
                free(copies);
                return room ? r : GPUMEM_E_NO_MEMORY;
        }
        r = commit(batch, seqs, tokens_each, copies, stream);
        free(copies);
        if (r < 0) {
                struct client_message why = client_message_keep();

                /* Copies may be under way: the pin covers them as any other work. */
                pin_end(&kv->pins, batch->pin, stream);
                return client_message_restore(r, &why);
        }
        *out = batch;
        return 0;
}

GPUMEM_API int gpumem_batch_begin(struct gpumem_kv *kv, const gpumem_seq *seqs, uint32_t sequences,
                                  const uint32_t *tokens_each, gpumem_stream stream,
                                  uint32_t wait_ms, struct gpumem_batch **out)
{
        uint64_t deadline_ns = wait_ms ? wire_deadline_ns(wait_ms) : 0;
        struct batch_need need;
        bool full = false;
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        if (!seqs || !tokens_each || !out)
                return client_error(GPUMEM_E_INVALID, "seqs, tokens_each or out is NULL");
        *out = NULL;
        if (sequences == 0 || sequences > kv->sequences.size)
                return client_error(GPUMEM_E_INVALID, "a batch of %u sequences; it must be 1..%u",
                                    sequences, kv->sequences.size);
        r = atomic_exchange(&kv->kernel_error, 0);
        if (r < 0)
                return client_error(GPUMEM_E_DEVICE, "a kernel of an earlier batch failed: %s",
                                    strerror(-r));

        CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);
        if (scope.result != CUDA_SUCCESS)
                return client_error_driver(kv->session->driver, scope.result, "cuCtxPushCurrent");
        grower_batch_boundary(kv);
        lock_take(&kv->lock, LOCK_POOL);
        kv_touch(kv);
        kv_poll(kv);
        do {
                r = kv_check_context(kv);
                if (r == 0)
                        r = measure(kv, seqs, sequences, tokens_each, &need);
                if (r == 0)
                        r = kv_provide(kv, need.pages, deadline_ns, &full);
        } while (r > 0);
        if (r == GPUMEM_E_AGAIN && full)
                r = judge_full(kv, seqs, sequences, &need);
        if (r == 0)
                r = begin(kv, seqs, sequences, tokens_each, &need, stream, out);
        kv_look_ahead(kv);
        lock_release(&kv->lock);
        return r;
}

GPUMEM_API const struct gpumem_batch_view *gpumem_batch_get_view(const struct gpumem_batch *batch)
{
        return batch ? &batch->view : NULL;
}

static int finish(struct gpumem_batch *batch, gpumem_stream stream, bool cancel)
{
        struct gpumem_kv *kv;
        int r;

        if (!batch)
                return client_error(GPUMEM_E_INVALID, "the batch is NULL");
        kv = batch->kv;
        r = kv_check(kv);
        if (r < 0)
                return r;
        CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);
        lock_take(&kv->lock, LOCK_POOL);
        for (uint32_t i = 0; i < batch->view.sequences; i++) {
                struct sequence *sequence = sequence_find(&kv->sequences, batch->handles[i]);

                /* It may have been freed meanwhile; nothing else changes a sequence in a batch. */
                if (!sequence || sequence->batch != batch->pin)
                        continue;
                sequence->batch = 0;
                if (cancel)
                        sequence_truncate(&kv->sequences, sequence,
                                          batch->view.kv_len[i] - (batch->view.q_indptr[i + 1] -
                                                                   batch->view.q_indptr[i]),
                                          pin_stamp(&kv->pins));
        }
        r = pin_end(&kv->pins, batch->pin, stream);
        kv_poll(kv);
        kv_touch(kv);
        lock_release(&kv->lock);
        return r;
}

GPUMEM_API int gpumem_batch_end(struct gpumem_batch *batch, gpumem_stream stream)
{
        return finish(batch, stream, false);
}

GPUMEM_API int gpumem_batch_cancel(struct gpumem_batch *batch, gpumem_stream stream)
{
        return finish(batch, stream, true);
}
