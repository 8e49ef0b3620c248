/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies the outputs of a program to a builder (copy_outputs.h).
 */
#include "copy_outputs.h"

#include "../base/invariant.h"

void fxa__lower_copy_outputs(fxa_builder *b, const fxa_program *p, const fxa_value *map, uint32_t kinds) {
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        fxa_value index[FXA_MAX_RANK], value = map[out->value];
        if (!(kinds >> out->kind & 1)) continue;
        FXA__ASSERT(out->value < p->n_nodes && out->n_index <= FXA_MAX_RANK && out->kind <= FXA__OUT_DLOAD);
        for (int32_t j = 0; j < out->n_index; j++) index[j] = map[out->index[j]];
        switch ((fxa__out_kind)out->kind) {
        case FXA__OUT_SCORE: fxa_builder_set_score(b, value); break;
        case FXA__OUT_MASK: fxa_builder_set_mask(b, value); break;
        case FXA__OUT_DSCORE: fxa_builder_set_dscore(b, value); break;
        case FXA__OUT_DPARAM: fxa__builder_grad_param(b, p->params[out->slot].name, value); break;
        case FXA__OUT_DLOAD:
            fxa__builder_grad_load(b, p->tensors[out->slot].name, index, (size_t)out->n_index, value);
            break;
        }
    }
}
