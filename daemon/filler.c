/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "daemon/filler.h"

#include "daemon/crash.h"
#include "daemon/daemon.h"
#include "daemon/frame_pool.h"
#include "daemon/grant.h"
#include "daemon/keeper_link.h"
#include "daemon/session.h"
#include "libclient/wire/wire.h"

/* --- on the worker threads --- */

static int creator_start(void *userdata)
{
        struct device *device = userdata;

        return driver_errno(device->memory.driver->ctx_set_current(device->memory.context));
}

static void creator_run(void *userdata, const uint32_t *numbers, size_t count)
{
        struct device *device = userdata;

        for (size_t i = 0; i < count; i++) {
                struct frame *frame = &device->table.frames[numbers[i]];
                struct tenant_device *tenant = frame->work == FRAME_CREATING ? NULL : frame->tenant;

                withheld_before(device, tenant);
                if (frame->work == FRAME_CREATING)
                        frame_memory_create(&device->memory, frame, numbers[i]);
                else
                        frame_memory_release(&device->memory, frame, numbers[i]);
                withheld_after(device, tenant, frame);
        }
}

static bool creator_idle(void *userdata)
{
        return withheld_idle(userdata);
}

static int scrubber_start(void *userdata)
{
        struct device *device = userdata;
        const struct driver *driver = device->memory.driver;
        CUresult error = driver->ctx_set_current(device->memory.context);

        if (error == CUDA_SUCCESS)
                error = driver->stream_create(&device->scrub_stream, CU_STREAM_NON_BLOCKING);
        return driver_errno(error);
}

static void scrubber_run(void *userdata, const uint32_t *numbers, size_t count)
{
        struct device *device = userdata;

        frame_memory_scrub(&device->memory, &device->table, numbers, count, device->scrub_stream);
}

static void scrubber_stop(void *userdata)
{
        struct device *device = userdata;

        device->memory.driver->stream_destroy(device->scrub_stream);
}

/* --- on the loop: what was done --- */

static void pause_creating(struct device *device, bool exhausted)
{
        uint64_t now = wire_now_ns();

        if (device->backoff_until_ns != 0)
                return;
        device->backoff_ns = device->backoff_ns == 0 ? FILLER_BACKOFF_MIN_MS * UINT64_C(1000000)
                                                     : device->backoff_ns * 2;
        if (device->backoff_ns > FILLER_BACKOFF_MAX_MS * UINT64_C(1000000))
                device->backoff_ns = FILLER_BACKOFF_MAX_MS * UINT64_C(1000000);
        device->backoff_until_ns = now + device->backoff_ns;
        device->exhausted = exhausted;
        sd_event_source_set_time(device->backoff_timer, device->backoff_until_ns / 1000 + 1);
        sd_event_source_set_enabled(device->backoff_timer, SD_EVENT_ONESHOT);
}

static void stop_pausing(struct device *device)
{
        device->backoff_until_ns = 0;
        device->exhausted = false;
        sd_event_source_set_enabled(device->backoff_timer, SD_EVENT_OFF);
}

static int on_backoff_over(sd_event_source *source, uint64_t now_us, void *userdata)
{
        struct device *device = userdata;

        (void)source;
        (void)now_us;
        stop_pausing(device);
        filler_run(device);
        return 0;
}

static void report_failure(struct device *device, const struct frame *frame)
{
        device_report_failure(
                device,
                frame_memory_error_is_sticky((CUresult)frame->error) ? DEVICE_LOST
                                                                     : DEVICE_DEGRADED,
                frame_step_name((enum frame_step)frame->step), (CUresult)frame->error);
}

static void become_fresh(struct device *device, uint32_t number)
{
        frame_set_state(&device->table, number, FRAME_FRESH);
        frame_list_append(&device->table, &device->fresh, number);
        device->backoff_ns = 0;
}

/* The keeper has a created frame's descriptor, or could not take it. */
static void on_kept(void *userdata, uint64_t id, int result)
{
        struct device *device = userdata;
        uint32_t number = (uint32_t)id;

        if (result < 0) {
                /* What a crash would lose is not given out. */
                pause_creating(device, false);
                frame_set_work(&device->table, number, FRAME_RELEASING);
                worker_push(device->creator, number);
                return;
        }
        crash_point(device->daemon, "frame-kept");
        frame_set_work(&device->table, number, FRAME_IDLE);
        become_fresh(device, number);
        device_wake(device);
        daemon_check_ready(device->daemon);
}

