/* SPDX-License-Identifier: Apache-2.0
 *
 * Frame of tests that compare an engine of a device with the reference: the passes of a case, other engines on the same
 * case, counts of the outcomes, and the environment:
 *
 *   FXA_TEST_ENGINE                       engine under test, unless a test has its own
 *   FXA_TEST_FEATURES, FXA_TEST_WITHOUT   features of attn_case.h that are forced, or removed
 *   FXA_TEST_REASONS=1                    prints the reasons of refusals
 *   FXA_TEST_CASE=0x...                   repeats one case, by the value that a failure printed
 */
#ifndef FXA_TESTS_CONF_FRAME_H
#define FXA_TESTS_CONF_FRAME_H

#include "conf_case.h"

enum { FRAME_OTHERS = 2 };

typedef enum frame_state {
    /* backward is skipped: forward was wrong, only forward was requested, or rows have no finite statistics */
    FRAME_NOT_RUN,
    FRAME_RIGHT,
    FRAME_REFUSED,
    FRAME_UNSURE, /* not conclusive */
    FRAME_WRONG
} frame_state;

typedef struct conf_frame {
    const char *engine;
    const char *other[FRAME_OTHERS]; /* further engines for the passes that the engine under test ran; NULL = none */
    uint32_t others;
    bool forward_alone;
    unsigned seconds; /* time limit of a pass, after which the process ends; 0 = none */
    conf_tally all, all_others;
    int64_t cases;                /* cases with a correct pass */
    int64_t done[2], refused[2];  /* by pass */
    int64_t agreed[FRAME_OTHERS]; /* passes in which the other engine was correct */
    frame_state state[2];         /* states of the last case, by pass */
    frame_state said[FRAME_OTHERS][2];
    char detail[2][160]; /* plan descriptions of the last case, by pass */
} conf_frame;

bool frame_is_set(const char *variable);
/* Returns the number of cases of a test, and the number of the first: `most` from 0 on, those of
 * FXA_TEST_CASES=first,number, or the one of FXA_TEST_CASE. */
int frame_cases(int most, int *from);
/* Returns the reason why the first engine refuses a small problem of that dtype on a device; NULL if it does not. */
const char *frame_missing(fxa_dtype dtype);
/* Makes a context and a frame for the engine of FXA_TEST_ENGINE, else for cuda. Returns NULL, or the reason why that
 * engine cannot run. */
const char *frame_begin(conf_frame *f, unsigned seconds, fxa_context **ctx);
uint32_t frame_features(uint32_t drawn);
/* Returns a random number of rows or keys: often at the edge of a tile, or few. */
int64_t frame_length(uint64_t *rng);
/* Returns the random state of a repeated case, else `start`. */
uint64_t frame_start(uint64_t start);

/* Runs one pass with all engines. Returns false, with c->why, if one is wrong. */
bool frame_pass(conf_frame *f, conf_case *c, fxa_pass pass);
/* Runs both passes, backward only if statistics are finite. */
bool frame_passes(conf_frame *f, conf_case *c);
/* Prints the counts in one line. */
void frame_print(const conf_frame *f);

#endif
