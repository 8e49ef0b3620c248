/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_program_dump: lines for some programs, valid endings for random ones, and refusals.
 */
#include "lower_fixture.h"

#include "support/memory/fail_alloc.h"

static const struct {
    const char *text;
    fxa_dump_kind what;
    const char *lines;
} report_cases[] = {
    {"", FXA_DUMP_CLASSES, ""},
    {"", FXA_DUMP_CONJUNCTS, ""},
    {"", FXA_DUMP_FUSED, ""},
    {"tensor u : f32[2]\ntensor v : f32[2]\nscore = score + u[h, q] * v[h, k]", FXA_DUMP_CLASSES,
     "per row           u[h, q]\nper head and key  v[h, k]\nper pair          u[h, q] * v[h, k]\n"
     "grad u[h, q]: sum over the pairs of a row\ngrad v[h, k]: sum over the pairs of a key\n"},
    {"param w : int\nmask = k <= q + w", FXA_DUMP_CONJUNCTS, "causal    k <= q + w   (if -2^30 <= w <= 2^30)\n"},
    {"param w : int\nmask = q - k < w", FXA_DUMP_CONJUNCTS, "window    q - k <= w - 1\n"},
    {"param w : int\nmask = k <= q - w", FXA_DUMP_CONJUNCTS, "causal    k <= q - w   (if -2^30 <= w <= 2^30)\n"},
    {"param w : int\nmask = q - k + w <= 7", FXA_DUMP_CONJUNCTS,
     "window    q - k <= -w + 7   (if -2^30 <= w <= 2^30)\n"},
    {"tensor n : i32[1]\nmask = k <= q || k < n[b]", FXA_DUMP_CONJUNCTS, "prefix    k <= q || k <= n[b] - 1\n"},
    {"mask = k < k_len && k - k_len <= q - q_len", FXA_DUMP_CONJUNCTS,
     "causal    k <= q + k_len - q_len\nlength    k <= k_len - 1\n"},
    {"tensor d : i32[1]\ntensor a : bool[1]\nmask = d[q] == d[k] && !a[k]", FXA_DUMP_CONJUNCTS,
     "key       not a[k]\nequal     d[q] == d[k]\n"},
    {"score = k <= q ? score : -inf", FXA_DUMP_CONJUNCTS, "causal    k <= q\n"},
    {"param c : float\nscore = c * tanh(score / c)", FXA_DUMP_FUSED,
     "param c : float\nlet t0 = score / c\nlet t1 = tanh(t0)\n"
     "let t2 = divz(mulz(mulz(dscore, c), 1.0 - t1 * t1), c)\n"
     "grad c += mulz(dscore, t1) + -mulz(t2, t0)\ndscore = t2\nscore = c * t1\n"},
};

RIG_TEST(lines) {
    for (size_t i = 0; i < sizeof report_cases / sizeof *report_cases; i++) {
        char text[2048];
        size_t n = 0;
        t_program *p = rig_parse(r, report_cases[i].text);
        T_REQUIRE(p);
        T_OK(fxa_program_dump(p, report_cases[i].what, text, sizeof text, &n, &err));
        T_INT(n, strlen(text));
        T_STR(text, report_cases[i].lines);
    }
}

/* Returns the number of occurrences of s. */
static int report_count(const char *text, const char *s) {
    int n = 0;
    for (const char *at = strstr(text, s); at; at = strstr(at + 1, s)) n++;
    return n;
}

