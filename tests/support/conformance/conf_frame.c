/* SPDX-License-Identifier: Apache-2.0
 *
 * Frame of tests of engines of a device (conf_frame.h).
 */
#include "conf_frame.h"

#include "base/dtype.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool frame_is_set(const char *variable) {
    const char *value = getenv(variable);
    return value && *value;
}

int frame_cases(int most, int *from) {
    const char *cases = getenv("FXA_TEST_CASES");
    int n = most;
    *from = 0;
    if (cases) sscanf(cases, "%d,%d", from, &n);
    return frame_is_set("FXA_TEST_CASE") ? 1 : n;
}

const char *frame_missing(fxa_dtype dtype) {
    static fxa_support report;
    fxa_context *ctx = NULL;
    fxa_problem p = FXA_PROBLEM_INIT;
    size_t count = 1;
    p.b = p.hq = 1, p.sq = p.sk = p.d_qk = 64, p.q.dtype = (uint32_t)dtype, p.alignment = 16, p.device = FXA_CUDA;
    if (fxa_context_create(NULL, &ctx, NULL) != FXA_OK) return "there is no context";
    fxa_status status = fxa_support_query(ctx, &p, &report, &count, NULL);
    fxa_context_destroy(ctx);
    if (status != FXA_OK) return "the support query fails";
    return report.supported ? NULL : report.reason;
}

const char *frame_begin(conf_frame *f, unsigned seconds, fxa_context **ctx) {
    const char *engine = getenv("FXA_TEST_ENGINE"), *missing = engine ? NULL : frame_missing(FXA_F32);
    *f = (conf_frame){.engine = engine ? engine : "cuda", .seconds = seconds};
    if (!missing && fxa_context_create(NULL, ctx, NULL) != FXA_OK) return "there is no context";
    return missing;
}

uint32_t frame_features(uint32_t drawn) {
    const char *forced = getenv("FXA_TEST_FEATURES"), *without = getenv("FXA_TEST_WITHOUT");
    drawn |= forced ? (uint32_t)strtoul(forced, NULL, 0) : 0;
    return drawn & ~(without ? (uint32_t)strtoul(without, NULL, 0) : 0);
}

int64_t frame_length(uint64_t *rng) {
    static const int64_t edges[] = {64, 128, 192, 256, 384};
    int64_t r = attn_int(rng, 0, 9);
    if (r < 4) return edges[attn_int(rng, 0, 4)] + attn_int(rng, -1, 1);
    return r < 5 ? attn_int(rng, 1, 9) : attn_int(rng, 1, 420);
}

uint64_t frame_start(uint64_t start) {
    return frame_is_set("FXA_TEST_CASE") ? strtoull(getenv("FXA_TEST_CASE"), NULL, 0) : start;
}

static frame_state frame_state_of(const conf_case *c, bool ok) {
    return !ok ? FRAME_WRONG : c->refused ? FRAME_REFUSED : c->unsure ? FRAME_UNSURE : FRAME_RIGHT;
}

/* Checks another engine on the same pass, without changing the tally of the case. */
static bool frame_ask(conf_frame *f, conf_case *c, fxa_pass pass, int i) {
    conf_tally *own = c->tally;
    c->tally = &f->all_others;
    bool ok = conf_check_also(c, f->other[i], pass);
    frame_state state = f->said[i][pass] = frame_state_of(c, ok);
    f->agreed[i] += state == FRAME_RIGHT;
    c->tally = own, c->refused = c->unsure = false;
    size_t n = strlen(f->other[i]);
    if (ok) return true;
    memmove(c->why + n + 2, c->why, sizeof c->why - n - 2);
    memcpy(c->why, f->other[i], n), memcpy(c->why + n, ": ", 2);
    c->why[sizeof c->why - 1] = 0;
    return false;
}

bool frame_pass(conf_frame *f, conf_case *c, fxa_pass pass) {
    if (f->seconds) alarm(f->seconds);
    bool ok = pass == FXA_FORWARD ? conf_check_forward(c, f->engine) : conf_check_backward(c, f->engine);
    frame_state state = f->state[pass] = frame_state_of(c, ok);
    memcpy(f->detail[pass], c->detail, sizeof c->detail);
    f->refused[pass] += state == FRAME_REFUSED, f->done[pass] += state == FRAME_RIGHT;
    if (state == FRAME_REFUSED && frame_is_set("FXA_TEST_REASONS")) printf("  refused: %s\n", c->why);
    for (int i = 0; i < FRAME_OTHERS && state == FRAME_RIGHT; i++)
        if (f->other[i] && (f->others >> i & 1u)) ok = frame_ask(f, c, pass, i) && ok;
    if (f->seconds) alarm(0);
    return ok;
}

/* Returns false if the LSE or maximum of a row is not finite. Engines of devices then compute NaN for all gradients of
 * the row, also those of masked pairs, because a matrix product multiplies 0 by NaN, while the reference computes 0
 * (docs/numerics.md). Backward is not tested for such a case. */
static bool frame_is_finite(const conf_case *c) {
    const conf_buffer *t = &c->slot[FXA_SLOT_LSE];
    int64_t at[FXA_MAX_RANK] = {0};
    for (int d = 0; d < t->rank; d++)
        if (t->n[d] == 0) return true;
    do {
        double x = fxa__load_f64(t->memory, t->dtype, conf_place(t, at));
        if (isnan(x) || x == INFINITY) return false;
    } while (conf_next(t, at));
    return true;
}

bool frame_passes(conf_frame *f, conf_case *c) {
    memset(f->state, 0, sizeof f->state), memset(f->said, 0, sizeof f->said), memset(f->detail, 0, sizeof f->detail);
    bool ok = frame_pass(f, c, FXA_FORWARD);
    if (ok && !f->forward_alone && frame_is_finite(c)) ok = frame_pass(f, c, FXA_BACKWARD);
    f->cases += f->state[0] == FRAME_RIGHT || f->state[1] == FRAME_RIGHT;
    return ok;
}

void frame_print(const conf_frame *f) {
    const double *worst = f->all.element;
    printf("  %" PRId64 " cases: forward %" PRId64 " right, %" PRId64 " refused; backward %" PRId64 " right, %" PRId64
           " refused; %" PRId64 " unsure",
           f->cases, f->done[0], f->refused[0], f->done[1], f->refused[1], f->all.unsure);
    for (int i = 0; i < FRAME_OTHERS; i++)
        if (f->other[i]) printf("; %s %" PRId64 " right", f->other[i], f->agreed[i]);
    printf("; worst %.2f of what is allowed\n", fmax(worst[FXA_F32], fmax(worst[FXA_F16], worst[FXA_BF16])));
    (void)fflush(stdout);
}
