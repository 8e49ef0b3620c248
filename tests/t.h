/* SPDX-License-Identifier: Apache-2.0
 *
 * Test harness. TEST(name) { ... } registers itself; `err` in it is an fxa_error, which T_OK and T_STATUS use.
 * CONTEXT_TEST(name) has a context `ctx`, too, which is destroyed after the test; T_WITH makes such macros for other
 * fixtures. T_* macros check a value and print both sides on failure. T_MAIN runs all tests, or those whose name
 * contains argv[1], and ends with "N passed, N failed, N skipped". There is one process per test file, under ctest.
 * Exit status: 0; 1 if a test failed or none matches argv[1]; T_ALL_SKIPPED if all were skipped. Random tests draw from
 * t_seed(), which is printed on failure; FXA_TEST_SEED=n repeats a run, FXA_TEST_SCALE=n multiplies iterations.
 */
#ifndef FXA_TESTS_T_H
#define FXA_TESTS_T_H

#include "fxattn/fxattn.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T_ALL_SKIPPED = 77 }; /* SKIP_RETURN_CODE of all tests in CMakeLists.txt */

#define T_ERR __attribute__((unused)) fxa_error err /* parameter of every test */

typedef void (*t_fn)(T_ERR);
static struct {
    const char *label;
    t_fn fn;
} t_list[512];
static int t_count, t_failures, t_skips;
static const char *t_now = "";

#define TEST(name)                                                                                                     \
    static void test_##name(T_ERR);                                                                                    \
    __attribute__((constructor)) static void t_register_##name(void) {                                                 \
        if (t_count >= 512) abort();                                                                                   \
        t_list[t_count].label = #name;                                                                                 \
        t_list[t_count++].fn = test_##name;                                                                            \
    }                                                                                                                  \
    static void test_##name(T_ERR)

/* TEST with a fixture `r` of type `type`, which is all zeroes before the expression `start`. If `start` is false, the
 * test fails. The expression `end` is evaluated after the test. */
#define T_WITH(name, type, start, end)                                                                                 \
    static void with_##name(__attribute__((unused)) type *r, T_ERR);                                                   \
    TEST(name) {                                                                                                       \
        static type t_fixture;                                                                                         \
        type *r = &t_fixture;                                                                                          \
        memset(r, 0, sizeof *r);                                                                                       \
        T_REQUIRE(start);                                                                                              \
        with_##name(r, err);                                                                                           \
        end;                                                                                                           \
    }                                                                                                                  \
    static void with_##name(__attribute__((unused)) type *r, T_ERR)

#define CONTEXT_TEST(name)                                                                                             \
    static void with_##name(fxa_context *ctx, T_ERR);                                                                  \
    TEST(name) {                                                                                                       \
        fxa_context *ctx = t_context();                                                                                \
        if (ctx) with_##name(ctx, err);                                                                                \
        fxa_context_destroy(ctx);                                                                                      \
    }                                                                                                                  \
    static void with_##name(fxa_context *ctx, T_ERR)

__attribute__((unused)) static uint64_t t_seed(void) {
    const char *s = getenv("FXA_TEST_SEED");
    return s && *s ? strtoull(s, NULL, 0) : 20261115u;
}
__attribute__((unused)) static int t_scaled(int iterations) {
    const char *s = getenv("FXA_TEST_SCALE");
    double f = s && *s ? atof(s) : 1;
    return f > 0 ? (int)(iterations * f) + (f < 1) : iterations;
}
/* Returns true if case i of many is to be run: at scales below 1 only that share of the cases, spread by the golden
 * ratio. A second pass over the same cases (for another instruction set, say) continues counting, so it skips other
 * cases. */
__attribute__((unused)) static bool t_some(int i) {
    const char *s = getenv("FXA_TEST_SCALE");
    double f = s && *s ? atof(s) : 1;
    return f >= 1 || f <= 0 || fmod(i * 0.6180339887498949, 1) < f;
}
/* Returns iterations scaled up only: for tests that need at least their default number. */
__attribute__((unused)) static int t_scaled_up(int iterations) {
    int n = t_scaled(iterations);
    return n > iterations ? n : iterations;
}

