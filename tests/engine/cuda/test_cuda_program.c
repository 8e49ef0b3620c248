/* SPDX-License-Identifier: Apache-2.0
 *
 * Meaning of the generated program.cuh: compiled as C++ for the host, with the CUDA functions that it calls defined
 * there, the text gives the evaluator's new score, derivative, mask and gradients within the running error of f32,
 * for listed and random programs, and classifies no tile wrongly as empty or full. Skipped by name without a C++
 * compiler.
 */
#include "cuda_pass_fixture.h"
#include "cuda_text_fixture.h"
#include "exact_fixture.h"

#include "engine/cuda/cuda.h"
#include "lower/interval.h"
#include "program/eval_error.h"

enum { MEANT_RANDOM = 60, MEANT_MOST = 256, MEANT_ROUNDS = 12, MEANT_TILES = 12, MEANT_SIDE = 4 };

/* Programs of every kind, each with code that others do not have. */
static const char *const meant_listed[] = {
    "score = score",
    "mask = k <= q + k_len - q_len",
    "param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q",
    "tensor slope : f32[1]\nscore = score + slope[h] * float(k - q)\nmask = k <= q",
    "param w : int\nmask = k <= q && q - k < w",
    "param w : int\nmask = k > q - w && k <= q + w",
    "param w : int\nmask = k + w > q && q * 3 - k != w",
    "param w : int\nscore = score + float(q + w) * 0.5\nmask = q - w < k + h || w + k < w - q",
    "tensor doc : i32[2]\nmask = doc[b, q] == doc[b, k] && k <= q",
    "tensor doc : i32[2]\nmask = doc[b, k] < doc[0, k] + 3",
    "tensor ids : i64[1]\nmask = ids[q] == ids[k]",
    "tensor first : i32[2]\ntensor end : i32[2]\nmask = k >= first[b, q] && k < end[b, q]",
    "tensor t : i16[1]\ntensor u : i64[2]\nmask = t[q >> 1] <= t[k >> 1] && (t[k] != 0 || u[h, q - 1] == u[1, q])",
    "tensor ids : i64[2]\nscore = score + float(ids[b, k])\nmask = ids[b, q] != ids[b, k] && k <= q",
    "tensor ids : i64[1]\ntensor u : u8[2]\nscore = score + (ids[q] == ids[k] ? 1.0 : 0.0)\nmask = u[b, q] <= u[b, k]",
    "tensor b8 : bool[2]\ntensor t : bf16[2]\nscore = score + t[h, k]\nmask = b8[b, q]",
    "tensor t : f32[2]\nscore = score + t[h, clamp(q - k, -3, 3) + 3]",
    "tensor bias : f16[4]\nscore = score + bias[b, h, q, k]",
    "mask = abs(q - k) < 64 * (h + 1)",
    "tensor t : f32[2]\nscore = score + t[h, k]\nmask = k <= q",
    "tensor t : f32[2]\nscore = score + t[h, k % 4]",
    "tensor w : f32[2]\nscore = w[h, 0] * score + w[h, 1] * float(k % 2)",
    "tensor t : f32[2]\nscore = score + t[h, min(abs(q - k) >> 1, 3)]",
    "param temperature : float\nscore = score / temperature",
    "param a : float\nparam c : float\nscore = a * score / c + float(q - k) * a / c",
    "tensor g : f32[1]\nscore = score * g[q] + g[k] * g[q - k]",
    "score = score < 0.0 ? 0.1 * score : score\nmask = (q ^ k) & 1 == 0",
    "score = 30.0 * tanh(score / 30.0) + 1.5",
    "param o : int\ntensor t : f32[2]\nscore = score + t[h, q - k + o] + t[h + o, 0]",
    "mask = score > 0.25",
    "score = score ** 2.0 - 0.5",
    "score = 0.1 * score ** 3.0 + (score + 1.0) ** 2.0",
    "tensor t : f32[1]\nscore = tanh(score) * t[h]\nmask = k <= q && (score > t[k] && q - k < 3) && abs(score) < 2.0",
};
enum { MEANT_LISTED = sizeof meant_listed / sizeof *meant_listed, MEANT_WAYS = 5 };

