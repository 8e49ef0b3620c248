/* SPDX-License-Identifier: Apache-2.0
 *
 * The amx kernel set of the cpu engine on emulated tiles. Linked into a test before the library, this file replaces
 * kernels/amx.c. It also reports AVX512_BF16 (emulated by model_bf16.c) and AMX wherever the processor has the other
 * features that the sets need, so tests cover both sets on any machine with AVX-512. Elsewhere the test is skipped with
 * exit status 77.
 */
#include <stdio.h>
#include <stdlib.h>

static void model_skip(void) {
    printf("skipped: the models of AVX512_BF16 and AMX need a machine with AVX-512 F, BW, DQ and VL\n");
    exit(77);
}

#if defined(__x86_64__)

/* Includes the function that returns the processor's real features, under another name. */
#define fxa__cpu_features_get model_features_get
#include "base/cpu_features.c"
#undef fxa__cpu_features_get

#include "engine/cpu/cpu.h"
#include "engine/cpu/kernels/bf16.h"
#include "support/mock/amx_model.h"

#define AMX_FUNCTION(name) void fxa__amx_##name
#include "engine/cpu/kernels/body/amx.inc"

fxa__cpu_features fxa__cpu_features_get(void); /* redeclared, because the include guard of the header hides the name */
fxa__cpu_features fxa__cpu_features_get(void) {
    fxa__cpu_features f = model_features_get();
    if (f.flags & FXA__CPU_AVX512) f.flags |= FXA__CPU_AVX512_BF16 | FXA__CPU_AMX_BF16;
    return f;
}

bool fxa__amx_permit(void) { return true; }
void fxa__amx_enter(void) {}
void fxa__amx_leave(void) {}

__attribute__((constructor)) static void model_start(void) {
    if (!(model_features_get().flags & FXA__CPU_AVX512)) model_skip();
}

#else
__attribute__((constructor)) static void model_start(void) { model_skip(); }
#endif
