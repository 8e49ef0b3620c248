/* SPDX-License-Identifier: Apache-2.0
 *
 * Out-of-bounds indices: fxa_bounds_check is compared with a count by hand, and FXA_BOUNDS_CHECK refuses before an
 * output is written.
 */
#include "problem_case.h"

#include <math.h>

enum { IB = 2, IH = 3, IQ = 9, IK = 11, ID = 4 };

typedef struct index_case {
    fxa_context *ctx;
    attn_data x;
    attn_call call; /* the call of the forward pass */
    float *q, *k, *o;
    fxa_bounds_report reports[8];
    size_t count;
} index_case;

/* Creates a case. Tensors are ordered by name: ids (i32), t (f32); n0, n1 are the sizes of t. */
static void index_start(index_case *c, const char *text, int64_t n0, int64_t n1) {
    attn_spec s = {.b = IB, .hq = IH, .hkv = IH, .sq = IQ, .sk = IK, .d = ID, .text = text};
    fxa_error err;
    int at = strstr(text, "tensor ids") != NULL;
    s.tensor[0][0] = 64, s.tensor[at][0] = n0, s.tensor[at][1] = n1;
    memset(c, 0, sizeof *c);
    T_OK(fxa_context_create(NULL, &c->ctx, &err));
    T_OK(attn_data_make(&c->x, c->ctx, &s, t_seed(), &err));
    c->x.problem.flags = 0, c->x.backward_flags = FXA_GRAD_Q;
    for (int64_t i = 0; i < attn_tensor_places(&c->x.tensor[at]); i++) attn_set(&c->x.tensor[at], i, 0.25 * (double)i);
    for (int64_t i = 0; at && i < 64; i++) attn_set(&c->x.tensor[0], i, (double)(i / 4));
    c->q = (float *)(void *)c->x.t[FXA_SLOT_Q].origin, c->k = (float *)(void *)c->x.t[FXA_SLOT_K].origin;
    c->o = (float *)(void *)c->x.t[FXA_SLOT_O].origin;
    for (size_t i = 0; i < IB * IH * IQ * ID; i++) c->q[i] = (float)((int)(i * 7 % 5) - 2);
    for (size_t i = 0; i < IB * IH * IK * ID; i++) c->k[i] = (float)((int)(i * 5 % 7) - 3);
    attn_call_make(&c->x, FXA_FORWARD, &c->call);
}

static void index_end(index_case *c) {
    attn_data_free(&c->x);
    fxa_context_destroy(c->ctx);
}

static void index_ask(index_case *c) {
    fxa_error err;
    c->count = 8;
    T_OK(fxa_bounds_check(c->ctx, &c->call.p, &c->call.args, c->reports, &c->count, &err));
}

/* Runs with FXA_BOUNDS_CHECK: refused with these words and nothing written, or runs. */
static void index_strict(index_case *c, const char *says) {
    fxa_error err;
    c->call.p.flags |= FXA_BOUNDS_CHECK;
    for (size_t i = 0; i < IB * IH * IQ * ID; i++) c->o[i] = 77;
    for (int e = 0; engine_here((size_t)e); e++) {
        c->call.p.engine = engine_here((size_t)e);
        if (!says) {
            T_OK(fxa_attention(c->ctx, &c->call.p, &c->call.args, &err));
            continue;
        }
        T_STATUS(fxa_attention(c->ctx, &c->call.p, &c->call.args, &err), FXA_E_BINDING);
        if (!strstr(err.text, says)) T_FAIL("'%s' does not say '%s'\n", err.text, says);
        for (size_t i = 0; i < IB * IH * IQ * ID; i++) T_CHECK(c->o[i] == 77);
    }
    c->call.p.engine = NULL;
    c->call.p.flags &= ~(uint32_t)FXA_BOUNDS_CHECK;
}

