/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems on both sides of limits of the cuda engine, compared with tests/golden/cuda_answers.txt, which has the
 * kernels of a problem, their tile and the workspace, or the reason of a refusal. After an intended change,
 * FXA_TEST_UPDATE=1 writes the text.
 */
#include "../all/cuda_families.h"
#include "cuda_plan_cases.h"
#include "support/fixtures/golden.h"

enum { LONGEST = FXA__CUDA_LENGTH };

static void answer_b_0(fxa_problem *p) { p->b = 0; }
static void answer_packed_0_queries(fxa_problem *p) { p->total_q = 0, p->total_k = 9; }
static void answer_packed_0_keys(fxa_problem *p) { p->total_q = 9, p->total_k = 0; }
static void answer_packed_1(fxa_problem *p) { p->total_q = 1, p->total_k = 1; }
static void answer_0_pages(fxa_problem *p) { p->page_size = 16, p->n_pages = 0; }
static void answer_1_page(fxa_problem *p) { p->page_size = 16, p->n_pages = 1; }
static void answer_sq_0(fxa_problem *p) { p->sq = 0; }
static void answer_sk_0(fxa_problem *p) { p->sk = 0; }
static void answer_hq_0(fxa_problem *p) { p->hq = p->hkv = 0; }
static void answer_dv_0(fxa_problem *p) { p->d_v = FXA_D_V_ZERO; }
static void answer_d_0(fxa_problem *p) { p->d_qk = 0, p->d_v = 64; }
static void answer_b_65535(fxa_problem *p) { p->b = 65535, p->hq = p->hkv = 1; }
static void answer_b_65536(fxa_problem *p) { p->b = 65536, p->hq = p->hkv = 1; }
static void answer_hq_65535(fxa_problem *p) { p->b = 1, p->hq = p->hkv = 65535; }
static void answer_hq_65536(fxa_problem *p) { p->b = 1, p->hq = p->hkv = 65536; }
static void answer_b_hq(fxa_problem *p) { p->b = 1 << 15, p->hq = p->hkv = 1 << 13; }
static void answer_b_hq_1(fxa_problem *p) { p->b = 1 << 15, p->hq = p->hkv = (1 << 13) + 1; }
static void answer_sq_longest(fxa_problem *p) { p->b = p->hq = p->hkv = 1, p->sq = LONGEST; }
static void answer_sq_longer(fxa_problem *p) { p->b = p->hq = p->hkv = 1, p->sq = LONGEST + 1; }
static void answer_sk_longest(fxa_problem *p) { p->sk = LONGEST; }
static void answer_sk_longer(fxa_problem *p) { p->sk = LONGEST + 1; }
static void answer_total_longest(fxa_problem *p) { p->total_q = p->total_k = LONGEST; }
static void answer_total_q_longer(fxa_problem *p) { p->total_q = LONGEST + 1, p->total_k = LONGEST; }
static void answer_total_k_longer(fxa_problem *p) { p->total_q = LONGEST, p->total_k = LONGEST + 1; }
static void answer_pages_longest(fxa_problem *p) { p->page_size = 16, p->n_pages = LONGEST; }
static void answer_pages_longer(fxa_problem *p) { p->page_size = 16, p->n_pages = LONGEST + 1; }
static void answer_most_tiles(fxa_problem *p) { p->b = 128, p->hq = p->hkv = 1, p->sq = LONGEST; }
static void answer_more_tiles(fxa_problem *p) { p->b = 129, p->hq = p->hkv = 1, p->sq = LONGEST; }
static void answer_packed_tiles(fxa_problem *p) {
    p->b = 1, p->total_q = LONGEST - 128, p->total_k = 9, p->hq = p->hkv = 128;
}
static void answer_packed_more_tiles(fxa_problem *p) {
    p->b = 1, p->total_q = LONGEST, p->total_k = 9, p->hq = p->hkv = 128;
}
static void answer_table_longest(fxa_problem *p) { p->b = 16, p->sk = LONGEST, p->page_size = 16, p->n_pages = 9; }
static void answer_table_longer(fxa_problem *p) { p->b = 17, p->sk = LONGEST, p->page_size = 16, p->n_pages = 9; }
static void answer_f64(fxa_problem *p) {
    fxa_operand *all[] = {&p->q, &p->k, &p->v, &p->o};
    for (int i = 0; i < 4; i++) all[i]->dtype = FXA_F64;
}
static void answer_alignment_8(fxa_problem *p) { p->alignment = 8; }
static void answer_v_f16(fxa_problem *p) { p->v.dtype = FXA_F16; }
static void answer_k_f16(fxa_problem *p) { p->k.dtype = FXA_F16; }
static void answer_dout_f16(fxa_problem *p) { p->dout.dtype = FXA_F16; }
static void answer_dv_f32(fxa_problem *p) { p->dv.dtype = FXA_F32; }
static void answer_o_f32(fxa_problem *p) { p->o.dtype = FXA_F32; }
/* Sets the strides of Q. */
static void answer_strides(fxa_problem *p, int64_t b, int64_t h, int64_t s) {
    p->q.layout = FXA_LAYOUT_STRIDED;
    p->q.stride[0] = b, p->q.stride[1] = h, p->q.stride[2] = s, p->q.stride[3] = 1;
}
static void answer_row_68(fxa_problem *p) { answer_strides(p, 8 * 300 * 68, 300 * 68, 68); }
static void answer_row_72(fxa_problem *p) { answer_strides(p, 8 * 300 * 72, 300 * 72, 72); }
static void answer_head_4(fxa_problem *p) { answer_strides(p, 8 * 19204, 19204, 64); }
static void answer_entry_4(fxa_problem *p) { answer_strides(p, 8 * 19200 + 4, 19200, 64); }
static void answer_entry_4_alone(fxa_problem *p) { p->b = 1, answer_strides(p, 8 * 19200 + 4, 19200, 64); }
static void answer_row_0(fxa_problem *p) { answer_strides(p, 8 * 19200, 19200, 0); }
static void answer_row_below_0(fxa_problem *p) { answer_strides(p, 8 * 19200, 19200, -64); }
static void answer_head_far(fxa_problem *p) { answer_strides(p, INT64_C(1) << 42, (INT64_C(1) << 39) - 8, 64); }
static void answer_head_farther(fxa_problem *p) { answer_strides(p, INT64_C(1) << 38, INT64_C(1) << 39, 64); }
static void answer_pages_4(fxa_problem *p) { p->page_size = 4, p->n_pages = 900; }
static void answer_pages_8(fxa_problem *p) { p->page_size = 8, p->n_pages = 900; }
static void answer_pages_24(fxa_problem *p) { p->page_size = 24, p->n_pages = 900; }
static void answer_pages_64(fxa_problem *p) { p->page_size = 64, p->n_pages = 90; }
static void answer_pages_128(fxa_problem *p) { p->page_size = 128, p->n_pages = 90; }
static void answer_pages_192(fxa_problem *p) { p->page_size = 192, p->n_pages = 90; }
static void answer_pages_384(fxa_problem *p) { p->page_size = 384, p->n_pages = 90; }

