/* SPDX-License-Identifier: Apache-2.0
 *
 * Form of the generated program.cuh: which code is generated for which parts of a program, constants of soft caps that
 * a run fills in, programs of maximum size and above, failing memory. test_cuda_program.c tests the meaning of the
 * text.
 */
#include "lower/lower_fixture.h"

#include "engine/cuda/cuda.h"
#include "support/memory/fail_alloc.h"

/* A factor that is multiplied and divided by causes no division per pair, and the derivative is the same for any
 * factor. */
RIG_TEST(factors_that_cancel) {
    static const double caps[] = {20, -3, 0.25, 0, INFINITY, -INFINITY, NAN};
    t_program *p = rig_parse(r, "param cap : float\nscore = cap * tanh(score / cap)"), *d = NULL;
    T_ENDED(fxa__cuda_program_free) fxa__cuda_program out = {.program = NULL};
    T_REQUIRE(p);
    T_OK(fxa_program_derivative(p, &d, &err));
    fxa__cuda_config config = {.program = p, .derivative = d, .assumed.dense = -1};
    T_OK(fxa__cuda_program_make(r->host, &config, &out, &err));
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        double params[2] = {0};
        for (int32_t k = 0; k < out.program->n_params; k++)
            params[k] = out.params[k].source == FXA__CUDA_SCALE ? 0.5 : caps[i];
        fxa__env env = {.score = 0.75, .dscore = 1, .params = &caps[i]}, own = {.score = 1.5, .params = params};
        fxa__val *want = rig_eval(d, &env), *got = rig_eval(out.program, &own);
        double x = want[fxa__program_output(d, FXA__OUT_DSCORE)].f;
        double y = got[fxa__program_output(out.program, FXA__OUT_DSCORE)].f;
        if (!(fabs(x - y) <= 1e-12) && !(isnan(x) && isnan(y))) T_FAIL("cap %g: %g, not %g\n", caps[i], y, x);
        free(want), free(got);
    }
    fxa__depend sets[64];
    T_REQUIRE(out.program->n_nodes <= 64);
    fxa__lower_depend(out.program, NULL, sets);
    for (int32_t i = 0; i < out.program->n_nodes; i++) {
        const fxa__node *n = &out.program->nodes[i];
        if (n->op == FXA_OP_DIV || n->op == FXA_OP_DIVZ) T_CHECK(fxa__lower_rate(&sets[i]) <= FXA__RATE_HEAD);
    }
}

/* Checks the values that a run fills in for a soft cap. Near 0 tanh is a polynomial of the product that includes the
 * unit of exp2, unless the cap is tiny; for caps of medium size tanh is evaluated four pairs at a time. */
static void form_check_cap(const fxa__cuda_program *out, double cap) {
    double params[FXA_MAX_PARAMS] = {0}, scale = 0.125, log2e = 1.4426950408889634;
    float f[FXA_CUDA_SCALARS + FXA_CUDA_HOST_VALUES];
    int ints[FXA_CUDA_SCALARS];
    for (int32_t k = 0; k < out->program->n_params; k++)
        params[k] = out->params[k].source == FXA__CUDA_SCALE ? scale : out->params[k].source == 0 ? cap : 1;
    fxa__cuda_host_values(out, params, f, ints);
    const float *c = f + out->computed.softcap_at + 1, *far = c + FXA_CUDA_SOFTCAP_TERMS;
    double unit = out->computed.gain >= 0 ? (double)f[out->computed.unit_at + 1] : 1,
           u = (double)f[out->computed.unit_at];
    T_CHECK(f[out->computed.softcap_at] <= 4096 && (f[out->computed.softcap_at] > 0) == (fabs(cap) > 1e-6));
    T_CHECK(unit == (fabs(cap) > 2.3e38 ? 4 : 1) && (far[0] > 0) == (fabs(cap) > 0.0867 && fabs(cap) <= 64));
    T_NEAR(u * unit, cap * log2e, 0x1p-24 * fabs(cap * log2e));
    for (double part = 1; f[out->computed.softcap_at] > 0 && part > 1e-3; part *= 0.77) {
        double s = part * (double)f[out->computed.softcap_at], x = s * scale / cap, y = 0;
        for (int k = FXA_CUDA_SOFTCAP_TERMS; k-- > 0;) y = y * s * s + (double)c[k];
        double want = cap * tanh(x) * log2e / unit;
        T_NEAR(s * y, want, 0x1p-22 * fabs(want));
    }
    for (double part = -1; far[0] > 0 && part <= 1; part += 0.0625) {
        double s = part * (double)far[0], e = exp2(s * (double)far[1]), y = u + 1 / ((double)far[2] * (1 + e));
        T_NEAR(y, cap * tanh(s * scale / cap) * log2e, 0x1p-22 * fabs(u));
    }
}

