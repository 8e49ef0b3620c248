/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels run of a program, as lines for people (`fxattn explain --section tape`): units with their sources and
 * shapes, what a run gives them, and the text of the program, the one part that is generated.
 */
#include "cuda.h"

#include "../../problem/tiles.h"
#include "../../problem/work.h"

static void cu_list_unit(const fxa__cu_code *c, fxa__cu_unit unit, fxa__writer *w) {
    const fxa__cu_module *m = &c->unit[unit];
    fxa__write_format(w, "%s.cu: cubin of %zu bytes", fxa__cu_unit_file(&c->choice, unit), m->size);
    if (m->shape.threads) fxa__write_format(w, ", %d threads", m->shape.threads);
    if (m->shape.shared_bytes) fxa__write_format(w, ", %d bytes of shared memory", m->shape.shared_bytes);
    if (m->shape.k_rows) fxa__write_format(w, ", tiles of %d x %d pairs", m->shape.q_rows, m->shape.k_rows);
    fxa__write_format(w, "\n");
}

static const char *cu_list_tensor(const fxa__cu_code *c, int32_t load) {
    const fxa_program *p = c->program.program;
    return p->tensors[p->nodes[load].imm].name;
}

/* Of the first entry and head, by the range analysis of the host: a run knows more, of params and captured tensors. */
static void cu_list_tiles(const fxa__cu_code *c, const fxa__problem *p, fxa__writer *w) {
    fxa__cu_unit unit = c->unit[FXA__CU_FORWARD].cubin    ? FXA__CU_FORWARD
                        : c->unit[FXA__CU_BACKWARD].cubin ? FXA__CU_BACKWARD
                                                          : FXA__CU_DECODE;
    const struct FxaShape *shape = &c->unit[unit].shape;
    fxa__tile_grid grid = {.p = p, .tile_q = shape->q_rows, .tile_k = shape->k_rows};
    fxa_tile_counts n;
    if (!c->program.has_mask || !shape->q_rows || !shape->k_rows || fxa__tiles_count(&grid, &n, NULL) != FXA_OK) return;
    const fxa_program *program = p->in.program;
    const char *open = !program || c->program.mask_fixed ? ""
                       : !program->n_params              ? (p->in.n_captures ? ", whatever tensors hold" : "")
                       : !p->in.n_captures               ? ", whatever params hold"
                                                         : ", whatever params and tensors hold";
    fxa__write_format(w, "tiles of b 0, h 0%s: %llu left out, %llu with the mask, %llu without", open,
                      (unsigned long long)n.empty, (unsigned long long)n.mixed, (unsigned long long)n.full);
    if (n.unknown) fxa__write_format(w, ", %llu not looked at", (unsigned long long)n.unknown);
    fxa__write_format(w, "\n");
}

/* Where what pairs read comes from, where that is not a plain load. */
static void cu_list_given(const fxa__cu_code *c, fxa__writer *w) {
    const fxa__cuda_program *g = &c->program;
    const char *tile_lists = !g->has_mask                        ? "all tiles are visited"
                             : g->mask_fixed && !c->choice.spans ? "tiles are listed on the device with the plan"
                                                                 : "tiles are listed on the device before the run";
    fxa__write_format(w, "%s\n", tile_lists);
    if (g->diagonal >= 0)
        fxa__write_format(w, "what depends on q - k is tabulated %s\n",
                          g->diagonal_fixed ? "with the plan" : "before the run");
    if (g->dense >= 0) fxa__write_format(w, "%s is copied with the tiles\n", cu_list_tensor(c, g->dense));
    if (g->q_word >= 0) fxa__write_format(w, "%s is copied with the queries\n", cu_list_tensor(c, g->q_word));
    if (g->k_word >= 0) fxa__write_format(w, "%s is copied with the keys\n", cu_list_tensor(c, g->k_word));
}

