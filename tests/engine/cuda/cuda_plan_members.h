/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that set members of a problem, for cuda_plan_cases.h.
 */
#ifndef FXA_TESTS_CUDA_PLAN_MEMBERS_H
#define FXA_TESTS_CUDA_PLAN_MEMBERS_H

#include "cuda_run_fixture.h"

static void plan_window(fxa_problem *p) { p->window_left = 70, p->window_right = 20; }
static void plan_global(fxa_problem *p) { p->global_q_len = 900, p->global_k_len = 1000, p->global_heads = 32; }
static void plan_dropout(fxa_problem *p) { p->dropout_p = 0.25; }
static void plan_moved(fxa_problem *p) {
    p->dropout_p = 0.25, p->map_q.base = 9, p->map_q.step = 2, p->map_b.has_offset = 1, p->map_h.kind = FXA_MAP_TABLE;
    p->map_k.kind = FXA_MAP_SEGMENTS, p->map_k.n_segments = 2, p->map_k.segment[1] = (fxa_segment){70, 900, -1};
}
static void plan_tables(fxa_problem *p) {
    p->map_q.kind = p->map_k.kind = FXA_MAP_TABLE, p->map_q.has_offset = 1, p->map_b.base = 3;
}
static void plan_affine(fxa_problem *p) {
    p->map_b.base = 3, p->map_h.step = 2, p->map_q.base = 40, p->map_q.step = 3, p->map_k.base = 2;
}
static void plan_segments(fxa_problem *p) {
    p->map_q.kind = FXA_MAP_SEGMENTS, p->map_q.n_segments = 2, p->map_q.segment[1] = (fxa_segment){77, 900, -2};
}
static void plan_f32_out(fxa_problem *p) { p->o.dtype = p->dq.dtype = FXA_F32; }
static void plan_mixed(fxa_problem *p) { p->k.dtype = FXA_F16, p->v.dtype = FXA_E4M3, p->lse.dtype = FXA_F64; }
static void plan_wide_lse(fxa_problem *p) { p->lse.dtype = FXA_F64; }
static void plan_unaligned(fxa_problem *p) { p->alignment = 0; }
static void plan_strided(fxa_problem *p) {
    p->q.layout = p->k.layout = p->v.layout = p->o.layout = p->dout.layout = FXA_LAYOUT_BSHD;
    p->dq.layout = p->dk.layout = p->dv.layout = FXA_LAYOUT_SBHD;
    p->lse.layout = p->dlse.layout = FXA_LAYOUT_STRIDED;
    const int64_t lse[4] = {8 * 320, 320, 1, 0}, dlse[4] = {1, 2 * 300, 2, 0};
    memcpy(p->lse.stride, lse, sizeof lse), memcpy(p->dlse.stride, dlse, sizeof dlse);
}
static void plan_gaps(fxa_problem *p) {
    p->q.layout = p->dv.layout = FXA_LAYOUT_STRIDED;
    const int64_t q[4] = {8 * 300 * 130, 300 * 130, 130, 2}, dv[4] = {2 * 500 * 65, 500 * 65, 65, 1};
    memcpy(p->q.stride, q, sizeof q), memcpy(p->dv.stride, dv, sizeof dv);
}
static void plan_one_column(fxa_problem *p) {
    p->q.layout = p->o.layout = FXA_LAYOUT_STRIDED;
    const int64_t stride[4] = {8 * 300 * 8, 300 * 8, 8, 2};
    memcpy(p->q.stride, stride, sizeof stride), memcpy(p->o.stride, stride, sizeof stride);
}
static void plan_sinks(fxa_problem *p) {
    p->sinks.layout = p->dsinks.layout = FXA_LAYOUT_STRIDED, p->sinks.dtype = FXA_BF16, p->dsinks.dtype = FXA_F16;
    p->sinks.stride[1] = 3, p->dsinks.stride[1] = 2;
}
static void plan_packed(fxa_problem *p) { p->total_q = 555, p->total_k = 777; }
static void plan_pages(fxa_problem *p) { p->page_size = 16, p->n_pages = 90; }
static void plan_large_pages(fxa_problem *p) { p->page_size = 256, p->n_pages = 9; }
static void plan_odd_pages(fxa_problem *p) { p->page_size = 12, p->n_pages = 90; }
static void plan_packed_pages(fxa_problem *p) { plan_pages(p), p->total_q = 555; }
static void plan_batch(fxa_problem *p) { p->b = 64; }
static void plan_batch_packed(fxa_problem *p) { p->b = 64, p->total_q = 64, p->total_k = 64 * 2000; }
static void plan_one_entry(fxa_problem *p) { p->b = 1; }
/* Rows of 60 elements with room for 64, whose stores would end in the next rows. */
static void plan_room(fxa_problem *p) {
    p->o.layout = p->dk.layout = FXA_LAYOUT_STRIDED;
    const int64_t o[4] = {8 * 300 * 64, 300 * 64, 64, 1}, dk[4] = {2 * 500 * 64, 500 * 64, 64, 1};
    memcpy(p->o.stride, o, sizeof o), memcpy(p->dk.stride, dk, sizeof dk);
}
static void plan_no_queries(fxa_problem *p) { p->sq = 0; }
static void plan_no_keys(fxa_problem *p) { p->sk = 0; }
static void plan_no_rows(fxa_problem *p) { p->total_q = 0, p->total_k = 0; }
static void plan_no_entry(fxa_problem *p) { p->b = 0; }
static void plan_wide_grads(fxa_problem *p) { p->b = 1, p->dq.dtype = p->dk.dtype = p->dv.dtype = FXA_F32; }

#endif
