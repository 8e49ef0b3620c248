/* SPDX-License-Identifier: Apache-2.0
 *
 * What cuDNN cannot do, or not as it is meant, as far as the problem alone says it: one table of flags, and a few rules
 * of sizes, dtypes and layouts, each with its reason. The rest of a no comes from the program (cudnn_ops.c,
 * cudnn_score.c, cudnn_mask.c) and from cuDNN itself. Cheap: nothing is built here.
 */
#include "cudnn_attention.h"

typedef struct support_row {
    uint32_t flag;
    const char *why;
} support_row;

static const support_row support_flags[] = {
    {FXA_PADDING, "rows past a length would have to be finite numbers, which nobody promises"},
    {FXA_VARLEN, "packed sequences need offsets in elements, which are not made yet"},
    {FXA_PAGED, "pages are not lowered yet"},
    {FXA_SINK_ZERO, "sinks are not lowered yet"},
    {FXA_SINK, "sinks are not lowered yet"},
    {FXA_DROPOUT, "cuDNN draws the pairs to drop in its own way, alike for several rows"},
    {FXA_WANT_MAX, "cuDNN does not write the row maximum beside the statistics"},
    {FXA_GRAD_LSE, "cuDNN has no gradient by the statistics"},
    {FXA_ACC_OUT, "cuDNN overwrites its outputs"},
    {FXA_ACC_Q, "cuDNN overwrites its outputs"},
    {FXA_ACC_K, "cuDNN overwrites its outputs"},
    {FXA_ACC_V, "cuDNN overwrites its outputs"},
    {FXA_POSITIONS, "positions per batch entry are not lowered yet"},
    {FXA_CAPTURE, "recording into a graph of the device was not tried yet"},
    {FXA_SCALARS_IN_MEMORY, "scalars are passed by value"},
};

