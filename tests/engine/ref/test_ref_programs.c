/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs with inf, NaN and every operation inside attention: each pair's new score equals fxa_program_eval,
 * operands of one row never affect another row, and backward handles any value.
 */
#include "support/fixtures/gen.h"
#include "t.h"

#include "base/dtype.h"

#define ENGINE "ref"
enum { B = 2, H = 2, S = 3, SIDE = 3, CELLS = 3 * 3 * 3 * 3 * 3, MAX_TENSORS = 16 };

/* Data for every tensor and param that a generated program may use, bound in the order of the program. */
typedef struct wild {
    fxa_context *ctx;
    fxa_program *program;
    size_t n_params, n_tensors;
    double params[8], dparams[8];
    fxa_capture captures[MAX_TENSORS];
    fxa_view views[MAX_TENSORS];
    const void *tensors[MAX_TENSORS];
    void *dtensors[MAX_TENSORS];
    double cells[MAX_TENSORS][CELLS], dcells[MAX_TENSORS][CELLS]; /* room for elements of any dtype */
} wild;

static void wild_fill(fxa_dtype dtype, double *cells, t_rng *rng) {
    unsigned char *bytes = (unsigned char *)cells;
    for (int64_t i = 0; i < CELLS; i++) {
        if (fxa__dtype_is_float(dtype))
            fxa__store_f64(cells, dtype, i, t_real(rng, -2, 2));
        else if (dtype == FXA_B8)
            bytes[i] = (unsigned char)t_int(rng, 0, 1);
        else if (dtype == FXA_I64)
            ((int64_t *)(void *)cells)[i] = t_int(rng, -4, 4) + t_int(rng, 0, 2) * (INT64_C(1) << 32);
        else if (dtype == FXA_I32)
            ((int32_t *)(void *)cells)[i] = (int32_t)t_int(rng, -4, 4);
        else if (dtype == FXA_I16)
            ((int16_t *)(void *)cells)[i] = (int16_t)t_int(rng, -4, 4);
        else
            bytes[i] = (unsigned char)t_int(rng, 0, 255);
    }
}

static bool wild_start(wild *w, fxa_context *ctx, t_rng *rng) {
    uint8_t tape[160];
    memset(w, 0, sizeof *w);
    for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)t_next(rng);
    w->ctx = ctx;
    w->program = gen_program(ctx, tape, (size_t)t_int(rng, 8, sizeof tape), 0);
    if (!w->program) return false;
    w->n_params = fxa_program_param_count(w->program);
    w->n_tensors = fxa_program_tensor_count(w->program);
    for (size_t i = 0; i < w->n_params; i++) {
        bool whole = fxa_program_param(w->program, i).type == FXA_INT;
        w->params[i] = whole ? (double)t_int(rng, -3, 3) : t_real(rng, -2, 2);
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        fxa_tensor_info info = fxa_program_tensor(w->program, i);
        w->views[i] = (fxa_view){w->cells[i], info.dtype, info.rank, {0}, {0}};
        int64_t step = 1;
        for (int32_t axis = info.rank - 1; axis >= 0; axis--) {
            w->captures[i].size[axis] = w->views[i].size[axis] = SIDE;
            w->views[i].stride[axis] = step;
            step *= SIDE;
        }
        wild_fill(info.dtype, w->cells[i], rng);
        w->tensors[i] = w->cells[i];
    }
    return true;
}

/* Runs one pass over [B,H,S] rows and `keys` keys with head dim 1. x: arrays by slot. */
static void wild_run(wild *w, fxa_pass pass, int64_t keys, double *const x[FXA_SLOT_COUNT]) {
    fxa_error err;
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    p.pass = (uint32_t)pass, p.b = B, p.hq = H, p.sq = S, p.sk = keys, p.d_qk = 1, p.q.dtype = FXA_F64,
    p.engine = ENGINE;
    p.program = w->program, p.captures = w->captures, p.n_captures = args.n_tensors = w->n_tensors;
    p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_READ_DLSE : FXA_RETURN_LSE | FXA_RETURN_ROW_MAX;
    args.scale = 1, args.params = w->params, args.n_params = w->n_params, args.tensors = w->tensors;
    for (int i = 0; i < FXA_SLOT_SINKS; i++) args.slot[i] = x[i];
    if (pass == FXA_FORWARD)
        args.slot[FXA_SLOT_DQ] = args.slot[FXA_SLOT_DK] = args.slot[FXA_SLOT_DV] = NULL;
    else
        args.slot[FXA_SLOT_ROW_MAX] = NULL;
    for (size_t i = 0; i < w->n_params; i++)
        if (pass && fxa_program_param(w->program, i).type == FXA_FLOAT) p.param_grads |= (uint64_t)1 << i;
    for (size_t i = 0; i < w->n_tensors; i++) {
        w->captures[i].grad = pass && fxa__dtype_is_float(w->views[i].dtype);
        w->dtensors[i] = w->captures[i].grad ? w->dcells[i] : NULL;
    }
    if (pass) args.dparams = w->dparams, args.n_dparams = w->n_params, args.dtensors = w->dtensors;
    if (pass) args.n_dtensors = w->n_tensors;
    T_OK(fxa_attention(w->ctx, &p, &args, &err));
}

