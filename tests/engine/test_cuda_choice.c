/* SPDX-License-Identifier: Apache-2.0
 *
 * What the CUDA engine says of problems before anything is compiled: every row of its table of refusals is reached, and
 * what is taken gets the kernels, promises and key that it should. Neither a device nor NVRTC is needed.
 */
#include "engine/cuda/cuda.h"
#include "engine/cuda/cuda_sources.h"
#include "engine/cudnn/cudnn.h"
#include "plan/plan.h"
#include "support/own_context.h"

typedef struct choice_case {
    fxa_problem p;
    fxa_program *program;
    fxa_capture captures[FXA_MAX_TENSORS];
} choice_case;

static const fxa__cu_self choice_hopper = {.arch = 90, .processors = 132, .forced = -1};

static void choice_start(choice_case *c, fxa_pass pass, const char *text) {
    fxa_error err;
    memset(c, 0, sizeof *c);
    c->p = (fxa_problem)FXA_PROBLEM_INIT;
    c->p.pass = (uint32_t)pass, c->p.b = 2, c->p.hq = 4, c->p.hkv = 2, c->p.sq = 300, c->p.sk = 500, c->p.d = 64;
    c->p.q.dtype = FXA_BF16, c->p.alignment = 16, c->p.device = FXA_CUDA;
    c->p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_WANT_LSE;
    if (text) T_OK(own_parse(FXA_PROGRAM_SCORE, text, strlen(text), &c->program, &err));
    c->p.program = c->program, c->p.captures = c->captures;
    c->p.n_captures = text ? fxa_program_tensor_count(c->program) : 0;
    for (size_t i = 0; i < c->p.n_captures; i++)
        for (int d = 0; d < FXA_MAX_RANK; d++) c->captures[i].size[d] = 512;
}

/* The status; what was chosen, and the reason where nothing was. Frees the case's program. */
static fxa_status choice_end(choice_case *c, const fxa__cu_self *self, fxa__cu_choice *out, fxa__cuda_program *g,
                             fxa_error *err) {
    fxa__problem *p = NULL;
    fxa__cuda_program own = {.value = -1};
    fxa_status status = fxa__problem_create(fxa__context_host(ctx), &c->p, &p, err);
    if (status != FXA_OK) T_FAIL("no problem: %s\n", err->text);
    if (status == FXA_OK) status = fxa__cu_choose(self, p, out, g ? g : &own, err);
    fxa__cuda_program_free(&own);
    if (p) fxa__problem_release(p);
    fxa_program_destroy(c->program);
    return status;
}

/* ---- Sources ----------------------------------------------------------------------------------------------------- */

TEST(sources_of_the_library_are_those_of_the_tree) {
    static const char *const folders[] = {"engine/cuda", "lower", "program"};
    T_CHECK(fxa__cu_source_count > 20 && strlen(fxa__cu_sources_hash) == 16);
    for (size_t i = 0; i < fxa__cu_source_count; i++) {
        FILE *f = NULL;
        char path[512];
        for (size_t k = 0; k < 3 && !f; k++) {
            (void)snprintf(path, sizeof path, "%s/src/%s/%s", FXA_SOURCE_DIR, folders[k], fxa__cu_sources[i].name);
            f = fopen(path, "rb");
        }
        T_REQUIRE(f);
        size_t n = strlen(fxa__cu_sources[i].text), m;
        char *text = calloc(1, n + 2);
        m = fread(text, 1, n + 1, f);
        if (m != n || strcmp(text, fxa__cu_sources[i].text) != 0) T_FAIL("%s is another\n", fxa__cu_sources[i].name);
        free(text);
        fclose(f);
    }
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void no_f64(fxa_problem *p) { p->q.dtype = FXA_F64; }
static void no_width(fxa_problem *p) { p->d = 257; }
static void no_heads(fxa_problem *p) { p->hq = p->hkv = 65536, p->sq = p->sk = 1; }
static void no_length(fxa_problem *p) { p->sk = ((int64_t)1 << 28) + 1, p->hkv = 1, p->d = 1; }
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
        /* a line for every row of cuda_support.c */
        {FXA_FORWARD, no_f64, "f64: kernels compute in f32"},
        {FXA_FORWARD, no_width, "at most 256"},
        {FXA_FORWARD, no_heads, "at most 65535"},
        {FXA_FORWARD, no_length, "at most 2^28"},
        {FXA_FORWARD, no_scales, "scaled: "},
        {FXA_BACKWARD, no_table, "paged: the table of pages"},
    };
    uint64_t reached = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cu_choice choice;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, cases[i].pass, NULL);
        cases[i].make(&c.p);
        T_INT(choice_end(&c, &choice_hopper, &choice, NULL, &err), FXA_E_UNSUPPORTED);
        T_HAS(err.text, cases[i].why);
        for (size_t row = 0; fxa__cu_support_why(row); row++)
            if (strstr(err.text, fxa__cu_support_why(row))) reached |= (uint64_t)1 << row;
    }
    for (size_t row = 0; fxa__cu_support_why(row); row++) /* those of programs: below */
        if (!(reached >> row & 1)) T_FAIL("no problem reaches: %s\n", fxa__cu_support_why(row));
}

