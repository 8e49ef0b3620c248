/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine's table of functions. The compiled code of a problem is a choice of kernels and the bytecode (tapes)
 * of its programs. Only runs read lengths and strides, so one code serves all lengths and strides.
 */
#include "forward/forward.h"

#include "../../base/invariant.h"
#include "../../lower/fuse.h"
#include "../../program/range.h"

#include <stdio.h>

/* An instance of the engine: the instruction sets that it uses, selected once. */
typedef struct cpu_self {
    /* kernels for f32, for f64, and for problems whose operands of products are all bf16 */
    const fxa__cpu_kernels *f32, *f64, *bf16;
} cpu_self;

static fxa_status cpu_open(fxa__host *host, int32_t ordinal, const char *target, void **out,
                           char identity[FXA__IDENTITY], fxa_error *err) {
    (void)ordinal, (void)target;
    char reason[sizeof((fxa_support *)0)->reason] = "";
    cpu_self self = {.f32 = fxa__cpu_select(sizeof(float), FXA_F32, reason, sizeof reason)};
    if (!self.f32) return fxa__fail(err, FXA_E_UNAVAILABLE, "%s", reason);
    self.f64 = fxa__cpu_select(sizeof(double), FXA_F64, reason, sizeof reason);
    self.bf16 = fxa__cpu_select(sizeof(float), FXA_BF16, reason, sizeof reason);
    cpu_self *kept = fxa__alloc(host, sizeof *kept);
    if (!kept) return fxa__fail_memory(err, "the cpu engine");
    *kept = self;
    *out = kept;
    (void)snprintf(identity, FXA__IDENTITY, self.bf16 == self.f32 ? "%s" : "%s, bf16 by %s", self.f32->isa,
                   self.bf16->isa);
    return FXA_OK;
}

static void cpu_close(fxa__host *host, void *self) { fxa__free(host, self, sizeof(cpu_self)); }

/* Returns the kernels of a forward pass with the Q, K and V of p. p may be a backward problem. Products may round to
 * bf16 only if Q, K and V are bf16. */
static const fxa__cpu_kernels *cpu_forward_kernels(const cpu_self *self, const fxa__problem *p) {
    bool bf16 = p->in.q.dtype == FXA_BF16 && p->in.k.dtype == FXA_BF16 && p->in.v.dtype == FXA_BF16;
    return p->f64 ? self->f64 : bf16 ? self->bf16 : self->f32;
}

static const fxa__cpu_kernels *cpu_kernels(const cpu_self *self, const fxa__problem *p) {
    bool mixed = p->in.pass == FXA_BACKWARD && p->in.dout.dtype != p->in.q.dtype && !p->f64;
    return mixed ? self->f32 : cpu_forward_kernels(self, p);
}

/* Returns E_UNSUPPORTED, with the name of the operation, if the bytecode lacks an operation of the program. */
static fxa_status cpu_can_lower(const fxa_program *program, fxa_error *err) {
    const fxa__node *n = program ? fxa__tape_missing(program) : NULL;
    if (!n) return FXA_OK;
    const fxa__op_info *op = fxa__op_info_get(n->op);
    return fxa__fail(err, FXA_E_UNSUPPORTED, "operation %s (code %d, giving %s) has no code in the cpu engine",
                     op->id ? op->id : "unknown", n->op, fxa__type_name(n->type));
}

static void cpu_release(void *self, void *code) {
    (void)self;
    fxa__cpu_code *c = code;
    fxa__tape_destroy(c->score);
    fxa__tape_destroy(c->masked);
    fxa__tape_destroy(c->mask);
    fxa__tape_destroy(c->derivative);
    fxa__tape_destroy(c->bprop);
    fxa_program_destroy(c->program);
    fxa_program_destroy(c->by_score);
    fxa__free(c->host, c, sizeof *c);
}

