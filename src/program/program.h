/* SPDX-License-Identifier: Apache-2.0
 *
 * Score programs inside the library. The parser and the builder make programs; derivative, range analysis, properties,
 * hash, evaluator and engines read programs.
 *
 * A program is an array of nodes in topological order (operands before users), hash-consed (no two nodes are equal),
 * constant-folded, without unused nodes, and numbered in canonical order: equal programs have equal arrays. A program
 * is immutable.
 */
#ifndef FXA_PROGRAM_PROGRAM_H
#define FXA_PROGRAM_PROGRAM_H

#include "../base/bytes.h"
#include "../base/error.h"
#include "../base/host.h"

#include <stdbool.h>

/* ---- Operations: the rows of ops.def as data ------------------------------------------------------------------- */

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
typedef enum fxa__prec { /* precedence: higher binds tighter */
                         FXA__PREC_ANY,
#define PREC(ID, groups, note) FXA__PREC_##ID,
#include "ops.def"
} fxa__prec;
enum { FXA__OP_COMM = 1, FXA__OP_SURFACE = 2 };

typedef struct fxa__op_info {
    const char *id;    /* "ADD"; NULL for an invalid code */
    const char *text;  /* "+" */
    const char *about; /* one sentence about the operation */
    uint8_t form, prec, arity, sig, flags, exact;
} fxa__op_info;
typedef struct fxa__spelling {
    const char *text;
    uint8_t prec;
} fxa__spelling;
/* returns the row of ops.def for `op`; for an invalid code an empty row, never NULL */
const fxa__op_info *fxa__op_info_get(uint32_t op);
/* Returns the spelling of an infix or prefix operation. bools: the spelling for bool operands ("&&" instead of "&"), if
 * there is one. */
fxa__spelling fxa__op_spelling(uint32_t op, bool bools);
const char *fxa__type_name(uint32_t type);   /* "float", "int", "bool" */
const char *fxa__input_name(uint32_t input); /* "score", "b", ... */
fxa_type fxa__input_type(uint32_t input);

/* ---- Nodes and programs ---------------------------------------------------------------------------------------- */

typedef struct fxa__node {
    uint8_t op;   /* fxa_op */
    uint8_t type; /* fxa_type of the value */
    uint8_t n_args;
    uint8_t half; /* 0; in programs of src/lower/i64_halves.h, 1 or 2: a LOAD of the first or second half of an i64 */
    /* INPUT: fxa_input; PARAM, LOAD: index of the param or tensor; CONST of int or bool: its value; else 0 */
    int32_t imm;
    int32_t arg[FXA_MAX_RANK];
    int32_t unused2;
    double f; /* CONST of float: its value; else 0 */
} fxa__node;  /* 40 bytes without padding; unused members are zero, so nodes can be compared and hashed as bytes */

/* A kind of program that only the library makes, in addition to fxa_program_kind: forward and backward outputs in one
 * program (src/lower/fuse.h). It cannot be saved, and its printed text cannot be parsed. */
#define FXA__PROGRAM_FUSED ((fxa_program_kind)3)

/* Kinds of outputs. Each kind of program (left) has these outputs, in order:
 *     SCORE       SCORE, MASK
 *     BPROP       DSCORE
 *     DERIVATIVE  DSCORE, then DPARAM and DLOAD sorted by (kind, slot, index)
 *     FUSED       SCORE, MASK, then the outputs of a DERIVATIVE */
typedef enum fxa__out_kind {
    FXA__OUT_SCORE = 0,
    FXA__OUT_MASK = 1,
    FXA__OUT_DSCORE = 2,
    FXA__OUT_DPARAM = 3, /* grad param += value */
    FXA__OUT_DLOAD = 4   /* grad tensor[index] += value; one per distinct index of a tensor */
} fxa__out_kind;

typedef struct fxa__output {
    uint32_t kind;               /* fxa__out_kind */
    int32_t slot;                /* DPARAM: index of the param; DLOAD: index of the tensor */
    int32_t value;               /* index of the node that computes the value */
    int32_t n_index;             /* DLOAD: number of indices; else 0 */
    int32_t index[FXA_MAX_RANK]; /* DLOAD: nodes of the indices */
} fxa__output;

/* Declaration of a param or a tensor. */
typedef struct fxa__decl {
    char name[FXA_MAX_NAME + 1];
    uint8_t type;   /* fxa_type of the param, or of a loaded element of the tensor */
    uint8_t dtype;  /* fxa_dtype of a tensor; 0 = a param */
    uint8_t rank;   /* rank of a tensor */
    bool has_value; /* true = the param has a default */
    double value;   /* the default value; for an int param, an integer in the int32 range */
} fxa__decl;

struct fxa_program {
    atomic_size_t refs;
    fxa__host *host;
    size_t bytes; /* size of the allocation, which includes nodes, outputs and declarations */
    uint32_t kind;
    int32_t n_nodes, n_outputs, n_params, n_tensors;
    const fxa__node *nodes;
    const fxa__output *outputs;
    const fxa__decl *params;  /* sorted by name */
    const fxa__decl *tensors; /* sorted by name */
    uint8_t hash[16];
};

