/* SPDX-License-Identifier: Apache-2.0
 *
 * The builder: types of results, conversions of operands, outputs, declarations. Errors and limits are in
 * test_build_errors.c.
 */
#include "support/oracle/op_meaning.h"
#include "support/fixtures/own_context.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Notes the largest block of the size of a hash table; adds bytes that are no type of a value behind every block. */
static size_t largest_table;
static void *table_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    enum { BEHIND = 64 };
    (void)user, (void)align;
    char *fresh = new_size ? aligned_alloc(64, (new_size + BEHIND + 63) / 64 * 64) : NULL;
    if (fresh) memset(fresh + new_size, 0xa5, BEHIND);
    if (fresh && ptr) memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
    free(ptr);
    if (!ptr && new_size % 256 == 0 && new_size > largest_table) largest_table = new_size;
    return fresh;
}

/* The table has twice as many slots as there are values, rounded up to a power of two of at least 64. No value is
 * read past the last. */
TEST(the_hash_table_is_at_most_half_full) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.alloc = table_alloc;
    t_ctx *own = NULL;
    t_builder *b = NULL;
    T_OK(fxa_context_create(&config, &own, &err));
    T_OK(fxa_builder_create(own, FXA_PROGRAM_SCORE, &b, &err));
    largest_table = 0;
    for (int i = 0; i < 300; i++) {
        size_t slots = 64;
        T_INT(fxa__builder_type(b, i), 0);
        T_INT(fxa_builder_int(b, i), i);
        while (slots < 2 * (size_t)(i + 1)) slots *= 2;
        if (largest_table != slots * sizeof(int32_t))
            T_FAIL("%d values: a table of %zu bytes, not of %zu slots\n", i + 1, largest_table, slots);
    }
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* Every operation with every combination of operand types: the result type, or a refusal. */
TEST(result_types_of_every_operation) {
    for (int op = 0; op < FXA_OP_COUNT; op++) {
        int n = meaning_arity((fxa_op)op), combinations = n == 0 ? 0 : n == 1 ? 3 : n == 2 ? 9 : 27;
        for (int c = 0; c < combinations; c++) {
            const fxa_type type[3] = {(fxa_type)(1 + c % 3), (fxa_type)(1 + c / 3 % 3), (fxa_type)(1 + c / 9)};
            t_builder *b = own_builder(FXA_PROGRAM_SCORE);
            fxa_value arg[3];
            meaning x[3];
            for (int i = 0; i < n; i++) {
                arg[i] = own_any(b, type[i]);
                x[i] = (meaning){type[i], 1, 1};
            }
            fxa_value y = fxa_builder_op(b, (fxa_op)op, arg, (size_t)n);
            fxa_type want = meaning_op((fxa_op)op, x).type;
            if (fxa__builder_type(b, y) != want)
                T_FAIL("%s of %s %s %s is %s\n", fxa__op_info_get((uint32_t)op)->id, fxa__type_name(type[0]),
                       fxa__type_name(type[1]), fxa__type_name(type[2]), fxa__type_name(fxa__builder_type(b, y)));
            T_INT(fxa__builder_failed(b), want == 0);
        }
    }
}