/* Creates a tape, the bytecode of a program. Sets *out to NULL if the tape would be the identity function. */
static fxa_status cpu_tape(const fxa__cpu_code *c, const fxa_program *program, uint32_t flags, fxa__tape **out,
                           fxa_error *err) {
    FXA_TRY(cpu_can_lower(program, err));
    FXA_TRY(fxa__tape_create(c->host, program, flags, c->kernels, out, err));
    if (!fxa__tape_is_identity(*out)) return FXA_OK;
    fxa__tape_destroy(*out);
    *out = NULL;
    return FXA_OK;
}

/* Returns true if range analysis of the mask is useful and allocates no memory. Only small masks need no memory, and
 * runs must not allocate. */
static bool cpu_can_classify(const fxa__cpu_code *c) {
    return !c->band.dark && fxa__program_output(c->program, FXA__OUT_MASK) < FXA__SMALL_PROGRAM &&
           c->band.nodes <= FXA__SMALL_NODES;
}

/* Creates the bytecode (tape) of the mask. If the mask reads the score, the tape computes the score and the mask
 * (c->masked). Otherwise the tape computes the mask alone, before the scores (c->mask). */
static fxa_status cpu_mask(fxa__cpu_code *c, fxa_error *err) {
    if (c->properties.flags & FXA_PROPERTY_NO_MASK) return FXA_OK;
    if (c->band.reads >> FXA_INPUT_SCORE & 1) return cpu_tape(c, c->program, FXA__TAPE_MASK, &c->masked, err);
    return cpu_tape(c, c->program, FXA__TAPE_MASK_ALONE, &c->mask, err);
}

/* Replaces the bytecode (tape) of the score by one tape of score and derivative if that saves the evaluation of a
 * function such as tanh. Does nothing if the mask reads the score (c->masked) or the user has given a bprop: the mask
 * and the bprop need tapes of their own. */
static fxa_status cpu_join(fxa__cpu_code *c, const fxa__problem *p, uint32_t flags, fxa_error *err) {
    fxa_program *joint = NULL;
    if (!c->score || c->masked || p->in.bprop) return FXA_OK;
    FXA_TRY(fxa__lower_fuse(c->host, c->program, c->by_score, true, &joint, err));
    fxa__tape *tape = NULL;
    fxa_status status = FXA_OK;
    if (fxa__lower_fused_shares_function(c->host, joint))
        status = fxa__tape_create(c->host, joint, flags | FXA__TAPE_JOINT, c->kernels, &tape, err);
    fxa_program_destroy(joint);
    if (!tape) return status;
    fxa__tape_destroy(c->score);
    c->score = tape;
    c->joined = true;
    return FXA_OK;
}

/* Creates the bytecode (tapes) of backward. The gradient by the score comes from the user's bprop if there is one, else
 * from the derivative. Gradients of captured tensors and params always come from the derivative. c->program is
 * differentiated, not p->program, because conditions that make the score -inf are in its mask, not in its score. */
static fxa_status cpu_fill_backward(fxa__cpu_code *c, const fxa__problem *p, fxa_error *err) {
    bool sums = p->in.param_grads != 0;
    for (int32_t t = 0; t < p->program->n_tensors; t++) sums = sums || p->in.captures[t].grad;
    uint32_t flags = (sums ? FXA__TAPE_GRADS : 0u) | (p->in.bprop ? FXA__TAPE_NO_DSCORE : 0u);
    if (!p->in.bprop || sums) {
        FXA_TRY(fxa_program_derivative(c->program, &c->by_score, err));
        FXA_TRY(cpu_can_lower(c->by_score, err));
        FXA_TRY(cpu_join(c, p, flags, err));
        if (!c->joined) FXA_TRY(cpu_tape(c, c->by_score, flags, &c->derivative, err));
    }
    return p->in.bprop ? cpu_tape(c, p->bprop, 0, &c->bprop, err) : FXA_OK;
}

