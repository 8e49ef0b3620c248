/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding with the cuda engine: a batch entry has the same bits in any batch; a workspace with any contents serves
 * different problems in turn; CTAs have as many work items as possible, some of which are recomputed because V is not
 * finite where weights are 0. Also tests lengths, offsets and pages with any values, in every pass. Runs on a GPU or
 * the GPU emulator (tests/model).
 */
#define DEVICE_CUDA 1 /* selects the engine in device_fixture.h */
#include "device_driver.h"
#include "device_fixture.h"

#include <math.h>

enum { DECODE_MOST = 8 };

typedef struct decode_problem {
    int64_t b, hq, hkv, sq, sk, d;
    const char *text;
    bool lengths, backward;
} decode_problem;

/* Returns a number of keys for batch entry b: 0, 1, a tile and its neighbours, or all. */
static int32_t decode_length(const decode_problem *p, int64_t b) {
    const int64_t some[] = {p->sk, 0, 128, 1, p->sk - 1, 129, 127, p->sk / 2};
    return (int32_t)some[b % 8];
}

static bool decode_make(attn_data *x, fxa_context *ctx, const decode_problem *p, int32_t *lengths) {
    attn_spec s = {.dtype = FXA_BF16, .flags = FXA_RETURN_LSE, .b = p->b, .hq = p->hq, .hkv = p->hkv, .sq = p->sq};
    s.sk = p->sk, s.d = p->d, s.text = p->text;
    if (!device_data_make(x, ctx, &s)) return false;
    if (!p->lengths) return true;
    for (int64_t b = 0; b < p->b; b++) lengths[b] = decode_length(p, b);
    x->problem.flags |= FXA_PADDING;
    x->ints[FXA_SLOT_K_LENGTHS] = lengths;
    return true;
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

static size_t decode_entry_bytes(const attn_tensor *t) { return (size_t)t->stride[0] * fxa_dtype_size(t->dtype); }

/* Runs one batch entry as a batch of its own. */
static fxa_status decode_alone(attn_data *x, fxa_context *ctx, int64_t b, fxa_pass pass, fxa_error *err) {
    attn_call call;
    device_call_make(x, pass, &call);
    call.p.b = 1;
    for (int i = 0; i < ATTN_SLOTS; i++)
        if (call.args.slot[i]) call.args.slot[i] = (char *)call.args.slot[i] + (size_t)b * decode_entry_bytes(&x->t[i]);
    if (call.args.slot[FXA_SLOT_K_LENGTHS])
        call.args.slot[FXA_SLOT_K_LENGTHS] = (int32_t *)call.args.slot[FXA_SLOT_K_LENGTHS] + b;
    return fxa_attention(ctx, &call.p, &call.args, err);
}

static void decode_batch(fxa_context *ctx, const decode_problem *p) {
    int32_t lengths[64];
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    attn_owned x = {0};
    fxa_error err;
    T_REQUIRE(decode_make(&x, ctx, p, lengths));
    T_OK(device_data_run(&x, ctx, FXA_FORWARD, &err));
    attn_keep(&x, FXA_FORWARD, &want);
    for (int64_t b = 0; b < p->b && err.status == FXA_OK; b++) T_OK(decode_alone(&x, ctx, b, FXA_FORWARD, &err));
    const char *other = attn_other_bits(&x, FXA_FORWARD, &want);
    if (other)
        T_FAIL("%s of b=%d hq=%d hkv=%d sq=%d sk=%d d=%d has other bits in a batch\n", other, (int)p->b, (int)p->hq,
               (int)p->hkv, (int)p->sq, (int)p->sk, (int)p->d);
}

static const char decode_causal[] = "mask = k <= q + 300", decode_cap[] = "score = 20 * tanh(score / 20)";

CONTEXT_TEST(entries_have_their_bits_in_any_batch) {
    NEEDS_DEVICE;
    static const decode_problem problems[] = {
        {3, 4, 4, 1, 2500, 64, "", false, false},
        {4, 8, 2, 1, 700, 64, "", true, false},
        {3, 8, 1, 2, 2300, 64, decode_causal, true, false},
        {2, 4, 1, 20, 4200, 64, decode_causal, false, false},
        {3, 2, 2, 130, 200, 64, decode_causal, true, false},
        {5, 4, 4, 3, 2300, 32, decode_cap, true, false},
        /* the batch has several splits per work item; single entries use clusters of eight, four or two CTAs */
        {9, 8, 8, 1, 4200, 64, "mask = k <= q + 1500", false, false},
        {2, 16, 16, 1, 4200, 64, decode_causal, true, false},
        {5, 8, 8, 1, 1100, 64, "", true, false},
        /* CTAs take complete batch entries first and split the remaining ones in halves or quarters */
        {20, 8, 8, 1, 2100, 64, "", false, false},
        {20, 8, 8, 1, 4200, 64, "", false, false},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) decode_batch(ctx, &problems[i]);
}

/* ---- One workspace ----------------------------------------------------------------------------------------------- */

/* Returns the number of ints that a run reads from a slot. */
static int64_t decode_ints(const fxa_problem *p, int slot) {
    if (slot == FXA_SLOT_PAGES) return p->b * ((p->sk + p->page_size - 1) / p->page_size);
    return p->b + (slot == FXA_SLOT_CU_Q || slot == FXA_SLOT_CU_K);
}

/* Runs a pass with tensors on the device and the workspace given by the test. */
static void decode_run_at(device *d, attn_data *x, fxa_context *ctx, fxa_pass pass, uintptr_t workspace, size_t most) {
    attn_call call;
    t_plan *plan = NULL;
    fxa_error err;
    uintptr_t at[FXA_SLOT_COUNT] = {0};
    size_t bytes[FXA_SLOT_COUNT] = {0};
    const attn_tensor *t;
    device_call_make(x, pass, &call);
    alarm(DEVICE_SECONDS);
    T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
    T_REQUIRE(plan && fxa_plan_workspace(plan) <= most);
    for (int i = 0; i < FXA_SLOT_COUNT; i++) {
        if (!call.args.slot[i]) continue;
        bytes[i] = sizeof(int32_t) * (size_t)decode_ints(&call.p, i);
        if (i < ATTN_SLOTS) bytes[i] = (size_t)attn_tensor_places(&x->t[i]) * fxa_dtype_size(x->t[i].dtype);
        T_INT(d->more.alloc(&at[i], bytes[i], NULL), 0);
        T_INT(d->gpu.driver.copy_to(at[i], call.args.slot[i], bytes[i], NULL), 0);
        call.args.slot[i] = (void *)at[i];
    }
    call.args.workspace = (void *)workspace, call.args.workspace_size = fxa_plan_workspace(plan);
    if (!call.args.workspace_size) call.args.workspace = NULL;
    T_OK(fxa_plan_run(plan, &call.args, &err));
    for (int i = 0; (t = attn_output(x, pass, i)); i++)
        T_INT(d->gpu.driver.copy_from(t->origin, at[t - x->t], bytes[t - x->t], NULL), 0);
    T_INT(d->gpu.driver.stream_wait(NULL), 0);
    alarm(0);
    for (int i = 0; i < FXA_SLOT_COUNT; i++)
        if (at[i]) T_INT(d->more.give(at[i], NULL), 0);
}

CONTEXT_TEST(problems_of_all_kinds_in_one_workspace) {
    NEEDS_DEVICE;
    static const decode_problem problems[DECODE_MOST] = {
        {2, 2, 1, 1, 4500, 64, "", true, false},
        {1, 8, 1, 1, 9000, 64, "", false, false},
        {1, 2, 2, 130, 200, 64, decode_causal, true, true},
        {2, 4, 1, 20, 4200, 64, decode_causal, true, false},
        {1, 1, 1, 3, 2100, 32, decode_cap, false, false},
        {2, 2, 1, 1, 4499, 64, "", true, false},
        {1, 2, 1, 140, 300, 64, "", false, true},
        {2, 8, 2, 1, 2200, 64, decode_causal, true, false},
    };
    enum { ROOM = 8 << 20 };
    static int32_t lengths[DECODE_MOST][8];
    attn_data x[DECODE_MOST];
    attn_kept want[DECODE_MOST][2] = {{{{NULL}}}};
    device d;
    uintptr_t workspace = 0;
    T_REQUIRE(device_open(&d));
    T_INT(d.more.alloc(&workspace, ROOM, NULL), 0);
    T_INT(d.gpu.driver.fill(workspace, 0xffffffffu, ROOM / 4, NULL), 0);
    for (int i = 0; i < DECODE_MOST; i++) {
        T_REQUIRE(decode_make(&x[i], ctx, &problems[i], lengths[i]));
        T_OK(device_data_run(&x[i], ctx, FXA_FORWARD, &err));
        if (problems[i].backward) T_OK(device_data_run(&x[i], ctx, FXA_BACKWARD, &err));
        if (problems[i].backward) attn_keep(&x[i], FXA_BACKWARD, &want[i][1]);
        if (!problems[i].backward) attn_keep(&x[i], FXA_FORWARD, &want[i][0]);
    }
    for (int run = 0; run < 3 * DECODE_MOST; run++) {
        int i = run * 5 % DECODE_MOST;
        fxa_pass pass = problems[i].backward ? FXA_BACKWARD : FXA_FORWARD;
        decode_run_at(&d, &x[i], ctx, pass, workspace, ROOM);
        const char *other = attn_other_bits(&x[i], pass, &want[i][pass]);
        if (other) T_FAIL("run %d, problem %d: %s has other bits\n", run, i, other);
    }
    for (int i = 0; i < DECODE_MOST; i++) attn_drop(&want[i][0]), attn_drop(&want[i][1]), attn_data_free(&x[i]);
    T_INT(d.more.give(workspace, NULL), 0);
    device_close(&d);
}

/* Lengths in device memory are clamped to the number of rows or keys, in every pass. */
CONTEXT_TEST(lengths_of_any_value) {
    NEEDS_DEVICE;
    static const decode_problem problems[] = {
        {4, 4, 2, 1, 600, 64, decode_causal, true, false},
        {4, 1, 1, 140, 200, 64, "", true, false},
        {4, 2, 1, 70, 200, 64, decode_causal, true, true},
    };
    enum { ROOM = 4 << 20 };
    device d;
    uintptr_t workspace = 0;
    T_REQUIRE(device_open(&d));
    T_INT(d.more.alloc(&workspace, ROOM, NULL), 0);
    T_INT(d.gpu.driver.fill(workspace, 0xffffffffu, ROOM / 4, NULL), 0);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const decode_problem *p = &problems[i];
        const int32_t most = (int32_t)p->sk, wild[] = {-7, INT32_MAX, INT32_MIN, most + 1}, tame[] = {0, most, 0, most};
        fxa_pass pass = p->backward ? FXA_BACKWARD : FXA_FORWARD;
        int32_t lengths[4];
        T_ENDED(attn_drop) attn_kept want = {{NULL}};
        attn_owned x = {0};
        T_REQUIRE(decode_make(&x, ctx, p, lengths));
        memcpy(lengths, tame, sizeof lengths);
        if (p->backward) T_OK(device_data_run(&x, ctx, FXA_FORWARD, &err));
        for (int run = 0; run < 2; run++) {
            memcpy(lengths, run ? wild : tame, sizeof lengths);
            decode_run_at(&d, &x, ctx, pass, workspace, ROOM);
            const char *other = attn_other_bits(&x, pass, &want);
            if (other) T_FAIL("problem %zu: %s has other bits\n", i, other);
        }
    }
    T_INT(d.more.give(workspace, NULL), 0);
    device_close(&d);
}

