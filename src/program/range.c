/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis: classifies a mask over a box of coordinates as false everywhere, true everywhere, or unknown. The
 * analysis makes one pass over the nodes that the mask depends on, operands first; range.h has what is stored for each
 * node.
 *
 * The analysis is sound: wrapping, division by 0, loads out of bounds, NaN and float rounding are taken into account.
 * It is exact (returns EMPTY or FULL whenever the mask is false or true everywhere) for comparisons of affine ints, of
 * their floor divisions and remainders by constants and of absolute values, if no int wraps and one of these holds:
 *   - each coordinate occurs once, or no division, remainder or absolute value occurs
 *   - only one coordinate varies, over at most 256 values
 *   - the comparison is == or !=, and only two coordinates vary
 * The analysis is also exact for bounds on one affine form combined by and, or, not, xor and select, and for other
 * logic in which one operand decides the result.
 */
#include "range.h"

#include "../base/float_state.h"
#include "../base/num.h"

#include <string.h>

enum {
    RANGE_MAX_ATOMS = 1024,
    /* maximum steps per node; a step reads a bound or tensor element, or tries a value of a coordinate */
    RANGE_WORK = 256
};

/* Numbers `node` and the nodes that it depends on: sets at[0..node] to each node's number, -1 = not needed for `node`.
 * Returns the number of numbered nodes. */
static int32_t range_mark(const fxa_program *p, int32_t node, int32_t *at) {
    int32_t n = 0;
    for (int32_t i = 0; i < node; i++) at[i] = -1;
    at[node] = 0;
    for (int32_t i = node; i >= 0; i--) {
        if (at[i] < 0) continue;
        at[i] = n++;
        for (int j = 0; j < p->nodes[i].n_args; j++) at[p->nodes[i].arg[j]] = 0;
    }
    return n;
}

static void range_use_small(fxa__range *r, fxa__range_small *small) {
    r->known = small->known;
    r->atoms = small->atoms;
    r->rows = small->rows;
    r->bounds = small->bounds;
    r->max_atoms = r->max_rows = FXA__SMALL_ATOMS;
    r->max_bounds = FXA__SMALL_BOUNDS;
}

/* Makes one allocation for all arrays of r and fills r->at with the node numbers. Returns false if memory ran out. */
static bool range_use_memory(fxa__range *r, int32_t node, int32_t n_known) {
    size_t atoms = (size_t)fxa__min_i64(n_known, RANGE_MAX_ATOMS), n = (size_t)n_known;
    size_t at = ((size_t)node + 4) / 4 * 4 * sizeof *r->at, known = n * sizeof *r->known;
    r->memory_size = at + known + atoms * (sizeof *r->atoms + sizeof *r->rows + 2 * sizeof *r->bounds);
    r->memory = fxa__alloc(r->p->host, r->memory_size);
    if (r->memory == NULL) return false;
    char *next = r->memory;
    r->at = (int32_t *)(void *)next;
    r->known = (fxa__known *)(void *)(next += at);
    r->atoms = (fxa__atom *)(void *)(next += known);
    r->rows = (fxa__row *)(void *)(next += atoms * sizeof *r->atoms);
    r->bounds = (fxa__bound *)(void *)(next += atoms * sizeof *r->rows);
    r->max_atoms = r->max_rows = (int32_t)atoms;
    r->max_bounds = 2 * (int32_t)atoms;
    range_mark(r->p, node, r->at);
    return true;
}

/* Places the arrays of the range analysis in *small if they fit, else in an allocation. Returns false if memory ran
 * out. */
static bool range_allocate(fxa__range *r, fxa__range_small *small, int32_t node) {
    int32_t needed = node + 1;
    if (node < FXA__SMALL_PROGRAM) {
        r->at = small->at;
        needed = range_mark(r->p, node, small->at);
        if (needed <= FXA__SMALL_NODES) {
            range_use_small(r, small);
            return true;
        }
    }
    return range_use_memory(r, node, needed);
}

