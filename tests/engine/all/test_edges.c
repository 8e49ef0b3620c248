/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention at its limits: odd and empty shapes, extreme scores and addresses, and exactly the workspace that a plan
 * requires.
 */
#include "support/oracle/attn_oracle.h"
#include "support/fixtures/whole.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* Compares forward and backward of a softmax without program with the oracle. */
static void whole_against_oracle(int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t sk, int64_t d, int64_t dv) {
    whole w, want;
    int64_t lengths[2][4];
    int32_t at[600], seen[2][4];
    whole_start(&w, NULL, b, hq, hkv, sq, sk, d, dv);
    whole_start(&want, NULL, b, hq, hkv, sq, sk, d, dv);
    for (int i = 0; i < 600; i++) at[i] = i;
    for (int i = 0; i < 4; i++)
        lengths[0][i] = sq, lengths[1][i] = sk, seen[0][i] = (int32_t)sq, seen[1][i] = (int32_t)sk;
    double *max = calloc((size_t)w.n_row + 1, sizeof(double)), sink[64] = {0};
    oracle x = {.b = b, .hq = hq, .hkv = hkv, .sq = sq, .sk = sk, .d = d, .dv = dv, .scale = 0.5};
    x.q_len = lengths[0], x.k_len = lengths[1], x.seen_q = seen[0], x.seen_k = seen[1];
    x.at_b = x.at_h = x.at_q = x.at_k = at;
    x.q = w.q, x.k = w.k, x.v = w.v, x.dout = w.dout, x.dlse = w.dlse, x.o = want.o, x.lse = want.lse, x.max = max;
    x.dq = want.dq, x.dk = want.dk, x.dv_grad = want.dv, x.dsink = sink;
    memset(want.dq, 0, (size_t)w.n_q * sizeof(double));
    memset(want.dk, 0, (size_t)w.n_k * sizeof(double));
    memset(want.dv, 0, (size_t)w.n_v * sizeof(double));
    oracle_forward(&x);
    oracle_backward(&x);
    whole_run(&w, FXA_FORWARD);
    whole_run(&w, FXA_BACKWARD);
    whole_near("O", w.o, want.o, w.n_o, 1e-12);
    whole_near("LSE", w.lse, want.lse, w.n_row, 1e-12);
    whole_near("dQ", w.dq, want.dq, w.n_q, 1e-12);
    whole_near("dK", w.dk, want.dk, w.n_k, 1e-12);
    whole_near("dV", w.dv, want.dv, w.n_v, 1e-12);
    free(max);
    whole_end(&w);
    whole_end(&want);
}

