/* SPDX-License-Identifier: Apache-2.0 */
/* Order and asynchrony of the simulator's streams, events and host functions. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "tests/support/sim_test.h"

#define GRANULE (64 * KIB)
#define WAIT_MS 20000

static char directory[64];

/* A host function that holds its stream until the test lets it go. */
struct gate {
        sem_t entered, open;
};

static void gate_init(struct gate *gate)
{
        sem_init(&gate->entered, 0, 0);
        sem_init(&gate->open, 0, 0);
}

static void gate_deinit(struct gate *gate)
{
        sem_destroy(&gate->entered);
        sem_destroy(&gate->open);
}

static void wait_for(sem_t *semaphore)
{
        struct timespec deadline;
        int result;

        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += WAIT_MS / 1000;
        while ((result = sem_timedwait(semaphore, &deadline)) != 0 && errno == EINTR)
                ;
        CU_ASSERT_EQUAL_FATAL(result, 0);
}

static void pass_gate(void *argument)
{
        struct gate *gate = argument;

        sem_post(&gate->entered);
        while (sem_wait(&gate->open) != 0)
                ;
}

static void set_flag(void *argument)
{
        atomic_store((atomic_int *)argument, 1);
}

/* A blocking host function blocks neither the caller nor another stream, only what is behind it. */
static void test_asynchronous(void)
{
        atomic_int behind = 0, beside = 0;
        CUstream first, second;
        struct gate gate;
        CUevent event;

        gate_init(&gate);
        OK(cuda->stream_create(&first, CU_STREAM_NON_BLOCKING));
        OK(cuda->stream_create_with_priority(&second, CU_STREAM_NON_BLOCKING, 0));
        OK(cuda->event_create(&event, CU_EVENT_DISABLE_TIMING));
        OK(cuda->event_query(event)); /* never recorded: complete */
        OK(cuda->event_synchronize(event));

        OK(cuda->launch_host_func(first, pass_gate, &gate));
        OK(cuda->launch_host_func(first, set_flag, &behind));
        OK(cuda->event_record(event, first));
        wait_for(&gate.entered);
        OK(cuda->launch_host_func(second, set_flag, &beside));
        OK(cuda->stream_synchronize(second));
        CU_ASSERT_EQUAL(atomic_load(&beside), 1);
        CU_ASSERT_EQUAL(atomic_load(&behind), 0);
        EXPECT(CUDA_ERROR_NOT_READY, cuda->stream_query(first));
        EXPECT(CUDA_ERROR_NOT_READY, cuda->event_query(event));
        OK(cuda->stream_query(second));

        sem_post(&gate.open);
        OK(cuda->event_synchronize(event));
        CU_ASSERT_EQUAL(atomic_load(&behind), 1);
        OK(cuda->event_query(event));
        OK(cuda->stream_synchronize(first));
        OK(cuda->stream_query(first));
        OK(cuda->event_destroy(event));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->event_destroy(event));
        OK(cuda->stream_destroy(first));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->stream_destroy(first));
        OK(cuda->stream_destroy(second));
        gate_deinit(&gate);
}

struct step {
        unsigned int *next;
        unsigned int expected, *wrong;
};

static void take_step(void *argument)
{
        struct step *step = argument;

        if ((*step->next)++ != step->expected)
                (*step->wrong)++;
}

static void test_order_in_a_stream(void)
{
        enum { STEPS = 3000 }; /* more than a stream holds: submitting waits, it does not fail */
        static struct step steps[STEPS];
        unsigned int next = 0, wrong = 0, i;
        CUstream stream;

        OK(cuda->stream_create(&stream, 0));
        for (i = 0; i < STEPS; i++) {
                steps[i] = (struct step){.next = &next, .expected = i, .wrong = &wrong};
                if (cuda->launch_host_func(stream, take_step, &steps[i]) != CUDA_SUCCESS)
                        wrong++;
        }
        OK(cuda->stream_synchronize(stream));
        CU_ASSERT_EQUAL(next, STEPS);
        CU_ASSERT_EQUAL(wrong, 0);
        OK(cuda->stream_destroy(stream));
}

