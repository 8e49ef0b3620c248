/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU emulator behaves like a device: threads, warps, CTAs, clusters, barriers and atomics. Copies are tested in
 * test_model_copies.c, numbers and matrices in test_model_products.c, mistakes in test_model_mistakes.c.
 * model_fixture.h explains the environment variables.
 */
#include "model_fixture.h"

static bool check_grid(const rig_run *r) {
    for (size_t i = 0; i < r->out_bytes / 4; i++)
        if (r->out[i] != 1) return false;
    return true;
}

TEST(every_thread_of_a_grid_of_three_dimensions_runs_once) {
    static const int32_t zero[1 << 14];
    NEEDS_RIG;
    rig_run r = {.grid = {3, 5, 2}, .block = {10, 3, 2}, .before = zero, .out_bytes = 30 * 60 * 4};
    rig_right("fxa_grid", &r, check_grid);
    rig_run line = {.grid = {7, 1, 1}, .block = {1024, 1, 1}, .before = zero, .out_bytes = 7 * 1024 * 4};
    rig_right("fxa_grid", &line, check_grid);
}

static int32_t check_exchanged[64];

static bool check_exchange(const rig_run *r) {
    bool ok = true;
    for (int t = 0; t < 64; t++) {
        const int32_t *x = check_exchanged + t / 32 * 32, *got = r->out + t * 12;
        const int lane = t % 32;
        int32_t ballot = 0, least = x[0], most = x[0], all = 2;
        for (int i = 0; i < 32; i++) {
            ballot |= (int32_t)((uint32_t)(x[i] & 1) << i);
            least = x[i] < least ? x[i] : least, most = x[i] > most ? x[i] : most;
        }
        for (int i = 0; i < 32; i++) all = x[i] < 0 ? all & 1 : x[i] == 77 ? all | 1 : all;
        const int bits = __builtin_popcount((unsigned)x[lane]), first = __builtin_ffs(x[lane]);
        const int zeros = x[lane] ? __builtin_clz((unsigned)x[lane]) : 32;
        const int32_t want[12] = {x[(lane * 5 + 3) & 31],
                                  x[lane ^ 9],
                                  x[lane < 3 ? lane : lane - 3],
                                  x[lane > 24 ? lane : lane + 7],
                                  ballot,
                                  all,
                                  least,
                                  most,
                                  1,
                                  x[lane < 16 ? lane ^ 1 : lane ^ 2],
                                  1,
                                  bits + (first << 8) + (zeros << 16)};
        /* any one lane may be elected */
        for (int i = 0; i < 12; i++)
            ok = ok && (i == 10 ? __builtin_popcount((unsigned)got[i]) == 1 : i == 8 ? got[i] != 0 : got[i] == want[i]);
    }
    return ok;
}

TEST(lanes_of_a_warp_exchange) {
    NEEDS_RIG;
    t_rng rng = {t_seed()};
    for (int i = 0; i < 64; i++) check_exchanged[i] = (int32_t)t_int(&rng, i < 32 ? -1000 : 0, 1 << 20);
    check_exchanged[40] = 77, check_exchanged[7] = 0, check_exchanged[3] = -1; /* one x of the first warp is below 0 */
    rig_run r = rig_of(64, 0, 0, 0);
    r.in = check_exchanged, r.in_bytes = sizeof check_exchanged, r.out_bytes = 64 * 12 * 4;
    rig_right("fxa_exchange", &r, check_exchange);
}

static bool check_mirror(const rig_run *r) {
    const int n = (int)r->block[0];
    bool ok = true;
    for (int t = 0; t < n; t++) {
        ok = ok && r->out[t] == n - t && r->out[n + t] == n - t + 1000;
        if (r->n) ok = ok && r->out[2 * n + t] == -2; /* all bits of both words are set */
    }
    return ok;
}

TEST(shared_memory_between_threads_wants_a_barrier) {
    NEEDS_RIG;
    rig_run r = rig_of(256, 1024, 0, 0);
    r.grid[0] = 3, r.in = rig_count(), r.in_bytes = 1024, r.out_bytes = 3 * 1024;
    rig_right("fxa_mirror", &r, check_mirror);
    r.way = 1;
    rig_wrong("fxa_mirror", &r, check_mirror);
    r.way = 0, r.n = 1; /* unwritten memory, in the second CTA too */
    if (rig_state) rig_right("fxa_mirror", &r, check_mirror);
}

