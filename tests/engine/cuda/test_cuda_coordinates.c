/* SPDX-License-Identifier: Apache-2.0
 *
 * Coordinates written into programs of the cuda engine: at local indices the rewritten program gives the value of the
 * problem's program at the coordinates of src/problem/geometry.c, for random maps, start positions and shards.
 */
#include "engine/cuda/codegen/passes.h"
#include "plan/plan.h"
#include "problem/geometry.h"
#include "support/fixtures/own_context.h"
#include "t.h"

enum { PLACE_MOST = 64, PLACE_TENSORS = 12 };

typedef struct place {
    fxa__problem *p;
    fxa__bound_args bound;
    int32_t table[4][PLACE_MOST], dynamic[4], pos[PLACE_MOST];
} place;

static fxa_index_map place_map(t_rng *r) {
    fxa_index_map m = {.kind = (uint32_t)t_int(r, 0, 3), .has_offset = t_int(r, 0, 3) == 0};
    if (m.kind == 3) m.kind = FXA_MAP_AFFINE, m.has_offset = 0;
    m.base = t_int(r, 0, 2) ? t_int(r, -50, 50) : 0, m.step = t_int(r, 0, 1) ? t_int(r, -3, 3) : 0;
    if (m.kind != FXA_MAP_SEGMENTS) return m;
    m.base = m.step = 0;
    m.n_segments = (uint32_t)t_int(r, 1, 4);
    for (uint32_t i = 0; i < m.n_segments; i++)
        m.segment[i] =
            (fxa_segment){i ? m.segment[i - 1].begin + t_int(r, 1, 5) : 0, t_int(r, -99, 99), t_int(r, -2, 2)};
    return m;
}

static void place_bind(place *x, t_rng *r) {
    const fxa_problem *p = &x->p->in;
    const fxa_index_map *maps[] = {&p->map_b, &p->map_h, &p->map_q, &p->map_k};
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < PLACE_MOST; j++) x->table[i][j] = (int32_t)t_int(r, -1000, 1000);
        x->dynamic[i] = (int32_t)t_int(r, -1000, 1000);
        if (maps[i]->kind == FXA_MAP_TABLE) x->bound.slot[FXA_SLOT_MAP_B + i] = x->table[i];
        if (maps[i]->has_offset) x->bound.slot[FXA_SLOT_OFFSET_B + i] = &x->dynamic[i];
    }
    for (int j = 0; j < PLACE_MOST; j++) x->pos[j] = (int32_t)t_int(r, 0, 500);
    if (p->flags & FXA_Q_START) x->bound.slot[FXA_SLOT_Q_START] = x->pos;
}

static double place_value(const fxa_program *program, const int32_t coord[FXA_INPUT_COUNT], const fxa_view *tensors) {
    static fxa__val values[4096];
    fxa__env env = {.tensors = tensors};
    memcpy(env.coord, coord, sizeof env.coord);
    fxa__program_eval(program, &env, values);
    return values[fxa__program_output(program, FXA__OUT_SCORE)].f;
}

/* Draws all four indices and compares the values of both programs. */
static void place_compare(const place *x, const cuda_work *w, t_rng *r) {
    const fxa_program *own = w->config.program;
    const fxa_problem *p = &x->p->in;
    fxa_view views[PLACE_TENSORS] = {{0}};
    for (int32_t i = 0; i < own->n_tensors; i++) {
        fxa__cuda_origin from = fxa__cuda_tensor_source(w, own->tensors[i].name);
        int32_t slot = from.index;
        T_CHECK(from.kind == FXA__CUDA_FROM_SLOT && slot >= FXA_SLOT_MAP_B && slot <= FXA_SLOT_Q_START &&
                x->bound.slot[slot]);
        views[i] =
            (fxa_view){.data = x->bound.slot[slot], .dtype = FXA_I32, .rank = 1, .size = {PLACE_MOST}, .stride = {1}};
        if (slot >= FXA_SLOT_OFFSET_B && slot <= FXA_SLOT_OFFSET_K) views[i].size[0] = 1;
    }
    for (int n = 0; n < 20; n++) {
        int64_t b = t_int(r, 0, p->b - 1), h = t_int(r, 0, p->hq - 1), q = t_int(r, 0, p->sq - 1);
        int64_t k = t_int(r, 0, p->sk - 1);
        int32_t local[FXA_INPUT_COUNT] = {0}, seen[FXA_INPUT_COUNT] = {0};
        fxa__seq seq = fxa__seq_get(x->p, &x->bound, b);
        local[FXA_INPUT_B] = (int32_t)b, local[FXA_INPUT_H] = (int32_t)h;
        local[FXA_INPUT_Q] = (int32_t)q, local[FXA_INPUT_K] = (int32_t)k;
        local[FXA_INPUT_Q_LEN] = (int32_t)p->sq, local[FXA_INPUT_K_LEN] = (int32_t)p->sk;
        local[FXA_INPUT_HEADS] = (int32_t)p->hq;
        seen[FXA_INPUT_B] = fxa__coord(x->p, &x->bound, FXA_INPUT_B, b);
        seen[FXA_INPUT_H] = fxa__coord(x->p, &x->bound, FXA_INPUT_H, h);
        seen[FXA_INPUT_K] = fxa__coord(x->p, &x->bound, FXA_INPUT_K, k);
        seen[FXA_INPUT_Q] = fxa__row_coord(x->p, &x->bound, &seq, q);
        seen[FXA_INPUT_Q_ROW] = (int32_t)q, seen[FXA_INPUT_K_ROW] = (int32_t)k;
        seen[FXA_INPUT_Q_LEN] = seq.q_len_seen, seen[FXA_INPUT_K_LEN] = seq.k_len_seen;
        seen[FXA_INPUT_HEADS] = seq.heads_seen;
        T_NEAR(place_value(own, local, views), place_value(x->p->program, seen, NULL), 0);
    }
}

