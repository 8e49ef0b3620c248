/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the header and the problem of plan bytes (docs/plan-bytes.md), for `plan show` of plans whose device or library
 * is absent. The bytes are untrusted: every access is checked against their size.
 */
#include "plan/file.h"

#include <string.h>

typedef struct plan_cursor {
    const uint8_t *bytes;
    size_t size, at;
    bool short_of; /* true = the bytes ended too early */
} plan_cursor;

static uint64_t plan_number(plan_cursor *r, size_t width) {
    uint64_t value = 0;
    if (r->short_of || r->size - r->at < width) {
        r->short_of = true;
        return 0;
    }
    for (size_t i = 0; i < width; i++) value |= (uint64_t)r->bytes[r->at + i] << 8 * i;
    r->at += width;
    return value;
}

/* Reads a string for a terminal: control characters become question marks. Owned by c. */
static const char *plan_string(cli *c, plan_cursor *r) {
    size_t length = (size_t)plan_number(r, 4);
    if (r->short_of || r->size - r->at < length) {
        r->short_of = true;
        return "";
    }
    char *text = cli_format(c, "%.*s", (int)(length < 4096 ? length : 4096), (const char *)r->bytes + r->at);
    for (char *x = text; *x; x++)
        if ((unsigned char)*x < ' ' || *x == 127) *x = '?';
    r->at += length;
    return text;
}

/* Returns the number of operands of an operation; -1 if the language has no spelling for it. */
static int plan_arity(uint64_t op) {
    for (size_t i = 0; fxa_op_syntax(i).text; i++)
        if ((uint64_t)fxa_op_syntax(i).op == op) return fxa_op_syntax(i).arity;
    return -1;
}

static void plan_skip(plan_cursor *r, uint64_t bytes) {
    r->short_of = r->short_of || r->size - r->at < bytes;
    if (!r->short_of) r->at += (size_t)bytes;
}

/* Skips the params or tensors of a program, each of which is a name and `behind` bytes after it. Returns the number of
 * params or tensors. ranks: receives the ranks of tensors; NULL for params. */
static uint64_t plan_declarations(plan_cursor *r, uint64_t behind, uint8_t ranks[FXA_MAX_TENSORS]) {
    uint64_t n = plan_number(r, 4);
    for (uint64_t i = 0; i < n && !r->short_of; i++) {
        plan_skip(r, plan_number(r, 4));
        plan_skip(r, behind - 1);
        uint64_t last = plan_number(r, 1);
        if (ranks && i < FXA_MAX_TENSORS) ranks[i] = (uint8_t)last;
    }
    return n;
}

/* Skips one program in format 1. Returns false if it has unknown contents. */
static bool plan_skip_program(plan_cursor *r) {
    uint8_t ranks[FXA_MAX_TENSORS] = {0};
    plan_skip(r, 4);
    if (plan_number(r, 4) != 1) return false;
    plan_skip(r, 4);
    (void)plan_declarations(r, 1, NULL);
    uint64_t tensors = plan_declarations(r, 2, ranks), n = plan_number(r, 4);
    for (uint64_t i = 0; i < n && !r->short_of; i++) {
        uint64_t op = plan_number(r, 1), type = plan_number(r, 1);
        if (op == FXA_OP_CONST) {
            plan_skip(r, type == FXA_FLOAT ? 8 : 4);
        } else if (op == FXA_OP_INPUT || op == FXA_OP_PARAM) {
            plan_skip(r, 4);
        } else if (op == FXA_OP_LOAD) {
            uint64_t tensor = plan_number(r, 4);
            if (tensor >= tensors || tensor >= FXA_MAX_TENSORS) return false;
            plan_skip(r, 4u * ranks[tensor]);
        } else if (plan_arity(op) < 0) {
            return false;
        } else
            plan_skip(r, 4 * (uint64_t)plan_arity(op));
    }
    n = plan_number(r, 4);
    for (uint64_t i = 0; i < n && !r->short_of; i++) {
        if (plan_number(r, 4) > 2) return false; /* programs of a problem have no gradients as outputs */
        plan_skip(r, 4);
    }
    plan_skip(r, 16);
    return !r->short_of;
}

static bool plan_program_read(cli *c, plan_cursor *r, fxa_program **out) {
    fxa_error err;
    if (plan_number(r, 4) == 0) return !r->short_of;
    size_t begin = r->at;
    if (!plan_skip_program(r)) return false;
    if (fxa_program_load(c->ctx, r->bytes + begin, r->at - begin, out, &err) != FXA_OK) return false;
    cli_own_program(c, *out);
    return true;
}

