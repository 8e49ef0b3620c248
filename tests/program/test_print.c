/* SPDX-License-Identifier: Apache-2.0
 *
 * The printer: parse(print(p)) has the hash of p, and print(parse(print(p))) equals print(p), for random programs with
 * all operations and types; notation of single expressions; golden texts.
 */
#include "t.h"

#include "program/program.h"
#include "support/fixtures/gen.h"

static fxa_program *print_parse(fxa_context *ctx, const char *text, fxa_program_kind kind) {
    fxa_error err = {0};
    fxa_program *p = NULL;
    fxa_text one = {NULL, text, SIZE_MAX};
    fxa_parse_config c = FXA_PARSE_CONFIG_INIT;
    c.kind = kind;
    c.texts = &one;
    c.n_texts = 1;
    if (fxa_program_parse_texts(ctx, &c, &p, &err) != FXA_OK)
        T_FAIL("%d:%d: %s in\n%.2000s\n", err.line, err.column, err.text, text);
    return p;
}

/* Returns the printed text, which the caller frees. */
static char *print_of(const fxa_program *p) {
    fxa_error err = {0};
    size_t n = 0, again = 0;
    T_OK(fxa_program_print(p, NULL, 0, &n, &err));
    char *text = malloc(n + 1);
    if (!text) abort();
    T_OK(fxa_program_print(p, text, n + 1, &again, &err));
    T_INT(again, n);
    T_INT(strlen(text), n);
    return text;
}

/* Prints p, parses the text, prints again. */
static void print_round_trip(fxa_context *ctx, const fxa_program *p) {
    char *text = print_of(p);
    fxa_program *back = print_parse(ctx, text, fxa_program_get_kind(p));
    if (back) {
        uint8_t a[16], b[16];
        char *again = print_of(back);
        fxa_program_hash(p, a);
        fxa_program_hash(back, b);
        if (memcmp(a, b, 16) != 0)
            T_FAIL("another hash after\n%.3000s\n(then)\n%.3000s\n", text, again);
        else
            T_STR(again, text);
        free(again);
    }
    fxa_program_destroy(back);
    free(text);
}

static void print_random(unsigned flags, int programs, int longest) {
    t_ctx *ctx = t_context();
    t_rng rng = {t_seed() + flags};
    uint8_t tape[600];
    for (int i = t_scaled(programs); i > 0 && t_failures < 5; i--) {
        size_t n = (size_t)t_int(&rng, 0, longest);
        for (size_t j = 0; j < n; j++) tape[j] = (uint8_t)t_next(&rng);
        t_program *p = gen_program(ctx, tape, n, flags);
        T_REQUIRE(p);
        print_round_trip(ctx, p);
    }
}

TEST(random_programs_come_back) { print_random(0, 20000, 300); }
TEST(random_large_programs_come_back) { print_random(0, 2000, 600); }
TEST(random_affine_masks_come_back) { print_random(GEN_AFFINE_MASK, 3000, 200); }
TEST(random_smooth_programs_come_back) { print_random(GEN_SMOOTH, 3000, 200); }
TEST(random_bprops_come_back) { print_random(GEN_BPROP, 3000, 200); }

CONTEXT_TEST(random_derivatives_come_back) {
    t_rng rng = {t_seed()};
    uint8_t tape[300];
    for (int i = t_scaled(3000); i > 0 && t_failures < 5; i--) {
        t_program *d = NULL;
        size_t n = (size_t)t_int(&rng, 0, (int64_t)sizeof tape);
        for (size_t j = 0; j < n; j++) tape[j] = (uint8_t)t_next(&rng);
        t_program *p = gen_program(ctx, tape, n, i % 2 ? GEN_SMOOTH : 0);
        T_REQUIRE(p);
        T_OK(fxa_program_derivative(p, &d, &err));
        if (d) print_round_trip(ctx, d);
    }
}

/* ---- How things are written -------------------------------------------------------------------------------------- */