typedef struct meant_case {
    fxa_program *p, *d, *own; /* own: user-written backward program; often NULL */
    bool words;               /* true: sizes fit packed operands; false: any sizes and strides */
    bool scalars;
    fxa__cuda_program cuda;
} meant_case;

static meant_case meant_cases[MEANT_MOST];

static fxa_program *meant_own(rig *r, int i) {
    static const char *const texts[] = {"dscore = tanh(dscore) * score * score",
                                        "dscore = dscore * exp(-0.1 * abs(q - k))",
                                        "dscore = clamp(dscore, -0.5, 0.5)"};
    fxa_text text = {.data = texts[i % 3], .size = strlen(texts[i % 3])};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_program *p = NULL;
    fxa_error err;
    config.kind = FXA_PROGRAM_BPROP, config.texts = &text, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(r->ctx, &config, &p, &err));
    return p;
}

static bool meant_make(rig *r, int i, meant_case *c) {
    fxa_program *p = i < MEANT_WAYS * MEANT_LISTED
                         ? rig_parse(r, meant_listed[i / MEANT_WAYS])
                         : rig_program(r, GEN_NO_STORED | (i % 3 ? GEN_NO_SPECIAL : GEN_SMOOTH));
    fxa_error err = {.status = FXA_OK};
    *c = (meant_case){.p = NULL};
    if (!p) return false;
    c->p = pass_masks(r->host, p);
    T_OK(fxa_program_derivative(c->p, &c->d, &err));
    int way = i % MEANT_WAYS; /* 0 = no assumptions; then factors of any value, no sizes, forward only, scalars */
    if (way == 1) c->own = meant_own(r, i / MEANT_WAYS);
    fxa__cuda_config config = {.program = c->p,
                               .derivative = way == 3 ? NULL : c->d,
                               .bprop = c->own,
                               .grad_params = UINT64_MAX,
                               .grad_tensors = UINT64_MAX,
                               .assumed.dense = -1,
                               .sizes_fit = way != 2,
                               .deterministic = way == 1 || way == 4,
                               .scalars_in_memory = way == 4,
                               .assumed.operands_fit = way != 2,
                               .assumed.finite_factors = way == 0};
    c->words = config.assumed.operands_fit;
    c->scalars = config.scalars_in_memory;
    for (int32_t t = 0; way % 2 && t < c->p->n_tensors; t++)
        if (c->p->tensors[t].dtype == FXA_F16) config.assumed.dense = t;
    return fxa__cuda_program_make(r->host, &config, &c->cuda, &err) == FXA_OK || err.status == FXA_E_UNSUPPORTED;
}

/* ---- A run ------------------------------------------------------------------------------------------------------- */

typedef struct meant_run {
    struct FxaArgs a;
    double scale;              /* value in memory */
    double params[RIG_PARAMS]; /* values of the params of the rewritten program */
    float grads[FXA_CUDA_TENSORS][RIG_CELLS];
    struct FxaExact exact[FXA_CUDA_TENSORS][RIG_CELLS];
    int32_t ranges[2][4096], tables[FXA_CUDA_RANGES][4096];
} meant_run;

