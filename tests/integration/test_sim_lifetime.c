/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lifetime of simulated device memory across processes: it lives until the last handle, mapping and
 * descriptor anywhere is gone, also in flight, also after SIGKILL, and its bytes are back then.
 *
 * Other processes are this program again: `--child WHAT SOCKET [NUMBER]`, speaking in single bytes
 * over the socket: 'r' ready, 'g' go, 'y' and 'n' answers.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <sys/mman.h>

#include "libclient/simcuda/control.h"
#include "tests/support/sim_test.h"

#define GRANULE (64 * KIB)
#define MEMORY  (16 * MIB)
#define FRAMES  (MEMORY / GRANULE)
#define POSIX   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define WAIT_MS 30000

static char directory[64];

/* --- talking
 * --------------------------------------------------------------------------------------- */

static void say(int socket, char byte)
{
        if (send(socket, &byte, 1, MSG_NOSIGNAL) != 1)
                perror("send");
}

/* The next byte, 'x' when the other side is gone, '?' when it takes too long. */
static char hear(int socket)
{
        struct pollfd poll_socket = {.fd = socket, .events = POLLIN};
        char byte = 'x';

        if (poll(&poll_socket, 1, WAIT_MS) != 1)
                return '?';
        return recv(socket, &byte, 1, 0) == 1 ? byte : 'x';
}

static void send_fd(int socket, int fd)
{
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } control = {0};
        char byte = 'f';
        struct iovec data = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &data,
                                 .msg_iovlen = 1,
                                 .msg_control = control.space,
                                 .msg_controllen = sizeof(control.space)};

        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
        if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1)
                perror("sendmsg");
}

static int receive_fd(int socket)
{
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } control = {0};
        char byte;
        struct iovec data = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &data,
                                 .msg_iovlen = 1,
                                 .msg_control = control.space,
                                 .msg_controllen = sizeof(control.space)};
        struct pollfd poll_socket = {.fd = socket, .events = POLLIN};
        int fd = -1;

        if (poll(&poll_socket, 1, WAIT_MS) != 1 ||
            recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 ||
            control.header.cmsg_type != SCM_RIGHTS)
                return -1;
        memcpy(&fd, CMSG_DATA(&control.header), sizeof(int));
        return fd;
}

struct child {
        pid_t process;
        int socket;
};

static struct child spawn(const char *what, unsigned int number)
{
        struct child child;
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
                perror("socketpair");
                exit(2);
        }
        fflush(stdout);
        child.process = fork();
        if (child.process == 0) {
                char program[] = "/proc/self/exe", option[] = "--child";
                char argument[24], descriptor[16], text[16];
                char *arguments[] = {program, option, argument, descriptor, text, NULL};

                snprintf(argument, sizeof(argument), "%s", what);
                snprintf(descriptor, sizeof(descriptor), "%d", pair[1]);
                snprintf(text, sizeof(text), "%u", number);
                fcntl(pair[1], F_SETFD, 0);
                execv(program, arguments);
                _exit(127);
        }
        if (child.process < 0) {
                perror("fork");
                exit(2);
        }
        close(pair[1]);
        child.socket = pair[0];
        return child;
}

static void reap(struct child *child)
{
        close(child->socket);
        while (waitpid(child->process, NULL, 0) < 0 && errno == EINTR)
                ;
}

static void kill_child(struct child *child)
{
        kill(child->process, SIGKILL);
        reap(child);
}

