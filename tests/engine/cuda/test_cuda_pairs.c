/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that the generated program.cuh passes to pairs: tile indices, scalars that the host fills in, indices without
 * bounds checks, lanes that add to one element, derivatives that may not be finite, and functions that are called out
 * of line. test_cuda_form.c tests the rest of the text's form, test_cuda_program.c its meaning.
 */
#include "lower/lower_fixture.h"

#include "engine/cuda/cuda.h"

/* Makes what kernels get for a program with all its gradients. Its text ends with a zero; the caller frees it. */
static bool pairs_make(rig *r, const char *source, bool backward, bool plain, fxa__cuda_program *out) {
    t_program *p = rig_parse(r, source), *d = NULL;
    fxa_error err;
    if (!p) return false;
    T_OK(fxa_program_derivative(p, &d, &err));
    fxa__cuda_config config = {.program = p,
                               .derivative = backward ? d : NULL,
                               .grad_params = UINT64_MAX,
                               .grad_tensors = UINT64_MAX,
                               .assumed.dense = -1,
                               .sizes_fit = true,
                               .assumed.operands_fit = true,
                               .assumed.finite_factors = plain};
    fxa_status status = fxa__cuda_program_make(r->host, &config, out, &err);
    T_OK(status);
    if (status == FXA_OK) fxa__write_bytes(&out->text, "", 1);
    return status == FXA_OK;
}

static const char *pairs_text(const fxa__cuda_program *g) { return (const char *)g->text.data; }

/* Programs, and parts that their texts have or lack. */
typedef struct pairs_row {
    const char *text, *has, *lacks;
} pairs_row;

static void pairs_check(const pairs_row *rows, size_t n, bool backward) {
    rig *r = calloc(1, sizeof *r);
    T_REQUIRE(r && rig_start(r));
    for (size_t i = 0; i < n; i++) {
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        T_REQUIRE(pairs_make(r, rows[i].text, backward, true, &g));
        bool has = !rows[i].has || strstr(pairs_text(&g), rows[i].has);
        if (!has || (rows[i].lacks && strstr(pairs_text(&g), rows[i].lacks)))
            T_FAIL("%s lacks %s, or has %s:\n%s\n", rows[i].text, rows[i].has, rows[i].lacks, pairs_text(&g));
    }
    rig_end(r);
    free(r);
}

#define PAIRS_CHECK(rows, backward) pairs_check(rows, sizeof rows / sizeof *rows, backward)

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* An int that is affine in q and k, or a comparison of two such, is a number of the tile and constants. */
TEST(numbers_of_tiles) {
    static const pairs_row rows[] = {
        {"mask = k - q == 3", "(-p.q_off + p.k_off) == t", NULL},
        {"mask = k - q != 3", "(-p.q_off + p.k_off) != t", NULL},
        {"mask = k - q < 3", "(-p.q_off + p.k_off) < t", NULL},
        {"mask = k - q <= 3", "(-p.q_off + p.k_off) <= t", NULL},
        {"mask = 2 * k > 3 * q", "p.q_off", NULL},
        {"mask = k >= q", "(p.q_off - p.k_off) <= t", NULL},
        {"mask = k == 7", "(p.k_off) == t", NULL},
        {"mask = q // 2 <= k", "int t", "fxa__apart(v"}, /* q alone is read as it is */
        {"mask = (q // 2) * (k // 2) <= k", NULL, "fxa__shift"},
        {"mask = q * 65536 <= k", "65536 * p.q_off", NULL},
        {"mask = q * 65537 <= k", NULL, "65537 * p.q_off"},
        {"mask = q * -65536 <= k", "-65536 * p.q_off", NULL},
        {"mask = q * -65537 <= k", NULL, "-65537 * p.q_off"},
        {"mask = q * 5 <= k * 65537", NULL, "65537 * p.k_off"},
        {"param w : int\nmask = q - k <= w", "(p.q_off - p.k_off) <= t", NULL},
        {"score = score + float(2 * q + 3 * k)", "(float)(2 * p.q_off + 3 * p.k_off)", NULL},
        {"score = score + float(q) * 0.5", "(float)(p.q_off)", NULL},
        {"score = float(int(score) + q)", NULL, "_off"}, /* no tile has a score */
        {"score = float(int(score) + int(score))", NULL, "_off"},
        {"score = score * float(b + h)", NULL, "_off"},
    };
    PAIRS_CHECK(rows, false);
}

