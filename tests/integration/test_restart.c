/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon and its keeper killed at every moment: engines on libgpumem see pauses, and afterwards
 * everything adds up. Engines are processes of their own, so that each has its own driver.
 */
#include <CUnit/Basic.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpumem/gpumem.h>

#include "tests/support/daemon_process.h"
#include "tests/support/daemon_unit.h"

#define MIB       (UINT64_C(1) << 20)
#define FRAME     (UINT64_C(2) * MIB)
#define ENGINE_MS 60000

static struct daemon_process *process;

/* What an engine tells the test, and the other way round. */
static struct shared {
        volatile int stage; /* the engine: how far it has come */
        volatile int go;    /* the test: go on to this stage */
        volatile uint32_t rounds;
} * shared;

static void pause_ms(long ms)
{
        const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

        nanosleep(&pause, NULL);
}

static void start(const char *crash_at)
{
        const struct daemon_options options = {
                .memory_bytes = 32 * FRAME,
                .frame_bytes = FRAME,
                .watermark_low = 2,
                .watermark_high = 4,
                .keeper = 1,
        };

        if (crash_at)
                setenv("GPUMEMD_CRASH_AT", crash_at, 1);
        else
                unsetenv("GPUMEMD_CRASH_AT");
        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
        unsetenv("GPUMEMD_CRASH_AT");
        memset(shared, 0, sizeof(*shared));
}

static unsigned count_in_log(const char *text)
{
        char line[4096];
        FILE *file = fopen(daemon_process_log(process), "re");
        unsigned count = 0;

        while (file && fgets(line, sizeof(line), file))
                count += strstr(line, text) != NULL;
        if (file)
                fclose(file);
        return count;
}

static int until(int (*holds)(int64_t), int64_t argument)
{
        for (int i = 0; i < 1000; i++) {
                if (holds(argument))
                        return 1;
                pause_ms(10);
        }
        return 0;
}

static int is_granted(int64_t wanted)
{
        int64_t granted = -1, draining = -1;

        return daemon_process_number(process, "io.gpumemd.GetStatus", "granted", &granted) == 0 &&
               daemon_process_number(process, "io.gpumemd.GetStatus", "draining", &draining) == 0 &&
               granted + draining == wanted;
}

static int has_answered(int64_t unused)
{
        (void)unused;
        return daemon_process_check(process, NULL, 0) == 0;
}

static int has_stage(int64_t stage)
{
        return shared->stage >= stage;
}

static int has_another_daemon(int64_t before)
{
        pid_t pid = daemon_process_daemon(process);

        return pid > 0 && pid != before;
}

static int has_another_keeper(int64_t before)
{
        pid_t pid = daemon_process_keeper(process);

        return pid > 0 && pid != before;
}

static void show_log(void)
{
        char line[4096];
        FILE *file = fopen(daemon_process_log(process), "re");

        while (file && fgets(line, sizeof(line), file))
                if (!strstr(line, ": debug:"))
                        fprintf(stderr, "  | %s", line);
        if (file)
                fclose(file);
}

/* Nothing is held any more, everything adds up, nothing was lost, and the stop is clean. */
static void stop(void)
{
        CU_ASSERT(until(is_granted, 0));
        CU_ASSERT(until(has_answered, 0));
        CU_ASSERT_EQUAL(count_in_log("frames_lost=0"), count_in_log("frames_lost="));
        CU_ASSERT_EQUAL(count_in_log("frames_released=0"), count_in_log("frames_released="));
        if (CU_get_number_of_failures() > 0)
                show_log();
        CU_ASSERT_EQUAL(daemon_process_stop(process), 0);
        CU_ASSERT_EQUAL(daemon_process_daemon(process), 0);
        CU_ASSERT_EQUAL(daemon_process_keeper(process), 0);
        process = daemon_process_free(process);
}

/* --- the engine ----------------------------------------------------------------------------------
 */

#define TRY(call)                                                                                  \
        do {                                                                                       \
                int try_result = (call);                                                           \
                if (try_result != 0) {                                                             \
                        fprintf(stderr, "engine: line %d: %s: %s\n", __LINE__,                     \
                                gpumem_error_name(try_result), gpumem_error_message());            \
                        return 1;                                                                  \
                }                                                                                  \
        } while (0)