TEST(a_transposed_table) {
    index_case c;
    index_start(&c, "tensor t : f32[2]\nscore = score + t[k, h]", IH, IK); /* a user error: [IK, IH] was meant */
    index_ask(&c);
    T_INT(c.count, 1);
    const fxa_bounds_report *r = &c.reports[0];
    T_CHECK(r->tensor == 0 && r->axis == 0 && r->size == IH && r->lo == IH && r->hi == IK - 1 && r->exact);
    T_INT(r->pairs, IB * IH * IQ * (IK - IH));
    T_INT(r->of, IB * IH * IQ * IK);
    T_CHECK(r->b == 0 && r->h == 0 && r->q == 0 && r->k == IH);
    index_strict(&c, "index 3 is outside axis 0 of tensor 't', which has 3 elements there, at b 0, h 0, q 0, k 3; "
                     "accepted are -3 to 2");
    c.call.captures[0].size[0] = IK, c.call.captures[0].size[1] = IH;
    index_ask(&c);
    T_INT(c.count, 0);
    index_strict(&c, NULL);
    c.call.captures[0].size[0] = 0;
    index_strict(&c, "which has 0 elements there, at b 0, h 0, q 0, k 0; none is accepted");
    index_end(&c);
}

/* false && x needs no x, but where a missing element made it false: row 4 is true, rows 5 and up are missing. */
TEST(a_miss_decides_nothing) {
    index_case c;
    index_start(&c, "tensor ids : i32[1]\ntensor t : f32[1]\nmask = ids[q] > 0 && t[k] > 0.5", 12, 0);
    c.call.captures[0].size[0] = 5;
    c.call.captures[1].size[0] = 8;
    index_ask(&c);
    T_INT(c.count, 2);
    T_CHECK(c.reports[1].tensor == 1 && c.reports[1].lo == 8);
    T_INT(c.reports[1].pairs, IB * IH * (IQ - 4) * (IK - 8));
    index_end(&c);
}

/* The second operand of with_grad is needed by the derivative only: not in forward, masks or conditions, nor with a
 * user-written backward program. */
TEST(with_grads_need_their_second_operand_for_the_derivative) {
    static const struct {
        const char *text;
        int64_t forward, backward; /* misses per head */
    } cases[] = {
        {"score = score + with_grad(0.5, t[k, 0])", 0, 6 * IQ},
        {"score = score * with_grad(t[k, 0], score)", 6 * IQ, 6 * IQ},
        {"score = score + tanh(with_grad(0.5 * score, score * t[k, 0]))\nmask = k < 7", 0, 2 * IQ},
        {"score = score + with_grad(with_grad(0.5, t[k, 0]) * score, 0.0)", 0, 0},
        {"score = with_grad(0.5, t[k, 0]) < 0.7 ? score : 0.25", 0, 0},
        {"mask = with_grad(0.5, t[k, 0]) < 0.7", 0, 0},
        {"mask = with_grad(0.5, t[k, 0]) < 0.7 || t[k, 0] < 0.0", 0, 0}, /* one operand decides without a miss */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int way = 0; way < 3; way++) { /* forward, backward, user-written backward */
            char text[200];
            index_case c;
            uint64_t rng = t_seed();
            snprintf(text, sizeof text, "tensor t : f32[2]\n%s", cases[i].text);
            index_start(&c, text, 5, 1);
            attn_spec s = {.text = text, .bprop_text = "dscore = dscore", .tensor = {{5, 1}}};
            if (way == 2) T_OK(attn_data_program(&c.x, c.ctx, &s, &rng, &err));
            attn_call_make(&c.x, way ? FXA_BACKWARD : FXA_FORWARD, &c.call);
            index_ask(&c);
            int64_t pairs = 0, want = way == 1 ? cases[i].backward : cases[i].forward;
            for (size_t r = 0; r < c.count; r++) pairs += (int64_t)c.reports[r].pairs;
            if (pairs != want * IB * IH) T_FAIL("%s, way %d: %lld pairs\n", text, way, (long long)pairs / (IB * IH));
            index_end(&c);
        }
}

