/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: which engine, its code from the cache, and the immutable object that a run needs. A plan has its own resolved
 * problem (the geometry) and shares the code.
 */
#include "plan.h"

#include "../base/blake2s.h"
#include "../base/float_state.h"
#include "../base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Code -------------------------------------------------------------------------------------------------------- */

static fxa_status code_fill(fxa__code *code, const fxa__problem *p, const fxa__reader *section, fxa_error *err) {
    size_t bytes = 0;
    if (!section) {
        FXA_TRY(code->engine->compile(code->host, p, &code->code, &bytes, err));
    } else {
        fxa__reader r = *section;
        FXA_TRY(code->engine->load(code->host, p, &r, &code->code, &bytes, err));
        if (!fxa__reader_done(&r)) {
            code->engine->release(code->host, code->code);
            return fxa__fail(err, FXA_E_BYTES, "the code of engine %s is damaged: %zu of %zu bytes were understood",
                             code->engine->name, r.at, r.size);
        }
    }
    if (!fxa__add_size(bytes, sizeof *code, &code->bytes)) code->bytes = SIZE_MAX;
    return FXA_OK;
}

fxa_status fxa__code_create(fxa__host *host, const fxa__engine *engine, const fxa__problem *p,
                            const fxa__reader *section, fxa__code **out, fxa_error *err) {
    *out = NULL;
    fxa__code *code = fxa__alloc(host, sizeof *code);
    if (!code) return fxa__fail_memory(err, "the code of a plan");
    code->host = host;
    code->engine = engine;
    fxa_status status = code_fill(code, p, section, err);
    if (status != FXA_OK) {
        fxa__free(host, code, sizeof *code);
        return status;
    }
    atomic_init(&code->refs, 1);
    fxa__host_retain(host);
    *out = code;
    return FXA_OK;
}

fxa__code *fxa__code_retain(fxa__code *code) {
    atomic_fetch_add_explicit(&code->refs, 1, memory_order_relaxed);
    return code;
}

void fxa__code_release(fxa__code *code) {
    if (!code || atomic_fetch_sub_explicit(&code->refs, 1, memory_order_acq_rel) != 1) return;
    fxa__host *host = code->host;
    code->engine->release(host, code->code);
    fxa__free(host, code, sizeof *code);
    fxa__host_release(host);
}

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* The engine's name with its terminator, its version in little endian. */
static void plan_hash_engine(fxa__blake2s *s, const char *engine, uint32_t version) {
    uint8_t bytes[4] = {(uint8_t)version, (uint8_t)(version >> 8), (uint8_t)(version >> 16), (uint8_t)(version >> 24)};
    fxa__blake2s_add(s, engine, strlen(engine) + 1);
    fxa__blake2s_add(s, bytes, sizeof bytes);
}

void fxa__plan_key_make(const fxa__problem *p, const char *engine, uint32_t version, uint8_t key[16]) {
    fxa__blake2s s;
    fxa__blake2s_start(&s, 16);
    fxa__blake2s_add(&s, p->key, 16);
    plan_hash_engine(&s, engine, version);
    fxa__blake2s_end(&s, key);
}

/* Code that came from bytes has the bytes in its key: it can never stand in for code compiled here. */
static void plan_code_key(const fxa__problem *p, const fxa__engine *engine, const fxa__reader *section,
                          uint8_t key[16]) {
    fxa__blake2s s;
    fxa__blake2s_start(&s, 16);
    plan_hash_engine(&s, engine->name, engine->version);
    fxa__blake2s_add(&s, engine->dynamic_geometry ? p->code_key : p->key, 16);
    if (section) fxa__blake2s_add(&s, section->data, section->size);
    fxa__blake2s_end(&s, key);
}

/* ---- Making a plan ----------------------------------------------------------------------------------------------- */

typedef struct plan_build {
    fxa__host *host;
    const fxa__engine *engine;
    const fxa__problem *problem;
    const fxa__reader *section;
} plan_build;

