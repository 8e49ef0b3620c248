/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the score program from which a graph is made, with constants turned into params (lower/parameterize.h), whose
 * values each run passes to cuDNN. Problems that differ only in these constants therefore have one key and share one
 * plan of cuDNN. The values of the constants are stored in fxa_plan.constants, because each problem has its own
 * fxa_plan. Called by attention/attention.c; attention/operands.c computes the key.
 *
 * Constants become params after the masks have been extracted from the score and the derivative has been computed,
 * because both of these steps use the values. For constants in [FXA__DNN_NUMBER_MIN, FXA__DNN_NUMBER_MAX], the graph
 * has the same operations and tensors whether they are params or not, so support results are equal too.
 */
#include "../attention/attention.h"

#include "../../../base/invariant.h"
#include "../../../lower/fuse.h"

#include <math.h>
#include <string.h>

/* ---- The program before parameterization ------------------------------------------------------------------------- */

static fxa_status parameterize_fuse(const fxa__problem *p, fxa_program **out, fxa_error *err) {
    fxa_program *program = NULL, *derivative = NULL;
    FXA_TRY(fxa__program_extract_masks(p->host, p->program, &program, err));
    if (p->in.pass == FXA_FORWARD || p->in.bprop) {
        *out = program;
        return FXA_OK;
    }
    fxa_status status = fxa_program_derivative(program, &derivative, err);
    if (status == FXA_OK) status = fxa__lower_fuse(p->host, program, derivative, true, out, err);
    fxa_program_destroy(derivative);
    fxa_program_destroy(program);
    return status;
}

/* ---- Constants that become params -------------------------------------------------------------------------------- */

/* Operations on floats that the lowering handles without knowing the values of constant operands. */
static const uint8_t parameterize_users[FXA_OP_COUNT] = {
    [FXA_OP_ADD] = 1,  [FXA_OP_SUB] = 1, [FXA_OP_MUL] = 1, [FXA_OP_DIV] = 1,   [FXA_OP_MULZ] = 1,
    [FXA_OP_DIVZ] = 1, [FXA_OP_MIN] = 1, [FXA_OP_MAX] = 1, [FXA_OP_CLAMP] = 1, [FXA_OP_SELECT] = 1,
};

/* Returns true if constant operands of the node may become params. The node must be a float operation of
 * parameterize_users and differ between (q, k) pairs: the graph computes such a node, and not the host. Operands of
 * other nodes stay constants, because the range analysis of ints may need their values. */
static bool parameterize_is_user(const fxa__node *n, const fxa__depend *d) {
    const uint32_t same = 1u << FXA_INPUT_HEADS | 1u << FXA_INPUT_Q_LEN | 1u << FXA_INPUT_K_LEN;
    return parameterize_users[n->op] && n->type == FXA_FLOAT && (d->inputs & ~same || d->tensors);
}

static bool parameterize_is_in_range(double x) {
    return fabs(x) >= FXA__DNN_NUMBER_MIN && fabs(x) <= FXA__DNN_NUMBER_MAX;
}

static void parameterize_select(const fxa_program *p, const fxa__depend *depend, uint8_t *kept) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        kept[i] = n->op == FXA_OP_CONST && !parameterize_is_in_range(n->f);
        for (int j = 0; j < n->n_args && !parameterize_is_user(n, &depend[i]); j++) kept[n->arg[j]] = 1;
    }
    for (int32_t i = 0; i < p->n_outputs; i++) kept[p->outputs[i].value] = 1;
}

static fxa_status parameterize_constants(fxa__host *host, const fxa_program *p, fxa__parameterized *out,
                                         fxa_error *err) {
    size_t n = (size_t)p->n_nodes;
    fxa__depend *depend = fxa__alloc_array(host, n, sizeof *depend);
    uint8_t *kept = fxa__alloc(host, n);
    fxa_status status = FXA_OK;
    if (depend && kept) {
        fxa__lower_depend(p, NULL, depend);
        parameterize_select(p, depend, kept);
        status = fxa__lower_parameterize_except(host, p, kept, out, err);
    } else {
        status = fxa__fail_memory(err, "the constants of a program");
    }
    fxa__free(host, depend, n * sizeof *depend);
    fxa__free(host, kept, n);
    return status;
}

/* If the problem has a bprop, constants do not become params: fxa__dnn_reuse_made finds nodes of the bprop that are
 * equal to nodes of the score program, and can compare constants but not params. */
fxa_status fxa__dnn_program_make(const fxa__problem *p, bool parameterizes, fxa__parameterized *out, fxa_error *err) {
    fxa_program *program = NULL;
    *out = (fxa__parameterized){.n_hidden = 0};
    FXA_TRY(parameterize_fuse(p, &program, err));
    if (parameterizes && !(p->in.pass == FXA_BACKWARD && p->in.bprop)) {
        fxa_status status = parameterize_constants(p->host, program, out, err);
        fxa_program_destroy(program);
        return status;
    }
    out->program = program;
    for (int32_t i = 0; i < program->n_params; i++) out->from[i] = i;
    return FXA_OK;
}

fxa_status fxa__dnn_numbers(const fxa__problem *p, double numbers[FXA__MAX_CONSTANTS], fxa_error *err) {
    fxa__parameterized made;
    FXA_TRY(fxa__dnn_program_make(p, true, &made, err));
    FXA__ASSERT(sizeof made.value <= FXA__MAX_CONSTANTS * sizeof *numbers);
    memcpy(numbers, made.value, sizeof made.value);
    fxa_program_destroy(made.program);
    return FXA_OK;
}
