/* SPDX-License-Identifier: Apache-2.0
 *
 * A tape as it is stored, and the graph that it is made from.
 *
 *   tape.c      create, destroy, properties: program -> graph -> tape
 *   graph.c     the graph: levels of nodes, ints that are k plus something, roots
 *   formula.c   a mask alone as a formula over rows of bits
 *   peephole.c  joins several nodes into one operation
 *   tape_ops.c  finds operations by the letters of their operands
 *   last_use.c  finds the last reader of each value
 *   lower.c     orders the nodes of each level and gives them registers: instructions
 *   run.c       runs the levels
 *   access.c    elements of captured tensors that are evenly spaced: loads, sums, ranges of columns
 *   gather.c    elements of captured tensors at any indices
 *   mask.c      runs a mask alone, as bits
 *   text.c      the tape as text
 *
 * The level of a value is how often it is computed, which follows from the inputs that it needs (lower/depend.h):
 *
 *   UNIFORM   once per batch entry
 *   ROW       once per row of a tile; stored for all rows of the tile
 *   COLUMN    once per key of a block
 *   SHARED    needs the head and the key: once per key for the rows of a head
 *   FULL      once per pair
 *
 * No value has a lower level than its operands. For SHARED and FULL operations a COLUMN value is a row, and for FULL
 * operations a SHARED value is one; all other values are single values for them.
 */
#ifndef FXA_ENGINE_CPU_BYTECODE_TAPE_CODE_H
#define FXA_ENGINE_CPU_BYTECODE_TAPE_CODE_H

#include "tape.h"
#include "tape_ops.h"

#include <string.h>

enum { TAPE_UNIFORM, TAPE_ROW, TAPE_COLUMN, TAPE_SHARED, TAPE_FULL, TAPE_LEVELS };
/* Where a value is stored: in a register of a level, or in a row of the caller. */
enum { TAPE_SCORE = TAPE_LEVELS, TAPE_DSCORE, TAPE_OUT, TAPE_SPACES };

/* ---- The tape ---------------------------------------------------------------------------------------------------- */

typedef struct fxa__tape_place {
    int32_t space;
    int32_t real; /* 1: elements are reals, 0: ints */
    int32_t reg;
} fxa__tape_place;

typedef struct fxa__tape_ins {
    int32_t op;           /* fxa__tape_opcode */
    int32_t dst, a, b, c; /* places of the level; 0 = none */
    int32_t aux;          /* LOAD, SCATTER: index of the access; RANGE: of the range; SUM: of the param */
} fxa__tape_ins;

/* An element of a tensor for each column. With axis >= 0, index[axis] is a single value, and the index along that axis
 * is sign * k + that value, or that clamped to lo..hi, plus shift; all other indices are single values. If the keys are
 * evenly spaced, so are the elements. */
typedef struct fxa__tape_access {
    int32_t tensor;
    int32_t index[FXA_MAX_RANK]; /* places */
    int32_t lo, hi, shift;       /* places; lo -1 = not clamped */
    uint8_t rank, type;
    uint8_t rows;      /* bit i: index i is a row */
    uint8_t value_row; /* SCATTER: the value is a row */
    int8_t axis, sign;
    uint8_t word; /* i64 elements: 1 or 2 = that half of the element unchanged; 0 = all of it, saturated */
} fxa__tape_access;

/* Columns where x = `sign * k + offset` compares with the bound: BELOW x < bound, ABOVE bound < x, NEAR |x| < bound, AT
 * x == bound. Not strict: <= in place of <. */
enum { TAPE_BELOW, TAPE_ABOVE, TAPE_NEAR, TAPE_AT };
typedef struct fxa__tape_range {
    int32_t offset, bound; /* places of single ints */
    int8_t sign;
    uint8_t side, strict; /* strict: the bound is excluded; not used by TAPE_AT */
} fxa__tape_range;

/* A mask alone as a formula over rows of bits, in postfix order: leaves push a row, operations pop their operands and
 * push a row. */
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
    int32_t leaf; /* graph: root; tape: index of the range, test or part */
} fxa__tape_term;

