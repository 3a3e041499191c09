/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keeper/supervisor.h"

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)

int supervisor_start(struct supervisor *supervisor, int *fd)
{
        int pair[2];
        pid_t child;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return -errno;
        child = fork();
        if (child < 0) {
                int r = -errno;

                close(pair[0]);
                close(pair[1]);
                return r;
        }
        if (child == 0) {
                sigset_t none;

                sigemptyset(&none);
                sigprocmask(SIG_SETMASK, &none, NULL);
                /* (dup2 onto itself would leave close-on-exec set.) */
                if (pair[1] == SUPERVISOR_DAEMON_FD ? fcntl(pair[1], F_SETFD, 0) < 0
                                                    : dup2(pair[1], SUPERVISOR_DAEMON_FD) < 0)
                        _exit(126);
                execv(supervisor->arguments[0], supervisor->arguments);
                _exit(127);
        }
        close(pair[1]);
        supervisor->child = child;
        supervisor->ready = false;
        supervisor->start_ns = 0;
        *fd = pair[0];
        return 0;
}

bool supervisor_died(struct supervisor *supervisor, uint64_t now_ns)
{
        uint64_t pause_ns = 0;

        if (!supervisor->was_ready && !supervisor->adopted)
                return false;
        if (supervisor->ready) {
                supervisor->early_deaths = 0;
                if (now_ns - supervisor->window_ns > NS_PER_S) {
                        supervisor->window_ns = now_ns;
                        supervisor->deaths = 0;
                }
                if (++supervisor->deaths > SUPERVISOR_BURST)
                        pause_ns = SUPERVISOR_PAUSE_MIN_MS * NS_PER_MS;
        } else {
                uint32_t doublings = supervisor->early_deaths++;

                pause_ns = SUPERVISOR_PAUSE_MAX_MS * NS_PER_MS;
                if (doublings < 7)
                        pause_ns = (SUPERVISOR_PAUSE_MIN_MS * NS_PER_MS) << doublings;
                if (pause_ns > SUPERVISOR_PAUSE_MAX_MS * NS_PER_MS)
                        pause_ns = SUPERVISOR_PAUSE_MAX_MS * NS_PER_MS;
        }
        supervisor->ready = false;
        supervisor->start_ns = now_ns + pause_ns;
        return true;
}

bool supervisor_reap(struct supervisor *supervisor, int *status)
{
        if (supervisor->child <= 0)
                return false;
        if (waitpid(supervisor->child, status, WNOHANG) != supervisor->child)
                return false;
        supervisor->child = 0;
        return true;
}