TEST(refusals_of_programs) {
    choice_case c;
    fxa__cu_choice choice;
    fxa_error err = {.status = FXA_OK};
    fxa_program *own = NULL;
    choice_start(&c, FXA_BACKWARD, "tensor zzzz : f32[1]\nscore = score + zzzz[k]");
    T_OK(own_parse(FXA_PROGRAM_BPROP, "dscore = dscore", 15, &own, &err));
    c.p.bprop = own;
    T_INT(choice_end(&c, &choice_hopper, &choice, NULL, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "beside bprop");
    fxa_program_destroy(own);
    choice_start(&c, FXA_FORWARD, "tensor zzzz_slot_20 : i32[1]\nscore = score + float(q + zzzz_slot_20[k])");
    c.p.map_q.kind = FXA_MAP_TABLE; /* which is in slot 20 */
    T_INT(choice_end(&c, &choice_hopper, &choice, NULL, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "zzzz_slot_");
}

/* ---- Families ---------------------------------------------------------------------------------------------------- */

static const char choice_slopes[] = "param cap : float\nscore = cap * tanh(score / cap)";

static const struct choice_row {
    fxa_pass pass;
    int32_t arch, forced, d, dv;
    uint32_t dtype, flags, alignment;
    const char *text;
    fxa__cu_family family;
    uint32_t units; /* by bits */
} choice_rows[] = {
#define UNIT(name) (1u << FXA__CU_##name)
#define BACK (UNIT(BACKWARD) | UNIT(ENDS))
    {0, 90, -1, 128, 128, FXA_BF16, 0, 16, NULL, FXA__CU_SM90, UNIT(FORWARD)},
    {0, 90, -1, 40, 72, FXA_F16, FXA_CAUSAL, 16, NULL, FXA__CU_SM90, UNIT(FORWARD) | UNIT(LISTS)},
    {0, 90, -1, 128, 128, FXA_BF16, 0, 8, NULL, FXA__CU_SM80, UNIT(FORWARD)},
    {0, 90, -1, 36, 36, FXA_BF16, 0, 16, NULL, FXA__CU_SM80, UNIT(FORWARD)},
    {0, 80, -1, 128, 128, FXA_BF16, 0, 16, NULL, FXA__CU_SM80, UNIT(FORWARD)},
    {0, 120, -1, 128, 128, FXA_F16, 0, 16, NULL, FXA__CU_SM80, UNIT(FORWARD)},
    {0, 90, -1, 128, 128, FXA_F32, 0, 16, NULL, FXA__CU_SIMT, UNIT(FORWARD)},
    {0, 90, FXA__CU_SM80, 128, 128, FXA_BF16, 0, 16, NULL, FXA__CU_SM80, UNIT(FORWARD)},
    {0, 90, FXA__CU_SIMT, 128, 128, FXA_BF16, 0, 16, NULL, FXA__CU_SIMT, UNIT(FORWARD)},
    {0, 90, -1, 64, 64, FXA_BF16, 0, 16, "score = score - 0.5 * float(abs(q - k))", FXA__CU_SM90,
     UNIT(FORWARD) | UNIT(DIAGONAL)},
    {0, 90, -1, 64, 64, FXA_BF16, 0, 16, "tensor d : i32[1]\nmask = d[q] == d[k]", FXA__CU_SM90,
     UNIT(FORWARD) | UNIT(LISTS)},
    {1, 90, -1, 128, 128, FXA_BF16, 0, 16, NULL, FXA__CU_SM90, BACK},
    {1, 90, -1, 128, 128, FXA_BF16, FXA_DETERMINISTIC, 16, NULL, FXA__CU_SM90, BACK | UNIT(GRAD_Q)},
    {1, 90, -1, 192, 128, FXA_BF16, 0, 16, NULL, FXA__CU_SM90, BACK | UNIT(GRAD_Q)},
    {1, 89, -1, 128, 128, FXA_BF16, 0, 16, NULL, FXA__CU_SM80, BACK},
    {1, 89, -1, 128, 128, FXA_BF16, FXA_DETERMINISTIC, 16, NULL, FXA__CU_SIMT, BACK},
    {1, 90, -1, 64, 64, FXA_F32, FXA_DETERMINISTIC, 16, NULL, FXA__CU_SIMT, BACK},
    {1, 90, -1, 64, 64, FXA_BF16, 0, 16, choice_slopes, FXA__CU_SM90, BACK},
};

TEST(problems_get_their_kernels) {
    for (size_t i = 0; i < sizeof choice_rows / sizeof *choice_rows; i++) {
        const struct choice_row *r = &choice_rows[i];
        choice_case c;
        fxa__cu_choice out;
        fxa_error err = {.status = FXA_OK};
        fxa__cu_self self = choice_hopper;
        self.arch = r->arch, self.forced = r->forced;
        choice_start(&c, r->pass, r->text);
        c.p.d = r->d, c.p.dv = r->dv, c.p.q.dtype = r->dtype, c.p.flags |= r->flags, c.p.alignment = r->alignment;
        T_INT(choice_end(&c, &self, &out, NULL, &err), FXA_OK);
        if (out.family != r->family || out.units != r->units)
            T_FAIL("row %zu: family %s and units %x, not %s and %x\n", i, fxa__cu_family_name(out.family), out.units,
                   fxa__cu_family_name(r->family), r->units);
        T_CHECK(out.d >= r->d && out.d % 32 == 0 && out.dv >= r->dv);
        for (int unit = 0; unit < FXA__CU_UNIT_COUNT; unit++)
            if (out.units >> unit & 1u) T_CHECK(fxa__cu_unit_file(&out, (fxa__cu_unit)unit));
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
static void with_max(fxa_problem *p) { p->flags |= FXA_WANT_MAX; }
static void with_joining(fxa_problem *p) { p->flags |= FXA_ACC_OUT; }
static void with_wide_grads(fxa_problem *p) { p->dk.dtype = FXA_F32; }
static void with_stable_wide_grads(fxa_problem *p) { with_wide_grads(p), p->flags |= FXA_DETERMINISTIC; }
static void with_wide_o(fxa_problem *p) { p->o.dtype = FXA_F32; }
static void with_other_o(fxa_problem *p) { p->o.dtype = FXA_F16; }
static void with_wide_dout(fxa_problem *p) { p->dout.dtype = FXA_F32; }
static void with_no_keys(fxa_problem *p) { p->sk = 0; }
static void with_packed_adding(fxa_problem *p) {
    p->flags |= FXA_VARLEN | FXA_ACC_K, p->total_q = 400, p->total_k = 700;
}

/* Kernels read one type and write that or f32: the rest goes through the workspace. */
TEST(operands_through_the_workspace) {
    static const struct {
        fxa_pass pass;
        void (*make)(fxa_problem *p);
        fxa_dtype in, out;
        fxa__cu_family family;
        bool staged, adds;
    } cases[] = {
        {FXA_FORWARD, with_bytes, FXA_F32, FXA_F32, FXA__CU_SIMT, true, false},
        {FXA_FORWARD, with_byte_results, FXA_F32, FXA_F32, FXA__CU_SIMT, true, false},
        {FXA_FORWARD, with_wide_results, FXA_BF16, FXA_F32, FXA__CU_SM80, false, false},
        {FXA_FORWARD, with_mixture, FXA_F32, FXA_F32, FXA__CU_SIMT, true, false},
        {FXA_FORWARD, with_columns, FXA_BF16, FXA_BF16, FXA__CU_SM90, true, false},
        {FXA_FORWARD, with_wide_lse, FXA_BF16, FXA_BF16, FXA__CU_SM90, true, false},
        {FXA_FORWARD, with_max, FXA_BF16, FXA_BF16, FXA__CU_SM80, false, false},
        {FXA_FORWARD, with_joining, FXA_BF16, FXA_BF16, FXA__CU_SM90, true, true},
        {FXA_BACKWARD, with_wide_lse, FXA_BF16, FXA_BF16, FXA__CU_SM90, true, false},
        {FXA_BACKWARD, with_wide_grads, FXA_BF16, FXA_F32, FXA__CU_SM80, true, false},
        {FXA_BACKWARD, with_stable_wide_grads, FXA_BF16, FXA_F32, FXA__CU_SIMT, true, false},
        {FXA_BACKWARD, with_wide_o, FXA_BF16, FXA_BF16, FXA__CU_SM90, false, false},
        {FXA_BACKWARD, with_other_o, FXA_BF16, FXA_BF16, FXA__CU_SM90, true, false},
        {FXA_BACKWARD, with_wide_dout, FXA_F32, FXA_F32, FXA__CU_SIMT, true, false},
        {FXA_FORWARD, with_no_keys, FXA_BF16, FXA_BF16, FXA__CU_SM80, false, false},
        {FXA_BACKWARD, with_no_keys, FXA_BF16, FXA_BF16, FXA__CU_SM80, false, false},
        {FXA_BACKWARD, with_packed_adding, FXA_BF16, FXA_BF16, FXA__CU_SM90, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, cases[i].pass, NULL);
        cases[i].make(&c.p);
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        if (out.dtype != cases[i].in || out.out != cases[i].out || out.family != cases[i].family ||
            out.staged != cases[i].staged || out.adds != cases[i].adds)
            T_FAIL("case %zu: %s to %s by %s, staged %d, adds %d\n", i, fxa_dtype_name(out.dtype),
                   fxa_dtype_name(out.out), fxa__cu_family_name(out.family), out.staged, out.adds);
        T_INT(out.units >> FXA__CU_STAGE & 1u, out.staged);
        T_INT(out.wide_o, cases[i].make == with_wide_o || cases[i].make == with_other_o);
    }
}

/* Dropout goes by coordinates: where those are moved, another code looks them up. */
TEST(dropout_at_moved_coordinates) {
    for (int i = 0; i < 8; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, i % 2 ? FXA_BACKWARD : FXA_FORWARD, NULL);
        c.p.flags |= FXA_DROPOUT, c.p.dropout_p = 0.5;
        if (i / 2 == 1) c.p.map_q.base = 7;
        if (i / 2 == 2) c.p.flags |= FXA_POSITIONS;
        if (i / 2 == 3) c.p.heads = 8; /* which only programs read */
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        T_CHECK(out.dropout && out.moved == (i / 2 == 1 || i / 2 == 2));
        T_INT(out.units >> FXA__CU_STAGE & 1u, out.moved);
    }
}

/* Gradients of a param through a slope: not where the Hopper kernel lacks registers for them. */
TEST(sums_beside_slopes) {
    for (int i = 0; i < 3; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa__cuda_program g;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, FXA_BACKWARD, choice_slopes);
        c.p.param_grads = 1;
        if (i == 1) c.p.flags |= FXA_DROPOUT, c.p.dropout_p = 0.5;
        if (i == 2) c.p.d = 192;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_INT(out.family, i ? FXA__CU_SM80 : FXA__CU_SM90);
        T_CHECK(g.has_slope && g.n_sums == 1 && !out.separate_dq);
        fxa__cuda_program_free(&g);
    }
}

/* Same bits: sums that have no order, in place of f32 to which pairs and diagonals add; simt where sm80 would be. */
TEST(fixed_gradients_are_exact_sums) {
    static const struct {
        const char *text;
        uint32_t flags, exact;
        fxa__cu_family family;
        bool scatter, diagonal;
    } rows[] = {
        {"tensor t : f32[1]\nscore = score + t[(q * k) % 9]", 0, 0, FXA__CU_SM90, true, false},
        {"tensor t : f32[1]\nscore = score + t[(q * k) % 9]", FXA_DETERMINISTIC, 1, FXA__CU_SM90, true, false},
        {"tensor t : f32[1]\nscore = score * t[(q * k) % 9]", FXA_DETERMINISTIC, 1, FXA__CU_SIMT, true, false},
        {"tensor t : f32[1]\nscore = score + t[min(abs(q - k), 8)]", 0, 0, FXA__CU_SM90, false, true},
        {"tensor t : f32[1]\nscore = score + t[min(abs(q - k), 8)]", FXA_DETERMINISTIC, 1, FXA__CU_SM90, false, true},
        {"tensor t : f32[1]\nscore = score + t[h]", 0, 1, FXA__CU_SM90, false, false},
        {"tensor t : f32[4]\nscore = score + t[b, h, q, k]", FXA_DETERMINISTIC, 0, FXA__CU_SM90, true, false},
        {"tensor t : f32[4]\nscore = score + t[b, h, k, q] + t[b, h, q, k]", FXA_DETERMINISTIC, 1, FXA__CU_SM90, true,
         false},
        {"tensor t : f32[3]\nscore = score + t[h, q, k]", FXA_DETERMINISTIC, 1, FXA__CU_SM90, true, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa__cuda_program g;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, FXA_BACKWARD, rows[i].text);
        c.captures[0].grad = 1, c.p.flags |= rows[i].flags;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        if (g.exact != rows[i].exact || out.family != rows[i].family || g.has_scatter != rows[i].scatter ||
            g.grad_diagonal != rows[i].diagonal)
            T_FAIL("%s: exact %u, %s, scatter %d, diagonal %d\n", rows[i].text, g.exact,
                   fxa__cu_family_name(out.family), g.has_scatter, g.grad_diagonal);
        fxa__cuda_program_free(&g);
    }
}

/* Its keys are fetched before the kernels, which then know nothing of pages: those of any size by the best family. */
TEST(pages_in_the_backward_pass) {
    for (uint32_t size = 1; size < 300; size += 99) {
        choice_case c;
        fxa__cu_choice out;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, FXA_BACKWARD, NULL);
        c.p.flags |= FXA_PAGED, c.p.page_size = size, c.p.n_pages = 7;
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        T_INT(out.family, FXA__CU_SM90);
        T_CHECK(!out.paged && out.staged && (out.units & UNIT(PAGES)));
    }
}

/* TMA counts to 2^40 bytes. */
TEST(strides_beyond_tma_are_for_sm80) {
    for (int i = 0; i < 2; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, FXA_FORWARD, NULL);
        c.p.k.layout = FXA_LAYOUT_STRIDED;
        c.p.k.stride[0] = (INT64_C(1) << 39) - (i ? 0 : 8);
        c.p.k.stride[1] = 500 * 64, c.p.k.stride[2] = 64, c.p.k.stride[3] = 1;
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        T_INT(out.family, i ? FXA__CU_SM80 : FXA__CU_SM90);
    }
}