/* Returns a size scaled down only: for sizes that must not grow. */
__attribute__((unused)) static int t_scaled_down(int size) {
    int n = t_scaled(size);
    return n < size ? n : size;
}

/* splitmix64: small, seedable, the same everywhere. */
typedef struct t_rng {
    uint64_t state;
} t_rng;
__attribute__((unused)) static uint64_t t_next(t_rng *r) {
    uint64_t z = (r->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
__attribute__((unused)) static int64_t t_int(t_rng *r, int64_t lo, int64_t hi) { /* inclusive */
    return lo + (int64_t)(t_next(r) % (uint64_t)(hi - lo + 1));
}
__attribute__((unused)) static double t_real(t_rng *r, double lo, double hi) {
    return lo + (hi - lo) * ((double)(t_next(r) >> 11) * 0x1p-53);
}
/* Returns x * 2^e with x between lo and hi, and e between e_lo and e_hi. */
__attribute__((unused)) static double t_real_scaled(t_rng *r, double lo, double hi, int e_lo, int e_hi) {
    int e = (int)t_int(r, e_lo, e_hi);
    return ldexp(t_real(r, lo, hi), e);
}

#define T_FAIL(...)                                                                                                    \
    do {                                                                                                               \
        printf("  %s:%d: ", __FILE__, __LINE__);                                                                       \
        printf(__VA_ARGS__);                                                                                           \
        printf("  [%s, seed %" PRIu64 "]\n", t_now, t_seed());                                                         \
        t_failures++;                                                                                                  \
    } while (0)
#define T_CHECK(cond)                                                                                                  \
    do {                                                                                                               \
        if (!(cond)) T_FAIL("not true: %s\n", #cond);                                                                  \
    } while (0)
/* Ends the test on failure. */
#define T_REQUIRE(cond)                                                                                                \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            T_FAIL("not true: %s\n", #cond);                                                                           \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define T_INT(got, want)                                                                                               \
    do {                                                                                                               \
        int64_t t_g = (int64_t)(got), t_w = (int64_t)(want);                                                           \
        if (t_g != t_w) T_FAIL("%s is %" PRId64 ", not %" PRId64 "\n", #got, t_g, t_w);                                \
    } while (0)
/* Takes texts as arguments, because an array in a struct returned by a function lives only as long as the full
 * expression. */
__attribute__((unused)) static void t_text_same(const char *file, int line, const char *what, const char *got,
                                                const char *want) {
    if (got && strcmp(got, want) == 0) return;
    printf("  %s:%d: %s is\n\"%s\"\nnot\n\"%s\"\n", file, line, what, got ? got : "(null)", want);
    printf("  [%s, seed %" PRIu64 "]\n", t_now, t_seed());
    t_failures++;
}
__attribute__((unused)) static void t_text_has(const char *file, int line, const char *what, const char *got,
                                               const char *part) {
    if (got && strstr(got, part)) return;
    printf("  %s:%d: %s is \"%s\", without \"%s\"\n", file, line, what, got ? got : "(null)", part);
    printf("  [%s, seed %" PRIu64 "]\n", t_now, t_seed());
    t_failures++;
}
#define T_STR(got, want) t_text_same(__FILE__, __LINE__, #got, got, want)
#define T_HAS(got, part) t_text_has(__FILE__, __LINE__, #got, got, part)
/* Compares as numbers: NaN equals NaN, +0 differs from -0. */
#define T_SAME(got, want)                                                                                              \
    do {                                                                                                               \
        double t_g = (got), t_w = (want);                                                                              \
        if (!(t_g != t_g && t_w != t_w) && !(t_g == t_w && !signbit(t_g) == !signbit(t_w)))                            \
            T_FAIL("%s is %.17g, not %.17g\n", #got, t_g, t_w);                                                        \
    } while (0)
#define T_NEAR(got, want, tol)                                                                                         \
    do {                                                                                                               \
        double t_g = (got), t_w = (want), t_t = (tol);                                                                 \
        if (!(t_g != t_g && t_w != t_w) && !(t_g == t_w) && !(fabs(t_g - t_w) <= t_t))                                 \
            T_FAIL("%s is %.17g, not %.17g (off by %.3g, allowed %.3g)\n", #got, t_g, t_w, fabs(t_g - t_w), t_t);      \
    } while (0)
/* Checks a call that returns fxa_status; `err` must be in scope. */
#define T_OK(call)                                                                                                     \
    do {                                                                                                               \
        memset(&err, 0, sizeof err);                                                                                   \
        fxa_status t_s = (call);                                                                                       \
        if (t_s != FXA_OK) T_FAIL("%s: %s: %s\n", #call, fxa_status_name(t_s), err.text);                              \
    } while (0)
#define T_STATUS(call, want)                                                                                           \
    do {                                                                                                               \
        memset(&err, 0, sizeof err);                                                                                   \
        fxa_status t_s = (call);                                                                                       \
        if (t_s != (want))                                                                                             \
            T_FAIL("%s: %s (%s), not %s\n", #call, fxa_status_name(t_s), err.text, fxa_status_name(want));             \
        else if (t_s != FXA_OK && (err.status != t_s || !err.text[0]))                                                 \
            T_FAIL("%s: error not filled\n", #call);                                                                   \
    } while (0)
/* t_program *p and the like declare pointers whose object is destroyed at the end of their block. */
__attribute__((unused)) static void t_program_drop(fxa_program **p) { fxa_program_destroy(*p); }
__attribute__((unused)) static void t_plan_drop(fxa_plan **p) { fxa_plan_destroy(*p); }
__attribute__((unused)) static void t_builder_drop(fxa_builder **b) { fxa_builder_destroy(*b); }
__attribute__((unused)) static void t_ctx_drop(fxa_context **ctx) { fxa_context_destroy(*ctx); }
#define t_program __attribute__((cleanup(t_program_drop))) fxa_program
#define t_plan __attribute__((cleanup(t_plan_drop))) fxa_plan
#define t_builder __attribute__((cleanup(t_builder_drop))) fxa_builder
#define t_ctx __attribute__((cleanup(t_ctx_drop))) fxa_context

/* T_ENDED(end) type x = ...; calls end(&x) at the end of the block. */
#define T_ENDED(end) __attribute__((cleanup(end)))

/* Returns a new context. On failure the test fails and NULL is returned. */
__attribute__((unused)) static fxa_context *t_context(void) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    return ctx;
}
#define T_SKIP(why)                                                                                                    \
    do {                                                                                                               \
        printf("  skipped %s: %s\n", t_now, why);                                                                      \
        t_skips++;                                                                                                     \
        return;                                                                                                        \
    } while (0)

#define T_MAIN                                                                                                         \
    int main(int argc, char **argv) {                                                                                  \
        int passed = 0, failed = 0, ran = 0;                                                                           \
        for (int i = 0; i < t_count; i++) {                                                                            \
            if (argc > 1 && !strstr(t_list[i].label, argv[1])) continue;                                               \
            int before = t_failures, skips = t_skips;                                                                  \
            ran++;                                                                                                     \
            t_now = t_list[i].label;                                                                                   \
            t_list[i].fn((fxa_error){.status = FXA_OK});                                                               \
            if (t_failures != before)                                                                                  \
                failed++;                                                                                              \
            else if (t_skips == skips)                                                                                 \
                passed++;                                                                                              \
            printf("%s %s\n", t_failures != before ? "FAIL" : t_skips != skips ? "skip" : "ok  ", t_now);              \
        }                                                                                                              \
        printf("%d passed, %d failed, %d skipped\n", passed, failed, t_skips);                                         \
        if (!ran) printf("no test has '%s' in its name\n", argc > 1 ? argv[1] : "");                                   \
        return failed || !ran ? 1 : passed ? 0 : T_ALL_SKIPPED;                                                        \
    }

#endif
