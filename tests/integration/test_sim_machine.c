/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated machine as a whole, across processes: who it is (its UUIDs), who may use it, and
 * that its directory goes when the last process has left in order.
 *
 * The simulator keeps to one machine a process, so everything here happens in children.
 */
#include <grp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <gpumem/gpumem.h>

#include "tests/support/daemon_process.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/sim_test.h"

#define NOBODY 65534
#define FRAME  (64 * KIB)
#define MEMORY "1048576"
#define TEXT   512
#define FAILED 99

static char parent[64], directory[96];

struct answer {
        uint8_t uuid[16];
        int result;
        char text[TEXT];
};

/* --- children --- */

/* Runs `body` in a child that leaves in order; what it answers, or result FAILED. */
static struct answer in_child(void (*body)(struct answer *answer))
{
        struct answer answer = {.result = FAILED};
        int pipe_fds[2], status;
        pid_t pid;

        if (pipe(pipe_fds) < 0)
                return answer;
        fflush(NULL);
        pid = fork();
        if (pid == 0) {
                body(&answer);
                exit(write(pipe_fds[1], &answer, sizeof(answer)) != sizeof(answer));
        }
        close(pipe_fds[1]);
        if (read(pipe_fds[0], &answer, sizeof(answer)) != sizeof(answer))
                answer.result = FAILED;
        close(pipe_fds[0]);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
                answer.result = FAILED;
        return answer;
}

static void attach(struct answer *answer)
{
        CUuuid uuid;

        sim_test_open();
        answer->result = cuda->init(0);
        if (answer->result == CUDA_SUCCESS)
                answer->result = cuda->device_get_uuid(&uuid, 0);
        if (answer->result == CUDA_SUCCESS)
                memcpy(answer->uuid, uuid.bytes, sizeof(answer->uuid));
        else
                snprintf(answer->text, sizeof(answer->text), "%s", cuda->error_detail());
}

static void attach_second_device(struct answer *answer)
{
        CUuuid uuid;

        attach(answer);
        if (answer->result == CUDA_SUCCESS)
                answer->result = cuda->device_get_uuid(&uuid, 1);
        if (answer->result == CUDA_SUCCESS)
                memcpy(answer->uuid, uuid.bytes, sizeof(answer->uuid));
}

static void become_nobody(void)
{
        if (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
            setresuid(NOBODY, NOBODY, NOBODY) < 0)
                exit(2);
}

static void attach_as_nobody(struct answer *answer)
{
        become_nobody();
        attach(answer);
}

/* Dies inside, with memory. */
static void attach_and_die(struct answer *answer)
{
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp properties = sim_test_properties();

        (void)answer;
        sim_test_start();
        REQUIRE(cuda->mem_create(&handle, FRAME, &properties, 0));
        raise(SIGKILL);
}

static void come_and_go(struct answer *answer)
{
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp properties = sim_test_properties();

        attach(answer);
        if (answer->result == CUDA_SUCCESS)
                answer->result = cuda->mem_create(&handle, FRAME, &properties, 0);
        if (answer->result != CUDA_SUCCESS)
                fprintf(stderr, "%s\n", cuda->error_detail());
}

/* --- the machine's own --- */

static void use_machine(const char *name)
{
        snprintf(directory, sizeof(directory), "%s/%s", parent, name);
        sim_test_set("GPUMEM_SIM_DIR", directory);
        unsetenv("GPUMEM_SIM_MODE");
        unsetenv("GPUMEM_SIM_GROUP");
        unsetenv("GPUMEM_SIM_DEVICES");
        sim_test_set("GPUMEM_SIM_MEMORY", MEMORY);
}

static bool exists(void)
{
        return access(directory, F_OK) == 0;
}

