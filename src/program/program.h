/* SPDX-License-Identifier: Apache-2.0
 *
 * Score programs inside the library: what the parser and the builder make, and what derivative, ranges, properties,
 * hash, evaluator and engines read.
 *
 * A program is an array of nodes in topological order (operands before users), hash-consed (no two nodes are equal),
 * folded, free of dead nodes, and numbered in canonical order: equal programs have equal arrays. It never changes.
 */
#ifndef FXA_PROGRAM_PROGRAM_H
#define FXA_PROGRAM_PROGRAM_H

#include "../base/bytes.h"
#include "../base/error.h"
#include "../base/host.h"

#include <stdbool.h>

/* ---- Operations: what ops.def says, as data -------------------------------------------------------------------- */

typedef enum fxa__form { FXA__INFIX, FXA__PREFIX, FXA__CALL, FXA__SPECIAL } fxa__form;
typedef enum fxa__sig {
    FXA__SIG_ARITH,
    FXA__SIG_REAL,
    FXA__SIG_BITS,
    FXA__SIG_SHIFT,
    FXA__SIG_CMP,
    FXA__SIG_CHOICE,
    FXA__SIG_TOF,
    FXA__SIG_TOI,
    FXA__SIG_LEAF
} fxa__sig;
typedef enum fxa__exact { FXA__EXACT_ALWAYS, FXA__EXACT_NEVER, FXA__EXACT_POWERS } fxa__exact;
typedef enum fxa__prec { /* the tighter, the higher */
                         FXA__PREC_ANY,
#define PREC(ID, groups, note) FXA__PREC_##ID,
#include "ops.def"
} fxa__prec;
enum { FXA__OP_COMM = 1, FXA__OP_SURFACE = 2 };

typedef struct fxa__op_info {
    const char *id;    /* "ADD"; NULL for a code that is no operation */
    const char *text;  /* "+" */
    const char *about; /* one sentence */
    uint8_t form, prec, arity, sig, flags, exact;
} fxa__op_info;
typedef struct fxa__spelling {
    const char *text;
    uint8_t prec;
} fxa__spelling;
const fxa__op_info *fxa__op_info_get(uint32_t op); /* never NULL: an empty row for a code that is none */
/* How an operation is written between or before its operands; of bools it may have a spelling of its own ("&&"). */
fxa__spelling fxa__op_spelling(uint32_t op, bool bools);
const char *fxa__type_name(uint32_t type);   /* "float", "int", "bool" */
const char *fxa__input_name(uint32_t input); /* "score", "b", ... */
fxa_type fxa__input_type(uint32_t input);

/* ---- Nodes and programs ---------------------------------------------------------------------------------------- */

typedef struct fxa__node {
    uint8_t op;   /* fxa_op */
    uint8_t type; /* fxa_type of the value */
    uint8_t n_args;
    uint8_t
        word; /* always 0, but in what src/lower/wide_words.h makes: 1, 2: a LOAD of the first, second half of an i64 */
    int32_t imm; /* INPUT: which; PARAM, LOAD: slot; CONST of int, bool: the value; else 0 */
    int32_t arg[FXA_MAX_RANK];
    int32_t unused2;
    double f; /* CONST of float; else 0 */
} fxa__node;  /* 40 bytes, no padding, unused parts zero */

/* A kind of program that only the library makes, beside those of fxa_program_kind: all of an evaluation, forward and
 * backward (src/lower/joint.h). It has no bytes, and its text is for people. */
#define FXA__PROGRAM_JOINT ((fxa_program_kind)3)

typedef enum fxa__out_kind {
    FXA__OUT_SCORE = 0, /* SCORE programs have exactly: SCORE, MASK */
    FXA__OUT_MASK = 1,
    FXA__OUT_DSCORE = 2, /* BPROP: exactly DSCORE; DERIVATIVE: DSCORE, then grads in order of (kind, slot, ...);
                            JOINT: SCORE, MASK, then those of a DERIVATIVE */
    FXA__OUT_DPARAM = 3, /* grad param += value */
    FXA__OUT_DLOAD = 4   /* grad tensor[index] += value; one per distinct index of a tensor */
} fxa__out_kind;

typedef struct fxa__output {
    uint32_t kind;
    int32_t slot;    /* DPARAM: param, DLOAD: tensor */
    int32_t value;   /* node */
    int32_t n_index; /* DLOAD */
    int32_t index[FXA_MAX_RANK];
} fxa__output;

typedef struct fxa__decl { /* of a param (dtype 0) or of a tensor */
    char name[FXA_MAX_NAME + 1];
    uint8_t type; /* of a param, or of the value a load gives */
    uint8_t dtype;
    uint8_t rank;
    bool has_value; /* a param with a default, */
    double value;   /* which is a whole number of 32 bits for an int */
} fxa__decl;

