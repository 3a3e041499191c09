/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpumem-gen as people run it: a real daemon on a simulated device, real processes. What the paged
 * engine says must be, token by token, what --reference says, whatever the memory.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/daemon_process.h"
#include "tests/support/gguf_writer.h"
#include "tools/gen/gguf.h"

#define MODEL   "tests/data/tinylm-f16.gguf"
#define PROMPTS "tests/data/prompts.txt"
#define TOKENS  "32" /* new ones for each prompt, unless a test says otherwise */

#define MIB         (UINT64_C(1) << 20)
#define RUN_SECONDS 300 /* generous: sanitizers, and a machine with other work */

#define ARGUMENTS_MAX 40

static char directory[] = "/tmp/gpumem-gen-test-XXXXXX";
static char program[PATH_MAX];
static char reference[PATH_MAX]; /* --json of the reference run over PROMPTS */

/* A path in the test's directory; valid until the fourth call after this one. */
static const char *temporary(const char *name)
{
        static char paths[4][PATH_MAX];
        static unsigned turn;
        char *path = paths[turn++ % 4];

        snprintf(path, PATH_MAX, "%s/%s", directory, name);
        return path;
}

/* --- processes ----------------------------------------------------------------------------------
 */

struct child {
        pid_t pid;
        int errors; /* read end of its stderr */
        char text[16384];
        size_t text_bytes;
};

/* Starts gpumem-gen with these arguments (NULL-terminated) and MODEL. */
static void child_start(struct child *child, const char *out, const char *const *arguments)
{
        const char *argv[ARGUMENTS_MAX + 6] = {program, "--model", MODEL, "--max-new-tokens",
                                               TOKENS};
        int ends[2], i = 0;

        for (; arguments[i] && i < ARGUMENTS_MAX; i++)
                argv[5 + i] = arguments[i];
        memset(child, 0, sizeof(*child));
        CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
        child->pid = fork();
        CU_ASSERT_FATAL(child->pid >= 0);
        if (!child->pid) {
                const int fd = open(out ? out : "/dev/null", O_WRONLY | O_CREAT | O_TRUNC, 0600);

                if (fd < 0 || dup2(fd, 1) < 0 || dup2(ends[1], 2) < 0)
                        _exit(126);
                execv(program, (char *const *)argv);
                _exit(127);
        }
        close(ends[1]);
        child->errors = ends[0];
}

