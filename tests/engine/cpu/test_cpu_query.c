/* SPDX-License-Identifier: Apache-2.0
 *
 * Support reports of the cpu engine for programs with an operation that it has no code for: a refusal that names the
 * operation. No such operation exists, so nodes of real programs get invalid operations, or types that their operation
 * lacks.
 */
#include "t.h"

#include "engine/instance.h"
#include "program/program.h"

/* Returns the last operation of a program that has n_args operands. */
static fxa__node *node_find(const fxa_program *p, int n_args) {
    for (int32_t i = p->n_nodes - 1; i >= 0; i--) {
        fxa__node *n = (fxa__node *)(uintptr_t)&p->nodes[i];
        if (n->n_args == n_args && n->op != FXA_OP_LOAD) return n;
    }
    return NULL;
}

static fxa_program *program_make(fxa__host *host, fxa_program_kind kind, const char *text) {
    fxa_program *program = NULL;
    fxa_error err;
    fxa_text one = {NULL, text, SIZE_MAX};
    fxa_parse_config config = {.struct_size = sizeof config, .kind = (uint32_t)kind, .texts = &one, .n_texts = 1};
    T_OK(fxa__program_parse(host, &config, &program, &err));
    return program;
}

static fxa__problem *problem_make(fxa__host *host, fxa_pass pass, fxa_program *score, fxa_program *bprop) {
    fxa_problem problem = {.struct_size = sizeof problem, .b = 1, .hq = 1, .sq = 4, .sk = 4, .d_qk = 8};
    fxa__problem *p = NULL;
    fxa_error err;
    problem.pass = pass;
    problem.program = score;
    problem.bprop = bprop;
    problem.q.dtype = FXA_F32;
    if (pass == FXA_BACKWARD) problem.flags = FXA_GRAD_Q;
    T_OK(fxa__problem_create(host, &problem, &p, &err));
    return p;
}

static void check_query(const fxa__problem *p, int supported, const char *says) {
    const fxa__engine *cpu = &fxa__engine_cpu;
    fxa__instance *instance;
    fxa_support report = {0};
    fxa_error err;
    T_OK(fxa__instance_get(p->host, cpu, 0, NULL, &instance, &err));
    T_ENDED(fxa__analysis_end) fxa__analysis a = fxa__analysis_of(instance, p);
    T_OK(cpu->query(&a, NULL, &report, &err));
    T_INT(report.supported, supported);
    const char *reason = report.reason;
    if (!strstr(reason, says)) T_FAIL("the reason is \"%s\", without \"%s\"\n", reason, says);
    T_INT(a.derived != NULL, supported);
}

/* Changes one node of each program of a problem in turn, checks the refusal, and restores the node. */
static void check_program(const fxa__problem *p, const fxa_program *program, int n_args) {
    fxa__node *n = node_find(program, n_args);
    T_REQUIRE(n);
    fxa__node before = *n;
    check_query(p, 1, "");
    n->op = FXA_OP_COUNT + 5;
    check_query(p, 0, "unknown");
    n->op = before.op == FXA_OP_EXP ? FXA_OP_SHL : FXA_OP_EXP; /* bits of a float; exp with too many operands */
    n->type = FXA_BOOL;
    check_query(p, 0, n->op == FXA_OP_SHL ? "operation SHL" : "operation EXP");
    *n = before;
    check_query(p, 1, "");
}

TEST(an_operation_without_code_is_refused_by_name) {
    fxa__host *host = NULL;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    fxa_program *score = program_make(host, FXA_PROGRAM_SCORE, "score = exp(score) + 1.5");
    fxa_program *bprop = program_make(host, FXA_PROGRAM_BPROP, "dscore = dscore * exp(score)");
    fxa__problem *forward = problem_make(host, FXA_FORWARD, score, NULL);
    fxa__problem *backward = problem_make(host, FXA_BACKWARD, score, NULL);
    fxa__problem *own = problem_make(host, FXA_BACKWARD, score, bprop);
    T_REQUIRE(forward && backward && own);
    check_program(forward, forward->program, 1);
    check_program(forward, forward->program, 2);
    check_program(backward, backward->program, 1);
    check_program(backward, backward->program, 2);
    check_program(own, own->in.bprop, 1);
    check_program(own, own->in.bprop, 2);
    fxa__problem_release(forward);
    fxa__problem_release(backward);
    fxa__problem_release(own);
    fxa_program_destroy(bprop);
    fxa_program_destroy(score);
    fxa__host_release(host);
}

T_MAIN