static void test_wait_event(void)
{
        atomic_int done = 0;
        CUstream first, second;
        struct gate gate;
        CUevent event;

        gate_init(&gate);
        OK(cuda->stream_create(&first, CU_STREAM_NON_BLOCKING));
        OK(cuda->stream_create(&second, CU_STREAM_NON_BLOCKING));
        OK(cuda->event_create(&event, 0));
        OK(cuda->stream_wait_event(second, event, 0)); /* never recorded: nothing to wait for */
        OK(cuda->stream_synchronize(second));

        OK(cuda->launch_host_func(first, pass_gate, &gate));
        OK(cuda->event_record(event, first));
        OK(cuda->stream_wait_event(second, event, 0));
        /* The wait is for the recording it saw: neither moving nor destroying the event changes it.
         */
        OK(cuda->event_record(event, second));
        OK(cuda->event_destroy(event));
        OK(cuda->launch_host_func(second, set_flag, &done));
        wait_for(&gate.entered);
        sim_test_sleep_ms(20);
        CU_ASSERT_EQUAL(atomic_load(&done), 0);
        sem_post(&gate.open);
        OK(cuda->stream_synchronize(second));
        CU_ASSERT_EQUAL(atomic_load(&done), 1);
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->stream_wait_event(second, event, 0));
        OK(cuda->stream_destroy(first));
        OK(cuda->stream_destroy(second));
        gate_deinit(&gate);
}

/* The legacy default stream orders itself with blocking streams, both ways, and with no others. */
static void test_null_stream(void)
{
        atomic_int null_done = 0, after_done = 0, free_done = 0;
        CUstream blocking, free_stream;
        struct gate gate;

        gate_init(&gate);
        OK(cuda->stream_create(&blocking, CU_STREAM_DEFAULT));
        OK(cuda->stream_create(&free_stream, CU_STREAM_NON_BLOCKING));
        OK(cuda->launch_host_func(blocking, pass_gate, &gate));
        OK(cuda->launch_host_func(NULL, set_flag, &null_done));
        OK(cuda->launch_host_func(free_stream, set_flag, &free_done));
        OK(cuda->stream_synchronize(free_stream));
        CU_ASSERT_EQUAL(atomic_load(&free_done), 1);
        wait_for(&gate.entered);
        sim_test_sleep_ms(20);
        CU_ASSERT_EQUAL(atomic_load(&null_done), 0);
        EXPECT(CUDA_ERROR_NOT_READY, cuda->stream_query(NULL));
        sem_post(&gate.open);
        OK(cuda->stream_synchronize(NULL));
        CU_ASSERT_EQUAL(atomic_load(&null_done), 1);

        OK(cuda->launch_host_func(CU_STREAM_LEGACY, pass_gate, &gate));
        OK(cuda->launch_host_func(blocking, set_flag, &after_done));
        wait_for(&gate.entered);
        sim_test_sleep_ms(20);
        CU_ASSERT_EQUAL(atomic_load(&after_done), 0);
        sem_post(&gate.open);
        OK(cuda->ctx_synchronize());
        CU_ASSERT_EQUAL(atomic_load(&after_done), 1);
        OK(cuda->stream_destroy(blocking));
        OK(cuda->stream_destroy(free_stream));
        gate_deinit(&gate);
}

/* --- default streams of threads ---
 */

static void *use_own_default_stream(void *argument)
{
        struct gate *gate = argument;
        atomic_int done = 0;

        REQUIRE(cuda->ctx_set_current(sim_test_context));
        REQUIRE(cuda->launch_host_func(CU_STREAM_PER_THREAD, pass_gate, gate));
        wait_for(&gate->entered);
        if (cuda->stream_query(CU_STREAM_PER_THREAD) != CUDA_ERROR_NOT_READY)
                return "the gate was no work";
        sem_post(&gate->open);
        REQUIRE(cuda->launch_host_func(CU_STREAM_PER_THREAD, set_flag, &done));
        REQUIRE(cuda->stream_synchronize(CU_STREAM_PER_THREAD));
        return atomic_load(&done) ? NULL : "work behind the gate is not done";
}

