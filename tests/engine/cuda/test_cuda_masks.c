/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks that read packed operands and range tables along many positions: random masks, compiled as C++ for the host,
 * must not classify a tile wrongly as empty or full, and must equal the evaluator for every pair. Rows exceed the
 * blocks of 64 positions with known ranges. Skipped by name without a C++ compiler.
 */
#include "cuda_text_fixture.h"

#include "lower/interval.h"

enum {
    MASKS_PROGRAMS = 40,
    MASKS_MOST = 2000,
    MASKS_BINDS = 6,
    MASKS_TILES = 25,
    MASKS_PAIRS = 40,
    MASKS_ROW = 260,
    MASKS_B = 2,
    MASKS_H = 3,
    MASKS_PAIRS_OF_TABLE = 256
};

typedef struct masks_case {
    fxa_program *p;
    bool words;
    fxa__cuda_program cuda;
} masks_case;

static masks_case masks_cases[MASKS_MOST];

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

static const char masks_declared[] = "param w : int\nparam x : float\ntensor doc : i32[2]\ntensor ids : i64[1]\n"
                                     "tensor lim : i16[2]\ntensor ok : bool[2]\ntensor blk : i32[1]\n"
                                     "tensor flo : f32[1]\ntensor per : i32[3]\ntensor net : bool[2]\n";

static const char *const masks_ints[] = {
    "q",
    "k",
    "q - k",
    "doc[b, q]",
    "doc[b, k]",
    "doc[0, k]",
    "lim[h, q]",
    "lim[h, k]",
    "per[b, h, q]",
    "per[b, h, k]",
    "blk[k // 16]",
    "blk[q // 16]",
    "blk[doc[b, k]]",
    "w",
    "3",
    "100",
    "k_len - q_len",
    "lim[w, k]",
    "doc[b, k + 1]",
    "doc[b, q - 5]",
    "doc[b, -1 - k]",
    "abs(q - k)",
    "per[b, 1, k]",
    "lim[h, q] * 2",
    "doc[b, k] + q",
    "min(doc[b, q], k)",
    "k % 64",
    "clamp(q - k, -20, 20)",
    "ids[q]",
    "ids[k]",
    "int(flo[k])",
    "int(x * float(k))",
};
static const char *const masks_bools[] = {"ok[b, q]",
                                          "ok[b, k]",
                                          "net[q // 64, k // 64]",
                                          "flo[q] == flo[k]",
                                          "flo[k] < x",
                                          "ids[q] == ids[k]",
                                          "doc[b, q] == doc[b, k]",
                                          "k <= q",
                                          "ids[k] != ids[q]",
                                          "flo[q] <= flo[k] * x",
                                          "ok[w, k]"};

static const char *masks_pick(t_rng *r, const char *const *from, size_t n) { return from[t_int(r, 0, (int64_t)n - 1)]; }

static void masks_write(t_rng *r, int depth, char *out, size_t size) {
    static const char *const compares[] = {"==", "!=", "<", "<=", ">", ">="};
    static const char *const joins[] = {"&&", "&&", "||"};
    char x[1024], y[1024];
    if (depth > 0) {
        masks_write(r, depth - 1, x, sizeof x);
        masks_write(r, depth - 1, y, sizeof y);
        const char *not = t_int(r, 0, 4) ? "" : "!";
        (void)snprintf(out, size, "%s(%s %s %s)", not, x, masks_pick(r, joins, 3), y);
    } else if (t_int(r, 0, 1)) {
        (void)snprintf(out, size, "%s", masks_pick(r, masks_bools, sizeof masks_bools / sizeof *masks_bools));
    } else {
        const char *left = masks_pick(r, masks_ints, sizeof masks_ints / sizeof *masks_ints);
        const char *right = masks_pick(r, masks_ints, sizeof masks_ints / sizeof *masks_ints);
        (void)snprintf(out, size, "%s %s %s", left, masks_pick(r, compares, 6), right);
    }
}

