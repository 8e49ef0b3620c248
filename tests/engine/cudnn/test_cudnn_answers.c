/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems on both sides of limits of the cudnn engine, compared with tests/golden/cudnn_answers.txt, which has the
 * number of operations of a graph or the reason of a refusal. The table of support is tested in test_cudnn_support.c.
 * After an intended change, FXA_TEST_UPDATE=1 writes the text.
 */
#include "cudnn_graph_cases.h"
#include "engine/cudnn/cudnn.h"

static void answer_far(fxa_problem *p) { p->map_q.base = 1 << 24, p->sq = 1 << 4; }
static void answer_wide(fxa_problem *p) { p->map_q.base = (1 << 24) - 20; }
static void answer_wider(fxa_problem *p) { p->map_q.base = (1 << 24) - 19; }
static void answer_below(fxa_problem *p) { p->map_k.base = -1; }
static void answer_first(fxa_problem *p) { p->map_k.base = -(1 << 24); }
static void answer_before(fxa_problem *p) { p->map_k.base = -(1 << 24) - 1; }
static void answer_steps(fxa_problem *p) { p->map_q.step = 2; }
static void answer_table(fxa_problem *p) { p->map_q.kind = FXA_MAP_TABLE; }
static void answer_offset(fxa_problem *p) { p->map_h.has_offset = 1; }
static void answer_segments(fxa_problem *p) {
    p->map_q.kind = FXA_MAP_SEGMENTS, p->map_q.n_segments = 2, p->map_q.segment[1] = (fxa_segment){7, 1 << 24, -1};
}
static void answer_aligned(fxa_problem *p) {
    p->flags |= FXA_BOTTOM_RIGHT;
    p->map_q.kind = FXA_MAP_SEGMENTS, p->map_q.n_segments = 2, p->map_q.segment[1] = (fxa_segment){7, 7, 1};
}
static void answer_lengths(fxa_problem *p) { p->global_q_len = 1 << 20, p->global_k_len = 1 << 25; }
static void answer_heads(fxa_problem *p) { p->global_heads = 1 << 23; }
static void answer_stride(fxa_problem *p) {
    p->dq.layout = FXA_LAYOUT_STRIDED, p->dq.dtype = FXA_BF16;
    const int64_t stride[4] = {4 * 64 * 17, 64 * 17, 17, 1};
    memcpy(p->dq.stride, stride, sizeof stride);
}
static void answer_columns(fxa_problem *p) {
    p->q.layout = FXA_LAYOUT_STRIDED;
    const int64_t stride[4] = {4 * 21 * 32, 21 * 32, 32, 2};
    memcpy(p->q.stride, stride, sizeof stride);
}
static void answer_entries(fxa_problem *p) {
    p->k.layout = FXA_LAYOUT_STRIDED;
    const int64_t stride[4] = {4 * 50 * 16 + 4, 50 * 16, 16, 1};
    memcpy(p->k.stride, stride, sizeof stride);
}
static void answer_f32(fxa_problem *p) { p->o.dtype = FXA_F32; }
static void answer_k_f16(fxa_problem *p) { p->k.dtype = FXA_F16; }

#define TENSOR(type, more) "tensor x : " type more
#define GRAD(more) "tensor t : bf16[" more

