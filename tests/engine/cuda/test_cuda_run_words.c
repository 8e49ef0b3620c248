/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the cuda engine's kernels, on the driver of cuda_run_fixture.h: packed operands of captured tensors with
 * their strides, sinks with their gradients, dropout.
 */
#include "cuda_run_fixture.h"

static const char *const words_texts[] = {"mask = t[q] == t[k]", "mask = t[b, q] == t[b, k]",
                                          "mask = t[h, q] == t[h, k]", "mask = t[b, h, q] == t[b, h, k]"};
enum { WORDS_TEXTS = sizeof words_texts / sizeof *words_texts };

/* Writes the coordinate of each axis of the tensor in the first load of a text. Returns the rank. */
static int words_axes(const char *text, char axis[4]) {
    int rank = 0;
    for (const char *at = strchr(text, '['); *at != ']'; at++)
        if (strchr("bhq", *at)) axis[rank++] = *at;
    return rank;
}

static void words_check(const struct FxaPackedOperand *w, const char *text, const fxa_capture *t, int64_t length) {
    char axis[4];
    long long stride[3] = {0};
    for (int i = 0, rank = words_axes(text, axis); i < rank; i++)
        stride[axis[i] == 'b' ? 0 : axis[i] == 'h' ? 1 : 2] = t->stride[i];
    if (w->b != stride[0] || w->h != stride[1] || w->s != stride[2])
        T_FAIL("%s: strides %lld, %lld and %lld, not %lld, %lld and %lld\n", text, w->b, w->h, w->s, stride[0],
               stride[1], stride[2]);
    T_CHECK(w->from == bed_place(140) && w->to && w->ranges);
    T_INT(w->length, length);
    T_CHECK(w->pitch >= length);
}

/* Short packed operands are written by the launch of the tile lists, long ones by a launch before it. */
TEST(words_have_the_strides_of_their_tensor) {
    for (int i = 0; i < 2 * WORDS_TEXTS; i++) {
        const char *text = words_texts[i / 2];
        char whole[100], axis[4];
        fxa_capture t = {.strided = 1};
        bed x;
        int rank = words_axes(text, axis), seen = 0;
        (void)snprintf(whole, sizeof whole, "tensor t : i32[%d]\n%s", rank, text);
        fxa_problem p = bed_problem(FXA_FORWARD, whole);
        if (i % 2) p.sq = 5000, p.sk = 6000;
        for (int d = 0; d < rank; d++) {
            t.size[d] = axis[d] == 'b' ? p.b : axis[d] == 'h' ? p.hq : p.sk;
            t.stride[d] = 3 + 1000 * d;
        }
        p.captures = &t, p.n_captures = 1;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        for (int n = 0; n < watch.launches; n++) {
            const watched *w = &watch.launch[n];
            if (watch_is(n, FXA__CUDA_TILE_LISTS, FXA__CUDA_PACK_OPERANDS))
                words_check(&w->words.side[0], text, &t, seen++ ? p.sk : p.sq);
            for (int side = 0; side < 2 && watch_is(n, FXA__CUDA_TILE_LISTS, FXA__CUDA_LIST_TILES); side++) {
                if (!w->words.side[side].to) continue;
                words_check(&w->words.side[side], text, &t, side ? p.sk : p.sq);
                seen++;
            }
        }
        T_INT(seen, 2);
        touch_check(&x);
        bed_close(&x);
    }
}

/* Each dtype has the number by which operand_of() of common/tile_lists.cu reads its elements; others are no words. */
TEST(words_of_every_dtype) {
    static const struct {
        const char *dtype;
        int kind; /* 0: elements are not read as words */
    } rows[] = {{"f32", 1},  {"i32", 1}, {"i64", 2},  {"i16", 3},  {"i8", 4},  {"u8", 5},
                {"bool", 6}, {"f16", 7}, {"bf16", 8}, {"e4m3", 0}, {"e5m2", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[100];
        fxa_capture t = {.strided = 0};
        bed x;
        int seen = 0;
        (void)snprintf(text, sizeof text, "tensor t : %s[1]\nmask = t[q] %s t[k]", rows[i].dtype,
                       strcmp(rows[i].dtype, "bool") == 0 ? "&&" : "<=");
        fxa_problem p = bed_problem(FXA_FORWARD, text);
        t.size[0] = p.sk, p.captures = &t, p.n_captures = 1;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        for (int n = 0; n < watch.launches; n++)
            for (int side = 0; side < 2 && watch_is(n, FXA__CUDA_TILE_LISTS, FXA__CUDA_LIST_TILES); side++) {
                if (!watch.launch[n].words.side[side].to) continue;
                if (watch.launch[n].words.side[side].kind != rows[i].kind)
                    T_FAIL("%s: kind %d\n", rows[i].dtype, watch.launch[n].words.side[side].kind);
                seen++;
            }
        T_INT(seen, rows[i].kind ? 2 : 0);
        bed_close(&x);
    }
}

/* Sinks are the caller's, zeroes of the workspace, or none. Their gradients are written to the caller's memory if it is
 * f32, else to the workspace. */
TEST(sinks_and_their_gradients) {
    static const struct {
        uint32_t flags, dtype;
        bool own, zeroes, gradient, copied; /* expected properties of the kernels' arguments */
    } rows[] = {{0, FXA_F32, false, false, false, false},
                {FXA_SINKS, FXA_F32, true, false, false, false},
                {FXA_SINK_ZERO, FXA_F32, false, true, false, false},
                {FXA_SINKS | FXA_GRAD_SINKS, FXA_F32, true, false, true, false},
                {FXA_SINKS | FXA_GRAD_SINKS, FXA_BF16, false, false, true, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fxa_problem p = bed_problem(FXA_BACKWARD, NULL);
        bed x;
        p.flags |= rows[i].flags, p.sinks.dtype = p.dsinks.dtype = rows[i].dtype;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        const watched *main = NULL;
        for (int n = 0; n < watch.launches; n++)
            if (watch.launch[n].unit == FXA__CUDA_BACKWARD) main = &watch.launch[n];
        T_REQUIRE(main);
        const void *sink = main->a.sink, *gradient = main->a.grad_sink;
        T_INT(sink == bed_place(FXA_SLOT_SINKS), rows[i].own);
        T_INT(sink != NULL, rows[i].own || rows[i].zeroes || rows[i].copied);
        T_INT(gradient != NULL, rows[i].gradient);
        T_INT(gradient == bed_place(FXA_SLOT_DSINKS), rows[i].gradient && !rows[i].copied);
        touch_check(&x);
        bed_close(&x);
    }
}

/* Kernels get both 32-bit halves of the seed, the threshold below which a pair is dropped, and the factor of pairs that
 * are kept. */
TEST(dropout) {
    for (int i = 0; i < 4; i++) {
        fxa_problem p = bed_problem((fxa_pass)(i / 2), NULL);
        bed x;
        if (i % 2) p.flags |= FXA_DROPOUT, p.dropout_p = 0.25;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        for (int n = 0; n < watch.launches; n++) {
            const struct FxaArgs *a = &watch.launch[n].a;
            T_INT(a->seed[0], i % 2 ? 0x89abcdef : 0);
            T_INT(a->seed[1], i % 2 ? 0x01234567 : 0);
            T_INT(a->drop_below, i % 2 ? UINT32_C(1) << 30 : 0);
            T_CHECK(a->keep_inverse == (i % 2 ? 1 / 0.75f : 0));
        }
        touch_check(&x);
        bed_close(&x);
    }
}

T_MAIN
