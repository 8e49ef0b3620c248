/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of the cpu engine that read and write stored tensors, in every instruction set of this machine, compared with
 * simple loops in double: every dtype, strides, NaN, infinities, subnormals and all 16-bit values; and decoding, which
 * multiplies stored keys and values directly. Operands end at an inaccessible page.
 */
#include "base/dtype.h"
#include "support/oracle/reals.h"
#include "support/fixtures/set_tests.h"

#include <float.h>

/* ---- Storage --------------------------------------------------------------------------------------------------- */

static const uint32_t float_dtypes[] = {FXA_F64, FXA_F32, FXA_F16, FXA_BF16, FXA_E4M3, FXA_E5M2};
enum { FLOAT_DTYPES = sizeof float_dtypes / sizeof *float_dtypes };

/* Returns x rounded once to the dtype. */
static double stored(uint32_t dtype, double x) {
    uint64_t cell = 0;
    fxa__store_f64(&cell, dtype, 0, x);
    return fxa__load_f64(&cell, dtype, 0);
}

/* Returns an odd number of magnitude below 2 * n, times 2^e with e between e_lo and e_hi. */
static double draw_odd(t_rng *rng, int64_t n, int e_lo, int e_hi) {
    int e = (int)t_int(rng, e_lo, e_hi);
    return ldexp((double)(2 * t_int(rng, -n, n - 1) + 1), e);
}

static double draw_any(t_rng *rng) {
    switch (t_int(rng, 0, 11)) {
    case 0: return t_int(rng, 0, 1) ? 0.0 : -0.0;
    case 1: return t_real_scaled(rng, -1, 1, -30, -12); /* subnormal f16 */
    case 2: return t_real_scaled(rng, -1, 1, 12, 18);   /* overflows f16 */
    case 3: return draw_odd(rng, 2048, -26, 3);         /* halfway in f16 */
    case 4: return draw_odd(rng, 256, -40, 40);         /* halfway in bf16 */
    case 5: return draw_odd(rng, 16, -20, 14);          /* representable in 8 bits */
    default: return t_real(rng, -8, 8);
    }
}

static void check_storage_once(const fxa__cpu_kernels *k, t_rng *rng, uint32_t dtype) {
    int64_t n = t_int(rng, 0, 150), stride = t_int(rng, 0, 2) ? 1 : t_int(rng, 2, 5),
            size = (int64_t)fxa_dtype_size((fxa_dtype)dtype);
    guard x = reals_open(k, rng, n), y = guard_open(x.size);
    guard cells = guard_open((size_t)(n ? ((n - 1) * stride + 1) * size : 0));
    bool add = t_int(rng, 0, 1), finite = true;
    for (int64_t i = 0; i < n; i++) {
        real_put(k, x.data, i, draw_any(rng));
        fxa__store_f64(cells.data, dtype, i * stride, t_real(rng, -2, 2));
    }
    guard old = guard_open(cells.size);
    memcpy(old.data, cells.data, cells.size);
    double factor = t_int(rng, 0, 1) ? 1 : t_real(rng, -3, 3);
    k->store(cells.data, dtype, stride, x.data, n, factor, add);
    for (int64_t i = 0; i < n; i++) {
        double value = real_at(k, x.data, i), before = fxa__load_f64(old.data, dtype, i * stride);
        value = k->real_size == sizeof(float) ? (double)((float)value * (float)factor) : value * factor;
        if (add && k->real_size == sizeof(float) && dtype != FXA_F64)
            value = (double)((float)value + (float)before);
        else if (add)
            value += before;
        T_SAME(fxa__load_f64(cells.data, dtype, i * stride), stored(dtype, value));
        for (int64_t j = i * stride * size + size; j < (i + 1) * stride * size && i + 1 < n; j++)
            if (cells.data[j] != old.data[j]) T_FAIL("%s: store wrote between its elements\n", k->isa);
        finite = finite && isfinite(fxa__load_f64(cells.data, dtype, i * stride));
    }
    T_INT(k->load(y.data, cells.data, dtype, stride, n), finite);
    for (int64_t i = 0; i < n; i++) {
        double want = fxa__load_f64(cells.data, dtype, i * stride);
        T_SAME(real_at(k, y.data, i), k->real_size == sizeof(float) ? (double)(float)want : want);
    }
    guard *all[] = {&x, &y, &cells, &old};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) guard_close(all[i]);
}

static void check_storage(const fxa__cpu_kernels *k) {
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(200); i++)
        for (int j = 0; j < FLOAT_DTYPES; j++) check_storage_once(k, &rng, float_dtypes[j]);
}

