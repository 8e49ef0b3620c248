/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes programs as C or CUDA text (emit.h). The table ops.def has the C expression of each operation. Exceptions,
 * whose text this file defines: fused multiply-add, division by powers of two, squares and cubes.
 */
#include "emit_load.h"

#include "../base/invariant.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* clang-format off */
static const struct {
    const char *floats, *ints, *bools;
} emit_rows[FXA_OP_COUNT] = {
#define OP(code, ID, text, form, prec, arity, sig, flags, exact, f64, i32, b1, rule, about) [code] = {#f64, #i32, #b1},
#include "../program/ops.def"
};
static const char *const emit_dtypes[] = {
#define EMIT_DTYPE(name, value, text, size, type) [value] = text,
    FXA_DTYPE_MAP(EMIT_DTYPE)
#undef EMIT_DTYPE
};
/* clang-format on */

typedef struct emit_dialect {
    const char *suffix;         /* suffix of <math.h> functions and of float literals */
    const char *hoisted_prefix; /* prefix of hoisted variables */
    const char *args;           /* how the text accesses members of the argument struct `a`: "a->" or "a." */
    const char *fused;          /* function for x * y + z with one rounding; NULL = products are not fused */
    const char *unfused[3];     /* functions for +, -, * that the compiler never fuses; NULL = the operators */
    const char *tanh;           /* name of the function tanh; NULL = that of <math.h> */
    const char *trig_prefix;    /* prefix of the functions sin, cos and tan; NULL = those of <math.h> */
    const char *small_powers;   /* function for the products x * x and x * x * x; NULL = pow computes these too */
} emit_dialect;

static const emit_dialect emit_dialects[FXA__DIALECTS] = {
    [FXA__C_F64] = {"", "s->", "a->", NULL, {0}, NULL, NULL, NULL},
    [FXA__C_F32] = {"f", "s->", "a->", "fmaf", {0}, NULL, NULL, NULL},
    [FXA__CUDA_F32] = {"f",
                       "",
                       "a.",
                       "__fmaf_rn",
                       {"__fadd_rn(a, b)", "__fsub_rn(a, b)", "__fmul_rn(a, b)"},
                       "score_tanh",
                       "score_",
                       "__fmul_rn"},
};

const char *fxa__lower_emit_args(fxa__dialect dialect) { return emit_dialects[dialect].args; }

/* ---- Leaves ------------------------------------------------------------------------------------------------------ */

int32_t fxa__lower_emit_param(const fxa_program *p, int32_t param) {
    int32_t index = 0;
    for (int32_t i = 0; i < param; i++) index += p->params[i].type == p->params[param].type;
    return index;
}

/* Writes a float literal in hexadecimal, as an integer times a power of 2, because that text does not depend on the
 * locale. A negative literal is written in parentheses, since a minus sign may precede it. */
static void emit_float(const fxa__emit *e, double x, fxa__writer *w) {
    const char *suffix = emit_dialects[e->dialect].suffix;
    int power;
    if (*suffix) x = (double)(float)x;
    if (!isfinite(x)) {
        fxa__write_format(w, x != x ? "FXA__OPS_NAN" : x < 0 ? "(-FXA__OPS_INF)" : "FXA__OPS_INF");
        return;
    }
    unsigned long long digits = (unsigned long long)ldexp(frexp(fabs(x), &power), 53);
    for (power -= 53; digits && digits % 2 == 0; power++) digits /= 2;
    fxa__write_format(w, signbit(x) ? "(-0x%llxp%d%s)" : "0x%llxp%d%s", digits, digits ? power : 0, suffix);
}

static void emit_int(int32_t x, fxa__writer *w) {
    if (x == INT32_MIN)
        fxa__write_format(w, "(-2147483647 - 1)");
    else
        fxa__write_format(w, x < 0 ? "(%d)" : "%d", (int)x);
}

/* Returns the C type of a node's variable. */
static const char *emit_type(const fxa__node *n) { return n->type == FXA_FLOAT ? "real" : "int"; }

/* Returns true if a node has a statement of its own. Constants, params, and nodes of level RUN (computed once per run)
 * for which the caller has given a text (e->given) have no statement: they are written in place as operands. */
