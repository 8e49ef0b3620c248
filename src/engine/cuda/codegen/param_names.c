/* SPDX-License-Identifier: Apache-2.0
 *
 * Names by which the text reads params that are not in a.f[] and a.i[]: floats that the host computes from params
 * (codegen/host_values.c), and params in device memory (common/scalars.cuh). All functions of the text use these names,
 * because a.f[] and a.i[] have no values for such params.
 */
#include "passes.h"

#include "../../../base/invariant.h"

#include <stdio.h>

void fxa__cuda_param_names_make(const cuda_work *w, cuda_param_names *out) {
    const fxa__cuda_program *c = w->c;
    for (int32_t i = 0; i < c->computed.n; i++)
        (void)snprintf(out->run[i], sizeof out->run[i], "a.f[%d]", (int)(c->computed.at + i));
    for (int32_t i = 0; i < c->program->n_params; i++) {
        int32_t from = c->params[i].source;
        bool real = c->program->params[i].type == FXA_FLOAT;
        (void)snprintf(out->scalar[i].member, sizeof out->scalar[i].member, "p%d", (int)i);
        if (from == FXA__CUDA_SCALE)
            (void)snprintf(out->scalar[i].call, sizeof out->scalar[i].call, "run_scale(a)");
        else
            (void)snprintf(out->scalar[i].call, sizeof out->scalar[i].call, "scalar_%s(a, %d)", real ? "float" : "int",
                           (int)from);
    }
}

void fxa__cuda_param_names_use(const cuda_work *w, fxa__emit *e, bool members) {
    for (int32_t i = 0; i < w->c->computed.n; i++) e->given[w->c->computed.node[i]] = w->names.run[i];
    for (int32_t i = 0; w->config.scalars_in_memory && i < e->p->n_nodes; i++) {
        const fxa__node *n = &e->p->nodes[i];
        if (n->op != FXA_OP_PARAM || !fxa__cuda_in_memory(&w->c->params[n->imm])) continue;
        FXA__ASSERT(!e->given[i] && w->names.scalar[n->imm].call[0]);
        e->given[i] = members ? w->names.scalar[n->imm].member : w->names.scalar[n->imm].call;
    }
}
