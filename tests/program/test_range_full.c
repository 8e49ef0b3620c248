/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis with exhausted tables: programs that fill the table of terms, of bounds, or the step limit, followed
 * by operations of every kind. Less is known of later nodes, never anything wrong: every node's range is compared with
 * its values at points of the box, every class with brute force.
 */
#include "program/program.h"
#include "support/oracle/brute.h"
#include "t.h"

/* Writes, `n` times, a form that may wrap (a term), its remainder (another one), and their sum (a third one). */
static size_t full_fill(char *text, size_t size, int n, const char *start) {
    size_t used =
        (size_t)snprintf(text, size, "tensor t : i32[1]\ntensor w : i32[2]\nlet a0 = %s\nlet f0 = 0\n", start);
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, size - used, "let a%d = a%d + k\nlet f%d = f%d + a%d %% 7\n", i + 1, i,
                                 i + 1, i, i + 1);
    return used;
}

/* Operations on f, of which nothing is known, and on g, which still has a form. */
static const char *const full_ends[] = {
    "f // 3 == g // 3",
    "f %% 5 < (f + g) %% 8",
    "(f + k) %% 8 != (g - f) %% -8",
    "abs(f - 9) + abs(g) > 4",
    "min(f, g) <= max(f, k) || clamp(f, g, k) == 3",
    "(f & 7) == (g & -8)",
    "(f & -16) - f < 3",
    "((f << 3) >> 1) + (g >> 2) != k",
    "f * g == 6 || f * 3 - g * 2 + k // 2 < 5",
    "-f < ~g",
    "t[f] == t[g] && t[f // 2] <= t[f - 1]",
    "w[f, g] < w[f, g + 1] || w[f // 3, k] == 2",
    "(f < g ? f : g) %% 3 == 1",
    "int(f < g) + int(float(f)) == 1",
    "(f | g) > (f ^ 3)",
    "(f // 7) // 9 == (g // 7) // 9",
    "f - f %% 8 == 8 * (f // 8)",
    "f + g // 2 + f // 3 + f // 4 + g // 5 + f // 6 + f // 7 + g // 8 < q",
};
enum { FULL_ENDS = sizeof full_ends / sizeof *full_ends };

typedef struct full_data {
    int32_t t[4], w[2][3];
    fxa_view views[2];
    fxa_tensor_range known[2];
} full_data;

static void full_data_make(full_data *d) {
    *d = (full_data){{3, 1, 2, 9}, {{1, 2, 3}, {4, 5, 6}}, {{0}}, {{0}}};
    d->views[0] = (fxa_view){d->t, FXA_I32, 1, {4}, {1}};
    d->views[1] = (fxa_view){d->w, FXA_I32, 2, {2, 3}, {3, 1}};
    for (int i = 0; i < 2; i++) d->known[i] = fxa_tensor_scan(&d->views[i]);
}

/* Checks the last nodes, which come when the tables are full. */
static void full_check_nodes(const fxa_program *p, const fxa_tile_bounds *box, const full_data *d, t_rng *rng) {
    enum { POINTS = 6, LAST = 30 };
    fxa__val *vals = malloc((size_t)p->n_nodes * POINTS * sizeof *vals);
    if (!vals) abort();
    for (int i = 0; i < POINTS; i++) {
        fxa__env env = {.tensors = d->views};
        for (int j = FXA_INPUT_B; j < FXA_INPUT_COUNT; j++) env.coord[j] = (int32_t)t_int(rng, box->lo[j], box->hi[j]);
        fxa__program_eval(p, &env, vals + i * p->n_nodes);
    }
    for (int32_t node = p->n_nodes > LAST ? p->n_nodes - LAST : 0; node < p->n_nodes; node++) {
        int64_t lo = 0, hi = 0;
        uint64_t steps = 0;
        if (!fxa__program_int_range(p, node, box, NULL, d->known, &lo, &hi, &steps)) continue;
        for (int i = 0; i < POINTS; i++) {
            int32_t x = vals[i * p->n_nodes + node].i;
            if (x >= lo && x <= hi) continue;
            T_FAIL("node %d is %d, not in %lld..%lld\n", node, x, (long long)lo, (long long)hi);
            brute_show(p, box);
        }
    }
    free(vals);
}

