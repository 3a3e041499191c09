/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of a pool outside of batches. */
#include <errno.h>

#include "libclient/error.h"
#include "libclient/kv.h"

static int no_sequence(void)
{
        return client_error(GPUMEM_E_NOT_FOUND, "no such sequence; it was freed, or never made");
}

static int in_batch(void)
{
        return client_error(GPUMEM_E_BUSY, "the sequence is in a batch that has not ended");
}

GPUMEM_API int gpumem_seq_create(struct gpumem_kv *kv, gpumem_seq *out)
{
        struct sequence *sequence;
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        if (!out)
                return client_error(GPUMEM_E_INVALID, "out is NULL");
        *out = 0;
        lock_take(&kv->lock, LOCK_POOL);
        r = sequence_create(&kv->sequences, &sequence);
        if (r == 0)
                *out = sequence_handle(&kv->sequences, sequence);
        lock_release(&kv->lock);
        if (r < 0)
                return client_error(GPUMEM_E_LIMIT, "max_sequences, %u, are alive",
                                    kv->sequences.size);
        return 0;
}

GPUMEM_API int gpumem_seq_free(struct gpumem_kv *kv, gpumem_seq seq)
{
        struct sequence *sequence;
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        lock_take(&kv->lock, LOCK_POOL);
        sequence = sequence_find(&kv->sequences, seq);
        if (sequence) {
                sequence_free(&kv->sequences, sequence, pin_stamp(&kv->pins));
                kv->loose = true;
        }
        lock_release(&kv->lock);
        return sequence ? 0 : no_sequence();
}

GPUMEM_API int gpumem_seq_truncate(struct gpumem_kv *kv, gpumem_seq seq, uint32_t tokens)
{
        struct sequence *sequence;
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        lock_take(&kv->lock, LOCK_POOL);
        sequence = sequence_find(&kv->sequences, seq);
        if (!sequence)
                r = no_sequence();
        else if (sequence->batch != 0)
                r = in_batch();
        else if (tokens > sequence->tokens)
                r = client_error(GPUMEM_E_INVALID, "the sequence has only %u tokens",
                                 sequence->tokens);
        else
                sequence_truncate(&kv->sequences, sequence, tokens, pin_stamp(&kv->pins));
        kv->loose = true;
        lock_release(&kv->lock);
        return r;
}

GPUMEM_API int gpumem_seq_length(struct gpumem_kv *kv, gpumem_seq seq, uint32_t *tokens)
{
        struct sequence *sequence;
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        if (!tokens)
                return client_error(GPUMEM_E_INVALID, "tokens is NULL");
        lock_take(&kv->lock, LOCK_POOL);
        sequence = sequence_find(&kv->sequences, seq);
        if (sequence)
                *tokens = sequence->tokens;
        lock_release(&kv->lock);
        return sequence ? 0 : no_sequence();
}

/* Puts a copy on the stream under a pin of its own, so that neither page is reused before it is
 * done. The copy's record is settled either way. */
static int copy_now(struct gpumem_kv *kv, const struct page_copy *copy, gpumem_stream stream)
{
        uint64_t pin;
        int r;

        r = kv_pin(kv, NULL, &pin);
        if (r < 0) {
                sequence_copy_undo(&kv->sequences, copy, pin_stamp(&kv->pins));
                return r;
        }
        r = kv_copy_page(kv, copy->from, copy->to, stream);
        if (r < 0) {
                sequence_copy_undo(&kv->sequences, copy, pin);
        } else {
                kv->copies++;
                copy->sequence->last_pin = pin;
                sequence_copy_done(&kv->sequences, copy, pin);
                /* (If the event cannot be recorded, the pin is longer than it had to be.) */
        }
        pin_end(&kv->pins, pin, stream);
        return r;
}

