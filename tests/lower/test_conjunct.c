/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks as conjuncts: the mask rebuilt from its conjuncts equals the mask, for random programs and tables of spellings,
 * near 0 and at the ends of the valid range; and common spellings are recognised.
 */
#include "lower/lower_checks.h"

/* ---- Random masks ------------------------------------------------------------------------------------------------ */

/* Returns a side of a comparison: a sum with or without params and loads. */
static fxa_value conjunct_random_side(fxa_builder *b, t_rng *rng, int32_t doc) {
    fxa_value x = fxa_builder_input(b, (fxa_input)t_int(rng, FXA_INPUT_Q, FXA_INPUT_K_LEN)), y, z;
    fxa_value at = fxa_builder_input(b, (fxa_input)t_int(rng, FXA_INPUT_B, FXA_INPUT_K));
    static const int32_t numbers[] = {0, 1, -1, 3, 7, 64, 1 << 29, INT32_MAX, INT32_MIN};
    switch (t_int(rng, 0, 4)) {
    case 0: y = fxa_builder_int(b, numbers[t_int(rng, 0, 8)]); break;
    case 1: y = fxa_builder_param(b, "w", FXA_INT); break;
    case 2: y = fxa_builder_load(b, doc, &at, 1); break;
    default: y = fxa_builder_input(b, (fxa_input)t_int(rng, FXA_INPUT_Q, FXA_INPUT_K_LEN));
    }
    z = fxa_builder_input(b, (fxa_input)t_int(rng, FXA_INPUT_Q, FXA_INPUT_K_LEN));
    switch (t_int(rng, 0, 7)) {
    case 0: return x;
    case 1: return y;
    case 2: return fxa_builder_op1(b, FXA_OP_ABS, fxa_builder_op2(b, FXA_OP_SUB, x, y));
    case 3: return fxa_builder_op1(b, FXA_OP_NEG, fxa_builder_op2(b, FXA_OP_ADD, x, y));
    case 4: return fxa_builder_op2(b, FXA_OP_SUB, fxa_builder_op2(b, FXA_OP_ADD, x, y), z);
    case 5: return fxa_builder_op2(b, FXA_OP_MUL, x, fxa_builder_int(b, (int32_t)t_int(rng, -2, 2)));
    default: return fxa_builder_op2(b, t_int(rng, 0, 1) ? FXA_OP_ADD : FXA_OP_SUB, x, y);
    }
}

/* Returns k <= q + c || k < something. */
static fxa_value conjunct_random_prefix(fxa_builder *b, t_rng *rng, int32_t doc) {
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_value shifted = fxa_builder_op2(b, FXA_OP_ADD, q, fxa_builder_int(b, (int32_t)t_int(rng, -2, 2)));
    fxa_value length = fxa_builder_op2(b, FXA_OP_LT, k, conjunct_random_side(b, rng, doc));
    return fxa_builder_op2(b, FXA_OP_OR, fxa_builder_op2(b, FXA_OP_LE, k, shifted), length);
}

/* Returns doc[q] == doc[k], or the negation. */
static fxa_value conjunct_random_documents(fxa_builder *b, t_rng *rng, int32_t doc) {
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_value of_q = fxa_builder_load(b, doc, &q, 1), of_k = fxa_builder_load(b, doc, &k, 1);
    return fxa_builder_op2(b, t_int(rng, 0, 3) ? FXA_OP_EQ : FXA_OP_NE, of_q, of_k);
}

static fxa_value conjunct_random_bool(fxa_builder *b, t_rng *rng, int32_t doc, int depth) {
    static const fxa_op cmp[] = {FXA_OP_LE, FXA_OP_LT, FXA_OP_GE, FXA_OP_GT, FXA_OP_EQ, FXA_OP_NE};
    if (depth == 0 && t_int(rng, 0, 9) == 0) return conjunct_random_prefix(b, rng, doc);
    if (depth == 0 && t_int(rng, 0, 9) == 0) return conjunct_random_documents(b, rng, doc);
    if (depth == 0) {
        fxa_value x = conjunct_random_side(b, rng, doc), y = conjunct_random_side(b, rng, doc);
        return fxa_builder_op2(b, cmp[t_int(rng, 0, 5)], x, y);
    }
    fxa_value x = conjunct_random_bool(b, rng, doc, (int)t_int(rng, 0, depth - 1));
    int64_t kind = t_int(rng, 0, 5);
    if (kind == 0) return fxa_builder_op1(b, FXA_OP_NOT, x);
    return fxa_builder_op2(b, kind < 3 ? FXA_OP_OR : FXA_OP_AND, x, conjunct_random_bool(b, rng, doc, depth - 1));
}

