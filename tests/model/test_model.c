/* SPDX-License-Identifier: Apache-2.0
 *
 * What the model of a device does as a device does: threads and barriers, numbers of 16 bits, copies, matrices. Layouts
 * are held against plain sums on the host. Its settings: model_rig.h.
 */
#include "model_rig.h"

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

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
        /* Any one lane may be elected. */
        for (int i = 0; i < 12; i++)
            ok = ok && (i == 10 ? __builtin_popcount((unsigned)got[i]) == 1 : i == 8 ? got[i] != 0 : got[i] == want[i]);
    }
    return ok;
}

TEST(lanes_of_a_warp_exchange) {
    NEEDS_RIG;
    t_rng rng = {t_seed()};
    for (int i = 0; i < 64; i++) check_exchanged[i] = (int32_t)t_int(&rng, i < 32 ? -1000 : 0, 1 << 20);
    check_exchanged[40] = 77, check_exchanged[7] = 0, check_exchanged[3] = -1; /* not all of the first warp are above */
    rig_run r = rig_of(64, 0, 0, 0);
    r.in = check_exchanged, r.in_bytes = sizeof check_exchanged, r.out_bytes = 64 * 12 * 4;
    rig_right("fxa_exchange", &r, check_exchange);
}

static bool check_mirror(const rig_run *r) {
    const int n = (int)r->block[0];
    bool ok = true;
    for (int t = 0; t < n; t++) {
        ok = ok && r->out[t] == n - t && r->out[n + t] == n - t + 1000;
        if (r->n) ok = ok && r->out[2 * n + t] == -2; /* all bits of both are set */
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
    r.way = 0, r.n = 1; /* nobody has written it, in the second CTA neither */
    if (rig_state) rig_right("fxa_mirror", &r, check_mirror);
}

/* As it would be in the order that the kernel counts on. */
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
    bool ok = r->out[0] == n && r->out[8] == -1;
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

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static float check_floats[1 << 16];

static float float_of(int32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint16_t narrow_of(double x, bool half) { return half ? fxa__f64_to_f16(x) : fxa__f64_to_bf16(x); }

static bool is_nan16(uint16_t x, bool half) { return half ? (x & 0x7fff) > 0x7c00 : (x & 0x7fff) > 0x7f80; }

/* Whether z is below x + y, or the same, exactly: a double has not all bits of the sum, and `left` has the others. */
static bool is_at_most_sum(float z, float x, float y) {
    const double sum = (double)x + (double)y, part = sum - (double)x;
    const double left = ((double)x - (sum - part)) + ((double)y - part);
    return (double)z < sum || ((double)z == sum && left >= 0);
}

static bool check_numbers(const rig_run *r) {
    const bool half = r->unit == RIG_KERNELS_F16;
    int bad = 0;
    for (int i = 0; i < r->n; i++) {
        const int32_t *got = r->out + 5 * i;
        const double wide = half ? fxa__f16_to_f64((uint16_t)i) : fxa__bf16_to_f64((uint16_t)i);
        const float x = check_floats[i], y = check_floats[(i + 1) % r->n];
        const uint16_t narrow = narrow_of((double)x, half), other = narrow_of(-(double)x, half);
        const uint16_t low = (uint16_t)got[1], high = (uint16_t)((uint32_t)got[1] >> 16), one = (uint16_t)got[2];
        const float down = float_of(got[3]), most = float_of(got[4]);
        const bool nan = wide != wide;
        bool ok = nan ? float_of(got[0]) != float_of(got[0]) : (double)float_of(got[0]) == wide;
        ok = ok && (is_nan16(narrow, half) ? is_nan16(low, half) && is_nan16(high, half) && is_nan16(one, half)
                                           : low == narrow && high == other && one == narrow);
        ok = ok && got[2] >> 16 == !nan;
        if (fabsf(x + y) > 1e-30f && fabsf(x + y) < 1e30f)
            ok = ok && is_at_most_sum(down, x, y) && !is_at_most_sum(nextafterf(down, INFINITY), x, y);
        ok = ok && (i % 5 == 0 || x != x ? most != most : most == (x > 1.f ? x : 1.f));
        bad += !ok;
    }
    return bad == 0;
}

TEST(numbers_of_16_bits) {
    NEEDS_RIG;
    t_rng rng = {t_seed()};
    for (int i = 0; i < 1 << 16; i++) {
        const int how = i % 4;
        check_floats[i] = (float)ldexp(t_real(&rng, -1, 1), (int)t_int(&rng, how ? -30 : -100, how ? 18 : 60));
        if (how == 3) check_floats[i] = (float)fxa__f16_to_f64((uint16_t)(i / 4)) * (1 + 0x1p-11f); /* between two */
    }
    check_floats[0] = INFINITY, check_floats[1] = -INFINITY, check_floats[2] = NAN, check_floats[3] = -0.f;
    for (int half = 0; half < 2; half++) {
        rig_run r = rig_of(128, 0, 0, 1 << 16);
        r.unit = half, r.in = check_floats, r.in_bytes = sizeof check_floats, r.out_bytes = 5 << 18;
        T_INT(rig_launch("fxa_numbers", &r), 0);
        T_CHECK(check_numbers(&r));
    }
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static bool check_copies(const rig_run *r) {
    bool ok = true;
    for (int t = 0; t < 32; t++)
        for (int i = 0; i < 8; i++) ok = ok && r->out[t * 8 + i] == (i < 4 || (i - 4) * 4 < r->n ? t * 8 + i + 1 : 0);
    return ok;
}

static bool check_first_copy(const rig_run *r) {
    bool ok = true;
    for (int t = 0; t < 32; t++)
        for (int i = 0; i < 4; i++) ok = ok && r->out[t * 8 + i] == t * 8 + i + 1;
    return ok;
}

TEST(copies_by_groups_are_there_after_the_wait) {
    NEEDS_RIG;
    for (int n = 0; n <= 16; n += 4) {
        rig_run r = rig_of(32, 1024, 0, n);
        r.in = rig_count(), r.in_bytes = 1024, r.out_bytes = 1024;
        rig_right("fxa_copies", &r, check_copies);
        r.way = 1;
        rig_right("fxa_copies", &r, check_first_copy);
        for (r.way = 1; r.way < 4; r.way++) rig_wrong("fxa_copies", &r, check_copies);
    }
}

static int32_t tma_in[64]; /* bytes of the box and where it begins, from the ninth word on what a bulk copy brings */

/* The element of the tensor that element i of the box is, -1: none. Where it lies in shared memory: *place. */
static int tma_place(int i, int later, int *place) {
    const int c = i % TMA_BOX + tma_in[1], s = i / TMA_BOX % TMA_ROWS + tma_in[2];
    const int h = i / TMA_BOX / TMA_ROWS + tma_in[3], b = tma_in[4] + later;
    *place = i * 2 ^ (i * 2 >> 7 & 7) << 4;
    if (c < 0 || c >= TMA_D || s < 0 || s >= TMA_S || h < 0 || h >= TMA_H || b < 0 || b >= TMA_B) return -1;
    return ((b * TMA_H + h) * TMA_S + s) * TMA_PITCH + c;
}

static bool check_load(const rig_run *r) {
    const uint8_t *got = (const uint8_t *)r->out;
    bool ok = memcmp(got + TMA_BYTES, tma_in + 8, (size_t)r->n) == 0;
    for (int i = 0; i < TMA_BYTES / 2; i++) {
        int place, from = tma_place(i, 0, &place);
        uint16_t x;
        memcpy(&x, got + place, 2);
        ok = ok && x == (from < 0 ? 0 : tma_tensor[from]);
    }
    return ok;
}

static void tma_from(int c, int s, int h, int b) {
    tma_in[0] = TMA_BYTES, tma_in[1] = c, tma_in[2] = s, tma_in[3] = h, tma_in[4] = b;
    for (int i = 8; i < 64; i++) tma_in[i] = i * 1001;
}

static const int tma_corners[][4] = {{0, 0, 0, 0}, {64, 16, 2, 3}, {-8, -3, -1, 1},
                                     {8, 5, 1, 2}, {0, 0, 0, 4},   {80, 0, 0, 0}};
enum { TMA_CORNERS = sizeof tma_corners / sizeof *tma_corners };

TEST(boxes_of_a_tensor_are_loaded_swizzled_and_with_zeros_past_it) {
    NEEDS_RIG;
    uintptr_t data = 0;
    rig_map map;
    for (int i = 0; i < TMA_ALL; i++) tma_tensor[i] = (uint16_t)(i + 1);
    T_REQUIRE(rig_cu.alloc(&data, sizeof tma_tensor) == 0 && tma_map(data, &map));
    T_REQUIRE(rig_cu.to_device(data, tma_tensor, sizeof tma_tensor, NULL) == 0);
    for (int i = 0; i < TMA_CORNERS; i++) {
        rig_run r = rig_of(64, 1024 + TMA_BYTES + 128, 0, 128);
        tma_from(tma_corners[i][0], tma_corners[i][1], tma_corners[i][2], tma_corners[i][3]);
        r.in = tma_in, r.in_bytes = sizeof tma_in, r.out_bytes = TMA_BYTES + 128, r.map = &map;
        rig_right("fxa_load", &r, check_load);
        r.way = 1;
        rig_wrong("fxa_load", &r, check_load);
    }
    T_INT(rig_cu.free(data), 0);
}

/* What the stores have made of the tensor, which was all 9. */
static bool check_stored(const uint16_t *got, const rig_run *r) {
    static uint16_t want[TMA_ALL];
    bool ok = true;
    for (int i = 0; i < TMA_ALL; i++) want[i] = 9;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < TMA_BYTES / 2; i++) {
            int place, to = tma_place(i, turn, &place), chunk = tma_place(i / 8 * 8, turn, &place);
            if (to < 0 && chunk >= 0) to = chunk + i % 8; /* all 16 bytes in which the columns end */
            if (to >= 0) want[to] = (uint16_t)(1 + i + turn * 20000);
        }
    for (int i = 0; i < r->n / 4; i++) ok = ok && float_of(r->out[i]) == (float)(3 + 2 * i);
    return ok && memcmp(got, want, sizeof want) == 0;
}

static bool stored_once(rig_run *r, uintptr_t data) {
    static uint16_t tensor[TMA_ALL];
    for (int i = 0; i < TMA_ALL; i++) tensor[i] = 9;
    bool ok = rig_cu.to_device(data, tensor, sizeof tensor, NULL) == 0 && rig_launch("fxa_store", r) == 0 &&
              rig_cu.to_host(tensor, data, sizeof tensor, NULL) == 0 && rig_cu.wait() == 0;
    return ok && check_stored(tensor, r);
}

TEST(boxes_are_stored_inside_the_tensor_and_read_before_the_wait) {
    static const int32_t zero[32];
    NEEDS_RIG;
    uintptr_t data = 0;
    rig_map map;
    T_REQUIRE(rig_cu.alloc(&data, sizeof tma_tensor) == 0 && tma_map(data, &map));
    for (int i = 0; i < TMA_CORNERS; i++) {
        rig_run r = rig_of(96, TMA_BYTES + 128, 0, 128);
        int wrong = 0;
        if (tma_corners[i][0] < 0) continue; /* stores begin inside, or behind the end */
        tma_from(tma_corners[i][0], tma_corners[i][1], tma_corners[i][2], tma_corners[i][3]);
        r.in = tma_in, r.in_bytes = sizeof tma_in, r.out_bytes = 128, r.before = zero, r.map = &map;
        for (int k = 0; k < (rig_state ? RIG_TIMES : 2); k++) wrong += !stored_once(&r, data);
        if (wrong) T_FAIL("corner %d: %d are wrong: %s\n", i, wrong, rig_state ? rig_state->words : "");
        r.way = 1;
        for (int k = 0; k < RIG_TIMES && rig_state; k++) wrong += !stored_once(&r, data);
        if (rig_state && !wrong) T_FAIL("corner %d: right in every order\n", i);
    }
    T_INT(rig_cu.free(data), 0);
}

static bool check_ring(const rig_run *r) {
    bool ok = true;
    for (int i = 0; i < r->n * 16; i++) ok = ok && r->out[i] == i + 1;
    return ok;
}

TEST(a_ring_goes_by_the_phases_of_its_barriers) {
    NEEDS_RIG;
    for (int n = 1; n < 12; n += 5) {
        rig_run r = rig_of(64, 1024, 0, n);
        r.in = rig_count(), r.in_bytes = (size_t)n * 64, r.out_bytes = (size_t)n * 64;
        rig_right("fxa_ring", &r, check_ring);
        for (r.way = n > 2 ? 1 : 2; r.way < 3; r.way++) rig_wrong("fxa_ring", &r, check_ring);
    }
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

static uint16_t word_of(const int32_t *words, int i) { return (uint16_t)((uint32_t)words[i / 2] >> 16 * (i % 2)); }

static bool check_matrices(const rig_run *r) {
    bool ok = true;
    const int32_t *in = r->in, *out = r->out;
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++)
            for (int half = 0; half < 2; half++) {
                const int i = lane * 8 + m * 2 + half, row = lane / 4, column = lane % 4 * 2 + half;
                ok = ok && word_of(out, i) == word_of(in, (m * 8 + row) * 8 + column);
                ok = ok && word_of(out + 128, i) == word_of(in, (m * 8 + column) * 8 + row);
            }
    for (int i = 0; i < 256; i++) {
        const int m = i / 64, row = i / 8 % 8, column = i % 8;
        ok = ok && word_of(out + 256, i) == word_of(in, i);
        ok = ok && word_of(out + 384, i) == word_of(in, m * 64 + column * 8 + row);
    }
    for (int i = 0; i < 64; i++) ok = ok && word_of(out + 512, i) == word_of(in, i % 8 * 8 + i / 8);
    return ok;
}

TEST(matrices_of_8_by_8) {
    NEEDS_RIG;
    int32_t in[128];
    for (int i = 0; i < 128; i++) in[i] = (2 * i + 1) | (2 * i + 2) << 16;
    rig_run r = rig_of(32, 1536, 0, 0);
    r.in = in, r.in_bytes = sizeof in, r.out_bytes = 544 * 4;
    rig_right("fxa_matrices", &r, check_matrices);
}

static double product_left[64][64], product_right[256][64]; /* right: columns */

static void product_draw(uint16_t *in, int rows, int columns, int deep, bool half) {
    t_rng rng = {t_seed() + (uint64_t)columns};
    for (int i = 0; i < rows * deep + columns * deep; i++) {
        double x = (double)t_int(&rng, -8, 8) / 4; /* sums are exact */
        in[i] = narrow_of(x, half);
        if (i < rows * deep)
            product_left[i / deep][i % deep] = x;
        else
            product_right[i / deep - rows][i % deep] = x;
    }
}

static bool check_product(const rig_run *r, int rows, int columns, int deep, double from) {
    int bad = 0;
    for (int i = 0; i < rows * columns; i++) {
        double sum = from;
        for (int k = 0; k < deep; k++) sum += product_left[i / columns][k] * product_right[i % columns][k];
        bad += (double)float_of(r->out[i]) != sum;
    }
    return bad == 0;
}

static bool check_mma(const rig_run *r) { return check_product(r, 16, 8, 16, 1); }
static bool check_wgmma(const rig_run *r) { return check_product(r, 64, r->n, 64, 0); }

TEST(a_product_of_a_warp) {
    NEEDS_RIG;
    for (int half = 0; half < 2; half++) {
        uint16_t in[24 * 16];
        product_draw(in, 16, 8, 16, half);
        rig_run r = rig_of(32, 0, 0, 0);
        r.unit = half, r.in = in, r.in_bytes = sizeof in, r.out_bytes = 16 * 8 * 4;
        rig_right("fxa_mma", &r, check_mma);
    }
}

enum { WG_HELD = 1, WG_TRANSPOSED = 2, WG_EARLY = 4, WG_OVERWRITTEN = 8, WG_CHANGED = 16, WG_PART = 32 };

static rig_run product_run(int columns, int way, bool half, uint16_t *in) {
    rig_run r = rig_of(128, (unsigned)(64 + (columns + 63) / 64 * 64) * 128, way, columns);
    product_draw(in, 64, columns, 64, half);
    r.unit = half, r.in = in, r.in_bytes = (size_t)(64 + columns) * 128, r.out_bytes = (size_t)columns * 256;
    return r;
}

TEST(products_of_a_group_of_warps) {
    static const int columns[] = {32, 64, 96, 128, 192, 256};
    static uint16_t in[(64 + 256) * 64];
    NEEDS_RIG;
    for (int i = 0; i < 6; i++)
        for (int way = 0; way < 4; way++)
            for (int half = 0; half < 2; half++) {
                if (!(way & WG_HELD) && columns[i] != 32 && columns[i] != 64 && columns[i] != 128) continue;
                rig_run r = product_run(columns[i], way, half, in);
                for (int k = 0; k < 5; k++) {
                    const char *words = rig_state ? rig_state->words : "";
                    if (rig_launch("fxa_wgmma", &r) || !check_wgmma(&r))
                        T_FAIL("%d columns, way %d, f16 %d: wrong %s\n", columns[i], way, half, words);
                }
            }
}

TEST(products_are_there_after_the_wait_and_read_until_then) {
    static const int mistakes[] = {WG_EARLY, WG_OVERWRITTEN, WG_HELD | WG_CHANGED, WG_PART};
    static uint16_t in[(64 + 256) * 64];
    NEEDS_MODEL;
    for (int i = 0; i < 4; i++) {
        rig_run r = product_run(64, mistakes[i] | WG_TRANSPOSED, false, in);
        rig_wrong("fxa_wgmma", &r, check_wgmma);
        bool any = false; /* where all is done early it is right: late is not all that the model does */
        for (int k = 0; k < RIG_TIMES && !any; k++) any = rig_launch("fxa_wgmma", &r) == 0 && check_wgmma(&r);
        if (!any) T_FAIL("mistake %d is wrong in every order\n", mistakes[i]);
    }
}

T_MAIN
