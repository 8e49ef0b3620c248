/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks ops.def and checks every user of programs: each analysis of src/lower, the row bytecode of the cpu engine, and
 * every engine of the build, forward and backward, compared with the reference. An operation missing or misread in one
 * of them fails here by name.
 */
#include "support/oracle/op_walk.h"

#include "engine/cpu/bytecode/tape.h"
#include "engine/cpu/bytecode/tape_ops.h"
#include "lower/lower_checks.h"
#include "support/conformance/conf_case.h"
#include "support/fixtures/tape_case.h"

enum { LOWERED_ROUNDS = 12 };

static rig *lowered_rig; /* state of the current walk */

/* ---- src/lower --------------------------------------------------------------------------------------------------- */

/* Checks properties of programs of every kind. */
static void lowered_common(const fxa_program *p) {
    rig *r = lowered_rig;
    depend_work w;
    int without_rest = 0;
    T_REQUIRE(depend_start(&w, r, p));
    rig_fill(r, p);
    affine_program(r, p, &without_rest);
    for (int round = 0; round < LOWERED_ROUNDS && !t_failures; round++) {
        depend_inputs(&w);
        depend_data(&w);
        (void)depend_diagonals(&w);
    }
    depend_end(&w);
}

static void lowered_zero(const fxa_program *p, bool outputs) {
    bool *zero = calloc((size_t)p->n_nodes, sizeof *zero);
    T_REQUIRE(zero);
    fxa__lower_exact_zero(p, zero);
    zero_program(lowered_rig, p, zero);
    for (int32_t i = 0; outputs && i < p->n_outputs; i++)
        if (!zero[p->outputs[i].value])
            T_FAIL("output %d of the derivative is not known to keep 0 (exact_zero.c)\n", i);
    free(zero);
}

static void lowered_lift(const fxa_program *p) {
    fxa__parameterized lifted;
    fxa_error err;
    rig_fill(lowered_rig, p);
    T_OK(fxa__lower_parameterize(lowered_rig->host, p, &lifted, &err));
    for (int round = 0; round < LOWERED_ROUNDS; round++) lift_check(lowered_rig, p, &lifted);
    fxa_program_destroy(lifted.program);
}

/* Checks the fused value-and-gradient program: same bits, no duplicate nodes. */
static void lowered_joint(const fxa_program *p, const fxa_program *d) {
    t_program *joint = NULL;
    fxa_error err;
    T_OK(fxa__lower_fuse(lowered_rig->host, p, d, true, &joint, &err));
    rig_fill(lowered_rig, p);
    for (int round = 0; round < LOWERED_ROUNDS; round++) joint_check(lowered_rig, p, d, joint);
    for (int32_t i = 0; i < joint->n_nodes; i++)
        for (int32_t j = 0; j < i; j++) {
            const fxa__node *x = &joint->nodes[i], *y = &joint->nodes[j];
            bool leaf = fxa__op_info_get(x->op)->sig == FXA__SIG_LEAF;
            if (!leaf && x->op == y->op && memcmp(x->arg, y->arg, x->n_args * sizeof *x->arg) == 0)
                T_FAIL("nodes %d and %d of the joint program are the same\n", j, i);
        }
    lowered_lift(joint);
}

static void lowered_conjuncts(const fxa_program *p) {
    fxa__conjuncts c;
    T_CHECK(fxa__lower_conjuncts(lowered_rig->host, p, &c));
    conjunct_check(lowered_rig, p, &c, 8 * LOWERED_ROUNDS);
    fxa__lower_conjuncts_free(lowered_rig->host, &c);
}

static void lowered_grads(fxa_program *p) {
    grad_work w;
    T_REQUIRE(grad_start(&w, lowered_rig, p));
    for (int round = 0; round < 4 * LOWERED_ROUNDS && !t_failures; round++) grad_check(&w);
    grad_end(&w);
}

