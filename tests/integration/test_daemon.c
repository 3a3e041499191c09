/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpumemd as a process, with real client processes and the simulated driver: races, deaths, limits,
 * start and stop.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/driver/driver.h"
#include "libclient/wire/wire.h"
#include "tests/support/daemon_process.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/raw_client.h"

#define CODE(error) (-(error))
#define FRAME       (UINT64_C(64) << 10)
#define FRAMES      64

static struct daemon_process *process;
static struct raw_client a, b;
static uint64_t ids[FRAMES], more[FRAMES];

static void pause_ms(long ms)
{
        const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

        nanosleep(&pause, NULL);
}

static int wait_for(pid_t pid)
{
        int status = -1;

        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void start(void)
{
        const struct daemon_options options = {
                .memory_bytes = FRAMES * FRAME,
                .frame_bytes = FRAME,
        };

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
}

static void stop(void)
{
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        CU_ASSERT_EQUAL(daemon_process_stop(process), 0);
        CU_ASSERT_NOT_EQUAL(access(daemon_process_client_socket(process), F_OK), 0);
        CU_ASSERT_NOT_EQUAL(access(daemon_process_admin_socket(process), F_OK), 0);
        process = daemon_process_free(process);
}

static int64_t frames_in(const char *state)
{
        int64_t value = -1;

        daemon_process_number(process, "io.gpumemd.GetStatus", state, &value);
        return value;
}

static int wait_until_frames(const char *state, int64_t frames, uint32_t ms)
{
        uint64_t deadline = wire_deadline_ns(ms);

        while (frames_in(state) != frames) {
                if (wire_now_ns() > deadline)
                        return 0;
                pause_ms(1);
        }
        return 1;
}

static int log_says(const char *text)
{
        char line[2048];
        FILE *log = fopen(daemon_process_log(process), "r");
        int found = 0;

        while (log && !found && fgets(line, sizeof(line), log))
                found = strstr(line, text) != NULL;
        if (log)
                fclose(log);
        return found;
}

/* Runs gpumemd with arguments; its exit status. Its output goes to `output` if given. */
static int run_program(char *const *arguments, char *output, size_t size)
{
        char program[PATH_MAX];
        int pair[2], status;
        size_t length = 0;
        ssize_t n;
        pid_t pid;

        if (daemon_process_product("gpumemd", program, sizeof(program)) < 0 || pipe(pair) < 0)
                return -1;
        pid = fork();
        if (pid == 0) {
                dup2(pair[1], 1);
                dup2(pair[1], 2);
                execv(program, arguments);
                _exit(127);
        }
        close(pair[1]);
        while (length + 1 < size && (n = read(pair[0], output + length, size - length - 1)) > 0)
                length += (size_t)n;
        output[length] = '\0';
        close(pair[0]);
        status = wait_for(pid);
        return status;
}

/* --- racing --- */

#define RACERS 8
#define LEFT   5

/* One racer: waits for the start, asks once, says what came of it, and holds what it got. */
static _Noreturn void race(int go, int result, int done)
{
        uint64_t object, id;
        char byte;
        int r;

        if (raw_open(&b, process, "racer") != 0 || raw_object_create(&b, 1, 4, &object) != 0)
                _exit(2);
        if (write(result, "r", 1) != 1 || read(go, &byte, 1) != 0)
                _exit(2);
        r = raw_grant(&b, object, 1, 0, &id);
        byte = r == 0 ? 'w' : r == CODE(GPUMEM_E_AGAIN) ? 'l' : '?';
        if (write(result, &byte, 1) != 1 || read(done, &byte, 1) != 0)
                _exit(2);
        _exit(0);
}

/* C01: N processes race for the last frames: exactly as many win as there are, the others get a
 * typed answer. */
static void test_race(void)
{
        uint64_t object;

        start();
        CU_ASSERT_EQUAL(raw_open(&a, process, "first"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, FRAMES, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, FRAMES - LEFT, 0, ids), 0);
        for (int round = 0; round < 5; round++) {
                int go[2], result[2], done[2], won = 0, lost = 0;
                pid_t pids[RACERS];
                char byte;

                CU_ASSERT_EQUAL_FATAL(pipe(go) | pipe(result) | pipe(done), 0);
                for (int i = 0; i < RACERS; i++) {
                        pids[i] = fork();
                        if (pids[i] == 0) {
                                close(go[1]);
                                close(done[1]);
                                race(go[0], result[1], done[0]);
                        }
                }
                for (int i = 0; i < RACERS; i++)
                        CU_ASSERT(read(result[0], &byte, 1) == 1 && byte == 'r');
                close(go[1]);
                for (int i = 0; i < RACERS; i++) {
                        CU_ASSERT_EQUAL(read(result[0], &byte, 1), 1);
                        won += byte == 'w';
                        lost += byte == 'l';
                }
                CU_ASSERT_EQUAL(won, LEFT);
                CU_ASSERT_EQUAL(lost, RACERS - LEFT);
                CU_ASSERT_EQUAL(frames_in("granted"), FRAMES);
                CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
                close(done[1]);
                for (int i = 0; i < RACERS; i++)
                        CU_ASSERT_EQUAL(wait_for(pids[i]), 0);
                close(go[0]);
                close(result[0]);
                close(result[1]);
                close(done[0]);
                CU_ASSERT(wait_until_frames("granted", FRAMES - LEFT, 5000));
                CU_ASSERT(wait_until_frames("draining", 0, 5000));
        }
        raw_close(&a);
        stop();
}

/* --- accounts and waits --- */

/* C11: two sessions with two objects each in one process. */
static void test_two_sessions(void)
{
        struct gpumem_message_meminfo_reply info;
        uint64_t object[2][2];

        start();
        CU_ASSERT_EQUAL(raw_open(&a, process, "a"), 0);
        CU_ASSERT_EQUAL(raw_open(&b, process, "b"), 0);
        for (int i = 0; i < 2; i++) {
                CU_ASSERT_EQUAL(raw_object_create(&a, 1, FRAMES, &object[0][i]), 0);
                CU_ASSERT_EQUAL(raw_object_create(&b, 1, FRAMES, &object[1][i]), 0);
                CU_ASSERT_EQUAL(raw_grant(&a, object[0][i], 3, 0, ids + 3 * i), 0);
                CU_ASSERT_EQUAL(raw_grant(&b, object[1][i], 5, 0, more + 5 * i), 0);
        }
        CU_ASSERT_EQUAL(raw_return(&a, object[0][0], 1, ids + 3), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(raw_return(&a, object[0][0], 1, more), CODE(GPUMEM_E_NOT_FOUND));
        CU_ASSERT_EQUAL(raw_return(&a, object[0][0], 3, ids), 0);
        CU_ASSERT_EQUAL(raw_return(&a, object[0][0], 3, ids), CODE(GPUMEM_E_NOT_FOUND)); /* C24 */
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 3 * FRAME);
        CU_ASSERT_EQUAL(raw_meminfo(&b, &info), 0);
        CU_ASSERT_EQUAL(info.session_bytes, 10 * FRAME);
        CU_ASSERT_EQUAL(info.device_bytes, FRAMES * FRAME);
        CU_ASSERT_EQUAL(info.available_bytes, (FRAMES - 13) * FRAME); /* C08 */
        raw_close(&a);
        raw_close(&b);
        stop();
}

/* C14 */
static void test_waiting(void)
{
        uint64_t mine, other, began;
        pid_t pid;

        start();
        CU_ASSERT_EQUAL(raw_open(&a, process, "holder"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, FRAMES, &mine), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, mine, FRAMES, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_open(&b, process, "waiter"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, FRAMES, &other), 0);
        began = wire_now_ns();
        CU_ASSERT_EQUAL(raw_grant(&b, other, 2, 150, more), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT(wire_now_ns() - began >= 150000000u);
        CU_ASSERT(wire_now_ns() - began < 5000000000u);
        CU_ASSERT_PTR_NOT_NULL(strstr(b.text, "'holder' (pid "));
        CU_ASSERT_PTR_NOT_NULL(strstr(b.text, "holds 4 MiB"));
        /* Somebody gives back in time. */
        pid = fork();
        if (pid == 0) {
                pause_ms(100);
                _exit(raw_return(&a, mine, 2, ids) == 0 ? 0 : 1);
        }
        CU_ASSERT_EQUAL(raw_grant(&b, other, 2, 10000, more), 0);
        CU_ASSERT_EQUAL(wait_for(pid), 0);
        raw_close(&a);
        raw_close(&b);
        stop();
}

/* --- memory is what it should be --- */

static struct driver *driver;
static CUcontext context;

static int open_driver(void)
{
        char why[256];
        CUdevice device;

        if (driver_open(&driver, DRIVER_SIMULATED, NULL, why, sizeof(why)) < 0) {
                fprintf(stderr, "%s\n", why);
                return -1;
        }
        return driver->init(0) || driver->device_get(&device, 0) ||
               driver->device_primary_ctx_retain(&context, device) ||
               driver->ctx_set_current(context);
}

/* Imports a granted descriptor and maps it; 0 on failure. */
static CUdeviceptr map_frame(int fd, CUmemGenericAllocationHandle *handle)
{
        const CUmemAccessDesc access = {
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        CUdeviceptr address;

        if (driver->mem_import_from_shareable_handle(handle, (void *)(intptr_t)fd,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ||
            driver->mem_address_reserve(&address, FRAME, 0, 0, 0) ||
            driver->mem_map(address, FRAME, 0, *handle, 0) ||
            driver->mem_set_access(address, FRAME, &access, 1))
                return 0;
        return address;
}

static void unmap_frame(CUdeviceptr address, CUmemGenericAllocationHandle handle)
{
        CU_ASSERT_EQUAL(driver->mem_unmap(address, FRAME), CUDA_SUCCESS);
        CU_ASSERT_EQUAL(driver->mem_release(handle), CUDA_SUCCESS);
        CU_ASSERT_EQUAL(driver->mem_address_free(address, FRAME), CUDA_SUCCESS);
}

/* What was written into a frame is gone when the frame is given out again. (In a process of its
 * own: the driver belongs to the daemon of this test.) */
static int write_and_look(void)
{
        static unsigned char bytes[FRAME];
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;
        uint64_t object, id;
        unsigned wrong = 0;

        if (open_driver() || raw_open(&a, process, "writer") != 0 ||
            raw_object_create(&a, 1, 1, &object) != 0)
                return 1;
        a.keep_fds = 1;
        for (int round = 0; round < 3; round++) {
                if (raw_grant(&a, object, 1, 1000, &id) != 0)
                        return 2;
                address = map_frame(a.fds[0], &handle);
                if (!address)
                        return 3;
                if (driver->memcpy_dtoh(bytes, address, FRAME))
                        return 4;
                for (size_t i = 0; round > 0 && i < FRAME; i++)
                        wrong += bytes[i] != 0;
                memset(bytes, 0xa5, sizeof(bytes));
                if (driver->memcpy_htod(address, bytes, FRAME))
                        return 5;
                unmap_frame(address, handle);
                raw_close_fds(&a);
                if (raw_return(&a, object, 1, &id) != 0)
                        return 6;
                /* The same frame comes back, not another one that nobody had. */
                if (!wait_until_frames("ready", 1, 5000))
                        return 7;
        }
        return wrong ? 8 : 0;
}

static void test_scrubbed(void)
{
        pid_t pid;

        start();
        pid = fork();
        if (pid == 0)
                _exit(write_and_look());
        CU_ASSERT_EQUAL(wait_for(pid), 0);
        stop();
}

/* C03: memory is used up outside; the daemon says so and goes on, and the memory is had later. */
static int use_outside(int ready, int go)
{
        CUdeviceptr address;
        char byte;

        if (open_driver() || driver->mem_alloc(&address, (FRAMES / 2) * FRAME))
                return 1;
        if (write(ready, "r", 1) != 1 || read(go, &byte, 1) != 0)
                return 2;
        return driver->mem_free(address) ? 3 : 0;
}

static void test_out_of_memory(void)
{
        int ready[2], go[2];
        uint64_t object;
        char byte;
        pid_t pid;

        start();
        CU_ASSERT_EQUAL_FATAL(pipe(ready) | pipe(go), 0);
        pid = fork();
        if (pid == 0) {
                close(go[1]);
                _exit(use_outside(ready[1], go[0]));
        }
        close(go[0]);
        CU_ASSERT_EQUAL_FATAL(read(ready[0], &byte, 1), 1);
        CU_ASSERT_EQUAL(raw_open(&a, process, "a"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, FRAMES, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, FRAMES, 0, ids), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_EQUAL(raw_grant(&a, object, FRAMES, 300, ids), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(raw_grant(&a, object, FRAMES / 4, 0, ids), 0);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        CU_ASSERT(log_says("no memory for more frames"));
        close(go[1]);
        CU_ASSERT_EQUAL(wait_for(pid), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, FRAMES - FRAMES / 4, 20000, ids), 0);
        close(ready[0]);
        close(ready[1]);
        raw_close(&a);
        stop();
}

/* --- death --- */

/* A client holding frames, for killing: writes a byte when it has them, then sleeps. */
static pid_t start_holder(uint32_t frames, int then_close)
{
        int ready[2];
        char byte;
        pid_t pid;

        if (pipe(ready) < 0)
                return -1;
        pid = fork();
        if (pid == 0) {
                uint64_t object;

                if (raw_open(&b, process, "victim") != 0 ||
                    raw_object_create(&b, 1, FRAMES, &object) != 0 ||
                    raw_grant(&b, object, frames, 5000, ids) != 0)
                        _exit(1);
                if (then_close)
                        raw_close(&b);
                if (write(ready[1], "r", 1) != 1)
                        _exit(1);
                for (;;)
                        pause();
        }
        close(ready[1]);
        if (read(ready[0], &byte, 1) != 1) {
                close(ready[0]);
                return -1;
        }
        close(ready[0]);
        return pid;
}

static void test_killed(void)
{
        uint64_t object, killed, worst = 0;

        start();
        CU_ASSERT_EQUAL(raw_open(&a, process, "neighbour"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, FRAMES, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 4, 0, ids), 0);
        for (int i = 0; i < 10; i++) {
                pid_t pid = start_holder(40, 0);

                CU_ASSERT_FATAL(pid > 0);
                CU_ASSERT_EQUAL(frames_in("granted"), 44);
                killed = wire_now_ns();
                kill(pid, SIGKILL);
                CU_ASSERT(wait_until_frames("granted", 4, 5000));
                CU_ASSERT(wait_until_frames("draining", 0, 5000));
                if (wire_now_ns() - killed > worst)
                        worst = wire_now_ns() - killed;
                CU_ASSERT_EQUAL(wait_for(pid), -SIGKILL);
                CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        }
        /* (100 ms is the number to reach; ten times that still tells a wait from an accident of a
         * busy machine.) */
        CU_ASSERT(worst < 1000000000u);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 50, 5000, ids), 0);
        raw_close(&a);
        stop();
}

/* A closed connection is not a dead process. */
static void test_draining(void)
{
        uint64_t object;
        pid_t pid;

        start();
        CU_ASSERT_EQUAL(raw_open(&a, process, "neighbour"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, FRAMES, &object), 0);
        pid = start_holder(40, 1);
        CU_ASSERT_FATAL(pid > 0);
        CU_ASSERT(wait_until_frames("draining", 40, 5000));
        CU_ASSERT_EQUAL(frames_in("granted"), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 30, 100, ids), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        kill(pid, SIGKILL);
        CU_ASSERT(wait_until_frames("draining", 0, 5000));
        CU_ASSERT_EQUAL(wait_for(pid), -SIGKILL);
        CU_ASSERT_EQUAL(raw_grant(&a, object, 60, 5000, ids), 0);
        raw_close(&a);
        stop();
}

/* Killed at any moment of a stream of requests. */
static void test_killed_anywhere(void)
{
        start();
        for (int i = 0; i < 30; i++) {
                pid_t pid = fork();

                if (pid == 0) {
                        uint64_t object;

                        if (raw_open(&b, process, "busy") != 0)
                                _exit(1);
                        for (;;) {
                                if (raw_object_create(&b, 1, FRAMES, &object) == 0 &&
                                    raw_grant(&b, object, 16, 1000, ids) == 0 &&
                                    raw_return(&b, object, 8, ids) == 0)
                                        raw_object_destroy(&b, object);
                        }
                }
                pause_ms(10 + i * 3);
                kill(pid, SIGKILL);
                wait_for(pid);
                CU_ASSERT(wait_until_frames("granted", 0, 5000));
                CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        }
        CU_ASSERT(wait_until_frames("draining", 0, 5000));
        stop();
}

/* --- limits --- */

static void test_max_clients(void)
{
        const struct daemon_options options = {
                .memory_bytes = FRAMES * FRAME,
                .frame_bytes = FRAME,
                /* Others than root may have half of the places: three of six. */
                .max_clients = geteuid() == 0 ? 3 : 6,
        };
        static struct raw_client clients[4];

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
        for (int i = 0; i < 3; i++)
                CU_ASSERT_EQUAL(raw_open(&clients[i], process, "client"), 0);
        CU_ASSERT_EQUAL(raw_open(&clients[3], process, "one too many"), CODE(GPUMEM_E_LIMIT));
        raw_close(&clients[0]);
        for (int i = 0; i < 1000; i++) {
                if (raw_open(&clients[0], process, "again") == 0)
                        break;
                pause_ms(2);
        }
        CU_ASSERT(clients[0].fd >= 0);
        for (int i = 0; i < 3; i++)
                raw_close(&clients[i]);
        stop();
}

static void test_many_clients(void)
{
        enum { MANY = 300 };
        static struct raw_client *clients;
        struct gpumem_message_meminfo_reply info;
        uint64_t object;

        start();
        clients = calloc(MANY, sizeof(*clients));
        CU_ASSERT_PTR_NOT_NULL_FATAL(clients);
        for (int i = 0; i < MANY; i++)
                CU_ASSERT_EQUAL(raw_open(&clients[i], process, "many"), 0);
        for (int i = 0; i < MANY; i += 7)
                CU_ASSERT_EQUAL(raw_object_create(&clients[i], 1, 1, &object), 0);
        CU_ASSERT_EQUAL(raw_meminfo(&clients[MANY - 1], &info), 0);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        for (int i = 0; i < MANY; i++)
                raw_close(&clients[i]);
        free(clients);
        stop();
}

static uint64_t cpu_ticks(pid_t pid)
{
        unsigned long user = 0, system = 0;
        char path[64];
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
        file = fopen(path, "r");
        if (!file || fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                            &user, &system) != 2)
                user = system = 0;
        if (file)
                fclose(file);
        return user + system;
}

/* No descriptors left: who is there is served, nobody spins, and it is over when there are some. */
static void test_no_descriptors(void)
{
        enum { EXTRA = 40 };
        static struct raw_client late;
        struct gpumem_message_meminfo_reply info;
        struct rlimit before, tight;
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fds[EXTRA], connected = 0;
        uint64_t ticks;

        start();
        CU_ASSERT_EQUAL(raw_open(&a, process, "before"), 0);
        CU_ASSERT_EQUAL_FATAL(prlimit(daemon_process_pid(process), RLIMIT_NOFILE, NULL, &before),
                              0);
        tight = before;
        tight.rlim_cur = 40;
        CU_ASSERT_EQUAL_FATAL(prlimit(daemon_process_pid(process), RLIMIT_NOFILE, &tight, NULL), 0);
        snprintf(address.sun_path, sizeof(address.sun_path), "%s",
                 daemon_process_client_socket(process));
        for (int i = 0; i < EXTRA; i++) {
                fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
                connected += connect(fds[i], (struct sockaddr *)&address, sizeof(address)) == 0;
        }
        CU_ASSERT_EQUAL(connected, EXTRA);
        ticks = cpu_ticks(daemon_process_pid(process));
        pause_ms(500);
        ticks = cpu_ticks(daemon_process_pid(process)) - ticks;
        CU_ASSERT(ticks < 25); /* half of the time, were it spinning */
        CU_ASSERT_EQUAL(raw_meminfo(&a, &info), 0);
        CU_ASSERT(log_says("Too many open files"));
        CU_ASSERT_EQUAL(prlimit(daemon_process_pid(process), RLIMIT_NOFILE, &before, NULL), 0);
        for (int i = 0; i < EXTRA; i++)
                close(fds[i]);
        CU_ASSERT_EQUAL(raw_open(&late, process, "late"), 0);
        raw_close(&late);
        raw_close(&a);
        stop();
}

/* --- start and stop --- */

static void test_sockets(void)
{
        struct stat status;
        char program[PATH_MAX], config[160], output[4096];
        char *arguments[] = {program, "--config", config, NULL};

        start();
        CU_ASSERT_EQUAL(stat(daemon_process_admin_socket(process), &status), 0);
        CU_ASSERT((status.st_mode & 0777) ==
                  (getgrnam("gpumem-admin") && geteuid() == 0 ? 0660 : 0600));
        CU_ASSERT_EQUAL(stat(daemon_process_client_socket(process), &status), 0);
        CU_ASSERT((status.st_mode & 0777) == 0600 || (status.st_mode & 0777) == 0660);
        /* A second daemon does not take the place of one that is alive. */
        daemon_process_product("gpumemd", program, sizeof(program));
        snprintf(config, sizeof(config), "%s/gpumemd.conf", daemon_process_directory(process));
        CU_ASSERT_EQUAL(raw_open(&a, process, "a"), 0);
        CU_ASSERT_EQUAL(run_program(arguments, output, sizeof(output)), 1);
        CU_ASSERT(strstr(output, "another daemon listens there") ||
                  strstr(output, "not even one frame"));
        CU_ASSERT_EQUAL(access(daemon_process_client_socket(process), F_OK), 0);
        raw_close(&a);
        CU_ASSERT_EQUAL(raw_open(&a, process, "a"), 0);
        raw_close(&a);
        stop();
}

/* What a killed daemon left behind does not keep the next one from starting. */
static void test_stale_socket(void)
{
        char program[PATH_MAX], config[160];
        pid_t pid;

        start();
        kill(daemon_process_pid(process), SIGKILL);
        while (daemon_process_alive(process))
                pause_ms(2);
        CU_ASSERT_EQUAL(access(daemon_process_client_socket(process), F_OK), 0);
        daemon_process_product("gpumemd", program, sizeof(program));
        snprintf(config, sizeof(config), "%s/gpumemd.conf", daemon_process_directory(process));
        pid = fork();
        if (pid == 0) {
                int null = open("/dev/null", O_WRONLY);

                dup2(null, 2);
                execl(program, program, "--config", config, (char *)NULL);
                _exit(127);
        }
        for (int i = 0; i < 1000; i++) {
                if (raw_open(&a, process, "a") == 0)
                        break;
                pause_ms(10);
        }
        CU_ASSERT(a.fd >= 0);
        raw_close(&a);
        kill(pid, SIGTERM);
        CU_ASSERT_EQUAL(wait_for(pid), 0);
        process = daemon_process_free(process);
}

/* With clients connected, waiting and holding. */
static void test_stop_in_the_middle(void)
{
        struct gpumem_message_grant grant = {.frames = 10, .wait_ms = 60000};
        uint64_t object;

        start();
        CU_ASSERT_EQUAL(raw_open(&a, process, "holder"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&a, 1, FRAMES, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&a, object, FRAMES, 0, ids), 0);
        CU_ASSERT_EQUAL(raw_open(&b, process, "waiter"), 0);
        CU_ASSERT_EQUAL(raw_object_create(&b, 1, FRAMES, &grant.object), 0);
        wire_message_init(&grant, GPUMEM_MESSAGE_GRANT, 0);
        CU_ASSERT_EQUAL(raw_send(&b, &grant), 0);
        pause_ms(20);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        CU_ASSERT_EQUAL(daemon_process_stop(process), 0);
        CU_ASSERT_EQUAL(raw_receive(&b, 5000), -ECONNRESET);
        raw_close(&a);
        raw_close(&b);
        process = daemon_process_free(process);
}

/* A section that fits no device, and a machine on a file system that is none for it. */
static void test_warnings(void)
{
        const struct daemon_options options = {
                .config = "[device 7]\nframe_size = auto\n[device 0]\nframe_size = auto\n"
                          "[device GPU-01234567-89ab-cdef-0123-456789abcdef]\nwatermark_low = 1\n",
        };

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
        CU_ASSERT(log_says("fits no device section=7"));
        CU_ASSERT(log_says("fits no device section=GPU-01234567-89ab-cdef-0123-456789abcdef"));
        CU_ASSERT_FALSE(log_says("fits no device section=0"));
        CU_ASSERT_FALSE(log_says("not on a tmpfs"));
        stop();
}

static void test_command_line(void)
{
        char path[] = "/tmp/gpumem-test-daemon-XXXXXX", output[4096];
        char *check[] = {"gpumemd", "--check-config", "--config", path, NULL};
        char *help[] = {"gpumemd", "--help", NULL};
        char *version[] = {"gpumemd", "--version", NULL};
        char *wrong[] = {"gpumemd", "--nonsense", NULL};
        char *extra[] = {"gpumemd", "extra", NULL};
        char *missing[] = {"gpumemd", "--config", "/nonexistent", NULL};
        int fd = mkstemp(path);

        CU_ASSERT_EQUAL(run_program(check, output, sizeof(output)), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, ": ok"));
        CU_ASSERT(write(fd, "[gpumemd]\nfoo = 1\n", 18) == 18);
        CU_ASSERT_EQUAL(run_program(check, output, sizeof(output)), 2);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, ":2: unknown key 'foo' in [gpumemd]"));
        CU_ASSERT(write(fd, "bar = 1\n", 8) == 8);
        CU_ASSERT_EQUAL(run_program(check, output, sizeof(output)), 2);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, "gpumemd: error: /tmp/"));
        CU_ASSERT_PTR_NOT_NULL(strstr(output, ":2: unknown key 'foo'"));
        CU_ASSERT_PTR_NOT_NULL(strstr(output, ":3: unknown key 'bar'"));
        CU_ASSERT_EQUAL(ftruncate(fd, 0), 0);
        CU_ASSERT_EQUAL(pwrite(fd, "[device 7]\nframe_size = auto\n", 29, 0), 29);
        CU_ASSERT_EQUAL(run_program(check, output, sizeof(output)), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, "note: [device 7]: "));
        CU_ASSERT_EQUAL(run_program(help, output, sizeof(output)), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, "--check-config"));
        CU_ASSERT_EQUAL(run_program(version, output, sizeof(output)), 0);
        CU_ASSERT_EQUAL(strncmp(output, "gpumemd ", 8), 0);
        CU_ASSERT_EQUAL(run_program(wrong, output, sizeof(output)), 2);
        CU_ASSERT_EQUAL(run_program(extra, output, sizeof(output)), 2);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, "'extra' is not understood"));
        CU_ASSERT_EQUAL(run_program(missing, output, sizeof(output)), 2);
        close(fd);
        unlink(path);
}