static size_t index_workspace(index_case *c, uint32_t flag) {
    fxa_error err;
    t_plan *plan = NULL;
    fxa_problem p = c->call.p;
    p.flags |= flag;
    T_OK(fxa_plan_create(c->ctx, &p, &plan, &err));
    size_t size = fxa_plan_workspace(plan);
    return size;
}

/* If all indices are proven in bounds, FXA_BOUNDS_CHECK adds neither a check nor workspace. */
TEST(what_is_proven_is_free) {
    static const struct {
        const char *text;
        bool proven;
    } cases[] = {
        {"tensor t : f32[2]\nscore = score + t[clamp(q - k, -2, 2) + 2, h]", true},
        {"tensor t : f32[2]\nscore = score + t[q - k + 2, h]\nmask = abs(q - k) <= 2", true},
        {"tensor t : f32[2]\nscore = score + t[q - k + 2, h]\nmask = abs(q - k) <= 3", false},
        {"tensor t : f32[2]\nscore = score + (q >= k && q - k < 5 ? t[q - k, 0] : 0)", true},
        {"tensor t : f32[2]\nscore = score + (q >= k && q - k < 6 ? t[q - k, 0] : 0)", false},
        {"tensor t : f32[2]\nmask = k < 5 && t[k, 0] >= 0", true},
        {"tensor t : f32[2]\nmask = k < 6 && t[k, 0] >= 0", false},
        {"tensor ids : i32[1]\ntensor t : f32[2]\nscore = score + t[ids[q] - ids[k] + 2, h]\n"
         "mask = abs(ids[q] - ids[k]) <= 2",
         false},
        {"tensor ids : i32[1]\ntensor t : f32[2]\nscore = score + t[ids[q], h]", false},
        {"param n : int\ntensor t : f32[2]\nscore = score + t[n, h]", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        index_case c;
        index_start(&c, cases[i].text, 5, IH);
        size_t plain = index_workspace(&c, 0), strict = index_workspace(&c, FXA_BOUNDS_CHECK);
        if ((strict == plain) != cases[i].proven)
            T_FAIL("%s: workspaces of %zu and, strict, %zu bytes\n", cases[i].text, plain, strict);
        index_end(&c);
    }
}

/* An axis longer than any int index needs no check: all its elements are one, at stride 0. */
TEST(a_longer_axis_than_ints_reach_is_proven) {
    const int64_t sizes[] = {INT64_C(1) << 31, INT64_C(1) << 32, (INT64_C(1) << 32) + 1};
    for (int i = 0; i < 3; i++) {
        index_case c;
        index_start(&c, "tensor t : f32[1]\nscore = score + t[(q * 2147483647 + k * 65537) ^ -5]", 8, 0);
        c.call.captures[0].size[0] = sizes[i];
        c.call.captures[0].strided = 1;
        c.call.captures[0].stride[0] = 0;
        T_INT(index_workspace(&c, FXA_BOUNDS_CHECK), index_workspace(&c, 0));
        index_end(&c);
    }
}

/* Guarded loads pass the bounds check; a negative index counts from the end. */
TEST(only_what_the_result_needs_counts) {
    static const struct {
        const char *text;
        int64_t misses; /* per head */
    } cases[] = {
        {"score = score + (q >= k && q - k < 5 ? t[q - k, 0] : 0)", 0},
        {"score = score + t[q - k, 0]\nmask = q >= k && q - k < 5", 0},
        {"score = score + t[q - k, 0]\nmask = q >= k", 10}, /* distances 5 to 8: 4 + 3 + 2 + 1 */
        {"mask = k < 5 && t[k, 0] >= 0", 0},
        {"mask = t[k, 0] >= 0 && k < 5", 0},
        {"mask = k >= 5 || t[k, 0] >= 0", 0},
        {"mask = t[k, 0] >= 0 || k < 5", 6 * IQ},
        {"mask = t[k, 0] >= 0", 6 * IQ},
        {"score = score + t[-1 - k, 0]", 6 * IQ},
        {"score = score + t[k % 5, 0] + t[min(k, 4), 0] + t[-5, 0]", 0},
        {"score = score + t[k, 0] + t[k + 1, 0]", 7 * IQ}, /* each pair counts once */
        {"score = score + t[k, k]", 6 * IQ},
        {"score = score + t[int(t[min(k, 4), 0]) + 5, 0] * 0", IK * IQ},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[200];
        index_case c;
        snprintf(text, sizeof text, "tensor t : f32[2]\n%s", cases[i].text);
        index_start(&c, text, 5, 1);
        index_ask(&c);
        uint64_t pairs = 0;
        for (size_t r = 0; r < c.count; r++)
            if (c.reports[r].axis == 0) pairs += c.reports[r].pairs;
        if ((int64_t)pairs != cases[i].misses * IB * IH)
            T_FAIL("%s: %lld pairs\n", cases[i].text, (long long)pairs / (IB * IH));
        T_INT(c.count, strstr(text, "k, k") ? 2 : cases[i].misses > 0);
        index_strict(&c, cases[i].misses ? "tensor 't'" : NULL);
        index_end(&c);
    }
}

TEST(indices_that_are_loaded_or_scored) {
    index_case c;
    index_start(&c, "tensor ids : i32[1]\ntensor t : f32[2]\nscore = score + t[ids[k], 0]", 2, 1);
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].tensor == 1 && c.reports[0].lo == 2 && c.reports[0].hi == 2);
    T_INT(c.reports[0].pairs, IB * IH * IQ * 3); /* ids of 8, 9, 10 are 2 */
    for (int i = 0; i < 64; i++) attn_set(&c.x.tensor[0], i, i / 4 % 2);
    index_ask(&c);
    T_INT(c.count, 0);
    index_end(&c);

    index_start(&c, "tensor t : f32[1]\nscore = score + t[int(abs(score))]", 3, 0);
    int64_t want = 0;
    for (int bh = 0; bh < IB * IH; bh++)
        for (int q = 0; q < IQ; q++)
            for (int k = 0; k < IK; k++) {
                double sum = 0;
                for (int d = 0; d < ID; d++) sum += (double)c.q[(bh * IQ + q) * ID + d] * c.k[(bh * IK + k) * ID + d];
                want += fabs(sum / 2) >= 3;
            }
    index_ask(&c);
    T_CHECK(want > 0 && c.count == 1 && c.reports[0].exact && (int64_t)c.reports[0].pairs == want);
    index_strict(&c, "tensor 't'");
    void *rows = c.call.args.slot[FXA_SLOT_Q];
    c.call.args.slot[FXA_SLOT_Q] = NULL; /* the score counts as 0 */
    index_ask(&c);
    T_INT(c.count, 0);
    c.call.args.slot[FXA_SLOT_Q] = rows, c.call.args.slot[FXA_SLOT_K] = NULL;
    index_ask(&c);
    T_INT(c.count, 0);
    index_end(&c);
}

