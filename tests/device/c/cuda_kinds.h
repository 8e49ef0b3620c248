/* SPDX-License-Identifier: Apache-2.0
 *
 * Random problems for the cuda engine, as kinds and shapes. A kind is everything that kernels are compiled for
 * (program, features, head dims, requested outputs); a shape is the rest: batch, heads, lengths, strides, values,
 * params, scale. Compiling takes seconds and a run does not, so each kind has many shapes. The number of a kind selects
 * the source of its program and its theme, a feature that the kind certainly has, so that consecutive numbers cover all
 * themes; the rest is random. A case is replayed by the two numbers of its kind and shape.
 */
#ifndef FXA_TESTS_CUDA_KINDS_H
#define FXA_TESTS_CUDA_KINDS_H

#include "base/dtype.h"
#include "support/conformance/conf_frame.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KINDS_MORE = 5,     /* number of shapes, of ten, that have at most KINDS_FEW pairs */
    KINDS_FEW = 4000,   /* pairs */
    KINDS_MOST = 120000 /* maximum number of pairs of the other shapes */
};

/* Bits of kinds_theme.also: properties of a kind that are not features of attn_case.h. */
enum {
    KINDS_FIXED = 1,
    KINDS_GRADS = 2,
    KINDS_SCALARS = 4,
    KINDS_DECODE = 8,
    KINDS_LOOSE = 16,
    KINDS_MAX = 32,
    KINDS_LSE = 64,
    KINDS_OWN = 128
};

static const struct kinds_theme {
    const char *name;
    uint32_t features, also;
} kinds_themes[] = {
    {"plain", 0, 0},
    {"decode", ATTN_GQA, KINDS_DECODE},
    {"padded", ATTN_PADDING, 0},
    {"packed", ATTN_VARLEN, 0},
    {"paged", ATTN_PAGED | ATTN_PADDING, 0},
    {"gradients", 0, KINDS_GRADS},
    {"sinks", ATTN_SINK | ATTN_DLSE, 0},
    {"dropout", ATTN_DROPOUT, 0},
    {"maps", ATTN_MAPS, 0},
    {"strides", ATTN_STRIDES | ATTN_DIMS, 0},
    {"added", ATTN_ACC, KINDS_GRADS},
    {"fixed order", 0, KINDS_FIXED},
    {"scalars", 0, KINDS_SCALARS | KINDS_GRADS},
    {"positions", ATTN_ROWS, 0},
    {"loose", ATTN_GQA | ATTN_DIMS, KINDS_LOOSE},
    {"packed pages", ATTN_VARLEN | ATTN_CHUNKED | ATTN_PAGED | ATTN_PADDING, 0},
    {"lengths", ATTN_LENGTHS | ATTN_SINK_ZERO, 0},
    {"packed with gaps", ATTN_VARLEN | ATTN_CHUNKED | ATTN_PADDING | ATTN_GQA, 0},
    {"own backward", 0, KINDS_OWN},
    {"types", ATTN_DTYPES | ATTN_MIXED, 0},
    {"maximum", 0, KINDS_MAX},
    {"joined", ATTN_ACC | ATTN_GQA, 0},
    {"f64 of rows", ATTN_DLSE, KINDS_LSE},
    {"decode of pages", ATTN_PAGED | ATTN_PADDING | ATTN_GQA, KINDS_DECODE},
};
enum { KINDS_THEMES = sizeof kinds_themes / sizeof *kinds_themes };

/* Texts with every kind of tensor access and every gradient class; %s is the storage type. Tensors of shape [q,k] get
 * the sizes of the problem. */
