/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/locks.h"
#include "daemon/withheld.h"

#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/session.h"
#include "daemon/tenant.h"
#include "daemon/tenant_holder.h"
#include "libclient/wire/wire.h"

#define NS_PER_MS UINT64_C(1000000)

/* At most a fifth of the creator's time goes into measuring between releases. */
#define COST_FACTOR 4

/* --- on the creator's thread ---------------------------------------------------------------------
 */

static void measuring_failed(struct withheld *withheld, CUresult error)
{
        lock_take(&withheld->mutex, LOCK_WITHHELD);
        withheld->wanted = false;
        withheld->error = error;
        lock_release(&withheld->mutex);
}

/* Ends the burst, if there is one. If measuring fails it goes on. */
static void measure(struct device *device)
{
        struct withheld *withheld = &device->withheld;
        uint64_t start = wire_now_ns(), expected, back = 0, own;
        size_t free_bytes, total;
        CUresult error = device->memory.driver->mem_get_info(&free_bytes, &total);

        if (error != CUDA_SUCCESS) {
                measuring_failed(withheld, error);
                return;
        }
        withheld->last_ns = wire_now_ns();
        withheld->cost_ns = withheld->last_ns - start;
        /* Had nothing come back, this is what would be free. */
        expected = withheld->last_free + withheld->dropped;
        expected = expected > withheld->created ? expected - withheld->created : 0;
        if (!withheld->measured)
                back = withheld->released; /* unknown: the driver is taken at its word */
        else if (free_bytes > expected)
                back = free_bytes - expected;
        own = back < withheld->released ? back : withheld->released;

        lock_take(&withheld->mutex, LOCK_WITHHELD);
        if (withheld->tenant) {
                withheld->tenant->measured.released += withheld->released;
                withheld->tenant->measured.back += own;
        }
        withheld->extra += back - own;
        withheld->wanted = false;
        withheld->free_known = true;
        withheld->free_bytes = free_bytes;
        lock_release(&withheld->mutex);

        withheld->measured = true;
        withheld->last_free = free_bytes;
        withheld->released = withheld->created = withheld->dropped = 0;
        withheld->tenant = NULL;
}

void withheld_before(struct device *device, struct tenant_device *tenant)
{
        struct withheld *withheld = &device->withheld;
        uint64_t now;

        if (!tenant)
                return;
        now = wire_now_ns();
        if (withheld->tenant &&
            (withheld->tenant != tenant ||
             now - withheld->burst_ns > COST_FACTOR * withheld->cost_ns + NS_PER_MS))
                measure(device);
        /* (What cannot be measured cannot be told apart: see withheld_after().) */
        if (withheld->tenant)
                return;
        if (now - withheld->last_ns > COST_FACTOR * withheld->cost_ns + NS_PER_MS)
                measure(device);
        withheld->burst_ns = wire_now_ns();
}

/* Measuring failed: the driver is taken at its word, so that every release is covered once. */
static void end_blindly(struct withheld *withheld)
{
        lock_take(&withheld->mutex, LOCK_WITHHELD);
        withheld->tenant->measured.released += withheld->released;
        withheld->tenant->measured.back += withheld->released;
        lock_release(&withheld->mutex);
        withheld->released = withheld->created = withheld->dropped = 0;
        withheld->tenant = NULL;
        withheld->measured = false;
}

void withheld_after(struct device *device, struct tenant_device *tenant, const struct frame *frame)
{
        struct withheld *withheld = &device->withheld;

        if (!tenant) {
                bool exhausted = frame->outcome == FRAME_EXHAUSTED;

                if (frame->outcome == FRAME_DONE && frame->work == FRAME_CREATING)
                        withheld->created += device->memory.frame_bytes;
                else if (frame->outcome == FRAME_DONE)
                        withheld->dropped += device->memory.frame_bytes;
                /* Others came or went: how much is free is worth asking. */
                if (exhausted || withheld->exhausted)
                        measure(device);
                withheld->exhausted = exhausted;
                return;
        }
        if (frame->outcome != FRAME_DONE)
                return;
        if (withheld->tenant && withheld->tenant != tenant)
                end_blindly(withheld);
        withheld->tenant = tenant;
        withheld->released += device->memory.frame_bytes;
}

bool withheld_idle(struct device *device)
{
        struct withheld *withheld = &device->withheld;
        bool wanted;

        lock_take(&withheld->mutex, LOCK_WITHHELD);
        wanted = withheld->wanted;
        lock_release(&withheld->mutex);
        if (!wanted && !withheld->tenant)
                return false;
        measure(device);
        return true;
}

/* --- on the loop ---------------------------------------------------------------------------------
 */