/* A frame is fresh when the keeper has it; until then it counts as being created. */
static void keep_created(struct device *device, uint32_t number)
{
        struct keeper_link *keeper = device->daemon->keeper;

        if (!keeper) {
                become_fresh(device, number);
                return;
        }
        crash_point(device->daemon, "frame-created");
        frame_set_work(&device->table, number, FRAME_CREATING);
        if (keeper_link_put(keeper, KEEPER_FRAME, device_keeper_id(device, number),
                            device->table.frames[number].fd, on_kept, device) < 0)
                on_kept(device, number, -ENOMEM);
}

static void on_created(struct device *device, uint32_t number)
{
        struct frame *frame = &device->table.frames[number];

        switch ((enum frame_outcome)frame->outcome) {
        case FRAME_DONE:
                keep_created(device, number);
                return;
        case FRAME_EXHAUSTED:
                if (device->backoff_ns == 0)
                        log_warning(&device->daemon->log,
                                    "the driver has no memory for more frames: something outside "
                                    "the daemon uses it; trying again later",
                                    LOG_ID(MESSAGE_ID_DEVICE_EXHAUSTED),
                                    LOG_TEXT("device", device->uuid_text),
                                    LOG_U64("free_frames", device->table.states[FRAME_FREE]));
                frame_list_append(&device->table, &device->free, number);
                pause_creating(device, true);
                return;
        case FRAME_FAILED:
                report_failure(device, frame);
                frame_list_append(&device->table, &device->free, number);
                pause_creating(device, false);
                return;
        case FRAME_STUCK:
                report_failure(device, frame);
                frame_pool_quarantine(device, number);
                pause_creating(device, false);
                return;
        }
}

static void on_released(struct device *device, uint32_t number)
{
        struct frame *frame = &device->table.frames[number];
        struct tenant_device *tenant = frame->tenant;

        crash_point(device->daemon, "frame-released");
        if (tenant)
                tenant->releasing--;
        if (frame->outcome == FRAME_DONE) {
                if (tenant)
                        withheld_add(tenant, &frame->charge);
                frame->tenant = NULL;
                frame_set_state(&device->table, number, FRAME_FREE);
                frame_list_append(&device->table, &device->free, number);
                if (device->exhausted)
                        stop_pausing(device); /* there is memory again */
        } else {
                report_failure(device, frame);
                frame_pool_quarantine(device, number);
        }
        if (tenant)
                tenant_forget(tenant->tenant);
}

static int on_creator_done(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
        struct device *device = userdata;
        struct frame_list done;
        uint32_t number;

        (void)source;
        (void)fd;
        (void)revents;
        worker_collect(device->creator, &done);
        withheld_take(device);
        while ((number = frame_list_pop(&device->table, &done)) != FRAME_NONE) {
                enum frame_work work = (enum frame_work)device->table.frames[number].work;

                frame_set_work(&device->table, number, FRAME_IDLE);
                if (work == FRAME_CREATING)
                        on_created(device, number);
                else
                        on_released(device, number);
        }
        withheld_apply(device);
        grant_run(device);
        filler_run(device);
        daemon_check_ready(device->daemon);
        return 0;
}

/* The keeper has closed its descriptor: the rest is the driver's. */
static void on_dropped(void *userdata, uint64_t id, int result)
{
        struct device *device = userdata;

        (void)result;
        crash_point(device->daemon, "frame-dropped");
        worker_push(device->creator, (uint32_t)id);
}

static void release(struct device *device, struct tenant_device *tenant, uint32_t number)
{
        struct keeper_link *keeper = device->daemon->keeper;

        frame_set_work(&device->table, number, FRAME_RELEASING);
        tenant->releasing++;
        crash_point(device->daemon, "frame-releasing");
        if (!keeper || keeper_link_drop(keeper, KEEPER_FRAME, device_keeper_id(device, number),
                                        on_dropped, device) < 0)
                worker_push(device->creator, number);
}

static int on_scrubber_done(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
        struct device *device = userdata;
        struct frame_list done;
        uint32_t number;

        (void)source;
        (void)fd;
        (void)revents;
        worker_collect(device->scrubber, &done);
        while ((number = frame_list_pop(&device->table, &done)) != FRAME_NONE) {
                struct frame *frame = &device->table.frames[number];
                struct tenant_device *tenant = frame->tenant;

                frame_set_work(&device->table, number, FRAME_IDLE);
                tenant->scrubbing--;
                if (frame->outcome != FRAME_DONE) {
                        /* Its contents are not known to be gone: nobody gets it again. */
                        report_failure(device, frame);
                        frame_pool_quarantine(device, number);
                        tenant_forget(tenant->tenant);
                } else if (tenant->tenant->sessions == 0 ||
                           tenant_device_charged(tenant) - tenant->releasing >=
                                   tenant_device_max(tenant)) {
                        release(device, tenant, number);
                } else {
                        crash_point(device->daemon, "frame-scrubbed");
                        frame_set_state(&device->table, number, FRAME_READY);
                        frame_list_append(&device->table, &tenant->ready, number);
                }
        }
        grant_run(device);
        filler_run(device);
        return 0;
}

