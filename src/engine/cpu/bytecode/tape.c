/* SPDX-License-Identifier: Apache-2.0
 *
 * Creates and destroys tapes (compiled programs), and returns the properties of a tape.
 */
#include "tape_code.h"

#include "../../../base/invariant.h"
#include "../../../lower/i64_halves.h"

/* Returns true if the tape changes neither scores nor gradients: its result is its input, no conjunct of a mask is
 * left, and nothing is summed. */
static bool tape_find_identity(const fxa__tape_graph *g) {
    bool score = g->n_roots == 1 && g->roots[0].kind == FXA__OUT_SCORE;
    bool gradient = g->n_roots == 1 && g->roots[0].kind == FXA__OUT_DSCORE;
    if (!score && !gradient) return false;
    const fxa__tape_node *n = &g->nodes[g->roots[0].node];
    return n->op == FXA_OP_INPUT && n->imm == (score ? FXA_INPUT_SCORE : FXA_INPUT_DSCORE);
}

fxa_status fxa__tape_create(fxa__host *host, const fxa_program *program, uint32_t flags,
                            const fxa__cpu_kernels *kernels, fxa__tape **out, fxa_error *err) {
    fxa__tape_graph g = {.host = host};
    fxa__i64_halves words;
    fxa_status status = FXA_OK;
    *out = NULL;
    if (!FXA__HOLDS(!fxa__tape_missing(program)))
        return fxa__fail(err, FXA_E_INTERNAL, "a program got past the cpu engine's query with an operation it lacks");
    fxa__tape *tape = fxa__alloc(host, sizeof *tape);
    if (!fxa__lower_i64_halves(host, program, &words) || !fxa__tape_graph_make(&g, host, words.program, flags) ||
        !tape) {
        status = fxa__fail_memory(err, "a score program's tape");
    } else {
        tape->host = fxa__host_retain(host);
        tape->kernels = kernels;
        tape->alone = flags & FXA__TAPE_MASK_ALONE;
        tape->identity = tape_find_identity(&g);
        fxa__tape_graph_count(&g, TAPE_ROOTS_ALL);
        if (kernels->real_size == sizeof(float) && !(flags & FXA__TAPE_PLAIN)) fxa__tape_peephole(&g);
        if (!tape->alone && !g.failed) fxa__tape_graph_share(&g);
        if (g.joint) fxa__tape_graph_value(&g), fxa__tape_graph_count(&g, TAPE_ROOTS_ALL);
        status = g.failed ? fxa__fail_memory(err, "a score program's tape") : fxa__tape_lower(&g, tape, err);
    }
    fxa__tape_graph_free(&g);
    fxa__lower_i64_halves_free(host, &words);
    if (status == FXA_OK) {
        *out = tape;
        return fxa__ok(err);
    }
    if (tape && tape->host)
        fxa__tape_destroy(tape);
    else
        fxa__free(host, tape, sizeof *tape);
    return status;
}

void fxa__tape_destroy(fxa__tape *tape) {
    if (!tape) return;
    fxa__host *host = tape->host;
    for (int i = 0; i < TAPE_LEVELS; i++) {
        fxa__tape_level *l = &tape->level[i];
        fxa__free(host, l->ins, l->ins_capacity * sizeof *l->ins);
        fxa__free(host, l->places, l->places_capacity * sizeof *l->places);
    }
    fxa__free(host, tape->accesses, tape->accesses_capacity * sizeof *tape->accesses);
    fxa__free(host, tape->ranges, tape->ranges_capacity * sizeof *tape->ranges);
    fxa__free(host, tape->leaves, tape->leaves_capacity * sizeof *tape->leaves);
    fxa__free(host, tape->tests, tape->tests_capacity * sizeof *tape->tests);
    fxa__free(host, tape->watched, tape->watched_capacity * sizeof *tape->watched);
    fxa__free(host, tape->parts, tape->parts_capacity * sizeof *tape->parts);
    fxa__free(host, tape, sizeof *tape);
    fxa__host_release(host);
}

size_t fxa__tape_bytes(const fxa__tape *tape) {
    size_t bytes = sizeof *tape;
    for (int i = 0; i < TAPE_LEVELS; i++)
        bytes += tape->level[i].ins_capacity * sizeof(fxa__tape_ins) +
                 tape->level[i].places_capacity * sizeof(fxa__tape_place);
    bytes += tape->accesses_capacity * sizeof *tape->accesses + tape->ranges_capacity * sizeof *tape->ranges;
    bytes += tape->leaves_capacity * sizeof *tape->leaves + tape->tests_capacity * sizeof *tape->tests;
    return bytes + tape->watched_capacity * sizeof *tape->watched + tape->parts_capacity * sizeof *tape->parts;
}

bool fxa__tape_is_identity(const fxa__tape *tape) { return tape->identity; }
