/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser: meaning of texts, by value or by the hash of an equivalent text; loops, composition, several texts,
 * offered declarations, arguments. Errors are in test_parse_errors.c, limits in test_parse_limits.c.
 */
#include "support/fixtures/own_context.h"

#include "program/program.h"

static fxa_program *parse_good(const char *text) {
    fxa_error err = {0};
    fxa_program *p = NULL;
    if (own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err) != FXA_OK)
        T_FAIL("%d:%d: %s in \"%s\"\n", err.line, err.column, err.text, text);
    return p;
}

/* Checks that two texts are the same program. */
static void parse_same(const char *a, const char *b) {
    t_program *x = parse_good(a), *y = parse_good(b);
    if (x && y && memcmp(x->hash, y->hash, 16) != 0) T_FAIL("\"%s\" and \"%s\" have different hashes\n", a, b);
}

/* Returns score and mask of a text without params and tensors, at score 0.75, b 1, h 2, q 7, k 3, q_len 16, k_len 24.
 * */
static const double parse_in[FXA_INPUT_COUNT] = {0.75, 1, 2, 7, 3, 16, 24, 0};
static double parse_score(const char *expr) {
    char text[512];
    fxa_error err = {0};
    double value = 0;
    int mask = 0;
    (void)snprintf(text, sizeof text, "score = %s", expr);
    t_program *p = parse_good(text);
    if (p) T_OK(fxa_program_eval(p, parse_in, NULL, NULL, &value, &mask, &err));
    return value;
}
static int parse_mask(const char *expr) {
    char text[512];
    fxa_error err = {0};
    double value = 0;
    int mask = -1;
    (void)snprintf(text, sizeof text, "mask = %s", expr);
    t_program *p = parse_good(text);
    if (p) T_OK(fxa_program_eval(p, parse_in, NULL, NULL, &value, &mask, &err));
    return mask;
}

/* F-02: an empty program is the identity. */
TEST(the_empty_text_is_the_identity) {
    parse_same("", "score = score\nmask = true");
    parse_same("", "  # nothing\n\n;;\n\t# here");
    t_program *p = NULL;
    T_OK(fxa_program_parse(ctx, NULL, 0, &p, &err));
}

TEST(precedence_and_associativity) {
    static const struct {
        const char *expr;
        double value;
    } table[] = {
        /* clang-format off */
        {"2 + 3 * 4", 14}, {"(2 + 3) * 4", 20}, {"10 - 4 - 3", 3}, {"64 / 4 / 2", 8}, {"7 // 2 * 2", 6},
        {"-2 ** 2", -4}, {"(-2) ** 2", 4}, {"2 ** -1", 0.5}, {"2 ** 3 ** 2", 512}, {"-2 ** -2", -0.25},
        {"2 * 3 ** 2", 18}, {"- - 3", 3}, {"+5 - +2", 3}, {"-7 // 2", -4}, {"-7 % 3", 2}, {"7 % -3", -2},
        {"1 << 2 + 1", 8}, {"6 & 3 << 1", 6}, {"1 | 6 ^ 3", 5}, {"4 ^ 6 & 3", 6}, {"1 | 2 & 3", 3},
        {"~5", -6}, {"~5 + 1", -5}, {"1 == 1 ? 2 : 3", 2}, {"q < k ? 1 : k < q ? 2 : 3", 2},
        {"true ? 1 : false ? 2 : 3", 1}, {"2 < 3 && 3 < 2 || true ? 4 : 5", 4}, {"7 / 2", 3.5}, {"7 // 2", 3},
        {"0x10 + 0xFFFFFFFF", 15}, {"0X7fffffff", 2147483647}, {"0x80000000", -2147483648.0},
        {"-2147483648", -2147483648.0},
        {"007", 7}, {".5", 0.5}, {"5.", 5}, {"1e-3", 1e-3}, {"1E+2", 100}, {"1.5e2", 150}, {"inf", INFINITY},
        {"-inf", -INFINITY}, {"pi", 3.14159265358979323846}, {"nan", NAN}, {"0.1", 0.1}, {"1e-999", 0},
        {"4.9406564584124654e-324", 4.9406564584124654e-324}, {"1.7976931348623157e308", 1.7976931348623157e308},
        {"score + b + h + q + k + q_len + k_len", 53.75}, {"pow(2, 10)", 1024}, {"min(3, 1, 2)", 1},
        {"max(1, 2.5, q)", 7}, {"clamp(q, 1, 5)", 5}, {"where(q > k, 10, 20)", 10}, {"int(2.9) + int(-2.9)", 0},
        {"float(true) + 1", 2}, {"abs(k - q)", 4}, {"round(2.5) + round(3.5)", 6}, {"true + true", 2}, {"+true", 1},
        {"mulz(0, inf)", 0}, {"divz(0, 0)", 0}, {"-score ** 2", -0.5625}, {"2147483647 + 1", -2147483648.0},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double got = parse_score(table[i].expr);
        if (!(got == table[i].value || (got != got && table[i].value != table[i].value)))
            T_FAIL("%s is %.17g, not %.17g\n", table[i].expr, got, table[i].value);
    }
}

