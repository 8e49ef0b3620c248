/* SPDX-License-Identifier: Apache-2.0
 *
 * Support reports of the cuda engine before compilation: every row of its table of refusals is reached, and supported
 * problems get the expected kernels. Further tests are in test_cuda_assumptions.c and test_cuda_keys.c.
 */
#include "cuda_choice_fixture.h"
#include "engine/cuda/host/sources.h"

/* ---- Sources ----------------------------------------------------------------------------------------------------- */

TEST(sources_of_the_library_are_those_of_the_tree) {
    static const char *const folders[] = {"engine/cuda/kernels", "lower", "program"};
    T_CHECK(fxa__cuda_source_count > 20 && strlen(fxa__cuda_sources_hash) == 16);
    for (size_t i = 0; i < fxa__cuda_source_count; i++) {
        FILE *f = NULL;
        char path[512];
        for (size_t k = 0; k < 3 && !f; k++) {
            (void)snprintf(path, sizeof path, "%s/src/%s/%s", FXA_SOURCE_DIR, folders[k], fxa__cuda_sources[i].name);
            f = fopen(path, "rb");
        }
        T_REQUIRE(f);
        size_t n = strlen(fxa__cuda_sources[i].text), m;
        char *text = calloc(1, n + 2);
        m = fread(text, 1, n + 1, f);
        if (m != n || strcmp(text, fxa__cuda_sources[i].text) != 0)
            T_FAIL("%s is another\n", fxa__cuda_sources[i].name);
        free(text);
        fclose(f);
    }
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void no_f64(fxa_problem *p) { p->q.dtype = FXA_F64; }
static void no_width(fxa_problem *p) { p->d_qk = 257; }
static void no_features(fxa_problem *p) { p->d_v = FXA_D_V_ZERO; }
static void no_heads(fxa_problem *p) { p->hq = p->hkv = 65536, p->sq = p->sk = 1; }
static void no_length(fxa_problem *p) { p->sk = ((int64_t)1 << 28) + 1, p->hkv = 1, p->d_qk = 1; }
/* Packed: the number of tiles of a batch entry is one more than its rows fill. */
static void no_tiles(fxa_problem *p) {
    p->flags |= FXA_VARLEN, p->b = 65535, p->hq = 4096, p->hkv = 1;
    p->d_qk = p->d_v = 8, p->sq = p->sk = 4, p->total_q = p->total_k = 4 * 65535;
}
static void no_scales(fxa_problem *p) { p->flags |= FXA_SCALED, p->o.dtype = FXA_E4M3; }
static void no_table(fxa_problem *p) {
    p->flags |= FXA_PAGED, p->page_size = 1, p->n_pages = 32, p->b = 4096, p->sk = 65537;
}

TEST(refusals_have_their_reasons) {
    static const struct {
        fxa_pass pass;
        void (*make)(fxa_problem *p);
        const char *why;
    } cases[] = {
        /* one line for every row of the table in host/support.c */
        {FXA_FORWARD, no_f64, "f64: kernels compute in f32"},
        {FXA_FORWARD, no_width, "at most 256"},
        {FXA_FORWARD, no_features, "hq, d_qk and d_v are to be at least 1"},
        {FXA_FORWARD, no_heads, "at most 65535"},
        {FXA_FORWARD, no_length, "at most 2^28"},
        {FXA_FORWARD, no_tiles, "tiles of 128 queries of all heads are to be at most 2^28"},
        {FXA_FORWARD, no_scales, "scaled: "},
        {FXA_BACKWARD, no_table, "paged: the table of pages"},
    };
    uint64_t reached = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cuda_choice choice;
        choice_start(&c, cases[i].pass, NULL);
        cases[i].make(&c.p);
        T_INT(choice_end(&c, &choice_hopper, &choice, NULL, &err), FXA_E_UNSUPPORTED);
        T_HAS(err.text, cases[i].why);
        for (size_t row = 0; fxa__cuda_refusal(row); row++)
            if (strstr(err.text, fxa__cuda_refusal(row))) reached |= (uint64_t)1 << row;
    }
    for (size_t row = 0; fxa__cuda_refusal(row); row++) /* rows that depend on programs follow below */
        if (!(reached >> row & 1)) T_FAIL("no problem reaches: %s\n", fxa__cuda_refusal(row));
}