TEST(random_coordinates) {
    t_rng r = {t_seed()};
    t_program *program = NULL;
    static const char text[] = "score = 1.0 * b + 7919.0 * h + 104729.0 * q + 1299709.0 * k + 0.5 * q_len + 0.001 * "
                               "k_len + 0.25 * heads + 15485863.0 * q_row + 179424673.0 * k_row + score\nmask = k <= q";
    T_OK(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &program, &err));
    for (int i = 0; i < t_scaled(300); i++) {
        static place x;
        memset(&x, 0, sizeof x);
        fxa_problem p = FXA_PROBLEM_INIT;
        p.b = t_int(&r, 1, 5), p.hq = t_int(&r, 1, 8), p.sq = t_int(&r, 1, 60), p.sk = t_int(&r, 1, 60), p.d_qk = 16;
        p.program = program;
        p.map_b = place_map(&r), p.map_h = place_map(&r), p.map_q = place_map(&r), p.map_k = place_map(&r);
        if (t_int(&r, 0, 2) == 0) p.flags |= t_int(&r, 0, 1) ? FXA_Q_START : FXA_BOTTOM_RIGHT;
        if (t_int(&r, 0, 2) == 0) p.global_q_len = t_int(&r, 1, 500);
        if (t_int(&r, 0, 2) == 0) p.global_k_len = t_int(&r, 1, 500);
        if (t_int(&r, 0, 2) == 0) p.global_heads = t_int(&r, p.hq, 90);
        T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &x.p, &err));
        T_REQUIRE(x.p);
        place_bind(&x, &r);
        cuda_work w = {.host = x.p->host, .problem = x.p};
        fxa__cuda_added_names_make(&w);
        T_OK(fxa__cuda_substitute_coordinates(&w, &err));
        if (w.config.program) place_compare(&x, &w, &r);
        fxa_program_destroy(w.config.program);
        fxa__problem_release(x.p);
    }
}

/* ---- Backward programs of the caller ----------------------------------------------------------------------------- */

/* Returns the param or tensor of the renamed program that is the caller's of this number. */
static int32_t own_find(const cuda_work *w, bool tensor, int32_t number) {
    const fxa_program *p = w->config.bprop;
    for (int32_t i = 0; i < (tensor ? p->n_tensors : p->n_params); i++) {
        fxa__cuda_origin from = {FXA__CUDA_FROM_BPROP, FXA__CUDA_BPROP};
        if (tensor) from = fxa__cuda_tensor_source(w, p->tensors[i].name);
        if (!tensor) from.index -= fxa__cuda_param_source(w, p->params[i].name);
        if (from.kind == FXA__CUDA_FROM_BPROP && from.index == number) return i;
    }
    T_FAIL("no %s %d\n", tensor ? "tensor" : "param", (int)number);
    return 0;
}

static double own_value(const fxa_program *program, const fxa__env *env) {
    static fxa__val values[4096];
    fxa__program_eval(program, env, values);
    return values[fxa__program_output(program, FXA__OUT_DSCORE)].f;
}