WHOLE(odd_shapes_run) { /* */
    static const int64_t shapes[][7] = {
        {1, 1, 1, 1, 1, 1, 1},    {1, 1, 1, 1, 5, 512, 512}, {2, 7, 1, 3, 5, 3, 1},   {1, 6, 2, 1, 129, 15, 17},
        {1, 9, 3, 17, 1, 1, 512}, {3, 5, 5, 2, 3, 511, 13},  {1, 1, 1, 65, 67, 2, 2}, {1, 12, 4, 1, 1, 80, 96},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int64_t *s = shapes[i];
        whole_against_oracle(s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
    }
}

WHOLE(empty_problems_run) {                                                          /* */
    static const int64_t shapes[][3] = {{0, 3, 4}, {2, 0, 4}, {2, 3, 0}, {0, 0, 0}}; /* b, sq, sk */
    for (int i = 0; i < 4; i++) {
        whole w;
        whole_start(&w, whole_text, shapes[i][0], 2, 1, shapes[i][1], shapes[i][2], 3, 2);
        whole_run(&w, FXA_FORWARD);
        whole_run(&w, FXA_BACKWARD);
        for (int64_t j = 0; j < w.n_o; j++) T_SAME(w.o[j], 0);
        for (int64_t j = 0; j < w.n_row; j++) T_SAME(w.lse[j], -INFINITY);
        for (int64_t j = 0; j < w.n_q; j++) T_SAME(w.dq[j], 0);
        for (int64_t j = 0; j < w.n_k; j++) T_SAME(w.dk[j], 0);
        for (int64_t j = 0; j < w.n_v; j++) T_SAME(w.dv[j], 0);
        for (int j = 0; j < 16; j++) T_SAME(w.dtensor[j], 0);
        T_SAME(w.dparam[0], 0);
        whole_end(&w);
    }
}

WHOLE(very_negative_lse_has_right_gradients) { /* 64 keys, a mask, scores near -10000 */
    whole w;
    whole_start(&w, whole_text, 1, 1, 1, 5, 64, 3, 3);
    whole_run(&w, FXA_FORWARD);
    whole_run(&w, FXA_BACKWARD);
    double dq[15], dk[192];
    memcpy(dq, w.dq, sizeof dq);
    memcpy(dk, w.dk, sizeof dk);
    for (int i = 0; i < 16; i++) w.tensor[i] -= 10000;
    whole_run(&w, FXA_FORWARD);
    T_CHECK(w.lse[0] < -9000);
    whole_run(&w, FXA_BACKWARD);
    whole_near("dQ", w.dq, dq, 15, 1e-10); /* exp(s - LSE) with operands of magnitude 10000 has 12 exact digits */
    whole_near("dK", w.dk, dk, 192, 1e-10);
    whole_end(&w);
}

WHOLE(offsets_beyond_32_bits) { /* two keys are 2^31 + 3 elements apart, in a file with a hole between them */
    if (sizeof(void *) < 8) T_SKIP("tensors of 8 GiB need addresses of 64 bits");
    const int64_t apart = ((int64_t)1 << 31) + 3;
    const size_t size = (size_t)(apart + 16) * sizeof(float);
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), (off_t)size) != 0) {
        if (file) fclose(file);
        T_SKIP("no room for a sparse file of 8 GiB");
    }
    float *far = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    fclose(file);
    if (far == MAP_FAILED) T_SKIP("8 GiB of addresses cannot be mapped");
    t_ctx *ctx = t_context();
    float q[2] = {1, 0.5f}, v[4] = {1, 2, 3, 4}, o[2], near_o[2], near_k[4] = {0.25f, -1, 2, 0.75f};
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    p.b = p.hq = p.sq = 1, p.sk = p.d_qk = 2, p.engine = whole_engine;
    args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_V] = v;
    args.slot[FXA_SLOT_K] = near_k, args.slot[FXA_SLOT_O] = near_o;
    T_OK(fxa_attention(ctx, &p, &args, &err));
    memcpy(far, near_k, 2 * sizeof(float));
    memcpy(far + apart, near_k + 2, 2 * sizeof(float));
    p.k.layout = FXA_LAYOUT_STRIDED, p.k.stride[2] = apart, p.k.stride[3] = 1;
    args.slot[FXA_SLOT_K] = far, args.slot[FXA_SLOT_O] = o;
    T_OK(fxa_attention(ctx, &p, &args, &err));
    T_CHECK(memcmp(o, near_o, sizeof o) == 0);
    munmap(far, size);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void *whole_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    void *made = new_size ? aligned_alloc(align, (new_size + align - 1) / align * align) : NULL;
    ++*(int *)user;
    if (new_size && !made) return NULL;
    if (made && ptr) memcpy(made, ptr, old_size < new_size ? old_size : new_size);
    free(ptr);
    return made;
}

/* Runs a pass with exactly the required workspace, filled with garbage: the results are the same, nothing around the
 * workspace is written, and nothing is allocated. */
static void whole_in_exact_workspace(fxa_pass pass) {
    whole w;
    fxa_error err;
    attn_call call;
    int calls = 0;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    fxa_plan *plan = NULL;
    config.alloc = whole_alloc, config.alloc_user = &calls;
    T_OK(fxa_context_create(&config, &ctx, &err));
    whole_start(&w, whole_text, 2, 2, 1, 5, 7, 3, 4);
    whole_run(&w, FXA_FORWARD);
    if (pass == FXA_BACKWARD) whole_run(&w, FXA_BACKWARD);
    size_t out_size = (size_t)(pass ? w.n_k : w.n_o) * sizeof(double);
    double *out = pass ? w.dk : w.o, *want = malloc(out_size);
    memcpy(want, out, out_size);
    memset(out, 0, out_size);
    whole_call(&w, pass, &call);
    T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
    size_t size = fxa_plan_workspace(plan), align = FXA_WORKSPACE_ALIGN;
    unsigned char *memory = malloc(size + 3 * align), *start = memory + align;
    start += (align - (uintptr_t)start % align) % align;
    memset(memory, 0xff, size + 3 * align);
    call.args.workspace = start, call.args.workspace_size = size - 1;
    T_STATUS(fxa_plan_run(plan, &call.args, &err), FXA_E_WORKSPACE);
    call.args.workspace_size = size;
    calls = 0;
    T_OK(fxa_plan_run(plan, &call.args, &err));
    T_INT(calls, 0);
    T_CHECK(memcmp(out, want, out_size) == 0);
    for (unsigned char *c = memory; c < memory + size + 3 * align; c++)
        if ((c < start || c >= start + size) && *c != 0xff) T_FAIL("byte %td, outside the workspace\n", c - start);
    T_INT(fxa_plan_is_deterministic(plan), 1); /* backward too */
    T_STR(fxa_plan_engine(plan), whole_engine);
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
    free(memory);
    free(want);
    whole_end(&w);
}

WHOLE(forward_runs_in_exactly_its_workspace_and_allocates_nothing) { whole_in_exact_workspace(FXA_FORWARD); }
WHOLE(backward_runs_in_exactly_its_workspace_and_allocates_nothing) { whole_in_exact_workspace(FXA_BACKWARD); }

T_MAIN