/* ---- Families ---------------------------------------------------------------------------------------------------- */

static const char choice_slopes[] = "param cap : float\nscore = cap * tanh(score / cap)";

static const struct choice_row {
    fxa_pass pass;
    int32_t arch, forced, d, dv;
    uint32_t dtype, flags, alignment;
    const char *text;
    cuda_family family;
    uint32_t units; /* bit set */
} choice_rows[] = {
#define UNIT(name) (1u << FXA__CUDA_##name)
#define BACK (UNIT(BACKWARD) | UNIT(PREPOST))
    {0, 90, -1, 128, 128, FXA_BF16, 0, 16, NULL, FAMILY_SM90, UNIT(FORWARD)},
    {0, 90, -1, 40, 72, FXA_F16, FXA_CAUSAL, 16, NULL, FAMILY_SM90, UNIT(FORWARD) | UNIT(TILE_LISTS)},
    {0, 90, -1, 128, 128, FXA_BF16, 0, 8, NULL, FAMILY_SM80, UNIT(FORWARD)},
    {0, 90, -1, 36, 36, FXA_BF16, 0, 16, NULL, FAMILY_SM80, UNIT(FORWARD)},
    {0, 80, -1, 128, 128, FXA_BF16, 0, 16, NULL, FAMILY_SM80, UNIT(FORWARD)},
    {0, 120, -1, 128, 128, FXA_F16, 0, 16, NULL, FAMILY_SM80, UNIT(FORWARD)},
    {0, 90, -1, 128, 128, FXA_F32, 0, 16, NULL, FAMILY_SIMT, UNIT(FORWARD)},
    {0, 90, FAMILY_SM80, 128, 128, FXA_BF16, 0, 16, NULL, FAMILY_SM80, UNIT(FORWARD)},
    {0, 90, FAMILY_SIMT, 128, 128, FXA_BF16, 0, 16, NULL, FAMILY_SIMT, UNIT(FORWARD)},
    {0, 90, -1, 64, 64, FXA_BF16, 0, 16, "score = score - 0.5 * float(abs(q - k))", FAMILY_SM90,
     UNIT(FORWARD) | UNIT(DIAGONAL_TABLE)},
    {0, 90, -1, 64, 64, FXA_BF16, 0, 16, "tensor d : i32[1]\nmask = d[q] == d[k]", FAMILY_SM90,
     UNIT(FORWARD) | UNIT(TILE_LISTS)},
    {1, 90, -1, 128, 128, FXA_BF16, 0, 16, NULL, FAMILY_SM90, BACK},
    {1, 90, -1, 128, 128, FXA_BF16, FXA_DETERMINISTIC, 16, NULL, FAMILY_SM90, BACK},
    {1, 90, -1, 128, 128, FXA_BF16, FXA_DETERMINISTIC, 16, "mask = k <= q", FAMILY_SM90,
     BACK | UNIT(TILE_LISTS) | UNIT(DQ)},
    {1, 90, -1, 192, 128, FXA_BF16, 0, 16, NULL, FAMILY_SM90, BACK | UNIT(DQ)},
    {1, 89, -1, 128, 128, FXA_BF16, 0, 16, NULL, FAMILY_SM80, BACK},
    {1, 89, -1, 128, 128, FXA_BF16, FXA_DETERMINISTIC, 16, NULL, FAMILY_SIMT, BACK},
    {1, 90, -1, 64, 64, FXA_F32, FXA_DETERMINISTIC, 16, NULL, FAMILY_SIMT, BACK},
    {1, 90, -1, 64, 64, FXA_BF16, 0, 16, choice_slopes, FAMILY_SM90, BACK},
};

