/* SPDX-License-Identifier: Apache-2.0
 *
 * The support table of the cuDNN engine: for each row a case with the row's reason, and a supported neighbour. Needs no
 * cuDNN: versions and devices are given.
 */
#include "cudnn_cases.h"

enum { SUPPORT_MOST = 64 };

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
    {.says = "d_qk and d_v of 128", H200, BYTES, .pass = FXA_BACKWARD},
    {.says = "d_qk and d_v of 128", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dv = 64},
    {.says = "d_qk and d_v of 128", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .taken = true},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .o = FXA_E5M2},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dout = FXA_BF16},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dq = FXA_F32},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dout = FXA_E5M2, .taken = true},
    {.says = "O is to be e4m3", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .dq = FXA_E5M2, .taken = true},
    {.says = "beside gradients of 8", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .flags = FXA_DETERMINISTIC},
    {.says = "beside gradients of 8", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .flags = FXA_PADDING},
    {.says = "beside gradients of 8", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .flags = FXA_READ_DLSE},
    {.says = "beside gradients of 8", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .flags = FXA_ACCUMULATE_DQ},
    {.says = "are to be e4m3", H200, .dtype = FXA_E5M2},
    {.says = "multiples of 16", H200, BYTES, .d = 72},
    {.says = "multiples of 16", H200, BYTES, .d = 80, .dv = 48, .taken = true},
    {.says = "no pass of one row", H200, BYTES, .sq = 1},
    {.says = "no pass of one row", H200, BYTES, .pass = FXA_BACKWARD, .sq = 1, .d = 128},
    {.says = "no pass of one row", H200, BYTES, .sq = 2, .taken = true},
    {.says = "O is to be e4m3 or e5m2", H200, BYTES, .o = FXA_BF16},
    {.says = "O is to be e4m3 or e5m2", H200, BYTES, .o = FXA_F32},
    {.says = "O is to be e4m3 or e5m2", H200, BYTES, .o = FXA_E5M2, .taken = true},
    {.says = "touches memory outside", H200, BYTES, .d = 128, .dv = 144},
    {.says = "touches memory outside", H200, BYTES, .d = 144, .dv = 256, .taken = true},
    {.says = "touches memory outside", H200, BYTES, .d = 16, .dv = 128, .taken = true},
    {.says = "9.19, no newer", .version = 92000, .arch = 90, BYTES},
    {.says = "leaves out part of dQ", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .sq = 72},
    {.says = "leaves out part of dQ", H200, BYTES, .pass = FXA_BACKWARD, .d = 128, .sq = 80, .sk = 3, .taken = true},
    {.says = "leaves out part of dQ", H200, BYTES, .sq = 73, .taken = true},
    {.says = "LSE is to be f32", H200, BYTES, .lse = FXA_F64},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_PADDING},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_SINK_ZERO},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_RETURN_ROW_MAX},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_SCALARS_IN_MEMORY},
    {.says = "not tried beside floats of 8", H200, BYTES, .flags = FXA_CAUSAL | FXA_SCALED, .taken = true},
    {.says = "alignment is 8: cuDNN requires pointers that are multiples of 16", H200, .alignment = 8},
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
    {.says = "at most 256", H200, .d = 257}, /* the reason is the maximum, not that 257 is odd */
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
    {.says = "wrong beyond element 128 of the head dim",
     .version = 91400,
     .arch = 90,
     .pass = FXA_BACKWARD,
     .flags = FXA_VARLEN,
     .d = 136},
    {.says = "wrong where d_qk is above 192", H200, .pass = FXA_BACKWARD, .flags = FXA_PADDING, .d = 200, .dv = 128},
    {.says = "wrong where d_qk is above 192",
     H200,
     .pass = FXA_BACKWARD,
     .flags = FXA_PADDING,
     .d = 200,
     .dv = 136,
     .taken = true},
    {.says = "wrong where d_qk is above 192",
     H200,
     .pass = FXA_BACKWARD,
     .flags = FXA_PADDING,
     .d = 192,
     .dv = 128,
     .taken = true},
    {.says = "wrong where d_qk is above 192", H200, .pass = FXA_BACKWARD, .d = 256, .dv = 64, .taken = true},
    {.says = "wrong beyond element 128 of the head dim",
     .version = 91400,
     .arch = 90,
     .flags = FXA_PADDING,
     .d = 136,
     .taken = true},
    {.says = "wrong beyond element 128 of the head dim",
     H200,
     .pass = FXA_BACKWARD,
     .flags = FXA_PADDING,
     .d = 192,
     .taken = true},
    {.says = "no gradients of pages", H200, .pass = FXA_BACKWARD, .flags = FXA_PAGED, .page_size = 16},
    {.says = "no gradients of pages", H200, .flags = FXA_PAGED, .page_size = 16, .taken = true},
    {.says = "no sink for one row", H200, .flags = FXA_SINK_ZERO, .sq = 1},
    {.says = "no sink for one row", H200, .flags = FXA_SINKS, .taken = true},
    {.says = "16 bits or more", H200, .flags = FXA_SINKS, .sink = FXA_E5M2},
    {.says = "none beside lengths", H200, .flags = FXA_SINKS | FXA_PADDING},
    {.says = "beside a sink", H200, .flags = FXA_SINKS | FXA_RETURN_ROW_MAX},
    {.says = "beside lengths of entries cuDNN does not write", H200, .flags = FXA_PADDING | FXA_RETURN_ROW_MAX},
    {.says = "beside lengths of entries cuDNN does not write", H200, .flags = FXA_RETURN_ROW_MAX, .taken = true},
    {.says = "two values per row", .version = 91901, .arch = 80, .pass = FXA_BACKWARD, .flags = FXA_READ_DLSE},
    {.says = "two values per row", .version = 91901, .arch = 120, .pass = FXA_BACKWARD, .flags = FXA_READ_DLSE},
    {.says = "two values per row", H200, .pass = FXA_BACKWARD, .flags = FXA_READ_DLSE, .taken = true},
    {.says = "without FXA_DETERMINISTIC",
     .version = 91901,
     .arch = 100,
     .pass = FXA_BACKWARD,
     .flags = FXA_READ_DLSE | FXA_DETERMINISTIC},
    {.says = "without FXA_DETERMINISTIC",
     .version = 91901,
     .arch = 100,
     .pass = FXA_BACKWARD,
     .flags = FXA_READ_DLSE,
     .taken = true},
    {.says = "without FXA_DETERMINISTIC",
     H200,
     .pass = FXA_BACKWARD,
     .flags = FXA_READ_DLSE | FXA_DETERMINISTIC,
     .taken = true},
};

