/* SPDX-License-Identifier: Apache-2.0
 *
 * Refusals of the cuDNN engine that depend on problem and program together, beyond the support table
 * (test_cudnn_support.c), with supported neighbours. Needs no cuDNN: versions and devices are given.
 */
#include "cudnn_cases.h"

/* With one row, cuDNN misnumbers keys beyond the 128th, so programs that read k are refused, and in backward also
 * masks. */
CONTEXT_TEST(one_row_counts_128_keys) {
    static const struct {
        const char *text;
        int64_t sq, sk;
        bool taken;
    } cases[] = {{"score = score + 0.5 * k", 1, 129, false}, {"score = score + 0.5 * k", 1, 128, true},
                 {"score = score + 0.5 * k", 2, 129, true},  {"mask = k < 100", 1, 500, false},
                 {"mask = k - q < 300", 1, 500, false},      {"score = tanh(score)", 1, 500, true}};
    for (size_t at = 0; at < 2 * sizeof cases / sizeof *cases; at++) {
        static fxa__dnn_attention a;
        size_t i = at / 2;
        const support_case one = {.pass = at % 2 ? FXA_BACKWARD : FXA_FORWARD, .sq = cases[i].sq, .sk = cases[i].sk};
        fxa_problem p = support_problem(&one);
        t_program *program = NULL;
        fxa__problem *checked = NULL;
        T_OK(fxa_program_parse(ctx, cases[i].text, SIZE_MAX, &program, &err));
        p.program = program;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &checked, &err));
        fxa_status status = fxa__dnn_attention_make(checked, (fxa__dnn_level){91901, 90}, &a, &err);
        if ((status == FXA_OK) != cases[i].taken) T_FAIL("%s: %s\n", cases[i].text, status ? err.text : "taken");
        const bool masked = at % 2 && strstr(cases[i].text, "mask");
        const char *why = masked ? "leaves one row nothing" : "counts keys wrongly past 128, for two rightly";
        if (!cases[i].taken) T_HAS(err.text, why);
        fxa__dnn_attention_free(&a);
        fxa__problem_release(checked);
    }
}

/* Returns FXA_OK if there is a graph of the problem with that program. */
static fxa_status support_make_by(fxa_context *ctx, const char *text, const fxa_problem *problem, int64_t version,
                                  fxa_error *why) {
    static fxa__dnn_attention a;
    fxa_problem p = *problem;
    fxa_program *program = NULL;
    fxa__problem *checked = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    p.program = program;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &checked, &err));
    fxa_status status = fxa__dnn_attention_make(checked, (fxa__dnn_level){version, 90}, &a, why);
    fxa__dnn_attention_free(&a);
    fxa__problem_release(checked);
    fxa_program_destroy(program);
    return status;
}

static fxa_status support_make(fxa_context *ctx, const char *text, const fxa_problem *problem, fxa_error *why) {
    return support_make_by(ctx, text, problem, 91901, why);
}

/* On sm_90, backward supports two uses of values per row in addition to LSE and the row sums of dO O; dLSE is one of
 * the two. With one row, values per batch entry count as such if there are several batch entries. */
