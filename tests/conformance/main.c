/* SPDX-License-Identifier: Apache-2.0 */
/* cuda-conformance: see conformance.h. Options, the processes of the tests, and what is printed. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

#define TEST_TIMEOUT_MS 60000
#define OUTPUT_MAX      65536

enum format { FORMAT_PLAIN, FORMAT_JSON, FORMAT_NOTES };

struct options {
        const char *driver;
        enum format format;
        bool list;
        const char *only; /* tests whose names begin so */
        /* Set for processes of tests. */
        const char *test, *peer;
        int descriptor;
};

static const struct test *const groups[] = {
        tests_of_devices, tests_of_contexts, tests_of_memory,         tests_of_copies,
        tests_of_streams, tests_of_events,   tests_of_virtual_memory, tests_of_access,
        tests_of_sharing, tests_of_faults,
};

#define GROUPS (sizeof(groups) / sizeof(groups[0]))

static void usage(FILE *to)
{
        fputs("usage: cuda-conformance [--driver PATH|cuda|simulated] [--only PREFIX]\n"
              "                        [--list | --json | --notes]\n"
              "Runs one test per documented behaviour of the CUDA driver calls that gpumemd uses.\n"
              "The default driver is the simulated one, on a machine of its own.\n"
              "  --only PREFIX  tests whose names begin so\n"
              "  --list         names only\n"
              "  --json         one object with every step and what was seen\n"
              "  --notes        test, step and what was seen, by tabs: to be compared\n",
              to);
}

/* --- the process of a test -----------------------------------------------------------------------
 */

static bool is_simulator(const char *path)
{
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

        return library && dlsym(library, "gpumem_sim_host_view");
}

static const struct driver *open_driver(const char *word)
{
        enum driver_kind kind = DRIVER_CUDA;
        const char *path = NULL;
        /* For as long as the process lives: reachable, whatever way that ends. */
        static struct driver *driver;
        char why[512];

        if (strcmp(word, "simulated") == 0) {
                kind = DRIVER_SIMULATED;
        } else if (strcmp(word, "cuda") != 0) {
                path = word;
                if (is_simulator(path))
                        kind = DRIVER_SIMULATED;
        }
        if (driver_open(&driver, kind, path, why, sizeof(why)) != 0) {
                fprintf(stderr, "cuda-conformance: %s\n", why);
                return NULL;
        }
        return driver;
}

