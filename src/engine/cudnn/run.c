/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a plan on the caller's stream: computes the scalars that are passed by value, writes lengths and scalars to the
 * workspace, launches the helper kernels, passes the addresses of the bound arguments to cuDNN and executes the plan.
 * Does not allocate memory.
 */
#include "cudnn.h"

#include "../../base/carve.h"
#include "../../base/invariant.h"
#include "descriptors.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { RUN_ALIGN = FXA__DNN_SCRATCH_ALIGN };

uint64_t fxa__dnn_workspace(int64_t scratch, int64_t own) {
    int64_t sum;
    if (scratch + own == 0) return 0;
    return fxa__add_i64(scratch, own, &sum) && fxa__add_i64(sum, RUN_ALIGN, &sum) ? (uint64_t)sum : UINT64_MAX;
}

bool fxa__dnn_bound_find(const fxa__dnn_graph *g, fxa__dnn_code *code) {
    code->n_bound = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const fxa__dnn_tensor *t = &g->tensors[i];
        if (t->source == FXA__DNN_VIRTUAL || !fxa__dnn_is_used(g, (int32_t)i)) continue;
        if (code->n_bound == FXA__DNN_BOUND) return false;
        code->bound[code->n_bound++] =
            (fxa__dnn_bound){(int64_t)i + 1, *t, t->fill || t->cleared || t->per_head ? t->dim[0] * t->dim[1] : 0};
    }
    return true;
}

/* ---- Scalars that are passed by value ---------------------------------------------------------------------------- */

typedef union run_value {
    float f;
    int32_t i;
} run_value;

/* Values of all nodes of a program, which the host computes once per run. Only values that are the same at all (q, k)
 * pairs are read. */
typedef struct run_values {
    fxa__val node[FXA__DNN_MAX_NODES];
    fxa_view none[FXA_MAX_TENSORS];
    bool there; /* true: the values have been computed in this run */
} run_values;

static void run_evaluate(const fxa_program *program, const fxa_problem *in, const double *params, run_values *v) {
    fxa__env env = {.params = params, .tensors = v->none};
    if (v->there) return;
    memset(v->none, 0, sizeof v->none);
    for (int32_t i = 0; i < program->n_tensors; i++) {
        /* a captured tensor without elements, of which every load returns 0 */
        v->none[i].dtype = (fxa_dtype)program->tensors[i].dtype;
        v->none[i].rank = program->tensors[i].rank;
    }
    env.coord[FXA_INPUT_Q_LEN] = fxa__wrap32(in->global_q_len ? in->global_q_len : in->sq);
    env.coord[FXA_INPUT_K_LEN] = fxa__wrap32(in->global_k_len ? in->global_k_len : in->sk);
    env.coord[FXA_INPUT_HEADS] = fxa__wrap32(in->global_heads ? in->global_heads : in->hq);
    fxa__program_eval(program, &env, v->node);
    v->there = true;
}

/* Returns x or, if x is the divisor of a floor division, the value that `part` (fxa__dnn_part) derives from x. */
static int64_t run_part(int64_t x, uint8_t part) {
    int64_t magnitude = x < 0 ? -x : x > 0 ? x : 1, divisor = fxa__min_i64(magnitude, FXA__DNN_DIVIDED + 1);
    switch (part) {
    case FXA__DNN_DIVISOR: return divisor;
    case FXA__DNN_ROUNDS: return x < 0 ? divisor - 1 : 0;
    case FXA__DNN_SIGN: return (x > 0) - (x < 0);
    case FXA__DNN_MAGNITUDE: return magnitude;
    default: return x;
    }
}

/* Returns the scale of the run, multiplied (t->times 1) or divided (t->times -1) by a scalar y of the program. If y is
 * finite and nonzero, the result is clamped to the range of f32: an infinite factor times a score of 0 would be NaN. */
static double run_scale(const fxa__dnn_tensor *t, const fxa__bound_args *bound, const run_values *v) {
    if (!t->times) return bound->scale;
    const double y = v->node[t->index].f, x = t->times > 0 ? bound->scale * y : bound->scale / y;
    return y != 0 && isfinite(y) && fabs(x) > FLT_MAX ? copysign(FLT_MAX, x) : x;
}