/* Rows of a KV head, and how many of them a CTA takes. */
TEST(decoding_takes_few_rows) {
    static const struct {
        int64_t sq, group, d, dv;
        int32_t tiles;
    } cases[] = {{1, 8, 128, 128, 1},  {1, 9, 64, 64, 2},  {4, 8, 128, 128, 4}, {16, 8, 128, 128, 4},
                 {17, 8, 128, 128, 0}, {4, 8, 128, 64, 0}, {2, 4, 256, 256, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, FXA_FORWARD, NULL);
        c.p.hkv = 2, c.p.hq = 2 * cases[i].group, c.p.sq = cases[i].sq, c.p.d = cases[i].d, c.p.dv = cases[i].dv;
        T_INT(choice_end(&c, &choice_hopper, &out, NULL, &err), FXA_OK);
        T_INT(out.row_tiles, cases[i].tiles);
    }
}

/* ---- Promises ---------------------------------------------------------------------------------------------------- */

/* Whether the scale may go into the unit, whether loads are words, which tensor is read with the tiles. */
TEST(promises_to_the_text) {
    static const struct {
        const char *text;
        int64_t last; /* size of the last axis of the first tensor */
        bool plain, words;
        int32_t dense;
    } cases[] = {
        {"score = score", 0, true, true, -1},
        {"score = 2.5 * score", 0, true, true, -1},
        {"score = -2.5 * score", 0, false, true, -1},
        {"score = score * -1", 0, false, true, -1},
        {"param x : float\nscore = score + x", 0, true, true, -1},
        {"param x : float\nscore = score * x", 0, false, true, -1},
        {"param x : float\nscore = x * tanh(score / x)", 0, false, true, -1},
        {"param x : float\nscore = score / exp(x)", 0, false, true, -1},
        {"param w : int\nmask = q - k < w", 0, true, true, -1},
        {"tensor t : i32[1]\nmask = t[q] == t[k]", 512, true, true, -1},
        {"tensor t : i32[1]\nmask = t[q] == t[k]", 400, true, false, -1},
        {"tensor t : i32[1]\nmask = t[q + 1] == 0", 8, true, true, -1},
        {"tensor t : bf16[2]\nscore = score + t[q, k]", 512, true, true, 0},
        {"tensor t : bf16[2]\nscore = score + t[q, k]", 500, true, true, -1}, /* rows of 1000 bytes */
        {"tensor t : bf16[2]\nscore = score + t[q, k]", 496, true, false, -1},
        {"tensor t : f16[2]\nscore = score + t[q, k]", 512, true, true, -1},
        {"tensor t : bf16[2]\nscore = score + t[k, q]", 512, true, true, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa__cuda_program g;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, FXA_FORWARD, cases[i].text);
        if (c.p.n_captures) c.captures[0].size[fxa_program_tensor(c.program, 0).rank - 1] = cases[i].last;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        if (out.plain != cases[i].plain || out.words != cases[i].words || out.dense != cases[i].dense)
            T_FAIL("%s, %lld: plain %d, words %d, dense %d\n", cases[i].text, (long long)cases[i].last, out.plain,
                   out.words, (int)out.dense);
        if (cases[i].plain) T_CHECK(g.factor < 0 || fxa__cu_factor_is_positive(&g));
        if (strstr(cases[i].text, "t[k, q]")) T_CHECK(g.dense < 0); /* not in the order that tiles have */
        fxa__cuda_program_free(&g);
    }
}

