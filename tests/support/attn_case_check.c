/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a case through the public API and compares with the oracle every element of every output, and every byte around
 * the elements (attn_case.h).
 *
 * Tolerance: both sides compute in f64 over at most some hundred terms of magnitude about 10, so they may differ by
 * about 1e-14 of the largest result; 1e-12 of it is allowed. A result in a narrower dtype must be the rounding of a
 * value within that distance.
 */
#include "attn_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTN_TOLERANCE 1e-12

void attn_case_call(const attn_case *c, fxa_pass pass, attn_call *call) {
    attn_call_make(&c->data, pass, call);
    call->p.engine = c->engine, call->p.device = attn_device(c->engine);
    call->args.scale = c->x.scale, call->args.seed = c->x.seed;
    call->args.params = c->x.param;
}

bool attn_case_run(attn_case *c, fxa_pass pass) {
    attn_call call;
    fxa_error err;
    attn_case_call(c, pass, &call);
    if (fxa_attention(c->ctx, &call.p, &call.args, &err) == FXA_OK) return true;
    snprintf(c->why, sizeof c->why, "%s: %.350s", pass ? "backward" : "forward", err.text);
    return false;
}

/* ---- What is expected of one output ------------------------------------------------------------------------------ */

/* Expected contents of a tensor, by element in dense order of its four axes: value, and whether the run writes the
 * element. `before` is the memory before the run. */
typedef struct case_want {
    const char *name;
    attn_tensor *t;
    double *value;
    bool *written;
    unsigned char *before;
} case_want;

static int64_t want_count(const attn_tensor *t) { return t->n[0] * t->n[1] * t->n[2] * t->n[3]; }

static void want_index(const attn_tensor *t, int64_t i, int64_t at[4]) {
    for (int axis = 3; axis >= 0; axis--) at[axis] = i % t->n[axis], i /= t->n[axis];
}

static int64_t want_number(const attn_tensor *t, const int64_t at[4]) {
    return ((at[0] * t->n[1] + at[1]) * t->n[2] + at[2]) * t->n[3] + at[3];
}

/* Fills the tensor with random old contents. The expected values start from the old contents if the run adds to them,
 * else from 0. */
static case_want want_make(const char *name, attn_tensor *t, bool all, bool add, uint64_t *rng) {
    int64_t n = want_count(t), at[4];
    case_want w = {name, t, calloc((size_t)n + 1, sizeof(double)), calloc((size_t)n + 1, sizeof(bool)), NULL};
    w.before = malloc(t->bytes);
    if (!w.value || !w.written || !w.before) abort();
    for (int64_t i = 0; i < n; i++) {
        want_index(t, i, at);
        attn_tensor_set(t, at, attn_real(rng, -2, 2));
        if (add) w.value[i] = attn_tensor_get(t, at);
        w.written[i] = all;
    }
    memcpy(w.before, t->memory, t->bytes);
    return w;
}

static void want_free(case_want *w) {
    free(w->value);
    free(w->written);
    free(w->before);
}

/* Adds the oracle's dense array of a slot to the expected values. */
static void want_add(const attn_case *c, case_want *w, fxa_slot slot, int64_t longest) {
    const attn_tensor *t = w->t;
    int64_t at[4];
    for (int64_t b = 0; b < c->x.b; b++)
        for (int64_t s = 0; s < longest; s++)
            for (int64_t h = 0; h < t->n[1]; h++)
                for (int64_t i = 0; i < t->n[3]; i++) {
                    if (!attn_case_at(c, slot, b, s, at)) continue;
                    at[1] = h, at[3] = i;
                    int64_t to = want_number(t, at);
                    w->written[to] = true;
                    w->value[to] += c->dense[slot][((b * t->n[1] + h) * longest + s) * t->n[3] + i];
                }
}

static bool want_is_near(fxa_dtype dtype, double got, double want, double tolerance) {
    if (want != want || got != got) return want != want && got != got;
    if (got == attn_round(dtype, want)) return true;
    return got >= attn_round(dtype, want - tolerance) && got <= attn_round(dtype, want + tolerance);
}

