/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the compiled kernels of a plan as text for reports (`fxattn explain --section tape`): source file and tile
 * shape of each kernel, how tensors and params reach it, and the CUDA text that is generated from the program.
 */
#include "../cuda.h"

#include "../../../problem/tiles.h"
#include "../../../problem/work_estimate.h"

static void cu_list_unit(const fxa__cuda_code *c, fxa__cuda_unit unit, fxa__writer *w) {
    const fxa__cuda_module *m = &c->unit[unit];
    fxa__write_format(w, "%s.cu: cubin of %zu bytes", fxa__cuda_unit_source(&c->choice, unit), m->size);
    if (m->shape.threads) fxa__write_format(w, ", %d threads", m->shape.threads);
    if (m->shape.shared_bytes) fxa__write_format(w, ", %d bytes of shared memory", m->shape.shared_bytes);
    if (m->shape.k_rows) fxa__write_format(w, ", tiles of %d x %d pairs", m->shape.q_rows, m->shape.k_rows);
    fxa__write_format(w, "\n");
}

/* Returns the name of the tensor that a load reads: the caller's name of a captured tensor, or the name of a slot. */
static const char *cu_list_tensor(const fxa__cuda_code *c, const fxa__problem *p, int32_t load) {
    fxa__cuda_origin from = c->program.source[c->program.program->nodes[load].imm];
    if (from.kind == FXA__CUDA_FROM_SLOT) return fxa_slot_name((fxa_slot)from.index);
    return (from.kind == FXA__CUDA_FROM_BPROP ? p->bprop : p->program)->tensors[from.index].name;
}

/* Prints how many tiles are proven empty or full by range analysis on the host, for batch entry 0 and head 0. A run can
 * prove more, because it has the values of params and captured tensors. */
static void cu_list_tiles(const fxa__cuda_code *c, const fxa__problem *p, fxa__writer *w) {
    fxa__cuda_unit unit = c->unit[FXA__CUDA_FORWARD].cubin    ? FXA__CUDA_FORWARD
                          : c->unit[FXA__CUDA_BACKWARD].cubin ? FXA__CUDA_BACKWARD
                                                              : FXA__CUDA_DECODE;
    const struct FxaShape *shape = &c->unit[unit].shape;
    fxa__tile_grid grid = {.p = p, .tile_q = shape->q_rows, .tile_k = shape->k_rows};
    fxa_tile_counts n;
    if (!c->program.switches.mask || !shape->q_rows || !shape->k_rows || fxa__tiles_count(&grid, &n, NULL) != FXA_OK)
        return;
    const fxa_program *program = p->in.program;
    const char *open = !program || c->program.operands.mask_is_constant ? ""
                       : !program->n_params ? (p->in.n_captures ? ", for any tensor values" : "")
                       : !p->in.n_captures  ? ", for any params"
                                            : ", for any params and tensor values";
    fxa__write_format(w, "tiles of b 0, h 0%s: %llu skipped, %llu with the mask, %llu without", open,
                      (unsigned long long)n.empty, (unsigned long long)n.mixed, (unsigned long long)n.full);
    if (n.unknown) fxa__write_format(w, ", %llu not classified", (unsigned long long)n.unknown);
    fxa__write_format(w, "\n");
}

/* Prints when tile lists and the table of values of q - k are made, and which captured tensors are loaded per tile. */
static void cu_list_given(const fxa__cuda_code *c, const fxa__problem *p, fxa__writer *w) {
    const fxa__cuda_program *g = &c->program;
    const char *tile_lists = !g->switches.mask ? "all tiles are computed"
                             : g->operands.mask_is_constant && !c->choice.traits.varlen
                                 ? "the list of tiles is made on the device when the plan is created"
                                 : "the list of tiles is made on the device before each run";
    fxa__write_format(w, "%s\n", tile_lists);
    if (g->operands.diagonal >= 0)
        fxa__write_format(w, "values that depend only on q - k come from a table, made %s\n",
                          g->operands.diagonal_is_constant ? "when the plan is created" : "before each run");
    if (g->operands.dense >= 0)
        fxa__write_format(w, "%s is loaded with each tile of pairs\n", cu_list_tensor(c, p, g->operands.dense));
    if (g->operands.q >= 0)
        fxa__write_format(w, "%s is loaded with the queries of a tile\n", cu_list_tensor(c, p, g->operands.q));
    if (g->operands.k >= 0)
        fxa__write_format(w, "%s is loaded with the keys of a tile\n", cu_list_tensor(c, p, g->operands.k));
}

