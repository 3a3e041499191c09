/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/reclaim.h"
#include "daemon/session.h"
#include "daemon/text.h"
#include "libclient/wire/wire.h"

#define HOLDERS_NAMED 3

void reclaim_ask(struct device *device, const struct session *except, uint64_t frames)
{
        uint64_t now = wire_now_ns();

        if (now < device->reclaim_next_ns)
                return;
        /* Who comes again wants more than one request can say: ask for twice as much each time. */
        if (now < device->reclaim_next_ns + RECLAIM_FORGET_MS * UINT64_C(1000000) &&
            frames < 2 * device->reclaim_frames)
                frames = 2 * device->reclaim_frames;
        if (frames > device->table.count)
                frames = device->table.count;
        device->reclaim_frames = frames;
        device->reclaim_next_ns = now + RECLAIM_INTERVAL_MS * UINT64_C(1000000);
        list_for_each_safe(node, &device->sessions)
        {
                struct session *session = list_entry(node, struct session, device_link);

                if (session != except && session->frames > 0)
                        session_send_reclaim(session, frames * device->table.frame_bytes);
        }
}

void reclaim_ask_tenant(struct tenant_device *tenant, const struct session *except, uint64_t frames)
{
        struct device *device = tenant->device;
        uint64_t now = wire_now_ns();

        if (now < tenant->reclaim_next_ns)
                return;
        tenant->reclaim_next_ns = now + RECLAIM_INTERVAL_MS * UINT64_C(1000000);
        /* Sending may close a session, and with its last one the tenant goes. */
        list_for_each_safe(node, &device->sessions)
        {
                struct session *session = list_entry(node, struct session, device_link);

                if (session != except && session->allotment == tenant && session->frames > 0)
                        session_send_reclaim(session, frames * device->table.frame_bytes);
        }
}

void reclaim_describe_holders(const struct device *device, char *text, size_t size)
{
        const struct session *largest[HOLDERS_NAMED] = {NULL};
        size_t length = 0;

        list_for_each(node, &device->sessions)
        {
                const struct session *session = list_entry(node, struct session, device_link);

                for (size_t i = 0; session->frames > 0 && i < HOLDERS_NAMED; i++) {
                        const struct session *displaced = largest[i];

                        if (displaced && displaced->frames >= session->frames)
                                continue;
                        largest[i] = session;
                        if (!displaced)
                                break;
                        session = displaced;
                }
        }
        if (size > 0)
                text[0] = '\0';
        for (size_t i = 0; i < HOLDERS_NAMED && largest[i] && length < size; i++) {
                char bytes[TEXT_BYTES_MAX];
                int n;

                text_bytes(bytes, largest[i]->frames * device->table.frame_bytes);
                n = snprintf(text + length, size - length, "%s'%s' (pid %d, uid %u) holds %s",
                             i ? ", " : "", largest[i]->name, (int)largest[i]->identity.pid,
                             (unsigned)largest[i]->identity.uid, bytes);
                if (n < 0)
                        return;
                length += (size_t)n;
        }
        if (length == 0)
                snprintf(text, size, "no open session holds any");
}