/* Converts every f16 and bf16 to floats and back; a NaN or infinity anywhere is detected. */
static void check_halves(const fxa__cpu_kernels *k) {
    static uint16_t in[65536], out[65536];
    static double reals[65536];
    for (int j = 2; j < 4; j++) {
        uint32_t dtype = float_dtypes[j];
        for (int i = 0; i < 65536; i++) in[i] = (uint16_t)i;
        T_CHECK(!k->load(reals, in, dtype, 1, 65536));
        k->store(out, dtype, 1, reals, 65536, 1, false);
        for (int i = 0; i < 65536; i++) {
            double want = fxa__load_f64(in, dtype, i);
            T_SAME(real_at(k, reals, i), want);
            if (want == want)
                T_INT(out[i], in[i]);
            else
                T_CHECK(isnan(fxa__load_f64(out, dtype, i)));
        }
    }
    for (int at = 0; at < 70; at++)
        for (int j = 0; j < FLOAT_DTYPES; j++) {
            double cells[70] = {0};
            bool byte = fxa__dtype_is_byte_float(float_dtypes[j]); /* 8-bit floats never become infinite */
            fxa__store_f64(cells, float_dtypes[j], at, at % 2 || byte ? NAN : -INFINITY);
            T_CHECK(!k->load(reals, cells, float_dtypes[j], 1, 70));
            T_CHECK(k->load(reals, cells, float_dtypes[j], 1, at));
        }
}

/* Checks every e4m3 and e5m2, and values between neighbours: just below the midpoint, the midpoint, just above. */
static void check_bytes(const fxa__cpu_kernels *k) {
    for (int j = 4; j < FLOAT_DTYPES; j++) {
        uint32_t dtype = float_dtypes[j];
        uint8_t in[256], out[256];
        double reals[256], near[256];
        for (int i = 0; i < 256; i++) in[i] = (uint8_t)i;
        T_CHECK(!k->load(reals, in, dtype, 1, 256));
        for (int side = -1; side <= 2; side++) { /* 2: the numbers themselves */
            for (int i = 0; i < 256; i++) {
                double a = fxa__load_f64(in, dtype, i), b = i % 128 < 127 ? fxa__load_f64(in, dtype, i + 1) : NAN;
                double x = side == 2 ? a : (a + b) / 2 * (1 + side * 0x1p-20);
                T_SAME(real_at(k, reals, i), a);
                real_put(k, near, i, x);
            }
            k->store(out, dtype, 1, near, 256, 1, false);
            for (int i = 0; i < 256; i++) T_SAME(fxa__load_f64(out, dtype, i), stored(dtype, real_at(k, near, i)));
        }
    }
}

/* ---- Decode ---------------------------------------------------------------------------------------------------- */

/* Rows of queries and weights for decoding, with keys and results that end at an inaccessible page. */
typedef struct decode_case {
    int64_t rows, ldq, ldp, ldo, ldt;
    fxa__cpu_stored_rows x;
    guard stored, q, p, t, o, old;
} decode_case;

static decode_case decode_open(const fxa__cpu_kernels *k, t_rng *rng, uint32_t dtype) {
    decode_case c = {.rows = t_int(rng, 0, 11), .x = {.dtype = dtype}};
    c.x.n = t_int(rng, 0, 140), c.x.d = t_int(rng, 1, 150);
    if (t_int(rng, 0, 9) == 0) c.x.d = t_int(rng, 1, 512);
    c.x.ld = c.x.d + t_int(rng, 0, 9);
    c.ldq = c.x.d + t_int(rng, 0, 3), c.ldo = c.x.d + t_int(rng, 0, 3);
    c.ldp = c.x.n + t_int(rng, 0, 3), c.ldt = c.x.n + t_int(rng, 0, 3);
    int64_t count = c.x.n ? (c.x.n - 1) * c.x.ld + c.x.d : 0, last = c.rows ? c.rows - 1 : 0;
    c.stored = guard_open((size_t)count * fxa_dtype_size((fxa_dtype)dtype));
    for (int64_t i = 0; i < count; i++) fxa__store_f64(c.stored.data, dtype, i, t_real(rng, -1, 1));
    c.x.data = c.stored.data;
    if (t_int(rng, 0, 1))
        c.x.next = c.stored.data, c.x.next_step = t_int(rng, 0, 5000); /* the next keys may be
                                                                                            missing */
    c.q = reals_open(k, rng, last * c.ldq + c.x.d), c.o = reals_open(k, rng, last * c.ldo + c.x.d);
    c.p = reals_open(k, rng, last * c.ldp + c.x.n), c.t = reals_open(k, rng, last * c.ldt + c.x.n);
    c.old = guard_open(c.o.size);
    memcpy(c.old.data, c.o.data, c.o.size);
    return c;
}
static void decode_close(decode_case *c) {
    guard *all[] = {&c->stored, &c->q, &c->p, &c->t, &c->o, &c->old};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) guard_close(all[i]);
}