/* Equality of the words of query and key, where nothing else of the mask reads either. */
TEST(masks_inside_a_document) {
    static const pairs_row rows[] = {
        {"tensor a : i32[1]\ntensor c : i32[1]\nmask = a[q] == c[k]", "#define PROG_UNIFORM_OPERANDS 1", NULL},
        {"tensor a : i32[1]\ntensor c : i32[1]\nmask = c[k] == a[q] && k <= q", "#define PROG_UNIFORM_OPERANDS 1",
         NULL},
        {"tensor a : i32[1]\ntensor c : i32[1]\nmask = a[q] == c[k] && a[q] > 3", NULL, "PROG_UNIFORM_OPERANDS"},
        {"tensor a : i32[1]\ntensor c : i32[1]\nmask = a[q] == c[k] && c[k] > 3", NULL, "PROG_UNIFORM_OPERANDS"},
        {"tensor a : i32[1]\ntensor c : i32[1]\nmask = a[q] <= c[k]", NULL, "PROG_UNIFORM_OPERANDS"},
        {"tensor a : i32[1]\ntensor c : i32[1]\nmask = a[q] == c[k] || k <= q", NULL, "PROG_UNIFORM_OPERANDS"},
        {"tensor a : f32[1]\ntensor c : f32[1]\nmask = a[q] == c[k]", NULL,
         "PROG_UNIFORM_OPERANDS"}, /* NaN is not equal */
        {"tensor a : i32[1]\nmask = a[q] == 3 && k <= q", NULL, "PROG_UNIFORM_OPERANDS"},
    };
    PAIRS_CHECK(rows, false);
}

/* ---- Indices ----------------------------------------------------------------------------------------------------- */

