/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems of the cuda engine with every feature, for test_cuda_plan_texts.c.
 */
#ifndef FXA_TESTS_CUDA_PLAN_CASES_H
#define FXA_TESTS_CUDA_PLAN_CASES_H

#include "cuda_plan_members.h"

typedef struct plan_case {
    const char *name, *text, *own;
    fxa_pass pass;
    uint32_t flags, dtype;
    int64_t hq, hkv, sq, sk, d, dv; /* 0: 8, 2, 300, 500, 64, as d */
    fxa_capture captures[3];        /* size 0: see plan_capture_sizes */
    void (*more)(fxa_problem *p);
    bool no_grads;      /* backward: of params and captured tensors */
    int32_t forced;     /* cuda_family; 0: none */
    int32_t arch;       /* 0: 90 */
    double scale;       /* 0: 0.125 */
    int32_t processors; /* 0: 132 */
} plan_case;

enum { GRADS = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V };

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

#define CAP "param cap : float\nscore = cap * tanh(score / cap)"
#define SLOPES "score = score - 2.0 ** (-8.0 * float(h + 1) / float(heads)) * float(abs(q - k))"
#define DOCUMENTS "tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k] && k <= q"
#define DENSE "tensor bias : bf16[4]\nscore = score + bias[b, h, q, k]"
#define TABLE "tensor near : f32[2]\nscore = score + near[h, clamp(q - k, -511, 511) + 511]"
#define SCATTER "tensor t : f32[2]\nscore = score + t[h, (q * k) % 16]"
#define HEADS "param a : float\ntensor g : f32[1]\nscore = score * a + g[h] * float(q - k)"

