/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model on small random weights: shape and weights as read from a file, refusals by name, and
 * the forward pass against a naive one in f64.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/f16.h"
#include "tests/support/gguf_writer.h"
#include "tools/gen/gguf.h"
#include "tools/gen/reference.h"
#include "tools/gen/tokenizer.h"
#include "tools/gen/weights.h"

struct fixture {
        struct gguf_bytes file;
        struct gguf *gguf;
        struct weights *weights;
        unsigned char *memory;
        struct model model;
};

static int copy_to_memory(void *context, uint64_t offset, const void *data, uint64_t bytes)
{
        memcpy((unsigned char *)context + offset, data, bytes);
        return 0;
}

static void fixture_init(struct fixture *fixture, const struct gguf_model *model)
{
        struct gen_error error = {0};

        memset(fixture, 0, sizeof(*fixture));
        fixture->file = gguf_model_file(model);
        CU_ASSERT_EQUAL_FATAL(
                gguf_parse(&fixture->gguf, fixture->file.data, fixture->file.bytes, &error), 0);
        CU_ASSERT_EQUAL_FATAL(
                weights_new(&fixture->weights, fixture->gguf, GGUF_TOKENIZER_TOKENS, &error), 0);
        fixture->memory = aligned_alloc(WEIGHTS_ALIGNMENT, fixture->weights->bytes);
        CU_ASSERT_PTR_NOT_NULL_FATAL(fixture->memory);
        CU_ASSERT_EQUAL(weights_copy(fixture->weights, copy_to_memory, fixture->memory), 0);
        weights_bind(fixture->weights, fixture->memory);
        fixture->model = (struct model){.weights = fixture->weights, .isa = kernel_cpu_isa()};
}

static void fixture_deinit(struct fixture *fixture)
{
        weights_free(fixture->weights);
        free(fixture->memory);
        gguf_free(fixture->gguf);
        free(fixture->file.data);
}

/* --- the same model, naively, in f64 ------------------------------------------------------------
 */

static double at(const struct weight *weight, size_t index)
{
        return weight->type == GGUF_TENSOR_F16
                       ? (double)kernel_f16_to_f32(((const uint16_t *)weight->data)[index])
                       : (double)((const float *)weight->data)[index];
}

static void naive_matmul(const struct weight *weight, const double *x, double *out, bool add)
{
        for (uint32_t r = 0; r < weight->rows; r++) {
                double sum = 0;

                for (uint32_t c = 0; c < weight->columns; c++)
                        sum += at(weight, (size_t)r * weight->columns + c) * x[c];
                out[r] = (add ? out[r] : 0) + sum;
        }
}

static void naive_norm(const struct weight *scale, double epsilon, const double *x, double *out)
{
        double squares = 0;

        for (uint32_t i = 0; i < scale->columns; i++)
                squares += x[i] * x[i];
        for (uint32_t i = 0; i < scale->columns; i++)
                out[i] = x[i] / sqrt(squares / scale->columns + epsilon) * at(scale, i);
}

static void naive_rope(const struct model_shape *shape, uint32_t position, double *heads,
                       uint32_t count)
{
        for (uint32_t h = 0; h < count; h++) {
                for (uint32_t i = 0; i < shape->rope_dim / 2; i++) {
                        double *pair = heads + (size_t)h * shape->key_dim + 2 * i;
                        const double angle = position * pow((double)shape->rope_base,
                                                            -2.0 * i / shape->rope_dim);
                        const double a = pair[0], b = pair[1];

                        pair[0] = a * cos(angle) - b * sin(angle);
                        pair[1] = a * sin(angle) + b * cos(angle);
                }
        }
}

#define NAIVE_TOKENS 48
#define NAIVE_WIDE   256 /* no vector of the small models is longer */

/* The cache rounds to f16. */
static double rounded(double value)
{
        return (double)kernel_f16_to_f32(kernel_f32_to_f16((float)value));
}

static void naive_attention(const struct model_shape *shape, uint32_t tokens,
                            double (*query)[NAIVE_WIDE], double (*key)[NAIVE_WIDE],
                            double (*value)[NAIVE_WIDE], double (*out)[NAIVE_WIDE])
{
        const uint32_t group = shape->heads / shape->kv_heads;

        for (uint32_t t = 0; t < tokens; t++) {
                for (uint32_t h = 0; h < shape->heads; h++) {
                        const double *q = query[t] + (size_t)h * shape->key_dim;
                        double weight[NAIVE_TOKENS], sum = 0;

                        for (uint32_t j = 0; j <= t; j++) {
                                const double *k = key[j] + (size_t)(h / group) * shape->key_dim;
                                double dot = 0;

                                for (uint32_t d = 0; d < shape->key_dim; d++)
                                        dot += q[d] * k[d];
                                weight[j] = exp(dot / sqrt(shape->key_dim));
                                sum += weight[j];
                        }
                        for (uint32_t d = 0; d < shape->value_dim; d++) {
                                double acc = 0;

                                for (uint32_t j = 0; j <= t; j++)
                                        acc += weight[j] *
                                               value[j][(size_t)(h / group) * shape->value_dim + d];
                                out[t][(size_t)h * shape->value_dim + d] = acc / sum;
                        }
                }
        }
}