static void support_hit(bool hit[SUPPORT_MOST], const char *reason) {
    for (size_t i = 0; fxa__dnn_support_why(i); i++)
        if (strstr(reason, fxa__dnn_support_why(i))) hit[i] = true;
}

/* Gradients of captured tensors: the supported one, and a variant for each property that is not supported. */
static void support_ask_grads(fxa__host *host, fxa_context *ctx, bool hit[SUPPORT_MOST]) {
    static const struct {
        const char *says; /* part of the reason; NULL: supported */
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
                 {"not tried beside it", 90, 64, 2, FXA_READ_DLSE, 1, false, false, false},
                 {"not tried beside it", 90, 64, 2, FXA_ACCUMULATE_DTENSORS, 1, false, false, false},
                 {"not tried beside it", 90, 64, 2, FXA_PADDING, 1, false, false, false},
                 {"beside those of 8 bits", 90, 64, 2, 0, 1, false, false, true}};
    t_program *program = NULL, *bprop = NULL;
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
        if (cases[i].bytes) p.q.dtype = FXA_E4M3, p.d_qk = 128;
        fxa_capture captures[2] = {{.size = {cases[i].sq, 128}, .grad = 1},
                                   {.size = {cases[i].sq, 128}, .grad = cases[i].tensors > 1}};
        char reason[SUPPORT_REASON];
        if (cases[i].wide) captures[0].grad_dtype = FXA_F32;
        p.program = program, p.captures = captures, p.n_captures = 2, p.hkv = cases[i].hkv;
        p.bprop = cases[i].own ? bprop : NULL;
        bool yes = support_ask(host, &p, (fxa__dnn_level){91901, cases[i].arch}, reason);
        if (yes != !cases[i].says) T_FAIL("case %zu: %s\n", i, yes ? "taken" : reason);
        if (cases[i].says) T_HAS(reason, cases[i].says);
        support_hit(hit, reason);
    }
}