struct fxa_program {
    atomic_size_t refs;
    fxa__host *host;
    size_t bytes; /* of this one allocation, nodes, outputs and declarations included */
    uint32_t kind;
    int32_t n_nodes, n_outputs, n_params, n_tensors;
    const fxa__node *nodes;
    const fxa__output *outputs;
    const fxa__decl *params;  /* sorted by name */
    const fxa__decl *tensors; /* sorted by name */
    uint8_t hash[16];
};

/* ---- Building (build.c: graph of hash-consed nodes; simplify.c: folding; canon.c: finish) ---------------------- */

/* fxa_builder is used inside the library too: by the parser, by derive and for ready masks. The kind is one that there
 * is: callers have looked at what users gave. */
fxa_status fxa__builder_new(fxa__host *host, fxa_program_kind kind, fxa_builder **out, fxa_error *err);
/* Derivatives may grow past FXA_MAX_NODES. */
#define FXA__MAX_DERIVED_NODES (16 * FXA_MAX_NODES)
void fxa__builder_set_limit(fxa_builder *b, size_t max_nodes);
fxa_type fxa__builder_type(const fxa_builder *b, fxa_value x);  /* 0 for an error value */
fxa__node fxa__builder_node(const fxa_builder *b, fxa_value x); /* the node behind a value (args are values) */
bool fxa__builder_failed(const fxa_builder *b);
/* Records the first failure with its text; the parser adds the place by itself. Returns -1. */
fxa_value fxa__builder_fail(fxa_builder *b, fxa_status status, const char *format, ...) FXA__PRINTF(3, 4);
const fxa_error *fxa__builder_error(const fxa_builder *b);
/* Copies all nodes of a program (same host not needed): map[n_nodes] gets the value of each node. Declares its params
 * and tensors. */
bool fxa__builder_import(fxa_builder *b, const fxa_program *p, fxa_value *map);
/* The same, with values for some of the nodes: given[i] is a value of b that stands for node i, -1: there is none. */
bool fxa__builder_import_with(fxa_builder *b, const fxa_program *p, const fxa_value *given, fxa_value *map);
/* `grad name += value`, DERIVATIVE only; equal targets are summed by finish. */
void fxa__builder_grad_param(fxa_builder *b, const char *name, fxa_value value);
void fxa__builder_grad_load(fxa_builder *b, const char *name, const fxa_value *index, size_t n_index, fxa_value value);
/* Whether a function's name is a word of the language. Those that came later are not, so that programs which have a
 * param or tensor of that name stay what they are: it hides the function. No canonical text has them. */
bool fxa__op_reserves(uint32_t op);
/* Words of the language (inputs, keywords, functions): no param, tensor or let may be called so. */
bool fxa__name_reserved(const char *name);
/* Declared names, for the parser: -1 when there is none. */
int32_t fxa__builder_find(const fxa_builder *b, const char *name, bool *is_tensor, fxa__decl *out);

/* Derived programs of a problem: the score program with ready-mask flags appended (identity when p is NULL). */
fxa_status fxa__program_with_masks(fxa__host *host, const fxa_program *p, uint32_t flags, int64_t window_left,
                                   int64_t window_right, fxa_program **out, fxa_error *err);
/* The branch (argument 1 or 2) of a select that a mask inside the score leaves, the other being -inf; 0: no such
 * select. It is a mask where its condition, argument 0, does not read the score. */
int fxa__program_masked_branch(const fxa_program *p, int32_t node);
/* Returns FXA_PROPERTY_LARGE_NEGATIVE and FXA_PROPERTY_FINITE_LARGE_NEGATIVE where they hold (penalty.c). depends: the
 * sets of fxa__program_inputs. */
uint32_t fxa__program_penalties(const fxa_program *p, int32_t score, const uint16_t *depends);
/* The same weights with conditions that its score selects -inf by in its mask (lift_mask.c); p itself, retained, where
 * there are none. Declarations stay as they are. */
fxa_status fxa__program_lift_masks(fxa__host *host, fxa_program *p, fxa_program **out, fxa_error *err);
/* Returns which of q_row and k_row the program reads, as bits of inputs (stored.c). */
uint32_t fxa__program_stored(const fxa_program *p);
/* Makes p with q for q_row and k for k_row, where `inputs` has their bits. p is a SCORE or BPROP program, or NULL; *out
 * is p itself, retained, where it reads neither. */
fxa_status fxa__program_unmoved(fxa__host *host, fxa_program *p, uint32_t inputs, fxa_program **out, fxa_error *err);

