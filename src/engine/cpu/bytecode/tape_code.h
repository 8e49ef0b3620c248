/* SPDX-License-Identifier: Apache-2.0
 *
 * The data structures of a tape, and of the graph that it is made from. The files of this folder:
 *
 *   tape.c      create, destroy, properties: program -> graph -> tape
 *   graph.c     the graph: levels of nodes, ints of the form k + offset, results
 *   formula.c   a mask as a formula over rows of bits
 *   peephole.c  replaces several nodes by one operation
 *   tape_ops.c  finds the opcode for operands that are rows or scalars
 *   last_use.c  finds the last reader of each value
 *   lower.c     orders the nodes of each level, assigns registers and appends instructions
 *   run.c       runs the levels
 *   access.c    elements of captured tensors that are evenly spaced: loads, sums, ranges of columns
 *   gather.c    elements of captured tensors at arbitrary indices
 *   mask.c      runs a mask tape, which computes bits
 *   text.c      the tape as text
 *
 * The level of a value is how often it is computed. It follows from the inputs that the value depends on
 * (lower/depend.h):
 *
 *   UNIFORM   once per batch entry
 *   ROW       once per row of a tile; stored for all rows of the tile
 *   COLUMN    once per key of a block
 *   SHARED    once per key and head, for all rows of the head
 *   FULL      once per (row, key) pair
 *
 * No value has a lower level than its operands. An operand has one element for each element of the result (it is a row)
 * if its level is that of the operation, COLUMN or SHARED; else it is a scalar.
 */
#ifndef FXA_ENGINE_CPU_BYTECODE_TAPE_CODE_H
#define FXA_ENGINE_CPU_BYTECODE_TAPE_CODE_H

#include "tape.h"
#include "tape_ops.h"

#include <string.h>

enum { TAPE_UNIFORM, TAPE_ROW, TAPE_COLUMN, TAPE_SHARED, TAPE_FULL, TAPE_LEVELS };
/* Where a value is stored: in a register of a level, or in one of the rows score, dscore and out that the caller
 * passes. */
enum { TAPE_SCORE = TAPE_LEVELS, TAPE_DSCORE, TAPE_OUT, TAPE_SPACES };

/* ---- The tape ---------------------------------------------------------------------------------------------------- */

/* Where an operand or a result of an instruction is stored. */
typedef struct fxa__tape_place {
    int32_t space; /* level of the register; TAPE_SCORE, TAPE_DSCORE, TAPE_OUT = a row that the caller passes */
    int32_t real;  /* 1 = elements are reals, 0 = ints */
    int32_t reg;   /* index of the register in its level */
} fxa__tape_place;

typedef struct fxa__tape_ins {
    int32_t op; /* fxa__tape_opcode */
    /* indices of fxa__tape_level.places; 0 = none. SUM: c is 1 if the operand a is a row, 0 if it is a scalar */
    int32_t dst, a, b, c;
    /* LOAD, SCATTER: index in fxa__tape.accesses; RANGE: index in fxa__tape.ranges; SUM: index of the param */
    int32_t aux;
} fxa__tape_ins;

/* An access to a captured tensor: one element for each column. If axis >= 0, the index along that axis is
 *     clamp(sign * k + v, lo, hi) + shift,  where k is the key coordinate of the column and v the value of index[axis].
 * v, lo, hi, shift and the indices along the other axes are scalars. Evenly spaced keys then have evenly spaced
 * elements, except where the index reaches a bound or changes its sign. */
typedef struct fxa__tape_access {
    int32_t tensor;
    /* [rank] place (index in fxa__tape_level.places) of the index along each axis */
    int32_t index[FXA_MAX_RANK];
    int32_t lo, hi, shift; /* places of the bounds and the shift; lo -1 = not clamped; shift -1 = none */
    uint8_t rank, type;
    uint8_t rows;      /* bit i: the index along axis i is a row, with a value per column */
    uint8_t value_row; /* SCATTER: 1 = the added value is a row, 0 = a scalar */
    int8_t axis, sign;
    uint8_t word; /* for i64: 1 or 2 = the low or high half of the element, unchanged; 0 = the element, saturated */
} fxa__tape_access;