static void test_uuid(void)
{
        struct answer first, again, second_device, resized, other;

        use_machine("a");
        CU_ASSERT_EQUAL_FATAL(mkdir(directory, 0700), 0);
        first = in_child(attach);
        again = in_child(attach);
        CU_ASSERT_EQUAL(first.result, CUDA_SUCCESS);
        CU_ASSERT_EQUAL(again.result, CUDA_SUCCESS);
        CU_ASSERT_EQUAL(memcmp(first.uuid, again.uuid, 16), 0);
        /* Version 8, variant 10: as RFC 9562 has it. */
        CU_ASSERT_EQUAL(first.uuid[6] >> 4, 8);
        CU_ASSERT_EQUAL(first.uuid[8] >> 6, 2);

        sim_test_set("GPUMEM_SIM_DEVICES", "2");
        second_device = in_child(attach_second_device);
        CU_ASSERT_EQUAL(second_device.result, CUDA_SUCCESS);
        CU_ASSERT_NOT_EQUAL(memcmp(first.uuid, second_device.uuid, 16), 0);
        sim_test_set("GPUMEM_SIM_MEMORY", "2097152");
        resized = in_child(attach);
        CU_ASSERT_EQUAL(resized.result, CUDA_SUCCESS);
        CU_ASSERT_EQUAL(memcmp(first.uuid, resized.uuid, 16), 0);
        /* Who made it removes it. */
        CU_ASSERT(exists());
        sim_test_remove(directory);

        use_machine("b");
        other = in_child(attach);
        CU_ASSERT_EQUAL(other.result, CUDA_SUCCESS);
        CU_ASSERT_NOT_EQUAL(memcmp(first.uuid, other.uuid, 16), 0);
}

static void test_removed(void)
{
        use_machine("c");
        CU_ASSERT_EQUAL(in_child(attach).result, CUDA_SUCCESS);
        CU_ASSERT_FALSE(exists());

        /* Who is killed removes nothing; the next one does, memory and all. */
        in_child(attach_and_die);
        CU_ASSERT(exists());
        CU_ASSERT(sim_test_count_files(directory) == 2);
        CU_ASSERT_EQUAL(in_child(attach).result, CUDA_SUCCESS);
        CU_ASSERT_FALSE(exists());

        /* What is not the simulator's stays, and so does the directory. */
        in_child(attach_and_die);
        {
                char path[128];
                FILE *file;

                snprintf(path, sizeof(path), "%s/notes", directory);
                file = fopen(path, "w");
                CU_ASSERT_PTR_NOT_NULL_FATAL(file);
                fclose(file);
        }
        CU_ASSERT_EQUAL(in_child(attach).result, CUDA_SUCCESS);
        CU_ASSERT_EQUAL(sim_test_count_files(directory), 2);
        sim_test_remove(directory);
}

/* Attaching and removing race: nobody ever fails, and at the end nothing is there. */
static void test_come_and_go(void)
{
        enum { RUNNERS = 4, TURNS = 60 };
        pid_t runners[RUNNERS];
        int status;

        use_machine("d");
        fflush(NULL);
        for (int i = 0; i < RUNNERS; i++) {
                runners[i] = fork();
                if (runners[i] != 0)
                        continue;
                for (int turn = 0; turn < TURNS; turn++)
                        if (in_child(come_and_go).result != CUDA_SUCCESS)
                                _exit(1);
                _exit(0);
        }
        for (int i = 0; i < RUNNERS; i++) {
                CU_ASSERT_EQUAL(waitpid(runners[i], &status, 0), runners[i]);
                CU_ASSERT_EQUAL(status, 0);
        }
        /* The last two may have seen each other; whoever comes after them sees nobody. */
        CU_ASSERT_EQUAL(in_child(attach).result, CUDA_SUCCESS);
        CU_ASSERT_FALSE(exists());
}

