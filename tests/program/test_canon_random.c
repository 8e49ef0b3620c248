/* SPDX-License-Identifier: Apache-2.0
 *
 * Canonical form and hash of random programs: two different builds give the same program, whose values are correct.
 */
#include "support/oracle/op_meaning.h"
#include "support/fixtures/own_context.h"

/* ---- Random programs, built in two ways -------------------------------------------------------------------------- */

/* A recipe: steps in dependency order. Leaves are inputs, params and constants; other steps are operations and loads.
 * */
enum { STEP_INPUT, STEP_PARAM, STEP_FLOAT, STEP_INT, STEP_BOOL, STEP_LOAD, STEP_OP, MAX_STEPS = 60, POINTS = 4 };
typedef struct canon_step {
    int kind, which; /* index of the input, param, tensor or operation */
    double number;
    int arg[3];
    meaning at[POINTS]; /* its value at each point */
} canon_step;
typedef struct canon_recipe {
    canon_step step[MAX_STEPS];
    int n, score, mask;
} canon_recipe;

static const char *const canon_params[4] = {"alpha", "beta", "m", "n"}; /* two floats, two ints */
static const double canon_f64[5] = {0.5, -0.0, INFINITY, -3, NAN};
static const int32_t canon_i32[4] = {3, -1, INT32_MIN, 100};
static const uint8_t canon_b8[3] = {1, 0, 1};
static const fxa_view canon_views[3] = {{canon_b8, FXA_B8, 1, {3}, {1}}, /* sorted by name: flag, real, whole */
                                        {canon_f64, FXA_F64, 1, {5}, {1}},
                                        {canon_i32, FXA_I32, 1, {4}, {1}}};
static const char *const canon_tensors[3] = {"flag", "real", "whole"};
static const double canon_in[POINTS][FXA_INPUT_COUNT] = {{0.25, 0, 1, 2, 3, 8, 9, 0},
                                                         {NAN, 1, 0, 5, 5, 6, 6, 0},
                                                         {-0.0, 0, 3, 0, 7, 1, 8, 0},
                                                         {INFINITY, 2, 2, 1000000, 1, 2000000, 3, 0}};
static const double canon_values[POINTS][4] = {
    {1.5, -0.0, 3, -2}, {INFINITY, 2, 0, 1}, {0.0, NAN, -1, 33}, {-1e300, 0.1, INT32_MAX, INT32_MIN}};

static meaning canon_load_meaning(int tensor, meaning index) {
    const int64_t size = canon_views[tensor].size[0], i = index.i < 0 ? index.i + size : index.i;
    bool in = i >= 0 && i < size;
    if (tensor == 0) return meaning_bool(in && canon_b8[i]);
    return tensor == 1 ? meaning_float(in ? canon_f64[i] : 0) : meaning_int(in ? canon_i32[i] : 0);
}

/* Computes the values of a step; returns false if the operation does not accept these types. */
static bool canon_step_values(canon_recipe *r, canon_step *s) {
    for (int p = 0; p < POINTS; p++) {
        meaning x[3];
        for (int i = 0; i < 3; i++) x[i] = r->step[s->arg[i]].at[p];
        switch (s->kind) {
        case STEP_INPUT:
            s->at[p] = s->which == FXA_INPUT_SCORE ? meaning_float(canon_in[p][0])
                                                   : meaning_int((int64_t)canon_in[p][s->which]);
            break;
        case STEP_PARAM:
            s->at[p] = s->which < 2 ? meaning_float(canon_values[p][s->which])
                                    : meaning_int((int64_t)canon_values[p][s->which]);
            break;
        case STEP_FLOAT: s->at[p] = meaning_float(s->number); break;
        case STEP_INT: s->at[p] = meaning_int((int64_t)s->number); break;
        case STEP_BOOL: s->at[p] = meaning_bool(s->number != 0); break;
        case STEP_LOAD:
            if (x[0].type == FXA_FLOAT) return false;
            s->at[p] = canon_load_meaning(s->which, x[0]);
            break;
        default: s->at[p] = meaning_op((fxa_op)s->which, x);
        }
        if (!s->at[p].type) return false;
    }
    return true;
}