/* The columns at which x = sign * k + offset satisfies a comparison with the bound; k is the key coordinate of the
 * column. BELOW: x < bound, ABOVE: bound < x, ABS: |x| < bound, AT: x == bound. If not strict, <= replaces <. */
enum { TAPE_BELOW, TAPE_ABOVE, TAPE_ABS, TAPE_AT };
typedef struct fxa__tape_range {
    int32_t offset, bound; /* places (indices in fxa__tape_level.places) of the two ints */
    int8_t sign;
    uint8_t side, strict; /* side: TAPE_BELOW..TAPE_AT; strict: the bound is excluded (unused by TAPE_AT) */
} fxa__tape_range;

/* Kinds of the terms of a formula. A formula computes a mask from rows of bits (a bit per column), in postfix order:
 * RANGE, TEST and PART (leaves) push a row of bits; operations pop their operands and push a row of bits. */
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
    uint8_t kind; /* TAPE_BITS_x */
    /* RANGE, TEST, PART: in a graph, index in fxa__tape_graph.roots; in a tape, index in fxa__tape.ranges, .tests or
     * .parts. Else -1 */
    int32_t leaf;
} fxa__tape_term;

/* A part: a leaf of a mask formula whose bits are computed by n_ins instructions of level FULL, from index `ins` on.
 * The ROW values (one per row) that the instructions read are n_watched elements of fxa__tape.watched, from index
 * `watched` on. The instructions run for a row only if one of these values differs from the previous row's. */
typedef struct fxa__tape_part {
    size_t ins, n_ins, watched, n_watched;
} fxa__tape_part;

/* A register that holds an input, a param or a constant. */
typedef struct fxa__tape_leaf {
    uint8_t op, type, level;
    /* imm: int or bool constant, or index of the param or input; reg: index of the register in its level */
    int32_t imm, reg;
    double f; /* value of a float constant */
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
    bool identity, writes; /* identity: the tape changes neither scores nor gradients; writes: the tape writes `out` */
    bool writes_back;      /* FXA__TAPE_JOINT: the instructions of the derivative write `out` */
    /* FXA__TAPE_JOINT: number of instructions of level FULL that compute the score, before those of the derivative.
     * Other tapes: 0 */
    size_t n_value;
    /* created with FXA__TAPE_MASK_ALONE: the tape has a mask formula (`terms`), and level FULL has the instructions of
     * `parts` */
    bool alone;
    fxa__tape_level level[TAPE_LEVELS];
    fxa__tape_access *accesses;
    fxa__tape_range *ranges;
    fxa__tape_leaf *leaves;
    /* places (level FULL) of the bools that have one value for all columns of a row. On a tape without a mask formula,
     * a false bool masks the entire row */
    int32_t *tests;
    /* mask formula: places (level FULL) of the ROW values (one per row) that the first part reads, then of those that
     * the second part reads, and so on; see fxa__tape_part */
    int32_t *watched;
    fxa__tape_part *parts;
    fxa__tape_term terms[TAPE_FORMULA_TERMS];
    size_t n_accesses, n_ranges, n_leaves, n_tests, n_watched, n_parts, n_terms;
    size_t accesses_capacity, ranges_capacity, leaves_capacity, tests_capacity, watched_capacity, parts_capacity;
};

/* ---- The graph --------------------------------------------------------------------------------------------------- */

enum { TAPE_ARGS = FXA_MAX_RANK + 3, TAPE_PINNED = INT32_MAX };

