/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties of programs: tables of equivalent spellings and of near misses, and dependences.
 */
#include "t.h"

#include "program/program.h"
#include "support/memory/fail_alloc.h"
#include "support/fixtures/gen.h"

static bool properties_get(fxa_context *ctx, const char *text, fxa_properties *out) {
    t_program *p = NULL;
    fxa_error err;
    if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK) {
        T_FAIL("%s: %s\n", text, err.text);
        return false;
    }
    fxa_program_properties(p, out);
    return true;
}

#define OPEN INT32_MAX
#define PURE FXA_PROPERTY_PURE_MASK
#define CAUSAL FXA_PROPERTY_CAUSAL
#define BOTTOM FXA_PROPERTY_CAUSAL_BOTTOM_RIGHT
#define WINDOW FXA_PROPERTY_WINDOW
#define PADDING FXA_PROPERTY_PADDING

/* Texts of a mask only, so PURE_MASK is always set. */
static const struct {
    const char *mask;
    uint32_t flags;
    int32_t left, right;
} properties_masks[] = {
    /* causal */
    {"k <= q", CAUSAL, OPEN, 0},
    {"q >= k", CAUSAL, OPEN, 0},
    {"k < q + 1", CAUSAL, OPEN, 0},
    {"k - 1 < q", CAUSAL, OPEN, 0},
    {"q - k >= 0", CAUSAL, OPEN, 0},
    {"0 <= q - k", CAUSAL, OPEN, 0},
    {"k - q <= 0", CAUSAL, OPEN, 0},
    {"k - q < 1", CAUSAL, OPEN, 0},
    {"-1 < q - k", CAUSAL, OPEN, 0},
    {"!(q < k)", CAUSAL, OPEN, 0},
    {"!(k - q > 0)", CAUSAL, OPEN, 0},
    {"2 * k <= 2 * q + 1", CAUSAL, OPEN, 0},
    {"q + b >= k + b", CAUSAL, OPEN, 0},
    {"-q <= -k", CAUSAL, OPEN, 0},
    {"(q - k) // 4 >= 0", CAUSAL, OPEN, 0},
    {"k <= q && b == 1", CAUSAL, OPEN, 0},
    {"h == 2 && (b > 3 && !(k > q))", CAUSAL, OPEN, 0},
    {"!(k > q || b == 7)", CAUSAL, OPEN, 0},
    {"k <= q && h == 0 || k <= q && h > 3", CAUSAL, OPEN, 0},
    {"where(h == 0, k <= q, k <= q && b == 1)", CAUSAL, OPEN, 0},
    {"int(k <= q) == 1", CAUSAL, OPEN, 0},
    /* not causal */
    {"k <= q || b == 1", 0, OPEN, OPEN},
    {"k <= 2 * q", 0, OPEN, OPEN},
    {"k <= q + b", 0, OPEN, OPEN},
    {"k // 2 <= q // 2", 0, OPEN, OPEN},
    {"(k <= q) ^ (b == 1)", 0, OPEN, OPEN},
    {"q <= k", WINDOW, 0, OPEN},
    {"k < q", WINDOW, OPEN, -1},
    {"q - k >= 1", WINDOW, OPEN, -1},
    {"k <= q + 3", WINDOW, OPEN, 3},
    /* windows */
    {"q - k <= 10", WINDOW, 10, OPEN},
    {"q - k < 11", WINDOW, 10, OPEN},
    {"k >= q - 10", WINDOW, 10, OPEN},
    {"k + 10 >= q", WINDOW, 10, OPEN},
    {"k > q - 11", WINDOW, 10, OPEN},
    {"k <= q && q - k < 1024", CAUSAL | WINDOW, 1023, 0},
    {"q - k < 1024 && b == 0 && k <= q && q - k < 512", CAUSAL | WINDOW, 511, 0},
    {"q - 10 <= k && k <= q + 5", WINDOW, 10, 5},
    {"abs(q - k) <= 8", WINDOW, 8, 8},
    {"abs(k - q) < 9", WINDOW, 8, 8},
    {"abs(q - k) <= 8 && q >= k", CAUSAL | WINDOW, 8, 0},
    {"q == k", CAUSAL | WINDOW, 0, 0},
    {"q - k >= 2 && q - k <= 7", WINDOW, 7, -2},
    {"(q - k) // 8 == 0", CAUSAL | WINDOW, 7, 0},
    {"q - k == 3 || q - k == 5", WINDOW, 5, -3},
    /* bottom right and padding */
    {"k <= q + k_len - q_len", BOTTOM, OPEN, OPEN},
    {"k <= q + (k_len - q_len)", BOTTOM, OPEN, OPEN},
    {"q_len - q <= k_len - k", BOTTOM, OPEN, OPEN},
    {"k - k_len < q - q_len + 1", BOTTOM, OPEN, OPEN},
    {"k <= q + q_len - k_len", 0, OPEN, OPEN},
    {"k < k_len", PADDING, OPEN, OPEN},
    {"k_len > k", PADDING, OPEN, OPEN},
    {"k + 1 <= k_len", PADDING, OPEN, OPEN},
    {"k_len - k > 0 && k <= q", PADDING | CAUSAL, OPEN, 0},
    {"q < q_len", 0, OPEN, OPEN},
    {"k <= k_len", 0, OPEN, OPEN},
    {"k < len[b]", PADDING, OPEN, OPEN},
    {"len[b] - k >= 1", PADDING, OPEN, OPEN},
    {"k < len[h]", 0, OPEN, OPEN},
    {"k < len[b + 1]", 0, OPEN, OPEN},
    {"k < wide[b, 0]", 0, OPEN, OPEN},
    {"k >= len[b]", 0, OPEN, OPEN},
    {"k < width", 0, OPEN, OPEN}, /* a param is known only at run time */
    {"score > 0 && k <= q", CAUSAL, OPEN, 0},
    {"false", 0, OPEN, OPEN},
};

