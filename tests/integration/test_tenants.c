/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants against a real daemon and the simulated device: no tenant ever sees a frame that another
 * one had, however long its former holder keeps it mapped; what is kept is withheld, and charged.
 *
 * Clients are processes of their own and of different groups, by which the configuration makes
 * tenants of them; they are told what to do. Without root that cannot be, and the test says so.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/wire/wire.h"
#include "tests/support/client_test.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/raw_client.h"

#define CODE(error) (-(error))
#define FRAME       (UINT64_C(64) << 10)
#define FRAMES      32
#define HELD        6

enum {
        GROUP_ONE = 4711,
        GROUP_TWO,
        GROUP_SMALL,
};

/* What a tenant writes into its frames. */
enum {
        MARK_ONE = 0xa5,
        MARK_TWO = 0xb6,
};

static struct daemon_process *process;

/* --- a client's process ------------------------------------------------------------------------
 */

enum order {
        ORDER_GRANT,  /* `frames`, waiting `wait_ms`; maps, looks for the other's mark, writes its
                         own */
        ORDER_RETURN, /* all frames, which stay mapped */
        ORDER_WRITE,  /* its mark into all that is mapped */
        ORDER_VERIFY, /* is it still there? */
        ORDER_HAND,   /* the descriptors, to whoever ordered it */
        ORDER_KEEP,   /* maps the descriptors that come with it */
};

struct message {
        enum order order;
        uint32_t frames, wait_ms;
        int32_t result; /* 0, or what went wrong */
};

enum {
        FOREIGN = 1000, /* a frame had somebody else's contents */
        CHANGED,
        DRIVER_FAILED,
};

struct worker {
        pid_t pid;
        int control;
};

static struct {
        struct client_test_driver driver;
        struct raw_client client;
        uint64_t object, ids[FRAMES];
        unsigned char *views[FRAMES];
        int fds[FRAMES];
        uint32_t held;
        unsigned char mark;
} me;

