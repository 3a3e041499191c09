/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gen/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
        OPTION_PROMPT = 256,
        OPTION_PROMPTS,
        OPTION_MAX_NEW_TOKENS,
        OPTION_MAX_SEQUENCES,
        OPTION_MAX_BATCH_TOKENS,
        OPTION_MAX_SEQUENCE_TOKENS,
        OPTION_PAGE_TOKENS,
        OPTION_KV_MAX_BYTES,
        OPTION_MEMORY_TIMEOUT,
        OPTION_SOCKET,
        OPTION_NAME,
        OPTION_DRIVER,
        OPTION_DEVICE,
        OPTION_THREADS,
        OPTION_JSON,
        OPTION_EXPECT,
        OPTION_STEP_DELAY_MS,
        OPTION_PROGRESS,
        OPTION_REFERENCE,
        OPTION_QUIET,
        OPTION_VERSION,
};

static const struct option long_options[] = {
        {"model", required_argument, NULL, 'm'},
        {"prompt", required_argument, NULL, OPTION_PROMPT},
        {"prompts", required_argument, NULL, OPTION_PROMPTS},
        {"max-new-tokens", required_argument, NULL, OPTION_MAX_NEW_TOKENS},
        {"max-sequences", required_argument, NULL, OPTION_MAX_SEQUENCES},
        {"max-batch-tokens", required_argument, NULL, OPTION_MAX_BATCH_TOKENS},
        {"max-sequence-tokens", required_argument, NULL, OPTION_MAX_SEQUENCE_TOKENS},
        {"page-tokens", required_argument, NULL, OPTION_PAGE_TOKENS},
        {"kv-max-bytes", required_argument, NULL, OPTION_KV_MAX_BYTES},
        {"memory-timeout", required_argument, NULL, OPTION_MEMORY_TIMEOUT},
        {"socket", required_argument, NULL, OPTION_SOCKET},
        {"name", required_argument, NULL, OPTION_NAME},
        {"driver", required_argument, NULL, OPTION_DRIVER},
        {"device", required_argument, NULL, OPTION_DEVICE},
        {"threads", required_argument, NULL, OPTION_THREADS},
        {"json", required_argument, NULL, OPTION_JSON},
        {"expect", required_argument, NULL, OPTION_EXPECT},
        {"step-delay-ms", required_argument, NULL, OPTION_STEP_DELAY_MS},
        {"progress", required_argument, NULL, OPTION_PROGRESS},
        {"reference", no_argument, NULL, OPTION_REFERENCE},
        {"quiet", no_argument, NULL, OPTION_QUIET},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, OPTION_VERSION},
        {0},
};

void options_help(FILE *out)
{
        fputs("Usage: gpumem-gen --model FILE (--prompt TEXT | --prompts FILE)... [options]\n"
              "Generates text with a llama-architecture GGUF model on a KV cache in memory of "
              "gpumemd.\n"
              "\n"
              "What to generate:\n"
              "  -m, --model FILE            model, GGUF with f32 and f16 tensors\n"
              "      --prompt TEXT           a prompt; may be repeated\n"
              "      --prompts FILE          a prompt for each line; may be repeated\n"
              "      --max-new-tokens N      stop after N new tokens per prompt (64)\n"
              "      --max-sequence-tokens N longest sequence, prompt included (the smaller of\n"
              "                              the model's context and 2048)\n"
              "\n"
              "How to batch:\n"
              "      --max-sequences N       sequences in the cache at once (16)\n"
              "      --max-batch-tokens N    tokens computed in one step (256)\n"
              "      --page-tokens N         tokens per page: 16, 32, 64 or 128 (16)\n"
              "      --kv-max-bytes N        the cache never holds more (no limit)\n"
              "      --memory-timeout S      give up when no step was possible for S seconds for\n"
              "                              want of device memory (300)\n"
              "      --threads N             CPU threads (one per CPU)\n"
              "\n"
              "Where:\n"
              "      --socket PATH           gpumemd's client socket ($GPUMEM_SOCKET, else\n"
              "                              /run/gpumem/client.sock)\n"
              "      --driver KIND           simulated or cuda ($GPUMEM_DRIVER, else cuda). There\n"
              "                              are no matrix kernels for cuda yet: exit code 2\n"
              "      --device N              ordinal of the device (0)\n"
              "      --name NAME             shown by gpumemctl ps (gpumem-gen)\n"
              "      --reference             no daemon: one prompt at a time on a plain cache in\n"
              "                              host memory, with the same results\n"
              "\n"
              "Results:\n"
              "      --json FILE             write tokens, texts and totals\n"
              "      --expect FILE           compare with the --json of another run, token by\n"
              "                              token; exit code 1 at the first difference\n"
              "      --progress N            a line on stderr every N new tokens\n"
              "      --quiet                 do not print the texts\n"
              "      --step-delay-ms N       sleep after each step, for demonstrations (0)\n"
              "  -h, --help                  this text\n"
              "      --version               the version\n"
              "\n"
              "Exit codes: 0 done; 1 --expect found a difference; 2 not possible on this driver;\n"
              "3 usage or prompts; 4 model file; 5 daemon; 6 memory; 7 other failures;\n"
              "130, 143 ended by SIGINT, SIGTERM.\n",
              out);
}

