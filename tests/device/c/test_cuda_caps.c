/* SPDX-License-Identifier: Apache-2.0
 *
 * Soft caps of the cuda engine compared with the reference, as params and as constants, where tiles switch between
 * their tanh variants: scores near 0, around the cap and far above it; one large score in a tile of small ones; caps
 * too large for the fast variant; caps of 0, negative, near the f32 limit and NaN; NaN keys behind a mask; partial
 * tiles. Covers forward and backward. Runs on a GPU or the GPU emulator (tests/model). Each test is one program at one
 * head dim, and run_cuda.py runs each in its own process, because compiling takes half a minute.
 */
#include "base/dtype.h"
#include "support/conformance/conf_frame.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <math.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda, &fxa__engine_cpu, &fxa__engine_ref};

enum { CAPS_SECONDS = 120 };

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

enum { CAPS_PARAM, CAPS_NUMBER, CAPS_TWO };
static const struct caps_program {
    int by;
    const char *format, *mask; /* %.9g is the cap */
} caps_programs[] = {
    {CAPS_PARAM, "param cap : float\nscore = cap * tanh(score / cap)", ""},
    {CAPS_NUMBER, "score = %.9g * tanh(score / %.9g)", "\nmask = k <= q + 40"},
    {CAPS_TWO, "param a : float\nparam c : float\nscore = 4 * a * tanh(c * score)", "\nmask = k <= q + 40"},
    {CAPS_PARAM, "param cap : float\nscore = cap * tanh(score / cap)", "\nmask = k <= q + 40"},
    {CAPS_NUMBER, "score = %.9g * tanh(score / %.9g)", ""},
};
enum { CAPS_PROGRAMS = sizeof caps_programs / sizeof *caps_programs };

static const double caps_all[] = {20, 0.5, 50, 64, 65, 1e6, -20, 0, NAN, -1e6, 1e30, 3e38, 1e-30, INFINITY};
enum { CAPS_ALL = sizeof caps_all / sizeof *caps_all };

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Kinds of scores, as multiples of the cap except OUTLIER and PLAIN. SPOILT: keys behind a mask are NaN. */
enum { CAPS_NEAR, CAPS_AROUND, CAPS_BEYOND, CAPS_TILES, CAPS_PLAIN, CAPS_OUTLIER, CAPS_SPOILT, CAPS_SCORES };
static const char *const caps_scores[] = {"near", "around", "beyond", "tiles", "plain", "outlier", "spoilt"};

typedef struct caps_case {
    const struct caps_program *program;
    double cap;
    int scores;
    bool f16;
    int64_t width, sq, sk;
} caps_case;

static bool caps_hidden(int64_t k) { return k % 9 == 4; }

static double caps_score(const caps_case *x, int64_t k) {
    double part = (double)(k * 37 % 101 - 50) / 50, cap = isfinite(x->cap) && x->cap != 0 ? fabs(x->cap) : 1;
    switch (x->scores) {
    case CAPS_NEAR: return 0.55 * part * cap;
    case CAPS_AROUND: return 3 * part * cap;
    case CAPS_BEYOND: return (k % 17 == 3 ? 30 : 9.6) * part * cap;
    case CAPS_TILES: return (k / 64 % 3 == 0 ? 0.5 : k / 64 % 3 == 1 ? 9 : 12) * part * cap;
    case CAPS_OUTLIER: return k == 70 ? fmin(12 * cap, 2000) : 1e-3 * part;
    case CAPS_SPOILT: return caps_hidden(k) ? NAN : 2 * part * cap;
    default: return 4 * part;
    }
}

/* Returns an element of Q or K: Q is 0 but for one feature, the gain of the row; K has the intended score in this
 * feature. */
static double caps_value(const caps_case *x, fxa_slot slot, double scale, int64_t s, int64_t d, double old) {
    static const double gains[] = {1, -1, 0.5, 0.75, 1, -0.25, 0.03125};
    if (slot == FXA_SLOT_Q) return d == 0 ? gains[s % 7] : 0;
    if (d > 0) return x->scores == CAPS_SPOILT && caps_hidden(s) ? NAN : old;
    double score = caps_score(x, s) / scale, most = x->f16 ? 60000 : 3e38;
    return score == score ? fmin(fmax(score, -most), most) : score;
}

