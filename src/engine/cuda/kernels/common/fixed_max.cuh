/* SPDX-License-Identifier: Apache-2.0
 *
 * When a row of the Hopper forward kernel may keep the maximum that it froze, and when its tile is computed again; the
 * proof is in docs/cuda-kernels.md. Plain C as well as CUDA: tests/engine/cuda/test_cuda_frozen.c runs rows by it on
 * the host.
 *
 * Exponents are in log2. A row has exponentials 2^(x - top), where top is what its maximum was when it was frozen, and
 * their sum. Whatever top is, O and LSE are right while no exponential, and no product with V, leaves the range of its
 * type: that is all that is asked here.
 */
#ifndef FXA_CUDA_COMMON_FIXED_MAX_CUH
#define FXA_CUDA_COMMON_FIXED_MAX_CUH

/* 2^-64. Of a row whose maximum is a guess: below it exponentials may have vanished. Those of f16 do so from 2^-14 on,
 * one by one, so a guess is never kept there. */
#define FROZEN_FLOOR 5.421010862427522e-20f
/* x * unit - top is rounded where top is, by 2^-24 of it. All weights of a row share that factor while it is small;
 * above, distances are taken before they are multiplied by the unit. */
#define FROZEN_LARGE 1048576.f

/* Of the sum, and so of every weight: P must fit storage. bf16: 2^64 leaves as much again to V; a V that is larger
 * makes O infinite, which is looked for by itself. Where a sink joins, 2^-126 of its weight is still 2^-102 of the
 * row's. */
FXA_INLINE float fixed_max_limit(bool f16, bool sink)
{
    return f16 ? 32768.f : sink ? 16777216.f : 18446744073709551616.f;
}

/* By what the maximum may lag before it is frozen. f16 freezes the true one: its weights end at 2^-24. */
FXA_INLINE float fixed_max_threshold(bool f16)
{
    return f16 ? 0.f : 8.f;
}

/* What the second visit takes off its exponents, so that sums of 2^16 weights and any bf16 V stay finite. */
FXA_INLINE float fixed_max_bias(bool f16)
{
    return f16 ? 0.f : 24.f;
}

/* The same where weights are only asked whether they are 0 (common/nonfinite.cuh): those of f16 are as large as they
 * may be. */
FXA_INLINE float fixed_max_mark_bias(bool f16)
{
    return f16 ? -15.f : 0.f;
}

/* guessed: top is 0 because of the program's bound, or because nothing was attended when it was frozen. */
FXA_INLINE bool is_fixed_max_wrong(bool f16, float top, float sum, bool guessed, bool sink)
{
    const bool inside = sum < fixed_max_limit(f16, sink) && top <= FROZEN_LARGE && top >= -FROZEN_LARGE;
    return !inside || (guessed && (f16 || !(sum >= FROZEN_FLOOR)));
}

#endif
