/* SPDX-License-Identifier: Apache-2.0
 *
 * Row bytecode of given texts, in every instruction set of this machine, compared with the evaluator: loads with every
 * index and dtype, 64-bit elements, fused operations, scalar values in a backward pass. Random programs are in
 * test_cpu_tape.c.
 */
#include "support/fixtures/attn_case.h"
#include "support/fixtures/tape_try.h"

/* Tests one text with every kernel set and compute type, a few draws each. */
static void tape_text(fxa_context *ctx, const char *text, bool derive, double tolerance, int rounds, uint64_t *rng) {
    t_program *p = NULL, *d = NULL;
    fxa_error err;
    bool ok = true;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    if (derive) T_OK(fxa_program_derivative(p, &d, &err));
    uint32_t flags = FXA__TAPE_MASK;
    if (derive) flags = FXA__TAPE_GRADS;
    if (derive && tolerance > 0) flags = 0;
    for (int round = 0; ok && round < t_scaled(rounds); round++)
        for (int wide = 0; ok && wide < 2; wide++) {
            const fxa__cpu_kernels *k;
            for (size_t i = 0; ok && (k = tape_set(&i, wide ? 8 : 4));)
                ok = tape_try(ctx, k, d ? d : p, flags, false, tolerance, rng);
        }
}

/* Indices that advance along an axis with k, forwards and backwards, clamped and shifted, and indices that only look
 * so. */
static const char *const tape_indices[] = {
    "k",
    "-k",
    "q - k",
    "k - q + 3",
    "q + k",
    "clamp(q - k, -5, 7) + 5",
    "min(q - k, 9)",
    "max(k, 4) - 2",
    "5 - clamp(k, 0, 9)",
    "clamp(k, 9, 2)",
    "max(q - k, 2147483640) + 20",
    "min(3, k - q) - 7 + h",
    "k // 2",
    "k * 2",
    "(k - q) % 7",
    "2147483647 + k",
    "max(k, 1) + 1",
    "clamp(k, k // 2, 9)",
    "clamp(k, 0, k // 2 + 3)",
    "min(k, k // 2 + 3)",
    "q * h + clamp(k, 0, 9)",
    "q % 3 + clamp(k, 0, 9)",
    "q // 2 + clamp(k, 0, 9)",
    "h * h + clamp(k, 0, 9)",
};

CONTEXT_TEST(loads_along_k_of_every_dtype) {
    static const fxa_dtype dtypes[] = {FXA_F64, FXA_F32, FXA_F16, FXA_BF16, FXA_I8,
                                       FXA_U8,  FXA_I16, FXA_I32, FXA_I64,  FXA_B8};
    uint64_t rng = t_seed();
    for (size_t i = 0; i < sizeof tape_indices / sizeof *tape_indices; i++)
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            char text[200];
            snprintf(text, sizeof text, "tensor t : %s[1]\nscore = score + t[%s]", fxa_dtype_name(dtypes[t]),
                     tape_indices[i]);
            tape_text(ctx, text, t < 4 && i % 2, 0, 1, &rng);
        }
}

/* Equality of 64-bit elements: indexed by row, key, head and pair, gathered and along k, in masks and values. */
CONTEXT_TEST(equalities_of_i64) { /* */
    static const char *const texts[] = {
        "mask = t[q] == t[k]",
        "mask = t[q] != t[k] && k <= q",
        "mask = !(t[h] == t[q - k]) || t[k] == t[k + 1]",
        "mask = t[clamp(q - k, 0, 9)] == u[h, k] ^ (u[q, h] != u[h, k // 2])",
        "mask = u[k, k] == t[q * k] && t[h] != t[b] && t[b] == t[q_len]",
        "score = score + (t[q] == t[k] ? 1.0 : 2.0) + float(t[q] != u[h, k])",
        "score = score + float(t[q] == t[k]) * float(t[k] - t[q])\nmask = t[k] <= t[q] || t[q] == t[k]",
        "score = t[int(t[q] == t[k]) + k] == t[q] ? score : score + 1.0",
        "score = t[int(score)] == t[k] ? 1.0 : score",
    };
    uint64_t rng = t_seed();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[240];
        snprintf(text, sizeof text, "tensor t : i64[1]\ntensor u : i64[2]\n%s", texts[i]);
        tape_text(ctx, text, false, 0, 6, &rng);
        tape_text(ctx, text, true, 0, 1, &rng);
    }
}

