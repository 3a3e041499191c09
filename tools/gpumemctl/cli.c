/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gpumemctl/cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpumemctl/command.h"
#include "tools/gpumemctl/text.h"

enum {
        WORDS_MAX = 2, /* of a command's name */
        TIMEOUT_DEFAULT_MS = 10 * 1000,
        TIMEOUT_MAX_MS = 24 * 3600 * 1000,
};

struct command {
        const char *words[WORDS_MAX]; /* the second may be NULL */
        enum ctl_outcome (*run)(struct ctl_context *context);
        bool takes_objects, takes_device;
        const char *help;
};

static const struct command commands[] = {
        {{"status", NULL},
         ctl_command_status,
         false,
         false,
         "what runs here: version, driver, devices, frames by state"},
        {{"ps", NULL}, ctl_command_ps, true, false, "the sessions: engines and what they hold"},
        {{"meminfo", NULL},
         ctl_command_meminfo,
         false,
         true,
         "where the memory is, by state and by tenant"},
        {{"tenants", NULL},
         ctl_command_tenants,
         false,
         false,
         "who is charged for what, and what each may have"},
        {{"debug", "check"},
         ctl_command_debug_check,
         false,
         false,
         "count everything again; 1 if it does not add up"},
};

struct command_line {
        const struct command *command;
        struct ctl_options options;
        const char *socket;
        uint64_t timeout_ms;
        bool help, version;
};

static void print_help(FILE *out)
{
        fprintf(out, "Usage: gpumemctl [OPTION]... COMMAND\n"
                     "Ask gpumemd, the daemon that owns the GPUs' memory.\n"
                     "\n"
                     "Commands:\n");
        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
                const struct command *command = &commands[i];
                char name[64];

                snprintf(name, sizeof(name), "%s%s%s", command->words[0],
                         command->words[1] != NULL ? " " : "",
                         command->words[1] != NULL ? command->words[1] : "");
                fprintf(out, "  %-20s %s\n", name, command->help);
        }
        fprintf(out,
                "\n"
                "Options:\n"
                "  --json               the daemon's answer as JSON, exact numbers\n"
                "  --socket PATH        the admin socket (default: $" CTL_SOCKET_ENVIRONMENT ",\n"
                "                       else " CTL_SOCKET_DEFAULT ")\n"
                "  --timeout SECONDS    how long to wait for the daemon (default: %d)\n"
                "  --objects            ps: list the objects of each session, too\n"
                "  --device UUID        meminfo: only this device\n"
                "  --help, --version\n"
                "\n"
                "Exit status: 0 done, 1 refused by the daemon or check failed, 2 wrong command line,\n"
                "3 daemon not reached. See gpumemctl(8).\n",
                TIMEOUT_DEFAULT_MS / 1000);
}

static bool parse_timeout(const char *text, uint64_t *ms)
{
        char *end;
        double seconds;

        /* Digits only to begin with: strtod also takes spaces, signs, "inf" and "nan". */
        if (strspn(text, "0123456789.") != strlen(text) || text[0] == '\0')
                return false;
        seconds = strtod(text, &end);
        if (*end != '\0' || !(seconds * 1000 >= 1) || seconds * 1000 > TIMEOUT_MAX_MS)
                return false;
        *ms = (uint64_t)(seconds * 1000);
        return true;
}

/* The command that the words name, or NULL with a sentence. */
static const struct command *find_command(char **words, int count, struct ctl_error *error)
{
        const struct command *family = NULL;
        char shown[128];

        if (count == 0) {
                ctl_fail(error, CTL_USAGE, "a command is missing.");
                return NULL;
        }
        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
                const struct command *command = &commands[i];
                int length = command->words[1] != NULL ? 2 : 1;

                if (strcmp(words[0], command->words[0]) != 0)
                        continue;
                family = command;
                if (length == 2 && (count < 2 || strcmp(words[1], command->words[1]) != 0))
                        continue;
                if (count == length)
                        return command;
                ctl_fail(error, CTL_USAGE, "\"%s\" is too much.",
                         ctl_printable(shown, sizeof(shown), words[length]));
                return NULL;
        }
        if (family != NULL && count < 2)
                ctl_fail(error, CTL_USAGE, "%s wants a second word: %s.", words[0],
                         family->words[1]);
        else
                ctl_fail(error, CTL_USAGE, "\"%s\" is no command%s%s.",
                         ctl_printable(shown, sizeof(shown), words[family != NULL ? 1 : 0]),
                         family != NULL ? " of " : "", family != NULL ? words[0] : "");
        return NULL;
}