/* A leaf of a formula that instructions of FULL compute, and the places by which rows are compared with the row before.
 * */
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
    bool identity, writes; /* writes: the tape has an out */
    bool writes_back;      /* JOINT: as `writes`, for the derivative */
    size_t n_value;        /* JOINT: instructions of FULL up to the score; else 0 */
    bool alone;            /* FXA__TAPE_MASK_ALONE: the tape is a formula, and FULL has the instructions of its parts */
    fxa__tape_level level[TAPE_LEVELS];
    fxa__tape_access *accesses;
    fxa__tape_range *ranges;
    fxa__tape_leaf *leaves;
    int32_t *tests;   /* places of FULL with single bools. Not alone: if one is false, the entire row is masked */
    int32_t *watched; /* alone: places of FULL by which rows are compared, part by part */
    fxa__tape_part *parts;
    fxa__tape_term terms[TAPE_FORMULA_TERMS];
    size_t n_accesses, n_ranges, n_leaves, n_tests, n_watched, n_parts, n_terms;
    size_t accesses_capacity, ranges_capacity, leaves_capacity, tests_capacity, watched_capacity, parts_capacity;
};

/* ---- The graph --------------------------------------------------------------------------------------------------- */

enum { TAPE_ARGS = FXA_MAX_RANK + 3, TAPE_PINNED = INT32_MAX };

typedef struct fxa__tape_node {
    uint8_t op; /* fxa_op, or one of tape_ops.h */
    uint8_t type, level, n_args;
    uint16_t inputs; /* bit i: needs fxa_input i */
    bool needed;
    bool is_out; /* computed last, directly into out */
    bool value;  /* JOINT: the score needs the node */
    bool back;   /* JOINT: derivative or gradients need the node; set for peephole.c */
    bool zero;   /* exactly 0 where dscore is */
    int8_t sign; /* 1, -1: the value is sign * k + offset, as wrapping ints; 0: unknown */
    int8_t axis; /* LOAD: see fxa__tape_access; -1 = none. Args are then the indices, and lo, hi, shift if clamped */
    int8_t axis_sign;
    uint8_t word;   /* LOAD: see fxa__tape_access */
    int32_t offset; /* node of a lower level */
    int32_t imm;
    int32_t arg[TAPE_ARGS];
    double f;
    int32_t uses; /* uses by roots and needed nodes */
    int32_t last; /* last node of the same level that reads the value; TAPE_PINNED: a later level or a root reads it */
    int32_t reg;
} fxa__tape_node;

/* A result of the tape. */
typedef struct fxa__tape_root {
    uint32_t kind;  /* fxa__out_kind; each conjunct of a MASK is a root */
    int32_t slot;   /* DPARAM, DLOAD: index of the param or tensor */
    int32_t node;   /* DLOAD: the value; -1 = none */
    int32_t access; /* DLOAD: a LOAD, for its indices; MASK: a WITHIN or MASK_x in place of `node`; else -1 */
} fxa__tape_root;

typedef struct fxa__tape_graph {
    fxa__host *host;
    const fxa_program *program;
    fxa__tape_node *nodes;
    fxa__tape_root *roots;
    size_t n_nodes, n_roots, nodes_capacity, roots_capacity;
    fxa__tape_term terms[TAPE_FORMULA_TERMS]; /* formula of a mask alone */
    size_t n_terms;
    int32_t key; /* the input k; -1: not read */
    int32_t one; /* the float 1, for peephole.c */
    bool joint;
    bool failed; /* memory is exhausted */
} fxa__tape_graph;

bool fxa__tape_graph_make(fxa__tape_graph *g, fxa__host *host, const fxa_program *program, uint32_t flags);
void fxa__tape_graph_free(fxa__tape_graph *g);
/* Adds the mask at `node` as terms of g, with their leaves as roots. */
void fxa__tape_formula_make(fxa__tape_graph *g, int32_t node);
/* Completes the last part of a tape, whose instructions are the last ones: records all places of ROW that they read.
 * Returns false if memory is exhausted. */