/* At most 64 lines of a kind are written, then the number of the others. */
RIG_TEST(long_reports_are_cut_off) {
    enum { REPORT_TERMS = 70 };
    static char source[1 << 14], text[1 << 16];
    size_t n = 0;
    int at = snprintf(source, sizeof source, "tensor u : f32[1]\ntensor a : bool[1]\nscore = score");
    for (int i = 0; i < REPORT_TERMS; i++)
        at += snprintf(source + at, sizeof source - (size_t)at, " + u[k + %d] * q", i);
    at += snprintf(source + at, sizeof source - (size_t)at, "\nmask = a[k]");
    for (int i = 1; i < REPORT_TERMS; i++) at += snprintf(source + at, sizeof source - (size_t)at, " && a[k + %d]", i);
    t_program *p = rig_parse(r, source);
    T_REQUIRE(p);
    T_OK(fxa_program_dump(p, FXA_DUMP_CONJUNCTS, text, sizeof text, &n, &err));
    T_INT(report_count(text, "key       a[k"), 64);
    T_HAS(text, "... and 6 more\n");
    T_OK(fxa_program_dump(p, FXA_DUMP_CLASSES, text, sizeof text, NULL, &err)); /* without `needed` */
    T_INT(report_count(text, "per key  ") + report_count(text, "per row  "), 64);
    T_HAS(text, " more\n");
    T_HAS(text, " more gradients\n");
}

RIG_TEST(any_program) {
    static char text[1 << 20];
    for (int i = 0; i < t_scaled(200) && !t_failures; i++) {
        t_program *p = rig_program(r, i % 2 ? GEN_AFFINE_MASK : 0);
        size_t need, n;
        T_REQUIRE(p);
        for (int what = 0; what < 3; what++) {
            T_OK(fxa_program_dump(p, (fxa_dump_kind)what, NULL, 0, &need, &err));
            T_REQUIRE(need < sizeof text);
            T_OK(fxa_program_dump(p, (fxa_dump_kind)what, text, need + 1, &n, &err));
            T_INT(n, need);
            T_INT(strlen(text), need);
        }
    }
}

RIG_TEST(what_is_refused) {
    char text[64];
    size_t n;
    fxa_program *p = NULL, *d = NULL;
    T_REQUIRE((p = rig_parse(r, "mask = k <= q")) != NULL);
    T_OK(fxa_program_derivative(p, &d, &err));
    T_STATUS(fxa_program_dump(NULL, FXA_DUMP_FUSED, text, sizeof text, &n, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "program is NULL");
    T_STATUS(fxa_program_dump(p, FXA_DUMP_FUSED, NULL, 0, NULL, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "both out and needed are NULL");
    T_STATUS(fxa_program_dump(d, FXA_DUMP_FUSED, text, sizeof text, &n, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "this is a derivative program");
    fxa_program_destroy(d);
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_text own = {.data = "dscore = dscore", .size = 15};
    config.kind = FXA_PROGRAM_BPROP, config.texts = &own, config.n_texts = 1;
    T_OK(fxa__program_parse(r->host, &config, &d, &err));
    T_STATUS(fxa_program_dump(d, FXA_DUMP_FUSED, text, sizeof text, &n, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "this is a bprop program");
    T_STATUS(fxa_program_dump(p, (fxa_dump_kind)3, text, sizeof text, &n, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "dump kind 3 is none: 0 (classes), 1 (conjuncts), 2 (fused) are");
    T_STATUS(fxa_program_dump(p, FXA_DUMP_CONJUNCTS, text, 5, &n, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "capacity is 5 bytes");
    T_INT(n, strlen("causal    k <= q\n"));
    fxa_program_destroy(d);
    fxa_program_destroy(p);
}

TEST(out_of_memory) {
    fail_alloc f = FAIL_ALLOC_INIT;
    t_ctx *ctx = fail_alloc_context(&f);
    t_program *p = NULL;
    T_REQUIRE(ctx);
    T_OK(fxa_program_parse(ctx, "tensor t : f32[1]\nscore = score + t[h] * (q - k)\nmask = k <= q && t[k] > 0.5",
                           SIZE_MAX, &p, &err));
    size_t before = f.live_bytes;
    for (int what = 0; what < 3; what++) {
        bool done = false;
        size_t k = 1, n;
        for (; !done && k < 2000; k++) {
            fail_alloc_arm(&f, k, k % 2);
            fxa_status status = fxa_program_dump(p, (fxa_dump_kind)what, NULL, 0, &n, &err);
            fail_alloc_arm(&f, 0, false);
            done = status == FXA_OK;
            if (!done) T_INT(status, FXA_E_MEMORY);
            T_INT(f.live_bytes, before);
        }
        T_CHECK(done && k > 10);
    }
}

T_MAIN