static fxa_status plan_build_code(void *user, fxa__code **out, fxa_error *err) {
    const plan_build *b = user;
    return fxa__code_create(b->host, b->engine, b->problem, b->section, out, err);
}

static fxa_status plan_refuse(fxa_context *ctx, fxa_error *err, const char *reasons) {
    atomic_fetch_add_explicit(&ctx->refusals, 1, memory_order_relaxed);
    return fxa__fail(err, FXA_E_UNSUPPORTED, "%s", reasons);
}

/* Takes over nothing: the plan gets references of its own. */
static fxa_status plan_create_of(fxa__host *host, fxa__problem *p, fxa__code *code, bool deterministic, fxa_plan **out,
                                 fxa_error *err) {
    size_t engine_workspace = 0, workspace = 0;
    if (!code->engine->workspace(code->code, p, &engine_workspace) ||
        !fxa__add_size(engine_workspace, fxa__bind_size(p), &workspace))
        return fxa__fail(err, FXA_E_LIMIT, "the workspace of one run does not fit in a size_t");
    fxa__pool *pool = NULL;
    if (code->engine->threads) FXA_TRY(fxa__host_pool(host, &pool, err));
    fxa_plan *plan = fxa__alloc(host, sizeof *plan);
    if (!plan) return fxa__fail_memory(err, "a plan");
    atomic_init(&plan->refs, 1);
    plan->host = fxa__host_retain(host);
    plan->problem = fxa__problem_retain(p);
    plan->code = fxa__code_retain(code);
    plan->pool = pool;
    plan->engine_workspace = engine_workspace;
    plan->workspace = workspace;
    plan->deterministic = deterministic;
    fxa__plan_key_make(p, code->engine->name, code->engine->version, plan->key);
    *out = plan;
    return fxa__ok(err);
}

fxa_status fxa__plan_make(fxa_context *ctx, fxa__problem *p, const fxa__engine *engine, const fxa__reader *section,
                          fxa_plan **out, fxa_error *err) {
    fxa_support answer;
    FXA_TRY(fxa__answers_get(&ctx->answers, engine, p, &answer, err));
    if (!answer.supported) {
        char text[sizeof answer.reason + 64];
        snprintf(text, sizeof text, "engine %s cannot run this problem: %s", engine->name, answer.reason);
        return plan_refuse(ctx, err, text);
    }
    plan_build build = {fxa__context_host(ctx), engine, p, section};
    uint8_t key[16];
    plan_code_key(p, engine, section, key);
    fxa__code *code = NULL;
    FXA_TRY(fxa__cache_get(&ctx->cache, key, plan_build_code, &build, &code, err));
    fxa_status status = plan_create_of(fxa__context_host(ctx), p, code, answer.deterministic != 0, out, err);
    fxa__code_release(code);
    return status;
}

/* ---- Choosing the engine ----------------------------------------------------------------------------------------- */

void fxa__engine_list(char out[FXA__ENGINE_LIST]) {
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; fxa__engine_at(i) && at < FXA__ENGINE_LIST; i++)
        at += (size_t)snprintf(out + at, FXA__ENGINE_LIST - at, "%s%s", i ? ", " : "", fxa__engine_at(i)->name);
}

static bool plan_is_set(const char *variable) {
    const char *text = variable ? getenv(variable) : NULL;
    return text && *text;
}

/* The name that was asked for, NULL for automatic. problem has been checked; an older caller's struct may end before
 * `engine`. */
static const char *plan_engine_wanted(const fxa_problem *problem, const char **source) {
    bool has_field = problem->struct_size >= offsetof(fxa_problem, engine) + sizeof problem->engine;
    *source = "problem.engine";
    if (has_field && problem->engine) return problem->engine;
    *source = "the environment's FXA_ENGINE";
    if (plan_is_set("FXA_ENGINE")) return getenv("FXA_ENGINE");
    for (size_t i = 0; fxa__engine_at(i); i++)
        if (plan_is_set(fxa__engine_at(i)->variable)) return fxa__engine_at(i)->name;
    return NULL;
}