static const char *const kinds_texts[] = {
    "tensor w : %s[4]\nscore = score + w[b, h, q, k]",
    "tensor doc : i64[2]\nmask = doc[b, q] == doc[b, k]",
    "tensor w : %s[3]\nscore = score + w[h, q, k]\nmask = q - k < 99",
    "tensor s : f32[1]\nscore = score - s[h] * float(abs(q - k))\nmask = k <= q",
    "tensor w : %s[2]\nscore = 9 * tanh((score + w[q, k]) / 9)",
    "tensor doc : i64[1]\nmask = doc[q] != doc[k] || k == q\nscore = 0.5 * score",
    "tensor e : f32[1]\ntensor id : i32[1]\nscore = score + e[id[k]]",
    "tensor w : %s[4]\nscore = score + w[b, h, q, k]\nmask = k <= q",
    "tensor t : bf16[2]\nscore = score + t[h, min(max(q - k + 20, 0), 40)]",
    "tensor r : f32[2]\nscore = score + r[h, q]",
    "tensor w : i16[1]\nmask = w[q] == w[k] || k < 3",
    "tensor c : f16[2]\nscore = score + c[b, k]",
    "tensor t : f32[0]\nparam a : float\nscore = score * t[] + a",
    "tensor w : u8[2]\nmask = w[b, k] > 2",
    "param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q",
    "mask = score > 0.25 || k % 5 == 0",
    "tensor w : i8[1]\ntensor g : f64[1]\nmask = w[k] <= w[q]\nscore = score * g[h]",
};
enum { KINDS_TEXTS = sizeof kinds_texts / sizeof *kinds_texts };

/* Sources of programs, used in turn. CONF_STEEP + 1 means kinds_texts. */
static const int kinds_sources[] = {CONF_TWIN,    CONF_STEEP + 1, CONF_GALLERY, CONF_MASK, CONF_SMOOTH,  CONF_STEEP + 1,
                                    CONF_GALLERY, CONF_SPARSE,    CONF_BOTH,    CONF_WILD, CONF_IDENTITY};
enum { KINDS_SOURCES = sizeof kinds_sources / sizeof *kinds_sources };

typedef struct kinds_kind {
    uint64_t start;
    const struct kinds_theme *theme;
    const char *name;             /* name of the program */
    fxa_program *program, *bprop; /* score program and user-written backward; bprop NULL: the derivative */
    bool dense;                   /* true: the program's first tensor has an element per pair */
    uint32_t features, also;
    int64_t width, width_v; /* compiled head dims */
    int64_t rows;           /* decoding: maximum number of packed rows */
    int64_t window;
} kinds_kind;

static uint64_t kinds_mix(uint64_t x, uint64_t y) {
    uint64_t rng = x ^ (y + 1) * 0xD1342543DE82EF95u;
    return attn_next(&rng);
}

/* ---- Kinds ------------------------------------------------------------------------------------------------------- */

static fxa_program *kinds_text(fxa_context *ctx, kinds_kind *k, int i) {
    char text[256];
    fxa_program *program = NULL;
    const char *dtype = getenv("FXA_TEST_DTYPE"), *from = strstr(kinds_texts[i], "%s");
    k->name = "text", k->dense = from != NULL;
    if (k->dense && i % 2 == 0) k->also |= KINDS_GRADS;
    snprintf(text, sizeof text, "%.*s%s%s", (int)(from ? from - kinds_texts[i] : 0), kinds_texts[i], from ? dtype : "",
             from ? from + 2 : kinds_texts[i]);
    return fxa_program_parse(ctx, text, strlen(text), &program, NULL) == FXA_OK ? program : NULL;
}

/* Returns the features of a kind: often one besides the theme's, rarely two. */
static uint32_t kinds_features(const kinds_kind *k, uint64_t *rng) {
    uint32_t plain = ATTN_GQA | ATTN_DIMS | ATTN_READY | ATTN_SOME_GRADS | ATTN_DLSE;
    uint32_t others = ATTN_PADDING | ATTN_VARLEN | ATTN_SINK_ZERO | ATTN_SINK | ATTN_DROPOUT | ATTN_STRIDES |
                      ATTN_CHUNKED | ATTN_MAPS | ATTN_ACC | ATTN_LENGTHS | ATTN_ROWS;
    uint32_t some = k->theme->features | (plain & (uint32_t)attn_next(rng));
    some |= others & (uint32_t)(attn_next(rng) & attn_next(rng) & attn_next(rng));
    if (k->also & KINDS_DECODE) some &= ~(uint32_t)(ATTN_DIMS | ATTN_DROPOUT);
    if (attn_int(rng, 0, 19) == 0) some |= attn_int(rng, 0, 1) ? ATTN_DTYPES : ATTN_DTYPES | ATTN_MIXED;
    return frame_features(some);
}