TEST(coordinates_and_lengths) {
    index_case c;
    int32_t len_k[IB] = {2, 7};
    index_start(&c, "tensor t : f32[1]\nscore = score + t[k]", 5, 0);
    c.call.p.flags = FXA_PADDING;
    c.call.args.slot[FXA_SLOT_K_LENGTHS] = len_k;
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].b == 1 && c.reports[0].k == 5);
    T_INT(c.reports[0].pairs, IH * IQ * 2);
    T_INT(c.reports[0].of, IH * IQ * 9);
    index_strict(&c, "index 5 is outside axis 0 of tensor 't', which has 5 elements there, at b 1, h 0, q 0, k 5");
    c.call.p.flags = 0, c.call.args.slot[FXA_SLOT_K_LENGTHS] = NULL;
    c.call.p.map_k = (fxa_index_map){.base = -5, .step = 1}; /* -5 to 5 */
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].lo == 5 && c.reports[0].k == IK - 1);
    T_INT(c.reports[0].pairs, IB * IH * IQ);
    index_end(&c);
}

TEST(the_users_backward_is_looked_at_too) {
    index_case c;
    attn_spec s = {.text = "tensor t : f32[1]\nscore = score + t[k]\nmask = q < 6", .tensor = {{64}}};
    uint64_t rng = t_seed();
    index_start(&c, s.text, 64, 0);
    s.bprop_text = "tensor e : f32[1]\ndscore = dscore * e[q]", s.bprop_tensor[0][0] = 6;
    T_OK(attn_data_program(&c.x, c.ctx, &s, &rng, &err));
    c.x.bprop_captures[0].size[0] = 4;
    attn_call_make(&c.x, FXA_BACKWARD, &c.call);
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].bprop && c.reports[0].tensor == 0 && c.reports[0].lo == 4);
    T_INT(c.reports[0].pairs, IB * IH * IK * 2); /* rows 4 and 5; the others are masked */
    index_strict(&c, "tensor 'e'");
    c.x.bprop_captures[0].size[0] = 6;
    index_strict(&c, NULL);
    index_end(&c);
}

