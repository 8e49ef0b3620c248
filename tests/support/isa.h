/* SPDX-License-Identifier: Apache-2.0
 *
 * Instruction sets of the cpu engine, by their names in FXA_CPU. Tests run with each set that the machine has and
 * report the sets that it lacks.
 */
#ifndef FXA_TESTS_ISA_H
#define FXA_TESTS_ISA_H

#include "t.h"

static const char *const isa_names[] = {"scalar", "sse2", "avx2", "avx512", "avx512-bf16", "amx", "neon"};
enum { ISA_COUNT = sizeof isa_names / sizeof *isa_names };

/* Returns true if the cpu engine runs with the present value of FXA_CPU; else writes the reason to `why`. */
__attribute__((unused)) static bool isa_is_usable(char *why, size_t capacity) {
    fxa_context *ctx = NULL;
    fxa_support reports[8];
    size_t count = 8;
    fxa_problem p = FXA_PROBLEM_INIT;
    bool usable = false;
    p.b = p.hq = p.sq = p.sk = p.d_qk = 1, p.q.dtype = FXA_BF16; /* bf16, to include the sets for bf16 */
    snprintf(why, capacity, "no cpu engine in this build");
    if (fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
    if (fxa_support_query(ctx, &p, reports, &count, NULL) != FXA_OK) count = 0;
    for (size_t i = 0; i < count && i < 8; i++)
        if (strcmp(reports[i].engine, "cpu") == 0) {
            usable = reports[i].supported;
            snprintf(why, capacity, "%s", reports[i].reason);
        }
    fxa_context_destroy(ctx);
    return usable;
}

/* Calls `run` with FXA_CPU set to each usable name in turn. If FXA_CPU is set already, calls `run` only with that
 * value. */
__attribute__((unused)) static void isa_each(void (*run)(const char *isa)) {
    const char *outside = getenv("FXA_CPU");
    static bool told[ISA_COUNT];
    char why[256], kept[64];
    snprintf(kept, sizeof kept, "%s", outside ? outside : "");
    for (int i = 0; i < ISA_COUNT; i++) {
        if (*kept && strcmp(kept, isa_names[i]) != 0) continue;
        setenv("FXA_CPU", isa_names[i], 1);
        if (isa_is_usable(why, sizeof why))
            run(isa_names[i]);
        else if (!told[i])
            printf("  skipped set %s: %s\n", isa_names[i], why), told[i] = true;
    }
    if (*kept)
        setenv("FXA_CPU", kept, 1);
    else
        unsetenv("FXA_CPU");
}

#endif
