/* SPDX-License-Identifier: Apache-2.0
 *
 * Data for row bytecode, and the evaluation of the same program pair by pair (tape_case.h).
 */
#include "tape_case.h"

#include "attn_case.h"

#include "base/dtype.h"
#include "base/num.h"
#include "engine/cpu/bytecode/tape_code.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Data -------------------------------------------------------------------------------------------------------- */

static double tape_case_round(const tape_case *c, double x) {
    return c->kernels->real_size == 4 ? (double)(float)x : x;
}

static double tape_case_number(const tape_case *c, bool wild, uint64_t *rng) {
    static const double special[] = {INFINITY, -INFINITY, NAN, 0, -0.0, 1e30, -1e30, 1, 0x1p-130};
    if (wild && attn_int(rng, 0, 5) == 0) return tape_case_round(c, special[attn_int(rng, 0, 8)]);
    return tape_case_round(c, attn_int(rng, 0, 3) ? attn_real(rng, -4, 4) : (double)attn_int(rng, -3, 3));
}

static void tape_case_store(void *data, fxa_dtype dtype, int64_t at, double x, uint64_t *rng) {
    int64_t i = attn_int(rng, 0, 7) ? attn_int(rng, -9, 9) : (int64_t)attn_next(rng);
    switch (dtype) {
    case FXA_I8: ((int8_t *)data)[at] = (int8_t)i; break;
    case FXA_U8: ((uint8_t *)data)[at] = (uint8_t)i; break;
    case FXA_B8: ((uint8_t *)data)[at] = (uint8_t)(i & 1 ? i | 1 : 0); break;
    case FXA_I16: ((int16_t *)data)[at] = (int16_t)i; break;
    case FXA_I32: ((int32_t *)data)[at] = (int32_t)i; break;
    case FXA_I64:
        ((int64_t *)data)[at] = attn_int(rng, 0, 1) ? i : i % 3 + attn_int(rng, -2, 2) * (INT64_C(1) << 32);
        break;
    default: fxa__store_f64(data, dtype, at, x);
    }
}

/* Draws sizes and strides of a tensor: axes in random order, contiguous, with gaps, reversed, or with stride 0. */
static void tape_case_shape(fxa_view *view, int64_t *low, int64_t *high, uint64_t *rng) {
    int64_t step = 1;
    *low = *high = 0;
    for (int32_t done = 0, seen = 0; done < view->rank; done++) {
        int32_t axis = (int32_t)attn_int(rng, 0, view->rank - 1);
        while (seen >> axis & 1) axis = (axis + 1) % view->rank;
        seen |= 1 << axis;
        int64_t kind = attn_int(rng, 0, 7), size = attn_int(rng, 0, 12) ? attn_int(rng, 1, view->rank > 2 ? 5 : 40) : 0;
        view->size[axis] = size;
        view->stride[axis] = kind == 0 ? 0 : kind == 1 ? -step : kind == 2 ? step * 2 : step;
        int64_t reach = fxa__max_i64(size - 1, 0) * view->stride[axis];
        *(reach < 0 ? low : high) += reach;
        step = *high - *low + 1;
    }
}

static void tape_case_draw_tensor(tape_case *c, int32_t i, bool wild, uint64_t *rng) {
    const fxa__decl *decl = &c->program->tensors[i];
    fxa_view *view = &c->tensors[i];
    int64_t low, high;
    *view = (fxa_view){.dtype = (fxa_dtype)decl->dtype, .rank = decl->rank};
    tape_case_shape(view, &low, &high, rng);
    size_t element = fxa_dtype_size(view->dtype);
    int64_t count = high - low + 1, dense = 1;
    c->memory[i] = guard_make((size_t)count * element, 1, attn_next(rng) & 1);
    for (int64_t k = 0; k < count; k++)
        tape_case_store(c->memory[i].data, view->dtype, k, tape_case_number(c, wild, rng), rng);
    view->data = (char *)c->memory[i].data - low * (int64_t)element;
    c->sums[i].view = *view;
    for (int d = decl->rank - 1; d >= 0; d--) {
        c->sums[i].view.stride[d] = dense;
        dense *= view->size[d];
    }
    size_t n = (size_t)fxa__max_i64(dense, 1);
    if (decl->type != FXA_FLOAT) return;
    c->sums[i].sum = calloc(n, sizeof(double));
    c->want[i] = calloc(n, sizeof(double));
    c->size[i] = calloc(n, sizeof(double));
    if (!c->sums[i].sum || !c->want[i] || !c->size[i]) abort();
}

/* Draws the coordinates of keys: mostly evenly spaced, also far from 0 and near the limits of int32. */
static void tape_case_draw_keys(tape_case *c, uint64_t *rng) {
    int64_t kind = attn_int(rng, 0, 7), step = kind < 5 ? 1 : attn_int(rng, 2, 5);
    int64_t at = kind == 4 ? (attn_next(rng) & 1 ? INT32_MAX - 60 : INT32_MIN) : attn_int(rng, -20, 60);
    for (int64_t i = 0; i < c->columns; i++) {
        c->k[i] = kind == 7 ? (int32_t)attn_int(rng, -50, 200) : fxa__wrap32(at + i * step);
    }
}

