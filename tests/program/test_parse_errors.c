/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser: every error text, with its line, column and length.
 */
#include "support/fixtures/own_context.h"

typedef struct perr_row {
    const char *text;
    int line, column, length;
    const char *message;
} perr_row;

static void perr_check(fxa_program_kind kind, const perr_row *table, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const perr_row *t = &table[i];
        fxa_error err = {0};
        t_program *p = NULL;
        fxa_status s = own_parse(kind, t->text, SIZE_MAX, &p, &err);
        bool placed = err.line == t->line && err.column == t->column && err.length == t->length && err.part == 0;
        if (s == FXA_OK || p || err.status != s || !placed || !strstr(err.text, t->message))
            T_FAIL("\"%s\"\n  gives %s %d:%d+%d %s\n  not %d:%d+%d %s\n", t->text, fxa_status_name(s), err.line,
                   err.column, err.length, err.text, t->line, t->column, t->length, t->message);
    }
}

TEST(errors_of_names) {
    static const perr_row table[] = {
        {"score = scroe + 1", 1, 9, 5, "unknown name 'scroe'; did you mean 'score'?"},
        {"tensor slopes : f32[1]\nscore = slope[h]", 2, 9, 5, "unknown name 'slope'; did you mean 'slopes'?"},
        {"param softcap : float\nscore = sofcap", 2, 9, 6, "did you mean 'softcap'?"},
        {"score = sigmiod(score)", 1, 9, 7, "did you mean 'sigmoid'?"},
        {"score = SCORE", 1, 9, 5, "declare it, for example: param SCORE : float"},
        {"let dist = q\nscore = dits", 2, 9, 4, "did you mean 'dist'?"},
        {"mask = q_idx >= k", 1, 8, 5, "did you mean 'q'?"},
        {"mask = True", 1, 8, 4, "did you mean 'true'?"},
        {"score = j", 1, 9, 1, "unknown name 'j'; declare it, for example: param j : float"},
        {"score = zzzz[q]", 1, 9, 4, "declare it, for example: tensor zzzz : f32[1]"},
        {"score = frobnicate(q)", 1, 9, 10, "unknown function 'frobnicate'"},
        {"score = sum(i, 2, i) + i", 1, 24, 1, "unknown name 'i'"},
        {"score = let", 1, 9, 3, "'let' begins a statement and has no value"},
        {"score = dscore", 1, 9, 6, "'dscore' is of backward programs"},
    };
    perr_check(FXA_PROGRAM_SCORE, table, sizeof table / sizeof *table);
}

/* The suggested replacement of a compound assignment is valid with some operand; where none is suggested, none would
 * be. */
TEST(advice_for_joining_assignments_is_true) {
    static const char *const operators[] = {"+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "&&", "||"},
                             *const operands[] = {"1", "1.5", "(q > k)"},
                             *const names[][2] = {{"score", ""},
                                                  {"mask", ""},
                                                  {"x", "let x = 1\n"},
                                                  {"x", "let x = 1.5\n"},
                                                  {"x", "let x = q > k\n"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t o = 0; o < sizeof operators / sizeof *operators; o++) {
            char text[160];
            fxa_program *p = NULL;
            int accepted = 0;
            (void)snprintf(text, sizeof text, "%s%s %s= 1", names[i][1], names[i][0], operators[o]);
            T_STATUS(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err), FXA_E_PROGRAM);
            bool advised = strstr(err.text, "(...)") != NULL;
            for (size_t k = 0; k < sizeof operands / sizeof *operands; k++) {
                fxa_error other;
                (void)snprintf(text, sizeof text, "%s%s%s = %s %s %s", names[i][1], *names[i][1] ? "let " : "",
                               names[i][0], names[i][0], operators[o], operands[k]);
                if (own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &other) == FXA_OK) accepted++;
                fxa_program_destroy(p);
                p = NULL;
            }
            if ((accepted > 0) != advised) T_FAIL("%s%s %s=: %s", names[i][1], names[i][0], operators[o], err.text);
        }
}

