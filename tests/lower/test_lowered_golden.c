/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts of src/lower for listed programs, compared with the golden file tests/golden/lowered.txt: emitted code of every
 * level, its weights, code for tiles, and the dumps of fxa_program_dump. FXA_TEST_UPDATE=1 writes the file anew.
 */
#include "lower_fixture.h"

#include "lower/emit.h"
#include "lower/fuse.h"
#include "lower/interval.h"
#include "lower/parameterize.h"

/* Seventeen tables: one more than code for tiles uses. */
#define MANY_TABLES                                                                                                    \
    "tensor ta : i32[1]; tensor tb : i32[1]; tensor tc : i32[1]; tensor td : i32[1]; tensor te : i32[1]\n"             \
    "tensor tf : i32[1]; tensor tg : i32[1]; tensor th : i32[1]; tensor ti : i32[1]; tensor tj : i32[1]\n"             \
    "tensor tk : i32[1]; tensor tl : i32[1]; tensor tm : i32[1]; tensor tn : i32[1]; tensor to : i32[1]\n"             \
    "tensor tp : i32[1]; tensor tq : i32[1]\n"                                                                         \
    "mask = ta[k] + tb[k] + tc[k] + td[k] + te[k] + tf[k] + tg[k] + th[k] + ti[k] + tj[k] + tk[k] + tl[k] + tm[k] "    \
    "+ tn[k] + to[k] + tp[k] + tq[k] < 3"

static const char *const lowered_texts[] = {
    "score = score * 0.5 + q - k\nmask = k <= q && q - k < 7",
    "param cap : float\nparam w : int\nscore = cap * tanh(score / cap)\nmask = abs(q - k) <= w",
    "tensor slope : f32[1]\nscore = score + slope[h] * (k - q)",
    "tensor bias : f16[3]\ntensor doc : i32[1]\nscore = score + bias[h, q, k]\nmask = doc[q] == doc[k] && k <= q",
    "tensor u : f32[2]\ntensor v : bf16[2]\nscore = score ** 2 + u[b, q] * v[h, k - q] - exp(score) ** 3",
    "tensor ids : i64[1]\ntensor allow : bool[2]\nmask = ids[q] == ids[k] && (allow[h, k // 64] || q % 4 == k % 4)",
    "score = where(q > k, min(score, 1.5), max(sin(score), -0.25)) + clamp(score, -1, 1)",
    "tensor t : f64[2]\nscore = with_grad(float(k), float(h)) + t[q, k] * sigmoid(score) + log1p(abs(score))\n"
    "mask = k < k_len && k - k_len <= q - q_len",
    "tensor n : u8[1]\nparam g : float\nlet x = q // 8 - k // 8\nmask = (x >= 0 && x < n[h]) ^ (q & 1 == 0)\n"
    "score = score + g * sqrt(float(x * x + 1)) / (h + 1.0)",
    MANY_TABLES,
};

static const uint32_t lowered_kinds = (1u << FXA__OUT_SCORE) | (1u << FXA__OUT_MASK) | (1u << FXA__OUT_DSCORE);

static void lowered_emit(rig *r, const fxa_program *p, fxa__dialect dialect, fxa__writer *w) {
    static const char *const levels[] = {"run", "head", "row", "key", "pair"};
    fxa__emit e;
    if (!fxa__lower_emit_open(r->host, p, dialect, lowered_kinds, &e)) T_FAIL("no memory\n");
    for (int level = 0; level < FXA__EMIT_LEVELS; level++) {
        fxa__write_format(w, "  %s\n", levels[level]);
        fxa__lower_emit_hoisted(&e, (fxa__emit_level)level, w);
        fxa__lower_emit_nodes(&e, (fxa__emit_level)level, lowered_kinds, w);
    }
    for (int32_t i = 0; i < p->n_outputs; i++) {
        fxa__write_format(w, "  output %d: ", (int)p->outputs[i].kind);
        fxa__lower_emit_value(&e, p->outputs[i].value, w);
        fxa__write_format(w, "\n");
    }
    fxa__write_format(w, "  weights %d %d %d\n", (int)fxa__lower_emit_weight(&e, lowered_kinds, 1),
                      (int)fxa__lower_emit_weight(&e, lowered_kinds, 64),
                      (int)fxa__lower_emit_weight(&e, 1u << FXA__OUT_MASK, 64));
    fxa__lower_emit_close(&e);
}

