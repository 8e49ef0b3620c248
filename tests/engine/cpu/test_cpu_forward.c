/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine's forward pass at shapes around its blocks: every instruction set compared with ref, the same bits for
 * any number of threads, any run and any batch, special rows, no access outside of the given buffers. Combinations of
 * features and dtypes are in the conformance test.
 */
#include "t.h"

#include "engine/cpu/forward/forward.h"
#include "support/fixtures/attn_data.h"
#include "support/fixtures/isa.h"

/* ---- Problems of dense f32 or f64 tensors with random data ------------------------------------------------------ */

static attn_spec fwd_spec(const char *text, int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t sk, int64_t d,
                          uint32_t flags) {
    attn_spec s = {.b = b, .hq = hq, .hkv = hkv, .sq = sq, .sk = sk, .d = d, .text = text, .reach = 2};
    s.flags = flags | FXA_RETURN_ROW_MAX;
    s.window_left = 70, s.window_right = 3; /* FXA_WINDOW is set */
    return s;
}

/* Makes the data of a spec. The data outlives the context in which its program is parsed. */
static bool fwd_make(attn_data *x, const attn_spec *s, uint64_t salt) {
    fxa_error err;
    t_ctx *ctx = attn_context(1);
    fxa_status status = attn_data_make(x, ctx, s, t_seed() + salt, &err);
    if (status != FXA_OK) T_FAIL("%s\n", err.text);
    return status == FXA_OK;
}

/* Runs forward once, in a new context. */
static bool fwd_run(attn_data *x, const char *engine, uint32_t threads) {
    fxa_error err;
    t_ctx *ctx = attn_context(threads);
    fxa_status status = attn_data_run(x, ctx, engine, FXA_FORWARD, &err);
    if (status != FXA_OK) T_FAIL("%s: %s\n", engine, err.text);
    return status == FXA_OK;
}

/* ---- Against the reference ------------------------------------------------------------------------------------- */

/* Compares outputs: the relative root mean square of the differences, and the largest error of an LSE relative to its
 * size; special values must be equal. Bounds: 2e-6 in f32, by the running error of sums in blocks; a score s adds |s|
 * 2^-24. bf16 rounds outputs, and some sets also weights, by at most 2^-9 each. */
static void fwd_compare(attn_data *x, const attn_kept *want, const char *what) {
    double unit = x->problem.q.dtype == FXA_F64 ? 0x1p-53 : 0x1p-24;
    attn_off o = attn_tensor_off(attn_output(x, FXA_FORWARD, 0), want->memory[0]);
    attn_off lse = attn_tensor_off(attn_output(x, FXA_FORWARD, 1), want->memory[1]);
    attn_off max = attn_tensor_off(attn_output(x, FXA_FORWARD, 2), want->memory[2]);
    double size = fmax(lse.size, max.size), allowed = (32 + 2 * size) * unit; /* 32 units: 1.9e-6 in f32 */
    if (o.odd || lse.odd || max.odd) T_FAIL("%s: %" PRId64 " special values differ\n", what, o.odd + lse.odd + max.odd);
    double stored = x->problem.q.dtype == FXA_BF16 ? 0x1p-8 : 0;
    if (!(o.rms <= allowed + stored)) T_FAIL("%s: rel RMS %.3g, allowed %.3g\n", what, o.rms, allowed + stored);
    if (!(lse.worst <= allowed * fmax(1, size)))
        T_FAIL("%s: LSE off by %.3g, allowed %.3g\n", what, lse.worst, allowed * fmax(1, size));
    if (!(max.worst <= allowed * fmax(1, size)))
        T_FAIL("%s: maximum off by %.3g, allowed %.3g\n", what, max.worst, allowed * fmax(1, size));
}

/* Compares the cpu engine with the reference on the present data. */
static void fwd_check(attn_data *x, uint32_t threads, const char *what) {
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    if (fwd_run(x, "ref", 1)) {
        attn_keep(x, FXA_FORWARD, &want);
        if (fwd_run(x, "cpu", threads)) fwd_compare(x, &want, what);
    }
}

static void fwd_check_spec(const attn_spec *s, uint64_t salt, uint32_t threads, const char *what) {
    attn_owned x = {0};
    if (!fwd_make(&x, s, salt)) return;
    fwd_check(&x, threads, what);
}