static int append_locked(struct gpumem_kv *kv, gpumem_seq seq, uint32_t tokens,
                         gpumem_stream stream, uint64_t deadline_ns)
{
        struct sequence *sequence;
        struct page_copy copy;
        uint32_t before;
        int64_t need;
        bool full;
        int r;

        do {
                sequence = sequence_find(&kv->sequences, seq);
                if (!sequence)
                        return no_sequence();
                if (sequence->batch != 0)
                        return in_batch();
                need = sequence_need(&kv->sequences, sequence, tokens);
                if (need < 0)
                        return client_error(GPUMEM_E_INVALID,
                                            "the sequence has %u tokens; %u more are above "
                                            "max_sequence_tokens, %u",
                                            sequence->tokens, tokens, kv->sequences.tokens_max);
                if ((uint64_t)need + sequence->pages_count > kv->geometry.pages_max &&
                    kv->pages.pages_settling == 0)
                        return kv_too_large(kv, (uint64_t)need + sequence->pages_count);
                r = kv_provide(kv, (uint64_t)need, deadline_ns, &full);
        } while (r > 0);
        if (r < 0)
                return r;
        if (sequence_reserve(&kv->sequences, sequence, tokens) < 0)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a page list");
        before = sequence->tokens;
        sequence_lengthen(&kv->sequences, sequence, tokens, &copy);
        if (copy.from == GPUMEM_PAGE_NONE)
                return 0;
        r = copy_now(kv, &copy, stream);
        if (r < 0)
                sequence_truncate(&kv->sequences, sequence, before, pin_stamp(&kv->pins));
        return r;
}

GPUMEM_API int gpumem_seq_append(struct gpumem_kv *kv, gpumem_seq seq, uint32_t tokens,
                                 gpumem_stream stream, uint32_t wait_ms)
{
        uint64_t deadline_ns = wait_ms ? wire_deadline_ns(wait_ms) : 0;
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);
        if (scope.result != CUDA_SUCCESS)
                return client_error_driver(kv->session->driver, scope.result, "cuCtxPushCurrent");
        lock_take(&kv->lock, LOCK_POOL);
        kv_touch(kv);
        r = kv_check_context(kv);
        if (r == 0)
                r = append_locked(kv, seq, tokens, stream, deadline_ns);
        kv_look_ahead(kv);
        lock_release(&kv->lock);
        return r;
}

static int fork_locked(struct gpumem_kv *kv, gpumem_seq parent_handle, gpumem_stream stream,
                       gpumem_seq *out)
{
        struct sequence *parent, *child;
        struct page_copy copy;
        bool full;
        int r;

        do {
                parent = sequence_find(&kv->sequences, parent_handle);
                if (!parent)
                        return no_sequence();
                if (parent->batch != 0)
                        return in_batch();
                r = kv_provide(kv, sequence_fork_need(&kv->sequences, parent), 0, &full);
        } while (r > 0);
        if (r < 0)
                return r;
        r = sequence_fork(&kv->sequences, parent, &child, &copy);
        if (r == -ENFILE)
                return client_error(GPUMEM_E_LIMIT, "max_sequences, %u, are alive",
                                    kv->sequences.size);
        if (r < 0)
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a page list");
        if (copy.from != GPUMEM_PAGE_NONE)
                r = copy_now(kv, &copy, stream);
        if (r < 0) {
                sequence_free(&kv->sequences, child, pin_stamp(&kv->pins));
                return r;
        }
        *out = sequence_handle(&kv->sequences, child);
        return 0;
}

GPUMEM_API int gpumem_seq_fork(struct gpumem_kv *kv, gpumem_seq parent, gpumem_stream stream,
                               gpumem_seq *out)
{
        int r;

        r = kv_check(kv);
        if (r < 0)
                return r;
        if (!out)
                return client_error(GPUMEM_E_INVALID, "out is NULL");
        *out = 0;
        CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);
        if (scope.result != CUDA_SUCCESS)
                return client_error_driver(kv->session->driver, scope.result, "cuCtxPushCurrent");
        lock_take(&kv->lock, LOCK_POOL);
        kv_touch(kv);
        r = kv_check_context(kv);
        if (r == 0)
                r = fork_locked(kv, parent, stream, out);
        kv_look_ahead(kv);
        lock_release(&kv->lock);
        return r;
}