RIG_TEST(numbers_of_a_soft_cap) {
    static const double caps[] = {20, 0.5, 1000, 1e-3, 1e9, 1e-30, 1e30, 64, 65, 0.08, -20, -1e9, 3e38, -3.4e38};
    t_program *p = rig_parse(r, "param cap : float\nscore = cap * tanh(score / cap)");
    fxa__cuda_program out;
    T_REQUIRE(p);
    for (int plain = 0; plain < 2; plain++) {
        fxa__cuda_config config = {.program = p, .assumed.dense = -1, .assumed.finite_factors = plain};
        T_OK(fxa__cuda_program_make(r->host, &config, &out, &err));
        T_REQUIRE(out.switches.softcap_has_unit && out.computed.softcap_at >= 0 && (out.computed.gain >= 0) == !plain &&
                  out.bounds.value < 1.01);
        for (size_t i = 0; i < (plain ? 10 : sizeof caps / sizeof *caps); i++) form_check_cap(&out, caps[i]);
        fxa__cuda_program_free(&out);
    }
}

/* Writes the text that kernels get for a program with all its gradients. Returns false if there is none. */
static bool form_text(rig *r, const char *source, bool plain, char *out, size_t room) {
    t_program *p = rig_parse(r, source), *d = NULL;
    fxa_error err;
    fxa__cuda_program made;
    if (!p) return false;
    T_OK(fxa_program_derivative(p, &d, &err));
    fxa__cuda_config config = {.program = p,
                               .derivative = d,
                               .grad_params = UINT64_MAX,
                               .grad_tensors = UINT64_MAX,
                               .assumed.dense = -1,
                               .assumed.operands_fit = true,
                               .assumed.finite_factors = plain};
    T_OK(fxa__cuda_program_make(r->host, &config, &made, &err));
    (void)snprintf(out, room, "%.*s", (int)made.text.size, (const char *)made.text.data);
    fxa__cuda_program_free(&made);
    return true;
}

/* No pair divides by a value that is constant for a head: with a division and its branch per pair, a backward of
 * scattered gradients took 9 to 24 seconds to compile. */
RIG_TEST(quotients_by_what_stays_are_taken_once) {
    static const char *const texts[] = {
        "tensor c : f32[3]\ntensor w : f32[1]\nscore = score - ((k - c[b, h, q]) / w[h]) ** 2",
        "tensor c : f32[1]\ntensor w : f32[2]\nscore = score + divz(score * c[k], w[b, h])",
        "tensor c : f32[3]\nparam w : float\nscore = score - ((k - c[b, h, q]) / w) ** 2",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        static char text[1 << 16];
        T_REQUIRE(form_text(r, texts[i], false, text, sizeof text));
        int n = 0;
        for (const char *at = text; (at = strstr(at, " / ")) != NULL; at++) n++;
        if (n > 1) T_FAIL("%s divides %d times:\n%s\n", texts[i], n, text);
    }
}

static int form_count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++) n++;
    return n;
}

/* Work of loads in a text of value, derivative and gradient: elements read (reads), indices checked per pair or row
 * (inside), and indices checked once per head or at the target of a gradient (at). An element that the program reads
 * twice is read once. */