TEST(errors_of_statements) {
    static const perr_row table[] = {
        {"param x", 1, 8, 1, "expected ':' and the type, float or int, found the end of the line"},
        {"param x : double", 1, 11, 6, "expected the type, float or int, found 'double'"},
        {"param x : bool", 1, 11, 4, "expected the type, float or int, found 'bool'"},
        {"param 3", 1, 7, 1, "expected the name of the param, found '3'"},
        {"param q : float", 1, 7, 1, "'q' is a word of the language and cannot be a param"},
        {"param x : int\nparam x : float", 2, 7, 1, "param 'x' is declared as int already, not as float"},
        {"param x : int\ntensor x : f32[1]", 2, 8, 1, "'x' is a param already and cannot be a tensor"},
        {"let x = 1\nparam x : int", 2, 7, 1, "'x' is a let already and cannot be a param"},
        {"tensor t : f32", 1, 15, 1, "expected '[' and the rank of the tensor, as in f32[1]"},
        {"tensor t : f33[1]", 1, 12, 3, "expected the storage type: f64 f32 f16 bf16"},
        {"tensor t : 5", 1, 12, 1, "expected the storage type: f64 f32 f16 bf16"},
        {"tensor t f32[1]", 1, 10, 3, "expected ':' and the storage type"},
        {"tensor t : f32[]", 1, 16, 1, "expected the rank of the tensor, as in f32[1], found ']'"},
        {"tensor t : f32[6]", 1, 16, 1, "in [ ] stands the rank of the tensor, 0 to 5"},
        {"tensor t : f32[4, 4]", 1, 16, 1, "in [ ] stands the rank of the tensor, 0 to 5"},
        {"tensor t : f32[1", 1, 17, 1, "expected ']'"},
        {"tensor t : f32[1]\ntensor t : f32[2]", 2, 8, 1, "t"},
        {"tensor t : f32[1]\ntensor t : f16[1]", 2, 8, 1, "t"},
        {"let q = 1", 1, 5, 1, "'q' is a word of the language and cannot be a let"},
        {"let tanh = 1", 1, 5, 4, "'tanh' is a word of the language and cannot be a let"},
        {"param x : int; let x = 1", 1, 20, 1, "'x' is a param already and cannot be a let"},
        {"let = 1", 1, 5, 1, "expected the name of the let, found '='"},
        {"let x 1", 1, 7, 1, "expected '=' and the value of the let, found '1'"},
        {"q = 3", 1, 1, 1, "'q' cannot be assigned"},
        {"tensor t : f32[1]; t = 3", 1, 20, 1, "'t' cannot be assigned"},
        {"x = 3", 1, 1, 1, "'x' is no output; write let x = ..."},
        {"scor = score + 1", 1, 1, 4, "'scor' is no output; did you mean score?"},
        {"Score = score", 1, 1, 5, "'Score' is no output; did you mean score?"},
        {"MASK = k <= q", 1, 1, 4, "'MASK' is no output; did you mean mask?"},
        {"param c : f32", 1, 11, 3, "expected the type, float or int, found 'f32'; write float"},
        {"param c : i64", 1, 11, 3, "expected the type, float or int, found 'i64'; write int"},
        {"tensor t : float32[2]", 1, 12, 7, "found 'float32'; write f32"},
        {"tensor t : long[2]", 1, 12, 4, "found 'long'; write i64"},
        {"// a comment", 1, 1, 2, "a comment begins with #"},
        {"/* a comment */", 1, 1, 1, "a comment begins with #"},
        {"score = score // a comment", 1, 18, 1,
         "unknown name 'a'; a comment begins with #; declare it, for example: param a"},
        {"score = score /* a comment */", 1, 16, 1, "a comment begins with #"},
        {"score = score + rel[q - k + 5]", 1, 17, 3,
         "unknown name 'rel'; declare it, for example: tensor rel : f32[1]"},
        {"score = score + bias[h, t[q, 1], max(q, k)]", 1, 17, 4, "for example: tensor bias : f32[3]"},
        {"tensor bias : f32[1]; score = score + bia[q]", 1, 39, 3, "did you mean 'bias'?"},
        {"tensor t : f32[1]; score = score + t[h][q]", 1, 40, 1, "indices stand in one pair of [ ], as in t[h, q]"},
        {"tensor t : f32[2]; score = score + t[h][q]", 1, 36, 4, "1 given; indices stand in one pair of [ ]"},
        {"tensor t : f32[1]; score = score + t[:]", 1, 38, 1, "there are no slices; an index is one int"},
        {"tensor t : f32[2]; score = score + t[q, :]", 1, 41, 1, "there are no slices; an index is one int"},
        {"tensor t : f32[1]; score = score + t[q/2]", 1, 38, 3, "this is a float; write // for the quotient of ints"},
        {"tensor t : f32[1]; score = score + t[score]", 1, 38, 5, "this is a float; write int(...)"},
        {"tensor t : f32[1]; score = score + t.shape[0]", 1, 37, 6, "a program does not see sizes of tensors"},
        {"tensor t : f32[1]; score = t[q].item()", 1, 32, 5, "t[...] is a number already; leave .item() out"},
        {"score = q.k", 1, 10, 2, "values have no members; the product of Q and K is score"},
        {"score = mod(q, 3)", 1, 9, 3, "write x % y"},
        {"score = logsigmoid(score)", 1, 9, 10, "write -softplus(-x)"},
        {"score == 3", 1, 7, 2, "'==' compares; write score = ... to assign"},
        {"score += 3", 1, 7, 2, "there is no '+='; write score = score + (...)"},
        {"score -= 3", 1, 7, 2, "there is no '-='; write score = score - (...)"},
        {"score **= 2", 1, 7, 3, "there is no '**='; write score = score ** (...)"},
        {"score //= 2", 1, 7, 3, "there is no '//='; write score = score // (...)"},
        {"mask &= q > k", 1, 6, 2, "there is no '&='; write mask = mask & (...)"},
        {"mask ||= q > k", 1, 6, 3, "there is no '||='; write mask = mask || (...)"},
        {"score - = 3", 1, 7, 1, "expected '=', found '-'"},
        {"score ~= 3", 1, 7, 1, "expected '=', found '~'"},
        {"score <= 3", 1, 7, 2, "expected '=', found '<='"},
        {"score <== 3", 1, 7, 2, "expected '=', found '<='"},
        {"let x = 1\nx *= 2", 2, 3, 2, "there is no '*='; write let x = x * (...)"},
        {"let x = 1\nlet x /= 2", 2, 7, 2, "there is no '/='; write let x = x / (...)"},
        {"let x -= 1", 1, 7, 2, "there is no '-=', and 'x' is no let yet; write let x = ..."},
        {"let x ||= q > k", 1, 7, 3, "there is no '||=', and 'x' is no let yet; write let x = ..."},
        {"score &= q > k", 1, 7, 2, "there is no '&=', and '&' does not go with score, a float; write score = ..."},
        {"mask *= q > k", 1, 6, 2, "there is no '*=', and '*' does not go with mask, a bool; write mask = ..."},
        {"let x = 1.5\nx >>= 1", 2, 3, 3, "there is no '>>=', and '>>' does not go with x, a float; write let x = ..."},
        {"let x = 1\nx &&= q > k", 2, 3, 3,
         "there is no '&&=', and '&&' does not go with x, an int; write let x = ..."},
        {"scor -= 2", 1, 1, 4, "'scor' is no output; did you mean score?"},
        {"x -= 2", 1, 1, 1, "'x' is no output; write let x = ..."},
        {"b += 2", 1, 1, 1, "'b' cannot be assigned; write let NAME = ..."},
        {"param a : float -= 2", 1, 17, 1, "expected the end of the statement, found '-'"},
        {"score = score -= 3", 1, 15, 2, "there is no '-=', and an expression assigns nothing; write x - y"},
        {"score = score += 3", 1, 15, 2, "there is no '+=', and an expression assigns nothing; write x + y"},
        {"score = tanh(score *= 3)", 1, 20, 2, "there is no '*=', and an expression assigns nothing; write x * y"},
        {"score = tanh(score += 3)", 1, 20, 2, "there is no '+='"},
        {"score 3", 1, 7, 1, "expected '=', found '3'"},
        {"score = 1 2", 1, 11, 1, "expected an operator or the end of the statement, found '2'"},
        {"score = q >= k", 1, 9, 6, "score needs a number, this is a bool; write mask = ..."},
        {"score = q >= k; mask = true", 1, 9, 6, "score needs a number, this is a bool; write mask = ..."},
        {"mask = score", 1, 8, 5, "mask needs a bool, this is a float; compare it, as in x != 0"},
        {"mask = q", 1, 8, 1, "mask needs a bool, this is an int"},
        {"dscore = 1", 1, 1, 6, "a score program cannot assign 'dscore'; it assigns score and mask"},
        {"grad x += 1", 1, 1, 4, "'grad' belongs to derivative programs only"},
        {"3 + 4", 1, 1, 1, "expected a statement: param, tensor, let, fn, score = or mask =, found '3'"},
        {"score = 1\n) ", 2, 1, 1, "expected a statement: param"},
        {"score = 1\n  + 2", 2, 3, 1, "to go on from the line above, end that with the operator, found '+'"},
        {"tanh(score)", 1, 1, 4, "expected a statement"},
    };
    perr_check(FXA_PROGRAM_SCORE, table, sizeof table / sizeof *table);
}