/* Uses the operation as an index: its inputs decide which pairs add to the same element. */
static void lowered_index(fxa_context *ctx, const walk_step *s, const walk_operands operands) {
    char inner[200], text[500];
    fxa_program *p = NULL;
    fxa_error err;
    if (s->result == FXA_FLOAT) return;
    walk_write(inner, sizeof inner, s, (fxa__form)s->info->form, s->info->text, operands);
    snprintf(text, sizeof text, "%stensor t : f32[2]\nscore = score + t[h, int(%s)]", walk_declarations, inner);
    if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK)
        T_FAIL("%s: %s\n", text, err.text);
    else
        lowered_grads(p);
}

/* Applies the operation to dscore, as each operand, in a user's backward program. */
static void lowered_bprop(const walk_step *s) {
    for (int place = 0; s->result == FXA_FLOAT && place < s->info->arity; place++) {
        walk_operands operands = {[FXA_FLOAT] = {"score", "f1", "(score - f2)"},
                                  [FXA_INT] = {"q", "(k - 3)", "i2"},
                                  [FXA_BOOL] = {"(score > 0.0)", "(f1 > 0.0)", "(k > q)"}};
        char inner[200], text[500];
        fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
        t_program *p = NULL;
        fxa_error err;
        if (s->type[place] != FXA_FLOAT) continue;
        operands[FXA_FLOAT][place] = "dscore";
        walk_write(inner, sizeof inner, s, (fxa__form)s->info->form, s->info->text, operands);
        snprintf(text, sizeof text, "%sdscore = %s", walk_declarations, inner);
        fxa_text one = {.data = text, .size = SIZE_MAX};
        config.kind = FXA_PROGRAM_BPROP, config.texts = &one, config.n_texts = 1;
        if (fxa__program_parse(lowered_rig->host, &config, &p, &err) != FXA_OK) {
            T_FAIL("%s: %s\n", text, err.text);
            continue;
        }
        lowered_common(p);
        lowered_zero(p, false);
        lowered_lift(p);
    }
}

static void lowered_visit(fxa_context *ctx, const walk_step *s) {
    static const walk_operands *const styles[] = {&walk_params, &walk_pairs, &walk_coordinates};
    int failures = t_failures;
    t_failures = 0; /* one failure per operation: checks stop at the first */
    for (int style = 0; style < 3; style++) {
        fxa_program *p = walk_program(ctx, s, *styles[style]), *d = NULL;
        fxa_error err;
        if (!p) break;
        lowered_common(p);
        lowered_conjuncts(p);
        lowered_lift(p);
        T_OK(fxa_program_derivative(p, &d, &err));
        lowered_common(d);
        lowered_zero(d, true);
        lowered_joint(p, d);
        fxa_program_destroy(d);
        lowered_grads(p);
        lowered_index(ctx, s, *styles[style]);
    }
    lowered_bprop(s);
    if (t_failures) printf("  ... of %s\n", s->label);
    t_failures += failures;
}

TEST(analyses_are_right_about_each) {
    lowered_rig = calloc(1, sizeof *lowered_rig);
    T_REQUIRE(lowered_rig && rig_start(lowered_rig));
    walk_each(lowered_rig->ctx, lowered_visit);
    rig_end(lowered_rig);
    free(lowered_rig);
}

/* ---- Tapes of the cpu engine ------------------------------------------------------------------------------------- */

/* Returns true if every node of the program has a row operation; else the engine could not run it. */
static bool walk_is_lowered(const fxa_program *p, const walk_step *s) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        char letters[4] = "___";
        if (fxa__op_info_get(n->op)->sig == FXA__SIG_LEAF) continue;
        for (int k = 0; k < n->n_args; k++) letters[k] = p->nodes[n->arg[k]].type == FXA_FLOAT ? 'F' : 'I';
        bool no_work = (n->op == FXA_OP_INT && letters[0] == 'I') || n->op == FXA_OP_WITH_GRAD; /* operands are given */
        uint32_t op = n->op == FXA_OP_NOT && n->type == FXA_BOOL ? (uint32_t)FXA__TAPE_NOT_BOOL : n->op;
        if (no_work || tape_case_opcode(op, n->type == FXA_FLOAT ? 'F' : 'I', letters) >= 0) continue;
        T_FAIL("%s: no row in src/engine/cpu/bytecode/tape_ops.def for operands %s\n", s->label, letters);
        return false;
    }
    return true;
}

