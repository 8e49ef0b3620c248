/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks by int tables in the cuda engine, compared with the reference: masks for which the kernels skip tiles by
 * precomputed tables, and masks for which they cannot. Runs on a GPU or the GPU emulator (tests/model). FXA_TEST_SHAPES
 * is the number of shapes of each mask, FXA_TEST_ENGINE=cpu needs no GPU.
 */
#include "support/conformance/conf_frame.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda, &fxa__engine_cpu, &fxa__engine_ref};

enum { TABLES_SECONDS = 120, TABLES_SHAPES = 6 };

/* Masks by tensors of ints: indexed by q, by k, by blocks, out of bounds; with more tensors than there are tables for;
 * and masks that no table suits. */
static const char *const tables_masks[] = {
    "tensor t : i32[1]\nmask = k < 30 * t[q]",
    "tensor t : i16[2]\nmask = k <= q + t[b, k // 32] * 8",
    "tensor t : u8[2]\ntensor s : i64[1]\nmask = t[h, q // 64] == s[k // 64] || k == q",
    "tensor t : i8[1]\nmask = t[q - k] > 3",
    "tensor t : bool[1]\nmask = t[k] && k <= q + 40",
    "tensor t : i32[2]\nmask = t[q // 16, k // 16] > 2",
    "tensor t : i64[1]\nmask = t[q] >= t[k] && t[k + 5] < 100",
    ("tensor a : i32[1]\ntensor c : i32[1]\ntensor d : i16[1]\ntensor e : i8[1]\ntensor f : i32[1]\n"
     "mask = a[q] <= c[k] - 9 || d[q] == e[k] && k % 2 == 0 || f[k] > 11"),
    "tensor t : i32[1]\nmask = k >= t[b] * 10 && k < t[-1 - b] * 40",
    "tensor t : i32[1]\nmask = t[min(k, 70)] < 4 && t[max(q - 8, 0)] > 0",
    "tensor t : i32[1]\nmask = t[k // 64] != t[q // 64] || t[k] == 2",
    "tensor t : i64[2]\nmask = t[b, q] == t[b, k] && k <= q",
    "tensor t : i32[2]\nmask = any(i, 6, t[q // 32, i] == k // 16) || k == q", /* its range: an out-of-line function */
};
enum { TABLES_MASKS = sizeof tables_masks / sizeof *tables_masks };

/* Document masks: tensors with an element per position, which kernels read as 32-bit ints or as 64-bit elements. */
static const char *const tables_documents[] = {
    "tensor t : i64[2]\nmask = t[b, q] == t[b, k]",
    "tensor t : i64[1]\nmask = t[q] == t[k] && k <= q",
    "tensor t : i32[3]\nmask = t[b, h, q] == t[b, h, k]",
    "tensor t : u8[1]\ntensor s : i64[1]\nmask = t[q] <= s[k]",
};
enum { TABLES_DOCUMENTS = sizeof tables_documents / sizeof *tables_documents };

static void tables_resize(conf_case *c, const attn_shape *s, uint64_t *rng) {
    int64_t longest = s->sq > s->sk ? s->sq : s->sk, n[3] = {s->b, s->hq, longest};
    for (size_t i = 0; i < c->n_tensors; i++) {
        n[1] = c->tensor[i].rank == 3 ? s->hq : longest;
        conf_resize(c, i, c->tensor[i].rank == 1 ? n + 1 : n, rng);
    }
}

/* Runs the mask with index `number` in tables_masks followed by tables_documents. */
static bool tables_masked(fxa_context *ctx, conf_frame *f, int number, int i) {
    static conf_case c;
    static const uint32_t some[] = {0, ATTN_PADDING, ATTN_VARLEN, ATTN_GQA};
    uint64_t rng = t_seed() * 977 + (uint64_t)(number * 64 + i);
    bool documents = number >= TABLES_MASKS, best = !frame_is_set("FXA_CUDA_FAMILY");
    uint32_t features = some[i % 4]; /* lengths need another compilation: half of the shapes in other families */
    if (!best && number % 2) features &= (uint32_t)ATTN_GQA;
    const char *text = documents ? tables_documents[number - TABLES_MASKS] : tables_masks[number];
    attn_shape s = {.b = attn_int(&rng, 1, 2), .hkv = attn_int(&rng, 1, 2), .d = 64, .dv = 64, .window = 40};
    s.hq = i % 4 == 3 ? 2 * s.hkv : s.hkv, s.sq = frame_length(&rng), s.sk = frame_length(&rng);
    if (i % 3 == 0) s.sk = s.sq;
    if (i % 6 == 5) s.sq = 3, s.sk = attn_int(&rng, 500, 1500);
    fxa_program *program = NULL;
    fxa_error err;
    char what[400];
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    if (!program || !conf_draw(&c, ctx, features, &s, program, "masks", NULL, &f->all, &rng)) return false;
    if (documents) tables_resize(&c, &s, &rng);
    c.base.data.problem.alignment = 16, c.base.data.problem.flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    /* the flag needs another compilation */
    if (i % 5 == 4 && number % 3 == 2) c.base.data.backward_flags |= FXA_DETERMINISTIC;
    bool ok = frame_passes(f, &c);
    conf_describe(&c, what, sizeof what);
    if (!ok) T_FAIL("shape %d, %s\n    %s\n    %s\n    %s | %s\n", i, text, what, c.why, f->detail[0], f->detail[1]);
    conf_free(&c);
    return ok;
}

static void tables_check(int from, int end) {
    const char *shapes = getenv("FXA_TEST_SHAPES");
    t_ctx *ctx = NULL;
    conf_frame f;
    const char *missing = frame_begin(&f, TABLES_SECONDS, &ctx);
    if (missing) T_SKIP(missing);
    setenv("FXA_TEST_DTYPE", "bf16", 1);
    for (int number = from; number < end; number++)
        for (int i = 0; i < (shapes ? atoi(shapes) : TABLES_SHAPES) && tables_masked(ctx, &f, number, i); i++) {}
    frame_print(&f);
}

/* One test compiles for half a minute, so the tests run in parallel processes. */
TEST(masks_of_tables_0) { tables_check(0, 3); }
TEST(masks_of_tables_3) { tables_check(3, 6); }
TEST(masks_of_tables_6) { tables_check(6, 9); }
TEST(masks_of_tables_9) { tables_check(9, TABLES_MASKS); }
TEST(masks_of_documents) { tables_check(TABLES_MASKS, TABLES_MASKS + TABLES_DOCUMENTS); }

T_MAIN