typedef struct fxa__tape_node {
    uint8_t op; /* fxa_op, or an operation of tape_ops.h */
    uint8_t type, level, n_args;
    uint16_t inputs; /* bit i: the value depends on fxa_input i */
    bool needed;
    bool is_out; /* the value is computed last, directly into the caller's row `out` */
    bool value;  /* FXA__TAPE_JOINT: the score depends on the node */
    bool back;   /* FXA__TAPE_JOINT: the derivative or a gradient depends on the node; set for peephole.c */
    bool zero;   /* the value is exactly 0 where dscore is exactly 0 */
    /* 1 or -1: the value is sign * k + offset, with wrapping ints, where k is the key coordinate; 0: not of this
     * form */
    int8_t sign;
    int8_t axis; /* LOAD: axis along which the index is sign * k plus a value; -1 = none */
    /* sign of the key coordinate k in the index along `axis` (LOAD) or in the int that is compared (WITHIN) */
    int8_t axis_sign;
    uint8_t word;   /* LOAD: fxa__tape_access.word */
    int32_t offset; /* if sign is not 0: node of the offset, which does not depend on k */
    int32_t imm;    /* as in fxa__node; WITHIN: side << 1 | strict of the fxa__tape_range */
    /* [n_args] nodes of the operands; LOAD: the indices, then lo, hi and shift if the index along `axis` is clamped */
    int32_t arg[TAPE_ARGS];
    double f;     /* value of a float constant */
    int32_t uses; /* number of operands of needed nodes, and of values of results (roots), that are this node */
    /* last node of the same level that reads the value; TAPE_PINNED: a later level or a result (root) reads it */
    int32_t last;
    int32_t reg; /* index of the register that holds the value */
} fxa__tape_node;

/* A result (root) of the tape: a score, a gradient, a conjunct of the mask, or a leaf of the mask's formula. */
typedef struct fxa__tape_root {
    uint32_t kind; /* fxa__out_kind: MASK for a conjunct or a leaf of the mask */
    int32_t slot;  /* DPARAM, DLOAD (gradients): index of the param or captured tensor */
    int32_t node;  /* node of the result; DLOAD: of the value that is added to the gradient; -1 = none */
    /* DLOAD (gradient of a captured tensor): LOAD node with the indices of the element that is added to.
     * MASK: node with operation FXA__TAPE_WITHIN or FXA__TAPE_MASK_x that replaces `node`; -1 = none.
     * Other results: -1. */
    int32_t access;
} fxa__tape_root;

typedef struct fxa__tape_graph {
    fxa__host *host;
    const fxa_program *program;
    fxa__tape_node *nodes;
    fxa__tape_root *roots;
    size_t n_nodes, n_roots, nodes_capacity, roots_capacity;
    fxa__tape_term terms[TAPE_FORMULA_TERMS]; /* formula of the mask, for FXA__TAPE_MASK_ALONE */
    size_t n_terms;
    int32_t key; /* node of the input k, the key coordinate; -1 = not read */
    int32_t one; /* node of the float 1, for peephole.c */
    bool joint;
    bool failed; /* memory is exhausted */
} fxa__tape_graph;

bool fxa__tape_graph_make(fxa__tape_graph *g, fxa__host *host, const fxa_program *program, uint32_t flags);
void fxa__tape_graph_free(fxa__tape_graph *g);
/* Converts the mask at `node` to the formula g->terms, and adds the formula's leaves to g->roots. */
void fxa__tape_formula_make(fxa__tape_graph *g, int32_t node);
/* Completes the last element of fxa__tape.parts once its instructions are appended to level FULL: counts them, and adds
 * the places of the ROW values that they read to fxa__tape.watched. Returns false if memory is exhausted. */
bool fxa__tape_formula_watch(fxa__tape *tape);
/* Converts the comparison at `node` to a WITHIN node (a range of columns). *negated receives true if the comparison is
 * true outside of that range. Returns false if `node` is not a comparison that a range can express. */
bool fxa__tape_graph_range(const fxa__tape_graph *g, int32_t node, fxa__tape_node *range, bool *negated);
void fxa__tape_graph_root(fxa__tape_graph *g, uint32_t kind, int32_t slot, int32_t node, int32_t access);
/* Appends a copy of *node. Returns its index; -1 if memory is exhausted. */
int32_t fxa__tape_graph_add(fxa__tape_graph *g, const fxa__tape_node *node);
/* Changes the level of values that depend on a head and a key, but not on the row within the head, from FULL to SHARED.
 * Must follow fxa__tape_peephole: that function merges only nodes of equal level, so the change of level could change
 * which nodes it merges, and thus the bits of values. */
void fxa__tape_graph_share(fxa__tape_graph *g);
/* Computes `needed` and `uses` of all nodes as if g->roots had only results of the given kinds. Bit i of `kinds`:
 * results whose fxa__out_kind is i. */
