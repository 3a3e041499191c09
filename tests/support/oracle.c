/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/oracle.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS    2
#define LAYER     1
#define SLOT_BITS 3
#define ALIGN     128
/* Slots of a unit that hold pages; ids with the others do not occur, as in a real pool. */
#define SLOTS      6
#define SIDE_BYTES 256

#ifdef __FLT16_MANT_DIG__

double oracle_f16_to_f64(uint16_t half)
{
        _Float16 value;

        memcpy(&value, &half, sizeof(value));
        return (double)value;
}

uint16_t oracle_f32_to_f16(float value)
{
        _Float16 narrow = (_Float16)value;
        uint16_t half;

        memcpy(&half, &narrow, sizeof(half));
        return half;
}

#else /* no such type: the definition in float64, exact but for rint() */

double oracle_f16_to_f64(uint16_t half)
{
        int exponent = half >> 10 & 31;
        int fraction = half & 0x3ff;
        double magnitude = exponent == 0   ? ldexp(fraction, -24)
                           : exponent < 31 ? ldexp(fraction + 1024, exponent - 25)
                           : fraction == 0 ? INFINITY
                                           : NAN;

        return half & 0x8000 ? -magnitude : magnitude;
}

uint16_t oracle_f32_to_f16(float value)
{
        uint16_t sign = signbit(value) ? 0x8000 : 0;
        double magnitude = fabs((double)value);
        int exponent;

        if (isnan(value))
                return sign | 0x7e00;
        if (magnitude == 0)
                return sign;
        if (magnitude >= 65520)
                return sign | 0x7c00;
        frexp(magnitude, &exponent);
        if (exponent < -13)
                exponent = -13;
        /* Units of the last place; 2048 of them carry into the next exponent by themselves. */
        return (uint16_t)(sign + (uint16_t)((exponent + 13) << 10) +
                          (uint16_t)rint(ldexp(magnitude, 11 - exponent)));
}

#endif

static void widen(double *to, const uint16_t *from, uint32_t count)
{
        for (uint32_t i = 0; i < count; i++)
                to[i] = oracle_f16_to_f64(from[i]);
}

uint64_t oracle_random(uint64_t *state)
{
        uint64_t z = *state += 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
}

enum drawn_kind { DRAWN_KEY = 1, DRAWN_VALUE, DRAWN_QUERY };

/* Where to draw a vector's elements from. */
static uint64_t drawn_state(const struct oracle_case *c, enum drawn_kind kind, uint32_t sequence,
                            uint64_t position, uint32_t head)
{
        uint64_t name = c->options.names ? c->options.names[sequence] : sequence;
        uint64_t state = c->options.seed;

        state = oracle_random(&state) ^ (uint64_t)kind;
        state = oracle_random(&state) ^ name;
        state = oracle_random(&state) ^ (position << 16 | head);
        return state;
}

/* About normal, deviation 1. */
static double drawn(uint64_t *state)
{
        uint64_t r = oracle_random(state);
        double sum = 0;

        for (int i = 0; i < 4; i++)
                sum += (double)(r >> (16 * i) & 0xffff);
        return (sum / 65536.0 - 2) * 1.7320508;
}

static size_t round_up(size_t n, size_t to)
{
        return (n + to - 1) / to * to;
}

static uint32_t pages_for(uint32_t tokens, uint32_t page_tokens)
{
        return (uint32_t)(((uint64_t)tokens + page_tokens - 1) / page_tokens);
}

static uint32_t page_id(uint32_t index)
{
        return (index / SLOTS) << SLOT_BITS | index % SLOTS;
}

static void fill(uint16_t *at, size_t count, uint16_t value)
{
        for (size_t i = 0; i < count; i++)
                at[i] = value;
}

static void layout(struct oracle_case *c, uint32_t pages)
{
        struct kernel_kv *kv = &c->args.kv;
        size_t units = (pages + SLOTS - 1) / SLOTS + 1;

        kv->slot_bits = SLOT_BITS;
        kv->value_offset =
                (int64_t)round_up((size_t)kv->page_tokens * kv->key_dim * sizeof(uint16_t), ALIGN);
        kv->head_stride =
                kv->value_offset +
                (int64_t)round_up((size_t)kv->page_tokens * kv->value_dim * sizeof(uint16_t),
                                  ALIGN);
        kv->page_stride = kv->head_stride * kv->kv_heads;
        kv->layer_stride = kv->page_stride * SLOTS;
        kv->unit_stride = kv->layer_stride * LAYERS + SIDE_BYTES;
        c->pool_bytes = units * (size_t)kv->unit_stride;
        c->pool = aligned_alloc(ALIGN, round_up(c->pool_bytes, ALIGN));
        fill(c->pool, c->pool_bytes / sizeof(uint16_t), c->options.poison);
        kv->base = (unsigned char *)c->pool;
}

