/* SPDX-License-Identifier: Apache-2.0
 *
 * Complete error messages of the parser for programs with one small mistake, compared with the golden file
 * tests/golden/parse_messages.txt. FXA_TEST_UPDATE=1 writes the file anew.
 */
#include "support/fixtures/own_context.h"

#include <ctype.h>

#define LONG_NAME "a_name_of_64_bytes_which_is_one_byte_longer_than_a_name_may_bee_"

static const char *const message_programs[] = {
    "score = score * 2 + q - k",
    "param cap : float = 20.0\nscore = cap * tanh(score / cap)",
    "param n : int = 3; mask = q - k < n && k <= q",
    "tensor bias : f32[2]\nscore += bias[h, q - k]",
    "tensor ids : i32[1]; mask = ids[q] == ids[k] || q == k",
    "fn slope(x, y) = x * y + 1\nscore = slope(score, q)",
    "fn f() = score + q\nlet x = 2 * f()\nscore = x + f()",
    "let d = q - k\nmask = d >= 0 && d < 64\nscore = score + d * 0.5",
    "score = sum(i, 3, score * i) + (q > k ? 1.5 : -2)",
    "mask = any(i, 4, q % 4 == i) && !all(i, 2, k < i)",
    "score = where(q >= k, score, -inf) + min(score, 1) ** 2",
    "score = clamp(score, -1, 1) // 0.25 % 7",
    "mask = (q & 3) | (k ^ 5) << 2 >> 1 != 0",
    "score = exp(score) + log(abs(score)) - sqrt(2.0) * pi",
    "tensor t : f16[3]; score = t[0, h, t2] + t[b, h, k]",
    "mask = q < k_len && k < q_len # lengths",
    "score = (\n  score +\n  q\n)",
};

static const char *const message_words[] = {
    "(",           ")",
    "[",           "]",
    ",",           ":",
    "=",           "==",
    "!=",          "<",
    ">=",          "+",
    "-",           "*",
    "/",           "//",
    "%",           "**",
    "&",           "|",
    "^",           "<<",
    "&&",          "||",
    "!",           "~",
    "?",           ";",
    "\n",          ".",
    "'",           "\"",
    "@",           "$",
    "\\",          "`",
    "{",           "}",
    "/*",          "*/",
    "->",          "++",
    "+=",          ":=",
    "*=",          "#",
    "q",           "score",
    "mask",        "true",
    "True",        "None",
    "float",       "int",
    "f32",         "double",
    "let",         "param",
    "tensor",      "fn",
    "sum",         "tanh",
    "relu",        "gelu",
    "softmax",     "scale",
    "head_dim",    "lambda",
    "if",          "else",
    "and",         "not",
    "return",      "for",
    "def",         "import",
    "q_idx",       "kv_idx",
    "math",        "torch",
    "0",           "1",
    "007",         "0x",
    "0b1",         "1e",
    "1.5.2",       "1_000",
    "12ab",        "99999999999",
    "0x100000000", "1e999",
    "\xc3\xa4",    "\xe2\x88\x92",
    "\xff",        "\x01",
    "\t",          "\r",
    "x.y",         "score.exp()",
    "torch.tanh",  "t[0]",
    "not_known",   "scoer",
    "mask_",       "tnah",
    "dscore",      LONG_NAME,
};

/* Returns the length of the token at the start of `text`. */
static size_t message_token(const char *text) {
    size_t n = 1;
    if (isspace((unsigned char)*text))
        while (isspace((unsigned char)text[n])) n++;
    if (isalnum((unsigned char)*text) || *text == '_')
        while (isalnum((unsigned char)text[n]) || text[n] == '_' || text[n] == '.') n++;
    return n;
}

/* Returns the index of a random token. */
static size_t message_place(const char *text, t_rng *rng) {
    size_t starts[200], n = 0;
    for (size_t at = 0; text[at]; at += message_token(text + at))
        if (!isspace((unsigned char)text[at])) starts[n++] = at;
    return starts[t_int(rng, 0, (int64_t)n - 1)];
}

/* Writes a program with one change: a token is replaced, inserted or removed, or the text ends in front of it, or a
 * letter of it is repeated. */
static void message_change(char *out, size_t size, t_rng *rng) {
    enum { PROGRAMS = sizeof message_programs / sizeof *message_programs };
    enum { WORDS = sizeof message_words / sizeof *message_words };
    const char *text = message_programs[t_int(rng, 0, PROGRAMS - 1)], *word = message_words[t_int(rng, 0, WORDS - 1)];
    size_t at = message_place(text, rng), n = message_token(text + at);
    switch (t_int(rng, 0, 7)) {
    case 0: snprintf(out, size, "%.*s%s", (int)at, text, text + at + n); break;
    case 1: snprintf(out, size, "%.*s", (int)at, text); break;
    case 2: snprintf(out, size, "%.*s%c%s", (int)at + 1, text, text[at], text + at + 1); break;
    case 3:
    case 4: snprintf(out, size, "%.*s%s %s", (int)at, text, word, text + at); break;
    default: snprintf(out, size, "%.*s%s%s", (int)at, text, word, text + at + n);
    }
}

/* Appends `text` with control bytes and bytes above 0x7e as \xNN. */
static size_t message_escape(char *out, const char *text) {
    size_t used = 0;
    for (; *text; text++)
        used += (size_t)sprintf(out + used, (unsigned char)*text < ' ' || (unsigned char)*text > '~' ? "\\x%02x" : "%c",
                                (unsigned char)*text);
    return used;
}

/* Writes all changed programs that are errors, each with the line, column, length, status and text of its error. */
static size_t messages_write(char *out) {
    enum { CASES = 600 };
    t_rng rng = {7};
    size_t used = 0;
    for (int i = 0; i < CASES; i++) {
        char text[400];
        fxa_program *p = NULL;
        fxa_error err = {0};
        message_change(text, sizeof text, &rng);
        fxa_status status = own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err);
        fxa_program_destroy(p);
        if (status == FXA_OK) continue;
        used += message_escape(out + used, text);
        used += (size_t)sprintf(out + used, "\n  %d:%d+%d %s: ", err.line, err.column, err.length,
                                fxa_status_name(err.status));
        used += message_escape(out + used, err.text);
        out[used++] = '\n';
    }
    out[used] = '\0';
    return used;
}

TEST(messages_are_those_of_the_golden_file) {
    static char now[1 << 20], golden[1 << 20];
    const char *path = FXA_SOURCE_DIR "/tests/golden/parse_messages.txt";
    size_t size = messages_write(now);
    FILE *f = getenv("FXA_TEST_UPDATE") ? fopen(path, "wb") : NULL;
    if (f) T_CHECK(fwrite(now, 1, size, f) == size && fclose(f) == 0);
    f = fopen(path, "rb");
    size_t n = f ? fread(golden, 1, sizeof golden - 1, f) : 0;
    if (f) (void)fclose(f);
    golden[n] = '\0';
    if (strcmp(now, golden) == 0) return;
    const char *a = now, *b = golden, *line = now;
    for (; *a && *a == *b; a++, b++)
        if (*a == '\n') line = a + 1;
    T_FAIL(
        "%s differs from \"%.*s\"; if messages were changed, run FXA_TEST_UPDATE=1 build/tests/test_parse_messages\n",
        path, (int)strcspn(line, "\n"), line);
}

T_MAIN
