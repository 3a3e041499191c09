/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real gpumemd for a test: its own temporary directory (sockets, configuration, log, simulated
 * device), started and waited for, checked and stopped. Nothing outside the directory is touched.
 *
 * The program is $GPUMEM_BUILD/gpumemd (default build/gpumemd), the driver
 * $GPUMEM_BUILD/libcuda-sim.so. The test process itself is given the environment that the simulator
 * needs, so that drivers opened in it (and in its children) afterwards see the same device.
 */
#ifndef TESTS_SUPPORT_DAEMON_PROCESS_H
#define TESTS_SUPPORT_DAEMON_PROCESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct daemon_process;

struct daemon_options {
        uint64_t memory_bytes;  /* of the simulated device; 0: 64 MiB */
        uint64_t frame_bytes;   /* 0: auto */
        uint32_t watermark_low; /* frames; with _high 0: 4 and 8 */
        uint32_t watermark_high;
        uint32_t max_clients; /* 0: the daemon's default */
        double utilization;   /* 0: 1.0, all of the device */
        int keeper;           /* with a keeper, which then is the process that was started */
        const char *config;   /* further lines, appended to the configuration; or NULL */
};

/*
 * Starts a daemon and waits until it says that it is ready (at most 20 s). `options` may be NULL.
 * 0, or negative errno; then a sentence and the daemon's log are on stderr and nothing is left.
 */
int daemon_process_start(struct daemon_process **out, const struct daemon_options *options);

/* Stops it if it runs (SIGTERM, then SIGKILL after 10 s), removes the directory; NULL is fine;
 * returns NULL. */
struct daemon_process *daemon_process_free(struct daemon_process *process);

/* SIGTERM and wait (at most 10 s, then SIGKILL): the wait status, or negative errno. */
int daemon_process_stop(struct daemon_process *process);

/* Starts it again, in the same directory with the same configuration, after it has ended in
 * whatever way: as daemon_process_start(), with a new log. */
int daemon_process_restart(struct daemon_process *process);

/* Is it still running? */
int daemon_process_alive(struct daemon_process *process);

pid_t daemon_process_pid(const struct daemon_process *process);
/* With a keeper the process that was started is the keeper: this is the daemon now, and this is the
 * keeper (which may be another than the one that was started). 0: there is none. */
pid_t daemon_process_daemon(const struct daemon_process *process);
pid_t daemon_process_keeper(const struct daemon_process *process);
const char *daemon_process_directory(const struct daemon_process *process);
const char *daemon_process_client_socket(const struct daemon_process *process);
const char *daemon_process_admin_socket(const struct daemon_process *process);
const char *daemon_process_log(const struct daemon_process *process); /* path of its stderr */

/*
 * `gpumemctl debug check`, asked directly over the admin socket (at most 10 s): 0 if everything
 * adds up, 1 with the report in `report` if not, negative errno if it could not be asked. `report`
 * may be NULL.
 */
int daemon_process_check(const struct daemon_process *process, char *report, size_t size);

/*
 * One call over the admin socket: `parameters` is a JSON object or NULL. The reply (the whole JSON
 * message, NUL-terminated) goes to *reply, to be freed. 0 or negative errno.
 */
int daemon_process_call(const struct daemon_process *process, const char *method,
                        const char *parameters, char **reply);

/*
 * A number in the reply of a call: the first value under `key`, wherever it is nested. For tests
 * that watch a figure: 0 or negative errno (-ENOENT: no such key).
 */
int daemon_process_number(const struct daemon_process *process, const char *method, const char *key,
                          int64_t *value);

/* Path of a product in the build directory ("gpumemctl"); -ENAMETOOLONG or 0. */
int daemon_process_product(const char *name, char *path, size_t size);

#endif