TEST(problems_get_their_kernels) {
    for (size_t i = 0; i < sizeof choice_rows / sizeof *choice_rows; i++) {
        const struct choice_row *r = &choice_rows[i];
        choice_case c;
        fxa__cuda_choice out;
        fxa__cuda_self self = choice_hopper;
        self.arch = r->arch, self.forced = family_forced(r->forced);
        choice_start(&c, r->pass, r->text);
        c.p.d_qk = r->d, c.p.d_v = r->dv, c.p.q.dtype = r->dtype, c.p.flags |= r->flags, c.p.alignment = r->alignment;
        T_INT(choice_end(&c, &self, &out, NULL, &err), FXA_OK);
        if (family_of(&out) != r->family || out.units != r->units)
            T_FAIL("row %zu: family %s and units %x, not %s and %x\n", i, family_names[family_of(&out)], out.units,
                   family_names[r->family], r->units);
        T_CHECK(out.traits.d >= r->d && out.traits.d % 32 == 0 && out.traits.dv >= r->dv);
        for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++)
            if (out.units >> unit & 1u) T_CHECK(fxa__cuda_unit_source(&out, (fxa__cuda_unit)unit));
    }
}

static void with_bytes(fxa_problem *p) { p->q.dtype = p->k.dtype = p->v.dtype = FXA_E4M3, p->o.dtype = FXA_BF16; }
static void with_byte_results(fxa_problem *p) { with_bytes(p), p->o.dtype = FXA_E5M2; }
static void with_wide_results(fxa_problem *p) { p->o.dtype = FXA_F32; }
static void with_mixture(fxa_problem *p) { p->v.dtype = FXA_F16; }
static void with_columns(fxa_problem *p) {
    p->q = (fxa_operand){.dtype = FXA_BF16, .layout = FXA_LAYOUT_STRIDED, .stride = {300 * 256, 64, 256, 2}};
}
static void with_wide_lse(fxa_problem *p) { p->lse.dtype = FXA_F64; }
static void with_max(fxa_problem *p) { p->flags |= FXA_RETURN_ROW_MAX; }
static void with_joining(fxa_problem *p) { p->flags |= FXA_ACCUMULATE_O; }
static void with_wide_grads(fxa_problem *p) { p->dk.dtype = FXA_F32; }
static void with_stable_wide_grads(fxa_problem *p) { with_wide_grads(p), p->flags |= FXA_DETERMINISTIC; }
static void with_wide_o(fxa_problem *p) { p->o.dtype = FXA_F32; }
static void with_other_o(fxa_problem *p) { p->o.dtype = FXA_F16; }
static void with_wide_dout(fxa_problem *p) { p->dout.dtype = FXA_F32; }
static void with_no_keys(fxa_problem *p) { p->sk = 0; }
static void with_packed_adding(fxa_problem *p) {
    p->flags |= FXA_VARLEN | FXA_ACCUMULATE_DK, p->total_q = 400, p->total_k = 700;
}