/* One per thread: the work of another thread's does not hold up ours; the legacy one waits for all.
 */
static void test_per_thread_streams(void)
{
        struct gate gate, other;
        atomic_int done = 0;
        pthread_t thread;
        void *wrong;
        int i;

        gate_init(&gate);
        gate_init(&other);
        OK(cuda->launch_host_func(CU_STREAM_PER_THREAD, pass_gate, &gate));
        wait_for(&gate.entered);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, use_own_default_stream, &other), 0);
        CU_ASSERT_EQUAL(pthread_join(thread, &wrong), 0);
        CU_ASSERT_PTR_NULL(wrong);
        OK(cuda->launch_host_func(NULL, set_flag, &done));
        sim_test_sleep_ms(20);
        CU_ASSERT_EQUAL(atomic_load(&done), 0);
        sem_post(&gate.open);
        OK(cuda->stream_synchronize(NULL));
        CU_ASSERT_EQUAL(atomic_load(&done), 1);
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->stream_destroy(CU_STREAM_PER_THREAD));
        gate_deinit(&gate);
        gate_deinit(&other);

        /* The streams of threads that are gone take no place: 1,024 are all a context has. */
        for (i = 0; i < 1100; i++) {
                gate_init(&other);
                CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, use_own_default_stream, &other),
                                      0);
                CU_ASSERT_EQUAL(pthread_join(thread, &wrong), 0);
                CU_ASSERT_PTR_NULL_FATAL(wrong);
                gate_deinit(&other);
        }
}

/* --- interleaving ---
 */

#define ROUNDS 40
#define STEPS  24

struct mark {
        atomic_uint *next;
        unsigned int at;
};

static void take_number(void *argument)
{
        struct mark *mark = argument;

        mark->at = atomic_fetch_add(mark->next, 1);
}

/* Two streams without an order between them meet in many orders, each in its own. */
static void test_interleaving(void)
{
        uint32_t seen[ROUNDS];
        unsigned int distinct = 0, round, i, j;

        for (round = 0; round < ROUNDS; round++) {
                struct mark marks[2][STEPS];
                atomic_uint next = 0;
                CUstream streams[2];

                OK(cuda->stream_create(&streams[0], CU_STREAM_NON_BLOCKING));
                OK(cuda->stream_create(&streams[1], CU_STREAM_NON_BLOCKING));
                for (i = 0; i < STEPS; i++)
                        for (j = 0; j < 2; j++) {
                                marks[j][i].next = &next;
                                OK(cuda->launch_host_func(streams[j], take_number, &marks[j][i]));
                        }
                OK(cuda->ctx_synchronize());
                seen[round] = 0;
                for (i = 0; i < STEPS; i++) {
                        seen[round] |= (uint32_t)(marks[0][i].at < marks[1][i].at) << i;
                        for (j = 0; j < 2; j++)
                                CU_ASSERT(i == 0 || marks[j][i].at > marks[j][i - 1].at);
                }
                for (i = 0; i < round && seen[i] != seen[round]; i++)
                        ;
                distinct += i == round;
                OK(cuda->stream_destroy(streams[0]));
                OK(cuda->stream_destroy(streams[1]));
        }
        CU_ASSERT(distinct >= 5);
}

static void pause_briefly(void *argument)
{
        (void)argument;
        sim_test_sleep_ms(30);
}

