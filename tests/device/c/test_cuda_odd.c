/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-finite values in Q, K, V and captured tensors, with programs of every kind, compared with the reference. Forward
 * for all families and types, with weights from 1 down to the smallest of f64; docs/numerics.md lists which weights may
 * count as 0. Backward, where tensor cores multiply zeros: a non-finite KV head must not affect the other heads. Runs
 * on a GPU or the GPU emulator (tests/model), with the family of FXA_CUDA_FAMILY. A case is drawn from one number:
 * FXA_TEST_CASE repeats it, FXA_TEST_CASES is the number of cases, FXA_TEST_SHOW=1 prints the program of a failing
 * case.
 */
#include "base/dtype.h"
#include "support/conformance/conf_frame.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <math.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda, &fxa__engine_cpu, &fxa__engine_ref};

enum { ODD_CASES = 16, ODD_SECONDS = 120 };

static const char *const odd_programs[] = {
    "",
    "param power : float\nscore = k % 61 == 30 ? power : score",
    "tensor w : f32[1]\nscore = score / w[h]",
    "tensor w : f32[1]\nscore = divz(score, w[h])\nmask = k <= q + 9",
    "tensor w : f32[1]\nscore = mulz(score, w[h]) * 40",
    "tensor w : f32[1]\nscore = score * softplus(w[h]) / w[h]",
    "tensor w : f32[1]\nscore = score / softplus(-6 * abs(w[h])) + w[k]",
    "tensor w : f32[1]\nscore = score - ((k - 2.5) / w[h]) ** 2",
    "tensor w : f32[1]\nscore = (score + w[k]) / w[h]\nmask = k % 5 != 2",
    "tensor w : f32[1]\nscore = score / w[q]",
    "tensor w : f32[1]\nscore = score + w[k] / w[q]",
    "tensor w : f32[1]\nscore = 30 * tanh(score / (10 * w[h]))",
    "param a : float\nscore = mulz(score, a) * 50 + divz(score, a)",
    "tensor w : bf16[4]\nscore = score + 90 * w[b, h, q, k]",
    "tensor w : f32[2]\nscore = w[h, k] > 0 ? score * 60 : -inf",
    "score = score - 1.5 * float(abs(q - k))\nmask = k <= q",
    "score = k % 97 == 50 ? -inf : 50 * score",
    "score = score + 1 / mulz(float(k - 7), -1.0)",
    "score = score + 1 / mulz(-abs(float(k - 7)), 2.5)",
};
enum { ODD_FAINT = 1, ODD_PROGRAMS = sizeof odd_programs / sizeof *odd_programs };

enum { ODD_V = 1, ODD_Q = 2, ODD_K = 4, ODD_TENSORS = 8, ODD_ALL = 15 };

typedef struct odd {
    uint64_t start;
    int program; /* index of the program; ODD_PROGRAMS or more: a random program */
    fxa_dtype dtype;
    uint32_t features;
    unsigned where; /* bits ODD_* */
    bool contained; /* true: non-finite values only in the first KV head of the first batch entry */
    int64_t every;  /* one of this many rows has non-finite values; 0 = as drawn */
    double power;   /* ODD_FAINT: keys with non-finite values have weights of about 2^-power */
    double gain;    /* gain of Q */
    attn_shape s;
} odd;

static double odd_value(uint64_t *rng, double old) {
    static const double some[] = {INFINITY, -INFINITY, NAN, 0, -0.0, 1e-30, 1e36};
    return attn_int(rng, 0, 4) ? some[attn_int(rng, 0, 2)] : attn_int(rng, 0, 3) ? old : some[attn_int(rng, 3, 6)];
}

/* Returns true if head h of `heads` belongs to the first KV head and b is the first batch entry. */
static bool odd_is_first(const conf_case *c, int64_t heads, int64_t b, int64_t h) {
    return b == 0 && h < heads / c->base.x.hkv;
}

/* Excludes the results of the first KV head, and sums over all heads, from the comparison. */
static void odd_forget(conf_case *c, fxa_pass pass) {
    conf_buffer *t;
    for (int i = 0; (t = conf_output(c, pass, i)); i++) {
        bool summed = t >= c->dtensor && t < c->dtensor + CONF_TENSORS;
        int64_t at[FXA_MAX_RANK] = {0};
        do {
            int64_t place = conf_place(t, at);
            if (summed || odd_is_first(c, t->n[1], at[0], at[1]))
                fxa__store_f64(t->memory, t->dtype, place, fxa__load_f64(t->want_memory, t->want_dtype, place));
        } while (conf_next(t, at));
    }
    memcpy(c->dparams, c->want_dparams, sizeof c->dparams);
}

