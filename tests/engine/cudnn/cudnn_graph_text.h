/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of a graph of the cuDNN engine, for tests/golden/graphs: everything that is passed to cuDNN, and the helper
 * kernels.
 *
 *   1: Q bf16 2x4x9x16                       memory and values: number, source, dtype, sizes, strides if not packed
 *   t9 = mul(t8, scale)  ; f32 2x4x9x12      operations, as `fxattn explain` shows them, and the result's form
 *   copy, 24 elements, before: to ...        helper kernels, with their arguments
 */
#ifndef FXA_TESTS_CUDNN_GRAPH_TEXT_H
#define FXA_TESTS_CUDNN_GRAPH_TEXT_H

#include "engine/cudnn/cudnn.h"

#include <string.h>

static int graph_digits = 9; /* of floats */

typedef struct graph_text {
    const fxa__dnn_attention *a;
    const fxa__dnn_step *step; /* the step that is being written */
    fxa__writer *w;
} graph_text;

#define GRAPH_WRITE(...) fxa__write_format(x->w, __VA_ARGS__)

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static const char *graph_type(int type) {
    switch (type) {
    case CUDNN_DATA_FLOAT: return "f32";
    case CUDNN_DATA_HALF: return "f16";
    case CUDNN_DATA_INT32: return "i32";
    case CUDNN_DATA_BFLOAT16: return "bf16";
    case CUDNN_DATA_INT64: return "i64";
    case CUDNN_DATA_BOOLEAN: return "bool";
    case CUDNN_DATA_FP8_E4M3: return "e4m3";
    case CUDNN_DATA_FP8_E5M2: return "e5m2";
    default: return "?";
    }
}

static void graph_write_shape(const graph_text *x, const fxa__dnn_tensor *t) {
    int64_t stride = 1;
    bool packed = true;
    for (int i = 3; i >= 0; i--) packed = packed && t->stride[i] == stride, stride *= t->dim[i];
    GRAPH_WRITE("%s", graph_type(t->type));
    for (int i = 0; i < 4; i++) GRAPH_WRITE("%c%lld", i ? 'x' : ' ', (long long)t->dim[i]);
    for (int i = 0; i < 4 && !packed; i++) GRAPH_WRITE("%s%lld", i ? "," : " strides ", (long long)t->stride[i]);
    if (t->ragged) GRAPH_WRITE(", entries from %d", (int)t->ragged - 1);
}

/* A node of a program by its operation: numbers of nodes depend on details that cuDNN does not see. */
static void graph_write_node(const graph_text *x, const fxa_program *program, const fxa__dnn_tensor *t) {
    const fxa__node *n = &program->nodes[t->index];
    GRAPH_WRITE(" %s", fxa__op_info_get(n->op)->id);
    if (n->op == FXA_OP_PARAM) GRAPH_WRITE(" %s", program->params[n->imm].name);
    GRAPH_WRITE(" times %d plus %.*g", (int)t->times, graph_digits, t->value);
    if (t->part) GRAPH_WRITE(" part %d", (int)t->part);
}

