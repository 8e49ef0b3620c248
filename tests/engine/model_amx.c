/* SPDX-License-Identifier: Apache-2.0
 *
 * The amx set of the cpu engine on a model of its tiles: linked into a test before the library, this takes the place of
 * isa_amx.c, and says that the processor has AMX where it has all else that the set needs. Conformance then covers the
 * set on machines without tiles.
 */
#if defined(__x86_64__)

/* What the processor really has, under another name. */
#define fxa__cpu_features_get model_features_get
#include "base/cpu_features.c"
#undef fxa__cpu_features_get

#include "engine/cpu/cpu.h"
#include "engine/cpu/kern_bf16.h"
#include "support/amx_model.h"

#define AMX_ZERO(t) amx_model_zero(t)
#define AMX_LOAD(t, p, bytes) amx_model_load(t, p, bytes)
#define AMX_STORE(t, p, bytes) amx_model_store(t, p, bytes)
#define AMX_DOT(c, a, b) amx_model_dot(c, a, b)
#include "engine/cpu/kern_amx.inc"

fxa__cpu_features fxa__cpu_features_get(void); /* the header's guard kept the name away */
fxa__cpu_features fxa__cpu_features_get(void) {
    fxa__cpu_features f = model_features_get();
    if (f.flags & FXA__CPU_AVX512_BF16) f.flags |= FXA__CPU_AMX_BF16;
    return f;
}

void fxa__amx_gemm(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b, int64_t panel,
                   void *c, int64_t ldc, const void *beta) {
    amx_gemm(m, n, k, a, rs, cs, b, panel, c, ldc, beta);
}
void fxa__amx_gemm_pairs(int64_t m, int64_t n, int64_t k, const void *a, int64_t step, const void *b, int64_t panel,
                         void *c, int64_t ldc, const void *beta) {
    amx_gemm_pairs(m, n, k, a, step, b, panel, c, ldc, beta);
}

bool fxa__amx_permit(void) {
    return true;
}
void fxa__amx_enter(void) {}
void fxa__amx_leave(void) {}

#endif