/* Page tables; returns the number of pages used. Pages [0, used) are placed, in this order or
 * shuffled. */
static uint32_t tables(struct oracle_case *c)
{
        const struct oracle_options *o = &c->options;
        uint64_t state = o->seed ^ 0x5eed;
        uint32_t total = 0, used = 0;
        uint32_t *place;

        c->indptr = calloc(o->sequences + 1, sizeof(uint32_t));
        for (uint32_t b = 0; b < o->sequences; b++) {
                total += pages_for(o->kv_len[b], o->page_tokens) + o->padding;
                c->indptr[b + 1] = total;
        }
        c->indices = malloc(((size_t)total + 1) * sizeof(uint32_t));
        for (uint32_t b = 0; b < o->sequences; b++) {
                uint32_t own = pages_for(o->kv_len[b], o->page_tokens);
                uint32_t both = o->kv_len[b] < o->kv_len[0] ? o->kv_len[b] : o->kv_len[0];
                uint32_t shared = o->share && b > 0 ? both / o->page_tokens : 0;

                for (uint32_t i = 0; i < own; i++)
                        c->indices[c->indptr[b] + i] = i < shared ? c->indices[i] : used++;
        }

        /* One more than needed stays free in between. */
        place = malloc(((size_t)used + 1) * sizeof(uint32_t));
        for (uint32_t i = 0; i <= used; i++) {
                uint32_t j = o->shuffle ? (uint32_t)(oracle_random(&state) % (i + 1)) : i;

                place[i] = place[j];
                place[j] = i;
        }
        for (uint32_t b = 0; b < o->sequences; b++) {
                uint32_t own = pages_for(o->kv_len[b], o->page_tokens);
                uint32_t *row = c->indices + c->indptr[b];

                for (uint32_t i = 0; i < own; i++)
                        row[i] = page_id(place[row[i]]);
                for (uint32_t i = 0; i < o->padding; i++)
                        row[own + i] = i % 2 ? 0x1fffffff : 0xffffffff;
        }
        free(place);
        return used;
}

uint16_t *oracle_vector(const struct oracle_case *c, uint32_t sequence, uint32_t position,
                        uint32_t head, bool value)
{
        const struct kernel_kv *kv = &c->args.kv;
        uint32_t id = c->indices[c->indptr[sequence] + position / kv->page_tokens];
        size_t at = (size_t)(id >> SLOT_BITS) * (size_t)kv->unit_stride +
                    LAYER * (size_t)kv->layer_stride +
                    (size_t)(id & ((1 << SLOT_BITS) - 1)) * (size_t)kv->page_stride +
                    head * (size_t)kv->head_stride;
        size_t inside = position % kv->page_tokens;

        at += value ? (size_t)kv->value_offset + inside * kv->value_dim * sizeof(uint16_t)
                    : inside * kv->key_dim * sizeof(uint16_t);
        return c->pool + at / sizeof(uint16_t);
}

static void vector_draw(uint16_t *to, uint32_t count, uint64_t state, double gain)
{
        for (uint32_t d = 0; d < count; d++)
                to[d] = oracle_f32_to_f16((float)(gain * drawn(&state)));
}

static void contents(struct oracle_case *c)
{
        const struct oracle_options *o = &c->options;
        double gain = o->key_gain != 0 ? (double)o->key_gain : 1;

        /* From the last to the first, so that what shared pages hold is sequence 0's. */
        for (uint32_t b = o->sequences; b-- > 0;) {
                for (uint32_t t = 0; t < o->kv_len[b]; t++) {
                        for (uint32_t h = 0; h < o->kv_heads; h++) {
                                vector_draw(oracle_vector(c, b, t, h, false), o->key_dim,
                                            drawn_state(c, DRAWN_KEY, b, t, h), gain);
                                vector_draw(oracle_vector(c, b, t, h, true), o->value_dim,
                                            drawn_state(c, DRAWN_VALUE, b, t, h), 1);
                        }
                }
        }
        for (uint32_t b = 0; b < o->sequences; b++) {
                uint32_t first = c->q_indptr ? c->q_indptr[b] : b;
                uint32_t n = o->q_len ? o->q_len[b] : 1;

                /* Drawn from the position, so that chunks of a prompt have the queries of the
                 * whole. */
                for (uint32_t i = 0; i < n; i++) {
                        for (uint32_t h = 0; h < c->args.q_heads; h++) {
                                uint64_t position = (uint64_t)o->kv_len[b] + 0x100000 - n + i;
                                uint64_t state = drawn_state(c, DRAWN_QUERY, b, position, h);

                                for (uint32_t d = 0; d < o->key_dim; d++)
                                        oracle_q_set(c, first + i, h, d, drawn(&state));
                        }
                }
        }
}