__attribute__((unused)) static const plan_case plan_cases[] = {
    /* Families, sizes, types. */
    {"plain", .flags = 0},
    {"plain_backward", .pass = FXA_BACKWARD},
    {"plain_f16_d128", .dtype = FXA_F16, .d = 128, .flags = FXA_RETURN_LSE},
    {"plain_d256", .d = 256, .flags = FXA_RETURN_LSE},
    {"plain_d40", .d = 40, .dv = 72, .flags = FXA_RETURN_LSE},
    {"plain_d192_128", .d = 192, .dv = 128, .flags = FXA_CAUSAL},
    {"plain_d192_128_backward", .d = 192, .dv = 128, .flags = FXA_CAUSAL, .pass = FXA_BACKWARD},
    {"plain_sm80", .forced = FAMILY_SM80, .flags = FXA_CAUSAL},
    {"plain_sm80_backward", .forced = FAMILY_SM80, .flags = FXA_CAUSAL, .pass = FXA_BACKWARD},
    {"long_sm80_backward", .forced = FAMILY_SM80, .sq = 4100, .pass = FXA_BACKWARD},
    {"long_simt_backward", .forced = FAMILY_SIMT, .sq = 4100, .sk = 4100, .pass = FXA_BACKWARD},
    {"plain_simt", .forced = FAMILY_SIMT, .flags = FXA_CAUSAL},
    {"plain_simt_backward", .forced = FAMILY_SIMT, .flags = FXA_CAUSAL, .pass = FXA_BACKWARD},
    {"plain_f32", .dtype = FXA_F32, .flags = FXA_RETURN_LSE},
    {"plain_f32_backward", .dtype = FXA_F32, .pass = FXA_BACKWARD},
    {"plain_sm_86_backward", .arch = 86, .d = 128, .pass = FXA_BACKWARD},
    {"plain_sm_120", .arch = 120, .flags = FXA_CAUSAL},
    {"results_f32", .more = plan_f32_out},
    {"results_f32_backward", .more = plan_wide_grads, .pass = FXA_BACKWARD},
    {"mixed_types", .more = plan_mixed, .flags = FXA_RETURN_LSE},
    {"mixed_types_backward", .more = plan_mixed, .pass = FXA_BACKWARD},
    {"wide_lse", .more = plan_wide_lse, .flags = FXA_RETURN_LSE},
    {"unaligned", .more = plan_unaligned},
    {"unaligned_backward", .more = plan_unaligned, .pass = FXA_BACKWARD},
    {"strided", .more = plan_strided, .flags = FXA_RETURN_LSE},
    {"strided_backward", .more = plan_strided, .flags = FXA_READ_DLSE, .pass = FXA_BACKWARD},
    {"gaps", .more = plan_gaps},
    {"gaps_backward", .more = plan_gaps, .pass = FXA_BACKWARD},
    {"one_column", .more = plan_one_column, .d = 1},
    {"two_columns", .more = plan_one_column, .d = 2},
    {"room_of_bf16", .more = plan_room, .d = 60},
    {"room_of_f16", .more = plan_room, .d = 60, .dtype = FXA_F16},
    {"room_of_f32", .more = plan_room, .d = 60, .dtype = FXA_F32},
    {"room_backward", .more = plan_room, .d = 60, .pass = FXA_BACKWARD},
    {"scale_of_0", .scale = -1e-300, .pass = FXA_BACKWARD},
    {"scale_below_0", .text = CAP, .scale = -0.5},
    {"no_entry", .more = plan_no_entry, .flags = FXA_RETURN_LSE},
    {"no_queries", .text = DOCUMENTS, .more = plan_no_queries, .flags = FXA_RETURN_LSE},
    {"no_queries_backward", .text = HEADS, .more = plan_no_queries, .flags = FXA_SINKS | FXA_GRAD_SINKS,
     .pass = FXA_BACKWARD},
    {"no_keys", .text = SLOPES, .more = plan_no_keys, .flags = FXA_CAUSAL},
    {"no_keys_backward", .text = TABLE, .more = plan_no_keys, .pass = FXA_BACKWARD},
    {"no_packed_rows", .more = plan_no_rows, .flags = FXA_VARLEN | FXA_ACCUMULATE_O | FXA_RETURN_LSE},
    {"no_packed_rows_backward", .more = plan_no_rows, .flags = FXA_VARLEN | FXA_DETERMINISTIC | GRADS,
     .pass = FXA_BACKWARD},
    {"no_entry_backward", .text = HEADS, .more = plan_no_entry, .flags = FXA_SINKS | FXA_GRAD_SINKS,
     .pass = FXA_BACKWARD},
    /* Features. */
    {"deterministic", .flags = FXA_DETERMINISTIC | GRADS, .pass = FXA_BACKWARD},
    {"deterministic_causal", .flags = FXA_DETERMINISTIC | FXA_CAUSAL | GRADS, .pass = FXA_BACKWARD},
    {"deterministic_long", .flags = FXA_DETERMINISTIC | GRADS, .sq = 9000, .d = 128, .pass = FXA_BACKWARD},
    {"causal_long", .flags = FXA_CAUSAL, .sq = 9000, .sk = 9000, .d = 128},
    {"deterministic_sm80", .flags = FXA_DETERMINISTIC | GRADS, .forced = FAMILY_SM80, .pass = FXA_BACKWARD},
    {"gradients_of_keys", .flags = FXA_GRAD_K, .pass = FXA_BACKWARD},
    {"gradients_of_queries", .flags = FXA_GRAD_Q, .pass = FXA_BACKWARD},
    {"windows", .flags = FXA_CAUSAL | FXA_WINDOW | FXA_BOTTOM_RIGHT, .more = plan_window},
    {"windows_backward", .flags = FXA_WINDOW, .more = plan_window, .pass = FXA_BACKWARD},
    {"padding", .flags = FXA_PADDING | FXA_RETURN_LSE},
    {"padding_backward", .flags = FXA_PADDING | FXA_CAUSAL | FXA_BOTTOM_RIGHT, .pass = FXA_BACKWARD},
    {"packed", .flags = FXA_VARLEN | FXA_RETURN_LSE | FXA_CAUSAL, .more = plan_packed},
    {"packed_backward", .flags = FXA_VARLEN | FXA_READ_DLSE, .more = plan_packed, .pass = FXA_BACKWARD},
    {"packed_deterministic", .flags = FXA_VARLEN | FXA_DETERMINISTIC | GRADS, .more = plan_packed,
     .pass = FXA_BACKWARD},
    {"pages", .flags = FXA_PAGED | FXA_PADDING, .more = plan_pages, .sq = 200},
    {"pages_of_256", .flags = FXA_PAGED | FXA_PADDING, .more = plan_large_pages, .sq = 200},
    {"pages_of_12", .flags = FXA_PAGED | FXA_PADDING, .more = plan_odd_pages, .sq = 200},
    {"pages_of_packed_rows", .flags = FXA_PAGED | FXA_VARLEN, .more = plan_packed_pages},
    {"pages_backward", .flags = FXA_PAGED | FXA_PADDING | FXA_ACCUMULATE_DK | GRADS, .more = plan_pages,
     .pass = FXA_BACKWARD},
    {"sinks", .flags = FXA_SINKS | FXA_CAUSAL},
    {"sinks_of_bf16", .flags = FXA_SINKS, .more = plan_sinks},
    {"sinks_backward", .flags = FXA_SINKS | FXA_GRAD_SINKS | FXA_ACCUMULATE_DSINKS, .more = plan_sinks,
     .pass = FXA_BACKWARD},
    {"sink_zero", .flags = FXA_SINK_ZERO},
    {"row_maxima", .flags = FXA_RETURN_ROW_MAX | FXA_RETURN_LSE},
    {"dropout", .flags = FXA_DROPOUT, .more = plan_dropout},
    {"dropout_backward", .flags = FXA_DROPOUT, .more = plan_dropout, .pass = FXA_BACKWARD},
    {"dropout_moved", .flags = FXA_DROPOUT | FXA_BOTTOM_RIGHT, .more = plan_moved},
    {"dropout_of_starts", .flags = FXA_DROPOUT | FXA_Q_START, .more = plan_dropout, .pass = FXA_BACKWARD},
    {"joined", .flags = FXA_ACCUMULATE_O | FXA_RETURN_LSE},
    {"joined_padding", .flags = FXA_ACCUMULATE_O | FXA_RETURN_LSE | FXA_PADDING, .more = plan_wide_lse},
    {"accumulated", .flags = FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DK | FXA_ACCUMULATE_DV | GRADS, .pass = FXA_BACKWARD},
    {"accumulated_packed", .flags = FXA_ACCUMULATE_DQ | FXA_ACCUMULATE_DV | GRADS | FXA_VARLEN, .more = plan_packed,
     .pass = FXA_BACKWARD},
    {"scalars_in_memory", .text = CAP "\nparam w : int\nmask = q - k <= w", .flags = FXA_SCALARS_IN_MEMORY},
    {"scalars_in_memory_backward", .text = CAP, .flags = FXA_SCALARS_IN_MEMORY, .pass = FXA_BACKWARD},
    {"scalars_in_memory_of_gradients",
     .text = "param a : float\nparam c : float\nparam w : int\nscore = score + a * tanh(c * float(q - k))\n"
             "mask = k - q <= w",
     .flags = FXA_SCALARS_IN_MEMORY, .pass = FXA_BACKWARD},
    {"scalars_in_memory_of_tiles",
     .text = "param w : int\nparam v : int\nparam u : float\nmask = k <= q + w && k * 2 != q + v && float(h) < u",
     .flags = FXA_SCALARS_IN_MEMORY},
    {"scalars_in_memory_own", .text = "param a : float\nscore = a * score",
     .own = "param a : float\nparam z : float\ndscore = a * z * dscore", .flags = FXA_SCALARS_IN_MEMORY,
     .pass = FXA_BACKWARD},
    {"global_lengths", .text = "score = score * float(k_len - q_len + heads)\nmask = k < k_len - 30 && q < q_len - 1",
     .flags = FXA_CAUSAL | FXA_BOTTOM_RIGHT, .more = plan_global},
    {"lengths", .text = "score = score * float(k_len - q_len)\nmask = k < k_len - 30", .flags = FXA_PADDING},
    /* Decoding. */
    {"decode", .sq = 1, .sk = 4096, .flags = FXA_CAUSAL | FXA_BOTTOM_RIGHT | FXA_RETURN_LSE},
    {"decode_one_entry", .sq = 1, .sk = 60000, .more = plan_one_entry, .d = 128},
    {"decode_batch", .text = CAP, .sq = 4, .sk = 2000, .more = plan_batch, .d = 128},
    {"decode_packed", .sq = 1, .sk = 2000, .flags = FXA_VARLEN | FXA_CAUSAL, .more = plan_batch_packed, .d = 128},
    {"decode_pages", .sq = 1, .sk = 4096, .flags = FXA_PAGED | FXA_PADDING | FXA_SINKS, .more = plan_pages},
    {"decode_words", .text = "tensor ids : i32[2]\nmask = ids[b, k] != 0", .sq = 2, .sk = 4096},
    {"decode_table", .text = TABLE, .sq = 1, .sk = 4096},
    {"decode_few_processors", .sq = 1, .sk = 9000, .processors = 20, .more = plan_batch},
    /* Coordinates. */
    {"affine", .text = "score = score + 0.25 * float(q - k) + float(b + h)\nmask = k <= q + 100", .more = plan_affine},
    {"tables", .text = "score = score + 0.25 * float(clamp(k - q, -99, 99)) + float(b)\nmask = k <= q",
     .more = plan_tables},
    {"tables_backward", .text = "score = score * (0.01 * float(clamp(k, 0, 99)))", .more = plan_tables,
     .pass = FXA_BACKWARD},
    {"segments", .text = "mask = k <= q && q_row != k_row", .more = plan_segments},
    {"row_starts", .text = SLOPES, .flags = FXA_Q_START | FXA_CAUSAL},
    /* Captured tensors. */
    {"documents", .text = DOCUMENTS},
    {"documents_backward", .text = DOCUMENTS, .pass = FXA_BACKWARD},
    {"documents_and_14_conditions",
     .text = "tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k] && k != 1 && k != 4 && k != 7 && k != 10 && k != 13 "
             "&& k != 16 && k != 19 && k != 22 && k != 25 && k != 28 && k != 31 && k != 34 && k != 37 && k != 40"},
    {"documents_and_15_conditions",
     .text =
         "tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k] && k != 1 && k != 4 && k != 7 && k != 10 && k != 13 && k "
         "!= 16 && k != 19 && k != 22 && k != 25 && k != 28 && k != 31 && k != 34 && k != 37 && k != 40 && k != 43"},
    {"documents_and_16_conditions",
     .text = "tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k] && k != 1 && k != 4 && k != 7 && k != 10 && k != 13 "
             "&& k != 16 && k != 19 && k != 22 && k != 25 && k != 28 && k != 31 && k != 34 && k != 37 && k != 40 && k "
             "!= 43 && k != 46"},
    {"documents_simt", .text = DOCUMENTS, .forced = FAMILY_SIMT},
    {"documents_i64", .text = "tensor ids : i64[2]\nmask = ids[b, q] == ids[b, k]", .flags = FXA_VARLEN,
     .more = plan_packed},
    {"documents_i64_backward", .text = "tensor ids : i64[1]\nmask = ids[q] == ids[k]", .pass = FXA_BACKWARD},
    {"documents_i64_alone", .text = "tensor ids : i64[2]\nmask = ids[b, q] == 3"},
    {"documents_i64_of_values",
     .text =
         "tensor ids : i64[2]\nscore = score + (ids[b, q] == ids[b, k] ? 1.0 : 0.0)\nmask = ids[b, q] == ids[b, k]"},
    {"documents_i64_twice", .text = "tensor ids : i64[2]\nmask = ids[b, q] == ids[b, k] && ids[b, q] < ids[b, k] + 5"},
    {"documents_sorted", .text = "tensor ends : i16[2]\nmask = k < ends[h, q] && k >= ends[h, q] - 100"},
    {"words_of_values", .text = "tensor w : f32[3]\ntensor v : f16[2]\nscore = score * w[b, h, q] + v[h, k]"},
    {"words_of_values_backward", .text = "tensor w : f32[3]\ntensor v : f16[2]\nscore = score * w[b, h, q] + v[h, k]",
     .pass = FXA_BACKWARD},
    {"words_of_bytes", .text = "tensor on : bool[2]\ntensor v : i8[1]\nmask = on[b, k] || v[q] > 3"},
    {"words_of_u8", .text = "tensor a : u8[1]\ntensor v : bf16[1]\nscore = score + v[k]\nmask = a[q] < 7"},
    {"dense", .text = DENSE, .d = 128},
    {"dense_backward", .text = DENSE, .pass = FXA_BACKWARD},
    {"dense_of_heads_backward", .text = "tensor bias : bf16[3]\nscore = score + bias[h, q, k]\nmask = k <= q",
     .pass = FXA_BACKWARD, .d = 128},
    {"dense_alone", .text = "tensor bias : bf16[3]\nscore = bias[h, q, k]", .sk = 512},
    {"dense_of_pairs_backward", .text = "tensor bias : bf16[2]\nscore = score + bias[q, k]", .sk = 512,
     .captures = {{.size = {300, 512}}}, .pass = FXA_BACKWARD},
    {"dense_of_entries_backward", .text = "tensor bias : bf16[3]\nscore = score + bias[b, q, k]", .sk = 512,
     .captures = {{.size = {2, 300, 512}}}, .pass = FXA_BACKWARD},
    {"dense_direct_backward", .text = DENSE, .pass = FXA_BACKWARD, .sk = 512},
    {"dense_direct_causal_backward", .text = DENSE "\nmask = k <= q", .pass = FXA_BACKWARD, .sk = 512},
    {"dense_added_backward", .text = DENSE, .pass = FXA_BACKWARD, .sk = 512, .flags = FXA_ACCUMULATE_DTENSORS},
    {"dense_of_f32", .text = "tensor bias : f32[2]\nscore = score + bias[q, k]", .captures = {{.size = {300, 500}}}},
    {"dense_turned", .text = "tensor bias : bf16[2]\nscore = score + bias[k, q]", .captures = {{.size = {500, 300}}}},
    {"table", .text = TABLE},
    {"table_backward", .text = TABLE, .pass = FXA_BACKWARD},
    {"table_deterministic", .text = TABLE, .flags = FXA_DETERMINISTIC | GRADS, .pass = FXA_BACKWARD},
    {"table_of_many_keys", .text = TABLE, .sk = 9000, .pass = FXA_BACKWARD},
    {"table_of_entries", .text = "tensor near : f32[2]\nscore = score + near[b, clamp(q - k, -99, 99) + 99]",
     .flags = FXA_PADDING},
    {"table_masks", .text = "tensor near : i32[2]\nmask = near[h, q - k + 511] > 3"},
    {"scatter_backward", .text = SCATTER, .pass = FXA_BACKWARD},
    {"scatter_deterministic", .text = SCATTER, .flags = FXA_DETERMINISTIC | GRADS, .pass = FXA_BACKWARD},
    {"scatter_beside_slope", .text = "param a : float\ntensor t : f32[1]\nscore = tanh(a * score) + t[(q * k) % 16]",
     .pass = FXA_BACKWARD},
    {"scatter_of_two_tensors",
     .text = "tensor r : f32[1]\ntensor t : f32[1]\nscore = score + r[(q * k) % 7] + t[(q * k) % 16] * score",
     .pass = FXA_BACKWARD, .flags = FXA_DETERMINISTIC | GRADS},
    {"distances_of_three_operations", .text = "param a : float\nparam c : float\nscore = score + float(q - k) * a + c"},
    {"distances_of_four_operations",
     .text = "param a : float\nparam c : float\nscore = score + (float(q - k) * a + c) * a"},
    {"distances_of_five_operations",
     .text =
         "param a : float\nparam c : float\nscore = score - abs(-((float(q - k) * a + c) * (float(q - k) - a) - c))"},
    {"sums_backward", .text = HEADS, .pass = FXA_BACKWARD},
    {"sums_deterministic", .text = HEADS, .pass = FXA_BACKWARD,
     .flags = FXA_DETERMINISTIC | FXA_ACCUMULATE_DPARAMS | GRADS},
    {"sums_d128", .text = "param a : float\nscore = score * a", .d = 128, .pass = FXA_BACKWARD},
    {"sums_of_params",
     .text = "param a : float\nparam c : float\nparam u : float\nscore = score * a + c * float(q) * a",
     .pass = FXA_BACKWARD},
    {"tensor_without_gradient", .text = HEADS, .pass = FXA_BACKWARD, .no_grads = true},
    {"tensor_too_short", .text = "tensor t : f32[2]\nscore = score + t[q, k]", .captures = {{.size = {150, 120}}}},
    {"tensor_backwards", .text = "tensor t : f32[1]\nscore = score + t[k]",
     .captures = {{.size = {500}, .stride = {-2}, .strided = 1}}},
    {"tensor_of_rank_5", .text = "tensor t : f32[5]\nscore = score + t[b, h, q % 3, k % 2, 1]",
     .captures = {{.size = {2, 8, 3, 2, 4}}}},
    {"ranges", .text = "tensor first : i32[2]\nmask = k >= first[h, q // 64] && k < first[h, q // 64 + 1]"},
    {"ranges_of_tables",
     .text = "tensor on : bool[2]\ntensor last : i32[1]\nmask = on[q // 128, k // 128] && k <= last[q]"},
    {"rare_element", .text = "tensor page : i32[1]\ntensor t : f32[1]\nscore = score + t[page[k]]"},
    /* Operations. */
    {"cap", .text = CAP},
    {"cap_backward", .text = CAP, .pass = FXA_BACKWARD},
    {"cap_simt", .text = CAP, .dtype = FXA_F32},
    {"cap_of_30", .text = "score = 30.0 * tanh(score / 30.0)\nmask = k <= q", .d = 128},
    {"cap_of_30_backward", .text = "score = 30.0 * tanh(score / 30.0)", .pass = FXA_BACKWARD},
    {"cap_of_an_int", .text = "param w : int\nscore = 20.0 * tanh(score * float(w))"},
    {"cap_of_a_function_backward", .text = "param a : float\nscore = 20.0 * tanh(score * exp(a))",
     .pass = FXA_BACKWARD},
    {"bounded_product_backward", .text = "score = tanh(score) * sigmoid(score) + sin(score) * float(h)",
     .pass = FXA_BACKWARD},
    {"unbounded_product_backward", .text = "tensor t : f32[1]\nscore = tanh(score) * exp(score) + score * exp(t[k])",
     .pass = FXA_BACKWARD, .no_grads = true},
    {"cap_of_lengths", .text = "score = float(k_len) * tanh(score / float(k_len))"},
    {"cap_of_heads_backward", .text = "score = float(h + 1) * tanh(score / float(h + 1))", .pass = FXA_BACKWARD},
    {"cap_of_one", .text = "score = tanh(score)"},
    {"params_alone", .text = "param a : float\nparam c : float\nscore = a * c"},
    {"cap_of_both", .text = "param a : float\nparam c : float\nscore = (a * c) * tanh(score / (a + c)) * 2.0"},
    {"cap_with_slopes", .text = "score = 20.0 * tanh(score / 20.0) - 0.5 * float(h + 1) * float(abs(q - k))"},
    {"slopes", .text = SLOPES},
    {"slopes_backward", .text = SLOPES, .pass = FXA_BACKWARD},
    {"factor", .text = "param a : float\nscore = score * a * 0.5"},
    {"factor_of_head", .text = "score = score * (1.0 / float(h + 1))"},
    {"runs", .text = "param a : float\nparam c : float\nscore = score + (a * c + a / c - abs(a)) * float(q * k)"},
    {"bounded", .text = "score = sigmoid(score) * 8.0", .d = 128},
    {"steep_backward", .text = "score = sqrt(abs(score)) + log(score * score)", .pass = FXA_BACKWARD},
    {"flat_backward", .text = "score = floor(score) + float(k)", .pass = FXA_BACKWARD},
    {"trig_backward", .text = "score = score + sin(score) * cos(float(q - k)) + tan(0.1 * score)",
     .pass = FXA_BACKWARD},
    {"functions", .text = "score = exp2(score) + log2(abs(score) + 1.0) + atan(score) + sigmoid(erf(floor(score))) + "
                          "exp(float(q) * 0.001) + rsqrt(score * score + 1.0)\nmask = !(sqrt(abs(float(k))) < 0.5)"},
    {"powers",
     .text = "score = score ** 2 + score ** 3 - (score + 1.0) ** 4 + (score + 9.0) ** -1 + abs(score) ** 0.3"},
    {"integers", .text =
                     "param w : int\nscore = score + float(q // 5 - k % 3 + (q << 2) - (k >> 1) + (q & k) + (q | 3) + "
                     "(q ^ k) + min(q, k) + w)\nmask = (q - k) // w < 3 && k % 7 != w"},
    {"bools", .text = "param f : int\nmask = (q < k) ^ (k % 2 == 0) || f > 2 && q != 3 && !(k <= 7)"},
    {"selects",
     .text = "param a : float\nscore = (k < 4 ? score : 2.0) + (q <= k ? a : score) + (score < 1.0 ? score : 0.5)"},
    {"mask_of_score", .text = "mask = score < 3.0 && k <= q"},
    {"masks_of_score_and_pairs",
     .text = "mask = score < 3.0 && k <= q && q - k < 50 && score > -3.0 && k % 3 != 1 && score * score > 0.01"},
    {"mask_of_score_backward", .text = "mask = score * float(q) < 3.0 || k == q", .pass = FXA_BACKWARD},
    {"large_negative", .text = "score = k <= q ? score : -1e9"},
    {"tiles", .text = "mask = (q // 64 == k // 64 || k < 16 || k % 64 >= 60) && k <= q + 3"},
    {"tiles_of_heads",
     .text = "score = score + float((q * 7 + h) % 5 * k)\nmask = q - k < 64 * (h + 1) && (q + k) % 3 != b"},
    {"out_of_line",
     .text = "score = sin(score + exp(float(q * k))) * sin(score * 2.0) + cos(score * 3.0) ** 2.5 + "
             "tan(score * 4.0) + erf(score) * atan(score / 3.0) + log(abs(score) + 1.0) * sin(float(q * k))"},
    {"out_of_line_backward",
     .text = "score = sin(score + exp(float(q * k))) * sin(score * 2.0) + cos(score * 3.0) ** 2.5 + "
             "tan(score * 4.0) + erf(score) * atan(score / 3.0)\nmask = sin(float(q * k)) < 0.9",
     .pass = FXA_BACKWARD},
    {"own", .text = "score = 8.0 * tanh(score / 8.0)\nmask = k <= q",
     .own = "tensor x : f32[2]\nparam a : float\nlet t = tanh(score / 8.0)\ndscore = dscore * (a - t * t) + x[q, k]",
     .pass = FXA_BACKWARD},
    {"own_d128", .text = "score = 2.0 * score", .own = "dscore = 2.0 * dscore", .pass = FXA_BACKWARD, .d = 128,
     .flags = FXA_PADDING},
    {"with_gradient_backward", .text = "score = with_grad(score, float(k))", .pass = FXA_BACKWARD},
    {"params_of_many",
     .text = "param a : float\nparam i : int\nparam c : float\nparam j : int\n"
             "score = score * a + float(i) / c\nmask = q - k < i && k - q < j",
     .pass = FXA_BACKWARD},
};

