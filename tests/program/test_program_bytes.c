/* SPDX-License-Identifier: Apache-2.0
 *
 * Program bytes: a saved program loads as the same program, each program has one encoding, and damaged or hostile bytes
 * only give an error.
 */
#include "support/memory/fail_alloc.h"
#include "support/fixtures/gen.h"
#include "support/fixtures/own_context.h"
#include "program/program.h"

typedef struct pbytes_blob {
    uint8_t *data;
    size_t size;
} pbytes_blob;

static pbytes_blob pbytes_save(const fxa_program *p) {
    pbytes_blob blob = {0};
    fxa_error err;
    T_OK(fxa_program_save(p, NULL, 0, &blob.size, &err));
    blob.data = malloc(blob.size);
    T_OK(fxa_program_save(p, blob.data, blob.size, NULL, &err));
    return blob;
}

/* Returns a program with everything: both kinds of slots, loads, all types of constants, gradients. */
static fxa_program *pbytes_rich(fxa_context *c) {
    t_builder *b = NULL;
    fxa_program *p = NULL;
    if (fxa_builder_create(c, FXA_PROGRAM_DERIVATIVE, &b, NULL) != FXA_OK) return NULL;
    fxa_value d = fxa_builder_input(b, FXA_INPUT_DSCORE), q = fxa_builder_input(b, FXA_INPUT_Q);
    fxa_value w = fxa_builder_param(b, "w", FXA_FLOAT), n = fxa_builder_param(b, "n", FXA_INT);
    fxa_builder_set_default(b, "w", -0.3);
    fxa_value at[2] = {fxa_builder_op2(b, FXA_OP_MOD, q, n), fxa_builder_int(b, -3)};
    fxa_value t = fxa_builder_load(b, fxa_builder_tensor(b, "bias", FXA_BF16, 2), at, 2);
    fxa_value c0 = fxa_builder_load(b, fxa_builder_tensor(b, "flag", FXA_B8, 0), NULL, 0);
    fxa_value x = fxa_builder_op2(b, FXA_OP_MUL, t, w);
    x = fxa_builder_op3(b, FXA_OP_SELECT, c0, x, fxa_builder_float(b, 0.1));
    x = fxa_builder_op2(b, FXA_OP_MULZ, d, x);
    fxa_builder_set_dscore(b, x);
    fxa__builder_grad_param(b, "w", fxa_builder_op2(b, FXA_OP_MULZ, d, t));
    fxa__builder_grad_load(b, "bias", at, 2, fxa_builder_op2(b, FXA_OP_MULZ, d, w));
    if (fxa_builder_finish(b, &p, NULL) != FXA_OK) p = NULL;
    return p;
}

/* Loads arbitrary bytes: a program that saves to these bytes, or an error with a text. */
static fxa_status pbytes_try(const uint8_t *data, size_t size) {
    fxa_program *p = (fxa_program *)&ctx;
    fxa_error err = {0};
    uint8_t *copy = malloc(size ? size : 1); /* exact size, so that a sanitizer sees every read past the end */
    if (size) memcpy(copy, data, size);
    fxa_status status = fxa_program_load(ctx, copy, size, &p, &err);
    if (status == FXA_OK) {
        T_CHECK(p != NULL);
        pbytes_blob again = pbytes_save(p);
        T_CHECK(again.size == size && memcmp(again.data, copy, size) == 0);
        free(again.data);
        fxa_program_destroy(p);
    } else {
        T_CHECK(p == NULL && err.status == status && err.text[0]);
        T_CHECK(status == FXA_E_BYTES || status == FXA_E_VERSION);
    }
    free(copy);
    return status;
}

TEST(random_programs_come_back) {
    t_rng rng = {t_seed()};
    for (int round = 0; round < t_scaled(600); round++) {
        uint8_t tape[400];
        size_t n = (size_t)t_int(&rng, 0, sizeof tape);
        for (size_t i = 0; i < n; i++) tape[i] = (uint8_t)t_next(&rng);
        t_program *p = gen_program(ctx, tape, n, round % 5 ? 0 : GEN_BPROP), *q = NULL;
        T_REQUIRE(p);
        pbytes_blob blob = pbytes_save(p), again;
        T_OK(fxa_program_load(ctx, blob.data, blob.size, &q, &err));
        T_REQUIRE(q);
        T_CHECK(memcmp(p->hash, q->hash, 16) == 0);
        T_INT(q->n_nodes, p->n_nodes);
        T_INT(q->kind, p->kind);
        T_CHECK(memcmp(p->nodes, q->nodes, (size_t)p->n_nodes * sizeof *p->nodes) == 0);
        again = pbytes_save(q);
        T_CHECK(again.size == blob.size && memcmp(again.data, blob.data, blob.size) == 0);
        free(blob.data);
        free(again.data);
    }
}