static bool want_check(attn_case *c, case_want *w) {
    attn_tensor *t = w->t;
    int64_t n = want_count(t), at[4];
    double largest = 1;
    size_t size = fxa_dtype_size(t->dtype);
    for (int64_t i = 0; i < n; i++)
        if (w->written[i] && fabs(w->value[i]) < INFINITY) largest = fmax(largest, fabs(w->value[i]));
    for (int64_t i = 0; i < n; i++) {
        if (!w->written[i]) continue;
        want_index(t, i, at);
        double got = attn_tensor_get(t, at);
        if (!want_is_near(t->dtype, got, w->value[i], ATTN_TOLERANCE * largest)) {
            snprintf(c->why, sizeof c->why, "%s[%lld,%lld,%lld,%lld] is %.17g, not %.17g (%s)", w->name,
                     (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3], got, w->value[i],
                     fxa_dtype_name(t->dtype));
            return false;
        }
        int64_t offset = (t->origin - t->memory) + (int64_t)size * (at[0] * t->stride[0] + at[1] * t->stride[1] +
                                                                    at[2] * t->stride[2] + at[3] * t->stride[3]);
        memcpy(w->before + offset, t->memory + offset, size);
    }
    if (memcmp(w->before, t->memory, t->bytes) == 0) return true;
    snprintf(c->why, sizeof c->why, "%s: memory outside its written elements has changed", w->name);
    return false;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* Computes the expected result of merging (o, lse) into old rows, by the formula of the merge. */
static void case_merge_old(attn_case *c, const case_want *o, const case_want *lse) {
    const oracle *x = &c->x;
    int64_t at[4], at_row[4];
    for (int64_t b = 0; b < x->b; b++)
        for (int64_t h = 0; h < x->hq; h++)
            for (int64_t s = 0; s < x->sq; s++) {
                if (!attn_case_at(c, FXA_SLOT_O, b, s, at)) continue;
                at[1] = h;
                memcpy(at_row, at, sizeof at);
                at_row[3] = 0;
                int64_t row = (b * x->hq + h) * x->sq + s;
                double old = lse->value[want_number(lse->t, at_row)], new = x->lse[row];
                double both = log(exp(old) + exp(new));
                for (at[3] = 0; at[3] < x->dv; at[3]++) {
                    double *value = &x->o[row * x->dv + at[3]], o_old = o->value[want_number(o->t, at)];
                    *value = exp(old - both) * o_old + exp(new - both) * *value;
                    o->value[want_number(o->t, at)] = 0;
                }
                x->lse[row] = both;
                lse->value[want_number(lse->t, at_row)] = 0;
            }
}

bool attn_case_check_forward(attn_case *c) {
    uint64_t rng = c->x.seed;
    bool merge = (c->data.problem.flags & FXA_ACCUMULATE_O) != 0, ok = false;
    oracle_forward(&c->x);
    case_want o = want_make("O", &c->data.t[FXA_SLOT_O], false, merge, &rng);
    case_want lse = want_make("LSE", &c->data.t[FXA_SLOT_LSE], false, merge, &rng);
    case_want max = want_make("MAX", &c->data.t[FXA_SLOT_ROW_MAX], false, false, &rng);
    if (merge) case_merge_old(c, &o, &lse);
    want_add(c, &o, FXA_SLOT_O, c->x.sq);
    want_add(c, &lse, FXA_SLOT_LSE, c->x.sq);
    want_add(c, &max, FXA_SLOT_ROW_MAX, c->x.sq);
    ok = attn_case_run(c, FXA_FORWARD) && want_check(c, &o) && want_check(c, &lse) && want_check(c, &max);
    want_free(&o), want_free(&lse), want_free(&max);
    return ok;
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* Stores the oracle's O and LSE, rounded to storage, and reads them back, so that library and oracle start backward
 * from the same values. */
static void case_store_forward(attn_case *c) {
    static const fxa_slot slots[] = {FXA_SLOT_O, FXA_SLOT_LSE};
    int64_t at[4];
    oracle_forward(&c->x);
    for (int i = 0; i < 2; i++) {
        attn_tensor *t = &c->data.t[slots[i]];
        double *dense = c->dense[slots[i]];
        for (int64_t b = 0; b < c->x.b; b++)
            for (int64_t s = 0; s < c->x.sq && attn_case_at(c, slots[i], b, s, at); s++)
                for (at[1] = 0; at[1] < t->n[1]; at[1]++)
                    for (at[3] = 0; at[3] < t->n[3]; at[3]++) {
                        double *value = &dense[((b * t->n[1] + at[1]) * c->x.sq + s) * t->n[3] + at[3]];
                        attn_tensor_set(t, at, *value);
                        *value = attn_tensor_get(t, at);
                    }
    }
}

static bool case_check_params(attn_case *c, const double *old) {
    for (int i = 0; i < c->twin->n_params; i++) {
        bool wanted = c->data.problem.param_grads >> i & 1,
             add = (c->data.backward_flags & FXA_ACCUMULATE_DPARAMS) != 0;
        double want = wanted ? c->x.dparam[i] + (add ? old[i] : 0) : old[i];
        if (want_is_near(FXA_F64, attn_get(&c->data.dparam, i), want,
                         ATTN_TOLERANCE * fmax(1, fabs(c->x.dparam[i])) * 10))
            continue;
        snprintf(c->why, sizeof c->why, "dparam %d is %.17g, not %.17g", i, attn_get(&c->data.dparam, i), want);
        return false;
    }
    return true;
}

static bool case_check_tensors(attn_case *c, case_want *want) {
    for (int i = 0; i < c->twin->n_tensors; i++) {
        int64_t n = want_count(want[i].t);
        for (int64_t j = 0; j < n && c->data.captures[i].grad; j++) want[i].value[j] += c->x.dtensor[i][j];
        if (!want_check(c, &want[i])) return false;
    }
    return true;
}

bool attn_case_check_backward(attn_case *c) {
    static const struct {
        fxa_slot slot;
        const char *name;
        uint32_t grad, acc;
    } outputs[] = {
        {FXA_SLOT_DQ, "dQ", FXA_GRAD_Q, FXA_ACCUMULATE_DQ},
        {FXA_SLOT_DK, "dK", FXA_GRAD_K, FXA_ACCUMULATE_DK},
        {FXA_SLOT_DV, "dV", FXA_GRAD_V, FXA_ACCUMULATE_DV},
        {FXA_SLOT_DSINKS, "dsink", FXA_GRAD_SINKS, FXA_ACCUMULATE_DSINKS},
    };
    uint64_t rng = c->x.seed + 1;
    uint32_t flags = c->data.backward_flags;
    case_want want[4], tensor[ORACLE_TENSORS];
    double old[ORACLE_PARAMS];
    case_store_forward(c);
    oracle_backward(&c->x);
    for (int i = 0; i < 4; i++) {
        bool wanted = (flags & outputs[i].grad) != 0, pool = (i == 1 || i == 2) && (c->features & ATTN_PAGED);
        want[i] = want_make(outputs[i].name, &c->data.t[outputs[i].slot], wanted && pool, flags & outputs[i].acc, &rng);
        if (wanted && i < 3) want_add(c, &want[i], outputs[i].slot, i == 0 ? c->x.sq : c->x.sk);
        for (int64_t h = 0; wanted && i == 3 && h < c->x.hq; h++)
            want[i].value[h] += c->x.dsink[h], want[i].written[h] = true;
    }
    for (int i = 0; i < c->twin->n_tensors; i++)
        tensor[i] =
            want_make("dtensor", &c->data.dtensor[i], c->data.captures[i].grad, flags & FXA_ACCUMULATE_DTENSORS, &rng);
    for (int i = 0; i < ORACLE_PARAMS; i++) attn_set(&c->data.dparam, i, old[i] = attn_real(&rng, -2, 2));
    bool ok = attn_case_run(c, FXA_BACKWARD);
    for (int i = 0; i < 4; i++) ok = ok && want_check(c, &want[i]), want_free(&want[i]);
    ok = ok && case_check_tensors(c, tensor) && case_check_params(c, old);
    for (int i = 0; i < c->twin->n_tensors; i++) want_free(&tensor[i]);
    return ok;
}

void attn_case_describe(const attn_case *c, char *out, size_t capacity) {
    const oracle *x = &c->x;
    snprintf(out, capacity,
             "%s b=%lld hq=%lld hkv=%lld sq=%lld sk=%lld d=%lld dv=%lld %s features 0x%x flags 0x%x|0x%x",
             c->twin->name, (long long)x->b, (long long)x->hq, (long long)x->hkv, (long long)x->sq, (long long)x->sk,
             (long long)x->d, (long long)x->dv, fxa_dtype_name(c->data.t[FXA_SLOT_Q].dtype), c->features,
             c->data.problem.flags, c->data.backward_flags);
}
