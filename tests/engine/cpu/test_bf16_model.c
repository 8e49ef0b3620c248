/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the emulations of AVX512_BF16 and AMX tiles, which other tests use on processors without these instructions:
 * compares them with Intel's definition of one element in scalar C, and with the instructions if the processor has
 * them. Results are bit-equal, except that a sum may be any NaN.
 */
#include "base/cpu_features.h"
#include "engine/cpu/kernels/bf16.h"
#include "support/mock/amx_model.h"
#include "t.h"

#if defined(__x86_64__)

static float twin_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t twin_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

/* Special values: floats, whose upper halves are also used as bf16. */
static const uint32_t twin_special[] = {
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
    0x7f810000, 0x7f800001, 0x007f0000, 0x807f0000, 0x00010000, 0x00000001, 0x807fffff, 0x00800000,
    0x80800000, 0x00c00000, 0x20000000, 0xa0000000, 0x1f800000, 0x7f7f0000, 0xff7f0000, 0x7f7fffff,
    0x3f808000, 0x3f818000, 0x3f808001, 0xbf817fff, 0x7f7f8000, 0x33800000, 0xb3800000, 0x4b800000,
};
enum { TWIN_SPECIALS = sizeof twin_special / sizeof *twin_special };

/* Returns any bits, a special value, or a float of a size at which sums cancel. */
static uint32_t twin_draw(t_rng *rng) {
    int64_t kind = t_int(rng, 0, 3);
    if (kind == 0) return (uint32_t)t_next(rng);
    if (kind == 1) return twin_special[t_int(rng, 0, TWIN_SPECIALS - 1)];
    return twin_bits((float)t_real(rng, -4, 4));
}
static uint32_t twin_draw_pair(t_rng *rng) {
    uint32_t high = twin_draw(rng), low = twin_draw(rng);
    return (high & 0xffff0000u) | low >> 16;
}

/* ---- One element, as Intel's manual defines it ------------------------------------------------------------------- */

static float twin_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static float twin_fma(float x, float y, float sum) {
    return twin_flush(fmaf(twin_flush(x), twin_flush(y), twin_flush(sum)));
}
static float twin_dot(float sum, uint32_t x, uint32_t y) {
    sum = twin_fma(twin_float(x & 0xffff0000u), twin_float(y & 0xffff0000u), sum);
    return twin_fma(twin_float(x << 16), twin_float(y << 16), sum);
}
static uint16_t twin_round(uint32_t x) {
    bool nan = (x & 0x7fffffff) > 0x7f800000, small = (x & 0x7fffffff) < 0x00800000;
    if (small) return (uint16_t)(x >> 16 & 0x8000);
    return (uint16_t)(nan ? x >> 16 | 0x40 : (x + 0x7fff + (x >> 16 & 1)) >> 16);
}

/* ---- Vectors ----------------------------------------------------------------------------------------------------- */

typedef struct twin_vectors {
    uint32_t sum[16], x[16], y[16]; /* operands */
    uint32_t dot[16];
    uint16_t rounded[32]; /* [0..15] rounded sum, [16..31] rounded x */
} twin_vectors;

BF16_MODEL void twin_model(twin_vectors *v) {
    __m512 sum = _mm512_loadu_ps(v->sum);
    _mm512_storeu_ps(v->dot, bf16_model_dot(sum, _mm512_loadu_si512(v->x), _mm512_loadu_si512(v->y)));
    _mm512_storeu_si512(v->rounded, bf16_model_round_two(_mm512_loadu_ps(v->x), sum));
}

__attribute__((target("avx512f,avx512bw,avx512bf16"))) static void twin_real(twin_vectors *v) {
    __m512 sum = _mm512_loadu_ps(v->sum);
    __m512bh x = (__m512bh)_mm512_loadu_si512(v->x), y = (__m512bh)_mm512_loadu_si512(v->y);
    _mm512_storeu_ps(v->dot, _mm512_dpbf16_ps(sum, x, y));
    _mm512_storeu_si512(v->rounded, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(v->x), sum));
}

static void twin_scalar(twin_vectors *v) {
    for (int i = 0; i < 16; i++) {
        v->dot[i] = twin_bits(twin_dot(twin_float(v->sum[i]), v->x[i], v->y[i]));
        v->rounded[i] = twin_round(v->sum[i]);
        v->rounded[16 + i] = twin_round(v->x[i]);
    }
}

static bool twin_same(uint32_t x, uint32_t y) { return x == y || (isnan(twin_float(x)) && isnan(twin_float(y))); }

static void twin_compare(void (*other)(twin_vectors *v), const char *what) {
    t_rng rng = {t_seed()};
    for (int n = t_scaled(20000), before = t_failures; n > 0 && t_failures == before; n--) {
        twin_vectors v, w;
        for (int i = 0; i < 16; i++)
            v.sum[i] = twin_draw(&rng), v.x[i] = twin_draw_pair(&rng), v.y[i] = twin_draw_pair(&rng);
        w = v;
        twin_model(&v);
        other(&w);
        for (int i = 0; i < 16; i++)
            if (!twin_same(v.dot[i], w.dot[i]))
                T_FAIL("%08x + %08x . %08x is %08x, by %s %08x\n", v.sum[i], v.x[i], v.y[i], v.dot[i], what, w.dot[i]);
        for (int i = 0; i < 32; i++)
            if (v.rounded[i] != w.rounded[i])
                T_FAIL("%08x becomes %04x, by %s %04x\n", i < 16 ? v.sum[i] : v.x[i - 16], v.rounded[i], what,
                       w.rounded[i]);
    }
}