/* A text that is made once more counts on no size that nobody looked at. */
TEST(indices_are_guarded_where_tensors_are_small) {
    static const char *const texts[] = {"tensor t : f32[1]\nscore = score + t[h]",
                                        "tensor t : f32[1]\nscore = -2.5 * (score * t[h])",
                                        "tensor t : f32[1]\nscore = 2.5 * (tanh(score) * t[h] / t[h])",
                                        "tensor t : f32[1]\nscore = -2.5 * (tanh(score) * t[h] / t[h])"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int64_t size = 1; size <= 4; size += 3) {
            choice_case c;
            fxa__cu_choice out;
            fxa__cuda_program g;
            fxa_error err = {.status = FXA_OK};
            choice_start(&c, FXA_FORWARD, texts[i]);
            c.captures[0].size[0] = size;
            T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
            if (size < 4 && g.least[0][0]) T_FAIL("%s: t has to have one for each head\n", texts[i]);
            fxa__write_bytes(&g.text, "", 1);
            T_CHECK(strstr((const char *)g.text.data, "a.tensor[0]")); /* 0 / 0 is no 1 */
            fxa__cuda_program_free(&g);
        }
}

/* The caller's backward program beside the score program: what both capture has a place of its own. */
TEST(backward_programs_of_the_caller) {
    static const char text[] = "param x : float\ntensor t : f32[1]\nscore = x * tanh(score / x) + t[k]";
    static const char back[] = "param x : float\ntensor t : f32[1]\ndscore = x * dscore * t[k] + 0.5 * dscore";
    choice_case c;
    fxa__cu_choice out;
    fxa__cuda_program g;
    fxa_program *own = NULL;
    fxa_capture t = {.size = {512}};
    fxa_error err = {.status = FXA_OK};
    T_OK(own_parse(FXA_PROGRAM_BPROP, back, strlen(back), &own, &err));
    choice_start(&c, FXA_BACKWARD, text);
    c.p.bprop = own, c.p.bprop_captures = &t, c.p.n_bprop_captures = 1;
    c.p.map_q.kind = FXA_MAP_TABLE; /* which nothing reads */
    T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
    T_INT(out.family, FXA__CU_SM80);
    T_CHECK(g.has_own && !g.has_slope && !out.plain && g.program->n_tensors == 2);
    T_INT(fxa__cuda_own_tensor(g.program->tensors[0].name), -1);
    T_INT(fxa__cuda_own_tensor(g.program->tensors[1].name), 0);
    int from[2] = {0, 0};
    for (int32_t i = 0; i < g.program->n_params; i++)
        from[0] += g.params[i].from == 0, from[1] += g.params[i].from == FXA__CUDA_OWN;
    T_CHECK(from[0] == 1 && from[1] == 1);
    fxa__cuda_program_free(&g);
    fxa_program_destroy(own);
}