CONTEXT_TEST(each_new_score_is_what_the_program_says) {
    t_rng rng = {t_seed()};
    for (int n = 0; n < t_scaled(300); n++) {
        static wild w;
        double memory[12][B * H * S], *x[FXA_SLOT_COUNT];
        T_REQUIRE(wild_start(&w, ctx, &rng));
        for (int i = 0; i < FXA_SLOT_COUNT; i++) x[i] = i < 12 ? memory[i] : NULL;
        for (int i = 0; i < B * H * S; i++) memory[FXA_SLOT_Q][i] = t_real(&rng, -3, 3), memory[FXA_SLOT_K][i] = 1;
        wild_run(&w, FXA_FORWARD, 1, x); /* with one key, the maximum of a row is its new score */
        for (int i = 0; i < B * H * S; i++) {
            double in[FXA_INPUT_COUNT] =
                {memory[FXA_SLOT_Q][i], i / (H * S), i / S % H, i % S, 0, S, 1, 0, H, i % S, 0},
                   value;
            int mask;
            T_OK(fxa_program_eval(w.program, in, w.params, w.views, &value, &mask, &err));
            T_SAME(memory[FXA_SLOT_ROW_MAX][i], mask ? value : -INFINITY);
            double lse = mask ? value : -INFINITY;
            T_SAME(memory[FXA_SLOT_LSE][i], lse == INFINITY ? NAN : lse + log(1)); /* never -0 */
        }
        fxa_program_destroy(w.program);
    }
}

CONTEXT_TEST(operands_of_one_row_reach_no_other_row) {
    t_rng rng = {t_seed() + 1};
    for (int n = 0; n < t_scaled(200); n++) {
        static wild w;
        static const double poison[] = {NAN, INFINITY, -INFINITY, 1e308};
        double first[12][B * H * S], second[12][B * H * S], *x[FXA_SLOT_COUNT] = {0}, *y[FXA_SLOT_COUNT] = {0};
        T_REQUIRE(wild_start(&w, ctx, &rng));
        for (int i = 0; i < 11; i++) x[i] = first[i], y[i] = second[i];
        for (int i = 0; i < 11; i++)
            for (int j = 0; j < B * H * S; j++) first[i][j] = t_real(&rng, -2, 2);
        memcpy(second, first, sizeof first);
        int victim = (int)t_int(&rng, 0, B * H * S - 1);
        second[FXA_SLOT_Q][victim] = poison[t_int(&rng, 0, 3)];
        second[FXA_SLOT_DO][victim] = poison[t_int(&rng, 0, 3)];
        wild_run(&w, FXA_FORWARD, S, x);
        wild_run(&w, FXA_BACKWARD, S, x);
        wild_run(&w, FXA_FORWARD, S, y);
        wild_run(&w, FXA_BACKWARD, S, y);
        static const fxa_slot rows[] = {FXA_SLOT_O, FXA_SLOT_LSE, FXA_SLOT_ROW_MAX, FXA_SLOT_DQ};
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < B * H * S; j++)
                if (j != victim) T_SAME(second[rows[i]][j], first[rows[i]][j]);
        for (int j = 0; j < B * H * S; j++) /* keys of another head are not affected */
            if (j / S != victim / S) T_SAME(second[FXA_SLOT_DK][j], first[FXA_SLOT_DK][j]);
        fxa_program_destroy(w.program);
    }
}

T_MAIN
