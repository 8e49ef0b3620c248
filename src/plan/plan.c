/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes plans. A plan is the immutable object that a run needs: the problem with all strides explicit, and a reference
 * to the compiled code, which plans share through the plan cache. engine_select.c selects the engine of a plan.
 */
#include "plan.h"

#include "../base/blake2s.h"
#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../problem/index_check.h"

#include <string.h>

/* ---- Plan key and code key --------------------------------------------------------------------------------------- */

/* Adds an engine to a hash: its name and identity with their terminators, and its version in little-endian order. */
static void plan_hash_engine(fxa__blake2s *s, const char *engine, uint32_t version, const char *identity) {
    uint8_t bytes[4] = {(uint8_t)version, (uint8_t)(version >> 8), (uint8_t)(version >> 16), (uint8_t)(version >> 24)};
    fxa__blake2s_add(s, engine, strlen(engine) + 1);
    fxa__blake2s_add(s, bytes, sizeof bytes);
    fxa__blake2s_add(s, identity, strlen(identity) + 1);
}

void fxa__plan_key_make(const fxa__problem *p, const char *engine, uint32_t version, const char *identity,
                        uint8_t key[16]) {
    fxa__blake2s s;
    fxa__blake2s_start(&s, 16);
    fxa__blake2s_add(&s, p->key, 16);
    plan_hash_engine(&s, engine, version, identity);
    fxa__blake2s_end(&s, key);
}

/* The code key includes the ordinal and the target of the instance, because compiled code belongs to one instance. */
fxa_status fxa__code_key_make(const fxa__instance *instance, fxa__analysis *a, const fxa__reader *section,
                              uint8_t key[16], fxa_error *err) {
    const fxa__engine *engine = instance->engine;
    if (!section && a->has_code_key) {
        memcpy(key, a->code_key, sizeof a->code_key);
        return FXA_OK;
    }
    fxa__writer w = {.host = a->problem->host};
    fxa__write_u32(&w, (uint32_t)instance->ordinal);
    fxa__write_string(&w, instance->target);
    if (engine->key)
        engine->key(a, &w);
    else
        fxa__write_bytes(&w, a->problem->key, 16);
    fxa_status status = w.failed ? fxa__fail_memory(err, "the key of a plan's code") : FXA_OK;
    fxa__blake2s s;
    fxa__blake2s_start(&s, 16);
    plan_hash_engine(&s, engine->name, engine->version, instance->identity);
    if (status == FXA_OK) fxa__blake2s_add(&s, w.data, w.size);
    if (section) fxa__blake2s_add(&s, section->data, section->size);
    fxa__blake2s_end(&s, key);
    fxa__writer_free(&w);
    if (status == FXA_OK && !section) {
        memcpy(a->code_key, key, sizeof a->code_key);
        a->has_code_key = true;
    }
    return status;
}

/* ---- Making a plan ----------------------------------------------------------------------------------------------- */

typedef struct plan_build {
    fxa__disk *disk;
    fxa__instance *instance;
    fxa__analysis *analysis;
    const fxa__reader *section;
} plan_build;

static fxa_status plan_build_code(void *user, fxa__code **out, fxa_error *err) {
    const plan_build *b = user;
    if (!b->section && fxa__disk_serves(b->disk, b->analysis->engine))
        return fxa__disk_code(b->disk, b->instance, b->analysis, out, err);
    return fxa__code_create(b->instance, b->analysis, b->section, out, err);
}

/* Creates a plan, which takes its own references to the host, the problem and the code. */
static fxa_status plan_create(fxa__host *host, fxa__problem *p, fxa__code *code, const uint8_t code_key[16],
                              const double constants[FXA__MAX_CONSTANTS], const fxa_support *support, fxa_plan **out,
                              fxa_error *err) {
    const fxa__engine *engine = code->instance->engine;
    fxa__pool *pool = NULL;
    if (engine->threads) FXA_TRY(fxa__host_pool(host, &pool, err));
    fxa_plan *plan = fxa__alloc(host, sizeof *plan);
    if (!plan) return fxa__fail_memory(err, "a plan");
    memcpy(plan->constants, constants, sizeof plan->constants);
    if (engine->prepare) engine->prepare(code->instance->self, code->code, p, plan->constants);
    atomic_init(&plan->refs, 1);
    plan->host = fxa__host_retain(host);
    plan->problem = fxa__problem_retain(p);
    plan->code = fxa__code_retain(code);
    plan->pool = pool;
    plan->workspace = (size_t)support->workspace;
    /* support_apply_limits has added the bytes of the index check to support->workspace */
    FXA__ASSERT(plan->workspace >= fxa__index_workspace(p));
    plan->engine_workspace = plan->workspace - fxa__index_workspace(p);
    plan->deterministic = support->deterministic != 0;
    fxa__plan_key_make(p, engine->name, engine->version, code->instance->identity, plan->key);
    memcpy(plan->code_key, code_key, sizeof plan->code_key);
    *out = plan;
    return fxa__ok(err);
}

/* Returns E_UNSUPPORTED with a message that names the engine and its reason to refuse the problem. */
static fxa_status plan_refuse(const fxa__engine *engine, const char *reason, fxa_error *err) {
    return fxa__fail(err, FXA_E_UNSUPPORTED, "engine %s cannot run this problem: %s", engine->name, reason);
}