/* ---- Problems --------------------------------------------------------------------------------------------------- */

/* Sets the sizes that a case leaves out: the numbers of batch entries, heads, queries and keys for ranks 3 and 4, else
 * 1024. */
static void plan_capture_sizes(const fxa_problem *p, const fxa_program *program, bool grads, fxa_capture *out) {
    const int64_t all[] = {p->b, p->hq, p->sq, p->sk};
    for (size_t i = 0; program && i < fxa_program_tensor_count(program); i++) {
        const fxa__decl *t = &program->tensors[i];
        bool floats = t->dtype == FXA_F32 || t->dtype == FXA_F16 || t->dtype == FXA_BF16;
        for (int d = 0; d < t->rank && out[i].size[t->rank - 1] == 0; d++)
            out[i].size[d] = t->rank == 3 && p->sk != p->sq ? all[d + 1] : t->rank == 4 ? all[d] : 1024;
        for (int d = 0; d < t->rank && out[i].size[d] == 0; d++) out[i].size[d] = 1024;
        out[i].grad = grads && floats;
    }
}

static fxa_program *plan_program(fxa_program_kind kind, const char *text) {
    fxa_program *program = NULL;
    fxa_error err;
    if (text) T_OK(own_parse(kind, text, SIZE_MAX, &program, &err));
    return program;
}

