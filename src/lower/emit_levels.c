/* SPDX-License-Identifier: Apache-2.0
 *
 * Initial state of text generation (fxa__emit of emit.h): the level at which each node is computed, the outputs that
 * need the node, and whether another level reads the node's value.
 */
#include "emit_load.h"

#include "../base/invariant.h"

/* Returns the level at which a node with the dependencies *d is computed. */
static fxa__emit_level emit_level_of(const fxa__depend *d) {
    static const uint8_t levels[FXA__RATES] = {
        [FXA__RATE_CONST] = FXA__EMIT_RUN,    [FXA__RATE_RUN] = FXA__EMIT_RUN,       [FXA__RATE_BATCH] = FXA__EMIT_HEAD,
        [FXA__RATE_HEAD] = FXA__EMIT_HEAD,    [FXA__RATE_ROW] = FXA__EMIT_ROW,       [FXA__RATE_KEY] = FXA__EMIT_KEY,
        [FXA__RATE_HEAD_KEY] = FXA__EMIT_KEY, [FXA__RATE_DIAGONAL] = FXA__EMIT_PAIR, [FXA__RATE_PAIR] = FXA__EMIT_PAIR,
        [FXA__RATE_SCORE] = FXA__EMIT_PAIR,
    };
    return (fxa__emit_level)levels[fxa__lower_rate(d)];
}

/* Records that a statement of `level`, needed for outputs of `kinds`, reads a node. The node is hoisted if it is
 * computed at another level. */
static void emit_read(fxa__emit *e, int32_t node, uint8_t level, uint8_t kinds) {
    e->used[node] |= kinds;
    if (e->level[node] != level && fxa__emit_has_statement(e, node)) e->hoisted[node] = 1;
}

/* Records which nodes the statement of node i reads: its operands, and for a fused product the operands of the
 * product. */
static void emit_read_by(fxa__emit *e, int32_t i) {
    const fxa__node *n = &e->p->nodes[i];
    int product = fxa__emit_product(e, i);
    for (int j = 0; j < fxa__node_operands(n) && !e->given[i]; j++) {
        FXA__ASSERT(n->arg[j] < i); /* emit_propagate visits each node after the nodes that read it */
        bool base = e->base[i] && e->level[n->arg[j]] <= FXA__EMIT_HEAD;
        uint8_t level = base ? FXA__EMIT_HEAD : e->level[i];
        if (j != product) emit_read(e, n->arg[j], level, e->used[i]);
        for (int k = 0; j == product && k < 2; k++)
            emit_read(e, e->p->nodes[n->arg[j]].arg[k], e->level[i], e->used[i]);
    }
}

/* Propagates `used` and `hoisted` from every used node to the nodes that it depends on. */
static void emit_propagate(fxa__emit *e) {
    for (int32_t i = e->p->n_nodes - 1; i >= 0; i--)
        if (e->used[i]) emit_read_by(e, i);
}

void fxa__lower_emit_require(fxa__emit *e, int32_t node, uint8_t bits) {
    FXA__ASSERT(node >= 0 && node < e->p->n_nodes);
    emit_read(e, node, FXA__EMIT_PAIR, bits);
    emit_propagate(e);
}

/* Marks the nodes that outputs of `kinds` depend on as used. */
static void emit_mark(fxa__emit *e, uint32_t kinds) {
    for (int32_t i = 0; i < e->p->n_outputs; i++) {
        const fxa__output *out = &e->p->outputs[i];
        if (!(kinds >> out->kind & 1)) continue;
        for (int32_t j = -1; j < out->n_index; j++) {
            int32_t node = j < 0 ? out->value : out->index[j];
            emit_read(e, node, FXA__EMIT_PAIR, (uint8_t)(1u << out->kind));
        }
    }
    emit_propagate(e);
}

bool fxa__lower_emit_open(fxa__host *host, const fxa_program *p, fxa__dialect dialect, uint32_t kinds, fxa__emit *out) {
    size_t n = (size_t)p->n_nodes;
    FXA__ASSERT(!fxa__program_storage_inputs(p));
    *out = (fxa__emit){.host = host, .p = p, .dialect = dialect};
    fxa__depend *sets = fxa__alloc_array(host, n, sizeof *sets);
    out->level = fxa__alloc(host, n);
    out->used = fxa__alloc(host, n);
    out->hoisted = fxa__alloc(host, n);
    out->given = fxa__alloc_array(host, n, sizeof *out->given);
    out->nonnegative = fxa__alloc(host, n);
    out->unfused = fxa__alloc(host, n);
    out->base = fxa__alloc(host, n);
    out->in_bounds = fxa__alloc(host, n);
    bool ok = sets && out->level && out->used && out->hoisted && out->given && out->nonnegative && out->unfused &&
              out->base && out->in_bounds;
    if (ok) {
        fxa__lower_depend(p, NULL, sets);
        for (size_t i = 0; i < n; i++) out->level[i] = (uint8_t)emit_level_of(&sets[i]);
        emit_mark(out, kinds);
    }
    fxa__free(host, sets, n * sizeof *sets);
    return ok;
}

void fxa__lower_emit_close(fxa__emit *e) {
    size_t n = (size_t)e->p->n_nodes;
    fxa__free(e->host, e->level, n);
    fxa__free(e->host, e->used, n);
    fxa__free(e->host, e->hoisted, n);
    fxa__free(e->host, e->given, n * sizeof *e->given);
    fxa__free(e->host, e->nonnegative, n);
    fxa__free(e->host, e->unfused, n);
    fxa__free(e->host, e->base, n);
    fxa__free(e->host, e->in_bounds, n);
    *e = (fxa__emit){.p = NULL};
}
