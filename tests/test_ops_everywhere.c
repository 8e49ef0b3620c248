/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks ops.def and checks every part of src/program that handles operations: lexer, parser, builder, printer, folding,
 * derivative, range analysis, and the tests' own generator, independent evaluation and error bounds. An operation
 * missing in one of them fails here by name. (src/lower and engines: test_ops_lowered.c; the reference page:
 * test_program_md.py; golden programs: test_golden_hash.c.)
 */
#include "support/oracle/op_walk.h"

#include "program/derive.h"
#include "program/function_ulps.h"
#include "support/oracle/brute.h"
#include "support/fixtures/gen.h"

static bool walk_equal(const fxa_program *a, const fxa_program *b) {
    uint8_t x[16], y[16];
    fxa_program_hash(a, x);
    fxa_program_hash(b, y);
    return memcmp(x, y, sizeof x) == 0;
}

/* ---- Text, builder, printer -------------------------------------------------------------------------------------- */

static fxa_value walk_build_operand(fxa_builder *b, fxa_type type, int place) {
    char name[3] = {type == FXA_INT ? 'i' : 'f', (char)('0' + place), 0};
    fxa_value v = fxa_builder_param(b, name, type == FXA_INT ? FXA_INT : FXA_FLOAT);
    return type == FXA_BOOL ? fxa_builder_op2(b, FXA_OP_GT, v, fxa_builder_float(b, 0)) : v;
}

/* Builds the program of walk_program with builder calls. */
static fxa_program *walk_build(fxa_context *ctx, const walk_step *s) {
    t_builder *b = NULL;
    fxa_program *p = NULL;
    fxa_value x[3];
    fxa_error err;
    T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
    for (int i = 0; i < 3; i++) {
        (void)walk_build_operand(b, FXA_FLOAT, i); /* declares all operands */
        (void)walk_build_operand(b, FXA_INT, i);
        x[i] = walk_build_operand(b, s->type[i], i);
    }
    fxa_value v = fxa_builder_op(b, s->op, x, s->info->arity);
    if (s->result == FXA_INT) v = fxa_builder_op2(b, FXA_OP_LE, v, walk_build_operand(b, FXA_INT, 2));
    if (s->result == FXA_FLOAT)
        fxa_builder_set_score(b, v);
    else
        fxa_builder_set_mask(b, v);
    if (fxa_builder_finish(b, &p, &err) != FXA_OK) T_FAIL("%s: %s\n", s->label, err.text);
    return p;
}

static bool walk_has(const fxa_program *p, uint32_t op) {
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].op == op) return true;
    return false;
}

static void walk_visit_text(fxa_context *ctx, const walk_step *s) {
    char text[2048];
    fxa_error err;
    fxa_program *parsed = walk_program(ctx, s, walk_params), *built = walk_build(ctx, s), *again = NULL;
    bool surface = s->info->flags & FXA__OP_SURFACE;
    bool own_cast =
        s->info->sig == FXA__SIG_TOF ? s->type[0] == FXA_FLOAT : s->info->sig == FXA__SIG_TOI && s->type[0] == FXA_INT;
    if (!parsed || !built) goto done;
    if (!walk_equal(parsed, built)) T_FAIL("%s: text and builder differ\n", s->label);
    if (walk_has(parsed, s->op) != !(surface || own_cast))
        T_FAIL("%s: not in the program, or should not be\n", s->label);
    T_OK(fxa_program_print(parsed, text, sizeof text, NULL, &err));
    /* A cast may be dropped, a comparison reversed. */
    bool as_written =
        !surface && s->info->sig != FXA__SIG_TOF && s->info->sig != FXA__SIG_TOI && s->info->sig != FXA__SIG_CMP;
    if (as_written && !strstr(text, fxa__op_spelling(s->op, s->result == FXA_BOOL).text))
        T_FAIL("%s: printed without its spelling: %s\n", s->label, text);
    if (fxa_program_parse(ctx, text, SIZE_MAX, &again, &err) != FXA_OK)
        T_FAIL("%s: %s: %s\n", s->label, text, err.text);
    else if (!walk_equal(parsed, again))
        T_FAIL("%s: not the same after print and parse: %s\n", s->label, text);
done:
    fxa_program_destroy(parsed);
    fxa_program_destroy(built);
    fxa_program_destroy(again);
}

