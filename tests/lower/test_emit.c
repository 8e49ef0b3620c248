/* SPDX-License-Identifier: Apache-2.0
 *
 * Emitted text compiled as C. In f64 it has the bits of the evaluator, for every output and index of random programs
 * and their derivatives; in f32 it is within the running error; the CUDA dialect, with its few functions defined in C,
 * has the bits of the f32 text. Every level is a function that sees only its own inputs.
 */
#include "emit_fixture.h"

#include "lower/fuse.h"
#include "lower/parameterize.h"
#include "program/eval_error.h"
#include "support/oracle/op_walk.h"

enum { EMIT_RANDOM = 160, EMIT_PROGRAMS = 640, EMIT_ROUNDS = 12, EMIT_KINDS = 0x1f, EMIT_RESULTS = 512 };

typedef struct emit_case {
    fxa_program *p;
    fxa__parameterized lifted;
} emit_case;

typedef struct emit_in {
    double score, dscore;
    int coord[FXA_INPUT_COUNT];
} emit_in;

typedef void (*emit_fn)(const emit_args *a, const emit_in *in, double *out);

static const char emit_head[] =
    "#include \"program_ops.h\"\n" EMIT_ARGS_TEXT "typedef struct { double score, dscore; int coord[11]; } in_t;\n";
static const char emit_cuda_in_c[] = "#define __fmaf_rn fmaf\n#define __fadd_rn(x, y) ((x) + (y))\n"
                                     "#define __fsub_rn(x, y) ((x) - (y))\n#define __fmul_rn(x, y) ((x) * (y))\n"
                                     "#define score_tanh tanhf\n#define score_sin sinf\n"
                                     "#define score_cos cosf\n#define score_tan tanf\n";

static const char *const emit_inputs[FXA__EMIT_LEVELS] = {
    "", "int b = in->coord[1], h = in->coord[2], q_len = in->coord[5], k_len = in->coord[6], heads = in->coord[8];",
    "int q = in->coord[3];", "int k = in->coord[4];", "real score = (real)in->score, dscore = (real)in->dscore;"};

static void emit_put(fxa__writer *w, const char *text) { fxa__write_bytes(w, text, strlen(text)); }

static void emit_outputs(const fxa__emit *e, fxa__writer *w) {
    int n = 0;
    for (int32_t i = 0; i < e->p->n_outputs; i++) {
        const fxa__output *out = &e->p->outputs[i];
        for (int32_t j = -1; j < out->n_index; j++) {
            fxa__write_format(w, "    out[%d] = (double)", n++);
            fxa__lower_emit_value(e, j < 0 ? out->value : out->index[j], w);
            emit_put(w, ";\n");
        }
    }
}

/* Writes a function per level, and one that calls them in order. */
static void emit_program_c(const fxa__emit *e, int number, fxa__writer *w) {
    fxa__write_format(w, "typedef struct {\n    int none;\n");
    for (int level = 0; level < FXA__EMIT_PAIR; level++) fxa__lower_emit_hoisted(e, (fxa__emit_level)level, w);
    fxa__write_format(w, "} kept%d;\n", number);
    for (int level = 0; level < FXA__EMIT_LEVELS; level++) {
        fxa__write_format(w, "static void level%d_%d(kept%d *s, const args_t *a, const in_t *in, double *out) {\n    ",
                          number, level, number);
        emit_put(w, emit_inputs[level]);
        emit_put(w, "\n");
        fxa__lower_emit_nodes(e, (fxa__emit_level)level, EMIT_KINDS, w);
        if (level == FXA__EMIT_PAIR) emit_outputs(e, w);
        emit_put(w, "}\n");
    }
    fxa__write_format(w, "void %s%d(const args_t *a, const in_t *in, double *out) {\n    kept%d s = {0};\n",
                      e->dialect == FXA__C_F64 ? "wide" : "narrow", number, number);
    for (int level = 0; level < FXA__EMIT_LEVELS; level++)
        fxa__write_format(w, "    level%d_%d(&s, a, in, out);\n", number, level);
    emit_put(w, "}\n");
}