static void graph_write_source(const graph_text *x, const fxa__dnn_tensor *t) {
    switch (t->source) {
    case FXA__DNN_SLOT: GRAPH_WRITE("%s", fxa_slot_name((fxa_slot)t->index)); break;
    case FXA__DNN_TENSOR: GRAPH_WRITE("tensor %d at %lld", (int)t->index, (long long)t->offset); break;
    case FXA__DNN_OWN_TENSOR: GRAPH_WRITE("bprop tensor %d at %lld", (int)t->index, (long long)t->offset); break;
    case FXA__DNN_DTENSOR: GRAPH_WRITE("gradient of tensor %d", (int)t->index); break;
    case FXA__DNN_SCRATCH: GRAPH_WRITE("workspace at %lld", (long long)t->offset); break;
    case FXA__DNN_VALUE: GRAPH_WRITE("value %.*g", graph_digits, t->value); break;
    case FXA__DNN_NODE: GRAPH_WRITE("value"), graph_write_node(x, x->a->program, t); break;
    case FXA__DNN_OWN_NODE: GRAPH_WRITE("bprop value"), graph_write_node(x, x->a->own.program, t); break;
    case FXA__DNN_SCALE:
        GRAPH_WRITE("scale");
        if (t->times) graph_write_node(x, x->a->program, t);
        break;
    default: GRAPH_WRITE("?");
    }
    if (t->per_head) GRAPH_WRITE(" for each head at %lld", (long long)t->offset);
    if (t->fill) GRAPH_WRITE(" filled with %d at %lld", (int)t->fill, (long long)t->offset);
    if (t->cleared) GRAPH_WRITE(" cleared at %lld", (long long)t->offset);
    if (t->bound) GRAPH_WRITE(" clamped");
    if (t->number) GRAPH_WRITE(" not 0");
    if (t->read) GRAPH_WRITE(" captured");
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Writes what the line of the listing omits: the form of the result, the type of the arithmetic, lengths. */
static void graph_write_form(const graph_text *x, const fxa__dnn_op *op) {
    const fxa__dnn_tensor *y = &x->a->g.tensors[op->y];
    const int32_t lengths[3] = {op->m, op->n, op->k};
    if (y->source == FXA__DNN_VIRTUAL) GRAPH_WRITE("  ; "), graph_write_shape(x, y);
    if (op->precision != CUDNN_DATA_FLOAT) GRAPH_WRITE(", by %s", graph_type(op->precision));
    if (op->kind == FXA__DNN_PAGED) GRAPH_WRITE(", lengths %d", (int)op->t);
    for (int i = 0; i < 3; i++)
        if (lengths[i] >= 0) GRAPH_WRITE(", %c %d", "mnk"[i], (int)lengths[i]);
    GRAPH_WRITE("\n");
}

/* ---- Helper kernels ---------------------------------------------------------------------------------------------- */

/* Writes which memory a pointer of the arguments addresses in a run. */
static void graph_write_pointer(const graph_text *x, const char *name, const void *field) {
    const uint16_t at = (uint16_t)((const char *)field - (const char *)&x->step->args);
    for (int i = 0; i < x->step->n_refs; i++) {
        const fxa__dnn_ref *r = &x->step->ref[i];
        const fxa__dnn_tensor t = {.source = r->source, .index = r->index, .offset = r->offset};
        if (r->at != at) continue;
        GRAPH_WRITE(" %s (", name);
        graph_write_source(x, &t);
        if (r->source == FXA__DNN_SLOT && r->offset) GRAPH_WRITE(" at %lld", (long long)r->offset);
        GRAPH_WRITE("%s)", r->strided ? ", strides of the run" : "");
    }
}

static void graph_write_four(const graph_text *x, const char *name, const int64_t n[4]) {
    if (!n[0] && !n[1] && !n[2] && !n[3]) return;
    GRAPH_WRITE(" %s %lld,%lld,%lld,%lld", name, (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3]);
}

static void graph_write_int(const graph_text *x, const char *name, int64_t n) {
    if (n) GRAPH_WRITE(" %s %lld", name, (long long)n);
}

static void graph_write_array(const graph_text *x, const char *name, const FxaGpuArray *array) {
    graph_write_pointer(x, name, &array->data);
    graph_write_four(x, fxa_dtype_name((fxa_dtype)array->type), array->stride);
    graph_write_pointer(x, "starts", &array->start);
    graph_write_pointer(x, "pages", &array->pages);
    graph_write_int(x, "of", array->page), graph_write_int(x, "pages of an entry", array->of_entry);
}

static void graph_write_rows(const graph_text *x, const FxaGpuRows *rows) {
    graph_write_four(x, "rows", rows->size);
    graph_write_pointer(x, "len", &rows->len), graph_write_pointer(x, "other", &rows->other);
}

static void graph_write_bounds(const graph_text *x, const FxaGpuBatchBounds *s) {
    for (int i = 0; i < 2; i++) {
        graph_write_int(x, "size", s->size[i]), graph_write_pointer(x, "starts", &s->starts[i]);
        graph_write_pointer(x, "lens", &s->lens[i]), graph_write_pointer(x, "len", &s->len[i]);
    }
    graph_write_pointer(x, "more", &s->more), graph_write_int(x, "batch", s->batch),
        graph_write_int(x, "past", s->past);
    for (int i = 0; i < s->operands; i++) {
        GRAPH_WRITE("\n    %s, %s", s->keys >> i & 1 ? "keys" : "rows", s->dense >> i & 1 ? "dense" : "packed");
        graph_write_pointer(x, "offsets", &s->offset[i]);
        graph_write_int(x, "row", s->row[i]), graph_write_int(x, "entry", s->entry[i]);
    }
    for (int i = 0; i < s->fills; i++) {
        GRAPH_WRITE("\n    fill with %g:", s->fill[i].value);
        graph_write_array(x, "to", &s->fill[i].to);
        graph_write_int(x, "heads", s->fill[i].heads), graph_write_int(x, "rows", s->fill[i].rows);
        graph_write_int(x, "features", s->fill[i].features), graph_write_int(x, "keys", s->fill[i].keys);
    }
}

static void graph_write_copy(const graph_text *x, const FxaGpuCopy *c) {
    graph_write_array(x, "to", &c->to), graph_write_array(x, "from", &c->from), graph_write_rows(x, &c->rows);
    graph_write_four(x, "limit", c->limit);
    if (c->fill != 0) GRAPH_WRITE(" fill %g", c->fill);
    if (c->has_instead) GRAPH_WRITE(" instead %.*g", graph_digits, c->instead);
    graph_write_int(x, "mode", c->mode), graph_write_int(x, "past", c->past);
}

static void graph_write_places(const graph_text *x, const FxaGpuPlaces *p) {
    graph_write_pointer(x, "out", &p->out), graph_write_pointer(x, "table", &p->table);
    graph_write_pointer(x, "dynamic", &p->dynamic), graph_write_pointer(x, "shift", &p->shift);
    graph_write_pointer(x, "more", &p->more);
    graph_write_int(x, "size", p->size), graph_write_int(x, "batch", p->batch), graph_write_int(x, "base", p->base);
    graph_write_int(x, "step", p->step), graph_write_int(x, "add", p->add);
    for (int i = 0; i < p->segments; i++)
        GRAPH_WRITE(" [%lld: %lld by %lld]", (long long)p->begin[i], (long long)p->from[i], (long long)p->by[i]);
}

static void graph_write_args(const graph_text *x) {
    const fxa__gpu_args *args = &x->step->args;
    switch (x->step->kernel) {
    case FXA__GPU_COPY: graph_write_copy(x, &args->copy); break;
    case FXA__GPU_BATCH_BOUNDS: graph_write_bounds(x, &args->batch_bounds); break;
    case FXA__GPU_PLACES: graph_write_places(x, &args->places); break;
    case FXA__GPU_INVERSE:
        graph_write_pointer(x, "from", &args->inverse.from), graph_write_pointer(x, "to", &args->inverse.to);
        break;
    case FXA__GPU_STATISTICS:
        graph_write_array(x, "most", &args->statistics.most), graph_write_array(x, "sum", &args->statistics.sum);
        graph_write_array(x, "lse", &args->statistics.lse), graph_write_array(x, "max", &args->statistics.max);
        graph_write_rows(x, &args->statistics.rows), graph_write_int(x, "past", args->statistics.past);
        break;
    case FXA__GPU_JOIN:
        graph_write_array(x, "o", &args->join.o), graph_write_array(x, "lse", &args->join.lse);
        graph_write_array(x, "into", &args->join.into), graph_write_array(x, "into_lse", &args->join.into_lse);
        graph_write_rows(x, &args->join.rows);
        break;
    case FXA__GPU_SINK:
        graph_write_array(x, "sink", &args->sink.sink), graph_write_array(x, "dsink", &args->sink.dsink);
        graph_write_array(x, "lse", &args->sink.lse), graph_write_array(x, "dlse", &args->sink.dlse);
        graph_write_array(x, "delta", &args->sink.delta), graph_write_array(x, "o", &args->sink.o);
        graph_write_array(x, "dout", &args->sink.dout), graph_write_rows(x, &args->sink.rows);
        graph_write_int(x, "features", args->sink.features);
        graph_write_int(x, "add", args->sink.add), graph_write_int(x, "zero", args->sink.zero);
        break;
    default: GRAPH_WRITE(" ?");
    }
}

static void graph_write_step(graph_text *x, const fxa__dnn_step *step) {
    static const char *const names[] = {"copy", "batch_bounds", "statistics", "join", "sink", "places", "inverse"};
    x->step = step;
    GRAPH_WRITE("%s, %lld elements, %s%s:", names[step->kernel], (long long)step->work,
                step->after ? "after" : "before", step->optional ? ", if it is given" : "");
    graph_write_args(x);
    GRAPH_WRITE("\n");
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* listing: the text of fxa__dnn_dump. */
static void graph_write(const fxa__dnn_attention *a, const char *listing, fxa__writer *w) {
    graph_text all = {.a = a, .w = w}, *x = &all;
    for (size_t i = 0; i < a->g.n_tensors; i++) {
        const fxa__dnn_tensor *t = &a->g.tensors[i];
        if (t->source == FXA__DNN_VIRTUAL || !fxa__dnn_is_used(&a->g, (int32_t)i)) continue;
        GRAPH_WRITE("%d: ", (int)i);
        graph_write_source(x, t);
        GRAPH_WRITE(", ");
        graph_write_shape(x, t);
        GRAPH_WRITE("\n");
    }
    size_t op = 0;
    for (const char *line = listing, *end; (end = strchr(line, '\n')); line = end + 1) {
        fxa__write_bytes(w, line, (size_t)(end - line));
        if (strncmp(line, "before ", 7) == 0 || strncmp(line, "after ", 6) == 0 || op == a->g.n_ops)
            GRAPH_WRITE("\n");
        else
            graph_write_form(x, &a->g.ops[op++]);
    }
    for (size_t i = 0; i < a->g.n_steps; i++) graph_write_step(x, &a->g.steps[i]);
    GRAPH_WRITE("workspace: %lld bytes\n", (long long)a->g.scratch);
}

#endif
