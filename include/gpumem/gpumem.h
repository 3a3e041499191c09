/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgpumem: the client library of gpumemd.
 *
 * An engine connects a session for one device, and gets from it buffers (plain device memory) and
 * KV pools (paged caches that grow and shrink a unit at a time). Physical memory is the daemon's;
 * the library imports what it is granted and maps it at addresses it reserved, and addresses never
 * change.
 *
 * Results. Functions return 0 or a negative enum gpumem_error. gpumem_error_message() then says,
 * for the calling thread, what was wrong and what to do. A call that fails has done nothing, unless
 * it says otherwise. The library never exits, aborts, prints, or changes signal handlers.
 *
 * Threads. Every function may be called from any thread; calls on one session or pool take turns
 * inside. An object must not be used while, or after, another thread frees it (the handles of
 * sequences are checked and may be stale at no risk). Waits have deadlines: options.timeout_ms for
 * a round trip, the wait_ms argument where there is one. GPUMEM_E_TIMEOUT is a daemon (or a
 * stream) that did not answer in time; memory that was not to be had in time is GPUMEM_E_AGAIN.
 *
 * Any call that talks to the daemon may answer GPUMEM_E_DOWN or GPUMEM_E_TIMEOUT, any call that
 * uses the driver GPUMEM_E_DEVICE. After GPUMEM_E_DOWN memory that is mapped stays usable, and what
 * needs no daemon (sequences and batches on pages that are there, kernels) goes on.
 *
 * CUDA. The library works in the device's primary context, which it retains while the session is
 * open. Streams are CUstream (gpumem_stream is the same type) of that context; NULL is the legacy
 * default stream, with its implicit order against blocking streams. The library does not touch the
 * calling thread's current context.
 *
 * fork(). A session belongs to the process that made it. In a child every function that takes a
 * session, a pool or a batch and returns a result returns GPUMEM_E_FORKED and does nothing. What
 * returns no result reads the child's copy (gpumem_buffer_address(), gpumem_buffer_bytes(),
 * gpumem_kv_get_geometry(), gpumem_batch_get_view()) or frees it: gpumem_buffer_free() and
 * gpumem_disconnect() in a child free the child's copy (of a pool: when the child ends), the latter
 * closes its descriptor of the connection, and neither touches the device, the daemon or the
 * parent. A driver that was initialised before the fork cannot be used in the child, so a new
 * gpumem_connect() fails there, too, with GPUMEM_E_DEVICE: the child must exec first, and the new
 * program connects.
 *
 * Life of memory in a batch:
 *
 * 1. gpumem_batch_begin() reserves pages for everything, extends mappings, pins, and gives the page
 *    tables.
 * 2. gpumem_kv_write(), gpumem_attn_*() and the engine's own kernels go on a stream.
 * 3. gpumem_batch_end() lets the pin end when that stream gets there.
 *
 * Between the two the mapping of every page that the batch can reach stays as it is. A freed page
 * is given to someone else only after the pins that began before it was freed have ended.
 */
#ifndef GPUMEM_GPUMEM_H
#define GPUMEM_GPUMEM_H

#include <stddef.h>
#include <stdint.h>

#include <gpumem/error.h>
#include <gpumem/page.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMEM_API __attribute__((visibility("default")))

typedef struct CUstream_st *gpumem_stream;
typedef uint64_t gpumem_address; /* a device address (CUdeviceptr) */

/* What the last failing call on this thread had to say; "" if none failed. Valid until this
 * thread's next call. */
GPUMEM_API const char *gpumem_error_message(void);
/* The name of a code, "GPUMEM_E_AGAIN" for example; never NULL. */
GPUMEM_API const char *gpumem_error_name(int error);
/* "0.1.0" */
GPUMEM_API const char *gpumem_version(void);

/* --- sessions ---------------------------------------------------- */

struct gpumem; /* one connection, one device, one process */

