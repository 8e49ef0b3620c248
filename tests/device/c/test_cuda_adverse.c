/* SPDX-License-Identifier: Apache-2.0
 *
 * Numerically difficult inputs for the cuda kernels, compared with the reference: scores that rise after the first
 * tiles, fall, or are as large as floats; rows without keys; V near the limits of its type, or not finite where weights
 * are 0, behind a mask too; soft caps near and far from their middle. Covers forward, decoding and backward, with every
 * feature that changes where rows and keys are stored. Masks by tables are in test_cuda_tables.c. Runs on a GPU or the
 * GPU emulator (tests/model). A case is drawn from one number: FXA_TEST_CASE repeats it, FXA_TEST_CASES is the number
 * of cases, FXA_TEST_ENGINE=cpu needs no GPU.
 */
#include "base/dtype.h"
#include "support/conformance/conf_frame.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <math.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda, &fxa__engine_cpu, &fxa__engine_ref};

enum { ADVERSE_CASES = 24, ADVERSE_SECONDS = 120 };

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

static const struct adverse_program {
    const char *name, *text;
} adverse_programs[] = {
    {"plain", ""},
    {"causal", "mask = k <= q"},
    {"cap", "param cap : float\nscore = cap * tanh(score / cap)"},
    {"cap, causal", "score = 20 * tanh(score / 20)\nmask = k <= q"},
    {"cap of a bias", "tensor t : f32[1]\nscore = 5 * tanh(score / 5) + t[k]"},
    {"cap below 0", "score = -20 * tanh(score / 20)\nmask = k <= q + 9"},
    {"cap of a head", "tensor t : f32[1]\nscore = 5 * t[h] * tanh(score / 5)"},
    {"cap twice", "param a : float\nscore = 7 * tanh(a * tanh(score / 3))"},
    {"cap by a factor", "param a : float\nscore = tanh(score * a) * 12 - 0.5 * float(h)\nmask = q - k < 150"},
    {"slope", "param a : float\nscore = score - a * float(abs(q - k))\nmask = k <= q + 50"},
    {"window", "mask = k <= q && q - k < 70"},
    {"holes", "mask = k % 7 < 4 && (q + k) % 5 != 2"},
    {"documents", "tensor doc : i32[1]\nmask = doc[q] == doc[k]"},
    {"few rows", "mask = q % 3 == 0 && k >= q - 30"},
    {"late", "mask = k > 129 || q % 2 == 1"},
    {"infinite", "score = k < 140 && q % 2 == 0 ? -inf : score"},
    {"penalty", "score = k > q ? -1e30 : score"},
    {"bounded", "score = 3 * sin(score)"},
    {"head mask", "mask = k <= q + 20 * h"},
    {"dense", "tensor w : bf16[4]\nscore = score + w[b, h, q, k]"},
    {"per key", "tensor w : f32[2]\nscore = score + w[b, k]\nmask = k != 3"},
};
enum { ADVERSE_PROGRAMS = sizeof adverse_programs / sizeof *adverse_programs, ADVERSE_DENSE = ADVERSE_PROGRAMS - 2 };

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Kinds of scores. Except for SMALL and PLAIN, Q is 0 but for one feature, the gain of the row, and K has the intended
 * score in this feature, so that scores are exact. */
enum {
    SCORES_PLAIN,
    SCORES_SMALL,
    SCORES_STEPS,
    SCORES_RISE,
    SCORES_SINGLE,
    SCORES_FALL,
    SCORES_HUGE,
    SCORES_MIXED,
    SCORES_KINDS
};
static const char *const adverse_scores[] = {"plain", "small", "steps", "rise", "single", "fall", "huge", "mixed"};
/* Kinds of V. POISONED: not finite at keys whose score is far below all others; OVERCOME: at keys whose score is far
 * below that of a later key. FUTURE, in fixed cases only: at the second half of the keys, which a causal mask hides
 * from the first queries. */
