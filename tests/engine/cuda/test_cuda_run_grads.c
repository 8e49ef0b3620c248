/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of params, captured tensors and pages in runs of the cuda engine, on the driver of cuda_run_fixture.h:
 * launches and their workspace.
 */
#include "cuda_run_fixture.h"

/* Keys are gathered from pages before all other kernels; afterwards their gradients are written to the entire pool. */
TEST(pages_of_gradients) {
    fxa_problem p = bed_problem(FXA_BACKWARD, "mask = k <= q");
    bed x;
    p.flags |= FXA_PAGED | FXA_ACCUMULATE_DV, p.page_size = 48, p.n_pages = 9;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    static const int order[] = {FXA__CUDA_PAGES_COUNT, FXA__CUDA_PAGES_OFFSETS, FXA__CUDA_PAGES_LIST,
                                FXA__CUDA_PAGES_SORT,  FXA__CUDA_PAGES_SCATTER, FXA__CUDA_PAGES_SCATTER};
    T_INT(watch.launches, 12);
    for (int i = 0; i < 2; i++) T_CHECK(watch_is(i, FXA__CUDA_PAGED_GRADS, FXA__CUDA_PAGES_GATHER));
    for (int i = 0; i < 6; i++) T_CHECK(watch_is(6 + i, FXA__CUDA_PAGED_GRADS, order[i]));
    const watched *k = &watch.launch[0], *main = &watch.launch[4], *dv = &watch.launch[11];
    T_CHECK(main->unit == FXA__CUDA_BACKWARD && main->a.k.data == k->stage[0].to.data);
    T_CHECK(k->stage[0].from.data == bed_place(FXA_SLOT_K) && k->stage[0].from.stride[0] == 2 * 48 * 128);
    T_INT(k->stage[0].size[0] * k->stage[0].size[2], 2 * 500);
    T_INT(main->a.k.b, 2 * 500 * 128);
    T_INT(dv->stage[0].size[0] * dv->stage[0].size[2], 9 * 48);
    T_CHECK(dv->stage[0].to.data == bed_place(FXA_SLOT_DV) && dv->stage[0].from.data == main->a.grad_v.data);
    T_CHECK(dv->stage[0].add && !watch.launch[10].stage[0].add);
    T_INT(main->a.pages_b, 11);
    touch_check(&x);
    bed_close(&x);
}

/* The name of a captured tensor decides where the rewritten program has it, before or behind the arrays of coordinates
 * and the tensors of a backward program, and never which tensor kernels read, or where its gradient is stored. */
TEST(tensors_of_any_name) {
    char last[FXA_MAX_NAME + 1];
    memset(last, 'z', FXA_MAX_NAME), last[FXA_MAX_NAME] = 0;
    const char *const names[] = {"a", "zzzz_slot_20", "zzzz_slot_20_0", "zzzy_own_t00", "zzzzz", last};
    static const char back[] = "tensor a : f32[1]\nparam zzzy_own_00 : float\ndscore = dscore * a[k] * zzzy_own_00";
    for (int n = 0; n < 4 * (int)(sizeof names / sizeof *names); n++) {
        const char *name = names[n / 4];
        char text[512];
        t_program *own = NULL;
        fxa_capture captures[2] = {{.size = {512}}, {.size = {512}}}, t = {.size = {512}};
        bed x;
        (void)snprintf(text, sizeof text,
                       "tensor %s : f32[1]\ntensor m : f32[1]\nparam zzzy_own_00 : float\n"
                       "score = score + zzzy_own_00 * %s[k %% 16] + m[q * 3] * float(q)",
                       name, name);
        fxa_problem p = bed_problem(n & 1 ? FXA_BACKWARD : FXA_FORWARD, text);
        p.captures = captures, p.n_captures = 2;
        captures[fxa_program_tensor_find(p.program, name)].grad = n & 1;
        if (n & 2) p.map_q.kind = FXA_MAP_TABLE, p.map_q.has_offset = 1; /* arrays in slots */
        if (n & 1) T_OK(own_parse(FXA_PROGRAM_BPROP, back, strlen(back), &own, &err));
        p.bprop = own, p.bprop_captures = &t, p.n_bprop_captures = own ? 1 : 0;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        for (int i = FXA_SLOT_MAP_B; i <= FXA_SLOT_OFFSET_K; i++) x.bound.slot[i] = bed_place(100 + i);
        T_INT(x.code.program.program->n_tensors, 2 + (n & 2) + (n & 1));
        T_OK(bed_run(&x, &err)); /* compares the tensors of every launch, by name */
        for (int i = 0; i < watch.launches; i++)
            if (watch_is(i, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_STORE))
                T_CHECK(watch.launch[i].to.data == bed_place(160 + fxa_program_tensor_find(p.program, name)));
        touch_check(&x);
        bed_close(&x);
    }
}

