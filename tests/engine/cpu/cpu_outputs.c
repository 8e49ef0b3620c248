/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints a hash of all outputs of the cpu engine for each of COUNT random problems, one per line, for
 * tools/compare_outputs.py: O, LSE, row max and, from the backward pass, every gradient. Programs, shapes, strides,
 * dtypes and features are drawn. Every third problem has bf16 operands, which some instruction sets multiply as such.
 * The word "refused" after a hash says that the engine refused a pass: the hash is of the reason.
 *
 *     FXA_CPU=avx2 cpu_outputs COUNT [FIRST]
 */
#include "support/conformance/conf_case.h"

#include "fxattn/fxattn.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t outputs_hash(uint64_t hash, const void *data, size_t size) {
    const unsigned char *x = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ x[i]) * 0x100000001b3;
    return hash;
}

static attn_shape outputs_shape(uint64_t *rng) {
    static const int64_t size[][2] = {{230, 270}, {1, 1500}, {7, 900},  {70, 500},
                                      {400, 90},  {33, 47},  {12, 130}, {5, 9}};
    attn_shape s = {.b = attn_int(rng, 1, 2), .hkv = attn_int(rng, 1, 2), .d = attn_int(rng, 1, 80)};
    const int64_t *of = size[attn_int(rng, 0, 7)];
    if (attn_int(rng, 0, 3) == 0) s.d = 64;
    s.hq = s.hkv * attn_int(rng, 1, 4), s.dv = attn_int(rng, 0, 1) ? s.d : attn_int(rng, 1, 80);
    s.sq = of[0] + attn_int(rng, 0, 3), s.sk = of[1] + attn_int(rng, 0, 40);
    s.page_size = attn_int(rng, 1, 40), s.n_pages = s.b * (s.sk / s.page_size + 1) + 2;
    s.window = attn_int(rng, 0, 1) ? 9 : s.sk;
    return s;
}

/* Draws problem number i. Returns false if the numbers drawn make no problem. */
static bool outputs_draw(conf_case *c, fxa_context *ctx, int i) {
    static conf_tally tally;
    uint64_t rng = 0x9e3779b97f4a7c15u * (uint64_t)(i + 1);
    const char *name = "";
    uint32_t features = attn_int(&rng, 0, 3) ? ATTN_ALL & (uint32_t)attn_next(&rng) & (uint32_t)attn_next(&rng)
                                             : ATTN_ALL & (uint32_t)attn_next(&rng);
    conf_source source = (conf_source)attn_int(&rng, CONF_IDENTITY, CONF_STEEP);
    (void)setenv("FXA_TEST_DTYPE", "bf16", 1);
    if (i % 3) (void)unsetenv("FXA_TEST_DTYPE");
    fxa_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", &rng, &name);
    fxa_program *bprop = attn_int(&rng, 0, 15) == 0 ? conf_bprop(ctx, &rng) : NULL;
    attn_shape shape = outputs_shape(&rng);
    return program && conf_draw(c, ctx, features | ATTN_DTYPES, &shape, program, name, bprop, &tally, &rng);
}

/* Runs a pass and adds its outputs to the hash. A refusal or a failure adds its message. */
static uint64_t outputs_pass(conf_case *c, fxa_pass pass, uint64_t hash, bool *refused) {
    fxa_error err;
    conf_call x;
    conf_buffer *t;
    conf_fill_outputs(c, pass);
    conf_call_make(c, "cpu", pass, false, &x);
    fxa_status status = fxa_attention(c->base.ctx, &x.p, &x.args, &err);
    *refused = *refused || status != FXA_OK;
    if (status != FXA_OK) return outputs_hash(hash, err.text, strlen(err.text));
    for (int i = 0; (t = conf_output(c, pass, i)); i++) hash = outputs_hash(hash, t->memory, t->bytes);
    return pass == FXA_BACKWARD ? outputs_hash(hash, c->dparams, c->n_params * sizeof(double)) : hash;
}

int main(int count, char **argument) {
    static conf_case c;
    fxa_error err;
    fxa_context *ctx = NULL;
    int problems = count > 1 ? atoi(argument[1]) : 500, first = count > 2 ? atoi(argument[2]) : 0;
    if (fxa_context_create(NULL, &ctx, &err) != FXA_OK) return 1;
    for (int i = first; i < first + problems; i++) {
        bool drawn = outputs_draw(&c, ctx, i), refused = false;
        uint64_t hash = 0xcbf29ce484222325;
        for (fxa_pass pass = FXA_FORWARD; drawn && pass <= FXA_BACKWARD; pass++)
            hash = outputs_pass(&c, pass, hash, &refused);
        printf("%d %016" PRIx64 "%s\n", i, drawn ? hash : 0, refused ? " refused" : "");
        if (drawn) conf_free(&c);
        (void)fflush(stdout);
    }
    fxa_context_destroy(ctx);
    return 0;
}
