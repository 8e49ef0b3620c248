/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of a pass: see work.h.
 */
#include "work.h"

#include <math.h>

/* Sum of max(t - i, 0) over n rows i, without what is left over at the ends. */
static double work_corner(double t, double n) {
    if (!(t > 0)) return 0;
    return t <= n ? 0.5 * t * t : n * (t - 0.5 * n);
}

static double work_pairs(const fxa__problem *p) {
    const fxa_problem *in = &p->in;
    bool packed = in->flags & FXA_VARLEN;
    double b = (double)in->b, sq = packed && b > 0 ? (double)in->total_q / b : (double)in->sq;
    double sk = packed && b > 0 && !(in->flags & FXA_PAGED) ? (double)in->total_k / b : (double)in->sk;
    fxa_facts facts;
    fxa_program_facts(p->program, &facts);
    double right = facts.flags & FXA_FACT_CAUSAL_BOTTOM_RIGHT ? fmax(sk - sq, 0) : facts.window_right;
    double left_out = work_corner(sk - right, sq) + work_corner(sq - facts.window_left, sk);
    return b * (double)in->hq * fmax(sq * sk - left_out, fmin(sq, sk));
}

/* Forward has two products, Q K^T and P V; backward five, three of them with d columns. */
double fxa__problem_operations(const fxa__problem *p) {
    double d = (double)p->in.d, dv = (double)p->in.dv, columns = p->in.pass == FXA_FORWARD ? d + dv : 3 * d + 2 * dv;
    return 2 * columns * work_pairs(p);
}
