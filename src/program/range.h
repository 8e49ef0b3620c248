/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of range analysis: the values that a program's ints, bools and floats can have over a box of coordinates.
 * range.c runs the analysis, properties.c and linear.c read the results; other code uses fxa_program_classify and
 * fxa__program_int_range.
 *
 * Ints are affine forms over *atoms*. An atom is
 *   - a coordinate that has more than one value in the box,
 *   - a floor division, modulo or absolute value of an affine form, or
 *   - any other int node; only a set of its values is known.
 * An atom has a set of values and is *dense* if it takes every value of that set. A form whose atoms are dense and
 * depend on different coordinates attains its smallest and largest value, and usually all values between them.
 * Coordinates with a single value and known params are folded into the constants first, so that forms which differ only
 * in such coordinates and params are equal.
 *
 * The analysis result of a bool is two lists of bounds: "if true, then form in set, and ..." and "if false, then ...".
 * A list with an empty set is FXA__NEVER: the bool cannot have that value. The logical operations combine the lists, so
 * that bounds on the same form are intersected wherever they are in the expression.
 *
 * All capacities are fixed: if there is no space for another atom, form or bound, or the steps of work are used up, the
 * result stays sound and becomes less precise. The time of an analysis is therefore linear in the number of nodes.
 */
#ifndef FXA_PROGRAM_RANGE_H
#define FXA_PROGRAM_RANGE_H

#include "program.h"
#include "interval_rules.h"

/* ---- Sets of integers (range_set.c) ------------------------------------------------------------------------------ */

#define FXA__SET_PIECES 4
#define FXA__INF ((int64_t)1 << 61) /* larger than every finite bound */

/* A set as ascending, disjoint, non-adjacent intervals; n 0 = empty. */
typedef struct fxa__set {
    int32_t n;
    fxa__interval at[FXA__SET_PIECES];
} fxa__set;

fxa__set fxa__set_of(int64_t lo, int64_t hi); /* returns lo..hi; empty if lo > hi */
/* Adds lo..hi. Returns false if the set got more than FXA__SET_PIECES intervals, so that the narrowest gap was filled:
 * the set is then a superset. */
bool fxa__set_add(fxa__set *s, int64_t lo, int64_t hi);
/* fxa__set_intersection and fxa__set_union return a superset if the exact result has more than FXA__SET_PIECES
 * intervals. */
fxa__set fxa__set_intersection(const fxa__set *a, const fxa__set *b);
fxa__set fxa__set_union(const fxa__set *a, const fxa__set *b);
bool fxa__set_contains(const fxa__set *a, const fxa__set *part); /* returns true if part is a subset of a */
static inline int64_t fxa__set_lo(const fxa__set *s) { return s->at[0].lo; }
static inline int64_t fxa__set_hi(const fxa__set *s) { return s->at[s->n - 1].hi; }
static inline bool fxa__set_is_one(const fxa__set *s) { return s->n == 1 && s->at[0].lo == s->at[0].hi; }

/* ---- Forms and atoms (range_form.c) ------------------------------------------------------------------------------ */

#define FXA__AFFINE_TERMS 6

/* An affine form: c + sum of coef[i] * (value of atom number atom[i]). atom[] is ascending, and no coef is 0. */
typedef struct fxa__affine {
    int64_t c;
    int64_t coef[FXA__AFFINE_TERMS];
    int32_t atom[FXA__AFFINE_TERMS];
    int32_t n;
} fxa__affine;

typedef enum fxa__atom_kind {
    FXA__ATOM_INPUT, /* an input of type int (a coordinate, a length); id: its fxa_input */
    FXA__ATOM_NODE,  /* an int node of which only a set of values is known; id: index of the node */
    FXA__ATOM_DIV,   /* floor division of an affine form: form // d, d > 1 */
    FXA__ATOM_MOD,   /* remainder of an affine form: form % d, d > 1 */
    FXA__ATOM_ABS,   /* absolute value of an affine form */
    FXA__ATOM_WRAP   /* an affine form wrapped to 32 bits; d is 2^32 */
} fxa__atom_kind;

typedef struct fxa__atom {
    /* operand of a DIV, MOD, ABS or WRAP, a form of atoms with smaller indices; empty for INPUT and NODE */
    fxa__affine form;
    fxa__set set;     /* superset of the atom's values */
    int64_t d;        /* divisor of DIV and MOD */
    int32_t id;       /* INPUT: fxa_input; NODE: index of the node */
    uint32_t support; /* bit i: the atom depends on fxa_input i, which has more than one value in the box */
    int32_t next;     /* index of the next atom in the same hash bucket; -1 = none */
    uint8_t kind;     /* fxa__atom_kind */
    bool dense;       /* true = the atom takes every value in `set` */
} fxa__atom;