static run_value run_value_of(const fxa_program *program, const fxa__dnn_tensor *t, const fxa__bound_args *bound,
                              const run_values *v) {
    run_value value = {.i = 0};
    bool ints = t->type == CUDNN_DATA_INT32;
    double x = t->value;
    FXA__ASSERT(ints || t->type == CUDNN_DATA_FLOAT);
    if (t->source == FXA__DNN_SCALE) {
        x = run_scale(t, bound, v);
    } else if (program) {
        FXA__ASSERT(v->there && t->index >= 0 && t->index < program->n_nodes);
        bool of_float = program->nodes[t->index].type == FXA_FLOAT;
        x += t->times * (of_float ? v->node[t->index].f : (double)v->node[t->index].i);
    }
    if (t->bound) x = fxa__fclamp(x, -(1 << 30), 1 << 30);
    if (ints) /* x is an integer below 2^33 in absolute value, so the cast to int64_t is exact */
        value.i = fxa__wrap32(run_part((int64_t)x, t->part));
    else
        value.f = (float)x;
    return value;
}

/* ---- Addresses of tensors ---------------------------------------------------------------------------------------- */

/* Returns the address of a tensor in this run. */
static void *run_pointer(const fxa__dnn_tensor *t, const fxa__bound_args *bound, char *scratch) {
    bool instead = t->source == FXA__DNN_SLOT && !bound->slot[t->index] && (t->fill || t->cleared);
    if (t->source == FXA__DNN_SLOT && !instead) return bound->slot[t->index];
    if (t->source == FXA__DNN_SCRATCH || t->per_head || instead) return scratch + t->offset;
    const fxa_view *views = t->source == FXA__DNN_OWN_TENSOR ? bound->bprop_tensors
                            : t->source == FXA__DNN_DTENSOR  ? bound->dtensors
                                                             : bound->tensors;
    FXA__ASSERT(t->index >= 0 && t->index < FXA_MAX_TENSORS && t->offset >= 0);
    const char *data = views[t->index].data;
    return (void *)(uintptr_t)(data + t->offset * fxa__dnn_size(t->type));
}

/* The tensors that a run passes to cuDNN: the address of each tensor, and the value of each scalar passed by value. */
typedef struct run_pack {
    int64_t id[FXA__DNN_BOUND];      /* unique ids of the tensors */
    void *pointer[FXA__DNN_BOUND];   /* address of each tensor */
    run_value value[FXA__DNN_BOUND]; /* values of the scalars among the tensors */
    double params[FXA_MAX_PARAMS];
    run_values values, own;
} run_pack;

/* Sets params[i] to a param of the caller, or to a constant of the score that the graph reads as a param. */
static void run_params(const fxa__dnn_code *c, const fxa__bound_args *bound, double *params) {
    for (int32_t i = 0; i < c->program->n_params; i++)
        params[i] = c->from[i] < 0 ? bound->constants[i] : bound->params ? bound->params[c->from[i]] : 0;
}

static void run_fill_pack(const fxa__dnn_code *c, const fxa__problem *p, const fxa__bound_args *bound, char *scratch,
                          run_pack *r) {
    FXA__ASSERT(c->n_bound <= FXA__DNN_BOUND);
    r->values.there = r->own.there = false;
    run_params(c, bound, r->params);
    for (size_t i = 0; i < c->n_bound; i++) {
        const fxa__dnn_tensor *t = &c->bound[i].tensor;
        r->id[i] = c->bound[i].id;
        if (!fxa__dnn_is_by_value(t) && !t->per_head) {
            r->pointer[i] = run_pointer(t, bound, scratch);
            continue;
        }
        bool own = t->source == FXA__DNN_OWN_NODE;
        bool node = t->source == FXA__DNN_NODE || (t->source == FXA__DNN_SCALE && t->times);
        const fxa_program *program = own ? c->own : node ? c->program : NULL;
        run_values *values = own ? &r->own : &r->values;
        if (program) run_evaluate(program, &p->in, own ? bound->bprop_params : r->params, values);
        r->value[i] = run_value_of(program, t, bound, values);
        r->pointer[i] = t->per_head ? run_pointer(t, bound, scratch) : &r->value[i];
    }
}

