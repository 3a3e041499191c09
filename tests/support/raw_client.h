/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the wire protocol without any library above it, for tests that must say exactly what
 * is sent. Not thread-safe; one per thread or process.
 */
#ifndef TESTS_SUPPORT_RAW_CLIENT_H
#define TESTS_SUPPORT_RAW_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include <gpumem/protocol.h>

#define RAW_TIMEOUT_MS 20000

struct raw_client {
        int fd;                                                /* -1: none */
        uint32_t serial;                                       /* of the last request */
        _Alignas(8) unsigned char message[GPUMEM_MESSAGE_MAX]; /* the last reply */
        size_t length;
        char text[GPUMEM_TEXT_MAX]; /* of the last ERROR */
        uint32_t timeout_ms;        /* of raw_call(); 0: RAW_TIMEOUT_MS */
        uint64_t features;          /* that raw_hello() offers */
        unsigned reclaim_events, device_events, resumed_events;
        uint32_t resumed_serial; /* of the last RESUMED */
        int keep_fds;            /* keep the descriptors of the last grant in fds[] */
        uint32_t fds_count;
        int fds[GPUMEM_MESSAGE_FDS_MAX];
        /* In-process daemons: called while waiting for a reply; NULL for real ones. */
        void (*pump)(void *userdata);
        void *userdata;
};

/* 0 or negative errno. */
int raw_connect(struct raw_client *client, const char *path);
void raw_attach(struct raw_client *client, int fd);
void raw_close(struct raw_client *client);

/* Sends a request whose header.type and header.length are set; takes the next serial. */
int raw_send(struct raw_client *client, void *message);

/* Waits for a reply (events are counted on the way). 0: a reply is in `message`; positive: the code
 * of an ERROR, its text in `text`; -ECONNRESET: the daemon closed the connection; -ETIMEDOUT;
 * -EBADMSG: what came is not well-formed or not the answer to the last request. */
int raw_receive(struct raw_client *client, uint32_t timeout_ms);

int raw_call(struct raw_client *client, void *message);

/* The requests. Results as raw_receive(). */
int raw_hello(struct raw_client *client, const uint8_t uuid[16], uint64_t granularity,
              const char *name);
int raw_object_create(struct raw_client *client, uint32_t unit_frames, uint64_t frames_max,
                      uint64_t *object);
int raw_object_destroy(struct raw_client *client, uint64_t object);
int raw_grant(struct raw_client *client, uint64_t object, uint32_t frames, uint32_t wait_ms,
              uint64_t *ids);
int raw_return(struct raw_client *client, uint64_t object, uint32_t frames, const uint64_t *ids);
int raw_meminfo(struct raw_client *client, struct gpumem_message_meminfo_reply *reply);

/* Closes what keep_fds kept. */
void raw_close_fds(struct raw_client *client);

/* Parses "GPU-xxxxxxxx-..." found anywhere in `text`. 0 or -EINVAL. */
int raw_parse_uuid(const char *text, uint8_t uuid[16]);

struct daemon_process;

/* Asks a real daemon for its (first) device, connects and says hello: 0 or what went wrong. */
/* The same, offering features. */
int raw_open_with(struct raw_client *client, const struct daemon_process *process, const char *name,
                  uint64_t features);
int raw_open(struct raw_client *client, const struct daemon_process *process, const char *name);

#endif
