/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares an engine with the reference (conf_case.h): every element of every output within its bound, every tensor in
 * root mean square, and every byte between elements with its old contents. docs/numerics.md derives the bounds.
 */
#include "conf_case.h"

#include "base/dtype.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONF_RMS_UNITS 33.5 /* 2e-6 in f32 */
#define CONF_ELEMENT_UNITS 16
#define CONF_DEVIATIONS 7 /* standard deviations of 16-bit rounding that are allowed: exceeded once in 10^11 */
#define CONF_SAFETY 2     /* factor on propagated errors, which are of first order */

static bool conf_has_equal_terms(const conf_case *c) {
    for (int i = 0; i < CONF_SLOTS; i++)
        if (c->base.data.t[i].style == ATTN_EXPANDED) return true;
    return false;
}

/* Returns the error of a sum of n terms in units: twice a random walk; n for equal terms. */
static double conf_sum_units(const conf_case *c) {
    const oracle *x = &c->base.x;
    double rows = (double)(x->sq * (x->hq / x->hkv) * (c->base.features & ATTN_PAGED ? x->b : 1));
    double n = fmax((double)x->sk, rows);
    return conf_has_equal_terms(c) ? n : 2 * sqrt(n);
}

/* Returns the bound of the loss by small values in f16: values below 2^-14 round to multiples of 2^-24 before a
 * product, in random directions for each pair, times the largest factor. */
static double conf_least_error(const conf_case *c, conf_buffer *t) {
    const oracle *x = &c->base.x;
    const conf_buffer *by = t == &c->slot[FXA_SLOT_O]    ? &c->slot[FXA_SLOT_V]
                            : t == &c->slot[FXA_SLOT_DQ] ? &c->slot[FXA_SLOT_K]
                            : t == &c->slot[FXA_SLOT_DK] ? &c->slot[FXA_SLOT_Q]
                            : t == &c->slot[FXA_SLOT_DV] ? &c->slot[FXA_SLOT_DO]
                                                         : NULL;
    if (c->product_unit != 0x1p-11 || !by) return 0;
    if (t->least > 0) return t->least; /* computed once, because every element needs it */
    double largest = 0, pairs = (double)(x->sk > x->sq ? x->sk : x->sq) * (double)(x->hq / x->hkv);
    int64_t n = conf_places(by);
    for (int64_t i = 0; i < n; i++) {
        double value = fabs(fxa__load_f64(by->memory, by->dtype, i));
        if (isfinite(value)) largest = fmax(largest, value);
    }
    t->least = 4 * sqrt(pairs) * 0x1p-25 * largest;
    return t->least;
}

/* Returns the bound of the error by P and dS, each rounded to 16 bits: a rounding error is uniform within product_unit
 * of its term, so its variance is a third of the square. The bound is at most the sum of all rounding errors. */
static double conf_product_error(const conf_case *c, conf_buffer *t, int64_t place, double deviations) {
    double all = t->size[place], some = deviations * sqrt(t->noise[place] / 3);
    bool equal = conf_has_equal_terms(c) || (c->base.features & ATTN_PAGED); /* with shared pages some keys are equal */
    bool twice = c->rounds_twice && t == &c->slot[FXA_SLOT_DK];
    return (twice ? 2 : 1) * c->product_unit * (equal ? all : fmin(all, some)) +
           (twice ? 1 + c->steepest : 1) * conf_least_error(c, t);
}

/* Returns the maximum number of parts that are added to dK and dV of a key: one for each query head that reads the key,
 * times the uses of its page. */
static double conf_parts(const conf_case *c) {
    const oracle *x = &c->base.x;
    int64_t page = c->base.features & ATTN_PAGED ? c->base.data.problem.page_size : 0;
    return (double)(x->hq / x->hkv) * (page ? (double)(x->b * ((x->sk + page - 1) / page)) : 1);
}

/* Returns the bound of 16-bit rounding of the parts of a sum: dK and dV of single query heads, or the gradients of
 * pairs in the gradient of a tensor. The parts are at most the sum of their magnitudes; in f16 a part below 2^-14 is
 * off by 2^-25. */
static double conf_head_error(const conf_case *c, const conf_buffer *t, int64_t place) {
    bool summed = t == &c->slot[FXA_SLOT_DK] || t == &c->slot[FXA_SLOT_DV];
    bool tensor = t >= c->dtensor && t < c->dtensor + CONF_TENSORS;
    double least = summed && c->head_unit == 0x1p-11 ? conf_parts(c) * 0x1p-25 : 0;
    return (summed ? c->head_unit : tensor ? c->pair_unit : 0) * t->size[place] + least;
}

static double conf_half_ulp(fxa_dtype dtype, double x) {
    static const double unit[FXA_E5M2 + 1] = {0, 0x1p-53, 0x1p-24, 0x1p-11, 0x1p-8, [FXA_E4M3] = 0x1p-4, 0x1p-3};
    static const double least[FXA_E5M2 + 1] = {0, 0, 0x1p-126, 0x1p-25, 0x1p-126, [FXA_E4M3] = 0x1p-10, 0x1p-17};
    static const double largest[FXA_E5M2 + 1] = {[FXA_E4M3] = 448, 57344};
    double beyond = largest[dtype] > 0 ? fabs(x) - largest[dtype] : 0; /* excess over the dtype's largest number */
    return fmax(fmax(unit[dtype] * fabs(x), least[dtype]), beyond);
}

