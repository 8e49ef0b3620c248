/* SPDX-License-Identifier: Apache-2.0
 *
 * `global_heads`, the number of query heads, in every layer: a problem split by heads equals the entire problem bit by
 * bit if its parts state the total number; also tested for tiles, indices, keys, cache and bytes.
 */
#include "support/fixtures/own_context.h"
#include "t.h"

#include "problem/problem.h"

enum { HEADS = 4, S = 24, D = 8, ALL = HEADS * S * D };

static const char heads_text[] = "tensor t : f32[1]\n"
                                 "score = score - 2 ** (-8 * (h + 1) / heads) * abs(q - k) + t[heads - 1 - h]\n"
                                 "mask = k <= q || k % heads == h";

typedef struct heads_data {
    float q[ALL], k[ALL], v[ALL], o[ALL], dout[ALL], dq[ALL], dk[ALL], dv[ALL], dt[HEADS];
    float lse[HEADS * S], t[HEADS];
} heads_data;

/* Runs heads [first, first + n) of the data; `heads` is the global_heads of the problem. */
static fxa_status heads_run(heads_data *x, const fxa_program *program, const char *engine, fxa_pass pass, int64_t first,
                            int64_t n, int64_t heads, fxa_error *err) {
    fxa_capture capture = {.size = {HEADS}, .grad = pass == FXA_BACKWARD, .grad_dtype = FXA_F32};
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args a = {.struct_size = sizeof a};
    void *tensors[1] = {x->t}, *dtensors[1] = {x->dt};
    p.pass = pass, p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE, p.program = program,
    p.engine = engine;
    p.b = 1, p.hq = n, p.sq = p.sk = S, p.d_qk = D;
    p.q.dtype = FXA_F32, p.captures = &capture, p.n_captures = 1;
    p.map_h.base = first, p.global_heads = heads;
    int64_t at = first * S * D;
    a.slot[FXA_SLOT_Q] = x->q + at, a.slot[FXA_SLOT_K] = x->k + at, a.slot[FXA_SLOT_V] = x->v + at;
    a.slot[FXA_SLOT_O] = x->o + at, a.slot[FXA_SLOT_LSE] = x->lse + first * S;
    if (pass == FXA_BACKWARD) {
        a.slot[FXA_SLOT_DO] = x->dout + at, a.slot[FXA_SLOT_DQ] = x->dq + at;
        a.slot[FXA_SLOT_DK] = x->dk + at, a.slot[FXA_SLOT_DV] = x->dv + at;
        a.dtensors = dtensors, a.n_dtensors = 1;
    }
    a.scale = 0.35, a.tensors = (const void *const *)tensors, a.n_tensors = 1;
    return fxa_attention(ctx, &p, &a, err);
}

static heads_data *heads_make(void) {
    heads_data *x = calloc(1, sizeof *x);
    t_rng rng = {t_seed()};
    if (!x) abort();
    float *each[] = {x->q, x->k, x->v, x->dout};
    for (size_t i = 0; i < 4; i++)
        for (int j = 0; j < ALL; j++) each[i][j] = (float)t_int(&rng, -100, 100) / 64;
    for (int i = 0; i < HEADS; i++) x->t[i] = (float)i / 4;
    return x;
}

