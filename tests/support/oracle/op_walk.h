/* SPDX-License-Identifier: Apache-2.0
 *
 * Enumerates ops.def: every operation with every accepted combination of operand types, and a program with the
 * operation applied to params, pairs or coordinates. For test_ops_everywhere.c (the language) and test_ops_lowered.c
 * (src/lower and the engines).
 */
#ifndef FXA_TESTS_OP_WALK_H
#define FXA_TESTS_OP_WALK_H

#include "t.h"

#include "program/program.h"
#include "op_meaning.h"

/* An operation with operand types that it accepts. */
typedef struct walk_step {
    fxa_op op;
    const fxa__op_info *info;
    fxa_type type[3], result;
    char label[80];
} walk_step;

/* Texts of operands, [type][position]. The texts of bools compare floats, because such comparisons are not
 * simplified. */
typedef const char *walk_operands[4][3];
__attribute__((unused)) static const walk_operands walk_params = {
    [FXA_FLOAT] = {"f0", "f1", "f2"},
    [FXA_INT] = {"i0", "i1", "i2"},
    [FXA_BOOL] = {"(f0 > 0.0)", "(f1 > 0.0)", "(f2 > 0.0)"}};
__attribute__((unused)) static const walk_operands walk_pairs = {
    [FXA_FLOAT] = {"(score * 0.5)", "(score + 1.25)", "(f2 - score)"},
    [FXA_INT] = {"(q - k)", "(k - 3)", "(q + i2)"},
    [FXA_BOOL] = {"(q > k)", "(k > 2)", "(q != i2)"}};
__attribute__((unused)) static const walk_operands walk_coordinates = {
    [FXA_FLOAT] = {"(0.5 * q - 1.25)", "(0.25 * k + 0.5)", "(q - 0.5 * k)"},
    [FXA_INT] = {"(q - 3)", "(5 - k)", "(q + k)"},
    [FXA_BOOL] = {"(q > k)", "(k > 2)", "(q % 2 == 0)"}};
static const char walk_declarations[] = "param f0 : float\nparam f1 : float\nparam f2 : float\n"
                                        "param i0 : int\nparam i1 : int\nparam i2 : int\n";

/* Calls `visit` for every operation with every combination of types that op_meaning.h accepts. */
__attribute__((unused)) static void walk_each(fxa_context *ctx, void (*visit)(fxa_context *ctx, const walk_step *s)) {
    for (uint32_t op = 0; op < FXA_OP_COUNT; op++) {
        walk_step s = {.op = (fxa_op)op, .info = fxa__op_info_get(op)};
        bool any = false;
        if (!s.info->id || s.info->sig == FXA__SIG_LEAF) continue;
        for (int code = 0; code < 27; code++) {
            int rest = code;
            meaning x[3];
            for (int i = 0; i < 3; i++, rest /= 3) {
                s.type[i] = (fxa_type)(1 + rest % 3);
                x[i] = s.type[i] == FXA_FLOAT ? meaning_float(0.5)
                       : s.type[i] == FXA_INT ? meaning_int(2)
                                              : meaning_bool(1);
            }
            bool repeats = (s.info->arity < 2 && code >= 3) || (s.info->arity < 3 && code >= 9);
            if (repeats || (s.result = meaning_op(s.op, x).type) == 0) continue;
            any = true;
            snprintf(s.label, sizeof s.label, "%s of %s, %s, %s", s.info->id, fxa__type_name(s.type[0]),
                     s.info->arity > 1 ? fxa__type_name(s.type[1]) : "-",
                     s.info->arity > 2 ? fxa__type_name(s.type[2]) : "-");
            visit(ctx, &s);
        }
        if (!any) T_FAIL("%s has no meaning in tests/support/oracle/op_meaning.c\n", s.info->id);
    }
}

/* Writes the operation, applied to these operands, in the given form of the language. */
__attribute__((unused)) static void walk_write(char *out, size_t size, const walk_step *s, fxa__form form,
                                               const char *text, const walk_operands operands) {
    const char *x = operands[s->type[0]][0], *y = operands[s->type[1]][1], *z = operands[s->type[2]][2];
    if (form == FXA__INFIX)
        snprintf(out, size, "%s %s %s", x, text, y);
    else if (form == FXA__PREFIX)
        snprintf(out, size, "%s%s", text, x);
    else
        snprintf(out, size, "%s(%s%s%s%s%s)", text, x, s->info->arity > 1 ? ", " : "", s->info->arity > 1 ? y : "",
                 s->info->arity > 2 ? ", " : "", s->info->arity > 2 ? z : "");
}

/* Returns a program whose output is the expression. The builder folds at most a cast to the value's own type. */
__attribute__((unused)) static fxa_program *walk_parse(fxa_context *ctx, const walk_step *s, const char *expression) {
    char text[600];
    fxa_program *p = NULL;
    fxa_error err;
    snprintf(text, sizeof text, "%s%s = %s%s", walk_declarations, s->result == FXA_FLOAT ? "score" : "mask", expression,
             s->result == FXA_INT ? " <= i2" : "");
    if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK) T_FAIL("%s: %s: %s\n", s->label, text, err.text);
    return p;
}

__attribute__((unused)) static fxa_program *walk_program(fxa_context *ctx, const walk_step *s,
                                                         const walk_operands operands) {
    char expression[200];
    walk_write(expression, sizeof expression, s, (fxa__form)s->info->form, s->info->text, operands);
    return walk_parse(ctx, s, expression);
}

#endif
