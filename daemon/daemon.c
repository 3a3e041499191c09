/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <gpumem/protocol.h>

#include "daemon/accept.h"
#include "daemon/activation.h"
#include "daemon/admin.h"
#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/filler.h"
#include "daemon/keeper_link.h"
#include "daemon/kept.h"
#include "daemon/listener.h"
#include "daemon/notify.h"
#include "daemon/session.h"
#include "daemon/state.h"
#include "daemon/takeover.h"
#include "daemon/tenant.h"

#define CLIENT_GROUP "gpumem"
#define ADMIN_GROUP  "gpumem-admin"

/* Descriptors besides frames and clients: sockets, loop, workers, driver, admin connections. */
#define DESCRIPTORS_RESERVED 256

static uint64_t clock_ns(clockid_t clock)
{
        struct timespec now;

        clock_gettime(clock, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int on_reap(sd_event_source *source, void *userdata)
{
        (void)source;
        session_reap(userdata);
        return 0;
}

static int open_driver(struct daemon *daemon, const struct driver *given)
{
        const char *slow;
        char why[512];
        int r;

        if (given) {
                daemon->driver_use = given;
                return 0;
        }
        if (daemon->config.driver == DRIVER_SIMULATED) {
                r = config_export_simulator(&daemon->config);
                if (r < 0)
                        return r;
                slow = config_slow_simulator(&daemon->config);
                if (slow)
                        log_warning(&daemon->log,
                                    "the simulator's directory is not on a tmpfs: its memory may "
                                    "be as slow as a disk",
                                    LOG_TEXT("directory", slow));
        }
        r = driver_open(&daemon->driver, daemon->config.driver,
                        daemon->config.driver_library[0] ? daemon->config.driver_library : NULL,
                        why, sizeof(why));
        if (r < 0) {
                log_error(&daemon->log, "the driver cannot be opened",
                          LOG_TEXT("driver", driver_kind_name(daemon->config.driver)),
                          LOG_TEXT("why", why));
                return r;
        }
        daemon->driver_use = daemon->driver;
        return 0;
}

static int driver_failed(struct daemon *daemon, const char *call, CUresult error)
{
        const struct driver *driver = daemon->driver_use;

        log_error(&daemon->log, "the driver does not work", LOG_ID(MESSAGE_ID_DRIVER_FAILED),
                  LOG_TEXT("call", call), LOG_TEXT("error", driver_error_name(driver, error)),
                  LOG_TEXT("detail", driver->error_detail ? driver->error_detail() : ""));
        return driver_errno(error);
}

/* A section for a device that is not there is most likely a mistake. */
static void warn_of_unknown_devices(struct daemon *daemon)
{
        for (uint32_t i = 0; i < daemon->config.devices_count; i++) {
                const char *match = daemon->config.devices[i].match;
                bool known = strcmp(match, "*") == 0;

                list_for_each(node, &daemon->devices)
                {
                        const struct device *device = list_entry(node, struct device, link);
                        char number[16];

                        snprintf(number, sizeof(number), "%u", device->index);
                        if (strcmp(match, number) == 0 || strcmp(match, device->uuid_text) == 0)
                                known = true;
                }
                if (!known)
                        log_warning(&daemon->log,
                                    "a [device ...] section of the configuration fits no device",
                                    LOG_TEXT("section", match));
        }
}

static int open_devices(struct daemon *daemon)
{
        CUresult error;
        int count, r;

        error = daemon->driver_use->init(0);
        if (error != CUDA_SUCCESS)
                return driver_failed(daemon, "cuInit", error);
        error = daemon->driver_use->device_get_count(&count);
        if (error != CUDA_SUCCESS)
                return driver_failed(daemon, "cuDeviceGetCount", error);
        for (int i = 0; i < count; i++) {
                struct device *device;

                r = device_new(&device, daemon, (unsigned)i);
                if (r < 0)
                        return r;
                list_append(&daemon->devices, &device->link);
                daemon->devices_count++;
        }
        if (count <= 0) {
                log_error(&daemon->log, "the driver has no device",
                          LOG_TEXT("driver", driver_kind_name(daemon->driver_use->kind)));
                return -ENODEV;
        }
        warn_of_unknown_devices(daemon);
        return 0;
}

/* Every frame and every client needs descriptors: better to say at the start that they will not do
 * than to fail in the middle. */
static int raise_descriptor_limit(struct daemon *daemon, uint64_t more)
{
        struct rlimit limit;
        uint64_t needed = more + DESCRIPTORS_RESERVED + UINT64_C(2) * daemon->config.max_clients;

        list_for_each(node, &daemon->devices) needed +=
                list_entry(node, struct device, link)->table.count;
        if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
                return -errno;
        if (limit.rlim_cur >= needed)
                return 0;
        limit.rlim_cur = needed;
        if (limit.rlim_max < needed)
                limit.rlim_max = needed;
        if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
                return 0;
        log_error(&daemon->log,
                  "not enough open files are allowed for all frames and clients: raise "
                  "LimitNOFILE (ulimit -n), choose a larger frame_size, or fewer max_clients",
                  LOG_U64("needed", needed), LOG_TEXT("error", strerror(errno)));
        return -EMFILE;
}

void daemon_check_ready(struct daemon *daemon)
{
        uint64_t frames = 0, fresh = 0;

        if (daemon->ready)
                return;
        list_for_each(node, &daemon->devices)
        {
                const struct device *device = list_entry(node, struct device, link);

                if (!filler_is_settled(device))
                        return;
                frames += device->table.count;
                fresh += device->fresh.count;
        }
        daemon->ready = true;
        log_info(&daemon->log, "ready", LOG_ID(MESSAGE_ID_READY),
                 LOG_TEXT("driver", driver_kind_name(daemon->driver_use->kind)),
                 LOG_U64("devices", daemon->devices_count), LOG_U64("frames", frames),
                 LOG_U64("fresh", fresh),
                 LOG_TEXT("client_socket", daemon->clients ? listener_path(daemon->clients) : ""));
        notify_ready(daemon->notify);
}

uint32_t daemon_next_tenant(struct daemon *daemon)
{
        uint32_t number = ++daemon->tenants_last;

        if (daemon->state)
                daemon->state->header->tenants_last = number;
        return number;
}

/* From what the last daemon left to a state of our own. */
static int take_over(struct daemon *daemon)
{
        struct takeover *takeover = daemon->takeover;
        int r;

        r = kept_start(daemon, takeover_sessions(takeover));
        if (r < 0 || !daemon->keeper)
                return r;
        r = keeper_link_start(daemon->keeper, daemon->event, &daemon->log, kept_hand_over, daemon);
        if (r < 0)
                return r;
        if (takeover) {
                r = takeover_rebuild(takeover, daemon);
                if (r < 0)
                        return r;
        }
        state_complete(daemon->state);
        crash_point(daemon, "takeover-built");
        r = keeper_link_put(daemon->keeper, KEEPER_STATE, 0, daemon->state->fd, NULL, NULL);
        if (r < 0)
                return r;
        keeper_link_send_all(daemon->keeper);
        crash_point(daemon, "takeover-switched");
        takeover_finish(takeover, daemon);
        return 0;
}

int daemon_new(struct daemon **out, const struct config *config, int log_fd,
               const struct driver *driver)
{
        return daemon_new_with_keeper(out, config, log_fd, driver, NULL, 0);
}

int daemon_new_with_keeper(struct daemon **out, const struct config *config, int log_fd,
                           const struct driver *driver, struct keeper_link *keeper, uint64_t held)
{
        struct daemon *daemon = calloc(1, sizeof(*daemon));
        int r;

        *out = NULL;
        if (!daemon) {
                keeper_link_free(keeper);
                return -ENOMEM;
        }
        daemon->keeper = keeper;
        list_init(&daemon->devices);
        list_init(&daemon->sessions);
        list_init(&daemon->tenants);
        list_init(&daemon->dead);
        daemon->config = *config;
        log_init(&daemon->log, log_fd, config->log_level);
        daemon->epoch_ns = clock_ns(CLOCK_REALTIME);
        daemon->started_us = clock_ns(CLOCK_MONOTONIC) / 1000;

        r = -ENOMEM;
        daemon->buffer = malloc(GPUMEM_MESSAGE_MAX);
        if (!daemon->buffer)
                goto fail;
        r = sd_event_new(&daemon->event);
        if (r < 0)
                goto fail;
        r = sd_event_add_defer(daemon->event, &daemon->reaper, on_reap, daemon);
        if (r < 0)
                goto fail;
        sd_event_source_set_enabled(daemon->reaper, SD_EVENT_OFF);
        if (config->debug)
                crash_points_parse(&daemon->crash_points, getenv("GPUMEMD_CRASH_AT"));
        if (held > 0) {
                r = raise_descriptor_limit(daemon, held);
                if (r == 0)
                        r = takeover_new(&daemon->takeover, daemon);
                if (r < 0)
                        goto fail;
        }
        r = open_driver(daemon, driver);
        if (r < 0)
                goto fail;
        r = open_devices(daemon);
        if (r < 0)
                goto fail;
        /* (How many descriptors a given driver's exports take is its own matter.) */
        r = driver ? 0 : raise_descriptor_limit(daemon, 0);
        if (r < 0)
                goto fail;
        r = take_over(daemon);
        if (r < 0)
                goto fail;
        *out = daemon;
        return 0;

fail:
        log_error(&daemon->log, "the daemon cannot start", LOG_ID(MESSAGE_ID_START_FAILED),
                  LOG_TEXT("error", strerror(-r)));
        /* Whatever there is stays as it is for one that can. */
        kept_stop(daemon, true);
        daemon_free(daemon);
        return r;
}

/* The socket that was given, else the one that the last daemon made, if it is at the same path;
 * else one is made. */
static int open_listener(struct daemon *daemon, uint64_t id, struct listener **out, int *given_fd,
                         const char *path, int type, const char *group)
{
        int fd = *given_fd, r;

        if (fd >= 0) {
                *given_fd = -1;
                return listener_given_consume_fd(out, fd);
        }
        fd = takeover_listener(daemon->takeover, id);
        if (fd >= 0 && listener_adopt_consume_fd(out, fd, path) == 0)
                return 0;
        r = listener_new(out, path, type, group, &daemon->log);
        if (r < 0 || !daemon->keeper)
                return r;
        return keeper_link_put(daemon->keeper, KEEPER_LISTEN, id, listener_fd(*out), NULL, NULL);
}

int daemon_listen(struct daemon *daemon)
{
        struct activation given;
        int r;

        r = activation_take(&given, &daemon->log);
        if (r < 0)
                return r;
        r = open_listener(daemon, 0, &daemon->clients, &given.client_fd,
                          daemon->config.client_socket, SOCK_SEQPACKET, CLIENT_GROUP);
        if (r >= 0)
                r = open_listener(daemon, 1, &daemon->admins, &given.admin_fd,
                                  daemon->config.admin_socket, SOCK_STREAM, ADMIN_GROUP);
        if (r >= 0)
                r = acceptor_new(&daemon->acceptor, daemon, listener_fd(daemon->clients));
        if (r >= 0)
                r = admin_new(&daemon->admin, daemon, listener_fd(daemon->admins));
        activation_deinit(&given);
        daemon->takeover = takeover_free(daemon->takeover);
        return r;
}

static int on_signal(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata)
{
        struct daemon *daemon = userdata;

        log_info(&daemon->log, "stopping", LOG_ID(MESSAGE_ID_STOPPING),
                 LOG_TEXT("signal", strsignal((int)info->ssi_signo)));
        notify_stopping(daemon->notify, strsignal((int)info->ssi_signo));
        return sd_event_exit(sd_event_source_get_event(source), 0);
}

int daemon_run(struct daemon *daemon)
{
        sd_event_source *terminate = NULL, *interrupt = NULL;
        int r;

        r = sd_event_add_signal(daemon->event, &terminate, SIGTERM, on_signal, daemon);
        if (r >= 0)
                r = sd_event_add_signal(daemon->event, &interrupt, SIGINT, on_signal, daemon);
        if (r >= 0)
                r = notify_new(&daemon->notify, daemon);
        if (r >= 0) {
                list_for_each(node, &daemon->devices)
                        filler_run(list_entry(node, struct device, link));
                if (daemon->keeper)
                        keeper_link_ready(daemon->keeper);
                daemon_check_ready(daemon);
                r = sd_event_loop(daemon->event);
        }
        sd_event_source_disable_unref(terminate);
        sd_event_source_disable_unref(interrupt);
        if (r < 0)
                notify_stopping(daemon->notify, strerror(-r));
        daemon->notify = notify_free(daemon->notify);
        return r;
}

struct daemon *daemon_free(struct daemon *daemon)
{
        if (!daemon)
                return NULL;
        daemon->ending = true;
        kept_stop(daemon,
                  daemon->leaving || (daemon->keeper && !keeper_link_is_own(daemon->keeper)));
        daemon->takeover = takeover_free(daemon->takeover);
        daemon->admin = admin_free(daemon->admin);
        if (daemon->leaving) {
                listener_leave(daemon->clients);
                listener_leave(daemon->admins);
        }
        daemon->acceptor = acceptor_free(daemon->acceptor);
        daemon->clients = listener_free(daemon->clients);
        daemon->admins = listener_free(daemon->admins);
        session_close_all(daemon);
        list_for_each_safe(node, &daemon->devices)
                device_free(list_entry(node, struct device, link));
        while (!list_is_empty(&daemon->tenants)) {
                struct list *first = daemon->tenants.next;

                tenant_forget(list_entry(first, struct tenant, link));
                if (daemon->tenants.next == first) {
                        log_error(&daemon->log, "something is still charged to a tenant",
                                  LOG_TEXT("tenant", list_entry(first, struct tenant, link)->name));
                        list_unlink(first);
                }
        }
        daemon->reaper = sd_event_source_disable_unref(daemon->reaper);
        sd_event_unref(daemon->event);
        driver_free(daemon->driver);
        log_deinit(&daemon->log);
        free(daemon->buffer);
        free(daemon);
        return NULL;
}