/* Runs both passes with valid ints (`tame`), then with ints that the device clamps to these: the results must have the
 * same bits. Then runs with arbitrary ints: the run must end and, as the emulator and memcheck show, access no other
 * memory. */
static void decode_any_ints(attn_data *x, fxa_context *ctx, int slot, const int32_t *tame, const int32_t *wild) {
    enum { ROOM = 4 << 20, MOST = 16 };
    const int32_t some[] = {-1, 0, 1, 70, 131, 200, INT32_MAX, INT32_MIN, INT32_MAX - 7, -70};
    const size_t n = (size_t)decode_ints(&x->problem, slot);
    attn_kept want[2] = {{{NULL}}, {{NULL}}};
    t_rng rng = {t_seed()};
    int32_t now[MOST];
    device d;
    uintptr_t workspace = 0;
    T_REQUIRE(n <= MOST && device_open(&d));
    T_INT(d.more.alloc(&workspace, ROOM, NULL), 0);
    T_INT(d.gpu.driver.fill(workspace, 0xffffffffu, ROOM / 4, NULL), 0);
    x->ints[slot] = now;
    if (slot == FXA_SLOT_CU_Q) x->ints[FXA_SLOT_CU_K] = now;
    for (int run = 0; run < 8; run++) {
        if (run >= 2) x->backward_flags ^= FXA_DETERMINISTIC; /* other kernels */
        for (size_t i = 0; i < n; i++)
            now[i] = run == 0 ? tame[i] : run == 1 ? wild[i] : some[t_int(&rng, 0, sizeof some / sizeof *some - 1)];
        for (int pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
            decode_run_at(&d, x, ctx, (fxa_pass)pass, workspace, ROOM);
            const char *other = run < 2 ? attn_other_bits(x, (fxa_pass)pass, &want[pass]) : NULL;
            if (other) T_FAIL("%s: %s has other bits\n", fxa_slot_name((fxa_slot)slot), other);
        }
    }
    attn_drop(&want[0]), attn_drop(&want[1]);
    T_INT(d.more.give(workspace, NULL), 0);
    device_close(&d);
}

