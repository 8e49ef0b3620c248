/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradient of a bias: a captured tensor t that the score program adds to the score, as t[q, k], or indexed also by
 * b or h. The gradient of t is the gradient of the new score at each (q, k) pair, summed over the axes that t lacks.
 * cuDNN writes the sum in the kernel that computes dS.
 *
 * The engine supports one such gradient in a problem, contiguous and in 16 bits, together with the features that were
 * tested on a device. dQ must then be summed in a fixed order, because cuDNN otherwise accepts the graph but never
 * writes the gradient. support.c checks the conditions on the problem, this file the conditions on the program.
 */
#include "attention.h"

int32_t fxa__dnn_bias_of(const fxa_problem *p) {
    for (size_t i = 0; p->pass == FXA_BACKWARD && i < p->n_captures; i++)
        if (p->captures[i].grad) return (int32_t)i;
    return -1;
}

/* Returns the program's output that adds to the gradient of `tensor`. Returns NULL if there is none, if there are
 * several, or if the value that the output adds or the gradient of the original score is not dscore itself. Both are
 * dscore if the new score is the score plus terms that do not depend on the score. */
static const fxa__output *bias_statement(const fxa_program *program, int32_t tensor) {
    const fxa__output *only = NULL;
    const uint32_t dscore = 1u << FXA_INPUT_DSCORE;
    for (int32_t i = 0; i < program->n_outputs; i++) {
        const fxa__output *out = &program->outputs[i];
        if (out->kind != FXA__OUT_DLOAD || out->slot != tensor) continue;
        if (only) return NULL;
        only = out;
    }
    int32_t through = fxa__program_output(program, FXA__OUT_DSCORE);
    bool plain = only && fxa__node_input(&program->nodes[only->value]) == dscore &&
                 fxa__node_input(&program->nodes[through]) == dscore;
    return plain ? only : NULL;
}

/* Returns true if the mask is absent or exactly causal. */
static bool bias_mask_ok(const fxa__dnn_attention *a) {
    const fxa__part *part = a->mask.n ? &a->mask.parts[0] : NULL;
    if (!part) return true;
    return a->mask.n == 1 && a->banded && part->kind == FXA__PART_CAUSAL && part->bound < 0 && !part->aligned &&
           part->c == 0;
}

/* Sets *t to the gradient as a contiguous tensor [1|B,1|H,Sq,Sk]. Returns false if the gradient has another shape. */
static bool bias_shape(const fxa__dnn_attention *a, const fxa__output *out, fxa__dnn_tensor *t) {
    const fxa_problem *p = &a->p->in;
    const fxa_capture *c = &p->captures[out->slot];
    const int64_t extent[4] = {p->b, p->hq, p->sq, p->sk};
    int64_t stride = 1;
    int found = 0;
    for (int axis = 3; axis >= 0; axis--) {
        t->dim[axis] = 1, t->stride[axis] = stride;
        for (int32_t j = 0; j < out->n_index; j++) {
            const fxa__node *index = &a->program->nodes[out->index[j]];
            fxa_input input = (fxa_input)index->imm;
            if (index->op != FXA_OP_INPUT || !fxa__dnn_is_place(input) || fxa__dnn_axis_index(input) != axis) continue;
            const fxa__dnn_axis at = fxa__dnn_axis_of(&a->score, input);
            bool plain = at.known && at.base == 0 && at.step == 1 && c->size[j] == extent[axis];
            if (!plain || t->dim[axis] > 1 || (extent[axis] > 1 && c->grad_stride[j] != stride)) return false;
            t->dim[axis] = extent[axis], found++;
            stride *= extent[axis];
        }
    }
    return found == out->n_index && t->dim[2] == p->sq && t->dim[3] == p->sk;
}

void fxa__dnn_bias(fxa__dnn_attention *a, int32_t dscore) {
    int32_t tensor = fxa__dnn_bias_of(&a->p->in);
    if (tensor < 0 || a->g.status != FXA_OK) return;
    const char *name = a->program->tensors[tensor].name;
    const fxa__output *out = bias_statement(a->program, tensor);
    fxa__dnn_tensor t = {
        .type = (uint8_t)fxa__dnn_data_type(a->p->in.q.dtype), .source = FXA__DNN_DTENSOR, .index = tensor};
    if (!out)
        (void)fxa__dnn_refuse(&a->g,
                              "the gradient of %s: cuDNN has that of a tensor which is added to the score once, "
                              "with no function of the score beside it",
                              name);
    else if (!bias_mask_ok(a))
        (void)fxa__dnn_refuse(&a->g, "the gradient of %s: cuDNN was tried without a mask and with k <= q", name);
    else if (!bias_shape(a, out, &t))
        (void)fxa__dnn_refuse(&a->g,
                              "the gradient of %s: cuDNN has that of t[q, k], t[h, q, k], t[b, q, k] and "
                              "t[b, h, q, k], of just these sizes, without gaps",
                              name);
    else
        (void)fxa__dnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_ADD, dscore, fxa__dnn_add(&a->g, &t));
}