TEST(many_pairs_are_sampled) {
    index_case c;
    index_start(&c, "tensor t : f32[1]\nscore = score + (score > 9 ? 0 : t[(q * k) % 16])", 8, 0);
    c.call.args.slot[FXA_SLOT_Q] = NULL;
    c.call.p.sq = c.call.p.sk = 4096;
    index_ask(&c);
    T_CHECK(c.count == 1 && !c.reports[0].exact && c.reports[0].lo == 8 && c.reports[0].hi == 15);
    double share =
        (double)c.reports[0].pairs / (double)c.reports[0].of; /* share of pairs with an index out of bounds */
    int64_t want = 0;
    for (int q = 0; q < 16; q++)
        for (int k = 0; k < 16; k++) want += q * k % 16 >= 8;
    T_CHECK(fabs(share - (double)want / 256) < 0.01);
    index_end(&c);
}

/* Samples must draw rows from all 4096 queries: only rows from 2048 on have indices out of bounds. */
TEST(samples_are_rows_and_keys) {
    index_case c;
    index_start(&c, "tensor t : f32[1]\nscore = score + (score > 9 ? 0 : t[(q * k) % 16 // 8 + q // 512 * 2])", 8, 0);
    c.call.args.slot[FXA_SLOT_Q] = NULL;
    c.call.p.sq = 4096, c.call.p.sk = 2048;
    index_ask(&c);
    T_CHECK(c.count == 1 && !c.reports[0].exact && c.reports[0].lo == 8 && c.reports[0].hi == 15);
    T_CHECK(fabs((double)c.reports[0].pairs / (double)c.reports[0].of - 0.5) < 0.01);
    index_end(&c);
}

/* The cost of a pair grows with the program, so longer programs are sampled sooner. */
TEST(long_programs_are_sampled_sooner) {
    static char text[1 << 15];
    index_case c;
    const int loads = t_scaled_down(500);
    int n = snprintf(text, sizeof text, "tensor t : f32[1]\nlet x0 = t[q]\n");
    for (int i = 0; i < loads; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "let x%d = t[int(x%d) + %d]\n", i + 1, i, i);
    snprintf(text + n, sizeof text - (size_t)n, "score = score + x%d * float(k)\n", loads);
    index_start(&c, text, 8, 0);
    c.call.args.slot[FXA_SLOT_Q] = NULL;
    c.call.p.sq = c.call.p.sk = 512;
    index_ask(&c);
    T_CHECK(c.count == 1 && !c.reports[0].exact && c.reports[0].pairs > 0 && c.reports[0].pairs <= c.reports[0].of);
    index_end(&c);
}

