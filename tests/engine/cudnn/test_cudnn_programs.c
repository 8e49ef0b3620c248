/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems and programs that the cuDNN engine refuses, with messages that state the cause and a supported replacement;
 * and how the engine distinguishes graphs. On the stand-ins (tests/standin).
 */
#include "cudnn_fixture.h"

STANDIN_TEST(refusals_name_what_is_wrong) {
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    p.flags |= FXA_DROPOUT, p.dropout_p = 0.25;
    T_HAS(answer_of(ctx, &p).reason, "dropout");
    p = problem_of(&spec, FXA_FORWARD), p.q.layout = FXA_LAYOUT_STRIDED;
    p.q.stride[0] = p.q.stride[1] = 0, p.q.stride[2] = 16, p.q.stride[3] = 1;
    T_HAS(answer_of(ctx, &p).reason, "strides of Q are 0, 0, 16, 1");
    p = problem_of(&spec, FXA_FORWARD), p.k.dtype = FXA_F16;
    T_HAS(answer_of(ctx, &p).reason, "K is f16 and Q bf16");
    p = problem_of(&spec, FXA_FORWARD), p.lse.layout = FXA_LAYOUT_BSHD;
    T_CHECK(answer_of(ctx, &p).supported);
    p = problem_of(&spec, FXA_FORWARD), p.map_q.kind = FXA_MAP_TABLE;
    T_CHECK(answer_of(ctx, &p).supported); /* without a program no k is read */
}

