/* SPDX-License-Identifier: Apache-2.0
 *
 * `help language`: the language of programs on one or two screens. Operators, functions and inputs come from the
 * library's tables; statements and loops are listed in this file.
 */
#include "help/help.h"

#include <string.h>

typedef struct language_line {
    const char *form, *about;
} language_line;

static const language_line language_statements[] = {
    {"param NAME : float",
     "a float whose value is given to each run (: int for an int); = 20 at the end of the line sets a default"},
    {"tensor NAME : DTYPE[RANK]",
     "a captured tensor of rank 0 to 5; DTYPE is f64, f32, f16, bf16, e4m3, e5m2, i64, i32, i16, i8, u8 or bool; f64 "
     "is rounded to f32 unless Q is f64; i64 saturates to 32 bits"},
    {"let NAME = EXPR", "a name for the value of EXPR"},
    {"fn NAME(X, Y) = EXPR", "a function; a call is replaced by EXPR, with the arguments in place of X and Y"},
    {"score = EXPR", "sets the new score, a float; without such a line it is scale * q.k"},
    {"mask = EXPR", "sets the mask, a bool that is true for attended pairs; without such a line it is true"},
    {"dscore = EXPR", "in backward programs (--bprop): sets the gradient with respect to the raw score"},
};
static const language_line language_loops[] = {
    {"sum(i, n, EXPR)", "the sum of EXPR for i = 0 to n - 1; n is a constant"},
    {"any(i, n, EXPR)", "true if EXPR is true for at least one i from 0 to n - 1"},
    {"all(i, n, EXPR)", "true if EXPR is true for every i from 0 to n - 1"},
};
static const language_line language_values[] = {
    {"12  0x1F", "an int of 32 bits; sums and products wrap around"},
    {"1.5  1e-3  inf  nan  pi", "a float"},
    {"true  false", "a bool; converted to 1 or 0 where a number is needed"},
    {"NAME[i, j]", "an element of a tensor; a negative index counts from the end, an index out of bounds reads 0"},
    {"", "an i64 element saturates to 32 bits, but == and != of two i64 elements compare all 64 bits"},
};
static const char *const language_inputs[FXA_INPUT_COUNT] = {
    [FXA_INPUT_SCORE] = "float: the score of the pair, multiplied by the scale",
    [FXA_INPUT_B] = "int: index of the batch entry",
    [FXA_INPUT_H] = "int: index of the query head",
    [FXA_INPUT_Q] = "int: position of the query",
    [FXA_INPUT_K] = "int: position of the key",
    [FXA_INPUT_Q_LEN] = "int: number of query rows of this batch entry",
    [FXA_INPUT_K_LEN] = "int: number of keys of this batch entry",
    [FXA_INPUT_DSCORE] = "float: the gradient with respect to the new score; in backward programs only",
    [FXA_INPUT_HEADS] = "int: number of query heads",
    [FXA_INPUT_Q_ROW] = "int: index of the row in Q, from 0; --bottom-right shifts q, but not q_row",
    [FXA_INPUT_K_ROW] = "int: index of the key in K, from 0",
};

#define LANGUAGE_COLUMN 30
#define LANGUAGE_COUNT(list) (sizeof(list) / sizeof(list)[0])

/* Returns how an operation is written, as in "x + y", "-x", "clamp(x, lo, hi)"; owned by c. */
static const char *language_form(cli *c, const fxa_op_syntax_info *s) {
    static const char *const args[] = {"", "x", "x, y", "x, y, z"};
    if (s->form == FXA_SYNTAX_INFIX) return cli_format(c, "x %s y", s->text);
    if (s->form == FXA_SYNTAX_PREFIX) return cli_format(c, "%sx", s->text);
    const char *list = s->op == FXA_OP_CLAMP                                       ? "x, lo, hi"
                       : s->op == FXA_OP_SELECT                                    ? "c, x, y"
                       : s->op == FXA_OP_MIN || s->op == FXA_OP_MAX                ? "x, y, ..."
                       : s->arity >= 0 && s->arity < (int32_t)LANGUAGE_COUNT(args) ? args[s->arity]
                                                                                   : "...";
    return cli_format(c, "%s(%s)", s->text, list);
}

/* Returns the first spelling of an operation with two spellings; NULL if s is the first. */
static const char *language_first(const fxa_op_syntax_info *s) {
    for (size_t i = 0;; i++) {
        fxa_op_syntax_info x = fxa_op_syntax(i);
        if (!x.text || strcmp(x.text, s->text) == 0) return NULL;
        if (x.op == s->op) return x.text;
    }
}

static const char *language_about(cli *c, const fxa_op_syntax_info *s) {
    const char *first = language_first(s);
    if (!first) return s->about;
    return cli_format(c, "the same as %s%s", first, s->form == FXA_SYNTAX_CALL ? "" : ", for bools");
}

