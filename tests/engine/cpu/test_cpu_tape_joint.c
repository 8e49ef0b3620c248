/* SPDX-License-Identifier: Apache-2.0
 *
 * Fused value-and-gradient bytecode: score and derivative of a row in two halves of one program. Results are bit-equal
 * to the evaluator; scores have the bits of the separate bytecode; no function of the score is computed twice.
 */
#include "support/fixtures/attn_case.h"
#include "support/fixtures/gen.h"
#include "support/fixtures/tape_case.h"
#include "t.h"

#include "lower/fuse.h"

static fxa_program *joint_of(fxa_context *ctx, const fxa_program *p) {
    fxa_program *d = NULL, *joint = NULL;
    fxa_error err;
    if (fxa_program_derivative(p, &d, &err) != FXA_OK ||
        fxa__lower_fuse(fxa__context_host(ctx), p, d, true, &joint, &err) != FXA_OK)
        T_FAIL("%s\n", err.text);
    fxa_program_destroy(d);
    return joint;
}

static fxa_program *joint_random(fxa_context *ctx, uint64_t *rng, unsigned flags) {
    uint8_t tape[160];
    for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)attn_next(rng);
    return gen_program(ctx, tape, (size_t)attn_int(rng, 8, sizeof tape), flags);
}

static void joint_show(const fxa_program *p) {
    char text[8192];
    if (fxa_program_print(p, text, sizeof text, NULL, NULL) == FXA_OK) printf("%s\n", text);
}

/* Returns each usable kernel set of this machine in turn, for f32 and f64. */
static const fxa__cpu_kernels *joint_set(size_t *i) {
    bool usable = false;
    const fxa__cpu_kernels *k;
    while ((k = fxa__cpu_set(*i / 2, *i % 2 ? 8 : 4, &usable)) || *i % 2 == 0) {
        ++*i;
        if (k && usable) return k;
    }
    return NULL;
}

CONTEXT_TEST(both_halves_as_their_pairs) {
    static const unsigned gen[] = {GEN_SMOOTH, GEN_NO_SPECIAL, 0};
    uint64_t rng = t_seed();
    bool ok = true;
    for (int round = 0; ok && round < t_scaled(150); round++) {
        t_program *p = joint_random(ctx, &rng, gen[round % 3]), *joint = p ? joint_of(ctx, p) : NULL;
        const fxa__cpu_kernels *k;
        T_REQUIRE(joint);
        for (size_t i = 0; ok && (k = joint_set(&i));) {
            tape_case c;
            tape_case_draw(&c, k, joint, round % 2, &rng);
            c.tolerance = 0;
            ok =
                tape_case_check(&c, fxa__context_host(ctx), FXA__TAPE_JOINT | (round % 4 ? FXA__TAPE_GRADS : 0u), &rng);
            if (!ok) {
                joint_show(joint);
                T_FAIL("%s\n", c.why);
            }
            tape_case_free(&c);
        }
    }
}

/* ---- Scores of optimised bytecode -------------------------------------------------------------------------------- */

/* Computes the scores of a drawn case by bytecode of the program. Returns false if the bytecode cannot be made. */
static bool joint_scores(tape_case *c, fxa__host *host, const fxa_program *p, uint32_t flags, float *out) {
    fxa__tape *tape = NULL;
    fxa_error err;
    size_t bytes = 0;
    if (fxa__tape_create(host, p, flags, c->kernels, &tape, &err) != FXA_OK) return false;
    bool ok = fxa__tape_scratch(tape, c->rows, c->columns, &bytes);
    guard scratch = guard_open(bytes);
    fxa__tape_run run = {.tape = tape, .params = c->params, .tensors = c->tensors, .scratch = scratch.data};
    run.max_rows = c->rows, run.max_columns = c->columns;
    fxa__tape_batch(&run, c->b, c->q_len, c->k_len, c->heads);
    fxa__tape_rows(&run, c->rows, c->h, c->q, c->first_row, c->head_rows);
    fxa__tape_columns(&run, c->columns, c->k, c->first_key);
    for (int64_t row = 0; ok && row < c->rows; row++) {
        float score[TAPE_CASE_COLUMNS];
        for (int64_t i = 0; i < c->columns; i++) score[i] = (float)c->score[row][i];
        fxa__tape_row(&run, row, 0, c->columns, score, NULL, out + row * TAPE_CASE_COLUMNS);
    }
    guard_close(&scratch);
    fxa__tape_destroy(tape);
    return ok;
}

static bool joint_same_scores(fxa_context *ctx, fxa_program *p, const fxa__cpu_kernels *k, uint64_t *rng) {
    float own[TAPE_CASE_ROWS * TAPE_CASE_COLUMNS] = {0}, got[TAPE_CASE_ROWS * TAPE_CASE_COLUMNS] = {0};
    t_program *joint = joint_of(ctx, p);
    tape_case c;
    if (!joint) return false;
    tape_case_draw(&c, k, p, false, rng);
    bool same = joint_scores(&c, fxa__context_host(ctx), p, 0, own) &&
                joint_scores(&c, fxa__context_host(ctx), joint, FXA__TAPE_JOINT | FXA__TAPE_GRADS, got) &&
                memcmp(own, got, sizeof own) == 0;
    if (!same) {
        joint_show(p);
        T_FAIL("%s: scores have other bits\n", k->isa);
    }
    tape_case_free(&c);
    return same;
}

