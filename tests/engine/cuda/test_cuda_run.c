/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of the cuda engine on a driver that only records calls: launched kernels with grids, arguments and maps, and
 * parts of the workspace, which must be inside it and disjoint. tests/device/c/test_cuda_device.c runs the kernels on a
 * GPU. Pointers here are never dereferenced.
 */
#include "cuda_run_fixture.h"

TEST(causal_forward) {
    fxa_problem p = bed_problem(FXA_FORWARD, "mask = k <= q");
    bed x;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 2);
    T_CHECK(watch_is(0, FXA__CUDA_TILE_LISTS, FXA__CUDA_LIST_TILES) && watch_is(1, FXA__CUDA_FORWARD, 0));
    const watched *list = &watch.launch[0], *main = &watch.launch[1];
    T_INT(list->cut.q_rows, 128);
    T_INT(list->cut.k_rows, 128);
    T_INT(list->cut.rows, 3);
    T_INT(list->cut.columns, 4);
    T_INT(list->grid[0], 1);
    T_INT(list->grid[1], 1);
    T_INT(list->grid[2], 1);
    T_INT(main->grid[0], 48);
    T_INT(main->threads, 384);
    T_INT(main->a.tiles, 48);
    T_INT(main->a.q_tiles, 3);
    T_INT(main->a.reverse, 1);
    T_INT(main->a.section, 16);
    T_INT(main->a.list.pitch, 4);
    T_INT(main->a.list.b_rows, 0);
    T_INT(main->a.list.h_rows, 0);
    T_INT(main->a.group, 4);
    T_INT(main->a.q_pad, 384);
    T_INT(main->a.pad_rows, 768);
    T_INT(main->a.q.b, 8 * 300 * 128);
    T_INT(main->a.k.h, 500 * 128);
    T_INT(main->a.lse_h, 300);
    T_INT(main->a.lse_s, 1);
    T_CHECK(main->a.scale == 0.125f && fabsf(main->a.scale_log2 - 0.18033688f) < 1e-7f);
    T_INT(watch.maps, 4);
    T_INT(watch.map_size[1][1], 500);
    T_INT(watch.map_size[1][2], 2);
    T_INT(watch.map_rows[1], 128);
    T_INT(watch.map_stride[1][0], 256);
    T_INT(watch.map_rows[3], 16);
    T_CHECK(watch.filled == WATCH_WORKSPACE && 4 * watch.filled_words >= 4 * 49);
    touch_check(&x);
    bed_close(&x);
}

static int order_divided(int n, struct FxaDivisor by) {
    return (int)((uint32_t)((uint64_t)(2u * (uint32_t)n) * by.factor >> 32) >>
                 by.shift); /* computes quotient() of common/tile_scheduler.cuh */
}

/* Multipliers and shifts by which kernels divide are exact, also if the last section has fewer heads than the
 * others. */
TEST(order_of_query_tiles) {
    static const int64_t by[] = {1, 2, 3, 7, 12, 48, 100, 641, 65537, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, INT32_MAX};
    fxa_problem p = bed_problem(FXA_FORWARD, "mask = k <= q");
    bed x;
    for (size_t i = 0; i < sizeof by / sizeof *by; i++)
        for (int64_t n = 0; n <= INT32_MAX; n += n < 1000 ? 1 : n / 3)
            for (int64_t near = n / by[i] * by[i] - 1; near <= n / by[i] * by[i] + 1; near++)
                if (near >= 0 && near <= INT32_MAX)
                    T_INT(order_divided((int)near, fxa__cuda_divisor(by[i])), near / by[i]);
    p.b = 1, p.hq = 24, p.sk = 4096;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    const struct FxaArgs *a = &watch.launch[1].a;
    T_INT(a->section, 16);
    T_INT(a->tiles, 72);
    for (int tile = 0; tile < a->tiles; tile++) {
        int s = tile / (a->section * a->q_tiles), heads = s ? 8 : 16, r = tile - s * a->section * a->q_tiles;
        T_INT(order_divided(tile, a->by_order), s);
        T_INT(order_divided(r, s ? a->by_last : a->by_section), r / heads);
        T_INT(order_divided(s * a->section + r % heads, a->by_heads), 0);
        T_INT(order_divided(s * a->section + r % heads, a->by_group), (s * a->section + r % heads) / 12);
    }
    bed_close(&x);
}