static void language_line_add(cli_buf *out, const char *form, const char *about) {
    buf_printf(out, "  %-*s", LANGUAGE_COLUMN - 2, form);
    if (strlen(form) + 2 >= LANGUAGE_COLUMN) buf_printf(out, "\n%*s", LANGUAGE_COLUMN, "");
    buf_wrapped(out, LANGUAGE_COLUMN, about);
}

static void language_section(cli_buf *out, const char *title, const language_line *lines, size_t n) {
    buf_printf(out, "%s\n", title);
    for (size_t i = 0; i < n; i++) language_line_add(out, lines[i].form, lines[i].about);
}

static int32_t language_max_level(void) {
    int32_t top = 0;
    fxa_op_syntax_info s;
    for (size_t i = 0; (s = fxa_op_syntax(i)).text; i++)
        if (s.level > top) top = s.level;
    return top;
}

static void language_operators(cli *c) {
    int32_t top = language_max_level();
    buf_text(&c->out, "\nOperators, from lowest to highest precedence\n");
    language_line_add(&c->out, "c ? x : y", "the same as where(c, x, y); groups to the right");
    for (int32_t level = 1; level <= top; level++) {
        bool first = true;
        fxa_op_syntax_info s;
        for (size_t i = 0; (s = fxa_op_syntax(i)).text; i++) {
            if (s.level != level) continue;
            bool chains = strcmp(s.groups, "left") == 0 || strcmp(s.groups, "right") == 0;
            const char *groups = !first ? "" : chains ? cli_format(c, "; groups to the %s", s.groups) : s.groups;
            language_line_add(
                &c->out, language_form(c, &s),
                cli_format(c, "%s%s%s", language_about(c, &s), *groups && !chains ? "; comparisons " : "", groups));
            first = false;
        }
    }
}

void help_language(cli *c) {
    cli_buf *out = &c->out;
    fxa_op_syntax_info s;
    buf_text(out, "A program defines how the score of a pair (query q, key k) changes and whether it is attended:\n\n"
                  "  param cap : float              # --param cap=20\n"
                  "  score = cap * tanh(score / cap)\n"
                  "  mask  = k <= q && q - k < 1024\n\n");
    language_section(out, "Statements, one per line or separated by ; (# begins a comment)", language_statements,
                     LANGUAGE_COUNT(language_statements));
    buf_text(out, "\nInputs\n");
    for (int i = 0; i < FXA_INPUT_COUNT; i++)
        language_line_add(out, fxa_input_name((fxa_input)i), language_inputs[i] ? language_inputs[i] : "");
    buf_text(out, "\n");
    language_section(out, "Values", language_values, LANGUAGE_COUNT(language_values));
    language_operators(c);
    buf_text(out, "\nFunctions\n");
    for (size_t i = 0; (s = fxa_op_syntax(i)).text; i++)
        if (s.form == FXA_SYNTAX_CALL) language_line_add(out, language_form(c, &s), language_about(c, &s));
    buf_text(out, "\n");
    language_section(out, "Loops", language_loops, LANGUAGE_COUNT(language_loops));
    buf_text(out, "\n'fxattn gallery' has programs to start from; docs/program.md is the complete reference.\n");
}

static void language_json_lines(json *j, const char *key, const language_line *lines, size_t n) {
    json_open(j, key, '[');
    for (size_t i = 0; i < n; i++) {
        json_open(j, NULL, '{');
        json_string(j, "form", lines[i].form);
        json_string(j, "about", lines[i].about);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void language_json_spellings(cli *c, json *j, const char *key, bool calls) {
    fxa_op_syntax_info s;
    json_open(j, key, '[');
    for (size_t i = 0; (s = fxa_op_syntax(i)).text; i++) {
        if ((s.form == FXA_SYNTAX_CALL) != calls) continue;
        json_open(j, NULL, '{');
        json_string(j, "name", s.text);
        json_string(j, "form", language_form(c, &s));
        json_int(j, "operands", s.arity);
        if (!calls) {
            json_int(j, "level", s.level);
            json_string(j, "groups", s.groups);
        }
        json_string(j, "about", language_about(c, &s));
        json_close(j, '}');
    }
    json_close(j, ']');
}

void help_language_json(cli *c) {
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    language_json_lines(&j, "statements", language_statements, LANGUAGE_COUNT(language_statements));
    json_open(&j, "inputs", '[');
    for (int i = 0; i < FXA_INPUT_COUNT; i++) {
        json_open(&j, NULL, '{');
        json_string(&j, "name", fxa_input_name((fxa_input)i));
        json_string(&j, "about", language_inputs[i] ? language_inputs[i] : "");
        json_close(&j, '}');
    }
    json_close(&j, ']');
    language_json_lines(&j, "values", language_values, LANGUAGE_COUNT(language_values));
    language_json_spellings(c, &j, "operators", false);
    language_json_spellings(c, &j, "functions", true);
    language_json_lines(&j, "loops", language_loops, LANGUAGE_COUNT(language_loops));
    json_close(&j, '}');
}