/* Draws params. Params that are factors are finite and not 0, and positive if they multiply the entire score. */
static void meant_params(rig *r, const meant_case *c, double scale, meant_run *run) {
    const fxa_program *p = c->cuda.program;
    double given[FXA_MAX_PARAMS];
    static const double odd[] = {INT32_MIN, INT32_MIN + 1, INT32_MIN + 3, INT32_MAX, INT32_MAX - 1, INT32_MAX - 3};
    for (int32_t i = 0; i < c->p->n_params; i++) {
        if (c->p->params[i].type == FXA_FLOAT)
            r->params[i] = t_real(&r->rng, 0.25, 2);
        else if (t_int(&r->rng, 0, 2) == 0)
            r->params[i] = odd[t_int(&r->rng, 0, 5)];
    }
    for (int32_t i = 0; i < p->n_params; i++) {
        const fxa__cuda_param *from = &c->cuda.params[i];
        double x = from->source == FXA__CUDA_SCALE ? scale : from->source >= 0 ? r->params[from->source] : from->value;
        run->params[i] = given[i] = x;
        if (c->scalars && from->source != FXA__CUDA_CONSTANT) given[i] = 0;
    }
    fxa__cuda_host_values(&c->cuda, given, run->a.f, run->a.i);
}

/* Computes the ranges of a packed operand: {min, max} pairs over its tensor, in rows by b and h if its indices depend
 * on them. */
static void meant_vector(const rig *r, const meant_case *c, int32_t word, struct FxaOperand *v, int32_t *pairs) {
    if (word < 0) return;
    const fxa_program *p = c->cuda.program;
    const fxa__node *n = &p->nodes[word];
    const fxa_view *view = &r->views[n->imm];
    int64_t pitch = fxa__interval_n_blocks(view->size[n->n_args - 1]);
    if (!fxa__dtype_is_float(view->dtype)) fxa__lower_interval_fill(view, n->n_args - 1, pairs);
    v->ranges = pairs;
    v->ranges_b = v->ranges_h = 0;
    for (int d = n->n_args - 2; d >= 0; pitch *= view->size[d--])
        *(p->nodes[n->arg[d]].imm == FXA_INPUT_B ? &v->ranges_b : &v->ranges_h) = pitch;
}

/* Makes the tables of ranges; one in four is left out. */
static void meant_tables(rig *r, const meant_case *c, meant_run *run) {
    for (int32_t i = 0; i < c->cuda.operands.n_ranges; i++) {
        const fxa_view *view = &r->views[c->cuda.operands.ranges[i].tensor];
        if (fxa__lower_interval_size(view, c->cuda.operands.ranges[i].axis) > 4096 || t_int(&r->rng, 0, 3) == 0)
            continue;
        fxa__lower_interval_fill(view, c->cuda.operands.ranges[i].axis, run->tables[i]);
        run->a.ranges[i] = run->tables[i];
    }
}

static void meant_bind(rig *r, const meant_case *c, double scale, meant_run *run) {
    *run = (meant_run){.a = {.heads = MEANT_SIDE, .q_len = MEANT_SIDE, .k_len = MEANT_SIDE}};
    rig_fill(r, c->p);
    if (!c->words) emit_twist(r, c->p);
    for (int32_t t = 0; t < c->p->n_tensors; t++) {
        struct FxaCapture *to = &run->a.tensor[t];
        to->data = r->views[t].data;
        for (int d = 0; d < r->views[t].rank; d++) {
            to->stride[d] = r->views[t].stride[d];
            to->size[d] = (int)r->views[t].size[d];
        }
        run->a.grad_tensor[t] = c->cuda.switches.grad_exact >> t & 1 ? (float *)run->exact[t] : run->grads[t];
    }
    meant_params(r, c, scale, run);
    run->scale = scale;
    if (c->scalars) run->a.scalars = (struct FxaScalars){&run->scale, r->params, NULL};
    meant_vector(r, c, c->cuda.operands.q, &run->a.q_vector, run->ranges[0]);
    meant_vector(r, c, c->cuda.operands.k, &run->a.k_vector, run->ranges[1]);
    meant_tables(r, c, run);
}

/* Compares with a tolerance of four times the running error, because the rewritten program rounds at other places, and
 * some of them more often. Returns 1 if the values were compared. */
static int meant_close(const char *what, double got, double want, double error, const fxa_program *p) {
    if (!(error < INFINITY) || !(fabs(want) < 1e30)) return 0;
    if (fabs(got - want) <= 4 * error + 4e-6 * fabs(want) + 1e-30) return 1;
    T_FAIL("%s: %.9g, not %.9g (error %.3g)\n", what, got, want, error);
    rig_show(p);
    return 1;
}

