/* SPDX-License-Identifier: Apache-2.0 */
/* The other process of a test, and what passes between both. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

#define HEAR_MS 20000
#define POSIX   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

bool peer_start(struct peer *peer, const char *what)
{
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
                return false;
        fflush(stdout);
        peer->process = fork();
        if (peer->process == 0) {
                char program[] = "/proc/self/exe", option[] = "--run-peer", driver[] = "--driver";
                char name[64], driver_name[4096], descriptor[16];
                char *arguments[] = {program, driver, driver_name, option, name, descriptor, NULL};
                const char *word = getenv("CONFORMANCE_DRIVER");

                snprintf(name, sizeof(name), "%s", what);
                snprintf(driver_name, sizeof(driver_name), "%s", word ? word : "simulated");
                snprintf(descriptor, sizeof(descriptor), "%d", pair[1]);
                fcntl(pair[1], F_SETFD, 0);
                execv(program, arguments);
                _exit(127);
        }
        close(pair[1]);
        peer->socket = pair[0];
        return peer->process > 0;
}

union descriptor_message {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
};

bool peer_say(int socket, char byte, int fd)
{
        union descriptor_message control = {0};
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
        return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

char peer_hear(int socket, int *fd)
{
        union descriptor_message control = {0};
        struct pollfd wait = {.fd = socket, .events = POLLIN};
        char byte = 0;
        struct iovec data = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &data,
                                 .msg_iovlen = 1,
                                 .msg_control = control.space,
                                 .msg_controllen = sizeof(control.space)};

        if (poll(&wait, 1, HEAR_MS) != 1 || recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
                return 0;
        if (fd) {
                *fd = -1;
                if (message.msg_controllen >= sizeof(struct cmsghdr) &&
                    control.header.cmsg_type == SCM_RIGHTS)
                        memcpy(fd, CMSG_DATA(&control.header), sizeof(int));
        }
        return byte;
}

int peer_end(struct peer *peer, int signal_number)
{
        int status = -1;

        if (signal_number != 0)
                kill(peer->process, signal_number);
        close(peer->socket);
        while (waitpid(peer->process, &status, 0) < 0 && errno == EINTR)
                ;
        return status;
}

/* --- what peers do -------------------------------------------------------------------------------
 */

static CUdeviceptr map_handle(struct run *run, CUmemGenericAllocationHandle handle)
{
        CUmemAccessDesc access = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        const struct driver *cuda = run->cuda;
        CUdeviceptr address = 0;

        if (cuda->mem_address_reserve(&address, run->granule, 0, 0, 0) != CUDA_SUCCESS ||
            cuda->mem_map(address, run->granule, 0, handle, 0) != CUDA_SUCCESS ||
            cuda->mem_set_access(address, run->granule, &access, 1) != CUDA_SUCCESS)
                return 0;
        return address;
}

/* Makes memory with 0x5a in it, sends its descriptor, ends ("export-exit") or waits. */
static int export_memory(struct run *run, const char *what, int socket)
{
        CUmemAllocationProp properties = device_memory(run);
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;
        int fd;

        if (cuda->mem_create(&handle, run->granule, &properties, 0) != CUDA_SUCCESS)
                return 1;
        address = map_handle(run, handle);
        if (address == 0 || cuda->memset_d8(address, 0x5a, run->granule) != CUDA_SUCCESS ||
            cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 0) != CUDA_SUCCESS ||
            !peer_say(socket, 'd', fd))
                return 1;
        if (strcmp(what, "export-exit") == 0)
                return 0;
        if (strcmp(what, "export-kill") == 0)
                raise(SIGKILL);
        return peer_hear(socket, NULL) == 'g' ? 0 : 1;
}

/* Imports what it is sent, checks for 0x5a, writes 0xa5, says so, and holds it until told to go. */
static int import_memory(struct run *run, int socket)
{
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        unsigned char byte = 0;
        CUdeviceptr address;
        int fd = -1;

        if (peer_hear(socket, &fd) != 'd' || fd < 0 ||
            cuda->mem_import_from_shareable_handle(&handle, (void *)(intptr_t)fd, POSIX) !=
                    CUDA_SUCCESS)
                return 1;
        close(fd);
        address = map_handle(run, handle);
        if (address == 0 || cuda->mem_release(handle) != CUDA_SUCCESS ||
            cuda->memcpy_dtoh(&byte, address + run->granule - 1, 1) != CUDA_SUCCESS ||
            byte != 0x5a || cuda->memset_d8(address, 0xa5, run->granule) != CUDA_SUCCESS ||
            cuda->ctx_synchronize() != CUDA_SUCCESS || !peer_say(socket, 'r', -1))
                return 1;
        return peer_hear(socket, NULL) == 'g' ? 0 : 1;
}

/* Takes 8 granules in all ways, says so, and waits for its end. */
static int hold_memory(struct run *run, int socket)
{
        CUmemAllocationProp properties = device_memory(run);
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;

        if (map_granules(run, 4) == 0 || cuda->mem_alloc(&address, run->granule) != CUDA_SUCCESS ||
            cuda->mem_create(&handle, 3 * run->granule, &properties, 0) != CUDA_SUCCESS ||
            !peer_say(socket, 'r', -1))
                return 1;
        peer_hear(socket, NULL);
        return 0;
}

/* Touches a device address as if it were the host's. */
static int touch_memory(struct run *run)
{
        CUdeviceptr address = map_granules(run, 1);

        if (address == 0)
                return 1;
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        (void)*(volatile unsigned char *)(uintptr_t)address;
        return 42;
}

/* Calls without cuInit. Exit status: which one did not say so; 0 none. */
static int before_init(const struct run *run)
{
        const struct driver *cuda = run->cuda;
        CUcontext context;
        CUdevice device;
        int value;

        if (cuda->device_get(&device, 0) != CUDA_ERROR_NOT_INITIALIZED)
                return 1;
        if (cuda->device_get_count(&value) != CUDA_ERROR_NOT_INITIALIZED)
                return 2;
        if (cuda->device_primary_ctx_retain(&context, 0) != CUDA_ERROR_NOT_INITIALIZED)
                return 3;
        if (cuda->driver_get_version(&value) != CUDA_SUCCESS)
                return 4;
        if (cuda->init(1) != CUDA_ERROR_INVALID_VALUE)
                return 5;
        return 0;
}

int peer_main(struct run *run, const char *what, int socket)
{
        if (strncmp(what, "export-", 7) == 0)
                return export_memory(run, what, socket);
        if (strcmp(what, "import") == 0)
                return import_memory(run, socket);
        if (strcmp(what, "hold") == 0)
                return hold_memory(run, socket);
        if (strcmp(what, "touch") == 0)
                return touch_memory(run);
        if (strcmp(what, "bare-before-init") == 0)
                return before_init(run);
        return 99;
}