CONTEXT_TEST(values_of_rows_that_have_room) {
    static const char one[] = "tensor t : f32[1]\nscore = score + t[b]";
    static const char two[] = "tensor t : f32[1]\nscore = score + t[b] + 2.0 * t[b]";
    static const char three[] = "tensor t : f32[1]\nscore = score + t[b] + 2.0 * t[b] + 4.0 * t[b]";
    static const struct {
        const char *text;
        int64_t sq, b;
        uint32_t flags;
        const char *says; /* part of the reason; NULL: supported */
    } cases[] = {{two, 64, 2, 0, NULL},
                 {three, 64, 2, 0, "are used 3 times: on sm_90 cuDNN's backward of bf16 takes 2"},
                 {one, 64, 2, FXA_READ_DLSE, NULL},
                 {two, 64, 2, FXA_READ_DLSE, "are used 2 times: on sm_90 cuDNN's backward of bf16 takes 1 beside dLSE"},
                 {two, 1, 2, 0, NULL},
                 {three, 1, 2, 0, "are used 3 times"},
                 {three, 1, 1, 0, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const support_case plain = {.pass = FXA_BACKWARD, .flags = cases[i].flags, .sq = cases[i].sq, .b = cases[i].b};
        fxa_problem p = support_problem(&plain);
        const fxa_capture t = {.size = {9}};
        p.captures = &t, p.n_captures = 1;
        fxa_status status = support_make(ctx, cases[i].text, &p, &err);
        if ((status == FXA_OK) != !cases[i].says) T_FAIL("%zu: %s\n", i, status ? err.text : "taken");
        if (cases[i].says) T_HAS(err.text, cases[i].says);
    }
}

/* Before version 9.19, cuDNN writes batch entries of a gradient at the offsets of its operand. */
CONTEXT_TEST(gradients_lie_as_operands_do_before_9_19) {
    enum { ALL = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V };
    static const struct {
        uint32_t flags;
        int64_t row; /* row stride of dK; 0 = that of K */
        bool taken;
    } cases[] = {{FXA_VARLEN | ALL, 0, true},
                 {FXA_VARLEN | ALL, 256, false},
                 {FXA_VARLEN | ALL | FXA_ACCUMULATE_DK, 0, false},
                 {FXA_VARLEN | FXA_GRAD_Q | FXA_GRAD_V, 0, false},
                 {FXA_PADDING | ALL, 0, true},
                 {FXA_PADDING | ALL | FXA_ACCUMULATE_DK, 0, true}, /* copied through memory with the layout of K */
                 {ALL | FXA_ACCUMULATE_DK, 256, true}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const support_case plain = {.pass = FXA_BACKWARD, .flags = cases[i / 2].flags};
        fxa_problem p = support_problem(&plain);
        fxa_operand *operands[] = {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv};
        for (int j = 0; j < 8; j++) operands[j]->layout = FXA_LAYOUT_BSHD;
        if (p.flags & FXA_VARLEN) p.total_q = p.total_k = 100;
        if (cases[i / 2].row) {
            const int64_t stride[4] = {64 * cases[i / 2].row, 64, cases[i / 2].row, 1};
            p.dk.layout = FXA_LAYOUT_STRIDED;
            memcpy(p.dk.stride, stride, sizeof stride);
            if (p.flags & FXA_VARLEN) p.dk.stride[0] = 0;
        }
        p.flags = cases[i / 2].flags;
        bool old = i % 2, taken = cases[i / 2].taken || !old;
        fxa_status status = support_make_by(ctx, "score = tanh(score)", &p, old ? 91400 : 91900, &err);
        if ((status == FXA_OK) != taken) T_FAIL("case %zu: %s\n", i, status == FXA_OK ? "taken" : err.text);
        if (status != FXA_OK) T_HAS(err.text, "is to lie as K does");
    }
}

/* A run passes a limited number of pointers to tensors and values: a problem with more is refused by the support query,
 * not by the compilation. */
CONTEXT_TEST(more_values_than_a_run_has_room_for) {
    for (int n = 100; n <= 150; n += 50) {
        char text[8192];
        for (int i = 0, at = 0; i < n; i++)
            at += snprintf(text + at, sizeof text - (size_t)at, "score = score %c 0.%d\n", i % 2 ? '*' : '+', 100 + i);
        const support_case plain = {.pass = FXA_FORWARD};
        const fxa_problem p = support_problem(&plain);
        fxa_status status = support_make(ctx, text, &p, &err);
        T_INT(status, n == 100 ? FXA_OK : FXA_E_UNSUPPORTED);
        if (status != FXA_OK) T_HAS(err.text, "tensors and values");
        T_INT(support_make_by(ctx, text, &p, 91400, &err), FXA_E_UNSUPPORTED);
        T_HAS(err.text, "this engine takes 64");
    }
}

/* A window, and the indices of a causal mask, are compared in floats, which are exact up to 2^24. */
CONTEXT_TEST(bands_of_so_many_places) {
    static const char *const texts[] = {"mask = k <= q", "mask = q - k < 100", "score = tanh(score)"};
    for (int i = 0; i < 6; i++) {
        const support_case plain = {.pass = FXA_FORWARD, .sq = i % 2 ? 1 << 25 : 1 << 24, .sk = 1 << 24, .d = 8};
        const fxa_problem p = support_problem(&plain);
        fxa_status status = support_make(ctx, texts[i / 2], &p, &err);
        T_INT(status, i % 2 && i / 2 < 2 ? FXA_E_UNSUPPORTED : FXA_OK);
        if (status != FXA_OK) T_HAS(err.text, "2^24");
    }
}

/* With one row cuDNN misreads a value per batch entry and head, and beyond some number of keys has no code for a value
 * per head: such values are expanded along keys. */
CONTEXT_TEST(one_row_has_values_by_key) {
    static fxa__dnn_attention a;
    static const char *const texts[] = {"tensor t : f32[2]\nscore = score + t[b, h]",
                                        "tensor t : f32[2]\nscore = score * t[0, h]"};
    for (int i = 0; i < 4; i++) {
        const support_case one = {.pass = FXA_FORWARD, .sq = 1 + i / 2, .sk = 1000};
        fxa_capture capture = {.size = {2, 2}};
        fxa_problem p = support_problem(&one);
        t_program *program = NULL;
        fxa__problem *checked = NULL;
        int few = 0;
        T_OK(fxa_program_parse(ctx, texts[i % 2], SIZE_MAX, &program, &err));
        p.program = program, p.captures = &capture, p.n_captures = 1;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &checked, &err));
        T_OK(fxa__dnn_attention_make(checked, (fxa__dnn_level){91901, 90}, &a, &err));
        for (size_t j = 0; j < a.g.n_ops; j++) {
            const fxa__dnn_tensor *t = a.g.ops[j].b < 0 ? NULL : &a.g.tensors[a.g.ops[j].b];
            few += t && (t->read || t->source == FXA__DNN_TENSOR) && t->dim[1] > 1 && t->dim[3] == 1;
        }
        T_INT(few, i / 2);
        fxa__dnn_attention_free(&a);
        fxa__problem_release(checked);
    }
}

