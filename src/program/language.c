/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the operators and functions of the language, from ops.def, for the public function fxa_op_syntax.
 */
#include "program.h"

static const char *const language_groups[] = {
    [FXA__PREC_ANY] = "",
#define PREC(ID, groups, note) [FXA__PREC_##ID] = groups,
#include "ops.def"
};

/* [fxa__form] fxa_syntax_form of a row of ops.def; 0 = the operation has special syntax and is not listed */
static const fxa_syntax_form language_forms[] = {[FXA__INFIX] = FXA_SYNTAX_INFIX,
                                                 [FXA__PREFIX] = FXA_SYNTAX_PREFIX,
                                                 [FXA__CALL] = FXA_SYNTAX_CALL,
                                                 [FXA__SPECIAL] = 0};

static const struct language_row {
    const char *text;
    uint8_t op, form, prec;
} language_rows[] = {
#define OP(code, ID, text, form, prec, ...) {text, code, FXA__##form, FXA__PREC_##prec},
#define ALSO(ID, text, form, prec, op) {text, FXA_OP_##op, FXA__##form, FXA__PREC_##prec},
#include "ops.def"
};

fxa_op_syntax_info fxa_op_syntax(size_t index) {
    for (size_t i = 0; i < sizeof language_rows / sizeof language_rows[0]; i++) {
        const struct language_row *row = &language_rows[i];
        const fxa__op_info *info = fxa__op_info_get(row->op);
        fxa_syntax_form form = language_forms[row->form];
        if (!form || index-- > 0) continue;
        return (fxa_op_syntax_info){.text = row->text,
                                    .op = (fxa_op)row->op,
                                    .form = form,
                                    .arity = info->arity,
                                    .level = form == FXA_SYNTAX_CALL ? 0 : row->prec,
                                    .groups = language_groups[row->prec],
                                    .about = info->about};
    }
    return (fxa_op_syntax_info){0};
}

const char *fxa_input_name(fxa_input input) {
    return (uint32_t)input < FXA_INPUT_COUNT ? fxa__input_name((uint32_t)input) : NULL;
}
