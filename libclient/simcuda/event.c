/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/event.h"

#include <stdlib.h>
#include <time.h>

/* One recording. Lives while the event shows it, or its operation is under way. Work lock. */
struct record {
        uint32_t references;
        struct stream *stream;
        uint64_t sequence;
        uint64_t nanoseconds; /* when the stream got there */
};

struct event {
        struct event *next, **link; /* of all events */
        struct context *context;
        uint64_t handle;
        unsigned int flags;
        struct record *record; /* NULL: never recorded */
};

static struct sim_handles event_handles = {.kind = SIM_HANDLE_EVENT}; /* work lock */
static struct event *all_events;                                      /* work lock */

static void record_unref(struct record *record)
{
        if (!record || --record->references != 0)
                return;
        if (record->stream)
                stream_unref(record->stream);
        free(record);
}

static struct event *find(CUevent handle)
{
        return sim_handles_get(&event_handles, (uint64_t)(uintptr_t)handle);
}

static void event_free(struct event *event)
{
        *event->link = event->next;
        if (event->next)
                event->next->link = event->link;
        sim_handles_remove(&event_handles, event->handle);
        record_unref(event->record);
        free(event);
}

void events_of_context_end(struct context *context)
{
        struct event *event, *next;

        for (event = all_events; event; event = next) {
                next = event->next;
                if (event->context == context)
                        event_free(event);
        }
}

SIM_API(cuEventCreate, (CUevent * out, unsigned int flags), (out, flags))
{
        struct context *context;
        struct event *event;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!out || (flags & ~7u) ||
            ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
                return CUDA_ERROR_INVALID_VALUE;
        if (flags & CU_EVENT_INTERPROCESS)
                return sim_fail(CUDA_ERROR_NOT_SUPPORTED,
                                "the simulator has no events between processes");
        event = calloc(1, sizeof(*event));
        if (!event)
                return CUDA_ERROR_OUT_OF_MEMORY;
        event->context = context;
        event->flags = flags;
        pthread_mutex_lock(&sim.work_lock);
        event->handle = sim_handles_add(&event_handles, event);
        if (event->handle != 0) {
                event->next = all_events;
                event->link = &all_events;
                if (all_events)
                        all_events->link = &event->next;
                all_events = event;
        }
        pthread_mutex_unlock(&sim.work_lock);
        if (event->handle == 0) {
                free(event);
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY, "too many events");
        }
        *out = (CUevent)(uintptr_t)event->handle;
        return CUDA_SUCCESS;
}

/* Returns at once, recorded or not. */
SIM_API(cuEventDestroy_v2, (CUevent handle), (handle))
{
        struct context *context;
        struct event *event;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.work_lock);
        event = find(handle);
        if (event)
                event_free(event);
        pthread_mutex_unlock(&sim.work_lock);
        return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
SIM_ALIAS(cuEventDestroy, cuEventDestroy_v2);

struct record_operation {
        struct operation operation;
        CUevent handle;
        struct record *record;
};

static void record_placed(struct operation *operation, struct stream *stream)
{
        struct record_operation *recording = (struct record_operation *)operation;
        struct event *event = find(recording->handle);

        stream_ref(stream);
        recording->record->stream = stream;
        recording->record->sequence = operation->sequence;
        if (!event) /* destroyed between the check and now: as if right after */
                return;
        record_unref(event->record);
        event->record = recording->record;
        event->record->references++;
}

/* Always comes, also when the context is poisoned and nothing runs any more. */
static void record_discard(struct operation *operation)
{
        struct record_operation *recording = (struct record_operation *)operation;
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        recording->record->nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        record_unref(recording->record);
}

static CUresult run_nothing(struct context *context, struct operation *operation)
{
        (void)context;
        (void)operation;
        return CUDA_SUCCESS;
}

