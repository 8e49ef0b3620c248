/* SPDX-License-Identifier: Apache-2.0
 *
 * A tape as it is stored, and the graph that it is made from.
 *
 *   tape.c      create, destroy, queries: program -> graph -> tape
 *   graph.c     the graph: levels of nodes, k plus something, roots
 *   formula.c   a mask alone as a formula over rows of bits
 *   peephole.c  several nodes as one operation
 *   tape_ops.c  the operations by their letters
 *   lower.c     nodes of each level in order, with registers, as instructions
 *   run.c       the levels at run time
 *   access.c    elements of captured tensors: loads and sums along k, ranges of columns
 *   gather.c    the same element by element
 *   mask.c      a mask alone, as bits
 *   text.c      the tape as text
 *
 * The level of a value says how often it is computed, which follows from the inputs that it needs (lower/depend.h):
 * UNIFORM values once per batch entry, ROW values once per row of a tile (kept in a row over the tile's rows), COLUMN
 * values once per key of a block, SHARED values, which need the head and the key, once per key for the rows of a head,
 * FULL values once per pair. No value has a lower level than its operands. A COLUMN value is a row to SHARED and FULL
 * operations, and a SHARED one to FULL ones; all others are one value to them.
 */
#ifndef FXA_ENGINE_CPU_BYTECODE_TAPE_CODE_H
#define FXA_ENGINE_CPU_BYTECODE_TAPE_CODE_H

#include "tape.h"
#include "tape_ops.h"

#include <string.h>

enum { TAPE_UNIFORM, TAPE_ROW, TAPE_COLUMN, TAPE_SHARED, TAPE_FULL, TAPE_LEVELS };
/* Where a value lives: in a register of a level, or in a row of the caller's. */
enum { TAPE_SCORE = TAPE_LEVELS, TAPE_DSCORE, TAPE_OUT, TAPE_SPACES };

/* ---- The tape ---------------------------------------------------------------------------------------------------- */

typedef struct fxa__tape_place {
    int32_t space;
    int32_t real; /* 1: elements are reals, 0: ints */
    int32_t reg;
} fxa__tape_place;

typedef struct fxa__tape_ins {
    int32_t op;           /* fxa__tape_opcode */
    int32_t dst, a, b, c; /* places of the level; 0 where there is none */
    int32_t aux;          /* LOAD, SCATTER: access; RANGE: range; SUM: param */
} fxa__tape_ins;

/* An element of a tensor for each column. With an axis >= 0, index[axis] is one value, and the index along that axis is
 * sign * k + that value, or that clamped to lo..hi, plus shift; all other indices are one value too. Such elements lie
 * evenly spaced when the keys do. */
typedef struct fxa__tape_access {
    int32_t tensor;
    int32_t index[FXA_MAX_RANK]; /* places */
    int32_t lo, hi, shift;       /* places, lo -1: none */
    uint8_t rank, type;
    uint8_t rows;      /* bit i: index i is a row */
    uint8_t value_row; /* SCATTER: the value is a row */
    int8_t axis, sign;
    uint8_t word; /* of an i64: 1, 2: that half of the element as it is; 0: all of it, saturated */
} fxa__tape_access;

/* Columns where x = `sign * k + offset` is below (or at) the bound, or the bound below (or at) x, or abs(x) below (or
 * at) it, or x equal to it. */
enum { TAPE_BELOW, TAPE_ABOVE, TAPE_NEAR, TAPE_AT };
typedef struct fxa__tape_range {
    int32_t offset, bound; /* places of one int each */
    int8_t sign;
    uint8_t side, strict; /* strict: not at the bound; TAPE_AT has none */
} fxa__tape_range;

/* A mask alone as a formula over rows of bits, in postfix order: leaves push a row, operations take theirs from the end
 * and push one. */
