/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/daemon_process.h"

#define START_MS 20000
#define STOP_MS  10000
#define CALL_MS  10000
#define STEP_MS  5

#define PARENT "/dev/shm"
#define PREFIX "gpumem-test-"

#define SIMULATOR_GRANULARITY (UINT64_C(2) << 20)

struct daemon_process {
        pid_t pid; /* 0: not running */
        int keeper;
        int status;
        char directory[64];
        char client_socket[96], admin_socket[96], config[96], log[96];
};

static uint64_t now_ms(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void pause_ms(long ms)
{
        const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

        nanosleep(&pause, NULL);
}

int daemon_process_product(const char *name, char *path, size_t size)
{
        const char *build = getenv("GPUMEM_BUILD");
        int n = snprintf(path, size, "%s/%s", build && *build ? build : "build", name);

        return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

static int remove_entry(const char *path, const struct stat *status, int flag, struct FTW *ftw)
{
        (void)status;
        (void)flag;
        (void)ftw;
        return remove(path);
}

/* What test programs that were killed left behind: the directory's name says whose it is. */
static void remove_abandoned(void)
{
        DIR *parent = opendir(PARENT);
        struct dirent *entry;

        while (parent && (entry = readdir(parent))) {
                char path[sizeof(PARENT) + sizeof(entry->d_name) + 1];
                char after;
                int pid;

                /* (A random name may begin with digits as well: the dash tells.) */
                if (sscanf(entry->d_name, PREFIX "%d%c", &pid, &after) != 2 || after != '-' ||
                    pid <= 0 || kill(pid, 0) == 0 || errno != ESRCH)
                        continue;
                snprintf(path, sizeof(path), PARENT "/%s", entry->d_name);
                nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        }
        if (parent)
                closedir(parent);
}

static int export_environment(const struct daemon_process *process,
                              const struct daemon_options *options)
{
        char library[PATH_MAX], simulator[96], memory[32], granularity[32];
        uint64_t bytes = SIMULATOR_GRANULARITY;
        int r = daemon_process_product("libcuda-sim.so", library, sizeof(library));

        if (r < 0)
                return r;
        if (options->frame_bytes && options->frame_bytes < bytes)
                bytes = options->frame_bytes;
        snprintf(simulator, sizeof(simulator), "%s/device", process->directory);
        snprintf(memory, sizeof(memory), "%" PRIu64, options->memory_bytes);
        snprintf(granularity, sizeof(granularity), "%" PRIu64, bytes);
        if (setenv("GPUMEM_SIM_LIBRARY", library, 1) < 0 ||
            setenv("GPUMEM_SIM_DIR", simulator, 1) < 0 ||
            setenv("GPUMEM_SIM_MEMORY", memory, 1) < 0 ||
            setenv("GPUMEM_SIM_GRANULARITY", granularity, 1) < 0)
                return -errno;
        return 0;
}

static int write_config(const struct daemon_process *process, const struct daemon_options *options)
{
        FILE *file = fopen(process->config, "we");
        int r = 0;

        if (!file)
                return -errno;
        fprintf(file,
                "[gpumemd]\n"
                "client_socket = %s\n"
                "admin_socket = %s\n"
                "driver = simulated\n"
                "log_level = debug\n"
                "debug = yes\n"
                "keeper = %s\n"
                "gpu_memory_utilization = %.6f\n",
                process->client_socket, process->admin_socket, options->keeper ? "yes" : "no",
                options->utilization > 0 ? options->utilization : 1.0);
        if (options->max_clients)
                fprintf(file, "max_clients = %" PRIu32 "\n", options->max_clients);
        fprintf(file, "[device *]\nwatermark_low = %" PRIu32 "\nwatermark_high = %" PRIu32 "\n",
                options->watermark_high ? options->watermark_low : 4,
                options->watermark_high ? options->watermark_high : 8);
        if (options->frame_bytes)
                fprintf(file, "frame_size = %" PRIu64 "\n", options->frame_bytes);
        if (options->config)
                fprintf(file, "%s\n", options->config);
        if (ferror(file))
                r = -EIO;
        if (fclose(file) != 0)
                r = -errno;
        return r;
}

static _Noreturn void run_daemon(const struct daemon_process *process, const char *program)
{
        int log = open(process->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
        int null = open("/dev/null", O_RDWR);

        /* A test that dies takes its daemon along. */
        prctl(PR_SET_PDEATHSIG, process->keeper ? SIGTERM : SIGKILL);
        if (log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(log, 2) < 0)
                _exit(126);
        unsetenv("NOTIFY_SOCKET");
        execl(program, program, "--config", process->config, (char *)NULL);
        dprintf(2, "%s: %s\n", program, strerror(errno));
        _exit(127);
}

static void show_log(const struct daemon_process *process)
{
        char line[1024];
        FILE *file = fopen(process->log, "re");

        while (file && fgets(line, sizeof(line), file))
                fprintf(stderr, "  | %s", line);
        if (file)
                fclose(file);
}

static int log_says(const struct daemon_process *process, const char *text)
{
        char line[2048];
        FILE *file = fopen(process->log, "re");
        int found = 0;

        while (file && !found && fgets(line, sizeof(line), file))
                found = strncmp(line, text, strlen(text)) == 0;
        if (file)
                fclose(file);
        return found;
}

int daemon_process_alive(struct daemon_process *process)
{
        if (process->pid > 0 && waitpid(process->pid, &process->status, WNOHANG) == process->pid)
                process->pid = 0;
        return process->pid > 0;
}

static int wait_until_ready(struct daemon_process *process)
{
        uint64_t deadline = now_ms() + START_MS;

        while (now_ms() < deadline) {
                if (!daemon_process_alive(process))
                        return -ECHILD;
                if (log_says(process, "gpumemd: info: ready"))
                        return 0;
                pause_ms(STEP_MS);
        }
        return -ETIMEDOUT;
}

static int spawn(struct daemon_process *process, const char *program)
{
        process->pid = fork();
        if (process->pid < 0) {
                process->pid = 0;
                return -errno;
        }
        if (process->pid == 0)
                run_daemon(process, program);
        return wait_until_ready(process);
}

static int launch(struct daemon_process *process, const struct daemon_options *options)
{
        char program[PATH_MAX];
        int r = daemon_process_product("gpumemd", program, sizeof(program));

        if (r < 0)
                return r;
        r = export_environment(process, options);
        if (r < 0)
                return r;
        r = write_config(process, options);
        if (r < 0)
                return r;
        return spawn(process, program);
}

int daemon_process_restart(struct daemon_process *process)
{
        char program[PATH_MAX];
        int r = daemon_process_product("gpumemd", program, sizeof(program));

        if (r == 0 && truncate(process->log, 0) < 0)
                r = -errno;
        return r < 0 ? r : spawn(process, program);
}

int daemon_process_start(struct daemon_process **out, const struct daemon_options *options)
{
        struct daemon_options defaults = {0};
        struct daemon_process *process = calloc(1, sizeof(*process));
        int r;

        *out = NULL;
        if (!process)
                return -ENOMEM;
        if (options)
                defaults = *options;
        if (defaults.memory_bytes == 0)
                defaults.memory_bytes = UINT64_C(64) << 20;
        remove_abandoned();
        snprintf(process->directory, sizeof(process->directory), PARENT "/" PREFIX "%d-XXXXXX",
                 (int)getpid());
        if (!mkdtemp(process->directory)) {
                r = -errno;
                free(process);
                return r;
        }
        snprintf(process->client_socket, sizeof(process->client_socket), "%s/client.sock",
                 process->directory);
        snprintf(process->admin_socket, sizeof(process->admin_socket), "%s/admin.sock",
                 process->directory);
        snprintf(process->config, sizeof(process->config), "%s/gpumemd.conf", process->directory);
        snprintf(process->log, sizeof(process->log), "%s/log", process->directory);

        process->keeper = defaults.keeper;
        r = launch(process, &defaults);
        if (r < 0) {
                fprintf(stderr, "gpumemd did not start: %s\n", strerror(-r));
                show_log(process);
                daemon_process_free(process);
                return r;
        }
        *out = process;
        return 0;
}

int daemon_process_stop(struct daemon_process *process)
{
        uint64_t deadline = now_ms() + STOP_MS;

        if (daemon_process_alive(process))
                kill(process->pid, SIGTERM);
        while (daemon_process_alive(process)) {
                if (now_ms() > deadline) {
                        fprintf(stderr, "gpumemd did not stop\n");
                        show_log(process);
                        kill(process->pid, SIGKILL);
                        waitpid(process->pid, &process->status, 0);
                        process->pid = 0;
                        break;
                }
                pause_ms(STEP_MS);
        }
        return process->status;
}

struct daemon_process *daemon_process_free(struct daemon_process *process)
{
        pid_t leftover;

        if (!process)
                return NULL;
        daemon_process_stop(process);
        /* What a test has cut off from its keeper or daemon. */
        while (process->keeper && (leftover = daemon_process_keeper(process)) > 0) {
                kill(leftover, SIGKILL);
                pause_ms(STEP_MS);
        }
        while (process->keeper && (leftover = daemon_process_daemon(process)) > 0) {
                kill(leftover, SIGKILL);
                pause_ms(STEP_MS);
        }
        nftw(process->directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        free(process);
        return NULL;
}

/* The process of that program whose command names this configuration (a temporary path). */
static pid_t find_process(const struct daemon_process *process, const char *program)
{
        DIR *directory = opendir("/proc");
        struct dirent *entry;
        pid_t found = 0;

        while (directory && found == 0 && (entry = readdir(directory))) {
                char path[PATH_MAX], command[4096] = "", *name;
                size_t length;
                FILE *file;

                if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
                        continue;
                snprintf(path, sizeof(path), "/proc/%s/cmdline", entry->d_name);
                file = fopen(path, "re");
                if (!file)
                        continue;
                length = fread(command, 1, sizeof(command) - 1, file);
                fclose(file);
                name = strrchr(command, '/');
                if (!name || strcmp(name + 1, program) != 0)
                        continue;
                for (size_t i = 0; i < length; i += strlen(command + i) + 1)
                        if (strcmp(command + i, process->config) == 0)
                                found = (pid_t)atoi(entry->d_name);
        }
        if (directory)
                closedir(directory);
        return found;
}

pid_t daemon_process_daemon(const struct daemon_process *process)
{
        return find_process(process, "gpumemd");
}

pid_t daemon_process_keeper(const struct daemon_process *process)
{
        return find_process(process, "gpumemd-keeper");
}

pid_t daemon_process_pid(const struct daemon_process *process)
{
        return process->pid;
}

const char *daemon_process_directory(const struct daemon_process *process)
{
        return process->directory;
}

const char *daemon_process_client_socket(const struct daemon_process *process)
{
        return process->client_socket;
}

const char *daemon_process_admin_socket(const struct daemon_process *process)
{
        return process->admin_socket;
}

const char *daemon_process_log(const struct daemon_process *process)
{
        return process->log;
}

static int connect_admin(const struct daemon_process *process)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return -errno;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", process->admin_socket);
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                int r = -errno;

                close(fd);
                return r;
        }
        return fd;
}

/* Reads up to and with the NUL that ends a Varlink message. */
static int read_reply(int fd, char **reply)
{
        size_t length = 0, size = 65536;
        char *buffer = malloc(size);
        uint64_t deadline = now_ms() + CALL_MS;
        int r = -ENOMEM;

        while (buffer) {
                struct pollfd poller = {.fd = fd, .events = POLLIN};
                uint64_t now = now_ms();
                ssize_t n;

                if (now >= deadline || poll(&poller, 1, (int)(deadline - now)) <= 0) {
                        r = -ETIMEDOUT;
                        break;
                }
                n = read(fd, buffer + length, size - length);
                if (n <= 0) {
                        r = n < 0 ? -errno : -ECONNRESET;
                        break;
                }
                length += (size_t)n;
                if (buffer[length - 1] == '\0') {
                        *reply = buffer;
                        return 0;
                }
                if (length == size) {
                        char *larger = realloc(buffer, size *= 2);

                        if (!larger)
                                break;
                        buffer = larger;
                }
        }
        free(buffer);
        return r;
}

int daemon_process_call(const struct daemon_process *process, const char *method,
                        const char *parameters, char **reply)
{
        char call[1024];
        int length, fd, r;

        *reply = NULL;
        length = snprintf(call, sizeof(call), "{\"method\":\"%s\",\"parameters\":%s}", method,
                          parameters ? parameters : "{}");
        if (length < 0 || (size_t)length >= sizeof(call))
                return -E2BIG;
        fd = connect_admin(process);
        if (fd < 0)
                return fd;
        r = write(fd, call, (size_t)length + 1) == length + 1 ? read_reply(fd, reply) : -EIO;
        close(fd);
        return r;
}

static int call_parsed(const struct daemon_process *process, const char *method,
                       json_object **parameters, json_object **message)
{
        char *reply;
        int r = daemon_process_call(process, method, NULL, &reply);

        *message = NULL;
        if (r < 0)
                return r;
        *message = json_tokener_parse(reply);
        if (!*message || json_object_object_get_ex(*message, "error", NULL) ||
            !json_object_object_get_ex(*message, "parameters", parameters)) {
                fprintf(stderr, "%s: %s\n", method, reply);
                json_object_put(*message);
                *message = NULL;
                free(reply);
                return -EPROTO;
        }
        free(reply);
        return 0;
}

int daemon_process_check(const struct daemon_process *process, char *report, size_t size)
{
        json_object *message, *parameters, *ok, *lines;
        size_t length = 0;
        int r = call_parsed(process, "io.gpumemd.DebugCheck", &parameters, &message);

        if (report && size > 0)
                report[0] = '\0';
        if (r < 0)
                return r;
        if (!json_object_object_get_ex(parameters, "ok", &ok) ||
            !json_object_object_get_ex(parameters, "report", &lines)) {
                json_object_put(message);
                return -EPROTO;
        }
        r = json_object_get_boolean(ok) ? 0 : 1;
        for (size_t i = 0; i < json_object_array_length(lines); i++) {
                const char *line = json_object_get_string(json_object_array_get_idx(lines, i));

                if (r != 0)
                        fprintf(stderr, "debug check: %s\n", line);
                if (report && length < size)
                        length += (size_t)snprintf(report + length, size - length, "%s\n", line);
        }
        json_object_put(message);
        return r;
}

static int find_number(json_object *object, const char *key, int64_t *value)
{
        if (json_object_is_type(object, json_type_object)) {
                json_object_object_foreach(object, name, member)
                {
                        if (strcmp(name, key) == 0 && json_object_is_type(member, json_type_int)) {
                                *value = json_object_get_int64(member);
                                return 0;
                        }
                        if (find_number(member, key, value) == 0)
                                return 0;
                }
        } else if (json_object_is_type(object, json_type_array)) {
                for (size_t i = 0; i < json_object_array_length(object); i++)
                        if (find_number(json_object_array_get_idx(object, i), key, value) == 0)
                                return 0;
        }
        return -ENOENT;
}

int daemon_process_number(const struct daemon_process *process, const char *method, const char *key,
                          int64_t *value)
{
        json_object *message, *parameters;
        int r = call_parsed(process, method, &parameters, &message);

        if (r < 0)
                return r;
        r = find_number(parameters, key, value);
        json_object_put(message);
        return r;
}