enum gpumem_driver {
        GPUMEM_DRIVER_DEFAULT = 0, /* what the environment variable GPUMEM_DRIVER names (cuda,
                                      simulated); cuda if unset */
        GPUMEM_DRIVER_LIBCUDA = 1,
        GPUMEM_DRIVER_SIMULATOR = 2,
};

/* All fields may be zero. `size` must be sizeof(struct gpumem_options): it lets the struct grow. */
struct gpumem_options {
        size_t size;
        const char *socket_path; /* NULL: $GPUMEM_SOCKET, else /run/gpumem/client.sock */
        const char *name;        /* shown to admins; at most 63 bytes; NULL: the program's name */
        enum gpumem_driver driver;
        const char *driver_library; /* NULL: libcuda.so.1, or libcuda-sim.so */
        int device;           /* ordinal in this process's driver; the daemon is told its UUID */
        uint32_t timeout_ms;  /* deadline of a round trip to the daemon; 0: 10,000 */
        uint32_t cpu_threads; /* for kernels that run on the CPU; 0: one per CPU */
};

/* GPUMEM_E_DOWN: no daemon there. GPUMEM_E_PERMISSION: this user may not use the socket (it belongs
 * to a group, "gpumem" unless configured otherwise). GPUMEM_E_MISMATCH: version, driver kind,
 * device or granularity differ. GPUMEM_E_UNSUPPORTED: the driver cannot be loaded, or lacks virtual
 * memory management. options may be NULL. */
GPUMEM_API int gpumem_connect(struct gpumem **out, const struct gpumem_options *options);

/* Frees what was made from the session, waits (at most timeout_ms for each pool) for pins to end,
 * and closes it. Returns NULL. NULL is fine. Pools, buffers and batches of the session must not be
 * used afterwards.
 *
 * A batch that is begun and not ended is abandoned: as nobody will say where its work ends, every
 * stream of the context is waited for, and then its memory goes back. Where that takes longer than
 * the deadline, the pool stays mapped for the kernels that may still use it, and its memory is the
 * daemon's again only when the process ends. */
GPUMEM_API struct gpumem *gpumem_disconnect(struct gpumem *session);

struct gpumem_info {
        uint64_t session; /* number of the session, as gpumemctl ps shows it */
        uint8_t device_uuid[16];
        uint64_t frame_bytes;     /* the daemon's unit of physical memory on this device */
        uint64_t device_bytes;    /* managed by the daemon */
        uint64_t session_bytes;   /* granted to this session */
        uint64_t tenant_bytes;    /* charged to this session's tenant */
        uint64_t available_bytes; /* what this session could be granted now without waiting for
                                     anyone */
};
GPUMEM_API int gpumem_get_info(struct gpumem *session, struct gpumem_info *out);

/* A moment at which the library may change this session's mappings: map what has arrived, give back
 * what the daemon asked for. batch_begin and batch_end are safe points too; an engine that is idle
 * for long needs none (the library's own thread gives back idle units that no pin holds). */
GPUMEM_API int gpumem_safe_point(struct gpumem *session);

/* The address at which the CPU may read and write device memory [address, address+bytes), which
 * must lie within one buffer or pool of this process: exists on the simulated driver only,
 * otherwise GPUMEM_E_UNSUPPORTED. Order against kernels is the caller's business (synchronise the
 * stream, or run in a host function). */
GPUMEM_API int gpumem_host_view(struct gpumem *session, gpumem_address address, size_t bytes,
                                void **out);

/* --- buffers ----------------------------------------------------- */

struct gpumem_buffer;

/* Device memory of at least `bytes` (rounded up to whole frames), mapped read-write at one address,
 * contents undefined. All or nothing. wait_ms: how long to wait for memory that others hold (what
 * lies idle in this session's own pools is given back first); 0 answers GPUMEM_E_AGAIN at once, as
 * does a wait that was in vain: the message says who holds the memory. It does not wait while this
 * session holds a pin. GPUMEM_E_NO_MEMORY: the device never has so much. name: for people, at most
 * 63 bytes, may be NULL. */
