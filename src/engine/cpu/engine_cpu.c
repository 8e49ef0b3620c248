/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine's table. Its code is a choice of kernels and the tapes of the problem's programs; geometry is left
 * to the run, so one code serves every length and stride.
 */
#include "cpu_forward.h"

#include "../../base/invariant.h"
#include "../../program/range.h"

#include <stdio.h>

/* What a forward pass over the same tensors runs. Only where all that is multiplied is bf16 may products be of bf16. */
static const fxa__cpu_kernels *cpu_forward_kernels(const fxa__problem *p, char *reason, size_t reason_size) {
    bool mixed = p->in.k.dtype != p->in.q.dtype || p->in.v.dtype != p->in.q.dtype;
    return fxa__cpu_select(p->f64 ? sizeof(double) : sizeof(float), mixed ? (uint32_t)FXA_F32 : p->in.q.dtype, reason,
                           reason_size);
}

static const fxa__cpu_kernels *cpu_kernels(const fxa__problem *p, char *reason, size_t reason_size) {
    bool mixed = p->in.pass == FXA_BACKWARD && p->in.dout.dtype != p->in.q.dtype && !p->f64;
    return mixed ? fxa__cpu_select(sizeof(float), FXA_F32, reason, reason_size)
                 : cpu_forward_kernels(p, reason, reason_size);
}

/* Whether tapes can do the programs of the problem; if not, the reason names the operation. */
static bool cpu_can_lower(const fxa__problem *p, char *reason, size_t reason_size) {
    const fxa_program *programs[] = {p->program, p->derivative, p->in.bprop};
    for (int i = 0; i < 3; i++) {
        const fxa__node *n = programs[i] ? fxa__tape_missing(programs[i]) : NULL;
        if (!n) continue;
        const fxa__op_info *op = fxa__op_info_get(n->op);
        (void)snprintf(reason, reason_size, "operation %s (code %d, giving %s) has no code in the cpu engine",
                       op->id ? op->id : "unknown", n->op, fxa__type_name(n->type));
        return false;
    }
    return true;
}

static void cpu_query(const fxa__problem *p, fxa_support *report) {
    report->deterministic = 1;
    report->reason[0] = '\0';
    const fxa__cpu_kernels *kernels = cpu_kernels(p, report->reason, sizeof report->reason);
    report->supported = kernels && cpu_can_lower(p, report->reason, sizeof report->reason);
    if (!report->supported) return;
    if (p->in.pass == FXA_FORWARD)
        fxa__cpu_forward_least(kernels, &p->in, &report->tile_q, &report->tile_k);
    else
        fxa__cpu_backward_least(kernels, &report->tile_q, &report->tile_k);
}

static void cpu_release(fxa__host *host, void *code) {
    fxa__cpu_code *c = code;
    fxa__tape_destroy(c->score);
    fxa__tape_destroy(c->masked);
    fxa__tape_destroy(c->mask);
    fxa__tape_destroy(c->derivative);
    fxa__tape_destroy(c->bprop);
    fxa_program_destroy(c->program);
    fxa__free(host, c, sizeof *c);
}

/* A tape, or NULL when it would change nothing. */
static fxa_status cpu_tape(const fxa__cpu_code *c, const fxa_program *program, uint32_t flags, fxa__tape **out,
                           fxa_error *err) {
    FXA_TRY(fxa__tape_create(c->host, program, flags, c->kernels, out, err));
    if (!fxa__tape_is_identity(*out)) return FXA_OK;
    fxa__tape_destroy(*out);
    *out = NULL;
    return FXA_OK;
}

/* Runs allocate nothing, and range analysis does for large masks: those are never asked. */
static bool cpu_can_classify(const fxa__cpu_code *c) {
    return !c->band.dark && fxa__program_output(c->program, FXA__OUT_MASK) < FXA__SMALL_PROGRAM &&
           c->band.nodes <= FXA__SMALL_NODES;
}

/* A mask is run before there are scores, or with them if it reads them. */
static fxa_status cpu_mask(fxa__cpu_code *c, fxa_error *err) {
    if (c->facts.flags & FXA_FACT_NO_MASK) return FXA_OK;
    if (c->band.reads >> FXA_INPUT_SCORE & 1) return cpu_tape(c, c->program, FXA__TAPE_MASK, &c->masked, err);
    return cpu_tape(c, c->program, FXA__TAPE_MASK_ALONE, &c->mask, err);
}

/* The derivative of what runs: where masks were lifted out of the score, it need not ask for them again. */
static fxa_status cpu_derivative(fxa__cpu_code *c, const fxa__problem *p, uint32_t flags, fxa_error *err) {
    fxa_program *derivative = NULL;
    if (c->program == p->program) return cpu_tape(c, p->derivative, flags, &c->derivative, err);
    FXA_TRY(fxa_program_derivative(c->program, &derivative, err));
    fxa_status status = cpu_tape(c, derivative, flags, &c->derivative, err);
    fxa_program_destroy(derivative);
    return status;
}