/* Returns the bound of rounding a result before it is added: a unit of the result minus the old contents. */
static double conf_added_error(const conf_case *c, const conf_buffer *t, int64_t place, double want) {
    if (!c->rounds_sums) return 0;
    double old = fxa__load_f64(t->before, t->dtype, place);
    return isfinite(old) && isfinite(want) ? conf_half_ulp(t->dtype, fabs(want) + fabs(old)) : 0;
}

/* Returns the error relative to the tolerance; at most 1 if `got` is a value within the tolerance, rounded to dtype. */
static double conf_ratio(fxa_dtype dtype, double got, double want, double tolerance) {
    if (want != want || got != got) return want != want && got != got ? 0 : INFINITY;
    if (got == want || got == attn_round(dtype, want)) return 0;
    /* an infinite tolerance does not allow an infinite difference of infinities */
    if (isnan(tolerance) || (isinf(want) && isinf(tolerance))) return INFINITY;
    if (got < attn_round(dtype, want - tolerance) || got > attn_round(dtype, want + tolerance)) return INFINITY;
    double beyond = fabs(got - want) - conf_half_ulp(dtype, want);
    return beyond > 0 && tolerance > 0 ? fmin(1, beyond / tolerance) : 0;
}

static bool conf_fail_element(conf_case *c, const conf_buffer *t, int64_t place, double got, double want,
                              double allowed) {
    int64_t at[FXA_MAX_RANK] = {0};
    do {
        if (conf_place(t, at) == place) break;
    } while (conf_next(t, at));
    snprintf(c->why, sizeof c->why, "%s[%lld,%lld,%lld,%lld,%lld] is %.9g, not %.9g (off by %.3g, allowed %.3g; %s)",
             t->name, (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3], (long long)at[4], got,
             want, fabs(got - want), allowed, fxa_dtype_name(t->dtype));
    return false;
}

/* Returns the expected value. If keys with non-finite V may have the weight 0, there are two, with and without these
 * keys; returns the one nearer to `got`. */
static double conf_wanted(const conf_buffer *t, int64_t place, double got) {
    double want = fxa__load_f64(t->want_memory, t->want_dtype, place);
    if (isnan(t->spared[place])) return want;
    return isfinite(got) ? t->spared[place] : got;
}

static bool conf_compare_buffer(conf_case *c, conf_buffer *t) {
    fxa_dtype main = c->slot[FXA_SLOT_Q].dtype;
    size_t size = fxa_dtype_size(t->dtype), want_size = fxa_dtype_size(t->want_dtype);
    double units = CONF_ELEMENT_UNITS + conf_sum_units(c), squares = 0, allowed_squares = 0;
    double floor = main != FXA_F64 ? 1e-34 : t->dtype == FXA_F64 ? 1e-304 : 0x1p-125; /* bound of underflow */
    int64_t n = conf_places(t), count = 0;
    for (int64_t i = 0; i < n; i++) {
        double got = fxa__load_f64(t->memory, t->dtype, i), want = conf_wanted(t, i, got);
        bool same =
            memcmp(t->want_memory + (size_t)i * want_size, t->want_before + (size_t)i * want_size, want_size) == 0;
        if (same && t->size[i] == 0) {
            if (memcmp(t->memory + (size_t)i * size, t->before + (size_t)i * size, size) == 0) continue;
            if (got == want) continue; /* 0 was added to -0 */
            conf_fail_element(c, t, i, got, want, 0);
            snprintf(c->why + strlen(c->why), sizeof c->why - strlen(c->why), ": not to be written");
            return false;
        }
        /* old contents are a term of the sum too */
        double magnitude = t->size[i] > 0 ? t->size[i] + fabs(want) : 0;
        double tolerance = CONF_SAFETY * t->error[i] + c->unit * units * magnitude + floor;
        tolerance += conf_product_error(c, t, i, CONF_DEVIATIONS) + conf_head_error(c, t, i);
        tolerance += conf_added_error(c, t, i, want);
        double ratio = conf_ratio(t->dtype, got, want, tolerance);
        if (!(ratio <= 1)) return conf_fail_element(c, t, i, got, want, tolerance);
        c->tally->element[main] = fmax(c->tally->element[main], ratio);
        c->tally->elements++;
        if (!(fabs(want) < INFINITY) || !(fabs(got) < INFINITY)) continue;
        double allowed = t->error[i] + c->unit * CONF_RMS_UNITS * magnitude + conf_half_ulp(t->dtype, want) + floor;
        allowed += conf_product_error(c, t, i, 2) + conf_head_error(c, t, i) + conf_added_error(c, t, i, want);
        squares += (got - want) * (got - want), allowed_squares += allowed * allowed, count++;
    }
    if (count == 0 || squares == 0) return true;
    double ratio = sqrt(squares / allowed_squares);
    /* counted only if rounding to a narrower dtype does not hide the engine's own error */
    if (fxa_dtype_size(t->dtype) >= (main == FXA_F64 ? 8 : 4)) c->tally->rms[main] = fmax(c->tally->rms[main], ratio);
    if (ratio <= 1) return true;
    snprintf(c->why, sizeof c->why, "%s: off by %.3g in the root mean square, %.3g is allowed", t->name,
             sqrt(squares / (double)count), sqrt(allowed_squares / (double)count));
    return false;
}