/* In a chain of loads of one table each analysis reads all elements of the loads before it; the budget counts them. */
TEST(chains_of_loads_are_bounded) {
    enum { CHAIN_TABLE = 300 };
    const int chain = t_scaled_down(1200);
    static char text[1 << 16];
    static int32_t table[CHAIN_TABLE];
    index_case c;
    int n = snprintf(text, sizeof text, "tensor j : i32[1]\nlet x0 = k\n");
    for (int i = 0; i < chain; i++) n += snprintf(text + n, sizeof text - (size_t)n, "let x%d = j[x%d]\n", i + 1, i);
    snprintf(text + n, sizeof text - (size_t)n, "mask = x%d > 5\n", chain);
    for (int i = 0; i < CHAIN_TABLE; i++) table[i] = (i * 7 + 3) % CHAIN_TABLE;
    index_start(&c, text, CHAIN_TABLE, 0);
    c.call.tensors[0] = table;
    c.call.p.sq = c.call.p.sk = 100;
    c.call.args.slot[FXA_SLOT_Q] = NULL;
    index_ask(&c); /* must not take minutes */
    T_CHECK(c.count == 0);
    index_end(&c);
}

/* A large table of indices is scanned once. Its range proves all loads through it, and the remaining pairs are counted
 * rather than sampled. */
TEST(a_table_of_indices_is_read_once) {
    enum { PLACES = 64, MANY = 16384 };
    static const char *const texts[] = {
        "tensor ids : i32[2]\ntensor t : f32[1]\n"
        "score = score + t[ids[q % 64, k % 64]] + t[max(k - 16375, 0)]",
        "tensor ids : i32[2]\ntensor t : f32[1]\n"
        "score = score + t[min(ids[ids[q % 64, k % 64], 1] + 1, 7)] + t[max(k - 16375, 0)]",
        "tensor ids : bool[2]\ntensor t : f32[1]\n"
        "score = score + t[14 - 7 * int(ids[q % 64, k % 64])] + t[max(k - 16375, 0)]"};
    for (int i = 0; i < 3; i++) {
        static int32_t table[PLACES * PLACES];
        index_case c;
        attn_spec s = {.text = texts[i], .tensor = {{PLACES, PLACES}, {8}}};
        uint64_t rng = t_seed();
        index_start(&c, "tensor t : f32[1]\nscore = score + t[k]", 8, 0);
        T_OK(attn_data_program(&c.x, c.ctx, &s, &rng, &err));
        attn_call_make(&c.x, FXA_FORWARD, &c.call);
        for (int j = 0; j < PLACES * PLACES; j++) table[j] = i == 2 ? 0x01010101 : j * 5 % 8; /* 4 times true */
        c.call.tensors[0] = table;
        c.call.args.slot[FXA_SLOT_Q] = NULL;
        c.call.p.sq = c.call.p.sk = MANY;
        index_ask(&c);
        T_CHECK(c.count == 1 && c.reports[0].exact && c.reports[0].lo == 8 && c.reports[0].hi == 8);
        T_INT(c.reports[0].pairs, (int64_t)IB * IH * MANY);
        index_end(&c);
    }
}