static bool support_flags_ok(fxa__dnn_graph *g, const fxa_problem *p) {
    for (size_t i = 0; i < sizeof support_flags / sizeof *support_flags; i++)
        if (p->flags & support_flags[i].flag) {
            (void)fxa__dnn_refuse(g, "%s: %s", fxa_flag_name(support_flags[i].flag), support_flags[i].why);
            return false;
        }
    return true;
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

typedef struct support_operand {
    const char *name;
    const fxa_operand *operand;
    uint32_t used; /* by which pass: bit i */
} support_operand;

static bool support_layout_ok(fxa__dnn_graph *g, const support_operand *o, uint32_t dtype) {
    const int64_t *stride = o->operand->stride;
    if (o->operand->dtype != dtype) {
        (void)fxa__dnn_refuse(g, "%s is %s and Q %s: cuDNN wants one dtype for all", o->name,
                              fxa_dtype_name((fxa_dtype)o->operand->dtype), fxa_dtype_name((fxa_dtype)dtype));
        return false;
    }
    bool ok = stride[3] == 1;
    for (int i = 0; i < 3; i++) ok = ok && stride[i] > 0 && stride[i] % 8 == 0;
    if (!ok)
        (void)fxa__dnn_refuse(g,
                              "strides of %s are %lld, %lld, %lld, %lld: cuDNN wants 1 for the features, and positive "
                              "multiples of 8 for the others",
                              o->name, (long long)stride[0], (long long)stride[1], (long long)stride[2],
                              (long long)stride[3]);
    return ok;
}

static bool support_operands_ok(fxa__dnn_graph *g, const fxa_problem *p) {
    const support_operand operands[] = {{"Q", &p->q, 3},   {"K", &p->k, 3},       {"V", &p->v, 3},
                                        {"O", &p->o, 3},   {"dO", &p->dout, 2},   {"dQ", &p->dq, 2},
                                        {"dK", &p->dk, 2}, {"dV", &p->dv_grad, 2}};
    static const uint32_t wanted[8] = {0, 0, 0, 0, 0, FXA_GRAD_Q, FXA_GRAD_K, FXA_GRAD_V};
    if (p->q.dtype != FXA_F16 && p->q.dtype != FXA_BF16) {
        (void)fxa__dnn_refuse(g, "Q is %s: cuDNN has fused attention for f16 and bf16",
                              fxa_dtype_name((fxa_dtype)p->q.dtype));
        return false;
    }
    for (size_t i = 0; i < 8; i++) {
        bool used = operands[i].used >> p->pass & 1u && (!wanted[i] || (p->flags & wanted[i]));
        if (used && !support_layout_ok(g, &operands[i], p->q.dtype)) return false;
    }
    return true;
}

/* Statistics in any other layout are accepted and give wrong gradients. */
static bool support_lse_ok(fxa__dnn_graph *g, const fxa_problem *p) {
    const int64_t *stride = p->lse.stride;
    if (p->pass == FXA_FORWARD && !(p->flags & FXA_WANT_LSE)) return true;
    bool dense = (p->b == 1 || stride[0] == p->hq * p->sq) && (p->hq == 1 || stride[1] == p->sq) &&
                 (p->sq == 1 || stride[2] == 1);
    if (p->lse.dtype == FXA_F32 && dense) return true;
    (void)fxa__dnn_refuse(g, "LSE is %s with strides %lld, %lld, %lld: cuDNN wants f32, dense [B,H,Sq]",
                          fxa_dtype_name((fxa_dtype)p->lse.dtype), (long long)stride[0], (long long)stride[1],
                          (long long)stride[2]);
    return false;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static bool support_sizes_ok(fxa__dnn_graph *g, const fxa_problem *p, fxa__dnn_level level) {
    int64_t most = level.arch >= 90 && level.arch < 100 ? 256 : 128;
    if (p->b < 1 || p->sq < 1 || p->sk < 1)
        (void)fxa__dnn_refuse(g, "b is %lld, sq %lld, sk %lld: cuDNN takes nothing that is empty", (long long)p->b,
                              (long long)p->sq, (long long)p->sk);
    else if (p->d % 8 || p->dv % 8 || p->d > most || p->dv > most)
        (void)fxa__dnn_refuse(g, "d is %lld and dv %lld: on sm_%d cuDNN takes multiples of 8 up to %lld",
                              (long long)p->d, (long long)p->dv, (int)level.arch, (long long)most);
    else if (p->pass == FXA_BACKWARD && p->sq == 1 && p->sk == 1)
        (void)fxa__dnn_refuse(g, "sq and sk are 1: cuDNN has no such backward pass");
    return g->status == FXA_OK;
}

static bool support_gradients_ok(fxa__dnn_graph *g, const fxa_problem *p, const fxa_program *program) {
    if (p->pass == FXA_FORWARD) return true;
    if (p->q.dtype == FXA_F16)
        (void)fxa__dnn_refuse(g,
                              "cuDNN rounds gradients of scores to f16 on the way, where they overflow; bf16 does not");
    else if (p->bprop)
        (void)fxa__dnn_refuse(g, "a backward program of the caller's is not lowered yet");
    else if (p->param_grads)
        (void)fxa__dnn_refuse(g, "gradients of params are not lowered yet");
    for (size_t i = 0; i < p->n_captures; i++)
        if (p->captures[i].grad)
            (void)fxa__dnn_refuse(g, "the gradient of %s is not lowered yet", program->tensors[i].name);
    return g->status == FXA_OK;
}

bool fxa__dnn_supports(fxa__dnn_graph *g, const fxa__problem *problem, fxa__dnn_level level) {
    const fxa_problem *p = &problem->in;
    if (level.version < 91400 || level.arch < 80)
        (void)fxa__dnn_refuse(g, "cuDNN is %lld.%lld.%lld, the device sm_%d: this engine is for 9.14 and sm_80 upwards",
                              (long long)level.version / 10000, (long long)level.version / 100 % 100,
                              (long long)level.version % 100, (int)level.arch);
    else if (level.arch >= 100 && level.arch < 120)
        (void)fxa__dnn_refuse(g, "the device is sm_%d: cuDNN ends the process over some score programs there",
                              (int)level.arch);
    else if (p->alignment < 16)
        (void)fxa__dnn_refuse(g, "alignment is %u: cuDNN wants pointers that are multiples of 16", p->alignment);
    return g->status == FXA_OK && support_flags_ok(g, p) && support_sizes_ok(g, p, level) &&
           support_operands_ok(g, p) && support_lse_ok(g, p) && support_gradients_ok(g, p, problem->program);
}
