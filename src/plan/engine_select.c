/* SPDX-License-Identifier: Apache-2.0
 *
 * Selects the engine that makes a plan, among the engines of the problem's device. The selected engine is the one that
 * the problem names; else the one that the environment named when the context was created; else the best engine that
 * supports the problem. The best engine has the shortest estimated run time; if engines have no estimate, the first one
 * in the registry (engine/registry.c) is the best.
 */
#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SELECT_ENGINES 64 /* maximum number of engines: a uint64_t has one bit for each engine */

void fxa__engine_list(uint32_t device, char out[FXA__ENGINE_LIST]) {
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; fxa__engine_at(i) && at < FXA__ENGINE_LIST; i++)
        if (device == UINT32_MAX || fxa__engine_at(i)->device == device)
            at += (size_t)snprintf(out + at, FXA__ENGINE_LIST - at, "%s%s", at ? ", " : "", fxa__engine_at(i)->name);
    if (at == 0) (void)snprintf(out, FXA__ENGINE_LIST, "none");
}

/* ---- A named engine ---------------------------------------------------------------------------------------------- */

/* Returns E_ARGUMENT with the message for an engine name that is unknown or belongs to an engine of another device. */
static fxa_status select_bad_name(const char *source, const char *name, const fxa__problem *p, fxa_error *err) {
    char list[FXA__ENGINE_LIST];
    bool known = fxa__engine_find(name) != NULL;
    fxa__engine_list(known ? p->in.device : UINT32_MAX, list);
    if (!known)
        return fxa__fail(err, FXA_E_ARGUMENT, "%s is \"%.64s\", which is no engine of this build; there are: %s",
                         source, name, list);
    return fxa__fail(err, FXA_E_ARGUMENT, "%s is \"%s\", which does not compute in the memory of device %s; there: %s",
                     source, name, fxa_device_name((fxa_device)p->in.device), list);
}

fxa_status fxa__plan_engine_check(const fxa__problem *p, const char *name, fxa_error *err) {
    const fxa__engine *engine = name ? fxa__engine_find(name) : NULL;
    bool right = !name || (engine && engine->device == p->in.device);
    return right ? FXA_OK : select_bad_name("problem.engine", name, p, err);
}

/* Sets *out to the engine called `name`. If `name` is NULL, sets *out to the engine that the environment selects, or to
 * NULL if the environment selects none. Returns an error if `name` is wrong or the environment names an unknown engine.
 * If the environment names an engine of another device, the environment's name is ignored. */
static fxa_status select_named_engine(const fxa_context *ctx, const fxa__problem *p, const char *name,
                                      const fxa__engine **out, fxa_error *err) {
    *out = name ? fxa__engine_find(name) : NULL;
    if (name) return fxa__plan_engine_check(p, name, err);
    if (ctx->engine_name[0]) {
        *out = fxa__engine_find(ctx->engine_name);
        if (!*out) return select_bad_name("the environment's FXA_ENGINE", ctx->engine_name, p, err);
        if ((*out)->device == p->in.device) return FXA_OK;
    }
    for (size_t i = 0; i < SELECT_ENGINES; i++) {
        *out = ctx->engine_variables >> i & 1u ? fxa__engine_at(i) : NULL;
        if (*out && (*out)->device == p->in.device) return FXA_OK;
    }
    *out = NULL;
    return FXA_OK;
}

fxa_status fxa__plan_named_check(const fxa_context *ctx, const fxa__problem *p, const char *name, fxa_error *err) {
    const fxa__engine *engine;
    return select_named_engine(ctx, p, name, &engine, err);
}

static fxa_status select_instance(fxa_context *ctx, const fxa__problem *p, const fxa__engine *engine,
                                  fxa__instance **out, fxa_error *err) {
    return fxa__instance_get(fxa__context_host(ctx), engine, p->in.ordinal, p->in.target, out, err);
}

/* ---- The best engine --------------------------------------------------------------------------------------------- */

/* The reasons why engines refused a problem, joined to one text for an error message. Text that does not fit is left
 * out. */
typedef struct select_reasons {
    char text[sizeof((fxa_error *)0)->text + sizeof((fxa_support *)0)->reason];
    size_t at;     /* bytes written */
    bool is_wrong; /* true = an engine could not parse problem.target: the error is E_PROBLEM */
} select_reasons;

static void select_reason(select_reasons *r, const char *engine, const char *reason) {
    if (r->at >= sizeof((fxa_error *)0)->text) return;
    r->at += (size_t)snprintf(r->text + r->at, sizeof r->text - r->at, "%s %s: %s", r->at ? ";" : ":", engine, reason);
}

/* An engine that supports the problem, with its analysis and support result, which the plan is made from. */
typedef struct select_choice {
    fxa__instance *instance; /* NULL = no engine */
    fxa__analysis analysis;
    fxa_support support;
    size_t at;   /* index of the engine in the registry */
    double cost; /* estimated seconds of a run; negative: the engine has no estimate */
} select_choice;

/* Queries engine number `at` of the registry. Sets *out to the engine if it supports p and its bit in `refused` is 0;
 * else sets out->instance to NULL and adds the reason to *reasons. */
