/* SPDX-License-Identifier: Apache-2.0
 *
 * The support table of the cuDNN engine: a case for every row, at which its reason is given, and a neighbour of the
 * case that is taken. Needs no cuDNN: versions and devices are said.
 */
#include "engine/cudnn/cudnn_attention.h"
#include "plan/plan.h"
#include "t.h"

enum { SUPPORT_MOST = 64 };

typedef struct support_case {
    const char *says;
    int64_t version;
    int32_t arch;
    fxa_pass pass;
    uint32_t flags;
    int64_t sq, sk, d, dv, hq, b;
    uint32_t dtype, alignment, page_size, sink, o, lse, dout, dq;
    double dropout;
    bool taken; /* it is no refusal: the neighbour of one */
} support_case;

#define H200 .version = 91901, .arch = 90
#define BYTES .dtype = FXA_E4M3
static const support_case support_cases[] = {
    {.says = "9.14 and newer", .version = 91300, .arch = 90},
    {.says = "9.14 and newer", .version = 91400, .arch = 90, .taken = true},
    {.says = "from sm_80 on", .version = 91901, .arch = 75},
    {.says = "from sm_80 on", .version = 91901, .arch = 80, .taken = true},
    {.says = "f16 and bf16", H200, .dtype = FXA_F32},
    {.says = "f16 and bf16", H200, .dtype = FXA_F16, .taken = true},
    {.says = "f16 and bf16", H200, .dtype = FXA_F16, .pass = FXA_BACKWARD, .taken = true},
    {.says = "8 bits were tried on sm_90", .version = 91901, .arch = 89, BYTES},
    {.says = "8 bits were tried on sm_90", .version = 91901, .arch = 100, BYTES},
    {.says = "8 bits were tried on sm_90", H200, BYTES, .taken = true},
    {.says = "with cuDNN 9.19 alone", .version = 91801, .arch = 90, BYTES},
    {.says = "d and dv of 128", H200, BYTES, .pass = FXA_BACKWARD},
    {.says = "d and dv of 128", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dv = 64},
    {.says = "d and dv of 128", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .taken = true},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .o = FXA_E5M2},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dout = FXA_BF16},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dq = FXA_F32},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dout = FXA_E5M2, .taken = true},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dq = FXA_E5M2, .taken = true},
    {.says = "beside gradients of 8", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .flags = FXA_DETERMINISTIC},
    {.says = "beside gradients of 8", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .flags = FXA_PADDING},
    {.says = "beside gradients of 8", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .flags = FXA_GRAD_LSE},
    {.says = "beside gradients of 8", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .flags = FXA_ACC_Q},
    {.says = "are to be e4m3", H200, .dtype = FXA_E5M2},
    {.says = "multiples of 16", H200, BYTES, .d = 72},
    {.says = "multiples of 16", H200, BYTES, .d = 80, .dv = 48, .taken = true},
    {.says = "no pass of one row", H200, BYTES, .sq = 1},
    {.says = "no pass of one row", H200, BYTES, .pass = FXA_BACKWARD, .sq = 1, .d = 128},
    {.says = "no pass of one row", H200, BYTES, .sq = 2, .taken = true},
    {.says = "16 bits from sm_100 on", H200, BYTES, .o = FXA_BF16},
    {.says = "f32 from 9.19.1 on", .version = 91900, .arch = 90, BYTES, .o = FXA_F32},
    {.says = "f32 from 9.19.1 on", H200, BYTES, .o = FXA_F32, .taken = true},
    {.says = "LSE is to be f32", H200, BYTES, .lse = FXA_F64},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_PADDING},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_SINK_ZERO},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_WANT_MAX},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_CAUSAL | FXA_SCALED, .taken = true},
    {.says = "multiples of 16", H200, .alignment = 8},
    {.says = "nothing that is empty", H200, .sq = -1},
    {.says = "multiples of 8", H200, .d = 20},
    {.says = "at most 65535", H200, .b = 65536, .pass = FXA_BACKWARD},
    {.says = "at most 65535", H200, .hq = 65536, .pass = FXA_BACKWARD},
    {.says = "at most 65535", H200, .b = 65535, .pass = FXA_BACKWARD, .taken = true},
    {.says = "at most 65535", H200, .b = 65536, .taken = true},
    {.says = "counts elements of O and dO in 32 bits", H200, .hq = 8, .sq = 1 << 21, .d = 128, .pass = FXA_BACKWARD},
    {.says = "counts elements of O and dO in 32 bits",
     H200,
     .hq = 8,
     .sq = 1 << 20,
     .d = 128,
     .pass = FXA_BACKWARD,
     .taken = true},
    {.says = "counts elements of O and dO in 32 bits", H200, .hq = 8, .sq = 1 << 21, .d = 128, .taken = true},
    {.says = "more tiles or pairs than it counts", H200, .hq = (1 << 28), .b = 1, .sq = 1000},
    {.says = "more tiles or pairs than it counts", H200, .hq = INT32_MAX, .b = 1},
    {.says = "more tiles or pairs than it counts", H200, .hq = 1 << 20, .b = 1, .sk = 1 << 20, .pass = FXA_BACKWARD},
    {.says = "more tiles or pairs than it counts", H200, .hq = 1 << 29, .b = 1, .d = 256, .pass = FXA_BACKWARD},
    {.says = "more tiles or pairs than it counts", H200, .hq = 8, .sq = INT32_MAX, .sk = INT32_MAX, .d = 8, .b = 8},
    {.says = "more tiles or pairs than it counts", H200, .hq = 8, .b = 8, .sq = 1 << 20, .sk = 1 << 20, .taken = true},
    {.says = "at most 256", H200, .d = 264},
    {.says = "at most 256", H200, .d = 256, .taken = true},
    {.says = "at most 128", .version = 91901, .arch = 80, .d = 136},
    {.says = "at most 128", .version = 91901, .arch = 120, .d = 136},
    {.says = "at most 128", .version = 91901, .arch = 100, .d = 136},
    {.says = "at most 128", .version = 91901, .arch = 100, .d = 128, .pass = FXA_BACKWARD, .taken = true},
    {.says = "no such backward", H200, .pass = FXA_BACKWARD, .sq = 1, .sk = 1},
    {.says = "no such backward", H200, .pass = FXA_BACKWARD, .sq = 2, .sk = 1, .taken = true},
    {.says = "in its own way", H200, .flags = FXA_DROPOUT, .dropout = 0.5},
    {.says = "need cuDNN 9.18.1", .version = 91800, .arch = 80, .flags = FXA_PADDING},
    {.says = "need cuDNN 9.18.1", .version = 91801, .arch = 80, .flags = FXA_PADDING, .taken = true},
    {.says = "not tried on such a device", .version = 91901, .arch = 120, .flags = FXA_PADDING},
    {.says = "not tried on such a device", .version = 91901, .arch = 100, .flags = FXA_VARLEN},
    {.says = "not tried below sm_90", .version = 91901, .arch = 80, .pass = FXA_BACKWARD, .flags = FXA_PADDING},
    {.says = "wrong past feature 128",
     .version = 91400,
     .arch = 90,
     .pass = FXA_BACKWARD,
     .flags = FXA_VARLEN,
     .d = 136},
    {.says = "wrong past feature 128", .version = 91400, .arch = 90, .flags = FXA_PADDING, .d = 136, .taken = true},
    {.says = "wrong past feature 128", H200, .pass = FXA_BACKWARD, .flags = FXA_PADDING, .d = 192, .taken = true},
    {.says = "no gradients of pages", H200, .pass = FXA_BACKWARD, .flags = FXA_PAGED, .page_size = 16},
    {.says = "no gradients of pages", H200, .flags = FXA_PAGED, .page_size = 16, .taken = true},
    {.says = "no sink for one row", H200, .flags = FXA_SINK_ZERO, .sq = 1},
    {.says = "no sink for one row", H200, .flags = FXA_SINK, .taken = true},
    {.says = "16 bits or more", H200, .flags = FXA_SINK, .sink = FXA_E5M2},
    {.says = "none beside lengths", H200, .flags = FXA_SINK | FXA_PADDING},
    {.says = "beside a sink", H200, .flags = FXA_SINK | FXA_WANT_MAX},
    {.says = "beside lengths of entries cuDNN does not write", H200, .flags = FXA_PADDING | FXA_WANT_MAX},
    {.says = "beside lengths of entries cuDNN does not write", H200, .flags = FXA_WANT_MAX, .taken = true},
    {.says = "two values per row", .version = 91901, .arch = 80, .pass = FXA_BACKWARD, .flags = FXA_GRAD_LSE},
    {.says = "two values per row", .version = 91901, .arch = 120, .pass = FXA_BACKWARD, .flags = FXA_GRAD_LSE},
    {.says = "two values per row", H200, .pass = FXA_BACKWARD, .flags = FXA_GRAD_LSE, .taken = true},
};