/* Returns the contents of a file of tests/golden/programs with a terminator; the caller frees it. */
static char *print_file(const char *name, const char *ending) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tests/golden/programs/%s.%s", FXA_SOURCE_DIR, name, ending);
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 65536);
    if (!f || !text) {
        T_FAIL("cannot read %s\n", path);
        free(text);
        if (f) (void)fclose(f);
        return NULL;
    }
    size_t n = fread(text, 1, 65535, f);
    text[n] = 0;
    (void)fclose(f);
    return text;
}

CONTEXT_TEST(golden_texts) {
    static const char *const names[] = {"identity",         "causal",         "softcap_window", "document",
                                        "precedence",       "conversions",    "constants",      "loops",
                                        "mask_reads_score", "clashing_names", "everything"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *text = print_file(names[i], "fxa"), *golden = print_file(names[i], "txt");
        fxa_program *p = text && golden ? print_parse(ctx, text, FXA_PROGRAM_SCORE) : NULL;
        if (p) {
            char *printed = print_of(p);
            T_STR(printed, golden);
            print_round_trip(ctx, p);
            free(printed);
        }
        fxa_program_destroy(p);
        free(text);
        free(golden);
    }
}

static void print_expect(fxa_program_kind kind, const char *text, const char *want) {
    t_ctx *ctx = t_context();
    t_program *p = print_parse(ctx, text, kind);
    if (p) {
        char *printed = print_of(p);
        T_STR(printed, want);
        free(printed);
    }
}

TEST(parentheses_only_where_needed) {
    print_expect(FXA_PROGRAM_SCORE, "score = ((score) * (2.0)) + (1.0)", "score = 2.0 * score + 1.0\n");
    print_expect(FXA_PROGRAM_SCORE, "score = score - (1.0 - (score - 2.0))", "score = score - (1.0 - (score - 2.0))\n");
    print_expect(FXA_PROGRAM_SCORE, "score = (score ** 2.0) ** 3.0", "score = (score ** 2.0) ** 3.0\n");
    print_expect(FXA_PROGRAM_SCORE, "score = score ** (2.0 ** score)", "score = score ** 2.0 ** score\n");
    print_expect(FXA_PROGRAM_SCORE, "score = (-score) ** 2.0", "score = (-score) ** 2.0\n");
    print_expect(FXA_PROGRAM_SCORE, "score = -(score ** 2.5)", "score = -score ** 2.5\n");
    print_expect(FXA_PROGRAM_SCORE, "score = -(score * 2.5)", "score = -(2.5 * score)\n");
    print_expect(FXA_PROGRAM_SCORE, "score = score - -2.5", "score = score - -2.5\n");
    print_expect(FXA_PROGRAM_SCORE, "mask = (q & 1) == 0", "mask = q & 1 == 0\n");
    print_expect(FXA_PROGRAM_SCORE, "mask = q >= k && (k > 3 || q < 2)", "mask = (k > 3 || q < 2) && q >= k\n");
    print_expect(FXA_PROGRAM_SCORE, "mask = (q < k) == (k < h)", "mask = (q < k) == (h > k)\n");
}

TEST(comparisons_read_as_people_write_them) {
    print_expect(FXA_PROGRAM_SCORE, "mask = k <= q", "mask = q >= k\n");
    print_expect(FXA_PROGRAM_SCORE, "mask = 0 < q - k", "mask = q - k > 0\n");
    print_expect(FXA_PROGRAM_SCORE, "mask = k_len > k", "mask = k < k_len\n");
    print_expect(FXA_PROGRAM_SCORE, "tensor d : i32[1]; mask = d[k] == d[q]",
                 "tensor d : i32[1]\nmask = d[q] == d[k]\n");
}

