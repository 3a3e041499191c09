/* SPDX-License-Identifier: Apache-2.0 */
/* gpumem-gen: the reference engine of gpumemd. See gpumem-gen(1). */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tools/gen/engine.h"
#include "tools/gen/gguf.h"
#include "tools/gen/options.h"
#include "tools/gen/reference.h"
#include "tools/gen/request.h"
#include "tools/gen/result.h"
#include "tools/gen/tokenizer.h"
#include "tools/gen/weights.h"

static volatile sig_atomic_t stop_signal;

static void note_signal(int number)
{
        stop_signal = number;
}

/* The first signal ends the run between two steps; the second one, by default action, at once. */
static void catch_signals(void)
{
        struct sigaction action = {.sa_handler = note_signal, .sa_flags = (int)SA_RESETHAND};

        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
}

struct program {
        struct options options;
        struct gguf *gguf;
        struct tokenizer *tokenizer;
        struct weights *weights;
        struct request_list requests;
        struct request_limits limits;
        struct run_totals totals;
        struct result_file json; /* if options.json */
        uint64_t progress_next;
        uint32_t printed; /* requests whose text is out */
        bool output_failed;
};

static int complain(int code, const struct gen_error *error)
{
        fprintf(stderr, "gpumem-gen: %s\n", error->text);
        return code;
}