#define HOLDS(condition)                                                                           \
        do {                                                                                       \
                if (!(condition)) {                                                                \
                        fprintf(stderr, "engine: line %d: " #condition "\n", __LINE__);            \
                        return 1;                                                                  \
                }                                                                                  \
        } while (0)

static int open_session(struct gpumem **session)
{
        const struct gpumem_options options = {
                .size = sizeof(options),
                .socket_path = daemon_process_client_socket(process),
                .driver = GPUMEM_DRIVER_SIMULATOR,
                .name = "engine",
                .timeout_ms = 20000,
        };

        return gpumem_connect(session, &options);
}

static int fill(struct gpumem *session, struct gpumem_buffer *buffer, uint64_t seed, int check)
{
        size_t words = gpumem_buffer_bytes(buffer) / sizeof(uint64_t);
        void *view;
        uint64_t *at;

        TRY(gpumem_host_view(session, gpumem_buffer_address(buffer), gpumem_buffer_bytes(buffer),
                             &view));
        at = view;
        for (size_t i = 0; i < words; i += 64) {
                uint64_t value = (seed << 32 | i) * UINT64_C(0x9e3779b97f4a7c15);

                if (check)
                        HOLDS(at[i] == value);
                at[i] = value;
        }
        return 0;
}

/* Makes, fills, checks and frees buffers of 1 to 5 frames, `rounds` times. */
static int work(struct gpumem *session, uint32_t rounds)
{
        struct gpumem_buffer *buffers[4] = {NULL};

        for (uint32_t round = 0; round < rounds; round++) {
                uint32_t slot = round % 4;

                if (buffers[slot]) {
                        if (fill(session, buffers[slot], round - 4, 1))
                                return 1;
                        gpumem_buffer_free(buffers[slot]);
                        buffers[slot] = NULL;
                }
                TRY(gpumem_buffer_create(session, FRAME * (1 + round % 5), "b", 5000,
                                         &buffers[slot]));
                if (fill(session, buffers[slot], round, 0))
                        return 1;
                shared->rounds++;
        }
        for (uint32_t slot = 0; slot < 4; slot++) {
                if (!buffers[slot])
                        continue;
                for (uint32_t round = rounds - 4; round < rounds; round++)
                        if (round % 4 == slot && fill(session, buffers[slot], round, 1))
                                return 1;
                gpumem_buffer_free(buffers[slot]);
        }
        return 0;
}

static int engine_short(void)
{
        struct gpumem_info info;
        struct gpumem *session;

        for (int i = 0; i < 2; i++) {
                TRY(open_session(&session));
                if (work(session, 6))
                        return 1;
                TRY(gpumem_get_info(session, &info));
                HOLDS(info.session_bytes == 0);
                gpumem_disconnect(session);
        }
        return 0;
}

/* Works until the test says enough. */
static int engine_long(void)
{
        struct gpumem_info info;
        struct gpumem *session;

        TRY(open_session(&session));
        shared->stage = 1;
        do {
                if (work(session, 8))
                        return 1;
        } while (shared->go < 2);
        TRY(gpumem_get_info(session, &info));
        HOLDS(info.session_bytes == 0);
        gpumem_disconnect(session);
        return 0;
}

/* Holds two buffers, waits, and looks at them again. */
static int engine_hold(void)
{
        struct gpumem_buffer *buffers[2], *more;
        struct gpumem *session;

        TRY(open_session(&session));
        for (uint64_t i = 0; i < 2; i++) {
                TRY(gpumem_buffer_create(session, 3 * FRAME, "held", 5000, &buffers[i]));
                if (fill(session, buffers[i], i, 0))
                        return 1;
        }
        shared->stage = 1;
        while (shared->go < 1)
                pause_ms(5);
        for (uint64_t i = 0; i < 2; i++)
                if (fill(session, buffers[i], i, 1))
                        return 1;
        if (shared->go == 9) {
                /* Both are dead: what is mapped stays, nothing more can be had. */
                int r = gpumem_buffer_create(session, FRAME, "more", 5000, &more);

                HOLDS(r == GPUMEM_E_DOWN);
                gpumem_disconnect(session);
                return 0;
        }
        TRY(gpumem_buffer_create(session, FRAME, "more", 5000, &more));
        gpumem_buffer_free(more);
        for (int i = 0; i < 2; i++)
                gpumem_buffer_free(buffers[i]);
        gpumem_disconnect(session);
        return 0;
}

static int engine_connect(void)
{
        struct gpumem *session;

        shared->stage = 1;
        TRY(open_session(&session));
        shared->stage = 2;
        gpumem_disconnect(session);
        return 0;
}

static pid_t run_engine(int (*engine)(void))
{
        pid_t pid = fork();

        CU_ASSERT_FATAL(pid >= 0);
        if (pid == 0) {
                int r;

                alarm(ENGINE_MS / 1000);
                r = engine();
                fflush(stderr);
                _exit(r);
        }
        return pid;
}

static int wait_engine(pid_t pid)
{
        int status = -1;

        waitpid(pid, &status, 0);
        return status;
}

/* --- killed at a place ---------------------------------------------------------------------------
 */

static void test_crash_points(void)
{
        static const char *const points[] = {
                "request-read:1@0",    "request-read:2@0",   "request-read:5@0",
                "before-commit:1@0",   "before-commit:3@0",  "before-commit:4@0",
                "after-commit:1@0",    "after-commit:2@0",   "after-commit:3@0",
                "after-commit:7@0",    "reply-sent:1@0",     "reply-sent:3@0",
                "grant-done:1@0",      "grant-done:3@0",     "session-kept:1@0",
                "session-kept:2@0",    "session-closed:1@0", "frame-created:1@0",
                "frame-created:6@0",   "frame-kept:5@0",     "frame-scrubbed:1@0",
                "frame-releasing:1@0", "frame-dropped:1@0",  "frame-released:2@0",
        };

        for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
                unsigned failures = CU_get_number_of_failures();
                pid_t engine;

                /* (A crash before the first daemon was in service is final.) */
                if (strcmp(points[i], "frame-created:1@0") == 0)
                        continue;
                start(points[i]);
                engine = run_engine(engine_short);
                CU_ASSERT_EQUAL(wait_engine(engine), 0);
                CU_ASSERT(until(is_granted, 0));
                CU_ASSERT_EQUAL(count_in_log("taken over from the last daemon"), 1);
                stop();
                if (CU_get_number_of_failures() > failures)
                        fprintf(stderr, "that was %s\n", points[i]);
        }
}