/* A driver that is not there is an error, never a reason to take the other one. */
static void test_no_driver(void)
{
        char path[] = "/tmp/gpumem-test-daemon-XXXXXX", output[4096];
        static const char text[] = "[gpumemd]\ndriver = cuda\ndriver_library = /nonexistent.so\n"
                                   "client_socket = /tmp/gpumem-test-c\n"
                                   "admin_socket = /tmp/gpumem-test-a\n";
        char *arguments[] = {"gpumemd", "--config", path, NULL};
        int fd = mkstemp(path);

        CU_ASSERT(write(fd, text, sizeof(text) - 1) == sizeof(text) - 1);
        CU_ASSERT_EQUAL(run_program(arguments, output, sizeof(output)), 1);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, "the driver cannot be opened"));
        CU_ASSERT_PTR_NULL(strstr(output, "ready"));
        close(fd);
        unlink(path);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"C01 a race for the last frames", test_race},
                {"C11 two sessions in one process", test_two_sessions},
                {"C14 waiting ends and says for whom", test_waiting},
                {"a frame comes back scrubbed", test_scrubbed},
                {"C03 memory used up outside", test_out_of_memory},
                {"a killed client's memory is back", test_killed},
                {"a closed connection is not a dead process", test_draining},
                {"killed at any moment", test_killed_anywhere},
                {"a limit of clients", test_max_clients},
                {"many clients", test_many_clients},
                {"no descriptors left", test_no_descriptors},
                {"sockets: modes, and one daemon only", test_sockets},
                {"a stale socket", test_stale_socket},
                {"stopped in the middle", test_stop_in_the_middle},
                {"what it warns of", test_warnings},
                {"the command line", test_command_line},
                {"no driver", test_no_driver},
        };

        return UNIT_RUN("daemon", tests);
}