/* The total number of packed rows is not part of the code, unless it exceeds the range of cuDNN's backward. */
TEST(packed_rows_that_reach_far) {
    fxa__host *host = NULL;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    fxa__writer keys[3];
    for (int i = 0; i < 3; i++) {
        static const int64_t totals[3] = {1000, 2000, 1 << 24};
        const support_case packed = {.pass = FXA_BACKWARD, .flags = FXA_VARLEN, .d = 128};
        fxa_problem p = support_problem(&packed);
        fxa__problem *checked = NULL;
        char reason[SUPPORT_REASON];
        p.total_q = p.total_k = totals[i];
        p.q.layout = p.k.layout = p.v.layout = p.o.layout = p.dout.layout = FXA_LAYOUT_BSHD;
        p.dq.layout = p.dk.layout = p.dv.layout = FXA_LAYOUT_BSHD;
        T_INT(support_ask(host, &p, (fxa__dnn_level){91901, 90}, reason), i < 2);
        if (i == 2) T_HAS(reason, "in 32 bits");
        T_OK(fxa__problem_create(host, &p, &checked, &err));
        keys[i] = (fxa__writer){.host = host};
        fxa__dnn_key(checked, &keys[i]);
        fxa__problem_release(checked);
    }
    T_CHECK(keys[0].size == keys[1].size && memcmp(keys[0].data, keys[1].data, keys[0].size) == 0);
    T_CHECK(keys[0].size != keys[2].size || memcmp(keys[0].data, keys[2].data, keys[0].size) != 0);
    for (int i = 0; i < 3; i++) fxa__writer_free(&keys[i]);
    fxa__host_release(host);
}

/* Packed tensors without rows, whose pointers may be NULL, are refused as empty in every layout, with a key of their
 * own; paged keys are never packed. */
TEST(packed_rows_of_nothing) {
    fxa__host *host = NULL;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    static const struct {
        int64_t total_q, total_k;
        uint32_t pages;
        bool taken;
    } cases[] = {{100, 100, 0, true}, {0, 100, 0, false}, {100, 0, 0, false},
                 {0, 0, 0, false},    {100, 0, 16, true}, {0, 0, 16, false}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const uint32_t pages = cases[i / 2].pages, flags = FXA_VARLEN | (pages ? FXA_PAGED : 0);
        const support_case packed = {.pass = FXA_FORWARD, .flags = flags, .page_size = pages};
        fxa_problem p = support_problem(&packed);
        fxa__problem *checked[2] = {NULL, NULL};
        fxa__writer keys[2] = {{.host = host}, {.host = host}};
        char reason[SUPPORT_REASON];
        p.q.layout = p.k.layout = p.v.layout = p.o.layout = i % 2 ? FXA_LAYOUT_BSHD : FXA_LAYOUT_BHSD;
        T_OK(fxa__problem_create(host, &p, &checked[0], &err));
        p.total_q = cases[i / 2].total_q, p.total_k = cases[i / 2].total_k;
        T_OK(fxa__problem_create(host, &p, &checked[1], &err));
        T_INT(support_ask(host, &p, (fxa__dnn_level){91901, 90}, reason), cases[i / 2].taken);
        if (!cases[i / 2].taken) T_HAS(reason, "total_q or total_k is 0: cuDNN takes nothing that is empty");
        for (int j = 0; j < 2; j++) fxa__dnn_key(checked[j], &keys[j]);
        bool same = keys[0].size == keys[1].size && memcmp(keys[0].data, keys[1].data, keys[0].size) == 0;
        T_INT(same, cases[i / 2].taken);
        for (int j = 0; j < 2; j++) fxa__writer_free(&keys[j]), fxa__problem_release(checked[j]);
    }
    fxa__host_release(host);
}