static uint32_t kinds_also(const struct kinds_theme *theme, uint64_t *rng) {
    uint32_t also = theme->also | (attn_int(rng, 0, 1) ? KINDS_GRADS : 0) | (attn_int(rng, 0, 4) ? 0 : KINDS_FIXED);
    also |= (attn_int(rng, 0, 5) ? 0 : KINDS_LOOSE) | (attn_int(rng, 0, 11) ? 0 : KINDS_SCALARS);
    if (theme->features & ATTN_PAGED) also &= ~(uint32_t)KINDS_LOOSE;
    return also | (attn_int(rng, 0, 19) ? 0 : KINDS_MAX) | (attn_int(rng, 0, 19) ? 0 : KINDS_LSE);
}

/* Compiled head dims that kinds draw from; the first six are all that exist. */
static const int64_t kinds_widths[] = {64, 128, 32, 96, 192, 256, 64, 128};
enum { KINDS_PAIRS = 0xf000 /* kinds from this number on have no program and cover every pair of head dims */ };

/* Draws kind `number`. The caller destroys its programs. */
static kinds_kind kinds_draw(fxa_context *ctx, uint64_t seed, int number) {
    kinds_kind k = {.start = frame_start(kinds_mix(seed, 0) << 16 | (uint64_t)(number & 0xffff))};
    uint64_t rng = k.start;
    number = (int)(k.start & 0xffff); /* a replayed seed contains the number of the kind */
    int turn = number / KINDS_SOURCES, source = kinds_sources[number % KINDS_SOURCES];
    bool pairs = number >= KINDS_PAIRS;
    if (pairs) source = CONF_IDENTITY;
    k.theme = &kinds_themes[pairs ? 0 : (number + 2 * turn) % KINDS_THEMES];
    k.also = pairs ? 0 : kinds_also(k.theme, &rng);
    k.features = pairs ? ATTN_DIMS | ATTN_GQA | (number & 1 ? ATTN_READY : 0) : kinds_features(&k, &rng);
    k.width = k.width_v = kinds_widths[attn_int(&rng, 0, k.also & KINDS_DECODE ? 3 : 7)];
    if (k.features & ATTN_DIMS) k.width_v = kinds_widths[attn_int(&rng, 0, 7)];
    if (pairs) k.width = kinds_widths[number % 6], k.width_v = kinds_widths[number / 6 % 6];
    k.rows = (int64_t[]){8, 16, 128}[attn_int(&rng, 0, 2)];
    k.window = attn_int(&rng, 0, 1) ? 40 : 300;
    k.program = source > CONF_STEEP
                    ? kinds_text(ctx, &k, (turn * 2 + (number % KINDS_SOURCES > 1)) % KINDS_TEXTS)
                    : conf_program(ctx, (conf_source)source, FXA_SOURCE_DIR "/examples/programs", &rng, &k.name);
    if (k.also & KINDS_OWN) k.bprop = conf_bprop(ctx, &rng), k.also &= ~(uint32_t)KINDS_GRADS;
    return k;
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* Returns a head dim for which the kernels of head dim `width` are used: a multiple of 8 unless `loose`. */
static int64_t kinds_columns(int64_t width, bool loose, uint64_t *rng) {
    static const int64_t below[] = {[0] = 0, [1] = 0, [2] = 32, [3] = 64, [4] = 96, [6] = 128, [8] = 192};
    int64_t least = below[width / 32], r = attn_int(rng, 0, 2);
    if (r == 0) return width;
    if (r == 1 && loose) return least + attn_int(rng, 1, 9);
    return loose ? attn_int(rng, least + 1, width) : 8 * attn_int(rng, least / 8 + 1, width / 8);
}

static int64_t kinds_length(uint64_t *rng) {
    static const int64_t edges[] = {64, 128, 192, 256, 384, 512};
    int64_t r = attn_int(rng, 0, 9);
    if (r < 3) return edges[attn_int(rng, 0, 5)] + attn_int(rng, -1, 1);
    return r < 5 ? attn_int(rng, 1, attn_int(rng, 0, 1) ? 3 : 40) : attn_int(rng, 1, 400);
}

/* Returns true if the engine would split the keys (decoding), which needs other kernels. All shapes of a kind either
 * split or do not. */
static bool kinds_is_decode(const attn_shape *s) { return s->sq * (s->hq / s->hkv) <= 128 && s->sk >= 256; }

static void kinds_decode(const kinds_kind *k, attn_shape *s, uint64_t *rng) {
    int64_t most = k->rows, least = most == 8 ? 1 : most == 16 ? 9 : 17, rows = attn_int(rng, least, most);
    int64_t ratio = k->features & ATTN_GQA ? attn_int(rng, 1, rows < 8 ? rows : 8) : 1;
    s->sq = rows / ratio;
    if (s->sq * ratio < least) ratio = 1, s->sq = rows;
    s->hq = s->hkv * ratio, s->sk = attn_int(rng, 256, 1500);
}

static void kinds_shrink(attn_shape *s, int64_t pairs, uint64_t *rng) {
    while (s->b * s->hq * s->sq * s->sk > pairs) {
        if (s->b > 1 && attn_int(rng, 0, 1))
            s->b--;
        else if (s->hkv > 1)
            s->hq = s->hq / s->hkv * (s->hkv - 1), s->hkv--;
        else if (s->hq > 2)
            s->hq = 2;
        else if (s->sq > s->sk)
            s->sq = s->sq * 3 / 4;
        else
            s->sk = s->sk * 3 / 4;
    }
}

static attn_shape kinds_shape(const kinds_kind *k, uint64_t *rng) {
    attn_shape s = {.b = attn_int(rng, 1, 4), .hkv = attn_int(rng, 1, 3), .window = k->window};
    bool loose = k->also & KINDS_LOOSE, decode = (k->also & KINDS_DECODE) && attn_int(rng, 0, 3);
    int64_t most = attn_int(rng, 0, 9) < KINDS_MORE ? KINDS_FEW : attn_int(rng, KINDS_FEW, KINDS_MOST);
    if (frame_is_set("FXA_TEST_SMALL")) most = KINDS_FEW;
    s.kind = kinds_mix(k->start, 77);
    s.d = kinds_columns(k->width, loose, rng);
    s.dv = k->features & ATTN_DIMS ? kinds_columns(k->width_v, loose, rng) : s.d;
    s.hq = s.hkv * (k->features & ATTN_GQA ? attn_int(rng, 1, 8) : 1);
    s.sq = attn_int(rng, 0, 9) ? kinds_length(rng) : attn_int(rng, 1, 4);
    s.sk = kinds_length(rng);
    if (most > KINDS_FEW && attn_int(rng, 0, 2) == 0) /* a shape above the limit: several tiles on both axes */
        s.b = s.hkv = 1, s.hq = attn_int(rng, 1, k->features & ATTN_GQA ? 2 : 1), s.sq = attn_int(rng, 129, 330),
        s.sk = attn_int(rng, 257, 340), most = KINDS_MOST;
    if (decode) kinds_decode(k, &s, rng);
    kinds_shrink(&s, decode ? KINDS_MOST : most, rng);
    if (!decode && kinds_is_decode(&s)) s.sk = attn_int(rng, 200, 255);
    s.page_size = (int64_t[]){16, 64, 128, 8}[attn_int(rng, 0, 3)];
    s.n_pages = attn_int(rng, 1, s.b * (s.sk / s.page_size + 1) + 2);
    return s;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static bool kinds_is_at(const void *origin) { return (uintptr_t)origin % 16 == 0; }

static bool kinds_is_aligned(const conf_case *c) {
    bool aligned = true;
    for (int i = 0; i < CONF_SLOTS; i++) aligned = aligned && kinds_is_at(c->slot[i].origin);
    for (size_t i = 0; i < c->n_tensors; i++)
        aligned = aligned && kinds_is_at(c->tensor[i].origin) && kinds_is_at(c->dtensor[i].origin);
    return aligned;
}

static void kinds_narrow(conf_case *c, const kinds_kind *k) {
    fxa_problem *p = &c->base.data.problem;
    if ((k->also & KINDS_SCALARS) && !(p->flags & FXA_DROPOUT)) p->flags |= FXA_SCALARS_IN_MEMORY;
    if (!(k->also & KINDS_MAX)) p->flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    p->alignment = !(k->also & KINDS_LOOSE) && kinds_is_aligned(c) ? 16 : 0;
    if (k->also & KINDS_FIXED) c->base.data.backward_flags |= FXA_DETERMINISTIC;
    if (k->also & KINDS_GRADS) return;
    p->param_grads = 0;
    for (size_t i = 0; i < c->n_tensors; i++) c->captures[i].grad = 0;
    c->base.data.backward_flags &= ~(uint32_t)(FXA_ACCUMULATE_DTENSORS | FXA_ACCUMULATE_DPARAMS);
}

/* Sets the size of a tensor with an element per pair. Whether its rows are a multiple of 16 bytes depends on the
 * kind. */
static void kinds_resize(conf_case *c, const kinds_kind *k, const attn_shape *s, uint64_t *rng) {
    bool exact = attn_int(&(uint64_t){k->start}, 0, 2) > 0;
    int64_t pitch = exact ? (s->sk + 7) / 8 * 8 : s->sk + 3, n[4] = {s->b, s->hq, s->sq, pitch};
    int rank = c->tensor[0].rank;
    conf_resize(c, 0, n + 4 - rank, rng);
    c->captures[0].grad_dtype = (uint32_t)c->dtensor[0].dtype;
}

/* Kinds of values: as drawn (PLAIN), small, large (few keys have all the weight), a NaN row of Q, or another scale. */
enum {
    KINDS_PLAIN,
    KINDS_SMALL,
    KINDS_LARGE,
    KINDS_NAN,
    KINDS_RISING, /* scores increase along the keys, so the maximum of a row comes late */
    KINDS_TURNED, /* a negative scale */
    KINDS_ZERO    /* a scale of 0 */
};

static double kinds_value(int which, int64_t s, int64_t row, double x) {
    if (which == KINDS_RISING) return s < 128 ? x * 0.125 : x * 4;
    return which == KINDS_NAN && s == row ? NAN : which == KINDS_SMALL ? x * 0.01 : which == KINDS_LARGE ? x * 6 : x;
}

static int kinds_revalue(conf_case *c, uint64_t *rng) {
    static const int by_chance[16] = {KINDS_SMALL,  KINDS_LARGE,  KINDS_LARGE, KINDS_NAN,
                                      KINDS_TURNED, KINDS_RISING, KINDS_ZERO};
    int which = by_chance[attn_int(rng, 0, 15)];
    bool keys = which == KINDS_RISING;
    fxa_slot slot = keys ? FXA_SLOT_K : FXA_SLOT_Q;
    attn_tensor *t = &c->base.data.t[slot];
    oracle *x = &c->base.x;
    double *dense = c->base.dense[slot];
    int64_t at[4], row = attn_int(rng, 0, x->sq - 1), heads = keys ? x->hkv : x->hq, longest = keys ? x->sk : x->sq;
    if (which >= KINDS_TURNED) x->scale = which == KINDS_ZERO ? 0 : -x->scale;
    if (which >= KINDS_TURNED) return which;
    bool shared = t->style == ATTN_EXPANDED || (keys && (c->base.features & ATTN_PAGED));
    if (shared || which == KINDS_PLAIN) return KINDS_PLAIN;
    for (int64_t b = 0; b < x->b; b++)
        for (int64_t s = 0; s < (keys ? x->k_len : x->q_len)[b] && attn_case_at(&c->base, slot, b, s, at); s++)
            for (at[1] = 0; at[1] < heads; at[1]++)
                for (at[3] = 0; at[3] < x->d; at[3]++) {
                    double *to = &dense[((b * heads + at[1]) * longest + s) * x->d + at[3]];
                    attn_tensor_set(t, at, kinds_value(which, s, row, *to));
                    *to = attn_tensor_get(t, at);
                }
    return which;
}

/* Makes shape i of a kind. The caller calls conf_free. Returns the kind of its values; -1 = the shape is impossible. */
static int kinds_case(conf_case *c, fxa_context *ctx, const kinds_kind *k, int i, conf_tally *tally) {
    uint64_t rng = kinds_mix(k->start, 1000 + (uint64_t)i);
    attn_shape s = kinds_shape(k, &rng);
    fxa_dtype lse = k->also & KINDS_LSE ? FXA_F64 : FXA_F32;
    for (;; s.kind++) {
        fxa_program_retain(k->program), fxa_program_retain(k->bprop);
        if (!conf_draw(c, ctx, k->features, &s, k->program, k->name, k->bprop, tally, &rng)) return -1;
        if (c->base.data.t[FXA_SLOT_LSE].dtype == lse) break;
        conf_free(c);
    }
    if (k->dense) kinds_resize(c, k, &s, &rng);
    kinds_narrow(c, k);
    return kinds_revalue(c, &rng);
}

#endif