static uint64_t frames_of(const struct device *device, uint64_t bytes)
{
        return (bytes + device->table.frame_bytes - 1) / device->table.frame_bytes;
}

uint64_t withheld_frames(const struct device *device)
{
        return frames_of(device, device->withheld.bytes);
}

uint64_t withheld_frames_at_most(const struct device *device)
{
        return frames_of(device, device->withheld.bytes + device->withheld.unmeasured);
}

static void look_again(struct device *device, uint64_t interval_ms)
{
        struct withheld *withheld = &device->withheld;

        withheld->interval_ms = interval_ms;
        sd_event_source_set_time_relative(withheld->timer, interval_ms * 1000);
        sd_event_source_set_enabled(withheld->timer, SD_EVENT_ONESHOT);
}

void withheld_take(struct device *device)
{
        struct withheld *withheld = &device->withheld;
        CUresult error;

        lock_take(&withheld->mutex, LOCK_WITHHELD);
        list_for_each(node, &device->tenants)
        {
                struct tenant_device *tenant = list_entry(node, struct tenant_device, device_link);

                tenant->taken.released += tenant->measured.released;
                tenant->taken.back += tenant->measured.back;
                tenant->measured = (struct withheld_measure){0};
        }
        withheld->extra_taken += withheld->extra;
        withheld->extra = 0;
        error = withheld->error;
        withheld->error = CUDA_SUCCESS;
        lock_release(&withheld->mutex);
        if (error != CUDA_SUCCESS)
                device_report_failure(
                        device, frame_memory_error_is_sticky(error) ? DEVICE_LOST : DEVICE_DEGRADED,
                        "cuMemGetInfo", error);
        if (error != CUDA_SUCCESS && device->state != DEVICE_LOST)
                look_again(device, WITHHELD_CHECK_MIN_MS);
}

void withheld_add(struct tenant_device *tenant, struct charge *charge)
{
        tenant->unmeasured += charge->bytes;
        tenant->device->withheld.unmeasured += charge->bytes;
        charge_refund(charge);
}

static void keep(struct tenant_device *tenant, uint64_t bytes)
{
        struct withheld *withheld = &tenant->device->withheld;

        if (bytes == 0)
                return;
        if (tenant->withheld.bytes == 0)
                tenant->withheld_since_ns = wire_now_ns();
        charge_grow(&tenant->withheld, &tenant->tenant->account, bytes);
        tenant->withheld_session = tenant->tenant->daemon->sessions_last;
        tenant->orphaned_ns = 0;
        withheld->bytes += bytes;
        withheld->interval_ms = 0;
}

static void give_back(struct tenant_device *tenant, uint64_t bytes)
{
        charge_shrink(&tenant->withheld, bytes);
        tenant->device->withheld.bytes -= bytes;
        if (tenant->withheld.bytes == 0)
                tenant->withheld_since_ns = tenant->orphaned_ns = 0;
}

static struct tenant_device *longest(const struct device *device)
{
        struct tenant_device *found = NULL;

        list_for_each(node, &device->tenants)
        {
                struct tenant_device *tenant = list_entry(node, struct tenant_device, device_link);

                if (tenant->withheld.bytes > 0 &&
                    (!found || tenant->withheld_since_ns < found->withheld_since_ns))
                        found = tenant;
        }
        return found;
}

/* What the daemon does not have and nobody can have is in use outside it. (Frames under way are
 * counted as they will be; the next measurement puts that right.) */
static void account_outside(struct device *device)
{
        struct withheld *withheld = &device->withheld;
        const struct frame_table *table = &device->table;
        uint64_t known, free_bytes;

        lock_take(&withheld->mutex, LOCK_WITHHELD);
        known = withheld->free_known;
        withheld->free_known = false;
        free_bytes = withheld->free_bytes;
        lock_release(&withheld->mutex);
        if (!known)
                return;
        known = (uint64_t)(table->count - table->states[FRAME_FREE]) * table->frame_bytes +
                withheld->bytes + withheld->unmeasured + free_bytes;
        device->outside_bytes = device->total_bytes > known ? device->total_bytes - known : 0;
}

