/* SPDX-License-Identifier: Apache-2.0
 *
 * Every row operation of the bytecode, in every variant and instruction set, compared lane by lane with its definition
 * on special and random operands. exp, tanh and similar functions are compared with their simple variant only;
 * test_cpu_math.c bounds their errors.
 */
#include "t.h"

#include "support/fixtures/tape_case.h"

#include "base/num.h"
#include "engine/cpu/bytecode/tape_code.h"

enum { OPS_LANES = 64, OPS_GUARD = 16 };

/* Operands as rows of f32, f64 and ints; an operand that is a single value is in the first lane. */
typedef struct ops_row {
    float f[OPS_LANES + OPS_GUARD];
    double d[OPS_LANES + OPS_GUARD];
    int32_t i[OPS_LANES + OPS_GUARD];
} ops_row;

static const double ops_specials[] = {0,         -0.0, 1,     -1,   0.5,   2.5,          -2.5,          3.5, INFINITY,
                                      -INFINITY, NAN,  1e-40, 1e30, -1e30, 2147483648.0, -2147483649.0, 7,   100};
static const int32_t ops_ints[] = {0, 1, -1, 2, -2, 3, 7, -7, 31, 32, 33, INT32_MAX, INT32_MIN, INT32_MIN + 1, 100};

static void ops_draw(ops_row *row, bool bools, t_rng *rng) {
    for (int i = 0; i < OPS_LANES + OPS_GUARD; i++) {
        double x = t_int(rng, 0, 1) ? ops_specials[t_int(rng, 0, 17)] : t_real(rng, -8, 8);
        row->f[i] = (float)x;
        row->d[i] = t_int(rng, 0, 1) ? (double)(float)x : x;
        row->i[i] = bools              ? (int32_t)t_int(rng, 0, 1)
                    : t_int(rng, 0, 1) ? ops_ints[t_int(rng, 0, 14)]
                                       : (int32_t)t_int(rng, -40, 40);
    }
}

static const void *ops_pointer(const ops_row *row, char letter, bool wide) {
    if (letter == 'I' || letter == 'i') return row->i;
    return wide ? (const void *)row->d : row->f;
}

static double ops_get(const ops_row *row, char letter, bool wide, int lane) {
    int at = letter == 'f' || letter == 'i' ? 0 : lane;
    if (letter == 'I' || letter == 'i') return row->i[at];
    return wide ? row->d[at] : (double)row->f[at];
}

static double ops_round(bool wide, double x) { return wide ? x : (double)(float)x; }

/* Some values have no unique right answer here: NaN stands for "not checked". */
static bool ops_is_function(int op) { return fxa__op_info_get((uint32_t)op)->exact != FXA__EXACT_ALWAYS; }

static double ops_program_meaning(const fxa__tape_info *t, bool wide, const double *x) {
    bool ints = (t->op == FXA_OP_SELECT ? t->b : t->a) == 'I' || (t->op == FXA_OP_SELECT ? t->b : t->a) == 'i';
    fxa__val v[3];
    for (int k = 0; k < 3; k++) {
        if (ints || (k == 0 && t->op == FXA_OP_SELECT))
            v[k].i = (int32_t)x[k];
        else
            v[k].f = x[k];
    }
    if (t->op == FXA_OP_FLOORDIV && !ints) return floor(ops_round(wide, x[0] / x[1]));
    if (t->op == FXA_OP_RSQRT) return ops_round(wide, 1 / ops_round(wide, sqrt(x[0])));
    fxa__val y = fxa__op_eval((uint32_t)t->op, t->d == 'F' ? FXA_FLOAT : FXA_INT, ints ? FXA_INT : FXA_FLOAT, v);
    return t->d == 'F' ? ops_round(wide, y.f) : y.i;
}