CONTEXT_TEST(offsets_of_any_value) {
    NEEDS_DEVICE;
    static const int32_t tame[] = {0, 0, 131, 132, 340}, wild[] = {-5, INT32_MIN, 131, 132, INT32_MAX};
    attn_spec s = {
        .dtype = FXA_BF16, .flags = FXA_RETURN_LSE, .b = 1, .hq = 2, .hkv = 1, .sq = 340, .sk = 340, .d = 64};
    attn_owned x = {0};
    s.text = "mask = k <= q";
    T_REQUIRE(device_data_make(&x, ctx, &s));
    x.problem.flags |= FXA_VARLEN, x.problem.b = 4, x.problem.sq = x.problem.sk = 210;
    x.problem.total_q = x.problem.total_k = 340;
    decode_any_ints(&x, ctx, FXA_SLOT_CU_Q, tame, wild);
}

CONTEXT_TEST(pages_of_any_value) {
    NEEDS_DEVICE;
    static const int32_t tame[] = {0, 4, 3, 0, 4, 2, 4, 1}, wild[] = {-1, 5, 3, INT32_MIN, INT32_MAX, 2, 6, 1};
    attn_spec s = {.dtype = FXA_BF16, .flags = FXA_RETURN_LSE, .b = 2, .hq = 2, .hkv = 1, .sq = 70, .sk = 230, .d = 64};
    attn_owned x = {0};
    s.text = "mask = k <= q + 160", s.page_size = 64, s.n_pages = 5;
    T_REQUIRE(device_data_make(&x, ctx, &s));
    decode_any_ints(&x, ctx, FXA_SLOT_PAGES, tame, wild);
}