/* --- on the loop: what to do --- */

static void scrub_dirty(struct device *device, struct tenant_device *tenant)
{
        uint32_t number;

        while ((number = frame_list_pop(&device->table, &tenant->dirty)) != FRAME_NONE) {
                frame_set_work(&device->table, number, FRAME_SCRUBBING);
                tenant->scrubbing++;
                worker_push(device->scrubber, number);
        }
}

static void release_all(struct device *device, struct tenant_device *tenant)
{
        uint32_t number;

        while ((number = frame_list_pop(&device->table, &tenant->ready)) != FRAME_NONE)
                release(device, tenant, number);
        while ((number = frame_list_pop(&device->table, &tenant->dirty)) != FRAME_NONE)
                release(device, tenant, number);
}

void filler_frame_dirty(struct device *device, struct tenant_device *tenant)
{
        /* (At the end, those who held it may live and have it mapped: it is released unscrubbed.)
         */
        if (!device->creator || device->state == DEVICE_LOST || device->daemon->ending)
                return;
        if (tenant->tenant->sessions == 0)
                release_all(device, tenant);
        else if (device->queue.count == 0)
                scrub_dirty(device, tenant);
        else
                device_wake(device); /* somebody waits: it may be better released */
}

void filler_tenant_left(struct device *device, struct tenant_device *tenant)
{
        if (!device->creator || device->state == DEVICE_LOST)
                return;
        release_all(device, tenant);
}

void filler_trim_tenant(struct device *device, struct tenant_device *tenant)
{
        uint64_t max = tenant_device_max(tenant), charged = tenant_device_charged(tenant);
        /* What is on its way to the driver is charged until it is there, but need not be given up
         * again. */
        uint64_t going = (uint64_t)tenant->releasing;

        if (!device->creator || device->state == DEVICE_LOST)
                return;
        charged -= going;
        for (; charged > max; charged--) {
                uint32_t number = frame_list_pop(&device->table, &tenant->dirty);

                if (number == FRAME_NONE)
                        number = frame_list_pop(&device->table, &tenant->ready);
                if (number == FRAME_NONE)
                        return;
                release(device, tenant, number);
        }
}

/* Frames that those who wait need beyond what their own tenants have or are about to have. */
static uint64_t missing_frames(const struct device *device)
{
        uint64_t missing = 0;

        list_for_each(node, &device->tenants)
        {
                const struct tenant_device *tenant =
                        list_entry(node, struct tenant_device, device_link);
                uint64_t own =
                        (uint64_t)tenant->ready.count + tenant->dirty.count + tenant->scrubbing;

                if (tenant->wanted > own)
                        missing += tenant->wanted - own;
        }
        return missing;
}

/* Returned frames that no worker has. */
static uint64_t idle_frames(const struct tenant_device *tenant)
{
        return (uint64_t)tenant->ready.count + tenant->dirty.count;
}

/* Returned frames of this tenant that nobody of it waits for and no worker has. */
static uint64_t spare_frames(const struct tenant_device *tenant)
{
        uint64_t idle = idle_frames(tenant);
        uint64_t own = idle + tenant->scrubbing;

        if (own <= tenant->wanted)
                return 0;
        return own - tenant->wanted < idle ? own - tenant->wanted : idle;
}

/* Releases returned frames of tenants other than `except`, from the one with the most first; what
 * their own waiting grants want is spared unless `all`. */
static void release_idle(struct device *device, uint64_t frames, const struct tenant_device *except,
                         bool all)
{
        while (frames > 0) {
                struct tenant_device *most = NULL;
                uint64_t most_frames = 0;

                list_for_each(node, &device->tenants)
                {
                        struct tenant_device *tenant =
                                list_entry(node, struct tenant_device, device_link);
                        uint64_t spare = all ? idle_frames(tenant) : spare_frames(tenant);

                        if (tenant != except && spare > most_frames) {
                                most = tenant;
                                most_frames = spare;
                        }
                }
                if (!most)
                        return;
                for (; most_frames > 0 && frames > 0; most_frames--, frames--) {
                        uint32_t number = frame_list_pop(&device->table, &most->dirty);

                        if (number == FRAME_NONE)
                                number = frame_list_pop(&device->table, &most->ready);
                        release(device, most, number);
                }
        }
}