/* Returns true if `out` is the gradient of what node `load` loads. has: false = there is no node `load`, and the result
 * is false. */
static bool cu_list_is_load(const fxa_program *p, const fxa__output *out, int32_t load, bool has) {
    bool same = has && p->nodes[load].imm == out->slot;
    for (int32_t d = 0; same && d < out->n_index; d++) same = p->nodes[load].arg[d] == out->index[d];
    return same;
}

/* Prints how kernels sum each gradient; `--section classes` of fxattn explain prints which pairs a gradient sums. */
static void cu_list_grads(const fxa__cuda_code *c, const fxa__problem *problem, fxa__writer *w) {
    const fxa__cuda_program *g = &c->program;
    const fxa_program *p = g->program;
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        bool sum = false, tensor = out->kind == FXA__OUT_DLOAD;
        for (int32_t j = 0; j < g->switches.grad_sums; j++) sum = sum || g->gradients.sums[j] == i;
        int32_t capture = tensor ? fxa__cuda_caller_tensor(g, out->slot) : -1;
        bool wanted = capture >= 0 && problem->in.captures[capture].grad;
        if (!sum && !wanted) continue;
        const char *how = sum ? "sums of tiles, in a fixed order"
                          : cu_list_is_load(p, out, g->operands.diagonal, g->switches.grad_diagonal) ? "along diagonals"
                          : cu_list_is_load(p, out, g->operands.dense, g->switches.grad_dense)
                              ? "stored for each pair, like dS"
                          : g->switches.grad_exact >> out->slot & 1 ? "by atomics, exact in any order"
                                                                    : "by atomics, rounded in any order";
        fxa__write_format(w, "grad %s: %s\n", tensor ? p->tensors[out->slot].name : p->params[out->slot].name, how);
    }
}

static void cu_list_params(const fxa__cuda_code *c, const fxa__problem *p, fxa__writer *w) {
    const fxa__cuda_program *g = &c->program;
    int at[2] = {0, 0};
    for (int32_t i = 0; i < g->program->n_params; i++) {
        bool is_int = g->program->params[i].type == FXA_INT;
        int32_t from = g->params[i].source;
        const char *name = from == FXA__CUDA_SCALE ? "scale"
                           : from >= 0             ? p->program->params[from].name
                                                   : "a constant of the program";
        if (from <= FXA__CUDA_BPROP) name = p->in.bprop->params[FXA__CUDA_BPROP - from].name;
        fxa__write_format(w, "a.%c[%d]: %s\n", is_int ? 'i' : 'f', at[is_int]++, name);
    }
}

/* Prints what the elements of FxaArgs.f behind the params contain: values that the host computes for each run
 * (codegen/host_values.c). */
static void cu_list_filled(const fxa__cuda_program *g, fxa__writer *w) {
    int unit = (int)g->computed.unit_at + (g->computed.gain >= 0);
    for (int32_t i = 0; i < g->computed.n; i++)
        fxa__write_format(w, "a.f[%d]: from the values above, computed by the host\n", (int)(g->computed.at + i));
    if (g->computed.gain >= 0)
        fxa__write_format(w, "a.f[%d]: the factor of the tanh, computed by the host\n", (int)g->computed.unit_at);
    if (g->computed.unit_at >= 0)
        fxa__write_format(w, "a.f[%d]: the factor of all new scores, computed by the host\n", unit);
    if (g->computed.softcap_at >= 0)
        fxa__write_format(w, "a.f[%d] and on: limits and polynomial of the soft cap, computed by the host\n",
                          (int)g->computed.softcap_at);
}

void fxa__cuda_listing(const void *code, const fxa__problem *p, fxa__writer *w) {
    const fxa__cuda_code *c = code;
    bool bent = c->program.switches.value && !fxa__problem_is_capped(p);
    fxa__write_format(w, "estimated time of a run: %.3g ms%s\n", 1e3 * fxa__cuda_cost(c->processors, &c->choice, p),
                      bent ? " without the score program" : "");
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++)
        if (c->unit[unit].cubin) cu_list_unit(c, (fxa__cuda_unit)unit, w);
    cu_list_given(c, p, w);
    cu_list_grads(c, p, w);
    cu_list_tiles(c, p, w);
    cu_list_params(c, p, w);
    cu_list_filled(&c->program, w);
    fxa__write_format(w, "program.cuh:\n");
    fxa__write_bytes(w, c->program.text.data, c->program.text.size);
}