static void test_refused(void)
{
        struct answer answer;

        use_machine("e");
        sim_test_set("GPUMEM_SIM_MODE", "0755");
        answer = in_child(attach);
        CU_ASSERT_EQUAL(answer.result, CUDA_ERROR_INVALID_VALUE);
        CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "GPUMEM_SIM_MODE=0755 is not 0700, 0770"));
        use_machine("e");
        sim_test_set("GPUMEM_SIM_GROUP", "no such group");
        answer = in_child(attach);
        CU_ASSERT_EQUAL(answer.result, CUDA_ERROR_INVALID_VALUE);
        CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "GPUMEM_SIM_GROUP=no such group: no such"));
        CU_ASSERT_FALSE(exists());
        use_machine("e");
        sim_test_set("GPUMEM_SIM_MEMORY", "4096");
        answer = in_child(attach);
        CU_ASSERT_EQUAL(answer.result, CUDA_ERROR_INVALID_VALUE);
        CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "GPUMEM_SIM_MEMORY=4096 is less than one"));
        CU_ASSERT_FALSE(exists());
}

/* --- another user --- */

/* Printed where tests/run.sh finds it. */
static bool skipped(void)
{
        char library[PATH_MAX];

        if (geteuid() != 0) {
                printf("\nskipped: wants root, to be two users\n");
                return true;
        }
        snprintf(library, sizeof(library), "%s", getenv("GPUMEM_SIM_LIBRARY"));
        fflush(NULL);
        if (fork() == 0) {
                become_nobody();
                _exit(access(library, R_OK) != 0);
        }
        int status = 1;

        wait(&status);
        if (status != 0)
                printf("\nskipped: the build is not readable for other users\n");
        return status != 0;
}

static void test_other_user(void)
{
        struct answer mine, theirs;
        struct stat status;

        if (skipped())
                return;
        CU_ASSERT_EQUAL(chmod(parent, 0755), 0);
        /* By default the machine is private. */
        use_machine("f");
        in_child(attach_and_die);
        theirs = in_child(attach_as_nobody);
        CU_ASSERT_NOT_EQUAL(theirs.result, CUDA_SUCCESS);
        CU_ASSERT_PTR_NOT_NULL(strstr(theirs.text, "Permission denied"));
        CU_ASSERT_PTR_NOT_NULL(strstr(theirs.text, "GPUMEM_SIM_MODE"));
        sim_test_remove(directory);

        sim_test_set("GPUMEM_SIM_MODE", "0777");
        in_child(attach_and_die);
        mine = in_child(attach_as_nobody); /* who cannot remove it, but buries the dead */
        CU_ASSERT_EQUAL(mine.result, CUDA_SUCCESS);
        CU_ASSERT(exists());
        in_child(attach_and_die);
        theirs = in_child(attach_as_nobody);
        CU_ASSERT_EQUAL(theirs.result, CUDA_SUCCESS);
        CU_ASSERT_EQUAL(memcmp(mine.uuid, theirs.uuid, 16), 0);
        sim_test_remove(directory);

        use_machine("g");
        sim_test_set("GPUMEM_SIM_GROUP", "65534");
        in_child(attach_and_die);
        CU_ASSERT_EQUAL(stat(directory, &status), 0);
        CU_ASSERT_EQUAL(status.st_mode & 07777, 02770);
        CU_ASSERT_EQUAL(status.st_gid, NOBODY);
        CU_ASSERT_EQUAL(in_child(attach_as_nobody).result, CUDA_SUCCESS);
        sim_test_remove(directory);
        CU_ASSERT_EQUAL(chmod(parent, 0700), 0);
}

/* --- a daemon --- */

static struct daemon_process *process;

