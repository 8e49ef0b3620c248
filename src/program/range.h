/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis inside: what a program's ints, bools and floats can be over a box of coordinates. range.c drives it,
 * properties.c reads it; everybody else uses fxa_program_classify and fxa__program_int_range.
 *
 * Ints are affine forms over atoms. An atom is a coordinate that is not a single value in the box, a floor-division,
 * modulo or absolute value of a form, or a node nothing more is known of; it has a set of values, and it is dense when
 * it takes every value of that set. A form whose atoms are dense and depend on different coordinates is exact: its
 * smallest and largest values are attained, and mostly all between. Point coordinates and known params are folded into
 * the constants first, so forms that differ only by them are the same form.
 *
 * Bools are two lists of bounds, "if true then form in set, and ..." and "if false then ...". A list that contains an
 * empty set is FXA__NEVER: the bool is decided. And, or, not, xor and select work on the lists, so that bounds on the
 * same form meet wherever in the expression they stand.
 *
 * All functions are sound whatever runs out: a missing atom, form, bound or step of work only makes the answer less
 * precise. So the time of an analysis is bounded by the number of nodes.
 */
#ifndef FXA_PROGRAM_RANGE_H
#define FXA_PROGRAM_RANGE_H

#include "program.h"
#include "span_rules.h"

/* ---- Sets of whole numbers (range_set.c) ------------------------------------------------------------------------- */

#define FXA__SET_PIECES 4
#define FXA__INF ((int64_t)1 << 61) /* no finite bound is as large */

typedef struct fxa__set { /* ascending pieces, at least one number between two of them; none: empty */
    int32_t n;
    fxa__span at[FXA__SET_PIECES];
} fxa__set;

fxa__set fxa__set_of(int64_t lo, int64_t hi); /* empty when lo > hi */
/* Adds lo..hi. False when pieces ran out and the narrowest gap was filled: the set is then too large. */
bool fxa__set_add(fxa__set *s, int64_t lo, int64_t hi);
fxa__set fxa__set_meet(const fxa__set *a, const fxa__set *b);
fxa__set fxa__set_join(const fxa__set *a, const fxa__set *b);
bool fxa__set_has(const fxa__set *a, const fxa__set *part); /* is every number of part in a */
static inline int64_t fxa__set_lo(const fxa__set *s) { return s->at[0].lo; }
static inline int64_t fxa__set_hi(const fxa__set *s) { return s->at[s->n - 1].hi; }
static inline bool fxa__set_is_one(const fxa__set *s) { return s->n == 1 && s->at[0].lo == s->at[0].hi; }

/* ---- Forms and atoms (range_form.c) ------------------------------------------------------------------------------ */

#define FXA__AFFINE_TERMS 6

typedef struct fxa__affine { /* c + sum of coef[i] * atom[i]; atoms ascending, no coef 0 */
    int64_t c;
    int64_t coef[FXA__AFFINE_TERMS];
    int32_t atom[FXA__AFFINE_TERMS];
    int32_t n;
} fxa__affine;

typedef enum fxa__atom_kind {
    FXA__ATOM_INPUT, /* id: fxa_input */
    FXA__ATOM_NODE,  /* id: node; what the node is, without structure */
    FXA__ATOM_DIV,   /* form // d, d > 1 */
    FXA__ATOM_MOD,   /* form % d, d > 1 */
    FXA__ATOM_ABS,   /* abs(form) */
    FXA__ATOM_WRAP   /* form, wrapped to 32 bits; d is 2^32 */
} fxa__atom_kind;

typedef struct fxa__atom {
    fxa__affine form; /* over atoms before this one; empty for INPUT and NODE */
    fxa__set set;
    int64_t d;
    int32_t id;
    uint32_t support; /* bit i: depends on fxa_input i (only inputs that are not single values in the box) */
    int32_t next;     /* of its bucket */
    uint8_t kind;
    bool dense;
} fxa__atom;

typedef struct fxa__row { /* a form that bounds speak of: constant 0, coefs without common factor, the first > 0 */
    fxa__affine form;
    fxa__set set;
    uint32_t support;
    int32_t next; /* of its bucket */
    bool dense;
} fxa__row;

typedef struct fxa__int { /* an int node */
    fxa__affine form;     /* has_form: the value is the form modulo 2^32 ... */
    fxa__set set;         /* within 32 bits, never empty */
    uint32_t support;
    bool has_form;
    bool exact; /* ... and equal to it without wrapping */
    bool dense; /* every number of set is a value */
} fxa__int;

enum { FXA__WIDE_VALUES = 8 };
typedef struct fxa__wide { /* whole elements of an i64 tensor that a load may give */
    int64_t lo, hi;
    int32_t n; /* how many different ones; -1: more than are listed, or not known which */
    int64_t value[FXA__WIDE_VALUES];
} fxa__wide;

#define FXA__ANY (-1)   /* nothing is known */
#define FXA__NEVER (-2) /* cannot be */
typedef struct fxa__truth {
    int32_t yes, no; /* what follows when true, when false: first bound of a list, ANY or NEVER */
} fxa__truth;
typedef struct fxa__bound { /* row in set; an earlier bound of a list hides a later one on the same row */
    int32_t row, next;
    fxa__set set;
} fxa__bound;

typedef union fxa__known { /* by the type of the node */
    fxa__int i;
    fxa__real f;
    fxa__truth t;
} fxa__known;

