/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Crash points, for tests: places at which the daemon kills itself, as if by SIGKILL from outside.
 * They exist in every build, do nothing unless the configuration says debug = yes, and then what
 * the environment variable GPUMEMD_CRASH_AT says:
 *
 *   NAME:N@G[,NAME:N@G...]   the N-th time (from 1) that the daemon of generation G comes to NAME
 *
 * The first daemon is of generation 0, the one that takes over from it of generation 1, and so on.
 * G may be '*': each of them.
 */
#ifndef GPUMEMD_CRASH_H
#define GPUMEMD_CRASH_H

#include <stdint.h>

struct daemon;

#define CRASH_POINTS_MAX 16

struct crash_points {
        uint32_t count;
        struct {
                char name[32];
                uint32_t left;       /* how often it may still be passed */
                uint64_t generation; /* UINT64_MAX: any */
        } points[CRASH_POINTS_MAX];
};

/* Reads a text as above; what is not understood is left out. NULL is fine. */
void crash_points_parse(struct crash_points *points, const char *text);

/* Did the moment come? */
int crash_points_hit(struct crash_points *points, const char *name, uint64_t generation);

void crash_point(struct daemon *daemon, const char *name);

#endif