static bool conf_compare_params(conf_case *c) {
    double units = CONF_ELEMENT_UNITS + conf_sum_units(c);
    for (size_t i = 0; i < c->n_params; i++) {
        double got = c->dparams[i], want = c->want_dparams[i];
        double size = c->size_dparams[i] > 0 ? c->size_dparams[i] + fabs(want) : 0;
        double allowed = CONF_SAFETY * c->error_dparams[i] + c->unit * units * size;
        if (conf_ratio(FXA_F64, got, want, allowed) <= 1) continue;
        snprintf(c->why, sizeof c->why, "dparam %zu is %.17g, not %.17g (off by %.3g, allowed %.3g)", i, got, want,
                 fabs(got - want), allowed);
        return false;
    }
    return true;
}

bool conf_compare(conf_case *c, fxa_pass pass) {
    conf_buffer *t;
    for (int i = 0; (t = conf_output(c, pass, i)); i++)
        if (!conf_compare_buffer(c, t)) return false;
    return pass == FXA_FORWARD || conf_compare_params(c);
}

/* Reads from the description of the plan which products and sums its engine rounds to 16 bits. */
static void conf_find_units(conf_case *c, const char *engine, fxa_pass pass) {
    conf_call x;
    fxa_plan *plan = NULL;
    c->product_unit = c->head_unit = c->pair_unit = 0, c->rounds_sums = c->rounds_twice = false, c->function = NULL;
    c->least_weight = c->least_mark = 0;
    c->detail[0] = 0;
    conf_call_make(c, engine, pass, false, &x);
    if (fxa_plan_create(c->base.ctx, &x.p, &plan, NULL) != FXA_OK) return;
    const char *detail = fxa_plan_description(plan);
    snprintf(c->detail, sizeof c->detail, "%s", detail);
    double unit = strstr(detail, "bf16") || strstr(detail, "amx") ? 0x1p-8 : strstr(detail, "f16") ? 0x1p-11 : 0;
    c->product_unit = unit;
    c->head_unit = strstr(detail, "heads rounded") ? unit : 0;
    c->pair_unit = strstr(detail, "pairs rounded") ? unit : 0;
    c->rounds_sums = strstr(detail, "rounded before added") != NULL;
    c->rounds_twice = strstr(detail, "dK rounded twice") != NULL;
    c->least_weight = strncmp(detail, "kernels ", 8) == 0 ? 0x1p-102 : 0; /* cuda engine */
    c->least_mark = c->least_weight > 0 && unit == 0x1p-11 ? 0x1p-40 : c->least_weight;
    c->function = strstr(detail, "cuDNN") ? conf_cudnn_function : NULL;
    bool bends = unit > 0 && strstr(detail, "kernels sm90") && !strstr(detail, "fast functions");
    if (bends && conf_is_cuda_cap(c->program, c->params)) c->function = conf_cuda_cap;
    fxa_plan_destroy(plan);
}

/* Runs the engine and checks that its results are within their bounds. */
static bool conf_judge(conf_case *c, const char *engine, fxa_pass pass) {
    if (!conf_run(c, engine, pass)) return false;
    if (c->ran && !c->refused) c->ran(c, pass);
    c->unsure = false;
    if (!c->refused && !(pass == FXA_FORWARD ? conf_bound_forward(c) : conf_bound_backward(c))) {
        snprintf(c->why, sizeof c->why, "the bound cannot be computed");
        return false;
    }
    c->tally->cases++;
    c->tally->by_dtype[c->slot[FXA_SLOT_Q].dtype]++;
    c->tally->refused += c->refused, c->tally->unsure += !c->refused && c->unsure;
    return c->refused || c->unsure || conf_compare(c, pass);
}

static bool conf_check(conf_case *c, const char *engine, fxa_pass pass) {
    conf_fill_outputs(c, pass);
    conf_find_units(c, engine, pass);
    return conf_reference(c, pass) && conf_judge(c, engine, pass);
}

bool conf_check_forward(conf_case *c, const char *engine) {
    bool ok = conf_check(c, engine, FXA_FORWARD);
    conf_keep(c);
    return ok;
}

bool conf_check_backward(conf_case *c, const char *engine) { return conf_check(c, engine, FXA_BACKWARD); }

bool conf_check_also(conf_case *c, const char *engine, fxa_pass pass) {
    conf_restore_outputs(c, pass);
    conf_clear_bounds(c, pass);
    conf_find_units(c, engine, pass);
    bool ok = conf_judge(c, engine, pass);
    if (pass == FXA_FORWARD) conf_keep(c);
    return ok;
}
