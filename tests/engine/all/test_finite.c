/* SPDX-License-Identifier: Apache-2.0
 *
 * Every gradient of complete attention compared with finite differences in f64, for every engine: L = sum dO * O + sum
 * dLSE * LSE changes along a random direction of one input at a time as the gradient predicts. Differences over h and
 * 2h err by about h^4 times the fifth derivative, plus 1e-16 |L| / h. With h = 1e-5 that is about 1e-10 for the
 * magnitudes drawn here, also for steep polynomials of the score; the tolerance is 1e-7.
 */
#include "support/fixtures/attn_case.h"
#include "t.h"

#define STEP 1e-5
#define ALLOWED 1e-7

static double finite_loss(attn_case *c) {
    static const fxa_slot outputs[] = {FXA_SLOT_O, FXA_SLOT_LSE}, weights[] = {FXA_SLOT_DO, FXA_SLOT_DLSE};
    double loss = 0;
    int64_t at[4];
    if (!attn_case_run(c, FXA_FORWARD)) return NAN;
    for (int i = 0; i < (c->x.dlse ? 2 : 1); i++)
        for (int64_t b = 0; b < c->x.b; b++)
            for (int64_t s = 0; s < c->x.q_len[b] && attn_case_at(c, outputs[i], b, s, at); s++)
                for (at[1] = 0; at[1] < c->x.hq; at[1]++)
                    for (at[3] = 0; at[3] < c->data.t[outputs[i]].n[3]; at[3]++) {
                        double value = attn_tensor_get(&c->data.t[outputs[i]], at);
                        if (value > -INFINITY) loss += value * attn_tensor_get(&c->data.t[weights[i]], at);
                    }
    return loss;
}

/* Moves t along the direction that `seed` draws. Returns the sum of grad * direction over the elements that exist. */
static double finite_move(attn_tensor *t, const attn_tensor *grad, uint64_t seed, double step) {
    double sum = 0;
    int64_t at[4];
    for (at[0] = 0; at[0] < t->n[0]; at[0]++)
        for (at[1] = 0; at[1] < t->n[1]; at[1]++)
            for (at[2] = 0; at[2] < t->n[2]; at[2]++)
                for (at[3] = 0; at[3] < t->n[3]; at[3]++) {
                    double direction = attn_real(&seed, -1, 1), x = attn_tensor_get(t, at);
                    attn_tensor_set(t, at, x + step * direction);
                    if (x == x) sum += attn_tensor_get(grad, at) * direction; /* NaN: no element of a sequence */
                }
    return sum;
}

/* Returns the derivative at 0 of a loss with values at 2h, h, -h, -2h. */
static double finite_slope(const double loss[4]) {
    return (8 * (loss[1] - loss[2]) - (loss[0] - loss[3])) / (12 * STEP);
}
static const double finite_moves[4] = {2, -1, -2, -1}; /* steps from one evaluation point to the next */

static void finite_check(attn_case *c, const char *name, attn_tensor *t, const attn_tensor *grad, uint64_t seed) {
    double want = 0, loss[4];
    for (int i = 0; i < 4; i++) {
        want = finite_move(t, grad, seed, finite_moves[i] * STEP);
        loss[i] = finite_loss(c);
    }
    finite_move(t, grad, seed, 2 * STEP);
    double slope = finite_slope(loss);
    if (fabs(slope - want) <= ALLOWED * fmax(1, fabs(want))) return;
    char what[256];
    attn_case_describe(c, what, sizeof what);
    T_FAIL("%s: gradient says %.12g, differences %.12g\n    %s %s\n", name, want, slope, what, c->why);
}

static void finite_check_params(attn_case *c) {
    for (int i = 0; i < c->twin->n_params && c->data.problem.param_grads; i++) {
        double x = c->x.param[i], want = attn_get(&c->data.dparam, i), loss[4];
        for (int j = 0; j < 4; j++) {
            c->x.param[i] += finite_moves[j] * STEP;
            loss[j] = finite_loss(c);
        }
        c->x.param[i] = x;
        double slope = finite_slope(loss);
        if (!(fabs(slope - want) <= ALLOWED * fmax(1, fabs(want))))
            T_FAIL("%s, param %d: gradient says %.12g, differences %.12g\n", c->twin->name, i, want, slope);
    }
}

static void finite_engine(const char *engine, uint32_t features, bool free_choice, const attn_shape *shape, int n) {
    t_ctx *ctx = t_context();
    uint64_t rng = t_seed() ^ features;
    for (int i = 0; i < n; i++) {
        attn_case c;
        uint32_t drawn = ATTN_PROGRAM | ATTN_SMOOTH | (free_choice ? features & (uint32_t)attn_next(&rng) : features);
        bool ok = attn_case_draw_shape(&c, ctx, engine, drawn, shape, &rng) && attn_case_run(&c, FXA_FORWARD);
        ok = ok && attn_case_run(&c, FXA_BACKWARD);
        if (!ok) T_FAIL("%s: %s\n", engine, c.why);
        uint64_t seed = attn_next(&rng);
        if (ok) {
            finite_check(&c, "dQ", &c.data.t[FXA_SLOT_Q], &c.data.t[FXA_SLOT_DQ], seed);
            finite_check(&c, "dK", &c.data.t[FXA_SLOT_K], &c.data.t[FXA_SLOT_DK], seed);
            finite_check(&c, "dV", &c.data.t[FXA_SLOT_V], &c.data.t[FXA_SLOT_DV], seed);
            if (c.data.problem.flags & FXA_SINKS)
                finite_check(&c, "dsink", &c.data.t[FXA_SLOT_SINKS], &c.data.t[FXA_SLOT_DSINKS], seed);
            for (int j = 0; j < c.twin->n_tensors; j++)
                if (c.data.captures[j].grad) finite_check(&c, "dtensor", &c.data.tensor[j], &c.data.dtensor[j], seed);
            finite_check_params(&c);
        }
        attn_case_free(&c);
        if (!ok) break;
    }
}

static void finite_cases(uint32_t features, bool free_choice, const attn_shape *shape, int n) {
    for (size_t e = 0; engine_here(e); e++) finite_engine(engine_here(e), features, free_choice, shape, n);
}

TEST(gradients_of_programs_params_and_tensors) { finite_cases(ATTN_DLSE, false, NULL, t_scaled(60)); }
TEST(gradients_with_sinks_dropout_and_lse) {
    finite_cases(ATTN_SINK | ATTN_DROPOUT | ATTN_DLSE, false, NULL, t_scaled(60));
}
TEST(gradients_with_everything) {
    const uint32_t geometry = ATTN_GQA | ATTN_DIMS | ATTN_PADDING | ATTN_VARLEN | ATTN_PAGED | ATTN_MAPS | ATTN_LENGTHS;
    const uint32_t softmax = ATTN_SINK_ZERO | ATTN_SINK | ATTN_DROPOUT | ATTN_READY | ATTN_DLSE;
    finite_cases(geometry | softmax, true, NULL, t_scaled(250));
}
TEST(gradients_of_many_rows_and_keys) { /* more rows and keys than a block of an engine has */
    const attn_shape shape = {.b = 1, .hq = 2, .hkv = 1, .sq = 37, .sk = 70, .d = 19, .dv = 9, .window = 20};
    finite_cases(ATTN_GQA | ATTN_DIMS | ATTN_DLSE | ATTN_READY | ATTN_SINK, true, &shape, t_scaled(25));
}

T_MAIN