TEST(causal_backward) {
    fxa_problem p = bed_problem(FXA_BACKWARD, "mask = k <= q");
    bed x;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 4);
    T_CHECK(watch_is(0, FXA__CUDA_TILE_LISTS, FXA__CUDA_LIST_TILES) &&
            watch_is(1, FXA__CUDA_PREPOST, FXA__CUDA_PREPROCESS));
    T_CHECK(watch_is(2, FXA__CUDA_BACKWARD, 0) && watch_is(3, FXA__CUDA_PREPOST, FXA__CUDA_POSTPROCESS));
    for (int i = 0; i < 4; i++) T_INT(watch.launch[i].early, i > 0);
    T_INT(watch.launch[1].grid[0], 768 / 16);
    T_INT(watch.launch[1].grid[1], 8);
    T_INT(watch.launch[0].cut.by_key, 1);
    T_INT(watch.launch[0].cut.rows, 4);
    T_INT(watch.launch[0].cut.columns, 5);
    T_INT(watch.launch[2].grid[0], 4);
    T_INT(watch.launch[2].grid[1], 2);
    T_INT(watch.launch[2].grid[2], 2);
    T_INT(watch.launch[3].grid[0], 12 * 8); /* these launches have CTAs for all heads */
    T_INT(watch.launch[3].grid[1], 1);
    T_CHECK(watch.launch[2].a.grad_q_sum && watch.launch[2].a.grad_k.data == bed_place(FXA_SLOT_DK));
    touch_check(&x);
    bed_close(&x);
}

/* Sinks in 16 bits and accumulated gradients are converted in the workspace, before and after the kernels. */
TEST(through_the_workspace) {
    fxa_problem p = bed_problem(FXA_BACKWARD, NULL);
    bed x;
    p.flags |= FXA_SINKS | FXA_GRAD_SINKS | FXA_ACCUMULATE_DSINKS | FXA_ACCUMULATE_DK;
    p.sinks.dtype = p.dsinks.dtype = FXA_BF16;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 7);
    T_CHECK(watch_is(0, FXA__CUDA_CONVERT, FXA__CUDA_CONVERT_COPY) &&
            watch_is(1, FXA__CUDA_PREPOST, FXA__CUDA_PREPROCESS));
    T_CHECK(watch_is(2, FXA__CUDA_BACKWARD, 0) && watch_is(3, FXA__CUDA_PREPOST, FXA__CUDA_POSTPROCESS));
    T_CHECK(watch_is(4, FXA__CUDA_PREPOST, FXA__CUDA_SINK_GRAD) &&
            watch_is(5, FXA__CUDA_CONVERT, FXA__CUDA_CONVERT_COPY));
    T_CHECK(watch_is(6, FXA__CUDA_CONVERT, FXA__CUDA_CONVERT_COPY));
    T_CHECK(watch.launch[2].a.grad_k.data != bed_place(FXA_SLOT_DK));
    T_CHECK(watch.launch[2].a.grad_v.data == bed_place(FXA_SLOT_DV));
    T_CHECK((void *)(uintptr_t)watch.launch[2].a.sink != bed_place(FXA_SLOT_SINKS));
    touch_check(&x);
    bed_close(&x);
}

/* All operands have another dtype or non-contiguous elements, so they are copied before the kernels; O is merged with
 * existing rows. */
TEST(operands_are_staged) {
    fxa_problem p = bed_problem(FXA_FORWARD, "mask = k <= q");
    bed x;
    p.flags |= FXA_ACCUMULATE_O, p.lse.dtype = FXA_F64, p.k.dtype = FXA_E4M3;
    p.v = (fxa_operand){.dtype = FXA_BF16, .layout = FXA_LAYOUT_STRIDED, .stride = {500 * 512, 128, 512, 2}};
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_INT(family_of(&x.code.choice), FAMILY_SIMT);
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 6);
    for (int i = 0; i < 3; i++)
        T_CHECK(watch_is(i, FXA__CUDA_CONVERT, FXA__CUDA_CONVERT_COPY) && !watch.launch[i].stage[0].side);
    T_INT(watch.launch[1].stage[0].from.type, FXA_E4M3);
    T_INT(watch.launch[1].stage[0].to.type, FXA_F32);
    T_INT(watch.launch[2].stage[0].from.stride[3], 2);
    T_INT(watch.launch[2].stage[0].to.stride[3], 1);
    T_CHECK(watch.launch[4].a.k.data == watch.launch[1].stage[0].to.data);
    T_CHECK(watch_is(5, FXA__CUDA_CONVERT, FXA__CUDA_CONVERT_MERGE));
    T_CHECK(watch.launch[5].stage[0].to.data == bed_place(FXA_SLOT_O) && watch.launch[5].stage[0].to.type == FXA_BF16);
    T_CHECK(watch.launch[5].stage[0].from.data == watch.launch[4].a.o.data);
    T_CHECK(watch.launch[5].stage[1].to.data == bed_place(FXA_SLOT_LSE) && watch.launch[5].stage[1].to.type == FXA_F64);
    T_CHECK(watch.launch[5].stage[1].from.data == (void *)watch.launch[4].a.lse);
    touch_check(&x);
    bed_close(&x);
}

