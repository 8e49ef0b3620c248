/* SPDX-License-Identifier: Apache-2.0
 *
 * Edge cases between the files of src/program: a failed builder, names and numbers at their limits, near misses of soft
 * caps, values that no program accepts, queries without memory.
 */
#include "program/build.h"
#include "program/lex.h"
#include "program/range.h"
#include "support/memory/fail_alloc.h"
#include "t.h"

static fxa_context *edges_context(void) {
    static fxa_context *ctx;
    if (!ctx && fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
    return ctx;
}

static fxa_program *edges_parse(fxa_context *ctx, const char *text) {
    fxa_program *p = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    return p;
}

TEST(a_builder_keeps_its_first_failure) {
    t_builder *b = NULL;
    T_OK(fxa_builder_create(edges_context(), FXA_PROGRAM_SCORE, &b, &err));
    T_REQUIRE(b != NULL);
    T_CHECK(fxa__builder_type(b, -1) == 0 && fxa__builder_type(b, 9) == 0);
    T_CHECK(!fxa__builder_holds(b, 0));
    T_HAS(fxa__builder_error(b)->text, "0 is not a value of this builder: it has none yet");
    T_INT(fxa__builder_fail(b, FXA_E_PROGRAM, "something else"), -1);
    T_INT(fxa__builder_fail_memory(b), -1);
    T_CHECK(!fxa__builder_holds(b, 0) && fxa__builder_error(b)->status == FXA_E_ARGUMENT);
    T_HAS(fxa__builder_error(b)->text, "0 is not a value of this builder: it has none yet");
    T_INT(fxa_builder_load(b, 0, NULL, 0), -1);
    fxa_program *p = NULL;
    T_STATUS(fxa_builder_finish(b, &p, &err), FXA_E_ARGUMENT);
    T_INT(fxa_builder_finish(b, &p, NULL), FXA_E_ARGUMENT);
}

TEST(loads_of_tensors_that_are_none) {
    static const int32_t handles[] = {-1, 1};
    for (int i = 0; i < 2; i++) {
        fxa_builder *b = NULL;
        T_OK(fxa_builder_create(edges_context(), FXA_PROGRAM_SCORE, &b, &err));
        fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), outside = 77;
        int32_t t = fxa_builder_tensor(b, "t", FXA_F32, 1);
        T_INT(fxa_builder_load(b, i ? handles[i] : t, i ? &q : &outside, 1), -1);
        T_CHECK(fxa__builder_failed(b));
        fxa_builder_destroy(b);
        int32_t handle = handles[i];
        T_OK(fxa_builder_create(edges_context(), FXA_PROGRAM_SCORE, &b, &err));
        if (i) handle = fxa_builder_tensor(b, "t", FXA_F32, 1);
        T_INT(fxa_builder_load(b, handle, NULL, (size_t)i), -1);
        T_HAS(fxa__builder_error(b)->text, i ? "tensor 't' has rank 1" : "is not a tensor of this builder");
        fxa_builder_destroy(b);
    }
}

TEST(names_at_their_limits) {
    char name[FXA_MAX_NAME + 4] = "";
    memset(name, 'a', FXA_MAX_NAME);
    T_CHECK(fxa__lex_is_name(name));
    name[FXA_MAX_NAME] = 'a';
    T_CHECK(!fxa__lex_is_name(name));
    T_CHECK(!fxa__lex_is_name("") && !fxa__lex_is_name("a-b") && !fxa__lex_is_name("9a") && fxa__lex_is_name("_9"));
}

