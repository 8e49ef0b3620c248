/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems of the cudnn engine with every feature, for test_cudnn_graphs.c and test_cudnn_calls.c.
 */
#ifndef FXA_TESTS_CUDNN_GRAPH_CASES_H
#define FXA_TESTS_CUDNN_GRAPH_CASES_H

#include "engine/cudnn/attention/attention.h"
#include "plan/plan.h"
#include "support/fixtures/golden.h"

typedef struct graph_case {
    const char *name, *text, *own;
    fxa_pass pass;
    uint32_t flags, dtype, lse, layout, page_size;
    int64_t hq, hkv, sq, sk, d, dv; /* 0: 4, as hq, 21, 30, 16, as d */
    fxa_capture captures[2], own_captures[1];
    void (*more)(fxa_problem *p);
    int64_t version; /* 0: 91901 */
    int32_t arch;    /* 0: 90 */
} graph_case;

enum { GRADS = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V, SUMS = FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV };

/* ---- What few problems have -------------------------------------------------------------------------------------- */

static void graph_window(fxa_problem *p) { p->window_left = 5, p->window_right = 2; }
static void graph_wide_window(fxa_problem *p) { p->window_left = 100, p->window_right = 0; }
static void graph_global_keys(fxa_problem *p) { p->global_k_len = 77, p->global_heads = 12; }
static void graph_global_both(fxa_problem *p) { p->global_k_len = 77, p->global_q_len = 60; }
static void graph_sinks_half(fxa_problem *p) { p->sinks.dtype = FXA_BF16; }
static void graph_sinks_strided(fxa_problem *p) {
    p->sinks.layout = p->dsinks.layout = FXA_LAYOUT_STRIDED, p->sinks.dtype = FXA_F32, p->dsinks.dtype = FXA_F16;
    p->sinks.stride[1] = 3, p->dsinks.stride[1] = 2;
}
static void graph_lse_strided(fxa_problem *p) {
    p->lse.layout = p->dlse.layout = FXA_LAYOUT_STRIDED;
    const int64_t lse[4] = {4 * 24, 24, 1, 0}, dlse[4] = {1, 2 * 21, 2, 0};
    memcpy(p->lse.stride, lse, sizeof lse), memcpy(p->dlse.stride, dlse, sizeof dlse);
}
static void graph_affine(fxa_problem *p) {
    p->map_b.base = 3, p->map_h.step = 2, p->map_q.base = 40, p->map_q.step = 3, p->map_k.base = 2;
}
static void graph_moved(fxa_problem *p) { p->map_q.base = 9, p->map_k.base = 2, p->map_b.base = 1; }
static void graph_tables(fxa_problem *p) {
    p->map_q.kind = p->map_k.kind = p->map_h.kind = FXA_MAP_TABLE;
    p->map_q.has_offset = 1, p->map_b.has_offset = 1, p->map_b.base = 4;
}
static void graph_segments(fxa_problem *p) {
    p->map_q.kind = p->map_k.kind = FXA_MAP_SEGMENTS, p->map_q.n_segments = 2, p->map_k.n_segments = 3;
    p->map_q.segment[1] = (fxa_segment){7, 90, -2};
    p->map_k.segment[0].base = 5, p->map_k.segment[1] = (fxa_segment){8, 50, 3};
    p->map_k.segment[2] = (fxa_segment){64, 500, 1}; /* past the last key */
}
static void graph_bytes(fxa_problem *p) {
    p->o.dtype = p->dout.dtype = p->dq.dtype = p->dk.dtype = p->dv.dtype = FXA_E4M3;
}
static void graph_bytes_wide(fxa_problem *p) {
    graph_bytes(p);
    p->dout.dtype = p->dv.dtype = FXA_E5M2, p->d_qk = p->d_v = 128, p->sq = 32;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

#define CAP "param cap : float\nscore = cap * tanh(score / cap)"
#define BIAS "tensor bias : bf16[2]\nscore = score + bias[q, k]"

__attribute__((unused)) static const graph_case graph_cases[] = {
    /* Features. */
    {"plain", .dtype = FXA_F16},
    {"plain_backward", .dtype = FXA_F16, .pass = FXA_BACKWARD, .sq = 64, .sk = 128, .d = 64},
    {"groups", .hkv = 2, .dv = 32, .flags = FXA_RETURN_LSE | FXA_CAUSAL},
    {"groups_backward", .hkv = 2, .dv = 32, .pass = FXA_BACKWARD, .layout = FXA_LAYOUT_BSHD,
     .flags = FXA_DETERMINISTIC},
    {"some_gradients", CAP, .pass = FXA_BACKWARD, .flags = FXA_GRAD_V},
    {"windows", .flags = FXA_CAUSAL | FXA_WINDOW, .more = graph_window},
    {"windows_backward", .flags = FXA_WINDOW | FXA_READ_DLSE, .pass = FXA_BACKWARD, .more = graph_window},
    {"window_of_all_rows", .flags = FXA_WINDOW, .more = graph_wide_window},
    {"bottom_right", .flags = FXA_CAUSAL | FXA_WINDOW | FXA_BOTTOM_RIGHT, .more = graph_window},
    {"bottom_right_coordinates", "score = score + 0.5 * float(k - q)", .flags = FXA_BOTTOM_RIGHT},
    {"padding", .flags = FXA_PADDING | FXA_RETURN_LSE, .hkv = 2},
    {"padding_backward", .flags = FXA_PADDING | FXA_READ_DLSE, .hkv = 2, .pass = FXA_BACKWARD},
    {"padding_bottom_right", .flags = FXA_PADDING | FXA_CAUSAL | FXA_BOTTOM_RIGHT},
    {"padding_windows", .flags = FXA_PADDING | FXA_WINDOW | FXA_BOTTOM_RIGHT, .more = graph_window},
    {"padding_coordinates", "score = score + 0.5 * float(clamp(k - q, -99, 99))",
     .flags = FXA_PADDING | FXA_BOTTOM_RIGHT},
    {"lengths", "score = score * float(k_len - q_len)\nmask = k < k_len - 3", .flags = FXA_PADDING},
    {"global_lengths", "score = score * float(k_len + heads)\nmask = k < k_len - 50 && q < q_len - 1",
     .flags = FXA_PADDING, .more = graph_global_keys},
    {"global_bottom_right", .flags = FXA_CAUSAL | FXA_BOTTOM_RIGHT, .more = graph_global_both},
    {"global_keys_bottom_right", "mask = k <= q + k_len - q_len || k < 4", .flags = FXA_PADDING,
     .more = graph_global_keys},
    {"packed", .flags = FXA_VARLEN | FXA_RETURN_LSE, .layout = FXA_LAYOUT_BSHD},
    {"packed_wide_lse", .flags = FXA_VARLEN | FXA_RETURN_LSE, .lse = FXA_F64},
    {"packed_backward", .flags = FXA_VARLEN | FXA_READ_DLSE | SUMS, .pass = FXA_BACKWARD, .layout = FXA_LAYOUT_BSHD},
    {"packed_lengths", .flags = FXA_VARLEN | FXA_PADDING | FXA_CAUSAL | FXA_BOTTOM_RIGHT},
    {"packed_backward_9_14", .flags = FXA_VARLEN | GRADS, .pass = FXA_BACKWARD, .version = 91400},
    {"padding_9_14", .flags = FXA_PADDING | FXA_RETURN_LSE, .version = 91400},
    {"pages", .flags = FXA_PAGED | FXA_PADDING, .sq = 1, .page_size = 16},
    {"pages_of_many_rows", .flags = FXA_PAGED | FXA_PADDING, .hkv = 2, .page_size = 16},
    {"pages_that_are_full", .flags = FXA_PAGED | FXA_PADDING, .sq = 1, .sk = 32, .page_size = 16},
    {"pages_of_12", .flags = FXA_PAGED | FXA_PADDING | FXA_RETURN_LSE, .sq = 1, .page_size = 12},
    {"pages_of_packed_rows", .flags = FXA_PAGED | FXA_VARLEN, .page_size = 16},
    {"sinks", .flags = FXA_SINKS | FXA_RETURN_LSE, .more = graph_sinks_strided},
    {"sink_zero", .flags = FXA_SINK_ZERO | FXA_CAUSAL},
    {"sinks_backward", .flags = FXA_SINKS | FXA_GRAD_SINKS | FXA_ACCUMULATE_DSINKS | FXA_READ_DLSE,
     .pass = FXA_BACKWARD, .more = graph_sinks_strided},
    {"sink_zero_backward", .flags = FXA_SINK_ZERO, .pass = FXA_BACKWARD},
    {"half_sinks", .flags = FXA_SINKS, .more = graph_sinks_half},
    {"row_maxima", .flags = FXA_RETURN_ROW_MAX | FXA_RETURN_LSE},
    {"row_maxima_alone", .flags = FXA_RETURN_ROW_MAX},
    {"wide_lse", .flags = FXA_RETURN_LSE, .lse = FXA_F64},
    {"strided_lse", .flags = FXA_RETURN_LSE, .more = graph_lse_strided},
    {"strided_lse_backward", .flags = FXA_READ_DLSE, .pass = FXA_BACKWARD, .more = graph_lse_strided},
    {"joined", .flags = FXA_ACCUMULATE_O | FXA_RETURN_LSE, .layout = FXA_LAYOUT_SBHD},
    {"joined_row_maxima", .flags = FXA_ACCUMULATE_O | FXA_RETURN_LSE | FXA_RETURN_ROW_MAX},
    {"joined_padding", .flags = FXA_ACCUMULATE_O | FXA_RETURN_LSE | FXA_PADDING, .lse = FXA_F64},
    {"sums", .flags = SUMS, .pass = FXA_BACKWARD, .hkv = 2},
    {"memory", CAP "\nmask = k <= q + 2", .flags = FXA_SCALARS_IN_MEMORY},
    {"memory_bare", .flags = FXA_SCALARS_IN_MEMORY},
    {"memory_backward", CAP "\nparam w : int\nmask = q - k < w", .flags = FXA_SCALARS_IN_MEMORY, .pass = FXA_BACKWARD},
    {"one_row", CAP, .sq = 1, .sk = 300},
    {"of_sm_80_backward", CAP, .pass = FXA_BACKWARD, .flags = FXA_CAUSAL, .arch = 80},
    /* Coordinates. */
    {"affine", "score = score + 0.25 * float(q - k) + float(b + h)", .more = graph_affine},
    {"affine_masks", "mask = k <= q + 1 && q - k < 30", .more = graph_moved},
    {"tables",
     "score = score + 0.25 * float(clamp(k - q, -99, 99)) + float(clamp(b, 0, 9) + clamp(h, 0, 9))\nmask = k <= q",
     .more = graph_tables},
    {"tables_bottom_right", "score = score + 0.25 * float(clamp(k - q, -99, 99))", .flags = FXA_BOTTOM_RIGHT,
     .more = graph_tables},
    {"tables_backward", "score = score * (0.01 * float(clamp(k, 0, 99)))", .pass = FXA_BACKWARD, .more = graph_tables},
    {"segments", "score = score + 0.25 * float(q - k)\nmask = k <= q && q_row != k_row", .more = graph_segments},
    {"row_starts", "score = score + 0.25 * float(clamp(k - q, -99, 99))", .flags = FXA_Q_START | FXA_CAUSAL},
    /* Captured tensors. */
    {"tensor_of_pairs", "tensor t : f32[4]\nscore = score + t[b, h, q, k]", .captures = {{.size = {2, 4, 21, 30}}}},
    {"tensor_of_pairs_backward", "tensor t : f16[2]\nscore = score * t[q, k]", .captures = {{.size = {21, 30}}},
     .pass = FXA_BACKWARD},
    {"tensor_turned", "tensor t : bf16[2]\nscore = score * t[k, q]", .captures = {{.size = {30, 21}}}},
    {"tensor_of_heads", "tensor t : f32[2]\nscore = score * t[h, 1] + t[3, 0]", .captures = {{.size = {4, 2}}}},
    {"tensor_of_entries", "tensor t : f32[1]\nscore = score * t[b]", .captures = {{.size = {2}}}},
    {"tensor_of_entries_backward", "tensor t : f32[1]\nscore = score * t[b]", .captures = {{.size = {2}}},
     .pass = FXA_BACKWARD},
    {"tensor_of_rows", "tensor t : f32[2]\nscore = score * t[b, q]", .captures = {{.size = {2, 21}}}},
    {"tensor_of_keys_backward", "tensor t : f32[1]\nscore = score + t[k]", .captures = {{.size = {30}}},
     .pass = FXA_BACKWARD},
    {"tensor_of_heads_and_rows_backward", "tensor t : f32[2]\nscore = score * t[h, q]", .captures = {{.size = {4, 21}}},
     .pass = FXA_BACKWARD},
    {"tensor_of_bytes", "tensor t : i8[1]\ntensor x : e4m3[1]\nscore = score + float(t[k]) + x[q]",
     .captures = {{.size = {30}}, {.size = {21}}}},
    {"tensor_too_short", "tensor t : f32[2]\nscore = score + t[q, k]", .captures = {{.size = {15, 12}}}},
    {"tensor_too_short_moved", "tensor t : f32[2]\nscore = score + t[q, k]", .captures = {{.size = {15, 12}}},
     .more = graph_moved},
    {"tensor_never_reached", "tensor t : f32[2]\nscore = score + t[b, q]", .captures = {{.size = {2, 4}}},
     .more = graph_moved},
    {"tensor_backwards", "tensor t : f32[1]\ntensor x : i32[2]\nscore = score + t[k] * float(clamp(x[h, k], 0, 9))",
     .captures = {{.size = {30}, .stride = {-2}, .strided = 1}, {.size = {4, 30}, .stride = {64, 2}, .strided = 1}}},
    {"tensor_with_gaps", "tensor t : bf16[2]\nscore = score + t[q, k]",
     .captures = {{.size = {21, 30}, .stride = {128, 2}, .strided = 1}}},
    {"keys_with_gaps_on_sm_100", "tensor t : f32[2]\nscore = score + t[q, k]", .arch = 100,
     .captures = {{.size = {21, 30}, .stride = {128, 2}, .strided = 1}}},
    {"tensor_of_heads_for_one_row", "tensor t : f32[1]\nscore = score + t[h]", .sq = 1, .captures = {{.size = {4}}}},
    {"documents", "tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k]", .captures = {{.size = {2, 30}}}},
    {"documents_backward", "tensor ids : i32[1]\nmask = ids[q] == ids[k] && k <= q", .captures = {{.size = {30}}},
     .pass = FXA_BACKWARD},
    /* Masks. */
    {"masks", .text = "param w : int\nparam v : int\nmask = k - q <= w && q - k < v && (k <= q || k < 5)"},
    {"masks_by_negated_tensor", "tensor w : i32[1]\nmask = k - q >= w[h] && q - k > -5 - w[h]",
     .captures = {{.size = {4}}}},
    {"masks_of_several_bounds", .text =
                                    "param w : int\nmask = k - q <= w && k <= q + 3 && k - q <= 7 && q - k - 4 <= w && "
                                    "q - k <= 19 && q - k <= 12"},
    {"masks_by_entry_and_bound", "mask = k <= q + k_len - q_len && k <= q + 5 && q - k < k_len", .flags = FXA_PADDING},
    {"masks_beyond_all_pairs", .text = "param w : int\nmask = k <= q + 29 && q - k <= 20 && k - q - 99 <= w"},
    {"masks_of_one_row", "mask = k <= q + k_len - q_len", .flags = FXA_PADDING, .sq = 1},
    {"masks_by_head", .text = "mask = q - k < 4 * (h + 1) && k - q < 2 * h"},
    {"masks_by_tensor", "tensor w : i32[1]\nmask = k - q <= w[h] - 3 && q - k <= w[h] && k < w[h]",
     .captures = {{.size = {4}}}},
    {"masks_of_score", .text = "mask = score < 3.0 || k == q"},
    {"masks_moved", "mask = k <= q || k < 6", .flags = FXA_Q_START},
    {"prefix_by_entry", .flags = FXA_PADDING, .text = "mask = k <= q + k_len - q_len || k < 6"},
    {"window_by_head_and_entry", "mask = k - q <= 2 * h + k_len - q_len", .flags = FXA_PADDING},
    /* Operations. */
    {"turns", .text = "score = score + sin(score) * cos(float(q - k)) + tan(0.1 * score)"},
    {"functions", .text = "score = exp2(score) + log2(abs(score) + 1.0) + atan(score) + sigmoid(erf(floor(score)))\n"
                          "mask = !(sqrt(abs(score)) < 0.5)"},
    {"more_functions", .text = "score = min(max(score, float(k)), 9.0) + clamp(score, -2.0, float(q)) - (1.0 - score)"},
    {"powers",
     .text = "score = score ** 2 + score ** 3 - (score + 1.0) ** 4 + (score + 9.0) ** -1 + 2.0 - 0.5 / rsqrt(score)"},
    {"quotients", .text = "score = score + float(q // 5 - k % 3) + floor(score / 3.0) - float(q - 4 - k) * 2.0"},
    {"quotients_by_params",
     .text = "param w : int\nscore = score + 0.25 * float((q + k) // w)\nmask = k % (w + 2) != 1 && w - q < 4"},
    {"bools", .text = "param f : int\nmask = (q < k) ^ (k % 2 == 0) || f > 2 && q != 3 && 0.5 < score && !(k <= 7)"},
    {"selects",
     .text =
         "param a : float\nscore = (k < 4 ? score : 2.0) + (q <= k ? a : score) + (score < 1.0 ? score : float(k))\n"
         "mask = (k < 9 ? q < 3 : k == q)"},
    {"operations_of_tensors",
     "tensor t : f32[2]\nscore = score + exp(t[q, k]) + exp2(t[q, k]) + log2(t[q, k]) + atan(t[q, k]) + sin(t[q, k]) + "
     "floor(t[q, k] / 3.0) + t[q, k] ** 2 + t[q, k] ** -1 + max(t[q, k], 0.5) + (1.0 - t[q, k]) + t[q, k] * score + "
     "t[q, k] // 2.0 - t[q, k]\nmask = t[q, k] < 0.5 || 0.5 <= t[q, k]",
     .captures = {{.size = {21, 30}}}},
    {"operations_of_int_tensors",
     "tensor x : i32[2]\ntensor y : i8[1]\nscore = score + float(clamp(x[q, k], 0, 99)) + float(y[k] * y[k] - 3) + "
     "float(-y[k]) + float(min(y[k], 5) + abs(y[k]))\n"
     "mask = x[q, k] < 3 || clamp(x[q, k], 0, 9) // 2 == 1 || 7 - x[q, k] == k || 2 < x[q, k] && x[q, k] != y[k]",
     .captures = {{.size = {21, 30}}, {.size = {30}}}},
    {"operations_of_bool_tensors",
     "tensor on : bool[2]\ntensor t : f32[2]\nscore = (on[q, k] ? score : t[q, k]) + (on[q, k] ? t[q, k] : score) + "
     "(on[q, k] ? t[q, k] : 0.5) + float(on[q, k])\nmask = !on[q, k] || on[q, k] && k < 3 || (on[q, k] ^ (q < 5))",
     .captures = {{.size = {21, 30}}, {.size = {21, 30}}}},
    {"operations_of_params",
     "param a : float\nparam w : int\nscore = (w < 3 ? score : 0.5) + (w < 3 ? a : score) + tanh(a) * score + (a - "
     "score) "
     "+ (k < w ? a : 2.0) + max(score, a) + min(a, score) + clamp(score, a, 9.0) + a / (score + 9.0) + float(clamp(w, "
     "0, 9) - k) + "
     "float(k - clamp(w, 0, 9)) + exp2(a)\nmask = w < 3 || k < 3 || w == k && a < score",
     .captures = {{.size = {21, 30}}}},
    {"operations_of_params_backward",
     "param a : float\nscore = tanh(score * a) * a + max(score, a) + (score < a ? score : a) + score / a",
     .pass = FXA_BACKWARD},
    {"products_of_tensors_backward",
     "tensor t : f32[2]\nscore = exp(score * t[q, k]) + score * exp(t[q, k]) + score / t[q, k] + t[q, k] / (score + "
     "9.0) "
     "+ (-score) * (score + t[q, k]) - 2.0 * (score * score)",
     .captures = {{.size = {21, 30}}}, .pass = FXA_BACKWARD},
    /* Derivatives. */
    {"numbers_in_place_backward", "score = tanh(score / 1e30) * 1e25 + score * 1e-30 + 1e20 / (score + 1e22)",
     .pass = FXA_BACKWARD},
    {"factors_of_the_tanh", .text = "param a : float\nscore = tanh(a / (score + 9.0)) + tanh(a * score)"},
    {"quotient_of_the_tanh", .text = "param a : float\nscore = tanh(a / score)"},
    {"difference_of_the_tanh", .text = "param a : float\nscore = tanh(score - a)"},
    {"soft_cap_backward", CAP, .pass = FXA_BACKWARD},
    {"functions_backward", "score = exp(score) + log(abs(score) + 1.0) + atan(score) / (sqrt(abs(score)) + 1.0)",
     .pass = FXA_BACKWARD, .sq = 64, .sk = 128},
    {"products_backward", "tensor t : f32[2]\nscore = tanh(score) * sigmoid(score) * t[q, k] + max(score, 0.5)",
     .captures = {{.size = {21, 30}}}, .pass = FXA_BACKWARD},
    {"flat_backward", "score = floor(score) + 0.5 * score", .pass = FXA_BACKWARD},
    {"with_gradient_backward", "score = with_grad(score, float(k))", .pass = FXA_BACKWARD},
    {"own", "score = 8.0 * tanh(score / 8.0)\nmask = k <= q",
     "tensor x : f32[2]\nparam a : float\nlet t = tanh(score / 8.0)\ndscore = dscore * (a - t * t) + x[q, k]",
     .own_captures = {{.size = {21, 30}}}, .pass = FXA_BACKWARD},
    {"own_tables", "score = score + float(clamp(k, 0, 99))", "dscore = dscore * float(clamp(k + q, 0, 99))",
     .more = graph_tables, .pass = FXA_BACKWARD},
    {"tensor_gradient", BIAS, .captures = {{.size = {64, 128}, .grad = 1}}, .pass = FXA_BACKWARD, .sq = 64, .sk = 128},
    {"tensor_gradient_by_head", "tensor bias : bf16[3]\nscore = score + bias[h, q, k]\nmask = k <= q",
     .captures = {{.size = {4, 64, 128}, .grad = 1}}, .pass = FXA_BACKWARD, .sq = 64, .sk = 128},
    /* 8 bits. */
    {"bytes", .dtype = FXA_E4M3, .flags = FXA_CAUSAL | FXA_RETURN_LSE, .more = graph_bytes},
    {"bytes_scaled", .dtype = FXA_E4M3, .flags = FXA_SCALED, .more = graph_bytes},
    {"bytes_program", "param a : float\nscore = 4.0 * tanh(score * a) + float(k)", .dtype = FXA_E4M3,
     .flags = FXA_SCALED, .more = graph_bytes},
    {"bytes_of_one_head", "score = score * 0.5 + 1.0", .dtype = FXA_E4M3, .hq = 1, .more = graph_bytes},
    {"bytes_backward", .dtype = FXA_E4M3, .flags = FXA_SCALED, .hkv = 2, .pass = FXA_BACKWARD,
     .more = graph_bytes_wide},
    {"bytes_program_backward", "tensor t : f32[2]\nscore = 0.5 * score + 0.02 * float(k) + t[q, k]", .dtype = FXA_E4M3,
     .pass = FXA_BACKWARD, .captures = {{.size = {32, 30}}}, .more = graph_bytes_wide},
};

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

static fxa_problem graph_problem(const graph_case *c) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_operand *rows[] = {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv, &p.lse, &p.row_max, &p.dlse};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) rows[i]->layout = c->layout;
    p.pass = (uint32_t)c->pass, p.device = FXA_CUDA, p.alignment = 16, p.flags = c->flags;
    if (c->pass == FXA_BACKWARD && !(p.flags & GRADS)) p.flags |= GRADS;
    p.b = 2, p.hq = c->hq ? c->hq : 4, p.hkv = c->hkv, p.sq = c->sq ? c->sq : 21, p.sk = c->sk ? c->sk : 30;
    p.d_qk = c->d ? c->d : 16, p.d_v = c->dv, p.q.dtype = c->dtype ? c->dtype : (uint32_t)FXA_BF16;
    p.lse.dtype = c->lse, p.page_size = c->page_size, p.n_pages = c->page_size ? 9 : 0;
    if (c->flags & FXA_VARLEN) p.total_q = 40, p.total_k = c->flags & FXA_PAGED ? 0 : 50;
    if (c->more) c->more(&p);
    return p;
}