/* Writes the index of an element in its gradient, which is contiguous whatever the tensor's strides are. Returns false
 * if the element is out of bounds. */
static bool meant_place(const fxa_view *view, const int32_t *index, int64_t *at) {
    fxa_view dense = *view;
    for (int d = view->rank - 1, stride = 1; d >= 0; stride *= (int)view->size[d--]) dense.stride[d] = stride;
    return fxa__view_offset(&dense, index, at);
}

/* Compares what scatter() added for one pair with dS = 1, element by element. */
static void meant_scattered(const rig *r, const meant_case *c, const meant_run *run, const fxa__val *vals,
                            const double *error) {
    const fxa_program *p = c->cuda.program;
    for (int32_t i = 0; c->cuda.switches.grad_scatter && i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        int32_t index[FXA_MAX_RANK];
        int64_t at;
        bool sum = out->kind != FXA__OUT_DLOAD, sure = true;
        for (int32_t j = 0; j < c->cuda.switches.grad_sums; j++) sum = sum || c->cuda.gradients.sums[j] == i;
        double want = 0, most = 0;
        for (int32_t d = 0; !sum && d < out->n_index; d++) index[d] = vals[out->index[d]].i;
        if (sum || !meant_place(&r->views[out->slot], index, &at)) continue;
        for (int32_t j = 0; j < p->n_outputs; j++) { /* all contributions to the same element */
            const fxa__output *other = &p->outputs[j];
            int32_t there[FXA_MAX_RANK];
            int64_t place;
            bool is_sum = other->kind != FXA__OUT_DLOAD || other->slot != out->slot;
            for (int32_t k = 0; k < c->cuda.switches.grad_sums; k++) is_sum = is_sum || c->cuda.gradients.sums[k] == j;
            for (int32_t d = 0; !is_sum && d < other->n_index; d++) {
                there[d] = vals[other->index[d]].i;
                sure = sure && error[other->index[d]] == 0;
            }
            if (is_sum || !meant_place(&r->views[other->slot], there, &place) || place != at) continue;
            want += vals[other->value].f;
            most += error[other->value] + fabs(vals[other->value].f) * 0x1p-24; /* f32 adds them up */
        }
        if (sure && !c->cuda.switches.grad_diagonal && !c->cuda.switches.grad_dense)
            (void)meant_close("a scattered gradient", run->grads[out->slot][at], want, most, c->p);
    }
}

/* Checks that no other element was written: the sum over a tensor equals the sum of the contributions. */
static void meant_total(const rig *r, const meant_case *c, const meant_run *run, const fxa__val *vals,
                        const double *error, int32_t tensor) {
    const fxa_program *p = c->cuda.program;
    double want = 0, most = 0, got = 0;
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        int32_t index[FXA_MAX_RANK];
        int64_t at;
        bool sum = out->kind != FXA__OUT_DLOAD || out->slot != tensor;
        for (int32_t j = 0; j < c->cuda.switches.grad_sums; j++) sum = sum || c->cuda.gradients.sums[j] == i;
        for (int32_t d = 0; !sum && d < out->n_index; d++) {
            index[d] = vals[out->index[d]].i;
            most += error[out->index[d]];
        }
        if (sum || !meant_place(&r->views[tensor], index, &at)) continue;
        want += vals[out->value].f;
        most += error[out->value] + fabs(vals[out->value].f) * 0x1p-24;
    }
    for (int i = 0; i < RIG_CELLS; i++) got += (double)run->grads[tensor][i];
    if (!c->cuda.switches.grad_diagonal && !c->cuda.switches.grad_dense)
        (void)meant_close("all that was scattered", got, want, most, c->p);
}

