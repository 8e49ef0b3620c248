/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of problems: equal content has equal keys, every used field changes the key, and geometry alone does not change
 * the bytes that code depends on.
 */
#include "base/blake2s.h"
#include "problem_case.h"

typedef struct keys {
    uint8_t key[16], code_key[16];
} keys;

static keys keys_of(const fxa_problem *p) {
    fxa_error err;
    keys out;
    t_problem *made = NULL;
    memset(&out, 0, sizeof out);
    T_OK(fxa__problem_create(case_host(), p, &made, &err));
    if (!made) return out;
    memcpy(out.key, made->key, 16);
    fxa__writer w = {.host = case_host()};
    fxa__problem_write(made, FXA__WITH_HEADS | FXA__WITH_WINDOW | FXA__WITH_DROPOUT, &w);
    fxa__blake2s_128(w.data, w.size, out.code_key);
    fxa__writer_free(&w);
    return out;
}

static bool keys_same(const uint8_t a[16], const uint8_t b[16]) { return memcmp(a, b, 16) == 0; }

/* A backward problem with every feature, so that each field below matters. */
static fxa_capture full_captures[3], full_bprop[1];
static fxa_problem full_problem(void) {
    fxa_problem p = case_captured(full_captures, true);
    full_captures[0].grad = 1;
    full_captures[0].strided = full_captures[0].grad_strided = 1;
    full_captures[0].stride[0] = full_captures[0].grad_stride[0] = 5;
    full_captures[0].stride[1] = full_captures[0].grad_stride[1] = 1;
    memset(full_bprop, 0, sizeof full_bprop);
    full_bprop[0].size[0] = 5;
    p.bprop = case_bprop();
    p.bprop_captures = full_bprop, p.n_bprop_captures = 1;
    p.flags |= FXA_SINKS | FXA_GRAD_SINKS | FXA_READ_DLSE | FXA_DROPOUT | FXA_WINDOW | FXA_PAGED | FXA_PADDING;
    p.page_size = 4, p.n_pages = 9;
    p.window_left = 3, p.window_right = 1;
    p.dropout_p = 0.125;
    p.param_grads = 1;
    p.global_q_len = 50, p.global_k_len = 60;
    p.map_k.kind = FXA_MAP_SEGMENTS, p.map_k.n_segments = 2;
    p.map_k.segment[1] = (fxa_segment){3, 30, 1};
    return p;
}

enum { GEOMETRY, CODE };
static keys seen[200];
static size_t n_range_cache;

/* Checks that the key differs from all earlier keys, and that the code key changes exactly for fields outside the
 * geometry. */
static void varied(const fxa_problem *p, int kind, const char *what) {
    keys k = keys_of(p);
    for (size_t i = 0; i < n_range_cache; i++)
        if (keys_same(k.key, seen[i].key)) T_FAIL("%s: the key is that of variant %zu\n", what, i);
    if (n_range_cache && keys_same(k.code_key, seen[0].code_key) != (kind == GEOMETRY))
        T_FAIL("%s: wrong code key\n", what);
    if (n_range_cache < sizeof seen / sizeof *seen) seen[n_range_cache++] = k;
}

