/* SPDX-License-Identifier: Apache-2.0
 *
 * Results of `explain`, and the functions that print them as text and as JSON.
 */
#ifndef FXA_CLI_EXPLAIN_H
#define FXA_CLI_EXPLAIN_H

#include "explain/index_report.h"
#include "input/job.h"
#include "io/json.h"

/* Sections of the report in their order; --section takes their names. */
enum {
    SECTION_PROGRAM,
    SECTION_CANONICAL,
    SECTION_DERIVATIVE,
    SECTION_BACKWARD,
    SECTION_VALUES,
    SECTION_PROPERTIES,
    SECTION_CLASSES,
    SECTION_CONJUNCTS,
    SECTION_FUSED,
    SECTION_PROBLEM,
    SECTION_TILES,
    SECTION_INDICES,
    SECTION_ENGINES,
    SECTION_TAPE,
    SECTION_HINTS,
    SECTION_COUNT
};

#define EXPLAIN_HINTS 4

typedef struct explanation {
    uint32_t sections; /* bit i = section i is printed; results that no section needs are not computed */
    fxa_program *program, *derivative; /* program that runs, with built-in masks, and its derivative */
    const char *canonical, *derivative_text, *bprop_text;
    const char *dump[3]; /* [fxa_dump_kind] text of each dump; NULL = its section is not printed */
    fxa_properties properties;
    int64_t b, h, tile[2];
    bool has_tiles;
    fxa_tile_counts tiles;
    bool has_values; /* true = all params and tensors have values, so indices can be checked */
    index_report outside;
    fxa_support *support[2];      /* [fxa_pass][engine] support results */
    fxa_tile_counts *tiles_of[2]; /* [fxa_pass][engine] counts of the engine's own tiles; all 0 = none */
    size_t n_support[2];
    /* [engine] support of backward without gradients of params and tensors; NULL = the problem has no such gradients,
     * or no engine refuses because of them */
    fxa_support *qkv;
    const char *tape[2];        /* [fxa_pass] dump of the plan; NULL = there is no plan */
    const char *tape_engine[2]; /* [fxa_pass] "cpu (avx512, 2 threads)", or the reason why there is no plan */
    const char *hints[EXPLAIN_HINTS];
    size_t n_hints;
} explanation;

/* Share of a dense pass that remains after an engine has skipped its empty tiles. */
typedef struct explain_share {
    uint64_t left, all; /* tiles; all == 0: unknown */
    const char *bound;  /* "exact", "at least", "at most" or "not known" */
} explain_share;
explain_share explain_share_of(const explanation *e, int pass, size_t engine);

static inline bool explain_has_section(const explanation *e, int section) { return e->sections >> section & 1; }
/* Adds the hints to e, in which the tiles and engines must have been computed. Returns an exit code. */
int explain_find_hints(cli *c, const cli_job *job, explanation *e);
/* Adds canonical text with long lines broken, and the gradients of each tensor in the order of their elements. */
void explain_layout(cli *c, cli_buf *out, int indent, const char *text);

void explain_text(cli *c, const cli_job *job, const explanation *e);
void explain_json(cli *c, const cli_job *job, const explanation *e);
/* Returns the shape of a problem as "b=1,h=2,..."; owned by c. */
const char *problem_shape_text(cli *c, const fxa_problem *p);
void problem_shape_json(json *j, const char *key, const fxa_problem *p);
/* Adds members tile_q, tile_k, empty, mixed, full, unknown to the open object. */
void tile_counts_json(json *j, int64_t tile_q, int64_t tile_k, const fxa_tile_counts *t);
void program_hash_text(const fxa_program *program, char out[33]);

#endif