static int meant_check_pair(rig *r, const meant_case *c, meant_run *run, meant_pair call, double scale) {
    const fxa_program *p = c->cuda.program;
    static double error[3][1 << 16];
    volatile float raw = (float)t_real(&r->rng, -3, 3);
    fxa__env env = {.score = (double)raw * scale, .dscore = 1, .params = r->params, .tensors = r->views}, own;
    for (int i = FXA_INPUT_B; i <= FXA_INPUT_K; i++) env.coord[i] = (int)t_int(&r->rng, 0, MEANT_SIDE - 1);
    env.coord[FXA_INPUT_Q_LEN] = env.coord[FXA_INPUT_K_LEN] = env.coord[FXA_INPUT_HEADS] = MEANT_SIDE;
    int at[6] = {env.coord[FXA_INPUT_B], env.coord[FXA_INPUT_H], env.coord[FXA_INPUT_Q], env.coord[FXA_INPUT_K]};
    for (int i = 0; i < 2; i++) at[4 + i] = (int)t_int(&r->rng, 0, at[2 + i]);
    own = env;
    own.score = raw;
    own.params = run->params;
    fxa__val *x = rig_eval(c->p, &env), *d = rig_eval(c->d, &env), *y = rig_eval(p, &own);
    fxa__arithmetic narrow = fxa__arithmetic_of(false);
    fxa__program_error(c->p, &narrow, fabs(env.score) * 0x1p-23, 0, x, error[0]);
    fxa__program_error(c->d, &narrow, fabs(env.score) * 0x1p-23, 0, d, error[1]);
    fxa__program_error(p, &narrow, 0, 0, y, error[2]);
    float given[2] = {c->cuda.operands.dense >= 0 ? (float)y[c->cuda.operands.dense].f : 0, raw},
          out[3 + FXA_CUDA_SUMS];
    int words[2] = {meant_word(p, c->cuda.operands.q, y), meant_word(p, c->cuda.operands.k, y)}, said = 0;
    memset(run->grads, 0, sizeof run->grads);
    memset(run->exact, 0, sizeof run->exact);
    call(&run->a, at, given, words, out);
    for (int32_t t = 0; t < c->p->n_tensors; t++)
        for (int i = 0; (c->cuda.switches.grad_exact >> t & 1) && i < RIG_CELLS; i++)
            run->grads[t][i] += (float)exact_value(&run->exact[t][i]);
    int32_t score = fxa__program_output(c->p, FXA__OUT_SCORE), mask = fxa__program_output(c->p, FXA__OUT_MASK);
    int32_t slope = fxa__program_output(c->d, FXA__OUT_DSCORE);
    said += meant_close("score", out[0], x[score].f * 1.4426950408889634, error[0][score] * 1.5, c->p);
    if (c->own) {
        own = env, own.dscore = 0.75;
        fxa__val *z = rig_eval(c->own, &own);
        fxa__program_error(c->own, &narrow, fabs(env.score) * 0x1p-23, 0, z, error[1]);
        slope = fxa__program_output(c->own, FXA__OUT_DSCORE);
        said += meant_close("own gradient", out[1], z[slope].f, error[1][slope], c->own);
        free(z);
    } else if (p->kind != FXA_PROGRAM_SCORE)
        said += meant_close("slope", out[1], d[slope].f, error[1][slope], c->p);
    said += meant_close("mask", out[2], x[mask].i, error[0][mask], c->p);
    for (int32_t i = 0; i < c->cuda.switches.grad_sums; i++) {
        int32_t node = p->outputs[c->cuda.gradients.sums[i]].value;
        said += meant_close("a sum's term", out[3 + i], y[node].f, error[2][node], c->p);
    }
    meant_scattered(r, c, run, y, error[2]);
    for (int32_t t = 0; t < c->p->n_tensors; t++) meant_total(r, c, run, y, error[2], t);
    free(x), free(d), free(y);
    return said;
}

