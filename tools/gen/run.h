/* SPDX-License-Identifier: Apache-2.0 */
/* What the paged engine and the reference have in common: how a run is watched, and its account. */
#ifndef GPUMEM_GEN_RUN_H
#define GPUMEM_GEN_RUN_H

#include <stdbool.h>
#include <stdint.h>

struct run_totals {
        uint64_t steps; /* batches computed */
        uint64_t prompt_tokens;
        uint64_t generated_tokens;
        uint64_t computed_tokens;   /* through the model, recomputed ones too */
        uint64_t preemptions;       /* sequences put back to be recomputed */
        uint64_t recomputed_tokens; /* computed a second time because of that */
        double seconds;

        uint64_t token_bytes; /* of the cache, all layers */
        uint64_t weight_bytes, activation_bytes;
        /* Of the pool; 0 in the reference. */
        uint64_t page_tokens, page_bytes, pages_per_unit, unit_bytes, frame_bytes;
        uint64_t granted_bytes_peak; /* to the pool */
        uint64_t pages_used_peak, pages_total_peak, tokens_peak, sequences_peak;
        uint64_t units_grown, units_returned, grow_waits, copies;
};

/* Called by a run between its steps, on the thread that called it. */
struct run_hooks {
        void *context;
        /* A step is complete; totals->generated_tokens so far. May sleep. */
        void (*stepped)(void *context, const struct run_totals *totals);
        /* True: end the run now, leaving requests unfinished. */
        bool (*stopped)(void *context);
};

#endif