/* Logits after the last of the tokens. */
static void naive_logits(const struct weights *weights, const uint32_t *tokens, uint32_t count,
                         double *logits)
{
        static double x[NAIVE_TOKENS][NAIVE_WIDE], query[NAIVE_TOKENS][NAIVE_WIDE],
                key[NAIVE_TOKENS][NAIVE_WIDE], value[NAIVE_TOKENS][NAIVE_WIDE],
                attention[NAIVE_TOKENS][NAIVE_WIDE];
        const struct model_shape *shape = &weights->shape;
        double normed[NAIVE_WIDE], gate[NAIVE_WIDE], up[NAIVE_WIDE];

        for (uint32_t t = 0; t < count; t++)
                for (uint32_t i = 0; i < shape->width; i++)
                        x[t][i] = at(&weights->embedding, (size_t)tokens[t] * shape->width + i);
        for (uint32_t l = 0; l < shape->layers; l++) {
                const struct layer_weights *layer = &weights->layers[l];

                for (uint32_t t = 0; t < count; t++) {
                        naive_norm(&layer->attention_norm, (double)shape->norm_epsilon, x[t],
                                   normed);
                        naive_matmul(&layer->query, normed, query[t], false);
                        naive_matmul(&layer->key, normed, key[t], false);
                        naive_matmul(&layer->value, normed, value[t], false);
                        naive_rope(shape, t, query[t], shape->heads);
                        naive_rope(shape, t, key[t], shape->kv_heads);
                        for (uint32_t i = 0; i < layer->key.rows; i++)
                                key[t][i] = rounded(key[t][i]);
                        for (uint32_t i = 0; i < layer->value.rows; i++)
                                value[t][i] = rounded(value[t][i]);
                }
                naive_attention(shape, count, query, key, value, attention);
                for (uint32_t t = 0; t < count; t++) {
                        naive_matmul(&layer->attention_output, attention[t], x[t], true);
                        naive_norm(&layer->feed_norm, (double)shape->norm_epsilon, x[t], normed);
                        naive_matmul(&layer->gate, normed, gate, false);
                        naive_matmul(&layer->up, normed, up, false);
                        for (uint32_t i = 0; i < shape->hidden; i++)
                                gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
                        naive_matmul(&layer->down, gate, x[t], true);
                }
        }
        naive_norm(&weights->output_norm, (double)shape->norm_epsilon, x[count - 1], normed);
        naive_matmul(&weights->output, normed, logits, false);
}

static void fill_tokens(uint32_t *tokens, uint32_t count, uint64_t seed)
{
        for (uint32_t i = 0; i < count; i++) {
                seed = seed * UINT64_C(6364136223846793005) + 1;
                tokens[i] = (uint32_t)(seed >> 33) % GGUF_TOKENIZER_TOKENS;
        }
}

static const struct gguf_model models[] = {
        {2, 32, 56, 4, 2, 16, 8, 12, 256, false, true, 1},
        {2, 32, 56, 4, 2, 16, 8, 12, 256, true, true, 1},
        {3, 40, 33, 4, 4, 8, 8, 8, 256, false, false, 2},   /* no sharing of KV heads */
        {1, 24, 64, 6, 1, 16, 24, 16, 256, true, false, 3}, /* all share one */
        {2, 50, 17, 2, 2, 24, 24, 2, 256, false, true, 4},
};
#define MODELS (sizeof(models) / sizeof(models[0]))

static void test_forward(void)
{
        static const uint32_t lengths[] = {1, 2, 17, NAIVE_TOKENS};

        for (size_t m = 0; m < MODELS; m++) {
                struct fixture fixture;
                struct reference *reference;

                fixture_init(&fixture, &models[m]);
                CU_ASSERT_EQUAL_FATAL(reference_new(&reference, &fixture.model, 256, 64), 0);
                for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
                        double logits[GGUF_TOKENIZER_TOKENS], largest = 0, worst = 0;
                        uint32_t tokens[NAIVE_TOKENS], next;
                        const float *ours;

                        fill_tokens(tokens, lengths[i], m * 10 + i);
                        CU_ASSERT_EQUAL_FATAL(
                                reference_step(reference, tokens, 0, lengths[i], &next), 0);
                        ours = reference_logits(reference);
                        naive_logits(fixture.weights, tokens, lengths[i], logits);
                        for (uint32_t j = 0; j < GGUF_TOKENIZER_TOKENS; j++) {
                                const double error = fabs((double)ours[j] - logits[j]);

                                worst = error > worst ? error : worst;
                                largest = fabs(logits[j]) > largest ? fabs(logits[j]) : largest;
                        }
                        /* A key that falls on the other side of an f16 step is 2^-11 off. */
                        if (!(worst <= 1e-4 * largest)) {
                                fprintf(stderr, "\nmodel %zu, %u tokens: %g of %g\n", m, lengths[i],
                                        worst, largest);
                                CU_FAIL("logits");
                        }
                        CU_ASSERT_FATAL(next < GGUF_TOKENIZER_TOKENS);
                        for (uint32_t j = 0; j < GGUF_TOKENIZER_TOKENS; j++)
                                CU_ASSERT(logits[next] >= logits[j] - 2 * worst);
                }
                reference_free(reference);
                fixture_deinit(&fixture);
        }
}