/* Exit status, or -1 for a death by signal. */
static int await_exit(struct child *child)
{
        int status = -1;

        while (waitpid(child->process, &status, 0) < 0 && errno == EINTR)
                ;
        close(child->socket);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* --- what children do
 * ------------------------------------------------------------------------------- */

static void wait_for_ever(void)
{
        for (;;)
                pause();
}

static CUmemGenericAllocationHandle import(int fd)
{
        CUmemGenericAllocationHandle handle = 0;

        REQUIRE(cuda->mem_import_from_shareable_handle(&handle, (void *)(intptr_t)fd, POSIX));
        return handle;
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
        CUdeviceptr va = 0;

        REQUIRE(cuda->mem_address_reserve(&va, GRANULE, 0, 0, 0));
        REQUIRE(cuda->mem_map(va, GRANULE, 0, handle, 0));
        REQUIRE(cuda->mem_set_access(va, GRANULE, &sim_test_read_write, 1));
        return va;
}

/* Holds what it is sent through a handle, a mapping, or the bare descriptor. */
static void child_hold(int socket, char how)
{
        int fd = receive_fd(socket);
        CUmemGenericAllocationHandle handle;

        if (how != 'd') {
                handle = import(fd);
                close(fd);
                if (how == 'm') {
                        map(handle);
                        REQUIRE(cuda->mem_release(handle));
                }
        }
        say(socket, 'r');
        if (hear(socket) != 'g')
                wait_for_ever();
}

/* Creates private and exportable memory, maps some, and waits to be killed. */
static void child_create(int socket, unsigned int frames)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        CUdeviceptr memory;
        unsigned int i;
        int fd;

        for (i = 0; i + 1 < frames; i++) {
                properties.requestedHandleTypes = i % 2 ? POSIX : CU_MEM_HANDLE_TYPE_NONE;
                REQUIRE(cuda->mem_create(&handle, GRANULE, &properties, 0));
                if (i % 2)
                        REQUIRE(cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 0));
                if (i % 3 == 0) {
                        map(handle);
                        REQUIRE(cuda->mem_release(handle));
                }
        }
        REQUIRE(cuda->mem_alloc(&memory, 1));
        say(socket, 'r');
        if (hear(socket) != 'g')
                wait_for_ever();
}

/* Sends a frame with a mark in it and dies at once, with the descriptor in flight. */
static void child_send_and_die(int socket)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        uint32_t mark = 0xc0ffee;
        int fd;

        REQUIRE(cuda->mem_create(&handle, GRANULE, &properties, 0));
        REQUIRE(cuda->memcpy_htod(map(handle) + 128, &mark, sizeof(mark)));
        REQUIRE(cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 0));
        send_fd(socket, fd);
        raise(SIGKILL);
}

/* Tries to get one frame when told to; answers whether it did, and keeps it. */
static void child_race(int socket)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        CUresult result;

        say(socket, 'r');
        if (hear(socket) != 'g')
                return;
        result = cuda->mem_create(&handle, GRANULE, &properties, 0);
        say(socket, result == CUDA_SUCCESS ? 'y' : result == CUDA_ERROR_OUT_OF_MEMORY ? 'n' : 'e');
        wait_for_ever();
}

/* Uses every call that changes the shared state, until it is killed somewhere in there. */
static void child_churn(int socket, unsigned int seed)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handles[8] = {0};
        unsigned int random = seed;
        bool said = false;

        for (;;) {
                unsigned int i;
                int fd;

                random = random * 1103515245u + 12345u;
                i = (random >> 16) % 8;
                if (handles[i]) {
                        REQUIRE(cuda->mem_release(handles[i]));
                        handles[i] = 0;
                } else {
                        CUmemGenericAllocationHandle again;

                        REQUIRE(cuda->mem_create(&handles[i], GRANULE, &properties, 0));
                        REQUIRE(cuda->mem_export_to_shareable_handle(&fd, handles[i], POSIX, 0));
                        REQUIRE(cuda->mem_import_from_shareable_handle(&again, (void *)(intptr_t)fd,
                                                                       POSIX));
                        close(fd);
                        REQUIRE(cuda->mem_release(again));
                }
                if (!said)
                        say(socket, 'r');
                said = true;
        }
}

/* Dies inside the shared lock, with everything that can be derived in ruins. */
static void child_die_in_lock(void)
{
        char path[96];
        struct control *control;
        int fd;

        snprintf(path, sizeof(path), "%s/control", getenv("GPUMEM_SIM_DIR"));
        fd = open(path, O_RDWR | O_CLOEXEC);
        control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (control == MAP_FAILED || control->layout != sizeof(*control) ||
            pthread_mutex_lock(&control->lock) != 0)
                _exit(1);
        memset(control->bucket, 0, sizeof(control->bucket));
        control->used_bytes[0] = 12345;
        control->free_slot = 0;
        control->unsure = 99;
        control->slot[1].holders += 7;
        raise(SIGKILL);
}

static void *churn_for_ever(void *argument)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;

        (void)argument;
        while (cuda->mem_create(&handle, GRANULE, &properties, 0) == CUDA_SUCCESS &&
               cuda->mem_release(handle) == CUDA_SUCCESS)
                ;
        return NULL;
}

/* Returns from main while a thread is in the middle of driver calls. */
static void child_exit_while_busy(int socket)
{
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        pthread_t thread;

        REQUIRE(cuda->mem_create(&handle, GRANULE, &properties, 0));
        map(handle);
        if (pthread_create(&thread, NULL, churn_for_ever, NULL) != 0)
                exit(3);
        pthread_detach(thread);
        sim_test_sleep_ms(2);
        say(socket, 'r');
}