static canon_step canon_random_step(t_rng *rng, int n) {
    static const double special[] = {0.0, -0.0, 1, -1, 0.5, 2, 3.7, INFINITY, -INFINITY, NAN, 1e10};
    static const double ints[] = {0, 1, -1, 2, 5, 31, 32, -7, INT32_MAX, INT32_MIN};
    canon_step s = {.kind = (int)t_int(rng, 0, 13)};
    for (int i = 0; i < 3; i++) s.arg[i] = n ? (int)t_int(rng, n > 12 ? n - 12 : 0, n - 1) : 0;
    if (s.kind > STEP_OP || n < 3) s.kind = n < 3 ? STEP_INPUT : STEP_OP;
    switch (s.kind) {
    case STEP_INPUT: s.which = (int)t_int(rng, FXA_INPUT_SCORE, FXA_INPUT_K_LEN); break;
    case STEP_PARAM: s.which = (int)t_int(rng, 0, 3); break;
    case STEP_FLOAT: s.number = special[t_int(rng, 0, 10)]; break;
    case STEP_INT: s.number = ints[t_int(rng, 0, 9)]; break;
    case STEP_BOOL: s.number = (double)t_int(rng, 0, 1); break;
    case STEP_LOAD: s.which = (int)t_int(rng, 0, 2); break;
    default:
        do s.which = (int)t_int(rng, 0, FXA_OP_COUNT - 1);
        while (!meaning_arity((fxa_op)s.which));
        if (t_int(rng, 0, 7) == 0) s.arg[1] = s.arg[0];
    }
    return s;
}

static void canon_random_recipe(t_rng *rng, canon_recipe *r) {
    int size = (int)t_int(rng, 4, MAX_STEPS);
    *r = (canon_recipe){.score = -1, .mask = -1};
    for (int tries = 0; r->n < size && tries < 20 * MAX_STEPS; tries++) {
        canon_step s = canon_random_step(rng, r->n);
        if (!canon_step_values(r, &s)) continue;
        if (s.at[0].type == FXA_BOOL)
            r->mask = r->n;
        else
            r->score = r->n;
        r->step[r->n++] = s;
    }
}

static fxa_op canon_mirror(fxa_op op) {
    return op == FXA_OP_LT ? FXA_OP_GT : op == FXA_OP_LE ? FXA_OP_GE : op == FXA_OP_GT ? FXA_OP_LT : FXA_OP_LE;
}

/* Builds one step; with `swap`, commutative operands and comparisons are reversed. */
static fxa_value canon_build_step(fxa_builder *b, const canon_step *s, const fxa_value *value, bool swap) {
    fxa_value x[3];
    int n = s->kind == STEP_OP ? meaning_arity((fxa_op)s->which) : 0;
    for (int i = 0; i < n; i++) x[i] = value[s->arg[i]];
    switch (s->kind) {
    case STEP_INPUT: return fxa_builder_input(b, (fxa_input)s->which);
    case STEP_PARAM: return fxa_builder_param(b, canon_params[s->which], s->which < 2 ? FXA_FLOAT : FXA_INT);
    case STEP_FLOAT: return fxa_builder_float(b, s->number);
    case STEP_INT: return fxa_builder_int(b, (int32_t)s->number);
    case STEP_BOOL: return fxa_builder_bool(b, s->number != 0);
    case STEP_LOAD: {
        int32_t t = fxa_builder_tensor(b, canon_tensors[s->which], canon_views[s->which].dtype, 1);
        return fxa_builder_load(b, t, &value[s->arg[0]], 1);
    }
    default: break;
    }
    fxa_op op = (fxa_op)s->which;
    bool order = op >= FXA_OP_LT && op <= FXA_OP_GE;
    if (swap && (order || (fxa__op_info_get(op)->flags & FXA__OP_COMM)))
        return fxa_builder_op2(b, order ? canon_mirror(op) : op, x[1], x[0]);
    return fxa_builder_op(b, op, x, (size_t)n);
}