TEST(pairs_are_as_the_manual_says) {
    if (!(fxa__cpu_features_get().flags & FXA__CPU_AVX512)) T_SKIP("this machine lacks AVX-512 F, BW, DQ and VL");
    twin_compare(twin_scalar, "the manual");
}

TEST(pairs_are_as_the_processor_has_them) {
    uint32_t needs = FXA__CPU_AVX512 | FXA__CPU_AVX512_BF16;
    if ((fxa__cpu_features_get().flags & needs) != needs) T_SKIP("this machine lacks AVX512_BF16");
    twin_compare(twin_real, "the processor");
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* One product of tiles: C [16,32] += A [16,16 pairs] B [16 pairs,32]. */
typedef struct twin_tiles {
    uint32_t a[16 * 16], b[16 * 32];
    float c[16 * 32];
} twin_tiles;

static void twin_draw_tiles(twin_tiles *t, t_rng *rng) {
    bool plain = t_int(rng, 0, 1); /* no special values: otherwise nearly all sums become NaN */
    for (int i = 0; i < 16 * 32; i++) {
        t->b[i] = twin_draw_pair(rng), t->c[i] = twin_float(twin_draw(rng));
        if (i < 16 * 16) t->a[i] = twin_draw_pair(rng);
        if (!plain) continue;
        uint32_t x = twin_bits((float)t_real(rng, -4, 4)), y = twin_bits((float)t_real(rng, -4, 4));
        t->b[i] = (x & 0xffff0000u) | y >> 16, t->c[i] = (float)t_real(rng, -4, 4);
        if (i < 16 * 16) t->a[i] = (y & 0xffff0000u) | x >> 16;
    }
}

static float twin_tile_element(const twin_tiles *t, int i, int j) {
    float even = 0, odd = 0;
    for (int k = 0; k < 16; k++) {
        uint32_t x = t->a[i * 16 + k], y = t->b[k * 32 + j];
        even = twin_fma(twin_float(x << 16), twin_float(y << 16), even);
        odd = twin_fma(twin_float(x & 0xffff0000u), twin_float(y & 0xffff0000u), odd);
    }
    return twin_flush(twin_flush(t->c[i * 32 + j]) + twin_flush(even + odd));
}

static void twin_tiles_model(twin_tiles *t) {
    for (int half = 0; half < 32; half += 16) {
        AMX_LOAD(0, t->c + half, 32 * sizeof(float));
        AMX_LOAD(4, t->a, 16 * sizeof(uint32_t));
        AMX_LOAD(6, t->b + half, 32 * sizeof(uint32_t));
        AMX_DOT(0, 4, 6);
        AMX_STORE(0, t->c + half, 32 * sizeof(float));
    }
}
static void twin_tiles_real(twin_tiles *t) {
    static const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    fxa__amx_enter();
    fxa__amx_gemm_pairs(16, 32, 32, t->a, 16, t->b, 0, t->c, 32, ones);
    fxa__amx_leave();
}
static void twin_tiles_scalar(twin_tiles *t) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 32; j++) t->c[i * 32 + j] = twin_tile_element(t, i, j);
}

static void twin_compare_tiles(void (*other)(twin_tiles *t), const char *what) {
    static twin_tiles t, v, w;
    t_rng rng = {t_seed() + 1};
    for (int n = t_scaled(200), before = t_failures; n > 0 && t_failures == before; n--) {
        twin_draw_tiles(&t, &rng);
        v = w = t;
        twin_tiles_model(&v);
        other(&w);
        for (int i = 0; i < 16 * 32; i++)
            if (!twin_same(twin_bits(v.c[i]), twin_bits(w.c[i])))
                T_FAIL("element %d is %a, by %s %a\n", i, (double)v.c[i], what, (double)w.c[i]);
    }
}

TEST(tiles_are_as_the_manual_says) {
    if (!(fxa__cpu_features_get().flags & FXA__CPU_AVX512)) T_SKIP("this machine lacks AVX-512 F, BW, DQ and VL");
    twin_compare_tiles(twin_tiles_scalar, "the manual");
}

TEST(tiles_are_as_the_processor_has_them) {
    bool usable = false;
    const fxa__cpu_kernels *k;
    for (size_t i = 0; (k = fxa__cpu_set_bf16(i, &usable)) != NULL && strcmp(k->isa, "amx") != 0;) i++;
    if (!k || !usable) T_SKIP("this processor has no AMX tiles");
    twin_compare_tiles(twin_tiles_real, "the processor");
}

#else
TEST(models) { T_SKIP("this processor has no instructions that they are for"); }
#endif

T_MAIN