static int child_main(const char *what, int socket, unsigned int number)
{
        if (strcmp(what, "mismatch") == 0)
                sim_test_set("GPUMEM_SIM_MEMORY", "32M");
        if (strcmp(what, "adopt") == 0) {
                unsetenv("GPUMEM_SIM_MEMORY");
                unsetenv("GPUMEM_SIM_GRANULARITY");
        }
        if (strcmp(what, "mismatch") == 0) {
                sim_test_open();
                return cuda->init(0) == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH &&
                                       strstr(cuda->error_detail(), "otherwise")
                               ? 0
                               : 1;
        }
        if (strcmp(what, "die-in-lock") == 0)
                child_die_in_lock();
        sim_test_start();
        if (strcmp(what, "adopt") == 0) {
                size_t unused = 0, total = 0;

                REQUIRE(cuda->mem_get_info(&unused, &total));
                return total == MEMORY ? 0 : 1;
        }
        if (strcmp(what, "hold-handle") == 0)
                child_hold(socket, 'h');
        else if (strcmp(what, "hold-mapping") == 0)
                child_hold(socket, 'm');
        else if (strcmp(what, "hold-descriptor") == 0)
                child_hold(socket, 'd');
        else if (strcmp(what, "create") == 0)
                child_create(socket, number);
        else if (strcmp(what, "send-and-die") == 0)
                child_send_and_die(socket);
        else if (strcmp(what, "race") == 0)
                child_race(socket);
        else if (strcmp(what, "exit-while-busy") == 0)
                child_exit_while_busy(socket);
        else if (strcmp(what, "churn") == 0)
                child_churn(socket, number);
        return 0;
}

/* --- tests
 * ------------------------------------------------------------------------------------------- */

static int export_frame(CUmemGenericAllocationHandle *handle)
{
        CUmemAllocationProp properties = sim_test_properties();
        int fd = -1;

        OK(cuda->mem_create(handle, GRANULE, &properties, 0));
        OK(cuda->mem_export_to_shareable_handle(&fd, *handle, POSIX, 0));
        return fd;
}

static void check_all_free(void)
{
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY);
        CU_ASSERT_EQUAL(sim_test_count_files(directory), 1); /* the control file */
}

/* Whoever holds it last, in whatever way, and however it ends. */
static void test_last_holder(void)
{
        static const char *const ways[] = {"hold-handle", "hold-mapping", "hold-descriptor"};
        size_t i;
        int by_kill;

        for (i = 0; i < 3; i++) {
                for (by_kill = 0; by_kill < 2; by_kill++) {
                        struct child child = spawn(ways[i], 0);
                        CUmemGenericAllocationHandle handle;
                        int fd = export_frame(&handle);

                        send_fd(child.socket, fd);
                        CU_ASSERT_EQUAL(hear(child.socket), 'r');
                        close(fd);
                        OK(cuda->mem_release(handle));
                        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY - GRANULE);
                        if (by_kill) {
                                kill_child(&child);
                        } else {
                                say(child.socket, 'g');
                                CU_ASSERT_EQUAL(await_exit(&child), 0);
                        }
                        check_all_free();
                }
        }
}

static void test_killed_creator(void)
{
        struct child child = spawn("create", 9);

        CU_ASSERT_EQUAL(hear(child.socket), 'r');
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY - 9 * GRANULE);
        kill_child(&child);
        check_all_free();

        /* An orderly end leaves nothing behind either. */
        child = spawn("create", 9);
        CU_ASSERT_EQUAL(hear(child.socket), 'r');
        say(child.socket, 'g');
        CU_ASSERT_EQUAL(await_exit(&child), 0);
        check_all_free();
}

/* What the dead held is there for the next allocation, without anybody asking for the free bytes.
 */
static void test_create_after_kill(void)
{
        CUmemAllocationProp properties = sim_test_properties();
        struct child child = spawn("create", FRAMES);
        CUmemGenericAllocationHandle handle;

        CU_ASSERT_EQUAL(hear(child.socket), 'r');
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuda->mem_create(&handle, GRANULE, &properties, 0));
        kill_child(&child);
        OK(cuda->mem_create(&handle, MEMORY, &properties, 0));
        OK(cuda->mem_release(handle));
        check_all_free();
}

