/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints row bytecode as text for reports: the instructions of each level, from those executed once per batch entry to
 * those executed for each (row, key) pair. A register is printed as the letter of its level and its number ("r2"). A
 * register that holds an input, a param or a constant is printed as the name or value that it holds.
 */
#include "tape_code.h"

typedef struct tape_text {
    const fxa__tape *tape;
    const fxa_program *program; /* the program that the tape was made from; has the names of params and tensors */
    fxa__writer *w;
    int level; /* the level whose instructions are printed */
} tape_text;

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

static const fxa__tape_leaf *text_leaf_at(const fxa__tape *tape, const fxa__tape_place *place) {
    for (size_t i = 0; i < tape->n_leaves; i++)
        if (tape->leaves[i].level == place->space && tape->leaves[i].reg == place->reg) return &tape->leaves[i];
    return NULL;
}

static void text_leaf(const tape_text *t, const fxa__tape_leaf *leaf) {
    if (leaf->op == FXA_OP_INPUT)
        fxa__write_format(t->w, "%s", fxa__input_name((uint32_t)leaf->imm));
    else if (leaf->op == FXA_OP_PARAM)
        fxa__write_format(t->w, "%s", t->program->params[leaf->imm].name);
    else if (leaf->type == FXA_FLOAT)
        fxa__write_format(t->w, "%.9g", leaf->f);
    else
        fxa__write_format(t->w, "%d", (int)leaf->imm);
}

static void text_place(const tape_text *t, int32_t number) {
    static const char *const rows[TAPE_SPACES] = {[TAPE_SCORE] = "score", [TAPE_DSCORE] = "dscore", [TAPE_OUT] = "out"};
    static const char letters[] = "urcsx";
    const fxa__tape_place *place = &t->tape->level[t->level].places[number];
    const fxa__tape_leaf *leaf = place->space < TAPE_LEVELS ? text_leaf_at(t->tape, place) : NULL;
    if (rows[place->space])
        fxa__write_format(t->w, "%s", rows[place->space]);
    else if (leaf)
        text_leaf(t, leaf);
    else
        fxa__write_format(t->w, "%c%d", letters[place->space], (int)place->reg);
}

/* Prints sign * k plus an operand: "-k + r1". */
static void text_line(const tape_text *t, int sign, int32_t place) {
    const fxa__tape_leaf *leaf = text_leaf_at(t->tape, &t->tape->level[t->level].places[place]);
    fxa__write_format(t->w, sign < 0 ? "-k" : "k");
    if (leaf && leaf->op == FXA_OP_CONST && leaf->imm == 0) return;
    fxa__write_format(t->w, " + ");
    text_place(t, place);
}

/* Prints the element of a tensor that a load reads or a gradient is added to: "t[h, k]". */
static void text_access(const tape_text *t, const fxa__tape_access *a) {
    fxa__write_format(t->w, "%s[", t->program->tensors[a->tensor].name);
    for (int i = 0; i < a->rank; i++) {
        bool line = i == a->axis, bounded = line && a->lo >= 0;
        if (i) fxa__write_format(t->w, ", ");
        if (bounded) fxa__write_format(t->w, "clamp(");
        if (line)
            text_line(t, a->sign, a->index[i]);
        else
            text_place(t, a->index[i]);
        if (!bounded) continue;
        fxa__write_format(t->w, ", ");
        text_place(t, a->lo);
        fxa__write_format(t->w, ", ");
        text_place(t, a->hi);
        fxa__write_format(t->w, ") + ");
        text_place(t, a->shift);
    }
    fxa__write_format(t->w, a->word == 0 ? "]" : a->word == 1 ? "] (bytes 0-3)" : "] (bytes 4-7)");
}

static void text_range(const tape_text *t, const fxa__tape_range *range) {
    const char *compare = range->strict ? " < " : " <= ";
    if (range->side == TAPE_ABOVE) {
        text_place(t, range->bound);
        fxa__write_format(t->w, "%s", compare);
    }
    if (range->side == TAPE_ABS) fxa__write_format(t->w, "abs(");
    text_line(t, range->sign, range->offset);
    if (range->side == TAPE_ABS) fxa__write_format(t->w, ")");
    if (range->side == TAPE_ABOVE) return;
    fxa__write_format(t->w, "%s", range->side == TAPE_AT ? " == " : compare);
    text_place(t, range->bound);
}

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