static fxa_program *conjunct_random(rig *r) {
    t_builder *b = NULL;
    fxa_program *p = NULL;
    fxa_error err;
    if (fxa_builder_create(r->ctx, FXA_PROGRAM_SCORE, &b, &err) != FXA_OK) return NULL;
    int32_t doc = fxa_builder_tensor(b, "doc", t_int(&r->rng, 0, 1) ? FXA_I32 : FXA_I64, 1);
    fxa_builder_set_mask(b, conjunct_random_bool(b, &r->rng, doc, (int)t_int(&r->rng, 0, 3)));
    if (fxa_builder_finish(b, &p, &err) != FXA_OK) p = NULL;
    return p;
}

RIG_TEST(the_mask_rebuilt_from_its_parts_is_the_mask) {
    size_t seen[FXA__PARTS] = {0}, whole = 0;
    for (int i = 0; i < t_scaled_up(4000) && !t_failures; i++) {
        t_program *p = i % 4 == 0   ? rig_program(r, GEN_AFFINE_MASK)
                       : i % 4 == 1 ? rig_program(r, i % 8 == 1 ? GEN_NO_SPECIAL : 0)
                                    : conjunct_random(r);
        fxa__conjuncts c;
        T_REQUIRE(p);
        T_CHECK(fxa__lower_conjuncts(r->host, p, &c));
        bool other = false;
        for (size_t k = 0; k < c.n; k++) {
            seen[c.parts[k].kind]++;
            whole += c.parts[k].wide;
            other = other || c.parts[k].kind == FXA__PART_OTHER;
        }
        T_CHECK(c.exact == !other);
        conjunct_check(r, p, &c, 60);
        fxa__lower_conjuncts_free(r->host, &c);
    }
    T_CHECK(whole >= 10);
    for (int i = 0; i < FXA__PARTS; i++)
        if (seen[i] < 10) T_FAIL("%s was seen %zu times\n", fxa__lower_part_name((fxa__part_kind)i), seen[i]);
}

/* ---- Spellings --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *mask, *parts; /* parts in descending order of their node index */
} conjunct_masks[] = {
    {"true", ""},
    {"k <= q", "causal 0"},
    {"!(k > q)", "causal 0"},
    {"k < q + 3", "causal 2"},
    {"2 * k <= 2 * q + 1", "causal 0"},
    {"q - k >= 0", "causal 0"},
    {"k - k_len <= q - q_len", "causal aligned 0"},
    {"q - k < 128", "window 127"},
    {"k >= q - 5 + k_len - q_len", "window aligned 5"},
    {"q - k < w", "window -1 bound"},
    {"k <= q + w", "causal 0 bound narrow"},
    {"k <= q + (w - 1)", "causal 0 bound narrow"},
    {"q - k < w + n[b]", "window -1 bound"},
    {"k < k_len + w", "length -1 bound"},
    {"k <= q + w + n[b]", "other"}, /* one bound only */
    {"n[h] <= q - k - w", "other"},
    {"k + q <= 2 * q + w", "other"}, /* 2 * q + w may wrap although w is small */
    {"abs(q - k - 2147483647 - 1) <= 4", "other"},
    {"q + n[b] >= k", "causal 0 bound narrow"},
    {"abs(q - k) <= 4", "window 4, causal 4"},
    {"abs(q - k) < w", "window -1 bound, causal -1 bound"},
    {"q == k", "window 0, causal 0"},
    {"k < 77", "length 76"},
    {"k < k_len", "length of 0 -1"},
    {"k < n[b]", "length -1 bound"},
    {"k <= q || k < n[b]", "prefix -1 bound"},
    {"k < 9 || k <= q + 1", "prefix 8"},
    {"!(k > q && k >= n[b])", "prefix -1 bound"},
    {"d[q] == d[k]", "equal same"},
    {"q // 64 == k // 64", "equal same"},
    {"d[q] == d[k] + 1", "equal"},
    {"q < n[b]", "row"},
    {"n[h] != 0", "row"},
    {"a[k]", "key"},
    {"!a[k]", "key not"},
    {"k >= n[b]", "key"},
    {"k % 4 == 0", "key"},
    {"(q - k) % 4 == 0", "other"},
    {"score > 0", "other"},
    {"k <= q + d[k]", "other"},
    {"k <= q + w - 2147483647 + 2147483647", "causal 0 bound narrow"},
    {"k + 1073741823 + 1073741823 <= q + w", "other"},                  /* may wrap below the minimum */
    {"(abs(q - 7) < 3 ? 1 : 2) == (abs(f[k]) < 3.0 ? 1 : 2)", "equal"}, /* equal operations on different types */
    {"k <= q + (b + (h + (b + (h + (b + (h + (b + (h + (b + (h + (b + (h + (b + (q - n[k]))))))))))))))", "other"},
    {"3 * k <= 3 * q", "other"}, /* 3 * 2^30 wraps */
    {"false", "row"},
};