static int map_frame(int fd, unsigned char **view)
{
        const struct driver *driver = me.driver.driver;
        CUmemAccessDesc access = {
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = me.driver.device},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;

        if (driver->mem_import_from_shareable_handle(&handle, (void *)(uintptr_t)fd,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ||
            driver->mem_address_reserve(&address, FRAME, 0, 0, 0) ||
            driver->mem_map(address, FRAME, 0, handle, 0) ||
            driver->mem_set_access(address, FRAME, &access, 1))
                return DRIVER_FAILED;
        *view = driver->host_view(address, FRAME);
        return *view ? 0 : DRIVER_FAILED;
}

static bool is_full_of(const unsigned char *view, unsigned char mark)
{
        return view[0] == mark && memcmp(view, view + 1, FRAME - 1) == 0;
}

static bool has_any_of(const unsigned char *view, unsigned char mark)
{
        /* 64 in a row: poison may have single bytes of anything. */
        unsigned char run[64];

        memset(run, mark, sizeof(run));
        return memmem(view, FRAME, run, sizeof(run)) != NULL;
}

static int take(uint32_t frames, uint32_t wait_ms)
{
        unsigned char foreign = me.mark == MARK_ONE ? MARK_TWO : MARK_ONE;
        int r = raw_grant(&me.client, me.object, frames, wait_ms, me.ids + me.held);

        for (uint32_t i = 0; r == 0 && i < frames; i++) {
                int fd = me.client.fds[i];

                r = map_frame(fd, &me.views[me.held]);
                if (r == 0 && has_any_of(me.views[me.held], foreign))
                        r = FOREIGN;
                if (r == 0)
                        memset(me.views[me.held], me.mark, FRAME);
                me.fds[me.held++] = fd;
                me.client.fds[i] = -1;
        }
        me.client.fds_count = 0;
        return r;
}

static int obey(const struct message *message, struct wire_fds *fds, int control)
{
        int r = 0;

        switch (message->order) {
        case ORDER_GRANT:
                return take(message->frames, message->wait_ms);
        case ORDER_RETURN:
                return raw_return(&me.client, me.object, me.held, me.ids);
        case ORDER_WRITE:
                for (uint32_t i = 0; i < me.held; i++)
                        memset(me.views[i], me.mark, FRAME);
                return 0;
        case ORDER_VERIFY:
                for (uint32_t i = 0; i < me.held; i++)
                        r = is_full_of(me.views[i], me.mark) ? r : CHANGED;
                return r;
        case ORDER_HAND:
                return wire_send_with_fds(control, message, sizeof(*message), me.fds, me.held, 0);
        case ORDER_KEEP:
                for (uint32_t i = 0; r == 0 && i < fds->count; i++) {
                        me.fds[me.held] = wire_fds_take(fds, i);
                        r = map_frame(me.fds[me.held], &me.views[me.held]);
                        me.held++;
                }
                return r;
        }
        return -EINVAL;
}

static void work(int control, gid_t group, unsigned char mark)
{
        struct message message;
        struct wire_fds fds;
        size_t length;

        me.mark = mark;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (setresgid(group, group, group) < 0 || client_test_driver_open(&me.driver) < 0 ||
            raw_open(&me.client, process, "worker") != 0 ||
            raw_object_create(&me.client, 1, FRAMES, &me.object) != 0)
                _exit(1);
        me.client.keep_fds = 1;
        while (wire_receive(control, &message, sizeof(message), &fds, &length, 0) == 0) {
                message.result = obey(&message, &fds, control);
                wire_fds_deinit(&fds);
                if (wire_send(control, &message, sizeof(message), 0) < 0)
                        break;
        }
        _exit(0);
}

static struct worker start_worker(gid_t group, unsigned char mark)
{
        struct worker worker;
        int pair[2];

        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        worker.pid = fork();
        CU_ASSERT_FATAL(worker.pid >= 0);
        if (worker.pid == 0) {
                close(pair[0]);
                work(pair[1], group, mark);
        }
        close(pair[1]);
        worker.control = pair[0];
        return worker;
}

static int hear(const struct worker *worker, struct wire_fds *fds)
{
        struct message message;
        size_t length;
        int r = wire_receive_until(worker->control, &message, sizeof(message), fds, &length,
                                   wire_deadline_ns(60000));

        return r == 0 ? message.result : -ECONNRESET;
}

static int tell(const struct worker *worker, enum order order, uint32_t frames, uint32_t wait_ms)
{
        struct message message = {.order = order, .frames = frames, .wait_ms = wait_ms};
        struct wire_fds fds;
        int r = wire_send(worker->control, &message, sizeof(message), 0);

        if (r == 0) {
                r = hear(worker, &fds);
                wire_fds_deinit(&fds);
        }
        return r;
}

/* The descriptors of `from` go to `to`, which maps them. */
static int hand_over(const struct worker *from, const struct worker *to)
{
        struct message message = {.order = ORDER_HAND};
        struct wire_fds fds, none;
        int r = wire_send(from->control, &message, sizeof(message), 0);

        if (r < 0 || hear(from, &fds) != 0)
                return -EIO;
        r = hear(from, &none); /* its result */
        message.order = ORDER_KEEP;
        if (r == 0)
                r = wire_send_with_fds(to->control, &message, sizeof(message), fds.fds, fds.count,
                                       0);
        wire_fds_deinit(&fds);
        return r == 0 ? hear(to, &none) : r;
}

static void end_worker(struct worker *worker, int signal_number)
{
        int status;

        if (signal_number)
                kill(worker->pid, signal_number);
        shutdown(worker->control, SHUT_RDWR); /* others may have inherited it */
        close(worker->control);
        CU_ASSERT_EQUAL(waitpid(worker->pid, &status, 0), worker->pid);
        if (!signal_number)
                CU_ASSERT_EQUAL(status, 0);
}

/* --- the daemon --------------------------------------------------------------------------------
 */

static void start(void)
{
        const struct daemon_options options = {
                .memory_bytes = FRAMES * FRAME,
                .frame_bytes = FRAME,
                .config = "[tenant one]\n"
                          "gid = 4711\n"
                          "[tenant two]\n"
                          "gid = 4712\n"
                          "[tenant small]\n"
                          "gid = 4713\n"
                          "max = 512K\n",
        };

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
}

static void stop(void)
{
        char report[4096];
        int problems = daemon_process_check(process, report, sizeof(report));

        if (problems)
                printf("%s\n", report);
        CU_ASSERT_EQUAL(problems, 0);
        process = daemon_process_free(process);
}

/* A figure of a tenant in io.gpumemd.ListTenants: its first. */
static int64_t figure(const char *tenant, const char *key)
{
        char name[64], wanted[64], *reply, *at;
        int64_t value = -1;

        if (daemon_process_call(process, "io.gpumemd.ListTenants", NULL, &reply) < 0)
                return -1;
        snprintf(name, sizeof(name), "\"tenant\":\"%s\"", tenant);
        snprintf(wanted, sizeof(wanted), "\"%s\":", key);
        at = strstr(reply, name);
        at = at ? strstr(at, wanted) : NULL;
        if (at)
                value = strtoll(at + strlen(wanted), NULL, 10);
        free(reply);
        return value;
}

static bool wait_figure(const char *tenant, const char *key, int64_t value, uint32_t ms)
{
        uint64_t deadline = wire_deadline_ns(ms);

        while (figure(tenant, key) != value) {
                if (wire_now_ns() > deadline)
                        return false;
                usleep(5000);
        }
        return true;
}

/* The former holder lives, and still maps (and writes to) what it returned. */
static void test_former_holder(void)
{
        struct worker one, two;

        start();
        one = start_worker(GROUP_ONE, MARK_ONE);
        two = start_worker(GROUP_TWO, MARK_TWO);
        CU_ASSERT_EQUAL(tell(&one, ORDER_GRANT, HELD, 5000), 0);
        CU_ASSERT_EQUAL(figure("one", "granted_bytes"), HELD * FRAME);
        CU_ASSERT_EQUAL(tell(&one, ORDER_RETURN, 0, 0), 0);
        CU_ASSERT_EQUAL(tell(&two, ORDER_GRANT, FRAMES - HELD, 20000), 0);
        /* More needs what the other returned: it is released, piece by piece, and does not come
         * back. */
        CU_ASSERT_EQUAL(tell(&two, ORDER_GRANT, 1, 300), CODE(GPUMEM_E_TIMEOUT));
        CU_ASSERT(wait_figure("one", "withheld_bytes", HELD * FRAME, 5000));
        CU_ASSERT_EQUAL(figure("one", "charged_bytes"), HELD * FRAME);
        CU_ASSERT_EQUAL(figure("two", "charged_bytes"), (FRAMES - HELD) * FRAME);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);

        CU_ASSERT_EQUAL(tell(&one, ORDER_WRITE, 0, 0), 0);
        CU_ASSERT_EQUAL(tell(&two, ORDER_VERIFY, 0, 0), 0);
        CU_ASSERT_EQUAL(tell(&two, ORDER_WRITE, 0, 0), 0);
        CU_ASSERT_EQUAL(tell(&one, ORDER_VERIFY, 0, 0), 0);

        end_worker(&one, SIGKILL);
        CU_ASSERT_EQUAL(tell(&two, ORDER_GRANT, HELD, 20000), 0);
        CU_ASSERT(wait_figure("one", "charged_bytes", 0, 5000));
        CU_ASSERT_EQUAL(tell(&two, ORDER_VERIFY, 0, 0), 0);
        end_worker(&two, 0);
        stop();
}

