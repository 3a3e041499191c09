/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and host functions. */
#include <stdatomic.h>

#include "tests/conformance/conformance.h"

struct gate {
        atomic_int entered, open, left;
};

static void pass(void *argument)
{
        struct gate *gate = argument;
        int patience = 20000;

        atomic_store(&gate->entered, 1);
        while (!atomic_load(&gate->open) && patience-- > 0)
                sleep_ms(1);
        atomic_store(&gate->left, 1);
}

static void set(void *argument)
{
        atomic_store((atomic_int *)argument, 1);
}

static void create_and_destroy(struct run *run)
{
        CUstream stream = NULL, other = NULL;

        OK("create", run->cuda->stream_create(&stream, CU_STREAM_DEFAULT));
        OK("another", run->cuda->stream_create(&other, CU_STREAM_NON_BLOCKING));
        CHECK("two", stream && other && stream != other);
        OK("query an empty one", run->cuda->stream_query(stream));
        OK("wait for it", run->cuda->stream_synchronize(stream));
        OK("destroy", run->cuda->stream_destroy(stream));
        OK("destroy the other", run->cuda->stream_destroy(other));
        OK("with priority", run->cuda->stream_create_with_priority(&stream, 0, 0));
        OK("a priority beyond the range", run->cuda->stream_create_with_priority(&other, 0, -1000));
        EXPECT("flags", run->cuda->stream_create(&stream, 0x100), CUDA_ERROR_INVALID_VALUE);
        EXPECT("nowhere", run->cuda->stream_create(NULL, 0), CUDA_ERROR_INVALID_VALUE);
        EXPECT("destroy the default stream", run->cuda->stream_destroy(NULL),
               CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_CONTEXT);
}

static void asynchronous(struct run *run)
{
        static struct gate gate;
        static atomic_int behind;
        CUstream stream;

        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        OK("launch", run->cuda->launch_host_func(stream, pass, &gate));
        OK("launch behind it", run->cuda->launch_host_func(stream, set, &behind));
        EXPECT("query", run->cuda->stream_query(stream), CUDA_ERROR_NOT_READY);
        CHECK("nothing behind it ran", atomic_load(&behind) == 0);
        atomic_store(&gate.open, 1);
        OK("wait", run->cuda->stream_synchronize(stream));
        CHECK("both ran", atomic_load(&gate.left) && atomic_load(&behind));
        OK("query again", run->cuda->stream_query(stream));
}

static void two_streams(struct run *run)
{
        static struct gate gate;
        static atomic_int other_ran;
        CUstream stream, other;

        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->stream_create(&other, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->launch_host_func(stream, pass, &gate));
        NEED(run->cuda->launch_host_func(other, set, &other_ran));
        /* A real driver may run host functions of all streams on one thread. */
        if (run->strict) {
                OK("the other goes on", run->cuda->stream_synchronize(other));
                CHECK("it ran", atomic_load(&other_ran) == 1);
        }
        atomic_store(&gate.open, 1);
        OK("wait for all", run->cuda->ctx_synchronize());
        CHECK("all ran", atomic_load(&gate.left) && atomic_load(&other_ran));
}

static void default_stream(struct run *run)
{
        static struct gate gate;
        static atomic_int after;
        CUstream blocking;

        NEED(run->cuda->stream_create(&blocking, CU_STREAM_DEFAULT));
        NEED(run->cuda->launch_host_func(blocking, pass, &gate));
        OK("to the default stream", run->cuda->launch_host_func(NULL, set, &after));
        sleep_ms(20);
        CHECK("it waits for blocking streams", atomic_load(&after) == 0);
        EXPECT("query it", run->cuda->stream_query(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
        atomic_store(&gate.open, 1);
        OK("wait", run->cuda->stream_synchronize(NULL));
        CHECK("it ran", atomic_load(&after) == 1);
}

static void per_thread_stream(struct run *run)
{
        static atomic_int ran;

        OK("launch", run->cuda->launch_host_func(CU_STREAM_PER_THREAD, set, &ran));
        OK("wait", run->cuda->stream_synchronize(CU_STREAM_PER_THREAD));
        CHECK("it ran", atomic_load(&ran) == 1);
        OK("query", run->cuda->stream_query(CU_STREAM_PER_THREAD));
}

struct inside {
        struct run *run;
        CUresult result;
};

static void call_cuda(void *argument)
{
        struct inside *inside = argument;

        inside->result = inside->run->cuda->stream_query(NULL);
}

static void no_calls_in_host_functions(struct run *run)
{
        static struct inside inside;
        CUstream stream;

        inside.run = run;
        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->launch_host_func(stream, call_cuda, &inside));
        NEED(run->cuda->stream_synchronize(stream));
        EXPECT("a call inside", inside.result, CUDA_ERROR_NOT_PERMITTED);
        EXPECT("no function", run->cuda->launch_host_func(stream, NULL, NULL),
               CUDA_ERROR_INVALID_VALUE);
}

static void destroy_with_work(struct run *run)
{
        static struct gate gate;
        CUstream stream;

        NEED(run->cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        NEED(run->cuda->launch_host_func(stream, pass, &gate));
        OK("destroy", run->cuda->stream_destroy(stream));
        CHECK("returned before the work was done", atomic_load(&gate.left) == 0);
        atomic_store(&gate.open, 1);
        OK("wait for the context", run->cuda->ctx_synchronize());
        CHECK("the work was done", atomic_load(&gate.left) == 1);
}

const struct test tests_of_streams[] = {
        {"stream.create_and_destroy", create_and_destroy},
        {"stream.asynchronous", asynchronous},
        {"stream.two_streams", two_streams},
        {"stream.default_stream", default_stream},
        {"stream.per_thread", per_thread_stream},
        {"stream.no_calls_in_host_functions", no_calls_in_host_functions},
        {"stream.destroy_with_work", destroy_with_work},
        {NULL, NULL},
};
