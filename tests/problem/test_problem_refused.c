/* SPDX-License-Identifier: Apache-2.0
 *
 * Refused problems: each with its status and complete text.
 */
#include "problem_case.h"

/* Changes one thing and checks status and complete text of the refusal. */
#define REFUSED(base, words, change)                                                                                   \
    do {                                                                                                               \
        fxa_problem p = base;                                                                                          \
        fxa__problem *made = (fxa__problem *)&p;                                                                       \
        change;                                                                                                        \
        T_STATUS(fxa__problem_create(case_host(), &p, &made, &err), FXA_E_PROBLEM);                                    \
        T_STR(err.text, words);                                                                                        \
        T_CHECK(made == NULL);                                                                                         \
        fxa__problem_release(made);                                                                                    \
    } while (0)

TEST(refused_flags) {
    REFUSED(case_forward(), "pass is 2: accepted are 0 (forward) and 1 (backward)", p.pass = 2);
    REFUSED(case_forward(), "flags holds 0x20000000, which this library does not know: accepted bits are 0x1fffffff",
            p.flags = 1u << 29);
    REFUSED(case_forward(),
            "flags FXA_Q_START and FXA_BOTTOM_RIGHT are both set: both say where rows lie among the keys",
            p.flags = FXA_Q_START | FXA_BOTTOM_RIGHT);
    REFUSED(case_forward(),
            "FXA_BOTTOM_RIGHT moves rows 2147483640..2147483644 by k_len - q_len, 4 to 4: "
            "coordinates are 32 bit",
            p.flags = FXA_BOTTOM_RIGHT;
            p.map_q.base = INT32_MAX - 7; p.sk = 9);
    REFUSED(case_forward(),
            "FXA_BOTTOM_RIGHT moves rows -2147483648..-2147483644 by k_len - q_len, -5 to 8: "
            "coordinates are 32 bit",
            p.flags = FXA_BOTTOM_RIGHT | FXA_PADDING;
            p.map_q.base = INT32_MIN; p.sk = 9);
    REFUSED(case_forward(),
            "FXA_BOTTOM_RIGHT moves rows 0..2147483647 by k_len - q_len, 1 to 1: "
            "coordinates are 32 bit",
            p.flags = FXA_BOTTOM_RIGHT;
            p.global_q_len = 5; p.global_k_len = 6; p.map_q.kind = FXA_MAP_SEGMENTS; p.map_q.n_segments = 2;
            p.map_q.segment[1].begin = 1; p.map_q.segment[1].base = INT32_MAX - 3);
    REFUSED(case_forward(), "flags FXA_SINKS and FXA_SINK_ZERO are both set: a softmax has one sink at most",
            p.flags = FXA_SINKS | FXA_SINK_ZERO);
    REFUSED(case_forward(), "flag FXA_ACCUMULATE_O needs FXA_RETURN_LSE", p.flags = FXA_ACCUMULATE_O);
    REFUSED(case_backward(), "flag FXA_RETURN_ROW_MAX belongs to forward, and pass is backward",
            p.flags |= FXA_RETURN_ROW_MAX);
    REFUSED(case_backward(), "flag FXA_ACCUMULATE_O belongs to forward, and pass is backward",
            p.flags |= FXA_ACCUMULATE_O);
    REFUSED(case_backward(), "flag FXA_GRAD_SINKS needs FXA_SINKS", p.flags |= FXA_GRAD_SINKS);
    REFUSED(case_backward(), "flag FXA_ACCUMULATE_DQ needs FXA_GRAD_Q", p.flags = FXA_GRAD_K | FXA_ACCUMULATE_DQ);
    REFUSED(case_backward(), "flag FXA_ACCUMULATE_DK needs FXA_GRAD_K", p.flags = FXA_GRAD_Q | FXA_ACCUMULATE_DK);
    REFUSED(case_backward(), "flag FXA_ACCUMULATE_DV needs FXA_GRAD_V", p.flags = FXA_GRAD_Q | FXA_ACCUMULATE_DV);
    REFUSED(case_backward(), "flag FXA_ACCUMULATE_DSINKS needs FXA_GRAD_SINKS",
            p.flags |= FXA_SINKS | FXA_ACCUMULATE_DSINKS);
    REFUSED(case_backward(), "flag FXA_ACCUMULATE_DTENSORS needs a capture with grad set",
            p.flags |= FXA_ACCUMULATE_DTENSORS);
    REFUSED(case_backward(), "flag FXA_ACCUMULATE_DPARAMS needs a bit of param_grads",
            p.flags |= FXA_ACCUMULATE_DPARAMS);
    REFUSED(case_backward(),
            "pass is backward and no gradient is asked for: set FXA_GRAD_Q, FXA_GRAD_K, FXA_GRAD_V, FXA_GRAD_SINKS, "
            "grad of a capture or a bit of param_grads",
            p.flags = 0);
}