enum {
    TAPE_BITS_RANGE,
    TAPE_BITS_TEST,
    TAPE_BITS_PART,
    TAPE_BITS_NOT,
    TAPE_BITS_AND,
    TAPE_BITS_OR,
    TAPE_BITS_XOR,
    TAPE_BITS_SELECT
};
enum { TAPE_FORMULA_SPLITS = 24, TAPE_FORMULA_TERMS = 3 * TAPE_FORMULA_SPLITS + 2, TAPE_FORMULA_ROWS = 8 };
typedef struct fxa__tape_term {
    uint8_t kind;
    int32_t leaf; /* graph: root; tape: number of the range, of the test, of the part */
} fxa__tape_term;

/* Instructions of FULL that make a leaf of a formula, and the places that rows of it are told apart by. */
typedef struct fxa__tape_part {
    size_t ins, n_ins, watched, n_watched;
} fxa__tape_part;

/* A register that holds an input, a param or a constant. */
typedef struct fxa__tape_leaf {
    uint8_t op, type, level;
    int32_t imm, reg;
    double f;
} fxa__tape_leaf;

typedef struct fxa__tape_level {
    fxa__tape_ins *ins;
    fxa__tape_place *places;
    size_t n_ins, n_places, ins_capacity, places_capacity;
    int32_t n_regs;
} fxa__tape_level;

struct fxa__tape {
    fxa__host *host;
    const fxa__cpu_kernels *kernels;
    bool identity, writes; /* writes: there is an out */
    bool writes_back;      /* JOINT: of the way back */
    size_t n_value;        /* JOINT: instructions of FULL up to the score; else 0 */
    bool alone;            /* FXA__TAPE_MASK_ALONE: a formula, whose parts FULL has the instructions of */
    fxa__tape_level level[TAPE_LEVELS];
    fxa__tape_access *accesses;
    fxa__tape_range *ranges;
    fxa__tape_leaf *leaves;
    int32_t *tests;   /* places of FULL: bools, one value each; not alone: where one is false a row is masked whole */
    int32_t *watched; /* alone: places of FULL that rows are told apart by, part by part */
    fxa__tape_part *parts;
    fxa__tape_term terms[TAPE_FORMULA_TERMS];
    size_t n_accesses, n_ranges, n_leaves, n_tests, n_watched, n_parts, n_terms;
    size_t accesses_capacity, ranges_capacity, leaves_capacity, tests_capacity, watched_capacity, parts_capacity;
};

/* ---- The graph --------------------------------------------------------------------------------------------------- */

enum { TAPE_ARGS = FXA_MAX_RANK + 3, TAPE_PINNED = INT32_MAX };

typedef struct fxa__tape_node {
    uint8_t op; /* fxa_op, or one of bytecode/tape_ops.h */
    uint8_t type, level, n_args;
    uint16_t inputs; /* that it needs: bit i for fxa_input i */
    bool needed;
    bool is_out; /* computed last, straight into out */
    bool value;  /* JOINT: the score needs it */
    bool back;   /* JOINT: derivative or gradients do; set for bytecode/peephole.c */
    bool zero;   /* exactly 0 where dscore is */
    int8_t sign; /* 1, -1: the value is sign * k + offset, as wrapping ints; 0: it is not known to be */
    int8_t axis; /* LOAD: see fxa__tape_access; -1: none. Args are then the indices, and lo, hi, shift when bounded */
    int8_t axis_sign;
    uint8_t word;   /* LOAD: see fxa__tape_access */
    int32_t offset; /* node of a lower level */
    int32_t imm;
    int32_t arg[TAPE_ARGS];
    double f;
    int32_t uses; /* by roots and needed nodes */
    int32_t last; /* the last node of its own level that reads it; TAPE_PINNED: a later level or a root does */
    int32_t reg;
} fxa__tape_node;

/* Something that a tape is run for. */
typedef struct fxa__tape_root {
    uint32_t kind;  /* fxa__out_kind; MASK: one conjunct */
    int32_t slot;   /* DPARAM, DLOAD */
    int32_t node;   /* DLOAD: the value; -1: none */
    int32_t access; /* a node that is no value: DLOAD: a LOAD, for its indices; MASK: a WITHIN or MASK_x
                       instead of `node`; else -1 */
} fxa__tape_root;