/* Params and tensors are renamed, and the gradient of the score keeps its value. */
TEST(backward_programs_are_renamed) {
    static const char *const texts[] = {
        "dscore = dscore * 3.0",
        "dscore = q < k || q == 7 ? dscore : 0.5 * float(q_len - k_len)",
        "param a : float\nparam z : int\ndscore = dscore * a + float(z) * score",
        "param a : float\ntensor t : f32[1]\ntensor u : i32[2]\ndscore = t[k] * dscore + float(u[h, q]) * a",
    };
    t_rng r = {t_seed()};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        float floats[64];
        int32_t ints[64];
        fxa_problem p = FXA_PROBLEM_INIT;
        fxa_capture captures[2] = {{.size = {20}}, {.size = {3, 20}}};
        fxa__problem *problem = NULL;
        fxa_program *bprop = NULL;
        T_OK(own_parse(FXA_PROGRAM_BPROP, texts[i], SIZE_MAX, &bprop, &err));
        p.pass = FXA_BACKWARD, p.flags = FXA_GRAD_Q, p.hq = 3, p.sq = p.sk = 20, p.d_qk = 16, p.bprop = bprop;
        p.bprop_captures = captures, p.n_bprop_captures = (size_t)bprop->n_tensors;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &problem, &err));
        T_REQUIRE(problem);
        cuda_work w = {.host = problem->host, .problem = problem, .backward = true};
        fxa__cuda_added_names_make(&w);
        T_OK(fxa__cuda_prepare_user_backward(&w, &err));
        const fxa_program *renamed = w.config.bprop;
        T_REQUIRE(renamed && renamed->n_params == bprop->n_params && renamed->n_tensors == bprop->n_tensors);
        for (int j = 0; j < 64; j++) floats[j] = (float)t_real(&r, -2, 2), ints[j] = (int32_t)t_int(&r, -99, 99);
        fxa_view views[2][2] = {{{.data = floats, .dtype = FXA_F32, .rank = 1, .size = {20}, .stride = {1}},
                                 {.data = ints, .dtype = FXA_I32, .rank = 2, .size = {3, 20}, .stride = {20, 1}}}};
        double params[2][2] = {{1.75, 5}};
        for (int32_t j = 0; j < bprop->n_tensors; j++) views[1][own_find(&w, true, j)] = views[0][j];
        for (int32_t j = 0; j < bprop->n_params; j++) params[1][own_find(&w, false, j)] = params[0][j];
        for (int n = 0; n < 200; n++) {
            fxa__env env = {.score = t_real(&r, -2, 2), .dscore = t_real(&r, -2, 2)};
            for (int j = 0; j < FXA_INPUT_COUNT; j++) env.coord[j] = (int32_t)t_int(&r, 0, j == FXA_INPUT_H ? 2 : 19);
            env.tensors = views[0], env.params = params[0];
            double want = own_value(bprop, &env);
            env.tensors = views[1], env.params = params[1];
            T_NEAR(own_value(renamed, &env), want, 0);
        }
        fxa_program_destroy(w.config.bprop);
        fxa_program_destroy(bprop);
        fxa__problem_release(problem);
    }
}

/* ---- Masks that read the score ----------------------------------------------------------------------------------- */

/* Returns the new score of a pair; -inf if the mask is false. */
static double scored_value(const fxa_program *program, const fxa__env *env) {
    static fxa__val values[4096];
    fxa__program_eval(program, env, values);
    int32_t score = fxa__program_output(program, FXA__OUT_SCORE), mask = fxa__program_output(program, FXA__OUT_MASK);
    return values[mask].i ? values[score].f : -INFINITY;
}

TEST(conditions_on_the_score_are_moved) {
    static const char *const texts[] = {"mask = score > 0",
                                        "mask = k <= q && score > 0",
                                        "mask = k <= q || score > 0",
                                        "score = tanh(score)\nmask = (score > 0 && k <= q) && (q - k < 9 && score < 1)",
                                        "mask = !(k <= q && score > 0)",
                                        "mask = k <= q"};
    t_rng r = {t_seed()};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fxa_program *program = NULL, *moved = NULL;
        T_OK(own_parse(FXA_PROGRAM_SCORE, texts[i], SIZE_MAX, &program, &err));
        fxa_program_retain(program);
        cuda_work w = {.host = fxa__context_host(ctx), .config = {.program = program}};
        T_OK(fxa__cuda_move_mask_to_score(&w, &err));
        moved = w.config.program;
        T_REQUIRE(moved);
        T_INT(moved == program, !strstr(texts[i], "score > 0"));
        uint16_t reads[64];
        T_REQUIRE(moved->n_nodes <= 64);
        fxa__program_inputs(moved, reads);
        T_CHECK(!(reads[fxa__program_output(moved, FXA__OUT_MASK)] >> FXA_INPUT_SCORE & 1));
        for (int n = 0; n < 200; n++) {
            fxa__env env = {.score = t_real(&r, -2, 2)};
            env.coord[FXA_INPUT_Q] = (int32_t)t_int(&r, 0, 20), env.coord[FXA_INPUT_K] = (int32_t)t_int(&r, 0, 20);
            double want = scored_value(program, &env), got = scored_value(moved, &env);
            if (want != got) T_FAIL("%s: %g, not %g\n", texts[i], got, want);
        }
        fxa_program_destroy(moved);
        fxa_program_destroy(program);
    }
}

T_MAIN
