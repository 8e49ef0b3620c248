/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for the tests of src/problem: a host, programs from text, and small problems to be changed. They are
 * descriptions without data, the first layer of attn_data.h.
 */
#ifndef FXA_TESTS_PROBLEM_CASE_H
#define FXA_TESTS_PROBLEM_CASE_H

#include "problem/bound_args.h"
#include "support/fixtures/attn_data.h"
#include "t.h"

/* Two params and three tensors, declared out of order. The slots are sorted: bias, ids, table and gain, shift. */
#define CASE_TEXT                                                                                                      \
    "param shift : int\nparam gain : float\ntensor table : i32[1]\ntensor bias : f32[2]\ntensor ids : i64[1]\n"        \
    "score = score * gain + bias[h, q] + float(table[k] + shift)\nmask = ids[q] == ids[k]\n"
#define CASE_BPROP "param slope : float\ntensor extra : f64[1]\ndscore = dscore * slope + extra[q]\n"

/* t_problem *p declares a pointer whose problem is released at the end of its block. */
__attribute__((unused)) static void t_problem_drop(fxa__problem **p) { fxa__problem_release(*p); }
#define t_problem __attribute__((cleanup(t_problem_drop))) fxa__problem

__attribute__((unused)) static fxa__host *case_host(void) {
    static fxa__host *host;
    if (!host && fxa__host_create(NULL, NULL, &host, NULL) != FXA_OK) abort();
    return host;
}

__attribute__((unused)) static fxa_program *case_parse(fxa_program_kind kind, const char *text) {
    fxa_error err;
    fxa_program *program = NULL;
    fxa_text one = {NULL, text, SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = (uint32_t)kind, config.texts = &one, config.n_texts = 1;
    if (fxa__program_parse(case_host(), &config, &program, &err) != FXA_OK) T_FAIL("%d: %s\n", err.line, err.text);
    return program;
}

__attribute__((unused)) static const fxa_program *case_score(void) {
    static fxa_program *program;
    return program ? program : (program = case_parse(FXA_PROGRAM_SCORE, CASE_TEXT));
}

__attribute__((unused)) static const fxa_program *case_bprop(void) {
    static fxa_program *program;
    return program ? program : (program = case_parse(FXA_PROGRAM_BPROP, CASE_BPROP));
}

/* Returns a forward problem: [2,4,5,8] x [2,2,6,8], d_v 3, no program. */
__attribute__((unused)) static fxa_problem case_forward(void) {
    static const attn_spec spec = {.b = 2, .hq = 4, .hkv = 2, .sq = 5, .sk = 6, .d = 8, .dv = 3};
    return attn_spec_problem(&spec);
}

__attribute__((unused)) static fxa_problem case_backward(void) {
    fxa_problem p = case_forward();
    p.pass = FXA_BACKWARD;
    p.flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    return p;
}

/* Returns a problem with CASE_TEXT; captures[3] belongs to the caller. */
__attribute__((unused)) static fxa_problem case_captured(fxa_capture *captures, bool backward) {
    fxa_problem p = backward ? case_backward() : case_forward();
    memset(captures, 0, 3 * sizeof *captures);
    captures[0].size[0] = 4, captures[0].size[1] = 5;
    captures[1].size[0] = 6;
    captures[2].size[0] = 6;
    p.program = case_score();
    p.captures = captures;
    p.n_captures = 3;
    return p;
}

#endif
