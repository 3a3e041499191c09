/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "libclient/error.h"
#include "libclient/operand.h"

int operand_host(struct gpumem *session, const char *name, gpumem_address address, uint64_t bytes,
                 void **out)
{
        if (session_range(session, address, bytes) == SESSION_RANGE_ACROSS)
                return client_error(GPUMEM_E_INVALID,
                                    "%s: %" PRIu64 " bytes at 0x%" PRIx64
                                    " go beyond the buffer, or the mapped units of the pool, that "
                                    "they touch",
                                    name, bytes, address);
        *out = session->driver->host_view(address, (size_t)bytes);
        if (!*out)
                return client_error(GPUMEM_E_INVALID,
                                    "%s: %" PRIu64 " bytes at 0x%" PRIx64
                                    " are not addresses of this device",
                                    name, bytes, address);
        return 0;
}

int operand_resolve(struct operand *out, struct gpumem *session, const char *name,
                    const struct gpumem_tensor *tensor, uint32_t tokens, uint32_t dim)
{
        int64_t element, tokens_extent, heads_extent, bytes;

        if (tensor->type != GPUMEM_TYPE_F32 && tensor->type != GPUMEM_TYPE_F16)
                return client_error(GPUMEM_E_INVALID, "%s.type is %d", name, (int)tensor->type);
        if (tensor->dim != dim)
                return client_error(GPUMEM_E_INVALID, "%s.dim is %u; it must be %u", name,
                                    tensor->dim, dim);
        if (tensor->heads == 0 || tensor->heads > 65536)
                return client_error(GPUMEM_E_INVALID, "%s.heads is %u", name, tensor->heads);
        element = tensor->type == GPUMEM_TYPE_F32 ? 4 : 2;
        out->type = tensor->type == GPUMEM_TYPE_F32 ? KERNEL_F32 : KERNEL_F16;
        out->row_bytes = element * dim;
        out->head_stride = tensor->head_stride ? tensor->head_stride : out->row_bytes;
        out->token_stride = tensor->token_stride;
        if (out->token_stride == 0 &&
            __builtin_mul_overflow(out->head_stride, (int64_t)tensor->heads, &out->token_stride))
                out->token_stride = -1;
        if (out->head_stride < 0 || out->token_stride < 0 || out->head_stride % element != 0 ||
            out->token_stride % element != 0 ||
            __builtin_mul_overflow(out->token_stride, (int64_t)tokens - 1, &tokens_extent) ||
            __builtin_mul_overflow(out->head_stride, (int64_t)tensor->heads - 1, &heads_extent) ||
            __builtin_add_overflow(tokens_extent, heads_extent, &bytes) ||
            __builtin_add_overflow(bytes, out->row_bytes, &bytes))
                return client_error(GPUMEM_E_INVALID,
                                    "%s has strides %" PRId64 " and %" PRId64
                                    "; they must be multiples of the element size, not negative, "
                                    "and the whole below 2^63 bytes",
                                    name, tensor->token_stride, tensor->head_stride);
        return operand_host(session, name, tensor->address, (uint64_t)bytes, &out->data);
}

/* `inner` rows follow each other at a stride, and `outer` groups of them at another. */
static bool nests(uint64_t row, uint64_t inner, int64_t inner_stride, uint64_t outer,
                  int64_t outer_stride)
{
        uint64_t span = row;

        if (inner > 1) {
                if ((uint64_t)inner_stride < row)
                        return false;
                /* No overflow: operand_resolve() has formed the same product. */
                span += (inner - 1) * (uint64_t)inner_stride;
        }
        return outer <= 1 || (uint64_t)outer_stride >= span;
}

int operand_check_written(const struct operand *operand, const char *name,
                          const struct gpumem_tensor *tensor, uint32_t tokens)
{
        uint64_t row = (uint64_t)operand->row_bytes;

        if (nests(row, tensor->heads, operand->head_stride, tokens, operand->token_stride) ||
            nests(row, tokens, operand->token_stride, tensor->heads, operand->head_stride))
                return 0;
        return client_error(GPUMEM_E_INVALID,
                            "%s has rows of %" PRId64 " bytes at strides of %" PRId64
                            " (tokens) and %" PRId64 " (heads): they overlap each other",
                            name, operand->row_bytes, operand->token_stride, operand->head_stride);
}