static bool plan_captures_read(plan_cursor *r, plan_file *out) {
    uint64_t n = plan_number(r, 4);
    if (n != (out->program ? fxa_program_tensor_count(out->program) : 0) || n > FXA_MAX_TENSORS) return false;
    for (uint64_t i = 0; i < n; i++) {
        fxa_capture *t = &out->captures[i];
        t->grad = plan_number(r, 4) != 0;
        plan_skip(r, 4);
        for (int d = 0; d < FXA_MAX_RANK; d++) t->size[d] = (int64_t)plan_number(r, 8);
        plan_skip(r, 2 * FXA_MAX_RANK * 8);
    }
    out->problem.program = out->program;
    out->problem.captures = out->captures;
    out->problem.n_captures = (size_t)n;
    return !r->short_of;
}

/* Reads section 1 after its sizes. Returns false for an unknown format. */
static bool plan_rest_read(cli *c, plan_cursor *r, uint64_t format, plan_file *out) {
    fxa_problem *p = &out->problem;
    fxa_operand *const operands[] = {&p->q,  &p->k,   &p->v,       &p->o,    &p->dout,  &p->dq,    &p->dk,
                                     &p->dv, &p->lse, &p->row_max, &p->dlse, &p->sinks, &p->dsinks};
    if (format < 1 || format > 3) return false;
    plan_skip(r, format == 1 ? 40 : format == 2 ? 48 : 68); /* fields for totals, pages, lengths; heads; device */
    p->window_left = (int64_t)plan_number(r, 8);
    p->window_right = (int64_t)plan_number(r, 8);
    uint64_t dropout = plan_number(r, 8);
    memcpy(&p->dropout_p, &dropout, sizeof dropout);
    p->param_grads = plan_number(r, 8);
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
        operands[i]->dtype = (uint32_t)plan_number(r, 4);
        for (int d = 0; d < 4; d++) operands[i]->stride[d] = (int64_t)plan_number(r, 8);
    }
    for (int map = 0; map < 4; map++) {
        plan_skip(r, 8);
        uint64_t segments = plan_number(r, 4);
        plan_skip(r, 16 + 24 * segments);
    }
    return plan_program_read(c, r, &out->program) && plan_program_read(c, r, &out->bprop) && plan_captures_read(r, out);
}

/* Reads section 1 (the problem), whose first fields are the same in all formats. */
static void plan_problem_read(cli *c, plan_cursor *r, plan_file *out) {
    fxa_problem *p = &out->problem;
    uint64_t format = plan_number(r, 4);
    (void)plan_number(r, 4);
    p->pass = (uint32_t)plan_number(r, 4);
    p->flags = (uint32_t)plan_number(r, 4);
    p->page_size = (uint32_t)plan_number(r, 4);
    int64_t *const sizes[] = {&p->hq, &p->hkv, &p->d_qk, &p->d_v, &p->b, &p->sq, &p->sk};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) *sizes[i] = (int64_t)plan_number(r, 8);
    plan_cursor rest = *r;
    out->known = !r->short_of && plan_rest_read(c, &rest, format, out);
}

bool plan_file_read(cli *c, const void *bytes, size_t size, plan_file *out) {
    plan_cursor r = {.bytes = bytes, .size = size};
    *out = (plan_file){.problem = FXA_PROBLEM_INIT};
    if (size < 8 || memcmp(bytes, "FXAPLAN", 8) != 0) return false;
    r.at = 8;
    if (plan_number(&r, 4) != 2) return false;
    (void)plan_number(&r, 4), (void)plan_number(&r, 8);
    if (r.short_of || size - r.at < sizeof out->key) return false;
    memcpy(out->key, r.bytes + r.at, sizeof out->key);
    r.at += sizeof out->key;
    out->library = plan_string(c, &r);
    out->engine = plan_string(c, &r);
    out->engine_version = (uint32_t)plan_number(&r, 4);
    out->identity = plan_string(c, &r);
    uint64_t sections = plan_number(&r, 4);
    for (uint64_t i = 0; i < sections && !r.short_of; i++) {
        uint64_t id = plan_number(&r, 8), at = plan_number(&r, 8), length = plan_number(&r, 8);
        (void)plan_number(&r, 8);
        if (r.short_of || at > size || length > size - at) return false;
        plan_cursor problem = {.bytes = bytes, .size = (size_t)(at + length), .at = (size_t)at};
        if (id == 1) plan_problem_read(c, &problem, out);
        if (id == 2) out->code = length;
        if (problem.short_of) return false;
    }
    return !r.short_of;
}