/* A dense tensor is found before and behind the array of the heads' coordinates, and its gradient is dS. */
TEST(dense_tensors_of_any_name) {
    static const char *const names[] = {"a", "zzzz_slot_21", "zzzzz"};
    for (int n = 0; n < 4 * (int)(sizeof names / sizeof *names); n++) {
        char text[256];
        fxa_capture captures[2] = {{.size = {8}}, {.size = {300, 504}, .grad = n & 1}}; /* of Z, and of the other */
        bed x;
        (void)snprintf(text, sizeof text, "tensor %s : bf16[2]\ntensor Z : i32[1]\nscore = score + %s[q, k]%s",
                       names[n / 4], names[n / 4], n & 2 ? "\nmask = k >= Z[h] + h" : " + 0.5 * float(Z[h] + h)");
        fxa_problem p = bed_problem(n & 1 ? FXA_BACKWARD : FXA_FORWARD, text);
        p.captures = captures, p.n_captures = 2, p.map_h.kind = FXA_MAP_TABLE;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        x.bound.slot[FXA_SLOT_MAP_H] = bed_place(100);
        T_INT(x.code.choice.dense, 1);
        T_CHECK(x.code.program.operands.dense >= 0 && x.code.program.switches.grad_dense == (n & 1));
        T_OK(bed_run(&x, &err));
        int last = watch.launches - 1;
        if (n & 1) T_CHECK(watch_is(last, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_DENSE));
        bed_close(&x);
    }
}

/* Gradients of a param and of an element per head: the partial sums of a run grow with the number of heads, not with
 * its square. */
TEST(sums_of_many_heads) {
    fxa_problem p =
        bed_problem(FXA_BACKWARD, "param a : float\ntensor t : f32[1]\nscore = score + a * float(k) + t[h]");
    fxa_capture t = {.size = {65535}, .grad = 1};
    bed x;
    p.captures = &t, p.n_captures = 1, p.param_grads = 1;
    p.b = 4096, p.hq = p.hkv = 65535, p.sq = p.sk = 8, p.d_qk = 32, p.d_v = 32;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    int i = 0;
    while (i < watch.launches && !watch_is(i, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_TOTALS)) i++;
    T_CHECK(watch_is(i + 1, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_SUMS) &&
            watch_is(i + 2, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_PARAMS));
    T_CHECK(watch_is(i + 3, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_STORE) && watch.launches == i + 4);
    T_INT(watch.launch[i].grid[1] * watch.launch[i].grid[2], INT64_C(4096) * 65535);
    T_INT(watch.launch[i + 1].grid[0], (INT64_C(4096) * 65535 + 255) / 256);
    T_INT(watch.launch[i + 1].grid[1], 2);
    touch_check(&x);
    bed_close(&x);
}

/* Workspace for elements that any pair may add to, 48 bytes each if gradients are deterministic, and for diagonals of
 * heads. */
