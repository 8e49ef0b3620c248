/* SPDX-License-Identifier: Apache-2.0
 *
 * Problem bytes: round trips, and refusal of invalid bytes.
 */
#include "problem_case.h"

static fxa_capture rich_captures[3], rich_bprop[1];

/* Returns a problem that fills every section of the format. */
static fxa_problem rich(int variant) {
    fxa_problem p = case_captured(rich_captures, variant & 1);
    p.map_q.kind = FXA_MAP_SEGMENTS, p.map_q.n_segments = 2;
    p.map_q.segment[1] = (fxa_segment){2, 20, -3};
    p.map_k.kind = FXA_MAP_TABLE;
    p.map_b.has_offset = 1;
    p.q.layout = FXA_LAYOUT_BSHD;
    p.q.dtype = FXA_BF16;
    p.flags |= FXA_SINKS | FXA_DROPOUT | FXA_WINDOW | FXA_CAUSAL | FXA_BOTTOM_RIGHT;
    p.dropout_p = 0.1;
    p.window_left = -1, p.window_right = 2;
    p.global_k_len = 99;
    if (variant & 1) {
        memset(rich_bprop, 0, sizeof rich_bprop);
        rich_bprop[0].size[0] = 5;
        rich_captures[0].grad = 1;
        p.bprop = case_bprop(), p.bprop_captures = rich_bprop, p.n_bprop_captures = 1;
        p.param_grads = 1;
        p.flags |= FXA_GRAD_SINKS;
    }
    if (variant & 2) p.flags |= FXA_VARLEN, p.total_q = 8, p.total_k = 8;
    if (variant & 4) {
        p.program = NULL, p.n_captures = 0, p.param_grads = 0;
        p.map_q.n_segments = FXA_MAX_SEGMENTS; /* the maximum number */
        for (int i = 2; i < FXA_MAX_SEGMENTS; i++) p.map_q.segment[i] = (fxa_segment){1 + i, 20 * i, 2};
    }
    return p;
}

static fxa__writer write_rich(int variant, fxa__problem **made) {
    fxa_error err;
    fxa_problem p = rich(variant);
    fxa__writer w = {case_host(), NULL, 0, 0, false};
    T_OK(fxa__problem_create(case_host(), &p, made, &err));
    if (*made) fxa__problem_write(*made, FXA__WITH_ALL, &w);
    T_CHECK(!w.failed);
    return w;
}

TEST(there_and_back) {
    for (int variant = 0; variant < 8; variant++) {
        fxa__problem *made = NULL, *again = NULL;
        T_ENDED(fxa__writer_free) fxa__writer w = write_rich(variant, &made), w2 = {case_host(), NULL, 0, 0, false};
        T_REQUIRE(made);
        fxa__reader r = {w.data, w.size, 0, false};
        T_OK(fxa__problem_read(case_host(), &r, &again, &err));
        T_REQUIRE(again);
        T_CHECK(fxa__reader_done(&r));
        T_CHECK(memcmp(made->key, again->key, 16) == 0);
        fxa__problem_write(again, FXA__WITH_ALL, &w2);
        T_CHECK(w.size == w2.size && memcmp(w.data, w2.data, w.size) == 0);
        T_CHECK(memcmp(&made->in.map_q, &again->in.map_q, sizeof made->in.map_q) == 0);
        T_CHECK(memcmp(&made->in.q, &again->in.q, sizeof made->in.q) == 0);
        T_INT(again->in.window_left, -1);
        fxa__problem_release(made);
        fxa__problem_release(again);
        fxa__writer_free(&w2);
    }
}

/* Reads a problem from the middle of other bytes: bytes after it are left to the next reader. */
TEST(reads_no_further_than_its_end) {
    t_problem *made = NULL, *again = NULL;
    T_ENDED(fxa__writer_free) fxa__writer w = {case_host(), NULL, 0, 0, false};
    fxa_problem p = rich(1);
    T_OK(fxa__problem_create(case_host(), &p, &made, &err));
    T_REQUIRE(made);
    fxa__write_u32(&w, 7);
    fxa__problem_write(made, FXA__WITH_ALL, &w);
    fxa__write_u32(&w, 8);
    fxa__reader r = {w.data, w.size, 0, false};
    T_INT(fxa__read_u32(&r), 7);
    T_OK(fxa__problem_read(case_host(), &r, &again, &err));
    T_INT(fxa__read_u32(&r), 8);
    T_CHECK(fxa__reader_done(&r));
}