#define VARIED(kind, change)                                                                                           \
    do {                                                                                                               \
        fxa_problem p = full_problem();                                                                                \
        change;                                                                                                        \
        varied(&p, kind, #change);                                                                                     \
    } while (0)

TEST(sizes_and_flags_reach_the_key) {
    n_range_cache = 0;
    VARIED(GEOMETRY, (void)0);
    VARIED(CODE, p.flags &= ~(uint32_t)FXA_READ_DLSE);
    VARIED(CODE, p.flags |= FXA_CAUSAL);
    VARIED(CODE, p.flags |= FXA_BOTTOM_RIGHT);
    VARIED(CODE, p.flags |= FXA_Q_START);
    VARIED(GEOMETRY, p.flags |= FXA_BOUNDS_CHECK);
    VARIED(GEOMETRY, p.flags |= FXA_DETERMINISTIC);
    VARIED(CODE, p.flags |= FXA_SCALARS_IN_MEMORY);
    VARIED(GEOMETRY, p.alignment = 16);
    VARIED(GEOMETRY, p.max_workspace = 1000);
    VARIED(GEOMETRY, p.device = FXA_CUDA);
    VARIED(GEOMETRY, p.device = FXA_CUDA; p.ordinal = 3);
    VARIED(GEOMETRY, p.device = FXA_CUDA; p.flags |= FXA_GRAPH_CAPTURE);
    VARIED(CODE, p.flags |= FXA_ACCUMULATE_DQ);
    VARIED(CODE, p.flags |= FXA_ACCUMULATE_DTENSORS);
    VARIED(CODE, p.flags &= ~(uint32_t)FXA_PADDING);
    VARIED(CODE, p.page_size = 5);
    VARIED(GEOMETRY, p.n_pages = 10);
    VARIED(GEOMETRY, p.b = 3);
    VARIED(CODE, p.hq = 6);
    VARIED(CODE, p.hkv = 1);
    VARIED(GEOMETRY, p.sq = 4);
    VARIED(GEOMETRY, p.sk = 7);
    VARIED(CODE, p.d_qk = 9);
    VARIED(CODE, p.d_v = 4);
    VARIED(GEOMETRY, p.global_q_len = 51);
    VARIED(GEOMETRY, p.global_q_len = 0);
    VARIED(GEOMETRY, p.global_k_len = 61);
    VARIED(CODE, p.window_left = 4);
    VARIED(CODE, p.window_right = -1);
    VARIED(CODE, p.dropout_p = 0.25);
    VARIED(CODE, p.param_grads = 0);
    VARIED(CODE, p.bprop = NULL; p.n_bprop_captures = 0);
    VARIED(CODE, p.pass = FXA_FORWARD; p.flags = FXA_CAUSAL; p.dropout_p = 0; p.bprop = NULL; p.n_bprop_captures = 0;
           p.param_grads = 0; full_captures[0].grad = 0);
}

/* Bytes without the dropout probability are the same for each of them, and likewise for windows. */
TEST(parts_that_are_left_out) {
    static const uint32_t parts[] = {0, FXA__WITH_WINDOW, FXA__WITH_DROPOUT, FXA__WITH_WINDOW | FXA__WITH_DROPOUT};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint8_t sum[4][16];
        for (int which = 0; which < 4; which++) {
            fxa_problem p = full_problem();
            t_problem *made = NULL;
            fxa__writer w = {.host = case_host()};
            if (which & 1) p.window_left = 4;
            if (which & 2) p.dropout_p = 0.25;
            T_OK(fxa__problem_create(case_host(), &p, &made, &err));
            T_REQUIRE(made != NULL);
            fxa__problem_write(made, FXA__WITH_HEADS | parts[i], &w);
            fxa__blake2s_128(w.data, w.size, sum[which]);
            fxa__writer_free(&w);
        }
        T_INT(keys_same(sum[0], sum[1]), !(parts[i] & FXA__WITH_WINDOW));
        T_INT(keys_same(sum[0], sum[2]), !(parts[i] & FXA__WITH_DROPOUT));
        T_INT(keys_same(sum[0], sum[3]), !parts[i]);
    }
}

/* Another dtype of an operand changes the code key (rows have one dtype only), another stride only the geometry. */
TEST(operands_reach_the_key) {
    static const struct {
        const char *name;
        size_t offset;
        bool fixed;
    } fields[] = {
        {"o", offsetof(fxa_problem, o), false},          {"dout", offsetof(fxa_problem, dout), false},
        {"dq", offsetof(fxa_problem, dq), false},        {"dk", offsetof(fxa_problem, dk), false},
        {"dv", offsetof(fxa_problem, dv), false},        {"sink", offsetof(fxa_problem, sinks), false},
        {"dsink", offsetof(fxa_problem, dsinks), false}, {"q", offsetof(fxa_problem, q), true},
        {"k", offsetof(fxa_problem, k), false},          {"v", offsetof(fxa_problem, v), false},
        {"lse", offsetof(fxa_problem, lse), true},       {"dlse", offsetof(fxa_problem, dlse), true},
    };
    n_range_cache = 0;
    VARIED(GEOMETRY, (void)0);
    VARIED(CODE, p.q.dtype = FXA_F64);
    VARIED(CODE, p.q.dtype = FXA_BF16);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        fxa_problem p = full_problem();
        fxa_operand *t = (fxa_operand *)(void *)((char *)&p + fields[i].offset);
        if (!fields[i].fixed) {
            t->dtype = FXA_F16;
            varied(&p, CODE, fields[i].name);
            t->dtype = 0;
        }
        *t = (fxa_operand){0, FXA_LAYOUT_STRIDED, {100000, 10000, 100, 2}};
        varied(&p, GEOMETRY, fields[i].name);
    }
}

TEST(maps_and_captures_reach_the_key) {
    n_range_cache = 0;
    VARIED(GEOMETRY, (void)0);
    VARIED(GEOMETRY, p.map_b.base = 1);
    VARIED(GEOMETRY, p.map_h.base = 1);
    VARIED(GEOMETRY, p.map_q.base = 1);
    VARIED(CODE, p.map_b.step = 2);
    VARIED(CODE, p.map_h.step = 2);
    VARIED(CODE, p.map_q.step = 2);
    VARIED(CODE, p.map_b.has_offset = 1);
    VARIED(CODE, p.map_h.has_offset = 1);
    VARIED(CODE, p.map_q.has_offset = 1);
    VARIED(CODE, p.map_k.has_offset = 1);
    VARIED(CODE, p.map_b.kind = FXA_MAP_TABLE);
    VARIED(CODE, p.map_h.kind = FXA_MAP_TABLE);
    VARIED(CODE, p.map_q.kind = FXA_MAP_TABLE);
    VARIED(CODE, p.map_k.kind = FXA_MAP_AFFINE);
    VARIED(CODE, p.map_k.n_segments = 1);
    VARIED(GEOMETRY, p.map_k.segment[1].begin = 4);
    VARIED(GEOMETRY, p.map_k.segment[1].base = 31);
    VARIED(CODE, p.map_k.segment[1].step = 2);
    VARIED(GEOMETRY, full_captures[0].size[0] = 3);
    VARIED(GEOMETRY, full_captures[0].stride[0] = 6);
    VARIED(GEOMETRY, full_captures[0].grad_stride[0] = 6);
    VARIED(CODE, full_captures[0].grad_dtype = FXA_F64);
    VARIED(CODE, full_captures[0].grad = 0);
    VARIED(GEOMETRY, full_captures[2].size[0] = 5);
    VARIED(GEOMETRY, full_bprop[0].size[0] = 6);
}

