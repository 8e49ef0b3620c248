/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of loads; see emit.h. A load of an index out of bounds gives 0. Three forms of text:
 *
 *   checked    Every index is checked where the load is; the element is read under a branch.
 *   based      Indices that vary with neither row nor key are checked once per head, which gives a base address
 *              d<node>. The other indices are checked per load without a branch: if one is out of bounds, the element
 *              at the base address is read and replaced by 0.
 *   in bounds  All indices are proven in bounds: no check.
 */
#include "emit_load.h"

#include "../base/invariant.h"

static const int emitload_sizes[] = {
#define LOAD_SIZE(name, value, text, size, type) [value] = size,
    FXA_DTYPE_MAP(LOAD_SIZE)
#undef LOAD_SIZE
};

/* Returns true if the node varies with the row or the key. */
static bool emitload_varies(const fxa__emit *e, int32_t node) { return e->level[node] > FXA__EMIT_HEAD; }

/* Returns true if index d of a load is proven in bounds. */
static bool emitload_in_bounds(const fxa__emit *e, int32_t node, int d) { return e->in_bounds[node] >> d & 1; }

/* Returns true if all indices of a load that vary with the row or the key are proven in bounds. */
static bool emitload_varying_in_bounds(const fxa__emit *e, int32_t node) {
    const fxa__node *n = &e->p->nodes[node];
    for (int d = 0; d < n->n_args; d++)
        if (emitload_varies(e, n->arg[d]) && !emitload_in_bounds(e, node, d)) return false;
    return true;
}

/* Returns true if `node` is a load and all of its indices are proven in bounds. */
static bool emitload_is_in_bounds(const fxa__emit *e, int32_t node) {
    const fxa__node *n = &e->p->nodes[node];
    return n->n_args > 0 && e->in_bounds[node] == (1 << n->n_args) - 1;
}

bool fxa__lower_emit_can_use_base(const fxa__emit *e, int32_t node) {
    const fxa__node *n = &e->p->nodes[node];
    if (n->op != FXA_OP_LOAD || emitload_is_in_bounds(e, node)) return false;
    for (int d = 0; d < n->n_args; d++)
        if (emitload_varies(e, n->arg[d])) return true;
    return false;
}

/* Writes " & fxa__at(size, stride, index, &offset)", the check of index d. */
static void emitload_at(const fxa__emit *e, int32_t node, int d, fxa__writer *w) {
    const char *args = fxa__lower_emit_args(e->dialect);
    const fxa__node *n = &e->p->nodes[node];
    fxa__write_format(w, " & fxa__at(%stensor[%d].size[%d], %stensor[%d].stride[%d], ", args, (int)n->imm, d, args,
                      (int)n->imm, d);
    fxa__lower_emit_value(e, n->arg[d], w);
    fxa__write_format(w, ", &o%d)", (int)node);
}

/* Writes " * stride", the factor of index d in the load's offset. */
static void emitload_stride(const fxa__emit *e, int32_t node, int d, fxa__writer *w) {
    fxa__write_format(w, " * %stensor[%d].stride[%d]", fxa__lower_emit_args(e->dialect), (int)e->p->nodes[node].imm, d);
}

/* ---- Base addresses ---------------------------------------------------------------------------------------------- */

/* Returns the first axis of a load whose index varies with the row or the key and is not proven in bounds. The emitted
 * variable n<node> holds the size of this axis. */
static int emitload_first(const fxa__emit *e, int32_t node) {
    int d = 0;
    while (!emitload_varies(e, e->p->nodes[node].arg[d]) || emitload_in_bounds(e, node, d)) d++;
    return d;
}

/* Writes the statements that set two variables of a load, for the current head:
 * - d<node>: the base address.
 * - n<node>: 0 if an index is out of bounds for the entire head; otherwise the size of the axis emitload_first, or 1 if
 *   no index is checked per load. */
static void emitload_base(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const char *args = fxa__lower_emit_args(e->dialect);
    const fxa__node *n = &e->p->nodes[node];
    int at = (int)node, tensor = (int)n->imm, size = emitload_sizes[e->p->tensors[n->imm].dtype];
    fxa__write_format(w, "    long long o%d = 0;\n    const int i%d = 1", at, at);
    for (int d = 0; d < n->n_args; d++) {
        if (!emitload_varies(e, n->arg[d]))
            emitload_at(e, node, d, w);
        else if (!emitload_in_bounds(e, node, d))
            fxa__write_format(w, " & (%stensor[%d].size[%d] > 0)", args, tensor, d);
    }
    fxa__write_format(w,
                      ";\n    d%d = i%d ? (const char *)%stensor[%d].data + o%d * %d : (const char *)&fxa__nothing;\n",
                      at, at, args, tensor, at, size);
    if (emitload_varying_in_bounds(e, node))
        fxa__write_format(w, "    n%d = i%d;\n", at, at);
    else
        fxa__write_format(w, "    n%d = i%d ? %stensor[%d].size[%d] : 0;\n", at, at, args, tensor,
                          emitload_first(e, node));
}