/* ---- Building (build.c: graph of hash-consed nodes; simplify.c: folding; canon.c: finish) ---------------------- */

/* Creates a builder, which the caller destroys. `kind` must be valid; public functions check it before the call. */
fxa_status fxa__builder_new(fxa__host *host, fxa_program_kind kind, fxa_builder **out, fxa_error *err);
/* Maximum number of nodes of a derivative, which may exceed FXA_MAX_NODES. */
#define FXA__MAX_DERIVED_NODES (16 * FXA_MAX_NODES)
/* Sets the maximum number of nodes. A new builder has FXA__MAX_DERIVED_NODES for a DERIVATIVE, else FXA_MAX_NODES. */
void fxa__builder_set_limit(fxa_builder *b, size_t max_nodes);
fxa_type fxa__builder_type(const fxa_builder *b, fxa_value x); /* returns the type of a value; 0 for an error value */
/* Returns the node of a value. The elements of the node's arg[] are values of b (fxa_value). */
fxa__node fxa__builder_node(const fxa_builder *b, fxa_value x);
bool fxa__builder_failed(const fxa_builder *b);
/* Records the first failure and its message; later failures are ignored. The parser adds the position in the text.
 * Returns -1. */
fxa_value fxa__builder_fail(fxa_builder *b, fxa_status status, const char *format, ...) FXA__PRINTF(3, 4);
/* Returns the first failure; its status is FXA_OK if there is none. */
const fxa_error *fxa__builder_error(const fxa_builder *b);
/* Declares the params and tensors of p in b, copies the nodes of p, and writes the value of each copy to map[n_nodes].
 * p may belong to another host. Returns false if b has failed. */
bool fxa__builder_import(fxa_builder *b, const fxa_program *p, fxa_value *map);
/* Like fxa__builder_import, with replacements: given[i] is the value of b that replaces node i; -1 = copy the node. */
bool fxa__builder_import_with(fxa_builder *b, const fxa_program *p, const fxa_value *given, fxa_value *map);
/* Add the outputs `grad name += value` and `grad name[index] += value` of a DERIVATIVE or FUSED program. Values of
 * equal targets are summed when the program is finished. */
void fxa__builder_grad_param(fxa_builder *b, const char *name, fxa_value value);
void fxa__builder_grad_load(fxa_builder *b, const char *name, const fxa_value *index, size_t n_index, fxa_value value);
/* Returns true if the name of a function is reserved. Names of functions added to the language later are not reserved,
 * so that programs with a param or tensor of that name stay valid: the declaration hides the function. Canonical text
 * calls only functions with reserved names. */
bool fxa__op_reserves(uint32_t op);
/* Returns true if `name` is a reserved word (input, keyword, function), which no param, tensor or let may have. */
bool fxa__name_reserved(const char *name);
/* Returns the index of a declared param or tensor and writes its declaration to *out; -1 if `name` is not declared. */
int32_t fxa__builder_find(const fxa_builder *b, const char *name, bool *is_tensor, fxa__decl *out);

/* Makes the score program of a problem: p with the built-in masks of `flags` (causal, window) added to its mask. p
 * NULL: the identity score. */
fxa_status fxa__program_with_masks(fxa__host *host, const fxa_program *p, uint32_t flags, int64_t window_left,
                                   int64_t window_right, fxa_program **out, fxa_error *err);
/* If `node` is select(c, x, -inf) or select(c, -inf, x), returns the argument number of x, 1 or 2; else 0. Such a
 * select acts as a mask inside the score if c, argument 0, does not read the score. */
int fxa__program_masked_branch(const fxa_program *p, int32_t node);
/* Returns those of the flags FXA_PROPERTY_LARGE_NEGATIVE and FXA_PROPERTY_FINITE_LARGE_NEGATIVE that p has
 * (large_negative.c). score: node of the output score. depends: from fxa__program_inputs. */
uint32_t fxa__program_large_negative(const fxa_program *p, int32_t score, const uint16_t *depends);
/* Makes a program with the same attention weights whose mask contains the conditions by which the score of p selects
 * -inf (extract_mask.c). *out is p itself, retained, if there are no such conditions. Declarations are unchanged. */
fxa_status fxa__program_extract_masks(fxa__host *host, fxa_program *p, fxa_program **out, fxa_error *err);
/* Returns which of q_row and k_row the program reads, as bits of inputs (storage_coords.c). */
uint32_t fxa__program_storage_inputs(const fxa_program *p);
/* Makes a copy of p in which q replaces q_row and k replaces k_row. inputs: bits of those inputs (q_row, k_row) that
 * are replaced. p is a SCORE or BPROP program or NULL. *out is p itself, retained, if nothing is replaced. */
fxa_status fxa__program_without_storage_inputs(fxa__host *host, fxa_program *p, uint32_t inputs, fxa_program **out,
                                               fxa_error *err);

/* ---- Parsing (parse.c), derivative (derive.c), bytes (program_bytes.c) ----------------------------------------- */

