/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration, gpumemd.conf(5): one file, and after it those of the directory of the same
 * name with ".d" (gpumemd.conf.d/NAME.conf), in the order of their names; what is said later
 * counts. Everything is checked when it is read: an unknown section or key, a value that is not
 * allowed, a key given twice in one file are refused with file, line, key and what would be
 * allowed; all of a file's mistakes (20 at most) at once.
 */
#ifndef GPUMEMD_CONFIG_H
#define GPUMEMD_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

#include "daemon/log.h"
#include "daemon/tenant_rule.h"
#include "libclient/driver/driver.h"

#define CONFIG_PATH_DEFAULT GPUMEM_SYSCONFDIR "/gpumem/gpumemd.conf"
#define CONFIG_DEVICES_MAX  32
#define CONFIG_CLIENTS_MAX  65536
#define CONFIG_FRAMES_MAX   (UINT32_C(1) << 20) /* per device */

/* What may be said of one device, or of all ("*"). */
struct config_device {
        char match[64];          /* UUID, index or "*" */
        uint64_t frame_bytes;    /* 0: auto */
        uint32_t watermark_low;  /* frames; refill below it */
        uint32_t watermark_high; /* frames; refill up to it */
        bool watermark_low_auto, watermark_high_auto;
        bool gpu_direct_rdma;
        uint32_t given; /* bits of the keys that were given, as they stand in the table of keys */
        uint32_t given_here; /* those of them in the file that is being read */
        unsigned line;       /* of its last key in that file; 0: none */
};

struct config {
        char client_socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
        char admin_socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
        enum log_level log_level;
        enum driver_kind driver;
        char driver_library[PATH_MAX]; /* empty: the driver's own default */
        double gpu_memory_utilization;
        uint32_t max_clients;
        bool keeper; /* start a keeper, so that a crash of the daemon costs nothing */
        char keeper_socket[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of a keeper that is a
                                                                            service; empty: none */
        bool debug; /* admin commands that force and inject things; off unless configured */

        struct config_device devices[CONFIG_DEVICES_MAX];
        uint32_t devices_count;
        struct tenant_rules tenants;

        /* Exported to the simulated driver's environment before it is opened; empty: left alone. */
        char simulator_directory[PATH_MAX];
        uint32_t simulator_mode;        /* of the directory, if it is made; 0: left alone */
        char simulator_group[64];       /* its group */
        uint64_t simulator_memory;      /* bytes of each device; 0: left alone */
        uint64_t simulator_granularity; /* 0: left alone */
        uint32_t simulator_devices;     /* 0: left alone */
};

void config_init(struct config *config);

/* Reads `path` and its drop-ins over what is in `config`. 0; -EINVAL, or the errno of opening or
 * reading; then lines "FILE:LINE: what is wrong and what is allowed" are in `why`, with newlines
 * between them. */
int config_read(struct config *config, const char *path, char *why, size_t size);

/* The drop-ins alone: for when the file itself is not there. */
int config_read_drop_ins(struct config *config, const char *path, char *why, size_t size);

/* The settings for a device: [device UUID] over [device INDEX] over [device *] over the defaults.
 */
struct config_device config_for_device(const struct config *config, const char *uuid,
                                       unsigned index);

/* Puts [simulator] into this process's environment. Before threads exist. 0 or negative errno. */
int config_export_simulator(const struct config *config);

/* The directory of the simulated machine, by `config` and the environment, if it is not on a tmpfs:
 * the machine works, but its memory may be as slow as a disk. Else NULL. */
const char *config_slow_simulator(const struct config *config);

/* "64MiB", "2G", "4096": bytes, powers of 1024, suffixes K M G T with optional i or iB. 0, -EINVAL
 * or -ERANGE. */
int config_parse_bytes(const char *text, uint64_t *out);

#endif
