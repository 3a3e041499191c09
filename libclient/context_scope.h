/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session's context, current for the length of a C scope, so that the calling thread's own
 * context is as it was afterwards:
 *
 *     CONTEXT_SCOPE(scope, driver, context);
 *     if (scope.result != CUDA_SUCCESS)
 *             ...
 */
#ifndef LIBCLIENT_CONTEXT_SCOPE_H
#define LIBCLIENT_CONTEXT_SCOPE_H

#include "libclient/driver/driver.h"

struct context_scope {
        const struct driver *driver;
        CUresult result;
};

static inline struct context_scope context_scope_enter(const struct driver *driver,
                                                       CUcontext context)
{
        struct context_scope scope = {.driver = driver};

        scope.result = driver->ctx_push_current(context);
        return scope;
}

static inline void context_scope_leave(struct context_scope *scope)
{
        CUcontext context;

        if (scope->result == CUDA_SUCCESS)
                scope->driver->ctx_pop_current(&context);
}

#define CONTEXT_SCOPE(name, driver, context)                                                       \
        __attribute__((cleanup(context_scope_leave))) struct context_scope name =                  \
                context_scope_enter((driver), (context))

#endif