static fxa_program *graph_program(fxa_context *ctx, const char *text, fxa_program_kind kind) {
    fxa_program *program = NULL;
    fxa_text part = {"graph", text, SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_error err;
    config.texts = &part, config.n_texts = 1, config.kind = (uint32_t)kind;
    if (text) T_OK(fxa_program_parse_texts(ctx, &config, &program, &err));
    return program;
}

typedef struct graph_opened {
    fxa_program *program, *own;
    fxa__problem *problem;
    fxa__dnn_level level; /* cuDNN's version and the architecture */
} graph_opened;

/* Makes the problem of a case. */
static graph_opened graph_open(fxa_context *ctx, const graph_case *c) {
    fxa_error err;
    fxa_problem p = graph_problem(c);
    graph_opened out = {graph_program(ctx, c->text, FXA_PROGRAM_SCORE),
                        graph_program(ctx, c->own, FXA_PROGRAM_BPROP),
                        NULL,
                        {c->version ? c->version : 91901, c->arch ? c->arch : 90}};
    p.program = out.program, p.bprop = out.own, p.captures = c->captures, p.bprop_captures = c->own_captures;
    p.n_captures = out.program ? fxa_program_tensor_count(out.program) : 0;
    p.n_bprop_captures = out.own ? fxa_program_tensor_count(out.own) : 0;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &out.problem, &err));
    return out;
}

static void graph_close(graph_opened *x) {
    fxa__problem_release(x->problem);
    fxa_program_destroy(x->program);
    fxa_program_destroy(x->own);
}

#endif