bool fxa__tape_formula_watch(fxa__tape *tape);
/* Writes the comparison at `node` as a WITHIN; *negated: the pairs are those outside of it. Returns false if the node
 * is no such comparison. */
bool fxa__tape_graph_range(const fxa__tape_graph *g, int32_t node, fxa__tape_node *range, bool *negated);
void fxa__tape_graph_root(fxa__tape_graph *g, uint32_t kind, int32_t slot, int32_t node, int32_t access);
/* Appends a copy. Returns its index; -1 if memory is exhausted. */
int32_t fxa__tape_graph_add(fxa__tape_graph *g, const fxa__tape_node *node);
/* Changes values that need a head and a key but no row to SHARED. Called last, because peephole.c decides by FULL what
 * it joins: so a value has the same bits at both levels. */
void fxa__tape_graph_share(fxa__tape_graph *g);
/* Determines which nodes the roots of these kinds need (bit i: fxa__out_kind i), and how often each is used. */
enum { TAPE_ROOTS_SCORE = 1 << FXA__OUT_SCORE, TAPE_ROOTS_MASK = 1 << FXA__OUT_MASK, TAPE_ROOTS_ALL = 0xff };
void fxa__tape_graph_count(fxa__tape_graph *g, uint32_t kinds);
/* JOINT: sets `value` of all nodes. Uses are then those of the score alone. */
void fxa__tape_graph_value(fxa__tape_graph *g);
/* Sets `last` and `is_out` of all nodes. */
void fxa__tape_graph_find_last(fxa__tape_graph *g);
/* Returns true if a node is an input, a param or a constant. */
static inline bool fxa__tape_is_leaf(const fxa__tape_node *n) {
    return n->op == FXA_OP_CONST || n->op == FXA_OP_PARAM || n->op == FXA_OP_INPUT;
}
/* Returns the operation of a node: that of the program, except for operations that mean something else on bools. */
static inline uint8_t fxa__tape_op_of(const fxa__node *n) {
    return n->op == FXA_OP_NOT && n->type == FXA_BOOL ? FXA__TAPE_NOT_BOOL : n->op;
}
/* Returns true if a node is replaced by its operand: ints and bools are the same for tapes, and with_grad is its value.
 * */
static inline bool fxa__tape_is_through(const fxa_program *p, const fxa__node *n) {
    return n->op == FXA_OP_WITH_GRAD || (n->op == FXA_OP_INT && p->nodes[n->arg[0]].type != FXA_FLOAT);
}
/* Returns true if an operand of a node at `level` is a row, not a single value. */
static inline bool fxa__tape_is_row(int level, int operand_level) {
    return operand_level == level || operand_level >= TAPE_COLUMN;
}
/* Returns true if the value may differ between the keys of a block. */
static inline bool fxa__tape_has_keys(int level) { return level >= TAPE_COLUMN; }

/* Returns the opcode of an operation for operands of these letters; -1 if there is none. */
int32_t fxa__tape_find(uint32_t op, char d, const char *letters);
void fxa__tape_peephole(fxa__tape_graph *g);
fxa_status fxa__tape_lower(fxa__tape_graph *g, fxa__tape *tape, fxa_error *err);

/* ---- Run --------------------------------------------------------------------------------------------------------- */

/* Columns begin..end of a range; begin < 0: not one contiguous range. */
typedef struct fxa__tape_ends {
    int64_t begin, end;
} fxa__tape_ends;