/* Takeovers that are cut short themselves. */
static void test_crash_in_takeover(void)
{
        pid_t engine;

        start("after-commit:5@0,takeover-read:1@1,takeover-imported:1@2,takeover-built:1@3,"
              "takeover-switched:1@4,request-read:1@5,before-commit:1@6,takeover-imported:1@7");
        engine = run_engine(engine_short);
        CU_ASSERT_EQUAL(wait_engine(engine), 0);
        CU_ASSERT(until(is_granted, 0));
        CU_ASSERT_EQUAL(
                daemon_process_number(process, "io.gpumemd.GetStatus", "uptime_us", &(int64_t){0}),
                0);
        CU_ASSERT(count_in_log("generation=8") >= 1);
        stop();
}

/* Every daemon dies at its first, or second, request: each gets a little further. */
static void test_many_crashes(void)
{
        static const char *const points[] = {"after-commit:1@*", "reply-sent:2@*"};

        for (int i = 0; i < 2; i++) {
                unsigned crashes = 0;
                pid_t engine;

                start(points[i]);
                engine = run_engine(engine_short);
                CU_ASSERT_EQUAL(wait_engine(engine), 0);
                /* (daemon_process_number() asks over the admin socket, which is no request.) */
                CU_ASSERT(until(is_granted, 0));
                crashes = count_in_log("taken over from the last daemon");
                CU_ASSERT(crashes >= 10);
                stop();
        }
}

/* --- killed from outside -------------------------------------------------------------------------
 */

static unsigned count_fds(pid_t pid)
{
        char path[64];
        DIR *directory;
        unsigned count = 0;

        snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
        directory = opendir(path);
        while (directory && readdir(directory))
                count++;
        if (directory)
                closedir(directory);
        return count;
}

/* Kills the daemon and waits until another answers. */
static void kill_daemon(void)
{
        pid_t daemon = daemon_process_daemon(process);

        CU_ASSERT_FATAL(daemon > 0);
        kill(daemon, SIGKILL);
        CU_ASSERT(until(has_another_daemon, daemon));
        CU_ASSERT(until(has_answered, 0));
}

static void kill_keeper(void)
{
        pid_t keeper = daemon_process_keeper(process);

        CU_ASSERT_FATAL(keeper > 0);
        kill(keeper, SIGKILL);
        daemon_process_alive(process); /* (reaps it, if it is the first) */
        CU_ASSERT(until(has_another_keeper, keeper));
        CU_ASSERT(until(has_answered, 0));
}