CONTEXT_TEST(text_builder_and_printer_agree) { walk_each(ctx, walk_visit_text); }

CONTEXT_TEST(second_spellings_mean_the_same) {
    static const struct {
        fxa_op op;
        const char *text;
        fxa__form form;
    } also[] = {
#define ALSO(ID, text, form, prec, op) {FXA_OP_##op, text, FXA__##form},
#include "program/ops.def"
    };
    for (size_t i = 0; i < sizeof also / sizeof *also; i++) {
        const fxa__op_info *info = fxa__op_info_get(also[i].op);
        fxa_type type = also[i].form == FXA__CALL ? FXA_FLOAT : FXA_BOOL;
        walk_step s = {also[i].op, info, {type, type, type}, type, ""};
        char expression[200];
        snprintf(s.label, sizeof s.label, "'%s'", also[i].text);
        walk_write(expression, sizeof expression, &s, also[i].form, also[i].text, walk_params);
        t_program *plain = walk_program(ctx, &s, walk_params), *second = walk_parse(ctx, &s, expression);
        if (plain && second && !walk_equal(plain, second)) T_FAIL("%s is not %s\n", expression, info->id);
    }
}

/* ---- Precedence -------------------------------------------------------------------------------------------------- */

/* An independent list of the operators, loose to tight. All are left-associative except **; comparisons do not chain.
 * */
static const char *const walk_levels[] = {"||",    "&&",  "== != < <= > >=", "|", "^", "&",
                                          "<< >>", "+ -", "* / // %",        "**"};
enum { WALK_LEVELS = sizeof walk_levels / sizeof *walk_levels, WALK_COMPARE = 2 };

static int walk_level(const char *text) {
    for (int i = 0; i < WALK_LEVELS; i++)
        for (const char *at = walk_levels[i]; *at; at += strcspn(at, " "), at += strspn(at, " "))
            if (strcspn(at, " ") == strlen(text) && strncmp(at, text, strlen(text)) == 0) return i;
    return -1;
}

/* Parses with operands that most operators accept. Returns NULL if types do not fit or comparisons chain. */
static fxa_program *walk_try(fxa_context *ctx, const char *format, const char *first, const char *second, bool bools) {
    char expression[100], text[200];
    fxa_program *p = NULL;
    const char *x = bools ? "(q == 1)" : "q";
    snprintf(expression, sizeof expression, format, x, first, bools ? "(k > 1)" : "k", second, bools ? "(h < 1)" : "h");
    snprintf(text, sizeof text, "score = float(%s)", expression);
    return fxa_program_parse(ctx, text, SIZE_MAX, &p, NULL) == FXA_OK ? p : NULL;
}

static void walk_two_operators(fxa_context *ctx, const char *first, const char *second) {
    int a = walk_level(first), b = walk_level(second);
    bool left = a > b || (a == b && a != WALK_LEVELS - 1);
    if (a < 0 || b < 0) {
        T_FAIL("'%s' or '%s' has no place in this test\n", first, second);
        return;
    }
    for (int bools = 0; bools < 2; bools++) {
        t_program *plain = walk_try(ctx, "%s %s %s %s %s", first, second, bools);
        t_program *grouped = walk_try(ctx, left ? "(%s %s %s) %s %s" : "%s %s (%s %s %s)", first, second, bools);
        bool chain = a == WALK_COMPARE && b == WALK_COMPARE;
        if (chain ? plain != NULL : !plain != !grouped || (plain && !walk_equal(plain, grouped)))
            T_FAIL("x %s y %s z is not grouped as it should be\n", first, second);
    }
}

CONTEXT_TEST(operators_bind_as_tightly_as_written_here) {
    const char *texts[64];
    int n = 0;
#define WALK_INFIX(text) texts[n++] = text;
#define WALK_PREFIX(text)
#define WALK_CALL(text)
#define WALK_SPECIAL(text)
#define OP(code, ID, text, form, ...) WALK_##form(text)
#define ALSO(ID, text, form, ...) WALK_##form(text)
#include "program/ops.def"
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) walk_two_operators(ctx, texts[i], texts[j]);
}

/* ---- Folding ----------------------------------------------------------------------------------------------------- */