/* Every launch of a run may start early, except the first launch, a launch after a fill, and the backward preprocess if
 * it reads what copies write. No launch starts early if the device or the driver does not support it. */
TEST(launches_begin_early) {
    static const char *const documents = "tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k]";
    for (int i = 0; i < 6; i++) {
        fxa_problem p = bed_problem(i ? FXA_BACKWARD : FXA_FORWARD, documents);
        fxa_capture t = {.size = {2, 500}};
        bed x;
        p.captures = &t, p.n_captures = 1;
        if (i == 2) p.lse.dtype = FXA_F64;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        if (i == 3) x.self.gpu.driver.launch_with = NULL;
        if (i == 4) x.self.gpu.arch = 89;
        if (i == 5) x.self.gpu.driver_version = 12020;
        T_OK(bed_run(&x, &err));
        T_CHECK(watch.launches >= 2);
        for (int n = 0; n < watch.launches; n++) {
            bool waits = i > 2 || n == 0 || (i == 2 && watch_is(n, FXA__CUDA_PREPOST, FXA__CUDA_PREPROCESS));
            if (watch.launch[n].early == waits) T_FAIL("case %d, launch %d: early %d\n", i, n, !waits);
        }
        bed_close(&x);
    }
}

/* If the backward kernel stores the first contribution to dQ instead of adding it, the preprocess kernel sets flags to
 * 0, not the sums of dQ. Runs without flags: deterministic ones, those with a gradient that has an element per pair,
 * and those without a mask. */
TEST(first_share_of_dq) {
    static const char *const texts[] = {"mask = k <= q", "mask = k <= q",
                                        "tensor w : bf16[4]\nscore = score + w[b, h, q, k]\nmask = k <= q", NULL};
    for (int i = 0; i < 4; i++) {
        fxa_problem p = bed_problem(FXA_BACKWARD, texts[i]);
        bed x;
        p.sk = 512; /* rows of the tensor of pairs are multiples of 16 bytes */
        if (i == 1) p.flags |= FXA_DETERMINISTIC;
        fxa_capture w = {.size = {p.b, p.hq, p.sq, p.sk}, .grad = 1};
        if (i == 2) p.captures = &w, p.n_captures = 1;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        const struct FxaArgs *a = &watch.launch[0].a;
        T_INT(a->first_share != NULL, i == 0);
        T_INT(a->grad_q_sum != NULL, i != 1);
        T_INT(a->sent != NULL, i != 1);
        touch_check(&x);
        bed_close(&x);
    }
}

/* Without keys, kernels write empty rows; without rows, gradients are 0; without batch entries no tile is computed. */
TEST(nothing_to_attend_to) {
    static const int64_t sizes[][3] = {{2, 300, 0}, {2, 0, 500}, {0, 300, 500}, {2, 0, 0}};
    static const int launches[][2] = {{1, 5}, {0, 4}, {0, 1}, {0, 3}};
    for (int i = 0; i < 8; i++) {
        fxa_problem p = bed_problem((fxa_pass)(i % 2), "param x : float\nscore = score + x\nmask = k <= q");
        bed x;
        p.b = sizes[i / 2][0], p.sq = sizes[i / 2][1], p.sk = sizes[i / 2][2];
        if (i % 2) p.param_grads = 1;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        int want = launches[i / 2][i % 2];
        if (watch.launches != want) T_FAIL("case %d: %d launches, not %d\n", i, watch.launches, want);
        touch_check(&x);
        bed_close(&x);
    }
}

/* The unit of exp2 is positive for every scale: kernels negate (or zero) K for a scale of 0 or below, and the unit
 * contains the magnitude. */
TEST(scales_of_zero_and_below) {
    static const double scales[] = {0.5, 0, -0.25};
    static const float units[] = {0.5f, 1, 0.25f};
    for (int i = 0; i < 12; i++) {
        fxa_problem p = bed_problem((fxa_pass)(i / 3 % 2), i < 6 ? NULL : "param x : float\nscore = x * score");
        bed x;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        x.bound.scale = scales[i % 3];
        T_OK(bed_run(&x, &err));
        T_INT(x.code.choice.finite_factors, i < 6);
        for (int k = 0; k < watch.launches; k++) {
            const struct FxaArgs *a = &watch.launch[k].a;
            bool finish =
                watch_is(k, FXA__CUDA_PREPOST, FXA__CUDA_POSTPROCESS) && i < 6; /* the kernel has already negated K */
            T_INT(a->turned, i < 6 ? (i % 3 == 0 ? 0 : i % 3 == 1 ? 2 : 1) : 0);
            T_CHECK(a->scale == (finish ? units[i % 3] : (float)scales[i % 3]));
            if (i < 6) T_CHECK(fabsf(a->scale_log2 - units[i % 3] * 1.44269504f) < 1e-6f);
        }
        bed_close(&x);
    }
}