/* The holder dies, and a process that nobody knows has its descriptors and mappings. */
static void test_helper(void)
{
        struct worker one, helper, two;
        int64_t outside = 0, before = 0;

        start();
        one = start_worker(GROUP_ONE, MARK_ONE);
        helper = start_worker(GROUP_TWO, MARK_ONE);
        two = start_worker(GROUP_TWO, MARK_TWO);
        CU_ASSERT_EQUAL(
                daemon_process_number(process, "io.gpumemd.GetStatus", "outside_bytes", &before),
                0);
        CU_ASSERT_EQUAL(tell(&one, ORDER_GRANT, HELD, 5000), 0);
        CU_ASSERT_EQUAL(hand_over(&one, &helper), 0);
        end_worker(&one, SIGKILL);
        CU_ASSERT(wait_figure("one", "withheld_bytes", HELD * FRAME, 5000));
        CU_ASSERT_EQUAL(figure("one", "sessions"), 0);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        CU_ASSERT_EQUAL(tell(&two, ORDER_GRANT, FRAMES - HELD, 20000), 0);
        CU_ASSERT_EQUAL(tell(&helper, ORDER_WRITE, 0, 0), 0);
        CU_ASSERT_EQUAL(tell(&two, ORDER_VERIFY, 0, 0), 0);

        /* All who are known to have held it are dead: after a moment it is nobody's. */
        CU_ASSERT(wait_figure("one", "charged_bytes", 0, 10000));
        CU_ASSERT_EQUAL(
                daemon_process_number(process, "io.gpumemd.GetStatus", "outside_bytes", &outside),
                0);
        CU_ASSERT(outside >= before + (int64_t)(HELD * FRAME));
        CU_ASSERT(tell(&two, ORDER_GRANT, 1, 300) != 0);
        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);

        /* And when the stranger ends it is there for all. */
        end_worker(&helper, SIGKILL);
        CU_ASSERT_EQUAL(tell(&two, ORDER_GRANT, HELD, 20000), 0);
        CU_ASSERT_EQUAL(tell(&two, ORDER_VERIFY, 0, 0), 0);
        end_worker(&two, 0);
        stop();
}

