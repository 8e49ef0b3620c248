/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions defined in a text: meaning of calls, by the hash of the text without functions; scope of names in a body;
 * errors in definitions and calls; limits.
 */
#include "support/fixtures/own_context.h"
#include "t.h"

static void fn_same_as(fxa_program_kind kind, const char *a, const char *b) {
    const char *text[2] = {a, b};
    fxa_program *p[2] = {NULL, NULL};
    fxa_error err;
    for (int i = 0; i < 2; i++)
        if (own_parse(kind, text[i], SIZE_MAX, &p[i], &err) != FXA_OK)
            T_FAIL("%d:%d: %s in \"%s\"\n", err.line, err.column, err.text, text[i]);
    if (p[0] && p[1] && memcmp(p[0]->hash, p[1]->hash, 16) != 0) T_FAIL("\"%s\" is not \"%s\"\n", a, b);
    fxa_program_destroy(p[0]);
    fxa_program_destroy(p[1]);
}

static void fn_same(const char *a, const char *b) { fn_same_as(FXA_PROGRAM_SCORE, a, b); }

TEST(calls_are_inlined) {
    fn_same("fn f(x) = x * 2.0\nscore = f(score)", "score = score * 2.0");
    fn_same("fn soft(x, c) = c * tanh(x / c); score = soft(score + q, 20)", "score = 20 * tanh((score + q) / 20)");
    fn_same("fn f(x, y) = x - y; fn g(x, y) = f(y, x); score = g(score, q)", "score = q - score");
    fn_same("fn f(x) = x + 1; score = f(f(f(score)))", "score = score + 1.0 + 1.0 + 1.0");
    fn_same("fn f(\n x,\n y\n) =\n x +\n y\nscore = f(score, 1)", "score = score + 1");
    fn_same("fn f() = score + q; score = 2 * f(); score = f()", "score = 2 * (score + q) + q");
    fn_same("fn causal(i, j) = j <= i; mask = causal(q, k) && !causal(q, k + 8)", "mask = k <= q && !(k + 8 <= q)");
    fn_same("fn unused(x) = x && 3 < x", "");
    fn_same_as(FXA_PROGRAM_BPROP, "fn f(g) = g * score; dscore = f(dscore)", "dscore = dscore * score");
}

/* Types are determined at each call. */
TEST(parameters_take_every_type) {
    fn_same("fn twice(x) = x + x; score = twice(score) + twice(q)", "score = score + score + (q + q)");
    fn_same("fn pick(c, x, y) = c ? x : y; mask = pick(q > k, k > 2, q > 3)", "mask = q > k ? k > 2 : q > 3");
    fn_same("fn both(x, y) = x & y; mask = both(q > k, k > 2); score = both(q, k)",
            "mask = q > k && k > 2; score = q & k");
    fn_same("tensor t : f32[2]; fn at(i) = t[i, h]; score = at(q) + at(k - 1)",
            "tensor t : f32[2]; score = t[q, h] + t[k - 1, h]");
}

TEST(arguments_are_taken_once) {
    char text[2000] = "fn f(x) = x + x\nscore = ";
    /* would be 2^40 nodes if each x were replaced by its argument's text */
    for (int i = 0; i < 40; i++) strcat(text, "f(");
    strcat(text, "score");
    for (int i = 0; i < 40; i++) strcat(text, ")");
    t_program *p = NULL;
    T_OK(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err));
    T_INT(fxa_program_node_count(p), 42); /* score, 40 sums, true */
}