static void test_kills_under_load(void)
{
        unsigned daemon_fds, keeper_fds;
        pid_t engine;

        start(NULL);
        pause_ms(50);
        kill_daemon();
        pause_ms(200);
        daemon_fds = count_fds(daemon_process_daemon(process));
        keeper_fds = count_fds(daemon_process_keeper(process));
        engine = run_engine(engine_long);
        CU_ASSERT(until(has_stage, 1));
        for (int i = 0; i < 20; i++) {
                kill_daemon();
                pause_ms(i * 3);
        }
        shared->go = 2;
        CU_ASSERT_EQUAL(wait_engine(engine), 0);
        CU_ASSERT(shared->rounds > 8);
        CU_ASSERT(until(is_granted, 0));
        /* Back to the fresh pool and what there was at first, in both. */
        for (int i = 0; i < 200 && (count_fds(daemon_process_daemon(process)) != daemon_fds ||
                                    count_fds(daemon_process_keeper(process)) != keeper_fds);
             i++)
                pause_ms(10);
        CU_ASSERT_EQUAL(count_fds(daemon_process_daemon(process)), daemon_fds);
        CU_ASSERT_EQUAL(count_fds(daemon_process_keeper(process)), keeper_fds);
        stop();
}

/* The daemon goes on without its keeper and gives another everything, which is then enough. */
static void test_keeper_killed(void)
{
        pid_t engine, daemon;

        start(NULL);
        engine = run_engine(engine_long);
        CU_ASSERT(until(has_stage, 1));
        for (int i = 0; i < 5; i++) {
                daemon = daemon_process_daemon(process);
                pause_ms(30);
                kill_keeper();
                CU_ASSERT_EQUAL(daemon_process_daemon(process), daemon);
                pause_ms(200);
                kill_daemon();
        }
        shared->go = 2;
        CU_ASSERT_EQUAL(wait_engine(engine), 0);
        CU_ASSERT(until(is_granted, 0));
        CU_ASSERT(until(has_answered, 0));
        CU_ASSERT_EQUAL(count_in_log("frames_lost=0"), count_in_log("frames_lost="));
        CU_ASSERT(count_in_log("the keeper is gone; another is started") >= 5);
        /* SIGTERM to the daemon ends both. */
        daemon = daemon_process_daemon(process);
        kill(daemon, SIGTERM);
        for (int i = 0;
             i < 500 && (daemon_process_daemon(process) || daemon_process_keeper(process)); i++)
                pause_ms(10);
        CU_ASSERT_EQUAL(daemon_process_daemon(process), 0);
        CU_ASSERT_EQUAL(daemon_process_keeper(process), 0);
        process = daemon_process_free(process);
}

static void test_both_killed(void)
{
        pid_t engine;

        start(NULL);
        engine = run_engine(engine_hold);
        CU_ASSERT(until(has_stage, 1));
        kill(daemon_process_keeper(process), SIGSTOP);
        kill(daemon_process_daemon(process), SIGKILL);
        kill(daemon_process_keeper(process), SIGKILL);
        while (daemon_process_alive(process))
                pause_ms(5);
        shared->go = 9;
        CU_ASSERT_EQUAL(wait_engine(engine), 0);
        process = daemon_process_free(process);
}

/* What happens while there is no daemon: the keeper is stopped meanwhile. */
static void test_gap(void)
{
        pid_t holder, victim, late, keeper;

        start(NULL);
        holder = run_engine(engine_hold);
        CU_ASSERT(until(has_stage, 1));
        shared->stage = 0;
        victim = run_engine(engine_hold);
        CU_ASSERT(until(has_stage, 1));
        CU_ASSERT(until(is_granted, 12));

        keeper = daemon_process_keeper(process);
        kill(keeper, SIGSTOP);
        kill(daemon_process_daemon(process), SIGKILL);
        kill(victim, SIGKILL);
        wait_engine(victim);
        shared->stage = 0;
        late = run_engine(engine_connect);
        CU_ASSERT(until(has_stage, 1));
        shared->go = 1; /* the holder asks for more in the gap */
        pause_ms(300);
        CU_ASSERT_EQUAL(shared->stage, 1);
        kill(keeper, SIGCONT);
        CU_ASSERT_EQUAL(wait_engine(late), 0);
        CU_ASSERT_EQUAL(wait_engine(holder), 0);
        stop();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"killed at every place", test_crash_points},
                {"takeovers cut short", test_crash_in_takeover},
                {"every daemon dies at once", test_many_crashes},
                {"the daemon is killed under load", test_kills_under_load},
                {"the keeper is killed under load", test_keeper_killed},
                {"both are killed", test_both_killed},
                {"while there is no daemon", test_gap},
        };

        shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                      0);
        if (shared == MAP_FAILED)
                return 2;
        return UNIT_RUN("restart", tests);
}