static const char *const fwd_texts[] = {
    NULL,
    "score = 20 * tanh(score / 20)",
    "score = score - float(abs(q - k)) * exp2(-float(h + 1))",
    "mask = q // 64 == k // 64 || k < 3",
    "mask = (q + k) % 3 != 0 && q % 5 != 1",
};
enum { FWD_TEXTS = sizeof fwd_texts / sizeof *fwd_texts };

/* Sizes around the edges of vectors, panels, row blocks, key blocks and tiles. */
static void fwd_against_ref(fxa_dtype dtype, const char *isa) {
    static const int64_t sq[] = {1, 7, 13, 100, 401, 33}, sk[] = {1, 17, 300, 257, 530, 1100};
    static const int64_t d[] = {1, 3, 16, 40, 64, 100};
    static const uint32_t flags[] = {0, FXA_CAUSAL, FXA_WINDOW, FXA_CAUSAL | FXA_BOTTOM_RIGHT, FXA_SINK_ZERO, 0};
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(24); i++) {
        const char *text = fwd_texts[t_int(&rng, 0, FWD_TEXTS - 1)];
        int64_t hkv = t_int(&rng, 1, 2), group = t_int(&rng, 1, 2);
        int64_t rows = sq[t_int(&rng, 0, 5)], keys = sk[t_int(&rng, 0, 5)], dim = d[t_int(&rng, 0, 5)];
        attn_spec s = fwd_spec(text, 1, hkv * group, hkv, rows, keys, dim, flags[t_int(&rng, 0, 5)]);
        char what[200];
        snprintf(what, sizeof what, "%s %s hq %d sq %d sk %d d %d flags %x \"%s\"", isa, fxa_dtype_name(dtype),
                 (int)s.hq, (int)s.sq, (int)s.sk, (int)s.d, (unsigned)s.flags, text ? text : "");
        s.dtype = dtype;
        fwd_check_spec(&s, (uint64_t)i, 1, what);
    }
}

static void fwd_sets_f32(const char *isa) { fwd_against_ref(FXA_F32, isa); }
static void fwd_sets_f64(const char *isa) { fwd_against_ref(FXA_F64, isa); }
TEST(every_set_agrees_with_the_reference_in_f32) { isa_each(fwd_sets_f32); }
TEST(every_set_agrees_with_the_reference_in_f64) { isa_each(fwd_sets_f64); }

/* The buffer for converted keys must have room for rows of d elements, however narrow V is: d 512 with dv 1 to 3. */
static void fwd_narrow(const char *isa) {
    for (int i = 0; i < 6; i++) {
        attn_spec s = fwd_spec("mask = k <= q + 200", 1, 2, 1, i < 3 ? 100 : 1 + i % 2, 300, 512, 0);
        s.dtype = FXA_BF16, s.dv = 1 + i % 3;
        fwd_check_spec(&s, (uint64_t)(700 + i), 1, isa);
    }
}
TEST(values_far_narrower_than_keys) { isa_each(fwd_narrow); }