CONTEXT_TEST(masks) {
    for (size_t i = 0; i < sizeof properties_masks / sizeof *properties_masks; i++) {
        char text[512];
        fxa_properties f;
        snprintf(text, sizeof text, "tensor len : i32[1]\ntensor wide : i32[2]\nparam width : int\nmask = %s",
                 properties_masks[i].mask);
        if (!properties_get(ctx, text, &f)) continue;
        if (f.flags != (properties_masks[i].flags | PURE) || f.window_left != properties_masks[i].left ||
            f.window_right != properties_masks[i].right)
            T_FAIL("%s: flags 0x%x, left %d, right %d, not 0x%x, %d, %d\n", properties_masks[i].mask, f.flags,
                   f.window_left, f.window_right, properties_masks[i].flags | PURE, properties_masks[i].left,
                   properties_masks[i].right);
    }
}

#define NO_MASK FXA_PROPERTY_NO_MASK
#define ADDITIVE FXA_PROPERTY_ADDITIVE
#define SOFTCAP FXA_PROPERTY_SOFTCAP
#define FINITE (FXA_PROPERTY_LARGE_NEGATIVE | FXA_PROPERTY_FINITE_LARGE_NEGATIVE)

/* Texts of a score only, so NO_MASK is always set. Params: cap 0, other 1. */
#define QUOTIENT FXA_PROPERTY_QUOTIENT_EQUAL
static const struct {
    const char *score;
    uint32_t flags;
    int32_t param;
    double cap;
} properties_scores[] = {
    {"score", FXA_PROPERTY_IDENTITY | PURE, -1, 0},
    {"score + 1", ADDITIVE, -1, 0},
    {"score + (q / 32 == k / 32 ? 1 : 0)", ADDITIVE | QUOTIENT, -1, 0},
    {"score + (q / k != 1 ? 1 : 0)", ADDITIVE | QUOTIENT, -1, 0},
    {"score + (0 == k / heads ? 1 : 0)", ADDITIVE | QUOTIENT, -1, 0},
    {"score + (q // 32 == k // 32 ? 1 : 0)", ADDITIVE, -1, 0},
    {"score + (q / 32 < k / 32 ? 1 : 0)", ADDITIVE, -1, 0},
    {"score + (q * 0.5 == k / other ? 1 : 0)", ADDITIVE, -1, 0},
    {"score + (int(q / 32) == int(k / 32) ? 1 : 0)", ADDITIVE, -1, 0},
    {"k <= q ? score : -inf", FXA_PROPERTY_SCORE_MASKS, -1, 0},
    {"k > q ? -inf : 2 * score", FXA_PROPERTY_SCORE_MASKS, -1, 0},
    {"score > 0 ? score : -inf", 0, -1, 0},
    {"k <= q ? score : -1e9", FINITE, -1, 0},
    {"k > q ? -10000 : score * 2", FINITE, -1, 0},
    {"k <= q ? score : -9999", 0, -1, 0},
    {"score > 1 ? score : -1e9", 0, -1, 0},
    {"score + (k <= q ? 0 : -inf)", FXA_PROPERTY_LARGE_NEGATIVE | ADDITIVE, -1, 0},
    {"(k <= q ? other : -inf) + score * 2", FXA_PROPERTY_LARGE_NEGATIVE, -1, 0},
    {"score - (k <= q ? 0 : inf)", FXA_PROPERTY_LARGE_NEGATIVE | ADDITIVE, -1, 0},
    {"score - (k <= q ? 0 : 65504)", FINITE | ADDITIVE, -1, 0},
    {"score - (k <= q ? 0 : -inf)", ADDITIVE, -1, 0},
    {"score + (k <= q ? 0 : inf)", ADDITIVE, -1, 0},
    {"other + (score * cap + ((k <= q ? 0 : -1e9) - q))", FINITE, -1, 0},
    {"other + ((score * cap + (k <= q ? 0 : -1e9)) - q)", FINITE, -1, 0},
    {"(k <= q ? score : -inf) + other", FXA_PROPERTY_LARGE_NEGATIVE, -1, 0},
    {"other - (k <= q ? score : -1e9)", 0, -1, 0},
    {"score + (score > 0 ? 0 : -inf)", 0, -1, 0},
    {"k < 10 || k > q ? -3.4028e38 : score", FINITE, -1, 0},
    {"k <= q ? score : -1e4", FINITE, -1, 0},
    {"k <= q ? score : 1e9", 0, -1, 0},
    {"score > 0 ? score : -1e9", 0, -1, 0},
    {"score + (k <= q ? 0 : -1e9)", FINITE | ADDITIVE, -1, 0},
    {"score - (k <= q ? 0 : 1e9)", FINITE | ADDITIVE, -1, 0},
    {"score + (k <= q ? 0 : 1e9)", ADDITIVE, -1, 0},
    {"score - 1e9 * float(k > q)", FINITE | ADDITIVE, -1, 0},
    {"score + float(k > q) * -1e9", FINITE | ADDITIVE, -1, 0},
    {"score + 1e9 * float(k > q)", ADDITIVE, -1, 0},
    {"score - 1e9 * float(k)", ADDITIVE, -1, 0},
    {"score - 1e9 * float(score > 0)", 0, -1, 0},
    {"score - 1e9", ADDITIVE, -1, 0},
    {"min(score, k <= q ? inf : -1e9)", FINITE, -1, 0},
    {"max(k <= q ? score : -inf, -1e9)", FINITE, -1, 0},
    {"max(-1e9, k <= q ? score : -inf)", FINITE, -1, 0},
    {"max(score, -1e9)", 0, -1, 0},
    {"-(k <= q ? -score : 1e9)", FINITE, -1, 0},
    {"(k <= q ? score : -1e9) * 0.5", FINITE, -1, 0},
    {"(k <= q ? score : -1e9) / 2", FINITE, -1, 0},
    {"(k <= q ? score : -1e9) * -1", 0, -1, 0},
    {"(k <= q ? -score : 1e9) * -1", FINITE, -1, 0},
    {"q < 3 ? (k <= q ? score : -1e9) + slopes[h] : score", FINITE, -1, 0},
    {"tanh(k <= q ? score : -1e9)", 0, -1, 0},
    {"min(score, k <= q ? inf : -inf)", FXA_PROPERTY_LARGE_NEGATIVE, -1, 0},
    {"b > 1 ? score : k <= q ? score : -inf", 0, -1, 0},
    {"score - float(k <= q ? 0 : 20000)", FINITE | ADDITIVE, -1, 0},
    {"k <= q ? score : inf", 0, -1, 0},
    {"1 + score", ADDITIVE, -1, 0},
    {"score - slopes[h] * (q - k)", ADDITIVE, -1, 0},
    {"score + slopes[h] + other - k", ADDITIVE, -1, 0},
    {"k * 0.5 + (other + score)", ADDITIVE, -1, 0},
    {"1 - score", 0, -1, 0},
    {"score + score", 0, -1, 0},
    {"score * 2", 0, -1, 0},
    {"score + tanh(score)", 0, -1, 0},
    {"other", 0, -1, 0},
    {"cap * tanh(score / cap)", SOFTCAP, 0, 0},
    {"tanh(score / cap) * cap", SOFTCAP, 0, 0},
    {"cap * tanh(score * (1 / cap))", SOFTCAP, 0, 0},
    {"cap * tanh((score + slopes[h] * (q - k)) / cap)", SOFTCAP, 0, 0},
    {"30 * tanh(score / 30)", SOFTCAP, -1, 30},
    {"30 * tanh(score * (1 / 30))", SOFTCAP, -1, 30},
    {"tanh((1 / 30) * score) * 30", SOFTCAP, -1, 30},
    {"16 * tanh((score - q) / 16)", SOFTCAP, -1, 16},
    {"tanh(score)", SOFTCAP, -1, 1},
    {"30 * tanh(score / 20)", 0, -1, 0},
    {"30 * tanh(score / cap)", 0, -1, 0},
    {"cap * tanh(score / other)", 0, -1, 0},
    {"cap * tanh(score * score / cap)", 0, -1, 0},
    {"cap * tanh(score / cap) + 1", 0, -1, 0}, /* not outermost */
    {"tanh(score * 0.5)", 0, -1, 0},
};

