/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounds of masks over tiles as emitted code compiled as C: a tile called empty or full is so for every pair, for
 * random and listed masks, near and far coordinates, any tensor layout; checked in f64 by the evaluator, in f32 by the
 * emitted mask. Common masks are decided exactly.
 */
#include "emit_fixture.h"

#include "lower/interval.h"

enum { SPANS_RANDOM = 240, SPANS_MOST = 400, SPANS_TILES = 60, SPANS_ROW = 200, SPANS_TABLE = 2 * 16 * 256 };

typedef int (*spans_tile)(const emit_args *a, const int *in);
typedef int (*spans_mask)(const emit_args *a, const int *in, double score);

typedef struct spans_box {
    int b, h, q_len, k_len, heads, q0, q1, k0, k1;
} spans_box;

static const char spans_head[] =
    "#include \"program_ops.h\"\n#include \"program/interval_rules.h\"\n" EMIT_ARGS_TEXT
    "enum { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };\n"
    "static fxa__interval load_range(const args_t *a, int table, long long row, int size, fxa__interval index) {\n"
    "    return fxa__interval_load(a->ranges[table] + row * 2 * fxa__interval_n_blocks(size), size, index);\n}\n";
static const char spans_inputs[] = "    const int b = in[0], h = in[1], q_len = in[2], k_len = in[3], heads = in[4];\n";

/* Masks that an analysis could get wrong, or has to decide exactly. */
static const struct {
    bool exact; /* every empty or full tile, from tile 0 on, is recognised */
    const char *text;
} spans_listed[] = {
    {true, "mask = k <= q"},
    {true, "mask = k <= q + k_len - q_len"},
    {true, "param w : int\nmask = abs(q - k) < w"},
    {true, "mask = (q + 5) - (q - k) <= 9"},
    {true, "mask = q + 3 < q - k + 12"},
    {true, "mask = q // 8 == k // 8"},
    {false, "mask = k % 4 == 1"},
    {false, "mask = k <= q && q - k < 7"},
    {false, "mask = k < 5 || k <= q"},
    {false, "tensor doc : i32[1]\nmask = doc[q] == doc[k] && k <= q"},
    {false, "tensor ids : i64[1]\nmask = ids[q] == ids[k]"},
    {false, "tensor ids : i64[1]\nmask = ids[q] != ids[h]"},
    {false, "tensor allow : bool[2]\nmask = allow[h, k] || q == k"},
    {false, "tensor steps : i16[4]\nmask = steps[b, h, k, 1] < steps[q, 0, 0, 0]"},
    {false, "tensor doc : i32[1]\nmask = doc[q - k] < 2"},
    {false, "tensor doc : i32[1]\nmask = doc[doc[k]] < 2"},
    {false, "tensor doc : i32[1]\nmask = doc[-1 - k] <= q"},
    {false, "tensor allow : bool[2]\nmask = allow[q // 64, k // 64]"},
    {false, "mask = q * 100000000 < k * 100000000"},
    {false, "mask = (q * 65536) * 65536 == k"},
    {false, "mask = q + 2147483647 < k"},
    {false, "mask = abs(q - 2147483647 - 1) > k"},
    {false, "mask = q % (k - 4) == 0"},
    {false, "mask = q // (k - 4) < 2"},
    {false, "mask = (-2147483648 + k) // (q - 5) < 0"},
    {false, "mask = (q - 7) % (k - 5) < -1"},
    {false, "mask = 1 << (q - k) > 100"},
    {false, "mask = (q ^ k) < 8"},
    {false, "mask = (q & ~k) == 0 || (q | k) > 20"},
    {false, "mask = sqrt(float(q - 3)) < 2.0"},
    {false, "mask = 0.0 / float(k) < 1.0"},
    {false, "mask = !(1.0 / float(q - 4) <= 0.25)"},
    {false, "mask = float(q) * 0.1 < float(k) * 0.1"},
    {false, "mask = int(float(q) * 1e9) > int(float(k) * 1e9)"},
    {false, "mask = int(0.0 / float(k)) == 0"},
    {false, "mask = min(float(q), nan) < 3.0"},
    {false, "mask = score < 1.0 && k <= q"},
    {false, "mask = (q < k ? q : k * 2) < 9"},
    {false, "mask = clamp(q - k, -3, 3) == 3"},
    {false, "mask = exp(float(q - k) * 0.1) < 1.5 && tanh(float(k)) >= 0.5"},
    {false, "param f : float\nmask = f * float(q) < float(k)"},
};
enum { SPANS_LISTED = sizeof spans_listed / sizeof *spans_listed };