static fxa_status select_query(fxa_context *ctx, const fxa__problem *p, size_t at, uint64_t refused, select_choice *out,
                               select_reasons *reasons, fxa_error *err) {
    fxa__instance *instance;
    fxa_support *support = &out->support;
    out->instance = NULL;
    FXA_TRY(select_instance(ctx, p, fxa__engine_at(at), &instance, err));
    fxa__analysis a = fxa__analysis_of(instance, p);
    fxa_status status = fxa__support_get(ctx, instance, &a, support, err);
    if (status == FXA_OK && support->supported && !(refused >> at & 1u)) {
        out->instance = instance, out->analysis = a, out->at = at;
        out->cost = a.engine->cost ? a.engine->cost(&out->analysis) : -1;
        return FXA_OK;
    }
    fxa__analysis_end(&a);
    if (status != FXA_OK) return status;
    reasons->is_wrong = reasons->is_wrong || instance->failure.status == FXA_E_PROBLEM;
    select_reason(reasons, support->engine, support->supported ? "its compiler refuses it" : support->reason);
    return FXA_OK;
}

/* Sets *out to the best engine that supports p; the caller ends its analysis. An engine whose bit in `refused` is set
 * is not selected. Sets out->instance to NULL if no engine can be selected. Collects in *reasons why engines were not
 * selected. */
static fxa_status select_best_engine(fxa_context *ctx, const fxa__problem *p, uint64_t refused, select_choice *out,
                                     select_reasons *reasons, fxa_error *err) {
    fxa_status status = FXA_OK;
    *out = (select_choice){.cost = INFINITY};
    reasons->at = 0;
    reasons->text[0] = '\0';
    reasons->is_wrong = false;
    /* The loop ends at once if the first engine that supports p has no estimate (cost < 0): this engine is selected. */
    for (size_t i = 0; i < SELECT_ENGINES && fxa__engine_at(i) && out->cost >= 0; i++) {
        select_choice next;
        if (fxa__engine_at(i)->device != p->in.device) continue;
        status = select_query(ctx, p, i, refused, &next, reasons, err);
        if (status != FXA_OK) break;
        if (!next.instance) continue;
        bool better = !out->instance || (next.cost >= 0 && next.cost < out->cost);
        fxa__analysis_end(better ? &out->analysis : &next.analysis);
        if (better) *out = next;
    }
    if (status != FXA_OK) fxa__analysis_end(&out->analysis);
    return status;
}

/* Counts a refused problem in the context and returns an error whose message has the reasons of all engines. */
static fxa_status select_refuse_all(fxa_context *ctx, const fxa__problem *p, const select_reasons *reasons,
                                    fxa_error *err) {
    atomic_fetch_add_explicit(&ctx->refusals, 1, memory_order_relaxed);
    if (reasons->at == 0)
        return fxa__fail(err, FXA_E_UNSUPPORTED, "no engine of this build computes in the memory of device %s",
                         fxa_device_name((fxa_device)p->in.device));
    return fxa__fail(err, reasons->is_wrong ? FXA_E_PROBLEM : FXA_E_UNSUPPORTED, "no engine can run this problem%s",
                     reasons->text);
}

/* Makes the plan on the best engine. If the engine's compiler refuses the problem or fails, tries the next best engine.
 * If no engine is left, returns the first failure of a compiler; if no compiler failed, returns an error with the
 * reasons of all engines. */
static fxa_status select_and_make(fxa_context *ctx, fxa__problem *p, fxa_plan **out, fxa_error *err) {
    uint64_t refused = 0;
    fxa_status status = FXA_E_UNSUPPORTED;
    fxa_error broken = {.status = FXA_OK};
    while (status == FXA_E_UNSUPPORTED || status == FXA_E_ENGINE) {
        select_reasons reasons;
        select_choice best;
        fxa_error why;
        FXA_TRY(select_best_engine(ctx, p, refused, &best, &reasons, err));
        if (!best.instance && broken.status != FXA_OK) return fxa__fail(err, broken.status, "%s", broken.text);
        if (!best.instance) return select_refuse_all(ctx, p, &reasons, err);
        status = fxa__plan_make(ctx, p, best.instance, &best.analysis, &best.support, NULL, out, &why);
        fxa__analysis_end(&best.analysis);
        if (status == FXA_E_ENGINE && broken.status == FXA_OK) broken = why;
        if (status != FXA_OK && err) *err = why;
        refused |= (uint64_t)1 << best.at;
    }
    return status == FXA_OK ? fxa__ok(err) : status;
}

fxa_status fxa__plan_select(fxa_context *ctx, fxa__problem *p, const char *name, fxa_plan **out, fxa_error *err) {
    const fxa__engine *engine;
    fxa__instance *instance;
    fxa_support support;
    FXA_TRY(select_named_engine(ctx, p, name, &engine, err));
    if (!engine) return select_and_make(ctx, p, out, err);
    FXA_TRY(select_instance(ctx, p, engine, &instance, err));
    fxa__analysis a = fxa__analysis_of(instance, p);
    fxa_status status = fxa__support_get(ctx, instance, &a, &support, err);
    if (status == FXA_OK) status = fxa__plan_make(ctx, p, instance, &a, &support, NULL, out, err);
    fxa__analysis_end(&a);
    if (status == FXA_E_UNSUPPORTED) atomic_fetch_add_explicit(&ctx->refusals, 1, memory_order_relaxed);
    return status;
}