TEST(a_body_sees_the_names_of_its_definition) {
    /* A let with the same name after the definition has no effect. */
    fn_same("let a = 1.0; fn f(x) = x * a; let a = 2.0; score = f(score) + a", "score = score * 1.0 + 2.0");
    /* Nor has a parameter of the calling function, or the variable of a loop around the call. */
    fn_same("let a = 3.0; fn f(x) = x * a; fn g(a) = f(a) + a; score = g(score)", "score = score * 3.0 + score");
    fn_same("let i = 5; fn f(x) = x * i; score = score + sum(i, 3, f(i))", "score = score + (0 * 5 + 1 * 5 + 2 * 5)");
    /* A parameter hides a let of the same name, which is visible again after the definition. */
    fn_same("let a = 3.0; fn f(a) = a + 1; score = f(score) * a", "score = (score + 1.0) * 3.0");
    /* Loop variables in a body are local, whatever names the caller defines later. */
    fn_same("fn f(x) = sum(i, 3, x * i); param i : float; score = f(score) + i",
            "param i : float; score = sum(j, 3, score * j) + i");
    fn_same("fn f(x) = sum(x, 3, x) + x; score = score + f(q)", "score = score + (3 + q)");
    fn_same("fn f(x) = sum(i, 2, sum(i, 3, i) + i * x); score = score + sum(i, 2, f(i))",
            "score = score + sum(n, 2, sum(j, 2, 3 + j * n))");
    /* A later function with the same name. */
    fn_same("fn f(x) = x + 1; fn g(x) = f(x); fn f(x) = x * 7; score = g(score) + f(score)",
            "score = (score + 1.0) + score * 7.0");
    /* Assigned values are read as of the call. */
    fn_same("fn f(x) = x + score; score = score * 2; score = f(1.5)", "score = 1.5 + score * 2");
    fn_same("fn f(x) = mask && x; mask = k <= q; mask = f(k > 3)", "mask = k <= q && k > 3");
}

TEST(offers_are_declared_by_calls) {
    fxa_text text = {NULL, "fn f(x) = x * gain + bias[h]", SIZE_MAX};
    fxa_declaration offers[] = {{"gain", FXA_FLOAT, FXA_DTYPE_NONE, 0}, {"bias", 0, FXA_F16, 1}};
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    fxa_program *p = NULL, *plain = NULL;
    c.texts = &text;
    c.n_texts = 1;
    c.declarations = offers;
    c.n_declarations = 2;
    T_OK(fxa_program_parse_texts(ctx, &c, &p, &err));
    /* not called: its declarations count as unused */
    T_INT(fxa_program_param_count(p) + fxa_program_tensor_count(p), 0);
    fxa_program_destroy(p);
    text.data = "fn f(x) = x * gain + bias[h]; score = f(score); score = score + gain; score = f(score)";
    T_OK(fxa_program_parse_texts(ctx, &c, &p, &err));
    text.data = "score = score * gain + bias[h] + gain; score = score * gain + bias[h]";
    T_OK(fxa_program_parse_texts(ctx, &c, &plain, &err));
    T_CHECK(memcmp(p->hash, plain->hash, 16) == 0);
    fxa_program_destroy(p);
    fxa_program_destroy(plain);
    /* A let of the caller does not hide an offered declaration in the body. */
    text.data = "fn f(x) = x * gain; let gain = 2.0; score = f(score) + gain";
    T_OK(fxa_program_parse_texts(ctx, &c, &p, &err));
    text.data = "score = score * gain + 2.0";
    T_OK(fxa_program_parse_texts(ctx, &c, &plain, &err));
    T_CHECK(memcmp(p->hash, plain->hash, 16) == 0);
    fxa_program_destroy(p);
    fxa_program_destroy(plain);
    text.data = "fn f(x) = gain[x]";
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "'gain' is a param; only a tensor has elements");
    text.data = "fn f(x) = bias[x, x]";
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "tensor 'bias' has rank 1, so it takes 1 index; 2 given");
}

typedef struct fn_row {
    const char *text;
    int line, column, length;
    const char *message;
} fn_row;

static void fn_check(const fn_row *table, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const fn_row *t = &table[i];
        fxa_error err = {0};
        t_program *p = NULL;
        fxa_status s = own_parse(FXA_PROGRAM_SCORE, t->text, SIZE_MAX, &p, &err);
        bool placed = err.line == t->line && err.column == t->column && err.length == t->length;
        if (s == FXA_OK || p || !placed || !strstr(err.text, t->message))
            T_FAIL("\"%s\"\n  gives %s %d:%d+%d %s\n  not %d:%d+%d %s\n", t->text, fxa_status_name(s), err.line,
                   err.column, err.length, err.text, t->line, t->column, t->length, t->message);
    }
}