static void connect_to(struct answer *answer)
{
        struct gpumem_options options = {.size = sizeof(options),
                                         .driver = GPUMEM_DRIVER_SIMULATOR,
                                         .socket_path = daemon_process_client_socket(process),
                                         .name = "other",
                                         .timeout_ms = 5000};
        struct gpumem_buffer *buffer = NULL;
        struct gpumem *session = NULL;
        unsigned char *host = NULL;

        answer->result = gpumem_connect(&session, &options);
        if (answer->result == 0)
                answer->result = gpumem_buffer_create(session, 3 * FRAME, "buffer", 2000, &buffer);
        if (answer->result == 0)
                answer->result = gpumem_host_view(session, gpumem_buffer_address(buffer), 3 * FRAME,
                                                  (void **)&host);
        if (answer->result != 0)
                snprintf(answer->text, sizeof(answer->text), "%s", gpumem_error_message());
        else
                memset(host, 0x5a, 3 * FRAME);
        gpumem_buffer_free(buffer);
        gpumem_disconnect(session);
}

static void connect_as_nobody(struct answer *answer)
{
        become_nobody();
        connect_to(answer);
}

static void start_daemon(void)
{
        const struct daemon_options options = {.memory_bytes = 64 * FRAME, .frame_bytes = FRAME};

        CU_ASSERT_EQUAL_FATAL(daemon_process_start(&process, &options), 0);
}

static void stop_daemon(void)
{
        char path[128];

        CU_ASSERT_EQUAL(daemon_process_check(process, NULL, 0), 0);
        snprintf(path, sizeof(path), "%s", getenv("GPUMEM_SIM_DIR"));
        CU_ASSERT_EQUAL(daemon_process_stop(process), 0);
        CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
        process = daemon_process_free(process);
}

/* A client on another machine is told at once, with both UUIDs. */
static void test_wrong_machine(void)
{
        char right[128], *end;
        struct answer answer;
        const char *first;

        unsetenv("GPUMEM_SIM_MODE");
        unsetenv("GPUMEM_SIM_GROUP");
        start_daemon();
        snprintf(right, sizeof(right), "%s", getenv("GPUMEM_SIM_DIR"));
        CU_ASSERT_EQUAL(in_child(connect_to).result, 0);
        snprintf(directory, sizeof(directory), "%s/elsewhere", parent);
        sim_test_set("GPUMEM_SIM_DIR", directory);
        answer = in_child(connect_to);
        CU_ASSERT_EQUAL(answer.result, GPUMEM_E_NOT_FOUND);
        CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "GPUMEM_SIM_DIR"));
        first = strstr(answer.text, "GPU-6770756d-");
        CU_ASSERT_PTR_NOT_NULL_FATAL(first);
        end = strstr(first + 1, "GPU-6770756d-");
        CU_ASSERT_PTR_NOT_NULL_FATAL(end);
        CU_ASSERT_NOT_EQUAL(memcmp(first, end, 40), 0);
        sim_test_set("GPUMEM_SIM_DIR", right);
        stop_daemon();
}

/* Two users, two tenants, one simulated device. */
static void test_two_users(void)
{
        struct answer answer;

        if (skipped())
                return;
        sim_test_set("GPUMEM_SIM_MODE", "0777");
        start_daemon();
        CU_ASSERT_EQUAL(chmod(daemon_process_directory(process), 0755), 0);
        CU_ASSERT_EQUAL(chmod(daemon_process_client_socket(process), 0666), 0);
        answer = in_child(connect_as_nobody);
        if (answer.result != 0)
                printf("\n  %s\n", answer.text);
        CU_ASSERT_EQUAL(answer.result, 0);
        CU_ASSERT_EQUAL(in_child(connect_to).result, 0);
        stop_daemon();
        unsetenv("GPUMEM_SIM_MODE");
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"each machine has UUIDs of its own", test_uuid},
                {"the last one out removes it", test_removed},
                {"coming and going at once", test_come_and_go},
                {"what is refused", test_refused},
                {"another user", test_other_user},
                {"a client on another machine than its daemon", test_wrong_machine},
                {"two users of one daemon", test_two_users},
        };
        int status;

        sim_test_environment(parent, MEMORY, "65536");
        status = UNIT_RUN("the simulated machine", tests);
        sim_test_remove(parent);
        return status;
}