TEST(errors_of_expressions) {
    static const perr_row table[] = {
        {"score = ", 1, 9, 1, "expected a value, found the end of the text"},
        {"score = \n\nmask = true", 3, 6, 1, "write == to compare"},
        {"score = ;", 1, 9, 1, "expected a value, found the end of the statement"},
        {"score = 1 + * 2", 1, 13, 1, "expected a value, found '*'"},
        {"score = (score + 1", 1, 9, 1, "this '(' is never closed"},
        {"score = ((score + 1)\nmask = q >= k", 1, 9, 1, "this '(' is never closed"},
        {"score = tanh(score\nlet x = 1", 1, 13, 1, "this '(' is never closed"},
        {"tensor t : f32[1]\nscore = t[q", 2, 10, 1, "this '[' is never closed"},
        {"score = (1 2)", 1, 12, 1, "expected an operator, ',' or ')', found '2'"},
        {"score = (1]", 1, 11, 1, "found ']'"},
        {"score = (1, 2)", 1, 11, 1, "found ','"},
        {"score = 1)", 1, 10, 1, "this ')' closes nothing"},
        {"mask = q = k", 1, 10, 1, "found '='; write == to compare"},
        {"mask = (q = k)", 1, 11, 1, "found '='; write == to compare"},
        {"mask = q < k < 3", 1, 14, 1, "comparisons do not chain; for a < b < c write a < b && b < c"},
        {"mask = q == k == 3", 1, 15, 2, "comparisons do not chain"},
        {"mask = q >= k | k == 3", 1, 19, 2, "'|' binds tighter than comparisons; write || or (a < b) | (c < d)"},
        {"mask = q >= k & b > 0", 1, 19, 1, "'&' binds tighter than comparisons; write && or (a < b) & (c < d)"},
        {"mask = q >= k ^ k == 3", 1, 19, 2, "'^' binds tighter than comparisons; write (a < b) ^ (c < d)"},
        {"mask = q < (k | 1) < 3", 1, 20, 1, "comparisons do not chain"},
        {"mask = q >= k and k > 0", 1, 15, 3, "write && for 'and'"},
        {"mask = q >= k or k > 0", 1, 15, 2, "write || for 'or'"},
        {"mask = not (q < k)", 1, 8, 3, "write ! for 'not'"},
        /* sin and atan are similar names, among others */
        {"score = sinh(score)", 1, 9, 4, "write (exp(x) - exp(-x)) / 2"},
        {"score = atan2(score, 1.0)", 1, 9, 5, "write atan(y / x)"},
        {"score = fmod(score, 2.0)", 1, 9, 4, "or x % y, which has the sign of y"},
        {"score = 1 if q < k else 2", 1, 11, 2, "write c ? a : b, or where(c, a, b)"},
        {"mask = q && k > 0", 1, 8, 1, "'&&' needs a bool, this is an int; compare it, as in x != 0"},
        {"mask = k > 0 || q - k", 1, 17, 5, "'||' needs a bool, this is an int"},
        {"mask = !(q - k)", 1, 9, 7, "'!' needs a bool, this is an int"},
        {"score = q ? 1 : 2", 1, 9, 1, "the condition of '?' needs a bool, this is an int"},
        {"score = where(score, 1, 2)", 1, 15, 5, "the condition of 'where' needs a bool, this is a float"},
        {"score = q > k ? 1", 1, 18, 1, "expected ':' and the value for when it is false"},
        {"score = score & 1", 1, 15, 1, "'&' takes ints or bools, not float and int"},
        {"score = q / 32 << 1", 1, 16, 2,
         "'<<' takes ints, not float and int; x / y is a float, x // y the quotient of ints"},
        {"score = 1 << 1.5", 1, 11, 2, "'<<' takes ints, not int and float"},
        {"score = ~score", 1, 9, 1, "'~' takes ints or bools, not float"},
        {"score = q!", 1, 10, 1, "it goes before its operand"},
        {"score = 2147483648", 1, 9, 10, "larger than 2147483647"},
        {"score = -2147483649", 1, 10, 10, "larger than 2147483647"},
        {"score = -2147483648 ** 2", 1, 10, 10, "larger than 2147483647"},
        {"score = 0x100000000", 1, 9, 11, "more than 32 bits"},
        {"score = 99999999999999999999999999", 1, 9, 26, "larger than 2147483647"},
        {"score = 1e999", 1, 9, 5, "too large for a float; write inf"},
    };
    perr_check(FXA_PROGRAM_SCORE, table, sizeof table / sizeof *table);
}