/* Returns true if the kernels and the problem fit into the arrays that functions have on their stacks. */
static bool cpu_fits(const fxa__cpu_kernels *kernels, const fxa_problem *p) {
    return p->d_qk <= FXA_MAX_D && p->d_v <= FXA_MAX_D && kernels->rows <= FXA__CPU_PRODUCT_ROWS &&
           kernels->mr <= FXA__CPU_PRODUCT_ROWS;
}

/* Sets the members of a problem's code: kernels, programs, tapes, and the bounds of q - k that the mask implies
 * (band). */
static fxa_status cpu_fill(const cpu_self *self, fxa__cpu_code *c, const fxa__problem *p, fxa_error *err) {
    c->kernels = cpu_kernels(self, p);
    c->scores = cpu_forward_kernels(self, p);
    if (!FXA__HOLDS(cpu_fits(c->kernels, &p->in) && cpu_fits(c->scores, &p->in)))
        return fxa__fail(err, FXA_E_INTERNAL,
                         "d_qk %lld, d_v %lld or the kernels of %s pass the room of the cpu engine",
                         (long long)p->in.d_qk, (long long)p->in.d_v, c->kernels->isa);
    FXA_TRY(cpu_can_lower(p->program, err));
    FXA_TRY(fxa__program_extract_masks(c->host, p->program, &c->program, err));
    fxa_program_properties(c->program, &c->properties);
    if (!fxa__cpu_band_find(c->host, c->program, &c->band)) return fxa__fail_memory(err, "the mask of a program");
    c->classify = cpu_can_classify(c);
    FXA_TRY(cpu_tape(c, c->program, 0, &c->score, err));
    FXA_TRY(cpu_mask(c, err));
    return p->in.pass == FXA_BACKWARD ? cpu_fill_backward(c, p, err) : FXA_OK;
}

/* Compiles the problem. Support queries call this function too, because the compiled programs determine the workspace
 * of a run and whether the engine can run the problem. */
static fxa_status cpu_analyze(void *self, const fxa__problem *p, void **code, fxa_error *err) {
    *code = NULL;
    fxa__cpu_code *c = fxa__alloc(p->host, sizeof *c);
    if (!c) return fxa__fail_memory(err, "the code of the cpu engine");
    c->host = p->host;
    c->width = p->host->width;
    fxa_status status = cpu_fill(self, c, p, err);
    if (status != FXA_OK) {
        cpu_release(self, c);
        return status;
    }
    (void)snprintf(c->detail, sizeof c->detail, "%s, %d thread%s", c->kernels->isa, (int)c->width,
                   c->width == 1 ? "" : "s");
    *code = c;
    return fxa__ok(err);
}

/* Returns the bytes that the plan cache counts for the code. */
static size_t cpu_bytes(const fxa__cpu_code *c) {
    size_t bytes = sizeof *c + c->program->bytes + (c->by_score ? c->by_score->bytes : 0);
    const fxa__tape *tapes[] = {c->score, c->masked, c->mask, c->derivative, c->bprop};
    for (int i = 0; i < 5; i++) bytes += tapes[i] ? fxa__tape_bytes(tapes[i]) : 0;
    return bytes;
}

static fxa_status cpu_compile(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err) {
    FXA_TRY(fxa__analysis_get(a, code, err));
    a->derived = NULL;
    *bytes = cpu_bytes(*code);
    return fxa__ok(err);
}

/* Writes the cache key of the code, which does not depend on lengths and strides. */
static void cpu_key(fxa__analysis *a, fxa__writer *w) {
    fxa__problem_write(a->problem, FXA__WITH_HEADS | FXA__WITH_WINDOW | FXA__WITH_DROPOUT, w);
}

