/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpumemd as a service manager runs it, without one: sockets are passed by hand (LISTEN_FDS), and
 * what it tells (NOTIFY_SOCKET) is read by the test.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
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

#include <gpumem/gpumem.h>

#include "libclient/wire/wire.h"
#include "tests/support/daemon_process.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/raw_client.h"

#define FRAME     (UINT64_C(64) << 10)
#define FRAMES    64
#define FRESH     8 /* test_status() spells it out */
#define MS        UINT64_C(1000000)
#define PATIENCE  20000 /* ms: for what must happen */
#define PASSED_AT 3     /* SD_LISTEN_FDS_START */

static char directory[] = "/dev/shm/gpumem-test-activation-XXXXXX";
static char config[96], log_path[96], configured_client[96], configured_admin[96];
static struct sockaddr_un notify_address = {.sun_family = AF_UNIX};
static struct raw_client client;
static uint64_t ids[FRAMES];

struct service {
        pid_t pid;
        int notify; /* what the daemon tells arrives here */
        char text[512];
};

/* --- a daemon of our own ---------------------------------------------------------------------- */

static int listen_at(const char *name, int type, mode_t mode, bool listening, char *path,
                     size_t size)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

        snprintf(path, size, "%s/%s", directory, name);
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", directory, name);
        unlink(address.sun_path);
        if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
            chmod(address.sun_path, mode) < 0 || (listening && listen(fd, 16) < 0))
                abort();
        return fd;
}

static void write_config(void)
{
        char product[PATH_MAX], library[PATH_MAX];
        FILE *file = fopen(config, "we");

        if (!file || daemon_process_product("libcuda-sim.so", product, sizeof(product)) < 0 ||
            !realpath(product, library))
                abort();
        fprintf(file,
                "[gpumemd]\nclient_socket = %s\nadmin_socket = %s\ndriver = simulated\n"
                "driver_library = %s\nlog_level = debug\ngpu_memory_utilization = 1.0\n"
                "[device *]\nwatermark_low = %d\nwatermark_high = %d\nframe_size = 64K\n"
                "[simulator]\ndirectory = %s/device\nmemory = %u\ngranularity = 64K\n",
                configured_client, configured_admin, library, FRESH / 2, FRESH, directory,
                (unsigned)(FRAMES * FRAME));
        if (fclose(file) != 0)
                abort();
}

/* For engines in this process. */
static void export_simulator(void)
{
        char library[PATH_MAX], text[96];

        if (daemon_process_product("libcuda-sim.so", library, sizeof(library)) < 0)
                abort();
        snprintf(text, sizeof(text), "%s/device", directory);
        setenv("GPUMEM_DRIVER", "simulated", 1);
        setenv("GPUMEM_SIM_LIBRARY", library, 1);
        setenv("GPUMEM_SIM_DIR", text, 1);
        snprintf(text, sizeof(text), "%u", (unsigned)(FRAMES * FRAME));
        setenv("GPUMEM_SIM_MEMORY", text, 1);
        setenv("GPUMEM_SIM_GRANULARITY", "65536", 1);
}

static _Noreturn void become_daemon(const int *fds, int count, const char *names, bool right_pid)
{
        int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
        char program[PATH_MAX], number[32];

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (log < 0 || dup2(log, 2) < 0 ||
            daemon_process_product("gpumemd", program, sizeof(program)) < 0)
                _exit(126);
        /* Out of the way first. */
        for (int i = 0, moved[8]; i < 2 * count; i++) {
                if (i < count)
                        moved[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 100);
                else if (dup2(moved[i - count], PASSED_AT + i - count) < 0)
                        _exit(126);
        }
        snprintf(number, sizeof(number), "%d", count);
        setenv("LISTEN_FDS", number, 1);
        snprintf(number, sizeof(number), "%d", right_pid ? (int)getpid() : 1);
        setenv("LISTEN_PID", number, 1);
        if (names)
                setenv("LISTEN_FDNAMES", names, 1);
        setenv("NOTIFY_SOCKET", notify_address.sun_path, 1);
        snprintf(number, sizeof(number), "%d", (int)getpid());
        setenv("WATCHDOG_PID", number, 1);
        setenv("WATCHDOG_USEC", "400000", 1);
        execl(program, program, "--config", config, (char *)NULL);
        _exit(127);
}