void withheld_apply(struct device *device)
{
        struct withheld *withheld = &device->withheld;
        struct tenant_device *tenant;
        uint64_t extra = withheld->extra_taken;

        withheld->extra_taken = 0;
        list_for_each(node, &device->tenants)
        {
                tenant = list_entry(node, struct tenant_device, device_link);
                /* Releases that it covers were not collected yet: next time. */
                if (tenant->taken.released > tenant->unmeasured)
                        continue;
                tenant->unmeasured -= tenant->taken.released;
                withheld->unmeasured -= tenant->taken.released;
                keep(tenant, tenant->taken.released - tenant->taken.back);
                tenant->taken = (struct withheld_measure){0};
        }
        while (extra > 0 && (tenant = longest(device))) {
                uint64_t bytes = tenant->withheld.bytes < extra ? tenant->withheld.bytes : extra;

                give_back(tenant, bytes);
                extra -= bytes;
        }
        account_outside(device);
        list_for_each_safe(node, &device->tenants)
                tenant_forget(list_entry(node, struct tenant_device, device_link)->tenant);
        if (withheld->bytes + withheld->unmeasured == 0)
                sd_event_source_set_enabled(withheld->timer, SD_EVENT_OFF);
        else if (withheld->bytes > 0 && withheld->interval_ms == 0)
                look_again(device, WITHHELD_CHECK_MIN_MS);
}

/* Does anybody live who is known to have held what is withheld? */
static bool has_holder(const struct tenant_device *tenant)
{
        if (tenant_has_holders(tenant->tenant))
                return true;
        list_for_each(node, &tenant->tenant->daemon->sessions)
        {
                const struct session *session = list_entry(node, struct session, link);

                if (session->number > tenant->withheld_session)
                        return false;
                if (session->tenant == tenant->tenant)
                        return true;
        }
        return false;
}

static void give_up_orphans(struct device *device)
{
        uint64_t now = wire_now_ns();

        list_for_each_safe(node, &device->tenants)
        {
                struct tenant_device *tenant = list_entry(node, struct tenant_device, device_link);

                if (tenant->withheld.bytes == 0)
                        continue;
                if (has_holder(tenant)) {
                        tenant->orphaned_ns = 0;
                } else if (tenant->orphaned_ns == 0) {
                        tenant->orphaned_ns = now;
                } else if (now - tenant->orphaned_ns > WITHHELD_ORPHAN_MS * NS_PER_MS) {
                        log_warning(&device->daemon->log,
                                    "memory that a tenant returned is held by somebody unknown; "
                                    "it counts as used outside the daemon",
                                    LOG_TEXT("device", device->uuid_text),
                                    LOG_TEXT("tenant", tenant->tenant->name),
                                    LOG_U64("bytes", tenant->withheld.bytes));
                        device->outside_bytes += tenant->withheld.bytes;
                        give_back(tenant, tenant->withheld.bytes);
                        tenant_forget(tenant->tenant);
                        device_wake(device);
                }
        }
}

static int on_timer(sd_event_source *source, uint64_t now_us, void *userdata)
{
        struct device *device = userdata;
        struct withheld *withheld = &device->withheld;
        uint64_t interval_ms =
                withheld->interval_ms > 0 ? withheld->interval_ms * 2 : WITHHELD_CHECK_MIN_MS;

        (void)source;
        (void)now_us;
        if (device->state == DEVICE_LOST || !device->creator)
                return 0;
        give_up_orphans(device);
        if (withheld->bytes + withheld->unmeasured == 0)
                return 0;
        lock_take(&withheld->mutex, LOCK_WITHHELD);
        withheld->wanted = true;
        lock_release(&withheld->mutex);
        worker_poke(device->creator);
        look_again(device,
                   interval_ms < WITHHELD_CHECK_MAX_MS ? interval_ms : WITHHELD_CHECK_MAX_MS);
        return 0;
}

/* --- start and stop ------------------------------------------------------------------------------
 */

int withheld_start(struct device *device)
{
        struct withheld *withheld = &device->withheld;
        int r;

        r = -pthread_mutex_init(&withheld->mutex, NULL);
        if (r < 0)
                return r;
        withheld->mutex_made = true;
        r = sd_event_add_time(device->daemon->event, &withheld->timer, CLOCK_MONOTONIC, 0, 1000,
                              on_timer, device);
        if (r < 0)
                return r;
        return sd_event_source_set_enabled(withheld->timer, SD_EVENT_OFF);
}

void withheld_stop(struct device *device)
{
        struct withheld *withheld = &device->withheld;

        withheld->timer = sd_event_source_disable_unref(withheld->timer);
        if (withheld->mutex_made)
                pthread_mutex_destroy(&withheld->mutex);
        withheld->mutex_made = false;
        list_for_each(node, &device->tenants)
        {
                struct tenant_device *tenant = list_entry(node, struct tenant_device, device_link);

                withheld->unmeasured -= tenant->unmeasured;
                tenant->unmeasured = 0;
                tenant->taken = tenant->measured = (struct withheld_measure){0};
                give_back(tenant, tenant->withheld.bytes);
        }
}