void fxa__lower_emit_bases(const fxa__emit *e, fxa__writer *w) {
    for (int32_t i = 0; i < e->p->n_nodes; i++)
        if (e->base[i] == 2) emitload_base(e, i, w);
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* Writes x<node>_<axis>, the value of a varying index. The text adds the size of the axis to a negative index; this
 * part is omitted for an index that is never negative. */
static void emitload_index(const fxa__emit *e, int32_t node, int d, fxa__writer *w) {
    const fxa__node *n = &e->p->nodes[node];
    fxa__write_format(w, "    const int x%d_%d = ", (int)node, d);
    fxa__lower_emit_value(e, n->arg[d], w);
    if (!e->nonnegative[n->arg[d]]) {
        fxa__write_format(w, " + (");
        fxa__lower_emit_value(e, n->arg[d], w);
        fxa__write_format(w, " < 0 ? %stensor[%d].size[%d] : 0)", fxa__lower_emit_args(e->dialect), (int)n->imm, d);
    }
    fxa__write_format(w, ";\n");
}

/* Writes i<node> of a load with a base address: 1 if all indices of the load are in bounds, else 0. */
static void emitload_inside_based(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const fxa__node *n = &e->p->nodes[node];
    int at = (int)node;
    if (emitload_varying_in_bounds(e, node)) {
        fxa__write_format(w, "    const int i%d = n%d;\n", at, at);
        return;
    }
    int first = emitload_first(e, node);
    fxa__write_format(w, "    const int i%d = fxa__inside(n%d, x%d_%d)", at, at, at, first);
    for (int d = first + 1; d < n->n_args; d++)
        if (emitload_varies(e, n->arg[d]) && !emitload_in_bounds(e, node, d))
            fxa__write_format(w, " & fxa__inside(%stensor[%d].size[%d], x%d_%d)", fxa__lower_emit_args(e->dialect),
                              (int)n->imm, d, at, d);
    fxa__write_format(w, ";\n");
}

static void emitload_address_based(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const fxa__node *n = &e->p->nodes[node];
    int at = (int)node;
    for (int d = 0; d < n->n_args; d++)
        if (emitload_varies(e, n->arg[d])) emitload_index(e, node, d, w);
    emitload_inside_based(e, node, w);
    fxa__write_format(w, "    const long long o%d = 0", at);
    for (int d = 0; d < n->n_args; d++) {
        if (!emitload_varies(e, n->arg[d])) continue;
        fxa__write_format(w, " + (i%d ? x%d_%d : 0)", at, at, d);
        emitload_stride(e, node, d, w);
    }
    fxa__write_format(w, ";\n");
}

static void emitload_address_in_bounds(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const fxa__node *n = &e->p->nodes[node];
    fxa__write_format(w, "    const long long o%d = 0", (int)node);
    for (int d = 0; d < n->n_args; d++) {
        fxa__write_format(w, " + ");
        fxa__lower_emit_value(e, n->arg[d], w);
        emitload_stride(e, node, d, w);
    }
    fxa__write_format(w, ";\n");
}

void fxa__emit_address(const fxa__emit *e, int32_t node, fxa__writer *w) {
    const fxa__node *n = &e->p->nodes[node];
    FXA__ASSERT(n->op == FXA_OP_LOAD && n->imm < e->p->n_tensors);
    FXA__ASSERT(!n->half); /* no text is emitted for programs with 32-bit halves of i64 (i64_halves.h) */
    if (e->base[node]) {
        emitload_address_based(e, node, w);
    } else if (emitload_is_in_bounds(e, node)) {
        emitload_address_in_bounds(e, node, w);
    } else {
        fxa__write_format(w, "    long long o%d = 0;\n    const int i%d = 1", (int)node, (int)node);
        for (int d = 0; d < n->n_args; d++) emitload_at(e, node, d, w);
        fxa__write_format(w, ";\n");
    }
}

void fxa__emit_element(const fxa__emit *e, int32_t node, const char *get, fxa__writer *w) {
    const char *args = fxa__lower_emit_args(e->dialect);
    int at = (int)node, tensor = (int)e->p->nodes[node].imm;
    if (e->base[node])
        fxa__write_format(w, "fxa__take_%s(d%d, o%d, i%d)", get, at, at, at);
    else if (emitload_is_in_bounds(e, node))
        fxa__write_format(w, "fxa__get_%s(%stensor[%d].data, o%d)", get, args, tensor, at);
    else
        fxa__write_format(w, "i%d ? fxa__get_%s(%stensor[%d].data, o%d) : 0", at, get, args, tensor, at);
}