TEST(truncations) {
    for (int variant = 0; variant < 2; variant++) {
        fxa__problem *made = NULL, *again;
        T_ENDED(fxa__writer_free) fxa__writer w = write_rich(variant, &made);
        T_REQUIRE(made);
        for (size_t n = 0; n < w.size; n++) {
            uint8_t *copy = malloc(n + 1); /* exact size, so that sanitizers see a read past the end */
            T_REQUIRE(copy);
            memcpy(copy, w.data, n);
            fxa__reader r = {copy, n, 0, false};
            T_STATUS(fxa__problem_read(case_host(), &r, &again, &err), FXA_E_BYTES);
            T_CHECK(again == NULL);
            free(copy);
        }
        fxa__problem_release(made);
    }
}

/* A flipped bit is refused, or yields another problem with another key. */
TEST(bit_flips) {
    fxa__problem *made = NULL, *again;
    T_ENDED(fxa__writer_free) fxa__writer w = write_rich(1, &made);
    size_t refused = 0, other = 0;
    T_REQUIRE(made);
    t_rng rng = {t_seed()};
    for (size_t n = 0; n < 3 * w.size; n++) { /* the first, the last and one more bit of each byte */
        size_t bit = n / 3 * 8 + (n % 3 == 0 ? 0 : n % 3 == 1 ? 7 : (size_t)t_int(&rng, 1, 6));
        w.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        fxa__reader r = {w.data, w.size, 0, false};
        memset(&err, 0, sizeof err);
        fxa_status status = fxa__problem_read(case_host(), &r, &again, &err);
        if (status == FXA_OK) {
            other++;
            T_CHECK(memcmp(made->key, again->key, 16) != 0);
        } else {
            refused++;
            T_CHECK(again == NULL && err.status == status && err.text[0]);
            T_CHECK(status == FXA_E_BYTES || status == FXA_E_VERSION);
        }
        fxa__problem_release(again);
        w.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    T_CHECK(refused > w.size && other > w.size / 4);
    fxa__problem_release(made);
}

TEST(other_formats) {
    fxa__problem *made = NULL, *again;
    fxa__writer w = write_rich(0, &made);
    T_REQUIRE(made);
    w.data[0] = 4;
    fxa__reader r = {w.data, w.size, 0, false};
    T_STATUS(fxa__problem_read(case_host(), &r, &again, &err), FXA_E_VERSION);
    T_STR(err.text, "problem bytes have format 4: this library reads 1 to 3");
    w.data[0] = 1;
    w.data[24] = 0x7f; /* hkv above hq: the refusal gives the reason */
    r = (fxa__reader){w.data, w.size, 0, false};
    T_STATUS(fxa__problem_read(case_host(), &r, &again, &err), FXA_E_BYTES);
    T_HAS(err.text, "bytes of a problem that is refused: hq is");
    fxa__writer_free(&w);

    w = (fxa__writer){case_host(), NULL, 0, 0, false};
    fxa__problem_write(made, 0, &w); /* bytes without some parts are not a problem */
    r = (fxa__reader){w.data, w.size, 0, false};
    T_STATUS(fxa__problem_read(case_host(), &r, &again, &err), FXA_E_BYTES);
    fxa__writer_free(&w);
    fxa__problem_release(made);
}

/* An alternative encoding of a problem (here: a stride of an unused operand) is refused. */
TEST(one_problem_has_one_form) {
    fxa_problem p = case_forward();
    fxa__problem *made = NULL, *again;
    T_ENDED(fxa__writer_free) fxa__writer w = {case_host(), NULL, 0, 0, false};
    T_OK(fxa__problem_create(case_host(), &p, &made, &err));
    T_REQUIRE(made);
    fxa__problem_write(made, FXA__WITH_ALL, &w);
    size_t operands = 20 + 4 * 8 + 8 * 8 + 2 * 8 + 8 + 8, dq = operands + 5 * 36;
    T_INT(w.data[dq], FXA_F32);
    w.data[dq + 4] = 1;
    fxa__reader r = {w.data, w.size, 0, false};
    T_STATUS(fxa__problem_read(case_host(), &r, &again, &err), FXA_E_BYTES);
    T_STR(err.text, "the bytes of a problem are not in canonical form");
    fxa__problem_release(made);
}

/* Random problems with extreme values: refused with a text, or resolved such that resolving again and reading back
 * change nothing. */
static int64_t random_edge(t_rng *rng, int64_t hi) {
    static const int64_t edges[] = {-1, 0, 1, INT32_MAX, (int64_t)INT32_MAX + 1, INT64_MAX, INT64_MIN};
    return t_int(rng, 0, 15) ? t_int(rng, 0, hi) : edges[t_int(rng, 0, 6)];
}

static void random_operand(t_rng *rng, fxa_operand *t) {
    if (t_int(rng, 0, 30) == 0) t->dtype = (uint32_t)t_int(rng, 0, 5);
    t->layout = (uint32_t)t_int(rng, 0, 3);
    int64_t stride = 1;
    for (int i = 3; i >= 0; i--) {
        t->stride[i] = t_int(rng, 0, 40) ? stride : random_edge(rng, 3);
        stride *= 8 + t_int(rng, 0, 2);
    }
    if (t->layout != FXA_LAYOUT_STRIDED && t_int(rng, 0, 30)) memset(t->stride, 0, sizeof t->stride);
}

static fxa_problem random_problem(t_rng *rng) {
    fxa_problem p = rich((int)t_int(rng, 0, 1));
    fxa_operand *operands[] = {&p.q,  &p.k,  &p.v,   &p.o,       &p.dout, &p.dq,
                               &p.dk, &p.dv, &p.lse, &p.row_max, &p.dlse, &p.sinks};
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) random_operand(rng, operands[i]);
    if (t_int(rng, 0, 3) == 0) p.flags ^= (uint32_t)1 << t_int(rng, 0, 23);
    p.b = random_edge(rng, 3), p.sq = random_edge(rng, 8), p.sk = random_edge(rng, 8);
    p.hkv = t_int(rng, 1, 2), p.hq = p.hkv * t_int(rng, 1, 3);
    p.d_qk = t_int(rng, 1, 8), p.d_v = t_int(rng, 0, 8);
    p.total_q = random_edge(rng, 8), p.total_k = random_edge(rng, 8);
    p.page_size = (uint32_t)random_edge(rng, 4), p.n_pages = random_edge(rng, 4);
    p.map_h.base = random_edge(rng, 10), p.map_h.step = random_edge(rng, 3);
    p.map_q.segment[1].begin = random_edge(rng, 6);
    p.global_k_len = random_edge(rng, 20), p.window_left = random_edge(rng, 4);
    rich_captures[0].size[0] = random_edge(rng, 4);
    return p;
}