/* Programs that cannot run, with the text that states the reason. */
CONTEXT_TEST(programs_that_are_refused_and_what_to_write_instead) {
    NEEDS_STANDIN;
    static const struct {
        const char *text, *says;
        int64_t size[2];
    } cases[] = {{"score = trunc(score)", "TRUNC", {0}},
                 {"score = round(score)", "ROUND", {0}},
                 {"score = log1p(score)", "LOG1P", {0}},
                 {"score = score ** 1.5", "exponents 2, 3, 4", {0}},
                 {"score = score + float(int(score))", "INT", {0}},
                 {"score = score % 2.0", "MOD", {0}},
                 {"score = score + (k - q) % 3", "(%): of ints cuDNN divides what is known to lie between 0", {0}},
                 {"mask = (q * 524289) // 7 < k", "between 0 and 2^22", {0}}, /* 9 rows: beyond */
                 {"mask = q // (k + 1) == 2", "(//): of ints cuDNN divides by positive constants", {0}},
                 {"mask = (q < 5 ? q : q - 5) < k", "(where): cuDNN selects between floats; write float(x)", {0}},
                 {"score = score * 2.0 ** h", "2 ** x as exp2(x)", {0}},
                 {"mask = (q ^ k) < 3", "XOR", {0}},
                 {"mask = (q << 1) < k", "SHL", {0}},
                 {"mask = q >> 3 == k >> 3", "(>>): cuDNN has no shifts; of x >> 3 write x // 8", {0}},
                 {"score = 1.0 + 0.5 * q", "does not depend on the score", {0}},
                 {"tensor t : f32[1]\nscore = score + t[q - k]", "index 0 of t is computed (operation SUB)", {9}},
                 {"tensor t : f32[1]\nscore = score + t[k - q]", "; gather it into a tensor of these before", {9}},
                 {"tensor t : f32[1]\nscore = score + t[7]", "axis 0 of t has 4 elements, and is read at 7", {4}},
                 {"tensor t : i32[1]\nscore = score + t[q]", "2^24; clamp them, or take a tensor of i16 or f32", {9}},
                 {"param w : int\nmask = k <= q + w", "wrap", {0}},
                 {"tensor x : i64[1]\ntensor y : i64[1]\nmask = x[q] == y[k]",
                  "i64 tensors: cuDNN compares ints of 32 bits; take i32",
                  {12, 12}},
                 /* the replacement that a message suggests is supported */
                 {"score = score + (k - q + 300) % 3", NULL, {0}},
                 {"mask = q // 8 == k // 8", NULL, {0}},
                 {"mask = (q < 5 ? float(q) : float(q - 5)) < k", NULL, {0}},
                 {"score = score * exp2(h)", NULL, {0}},
                 {"tensor t : i32[1]\nscore = score + clamp(t[q], 0, 999)", NULL, {16}},
                 {"tensor t : i16[1]\nscore = score + t[q]", NULL, {16}},
                 {"tensor x : i32[1]\ntensor y : i32[1]\nmask = x[q] == y[k]", NULL, {16, 16}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_problem p = problem_of(&spec, FXA_FORWARD);
        t_program *program = NULL;
        fxa_capture captures[2];
        memset(captures, 0, sizeof captures);
        T_OK(fxa_program_parse(ctx, cases[i].text, SIZE_MAX, &program, &err));
        captures[0].size[0] = cases[i].size[0], captures[1].size[0] = cases[i].size[1];
        p.program = program, p.captures = captures, p.n_captures = program ? fxa_program_tensor_count(program) : 0;
        fxa_support said = answer_of(ctx, &p);
        const char *says = cases[i].says ? cases[i].says : "";
        if (said.supported != !cases[i].says || !strstr(said.reason, says))
            T_FAIL("%s: %s, without \"%s\"\n", cases[i].text, said.supported ? "yes" : said.reason, says);
    }
}

/* In addition to its own two, a backward pass supports two uses of tensors with a value per row. */
STANDIN_TEST(values_per_row_in_backward) {
    static const char *const texts[4] = {"tensor t : f32[2]\nscore = score + t[q, 0] + t[q, 1]",
                                         "tensor t : f32[2]\nscore = score + t[q, 0] + t[q, 1] + t[q, 2]",
                                         "tensor t : f64[2]\nscore = score + t[q, 0] + t[q, 1]", /* these are copied */
                                         "tensor t : f64[2]\nscore = score + t[q, 0] + t[q, 1] + t[q, 2]"};
    for (int i = 0; i < 8; i++) {
        fxa_pass pass = (fxa_pass)(i & 1);
        fxa_problem p = problem_of(&spec, pass);
        fxa_capture capture = {.size = {9, 3}};
        t_program *program = NULL;
        T_OK(fxa_program_parse(ctx, texts[i / 2], SIZE_MAX, &program, &err));
        p.program = program, p.captures = &capture, p.n_captures = 1;
        fxa_support said = answer_of(ctx, &p);
        T_INT(said.supported, !(pass == FXA_BACKWARD && (i / 2 & 1)));
        if (!said.supported)
            T_HAS(said.reason, "values of rows or entries (t[q], t[b], positions, coordinate maps) are used 3 times: "
                               "on sm_90 cuDNN's backward of bf16 takes 2");
    }
}

/* Every operation of the language, on the score and on ints, is lowered or refused by name. */
STANDIN_TEST(every_operation_is_lowered_or_named) {
    int lowered = 0, named = 0;
    for (size_t i = 0; fxa_op_syntax(i).text; i++) {
        for (int ints = 0; ints < 2; ints++) {
            fxa_op_syntax_info info = fxa_op_syntax(i);
            t_builder *b = NULL;
            t_program *program = NULL;
            T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
            fxa_value score = fxa_builder_input(b, FXA_INPUT_SCORE), q = fxa_builder_input(b, FXA_INPUT_Q);
            fxa_value args[3] = {ints ? q : score, fxa_builder_input(b, FXA_INPUT_K), fxa_builder_int(b, 3)};
            if (info.op == FXA_OP_SELECT) args[0] = fxa_builder_op2(b, FXA_OP_LT, score, fxa_builder_float(b, 1));
            fxa_value x = fxa_builder_op(b, info.op, args, (size_t)info.arity);
            fxa_builder_set_score(b, fxa_builder_op2(b, FXA_OP_ADD, score, x));
            if (fxa_builder_finish(b, &program, &err) == FXA_OK) {
                fxa_problem p = problem_of(&spec, FXA_FORWARD);
                p.program = program;
                fxa_support said = answer_of(ctx, &p);
                if (!said.supported) T_HAS(said.reason, "operation ");
                lowered += said.supported, named += !said.supported;
            }
        }
    }
    T_CHECK(lowered > 40 && named > 10);
}

/* Text of a plan in explain: operations, params and tensors by name, and cuDNN's form of masks. */
STANDIN_TEST(graphs_for_people) {
    static const struct {
        const char *text, *says[4];
        uint32_t flags;
    } cases[] = {{"param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q && q - k < 5",
                  {"matmul(Q, K)", "tanh_fwd(", ", cap)", "# causal: tiles outside are left out"},
                  0},
                 {"tensor doc : i32[1]\ntensor bias : f64[1]\nscore = score + bias[k]\nmask = doc[q] == doc[k]",
                  {", doc)", "# a mask that is evaluated at every pair", "before cuDNN's kernel: copy", "O = matmul("},
                  0},
                 {"tensor doc : i32[1]\nmask = doc[q] + 1073741824 == doc[k] + 1073741825",
                  {", doc)", ", 1073741824)", ", 1073741825)", "cmp_eq("},
                  0},
                 {"param w : int\nmask = q - k < w", {", w)", "# window: ", "index k", "LSE = add("}, 0},
                 {"score = score + 0.5 * k",
                  {"before cuDNN's kernel: batch_bounds", "# lengths: ", ", 0.5)", "# lengths: "},
                  FXA_PADDING}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_problem p = problem_of(&spec, FXA_FORWARD);
        fxa_capture captures[2] = {{.size = {12}}, {.size = {12}}};
        t_program *program = NULL;
        t_plan *plan = NULL;
        char text[4000] = "";
        T_OK(fxa_program_parse(ctx, cases[i].text, SIZE_MAX, &program, &err));
        p.program = program, p.captures = captures, p.n_captures = program ? fxa_program_tensor_count(program) : 0;
        p.flags |= cases[i].flags;
        T_OK(fxa_plan_create(ctx, &p, &plan, &err));
        if (plan) T_OK(fxa_plan_dump(plan, text, sizeof text, NULL, &err));
        for (int j = 0; j < 4; j++) T_HAS(text, cases[i].says[j]);
    }
}

TEST(no_engine_of_cudnn) { /* */
    NEEDS_STANDIN;
    fxa_context *ctx = t_context();
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    standin[1]->no_engine = true, standin[1]->tried = 2;
    T_STR(answer_of(ctx, &p).reason,
          "none of 2 engines of cuDNN takes this graph of 10 operations; the first says: the "
          "stand-in has no engine");
    fxa_context_destroy(ctx);
    ctx = t_context(); /* answers are kept */
    standin[1]->tried = 0;
    T_STR(answer_of(ctx, &p).reason, "cuDNN has no engine for this graph of 10 operations");
    standin[1]->no_engine = false;
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* Captured tensors of 8-bit floats, over which cuDNN ends the process, are converted first, so every bit of the result
 * equals that with the same numbers in f32. Runs on a device too. */
TEST(captured_floats_of_8_bits) {
    static const char *const texts[2] = {"tensor t : %s[2]\nscore = score + t[q, k]\nmask = k <= q + 3",
                                         "tensor t : %s[1]\nscore = score * t[h] + t[h]"};
    static const fxa_dtype dtypes[3] = {FXA_F32, FXA_E4M3, FXA_E5M2};
    if (cudnn_missing()) T_SKIP(cudnn_missing());
    fxa_context *ctx = t_context();
    for (int i = 0; i < 4; i++) {
        T_ENDED(attn_drop) attn_kept kept = {{NULL}};
        double in[128];
        for (int j = 0; j < 3; j++) {
            char text[100];
            attn_spec s = spec;
            attn_owned x = {0};
            snprintf(text, sizeof text, texts[i / 2], fxa_dtype_name(dtypes[j]));
            s.text = text, s.tensor[0][0] = i < 2 ? s.sq : s.hq, s.tensor[0][1] = s.sk;
            T_OK(attn_data_make(&x, ctx, &s, 77, &err));
            int64_t n = attn_tensor_places(&x.tensor[0]);
            T_REQUIRE(n <= 128);
            for (int64_t at = 0; at < n; at++) { /* values that all three dtypes have */
                if (!j) in[at] = attn_round(FXA_E4M3, attn_round(FXA_E5M2, attn_get(&x.tensor[0], at)));
                attn_set(&x.tensor[0], at, in[at]);
            }
            x.captures[0].grad = 0, x.problem.alignment = 16;
            if (i & 1) T_OK(data_run(&x, ctx, FXA_FORWARD, &err));
            T_OK(data_run(&x, ctx, (fxa_pass)(i & 1), &err));
            const char *other = attn_other_bits(&x, (fxa_pass)(i & 1), &kept);
            if (other) T_FAIL("%s: %s is not what it is with f32\n", text, other);
        }
    }
    fxa_context_destroy(ctx);
    if (standin_ready()) standin_check_end();
}

T_MAIN