/* The builder inserts the cast that a user would write, directly from the operand's type to the common type. */
TEST(conversions_are_casts) {
    const struct {
        fxa_op op;
        fxa_type x, y;
        fxa_op cast_x, cast_y;
    } rows[] = {{FXA_OP_ADD, FXA_INT, FXA_FLOAT, FXA_OP_FLOAT, 0},
                {FXA_OP_ADD, FXA_BOOL, FXA_FLOAT, FXA_OP_FLOAT, 0},
                {FXA_OP_SUB, FXA_BOOL, FXA_INT, FXA_OP_INT, 0},
                {FXA_OP_SUB, FXA_INT, FXA_INT, 0, 0},
                {FXA_OP_DIV, FXA_INT, FXA_BOOL, FXA_OP_FLOAT, FXA_OP_FLOAT},
                {FXA_OP_LT, FXA_INT, FXA_FLOAT, FXA_OP_FLOAT, 0},
                {FXA_OP_LT, FXA_BOOL, FXA_INT, FXA_OP_INT, 0},
                {FXA_OP_SHL, FXA_BOOL, FXA_INT, FXA_OP_INT, 0},
                {FXA_OP_MOD, FXA_FLOAT, FXA_BOOL, 0, FXA_OP_FLOAT}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        t_builder *b = own_builder(FXA_PROGRAM_SCORE);
        const fxa_value arg[2] = {own_any(b, rows[i].x), fxa_builder_op1(b, FXA_OP_NEG, own_any(b, rows[i].y))};
        const fxa_value y[2] = {arg[0], rows[i].y == FXA_BOOL ? own_any(b, FXA_BOOL) : arg[1]};
        fxa_value result = fxa_builder_op(b, rows[i].op, y, 2);
        T_REQUIRE(result >= 0);
        fxa__node node = fxa__builder_node(b, result);
        for (int k = 0; k < 2; k++) {
            fxa_op cast = k ? rows[i].cast_y : rows[i].cast_x;
            bool found = false;
            for (int a = 0; a < 2; a++) { /* operands of commutative operations may be swapped */
                fxa__node operand = fxa__builder_node(b, node.arg[a]);
                found = found || (cast ? operand.op == cast && operand.arg[0] == y[k] : node.arg[a] == y[k]);
            }
            T_CHECK(found);
        }
    }
}

TEST(greater_becomes_less) {
    t_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    T_INT(fxa_builder_op2(b, FXA_OP_GT, q, k), fxa_builder_op2(b, FXA_OP_LT, k, q));
    T_INT(fxa_builder_op2(b, FXA_OP_GE, q, k), fxa_builder_op2(b, FXA_OP_LE, k, q));
}

TEST(equal_expressions_are_one_value) {
    t_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    T_INT(fxa_builder_input(b, FXA_INPUT_Q), q);
    T_INT(fxa_builder_op2(b, FXA_OP_SUB, q, k), fxa_builder_op2(b, FXA_OP_SUB, q, k));
    T_INT(fxa_builder_op2(b, FXA_OP_ADD, q, k), fxa_builder_op2(b, FXA_OP_ADD, k, q));
    T_CHECK(fxa_builder_op2(b, FXA_OP_SUB, q, k) != fxa_builder_op2(b, FXA_OP_SUB, k, q));
    T_CHECK(fxa_builder_int(b, 1) != fxa_builder_bool(b, 1));
    T_CHECK(fxa_builder_float(b, 0.0) != fxa_builder_float(b, -0.0));
    uint64_t bits = UINT64_C(0xfff8000000000123);
    double odd_nan;
    memcpy(&odd_nan, &bits, sizeof odd_nan);
    T_INT(fxa_builder_float(b, odd_nan), fxa_builder_float(b, NAN));
    T_INT(fxa_builder_bool(b, 5), fxa_builder_bool(b, 1));
    T_INT(fxa_builder_param(b, "x", FXA_INT), fxa_builder_param(b, "x", FXA_INT));
    T_INT(fxa_builder_tensor(b, "t", FXA_F16, 2), fxa_builder_tensor(b, "t", FXA_F16, 2));
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------- */

/* a program that sets nothing is the identity. */
TEST(defaults_of_outputs) {
    fxa_program *p = own_finish(own_builder(FXA_PROGRAM_SCORE));
    T_REQUIRE(p);
    T_INT(p->n_outputs, 2);
    T_INT(p->n_nodes, 2);
    T_INT(p->nodes[fxa__program_output(p, FXA__OUT_SCORE)].op, FXA_OP_INPUT);
    T_INT(p->nodes[fxa__program_output(p, FXA__OUT_MASK)].imm, 1);
    T_INT(fxa__program_output(p, FXA__OUT_DSCORE), -1);
    fxa_program_destroy(p);
    for (int kind = FXA_PROGRAM_BPROP; kind <= FXA_PROGRAM_DERIVATIVE; kind++) {
        p = own_finish(own_builder((fxa_program_kind)kind));
        T_REQUIRE(p);
        T_INT(p->n_outputs, 1);
        T_INT(p->nodes[fxa__program_output(p, FXA__OUT_DSCORE)].imm, FXA_INPUT_DSCORE);
        T_INT(fxa_program_get_kind(p), kind);
        fxa_program_destroy(p);
    }
}

TEST(outputs_may_be_set_again_and_scores_convert) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_builder_set_score(b, fxa_builder_float(b, 1));
    fxa_builder_set_score(b, own_any(b, FXA_BOOL));
    fxa_builder_set_mask(b, fxa_builder_bool(b, 0));
    fxa_builder_set_mask(b, own_any(b, FXA_BOOL));
    t_program *p = own_finish(b);
    T_REQUIRE(p);
    T_INT(p->nodes[fxa__program_output(p, FXA__OUT_SCORE)].op, FXA_OP_FLOAT);
    T_INT(p->nodes[fxa__program_output(p, FXA__OUT_MASK)].op, FXA_OP_LT);
}

