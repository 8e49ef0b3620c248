/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides what of a rewritten program becomes the unit, the diagonal row, operands, the dense tensor, sums and scatter,
 * and bounds its value; see codegen/codegen.h. codegen/write_program.c writes the text.
 */
#include "passes.h"

#include "../../../program/range.h"

#include <math.h>

/* ---- The value and its unit -------------------------------------------------------------------------------------- */

static bool choose_is_run(const cuda_work *w, int32_t node) {
    return fxa__lower_rate(&w->inputs[node]) <= FXA__RATE_RUN && !w->inputs[node].tensors;
}

/* Splits the score into value * factor, where the factor depends on params alone and becomes part of the unit. */
static void choose_value(cuda_work *w, bool unit) {
    fxa__cuda_program *c = w->c;
    int32_t score = fxa__program_output(c->program, FXA__OUT_SCORE);
    const fxa__node *n = &c->program->nodes[score];
    c->computed.value = score;
    c->computed.factor = -1;
    for (int k = 0; unit && n->op == FXA_OP_MUL && k < 2; k++) {
        if (!choose_is_run(w, n->arg[k]) || choose_is_run(w, n->arg[1 - k])) continue;
        c->computed.value = n->arg[1 - k];
        c->computed.factor = n->arg[k];
    }
    c->switches.value = !(fxa__node_input(&c->program->nodes[c->computed.value]) & 1u << FXA_INPUT_SCORE);
}

/* Bounds |value()| for any scores, params and tensors by interval_rules.h. NaN needs no bound: a NaN score makes its
 * row NaN in any case. */
static void choose_bound(cuda_work *w) {
    fxa__range_small small;
    fxa__range r;
    fxa_tile_bounds box = fxa__box_default();
    w->c->bounds.value = INFINITY;
    if (fxa__range_open(&r, &small, w->c->program, w->c->computed.value, &box, NULL, NULL)) {
        fxa__real x = fxa__range_of(&r, w->c->computed.value)->f;
        if (x.lo <= x.hi) w->c->bounds.value = fmax(fabs(x.lo), fabs(x.hi));
    }
    fxa__range_close(&r);
}

/* Returns true if the derivative may be infinite or NaN. Nodes of params alone do not count: if they are not finite, no
 * result of the run is. */
static bool choose_is_steep(const cuda_work *w, int32_t slope) {
    const fxa_program *p = w->c->program;
    for (const fxa__node *n = &p->nodes[slope]; n->op == FXA_OP_MUL || n->op == FXA_OP_MULZ; n = &p->nodes[slope]) {
        if (choose_is_run(w, n->arg[0]) == choose_is_run(w, n->arg[1])) break;
        slope = n->arg[choose_is_run(w, n->arg[0])];
    }
    return !choose_is_run(w, slope) && fxa__cuda_is_derivative_infinite(w, slope);
}

/* ---- What pairs are given ---------------------------------------------------------------------------------------- */

/* Marks the nodes that value, derivative and mask of a pair need. */
static void choose_mark(cuda_work *w) {
    const fxa_program *p = w->c->program;
    int32_t mask = fxa__program_output(p, FXA__OUT_MASK), slope = fxa__program_output(p, FXA__OUT_DSCORE);
    if (w->c->switches.value) w->need[w->c->computed.value] |= CUDA_VALUE;
    if (slope >= 0) w->need[slope] |= CUDA_SLOPE;
    w->need[mask] |= CUDA_MASK;
    for (int32_t i = p->n_nodes - 1; i >= 0; i--)
        for (int k = 0; w->need[i] && k < p->nodes[i].n_args; k++) w->need[p->nodes[i].arg[k]] |= w->need[i];
}

static bool choose_is_diagonal(const cuda_work *w, int32_t node) {
    return fxa__lower_rate(&w->inputs[node]) == FXA__RATE_DIAGONAL;
}