CONTEXT_TEST(loads_of_several_axes) {
    static const char *const index[] = {"h, k",
                                        "k, h",
                                        "h, q, k",
                                        "q - k, b, h",
                                        "k, k",
                                        "h, q - k",
                                        "k, q",
                                        "h, clamp(k - q, -3, 3) + 3",
                                        "h",
                                        "q - 3",
                                        "h, q",
                                        "k // 3, h",
                                        "q % 2, k % 3",
                                        "k // 2, b, 2 * k",
                                        "b, k - 4 * h"};
    uint64_t rng = t_seed();
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) {
        char text[200];
        int rank = 1;
        for (const char *c = index[i]; *c; c++) rank += *c == ',';
        if (strchr(index[i], '(')) rank = 2; /* the commas of a function call do not separate indices */
        snprintf(text, sizeof text, "tensor t : f32[%d]\nscore = score + score * t[%s]", rank, index[i]);
        tape_text(ctx, text, false, 0, 4, &rng);
        tape_text(ctx, text, true, 0, 4, &rng);
    }
}

/* Fused operations: at most 8 roundings of parts below 2048, or relative to the value itself. */
CONTEXT_TEST(joined_operations) {
    static const char *const texts[] = {
        "param a : float\nparam c : float\nscore = score * a + c",
        "param a : float\nparam c : float\nscore = a + c * score",
        "param a : float\nparam c : float\nscore = a - score * c",
        "param a : float\nscore = score * score - a",
        "param a : float\nscore = score ** 2 - a",
        "tensor t : f32[1]\nscore = score - 0.25 * (t[k] - t[q]) ** 2",
        "tensor t : f32[1]\nscore = t[k] - score * t[h]",
        "tensor t : f32[1]\nscore = score - t[h] * (q % 64 - k % 64)",
        "score = score + float(k % 64 + q % 64)",
        "tensor t : f32[1]\nscore = score - t[h] * (q - k)",
        "tensor t : f32[1]\nscore = t[h] * float(k - q + 3) + 2.0 * score",
        "tensor t : f32[1]\nscore = score + 0.5 * float(k + 1) + score * (score - 0.25 * (7 - k))",
        "tensor t : f32[1]\nlet x = t[k] + 0.5 * float(k + 1)\nscore = score * x",
        "param c : float\nscore = c * tanh(score / c)",
        "score = tanh(0.5 * score) * 3.0",
        "score = tanh(score / 2.0)",
        "param a : float\ntensor t : f32[2]\nscore = score + tanh(cos(a) * t[q, k])",
        "tensor t : f32[1]\nscore = score + t[h] * float((q + k) % 3 + k)",
        "param a : float\nparam c : float\nscore = a * (c * tanh(score / c))",
        "param a : float\ntensor t : f32[1]\nscore = score * (a - score * t[k])",
        "tensor t : f32[1]\nscore = score * (t[k] - score * score)",
        "let d = q % 64 + k % 64\nscore = score + float(d) + 0.5 * float(d // 3)",
        "tensor t : f32[1]\nscore = score + t[h] * float(k % 3 + k % 64)",
        "tensor t : f32[1]\nscore = score + t[h] * float(k % 3 - k)",
        "tensor t : f32[1]\nscore = score + t[h] * float(k % 3 + k)",
        "tensor t : f32[1]\nscore = score + t[k] * float(k % 64 + q % 8)",
        "score = score + tanh(score) * float(k - q)",
        "tensor t : f32[1]\nscore = score + t[q % 9 + k % 5] * float(k - q)",
        "tensor t : f32[1]\nmask = abs(t[k] - t[q]) < 0.5 && abs(q - k) != 3\nscore = score * 2.0",
        "mask = abs(q - k) == 3 || score < 0.5",
        "tensor doc : i32[1]\nmask = doc[q] == doc[k]",
        "mask = (q & 3) != (k & 3) && (q & 7) <= (k & 15) && (k & 3) < (q & 7) && (k ^ q) < (q & 511)",
        "tensor t : f32[1]\nmask = t[k] < t[q] && k <= q && q - k < 100 && h != 2\nscore = score * 2.0",
    };
    uint64_t rng = t_seed();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tape_text(ctx, texts[i], false, 0x1p-10, 6, &rng);
        tape_text(ctx, texts[i], true, 0x1p-10, 6, &rng);
    }
}