void tape_case_draw(tape_case *c, const fxa__cpu_kernels *kernels, fxa_program *program, bool wild, uint64_t *rng) {
    memset(c, 0, sizeof *c);
    c->kernels = kernels;
    c->program = program;
    c->rows = attn_int(rng, 1, TAPE_CASE_ROWS);
    c->columns =
        attn_int(rng, 0, 3) ? attn_int(rng, 1, TAPE_CASE_COLUMNS) : 16 * attn_int(rng, 1, TAPE_CASE_COLUMNS / 16);
    c->b = (int32_t)attn_int(rng, 0, 3);
    c->q_len = (int32_t)attn_int(rng, 1, 200);
    c->k_len = (int32_t)attn_int(rng, 1, 200);
    c->heads = (int32_t)attn_int(rng, 1, 64);
    c->head_rows = (int32_t)attn_int(rng, 1, 9);
    c->first_row = (int32_t)attn_int(rng, 0, c->head_rows - 1);
    c->first_key = (int32_t)attn_int(rng, 0, 40);
    for (int32_t i = 0; i < program->n_params; i++)
        c->params[i] =
            program->params[i].type == FXA_FLOAT ? tape_case_number(c, wild, rng) : (double)attn_int(rng, -9, 9);
    for (int32_t i = 0; i < program->n_tensors; i++) tape_case_draw_tensor(c, i, wild, rng);
    tape_case_draw_keys(c, rng);
    for (int64_t r = 0; r < c->rows; r++) {
        c->h[r] = (int32_t)attn_int(rng, 0, 5);
        c->q[r] = (int32_t)(attn_int(rng, 0, 9) ? attn_int(rng, -20, 200) : (int64_t)INT32_MAX - attn_int(rng, 0, 9));
        for (int64_t i = 0; i < c->columns; i++) {
            c->score[r][i] = tape_case_number(c, wild, rng);
            c->dscore[r][i] = attn_int(rng, 0, 5) ? tape_case_number(c, false, rng) : 0;
        }
    }
    c->vals = calloc((size_t)program->n_nodes + 1, sizeof *c->vals);
    if (!c->vals) abort();
}

void tape_case_free(tape_case *c) {
    for (int32_t i = 0; i < c->program->n_tensors; i++) {
        guard_close(&c->memory[i]);
        free(c->sums[i].sum);
        free(c->want[i]);
        free(c->size[i]);
    }
    free(c->vals);
}

/* ---- The evaluator ----------------------------------------------------------------------------------------------- */

int tape_case_opcode(uint32_t op, char d, const char *letters) {
    for (int i = 0; i < FXA__TAPE_OPS; i++) {
        const fxa__tape_info *t = &fxa__tape_infos[i];
        size_t n = strlen(letters);
        if (t->op == (int)op && t->d == d && t->a == letters[0] && t->b == (n > 1 ? letters[1] : '_') &&
            t->c == (n > 2 ? letters[2] : '_'))
            return i;
    }
    return -1;
}

/* Returns the result of one float operation, computed by its kernel. */
static double tape_case_kernel(const tape_case *c, uint32_t op, const char *letters, double a, double b) {
    double f64[3][FXA__TAPE_STEP];
    float f32[3][FXA__TAPE_STEP];
    fxa__tape_fn fn = c->kernels->tape[tape_case_opcode(op, 'F', letters)];
    for (int i = 0; i < FXA__TAPE_STEP; i++) {
        f64[0][i] = a, f64[1][i] = b;
        f32[0][i] = (float)a, f32[1][i] = (float)b;
    }
    if (c->kernels->real_size == 8)
        fn(FXA__TAPE_STEP, f64[2], f64[0], f64[1], NULL);
    else
        fn(FXA__TAPE_STEP, f32[2], f32[0], f32[1], NULL);
    return c->kernels->real_size == 8 ? f64[2][0] : (double)f32[2][0];
}

/* Returns what a node varies with, as bits: row, column. */
static unsigned tape_case_level(const fxa_program *p, int32_t node, unsigned char *level) {
    const fxa__node *n = &p->nodes[node];
    unsigned x = 0;
    if (n->op == FXA_OP_INPUT && (n->imm == FXA_INPUT_SCORE || n->imm == FXA_INPUT_DSCORE)) x = 3;
    if (n->op == FXA_OP_INPUT && (n->imm == FXA_INPUT_H || fxa__node_input(n) & FXA__OF_ROW)) x = 1;
    if (fxa__node_input(n) & FXA__OF_KEY) x = 2;
    for (int i = 0; i < n->n_args; i++) x |= level[n->arg[i]];
    level[node] = (unsigned char)x;
    return x;
}

