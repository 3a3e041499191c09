/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_daemon.h"

static void sleep_ms(long ms)
{
        struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

        while (nanosleep(&time, &time) < 0 && errno == EINTR)
                ;
}

static int write_config(const struct bench_daemon *daemon,
                        const struct bench_daemon_options *options)
{
        char path[96];
        FILE *file;

        snprintf(path, sizeof(path), "%s/gpumemd.conf", daemon->directory);
        file = fopen(path, "we");
        if (!file)
                return -errno;
        fprintf(file,
                "[gpumemd]\n"
                "client_socket = %s\n"
                "admin_socket = %s/admin.sock\n"
                "driver = simulated\n"
                "gpu_memory_utilization = 1\n"
                "debug = %s\n"
                "[device *]\n"
                "frame_size = %llu\n"
                "watermark_low = %u\n"
                "watermark_high = %u\n"
                "[simulator]\n"
                "directory = /dev/shm/%s\n"
                "memory = %llu\n",
                daemon->client_socket, daemon->directory, options->debug ? "yes" : "no",
                (unsigned long long)options->frame_bytes, options->fresh_frames,
                options->fresh_frames, strrchr(daemon->directory, '/') + 1,
                (unsigned long long)options->memory_bytes);
        if (options->granularity)
                fprintf(file, "granularity = %llu\n", (unsigned long long)options->granularity);
        if (options->more)
                fputs(options->more, file);
        return fclose(file) == 0 ? 0 : -errno;
}

static int accepts(const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        int result;

        if (fd < 0)
                return -errno;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        result = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : -errno;
        close(fd);
        return result;
}

static int wait_ready(struct bench_daemon *daemon)
{
        uint64_t deadline = bench_now_ns() + UINT64_C(30000000000);

        while (bench_now_ns() < deadline) {
                if (waitpid(daemon->pid, NULL, WNOHANG) == daemon->pid) {
                        daemon->pid = 0;
                        return -ECHILD;
                }
                if (accepts(daemon->client_socket) == 0)
                        return 0;
                sleep_ms(5);
        }
        return -ETIMEDOUT;
}

int bench_daemon_start(struct bench_daemon *daemon, const struct bench_daemon_options *options)
{
        char program[PATH_MAX], library[PATH_MAX], config[96], memory[32], shm[96];
        int error, log;

        *daemon = (struct bench_daemon){0};
        snprintf(daemon->directory, sizeof(daemon->directory), "/tmp/gpumem-bench.XXXXXX");
        if (!mkdtemp(daemon->directory)) {
                error = -errno;
                daemon->directory[0] = '\0';
                fprintf(stderr, "gpumem-bench: no temporary directory: %s\n", strerror(-error));
                return error;
        }
        snprintf(daemon->client_socket, sizeof(daemon->client_socket), "%s/client.sock",
                 daemon->directory);
        snprintf(program, sizeof(program), "%s/gpumemd", options->build);
        snprintf(library, sizeof(library), "%s/libcuda-sim.so", options->build);
        snprintf(config, sizeof(config), "%s/gpumemd.conf", daemon->directory);
        snprintf(memory, sizeof(memory), "%llu", (unsigned long long)options->memory_bytes);
        snprintf(shm, sizeof(shm), "/dev/shm/%s", strrchr(daemon->directory, '/') + 1);
        setenv("GPUMEM_SIM_DIR", shm, 1);
        setenv("GPUMEM_SIM_MEMORY", memory, 1);
        if (options->granularity) {
                char granularity[32];

                snprintf(granularity, sizeof(granularity), "%llu",
                         (unsigned long long)options->granularity);
                setenv("GPUMEM_SIM_GRANULARITY", granularity, 1);
        }
        setenv("GPUMEM_SOCKET", daemon->client_socket, 1);
        if (access(library, R_OK) == 0) /* else installed: the loader finds it */
                setenv("GPUMEM_SIM_LIBRARY", library, 1);
        error = write_config(daemon, options);
        if (error == 0) {
                daemon->pid = fork();
                if (daemon->pid < 0)
                        error = -errno;
        }
        if (error == 0 && daemon->pid == 0) {
                char path[96];

                snprintf(path, sizeof(path), "%s/log", daemon->directory);
                log = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
                if (log >= 0)
                        dup2(log, STDERR_FILENO);
                execl(program, program, "--config", config, (char *)NULL);
                execlp("gpumemd", "gpumemd", "--config", config, (char *)NULL);
                _exit(127);
        }
        if (error == 0)
                error = wait_ready(daemon);
        if (error < 0) {
                fprintf(stderr, "gpumem-bench: %s did not start: %s\n", program, strerror(-error));
                bench_daemon_stop(daemon);
        }
        return error;
}

pid_t bench_daemon_pid(const struct bench_daemon *daemon)
{
        char path[64];
        FILE *file;
        int pid = 0;

        snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)daemon->pid,
                 (int)daemon->pid);
        file = fopen(path, "re");
        if (!file)
                return 0;
        if (fscanf(file, "%d", &pid) != 1)
                pid = 0;
        fclose(file);
        return pid;
}

struct json_object *bench_daemon_ask(const struct bench_daemon *daemon, const char *method)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct json_object *answer = NULL, *parameters = NULL;
        size_t length = 0, capacity = 1 << 20;
        char request[128], *text = malloc(capacity);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int n = snprintf(request, sizeof(request), "{\"method\":\"io.gpumemd.%s\"}", method);

        snprintf(address.sun_path, sizeof(address.sun_path), "%s/admin.sock", daemon->directory);
        if (text && fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
            send(fd, request, (size_t)n + 1, MSG_NOSIGNAL) == n + 1) {
                while (length < capacity) {
                        ssize_t got = recv(fd, text + length, capacity - length, 0);

                        if (got <= 0)
                                break;
                        length += (size_t)got;
                        if (text[length - 1] == '\0') {
                                answer = json_tokener_parse(text);
                                break;
                        }
                }
        }
        if (fd >= 0)
                close(fd);
        free(text);
        if (json_object_object_get_ex(answer, "parameters", &parameters))
                json_object_get(parameters);
        json_object_put(answer);
        return parameters;
}

void bench_daemon_settle(const struct bench_daemon *daemon)
{
        uint64_t deadline = bench_now_ns() + UINT64_C(1000000000);
        struct timespec before = {0}, now;
        clockid_t clock;

        if (clock_getcpuclockid(bench_daemon_pid(daemon), &clock) != 0)
                return;
        while (bench_now_ns() < deadline && clock_gettime(clock, &now) == 0) {
                if (now.tv_sec == before.tv_sec && now.tv_nsec - before.tv_nsec < 50000)
                        return;
                before = now;
                sleep_ms(2);
        }
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *where)
{
        (void)status;
        (void)kind;
        (void)where;
        return remove(path);
}

void bench_daemon_stop(struct bench_daemon *daemon)
{
        char shm[96];

        if (daemon->pid > 0) {
                kill(daemon->pid, SIGTERM);
                for (int i = 0; i < 500 && waitpid(daemon->pid, NULL, WNOHANG) == 0; i++)
                        sleep_ms(10);
                if (kill(daemon->pid, SIGKILL) == 0)
                        waitpid(daemon->pid, NULL, 0);
                daemon->pid = 0;
        }
        if (daemon->directory[0]) {
                snprintf(shm, sizeof(shm), "/dev/shm/%s", strrchr(daemon->directory, '/') + 1);
                nftw(shm, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
                nftw(daemon->directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
                daemon->directory[0] = '\0';
        }
}
