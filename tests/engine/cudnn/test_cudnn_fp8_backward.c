/* SPDX-License-Identifier: Apache-2.0
 *
 * The e4m3 backward pass in the cuDNN engine, on the stand-ins or a device: gradients and amax compared with ref. The
 * tolerance is summed pair by pair from P and dS in f64: P times 256 is rounded to e4m3, with an error of 2^-4 of its
 * value, or of 2^-18 below 2^-14; dS times its scale is rounded to the dtype of dO; products are summed with 13 bits,
 * as on Hopper; then results are rounded. Rounding errors are independent: the RMS adds their squares, and other errors
 * linearly. Scales are chosen as a caller would choose them, from amax values, which ref provides here.
 */
#include "cudnn_fixture.h"

#include "base/dtype.h"

#include <math.h>

enum { BW8_PROGRAMS = 10, BW8_D = 128, BW8_DESCALES = 5 };
static const char *const bw8_programs[BW8_PROGRAMS] = {
    NULL,
    "mask = k <= q",
    "mask = k + 5 <= q", /* rows that attend to no key */
    "mask = k <= q + 7",
    "mask = q - k < 40",
    "mask = k <= q && q - k < 40",
    "score = score + 0.05 * float(k - q)\nmask = k <= q",
    "mask = (k // 16 == q // 16 || k < 4) && q % 5 != 2", /* and some more */
    "score = 0.5 * score + 0.02 * float(k)",
    "tensor t : f32[2]\nscore = score + t[q, k]",
};

typedef struct bw8_case {
    int program;
    int64_t b, hq, hkv, sq, sk;
    fxa_dtype dout, grads;
    int style;         /* 1: BSHD, 2: SBHD */
    bool scaled, bare; /* bare: dS has no scale, and its amax is not requested */
} bw8_case;

/* A result in f64, with bounds of its error: the maximum, the square of the rounding errors, and the other errors. */
typedef struct bw8_result {
    double *want, *off, *square, *rest;
    float scale, amax;
} bw8_result;

typedef struct bw8_data {
    attn_data x;
    bw8_result r[3];          /* dQ, dK, dV */
    double *in[BW8_DESCALES]; /* dequantized inputs */
    float descale[BW8_DESCALES], scale_o, scale_ds, amax_ds;
    double score, dp;       /* error bounds of a score and of an element of dP */
    double most_ds, off_ds; /* the largest dS, and its error bound */
} bw8_data;

static const fxa_slot bw8_results[3] = {FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
static const fxa_slot bw8_scales[3] = {FXA_SLOT_SCALE_DQ, FXA_SLOT_SCALE_DK, FXA_SLOT_SCALE_DV};
static const fxa_slot bw8_largest[3] = {FXA_SLOT_AMAX_DQ, FXA_SLOT_AMAX_DK, FXA_SLOT_AMAX_DV};
static const fxa_slot bw8_inputs[BW8_DESCALES] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_O, FXA_SLOT_DO};

/* ---- P and dS ---------------------------------------------------------------------------------------------------- */

static bool bw8_sees(int program, int64_t q, int64_t k) {
    switch (program) {
    case 1:
    case 6: return k <= q;
    case 2: return k + 5 <= q;
    case 3: return k <= q + 7;
    case 4: return q - k < 40;
    case 5: return k <= q && q - k < 40;
    case 7: return (k / 16 == q / 16 || k < 4) && q % 5 != 2;
    default: return true;
    }
}

/* Returns the new score of a program for the raw score s. t: element of the captured tensor. */
static double bw8_score(int program, double s, int64_t q, int64_t k, double t) {
    switch (program) {
    case 6: return s + 0.05 * (double)(k - q);
    case 8: return 0.5 * s + 0.02 * (double)k;
    case 9: return s + t;
    default: return s;
    }
}

/* Returns the index in memory of a row, counted by batch entries, heads and rows. */
static int64_t bw8_place(const attn_tensor *t, int64_t row) {
    int64_t s = row % t->n[2], h = row / t->n[2] % t->n[1], b = row / t->n[2] / t->n[1];
    return b * t->stride[0] + h * t->stride[1] + s * t->stride[2];
}

static double bw8_get(const bw8_data *f, int input, int64_t row, int64_t i) { return f->in[input][row * BW8_D + i]; }

