/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/identity.h"
#include "daemon/tenant_holder.h"

struct holder {
        struct list link;
        struct tenant *tenant;
        pid_t pid;
        int pidfd;
        sd_event_source *exit;
};

static void holder_free(struct holder *holder)
{
        sd_event_source_disable_unref(holder->exit);
        if (holder->pidfd >= 0)
                close(holder->pidfd);
        list_unlink(&holder->link);
        holder->tenant->holders_count--;
        free(holder);
}

static int on_exit_of_holder(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
        struct holder *holder = userdata;

        (void)source;
        (void)fd;
        (void)revents;
        holder_free(holder);
        return 0;
}

static bool is_process(const struct holder *holder, const struct identity *identity)
{
        const struct identity recorded = {.pidfd = holder->pidfd};

        /* Two living processes do not have one pid. */
        return holder->pid == identity->pid && holder->pid > 0 && !identity_has_exited(&recorded);
}

void tenant_add_holder(struct tenant *tenant, struct identity *identity)
{
        struct holder *holder;

        list_for_each(node, &tenant->holders) if (is_process(list_entry(node, struct holder, link),
                                                             identity)) return;
        holder = tenant->holders_count < HOLDERS_MAX ? calloc(1, sizeof(*holder)) : NULL;
        if (!holder) {
                tenant->holders_uncounted = true;
                return;
        }
        holder->tenant = tenant;
        holder->pid = identity->pid;
        holder->pidfd = identity->pidfd;
        identity->pidfd = -1;
        list_append(&tenant->holders, &holder->link);
        tenant->holders_count++;
        if (sd_event_add_io(tenant->daemon->event, &holder->exit, holder->pidfd, EPOLLIN,
                            on_exit_of_holder, holder) < 0) {
                tenant->holders_uncounted = true;
                holder_free(holder);
        }
}

bool tenant_has_holders(const struct tenant *tenant)
{
        return tenant->holders_count > 0 || tenant->holders_uncounted;
}

void tenant_forget_holders(struct tenant *tenant)
{
        list_for_each_safe(node, &tenant->holders)
                holder_free(list_entry(node, struct holder, link));
        tenant->holders_uncounted = false;
}