static double tape_case_float(const tape_case *c, const fxa__node *n, const fxa__val *x, fxa__val y,
                              const unsigned char *level) {
    bool by_one = n->n_args == 2 && !fxa__tape_is_row(level[n - c->program->nodes], level[n->arg[1]]);
    if ((n->op == FXA_OP_DIV || n->op == FXA_OP_DIVZ) && by_one)
        return tape_case_kernel(c, n->op, "Ff", x[0].f, x[1].f);
    if (n->op == FXA_OP_FLOORDIV) return floor(tape_case_round(c, x[0].f / x[1].f));
    if (n->op == FXA_OP_RSQRT) return tape_case_round(c, 1 / tape_case_round(c, sqrt(x[0].f)));
    if (n->op == FXA_OP_POW) return tape_case_kernel(c, n->op, "FF", x[0].f, x[1].f);
    if (fxa__op_info_get(n->op)->exact == FXA__EXACT_NEVER) return tape_case_kernel(c, n->op, "F", x[0].f, 0);
    return tape_case_round(c, y.f);
}

/* Returns the element that a load of i64 reads; 0 if out of bounds. */
static int64_t tape_case_element(const tape_case *c, const fxa__node *load) {
    const fxa_view *view = &c->tensors[load->imm];
    int32_t index[FXA_MAX_RANK];
    int64_t at;
    for (int k = 0; k < load->n_args; k++) index[k] = c->vals[load->arg[k]].i;
    return fxa__view_offset(view, index, &at) ? ((const int64_t *)view->data)[at] : 0;
}

/* Returns true if n is == or != of two loads of i64, which compares all 64 bits. */
static bool tape_case_is_wide(const fxa_program *p, const fxa__node *n) {
    if (n->op != FXA_OP_EQ && n->op != FXA_OP_NE) return false;
    for (int k = 0; k < 2; k++) {
        const fxa__node *x = &p->nodes[n->arg[k]];
        if (x->op != FXA_OP_LOAD || p->tensors[x->imm].dtype != FXA_I64) return false;
    }
    return true;
}

void tape_case_eval(tape_case *c, int64_t row, int64_t column) {
    const fxa_program *p = c->program;
    unsigned char *level = malloc((size_t)p->n_nodes + 1);
    fxa__env env = {.score = c->score[row][column], .dscore = c->dscore[row][column], .params = c->params};
    env.tensors = c->tensors;
    env.coord[FXA_INPUT_B] = c->b, env.coord[FXA_INPUT_H] = c->h[row], env.coord[FXA_INPUT_Q] = c->q[row];
    env.coord[FXA_INPUT_K] = c->k[column], env.coord[FXA_INPUT_Q_LEN] = c->q_len, env.coord[FXA_INPUT_K_LEN] = c->k_len;
    env.coord[FXA_INPUT_HEADS] = c->heads;
    env.coord[FXA_INPUT_Q_ROW] = (int32_t)((c->first_row + row) % c->head_rows);
    env.coord[FXA_INPUT_K_ROW] = (int32_t)(c->first_key + column);
    if (!level) abort();
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        fxa__val x[FXA_MAX_RANK];
        tape_case_level(p, i, level);
        for (int k = 0; k < n->n_args; k++) x[k] = c->vals[n->arg[k]];
        if (n->op == FXA_OP_LOAD) {
            int32_t index[FXA_MAX_RANK];
            int64_t at;
            const fxa_view *view = &c->tensors[n->imm];
            for (int k = 0; k < n->n_args; k++) index[k] = x[k].i;
            bool inside = fxa__view_offset(view, index, &at);
            c->vals[i].f = 0;
            if (n->type != FXA_FLOAT)
                c->vals[i].i = inside ? fxa__load_i32(view->data, view->dtype, at) : 0;
            else if (inside)
                c->vals[i].f = tape_case_round(c, fxa__load_f64(view->data, view->dtype, at));
        } else if (n->n_args == 0) {
            fxa__val v = {.f = 0};
            if (n->op == FXA_OP_INPUT && n->type == FXA_FLOAT)
                v.f = n->imm == FXA_INPUT_SCORE ? env.score : env.dscore;
            else if (n->op == FXA_OP_INPUT)
                v.i = env.coord[n->imm];
            else if (n->type == FXA_FLOAT)
                v.f = tape_case_round(c, n->op == FXA_OP_PARAM ? env.params[n->imm] : n->f);
            else
                v.i = n->op == FXA_OP_PARAM ? fxa__toint(env.params[n->imm]) : n->imm;
            c->vals[i] = v;
        } else if (tape_case_is_wide(p, n)) {
            bool equal = tape_case_element(c, &p->nodes[n->arg[0]]) == tape_case_element(c, &p->nodes[n->arg[1]]);
            c->vals[i].i = equal == (n->op == FXA_OP_EQ);
        } else {
            fxa__val y = fxa__op_eval(n->op, n->type, p->nodes[n->arg[n->op == FXA_OP_SELECT]].type, x);
            if (n->type == FXA_FLOAT) y.f = tape_case_float(c, n, x, y, level);
            c->vals[i] = y;
        }
    }
    free(level);
}