SIM_API(cuEventRecord, (CUevent handle, CUstream stream), (handle, stream))
{
        struct record_operation *recording;
        struct context *context;
        struct event *event;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.work_lock);
        event = find(handle);
        if (!event || event->context != context)
                result = CUDA_ERROR_INVALID_HANDLE;
        pthread_mutex_unlock(&sim.work_lock);
        if (result != CUDA_SUCCESS)
                return result;

        recording = calloc(1, sizeof(*recording));
        if (recording)
                recording->record = calloc(1, sizeof(*recording->record));
        if (!recording || !recording->record) {
                free(recording);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        recording->record->references = 1;
        recording->handle = handle;
        recording->operation.run = run_nothing;
        recording->operation.placed = record_placed;
        recording->operation.discard = record_discard;
        return stream_submit(context, stream, &recording->operation);
}

SIM_API(cuEventRecordWithFlags, (CUevent handle, CUstream stream, unsigned int flags),
        (handle, stream, flags))
{
        return flags == 0 ? cuEventRecord(handle, stream) : CUDA_ERROR_NOT_SUPPORTED;
}

/* An event that was never recorded counts as complete. */
static CUresult query(CUevent handle, bool wait)
{
        struct context *context;
        struct record *record;
        struct event *event;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.work_lock);
        event = find(handle);
        if (!event) {
                result = CUDA_ERROR_INVALID_HANDLE;
        } else if ((record = event->record) != NULL) {
                context = event->context;
                record->references++;
                if (wait)
                        stream_wait_until(record->stream, record->sequence);
                else if (!stream_reached(record->stream, record->sequence))
                        result = CUDA_ERROR_NOT_READY;
                record_unref(record);
        }
        pthread_mutex_unlock(&sim.work_lock);
        if (result == CUDA_SUCCESS)
                result = (CUresult)atomic_load(&context->error);
        return result;
}

SIM_API(cuEventQuery, (CUevent handle), (handle))
{
        return query(handle, false);
}

SIM_API(cuEventSynchronize, (CUevent handle), (handle))
{
        return query(handle, true);
}

SIM_API(cuEventElapsedTime, (float *milliseconds, CUevent start_handle, CUevent end_handle),
        (milliseconds, start_handle, end_handle))
{
        struct context *context;
        const struct event *start, *end;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!milliseconds)
                return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&sim.work_lock);
        start = find(start_handle);
        end = find(end_handle);
        if (!start || !end || !start->record || !end->record ||
            ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
                result = CUDA_ERROR_INVALID_HANDLE;
        else if (!stream_reached(start->record->stream, start->record->sequence) ||
                 !stream_reached(end->record->stream, end->record->sequence))
                result = CUDA_ERROR_NOT_READY;
        else
                *milliseconds = (float)((double)(int64_t)(end->record->nanoseconds -
                                                          start->record->nanoseconds) *
                                        1e-6);
        pthread_mutex_unlock(&sim.work_lock);
        return result;
}
SIM_ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);

SIM_API(cuStreamWaitEvent, (CUstream stream, CUevent handle, unsigned int flags),
        (stream, handle, flags))
{
        struct operation *operation;
        struct context *context;
        const struct event *event;
        bool depends = false;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (flags != CU_EVENT_WAIT_DEFAULT)
                return CUDA_ERROR_INVALID_VALUE;
        operation = calloc(1, sizeof(*operation));
        if (!operation)
                return CUDA_ERROR_OUT_OF_MEMORY;
        operation->run = run_nothing;
        pthread_mutex_lock(&sim.work_lock);
        event = find(handle);
        if (!event) {
                result = CUDA_ERROR_INVALID_HANDLE;
        } else if (event->record) {
                depends = true;
                if (!stream_depend(operation, event->record->stream, event->record->sequence))
                        result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        pthread_mutex_unlock(&sim.work_lock);
        if (result != CUDA_SUCCESS || !depends) {
                free(operation);
                return result;
        }
        return stream_submit(context, stream, operation);
}
