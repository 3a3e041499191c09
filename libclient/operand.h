/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of the kernels, as the caller gives them: their shape is checked against what the batch
 * and the pool want, their bytes against the session's memory, and the device address becomes a
 * host one. Everything on the host, without a driver call.
 */
#ifndef LIBCLIENT_OPERAND_H
#define LIBCLIENT_OPERAND_H

#include "libclient/session.h"

/* A tensor in host addresses, strides filled in. */
struct operand {
        void *data;
        enum kernel_type type;
        int64_t row_bytes;
        int64_t token_stride, head_stride;
};

/* `tokens` > 0 and `dim` are what is wanted of it; `name` is for the message. GPUMEM_E_INVALID. */
int operand_resolve(struct operand *out, struct gpumem *session, const char *name,
                    const struct gpumem_tensor *tensor, uint32_t tokens, uint32_t dim);

/* Rows that are written must not overlap. GPUMEM_E_INVALID. */
int operand_check_written(const struct operand *operand, const char *name,
                          const struct gpumem_tensor *tensor, uint32_t tokens);

/* Plain bytes. Where they touch the session's memory they must be within one buffer or pool.
 * GPUMEM_E_INVALID. */
int operand_host(struct gpumem *session, const char *name, gpumem_address address, uint64_t bytes,
                 void **out);

#endif