static void meant_check_tile(rig *r, const meant_case *c, const meant_run *run, meant_tile call) {
    int at[6] = {(int)t_int(&r->rng, 0, MEANT_SIDE - 1), (int)t_int(&r->rng, 0, MEANT_SIDE - 1)}, seen = 0;
    for (int i = 0; i < 2; i++) {
        at[2 + 2 * i] = (int)t_int(&r->rng, 0, MEANT_SIDE - 1);
        at[3 + 2 * i] = (int)t_int(&r->rng, at[2 + 2 * i], MEANT_SIDE - 1);
    }
    int got = call(&run->a, at);
    for (int q = at[2]; q <= at[3]; q++)
        for (int k = at[4]; k <= at[5]; k++) {
            fxa__env env = {.params = r->params,
                            .tensors = r->views,
                            .coord = {0, at[0], at[1], q, k, MEANT_SIDE, MEANT_SIDE, 0, MEANT_SIDE}};
            fxa__val *vals = rig_eval(c->p, &env);
            seen |= vals[fxa__program_output(c->p, FXA__OUT_MASK)].i ? 2 : 1;
            free(vals);
        }
    if (got == 1 || (got == 0 && seen == 1) || (got == 2 && seen == 2)) return;
    T_FAIL("a tile is %d, truly %s\n", got, seen == 3 ? "mixed" : seen == 2 ? "full" : "empty");
    rig_show(c->p);
}

/* Returns true if every tensor has the minimum size that the generated text assumes. */
static bool meant_fits(const rig *r, const meant_case *c) {
    for (int32_t t = 0; t < c->p->n_tensors; t++)
        for (int d = 0; d < r->views[t].rank; d++) {
            int64_t least = c->cuda.bounds.min_size[t][d];
            if (r->views[t].size[d] < (least < 0 ? MEANT_SIDE : least)) return false;
        }
    return true;
}

static int meant_check(rig *r, const meant_case *c, int number, const emit_object *o) {
    static meant_run run;
    meant_pair pair;
    meant_tile tile;
    char name[32];
    int said = 0;
    (void)snprintf(name, sizeof name, "pair%d", number);
    emit_find(o, name, &pair);
    (void)snprintf(name, sizeof name, "tile%d", number);
    emit_find(o, name, &tile);
    for (int i = 0; i < MEANT_ROUNDS && !t_failures; i++) {
        double scale = i % 2 ? 0.5 : 0.125;
        meant_bind(r, c, scale, &run);
        if (!meant_fits(r, c)) continue;
        said += meant_check_pair(r, c, &run, pair, scale);
        for (int j = 0; j < MEANT_TILES && !t_failures; j++) meant_check_tile(r, c, &run, tile);
    }
    return said;
}

RIG_TEST(generated_text_is_the_program) {
    if (!emit_has_cpp()) T_SKIP("there is no C++ compiler, " FXA_TEST_CXX ", here");
    fxa__writer w = {.host = r->host};
    emit_object object;
    int n = MEANT_WAYS * MEANT_LISTED + t_scaled_down(MEANT_RANDOM), said = 0, made = 0;
    fxa__write_bytes(&w, meant_head, strlen(meant_head));
    for (int i = 0; i < n; i++) {
        T_REQUIRE(meant_make(r, i, &meant_cases[i]));
        if (meant_cases[i].cuda.text.size) meant_text(&meant_cases[i].cuda, i, &w);
        made += meant_cases[i].cuda.text.size > 0;
    }
    T_CHECK(made > n * 3 / 4);
    bool loaded = emit_load_cpp(&w, &object);
    T_CHECK(loaded);
    for (int i = 0; loaded && i < n && !t_failures; i++)
        if (meant_cases[i].cuda.text.size) said += meant_check(r, &meant_cases[i], i, &object);
    T_CHECK(said > 20 * made);
    emit_unload(&object);
    fxa__writer_free(&w);
    for (int i = 0; i < n; i++) {
        fxa__cuda_program_free(&meant_cases[i].cuda);
        fxa_program_destroy(meant_cases[i].d);
        fxa_program_destroy(meant_cases[i].own);
        fxa_program_destroy(meant_cases[i].p);
    }
}

T_MAIN