static const graph_case answer_cases[] = {
    /* Ints that floats hold. */
    {"float of an int of 2^24", TENSOR("i32", "[1]\nscore = score + float(clamp(x[k], 0, 16777216))"),
     .captures = {{.size = {30}}}},
    {"float of an int of 2^24 + 1", TENSOR("i32", "[1]\nscore = score + float(clamp(x[k], 0, 16777217))"),
     .captures = {{.size = {30}}}},
    {"float of an int of -2^24", TENSOR("i32", "[1]\nscore = score + float(clamp(x[k], -16777216, 0))"),
     .captures = {{.size = {30}}}},
    {"float of an int of -2^24 - 1", TENSOR("i32", "[1]\nscore = score + float(clamp(x[k], -16777217, 0))"),
     .captures = {{.size = {30}}}},
    {"float of any int", TENSOR("i32", "[1]\nscore = score + float(x[k])"), .captures = {{.size = {30}}}},
    {"float of i16", TENSOR("i16", "[1]\nscore = score + float(x[k])"), .captures = {{.size = {30}}}},
    {"float of a bool", .text = "score = score + float(k < 3)"},
    {"int of a float", .text = "score = score + float(clamp(int(score), 0, 9))"},
    {"int of a bool", .text = "score = score + float(int(k < 3))"},
    {"product of 2^24", TENSOR("i32", "[1]\nmask = clamp(x[k], 0, 4096) * clamp(x[q], 0, 4096) == 9"),
     .captures = {{.size = {30}}}},
    {"product of more than 2^24", TENSOR("i32", "[1]\nmask = clamp(x[k], 0, 4096) * clamp(x[q], 0, 4097) == 9"),
     .captures = {{.size = {30}}}},
    {"product of -2^24", TENSOR("i32", "[1]\nmask = clamp(x[k], 0, 4096) * clamp(x[q], -4096, 0) == 9"),
     .captures = {{.size = {30}}}},
    {"product of less than -2^24", TENSOR("i32", "[1]\nmask = clamp(x[k], 0, 4096) * clamp(x[q], -4097, 0) == 9"),
     .captures = {{.size = {30}}}},
    {"sum of any ints", TENSOR("i32", "[1]\nmask = x[k] + x[q] - q == -k"), .captures = {{.size = {30}}}},
    {"minimum of any ints", TENSOR("i32", "[1]\nmask = min(x[k], x[q]) == k"), .captures = {{.size = {30}}}},
    {"absolute value of any int", TENSOR("i32", "[1]\nmask = abs(x[k]) == q"), .captures = {{.size = {30}}}},
    {"comparison of i64", TENSOR("i64", "[1]\nmask = x[k] == x[q]"), .captures = {{.size = {30}}}},
    {"comparison of i64 beside a sum", TENSOR("i64", "[1]\nmask = x[k] + 1 == x[q]"), .captures = {{.size = {30}}}},
    /* Quotients. */
    {"quotient of 2^22", TENSOR("i32", "[1]\nmask = clamp(x[k], 0, 4194304) // 3 == q"), .captures = {{.size = {30}}}},
    {"quotient of 2^22 + 1", TENSOR("i32", "[1]\nmask = clamp(x[k], 0, 4194305) // 3 == q"),
     .captures = {{.size = {30}}}},
    {"quotient of -1", TENSOR("i32", "[1]\nmask = clamp(x[k], -1, 9) // 3 == q"), .captures = {{.size = {30}}}},
    {"quotient by 1", .text = "mask = (k + q) // 1 == q"},
    {"quotient by 0", .text = "mask = (k + q) // 0 == q"},
    {"quotient by -3", .text = "mask = (k + q) // -3 == q"},
    {"quotient by an index", .text = "mask = k // (q + 1) == 2"},
    {"quotient by a param", .text = "param w : int\nmask = k // w == 2"},
    {"remainder by -3", .text = "mask = k % -3 == 0"},
    {"remainder of floats", .text = "score = score % 3.0"},
    {"quotient of floats", .text = "score = score // 3.0"},
    /* Operations without a rule. */
    {"shift", .text = "mask = k >> 3 == q"},
    {"bits", .text = "mask = (k & 3) == q"},
    {"bits of a complement", .text = "mask = ~k == q"},
    {"selected ints", .text = "mask = (k < 3 ? q : k) == 2"},
    {"selected bools", .text = "mask = k < 3 ? q < 2 : k == 5"},
    {"power of 5", .text = "score = score ** 5.0"},
    {"power of -1", .text = "score = (score + 9.0) ** -1.0"},
    {"power of -2", .text = "score = (score + 9.0) ** -2.0"},
    {"power of a param", .text = "param w : float\nscore = score ** w"},
    {"power of 2", .text = "score = 2.0 ** score"},
    {"power of the score", .text = "score = 3.0 ** score"},
    /* Coordinates. */
    {"rows from 2^24", .text = "score = score + float(q)", .more = answer_far},
    {"rows to 2^24", .text = "score = score + float(q - 9)", .more = answer_wide},
    {"rows to 2^24 + 1", .text = "score = score + float(q - 9)", .more = answer_wider},
    {"keys from -1", .text = "mask = k <= q", .more = answer_below},
    {"keys from -2^24", .text = "score = score + float(k)", .more = answer_first},
    {"keys from -2^24 - 1", .text = "score = score + float(k)", .more = answer_before},
    {"every second row", .text = "mask = k <= q && q - k <= 5", .more = answer_steps},
    {"rows of a table", .text = "mask = k <= q", .more = answer_table},
    {"load at rows of a table", TENSOR("f32", "[1]\nscore = score + x[q]"), .captures = {{.size = {30}}},
     .more = answer_table},
    {"load at an offset of heads", TENSOR("f32", "[1]\nscore = score + x[h]"), .captures = {{.size = {30}}},
     .more = answer_offset},
    {"rows of segments from 9 on minus 2^24 + 9", .text = "score = score + float(q - 16777225)",
     .more = answer_aligned},
    {"rows of segments from 9 on minus 2^24 + 10", .text = "score = score + float(q - 16777226)",
     .more = answer_aligned},
    {"rows of segments beyond 2^24", .text = "score = score + float(q)", .more = answer_segments},
    {"lengths of the problem", .text = "score = score + float(k_len)", .more = answer_lengths},
    {"keys to the end of the problem", .text = "score = score + float(k_len - k)", .more = answer_lengths},
    {"keys to the end of a batch entry", .text = "score = score + float(k_len - k)", .flags = FXA_PADDING},
    {"rows counted to the last key", .text = "score = score + float(q)", .flags = FXA_BOTTOM_RIGHT,
     .more = answer_lengths},
    {"heads of the problem", .text = "score = score + float(heads)", .more = answer_heads},
    /* Loads. */
    {"load at a sum", TENSOR("f32", "[1]\nscore = score + x[k + 1]"), .captures = {{.size = {31}}}},
    {"load at the last element", TENSOR("f32", "[2]\nscore = score + x[k, 4]"), .captures = {{.size = {30, 5}}}},
    {"load past the last element", TENSOR("f32", "[2]\nscore = score + x[k, 5]"), .captures = {{.size = {30, 5}}}},
    {"load from the end", TENSOR("f32", "[2]\nscore = score + x[k, -5]"), .captures = {{.size = {30, 5}}}},
    {"load before the first element", TENSOR("f32", "[2]\nscore = score + x[k, -6]"), .captures = {{.size = {30, 5}}}},
    {"load at the same index twice", TENSOR("f32", "[2]\nscore = score + x[k, k]"), .captures = {{.size = {30, 31}}}},
    {"load past the end twice", TENSOR("f32", "[2]\nscore = score + x[k, k]"), .captures = {{.size = {29, 29}}}},
    {"load of f64", TENSOR("f64", "[1]\nscore = score + x[k]"), .captures = {{.size = {30}}}},
    {"load of i64", TENSOR("i64", "[1]\nmask = x[k] <= q"), .captures = {{.size = {30}}}},
    {"load of heads for one row", TENSOR("f32", "[1]\nscore = score + x[h]"), .captures = {{.size = {4}}}, .sq = 1},
    {"load of heads for one pair", TENSOR("f32", "[1]\nscore = score + x[h]"), .captures = {{.size = {4}}}, .sq = 1,
     .sk = 1},
    /* Masks. */
    {"mask far from 0", .text = "mask = k <= q + 16777216"},
    {"mask farther from 0", .text = "mask = k <= q + 16777217 && q - k <= 2000000000"},
    {"mask by a param", .text = "param w : int\nmask = k - q <= w + 16777216"},
    {"mask by a param far from 0", .text = "param w : int\nmask = k - q <= w + 16777217"},
    {"mask by a param far below 0", .text = "param w : int\nmask = k - q <= w - 16777217"},
    {"mask by a param and 2^24", .text = "param w : int\nmask = k - q - 16777216 <= w"},
    {"mask by a param and 2^24 + 1", .text = "param w : int\nmask = k - q - 16777217 <= w"},
    {"mask by a param less 2^24", .text = "param w : int\nmask = q - k + 16777216 <= w"},
    {"mask by a param less 2^24 + 1", .text = "param w : int\nmask = q - k + 16777217 <= w"},
    {"mask by a tensor and 2^24 + 1", TENSOR("i32", "[1]\nmask = k - q - 16777217 <= x[h]"),
     .captures = {{.size = {4}}}},
    {"mask by a tensor less 2^24 + 1", TENSOR("i32", "[1]\nmask = k - q + 16777217 <= x[h]"),
     .captures = {{.size = {4}}}},
    {"mask by a param that may wrap", .text = "param w : int\nmask = k <= q + w"},
    {"mask by a tensor", TENSOR("i32", "[1]\nmask = k - q <= x[h] + 3"), .captures = {{.size = {4}}}},
    {"mask by a tensor with a minus", TENSOR("i32", "[1]\nmask = k - q >= x[h] && q - k > -5 - x[h]"),
     .captures = {{.size = {4}}}},
    {"mask by a tensor that may wrap", TENSOR("i32", "[1]\nmask = k <= q + x[h]"), .captures = {{.size = {4}}}},
    {"mask by a tensor far from 0", TENSOR("i32", "[1]\nmask = k - q <= x[h] + 16777217"), .captures = {{.size = {4}}}},
    {"mask of one row", .text = "mask = k < 9", .sq = 1, .pass = FXA_BACKWARD},
    {"mask of nothing", .text = "mask = false", .sq = 1, .pass = FXA_BACKWARD},
    {"mask of everything", .text = "mask = true", .sq = 1, .pass = FXA_BACKWARD},
    {"one row of 128 keys", .text = "score = score + float(k)", .sq = 1, .sk = 128},
    {"one row of 129 keys", .text = "score = score + float(k)", .sq = 1, .sk = 129},
    /* Gradients of tensors. */
    {"gradient of pairs", GRAD("2]\nscore = score + t[q, k]"), .captures = {{.size = {64, 128}, .grad = 1}},
     .pass = FXA_BACKWARD, .sq = 64, .sk = 128},
    {"gradient of all", GRAD("4]\nscore = score + t[b, h, q, k]\nmask = k <= q"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {2, 4, 64, 128}, .grad = 1}}, .sk = 128},
    {"gradient of all but one row", GRAD("2]\nscore = score + t[q, k]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {63, 128}, .grad = 1}}, .sk = 128},
    {"gradient of more rows", GRAD("2]\nscore = score + t[q, k]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {65, 128}, .grad = 1}}, .sk = 128},
    {"gradient of more keys", GRAD("2]\nscore = score + t[q, k]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {64, 129}, .grad = 1}}, .sk = 128},
    {"gradient of keys and rows", GRAD("2]\nscore = score + t[k, q]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {128, 64}, .grad = 1}}, .sk = 128},
    {"gradient of rows", GRAD("1]\nscore = score + t[q]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {64}, .grad = 1}}, .sk = 128},
    {"gradient of moved rows", GRAD("2]\nscore = score + t[q, k]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {64, 128}, .grad = 1}}, .sk = 128, .more = answer_steps},
    {"gradient at a constant", GRAD("3]\nscore = score + t[0, q, k]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {1, 64, 128}, .grad = 1}}, .sk = 128},
    {"gradient of a factor", GRAD("2]\nscore = score * t[q, k]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {64, 128}, .grad = 1}}, .sk = 128},
    {"gradient of two summands", GRAD("2]\nscore = score + t[q, k] + t[q, k] * 2.0"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {64, 128}, .grad = 1}}, .sk = 128},
    {"gradient beside a function", GRAD("2]\nscore = tanh(score) + t[q, k]"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {64, 128}, .grad = 1}}, .sk = 128},
    {"gradient beside a window", GRAD("2]\nscore = score + t[q, k]\nmask = q - k < 9"), .pass = FXA_BACKWARD, .sq = 64,
     .captures = {{.size = {64, 128}, .grad = 1}}, .sk = 128},
    {"gradient beside another causal mask", GRAD("2]\nscore = score + t[q, k]\nmask = k <= q + 1"), .sq = 64, .sk = 128,
     .captures = {{.size = {64, 128}, .grad = 1}}, .pass = FXA_BACKWARD},
    {"gradient beside two masks", GRAD("2]\nscore = score + t[q, k]\nmask = k <= q && k != 7"), .sq = 64, .sk = 128,
     .captures = {{.size = {64, 128}, .grad = 1}}, .pass = FXA_BACKWARD},
    /* Sizes, strides, dtypes. */
    {"strides of a gradient", .more = answer_stride, .sq = 64, .pass = FXA_BACKWARD},
    {"columns with gaps", .more = answer_columns},
    {"entries at odd multiples of 4", .more = answer_entries},
    {"packed entries at odd multiples of 4", .more = answer_entries, .flags = FXA_VARLEN},
    {"results of f32", .more = answer_f32},
    {"keys of f16", .more = answer_k_f16},
    {"head dim 256", .d = 256},
    {"head dim 264", .d = 264},
    {"head dim 128 on sm_80", .d = 128, .arch = 80},
    {"head dim 136 on sm_80", .d = 136, .arch = 80},
    {"head dim 12", .d = 12},
    {"head dims 200 and 128 beside lengths", .d = 200, .dv = 128, .flags = FXA_PADDING, .pass = FXA_BACKWARD},
    {"head dims 192 and 128 beside lengths", .d = 192, .dv = 128, .flags = FXA_PADDING, .pass = FXA_BACKWARD},
    {"head dims 200 and 136 beside lengths", .d = 200, .dv = 136, .flags = FXA_PADDING, .pass = FXA_BACKWARD},
    {"one pair", .sq = 1, .sk = 1, .pass = FXA_BACKWARD},
    {"one pair forward", .sq = 1, .sk = 1},
    {"row maximum beside a sink", .flags = FXA_RETURN_ROW_MAX | FXA_SINK_ZERO},
    {"row maximum beside lengths", .flags = FXA_RETURN_ROW_MAX | FXA_PADDING},
    {"sink beside lengths", .flags = FXA_SINKS | FXA_PADDING},
    {"gradient of a param", .text = "param a : float\nscore = a * score", .pass = FXA_BACKWARD},
};

/* Writes the answer to a case as a line. */
static void answer_write(fxa_context *ctx, const graph_case *c, fxa__writer *w) {
    static fxa__dnn_attention a;
    fxa_error err;
    graph_opened x = graph_open(ctx, c);
    fxa_status status = x.problem ? fxa__dnn_attention_make(x.problem, x.level, &a, &err) : FXA_E_PROBLEM;
    T_CHECK(status == FXA_OK || status == FXA_E_UNSUPPORTED);
    fxa__write_format(w, "%s: ", c->name);
    if (status == FXA_OK)
        fxa__write_format(w, "%zu operations, %zu helper kernels, %zu tensors\n", a.g.n_ops, a.g.n_steps,
                          a.g.n_tensors);
    else
        fxa__write_format(w, "%s\n", err.text);
    fxa__dnn_attention_free(&a);
    graph_close(&x);
}

CONTEXT_TEST(answers_are_those_of_the_text) {
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = fxa__context_host(ctx)};
    for (size_t i = 0; i < sizeof answer_cases / sizeof *answer_cases; i++) answer_write(ctx, &answer_cases[i], &w);
    fxa__write_u8(&w, 0);
    golden_check(".", "cudnn_answers", (const char *)w.data);
}

/* Writes the key of the code of a problem with this program. */
static void answer_key(fxa_context *ctx, const char *text, fxa__writer *w) {
    const graph_case c = {"key", .text = text};
    graph_opened x = graph_open(ctx, &c);
    T_REQUIRE(x.problem);
    static fxa__dnn_self self;
    self.host = w->host, self.level = x.level;
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = &self, .problem = x.problem};
    fxa__engine_cudnn.key(&a, w);
    fxa__analysis_end(&a);
    T_CHECK(!w->failed && w->size > 0);
    graph_close(&x);
}

/* Code with a constant as a hidden param reads it from the plan, code with the same param reads it from the caller. */
CONTEXT_TEST(keys_tell_hidden_params) {
    static const char *const texts[] = {"score = 3.5 * tanh(score)", "score = 4.5 * tanh(score)",
                                        "param c00 : float\nscore = c00 * tanh(score)",
                                        "param c01 : float\nscore = c01 * tanh(score)"};
    fxa__writer key[4];
    for (int i = 0; i < 4; i++) {
        key[i] = (fxa__writer){.host = fxa__context_host(ctx)};
        answer_key(ctx, texts[i], &key[i]);
        for (int j = 0; j < i; j++) {
            bool same = key[i].size == key[j].size && memcmp(key[i].data, key[j].data, key[i].size) == 0;
            T_INT(same, i == 1);
        }
    }
    for (int i = 0; i < 4; i++) fxa__writer_free(&key[i]);
}

T_MAIN