void oracle_case_init(struct oracle_case *c, const struct oracle_options *options)
{
        struct oracle_options *o = &c->options;
        uint32_t size_q, size_out;

        *c = (struct oracle_case){.options = *options};
        if (o->value_dim == 0)
                o->value_dim = o->key_dim;
        size_q = o->q_type == KERNEL_F16 ? 2 : 4;
        size_out = o->out_type == KERNEL_F16 ? 2 : 4;
        c->args = (struct kernel_attention){
                .kv = {.page_tokens = o->page_tokens,
                       .kv_heads = o->kv_heads,
                       .key_dim = o->key_dim,
                       .value_dim = o->value_dim},
                .layer = LAYER,
                .sequences = o->sequences,
                .q_heads = o->kv_heads * o->group,
                .scale = (float)(1 / sqrt(o->key_dim)),
                .q_type = o->q_type,
                .out_type = o->out_type,
        };
        layout(c, tables(c));
        c->q_tokens = o->sequences;
        if (o->q_len) {
                c->q_indptr = calloc(o->sequences + 1, sizeof(uint32_t));
                for (uint32_t b = 0; b < o->sequences; b++)
                        c->q_indptr[b + 1] = c->q_indptr[b] + o->q_len[b];
                c->q_tokens = c->q_indptr[o->sequences];
        }
        c->kv_len = malloc((o->sequences + 1) * sizeof(uint32_t));
        if (o->sequences)
                memcpy(c->kv_len, o->kv_len, o->sequences * sizeof(uint32_t));

        c->args.q_head_stride = (int64_t)size_q * o->key_dim;
        c->args.q_token_stride = c->args.q_head_stride * c->args.q_heads;
        c->args.out_head_stride = (int64_t)size_out * o->value_dim;
        c->args.out_token_stride = c->args.out_head_stride * c->args.q_heads;
        c->q = malloc((size_t)c->q_tokens * (size_t)c->args.q_token_stride + 1);
        c->out = malloc(oracle_out_bytes(c) + 1);
        c->lse = malloc(oracle_lse_bytes(c) + 1);
        c->args.indptr = c->indptr;
        c->args.indices = c->indices;
        c->args.kv_len = c->kv_len;
        c->args.q_indptr = c->q_indptr;
        c->args.q = c->q;
        c->args.out = c->out;
        c->args.lse = c->lse;
        contents(c);
        oracle_case_reset(c);
}

void oracle_case_deinit(struct oracle_case *c)
{
        free(c->pool);
        free(c->indptr);
        free(c->indices);
        free(c->kv_len);
        free(c->q_indptr);
        free(c->q);
        free(c->out);
        free(c->lse);
        *c = (struct oracle_case){0};
}

void oracle_case_reset(struct oracle_case *c)
{
        memset(c->out, 0x5a, oracle_out_bytes(c));
        memset(c->lse, 0x5a, oracle_lse_bytes(c));
}

size_t oracle_out_bytes(const struct oracle_case *c)
{
        return (size_t)c->q_tokens * (size_t)c->args.out_token_stride;
}

size_t oracle_lse_bytes(const struct oracle_case *c)
{
        return (size_t)c->q_tokens * c->args.q_heads * sizeof(float);
}

float oracle_out(const struct oracle_case *c, uint32_t token, uint32_t head, uint32_t d)
{
        size_t at = ((size_t)token * c->args.q_heads + head) * c->options.value_dim + d;

        if (c->options.out_type == KERNEL_F16)
                return (float)oracle_f16_to_f64(((const uint16_t *)(const void *)c->out)[at]);
        return c->out[at];
}

float oracle_lse(const struct oracle_case *c, uint32_t token, uint32_t head)
{
        return c->lse[(size_t)token * c->args.q_heads + head];
}

double oracle_q(const struct oracle_case *c, uint32_t token, uint32_t head, uint32_t d)
{
        size_t at = ((size_t)token * c->args.q_heads + head) * c->options.key_dim + d;

        return c->options.q_type == KERNEL_F16 ? oracle_f16_to_f64(((const uint16_t *)c->q)[at])
                                               : (double)((const float *)c->q)[at];
}

void oracle_q_set(struct oracle_case *c, uint32_t token, uint32_t head, uint32_t d, double value)
{
        size_t at = ((size_t)token * c->args.q_heads + head) * c->options.key_dim + d;

        if (c->options.q_type == KERNEL_F16)
                ((uint16_t *)c->q)[at] = oracle_f32_to_f16((float)value);
        else
                ((float *)c->q)[at] = (float)value;
}

/* A sequence's keys and values of one KV head in float64. */
struct wide {
        double *key, *value; /* [kv_len][key_dim], [kv_len][value_dim] */
};