static int parse_number(const char *name, const char *text, uint64_t minimum, uint64_t maximum,
                        uint64_t *out, struct gen_error *error)
{
        char *end;

        errno = 0;
        *out = strtoull(text, &end, 10);
        if (text[0] < '0' || text[0] > '9' || *end || errno || *out < minimum || *out > maximum)
                return gen_fail(error, -EINVAL,
                                "--%s is \"%s\", must be a whole number from %" PRIu64
                                " to %" PRIu64,
                                name, text, minimum, maximum);
        return 0;
}

static int parse_u32(const char *name, const char *text, uint32_t minimum, uint32_t maximum,
                     uint32_t *out, struct gen_error *error)
{
        uint64_t value;
        const int r = parse_number(name, text, minimum, maximum, &value, error);

        if (!r)
                *out = (uint32_t)value;
        return r;
}

static int parse_driver(const char *from, const char *text, enum options_driver *out,
                        struct gen_error *error)
{
        if (!strcmp(text, "cuda"))
                *out = OPTIONS_DRIVER_CUDA;
        else if (!strcmp(text, "simulated"))
                *out = OPTIONS_DRIVER_SIMULATED;
        else
                return gen_fail(error, -EINVAL, "%s is \"%s\", must be cuda or simulated", from,
                                text);
        return 0;
}

static int add_prompt(struct options *options, const char *value, bool file,
                      struct gen_error *error)
{
        if (options->prompts_count == OPTIONS_PROMPTS_MAX)
                return gen_fail(error, -EINVAL, "more than %d --prompt and --prompts",
                                OPTIONS_PROMPTS_MAX);
        options->prompts[options->prompts_count].value = value;
        options->prompts[options->prompts_count++].file = file;
        return 0;
}

static int parse_page_tokens(struct options *options, const char *text, struct gen_error *error)
{
        const int r = parse_u32("page-tokens", text, 16, 128, &options->page_tokens, error);

        if (!r && (options->page_tokens & (options->page_tokens - 1)))
                return gen_fail(error, -EINVAL, "--page-tokens is %s, must be 16, 32, 64 or 128",
                                text);
        return r;
}