TEST(errors_of_definitions) {
    static const fn_row table[] = {
        {"fn 3(x) = x", 1, 4, 1, "expected the name of the function, found '3'"},
        {"fn tanh(x) = x", 1, 4, 4, "'tanh' is a word of the language and cannot be a function"},
        {"let f = 1; fn f(x) = x", 1, 15, 1, "'f' is a let already and cannot be a function"},
        {"fn f(x) = x; let f = 1", 1, 18, 1, "'f' is a function already and cannot be a let"},
        {"fn f(x) = x; param f : int", 1, 20, 1, "'f' is a function already and cannot be a param"},
        {"fn f = 1", 1, 6, 1, "expected '(' and the parameters, as in fn f(x, y) = x * y, found '='"},
        {"fn f(3) = 1", 1, 6, 1, "expected the name of a parameter, found '3'"},
        {"fn f(x,) = 1", 1, 8, 1, "expected the name of a parameter, found ')'"},
        {"fn f(q) = 1", 1, 6, 1, "'q' is a word of the language and cannot name a parameter"},
        {"fn f(f) = 1", 1, 6, 1, "'f' is a function already and cannot name a parameter"},
        {"param p : int; fn f(p) = 1", 1, 21, 1, "'p' is a param already and cannot name a parameter"},
        {"fn f(x, y, x) = 1", 1, 12, 1, "'x' names two parameters of 'f'"},
        {"fn f(x : float) = 1", 1, 8, 1, "parameters have no types of their own"},
        {"fn f(x = 1", 1, 8, 1, "found '='"},
        {"fn f(x", 1, 5, 1, "this '(' is never closed"},
        {"fn f(x): x", 1, 8, 1, "expected '=' and the expression that the function is, found ':'"},
        {"fn f(x) = ", 1, 11, 1, "expected a value, found the end of the text"},
        {"fn f(x) = x 2", 1, 13, 1, "expected an operator or the end of the statement, found '2'"},
        {"fn f(x) = (x\nscore = 1", 1, 11, 1, "this '(' is never closed"},
        {"fn f(x) = x + yy", 1, 15, 2, "unknown name 'yy'"},
        {"fn f(x) = tahn(x)", 1, 11, 4, "did you mean 'tanh'?"},
        {"fn f(x) = x * f(x - 1)", 1, 15, 1, "'f' cannot call itself"},
        {"fn f(x) = 1; fn f(x) = f(x)", 1, 24, 1, "'f' cannot call itself"},
        {"fn f(x) = g(x); fn g(x) = x", 1, 11, 1, "unknown"},
        {"fn f(x) = tanh(x, x)", 1, 11, 10, "'tanh' takes 1 argument; 2 given"},
        {"fn f(x) = x[1]", 1, 11, 1, "'x' is a parameter; only a tensor has elements"},
        {"fn f(x) = x(1)", 1, 11, 1, "'x' is a parameter and cannot be called"},
        {"fn f(x) = sum(q, 3, x)", 1, 15, 1, "'q' is a word of the language and cannot name a loop"},
        {"fn f(x) = x < 1 < 2", 1, 17, 1, "comparisons do not chain"},
        {"fn f(x) = 99999999999", 1, 11, 11, "larger than 2147483647"},
        {"fn f(x) = dscore", 1, 11, 6, "'dscore' is of backward programs"},
        {"fn f(x) = let", 1, 11, 3, "'let' begins a statement"},
        {"fn f(x) = x @", 1, 13, 1, "stray character '@'"},
        {"fn f(x) = x; fn g(y) = f(y); let a = g(q); score = y", 1, 52, 1, "unknown name 'y'"},
        {"score = fn", 1, 9, 2, "'fn' begins a statement and has no value"},
        {"f(x) = 3", 1, 1, 1, "expected a statement: param, tensor, let, fn,"},
    };
    fn_check(table, sizeof table / sizeof *table);
}

