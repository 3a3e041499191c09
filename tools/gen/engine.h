/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paged engine: weights, activations and the cache in device memory of gpumemd, many sequences
 * at once by continuous batching (scheduler.h).
 *
 * A step is enqueued on one stream as a whole: the model's stages as host functions (on the
 * simulated driver the CPU is the GPU's arithmetic), between them the library's KV write and
 * attention; the stream is synchronised once, to learn the next tokens. So no pin is held between
 * steps, and a step may wait for memory.
 *
 * Memory being short is no failure. The engine takes back what it just admitted, waits a little,
 * then preempts its youngest sequence: the pages go, and prompt and generated tokens are computed
 * again later. That does not change a token (model.h). With one sequence left it waits, and from
 * time to time lets go even of that one, so that two engines short of memory cannot hold each other
 * up for ever. Only when no step was possible for memory_timeout_s does it give up.
 */
#ifndef GPUMEM_GEN_ENGINE_H
#define GPUMEM_GEN_ENGINE_H

#include <gpumem/gpumem.h>

#include "tools/gen/error.h"
#include "tools/gen/request.h"
#include "tools/gen/run.h"
#include "tools/gen/weights.h"

struct engine_options {
        const char *socket; /* NULL: the library's default */
        const char *name;
        enum gpumem_driver driver;
        uint32_t device;
        uint32_t threads;
        uint32_t max_sequences;
        uint32_t max_batch_tokens;
        uint32_t page_tokens;  /* 0: the library's default */
        uint64_t kv_max_bytes; /* 0: no limit of our own */
        uint32_t memory_timeout_s;
        struct request_limits limits;
};

struct engine;

/* The step that failed, so that its error number can be read in the right list. */
enum engine_failure {
        ENGINE_OK = 0,
        ENGINE_UNSUPPORTED, /* the CPU cannot reach this driver's device memory */
        ENGINE_DAEMON,      /* down, refused, or of another kind */
        ENGINE_USAGE,       /* an option does not fit the model and the device */
        ENGINE_MEMORY,      /* too small, or none came in time */
        ENGINE_OTHER,       /* driver failure, or the model's output is not a number */
        ENGINE_STOPPED,     /* by hooks->stopped while something was awaited */
};

/* Connects, and copies the weights to the device (weights are bound to their copy; the file must
 * still be open). Where memory for them is short it waits as steps do, asking hooks->stopped. */
enum engine_failure engine_new(struct engine **out, struct weights *weights,
                               const struct engine_options *options, const struct run_hooks *hooks,
                               struct gen_error *error);
struct engine *engine_free(struct engine *engine);

/* Completes all requests (or stops when a hook says so, which is ENGINE_OK). totals are filled in
 * any case. */
enum engine_failure engine_run(struct engine *engine, const struct tokenizer *tokenizer,
                               struct request_list *requests, const struct run_hooks *hooks,
                               struct run_totals *totals, struct gen_error *error);

#endif