static double now_seconds(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Reads its stderr until it says `text`, or closes it (text NULL, or not said). */
static bool child_says(struct child *child, const char *text)
{
        const double deadline = now_seconds() + RUN_SECONDS;

        while (!text || !strstr(child->text, text)) {
                struct pollfd ready = {.fd = child->errors, .events = POLLIN};
                char spill[1024];
                ssize_t got;

                if (now_seconds() > deadline || poll(&ready, 1, 1000) < 0)
                        return false;
                if (!ready.revents)
                        continue;
                got = read(child->errors, spill, sizeof(spill));
                if (got <= 0)
                        return false;
                if (child->text_bytes + (size_t)got < sizeof(child->text)) {
                        memcpy(child->text + child->text_bytes, spill, (size_t)got);
                        child->text_bytes += (size_t)got;
                }
        }
        return true;
}

/* Its exit code, or 1000 and a signal; what it said stays in child->text. */
static int child_wait(struct child *child)
{
        int status;

        child_says(child, NULL);
        close(child->errors);
        /* Whatever is not done by now hangs. */
        for (int i = 0; i < 100 && waitpid(child->pid, &status, WNOHANG) == 0; i++) {
                if (i == 99)
                        kill(child->pid, SIGKILL);
                usleep(50000);
        }
        if (waitpid(child->pid, &status, 0) < 0 && errno != ECHILD)
                return -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Runs to the end; an exit code other than `expected` fails the test and shows why. */
static void run(int expected, const char *about, const char *out, ...)
{
        const char *arguments[ARGUMENTS_MAX] = {NULL};
        struct child child;
        va_list list;
        int code;

        va_start(list, out);
        for (int i = 0; i < ARGUMENTS_MAX - 1 && (arguments[i] = va_arg(list, const char *)); i++)
                ;
        va_end(list);
        child_start(&child, out, arguments);
        code = child_wait(&child);
        CU_ASSERT_EQUAL(code, expected);
        if (about)
                CU_ASSERT(strstr(child.text, about) != NULL);
        if (code != expected || (about && !strstr(child.text, about)))
                fprintf(stderr, "\nexit %d instead of %d: %s\n", code, expected, child.text);
}

/* A number in a --json file's totals; -1 if there is none. */
static int64_t total(const char *path, const char *key)
{
        json_object *root = json_object_from_file(path), *totals, *value;
        int64_t number = -1;

        if (json_object_object_get_ex(root, "totals", &totals) &&
            json_object_object_get_ex(totals, key, &value))
                number = json_object_get_int64(value);
        json_object_put(root);
        return number;
}

/* --- a daemon -----------------------------------------------------------------------------------
 */

static struct daemon_process *daemon_of(uint64_t memory_bytes)
{
        const struct daemon_options options = {
                .memory_bytes = memory_bytes,
                .watermark_low = 1,
                .watermark_high = 2,
        };
        struct daemon_process *process;

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
        return process;
}

static void daemon_end(struct daemon_process *process)
{
        char report[4096] = "";
        int r = -1;

        CU_ASSERT(daemon_process_alive(process));
        /* The engine is gone; its frames are on their way. */
        for (int i = 0; i < 100; i++) {
                r = daemon_process_check(process, report, sizeof(report));
                if (r != 1)
                        break;
                usleep(50000);
        }
        CU_ASSERT_EQUAL(r, 0);
        if (r)
                fprintf(stderr, "\ndebug check: %d %s\n", r, report);
        CU_ASSERT_EQUAL(daemon_process_stop(process), 0);
        daemon_process_free(process);
}

/* --- tests --------------------------------------------------------------------------------------
 */

static void test_reference(void)
{
        run(0, NULL, NULL, "--reference", "--prompts", PROMPTS, "--json", reference, "--quiet",
            NULL);
        CU_ASSERT(total(reference, "generated_tokens") > 1000);
        /* Threads do not change it; and the comparison can fail. */
        run(0, "same as", NULL, "--reference", "--prompts", PROMPTS, "--expect", reference,
            "--quiet", "--threads", "3", NULL);
        run(1, "new tokens here, 32 there", NULL, "--reference", "--prompts", PROMPTS, "--expect",
            reference, "--quiet", "--max-new-tokens", "5", NULL);
        run(1, "1 prompts here", NULL, "--reference", "--prompt", "x", "--expect", reference,
            "--quiet", NULL);
}

/* A changed token in the file is found, and named. */
static void test_expect_finds(void)
{
        const char *path = temporary("changed.json");
        json_object *root, *prompts, *tokens;
        struct gguf_bytes junk = {(unsigned char *)"{\"prompts\": 3}", 14, 14};
        char *junk_path = gguf_bytes_save(&junk);

        root = json_object_from_file(reference);
        CU_ASSERT_PTR_NOT_NULL_FATAL(root);
        CU_ASSERT_FATAL(json_object_object_get_ex(root, "prompts", &prompts));
        CU_ASSERT_FATAL(json_object_object_get_ex(json_object_array_get_idx(prompts, 1), "tokens",
                                                  &tokens));
        json_object_array_put_idx(tokens, 9, json_object_new_int(1));
        CU_ASSERT_EQUAL(json_object_to_file(path, root), 0);
        json_object_put(root);
        run(1, "prompt 2: new token 9 is", NULL, "--reference", "--prompts", PROMPTS, "--expect",
            path, "--quiet", NULL);
        run(7, "not a result of this program", NULL, "--reference", "--prompt", "x", "--expect",
            junk_path, "--quiet", NULL);
        unlink(junk_path);
        free(junk_path);
}

static void test_paged(void)
{
        struct daemon_process *process = daemon_of(64 * MIB);
        const char *socket = daemon_process_client_socket(process);
        const char *json = temporary("paged.json");

        run(0, "same as", NULL, "--driver", "simulated", "--socket", socket, "--prompts", PROMPTS,
            "--expect", reference, "--json", json, "--quiet", NULL);
        CU_ASSERT_EQUAL(total(json, "preemptions"), 0);
        CU_ASSERT_EQUAL(total(json, "sequences_peak"), 16);
        CU_ASSERT(total(json, "granted_bytes_peak") > 0);
        CU_ASSERT(total(json, "granted_bytes_peak") <= 16 * (int64_t)MIB);
        CU_ASSERT_EQUAL(total(json, "static_reservation_bytes"), 16 * 2048 * 1536);
        CU_ASSERT_EQUAL(total(json, "generated_tokens"), total(reference, "generated_tokens"));
        daemon_end(process);
}

/* Other batches, chunks, pages and threads: other steps, the same tokens. */
static void test_shapes(void)
{
        static const char *const shapes[][6] = {
                {"--max-sequences", "1", "--max-batch-tokens", "1"},
                {"--max-sequences", "7", "--max-batch-tokens", "33", "--page-tokens", "32"},
                {"--max-sequences", "64", "--max-batch-tokens", "1000", "--page-tokens", "128"},
                {"--max-sequences", "3", "--max-batch-tokens", "17", "--threads", "3"},
        };
        struct daemon_process *process = daemon_of(64 * MIB);

        for (size_t i = 0; i < 4; i++)
                run(0, "same as", NULL, "--driver", "simulated", "--socket",
                    daemon_process_client_socket(process), "--prompts", PROMPTS, "--expect",
                    reference, "--quiet", shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3],
                    shapes[i][4], shapes[i][5], NULL);
        daemon_end(process);
}

/* One unit for the cache, where 16 sequences want three: sequences are preempted, and nobody can
 * tell from the text. */
static void test_tiny_device(void)
{
        struct daemon_process *process = daemon_of(10 * MIB);
        const char *json = temporary("tiny.json");

        run(0, "same as", NULL, "--driver", "simulated", "--socket",
            daemon_process_client_socket(process), "--prompts", PROMPTS, "--expect", reference,
            "--json", json, "--quiet", NULL);
        CU_ASSERT(total(json, "preemptions") > 0);
        CU_ASSERT(total(json, "recomputed_tokens") > 0);
        CU_ASSERT_EQUAL(total(json, "units_grown"), 1);
        daemon_end(process);
}

/* The same by the engine's own limit, on a large device. */
static void test_own_limit(void)
{
        struct daemon_process *process = daemon_of(64 * MIB);
        const char *json = temporary("limit.json");

        run(0, "same as", NULL, "--driver", "simulated", "--socket",
            daemon_process_client_socket(process), "--prompts", PROMPTS, "--expect", reference,
            "--json", json, "--quiet", "--kv-max-bytes", "2097152", "--max-sequence-tokens", "600",
            NULL);
        CU_ASSERT(total(json, "preemptions") > 0);
        CU_ASSERT(total(json, "granted_bytes_peak") <= 2 * (int64_t)MIB);
        run(3,
            "--kv-max-bytes 2097151 is too small: the cache of this model grows by units of 2097152",
            NULL, "--driver", "simulated", "--socket", daemon_process_client_socket(process),
            "--prompt", "x", "--kv-max-bytes", "2097151", NULL);
        daemon_end(process);
}

/* Two engines on a device that cannot hold what both would like: both finish, both are right. */
static void test_two_engines(void)
{
        struct daemon_process *process = daemon_of(22 * MIB);
        const char *arguments[] = {
                "--driver",  "simulated",       "--socket", daemon_process_client_socket(process),
                "--prompts", PROMPTS,           "--expect", reference,
                "--quiet",   "--max-sequences", "32",       NULL};
        struct child children[2];

        child_start(&children[0], NULL, arguments);
        child_start(&children[1], NULL, arguments);
        for (int i = 0; i < 2; i++) {
                const int code = child_wait(&children[i]);

                CU_ASSERT_EQUAL(code, 0);
                CU_ASSERT(strstr(children[i].text, "same as") != NULL);
                if (code)
                        fprintf(stderr, "\nexit %d: %s\n", code, children[i].text);
        }
        daemon_end(process);
}

/* Two engines, each left with one sequence, each needing a unit more, and none free: one lets go,
 * so both finish. */
static void test_deadlock(void)
{
        static const char prompt[] = "And it came to pass";
        struct daemon_process *process = daemon_of(20 * MIB);
        const char *expected = temporary("long.json");
        const char *jsons[2] = {temporary("left.json"), temporary("right.json")};
        struct child children[2];

        run(0, NULL, NULL, "--reference", "--prompt", prompt, "--json", expected, "--quiet",
            "--max-new-tokens", "1500", NULL);
        CU_ASSERT_EQUAL_FATAL(total(expected, "generated_tokens"), 1500);
        for (int i = 0; i < 2; i++) {
                const char *arguments[] = {"--driver", "simulated",
                                           "--socket", daemon_process_client_socket(process),
                                           "--prompt", prompt,
                                           "--expect", expected,
                                           "--json",   jsons[i],
                                           "--quiet",  "--max-new-tokens",
                                           "1500",     "--step-delay-ms",
                                           "1",        NULL};

                child_start(&children[i], NULL, arguments);
        }
        for (int i = 0; i < 2; i++) {
                const int code = child_wait(&children[i]);

                CU_ASSERT_EQUAL(code, 0);
                if (code)
                        fprintf(stderr, "\nexit %d: %s\n", code, children[i].text);
        }
        /* Unless one was so late that the other had both units from the start, somebody let go. */
        if (total(jsons[0], "units_grown") + total(jsons[1], "units_grown") > 4)
                CU_ASSERT(total(jsons[0], "preemptions") + total(jsons[1], "preemptions") > 0);
        daemon_end(process);
}

static void test_too_small(void)
{
        static const uint64_t sizes[] = {2, 6, 8};
        static const char *const about[] = {"too small for weights", "too small for activations",
                                            "too small for another unit"};

        for (int i = 0; i < 3; i++) {
                struct daemon_process *process = daemon_of(sizes[i] * MIB);

                run(6, about[i], NULL, "--driver", "simulated", "--socket",
                    daemon_process_client_socket(process), "--prompt", "x", NULL);
                daemon_end(process);
        }
}

/* Interrupted half-way: clean exit, a result that says so, memory back. */
static void test_signals(void)
{
        static const int signals[] = {SIGINT, SIGTERM};
        struct daemon_process *process = daemon_of(64 * MIB);
        const char *json = temporary("interrupted.json");
        const char *arguments[] = {"--driver",
                                   "simulated",
                                   "--socket",
                                   daemon_process_client_socket(process),
                                   "--prompts",
                                   PROMPTS,
                                   "--progress",
                                   "50",
                                   "--step-delay-ms",
                                   "20",
                                   "--json",
                                   json,
                                   NULL};

        for (int i = 0; i < 2; i++) {
                struct child child;
                json_object *root, *complete;

                child_start(&child, NULL, arguments);
                CU_ASSERT(child_says(&child, "progress: "));
                kill(child.pid, signals[i]);
                CU_ASSERT_EQUAL(child_wait(&child), 128 + signals[i]);
                CU_ASSERT(strstr(child.text, "ended by signal") != NULL);
                root = json_object_from_file(json);
                CU_ASSERT_PTR_NOT_NULL_FATAL(root);
                CU_ASSERT(json_object_object_get_ex(root, "complete", &complete));
                CU_ASSERT(!json_object_get_boolean(complete));
                CU_ASSERT(total(json, "generated_tokens") >= 50);
                json_object_put(root);
        }
        /* Nobody takes such a file for a result. */
        run(1, "that run was interrupted", NULL, "--reference", "--prompts", PROMPTS, "--expect",
            json, "--quiet", NULL);
        daemon_end(process);
}

/* Killed outright: the daemon has its memory back, and the next engine is right. */
static void test_killed(void)
{
        struct daemon_process *process = daemon_of(14 * MIB);
        const char *socket = daemon_process_client_socket(process);
        const char *arguments[] = {"--driver",  "simulated",       "--socket",   socket,
                                   "--prompts", PROMPTS,           "--progress", "50",
                                   "--quiet",   "--step-delay-ms", "20",         NULL};
        struct child child;

        child_start(&child, NULL, arguments);
        CU_ASSERT(child_says(&child, "progress: "));
        kill(child.pid, SIGKILL);
        CU_ASSERT_EQUAL(child_wait(&child), 1000 + SIGKILL);
        run(0, "same as", NULL, "--driver", "simulated", "--socket", socket, "--prompts", PROMPTS,
            "--expect", reference, "--quiet", NULL);
        daemon_end(process);
}

/* The daemon goes away in the middle: a typed end, not a hang. */
static void test_daemon_lost(void)
{
        struct daemon_process *process = daemon_of(10 * MIB);
        const char *arguments[] = {
                "--driver",  "simulated",       "--socket",   daemon_process_client_socket(process),
                "--prompts", PROMPTS,           "--progress", "20",
                "--quiet",   "--step-delay-ms", "5",          NULL};
        struct child child;
        int code;

        child_start(&child, NULL, arguments);
        CU_ASSERT(child_says(&child, "progress: "));
        kill(daemon_process_pid(process), SIGKILL);
        code = child_wait(&child);
        CU_ASSERT_EQUAL(code, 5);
        if (code != 5)
                fprintf(stderr, "\nexit %d: %s\n", code, child.text);
        daemon_process_free(process);
}

static void test_errors(void)
{
        struct gguf_bytes broken = gguf_model_file(&gguf_model_small);
        char *path;

        broken.bytes /= 2;
        path = gguf_bytes_save(&broken);
        run(2, "no matrix kernels for a GPU", NULL, "--driver", "cuda", "--prompt", "x", NULL);
        run(3, "--prompt", NULL, "--driver", "simulated", NULL);
        run(3, "no such option", NULL, "--prompt", "x", "--frobnicate", NULL);
        run(3, "must be 16, 32, 64 or 128", NULL, "--prompt", "x", "--page-tokens", "48", NULL);
        run(3, "prompt 1 has 8 tokens", NULL, "--reference", "--prompt", "In the beginning",
            "--max-sequence-tokens", "8", NULL);
        run(3, "more than the model's context", NULL, "--reference", "--prompt", "x",
            "--max-sequence-tokens", "2049", NULL);
        run(4, "/no/such/model: No such file", NULL, "--reference", "--prompt", "x", "--model",
            "/no/such/model", NULL);
        run(4, "truncated or corrupt", NULL, "--reference", "--prompt", "x", "--model", path, NULL);
        run(4, "not a GGUF file", NULL, "--reference", "--prompt", "x", "--model", PROMPTS, NULL);
        run(5, "/no/such/socket: No such file or directory; is gpumemd running? (start gpumemd",
            NULL, "--driver", "simulated", "--socket", "/no/such/socket", "--prompt", "x", NULL);
        run(7, "/no/such/directory", NULL, "--reference", "--prompt", "x", "--json",
            "/no/such/directory/x", "--quiet", NULL);
        /* Found before anything else is, and so before any work. */
        run(7, "--json /no/such/directory/x", NULL, "--reference", "--prompt", "x", "--model",
            "/no/such/model", "--json", "/no/such/directory/x", NULL);
        run(7, "Is a directory", NULL, "--reference", "--prompt", "x", "--json", directory, NULL);
        run(3, "more than 256 MiB of prompts", NULL, "--reference", "--prompts", "/dev/zero", NULL);
        run(3, "Is a directory", NULL, "--reference", "--prompts", "/tmp", NULL);
        unlink(path);
        free(path);
        free(broken.data);
}

/* Prompts from a pipe, results into one. */
static void test_pipes(void)
{
        static const char command[] = "printf 'In the beginning\\nAnd the king said\\n' |"
                                      " %s --model " MODEL " --reference --quiet --max-new-tokens 4"
                                      " --prompts /dev/stdin --json /dev/stdout | cat >%s";
        const char *path = temporary("piped.json");
        char line[3 * PATH_MAX];

        snprintf(line, sizeof(line), command, program, path);
        CU_ASSERT_EQUAL(system(line), 0);
        CU_ASSERT_EQUAL(total(path, "generated_tokens"), 8);
        run(0, "same as", NULL, "--reference", "--prompt", "In the beginning", "--prompt",
            "And the king said", "--max-new-tokens", "4", "--expect", path, "--quiet", NULL);
}

/* A result is written through a symbolic link; a run that fails leaves nothing beside it. */
static void test_json_link(void)
{
        const char *link = temporary("link.json"), *target = temporary("target.json");
        struct stat status;
        char command[2 * PATH_MAX];

        CU_ASSERT_EQUAL(symlink("target.json", link), 0);
        CU_ASSERT_EQUAL(close(open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), 0);
        run(0, NULL, NULL, "--reference", "--prompt", "x", "--max-new-tokens", "2", "--quiet",
            "--json", link, NULL);
        CU_ASSERT(lstat(link, &status) == 0 && S_ISLNK(status.st_mode));
        CU_ASSERT_EQUAL(total(target, "generated_tokens"), 2);
        run(4, NULL, NULL, "--reference", "--prompt", "x", "--model", "/no/such/model", "--json",
            link, NULL);
        CU_ASSERT_EQUAL(total(target, "generated_tokens"), 2);
        snprintf(command, sizeof(command), "! ls %s | grep -q tmp", directory);
        CU_ASSERT_EQUAL(system(command), 0);
}

/* A model that computes NaN has no next token: said, not guessed. */
static void test_not_a_number(void)
{
        struct gguf_bytes file = gguf_model_file(&gguf_model_small);
        struct daemon_process *process = daemon_of(16 * MIB);
        struct gen_error error = {0};
        struct gguf *gguf;
        char *path;

        CU_ASSERT_EQUAL_FATAL(gguf_parse(&gguf, file.data, file.bytes, &error), 0);
        memset(file.data + (gguf_find_tensor(gguf, "output_norm.weight")->data - file.data), 0xff,
               4);
        gguf_free(gguf);
        path = gguf_bytes_save(&file);
        run(7, "prompt 1: the model's output is not a number", NULL, "--reference", "--prompt", "x",
            "--model", path, NULL);
        run(7, "prompt 1: the model's output is not a number", NULL, "--driver", "simulated",
            "--socket", daemon_process_client_socket(process), "--prompt", "x", "--model", path,
            NULL);
        daemon_end(process);
        unlink(path);
        free(path);
        free(file.data);
}

/* Portable C is an instruction set of its own: the same holds there. */
static void test_portable(void)
{
        static const char one[] = "In the beginning God created the heaven and the earth.";
        static const char two[] = "And the king said unto him, What is thy petition?";
        struct daemon_process *process = daemon_of(16 * MIB);
        const char *json = temporary("portable.json");

        setenv("GPUMEM_CPU_ISA", "portable", 1);
        run(0, NULL, NULL, "--reference", "--prompt", one, "--prompt", two, "--prompt", "O",
            "--json", json, "--quiet", NULL);
        run(0, "same as", NULL, "--driver", "simulated", "--socket",
            daemon_process_client_socket(process), "--prompt", one, "--prompt", two, "--prompt",
            "O", "--expect", json, "--quiet", "--max-batch-tokens", "16", NULL);
        unsetenv("GPUMEM_CPU_ISA");
        daemon_end(process);
}

/* What people read. */
static void test_text(void)
{
        const char *path = temporary("text");
        char text[4096] = "";
        FILE *file;

        run(0, NULL, path, "--reference", "--prompt", "In the beginning", "--prompt",
            "And the king said", "--max-new-tokens", "12", NULL);
        file = fopen(path, "r");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        CU_ASSERT(fread(text, 1, sizeof(text) - 1, file) > 40);
        fclose(file);
        CU_ASSERT_EQUAL(strncmp(text, "[1] In the beginning ", 21), 0);
        CU_ASSERT(strstr(text, "\n[2] And the king said ") != NULL);
        run(0, NULL, path, "--help", NULL);
        file = fopen(path, "r");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        CU_ASSERT_PTR_NOT_NULL(fgets(text, sizeof(text), file));
        fclose(file);
        CU_ASSERT_EQUAL(strncmp(text, "Usage: gpumem-gen", 17), 0);
}

static int prepare(void)
{
        if (!mkdtemp(directory) || daemon_process_product("gpumem-gen", program, sizeof(program)))
                return 1;
        snprintf(reference, sizeof(reference), "%s/reference.json", directory);
        /* The default of --driver must not come from whoever runs the tests. */
        unsetenv("GPUMEM_DRIVER");
        unsetenv("GPUMEM_SOCKET");
        return 0;
}

static int clean_up(void)
{
        static const char *const names[] = {
                "reference.json", "changed.json",     "paged.json",    "tiny.json",
                "limit.json",     "interrupted.json", "portable.json", "long.json",
                "left.json",      "right.json",       "text",          "piped.json",
                "link.json",      "target.json",
        };

        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                unlink(temporary(names[i]));
        return rmdir(directory);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("gpumem-gen", prepare, clean_up);
        if (!suite || !CU_add_test(suite, "reference", test_reference) ||
            !CU_add_test(suite, "a difference is found", test_expect_finds) ||
            !CU_add_test(suite, "text and help", test_text) ||
            !CU_add_test(suite, "errors", test_errors) ||
            !CU_add_test(suite, "pipes", test_pipes) ||
            !CU_add_test(suite, "a result behind a link", test_json_link) ||
            !CU_add_test(suite, "not a number", test_not_a_number) ||
            !CU_add_test(suite, "paged", test_paged) ||
            !CU_add_test(suite, "portable", test_portable) ||
            !CU_add_test(suite, "other batches and pages", test_shapes) ||
            !CU_add_test(suite, "a tiny device", test_tiny_device) ||
            !CU_add_test(suite, "a limit of its own", test_own_limit) ||
            !CU_add_test(suite, "two engines", test_two_engines) ||
            !CU_add_test(suite, "two engines that wait for each other", test_deadlock) ||
            !CU_add_test(suite, "devices that are too small", test_too_small) ||
            !CU_add_test(suite, "signals", test_signals) ||
            !CU_add_test(suite, "killed", test_killed) ||
            !CU_add_test(suite, "the daemon is lost", test_daemon_lost))
                return 1;
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures() + CU_get_number_of_tests_failed();
        CU_cleanup_registry();
        return failures ? 1 : 0;
}
