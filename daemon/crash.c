/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/crash.h"
#include "daemon/daemon.h"

void crash_points_parse(struct crash_points *points, const char *text)
{
        points->count = 0;
        while (text && *text && points->count < CRASH_POINTS_MAX) {
                const char *end = strchr(text, ',');
                unsigned long long generation = 0;
                char name[32], any = 0;
                unsigned times;
                int n = sscanf(text, "%31[a-z-]:%u@%llu", name, &times, &generation);

                if (n == 2 && sscanf(text, "%31[a-z-]:%u@%c", name, &times, &any) == 3 &&
                    any == '*')
                        n = 3;
                if (n == 3 && times > 0) {
                        snprintf(points->points[points->count].name, sizeof(name), "%s", name);
                        points->points[points->count].left = times;
                        points->points[points->count].generation =
                                any == '*' ? UINT64_MAX : generation;
                        points->count++;
                }
                text = end ? end + 1 : NULL;
        }
}

int crash_points_hit(struct crash_points *points, const char *name, uint64_t generation)
{
        for (uint32_t i = 0; i < points->count; i++) {
                if (points->points[i].left == 0 || strcmp(points->points[i].name, name) != 0 ||
                    (points->points[i].generation != UINT64_MAX &&
                     points->points[i].generation != generation))
                        continue;
                if (--points->points[i].left == 0)
                        return 1;
        }
        return 0;
}

void crash_point(struct daemon *daemon, const char *name)
{
        if (daemon->crash_points.count > 0 &&
            crash_points_hit(&daemon->crash_points, name, daemon->generation))
                kill(getpid(), SIGKILL);
}