TEST(queries) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    (void)fxa_builder_param(b, "zeta", FXA_FLOAT);
    (void)fxa_builder_param(b, "alpha", FXA_INT);
    (void)fxa_builder_tensor(b, "w", FXA_BF16, 3);
    fxa_program *p = own_finish(b);
    T_REQUIRE(p);
    T_INT(fxa_program_param_count(p), 2);
    T_STR(fxa_program_param(p, 0).name, "alpha");
    T_INT(fxa_program_param(p, 0).type, FXA_INT);
    T_STR(fxa_program_param(p, 1).name, "zeta");
    T_CHECK(fxa_program_param(p, 2).name == NULL);
    T_INT(fxa_program_tensor_count(p), 1);
    T_INT(fxa_program_tensor(p, 0).dtype, FXA_BF16);
    T_INT(fxa_program_tensor(p, 0).rank, 3);
    T_CHECK(fxa_program_tensor(p, SIZE_MAX).name == NULL);
    T_INT(fxa_program_param_find(p, "zeta"), 1);
    T_INT(fxa_program_param_find(p, "w"), -1);
    T_INT(fxa_program_tensor_find(p, "w"), 0);
    T_INT(fxa_program_tensor_find(p, NULL), -1);
    T_INT(fxa_program_node_count(p), 2);
    uint8_t hash[16], zero[16] = {0};
    fxa_program_hash(NULL, hash);
    T_CHECK(memcmp(hash, zero, 16) == 0);
    fxa_program_hash(p, hash);
    T_CHECK(memcmp(hash, zero, 16) != 0);
    T_INT(fxa_program_param_count(NULL) + fxa_program_tensor_count(NULL) + fxa_program_node_count(NULL), 0);
    T_CHECK(fxa_program_param(NULL, 0).name == NULL && fxa_program_tensor(NULL, 0).name == NULL);
    T_INT(fxa_program_param_find(NULL, "x"), -1);
    T_INT(fxa_program_get_kind(NULL), FXA_PROGRAM_SCORE);
    fxa_program_retain(p);
    fxa_program_destroy(p);
    T_STR(fxa_program_param(p, 0).name, "alpha"); /* still valid */
    fxa_program_destroy(p);
    fxa_program_retain(NULL);
    fxa_program_destroy(NULL);
}

TEST(found_names) {
    t_builder *b = own_builder(FXA_PROGRAM_SCORE);
    bool is_tensor = true;
    fxa__decl d;
    (void)fxa_builder_param(b, "x", FXA_INT);
    (void)fxa_builder_tensor(b, "t", FXA_B8, 0);
    T_INT(fxa__builder_find(b, "x", &is_tensor, &d), 0);
    T_CHECK(!is_tensor && d.type == FXA_INT);
    T_INT(fxa__builder_find(b, "t", &is_tensor, &d), 0);
    T_CHECK(is_tensor && d.type == FXA_BOOL && d.dtype == FXA_B8 && d.rank == 0);
    T_INT(fxa__builder_find(b, "q", NULL, NULL), -1);
}

/* ---- For tracers: what is known before finish -------------------------------------------------------------------- */