/* Chooses the largest float that depends on q - k and heads alone and is read by another kind of node. */
static void choose_diagonal(cuda_work *w) {
    const fxa_program *p = w->c->program;
    w->c->operands.diagonal = -1;
    if (w->c->switches.value && choose_is_diagonal(w, w->c->computed.value))
        w->c->operands.diagonal = w->c->computed.value;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        if (!(w->need[i] & (CUDA_VALUE | CUDA_SLOPE)) || choose_is_diagonal(w, i)) continue;
        for (int k = 0; k < p->nodes[i].n_args; k++) {
            int32_t x = p->nodes[i].arg[k];
            if (p->nodes[x].type == FXA_FLOAT && choose_is_diagonal(w, x) && x > w->c->operands.diagonal)
                w->c->operands.diagonal = x;
        }
    }
    /* The forward has the row in shared memory, next to its keys; the backward would load it. Both compute the same
     * bits. */
    if (w->backward && w->c->operands.diagonal >= 0 && fxa__cuda_is_cheap(w, w->c->operands.diagonal)) {
        w->rounded = w->c->operands.diagonal;
        w->c->operands.diagonal = -1;
    }
}

/* Returns the kind of a load [b, h, q, k], each index at most once: 2 = with q and k, 1 = with one of them, 0 =
 * other. */
static int choose_place(const fxa_program *p, const fxa__node *load, uint32_t *last) {
    uint32_t seen = 0, heads = 1u << FXA_INPUT_B | 1u << FXA_INPUT_H, pair = 1u << FXA_INPUT_Q | 1u << FXA_INPUT_K;
    int positions = 0;
    for (int d = 0; d < load->n_args; d++) {
        uint32_t input = fxa__node_input(&p->nodes[load->arg[d]]);
        if (!(input & (heads | pair)) || (input <= seen && d > 0)) return 0; /* not in the order b, h, q, k */
        positions += (input & pair) != 0;
        seen |= input;
        *last = input;
    }
    return positions;
}

static void choose_loads(cuda_work *w, const fxa__cuda_config *config) {
    const fxa_program *p = w->c->program;
    w->c->operands.dense = w->c->operands.q = w->c->operands.k = -1;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        uint32_t last = 0;
        if (n->op != FXA_OP_LOAD || !w->need[i]) continue;
        int positions = choose_place(p, n, &last);
        uint8_t dtype = p->tensors[n->imm].dtype;
        if (positions == 2 && n->imm == config->dense && !(w->need[i] & CUDA_MASK)) w->c->operands.dense = i;
        if (positions != 1 || !config->operands_fit || fxa__cuda_bprop_tensor(p->tensors[n->imm].name) >= 0 ||
            !fxa__cuda_operand_kind((fxa_dtype)dtype))
            continue;
        if (last == 1u << FXA_INPUT_Q && w->c->operands.q < 0) w->c->operands.q = i;
        if (last == 1u << FXA_INPUT_K && w->c->operands.k < 0) w->c->operands.k = i;
    }
}

static bool choose_is_word(const cuda_work *w, int32_t node) {
    return node == w->c->operands.q || node == w->c->operands.k;
}

/* Chooses how i64 elements are compared: as operands of 32 bits if both sides have one and only the mask reads them,
 * else as loaded. */
static void choose_wide(cuda_work *w) {
    const fxa_program *p = w->c->program;
    bool ok = true;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        if (!w->need[i] || !fxa__node_compares_wide(p, n)) continue;
        int words = choose_is_word(w, n->arg[0]) + choose_is_word(w, n->arg[1]);
        w->i64_operands = w->i64_operands || words > 0;
        ok = ok && (words == 0 || (words == 2 && w->need[i] == CUDA_MASK && n->arg[0] != n->arg[1]));
    }
    if (ok) return;
    int32_t *const words[] = {&w->c->operands.q, &w->c->operands.k};
    for (int i = 0; i < 2; i++)
        if (*words[i] >= 0 && p->tensors[p->nodes[*words[i]].imm].dtype == FXA_I64) *words[i] = -1;
    w->i64_operands = false;
}