enum { V_PLAIN, V_LARGE, V_EQUAL, V_TINY, V_POISONED, V_OVERCOME, V_KINDS, V_FUTURE = V_KINDS };
static const char *const adverse_values[] = {"plain", "large", "equal", "tiny", "poisoned", "overcome", "future"};
/* Kinds of a dense tensor of fixed cases. LATE: -inf at the first 400 keys, then `level`. PENALTY: all keys of two rows
 * in three have the lowest finite value of the dtype, the keys from 5 on of a third of these rows; other rows have -1e9
 * or, in f16, -6e4. */
enum { DENSE_DRAWN, DENSE_LATE, DENSE_PENALTY };

typedef struct adverse {
    uint64_t start;
    const struct adverse_program *program;
    uint32_t features;
    int scores, values;
    double by; /* score increment of SCORES_RISE and SCORES_STEPS */
    int dense;
    double level; /* DENSE_LATE: score of the later keys */
    bool decode, f16, fixed, scalars;
    attn_shape s;
} adverse;

/* Returns the gain of a row. A gain of 0 makes all weights of a row equal, so that all roundings of backward are equal
 * too. */
static double adverse_gain(const adverse *x, int64_t q) {
    static const double gains[] = {1, -1, 0.5, 0, 0.75, 1, 0.25};
    return q % 7 == 3 && x->values < V_POISONED ? 0.03125 : gains[q % 7];
}

static double adverse_score(const adverse *x, int64_t k) {
    switch (x->scores) {
    case SCORES_STEPS: return (double)(k / 64) * x->by;
    case SCORES_RISE: return k / 4 % 48 == 40 ? x->by : 0;
    case SCORES_SINGLE: return k % 256 == 200 ? 1000 : 0;
    case SCORES_FALL: return (double)-k * x->by;
    case SCORES_HUGE: return (k % 3 == 0 ? 1 : -1) * (k > 100 ? (x->f16 ? 4096. : 0x1p100) : 0);
    default:
        return k % 160 < 128 ? (double)(k % 5) * 0.125 : (double)(k % 11 - 5) * 8; /* MIXED: near the middle,
                                                                                           and far */
    }
}

static double adverse_v(const adverse *x, int64_t k, int64_t d, double v) {
    static const double odd[] = {INFINITY, -INFINITY, NAN};
    double most = x->f16 ? 60000 : 1e38;
    switch (x->values) {
    case V_LARGE: return v < 0 ? -most : most;
    case V_EQUAL: return most;
    case V_TINY: return v * (x->f16 ? 0x1p-20 : 0x1p-100);
    case V_POISONED:
    case V_OVERCOME: return k % 97 != 50 || d % 5 == 4 ? v : odd[d % 5 < 3 ? d % 5 : k % 3];
    case V_FUTURE: return k < x->s.sk / 2 || d % 5 == 4 ? v : odd[d % 5 < 3 ? d % 5 : k % 3];
    default: return v;
    }
}

static double adverse_value(const adverse *x, fxa_slot slot, double scale, int64_t s, int64_t d, double old) {
    if (slot == FXA_SLOT_V) return adverse_v(x, s, d, old);
    if (x->scores == SCORES_PLAIN && (x->values < V_POISONED || x->values == V_FUTURE)) return old;
    if (x->scores == SCORES_SMALL && x->values < V_POISONED) return old * 0.02;
    if (slot == FXA_SLOT_Q) return d == 0 ? adverse_gain(x, s) : 0;
    if (d > 0) return old;
    /* scores that give keys with non-finite V a weight of 0 (POISONED) or a large one */
    double score = x->values == V_POISONED   ? (s % 97 == 50 ? -8000 : (double)(s % 7) * 0.125)
                   : x->values == V_OVERCOME ? (s % 256 == 200 ? 8000 : 0)
                                             : adverse_score(x, s);
    return x->f16 ? fmin(fmax(score / scale, -60000), 60000) : score / scale;
}