/* ---- One analysis (range.c) -------------------------------------------------------------------------------------- */

enum { FXA__SMALL_PROGRAM = 256, FXA__SMALL_NODES = 96, FXA__SMALL_ATOMS = 64, FXA__SMALL_BOUNDS = 160 };
typedef struct fxa__range_small { /* room for usual programs, so that they allocate nothing */
    int32_t at[FXA__SMALL_PROGRAM];
    fxa__known known[FXA__SMALL_NODES];
    fxa__atom atoms[FXA__SMALL_ATOMS];
    fxa__row rows[FXA__SMALL_ATOMS];
    fxa__bound bounds[FXA__SMALL_BOUNDS];
} fxa__range_small;

enum { FXA__RANGE_BUCKETS = 128 }; /* a power of two: atoms and rows are found by hash */

typedef struct fxa__range {
    const fxa_program *p;
    const fxa_tile_bounds *box;
    const double *params;            /* may be NULL */
    const fxa_tensor_range *tensors; /* may be NULL */
    int32_t *at;                     /* node -> position in known, or -1 */
    fxa__known *known;
    fxa__atom *atoms;
    fxa__row *rows;
    fxa__bound *bounds;
    int32_t n_atoms, n_rows, n_bounds, max_atoms, max_rows, max_bounds;
    int32_t atom_bucket[FXA__RANGE_BUCKETS], row_bucket[FXA__RANGE_BUCKETS]; /* the last one of each, or -1 */
    int64_t work; /* steps left for what may take long: lists of bounds, walks along rows; so many for each node */
    void *memory; /* NULL: all in a fxa__range_small */
    size_t memory_size;
} fxa__range;

/* Analyses `node` and what it needs. False: memory ran out, nothing is known. Close in either case. */
bool fxa__range_open(fxa__range *r, fxa__range_small *small, const fxa_program *p, int32_t node,
                     const fxa_tile_bounds *box, const double *params, const fxa_tensor_range *tensors);
void fxa__range_close(fxa__range *r);
static inline fxa__known *fxa__range_of(const fxa__range *r, int32_t node) { return &r->known[r->at[node]]; }

/* range_form.c. The functions that return bool give false when the result does not fit; out is then unspecified. */
fxa__affine fxa__affine_const(int64_t c);
bool fxa__affine_add(const fxa__affine *a, const fxa__affine *b, int64_t times, fxa__affine *out); /* a + times * b */
void fxa__affine_negate(fxa__affine *f);
fxa__affine fxa__affine_without(const fxa__affine *f, int i);                                 /* f but for its term i */
bool fxa__affine_same(const fxa__affine *a, const fxa__affine *b, uint64_t constants_modulo); /* 0: exactly */
bool fxa__affine_range(const fxa__range *r, const fxa__affine *f, fxa__set *set, bool *dense);
uint32_t fxa__affine_support(const fxa__range *r, const fxa__affine *f);
/* f = factor * out + f's constant, out as rows are; factor may be negative, 0 when f is constant. */
int64_t fxa__affine_primitive(const fxa__affine *f, fxa__affine *out);
bool fxa__affine_atom(fxa__range *r, const fxa__atom *a, fxa__affine *out); /* the atom, found or added, as a form */
/* The first load seen of the element that load `node` gives: the same tensor at indices of the same form. */
int32_t fxa__affine_load(const fxa__range *r, int32_t node);
bool fxa__affine_div(fxa__range *r, const fxa__affine *f, int64_t d, fxa__affine *out); /* f // d, d > 0 */
bool fxa__affine_mod(fxa__range *r, const fxa__affine *f, int64_t d, fxa__affine *out);
bool fxa__affine_abs(fxa__range *r, const fxa__affine *f, fxa__affine *out); /* f takes values above 0 */
/* Fewer terms, where a quotient or remainder stands beside what it is of: q - q % 8 is 8 * (q // 8). */
void fxa__affine_tidy(fxa__range *r, fxa__affine *f);
int32_t fxa__affine_row(fxa__range *r, const fxa__affine *f); /* f is primitive; -1: no room */
/* Can the row take a value in the set? The truth when the row is exact, else true when in doubt. */
bool fxa__row_meets(fxa__range *r, int32_t row, const fxa__set *set);

/* range_int.c, range_float.c, range_load.c, range_bool.c: one node from its operands. */
void fxa__range_int(fxa__range *r, int32_t node, fxa__int *out);
void fxa__range_float(fxa__range *r, int32_t node, fxa__real *out);
void fxa__range_bool(fxa__range *r, int32_t node, fxa__truth *out);
fxa__set fxa__range_load(fxa__range *r, int32_t node); /* int and bool tensors */
/* i64 tensors whose elements may be read, unsaturated: at least one; false: nothing is known. */
bool fxa__range_load_wide(fxa__range *r, int32_t node, fxa__wide *out);
/* Float tensors: the elements in f64, and whether all engines see exactly those; false: nothing is known. */
bool fxa__range_load_real(fxa__range *r, int32_t node, fxa__real *out, bool *exact);

fxa__int fxa__int_const(int64_t x);
bool fxa__int_form(fxa__range *r, int32_t node,
                   fxa__affine *out);            /* exact form of an int node, itself an atom if need be */
fxa__set fxa__int32_of_real(const fxa__real *x); /* int(x) */

#endif