/* Frames that are fresh or on their way to it: created, released, released and about to be
 * measured.
 */
static uint64_t coming_frames(const struct device *device)
{
        return (uint64_t)device->fresh.count + device->table.works[FRAME_CREATING] +
               device->table.works[FRAME_RELEASING] +
               device->withheld.unmeasured / device->table.frame_bytes;
}

/* For whoever waits first: what others returned is released, even if they wait themselves, behind
 * it (else two could wait for each other's). */
static void release_for_waiting(struct device *device, uint64_t missing)
{
        const struct grant_wait *first =
                list_entry(device->queue.waits.next, struct grant_wait, link);
        const struct tenant_device *tenant = first->session->allotment;
        uint64_t own = idle_frames(tenant) + tenant->scrubbing;
        uint64_t coming = coming_frames(device);

        if (missing > coming) {
                release_idle(device, missing - coming, tenant, false);
                coming = coming_frames(device);
        }
        if (first->frames > own + coming)
                release_idle(device, first->frames - own - coming, tenant, true);
}

void filler_run(struct device *device)
{
        struct frame_table *table = &device->table;
        uint64_t coming = (uint64_t)device->fresh.count + table->works[FRAME_CREATING];
        uint64_t goal, missing = 0;

        if (!device->creator || device->state == DEVICE_LOST)
                return;
        if (coming < device->watermark_low)
                device->refilling = true;
        else if (coming >= device->watermark_high)
                device->refilling = false;
        goal = device->refilling ? device->watermark_high : 0;
        if (device->queue.count > 0) {
                missing = missing_frames(device);
                if (missing > goal)
                        goal = missing;
        }
        if (device->backoff_until_ns == 0) {
                /* What is withheld uses up the room that free frames stand for. */
                uint64_t kept = withheld_frames_at_most(device);

                while (coming < goal && device->free.count > kept) {
                        uint32_t number = frame_list_pop(table, &device->free);

                        frame_set_work(table, number, FRAME_CREATING);
                        worker_push(device->creator, number);
                        coming++;
                }
        }
        if (device->queue.count > 0) {
                release_for_waiting(device, missing);
                list_for_each(node, &device->tenants)
                        scrub_dirty(device, list_entry(node, struct tenant_device, device_link));
        }
}

bool filler_is_settled(const struct device *device)
{
        if (device->state == DEVICE_LOST || device->backoff_until_ns != 0)
                return true;
        return device->fresh.count >= device->watermark_high ||
               (device->free.count <= withheld_frames(device) &&
                device->table.works[FRAME_CREATING] == 0);
}

/* --- start and stop --- */

static int add_worker(struct device *device, struct worker **worker, sd_event_source **source,
                      const struct worker_work *work, sd_event_io_handler_t on_done)
{
        int r = worker_new(worker, &device->table, work);

        if (r < 0)
                return r;
        return sd_event_add_io(device->daemon->event, source, worker_fd(*worker), EPOLLIN, on_done,
                               device);
}

int filler_start(struct device *device)
{
        /* One at a time: who waits for one frame does not wait for a batch. */
        const struct worker_work creator = {
                .name = "gpumemd-create",
                .batch = 1,
                .userdata = device,
                .start = creator_start,
                .run = creator_run,
                .idle = creator_idle,
        };
        const struct worker_work scrubber = {
                .name = "gpumemd-scrub",
                .batch = WORKER_BATCH_MAX,
                .userdata = device,
                .start = scrubber_start,
                .run = scrubber_run,
                .stop = scrubber_stop,
        };
        int r;

        r = withheld_start(device);
        if (r < 0)
                return r;
        r = sd_event_add_time(device->daemon->event, &device->backoff_timer, CLOCK_MONOTONIC, 0,
                              1000, on_backoff_over, device);
        if (r < 0)
                return r;
        sd_event_source_set_enabled(device->backoff_timer, SD_EVENT_OFF);
        r = add_worker(device, &device->creator, &device->creator_source, &creator,
                       on_creator_done);
        if (r < 0)
                return r;
        return add_worker(device, &device->scrubber, &device->scrubber_source, &scrubber,
                          on_scrubber_done);
}

void filler_stop(struct device *device)
{
        device->backoff_timer = sd_event_source_disable_unref(device->backoff_timer);
        device->creator_source = sd_event_source_disable_unref(device->creator_source);
        device->scrubber_source = sd_event_source_disable_unref(device->scrubber_source);
        device->creator = worker_free(device->creator);
        device->scrubber = worker_free(device->scrubber);
        withheld_stop(device);
}