/* Typical mistakes of users of other languages, with the correct form. */
TEST(errors_of_habits) {
    static const perr_row table[] = {
        {"param cap = 20", 1, 7, 3, "the type of param 'cap' is missing; write param cap : float = ..."},
        {"param cap := 20", 1, 7, 3, "the type of param 'cap' is missing"},
        {"score := 3", 1, 7, 1, "expected '=', found ':'; write = to assign"},
        {"let x := 3", 1, 7, 1, "write = to assign"},
        {"score = torch.where(q > k, score, 1)", 1, 9, 11, "there are no modules; write where instead of torch.where"},
        {"score = jnp.maximum(score, 1)", 1, 9, 11, "write max instead of jnp.maximum"},
        {"mask = q > k; score = -torch.inf", 1, 24, 9, "write inf instead of torch.inf"},
        {"score = score.abs()", 1, 14, 4, "values have no members; write abs(score)"},
        {"score = zz.abs()", 1, 9, 2, "unknown name 'zz'"},
        {"score = q > k ? score : float('-inf')", 1, 31, 1, "; write -inf"},
        {"score = \"a\"", 1, 9, 1, "the language has no strings"},
        {"score = score ^ 2", 1, 15, 1, "'^' takes ints or bools, not float and int; powers are written x ** y"},
        {"score = score / sqrt(d)", 1, 22, 1, "unknown name 'd'; the score comes scaled"},
        {"score = score * sm_scale", 1, 17, 8, "the score comes scaled"},
        {"score = score / head_dim ** 0.5", 1, 17, 8, "the score comes scaled"},
        {"score = (q < k) score else if 1", 1, 17, 5, "expected an operator"},
        {"score = 1 else 2", 1, 11, 4, "write c ? a : b, or where(c, a, b)"},
        {"if q > k: score = 1", 1, 1, 2, "write c ? a : b, or where(c, a, b)"},
        {"return score", 1, 1, 6, "a result is assigned: score = ... or mask = ..."},
        {"def f(x): 3", 1, 1, 3, "write fn f(x) = ..."},
        {"score = lambda x: x", 1, 9, 6, "write fn f(x) = ..."},
        {"float x = 3", 1, 1, 5, "write let x = ..., or param x : float"},
        {"for i in q", 1, 1, 3, "loops are sum(i, 4, ...), any and all"},
        {"score = softmax(score)", 1, 9, 7, "the softmax comes after the program"},
        {"score = gelu(score)", 1, 9, 4, "write 0.5 * x * (1 + erf(x / sqrt(2.0)))"},
        {"mask = kv_idx <= q_idx", 1, 8, 6, "did you mean 'k'?"},
        {"param heads : int", 1, 7, 5, "cannot be a param; it is an input and needs no declaration"},
        {"score = num_heads", 1, 9, 9, "did you mean 'heads'?"},
        {"score = arctan(score)", 1, 9, 6, "did you mean 'atan'?"},
        {"score = graft(score, 0.0)", 1, 9, 5, "did you mean 'with_grad'?"},
        {"score = detach(score)", 1, 9, 6, "did you mean 'stop_gradient'?"},
        {"score = 1e-3f", 1, 9, 5, "numbers have no suffix; write 1e-3"},
        {"mask = q \xe2\x89\xa4 k", 1, 10, 1, "write '<='"},
        {"score = 2 \xc3\x97 q", 1, 11, 1, "write '*'"},
        {"# \xf0\x9d\x84\x9e \xe2\x82\xac\nscore = 1 \xe2\x88\x92 2", 2, 11, 1, "write '-'"},
        {"tensor t : f32", 1, 15, 1, "expected '[' and the rank of the tensor, as in f32[1]"},
    };
    perr_check(FXA_PROGRAM_SCORE, table, sizeof table / sizeof *table);
}