GPUMEM_API int gpumem_buffer_create(struct gpumem *session, uint64_t bytes, const char *name,
                                    uint32_t wait_ms, struct gpumem_buffer **out);
/* Unmaps and gives the memory back. The caller has made sure that no kernel uses it any more.
 * Returns NULL; NULL is fine. */
GPUMEM_API struct gpumem_buffer *gpumem_buffer_free(struct gpumem_buffer *buffer);
GPUMEM_API gpumem_address gpumem_buffer_address(const struct gpumem_buffer *buffer);
GPUMEM_API uint64_t gpumem_buffer_bytes(const struct gpumem_buffer *buffer);

/* --- KV pools ---------------------------------------------------- */

struct gpumem_kv;

enum gpumem_format {
        GPUMEM_FORMAT_F16 = 0,
};

/* The shape of a cache. `size` must be sizeof(struct gpumem_kv_options). Limits: layers 1..1024,
 * kv_heads 1..256, dims 8..1024 in multiples of 8 (the kernels of this release take up to 256; a
 * pool of more is for the engine's own), page_tokens 16, 32, 64 or 128, max_sequences 1..65536,
 * max_sequence_tokens 1..2^24. */
struct gpumem_kv_options {
        size_t size;
        const char *name;
        uint32_t layers;
        uint32_t kv_heads;
        uint32_t key_dim;
        uint32_t value_dim;
        enum gpumem_format format;
        uint32_t page_tokens; /* 0: 16 */
        uint32_t max_sequences;
        uint32_t max_sequence_tokens;
        uint64_t max_bytes;          /* the pool never holds more; 0: enough for max_sequences of
                                        max_sequence_tokens */
        uint32_t remainder_permille; /* largest unusable share of a unit, in 1/1000; 0: 10 (1 %) */
        uint32_t reserve_units;      /* units fetched ahead of need; 0: 1; UINT32_MAX: none */
        uint32_t idle_trim_ms; /* units without a page, the reserve included, are given back after
                                  this long without a batch; those beyond the reserve also when
                                  none of them was needed for so long; 0: 2,000; UINT32_MAX: never
                                */
};

/*
 * How pages lie in device memory; constant for the life of the pool. This is all that a kernel of
 * the engine's own needs, beside the page ids of a batch.
 *
 * The part of a page for one layer and one KV head is two tiles, each contiguous and aligned to 128
 * bytes, of IEEE binary16 (f16) elements:
 *
 * - K[page_tokens][key_dim] at base + unit * unit_stride + layer * layer_stride
 *   + slot * page_stride + head * head_stride, where unit and slot are gpumem_page_unit() and
 *   gpumem_page_slot() of the page id (page.h), all products in 64 bits;
 * - V[page_tokens][value_dim] at value_offset behind that.
 *
 * Row t of a tile is the token at offset t of the page: token n of a sequence is row
 * n % page_tokens of its page number n / page_tokens. Rows at and beyond the sequence's length,
 * other pages, and the bytes between tiles hold anything, NaN included: do not read them, or mask
 * them by selection, not by a product with zero.
 *
 * Query head h uses KV head h / (q_heads / kv_heads); q_heads is a multiple of kv_heads.
 */
struct gpumem_kv_geometry {
        gpumem_address base;
        int64_t unit_stride, layer_stride, page_stride, head_stride, value_offset; /* bytes */
        uint32_t page_class;
        uint32_t slot_bits;
        uint32_t page_tokens;
        uint32_t pages_per_unit;
        uint32_t unit_frames; /* frames per unit */
        uint32_t units_max;
        uint64_t frame_bytes;
        uint64_t page_bytes;           /* all layers and heads, K and V */
        uint64_t unit_remainder_bytes; /* at the end of each unit, unusable */
        uint32_t layers, kv_heads, key_dim, value_dim;
};