typedef struct fxa__tape_graph {
    fxa__host *host;
    const fxa_program *program;
    fxa__tape_node *nodes;
    fxa__tape_root *roots;
    size_t n_nodes, n_roots, nodes_capacity, roots_capacity;
    fxa__tape_term terms[TAPE_FORMULA_TERMS]; /* of a mask alone */
    size_t n_terms;
    int32_t key; /* the input k; -1: not read */
    int32_t one; /* the float 1, for bytecode/peephole.c */
    bool joint;
    bool failed; /* out of memory */
} fxa__tape_graph;

bool fxa__tape_graph_make(fxa__tape_graph *g, fxa__host *host, const fxa_program *program, uint32_t flags);
void fxa__tape_graph_free(fxa__tape_graph *g);
/* The mask at `node` as g's terms, their leaves as roots. */
void fxa__tape_formula_make(fxa__tape_graph *g, int32_t node);
/* Ends the last part of a tape, whose instructions are the last ones: watches all that they read of ROW. False: out of
 * memory. */
bool fxa__tape_formula_watch(fxa__tape *tape);
/* The comparison at `node` as a WITHIN, or with *negated what that is not; false: it is none. */
bool fxa__tape_graph_range(const fxa__tape_graph *g, int32_t node, fxa__tape_node *range, bool *negated);
void fxa__tape_graph_root(fxa__tape_graph *g, uint32_t kind, int32_t slot, int32_t node, int32_t access);
/* Appends a copy; -1 when memory ran out. */
int32_t fxa__tape_graph_add(fxa__tape_graph *g, const fxa__tape_node *node);
/* Values that need a head and a key but no row become SHARED. Comes last: what is joined with what
 * (bytecode/peephole.c) is decided by FULL, so that a value has the same bits wherever it is computed. */
void fxa__tape_graph_share(fxa__tape_graph *g);
/* Which nodes the roots of these kinds (bit i: fxa__out_kind i) need, and how often each is used. */
enum { TAPE_ROOTS_SCORE = 1 << FXA__OUT_SCORE, TAPE_ROOTS_MASK = 1 << FXA__OUT_MASK, TAPE_ROOTS_ALL = 0xff };
void fxa__tape_graph_count(fxa__tape_graph *g, uint32_t kinds);
/* JOINT: sets `value` of all nodes; counts are then those of the score alone. */
void fxa__tape_graph_value(fxa__tape_graph *g);
/* What a node of a program is to tapes: its operation, but for those that mean something else of bools. */
static inline uint8_t fxa__tape_op_of(const fxa__node *n) {
    return n->op == FXA_OP_NOT && n->type == FXA_BOOL ? FXA__TAPE_NOT_BOOL : n->op;
}
/* It stands for its operand: ints and bools are the same to tapes, and with_grad is its value. */
static inline bool fxa__tape_is_through(const fxa_program *p, const fxa__node *n) {
    return n->op == FXA_OP_WITH_GRAD || (n->op == FXA_OP_INT && p->nodes[n->arg[0]].type != FXA_FLOAT);
}
/* One operand of a node at `level` is a row, not one value. */
static inline bool fxa__tape_is_row(int level, int operand_level) {
    return operand_level == level || operand_level >= TAPE_COLUMN;
}
/* The value may differ between the keys of a block. */
static inline bool fxa__tape_has_keys(int level) { return level >= TAPE_COLUMN; }

/* The opcode of an operation for operands of these letters; -1: there is none. */
int32_t fxa__tape_find(uint32_t op, char d, const char *letters);
void fxa__tape_peephole(fxa__tape_graph *g);
fxa_status fxa__tape_lower(fxa__tape_graph *g, fxa__tape *tape, fxa_error *err);

/* ---- Run --------------------------------------------------------------------------------------------------------- */

/* Columns begin..end of a range; begin < 0: no stretch. */
typedef struct fxa__tape_ends {
    int64_t begin, end;
} fxa__tape_ends;