static fxa_problem support_problem(const support_case *c) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.pass = (uint32_t)c->pass, p.device = FXA_CUDA;
    p.flags = c->flags | (c->pass == FXA_BACKWARD ? (uint32_t)FXA_GRAD_Q : (uint32_t)FXA_WANT_LSE);
    p.b = c->b ? c->b : 2, p.hq = c->hq ? c->hq : 2, p.hkv = c->hq ? 1 : 2;
    p.sq = c->sq < 0 ? 0 : c->sq ? c->sq : 64, p.sk = c->sk ? c->sk : 64;
    p.d = c->d ? c->d : 64, p.dv = c->dv;
    p.q.dtype = c->dtype ? c->dtype : (uint32_t)FXA_BF16, p.alignment = c->alignment ? c->alignment : 16;
    p.page_size = c->page_size, p.n_pages = c->page_size ? 9 : 0, p.dropout_p = c->dropout;
    p.sink.dtype = c->sink, p.o.dtype = c->o, p.lse.dtype = c->lse;
    p.dout.dtype = c->dout, p.dq.dtype = c->dq;
    return p;
}

static bool support_ask(fxa__host *host, const fxa_problem *p, fxa__dnn_level level, char reason[240]) {
    fxa__problem *checked = NULL;
    fxa_error err;
    fxa__dnn_graph g = {.host = host, .status = FXA_OK};
    T_OK(fxa__problem_create(host, p, &checked, &err));
    bool yes = checked && fxa__dnn_supports(&g, checked, level);
    snprintf(reason, 240, "%s", g.reason);
    fxa__problem_release(checked);
    return yes;
}