static struct wide wide_make(const struct oracle_case *c, uint32_t sequence, uint32_t kv_head)
{
        size_t tokens = c->kv_len[sequence];
        struct wide wide = {
                .key = malloc((tokens * c->options.key_dim + 1) * sizeof(double)),
                .value = malloc((tokens * c->options.value_dim + 1) * sizeof(double)),
        };

        for (size_t t = 0; t < tokens; t++) {
                widen(wide.key + t * c->options.key_dim,
                      oracle_vector(c, sequence, (uint32_t)t, kv_head, false), c->options.key_dim);
                widen(wide.value + t * c->options.value_dim,
                      oracle_vector(c, sequence, (uint32_t)t, kv_head, true), c->options.value_dim);
        }
        return wide;
}

/* One row in float64; returns lse. out and tolerance have value_dim elements. */
static double row_compute(const struct oracle_case *c, const struct wide *wide, uint32_t token,
                          uint32_t head, int64_t visible, double *out, double *tolerance)
{
        const struct oracle_options *o = &c->options;
        double scale = (double)c->args.scale;
        double *score = malloc(((size_t)visible + 1) * sizeof(double));
        double maximum = -INFINITY, sum = 0, spread = 0;
        double q[256];

        for (uint32_t d = 0; d < o->key_dim; d++)
                q[d] = oracle_q(c, token, head, d);
        for (uint32_t d = 0; d < o->value_dim; d++)
                out[d] = tolerance[d] = 0;
        for (int64_t t = 0; t < visible; t++) {
                const double *k = wide->key + (size_t)t * o->key_dim;
                double dot = 0, size = 0;

                for (uint32_t d = 0; d < o->key_dim; d++) {
                        double x = q[d] * k[d];

                        dot += x;
                        size += fabs(x);
                }
                score[t] = dot * scale;
                if (score[t] > maximum)
                        maximum = score[t];
                if (size * fabs(scale) > spread)
                        spread = size * fabs(scale);
        }
        for (int64_t t = 0; t < visible; t++) {
                const double *v = wide->value + (size_t)t * o->value_dim;
                double p = exp(score[t] - maximum);

                sum += p;
                for (uint32_t d = 0; d < o->value_dim; d++) {
                        out[d] += p * v[d];
                        tolerance[d] += fabs(p * v[d]);
                }
        }
        free(score);
        for (uint32_t d = 0; d < o->value_dim && visible > 0; d++) {
                out[d] /= sum;
                tolerance[d] = tolerance[d] / sum * (16 + 4 * spread) * (FLT_EPSILON / 2) + FLT_MIN;
                if (o->out_type == KERNEL_F16)
                        tolerance[d] += fabs(out[d]) * 0x1p-11 + 0x1p-25;
        }
        return visible > 0 ? maximum + log(sum) : -INFINITY;
}

/* A NaN (or the same infinity) where float64 has one is right. */
static bool agree(double have, double want, double tolerance)
{
        if (isnan(want) || isnan(have))
                return isnan(want) && isnan(have);
        return have == want || fabs(have - want) <= tolerance;
}

static unsigned row_errors(const struct oracle_case *c, const struct wide *wide, uint32_t sequence,
                           uint32_t token, uint32_t head, int64_t visible, unsigned before)
{
        double out[256], tolerance[256];
        double lse = row_compute(c, wide, token, head, visible, out, tolerance);
        double have = oracle_lse(c, token, head);
        unsigned errors = 0;

        for (uint32_t d = 0; d < c->options.value_dim; d++) {
                double x = oracle_out(c, token, head, d);

                if (agree(x, out[d], tolerance[d]))
                        continue;
                if (before + errors++ < 4)
                        fprintf(stderr, "sequence %u token %u head %u d %u: %g, not %g +- %g\n",
                                sequence, token, head, d, x, out[d], tolerance[d]);
        }
        if (!agree(have, lse, 1e-3 * (fabs(lse) > 1 ? fabs(lse) : 1)))
                if (before + errors++ < 4)
                        fprintf(stderr, "sequence %u token %u head %u: lse %g, not %g\n", sequence,
                                token, head, have, lse);
        return errors;
}

unsigned oracle_errors(const struct oracle_case *c)
{
        unsigned errors = 0;

        for (uint32_t b = 0; b < c->options.sequences; b++) {
                uint32_t first = c->q_indptr ? c->q_indptr[b] : b;
                uint32_t n = c->options.q_len ? c->options.q_len[b] : 1;

                for (uint32_t h = 0; h < c->args.q_heads; h++) {
                        struct wide wide = wide_make(c, b, h / c->options.group);

                        for (uint32_t i = 0; i < n; i++) {
                                int64_t visible = (int64_t)c->kv_len[b] - n + i + 1;

                                errors += row_errors(c, &wide, b, first + i, h,
                                                     visible > 0 ? visible : 0, errors);
                        }
                        free(wide.key);
                        free(wide.value);
                }
        }
        return errors;
}
