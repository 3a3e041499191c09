/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "libclient/wire/wire.h"
#include "tests/support/daemon_process.h"
#include "tests/support/raw_client.h"

void raw_attach(struct raw_client *client, int fd)
{
        memset(client, 0, sizeof(*client));
        client->fd = fd;
}

int raw_connect(struct raw_client *client, const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

        raw_attach(client, fd);
        if (fd < 0)
                return -errno;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                int r = -errno;

                raw_close(client);
                return r;
        }
        return 0;
}

void raw_close_fds(struct raw_client *client)
{
        for (uint32_t i = 0; i < client->fds_count; i++)
                close(client->fds[i]);
        client->fds_count = 0;
}

void raw_close(struct raw_client *client)
{
        raw_close_fds(client);
        if (client->fd >= 0)
                close(client->fd);
        client->fd = -1;
}

int raw_send(struct raw_client *client, void *message)
{
        struct gpumem_message_header *header = message;

        header->serial = ++client->serial;
        return wire_send(client->fd, message, header->length, 0);
}

static int next_packet(struct raw_client *client, struct wire_fds *set, uint64_t deadline_ns)
{
        int r;

        for (;;) {
                if (!client->pump)
                        return wire_receive_until(client->fd, client->message,
                                                  sizeof(client->message), set, &client->length,
                                                  deadline_ns);
                client->pump(client->userdata);
                r = wire_receive(client->fd, client->message, sizeof(client->message), set,
                                 &client->length, MSG_DONTWAIT);
                if (r != -EAGAIN)
                        return r;
                if (wire_now_ns() > deadline_ns)
                        return -ETIMEDOUT;
        }
}

static int take_reply(struct raw_client *client, struct wire_fds *set)
{
        const struct gpumem_message_header *header = (void *)client->message;
        const struct gpumem_message_error *error = (void *)client->message;

        if (header->serial != client->serial)
                return -EBADMSG;
        raw_close_fds(client);
        if (client->keep_fds) {
                for (uint32_t i = 0; i < set->count; i++)
                        client->fds[i] = wire_fds_take(set, i);
                client->fds_count = set->count;
        }
        if (header->type != GPUMEM_MESSAGE_ERROR)
                return 0;
        snprintf(client->text, sizeof(client->text), "%s", error->text);
        return (int)error->code;
}

static void take_resumed(struct raw_client *client)
{
        const struct gpumem_message_event_resumed *event = (void *)client->message;

        client->resumed_events++;
        client->resumed_serial = event->serial;
}

int raw_receive(struct raw_client *client, uint32_t timeout_ms)
{
        uint64_t deadline_ns = wire_deadline_ns(timeout_ms);

        for (;;) {
                const struct gpumem_message_header *header = (void *)client->message;
                struct wire_fds set;
                int r = next_packet(client, &set, deadline_ns);

                if (r == WIRE_CLOSED)
                        return -ECONNRESET;
                if (r > 0)
                        return -EBADMSG;
                if (r < 0)
                        return r;
                if (wire_check(client->message, client->length, set.count, WIRE_TO_CLIENT) !=
                    WIRE_OK)
                        r = -EBADMSG;
                else if (header->type == GPUMEM_MESSAGE_EVENT_RECLAIM)
                        client->reclaim_events++;
                else if (header->type == GPUMEM_MESSAGE_EVENT_DEVICE)
                        client->device_events++;
                else if (header->type == GPUMEM_MESSAGE_EVENT_RESUMED)
                        take_resumed(client);
                else
                        r = take_reply(client, &set);
                wire_fds_deinit(&set);
                if (r != 0 || !(header->type & GPUMEM_MESSAGE_EVENT))
                        return r;
        }
}

int raw_call(struct raw_client *client, void *message)
{
        int r = raw_send(client, message);

        /* Who was turned away may find the connection closed before it said a word; why, is still
         * there. */
        return r < 0 && r != -EPIPE ? r
                                    : raw_receive(client, client->timeout_ms ? client->timeout_ms
                                                                             : RAW_TIMEOUT_MS);
}