TEST(backward_flags_in_forward) {
    const uint32_t flags[] = {FXA_READ_DLSE,
                              FXA_GRAD_Q,
                              FXA_GRAD_K,
                              FXA_GRAD_V,
                              FXA_GRAD_SINKS,
                              FXA_ACCUMULATE_DQ,
                              FXA_ACCUMULATE_DK,
                              FXA_ACCUMULATE_DV,
                              FXA_ACCUMULATE_DSINKS,
                              FXA_ACCUMULATE_DTENSORS,
                              FXA_ACCUMULATE_DPARAMS};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        fxa_problem p = case_forward();
        fxa__problem *made;
        p.flags = flags[i];
        T_STATUS(fxa__problem_create(case_host(), &p, &made, &err), FXA_E_PROBLEM);
        T_HAS(err.text, "belongs to backward, and pass is forward");
    }
}

TEST(refused_sizes) {
    REFUSED(case_forward(), "b is -1: accepted are 0 to 2147483647 (program coordinates are 32 bit)", p.b = -1);
    REFUSED(case_forward(), "hq is -1: accepted are 0 to 2147483647 (program coordinates are 32 bit)", p.hq = -1);
    REFUSED(case_forward(), "hkv is -2: accepted are 0 to 2147483647 (program coordinates are 32 bit)", p.hkv = -2);
    REFUSED(case_forward(), "sq is 2147483648: accepted are 0 to 2147483647 (program coordinates are 32 bit)",
            p.sq = INT64_C(1) << 31);
    REFUSED(case_forward(), "sk is -6: accepted are 0 to 2147483647 (program coordinates are 32 bit)", p.sk = -6);
    REFUSED(case_forward(), "d_qk is 600: accepted are 0 to 512", p.d_qk = 600);
    REFUSED(case_forward(), "d_qk is -1: accepted are 0 to 512", p.d_qk = -1);
    REFUSED(case_forward(), "d_v is 513: accepted are 0 to 512 (0: as d_qk), and -1 for none", p.d_v = 513);
    REFUSED(case_forward(), "d_v is -2: accepted are 0 to 512 (0: as d_qk), and -1 for none", p.d_v = -2);
    REFUSED(case_forward(), "hq is 6 and hkv is 4: hq must be a multiple of hkv", (p.hq = 6, p.hkv = 4));
    REFUSED(case_forward(), "total_q is -1: accepted are 0 to 2147483647 (offsets are 32 bit)",
            (p.flags = FXA_VARLEN, p.total_q = -1));
    REFUSED(case_forward(), "total_k is 4294967296: accepted are 0 to 2147483647 (offsets are 32 bit)",
            (p.flags = FXA_VARLEN, p.total_k = INT64_C(1) << 32));
    REFUSED(case_forward(), "page_size is 0: accepted are 1 to 2147483647", (p.flags = FXA_PAGED, p.n_pages = 3));
    REFUSED(case_forward(), "n_pages is -1: accepted are 0 to 2147483647 (page numbers are 32 bit)",
            (p.flags = FXA_PAGED, p.page_size = 4, p.n_pages = -1));
    REFUSED(case_forward(), "global_q_len is -3: accepted are 0 to 2147483647 (program coordinates are 32 bit)",
            p.global_q_len = -3);
    REFUSED(case_forward(), "global_k_len is 2147483648: accepted are 0 to 2147483647 (program coordinates are 32 bit)",
            p.global_k_len = INT64_C(1) << 31);
    REFUSED(case_forward(), "window_left is 2147483648: accepted are -1 to 2147483647 (-1 does not limit the window)",
            (p.flags = FXA_WINDOW, p.window_left = INT64_C(1) << 31));
    REFUSED(case_forward(), "window_left is -2: accepted are -1 to 2147483647 (-1 does not limit the window)",
            (p.flags = FXA_WINDOW, p.window_left = -2, p.window_right = -1));
    REFUSED(case_forward(),
            "window_right is -9223372036854775808: accepted are -1 to 2147483647 (-1 does not limit the window)",
            (p.flags = FXA_WINDOW, p.window_left = -1, p.window_right = INT64_MIN));
    REFUSED(case_forward(), "dropout_p is 0.25 without flag FXA_DROPOUT", p.dropout_p = 0.25);
    REFUSED(case_forward(), "dropout_p is 1: accepted are 0 <= p < 1", (p.flags = FXA_DROPOUT, p.dropout_p = 1));
    REFUSED(case_forward(), "dropout_p is -0.5: accepted are 0 <= p < 1", (p.flags = FXA_DROPOUT, p.dropout_p = -0.5));
    REFUSED(case_forward(), "dropout_p is nan: accepted are 0 <= p < 1",
            (p.flags = FXA_DROPOUT, p.dropout_p = fabs(NAN)));
}