TEST(workspace_of_fixed_gradients) {
    static const struct {
        const char *text;
        int64_t size[4], more; /* more: bytes beyond a run without FXA_DETERMINISTIC, up to rounding */
    } rows[] = {
        {"tensor t : f32[1]\nscore = score + t[(q * k) % 100]", {100}, 44 * 100},
        {"tensor t : f32[4]\nscore = score * t[b, h, q, k]", {2, 8, 300, 500}, 0}, /* a pair's own */
        {"tensor t : f32[1]\nscore = score + t[h]", {8}, 0},
        {"tensor t : f32[2]\nscore = score + t[h, min(abs(q - k), 63)]", {8, 64}, 44 * 8 * 64 + 48 * 16 * 800},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t bytes[2];
        for (int fixed = 0; fixed < 2; fixed++) {
            fxa_problem p = bed_problem(FXA_BACKWARD, rows[i].text);
            fxa_capture t = {.grad = 1};
            bed x;
            memcpy(t.size, rows[i].size, sizeof rows[i].size);
            p.captures = &t, p.n_captures = 1, p.flags = FXA_GRAD_K | FXA_GRAD_V | (fixed ? FXA_DETERMINISTIC : 0);
            T_REQUIRE(bed_open(&x, &p, FAMILY_SIMT, &err));
            T_OK(bed_run(&x, &err));
            touch_check(&x);
            bytes[fixed] = x.workspace;
            if (x.code.program.switches.grad_diagonal && !fixed) bytes[0] -= 4 * 16 * 8 * (384 + 128);
            bed_close(&x);
        }
        int64_t more = (int64_t)(bytes[1] - bytes[0]);
        if (more < rows[i].more - 64 || more > rows[i].more + 64)
            T_FAIL("%s: %lld bytes more, not %lld\n", rows[i].text, (long long)more, (long long)rows[i].more);
    }
}

/* Tensors of maximum rank: kernels get size and stride of each axis, for the tensor and its gradient. */
TEST(tensors_of_every_rank) {
    static const char *const loads[FXA_MAX_RANK + 1] = {"t[]",        "t[k]",          "t[h, k]",
                                                        "t[b, h, k]", "t[b, h, k, k]", "t[b, h, k, 1, k]"};
    for (int rank = 0; rank <= FXA_MAX_RANK; rank++) {
        char text[100];
        bed x;
        (void)snprintf(text, sizeof text, "tensor t : f32[%d]\nscore = score + %s * score", rank, loads[rank]);
        fxa_problem p = bed_problem(FXA_BACKWARD, text);
        fxa_capture t = {.grad = 1, .strided = 1, .grad_strided = 1};
        for (int d = 0; d < rank; d++) {
            t.size[d] = 500 + d, t.stride[d] = INT64_C(1) << (9 * d);
            t.grad_stride[d] = INT64_C(1) << (36 - 9 * d);
        }
        p.captures = &t, p.n_captures = 1;
        T_REQUIRE(bed_open(&x, &p, FAMILY_SM80, &err));
        T_OK(bed_run(&x, &err));
        const watched *main = NULL, *store = NULL;
        for (int i = 0; i < watch.launches; i++) {
            if (watch.launch[i].unit == FXA__CUDA_BACKWARD) main = &watch.launch[i];
            if (watch_is(i, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_STORE)) store = &watch.launch[i];
        }
        T_REQUIRE(main && store);
        T_INT(main->a.tensor[0].rank, rank);
        T_INT(store->to.rank, rank);
        T_CHECK(main->a.tensor[0].data == bed_place(140) && store->to.data == bed_place(160));
        T_INT(store->to.dtype, FXA_F32);
        T_INT(store->to.add, 0);
        for (int d = 0; d < FXA_MAX_RANK; d++) {
            T_INT(main->a.tensor[0].size[d], t.size[d]);
            T_INT(main->a.tensor[0].stride[d], t.stride[d]);
            T_INT(store->to.size[d], t.size[d]);
            T_INT(store->to.stride[d], t.grad_stride[d]);
        }
        touch_check(&x);
        bed_close(&x);
    }
}

/* Diagonals have a row of floats per key tile if there are few key tiles; with a million rows and keys they share one
 * row. */