/* The tapes of the way back: by score from the user's own program if there is one; sums always from the derivative. */
static fxa_status cpu_fill_backward(fxa__cpu_code *c, const fxa__problem *p, fxa_error *err) {
    bool sums = p->in.param_grads != 0;
    for (int32_t t = 0; t < p->program->n_tensors; t++) sums = sums || p->in.captures[t].grad;
    uint32_t flags = (sums ? FXA__TAPE_GRADS : 0u) | (p->in.bprop ? FXA__TAPE_NO_DSCORE : 0u);
    if (!p->in.bprop || sums) FXA_TRY(cpu_derivative(c, p, flags, err));
    return p->in.bprop ? cpu_tape(c, p->in.bprop, 0, &c->bprop, err) : FXA_OK;
}

/* What arrays on stacks are sized by. */
static bool cpu_fits(const fxa__cpu_kernels *kernels, const fxa_problem *p) {
    return p->d <= FXA__MAX_D && p->dv <= FXA__MAX_D && kernels->rows <= FXA__CPU_MAX_BLOCK &&
           kernels->mr <= FXA__CPU_MAX_BLOCK;
}

static fxa_status cpu_fill(fxa__cpu_code *c, const fxa__problem *p, fxa_error *err) {
    char reason[sizeof((fxa_support *)0)->reason] = "";
    c->kernels = cpu_kernels(p, reason, sizeof reason);
    c->scores = cpu_forward_kernels(p, reason, sizeof reason);
    if (!c->kernels || !c->scores) return fxa__fail(err, FXA_E_UNAVAILABLE, "%s", reason);
    if (!FXA__HOLDS(cpu_fits(c->kernels, &p->in) && cpu_fits(c->scores, &p->in)))
        return fxa__fail(err, FXA_E_INTERNAL, "d %lld, dv %lld or the kernels of %s pass the room of the cpu engine",
                         (long long)p->in.d, (long long)p->in.dv, c->kernels->isa);
    FXA_TRY(fxa__program_lift_masks(c->host, p->program, &c->program, err));
    fxa_program_facts(c->program, &c->facts);
    if (!fxa__cpu_band_find(c->host, c->program, &c->band)) return fxa__fail_memory(err, "the mask of a program");
    c->classify = cpu_can_classify(c);
    FXA_TRY(cpu_tape(c, c->program, 0, &c->score, err));
    FXA_TRY(cpu_mask(c, err));
    return p->in.pass == FXA_BACKWARD ? cpu_fill_backward(c, p, err) : FXA_OK;
}

static fxa_status cpu_compile(fxa__host *host, const fxa__problem *p, void **code, size_t *bytes, fxa_error *err) {
    *code = NULL;
    fxa__cpu_code *c = fxa__alloc(host, sizeof *c);
    if (!c) return fxa__fail_memory(err, "the code of the cpu engine");
    c->host = host;
    c->width = host->width;
    fxa_status status = cpu_fill(c, p, err);
    if (status != FXA_OK) {
        cpu_release(host, c);
        return status;
    }
    (void)snprintf(c->detail, sizeof c->detail, "%s, %d thread%s", c->kernels->isa, (int)c->width,
                   c->width == 1 ? "" : "s");
    *bytes = sizeof *c + c->program->bytes;
    const fxa__tape *tapes[] = {c->score, c->masked, c->mask, c->derivative, c->bprop};
    for (int i = 0; i < 5; i++) *bytes += tapes[i] ? fxa__tape_bytes(tapes[i]) : 0;
    *code = c;
    return fxa__ok(err);
}

static bool cpu_size(const fxa__cpu_code *code, const fxa__problem *p, size_t *bytes) {
    return p->in.pass == FXA_FORWARD ? fxa__cpu_forward_workspace(code, p, bytes)
                                     : fxa__cpu_backward_workspace(code, p, bytes);
}

/* Without code, as a support query asks, it is made for the question: the tapes decide how much they need. */
static bool cpu_workspace(const void *code, const fxa__problem *p, size_t *bytes) {
    if (code) return cpu_size(code, p, bytes);
    void *made = NULL;
    size_t cost;
    fxa_error err;
    *bytes = 0;
    if (cpu_compile(p->host, p, &made, &cost, &err) != FXA_OK) return false;
    bool fits = cpu_size(made, p, bytes);
    if (!fits) *bytes = SIZE_MAX;
    cpu_release(p->host, made);
    return fits;
}

static fxa_status cpu_run(const void *code, const fxa__problem *p, const fxa__bind *bind, fxa_error *err) {
    bool fits = (p->in.pass == FXA_FORWARD ? fxa__cpu_forward : fxa__cpu_backward)(code, p, bind);
    if (!FXA__HOLDS(fits))
        return fxa__fail(err, FXA_E_INTERNAL, "the %zu bytes of workspace are not what a run of the cpu engine needs",
                         bind->workspace_size);
    return fxa__ok(err);
}

static const char *cpu_detail(const void *code, const fxa__problem *p) {
    (void)p;
    return ((const fxa__cpu_code *)code)->detail;
}

const fxa__engine fxa__engine_cpu = {
    .name = "cpu",
    .variable = "FXA_CPU",
    .version = 4,
    .dynamic_geometry = true,
    .device = false,
    .threads = true,
    .query = cpu_query,
    .compile = cpu_compile,
    .release = cpu_release,
    .workspace = cpu_workspace,
    .run = cpu_run,
    .detail = cpu_detail,
    .save = NULL,
    .load = NULL,
};