static double ops_own_meaning(const fxa__tape_info *t, bool wide, const double *x) {
    int32_t a = t->a == 'F' || t->a == 'f' ? 0 : (int32_t)x[0],
            b = t->b == 'F' || t->b == 'f' || t->b == '_' ? 0 : (int32_t)x[1];
    switch (t->op) {
    case FXA__TAPE_NOT_BOOL: return !a;
    case FXA__TAPE_FILL:
    case FXA__TAPE_COPY: return x[0];
    case FXA__TAPE_FLOAT_ADD: return ops_round(wide, fxa__wrap32((int64_t)a + b));
    case FXA__TAPE_FLOAT_SUB: return ops_round(wide, fxa__wrap32((int64_t)a - b));
    case FXA__TAPE_MASK_EQ: return a == b ? x[2] : -INFINITY;
    case FXA__TAPE_MASK_NE: return a != b ? x[2] : -INFINITY;
    case FXA__TAPE_MASK_LT: return a < b ? x[2] : -INFINITY;
    case FXA__TAPE_MASK_LE: return a <= b ? x[2] : -INFINITY;
    case FXA__TAPE_GUARD: return x[0] == 0 ? 0 : x[1];
    case FXA__TAPE_FMA: return x[0] * x[1] + x[2];
    case FXA__TAPE_FMS: return x[0] * x[1] - x[2];
    case FXA__TAPE_FNMA: return x[2] - x[0] * x[1];
    case FXA__TAPE_SLOPE: return x[0] == 0 ? 0 : x[0] * ops_round(wide, x[2] - x[1] * x[1]);
    case FXA__TAPE_TANH_MUL: return tanh(ops_round(wide, x[0] * x[1])) * x[2];
    default: return tanh(ops_round(wide, x[0] / x[1])) * x[2];
    }
}

/* Returns the tolerance of a result: fused operations and divisions by a single value round differently, by units of
 * their parts (an overflow of a part is not checked), plus a few of the smallest numbers. */
static double ops_tolerance(const fxa__tape_info *t, bool wide, const double *x) {
    double unit = wide ? 0x1p-52 : 0x1p-23, least = wide ? 0x1p-1072 : 0x1p-147, third = t->c == '_' ? 0 : fabs(x[2]);
    double product = fabs(ops_round(wide, x[0] * x[1])), square = ops_round(wide, x[1] * x[1]);
    switch (t->op) {
    case FXA_OP_DIV:
    case FXA_OP_DIVZ: return t->b == 'f' && !wide ? 1.5 * unit * fabs(x[0] / x[1]) + least : 0;
    case FXA__TAPE_FMA:
    case FXA__TAPE_FMS:
    case FXA__TAPE_FNMA: return unit * (2 * product + third) + least;
    case FXA__TAPE_SLOPE: return 3 * unit * fabs(x[0]) * (third + square) + least;
    case FXA__TAPE_TANH_MUL:
    case FXA__TAPE_TANH_DIV: return 12 * unit * third + least; /* |x tanh'(x)| < 1/2, and a few units of tanh itself */
    default: return 0;
    }
}

/* Returns true if a product inside a fused operation overflows the type but not an fma: either result is right. */
static bool ops_overflows(const fxa__tape_info *t, bool wide, const double *x) {
    double other = t->op == FXA__TAPE_SLOPE ? x[1] : x[0];
    bool joined =
        t->op == FXA__TAPE_FMA || t->op == FXA__TAPE_FMS || t->op == FXA__TAPE_FNMA || t->op == FXA__TAPE_SLOPE;
    return joined && isfinite(other) && isfinite(x[1]) && isinf(ops_round(wide, other * x[1]));
}

static bool ops_agree(double got, double want, double tolerance) {
    if (got != got || want != want) return got != got && want != want;
    if (tolerance == 0) return got == want && !signbit(got) == !signbit(want);
    return got == want || fabs(got - want) <= tolerance || !isfinite(tolerance) || fabs(want) > 3e38;
}