/* The start of the scratch memory; filled by fxa__tape_batch. */
typedef struct fxa__tape_state {
    char *base[TAPE_LEVELS];   /* registers of each level */
    size_t pitch[TAPE_LEVELS]; /* bytes from one register to the next */
    char *spare[3];            /* score, dscore, out for rows that are no whole number of steps */
    uintptr_t *fixed;          /* places of FULL that are the same for all rows */
    void **at;                 /* places of the level that runs */
    int32_t *k;                /* [columns] coordinates of the keys */
    uint64_t *bits;       /* alone: rows of the parts, then TAPE_FORMULA_ROWS rows in which the formula is evaluated */
    fxa__tape_ends *ends; /* alone: columns of the ranges in the last row */
    uint8_t *moved;       /* alone, [rows] 1 = a part or a test may differ from the row before */
    int64_t *until;       /* alone, [rows] up to this row no part or test differs, and ranges move by equal steps */
    bool ranges_move;     /* alone: a range may differ from the row before */
    int64_t step;         /* k[i] = k[0] + i * step, step > 0; 0: any coordinates */
    const int32_t *heads; /* [rows] heads, if there are SHARED values; else NULL */
    int32_t head;         /* head whose SHARED values are in the registers */
    bool shared;          /* SHARED registers hold values of this block */
    int64_t first;        /* first column of the last row, for its derivative */
    bool far;             /* rows are read from a tensor that is larger than the near caches */
} fxa__tape_state;

/* The places of a row or level that runs. */
typedef struct fxa__tape_at {
    int level;
    const fxa__tape_run *run;
    const fxa__tape_state *state;
    void **at;
    int64_t first, n;
} fxa__tape_at;

/* Loads half `word` (1 or 2) of n elements of 64 bits, `stride` elements apart. */
static inline void fxa__tape_words(const void *data, int64_t stride, int word, int64_t n, int32_t *dst) {
    const char *from = (const char *)data + (size_t)(word - 1) * sizeof *dst;
    for (int64_t i = 0; i < n; i++) memcpy(&dst[i], from + i * stride * (int64_t)sizeof(int64_t), sizeof *dst);
}
/* Loads elements into dst. Returns their address: dst, or, with `may_alias`, the tensor itself if it stores them as
 * registers do. */
void *fxa__tape_access_load(const fxa__tape_at *r, const fxa__tape_access *access, void *dst, bool may_alias);
/* Prefetches the elements if they are contiguous. */
void fxa__tape_access_prefetch(const fxa__tape_at *r, const fxa__tape_access *access);
void fxa__tape_access_add(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore);
/* Returns the sum of the offsets of axes with one index for all columns; FXA__TAPE_OUTSIDE if an index is outside. */
int64_t fxa__tape_gather_base(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view);
/* Do what fxa__tape_access_load and fxa__tape_access_add do, for any indices; see gather.c. */
void fxa__tape_gather(const fxa__tape_at *r, const fxa__tape_access *access, void *dst);
void fxa__tape_scatter(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore);
/* Sets the places of FULL for a row. */
void fxa__tape_set_places(const fxa__tape_at *r, int64_t row, const void *score, const void *dscore, void *out);
/* Alone: compares n rows, whose places of ROW are filled, with the rows before them. */
void fxa__tape_mask_rows(fxa__tape_run *run, int64_t n);
/* Runs the instructions of a part for the row whose places are set. */
void fxa__tape_run_part(const fxa__tape_at *r, const fxa__tape_part *part);
/* Computes the columns begin..end of the n columns from `first` on that are in the range; begin >= end: none, and the
 * values then say on which side the range would be. Both ends are monotonic in offset and bound, and stay at 0 or n
 * beyond the columns. Returns false if the range wraps around or keys are not evenly spaced. */
bool fxa__tape_range_ends(const fxa__tape_state *s, const fxa__tape_range *range, int32_t offset, int32_t bound,
                          int64_t first, int64_t n, int64_t *begin, int64_t *end);
/* Computes the same columns; 0 and 0 if there are none. Returns false if they may not be contiguous. */
bool fxa__tape_range_columns(const fxa__tape_state *s, const fxa__tape_range *range, int32_t offset, int32_t bound,
                             int64_t first, int64_t n, int64_t *begin, int64_t *end);
/* Sets out to -inf outside of the range. */
void fxa__tape_apply_range(const fxa__tape_at *r, const fxa__tape_range *range, void *out);

#endif