/* The limit of the configuration, for all of the tenant's sessions. */
static void test_limit(void)
{
        struct worker a, b;

        start();
        a = start_worker(GROUP_SMALL, MARK_ONE);
        b = start_worker(GROUP_SMALL, MARK_ONE);
        CU_ASSERT_EQUAL(tell(&a, ORDER_GRANT, 9, 0), CODE(GPUMEM_E_NO_MEMORY));
        CU_ASSERT_EQUAL(figure("small", "max_bytes"), 512 << 10);
        CU_ASSERT_EQUAL(tell(&a, ORDER_GRANT, 5, 0), 0);
        CU_ASSERT_EQUAL(tell(&b, ORDER_GRANT, 4, 0), CODE(GPUMEM_E_AGAIN));
        CU_ASSERT_EQUAL(tell(&b, ORDER_GRANT, 3, 0), 0);
        CU_ASSERT_EQUAL(figure("small", "available_bytes"), 0);
        end_worker(&a, SIGKILL);
        CU_ASSERT_EQUAL(tell(&b, ORDER_GRANT, 5, 20000), 0);
        end_worker(&b, 0);
        stop();
}

/* Frames of one tenant go on to itself in many rounds while another comes and goes: nobody sees
 * anything of the other's. */
static void test_back_and_forth(void)
{
        struct worker one, two;

        start();
        for (int round = 0; round < 6; round++) {
                one = start_worker(GROUP_ONE, MARK_ONE);
                CU_ASSERT_EQUAL(tell(&one, ORDER_GRANT, FRAMES, 20000), 0);
                two = start_worker(GROUP_TWO, MARK_TWO);
                CU_ASSERT_EQUAL(tell(&one, ORDER_RETURN, 0, 0), 0);
                end_worker(&one, round % 2 ? SIGKILL : 0);
                CU_ASSERT_EQUAL(tell(&two, ORDER_GRANT, FRAMES, 20000), 0);
                CU_ASSERT_EQUAL(tell(&two, ORDER_VERIFY, 0, 0), 0);
                end_worker(&two, round % 2 ? 0 : SIGKILL);
        }
        stop();
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"a former holder still maps it", test_former_holder},
                {"somebody unknown still maps it", test_helper},
                {"a limit", test_limit},
                {"back and forth", test_back_and_forth},
        };

        if (setresgid((gid_t)-1, GROUP_ONE, (gid_t)-1) < 0 ||
            setresgid((gid_t)-1, 0, (gid_t)-1) < 0) {
                printf("skipped: tenants of their own need root, to be of several groups\n");
                printf("0 passed, 0 failed, 1 skipped\n");
                return 0;
        }
        return UNIT_RUN("tenants", tests);
}