/* Text for CUDA in which loads have bases, as the cuda engine writes it. */
static void lowered_bases(rig *r, const fxa_program *p, fxa__writer *w) {
    fxa__emit e;
    if (!fxa__lower_emit_open(r->host, p, FXA__CUDA_F32, lowered_kinds, &e)) T_FAIL("no memory\n");
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].op == FXA_OP_LOAD && fxa__lower_emit_can_use_base(&e, i)) e.base[i] = 2;
    fxa__lower_emit_hoisted(&e, FXA__EMIT_HEAD, w);
    fxa__lower_emit_bases(&e, w);
    for (int level = 0; level < FXA__EMIT_LEVELS; level++)
        fxa__lower_emit_nodes(&e, (fxa__emit_level)level, lowered_kinds, w);
    fxa__lower_emit_close(&e);
}

static void lowered_interval(rig *r, const fxa_program *p, fxa__writer *w) {
    fxa__interval_text v;
    if (!fxa__lower_interval_open(r->host, p, FXA__CUDA_F32, &v)) T_FAIL("no memory\n");
    fxa__lower_interval_text(&v, w);
    for (int32_t i = 0; i < v.n_tables; i++)
        fxa__write_format(w, "  table %d of axis %d\n", (int)v.tables[i].tensor, (int)v.tables[i].axis);
    fxa__lower_interval_close(&v);
}

static void lowered_dumps(const fxa_program *p, fxa__writer *w) {
    static const fxa_dump_kind kinds[] = {FXA_DUMP_CLASSES, FXA_DUMP_CONJUNCTS};
    for (int i = 0; i < 2; i++) {
        static char text[1 << 14];
        size_t n = 0;
        fxa_error err;
        T_OK(fxa_program_dump(p, kinds[i], text, sizeof text, &n, &err));
        fxa__write_format(w, "%s\n", text);
    }
}

static void lowered_write(rig *r, const char *text, fxa__writer *w) {
    t_program *p = rig_parse(r, text), *d = NULL, *fused = NULL;
    fxa__parameterized out = {.program = NULL};
    fxa_error err;
    T_REQUIRE(p != NULL);
    fxa__write_format(w, "==== %s\n", text);
    T_OK(fxa_program_derivative(p, &d, &err));
    T_OK(fxa__lower_fuse(r->host, p, d, true, &fused, &err));
    T_OK(fxa__lower_parameterize(r->host, fused, &out, &err));
    fxa__write_format(w, "-- dumps\n");
    lowered_dumps(p, w);
    fxa__write_format(w, "-- C\n");
    lowered_emit(r, fused, FXA__C_F64, w);
    fxa__write_format(w, "-- CUDA, constants as params\n");
    lowered_emit(r, out.program, FXA__CUDA_F32, w);
    fxa__write_format(w, "-- CUDA with bases\n");
    lowered_bases(r, p, w);
    fxa__write_format(w, "-- tiles\n");
    lowered_interval(r, p, w);
    fxa_program_destroy(out.program);
}

RIG_TEST(texts_are_those_of_the_golden_file) {
    static char golden[1 << 20];
    const char *path = FXA_SOURCE_DIR "/tests/golden/lowered.txt";
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = r->host};
    for (size_t i = 0; i < sizeof lowered_texts / sizeof *lowered_texts; i++) lowered_write(r, lowered_texts[i], &w);
    fxa__write_bytes(&w, "", 1);
    const char *now = (const char *)w.data, *line = now;
    FILE *f = getenv("FXA_TEST_UPDATE") ? fopen(path, "wb") : NULL;
    if (f) T_CHECK(fputs(now, f) >= 0 && fclose(f) == 0);
    f = fopen(path, "rb");
    size_t n = f ? fread(golden, 1, sizeof golden - 1, f) : 0;
    if (f) (void)fclose(f);
    golden[n] = '\0';
    for (const char *a = now, *b = golden; *a && *a == *b; a++, b++)
        if (*a == '\n') line = a + 1;
    if (strcmp(now, golden) != 0)
        T_FAIL(
            "%s differs from \"%.*s\"; if texts were changed, run FXA_TEST_UPDATE=1 build/tests/test_lowered_golden\n",
            path, (int)strcspn(line, "\n"), line);
}

T_MAIN