/* Returns true if the results are those of the order on which the kernel relies. */
static bool check_order(const rig_run *r) {
    const int sign = r->way % 2 ? 1 : -1, step = r->way == 2 || r->way == 3 ? 32 : 1;
    const int n = (int)(r->way < 4 ? r->block[0] : r->grid[0]);
    bool ok = true;
    if (r->way >= 6) return r->out[0] == (r->way == 6 ? 1 : 5);
    for (int i = 0; i < n; i++) {
        const int other = i + sign * step;
        ok = ok && r->out[r->way < 4 ? i : n + i] == (other >= 0 && other < n ? other + 1 : 0);
    }
    return ok;
}

TEST(no_order_is_promised) {
    static const int32_t zero[512];
    NEEDS_MODEL;
    for (int way = 0; way < 8; way++) {
        rig_run r = rig_of(way < 2 ? 4 : way < 4 ? 64 : 32, 1024, way, 0);
        r.grid[0] = way == 4 || way == 5 ? 3 : 1;
        r.in = rig_count(), r.in_bytes = 1024, r.out_bytes = 1024, r.before = zero;
        rig_wrong("fxa_orders", &r, check_order);
        bool any = false;
        for (int k = 0; k < 4 * RIG_TIMES && !any; k++) any = rig_launch("fxa_orders", &r) == 0 && check_order(&r);
        if (!any) T_FAIL("way %d is wrong in every order\n", way);
    }
}

static bool check_named(const rig_run *r) {
    bool ok = true;
    for (int i = 0; i < r->n * 32; i++) ok = ok && r->out[i] == (i ^ 1) + 1;
    return ok;
}

TEST(named_barriers_hand_over) {
    NEEDS_RIG;
    rig_run r = rig_of(64, 128, 0, 6);
    r.in = rig_count(), r.in_bytes = 6 * 128, r.out_bytes = 6 * 128;
    rig_right("fxa_named", &r, check_named);
    for (r.way = 1; r.way < 3; r.way++) rig_wrong("fxa_named", &r, check_named);
}

static bool check_near(const rig_run *r) {
    bool ok = true;
    for (int i = 0; i < 8 * 64; i++) {
        const int cta = i / 64, other = cta - cta % 4 + (cta + 1) % 4;
        ok = ok && r->out[i] == other * 1000 + i % 64 + 3;
    }
    return ok;
}

TEST(ctas_of_a_cluster_read_each_other) {
    NEEDS_RIG;
    rig_run r = rig_of(64, 1024, 0, 0);
    r.grid[0] = 8, r.out_bytes = 8 * 64 * 4;
    rig_right("fxa_near", &r, check_near);
    static const char *const words[] = {"of the cluster, which has ended", "before the cluster has met",
                                        "clusters of 4 CTAs in a grid of 6"};
    for (r.way = 1; rig_state && r.way < 4; r.way++) {
        if (r.way == 3) r.grid[0] = 6;
        rig_words("fxa_near", &r, words[r.way - 1]);
    }
}

static bool check_atomics(const rig_run *r) {
    const int n = (int)r->block[0];
    static bool seen[1024];
    float half, four[4];
    uint64_t wide;
    bool ok = r->out[0] == n;
    memcpy(&half, r->out + 1, 4), memcpy(&wide, r->out + 2, 8), memcpy(four, r->out + 4, 16);
    for (int i = 0; i < 4; i++) ok = ok && four[i] == (float)(n * (i + 1));
    ok = ok && half == (float)n * 0.5f && wide == (uint64_t)n << 31;
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < n && ok; i++) {
        const int32_t t = r->out[16 + i];
        ok = t >= 0 && t < n && !seen[t];
        if (ok) seen[t] = true;
    }
    return ok;
}

TEST(atomics_lose_nothing) {
    static const int32_t zero[512];
    NEEDS_RIG;
    rig_run r = rig_of(256, 16, 0, 0);
    r.before = zero, r.out_bytes = (16 + 256) * 4;
    rig_right("fxa_atomics", &r, check_atomics);
}

T_MAIN