/* One axis has one bound that a run checks: the larger of two numbers, or one coordinate. Negative: -1 - fxa_input. */
RIG_TEST(bounds_of_indices) {
    static const struct {
        const char *load;
        int64_t least[2];
    } rows[] = {
        {"t[b, h]", {-1 - FXA_INPUT_B, -1 - FXA_INPUT_H}},
        {"t[3, 7]", {4, 8}},
        {"(t[3, 7] + t[5, 2])", {6, 8}},
        {"(t[5, 2] + t[3, 7])", {6, 8}},
        {"t[q, k]", {0, 0}},
        {"t[q % 7, k % 5]", {7, 5}},
        {"t[q - 3, 268435455]", {0, 1 << 28}},
        {"t[q - 3, 268435456]", {0, 0}},
        {"t[-1, q * 2]", {0, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[200];
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        (void)snprintf(text, sizeof text, "tensor t : f32[2]\nscore = score * %s * float(q * k)", rows[i].load);
        T_REQUIRE(pairs_make(r, text, false, true, &g));
        for (int d = 0; d < 2; d++)
            if (g.bounds.min_size[0][d] != rows[i].least[d])
                T_FAIL("%s: axis %d has %lld elements, not %lld\n", text, d, (long long)g.bounds.min_size[0][d],
                       (long long)rows[i].least[d]);
    }
}

/* A number and a coordinate, or two coordinates, along one axis: one of them is checked by the text. */
RIG_TEST(bounds_that_exclude_each_other) {
    static const char *const loads[] = {"t[b] * t[3]", "t[3] * t[b]", "t[b] * t[h]", "t[h] * t[b]", "t[b] * t[b]"};
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        char text[200];
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        (void)snprintf(text, sizeof text, "tensor t : f32[1]\nscore = score * %s", loads[i]);
        T_REQUIRE(pairs_make(r, text, false, true, &g));
        bool guarded = strstr(pairs_text(&g), "fxa__inside(") || strstr(pairs_text(&g), "fxa__at(");
        if (guarded != (i < 4) || !g.bounds.min_size[0][0])
            T_FAIL("%s: %lld elements:\n%s\n", text, (long long)g.bounds.min_size[0][0], pairs_text(&g));
    }
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* Lanes of a warp that add to one element add among themselves first. */
TEST(lanes_that_add_to_one_element) {
    char many[800] = "tensor t : f32[2]\nscore = score";
    for (int i = 0; i <= FXA_CUDA_SUMS; i++) (void)sprintf(many + strlen(many), " + t[h, %d]", i);
    const pairs_row rows[] = {
        {"tensor t : f32[1]\nscore = score + t[(q * q) % 9]", "sum_lanes<KEY_LANES>(x)", "x != 0.f"},
        {"tensor t : f32[1]\nscore = score + t[(k * k) % 9]", "sum_lanes<QUERY_LANES>(x)", "x != 0.f"},
        {"tensor t : f32[1]\nscore = score + t[(q * k) % 9]", "x != 0.f", "sum_lanes"},
        {many, "sum_lanes<ALL_LANES>(x)", "x != 0.f"},
        {many, "if (i == 31) {", "if (i == 32) {"}, /* of FXA_CUDA_SUMS: sum_place() */
    };
    PAIRS_CHECK(rows, true);
}

/* PROG_DERIVATIVE 2: the slope may be infinite, or NaN where the value is not. */
TEST(slopes_that_may_not_be_finite) {
    static const pairs_row rows[] = {
        {"score = tanh(score) * 2.0", "#define PROG_DERIVATIVE 1", NULL},
        {"score = sin(score)", "#define PROG_DERIVATIVE 2", NULL},
        {"score = score + 2.5 * cos(score)", "#define PROG_DERIVATIVE 2", NULL},
        {"score = score * score", "#define PROG_DERIVATIVE 2", NULL},
        {"score = sqrt(score)", "#define PROG_DERIVATIVE 2", NULL},
        {"tensor t : f32[1]\nscore = score * t[k]", "#define PROG_DERIVATIVE 2", NULL},
        {"tensor t : i8[1]\nscore = score * float(t[k])", "#define PROG_DERIVATIVE 1", NULL},
        {"tensor t : i8[1]\nscore = with_grad(score, score * tanh(float(t[k])))", "#define PROG_DERIVATIVE 1", NULL},
        {"tensor t : f32[1]\nscore = with_grad(score, score * tanh(t[k]))", "#define PROG_DERIVATIVE 2", NULL},
        {"tensor t : f32[1]\nscore = k <= q ? score * 2.5 : score * clamp(t[k], -1.0, 1.0)",
         "#define PROG_DERIVATIVE 2", NULL},
        {"param a : float\nscore = tanh(score) * a", "#define PROG_DERIVATIVE 1", NULL},
    };
    PAIRS_CHECK(rows, true);
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static void pairs_fill(const fxa__cuda_program *g, float *f) {
    double params[FXA_MAX_PARAMS] = {0};
    int ints[FXA_CUDA_SCALARS];
    for (int32_t i = 0; i < g->program->n_params; i++)
        params[i] = g->params[i].source == FXA__CUDA_SCALE ? 0.125
                    : g->params[i].source >= 0             ? 1.25 + 0.75 * g->params[i].source
                                                           : g->params[i].value;
    fxa__cuda_host_values(g, params, f, ints);
}

/* The host computes what pairs read of params and arithmetic alone. The backward has the forward's first, so that value
 * and mask have the same bits, then its own. */
RIG_TEST(numbers_that_the_host_fills) {
    static const struct {
        const char *text;
        int forward, backward;
    } rows[] = {
        {"score = score + float(q * k) * 0.3", 0, 0},
        {"param a : float\nscore = score + a * float(q * k)", 0, 0},
        {"param a : float\nscore = score + a * 2.5 * float(q * k)", 1, 1},
        {"param a : float\nscore = score + exp(-(a * a)) * float(q * k)", 0, 0}, /* which is no arithmetic */
        {"param a : float\nparam c : float\nscore = score + (a * c + a / c) * float(k)", 1, 3},
        {"param a : float\nparam c : float\nscore = score * (a * c) + (a + c) * float(k)\nmask = float(k) < a - c", 3,
         3},
        {"param a : float\nparam c : float\nscore = score + (a * c + a * c * (a * c)) * k\nmask = float(k) < a * c", 2,
         2},
        {"param a : int\nscore = score + float(a * 3) * float(q * k)", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float f[2][FXA_CUDA_SCALARS + FXA_CUDA_HOST_VALUES];
        fxa__cuda_program g[2];
        for (int back = 0; back < 2; back++) {
            T_REQUIRE(pairs_make(r, rows[i].text, back, false, &g[back]));
            pairs_fill(&g[back], f[back]);
        }
        if (g[0].computed.n != rows[i].forward || g[1].computed.n != rows[i].backward)
            T_FAIL("%s: %d and %d numbers\n", rows[i].text, (int)g[0].computed.n, (int)g[1].computed.n);
        for (int k = 0; k < g[0].computed.n && k < g[1].computed.n; k++)
            T_NEAR(f[1][g[1].computed.at + k], f[0][g[0].computed.at + k], 0);
        for (int back = 0; back < 2; back++) fxa__cuda_program_free(&g[back]);
    }
}

/* Factors that no pair changes are one, whichever operand they are: one product for a pair, and a sum with one. */
RIG_TEST(factors_are_joined) {
    static const char *const functions[] = {"exp", "exp2", "log",  "log2", "sqrt", "rsqrt",
                                            "sin", "cos",  "tanh", "erf",  "atan", "sigmoid"};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        char text[200];
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        (void)snprintf(text, sizeof text, "param a : float\nscore = score + float(k * q) * 3.5 * %s(a)", functions[i]);
        T_REQUIRE(pairs_make(r, text, false, false, &g));
        const char *value = strstr(pairs_text(&g), "float value("), *end = value ? strstr(value, "return ") : NULL;
        int products = 0, sums = 0;
        for (const char *at = value; at && at < end; at++) {
            products += strncmp(at, "__fmul_rn(", 10) == 0;
            sums += strncmp(at, "__fmaf_rn(", 10) == 0;
        }
        if (products != 1 || sums != 1) T_FAIL("%s: %d products, %d sums\n%s\n", text, products, sums, value);
    }
}

/* The forward pass reads rounded values from a row of distances, so the backward pass does not fuse them into a sum. */
TEST(distances_are_rounded_in_both_passes) {
    static const pairs_row forward[] = {{"param s : float\nscore = s * float(q - k) - score", "p.diagonal", NULL}};
    static const pairs_row backward[] = {
        {"param s : float\nscore = s * float(q - k) - score", "__fmul_rn(v3, a.f[0])", "p.diagonal"}};
    PAIRS_CHECK(forward, false);
    PAIRS_CHECK(backward, true);
}

/* Places of the numbers of a soft cap, in the order in which the host fills them. */
RIG_TEST(places_of_a_soft_cap) {
    static const char *const texts[] = {"param cap : float\nscore = cap * tanh(score / cap)",
                                        "score = 30.0 * tanh(score / 30.0)",
                                        "score = 2.0 * tanh(score) + float(q - k)"};
    for (int i = 0; i < 6; i++) {
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        char part[200];
        T_REQUIRE(pairs_make(r, texts[i / 2], i % 2, i >= 2, &g));
        int at = (int)g.computed.softcap_at, far = at + 1 + FXA_CUDA_SOFTCAP_TERMS;
        T_CHECK(at > 0);
        (void)snprintf(part, sizeof part, "float series_limit(const FxaArgs &a) const { return a.f[%d]; }", at);
        T_HAS(pairs_text(&g), part);
        (void)snprintf(part, sizeof part, "return score_softcap_series(score, a.f + %d);", at + 1);
        T_HAS(pairs_text(&g), part);
        (void)snprintf(part, sizeof part, "float exp_limit(const FxaArgs &a) const { return a.f[%d]; }", far);
        T_HAS(pairs_text(&g), part);
        (void)snprintf(part, sizeof part, "return {a.f[%d], ", far + 1);
        T_HAS(pairs_text(&g), part);
        if (g.switches.softcap_has_unit) (void)snprintf(part, sizeof part, "a.f[%d], softcap_unit(a)};", far + 2);
        T_HAS(pairs_text(&g), g.switches.softcap_has_unit ? part : "-0.5f, 1.f};");
    }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Returns the smallest number of operations for which the text calls a part of PROG_OUT_OF_LINE. */
static int pairs_first_called(rig *r, const char *format, const char *leaf, bool backward, int part) {
    for (int n = 1; n < 400; n++) {
        char chain[4096], text[5000];
        size_t at = 0;
        for (int i = n; i-- > 0;) at += (size_t)snprintf(chain + at, sizeof chain - at, "%s", i % 2 ? "(" : "abs(");
        at += (size_t)snprintf(chain + at, sizeof chain - at, "%s", leaf);
        for (int i = 0; i < n; i++)
            at += (size_t)snprintf(chain + at, sizeof chain - at, "%s", i % 2 ? " - 1.5)" : ")");
        (void)snprintf(text, sizeof text, format, chain);
        fxa__cuda_program g;
        if (!pairs_make(r, text, backward, true, &g)) return -1;
        const char *apart = strstr(pairs_text(&g), "#define PROG_OUT_OF_LINE ");
        int parts = apart ? atoi(apart + strlen("#define PROG_OUT_OF_LINE ")) : 0;
        fxa__cuda_program_free(&g);
        if (parts & part) return n;
    }
    return 400;
}

/* More than 100 operations of a forward, 160 of a backward, are called, those of value, mask and gradients by
 * themselves. The chain is what stands here less the product with the scale, conversions and comparisons. */
RIG_TEST(so_much_is_called) {
    T_INT(pairs_first_called(r, "score = %s", "score", false, 1), 99);
    T_INT(pairs_first_called(r, "mask = %s < 3.5", "float(q * k)", false, 2), 98);
    T_INT(pairs_first_called(r, "mask = %s < 3.5", "float(q * k)", true, 2), 158);
    T_INT(pairs_first_called(r, "param a : float\nscore = score + a * %s", "float(q * k)", true, 4), 157);
}

T_MAIN