/* Fills all used elements of a slot, in memory and in the reference. A page that is shared contains the row written
 * last. */
static void adverse_fill(conf_case *c, const adverse *x, fxa_slot slot) {
    attn_case *base = &c->base;
    bool keys = slot != FXA_SLOT_Q;
    attn_tensor *t = &base->data.t[slot];
    const int64_t *length = keys ? base->x.k_len : base->x.q_len;
    int64_t at[4], longest = keys ? base->x.sk : base->x.sq;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t b = 0; b < base->x.b; b++)
            for (int64_t s = 0; s < length[b] && attn_case_at(base, slot, b, s, at); s++)
                for (at[1] = 0; at[1] < t->n[1]; at[1]++)
                    for (at[3] = 0; at[3] < t->n[3]; at[3]++) {
                        double *dense = &base->dense[slot][((b * t->n[1] + at[1]) * longest + s) * t->n[3] + at[3]];
                        if (pass == 0)
                            attn_tensor_set(t, at, adverse_value(x, slot, base->x.scale, s, at[3], *dense));
                        else
                            *dense = attn_tensor_get(t, at);
                    }
}

static void adverse_dense(conf_case *c, const adverse *x) {
    const double lowest = x->f16 ? -65504 : -0x1.fep127;
    conf_buffer *t = &c->tensor[0];
    int64_t at[FXA_MAX_RANK] = {0};
    do {
        int64_t q = at[2], k = at[3];
        double value = k < 400 ? -INFINITY : x->level;
        if (x->dense == DENSE_PENALTY) value = q % 3 == 2 ? (x->f16 ? -6e4 : -1e9) : q % 3 == 0 || k >= 5 ? lowest : 0;
        fxa__store_f64(t->memory, t->dtype, conf_place(t, at), value);
    } while (conf_next(t, at));
}