static void support_hit(bool hit[SUPPORT_MOST], const char *reason) {
    for (size_t i = 0; fxa__dnn_support_why(i); i++)
        if (strstr(reason, fxa__dnn_support_why(i))) hit[i] = true;
}

/* Gradients of captured tensors: the one that is taken, and everything that it is not. */
static void support_ask_grads(fxa__host *host, fxa_context *ctx, bool hit[SUPPORT_MOST]) {
    static const struct {
        const char *says; /* NULL: it is taken */
        int32_t arch;
        int64_t sq, hkv;
        uint32_t flags;
        int tensors;
        bool own, wide, bytes;
    } cases[] = {{NULL, 90, 64, 2, 0, 1, false, false, false},
                 {"tried on sm_90 alone", 80, 64, 2, 0, 1, false, false, false},
                 {"of the dtype of Q", 90, 64, 2, 0, 2, false, false, false},
                 {"of the dtype of Q", 90, 64, 2, 0, 1, false, true, false},
                 {"a multiple of 64", 90, 65, 2, 0, 1, false, false, false},
                 {"heads that share keys", 90, 64, 1, 0, 1, false, false, false},
                 {"beside bprop", 90, 64, 2, 0, 1, true, false, false},
                 {"not tried beside it", 90, 64, 2, FXA_GRAD_LSE, 1, false, false, false},
                 {"not tried beside it", 90, 64, 2, FXA_ACC_TENSORS, 1, false, false, false},
                 {"not tried beside it", 90, 64, 2, FXA_PADDING, 1, false, false, false},
                 {"beside those of 8 bits", 90, 64, 2, 0, 1, false, false, true}};
    fxa_program *program = NULL, *bprop = NULL;
    fxa_error err;
    const fxa_text text = {"bprop", "dscore = dscore * 2.0", SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = FXA_PROGRAM_BPROP, config.texts = &text, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(ctx, &config, &bprop, &err));
    T_OK(fxa_program_parse(ctx, "tensor t : bf16[2]\ntensor u : bf16[2]\nscore = score + t[q, k] + u[q, k]", SIZE_MAX,
                           &program, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const support_case plain = {H200, .pass = FXA_BACKWARD, .sq = cases[i].sq, .sk = 128, .flags = cases[i].flags};
        fxa_problem p = support_problem(&plain);
        if (cases[i].bytes) p.q.dtype = FXA_E4M3, p.d = 128;
        fxa_capture captures[2] = {{.size = {cases[i].sq, 128}, .grad = 1},
                                   {.size = {cases[i].sq, 128}, .grad = cases[i].tensors > 1}};
        char reason[240];
        if (cases[i].wide) captures[0].grad_dtype = FXA_F32;
        p.program = program, p.captures = captures, p.n_captures = 2, p.hkv = cases[i].hkv;
        p.bprop = cases[i].own ? bprop : NULL;
        bool yes = support_ask(host, &p, (fxa__dnn_level){91901, cases[i].arch}, reason);
        if (yes != !cases[i].says) T_FAIL("case %zu: %s\n", i, yes ? "taken" : reason);
        if (cases[i].says) T_HAS(reason, cases[i].says);
        support_hit(hit, reason);
    }
    fxa_program_destroy(program);
    fxa_program_destroy(bprop);
}

/* What a problem asks for that no flag says. */
static void support_ask_others(fxa__host *host, bool hit[SUPPORT_MOST]) {
    const support_case plain = {H200, .pass = FXA_BACKWARD};
    fxa_context *ctx = NULL;
    fxa_error err;
    char reason[240];
    fxa_program *program = NULL;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    T_OK(fxa_program_parse(ctx, "param a : float\ntensor t : f32[1]\nscore = score * a + t[h]", SIZE_MAX, &program,
                           &err));
    for (int what = 0; what < 3; what++) {
        fxa_problem p = support_problem(&plain);
        fxa_capture capture = {.size = {2}, .grad = what == 2};
        p.program = program, p.captures = &capture, p.n_captures = 1;
        p.param_grads = what == 1;
        T_INT(support_ask(host, &p, (fxa__dnn_level){91901, 90}, reason), what == 0);
        support_hit(hit, reason);
    }
    support_ask_grads(host, ctx, hit);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

TEST(every_row_of_the_table) {
    bool hit[SUPPORT_MOST] = {false};
    fxa__host *host = NULL;
    fxa_error err;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    for (size_t i = 0; i < sizeof support_cases / sizeof *support_cases; i++) {
        const support_case *c = &support_cases[i];
        fxa_problem p = support_problem(c);
        char reason[240];
        bool yes = support_ask(host, &p, (fxa__dnn_level){c->version, c->arch}, reason);
        if (yes != c->taken) T_FAIL("case %zu, \"%s\": %s\n", i, c->says, yes ? "taken" : reason);
        if (!c->taken) T_HAS(reason, c->says);
        support_hit(hit, reason);
    }
    support_ask_others(host, hit);
    for (size_t i = 0; fxa__dnn_support_why(i); i++) {
        T_CHECK(i < SUPPORT_MOST);
        if (!hit[i]) T_FAIL("row %zu has no case: %s\n", i, fxa__dnn_support_why(i));
    }
    fxa__host_release(host);
}

/* Of one row cuDNN counts keys wrongly past the 128th: what counts them is refused there, and nothing else is. */
TEST(one_row_counts_128_keys) {
    static const struct {
        const char *text;
        int64_t sq, sk;
        bool taken;
    } cases[] = {{"score = score + 0.5 * k", 1, 129, false}, {"score = score + 0.5 * k", 1, 128, true},
                 {"score = score + 0.5 * k", 2, 129, true},  {"mask = k < 100", 1, 500, false},
                 {"mask = k - q < 300", 1, 500, false},      {"score = tanh(score)", 1, 500, true}};
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (size_t at = 0; at < 2 * sizeof cases / sizeof *cases; at++) {
        static fxa__dnn_attention a;
        size_t i = at / 2;
        const support_case one = {.pass = at % 2 ? FXA_BACKWARD : FXA_FORWARD, .sq = cases[i].sq, .sk = cases[i].sk};
        fxa_problem p = support_problem(&one);
        fxa_program *program = NULL;
        fxa__problem *checked = NULL;
        T_OK(fxa_program_parse(ctx, cases[i].text, SIZE_MAX, &program, &err));
        p.program = program;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &p, &checked, &err));
        fxa_status status = fxa__dnn_attention_make(checked, (fxa__dnn_level){91901, 90}, &a, &err);
        if ((status == FXA_OK) != cases[i].taken) T_FAIL("%s: %s\n", cases[i].text, status ? err.text : "taken");
        if (!cases[i].taken) T_HAS(err.text, "counts keys wrongly past 128, for two rightly");
        fxa__dnn_attention_free(&a);
        fxa__problem_release(checked);
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

/* Whether there is a graph of a problem with that program. */
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

/* Before 9.19 the entries of a gradient are written where those of its operand are. */
TEST(gradients_lie_as_operands_do_before_9_19) {
    enum { ALL = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V };
    static const struct {
        uint32_t flags;
        int64_t row; /* of dK; 0: as that of K */
        bool taken;
    } cases[] = {{FXA_VARLEN | ALL, 0, true},
                 {FXA_VARLEN | ALL, 256, false},
                 {FXA_VARLEN | ALL | FXA_ACC_K, 0, false},
                 {FXA_VARLEN | FXA_GRAD_Q | FXA_GRAD_V, 0, false},
                 {FXA_PADDING | ALL, 0, true},
                 {FXA_PADDING | ALL | FXA_ACC_K, 0, true}, /* through memory that lies as K does */
                 {ALL | FXA_ACC_K, 256, true}};
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const support_case plain = {.pass = FXA_BACKWARD, .flags = cases[i / 2].flags};
        fxa_problem p = support_problem(&plain);
        fxa_operand *operands[] = {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv_grad};
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
    fxa_context_destroy(ctx);
}

/* A run gives pointers to so many tensors and values: with more the answer is no, and not that of the build. */
TEST(more_values_than_a_run_has_room_for) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
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
    fxa_context_destroy(ctx);
}

/* A window is compared in floats, and so are the indices of a causal mask: exact to 2^24. */
TEST(bands_of_so_many_places) {
    static const char *const texts[] = {"mask = k <= q", "mask = q - k < 100", "score = tanh(score)"};
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < 6; i++) {
        const support_case plain = {.pass = FXA_FORWARD, .sq = i % 2 ? 1 << 25 : 1 << 24, .sk = 1 << 24, .d = 8};
        const fxa_problem p = support_problem(&plain);
        fxa_status status = support_make(ctx, texts[i / 2], &p, &err);
        T_INT(status, i % 2 && i / 2 < 2 ? FXA_E_UNSUPPORTED : FXA_OK);
        if (status != FXA_OK) T_HAS(err.text, "2^24");
    }
    fxa_context_destroy(ctx);
}