/* A single out-of-bounds element of an index table is found, whatever the strides of both tensors. */
TEST(a_table_of_indices_with_one_outside) {
    for (int way = 0; way < 4; way++) {
        const char *text = "tensor ids : i32[2]\ntensor t : f32[1]\nscore = score + t[ids[q % 64, k % 64]]";
        static int32_t table[4096 * 2];
        index_case c;
        attn_spec s = {.text = text, .tensor = {{64, 64}, {8}}};
        uint64_t rng = t_seed();
        index_start(&c, "tensor t : f32[1]\nscore = score + t[k]", 8, 0);
        T_OK(attn_data_program(&c.x, c.ctx, &s, &rng, &err));
        attn_call_make(&c.x, FXA_FORWARD, &c.call);
        const int64_t strides[4][2] = {{64, 1}, {1, 64}, {128, 2}, {0, 1}};
        for (int i = 0; i < 4096 * 2; i++) table[i] = i % 8;
        table[7 * strides[way][0] + 9 * strides[way][1]] = 8;
        c.call.tensors[0] = table;
        c.call.captures[0].strided = 1;
        c.call.captures[0].stride[0] = strides[way][0], c.call.captures[0].stride[1] = strides[way][1];
        c.call.p.sq = c.call.p.sk = 128;
        c.call.args.slot[FXA_SLOT_Q] = NULL;
        index_ask(&c);
        T_CHECK(c.count == 1 && c.reports[0].exact && c.reports[0].lo == 8);
        T_INT(c.reports[0].pairs, (int64_t)IB * IH * 4 * (way == 3 ? 64 : 1));
        index_end(&c);
    }
}

TEST(what_is_refused_and_what_is_free) {
    index_case c;
    size_t count = 1;
    index_start(&c, "tensor t : f32[1]\nscore = score + t[k]", 5, 0);
    T_STATUS(fxa_bounds_check(NULL, &c.call.p, &c.call.args, c.reports, &count, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_bounds_check(c.ctx, NULL, &c.call.args, c.reports, &count, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, NULL, c.reports, &count, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, c.reports, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err), FXA_E_ARGUMENT);
    count = 0;
    T_OK(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err));
    T_INT(count, 1);
    count = 0;
    c.call.p.device = FXA_CUDA;
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "problem.device is cuda: indices are looked at on the host alone");
    c.call.p.device = FXA_HOST;
    c.call.args.n_tensors = 0;
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err), FXA_E_BINDING);
    c.call.args.n_tensors = 1;
    c.call.tensors[0] = NULL;
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err), FXA_E_BINDING);
    index_end(&c);
}

/* Random draws outside the sequences are rejected, and the count is extrapolated from the others. Every pair is a miss.
 * */
TEST(few_pairs_among_many_places_are_sampled) {
    static char text[1 << 15];
    index_case c;
    int32_t len[IB] = {100, 90};
    int n = snprintf(text, sizeof text, "tensor t : f32[1]\nlet x0 = t[q]\n");
    for (int i = 0; i < 500; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "let x%d = t[int(x%d) + %d]\n", i + 1, i, i);
    snprintf(text + n, sizeof text - (size_t)n, "score = score + x500 * float(k)\n");
    index_start(&c, text, 8, 0);
    c.call.args.slot[FXA_SLOT_Q] = NULL;
    c.call.p.sq = c.call.p.sk = 4096;
    c.call.p.flags = FXA_PADDING;
    c.call.args.slot[FXA_SLOT_Q_LENGTHS] = c.call.args.slot[FXA_SLOT_K_LENGTHS] = len;
    index_ask(&c);
    T_CHECK(c.count == 1 && !c.reports[0].exact);
    T_INT(c.reports[0].of, IH * (100 * 100 + 90 * 90));
    T_INT(c.reports[0].pairs, c.reports[0].of);
    index_end(&c);
}

TEST(sequences_without_rows_or_keys_have_no_pairs) {
    index_case c;
    int32_t len_q[IB] = {0, 2}, len_k[IB] = {7, 0};
    index_start(&c, "tensor t : f32[1]\nscore = score + t[k]", 5, 0);
    c.call.p.flags = FXA_PADDING;
    c.call.args.slot[FXA_SLOT_Q_LENGTHS] = len_q, c.call.args.slot[FXA_SLOT_K_LENGTHS] = len_k;
    index_ask(&c);
    T_INT(c.count, 0);
    len_k[1] = 6; /* b 1 has two rows, and one key more than t has elements */
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].pairs == IH * 2 && c.reports[0].of == IH * 2 * 6);
    c.call.p.flags = 0;
    c.call.args.slot[FXA_SLOT_Q_LENGTHS] = c.call.args.slot[FXA_SLOT_K_LENGTHS] = NULL;
    c.call.p.b = 0;
    index_ask(&c);
    T_INT(c.count, 0);
    index_end(&c);
}