/* Sets sinks that do not change a row, that get all the weight, or that are NaN. */
static void adverse_sinks(conf_case *c, uint64_t *rng) {
    static const double some[] = {-INFINITY, 1e4, -1e4, 60, -60, 0, 1, 3.4e38, -3.4e38, INFINITY, NAN};
    attn_tensor *t = &c->base.data.t[FXA_SLOT_SINKS];
    bool odd = attn_int(rng, 0, 3) == 0;
    for (int64_t at[4] = {0}; at[1] < t->n[1] && attn_int(rng, 0, 1); at[1]++) {
        attn_tensor_set(t, at, some[attn_int(rng, 0, odd ? 10 : 6)]);
        c->base.dense[FXA_SLOT_SINKS][at[1]] = attn_tensor_get(t, at);
    }
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

/* Draws a case. All bits of `start` but the last four select the compiled code, so consecutive cases share it. */
static adverse adverse_draw(uint64_t start) {
    static const int64_t widths[] = {64, 128, 32, 96, 64, 128, 192, 256};
    static const uint32_t some[] = {0,
                                    0,
                                    ATTN_PADDING,
                                    ATTN_VARLEN,
                                    ATTN_PAGED | ATTN_PADDING,
                                    ATTN_DROPOUT,
                                    ATTN_VARLEN | ATTN_CHUNKED | ATTN_PADDING,
                                    ATTN_PADDING | ATTN_GQA};
    uint64_t draw = start >> 4, *rng = &draw;
    adverse x = {.start = start};
    const char *theme = getenv("FXA_TEST_THEME"), *name = getenv("FXA_TEST_PROGRAM");
    (void)attn_next(rng);
    x.program = &adverse_programs[attn_int(rng, 0, ADVERSE_PROGRAMS - 1)];
    for (int i = 0; name && i < ADVERSE_PROGRAMS; i++) {
        const struct adverse_program *one = &adverse_programs[((start >> 4) + (uint64_t)i) % ADVERSE_PROGRAMS];
        if (strncmp(one->name, name, strlen(name)) == 0) x.program = one;
    }
    x.decode = theme ? strcmp(theme, "decode") == 0 : attn_int(rng, 0, 3) == 0;
    x.fixed = attn_int(rng, 0, 3) == 0;
    x.f16 = attn_int(rng, 0, 2) == 0;
    x.scalars = attn_int(rng, 0, 7) == 0;
    x.features = some[attn_int(rng, 0, 7)] | (attn_int(rng, 0, 2) ? 0 : ATTN_SINK);
    x.features |= attn_int(rng, 0, 2) ? 0 : ATTN_GQA;
    x.features |= attn_int(rng, 0, 3) ? 0 : ATTN_DLSE;
    if (x.decode) x.features &= ~(uint32_t)ATTN_DROPOUT;
    attn_shape *s = &x.s;
    s->d = s->dv = widths[attn_int(rng, 0, x.decode ? 5 : 7)];
    if (!x.decode && attn_int(rng, 0, 3) == 0) s->dv = widths[attn_int(rng, 0, 7)];
    if (attn_int(rng, 0, 3) == 0) {
        s->d -= 8 * attn_int(rng, 0, 3);
        s->dv = x.decode ? s->d : s->dv - 8 * attn_int(rng, 0, 3);
    }
    int64_t most = (int64_t[]){8, 16, 128}[attn_int(rng, 0, 2)], least = most == 8 ? 1 : most == 16 ? 9 : 17;
    s->page_size = (int64_t[]){8, 16, 32, 64, 128, 256, 24}[attn_int(rng, 0, 6)];
    draw ^= start * 0xD1342543DE82EF95u;
    x.scores = (int)attn_int(rng, 0, SCORES_KINDS - 1);
    x.values = attn_int(rng, 0, 1) ? V_PLAIN : (int)attn_int(rng, 0, V_KINDS - 1);
    x.by = (double[]){4, 6, 9, 11, 30, 45, 80, 200, 2000}[attn_int(rng, 0, 8)];
    s->b = attn_int(rng, 1, 3), s->hkv = attn_int(rng, 1, 2);
    s->hq = s->hkv * (x.features & ATTN_GQA ? attn_int(rng, 1, 5) : 1);
    s->sq = frame_length(rng), s->sk = frame_length(rng);
    while (s->b * s->hq * s->sq * s->sk > 60000 && !x.decode && s->b * s->hq > 2) {
        if (s->b > 1)
            s->b--;
        else if (s->hkv > 1)
            s->hkv--, s->hq = s->hkv;
        else
            s->hq = 2;
    }
    if (x.decode) {
        int64_t rows = attn_int(rng, least, most);
        int64_t ratio = attn_int(rng, 1, rows < 8 || attn_int(rng, 0, 2) == 0 ? rows : 8);
        if (rows / ratio * ratio < least) ratio = 1;
        s->hq = s->hkv * ratio, s->sq = rows / ratio;
        s->sk = attn_int(rng, 0, 2) ? attn_int(rng, 256, 900) : attn_int(rng, 2000, 4500);
        while (s->b * s->hq * s->sq * s->sk > 80000 && s->b * s->hkv > 1) {
            if (s->b > 1)
                s->b--;
            else
                s->hkv = 1, s->hq = ratio;
        }
        if (s->hq != s->hkv) x.features |= ATTN_GQA;
    }
    s->n_pages = attn_int(rng, 1, s->b * (s->sk / s->page_size + 1) + 2);
    s->window = 40;
    if (x.scores == SCORES_FALL) x.by /= 128;
    return x;
}

/* Returns true if O and LSE are within the rounding of the weights. Used where scores are too large for the usual
 * bounds. */
static bool adverse_is_near(conf_case *c, const adverse *x) {
    static const fxa_slot slots[] = {FXA_SLOT_O, FXA_SLOT_LSE};
    for (int i = 0; i < 2; i++) {
        conf_buffer *t = &c->slot[slots[i]];
        int64_t at[FXA_MAX_RANK] = {0}, n = 0;
        do {
            int64_t place = conf_place(t, at);
            double got = fxa__load_f64(t->memory, t->dtype, place);
            double want = attn_round(t->dtype, fxa__load_f64(t->want_memory, t->want_dtype, place));
            double most = x->values != V_LARGE && x->values != V_EQUAL ? 2 : x->f16 ? 60000 : 1e38;
            double allowed = i == 0 ? 0.02 * most + 1e-3 : 1e-5 * fabs(want) + 1e-2;
            if (got == want || (got != got && want != want) || fabs(got - want) <= allowed) continue;
            snprintf(c->why, sizeof c->why, "unsure, but %s[%d,%d,%d,%d] is %.9g, not %.9g", t->name, (int)at[0],
                     (int)at[1], (int)at[2], (int)at[3], got, want);
            return false;
        } while (conf_next(t, at) && ++n);
    }
    return true;
}

/* Runs a case. A scale that is NaN stands for the drawn scale. */
static bool adverse_run(fxa_context *ctx, conf_frame *f, adverse x, double scale) {
    static conf_case c;
    char what[400];
    uint64_t start = x.start, rng = start ^ 0x9E3779B97F4A7C15u;
    fxa_program *program = NULL;
    fxa_error err;
    setenv("FXA_TEST_DTYPE", x.f16 ? "f16" : "bf16", 1);
    char text[300];
    static const double caps[] = {15, 30, 5, -15, 0.5, 1e4, 1e30, 50};
    snprintf(text, sizeof text, "%s", x.program->text);
    if (x.f16 && strstr(text, "bf16")) memcpy(strstr(text, "bf16"), " f16", 4);
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    if (!program) return false;
    bool ok, types = x.features & ATTN_DTYPES; /* O is f32 */
    for (;; conf_free(&c)) {
        fxa_program_retain(program);
        ok = conf_draw(&c, ctx, frame_features(x.features), &x.s, program, x.program->name, NULL, &f->all, &rng);
        if (!ok || !types || c.slot[FXA_SLOT_O].dtype == FXA_F32) break;
    }
    fxa_program_destroy(program);
    if (!ok) return false;
    if (x.features & ATTN_DROPOUT) c.base.x.dropout_p = c.base.data.problem.dropout_p;
    if (strcmp(x.program->name, "dense") == 0)
        conf_resize(&c, 0, (int64_t[]){x.s.b, x.s.hq, x.s.sq, (x.s.sk + 7) / 8 * 8}, &rng);
    if (x.dense) adverse_dense(&c, &x);
    if (isnan(scale)) scale = attn_int(&rng, 0, 7) ? 0.125 : attn_int(&rng, 0, 2) ? -0.25 : 0;
    c.base.x.scale = scale == 0 ? 1 : scale; /* the values of K were made for this scale */
    adverse_fill(&c, &x, FXA_SLOT_Q), adverse_fill(&c, &x, FXA_SLOT_K), adverse_fill(&c, &x, FXA_SLOT_V);
    c.base.x.scale = scale;
    if (c.base.features & ATTN_SINK) adverse_sinks(&c, &rng);
    for (size_t i = 0; i < c.n_params; i++)
        c.params[i] = strcmp(x.program->name, "cap") == 0 ? caps[attn_int(&rng, 0, 7)] : 0.05;
    c.base.data.problem.alignment = types ? 0 : 16;
    c.base.data.problem.flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    if (x.scalars && !(x.features & ATTN_DROPOUT)) c.base.data.problem.flags |= FXA_SCALARS_IN_MEMORY;
    if (x.fixed) c.base.data.backward_flags |= FXA_DETERMINISTIC;
    f->forward_alone = x.values >= V_POISONED || x.values == V_LARGE || x.values == V_EQUAL || x.scores == SCORES_HUGE;
    ok = frame_passes(f, &c);
    if (ok && f->state[0] == FRAME_UNSURE && !(c.base.data.problem.flags & FXA_ACCUMULATE_O)) {
        conf_fill_outputs(&c, FXA_FORWARD); /* the inputs O and LSE of backward are the reference's */
        ok = conf_reference(&c, FXA_FORWARD) && conf_run(&c, f->engine, FXA_FORWARD) && adverse_is_near(&c, &x);
    }
    printf("case 0x%" PRIx64 " %s%s, scores %s %g, V %s, %s %d/%d %s\n", start, x.decode ? "decode " : "",
           x.program->name, adverse_scores[x.scores], x.by, adverse_values[x.values], x.f16 ? "f16" : "bf16",
           (int)f->state[0], (int)f->state[1], f->detail[0]);
    (void)fflush(stdout);
    if (!ok) {
        conf_describe(&c, what, sizeof what);
        T_FAIL("FXA_TEST_CASE=0x%" PRIx64 " %s: %s scale %g\n    scores %s by %g, V %s, page %d\n    %s\n    %s | %s\n",
               start, f->state[1] == FRAME_NOT_RUN ? "forward" : "backward", what, scale, adverse_scores[x.scores],
               x.by, adverse_values[x.values], (int)x.s.page_size, c.why, f->detail[0], f->detail[1]);
    }
    conf_free(&c);
    return ok;
}

TEST(numbers) {
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, ADVERSE_SECONDS, &ctx);
    int from, n = frame_cases(ADVERSE_CASES, &from), wrong = 0;
    if (missing) T_SKIP(missing);
    for (int i = 0; i < n && wrong < 4; i++) {
        adverse x = adverse_draw(frame_start(t_seed() << 20 | (uint64_t)(from + i)));
        wrong += !adverse_run(ctx, &f, x, NAN);
    }
    frame_print(&f);
}