/* cuDNN reads pages whose size is a power of two; pages of other sizes are gathered first. */
TEST(pages_of_any_size) {
    fxa__host *host = NULL;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    static fxa__dnn_attention a;
    static const uint32_t sizes[] = {1, 16, 24, 100};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const support_case one = {.pass = FXA_FORWARD, .flags = FXA_PAGED, .sq = 1, .page_size = sizes[i]};
        fxa_problem p = support_problem(&one);
        fxa__problem *checked = NULL;
        int paged = 0;
        p.n_pages = 200;
        T_OK(fxa__problem_create(host, &p, &checked, &err));
        T_OK(fxa__dnn_attention_make(checked, (fxa__dnn_level){91901, 90}, &a, &err));
        for (size_t j = 0; j < a.g.n_ops; j++) paged += a.g.ops[j].kind == FXA__DNN_PAGED;
        T_INT(paged, sizes[i] < 24 ? 2 : 0);
        fxa__dnn_attention_free(&a);
        fxa__problem_release(checked);
    }
    fxa__host_release(host);
}

/* Captured tensors with non-contiguous keys are copied, because on sm_100 cuDNN ends the process over them, and on
 * sm_90 it misreads 16-bit ones. */
CONTEXT_TEST(keys_of_tensors_lie_together) {
    static const char *const texts[] = {"tensor t : f32[2]\nscore = score + t[k, q]",
                                        "tensor t : bf16[2]\nscore = score * t[k, 1]",
                                        "tensor t : f32[2]\nscore = score + t[q, k]"};
    static const int32_t archs[] = {90, 100, 103};
    for (size_t i = 0; i < 9; i++) {
        static fxa__dnn_attention a;
        const support_case plain = {.pass = FXA_FORWARD};
        fxa_capture capture = {.size = {64, 64}};
        fxa_problem p = support_problem(&plain);
        t_program *program = NULL;
        fxa__problem *checked = NULL;
        int apart = 0;
        T_OK(fxa_program_parse(ctx, texts[i / 3], SIZE_MAX, &program, &err));
        p.program = program, p.captures = &capture, p.n_captures = 1;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &checked, &err));
        T_OK(fxa__dnn_attention_make(checked, (fxa__dnn_level){91901, archs[i % 3]}, &a, &err));
        for (size_t j = 0; j < a.g.n_tensors; j++) {
            const fxa__dnn_tensor *t = &a.g.tensors[j];
            apart += t->source == FXA__DNN_TENSOR && t->dim[3] > 1 && t->stride[3] != 1;
        }
        T_INT(apart, archs[i % 3] == 90 && i / 3 == 0);
        fxa__dnn_attention_free(&a);
        fxa__problem_release(checked);
    }
}

/* Statistics in a layout that cuDNN does not support are copied; the stride of an axis of size 1 does not matter. */
TEST(statistics_that_lie_as_cudnn_has_them) { /* */
    static const struct {
        int64_t b, hq, sq, stride[3];
        bool varlen, direct;
    } cases[] = {
        {2, 3, 5, {15, 5, 1}, false, true},  {2, 3, 5, {16, 5, 1}, false, false}, {2, 3, 5, {15, 6, 1}, false, false},
        {2, 3, 5, {15, 5, 2}, false, false}, {1, 3, 5, {99, 5, 1}, false, true},  {1, 1, 5, {99, 99, 1}, false, true},
        {1, 3, 1, {99, 1, 99}, false, true}, {2, 3, 5, {15, 1, 3}, true, true},   {2, 3, 5, {15, 2, 3}, true, false},
        {2, 3, 5, {15, 1, 4}, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_problem p = FXA_PROBLEM_INIT;
        p.b = cases[i].b, p.hq = cases[i].hq, p.sq = cases[i].sq;
        p.flags = cases[i].varlen ? FXA_VARLEN : 0;
        p.lse.dtype = FXA_F32;
        memcpy(p.lse.stride, cases[i].stride, sizeof cases[i].stride);
        if (fxa__dnn_row_is_direct(&p, FXA_SLOT_LSE) != cases[i].direct) T_FAIL("case %zu\n", i);
        p.lse.dtype = FXA_F64;
        T_CHECK(!fxa__dnn_row_is_direct(&p, FXA_SLOT_LSE));
    }
}

T_MAIN