bool fxa__emit_has_statement(const fxa__emit *e, int32_t node) {
    const fxa__node *n = &e->p->nodes[node];
    return n->op != FXA_OP_CONST && n->op != FXA_OP_PARAM && !(e->given[node] && e->level[node] == FXA__EMIT_RUN);
}

void fxa__lower_emit_value(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const emit_dialect *dialect = &emit_dialects[e->dialect];
    FXA__ASSERT(node >= 0 && node < e->p->n_nodes);
    const fxa__node *n = &e->p->nodes[node];
    if (fxa__emit_has_statement(e, node))
        fxa__write_format(w, "%sv%d", e->hoisted[node] ? dialect->hoisted_prefix : "", (int)node);
    else if (e->given[node])
        fxa__write_format(w, "%s", e->given[node]);
    else if (n->op == FXA_OP_PARAM)
        fxa__write_format(w, "%s%c[%d]", dialect->args, n->type == FXA_FLOAT ? 'f' : 'i',
                          (int)fxa__lower_emit_param(e->p, n->imm));
    else if (n->type == FXA_FLOAT)
        emit_float(e, n->f, w);
    else
        emit_int(n->imm, w);
}

/* ---- Expressions ------------------------------------------------------------------------------------------------- */

/* Returns true if name[size] equals `other`. */
static bool emit_is_name(const char *name, size_t size, const char *other) {
    return size == strlen(other) && memcmp(name, other, size) == 0;
}

/* Writes one name that occurs in an expression of ops.def: an operand (a, b, c), a type, a function of program_ops.h or
 * <math.h>. */
static void emit_name(const fxa__emit *e, const fxa__node *n, const char *name, size_t size, fxa__writer *w) {
    const emit_dialect *dialect = &emit_dialects[e->dialect];
    if (size == 1) {
        fxa__lower_emit_value(e, n->arg[*name - 'a'], w);
    } else if (emit_is_name(name, size, "int64_t")) {
        fxa__write_format(w, "long long");
    } else if (dialect->tanh && emit_is_name(name, size, "tanh")) {
        fxa__write_format(w, "%s", e->tanh ? e->tanh : dialect->tanh);
    } else if (dialect->trig_prefix && n->op >= FXA_OP_SIN && n->op <= FXA_OP_TAN) {
        fxa__write_format(w, "%s%.*s", dialect->trig_prefix, (int)size, name);
    } else {
        bool math = *name != '_' && (size <= 5 || memcmp(name, "fxa__", 5) != 0);
        fxa__write_format(w, "%.*s%s", (int)size, name, math ? dialect->suffix : "");
    }
}

/* Writes an expression of ops.def with the operands of n in place of a, b and c. */
static void emit_expression(const fxa__emit *e, const fxa__node *n, const char *text, fxa__writer *w) {
    while (*text) {
        size_t size = 1;
        if (isalpha((unsigned char)*text) || *text == '_') {
            while (isalnum((unsigned char)text[size]) || text[size] == '_') size++;
            emit_name(e, n, text, size, w);
        } else if (isdigit((unsigned char)*text)) {
            while (isdigit((unsigned char)text[size]) || text[size] == '.') size++;
            bool point = memchr(text, '.', size) != NULL;
            fxa__write_format(w, "%.*s%s", (int)size, text, point ? emit_dialects[e->dialect].suffix : "");
        } else {
            fxa__write_u8(w, (uint8_t)*text);
        }
        text += size;
    }
}

int fxa__emit_product(const fxa__emit *e, int32_t node) {
    const fxa__node *n = &e->p->nodes[node];
    if (!emit_dialects[e->dialect].fused || n->type != FXA_FLOAT) return -1;
    if (n->op != FXA_OP_ADD && n->op != FXA_OP_SUB) return -1;
    for (int i = 0; i < 2; i++)
        if (e->p->nodes[n->arg[i]].op == FXA_OP_MUL && e->level[n->arg[i]] == e->level[node] && !e->given[n->arg[i]] &&
            !e->unfused[n->arg[i]])
            return i;
    return -1;
}

