/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs for conformance: twins, generated programs, the gallery (conf_case.h).
 */
#include "conf_case.h"
#include "support/fixtures/gen.h"
#include "program/program.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fxa_program *source_twin(fxa_context *ctx, uint64_t *rng, const char **name) {
    const oracle_twin *twin = &oracle_twins[attn_int(rng, 0, oracle_twin_count - 1)];
    const char *dtype = fxa_dtype_name(attn_draw_dtype(true, rng));
    char text[512];
    size_t n = 0;
    /* replaces %s by a dtype and %% by a percent sign */
    for (const char *from = twin->text; *from && n + 8 < sizeof text; from++) {
        if (strncmp(from, "%s", 2) == 0)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", dtype);
        else
            text[n++] = *from;
        if (*from == '%') from++;
    }
    fxa_program *program = NULL;
    *name = twin->name;
    return fxa_program_parse(ctx, text, n, &program, NULL) == FXA_OK ? program : NULL;
}

static fxa_program *source_generate(fxa_context *ctx, unsigned flags, uint64_t *rng) {
    uint8_t tape[160];
    for (size_t i = 0; i < sizeof tape; i++) tape[i] = (uint8_t)attn_next(rng);
    return gen_program(ctx, tape, (size_t)attn_int(rng, 8, sizeof tape), flags);
}

/* Adds the output of `kind` of the program `from`, and all nodes that it depends on, to a builder. Returns the value of
 * the output. */
static fxa_value source_import(fxa_builder *b, const fxa_program *from, fxa__out_kind kind) {
    fxa_value *map = malloc((size_t)from->n_nodes * sizeof *map), value;
    if (!map || !fxa__builder_import(b, from, map)) abort();
    value = map[fxa__program_output(from, kind)];
    free(map);
    return value;
}

static fxa_program *source_both(fxa_context *ctx, uint64_t *rng) {
    fxa_program *score = source_generate(ctx, GEN_SMOOTH, rng), *mask = source_generate(ctx, GEN_AFFINE_MASK, rng);
    fxa_program *program = NULL;
    fxa_builder *b = NULL;
    if (score && mask && fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, NULL) == FXA_OK) {
        fxa_builder_set_score(b, source_import(b, score, FXA__OUT_SCORE));
        fxa_builder_set_mask(b, source_import(b, mask, FXA__OUT_MASK));
        if (fxa_builder_finish(b, &program, NULL) != FXA_OK) program = NULL;
        fxa_builder_destroy(b);
    }
    fxa_program_destroy(score);
    fxa_program_destroy(mask);
    return program;
}

static fxa_program *source_file(fxa_context *ctx, const char *folder, uint64_t *rng, const char **name) {
    static char path[1024], text[1 << 16];
    fxa_program *program = NULL;
    int64_t count = 0, chosen;
    for (int pass = 0; pass < 2; pass++) {
        DIR *dir = opendir(folder);
        if (!dir) return NULL;
        chosen = pass ? attn_int(rng, 0, count - 1) : -1;
        for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
            size_t n = strlen(e->d_name);
            if (n < 4 || strcmp(e->d_name + n - 4, ".fxa") != 0) continue;
            if (pass == 0)
                count++;
            else if (chosen-- == 0)
                snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        }
        closedir(dir);
        if (count == 0) return NULL;
    }
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    *name = strrchr(path, '/') + 1;
    return fxa_program_parse(ctx, text, n, &program, NULL) == FXA_OK ? program : NULL;
}

static fxa_program *source_one(fxa_context *ctx, const char *const *texts, size_t n, uint64_t *rng) {
    fxa_program *program = NULL;
    const char *chosen = texts[attn_int(rng, 0, (int64_t)n - 1)];
    return fxa_program_parse(ctx, chosen, strlen(chosen), &program, NULL) == FXA_OK ? program : NULL;
}

/* Returns a mask with few attended pairs, or with holes, so that engines can skip tiles: by tables of every kind, or by
 * the score. */