static bool ops_lane(const fxa__cpu_kernels *k, const fxa__tape_info *t, const ops_row *in, const ops_row *out,
                     int lane) {
    bool wide = k->real_size == 8;
    const char letters[3] = {t->a, t->b, t->c};
    double x[3];
    for (int a = 0; a < 3; a++) x[a] = ops_get(&in[a], letters[a], wide, lane);
    double got = ops_get(out, t->d, wide, lane);
    double want = t->op < 128 ? ops_program_meaning(t, wide, x) : ops_own_meaning(t, wide, x);
    if (ops_overflows(t, wide, x) || ops_agree(got, want, ops_tolerance(t, wide, x))) return true;
    T_FAIL("%s f%d %s(%.9g, %.9g, %.9g) is %.17g, not %.17g\n", k->isa, wide ? 64 : 32, t->id, x[0], x[1], x[2], got,
           want);
    return false;
}

/* Tests one opcode with one draw of operands; lanes past n must not change. */
static bool ops_try(const fxa__cpu_kernels *k, int code, t_rng *rng) {
    const fxa__tape_info *t = &fxa__tape_infos[code];
    bool wide = k->real_size == 8, ok = true;
    ops_row in[3], out;
    int n = 16 * (int)t_int(rng, 1, OPS_LANES / 16);
    for (int a = 0; a < 3; a++)
        ops_draw(&in[a], t->op == FXA__TAPE_NOT_BOOL || (t->op == FXA_OP_SELECT && a == 0), rng);
    ops_draw(&out, false, rng);
    ops_row before = out;
    void *to = t->d == 'I' ? (void *)out.i : wide ? (void *)out.d : out.f;
    k->tape[code](n, to, ops_pointer(&in[0], t->a, wide), ops_pointer(&in[1], t->b, wide),
                  ops_pointer(&in[2], t->c, wide));
    for (int lane = 0; ok && lane < n; lane++) ok = ops_lane(k, t, in, &out, lane);
    if (memcmp(&out.f[t->d == 'F' && !wide ? n : 0], &before.f[t->d == 'F' && !wide ? n : 0],
               sizeof(float) * (size_t)(OPS_LANES + OPS_GUARD - (t->d == 'F' && !wide ? n : 0)))) {
        T_FAIL("%s %s writes past its row\n", k->isa, t->id);
        ok = false;
    }
    return ok;
}

/* Returns true for operations that other tests cover: functions, and operations on the row of their result. */
static bool ops_is_elsewhere(int op) {
    return ops_is_function(op) || op == FXA__TAPE_REVERSE || op == FXA__TAPE_LINE_UP || op == FXA__TAPE_LINE_DOWN;
}

TEST(every_operation_in_every_variant) {
    t_rng rng = {t_seed()};
    for (int wide = 0; wide < 2; wide++) {
        const fxa__cpu_kernels *k;
        bool usable = false;
        for (size_t s = 0; (k = fxa__cpu_set(s, wide ? 8 : 4, &usable)); s++)
            for (int code = 0; usable && code < FXA__TAPE_OPS; code++) {
                const fxa__tape_info *t = &fxa__tape_infos[code];
                if (t->d == 'D' || ops_is_elsewhere(t->op)) continue;
                for (int round = 0; round < t_scaled(20); round++)
                    if (!ops_try(k, code, &rng)) break;
            }
    }
}

/* Functions of two operands: the variants with a single value give the results of the variant with two rows. */
TEST(variants_of_functions_agree) {
    t_rng rng = {t_seed()};
    for (int wide = 0; wide < 2; wide++) {
        const fxa__cpu_kernels *k;
        bool usable = false;
        for (size_t s = 0; (k = fxa__cpu_set(s, wide ? 8 : 4, &usable)); s++) {
            ops_row x, y, one, rows;
            if (!usable) continue;
            ops_draw(&x, false, &rng);
            ops_draw(&y, false, &rng);
            for (int i = 0; i < OPS_LANES; i++) y.f[i] = y.f[0], y.d[i] = y.d[0];
            const void *a = ops_pointer(&x, 'F', wide), *b = ops_pointer(&y, 'F', wide);
            k->tape[FXA__TAPE_POW_F_FF](OPS_LANES, wide ? (void *)rows.d : rows.f, a, b, NULL);
            k->tape[FXA__TAPE_POW_F_Ff](OPS_LANES, wide ? (void *)one.d : one.f, a, b, NULL);
            for (int i = 0; i < OPS_LANES; i++) T_SAME(ops_get(&one, 'F', wide, i), ops_get(&rows, 'F', wide, i));
        }
    }
}