TEST(workspace_of_long_diagonals) {
    for (int64_t sk = 500; sk < 2000000; sk *= 2000) {
        fxa_problem p = bed_problem(FXA_BACKWARD, "tensor t : f32[1]\nscore = score + t[q - k]");
        fxa_capture t = {.size = {64}, .grad = 1};
        bed x;
        p.captures = &t, p.n_captures = 1, p.sq = p.sk = sk;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        touch_check(&x);
        const struct FxaDiagonalGrad *g = &watch.launch[watch.launches - 3].a.grad_diagonal;
        T_CHECK(g->data && (sk == 500 ? g->n == g->size && g->zero_step == 128 : g->n == 0 && g->zero_step == 0));
        T_INT(g->h, sk == 500 ? 4 * (512 + 128) : 2 * sk);
        T_CHECK(x.workspace < (uint64_t)sk * 16 * 1500);
        bed_close(&x);
    }
}

/* The workspace of a table that exceeds memory is computed without overflow. */
TEST(tables_beyond_all_memory) {
    fxa_problem p = bed_problem(FXA_BACKWARD, "tensor t : f32[2]\nscore = score + t[q * k, k]");
    fxa_capture t = {.size = {INT32_MAX, 1 << 28}, .grad = 1};
    bed x;
    p.captures = &t, p.n_captures = 1, p.flags |= FXA_DETERMINISTIC;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_CHECK(x.workspace == UINT64_MAX);
    bed_close(&x);
}

/* Without batch entries there are no pairs, and the gradient that they share is 0 in the caller's dtype and strides. */
TEST(pairs_of_no_entry) {
    for (uint32_t flags = 0; flags <= FXA_ACCUMULATE_DTENSORS; flags += FXA_ACCUMULATE_DTENSORS) {
        fxa_problem p = bed_problem(FXA_BACKWARD, "tensor w : bf16[2]\nscore = score + w[q, k]");
        fxa_capture t = {.size = {300, 512}, .grad = 1, .grad_dtype = FXA_F32};
        bed x;
        p.b = 0, p.captures = &t, p.n_captures = 1, p.flags |= flags;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_CHECK(x.code.program.switches.grad_dense && x.workspace == 0);
        T_OK(bed_run(&x, &err));
        T_INT(watch.fills, 0);
        T_CHECK(watch.launches == 1 && watch_is(0, FXA__CUDA_CAPTURED_GRADS, FXA__CUDA_CAPTURED_DENSE));
        bed_close(&x);
    }
}

/* A gradient with an element per pair is set to 0 only if kernels leave some elements unwritten: with a mask, or past
 * the lengths. */
TEST(pairs_that_nobody_writes) {
    static const char text[] = "tensor w : bf16[4]\nscore = score + w[b, h, q, k]\nmask = k <= q";
    for (int i = 0; i < 3; i++) {
        char plain[sizeof text];
        snprintf(plain, sizeof plain, "%s", text);
        if (i != 1) *strstr(plain, "\nmask") = '\0';
        fxa_problem p = bed_problem(FXA_BACKWARD, plain);
        bed x;
        p.sk = 512;
        int64_t rows = p.sq + (i == 2);
        fxa_capture w = {.size = {p.b, p.hq, rows, p.sk}, .grad = 1, .grad_dtype = FXA_BF16};
        p.captures = &w, p.n_captures = 1, p.alignment = 16;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        T_CHECK(watch.launch[0].a.grad_dense.data);
        T_INT(watch.fills, i != 0);
        bed_close(&x);
    }
}

/* Without rows there is no sum of dQ, and the same kernels are launched. */
TEST(no_rows) {
    for (int32_t forced = FAMILY_SM80; forced <= FAMILY_SIMT; forced++) {
        fxa_problem p = bed_problem(FXA_BACKWARD, NULL);
        bed x;
        p.sq = 0;
        T_REQUIRE(bed_open(&x, &p, forced, &err));
        T_OK(bed_run(&x, &err));
        T_CHECK(watch.launches == 1 && watch_is(0, FXA__CUDA_BACKWARD, FXA__CUDA_SIMT_DKV));
        bed_close(&x);
    }
}

T_MAIN