#define TENSOR "tensor t : f32[1]\nscore = score + t[k]"
#define TWO "param a : float\nparam c : float\nscore = c * tanh(score * a)"
#define ONE "param a : float\nscore = tanh(score * a)"
#define PLACES "tensor t : f32[1]\nscore = score + t[(q * k) % 16]"
#define PLACES_AND_SLOPE "tensor t : f32[1]\nscore = tanh(score) + t[(q * k) % 16]"

static const plan_case answer_cases[] = {
    /* Empty problems. */
    {"0 entries", .more = answer_b_0},
    {"0 queries", .more = answer_sq_0},
    {"0 keys", .more = answer_sk_0},
    {"0 heads", .more = answer_hq_0},
    {"head dim 0 of V", .more = answer_dv_0},
    {"head dim 0 of Q", .more = answer_d_0},
    {"0 packed queries", .flags = FXA_VARLEN, .more = answer_packed_0_queries},
    {"0 packed keys", .flags = FXA_VARLEN, .more = answer_packed_0_keys},
    {"1 packed query and key", .flags = FXA_VARLEN, .more = answer_packed_1},
    {"0 packed queries of pages", .flags = FXA_VARLEN | FXA_PAGED, .more = answer_0_pages},
    {"0 pages", .flags = FXA_PAGED, .more = answer_0_pages},
    {"1 page", .flags = FXA_PAGED, .more = answer_1_page},
    /* Sizes. */
    {"head dim 256", .d = 256},
    {"head dim 257", .d = 257},
    {"head dim 257 of V", .d = 64, .dv = 257},
    {"65535 entries", .more = answer_b_65535},
    {"65536 entries", .more = answer_b_65536},
    {"65535 heads", .more = answer_hq_65535},
    {"65536 heads", .more = answer_hq_65536},
    {"2^28 heads of entries", .more = answer_b_hq},
    {"more heads of entries", .more = answer_b_hq_1},
    {"2^28 queries", .more = answer_sq_longest},
    {"2^28 + 1 queries", .more = answer_sq_longer},
    {"2^28 keys", .more = answer_sk_longest},
    {"2^28 + 1 keys", .more = answer_sk_longer},
    {"2^28 packed rows", .flags = FXA_VARLEN, .hq = 1, .hkv = 1, .more = answer_total_longest},
    {"2^28 + 1 packed queries", .flags = FXA_VARLEN, .hq = 1, .hkv = 1, .more = answer_total_q_longer},
    {"2^28 + 1 packed keys", .flags = FXA_VARLEN, .hq = 1, .hkv = 1, .more = answer_total_k_longer},
    {"2^28 pages", .flags = FXA_PAGED, .more = answer_pages_longest},
    {"2^28 + 1 pages", .flags = FXA_PAGED, .more = answer_pages_longer},
    {"2^28 tiles", .more = answer_most_tiles},
    {"more tiles", .more = answer_more_tiles},
    {"2^28 packed tiles", .flags = FXA_VARLEN, .more = answer_packed_tiles},
    {"more packed tiles", .flags = FXA_VARLEN, .more = answer_packed_more_tiles},
    {"table of 2^28 pages", .flags = FXA_PAGED, .more = answer_table_longest, .pass = FXA_BACKWARD},
    {"table of more pages", .flags = FXA_PAGED, .more = answer_table_longer, .pass = FXA_BACKWARD},
    {"table of more pages forward", .flags = FXA_PAGED, .more = answer_table_longer},
    {"tensor of 2^31 - 1 elements", .text = TENSOR, .captures = {{.size = {INT32_MAX}}}},
    {"tensor of 2^31 elements", .text = TENSOR, .captures = {{.size = {INT64_C(1) << 31}}}},
    /* Dtypes. */
    {"f64", .more = answer_f64},
    {"scales", .flags = FXA_SCALED, .dtype = FXA_E4M3},
    {"K of another dtype", .more = answer_k_f16},
    {"V of another dtype", .more = answer_v_f16},
    {"dO of another dtype", .more = answer_dout_f16, .pass = FXA_BACKWARD},
    {"dO of another dtype forward", .more = answer_dout_f16},
    {"dV of another dtype", .more = answer_dv_f32, .pass = FXA_BACKWARD},
    {"dV of another dtype, not wanted", .more = answer_dv_f32, .flags = FXA_GRAD_Q, .pass = FXA_BACKWARD},
    {"O of another dtype", .more = answer_o_f32},
    {"O of another dtype backward", .more = answer_o_f32, .pass = FXA_BACKWARD},
    /* Alignment. */
    {"alignment 8", .more = answer_alignment_8},
    {"rows of 68 elements", .more = answer_row_68},
    {"rows of 72 elements", .more = answer_row_72},
    {"heads at odd multiples of 4", .more = answer_head_4},
    {"entries at odd multiples of 4", .more = answer_entry_4},
    {"one entry at an odd multiple of 4", .more = answer_entry_4_alone},
    {"rows that are one", .more = answer_row_0},
    {"rows backwards", .more = answer_row_below_0},
    {"heads 2^39 - 8 apart", .more = answer_head_far},
    {"heads 2^39 apart", .more = answer_head_farther},
    {"pages of 4", .flags = FXA_PAGED, .more = answer_pages_4},
    {"pages of 8", .flags = FXA_PAGED, .more = answer_pages_8},
    {"pages of 24", .flags = FXA_PAGED, .more = answer_pages_24},
    {"pages of 64", .flags = FXA_PAGED, .more = answer_pages_64},
    {"pages of 128", .flags = FXA_PAGED, .more = answer_pages_128},
    {"pages of 192", .flags = FXA_PAGED, .more = answer_pages_192},
    {"pages of 384", .flags = FXA_PAGED, .more = answer_pages_384},
    {"pages of 24 backward", .flags = FXA_PAGED, .more = answer_pages_24, .pass = FXA_BACKWARD},
    {"row maximum", .flags = FXA_RETURN_ROW_MAX},
    /* Gradients. */
    {"one gradient beside a slope at 96", .text = ONE, .d = 96, .pass = FXA_BACKWARD},
    {"two gradients beside a slope at 96", .text = TWO, .d = 96, .pass = FXA_BACKWARD},
    {"one gradient beside a slope at 104", .text = ONE, .d = 104, .pass = FXA_BACKWARD},
    {"two gradients beside a slope at 104", .text = TWO, .d = 104, .pass = FXA_BACKWARD},
    {"two gradients beside a slope at 104 of V", .text = TWO, .dv = 104, .pass = FXA_BACKWARD},
    {"one gradient beside a slope at 136", .text = ONE, .d = 136, .pass = FXA_BACKWARD},
    {"a gradient of places", .text = PLACES, .pass = FXA_BACKWARD},
    {"a gradient of places beside a slope", .text = PLACES_AND_SLOPE, .pass = FXA_BACKWARD},
    {"a gradient of places at 136", .text = PLACES, .d = 136, .pass = FXA_BACKWARD},
    {"a gradient of places at 136 of V", .text = PLACES, .dv = 136, .pass = FXA_BACKWARD},
    {"a gradient beside a slope and dropout", .text = ONE, .flags = FXA_DROPOUT, .more = plan_dropout,
     .pass = FXA_BACKWARD},
    {"a gradient of pairs at 136", .text = DENSE, .d = 136, .pass = FXA_BACKWARD},
    {"a gradient of diagonals at 136", .text = TABLE, .d = 136, .pass = FXA_BACKWARD},
    {"fixed order at 128", .flags = FXA_DETERMINISTIC | GRADS, .d = 128, .pass = FXA_BACKWARD},
    {"fixed order at 136", .flags = FXA_DETERMINISTIC | GRADS, .d = 136, .pass = FXA_BACKWARD},
    {"fixed order with a mask", .text = "mask = k <= q", .flags = FXA_DETERMINISTIC | GRADS, .pass = FXA_BACKWARD},
    {"fixed order with lengths", .flags = FXA_DETERMINISTIC | FXA_PADDING | GRADS, .pass = FXA_BACKWARD},
    {"fixed order with a tensor", .text = DENSE, .flags = FXA_DETERMINISTIC | GRADS, .pass = FXA_BACKWARD,
     .no_grads = true},
    {"fixed order with words", .text = TENSOR, .flags = FXA_DETERMINISTIC | GRADS, .pass = FXA_BACKWARD,
     .no_grads = true},
    {"fixed order of keys alone", .flags = FXA_DETERMINISTIC | FXA_GRAD_K, .pass = FXA_BACKWARD},
    {"fixed order unaligned", .flags = FXA_DETERMINISTIC | GRADS, .more = answer_alignment_8, .pass = FXA_BACKWARD},
    {"fixed order of keys alone unaligned", .flags = FXA_DETERMINISTIC | FXA_GRAD_K, .more = answer_alignment_8,
     .pass = FXA_BACKWARD},
    {"a tensor of pairs at 128", .text = DENSE, .d = 128, .pass = FXA_BACKWARD},
    {"a tensor of pairs and distances at 256", .text = DENSE " - 0.5 * exp(float(q - k))", .d = 256, .sk = 512},
    /* Decoding. */
    {"one query of 255 keys", .sq = 1, .sk = 255},
    {"one query of 256 keys", .sq = 1, .sk = 256},
    {"8 rows", .sq = 2, .sk = 256},
    {"9 rows", .sq = 3, .sk = 256},
    {"16 rows", .sq = 4, .sk = 256},
    {"20 rows", .sq = 5, .sk = 256},
    {"32 rows", .sq = 8, .sk = 256},
    {"128 rows", .sq = 32, .sk = 256},
    {"132 rows", .sq = 33, .sk = 256},
    {"one query at 128", .sq = 1, .sk = 4096, .d = 128},
    {"one query at 136", .sq = 1, .sk = 4096, .d = 136},
    {"one query of two head dims", .sq = 1, .sk = 4096, .d = 64, .dv = 128},
    {"one query of almost two head dims", .sq = 1, .sk = 4096, .d = 64, .dv = 60},
    {"one query beside a mask of heads", .text = "mask = k > h", .sq = 1, .sk = 4096},
    {"one query beside a mask of heads without groups", .text = "mask = k > h", .sq = 1, .sk = 4096, .hkv = 8},
    {"one query with dropout", .sq = 1, .sk = 4096, .flags = FXA_DROPOUT, .more = plan_dropout},
    {"one query backward", .sq = 1, .sk = 4096, .pass = FXA_BACKWARD},
};

