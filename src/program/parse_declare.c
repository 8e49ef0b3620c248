/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses declarations of params (type and default) and tensors (storage type and rank), and the names that param,
 * tensor, let and fn statements introduce.
 */
#include "parse.h"

#include <stddef.h>
#include <string.h>

const char *fxa__parse_kind_name(const fxa__symbol *s) {
    switch (s->kind) {
    case SYM_PARAM: return "a param already";
    case SYM_TENSOR: return "a tensor already";
    case SYM_FN: return "a function already";
    case SYM_LET: return "a let already";
    default: return "a word of the language";
    }
}

size_t fxa__parse_given_name(fxa__parser *p, const char *what, fxa__symbol_kind kind) {
    char text[FXA_MAX_NAME + 1];
    size_t name = p->at;
    if (!fxa__parse_is(p, TOK_NAME)) {
        (void)fxa__parse_fail_unexpected(p, what);
        return SIZE_MAX;
    }
    uint32_t is = fxa__parse_symbol(p, name)->kind;
    bool word = fxa__parse_is_word(fxa__parse_symbol(p, name));
    if (word || (is >= SYM_PARAM && is != SYM_OFFER && is != (uint32_t)kind)) {
        (void)fxa__parse_fail(p, name, name, FXA_E_PROGRAM, "'%s' is %s and cannot be %s%s",
                              fxa__parse_text(p, name, text), fxa__parse_kind_name(fxa__parse_symbol(p, name)),
                              kind == SYM_LET     ? "a let"
                              : kind == SYM_PARAM ? "a param"
                              : kind == SYM_FN    ? "a function"
                                                  : "a tensor",
                              is == SYM_INPUT ? "; it is an input and needs no declaration" : "");
        return SIZE_MAX;
    }
    fxa__parse_next(p);
    return name;
}

/* Unless their comments say otherwise, the functions below return 0, or -1 after a failure. */

/* Binds the name at token `name` to `symbol`, a new param or tensor. symbol.value < 0: the builder has failed. */
static fxa_value parse_declared(fxa__parser *p, size_t name, fxa__symbol symbol) {
    if (symbol.value < 0) return fxa__parse_fail_builder(p, name, name);
    *fxa__parse_symbol(p, name) = symbol;
    return 0;
}

/* Parses the "= VALUE" of a param statement. */
static fxa_value parse_default(fxa__parser *p, const char *param, fxa_type type) {
    fxa__parse_next(p);
    size_t first = p->at;
    fxa_value v = fxa__parse_last_expr(p);
    if (v < 0) return -1;
    fxa__node node = fxa__builder_node(p->b, v);
    if (node.op != FXA_OP_CONST)
        return fxa__parse_fail(
            p, first, p->at - 1, FXA_E_PROGRAM,
            "a default is a constant, without inputs, params, tensors and functions that are not exact");
    if (node.type == FXA_BOOL || (type == FXA_INT && node.type != FXA_INT))
        return fxa__parse_fail(p, first, p->at - 1, FXA_E_PROGRAM,
                               "the default of %s %s param is %s number, this is a %s", type == FXA_INT ? "an" : "a",
                               fxa__type_name(type), type == FXA_INT ? "a whole" : "a", fxa__type_name(node.type));
    fxa_builder_set_default(p->b, param, node.type == FXA_FLOAT ? node.f : node.imm);
    return fxa__builder_failed(p->b) ? fxa__parse_fail_builder(p, first, p->at - 1) : 0;
}

fxa_value fxa__parse_param(fxa__parser *p) {
    char text[FXA_MAX_NAME + 1], type_text[FXA_MAX_NAME + 1] = "";
    size_t name = fxa__parse_given_name(p, "the name of the param", SYM_PARAM);
    if (name == SIZE_MAX) return -1;
    if (fxa__parse_is(p, TOK_ASSIGN) || (fxa__parse_is(p, TOK_COLON) && fxa__parse_token(p)[1].kind == TOK_ASSIGN))
        return fxa__parse_fail(p, name, name, FXA_E_PROGRAM,
                               "the type of param '%.*s' is missing; %s%.*s : float = ...", PARSE_NAME(p, name),
                               "write param ", PARSE_NAME(p, name));
    if (!fxa__parse_expect(p, TOK_COLON, "':' and the type, float or int")) return -1;
    if (fxa__parse_is(p, TOK_NAME)) (void)fxa__parse_text(p, p->at, type_text);
    fxa_type type = strcmp(type_text, "float") == 0 ? FXA_FLOAT : FXA_INT;
    if (type == FXA_INT && strcmp(type_text, "int") != 0)
        return fxa__parse_fail_type(p, "the type, float or int", false);
    fxa__parse_next(p);
    fxa_value v = fxa_builder_param(p->b, fxa__parse_text(p, name, text), type);
    if (parse_declared(p, name, (fxa__symbol){SYM_PARAM, (uint8_t)type, 0, false, v}) < 0) return -1;
    return fxa__parse_is(p, TOK_ASSIGN) ? parse_default(p, text, type) : 0;
}

/* Parses the [RANK] of a tensor statement. Returns the rank; -1 after a failure. */
static int32_t parse_rank(fxa__parser *p) {
    bool hex;
    if (!fxa__parse_expect(p, TOK_LBRACKET, "'[' and the rank of the tensor, as in f32[1]")) return -1;
    if (!fxa__parse_is(p, TOK_INT)) return fxa__parse_fail_unexpected(p, "the rank of the tensor, as in f32[1]");
    uint64_t rank = fxa__lex_int(&p->lex, fxa__parse_token(p), &hex);
    if (rank > FXA_MAX_RANK || p->lex.tokens[p->at + 1].kind == TOK_COMMA)
        return fxa__parse_fail(p, p->at, p->at, FXA_E_PROGRAM,
                               "in [ ] stands the rank of the tensor, 0 to %d; its sizes are given at run time",
                               FXA_MAX_RANK);
    fxa__parse_next(p);
    return fxa__parse_expect(p, TOK_RBRACKET, "']'") ? (int32_t)rank : -1;
}

fxa_value fxa__parse_tensor(fxa__parser *p) {
    char text[FXA_MAX_NAME + 1];
    const char *wanted = "':' and the storage type: f64 f32 f16 bf16 e4m3 e5m2 i64 i32 i16 i8 u8 bool";
    size_t name = fxa__parse_given_name(p, "the name of the tensor", SYM_TENSOR);
    if (name == SIZE_MAX || !fxa__parse_expect(p, TOK_COLON, wanted)) return -1;
    fxa_dtype dtype = fxa__parse_is(p, TOK_NAME) ? fxa_dtype_find(fxa__parse_text(p, p->at, text)) : FXA_DTYPE_NONE;
    if (dtype == FXA_DTYPE_NONE) return fxa__parse_fail_type(p, wanted + strlen("':' and "), true);
    fxa__parse_next(p);
    int32_t rank = parse_rank(p);
    if (rank < 0) return -1;
    int32_t handle = fxa_builder_tensor(p->b, fxa__parse_text(p, name, text), dtype, rank);
    return parse_declared(p, name, (fxa__symbol){SYM_TENSOR, (uint8_t)dtype, (uint8_t)rank, false, handle});
}
