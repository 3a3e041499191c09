/* SPDX-License-Identifier: Apache-2.0 */
/* A gpumemd of the bench's own: on a simulated device, in a temporary directory that goes with it.
 */
#ifndef GPUMEM_BENCH_DAEMON_H
#define GPUMEM_BENCH_DAEMON_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct bench_daemon {
        char directory[64]; /* empty: nothing to clean up */
        char client_socket[96];
        pid_t pid; /* of the keeper, which starts and restarts the daemon; 0: not running */
};

struct bench_daemon_options {
        const char *build; /* where gpumemd and libcuda-sim.so lie */
        uint64_t memory_bytes;
        uint64_t frame_bytes;
        uint64_t granularity;  /* of the simulated driver; 0: its default */
        uint32_t fresh_frames; /* kept ready, so that a grant waits for no creation */
        bool debug;            /* answers debug calls */
        const char *more;      /* sections for the end of the configuration, or NULL */
};

/* Starts it and waits (at most 30 s) until it takes connections; sets this process's environment so
 * that the simulated driver opened here is the same device. 0 or negative errno after saying why on
 * stderr. */
int bench_daemon_start(struct bench_daemon *daemon, const struct bench_daemon_options *options);

/* The daemon that runs now; 0: there is none at the moment. */
pid_t bench_daemon_pid(const struct bench_daemon *daemon);

/* Waits until the daemon has used no CPU for a few milliseconds (scrubbing done), at most a second.
 */
void bench_daemon_settle(const struct bench_daemon *daemon);

/* A call of the admin interface, without parameters: the answer's "parameters", for
 * json_object_put(); NULL if there is none. */
struct json_object *bench_daemon_ask(const struct bench_daemon *daemon, const char *method);

/* Stops it and removes the directory; idempotent. */
void bench_daemon_stop(struct bench_daemon *daemon);

#endif
