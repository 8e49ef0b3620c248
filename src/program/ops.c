/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables generated from ops.def: the properties of every operation, indexed by operation code, and the reserved names.
 * Also the names of types and inputs.
 */
#include "program.h"

#include <string.h>

#define OP(code, ID, ...)                                                                                              \
    _Static_assert((code) == FXA_OP_##ID, "ops.def and the public header give " #ID " different codes");
#include "ops.def"

#define OP_FLAG_0 0
#define OP_FLAG_COMM FXA__OP_COMM
#define OP_FLAG_SURFACE FXA__OP_SURFACE

static const fxa__op_info op_table[FXA_OP_COUNT] = {
#define OP(code, ID, text, form, prec, arity, sig, flags, exact, f64, i32, b1, rule, about)                            \
    [code] = {#ID,   text,           about,           FXA__##form,       FXA__PREC_##prec,                             \
              arity, FXA__SIG_##sig, OP_FLAG_##flags, FXA__EXACT_##exact},
#include "ops.def"
};

const fxa__op_info *fxa__op_info_get(uint32_t op) { return &op_table[op < FXA_OP_COUNT ? op : 0]; }

fxa__spelling fxa__op_spelling(uint32_t op, bool bools) {
    static const struct {
        uint8_t op;
        fxa__spelling spelling;
    } also[] = {
#define ALSO(ID, text, form, prec, op) {FXA_OP_##op, {text, FXA__PREC_##prec}},
#include "ops.def"
    };
    const fxa__op_info *info = fxa__op_info_get(op);
    for (size_t i = 0; bools && i < sizeof also / sizeof *also; i++)
        /* The entry pow, the second spelling of **, is never returned: the operands of ** are never bools. */
        if (also[i].op == op) return also[i].spelling;
    return (fxa__spelling){info->text, info->prec};
}

const char *fxa__type_name(uint32_t type) {
    switch (type) {
    case FXA_FLOAT: return "float";
    case FXA_INT: return "int";
    case FXA_BOOL: return "bool";
    default: return "none";
    }
}

static const char *const op_inputs[FXA_INPUT_COUNT] = {
#define OP_INPUT_NAME(name, value, text) [value] = text,
    FXA_INPUT_MAP(OP_INPUT_NAME)
#undef OP_INPUT_NAME
};

const char *fxa__input_name(uint32_t input) { return input < FXA_INPUT_COUNT ? op_inputs[input] : "none"; }

fxa_type fxa__input_type(uint32_t input) {
    return input == FXA_INPUT_SCORE || input == FXA_INPUT_DSCORE ? FXA_FLOAT : FXA_INT;
}

bool fxa__op_reserves(uint32_t op) {
    const fxa__op_info *info = fxa__op_info_get(op);
    bool later = op == FXA_OP_RELU || op == FXA_OP_SIGN || op == FXA_OP_STOP_GRADIENT || op == FXA_OP_SOFTPLUS;
    return info->id && info->form == FXA__CALL && !later;
}

bool fxa__name_reserved(const char *name) {
    static const char *const words[] = {
#define WORD(text, kind, value) text,
#define ALSO(ID, text, form, prec, op) text,
#include "ops.def"
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(name, words[i]) == 0) return true;
    for (size_t i = 0; i < FXA_INPUT_COUNT; i++)
        if (strcmp(name, op_inputs[i]) == 0) return true;
    for (size_t i = 0; i < FXA_OP_COUNT; i++)
        if (fxa__op_reserves((uint32_t)i) && strcmp(name, op_table[i].text) == 0) return true;
    return false;
}