TEST(refused_dtypes) { /* the text names them */
    REFUSED(case_forward(), "q.dtype is i32: accepted are f64, f32, f16, bf16, e4m3, e5m2", p.q.dtype = FXA_I32);
    REFUSED(case_forward(), "o.dtype is 77 (no dtype): accepted are f64, f32, f16, bf16, e4m3, e5m2", p.o.dtype = 77);
#define WIDE "arithmetic is in f64 when all three are f64, and in f32 when none is"
    REFUSED(case_forward(), "q, k, v have dtypes f16, f16, f64: " WIDE, (p.q.dtype = FXA_F16, p.v.dtype = FXA_F64));
    REFUSED(case_forward(), "q, k, v have dtypes f64, bf16, f64: " WIDE, (p.q.dtype = FXA_F64, p.k.dtype = FXA_BF16));
    REFUSED(case_backward(), "q, k, v have dtypes f32, f64, f64: " WIDE, (p.k.dtype = FXA_F64, p.v.dtype = FXA_F64));
    REFUSED(case_forward(), "lse.dtype is bf16 and q.dtype is f32: accepted is f32 or f64",
            (p.flags = FXA_RETURN_LSE, p.lse.dtype = FXA_BF16));
    REFUSED(case_forward(), "lse.dtype is f32 and q.dtype is f64: accepted is f64",
            (p.flags = FXA_RETURN_LSE, p.q.dtype = FXA_F64, p.lse.dtype = FXA_F32));
    REFUSED(case_forward(), "row_max.dtype is f64 and q.dtype is f32: accepted is f32",
            (p.flags = FXA_RETURN_ROW_MAX, p.row_max.dtype = FXA_F64));
    REFUSED(case_backward(), "dlse.dtype is f32 and q.dtype is f64: accepted is f64",
            (p.flags |= FXA_READ_DLSE, p.q.dtype = FXA_F64, p.dlse.dtype = FXA_F32));
    REFUSED(case_forward(), "sinks.dtype is u8: accepted are f64, f32, f16, bf16, e4m3, e5m2",
            (p.flags = FXA_SINKS, p.sinks.dtype = FXA_U8));
}