/* Formats of the operations that text_language_operation cannot print; A, B and C are the operands. */
static const struct text_formula {
    int op;
    const char *formula;
} text_formulas[] = {{FXA_OP_SELECT, "A ? B : C"},
                     {FXA__TAPE_NOT_BOOL, "!A"},
                     {FXA__TAPE_FILL, "A"},
                     {FXA__TAPE_COPY, "A"},
                     {FXA__TAPE_FMA, "A * B + C"},
                     {FXA__TAPE_FMS, "A * B - C"},
                     {FXA__TAPE_FNMA, "C - A * B"},
                     {FXA__TAPE_TANH_MUL, "tanh(A * B) * C"},
                     {FXA__TAPE_TANH_DIV, "tanh(A / B) * C"},
                     {FXA__TAPE_SLOPE, "mulz(A, C - B * B)"},
                     {FXA__TAPE_FLOAT_ADD, "float(A + B)"},
                     {FXA__TAPE_FLOAT_SUB, "float(A - B)"},
                     {FXA__TAPE_LINE_UP, "B * float(C + A)"},
                     {FXA__TAPE_LINE_DOWN, "B * float(C - A)"},
                     {FXA__TAPE_MASK_EQ, "A == B ? C : -inf"},
                     {FXA__TAPE_MASK_NE, "A != B ? C : -inf"},
                     {FXA__TAPE_MASK_LT, "A < B ? C : -inf"},
                     {FXA__TAPE_MASK_LE, "A <= B ? C : -inf"},
                     {FXA__TAPE_GUARD, "A == 0 ? 0 : B"}};

/* Prints an operation of the program language in its syntax: "r1 + r2", "-x0", "tanh(x0)". */
static void text_language_operation(const tape_text *t, int op, const int32_t *operands, int n) {
    const fxa__op_info *info = fxa__op_info_get((uint32_t)op);
    if (info->form == FXA__INFIX && n == 2) {
        text_place(t, operands[0]);
        fxa__write_format(t->w, " %s ", info->text);
        text_place(t, operands[1]);
        return;
    }
    fxa__write_format(t->w, info->form == FXA__PREFIX ? "%s" : "%s(", info->text);
    for (int i = 0; i < n; i++) {
        if (i) fxa__write_format(t->w, ", ");
        text_place(t, operands[i]);
    }
    fxa__write_format(t->w, info->form == FXA__PREFIX ? "" : ")");
}

static void text_operation(const tape_text *t, const fxa__tape_ins *ins) {
    const fxa__tape_info *info = &fxa__tape_infos[ins->op];
    const int32_t operands[] = {ins->a, ins->b, ins->c};
    const char *formula = NULL;
    bool adds = info->op == FXA__TAPE_LINE_UP || info->op == FXA__TAPE_LINE_DOWN;
    for (size_t i = 0; i < sizeof text_formulas / sizeof *text_formulas; i++)
        if (text_formulas[i].op == info->op) formula = text_formulas[i].formula;
    text_place(t, ins->dst);
    fxa__write_format(t->w, adds ? " += " : " = ");
    if (!formula)
        text_language_operation(t, info->op, operands, (info->a != '_') + (info->b != '_') + (info->c != '_'));
    for (; formula && *formula; formula++) {
        if (*formula >= 'A' && *formula <= 'C')
            text_place(t, operands[*formula - 'A']);
        else
            fxa__write_bytes(t->w, formula, 1);
    }
    fxa__write_format(t->w, "\n");
}

static void text_instruction(const tape_text *t, const fxa__tape_ins *ins) {
    const fxa__tape *tape = t->tape;
    fxa__write_format(t->w, "    ");
    switch (ins->op) {
    case FXA__TAPE_LOAD:
        text_place(t, ins->dst);
        fxa__write_format(t->w, " = ");
        text_access(t, &tape->accesses[ins->aux]);
        break;
    case FXA__TAPE_RANGE:
        fxa__write_format(t->w, "out = -inf unless ");
        text_range(t, &tape->ranges[ins->aux]);
        break;
    case FXA__TAPE_SUM:
        fxa__write_format(t->w, "grad %s += ", t->program->params[ins->aux].name);
        text_place(t, ins->a);
        break;
    case FXA__TAPE_SCATTER:
        fxa__write_format(t->w, "grad ");
        text_access(t, &tape->accesses[ins->aux]);
        fxa__write_format(t->w, " += ");
        text_place(t, ins->a);
        break;
    default: text_operation(t, ins); return;
    }
    fxa__write_format(t->w, "\n");
}