static void check_dots(const fxa__cpu_kernels *k, const decode_case *c) {
    const fxa__cpu_stored_rows *x = &c->x;
    k->dots(c->t.data, c->ldt, c->q.data, c->ldq, c->rows, x);
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t i = 0; i < x->n; i++) {
            double want = 0, alone[1] = {0}, got = real_at(k, c->t.data, r * c->ldt + i);
            fxa__cpu_stored_rows one = *x;
            one.data = (const char *)x->data + i * x->ld * (int64_t)fxa_dtype_size((fxa_dtype)x->dtype), one.n = 1;
            for (int64_t j = 0; j < x->d; j++)
                want += real_at(k, c->q.data, r * c->ldq + j) * fxa__load_f64(x->data, x->dtype, i * x->ld + j);
            T_NEAR(got, want, (double)x->d * (double)x->d * real_unit(k));
            k->dots(alone, 1, c->q.data + r * c->ldq * (int64_t)k->real_size, c->ldq, 1, &one);
            T_SAME(got, real_at(k, alone, 0)); /* the result does not depend on other rows or keys */
        }
}

/* Sets weights to 0 for keys with NaN values: for all rows together, or for some of them. */
static void decode_spoil(const fxa__cpu_kernels *k, t_rng *rng, const decode_case *c) {
    int64_t odds = t_int(rng, 0, 2) * 20;
    for (int64_t i = 0; i < c->x.n; i++) {
        if (odds == 0 || t_int(rng, 0, odds) != 0) continue;
        bool all = t_int(rng, 0, 1);
        for (int64_t r = 0; r < c->rows; r++)
            if (all || t_int(rng, 0, 1)) real_put(k, c->p.data, r * c->ldp + i, t_int(rng, 0, 1) ? 0.0 : -0.0);
        for (int64_t j = 0; all && j < c->x.d; j++) fxa__store_f64(c->stored.data, c->x.dtype, i * c->x.ld + j, NAN);
    }
}

static void check_sums(const fxa__cpu_kernels *k, const decode_case *c) {
    const fxa__cpu_stored_rows *x = &c->x;
    guard alone = guard_open((size_t)x->d * k->real_size);
    k->sums(c->o.data, c->ldo, c->p.data, c->ldp, c->rows, x);
    for (int64_t r = 0; r < c->rows; r++) {
        memcpy(alone.data, c->old.data + r * c->ldo * (int64_t)k->real_size, alone.size);
        k->sums(alone.data, x->d, c->p.data + r * c->ldp * (int64_t)k->real_size, c->ldp, 1, x);
        for (int64_t j = 0; j < x->d; j++) {
            double want = real_at(k, c->old.data, r * c->ldo + j), got = real_at(k, c->o.data, r * c->ldo + j);
            for (int64_t i = 0; i < x->n; i++) {
                double weight = real_at(k, c->p.data, r * c->ldp + i);
                if (weight != 0) want += weight * fxa__load_f64(x->data, x->dtype, i * x->ld + j);
            }
            T_NEAR(got, want, (double)(x->n + 1) * (double)(x->n + 1) * real_unit(k));
            T_SAME(got, real_at(k, alone.data, j));
        }
    }
    guard_close(&alone);
}

/* A NaN in a key affects the rows that have a weight for the key, and no others. */
static void check_sums_nan(const fxa__cpu_kernels *k, const decode_case *c, int64_t key) {
    const fxa__cpu_stored_rows *x = &c->x;
    for (int64_t j = 0; j < x->d; j++) fxa__store_f64(c->stored.data, x->dtype, key * x->ld + j, NAN);
    for (int64_t r = 0; r < c->rows; r += 2) real_put(k, c->p.data, r * c->ldp + key, 0);
    for (int64_t r = 1; r < c->rows; r += 2) real_put(k, c->p.data, r * c->ldp + key, 0.25);
    k->sums(c->o.data, c->ldo, c->p.data, c->ldp, c->rows, x);
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t j = 0; j < x->d; j++) T_INT(isnan(real_at(k, c->o.data, r * c->ldo + j)), r % 2);
}

static void check_decode_once(const fxa__cpu_kernels *k, t_rng *rng, uint32_t dtype) {
    decode_case c = decode_open(k, rng, dtype);
    check_dots(k, &c);
    decode_spoil(k, rng, &c);
    check_sums(k, &c);
    if (c.x.n) check_sums_nan(k, &c, t_int(rng, 0, c.x.n - 1));
    decode_close(&c);
}

static void check_decode(const fxa__cpu_kernels *k) {
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(40); i++)
        for (int j = 0; j < FLOAT_DTYPES; j++)
            if ((float_dtypes[j] == FXA_F64) == (k->real_size == sizeof(double)))
                check_decode_once(k, &rng, float_dtypes[j]);
}

/* ---- One test for each set ------------------------------------------------------------------------------------- */

static void check_stored(const fxa__cpu_kernels *k) {
    check_storage(k);
    check_halves(k);
    check_bytes(k);
    check_decode(k);
}
SET_TESTS(stored_f32, sizeof(float), check_stored)
SET_TESTS(stored_f64, sizeof(double), check_stored)

T_MAIN