TEST(parts_that_know_the_whole_are_the_whole) {
    static const char *const engines[] = {"ref", "cpu"};
    t_program *program = NULL;
    T_OK(own_parse(FXA_PROGRAM_SCORE, heads_text, SIZE_MAX, &program, &err));
    for (size_t e = 0; e < 2; e++) {
        heads_data *x = heads_make(), *y = heads_make();
        T_OK(heads_run(x, program, engines[e], FXA_FORWARD, 0, HEADS, 0, &err));
        T_OK(heads_run(x, program, engines[e], FXA_BACKWARD, 0, HEADS, HEADS, &err));
        for (int part = 0; part < 2; part++) {
            T_OK(heads_run(y, program, engines[e], FXA_FORWARD, part * 2, 2, HEADS, &err));
            T_OK(heads_run(y, program, engines[e], FXA_BACKWARD, part * 2, 2, HEADS, &err));
        }
        T_CHECK(memcmp(x->o, y->o, sizeof x->o) == 0 && memcmp(x->lse, y->lse, sizeof x->lse) == 0);
        T_CHECK(memcmp(x->dq, y->dq, sizeof x->dq) == 0 && memcmp(x->dk, y->dk, sizeof x->dk) == 0 &&
                memcmp(x->dv, y->dv, sizeof x->dv) == 0);
        T_OK(heads_run(y, program, engines[e], FXA_FORWARD, 2, 2, 0, &err)); /* the problem has 2 heads in total */
        T_CHECK(memcmp(x->o, y->o, sizeof x->o) != 0);
        free(x);
        free(y);
    }
}

TEST(keys_caches_and_bytes) {
    t_program *program = NULL;
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_plan *plan[3] = {NULL};
    fxa_cache_stats before, after;
    static const int64_t heads[] = {0, 2, 16};
    uint8_t key[3][16], bytes[4000], again[4000];
    size_t size, size_again;
    T_OK(own_parse(FXA_PROGRAM_SCORE, "score = score * heads", SIZE_MAX, &program, &err));
    p.b = 1, p.hq = 2, p.sq = p.sk = S, p.d_qk = D, p.q.dtype = FXA_F32, p.program = program, p.engine = "cpu";
    fxa_cache_get_stats(ctx, &before);
    for (int i = 0; i < 3; i++) {
        p.global_heads = heads[i];
        T_OK(fxa_plan_create(ctx, &p, &plan[i], &err));
        fxa_plan_key(plan[i], key[i]);
    }
    fxa_cache_get_stats(ctx, &after);
    T_INT(after.builds - before.builds, 1); /* it is geometry */
    T_CHECK(memcmp(key[0], key[1], 16) == 0 && memcmp(key[0], key[2], 16) != 0);
    T_OK(fxa_plan_save(plan[2], bytes, sizeof bytes, &size, &err));
    fxa_plan_destroy(plan[2]);
    T_OK(fxa_plan_load(ctx, bytes, size, &plan[2], &err));
    T_OK(fxa_plan_save(plan[2], again, sizeof again, &size_again, &err));
    T_CHECK(size == size_again && memcmp(bytes, again, size) == 0);
    fxa_problem held = FXA_PROBLEM_INIT;
    fxa_plan_problem(plan[2], &held);
    T_INT(held.global_heads, 16);
    p.global_heads = -1;
    fxa_plan *refused = NULL;
    T_STATUS(fxa_plan_create(ctx, &p, &refused, &err), FXA_E_PROBLEM);
    T_HAS(err.text, "heads is -1");
    p.global_heads = (int64_t)INT32_MAX + 1;
    T_STATUS(fxa_plan_create(ctx, &p, &refused, &err), FXA_E_PROBLEM);
    for (int i = 0; i < 3; i++) fxa_plan_destroy(plan[i]);
}

/* A mask that attends to all of a head or to nothing, depending on the number of heads. */
TEST(tiles_know_the_heads) {
    t_program *program = NULL;
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_tile_counts counts;
    T_OK(own_parse(FXA_PROGRAM_SCORE, "mask = 2 * h >= heads", SIZE_MAX, &program, &err));
    p.b = 1, p.hq = 4, p.sq = p.sk = S, p.d_qk = D, p.q.dtype = FXA_F32, p.program = program;
    for (int64_t heads = 0; heads < 8; heads++) {
        p.global_heads = heads;
        for (int64_t h = 0; h < 4; h++) {
            T_OK(fxa_tiles_count(ctx, &p, 0, h, 8, 8, NULL, NULL, &counts, &err));
            T_INT(counts.full, 2 * h >= (heads ? heads : 4) ? 9 : 0);
            T_INT(counts.empty, 9 - (int64_t)counts.full);
        }
    }
}

T_MAIN