typedef struct spans_case {
    fxa_program *p;
    fxa__interval_table tables[FXA__INTERVAL_TABLES];
    int32_t n_tables;
} spans_case;

static void spans_put(fxa__writer *w, const char *text) { fxa__write_bytes(w, text, strlen(text)); }

static void spans_text(rig *r, spans_case *c, int number, fxa__dialect dialect, fxa__writer *w) {
    fxa__interval_text v;
    if (!fxa__lower_interval_open(r->host, c->p, dialect, &v)) T_FAIL("no memory\n");
    fxa__write_format(w, "int tile%d_%d(const args_t *a, const int *in) {\n", (int)dialect, number);
    spans_put(w, spans_inputs);
    spans_put(w, "    const int q0 = in[5], q1 = in[6], k0 = in[7], k1 = in[8];\n");
    fxa__lower_interval_text(&v, w);
    spans_put(w, "}\n");
    memcpy(c->tables, v.tables, sizeof c->tables);
    c->n_tables = v.n_tables;
    fxa__lower_interval_close(&v);
    /* Emits the mask of a pair. */
    fxa__emit e;
    if (!fxa__lower_emit_open(r->host, c->p, dialect, 1u << FXA__OUT_MASK, &e)) T_FAIL("no memory\n");
    memset(e.hoisted, 0, (size_t)c->p->n_nodes);
    fxa__write_format(w, "int mask%d_%d(const args_t *a, const int *in, double given) {\n", (int)dialect, number);
    spans_put(w, spans_inputs);
    spans_put(w, "    const int q = in[5], k = in[7];\n    const real score = (real)given;\n");
    for (int level = 0; level < FXA__EMIT_LEVELS; level++)
        fxa__lower_emit_nodes(&e, (fxa__emit_level)level, 1u << FXA__OUT_MASK, w);
    spans_put(w, "    return ");
    fxa__lower_emit_value(&e, fxa__program_output(c->p, FXA__OUT_MASK), w);
    spans_put(w, ";\n}\n");
    fxa__lower_emit_close(&e);
}

/* Makes rows of one axis long, so that they have blocks; half of them are nondecreasing, as document ids are. */
static void spans_data(rig *r, const fxa_program *p) {
    rig_fill(r, p);
    for (int32_t t = 0; t < p->n_tensors; t++) {
        fxa_view *v = &r->views[t];
        int32_t id = 0;
        if (v->rank != 1 || fxa__dtype_is_float(v->dtype)) continue;
        v->size[0] = t_int(&r->rng, 0, 4) ? SPANS_ROW : t_int(&r->rng, 1, 130);
        for (int64_t i = 0; v->dtype == FXA_I32 && i < v->size[0] && t % 2 == 0; i++)
            ((int32_t *)r->cells[t])[i] = id += t_int(&r->rng, 0, 5) == 0;
        int64_t past = t_int(&r->rng, -1, 1) * (INT64_C(1) << 40); /* all saturate to the same value, yet differ */
        for (int64_t i = 0; v->dtype == FXA_I64 && past && i < v->size[0]; i++)
            ((int64_t *)(void *)r->cells[t])[i] = past + i % 3;
        if (t_int(&r->rng, 0, 3)) continue;
        v->data = (char *)v->data + (v->size[0] - 1) * (int64_t)fxa_dtype_size(v->dtype);
        v->stride[0] = -1;
    }
}

