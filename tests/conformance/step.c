/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

/* One line at a time, so that what was seen before a crash is not lost. */
__attribute__((format(printf, 2, 3))) static void note(const struct run *run, const char *format,
                                                       ...)
{
        char line[1024];
        va_list arguments;
        int length;

        va_start(arguments, format);
        length = vsnprintf(line, sizeof(line) - 1, format, arguments);
        va_end(arguments);
        if (length < 0)
                return;
        if ((size_t)length >= sizeof(line) - 1)
                length = (int)sizeof(line) - 2;
        line[length++] = '\n';
        if (run->notes < 0)
                (void)!write(STDERR_FILENO, line, (size_t)length);
        else
                (void)!write(run->notes, line, (size_t)length);
}

static const char *detail(const struct run *run)
{
        return run->cuda->error_detail ? run->cuda->error_detail() : "";
}

bool step_result(struct run *run, const char *step, CUresult got, const CUresult *documented,
                 size_t count)
{
        size_t i;

        note(run, "N%s\t%s", step, driver_error_name(run->cuda, got));
        for (i = 0; i < count && (i == 0 || !run->strict); i++)
                if (got == documented[i])
                        return true;
        note(run, "F%s: %s, not %s (%s)", step, driver_error_name(run->cuda, got),
             driver_error_name(run->cuda, documented[0]), detail(run));
        run->failed = true;
        return false;
}

bool step_check(struct run *run, const char *step, bool holds, bool free_choice)
{
        note(run, "N%s\t%s", step, holds ? "yes" : "no");
        if (holds || (free_choice && !run->strict))
                return true;
        note(run, "F%s: no", step);
        run->failed = true;
        return false;
}

bool step_need(struct run *run, const char *call, CUresult got)
{
        if (got == CUDA_SUCCESS)
                return true;
        note(run, "F%s failed: %s (%s)", call, driver_error_name(run->cuda, got), detail(run));
        run->failed = true;
        return false;
}

void step_skip(struct run *run, const char *why)
{
        note(run, "Sskipped: %s", why);
        run->skipped = true;
}

/* --- what tests share ---------------------------------------------------------------------------
 */

CUmemAllocationProp device_memory(const struct run *run)
{
        return (CUmemAllocationProp){
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = run->device},
        };
}

CUmemAccessDesc access_of(const struct run *run, CUmemAccess_flags flags)
{
        return (CUmemAccessDesc){
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = run->device},
                .flags = flags,
        };
}

CUdeviceptr map_granules(struct run *run, size_t granules)
{
        CUmemAccessDesc access = access_of(run, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CUmemAllocationProp properties = device_memory(run);
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address = 0;
        size_t i;

        if (!step_need(run, "cuMemAddressReserve",
                       run->cuda->mem_address_reserve(&address, granules * run->granule, 0, 0, 0)))
                return 0;
        for (i = 0; i < granules; i++)
                if (!step_need(run, "cuMemCreate",
                               run->cuda->mem_create(&handle, run->granule, &properties, 0)) ||
                    !step_need(run, "cuMemMap",
                               run->cuda->mem_map(address + i * run->granule, run->granule, 0,
                                                  handle, 0)) ||
                    !step_need(run, "cuMemRelease", run->cuda->mem_release(handle)))
                        return 0;
        return step_need(run, "cuMemSetAccess",
                         run->cuda->mem_set_access(address, granules * run->granule, &access, 1))
                       ? address
                       : 0;
}

void unmap_granules(struct run *run, CUdeviceptr address, size_t granules)
{
        step_need(run, "cuMemUnmap", run->cuda->mem_unmap(address, granules * run->granule));
        step_need(run, "cuMemAddressFree",
                  run->cuda->mem_address_free(address, granules * run->granule));
}

size_t free_bytes(struct run *run)
{
        size_t unused = 0, total;

        step_need(run, "cuMemGetInfo", run->cuda->mem_get_info(&unused, &total));
        return unused;
}

bool wait_for_free_bytes(struct run *run, size_t bytes, int ms)
{
        while (free_bytes(run) < bytes && ms > 0 && !run->failed) {
                sleep_ms(2);
                ms -= 2;
        }
        return free_bytes(run) >= bytes;
}

void sleep_ms(long ms)
{
        struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

        while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
                ;
}

void host_sleep(void *ms)
{
        sleep_ms((long)(intptr_t)ms);
}