TEST(refused_layouts) {
    REFUSED(case_forward(), "k.layout is 4: accepted are 0 to 3 (BHSD, BSHD, SBHD, STRIDED)", p.k.layout = 4);
    REFUSED(case_forward(),
            "o overlaps itself: sizes [2,4,5,3], strides [60,15,2,1]; an output needs a place for each element, "
            "shown by strides that nest",
            p.o = ((fxa_operand){0, FXA_LAYOUT_STRIDED, {60, 15, 2, 1}}));
    REFUSED(case_backward(),
            "dk overlaps itself: sizes [2,2,6,8], strides [96,0,8,1]; an output needs a place for each element, "
            "shown by strides that nest",
            p.dk = ((fxa_operand){0, FXA_LAYOUT_STRIDED, {96, 0, 8, 1}}));
    REFUSED(case_forward(),
            "q is too large: sizes [2,4,5,8], strides [9223372036854775807,40,8,1] do not fit in 64 bits",
            p.q = ((fxa_operand){0, FXA_LAYOUT_STRIDED, {INT64_MAX, 40, 8, 1}}));
    REFUSED(case_forward(),
            "k is too large: sizes [2147483647,2147483647,2147483647,8], strides [0,0,0,0] do not fit in 64 bits",
            (p.b = p.hq = p.hkv = p.sk = INT32_MAX, p.sq = 0, p.k.layout = FXA_LAYOUT_STRIDED));
}

/* Strides next to a named layout are refused: they would be ignored. */
TEST(refused_strides_without_their_layout) {
#define STRIDES_OF(tensor, layout, sizes)                                                                              \
    tensor ".stride is set and " tensor ".layout is " layout ", which has strides of its own: " sizes                  \
           "; accepted are strides with layout FXA_LAYOUT_STRIDED, or none"
    REFUSED(case_forward(), STRIDES_OF("q", "BHSD", "sizes [2,4,5,8], strides [160,8,32,1]"),
            p.q = ((fxa_operand){0, FXA_LAYOUT_BHSD, {160, 8, 32, 1}}));
    REFUSED(case_forward(), STRIDES_OF("o", "BSHD", "sizes [2,4,5,3], strides [0,0,0,-1]"),
            p.o = ((fxa_operand){0, FXA_LAYOUT_BSHD, {0, 0, 0, -1}}));
    REFUSED(case_backward(), STRIDES_OF("dk", "SBHD", "sizes [2,2,6,8], strides [0,9,0,0]"),
            p.dk = ((fxa_operand){0, FXA_LAYOUT_SBHD, {0, 9, 0, 0}}));
    REFUSED(case_forward(), STRIDES_OF("sinks", "BHSD", "sizes [1,4,1,1], strides [0,2,0,0]"),
            (p.flags = FXA_SINKS, p.sinks.stride[1] = 2));
    fxa_problem p = case_forward(); /* unused fields are ignored */
    fxa__problem *made;
    p.dq.stride[0] = 7;
    T_OK(fxa__problem_create(case_host(), &p, &made, &err));
    fxa__problem_release(made);
}

TEST(refused_strides_of_captures_that_are_dense) {
    fxa_capture captures[3];
    REFUSED(case_captured(captures, false),
            "tensor bias of program has strides and strided is 0, which means dense: sizes [4,5], strides [1,4]; "
            "accepted are strides with strided 1, or none",
            (captures[0].stride[0] = 1, captures[0].stride[1] = 4));
    REFUSED(case_captured(captures, true),
            "the gradient of tensor bias of program has strides and grad_strided is 0, which means dense: sizes [4,5], "
            "strides [9,1]; accepted are strides with grad_strided 1, or none",
            (captures[0].grad = 1, captures[0].grad_stride[0] = 9, captures[0].grad_stride[1] = 1));
}