static fxa_status cpu_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    const cpu_self *self = a->self;
    const fxa__problem *p = a->problem;
    bool forward = p->in.pass == FXA_FORWARD;
    fxa_error why = {.status = FXA_OK};
    void *derived = NULL;
    size_t bytes = 0;
    report->deterministic = 1;
    if (!code) {
        fxa_status status = fxa__analysis_get(a, &derived, &why);
        if (status != FXA_OK) return fxa__query_end(status, &why, report, err);
        code = derived;
    }
    bool fits =
        (forward ? fxa__cpu_forward_workspace : fxa__cpu_backward_workspace)(code, p, fxa__carver_make(NULL), &bytes);
    report->supported = 1;
    report->workspace = fits ? bytes : UINT64_MAX;
    if (forward)
        fxa__cpu_forward_min_sub_block(cpu_kernels(self, p), &p->in, &report->tile_q, &report->tile_k);
    else
        fxa__cpu_backward_min_sub_block(cpu_kernels(self, p), &report->tile_q, &report->tile_k);
    return FXA_OK;
}

static fxa_status cpu_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                          fxa_error *err) {
    (void)self;
    fxa__bound_args scaled;
    if (p->in.flags & FXA_SCALED) scaled = fxa__cpu_bind_scaled(bound, (fxa_pass)p->in.pass), bound = &scaled;
    bool fits = (p->in.pass == FXA_FORWARD ? fxa__cpu_forward : fxa__cpu_backward)(code, p, bound);
    if (!FXA__HOLDS(fits))
        return fxa__fail(err, FXA_E_INTERNAL, "the %zu bytes of workspace are not what a run of the cpu engine needs",
                         bound->workspace_size);
    return fxa__ok(err);
}

#if FXA_ASSERT
static void cpu_zones(void *self, const void *code, const fxa__problem *p, const void *workspace) {
    (void)self;
    size_t bytes;
    bool forward = p->in.pass == FXA_FORWARD;
    fxa__carver c = fxa__carver_after(workspace);
    (void)(forward ? fxa__cpu_forward_workspace : fxa__cpu_backward_workspace)(code, p, c, &bytes);
}
#endif

static const char *cpu_description(const void *code, const fxa__problem *p) {
    (void)p;
    return ((const fxa__cpu_code *)code)->detail;
}

/* Prints the bytecode (tapes) in the order of execution, after a line that explains the names of registers. */
static void cpu_dump(const void *code, const fxa__problem *p, fxa__writer *w) {
    const fxa__cpu_code *c = code;
    bool backward = p->in.pass == FXA_BACKWARD, own = p->in.bprop != NULL;
    const struct {
        const char *name;
        const fxa__tape *tape;
        const fxa_program *program;
        bool wanted; /* the pass has this computation, which does nothing if `tape` is NULL */
    } tapes[] = {{"mask", c->mask, c->program, c->mask != NULL},
                 {c->joined ? "score and derivative" : "score", c->score, c->program, true},
                 {"score and mask", c->masked, c->program, c->masked != NULL},
                 {"derivative", c->derivative, c->by_score, backward && !c->joined && (!own || c->derivative)},
                 {"backward of your own", c->bprop, p->bprop, backward && own}};
    bool any = false;
    for (size_t i = 0; i < sizeof tapes / sizeof *tapes; i++) any = any || (tapes[i].wanted && tapes[i].tape);
    if (any)
        fxa__write_format(w, "registers: u per batch entry, r per row, c per key, s per head and key, x per pair\n");
    for (size_t i = 0; i < sizeof tapes / sizeof *tapes; i++) {
        if (!tapes[i].wanted) continue;
        fxa__write_format(w, "%s%s\n", tapes[i].name, tapes[i].tape ? "" : ": nothing to compute");
        if (tapes[i].tape) fxa__tape_print(tapes[i].tape, tapes[i].program, w);
    }
}

const fxa__engine fxa__engine_cpu = {
    .name = "cpu",
    .variable = "FXA_CPU",
    .version = 6,
    .device = FXA_HOST,
    .threads = true,
    .open = cpu_open,
    .close = cpu_close,
    .analyze = cpu_analyze,
    .analysis_free = cpu_release,
    .query = cpu_query,
    .key = cpu_key,
    .compile = cpu_compile,
    .release = cpu_release,
    .run = cpu_run,
    FXA__ZONES(cpu_zones),
    .description = cpu_description,
    .dump = cpu_dump,
};
