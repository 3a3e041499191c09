/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/gpu_check.h"

void check_need(const struct check *check, const char *call, CUresult result)
{
        if (result == CUDA_SUCCESS)
                return;
        fprintf(stderr, "gpu-check: %s: %s\n", call, driver_error_name(check->cuda, result));
        printf("{\"error\":\"%s: %s\"}\n", call, driver_error_name(check->cuda, result));
        exit(1);
}

CUmemAllocationProp check_properties(const struct check *check)
{
        return (CUmemAllocationProp){
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = check->device},
        };
}

CUdeviceptr check_map(const struct check *check, CUmemGenericAllocationHandle handle, size_t bytes)
{
        CUmemAccessDesc access = {
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = check->device},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CUdeviceptr address = 0;

        NEED(mem_address_reserve(&address, bytes, 0, 0, 0));
        NEED(mem_map(address, bytes, 0, handle, 0));
        NEED(mem_set_access(address, bytes, &access, 1));
        return address;
}

size_t check_round(const struct check *check, size_t bytes)
{
        return (bytes + check->granule - 1) / check->granule * check->granule;
}

size_t check_free_bytes(const struct check *check)
{
        size_t unused = 0, total;

        NEED(mem_get_info(&unused, &total));
        return unused;
}

double now_us(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

void print_samples(double *samples, int count)
{
        double sum = 0;
        int i;

        qsort(samples, (size_t)count, sizeof(samples[0]), compare);
        for (i = 0; i < count; i++)
                sum += samples[i];
        printf("{\"n\":%d,\"mean\":%.2f,\"median\":%.2f,\"p99\":%.2f,\"max\":%.2f}", count,
               sum / count, samples[count / 2], samples[(count - 1) * 99 / 100],
               samples[count - 1]);
}

int spawn(const struct check *check, const char *what, uint64_t mib, int *process)
{
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
                perror("socketpair");
                exit(1);
        }
        fflush(stdout);
        *process = fork();
        if (*process == 0) {
                char program[] = "/proc/self/exe", name[32], driver[4096], number[24], size[24];
                char *arguments[] = {program, driver, name, number, size, NULL};

                snprintf(name, sizeof(name), "%s", what);
                snprintf(driver, sizeof(driver), "%s", check->driver);
                snprintf(number, sizeof(number), "%d", pair[1]);
                snprintf(size, sizeof(size), "%llu", (unsigned long long)mib);
                fcntl(pair[1], F_SETFD, 0);
                execv(program, arguments);
                _exit(127);
        }
        close(pair[1]);
        return pair[0];
}

static bool is_simulator(const char *path)
{
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

        return library && dlsym(library, "gpumem_sim_host_view");
}

static void start(struct check *check)
{
        enum driver_kind kind = DRIVER_CUDA;
        const char *path = NULL;
        static struct driver *driver;
        CUmemAllocationProp properties;
        char why[512];

        if (driver_kind_parse(check->driver, &kind) != 0) {
                path = check->driver;
                if (is_simulator(path))
                        kind = DRIVER_SIMULATED;
        }
        if (driver_open(&driver, kind, path, why, sizeof(why)) != 0) {
                fprintf(stderr, "gpu-check: %s\n", why);
                exit(1);
        }
        check->cuda = driver;
        NEED(init(0));
        NEED(device_get(&check->device, 0));
        NEED(device_primary_ctx_retain(&check->context, check->device));
        NEED(ctx_set_current(check->context));
        properties = check_properties(check);
        NEED(mem_get_allocation_granularity(&check->granule, &properties,
                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

/* What this is: {"card":..,"uuid":..,"driver_version":..,"bytes":..,"granularity":..}. */
static int part_device(const struct check *check)
{
        char name[128] = "", *c;
        int version = 0, i;
        size_t total = 0;
        CUuuid uuid;

        NEED(device_get_name(name, sizeof(name), check->device));
        NEED(driver_get_version(&version));
        NEED(device_total_mem(&total, check->device));
        NEED(device_get_uuid(&uuid, check->device));
        for (c = name; *c; c++)
                if (*c == '"' || *c == '\\' || (unsigned char)*c < 32)
                        *c = ' ';
        printf("{\"card\":\"%s\",\"simulated\":%s,\"uuid\":\"", name,
               check->cuda->host_view ? "true" : "false");
        for (i = 0; i < 16; i++)
                printf("%02x", (unsigned char)uuid.bytes[i]);
        printf("\",\"driver_version\":%d,\"bytes\":%zu,\"granularity\":%zu}\n", version, total,
               check->granule);
        return 0;
}

static int usage(void)
{
        fputs("usage: gpu-check DRIVER device|outlive|kernels\n"
              "       gpu-check DRIVER latency|kill [quick]\n"
              "       gpu-check DRIVER client SOCKET MIB\n",
              stderr);
        return 2;
}

int main(int argc, char **argv)
{
        struct check check = {.driver = argc > 1 ? argv[1] : ""};
        const char *part = argc > 2 ? argv[2] : "";
        int descriptor = argc > 3 ? (int)strtol(argv[3], NULL, 10) : -1;
        uint64_t mib = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;

        if (argc < 3)
                return usage();
        start(&check);
        if (strcmp(part, "device") == 0)
                return part_device(&check);
        if (strcmp(part, "latency") == 0)
                return part_latency(&check, argc > 3);
        if (strcmp(part, "outlive") == 0)
                return part_outlive(&check);
        if (strcmp(part, "kill") == 0)
                return part_kill(&check, argc > 3);
        if (strcmp(part, "kernels") == 0)
                return part_kernels(&check);
        if (strcmp(part, "client") == 0 && argc == 5)
                return part_client(&check, argv[3], mib);
        if (argc == 5 && strcmp(part, "export-exit") == 0)
                child_export(&check, descriptor, false);
        if (argc == 5 && strcmp(part, "export-kill") == 0)
                child_export(&check, descriptor, true);
        if (argc == 5 && strcmp(part, "hold") == 0)
                child_hold(&check, descriptor, mib);
        return usage();
}
