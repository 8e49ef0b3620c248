/* SPDX-License-Identifier: Apache-2.0
 *
 * Frame of tests that compare an engine of a device with the reference. The frame runs the passes of a case, runs other
 * engines on the same case, counts the outcomes, and reads these environment variables:
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
    /* backward is skipped: forward was wrong, only forward was requested, or a row's LSE is not finite */
    FRAME_NOT_RUN,
    FRAME_RIGHT,
    FRAME_REFUSED,
    FRAME_UNSURE, /* not conclusive */
    FRAME_WRONG
} frame_state;

typedef struct conf_frame {
    const char *engine;
    const char *other[FRAME_OTHERS]; /* further engines for passes that the engine under test supports; NULL = none */
    uint32_t others;
    bool forward_alone;
    unsigned seconds; /* time limit of a pass, after which the process ends; 0 = none */
    conf_tally all, all_others;
    int64_t cases;                /* number of cases with a correct pass */
    int64_t done[2], refused[2];  /* by pass */
    int64_t agreed[FRAME_OTHERS]; /* number of passes in which the other engine was correct */
    frame_state state[2];         /* [pass] states of the last case */
    frame_state said[FRAME_OTHERS][2];
    char detail[2][160]; /* [pass] plan descriptions of the last case */
} conf_frame;

bool frame_is_set(const char *variable);
/* Returns the number of cases of a test, and sets *from to the first case: `most` cases from 0 on, those of
 * FXA_TEST_CASES=first,number, or the one of FXA_TEST_CASE. */
int frame_cases(int most, int *from);
/* Returns the reason why the first engine refuses a small problem of that dtype on a device; NULL if the engine
 * supports it. */
const char *frame_missing(fxa_dtype dtype);
/* Makes a context and a frame for the engine of FXA_TEST_ENGINE, else for cuda. Returns NULL, or the reason why that
 * engine cannot run on this machine. */
const char *frame_begin(conf_frame *f, unsigned seconds, fxa_context **ctx);
uint32_t frame_features(uint32_t drawn);
/* Returns a random number of rows or keys: often near the edge of a tile, or small. */
int64_t frame_length(uint64_t *rng);
/* Returns the random state of the case that FXA_TEST_CASE repeats, else `start`. */
uint64_t frame_start(uint64_t start);

/* Runs one pass with all engines of the frame. Returns false, with the reason in c->why, if a result is wrong. */
bool frame_pass(conf_frame *f, conf_case *c, fxa_pass pass);
/* Runs both passes, backward only if every row's LSE is finite. */
bool frame_passes(conf_frame *f, conf_case *c);
/* Prints the counts in one line. */
void frame_print(const conf_frame *f);

#endif
