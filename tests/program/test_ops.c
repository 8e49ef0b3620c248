/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of operations: complete, consistent, and equal to an independent implementation of the operations.
 */
#include "t.h"

#include "support/oracle/op_meaning.h"
#include "program/program.h"

TEST(every_row_is_filled) {
    int rows = 0;
    for (uint32_t op = 0; op < FXA_OP_COUNT; op++) {
        const fxa__op_info *info = fxa__op_info_get(op);
        if (!info->id) continue;
        rows++;
        T_CHECK(info->about && strlen(info->about) > 3);
        T_CHECK(info->text && (info->sig == FXA__SIG_LEAF) == (info->text[0] == 0));
        T_INT(info->arity, meaning_arity((fxa_op)op));
        T_CHECK((info->form == FXA__PREFIX) <= (info->arity == 1));
        T_CHECK((info->form == FXA__INFIX) <= (info->arity == 2));
        T_CHECK(((info->flags & FXA__OP_COMM) != 0) <= (info->arity == 2));
        T_INT((info->flags & FXA__OP_SURFACE) != 0, op == FXA_OP_GT || op == FXA_OP_GE || op == FXA_OP_RELU ||
                                                        op == FXA_OP_SIGN || op == FXA_OP_STOP_GRADIENT ||
                                                        op == FXA_OP_SOFTPLUS);
    }
    T_INT(rows, 56);
}

TEST(codes_that_are_none_give_an_empty_row) {
    const uint32_t none[] = {0, 5, 9, 28, 29, 49, 56, 66, 69, FXA_OP_COUNT, 255, 256, UINT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        T_CHECK(fxa__op_info_get(none[i]) != NULL);
        T_CHECK(fxa__op_info_get(none[i])->id == NULL);
    }
}

TEST(spellings_are_distinct_but_for_minus) {
    for (uint32_t i = 0; i < FXA_OP_COUNT; i++)
        for (uint32_t j = 0; j < i; j++) {
            const fxa__op_info *a = fxa__op_info_get(i), *b = fxa__op_info_get(j);
            if (!a->id || !b->id || !a->text[0] || !b->text[0]) continue;
            T_CHECK(strcmp(a->id, b->id) != 0);
            if (strcmp(a->text, b->text) == 0) T_CHECK(i == FXA_OP_NEG && j == FXA_OP_SUB);
        }
}

/* COMM means that swapped operands give the same value, up to the sign of zero. */
TEST(commutative_exactly_where_the_table_says_so) {
    const double floats[] = {0.0, -0.0, 1, -2.5, 3, INFINITY, -INFINITY, NAN, 1e300};
    const int ints[] = {0, 1, -1, 7, 33, INT32_MAX, INT32_MIN};
    for (uint32_t op = 0; op < FXA_OP_COUNT; op++) {
        if (meaning_arity((fxa_op)op) != 2) continue;
        bool swaps = true;
        for (int i = 0; i < 9; i++)
            for (int j = 0; j < 9; j++) {
                bool use_int = i < 7 && j < 7;
                meaning x[2] = {meaning_float(floats[i]), meaning_float(floats[j])}, y[2] = {x[1], x[0]};
                meaning u[2] = {meaning_int(ints[i % 7]), meaning_int(ints[j % 7])}, v[2] = {u[1], u[0]};
                swaps = swaps && meaning_same(meaning_op((fxa_op)op, x), meaning_op((fxa_op)op, y), true);
                if (use_int) swaps = swaps && meaning_same(meaning_op((fxa_op)op, u), meaning_op((fxa_op)op, v), true);
            }
        T_INT(swaps, (fxa__op_info_get(op)->flags & FXA__OP_COMM) != 0);
    }
}

TEST(names_of_types_and_inputs) {
    T_STR(fxa__type_name(FXA_FLOAT), "float");
    T_STR(fxa__type_name(FXA_INT), "int");
    T_STR(fxa__type_name(FXA_BOOL), "bool");
    T_STR(fxa__type_name(0), "none");
    const char *const names[FXA_INPUT_COUNT] = {"score", "b",      "h",     "q",     "k",    "q_len",
                                                "k_len", "dscore", "heads", "q_row", "k_row"};
    for (uint32_t i = 0; i < FXA_INPUT_COUNT; i++) {
        T_STR(fxa__input_name(i), names[i]);
        T_INT(fxa__input_type(i), i == FXA_INPUT_SCORE || i == FXA_INPUT_DSCORE ? FXA_FLOAT : FXA_INT);
    }
    T_STR(fxa__input_name(FXA_INPUT_COUNT), "none");
}

TEST(words_of_the_language_are_reserved) {
    const char *const words[] = {"heads", "fn",      "log1p", "atan",  "score", "dscore", "b",     "h",     "q",
                                 "k",     "q_len",   "k_len", "mask",  "param", "tensor", "let",   "grad",  "true",
                                 "false", "inf",     "pi",    "nan",   "sum",   "any",    "all",   "where", "pow",
                                 "float", "int",     "abs",   "clamp", "mulz",  "divz",   "rsqrt", "exp2",  "log2",
                                 "erf",   "sigmoid", "trunc", "round", "min",   "max"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) T_CHECK(fxa__name_reserved(words[i]));
    const char *const table[] = {
#define WORD(text, kind, value) text,
#define ALSO(ID, text, form, prec, op) text,
#include "program/ops.def"
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) T_CHECK(fxa__name_reserved(table[i]));
    const char *const free_names[] = {"relu",   "sign", "softplus", "",   "x", "B", "q_",
                                      "scores", "Mask", "bias",     "_b", "+", "-"};
    for (size_t i = 0; i < sizeof free_names / sizeof free_names[0]; i++) T_CHECK(!fxa__name_reserved(free_names[i]));
}

T_MAIN
