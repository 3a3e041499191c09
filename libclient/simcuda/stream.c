/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/stream.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/simcuda/event.h"
#include "libclient/simcuda/inject.h"

struct stream {
        struct stream *next; /* of the context */
        struct context *context;
        uint64_t handle;     /* 0: null stream, or destroyed */
        uint32_t references; /* the context's list, the worker, dependencies and event records */
        bool blocking;       /* takes part in the null stream's order */
        bool closing;        /* no new work; the worker ends when the queue is empty */
        bool has_worker;
        bool running; /* an operation is being run, by the worker or by a synchronous caller */
        uint64_t submitted, completed; /* sequence numbers; nothing pending when equal */
        struct operation *first, *last;
        pthread_cond_t work;     /* for the worker: the queue grew, or closing */
        pthread_cond_t progress; /* for everybody else: completed grew, or running ended */
        uint64_t random;
};

struct dependency {
        struct dependency *next;
        struct stream *stream;
        uint64_t sequence;
};

static struct sim_handles stream_handles = {.kind = SIM_HANDLE_STREAM}; /* work lock */
static uint64_t streams_made;                                           /* work lock */
/* Read by the fault handler: must not be allocated on first use. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct context *running_context;

struct context *stream_running_context(void)
{
        return running_context;
}

/* --- all below with the work lock held, unless it says otherwise
 * ---------------------------------- */

static struct stream *stream_new(struct context *context, bool blocking)
{
        struct stream *stream = calloc(1, sizeof(*stream));

        if (!stream)
                return NULL;
        stream->context = context;
        stream->blocking = blocking;
        stream->references = 1;
        stream->random = sim.config.seed * UINT64_C(0x9e3779b97f4a7c15) + ++streams_made;
        pthread_cond_init(&stream->work, NULL);
        pthread_cond_init(&stream->progress, NULL);
        stream->next = context->streams;
        context->streams = stream;
        return stream;
}

void stream_ref(struct stream *stream)
{
        stream->references++;
}

bool stream_reached(const struct stream *stream, uint64_t sequence)
{
        return stream->completed >= sequence;
}

struct context *stream_context(const struct stream *stream)
{
        return stream->context;
}

/* Not inlined: the compiler cannot see that two in a row end two different references. */
__attribute__((noinline)) void stream_unref(struct stream *stream)
{
        if (--stream->references != 0)
                return;
        pthread_cond_destroy(&stream->work);
        pthread_cond_destroy(&stream->progress);
#ifndef __clang_analyzer__ /* it does not count references and sees a use after free in every pair \
                            */
        free(stream);
#endif
}

/* Takes a stream off its context's list, if it is still there, with the list's reference. */
static void unlink_stream(struct stream *stream)
{
        struct stream **link = &stream->context->streams;

        while (*link && *link != stream)
                link = &(*link)->next;
        if (*link) {
                *link = stream->next;
                stream_unref(stream);
        }
}