TEST(bits_bind_tighter_than_comparisons) {
    T_INT(parse_mask("q & 1 == 1"), 1);
    T_INT(parse_mask("q & 3 == k"), 1);
    T_INT(parse_mask("q | 8 != 15"), 0);
    T_INT(parse_mask("!(q < k) && !false || false"), 1);
    T_INT(parse_mask("true ^ (q < k)"), 1);
    T_INT(parse_mask("~(q < k) & (k < q) | false"), 1);
    T_INT(parse_mask("false && true || true"), 1);
    T_INT(parse_mask("true || true && false"), 1);
}

TEST(statements_run_in_order) {
    parse_same("score = score + 1; score = score * 2", "score = (score + 1) * 2");
    parse_same("mask = q >= k\nmask = mask && q - k < 8", "mask = q >= k && q - k < 8");
    parse_same("let a = q; let b_ = a + 1; let a = b_ * 2; score = a", "score = (q + 1) * 2");
    parse_same("score = score * 2\nmask = score > 1.0", "let s = score * 2; mask = s > 1.0; score = s");
    parse_same("param p : float\nparam p : float; tensor t : f32[1]; tensor t : f32[1]; score = t[h] * p",
               "tensor t : f32[1]\nparam p : float; score = p * t[h]");
}

TEST(lines_go_on_in_brackets_and_after_operators) {
    parse_same("score = (score\n  + 1 # one\n)\n", "score = score + 1");
    parse_same("mask = q >= k &&\n\n  # and\n  k >= 0 ||\n false", "mask = q >= k && k >= 0 || false");
    parse_same("score =\r\n  q > k ?\r\n 1 :\r\n 2\r\n", "score = q > k ? 1 : 2");
    parse_same("tensor t : i32[\n1\n]\nscore = t[\nq]", "tensor t : i32[1]; score = t[q]");
    parse_same("\xef\xbb\xbfscore = score + 1", "score = score + 1");
}

TEST(names_order_and_white_space_do_not_matter) {
    parse_same("let a=q-k;mask=a>=0", "let   dist = q - k  # distance\nmask = dist >= 0");
    parse_same("param a : int\nparam b_ : int\nscore = a - b_", "param b_ : int\nparam a : int\nscore = a - b_");
    parse_same("mask = q >= k", "mask = k <= q");
}

TEST(loops_unroll) {
    T_SAME(parse_score("sum(i, 5, i)"), 10);
    T_SAME(parse_score("sum(i, 4, sum(j, i + 1, j * 10 + i))"), 120);
    T_SAME(parse_score("sum(i, 0, score)"), 0);
    T_SAME(parse_score("sum(i, 1 << 6, 1)"), 64);
    T_SAME(parse_score("sum(i, 3, q == i + 6)"), 1);
    T_SAME(parse_score("sum(i, 2, sum(i, 3, i)) + sum(i, 2, i)"), 7);
    T_INT(parse_mask("any(i, 4, q == i + 4)"), 1);
    T_INT(parse_mask("any(i, 3, q == i + 4)"), 0);
    T_INT(parse_mask("all(i, 3, q > i)"), 1);
    T_INT(parse_mask("all(i, 8, q > i)"), 0);
    T_INT(parse_mask("any(i, 0, true)"), 0);
    T_INT(parse_mask("all(i, 0, false)"), 1);
    parse_same("score = sum(i, 3, score * i)", "score = score * 0 + score * 1 + score * 2");
    parse_same("let i = 7; score = sum(i, 2, i) + i", "score = 8");
    parse_same("tensor t : f64[2]; score = score + sum(i, 3, t[q, i] * t[k, i])",
               "tensor t : f64[2]; score = score + (t[q, 0] * t[k, 0] + t[q, 1] * t[k, 1] + t[q, 2] * t[k, 2])");
    /* An empty sum has the type of its body, int, so it can be an index. */
    parse_same("tensor t : f64[1]; score = t[sum(i, 0, q)]", "tensor t : f64[1]; score = t[0]");
}