/* Non-finite V with negative scales, and with f32 results. */
TEST(values_without_weight) {
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, ADVERSE_SECONDS, &ctx);
    if (missing) T_SKIP(missing);
    for (int i = 0; i < 12; i++) {
        adverse x = {.start = 990 + (uint64_t)i, .program = &adverse_programs[i % 2], .scores = SCORES_PLAIN};
        x.values = i % 4 < 2 ? V_POISONED : V_OVERCOME, x.features = i >= 8 ? ATTN_DTYPES : 0;
        x.s = (attn_shape){.b = 1, .hq = 2, .hkv = 2, .sq = 60 + i, .sk = 250 + i, .d = 64, .dv = 64, .window = 40};
        if (!adverse_run(ctx, &f, x, i % 8 < 4 ? 0.125 : -0.25)) break;
    }
    static const uint64_t sinks[] = {0x28, 0x4e, 0x59, 0x5f}; /* sinks that leave no weight for keys, or are NaN */
    for (int i = 0; i < 8; i++) {
        adverse x = {.start = sinks[i / 2], .program = &adverse_programs[i % 2 ? 1 : 3], .scores = SCORES_PLAIN};
        x.values = V_OVERCOME, x.features = ATTN_SINK;
        x.s = (attn_shape){.b = 1, .hq = 4, .hkv = 4, .sq = 60, .sk = 70, .d = 64, .dv = 64, .window = 40};
        if (!adverse_run(ctx, &f, x, 0.125)) break;
    }
    frame_print(&f);
}