/* Its tensors have no size among those of the score program: their indices are guarded, whichever axis is known. */
TEST(indices_of_backward_programs_are_guarded) {
    static const char *const texts[] = {"score = 2.0 * tanh(score)", "tensor t : f32[2]\nscore = score + t[k, h]"};
    static const char back[] = "tensor t : f32[2]\ndscore = dscore * t[k, h]";
    fxa_program *own = NULL;
    fxa_error err = {.status = FXA_OK};
    T_OK(own_parse(FXA_PROGRAM_BPROP, back, strlen(back), &own, &err));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa__cuda_program g;
        fxa_capture t = {.size = {512, 1}};
        choice_start(&c, FXA_BACKWARD, texts[i]);
        c.p.bprop = own, c.p.bprop_captures = &t, c.p.n_bprop_captures = 1;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_INT(g.program->n_tensors, (int)i + 1);
        T_INT(g.least[i][0], 0);
        T_INT(g.least[i][1], 0);
        fxa__cuda_program_free(&g);
    }
    fxa_program_destroy(own);
}

/* Conditions on the score are a part of the value, and tiles go by the others. */
TEST(masks_may_read_the_score) {
    static const char *const texts[] = {"mask = score > 0", "mask = k <= q && score > 0",
                                        "score = tanh(score)\nmask = (score > 0 && k <= q) && q - k < 9"};
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa__cuda_program g;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, i % 2 ? FXA_BACKWARD : FXA_FORWARD, texts[i / 2]);
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_CHECK(g.has_value && g.has_mask == (i > 1) && !(g.mask_inputs & 1u << FXA_INPUT_SCORE));
        T_INT(out.family, FXA__CU_SM90);
        fxa__cuda_program_free(&g);
    }
}

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static void choice_key(choice_case *c, uint8_t out[1 << 16], size_t *size, double numbers[FXA__NUMBERS]) {
    fxa__cu_self self = choice_hopper;
    fxa__problem *p = NULL;
    fxa__writer w = {.host = fxa__context_host(ctx)};
    fxa_error err;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &c->p, &p, &err));
    fxa__engine_cuda.key(&self, p, &w);
    T_OK(fxa__engine_cuda.numbers(&self, p, numbers, &err));
    T_CHECK(!w.failed && w.size < 1 << 16);
    memcpy(out, w.data, w.size);
    *size = w.size;
    fxa__writer_free(&w);
    fxa__problem_release(p);
    fxa_program_destroy(c->program);
}