/* The same bits whether a sequence is computed at once, in chunks, or token by token, and with
 * threads. */
static void test_chunks(void)
{
        static const uint32_t chunks[] = {200, 64, 7, 1};
        struct kernel_pool *pool;

        CU_ASSERT_EQUAL_FATAL(kernel_pool_new(&pool, 3), 0);
        for (size_t m = 0; m < MODELS; m++) {
                float first[GGUF_TOKENIZER_TOKENS];
                struct fixture fixture;
                uint32_t tokens[200];

                fixture_init(&fixture, &models[m]);
                fill_tokens(tokens, 200, m);
                for (size_t i = 0; i < 4; i++) {
                        struct reference *reference;

                        fixture.model.pool = i % 2 ? pool : NULL;
                        CU_ASSERT_EQUAL_FATAL(reference_new(&reference, &fixture.model, 200, 200),
                                              0);
                        for (uint32_t done = 0; done < 200; done += chunks[i]) {
                                const uint32_t left = 200 - done;
                                uint32_t next;

                                CU_ASSERT_EQUAL_FATAL(
                                        reference_step(reference, tokens, done,
                                                       left < chunks[i] ? left : chunks[i], &next),
                                        0);
                        }
                        if (!i)
                                memcpy(first, reference_logits(reference), sizeof(first));
                        CU_ASSERT(!memcmp(first, reference_logits(reference), sizeof(first)));
                        CU_ASSERT(isfinite(first[0]));
                        reference_free(reference);
                }
                fixture_deinit(&fixture);
        }
        kernel_pool_free(pool);
}

/* --- what a file may not say --------------------------------------------------------------------
 */

static void assert_refused(struct gguf_writer *writer, const char *about)
{
        struct gguf_bytes file = gguf_writer_finish(writer);
        struct weights *weights;
        struct gguf *gguf;
        struct gen_error error = {0};

        CU_ASSERT_EQUAL_FATAL(gguf_parse(&gguf, file.data, file.bytes, &error), 0);
        CU_ASSERT_EQUAL(weights_new(&weights, gguf, GGUF_TOKENIZER_TOKENS, &error), -EINVAL);
        CU_ASSERT_PTR_NULL(weights);
        if (!strstr(error.text, about)) {
                fprintf(stderr, "\n\"%s\" does not speak of \"%s\"\n", error.text, about);
                CU_FAIL("the refusal says something else");
        }
        gguf_free(gguf);
        free(file.data);
        gguf_writer_deinit(writer);
}

/* The small model with another shape in its keys than in its tensors. */
static void assert_shape_refused(struct gguf_model said, const char *about)
{
        struct gguf_writer writer;

        gguf_writer_init(&writer);
        gguf_writer_model_keys(&writer, &said);
        gguf_writer_model_tensors(&writer, &gguf_model_small);
        assert_refused(&writer, about);
}

static void test_shapes_refused(void)
{
        struct gguf_model said = gguf_model_small;

        said.layers = 3;
        assert_shape_refused(said, "tensor blk.2.attn_norm.weight is missing");
        said.layers = 1;
        assert_shape_refused(said, "tensor blk.1.attn_norm.weight is not understood");
        said.layers = 0;
        assert_shape_refused(said, "llama.block_count is 0");
        said.layers = 1025;
        assert_shape_refused(said, "llama.block_count is 1025");
        said = gguf_model_small;
        said.width = 40;
        assert_shape_refused(said, "tensor token_embd.weight has dimensions 32 x 275, must be 40");
        said = gguf_model_small;
        said.hidden = 57;
        assert_shape_refused(said, "blk.0.ffn_gate.weight has dimensions 32 x 56, must be 32 x 57");
        said = gguf_model_small;
        said.kv_heads = 3;
        assert_shape_refused(said, "4 query heads cannot share 3");
        said = gguf_model_small;
        said.kv_heads = 4;
        assert_shape_refused(said, "blk.0.attn_k.weight has dimensions 32 x 32, must be 32 x 64");
        said = gguf_model_small;
        said.key_dim = 12;
        assert_shape_refused(said, "the key length is 12");
        said.key_dim = 264;
        assert_shape_refused(said, "the key length is 264");
        said = gguf_model_small;
        said.value_dim = 4;
        assert_shape_refused(said, "the value length is 4");
        said = gguf_model_small;
        said.rope_dim = 18;
        assert_shape_refused(said, "rope.dimension_count is 18, allowed are 2 to 16");
        said.rope_dim = 7;
        assert_shape_refused(said, "rope.dimension_count is 7, must be even");
        said = gguf_model_small;
        said.context = 0;
        assert_shape_refused(said, "llama.context_length is 0");
}