CUresult stream_new_null(struct context *context)
{
        context->null_stream = stream_new(context, true);
        return context->null_stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- the default stream of a thread ---
 */

#define THREAD_STREAMS_MAX 64 /* contexts that one thread uses so */

struct thread_stream {
        struct context *context;
        uint32_t generation; /* of the context */
        struct stream *stream;
};
/* An array, allocated at first use: thread-local memory of a library is scarce. */
static _Thread_local struct thread_stream *thread_streams;
static pthread_key_t thread_end;

static void close_stream(struct stream *stream);

static bool is_current(const struct thread_stream *mine)
{
        return mine->context && mine->context->alive &&
               mine->context->generation == mine->generation;
}

/* A thread ends: so do its streams, once their work is done. Takes the work lock. */
static void end_thread_streams(void *argument)
{
        struct thread_stream *streams = argument;
        size_t i;

        if (atomic_load(&sim.state) != SIM_READY)
                return;
        pthread_mutex_lock(&sim.work_lock);
        for (i = 0; i < THREAD_STREAMS_MAX; i++) {
                const struct thread_stream *mine = &streams[i];

                if (!is_current(mine))
                        continue;
                close_stream(mine->stream);
                if (!mine->stream->has_worker && !mine->stream->running)
                        unlink_stream(mine->stream);
        }
        pthread_mutex_unlock(&sim.work_lock);
        free(streams);
}

static void make_key(void)
{
        (void)pthread_key_create(&thread_end, end_thread_streams);
}

/* CU_STREAM_PER_THREAD: a blocking stream per thread and context, made at first use. */
static CUresult stream_of_thread(struct context *context, struct stream **out)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        struct thread_stream *free_entry = NULL;
        size_t i;

        if (!context->alive)
                return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        if (!thread_streams) {
                thread_streams = calloc(THREAD_STREAMS_MAX, sizeof(*thread_streams));
                pthread_once(&once, make_key);
                if (!thread_streams || pthread_setspecific(thread_end, thread_streams) != 0) {
                        free(thread_streams);
                        thread_streams = NULL;
                        return CUDA_ERROR_OUT_OF_MEMORY;
                }
        }
        for (i = 0; i < THREAD_STREAMS_MAX; i++) {
                struct thread_stream *mine = &thread_streams[i];

                if (is_current(mine) && mine->context == context) {
                        *out = mine->stream;
                        return CUDA_SUCCESS;
                }
                if (!is_current(mine) && !free_entry)
                        free_entry = mine;
        }
        if (!free_entry)
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY,
                                "a thread has default streams in at most %d contexts",
                                THREAD_STREAMS_MAX);
        *out = stream_new(context, true);
        if (!*out)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *free_entry = (struct thread_stream){
                .context = context, .generation = context->generation, .stream = *out};
        return CUDA_SUCCESS;
}

/* The stream of a handle as seen from a context. */
static CUresult resolve(struct context *context, CUstream handle, struct stream **out)
{
        struct stream *stream;

        if (!handle || handle == CU_STREAM_LEGACY) {
                if (!context->alive)
                        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
                *out = context->null_stream;
                return CUDA_SUCCESS;
        }
        if (handle == CU_STREAM_PER_THREAD)
                return stream_of_thread(context, out);
        stream = sim_handles_get(&stream_handles, (uint64_t)(uintptr_t)handle);
        if (!stream)
                return CUDA_ERROR_INVALID_HANDLE;
        if (stream->context != context)
                return sim_fail(CUDA_ERROR_INVALID_HANDLE,
                                "the stream belongs to another context than the current one");
        *out = stream;
        return CUDA_SUCCESS;
}

bool stream_depend(struct operation *operation, struct stream *stream, uint64_t sequence)
{
        struct dependency *dependency;

        if (stream->completed >= sequence)
                return true;
        dependency = malloc(sizeof(*dependency));
        if (!dependency)
                return false;
        stream->references++;
        *dependency = (struct dependency){
                .next = operation->dependencies, .stream = stream, .sequence = sequence};
        operation->dependencies = dependency;
        return true;
}

static void drop_dependencies(struct operation *operation)
{
        while (operation->dependencies) {
                struct dependency *dependency = operation->dependencies;

                operation->dependencies = dependency->next;
                stream_unref(dependency->stream);
                free(dependency);
        }
}

static void operation_free(struct operation *operation)
{
        drop_dependencies(operation);
        if (operation->discard)
                operation->discard(operation);
        free(operation);
}

/* What the null stream's order asks of an operation that is about to be submitted. */
static bool order_with_null_stream(struct stream *stream, struct operation *operation)
{
        struct context *context = stream->context;
        struct stream *other;

        if (!stream->blocking)
                return true;
        if (stream != context->null_stream)
                return !context->null_stream || stream_depend(operation, context->null_stream,
                                                              context->null_stream->submitted);
        for (other = context->streams; other; other = other->next)
                if (other != stream && other->blocking &&
                    !stream_depend(operation, other, other->submitted))
                        return false;
        return true;
}