/* Returns the initial value of fxa__range.work for the analysis of a node. */
static int64_t range_work(int32_t node) { return RANGE_WORK * ((int64_t)node + 64); }

bool fxa__range_open(fxa__range *r, fxa__range_small *small, const fxa_program *p, int32_t node,
                     const fxa_tile_bounds *box, const double *params, const fxa_tensor_range *tensors) {
    *r = (fxa__range){.p = p, .box = box, .params = params, .tensors = tensors};
    if (!range_allocate(r, small, node)) return false;
    memset(r->atom_bucket, -1, sizeof r->atom_bucket);
    memset(r->row_bucket, -1, sizeof r->row_bucket);
    r->work = range_work(node);
    for (int32_t i = 0; i <= node; i++) {
        if (r->at[i] < 0) continue;
        fxa__known *out = fxa__range_of(r, i);
        switch (p->nodes[i].type) {
        case FXA_INT: fxa__range_int(r, i, &out->i); break;
        case FXA_BOOL: fxa__range_bool(r, i, &out->t); break;
        default: fxa__range_float(r, i, &out->f); break;
        }
    }
    return true;
}

void fxa__range_close(fxa__range *r) { fxa__free(r->p->host, r->memory, r->memory_size); }

/* Returns true if the box contains no point. */
static bool range_is_empty(const fxa_tile_bounds *box) {
    for (uint32_t i = 0; i < FXA_INPUT_COUNT; i++)
        if (fxa__input_type(i) == FXA_INT && box->lo[i] > box->hi[i]) return true;
    return false;
}

fxa_tile_class fxa__program_classify(const fxa_program *program, const fxa_tile_bounds *box, const double *params,
                                     const fxa_tensor_range *tensors, uint64_t *steps) {
    if (program == NULL) return FXA_TILE_FULL;
    if (box == NULL) return FXA_TILE_MIXED;
    int32_t mask = fxa__program_output(program, FXA__OUT_MASK);
    if (range_is_empty(box)) return FXA_TILE_EMPTY; /* the box contains no point */
    if (mask < 0) return FXA_TILE_FULL;

    fxa__range_small small;
    fxa__range r;
    fxa_tile_class tile = FXA_TILE_MIXED;
    if (fxa__range_open(&r, &small, program, mask, box, params, tensors)) {
        fxa__truth t = fxa__range_of(&r, mask)->t;
        tile = t.yes == FXA__NEVER ? FXA_TILE_EMPTY : t.no == FXA__NEVER ? FXA_TILE_FULL : FXA_TILE_MIXED;
        if (steps) *steps += (uint64_t)(range_work(mask) - r.work);
    }
    fxa__range_close(&r);
    return tile;
}

fxa_tile_class fxa_program_classify(const fxa_program *program, const fxa_tile_bounds *box, const double *params,
                                    const fxa_tensor_range *tensors) {
    FXA__FLOAT_SCOPE;
    return fxa__program_classify(program, box, params, tensors, NULL);
}

bool fxa__program_int_range(const fxa_program *p, int32_t node, const fxa_tile_bounds *box, const double *params,
                            const fxa_tensor_range *tensors, int64_t *lo, int64_t *hi, uint64_t *steps) {
    fxa__range_small small;
    fxa__range r;
    if (p->nodes[node].type == FXA_FLOAT || range_is_empty(box)) return false;
    if (!fxa__range_open(&r, &small, p, node, box, params, tensors)) return false;
    const fxa__known *x = fxa__range_of(&r, node);
    if (p->nodes[node].type == FXA_INT) {
        *lo = fxa__set_lo(&x->i.set);
        *hi = fxa__set_hi(&x->i.set);
    } else {
        *lo = x->t.no == FXA__NEVER;
        *hi = x->t.yes != FXA__NEVER;
    }
    *steps += (uint64_t)(range_work(node) - r.work);
    fxa__range_close(&r);
    return true;
}
