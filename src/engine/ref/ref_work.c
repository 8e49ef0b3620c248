/* SPDX-License-Identifier: Apache-2.0
 *
 * Workspace of the reference engine, and access to operands of any dtype and strides as rows of f64. fxa__ref_layout
 * computes both the size of the workspace and the pointers into it, so size and pointers cannot disagree.
 */
#include "ref.h"

#include "../../base/dtype.h"
#include "../../problem/scales.h"
#include "../../problem/work_estimate.h"

/* Returns a pointer to rows * columns doubles of the workspace; NULL if c only adds up sizes. */
static double *ref_carve_matrix(fxa__carver *c, int64_t rows, int64_t columns) {
    return fxa__carve_matrix(c, rows, columns, sizeof(double));
}

/* Returns the number of nodes of the largest program that a run evaluates. */
static int64_t ref_largest_program(const fxa__problem *p, const fxa_program *derivative) {
    int64_t n = p->program->n_nodes;
    if (derivative) n = fxa__max_i64(n, derivative->n_nodes);
    if (p->bprop) n = fxa__max_i64(n, p->bprop->n_nodes);
    return n;
}

/* Lays out a dense f64 sum for each captured tensor whose gradient is requested. If `sums` is NULL, only counts the
 * bytes. */
static void ref_carve_sums(fxa__carver *c, const fxa__problem *p, fxa__ref_sum *sums) {
    for (int32_t t = 0; t < p->program->n_tensors; t++) {
        const fxa_capture *capture = &p->in.captures[t];
        fxa__ref_sum sum = {.view = {.rank = p->program->tensors[t].rank}};
        int64_t n = 1;
        for (int32_t i = sum.view.rank - 1; i >= 0; i--) {
            sum.view.size[i] = capture->size[i];
            sum.view.stride[i] = n;
            /* the product overflows only if another size is 0, and then the view has no elements */
            if (!fxa__mul_i64(n, capture->size[i], &n)) n = 0;
        }
        if (capture->grad) sum.sum = ref_carve_matrix(c, n, 1);
        if (sums) sums[t] = sum;
    }
}

bool fxa__ref_layout(const fxa__problem *p, const fxa_program *derivative, fxa__carver c, fxa__ref *r, size_t *bytes) {
    r->derivative = derivative;
    r->vals = fxa__carve(&c, ref_largest_program(p, derivative), sizeof(fxa__val));
    int64_t keys = fxa__entries_with_work(p) ? p->in.sk : 0;
    r->k = ref_carve_matrix(&c, keys, p->in.d_qk);
    r->v = ref_carve_matrix(&c, keys, p->in.d_v);
    r->q = ref_carve_matrix(&c, 1, p->in.d_qk);
    r->o = ref_carve_matrix(&c, 1, p->in.d_v);
    if (p->in.pass == FXA_FORWARD) {
        r->s = ref_carve_matrix(&c, 1, keys);
        r->o_old = ref_carve_matrix(&c, 1, p->in.d_v);
    } else {
        int64_t rows = fxa__ref_key_rows(p);
        r->dout = ref_carve_matrix(&c, 1, p->in.d_v);
        r->dq = ref_carve_matrix(&c, 1, p->in.d_qk);
        r->dk = ref_carve_matrix(&c, rows, p->in.d_qk);
        r->dv = ref_carve_matrix(&c, rows, p->in.d_v);
        r->dsink = ref_carve_matrix(&c, 1, p->in.flags & FXA_GRAD_SINKS ? p->in.hq : 0);
        r->dparams = ref_carve_matrix(&c, 1, p->program->n_params);
        r->dtensor = fxa__carve(&c, p->program->n_tensors, sizeof(fxa__ref_sum));
        ref_carve_sums(&c, p, r->dtensor);
    }
    *bytes = c.used;
    return !c.failed;
}

int64_t fxa__ref_key_rows(const fxa__problem *p) {
    if (!(p->in.flags & FXA_PAGED)) return fxa__entries_with_work(p) ? p->in.sk : 0;
    return p->in.n_pages * p->in.page_size; /* cannot overflow: K and V are in memory with as many rows */
}

int64_t fxa__ref_key_row(const fxa__ref *r, int64_t k) {
    const fxa_problem *p = &r->p->in;
    if (!(p->flags & FXA_PAGED)) return k;
    int64_t size = p->page_size, pages_per_batch = fxa__div_up(p->sk, size);
    const int32_t *pages = r->bound->slot[FXA_SLOT_PAGES];
    return pages[r->b * pages_per_batch + k / size] * size + k % size;
}

/* Returns true if the rows of the slot's operand are keys, false if they are query rows. */
static bool ref_is_key(fxa_slot slot) {
    return slot == FXA_SLOT_K || slot == FXA_SLOT_V || slot == FXA_SLOT_DK || slot == FXA_SLOT_DV;
}

void fxa__ref_load(const fxa__ref *r, fxa_slot slot, int64_t h, int64_t s, double *out) {
    int64_t d;
    const fxa_operand *t = fxa__row_operand(&r->p->in, slot, &d);
    int64_t at = fxa__row_offset(r->p, &r->seq, t, ref_is_key(slot), r->bound, r->b, h, s);
    double factor = (int)slot < FXA__SCALED_SLOTS ? r->bound->load[slot] : 1;
    for (int64_t i = 0; i < d; i++)
        out[i] = fxa__load_f64(r->bound->slot[slot], t->dtype, at + i * t->stride[3]) * factor;
}

void fxa__ref_store(const fxa__ref *r, fxa_slot slot, int64_t h, int64_t s, const double *x, bool add) {
    int64_t d;
    const fxa_operand *t = fxa__row_operand(&r->p->in, slot, &d);
    int64_t at = fxa__row_offset(r->p, &r->seq, t, ref_is_key(slot), r->bound, r->b, h, s);
    for (int64_t i = 0; i < d; i++, at += t->stride[3]) fxa__ref_store_one(r, slot, t->dtype, at, x[i], add);
}

/* `add` and an fp8 scale do not occur together: the validator refuses accumulation with scales. */
void fxa__ref_store_one(const fxa__ref *r, fxa_slot slot, uint32_t dtype, int64_t at, double x, bool add) {
    void *data = r->bound->slot[slot];
    if (r->bound->amax[slot]) fxa__amax_add(r->bound->amax[slot], fabs(x));
    fxa__store_f64(data, dtype, at, (add ? fxa__load_f64(data, dtype, at) + x : x) * r->bound->store[slot]);
}

void fxa__ref_enter_batch(fxa__ref *r, int64_t b) {
    r->b = b;
    r->seq = fxa__seq_get(r->p, r->bound, b);
    r->env.coord[FXA_INPUT_B] = fxa__coord(r->p, r->bound, FXA_INPUT_B, b);
    r->env.coord[FXA_INPUT_Q_LEN] = r->seq.q_len_seen;
    r->env.coord[FXA_INPUT_K_LEN] = r->seq.k_len_seen;
    r->env.coord[FXA_INPUT_HEADS] = r->seq.heads_seen;
}

void fxa__ref_load_keys(fxa__ref *r, int64_t hkv) {
    for (int64_t k = 0; k < r->seq.k_len; k++) {
        fxa__ref_load(r, FXA_SLOT_K, hkv, k, r->k + k * r->p->in.d_qk);
        fxa__ref_load(r, FXA_SLOT_V, hkv, k, r->v + k * r->p->in.d_v);
    }
}