/* Returns bits of the indices of a load that are inside a tensor of `least` elements: b, h, and ints with a constant
 * upper bound. Never q and k: tiles extend past the last row and key, and values of such pairs are computed. */
static uint8_t choose_sure(const cuda_work *w, const fxa__node *n, int64_t *least) {
    uint8_t sure = 0;
    for (int d = 0; d < n->n_args; d++) {
        const fxa__node *index = &w->c->program->nodes[n->arg[d]];
        const fxa__interval *s = &w->bounds[n->arg[d]];
        bool head = index->imm == FXA_INPUT_B || index->imm == FXA_INPUT_H;
        bool coordinate = index->op == FXA_OP_INPUT && head;
        int64_t needs = coordinate ? -1 - index->imm : s->hi + 1;
        bool known = coordinate || (s->lo >= 0 && s->hi < FXA__CUDA_LENGTH);
        /* An axis has one bound: the larger of two constants, or one coordinate. */
        if (known && (least[d] == 0 || least[d] == needs || (least[d] > 0 && needs > 0))) {
            least[d] = needs > least[d] || least[d] == 0 ? needs : least[d];
            sure |= (uint8_t)(1u << d);
        }
    }
    return sure;
}

static void choose_bounds(cuda_work *w, const fxa__cuda_config *config) {
    const fxa_program *p = w->c->program;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        bool given = i == w->c->operands.q || i == w->c->operands.k || i == w->c->operands.dense;
        if (n->op == FXA_OP_LOAD && w->need[i] && !given && (config->fits >> n->imm & 1))
            w->in_bounds[i] = choose_sure(w, n, w->c->bounds.min_size[n->imm]);
    }
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

static bool choose_is_number(const fxa_program *p, int32_t node, double x) {
    return p->nodes[node].op == FXA_OP_CONST && p->nodes[node].type == FXA_FLOAT && p->nodes[node].f == x;
}

/* Returns true if an output is the gradient of a load that pairs read as operand, with derivative 1, which the kernels
 * sum themselves. Excludes sums along diagonals with a user backward: kernels sum the dS that dQ and dK are made of,
 * which the user backward has changed. */
static bool choose_is_load(const cuda_work *w, const fxa__output *out, int32_t load) {
    const fxa_program *p = w->c->program;
    if (w->c->switches.user_backward && load == w->c->operands.diagonal) return false;
    if (load < 0 || w->c->switches.derivative || p->nodes[load].op != FXA_OP_LOAD || out->kind != FXA__OUT_DLOAD)
        return false;
    if (p->nodes[load].imm != out->slot || !choose_is_number(p, out->value, 1)) return false;
    for (int32_t d = 0; d < out->n_index; d++)
        if (p->nodes[load].arg[d] != out->index[d]) return false;
    return true;
}

/* Returns true if a gradient is requested. Params of the rewritten program have other indices than the problem's;
 * tensors have the same. */
static bool choose_is_wanted(const fxa__cuda_program *c, const fxa__cuda_config *config, const fxa__output *out) {
    if (choose_is_number(c->program, out->value, 0)) return false;
    if (out->kind == FXA__OUT_DLOAD) return config->grad_tensors >> out->slot & 1;
    return out->kind == FXA__OUT_DPARAM && c->params[out->slot].source >= 0 &&
           (config->grad_params >> c->params[out->slot].source & 1);
}

/* Returns true if requested gradients read the score in a comparison, an index or a function without derivative
 * (with_grad, floor), which a derivative of 1 does not show. Kernels pass the score to gradients only with
 * PROG_DERIVATIVE. */
static bool choose_grads_read_score(const cuda_work *w, const fxa__cuda_config *config) {
    const fxa_program *p = w->c->program;
    uint32_t inputs = 0;
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        if (!choose_is_wanted(w->c, config, out)) continue;
        inputs |= w->inputs[out->value].inputs;
        for (int32_t d = 0; d < out->n_index; d++) inputs |= w->inputs[out->index[d]].inputs;
    }
    return inputs & 1u << FXA_INPUT_SCORE;
}