static int watch_attributes(unsigned n, int *attributes, void **values, uintptr_t at) {
    (void)n, (void)attributes;
    *(unsigned *)values[0] = at ? 2 : 0; /* memory of a device */
    *(int *)values[2] = 0;
    return 0;
}
static int watch_recorded(void *stream, int *status) { return (void)stream, *status = 0, 0; }

/* A tensor without elements may have any pointer, also NULL, as in PyTorch. */
TEST(empty_tensors_are_nowhere) {
    fxa_problem p = bed_problem(FXA_FORWARD, "tensor t : f32[2]\nscore = score + t[h, q]");
    fxa_capture t = {.size = {8, 0}};
    bed x;
    p.captures = &t, p.n_captures = 1;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    x.self.gpu.driver.pointer_attributes = watch_attributes;
    x.self.gpu.driver.stream_capturing = watch_recorded;
    x.tensors[0].data = NULL;
    T_OK(fxa__gpu_engine_check(&x.self, x.p, &x.bound, &err));
    T_OK(bed_run(&x, &err));
    bed_close(&x);
}

/* If a call of the driver fails, the run returns the failure and makes no further calls. */
TEST(failing_calls) {
    fxa_problem p = bed_problem(FXA_BACKWARD, "tensor t : f32[2]\nscore = score + t[h, q - k + 20]\nmask = k <= q");
    fxa_capture t = {.size = {8, 900}, .grad = 1};
    bed x;
    p.captures = &t, p.n_captures = 1;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    int calls = watch.calls;
    T_CHECK(calls > 10);
    for (int i = 1; i <= calls; i++) {
        memset(&watch, 0, sizeof watch);
        watch.fail_at = i;
        T_STATUS(fxa__cuda_run(&x.self, &x.code, x.p, &x.bound, &err), FXA_E_ENGINE);
        T_INT(watch.calls, i);
        T_INT(watch.pushed, 0);
    }
    memset(&watch, 0, sizeof watch);
    x.code.unit[FXA__CUDA_PREPOST].function[0] = NULL; /* a kernel that is missing, as plan bytes may have it */
    T_STATUS(fxa__cuda_run(&x.self, &x.code, x.p, &x.bound, &err), FXA_E_ENGINE);
    T_HAS(err.text, "lacks a kernel");
    T_INT(watch.pushed, 0);
    bed_close(&x);
}

/* ---- Random ones ------------------------------------------------------------------------------------------------- */

static const char *const any_texts[] = {
    NULL,
    "mask = k <= q",
    "score = 20 * tanh(score / 20)\nmask = q - k < 100 && k <= q",
    "tensor t : f32[2]\nscore = score + t[h, q - k + 700]",
    "tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k]",
    "tensor bias : f32[2]\nscore = score + bias[h, k]",
    "param slope : float\nscore = score - slope * abs(q - k)\nmask = k % 3 != h",
    "tensor w : bf16[4]\nscore = score + w[b, h, q, k]\nmask = k <= q",
    "tensor w : bf16[2]\nscore = score + w[q, k]",
    "tensor t : f32[1]\nparam cap : float\nscore = cap * tanh(score / cap) * t[h]",
};

