/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of an engine of a device against the reference have in common: a case's passes, other engines at the same
 * case as further opinions, what came of them, and the environment of such tests:
 *
 *   FXA_TEST_ENGINE                       the engine that is tested, where a test has not one of its own
 *   FXA_TEST_FEATURES, FXA_TEST_WITHOUT   features of attn_case.h that are forced, or taken away
 *   FXA_TEST_REASONS=1                    prints why something was refused
 *   FXA_TEST_CASE=0x...                   one case again, by what a failure printed
 */
#ifndef FXA_TESTS_CONF_FRAME_H
#define FXA_TESTS_CONF_FRAME_H

#include "conf_case.h"

enum { FRAME_OTHERS = 2 };

typedef enum frame_state {
    FRAME_NOT_RUN, /* of backward: forward was not right, is alone, or has rows without finite statistics */
    FRAME_RIGHT,
    FRAME_REFUSED,
    FRAME_UNSURE, /* nothing can be said */
    FRAME_WRONG
} frame_state;

typedef struct conf_frame {
    const char *engine;
    const char *other[FRAME_OTHERS]; /* asked about what it did, too; NULL: none. Not asked of a case: `others` */
    uint32_t others;
    bool forward_alone;
    unsigned seconds; /* after which a pass that hangs ends the process; 0: never */
    conf_tally all, all_others;
    int64_t cases;                /* where a pass was right */
    int64_t done[2], refused[2];  /* by pass */
    int64_t agreed[FRAME_OTHERS]; /* passes at which they were right */
    frame_state state[2];         /* of the last case */
    frame_state said[FRAME_OTHERS][2];
    char detail[2][160]; /* of its plans */
} conf_frame;

bool frame_is_set(const char *variable);
/* How many cases a test draws, and the number of the first: `most` from 0 on, those of FXA_TEST_CASES=first,number, or
 * the one that FXA_TEST_CASE names. */
int frame_cases(int most, int *from);
/* Why the first engine does not take a small problem of that dtype, on a device; NULL: it does. */
const char *frame_missing(fxa_dtype dtype);
/* A frame for the engine that FXA_TEST_ENGINE names, else for cuda, and a context; else why that does not run here. */
const char *frame_begin(conf_frame *f, unsigned seconds, fxa_context **ctx);
uint32_t frame_features(uint32_t drawn);
/* A number of rows or keys: often at the edge of a tile, or few. */
int64_t frame_length(uint64_t *rng);
/* Where a replayed case starts; else `start`. */
uint64_t frame_start(uint64_t start);

/* One pass, by all engines that are asked. False with c->why where one is wrong. */
bool frame_pass(conf_frame *f, conf_case *c, fxa_pass pass);
/* Both, backward where statistics are finite. */
bool frame_passes(conf_frame *f, conf_case *c);
/* Counts, in one line. */
void frame_print(const conf_frame *f);

#endif