/* Writes the sum or difference n as a fused multiply-add; `product` is the operand that is the product. */
static void emit_fused(const fxa__emit *e, const fxa__node *n, int product, fxa__writer *w) {
    const fxa__node *mul = &e->p->nodes[n->arg[product]];
    FXA__ASSERT((product == 0 || product == 1) && mul->op == FXA_OP_MUL);
    fxa__write_format(w, n->op == FXA_OP_SUB && product == 1 ? "%s(-" : "%s(", emit_dialects[e->dialect].fused);
    fxa__lower_emit_value(e, mul->arg[0], w);
    fxa__write_format(w, ", ");
    fxa__lower_emit_value(e, mul->arg[1], w);
    fxa__write_format(w, n->op == FXA_OP_SUB && product == 0 ? ", -" : ", ");
    fxa__lower_emit_value(e, n->arg[1 - product], w);
    fxa__write_format(w, ")");
}

/* Writes an int division or remainder by a power of two as a shift or a bit mask, which round down like // and %, for
 * negative operands too. Returns false if n is no such operation. */
static bool emit_power(const fxa__emit *e, const fxa__node *n, fxa__writer *w) {
    if (n->type != FXA_INT || (n->op != FXA_OP_MOD && n->op != FXA_OP_FLOORDIV)) return false;
    const fxa__node *by = &e->p->nodes[n->arg[1]];
    int shift = 0;
    if (by->op != FXA_OP_CONST || by->imm <= 0 || (by->imm & (by->imm - 1)) != 0) return false;
    while (by->imm >> shift != 1) shift++;
    fxa__write_format(w, n->op == FXA_OP_MOD ? "(int)(" : "fxa__shr32(");
    fxa__lower_emit_value(e, n->arg[0], w);
    fxa__write_format(w, n->op == FXA_OP_MOD ? " & %d)" : ", %d)", n->op == FXA_OP_MOD ? (int)by->imm - 1 : shift);
    return true;
}

/* Returns true for squares and cubes in a dialect that writes them as products. A call of pow would take a hundred
 * instructions and be no more accurate. */
bool fxa__emit_is_small_power(const fxa__emit *e, const fxa__node *n) {
    if (!emit_dialects[e->dialect].small_powers || n->op != FXA_OP_POW) return false;
    const fxa__node *by = &e->p->nodes[n->arg[1]];
    return by->op == FXA_OP_CONST && (by->f == 2 || by->f == 3);
}

/* Writes a square or cube as products. Returns false if n is no such power. */
static bool emit_small_power(const fxa__emit *e, const fxa__node *n, fxa__writer *w) {
    const char *product = emit_dialects[e->dialect].small_powers;
    if (!fxa__emit_is_small_power(e, n)) return false;
    const fxa__node *by = &e->p->nodes[n->arg[1]];
    for (int i = (int)by->f; i > 1; i--) fxa__write_format(w, "%s(", product);
    fxa__lower_emit_value(e, n->arg[0], w);
    for (int i = (int)by->f; i > 1; i--) {
        fxa__write_format(w, ", ");
        fxa__lower_emit_value(e, n->arg[0], w);
        fxa__write_format(w, ")");
    }
    return true;
}

/* Returns the C expression of n's operation on ints. // and % have a shorter expression if the dividend is never
 * negative. */
static const char *emit_ints(const fxa__emit *e, const fxa__node *n) {
    if (n->op == FXA_OP_FLOORDIV && e->nonnegative[n->arg[0]]) return "fxa__plusdiv32(a, b)";
    if (n->op == FXA_OP_MOD && e->nonnegative[n->arg[0]]) return "fxa__plusmod32(a, b)";
    return emit_rows[n->op].ints;
}

static void emit_operation(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const fxa__node *n = &e->p->nodes[node];
    /* type of operand 0, or of operand 1 for select, whose operand 0 is the condition */
    uint32_t type = e->p->nodes[n->arg[n->op == FXA_OP_SELECT]].type;
    const char *const *unfused = emit_dialects[e->dialect].unfused;
    int product = fxa__emit_product(e, node);
    const char *text = type == FXA_FLOAT ? emit_rows[n->op].floats
                       : type == FXA_INT ? emit_ints(e, n)
                                         : emit_rows[n->op].bools;
    if (product >= 0) {
        emit_fused(e, n, product, w);
        return;
    }
    if (emit_power(e, n, w) || emit_small_power(e, n, w)) return;
    if (type == FXA_FLOAT && unfused[0] && n->op >= FXA_OP_ADD && n->op <= FXA_OP_MUL)
        text = unfused[n->op - FXA_OP_ADD];
    FXA__ASSERT(text && strcmp(text, "NA") != 0);
    fxa__write_format(w, n->type == FXA_FLOAT ? "(real)(" : "(int)(");
    emit_expression(e, n, text, w);
    fxa__write_format(w, ")");
}