static fxa_status run_lengths(const fxa__dnn_self *s, const fxa__dnn_code *c, const run_pack *r,
                              const fxa__bound_args *bound, char *scratch, fxa_error *err) {
    for (size_t i = 0; i < c->n_bound; i++) {
        const fxa__dnn_bound *b = &c->bound[i];
        bool given = b->tensor.source == FXA__DNN_SLOT && bound->slot[b->tensor.index];
        if (!b->words || (given && !b->tensor.cleared)) continue;
        unsigned word = (unsigned)(b->tensor.per_head ? r->value[i].i : b->tensor.fill);
        int status = s->gpu.driver.fill((uintptr_t)run_pointer(&b->tensor, bound, scratch), word, (size_t)b->words,
                                        bound->stream);
        FXA_TRY(fxa__gpu_status(&s->gpu, status, "cuMemsetD32Async", err));
    }
    return FXA_OK;
}

/* ---- Helper kernels ---------------------------------------------------------------------------------------------- */

/* Returns the address in this run of an argument of a helper kernel. */
static void *run_ref(const fxa__dnn_ref *r, const fxa__bound_args *bound, char *scratch) {
    char *base = r->source == FXA__DNN_SLOT         ? bound->slot[r->index]
                 : r->source == FXA__DNN_TENSOR     ? (char *)bound->tensors[r->index].data
                 : r->source == FXA__DNN_OWN_TENSOR ? (char *)bound->bprop_tensors[r->index].data
                 : r->source == FXA__DNN_DTENSOR    ? (char *)bound->dtensors[r->index].data
                                                    : scratch;
    return base ? base + r->offset : NULL;
}

/* Copies the strides of a slot into the FxaGpuArray whose `data` member is r->at bytes into the arguments. */
static void run_strides(fxa__gpu_args *args, const fxa__dnn_ref *r, const fxa_problem *p) {
    FXA__ASSERT(r->at >= offsetof(FxaGpuArray, data) && r->source == FXA__DNN_SLOT);
    char *array = (char *)args + r->at - offsetof(FxaGpuArray, data);
    memcpy(array + offsetof(FxaGpuArray, stride), fxa__dnn_row_strides(p, (fxa_slot)r->index), 3 * sizeof(int64_t));
}

static fxa_status run_helpers(fxa__dnn_self *s, const fxa__dnn_code *c, bool after, const fxa_problem *p,
                              const fxa__bound_args *bound, char *scratch, fxa_error *err) {
    for (size_t i = 0; i < c->n_steps; i++) {
        const fxa__dnn_step *step = &c->steps[i];
        if (step->after != after || (step->optional && !run_ref(&step->ref[0], bound, scratch))) continue;
        fxa__gpu_args args = step->args;
        for (int j = 0; j < step->n_refs; j++) {
            void *pointer = run_ref(&step->ref[j], bound, scratch);
            memcpy((char *)&args + step->ref[j].at, &pointer, sizeof pointer);
            FXA__ASSERT(!pointer || step->ref[j].source != FXA__DNN_SCRATCH || step->ref[j].offset < c->scratch);
            if (step->ref[j].strided) run_strides(&args, &step->ref[j], p);
        }
        FXA_TRY(fxa__gpu_launch(&s->gpu, fxa__gpu_helpers(&s->gpu), (fxa__gpu_kernel)step->kernel, &args, step->work,
                                bound->stream, err));
    }
    return FXA_OK;
}

/* ---- Execution of the plan --------------------------------------------------------------------------------------- */

static fxa_status run_execute(fxa__dnn_self *s, const fxa__dnn_code *c, const run_pack *r, const fxa_problem *p,
                              const fxa__bound_args *bound, char *scratch, fxa_error *err) {
    void *handle, *pack;
    FXA_TRY(run_lengths(s, c, r, bound, scratch, err));
    FXA_TRY(run_helpers(s, c, false, p, bound, scratch, err));
    FXA_TRY(fxa__dnn_handle_take(s, bound->stream, &handle, err));
    fxa_status status =
        fxa__dnn_pack(&s->library.api, (int64_t)c->n_bound, r->id, r->pointer, scratch + c->scratch, &pack, err);
    if (status == FXA_OK) {
        int result = s->library.api.execute(handle, c->plan, pack);
        if (result != CUDNN_STATUS_SUCCESS) status = fxa__cudnn_fail(&s->library.api, result, "it runs", err);
        if (status == FXA_E_UNSUPPORTED)
            /* cuDNN refuses a plan that it made itself: the engine failed, the problem is supported */
            status = FXA_E_ENGINE;
        (void)s->library.api.descriptor_destroy(pack);
    }
    fxa__dnn_handle_give(s, handle);
    if (status != FXA_OK && err) err->status = status;
    return status == FXA_OK ? run_helpers(s, c, true, p, bound, scratch, err) : status;
}