/* Hoisted values are plain names in CUDA: one function, a block per level. */
static void emit_program_cuda(const fxa__emit *e, int number, fxa__writer *w) {
    fxa__write_format(w, "void cuda%d(const args_t *args, const in_t *in, double *out) {\n    args_t a = *args;\n",
                      number);
    for (int level = 0; level < FXA__EMIT_PAIR; level++) fxa__lower_emit_hoisted(e, (fxa__emit_level)level, w);
    for (int level = 0; level < FXA__EMIT_LEVELS; level++) {
        fxa__write_format(w, "    {\n    ");
        emit_put(w, emit_inputs[level]);
        emit_put(w, "\n");
        fxa__lower_emit_nodes(e, (fxa__emit_level)level, EMIT_KINDS, w);
        if (level == FXA__EMIT_PAIR) emit_outputs(e, w);
        emit_put(w, "    }\n");
    }
    emit_put(w, "}\n");
}

static void emit_text(rig *r, const fxa_program *p, int number, fxa__writer *texts) {
    for (int d = 0; d < FXA__DIALECTS; d++) {
        fxa__emit e;
        if (!fxa__lower_emit_open(r->host, p, (fxa__dialect)d, EMIT_KINDS, &e)) T_FAIL("no memory\n");
        (d == FXA__CUDA_F32 ? emit_program_cuda : emit_program_c)(&e, number, &texts[d]);
        fxa__lower_emit_close(&e);
    }
}

/* Makes a program with its derivative, or without, as forward-only engines do; every third one is parameterized.
 * Consumes p. */
static bool emit_make(rig *r, int i, fxa_program *p, bool alone, emit_case *c) {
    t_program *d = NULL;
    fxa_error err;
    *c = (emit_case){.p = NULL};
    if (!p) return false;
    T_OK(fxa_program_derivative(p, &d, &err));
    if (alone)
        fxa_program_retain(c->p = p);
    else
        T_OK(fxa__lower_fuse(r->host, p, d, true, &c->p, &err));
    if (i % 3 == 0) T_OK(fxa__lower_parameterize(r->host, c->p, &c->lifted, &err));
    fxa_program_destroy(p);
    return c->p != NULL;
}

static const fxa_program *emit_case_program(const emit_case *c) { return c->lifted.program ? c->lifted.program : c->p; }

/* [operation][type that selects its meaning] number of uses */
static int emit_seen[FXA_OP_COUNT][4];

static void emit_count(const fxa_program *p) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        int leaf = fxa__op_info_get(n->op)->sig == FXA__SIG_LEAF;
        emit_seen[n->op][leaf ? n->type : p->nodes[n->arg[n->op == FXA_OP_SELECT]].type]++;
    }
}

static void emit_compare_wide(const fxa_program *p, const fxa__val *vals, const double *out, int number) {
    int n = 0;
    for (int32_t i = 0; i < p->n_outputs && !t_failures; i++)
        for (int32_t j = -1; j < p->outputs[i].n_index; j++, n++) {
            int32_t node = j < 0 ? p->outputs[i].value : p->outputs[i].index[j];
            uint32_t type = p->nodes[node].type;
            fxa__val got = {.f = out[n]};
            if (type != FXA_FLOAT) got.i = (int32_t)out[n];
            if (rig_same(type, got, vals[node])) continue;
            T_FAIL("program %d, output %d: %a, the evaluator has %a\n", number, i, out[n],
                   type == FXA_FLOAT ? vals[node].f : vals[node].i);
            rig_show(p);
        }
}

/* Returns the number of compared values; where less than the operands' error decides, none are. */
static int emit_compare_narrow(const fxa_program *p, const fxa__val *vals, const double *out) {
    fxa__arithmetic arithmetic = fxa__arithmetic_of(false);
    double *error = calloc((size_t)p->n_nodes, sizeof *error);
    int said = 0, n = 0;
    fxa__program_error(p, &arithmetic, 0, 0, vals, error);
    for (int32_t i = 0; i < p->n_outputs && !t_failures; i++)
        for (int32_t j = -1; j < p->outputs[i].n_index; j++, n++) {
            int32_t node = j < 0 ? p->outputs[i].value : p->outputs[i].index[j];
            double want = p->nodes[node].type == FXA_FLOAT ? vals[node].f : vals[node].i;
            if (error[node] == INFINITY || fabs(want) == INFINITY) continue;
            said++;
            if ((want != want && out[n] != out[n]) || fabs(out[n] - want) <= error[node]) continue;
            T_FAIL("output %d in f32: %a, not %a (allowed %.3g)\n", i, out[n], want, error[node]);
            rig_show(p);
        }
    free(error);
    return said;
}

/* Stores through memory: gcc 12 drops the casts of two neighbours, (double)(float)x, when it vectorizes them. */
static double emit_narrow(double x) {
    volatile float y = (float)x;
    return (double)y;
}