TEST(backward_programs) {
    fxa_program *p = NULL;
    double value, in[FXA_INPUT_COUNT] = {0.5, 0, 0, 0, 0, 1, 1, 3};
    int mask;
    T_OK(own_parse(FXA_PROGRAM_BPROP, "let t = tanh(score); dscore = dscore * 2; dscore = dscore * (1 - t * t)",
                   SIZE_MAX, &p, &err));
    T_REQUIRE(p);
    T_OK(fxa_program_eval(p, in, NULL, NULL, &value, &mask, &err));
    T_NEAR(value, 6 * (1 - tanh(0.5) * tanh(0.5)), 1e-14);
    fxa_program_destroy(p);
    p = NULL;
    T_OK(own_parse(FXA_PROGRAM_DERIVATIVE,
                   "param c : float; tensor t : f32[2]\n"
                   "grad c += dscore * 2; grad t[h, q + 1] += dscore; dscore = dscore * c",
                   SIZE_MAX, &p, &err));
    T_REQUIRE(p);
    T_INT(p->n_outputs, 3);
    T_INT(p->outputs[1].kind, FXA__OUT_DPARAM);
    T_INT(p->outputs[2].kind, FXA__OUT_DLOAD);
    T_INT(p->outputs[2].n_index, 2);
    fxa_program_destroy(p);
}

TEST(several_texts_are_one_program) {
    fxa_text texts[] = {
        {"a", "param p : float\nscore = score * p", SIZE_MAX}, {"b", "mask = q >= k", 13}, {"c", NULL, 0}};
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    fxa_program *p = NULL, *one = parse_good("param p : float; score = score * p; mask = q >= k");
    c.texts = texts;
    c.n_texts = 3;
    T_OK(fxa_program_parse_texts(ctx, &c, &p, &err));
    T_REQUIRE(p && one);
    T_CHECK(memcmp(p->hash, one->hash, 16) == 0);
    fxa_program_destroy(p);
    fxa_program_destroy(one);
    /* The error names the text; a statement does not continue in the next text. */
    texts[1] = (fxa_text){"b", "\nmask = q >=", SIZE_MAX};
    texts[2] = (fxa_text){"c", "k", SIZE_MAX};
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_PROGRAM);
    T_CHECK(p == NULL);
    T_INT(err.part, 1);
    T_INT(err.line, 2);
    T_INT(err.column, 12);
}