TEST(a_derivative_comes_back) {
    t_program *p = pbytes_rich(ctx);
    T_REQUIRE(p);
    T_INT(p->n_outputs, 3);
    pbytes_blob blob = pbytes_save(p);
    T_INT(pbytes_try(blob.data, blob.size), FXA_OK);
    free(blob.data);
}

/* The format is fixed: every later version must load these bytes and write them. */
TEST(the_bytes_of_a_small_program) {
    static const uint8_t want[] = {
        'F', 'X', 'A', 'P', 1, 0, 0, 0, 0,    0,    0,   0,                        /* magic, version, kind */
        1,   0,   0,   0,   3, 0, 0, 0, 'c',  'a',  'p', 1,                        /* one param: cap, float */
        1,   0,   0,   0,   1, 0, 0, 0, 't',  4,    1,                             /* one tensor: t, bf16, rank 1 */
        8,   0,   0,   0,                                                          /* nodes */
        2,   1,   0,   0,   0, 0,                                                  /* 0: score */
        2,   2,   2,   0,   0, 0,                                                  /* 1: h */
        4,   1,   0,   0,   0, 0, 1, 0, 0,    0,                                   /* 2: t[h] */
        10,  1,   0,   0,   0, 0, 2, 0, 0,    0,                                   /* 3: score + t[h] */
        3,   1,   0,   0,   0, 0,                                                  /* 4: cap */
        18,  1,   3,   0,   0, 0, 4, 0, 0,    0,                                   /* 5: min(score + t[h], cap) */
        1,   1,   0,   0,   0, 0, 0, 0, 0xf0, 0x3f,                                /* 6: 1.0 */
        63,  3,   0,   0,   0, 0, 6, 0, 0,    0,                                   /* 7: score <= 1.0 */
        2,   0,   0,   0,   0, 0, 0, 0, 5,    0,    0,   0, 1, 0, 0, 0, 7, 0, 0, 0 /* outputs: score 5, mask 7 */
    };
    t_builder *b = NULL;
    t_program *p = NULL;
    T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
    fxa_value s = fxa_builder_input(b, FXA_INPUT_SCORE), h = fxa_builder_input(b, FXA_INPUT_H);
    fxa_value t = fxa_builder_load(b, fxa_builder_tensor(b, "t", FXA_BF16, 1), &h, 1);
    fxa_value cap = fxa_builder_param(b, "cap", FXA_FLOAT);
    fxa_builder_set_score(b, fxa_builder_op2(b, FXA_OP_MIN, cap, fxa_builder_op2(b, FXA_OP_ADD, t, s)));
    fxa_builder_set_mask(b, fxa_builder_op2(b, FXA_OP_LE, s, fxa_builder_float(b, 1)));
    T_OK(fxa_builder_finish(b, &p, &err));
    T_REQUIRE(p);
    pbytes_blob blob = pbytes_save(p);
    T_INT(blob.size, sizeof want + 16);
    for (size_t i = 0; i < sizeof want && i < blob.size; i++)
        if (blob.data[i] != want[i]) T_FAIL("byte %zu is %d, not %d\n", i, blob.data[i], want[i]);
    T_CHECK(blob.size == sizeof want + 16 && memcmp(blob.data + sizeof want, p->hash, 16) == 0);
    free(blob.data);
}

TEST(every_truncation_is_an_error) {
    fxa_program *p = pbytes_rich(ctx);
    T_REQUIRE(p);
    pbytes_blob blob = pbytes_save(p);
    for (size_t n = 0; n < blob.size; n++) T_INT(pbytes_try(blob.data, n), FXA_E_BYTES);
    fxa_program_destroy(p);
    free(blob.data);
}