/* Refuses scales <= 0 if the program leaves scores as they are. cuDNN then computes the row maximum before it
 * multiplies by the scale, so that results would be NaN. */
static fxa_status run_check_scale(const fxa__dnn_code *c, const fxa_problem *p, const fxa__bound_args *bound,
                                  fxa_error *err) {
    const fxa_program *program = c->program;
    bool bare = program->nodes[fxa__program_output(program, FXA__OUT_SCORE)].op == FXA_OP_INPUT;
    bool known = p->pass == FXA_FORWARD && !(p->flags & FXA_SCALARS_IN_MEMORY);
    if (!bare || !known || bound->scale > 0) return FXA_OK;
    return fxa__fail(err, FXA_E_BINDING,
                     "scale is %g: where the program leaves scores as they are, cuDNN requires one above 0; "
                     "multiply in the program",
                     bound->scale);
}

/* Refuses a scale whose product or quotient with a scalar of the program is below the smallest normal float, because
 * every score would become 0. */
static fxa_status run_check_folded(const fxa__dnn_code *c, const fxa__bound_args *bound, const run_pack *r,
                                   fxa_error *err) {
    for (size_t i = 0; i < c->n_bound; i++) {
        const fxa__dnn_tensor *t = &c->bound[i].tensor;
        if (t->source != FXA__DNN_SCALE || !t->times) continue;
        const double x = run_scale(t, bound, &r->values);
        if (x != 0 && fabs(x) < FLT_MIN)
            return fxa__fail(err, FXA_E_BINDING,
                             "the scale is %g, and %g after it is %s the constant of the tanh that follows; cuDNN "
                             "computes with floats of at least %g in magnitude",
                             bound->scale, x, t->times > 0 ? "multiplied by" : "divided by", (double)FLT_MIN);
    }
    return FXA_OK;
}

fxa_status fxa__dnn_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                        fxa_error *err) {
    fxa__dnn_self *s = self;
    const fxa__dnn_code *c = code;
    run_pack r;
    uint64_t needed = fxa__dnn_workspace(c->scratch, c->own_workspace);
    if (bound->workspace_size < needed)
        return fxa__fail(err, FXA_E_WORKSPACE, "cuDNN needs a workspace of %llu bytes, %zu were given",
                         (unsigned long long)needed, bound->workspace_size);
    FXA_TRY(run_check_scale(c, &p->in, bound, err));
    uintptr_t first = ((uintptr_t)bound->workspace + RUN_ALIGN - 1) / RUN_ALIGN * RUN_ALIGN;
    FXA__ASSERT(first - (uintptr_t)bound->workspace + (uint64_t)(c->scratch + c->own_workspace) <=
                bound->workspace_size);
    run_fill_pack(c, p, bound, (char *)first, &r);
    FXA_TRY(run_check_folded(c, bound, &r, err));
    FXA_TRY(fxa__gpu_enter(&s->gpu, err));
    fxa_status status = run_execute(s, c, &r, &p->in, bound, (char *)first, err);
    fxa__gpu_leave(&s->gpu);
    return status == FXA_OK ? fxa__ok(err) : status;
}

#if FXA_ASSERT
void fxa__dnn_zones(void *self, const void *code, const fxa__problem *p, const void *workspace) {
    const fxa__dnn_code *c = code;
    (void)self, (void)p;
    for (size_t i = 0; i < c->n_bound; i++) {
        const fxa__dnn_tensor *t = &c->bound[i].tensor;
        int64_t last = 0;
        for (int d = 0; d < 4; d++) last += (t->dim[d] - 1) * t->stride[d];
        size_t end = (size_t)(t->offset + (last + 1) * fxa__dnn_size(t->type));
        FXA__ASSERT(t->source != FXA__DNN_SCRATCH || fxa__poison_holds(workspace, end, end + FXA__CARVE_ZONE));
    }
}
#endif