static fxa_program *source_sparse(fxa_context *ctx, uint64_t *rng) {
    static const char *const text[] = {
        "tensor blk : bool[3]\nmask = blk[h, q // 8, k // 8]",
        "tensor blk : i8[2]\nmask = blk[q // 16, k // 16] > 2 && k <= q",
        "tensor keep : bool[2]\nmask = keep[q, k]",
        "tensor keep : u8[3]\nmask = keep[b, q // 4, k] > 3",
        "tensor blk : bool[4]\nmask = blk[b, h, q // 32, k // 32] || q == k",
        "tensor tin : i32[1]\ntensor tout : i32[1]\nmask = tin[k] <= tin[q] && tin[q] < tout[k]",
        "score = k <= q ? score : -inf",
        "tensor doc : i32[1]\nscore = doc[q] == doc[k] ? (k <= q ? score * 1.5 : -inf) : -inf",
        "tensor bias : f32[1]\nscore = q < k ? -inf : score + bias[q - k]",
        "tensor w : f64[1]\ntensor keep : bool[2]\nmask = keep[q, k]\nscore = k % 5 == 2 ? -inf : score * w[h]",
        "mask = (k // 40) % 3 != 1 || q % 7 == 0",
        "tensor r : bool[2]\nmask = abs(q - k) < 6 || q < 3 || k < 3 || r[q // 4, k // 4]",
        "tensor r : bool[3]\nmask = abs(q - k) < 9 || q < 2 || k < 2 || r[h, q // 8, k // 8]",
        "tensor r : bool[4]\nmask = h % 2 == 0 ? k <= q : !(abs(q - k) <= 3) && r[b, h - 1, k // 8 - 1, q]",
        "tensor doc : i32[1]\nmask = ((doc[q] == doc[k]) ^ (abs(k - q) < 4)) || k == q",
        "tensor w : f32[2]\nmask = w[q // 8, k // 8] > 0.5",
        "tensor w : f16[1]\nmask = w[k] + 0.5 < w[q] && k < k_len - q % 3",
        "tensor doc : i16[2]\nmask = doc[b, q] == doc[b, k]\nscore = 3.0 * tanh(score / 3.0)",
        "tensor doc : i32[1]\nmask = doc[q_row] == doc[k_row] && k <= q",
        "tensor keep : bool[2]\nmask = keep[q_row // 4, k_row // 8] && k <= q + 3",
        ("tensor doc : i32[2]\nmask = doc[b, q_row] == doc[b, k] || k_row % 5 == q % 5\n"
         "score = score + 0.1 * (k - k_row)"),
        "mask = k_row <= q_row && q_row - k < 40 && abs(q - k_row) > 1",
        "tensor bias : f32[3]\nscore = score + bias[h, q_row, k_row]\nmask = q_row - k_row < 24",
        "mask = (q * k) % 7 == 3 || k_len - k < q_len - q",
        "score = score - exp2(-8 * (h + 1) / heads) * abs(q - k)\nmask = k % heads == h || k * heads <= q * 4 + h",
    };
    return source_one(ctx, text, sizeof text / sizeof *text, rng);
}

/* Returns a program with large scores, large derivatives, or poles. */
static fxa_program *source_steep(fxa_context *ctx, uint64_t *rng) {
    static const char *const text[] = {
        "score = 1.0 / score",
        "score = exp(3.0 * score)",
        "score = 1000.0 * score",
        "score = 20.0 * score ** 3.0",
        "score = (4.0 * score) ** 2.0",
        "score = 30.0 * log(abs(score))",
        "score = tan(score)",
        "score = score - 5000.0",
        "score = score + 80000.0",
        "tensor w : f32[1]\nscore = 300.0 * w[h] * score\nmask = k <= q + 3",
        "tensor w : f32[2]\nscore = score + 4000.0 * w[q, k] * w[k, q]",
        "tensor w : f64[1]\nscore = exp(2.0 * score + w[k]) - 70.0 * float(abs(q - k))",
    };
    return source_one(ctx, text, sizeof text / sizeof *text, rng);
}

fxa_program *conf_program(fxa_context *ctx, conf_source source, const char *folder, uint64_t *rng, const char **name) {
    static const char *const names[] = {"identity", "twin",    "smooth", "mask", "smooth and mask",
                                        "wild",     "gallery", "sparse", "steep"};
    *name = names[source];
    switch (source) {
    case CONF_TWIN: return source_twin(ctx, rng, name);
    case CONF_SMOOTH: return source_generate(ctx, GEN_SMOOTH, rng);
    case CONF_MASK: return source_generate(ctx, GEN_AFFINE_MASK, rng);
    case CONF_BOTH: return source_both(ctx, rng);
    case CONF_WILD: return source_generate(ctx, GEN_NO_SPECIAL, rng);
    case CONF_GALLERY: return source_file(ctx, folder, rng, name);
    case CONF_SPARSE: return source_sparse(ctx, rng);
    case CONF_STEEP: return source_steep(ctx, rng);
    default: break;
    }
    fxa_program *program = NULL;
    return fxa_program_parse(ctx, "", 0, &program, NULL) == FXA_OK ? program : NULL;
}

fxa_program *conf_bprop(fxa_context *ctx, uint64_t *rng) {
    return source_generate(ctx, GEN_BPROP | GEN_SMOOTH | GEN_NO_TENSORS | GEN_NO_PARAMS, rng);
}