/* Reserves address space and registers the pool; memory comes when it is needed.
 * GPUMEM_E_INVALID names the field that is out of range; GPUMEM_E_LIMIT: page ids or units would
 * overflow. */
GPUMEM_API int gpumem_kv_create(struct gpumem *session, const struct gpumem_kv_options *options,
                                struct gpumem_kv **out);

/* Frees all sequences, waits for pins that streams still have to reach (at most timeout_ms), and
 * gives everything back. NULL is fine. GPUMEM_E_BUSY: a batch is begun and not ended.
 * GPUMEM_E_TIMEOUT: a stream did not get there; the pool lives on. */
GPUMEM_API int gpumem_kv_free(struct gpumem_kv *kv);

GPUMEM_API void gpumem_kv_get_geometry(const struct gpumem_kv *kv, struct gpumem_kv_geometry *out);

struct gpumem_kv_stats {
        uint64_t pages_total;    /* in mapped units */
        uint64_t pages_used;     /* with at least one reference */
        uint64_t pages_shared;   /* with more than one */
        uint64_t pages_retiring; /* freed, waiting for pins to end */
        uint64_t tokens;         /* sum of the sequences' lengths */
        uint64_t sequences;
        uint64_t units_mapped;
        uint64_t units_ready; /* granted and imported, not yet mapped */
        uint64_t granted_bytes;
        uint64_t granted_bytes_peak;
        /* Counts since creation: units that came from the daemon, and that it has back. The
         * difference is granted_bytes. */
        uint64_t units_grown, units_returned;
        uint64_t grow_waits; /* times a batch had to fetch a unit itself because none was ready */
        uint64_t copies;     /* pages copied on write, or at fork */
        uint64_t pins;       /* not over yet: of batches begun, of batches ended that their stream
                                has not reached, and of copies under way (gpumem_seq_fork) */
};
GPUMEM_API int gpumem_kv_get_stats(struct gpumem_kv *kv, struct gpumem_kv_stats *out);

/* Gives back every unit that holds no page and no pin. *bytes (may be NULL) says how much. */
GPUMEM_API int gpumem_kv_trim(struct gpumem_kv *kv, uint64_t *bytes);

/* --- sequences --------------------------------------------------- */

typedef uint64_t gpumem_seq; /* a handle, checked on use: stale ones give GPUMEM_E_NOT_FOUND; 0 is
                                never a sequence */

/* Between batch_begin and batch_end a sequence belongs to its batch: append, truncate and fork give
 * GPUMEM_E_BUSY; free is allowed. */

/* GPUMEM_E_LIMIT: max_sequences are alive. */
GPUMEM_API int gpumem_seq_create(struct gpumem_kv *kv, gpumem_seq *out);
/* The sequence and its references go; pages without any are free again when the pins that may use
 * them have ended. */
GPUMEM_API int gpumem_seq_free(struct gpumem_kv *kv, gpumem_seq seq);
/* A new sequence with the same tokens: full pages are shared, a partly filled last page is copied,
 * on `stream`, after what the stream already holds (so it must be the stream that wrote it, or one
 * that waits for it). Work that reads or writes the new sequence's last page must come behind the
 * copy, too: on the same stream, or on one that waits for it. The copy is a pin of its own until
 * the stream has made it: it shows in gpumem_kv_stats.pins, and whatever does not wait while the
 * session holds a pin does not wait then either. A fork without a copy pins nothing and uses no
 * stream. GPUMEM_E_LIMIT: max_sequences are alive. GPUMEM_E_AGAIN: no page for the copy (it does
 * not wait), or 1,024 pins of the pool are not over. GPUMEM_E_BUSY: the parent is in a batch. */
GPUMEM_API int gpumem_seq_fork(struct gpumem_kv *kv, gpumem_seq parent, gpumem_stream stream,
                               gpumem_seq *out);