/* The head of scratch; filled by fxa__tape_batch. */
typedef struct fxa__tape_state {
    char *base[TAPE_LEVELS];   /* registers */
    size_t pitch[TAPE_LEVELS]; /* bytes from one to the next */
    char *spare[3];            /* score, dscore, out for rows that are no whole number of steps */
    uintptr_t *fixed;          /* places of FULL: what is the same for all rows */
    void **at;                 /* places of the level that runs */
    int32_t *k;                /* keys of the block */
    uint64_t *bits;            /* alone: rows of the parts, then TAPE_FORMULA_ROWS that a formula is worked out in */
    fxa__tape_ends *ends;      /* alone: columns of the ranges in the last row */
    uint8_t *moved;            /* alone, by row: a part, or a test, may differ from the row before */
    int64_t *until;            /* alone, by row: in rows up to this one no part or test does, and ranges move evenly */
    bool ranges_move;          /* alone: a range may, too */
    int64_t step;              /* k[i] = k[0] + i * step, step > 0; 0: anything */
    const int32_t *heads;      /* of the rows, where there are SHARED values; else NULL */
    int32_t head;              /* whose SHARED values the registers hold, */
    bool shared;               /* if they hold any of this block */
    int64_t first;             /* column of the last row, for its way back */
    bool far;                  /* rows read from a tensor that no near cache holds */
} fxa__tape_state;

/* The places of a row or level that runs. */
typedef struct fxa__tape_at {
    int level;
    const fxa__tape_run *run;
    const fxa__tape_state *state;
    void **at;
    int64_t first, n;
} fxa__tape_at;

/* Half `word` (1 or 2) of n elements of 64 bits, `stride` elements apart. */
static inline void fxa__tape_words(const void *data, int64_t stride, int word, int64_t n, int32_t *dst) {
    const char *from = (const char *)data + (size_t)(word - 1) * sizeof *dst;
    for (int64_t i = 0; i < n; i++) memcpy(&dst[i], from + i * stride * (int64_t)sizeof(int64_t), sizeof *dst);
}
/* Elements into dst; returns where they are: dst, or with `may_alias` the tensor itself when it holds them as they must
 * be. */
void *fxa__tape_access_load(const fxa__tape_at *r, const fxa__tape_access *access, void *dst, bool may_alias);
/* Sends for the elements, where they lie one after the other. */
void fxa__tape_access_prefetch(const fxa__tape_at *r, const fxa__tape_access *access);
void fxa__tape_access_add(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore);
/* What the axes with one index for all columns add to offsets; FXA__TAPE_OUTSIDE when one is outside. */
int64_t fxa__tape_gather_base(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view);
/* The same for any indices; see bytecode/gather.c. */
void fxa__tape_gather(const fxa__tape_at *r, const fxa__tape_access *access, void *dst);
void fxa__tape_scatter(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore);
/* Places of FULL for a row. */
void fxa__tape_set_places(const fxa__tape_at *r, int64_t row, const void *score, const void *dscore, void *out);
/* Alone: compares n rows, whose places of ROW are filled, with the ones before them. */
void fxa__tape_mask_rows(fxa__tape_run *run, int64_t n);
/* The instructions of a part, for the row whose places are set. */
void fxa__tape_run_part(const fxa__tape_at *r, const fxa__tape_part *part);
/* Of the n columns from `first` on, those begin..end that are in the range, or none where begin >= end, which says on
 * which side they would be: both ends move one way with offset and bound, and stay at 0 or n beyond. False: it wraps
 * around, or keys do not lie evenly. */
bool fxa__tape_range_ends(const fxa__tape_state *s, const fxa__tape_range *range, int32_t offset, int32_t bound,
                          int64_t first, int64_t n, int64_t *begin, int64_t *end);
/* The same, 0 and 0 where there are none; false: they need not be one stretch. */
bool fxa__tape_range_columns(const fxa__tape_state *s, const fxa__tape_range *range, int32_t offset, int32_t bound,
                             int64_t first, int64_t n, int64_t *begin, int64_t *end);
/* out = -inf outside of the range. */
void fxa__tape_apply_range(const fxa__tape_at *r, const fxa__tape_range *range, void *out);

#endif