static void key_length(fxa_problem *p) { p->sq = 77, p->sk = 1000, p->b = 5; }
static void key_heads(fxa_problem *p) { p->hq = 12, p->hkv = 3; }
static void key_strides(fxa_problem *p) { p->k.layout = FXA_LAYOUT_BSHD; }
static void key_columns(fxa_problem *p) { p->d = p->dv = 56; }
static void key_more_columns(fxa_problem *p) { p->d = p->dv = 72; }
static void key_dtype(fxa_problem *p) { p->q.dtype = FXA_F16; }
static void key_lengths(fxa_problem *p) { p->flags |= FXA_PADDING; }
static void key_dropout(fxa_problem *p) { p->flags |= FXA_DROPOUT, p->dropout_p = 0.5; }
static void key_mask(fxa_problem *p) { p->flags |= FXA_CAUSAL; }
static void key_nothing(fxa_problem *p) { (void)p; }

TEST(keys_are_what_code_depends_on) {
    static const char text[] = "score = 2.5 * tanh(score / 2.5)", other[] = "score = 7.5 * tanh(score / 7.5)";
    static const struct {
        void (*make)(fxa_problem *p);
        const char *text;
        bool same;
    } cases[] = {{key_nothing, text, true},
                 {key_nothing, other, true},
                 {key_length, text, true},
                 {key_heads, text, true},
                 {key_strides, text, true},
                 {key_columns, text, true},
                 {key_more_columns, text, false},
                 {key_dtype, text, false},
                 {key_lengths, text, false},
                 {key_dropout, text, false},
                 {key_mask, text, false},
                 {key_nothing, "score = -2.5 * tanh(score / 2.5)", false},
                 {key_nothing, "score = 2.5 * tanh(score)", false}};
    static uint8_t want[1 << 16], got[1 << 16];
    double numbers[FXA__NUMBERS] = {0}, others[FXA__NUMBERS] = {0};
    size_t n = 0, m = 0;
    choice_case c;
    choice_start(&c, FXA_FORWARD, text);
    choice_key(&c, want, &n, numbers);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_start(&c, FXA_FORWARD, cases[i].text);
        cases[i].make(&c.p);
        choice_key(&c, got, &m, others);
        if ((n == m && memcmp(want, got, n) == 0) != cases[i].same) T_FAIL("case %zu: key\n", i);
        if (cases[i].text == other) T_CHECK(memcmp(numbers, others, sizeof numbers) != 0);
    }
}