/* Runs the program's row bytecode on each kernel set of this machine. */
static void walk_tape(fxa_context *ctx, const walk_step *s, fxa_program *p, uint32_t flags) {
    uint64_t rng = t_seed() + s->op;
    bool usable, good = walk_is_lowered(p, s);
    for (size_t i = 0; good && i < 32; i++) {
        const fxa__cpu_kernels *k = fxa__cpu_set(i / 2, i % 2 ? 8 : 4, &usable);
        tape_case c;
        if (!k || !usable) continue;
        tape_case_draw(&c, k, p, false, &rng);
        c.tolerance = 0;
        good = tape_case_check(&c, fxa__context_host(ctx), flags, &rng);
        if (!good) T_FAIL("%s on %s: %s\n", s->label, k->isa, c.why);
        tape_case_free(&c);
    }
}

static void walk_visit_tape(fxa_context *ctx, const walk_step *s) {
    for (int style = 0; style < 2; style++) {
        t_program *p = walk_program(ctx, s, style ? walk_pairs : walk_params), *d = NULL;
        fxa_error err;
        if (!p) return;
        T_OK(fxa_program_derivative(p, &d, &err));
        walk_tape(ctx, s, p, FXA__TAPE_MASK);
        walk_tape(ctx, s, d, FXA__TAPE_GRADS);
    }
}

CONTEXT_TEST(tapes_run_each) { walk_each(ctx, walk_visit_tape); }

/* ---- Engines ----------------------------------------------------------------------------------------------------- */

static const char *lowered_engine;
static int lowered_sure[FXA_OP_COUNT]; /* number of proven cases */

/* Runs one small problem with the operation, forward and backward. */
static void lowered_visit_engine(fxa_context *ctx, const walk_step *s) {
    static const walk_operands *const styles[] = {&walk_pairs, &walk_coordinates};
    static const attn_shape shape = {.b = 1, .hq = 2, .hkv = 2, .sq = 9, .sk = 21, .d = 8, .dv = 8, .window = 6};
    for (int style = 0; style < 2; style++) {
        static conf_case c;
        conf_tally tally = {0};
        uint64_t rng = t_seed() + s->op;
        fxa_program *p = walk_program(ctx, s, *styles[style]);
        if (!p) return;
        bool ok = conf_draw(&c, ctx, 0, &shape, p, s->label, NULL, &tally, &rng);
        ok = ok && conf_check_forward(&c, lowered_engine) && conf_check_backward(&c, lowered_engine);
        if (!ok) T_FAIL("%s: %s: %s\n", lowered_engine, s->label, c.why);
        /* Host engines support every program; others must give a reason. */
        if (c.refused && (attn_device(lowered_engine) == FXA_HOST || !c.why[0]))
            T_FAIL("%s refuses %s: %s\n", lowered_engine, s->label, c.why);
        lowered_sure[s->op] += !c.unsure || c.refused;
        conf_free(&c);
    }
}

CONTEXT_TEST(every_engine_runs_each) {
    for (size_t e = 0; (lowered_engine = engine_here(e)); e++) {
        memset(lowered_sure, 0, sizeof lowered_sure);
        walk_each(ctx, lowered_visit_engine);
        for (uint32_t op = 0; op < FXA_OP_COUNT; op++) {
            const fxa__op_info *info = fxa__op_info_get(op);
            if (info->id && info->sig != FXA__SIG_LEAF && !lowered_sure[op])
                T_FAIL("%s: nothing could be said of %s\n", lowered_engine, info->id);
        }
    }
}

T_MAIN