static void choose_gradients(cuda_work *w, const fxa__cuda_config *config) {
    fxa__cuda_program *c = w->c;
    for (int32_t i = 0; i < c->program->n_outputs; i++) {
        const fxa__output *out = &c->program->outputs[i];
        w->wanted[i] = choose_is_wanted(c, config, out);
        if (!w->wanted[i]) continue;
        fxa__grad grad = fxa__lower_grad(c->program, i, w->inputs);
        if (choose_is_load(w, out, c->operands.diagonal))
            c->switches.grad_diagonal = true;
        else if (choose_is_load(w, out, c->operands.dense))
            c->switches.grad_dense = true;
        else if (grad.kind <= FXA__GRAD_HEAD && c->switches.grad_sums < FXA__CUDA_SUMS)
            c->gradients.sums[c->switches.grad_sums++] = i;
        else
            c->switches.grad_scatter = true;
    }
}

/* Chooses tensors whose elements several pairs, diagonals or heads add to in any order, although results must be
 * deterministic. Excludes tensors with an element per pair. */
static void choose_exact(cuda_work *w) {
    fxa__cuda_program *c = w->c;
    const uint32_t pair = 1u << FXA_INPUT_B | 1u << FXA_INPUT_H | 1u << FXA_INPUT_Q | 1u << FXA_INPUT_K;
    for (int32_t i = 0; i < c->program->n_outputs; i++) {
        const fxa__output *out = &c->program->outputs[i];
        uint32_t own = 0;
        if (!w->wanted[i] || out->kind != FXA__OUT_DLOAD || choose_is_load(w, out, c->operands.dense)) continue;
        bool scattered = fxa__cuda_is_scattered(w, i),
             sum = !scattered && !choose_is_load(w, out, c->operands.diagonal);
        bool apart = scattered && fxa__lower_grad_is_injective(c->program, out->slot, &own) && (own & pair) == pair;
        if (sum || (c->gradients.deterministic && !apart)) c->switches.grad_exact |= 1u << out->slot;
    }
}

bool fxa__cuda_is_scattered(const cuda_work *w, int32_t output) {
    const fxa__cuda_program *c = w->c;
    const fxa__output *out = &c->program->outputs[output];
    for (int32_t i = 0; i < c->switches.grad_sums; i++)
        if (c->gradients.sums[i] == output) return false;
    return w->wanted[output] && !choose_is_load(w, out, c->operands.diagonal) &&
           !choose_is_load(w, out, c->operands.dense);
}

/* ---- What the host computes -------------------------------------------------------------------------------------- */

static bool choose_is_filled(const cuda_work *w, int32_t node) {
    uint8_t op = w->c->program->nodes[node].op;
    return choose_is_run(w, node) && op != FXA_OP_PARAM && op != FXA_OP_CONST &&
           fxa__cuda_is_host_value(w->c->program, node);
}

static bool choose_is_forward(const cuda_work *w, int32_t node) { return w->need[node] & (CUDA_VALUE | CUDA_MASK); }

/* Marks what the nodes of value and mask read, or all other nodes. */
static void choose_read(cuda_work *w, bool forward) {
    fxa__cuda_program *c = w->c;
    const fxa_program *p = c->program;
    for (int32_t i = 0; i < p->n_nodes && c->computed.n < FXA__CUDA_HOST_VALUES; i++) {
        if (choose_is_run(w, i) || (forward && !choose_is_forward(w, i))) continue;
        for (int k = 0; k < p->nodes[i].n_args && c->computed.n < FXA__CUDA_HOST_VALUES; k++) {
            int32_t x = p->nodes[i].arg[k];
            if (w->host_value_at[x] != CUDA_NOT_GIVEN || !choose_is_filled(w, x)) continue;
            w->host_value_at[x] = c->computed.at + c->computed.n;
            c->computed.node[c->computed.n++] = x;
        }
    }
}