/* Checks one program in boxes with and without wrapping sums. */
static void full_check(fxa_context *ctx, const char *text, const full_data *d, t_rng *rng) {
    static const int32_t starts[][2] = {{0, 0}, {2147483640, 3}, {-2147483647 - 1, -5}, {1073741820, 1073741824}};
    t_program *p = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    for (size_t i = 0; p && i < sizeof starts / sizeof *starts; i++) {
        int64_t q = starts[i][0], k = starts[i][1], keys = t_int(rng, 1, 5);
        fxa_tile_bounds box = brute_box(0, 1, q, q + t_int(rng, 1, 7), k, k + keys, 9, 9);
        fxa_tile_class got = fxa_program_classify(p, &box, NULL, d->known);
        fxa_tile_class truth = brute_class(p, &box, NULL, d->views, brute_scores, 1);
        if (got != FXA_TILE_MIXED && got != truth) {
            T_FAIL("%s, truly %s\n", brute_name(got), brute_name(truth));
            brute_show(p, &box);
        }
        full_check_nodes(p, &box, d, rng);
    }
}

CONTEXT_TEST(full_tables_are_never_wrong) {
    static const int fills[] = {0, 12, 19, 20, 21, 22, 23, 24, 25, 26, 28, 40, 90};
    static char text[1 << 15];
    static full_data d;
    t_rng rng = {t_seed()};
    full_data_make(&d);
    for (size_t i = 0; i < sizeof fills / sizeof *fills; i++)
        for (int j = 0; j < FULL_ENDS && t_failures < 5; j++) {
            size_t used = full_fill(text, sizeof text, fills[i], j % 2 ? "q" : "q * 3 - 5");
            used += (size_t)snprintf(text + used, sizeof text - used, "let f = f%d\nlet g = a%d\nmask = ", fills[i],
                                     fills[i]);
            (void)snprintf(text + used, sizeof text - used, full_ends[j], 0);
            full_check(ctx, text, &d, &rng);
        }
}

/* More bounds than the lists hold, combined so that each list is long. */
CONTEXT_TEST(long_lists_of_bounds_are_never_wrong) {
    static char text[1 << 15];
    static full_data d;
    static const char *const joins[] = {"&&", "||", "^"};
    t_rng rng = {t_seed() + 1};
    full_data_make(&d);
    for (int n = 10; n <= 640 && t_failures < 5; n *= 4)
        for (int join = 0; join < 3; join++) {
            size_t used =
                (size_t)snprintf(text, sizeof text, "tensor t : i32[1]\ntensor w : i32[2]\nmask = t[q] < 99 && ");
            for (int i = 0; i < n; i++)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s(q * %d - k < %d %s k * %d + q > -%d)",
                                         i ? joins[join] : "", i + 1, 9 * i + 40, i % 2 ? "||" : "&&", i + 2, i + 50);
            full_check(ctx, text, &d, &rng);
        }
}

static size_t full_tree(char *text, size_t size, int from, int to, const char *join) {
    if (from + 1 == to) return (size_t)snprintf(text, size, "(q * %d - k < %d)", from % 7 + 1, 5 * from + 9);
    size_t used = (size_t)snprintf(text, size, "(");
    used += full_tree(text + used, size - used, from, (from + to) / 2, join);
    used += (size_t)snprintf(text + used, size - used, " %s ", join);
    used += full_tree(text + used, size - used, (from + to) / 2, to, join);
    return used + (size_t)snprintf(text + used, size - used, ")");
}