static void test_in_flight(void)
{
        CUmemGenericAllocationHandle handle;
        uint32_t mark = 77, seen = 0;
        CUdeviceptr va;
        int pair[2], fd;

        /* A descriptor in a message nobody has read keeps the memory ... */
        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        fd = export_frame(&handle);
        va = map(handle);
        OK(cuda->memcpy_htod(va, &mark, sizeof(mark)));
        send_fd(pair[0], fd);
        close(fd);
        OK(cuda->mem_release(handle));
        sim_test_unmap(va, GRANULE);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY - GRANULE);
        /* ... with its contents ... */
        fd = receive_fd(pair[1]);
        handle = import(fd);
        close(fd);
        va = map(handle);
        OK(cuda->memcpy_dtoh(&seen, va, sizeof(seen)));
        CU_ASSERT_EQUAL(seen, mark);
        /* ... until the message is gone, unread. */
        OK(cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 0));
        send_fd(pair[0], fd);
        close(fd);
        OK(cuda->mem_release(handle));
        sim_test_unmap(va, GRANULE);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY - GRANULE);
        close(pair[0]);
        close(pair[1]);
        check_all_free();
}

static void test_in_flight_from_the_dead(void)
{
        struct child child = spawn("send-and-die", 0);
        CUmemGenericAllocationHandle handle;
        uint32_t seen = 0;
        CUdeviceptr va;
        int fd;

        while (waitpid(child.process, NULL, 0) < 0 && errno == EINTR)
                ;
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY - GRANULE);
        fd = receive_fd(child.socket);
        CU_ASSERT_FATAL(fd >= 0);
        handle = import(fd);
        close(fd);
        close(child.socket);
        va = map(handle);
        OK(cuda->mem_release(handle));
        OK(cuda->memcpy_dtoh(&seen, va + 128, sizeof(seen)));
        CU_ASSERT_EQUAL(seen, 0xc0ffee);
        sim_test_unmap(va, GRANULE);
        check_all_free();
}

/* A forked child's inherited descriptors keep memory alive, its process entry does not. */
static void test_fork_inherits_descriptors(void)
{
        CUmemGenericAllocationHandle handle;
        int pair[2], fd = export_frame(&handle);
        pid_t child;

        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        child = fork();
        if (child == 0) {
                close(pair[0]);
                hear(pair[1]);
                _exit(0);
        }
        close(pair[1]);
        close(fd);
        OK(cuda->mem_release(handle));
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY - GRANULE);
        say(pair[0], 'g');
        waitpid(child, NULL, 0);
        close(pair[0]);
        check_all_free();
}

static void test_race_for_the_last_frames(void)
{
        enum { RACERS = 5, LEFT = 2 };
        CUmemAllocationProp properties = sim_test_properties();
        CUmemGenericAllocationHandle handle;
        struct child racers[RACERS];
        unsigned int winners = 0, losers = 0;
        int i;

        for (i = 0; i < RACERS; i++)
                racers[i] = spawn("race", 0);
        for (i = 0; i < RACERS; i++)
                CU_ASSERT_EQUAL(hear(racers[i].socket), 'r');
        OK(cuda->mem_create(&handle, MEMORY - LEFT * GRANULE, &properties, 0));
        for (i = 0; i < RACERS; i++)
                say(racers[i].socket, 'g');
        for (i = 0; i < RACERS; i++) {
                char answer = hear(racers[i].socket);

                winners += answer == 'y';
                losers += answer == 'n';
        }
        CU_ASSERT_EQUAL(winners, LEFT);
        CU_ASSERT_EQUAL(losers, RACERS - LEFT);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), 0);
        for (i = 0; i < RACERS; i++)
                kill_child(&racers[i]);
        OK(cuda->mem_release(handle));
        check_all_free();
}

/* SIGKILL at any instruction, the shared lock's critical sections included. */
static void test_kill_anywhere(void)
{
        unsigned int round, i;

        for (round = 0; round < 25; round++) {
                struct child children[3];

                for (i = 0; i < 3; i++)
                        children[i] = spawn("churn", round * 3 + i);
                for (i = 0; i < 3; i++)
                        CU_ASSERT_EQUAL(hear(children[i].socket), 'r');
                for (i = 0; i < 3; i++) {
                        struct timespec pause = {.tv_nsec = (long)(round * 977 + i * 331) % 3000 *
                                                            1000L};

                        nanosleep(&pause, NULL);
                        kill_child(&children[i]);
                }
                check_all_free();
        }
}