/* Nodes that value and mask share are computed by each of them, as in the forward, unless a gradient reads them. */
static void choose_keep(cuda_work *w) {
    const fxa_program *p = w->c->program;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        if (!choose_is_run(w, i) || !choose_is_forward(w, i) || w->host_value_at[i] >= 0) continue;
        for (int k = 0; k < p->nodes[i].n_args; k++)
            if (w->host_value_at[p->nodes[i].arg[k]] < 0) w->host_value_at[p->nodes[i].arg[k]] = CUDA_NEVER_GIVEN;
    }
}

/* A soft cap whose cap is a param, which may be 0, negative or not finite and so is no unit: |value()| is at most this
 * param. */
static void choose_gain(fxa__cuda_program *c) {
    const fxa_program *p = c->program;
    const fxa__node *n = &p->nodes[c->computed.value];
    for (int k = 0; c->computed.factor < 0 && n->op == FXA_OP_MUL && k < 2; k++)
        if (n->arg[k] == c->computed.softcap && fxa__cuda_is_host_value(p, n->arg[1 - k]))
            c->computed.gain = n->arg[1 - k];
    if (c->computed.gain >= 0) c->bounds.value = 1;
}

/* Chooses the floats of params alone that other nodes read, the unit and series_limit(). None if params are in device
 * memory. The backward chooses the same values for score and mask as the forward, so that their bits are equal. */