static spans_box spans_random(rig *r, bool near) {
    spans_box x = {.b = (int)t_int(&r->rng, 0, 3), .h = (int)t_int(&r->rng, 0, 3), .heads = 4};
    int place = near ? 9 : (int)t_int(&r->rng, 0, 9), first[2], n[2];
    for (int i = 0; i < 2; i++) {
        n[i] = (int)t_int(&r->rng, 1, t_int(&r->rng, 0, 2) ? 6 : 24);
        first[i] = (int)t_int(&r->rng, 0, t_int(&r->rng, 0, 1) ? 20 : SPANS_ROW);
        if (place == 0) first[i] = INT32_MAX - n[i] + 1 - (int)t_int(&r->rng, 0, 9);
        if (place == 1) first[i] = INT32_MIN + (int)t_int(&r->rng, 0, 9);
        if (place == 2) first[i] = (int)t_int(&r->rng, INT32_MIN, INT32_MAX - n[i]);
    }
    x.q0 = first[0], x.q1 = first[0] + (n[0] - 1);
    x.k0 = first[1], x.k1 = first[1] + (n[1] - 1);
    x.q_len = (int)t_int(&r->rng, 1, 99), x.k_len = (int)t_int(&r->rng, 1, 99);
    return x;
}

/* Returns the class over all pairs of a tile, from the evaluator or from emitted code. */
static int spans_truth(rig *r, const fxa_program *p, const spans_box *x, spans_mask narrow, const emit_args *a) {
    int seen = 0;
    fxa__val *vals = calloc((size_t)p->n_nodes, sizeof *vals);
    for (int64_t q = x->q0; q <= x->q1 && seen != 3; q++)
        for (int64_t k = x->k0; k <= x->k1 && seen != 3; k++) {
            fxa__env env = {.score = rig_score(r), .params = r->params, .tensors = r->views};
            int32_t coord[] = {0, x->b, x->h, (int32_t)q, (int32_t)k, x->q_len, x->k_len, 0, x->heads};
            int in[] = {x->b, x->h, x->q_len, x->k_len, x->heads, (int)q, 0, (int)k, 0};
            memcpy(env.coord, coord, sizeof coord);
            if (!narrow) fxa__program_eval(p, &env, vals);
            bool yes = narrow ? narrow(a, in, env.score) : vals[fxa__program_output(p, FXA__OUT_MASK)].i;
            seen |= yes ? 2 : 1;
        }
    free(vals);
    return seen == 3 ? FXA_TILE_MIXED : seen == 2 ? FXA_TILE_FULL : FXA_TILE_EMPTY;
}

typedef struct spans_tally {
    int decided, decidable, by_range;
} spans_tally;

static fxa_tile_class spans_by_range(const rig *r, const fxa_program *p, const spans_box *x) {
    fxa_tile_bounds box = {{0, x->b, x->h, x->q0, x->k0, x->q_len, x->k_len, 0, x->heads},
                           {0, x->b, x->h, x->q1, x->k1, x->q_len, x->k_len, 0, x->heads}};
    fxa_tensor_range ranges[RIG_TENSORS] = {{0}};
    for (int32_t t = 0; t < p->n_tensors; t++) ranges[t].view = &r->views[t];
    return fxa_program_classify(p, &box, r->params, ranges);
}