static void wait_for_dependencies(struct operation *operation)
{
        const struct dependency *dependency;

        for (dependency = operation->dependencies; dependency; dependency = dependency->next)
                while (dependency->stream->completed < dependency->sequence)
                        pthread_cond_wait(&dependency->stream->progress, &sim.work_lock);
        drop_dependencies(operation);
}

/* Microseconds to pause before an operation: mostly none, now and then enough to lose a race. */
static unsigned int pause_us(struct stream *stream)
{
        uint64_t x;

        if (sim.config.seed == 0)
                return 0;
        /* splitmix64 */
        x = stream->random += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        x ^= x >> 31;
        return x % 16 == 0 ? (unsigned int)((x >> 32) % sim.config.pause_us) + 1 : 0;
}

/* Runs one operation, lock released meanwhile; `stream->running` is set by the caller. */
static void run_operation(struct stream *stream, struct operation *operation, unsigned int us)
{
        struct context *context = stream->context;
        CUresult result;

        pthread_mutex_unlock(&sim.work_lock);
        if (us != 0) {
                struct timespec pause = {.tv_nsec = (long)us * 1000};

                nanosleep(&pause, NULL);
        }
        /* Work behind an illegal access never happens, but it does come to its end. */
        if (atomic_load(&context->error) == CUDA_SUCCESS) {
                struct context *before = running_context;

                running_context = context;
                result = inject_operation(context);
                if (result == CUDA_SUCCESS)
                        result = operation->run(context, operation);
                running_context = before;
                if (result != CUDA_SUCCESS)
                        context_poison(context, result);
        }
        pthread_mutex_lock(&sim.work_lock);
        stream->completed = operation->sequence;
        stream->running = false;
        pthread_cond_broadcast(&stream->progress);
        operation_free(operation);
}

static void *worker(void *argument)
{
        struct stream *stream = argument;

        pthread_mutex_lock(&sim.work_lock);
        for (;;) {
                struct operation *operation;

                while (!stream->first && !stream->closing)
                        pthread_cond_wait(&stream->work, &sim.work_lock);
                if (!stream->first)
                        break;
                operation = stream->first;
                stream->first = operation->next;
                if (!stream->first)
                        stream->last = NULL;
                while (stream->running) /* by a synchronous caller */
                        pthread_cond_wait(&stream->progress, &sim.work_lock);
                wait_for_dependencies(operation);
                stream->running = true;
                run_operation(stream, operation, pause_us(stream));
        }
        stream->has_worker = false;
        pthread_cond_broadcast(&stream->progress);
        unlink_stream(stream);
        stream_unref(stream);
        pthread_mutex_unlock(&sim.work_lock);
        return NULL;
}

static CUresult start_worker(struct stream *stream)
{
        pthread_attr_t attributes;
        sigset_t all, before;
        pthread_t thread;
        int error;

        if (stream->has_worker)
                return CUDA_SUCCESS;
        /* The program's signals are the program's threads' business; faults are ours. */
        sigfillset(&all);
        sigdelset(&all, SIGSEGV);
        sigdelset(&all, SIGBUS);
        sigdelset(&all, SIGFPE);
        sigdelset(&all, SIGILL);
        sigdelset(&all, SIGABRT);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&thread, &attributes, worker, stream);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
        if (error != 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "no thread for a stream: %s",
                                strerror(error));
        stream->has_worker = true;
        stream->references++;
        return CUDA_SUCCESS;
}

/*
 * Gives the operation its place in the order. If it may run here and nothing precedes it, it is not
 * queued: the stream is marked running and the caller runs it.
 */