/* Kernels read one dtype and write this dtype or f32; operands of other dtypes are copied through the workspace. */
TEST(operands_through_the_workspace) {
    static const struct {
        fxa_pass pass;
        void (*make)(fxa_problem *p);
        fxa_dtype in, out;
        cuda_family family;
        bool staged, adds;
    } cases[] = {
        {FXA_FORWARD, with_bytes, FXA_F32, FXA_F32, FAMILY_SIMT, true, false},
        {FXA_FORWARD, with_byte_results, FXA_F32, FXA_F32, FAMILY_SIMT, true, false},
        {FXA_FORWARD, with_wide_results, FXA_BF16, FXA_F32, FAMILY_SM80, false, false},
        {FXA_FORWARD, with_mixture, FXA_F32, FXA_F32, FAMILY_SIMT, true, false},
        {FXA_FORWARD, with_columns, FXA_BF16, FXA_BF16, FAMILY_SM90, true, false},
        {FXA_FORWARD, with_wide_lse, FXA_BF16, FXA_BF16, FAMILY_SM90, true, false},
        {FXA_FORWARD, with_max, FXA_BF16, FXA_BF16, FAMILY_SM80, false, false},
        {FXA_FORWARD, with_joining, FXA_BF16, FXA_BF16, FAMILY_SM90, true, true},
        {FXA_BACKWARD, with_wide_lse, FXA_BF16, FXA_BF16, FAMILY_SM90, true, false},
        {FXA_BACKWARD, with_wide_grads, FXA_BF16, FXA_F32, FAMILY_SM80, true, false},
        {FXA_BACKWARD, with_stable_wide_grads, FXA_BF16, FXA_F32, FAMILY_SIMT, true, false},
        {FXA_BACKWARD, with_wide_o, FXA_BF16, FXA_BF16, FAMILY_SM90, false, false},
        {FXA_BACKWARD, with_other_o, FXA_BF16, FXA_BF16, FAMILY_SM90, true, false},
        {FXA_BACKWARD, with_wide_dout, FXA_F32, FXA_F32, FAMILY_SIMT, true, false},
        {FXA_FORWARD, with_no_keys, FXA_BF16, FXA_BF16, FAMILY_SM80, false, false},
        {FXA_BACKWARD, with_no_keys, FXA_BF16, FXA_BF16, FAMILY_SM80, false, false},
        {FXA_BACKWARD, with_packed_adding, FXA_BF16, FXA_BF16, FAMILY_SM90, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cuda_choice out;
        choice_start(&c, cases[i].pass, NULL);
        cases[i].make(&c.p);
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        if (out.dtype != cases[i].in || out.out_dtype != cases[i].out || family_of(&out) != cases[i].family ||
            out.converts != cases[i].staged || out.rounds_before_adding != cases[i].adds)
            T_FAIL("case %zu: %s to %s by %s, staged %d, adds %d\n", i, fxa_dtype_name(out.dtype),
                   fxa_dtype_name(out.out_dtype), family_names[family_of(&out)], out.converts,
                   out.rounds_before_adding);
        T_INT(out.units >> FXA__CUDA_CONVERT & 1u, out.converts);
        T_INT(out.traits.o_f32, cases[i].make == with_wide_o || cases[i].make == with_other_o);
    }
}

/* Dropout uses coordinates: if they are not the local indices, kernels with coordinate lookups are compiled. */
static void with_no_promise(fxa_problem *p) { p->alignment = 0; }
static void with_odd_pages(fxa_problem *p) { p->flags |= FXA_PAGED, p->page_size = 24, p->n_pages = 64; }

/* A plan with slower kernels states the missing guarantee, because a run may take several times as long. */
TEST(lesser_kernels_have_a_reason) {
    static const struct {
        void (*make)(fxa_problem *p);
        const char *why;
    } cases[] = {
        {with_no_promise, "not sm90: alignment is to be 16, strides multiples of 16 bytes above 0"},
        {with_wide_results, "not sm90: a result has another type"},
        {with_max, "not sm90: row maximum"},
        {with_odd_pages, "not sm90: the page size is to be 8, 16, 32, 64 or a multiple of 128"},
        {with_no_keys, "not sm90: empty"},
        {with_mixture, NULL}, /* f32 */
        {with_joining, NULL}, /* sm90 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cuda_choice out;
        fxa__cuda_program g = {.program = NULL};
        fxa__problem *p = NULL;
        choice_start(&c, FXA_FORWARD, NULL);
        cases[i].make(&c.p);
        T_OK(fxa__problem_create(fxa__context_host(ctx), &c.p, &p, &err));
        T_OK(choice_end(&c, &choice_hopper, &out, &g, &err));
        const char *why = family_why(&out);
        if (cases[i].why)
            T_HAS(why, cases[i].why);
        else
            T_CHECK(*why == '\0');
        fxa__cuda_program_free(&g);
        fxa__problem_release(p);
    }
}

/* For gradients, the plan states the rule that excludes the faster kernels. */
TEST(gradients_by_lesser_kernels_have_a_reason) {
    static const char scaled[] = "tensor t : f32[2]; score = score * t[h, q]";
    static const char two[] = "param a : float; param c : float; score = a * tanh(score / c)";
    static const struct {
        const char *text;
        int64_t d;
        double dropout;
        const char *why;
    } cases[] = {
        {scaled, 64, 0, "not sm90: scattered gradients beside a slope"},
        {scaled, 192, 0, "not sm90: gradients of params or tensors above 128 columns"},
        {two, 128, 0, "not sm90: several gradients of params or tensors beside a slope above 96 columns"},
        {two, 64, 0.5, "not sm90: gradients of params or tensors beside a slope and dropout"},
        {two, 64, 0, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cuda_choice out;
        fxa__cuda_program g = {.program = NULL};
        choice_start(&c, FXA_BACKWARD, cases[i].text);
        c.captures[0].grad = c.p.n_captures > 0, c.p.param_grads = c.p.n_captures ? 0 : 3;
        c.p.d_qk = cases[i].d, c.p.dropout_p = cases[i].dropout;
        if (cases[i].dropout > 0) c.p.flags |= FXA_DROPOUT;
        T_OK(choice_end(&c, &choice_hopper, &out, &g, &err));
        const char *why = family_why(&out);
        T_CHECK(*cases[i].why || !*why);
        T_HAS(why, cases[i].why);
        fxa__cuda_program_free(&g);
    }
}

TEST(dropout_at_moved_coordinates) {
    for (int i = 0; i < 8; i++) {
        choice_case c;
        fxa__cuda_choice out;
        choice_start(&c, i % 2 ? FXA_BACKWARD : FXA_FORWARD, NULL);
        c.p.flags |= FXA_DROPOUT, c.p.dropout_p = 0.5;
        if (i / 2 == 1) c.p.map_q.base = 7;
        if (i / 2 == 2) c.p.flags |= FXA_Q_START;
        if (i / 2 == 3) c.p.global_heads = 8; /* only programs read the number of heads */
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        T_INT(out.traits.dropout, i / 2 == 1 || i / 2 == 2 ? 2 : 1);
        T_INT(out.units >> FXA__CUDA_CONVERT & 1u, out.traits.dropout == 2);
    }
}

/* Gradients of a param together with a derivative: not by the Hopper kernel where it lacks registers for them. */
TEST(sums_beside_slopes) {
    for (int i = 0; i < 3; i++) {
        choice_case c;
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        choice_start(&c, FXA_BACKWARD, choice_slopes);
        c.p.param_grads = 1;
        if (i == 1) c.p.flags |= FXA_DROPOUT, c.p.dropout_p = 0.5;
        if (i == 2) c.p.d_qk = 192;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_INT(family_of(&out), i ? FAMILY_SM80 : FAMILY_SM90);
        T_CHECK(g.switches.derivative && g.switches.grad_sums == 1 && !out.traits.separate_dq);
    }
}

/* Deterministic gradients: order-independent sums replace f32 sums to which pairs and diagonals add; simt kernels
 * replace sm80. */
TEST(fixed_gradients_are_exact_sums) {
    static const struct {
        const char *text;
        uint32_t flags;
        int exact;
        cuda_family family;
        bool scatter, diagonal;
    } rows[] = {
        {"tensor t : f32[1]\nscore = score + t[(q * k) % 9]", 0, 0, FAMILY_SM90, true, false},
        {"tensor t : f32[1]\nscore = score + t[(q * k) % 9]", FXA_DETERMINISTIC, 1, FAMILY_SM90, true, false},
        {"tensor t : f32[1]\nscore = score * t[(q * k) % 9]", FXA_DETERMINISTIC, 1, FAMILY_SIMT, true, false},
        {"tensor t : f32[1]\nscore = score + t[min(abs(q - k), 8)]", 0, 0, FAMILY_SM90, false, true},
        {"tensor t : f32[1]\nscore = score + t[min(abs(q - k), 8)]", FXA_DETERMINISTIC, 1, FAMILY_SM90, false, true},
        {"tensor t : f32[1]\nscore = score + t[h]", 0, 1, FAMILY_SM90, false, false},
        {"tensor t : f32[4]\nscore = score + t[b, h, q, k]", FXA_DETERMINISTIC, 0, FAMILY_SM90, true, false},
        {"tensor t : f32[4]\nscore = score + t[b, h, k, q] + t[b, h, q, k]", FXA_DETERMINISTIC, 1, FAMILY_SM90, true,
         false},
        {"tensor t : f32[3]\nscore = score + t[h, q, k]", FXA_DETERMINISTIC, 1, FAMILY_SM90, true, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        choice_case c;
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        choice_start(&c, FXA_BACKWARD, rows[i].text);
        c.captures[0].grad = 1, c.p.flags |= rows[i].flags;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        if (g.switches.grad_exact != rows[i].exact || family_of(&out) != rows[i].family ||
            g.switches.grad_scatter != rows[i].scatter || g.switches.grad_diagonal != rows[i].diagonal)
            T_FAIL("%s: exact %u, %s, scatter %d, diagonal %d\n", rows[i].text, g.switches.grad_exact,
                   family_names[family_of(&out)], g.switches.grad_scatter, g.switches.grad_diagonal);
    }
}

/* Keys are gathered from pages before the kernels, which then do not handle pages: any page size, by the best
 * family. */
TEST(pages_in_the_backward_pass) {
    for (uint32_t size = 1; size < 300; size += 99) {
        choice_case c;
        fxa__cuda_choice out;
        choice_start(&c, FXA_BACKWARD, NULL);
        c.p.flags |= FXA_PAGED, c.p.page_size = size, c.p.n_pages = 7;
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        T_INT(family_of(&out), FAMILY_SM90);
        T_CHECK(!out.traits.paged && out.converts && (out.units & UNIT(PAGED_GRADS)));
    }
}

TEST(pages_that_tma_fetches) {
    for (uint32_t size = 1; size <= 300; size++) {
        choice_case c;
        fxa__cuda_choice out;
        bool fits = size == 8 || size == 16 || size == 32 || size == 64 || size % 128 == 0;
        choice_start(&c, FXA_FORWARD, NULL);
        c.p.flags |= FXA_PAGED, c.p.page_size = size, c.p.n_pages = 600;
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        if ((family_of(&out) == FAMILY_SM90) != fits) T_FAIL("pages of %u: %s\n", size, family_names[family_of(&out)]);
    }
}

/* TMA addresses up to 2^40 bytes. */
TEST(strides_beyond_tma_are_for_sm80) {
    for (int i = 0; i < 2; i++) {
        choice_case c;
        fxa__cuda_choice out;
        choice_start(&c, FXA_FORWARD, NULL);
        c.p.k.layout = FXA_LAYOUT_STRIDED;
        c.p.k.stride[0] = (INT64_C(1) << 39) - (i ? 0 : 8);
        c.p.k.stride[1] = 500 * 64, c.p.k.stride[2] = 64, c.p.k.stride[3] = 1;
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        T_INT(family_of(&out), i ? FAMILY_SM80 : FAMILY_SM90);
    }
}

/* Number of rows of a KV head, and number of rows that a CTA processes. */
TEST(decoding_takes_few_rows) {
    static const struct {
        int64_t sq, group, d, dv;
        int32_t tiles;
    } cases[] = {{1, 8, 128, 128, 1},  {1, 9, 64, 64, 2},  {4, 8, 128, 128, 4}, {16, 8, 128, 128, 4},
                 {17, 8, 128, 128, 0}, {4, 8, 128, 64, 0}, {2, 4, 256, 256, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cuda_choice out;
        choice_start(&c, FXA_FORWARD, NULL);
        c.p.hkv = 2, c.p.hq = 2 * cases[i].group, c.p.sq = cases[i].sq, c.p.d_qk = cases[i].d, c.p.d_v = cases[i].dv;
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        T_INT(out.traits.row_tiles, cases[i].tiles);
    }
}

T_MAIN
