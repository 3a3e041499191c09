/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator with other descriptors. On a GPU an exported descriptor says nothing about the
 * memory; the simulator's are files, which somebody could map, measure or compare. Here they are
 * sockets: one end of a pair through which the true descriptor has been sent, never received, only
 * looked at. Whoever does more with it than pass it on and import it, fails.
 *
 * The library is linked against libcuda-sim.so, so every other entry is the simulator's own.
 */
#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libclient/driver/cuda_abi.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags);
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                               void *shareable, CUmemAllocationHandleType type);

union descriptor_message {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
};

static void *simulator(const char *symbol)
{
        void *library = dlopen("libcuda-sim.so", RTLD_NOW | RTLD_NOLOAD);
        void *address = library ? dlsym(library, symbol) : NULL;

        if (library)
                dlclose(library); /* it stays: this library needs it */
        return address;
}

/* A socket that stands for the descriptor, which is closed. -1 if there is none left. */
static int wrap(int fd)
{
        union descriptor_message control = {0};
        char byte = 'w';
        struct iovec data = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &data,
                                 .msg_iovlen = 1,
                                 .msg_control = control.space,
                                 .msg_controllen = sizeof(control.space)};
        int pair[2], result = -1;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0) {
                control.header.cmsg_level = SOL_SOCKET;
                control.header.cmsg_type = SCM_RIGHTS;
                control.header.cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
                if (sendmsg(pair[0], &message, MSG_NOSIGNAL) == 1)
                        result = pair[1];
                else
                        close(pair[1]);
                close(pair[0]);
        }
        close(fd);
        return result;
}

/* A copy of the true descriptor, or -1. */
static int unwrap(int socket)
{
        union descriptor_message control = {0};
        char byte;
        struct iovec data = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &data,
                                 .msg_iovlen = 1,
                                 .msg_control = control.space,
                                 .msg_controllen = sizeof(control.space)};
        int fd = -1;

        if (recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) == 1 &&
            message.msg_controllen >= sizeof(struct cmsghdr) &&
            control.header.cmsg_type == SCM_RIGHTS)
                memcpy(&fd, CMSG_DATA(&control.header), sizeof(int));
        return fd;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
        CUresult (*real)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                         unsigned long long);
        void *address = simulator("cuMemExportToShareableHandle");
        CUresult result;
        int fd;

        if (!address)
                return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
        memcpy(&real, &address, sizeof(real));
        result = real(shareable, handle, type, flags);
        if (result != CUDA_SUCCESS)
                return result;
        fd = wrap(*(int *)shareable);
        if (fd < 0)
                return CUDA_ERROR_OPERATING_SYSTEM;
        *(int *)shareable = fd;
        return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
        CUresult (*real)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
        void *address = simulator("cuMemImportFromShareableHandle");
        int fd = unwrap((int)(intptr_t)shareable);
        CUresult result;

        if (!address)
                return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
        memcpy(&real, &address, sizeof(real));
        result = real(handle, (void *)(intptr_t)fd, type);
        if (fd >= 0)
                close(fd);
        return result;
}
