/* SPDX-License-Identifier: Apache-2.0 */
/* Events. */
#include "tests/conformance/conformance.h"

static void record_and_query(struct run *run)
{
        CUstream stream;
        CUevent event;

        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        OK("create", run->cuda->event_create(&event, CU_EVENT_DISABLE_TIMING));
        OK("query what was never recorded", run->cuda->event_query(event));
        OK("wait for it", run->cuda->event_synchronize(event));
        NEED(run->cuda->launch_host_func(stream, host_sleep, (void *)(intptr_t)100));
        OK("record", run->cuda->event_record(event, stream));
        EXPECT("query", run->cuda->event_query(event), CUDA_ERROR_NOT_READY);
        OK("wait", run->cuda->event_synchronize(event));
        OK("query again", run->cuda->event_query(event));
        OK("the stream got there", run->cuda->stream_query(stream));
        OK("destroy", run->cuda->event_destroy(event));
        EXPECT("flags", run->cuda->event_create(&event, 0x100), CUDA_ERROR_INVALID_VALUE);
        EXPECT("nowhere", run->cuda->event_create(NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

static void elapsed_time(struct run *run)
{
        CUevent start, end, untimed;
        float ms = -1;
        CUstream stream;

        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->event_create(&start, CU_EVENT_DEFAULT));
        NEED(run->cuda->event_create(&end, CU_EVENT_DEFAULT));
        NEED(run->cuda->event_create(&untimed, CU_EVENT_DISABLE_TIMING));
        NEED(run->cuda->event_record(start, stream));
        NEED(run->cuda->launch_host_func(stream, host_sleep, (void *)(intptr_t)50));
        NEED(run->cuda->event_record(end, stream));
        NEED(run->cuda->event_record(untimed, stream));
        EXPECT("not there yet", run->cuda->event_elapsed_time(&ms, start, end),
               CUDA_ERROR_NOT_READY);
        NEED(run->cuda->stream_synchronize(stream));
        OK("now", run->cuda->event_elapsed_time(&ms, start, end));
        CHECK("what passed between", ms >= 45 && ms < 10000);
        EXPECT("without timing", run->cuda->event_elapsed_time(&ms, start, untimed),
               CUDA_ERROR_INVALID_HANDLE);
}

static void record_again(struct run *run)
{
        CUstream first, second;
        CUevent event;

        NEED(run->cuda->stream_create(&first, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->stream_create(&second, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->event_create(&event, CU_EVENT_DISABLE_TIMING));
        NEED(run->cuda->event_record(event, first));
        NEED(run->cuda->launch_host_func(second, host_sleep, (void *)(intptr_t)100));
        OK("record elsewhere", run->cuda->event_record(event, second));
        EXPECT("it shows the last recording", run->cuda->event_query(event), CUDA_ERROR_NOT_READY);
        OK("wait", run->cuda->event_synchronize(event));
        OK("its stream got there", run->cuda->stream_query(second));
}

static void wait_for_event(struct run *run)
{
        CUdeviceptr address = map_granules(run, 1);
        CUstream first, second;
        unsigned char byte = 0;
        CUevent event;

        NEED_TRUE(address != 0);
        NEED(run->cuda->stream_create(&first, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->stream_create(&second, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->event_create(&event, CU_EVENT_DISABLE_TIMING));
        OK("wait for what was never recorded", run->cuda->stream_wait_event(second, event, 0));
        OK("nothing to wait for", run->cuda->stream_synchronize(second));
        NEED(run->cuda->memset_d8(address, 0, 1));
        NEED(run->cuda->launch_host_func(first, host_sleep, (void *)(intptr_t)60));
        NEED(run->cuda->memset_d8_async(address, 1, 1, first));
        NEED(run->cuda->event_record(event, first));
        OK("wait for it", run->cuda->stream_wait_event(second, event, 0));
        /* Neither recording it again nor its end changes what was waited for. */
        NEED(run->cuda->event_destroy(event));
        NEED(run->cuda->memset_d8_async(address, 2, 1, second));
        NEED(run->cuda->stream_synchronize(second));
        NEED(run->cuda->memcpy_dtoh(&byte, address, 1));
        CHECK("in order", byte == 2);
        NEED(run->cuda->event_create(&event, 0));
        EXPECT("flags", run->cuda->stream_wait_event(second, event, 0x100),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("no event", run->cuda->stream_wait_event(second, NULL, 0), CUDA_ERROR_INVALID_HANDLE,
               CUDA_ERROR_INVALID_VALUE);
}

const struct test tests_of_events[] = {
        {"event.record_and_query", record_and_query},
        {"event.elapsed_time", elapsed_time},
        {"event.record_again", record_again},
        {"event.wait_for_event", wait_for_event},
        {NULL, NULL},
};