/* Writes the answer to a case as a line. */
static void answer_write(const plan_case *c, fxa__writer *w) {
    fxa__cuda_self self = {.arch = 90, .processors = 132};
    fxa__cuda_choice choice;
    fxa__cuda_program program = {.program = NULL};
    fxa_support report = {.supported = 0};
    fxa__problem *p = NULL;
    fxa_error err = {.status = FXA_OK};
    plan_opened o;
    plan_open(c, &o);
    fxa__write_format(w, "%s: ", c->name);
    T_OK(fxa__problem_create(fxa__context_host(ctx), &o.p, &p, &err));
    fxa_status status = p ? fxa__cuda_choose(&self, p, &choice, &program, &err) : FXA_E_PROBLEM;
    if (status == FXA_OK) {
        fxa__analysis a = {.engine = &fxa__engine_cuda, .self = &self, .problem = p};
        T_OK(fxa__engine_cuda.query(&a, NULL, &report, &err));
        fxa__analysis_end(&a);
        fxa__write_format(
            w, "%s, head dims %d and %d of %s, kernels %x%s%s%s%s, row tiles %d, tiles %d x %d, %llu bytes%s\n",
            family_names[family_of(&choice)], (int)choice.traits.d, (int)choice.traits.dv, fxa_dtype_name(choice.dtype),
            (unsigned)choice.units, choice.traits.aligned ? ", aligned" : "",
            choice.traits.separate_dq ? ", separate dQ" : "", choice.traits.ordered_dq ? ", dQ in turns" : "",
            report.deterministic ? ", deterministic" : "", (int)choice.traits.row_tiles, (int)report.tile_q,
            (int)report.tile_k, (unsigned long long)report.workspace, family_why(&choice));
    } else {
        fxa__write_format(w, "%d, %s\n", status, err.text);
    }
    fxa__cuda_program_free(&program);
    fxa__problem_release(p);
    plan_close(&o);
}

TEST(answers_are_those_of_the_text) {
    if (!FXA_ASSERT) T_SKIP("the text contains the red zones of workspaces, which this build does not have");
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = fxa__context_host(ctx)};
    for (size_t i = 0; i < sizeof answer_cases / sizeof *answer_cases; i++) answer_write(&answer_cases[i], &w);
    fxa__write_u8(&w, 0);
    golden_check(".", "cuda_answers", (const char *)w.data);
}

T_MAIN