/* Returns true for functions whose result IEEE 754 or integer arithmetic fixes, in every libm. */
static bool walk_is_exact_call(const char *name, size_t length) {
    static const char *const exact[] = {"floor",      "ceil",        "trunc",           "nearbyint",
                                        "fabs",       "sqrt",        "fxa__fmodf",      "fxa__fmin",
                                        "fxa__fmax",  "fxa__fclamp", "fxa__toint",      "fxa__wrap32",
                                        "fxa__shl32", "fxa__shr32",  "fxa__floordiv32", "fxa__floormod32"};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (strlen(exact[i]) == length && strncmp(exact[i], name, length) == 0) return true;
    return false;
}

/* Returns true if every function that an expression of ops.def calls is exact. */
static bool walk_is_exact(const char *expression) {
    for (const char *at = expression; *at;) {
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
        if (length && at[length] == '(' && !walk_is_exact_call(at, length)) return false;
        at += length ? length : 1;
    }
    return true;
}

TEST(only_what_is_exact_is_folded) {
    static const struct {
        const char *id, *f64, *i32, *b1;
        fxa__exact exact;
        bool leaf;
    } rows[] = {
#define OP(code, ID, text, form, prec, arity, sig, flags, exact, f64, i32, b1, rule, about)                            \
    {#ID, #f64, #i32, #b1, FXA__EXACT_##exact, FXA__SIG_##sig == FXA__SIG_LEAF},
#include "program/ops.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].leaf) continue;
        bool exact = walk_is_exact(rows[i].f64) && walk_is_exact(rows[i].i32) && walk_is_exact(rows[i].b1);
        if (exact != (rows[i].exact == FXA__EXACT_ALWAYS))
            T_FAIL("%s: column exact against %s\n", rows[i].id, rows[i].f64);
    }
}

/* Checks folding of constants of every type: one node if the table says so, else the operation stays. */
static void walk_visit_folding(fxa_context *ctx, const walk_step *s) {
    static const walk_operands constants = {
        [FXA_FLOAT] = {"0.3", "0.7", "0.9"}, [FXA_INT] = {"3", "7", "9"}, [FXA_BOOL] = {"true", "false", "true"}};
    t_program *p = walk_program(ctx, s, constants);
    bool whole = s->type[0] != FXA_FLOAT && s->type[1] != FXA_FLOAT;
    bool one = s->type[0] == FXA_BOOL || s->type[1] == FXA_BOOL; /* with 1, or by 0 */
    bool folds = s->info->exact == FXA__EXACT_ALWAYS || (s->info->exact == FXA__EXACT_POWERS && (whole || one));
    bool surface = s->info->flags & FXA__OP_SURFACE; /* surface operations never remain in a program */
    if (p && (surface ? folds && s->type[0] == FXA_FLOAT && p->n_nodes > 2 : walk_has(p, s->op) == folds))
        T_FAIL("%s: folded, or not, against the table\n", s->label);
}

CONTEXT_TEST(constants_fold_where_the_table_says_exact) { walk_each(ctx, walk_visit_folding); }

/* ---- Derivative -------------------------------------------------------------------------------------------------- */

static double walk_float(const walk_step *s, const double *x) {
    fxa__val v[3];
    for (int i = 0; i < 3; i++) v[i].f = x[i];
    if (s->op == FXA_OP_SELECT) v[0].i = 1;
    return fxa__op_eval(s->op, FXA_FLOAT, FXA_FLOAT, v).f;
}

/* Checks that a gradient passes exactly where a small step of an operand changes the result a little. */
static void walk_visit_slope(fxa_context *ctx, const walk_step *s) {
    (void)ctx;
    bool floats = s->result == FXA_FLOAT, moves = false;
    for (int i = 0; i < s->info->arity; i++) floats = floats && (s->type[i] == FXA_FLOAT || s->op == FXA_OP_SELECT);
    if (!floats) return;
    for (int i = 0; i < s->info->arity; i++) {
        double x[3] = {0.7, 1.3, 2.1}, y[3] = {0.7, 1.3, 2.1};
        y[i] += 1e-6;
        double slope = (walk_float(s, y) - walk_float(s, x)) / 1e-6;
        moves = moves || (fabs(slope) > 1e-3 && fabs(slope) < 1e3);
    }
    if (moves != fxa__derive_passes(s->op))
        T_FAIL("%s: the derivative rule says otherwise than its values\n", s->label);
}

TEST(derivative_rules_pass_where_values_move) { walk_each(NULL, walk_visit_slope); }

/* ---- Range analysis ---------------------------------------------------------------------------------------------- */

/* Checks the range of the operation on coordinates against values that it takes: no box may get a wrong class. */
static void walk_visit_range(fxa_context *ctx, const walk_step *s) {
    static const double bounds[] = {-3, -1, -0.5, 0, 0.25, 1, 2, 6};
    int n = s->result == FXA_BOOL ? 1 : (int)(sizeof bounds / sizeof *bounds);
    for (int i = 0; i < n; i++) {
        char inner[200], text[300];
        t_program *p = NULL;
        fxa_error err;
        walk_write(inner, sizeof inner, s, (fxa__form)s->info->form, s->info->text, walk_coordinates);
        if (s->result == FXA_BOOL)
            snprintf(text, sizeof text, "mask = %s", inner);
        else
            snprintf(text, sizeof text, "mask = (%s) <= %g", inner, bounds[i]);
        if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK) {
            T_FAIL("%s: %s: %s\n", s->label, text, err.text);
            return;
        }
        for (int box_number = 0; box_number < 9; box_number++) {
            int64_t q = box_number % 3 * 4, k = box_number / 3 * 4;
            fxa_tile_bounds box = brute_box(0, 0, q, q + 3, k, k + 3, 12, 12);
            fxa_tile_class got = fxa_program_classify(p, &box, NULL, NULL),
                           is = brute_class(p, &box, NULL, NULL, brute_scores, 1);
            if (got != FXA_TILE_MIXED && got != is)
                T_FAIL("%s at q %d k %d is %s, not %s\n", text, (int)q, (int)k, brute_name(is), brute_name(got));
        }
    }
}