/* More key tiles than a row of a tile list holds, none partial: no tile is listed, and nothing uninitialized is read,
 * as the emulator and initcheck show. */
CONTEXT_TEST(a_list_that_is_one_run) {
    NEEDS_DEVICE;
    const decode_problem p = {1, 1, 1, 1, 262272, 32, "mask = k <= q + 300000", false, false};
    attn_owned x = {0};
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    attn_call call;
    T_REQUIRE(decode_make(&x, ctx, &p, NULL));
    attn_call_make(&x, FXA_FORWARD, &call);
    call.p.engine = "ref", call.p.device = FXA_HOST;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    attn_keep(&x, FXA_FORWARD, &want);
    T_OK(device_data_run(&x, ctx, FXA_FORWARD, &err));
    attn_off off = attn_tensor_off(attn_output(&x, FXA_FORWARD, 0), want.memory[0]);
    T_CHECK(!off.odd && off.size > 0 && off.worst <= 3 * 0x1p-8 * off.size); /* O and weights have 8 significant bits */
}

/* Compares the results of the ref engine and of the cuda engine, which must be equal within sums of 8-bit values. */
static void decode_as_ref(attn_data *x, fxa_context *ctx, fxa_pass pass, const char *text) {
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    attn_tensor *t;
    attn_call call;
    fxa_error err;
    attn_call_make(x, pass, &call);
    call.p.engine = "ref", call.p.device = FXA_HOST;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    attn_keep(x, pass, &want);
    T_OK(device_data_run(x, ctx, pass, &err));
    for (int i = 0; (t = attn_output(x, pass, i)); i++) {
        attn_off off = attn_tensor_off(t, want.memory[i]);
        if (off.odd || !(off.size > 0) || !(off.worst <= 4 * 0x1p-8 * off.size))
            T_FAIL("%s of %s: off by %g, %g is the largest, %d are odd\n", t->name, text, off.worst, off.size,
                   (int)off.odd);
    }
}