static void test_keys_refused(void)
{
        static const struct {
                const char *key, *value, *about;
        } strings[] = {
                {"llama.rope.scaling.type", "yarn", "llama.rope.scaling.type is \"yarn\""},
                {"llama.something.new", "x", "key llama.something.new is not understood"},
        };
        struct gguf_writer writer;

        for (size_t i = 0; i < 2; i++) {
                gguf_writer_init(&writer);
                gguf_writer_model_keys(&writer, &gguf_model_small);
                gguf_writer_string(&writer, strings[i].key, strings[i].value);
                gguf_writer_model_tensors(&writer, &gguf_model_small);
                assert_refused(&writer, strings[i].about);
        }
        gguf_writer_init(&writer);
        gguf_writer_model_keys(&writer, &gguf_model_small);
        gguf_writer_u32(&writer, "llama.expert_count", 8);
        assert_refused(&writer, "llama.expert_count is 8");

        gguf_writer_init(&writer);
        gguf_writer_model_keys(&writer, &gguf_model_small);
        gguf_writer_u32(&writer, "llama.vocab_size", 276);
        assert_refused(&writer, "llama.vocab_size is 276, the tokenizer has 275");

        gguf_writer_init(&writer);
        gguf_writer_string(&writer, "general.architecture", "gpt2");
        assert_refused(&writer, "\"gpt2\"; only \"llama\"");

        gguf_writer_init(&writer);
        gguf_writer_string(&writer, "general.architecture", "llama");
        assert_refused(&writer, "llama.block_count is missing");
}

static void test_tensors_refused(void)
{
        static const char *const extra[] = {"blk.0.attn_q.bias", "rope_freqs.weight", "x"};
        const uint64_t dimension = 64;
        const float data[64] = {0};

        for (size_t i = 0; i < 3; i++) {
                char about[96];
                struct gguf_writer writer;

                gguf_writer_init(&writer);
                gguf_writer_model_keys(&writer, &gguf_model_small);
                gguf_writer_model_tensors(&writer, &gguf_model_small);
                gguf_writer_tensor(&writer, extra[i], &dimension, 1, 0, data, sizeof(data));
                snprintf(about, sizeof(about), "tensor %s is not understood", extra[i]);
                assert_refused(&writer, about);
        }
}

static void test_weights(void)
{
        struct gguf_model model = gguf_model_small;
        struct fixture fixture;

        fixture_init(&fixture, &model);
        CU_ASSERT(fixture.weights->output_tied);
        CU_ASSERT_PTR_EQUAL(fixture.weights->output.data, fixture.weights->embedding.data);
        CU_ASSERT_EQUAL(model_shape_token_bytes(&fixture.weights->shape), 2 * 2 * (16 + 8) * 2);
        CU_ASSERT_EQUAL((uintptr_t)fixture.weights->layers[1].down.data % WEIGHTS_ALIGNMENT, 0);
        CU_ASSERT(!memcmp(fixture.weights->layers[1].down.data,
                          gguf_find_tensor(fixture.gguf, "blk.1.ffn_down.weight")->data,
                          32 * 56 * 2));
        fixture_deinit(&fixture);
        model.tied = false;
        fixture_init(&fixture, &model);
        CU_ASSERT(!fixture.weights->output_tied);
        CU_ASSERT_PTR_NOT_EQUAL(fixture.weights->output.data, fixture.weights->embedding.data);
        fixture_deinit(&fixture);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("model", NULL, NULL);
        if (!suite || !CU_add_test(suite, "weights", test_weights) ||
            !CU_add_test(suite, "shapes refused", test_shapes_refused) ||
            !CU_add_test(suite, "keys refused", test_keys_refused) ||
            !CU_add_test(suite, "tensors refused", test_tensors_refused) ||
            !CU_add_test(suite, "the forward pass against f64", test_forward) ||
            !CU_add_test(suite, "the same bits in any chunks", test_chunks))
                return 1;
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures() + CU_get_number_of_tests_failed();
        CU_cleanup_registry();
        return failures ? 1 : 0;
}