/* Builds the recipe in its own order, or, given rng, in a random dependency order with operands swapped. */
static fxa_program *canon_build(const canon_recipe *r, t_rng *rng) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value value[MAX_STEPS];
    for (int i = 0; i < 4; i++) {
        int at = rng ? 3 - i : i;
        (void)fxa_builder_param(b, canon_params[at], at < 2 ? FXA_FLOAT : FXA_INT);
    }
    for (int i = 0; i < 3; i++) {
        int at = rng ? 2 - i : i;
        (void)fxa_builder_tensor(b, canon_tensors[at], canon_views[at].dtype, 1);
    }
    for (int i = 0; i < r->n; i++) value[i] = -1;
    for (int done = 0; done < r->n;) {
        int i = rng ? (int)t_int(rng, 0, r->n - 1) : done;
        const canon_step *s = &r->step[i];
        int needs = s->kind == STEP_OP ? meaning_arity((fxa_op)s->which) : s->kind == STEP_LOAD;
        bool ready = value[i] < 0;
        for (int a = 0; a < needs; a++) ready = ready && value[s->arg[a]] >= 0;
        if (!ready) continue;
        value[i] = canon_build_step(b, s, value, rng && t_int(rng, 0, 1));
        done++;
        if (value[i] < 0) break; /* finish reports the error */
    }
    if (r->score >= 0) fxa_builder_set_score(b, value[r->score]);
    if (r->mask >= 0) fxa_builder_set_mask(b, value[r->mask]);
    return own_finish(b);
}

/* Returns false if zeros tie in min, max or clamp: the sign of the result is unspecified, and so is 1 / zero. */
static bool canon_signs_fixed(const canon_recipe *r) {
    for (int i = 0; i < r->n; i++) {
        int op = r->step[i].kind == STEP_OP ? r->step[i].which : 0;
        if (op == FXA_OP_MIN || op == FXA_OP_MAX || op == FXA_OP_CLAMP) return false;
    }
    return true;
}

static void canon_check_meaning(const canon_recipe *r, const fxa_program *p) {
    for (int at = 0; at < POINTS; at++) {
        double got = 0;
        int mask = 0;
        fxa_error err;
        T_OK(fxa_program_eval(p, canon_in[at], canon_values[at], canon_views, &got, &mask, &err));
        meaning score = r->score >= 0 ? r->step[r->score].at[at] : meaning_float(canon_in[at][0]);
        double want = meaning_number(score);
        T_SAME(got, want);
        T_INT(mask, r->mask >= 0 ? r->step[r->mask].at[at].i : 1);
    }
}

static fxa_program *canon_rebuild(const fxa_program *p) {
    fxa_builder *b = own_builder((fxa_program_kind)p->kind);
    fxa_value *map = calloc((size_t)p->n_nodes, sizeof *map);
    T_CHECK(fxa__builder_import(b, p, map));
    fxa_builder_set_score(b, map[p->outputs[0].value]);
    fxa_builder_set_mask(b, map[p->outputs[1].value]);
    free(map);
    return own_finish(b);
}

TEST(random_programs_mean_what_was_built) {
    t_rng rng = {t_seed()};
    int checked = 0;
    for (int round = 0; round < t_scaled(3000); round++) {
        canon_recipe r;
        canon_random_recipe(&rng, &r);
        t_program *p = canon_build(&r, NULL), *other = canon_build(&r, &rng), *again = p ? canon_rebuild(p) : NULL;
        T_REQUIRE(p && other && again);
        T_CHECK(own_equal(p, other));
        T_CHECK(own_equal(p, again));
        own_check_form(p);
        if (canon_signs_fixed(&r)) {
            canon_check_meaning(&r, p);
            checked++;
        }
    }
    T_CHECK(checked > t_scaled(3000) / 8);
}

T_MAIN