static void service_start(struct service *service, const int *fds, int count, const char *names,
                          bool right_pid)
{
        const struct timeval patience = {.tv_sec = PATIENCE / 1000};

        *service = (struct service){.pid = -1};
        unlink(notify_address.sun_path);
        service->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (service->notify < 0 ||
            bind(service->notify, (struct sockaddr *)&notify_address, sizeof(notify_address)) < 0 ||
            setsockopt(service->notify, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0)
                abort();
        service->pid = fork();
        if (service->pid < 0)
                abort();
        if (service->pid == 0)
                become_daemon(fds, count, names, right_pid);
}

/* Exit status, or minus the signal. */
static int service_wait(struct service *service)
{
        uint64_t deadline = wire_deadline_ns(PATIENCE);
        int status = 0;

        while (waitpid(service->pid, &status, WNOHANG) == 0) {
                if (wire_now_ns() > deadline) {
                        kill(service->pid, SIGKILL);
                        waitpid(service->pid, &status, 0);
                        break;
                }
                usleep(2000);
        }
        close(service->notify);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* The next thing that is told, at most `ms` later. */
static bool told(struct service *service, uint32_t ms)
{
        struct pollfd poller = {.fd = service->notify, .events = POLLIN};
        ssize_t n;

        if (poll(&poller, 1, (int)ms) <= 0)
                return false;
        n = recv(service->notify, service->text, sizeof(service->text) - 1, MSG_DONTWAIT);
        service->text[n > 0 ? n : 0] = '\0';
        return n > 0;
}

/* Something told that contains `what`, within PATIENCE. */
static bool told_that(struct service *service, const char *what)
{
        uint64_t deadline = wire_deadline_ns(PATIENCE);

        while (wire_now_ns() < deadline) {
                siginfo_t ended = {0};

                if (told(service, 100)) {
                        if (strstr(service->text, what))
                                return true;
                } else if (waitid(P_PID, (id_t)service->pid, &ended, WEXITED | WNOHANG | WNOWAIT) <
                                   0 ||
                           ended.si_pid != 0) {
                        break;
                }
        }
        fprintf(stderr, "never told: %s\n", what);
        return false;
}

static bool log_has(const char *what)
{
        static char text[65536];
        FILE *file = fopen(log_path, "re");
        size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;

        text[n] = '\0';
        if (file)
                fclose(file);
        if (strstr(text, what))
                return true;
        fprintf(stderr, "not in the log: %s\n%s", what, text);
        return false;
}

/* --- clients ---------------------------------------------------------------------------------- */

/* One Varlink call; the reply is in `reply`. */
static bool call(const char *path, const char *method, char *reply, size_t size)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        const struct timeval patience = {.tv_sec = PATIENCE / 1000};
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        size_t length = 0;
        char text[128];
        int n;

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        n = snprintf(text, sizeof(text), "{\"method\":\"io.gpumemd.%s\"}", method) + 1;
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
            write(fd, text, (size_t)n) != n) {
                close(fd);
                return false;
        }
        do {
                ssize_t got = read(fd, reply + length, size - length);

                if (got <= 0) {
                        close(fd);
                        return false;
                }
                length += (size_t)got;
        } while (reply[length - 1] != '\0' && length < size);
        close(fd);
        return reply[length - 1] == '\0';
}

