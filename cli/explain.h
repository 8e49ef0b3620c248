/* SPDX-License-Identifier: Apache-2.0
 *
 * What explain has found out, and the two ways to write it down. */
#ifndef FXA_CLI_EXPLAIN_H
#define FXA_CLI_EXPLAIN_H

#include "indices.h"
#include "job.h"
#include "json.h"

/* The sections of the report, by the names of --section, in this order. */
enum {
    SECTION_PROGRAM,
    SECTION_CANONICAL,
    SECTION_DERIVATIVE,
    SECTION_BACKWARD,
    SECTION_VALUES,
    SECTION_PROPERTIES,
    SECTION_CLASSES,
    SECTION_CONJUNCTS,
    SECTION_JOINT,
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
    uint32_t sections;                 /* bit i: section i is asked for; what no section needs is not found out */
    fxa_program *program, *derivative; /* with ready masks */
    const char *canonical, *derivative_text, *bprop_text;
    const char *lowering[3]; /* by fxa_dump_kind, where its section is asked for */
    fxa_properties properties;
    int64_t b, h, tile[2];
    bool has_tiles;
    fxa_tile_counts tiles;
    bool knows_values; /* params and tensors are all there, so that indices can be looked at */
    indices outside;
    fxa_support *support[2];      /* by fxa_pass */
    fxa_tile_counts *tiles_of[2]; /* the same engines' own tiles; none: 0 everywhere */
    size_t n_support[2];
    fxa_support *qkv;    /* backward once more, without gradients of params and tensors; NULL: there are none, or nobody
                         says no because of them */
    const char *tape[2]; /* what the engine of a plan runs, by pass; NULL: there is no plan, and in */
    const char *tape_engine[2]; /* instead of "cpu (avx512, 2 threads)", why */
    const char *hints[EXPLAIN_HINTS];
    size_t n_hints;
} explanation;

/* What an engine's own tiles leave of the work of a dense pass. */
typedef struct explain_share {
    uint64_t left, all; /* tiles; all 0: nothing to say */
    const char *bound;  /* "exact", "at least", "at most" or "not known" */
} explain_share;
explain_share explain_share_of(const explanation *e, int pass, size_t engine);

static inline bool explain_wants(const explanation *e, int section) { return e->sections >> section & 1; }
/* Finds the hints; tiles and engines are known. */
int explain_find_hints(cli *c, const cli_job *job, explanation *e);
/* Adds canonical text, long lines broken, gradients in the order of their elements. */
void explain_layout(cli *c, cli_buf *out, int indent, const char *text);

void explain_text(cli *c, const cli_job *job, const explanation *e);
void explain_json(cli *c, const cli_job *job, const explanation *e);
/* "b=1,h=2,..." of a problem; owned by c. */
const char *problem_shape_text(cli *c, const fxa_problem *p);
void problem_shape_json(json *j, const char *key, const fxa_problem *p);
/* Members tile_q, tile_k, empty, mixed, full, unknown of an open object. */
void tile_counts_json(json *j, int64_t tile_q, int64_t tile_k, const fxa_tile_counts *t);
void program_hash_text(const fxa_program *program, char out[33]);
/* Names of what a fact flag means; NULL for a flag that is none. */

#endif
