/* SPDX-License-Identifier: Apache-2.0
 *
 * The lexer: tokens, significant newlines, stray characters with their positions; conversion of decimal floats in both
 * directions, also in a locale with a decimal comma.
 */
#include "t.h"

#include "program/decimal.h"
#include "program/lex.h"

#include <locale.h>

static fxa__host *lext_host(void) {
    static fxa__host *host;
    if (!host && fxa__host_create(NULL, NULL, &host, NULL) != FXA_OK) abort();
    return host;
}

/* Returns the token kinds as letters: n name, i int, f float, / end of line, . end of text, ! bad, E == and so on. */
static const char *lext_kinds(const char *text, size_t size, fxa_error *bad) {
    static char out[256];
    static const char letters[TOK_COUNT] = {
        [TOK_END] = '.',   [TOK_LINE] = '/',     [TOK_BAD] = '!',      [TOK_NAME] = 'n',   [TOK_INT] = 'i',
        [TOK_FLOAT] = 'f', [TOK_RPAREN] = ')',   [TOK_RBRACKET] = ']', [TOK_LPAREN] = '(', [TOK_LBRACKET] = '[',
        [TOK_COMMA] = ',', [TOK_QUESTION] = '?', [TOK_COLON] = ':',    [TOK_ASSIGN] = '=', [TOK_ADD_ASSIGN] = 'a',
        [TOK_OR_OR] = 'O', [TOK_AND_AND] = 'A',  [TOK_EQ] = 'E',       [TOK_NE] = 'N',     [TOK_LT] = 'L',
        [TOK_LE] = 'l',    [TOK_GT] = 'G',       [TOK_GE] = 'g',       [TOK_OR] = '|',     [TOK_XOR] = '^',
        [TOK_AND] = '&',   [TOK_SHL] = '<',      [TOK_SHR] = '>',      [TOK_ADD] = '+',    [TOK_SUB] = '-',
        [TOK_MUL] = '*',   [TOK_DIV] = 'd',      [TOK_FLOORDIV] = 'D', [TOK_MOD] = '%',    [TOK_POW] = 'P',
        [TOK_NOT] = '~',   [TOK_BANG] = 'B'};
    fxa__lexer lex = {0};
    fxa_text one = {NULL, text, size};
    size_t used = 0;
    fxa_error err;
    T_OK(fxa__lex_open(&lex, lext_host(), &one, 1, &err));
    T_OK(fxa__lex_run(&lex, NULL, &err));
    for (size_t i = 0; i < lex.n_tokens && used < sizeof out - 1; i++) out[used++] = letters[lex.tokens[i].kind];
    out[used] = 0;
    if (bad) *bad = lex.bad;
    fxa__lex_close(&lex);
    return out;
}

TEST(tokens) {
    T_STR(lext_kinds("", SIZE_MAX, NULL), ".");
    T_STR(lext_kinds("score = q + 1.5", SIZE_MAX, NULL), "n=n+f/.");
    T_STR(lext_kinds("a<b<=c<<d", SIZE_MAX, NULL), "nLnln<n/.");
    T_STR(lext_kinds("a&&b&c||d|e", SIZE_MAX, NULL), "nAn&nOn|n/.");
    T_STR(lext_kinds("t[i,j]+=x?y:z", SIZE_MAX, NULL), "n[n,n]an?n:n/.");
    T_STR(lext_kinds("_a1 0x1F 12 1. .5 1e5 1E-5 1.5e+10", SIZE_MAX, NULL), "niiff"
                                                                            "fff/.");
    T_STR(lext_kinds("a==b!=c>=d>e>>f", SIZE_MAX, NULL), "nEnNngnGn>n/.");
    T_STR(lext_kinds("-a**~b//c/d*!e%f", SIZE_MAX, NULL), "-nP~nDndn*Bn%n/.");
    T_STR(lext_kinds("a***b", SIZE_MAX, NULL), "nP*n/."); /* the longest token first */
}

