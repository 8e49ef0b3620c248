/* SPDX-License-Identifier: Apache-2.0
 *
 * Failing memory at any allocation of an analysis: an error or false, no leak, and the next call works.
 */
#include "t.h"

#include "lower/conjunct.h"
#include "lower/emit.h"
#include "lower/interval.h"
#include "lower/fuse.h"
#include "lower/parameterize.h"
#include "lower/i64_halves.h"
#include "support/memory/fail_alloc.h"

static const char memory_text[] =
    "param cap : float\ntensor slope : f32[1]\ntensor doc : i64[1]\n"
    "score = cap * tanh((score * 0.3 + slope[h] * (q - k)) / cap)\nmask = k <= q && q - k < 99 && doc[q] == doc[k]";

typedef enum memory_what {
    MEMORY_CONJUNCTS,
    MEMORY_JOINT,
    MEMORY_LIFT,
    MEMORY_WORDS,
    MEMORY_EMIT,
    MEMORY_INTERVAL,
    MEMORY_ALL
} memory_what;

/* Emits the text of a complete program. */
static bool memory_emit(fxa__host *host, const fxa_program *p) {
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = host};
    fxa__emit e;
    bool ok = fxa__lower_emit_open(host, p, FXA__CUDA_F32, 3, &e);
    for (int level = 0; ok && level < FXA__EMIT_LEVELS; level++)
        fxa__lower_emit_nodes(&e, (fxa__emit_level)level, 3, &w);
    fxa__lower_emit_close(&e);
    ok = ok && !w.failed;
    return ok;
}

static bool memory_interval(fxa__host *host, const fxa_program *p) {
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = host};
    fxa__interval_text v;
    bool ok = fxa__lower_interval_open(host, p, FXA__CUDA_F32, &v);
    if (ok) fxa__lower_interval_text(&v, &w);
    fxa__lower_interval_close(&v);
    ok = ok && !w.failed;
    return ok;
}

/* Runs one analysis and frees its results; returns true if it succeeded. */
static bool memory_do(fxa__host *host, memory_what what, const fxa_program *p, const fxa_program *d) {
    fxa_error err = {.status = FXA_OK};
    fxa_program *joint = NULL;
    fxa__parameterized lifted = {.program = NULL};
    fxa__conjuncts c;
    fxa__i64_halves words;
    bool ok = true;
    switch (what) {
    case MEMORY_CONJUNCTS:
        ok = fxa__lower_conjuncts(host, p, &c);
        fxa__lower_conjuncts_free(host, &c);
        break;
    case MEMORY_WORDS:
        ok = fxa__lower_i64_halves(host, p, &words);
        T_CHECK(!ok || words.program != p);
        fxa__lower_i64_halves_free(host, &words);
        break;
    case MEMORY_EMIT: ok = memory_emit(host, p); break;
    case MEMORY_INTERVAL: ok = memory_interval(host, p); break;
    case MEMORY_JOINT: ok = fxa__lower_fuse(host, p, d, true, &joint, &err) == FXA_OK; break;
    default: ok = fxa__lower_parameterize(host, p, &lifted, &err) == FXA_OK;
    }
    if (!ok && (what == MEMORY_JOINT || what == MEMORY_LIFT)) T_INT(err.status, FXA_E_MEMORY);
    T_CHECK(ok || (!joint && !lifted.program));
    fxa_program_destroy(joint);
    fxa_program_destroy(lifted.program);
    return ok;
}

TEST(out_of_memory_at_every_allocation) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_program *p, *d;
    fxa_context *ctx = fail_alloc_programs(&f, memory_text, &p, &d);
    T_REQUIRE(ctx);
    size_t before = f.live_bytes;
    for (int what = 0; what < MEMORY_ALL; what++)
        for (int persistent = 0; persistent < 2; persistent++) {
            bool done = false;
            size_t k = 1;
            for (; !done && k < 1000; k++) {
                fail_alloc_arm(&f, k, persistent);
                done = memory_do(fxa__context_host(ctx), (memory_what)what, p, d);
                fail_alloc_arm(&f, 0, false);
                T_INT(f.live_bytes, before);
            }
            T_CHECK(done && k > 3);
        }
    T_INT(f.mistakes, 0);
    T_INT(fail_alloc_programs_end(&f, ctx, p, d), 0);
}

T_MAIN