/* Sums of two params may be made by the same text: where they go is in the code. */
TEST(keys_tell_gradients_apart) {
    static const char text[] = "param x : float\nparam y : float\nscore = score + x + y";
    static uint8_t one[1 << 16], two[1 << 16];
    double numbers[FXA__NUMBERS] = {0};
    size_t n = 0, m = 0;
    choice_case c;
    choice_start(&c, FXA_BACKWARD, text);
    c.p.param_grads = 1;
    choice_key(&c, one, &n, numbers);
    choice_start(&c, FXA_BACKWARD, text);
    c.p.param_grads = 2;
    choice_key(&c, two, &m, numbers);
    T_CHECK(n != m || memcmp(one, two, n) != 0);
}

/* Captured tensors are found by their places: all of them stay, read or not, and places of gradients read params where
 * the others do. */
TEST(tensors_keep_their_places) {
    static const char *const texts[] = {
        "tensor a : f32[1]\ntensor z : f32[1]\nscore = score + z[k]",
        "tensor a : f32[1]\ntensor z : f32[1]\nscore = k <= q ? score + z[k] : -inf",
        "tensor a : f32[1]\ntensor z : f32[1]\nscore = k <= q ? score + z[k] : -inf\nmask = q < 0 && a[q] > 0.0",
    };
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa__cuda_program g;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, i % 2 ? FXA_BACKWARD : FXA_FORWARD, texts[i / 2]);
        T_INT(c.p.n_captures, 2);
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_INT(g.program->n_tensors, 2);
        if (g.program->n_tensors == 2) T_STR(g.program->tensors[1].name, "z");
        fxa__cuda_program_free(&g);
    }
}

TEST(places_of_gradients_read_params_in_memory) {
    static const char *const texts[] = {"param o : int\ntensor t : f32[1]\nscore = score + t[q - k + o]",
                                        "param o : int\ntensor t : f32[1]\nscore = score + t[h + o]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        choice_case c;
        fxa__cu_choice out;
        fxa__cuda_program g;
        fxa_error err = {.status = FXA_OK};
        choice_start(&c, FXA_BACKWARD, texts[i]);
        c.captures[0].grad = 1, c.p.flags |= FXA_SCALARS_IN_MEMORY;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_CHECK(g.grad_diagonal || g.n_sums);
        fxa__write_bytes(&g.text, "", 1);
        T_CHECK(strstr((const char *)g.text.data, "a.i[") == NULL); /* what the host has there is nobody's */
        fxa__cuda_program_free(&g);
    }
}