enum { TAPE_ROOTS_SCORE = 1 << FXA__OUT_SCORE, TAPE_ROOTS_MASK = 1 << FXA__OUT_MASK, TAPE_ROOTS_ALL = 0xff };
void fxa__tape_graph_count(fxa__tape_graph *g, uint32_t kinds);
/* For FXA__TAPE_JOINT: sets `value` of all nodes, and `needed` and `uses` as fxa__tape_graph_count does for the score
 * alone. */
void fxa__tape_graph_value(fxa__tape_graph *g);
/* Sets `last` and `is_out` of all nodes. */
void fxa__tape_graph_find_last(fxa__tape_graph *g);
/* Returns true if a node is an input, a param or a constant. */
static inline bool fxa__tape_is_leaf(const fxa__tape_node *n) {
    return n->op == FXA_OP_CONST || n->op == FXA_OP_PARAM || n->op == FXA_OP_INPUT;
}
/* Returns the tape operation of a program node: FXA__TAPE_NOT_BOOL for NOT of a bool, else the node's own operation. */
static inline uint8_t fxa__tape_op_of(const fxa__node *n) {
    return n->op == FXA_OP_NOT && n->type == FXA_BOOL ? FXA__TAPE_NOT_BOOL : n->op;
}
/* Returns true if a node is replaced by its operand: int() of an int or bool, and with_grad. */
static inline bool fxa__tape_is_through(const fxa_program *p, const fxa__node *n) {
    return n->op == FXA_OP_WITH_GRAD || (n->op == FXA_OP_INT && p->nodes[n->arg[0]].type != FXA_FLOAT);
}
/* Returns true if an operand of an operation at `level` is a row; false if it is a scalar. */
static inline bool fxa__tape_is_row(int level, int operand_level) {
    return operand_level == level || operand_level >= TAPE_COLUMN;
}
/* Returns true if a value of this level may differ between the keys of a block. */
static inline bool fxa__tape_has_keys(int level) { return level >= TAPE_COLUMN; }

/* Returns the opcode of an operation with this result letter and these operand letters (tape_ops.def); -1 = none. */
int32_t fxa__tape_find(uint32_t op, char d, const char *letters);
void fxa__tape_peephole(fxa__tape_graph *g);
fxa_status fxa__tape_lower(fxa__tape_graph *g, fxa__tape *tape, fxa_error *err);

/* ---- Run --------------------------------------------------------------------------------------------------------- */

/* Columns begin..end of a range; begin < 0: the columns are not one contiguous range. */
typedef struct fxa__tape_ends {
    int64_t begin, end;
} fxa__tape_ends;

/* State of a run, at the start of the scratch memory; initialised by fxa__tape_batch. */
typedef struct fxa__tape_state {
    char *base[TAPE_LEVELS];   /* registers of each level */
    size_t pitch[TAPE_LEVELS]; /* bytes from one register to the next */
    /* padded copies of the rows score, dscore and out, for rows whose length is no multiple of FXA__TAPE_STEP */
    char *spare[3];
    /* [places] addresses of the operands and results (places) of level FULL for row 0 and column 0; 0 for the rows
     * score, dscore and out, which the caller passes */
    uintptr_t *fixed;
    void **at;  /* [places] addresses of the operands and results (places) of the level being run */
    int32_t *k; /* [columns] coordinates of the keys */
    /* mask formula: for each part, the bits of the row for which the part ran last; then the stack on which the formula
     * is evaluated, TAPE_FORMULA_ROWS rows of bits */
    uint64_t *bits;
    fxa__tape_ends *ends; /* mask formula: [ranges] columns of each range in the row that was evaluated last */
    /* mask formula: [rows] 0 = all parts and tests have the same bits as in the previous row; 1 = perhaps not */
    uint8_t *moved;
    /* mask formula: [rows] end of the longest series of rows, from this row on, in which all parts and tests have the
     * same bits, and the offset and bound of each range change by the same amount from row to row */
    int64_t *until;
    bool ranges_move;     /* mask formula: the columns of a range may differ from row to row */
    int64_t step;         /* k[i] = k[0] + i * step, step > 0; 0 = the coordinates are not evenly spaced */
    const int32_t *heads; /* [rows] head of each row; NULL: the tape has no SHARED values (values per head and key) */
    int32_t head;         /* head whose SHARED values (values per head and key) the registers hold */
    bool shared;          /* the SHARED registers hold values of the current key block */
    int64_t first;        /* first column of the last call of fxa__tape_row; read by fxa__tape_row_back */
    bool far;             /* a LOAD reads rows of a tensor that is larger than RUN_SMALL; such rows are prefetched */
} fxa__tape_state;