static void support_ask_masked_rows(fxa__host *host, fxa_context *ctx, bool hit[SUPPORT_MOST]) {
    static const char *const texts[] = {"mask = k >= q", "score = score * 2.0"};
    for (int i = 0; i < 6; i++) {
        const support_case plain = {H200, .pass = i / 2 == 2 ? FXA_FORWARD : FXA_BACKWARD, .sq = i / 2 == 1 ? 2 : 1};
        fxa_problem p = support_problem(&plain);
        t_program *program = NULL;
        fxa_error err;
        char reason[SUPPORT_REASON];
        T_OK(fxa_program_parse(ctx, texts[i % 2], SIZE_MAX, &program, &err));
        p.program = program;
        T_INT(support_ask(host, &p, (fxa__dnn_level){91901, 90}, reason), i != 0);
        if (i == 0) T_HAS(reason, "leaves one row nothing");
        support_hit(hit, reason);
    }
}

/* Tests requests of a problem that are no flags. */
static void support_ask_others(fxa__host *host, bool hit[SUPPORT_MOST]) {
    const support_case plain = {H200, .pass = FXA_BACKWARD};
    t_ctx *ctx = t_context();
    fxa_error err;
    char reason[SUPPORT_REASON];
    t_program *program = NULL;
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
    fxa_problem bytes = support_problem(&(support_case){H200, BYTES, .pass = FXA_BACKWARD, .d = 128});
    fxa_program *own = NULL;
    const fxa_text text = {"bprop", "dscore = dscore", SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = FXA_PROGRAM_BPROP, config.texts = &text, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(ctx, &config, &own, &err));
    T_INT(support_ask(host, &bytes, (fxa__dnn_level){91901, 90}, reason), true);
    bytes.bprop = own;
    T_INT(support_ask(host, &bytes, (fxa__dnn_level){91901, 90}, reason), false);
    support_hit(hit, reason);
    fxa_program_destroy(own);
    support_ask_grads(host, ctx, hit);
    support_ask_masked_rows(host, ctx, hit);
}

TEST(every_row_of_the_table) { /* */
    fxa__host *host = NULL;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    bool hit[SUPPORT_MOST] = {false};
    for (size_t i = 0; i < sizeof support_cases / sizeof *support_cases; i++) {
        const support_case *c = &support_cases[i];
        fxa_problem p = support_problem(c);
        char reason[SUPPORT_REASON];
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

/* A graph has its complete reason; in a report the reason is cut at a word if it does not fit. */
TEST(a_reason_longer_than_a_report_has_room_for) {
    fxa__dnn_graph g = {.status = FXA_OK};
    fxa_support report = {.supported = 1};
    char text[300];
    for (size_t i = 0; i < sizeof text - 1; i++) text[i] = i % 7 == 6 ? ' ' : 'x';
    text[sizeof text - 1] = 0;
    (void)fxa__dnn_refuse(&g, "%s", text);
    T_STR(g.reason, text);
    fxa__support_refuse(&report, g.reason);
    T_STR(report.reason + strlen(report.reason) - 6, "xx ...");
}

T_MAIN