static void test_elapsed_time(void)
{
        float milliseconds = -1;
        CUevent start, end, untimed;
        CUstream stream;

        OK(cuda->stream_create(&stream, 0));
        OK(cuda->event_create(&start, 0));
        OK(cuda->event_create(&end, 0));
        OK(cuda->event_create(&untimed, CU_EVENT_DISABLE_TIMING));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->event_elapsed_time(&milliseconds, start, end));
        OK(cuda->event_record(start, stream));
        OK(cuda->launch_host_func(stream, pause_briefly, NULL));
        OK(cuda->event_record(end, stream));
        EXPECT(CUDA_ERROR_NOT_READY, cuda->event_elapsed_time(&milliseconds, start, end));
        OK(cuda->event_synchronize(end));
        OK(cuda->event_elapsed_time(&milliseconds, start, end));
        CU_ASSERT(milliseconds >= 29.0f);
        OK(cuda->event_record(untimed, stream));
        OK(cuda->event_synchronize(untimed));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->event_elapsed_time(&milliseconds, start, untimed));
        OK(cuda->event_destroy(start));
        OK(cuda->event_destroy(end));
        OK(cuda->event_destroy(untimed));
        OK(cuda->stream_destroy(stream));
}

struct forbidden {
        CUresult alloc, create, record, synchronize, current;
        CUevent event;
};

static void call_cuda(void *argument)
{
        CUmemAllocationProp properties = sim_test_properties();
        struct forbidden *results = argument;
        CUmemGenericAllocationHandle handle;
        CUdeviceptr pointer;
        CUcontext context;

        results->alloc = cuda->mem_alloc(&pointer, 1);
        results->create = cuda->mem_create(&handle, GRANULE, &properties, 0);
        results->record = cuda->event_record(results->event, NULL);
        results->synchronize = cuda->ctx_synchronize();
        results->current = cuda->ctx_get_current(&context);
}

static void test_no_cuda_in_host_functions(void)
{
        struct forbidden results = {0};
        CUstream stream;

        OK(cuda->stream_create(&stream, 0));
        OK(cuda->event_create(&results.event, 0));
        OK(cuda->launch_host_func(stream, call_cuda, &results));
        OK(cuda->stream_synchronize(stream));
        EXPECT(CUDA_ERROR_NOT_PERMITTED, results.alloc);
        EXPECT(CUDA_ERROR_NOT_PERMITTED, results.create);
        EXPECT(CUDA_ERROR_NOT_PERMITTED, results.record);
        EXPECT(CUDA_ERROR_NOT_PERMITTED, results.synchronize);
        EXPECT(CUDA_ERROR_NOT_PERMITTED, results.current);
        OK(cuda->event_destroy(results.event));
        OK(cuda->stream_destroy(stream));
}

/* Pageable source: staged before the call returns. Pinned source: read when the copy runs. */
static void test_async_copy_sources(void)
{
        static uint32_t pageable;
        CUdeviceptr va = sim_test_map(GRANULE, 1);
        uint32_t *view = cuda->host_view(va, GRANULE);
        void *memory;
        uint32_t *pinned;
        CUstream stream;
        struct gate gate;

        gate_init(&gate);
        OK(cuda->stream_create(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuda->mem_host_alloc(&memory, 4096, 0));
        pinned = memory;
        pageable = 1;
        pinned[0] = 1;
        OK(cuda->launch_host_func(stream, pass_gate, &gate));
        OK(cuda->memcpy_htod_async(va, &pageable, sizeof(pageable), stream));
        OK(cuda->memcpy_htod_async(va + 4, pinned, sizeof(*pinned), stream));
        OK(cuda->memcpy_dtoh_async(&pinned[1], va, sizeof(*pinned), stream));
        pageable = 2;
        pinned[0] = 2;
        CU_ASSERT_EQUAL(view[0], 0xffffffff);
        sem_post(&gate.open);
        OK(cuda->stream_synchronize(stream));
        CU_ASSERT_EQUAL(view[0], 1);
        CU_ASSERT_EQUAL(view[1], 2);
        CU_ASSERT_EQUAL(pinned[1], 1);
        OK(cuda->mem_free_host(memory));
        OK(cuda->stream_destroy(stream));
        sim_test_unmap(va, GRANULE);
        gate_deinit(&gate);
}

/* Destroying a stream returns at once; its work still comes to its end. */
static void test_destroy_with_work(void)
{
        atomic_int done = 0;
        CUstream stream;
        struct gate gate;
        unsigned int i;

        gate_init(&gate);
        OK(cuda->stream_create(&stream, 0));
        OK(cuda->launch_host_func(stream, pass_gate, &gate));
        OK(cuda->launch_host_func(stream, set_flag, &done));
        OK(cuda->stream_destroy(stream));
        EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda->launch_host_func(stream, set_flag, &done));
        CU_ASSERT_EQUAL(atomic_load(&done), 0);
        sem_post(&gate.open);
        OK(cuda->ctx_synchronize());
        CU_ASSERT_EQUAL(atomic_load(&done), 1);
        /* No limit is used up by streams that are gone. */
        for (i = 0; i < 1500; i++) {
                OK(cuda->stream_create(&stream, 0));
                if (i % 100 == 0)
                        OK(cuda->launch_host_func(stream, set_flag, &done));
                OK(cuda->stream_destroy(stream));
        }
        OK(cuda->ctx_synchronize());
        gate_deinit(&gate);
}