static double now_seconds(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void print_request(struct program *program, uint32_t number)
{
        const struct request *request = &program->requests.items[number];
        char *text;
        size_t bytes;

        if (result_text(request, program->tokenizer, &text, &bytes) < 0) {
                program->output_failed = true;
                return;
        }
        printf("[%" PRIu32 "] ", number + 1);
        fwrite(request->text, 1, request->text_bytes, stdout);
        fwrite(text, 1, bytes, stdout);
        putchar('\n');
        if (fflush(stdout))
                program->output_failed = true;
        free(text);
}

/* Prints what is complete, in the order of the prompts. */
static void print_finished(struct program *program)
{
        while (program->printed < program->requests.count &&
               program->requests.items[program->printed].finish)
                print_request(program, program->printed++);
}

static void print_progress(struct program *program, const struct run_totals *totals)
{
        const struct options *options = &program->options;
        uint32_t done = 0;

        if (!options->progress || totals->generated_tokens < program->progress_next)
                return;
        while (program->progress_next <= totals->generated_tokens)
                program->progress_next += options->progress;
        for (uint32_t i = 0; i < program->requests.count; i++)
                done += program->requests.items[i].finish != REQUEST_UNFINISHED;
        fprintf(stderr,
                "gpumem-gen: progress: %" PRIu64 " tokens, %" PRIu32 " of %" PRIu32
                " prompts done, at most %" PRIu64 " tokens in all\n",
                totals->generated_tokens, done, program->requests.count,
                (uint64_t)program->requests.count * options->max_new_tokens);
}

static void stepped(void *context, const struct run_totals *totals)
{
        struct program *program = context;
        const uint32_t delay = program->options.step_delay_ms;

        if (!program->options.quiet)
                print_finished(program);
        print_progress(program, totals);
        if (delay)
                nanosleep(&(struct timespec){delay / 1000, (long)(delay % 1000) * 1000000}, NULL);
}

static bool stopped(void *context)
{
        (void)context;
        return stop_signal != 0;
}

static int load_model(struct program *program)
{
        struct gen_error error = {0};
        int r = gguf_open(&program->gguf, program->options.model, &error);

        if (r < 0)
                return complain(r == -ENOMEM ? GEN_EXIT_MEMORY : GEN_EXIT_MODEL, &error);
        r = tokenizer_new(&program->tokenizer, program->gguf, &error);
        if (!r)
                r = weights_new(&program->weights, program->gguf,
                                tokenizer_tokens(program->tokenizer), &error);
        if (r < 0) {
                fprintf(stderr, "gpumem-gen: %s: %s\n", program->options.model, error.text);
                return r == -ENOMEM ? GEN_EXIT_MEMORY : GEN_EXIT_MODEL;
        }
        return GEN_EXIT_OK;
}

static int load_prompts(struct program *program)
{
        const struct options *options = &program->options;
        const uint32_t context = program->weights->shape.context;
        struct gen_error error = {0};
        int r = 0;

        /* Before hours of work, not after. */
        if (options->expect && access(options->expect, R_OK) < 0) {
                gen_fail(&error, -errno, "--expect %s: %s", options->expect, strerror(errno));
                return complain(GEN_EXIT_USAGE, &error);
        }
        program->limits = (struct request_limits){
                .max_new_tokens = options->max_new_tokens,
                .max_sequence_tokens = options->max_sequence_tokens,
        };
        if (!options->max_sequence_tokens)
                program->limits.max_sequence_tokens = context < 2048 ? context : 2048;
        if (program->limits.max_sequence_tokens > context) {
                gen_fail(&error, -EINVAL,
                         "--max-sequence-tokens %" PRIu32 " is more than the model's context of "
                         "%" PRIu32,
                         program->limits.max_sequence_tokens, context);
                return complain(GEN_EXIT_USAGE, &error);
        }
        for (uint32_t i = 0; i < options->prompts_count && !r; i++) {
                const char *value = options->prompts[i].value;

                if (options->prompts[i].file)
                        r = request_list_read(&program->requests, value, &error);
                else if ((r = request_list_add(&program->requests, value, strlen(value))) < 0)
                        gen_fail(&error, r, "--prompt: %s", strerror(-r));
        }
        if (r == -EINTR && stop_signal) {
                fprintf(stderr, "gpumem-gen: ended by signal %d\n", (int)stop_signal);
                return GEN_EXIT_SIGNAL + stop_signal;
        }
        if (!r && !program->requests.count)
                r = gen_fail(&error, -EINVAL, "the prompt files are empty");
        if (!r)
                r = request_list_encode(&program->requests, program->tokenizer, &program->limits,
                                        &error);
        return r < 0 ? complain(r == -ENOMEM ? GEN_EXIT_MEMORY : GEN_EXIT_USAGE, &error)
                     : GEN_EXIT_OK;
}

static int copy_to_memory(void *context, uint64_t offset, const void *data, uint64_t bytes)
{
        memcpy((unsigned char *)context + offset, data, bytes);
        return 0;
}

static int run_reference(struct program *program, const struct run_hooks *hooks)
{
        struct gen_error error = {0};
        struct model model = {.weights = program->weights, .isa = kernel_cpu_isa()};
        const struct reference_options options = {.limits = program->limits, .chunk_tokens = 128};
        unsigned char *memory = aligned_alloc(
                WEIGHTS_ALIGNMENT, program->weights->bytes ? program->weights->bytes : 64);
        int r, code = GEN_EXIT_OK;

        r = memory ? kernel_pool_new(&model.pool, program->options.threads) : -ENOMEM;
        if (r < 0) {
                gen_fail(&error, r, "threads and memory for the weights: %s", strerror(-r));
                code = complain(GEN_EXIT_MEMORY, &error);
                goto out;
        }
        weights_copy(program->weights, copy_to_memory, memory);
        weights_bind(program->weights, memory);
        program->gguf = gguf_free(program->gguf);
        r = reference_run(&model, program->tokenizer, &program->requests, &options, hooks,
                          &program->totals, &error);
        if (r < 0)
                code = complain(r == -ENOMEM ? GEN_EXIT_MEMORY : GEN_EXIT_FAILURE, &error);
out:
        kernel_pool_free(model.pool);
        free(memory);
        return code;
}

static int exit_of(enum engine_failure failure)
{
        switch (failure) {
        case ENGINE_OK:
        case ENGINE_STOPPED:
                return GEN_EXIT_OK;
        case ENGINE_UNSUPPORTED:
                return GEN_EXIT_UNSUPPORTED;
        case ENGINE_USAGE:
                return GEN_EXIT_USAGE;
        case ENGINE_DAEMON:
                return GEN_EXIT_DAEMON;
        case ENGINE_MEMORY:
                return GEN_EXIT_MEMORY;
        case ENGINE_OTHER:
                break;
        }
        return GEN_EXIT_FAILURE;
}

static int run_engine(struct program *program, const struct run_hooks *hooks)
{
        const struct options *options = &program->options;
        const struct engine_options engine_options = {
                .socket = options->socket,
                .name = options->name,
                .driver = GPUMEM_DRIVER_SIMULATOR,
                .device = options->device,
                .threads = options->threads,
                .max_sequences = options->max_sequences,
                .max_batch_tokens = options->max_batch_tokens,
                .page_tokens = options->page_tokens,
                .kv_max_bytes = options->kv_max_bytes,
                .memory_timeout_s = options->memory_timeout_s,
                .limits = program->limits,
        };
        struct gen_error error = {0};
        struct engine *engine;
        enum engine_failure failure;

        failure = engine_new(&engine, program->weights, &engine_options, hooks, &error);
        if (!failure) {
                program->gguf = gguf_free(program->gguf);
                failure = engine_run(engine, program->tokenizer, &program->requests, hooks,
                                     &program->totals, &error);
                engine_free(engine);
        }
        if (failure && failure != ENGINE_STOPPED)
                return complain(exit_of(failure), &error);
        return GEN_EXIT_OK;
}

/* What is left to do after a run that did not fail. */
static int finish(struct program *program)
{
        const struct options *options = &program->options;
        const bool complete = !stop_signal;
        const struct result result = {
                .mode = options->reference ? "reference" : "paged",
                .model = options->model,
                .isa = kernel_isa_name(kernel_cpu_isa()),
                .complete = complete,
                .max_sequences = options->max_sequences,
                .max_sequence_tokens = program->limits.max_sequence_tokens,
                .max_new_tokens = options->max_new_tokens,
                .requests = &program->requests,
                .tokenizer = program->tokenizer,
                .totals = &program->totals,
        };
        struct gen_error error = {0};
        int r;

        if (options->json && result_file_write(&program->json, &result, &error) < 0)
                return complain(GEN_EXIT_FAILURE, &error);
        if (!complete) {
                fprintf(stderr, "gpumem-gen: ended by signal %d after %" PRIu64 " tokens\n",
                        (int)stop_signal, program->totals.generated_tokens);
                return GEN_EXIT_SIGNAL + stop_signal;
        }
        if (program->output_failed) {
                gen_fail(&error, -EIO, "the texts could not be written");
                return complain(GEN_EXIT_FAILURE, &error);
        }
        if (!options->expect)
                return GEN_EXIT_OK;
        r = result_compare(&program->requests, options->expect, &error);
        if (r)
                return complain(r == RESULT_E_DIFFERENT ? GEN_EXIT_DIFFERENT : GEN_EXIT_FAILURE,
                                &error);
        fprintf(stderr, "gpumem-gen: same as %s: %" PRIu32 " prompts, %" PRIu64 " tokens\n",
                options->expect, program->requests.count, program->totals.generated_tokens);
        return GEN_EXIT_OK;
}

static int run(struct program *program)
{
        const struct run_hooks hooks = {program, stepped, stopped};
        struct gen_error error = {0};
        double begin;
        int code;

        /* Before the work, not after it. */
        if (program->options.json &&
            result_file_open(&program->json, program->options.json, &error) < 0)
                return complain(GEN_EXIT_FAILURE, &error);
        code = load_model(program);
        if (!code)
                code = load_prompts(program);
        if (code)
                return code;
        program->progress_next = program->options.progress;
        begin = now_seconds();
        code = program->options.reference ? run_reference(program, &hooks)
                                          : run_engine(program, &hooks);
        program->totals.seconds = now_seconds() - begin;
        return code ? code : finish(program);
}

int main(int argc, char **argv)
{
        struct program *program = calloc(1, sizeof(*program));
        struct gen_error error = {0};
        int code;

        if (!program)
                return GEN_EXIT_MEMORY;
        if (options_parse(&program->options, argc, argv, &error) < 0) {
                code = complain(GEN_EXIT_USAGE, &error);
                fputs("Try gpumem-gen --help.\n", stderr);
        } else if (program->options.help) {
                options_help(stdout);
                code = GEN_EXIT_OK;
        } else if (program->options.version) {
                printf("gpumem-gen %s\n", GPUMEM_VERSION);
                code = GEN_EXIT_OK;
        } else if (!program->options.reference && program->options.driver == OPTIONS_DRIVER_CUDA) {
                gen_fail(&error, -ENOSYS,
                         "driver is cuda, and there are no matrix kernels for a GPU yet: this "
                         "release computes on the CPU, on the simulated driver (--driver "
                         "simulated or GPUMEM_DRIVER=simulated) or with --reference");
                code = complain(GEN_EXIT_UNSUPPORTED, &error);
        } else if (kernel_cpu_isa_mistake()) {
                gen_fail(&error, -EINVAL, "GPUMEM_CPU_ISA is \"%s\"; it must be " KERNEL_ISA_NAMES,
                         kernel_cpu_isa_mistake());
                code = complain(GEN_EXIT_USAGE, &error);
        } else {
                catch_signals();
                code = run(program);
        }
        result_file_close(&program->json);
        request_list_deinit(&program->requests);
        weights_free(program->weights);
        tokenizer_free(program->tokenizer);
        gguf_free(program->gguf);
        free(program);
        return code;
}