/* Shortens to `tokens` (<= length). */
GPUMEM_API int gpumem_seq_truncate(struct gpumem_kv *kv, gpumem_seq seq, uint32_t tokens);
/* Lengthens by `tokens` outside of a batch: reserves their pages; what they hold is undefined until
 * written. As batch_begin otherwise. */
GPUMEM_API int gpumem_seq_append(struct gpumem_kv *kv, gpumem_seq seq, uint32_t tokens,
                                 gpumem_stream stream, uint32_t wait_ms);
GPUMEM_API int gpumem_seq_length(struct gpumem_kv *kv, gpumem_seq seq, uint32_t *tokens);

/* --- batches ----------------------------------------------------- */

struct gpumem_batch;

/* What kernels eat. Host memory of the library, constant from begin until the pin ends (that is:
 * host functions enqueued on the stream between begin and end may read it; after end the caller may
 * not). */
struct gpumem_batch_view {
        uint32_t sequences;
        uint32_t tokens;             /* new tokens in all */
        const uint32_t *indptr;      /* [sequences+1] into indices */
        const uint32_t *indices;     /* page ids */
        const uint32_t *kv_len;      /* [sequences], new tokens included */
        const uint32_t *q_indptr;    /* [sequences+1] running sum of tokens_each */
        const int64_t *slot_mapping; /* [tokens] page id * page_tokens + offset, for KV write */
        const uint32_t *positions;   /* [tokens] position of each new token in its sequence */
};

/*
 * Lengthens seqs[i] by tokens_each[i] (0 is legal) for all i, or changes nothing. Reserves every
 * page first (growing the pool if need be), copies a shared page that will be written (on
 * `stream`), extends mappings, then pins. GPUMEM_E_AGAIN: memory is short now, or 1,024 batches of
 * the pool are not over. It waits up to wait_ms for memory, but never while this session holds a
 * pin: then it answers at once. (Units that it did get meanwhile stay with the pool, ready for the
 * next attempt, until they are trimmed.) GPUMEM_E_NO_MEMORY: the batch needs more than the pool may
 * ever hold. GPUMEM_E_INVALID: a sequence is named twice, or would exceed max_sequence_tokens.
 * GPUMEM_E_BUSY: a sequence is in a batch that has begun and not ended. GPUMEM_E_DEVICE: also a
 * kernel of an earlier batch that failed, told once. sequences: 1..max_sequences.
 */
GPUMEM_API int gpumem_batch_begin(struct gpumem_kv *kv, const gpumem_seq *seqs, uint32_t sequences,
                                  const uint32_t *tokens_each, gpumem_stream stream,
                                  uint32_t wait_ms, struct gpumem_batch **out);
GPUMEM_API const struct gpumem_batch_view *gpumem_batch_get_view(const struct gpumem_batch *batch);
/* Ends the pin when `stream` reaches this point; the batch must not be used afterwards, whatever
 * the result. On failure the pin ends when all work that was submitted to the context before is
 * done (the call does not wait for that). GPUMEM_E_INVALID: `stream` is none of the context's, or
 * gone; GPUMEM_E_DEVICE. */
GPUMEM_API int gpumem_batch_end(struct gpumem_batch *batch, gpumem_stream stream);
/* For a batch whose new tokens will not be computed: gives the sequences their old lengths back and
 * ends the pin as batch_end does. */
GPUMEM_API int gpumem_batch_cancel(struct gpumem_batch *batch, gpumem_stream stream);

/* --- kernels ----------------------------------------------------- */

enum gpumem_type {
        GPUMEM_TYPE_F32 = 0,
        GPUMEM_TYPE_F16 = 1,
};