static enum ctl_outcome parse_command_line(struct command_line *line, int argc, char **argv,
                                           struct ctl_error *error)
{
        enum { OPTION_JSON = 256, OPTION_SOCKET, OPTION_TIMEOUT, OPTION_OBJECTS, OPTION_DEVICE };
        static const struct option options[] = {
                {"json", no_argument, NULL, OPTION_JSON},
                {"socket", required_argument, NULL, OPTION_SOCKET},
                {"timeout", required_argument, NULL, OPTION_TIMEOUT},
                {"objects", no_argument, NULL, OPTION_OBJECTS},
                {"device", required_argument, NULL, OPTION_DEVICE},
                {"help", no_argument, NULL, 'h'},
                {"version", no_argument, NULL, 'V'},
                {NULL, 0, NULL, 0},
        };
        char shown[128];
        int option;

        optind = 0; /* start over, with its own state reset (glibc) */
        opterr = 0;
        while ((option = getopt_long(argc, argv, ":hV", options, NULL)) >= 0) {
                switch (option) {
                case OPTION_JSON:
                        line->options.json = true;
                        break;
                case OPTION_SOCKET:
                        line->socket = optarg;
                        break;
                case OPTION_TIMEOUT:
                        if (!parse_timeout(optarg, &line->timeout_ms))
                                return ctl_fail(error, CTL_USAGE,
                                                "--timeout wants seconds, 0.001 to %d, not \"%s\".",
                                                TIMEOUT_MAX_MS / 1000,
                                                ctl_printable(shown, sizeof(shown), optarg));
                        break;
                case OPTION_OBJECTS:
                        line->options.objects = true;
                        break;
                case OPTION_DEVICE:
                        line->options.device = optarg;
                        break;
                case 'h':
                        line->help = true;
                        return CTL_OK;
                case 'V':
                        line->version = true;
                        return CTL_OK;
                case ':':
                        return ctl_fail(error, CTL_USAGE, "%s wants a value.",
                                        ctl_printable(shown, sizeof(shown), argv[optind - 1]));
                default:
                        return ctl_fail(error, CTL_USAGE, "%s is no option, or not of this form.",
                                        ctl_printable(shown, sizeof(shown), argv[optind - 1]));
                }
        }
        line->command = find_command(argv + optind, argc - optind, error);
        if (line->command == NULL)
                return CTL_USAGE;
        if (line->options.objects && !line->command->takes_objects)
                return ctl_fail(error, CTL_USAGE, "--objects is for ps.");
        if (line->options.device != NULL && !line->command->takes_device)
                return ctl_fail(error, CTL_USAGE, "--device is for meminfo.");
        return CTL_OK;
}

enum ctl_outcome ctl_print_json(struct ctl_context *context, json_object *object)
{
        const char *text = json_object_to_json_string_ext(
                object,
                JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);

        if (text == NULL)
                return ctl_fail(context->error, CTL_REFUSED, "out of memory.");
        fprintf(context->out, "%s\n", text);
        return CTL_OK;
}

static enum ctl_outcome run_command(const struct command_line *line, FILE *out,
                                    struct ctl_error *error)
{
        struct ctl_context context = {.options = line->options, .out = out, .error = error};
        enum ctl_outcome outcome;

        outcome = ctl_client_new(&context.client, line->socket, line->timeout_ms, error);
        if (outcome != CTL_OK)
                return outcome;
        outcome = line->command->run(&context);
        ctl_client_free(context.client);
        return outcome;
}

int ctl_run(int argc, char **argv, FILE *out, FILE *messages)
{
        struct command_line line = {.timeout_ms = TIMEOUT_DEFAULT_MS};
        const char *environment = getenv(CTL_SOCKET_ENVIRONMENT);
        struct ctl_error error = {0};
        enum ctl_outcome outcome;

        line.socket =
                environment != NULL && environment[0] != '\0' ? environment : CTL_SOCKET_DEFAULT;
        outcome = parse_command_line(&line, argc, argv, &error);
        if (outcome == CTL_OK && line.help)
                print_help(out);
        else if (outcome == CTL_OK && line.version)
                fprintf(out, "gpumemctl %s\n", GPUMEM_VERSION);
        else if (outcome == CTL_OK && line.command != NULL)
                outcome = run_command(&line, out, &error);

        /* A full disk must not look like success. */
        if ((fflush(out) != 0 || ferror(out)) && outcome == CTL_OK)
                outcome = ctl_fail(&error, CTL_REFUSED, "cannot write the output: %s.",
                                   strerror(errno));
        if (outcome != CTL_OK)
                fprintf(messages, "gpumemctl: %s\n", error.text);
        if (outcome == CTL_USAGE)
                fprintf(messages, "gpumemctl --help lists commands and options.\n");
        return (int)outcome;
}
