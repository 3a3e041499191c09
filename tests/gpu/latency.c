/* SPDX-License-Identifier: Apache-2.0 */
/* How long each virtual memory call takes, by size. */
#include <stdio.h>
#include <unistd.h>

#include "tests/gpu/gpu_check.h"

#define ROUNDS_MAX    40
#define ROUNDS_MIN    3
#define SIZE_LIMIT_US 2.5e6 /* of one size */

enum call { RESERVE, CREATE, EXPORT, IMPORT, MAP, SET_ACCESS, UNMAP, RELEASE, FREE, CALLS };

static const char *const names[CALLS] = {"reserve",    "create", "export",  "import", "map",
                                         "set_access", "unmap",  "release", "free"};

static double samples[CALLS][ROUNDS_MAX];

#define TIMED(which, call)                                                                         \
        do {                                                                                       \
                double before_ = now_us();                                                         \
                                                                                                   \
                NEED(call);                                                                        \
                samples[which][round] = now_us() - before_;                                        \
        } while (0)

static void one_round(const struct check *check, size_t bytes, int round)
{
        CUmemAccessDesc access = {
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = check->device},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        const CUmemAllocationHandleType posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemAllocationProp properties = check_properties(check);
        CUmemGenericAllocationHandle handle, import;
        CUdeviceptr address;
        int fd = -1;

        TIMED(RESERVE, mem_address_reserve(&address, bytes, 0, 0, 0));
        TIMED(CREATE, mem_create(&handle, bytes, &properties, 0));
        TIMED(EXPORT, mem_export_to_shareable_handle(&fd, handle, posix, 0));
        TIMED(IMPORT, mem_import_from_shareable_handle(&import, (void *)(intptr_t)fd, posix));
        close(fd);
        NEED(mem_release(handle));
        TIMED(MAP, mem_map(address, bytes, 0, import, 0));
        TIMED(SET_ACCESS, mem_set_access(address, bytes, &access, 1));
        NEED(memset_d8(address + bytes - 1, 1, 1));
        NEED(ctx_synchronize());
        TIMED(UNMAP, mem_unmap(address, bytes));
        TIMED(RELEASE, mem_release(import));
        TIMED(FREE, mem_address_free(address, bytes));
}

int part_latency(const struct check *check, bool quick)
{
        static const uint64_t sizes[] = {2, 4, 8, 16, 32, 64, 128, 256};
        size_t i;

        one_round(check, check_round(check, 2 * MIB), 0); /* what only the first call costs */
        printf("{\"unit\":\"us\",\"sizes\":[");
        for (i = 0; i < (quick ? 2 : sizeof(sizes) / sizeof(sizes[0])); i++) {
                size_t bytes = check_round(check, sizes[i] * MIB);
                double start = now_us();
                int rounds = 0, call;

                while (rounds < ROUNDS_MAX &&
                       (rounds < ROUNDS_MIN || now_us() - start < SIZE_LIMIT_US))
                        one_round(check, bytes, rounds++);
                printf("%s\n  {\"mib\":%llu", i ? "," : "", (unsigned long long)(bytes / MIB));
                for (call = 0; call < CALLS; call++) {
                        printf(",\"%s\":", names[call]);
                        print_samples(samples[call], rounds);
                }
                printf("}");
        }
        printf("]}\n");
        return 0;
}