TEST(resolving_is_idempotent) {
    t_rng rng = {t_seed()};
    int made_some = 0, refused_some = 0;
    for (int n = t_scaled(4000); n > 0; n--) {
        fxa_problem p = random_problem(&rng);
        fxa__problem *made, *twice = NULL, *again = NULL;
        T_ENDED(fxa__writer_free) fxa__writer w = {case_host(), NULL, 0, 0, false};
        memset(&err, 0, sizeof err);
        fxa_status status = fxa__problem_create(case_host(), &p, &made, &err);
        if (status != FXA_OK) {
            T_CHECK(status == FXA_E_PROBLEM && err.text[0] && made == NULL);
            refused_some++;
            continue;
        }
        made_some++;
        T_OK(fxa__problem_create(case_host(), &made->in, &twice, &err));
        T_CHECK(twice && memcmp(made->key, twice->key, 16) == 0);
        fxa__problem_write(made, FXA__WITH_ALL, &w);
        fxa__reader r = {w.data, w.size, 0, false};
        T_OK(fxa__problem_read(case_host(), &r, &again, &err));
        T_CHECK(again && memcmp(made->key, again->key, 16) == 0);
        fxa__problem_release(made);
        fxa__problem_release(twice);
        fxa__problem_release(again);
    }
    T_CHECK(made_some > t_scaled(200) && refused_some > t_scaled(200));
}

T_MAIN