TEST(errors_of_calls_loads_and_loops) {
    static const perr_row table[] = {
        {"score = tanh", 1, 9, 4, "'tanh' is a function; write tanh(...)"},
        {"score = sum", 1, 9, 3, "'sum' is a function; write sum(...)"},
        {"score = q(1)", 1, 9, 1, "'q' is an input and cannot be called"},
        {"let x = 1; score = x(1)", 1, 20, 1, "'x' is a let and cannot be called"},
        {"score = pi(1)", 1, 9, 2, "'pi' is a constant and cannot be called"},
        {"param x : int; score = x[1]", 1, 24, 1, "'x' is a param; only a tensor has elements"},
        {"tensor t : f32[2]; score = t", 1, 28, 1, "'t' is a tensor of rank 2; read it as t[i, j]"},
        {"tensor t : f32[0]; score = t", 1, 28, 1, "'t' is a tensor of rank 0; read it as t[]"},
        {"tensor t : f32[1]; score = t(q)", 1, 28, 1, "'t' is a tensor and cannot be called"},
        {"tensor t : f32[2]; score = t[q]", 1, 28, 4, "tensor 't' has rank 2, so it takes 2 indices; 1 given"},
        {"tensor t : f32[1]; score = t[]", 1, 28, 3, "tensor 't' has rank 1, so it takes 1 index; 0 given"},
        {"tensor t : f32[1]; score = t[1,2,3,4,5,6,7]", 1, 28, 16, "so it takes 1 index; 7 given"},
        {"tensor t : f32[1]; score = t[score * 2]", 1, 30, 9, "an index is an int, this is a float"},
        {"tensor t : f32[1]; score = t[q,]", 1, 32, 1, "expected a value, found ']'"},
        {"score = tanh(1, 2)", 1, 9, 10, "'tanh' takes 1 argument; 2 given"},
        {"score = tanh()", 1, 9, 6, "'tanh' takes 1 argument; 0 given"},
        {"score = clamp(1, 2)", 1, 9, 11, "'clamp' takes 3 arguments; 2 given"},
        {"score = min(1)", 1, 9, 6, "'min' takes 2 arguments or more; 1 given"},
        {"score = pow(1, 2, 3, 4)", 1, 9, 15, "takes 2 arguments; 4 given"},
        {"score = min(1,)", 1, 15, 1, "expected a value, found ')'"},
        {"score = sum(3, 4, 1)", 1, 13, 1, "expected the loop's own name, as in sum(i, 4, ...)"},
        {"score = sum(q, 4, 1)", 1, 13, 1, "'q' is a word of the language and cannot name a loop"},
        {"param p : int; score = sum(p, 4, 1)", 1, 28, 1, "'p' is a param already and cannot name a loop"},
        {"score = sum(i 4, 1)", 1, 15, 1, "expected ',' and the count of the loop, found '4'"},
        {"score = sum(i, 4)", 1, 17, 1, "expected ',' and the body of the loop, found ')'"},
        {"score = sum(i, q, 1)", 1, 16, 1, "the count of a loop is a constant int"},
        {"score = sum(i, 2.0, 1)", 1, 16, 3, "the count of a loop is a constant int"},
        {"score = sum(i, 64 + 1, 1)", 1, 16, 6, "the count of a loop is 0 to 64; 65 given"},
        {"score = sum(i, -1, 1)", 1, 16, 2, "the count of a loop is 0 to 64; -1 given"},
        {"mask = any(i, 2, i)", 1, 18, 1, "the body of 'any' and 'all' needs a bool, this is an int"},
        {"mask = all(i, 0, i)", 1, 18, 1, "needs a bool, this is an int"},
        {"score = sum(i, 2, 1, 3)", 1, 20, 1, "found ','"},
    };
    perr_check(FXA_PROGRAM_SCORE, table, sizeof table / sizeof *table);
}

