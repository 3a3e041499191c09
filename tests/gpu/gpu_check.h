/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu-check: the measurements and cross-process checks of tests/gpu/check.sh that a shell cannot
 * make. Every part prints one JSON object and exits 0 if what it checks holds.
 */
#ifndef GPUMEM_TESTS_GPU_CHECK_H
#define GPUMEM_TESTS_GPU_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/driver/driver.h"

#define MIB (UINT64_C(1) << 20)

struct check {
        const struct driver *cuda;
        const char *driver; /* as on the command line */
        CUdevice device;
        CUcontext context;
        size_t granule;
};

/* Prints the call and its error and ends the program. */
void check_need(const struct check *check, const char *call, CUresult result);
#define NEED(call) check_need(check, #call, check->cuda->call)

CUmemAllocationProp check_properties(const struct check *check);
CUdeviceptr check_map(const struct check *check, CUmemGenericAllocationHandle handle, size_t bytes);
/* `bytes` rounded up to the granularity. */
size_t check_round(const struct check *check, size_t bytes);
size_t check_free_bytes(const struct check *check);
double now_us(void);

/* A sorted list of samples as JSON: {"n":..,"mean":..,"median":..,"p99":..,"max":..}. Sorts. */
void print_samples(double *samples, int count);

/* `quick`: small sizes only. */
int part_latency(const struct check *check, bool quick);
int part_outlive(const struct check *check);
int part_kill(const struct check *check, bool quick);
int part_kernels(const struct check *check);
int part_client(const struct check *check, const char *socket_path, uint64_t mib);
/* The other processes of outlive and kill; never return. */
void child_export(const struct check *check, int socket, bool by_kill);
void child_hold(const struct check *check, int socket, uint64_t mib);
/* This program again as `what`, with a socket as its last argument; returns our end. */
int spawn(const struct check *check, const char *what, uint64_t mib, int *process);

#endif