/* Derivative times distance, added to a row: integers, so that every instruction set gives the same result. */
TEST(lines_are_added) {
    t_rng rng = {t_seed()};
    for (int wide = 0; wide < 2; wide++) {
        const fxa__cpu_kernels *k;
        bool usable = false;
        for (size_t s = 0; (k = fxa__cpu_set(s, wide ? 8 : 4, &usable)); s++)
            for (int down = 0; usable && down < 2; down++) {
                float f[OPS_LANES], slope_f;
                double d[OPS_LANES], slope = (double)t_int(&rng, -9, 9), before[OPS_LANES];
                int32_t keys[OPS_LANES], offset = (int32_t)t_int(&rng, -500, 500);
                slope_f = (float)slope;
                for (int i = 0; i < OPS_LANES; i++) {
                    keys[i] = (int32_t)t_int(&rng, -500, 500);
                    before[i] = d[i] = (double)t_int(&rng, -99, 99);
                    f[i] = (float)d[i];
                }
                k->tape[down ? FXA__TAPE_LINE_DOWN_Ifi : FXA__TAPE_LINE_UP_Ifi](
                    OPS_LANES, wide ? (void *)d : f, keys, wide ? (void *)&slope : &slope_f, &offset);
                for (int i = 0; i < OPS_LANES; i++) {
                    double x = (double)(down ? offset - keys[i] : offset + keys[i]);
                    T_CHECK((wide ? d[i] : (double)f[i]) == before[i] + slope * x);
                }
            }
    }
}

/* Sums and reversed rows of any length. */
TEST(sums_and_reversed_rows) {
    t_rng rng = {t_seed()};
    for (int wide = 0; wide < 2; wide++) {
        const fxa__cpu_kernels *k;
        bool usable = false;
        for (size_t s = 0; (k = fxa__cpu_set(s, wide ? 8 : 4, &usable)); s++)
            for (int n = 1; usable && n <= OPS_LANES; n++) {
                double d[OPS_LANES], x[OPS_LANES], sums[2 * OPS_LANES] = {0}, total = 0, want = 0;
                float df[OPS_LANES], xf[OPS_LANES];
                int64_t step = t_int(&rng, -1, 2);
                for (int i = 0; i < OPS_LANES; i++) {
                    d[i] = t_int(&rng, 0, 2) ? 1 : 0, x[i] = d[i] != 0 ? (double)t_int(&rng, -9, 9) : NAN;
                    df[i] = (float)d[i], xf[i] = (float)x[i];
                }
                const void *a = wide ? (void *)d : df, *b = wide ? (void *)x : xf;
                double *origin = step < 0 ? sums + OPS_LANES - 1 : sums;
                k->tape[FXA__TAPE_SPREAD_FF](n, origin, a, b, &step);
                for (int i = 0; i < n; i++) want += d[i] != 0 ? x[i] : 0;
                for (int i = 0; i < 2 * OPS_LANES; i++) total += sums[i];
                T_SAME(total, want);
                for (int i = 0; step && i < n; i++) T_SAME(origin[i * step], d[i] != 0 ? x[i] : 0);
                if (n % 16 == 0) {
                    total = 0;
                    k->tape[FXA__TAPE_SUM_FF](n, &total, a, b, NULL);
                    T_SAME(total, want);
                }
                k->tape[FXA__TAPE_REVERSE_F](n, wide ? (void *)d : df, NULL, NULL, NULL);
                k->tape[FXA__TAPE_REVERSE_F](n, wide ? (void *)x : xf, NULL, NULL, NULL);
                double again = 0, first = wide ? d[0] : (double)df[0];
                for (int i = 0; i < n; i++)
                    again += (wide ? d[i] : (double)df[i]) != 0 ? (wide ? x[i] : (double)xf[i]) : 0;
                T_SAME(again, want);
                T_CHECK(first == 0 || first == 1);
            }
    }
}

T_MAIN
