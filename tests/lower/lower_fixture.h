/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs with data for their declarations, and the values of all nodes at a pair, for comparison with
 * analyses.
 */
#ifndef FXA_TESTS_LOWER_FIXTURE_H
#define FXA_TESTS_LOWER_FIXTURE_H

#include "t.h"

#include "base/dtype.h"
#include "program/program.h"
#include "support/fixtures/gen.h"

enum { RIG_SIDE = 4, RIG_CELLS = 4 * 4 * 4 * 4 * 4, RIG_TENSORS = 16, RIG_PARAMS = FXA_MAX_PARAMS };

typedef struct rig {
    fxa_context *ctx;
    fxa__host *host;
    t_rng rng;
    double params[RIG_PARAMS];
    fxa_view views[RIG_TENSORS];
    double cells[RIG_TENSORS][RIG_CELLS]; /* capacity for any dtype */
} rig;

__attribute__((unused)) static bool rig_start(rig *r) {
    fxa_error err;
    r->rng.state = t_seed();
    if (fxa_context_create(NULL, &r->ctx, &err) != FXA_OK) return false;
    r->host = fxa__context_host(r->ctx);
    return true;
}

__attribute__((unused)) static void rig_end(rig *r) { fxa_context_destroy(r->ctx); }

#define RIG_TEST(name) T_WITH(name, rig, rig_start(r), rig_end(r)) /* test with a started rig r */

__attribute__((unused)) static fxa_program *rig_parse(rig *r, const char *text) {
    fxa_program *p = NULL;
    fxa_error err;
    if (fxa_program_parse(r->ctx, text, SIZE_MAX, &p, &err) != FXA_OK) T_FAIL("%s: %s\n", text, err.text);
    return p;
}

__attribute__((unused)) static fxa_program *rig_program(rig *r, unsigned flags) {
    uint8_t tape[200];
    for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)t_next(&r->rng);
    return gen_program(r->ctx, tape, (size_t)t_int(&r->rng, 8, sizeof tape), flags);
}

/* Shows the program after a failure. */
__attribute__((unused)) static void rig_show(const fxa_program *p) {
    char text[8192];
    size_t n;
    fxa_error err;
    if (fxa_program_print(p, text, sizeof text, &n, &err) == FXA_OK) printf("%s\n", text);
}

/* Stores the low bits of x as element i of an int or bool dtype. */
static void rig_store_int(void *cells, fxa_dtype dtype, int64_t i, int64_t x) {
    switch (fxa_dtype_size(dtype)) {
    case 8: ((int64_t *)cells)[i] = x; break;
    case 4: ((int32_t *)cells)[i] = (int32_t)x; break;
    case 2: ((int16_t *)cells)[i] = (int16_t)x; break;
    default: ((int8_t *)cells)[i] = (int8_t)x; break;
    }
}

__attribute__((unused)) static void rig_fill_tensor(rig *r, int32_t t) {
    uint32_t dtype = (uint32_t)r->views[t].dtype;
    for (int64_t i = 0; i < RIG_CELLS; i++) {
        if (fxa__dtype_is_float((fxa_dtype)dtype)) {
            fxa__store_f64(r->cells[t], dtype, i, t_real(&r->rng, -2, 2));
            continue;
        }
        int64_t x = dtype == FXA_B8 ? t_int(&r->rng, 0, 1) : t_int(&r->rng, -5, 5);
        if (dtype == FXA_I64 && t_int(&r->rng, 0, 1)) x = x % 2 + t_int(&r->rng, -1, 1) * (INT64_C(1) << 32);
        rig_store_int(r->cells[t], (fxa_dtype)dtype, i, x);
    }
}

__attribute__((unused)) static void rig_fill_param(rig *r, const fxa_program *p, int32_t i) {
    r->params[i] = p->params[i].type == FXA_INT ? (double)t_int(&r->rng, -9, 9) : t_real(&r->rng, -2, 2);
}

/* Fills everything that p declares with new random data. */
__attribute__((unused)) static void rig_fill(rig *r, const fxa_program *p) {
    for (int32_t i = 0; i < p->n_params; i++) rig_fill_param(r, p, i);
    for (int32_t t = 0; t < p->n_tensors; t++) {
        fxa_view *v = &r->views[t];
        *v = (fxa_view){.data = r->cells[t], .dtype = (fxa_dtype)p->tensors[t].dtype, .rank = p->tensors[t].rank};
        for (int d = v->rank - 1, stride = 1; d >= 0; d--, stride *= RIG_SIDE) {
            v->size[d] = RIG_SIDE;
            v->stride[d] = stride;
        }
        rig_fill_tensor(r, t);
    }
}

/* Returns a random score, sometimes a special value. */
__attribute__((unused)) static double rig_score(rig *r) {
    static const double odd[] = {0, -0.0, INFINITY, -INFINITY, NAN, 1e300, -1};
    return t_int(&r->rng, 0, 5) ? t_real(&r->rng, -4, 4) : odd[t_int(&r->rng, 0, 6)];
}

/* Returns an environment. wild: some coordinates anywhere in the int range; else small non-negative numbers. */
__attribute__((unused)) static fxa__env rig_env(rig *r, bool wild) {
    fxa__env env = {.score = rig_score(r), .dscore = rig_score(r), .params = r->params, .tensors = r->views};
    for (int i = FXA_INPUT_B; i < FXA_INPUT_COUNT; i++) {
        env.coord[i] = (int32_t)t_int(&r->rng, 0, 9);
        if (wild && t_int(&r->rng, 0, 5) == 0) env.coord[i] = (int32_t)t_int(&r->rng, INT32_MIN, INT32_MAX);
    }
    return env;
}

/* Returns the values of all nodes; the caller frees them. */
__attribute__((unused)) static fxa__val *rig_eval(const fxa_program *p, const fxa__env *env) {
    fxa__val *vals = calloc((size_t)p->n_nodes, sizeof *vals);
    if (vals) fxa__program_eval(p, env, vals);
    return vals;
}

/* Returns true for equal bits, ignoring a NaN's payload. */
__attribute__((unused)) static bool rig_same(uint32_t type, fxa__val x, fxa__val y) {
    if (type != FXA_FLOAT) return x.i == y.i;
    return (x.f != x.f && y.f != y.f) || memcmp(&x.f, &y.f, sizeof x.f) == 0;
}

#endif