/* An entry of fxa__range.rows: an affine form to which bounds refer by the index of the entry. The form is primitive:
 * the constant is 0, the coefs have no common factor, and the first coef is > 0. */
typedef struct fxa__row {
    fxa__affine form;
    fxa__set set;     /* superset of the values of the form */
    uint32_t support; /* bit i: the form depends on fxa_input i, which has more than one value in the box */
    int32_t next;     /* index of the next form in the same hash bucket; -1 = none */
    bool dense;       /* true = the form takes every value in `set` */
} fxa__row;

/* Analysis result of an int node. */
typedef struct fxa__int {
    fxa__affine form; /* if has_form: an affine form that equals the node's value modulo 2^32 */
    fxa__set set;     /* superset of the node's values, within 32 bits, never empty */
    uint32_t support; /* bit i: the value depends on fxa_input i, which has more than one value in the box */
    bool has_form;
    bool exact; /* true = the value equals `form` without wrapping */
    bool dense; /* true = the node takes every value in `set` */
} fxa__int;

enum { FXA__WIDE_VALUES = 8 };
/* The 64-bit elements of an i64 tensor that a load may read. */
typedef struct fxa__wide {
    int64_t lo, hi;
    int32_t n; /* number of distinct elements in `value`; -1 = too many or unknown */
    int64_t value[FXA__WIDE_VALUES];
} fxa__wide;

/* Value of fxa__truth.yes or fxa__truth.no in place of a list of bounds: no bound is known. */
#define FXA__ANY (-1)
/* Value of fxa__truth.yes: the bool is never true. Value of fxa__truth.no: the bool is never false. */
#define FXA__NEVER (-2)

/* Analysis result of a bool node. */
typedef struct fxa__truth {
    /* yes: list of the bounds that hold if the bool is true
     * no: list of the bounds that hold if the bool is false
     * A list is given by the index of its first bound, or is FXA__ANY or FXA__NEVER. */
    int32_t yes, no;
} fxa__truth;

/* A bound: the value of an affine form is in `set`. An earlier bound of a list hides a later one on the same form. */
typedef struct fxa__bound {
    /* row: index of the form in fxa__range.rows; next: index of the next bound of the list, FXA__ANY = none */
    int32_t row, next;
    fxa__set set;
} fxa__bound;

/* Analysis result of a node: i, f or t, by the type of the node. */
typedef union fxa__known {
    fxa__int i;
    fxa__real f;
    fxa__truth t;
} fxa__known;

/* ---- One analysis (range.c) -------------------------------------------------------------------------------------- */

enum { FXA__SMALL_PROGRAM = 256, FXA__SMALL_NODES = 96, FXA__SMALL_ATOMS = 64, FXA__SMALL_BOUNDS = 160 };
/* Arrays on the stack for programs of usual size, so that they need no allocation. */
typedef struct fxa__range_small {
    int32_t at[FXA__SMALL_PROGRAM];
    fxa__known known[FXA__SMALL_NODES];
    fxa__atom atoms[FXA__SMALL_ATOMS];
    fxa__row rows[FXA__SMALL_ATOMS];
    fxa__bound bounds[FXA__SMALL_BOUNDS];
} fxa__range_small;

enum { FXA__RANGE_BUCKETS = 128 }; /* size of the hash tables of atoms and of bounded forms, a power of two */

typedef struct fxa__range {
    const fxa_program *p;
    const fxa_tile_bounds *box;
    const double *params;            /* may be NULL */
    const fxa_tensor_range *tensors; /* may be NULL */
    int32_t *at;                     /* [nodes] index in `known`; -1 = not analysed */
    fxa__known *known;
    fxa__atom *atoms;
    fxa__row *rows;
    fxa__bound *bounds;
    int32_t n_atoms, n_rows, n_bounds, max_atoms, max_rows, max_bounds;
    /* [bucket] index of the newest atom (atom_bucket) or of the newest row (row_bucket) in the bucket; -1 = none */
    int32_t atom_bucket[FXA__RANGE_BUCKETS], row_bucket[FXA__RANGE_BUCKETS];
    int64_t work; /* remaining steps; a step reads a bound or tensor element, or tries a value of a coordinate */
    void *memory; /* the allocation; NULL = all arrays are in a fxa__range_small */
    size_t memory_size;
} fxa__range;