/* Initialises the driver and makes the primary context of device 0 current. */
static bool start(struct run *run)
{
        CUmemAllocationProp properties;

        if (!step_need(run, "cuInit", run->cuda->init(0)) ||
            !step_need(run, "cuDeviceGet", run->cuda->device_get(&run->device, 0)) ||
            !step_need(run, "cuDevicePrimaryCtxRetain",
                       run->cuda->device_primary_ctx_retain(&run->context, run->device)) ||
            !step_need(run, "cuCtxSetCurrent", run->cuda->ctx_set_current(run->context)))
                return false;
        properties = device_memory(run);
        return step_need(run, "cuMemGetAllocationGranularity",
                         run->cuda->mem_get_allocation_granularity(
                                 &run->granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

static const struct test *find(const char *name)
{
        size_t i;

        for (i = 0; i < GROUPS; i++) {
                const struct test *test;

                for (test = groups[i]; test->name; test++)
                        if (strcmp(test->name, name) == 0)
                                return test;
        }
        return NULL;
}

static int run_here(const struct options *options)
{
        struct run run = {.cuda = open_driver(options->driver), .notes = options->descriptor};

        if (!run.cuda)
                return 1;
        run.strict = run.cuda->host_view != NULL;
        if (options->peer) {
                run.notes = -1;
                if (strncmp(options->peer, "bare-", 5) != 0 && !start(&run))
                        return 1;
                return peer_main(&run, options->peer, options->descriptor);
        }
        if (!find(options->test))
                return 1;
        if (start(&run))
                find(options->test)->function(&run);
        return run.failed;
}

/* --- the process of the suite --------------------------------------------------------------------
 */

struct outcome {
        bool failed, skipped;
        int status;
        double seconds;
        char text[OUTPUT_MAX]; /* lines: 'N' step TAB seen, 'F' what, 'S' why */
};

static double now(void)
{
        struct timespec time;

        clock_gettime(CLOCK_MONOTONIC, &time);
        return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static pid_t spawn(const struct options *options, const char *name, int output)
{
        pid_t child;

        fflush(stdout);
        child = fork();
        if (child == 0) {
                char program[] = "/proc/self/exe", test[] = "--run-test", driver[] = "--driver";
                char descriptor[16], test_name[128], driver_name[4096];
                char *arguments[] = {program,   driver,     driver_name, test,
                                     test_name, descriptor, NULL};

                snprintf(test_name, sizeof(test_name), "%s", name);
                snprintf(driver_name, sizeof(driver_name), "%s", options->driver);
                snprintf(descriptor, sizeof(descriptor), "%d", output);
                fcntl(output, F_SETFD, 0);
                setpgid(0, 0);
                execv(program, arguments);
                _exit(127);
        }
        return child;
}

static void collect(struct outcome *outcome, int input, pid_t child)
{
        double deadline = now() + TEST_TIMEOUT_MS * 1e-3;
        size_t length = 0;

        for (;;) {
                struct pollfd wait = {.fd = input, .events = POLLIN};
                double left = deadline - now();
                ssize_t got;

                if (left <= 0 || poll(&wait, 1, (int)(left * 1000) + 1) == 0) {
                        if (length + 32 < sizeof(outcome->text))
                                length += (size_t)sprintf(outcome->text + length, "Ftimed out\n");
                        break;
                }
                got = read(input, outcome->text + length, sizeof(outcome->text) - 1 - length);
                if (got <= 0)
                        break;
                length += (size_t)got;
        }
        outcome->text[length] = '\0';
        kill(-child, SIGKILL); /* it and whatever it started */
}

static void run_test(const struct options *options, const struct test *test,
                     struct outcome *outcome)
{
        double started = now();
        const char *line;
        int ends[2];
        pid_t child;

        outcome->text[0] = '\0';
        outcome->failed = true;
        outcome->skipped = false;
        outcome->status = -1;
        if (pipe2(ends, O_CLOEXEC) != 0)
                return;
        child = spawn(options, test->name, ends[1]);
        close(ends[1]);
        if (child > 0) {
                int flags = 0;

                collect(outcome, ends[0], child);
                while (waitpid(child, &outcome->status, flags) < 0 && errno == EINTR)
                        ;
        }
        close(ends[0]);
        outcome->seconds = now() - started;
        /* The last line of a test that came to its end. */
        outcome->failed = strstr(outcome->text, "\nE") == NULL && outcome->text[0] != 'E';
        for (line = outcome->text; line && *line;
             line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
                if (*line == 'F')
                        outcome->failed = true;
                else if (*line == 'S')
                        outcome->skipped = true;
        }
}

static void print_json_text(const char *text, size_t length)
{
        size_t i;

        putchar('"');
        for (i = 0; i < length; i++) {
                unsigned char c = (unsigned char)text[i];

                if (c == '"' || c == '\\')
                        printf("\\%c", c);
                else if (c < 32)
                        printf("\\u%04x", c);
                else
                        putchar(c);
        }
        putchar('"');
}

/* The first line of the text from `line` on with its letter taken off; NULL behind the last. */
static const char *next_line(const char *line, char *letter, size_t *length)
{
        if (!line || *line == '\0')
                return NULL;
        *letter = *line;
        *length = strcspn(line, "\n") - 1;
        return line + 1;
}

static const char *behind(const char *text, size_t length)
{
        return text[length] == '\n' ? text + length + 1 : NULL;
}

static void print_plain(const struct test *test, const struct outcome *outcome, unsigned int number)
{
        const char *line = outcome->text, *text;
        size_t length;
        char letter;

        printf("%s %u %s%s\n", outcome->failed ? "not ok" : "ok", number, test->name,
               outcome->skipped ? " # SKIP" : "");
        for (; (text = next_line(line, &letter, &length)) != NULL; line = behind(text, length))
                if (letter == 'F' || letter == 'S')
                        printf("# %.*s\n", (int)length, text);
        if (outcome->failed && WIFSIGNALED(outcome->status) && WTERMSIG(outcome->status) != SIGKILL)
                printf("# died of signal %d\n", WTERMSIG(outcome->status));
}

static void print_notes(const struct test *test, const struct outcome *outcome)
{
        const char *line = outcome->text, *text;
        size_t length;
        char letter;

        for (; (text = next_line(line, &letter, &length)) != NULL; line = behind(text, length))
                if (letter == 'N')
                        printf("%s\t%.*s\n", test->name, (int)length, text);
}

static void print_json(const struct test *test, const struct outcome *outcome, bool first)
{
        const char *line = outcome->text, *text;
        bool first_step = true;
        size_t length;
        char letter;

        printf("%s\n {\"test\":\"%s\",\"result\":\"%s\",\"seconds\":%.3f,\"steps\":[",
               first ? "" : ",", test->name,
               outcome->failed    ? "failed"
               : outcome->skipped ? "skipped"
                                  : "passed",
               outcome->seconds);
        for (; (text = next_line(line, &letter, &length)) != NULL; line = behind(text, length)) {
                const char *tab = memchr(text, '\t', length);

                if (letter != 'N' || !tab)
                        continue;
                printf("%s[", first_step ? "" : ",");
                print_json_text(text, (size_t)(tab - text));
                putchar(',');
                print_json_text(tab + 1, length - (size_t)(tab + 1 - text));
                putchar(']');
                first_step = false;
        }
        printf("],\"complaints\":[");
        first_step = true;
        for (line = outcome->text; (text = next_line(line, &letter, &length)) != NULL;
             line = behind(text, length)) {
                if (letter != 'F' && letter != 'S')
                        continue;
                printf("%s", first_step ? "" : ",");
                print_json_text(text, length);
                first_step = false;
        }
        printf("]}");
}

static bool wanted(const struct options *options, const struct test *test)
{
        return !options->only || strncmp(test->name, options->only, strlen(options->only)) == 0;
}

static int run_all(const struct options *options)
{
        unsigned int passed = 0, failed = 0, skipped = 0, number = 0;
        static struct outcome outcome;
        size_t i;

        if (options->format == FORMAT_JSON) {
                printf("{\"suite\":\"cuda-conformance\",\"driver\":");
                print_json_text(options->driver, strlen(options->driver));
                printf(",\"tests\":[");
        }
        for (i = 0; i < GROUPS; i++) {
                const struct test *test;

                for (test = groups[i]; test->name; test++) {
                        if (!wanted(options, test))
                                continue;
                        if (options->list) {
                                printf("%s\n", test->name);
                                continue;
                        }
                        run_test(options, test, &outcome);
                        number++;
                        if (outcome.failed)
                                failed++;
                        else if (outcome.skipped)
                                skipped++;
                        else
                                passed++;
                        if (options->format == FORMAT_PLAIN)
                                print_plain(test, &outcome, number);
                        else if (options->format == FORMAT_JSON)
                                print_json(test, &outcome, number == 1);
                        else
                                print_notes(test, &outcome);
                        fflush(stdout);
                }
        }
        if (options->list)
                return 0;
        if (options->format == FORMAT_JSON)
                printf("\n],\"passed\":%u,\"failed\":%u,\"skipped\":%u}\n", passed, failed,
                       skipped);
        else if (options->format == FORMAT_PLAIN && skipped)
                printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
        else if (options->format == FORMAT_PLAIN)
                printf("%u passed, %u failed\n", passed, failed);
        return failed != 0 || number == 0;
}

/* A simulated machine that nobody else uses, unless the environment names one. */
static bool own_machine(char directory[64])
{
        const char *build = getenv("GPUMEM_BUILD");

        directory[0] = '\0';
        if (getenv("GPUMEM_SIM_DIR"))
                return true;
        strcpy(directory, "/dev/shm/gpumem-conformance-XXXXXX");
        if (!mkdtemp(directory)) {
                perror(directory);
                return false;
        }
        setenv("GPUMEM_SIM_DIR", directory, 1);
        setenv("GPUMEM_SIM_MEMORY", "64M", 1);
        setenv("GPUMEM_SIM_GRANULARITY", "64K", 1);
        setenv("GPUMEM_SIM_DEVICES", "2", 1);
        if (build) {
                char library[4096];

                snprintf(library, sizeof(library), "%s/libcuda-sim.so", build);
                setenv("GPUMEM_SIM_LIBRARY", library, 0);
        }
        return true;
}

static void remove_machine(const char *directory)
{
        DIR *stream = directory[0] != '\0' ? opendir(directory) : NULL;
        const struct dirent *entry;

        if (!stream)
                return;
        while ((entry = readdir(stream)) != NULL)
                unlinkat(dirfd(stream), entry->d_name, 0);
        closedir(stream);
        rmdir(directory);
}

/* What the suite waits for. A test that never began must not pass for one that saw nothing wrong.
 */
static void end_of_test(int descriptor, int status)
{
        static const char failed[] = "Ffailed\nE\n", done[] = "E\n";
        const char *text = status != 0 ? failed : done;

        if (write(descriptor, text, strlen(text)) < 0)
                _exit(1);
}

int main(int argc, char **argv)
{
        static const struct option long_options[] = {{"driver", required_argument, NULL, 'd'},
                                                     {"json", no_argument, NULL, 'j'},
                                                     {"notes", no_argument, NULL, 'n'},
                                                     {"list", no_argument, NULL, 'l'},
                                                     {"only", required_argument, NULL, 'o'},
                                                     {"help", no_argument, NULL, 'h'},
                                                     {"run-test", required_argument, NULL, 'T'},
                                                     {"run-peer", required_argument, NULL, 'P'},
                                                     {NULL, 0, NULL, 0}};
        struct options options = {.driver = "simulated", .descriptor = -1};
        char directory[64];
        int option, status;

        while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
                switch (option) {
                case 'd':
                        options.driver = optarg;
                        break;
                case 'j':
                        options.format = FORMAT_JSON;
                        break;
                case 'n':
                        options.format = FORMAT_NOTES;
                        break;
                case 'l':
                        options.list = true;
                        break;
                case 'o':
                        options.only = optarg;
                        break;
                case 'T':
                        options.test = optarg;
                        break;
                case 'P':
                        options.peer = optarg;
                        break;
                case 'h':
                        usage(stdout);
                        return 0;
                default:
                        usage(stderr);
                        return 2;
                }
        }
        if (options.test || options.peer) {
                if (argc - optind != 1)
                        return 2;
                options.descriptor = (int)strtol(argv[optind], NULL, 10);
                fcntl(options.descriptor, F_SETFD, FD_CLOEXEC);
                setenv("CONFORMANCE_DRIVER", options.driver, 1); /* for its peers */
                status = run_here(&options);
                if (options.test)
                        end_of_test(options.descriptor, status);
                return status;
        }
        if (argc != optind) {
                usage(stderr);
                return 2;
        }
        if (options.list)
                return run_all(&options);
        if (!own_machine(directory))
                return 1;
        status = run_all(&options);
        remove_machine(directory);
        return status;
}
