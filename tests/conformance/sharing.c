/* SPDX-License-Identifier: Apache-2.0 */
/* Memory between processes, and what happens to it when they end. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

#define POSIX CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
/* How long a driver may take to free what a dead process held. */
#define RETURN_MS 10000

static CUdeviceptr map_handle(struct run *run, CUmemGenericAllocationHandle handle)
{
        CUmemAccessDesc access = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CUdeviceptr address = 0;

        if (!step_need(run, "cuMemAddressReserve",
                       run->cuda->mem_address_reserve(&address, run->granule, 0, 0, 0)) ||
            !step_need(run, "cuMemMap", run->cuda->mem_map(address, run->granule, 0, handle, 0)) ||
            !step_need(run, "cuMemSetAccess",
                       run->cuda->mem_set_access(address, run->granule, &access, 1)))
                return 0;
        return address;
}

static void arguments(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run);
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle, import;
        int fd = -1, other;

        NEED(cuda->mem_create(&handle, run->granule, &properties, 0));
        EXPECT("nowhere", cuda->mem_export_to_shareable_handle(NULL, handle, POSIX, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("flags", cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 1),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("no handle", cuda->mem_export_to_shareable_handle(&fd, 0x7777, POSIX, 0),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("of no type",
               cuda->mem_export_to_shareable_handle(&fd, handle, CU_MEM_HANDLE_TYPE_NONE, 0),
               CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
        NEED(cuda->mem_release(handle));
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
        NEED(cuda->mem_create(&handle, run->granule, &properties, 0));
        EXPECT("not made for it", cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 0),
               CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED,
               CUDA_ERROR_INVALID_HANDLE);
        EXPECT("import no descriptor",
               cuda->mem_import_from_shareable_handle(&import, (void *)(intptr_t)9999, POSIX),
               CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_OPERATING_SYSTEM,
               CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_UNKNOWN);
        other = open("/dev/null", O_RDWR | O_CLOEXEC);
        EXPECT("import a descriptor of something else",
               cuda->mem_import_from_shareable_handle(&import, (void *)(intptr_t)other, POSIX),
               CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_OPERATING_SYSTEM,
               CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_UNKNOWN);
        close(other);
        OK("no sticky error", cuda->ctx_synchronize());
}

static void import_here(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run), seen;
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle, first, second;
        size_t before = free_bytes(run);
        int fd = -1, other = -1;

        NEED(cuda->mem_create(&handle, run->granule, &properties, 0));
        OK("export", cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 0));
        OK("export again", cuda->mem_export_to_shareable_handle(&other, handle, POSIX, 0));
        CHECK("a new descriptor each time", fd >= 0 && other >= 0 && fd != other);
        close(other);
        OK("import", cuda->mem_import_from_shareable_handle(&first, (void *)(intptr_t)fd, POSIX));
        OK("import again",
           cuda->mem_import_from_shareable_handle(&second, (void *)(intptr_t)fd, POSIX));
        CHECK("a handle each time", first != second && first != handle);
        CHECK("the descriptor stays the caller's", fcntl(fd, F_GETFD) >= 0);
        OBSERVE("close-on-exec", (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
        OK("properties", cuda->mem_get_allocation_properties(&seen, first));
        CHECK("of the same device", seen.location.id == run->device);
        CHECK("charged once", free_bytes(run) + 2 * run->granule > before);
        OK("release", cuda->mem_release(handle));
        OK("release an import", cuda->mem_release(first));
        OK("release the other", cuda->mem_release(second));
        CHECK("the descriptor alone keeps it", free_bytes(run) <= before - run->granule);
        close(fd);
        CHECK("back when it is closed", wait_for_free_bytes(run, before, RETURN_MS));
}

static void between_processes(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run);
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        unsigned char byte = 0;
        CUdeviceptr address;
        struct peer peer;
        int fd, status;

        NEED(cuda->mem_create(&handle, run->granule, &properties, 0));
        address = map_handle(run, handle);
        NEED_TRUE(address != 0);
        NEED(cuda->memset_d8(address, 0x5a, run->granule));
        NEED(cuda->ctx_synchronize());
        NEED(cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 0));
        NEED_TRUE(peer_start(&peer, "import"));
        NEED_TRUE(peer_say(peer.socket, 'd', fd));
        close(fd);
        CHECK("the other sees our bytes", peer_hear(peer.socket, NULL) == 'r');
        NEED(cuda->memcpy_dtoh(&byte, address + 17, 1));
        CHECK("we see the other's", byte == 0xa5);
        peer_say(peer.socket, 'g', -1);
        status = peer_end(&peer, 0);
        CHECK("it ends well", WIFEXITED(status) && WEXITSTATUS(status) == 0);
        NEED(cuda->memcpy_dtoh(&byte, address + 18, 1));
        CHECK("its bytes outlive it", byte == 0xa5);
}

