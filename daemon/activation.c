/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/activation.h"

static int refuse(struct log *log, const char *what, const char *name, int error)
{
        log_error(log, what, LOG_TEXT("name", name), LOG_TEXT("error", strerror(-error)));
        return error;
}

static int take_one(struct activation *activation, int fd, const char *name, struct log *log)
{
        bool client = strcmp(name, ACTIVATION_CLIENT) == 0;
        int *place = client ? &activation->client_fd : &activation->admin_fd;
        int flags;

        if (!client && strcmp(name, ACTIVATION_ADMIN) != 0)
                return refuse(log,
                              "a socket was passed under a name that is not known: "
                              "FileDescriptorName= must be client or admin",
                              name, -EINVAL);
        if (*place >= 0)
                return refuse(log, "two sockets were passed under the same name", name, -EINVAL);
        if (sd_is_socket_unix(fd, client ? SOCK_SEQPACKET : SOCK_STREAM, 1, NULL, 0) <= 0)
                return refuse(log,
                              client ? "what was passed is no listening Unix socket for packets "
                                       "(ListenSequentialPacket=)"
                                     : "what was passed is no listening Unix socket for streams "
                                       "(ListenStream=)",
                              name, -ENOTSOCK);
        flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return refuse(log, "a socket that was passed cannot be used", name, -errno);
        *place = fd;
        return 0;
}

int activation_take(struct activation *activation, struct log *log)
{
        char **names = NULL;
        int count, r = 0;

        *activation = (struct activation){.client_fd = -1, .admin_fd = -1};
        /* This sets close-on-exec, too. */
        count = sd_listen_fds_with_names(true, &names);
        if (count < 0) {
                log_error(log, "the sockets that were passed cannot be taken",
                          LOG_TEXT("error", strerror(-count)));
                return count;
        }
        for (int i = 0; i < count && r == 0; i++)
                r = take_one(activation, SD_LISTEN_FDS_START + i, names[i], log);
        if (r < 0) {
                for (int i = 0; i < count; i++)
                        close(SD_LISTEN_FDS_START + i);
                *activation = (struct activation){.client_fd = -1, .admin_fd = -1};
        }
        for (int i = 0; i < count; i++)
                free(names[i]);
        free(names);
        return r;
}

void activation_deinit(struct activation *activation)
{
        if (activation->client_fd >= 0)
                close(activation->client_fd);
        if (activation->admin_fd >= 0)
                close(activation->admin_fd);
        *activation = (struct activation){.client_fd = -1, .admin_fd = -1};
}

bool activation_is_pending(void)
{
        return sd_listen_fds(false) > 0;
}