static int emit_check(rig *r, const emit_case *c, int number, const emit_object *o) {
    const fxa_program *p = emit_case_program(c);
    static const char *const names[FXA__DIALECTS] = {"wide", "narrow", "cuda"};
    emit_fn fn[FXA__DIALECTS];
    char name[32];
    int said = 0;
    for (int d = 0; d < FXA__DIALECTS; d++) {
        (void)snprintf(name, sizeof name, "%s%d", names[d], number);
        emit_find(o, name, &fn[d]);
    }
    for (int round = 0; round < EMIT_ROUNDS && !t_failures; round++) {
        double given[RIG_PARAMS], out[FXA__DIALECTS][EMIT_RESULTS];
        emit_data data[2];
        rig_fill(r, c->p);
        emit_twist(r, c->p);
        memcpy(given, r->params, sizeof given);
        if (c->lifted.program) fxa__lower_parameterized_values(&c->lifted, given, r->params);
        fxa__env env = rig_env(r, round % 2);
        env.score = emit_narrow(env.score), env.dscore = emit_narrow(env.dscore);
        emit_in in = {.score = env.score, .dscore = env.dscore};
        memcpy(in.coord, env.coord, sizeof in.coord);
        fxa__val *vals = rig_eval(p, &env);
        for (int d = 0; d < FXA__DIALECTS; d++) {
            emit_args a = emit_bind(r, p, d != FXA__C_F64, &data[d != FXA__C_F64]);
            fn[d](&a, &in, out[d]);
        }
        emit_compare_wide(p, vals, out[FXA__C_F64], number);
        said += emit_compare_narrow(p, vals, out[FXA__C_F32]);
        for (int32_t i = 0, n = 0; i < p->n_outputs; i++)
            for (int32_t j = -1; j < p->outputs[i].n_index; j++, n++) T_SAME(out[FXA__CUDA_F32][n], out[FXA__C_F32][n]);
        free(vals);
    }
    return said;
}

static int emit_results(const fxa_program *p) {
    int n = 0;
    for (int32_t i = 0; i < p->n_outputs; i++) n += 1 + p->outputs[i].n_index;
    return n;
}

static emit_case emit_cases[EMIT_PROGRAMS];
static int emit_n;
static rig *emit_rig_now;

static void emit_add(fxa_program *p, bool alone) {
    T_REQUIRE(emit_n < EMIT_PROGRAMS && emit_make(emit_rig_now, emit_n, p, alone, &emit_cases[emit_n]));
    emit_count(emit_case_program(&emit_cases[emit_n]));
    T_CHECK(emit_results(emit_cases[emit_n++].p) <= EMIT_RESULTS);
}

/* Tests each operation with operands of each type, outside and inside the pair level. (A negated int comparison becomes
 * another comparison instead of NOT, and no derivative has a WITH_GRAD.) */
static void emit_visit(fxa_context *ctx, const walk_step *s) {
    emit_add(walk_program(ctx, s, emit_n % 2 || s->op == FXA_OP_NOT ? walk_params : walk_pairs),
             s->op == FXA_OP_WITH_GRAD);
}

/* Storage types that random programs lack. */
static const char emit_bytes[] = "tensor x : e4m3[2]\ntensor y : e5m2[1]\nscore = score * x[h, k] + y[q] * y[k]";

static void emit_gather(rig *r) {
    emit_rig_now = r;
    emit_add(rig_parse(r, emit_bytes), false);
    walk_each(r->ctx, emit_visit);
    for (int i = 0; i < t_scaled_down(EMIT_RANDOM); i++)
        emit_add(rig_program(r, GEN_NO_STORED | (i % 5 == 0  ? GEN_SMOOTH
                                                 : i % 5 < 3 ? GEN_NO_SPECIAL
                                                             : 0)),
                 i % 4 == 3);
}