int raw_hello(struct raw_client *client, const uint8_t uuid[16], uint64_t granularity,
              const char *name)
{
        struct gpumem_message_hello hello = {
                .magic = GPUMEM_PROTOCOL_MAGIC,
                .version_min = GPUMEM_PROTOCOL_VERSION_MIN,
                .version_max = GPUMEM_PROTOCOL_VERSION_MAX,
                .driver_kind = GPUMEM_DRIVER_SIMULATED,
                .granularity = granularity,
                .features = client->features,
        };

        wire_message_init(&hello, GPUMEM_MESSAGE_HELLO, 0);
        memcpy(hello.device_uuid, uuid, sizeof(hello.device_uuid));
        snprintf(hello.name, sizeof(hello.name), "%s", name);
        return raw_call(client, &hello);
}

int raw_object_create(struct raw_client *client, uint32_t unit_frames, uint64_t frames_max,
                      uint64_t *object)
{
        struct gpumem_message_object_create message = {
                .kind = GPUMEM_OBJECT_KV_POOL,
                .unit_frames = unit_frames,
                .frames_max = frames_max,
                .name = "raw",
        };
        int r;

        wire_message_init(&message, GPUMEM_MESSAGE_OBJECT_CREATE, 0);
        r = raw_call(client, &message);
        if (r == 0)
                *object = ((struct gpumem_message_object_create_reply *)(void *)client->message)
                                  ->object;
        return r;
}

int raw_object_destroy(struct raw_client *client, uint64_t object)
{
        struct gpumem_message_object_destroy message = {.object = object};

        wire_message_init(&message, GPUMEM_MESSAGE_OBJECT_DESTROY, 0);
        return raw_call(client, &message);
}

int raw_grant(struct raw_client *client, uint64_t object, uint32_t frames, uint32_t wait_ms,
              uint64_t *ids)
{
        struct gpumem_message_grant message = {
                .object = object, .frames = frames, .wait_ms = wait_ms};
        const struct gpumem_message_grant_reply *reply = (void *)client->message;
        int r;

        wire_message_init(&message, GPUMEM_MESSAGE_GRANT, 0);
        r = raw_call(client, &message);
        if (r == 0 && (reply->header.type != GPUMEM_MESSAGE_GRANT_REPLY ||
                       reply->object != object || reply->frames != frames))
                return -EBADMSG;
        if (r == 0 && ids)
                memcpy(ids, reply->frame_ids, frames * sizeof(*ids));
        return r;
}

int raw_return(struct raw_client *client, uint64_t object, uint32_t frames, const uint64_t *ids)
{
        size_t length = sizeof(struct gpumem_message_return) + frames * sizeof(*ids);
        struct gpumem_message_return *message = calloc(1, length);
        int r;

        if (!message)
                return -ENOMEM;
        wire_header_init(&message->header, GPUMEM_MESSAGE_RETURN, (uint32_t)length, 0, 0);
        message->object = object;
        message->frames = frames;
        memcpy(message->frame_ids, ids, frames * sizeof(*ids));
        r = raw_call(client, message);
        free(message);
        return r;
}

int raw_meminfo(struct raw_client *client, struct gpumem_message_meminfo_reply *reply)
{
        struct gpumem_message_meminfo message;
        int r;

        wire_message_init(&message, GPUMEM_MESSAGE_MEMINFO, 0);
        r = raw_call(client, &message);
        if (r == 0)
                memcpy(reply, client->message, sizeof(*reply));
        return r;
}

int raw_parse_uuid(const char *text, uint8_t uuid[16])
{
        const char *c = strstr(text, "GPU-");

        if (!c)
                return -EINVAL;
        c += 4;
        for (size_t i = 0; i < 16; i++) {
                unsigned byte;

                if (*c == '-')
                        c++;
                if (sscanf(c, "%2x", &byte) != 1)
                        return -EINVAL;
                uuid[i] = (uint8_t)byte;
                c += 2;
        }
        return 0;
}

int raw_open(struct raw_client *client, const struct daemon_process *process, const char *name)
{
        return raw_open_with(client, process, name, 0);
}

int raw_open_with(struct raw_client *client, const struct daemon_process *process, const char *name,
                  uint64_t features)
{
        uint8_t uuid[16];
        char *reply;
        int r = daemon_process_call(process, "io.gpumemd.GetStatus", NULL, &reply);

        client->fd = -1;
        if (r < 0)
                return r;
        r = raw_parse_uuid(reply, uuid);
        free(reply);
        if (r < 0)
                return r;
        r = raw_connect(client, daemon_process_client_socket(process));
        if (r < 0)
                return r;
        client->features = features;
        r = raw_hello(client, uuid, 4096, name);
        if (r != 0)
                raw_close(client);
        return r;
}
