/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "tools/bench/bench.h"

static void cpu_model(char *out, size_t size)
{
        char line[512];
        FILE *file = fopen("/proc/cpuinfo", "re");

        snprintf(out, size, "unknown");
        if (!file)
                return;
        while (fgets(line, sizeof(line), file)) {
                char *colon = strchr(line, ':');

                if (!colon || strncmp(line, "model name", 10) != 0)
                        continue;
                colon += strspn(colon, ": \t");
                colon[strcspn(colon, "\n")] = '\0';
                snprintf(out, size, "%s", colon);
                break;
        }
        fclose(file);
}

struct json_object *bench_machine(void)
{
        struct json_object *machine = json_object_new_object();
        struct utsname names;
        char model[256];

        cpu_model(model, sizeof(model));
        json_object_object_add(machine, "cpu", json_object_new_string(model));
        json_object_object_add(machine, "cpus",
                               json_object_new_int64(sysconf(_SC_NPROCESSORS_ONLN)));
        if (uname(&names) == 0) {
                json_object_object_add(machine, "kernel", json_object_new_string(names.release));
                json_object_object_add(machine, "architecture",
                                       json_object_new_string(names.machine));
        }
        return machine;
}