/* Whether a gradient is that of a load that pairs are given. */
static bool cu_list_is_load(const fxa_program *p, const fxa__output *out, int32_t load, bool has) {
    bool same = has && p->nodes[load].imm == out->slot;
    for (int32_t d = 0; same && d < out->n_index; d++) same = p->nodes[load].arg[d] == out->index[d];
    return same;
}

/* How each gradient is summed; its class (`--section classes`) says what could be. */
static void cu_list_grads(const fxa__cu_code *c, const fxa__problem *problem, fxa__writer *w) {
    const fxa__cuda_program *g = &c->program;
    const fxa_program *p = g->program;
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        bool sum = false, tensor = out->kind == FXA__OUT_DLOAD;
        for (int32_t j = 0; j < g->n_sums; j++) sum = sum || g->sums[j] == i;
        bool wanted = tensor && out->slot < (int32_t)problem->in.n_captures && problem->in.captures[out->slot].grad;
        if (!sum && !wanted) continue;
        const char *how = sum                                                      ? "sums of tiles, in a fixed order"
                          : cu_list_is_load(p, out, g->diagonal, g->grad_diagonal) ? "along diagonals"
                          : cu_list_is_load(p, out, g->dense, g->grad_dense)       ? "pair by pair, as dS has it"
                          : g->exact >> out->slot & 1                              ? "by atomics, in exact sums"
                                                                                   : "by atomics, in any order";
        fxa__write_format(w, "grad %s: %s\n", tensor ? p->tensors[out->slot].name : p->params[out->slot].name, how);
    }
}

static void cu_list_params(const fxa__cu_code *c, const fxa__problem *p, fxa__writer *w) {
    const fxa__cuda_program *g = &c->program;
    int at[2] = {0, 0};
    for (int32_t i = 0; i < g->program->n_params; i++) {
        bool is_int = g->program->params[i].type == FXA_INT;
        int32_t from = g->params[i].from;
        const char *name = from == FXA__CUDA_SCALE ? "scale" : from >= 0 ? p->program->params[from].name : "a number";
        if (from <= FXA__CUDA_OWN) name = p->in.bprop->params[FXA__CUDA_OWN - from].name;
        fxa__write_format(w, "a.%c[%d]: %s\n", is_int ? 'i' : 'f', at[is_int]++, name);
    }
}

/* Places behind the params, which the text reads by number too (cuda_fill.c). */
static void cu_list_filled(const fxa__cuda_program *g, fxa__writer *w) {
    int unit = (int)g->unit_at + (g->gain >= 0);
    for (int32_t i = 0; i < g->n_run; i++)
        fxa__write_format(w, "a.f[%d]: made of those above by the host\n", (int)(g->run_at + i));
    if (g->gain >= 0)
        fxa__write_format(w, "a.f[%d]: what the tanh is multiplied by, made by the host\n", (int)g->unit_at);
    if (g->unit_at >= 0) fxa__write_format(w, "a.f[%d]: the unit of new scores, made by the host\n", unit);
    if (g->near_at >= 0)
        fxa__write_format(w, "a.f[%d] and on: limits and terms of the soft cap, made by the host\n", (int)g->near_at);
}

void fxa__cu_dump(const void *code, const fxa__problem *p, fxa__writer *w) {
    const fxa__cu_code *c = code;
    bool bent = c->program.has_value && !fxa__problem_is_capped(p);
    fxa__write_format(w, "about %.3g ms a run, by the table of cuda_cost.c%s\n",
                      1e3 * fxa__cu_cost(c->processors, &c->choice, p),
                      bent ? "; what the program itself takes is not in it" : "");
    for (int unit = 0; unit < FXA__CU_UNIT_COUNT; unit++)
        if (c->unit[unit].cubin) cu_list_unit(c, (fxa__cu_unit)unit, w);
    cu_list_given(c, w);
    cu_list_grads(c, p, w);
    cu_list_tiles(c, p, w);
    cu_list_params(c, p, w);
    cu_list_filled(&c->program, w);
    fxa__write_format(w, "program.cuh:\n");
    fxa__write_bytes(w, c->program.text.data, c->program.text.size);
}