/* Returns true if the node is a load of i64. Such a load has two variables: v<node>, saturated to 32 bits, and w<node>,
 * all 64 bits, for == and !=. */
static bool emit_is_i64_load(const fxa__emit *e, const fxa__node *n) {
    return n->op == FXA_OP_LOAD && e->p->tensors[n->imm].dtype == FXA_I64;
}

/* ---- Levels ------------------------------------------------------------------------------------------------------ */

/* Writes the left side of an assignment up to " = ": a hoisted variable, or the declaration of a local constant. letter
 * is 'v' for the value of a node, 'w' for the 64 bits of an i64 load. */
static void emit_left_side(const fxa__emit *e, int32_t node, const char *type, char letter, fxa__writer *w) {
    if (e->hoisted[node])
        fxa__write_format(w, "    %s%c%d = ", emit_dialects[e->dialect].hoisted_prefix, letter, (int)node);
    else
        fxa__write_format(w, "    const %s %c%d = ", type, letter, (int)node);
}

/* Writes the name of the variable with all 64 bits of an i64 load. */
static void emit_i64_name(const fxa__emit *e, int32_t node, fxa__writer *w) {
    fxa__write_format(w, "%sw%d", e->hoisted[node] ? emit_dialects[e->dialect].hoisted_prefix : "", (int)node);
}

static void emit_right_side(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const fxa__node *n = &e->p->nodes[node];
    if (e->given[node]) {
        fxa__write_format(w, "%s", e->given[node]);
    } else if (n->op == FXA_OP_INPUT) {
        fxa__write_format(w, "%s", fxa__input_name((uint32_t)n->imm));
    } else if (emit_is_i64_load(e, n)) {
        fxa__write_format(w, "fxa__sat32(");
        emit_i64_name(e, node, w);
        fxa__write_format(w, ")");
    } else if (n->op == FXA_OP_LOAD) {
        fxa__emit_element(e, node, emit_dtypes[e->p->tensors[n->imm].dtype], w);
    } else if (fxa__node_compares_wide(e->p, n) && !(e->given[n->arg[0]] && e->given[n->arg[1]])) {
        emit_i64_name(e, n->arg[0], w);
        fxa__write_format(w, n->op == FXA_OP_EQ ? " == " : " != ");
        emit_i64_name(e, n->arg[1], w);
    } else {
        emit_operation(e, node, w);
    }
}

static void emit_statement(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const fxa__node *n = &e->p->nodes[node];
    if (n->op == FXA_OP_LOAD && !e->given[node]) fxa__emit_address(e, node, w);
    if (emit_is_i64_load(e, n) && !e->given[node]) {
        emit_left_side(e, node, "long long", 'w', w);
        fxa__emit_element(e, node, "whole", w);
        fxa__write_format(w, ";\n");
    }
    emit_left_side(e, node, emit_type(n), 'v', w);
    emit_right_side(e, node, w);
    fxa__write_format(w, ";\n");
}

void fxa__lower_emit_hoisted(const fxa__emit *e, fxa__emit_level level, fxa__writer *w) {
    for (int32_t i = 0; i < e->p->n_nodes; i++) {
        const fxa__node *n = &e->p->nodes[i];
        if (level == FXA__EMIT_HEAD && e->base[i] == 2)
            fxa__write_format(w, "    const char *d%d;\n    int n%d;\n", (int)i, (int)i);
        if (!e->hoisted[i] || e->level[i] != level) continue;
        fxa__write_format(w, "    %s v%d;\n", emit_type(n), (int)i);
        if (emit_is_i64_load(e, n)) fxa__write_format(w, "    long long w%d;\n", (int)i);
    }
}

void fxa__lower_emit_nodes(const fxa__emit *e, fxa__emit_level level, uint32_t kinds, fxa__writer *w) {
    for (int32_t i = 0; i < e->p->n_nodes; i++)
        if (e->level[i] == level && (e->used[i] & kinds) && fxa__emit_has_statement(e, i)) emit_statement(e, i, w);
}