CONTEXT_TEST(scores) {
    for (size_t i = 0; i < sizeof properties_scores / sizeof *properties_scores; i++) {
        char text[512];
        fxa_properties f;
        snprintf(text, sizeof text, "param cap : float\nparam other : float\ntensor slopes : f32[1]\nscore = %s",
                 properties_scores[i].score);
        if (!properties_get(ctx, text, &f)) continue;
        if (f.flags != (properties_scores[i].flags | NO_MASK) || f.softcap_param != properties_scores[i].param ||
            f.softcap != properties_scores[i].cap)
            T_FAIL("%s: flags 0x%x, param %d, cap %g, not 0x%x, %d, %g\n", properties_scores[i].score, f.flags,
                   f.softcap_param, f.softcap, properties_scores[i].flags | NO_MASK, properties_scores[i].param,
                   properties_scores[i].cap);
    }
}

CONTEXT_TEST(depends) {
    fxa_properties f;
    enum {
        S = 1 << FXA_INPUT_SCORE,
        B = 1 << FXA_INPUT_B,
        H = 1 << FXA_INPUT_H,
        Q = 1 << FXA_INPUT_Q,
        K = 1 << FXA_INPUT_K,
        QL = 1 << FXA_INPUT_Q_LEN,
        KL = 1 << FXA_INPUT_K_LEN
    };
    T_REQUIRE(properties_get(ctx, "", &f));
    T_INT(f.score_depends, S);
    T_INT(f.mask_depends, 0);
    T_INT(f.flags, FXA_PROPERTY_IDENTITY | PURE | NO_MASK);
    T_REQUIRE(
        properties_get(ctx, "tensor t : f32[2]\nscore = score + t[h, q - k]\nmask = k < k_len - b && q < q_len", &f));
    T_INT(f.score_depends, S | H | Q | K);
    T_INT(f.mask_depends, B | Q | K | QL | KL);
    T_REQUIRE(properties_get(ctx, "score = 0.5\nmask = score > 0.25 && q == 0",
                             &f)); /* mask reads the new score: a constant */
    T_INT(f.score_depends, 0);
    T_INT(f.mask_depends, Q);
}