static double bw8_dot(const bw8_data *f, int x, int64_t at_x, int y, int64_t at_y) {
    double sum = 0;
    for (int64_t i = 0; i < BW8_D; i++) sum += bw8_get(f, x, at_x, i) * bw8_get(f, y, at_y, i);
    return sum;
}

/* Adds the product of a weight, which has an error, with a row of an input to a row of a result and to its error
 * bounds. */
static void bw8_scalars(bw8_data *to, int result, int64_t row, const bw8_data *f, int input, int64_t at, double rounds,
                        double rest) {
    bw8_result *r = &to->r[result];
    int64_t place = bw8_place(&f->x.t[bw8_results[result]], row);
    for (int64_t i = 0; i < BW8_D; i++) {
        double x = fabs(bw8_get(f, input, at, i));
        r->off[place + i] += (rounds + rest) * x;
        r->square[place + i] += rounds * rounds / 3 * x * x;
        r->rest[place + i] += rest * x;
    }
}

static void bw8_pair(const bw8_case *c, bw8_data *f, int64_t row, int64_t key, int64_t k, double delta) {
    double scale = 1 / sqrt((double)BW8_D), lse = attn_get(&f->x.t[FXA_SLOT_LSE], row);
    int64_t q = row % c->sq;
    if (!bw8_sees(c->program, q, k) || lse == -INFINITY) return;
    double t = f->x.n_tensors ? attn_get(&f->x.tensor[0], q * c->sk + k) : 0, slope = c->program == 8 ? 0.5 : 1;
    double s = bw8_score(c->program, bw8_dot(f, 0, row, 1, key) * scale, q, k, t);
    double p = fmin(exp(s - lse), 1), ds = p * (bw8_dot(f, 4, row, 2, key) - delta) * scale * slope;
    double half = c->dout == FXA_E4M3 ? 0x1p-4 : 0x1p-3, least = c->dout == FXA_E4M3 ? 0x1p-10 : 0x1p-17;
    double rest_p = p * (2 * expm1(f->score) + 0x1p-12);
    double rest = fabs(ds) * (2 * expm1(f->score) + 0x1p-12) + p * scale * f->dp;
    double rounds = half * fabs(ds) + least / (double)f->scale_ds;
    f->most_ds = fmax(f->most_ds, fabs(ds)), f->off_ds = fmax(f->off_ds, rest);
    bw8_scalars(f, 0, row, f, 1, key, rounds, rest);
    bw8_scalars(f, 1, key, f, 0, row, rounds, rest);
    bw8_scalars(f, 2, key, f, 4, row, 0x1p-4 * p + 0x1p-18, rest_p);
}

/* Decodes an input to f64. Returns its largest magnitude. */
static double bw8_decode(bw8_data *f, int input) {
    const attn_tensor *t = &f->x.t[bw8_inputs[input]];
    double most = 0, *in = f->in[input] = calloc((size_t)attn_tensor_places(t), sizeof(double));
    if (!in) abort();
    for (int64_t i = 0; i < attn_tensor_places(t); i++) {
        in[i] = attn_get(t, bw8_place(t, i / BW8_D) + i % BW8_D) * (double)f->descale[input];
        most = fmax(most, fabs(in[i]));
    }
    return most;
}