static CUresult place(struct stream *stream, struct operation *operation, bool may_run_here,
                      bool *run_here)
{
        CUresult result;

        *run_here = false;
        while (stream->submitted - stream->completed >= STREAM_PENDING_MAX && !stream->closing)
                pthread_cond_wait(&stream->progress, &sim.work_lock);
        if (stream->closing)
                return CUDA_ERROR_INVALID_HANDLE;
        if (!order_with_null_stream(stream, operation))
                return CUDA_ERROR_OUT_OF_MEMORY;
        if (may_run_here && !operation->dependencies && stream->submitted == stream->completed) {
                *run_here = true;
                stream->running = true;
        } else {
                result = start_worker(stream);
                if (result != CUDA_SUCCESS)
                        return result;
        }
        operation->sequence = ++stream->submitted;
        if (operation->placed)
                operation->placed(operation, stream);
        if (*run_here)
                return CUDA_SUCCESS;
        operation->next = NULL;
        if (stream->last)
                stream->last->next = operation;
        else
                stream->first = operation;
        stream->last = operation;
        pthread_cond_signal(&stream->work);
        return CUDA_SUCCESS;
}

void stream_wait_until(struct stream *stream, uint64_t sequence)
{
        while (stream->completed < sequence)
                pthread_cond_wait(&stream->progress, &sim.work_lock);
}

/* --- without the lock ----------------------------------------------------------------------------
 */

static CUresult submit(struct context *context, CUstream handle, struct operation *operation,
                       bool wait)
{
        struct stream *stream = NULL;
        bool run_here = false;
        CUresult result;

        pthread_mutex_lock(&sim.work_lock);
        result = resolve(context, handle, &stream);
        if (result == CUDA_SUCCESS) {
                stream->references++; /* another thread may destroy it while this one waits */
                result = place(stream, operation, wait, &run_here);
        }
        if (result != CUDA_SUCCESS) {
                operation_free(operation);
        } else if (run_here) {
                run_operation(stream, operation, 0);
                if (stream->closing && !stream->has_worker)
                        unlink_stream(stream);
        } else if (wait) {
                stream_wait_until(stream, stream->submitted);
        }
        if (stream)
                stream_unref(stream);
        pthread_mutex_unlock(&sim.work_lock);
        if (result == CUDA_SUCCESS && wait)
                result = (CUresult)atomic_load(&context->error);
        return result;
}

CUresult stream_submit(struct context *context, CUstream handle, struct operation *operation)
{
        return submit(context, handle, operation, false);
}

CUresult stream_run(struct context *context, CUstream handle, struct operation *operation)
{
        return submit(context, handle, operation, true);
}

CUresult stream_wait(struct context *context, CUstream handle)
{
        struct stream *stream;
        CUresult result;

        pthread_mutex_lock(&sim.work_lock);
        result = resolve(context, handle, &stream);
        if (result == CUDA_SUCCESS) {
                stream->references++;
                stream_wait_until(stream, stream->submitted);
                stream_unref(stream);
        }
        pthread_mutex_unlock(&sim.work_lock);
        return result == CUDA_SUCCESS ? (CUresult)atomic_load(&context->error) : result;
}

CUresult streams_of_context_synchronize(struct context *context)
{
        struct stream *stream;

        pthread_mutex_lock(&sim.work_lock);
again:
        for (stream = context->streams; stream; stream = stream->next) {
                if (stream->submitted == stream->completed)
                        continue;
                stream->references++;
                stream_wait_until(stream, stream->submitted);
                stream_unref(stream);
                goto again; /* the list may have changed meanwhile */
        }
        pthread_mutex_unlock(&sim.work_lock);
        return (CUresult)atomic_load(&context->error);
}

/* Work lock held: no handle leads here any more, queued work still runs. */
static void close_stream(struct stream *stream)
{
        if (stream->handle != 0)
                sim_handles_remove(&stream_handles, stream->handle);
        stream->handle = 0;
        stream->closing = true;
        pthread_cond_signal(&stream->work);
        pthread_cond_broadcast(&stream->progress);
}

