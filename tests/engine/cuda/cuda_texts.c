/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints program.cuh for programs of files and for random ones, forward only or with backward, for
 * tests/engine/cuda/test_cuda_generated.py. Each text starts with a line "=== NAME", or "=== NAME refused: WHY".
 *
 *     cuda_texts RANDOM (grads | fixed | alone) FILE...      fixed: deterministic gradients of captured tensors
 *
 * The line "// f: ..." lists what a run stores in f[] and i[]: the scale, params by name, constants, and expressions of
 * these. After "sums:" it lists what partials() returns: the index of the element if a gradient goes to a constant
 * index, else the number of the sum. A tensor called dense may be read as a dense bias.
 */
#include "lower/lower_fixture.h"

#include "engine/cuda/codegen/codegen.h"

/* Prints the names of the params of a type, by their index in f[] or i[], which is their order in the rewritten
 * program. */
static void texts_arguments(const fxa_program *p, const fxa__cuda_program *out, uint8_t type) {
    printf(" %s:", type == FXA_FLOAT ? "f" : "i");
    for (int32_t i = 0; i < out->program->n_params; i++) {
        int32_t from = out->params[i].source;
        if (out->program->params[i].type != type) continue;
        if (from == FXA__CUDA_CONSTANT)
            printf(" %.17g", out->params[i].value);
        else
            printf(" %s", from == FXA__CUDA_SCALE ? "scale" : p->params[from].name);
    }
}

/* Prints an expression of run-time values in Python syntax. */
static void texts_expression(const fxa_program *p, const fxa__cuda_program *out, int32_t node) {
    const fxa__node *n = &out->program->nodes[node];
    const char *op = n->op == FXA_OP_ADD ? "+" : n->op == FXA_OP_SUB ? "-" : n->op == FXA_OP_DIV ? "/" : "*";
    if (n->op == FXA_OP_CONST) {
        printf("%.17g", n->f);
    } else if (n->op == FXA_OP_PARAM) {
        const fxa__cuda_param *x = &out->params[n->imm];
        if (x->source == FXA__CUDA_CONSTANT)
            printf("%.17g", x->value);
        else
            printf("%s", x->source == FXA__CUDA_SCALE ? "scale" : p->params[x->source].name);
    } else if (n->n_args == 1) {
        printf(n->op == FXA_OP_NEG ? "-(" : "abs(");
        texts_expression(p, out, n->arg[0]);
        printf(")");
    } else {
        printf("(");
        texts_expression(p, out, n->arg[0]);
        printf("%s", op);
        texts_expression(p, out, n->arg[1]);
        printf(")");
    }
}

static void texts_unit(const fxa_program *p, const fxa__cuda_program *out) {
    printf("*1.4426950408889634*");
    if (out->computed.factor >= 0) texts_expression(p, out, out->computed.factor);
    if (out->computed.factor < 0) printf("1");
}

/* Prints the values of a soft cap that a run stores, series_limit() and those after it, as codegen/host_values.c
 * computes them. */
static void texts_bend(const fxa_program *p, const fxa__cuda_program *out) {
    static const char *const terms[FXA_CUDA_SOFTCAP_TERMS] = {"0.9999999268692358", "-0.33332309972578855",
                                                              "0.1331017362435341", "-0.05210147853455042",
                                                              "0.015475425267545645"};
    printf(" 0.6/abs(");
    texts_expression(p, out, out->computed.softcap_factor);
    printf(")");
    for (int k = 0; k < FXA_CUDA_SOFTCAP_TERMS; k++) {
        printf(" %s*", terms[k]);
        texts_expression(p, out, out->computed.softcap_factor);
        printf("**%d", 2 * k + 1);
        if (out->switches.softcap_has_unit) texts_unit(p, out);
    }
    /* exp_limit() and the values of softcap_exp(), for caps up to 64 */
    static const char *const far[] = {" 28/abs(2.8853900817779268*", ") 2.8853900817779268*", " -0.5/(1"};
    for (int k = 0; k < 3; k++) {
        printf("%s", far[k]);
        if (k < 2) texts_expression(p, out, out->computed.softcap_factor);
    }
    if (out->switches.softcap_has_unit) texts_unit(p, out);
    printf(")");
}

/* Prints the values that a run stores after the float params. */
static void texts_runs(const fxa_program *p, const fxa__cuda_program *out) {
    for (int32_t i = 0; i < out->computed.n; i++) {
        printf(" ");
        texts_expression(p, out, out->computed.node[i]);
    }
    if (out->computed.unit_at >= 0) {
        printf(" 1.4426950408889634*");
        texts_expression(p, out, out->computed.factor);
    }
    if (out->computed.softcap_at >= 0) texts_bend(p, out);
}

/* Prints the terms of the sums: for a tensor the last index if it is a constant, else the number of the sum. */
static void texts_sums(const fxa__cuda_program *out) {
    printf(" sums:");
    for (int32_t i = 0; i < out->switches.grad_sums; i++) {
        const fxa__output *x = &out->program->outputs[out->gradients.sums[i]];
        const fxa__node *last = x->n_index ? &out->program->nodes[x->index[x->n_index - 1]] : NULL;
        printf(" %d", last && last->op == FXA_OP_CONST ? (int)last->imm : (int)i);
    }
}

static void texts_show(rig *r, fxa_program *p, const char *name, bool backward, const char *grads) {
    t_program *d = NULL, *lifted = NULL;
    fxa_error err = {.status = FXA_OK};
    fxa__cuda_program out;
    if (fxa__program_extract_masks(r->host, p, &lifted, &err) != FXA_OK) abort();
    if (backward && fxa_program_derivative(lifted, &d, &err) != FXA_OK) abort();
    uint64_t wanted = strcmp(grads, "alone") ? UINT64_MAX : 0;
    fxa__cuda_config config = {.program = lifted, .derivative = d, .grad_params = wanted, .grad_tensors = wanted};
    config.assumed.dense = fxa_program_tensor_find(lifted, "dense");
    config.assumed.operands_fit = config.assumed.finite_factors = true;
    config.sizes_fit = true;
    config.deterministic = backward && strcmp(grads, "fixed") == 0;
    if (fxa__cuda_program_make(r->host, &config, &out, &err) != FXA_OK)
        printf("=== %s refused: %s\n", name, err.text);
    else {
        printf("=== %s %s\n//", name, backward ? "backward" : "forward");
        texts_arguments(lifted, &out, FXA_FLOAT);
        texts_runs(lifted, &out);
        texts_arguments(lifted, &out, FXA_INT);
        texts_sums(&out);
        printf("\n%.*s", (int)out.text.size, (const char *)out.text.data);
    }
    fxa__cuda_program_free(&out);
    fxa_program_destroy(p);
}

int main(int argc, char **argv) {
    (void)t_list, (void)t_count, (void)t_skips; /* no tests here */
    static char text[1 << 16];
    rig *r = calloc(1, sizeof *r);
    if (!r || !rig_start(r) || argc < 3) return 1;
    for (int i = 3; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
        const char *slash = strrchr(argv[i], '/');
        if (!file) return 1;
        fclose(file);
        text[n] = 0;
        for (int backward = 0; backward < 2; backward++)
            texts_show(r, rig_parse(r, text), slash ? slash + 1 : argv[i], backward, argv[2]);
    }
    for (int i = 0; i < atoi(argv[1]); i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "random%d", i);
        texts_show(r, rig_program(r, GEN_NO_STORED | (i % 2 ? GEN_SMOOTH : GEN_NO_SPECIAL)), name, true, argv[2]);
    }
    rig_end(r);
    free(r);
    return 0;
}