static void any_problem(t_rng *r, fxa_problem *p, fxa_capture *t) {
    static const int64_t widths[] = {32, 64, 96, 128, 192, 256, 40};
    static const uint32_t features[] = {FXA_PADDING, FXA_VARLEN, FXA_SINK_ZERO, FXA_SINKS, FXA_DROPOUT, FXA_PAGED};
    p->b = t_int(r, 1, 4), p->hkv = t_int(r, 1, 3), p->hq = p->hkv * t_int(r, 1, 4);
    p->sq = t_int(r, 0, 2) ? t_int(r, 1, 700) : t_int(r, 1, 8), p->sk = t_int(r, 1, 700);
    if (t_int(r, 0, 19) == 0) *(t_int(r, 0, 1) ? &p->sk : t_int(r, 0, 1) ? &p->sq : &p->b) = 0;
    p->d_qk = widths[t_int(r, 0, 6)], p->d_v = t_int(r, 0, 1) ? p->d_qk : widths[t_int(r, 0, 6)];
    p->q.dtype = (uint32_t)(t_int(r, 0, 3) ? t_int(r, FXA_F16, FXA_BF16) : FXA_F32);
    p->flags = 0;
    for (int i = 0; i < 6; i++)
        if (t_int(r, 0, 3) == 0) p->flags |= features[i];
    if (p->flags & FXA_PAGED)
        p->page_size = (uint32_t)(t_int(r, 0, 1) ? 64 : t_int(r, 1, 50)), p->n_pages = t_int(r, 1, 40);
    if (p->flags & FXA_SINKS) p->flags &= ~(uint32_t)FXA_SINK_ZERO;
    if (p->flags & FXA_VARLEN) p->total_q = p->b * p->sq - (p->b ? t_int(r, 0, p->sq) : 0), p->total_k = p->b * p->sk;
    if (p->flags & FXA_DROPOUT) p->dropout_p = 0.25;
    if (t_int(r, 0, 3) == 0) p->map_k.base = 9;
    if (p->pass == FXA_FORWARD && t_int(r, 0, 1)) p->flags |= FXA_RETURN_LSE;
    if (p->pass == FXA_BACKWARD) p->flags |= (uint32_t)t_int(r, 1, 7) * FXA_GRAD_Q;
    if (p->pass == FXA_BACKWARD && (p->flags & FXA_SINKS)) p->flags |= FXA_GRAD_SINKS;
    if (p->pass == FXA_BACKWARD && t_int(r, 0, 3) == 0) p->flags |= FXA_DETERMINISTIC;
    if (t_int(r, 0, 1)) p->sinks.dtype = p->dsinks.dtype = FXA_BF16;
    if (p->pass == FXA_BACKWARD && t_int(r, 0, 3) == 0)
        p->flags |= (p->flags / FXA_GRAD_Q & (uint32_t)t_int(r, 0, 15)) * FXA_ACCUMULATE_DQ;
    if (p->pass == FXA_FORWARD && (p->flags & FXA_RETURN_LSE) && t_int(r, 0, 3) == 0) p->flags |= FXA_ACCUMULATE_O;
    if (p->pass == FXA_FORWARD && t_int(r, 0, 3) == 0) p->flags |= FXA_RETURN_ROW_MAX;
    fxa_operand *const operands[] = {&p->k, &p->v, &p->o, &p->dout, &p->dq, &p->dk, &p->dv};
    for (int i = 0; i < 7; i++)
        if (t_int(r, 0, 19) == 0) operands[i]->dtype = (uint32_t)t_int(r, FXA_F32, FXA_BF16);
    if (t_int(r, 0, 3) == 0) p->lse.dtype = FXA_F64;
    p->alignment = t_int(r, 0, 3) ? 16 : 0;
    for (int d = 0; d < 2; d++) t->size[d] = t_int(r, 0, 4) ? 1500 : t_int(r, 1, 40);
    t->grad = p->pass == FXA_BACKWARD && t_int(r, 0, 1);
}

TEST(workspaces_of_random_problems) {
    t_rng r = {t_seed()};
    int run = 0, refused = 0;
    for (int i = 0; i < t_scaled(1500); i++) {
        fxa_capture t = {.size = {0}};
        bed x;
        const char *text = any_texts[t_int(&r, 0, 9)];
        fxa_problem p = bed_problem((fxa_pass)t_int(&r, 0, 1), text);
        any_problem(&r, &p, &t);
        if (text && strstr(text, "ids")) t.grad = 0;
        if (text && strstr(text, "w : bf16")) {
            int64_t sizes[] = {p.b, p.hq, p.sq, p.sk + (p.sk & 1 ? 0 : t_int(&r, 0, 1) * (8 - p.sk % 8))};
            memcpy(t.size, strstr(text, "[4]") ? sizes : sizes + 2, (strstr(text, "[4]") ? 4 : 2) * sizeof *sizes);
        }
        if (p.program && fxa_program_tensor_count(p.program)) p.captures = &t, p.n_captures = 1;
        if (p.program && p.pass == FXA_BACKWARD && fxa_program_param_count(p.program))
            p.param_grads = (uint64_t)t_int(&r, 0, 1);
        if (bed_open(&x, &p, (int32_t)t_int(&r, -1, 2), &err)) {
            T_OK(bed_run(&x, &err));
            touch_check(&x);
            run++;
        } else
            refused++;
        bed_close(&x);
    }
    printf("  %d run, %d refused\n", run, refused);
    T_CHECK(run > 3 * refused);
}

T_MAIN