/* Values that are constant along a row, in backward programs and in sums besides derivatives. */
CONTEXT_TEST(backward_values_that_are_no_rows) {
    static const struct {
        fxa_program_kind kind;
        const char *text;
    } cases[] = {
        {FXA_PROGRAM_BPROP, "dscore = 2.5"},
        {FXA_PROGRAM_BPROP, "param w : float\ndscore = w"},
        {FXA_PROGRAM_BPROP, "dscore = score"},
        {FXA_PROGRAM_BPROP, "param w : float\ndscore = mulz(w, 1.0 - score * score)"},
        {FXA_PROGRAM_DERIVATIVE, "param a : float\ndscore = dscore\ngrad a += 1.5"},
        {FXA_PROGRAM_DERIVATIVE, "param a : float\ntensor t : f32[1]\ndscore = dscore\ngrad t[k] += a"},
        {FXA_PROGRAM_DERIVATIVE, "param a : float\ntensor t : f32[1]\ndscore = dscore\ngrad t[q] += a"},
        {FXA_PROGRAM_DERIVATIVE, "param a : float\ntensor t : f32[1]\ndscore = dscore\ngrad t[k // 2] += a"},
        {FXA_PROGRAM_DERIVATIVE, "param a : float\ntensor t : f32[1]\ndscore = dscore\ngrad t[min(k, 9)] += a"},
    };
    uint64_t rng = t_seed();
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof cases / sizeof *cases; i++) {
        t_program *p = NULL;
        fxa_text text = {NULL, cases[i].text, SIZE_MAX};
        fxa_parse_config config = {
            .struct_size = sizeof config, .kind = (uint32_t)cases[i].kind, .texts = &text, .n_texts = 1};
        T_OK(fxa_program_parse_texts(ctx, &config, &p, &err));
        uint32_t flags = cases[i].kind == FXA_PROGRAM_BPROP ? 0 : FXA__TAPE_GRADS;
        for (int round = 0; ok && round < 8; round++) {
            const fxa__cpu_kernels *k;
            for (size_t set = 0; ok && (k = tape_set(&set, round % 2 ? 8 : 4));)
                ok = tape_try(ctx, k, p, flags, false, round < 4 ? 0 : 0x1p-10, &rng);
        }
    }
}

/* One value for every pair that has a gradient, added to an element per pair: an entire row of the gradient is in the
 * caller's tensor, and elements of pairs without gradient do not change. */
CONTEXT_TEST(backward_values_stored_once) {
    enum { N = 100 };
    t_program *p = NULL;
    fxa_text text = {NULL, "param a : float\ntensor t : f32[1]\ndscore = dscore\ngrad t[k] += a", SIZE_MAX};
    fxa_parse_config config = {
        .struct_size = sizeof config, .kind = FXA_PROGRAM_DERIVATIVE, .texts = &text, .n_texts = 1};
    T_OK(fxa_program_parse_texts(ctx, &config, &p, &err));
    for (int wide = 0; wide < 2; wide++) {
        const fxa__cpu_kernels *k;
        for (size_t set = 0; (k = tape_set(&set, wide ? 8 : 4));) {
            float t[N], f32[N];
            double f64[N], a = 1.5;
            int32_t key[N], zero = 0;
            size_t bytes = 0;
            fxa__tape *tape = NULL;
            for (int i = 0; i < N; i++) t[i] = 0.25f, key[i] = i, f64[i] = f32[i] = i % 3 ? 2 : 0;
            fxa_view view = {.data = t, .dtype = FXA_F32, .rank = 1, .size = {N}, .stride = {1}};
            fxa__tape_sum sum = {.view = view, .one_pair_per_element = true};
            T_OK(fxa__tape_create(fxa__context_host(ctx), p, FXA__TAPE_GRADS | FXA__TAPE_NO_DSCORE, k, &tape, &err));
            T_REQUIRE(fxa__tape_scratch(tape, 1, N, &bytes));
            guard scratch = guard_open(bytes);
            fxa__tape_run run = {.tape = tape, .params = &a, .tensors = &view, .sums = &sum, .scratch = scratch.data};
            run.max_rows = 1, run.max_columns = N;
            fxa__tape_batch(&run, 0, 1, N, 1);
            fxa__tape_rows(&run, 1, &zero, &zero, 0, 1);
            fxa__tape_columns(&run, N, key, 0);
            void *row = wide ? (void *)f64 : f32;
            fxa__tape_row(&run, 0, 0, N, row, row, row);
            for (int i = 0; i < N; i++) T_CHECK(t[i] == (i % 3 ? 1.75f : 0.25f));
            guard_close(&scratch);
            fxa__tape_destroy(tape);
        }
    }
}

/* More conjuncts than the stack for conjuncts holds: the remaining ones are evaluated as one. */
CONTEXT_TEST(masks_of_many_conjuncts) {
    uint64_t rng = t_seed();
    char text[16384], *at = text;
    at += sprintf(at, "mask = score < 0.5");
    for (int i = 0; i < 300; i++) at += sprintf(at, " && (q + k * %d) %% 101 != %d", i + 2, i);
    tape_text(ctx, text, false, 0, 2, &rng);
}

T_MAIN