/* Fills all used elements of a slot, in memory and in the reference. Some rows get non-finite elements. */
static void odd_fill(conf_case *c, const odd *x, fxa_slot slot, uint64_t *rng) {
    attn_case *base = &c->base;
    bool keys = slot != FXA_SLOT_Q;
    attn_tensor *t = &base->data.t[slot];
    const int64_t *length = keys ? base->x.k_len : base->x.q_len;
    int64_t at[4], longest = keys ? base->x.sk : base->x.sq, every = x->every ? x->every : attn_int(rng, 3, 90);
    unsigned bit = slot == FXA_SLOT_V ? ODD_V : slot == FXA_SLOT_Q ? ODD_Q : ODD_K;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t b = 0; b < base->x.b; b++)
            for (int64_t s = 0; s < length[b] && attn_case_at(base, slot, b, s, at); s++)
                for (at[1] = 0; at[1] < t->n[1]; at[1]++)
                    for (at[3] = 0; at[3] < t->n[3]; at[3]++) {
                        double *dense = &base->dense[slot][((b * t->n[1] + at[1]) * longest + s) * t->n[3] + at[3]];
                        double value = *dense * (slot == FXA_SLOT_Q ? x->gain : 1);
                        bool is_odd = (x->where & bit) && s % every == every / 2 && (at[3] + s) % 3 == 0;
                        if (x->contained) is_odd = is_odd && odd_is_first(c, t->n[1], b, at[1]);
                        if (pass == 0)
                            attn_tensor_set(t, at, is_odd ? odd_value(rng, value) : value);
                        else
                            *dense = attn_tensor_get(t, at);
                    }
}

static void odd_tensors(conf_case *c, uint64_t *rng) {
    for (size_t i = 0; i < c->n_tensors; i++) {
        conf_buffer *t = &c->tensor[i];
        int64_t at[FXA_MAX_RANK] = {0}, every = attn_int(rng, 2, 40);
        if (!fxa__dtype_is_float(t->dtype)) continue;
        do {
            int64_t place = conf_place(t, at);
            double old = fxa__load_f64(t->memory, t->dtype, place);
            if (attn_int(rng, 0, every) == 0) fxa__store_f64(t->memory, t->dtype, place, odd_value(rng, old));
        } while (conf_next(t, at));
    }
}

/* Draws a case. All bits of `start` but the last three select the compiled code, so consecutive cases share it. */
static odd odd_draw(uint64_t start) {
    static const uint32_t some[] = {
        0, 0, ATTN_PADDING, ATTN_VARLEN, ATTN_PAGED | ATTN_PADDING, ATTN_DROPOUT, ATTN_SINK, ATTN_GQA};
    static const unsigned places[] = {ODD_V, ODD_V, ODD_V, ODD_V | ODD_TENSORS, ODD_TENSORS, ODD_Q, ODD_K, ODD_ALL};
    static const fxa_dtype dtypes[] = {FXA_F16, FXA_BF16, FXA_F16, FXA_BF16, FXA_F32};
    const char *program = getenv("FXA_TEST_PROGRAM");
    uint64_t draw = start >> 3, *rng = &draw;
    odd x = {.start = start};
    (void)attn_next(rng);
    x.program = program ? atoi(program) : (int)attn_int(rng, 0, ODD_PROGRAMS + 6);
    x.dtype = dtypes[attn_int(rng, 0, 4)];
    x.features = some[attn_int(rng, 0, 7)];
    bool decode = attn_int(rng, 0, 3) == 0 && !(x.features & ATTN_DROPOUT);
    attn_shape *s = &x.s;
    s->d = s->dv = attn_int(rng, 1, 4) * 32;
    s->page_size = (int64_t[]){8, 16, 64, 128, 24}[attn_int(rng, 0, 4)];
    draw ^= start * 0xD1342543DE82EF95u;
    s->b = attn_int(rng, 1, 2), s->hkv = attn_int(rng, 1, 3), s->hq = s->hkv * (x.features & ATTN_GQA ? 2 : 1);
    s->sq = decode ? attn_int(rng, 1, 9) : attn_int(rng, 20, 150), s->sk = attn_int(rng, decode ? 256 : 20, 300);
    s->n_pages = s->b * (s->sk / s->page_size + 1) + 2, s->window = 40;
    x.where = places[attn_int(rng, 0, 7)];
    x.gain = (double[]){1, 4, 12, 40}[attn_int(rng, 0, 3)];
    return x;
}