static void choose_runs(cuda_work *w) {
    fxa__cuda_program *c = w->c;
    const fxa_program *p = c->program;
    c->computed.unit_at = c->computed.softcap_at = c->computed.softcap_factor = c->computed.softcap = c->computed.gain =
        -1;
    for (int32_t i = 0; i < p->n_params; i++) c->computed.at += p->params[i].type == FXA_FLOAT;
    for (int32_t i = 0; i < p->n_nodes; i++) w->host_value_at[i] = CUDA_NOT_GIVEN;
    if (w->scalars_in_memory) return;
    choose_read(w, true);
    choose_keep(w);
    choose_read(w, false);
    int32_t next = c->computed.at + c->computed.n;
    if (c->computed.factor >= 0 && fxa__cuda_is_host_value(p, c->computed.factor)) c->computed.unit_at = next++;
    if (c->switches.value && !c->switches.user_backward)
        c->computed.softcap = fxa__cuda_softcap_find(w, &c->computed.softcap_factor);
    if (c->computed.softcap >= 0 && !fxa__cuda_is_host_value(p, c->computed.softcap_factor)) c->computed.softcap = -1;
    if (c->computed.softcap < 0) return;
    if (!w->backward) choose_gain(c);
    if (c->computed.gain >= 0) c->computed.unit_at = next, next += 2;
    c->computed.softcap_at = next;
    c->switches.softcap_has_unit =
        !w->backward && (c->computed.gain >= 0 || (c->computed.value == c->computed.softcap &&
                                                   (c->computed.unit_at >= 0 || c->computed.factor < 0)));
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

/* Returns true if a node reads no tensor, no scale and no param of the caller. */
static bool choose_is_fixed(const cuda_work *w, int32_t node) {
    bool fixed = !w->inputs[node].tensors;
    for (int i = 0; i < w->c->program->n_params; i++)
        fixed = fixed && (!(w->inputs[node].params >> i & 1) || w->c->params[i].source == FXA__CUDA_CONSTANT);
    return fixed;
}

static void choose_all(cuda_work *w, const fxa__cuda_config *config) {
    const fxa_program *p = w->c->program;
    int32_t slope = fxa__program_output(p, FXA__OUT_DSCORE), mask = fxa__program_output(p, FXA__OUT_MASK);
    fxa__lower_affine(p, w->affine);
    fxa__lower_depend(p, w->affine, w->inputs);
    choose_value(w, config->finite_factors);
    w->c->switches.user_backward = config->bprop != NULL;
    w->c->switches.derivative = slope >= 0 && !w->c->switches.user_backward &&
                                (!choose_is_number(p, slope, 1) || choose_grads_read_score(w, config));
    w->c->switches.mask = !(p->nodes[mask].op == FXA_OP_CONST && p->nodes[mask].imm);
    choose_mark(w);
    fxa__cuda_int_bounds(p, w->bounds);
    fxa__cuda_tile_values(w, w->tiles);
    choose_diagonal(w);
    choose_loads(w, config);
    choose_wide(w);
    w->c->operands.mask_inputs = w->inputs[mask].inputs;
    w->c->operands.mask_is_constant = choose_is_fixed(w, mask);
    if (w->c->operands.diagonal >= 0) w->c->operands.diagonal_inputs = w->inputs[w->c->operands.diagonal].inputs;
    if (w->c->operands.diagonal >= 0) w->c->operands.diagonal_is_constant = choose_is_fixed(w, w->c->operands.diagonal);
    choose_bounds(w, config);
    choose_bound(w);
    if (w->c->switches.derivative && choose_is_steep(w, slope)) w->c->switches.derivative = 2;
    choose_gradients(w, config);
    w->c->gradients.deterministic = config->deterministic;
    choose_exact(w);
    choose_runs(w);
    fxa__cuda_param_names_make(w, &w->names);
}

fxa_status fxa__cuda_program_make(fxa__host *host, const fxa__cuda_config *config, fxa__cuda_program *out,
                                  fxa_error *err) {
    *out = (fxa__cuda_program){.text = {.host = host}};
    FXA_TRY(fxa__cuda_rewrite(host, config, out, err));
    size_t n = (size_t)out->program->n_nodes, n_outputs = (size_t)out->program->n_outputs;
    cuda_work w = {.host = host, .c = out, .backward = config->derivative != NULL, .rounded = -1};
    w.scalars_in_memory = config->scalars_in_memory;
    w.affine = fxa__alloc_array(host, n, sizeof *w.affine);
    w.inputs = fxa__alloc_array(host, n, sizeof *w.inputs);
    w.need = fxa__alloc(host, n);
    w.in_bounds = fxa__alloc(host, n);
    w.wanted = fxa__alloc(host, n_outputs);
    w.bounds = fxa__alloc_array(host, n, sizeof *w.bounds);
    w.tiles = fxa__alloc_array(host, n, sizeof *w.tiles);
    w.host_value_at = fxa__alloc_array(host, n, sizeof *w.host_value_at);
    bool ok = w.affine && w.inputs && w.need && w.in_bounds && w.wanted && w.bounds && w.tiles && w.host_value_at;
    if (ok) choose_all(&w, config);
    bool refused = ok && w.inputs[fxa__program_output(out->program, FXA__OUT_MASK)].inputs & 1u << FXA_INPUT_SCORE;
    ok = ok && !refused && fxa__cuda_program_write(&w) && !out->text.failed;
    fxa__free(host, w.affine, n * sizeof *w.affine);
    fxa__free(host, w.inputs, n * sizeof *w.inputs);
    fxa__free(host, w.need, n);
    fxa__free(host, w.in_bounds, n);
    fxa__free(host, w.wanted, n_outputs);
    fxa__free(host, w.bounds, n * sizeof *w.bounds);
    fxa__free(host, w.tiles, n * sizeof *w.tiles);
    fxa__free(host, w.host_value_at, n * sizeof *w.host_value_at);
    if (refused)
        return fxa__fail(err, FXA_E_UNSUPPORTED, "the mask reads the score, which CUDA kernels do not give it");
    return ok ? FXA_OK : fxa__fail_memory(err, "the text of a program for CUDA kernels");
}

void fxa__cuda_program_free(fxa__cuda_program *p) {
    fxa_program_destroy(p->program);
    fxa__writer_free(&p->text);
    *p = (fxa__cuda_program){.program = NULL};
}