/* Bounds in the properties hold at every pair: outside of them the mask is false. */
CONTEXT_TEST(random_masks) {
    t_rng rng = {t_seed()};
    int bounded = 0;
    for (int i = 0; i < t_scaled(1500) && t_failures < 10; i++) {
        uint8_t tape[64];
        for (size_t j = 0; j < sizeof tape; j++) tape[j] = (uint8_t)t_next(&rng);
        t_program *p = gen_program(ctx, tape, sizeof tape, GEN_AFFINE_MASK);
        T_REQUIRE(p != NULL);
        fxa_properties f;
        fxa_program_properties(p, &f);
        bounded += f.window_left != OPEN || f.window_right != OPEN;
        for (int j = 0; j < 200; j++) {
            double in[FXA_INPUT_COUNT] = {0}, value;
            for (int k = FXA_INPUT_B; k < FXA_INPUT_COUNT; k++) in[k] = (double)t_int(&rng, 0, 60);
            int mask = 0;
            T_OK(fxa_program_eval(p, in, NULL, NULL, &value, &mask, &err));
            double apart = in[FXA_INPUT_Q] - in[FXA_INPUT_K], lens = in[FXA_INPUT_K_LEN] - in[FXA_INPUT_Q_LEN];
            if (!mask) continue;
            T_CHECK(apart <= f.window_left && -apart <= f.window_right);
            T_CHECK(!(f.flags & CAUSAL) || apart >= 0);
            T_CHECK(!(f.flags & BOTTOM) || apart + lens >= 0);
            T_CHECK(!(f.flags & PADDING) || in[FXA_INPUT_K] < in[FXA_INPUT_K_LEN]);
        }
    }
    T_CHECK(t_scaled(10) < 5 || bounded > t_scaled(10)); /* a few programs may all lack a window */
}