/* For one row cuDNN reads a value per entry and head wrongly, and has no code for one per head past some keys: they are
 * written out by keys. */
TEST(one_row_has_values_by_key) {
    static fxa__dnn_attention a;
    static const char *const texts[] = {"tensor t : f32[2]\nscore = score + t[b, h]",
                                        "tensor t : f32[2]\nscore = score * t[0, h]"};
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < 4; i++) {
        const support_case one = {.pass = FXA_FORWARD, .sq = 1 + i / 2, .sk = 1000};
        fxa_capture capture = {.size = {2, 2}};
        fxa_problem p = support_problem(&one);
        fxa_program *program = NULL;
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
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

/* How many rows there are in all is no part of the code, unless they reach further than cuDNN's backward counts. */
TEST(packed_rows_that_reach_far) {
    fxa__host *host = NULL;
    fxa_error err;
    fxa__writer keys[3];
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    for (int i = 0; i < 3; i++) {
        static const int64_t totals[3] = {1000, 2000, 1 << 24};
        const support_case packed = {.pass = FXA_BACKWARD, .flags = FXA_VARLEN, .d = 128};
        fxa_problem p = support_problem(&packed);
        fxa__problem *checked = NULL;
        char reason[240];
        p.total_q = p.total_k = totals[i];
        p.q.layout = p.k.layout = p.v.layout = p.o.layout = p.dout.layout = FXA_LAYOUT_BSHD;
        p.dq.layout = p.dk.layout = p.dv_grad.layout = FXA_LAYOUT_BSHD;
        T_INT(support_ask(host, &p, (fxa__dnn_level){91901, 90}, reason), i < 2);
        if (i == 2) T_HAS(reason, "in 32 bits");
        T_OK(fxa__problem_create(host, &p, &checked, &err));
        keys[i] = (fxa__writer){.host = host};
        fxa__dnn_key(NULL, checked, &keys[i]);
        fxa__problem_release(checked);
    }
    T_CHECK(keys[0].size == keys[1].size && memcmp(keys[0].data, keys[1].data, keys[0].size) == 0);
    T_CHECK(keys[0].size != keys[2].size || memcmp(keys[0].data, keys[2].data, keys[0].size) != 0);
    for (int i = 0; i < 3; i++) fxa__writer_free(&keys[i]);
    fxa__host_release(host);
}

/* cuDNN reads pages whose size is a power of two; others are gathered first. */
TEST(pages_of_any_size) {
    static fxa__dnn_attention a;
    static const uint32_t sizes[] = {1, 16, 24, 100};
    fxa__host *host = NULL;
    fxa_error err;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
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

/* On sm_100 cuDNN ends the process over captured tensors whose keys do not lie one after the other; on sm_90 it reads
 * those of 16 bits wrongly, or where they are not: they are copied. */
TEST(keys_of_tensors_lie_together) {
    static const char *const texts[] = {"tensor t : f32[2]\nscore = score + t[k, q]",
                                        "tensor t : bf16[2]\nscore = score * t[k, 1]",
                                        "tensor t : f32[2]\nscore = score + t[q, k]"};
    static const int32_t archs[] = {90, 100, 103};
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (size_t i = 0; i < 9; i++) {
        static fxa__dnn_attention a;
        const support_case plain = {.pass = FXA_FORWARD};
        fxa_capture capture = {.size = {64, 64}};
        fxa_problem p = support_problem(&plain);
        fxa_program *program = NULL;
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
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

T_MAIN