/* A case's problem, which points into the struct. */
typedef struct plan_opened {
    fxa_problem p;
    fxa_capture captures[3], own_captures[1];
    fxa_program *program, *own;
} plan_opened;

static void plan_open(const plan_case *c, plan_opened *x) {
    fxa_problem *p = &x->p;
    memset(x, 0, sizeof *x);
    *p = (fxa_problem)FXA_PROBLEM_INIT;
    p->pass = (uint32_t)c->pass, p->device = FXA_CUDA, p->alignment = 16, p->flags = c->flags;
    if (c->pass == FXA_BACKWARD && !(p->flags & GRADS)) p->flags |= GRADS;
    p->b = 2, p->hq = c->hq ? c->hq : 8, p->hkv = c->hkv ? c->hkv : 2, p->sq = c->sq ? c->sq : 300;
    p->sk = c->sk ? c->sk : 500, p->d_qk = c->d ? c->d : 64, p->d_v = c->dv;
    p->q.dtype = c->dtype ? c->dtype : (uint32_t)FXA_BF16;
    if (c->more) c->more(p);
    p->program = x->program = plan_program(FXA_PROGRAM_SCORE, c->text);
    p->bprop = x->own = plan_program(FXA_PROGRAM_BPROP, c->own);
    p->captures = x->captures, p->bprop_captures = x->own_captures;
    memcpy(x->captures, c->captures, sizeof x->captures);
    plan_capture_sizes(p, x->program, c->pass == FXA_BACKWARD && !c->no_grads, x->captures);
    plan_capture_sizes(p, x->own, false, x->own_captures);
    p->n_captures = x->program ? fxa_program_tensor_count(x->program) : 0;
    p->n_bprop_captures = x->own ? fxa_program_tensor_count(x->own) : 0;
    for (int32_t i = 0; c->pass == FXA_BACKWARD && !c->no_grads && x->program && i < x->program->n_params; i++)
        if (x->program->params[i].type == FXA_FLOAT) p->param_grads |= UINT64_C(1) << i;
}

static void plan_close(plan_opened *x) {
    fxa_program_destroy(x->program);
    fxa_program_destroy(x->own);
}

#endif