/* Exported memory outlives its exporter, however that ends. */
static void outlives(struct run *run, const char *what)
{
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        unsigned char byte = 0;
        CUdeviceptr address;
        size_t before = free_bytes(run);
        struct peer peer;
        int fd = -1;

        NEED_TRUE(peer_start(&peer, what));
        CHECK("a descriptor comes", peer_hear(peer.socket, &fd) == 'd' && fd >= 0);
        peer_end(&peer, 0);
        OK("import from the dead",
           cuda->mem_import_from_shareable_handle(&handle, (void *)(intptr_t)fd, POSIX));
        close(fd);
        address = map_handle(run, handle);
        NEED_TRUE(address != 0);
        OK("read", cuda->memcpy_dtoh(&byte, address + run->granule - 1, 1));
        CHECK("its bytes", byte == 0x5a);
        NEED(cuda->mem_unmap(address, run->granule));
        NEED(cuda->mem_release(handle));
        CHECK("back with the last holder", wait_for_free_bytes(run, before, RETURN_MS));
}

static void outlives_exit(struct run *run)
{
        outlives(run, "export-exit");
}

static void outlives_kill(struct run *run)
{
        outlives(run, "export-kill");
}

/* A mapping elsewhere keeps memory after its maker let go of everything. */
static void kept_by_another(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run);
        const struct driver *cuda = run->cuda;
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;
        struct peer peer;
        size_t before;
        int fd;

        NEED_TRUE(peer_start(&peer, "import"));
        NEED(cuda->mem_create(&handle, run->granule, &properties, 0));
        address = map_handle(run, handle);
        NEED_TRUE(address != 0);
        NEED(cuda->memset_d8(address, 0x5a, run->granule));
        NEED(cuda->ctx_synchronize());
        NEED(cuda->mem_export_to_shareable_handle(&fd, handle, POSIX, 0));
        NEED_TRUE(peer_say(peer.socket, 'd', fd));
        close(fd);
        NEED_TRUE(peer_hear(peer.socket, NULL) == 'r');
        before = free_bytes(run);
        NEED(cuda->mem_unmap(address, run->granule));
        NEED(cuda->mem_release(handle));
        sleep_ms(50);
        CHECK("still charged", free_bytes(run) < before + run->granule);
        peer_end(&peer, SIGKILL);
        CHECK("back when the other is killed",
              wait_for_free_bytes(run, before + run->granule, RETURN_MS));
}

/* What a killed process held, in whatever way, comes back. */
static void return_after_kill(struct run *run)
{
        size_t before = free_bytes(run);
        struct peer peer;

        NEED_TRUE(peer_start(&peer, "hold"));
        NEED_TRUE(peer_hear(peer.socket, NULL) == 'r');
        CHECK("held", free_bytes(run) <= before - 8 * run->granule);
        peer_end(&peer, SIGKILL);
        CHECK("back", wait_for_free_bytes(run, before, RETURN_MS));
}

static void return_after_exit(struct run *run)
{
        size_t before = free_bytes(run);
        struct peer peer;

        NEED_TRUE(peer_start(&peer, "hold"));
        NEED_TRUE(peer_hear(peer.socket, NULL) == 'r');
        peer_say(peer.socket, 'g', -1);
        peer_end(&peer, 0);
        CHECK("back", wait_for_free_bytes(run, before, RETURN_MS));
}

/* The child of a process that used the device can do nothing with it. */
static void forked_child(struct run *run)
{
        CUmemAllocationProp properties = device_memory(run);
        CUdeviceptr address = map_granules(run, 1);
        CUmemGenericAllocationHandle handle;
        int status = -1;
        size_t bytes;
        pid_t child;

        NEED_TRUE(address != 0);
        child = fork();
        if (child == 0) {
                if (run->cuda->init(0) == CUDA_SUCCESS && run->strict)
                        _exit(1);
                if (run->cuda->mem_get_info(&bytes, &bytes) == CUDA_SUCCESS)
                        _exit(2);
                if (run->cuda->mem_create(&handle, run->granule, &properties, 0) == CUDA_SUCCESS)
                        _exit(3);
                _exit(0);
        }
        NEED_TRUE(child > 0);
        NEED_TRUE(waitpid(child, &status, 0) == child);
        CHECK("its calls fail", WIFEXITED(status) && WEXITSTATUS(status) == 0);
        OK("ours go on", run->cuda->memset_d8(address, 1, run->granule));
        OK("wait", run->cuda->ctx_synchronize());
}

const struct test tests_of_sharing[] = {
        {"sharing.arguments", arguments},
        {"sharing.import_here", import_here},
        {"sharing.between_processes", between_processes},
        {"sharing.outlives_exit", outlives_exit},
        {"sharing.outlives_kill", outlives_kill},
        {"sharing.kept_by_another", kept_by_another},
        {"sharing.return_after_kill", return_after_kill},
        {"sharing.return_after_exit", return_after_exit},
        {"sharing.forked_child", forked_child},
        {NULL, NULL},
};