/* The hash covers all content, so every flipped bit is detected. */
TEST(every_flipped_bit_is_an_error) {
    fxa_program *p = pbytes_rich(ctx);
    T_REQUIRE(p);
    pbytes_blob blob = pbytes_save(p);
    for (size_t bit = 0; bit < blob.size * 8; bit++) {
        blob.data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        T_CHECK(pbytes_try(blob.data, blob.size) != FXA_OK);
        blob.data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    T_INT(pbytes_try(blob.data, blob.size), FXA_OK);
    fxa_program_destroy(p);
    free(blob.data);
}

TEST(random_damage_is_an_error_or_a_program) {
    t_rng rng = {t_seed()};
    t_program *p = pbytes_rich(ctx);
    T_REQUIRE(p);
    pbytes_blob blob = pbytes_save(p);
    uint8_t *bad = malloc(blob.size);
    for (int round = 0; round < t_scaled(3000); round++) {
        memcpy(bad, blob.data, blob.size);
        for (int64_t n = t_int(&rng, 1, 6); n > 0; n--)
            bad[t_int(&rng, 8, (int64_t)blob.size - 1)] = (uint8_t)t_int(&rng, 0, t_int(&rng, 0, 1) ? 255 : 7);
        (void)pbytes_try(bad, (size_t)t_int(&rng, (int64_t)blob.size / 2, (int64_t)blob.size));
    }
    free(bad);
    free(blob.data);
}

/* ---- Bytes made by hand: right in themselves, but not what any program is written as ----------------------------- */

/* Writes the head of a score program without params and tensors; `n` nodes follow. */
static void pbytes_head(fxa__writer *w, uint32_t version, uint32_t kind, uint32_t n) {
    fxa__write_bytes(w, "FXAP", 4);
    fxa__write_u32(w, version);
    fxa__write_u32(w, kind);
    fxa__write_u32(w, 0);
    fxa__write_u32(w, 0);
    fxa__write_u32(w, n);
}

static void pbytes_input(fxa__writer *w, fxa_input input) {
    fxa__write_u8(w, FXA_OP_INPUT);
    fxa__write_u8(w, (uint8_t)fxa__input_type(input));
    fxa__write_u32(w, input);
}

static void pbytes_true(fxa__writer *w, uint32_t value) {
    fxa__write_u8(w, FXA_OP_CONST);
    fxa__write_u8(w, FXA_BOOL);
    fxa__write_u32(w, value);
}

/* Writes the outputs score and mask, then the hash of the identity (or none). */
static void pbytes_tail(fxa__writer *w, uint32_t score, uint32_t mask) {
    uint8_t hash[16] = {0};
    fxa_program *p = NULL;
    fxa_builder *b = NULL;
    if (fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, NULL) == FXA_OK && fxa_builder_finish(b, &p, NULL) == FXA_OK)
        fxa_program_hash(p, hash);
    fxa_program_destroy(p);
    fxa_builder_destroy(b);
    fxa__write_u32(w, 2);
    fxa__write_u32(w, FXA__OUT_SCORE);
    fxa__write_u32(w, score);
    fxa__write_u32(w, FXA__OUT_MASK);
    fxa__write_u32(w, mask);
    fxa__write_bytes(w, hash, sizeof hash);
}

static void pbytes_expect(fxa__writer *w, fxa_status status, const char *part) {
    fxa_program *p = NULL;
    fxa_error err;
    T_STATUS(fxa_program_load(ctx, w->data, w->size, &p, &err), status);
    if (part) T_HAS(err.text, part);
    fxa_program_destroy(p);
    fxa__writer_free(w);
}

TEST(other_forms_of_a_program_are_refused) {
    fxa__writer start = {.host = fxa__context_host(ctx)}, w = start;
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 2); /* the identity in its canonical form */
    pbytes_input(&w, FXA_INPUT_SCORE);
    pbytes_true(&w, 1);
    pbytes_tail(&w, 0, 1);
    pbytes_expect(&w, FXA_OK, NULL);

    w = start; /* nodes in another order */
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 2);
    pbytes_true(&w, 1);
    pbytes_input(&w, FXA_INPUT_SCORE);
    pbytes_tail(&w, 1, 0);
    pbytes_expect(&w, FXA_E_BYTES, "not in canonical form");

    w = start; /* an unused node */
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 3);
    pbytes_input(&w, FXA_INPUT_SCORE);
    pbytes_input(&w, FXA_INPUT_Q);
    pbytes_true(&w, 1);
    pbytes_tail(&w, 0, 2);
    pbytes_expect(&w, FXA_E_BYTES, "not in canonical form");

    w = start; /* a duplicate node */
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 3);
    pbytes_input(&w, FXA_INPUT_SCORE);
    pbytes_true(&w, 1);
    pbytes_true(&w, 1);
    pbytes_tail(&w, 0, 2);
    pbytes_expect(&w, FXA_E_BYTES, "not in canonical form");

    w = start; /* true written as 2 */
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 2);
    pbytes_input(&w, FXA_INPUT_SCORE);
    pbytes_true(&w, 2);
    pbytes_tail(&w, 0, 1);
    pbytes_expect(&w, FXA_E_BYTES, "not in canonical form");

    w = start; /* trailing bytes */
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 2);
    pbytes_input(&w, FXA_INPUT_SCORE);
    pbytes_true(&w, 1);
    pbytes_tail(&w, 0, 1);
    fxa__write_u8(&w, 0);
    pbytes_expect(&w, FXA_E_BYTES, "1 bytes follow the program");
}