/* Trees of logic, whose lists are combined on every level: more bounds than the table holds. */
CONTEXT_TEST(trees_of_bounds_are_never_wrong) {
    static char text[1 << 15];
    static full_data d;
    static const char *const joins[] = {"&&", "||", "^", "=="};
    t_rng rng = {t_seed() + 3};
    full_data_make(&d);
    for (int n = 4; n <= 64 && t_failures < 5; n += 4)
        for (int join = 0; join < 4; join++) {
            size_t used = (size_t)snprintf(text, sizeof text,
                                           "tensor t : i32[1]\ntensor w : i32[2]\nmask = w[q, k] + t[k] < 99 && ");
            (void)full_tree(text + used, sizeof text - used, 0, n, joins[join]);
            full_check(ctx, text, &d, &rng);
        }
}

/* Steps and sizes at the limits of what is solved or enumerated. */
CONTEXT_TEST(rows_at_their_limits_are_never_wrong) {
    static const char *const masks[] = {
        "q * -2147483648 + 3 * k == 5",
        "k * -2147483648 + 3 * q == 5",
        "h * 3 + b * -2147483648 == 7",
        "-5 * q + 3 * k == 7",
        "5 * q - 3 * k == 7",
        "-5 * q - 7 * k == -31",
        "6 * q + 10 * k >= 100 && 6 * q + 10 * k <= 301",
        "(5 * q) % 64 + (3 * q) % 7 == 11",
        "q // 3 - (q + k) // 3 == 1",
        "(q + k) // 3 - q // 3 == 2",
        "(k + q) // 3 * 4 - k // 3 * 4 == 8",
        "k // 3 * 4 - (k + q) // 3 * 4 == -8",
        "abs(q - k) == abs(k - q) && abs(k - q) // 2 == 3",
        "abs(-q - k) > 3",
        "abs(q // 2 * 5 - 11) == 4",
        "(q % 9) * 3 % 5 == 2",
        "(q % 4 + q % 6) % 3 == 1",
        "k % 40 == q % 40 && k // 40 != q // 40",
        "q % 2 * 1073741824 * 2 < k",
        "(q * 1073741824 + k) // 1073741824 == q % 4 - 2",
        "q - 2 * (k // 2) == k % 2",
        "k < 3 && k < 3 && k < 3 || k > 4 && k > 4",
        "(q + 2147483647) // 3 + k // 2 == 5",
        "(q // 3 + 2147483647) // 3 // 2147483647 == k",
        "k // 2 - q + k // 5 < 2",
        "q + k // -3 <= 4",
        "k - (k + q) // 7 == 3",
        "7 * k - q == (k + q) // 7",
        "6 * q + 10 * k + 15 * h == 29",
        "3 * q - (k % 2) * -2147483648 == 5",
        "3 * q + (k % 2) * -2147483648 == -2147483642",
        "((q == 0 ? 95 : q == 1 ? 210 : q == 2 ? 330 : 450) + k) % 100 == 17",
        "((q == 0 ? 110 : q == 1 ? 230 : q == 2 ? 350 : 495) + k) % 100 == 96",
        "((q == 0 ? 195 : q == 1 ? 220 : q == 2 ? 340 : 470) + k) % 100 == 5",
        "abs((q == 0 ? -20 : q == 1 ? -9 : q == 2 ? 3 : 14) + k) == 5",
        "((q == 0 ? -20 : q == 1 ? -9 : q == 2 ? 30 : 64) + k) // 7 == 9",
        "-9 * q - 5 * k == -41 || -9 * q + 5 * k == 1",
        "(q > 3) ^ (k > 2) ^ (q - k > 1) ^ (q + k < 9) ^ (2 * q - k < 3) ^ (q - 3 * k > 2)",
    };
    static full_data d;
    t_rng rng = {t_seed() + 2};
    full_data_make(&d);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        t_program *p = NULL;
        char text[200];
        (void)snprintf(text, sizeof text, "tensor t : i32[1]\ntensor w : i32[2]\nmask = t[9] == 0 && (%s)", masks[i]);
        T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
        for (int n = 0; p && n < 40; n++) {
            int64_t q = n < 10 ? 0 : t_int(&rng, -60, 60), k = n < 10 ? 0 : t_int(&rng, -60, 60);
            int64_t keys = t_int(&rng, 0, 9);
            fxa_tile_bounds box = brute_box(0, 0, q, q + t_int(&rng, 0, n < 10 ? 2 : 40), k, k + keys, 9, 9);
            box.hi[FXA_INPUT_B] = n % 2, box.hi[FXA_INPUT_H] = n % 3;
            fxa_tile_class got = fxa_program_classify(p, &box, NULL, d.known);
            fxa_tile_class truth = brute_class(p, &box, NULL, d.views, brute_scores, 1);
            if (got == FXA_TILE_MIXED || got == truth) continue;
            T_FAIL("%s, truly %s\n", brute_name(got), brute_name(truth));
            brute_show(p, &box);
        }
    }
}