void streams_of_context_end(struct context *context)
{
        struct stream *stream;

        pthread_mutex_lock(&sim.work_lock);
        for (stream = context->streams; stream; stream = stream->next)
                if (!stream->closing)
                        close_stream(stream);
        while ((stream = context->streams) != NULL) {
                stream->references++;
                while (stream->has_worker || stream->running)
                        pthread_cond_wait(&stream->progress, &sim.work_lock);
                unlink_stream(stream); /* unless its worker did */
                stream_unref(stream);
        }
        context->null_stream = NULL;
        events_of_context_end(context);
        pthread_mutex_unlock(&sim.work_lock);
}

/* --- the ABI -------------------------------------------------------------------------------------
 */

SIM_API(cuStreamCreateWithPriority, (CUstream * out, unsigned int flags, int priority),
        (out, flags, priority))
{
        struct context *context;
        struct stream *stream, *other;
        CUresult result = context_enter(&context);
        uint32_t count = 0;

        (void)priority; /* clamped to the range, which is one value */
        if (result != CUDA_SUCCESS)
                return result;
        if (!out || (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING))
                return CUDA_ERROR_INVALID_VALUE;

        pthread_mutex_lock(&sim.work_lock);
        for (other = context->streams; other; other = other->next)
                count++;
        stream =
                count < STREAMS_MAX ? stream_new(context, !(flags & CU_STREAM_NON_BLOCKING)) : NULL;
        if (stream) {
                stream->handle = sim_handles_add(&stream_handles, stream);
                *out = (CUstream)(uintptr_t)stream->handle;
        }
        if (stream && stream->handle == 0) {
                unlink_stream(stream);
                stream = NULL;
        }
        pthread_mutex_unlock(&sim.work_lock);
        if (!stream)
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY, "no stream beyond %u in a context",
                                count);
        return CUDA_SUCCESS;
}

SIM_API(cuStreamCreate, (CUstream * out, unsigned int flags), (out, flags))
{
        return cuStreamCreateWithPriority(out, flags, 0);
}

/* Returns at once; the stream's work still comes to its end. */
SIM_API(cuStreamDestroy_v2, (CUstream handle), (handle))
{
        struct context *context;
        struct stream *stream;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
                return CUDA_ERROR_INVALID_HANDLE;
        pthread_mutex_lock(&sim.work_lock);
        result = resolve(context, handle, &stream);
        if (result == CUDA_SUCCESS) {
                close_stream(stream);
                /* With work pending it stays on the list, so that the context can wait for it. */
                if (!stream->has_worker && !stream->running)
                        unlink_stream(stream);
        }
        pthread_mutex_unlock(&sim.work_lock);
        return result;
}
SIM_ALIAS(cuStreamDestroy, cuStreamDestroy_v2);

SIM_API(cuStreamSynchronize, (CUstream handle), (handle))
{
        struct context *context;
        CUresult result = context_enter(&context);

        return result == CUDA_SUCCESS ? stream_wait(context, handle) : result;
}

SIM_API(cuStreamQuery, (CUstream handle), (handle))
{
        struct context *context;
        struct stream *stream;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        pthread_mutex_lock(&sim.work_lock);
        result = resolve(context, handle, &stream);
        if (result == CUDA_SUCCESS && stream->completed != stream->submitted)
                result = CUDA_ERROR_NOT_READY;
        pthread_mutex_unlock(&sim.work_lock);
        return result;
}

SIM_API(cuStreamGetFlags, (CUstream handle, unsigned int *flags), (handle, flags))
{
        struct context *context;
        struct stream *stream;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!flags)
                return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&sim.work_lock);
        result = resolve(context, handle, &stream);
        if (result == CUDA_SUCCESS)
                *flags = stream->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
        pthread_mutex_unlock(&sim.work_lock);
        return result;
}

SIM_API(cuStreamGetCtx, (CUstream handle, CUcontext *out), (handle, out))
{
        struct context *context;
        struct stream *stream;
        CUresult result = context_enter(&context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!out)
                return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&sim.work_lock);
        result = resolve(context, handle, &stream);
        if (result == CUDA_SUCCESS)
                *out = context_handle(stream->context);
        pthread_mutex_unlock(&sim.work_lock);
        return result;
}
