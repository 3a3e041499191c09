/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes torment a real daemon at once (tests/support/torturer.c), some of them killed
 * at any instruction and replaced. All through it a client that behaves is served; afterwards the
 * daemon is alive, its books are right, nothing is granted, and it has as many descriptors and as
 * much memory as before. The seed is printed; GPUMEM_TORTURE_SEED repeats one (as far as timing
 * can be repeated), GPUMEM_TORTURE_SECONDS makes it last longer.
 */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/wire/wire.h"
#include "tests/support/daemon_process.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/raw_client.h"
#include "tests/support/torturer.h"

enum {
        TORTURERS = 4,
        SECONDS_DEFAULT = 4,
        WARM_UP_MS = 1500,
        SETTLE_MS = 20000,
        FRAMES = 64,
        FRAME_BYTES = 65536,
        RSS_SLACK_KB = 4096,
        CHUNK_MS = 100,
};

static struct daemon_process *process;
static struct torture torture;
static uint64_t seed, random_state;

static uint64_t number_from(const char *name, uint64_t otherwise)
{
        const char *text = getenv(name);

        return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static long daemon_rss_kb(void)
{
        char path[64], line[256];
        long kb = -1;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/status", (int)daemon_process_pid(process));
        file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file))
                if (sscanf(line, "RssAnon: %ld", &kb) == 1)
                        break;
        if (file)
                fclose(file);
        return kb;
}

static int64_t number(const char *method, const char *key)
{
        int64_t value = -1;

        CU_ASSERT_EQUAL(daemon_process_number(process, method, key, &value), 0);
        return value;
}

/* The daemon's descriptors but for its frames: one that exists has one, its export. */
static int64_t count_daemon_fds(void)
{
        char path[64];
        DIR *directory;
        int count = 0;

        snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon_process_pid(process));
        directory = opendir(path);
        while (directory && readdir(directory))
                count++;
        if (directory)
                closedir(directory);
        return count - (FRAMES - number("io.gpumemd.GetStatus", "free"));
}

/* Everything that the torturers left is gone: no session, and every frame free or fresh. */
static bool is_settled(void)
{
        return number("io.gpumemd.GetStatus", "sessions") == 0 &&
               number("io.gpumemd.GetStatus", "free") + number("io.gpumemd.GetStatus", "fresh") ==
                       FRAMES;
}

static void settle(void)
{
        uint64_t deadline_ns = wire_deadline_ns(SETTLE_MS);
        bool settled;

        while (!(settled = is_settled()) && wire_now_ns() < deadline_ns)
                nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        CU_ASSERT(settled);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        CU_ASSERT_EQUAL(number("io.gpumemd.GetStatus", "quarantined"), 0);
}

static pid_t start_torturer(uint64_t deadline_ns)
{
        uint64_t own = torture_random(&random_state);
        pid_t pid = fork();

        if (pid != 0)
                return pid;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(torture_run(&torture, own, deadline_ns) == 0 ? 0 : 1);
}

/* A grant that may have to wait for what the torturers hold, but is answered. */
static void serve_one(void)
{
        static struct raw_client client;
        uint64_t object = 0, ids[2];
        int r;

        CU_ASSERT_EQUAL_FATAL(raw_connect(&client, torture.client_socket), 0);
        CU_ASSERT_EQUAL(raw_hello(&client, torture.device_uuid, 4096, "behaves"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&client, 1, 2, &object), 0);
        r = raw_grant(&client, object, 2, 100, ids);
        CU_ASSERT(r == 0 || r == -GPUMEM_E_TIMEOUT || r == -GPUMEM_E_AGAIN);
        if (r == 0)
                CU_ASSERT_EQUAL(raw_return(&client, object, 2, ids), 0);
        CU_ASSERT_EQUAL(raw_object_destroy(&client, object), 0);
        raw_close(&client);
}

/* Torturers until `ms` have passed; some are killed and followed by others. */
static void torment(uint64_t ms)
{
        const uint64_t deadline_ns = wire_deadline_ns((uint32_t)ms);
        pid_t torturers[TORTURERS];
        unsigned killed = 0, wrong = 0;
        int status;

        for (int i = 0; i < TORTURERS; i++)
                torturers[i] = start_torturer(deadline_ns);
        while (wire_now_ns() + CHUNK_MS * UINT64_C(1000000) < deadline_ns) {
                uint64_t choice = torture_random(&random_state);
                unsigned victim = choice % TORTURERS;

                serve_one();
                nanosleep(&(struct timespec){.tv_nsec = (long)(choice >> 8) % 50000000L}, NULL);
                /* Killed wherever it is. One that ended before found something. */
                kill(torturers[victim], SIGKILL);
                CU_ASSERT_EQUAL(waitpid(torturers[victim], &status, 0), torturers[victim]);
                wrong += WIFEXITED(status) && WEXITSTATUS(status) != 0;
                killed += WIFSIGNALED(status);
                torturers[victim] = start_torturer(deadline_ns);
        }
        for (int i = 0; i < TORTURERS; i++) {
                CU_ASSERT_EQUAL(waitpid(torturers[i], &status, 0), torturers[i]);
                wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        }
        printf("%u torturers killed; ", killed);
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT(daemon_process_alive(process));
}

static void test_torture(void)
{
        const struct daemon_options options = {
                .memory_bytes = (uint64_t)FRAMES * FRAME_BYTES,
                .frame_bytes = FRAME_BYTES,
                .watermark_low = 4,
                .watermark_high = 8,
                .max_clients = 256,
        };
        uint64_t deadline_ns, seconds = number_from("GPUMEM_TORTURE_SECONDS", SECONDS_DEFAULT);
        char *status = NULL;
        int64_t fds, fds_after;
        long rss_kb, rss_after_kb;

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
        torture = (struct torture){
                .client_socket = daemon_process_client_socket(process),
                .admin_socket = daemon_process_admin_socket(process),
                .granularity = 4096,
                .frames = FRAMES,
        };
        CU_ASSERT_EQUAL_FATAL(daemon_process_call(process, "io.gpumemd.GetStatus", NULL, &status),
                              0);
        CU_ASSERT_EQUAL_FATAL(raw_parse_uuid(status, torture.device_uuid), 0);
        free(status);

        /* What is allocated once (heap arenas, tables at their largest) is allocated here. */
        torment(WARM_UP_MS);
        settle();
        fds = count_daemon_fds();
        rss_kb = daemon_rss_kb();

        torment(seconds * 1000);
        settle();
        rss_after_kb = daemon_rss_kb();
        printf("seed %" PRIu64 ", daemon's memory %ld KiB before and %ld KiB after; ", seed, rss_kb,
               rss_after_kb);
        /* (What the daemon closes when its peer has closed, it closes a moment later.) */
        deadline_ns = wire_deadline_ns(SETTLE_MS);
        while ((fds_after = count_daemon_fds()) > fds && wire_now_ns() < deadline_ns)
                nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        CU_ASSERT(fds_after <= fds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        /* (A sanitizer keeps freed memory aside; its leak check at exit answers the question
         * there.) */
        CU_ASSERT(rss_after_kb <= rss_kb + RSS_SLACK_KB);
#endif
        process = daemon_process_free(process);
}

int main(void)
{
        static const struct unit_test tests[] = {{"torture", test_torture}};
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        seed = number_from("GPUMEM_TORTURE_SEED",
                           (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
        random_state = seed;
        printf("seed %" PRIu64 "\n", seed);
        fflush(stdout);
        return UNIT_RUN("torture", tests);
}