static void spans_check(rig *r, const spans_case *c, int number, const emit_object *o, bool exact, spans_tally *tally) {
    static int32_t pairs[FXA__INTERVAL_TABLES][SPANS_TABLE];
    int *ranges[FXA__INTERVAL_TABLES];
    spans_tile tile[2];
    spans_mask mask;
    char name[32];
    for (int d = 0; d < 2; d++) {
        (void)snprintf(name, sizeof name, "tile%d_%d", d, number);
        emit_find(o, name, &tile[d]);
    }
    (void)snprintf(name, sizeof name, "mask1_%d", number);
    emit_find(o, name, &mask);
    for (int i = 0; i < SPANS_TILES && !t_failures; i++) {
        emit_data data[2];
        if (i % 20 == 0) {
            spans_data(r, c->p);
            for (int32_t t = 0; t < c->n_tables; t++) {
                const fxa_view *view = &r->views[c->tables[t].tensor];
                T_REQUIRE(fxa__lower_interval_size(view, c->tables[t].axis) <= SPANS_TABLE);
                fxa__lower_interval_fill(view, c->tables[t].axis, pairs[t]);
                ranges[t] = pairs[t];
            }
        }
        spans_box x = spans_random(r, exact);
        for (int d = 0; d < 2; d++) {
            emit_args a = emit_bind(r, c->p, d == 1, &data[d]);
            a.ranges = ranges;
            int got = tile[d](&a, &x.b), truth = spans_truth(r, c->p, &x, d == 1 ? mask : NULL, &a);
            if (d == 0) tally->decided += got != FXA_TILE_MIXED, tally->decidable += truth != FXA_TILE_MIXED;
            if (d == 0) tally->by_range += spans_by_range(r, c->p, &x) != FXA_TILE_MIXED;
            if (got == truth || (got == FXA_TILE_MIXED && !exact)) continue;
            T_FAIL("in %s: %d, truly %d; b %d h %d q %d..%d k %d..%d lengths %d %d\n", d ? "f32" : "f64", got, truth,
                   x.b, x.h, x.q0, x.q1, x.k0, x.k1, x.q_len, x.k_len);
            rig_show(c->p);
        }
    }
}

static fxa_program *spans_program(rig *r, int i) {
    if (i < SPANS_LISTED) return rig_parse(r, spans_listed[i].text);
    unsigned kinds[] = {GEN_AFFINE_MASK, 0, GEN_NO_SPECIAL, GEN_NO_TENSORS};
    return rig_program(r, kinds[i % 4] | GEN_NO_STORED);
}

RIG_TEST(what_is_said_of_a_tile_holds_for_its_pairs) {
    static spans_case cases[SPANS_MOST];
    int n = SPANS_LISTED + t_scaled_down(SPANS_RANDOM);
    fxa__writer texts[2];
    emit_object object;
    spans_tally listed = {0, 0, 0}, random = {0, 0, 0};
    for (int d = 0; d < 2; d++) {
        texts[d] = (fxa__writer){.host = r->host};
        if (d) spans_put(&texts[d], "#define FXA__OPS_F32\n");
        spans_put(&texts[d], spans_head);
    }
    for (int i = 0; i < n; i++) {
        T_REQUIRE((cases[i].p = spans_program(r, i)) != NULL);
        for (int d = 0; d < 2; d++) spans_text(r, &cases[i], i, d ? FXA__C_F32 : FXA__C_F64, &texts[d]);
    }
    bool loaded = emit_load(texts, 2, &object);
    T_CHECK(loaded);
    for (int i = 0; loaded && i < n && !t_failures; i++)
        spans_check(r, &cases[i], i, &object, i < SPANS_LISTED && spans_listed[i].exact,
                    i < SPANS_LISTED ? &listed : &random);
    printf("  listed masks: %d of %d tiles decided, range analysis %d; random masks: %d of %d, %d\n", listed.decided,
           listed.decidable, listed.by_range, random.decided, random.decidable, random.by_range);
    T_CHECK(listed.decided > listed.decidable * 7 / 10 && random.decided > random.decidable * 3 / 4);
    emit_unload(&object);
    for (int d = 0; d < 2; d++) fxa__writer_free(&texts[d]);
    for (int i = 0; i < n; i++) fxa_program_destroy(cases[i].p);
}

T_MAIN