static void test_death_in_the_lock(void)
{
        CUmemGenericAllocationHandle kept, first, again;
        int kept_fd = export_frame(&kept), fd;
        struct child child;

        fd = export_frame(&first);
        OK(cuda->mem_release(first)); /* only a descriptor is left of it */
        child = spawn("die-in-lock", 0);
        CU_ASSERT_EQUAL(await_exit(&child), -1);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY - 2 * GRANULE);
        first = import(fd);
        again = import(kept_fd);
        close(kept_fd);
        OK(cuda->mem_release(kept));
        OK(cuda->mem_release(first));
        close(fd);
        CU_ASSERT_EQUAL(sim_test_free_bytes(), MEMORY - GRANULE);
        OK(cuda->mem_release(again));
        check_all_free();
}

static void test_configuration(void)
{
        struct child child = spawn("mismatch", 0);

        CU_ASSERT_EQUAL(await_exit(&child), 0);
        child = spawn("adopt", 0);
        CU_ASSERT_EQUAL(await_exit(&child), 0);
        check_all_free();
}

static void test_exit_while_busy(void)
{
        int round;

        for (round = 0; round < 20; round++) {
                struct child child = spawn("exit-while-busy", 0);

                CU_ASSERT_EQUAL(hear(child.socket), 'r');
                CU_ASSERT_EQUAL(await_exit(&child), 0);
                check_all_free();
        }
}

/* Memory held by nobody but a descriptor outlives all processes of the machine, and is found again.
 */
static void test_machine_without_processes(void)
{
        struct child creator = spawn("send-and-die", 0), holder;
        int fd;

        /* This process is attached all the time; the machine of another directory is not. */
        char other[64];

        kill_child(&creator);
        strcpy(other, "/dev/shm/gpumem-test-XXXXXX");
        CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(other));
        sim_test_set("GPUMEM_SIM_DIR", other);
        creator = spawn("send-and-die", 0);
        while (waitpid(creator.process, NULL, 0) < 0 && errno == EINTR)
                ;
        fd = receive_fd(creator.socket);
        CU_ASSERT_FATAL(fd >= 0);
        CU_ASSERT_EQUAL(sim_test_count_files(other), 2);
        holder = spawn("hold-mapping", 0);
        send_fd(holder.socket, fd);
        CU_ASSERT_EQUAL(hear(holder.socket), 'r');
        close(fd);
        close(creator.socket);
        CU_ASSERT_EQUAL(sim_test_count_files(other), 2);
        kill_child(&holder);
        /* The next to come cleans up. */
        holder = spawn("create", 3);
        CU_ASSERT_EQUAL(hear(holder.socket), 'r');
        say(holder.socket, 'g');
        CU_ASSERT_EQUAL(await_exit(&holder), 0);
        CU_ASSERT_EQUAL(sim_test_count_files(other), 2); /* one was exported */
        sim_test_set("GPUMEM_SIM_DIR", directory);
        sim_test_remove(other);
        check_all_free();
}

int main(int argc, char **argv)
{
        CU_pSuite suite;

        if (argc == 5 && strcmp(argv[1], "--child") == 0)
                return child_main(argv[2], atoi(argv[3]), (unsigned int)atoi(argv[4]));
        sim_test_environment(directory, "16M", "64K");
        sim_test_start();
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("lifetime of simulated memory", NULL, NULL);
        CU_add_test(suite, "the last holder", test_last_holder);
        CU_add_test(suite, "a killed creator", test_killed_creator);
        CU_add_test(suite, "creating after a kill", test_create_after_kill);
        CU_add_test(suite, "descriptors in flight", test_in_flight);
        CU_add_test(suite, "a descriptor in flight from the dead", test_in_flight_from_the_dead);
        CU_add_test(suite, "fork inherits descriptors", test_fork_inherits_descriptors);
        CU_add_test(suite, "a race for the last frames", test_race_for_the_last_frames);
        CU_add_test(suite, "SIGKILL anywhere", test_kill_anywhere);
        CU_add_test(suite, "a death in the shared lock", test_death_in_the_lock);
        CU_add_test(suite, "exit while a thread is busy", test_exit_while_busy);
        CU_add_test(suite, "one machine, one configuration", test_configuration);
        CU_add_test(suite, "a machine without processes", test_machine_without_processes);
        return sim_test_finish(directory);
}