TEST(errors_of_calls_say_from_where) {
    static const fn_row table[] = {
        {"fn f(x, y) = x; score = f(score)", 1, 25, 8, "'f' takes 2 arguments, f(x, y); 1 given"},
        {"fn f(x) = x; score = f()", 1, 22, 3, "'f' takes 1 argument, f(x); 0 given"},
        {"fn f(x) = x; score = f() + 1", 1, 22, 3, "'f' takes 1 argument, f(x); 0 given"},
        {"fn f() = 1; score = f(1, 2)", 1, 21, 7, "'f' takes 0 arguments, f(); 2 given"},
        {"fn f(x) = x; score = f", 1, 22, 1, "'f' is a function; write f(...)"},
        {"fn f(x) = x; score = f(1", 1, 23, 1, "this '(' is never closed"},
        {"fn f(x) = x; score = f(1,)", 1, 26, 1, "expected a value, found ')'"},
        {"fn f(an_argument_of_thirty_characters, another_of_about_thirty_or_more, the_third_of_them_all_, d) = d\n"
         "score = f(1)",
         2, 9, 4, "another_of_about_thirty_or_more, the_third_of_them_all_, ...); 1 given"},
        {"fn soft(x) = x; score = sotf(1)", 1, 25, 4, "did you mean 'soft'?"},
        {"fn f(x) = x << 1\n\nscore = f(score)", 1, 13, 2,
         "'<<' takes ints, not float and int; in f, called at line 3"},
        {"fn f(x) = !x\nfn g(y) = f(y)\nscore = g(q)", 1, 12, 1,
         "'!' needs a bool, this is an int; compare it, as in x != 0; in f, called at line 2; in g, called at line 3"},
        {"fn f(n) = sum(i, n, i)\nscore = f(q)", 1, 18, 1,
         "constant int; no float, input, param or tensor can be in it; in f, called at line 2"},
        {"tensor t : f32[1]\nfn f(x) = t[x]\nscore = f(score)", 2, 13, 1,
         "an index is an int, this is a float; write int(...); in f"},
        {"fn f(x) = x ? 1 : 2; score = f(1)", 1, 11, 1, "the condition of '?' needs a bool, this is an int"},
        {"fn f(x) = any(i, 2, x); mask = f(1)", 1, 21, 1, "the body of 'any' and 'all' needs a bool, this is an int"},
        {"fn f(x) = where(x, 1, 2); score = f(1)", 1, 17, 1, "the condition of 'where' needs a bool"},
        {"fn f(x) = x && true; mask = f(1)", 1, 11, 1, "'&&' needs a bool, this is an int"},
        {"fn f(x) = q > 1 || x; mask = f(1)", 1, 20, 1, "'||' needs a bool, this is an int"},
        {"fn f(x) = x; score = f(1) + @", 1, 29, 1, "stray character '@'"},
    };
    fn_check(table, sizeof table / sizeof *table);
}

TEST(a_call_from_another_text_says_which) {
    fxa_text texts[2] = {{"lib.fxa", "fn f(x) = x & 1", SIZE_MAX}, {"main.fxa", "\nscore = f(score)", SIZE_MAX}};
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    fxa_program *p = NULL;
    c.texts = texts;
    c.n_texts = 2;
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_PROGRAM);
    T_INT(err.part, 0);
    T_HAS(err.text, "; in f, called at line 2 of main.fxa");
    texts[1].name = NULL;
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "; in f, called at line 2 of text 2");
}

/* f0 calls nothing, f1 calls f0 twice, and so on: 2^n calls. */
TEST(work_and_nesting_have_ends) {
    static char text[20000];
    fxa_program *p = NULL;
    size_t used = (size_t)snprintf(text, sizeof text, "fn f0(x) = x + 1.0\n");
    for (int i = 1; i < 40; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "fn f%d(x) = f%d(x) + f%d(x)\n", i, i - 1, i - 1);
    snprintf(text + used, sizeof text - used, "score = f39(score)");
    T_STATUS(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err), FXA_E_LIMIT);
    T_HAS(err.text, "loops and calls read more than 250000 tokens again");
    T_HAS(err.text, "; in f0, called at line 2; in f1, called at line 3");
    used = (size_t)snprintf(text, sizeof text, "fn f0(x) = x + 1.0\n");
    for (int i = 1; i < 300; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "fn f%d(x) = f%d(x)\n", i, i - 1);
    snprintf(text + used, sizeof text - used, "score = f299(score)");
    T_STATUS(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err), FXA_E_LIMIT);
    T_HAS(err.text, "nested deeper than 256 levels");
    snprintf(text + used, sizeof text - used, "score = f200(score)");
    T_OK(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err));
    fxa_program_destroy(p);
    T_STATUS(own_parse(FXA_PROGRAM_SCORE, "fn f(a,b1,c,d,e,f1,g,h1,i,j,k1,l,m,n,o,p,r) = a", SIZE_MAX, &p, &err),
             FXA_E_LIMIT);
    T_HAS(err.text, "a function has at most 16 parameters");
    T_OK(own_parse(
        FXA_PROGRAM_SCORE,
        "fn f(a,b1,c,d,e,f1,g,h1,i,j,k1,l,m,n,o,p) = a - p; score = f(1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16)",
        SIZE_MAX, &p, &err));
    fxa_program_destroy(p);
}

T_MAIN