RIG_TEST(compiled_text_is_the_evaluator) {
    fxa__writer texts[FXA__DIALECTS];
    emit_object object;
    int said = 0;
    emit_gather(r);
    for (int d = 0; d < FXA__DIALECTS; d++) {
        texts[d] = (fxa__writer){.host = r->host};
        if (d != FXA__C_F64) emit_put(&texts[d], "#define FXA__OPS_F32\n");
        emit_put(&texts[d], emit_head);
        if (d == FXA__CUDA_F32) emit_put(&texts[d], emit_cuda_in_c);
    }
    for (int i = 0; i < emit_n; i++) emit_text(r, emit_case_program(&emit_cases[i]), i, texts);
    bool loaded = emit_load(texts, FXA__DIALECTS, &object);
    T_CHECK(loaded);
    for (int i = 0; loaded && i < emit_n && !t_failures; i++) said += emit_check(r, &emit_cases[i], i, &object);
    T_CHECK(said > 10 * emit_n);
    emit_unload(&object);
    for (int d = 0; d < FXA__DIALECTS; d++) fxa__writer_free(&texts[d]);
    for (int i = 0; i < emit_n; i++) {
        fxa_program_destroy(emit_cases[i].lifted.program);
        fxa_program_destroy(emit_cases[i].p);
    }
}

/* Every row of the table occurred above, with each type that selects a meaning. */
TEST(every_operation_was_compiled) {
    static const struct {
        const char *floats, *ints, *bools;
    } rows[FXA_OP_COUNT] = {
#define OP(code, ID, text, form, prec, arity, sig, flags, exact, f64, i32, b1, rule, about) [code] = {#f64, #i32, #b1},
#include "program/ops.def"
    };
    for (uint32_t op = 0; op < FXA_OP_COUNT; op++) {
        const fxa__op_info *info = fxa__op_info_get(op);
        if (!info->id || (info->flags & FXA__OP_SURFACE)) continue;
        const char *has[] = {NULL, rows[op].floats, rows[op].ints, rows[op].bools};
        for (int type = FXA_FLOAT; type <= FXA_BOOL; type++) {
            bool none = op == FXA_OP_FLOAT ? type == FXA_FLOAT : op == FXA_OP_INT && type == FXA_INT;
            if (strcmp(has[type], "NA") != 0 && !none && !emit_seen[op][type])
                T_FAIL("%s of %s was in no program\n", info->id, fxa__type_name((uint32_t)type));
        }
        if (info->sig == FXA__SIG_LEAF) T_CHECK(emit_seen[op][FXA_FLOAT] && emit_seen[op][FXA_INT]);
    }
}

static char emit_shown[8192];

/* Returns the text of one level of a program's outputs. */
static const char *emit_show(rig *r, const char *program, fxa__dialect dialect, fxa__emit_level level, uint32_t kinds) {
    t_program *p = rig_parse(r, program);
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = r->host};
    fxa__emit e;
    if (!p || !fxa__lower_emit_open(r->host, p, dialect, 3, &e)) return "";
    fxa__lower_emit_nodes(&e, level, kinds, &w);
    (void)snprintf(emit_shown, sizeof emit_shown, "%.*s", (int)w.size, (const char *)w.data);
    fxa__lower_emit_close(&e);
    return emit_shown;
}

RIG_TEST(what_a_pair_costs) {
    static const char alibi[] = "tensor slope : f32[1]\nscore = score + slope[h] * float(k - q)\nmask = k <= q";
    /* The load is hoisted, the mask is not part of the value, and the sum is one operation. */
    const char *text = emit_show(r, alibi, FXA__CUDA_F32, FXA__EMIT_PAIR, 1u << FXA__OUT_SCORE);
    T_HAS(text, "__fmaf_rn(");
    T_CHECK(!strstr(text, "fxa__get") && !strstr(text, "<=") && !strstr(text, "__fadd_rn"));
    text = emit_show(r, alibi, FXA__CUDA_F32, FXA__EMIT_HEAD, 1u << FXA__OUT_SCORE);
    T_HAS(text, "fxa__at(a.tensor[0].size[0], a.tensor[0].stride[0], ");
    T_HAS(text, " = h;\n");
    text = emit_show(r, alibi, FXA__C_F64, FXA__EMIT_PAIR, 1u << FXA__OUT_MASK);
    T_HAS(text, " <= ");
    T_CHECK(!strstr(text, "score"));
    /* Numbers: negative ones in parentheses, and no decimal point that depends on the locale. */
    text = emit_show(r, "score = score * -2.5 + -inf", FXA__C_F64, FXA__EMIT_PAIR, 1);
    T_HAS(text, "(-0x5p-1)");
    T_HAS(text, "(-FXA__OPS_INF)");
    text = emit_show(r, "score = tanh(score * 0.1) + float(q // -2147483648)", FXA__CUDA_F32, FXA__EMIT_PAIR, 1);
    T_HAS(text, "score_tanh(");
    T_HAS(text, "0xcccccdp-27f");
}

T_MAIN
