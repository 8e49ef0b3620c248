/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass recomputes scores and must get forward's bits: the texts of both passes of a program, compiled as
 * C++ for the host, give the same value for every pair. Soft caps are left out, because the passes use different tanh
 * variants (common/score.cuh). Skipped by name without a C++ compiler.
 */
#include "cuda_pass_fixture.h"
#include "cuda_text_fixture.h"

enum { BITS_RANDOM = 60, BITS_MOST = 1000, BITS_ROUNDS = 10, BITS_SIDE = 4 };

static const char *const bits_listed[] = {
    "tensor slope : f32[1]\nscore = score + slope[h] * float(k - q)",
    "score = 0.3 * score + 0.7 * float(k - q) * 0.01",
    "score = 0.3 * score + 1.7 * tanh(score * 0.9) - 0.2 * sin(0.1 * float(q) + 0.3 * float(k))",
    "param a : float\nparam c : float\nscore = a * score * c + (a + c) * float(q - k) - a / c * float(abs(q - k))",
    "tensor t : f32[2]\nscore = score * t[h, q] + t[h, k] * t[b, k] - 1.5 * t[h, q]",
    "tensor t : f32[2]\nscore = 0.25 * score + 0.5 * t[h, clamp(q - k, -3, 3) + 3] * t[h, 0]",
    "score = score * 0.3 * float(q) + score * 0.7 * float(k)",
    "param a : float\ntensor t : f32[1]\nscore = score + t[b] / (log(a * a + 1.0) + 3.0)",
    "score = with_grad(score, 2.0 * score)",
    "score = 0.101 * erf(score * 0.103 + sin(score) * 0.107) + 0.111 * erf(score * 0.113 + sin(score) * 0"
    ".117) + 0.121 * erf(score * 0.123 + sin(score) * 0.127) + 0.131 * erf(score * 0.133 + sin(score) * 0"
    ".137) + 0.141 * erf(score * 0.143 + sin(score) * 0.147) + 0.151 * erf(score * 0.153 + sin(score) * 0"
    ".157) + 0.161 * erf(score * 0.163 + sin(score) * 0.167) + 0.171 * erf(score * 0.173 + sin(score) * 0"
    ".177) + 0.181 * erf(score * 0.183 + sin(score) * 0.187) + 0.191 * erf(score * 0.193 + sin(score) * 0"
    ".197) + 0.777 * cos(score)",
};
enum { BITS_LISTED = sizeof bits_listed / sizeof *bits_listed };

typedef struct bits_case {
    fxa_program *p;
    fxa__cuda_program cuda[2]; /* [pass] */
} bits_case;

static bits_case bits_cases[BITS_MOST];

static bool bits_make(rig *r, int i, bits_case *c) {
    fxa_program *given = i < BITS_LISTED ? rig_parse(r, bits_listed[i])
                                         : rig_program(r, GEN_NO_STORED | (i % 2 ? GEN_SMOOTH : GEN_NO_SPECIAL));
    t_program *d = NULL;
    fxa_error err = {.status = FXA_OK};
    *c = (bits_case){.p = NULL};
    if (!given) return false;
    c->p = pass_masks(r->host, given);
    T_OK(fxa_program_derivative(c->p, &d, &err));
    bool plain = fxa__cuda_has_finite_factors(r->host, c->p, d, NULL);
    for (int pass = 0; pass < 2; pass++) {
        fxa__cuda_config config = {.program = c->p,
                                   .derivative = pass ? d : NULL,
                                   .grad_params = UINT64_MAX,
                                   .grad_tensors = UINT64_MAX,
                                   .assumed.dense = -1,
                                   .assumed.operands_fit = true,
                                   .assumed.finite_factors = plain};
        if (fxa__cuda_program_make(r->host, &config, &c->cuda[pass], &err) != FXA_OK) T_FAIL("%s\n", err.text);
    }
    return true;
}

static void bits_end(bits_case *c) {
    for (int pass = 0; pass < 2; pass++) fxa__cuda_program_free(&c->cuda[pass]);
    fxa_program_destroy(c->p);
}