/* Keys with equal scores, V near 0 and a constant feature of K: dS of many pairs rounds in the same direction, and dQ
 * sums these errors. */
TEST(terms_that_round_alike) {
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, ADVERSE_SECONDS, &ctx);
    if (missing) T_SKIP(missing);
    adverse x = {.start = 0x1f500311, .program = &adverse_programs[ADVERSE_PROGRAMS - 1], .scores = SCORES_STEPS};
    x.values = V_TINY, x.features = ATTN_DLSE | ATTN_PADDING, x.f16 = true, x.by = 80;
    x.s = (attn_shape){.b = 2, .hq = 1, .hkv = 1, .sq = 292, .sk = 160, .d = 96, .dv = 96, .window = 40};
    T_CHECK(adverse_run(ctx, &f, x, 0.125) && f.done[1] == 1);
}

/* Scores far below those of the first keys, or as low as the storage type allows, from a dense tensor; then V that is
 * not finite behind a causal mask. */
TEST(low_scores_and_later_keys) {
    static const double levels[] = {-300, -20, 0, 0};
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, ADVERSE_SECONDS, &ctx);
    if (missing) T_SKIP(missing);
    for (int i = 0; i < 16; i++) {
        const int kind = i / 4; /* late twice, penalty, V of later keys */
        adverse x = {.start = 700 + (uint64_t)i, .program = &adverse_programs[kind == 3 ? 1 : ADVERSE_DENSE]};
        x.f16 = i % 2, x.decode = i % 4 == 3 && kind < 3, x.level = levels[kind];
        x.dense = kind < 2 ? DENSE_LATE : kind == 2 ? DENSE_PENALTY : DENSE_DRAWN;
        x.scores = kind == 2 ? SCORES_RISE : SCORES_PLAIN, x.values = kind == 3 ? V_FUTURE : V_PLAIN;
        x.s = (attn_shape){.b = 1, .hq = 1, .hkv = 1, .sq = 130, .sk = 450, .d = 128, .dv = 128, .window = 40};
        if (i % 4 >= 2) x.s.d = x.s.dv = 64;
        if (x.decode) x.s.hq = 2, x.s.sq = 3, x.features = ATTN_GQA;
        if (kind == 3) x.s.sq = 260, x.s.sk = 300;
        if (!adverse_run(ctx, &f, x, 0.125)) break;
    }
    T_CHECK(f.done[0] >= 14 && f.refused[0] == 0); /* the arithmetic decides nothing where bf16 has the penalty */
    frame_print(&f);
}