/* An error is reported at the call that causes it, and result types are those of the language. */
TEST(mistakes_and_types_are_known_at_once) {
    t_ctx *own = NULL;
    t_builder *b = NULL;
    T_OK(fxa_context_create(NULL, &own, &err));
    T_OK(fxa_builder_create(own, FXA_PROGRAM_SCORE, &b, &err));
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), x = fxa_builder_op2(b, FXA_OP_ADD, q, fxa_builder_float(b, 0.5));
    T_INT(fxa_builder_type(b, q), FXA_INT);
    T_INT(fxa_builder_type(b, x), FXA_FLOAT);
    T_INT(fxa_builder_type(b, fxa_builder_op2(b, FXA_OP_LT, q, q)), FXA_BOOL);
    T_INT(fxa_builder_type(b, -1), 0);
    T_INT(fxa_builder_type(b, 1000), 0);
    T_INT(fxa_builder_type(NULL, 0), 0);
    T_OK(fxa_builder_error(b, &err));
    (void)fxa_builder_op2(b, FXA_OP_SHL, x, q);
    T_STATUS(fxa_builder_error(b, &err), FXA_E_PROGRAM);
    fxa_error first = err;
    (void)fxa_builder_op2(b, FXA_OP_AND, x, x);
    T_INT(fxa_builder_error(b, NULL), FXA_E_PROGRAM);
    (void)fxa_builder_error(b, &err);
    T_STR(err.text, first.text);
    T_STATUS(fxa_builder_error(NULL, &err), FXA_E_ARGUMENT);
}

static fxa_program *import_parsed(fxa_context *context, const char *text) {
    fxa_program *program = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(context, text, SIZE_MAX, &program, &err));
    return program;
}

/* Importing programs into one another equals parsing their joined texts. */
TEST(imports_compose) {
    t_ctx *own = NULL;
    t_builder *b = NULL;
    T_OK(fxa_context_create(NULL, &own, &err));
    t_program *cap = import_parsed(own, "param c : float = 20\nscore = c * tanh(score / c)");
    t_program *bias = import_parsed(own, "tensor t : f32[1]\nparam c : float\nscore = score + c * t[q]\nmask = k <= q");
    t_program *both = import_parsed(own, "tensor t : f32[1]\nparam c : float\nscore = score + c * t[q]\n"
                                         "mask = k <= q\nscore = c * tanh(score / c)");
    T_OK(fxa_builder_create(own, FXA_PROGRAM_SCORE, &b, &err));
    fxa_value score = fxa_builder_input(b, FXA_INPUT_SCORE), mask;
    fxa_builder_import(b, bias, score, &score, &mask);
    fxa_builder_import(b, cap, score, &score, NULL);
    fxa_builder_set_score(b, score);
    fxa_builder_set_mask(b, mask);
    t_program *made = NULL;
    T_OK(fxa_builder_finish(b, &made, &err));
    uint8_t x[16], y[16];
    fxa_program_hash(made, x);
    fxa_program_hash(both, y);
    T_CHECK(memcmp(x, y, 16) == 0);
    double value = 0;
    T_INT(fxa_program_param_default(made, 0, &value), 1);
    T_SAME(value, 20);
}

/* A program that cannot be imported is an error, and the resulting values are negative. */
TEST(imports_that_are_refused) {
    t_ctx *own = NULL;
    T_OK(fxa_context_create(NULL, &own, &err));
    t_program *cap = import_parsed(own, "score = 2 * score"), *derivative = NULL;
    T_OK(fxa_program_derivative(cap, &derivative, &err));
    for (int i = 0; i < 3; i++) {
        t_builder *b = NULL;
        T_OK(fxa_builder_create(own, FXA_PROGRAM_SCORE, &b, &err));
        fxa_value score = fxa_builder_input(b, FXA_INPUT_SCORE), made = 7, mask = 7;
        fxa_builder_import(b, i == 0 ? NULL : i == 1 ? derivative : cap, i == 2 ? 1000 : score, &made, &mask);
        T_CHECK(made < 0 && mask < 0);
        T_CHECK(fxa_builder_error(b, &err) != FXA_OK);
        T_HAS(err.text, i == 0 ? "program is NULL" : i == 1 ? "no score program" : "1000");
    }
}

T_MAIN