TEST(outputs_stand_where_their_inputs_are_whole) {
    print_expect(FXA_PROGRAM_SCORE, "mask = score > 1.0; score = score * 2.0",
                 "mask = score > 1.0\nscore = 2.0 * score\n");
    print_expect(FXA_PROGRAM_SCORE, "mask = q >= k; score = score * 2.0", "score = 2.0 * score\nmask = q >= k\n");
    print_expect(FXA_PROGRAM_BPROP, "dscore = dscore * score", "dscore = score * dscore\n");
    print_expect(FXA_PROGRAM_BPROP, "", "");
    print_expect(FXA_PROGRAM_DERIVATIVE,
                 "param p : float; tensor t : f32[1]; grad t[h] += dscore; grad p += dscore * 2.0; dscore = dscore * p",
                 "param p : float\ntensor t : f32[1]\n"
                 "grad p += 2.0 * dscore\ngrad t[h] += dscore\ndscore = dscore * p\n");
}

/* Deep programs: the text stays far below the parser's nesting limit, whatever the shape of the expression. */
CONTEXT_TEST(deep_programs_come_back) {
    static const fxa_op ops[] = {FXA_OP_TANH, FXA_OP_NEG, FXA_OP_FLOAT, FXA_OP_POW, FXA_OP_SUB, FXA_OP_SELECT};
    for (int shape = 0; shape < 12; shape++) {
        fxa_builder *b = NULL;
        t_program *p = NULL;
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        fxa_value x = fxa_builder_input(b, FXA_INPUT_SCORE), q = fxa_builder_input(b, FXA_INPUT_Q);
        for (int i = 0; i < 3000; i++) {
            fxa_op op = ops[(i * (shape + 1) / 2) % 6];
            fxa_value y = fxa_builder_op2(b, FXA_OP_ADD, q, fxa_builder_int(b, i));
            fxa_value c = fxa_builder_op2(b, FXA_OP_LT, x, y);
            bool left = shape % 2;
            if (op == FXA_OP_POW || op == FXA_OP_SUB)
                x = fxa_builder_op2(b, op, left ? x : y, left ? y : x);
            else if (op == FXA_OP_SELECT)
                x = fxa_builder_op3(b, op, c, x, y);
            else if (op == FXA_OP_FLOAT)
                x = fxa_builder_op1(b, op, fxa_builder_op1(b, FXA_OP_INT, x));
            else
                x = fxa_builder_op1(b, op, x);
        }
        fxa_builder_set_score(b, x);
        T_OK(fxa_builder_finish(b, &p, &err));
        fxa_builder_destroy(b);
        if (p) print_round_trip(ctx, p);
    }
}

/* A program of maximum size: parsing its text creates no additional nodes. */
CONTEXT_TEST(the_largest_program_comes_back) {
    fxa_builder *b = NULL;
    t_program *p = NULL;
    T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
    fxa_value x = fxa_builder_input(b, FXA_INPUT_SCORE);
    for (int i = 0; i < FXA_MAX_NODES / 2 - 1; i++)
        x = fxa_builder_op2(b, FXA_OP_MUL, x, fxa_builder_float(b, -2.0 - i));
    fxa_builder_set_score(b, x);
    T_OK(fxa_builder_finish(b, &p, &err));
    fxa_builder_destroy(b);
    T_REQUIRE(p);
    T_CHECK(fxa_program_node_count(p) >= FXA_MAX_NODES - 2);
    print_round_trip(ctx, p);
}

CONTEXT_TEST(two_calls) {
    char out[32];
    size_t n = 99;
    t_program *p = print_parse(ctx, "mask = q >= k", FXA_PROGRAM_SCORE);
    T_REQUIRE(p);
    T_OK(fxa_program_print(p, NULL, 0, &n, &err));
    T_INT(n, strlen("mask = q >= k\n"));
    T_OK(fxa_program_print(p, out, n + 1, NULL, &err));
    T_STR(out, "mask = q >= k\n");
    out[0] = 'x';
    T_STATUS(fxa_program_print(p, out, n, &n, &err), FXA_E_ARGUMENT);
    T_INT(n, strlen("mask = q >= k\n"));
    T_INT(out[0], 'x');
    T_STATUS(fxa_program_print(p, NULL, 0, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_print(NULL, out, 1, &n, &err), FXA_E_ARGUMENT);
}

T_MAIN