/* Returns the new score of a pair by the text of one of the passes. */
static float bits_value(rig *r, const fxa__cuda_program *g, meant_pair call, const int at[6], float raw, double scale) {
    static struct FxaArgs a;
    static float grads[FXA_CUDA_TENSORS][RIG_CELLS];
    static struct FxaExact exact[FXA_CUDA_TENSORS][RIG_CELLS];
    double params[FXA_MAX_PARAMS];
    const fxa_program *p = g->program;
    float given[2] = {0, raw}, out[3 + FXA_CUDA_SUMS];
    a = (struct FxaArgs){.heads = BITS_SIDE, .q_len = BITS_SIDE, .k_len = BITS_SIDE};
    for (int32_t t = 0; t < p->n_tensors; t++) {
        a.tensor[t].data = r->views[t].data;
        a.grad_tensor[t] = g->switches.grad_exact >> t & 1 ? (float *)exact[t] : grads[t];
        for (int d = 0; d < r->views[t].rank; d++) {
            a.tensor[t].stride[d] = r->views[t].stride[d];
            a.tensor[t].size[d] = (int)r->views[t].size[d];
        }
    }
    for (int32_t i = 0; i < p->n_params; i++) {
        const fxa__cuda_param *from = &g->params[i];
        params[i] = from->source == FXA__CUDA_SCALE ? scale : from->source >= 0 ? r->params[from->source] : from->value;
    }
    fxa__cuda_host_values(g, params, a.f, a.i);
    fxa__env env = {.score = raw, .dscore = 1, .params = params, .tensors = r->views};
    for (int i = 0; i < 4; i++) env.coord[FXA_INPUT_B + i] = at[i];
    env.coord[FXA_INPUT_Q_LEN] = env.coord[FXA_INPUT_K_LEN] = env.coord[FXA_INPUT_HEADS] = BITS_SIDE;
    fxa__val *vals = rig_eval(p, &env);
    int words[2] = {meant_word(p, g->operands.q, vals), meant_word(p, g->operands.k, vals)};
    call(&a, at, given, words, out);
    free(vals);
    return out[0];
}

static int bits_check(rig *r, const bits_case *c, int number, const emit_object *o) {
    meant_pair pair[2];
    char name[32];
    int compared = 0;
    if (c->cuda[0].computed.softcap >= 0 || c->cuda[1].computed.softcap >= 0) return 0;
    for (int pass = 0; pass < 2; pass++) {
        (void)snprintf(name, sizeof name, "pair%d", 2 * number + pass);
        emit_find(o, name, &pair[pass]);
    }
    for (int i = 0; i < BITS_ROUNDS && !t_failures; i++, compared++) {
        rig_fill(r, c->p);
        float raw = (float)t_real(&r->rng, -3, 3), value[2];
        int at[6], most = c->p->n_tensors == 0 || number == 0 ? 1 << 22 : BITS_SIDE - 1; /* larger without tensors */
        for (int k = 0; k < 4; k++) at[k] = (int)t_int(&r->rng, 0, k < 2 ? BITS_SIDE - 1 : most);
        for (int k = 0; k < 2; k++) at[4 + k] = (int)t_int(&r->rng, 0, at[2 + k] < 127 ? at[2 + k] : 127);
        for (int pass = 0; pass < 2; pass++)
            value[pass] = bits_value(r, &c->cuda[pass], pair[pass], at, raw, i % 2 ? 0.3 : 0.0883883);
        bool nan = value[0] != value[0] && value[1] != value[1];
        if (nan || memcmp(&value[0], &value[1], sizeof value[0]) == 0) continue;
        T_FAIL("forward %.9g, backward %.9g\n", (double)value[0], (double)value[1]);
        rig_show(c->p);
    }
    return compared;
}

RIG_TEST(both_passes_have_the_same_scores) {
    if (!emit_has_cpp()) T_SKIP("there is no C++ compiler, " FXA_TEST_CXX ", here");
    fxa__writer w = {.host = r->host};
    emit_object object;
    int n = BITS_LISTED + t_scaled(BITS_RANDOM), compared = 0;
    if (n > BITS_MOST) n = BITS_MOST;
    fxa__write_bytes(&w, meant_head, strlen(meant_head));
    for (int i = 0; i < n; i++) {
        T_REQUIRE(bits_make(r, i, &bits_cases[i]));
        for (int pass = 0; pass < 2; pass++) meant_text(&bits_cases[i].cuda[pass], 2 * i + pass, &w);
    }
    bool loaded = emit_load_cpp(&w, &object);
    T_CHECK(loaded);
    for (int i = 0; loaded && i < n && !t_failures; i++) compared += bits_check(r, &bits_cases[i], i, &object);
    T_CHECK(compared > 5 * n);
    emit_unload(&object);
    fxa__writer_free(&w);
    for (int i = 0; i < n; i++) bits_end(&bits_cases[i]);
}

T_MAIN
