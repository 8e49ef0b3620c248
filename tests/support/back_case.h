/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward problems of a given shape with data, for tests of the cpu engine: every buffer, the workspace included, lies
 * against a page that nobody may touch.
 */
#ifndef FXA_TESTS_BACK_CASE_H
#define FXA_TESTS_BACK_CASE_H

#include "fxattn/fxattn.h"
#include "guard.h"

#include <stdbool.h>

typedef struct back_spec {
    int64_t b, hq, hkv, sq, sk, d, dv;
    fxa_dtype dtype; /* f32 or f64 */
    uint32_t flags;  /* of both passes */
    const char *text;
    int64_t tensor[FXA_MAX_RANK]; /* sizes of its captured tensor, f32, whose gradient is asked for; none: 0 */
    uint32_t page_size;           /* not 0: paged, and pages are shared */
    bool expanded;                /* dO is one row for all */
    bool front;                   /* buffers begin at the forbidden page instead of ending there */
    double dropout_p;
} back_spec;

/* A param, if the program has one, is 1.25 and gets a gradient. */
enum { BACK_DQ, BACK_DK, BACK_DV, BACK_TENSOR, BACK_PARAM, BACK_OUTS };
enum { BACK_Q, BACK_K, BACK_V, BACK_DO, BACK_O, BACK_LSE, BACK_DLSE, BACK_INS };

typedef struct back_case {
    back_spec s;
    fxa_program *program;
    fxa_problem p;
    fxa_capture capture;
    guard in[BACK_INS], out[BACK_OUTS], tensor, pages, workspace;
    int64_t n[FXA_SLOT_COUNT]; /* elements by slot */
    double param;
} back_case;

/* Random inputs; O and LSE come from a forward run. NULL: the program does not parse, err says why. */
back_case *back_make(fxa_context *ctx, const back_spec *s, uint64_t seed, fxa_error *err);
void back_free(back_case *x);
fxa_status back_run(fxa_context *ctx, back_case *x, const char *engine, fxa_pass pass, fxa_error *err);

fxa_dtype back_dtype(const back_case *x, int out);
bool back_wrote(const back_case *x, int out);
double back_get(fxa_dtype t, const void *x, int64_t i);
void back_set(fxa_dtype t, void *x, int64_t i, double v);

/* Takes copies of the outputs and wipes them; drop frees the copies. */
void back_keep(const back_case *x, unsigned char *kept[BACK_OUTS]);
void back_drop(unsigned char *kept[BACK_OUTS]);

#endif