/* Products of 2^60 and more that nearly cancel: the sum fits, its terms do not. */
CONTEXT_TEST(forms_near_the_end_of_64_bits_are_never_wrong) {
    static const char *const ends[] = {
        "(%s) // %d == (%s) // %d",     "(%s) %% %d < (%s) %% %d",    "abs(%s) // %d <= abs(%s) // %d",
        "(%s) // %d - (%s) // %d < 9",  "min(%s, %d) == max(%s, %d)", "((%s) // 2) %% %d != ((%s) %% 9) // %d",
        "(%s) & %d - 1 == (%s) - (%d)",
    };
    static full_data d;
    t_rng rng = {t_seed() + 4};
    full_data_make(&d);
    for (int i = 0; i < t_scaled(600) && t_failures < 5; i++) {
        int divisor = (int)(t_int(&rng, 0, 1) ? t_int(&rng, 2, 64) : t_int(&rng, 2, 1 << 20));
        int64_t c[4], most = INT32_MAX / divisor;
        char form[2][100], end[300], text[400];
        t_program *p = NULL;
        for (int j = 0; j < 4; j++) /* some are multiples of the divisor */
            c[j] = t_int(&rng, 0, 1) ? t_int(&rng, most / 2, most) * divisor : t_int(&rng, INT32_MAX / 2, INT32_MAX);
        for (int j = 0; j < 2; j++)
            (void)snprintf(form[j], sizeof form[j], "q * %d - k * %d + %d", (int)c[2 * j], (int)c[2 * j + 1],
                           (int)t_int(&rng, INT32_MIN, INT32_MAX));
        (void)snprintf(end, sizeof end, ends[i % 7], form[0], divisor, form[t_int(&rng, 0, 1)], divisor);
        (void)snprintf(text, sizeof text, "tensor t : i32[1]\ntensor w : i32[2]\nmask = t[9] == 0 && (%s)", end);
        T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
        for (int j = 0; p && j < 6; j++) {
            int64_t q = t_int(&rng, INT32_MIN, INT32_MAX - 9), k = t_int(&rng, INT32_MIN, INT32_MAX - 9);
            if (j % 2) k = (int64_t)((double)q * (double)c[0] / (double)c[1]); /* they cancel */
            if (k < INT32_MIN || k > INT32_MAX - 9) continue;
            int64_t keys = t_int(&rng, 0, 2);
            fxa_tile_bounds box = brute_box(0, 0, q, q + t_int(&rng, 0, 2), k, k + keys, 9, 9);
            fxa_tile_class got = fxa_program_classify(p, &box, NULL, d.known);
            fxa_tile_class truth = brute_class(p, &box, NULL, d.views, brute_scores, 1);
            if (got != FXA_TILE_MIXED && got != truth) {
                T_FAIL("%s, truly %s\n", brute_name(got), brute_name(truth));
                brute_show(p, &box);
            }
            full_check_nodes(p, &box, &d, &rng);
        }
    }
}

T_MAIN