static bool masks_make(rig *r, masks_case *c) {
    char text[4096], mask[3072];
    fxa_error err = {.status = FXA_OK};
    t_program *d = NULL;
    masks_write(&r->rng, (int)t_int(&r->rng, 0, 3), mask, sizeof mask);
    (void)snprintf(text, sizeof text, "%smask = %s", masks_declared, mask);
    *c = (masks_case){.p = rig_parse(r, text)};
    if (!c->p) return false;
    bool backward = t_int(&r->rng, 0, 2) == 0;
    if (backward) T_OK(fxa_program_derivative(c->p, &d, &err));
    c->words = t_int(&r->rng, 0, 5) > 0;
    fxa__cuda_config config = {.program = c->p,
                               .derivative = d,
                               .assumed.dense = -1,
                               .assumed.operands_fit = c->words,
                               .assumed.finite_factors = true};
    fxa_status status = fxa__cuda_program_make(r->host, &config, &c->cuda, &err);
    return status == FXA_OK;
}

/* ---- Data -------------------------------------------------------------------------------------------------------- */

typedef struct masks_run {
    struct FxaArgs a;
    int32_t words[2][MASKS_PAIRS_OF_TABLE], tables[FXA_CUDA_RANGES][MASKS_PAIRS_OF_TABLE];
} masks_run;

/* Sets the sizes of a tensor by its name: one element per position, or one per block of positions. */
static void masks_sizes(const char *name, fxa_view *v) {
    static const struct {
        const char *name;
        int64_t size[3];
    } sizes[] = {{"doc", {MASKS_B, MASKS_ROW}},
                 {"ids", {MASKS_ROW}},
                 {"lim", {MASKS_H, MASKS_ROW}},
                 {"ok", {MASKS_B, MASKS_ROW}},
                 {"blk", {MASKS_ROW / 16}},
                 {"flo", {MASKS_ROW}},
                 {"net", {5, 5}},
                 {"per", {1, 1, 1}}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, name) == 0) memcpy(v->size, sizes[i].size, sizeof sizes[i].size);
    if (strcmp(name, "per") == 0) v->size[0] = MASKS_B, v->size[1] = MASKS_H, v->size[2] = MASKS_ROW;
    for (int64_t d = v->rank - 1, stride = 1; d >= 0; stride *= v->size[d--]) v->stride[d] = stride;
}

/* Returns an int: small, ascending like document IDs, near the ends of 32 bits or beyond them. */
static int64_t masks_int(rig *r, int how, int64_t i, uint32_t dtype) {
    static const int64_t ends[] = {INT32_MIN, INT32_MAX, INT64_C(1) << 40, -(INT64_C(1) << 40), INT32_MIN + 1, 0};
    if (dtype == FXA_B8) return how == 0 ? i % 100 < 70 : how == 1 ? 1 : t_int(&r->rng, 0, 9) > 0;
    if (how == 0) return i / 37;
    if (how == 1) return i + t_int(&r->rng, -20, 20);
    if (how == 2 && dtype != FXA_I16 && t_int(&r->rng, 0, 3) == 0)
        return ends[t_int(&r->rng, 0, dtype == FXA_I64 ? 5 : 1)];
    return how == 3 && dtype == FXA_I64 ? ends[i / 50 % 6] + i / 90 % 2 : t_int(&r->rng, -3, 5);
}

static void masks_tensor(rig *r, int32_t t) {
    static const double odd[] = {NAN, 0.0, -0.0, INFINITY, 1.0};
    const fxa_view *v = &r->views[t];
    int how = (int)t_int(&r->rng, 0, 3);
    int64_t n = 1;
    for (int d = 0; d < v->rank; d++) n *= v->size[d];
    for (int64_t i = 0; i < n; i++) {
        int64_t x = masks_int(r, how, i % v->size[v->rank - 1], (uint32_t)v->dtype);
        if (v->dtype == FXA_F32)
            fxa__store_f64(r->cells[t], FXA_F32, i, how ? odd[t_int(&r->rng, 0, 4)] : (double)(i / 40));
        else
            rig_store_int(r->cells[t], v->dtype, i, x);
    }
}

static void masks_word(const rig *r, const fxa_program *p, int32_t word, struct FxaOperand *v, int32_t *pairs) {
    if (word < 0 || p->nodes[word].type == FXA_FLOAT) return;
    const fxa__node *n = &p->nodes[word];
    const fxa_view *view = &r->views[n->imm];
    int64_t pitch = fxa__interval_n_blocks(view->size[n->n_args - 1]);
    fxa__lower_interval_fill(view, n->n_args - 1, pairs);
    v->ranges = pairs;
    for (int d = n->n_args - 2; d >= 0; pitch *= view->size[d--])
        *(p->nodes[n->arg[d]].imm == FXA_INPUT_B ? &v->ranges_b : &v->ranges_h) = pitch;
}

