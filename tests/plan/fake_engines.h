/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines with behaviour that ref never shows: "picky" refuses wide problems; "fixed" compiles for one geometry, and
 * can save and load code. A test that includes this file defines the registry, which replaces the library's. The
 * variables below set the engines' results; starting a rig resets them.
 */
#ifndef FXA_TESTS_FAKE_ENGINES_H
#define FXA_TESTS_FAKE_ENGINES_H

#include "plan/plan.h"
#include "support/fixtures/own_engines.h"
#include "support/fixtures/plan_fixture.h"

static atomic_int queries, compiles, loads, releases;
static fxa_status compile_status;
static uint32_t saved_mark = 0x600dc0de;
static bool saved_too_much, saved_little;
static size_t compiled_bytes, workspace_bytes;

/* "picky" refuses wide problems. */
static fxa_status picky_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    const fxa_problem *p = &a->problem->in;
    (void)code, (void)err;
    atomic_fetch_add(&queries, 1);
    report->supported = p->d_qk < 3;
    report->workspace = workspace_bytes;
    if (report->supported) return FXA_OK;
    snprintf(report->reason, sizeof report->reason, "d is %d, below 3 is accepted", (int)p->d_qk);
    return FXA_OK;
}

/* "fixed" compiles for one geometry; its code is a number that it checks when it runs. */
static fxa_status fixed_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    const fxa_problem *p = &a->problem->in;
    (void)code, (void)err;
    atomic_fetch_add(&queries, 1);
    report->supported = p->pass == FXA_FORWARD;
    report->workspace = p->b < 1000 ? workspace_bytes : UINT64_MAX;
    if (!report->supported) snprintf(report->reason, sizeof report->reason, "only forward");
    return FXA_OK;
}
typedef struct fixed_code {
    fxa__host *host;
    uint32_t mark;
} fixed_code;

static fxa_status fixed_make(fxa__host *host, uint32_t mark, void **code, size_t *size, fxa_error *err) {
    fixed_code *made = fxa__alloc(host, sizeof *made);
    if (!made) return fxa__fail_memory(err, "fixed code");
    *made = (fixed_code){host, mark};
    *code = made;
    *size = compiled_bytes;
    return FXA_OK;
}
static fxa_status fixed_compile(fxa__analysis *a, void **code, size_t *size, fxa_error *err) {
    atomic_fetch_add(&compiles, 1);
    if (compile_status != FXA_OK) return fxa__fail(err, compile_status, "the assembler is out of order");
    return fixed_make(a->problem->host, 0x600dc0de, code, size, err);
}
static void fixed_release(void *self, void *code) {
    (void)self;
    atomic_fetch_add(&releases, 1);
    fxa__free(((fixed_code *)code)->host, code, sizeof(fixed_code));
}
static fxa_status fixed_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                            fxa_error *err) {
    (void)self, (void)p;
    uint32_t mark = ((const fixed_code *)code)->mark;
    if (mark != 0x600dc0de) return fxa__fail(err, FXA_E_ENGINE, "code is %08x", (unsigned)mark);
    if (bound->workspace_size < 64) return fxa__fail(err, FXA_E_INTERNAL, "no room");
    *(double *)bound->slot[FXA_SLOT_O] = 42;
    return FXA_OK;
}
static void fixed_save(void *self, const void *code, fxa__writer *w) {
    (void)self, (void)code;
    fxa__write_u8(w, (uint8_t)saved_mark);
    if (saved_little) return;
    for (int i = 1; i < 4; i++) fxa__write_u8(w, (uint8_t)(saved_mark >> 8 * i));
    if (saved_too_much) fxa__write_u8(w, 0);
}
static fxa_status fixed_load(fxa__analysis *a, fxa__reader *r, void **code, size_t *size, fxa_error *err) {
    atomic_fetch_add(&loads, 1);
    uint32_t mark = fxa__read_u32(r);
    if (r->failed) return fxa__fail(err, FXA_E_BYTES, "code of fixed is cut off");
    return fixed_make(a->problem->host, mark, code, size, err);
}

static void picky_key(fxa__analysis *a, fxa__writer *w) { fxa__problem_write(a->problem, 0, w); }

#define FIXED_CODE .compile = fixed_compile, .release = fixed_release, .run = fixed_run
#define FIXED_ALL .name = "fixed", .query = fixed_query, FIXED_CODE, .save = fixed_save, .load = fixed_load
static const fxa__engine picky = {.name = "picky", .version = 1, .query = picky_query, .key = picky_key, FIXED_CODE};
static const fxa__engine fixed = {FIXED_ALL, .version = 3};
static const fxa__engine fixed_newer = {FIXED_ALL, .version = 4};
static const fxa__engine *own_engines[OWN_ENGINES] = {&picky, &fixed};

/* Starts a rig with the engines in their initial state. d_qk of its problem is 3, which picky refuses. */
static bool fake_start(plan_rig *r) {
    queries = compiles = loads = releases = 0;
    compile_status = FXA_OK;
    saved_mark = 0x600dc0de;
    saved_too_much = saved_little = false;
    compiled_bytes = 1000;
    workspace_bytes = 64;
    own_engines[1] = &fixed;
    return plan_rig_start(r);
}

#define FAKE_TEST(name) T_WITH(name, plan_rig, fake_start(r), plan_rig_end(r)) /* test with a started rig r */

#endif