static void bw8_pairs(const bw8_case *c, bw8_data *f) {
    double most[BW8_DESCALES];
    for (int i = 0; i < BW8_DESCALES; i++) most[i] = bw8_decode(f, i);
    f->score = 2 * 0x1p-13 * sqrt((double)BW8_D) * most[0] * most[1];
    f->dp = 2 * 0x1p-13 * (double)BW8_D * most[4] * fmax(most[2], most[3]);
    for (int64_t row = 0; row < c->b * c->hq * c->sq; row++) {
        int64_t head = row / c->sq / (c->hq / c->hkv);
        double delta = bw8_dot(f, 4, row, 3, row);
        for (int64_t k = 0; k < c->sk; k++) bw8_pair(c, f, row, head * c->sk + k, k, delta);
    }
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* Sets strides in which the heads of a row are adjacent. */
static void bw8_lay_out(const bw8_case *c, attn_spec *s) {
    static const fxa_slot slots[8] = {FXA_SLOT_Q, FXA_SLOT_O, FXA_SLOT_DO, FXA_SLOT_DQ,
                                      FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_DK, FXA_SLOT_DV};
    for (int i = 0; i < 8; i++) {
        int64_t h = i < 4 ? c->hq : c->hkv, n = i < 4 ? c->sq : c->sk, *stride = s->stride[slots[i]];
        stride[3] = 1, stride[1] = BW8_D, s->strided |= 1u << slots[i];
        stride[0] = c->style == 1 ? n * h * BW8_D : h * BW8_D;
        stride[2] = c->style == 1 ? h * BW8_D : c->b * h * BW8_D;
    }
}

static void bw8_open(const bw8_case *c, bw8_data *f, fxa_context *ctx, uint64_t seed) {
    attn_spec s = {.b = c->b, .hq = c->hq, .hkv = c->hkv, .sq = c->sq, .sk = c->sk, .d = BW8_D};
    fxa_error err;
    uint64_t rng = seed;
    s.dtype = FXA_E4M3, s.slot_dtype[FXA_SLOT_DO] = c->dout, s.reach = 2;
    s.text = bw8_programs[c->program], s.tensor[0][0] = c->sq, s.tensor[0][1] = c->sk;
    for (int i = 0; i < 3; i++) s.slot_dtype[bw8_results[i]] = c->grads;
    if (c->style) bw8_lay_out(c, &s);
    memset(f, 0, sizeof *f);
    T_OK(attn_data_make(&f->x, ctx, &s, seed, &err));
    f->x.captures[0].grad = 0;
    f->x.backward_flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    f->scale_o = f->scale_ds = 1;
    for (int i = 0; i < BW8_DESCALES; i++) f->descale[i] = c->scaled ? (float)exp2(attn_real(&rng, -1, 0.5)) : 1;
    if (c->scaled) f->scale_o = 32, f->descale[3] = 1 / 32.0f, f->x.problem.flags |= FXA_SCALED;
    for (int i = 0; i < 3; i++) {
        size_t n = (size_t)attn_tensor_places(&f->x.t[bw8_results[i]]);
        double **all[4] = {&f->r[i].want, &f->r[i].off, &f->r[i].square, &f->r[i].rest};
        for (int j = 0; j < 4; j++)
            if (!(*all[j] = calloc(n, sizeof(double)))) abort();
        f->r[i].scale = 1;
    }
}

static void bw8_close(bw8_data *f) {
    for (int i = 0; i < 3; i++) free(f->r[i].want), free(f->r[i].off), free(f->r[i].square), free(f->r[i].rest);
    for (int i = 0; i < BW8_DESCALES; i++) free(f->in[i]);
    attn_data_free(&f->x);
}

static void bw8_call(const bw8_case *c, bw8_data *f, fxa_pass pass, bool bare, attn_call *call) {
    static const fxa_slot slots[BW8_DESCALES] = {FXA_SLOT_DESCALE_Q, FXA_SLOT_DESCALE_K, FXA_SLOT_DESCALE_V,
                                                 FXA_SLOT_DESCALE_O, FXA_SLOT_DESCALE_DO};
    attn_call_make(&f->x, pass, call);
    if (!c->scaled) return;
    for (int i = 0; i < BW8_DESCALES; i++) call->args.slot[slots[i]] = &f->descale[i];
    call->args.slot[FXA_SLOT_SCALE_O] = &f->scale_o;
    if (bare) return;
    call->args.slot[FXA_SLOT_SCALE_DS] = &f->scale_ds, call->args.slot[FXA_SLOT_AMAX_DS] = &f->amax_ds;
}

/* Computes O and LSE, gradients in f64, and from these the scales that a caller would give. */
static void bw8_reference(const bw8_case *c, bw8_data *f, fxa_context *ctx) {
    attn_call call;
    fxa_error err;
    bw8_call(c, f, FXA_FORWARD, false, &call);
    call.p.engine = "ref";
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    bw8_call(c, f, FXA_BACKWARD, false, &call);
    call.p.engine = "ref", call.p.dq.dtype = call.p.dk.dtype = call.p.dv.dtype = FXA_F64;
    for (int i = 0; i < 3; i++) call.args.slot[bw8_results[i]] = f->r[i].want;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    for (int i = 0; i < 3 && c->scaled; i++) {
        double most = 0;
        for (int64_t j = 0; j < attn_tensor_places(&f->x.t[bw8_results[i]]); j++)
            most = fmax(most, fabs(f->r[i].want[j]));
        f->r[i].scale = (float)(300 / most);
    }
    if (c->scaled && !c->bare) f->scale_ds = (float)(300 / (double)f->amax_ds);
}

static fxa_status bw8_run(const bw8_case *c, bw8_data *f, fxa_context *ctx, fxa_error *err) {
    attn_call call;
    bw8_call(c, f, FXA_BACKWARD, c->bare, &call);
    call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.p.alignment = 16;
    for (int i = 0; i < 3 && c->scaled; i++)
        call.args.slot[bw8_scales[i]] = &f->r[i].scale, call.args.slot[bw8_largest[i]] = &f->r[i].amax;
    f->amax_ds = -1;
    return fxa_attention(ctx, &call.p, &call.args, err);
}

/* ---- Comparisons ------------------------------------------------------------------------------------------------- */

static void bw8_check(const bw8_case *c, const bw8_data *f, int i, int number) {
    const bw8_result *r = &f->r[i];
    const attn_tensor *t = &f->x.t[bw8_results[i]];
    double scale = (double)r->scale, unit = c->grads == FXA_E4M3 ? 0x1p-4 : 0x1p-3, most = 0, far = 0, worst = 0;
    double least = (c->grads == FXA_E4M3 ? 0x1p-10 : 0x1p-17) / scale, squares = 0, allowed = 0;
    int64_t bad = 0, row0 = INT64_MAX, row1 = -1, col0 = INT64_MAX, col1 = -1;
    for (int64_t j = 0; j < attn_tensor_places(t); j++) {
        double want = r->want[j], off = r->off[j] + 1e-6 * fabs(want), got = attn_get(t, j);
        double lo = attn_round(c->grads, (want - off) * scale), hi = attn_round(c->grads, (want + off) * scale);
        most = fmax(most, fabs(want)), far = fmax(far, off);
        worst = fmax(worst, fabs(got / scale - want) / (off + unit * fabs(want) + least));
        squares += (got / scale - want) * (got / scale - want);
        allowed += pow(sqrt(r->square[j]) + r->rest[j] + unit / sqrt(3) * fabs(want) + least, 2);
        if (!(got >= lo && got <= hi)) {
            int64_t row = j / t->stride[2] % t->n[2], col = j % BW8_D;
            row0 = row < row0 ? row : row0, row1 = row > row1 ? row : row1;
            col0 = col < col0 ? col : col0, col1 = col > col1 ? col : col1;
        }
        if (!(got >= lo && got <= hi) && bad++ < 2)
            T_FAIL("case %d, %s %lld is %g, wanted is %g, off by %g of %g\n", number, t->name, (long long)j,
                   got / scale, want, fabs(got / scale - want), off);
    }
    if (!(squares <= allowed))
        T_FAIL("case %d, %s: off by %g of %g in the root mean square\n", number, t->name, sqrt(squares), sqrt(allowed));
    if (c->scaled && !(fabs((double)r->amax - most) <= far + 1e-6 * most))
        T_FAIL("case %d, %s: the largest is %g, wanted is %g\n", number, t->name, (double)r->amax, most);
    if (bad)
        printf("    %s: %lld of %lld wrong, rows %lld to %lld, columns %lld to %lld\n", t->name, (long long)bad,
               (long long)attn_tensor_places(t), (long long)row0, (long long)row1, (long long)col0, (long long)col1);
    printf("    %s: worst %.2f, root mean square %.2f of what is allowed, which is %.3f of the largest\n", t->name,
           worst, sqrt(squares / allowed), sqrt(allowed / (double)attn_tensor_places(t)) / most);
}

/* Reports whether a second run has the same bits; not required, because cuDNN does not document it. */
static void bw8_again(const bw8_case *c, bw8_data *f, fxa_context *ctx) {
    T_ENDED(attn_drop) attn_kept kept = {{NULL}};
    fxa_error err;
    (void)attn_other_bits(&f->x, FXA_BACKWARD, &kept);
    T_OK(bw8_run(c, f, ctx, &err));
    const char *other = attn_other_bits(&f->x, FXA_BACKWARD, &kept);
    printf("    once more: %s%s\n", other ? "other bits in " : "the same bits", other ? other : "");
}

static void bw8_try(const bw8_case *c, fxa_context *ctx, int number) {
    bw8_data f;
    fxa_error err;
    bw8_open(c, &f, ctx, t_seed() + (uint64_t)number);
    bw8_reference(c, &f, ctx);
    float most = f.amax_ds;
    bw8_pairs(c, &f);
    if (c->scaled) T_NEAR((double)most, f.most_ds, 1e-6 * f.most_ds); /* the reference computes P and dS of this case */
    if (bw8_run(c, &f, ctx, &err) != FXA_OK) T_FAIL("case %d: %s\n", number, err.text);
    if (err.status == FXA_OK) {
        printf("  case %d: %s, %lldx%lldx%lldx%lldx%lld, dO %s, gradients %s%s\n", number,
               bw8_programs[c->program] ? bw8_programs[c->program] : "identity", (long long)c->b, (long long)c->hq,
               (long long)c->hkv, (long long)c->sq, (long long)c->sk, fxa_dtype_name(c->dout), fxa_dtype_name(c->grads),
               c->scaled ? ", scaled" : "");
        for (int i = 0; i < 3; i++) bw8_check(c, &f, i, number);
        if (c->scaled && !c->bare) T_NEAR((double)f.amax_ds, f.most_ds, f.off_ds);
        if (!standin_ready()) bw8_again(c, &f, ctx);
    }
    bw8_close(&f);
}

static const int64_t bw8_heads[][2] = {{2, 2}, {4, 2}, {6, 2}, {8, 1}, {3, 3}, {1, 1}};

/* Draws a case. Programs with constants are refused for a single head. */
static bw8_case bw8_draw(uint64_t *rng, int program, int64_t pairs) {
    static const int64_t rows[] = {64, 128, 192, 256, 320, 512, 1024, 2048, 16, 32, 48, 80, 96, 112, 144, 208};
    static const int64_t keys[] = {64, 128, 192, 256, 384, 512, 1024, 2048, 1, 2, 17, 63, 65, 70, 100, 127, 129, 333};
    const int64_t *h = bw8_heads[attn_int(rng, 0, program < 6 ? 5 : 4)];
    bw8_case c = {.program = program, .hq = h[0], .hkv = h[1]};
    do {
        c.b = attn_int(rng, 1, 3), c.sq = rows[attn_int(rng, 0, 15)], c.sk = keys[attn_int(rng, 0, 17)];
    } while (c.b * c.hq * c.sq * c.sk > pairs || (program == 9 && c.sk == 1)); /* t[q, 0] has one element per row */
    c.dout = attn_int(rng, 0, 2) ? FXA_E4M3 : FXA_E5M2, c.grads = attn_int(rng, 0, 2) ? FXA_E4M3 : FXA_E5M2;
    c.scaled = attn_int(rng, 0, 3) > 0, c.bare = attn_int(rng, 0, 3) == 0, c.style = (int)attn_int(rng, 0, 2);
    return c;
}

/* Runs the cases first, first + by, ... below count, and prints a line with the verdict for each. */
static void bw8_many(int first, int by, int count, int64_t pairs) {
    t_ctx *ctx = t_context();
    for (int i = first; i < count; i += by) {
        uint64_t rng = t_seed() + 7919u * (uint64_t)i;
        bw8_case c = bw8_draw(&rng, i % BW8_PROGRAMS, pairs);
        int before = t_failures;
        bw8_try(&c, ctx, i);
        printf("%s %d program %d b %d heads %d/%d %dx%d dO %s grads %s%s%s style %d\n",
               t_failures == before ? "right" : "WRONG", i, c.program, (int)c.b, (int)c.hq, (int)c.hkv, (int)c.sq,
               (int)c.sk, fxa_dtype_name(c.dout), fxa_dtype_name(c.grads), c.scaled ? " scaled" : "",
               c.bare ? " bare" : "", c.style);
        fflush(stdout);
    }
}

TEST(gradients_of_8_bits_are_those_of_the_reference) {
    if (cudnn_bytes_missing()) T_SKIP(cudnn_bytes_missing());
    bw8_many(0, 1, t_scaled(2 * BW8_PROGRAMS), 20000);
    if (standin_ready()) standin_check_end();
}

/* FXA_TEST_SHARD=which/of divides the cases among parallel processes (device/python/run_cudnn.py). */
TEST(many_gradients_on_a_device) {
    int which = 0, of = 1;
    const char *shard = getenv("FXA_TEST_SHARD");
    if (standin_ready() && !shard) T_SKIP("it runs on a GPU only: with the stand-in libraries it would take long");
    if (cudnn_bytes_missing()) T_SKIP(cudnn_bytes_missing());
    if (shard && sscanf(shard, "%d/%d", &which, &of) != 2) T_SKIP("FXA_TEST_SHARD is no which/of");
    bw8_many(1000 + which, of, 1000 + t_scaled(192), 300000);
}

T_MAIN