static bool open_client(const char *client_path, const char *admin_path)
{
        static char reply[65536];
        uint8_t uuid[16];

        return call(admin_path, "GetStatus", reply, sizeof(reply)) &&
               raw_parse_uuid(reply, uuid) == 0 && raw_connect(&client, client_path) == 0 &&
               raw_hello(&client, uuid, FRAME, "engine") == 0;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_sockets_given(void)
{
        char client_path[96], admin_path[96];
        struct stat client_before, admin_before, after;
        struct service service;
        int fds[2], flags;

        /* Modes and places that the daemon would not choose; the order is the manager's. */
        fds[0] = listen_at("given-admin", SOCK_STREAM, 0640, true, admin_path, sizeof(admin_path));
        fds[1] = listen_at("given-client", SOCK_SEQPACKET, 0604, true, client_path,
                           sizeof(client_path));
        CU_ASSERT_EQUAL(stat(client_path, &client_before), 0);
        CU_ASSERT_EQUAL(stat(admin_path, &admin_before), 0);

        /* A client may connect before there is a daemon at all. */
        CU_ASSERT_EQUAL(raw_connect(&client, client_path), 0);
        service_start(&service, fds, 2, "admin:client", true);
        CU_ASSERT_FATAL(told_that(&service, "READY=1"));
        raw_close(&client);
        CU_ASSERT_FATAL(open_client(client_path, admin_path));
        CU_ASSERT_NOT_EQUAL(access(configured_client, F_OK), 0);
        CU_ASSERT_NOT_EQUAL(access(configured_admin, F_OK), 0);
        raw_close(&client);

        kill(service.pid, SIGTERM);
        CU_ASSERT(told_that(&service, "STOPPING=1"));
        CU_ASSERT_EQUAL(service_wait(&service), 0);
        /* They are the manager's: still there, untouched, and still listening. */
        CU_ASSERT_EQUAL(stat(client_path, &after), 0);
        CU_ASSERT(after.st_ino == client_before.st_ino && after.st_mode == client_before.st_mode &&
                  after.st_gid == client_before.st_gid);
        CU_ASSERT_EQUAL(stat(admin_path, &after), 0);
        CU_ASSERT(after.st_ino == admin_before.st_ino && after.st_mode == admin_before.st_mode &&
                  after.st_gid == admin_before.st_gid);
        CU_ASSERT_EQUAL(raw_connect(&client, client_path), 0);
        raw_close(&client);
        CU_ASSERT(log_has(client_path)); /* and it says where it serves */

        /* The same sockets serve the next daemon, also after one that was killed. */
        service_start(&service, fds, 2, "admin:client", true);
        CU_ASSERT_FATAL(told_that(&service, "READY=1"));
        kill(service.pid, SIGKILL);
        CU_ASSERT_EQUAL(service_wait(&service), -SIGKILL);
        flags = fcntl(fds[0], F_GETFL);
        CU_ASSERT(flags & O_NONBLOCK); /* of the open file, which is shared */
        service_start(&service, fds, 2, "admin:client", true);
        CU_ASSERT_FATAL(told_that(&service, "READY=1"));
        CU_ASSERT(open_client(client_path, admin_path));
        raw_close(&client);
        kill(service.pid, SIGTERM);
        CU_ASSERT_EQUAL(service_wait(&service), 0);
        close(fds[0]);
        close(fds[1]);
}

static void test_one_given(void)
{
        struct service service;
        char path[96];
        int fd = listen_at("given-client", SOCK_SEQPACKET, 0600, true, path, sizeof(path));

        service_start(&service, &fd, 1, "client", true);
        CU_ASSERT_FATAL(told_that(&service, "READY=1"));
        CU_ASSERT_EQUAL(access(configured_admin, F_OK), 0);
        CU_ASSERT_NOT_EQUAL(access(configured_client, F_OK), 0);
        CU_ASSERT(open_client(path, configured_admin));
        raw_close(&client);
        kill(service.pid, SIGTERM);
        CU_ASSERT_EQUAL(service_wait(&service), 0);
        CU_ASSERT_NOT_EQUAL(access(configured_admin, F_OK), 0);
        CU_ASSERT_EQUAL(access(path, F_OK), 0);
        close(fd);
}

/* What was passed to another process is not ours. */
static void test_not_for_us(void)
{
        struct service service;
        char path[96];
        int fd = listen_at("given-client", SOCK_SEQPACKET, 0600, true, path, sizeof(path));

        service_start(&service, &fd, 1, "client", false);
        CU_ASSERT_FATAL(told_that(&service, "READY=1"));
        CU_ASSERT(open_client(configured_client, configured_admin));
        raw_close(&client);
        kill(service.pid, SIGTERM);
        CU_ASSERT_EQUAL(service_wait(&service), 0);
        close(fd);
}

static void expect_refusal(const int *fds, int count, const char *names, const char *why)
{
        struct service service;
        uint64_t start = wire_now_ns();

        service_start(&service, fds, count, names, true);
        CU_ASSERT_EQUAL(service_wait(&service), 1);
        /* Whoever starts it again at once shall not do that all the time. */
        CU_ASSERT(wire_now_ns() - start >= 1000 * MS);
        CU_ASSERT(log_has(why));
        CU_ASSERT_NOT_EQUAL(access(configured_client, F_OK), 0);
        CU_ASSERT_NOT_EQUAL(access(configured_admin, F_OK), 0);
}

static void test_unexpected(void)
{
        char path[96];
        int packets[2], stream, silent, file;

        packets[0] = listen_at("a", SOCK_SEQPACKET, 0600, true, path, sizeof(path));
        packets[1] = listen_at("b", SOCK_SEQPACKET, 0600, true, path, sizeof(path));
        stream = listen_at("c", SOCK_STREAM, 0600, true, path, sizeof(path));
        silent = listen_at("d", SOCK_SEQPACKET, 0600, false, path, sizeof(path));
        file = open(config, O_RDONLY | O_CLOEXEC);

        expect_refusal(packets, 1, "metrics", "name=metrics");
        expect_refusal(packets, 1, NULL, "FileDescriptorName= must be client or admin");
        expect_refusal(packets, 2, "client:client", "two sockets were passed under the same name");
        expect_refusal(packets, 1, "admin", "no listening Unix socket for streams");
        expect_refusal(&stream, 1, "client", "no listening Unix socket for packets");
        expect_refusal(&silent, 1, "client", "no listening Unix socket for packets");
        expect_refusal(&file, 1, "client", "no listening Unix socket for packets");
        CU_ASSERT_EQUAL(access(path, F_OK), 0);
        close(packets[0]);
        close(packets[1]);
        close(stream);
        close(silent);
        close(file);
}

static void test_status(void)
{
        char client_path[96], admin_path[96], what[64];
        struct service service;
        unsigned statuses = 0, rounds = 0;
        uint64_t object, start;
        int fds[2];

        fds[0] = listen_at("given-client", SOCK_SEQPACKET, 0600, true, client_path,
                           sizeof(client_path));
        fds[1] = listen_at("given-admin", SOCK_STREAM, 0600, true, admin_path, sizeof(admin_path));
        service_start(&service, fds, 2, "client:admin", true);
        /* Ready is said once the pool of fresh frames is full, and not before. */
        CU_ASSERT_FATAL(told_that(&service, "READY=1"));
        snprintf(what, sizeof(what),
                 "STATUS=1 devices, %d frames (0 granted, %d fresh), 0 sessions", FRAMES, FRESH);
        CU_ASSERT(strstr(service.text, what) != NULL);

        CU_ASSERT_FATAL(open_client(client_path, admin_path));
        CU_ASSERT(told_that(&service, "(0 granted, 8 fresh), 1 sessions"));
        CU_ASSERT_EQUAL_FATAL(raw_object_create(&client, 1, FRAMES, &object), 0);
        CU_ASSERT_EQUAL(raw_grant(&client, object, 5, 1000, ids), 0);
        CU_ASSERT(told_that(&service, "(5 granted, "));
        CU_ASSERT_EQUAL(raw_return(&client, object, 5, ids), 0);
        CU_ASSERT(told_that(&service, "(0 granted, "));

        /* However much happens, it is told at most once a second. */
        start = wire_now_ns();
        while (wire_now_ns() - start < 2500 * MS) {
                CU_ASSERT_EQUAL_FATAL(raw_grant(&client, object, 1 + rounds % 3, 1000, ids), 0);
                CU_ASSERT_EQUAL_FATAL(raw_return(&client, object, 1 + rounds % 3, ids), 0);
                rounds++;
                while (told(&service, 0))
                        statuses += strstr(service.text, "STATUS=") != NULL;
        }
        CU_ASSERT(rounds > 20);
        CU_ASSERT(statuses <= 3 + 1);
        CU_ASSERT_EQUAL(raw_grant(&client, object, 7, 1000, ids), 0);
        CU_ASSERT(told_that(&service, "(7 granted, ")); /* the last word is the true one */
        raw_close(&client);
        CU_ASSERT(told_that(&service, "(0 granted, "));

        /* Nothing happens, nothing is told but that it lives. */
        statuses = 0;
        start = wire_now_ns();
        while (wire_now_ns() - start < 1500 * MS)
                if (told(&service, 100) && strstr(service.text, "STATUS="))
                        statuses++;
        CU_ASSERT(statuses <= 1); /* what was scrubbed meanwhile */

        kill(service.pid, SIGTERM);
        CU_ASSERT(told_that(&service, "STOPPING=1"));
        CU_ASSERT(strstr(service.text, "STATUS=stopping: Terminated") != NULL);
        CU_ASSERT_EQUAL(service_wait(&service), 0);
        close(fds[0]);
        close(fds[1]);
}

static void test_watchdog(void)
{
        struct service service;
        uint64_t start;
        unsigned alive = 0;
        char path[96];
        int fd = listen_at("given-client", SOCK_SEQPACKET, 0600, true, path, sizeof(path));

        service_start(&service, &fd, 1, "client", true);
        CU_ASSERT_FATAL(told_that(&service, "READY=1"));
        start = wire_now_ns();
        while (alive < 4 && wire_now_ns() - start < PATIENCE * MS)
                alive += told(&service, 100) && strstr(service.text, "WATCHDOG=1");
        CU_ASSERT_EQUAL(alive, 4);

        /* One that does not turn its loop does not say so. (What was under way is let through.) */
        kill(service.pid, SIGSTOP);
        while (told(&service, 50))
                ;
        CU_ASSERT_FALSE(told(&service, 800));
        kill(service.pid, SIGCONT);
        CU_ASSERT(told_that(&service, "WATCHDOG=1"));
        kill(service.pid, SIGTERM);
        CU_ASSERT_EQUAL(service_wait(&service), 0);
        close(fd);
}

/* Memory that an engine still has mapped is left as it is when the daemon ends. */
static void test_memory_at_the_end(void)
{
        const struct gpumem_options options = {
                .size = sizeof(options), .socket_path = configured_client, .name = "engine"};
        struct gpumem_buffer *buffer;
        struct gpumem *session;
        struct service service;
        unsigned char *view;
        char path[96];
        unsigned wrong = 0;
        int fd = listen_at("given-admin", SOCK_STREAM, 0600, true, path, sizeof(path));

        service_start(&service, &fd, 1, "admin", true);
        CU_ASSERT_FATAL(told_that(&service, "READY=1"));
        CU_ASSERT_EQUAL_FATAL(gpumem_connect(&session, &options), 0);
        CU_ASSERT_EQUAL_FATAL(gpumem_buffer_create(session, 8 * FRAME, "b", 10000, &buffer), 0);
        CU_ASSERT_EQUAL_FATAL(
                gpumem_host_view(session, gpumem_buffer_address(buffer), 8 * FRAME, (void **)&view),
                0);
        memset(view, 0x5a, 8 * FRAME);
        kill(service.pid, SIGTERM);
        CU_ASSERT_EQUAL(service_wait(&service), 0);
        for (size_t i = 0; i < 8 * FRAME; i++)
                wrong += view[i] != 0x5a;
        CU_ASSERT_EQUAL(wrong, 0);
        gpumem_buffer_free(buffer);
        gpumem_disconnect(session);
        close(fd);
}

static int remove_entry(const char *path, const struct stat *status, int flag, struct FTW *ftw)
{
        (void)status;
        (void)flag;
        (void)ftw;
        return remove(path);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"sockets that were passed", test_sockets_given},
                {"one that was passed", test_one_given},
                {"passed to another process", test_not_for_us},
                {"unexpected sockets", test_unexpected},
                {"ready and status", test_status},
                {"watchdog", test_watchdog},
                {"memory at the end", test_memory_at_the_end},
        };
        int status;

        if (!mkdtemp(directory))
                return 2;
        snprintf(config, sizeof(config), "%s/gpumemd.conf", directory);
        snprintf(log_path, sizeof(log_path), "%s/log", directory);
        snprintf(configured_client, sizeof(configured_client), "%s/client.sock", directory);
        snprintf(configured_admin, sizeof(configured_admin), "%s/admin.sock", directory);
        snprintf(notify_address.sun_path, sizeof(notify_address.sun_path), "%s/notify", directory);
        write_config();
        export_simulator();
        status = UNIT_RUN("activation", tests);
        nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        return status;
}