static void masks_bind(rig *r, const masks_case *c, masks_run *run) {
    const fxa_program *p = c->cuda.program;
    double params[FXA_MAX_PARAMS] = {0};
    memset(run, 0, sizeof *run);
    run->a.heads = MASKS_H;
    run->a.q_len = (int)t_int(&r->rng, 1, MASKS_ROW), run->a.k_len = (int)t_int(&r->rng, 1, MASKS_ROW);
    rig_fill(r, c->p);
    for (int32_t t = 0; t < c->p->n_tensors; t++) {
        masks_sizes(c->p->tensors[t].name, &r->views[t]);
        masks_tensor(r, t);
        run->a.tensor[t].data = r->views[t].data;
        for (int d = 0; d < r->views[t].rank; d++) {
            run->a.tensor[t].stride[d] = r->views[t].stride[d];
            run->a.tensor[t].size[d] = (int)r->views[t].size[d];
        }
    }
    for (int32_t i = 0; i < c->p->n_params; i++) {
        int64_t x = t_int(&r->rng, 0, 3) ? t_int(&r->rng, -9, 300) : INT32_MIN;
        if (c->p->params[i].type == FXA_INT) r->params[i] = (double)x;
    }
    for (int32_t i = 0; i < p->n_params; i++)
        params[i] = c->cuda.params[i].source >= 0 ? r->params[c->cuda.params[i].source] : c->cuda.params[i].value;
    fxa__cuda_host_values(&c->cuda, params, run->a.f, run->a.i);
    masks_word(r, p, c->cuda.operands.q, &run->a.q_vector, run->words[0]);
    masks_word(r, p, c->cuda.operands.k, &run->a.k_vector, run->words[1]);
    for (int32_t i = 0; i < c->cuda.operands.n_ranges; i++) {
        const fxa_view *view = &r->views[c->cuda.operands.ranges[i].tensor];
        T_REQUIRE(fxa__lower_interval_size(view, c->cuda.operands.ranges[i].axis) <= MASKS_PAIRS_OF_TABLE);
        fxa__lower_interval_fill(view, c->cuda.operands.ranges[i].axis, run->tables[i]);
        if (t_int(&r->rng, 0, 4)) run->a.ranges[i] = run->tables[i];
    }
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static fxa__env masks_env(const rig *r, const masks_run *run, int b, int h, int q, int k) {
    return (fxa__env){
        .params = r->params, .tensors = r->views, .coord = {0, b, h, q, k, run->a.q_len, run->a.k_len, 0, MASKS_H}};
}

static void masks_check_tile(rig *r, const masks_case *c, const masks_run *run, meant_tile call, fxa__val *vals,
                             int *decided) {
    int at[6] = {(int)t_int(&r->rng, 0, MASKS_B - 1), (int)t_int(&r->rng, 0, MASKS_H - 1)}, seen = 0;
    int lengths[2] = {run->a.q_len, run->a.k_len};
    for (int i = 0; i < 2; i++) {
        at[2 + 2 * i] = (int)t_int(&r->rng, 0, lengths[i] - 1);
        at[3 + 2 * i] = (int)t_int(&r->rng, at[2 + 2 * i], at[2 + 2 * i] + t_int(&r->rng, 0, 90));
        if (at[3 + 2 * i] >= lengths[i]) at[3 + 2 * i] = lengths[i] - 1;
    }
    int got = call(&run->a, at);
    if (got == 1) return;
    ++*decided;
    for (int q = at[2]; q <= at[3]; q++)
        for (int k = at[4]; k <= at[5]; k++) {
            fxa__env env = masks_env(r, run, at[0], at[1], q, k);
            fxa__program_eval(c->p, &env, vals);
            seen |= vals[fxa__program_output(c->p, FXA__OUT_MASK)].i ? 2 : 1;
        }
    if ((got == 0 && seen == 1) || (got == 2 && seen == 2)) return;
    T_FAIL("a tile is %d, truly %s: b %d h %d q %d..%d k %d..%d\n", got,
           seen == 3   ? "mixed"
           : seen == 2 ? "full"
                       : "empty",
           at[0], at[1], at[2], at[3], at[4], at[5]);
    rig_show(c->p);
}

static void masks_check_pair(rig *r, const masks_case *c, const masks_run *run, meant_pair call) {
    const fxa_program *p = c->cuda.program;
    int at[6] = {(int)t_int(&r->rng, 0, MASKS_B - 1), (int)t_int(&r->rng, 0, MASKS_H - 1),
                 (int)t_int(&r->rng, 0, run->a.q_len - 1), (int)t_int(&r->rng, 0, run->a.k_len - 1)};
    if (t_int(&r->rng, 0, 3) == 0 && at[2] < run->a.k_len) at[3] = at[2];
    for (int i = 0; i < 2; i++) at[4 + i] = (int)t_int(&r->rng, 0, at[2 + i] < 127 ? at[2 + i] : 127);
    fxa__env env = masks_env(r, run, at[0], at[1], at[2], at[3]), own = env;
    double params[FXA_MAX_PARAMS] = {0};
    for (int32_t i = 0; i < p->n_params; i++)
        params[i] = c->cuda.params[i].source >= 0 ? r->params[c->cuda.params[i].source] : c->cuda.params[i].value;
    own.params = params;
    fxa__val *x = rig_eval(c->p, &env), *y = rig_eval(p, &own);
    float given[2] = {0, 1}, out[3 + FXA_CUDA_SUMS];
    int words[2] = {meant_word(p, c->cuda.operands.q, y), meant_word(p, c->cuda.operands.k, y)};
    call(&run->a, at, given, words, out);
    int want = x[fxa__program_output(c->p, FXA__OUT_MASK)].i;
    if ((int)out[2] != want) {
        T_FAIL("b %d h %d q %d k %d: %g, not %d\n", at[0], at[1], at[2], at[3], (double)out[2], want);
        rig_show(c->p);
    }
    free(x), free(y);
}

static void masks_check(rig *r, const masks_case *c, int number, const emit_object *o, int *decided) {
    static masks_run run;
    meant_pair pair;
    meant_tile tile;
    char name[32];
    fxa__val *vals = calloc((size_t)c->p->n_nodes, sizeof *vals);
    (void)snprintf(name, sizeof name, "pair%d", number);
    emit_find(o, name, &pair);
    (void)snprintf(name, sizeof name, "tile%d", number);
    emit_find(o, name, &tile);
    for (int i = 0; vals && i < MASKS_BINDS && !t_failures; i++) {
        masks_bind(r, c, &run);
        for (int j = 0; j < MASKS_TILES && !t_failures; j++) masks_check_tile(r, c, &run, tile, vals, decided);
        for (int j = 0; j < MASKS_PAIRS && !t_failures; j++) masks_check_pair(r, c, &run, pair);
    }
    free(vals);
}

RIG_TEST(masks_of_words_and_tables) {
    if (!emit_has_cpp()) T_SKIP("there is no C++ compiler, " FXA_TEST_CXX ", here");
    fxa__writer w = {.host = r->host};
    emit_object object;
    int n = t_scaled(MASKS_PROGRAMS), decided = 0;
    if (n > MASKS_MOST) n = MASKS_MOST;
    fxa__write_bytes(&w, meant_head, strlen(meant_head));
    for (int i = 0; i < n; i++) {
        T_REQUIRE(masks_make(r, &masks_cases[i]));
        meant_text(&masks_cases[i].cuda, i, &w);
    }
    bool loaded = emit_load_cpp(&w, &object);
    T_CHECK(loaded);
    for (int i = 0; loaded && i < n && !t_failures; i++) masks_check(r, &masks_cases[i], i, &object, &decided);
    T_CHECK(n < MASKS_PROGRAMS || decided > 8 * n); /* with few programs, fewer tiles may be decided */
    emit_unload(&object);
    fxa__writer_free(&w);
    for (int i = 0; i < n; i++) {
        fxa__cuda_program_free(&masks_cases[i].cuda);
        fxa_program_destroy(masks_cases[i].p);
    }
}

T_MAIN