/* What the instructions of a level work on: a row or part of it, and the addresses of their operands and results. */
typedef struct fxa__tape_at {
    int level;
    const fxa__tape_run *run;
    const fxa__tape_state *state;
    void **at;        /* [places] address of each operand and result (fxa__tape_place) for this row and these columns */
    int64_t first, n; /* first column, and number of columns */
} fxa__tape_at;

/* Loads the low (word 1) or high (word 2) half of n 64-bit elements that are `stride` elements apart. */
static inline void fxa__tape_words(const void *data, int64_t stride, int word, int64_t n, int32_t *dst) {
    const char *from = (const char *)data + (size_t)(word - 1) * sizeof *dst;
    for (int64_t i = 0; i < n; i++) memcpy(&dst[i], from + i * stride * (int64_t)sizeof(int64_t), sizeof *dst);
}
/* Loads the elements of an access. Returns their address: dst or, if `may_alias` and the elements in the tensor are
 * contiguous and of the dtype of a register, their address in the tensor. */
void *fxa__tape_access_load(const fxa__tape_at *r, const fxa__tape_access *access, void *dst, bool may_alias);
/* Prefetches the elements of an access if they are contiguous. */
void fxa__tape_access_prefetch(const fxa__tape_at *r, const fxa__tape_access *access);
void fxa__tape_access_add(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore);
/* Returns the sum of the offsets along the axes whose index is a scalar; FXA__TAPE_OUTSIDE if such an index is outside
 * of its axis. */
int64_t fxa__tape_gather_base(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view);
/* Like fxa__tape_access_load and fxa__tape_access_add, for arbitrary indices; see gather.c. */
void fxa__tape_gather(const fxa__tape_at *r, const fxa__tape_access *access, void *dst);
void fxa__tape_scatter(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore);
/* Sets the addresses of the operands and results (places) of level FULL for a row. */
void fxa__tape_set_places(const fxa__tape_at *r, int64_t row, const void *score, const void *dscore, void *out);
/* For tapes with a mask formula, after the ROW values of n rows are computed: compares each row with the previous one,
 * and sets `moved`, `until` and `ranges_move` of fxa__tape_state. */
void fxa__tape_mask_rows(fxa__tape_run *run, int64_t n);
/* Runs the instructions of a part of a formula for the row that fxa__tape_set_places was called for. */
void fxa__tape_run_part(const fxa__tape_at *r, const fxa__tape_part *part);
/* Computes which of the n columns from `first` on are in the range: begin..end, relative to `first`. If none of the
 * columns is in the range, begin >= end: begin and end are 0 if the range lies before the columns, n if it lies behind
 * them. Each of begin and end is monotonic in offset and in bound. Returns false if sign * k + offset wraps around or
 * the keys are not evenly spaced. */
bool fxa__tape_range_ends(const fxa__tape_state *s, const fxa__tape_range *range, int32_t offset, int32_t bound,
                          int64_t first, int64_t n, int64_t *begin, int64_t *end);
/* Like fxa__tape_range_ends, but sets both ends to 0 if no column is in the range. Returns false if the columns may not
 * be contiguous. */
bool fxa__tape_range_columns(const fxa__tape_state *s, const fxa__tape_range *range, int32_t offset, int32_t bound,
                             int64_t first, int64_t n, int64_t *begin, int64_t *end);
/* Sets the columns of the row `out` that are outside of the range to -inf. */
void fxa__tape_apply_range(const fxa__tape_at *r, const fxa__tape_range *range, void *out);

#endif