static fxa_program *odd_program(fxa_context *ctx, const odd *x, const char **name) {
    static const conf_source some[] = {CONF_SMOOTH, CONF_BOTH, CONF_WILD, CONF_TWIN, CONF_STEEP, CONF_SPARSE};
    fxa_program *program = NULL;
    if (x->program >= ODD_PROGRAMS) {
        uint64_t own = x->start >> 3;
        return conf_program(ctx, some[(x->program - ODD_PROGRAMS) % 6], NULL, &own, name);
    }
    *name = odd_programs[x->program];
    return fxa_program_parse(ctx, *name, SIZE_MAX, &program, NULL) == FXA_OK ? program : NULL;
}

static void odd_tell(const conf_case *c, const conf_frame *f, const odd *x) {
    static char text[1 << 16];
    char what[400];
    size_t needed;
    conf_describe(c, what, sizeof what);
    T_FAIL("FXA_TEST_CASE=0x%" PRIx64 ": %s scale %g gain %g where %u\n    %s\n    %s | %s\n", x->start, what,
           c->base.x.scale, x->gain, x->where, c->why, f->detail[0], f->detail[1]);
    if (!frame_is_set("FXA_TEST_SHOW")) return;
    if (fxa_program_print(c->program, text, sizeof text, &needed, NULL) == FXA_OK) printf("%s\n", text);
}

static bool odd_run(fxa_context *ctx, conf_frame *f, odd x) {
    static conf_case c;
    const char *name = "";
    uint64_t rng = x.start ^ 0x9E3779B97F4A7C15u;
    fxa_program *program = odd_program(ctx, &x, &name);
    setenv("FXA_TEST_DTYPE", fxa_dtype_name(x.dtype), 1);
    uint32_t features = frame_features(x.features);
    if (!program || !conf_draw(&c, ctx, features, &x.s, program, name, NULL, &f->all, &rng)) return false;
    odd_fill(&c, &x, FXA_SLOT_Q, &rng), odd_fill(&c, &x, FXA_SLOT_K, &rng), odd_fill(&c, &x, FXA_SLOT_V, &rng);
    if ((x.where & ODD_TENSORS) && !x.contained) odd_tensors(&c, &rng);
    if (x.program == ODD_FAINT) c.params[0] = -x.power * log(2);
    if (x.contained) c.ran = odd_forget;
    c.base.data.problem.alignment = 16;
    c.base.data.problem.flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    bool ok = frame_pass(f, &c, FXA_FORWARD);
    f->state[1] = FRAME_NOT_RUN;
    if (ok && x.contained) ok = frame_pass(f, &c, FXA_BACKWARD);
    f->cases += f->state[0] == FRAME_RIGHT;
    printf("case 0x%" PRIx64 " program %d, %s %d/%d %s\n", x.start, x.program, fxa_dtype_name(x.dtype),
           (int)f->state[0], (int)f->state[1], f->detail[0]);
    (void)fflush(stdout);
    if (!ok) odd_tell(&c, f, &x);
    conf_free(&c);
    return ok;
}

/* Runs the cases: forward only, or with `contained` both passes. */
static void odd_loop(bool contained) {
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, ODD_SECONDS, &ctx);
    int from, n = frame_cases(ODD_CASES, &from), wrong = 0;
    if (missing) T_SKIP(missing);
    for (int i = 0; i < n && wrong < 8; i++) {
        odd x = odd_draw(frame_start(t_seed() << 20 | (uint64_t)(from + i)));
        x.contained = contained;
        if (contained) x.features &= ~(uint32_t)(ATTN_VARLEN | ATTN_PAGED), x.s.b = 2;
        if (contained && x.where == ODD_TENSORS) x.where = ODD_ALL;
        wrong += !odd_run(ctx, &f, x);
    }
    frame_print(&f);
}

TEST(values_that_are_not_finite) { odd_loop(false); }

/* Tests NaN and infinities at keys with weights of all sizes: weights above the limits of docs/numerics.md must have an
 * effect. */
TEST(weights_down_to_the_least) {
    static const double powers[] = {1, 12, 24, 26, 38, 39.5, 42, 60, 100, 101.5, 104, 125, 150, 1000, 1100};
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, ODD_SECONDS, &ctx);
    if (missing) T_SKIP(missing);
    for (int i = 0; i < 45; i++) {
        odd x = {.start = 4000 + (uint64_t)i, .program = ODD_FAINT, .where = ODD_V, .gain = 0.25, .every = 61};
        x.dtype = (fxa_dtype[]){FXA_F16, FXA_BF16, FXA_F32}[i / 15], x.power = powers[i % 15];
        x.s = (attn_shape){.b = 1, .hq = 1, .hkv = 1, .sq = i % 2 ? 70 : 3, .sk = 290, .d = 64, .dv = 64, .window = 40};
        if (!odd_run(ctx, &f, x)) break;
    }
    T_INT(f.done[0], 45);
    frame_print(&f);
}

TEST(heads_that_are_not_finite) { odd_loop(true); }

T_MAIN