/* The first engine that can; refused with the reason of each when none can. */
static fxa_status plan_engine_first(fxa_context *ctx, const fxa__problem *p, const fxa__engine **out, fxa_error *err) {
    char text[sizeof err->text + sizeof((fxa_support *)0)->reason] = "no engine can run this problem";
    size_t at = strlen(text);
    for (size_t i = 0; (*out = fxa__engine_at(i)) != NULL; i++) {
        fxa_support answer;
        FXA_TRY(fxa__answers_get(&ctx->answers, *out, p, &answer, err));
        if (answer.supported) return FXA_OK;
        if (at < sizeof err->text)
            at +=
                (size_t)snprintf(text + at, sizeof text - at, "%s %s: %s", i ? ";" : ":", (*out)->name, answer.reason);
    }
    return plan_refuse(ctx, err, text);
}

static fxa_status plan_engine_choose(fxa_context *ctx, const fxa_problem *problem, const fxa__problem *p,
                                     const fxa__engine **out, fxa_error *err) {
    const char *source;
    const char *name = plan_engine_wanted(problem, &source);
    if (!name) return plan_engine_first(ctx, p, out, err);
    *out = fxa__engine_find(name);
    if (*out) return FXA_OK;
    char list[FXA__ENGINE_LIST];
    fxa__engine_list(list);
    return fxa__fail(err, FXA_E_ARGUMENT, "%s is \"%.64s\", which is no engine of this build; there are: %s", source,
                     name, list);
}

/* ---- Public ------------------------------------------------------------------------------------------------------ */

fxa_status fxa_plan_create(fxa_context *ctx, const fxa_problem *problem, fxa_plan **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!out) return fxa__fail(err, FXA_E_ARGUMENT, "out is NULL: nowhere to put the plan");
    *out = NULL;
    if (!ctx) return fxa__fail(err, FXA_E_ARGUMENT, "ctx is NULL");
    if (!problem) return fxa__fail(err, FXA_E_ARGUMENT, "problem is NULL");
    fxa__problem *p = NULL;
    FXA_TRY(fxa__problem_create(fxa__context_host(ctx), problem, &p, err));
    const fxa__engine *engine = NULL;
    fxa_status status = plan_engine_choose(ctx, problem, p, &engine, err);
    if (status == FXA_OK) status = fxa__plan_make(ctx, p, engine, NULL, out, err);
    fxa__problem_release(p);
    return status;
}

void fxa_plan_retain(fxa_plan *plan) {
    if (plan) atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
}

void fxa_plan_destroy(fxa_plan *plan) {
    if (!plan || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1) return;
    fxa__host *host = plan->host;
    fxa__code_release(plan->code);
    fxa__problem_release(plan->problem);
    fxa__free(host, plan, sizeof *plan);
    fxa__host_release(host);
}

const char *fxa_plan_engine(const fxa_plan *plan) { return plan ? plan->code->engine->name : NULL; }
size_t fxa_plan_workspace(const fxa_plan *plan) { return plan ? plan->workspace : 0; }
const char *fxa_plan_detail(const fxa_plan *plan) {
    const fxa__engine *engine = plan ? plan->code->engine : NULL;
    const char *text = engine && engine->detail ? engine->detail(plan->code->code, plan->problem) : NULL;
    return text ? text : "";
}
int fxa_plan_is_deterministic(const fxa_plan *plan) { return plan ? plan->deterministic : 0; }

void fxa_plan_key(const fxa_plan *plan, uint8_t key[16]) {
    if (!key) return;
    if (plan)
        memcpy(key, plan->key, 16);
    else
        memset(key, 0, 16);
}

/* Writes as much as the caller's struct_size says it knows (0: all of it), so that an older caller's struct is not
 * overrun. A problem made of the result has the same key. */
void fxa_plan_problem(const fxa_plan *plan, fxa_problem *out) {
    if (!plan || !out) return;
    fxa_problem p = plan->problem->in;
    p.engine = plan->code->engine->name;
    if (out->struct_size != 0 && out->struct_size < sizeof p) p.struct_size = out->struct_size;
    memcpy(out, &p, p.struct_size);
}