/* Fills all elements of a slot, in memory and in the reference. */
static void caps_fill(conf_case *c, const caps_case *x, fxa_slot slot) {
    attn_case *base = &c->base;
    attn_tensor *t = &base->data.t[slot];
    int64_t at[4], longest = slot == FXA_SLOT_Q ? base->x.sq : base->x.sk;
    for (int64_t b = 0; b < base->x.b; b++)
        for (int64_t s = 0; s < longest && attn_case_at(base, slot, b, s, at); s++)
            for (at[1] = 0; at[1] < t->n[1]; at[1]++)
                for (at[3] = 0; at[3] < t->n[3]; at[3]++) {
                    double *dense = &base->dense[slot][((b * t->n[1] + at[1]) * longest + s) * t->n[3] + at[3]];
                    attn_tensor_set(t, at, caps_value(x, slot, base->x.scale, s, at[3], *dense));
                    *dense = attn_tensor_get(t, at);
                }
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static fxa_program *caps_parse(fxa_context *ctx, const caps_case *x) {
    char text[300];
    fxa_program *program = NULL;
    fxa_error err;
    /* the text of a program whose cap is a param does not contain the number */
    int n = snprintf(text, sizeof text, x->program->format, x->cap, x->cap);
    const char *mask = x->scores == CAPS_SPOILT ? "\nmask = k % 9 != 4" : x->program->mask;
    snprintf(text + n, sizeof text - (size_t)n, "%s", mask);
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    return program;
}

/* Returns true if LSE nearly equals the row maximum. Used where scores are too large for the usual bounds. */
static bool caps_is_near(conf_case *c, conf_frame *f) {
    const conf_buffer *t = &c->slot[FXA_SLOT_LSE];
    int64_t at[FXA_MAX_RANK] = {0};
    conf_fill_outputs(c, FXA_FORWARD); /* the inputs O and LSE of backward are the reference's */
    if (!conf_reference(c, FXA_FORWARD) || !conf_run(c, f->engine, FXA_FORWARD)) return false;
    do {
        int64_t place = conf_place(t, at);
        double got = fxa__load_f64(t->memory, t->dtype, place);
        double want = attn_round(t->dtype, fxa__load_f64(t->want_memory, t->want_dtype, place));
        if (got == want || (got != got && want != want) || fabs(got - want) <= 1e-5 * fabs(want) + 1e-2) continue;
        snprintf(c->why, sizeof c->why, "unsure, but LSE is %.9g, not %.9g", got, want);
        return false;
    } while (conf_next(t, at));
    return true;
}

static bool caps_run(fxa_context *ctx, conf_frame *f, const caps_case *x) {
    static conf_case c;
    uint64_t rng = 0x51D + (uint64_t)x->sk;
    attn_shape s = {.b = 1, .hq = 2, .hkv = 2, .sq = x->sq, .sk = x->sk, .d = x->width, .dv = x->width, .window = 40};
    char what[400];
    setenv("FXA_TEST_DTYPE", x->f16 ? "f16" : "bf16", 1);
    fxa_program *program = caps_parse(ctx, x);
    if (!program || !conf_draw(&c, ctx, 0, &s, program, "cap", NULL, &f->all, &rng)) return false;
    c.base.x.scale = 0.125;
    caps_fill(&c, x, FXA_SLOT_Q), caps_fill(&c, x, FXA_SLOT_K);
    for (size_t i = 0; i < c.n_params; i++) c.params[i] = x->cap;
    if (x->program->by == CAPS_TWO) c.params[0] = x->cap / 4, c.params[1] = fabs(x->cap) > 1e37 ? 1 : 1 / x->cap;
    c.base.data.problem.alignment = 16, c.base.data.problem.flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    f->forward_alone = x->scores == CAPS_SPOILT;
    bool ok = frame_passes(f, &c);
    if (ok && f->state[0] == FRAME_UNSURE) ok = caps_is_near(&c, f);
    printf("%s %d, cap %g, program %d, scores %s, %d x %d: %d/%d %s\n", x->f16 ? "f16" : "bf16", (int)x->width, x->cap,
           (int)(x->program - caps_programs), caps_scores[x->scores], (int)x->sq, (int)x->sk, (int)f->state[0],
           (int)f->state[1], f->detail[0]);
    (void)fflush(stdout);
    conf_describe(&c, what, sizeof what);
    if (!ok) T_FAIL("%s\n    %s\n    %s | %s\n", what, c.why, f->detail[0], f->detail[1]);
    conf_free(&c);
    return ok;
}

/* Tests all caps of a kind with some scores, for complete and partial tiles. */
static bool caps_kind(fxa_context *ctx, conf_frame *f, int kind) {
    static const int64_t rows[] = {192, 130, 200, 129}, keys[] = {256, 300, 128, 190};
    caps_case x = {.program = &caps_programs[kind % CAPS_PROGRAMS], .f16 = kind % 4 >= 2, .width = kind % 2 ? 128 : 64};
    for (int i = 0; i < CAPS_ALL; i++)
        for (int k = 0; k < (i < 7 ? 3 : 1); k++) {
            x.cap = caps_all[i], x.scores = (i + 3 * k + kind) % CAPS_SCORES;
            x.sq = rows[(i + k) % 4], x.sk = keys[(i / 2 + k) % 4];
            bool number = x.program->by == CAPS_NUMBER;
            if (number && (x.cap == 0 || !isfinite(x.cap) || fabs(x.cap) > 1e37)) continue;
            if (!caps_run(ctx, f, &x)) return false;
        }
    return true;
}

static void caps_check(int kind) {
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, CAPS_SECONDS, &ctx);
    if (missing) T_SKIP(missing);
    (void)caps_kind(ctx, &f, kind);
    frame_print(&f);
}

/* caps_check(n) tests program n % CAPS_PROGRAMS; the parity of n selects the head dim. */
TEST(caps_that_are_params_at_64) { caps_check(0); }
TEST(caps_that_are_params_at_128) { caps_check(5); }
TEST(caps_that_are_numbers_behind_a_mask_at_64) { caps_check(6); }
TEST(caps_that_are_numbers_behind_a_mask_at_128) { caps_check(1); }
TEST(caps_of_two_params_behind_a_mask_at_64) { caps_check(2); }
TEST(caps_of_two_params_behind_a_mask_at_128) { caps_check(7); }
TEST(caps_that_are_params_behind_a_mask_at_64) { caps_check(8); }
TEST(caps_that_are_params_behind_a_mask_at_128) { caps_check(3); }
TEST(caps_that_are_numbers_at_64) { caps_check(4); }
TEST(caps_that_are_numbers_at_128) { caps_check(9); }

T_MAIN