static void conjunct_write(const fxa__part *part, char *out, size_t size) {
    bool number = part->kind <= FXA__PART_PREFIX;
    char c[32] = "";
    if (number) (void)snprintf(c, sizeof c, " %lld", (long long)part->c);
    (void)snprintf(out, size, "%s%s%s%s%s%s%s%s", fxa__lower_part_name((fxa__part_kind)part->kind),
                   part->aligned ? " aligned" : "", part->of_length ? " of 0" : "", c, part->bound >= 0 ? " bound" : "",
                   part->needs_small_bound ? " narrow" : "", part->same ? " same" : "", part->negated ? " not" : "");
}

/* The second time the score is a param, which becomes the first node. */
RIG_TEST(spellings) {
    for (size_t at = 0; at < 2 * sizeof conjunct_masks / sizeof *conjunct_masks; at++) {
        const size_t i = at / 2;
        char text[256], got[512] = "", one[128];
        fxa__conjuncts c;
        (void)snprintf(text, sizeof text,
                       "param w : int\ntensor n : i32[1]\ntensor d : i32[1]\ntensor a : bool[1]\n"
                       "tensor f : f32[1]\nmask = %s%s",
                       conjunct_masks[i].mask, at % 2 ? "\nscore = float(w)" : "");
        t_program *p = rig_parse(r, text);
        T_REQUIRE(p);
        T_CHECK(fxa__lower_conjuncts(r->host, p, &c));
        for (size_t k = 0; k < c.n; k++) {
            conjunct_write(&c.parts[k], one, sizeof one);
            if (k) strcat(got, ", ");
            strcat(got, one);
        }
        if (strcmp(got, conjunct_masks[i].parts) != 0)
            T_FAIL("%s: \"%s\", not \"%s\"\n", conjunct_masks[i].mask, got, conjunct_masks[i].parts);
        conjunct_check(r, p, &c, 200);
        fxa__lower_conjuncts_free(r->host, &c);
    }
}

/* Shared nodes are visited once. */
RIG_TEST(large_masks_take_linear_time) {
    fxa_builder *b = NULL;
    t_program *p = NULL;
    fxa__conjuncts c;
    T_OK(fxa_builder_create(r->ctx, FXA_PROGRAM_SCORE, &b, &err));
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_value mask = fxa_builder_op2(b, FXA_OP_LE, k, q);
    for (int32_t i = 0; i < 2000; i++) {
        fxa_value other = fxa_builder_op2(b, FXA_OP_NE, k, fxa_builder_int(b, i));
        mask = fxa_builder_op2(b, FXA_OP_AND, mask, fxa_builder_op2(b, FXA_OP_AND, mask, other));
    }
    fxa_builder_set_mask(b, mask);
    T_OK(fxa_builder_finish(b, &p, &err));
    fxa_builder_destroy(b);
    T_CHECK(fxa__lower_conjuncts(r->host, p, &c));
    T_INT(c.n, 2001);
    T_CHECK(c.exact);
    fxa__lower_conjuncts_free(r->host, &c);
}

T_MAIN
