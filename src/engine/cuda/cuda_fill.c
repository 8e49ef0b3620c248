/* SPDX-License-Identifier: Apache-2.0
 *
 * The numbers of a run that the program's text reads: params, and what is made of params alone, computed in f64 and
 * rounded once. So kernels have it beside their other arguments, and no register of theirs holds it.
 */
#include "cuda_program.h"

#include "../../base/num.h"
#include "../../lower/emit.h"

#include <math.h>

#define FILL_LOG2E 1.4426950408889634074
#define FILL_NEAR (0.999 * 0.6) /* score.cuh: TANH_NEAR, and what rounding takes */

enum { FILL_DEPTH = 16 };

static bool fill_can(const fxa_program *p, int32_t node, int depth) {
    const fxa__node *n = &p->nodes[node];
    if (n->type != FXA_FLOAT || depth == 0) return false;
    switch (n->op) {
    case FXA_OP_CONST:
    case FXA_OP_PARAM: return true;
    case FXA_OP_NEG:
    case FXA_OP_ABS: return fill_can(p, n->arg[0], depth - 1);
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MUL:
    case FXA_OP_MULZ:
    case FXA_OP_DIV: return fill_can(p, n->arg[0], depth - 1) && fill_can(p, n->arg[1], depth - 1);
    default: return false;
    }
}

bool fxa__cuda_can_fill(const fxa_program *p, int32_t node) { return fill_can(p, node, FILL_DEPTH); }

/* Of what can be filled. */
static double fill_value(const fxa_program *p, int32_t node, const double *params) {
    const fxa__node *n = &p->nodes[node];
    double x = n->n_args > 0 ? fill_value(p, n->arg[0], params) : 0;
    double y = n->n_args > 1 ? fill_value(p, n->arg[1], params) : 0;
    switch (n->op) {
    case FXA_OP_CONST: return n->f;
    case FXA_OP_PARAM: return params[n->imm];
    case FXA_OP_NEG: return -x;
    case FXA_OP_ABS: return fabs(x);
    case FXA_OP_ADD: return x + y;
    case FXA_OP_SUB: return x - y;
    case FXA_OP_MUL: return x * y;
    case FXA_OP_MULZ: return x == 0 ? 0 : x * y;
    default: return x / y;
    }
}

void fxa__cuda_fill(const fxa__cuda_program *p, const double *params, float *f, int *i) {
    const fxa_program *program = p->program;
    for (int32_t k = 0; k < program->n_params; k++) {
        int32_t at = fxa__lower_emit_param(program, k);
        if (program->params[k].type == FXA_FLOAT)
            f[at] = (float)params[k];
        else
            i[at] = fxa__toint(params[k]);
    }
    for (int32_t k = 0; k < p->n_run; k++) f[p->run_at + k] = (float)fill_value(program, p->run[k], params);
    if (p->unit_at >= 0) f[p->unit_at] = (float)(fill_value(program, p->factor, params) * FILL_LOG2E);
    if (p->near_at >= 0) f[p->near_at] = (float)(FILL_NEAR / fabs(fill_value(program, p->near, params)));
}

int32_t fxa__cuda_word_kind(fxa_dtype dtype) {
    static const int32_t kinds[] = {[FXA_F32] = 1, [FXA_I32] = 1, [FXA_I64] = 2, [FXA_I16] = 3,  [FXA_I8] = 4,
                                    [FXA_U8] = 5,  [FXA_B8] = 6,  [FXA_F16] = 7, [FXA_BF16] = 8, [FXA_E5M2] = 0};
    return (size_t)dtype < sizeof kinds / sizeof *kinds ? kinds[dtype] : 0;
}
