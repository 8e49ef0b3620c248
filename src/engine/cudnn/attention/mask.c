/* SPDX-License-Identifier: Apache-2.0
 *
 * The mask of a score program in a graph: a select of -inf for each condition of the mask (lower/conjunct.h). Causal
 * and window conditions have exactly the operations and types by which cuDNN recognizes them, and the indices that they
 * compare are those of the masked tensor itself; cuDNN then skips excluded tiles. In conditions that it does not
 * recognize, cuDNN compares rows with keys correctly only by <= and ==, which score/ops.c uses.
 */
#include "attention.h"

#include "../../../base/invariant.h"

#include <math.h>

#define MASK_MAX (1 << 24) /* f32 represents all ints up to this value; no coordinate is larger */

/* Sets *shift to (q - k in coordinates) - (q - k in indices): coordinates are inputs of the program, indices those of a
 * tensor's elements. Returns false if the shift is not known before the run. */
static bool mask_origin(const fxa__dnn_attention *a, int64_t *shift) {
    const fxa__dnn_axis q = fxa__dnn_axis_of(&a->score, FXA_INPUT_Q), k = fxa__dnn_axis_of(&a->score, FXA_INPUT_K);
    *shift = q.base - k.base;
    return q.known && k.known && q.step == 1 && k.step == 1;
}

/* Returns true if the condition is shifted by k_len - q_len and these lengths differ between batch entries. */
static bool mask_is_by_entry(const fxa__dnn_attention *a, const fxa__part *part) {
    return part->aligned && (fxa__dnn_length_of(&a->score, false) < 0 || fxa__dnn_length_of(&a->score, true) < 0);
}

/* Returns true if the condition's bound is a constant, or a value that is the same in an entire run. */
static bool mask_is_by_value(const fxa__dnn_attention *a, const fxa__part *part) {
    return part->bound < 0 || fxa__dnn_score_is_by_value(&a->score, part->bound);
}

/* Returns k_len - q_len if the condition is shifted by this difference and all batch entries have the same lengths;
 * else 0. */
static int64_t mask_more(const fxa__dnn_attention *a, const fxa__part *part) {
    if (!part->aligned || mask_is_by_entry(a, part)) return 0;
    return fxa__dnn_length_of(&a->score, true) - fxa__dnn_length_of(&a->score, false);
}

/* Returns the bound of a condition as a scalar that is passed by value: c + part->times_bound * (value of the node
 * part->bound in the run), or c if there is no such node. */
static int32_t mask_bound(fxa__dnn_attention *a, const fxa__part *part, int64_t c, uint8_t type) {
    fxa__dnn_tensor t = {.dim = {1, 1, 1, 1},
                         .stride = {1, 1, 1, 1},
                         .type = type,
                         .source = part->bound < 0 ? FXA__DNN_VALUE : FXA__DNN_NODE,
                         .bound = true,
                         .index = part->bound,
                         .times = part->times_bound,
                         .value = (double)c};
    return fxa__dnn_add(&a->g, &t);
}

static int32_t mask_refuse_wrap(fxa__dnn_attention *a) {
    return fxa__dnn_refuse(&a->g,
                           "a bound of the mask is a param which may wrap around at 32 bits: write q - k, or k - q");
}

static int32_t mask_refuse_far(fxa__dnn_attention *a, int64_t c) {
    return fxa__dnn_refuse(&a->g, "a bound of the mask is %lld: beyond 2^24", (long long)c);
}