/* ---- Parsing on a host (parse.c), derivative on a host (derive.c), bytes (program_bytes.c) --------------------- */

fxa_status fxa__program_parse(fxa__host *host, const fxa_parse_config *config, fxa_program **out, fxa_error *err);
/* Without defaults for keys and plans, which do not know of them. */
fxa_status fxa__program_write(const fxa_program *p, bool defaults, fxa__writer *w);
fxa_status fxa__program_read(fxa__host *host, fxa__reader *r, fxa_program **out, fxa_error *err);

/* ---- Evaluation in f64 (eval.c): the meaning ------------------------------------------------------------------- */

typedef union fxa__val {
    double f;
    int32_t i; /* ints; bools as 0 or 1 */
} fxa__val;

typedef struct fxa__env {
    double score, dscore;
    int32_t coord[FXA_INPUT_COUNT]; /* by fxa_input; [SCORE] and [DSCORE] unused */
    const double *params;
    const fxa_view *tensors;
} fxa__env;

/* Fills env from a caller's numbers (those of fxa_program_eval); E_BINDING names the one that is wrong. */
fxa_status fxa__env_bind(const fxa_program *p, const double *in, const double *params, const fxa_view *tensors,
                         fxa__env *env, fxa_error *err);
/* Fills vals[n_nodes]. Never reads outside the views. */
void fxa__program_eval(const fxa_program *p, const fxa__env *env, fxa__val *vals);
/* One operation on given operands, as eval and folding do it. `type` is the type of the operands that decide. */
fxa__val fxa__op_eval(uint32_t op, uint32_t result_type, uint32_t type, const fxa__val *x);
/* The element a load reads or a gradient goes to: offset in elements, or false when an index is outside. */
bool fxa__view_offset(const fxa_view *view, const int32_t *index, int64_t *offset);

/* ---- Reading programs ------------------------------------------------------------------------------------------ */

/* Node of the first output of a kind, or -1. */
int32_t fxa__program_output(const fxa_program *p, uint32_t kind);
/* Adds a node as an expression, for people: at most so many bytes, then dots. */
void fxa__program_print_value(const fxa_program *p, int32_t node, size_t most, fxa__writer *w);
/* x == y or x != y of two loads of i64 tensors: whole elements are compared, all 64 bits of them. Every other use of
 * such a load saturates to 32. This is looked up in the nodes, so it needs no operation and changes no hash. */
static inline bool fxa__node_compares_wide(const fxa_program *p, const fxa__node *n) {
    if (n->op != FXA_OP_EQ && n->op != FXA_OP_NE) return false;
    const fxa__node *x = &p->nodes[n->arg[0]], *y = &p->nodes[n->arg[1]];
    return x->op == FXA_OP_LOAD && y->op == FXA_OP_LOAD && p->tensors[x->imm].dtype == FXA_I64 &&
           p->tensors[y->imm].dtype == FXA_I64;
}
/* What changes with the row and what changes with the key, as sets of inputs. */
enum { FXA__OF_ROW = 1 << FXA_INPUT_Q | 1 << FXA_INPUT_Q_ROW, FXA__OF_KEY = 1 << FXA_INPUT_K | 1 << FXA_INPUT_K_ROW };
/* The input that a node is, as a bit; 0: it is none. */
static inline uint32_t fxa__node_input(const fxa__node *n) { return n->op == FXA_OP_INPUT ? 1u << n->imm : 0; }
/* How many of a node's operands, from the first on, its value is computed from: the second operand of with_grad is for
 * its derivative alone, and values that nothing else needs it for are never computed. */
static inline int fxa__node_operands(const fxa__node *n) { return n->op == FXA_OP_WITH_GRAD ? 1 : n->n_args; }
/* Fills sets[n_nodes]: bit i: the node or its derivative needs fxa_input i. (src/lower/depend.h is of values alone.) */
void fxa__program_inputs(const fxa_program *p, uint16_t *sets);

/* fxa_program_classify in the floating point state of the caller: engines ask in that of their kernels. Where steps is
 * given, it grows by what it took beyond a look at each node: elements of tables, lists of bounds. */
fxa_tile_class fxa__program_classify(const fxa_program *program, const fxa_tile_bounds *box, const double *params,
                                     const fxa_tensor_range *tensors, uint64_t *steps);
/* Interval of values over a box (range.c), for int nodes and bools (0..1); false: nothing known. *steps grows as
 * there. */
bool fxa__program_int_range(const fxa_program *p, int32_t node, const fxa_tile_bounds *box, const double *params,
                            const fxa_tensor_range *tensors, int64_t *lo, int64_t *hi, uint64_t *steps);

#endif