/* Implements fxa_program_parse_texts; the caller has checked the size of *config. */
fxa_status fxa__program_parse(fxa__host *host, const fxa_parse_config *config, fxa_program **out, fxa_error *err);
/* Appends the bytes of p to w. defaults: true includes the default values of params; cache keys and plans exclude
 * them. */
fxa_status fxa__program_write(const fxa_program *p, bool defaults, fxa__writer *w);
/* Reads a program from r, which may have more bytes after it. Fails with FXA_E_BYTES or FXA_E_VERSION. */
fxa_status fxa__program_read(fxa__host *host, fxa__reader *r, fxa_program **out, fxa_error *err);

/* ---- Evaluation in f64 (eval.c), which defines the meaning of a program ---------------------------------------- */

typedef union fxa__val {
    double f;
    int32_t i; /* value of an int; 0 or 1 for a bool */
} fxa__val;

typedef struct fxa__env {
    double score, dscore;
    int32_t coord[FXA_INPUT_COUNT]; /* [fxa_input] coordinates and lengths; SCORE and DSCORE are unused */
    const double *params;
    const fxa_view *tensors;
} fxa__env;

/* Fills env from the arguments of fxa_program_eval. Fails with FXA_E_BINDING and names the argument that is invalid. */
fxa_status fxa__env_bind(const fxa_program *p, const double *in, const double *params, const fxa_view *tensors,
                         fxa__env *env, fxa_error *err);
/* Fills vals[n_nodes] with the value of every node. Loads out of bounds give 0. */
void fxa__program_eval(const fxa_program *p, const fxa__env *env, fxa__val *vals);
/* Returns the value of one operation; evaluation and constant folding both use it. `type` is the type of the operands
 * (of select: of the two choices). */
fxa__val fxa__op_eval(uint32_t op, uint32_t result_type, uint32_t type, const fxa__val *x);
/* Sets *offset, in elements, to the element at index[rank]; negative indices count from the end of their axis. Returns
 * false if an index is out of bounds. */
bool fxa__view_offset(const fxa_view *view, const int32_t *index, int64_t *offset);

/* ---- Queries of programs --------------------------------------------------------------------------------------- */

/* Returns the node of the first output of a kind, -1 if there is none. */
int32_t fxa__program_output(const fxa_program *p, uint32_t kind);
/* Prints a node as an expression. The text is cut off after max_bytes bytes, and "..." follows. */
void fxa__program_print_value(const fxa_program *p, int32_t node, size_t max_bytes, fxa__writer *w);
/* Returns true if n is x == y or x != y of two loads of i64 tensors: the elements are compared in all 64 bits. Every
 * other use of such a load takes the value saturated to 32 bits. The 64-bit comparison is no operation of its own, so
 * the rule does not change the hash of a program. */
static inline bool fxa__node_compares_wide(const fxa_program *p, const fxa__node *n) {
    if (n->op != FXA_OP_EQ && n->op != FXA_OP_NE) return false;
    const fxa__node *x = &p->nodes[n->arg[0]], *y = &p->nodes[n->arg[1]];
    return x->op == FXA_OP_LOAD && y->op == FXA_OP_LOAD && p->tensors[x->imm].dtype == FXA_I64 &&
           p->tensors[y->imm].dtype == FXA_I64;
}
/* Sets of inputs: the inputs that vary with the query row, and the inputs that vary with the key. */
enum { FXA__OF_ROW = 1 << FXA_INPUT_Q | 1 << FXA_INPUT_Q_ROW, FXA__OF_KEY = 1 << FXA_INPUT_K | 1 << FXA_INPUT_K_ROW };
/* Returns the bit of the input that a node is; 0 if it is no input. */
static inline uint32_t fxa__node_input(const fxa__node *n) { return n->op == FXA_OP_INPUT ? 1u << n->imm : 0; }
/* Returns the number of leading operands that determine a node's value: n_args, but 1 for with_grad, whose second
 * operand serves the derivative only and need not be evaluated. */
static inline int fxa__node_operands(const fxa__node *n) { return n->op == FXA_OP_WITH_GRAD ? 1 : n->n_args; }
/* Writes sets[n_nodes], a set of inputs for each node: bit i is set if the node or its derivative depends on fxa_input
 * i. (src/lower/depend.h ignores derivatives.) */
void fxa__program_inputs(const fxa_program *p, uint16_t *sets);

/* Like fxa_program_classify, but in the caller's floating-point state. If `steps` is not NULL, adds to *steps the work
 * that depends on data: tensor elements and bounds that are read, values of coordinates that are tried. */
fxa_tile_class fxa__program_classify(const fxa_program *program, const fxa_tile_bounds *box, const double *params,
                                     const fxa_tensor_range *tensors, uint64_t *steps);
/* Sets lo..hi to an interval that contains all values of an int or bool (0..1) node over a box (range.c). Returns false
 * if nothing is known. Adds to *steps the work that depends on data; `steps` is not NULL. */
bool fxa__program_int_range(const fxa_program *p, int32_t node, const fxa_tile_bounds *box, const double *params,
                            const fxa_tensor_range *tensors, int64_t *lo, int64_t *hi, uint64_t *steps);

#endif