fxa_status fxa__plan_make(fxa_context *ctx, fxa__problem *p, fxa__instance *instance, fxa__analysis *a,
                          const fxa_support *support, const fxa__reader *section, fxa_plan **out, fxa_error *err) {
    fxa_error why;
    if (!support->supported) return plan_refuse(instance->engine, support->reason, err);
    plan_build build = {.disk = &ctx->disk, .instance = instance, .analysis = a, .section = section};
    FXA__ASSERT(a->problem == p && a->engine == instance->engine && a->self == instance->self);
    uint8_t key[16];
    double constants[FXA__MAX_CONSTANTS] = {0};
    FXA_TRY(fxa__code_key_make(instance, a, section, key, err));
    if (a->engine->constants) FXA_TRY(a->engine->constants(a, constants, err));
    fxa__code *code = NULL;
    fxa_status status = fxa__cache_get(&ctx->cache, key, plan_build_code, &build, &code, &why);
    /* A refusal of code from plan bytes is not cached: these bytes are untrusted, so the refusal says nothing about the
     * engine. */
    if (status == FXA_E_UNSUPPORTED) {
        if (!section) fxa__support_cache_refuse(ctx, instance, p, key, why.text);
        return plan_refuse(instance->engine, why.text, err);
    }
    if (status != FXA_OK) return fxa__fail(err, status, "%s", why.text);
    FXA__ASSERT(code->instance == instance);
    status = plan_create(fxa__context_host(ctx), p, code, key, constants, support, out, err);
    fxa__code_release(code);
    return status;
}

const char *fxa__problem_engine(const fxa_problem *problem) {
    bool has_field = problem->struct_size >= offsetof(fxa_problem, engine) + sizeof problem->engine;
    return has_field ? problem->engine : NULL;
}

/* ---- Public functions -------------------------------------------------------------------------------------------- */

fxa_status fxa_plan_create(fxa_context *ctx, const fxa_problem *problem, fxa_plan **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!out) return fxa__fail(err, FXA_E_ARGUMENT, "out is NULL: nowhere to put the plan");
    *out = NULL;
    if (!ctx) return fxa__fail(err, FXA_E_ARGUMENT, "ctx is NULL");
    if (!problem) return fxa__fail(err, FXA_E_ARGUMENT, "problem is NULL");
    fxa__problem *p = NULL;
    fxa__request_key key;
    fxa__request_key_problem(&key, FXA__REQUEST_PLAN, problem);
    *out = fxa__request_cache_plan(ctx, &key);
    if (*out) return fxa__ok(err);
    FXA_TRY(fxa__problem_create(fxa__context_host(ctx), problem, &p, err));
    fxa_status status = fxa__plan_select(ctx, p, fxa__problem_engine(problem), out, err);
    if (status == FXA_OK) fxa__request_cache_store_plan(ctx, &key, *out);
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

const char *fxa_plan_engine(const fxa_plan *plan) { return plan ? plan->code->instance->engine->name : NULL; }
size_t fxa_plan_workspace(const fxa_plan *plan) { return plan ? plan->workspace : 0; }
const char *fxa_plan_description(const fxa_plan *plan) {
    const fxa__engine *engine = plan ? plan->code->instance->engine : NULL;
    const char *text = engine && engine->description ? engine->description(plan->code->code, plan->problem) : NULL;
    return text ? text : "";
}

fxa_status fxa_plan_dump(const fxa_plan *plan, char *out, size_t capacity, size_t *needed, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!plan || (!out && !needed))
        return fxa__fail(err, FXA_E_ARGUMENT, plan ? "both out and needed are NULL" : "plan is NULL");
    const fxa__engine *engine = plan->code->instance->engine;
    fxa__writer w = {.host = plan->host};
    size_t size = 0;
    if (engine->dump) engine->dump(plan->code->code, plan->problem, &w);
    fxa__write_u8(&w, 0);
    fxa_status status = w.failed ? fxa__fail_memory(err, "the dump of a plan")
                                 : fxa__bytes_out(w.data, w.size, out, capacity, &size, err);
    if (needed && !w.failed) *needed = size - 1;
    fxa__writer_free(&w);
    return status;
}

int fxa_plan_is_deterministic(const fxa_plan *plan) { return plan ? plan->deterministic : 0; }

void fxa_plan_key(const fxa_plan *plan, uint8_t key[16]) {
    if (!key) return;
    if (plan)
        memcpy(key, plan->key, 16);
    else
        memset(key, 0, 16);
}

/* Copies the plan's problem to *out. Writes at most out->struct_size bytes, because the struct of an older caller may
 * be smaller; a struct_size of 0 stands for the entire struct. A problem that is created from the copy has the same key
 * as the plan's problem. */
void fxa_plan_problem(const fxa_plan *plan, fxa_problem *out) {
    if (!plan || !out) return;
    fxa_problem p = plan->problem->in;
    p.engine = plan->code->instance->engine->name, p.d_v = fxa__d_v_given(&p);
    if (out->struct_size != 0 && out->struct_size < sizeof p) p.struct_size = out->struct_size;
    memcpy(out, &p, p.struct_size);
}
