/* SPDX-License-Identifier: Apache-2.0
 *
 * Selects the instruction set by the features of the processor and by a table of operations per cycle for each
 * processor family. Nothing is timed, because the same machine must compute the same bits in every process. FXA_CPU
 * overrides the selection.
 */
#include "cpu.h"

#include "kernels/bf16.h"
#include "../../base/cpu_features.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All instruction sets of this build: narrow vectors before wide ones, those with bf16 products last. */
static const struct select_set {
    const fxa__cpu_kernels *kernels;
    uint32_t needs;
    const char *what;
} select_sets[] = {
    {fxa__cpu_scalar, 0, ""},
#if defined(__x86_64__)
    {fxa__cpu_sse2, FXA__CPU_SSE2, "SSE2"},
    {fxa__cpu_avx2, FXA__CPU_AVX2, "AVX2, FMA and F16C"},
    {fxa__cpu_avx512, FXA__CPU_AVX512, "AVX-512 F, BW, DQ and VL"},
    {fxa__cpu_avx512_bf16, FXA__CPU_AVX512 | FXA__CPU_AVX512_BF16, "AVX512_BF16"},
    {fxa__cpu_amx, FXA__CPU_AVX512 | FXA__CPU_AVX512_BF16 | FXA__CPU_AMX_BF16,
     "AMX_BF16, or the system does not permit its tiles"},
#elif defined(__aarch64__)
    {fxa__cpu_neon, FXA__CPU_NEON, "NEON"},
#endif
};
enum { SELECT_SETS = sizeof select_sets / sizeof select_sets[0] };
#if defined(__x86_64__)
enum { SELECT_PLAIN = SELECT_SETS - 2, SELECT_AVX512 = SELECT_PLAIN - 1 };
#else
enum { SELECT_PLAIN = SELECT_SETS };
#endif

static bool select_has(const fxa__cpu_features *f, size_t i) {
    if ((select_sets[i].needs & f->flags) != select_sets[i].needs) return false;
#if defined(__x86_64__)
    if (select_sets[i].needs & FXA__CPU_AMX_BF16) return fxa__amx_permit();
#endif
    return true;
}

/* Operations per cycle of each instruction set, for processors on which the widest vectors may not be the fastest. The
 * last two numbers are for bf16 products, the others for f32; 0 = not known to be faster. Of equally fast instruction
 * sets the one with wider vectors is selected, because it needs fewer instructions. */
static const struct select_rates {
    fxa__cpu_vendor vendor;
    uint32_t family, first_model, last_model;
    double rate[6]; /* scalar, sse2, avx2, avx512, avx512-bf16, amx */
} select_rates[] = {
    {FXA__CPU_AMD, 25, 0x10, 0xaf, {2, 16, 32, 32, 64, 0}},  /* Zen 4 (and Zen 3, which has no AVX-512) */
    {FXA__CPU_AMD, 26, 0x00, 0xff, {2, 16, 32, 64, 128, 0}}, /* Zen 5 */
    {FXA__CPU_INTEL, 6, 0x55, 0x55, {2, 8, 32, 64, 0, 0}},   /* Skylake-SP, Cascade Lake and Cooper Lake */
    /* Ice Lake and Tiger Lake in laptops, with one 512-bit unit */
    {FXA__CPU_INTEL, 6, 0x7d, 0x8d, {2, 8, 32, 32, 0, 0}},
    {FXA__CPU_INTEL,
     6,
     0x8f,
     0x8f,
     {2, 8, 32, 64, 32, 1024}}, /* Sapphire Rapids; avx512-bf16 (bf16 products without AMX) is half as fast as avx512 */
    {FXA__CPU_INTEL, 6, 0xad, 0xae, {2, 8, 32, 64, 32, 1024}}, /* Granite Rapids */
    {FXA__CPU_INTEL, 6, 0xcf, 0xcf, {2, 8, 32, 64, 32, 1024}}, /* Emerald Rapids */
};
static const double select_default_rates[6] = {2, 8, 32, 64, 0, 1024};

/* Returns the operations per cycle of each instruction set on this processor, in the order of select_sets. */
static const double *select_rate_row(const fxa__cpu_features *f) {
    for (size_t i = 0; i < sizeof select_rates / sizeof select_rates[0]; i++) {
        const struct select_rates *r = &select_rates[i];
        if (r->vendor == f->vendor && r->family == f->family && r->first_model <= f->model && f->model <= r->last_model)
            return r->rate;
    }
    return select_default_rates;
}

static const fxa__cpu_kernels *select_best(const fxa__cpu_features *f, size_t width, bool bf16) {
    const double *rate = select_rate_row(f);
    size_t best = 0;
    for (size_t i = 1; i < (bf16 ? SELECT_SETS : SELECT_PLAIN); i++)
        if (rate[i] >= rate[best] && select_has(f, i)) best = i;
    return &select_sets[best].kernels[width];
}

/* Returns the kernels of select_sets[i], the instruction set that FXA_CPU names, or those of avx512 if the set has bf16
 * products but the problem is not bf16. */
static const fxa__cpu_kernels *select_named(size_t i, size_t width, bool bf16) {
#if defined(__x86_64__)
    if (i >= SELECT_PLAIN && !bf16) i = SELECT_AVX512;
#endif
    (void)bf16;
    return &select_sets[i].kernels[width];
}

static const fxa__cpu_kernels *select_forced(const fxa__cpu_features *f, const char *name, size_t width, bool bf16,
                                             char *reason, size_t reason_size) {
    char names[80] = "";
    for (size_t i = 0; i < SELECT_SETS; i++) {
        const struct select_set *set = &select_sets[i];
        if (strcmp(name, set->kernels[0].isa) == 0) {
            if (select_has(f, i)) return select_named(i, width, bf16);
            (void)snprintf(reason, reason_size, "FXA_CPU=%s, but this machine lacks %s", name, set->what);
            return NULL;
        }
        (void)snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", set->kernels[0].isa);
    }
    (void)snprintf(reason, reason_size, "FXA_CPU=%.32s is not a set of this build; it has %s", name, names);
    return NULL;
}

const fxa__cpu_kernels *fxa__cpu_select(size_t real_size, uint32_t dtype, char *reason, size_t reason_size) {
    fxa__cpu_features f = fxa__cpu_features_get();
    size_t width = real_size == sizeof(double);
    bool bf16 = width == 0 && dtype == FXA_BF16;
    const char *name = getenv("FXA_CPU");
    return name && *name ? select_forced(&f, name, width, bf16, reason, reason_size) : select_best(&f, width, bf16);
}

const fxa__cpu_kernels *fxa__cpu_set(size_t i, size_t real_size, bool *usable) {
    if (i >= SELECT_PLAIN) return NULL;
    fxa__cpu_features f = fxa__cpu_features_get();
    *usable = select_has(&f, i);
    return &select_sets[i].kernels[real_size == sizeof(double)];
}

const fxa__cpu_kernels *fxa__cpu_set_bf16(size_t i, bool *usable) {
    if (i + SELECT_PLAIN >= SELECT_SETS) return NULL;
    fxa__cpu_features f = fxa__cpu_features_get();
    *usable = select_has(&f, SELECT_PLAIN + i);
    return &select_sets[SELECT_PLAIN + i].kernels[0];
}