/* Analyses `node` and all nodes that the node depends on. Returns false if memory ran out. The caller closes r in
 * either case. */
bool fxa__range_open(fxa__range *r, fxa__range_small *small, const fxa_program *p, int32_t node,
                     const fxa_tile_bounds *box, const double *params, const fxa_tensor_range *tensors);
void fxa__range_close(fxa__range *r);
static inline fxa__known *fxa__range_of(const fxa__range *r, int32_t node) { return &r->known[r->at[node]]; }

/* ---- Operations on forms (range_form.c) --------------------------------------------------------------------------
 * Functions that return bool return false on overflow or if a capacity is exhausted; *out is then unspecified. */
fxa__affine fxa__affine_const(int64_t c);
bool fxa__affine_add(const fxa__affine *a, const fxa__affine *b, int64_t times, fxa__affine *out); /* a + times * b */
void fxa__affine_negate(fxa__affine *f);
fxa__affine fxa__affine_without(const fxa__affine *f, int i); /* returns f without its term i */
/* Sets *set to a superset of the form's values, and *dense to true if the form is known to take every value in *set,
 * else to false. */
bool fxa__affine_range(const fxa__range *r, const fxa__affine *f, fxa__set *set, bool *dense);
/* returns the inputs that f depends on and that have more than one value in the box; bit i: fxa_input i */
uint32_t fxa__affine_support(const fxa__range *r, const fxa__affine *f);
/* Writes the primitive form of f (fxa__row) to *out. Returns a factor, possibly negative, such that f = factor * *out +
 * constant of f; 0 if f is constant. */
int64_t fxa__affine_primitive(const fxa__affine *f, fxa__affine *out);
/* Sets *out to the affine form that consists of the atom *a. Adds *a to r->atoms if no equal atom is there. */
bool fxa__affine_atom(fxa__range *r, const fxa__atom *a, fxa__affine *out);
/* Returns the first load node that reads the same tensor at equal indices as load `node`; `node` itself if no earlier
 * load does. */
int32_t fxa__affine_load(const fxa__range *r, int32_t node);
bool fxa__affine_div(fxa__range *r, const fxa__affine *f, int64_t d, fxa__affine *out); /* f // d, d > 0 */
bool fxa__affine_mod(fxa__range *r, const fxa__affine *f, int64_t d, fxa__affine *out); /* f % d, d > 0 */
/* sets *out to abs(f); f must have a value > 0 */
bool fxa__affine_abs(fxa__range *r, const fxa__affine *f, fxa__affine *out);
/* Shortens an affine form by rewriting remainders as quotients or the reverse: q - q % 8 becomes 8 * (q // 8). */
void fxa__affine_tidy(fxa__range *r, fxa__affine *f);
/* Returns the index of f, a primitive form (see fxa__row), in r->rows. Adds f if it is new; returns -1 if r->rows is
 * full. */
int32_t fxa__affine_row(fxa__range *r, const fxa__affine *f);
/* Returns true if the form r->rows[row] can take a value in the set, and also if this is unknown. */
bool fxa__row_meets(fxa__range *r, int32_t row, const fxa__set *set);

/* ---- Analysis of one node from its operands (range_int.c, range_float.c, range_load.c, range_bool.c) ----------- */
void fxa__range_int(fxa__range *r, int32_t node, fxa__int *out);
void fxa__range_float(fxa__range *r, int32_t node, fxa__real *out);
void fxa__range_bool(fxa__range *r, int32_t node, fxa__truth *out);
/* Returns a superset of the values of a load of ints or bools. */
fxa__set fxa__range_load(fxa__range *r, int32_t node);
/* Sets *out to the 64-bit elements that a load of i64 may read. Returns false if nothing is known. */
bool fxa__range_load_wide(fxa__range *r, int32_t node, fxa__wide *out);
/* Sets *out to the f64 values of a load of floats, and *exact to true if every engine reads exactly these values.
 * Returns false if nothing is known. */
bool fxa__range_load_real(fxa__range *r, int32_t node, fxa__real *out, bool *exact);
/* Sets *out to an affine form that equals an int node without wrapping. If the analysis found no such form, the node
 * becomes an atom, and the form is this atom. */
bool fxa__int_form(fxa__range *r, int32_t node, fxa__affine *out);
fxa__set fxa__int32_of_real(const fxa__real *x); /* returns a superset of the values of int(x) */

#endif