/* ---- Rows with a given LSE of -inf ------------------------------------------------------------------------------- */

/* Rows with LSE -inf have no gradient, whatever their scores are. */
static bool adverse_emptied(fxa_context *ctx, conf_frame *f, const char *text, uint32_t features, int i) {
    static conf_case c;
    uint64_t rng = 77 + (uint64_t)i;
    attn_shape s = {.b = 2, .hq = 2, .hkv = 2, .sq = 70, .sk = 90, .d = i == 2 ? 192 : 64, .dv = 64, .window = 40};
    fxa_program *program = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    if (!program || !conf_draw(&c, ctx, features, &s, program, "emptied", NULL, &f->all, &rng)) return false;
    c.base.data.problem.alignment = 16, c.base.data.problem.flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    if (i == 1) c.base.data.backward_flags |= FXA_DETERMINISTIC;
    bool ok = frame_pass(f, &c, FXA_FORWARD);
    conf_buffer *t = &c.slot[FXA_SLOT_LSE];
    int64_t at[FXA_MAX_RANK] = {0};
    do {
        if (at[2] % 5 == 2) fxa__store_f64(t->memory, t->dtype, conf_place(t, at), -INFINITY);
    } while (conf_next(t, at));
    ok = ok && frame_pass(f, &c, FXA_BACKWARD);
    if (!ok) T_FAIL("%s: %s\n    %s\n", text, c.why, f->detail[1]);
    conf_free(&c);
    return ok;
}

TEST(rows_that_are_given_as_empty) {
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, ADVERSE_SECONDS, &ctx);
    if (missing) T_SKIP(missing);
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    for (int i = 0; i < 3; i++)
        if (!adverse_emptied(ctx, &f, i == 1 ? "mask = k <= q + 9" : "", i == 0 ? ATTN_SINK | ATTN_DLSE : 0, i)) break;
    frame_print(&f);
}

T_MAIN
