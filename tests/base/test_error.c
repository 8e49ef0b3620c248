/* SPDX-License-Identifier: Apache-2.0
 *
 * src/base/error.c: texts, rendering with a caret, struct sizes, two-call output.
 */
#include "base/error.h"
#include "t.h"

TEST(every_status_has_a_name_and_a_text) {
#define CHECK_ROW(name, value, text)                                                                                   \
    T_STR(fxa_status_name((fxa_status)value), "FXA_" #name);                                                           \
    T_STR(fxa_status_text((fxa_status)value), text);
    FXA_STATUS_MAP(CHECK_ROW)
    T_STR(fxa_status_name((fxa_status)99), "unknown status");
}

TEST(a_text_that_does_not_fit_says_so) {
    char longtext[900];
    memset(longtext, 'x', sizeof longtext - 1);
    longtext[sizeof longtext - 1] = 0;
    T_INT(fxa__fail(&err, FXA_E_LIMIT, "%s", longtext), FXA_E_LIMIT);
    T_INT(strlen(err.text), sizeof err.text - 2);
    T_STR(err.text + strlen(err.text) - 4, "x...");
    for (size_t i = 0; i < sizeof longtext - 1; i++) longtext[i] = i % 10 == 9 ? ' ' : 'x';
    T_INT(fxa__fail(&err, FXA_E_LIMIT, "%s", longtext), FXA_E_LIMIT);
    T_STR(err.text + strlen(err.text) - 6, "xx ..."); /* cut before a word */
    T_CHECK(strlen(err.text) > sizeof err.text - 15);
    for (size_t i = 0; i + 2 < sizeof longtext; i += 2) longtext[i] = '\xc3', longtext[i + 1] = '\xa4';
    T_INT(fxa__fail(&err, FXA_E_LIMIT, "x%s", longtext), FXA_E_LIMIT);
    T_STR(err.text + strlen(err.text) - 5, "\xc3\xa4..."); /* cut between characters */
    T_INT(fxa__fail(NULL, FXA_E_LIMIT, "nobody listens"), FXA_E_LIMIT);
}

/* past the end: no excerpt */
TEST(a_text_is_cut_before_its_last_word_or_in_it) {
    /* Checks the exact rendering of one source position. */
    enum { MOST = sizeof((fxa_error *)0)->text - 5, HALF = MOST / 2 };
    for (int at = HALF - 1; at <= HALF + 1; at++) {
        char longtext[2 * MOST];
        memset(longtext, 'x', sizeof longtext - 1);
        longtext[sizeof longtext - 1] = 0;
        longtext[at] = ' ';
        T_INT(fxa__fail(&err, FXA_E_LIMIT, "%s", longtext), FXA_E_LIMIT);
        T_INT(strlen(err.text), at < HALF ? MOST + 3 : at + 4);
    }
}

/* A character of four bytes is kept or left out entirely. */
TEST(a_text_is_cut_between_characters) {
    enum { MOST = sizeof((fxa_error *)0)->text - 5 };
    for (size_t pad = 0; pad < 4; pad++) {
        char longtext[2 * MOST] = "xxx";
        for (size_t i = pad; i + 5 < sizeof longtext; i += 4) memcpy(longtext + i, "\xf0\x9d\x84\x9e", 5);
        T_INT(fxa__fail(&err, FXA_E_LIMIT, "%s", longtext), FXA_E_LIMIT);
        T_INT(strlen(err.text), pad + (MOST - pad) / 4 * 4 + 3);
        T_STR(err.text + strlen(err.text) - 7, "\xf0\x9d\x84\x9e...");
    }
}

TEST(a_text_that_just_fits_is_whole) {
    char text[sizeof err.text + 1];
    memset(text, 'x', sizeof text);
    for (size_t n = sizeof err.text - 2; n <= sizeof err.text; n++) {
        T_INT(fxa__fail(&err, FXA_E_LIMIT, "%.*s", (int)n, text), FXA_E_LIMIT);
        T_STR(err.text + strlen(err.text) - 3, n < sizeof err.text ? "xxx" : "...");
    }
}

/* What lies behind the source is not searched for lines. */
TEST(a_source_ends_at_its_size) {
    err = (fxa_error){FXA_E_PROGRAM, 0, 3, 1, 1, "x"};
    char out[100];
    fxa_error_render(&err, "t", "q\nk\nh\nb\n", 3, out, sizeof out);
    T_STR(out, "t:3:1: error: x");
    fxa_error_render(&err, "t", "q\nk\nh\nb\n", 5, out, sizeof out);
    T_STR(out, "t:3:1: error: x\n  h\n  ^");
}

TEST(render_points_at_the_place) {
    err = (fxa_error){FXA_E_PROGRAM, 0, 2, 9, 3, "unknown name 'cap'"};
    const char *source = "let x = 1\r\nscore = cap * x\n";
    char out[200];
    size_t n = fxa_error_render(&err, "a.fxa", source, SIZE_MAX, out, sizeof out);
    T_STR(out, "a.fxa:2:9: error: unknown name 'cap'\n  score = cap * x\n          ^^^");
    T_INT(n, strlen(out));
    T_INT(fxa_error_render(&err, "a.fxa", source, SIZE_MAX, NULL, 0), n);
    fxa_error_render(&err, NULL, NULL, 0, out, 12);
    T_STR(out, "2:9: error:");
    err.line = 9; /* a tab, and a character of two bytes */
    fxa_error_render(&err, "a.fxa", source, SIZE_MAX, out, sizeof out);
    T_STR(out, "a.fxa:9:9: error: unknown name 'cap'");
}

TEST(render_survives_long_lines_control_bytes_and_wild_places) {
    char source[2000], out[1000];
    memset(source, 'y', sizeof source);
    source[1000] = 1;
    err = (fxa_error){FXA_E_PROGRAM, 0, 1, 1001, 5000, "x"};
    size_t n = fxa_error_render(&err, "t", source, sizeof source, out, sizeof out);
    T_CHECK(n < 500);
    T_HAS(out, "?");
    T_HAS(out, "^");
    err.column = 999999;
    T_CHECK(fxa_error_render(&err, "t", source, sizeof source, out, sizeof out) < 500);
    err.column = 1;
    T_CHECK(fxa_error_render(&err, "t", "", 0, out, sizeof out) > 0);
}

/* invalid UTF-8 */
static void render_is(int32_t line, int32_t column, const char *source, const char *want) {
    fxa_error err = {FXA_E_PROGRAM, 0, line, column, 1, "x"};
    char out[1000];
    T_INT(fxa_error_render(&err, "t", source, SIZE_MAX, out, sizeof out), strlen(want));
    T_STR(out, want);
}

TEST(the_caret_stands_below_its_character) {
    /* a byte order mark has no column */
    render_is(1, 4, "\t\xc3\xa4 = q", "t:1:4: error: x\n  \t\xc3\xa4 = q\n  \t  ^");
    render_is(1, 4, "\xc3\xa4\xe2\x82\xac\xf0\x9d\x84\x9eq",
              "t:1:4: error: x\n  \xc3\xa4\xe2\x82\xac\xf0\x9d\x84\x9eq\n     ^");
    /* the empty line after a final newline */
    render_is(1, 2, "q\xff\x80\x80", "t:1:2: error: x\n  q\xff\x80\x80\n   ^");
    render_is(1, 1, "\x80q", "t:1:1: error: x\n  \x80q\n  ^");
    render_is(1, 2, "\xef\xbb\xbfqk", "t:1:2: error: x\n  qk\n   ^"); /* no position */
    render_is(1, 3, "a\x7f\x1f", "t:1:3: error: x\n  a??\n    ^");
    render_is(1, 1, "\r\nq", "t:1:1: error: x\n  \n  ^");
    render_is(2, 1, "q\n", "t:2:1: error: x\n  \n  ^"); /* cut on the right only */
    render_is(1, 0, "q", "t:1:0: error: x\n  q\n  ^");
    render_is(0, 1, "q", "t: error: x"); /* no place at all */
    char line[201], want[300];
    memset(line, 'y', sizeof line - 1);
    line[sizeof line - 1] = 0;
    snprintf(want, sizeof want, "t:1:3: error: x\n  %.160s\n    ^", line);
    render_is(1, 3, line, want); /* no header has such a struct */
}

TEST(no_error_renders_as_nothing) {
    char out[4] = "zzz";
    T_INT(fxa_error_render(NULL, "t", "q", SIZE_MAX, out, sizeof out), 0);
    T_STR(out, "");
    err = (fxa_error){FXA_E_PROGRAM, 0, 0, 0, 0, "x"};
    char text[20];
    T_INT(fxa_error_render(&err, NULL, NULL, 0, text, sizeof text), 8);
    T_STR(text, "error: x");
    T_STR(fxa_status_text((fxa_status)99), "unknown status");
}

typedef struct sized {
    uint32_t struct_size;
    int32_t a, b;
} sized;

TEST(older_and_newer_structs_are_read) { /* empty output needs no capacity */
    sized to = {sizeof to, -1, -2}, older = {8, 5, 99};
    T_OK(fxa__struct_read(&to, sizeof to, 8, &older, "sized", &err));
    T_INT(to.struct_size, sizeof to);
    T_INT(to.a, 5);
    T_INT(to.b, -2);
    struct {
        sized s;
        int32_t newer;
    } newer = {{16, 1, 2}, 0};
    T_OK(fxa__struct_read(&to, sizeof to, 8, &newer, "sized", &err));
    T_INT(to.b, 2);
    newer.s.struct_size = 60000; /* nobody wrote such a struct */
    T_STATUS(fxa__struct_read(&to, sizeof to, 8, &newer, "sized", &err), FXA_E_STRUCT);
    T_HAS(err.text, "sized.struct_size is 60000; this library uses 12 bytes and accepts at most 16384");
    newer.s.struct_size = sizeof newer - 1;
    T_STATUS(fxa__struct_read(&to, sizeof to, 8, &newer, "sized", &err), FXA_E_STRUCT);
    T_HAS(err.text, "sized.struct_size is 15; in every version it is a multiple of");
    older.struct_size = 4;
    T_STATUS(fxa__struct_read(&to, sizeof to, 8, &older, "sized", &err), FXA_E_STRUCT);
    T_STATUS(fxa__struct_read(&to, sizeof to, 8, NULL, "sized", &err), FXA_E_ARGUMENT);
}

TEST(two_call_output) {
    char out[4] = "zzz";
    size_t needed = 0;
    T_OK(fxa__bytes_out("abc", 3, NULL, 0, &needed, &err));
    T_INT(needed, 3);
    T_STATUS(fxa__bytes_out("abc", 3, out, 2, &needed, &err), FXA_E_ARGUMENT);
    T_STR(out, "zzz");
    T_OK(fxa__bytes_out("abc", 3, out, 3, NULL, &err));
    T_STR(out, "abc");
    T_STATUS(fxa__bytes_out("abc", 3, NULL, 0, NULL, &err), FXA_E_ARGUMENT);
    T_OK(fxa__bytes_out(NULL, 0, out, 0, &needed, &err)); /* nothing needs no room */
    T_INT(needed, 0);
    T_STR(out, "abc");
}

T_MAIN