/* Sums that have no room are scattered, which params cannot be. */
TEST(params_have_room_among_sums) {
    char text[512] = "param x : float\ntensor t : f32[2]\nscore = score + x";
    choice_case c;
    fxa__cu_choice out;
    fxa__cuda_program g;
    fxa_error err = {.status = FXA_OK};
    bool param = false;
    for (int i = 0; i <= FXA__CUDA_SUMS; i++) (void)sprintf(text + strlen(text), " + t[h, %d]", i);
    choice_start(&c, FXA_BACKWARD, text);
    c.captures[0].grad = 1, c.p.param_grads = 1;
    T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
    T_INT(g.n_sums, FXA__CUDA_SUMS);
    T_CHECK(g.has_scatter);
    for (int32_t i = 0; i < g.n_sums; i++) param |= g.program->outputs[g.sums[i]].kind == FXA__OUT_DPARAM;
    T_CHECK(param);
    fxa__cuda_program_free(&g);
}

/* ---- Costs ------------------------------------------------------------------------------------------------------- */

/* Who was ahead on an H200 (docs/cuda.md, figures), by what a problem has. */
TEST(costs_follow_the_figures) {
    static const struct {
        const char *text;
        int64_t b, hq, hkv, sq, sk, d;
        uint32_t flags;
        bool cuda[2]; /* by pass: ahead */
    } rows[] = {
        {NULL, 4, 16, 16, 4096, 4096, 128, 0, {1, 1}},
        {NULL, 4, 16, 16, 4096, 4096, 128, FXA_CAUSAL, {1, 1}},
        {"score = 30 * tanh(score / 30)", 4, 16, 16, 4096, 4096, 128, 0, {1, 1}},
        {"score = 30 * tanh(score / 30)", 4, 32, 32, 4096, 4096, 64, 0, {1, 1}},
        {NULL, 4, 16, 16, 4096, 4096, 128, FXA_DETERMINISTIC, {1, 0}},
        {"score = 30 * tanh(score / 30)\ntensor ids : i32[1]\nmask = ids[q] == ids[k]",
         4,
         32,
         32,
         4096,
         4096,
         64,
         0,
         {1, 1}},
        {"score = 30 * tanh(score / 30)\nmask = k % 64 < 32", 4, 32, 32, 4096, 4096, 64, 0, {1, 1}},
        {NULL, 1, 64, 8, 1, 1024, 128, 0, {0, 1}},
        {NULL, 32, 64, 8, 1, 8192, 128, 0, {0, 1}},
        {NULL, 4, 64, 8, 4, 131072, 128, 0, {1, 1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int pass = 0; pass < 2; pass++) {
            choice_case c;
            fxa_capture ids = {.size = {4096}};
            fxa__problem *p = NULL;
            fxa__cu_choice choice;
            fxa__cuda_program program;
            fxa_error err;
            choice_start(&c, (fxa_pass)pass, rows[i].text);
            c.p.b = rows[i].b, c.p.hq = rows[i].hq, c.p.hkv = rows[i].hkv, c.p.sq = rows[i].sq, c.p.sk = rows[i].sk;
            c.p.d = rows[i].d, c.p.flags |= rows[i].flags;
            if (rows[i].text && strstr(rows[i].text, "ids")) c.p.captures = &ids, c.p.n_captures = 1;
            T_OK(fxa__problem_create(fxa__context_host(ctx), &c.p, &p, &err));
            T_OK(fxa__cu_choose(&choice_hopper, p, &choice, &program, &err));
            double cuda = fxa__cu_cost(132, &choice, p), cudnn = fxa__dnn_cost(132, p);
            if (!(cuda > 0 && cudnn > 0) || (cuda < cudnn) != rows[i].cuda[pass])
                T_FAIL("row %zu, pass %d: %g and %g s\n", i, pass, cuda, cudnn);
            fxa__cuda_program_free(&program);
            fxa__problem_release(p);
            fxa_program_destroy(c.program);
        }
}

/* On an H200 these kernels were ahead of cuDNN's at all head dimensions (docs/cuda-kernels.md, docs/gpu.md); those
 * without matrix instructions are not. */
TEST(costs_order_engines_as_they_were_measured) {
    static const int32_t columns[] = {64, 96, 128, 192, 256};
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
            choice_case c;
            fxa__problem *p = NULL;
            fxa_error err;
            fxa__cu_choice choice = {.family = FXA__CU_SM90, .d = columns[i], .dv = columns[i]};
            choice_start(&c, (fxa_pass)pass, NULL);
            c.p.d = columns[i], c.p.sq = c.p.sk = 4096;
            T_OK(fxa__problem_create(fxa__context_host(ctx), &c.p, &p, &err));
            double cuda = fxa__cu_cost(132, &choice, p), cudnn = fxa__dnn_cost(132, p);
            if (!(cuda > 0 && cuda < cudnn))
                T_FAIL("pass %d, %d columns: %g and %g s\n", pass, columns[i], cuda, cudnn);
            T_CHECK(fxa__cu_cost(66, &choice, p) > cuda);
            choice.family = FXA__CU_SIMT;
            T_CHECK(fxa__cu_cost(132, &choice, p) > cudnn);
            fxa__problem_release(p);
        }
}

T_MAIN