/* Kernels other than decoding (d_qk != d_v) equal the reference where a list of tiles, along keys or along queries, has
 * masked tiles next to a run of full tiles, and where no full tiles form a run, so that every tile is treated as
 * masked. */
CONTEXT_TEST(lists_with_runs) {
    NEEDS_DEVICE;
    static const struct {
        int64_t sq, sk;
        const char *text;
    } cases[] = {{4, 262500, "mask = k <= q + 262200 && k > 70"},
                 {4, 262500, "mask = k // 256 % 2 == 0 || k < 1000"},
                 {131400, 40, "mask = k <= q && q - k < 131390 || k == 7"},
                 {131400, 40, "mask = q // 256 % 2 == 0 || k < 3"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attn_spec s = {
            .dtype = FXA_BF16, .flags = FXA_RETURN_LSE, .b = 1, .hq = 1, .sq = cases[i].sq, .sk = cases[i].sk};
        attn_owned x = {0};
        s.d = 16, s.dv = 24, s.text = cases[i].text;
        T_REQUIRE(device_data_make(&x, ctx, &s));
        if (i % 2) x.backward_flags &= ~(uint32_t)FXA_DETERMINISTIC; /* the kernel of dK and dV also computes dQ */
        decode_as_ref(&x, ctx, FXA_FORWARD, s.text);
        decode_as_ref(&x, ctx, FXA_BACKWARD, s.text);
    }
}

/* ---- Many shares ------------------------------------------------------------------------------------------------- */

/* Writes non-finite V into some batch entries where the mask is false; the results must equal those for V = 0 there. */
static void decode_poison(attn_data *x, const decode_problem *p, bool poison) {
    static const double odd[] = {INFINITY, -INFINITY, NAN};
    attn_tensor *t = &x->t[FXA_SLOT_V];
    int64_t at[4];
    for (at[0] = 0; at[0] < p->b; at[0]++)
        for (at[1] = 0; at[1] < p->hkv; at[1]++)
            for (at[2] = 3; at[2] < p->sk && (at[0] * p->hkv + at[1]) % 37 == 5; at[2] += 50)
                for (at[3] = 0; at[3] < p->d; at[3]++)
                    attn_tensor_set(t, at, poison ? odd[(at[2] / 50 + at[3]) % 3] : 0);
}

static void decode_many(const decode_problem *p) {
    t_ctx *ctx = t_context();
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    attn_owned x = {0};
    fxa_error err;
    T_REQUIRE(decode_make(&x, ctx, p, NULL));
    decode_poison(&x, p, false);
    T_OK(device_data_run(&x, ctx, FXA_FORWARD, &err));
    attn_keep(&x, FXA_FORWARD, &want);
    decode_poison(&x, p, true);
    T_OK(device_data_run(&x, ctx, FXA_FORWARD, &err));
    const char *other = attn_other_bits(&x, FXA_FORWARD, &want);
    if (other) T_FAIL("%s of b=%d hkv=%d has other bits where V is not finite\n", other, (int)p->b, (int)p->hkv);
}

TEST(shares_that_are_computed_again) {
    NEEDS_DEVICE;
    const char *many = getenv("FXA_TEST_MANY");
    static const char text[] = "mask = k % 50 != 3";
    decode_many(&(decode_problem){40, 4, 4, 1, 256, 32, text, false, false});
    decode_many(&(decode_problem){3, 8, 4, 1, 4200, 64, text, false, false});
    decode_many(&(decode_problem){2, 4, 2, 15, 2400, 64, text, false, false});
    decode_many(&(decode_problem){9, 8, 8, 1, 4200, 64, text, false, false}); /* work items with four splits */
    if (many) decode_many(&(decode_problem){atoi(many), 3, 3, 1, 256, 32, text, false, false});
}

T_MAIN