TEST(texts_of_damage) {
    fxa__writer start = {.host = fxa__context_host(ctx)}, w = start;
    fxa__write_bytes(&w, "FXAQ", 4);
    pbytes_expect(&w, FXA_E_BYTES, "do not begin with \"FXAP\"");
    w = start;
    pbytes_head(&w, 3, FXA_PROGRAM_SCORE, 0);
    pbytes_expect(&w, FXA_E_VERSION, "format version 3, this library reads 1 and 2");
    w = start;
    pbytes_head(&w, 1, 3, 0);
    pbytes_expect(&w, FXA_E_BYTES, "kind 3 is none");
    w = start;
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, UINT32_MAX);
    pbytes_expect(&w, FXA_E_BYTES, "they end too early");
    w = start;
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 2);
    pbytes_input(&w, FXA_INPUT_DSCORE);
    pbytes_expect(&w, FXA_E_BYTES, "'dscore' is an input of backward programs");
    w = start;
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 2);
    pbytes_input(&w, FXA_INPUT_SCORE);
    pbytes_true(&w, 1);
    pbytes_tail(&w, 0, 2);
    pbytes_expect(&w, FXA_E_BYTES, "an operand is not an earlier node");
    w = start; /* score and mask swapped */
    pbytes_head(&w, 1, FXA_PROGRAM_SCORE, 2);
    pbytes_input(&w, FXA_INPUT_SCORE);
    pbytes_true(&w, 1);
    pbytes_tail(&w, 1, 0);
    pbytes_expect(&w, FXA_E_BYTES, "'mask' needs a bool, not float");
}

TEST(wrong_arguments) {
    fxa_program *p = pbytes_rich(ctx), *q = NULL;
    uint8_t small[8];
    size_t needed = 0;
    T_STATUS(fxa_program_save(NULL, small, sizeof small, &needed, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_save(p, small, sizeof small, &needed, &err), FXA_E_ARGUMENT);
    T_CHECK(needed > sizeof small);
    T_STATUS(fxa_program_save(p, NULL, 0, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_load(NULL, small, 8, &q, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_load(ctx, NULL, 8, &q, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_load(ctx, small, 8, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_load(ctx, small, 0, &q, &err), FXA_E_BYTES);
    T_STATUS(fxa_program_load(ctx, small, 0, &q, NULL) == FXA_E_BYTES ? FXA_OK : FXA_E_INTERNAL, FXA_OK);
    fxa_program_destroy(p);
}

TEST(out_of_memory_at_every_allocation) {
    fail_alloc f = FAIL_ALLOC_INIT;
    t_ctx *failing = fail_alloc_context(&f);
    t_program *p = pbytes_rich(ctx);
    T_REQUIRE(failing && p);
    pbytes_blob blob = pbytes_save(p);
    size_t before = f.live_bytes;
    bool done = false;
    for (size_t at = 1; !done && at < 200; at++) {
        fxa_program *q = NULL;
        size_t needed = 0;
        fail_alloc_arm(&f, at, at % 2);
        fxa_status status = fxa_program_load(failing, blob.data, blob.size, &q, &err);
        if (status == FXA_OK) status = fxa_program_save(q, NULL, 0, &needed, &err);
        done = status == FXA_OK;
        T_CHECK(done || (status == FXA_E_MEMORY && strstr(err.text, "out of memory")));
        T_CHECK(done ? needed == blob.size : true);
        fail_alloc_arm(&f, 0, false);
        fxa_program_destroy(q);
        T_INT(f.live_bytes, before);
    }
    T_CHECK(done);
    T_INT(f.mistakes, 0);
    free(blob.data);
}

T_MAIN