/*
 * [tokens][heads][dim] in device memory, for the batch's new tokens; dim is contiguous. Strides are
 * in bytes, multiples of the element size, not negative; 0 means packed: a row of dim elements for
 * head_stride, heads * head_stride for token_stride. The address is aligned to the element size.
 *
 * Where its bytes may lie: an operand that touches a buffer or pool of the session must lie wholly
 * within that one buffer (gpumem_buffer_bytes() of it) or within mapped units of that one pool, or
 * the call answers GPUMEM_E_INVALID. Memory that the library did not hand out in this session (the
 * engine's own, from cuMemAlloc() for example) it cannot judge: that it is there, and large enough,
 * is the caller's business, as is that it all stays until the stream has run the work.
 */
struct gpumem_tensor {
        gpumem_address address;
        enum gpumem_type type;
        uint32_t heads;
        uint32_t dim;
        int64_t token_stride;
        int64_t head_stride;
};

/* Writes the keys and values of the batch's new tokens (in the order of slot_mapping) into `layer`.
 * key and value are both F32 or both F16, with kv_heads heads of key_dim and value_dim. F32 is
 * rounded to nearest, ties to even, with denormals; from 65,520 on it becomes infinity; every NaN
 * becomes 0x7fff. Asynchronous, in stream order. GPUMEM_E_UNSUPPORTED: as gpumem_attn_decode(). */
GPUMEM_API int gpumem_kv_write(struct gpumem_batch *batch, uint32_t layer,
                               const struct gpumem_tensor *key, const struct gpumem_tensor *value,
                               gpumem_stream stream);

struct gpumem_attn {
        struct gpumem_tensor q;   /* one row per new token of the batch; F32 or F16; its heads are a
                                     multiple of kv_heads, at most 65,536 */
        struct gpumem_tensor out; /* as many heads, with dim = value_dim; F32 or F16, whatever q is.
                                     No two rows may overlap: of head_stride and token_stride, one
                                     is at least a row, the other at least all that the first
                                     spans. Nor may it overlap another operand (not checked) */
        gpumem_address lse;       /* f32 [tokens][q heads], natural logarithm; 0: not wanted */
        float scale;              /* of the scores; 0: 1/sqrt(key_dim); NaN and infinity are
                                     refused */
};

/*
 * Causal attention of the batch's new tokens over their sequences: query i of sequence b stands at
 * position kv_len[b] - tokens_each[b] + i and sees the keys from 0 to its own. decode: at most one
 * new token per sequence; prefill: any number. Asynchronous, in stream order; a failure inside
 * (host memory) shows in the pool's next batch_begin as GPUMEM_E_DEVICE. GPUMEM_E_UNSUPPORTED where
 * no kernels exist: for a real GPU, in this release, and for a key_dim or value_dim above 256.
 *
 * Determinism. On one instruction set a row (one token, one query head) depends on its query, its
 * position, and the keys and values that it sees, and on nothing else: neither batch nor threads,
 * page size, chunks, or decode against prefill change a bit. Whoever writes a kernel that is to
 * agree as closely as arithmetic allows does the same, in f32:
 *
 * 1. Keys are cut at multiples of 128 positions; the last part ends at the row's own position.
 * 2. In a part: s_j = scale * dot(q, k_j); m = max s_j; p_j = exp(s_j - m); l = sum of p_j, in 16
 *    lanes (token j in lane j mod 16) folded at the end; acc = sum of p_j * v_j in token order.
 * 3. The parts (m, l, acc) are merged in order of position; out = acc / l, lse = m + log(l).
 *
 * NaN and infinity. A NaN in a key that a row sees makes its out and lse NaN, a NaN in a value that
 * element of its out. A score of +inf gives NaN, one of -inf is the weight 0. Keys and values that
 * a row does not see never touch it, whatever they hold. A row that sees no key has out = 0 and lse
 * = -inf.
 */
GPUMEM_API int gpumem_attn_decode(struct gpumem_batch *batch, uint32_t layer,
                                  const struct gpumem_attn *args, gpumem_stream stream);
GPUMEM_API int gpumem_attn_prefill(struct gpumem_batch *batch, uint32_t layer,
                                   const struct gpumem_attn *args, gpumem_stream stream);

#ifdef __cplusplus
}
#endif
#endif
