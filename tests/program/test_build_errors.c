/* SPDX-License-Identifier: Apache-2.0
 *
 * Builder errors: the text of each, sticky errors, limits, failing memory.
 */
#include "support/memory/fail_alloc.h"
#include "support/fixtures/own_context.h"

static void build_expect(fxa_builder *b, fxa_status status, const char *text) {
    t_program *p = NULL;
    fxa_error err;
    T_STATUS(fxa_builder_finish(b, &p, &err), status);
    T_CHECK(p == NULL);
    T_STR(err.text, text);
    fxa_builder_destroy(b);
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

#define BUILD_FAILS(kind, status, text, call)                                                                          \
    do {                                                                                                               \
        fxa_builder *b = own_builder(kind);                                                                            \
        fxa_value f = own_any(b, FXA_FLOAT), i = own_any(b, FXA_INT), c = own_any(b, FXA_BOOL);                        \
        (void)f, (void)i, (void)c;                                                                                     \
        (void)(call);                                                                                                  \
        build_expect(b, status, text);                                                                                 \
    } while (0)
#define BUILD_TYPE_ERROR(text, call) BUILD_FAILS(FXA_PROGRAM_SCORE, FXA_E_PROGRAM, text, call)

/* a wrong type, and below a wrong shape, are build errors. */
TEST(texts_of_type_errors) {
    BUILD_TYPE_ERROR("'&' takes ints or bools, not float and int", fxa_builder_op2(b, FXA_OP_AND, f, i));
    BUILD_TYPE_ERROR("'|' takes ints or bools, not bool and float", fxa_builder_op2(b, FXA_OP_OR, c, f));
    BUILD_TYPE_ERROR("'~' takes ints or bools, not float", fxa_builder_op1(b, FXA_OP_NOT, f));
    BUILD_TYPE_ERROR("'<<' takes ints, not int and float", fxa_builder_op2(b, FXA_OP_SHL, i, f));
    BUILD_TYPE_ERROR("'where' needs a bool condition, not int (write x != 0)",
                     fxa_builder_op3(b, FXA_OP_SELECT, i, f, f));
    BUILD_TYPE_ERROR("'+' takes 2 operands, got 1", fxa_builder_op1(b, FXA_OP_ADD, f));
    BUILD_TYPE_ERROR("'tanh' takes 1 operand, got 2", fxa_builder_op2(b, FXA_OP_TANH, f, f));
    BUILD_TYPE_ERROR("'+' takes 2 operands, got 0", fxa_builder_op(b, FXA_OP_ADD, NULL, 2));
    BUILD_TYPE_ERROR("'mask' needs a bool, not int (write x != 0)", (fxa_builder_set_mask(b, i), 0));
    BUILD_TYPE_ERROR("'dscore' is no output of a score program", (fxa_builder_set_dscore(b, f), 0));
    BUILD_TYPE_ERROR("'dscore' is an input of backward programs, not of a score program",
                     fxa_builder_input(b, FXA_INPUT_DSCORE));
    BUILD_FAILS(FXA_PROGRAM_BPROP, FXA_E_PROGRAM, "'score' is no output of a backward program",
                (fxa_builder_set_score(b, f), 0));
    BUILD_FAILS(FXA_PROGRAM_DERIVATIVE, FXA_E_PROGRAM, "'mask' is no output of a backward program",
                (fxa_builder_set_mask(b, c), 0));
}

TEST(texts_of_load_errors) {
    const fxa_value two[2] = {0, 0};
    BUILD_TYPE_ERROR("tensor 'bias' has rank 3, got 2 indices",
                     fxa_builder_load(b, fxa_builder_tensor(b, "bias", FXA_F32, 3), two, 2));
    BUILD_TYPE_ERROR("tensor 'cell' has rank 0, got 1 index",
                     fxa_builder_load(b, fxa_builder_tensor(b, "cell", FXA_F32, 0), &i, 1));
    BUILD_TYPE_ERROR("index 1 of tensor 'bias' is a float; ints are accepted (write int(x))",
                     fxa_builder_load(b, fxa_builder_tensor(b, "bias", FXA_F32, 1), &f, 1));
    BUILD_FAILS(FXA_PROGRAM_SCORE, FXA_E_ARGUMENT, "3 is not a tensor of this builder: it has 0",
                fxa_builder_load(b, 3, &i, 1));
    t_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value c = own_any(b, FXA_BOOL);
    T_INT(fxa__builder_type(b, fxa_builder_load(b, fxa_builder_tensor(b, "t", FXA_U8, 1), &c, 1)), FXA_INT);
}

TEST(texts_of_declaration_errors) {
    BUILD_TYPE_ERROR("param 'x' is of type bool; float and int are accepted", fxa_builder_param(b, "x", FXA_BOOL));
    BUILD_TYPE_ERROR("param 'x' is declared as float already, not as int",
                     (fxa_builder_param(b, "x", FXA_FLOAT), fxa_builder_param(b, "x", FXA_INT)));
    BUILD_TYPE_ERROR("tensor 't' is declared as f32[2] already, not as i8[2]",
                     (fxa_builder_tensor(b, "t", FXA_F32, 2), fxa_builder_tensor(b, "t", FXA_I8, 2)));
    BUILD_TYPE_ERROR("tensor 't' is declared as f32[2] already, not as f32[1]",
                     (fxa_builder_tensor(b, "t", FXA_F32, 2), fxa_builder_tensor(b, "t", FXA_F32, 1)));
    BUILD_TYPE_ERROR("'x' is a tensor already and cannot be a param too",
                     (fxa_builder_tensor(b, "x", FXA_F32, 2), fxa_builder_param(b, "x", FXA_INT)));
    BUILD_TYPE_ERROR("'x' is a param already and cannot be a tensor too",
                     (fxa_builder_param(b, "x", FXA_INT), fxa_builder_tensor(b, "x", FXA_F32, 2)));
    BUILD_TYPE_ERROR("tensor 't' has rank 6; 0 to 5 are accepted", fxa_builder_tensor(b, "t", FXA_F32, 6));
    BUILD_TYPE_ERROR("tensor 't' has rank -1; 0 to 5 are accepted", fxa_builder_tensor(b, "t", FXA_F32, -1));
    BUILD_TYPE_ERROR("tensor 't' has dtype 13, which is none (f64, f32, ... are)",
                     fxa_builder_tensor(b, "t", (fxa_dtype)13, 1));
    BUILD_TYPE_ERROR("'score' is a word of the language and cannot name a param",
                     fxa_builder_param(b, "score", FXA_INT));
    BUILD_TYPE_ERROR("'tanh' is a word of the language and cannot name a tensor",
                     fxa_builder_tensor(b, "tanh", FXA_F32, 1));
    BUILD_TYPE_ERROR("'2x' cannot name a param: letters, digits and '_' can, no digit first",
                     fxa_builder_param(b, "2x", FXA_INT));
    BUILD_TYPE_ERROR("'' cannot name a param: letters, digits and '_' can, no digit first",
                     fxa_builder_param(b, "", FXA_INT));
    BUILD_TYPE_ERROR("'a?b?"
                     "?' cannot name a tensor: letters, digits and '_' can, no digit first",
                     fxa_builder_tensor(b, "a\nb\xc3\xa4", FXA_F32, 1));
    BUILD_FAILS(FXA_PROGRAM_SCORE, FXA_E_ARGUMENT, "the name of a param is NULL", fxa_builder_param(b, NULL, FXA_INT));
}

TEST(texts_of_gradient_errors) {
    fxa_value x = 0;
    BUILD_FAILS(FXA_PROGRAM_BPROP, FXA_E_PROGRAM, "'grad' belongs to derivative programs only",
                (fxa_builder_param(b, "x", FXA_FLOAT), fxa__builder_grad_param(b, "x", f), 0));
    BUILD_FAILS(FXA_PROGRAM_DERIVATIVE, FXA_E_PROGRAM, "'grad y': no param has this name",
                (fxa__builder_grad_param(b, "y", f), 0));
    BUILD_FAILS(FXA_PROGRAM_DERIVATIVE, FXA_E_PROGRAM, "'grad x': no tensor has this name",
                (fxa_builder_param(b, "x", FXA_FLOAT), fxa__builder_grad_load(b, "x", &x, 1, f), 0));
    BUILD_FAILS(FXA_PROGRAM_DERIVATIVE, FXA_E_PROGRAM, "'grad n': only floats have a gradient, not int",
                (fxa_builder_param(b, "n", FXA_INT), fxa__builder_grad_param(b, "n", f), 0));
    BUILD_FAILS(FXA_PROGRAM_DERIVATIVE, FXA_E_PROGRAM, "tensor 't' has rank 2, got 1 index",
                (fxa_builder_tensor(b, "t", FXA_F32, 2), fxa__builder_grad_load(b, "t", &i, 1, f), 0));
}

TEST(texts_of_wrong_arguments) {
    BUILD_FAILS(FXA_PROGRAM_SCORE, FXA_E_ARGUMENT, "99 is not a value of this builder: it has 0 to 3",
                fxa_builder_op2(b, FXA_OP_ADD, f, 99));
    BUILD_FAILS(FXA_PROGRAM_SCORE, FXA_E_ARGUMENT, "-1 is not a value of this builder: it has 0 to 3",
                (fxa_builder_set_score(b, -1), 0));
    BUILD_FAILS(FXA_PROGRAM_SCORE, FXA_E_ARGUMENT, "7 is no operation on values; fxa_op lists them",
                fxa_builder_op1(b, (fxa_op)7, f));
    BUILD_FAILS(FXA_PROGRAM_SCORE, FXA_E_ARGUMENT, "4 is no operation on values; leaves have calls of their own",
                fxa_builder_op1(b, FXA_OP_LOAD, f));
    BUILD_FAILS(FXA_PROGRAM_SCORE, FXA_E_ARGUMENT, "input 11 is none: 0 (score) to 10 (k_row) are",
                fxa_builder_input(b, (fxa_input)11));
    fxa_builder *b = NULL;
    fxa_program *p = NULL;
    T_STATUS(fxa_builder_create(NULL, FXA_PROGRAM_SCORE, &b, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_builder_create(ctx, (fxa_program_kind)3, &b, &err), FXA_E_ARGUMENT);
    T_STR(err.text, "program kind 3 is none: 0 (score), 1 (bprop), 2 (derivative) are");
    T_STATUS(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_builder_finish(NULL, &p, &err), FXA_E_ARGUMENT);
    b = own_builder(FXA_PROGRAM_SCORE);
    T_STATUS(fxa_builder_finish(b, NULL, &err), FXA_E_ARGUMENT);
    for (int between = 0; between < 2; between++, b = own_builder(FXA_PROGRAM_SCORE)) {
        T_OK(fxa_builder_finish(b, &p, &err));
        fxa_program_destroy(p);
        if (between) T_INT(fxa_builder_float(b, 1), -1);
        T_STATUS(fxa_builder_finish(b, &p, &err), FXA_E_ARGUMENT);
        T_STR(err.text, "the builder was finished; create another one");
        fxa_builder_destroy(b);
    }
    fxa_builder_destroy(b);
    fxa_builder_destroy(NULL);
    T_INT(fxa_builder_float(NULL, 1), -1);
    T_INT(fxa_builder_int(NULL, 1), -1);
    T_INT(fxa_builder_bool(NULL, 1), -1);
    T_INT(fxa_builder_input(NULL, FXA_INPUT_Q), -1);
    T_INT(fxa_builder_param(NULL, "x", FXA_INT), -1);
    T_INT(fxa_builder_tensor(NULL, "x", FXA_F32, 1), -1);
    T_INT(fxa_builder_load(NULL, 0, NULL, 0), -1);
    T_INT(fxa_builder_op1(NULL, FXA_OP_NEG, 0), -1);
    fxa_builder_set_score(NULL, 0);
    fxa_builder_set_mask(NULL, 0);
    fxa_builder_set_dscore(NULL, 0);
}

TEST(the_first_mistake_sticks) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa_value f = own_any(b, FXA_FLOAT);
    T_INT(fxa_builder_op1(b, FXA_OP_NOT, f), -1);
    T_INT(fxa_builder_op2(b, FXA_OP_SHL, f, f), -1);
    T_INT(fxa_builder_input(b, FXA_INPUT_Q), -1);
    T_INT(fxa_builder_param(b, "2", FXA_INT), -1);
    fxa_builder_set_mask(b, -1);
    build_expect(b, FXA_E_PROGRAM, "'~' takes ints or bools, not float");
}

TEST(an_operand_that_is_none_gives_none) {
    for (int i = 0; i < 2; i++) {
        t_builder *b = own_builder(FXA_PROGRAM_SCORE);
        fxa_value f = own_any(b, FXA_FLOAT);
        T_INT(fxa_builder_op2(b, FXA_OP_ADD, i ? f : 99, i ? 99 : f), -1);
    }
}

/* ---- Limits and memory ------------------------------------------------------------------------------------------- */

TEST(limits_of_declarations) {
    char name[FXA_MAX_NAME + 2], text[200];
    memset(name, 'n', sizeof name - 1);
    name[FXA_MAX_NAME] = 0;
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    T_CHECK(fxa_builder_param(b, name, FXA_INT) >= 0);
    name[FXA_MAX_NAME] = 'n';
    name[FXA_MAX_NAME + 1] = 0;
    T_INT(fxa_builder_param(b, name, FXA_INT), -1);
    snprintf(text, sizeof text, "the param name '%.63s...' has 64 bytes, at most 63 are accepted", name);
    build_expect(b, FXA_E_LIMIT, text);
    for (int tensors = 0; tensors < 2; tensors++) {
        b = own_builder(FXA_PROGRAM_SCORE);
        for (int i = 0; i < 64; i++) {
            snprintf(name, sizeof name, "n%d", i);
            T_CHECK((tensors ? fxa_builder_tensor(b, name, FXA_I8, 1) : fxa_builder_param(b, name, FXA_INT)) >= 0);
        }
        T_INT(tensors ? fxa_builder_tensor(b, "more", FXA_I8, 1) : fxa_builder_param(b, "more", FXA_INT), -1);
        build_expect(b, FXA_E_LIMIT,
                     tensors ? "'more' is one tensor too many: a program has at most 64"
                             : "'more' is one param too many: a program has at most 64");
    }
}

TEST(limit_of_nodes) {
    for (int past = 0; past < 2; past++) {
        fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
        fxa_value x = fxa_builder_input(b, FXA_INPUT_SCORE);
        for (int i = 1; i < FXA_MAX_NODES - 1 + past; i++) x = fxa_builder_op1(b, FXA_OP_TANH, x);
        fxa_builder_set_score(b, x);
        if (past) { /* no node is left for the mask's constant */
            build_expect(b, FXA_E_LIMIT, "the program has more than 16384 distinct operations, the most accepted");
            continue;
        }
        t_program *p = own_finish(b);
        T_INT(fxa_program_node_count(p), FXA_MAX_NODES);
    }
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    fxa__builder_set_limit(b, 2);
    (void)fxa_builder_int(b, 1), (void)fxa_builder_int(b, 2), (void)fxa_builder_int(b, 2), (void)fxa_builder_int(b, 3);
    build_expect(b, FXA_E_LIMIT, "the program has more than 2 distinct operations, the most accepted");
}

/* Fails every allocation of a build in turn: an error with a text, no leak, and the next build works. */
TEST(out_of_memory_at_every_allocation) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *failing = fail_alloc_context(&f);
    T_REQUIRE(failing);
    size_t before = f.live_bytes;
    for (size_t at = 1, done = 0; !done; at++) {
        fxa_builder *b = NULL;
        fxa_program *p = NULL;
        fail_alloc_arm(&f, at, at % 2);
        fxa_status status = fxa_builder_create(failing, FXA_PROGRAM_DERIVATIVE, &b, &err);
        if (status == FXA_OK) {
            fxa_value x = fxa_builder_param(b, "w", FXA_FLOAT), q = fxa_builder_input(b, FXA_INPUT_Q);
            (void)fxa_builder_tensor(b, "t", FXA_F32, 1);
            for (int i = 0; i < 100; i++) x = fxa_builder_op1(b, i % 2 ? FXA_OP_SIN : FXA_OP_TANH, x);
            fxa__builder_grad_param(b, "w", x);
            fxa__builder_grad_load(b, "t", &q, 1, x);
            fxa_builder_set_dscore(b, x);
            status = fxa_builder_finish(b, &p, &err);
        }
        done = status == FXA_OK;
        T_CHECK(done ? p != NULL : status == FXA_E_MEMORY && err.status == FXA_E_MEMORY && !p);
        T_CHECK(done || strstr(err.text, "out of memory"));
        T_CHECK(at < 100);
        fxa_program_destroy(p);
        fxa_builder_destroy(b);
        fail_alloc_arm(&f, 0, false);
        T_INT(f.live_bytes, before);
    }
    T_INT(f.mistakes, 0);
    fxa_context_destroy(failing);
    T_INT(f.live_bytes, 0);
}

TEST(a_failure_that_does_not_fit_says_so) {
    t_ctx *own = NULL;
    t_builder *b = NULL;
    char name[900];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    T_OK(fxa_context_create(NULL, &own, &err));
    T_OK(fxa_builder_create(own, FXA_PROGRAM_DERIVATIVE, &b, &err));
    fxa__builder_grad_param(b, name, fxa_builder_float(b, 1));
    const fxa_error *said = fxa__builder_error(b);
    T_INT(said->status, FXA_E_PROGRAM);
    T_INT(strlen(said->text), sizeof said->text - 2);
    T_STR(said->text + strlen(said->text) - 4, "x...");
}

T_MAIN