TEST(refused_overflow_of_dense) {
    fxa_problem p = case_forward();
    fxa__problem *made;
    p.b = p.sq = INT32_MAX;
    p.hq = 1 << 16;
    T_STATUS(fxa__problem_create(case_host(), &p, &made, &err), FXA_E_PROBLEM);
    T_HAS(err.text, "q is too large: sizes [2147483647,65536,2147483647,8]");
}

TEST(refused_programs) {
    fxa_capture captures[3], extra = {{5}, {0}, {0}, 0, 0, 0, 0, {0}};
    REFUSED(case_forward(), "program is a BPROP program: accepted is a SCORE program",
            (p.program = case_bprop(), p.captures = captures, p.n_captures = 1));
    REFUSED(case_captured(captures, true), "bprop is a SCORE program: accepted is a BPROP program",
            p.bprop = case_score());
    REFUSED(case_captured(captures, false), "n_captures is 2 and program has 3 tensors: one for each is needed",
            p.n_captures = 2);
    REFUSED(case_forward(), "n_captures is 3 and program has 0 tensors: one for each is needed", p.n_captures = 3);
    REFUSED(case_captured(captures, false), "captures is NULL and program has 3 tensors", p.captures = NULL);
    REFUSED(case_captured(captures, true), "n_bprop_captures is 0 and bprop has 1 tensor: one for each is needed",
            p.bprop = case_bprop());
    REFUSED(case_captured(captures, false), "bprop is set, and pass is forward: it belongs to backward",
            (p.bprop = case_bprop(), p.bprop_captures = &extra, p.n_bprop_captures = 1));
    REFUSED(case_captured(captures, false), "grad of a capture is set, and pass is forward: it belongs to backward",
            captures[0].grad = 1);
    REFUSED(case_captured(captures, false), "param_grads is set, and pass is forward: it belongs to backward",
            p.param_grads = 1);
    REFUSED(case_captured(captures, true), "param_grads selects param 2, and program has 2 params", p.param_grads = 4);
    REFUSED(case_captured(captures, true),
            "param_grads selects param shift, which is an int: only floats have a gradient", p.param_grads = 2);
}

TEST(refused_captures) {
    fxa_capture captures[3], extra = {{5}, {0}, {0}, 0, 1, 0, 0, {0}};
    REFUSED(case_captured(captures, false), "reserved of captures[1] is not 0: was it filled with zeroes?",
            captures[1].reserved[1] = 1);
    REFUSED(case_captured(captures, false), "reserved of captures[2] is not 0: was it filled with zeroes?",
            captures[2].reserved[0] = 1);
    REFUSED(case_captured(captures, true),
            "the gradient of tensor ids is asked for, and it is i64: only float tensors have one",
            captures[1].grad = 1);
    REFUSED(case_captured(captures, true),
            "grad_dtype of tensor bias is i8: accepted are f64, f32, f16, bf16, e4m3, e5m2",
            (captures[0].grad = 1, captures[0].grad_dtype = FXA_I8));
    REFUSED(case_captured(captures, false), "size 1 of tensor bias of program is -5: accepted are 0 and more",
            captures[0].size[1] = -5);
    REFUSED(case_captured(captures, false),
            "tensor bias of program is too large: sizes [4294967296,4294967296], strides [4294967296,1] do not fit in "
            "64 bits",
            captures[0].size[0] = captures[0].size[1] = INT64_C(1) << 32);
    REFUSED(
        case_captured(captures, true),
        "the gradient of tensor bias of program overlaps itself: sizes [4,5], strides [4,1]; an output needs a place "
        "for each element, shown by strides that nest",
        (captures[0].grad = captures[0].grad_strided = 1, captures[0].grad_stride[0] = 4,
         captures[0].grad_stride[1] = 1));
    REFUSED(case_captured(captures, true),
            "grad of tensor extra of bprop is set: only tensors of program have gradients",
            (p.bprop = case_bprop(), p.bprop_captures = &extra, p.n_bprop_captures = 1));
}