/* More nodes than fit on the stack: same properties. */
CONTEXT_TEST(large) {
    fxa_builder *b = NULL;
    t_program *p = NULL;
    T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_value mask = fxa_builder_op2(b, FXA_OP_LE, k, q), sum = fxa_builder_input(b, FXA_INPUT_SCORE);
    for (int i = 0; i < 3000; i++) {
        fxa_value t = fxa_builder_op2(b, FXA_OP_MUL, fxa_builder_input(b, FXA_INPUT_H), fxa_builder_int(b, i + 2));
        sum = fxa_builder_op2(b, FXA_OP_ADD, sum, t);
    }
    fxa_builder_set_score(b, sum);
    fxa_builder_set_mask(b, mask);
    T_OK(fxa_builder_finish(b, &p, &err));
    fxa_builder_destroy(b);
    T_CHECK(fxa_program_node_count(p) > 4096);
    fxa_properties f;
    fxa_program_properties(p, &f);
    T_INT(f.flags, ADDITIVE | CAUSAL);
    T_INT(f.score_depends, 1 << FXA_INPUT_SCORE | 1 << FXA_INPUT_H);
}

/* Without memory the properties allow everything: any dependence, no special form. */
TEST(properties_without_memory_rule_nothing_out) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&f);
    fxa_program *p = NULL;
    fxa_properties properties;
    static char text[1 << 17];
    size_t used = (size_t)snprintf(text, sizeof text, "score = score");
    T_REQUIRE(ctx != NULL);
    for (int i = 0; i < 3000; i++) used += (size_t)snprintf(text + used, sizeof text - used, "+%d.5*score", i);
    T_OK(fxa_program_parse(ctx, text, used, &p, &err));
    fxa_program_properties(p, &properties);
    T_INT(properties.score_depends, 1u << FXA_INPUT_SCORE);
    T_CHECK(properties.flags & FXA_PROPERTY_NO_MASK);
    fail_alloc_arm(&f, 1, true);
    fxa_program_properties(p, &properties);
    fail_alloc_arm(&f, 0, false);
    T_CHECK(properties.flags == 0 && properties.mask_depends == properties.score_depends);
    T_INT(properties.score_depends, ((1u << FXA_INPUT_COUNT) - 1) & ~(1u << FXA_INPUT_DSCORE));
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
    T_INT(f.mistakes, 0);
}

TEST(every_property_has_a_name_of_its_own) {
    T_STR(fxa_property_name(FXA_PROPERTY_PURE_MASK), "pure mask");
    for (int i = 0; i < 32; i++) {
        const char *name = fxa_property_name((uint32_t)1 << i);
        T_CHECK((name != NULL) == (i < FXA_PROPERTY_COUNT));
        for (int j = 0; name && j < i; j++) T_CHECK(strcmp(name, fxa_property_name((uint32_t)1 << j)) != 0);
    }
    T_CHECK(!fxa_property_name(0) && !fxa_property_name(FXA_PROPERTY_CAUSAL | FXA_PROPERTY_WINDOW));
}

T_MAIN