/* --- many threads --------------------------------------------------------------------------------
 */

static atomic_uint wrong_results;

static void *hammer(void *argument)
{
        unsigned int thread = (unsigned int)(uintptr_t)argument, i;
        CUstream stream, other;
        CUdeviceptr va;
        CUevent event;
        int wrong = 0;

        wrong |= cuda->ctx_set_current(sim_test_context);
        wrong |= cuda->stream_create(&stream, thread & 1 ? CU_STREAM_NON_BLOCKING : 0);
        wrong |= cuda->stream_create(&other, CU_STREAM_NON_BLOCKING);
        wrong |= cuda->event_create(&event, 0);
        wrong |= cuda->mem_alloc(&va, 4096);
        for (i = 0; i < 100; i++) {
                uint32_t value = thread * 1000 + i, seen = 0;

                wrong |= cuda->memset_d32_async(va, value, 16, stream);
                wrong |= cuda->event_record(event, stream);
                wrong |= cuda->stream_wait_event(other, event, 0);
                wrong |= cuda->memcpy_dtod_async(va + 64, va, 64, other);
                wrong |= cuda->event_record(event, other);
                wrong |= cuda->event_synchronize(event);
                wrong |= cuda->memcpy_dtoh(&seen, va + 124, sizeof(seen));
                if (seen != value)
                        atomic_fetch_add(&wrong_results, 1);
        }
        wrong |= cuda->mem_free(va);
        wrong |= cuda->event_destroy(event);
        wrong |= cuda->stream_destroy(stream);
        wrong |= cuda->stream_destroy(other);
        if (wrong != 0)
                atomic_fetch_add(&wrong_results, 1);
        return NULL;
}

static void test_threads(void)
{
        pthread_t threads[4];
        size_t i;

        for (i = 0; i < 4; i++)
                CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, hammer, (void *)i), 0);
        for (i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        CU_ASSERT_EQUAL(atomic_load(&wrong_results), 0);
}

int main(void)
{
        CU_pSuite suite;

        sim_test_environment(directory, "16M", "64K");
        sim_test_start();
        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("simulated streams", NULL, NULL);
        CU_add_test(suite, "asynchronous", test_asynchronous);
        CU_add_test(suite, "order in a stream, beyond its queue", test_order_in_a_stream);
        CU_add_test(suite, "waiting for an event", test_wait_event);
        CU_add_test(suite, "the null stream", test_null_stream);
        CU_add_test(suite, "default streams of threads", test_per_thread_streams);
        CU_add_test(suite, "streams interleave", test_interleaving);
        CU_add_test(suite, "elapsed time", test_elapsed_time);
        CU_add_test(suite, "no CUDA calls in host functions", test_no_cuda_in_host_functions);
        CU_add_test(suite, "sources of asynchronous copies", test_async_copy_sources);
        CU_add_test(suite, "destroying a stream with work", test_destroy_with_work);
        CU_add_test(suite, "four threads at once", test_threads);
        return sim_test_finish(directory);
}