/* ---- Formulas of masks ------------------------------------------------------------------------------------------- */

/* Returns the index of the first term of the subexpression that ends at term `last`. Terms are in postfix order. */
static size_t text_begin(const fxa__tape *tape, size_t last) {
    int operands = tape->terms[last].kind == TAPE_BITS_NOT      ? 1
                   : tape->terms[last].kind == TAPE_BITS_SELECT ? 3
                   : tape->terms[last].kind > TAPE_BITS_NOT     ? 2
                                                                : 0;
    for (; operands > 0; operands--) last = text_begin(tape, last - 1);
    return last;
}

/* Prints the subexpression that ends at term `last`. */
static void text_term(const tape_text *t, size_t last) {
    static const char *const between[] = {
        [TAPE_BITS_AND] = " && ", [TAPE_BITS_OR] = " || ", [TAPE_BITS_XOR] = " xor ", [TAPE_BITS_SELECT] = " : "};
    const fxa__tape_term *term = &t->tape->terms[last];
    switch (term->kind) {
    case TAPE_BITS_RANGE: text_range(t, &t->tape->ranges[term->leaf]); return;
    case TAPE_BITS_TEST: text_place(t, t->tape->tests[term->leaf]); return;
    case TAPE_BITS_PART: fxa__write_format(t->w, "m%d", (int)term->leaf); return;
    case TAPE_BITS_NOT:
        fxa__write_format(t->w, "!(");
        text_term(t, last - 1);
        fxa__write_format(t->w, ")");
        return;
    default: break;
    }
    size_t second = text_begin(t->tape, last - 1) - 1; /* last term of the next to last operand */
    fxa__write_format(t->w, "(");
    if (term->kind == TAPE_BITS_SELECT) {
        text_term(t, text_begin(t->tape, second) - 1);
        fxa__write_format(t->w, " ? ");
    }
    text_term(t, second);
    fxa__write_format(t->w, "%s", between[term->kind]);
    text_term(t, last - 1);
    fxa__write_format(t->w, ")");
}

static void text_formula(const tape_text *t) {
    const fxa__tape *tape = t->tape;
    for (size_t i = 0; i < tape->n_parts; i++) {
        fxa__write_format(t->w, "  for each pair, for m%d (true where out is 0)\n", (int)i);
        for (size_t k = 0; k < tape->parts[i].n_ins; k++)
            text_instruction(t, &tape->level[TAPE_FULL].ins[tape->parts[i].ins + k]);
    }
    fxa__write_format(t->w, "  for each row, 64 pairs at a time\n    mask = ");
    text_term(t, tape->n_terms - 1);
    fxa__write_format(t->w, "\n");
}

/* ---- The entire tape --------------------------------------------------------------------------------------------- */

void fxa__tape_print(const fxa__tape *tape, const fxa_program *program, fxa__writer *w) {
    static const char *const often[TAPE_LEVELS] = {"for each batch entry", "for each row", "for each key",
                                                   "for each head and key", "for each pair"};
    tape_text t = {.tape = tape, .program = program, .w = w};
    for (t.level = 0; t.level < TAPE_LEVELS; t.level++) {
        const fxa__tape_level *level = &tape->level[t.level];
        if (t.level == TAPE_FULL && tape->alone) break;
        if (level->n_ins) fxa__write_format(w, "  %s\n", often[t.level]);
        for (size_t i = 0; i < level->n_ins; i++) {
            if (t.level == TAPE_FULL && tape->n_value && i == tape->n_value)
                fxa__write_format(w, "  for each pair, derivative\n");
            text_instruction(&t, &level->ins[i]);
        }
    }
    t.level = TAPE_FULL;
    if (tape->alone) text_formula(&t);
    for (size_t i = 0; !tape->alone && i < tape->n_tests; i++) {
        fxa__write_format(w, "    out = -inf in the entire row unless ");
        text_place(&t, tape->tests[i]);
        fxa__write_format(w, "\n");
    }
}