TEST(newlines) {
    T_STR(lext_kinds("\n\n a \n\n b \n", SIZE_MAX, NULL), "n/n/.");
    T_STR(lext_kinds("a;;b", SIZE_MAX, NULL), "n//n/.");
    T_STR(lext_kinds("a +\n b", SIZE_MAX, NULL), "n+n/.");
    T_STR(lext_kinds("a + # c\n # d\n b", SIZE_MAX, NULL), "n+n/.");
    T_STR(lext_kinds("(a\n b) \n c", SIZE_MAX, NULL), "(nn)/n/.");
    T_STR(lext_kinds(") a\n b", SIZE_MAX, NULL), ")n/n/.");
    T_STR(lext_kinds("a\r\nb\r\n", SIZE_MAX, NULL), "n/n/.");
    T_STR(lext_kinds("# only a comment", SIZE_MAX, NULL), ".");
}

static void lext_bad(const char *text, size_t size, const char *kinds, int line, int column, int length,
                     const char *says) {
    fxa_error bad;
    T_STR(lext_kinds(text, size, &bad), kinds);
    T_INT(bad.line, line);
    T_INT(bad.column, column);
    T_INT(bad.length, length);
    T_HAS(bad.text, says);
}

TEST(stray_characters) {
    lext_bad("a @ b", SIZE_MAX, "n!", 1, 3, 1, "stray character '@'");
    lext_bad("a\n  \x01", SIZE_MAX, "n/!", 2, 3, 1, "stray character \\x01");
    lext_bad("a\0b", 3, "n!", 1, 2, 1, "stray character \\x00");
    lext_bad("a \xff\xfe", SIZE_MAX, "n!", 1, 3, 1, "stray character \\xff");
    lext_bad("a \xe2\x89\xa4 b", SIZE_MAX, "n!", 1, 3, 1, "stray character U+2264; write '<='");
    lext_bad("a \xe2\x88\x92 b", SIZE_MAX, "n!", 1, 3, 1, "; write '-'");
    lext_bad("\xc3\xa4", SIZE_MAX, "!", 1, 1, 1, "stray character U+00E4");
    lext_bad("\xf0\x9d\x84\x9e b", SIZE_MAX, "!", 1, 1, 1, "stray character U+1D11E");
    lext_bad("a \xc2\xa0 b", SIZE_MAX, "n!", 1, 3, 1, "stray character U+00A0; write a plain space");
    lext_bad("a \xe2\x80\x8b b", SIZE_MAX, "n!", 1, 3, 1, "U+200B, which has no width; delete it");
    lext_bad("\xe2", SIZE_MAX, "!", 1, 1, 1, "stray character \\xe2");
    lext_bad("a \"x\"", SIZE_MAX, "n!", 1, 3, 1, "no strings");
    lext_bad("f('-inf')", SIZE_MAX, "n(!", 1, 3, 1, "; write -inf");
    lext_bad("a .b", SIZE_MAX, "n!", 1, 3, 1, "stray character '.'");
    lext_bad("a \r b", SIZE_MAX, "n!", 1, 3, 1, "stray character \\x0d");
    T_STR(lext_kinds("a # \xff\x01 anything\nb", SIZE_MAX, NULL), "n/n/.");
}

/* Every byte has a column: continuation bytes have that of their character. */
TEST(columns_count_characters) {
    lext_bad("a # \xc3\xa4\xe2\x82\xac\xf0\x9d\x84\x9e\n@", SIZE_MAX, "n/!", 2, 1, 1, "stray character '@'");
    lext_bad("(a # \xc3\xa4\n @", SIZE_MAX, "(n!", 2, 2, 1, "stray character '@'");
    lext_bad("\xef\xbb\xbf@", SIZE_MAX, "!", 1, 1, 1, "stray character '@'"); /* after a byte order mark */
    lext_bad("\xef\xbb\xbf\n @", SIZE_MAX, "!", 2, 2, 1, "stray character '@'");
    lext_bad("a \xef\xbb\xbf", SIZE_MAX, "n!", 1, 3, 1, "U+FEFF, which has no width; delete it");
    /* Invalid UTF-8: truncated, overlong, a surrogate, above U+10FFFF, a lone continuation byte. */
    static const char *const bad[] = {"\xe2\x89",         "\xc0\xaf",         "\xe0\x80\xaf", "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80", "\xf0\x80\x80\xaf", "\x80",         "\xbf\xbf"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[16], says[32];
        snprintf(text, sizeof text, "a %s", bad[i]);
        snprintf(says, sizeof says, "stray character \\x%02x", (unsigned char)bad[i][0]);
        lext_bad(text, SIZE_MAX, "n!", 1, 3, 1, says);
    }
}

