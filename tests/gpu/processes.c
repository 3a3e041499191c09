/* SPDX-License-Identifier: Apache-2.0 */
/* Exported memory outlives its exporter; memory of a killed process comes back, and when. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/gpu_check.h"

#define POSIX       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define OUTLIVE_MIB 16
#define HEAR_MS     30000
#define RETURN_US   10e6
#define KILLS       8
#define PATTERN     0x6d

union descriptor_message {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
};

static void say(int socket, int fd)
{
        union descriptor_message control = {0};
        char byte = 'r';
        struct iovec data = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

        if (fd >= 0) {
                message.msg_control = control.space;
                message.msg_controllen = sizeof(control.space);
                control.header.cmsg_level = SOL_SOCKET;
                control.header.cmsg_type = SCM_RIGHTS;
                control.header.cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
        }
        if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1)
                exit(1);
}

/* False when nothing comes. */
static bool hear(int socket, int *fd)
{
        union descriptor_message control = {0};
        struct pollfd wait = {.fd = socket, .events = POLLIN};
        char byte;
        struct iovec data = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &data,
                                 .msg_iovlen = 1,
                                 .msg_control = control.space,
                                 .msg_controllen = sizeof(control.space)};

        *fd = -1;
        if (poll(&wait, 1, HEAR_MS) != 1 || recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
                return false;
        if (message.msg_controllen >= sizeof(struct cmsghdr) &&
            control.header.cmsg_type == SCM_RIGHTS)
                memcpy(fd, CMSG_DATA(&control.header), sizeof(int));
        return true;
}

static void reap(int process)
{
        while (waitpid(process, NULL, 0) < 0 && errno == EINTR)
                ;
}

/* Makes memory, fills it, sends its descriptor and ends in one way or the other. */
void child_export(const struct check *check, int socket, bool by_kill)
{
        CUmemAllocationProp properties = check_properties(check);
        size_t bytes = check_round(check, OUTLIVE_MIB * MIB);
        CUmemGenericAllocationHandle handle;
        int fd = -1;

        NEED(mem_create(&handle, bytes, &properties, 0));
        NEED(memset_d8(check_map(check, handle, bytes), PATTERN, bytes));
        NEED(ctx_synchronize());
        NEED(mem_export_to_shareable_handle(&fd, handle, POSIX, 0));
        say(socket, fd);
        if (by_kill)
                raise(SIGKILL);
        exit(0);
}

static bool outlives(const struct check *check, const char *what)
{
        size_t bytes = check_round(check, OUTLIVE_MIB * MIB), i, wrong = 0;
        unsigned char *host = malloc(bytes);
        CUmemGenericAllocationHandle handle;
        int process, socket = spawn(check, what, 0, &process), fd;
        CUdeviceptr address;
        bool heard = hear(socket, &fd);

        close(socket);
        reap(process);
        if (!heard || fd < 0 || !host) {
                free(host);
                return false;
        }
        NEED(mem_import_from_shareable_handle(&handle, (void *)(intptr_t)fd, POSIX));
        close(fd);
        address = check_map(check, handle, bytes);
        NEED(memcpy_dtoh(host, address, bytes));
        for (i = 0; i < bytes; i++)
                wrong += host[i] != PATTERN;
        NEED(mem_unmap(address, bytes));
        NEED(mem_address_free(address, bytes));
        NEED(mem_release(handle));
        free(host);
        return wrong == 0;
}

int part_outlive(const struct check *check)
{
        bool by_exit = outlives(check, "export-exit"), by_kill = outlives(check, "export-kill");

        printf("{\"mib\":%d,\"after_exit\":%s,\"after_kill\":%s}\n", OUTLIVE_MIB,
               by_exit ? "true" : "false", by_kill ? "true" : "false");
        return by_exit && by_kill ? 0 : 1;
}

/* Holds memory until it is killed: mapped and exported to nobody. */
void child_hold(const struct check *check, int socket, uint64_t mib)
{
        CUmemAllocationProp properties = check_properties(check);
        size_t bytes = check_round(check, mib * MIB / 4);
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;
        int i, fd;

        for (i = 0; i < 4; i++) {
                NEED(mem_create(&handle, bytes, &properties, 0));
                address = check_map(check, handle, bytes);
                NEED(memset_d8(address, 1, bytes));
                if (i % 2)
                        NEED(mem_export_to_shareable_handle(&fd, handle, POSIX, 0));
                else
                        NEED(mem_release(handle));
        }
        NEED(ctx_synchronize());
        say(socket, -1);
        for (;;)
                pause();
}

int part_kill(const struct check *check, bool quick)
{
        static const uint64_t sizes[] = {64, 256};
        double reaped[KILLS], returned[KILLS];
        bool all_back = true;
        size_t i;

        printf("{\"unit\":\"us\",\"sizes\":[");
        for (i = 0; i < (quick ? 1 : sizeof(sizes) / sizeof(sizes[0])); i++) {
                int kills = quick ? 2 : KILLS, round;

                for (round = 0; round < kills; round++) {
                        size_t before = check_free_bytes(check), held;
                        int process, socket = spawn(check, "hold", sizes[i], &process), fd;
                        double start;

                        if (!hear(socket, &fd)) {
                                fprintf(stderr, "gpu-check: the process to be killed failed\n");
                                kill(process, SIGKILL);
                                reap(process);
                                return 1;
                        }
                        held = before - check_free_bytes(check);
                        start = now_us();
                        kill(process, SIGKILL);
                        reap(process);
                        reaped[round] = now_us() - start;
                        /* Its context's own memory comes back as well, maybe later. */
                        while (check_free_bytes(check) < before - held + sizes[i] * MIB &&
                               now_us() - start < RETURN_US) {
                                struct timespec pause_time = {.tv_nsec = 100000};

                                nanosleep(&pause_time, NULL);
                        }
                        returned[round] = now_us() - start;
                        all_back = all_back &&
                                   check_free_bytes(check) >= before - held + sizes[i] * MIB;
                        close(socket);
                }
                printf("%s\n  {\"mib\":%llu,\"kill_to_reaped\":", i ? "," : "",
                       (unsigned long long)sizes[i]);
                print_samples(reaped, kills);
                printf(",\"kill_to_free\":");
                print_samples(returned, kills);
                printf("}");
        }
        printf("],\"all_back\":%s}\n", all_back ? "true" : "false");
        return all_back ? 0 : 1;
}