TEST(texts_at_their_limits) {
    char text[200];
    fxa_program *p = NULL;
    (void)snprintf(text, sizeof text, "score = 1.%060dx", 1);
    T_STATUS(fxa_program_parse(edges_context(), text, SIZE_MAX, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "'1.00000000000000000000000000000000000000' is not a number");
    char *large = calloc(1, FXA_MAX_TEXT + 2);
    if (!large) abort();
    memset(large, ' ', FXA_MAX_TEXT + 1);
    T_INT(fxa_program_parse(edges_context(), large, FXA_MAX_TEXT + 1, &p, NULL), FXA_E_LIMIT);
    T_STATUS(fxa_program_parse(edges_context(), large, FXA_MAX_TEXT + 1, &p, &err), FXA_E_LIMIT);
    free(large);
    T_STATUS(fxa_program_parse(edges_context(), "score = (1 \xf0\x9f\x98\x80)", SIZE_MAX, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "stray character U+1F600");
    T_STATUS(fxa_program_parse(edges_context(), "score = \xf8\x88\x80\x80\x80", SIZE_MAX, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "stray character \\xf8");
}

TEST(slips_and_what_is_said_of_them) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"score = (score ; mask = k < q)", "this '(' is never closed"},
        {"score = (score\nmask = k < q", "this '(' is never closed"},
        {"score = (score\nscore = 3", "this '(' is never closed"},
        {"score = (score\nlet x = 3", "this '(' is never closed"},
        {"score = (score\ndscore = 3", "this '(' is never closed"},
        {"score = (1 score + 2)", "an operator, ',' or ')'"},
        {"score = (1 q + 2)", "an operator, ',' or ')'"},
        {"tensor t : f32[1]\nscore = t[q q]", "an operator, ',' or ']'"},
        {"tensor t : f32[1]\nlet t = 1", "'t' is a tensor already and cannot be a let"},
        {"param t : float\nlet t = 1", "'t' is a param already and cannot be a let"},
        {"let t = 1\nparam t : float", "'t' is a let already and cannot be a param"},
        {"let q = 1", "'q' is a word of the language and cannot be a let"},
        {"param c : 3", "expected the type, float or int, found '3'"},
        {"param c : float float", "expected the end of the statement"},
        {"let x = 1\nx = 2", "'x' is no output; write let x = ..."},
        {"q = 2", "'q' cannot be assigned"},
        {"score = sum(i, 2, i(3))", "'i' is the name of a loop and cannot be called"},
        {"score = sum(i, 2, i[3])", "'i' is the name of a loop; only a tensor has elements"},
        {"score = pi(3)", "'pi' is a constant and cannot be called"},
        {"tensor t : i32[1]\nmask = q < t[k] < 3", "comparisons do not chain"},
        {"tensor t : i32[1]\nmask = q < t[k] & (3) < 5", "'&' binds tighter than comparisons"},
        {"mask = q < (k & 1) < 5", "comparisons do not chain"},
        {"tensor t : i32[1]\nmask = q < t[k | 2] < 5", "comparisons do not chain"},
        {"score = -", "expected a value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_program *p = NULL;
        T_STATUS(fxa_program_parse(edges_context(), cases[i].text, SIZE_MAX, &p, &err), FXA_E_PROGRAM);
        if (!strstr(err.text, cases[i].says)) T_FAIL("%s: %s\n", cases[i].text, err.text);
    }
}

/* Offered names become declarations when used; more than a program can have is an error then. */
TEST(offers_beyond_the_limits) {
    static fxa_declaration offers[FXA_MAX_PARAMS + 1];
    static char names[FXA_MAX_PARAMS + 1][8], text[1 << 12];
    size_t used = (size_t)snprintf(text, sizeof text, "dscore = dscore");
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_program *p = NULL;
    for (int i = 0; i <= FXA_MAX_PARAMS; i++) {
        (void)snprintf(names[i], sizeof names[i], "p%d", i);
        offers[i] = (fxa_declaration){.name = names[i], .type = FXA_FLOAT};
        if (i < FXA_MAX_PARAMS) used += (size_t)snprintf(text + used, sizeof text - used, " + %s", names[i]);
    }
    fxa_text one = {NULL, text, SIZE_MAX};
    config.kind = FXA_PROGRAM_DERIVATIVE, config.texts = &one, config.n_texts = 1;
    config.declarations = offers, config.n_declarations = FXA_MAX_PARAMS + 1;
    T_OK(fxa_program_parse_texts(edges_context(), &config, &p, &err));
    fxa_program_destroy(p);
    (void)snprintf(text + used, sizeof text - used, " + %s", names[FXA_MAX_PARAMS]);
    T_STATUS(fxa_program_parse_texts(edges_context(), &config, &p, &err), FXA_E_LIMIT);
    (void)snprintf(text + used, sizeof text - used, "\ngrad %s += 1.0", names[FXA_MAX_PARAMS]);
    T_STATUS(fxa_program_parse_texts(edges_context(), &config, &p, &err), FXA_E_LIMIT);
    (void)snprintf(text, sizeof text, "p0 = 3");
    T_STATUS(fxa_program_parse_texts(edges_context(), &config, &p, &err), FXA_E_PROGRAM);
    T_HAS(err.text, "'p0' is no output");
    config.n_declarations = (size_t)INT32_MAX + 1;
    T_STATUS(fxa_program_parse_texts(edges_context(), &config, &p, &err), FXA_E_ARGUMENT);
    config.declarations = NULL, config.n_declarations = 1;
    T_STATUS(fxa_program_parse_texts(edges_context(), &config, &p, &err), FXA_E_ARGUMENT);
}

TEST(tensors_that_bytes_declare_twice) {
    fxa_program *p = edges_parse(edges_context(), "tensor ta : f32[1]\ntensor tb : f32[1]\nscore = ta[q] + tb[k]"),
                *again;
    unsigned char bytes[2000];
    size_t n = 0;
    T_OK(fxa_program_save(p, bytes, sizeof bytes, &n, &err));
    for (size_t i = 0; i + 1 < n; i++)
        if (bytes[i] == 't' && bytes[i + 1] == 'b') bytes[i + 1] = 'a';
    T_STATUS(fxa_program_load(edges_context(), bytes, n, &again, &err), FXA_E_BYTES);
    T_HAS(err.text, "a tensor is declared twice");
    fxa_program_destroy(p);
}

/* cap * tanh(x / cap) is a soft cap; similar expressions are not. */
TEST(soft_caps_that_are_none) {
    static const struct {
        const char *score;
        double cap; /* 0 = none, -1 = the value of the param */
    } cases[] = {
        {"2.0 * tanh(score / 2.0)", 2},
        {"2.0 * tanh(score * 0.5)", 2},
        {"c * tanh(score * (1.0 / c))", -1},
        {"c * tanh((1.0 / c) * score)", -1},
        {"c * tanh(score * (2.0 / c))", 0},
        {"c * tanh(score * (1.0 / d))", 0},
        {"c * tanh(score * d)", 0},
        {"c * tanh(score / d)", 0},
        {"-2.0 * tanh(score / -2.0)", 0},
        {"inf * tanh(score / inf)", 0},
        {"nan * tanh(score / nan)", 0},
        {"2.0 * tanh(score * 0.25)", 0},
        {"2.0 * tanh(score * score)", 0},
        {"tanh(score + 1.0)", 1},
        {"float(q) * tanh(score / float(q))", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        fxa_properties properties;
        (void)snprintf(text, sizeof text, "param c : float\nparam d : float\nscore = %s", cases[i].score);
        t_program *p = edges_parse(edges_context(), text);
        fxa_program_properties(p, &properties);
        bool is_cap = (properties.flags & FXA_PROPERTY_SOFTCAP) != 0;
        if (is_cap != (cases[i].cap != 0) || (is_cap && cases[i].cap > 0 && properties.softcap != cases[i].cap) ||
            (is_cap && cases[i].cap < 0 && properties.softcap_param != 0))
            T_FAIL("%s: %d, cap %g, param %d\n", cases[i].score, is_cap, properties.softcap, properties.softcap_param);
    }
}

TEST(programs_that_are_no_score_programs) {
    fxa_text one = {NULL, "dscore = score", SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    t_program *p = NULL;
    fxa_properties properties;
    char text[100];
    config.kind = FXA_PROGRAM_BPROP, config.texts = &one, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(edges_context(), &config, &p, &err));
    fxa_program_properties(p, &properties);
    T_CHECK(properties.flags == 0 && properties.score_depends == 0 && properties.softcap_param == -1);
    T_OK(fxa_program_print(p, text, sizeof text, NULL, &err));
    T_HAS(text, "dscore = score");
}

TEST(values_that_no_program_takes) {
    static const double coordinates[] = {-3e9, 3e9, 0.5, NAN, INFINITY};
    static const float data[6] = {1, 2, 3, 4, 5, 6};
    fxa_view view = {data, FXA_F32, 1, {6}, {1}};
    t_program *p = edges_parse(edges_context(), "tensor t : f32[1]\nscore = score + t[q]");
    double value = 0, in[FXA_INPUT_COUNT] = {0};
    int mask = 0;
    T_OK(fxa_program_eval(p, in, NULL, &view, &value, &mask, &err));
    T_SAME(value, 1);
    for (size_t i = 0; i < sizeof coordinates / sizeof *coordinates; i++) {
        in[FXA_INPUT_Q] = coordinates[i];
        T_STATUS(fxa_program_eval(p, in, NULL, &view, &value, &mask, &err), FXA_E_BINDING);
    }
    in[FXA_INPUT_Q] = 0;
    T_STATUS(fxa_program_eval(p, in, NULL, NULL, &value, &mask, &err), FXA_E_BINDING);
    view.rank = 2, view.size[1] = 1;
    T_STATUS(fxa_program_eval(p, in, NULL, &view, &value, &mask, &err), FXA_E_BINDING);
    view.rank = 1, view.dtype = FXA_F64;
    T_STATUS(fxa_program_eval(p, in, NULL, &view, &value, &mask, &err), FXA_E_BINDING);
}

TEST(values_of_several_params_and_tensors_are_missing) {
    t_program *p =
        edges_parse(edges_context(), "param c : float\nparam d : float\ntensor t : f32[0]\ntensor u : f32[0]\n"
                                     "score = c * d + t[] * u[]");
    const double in[FXA_INPUT_COUNT] = {0};
    double value;
    int mask;
    T_STATUS(fxa_program_eval(p, in, NULL, NULL, &value, &mask, &err), FXA_E_BINDING);
    T_HAS(err.text, "2 params and 2 tensors");
}

TEST(gradients_of_zero_are_left_out_of_sums) {
    fxa_text one = {NULL, "param c : float\ngrad c += 0.0\ngrad c += dscore\ngrad c += 0.0\ndscore = dscore", SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    t_program *p = NULL;
    char text[200];
    config.kind = FXA_PROGRAM_DERIVATIVE, config.texts = &one, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(edges_context(), &config, &p, &err));
    T_OK(fxa_program_print(p, text, sizeof text, NULL, &err));
    T_HAS(text, "grad c += dscore");
    T_CHECK(strstr(text, "0.0") == NULL);
}

/* If rounding may change the element that a gradient is added to, no bound is given for it. */
TEST(gradients_to_uncertain_elements) {
    static const float data[6] = {1, 2, 3, 4, 5, 6};
    const fxa_view view = {data, FXA_F32, 1, {6}, {1}};
    const double off[FXA_INPUT_COUNT] = {0.25};
    t_program *p = edges_parse(edges_context(), "tensor t : f32[1]\nscore = score * t[int(score)]"), *d = NULL;
    T_OK(fxa_program_derivative(p, &d, &err));
    for (int sure = 0; sure < 2; sure++) {
        const double in[FXA_INPUT_COUNT] = {sure ? 2.5 : 2.9, [FXA_INPUT_DSCORE] = 1};
        fxa_bounded_result terms[4];
        size_t count = 4, seen = 0;
        T_OK(fxa_program_eval_bounds(d, in, off, FXA_F64, NULL, &view, terms, &count, &err));
        for (size_t i = 0; i < count; i++)
            if (terms[i].kind == FXA_RESULT_DTENSOR) {
                T_CHECK((terms[i].error == INFINITY) == !sure);
                seen++;
            }
        T_INT(seen, 1);
    }
}

/* ---- Without memory ---------------------------------------------------------------------------------------------- */

/* Returns a program that exceeds the stack capacity of range analysis and properties. */
static fxa_program *edges_large(fxa_context *ctx) {
    static char text[1 << 15];
    size_t used = (size_t)snprintf(text, sizeof text, "let x = q");
    for (int i = 0; i < 300; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " + (k + %d) %% %d", i, i + 2);
    (void)snprintf(text + used, sizeof text - used,
                   "\nscore = x < 9 ? -inf : (k < 3 ? score * 2.0 : -inf)\nmask = x > k");
    return edges_parse(ctx, text);
}

TEST(answers_without_memory) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&f);
    fxa_program *p = edges_large(ctx), *lifted = NULL;
    fxa_tile_bounds box = {{0}, {0, 1, 1, 9, 9, 9, 9, 0}};
    fxa_properties properties, none;
    int64_t lo = 0, hi = 0;
    uint64_t steps = 0;
    double in[FXA_INPUT_COUNT] = {0}, value;
    int mask;
    size_t count = 0;
    T_REQUIRE(p != NULL);
    fxa_program_properties(p, &properties);
    fail_alloc_arm(&f, 1, true);
    fxa_program_properties(p, &none);
    T_CHECK((properties.mask_depends & ~none.mask_depends) == 0 &&
            (properties.score_depends & ~none.score_depends) == 0);
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_MIXED);
    T_CHECK(!fxa__program_int_range(p, fxa__program_output(p, FXA__OUT_MASK), &box, NULL, NULL, &lo, &hi, &steps));
    T_STATUS(fxa_program_eval(p, in, NULL, NULL, &value, &mask, &err), FXA_E_MEMORY);
    T_STATUS(fxa_program_eval_bounds(p, in, NULL, FXA_F64, NULL, NULL, NULL, &count, &err), FXA_E_MEMORY);
    fail_alloc_arm(&f, 2, true); /* dependences are known, bounds are not */
    fxa_program_properties(p, &none);
    T_CHECK(none.mask_depends == properties.mask_depends &&
            none.flags == FXA_PROPERTY_SCORE_MASKS); /* of nodes alone */
    fxa_status status = FXA_E_MEMORY;
    for (size_t k = 1; k < 200 && status == FXA_E_MEMORY; k++) {
        fail_alloc_arm(&f, k, k % 2 == 0);
        status = fxa__program_extract_masks(fxa__context_host(ctx), p, &lifted, &err);
        T_CHECK((lifted != NULL) == (status == FXA_OK));
    }
    fail_alloc_arm(&f, 0, false);
    T_INT(status, FXA_OK);
    box.lo[FXA_INPUT_Q] = 5, box.hi[FXA_INPUT_Q] = 4; /* empty box */
    T_CHECK(!fxa__program_int_range(p, 0, &box, NULL, NULL, &lo, &hi, &steps));
    fxa_program_destroy(lifted);
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
    T_INT(f.blocks, 0);
}

TEST(sets_may_be_empty) {
    fxa__set none = fxa__set_of(3, 2), some = fxa__set_of(1, 4);
    T_INT(none.n, 0);
    T_CHECK(fxa__set_contains(&some, &none) && !fxa__set_contains(&none, &some) &&
            fxa__set_intersection(&none, &some).n == 0);
}

T_MAIN