TEST(points_of_modules_and_methods) {
    lext_bad("a = torch.where(b)", SIZE_MAX, "n=n!", 1, 5, 11,
             "there are no modules; write where instead of torch.where");
    lext_bad("np.minimum(a, b)", SIZE_MAX, "n!", 1, 1, 10, "write min instead of np.minimum");
    lext_bad("-math.inf", SIZE_MAX, "-n!", 1, 2, 8, "write inf instead of math.inf");
    lext_bad("score.abs()", SIZE_MAX, "n!", 1, 6, 4, "values have no members; write abs(score)");
    lext_bad("score.clip(1, 2)", SIZE_MAX, "n!", 1, 6, 5, "write clamp(score, ...)");
    lext_bad("a.b", SIZE_MAX, "n!", 1, 2, 2, "values have no members; write b(a)");
    lext_bad("a.", SIZE_MAX, "n!", 1, 2, 1, "stray character '.'");
    /* Overlong names are shown up to the length limit. */
    char text[200], says[300], shown[FXA_MAX_NAME + 1] = "";
    memset(shown, 'b', FXA_MAX_NAME);
    snprintf(text, sizeof text, "a.%sbb_9Z", shown);
    snprintf(says, sizeof says, "values have no members; write %s(a)", shown);
    lext_bad(text, SIZE_MAX, "n!", 1, 2, FXA_MAX_NAME + 6, says);
    snprintf(text, sizeof text, "np.%sbb", shown);
    snprintf(says, sizeof says, "there are no modules; write %s instead of np.%s", shown, shown);
    lext_bad(text, SIZE_MAX, "n!", 1, 1, FXA_MAX_NAME + 5, says);
}

TEST(bad_numbers_and_long_names) {
    lext_bad("0x", SIZE_MAX, "!", 1, 1, 2, "'0x' is not a number");
    lext_bad("a 12abc", SIZE_MAX, "n!", 1, 3, 5, "'12abc' is not a number");
    lext_bad("1e", SIZE_MAX, "!", 1, 1, 2, "is not a number");
    lext_bad("1e+", SIZE_MAX, "!", 1, 1, 2, "is not a number");
    lext_bad("1.2.3", SIZE_MAX, "!", 1, 1, 5, "'1.2.3' is not a number");
    lext_bad("1_000", SIZE_MAX, "!", 1, 1, 5, "is not a number");
    lext_bad("1.5f", SIZE_MAX, "!", 1, 1, 4, "numbers have no suffix; write 1.5");
    lext_bad("0xFG", SIZE_MAX, "!", 1, 1, 4, "is not a number");
    lext_bad("0xfg", SIZE_MAX, "!", 1, 1, 4, "is not a number");
    lext_bad("1234567890123456789012345678901234567890123f", SIZE_MAX, "!", 1, 1, 44,
             "numbers have no suffix; write 1234567890123456789012345678901234567890");
    char text[512];
    memset(text, 'a', sizeof text);
    T_STR(lext_kinds(text, FXA_MAX_NAME, NULL), "n/.");
    lext_bad(text, FXA_MAX_NAME + 1, "!", 1, 1, FXA_MAX_NAME + 1, "this name has 64 bytes, at most 63 are accepted");
    memset(text, '1', sizeof text);
    T_STR(lext_kinds(text, FXA__DECIMAL_READ, NULL), "i/.");
    lext_bad(text, FXA__DECIMAL_READ + 1, "!", 1, 1, FXA__DECIMAL_READ + 1, "at most 400 are accepted");
}