RIG_TEST(loads_look_at_what_moves) {
    static const struct {
        const char *text;
        int reads, inside, at;
    } rows[] = {
        {"tensor t : f32[2]\nscore = score + t[h, q - k + 700]", 1, 0, 4},
        {"tensor t : f32[2]\nscore = score * t[h, q * k]", 2, 2, 3},
        {"tensor t : f32[2]\nscore = score * t[h, q * k] + t[h, q * k]", 2, 2, 3},
        {"tensor t : f32[2]\nscore = score * t[q * k, h]", 2, 2, 3},
        {"tensor t : f32[2]\nscore = score * t[q - 1, q * k]", 2, 4, 2},
        {"tensor t : f32[2]\nscore = score * t[h, (q * k) % 4]", 2, 2, 3},
        {"tensor t : f32[1]\nscore = score * t[h]", 1, 0, 2},
        {"tensor t : f32[2]\nscore = score * t[h, 3]", 1, 0, 4},
        {"tensor t : f32[0]\nscore = score * t[]", 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static char text[1 << 16];
        T_REQUIRE(form_text(r, rows[i].text, false, text, sizeof text));
        int reads = form_count(text, "fxa__get_") + form_count(text, "fxa__take_");
        int inside = form_count(text, "fxa__inside("), at = form_count(text, "fxa__at(");
        if (reads != rows[i].reads || inside != rows[i].inside || at != rows[i].at)
            T_FAIL("%s: %d reads, %d checks per pair or row, %d others\n", rows[i].text, reads, inside, at);
    }
}

/* Programs of every kind, with strings that the generated text must or must not contain. */
RIG_TEST(what_goes_where) {
    static const struct {
        const char *text, *has, *has_not;
    } rows[] = {
        {"score = score", "return a.f[1];", "PROG_VALUE"},
        {"param cap : float\nscore = cap * tanh(score / cap)", "#define PROG_BOUNDED 1", "PROG_MASK"},
        {"tensor s : f32[1]\nscore = score + s[h] * float(k - q)", "__fadd_rn(t", "PROG_DIAGONAL"},
        {"tensor t : f32[1]\nscore = score + t[clamp(q - k, 0, 9)]", "#define PROG_DIAGONAL 1", "PROG_DERIVATIVE"},
        {"mask = k <= q", "p.k_off) <= t", "v1 <="},
        {"tensor d : i32[2]\nmask = d[b, q] == d[b, k] && k <= q", "#define PROG_UNIFORM_OPERANDS 1", "load_range(a"},
        {"tensor f : i32[1]\ntensor e : i32[1]\nmask = k >= f[q] && k < e[q]", "load_range(a, 0", "load_range(a, 1"},
        {"tensor t : i32[2]\nmask = any(i, 4, t[q // 64, i] == k // 64)", "FXA_INLINE int tile_class", "__noinline__"},
        {"tensor t : i32[2]\nmask = any(i, 5, t[q // 64, i] == k // 64)", "__noinline__ fxa__interval find_range",
         "FXA_INLINE int tile_class"},
        {"mask = all(i, 64, (q * (i + 3) + k) % (i + 5) != 2)", "__noinline__ int tile_class", "__noinline__ fxa__"},
        {"score = 30.0 * tanh(score / 30.0)", "#define PROG_SOFTCAP_SERIES 1", "PROG_DERIVATIVE 2"},
        {"score = 2.0 * tanh(score) + float(q - k)", "#define PROG_SOFTCAP 1", "PROG_SOFTCAP_HAS_UNIT"},
        {"score = score + 30.0 * tanh(score / 30.0)", "score_tanh(", "PROG_SOFTCAP"},
        {"score = tanh(score) * tanh(score * 0.5)", "score_tanh(", "PROG_SOFTCAP"},
        {"score = score * score", "#define PROG_DERIVATIVE 2", "PROG_BOUNDED"},
        {"score = sin(score) + score ** 2", "score_cos(", "PROG_OUT_OF_LINE"},
        {"score = score ** 1.7 + sin(score)", "#define PROG_OUT_OF_LINE 1\n", "sinf("},
        {"mask = float(q) ** float(k) < float(k) ** float(q)", "#define PROG_OUT_OF_LINE 2\n", "PROG_VALUE"},
        {"tensor t : f32[1]\nscore = score + (float(q - k) + 1.0) ** t[h]", "#define PROG_OUT_OF_LINE 4\n", "sinf("},
        {"tensor t : f32[2]\nscore = score + t[h, q - k]", "#define PROG_GRAD_DIAGONAL 1", "PROG_GRAD_SCATTER"},
        {"tensor doc : i32[2]\nmask = doc[b, q] == doc[b, k]", "#define PROG_OPERANDS 1", "PROG_VALUE"},
        {"tensor doc : i64[2]\nmask = doc[b, q] == doc[b, k]", "#define PROG_PACK_OPERANDS 1", "PROG_OPERANDS"},
        {"tensor t : f32[2]\nscore = score + t[h, k]", "#define PROG_OPERANDS 2", "PROG_GRAD_SUMS"},
        {"tensor w : f32[1]\nscore = score * w[h]", "#define PROG_GRAD_SUMS 1", "PROG_GRAD_SCATTER"},
        {"param t : float\nscore = score / t", "#define PROG_GRAD_SUMS 1", "PROG_VALUE"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static char text[1 << 16];
        T_REQUIRE(form_text(r, rows[i].text, true, text, sizeof text));
        T_HAS(text, rows[i].has);
        if (strstr(text, rows[i].has_not)) T_FAIL("%s has %s:\n%s\n", rows[i].text, rows[i].has_not, text);
    }
}

/* Gradients evaluate costly functions of rows and keys for every pair, so these count fully in the decision to evaluate
 * out of line. */
RIG_TEST(costly_gradients_are_called) {
    static const char *const texts[] = {"cos(a * score)", "sin(a * k) * cos(a * (q - k))"};
    for (int i = 0; i < 2; i++) {
        static char written[1 << 16];
        char text[128];
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program out = {.program = NULL};
        (void)snprintf(text, sizeof text, "param a : float\nscore = score + %s", texts[i]);
        t_program *p = rig_parse(r, text), *d = NULL;
        T_REQUIRE(p);
        T_OK(fxa_program_derivative(p, &d, &err));
        fxa__cuda_config config = {.program = p, .derivative = d, .assumed.dense = -1, .grad_params = 1};
        T_OK(fxa__cuda_program_make(r->host, &config, &out, &err));
        (void)snprintf(written, sizeof written, "%.*s", (int)out.text.size, (const char *)out.text.data);
        T_INT(strstr(written, "#define PROG_OUT_OF_LINE 4") != NULL, i);
    }
}

static const char form_full[] = "param cap : float\ntensor slope : f32[1]\ntensor doc : i32[2]\ntensor t : f32[2]\n"
                                "score = cap * tanh((score * 0.3 + slope[h] * (q - k) + t[q, k]) / cap)\n"
                                "mask = k <= q && doc[b, q] == doc[b, k]";

TEST(out_of_memory_at_every_allocation) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_program *p, *d;
    fxa_context *ctx = fail_alloc_programs(&f, form_full, &p, &d);
    T_REQUIRE(ctx);
    fxa__cuda_config config = {
        .program = p, .derivative = d, .grad_tensors = UINT64_MAX, .assumed.dense = -1, .assumed.finite_factors = true};
    size_t before = f.live_bytes, k = 1;
    for (bool done = false; !done && k < 2000; k++) {
        fxa__cuda_program out;
        fail_alloc_arm(&f, k, false);
        done = fxa__cuda_program_make(fxa__context_host(ctx), &config, &out, &err) == FXA_OK;
        fail_alloc_arm(&f, 0, false);
        if (!done) T_INT(err.status, FXA_E_MEMORY);
        fxa__cuda_program_free(&out);
        T_INT(f.live_bytes, before);
    }
    T_CHECK(k > 20 && k < 2000);
    T_INT(f.mistakes, 0);
    T_INT(fail_alloc_programs_end(&f, ctx, p, d), 0);
}

/* Writes a program with `count` declarations, whose loads or params the score adds up. A declaration without %d is used
 * as the text itself. */
static void form_many(const char *declaration, const char *loads, int count, char text[2048]) {
    bool many = strstr(declaration, "%d");
    text[0] = 0;
    for (int i = 0; many && i < count; i++) {
        const char *name = strchr(declaration, '%');
        (void)sprintf(text + strlen(text), "%.*s%d%s", (int)(name - declaration), declaration, i, name + 2);
    }
    (void)strcat(text, many ? "score = score" : declaration);
    for (int i = 0; many && i < count; i++)
        (void)sprintf(text + strlen(text), strstr(declaration, "int") ? " + float(x%d)" : " + x%d%s", i, loads);
}

/* The maximum number of values: the text reads the highest indices of the arguments. */
RIG_TEST(as_much_as_kernels_take) {
    static const char *const rows[][2] = {{"tensor x%d : f32[0]\n", "a.tensor[15]"}, {"param x%d : int\n", "a.i[31]"}};
    T_CHECK(sizeof(struct FxaArgs) + sizeof(struct FxaMaps) <= 4096);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[2048];
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program out = {.program = NULL};
        form_many(rows[i][0], i ? "" : "[]", i ? FXA_CUDA_SCALARS : FXA_CUDA_TENSORS, text);
        t_program *p = rig_parse(r, text);
        T_REQUIRE(p);
        fxa__cuda_config config = {.program = p, .assumed.dense = -1};
        T_OK(fxa__cuda_program_make(r->host, &config, &out, &err));
        fxa__write_bytes(&out.text, "", 1);
        T_CHECK(strstr((const char *)out.text.data, rows[i][1]));
    }
}

RIG_TEST(what_kernels_cannot_do_is_refused) {
    static const char *const rows[][2] = {
        {"mask = score < 1.0", "the mask reads the score"},
        {"tensor x%d : f32[0]\n", "captures 17 tensors; CUDA kernels take 16"},
        {"param x%d : int\n", "0 float and 33 int params; CUDA kernels take 31 and 32"},
        {"param x%d : float\n", "32 float and 0 int params; CUDA kernels take 31 and 32"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[2048];
        const char *loads = strstr(rows[i][0], "tensor") ? "[]" : "";
        int most = *loads ? FXA_CUDA_TENSORS + 1 : FXA_CUDA_SCALARS + (strstr(rows[i][0], "int") != NULL);
        form_many(rows[i][0], loads, most, text);
        t_program *p = rig_parse(r, text);
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program out = {.program = NULL};
        T_REQUIRE(p);
        fxa__cuda_config config = {.program = p, .assumed.dense = -1};
        T_STATUS(fxa__cuda_program_make(r->host, &config, &out, &err), FXA_E_UNSUPPORTED);
        T_HAS(err.text, rows[i][1]);
    }
}

T_MAIN