TEST(packed_totals_reach_the_key) {
    fxa_problem p = case_forward();
    n_range_cache = 0;
    p.flags = FXA_VARLEN;
    p.total_q = 10, p.total_k = 12;
    varied(&p, GEOMETRY, "packed");
    p.total_q = 11;
    varied(&p, GEOMETRY, "total_q");
    p.total_k = 13;
    varied(&p, GEOMETRY, "total_k");
    p.flags |= FXA_PADDING;
    varied(&p, CODE, "gaps");
    p.flags |= FXA_PAGED, p.page_size = 4, p.n_pages = 3;
    varied(&p, CODE, "pages");
}

/* Unused fields do not change a key: packed rows with paged keys have no packed keys. */
TEST(packed_keys_of_pages_do_not_reach_the_key) {
    fxa_problem p = case_forward();
    p.flags = FXA_VARLEN | FXA_PAGED;
    p.total_q = 10, p.page_size = 4, p.n_pages = 3;
    keys first = keys_of(&p);
    p.total_k = 77;
    keys second = keys_of(&p);
    T_CHECK(keys_same(first.key, second.key));
}

/* another program at the same address, or with the same names, has another key. */
TEST(programs_reach_the_key) {
    static const char *const texts[] = {"",
                                        "score = score * 2",
                                        "score = score * 3",
                                        "mask = k <= q",
                                        "param c : float\nscore = score * c",
                                        "param c : int\nscore = score * float(c)"};
    n_range_cache = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fxa_problem p = case_forward();
        t_program *program = case_parse(FXA_PROGRAM_SCORE, texts[i]);
        p.program = program;
        varied(&p, CODE, texts[i]);
    }
}

/* Pointers, order of declarations, names of lets, white space and the engine's name are not content. */
/* Code of a program that reads q_row depends on whether q is shifted, which the bytes without geometry still encode. */
TEST(coordinates_of_storage_reach_the_code) {
    static const char *const texts[] = {"score = score + q_row", "score = score + k_row", "score = score + q + k"};
    for (int i = 0; i < 3; i++) {
        t_program *program = case_parse(FXA_PROGRAM_SCORE, texts[i]);
        fxa_problem p = case_forward(), moved[2] = {p, p};
        p.program = moved[0].program = moved[1].program = program;
        moved[0].map_q.base = 4, moved[1].map_k.base = 4;
        keys own = keys_of(&p), rows = keys_of(&moved[0]), columns = keys_of(&moved[1]);
        T_CHECK(keys_same(own.code_key, rows.code_key) == (i != 0));
        T_CHECK(keys_same(own.code_key, columns.code_key) == (i != 1));
        moved[0].map_q.base = 9;
        keys further = keys_of(&moved[0]);
        T_CHECK(keys_same(rows.code_key, further.code_key) && !keys_same(rows.key, further.key));
    }
}

TEST(equal_content_has_equal_keys) {
    static const char *const other =
        "# the same\ntensor ids : i64[1]\ntensor table : i32[1]\nparam gain : float\nparam shift : int\n"
        "tensor bias : f32[2]\nlet t = float(shift + table[k])\nscore = bias[h, q] + gain * score + t\n"
        "mask = ids[k] == ids[q]";
    fxa_capture a[3], b[3];
    fxa_problem p = case_captured(a, false), r = case_captured(b, false);
    t_program *program = case_parse(FXA_PROGRAM_SCORE, other);
    r.program = program;
    r.engine = "ref";
    b[0].strided = 1, b[0].stride[0] = 5, b[0].stride[1] = 1, b[0].stride[4] = 8;
    r.q = (fxa_operand){FXA_F32, FXA_LAYOUT_STRIDED, {160, 40, 8, 1}};
    r.map_q.step = 1;
    keys x = keys_of(&p), y = keys_of(&r);
    T_CHECK(keys_same(x.key, y.key) && keys_same(x.code_key, y.code_key));
    T_CHECK(!keys_same(x.key, x.code_key));
}

/* The key of a simple problem as a constant: equal in every process and on every machine. */
TEST(golden_key) {
    fxa_problem p = case_forward();
    keys k = keys_of(&p);
    char hex[33];
    for (size_t i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", k.key[i]);
    T_STR(hex, "e85122c24daf04ac8c2f83589947c8db");
}

T_MAIN