static const char *const joint_texts[] = {
    "param c : float\nscore = c * tanh(score / c)",
    "param c : float\nscore = tanh(score * c) * c + score",
    "param c : float\ntensor s : f32[1]\nscore = c * tanh((score + s[h] * (q - k)) / c)",
    "tensor t : f32[2]\nscore = score * sigmoid(score * t[h, k] + t[h, q]) - 0.25 * (k - q)",
    "score = exp(score * 0.125) * score + score * score * 0.5",
    "param c : float\nscore = softplus(score - c * abs(q - k)) + tanh(score * 3.5 - 1.25 * c)",
    "score = score ** 2 + erf(score * score - 3.0 * score) * 0.7",
    "tensor w : f32[1]\nscore = w[0] * tanh(w[1] * score + w[2]) + w[3] * tanh(w[4] * score + w[5])",
};

CONTEXT_TEST(scores_have_the_bits_of_their_own_tape) {
    uint64_t rng = t_seed();
    bool ok = true;
    int texts = (int)(sizeof joint_texts / sizeof *joint_texts);
    for (int round = 0; ok && round < texts + t_scaled(300); round++) {
        fxa_program *p = NULL;
        const fxa__cpu_kernels *k;
        if (round < texts)
            T_OK(fxa_program_parse(ctx, joint_texts[round], SIZE_MAX, &p, &err));
        else
            p = joint_random(ctx, &rng, round % 3 ? GEN_SMOOTH : GEN_NO_SPECIAL);
        T_REQUIRE(p);
        for (size_t i = 0; ok && (k = joint_set(&i));)
            if (k->real_size == sizeof(float)) ok = joint_same_scores(ctx, p, k, &rng);
        fxa_program_destroy(p);
    }
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

static int joint_count(const char *text, const char *word) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word)) n++;
    return n;
}

/* Writes the listing of a backward plan of the cpu engine. */
static void joint_listing(fxa_context *ctx, const char *text, const char *bprop, char *out, size_t size) {
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_text own = {.data = bprop, .size = SIZE_MAX};
    t_program *p = NULL, *b = NULL;
    fxa_problem problem = FXA_PROBLEM_INIT;
    t_plan *plan = NULL;
    fxa_error err;
    config.kind = FXA_PROGRAM_BPROP, config.texts = &own, config.n_texts = 1;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    if (bprop) T_OK(fxa_program_parse_texts(ctx, &config, &b, &err));
    problem.b = problem.hq = 1, problem.sq = problem.sk = 8, problem.d_qk = 4, problem.engine = "cpu";
    problem.pass = FXA_BACKWARD, problem.flags = FXA_GRAD_Q, problem.program = p, problem.bprop = b;
    problem.param_grads = fxa_program_param_count(p) ? 1 : 0;
    T_OK(fxa_plan_create(ctx, &problem, &plan, &err));
    T_OK(fxa_plan_dump(plan, out, size, NULL, &err));
}

CONTEXT_TEST(functions_are_computed_once) {
    static const struct {
        const char *text, *bprop, *word;
        int count;
    } cases[] = {
        {"param c : float\nscore = c * tanh(score / c)", NULL, "tanh", 1},
        {"score = exp(score)", NULL, "exp", 1},
        {"score = score * sigmoid(score)\nmask = k <= q", NULL, "sigmoid", 1},
        {"score = tanh(score) + tanh(2.5 * score)", NULL, "tanh", 2},
        /* a mask that reads the score has its own bytecode, and a user-written backward is not fused */
        {"score = tanh(score)\nmask = score > 0.0", NULL, "tanh", 3},
        {"score = tanh(score)", "dscore = dscore", "tanh", 1},
        {"score = log(score)", NULL, "log", 1}, /* the derivative needs no transcendental function */
    };
    static char text[8192];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        joint_listing(ctx, cases[i].text, cases[i].bprop, text, sizeof text);
        if (joint_count(text, cases[i].word) != cases[i].count) T_FAIL("%s:\n%s", cases[i].text, text);
    }
    joint_listing(ctx, "score = score * 0.5 + b", NULL, text, sizeof text); /* nothing to share: not fused */
    T_HAS(text, "derivative\n");
    T_CHECK(!strstr(text, "score and derivative"));
}

TEST(every_allocation_may_fail) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&f);
    fxa_program *p = NULL;
    size_t i = 0;
    T_REQUIRE(ctx);
    T_OK(fxa_program_parse(ctx, joint_texts[2], SIZE_MAX, &p, &err));
    fxa_program *joint = joint_of(ctx, p);
    T_REQUIRE(joint);
    T_CHECK(tape_allocations(&f, ctx, joint, FXA__TAPE_JOINT | FXA__TAPE_GRADS, joint_set(&i)) > 5);
    fxa_program_destroy(joint);
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
    T_INT(f.live_bytes, 0);
}

T_MAIN