static int apply(struct options *options, int option, const char *value, struct gen_error *error)
{
        switch (option) {
        case 'm':
                options->model = value;
                return 0;
        case OPTION_PROMPT:
                return add_prompt(options, value, false, error);
        case OPTION_PROMPTS:
                return add_prompt(options, value, true, error);
        case OPTION_MAX_NEW_TOKENS:
                return parse_u32("max-new-tokens", value, 1, 1u << 24, &options->max_new_tokens,
                                 error);
        case OPTION_MAX_SEQUENCES:
                return parse_u32("max-sequences", value, 1, 65536, &options->max_sequences, error);
        case OPTION_MAX_BATCH_TOKENS:
                return parse_u32("max-batch-tokens", value, 1, 1u << 20, &options->max_batch_tokens,
                                 error);
        case OPTION_MAX_SEQUENCE_TOKENS:
                return parse_u32("max-sequence-tokens", value, 2, 1u << 24,
                                 &options->max_sequence_tokens, error);
        case OPTION_PAGE_TOKENS:
                return parse_page_tokens(options, value, error);
        case OPTION_KV_MAX_BYTES:
                return parse_number("kv-max-bytes", value, 1, INT64_MAX, &options->kv_max_bytes,
                                    error);
        case OPTION_MEMORY_TIMEOUT:
                return parse_u32("memory-timeout", value, 1, 86400, &options->memory_timeout_s,
                                 error);
        case OPTION_SOCKET:
                options->socket = value;
                return 0;
        case OPTION_NAME:
                options->name = value;
                if (strlen(value) > 63)
                        return gen_fail(error, -EINVAL, "--name is longer than 63 bytes");
                return 0;
        case OPTION_DRIVER:
                return parse_driver("--driver", value, &options->driver, error);
        case OPTION_DEVICE:
                return parse_u32("device", value, 0, 1023, &options->device, error);
        case OPTION_THREADS:
                return parse_u32("threads", value, 1, 1024, &options->threads, error);
        case OPTION_JSON:
                options->json = value;
                return 0;
        case OPTION_EXPECT:
                options->expect = value;
                return 0;
        case OPTION_STEP_DELAY_MS:
                return parse_u32("step-delay-ms", value, 0, 60000, &options->step_delay_ms, error);
        case OPTION_PROGRESS:
                return parse_u32("progress", value, 1, 1u << 30, &options->progress, error);
        case OPTION_REFERENCE:
                options->reference = true;
                return 0;
        case OPTION_QUIET:
                options->quiet = true;
                return 0;
        case 'h':
                options->help = true;
                return 0;
        case OPTION_VERSION:
                options->version = true;
                return 0;
        }
        return -EINVAL;
}

static int check(const struct options *options, struct gen_error *error)
{
        if (!options->model)
                return gen_fail(error, -EINVAL, "--model is missing");
        if (!options->prompts_count)
                return gen_fail(error, -EINVAL, "nothing to do: give --prompt or --prompts");
        if (options->max_batch_tokens < options->max_sequences)
                return gen_fail(error, -EINVAL,
                                "--max-batch-tokens %" PRIu32
                                " must not be less than --max-sequences %" PRIu32
                                ": each sequence needs one token per step",
                                options->max_batch_tokens, options->max_sequences);
        return 0;
}

int options_parse(struct options *options, int argc, char **argv, struct gen_error *error)
{
        const char *driver = getenv("GPUMEM_DRIVER");
        bool driver_given = false;
        int option, r;

        *options = (struct options){
                .max_new_tokens = 64,
                .max_sequences = 16,
                .max_batch_tokens = 256,
                .memory_timeout_s = 300,
                .name = "gpumem-gen",
                .driver = OPTIONS_DRIVER_CUDA,
        };
        optind = 0; /* start anew: glibc's way to parse more than one vector */
        opterr = 0;
        while ((option = getopt_long(argc, argv, ":m:h", long_options, NULL)) != -1) {
                if (option == '?' || option == ':')
                        return gen_fail(error, -EINVAL, "%s: %s", argv[optind - 1],
                                        option == ':' ? "needs a value" : "no such option");
                driver_given = driver_given || option == OPTION_DRIVER;
                r = apply(options, option, optarg, error);
                if (r < 0)
                        return r;
        }
        if (options->help || options->version)
                return 0;
        if (optind < argc)
                return gen_fail(error, -EINVAL, "\"%s\" is not an option", argv[optind]);
        if (driver && *driver && !driver_given) {
                r = parse_driver("$GPUMEM_DRIVER", driver, &options->driver, error);
                if (r < 0)
                        return r;
        }
        return check(options, error);
}