/* An expression is not part of a statement: columns count from its start, and newlines do not end it. */
TEST(texts_that_are_expressions) {
    static const struct {
        uint32_t kind, text_kind;
        const char *text, *canonical, *error; /* text given, or program given; the other is NULL */
        int line, column;
    } cases[] = {
        {0, FXA_TEXT_MASK, "q >=\n k\n || q == 3 # all", "mask = q >= k || q == 3", NULL, 0, 0},
        {0, FXA_TEXT_SCORE, "\n2 * score\n", "score = 2.0 * score", NULL, 0, 0},
        {1, FXA_TEXT_DSCORE, "dscore * 2.0", "dscore = 2.0 * dscore", NULL, 0, 0},
        {0, FXA_TEXT_MASK, "q >", NULL, "expected a value, found the end of the text", 1, 4},
        {0, FXA_TEXT_MASK, "", NULL, "expected a value, found the end of the text", 1, 1},
        {0, FXA_TEXT_MASK, "# nothing", NULL, "expected a value, found the end of the text", 1, 10},
        {0, FXA_TEXT_MASK, "(q > 1", NULL, "this '(' is never closed", 1, 1},
        {0, FXA_TEXT_MASK, "q > 1)", NULL, "this ')' closes nothing", 1, 6},
        {0, FXA_TEXT_MASK, ") || (", NULL, "expected a value, found ')'", 1, 1},
        {0, FXA_TEXT_MASK, "q > 1; score = 1", NULL,
         "expected the end of the expression, found the end of the statement", 1, 6},
        {0, FXA_TEXT_MASK, "q", NULL, "mask needs a bool, this is an int; compare it, as in x != 0", 1, 1},
        {0, FXA_TEXT_SCORE, "q > 1", NULL,
         "score needs a number, this is a bool; write mask = ..., or float(...) for 0 and 1", 1, 1},
        {0, FXA_TEXT_SCORE, "score = 1", NULL,
         "expected an operator or the end of the statement, found '='; write == to compare", 1, 7},
        {0, FXA_TEXT_DSCORE, "score", NULL, "a score program cannot assign 'dscore'; it assigns score and mask", 1, 1},
        {0, FXA_TEXT_SCORE, "gain * score", NULL, "unknown name 'gain'; declare it, for example: param gain : float", 1,
         1},
        {1, FXA_TEXT_MASK, "q > 1", NULL, "a backward program cannot assign 'mask'; it assigns dscore", 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
        fxa_text text = {"expression", cases[i].text, SIZE_MAX};
        t_program *program = NULL;
        config.kind = cases[i].kind;
        config.texts = &text;
        config.n_texts = 1;
        config.text_kinds = &cases[i].text_kind;
        fxa_status status = fxa_program_parse_texts(ctx, &config, &program, &err);
        T_INT(status, cases[i].error ? FXA_E_PROGRAM : FXA_OK);
        if (cases[i].error) {
            T_STR(err.text, cases[i].error);
            T_INT(err.line, cases[i].line);
            T_INT(err.column, cases[i].column);
        } else if (program) {
            char printed[200];
            size_t needed;
            T_OK(fxa_program_print(program, printed, sizeof printed, &needed, &err));
            T_HAS(printed, cases[i].canonical);
        }
    }
}

TEST(masks_that_are_expressions_are_joined) {
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_text texts[] = {{NULL, "q >= k || q == 0", SIZE_MAX},
                        {NULL, "mask = mask && k > 1", SIZE_MAX},
                        {NULL, "q != 7 || b == 0", SIZE_MAX}};
    uint32_t kinds[] = {FXA_TEXT_MASK, FXA_TEXT_STATEMENTS, FXA_TEXT_MASK};
    t_program *joined = NULL, *same = NULL;
    config.texts = texts;
    config.n_texts = 3;
    config.text_kinds = kinds;
    T_OK(fxa_program_parse_texts(ctx, &config, &joined, &err));
    T_OK(fxa_program_parse(ctx, "mask = (q >= k || q == 0) && k > 1 && (q != 7 || b == 0)", SIZE_MAX, &same, &err));
    T_REQUIRE(joined && same);
    T_CHECK(memcmp(joined->hash, same->hash, 16) == 0);
    kinds[1] = 4;
    fxa_program *none = NULL;
    T_INT(fxa_program_parse_texts(ctx, &config, &none, &err), FXA_E_ARGUMENT);
    T_STR(err.text, "text_kinds[1] is 4; 0 to 3 are accepted");
}

TEST(offered_names_are_declared_when_used) {
    fxa_text text = {NULL, "score = score * gain + bias[h]", SIZE_MAX};
    fxa_declaration offers[] = {
        {"gain", FXA_FLOAT, FXA_DTYPE_NONE, 0}, {"bias", 0, FXA_F16, 1}, {"spare", FXA_INT, FXA_DTYPE_NONE, 0}};
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    fxa_program *p = NULL;
    c.texts = &text;
    c.n_texts = 1;
    c.declarations = offers;
    c.n_declarations = 3;
    T_OK(fxa_program_parse_texts(ctx, &c, &p, &err));
    T_REQUIRE(p);
    T_INT(fxa_program_param_count(p), 1);
    T_INT(fxa_program_tensor_count(p), 1);
    T_INT(fxa_program_tensor(p, 0).dtype, FXA_F16);
    fxa_program_destroy(p);
    /* Its own declarations take precedence. */
    text.data = "let gain = q; score = sum(spare, 2, spare + gain)";
    T_OK(fxa_program_parse_texts(ctx, &c, &p, &err));
    T_INT(fxa_program_param_count(p), 0);
    fxa_program_destroy(p);
    text.data = "score = gian";
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "did you mean 'gain'?");
    static const fxa_declaration wrong[] = {{"q", FXA_FLOAT, FXA_DTYPE_NONE, 0},
                                            {"a b", FXA_FLOAT, FXA_DTYPE_NONE, 0},
                                            {"", FXA_FLOAT, FXA_DTYPE_NONE, 0},
                                            {NULL, FXA_FLOAT, FXA_DTYPE_NONE, 0},
                                            {"x", FXA_BOOL, FXA_DTYPE_NONE, 0},
                                            {"x", 0, FXA_F32, 6},
                                            {"x", 0, FXA_F32, -1},
                                            {"sum", 0, FXA_F32, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        c.declarations = &wrong[i];
        c.n_declarations = 1;
        T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_ARGUMENT);
    }
}