/* ---- Decimal text ------------------------------------------------------------------------------------------------ */

static double lext_read(const char *text) {
    double x = 0;
    T_CHECK(fxa__decimal_read(text, strlen(text), &x));
    return x;
}

TEST(decimals_are_read_exactly) {
    T_SAME(lext_read("1.5"), 1.5);
    T_SAME(lext_read(".5"), 0.5);
    T_SAME(lext_read("5."), 5.0);
    T_SAME(lext_read("0.1"), 0.1);
    T_SAME(lext_read("123456789012345678901234567890"), 123456789012345678901234567890.0);
    T_SAME(lext_read("1.00000000000000011102230246251565404236316680908203125"), 1.0);
    T_SAME(lext_read("1.00000000000000011102230246251565404236316680908203126"), 1.0 + 0x1p-52);
    T_SAME(lext_read("2.2250738585072011e-308"), 2.2250738585072011e-308);
    T_SAME(lext_read("0.00000000000000000000000000000000000000000001e44"), 1.0);
    T_SAME(lext_read("1e-400"), 0.0);
    T_SAME(lext_read("0e99999999999999999999"), 0.0);
    T_SAME(lext_read("1e-99999999999999999999"), 0.0);
    double x;
    T_CHECK(!fxa__decimal_read("1e309", 5, &x));
    T_CHECK(!fxa__decimal_read("1e99999999999999999999", 22, &x));
    T_CHECK(!fxa__decimal_read("1.7976931348623159e308", 22, &x));
}

static const char *lext_write(double x) {
    static char out[FXA__DECIMAL_WRITE];
    fxa__decimal_write(x, out);
    return out;
}

TEST(decimals_are_written_short) {
    T_STR(lext_write(0), "0.0");
    T_STR(lext_write(-0.0), "-0.0");
    T_STR(lext_write(1), "1.0");
    T_STR(lext_write(-12.5), "-12.5");
    T_STR(lext_write(0.1), "0.1");
    T_STR(lext_write(1.0 / 3), "0.3333333333333333");
    T_STR(lext_write(1e15), "1000000000000000.0");
    T_STR(lext_write(1e16), "1e16");
    T_STR(lext_write(1.5e300), "1.5e300");
    T_STR(lext_write(1e-5), "0.00001");
    T_STR(lext_write(1.25e-7), "1.25e-7");
    T_STR(lext_write(123456.789), "123456.789");
    T_STR(lext_write(1.7976931348623157e308), "1.7976931348623157e308");
    T_STR(lext_write(3.14159265358979323846), "3.141592653589793");
}

static void lext_round_trip(void) {
    t_rng rng = {t_seed()};
    for (int i = t_scaled(20000); i > 0; i--) {
        uint64_t bits = t_next(&rng);
        double x, y;
        memcpy(&x, &bits, sizeof x);
        if (i % 2) x = (double)t_int(&rng, -1000000, 1000000) / 1000;
        if (!isfinite(x)) continue;
        const char *text = lext_write(x);
        T_CHECK(strpbrk(text, ".e") && strlen(text) < FXA__DECIMAL_WRITE && !strchr(text, ','));
        T_CHECK(fxa__decimal_read(text + (*text == '-'), strlen(text) - (*text == '-'), &y));
        T_SAME(*text == '-' ? -y : y, x);
    }
}

TEST(decimals_come_back) { lext_round_trip(); }

TEST(decimals_do_not_see_the_locale) {
    static const char *const commas[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
    bool found = false;
    for (size_t i = 0; i < sizeof commas / sizeof *commas && !found; i++) found = setlocale(LC_NUMERIC, commas[i]);
    if (!found) T_SKIP("no locale with a decimal comma is installed");
    T_STR(lext_write(1.5), "1.5");
    T_SAME(lext_read("1.5"), 1.5);
    lext_round_trip();
    (void)setlocale(LC_NUMERIC, "C");
}

__attribute__((destructor)) static void lext_teardown(void) { fxa__host_release(lext_host()); }

T_MAIN
