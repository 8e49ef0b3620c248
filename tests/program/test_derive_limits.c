/* SPDX-License-Identifier: Apache-2.0
 *
 * Derivatives of programs of maximum size, and with memory running out at any allocation.
 */
#include "t.h"
#include "program/program.h"
#include "support/oracle/grads.h"

/* ---- Size ------------------------------------------------------------------------------------------------------- */

typedef fxa_value (*limits_step)(fxa_builder *b, fxa_value x, int i);

static fxa_value limits_sin(fxa_builder *b, fxa_value x, int i) {
    (void)i;
    return fxa_builder_op1(b, FXA_OP_SIN, x);
}
/* The rule with the most nodes, with gradients of base and exponent. */
static fxa_value limits_pow(fxa_builder *b, fxa_value x, int i) {
    return fxa_builder_op2(b, FXA_OP_POW, i % 2 ? fxa_builder_param(b, "y", FXA_FLOAT) : x,
                           i % 2 ? x : fxa_builder_param(b, "z", FXA_FLOAT));
}
static fxa_value limits_clamp(fxa_builder *b, fxa_value x, int i) {
    fxa_value y = fxa_builder_param(b, "y", FXA_FLOAT);
    return i % 3 == 0   ? fxa_builder_op3(b, FXA_OP_CLAMP, x, y, fxa_builder_param(b, "z", FXA_FLOAT))
           : i % 3 == 1 ? fxa_builder_op3(b, FXA_OP_CLAMP, y, x, fxa_builder_param(b, "z", FXA_FLOAT))
                        : fxa_builder_op2(b, FXA_OP_ADD, y, x);
}
/* Every node is used twice: a sweep over paths instead of nodes would never end. */
static fxa_value limits_fan(fxa_builder *b, fxa_value x, int i) {
    return i % 2 ? fxa_builder_op2(b, FXA_OP_MUL, x, x) : fxa_builder_op1(b, FXA_OP_TANH, x);
}

static fxa_program *limits_chain(fxa_context *ctx, limits_step step, int n) {
    fxa_error err;
    t_builder *b = NULL;
    fxa_program *p = NULL;
    T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
    fxa_value x = fxa_builder_input(b, FXA_INPUT_SCORE);
    for (int i = 0; i < n; i++) x = step(b, x, i);
    fxa_builder_set_score(b, x);
    T_OK(fxa_builder_finish(b, &p, &err));
    return p;
}

static fxa_program *limits_derive(fxa_context *ctx, limits_step step) {
    fxa_error err;
    fxa_program *p = limits_chain(ctx, step, FXA_MAX_NODES - 8), *derivative = NULL;
    if (!p) return NULL;
    T_CHECK(fxa_program_node_count(p) > FXA_MAX_NODES - 8);
    T_OK(fxa_program_derivative(p, &derivative, &err));
    fxa_program_destroy(p);
    return derivative;
}

CONTEXT_TEST(longest_chains_derive) {
    limits_step steps[] = {limits_sin, limits_pow, limits_clamp, limits_fan};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        t_program *derivative = limits_derive(ctx, steps[i]);
        T_REQUIRE(derivative);
        T_CHECK(fxa_program_node_count(derivative) <= FXA__MAX_DERIVED_NODES);
    }
}

CONTEXT_TEST(longest_chain_has_the_right_value) {
    /* d/dx sin(sin(...)) is the product of cosines along the chain. */
    t_program *derivative = limits_derive(ctx, limits_sin);
    T_REQUIRE(derivative);
    fxa__env env = {.score = 1.25, .dscore = 1};
    grads g = grads_eval(derivative, &env);
    double x = 1.25, want = 1;
    int n = FXA_MAX_NODES - 8;
    for (int i = 0; i < n; i++) want *= cos(x), x = sin(x);
    T_CHECK(want > 0);
    T_NEAR(g.score, want, 2 * n * 0x1p-53 * want); /* n products in any order, each rounded once */
}

CONTEXT_TEST(size_is_linear) {
    size_t count[2];
    for (int i = 0; i < 2; i++) {
        fxa_program *p = limits_chain(ctx, limits_fan, i ? 400 : 200), *derivative = NULL;
        T_REQUIRE(p);
        T_OK(fxa_program_derivative(p, &derivative, &err));
        T_REQUIRE(derivative);
        count[i] = fxa_program_node_count(derivative);
        fxa_program_destroy(derivative), fxa_program_destroy(p);
    }
    T_CHECK(count[0] > 200 && count[1] <= 2 * count[0] + 8);
}

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

typedef struct limits_memory {
    size_t live;  /* bytes */
    long calls;   /* number of allocations */
    long fail_at; /* index of the failing call, -1 = none */
    bool persist; /* later calls fail too */
} limits_memory;

static void *limits_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    limits_memory *m = user;
    (void)align; /* programs need at most malloc's alignment of 16 */
    if (new_size == 0) {
        m->live -= old_size;
        free(ptr);
        return NULL;
    }
    long call = m->calls++;
    if (m->fail_at >= 0 && (m->persist ? call >= m->fail_at : call == m->fail_at)) return NULL;
    void *p = realloc(ptr, new_size);
    if (p) m->live += new_size - old_size;
    return p;
}

static const char limits_text[] = "param y : float\nparam z : float\ntensor t : f32[2]\ntensor w : i32[1]\n"
                                  "let u = clamp(score * y, t[q, k], z) + min(score, t[w[q], -1]) - max(y, 0.5) / z\n"
                                  "let v = u ** y + sqrt(u) * rsqrt(z) - exp(u) + exp2(y) * log(z) + log2(u) % y\n"
                                  "let x = tanh(v) + sigmoid(u) * erf(v) + sin(u) - cos(v) * tan(y) + abs(u)\n"
                                  "score = where(k > q, x + sum(i, 8, t[h, i] * x), -v)\nmask = k <= q";

static void limits_out_of_memory(bool persist) {
    limits_memory m = {.fail_at = -1, .persist = persist};
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.alloc = limits_alloc, config.alloc_user = &m;
    fxa_context *ctx = NULL;
    fxa_error err;
    fxa_program *p = NULL, *derivative = NULL;
    uint8_t want[16], got[16];
    T_OK(fxa_context_create(&config, &ctx, &err));
    T_OK(fxa_program_parse(ctx, limits_text, SIZE_MAX, &p, &err));
    T_REQUIRE(p);
    T_OK(fxa_program_derivative(p, &derivative, &err));
    T_REQUIRE(derivative);
    fxa_program_hash(derivative, want);
    fxa_program_destroy(derivative);
    size_t live = m.live;
    int failures = 0;
    for (long k = 0;; k++) {
        m.calls = 0, m.fail_at = k;
        fxa_status status = fxa_program_derivative(p, &derivative, &err);
        m.fail_at = -1;
        if (status == FXA_OK) break;
        T_INT(status, FXA_E_MEMORY);
        T_CHECK(derivative == NULL && err.text[0]);
        T_INT(m.live, live);
        failures++;
    }
    T_CHECK(failures >= 5);
    fxa_program_hash(derivative, got);
    T_CHECK(memcmp(want, got, 16) == 0);
    fxa_program_destroy(derivative);
    T_INT(m.live, live);
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
    T_INT(m.live, 0);
}

TEST(out_of_memory_once_at_every_allocation) { limits_out_of_memory(false); }
TEST(out_of_memory_from_every_allocation_on) { limits_out_of_memory(true); }

T_MAIN