CONTEXT_TEST(range_analysis_is_sound_for_each) { walk_each(ctx, walk_visit_range); }

/* ---- What the tests themselves know ------------------------------------------------------------------------------ */

static bool walk_made[FXA_OP_COUNT][4]; /* [type that selects the meaning] generated so far */

static fxa_type walk_decisive(const walk_step *s) {
    fxa_type widest = FXA_BOOL;
    for (int i = s->op == FXA_OP_SELECT; i < s->info->arity; i++)
        if (s->type[i] < widest) widest = s->type[i];
    if (s->info->sig == FXA__SIG_REAL) return FXA_FLOAT;
    bool counts = s->info->sig == FXA__SIG_ARITH || s->info->sig == FXA__SIG_CMP || s->info->sig == FXA__SIG_SHIFT;
    return counts && widest == FXA_BOOL ? FXA_INT : widest;
}

static void walk_visit_made(fxa_context *ctx, const walk_step *s) {
    (void)ctx;
    fxa_type type = walk_decisive(s);
    if ((s->info->flags & FXA__OP_SURFACE) || (s->result == type && (s->op == FXA_OP_FLOAT || s->op == FXA_OP_INT)))
        return;
    if (!walk_made[s->op][type]) T_FAIL("%s: tests/support/fixtures/gen.c never makes it\n", s->label);
}

CONTEXT_TEST(the_generator_makes_each) {
    t_rng rng = {t_seed()};
    for (int round = 0; round < 4000; round++) { /* not scaled: each operation must occur at least once */
        uint8_t tape[160];
        for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)t_next(&rng);
        t_program *p = gen_program(ctx, tape, sizeof tape, 0);
        T_REQUIRE(p);
        for (int32_t i = 0; i < p->n_nodes; i++) {
            const fxa__node *n = &p->nodes[i];
            if (fxa__op_info_get(n->op)->sig != FXA__SIG_LEAF)
                walk_made[n->op][p->nodes[n->arg[n->op == FXA_OP_SELECT]].type] = true;
        }
    }
    walk_each(ctx, walk_visit_made);
}

TEST(error_bounds_know_each_function) {
    for (uint32_t op = 0; op < FXA_OP_COUNT; op++) {
        const fxa__op_info *info = fxa__op_info_get(op);
        if (!info->id || info->sig == FXA__SIG_LEAF || info->exact == FXA__EXACT_ALWAYS) continue;
        if (info->flags & FXA__OP_SURFACE) continue; /* it is rewritten into functions that have bounds */
        if (!(fxa__function_ulps(op, false) > 0) || !(fxa__function_ulps(op, true) > 0))
            T_FAIL("%s has no bound in src/program/function_ulps.c\n", info->id);
    }
}

T_MAIN