TEST(a_set_that_is_none_is_refused_by_name) {
    fxa_support reports[4];
    size_t n = 4;
    attn_spec s = fwd_spec(NULL, 1, 1, 1, 4, 4, 4, 0);
    fxa_problem p = attn_spec_problem(&s);
    setenv("FXA_CPU", "mmx", 1);
    fxa_context *ctx = t_context();
    T_OK(fxa_support_query(ctx, &p, reports, &n, &err));
    T_STR(reports[0].engine, "cpu");
    T_INT(reports[0].supported, 0);
    T_HAS(reports[0].reason, "FXA_CPU=mmx");
    fxa_plan *plan = NULL; /* the plan must be on cpu: no other engine may take over */
    T_STATUS(fxa_plan_create(ctx, &p, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "FXA_CPU=mmx");
    fxa_context_destroy(ctx);
    unsetenv("FXA_CPU");
}

/* ---- The same bits --------------------------------------------------------------------------------------------- */

/* Makes case i: tiles of several rows, stacked heads, chunks of keys for a tile and for decoding; dropout. */
static bool fwd_bits_case(attn_data *x, int i) {
    attn_spec s = i == 0   ? fwd_spec(NULL, 2, 4, 4, 300, 300, 24, FXA_CAUSAL)
                  : i == 1 ? fwd_spec("score = score * 0.5\nmask = q // 64 == k // 64", 1, 6, 2, 50, 400, 16, 0)
                  : i == 2 ? fwd_spec(NULL, 1, 2, 1, 40, 9000, 16, FXA_SINK_ZERO)
                           : fwd_spec("score = score + float(k % 7)", 2, 4, 1, 1, 9000, 32, 0);
    if (i == 1) s.dropout_p = 0.3;
    return fwd_make(x, &s, (uint64_t)i);
}

TEST(threads_do_not_change_a_bit) {
    static const uint32_t threads[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++) {
        attn_owned x = {0};
        T_ENDED(attn_drop) attn_kept kept = {{NULL}};
        if (!fwd_bits_case(&x, i)) continue;
        for (int j = 0; j < 4; j++)
            if (fwd_run(&x, "cpu", threads[j]) && attn_other_bits(&x, FXA_FORWARD, &kept))
                T_FAIL("case %d: %u threads give other bits than 1\n", i, (unsigned)threads[j]);
    }
}

TEST(chunks_of_keys_join_to_the_whole) {
    for (int i = 2; i < 4; i++) {
        attn_owned x = {0};
        if (!fwd_bits_case(&x, i)) continue;
        fwd_check(&x, 3, i == 2 ? "tile" : "decode");
    }
}

TEST(a_hundred_runs_give_the_same_bits) {
    attn_spec s = fwd_spec("score = 5 * tanh(score / 5)", 1, 4, 2, 130, 300, 16, FXA_CAUSAL);
    attn_owned x = {0};
    T_ENDED(attn_drop) attn_kept kept = {{NULL}};
    if (!fwd_make(&x, &s, 5)) return;
    fxa_context *ctx = attn_context(3);
    for (int i = 0; i < t_scaled(100); i++) {
        T_OK(attn_data_run(&x, ctx, "cpu", FXA_FORWARD, &err));
        if (attn_other_bits(&x, FXA_FORWARD, &kept)) T_FAIL("run %d gives other bits\n", i);
    }
    fxa_context_destroy(ctx);
}

/* A batch entry has the same bits alone and in a batch. */
TEST(the_batch_around_does_not_matter) {
    for (int i = 0; i < 2; i++) {
        attn_spec s = i ? fwd_spec(NULL, 3, 4, 2, 2, 5000, 16, 0) : fwd_spec(NULL, 3, 4, 2, 210, 300, 16, FXA_CAUSAL);
        static const fxa_slot inputs[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V};
        attn_owned all = {0}, one = {0};
        if (!fwd_make(&all, &s, 9)) return;
        s.b = 1;
        if (!fwd_make(&one, &s, 9)) return;
        for (int j = 0; j < 3; j++) { /* the second of three batch entries */
            int64_t n = attn_tensor_places(&one.t[inputs[j]]);
            for (int64_t e = 0; e < n; e++) attn_set(&one.t[inputs[j]], e, attn_get(&all.t[inputs[j]], n + e));
        }
        if (fwd_run(&all, "cpu", 2) && fwd_run(&one, "cpu", 2)) {
            size_t size = (size_t)attn_tensor_places(&one.t[FXA_SLOT_O]) * sizeof(float);
            T_INT(memcmp(one.t[FXA_SLOT_O].origin, all.t[FXA_SLOT_O].origin + size, size), 0);
        }
    }
}

/* V is read in place, or packed if its rows are not aligned: both give the same bits, also with NaN behind a mask. */
TEST(where_v_lies_does_not_matter) {
    for (int i = 0; i < 4; i++) {
        attn_spec s = fwd_spec(i & 2 ? "mask = k != 77" : NULL, 1, 2, 1, 100, 300, 64, FXA_CAUSAL);
        attn_owned x = {0};
        T_ENDED(attn_drop) attn_kept kept = {{NULL}};
        if (!fwd_make(&x, &s, 11)) return;
        attn_tensor *v = &x.t[FXA_SLOT_V];
        size_t bytes = (size_t)attn_tensor_places(v) * sizeof(float);
        unsigned char *room = aligned_alloc(64, bytes / 64 * 64 + 128), *own = v->origin;
        if (!room) abort();
        if (i & 2) attn_set(v, 77 * s.d + 5, i & 1 ? NAN : INFINITY);
        for (int shift = 0; shift < 2; shift++) {
            v->origin = memcpy(room + (size_t)shift * sizeof(float), own, bytes);
            if (fwd_run(&x, "cpu", 1) && attn_other_bits(&x, FXA_FORWARD, &kept)) T_FAIL("case %d: other bits\n", i);
        }
        v->origin = own;
        fwd_check(&x, 1, "V as it lies");
        free(room);
    }
}

/* ---- Special rows ----------------------------------------------------------------------------------------------- */

TEST(rows_without_keys_and_large_finite_masks) {
    for (int64_t sq = 1; sq <= 120; sq += 119) { /* decoding (1 row) and tiles (120 rows) */
        attn_spec s = fwd_spec("mask = q % 3 != 0 && k > 290", 1, 2, 2, sq, 300, 8, 0);
        fwd_check_spec(&s, 1, 2, "masked rows");
        s = fwd_spec("score = q % 2 == 0 ? -1e30 : score", 1, 2, 2, sq, 300, 8, 0);
        fwd_check_spec(&s, 2, 2, "-1e30");
        s = fwd_spec("score = k < 260 ? -inf : score", 1, 2, 2, sq, 300, 8, FXA_SINK_ZERO);
        fwd_check_spec(&s, 3, 2, "-inf first");
    }
}

/* NaN and infinities affect only the rows that attend to them; in a key that no row attends to, they have no effect. */
TEST(nan_and_infinity_stay_where_they_belong) {
    for (int64_t sq = 6; sq <= 126; sq += 120) {
        attn_spec s = fwd_spec("mask = k != 17 && (k != 18 || q % 4 == 1)", 1, 2, 2, sq, 300, 8, 0);
        attn_data x;
        if (!fwd_make(&x, &s, 4)) return;
        attn_set(&x.t[FXA_SLOT_Q], 3 * 8 + 2, NAN);  /* row 3 */
        attn_set(&x.t[FXA_SLOT_K], 17 * 8 + 1, NAN); /* a key that no row attends to */
        attn_set(&x.t[FXA_SLOT_V], 17 * 8 + 1, INFINITY);
        attn_set(&x.t[FXA_SLOT_V], 18 * 8 + 4, INFINITY); /* a key that some rows attend to */
        fwd_check(&x, 2, "NaN in Q, masked keys");
        attn_data_free(&x);
        s = fwd_spec("score = q == 2 && k == 280 ? inf : q == 4 && k == 5 ? nan : score", 1, 1, 1, sq, 300, 8, 0);
        fwd_check_spec(&s, 5, 2, "scores of inf and NaN");
    }
}

/* Rows with several strips in a block, in which a few columns are not attended: the strips go through the softmax
 * together. NaN and infinities of keys in a gap do not count, those in the last strip of a row do; dropout identifies a
 * pair by its coordinates, wherever the pair is stored. */
static void fwd_strips(const char *isa) {
    static const char *const texts[] = {
        "mask = k % 80 < 20 && (q + k) % 7 != 0",
        "score = score + float(k % 5) - float(abs(q - k)) * 0.01\nmask = (k + q // 16 * 24) % 96 < 40 || k == q",
        "score = k % 128 >= 33 ? -inf : q % 6 == 0 && k == 260 ? inf : score",
    };
    static int drawn; /* over all sets */
    for (int i = 0; i < 18; i++) {
        if (!t_some(drawn++)) continue;
        attn_spec s = fwd_spec(texts[i % 3], 1, 2, 1, 140, 601, 24, 0);
        attn_owned x = {0};
        char what[80];
        snprintf(what, sizeof what, "%s: strips, case %d", isa, i);
        if (i % 2) s.dropout_p = 0.4;
        if (i >= 9) s.dtype = i < 12 ? FXA_F64 : FXA_BF16;
        if (!fwd_make(&x, &s, (uint64_t)i)) return;
        if (i >= 6 && i < 12 && i % 3 < 2) { /* the code path for outputs that are not finite */
            attn_set(&x.t[FXA_SLOT_V], 19 * s.d + 3, INFINITY);
            attn_set(&x.t[FXA_SLOT_V], 499 * s.d + 5, -INFINITY);
            attn_set(&x.t[FXA_SLOT_V], 60 * s.d + 7, NAN);
        }
        fwd_check(&x, 2, what);
    }
}
TEST(rows_with_several_strips_of_a_block) { isa_each(fwd_strips); }

/* ---- Block sizes ------------------------------------------------------------------------------------------------- */

/* Checks that n is the largest multiple of `step` with n * bytes_each <= bytes, except at its limits `least` and
 * `most`. */
static void fwd_check_fill(const char *what, int64_t n, int64_t step, int64_t bytes_each, int64_t bytes, int64_t least,
                           int64_t most) {
    if (n < least || n > most) T_FAIL("%s: %d, not %d..%d\n", what, (int)n, (int)least, (int)most);
    if (n != most && n % step) T_FAIL("%s: %d are no multiple of %d\n", what, (int)n, (int)step);
    if (n > least && n * bytes_each > bytes) T_FAIL("%s: %d take more than the cache has\n", what, (int)n);
    if (n < most && (n + step) * bytes_each <= bytes) T_FAIL("%s: %d leave room for more\n", what, (int)n);
}

/* Packed keys fill 256 KiB, or half of that if the mask is classified or the instruction set uses many rows; the rows
 * of Q in a tile fill 384 KiB. */
TEST(blocks_fill_the_caches) {
    static const int64_t widths[] = {1, 8, 40, 64, 128, 200, 256, 512};
    bool usable;
    const fxa__cpu_kernels *k;
    for (int i = 0; i < 2 * 8 * 2 * 2; i++) {
        const size_t size = i & 1 ? sizeof(double) : sizeof(float);
        const bool classify = i >> 1 & 1, narrow_v = i >> 2 & 1;
        const int64_t wide = widths[i >> 3];
        for (size_t set = 0; (k = fxa__cpu_set(set, size, &usable)) != NULL; set++) {
            const fxa__cpu_code code = {.kernels = k, .classify = classify};
            const fxa_problem p = {.d_qk = wide, .d_v = narrow_v ? 1 : wide};
            const fxa__cpu_sizes b = fxa__cpu_forward_sizes(&code, &p);
            const int64_t each = (int64_t)k->real_size * wide,
                          shorter = classify || k->rows > FXA__CPU_ROW_BLOCK ? 2 : 1;
            fwd_check_fill("keys", b.keys, k->nr, each, (1 << 18) / shorter, k->nr, FXA__CPU_KEY_BLOCK / shorter);
            fwd_check_fill("rows of a tile", b.tile_rows, b.rows, each, 3 << 17, 4 * b.rows, 768);
            T_CHECK(k->rows ? b.rows == k->rows : b.rows >= 12 && b.rows < 12 + k->mr && b.rows % k->mr == 0);
            T_CHECK(b.ldq >= p.d_qk && b.ldo >= p.d_v && b.ldv == p.d_v && b.ldt > b.keys && b.lda <= b.ldq);
        }
    }
}

/* ---- No access outside of the buffers ---------------------------------------------------------------------------- */

/* Runs a plan with every buffer, including the workspace, next to an inaccessible page; odd sizes, all dtypes. A wrong
 * access ends the test with a signal. */
static void fwd_run_guarded(fxa_dtype dtype, int64_t sq, int64_t sk, int64_t d, bool at_end) {
    attn_spec s = fwd_spec(NULL, 1, 2, 1, sq, sk, d, FXA_CAUSAL | FXA_BOTTOM_RIGHT);
    attn_owned x = {0};
    s.dtype = dtype, s.around = at_end ? ATTN_PAGE_BEHIND : ATTN_PAGE_BEFORE;
    if (!fwd_make(&x, &s, 0)) return;
    (void)fwd_run(&x, "cpu", 0);
}

static void fwd_guards(const char *isa) {
    static const int64_t shape[][3] = {{1, 1, 1}, {3, 5, 7}, {19, 33, 17}, {130, 259, 33}, {2, 2100, 9}};
    (void)isa;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int dtype = FXA_F64; dtype <= FXA_BF16; dtype++)
            for (int at_end = 0; at_end < 2; at_end++)
                fwd_run_guarded((fxa_dtype)dtype, shape[i][0], shape[i][1], shape[i][2], at_end);
}
TEST(nothing_outside_the_buffers_is_touched) { isa_each(fwd_guards); }

T_MAIN