TEST(places_where_an_index_comes_from) {
    index_case c;
    index_start(&c, "tensor t : f32[1]\nscore = score + t[b]", 1, 0);
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].b == 1 && c.reports[0].pairs == IH * IQ * IK);
    index_end(&c);

    index_start(&c, "tensor t : f32[1]\nscore = score + t[k]", 5, 0); /* negative indices count from the end */
    c.call.p.map_k = (fxa_index_map){.base = 7, .step = -1};
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].lo == 5 && c.reports[0].hi == 7 && c.reports[0].pairs == IB * IH * IQ * 3);
    index_end(&c);

    index_start(&c, "tensor t : f32[1]\nmask = k < 5\nscore = score + t[k]", 5, 0); /* the other pairs are masked */
    index_ask(&c);
    T_INT(c.count, 0);
    c.call.args.slot[FXA_SLOT_K] = NULL;
    index_ask(&c);
    T_INT(c.count, 0);
    index_end(&c);

    attn_spec s = {.text = "tensor a : f32[0]\ntensor t : f32[1]\nscore = score + a[] * t[k + 1]",
                   .tensor = {{0}, {IK}}};
    uint64_t rng = t_seed();
    index_start(&c, "tensor t : f32[1]\nscore = score + t[k]", 1, 0);
    T_OK(attn_data_program(&c.x, c.ctx, &s, &rng, &err)); /* a tensor of rank 0 has no index */
    attn_call_make(&c.x, FXA_FORWARD, &c.call);
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].tensor == 1 && c.reports[0].lo == IK);
    T_INT(c.reports[0].pairs, IB * IH * IQ);
    index_end(&c);
}

TEST(scores_alone_decide_in_the_users_backward) {
    index_case c;
    attn_spec s = {.text = "tensor t : f32[1]\nscore = score * 2.0 + t[0]", .tensor = {{1}}};
    uint64_t rng = t_seed();
    index_start(&c, s.text, 1, 0);
    s.bprop_text = "tensor e : f32[1]\ndscore = dscore * e[int(abs(score))]", s.bprop_tensor[0][0] = 3;
    T_OK(attn_data_program(&c.x, c.ctx, &s, &rng, &err));
    attn_call_make(&c.x, FXA_BACKWARD, &c.call);
    index_ask(&c);
    T_CHECK(c.count == 1 && c.reports[0].bprop && c.reports[0].pairs > 0 && c.reports[0].pairs < c.reports[0].of);
    c.call.args.n_bprop_tensors = 0;
    size_t count = 0;
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err), FXA_E_BINDING);
    index_end(&c);
}

/* fxa_bounds_check refuses the same invalid inputs as a run. */
TEST(a_question_needs_the_inputs_of_a_run) {
    index_case c;
    size_t count = 0;
    int32_t len_k[IB] = {2, IK + 1};
    index_start(&c, "tensor t : f32[1]\nscore = score + t[k]", 5, 0);
    c.call.p.flags = FXA_PADDING;
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err), FXA_E_BINDING);
    T_HAS(err.text, "LEN");
    c.call.args.slot[FXA_SLOT_K_LENGTHS] = len_k;
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err), FXA_E_BINDING);
    c.call.p.flags = 0, c.call.args.slot[FXA_SLOT_K_LENGTHS] = NULL;
    c.call.args.n_params = 1;
    T_STATUS(fxa_bounds_check(c.ctx, &c.call.p, &c.call.args, NULL, &count, &err), FXA_E_BINDING);
    T_HAS(err.text, "params");
    index_end(&c);
}

T_MAIN
