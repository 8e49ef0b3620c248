/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines that do what the reference engine never does: "picky" refuses what is wide, "fixed" compiles for one geometry
 * and its code is saved and loaded. A test that includes this brings a registry of its own, so the library's is not
 * linked; what the engines answer is set by the variables below, and a rig starts them anew.
 */
#ifndef FXA_TESTS_FAKE_ENGINES_H
#define FXA_TESTS_FAKE_ENGINES_H

#include "plan/plan.h"
#include "support/own_engines.h"
#include "support/plan_rig.h"

static atomic_int queries, compiles, loads, releases;
static fxa_status compile_status;
static uint32_t saved_mark = 0x600dc0de;
static bool saved_too_much, saved_nothing;
static size_t compiled_bytes, workspace_bytes, workspace_bytes_of_code;

/* "picky" refuses everything that is wide. */
static void picky_query(const fxa__problem *p, fxa_support *report) {
    atomic_fetch_add(&queries, 1);
    report->supported = p->in.d < 3;
    if (report->supported) return;
    snprintf(report->reason, sizeof report->reason, "d is %d, below 3 is accepted", (int)p->in.d);
}

/* "fixed" compiles for one geometry; its code is a number that it checks when it runs. */
static void fixed_query(const fxa__problem *p, fxa_support *report) {
    atomic_fetch_add(&queries, 1);
    report->supported = p->in.pass == FXA_FORWARD;
    if (!report->supported) snprintf(report->reason, sizeof report->reason, "only forward");
}
static fxa_status fixed_make(fxa__host *host, uint32_t mark, void **code, size_t *size, fxa_error *err) {
    uint32_t *made = fxa__alloc(host, sizeof *made);
    if (!made) return fxa__fail_memory(err, "fixed code");
    *made = mark;
    *code = made;
    *size = compiled_bytes;
    return FXA_OK;
}
static fxa_status fixed_compile(fxa__host *host, const fxa__problem *p, void **code, size_t *size, fxa_error *err) {
    (void)p;
    atomic_fetch_add(&compiles, 1);
    if (compile_status != FXA_OK) return fxa__fail(err, compile_status, "the assembler is out of order");
    return fixed_make(host, 0x600dc0de, code, size, err);
}
static void fixed_release(fxa__host *host, void *code) {
    atomic_fetch_add(&releases, 1);
    fxa__free(host, code, sizeof(uint32_t));
}
static bool fixed_workspace(const void *code, const fxa__problem *p, size_t *size) {
    *size = code ? workspace_bytes_of_code : workspace_bytes;
    return p->in.b < 1000;
}
static fxa_status fixed_run(const void *code, const fxa__problem *p, const fxa__bind *bind, fxa_error *err) {
    (void)p;
    uint32_t mark = *(const uint32_t *)code;
    if (mark != 0x600dc0de) return fxa__fail(err, FXA_E_ENGINE, "code is %08x", (unsigned)mark);
    if (bind->workspace_size < 64) return fxa__fail(err, FXA_E_INTERNAL, "no room");
    *(double *)bind->slot[FXA_SLOT_O] = 42;
    return FXA_OK;
}
static void fixed_save(const void *code, fxa__writer *w) {
    (void)code;
    if (saved_nothing) return;
    fxa__write_u32(w, saved_mark);
    if (saved_too_much) fxa__write_u8(w, 0);
}
static fxa_status fixed_load(fxa__host *host, const fxa__problem *p, fxa__reader *r, void **code, size_t *size,
                             fxa_error *err) {
    (void)p;
    atomic_fetch_add(&loads, 1);
    uint32_t mark = fxa__read_u32(r);
    if (r->failed) return fxa__fail(err, FXA_E_BYTES, "code of fixed is cut off");
    return fixed_make(host, mark, code, size, err);
}

#define FIXED_CODE .compile = fixed_compile, .release = fixed_release, .workspace = fixed_workspace, .run = fixed_run
#define FIXED_ALL .name = "fixed", .query = fixed_query, FIXED_CODE, .save = fixed_save, .load = fixed_load
static const fxa__engine picky = {
    .name = "picky", .version = 1, .dynamic_geometry = true, .query = picky_query, FIXED_CODE};
static const fxa__engine fixed = {FIXED_ALL, .version = 3};
static const fxa__engine fixed_newer = {FIXED_ALL, .version = 4};
static const fxa__engine *own_engines[] = {&picky, &fixed};

/* A rig with the engines as they are at first. d of its problem is 3: picky says no. */
static bool fake_start(plan_rig *r) {
    queries = compiles = loads = releases = 0;
    compile_status = FXA_OK;
    saved_mark = 0x600dc0de;
    saved_too_much = saved_nothing = false;
    compiled_bytes = 1000;
    workspace_bytes = workspace_bytes_of_code = 64;
    own_engines[1] = &fixed;
    return plan_rig_start(r);
}

#endif