/* Function names added to the language later may be used as a program's own names, which then hide the function. */
TEST(later_functions_give_way) {
    parse_same("tensor sign : f32[1]; score = score * sign[h]", "tensor sign : f32[1]; score = sign[h] * score");
    parse_same("let relu = 2.0; score = score * relu", "score = score * 2.0");
    parse_same("fn sign(x) = x + 1; score = sign(score)", "score = score + 1");
    parse_same("score = sum(sign, 3, score * sign)", "score = sum(i, 3, score * i)");
    parse_same("fn f(relu) = relu * 2; score = f(score)", "score = score * 2.0");
    parse_same("fn f(x) = relu(x); let relu = 3.0; score = f(score) + relu", "score = relu(score) + 3.0");
}

TEST(functions_that_are_built_of_others) {
    parse_same("score = relu(score)", "score = score <= 0 ? 0.0 : score");
    parse_same("score = score + relu(q - k)", "score = score + (q - k <= 0 ? 0 : q - k)");
    parse_same("score = sign(score)", "score = 0 < score ? 1.0 : score < 0 ? -1.0 : 0.0 * score");
    parse_same("score = score + sign(q - k)", "score = score + (0 < q - k ? 1 : q - k < 0 ? -1 : 0)");
    parse_same("score = softplus(score)", "score = max(score, 0) + log1p(exp(-abs(score)))");
    parse_same("score = relu(-3.5) + relu(2.5) + sign(-2.5) + sign(7)", "score = 0.0 + 2.5 + -1.0 + 1");
    parse_same("score = score * relu(q > k)", "score = score * (int(q > k) <= 0 ? 0 : int(q > k))");
}

TEST(arguments_are_checked) {
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    fxa_program *p = (fxa_program *)&c;
    T_STATUS(fxa_program_parse(NULL, "", 0, &p, &err), FXA_E_ARGUMENT);
    T_CHECK(p == NULL);
    T_STATUS(fxa_program_parse(ctx, "", 0, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_parse(ctx, NULL, 5, &p, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_parse(ctx, NULL, SIZE_MAX, &p, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_parse_texts(ctx, NULL, &p, &err), FXA_E_ARGUMENT);
    c.n_texts = 1;
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_ARGUMENT);
    c.n_texts = 0;
    T_OK(fxa_program_parse_texts(ctx, &c, &p, &err));
    fxa_program_destroy(p);
    c.kind = 3;
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_ARGUMENT);
    c.kind = 0;
    c.struct_size = 4;
    T_STATUS(fxa_program_parse_texts(ctx, &c, &p, &err), FXA_E_STRUCT);
    /* err is optional */
    T_CHECK(fxa_program_parse(ctx, "score = (", SIZE_MAX, &p, NULL) == FXA_E_PROGRAM);
}

T_MAIN