TEST(refused_maps) {
    REFUSED(case_forward(), "map_b.kind is 3: accepted are 0 to 2 (AFFINE, SEGMENTS, TABLE)", p.map_b.kind = 3);
    REFUSED(case_forward(), "map_h.reserved is 1: accepted is 0", p.map_h.reserved = 1);
    REFUSED(case_forward(), "map_q maps 5 indices to 2147483644 + 1 * i: coordinates are 32 bit",
            p.map_q.base = INT32_MAX - 3);
    REFUSED(case_forward(), "map_k maps 6 indices to 0 + 4611686018427387904 * i: coordinates are 32 bit",
            p.map_k.step = INT64_C(1) << 62);
    REFUSED(case_forward(), "map_q.n_segments is 0: accepted are 1 to 16", p.map_q.kind = FXA_MAP_SEGMENTS);
    REFUSED(case_forward(), "map_q.n_segments is 17: accepted are 1 to 16",
            (p.map_q.kind = FXA_MAP_SEGMENTS, p.map_q.n_segments = 17));
    REFUSED(case_forward(), "map_q.segment[0].begin is 1: the first is 0, the others ascend",
            (p.map_q.kind = FXA_MAP_SEGMENTS, p.map_q.n_segments = 1, p.map_q.segment[0].begin = 1));
    REFUSED(case_forward(), "map_q.segment[2].begin is 2: the first is 0, the others ascend",
            (p.map_q.kind = FXA_MAP_SEGMENTS, p.map_q.n_segments = 3, p.map_q.segment[1].begin = 2,
             p.map_q.segment[2].begin = 2));
    REFUSED(case_forward(), "map_k.segment[1] maps 2 indices to -2147483648 + -1 * i: coordinates are 32 bit",
            (p.map_k.kind = FXA_MAP_SEGMENTS, p.map_k.n_segments = 2, p.map_k.segment[1].begin = 4,
             p.map_k.segment[1].base = INT32_MIN, p.map_k.segment[1].step = -1));
    REFUSED(case_forward(), "map_q.segment[0] maps 2 indices to 2147483647 + 1 * i: coordinates are 32 bit",
            (p.map_q.kind = FXA_MAP_SEGMENTS, p.map_q.n_segments = 2, p.map_q.segment[0].base = INT32_MAX,
             p.map_q.segment[1].begin = 2));
}

TEST(refused_places) {
    REFUSED(case_forward(), "device is 2: accepted are 0 (host) and 1 (cuda)", p.device = 2);
    REFUSED(case_forward(), "ordinal is 1 on device host: accepted is 0", p.ordinal = 1);
    REFUSED(case_forward(), "target is set on device host: only plans for another device have one", p.target = "x");
    REFUSED(case_forward(), "flag FXA_GRAPH_CAPTURE is set on device host, which records no graphs",
            p.flags = FXA_GRAPH_CAPTURE);
    REFUSED(case_forward(), "alignment is 24: accepted are 0 and powers of two up to 4096", p.alignment = 24);
    REFUSED(case_forward(), "alignment is 8192: accepted are 0 and powers of two up to 4096", p.alignment = 8192);
    REFUSED(case_forward(), "reserved is 3: accepted is 0", p.reserved = 3);
    REFUSED(case_forward(), "ordinal is -1: accepted are 0 and more", p.device = FXA_CUDA; p.ordinal = -1);
    REFUSED(case_forward(), "flag FXA_BOUNDS_CHECK looks at captured tensors on the host, and device is cuda",
            p.device = FXA_CUDA;
            p.flags = FXA_BOUNDS_CHECK);
}

T_MAIN
