/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser stopped at any token, when unrolled loops read too many, and at any failing allocation, for programs of
 * many lengths, so that each list of parser and builder is the one that grows.
 */
#include "support/memory/fail_alloc.h"
#include "t.h"

/* ---- Too many tokens --------------------------------------------------------------------------------------------- */

/* The body has every kind of token and is a bool, so that iterations add no nodes. */
#define STOP_BODY                                                                                                      \
    "(-1 + -2.5 - q ** -k) * t[q, -k] + +abs(min(q, k, 3) - 0.5) < (!(q < k) ? sum(l, 2, l + q) : ~b) || any(l, 1, h " \
    "> "                                                                                                               \
    "l)"
enum { STOP_TOKENS = 90 };

CONTEXT_TEST(loops_may_stop_at_any_token) {
    bool seen[256] = {false};
    int places = 0, most = t_scaled(STOP_TOKENS) < STOP_TOKENS ? t_scaled(STOP_TOKENS) : STOP_TOKENS;
    for (int n = 1; n <= most; n += 2) {
        char text[400];
        fxa_program *p = NULL;
        /* The first two loops read n - 1 tokens again. */
        (void)snprintf(text, sizeof text,
                       "tensor t : f32[2]\nlet w = all(i, %d, true) && all(i, %d, true)\n"
                       "mask = w && all(i, 64, all(j, 64, %s))",
                       n < 64 ? n : 64, n < 64 ? 1 : n - 63, STOP_BODY);
        T_STATUS(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err), FXA_E_LIMIT);
        T_HAS(err.text, "loops and calls read more than 250000 tokens again");
        T_CHECK(p == NULL && err.line == 3);
        if (err.column > 0 && err.column < 256) places += !seen[err.column], seen[err.column] = true;
    }
    T_CHECK(places * 4 > most); /* the limit fell on at least half of the body's tokens */
}

/* ---- No memory --------------------------------------------------------------------------------------------------- */

/* Parses with each allocation failing in turn, then with none: no leak, and always a message. */
static void memory_sweep(fxa_program_kind kind, const char *text) {
    static const fxa_declaration offers[] = {{"gain", FXA_FLOAT, FXA_DTYPE_NONE, 0}, {"bias", 0, FXA_F16, 1}};
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&f);
    fxa_status status = FXA_E_MEMORY;
    T_REQUIRE(ctx != NULL);
    size_t blocks = f.blocks;
    for (size_t k = 1; k < 300 && status == FXA_E_MEMORY; k++) {
        fxa_text one = {NULL, text, SIZE_MAX};
        fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
        fxa_program *p = NULL;
        fxa_error err = {.text = ""};
        config.kind = kind, config.texts = &one, config.n_texts = 1;
        config.declarations = offers, config.n_declarations = 2;
        fail_alloc_arm(&f, k, k % 2 == 0);
        status = fxa_program_parse_texts(ctx, &config, &p, &err);
        fail_alloc_arm(&f, 0, false);
        if (status == FXA_E_MEMORY) T_HAS(err.text, "out of memory");
        T_CHECK((p != NULL) == (status == FXA_OK));
        fxa_program_destroy(p);
        T_INT(f.blocks, blocks);
    }
    if (status != FXA_OK) T_FAIL("%s: %s\n", fxa_status_name(status), text);
    fxa_context_destroy(ctx);
    T_INT(f.mistakes, 0);
}

TEST(memory_may_run_out_at_any_length) {
    static const struct {
        fxa_program_kind kind;
        const char *end;
    } ends[] = {
        {FXA_PROGRAM_SCORE, "score = score + x + q"},
        {FXA_PROGRAM_SCORE, "score = t[q < k] + x"},
        {FXA_PROGRAM_SCORE, "score = min(x, c, 2.5, q) + max(q, k, b)"},
        {FXA_PROGRAM_SCORE, "mask = (x < k) || q < 3 ? k > 1 : b != h"},
        {FXA_PROGRAM_SCORE, "fn f(y, z) = y * z + x\nfn g(y) = f(y, 2.0) + gain\nscore = f(score, g(x)) + bias[q]"},
        {FXA_PROGRAM_SCORE, "score = relu(score + x) + sign(x) + softplus(score)"},
        {FXA_PROGRAM_SCORE, "score = sum(i, 0, x)"},
        {FXA_PROGRAM_SCORE, "mask = any(i, 0, x < 0)"},
        {FXA_PROGRAM_DERIVATIVE, "grad c += x\ngrad c += q\ndscore = x"},
        {FXA_PROGRAM_DERIVATIVE, "grad t[q] += k\ngrad t[q] += x\ngrad t[k] += q"},
    };
    for (int n = 0; n < t_scaled(40); n++)
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
            char text[2000];
            size_t used = (size_t)snprintf(text, sizeof text, "param c : float\ntensor t : f32[1]\nlet x = c");
            for (int j = 0; j < n; j++) used += (size_t)snprintf(text + used, sizeof text - used, " + c * %d.5", j);
            (void)snprintf(text + used, sizeof text - used, "\n%s", ends[i].end);
            memory_sweep(ends[i].kind, text);
        }
}

T_MAIN