TEST(errors_of_backward_programs) {
    static const perr_row bprop[] = {
        {"score = 1", 1, 1, 5, "a backward program cannot assign 'score'; it assigns dscore"},
        {"mask = true", 1, 1, 4, "a backward program cannot assign 'mask'"},
        {"dscore = mask ? 1 : 2", 1, 10, 4, "'mask' is of score programs"},
        {"grad x += 1", 1, 1, 4, "'grad' belongs to derivative programs only"},
        {"dscore = q > k", 1, 10, 5, "dscore needs a number, this is a bool"},
        {"1", 1, 1, 1, "expected a statement: param, tensor, let, fn or dscore =, found '1'"},
    };
    static const perr_row derivative[] = {
        {"grad x += 1", 1, 6, 1, "unknown name 'x'"},
        {"grad 5 += 1", 1, 6, 1, "expected the name of a param or tensor, found '5'"},
        {"grad q += 1", 1, 6, 1, "expected the name of a param or tensor, found 'q'"},
        {"param p : float; grad p = 1", 1, 25, 1, "expected '+='"},
        {"tensor t : f32[1]; grad t += 1", 1, 27, 2, "expected '[' and the indices"},
        {"tensor t : f32[1]; grad t[1, 2] += 1", 1, 25, 7, "so it takes 1 index; 2 given"},
        {"param p : int; grad p += 1", 1, 21, 1, "p"},
        {"tensor t : i32[1]; grad t[q] += 1", 1, 25, 1, "t"},
    };
    perr_check(FXA_PROGRAM_BPROP, bprop, sizeof bprop / sizeof *bprop);
    perr_check(FXA_PROGRAM_DERIVATIVE, derivative, sizeof derivative / sizeof *derivative);
}

T_MAIN