/* Masks s by k <= q + c, in the form q + c >= k. */
static int32_t mask_causal(fxa__dnn_attention *a, int32_t s, const fxa__part *part, int64_t c) {
    fxa__dnn_graph *g = &a->g;
    FXA__ASSERT(c >= -MASK_MAX && c <= MASK_MAX && mask_is_by_value(a, part));
    int32_t q = fxa__dnn_index(g, s, 2, CUDNN_DATA_FLOAT), k = fxa__dnn_index(g, s, 3, CUDNN_DATA_FLOAT);
    if (mask_is_by_entry(a, part)) { /* cuDNN replaces the constants sk and sq by the lengths of each batch entry */
        q = fxa__dnn_int2(g, CUDNN_POINTWISE_ADD, q, fxa__dnn_int(g, a->p->in.sk));
        q = fxa__dnn_int2(g, CUDNN_POINTWISE_SUB, q, fxa__dnn_int(g, a->p->in.sq));
    }
    if (c || part->bound >= 0) q = fxa__dnn_int2(g, CUDNN_POINTWISE_ADD, q, mask_bound(a, part, c, CUDNN_DATA_INT32));
    int32_t m = fxa__dnn_op2(g, CUDNN_POINTWISE_CMP_GE, q, k, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    return fxa__dnn_select(g, s, fxa__dnn_float(g, -INFINITY), m);
}

/* Masks s by q - k <= c, in the form k + (c + 1) > q with the sum in f32. */
static int32_t mask_window(fxa__dnn_attention *a, int32_t s, const fxa__part *part, int64_t c) {
    fxa__dnn_graph *g = &a->g;
    int32_t q = fxa__dnn_index(g, s, 2, CUDNN_DATA_FLOAT), k = fxa__dnn_index(g, s, 3, CUDNN_DATA_FLOAT);
    /* cuDNN's own window cannot be shifted by the lengths of each batch entry */
    FXA__ASSERT(c >= -MASK_MAX && c <= MASK_MAX && !mask_is_by_entry(a, part));
    k = fxa__dnn_float2(g, CUDNN_POINTWISE_ADD, k, mask_bound(a, part, c + 1, CUDNN_DATA_FLOAT));
    int32_t m = fxa__dnn_op2(g, CUDNN_POINTWISE_CMP_GT, k, q, CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN);
    return fxa__dnn_select(g, s, fxa__dnn_float(g, -INFINITY), m);
}

/* ---- Conditions without a form that cuDNN recognizes ------------------------------------------------------------- */

static int64_t mask_clamp(int64_t c) { return c < -MASK_MAX ? -MASK_MAX : c > MASK_MAX ? MASK_MAX : c; }

/* Returns the condition x <= c + part->times_bound * (value of the node part->bound), for an int x that is computed
 * from coordinates. If the bound is not a scalar, compares x - c with the bound, because c + bound could overflow. */
static int32_t mask_at_most(fxa__dnn_attention *a, int32_t x, const fxa__part *part, int64_t c) {
    fxa__dnn_graph *g = &a->g;
    if (part->needs_small_bound) return mask_refuse_wrap(a);
    c = part->bound < 0 ? mask_clamp(c) : c;
    if (c < -MASK_MAX || c > MASK_MAX) return mask_refuse_far(a, c);
    if (mask_is_by_value(a, part))
        return fxa__dnn_int2(g, CUDNN_POINTWISE_CMP_LE, x, mask_bound(a, part, c, CUDNN_DATA_INT32));
    int32_t bound = fxa__dnn_score_node(&a->score, part->bound);
    if (c) x = fxa__dnn_int2(g, CUDNN_POINTWISE_ADD, x, fxa__dnn_int(g, -c));
    if (part->times_bound > 0) return fxa__dnn_int2(g, CUDNN_POINTWISE_CMP_LE, x, bound);
    x = fxa__dnn_int2(g, CUDNN_POINTWISE_NEG, x, -1);
    return fxa__dnn_int2(g, CUDNN_POINTWISE_CMP_LE, fxa__dnn_as_virtual(&a->score, bound), x);
}

/* Returns the condition k <= C or, if part->of_length, k <= k_len + C, where C is part->c + part->times_bound * (value
 * of the node part->bound). */
static int32_t mask_length(fxa__dnn_attention *a, const fxa__part *part) {
    int64_t length = fxa__dnn_length_of(&a->score, true);
    int32_t k = fxa__dnn_score_input(&a->score, FXA_INPUT_K);
    if (part->of_length && length < 0)
        k = fxa__dnn_int2(&a->g, CUDNN_POINTWISE_SUB, k, fxa__dnn_score_input(&a->score, FXA_INPUT_K_LEN));
    return mask_at_most(a, k, part, part->c + (part->of_length && length >= 0 ? length : 0));
}

/* Returns the condition (k <= q + prefix) || (the condition that mask_length returns). */
static int32_t mask_prefix(fxa__dnn_attention *a, const fxa__part *part) {
    int64_t c = mask_clamp(part->prefix + mask_more(a, part));
    int32_t q = fxa__dnn_score_input(&a->score, FXA_INPUT_Q), k = fxa__dnn_score_input(&a->score, FXA_INPUT_K);
    if (mask_is_by_entry(a, part)) q = fxa__dnn_int2(&a->g, CUDNN_POINTWISE_ADD, q, fxa__dnn_more(&a->score));
    if (c) q = fxa__dnn_int2(&a->g, CUDNN_POINTWISE_ADD, q, fxa__dnn_int(&a->g, c));
    int32_t length = mask_length(a, part);
    return fxa__dnn_int2(&a->g, CUDNN_POINTWISE_LOGICAL_OR, fxa__dnn_int2(&a->g, CUDNN_POINTWISE_CMP_LE, k, q), length);
}

/* Returns a causal or window condition as pointwise operations: for a condition that cuDNN's own form cannot express,
 * and for a second causal or a second window condition, which cuDNN would mistake for the first one. */
static int32_t mask_diagonal(fxa__dnn_attention *a, const fxa__part *part) {
    bool causal = part->kind == FXA__PART_CAUSAL;
    int64_t aligned = mask_more(a, part);
    int32_t q = fxa__dnn_score_input(&a->score, FXA_INPUT_Q), k = fxa__dnn_score_input(&a->score, FXA_INPUT_K);
    if (mask_is_by_entry(a, part)) q = fxa__dnn_int2(&a->g, CUDNN_POINTWISE_ADD, q, fxa__dnn_more(&a->score));
    int32_t x = fxa__dnn_int2(&a->g, CUDNN_POINTWISE_SUB, causal ? k : q, causal ? q : k);
    return mask_at_most(a, x, part, part->c + (causal ? aligned : -aligned));
}

static int32_t mask_equal(fxa__dnn_attention *a, const fxa__part *part) {
    if (part->wide)
        return fxa__dnn_refuse(&a->g, "the mask compares i64 tensors: cuDNN compares ints of 32 bits; take i32");
    int32_t row = fxa__dnn_as_virtual(&a->score, fxa__dnn_score_node(&a->score, part->row));
    int32_t key = fxa__dnn_as_virtual(&a->score, fxa__dnn_score_node(&a->score, part->key));
    return fxa__dnn_int2(&a->g, CUDNN_POINTWISE_CMP_EQ, row, key);
}

/* Returns the tensor of bools of one condition of the mask. */
static int32_t mask_part(fxa__dnn_attention *a, const fxa__part *part) {
    if (part->kind == FXA__PART_LENGTH) return mask_length(a, part);
    if (part->kind == FXA__PART_PREFIX) return mask_prefix(a, part);
    if (part->kind == FXA__PART_EQUAL) return mask_equal(a, part);
    if (part->kind == FXA__PART_CAUSAL || part->kind == FXA__PART_WINDOW) return mask_diagonal(a, part);
    int32_t m = fxa__dnn_as_virtual(&a->score, fxa__dnn_score_node(&a->score, part->node));
    return part->negated ? fxa__dnn_int2(&a->g, CUDNN_POINTWISE_LOGICAL_NOT, m, -1) : m;
}

/* ---- Causal masks and windows in cuDNN's own form ---------------------------------------------------------------- */

/* The causal and the window condition in cuDNN's form. cuDNN computes one condition of each kind and mistakes a second
 * one for the first. If several conditions of a kind have constant bounds, the tightest one is used; if none has, the
 * first one whose bound is known only in a run. Conditions that these two do not imply are computed as pointwise
 * operations. */
typedef struct mask_bands {
    const fxa__part *part[2]; /* [causal, window] NULL = none */
    int64_t c[2];
} mask_bands;

/* Returns true if cuDNN's own causal mask or window can express the condition. */
static bool mask_may_band(const fxa__dnn_attention *a, const fxa__part *part) {
    int64_t shift = 0;
    bool causal = part->kind == FXA__PART_CAUSAL, band = causal || part->kind == FXA__PART_WINDOW;
    if (!band || !mask_is_by_value(a, part) || !mask_origin(a, &shift)) return false;
    if (!mask_is_by_entry(a, part)) return true;
    bool both = fxa__dnn_length_of(&a->score, false) < 0 && fxa__dnn_length_of(&a->score, true) < 0;
    return causal && both && part->bound < 0 && part->c + shift == 0;
}

/* Sets *c to the constant of a condition on indices: k <= q + c, or q - k <= c. Constants beyond sq + sk are clamped,
 * which does not change the mask, so that f32 represents them exactly. Returns false if the condition cannot have
 * cuDNN's form. */
static bool mask_band_constant(fxa__dnn_attention *a, const fxa__part *part, int64_t *c) {
    int64_t shift = 0, most = a->p->in.sq + a->p->in.sk;
    if (part->needs_small_bound) (void)mask_refuse_wrap(a);
    if (part->needs_small_bound || !mask_origin(a, &shift)) return false;
    shift += mask_more(a, part);
    *c = part->c + (part->kind == FXA__PART_CAUSAL ? shift : -shift);
    if (part->bound < 0) *c = *c > most ? most : *c < -most ? -most : *c;
    if (*c < -MASK_MAX || *c > MASK_MAX) (void)mask_refuse_far(a, *c);
    return a->g.status == FXA_OK;
}

/* Returns the conditions for cuDNN's own causal mask and window. Of each kind, selects the tightest condition with a
 * known bound; if there is none, the first condition. */
static mask_bands mask_bands_choose(fxa__dnn_attention *a) {
    mask_bands bands = {{NULL, NULL}, {0, 0}};
    for (size_t i = 0; i < a->mask.n; i++) {
        const fxa__part *part = &a->mask.parts[i];
        int64_t c = 0, all = (part->kind == FXA__PART_CAUSAL ? a->p->in.sk : a->p->in.sq) - 1;
        int kind = part->kind == FXA__PART_WINDOW;
        if (!mask_may_band(a, part) || !mask_band_constant(a, part, &c)) continue;
        const fxa__part *had = bands.part[kind];
        bool by_entry = mask_is_by_entry(a, part);
        /* the condition is true for all (q, k) pairs */
        if (by_entry ? a->p->in.sq == 1 : part->bound < 0 && c >= all) continue;
        bool loose = had && (had->bound >= 0 || mask_is_by_entry(a, had));
        bool tighter = part->bound < 0 && !by_entry && (loose || c < bands.c[kind]);
        if (!had || tighter) bands.part[kind] = part, bands.c[kind] = c;
    }
    return bands;
}

/* Returns true if all coordinates are in [0, 2^30], as the conditions of lower/conjunct.h require. For other
 * coordinates, the mask is computed as one node of the program (mask_whole). */
static bool mask_is_plain(const fxa__dnn_attention *a) {
    bool plain = true;
    for (fxa_input axis = FXA_INPUT_B; axis < FXA_INPUT_COUNT; axis++) {
        if (!fxa__dnn_is_place(axis)) continue;
        const fxa__dnn_axis c = fxa__dnn_axis_of(&a->score, axis);
        plain = plain && c.lo >= 0 && c.hi <= FXA__MAX_COORDINATE;
    }
    return plain;
}

/* Returns the scores s with -inf where the mask is false. Computes the entire mask as one node of the program. */
static int32_t mask_whole(fxa__dnn_attention *a, int32_t s) {
    int32_t node = fxa__program_output(a->program, FXA__OUT_MASK);
    const fxa__node *n = &a->program->nodes[node];
    if (n->op == FXA_OP_CONST && n->imm) return s;
    fxa__dnn_score_start(&a->score, a->scaled, -1, s);
    int32_t m = fxa__dnn_as_virtual(&a->score, fxa__dnn_score_node(&a->score, node));
    return fxa__dnn_select(&a->g, s, fxa__dnn_float(&a->g, -INFINITY), m);
}

/* Returns true if the chosen causal and window conditions imply this condition. */
static bool mask_is_done(const fxa__dnn_attention *a, const fxa__part *part, const mask_bands *bands) {
    if (part == bands->part[0] || part == bands->part[1]) return true;
    if (!mask_may_band(a, part)) return false;
    return mask_is_by_entry(a, part) ? a->p->in.sq == 1 : part->bound < 0;
}

bool fxa__dnn_mask_is_banded(fxa__dnn_attention *a) {
    if (!mask_is_plain(a)) return false;
    const mask_bands bands = mask_bands_choose(a);
    for (size_t i = 0; i < a->mask.n; i++)
        if (!mask_is_done(a, &a->mask.parts[i], &bands)) return false;
    return true;
}

/* Adds the operations of each condition anew for the current scores s (fxa__dnn_score_start), because row and key
 * coordinates must be indices of elements of the tensor that is masked. */
int32_t fxa__dnn_mask_others(fxa__dnn_attention *a, int32_t s) {
    if (!mask_is_plain(a)) return mask_whole(a, s);
    const mask_bands bands = mask_bands_choose(a);
    for (size_t i = 0; i < a->mask.n && a->g.status == FXA_OK; i++) {
        const fxa__part *part = &a->mask.parts[i];
        if (mask_is_done(a, part, &bands)) continue;
        fxa__dnn_score_start(&a->score, a->scaled, -1, s);
        int32_t mask = mask_part(a, part);
        s = fxa__dnn_select(&a->g, s, fxa__dnn_float(&a->g, -INFINITY), mask);
    }
    return s;
}

int32_t fxa__dnn_mask_bands(fxa__dnn_attention *a, int32_t s) {
    if (!mask_is_plain(a)) return s;
    const mask_bands bands = mask_bands_choose(a);
    if ((bands.part[0] || bands.part[1]) && (a->p->in.sq > MASK_MAX || a->p->in.sk > MASK_MAX))
        return fxa__dnn_refuse(&a->g, "a causal mask or window of more than 2^24 rows or keys: cuDNN counts in floats");
    if (bands.part[0] && a->g.status == FXA_OK) s = mask_causal(a, s, bands.part[0], bands.c[0]);
    if (bands.part[1] && a->g.status == FXA_OK) s = mask_window(a, s, bands.part[1], bands.c[1]);
    a->banded = a->banded || bands.part[0] || bands.part[1];
    return s;
}
