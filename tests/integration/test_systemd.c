/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The installed units under a real systemd, booted in a container (container.sh, which runs this
 * program again inside, as root). Tests go on from each other: sockets, start by a connection,
 * restarts, stop.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpumem/gpumem.h>

#include "daemon/journal.h"
#include "libclient/wire/wire.h"
#include "tests/support/daemon_unit.h"

#define CLIENT_SOCKET "/run/gpumem/client.sock"
#define ADMIN_SOCKET  "/run/gpumem/admin.sock"
#define KEEPER_SOCKET "/run/gpumem/keeper.sock"
#define CTL           "/usr/local/sbin/gpumemctl"
#define PATIENCE      30000
#define MIB           (UINT64_C(1) << 20)
#define BYTES         (4 * MIB)

enum { MEMBER = 2001, ADMIN = 2002, OUTSIDER = 2003 };

static char output[1 << 20];
static struct gpumem *session;
static struct gpumem_buffer *buffer;

/* --- tools ------------------------------------------------------------------------------------ */

/* A shell command: its exit status; what it says is in `output`. */
__attribute__((format(printf, 1, 2))) static int sh(const char *format, ...)
{
        char command[1024];
        size_t length = 0, n;
        va_list arguments;
        FILE *pipe;
        int status;

        va_start(arguments, format);
        vsnprintf(command, sizeof(command), format, arguments);
        va_end(arguments);
        pipe = popen(command, "re");
        if (!pipe)
                return -1;
        while ((n = fread(output + length, 1, sizeof(output) - 1 - length, pipe)) > 0)
                length += n;
        output[length] = '\0';
        while (length > 0 && output[length - 1] == '\n')
                output[--length] = '\0';
        status = pclose(pipe);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The same, and what it said on failure. */
#define SH_OK(...)                                                                                 \
        do {                                                                                       \
                int status_ = sh(__VA_ARGS__);                                                     \
                if (status_ != 0)                                                                  \
                        fprintf(stderr, "line %d: exit %d: %s\n", __LINE__, status_, output);      \
                CU_ASSERT_EQUAL(status_, 0);                                                       \
        } while (0)

static const char *property(const char *unit, const char *name)
{
        sh("systemctl show -P %s %s", name, unit);
        return output;
}

static bool property_is(const char *unit, const char *name, const char *value)
{
        if (strcmp(property(unit, name), value) == 0)
                return true;
        fprintf(stderr, "%s of %s is '%s', not '%s'\n", name, unit, output, value);
        return false;
}

static pid_t main_pid(const char *unit)
{
        return (pid_t)atoi(property(unit, "MainPID"));
}

static bool wait_for_property(const char *unit, const char *name, const char *value)
{
        uint64_t deadline = wire_deadline_ns(PATIENCE);

        while (wire_now_ns() < deadline) {
                if (strcmp(property(unit, name), value) == 0)
                        return true;
                usleep(20000);
        }
        return property_is(unit, name, value);
}

static void kill_main(pid_t pid, int signal_number)
{
        CU_ASSERT_FATAL(pid > 1);
        CU_ASSERT_EQUAL(kill(pid, signal_number), 0);
}

/* Another process than `old` is in service. */
static bool wait_for_successor(const char *unit, pid_t old)
{
        uint64_t deadline = wire_deadline_ns(PATIENCE);

        while (wire_now_ns() < deadline) {
                pid_t now = main_pid(unit);

                if (now > 0 && now != old && strcmp(property(unit, "ActiveState"), "active") == 0)
                        return true;
                usleep(20000);
        }
        fprintf(stderr, "%s: no successor of process %d\n", unit, (int)old);
        return false;
}

/* How many entries of the journal fit; one of them is in `output`. */
static uint64_t journal_count(const char *match)
{
        uint64_t count = 0;

        sh("journalctl --sync; journalctl -q --no-pager -o json %s", match);
        for (const char *c = output; *c; c++)
                count += c[0] == '{' && (c == output || c[-1] == '\n');
        return count;
}

static uint64_t ready_count(void)
{
        return journal_count("MESSAGE_ID=" MESSAGE_ID_READY);
}

/* The field of the newest entry that fits; NULL: there is none. */
static const char *journal_field(const char *match, const char *field)
{
        static char value[1024];
        json_object *entry, *member;
        bool found = false;

        sh("journalctl --sync; journalctl -q --no-pager -o json -n 1 %s", match);
        entry = json_tokener_parse(output);
        if (entry && json_object_object_get_ex(entry, field, &member)) {
                snprintf(value, sizeof(value), "%s", json_object_get_string(member));
                found = true;
        }
        json_object_put(entry);
        return found ? value : NULL;
}

/* --- the engine: this process ------------------------------------------------------------------
 */

static bool content_is(unsigned char byte)
{
        unsigned char *view;

        int r = gpumem_host_view(session, gpumem_buffer_address(buffer), BYTES, (void **)&view);

        if (r != 0) {
                fprintf(stderr, "no view: %s: %s\n", gpumem_error_name(r), gpumem_error_message());
                return false;
        }
        for (size_t i = 0; i < BYTES; i += 997) {
                if (view[i] == byte)
                        continue;
                fprintf(stderr, "byte %zu is 0x%02x\n", i, view[i]);
                return false;
        }
        return true;
}

/* The memory is what it was, and there is more where it came from. */
static bool engine_works(unsigned char byte)
{
        struct gpumem_buffer *more;
        int r = gpumem_buffer_create(session, 2 * MIB, "more", PATIENCE, &more);

        if (r != 0) {
                fprintf(stderr, "no more memory: %s: %s\n", gpumem_error_name(r),
                        gpumem_error_message());
                return false;
        }
        gpumem_buffer_free(more);
        return content_is(byte);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_units(void)
{
        SH_OK("systemd-analyze verify --man=no gpumemd.service gpumemd-keeper.service "
              "gpumemd.socket gpumemd-admin.socket 2>&1");
        CU_ASSERT_STRING_EQUAL(output, "");
        SH_OK("systemctl enable gpumemd.service 2>&1");
        for (size_t i = 0; i < 4; i++) {
                static const char *const units[] = {"gpumemd.service", "gpumemd-keeper.service",
                                                    "gpumemd.socket", "gpumemd-admin.socket"};

                sh("systemctl is-enabled %s 2>&1", units[i]);
                CU_ASSERT_STRING_EQUAL(output, "enabled");
        }
        SH_OK("/usr/local/sbin/gpumemd --check-config");
}

static void expect_socket(const char *path, const char *group)
{
        const struct group *entry = getgrnam(group);
        struct stat status;

        CU_ASSERT_EQUAL_FATAL(stat(path, &status), 0);
        CU_ASSERT(S_ISSOCK(status.st_mode));
        CU_ASSERT_EQUAL(status.st_mode & 07777, 0660);
        CU_ASSERT_EQUAL(status.st_uid, 0);
        CU_ASSERT_PTR_NOT_NULL_FATAL(entry);
        CU_ASSERT_EQUAL(status.st_gid, entry->gr_gid);
}

static void test_sockets(void)
{
        struct stat status;

        CU_ASSERT_EQUAL(stat("/run/gpumem", &status), 0); /* tmpfiles.d */
        CU_ASSERT_EQUAL(status.st_mode & 07777, 0755);
        SH_OK("systemctl start gpumemd.socket gpumemd-admin.socket 2>&1");
        expect_socket(CLIENT_SOCKET, "gpumem"); /* sysusers.d made the groups */
        expect_socket(ADMIN_SOCKET, "gpumem-admin");
        CU_ASSERT(property_is("gpumemd.service", "ActiveState", "inactive"));
}

/* A user of this id, in this group and no other: 0, or why it cannot connect. */
static int connect_as(uid_t uid, const char *group, const char *path, int type)
{
        int status = -1;
        pid_t pid = fork();

        if (pid == 0) {
                const struct group *entry = group ? getgrnam(group) : NULL;
                gid_t gid = entry ? entry->gr_gid : uid;
                struct sockaddr_un address = {.sun_family = AF_UNIX};
                int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

                snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
                if (fd < 0 || (group && !entry) || setgroups(group ? 1 : 0, &gid) < 0 ||
                    setgid(uid ? uid : 0) < 0 || setuid(uid) < 0)
                        _exit(255);
                _exit(connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? errno : 0);
        }
        waitpid(pid, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A client that only connects starts daemon and keeper. */
static void test_start_by_client(void)
{
        CU_ASSERT_EQUAL(connect_as(MEMBER, "gpumem", CLIENT_SOCKET, SOCK_SEQPACKET), 0);
        CU_ASSERT(wait_for_property("gpumemd.service", "ActiveState", "active"));
        CU_ASSERT(property_is("gpumemd-keeper.service", "ActiveState", "active"));
        /* Active means ready. */
        CU_ASSERT_EQUAL(ready_count(), 1);
        CU_ASSERT_PTR_NOT_NULL(strstr(property("gpumemd.service", "StatusText"), "fresh"));
}

static void test_start_by_admin(void)
{
        SH_OK("systemctl stop gpumemd.service gpumemd-keeper.service 2>&1");
        CU_ASSERT(property_is("gpumemd.service", "ActiveState", "inactive"));
        CU_ASSERT(property_is("gpumemd.service", "Result", "success"));
        CU_ASSERT(property_is("gpumemd-keeper.service", "Result", "success"));
        expect_socket(CLIENT_SOCKET, "gpumem");
        expect_socket(ADMIN_SOCKET, "gpumem-admin");
        SH_OK(CTL " status --json");
        CU_ASSERT_PTR_NOT_NULL(strstr(output, "simulated"));
        CU_ASSERT(wait_for_property("gpumemd.service", "ActiveState", "active"));
}

/* Not any local user may use it, or switch it off. */
static void test_permissions(void)
{
        pid_t daemon = main_pid("gpumemd.service"), keeper = main_pid("gpumemd-keeper.service");
        int status = -1;
        pid_t pid;

        CU_ASSERT_EQUAL(connect_as(0, NULL, CLIENT_SOCKET, SOCK_SEQPACKET), 0);
        CU_ASSERT_EQUAL(connect_as(MEMBER, "gpumem", CLIENT_SOCKET, SOCK_SEQPACKET), 0);
        CU_ASSERT_EQUAL(connect_as(ADMIN, "gpumem-admin", CLIENT_SOCKET, SOCK_SEQPACKET), EACCES);
        CU_ASSERT_EQUAL(connect_as(OUTSIDER, NULL, CLIENT_SOCKET, SOCK_SEQPACKET), EACCES);
        CU_ASSERT_EQUAL(connect_as(0, NULL, ADMIN_SOCKET, SOCK_STREAM), 0);
        CU_ASSERT_EQUAL(connect_as(MEMBER, "gpumem", ADMIN_SOCKET, SOCK_STREAM), EACCES);
        CU_ASSERT_EQUAL(connect_as(ADMIN, "gpumem-admin", ADMIN_SOCKET, SOCK_STREAM), 0);
        CU_ASSERT_EQUAL(connect_as(OUTSIDER, NULL, ADMIN_SOCKET, SOCK_STREAM), EACCES);
        CU_ASSERT_EQUAL(connect_as(MEMBER, "gpumem", KEEPER_SOCKET, SOCK_SEQPACKET), EACCES);
        CU_ASSERT_EQUAL(connect_as(ADMIN, "gpumem-admin", KEEPER_SOCKET, SOCK_SEQPACKET), EACCES);
        CU_ASSERT_EQUAL(connect_as(OUTSIDER, NULL, KEEPER_SOCKET, SOCK_SEQPACKET), EACCES);

        pid = fork();
        if (pid == 0) {
                int refused = 0;

                if (setgroups(0, NULL) < 0 || setgid(OUTSIDER) < 0 || setuid(OUTSIDER) < 0)
                        _exit(255);
                refused += kill(daemon, SIGTERM) < 0 && errno == EPERM;
                refused += kill(keeper, SIGTERM) < 0 && errno == EPERM;
                refused += unlink(CLIENT_SOCKET) < 0 && errno == EACCES;
                refused += rename(ADMIN_SOCKET, CLIENT_SOCKET) < 0 && errno == EACCES;
                refused += open("/run/gpumem/x", O_CREAT | O_WRONLY | O_CLOEXEC, 0600) < 0;
                _exit(refused);
        }
        waitpid(pid, &status, 0);
        CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 5);
        CU_ASSERT_EQUAL(main_pid("gpumemd.service"), daemon);
}

static void test_sandbox(void)
{
        pid_t daemon = main_pid("gpumemd.service"), keeper = main_pid("gpumemd-keeper.service");

        for (int i = 0; i < 2; i++) {
                pid_t pid = i ? keeper : daemon;

                SH_OK("grep -q '^NoNewPrivs:.1$' /proc/%d/status", (int)pid);
                SH_OK("grep -q '^Seccomp:.2$' /proc/%d/status", (int)pid);
                /* CAP_SYS_ADMIN (21), CAP_SYS_MODULE (16), CAP_SETUID (7) are gone. */
                SH_OK("grep '^CapBnd:' /proc/%d/status | cut -f 2", (int)pid);
                CU_ASSERT_EQUAL(strtoull(output, NULL, 16) & (1u << 21 | 1u << 16 | 1u << 7), 0);
                /* The file system is read-only. */
                SH_OK("grep -Eq '^[0-9]+ [0-9]+ [0-9:]+ [^ ]+ / ro,' /proc/%d/mountinfo", (int)pid);
        }
        CU_ASSERT(property_is("gpumemd.service", "Restart", "always"));
        CU_ASSERT(property_is("gpumemd.service", "StartLimitIntervalUSec", "0"));
        CU_ASSERT(property_is("gpumemd-keeper.service", "StartLimitIntervalUSec", "0"));
        CU_ASSERT(property_is("gpumemd.service", "OOMScoreAdjust", "-900"));
        CU_ASSERT(property_is("gpumemd-keeper.service", "OOMScoreAdjust", "-1000"));
        CU_ASSERT(property_is("gpumemd.service", "PrivateDevices", "no"));
}

/* A process in the service's cgroup opens a device: 0 or why not. */
static int open_in_service(const char *path)
{
        int status = -1;
        pid_t pid = fork();

        if (pid == 0) {
                FILE *processes =
                        fopen("/sys/fs/cgroup/system.slice/gpumemd.service/cgroup.procs", "we");

                if (!processes || fprintf(processes, "%d\n", (int)getpid()) < 0 ||
                    fclose(processes) != 0)
                        _exit(255);
                _exit(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) < 0 ? errno : 0);
        }
        waitpid(pid, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The GPU's devices and no others. (Nothing is behind their numbers here, and that is what a
 * process that may open them is told.) */
static void test_devices(void)
{
        if (mknod("/dev/test-port", S_IFCHR | 0600, makedev(1, 4)) < 0 ||
            mknod("/dev/test-nvidia", S_IFCHR | 0600, makedev(195, 255)) < 0 ||
            access("/sys/fs/cgroup/system.slice/gpumemd.service/cgroup.procs", W_OK) < 0 ||
            open_in_service("/dev/test-port") != EPERM) {
                puts("skipped: no control of devices in this container");
                return;
        }
        CU_ASSERT_EQUAL(open_in_service("/dev/null"), 0);
        CU_ASSERT_NOT_EQUAL(open_in_service("/dev/test-nvidia"), EPERM);
        CU_ASSERT_NOT_EQUAL(open_in_service("/dev/test-nvidia"), 255);
}

static void test_engine(void)
{
        void *view;
        int r = gpumem_connect(&session, NULL);

        if (r != 0)
                fprintf(stderr, "%s: %s\n", gpumem_error_name(r), gpumem_error_message());
        CU_ASSERT_EQUAL_FATAL(r, 0);
        CU_ASSERT_EQUAL_FATAL(gpumem_buffer_create(session, BYTES, "kept", PATIENCE, &buffer), 0);
        CU_ASSERT_EQUAL_FATAL(
                gpumem_host_view(session, gpumem_buffer_address(buffer), BYTES, &view), 0);
        memset(view, 0x5a, BYTES);
        CU_ASSERT(engine_works(0x5a));
}

static void test_journal(void)
{
        char match[128], number[32];
        const char *value;

        value = journal_field("MESSAGE_ID=" MESSAGE_ID_READY, "GPUMEM_FRAMES");
        CU_ASSERT(value && atoi(value) > 4);
        value = journal_field("MESSAGE_ID=" MESSAGE_ID_READY, "GPUMEM_CLIENT_SOCKET");
        CU_ASSERT(value && strcmp(value, CLIENT_SOCKET) == 0);
        value = journal_field("MESSAGE_ID=" MESSAGE_ID_READY, "_SYSTEMD_UNIT");
        CU_ASSERT(value && strcmp(value, "gpumemd.service") == 0);
        value = journal_field("MESSAGE_ID=" MESSAGE_ID_READY, "SYSLOG_IDENTIFIER");
        CU_ASSERT(value && strcmp(value, "gpumemd") == 0);
        value = journal_field("MESSAGE_ID=" MESSAGE_ID_READY, "PRIORITY");
        CU_ASSERT(value && strcmp(value, "6") == 0);

        snprintf(number, sizeof(number), "%d", (int)getpid());
        snprintf(match, sizeof(match), "MESSAGE_ID=" MESSAGE_ID_SESSION_OPENED " GPUMEM_PID=%s",
                 number);
        CU_ASSERT_EQUAL(journal_count(match), 1);
        value = journal_field(match, "MESSAGE");
        CU_ASSERT(value && strncmp(value, "session opened session=", 23) == 0);
        value = journal_field(match, "GPUMEM_UID");
        CU_ASSERT(value && strcmp(value, "0") == 0);
        /* Nothing came a second time as a line. */
        CU_ASSERT_EQUAL(journal_count("_TRANSPORT=stdout _SYSTEMD_UNIT=gpumemd.service"), 0);
}

static void test_killed(void)
{
        pid_t daemon = main_pid("gpumemd.service"), keeper = main_pid("gpumemd-keeper.service");

        kill_main(daemon, SIGKILL);
        CU_ASSERT(engine_works(0x5a)); /* it waits out the gap */
        CU_ASSERT(wait_for_successor("gpumemd.service", daemon));
        CU_ASSERT_EQUAL(main_pid("gpumemd-keeper.service"), keeper);
        expect_socket(CLIENT_SOCKET, "gpumem");
        CU_ASSERT_EQUAL(sh(CTL " debug check"), 0);

        /* More often than systemd would allow by itself (5 times in 10 s). */
        for (int i = 0; i < 8; i++) {
                daemon = main_pid("gpumemd.service");
                kill_main(daemon, SIGKILL);
                CU_ASSERT(wait_for_successor("gpumemd.service", daemon));
        }
        CU_ASSERT(engine_works(0x5a));
        CU_ASSERT_EQUAL(sh(CTL " debug check"), 0);
        CU_ASSERT(property_is("gpumemd.service", "NRestarts", "9"));
}

static void test_keeper_killed(void)
{
        pid_t daemon = main_pid("gpumemd.service"), keeper = main_pid("gpumemd-keeper.service");

        kill_main(keeper, SIGKILL);
        CU_ASSERT(wait_for_successor("gpumemd-keeper.service", keeper));
        CU_ASSERT(engine_works(0x5a));
        CU_ASSERT_EQUAL(main_pid("gpumemd.service"), daemon);
        usleep(500000); /* for handing over */
        kill_main(daemon, SIGKILL);
        CU_ASSERT(engine_works(0x5a));
        CU_ASSERT(wait_for_successor("gpumemd.service", daemon));
        CU_ASSERT_EQUAL(sh(CTL " debug check"), 0);
}

/* One that hangs is killed, and nothing is lost. */
static void test_watchdog(void)
{
        pid_t daemon = main_pid("gpumemd.service");
        uint64_t before = wire_now_ns();

        /* It has told that it lives for longer than the watchdog's time. */
        CU_ASSERT(property_is("gpumemd.service", "WatchdogUSec", "4s"));
        usleep(5000000);
        CU_ASSERT_EQUAL(main_pid("gpumemd.service"), daemon);
        kill_main(daemon, SIGSTOP);
        CU_ASSERT(wait_for_successor("gpumemd.service", daemon));
        CU_ASSERT(wire_now_ns() - before > UINT64_C(5000000000));
        CU_ASSERT_EQUAL(sh("journalctl --sync; journalctl -q --no-pager -u gpumemd.service | "
                           "grep -q 'Watchdog timeout'"),
                        0);
        CU_ASSERT(engine_works(0x5a));
        CU_ASSERT_EQUAL(sh(CTL " debug check"), 0);
}

/* An upgrade: stop, start. */
static void test_stopped(void)
{
        pid_t keeper = main_pid("gpumemd-keeper.service");
        uint64_t ready_before;
        char match[128];

        snprintf(match, sizeof(match), "MESSAGE_ID=" MESSAGE_ID_SESSION_CLOSED " GPUMEM_PID=%d",
                 (int)getpid());
        ready_before = ready_count();
        SH_OK("systemctl stop gpumemd.service 2>&1");
        CU_ASSERT(property_is("gpumemd.service", "Result", "success"));
        CU_ASSERT(property_is("gpumemd.service", "ExecMainStatus", "0"));
        CU_ASSERT(journal_count("MESSAGE_ID=" MESSAGE_ID_STOPPING) >= 1);
        CU_ASSERT_EQUAL(main_pid("gpumemd-keeper.service"), keeper);
        CU_ASSERT(content_is(0x5a));
        /* The session is not closed: it is left to the next daemon. */
        CU_ASSERT_EQUAL(journal_count(match), 0);
        SH_OK("systemctl start gpumemd.service 2>&1");
        CU_ASSERT_EQUAL(ready_count(), ready_before + 1);
        CU_ASSERT(engine_works(0x5a));
        CU_ASSERT_EQUAL(sh(CTL " debug check"), 0);
}

/* A mistake of the administrator costs time and nothing else, and systemd does not spin on it. */
static void test_wrong_configuration(void)
{
        const char *wrong = "_SYSTEMD_UNIT=gpumemd.service _TRANSPORT=stdout";
        uint64_t before, after;

        SH_OK("sed -i 's/^driver = simulated/driver = imagined/' /etc/gpumem/gpumemd.conf");
        CU_ASSERT_EQUAL(sh("/usr/local/sbin/gpumemd --check-config 2>&1"), 2);
        before = journal_count(wrong);
        SH_OK("systemctl --no-block restart gpumemd.service 2>&1");
        usleep(3500000);
        after = journal_count(wrong);
        CU_ASSERT(after > before && after <= before + 4);
        CU_ASSERT(strstr(output, "imagined") != NULL);
        CU_ASSERT(content_is(0x5a));
        CU_ASSERT(property_is("gpumemd.socket", "ActiveState", "active"));
        SH_OK("sed -i 's/^driver = imagined/driver = simulated/' /etc/gpumem/gpumemd.conf");
        CU_ASSERT(wait_for_property("gpumemd.service", "ActiveState", "active"));
        CU_ASSERT(engine_works(0x5a));
        CU_ASSERT_EQUAL(sh(CTL " debug check"), 0);
}

static void test_everything_stopped(void)
{
        gpumem_buffer_free(buffer);
        gpumem_disconnect(session);
        SH_OK("systemctl stop gpumemd.socket gpumemd-admin.socket gpumemd.service "
              "gpumemd-keeper.service 2>&1");
        CU_ASSERT(property_is("gpumemd.service", "Result", "success"));
        CU_ASSERT(property_is("gpumemd-keeper.service", "Result", "success"));
        CU_ASSERT_NOT_EQUAL(access(CLIENT_SOCKET, F_OK), 0);
        CU_ASSERT_NOT_EQUAL(access(ADMIN_SOCKET, F_OK), 0);
        CU_ASSERT_NOT_EQUAL(access(KEEPER_SOCKET, F_OK), 0);
        CU_ASSERT_EQUAL(access("/run/gpumem", F_OK), 0);
        /* Whoever comes next finds nothing of it. */
        SH_OK("systemctl start gpumemd.service 2>&1");
        CU_ASSERT_PTR_NOT_NULL(strstr(property("gpumemd.service", "StatusText"),
                                      "(0 granted, 4 fresh), 0 sessions"));
        SH_OK("systemctl stop gpumemd.socket gpumemd-admin.socket gpumemd.service "
              "gpumemd-keeper.service 2>&1");
        sh("systemctl --failed --no-legend --plain list-units");
        CU_ASSERT_STRING_EQUAL(output, "");
}

static int run_inside(void)
{
        static const struct unit_test tests[] = {
                {"units", test_units},
                {"sockets", test_sockets},
                {"start by a client", test_start_by_client},
                {"start by an administrator", test_start_by_admin},
                {"who may connect", test_permissions},
                {"sandbox", test_sandbox},
                {"devices", test_devices},
                {"an engine", test_engine},
                {"journal", test_journal},
                {"killed", test_killed},
                {"the keeper killed", test_keeper_killed},
                {"watchdog", test_watchdog},
                {"stop and start", test_stopped},
                {"a wrong configuration", test_wrong_configuration},
                {"everything stopped", test_everything_stopped},
        };

        setenv("GPUMEM_DRIVER", "simulated", 1);
        setenv("GPUMEM_SIM_LIBRARY", "/usr/local/lib/libcuda-sim.so", 1);
        setenv("GPUMEM_SIM_MEMORY", "64M", 1);
        return UNIT_RUN("systemd", tests);
}

int main(int argc, char **argv)
{
        if (argc > 1 && strcmp(argv[1], "--inside") == 0)
                return run_inside();
        execl("tests/integration/container.sh", "container.sh", argv[0], (char *)NULL);
        perror("tests/integration/container.sh");
        return 1;
}
